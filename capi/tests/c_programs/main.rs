//! Programs in C on the library, started by the launcher.
//!
//! They see what any program sees: an installation, made from what was built for this test,
//! with its compiler wrapper, header, library and `mpiexec`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

#[allow(dead_code, reason = "shared with xtask and the build script")]
#[path = "../../generate.rs"]
mod generate;

#[path = "../../../xtask/src/install/layout.rs"]
mod layout;

#[path = "../../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

mod heap;
mod launchers;
mod misuses;
mod nulls;
mod outside;
mod wrong;

/// Seconds after which the launcher ends a job that hangs: ten times what any takes.
const GUARD: &str = "120";

/// `target/PROFILE`.
fn target() -> PathBuf {
    let test = std::env::current_exe().expect("our path");
    let deps = test.parent().expect("a folder");
    deps.parent().expect("a folder").to_path_buf()
}

/// The library that was built for this test: cargo puts it beside us.
fn library() -> PathBuf {
    target().join("deps/libmpi_abi.so")
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output();
    output.unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// An installation; `None` where programs cannot be built or started, and the skip was
/// asked for.
fn place() -> Option<&'static Path> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    PLACE
        .get_or_init(|| {
            let launcher = target().join("osier");
            if !needs::program("cc", "cc") {
                return None;
            }
            if !launcher.exists() {
                needs::missing("launcher", launcher.display());
                return None;
            }
            let place = target().join("tests-in-c");
            let parts = layout::Parts {
                launcher: &launcher,
                library: &library(),
                heap: &target().join("deps/libosier_heap.so"),
                headers: &Path::new(env!("CARGO_MANIFEST_DIR")).join("include"),
            };
            layout::put(&parts, &place).expect("an installation");
            Some(place)
        })
        .as_deref()
}

/// A file of the tests.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
}

