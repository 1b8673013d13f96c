//! Programs in C on the library, started by the launcher.
//!
//! They see what any program sees: the header, the library by its soname, the launcher.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

#[allow(dead_code, reason = "shared with xtask and the build script")]
#[path = "../generate.rs"]
mod generate;

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

/// Folder with the library under its soname; `None` where programs cannot be built or
/// started.
fn place() -> Option<&'static Path> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    PLACE
        .get_or_init(|| {
            if Command::new("cc").arg("--version").output().is_err() {
                eprintln!("skipped: no C compiler (hint: apt-get install gcc)");
                return None;
            }
            if !target().join("osier").exists() {
                eprintln!("skipped: no launcher (hint: cargo build -p osier-cli)");
                return None;
            }
            let place = target().join("tests-in-c");
            std::fs::create_dir_all(&place).expect("a folder");
            let link = place.join("libmpi_abi.so.1");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(library(), &link).expect("a link");
            Some(place)
        })
        .as_deref()
}

/// Builds a program; `None` as for [`place`].
fn build(name: &str) -> Option<PathBuf> {
    let place = place()?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = place.join(name);
    let built = run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .arg(&program)
        .arg(here.join(format!("tests/c/{name}.c")))
        .arg("-I")
        .arg(here.join("include"))
        .arg(place.join("libmpi_abi.so.1"))
        .arg(format!("-Wl,-rpath,{}", place.display())));
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(program)
}

fn start(program: &Path, ranks: usize) -> (Option<i32>, String, String) {
    let output = run(Command::new(target().join("osier"))
        .args(["run", "-n", &ranks.to_string(), "--timeout", GUARD, "--"])
        .arg(program));
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
fn point_to_point() {
    passes("p2p", &[2, 3]);
}

#[test]
fn datatypes() {
    passes("types", &[1]);
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
        ("../docs/mpi-coverage.md", generate::coverage(&defined)),
    ] {
        let found = std::fs::read_to_string(here.join(file)).unwrap_or_default();
        assert!(found == wanted, "{file} is stale (hint: cargo xtask abi)");
    }
}

/// Every function of the table is exported, under both names.
#[test]
fn all_names_are_exported() {
    let library = library();
    let Ok(listed) = Command::new("nm").arg("-D").arg(&library).output() else {
        eprintln!("skipped: no nm (hint: apt-get install binutils)");
        return;
    };
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
    let ours = |name: &&str| !name.starts_with("MPI_") && !name.starts_with("PMPI_");
    let defined = listed.lines().filter(|l| l.contains(" T "));
    let others: Vec<&str> = defined
        .filter_map(|l| l.split(' ').next_back())
        .filter(ours)
        .collect();
    assert!(
        others.is_empty(),
        "symbols that are no part of MPI: {others:?}"
    );
}