/// Runs a compiler wrapper of the installation, which must succeed; what it prints.
fn wrapper(place: &Path, name: &str, arguments: &[&str]) -> String {
    let done = run(Command::new(place.join("bin").join(name)).args(arguments));
    assert!(
        done.status.success(),
        "{name} {arguments:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let both = [done.stdout, done.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

/// Builds a program; `None` as for [`place`].
fn build(name: &str) -> Option<PathBuf> {
    build_from(&source(&format!("{name}.c")), name)
}

/// Builds a program of a file.
fn build_from(source: &Path, name: &str) -> Option<PathBuf> {
    let place = place()?;
    let program = place.join(name);
    let strict = [
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-pthread",
        "-o",
    ];
    // Tests that start the same program build it at the same time: each sees a whole one.
    static BUILT: AtomicUsize = AtomicUsize::new(0);
    let number = BUILT.fetch_add(1, Ordering::Relaxed);
    let made = place.join(format!("{name}.{number}"));
    let files = [text(&made), text(source)];
    wrapper(place, "mpicc", &[&strict[..], &files].concat());
    std::fs::rename(&made, &program).expect("a folder of ours");
    Some(program)
}

/// Exit code, standard output and errors.
type Ended = (Option<i32>, String, String);

fn start(program: &Path, ranks: usize) -> Ended {
    start_with(program, ranks, &[], &[])
}

/// With more options of the launcher, and arguments of the program.
fn start_with(program: &Path, ranks: usize, more: &[&str], arguments: &[&str]) -> Ended {
    let output = run(Command::new(target().join("osier"))
        .args(["run", "-n", &ranks.to_string(), "--timeout", GUARD])
        .args(more)
        .arg("--")
        .arg(program)
        .args(arguments));
    ended(&output)
}

/// Exit code, what it wrote, what it complained of.
fn ended(output: &Output) -> Ended {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Builds a program and runs it on so many ranks each.
fn passes(name: &str, ranks: &[usize]) {
    let Some(program) = build(name) else { return };
    for ranks in ranks {
        let (code, stdout, stderr) = start(&program, *ranks);
        assert_eq!(
            (code, stdout.as_str()),
            (Some(0), "through\n"),
            "{name} on {ranks} ranks:\n{stderr}"
        );
    }
}

#[test]
fn environment() {
    passes("environment", &[2]);
}

#[test]
fn windows() {
    passes("windows", &[1, 2, 3]);
}

#[test]
fn point_to_point() {
    passes("p2p", &[2, 3]);
}

#[test]
fn datatypes() {
    passes("types", &[1]);
}

/// Types that begin before or behind their origin, through every kind of transfer.
#[test]
fn datatypes_with_any_bounds() {
    passes("bounds", &[1, 2, 3]);
}

#[test]
fn collectives() {
    passes("collectives", &[1, 4]);
}

#[test]
fn groups() {
    passes("groups", &[4]);
}

#[test]
fn sessions() {
    passes("sessions", &[2]);
}

/// Every form that a function has, by each of its names.
#[test]
fn all_forms() {
    passes("forms_of_transfers", &[1]);
    passes("forms_of_types", &[1]);
    passes("forms_of_objects", &[1, 3]);
    passes("forms_of_collectives", &[1, 3]);
}

#[test]
fn handles_that_are_none() {
    passes("misuse_handles", &[2]);
}

#[test]
fn arguments_that_make_no_sense() {
    passes("misuse_arguments", &[2]);
}

/// Runs a program on one rank with each argument, and compares how it ends, and what it
/// says.
fn ends(name: &str, cases: &[(&str, i32, &str)]) {
    let Some(program) = build(name) else { return };
    for (argument, wanted, says) in cases {
        let (code, stdout, stderr) = start_with(&program, 1, &[], &[argument]);
        assert_eq!(code, Some(*wanted), "{name} {argument}: {stdout}{stderr}");
        assert!(stderr.contains(says), "{name} {argument}: {stderr}");
    }
}

#[test]
fn calls_outside_of_their_time() {
    let (before, after) = ("a call before MPI_Init", "a call after MPI_Finalize");
    ends(
        "order",
        &[
            ("rank-before", 16, before),
            ("send-before", 16, before),
            ("finalize-before", 16, before),
            ("null-before", 16, before),
            ("init-twice", 16, "MPI_Init for the second time"),
            ("left-pending", 0, ""),
            ("rank-after", 16, after),
            ("send-after", 16, after),
            ("wait-after", 16, after),
            ("finalize-twice", 16, after),
            ("init-again", 16, "MPI_Init after MPI_Finalize"),
        ],
    );
}

#[test]
fn error_handlers() {
    passes("handlers", &[1, 2]);
    ends(
        "handlers",
        &[
            ("abort", 42, "MPI_Abort with code 42"),
            ("abort-self", 43, "MPI_Abort with code 43"),
            ("fatal", 5, "MPI_Barrier: MPI_COMM_NULL"),
            ("errors-abort", 6, "MPI_Send: rank 1 in a communicator of 1"),
            ("called", 35, "MPI_Comm_call_errhandler"),
            ("session-fatal", 13, "MPI_Session_get_nth_pset"),
        ],
    );
}

#[test]
fn callbacks_that_communicate() {
    passes("callbacks", &[1, 2, 3]);
}

#[test]
fn types_that_do_not_match_are_found() {
    let Some(program) = build("mismatch") else {
        return;
    };
    let (code, stdout, stderr) = start_with(&program, 2, &["--check", "signature"], &[]);
    assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
    assert!(
        stderr.contains("types do not match: receive from rank 0, tag 7"),
        "{stderr}"
    );
    assert_eq!(stderr.matches("types do not match").count(), 1, "{stderr}");
}

#[test]
fn tool_interface() {
    passes("tool", &[1, 2]);
}

#[test]
fn threads() {
    passes("threads", &[1, 2]);
}

#[test]
fn buffers_on_devices() {
    let Some(program) = build("devices") else {
        return;
    };
    let file = "libosier_emulated_cuda.so";
    let places = [target().join(file), target().join("deps").join(file)];
    if !places.iter().any(|place| place.is_file()) {
        return needs::missing("driver", places[0].display());
    }
    let (code, stdout, stderr) = start_with(&program, 2, &["--emulate-gpus", "1"], &[]);
    assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
}

#[test]
fn what_programs_of_others_rely_on() {
    passes("others", &[1, 2, 3]);
}

/// Ranks finalize at different moments, and live on; or one exits without.
#[test]
fn ranks_that_leave() {
    let Some(program) = build("leavers") else {
        return;
    };
    for (how, lines) in [("well", "through\n"), ("exit", "through\n")] {
        let flags = place().expect("built").join(format!("leavers-{how}"));
        for rank in ["1", "2", "go"] {
            let flag = format!("{}.{rank}", text(&flags));
            let _ = std::fs::remove_file(flag);
        }
        let (code, stdout, stderr) = start_with(&program, 3, &[], &[how, text(&flags)]);
        assert_eq!((code, stdout.as_str()), (Some(0), lines), "{how}: {stderr}");
    }
}

/// Ranks go on without one that dies, by what `mpi-ext.h` offers.
#[test]
fn ranks_that_go_on() {
    let Some(program) = build("faults") else {
        return;
    };
    for ranks in [2, 4] {
        let (_, stdout, stderr) = start_with(&program, ranks, &["--on-death", "report"], &[]);
        assert_eq!(stdout, "through\n", "{ranks} ranks: {stderr}");
        assert!(!stderr.contains("not so"), "{stderr}");
    }
}

/// Requests in partitions are freed while they are active; others are waited for.
#[test]
fn partitioned_requests_that_are_freed() {
    passes("freed", &[2]);
}

#[test]
fn errors_are_fatal_by_default() {
    let Some(program) = build("fatal") else {
        return;
    };
    let (code, stdout, stderr) = start(&program, 2);
    // MPI_ERR_RANK.
    assert_eq!((code, stdout.as_str()), (Some(6), ""), "{stderr}");
    assert!(
        stderr.contains("rank 0: MPI_Send: rank 99 in a communicator of 2"),
        "{stderr}"
    );
}

#[test]
fn what_is_generated_is_checked_in() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources: Vec<String> = std::fs::read_dir(here.join("src"))
        .expect("sources")
        .map(|entry| std::fs::read_to_string(entry.expect("a file").path()).expect("text"))
        .collect();
    let defined = sources.iter().flat_map(|s| generate::defined(s)).collect();
    for (file, wanted) in [
        ("include/mpi.h", generate::header()),
        (
            "../docs/mpi-coverage.md",
            generate::coverage(&defined, generate::SUITES),
        ),
    ] {
        let found = std::fs::read_to_string(here.join(file)).unwrap_or_default();
        assert!(found == wanted, "{file} is stale (hint: cargo xtask abi)");
    }
}

/// Every function of the table is exported, under both names.
#[test]
fn all_names_are_exported() {
    let library = library();
    if !needs::program("nm", "nm") {
        return;
    }
    let listed = run(Command::new("nm").arg("-D").arg(&library));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names: std::collections::HashSet<&str> = listed
        .lines()
        .filter_map(|l| l.split(' ').next_back())
        .collect();
    let lacking: Vec<String> = generate::functions()
        .flat_map(|f| [f.name.to_owned(), format!("P{}", f.name)])
        .filter(|name| !names.contains(name.as_str()))
        .collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    // What is beside the standard is in a header of its own.
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/mpi-ext.h");
    let header = std::fs::read_to_string(header).expect("a header");
    let declared = header.lines().filter_map(|l| l.strip_prefix("int "));
    let declared: std::collections::HashSet<&str> =
        declared.filter_map(|l| l.split('(').next()).collect();
    let lacking: Vec<_> = declared
        .iter()
        .filter(|name| !names.contains(**name))
        .collect();
    assert!(declared.len() > 20 && lacking.is_empty(), "{lacking:?}");
    let ours = |name: &&str| !name.starts_with("MPI_") && !name.starts_with("PMPI_");
    let defined = listed.lines().filter(|l| l.contains(" T "));
    let others: Vec<&str> = defined
        .filter_map(|l| l.split(' ').next_back())
        .filter(|name| ours(name) && !declared.contains(name))
        .collect();
    assert!(
        others.is_empty(),
        "symbols that are no part of MPI: {others:?}"
    );
}
