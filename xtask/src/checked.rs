//! `checking`: the page of what checks find, and the programs of others that show it.

use crate::checking::{self, FILES};
use crate::install;
use crate::steps::{Result, root, target_dir};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Options of `checking`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask checking
  git clone https://github.com/tudasc/mpi-corrbench
  cargo xtask checking --corrbench mpi-corrbench --update-docs")]
pub struct Args {
    /// Also run the level-0 programs of this clone of MPI-CorrBench, but for one-sided ones
    #[arg(long, value_name = "DIR")]
    corrbench: Option<PathBuf>,
    /// Keep what they have shown for the page
    #[arg(long, requires = "corrbench")]
    update_docs: bool,
}

/// Seconds after which a program is given up.
const GUARD: &str = "30";
/// Programs that run at the same time.
const AT_ONCE: usize = 2;

/// `cargo xtask checking`.
pub fn run(args: &Args) -> Result {
    let prefix = target_dir().join("checking");
    install::run(&install::Args::debug(&prefix))?;
    let folder = root().join("capi/tests/c/wrong");
    if let Some(clone) = &args.corrbench {
        let text = corrbench(&prefix, clone)?;
        println!("{text}");
        if args.update_docs {
            write(&folder.join("corrbench.md"), &text)?;
        }
    }
    let mut tables = Vec::new();
    for (file, title) in FILES {
        let program = prefix.join(file);
        compile(&prefix, &[], &folder.join(format!("{file}.c")), &program)?;
        let listed = Command::new(&program).arg("list").output();
        let listed = listed.map_err(|e| format!("{file}: {e}"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        tables.push((title, checking::cases(&listed)));
    }
    let others = std::fs::read_to_string(folder.join("corrbench.md")).unwrap_or_default();
    write(
        &root().join("docs/checking.md"),
        &checking::page(&tables, &others),
    )
}

fn write(path: &Path, text: &str) -> Result {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// Builds a program; what the compiler says if it cannot.
fn compile(prefix: &Path, include: &[PathBuf], source: &Path, program: &Path) -> Result {
    let done = Command::new(prefix.join("bin/mpicc"))
        .args([
            "-g",
            "-w",
            "-fopenmp",
            "-DNUM_THREADS=2",
            "-DBUFFER_LENGTH_INT=10000",
            "-o",
        ])
        .args([program, source])
        .args(
            include
                .iter()
                .map(|folder| format!("-I{}", folder.display())),
        )
        .arg("-lm")
        .output()
        .map_err(|e| e.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// What there is to say of programs that are called wrong and of which nothing is said, or the
/// other way round: part of the name, and the reason.
const NOTES: [(&str, &str); 26] = [
    (
        "data_race/correct",
        "true on 2 threads: one writes what the other one sends",
    ),
    (
        "coll/ArgError-MPIAllgather-Count-1",
        "on 2 ranks the buffers are long enough by chance",
    ),
    (
        "Barrier-Deadlock-2",
        "right, where short messages are buffered",
    ),
    (
        "MPIRecv-Deadlock-2",
        "right, where short messages are buffered",
    ),
    (
        "MPIRecv-Deadlock-4",
        "right, where short messages are buffered",
    ),
    (
        "MPISend-Tag-2",
        "MPI_TAG_UB is the number of a key: one more is a good tag",
    ),
    ("MPIRecv-Rank-1", "-1 is MPI_ANY_SOURCE of this interface"),
    (
        "MPITest-Status",
        "a null pointer is MPI_STATUS_IGNORE of this interface",
    ),
    (
        "MissingCall-MPIWait",
        "requests are freed, which MPI allows",
    ),
    (
        "MPISend-Type-3",
        "a pointer of the program's own is overwritten, and then used",
    ),
    (
        "ArgMismatch-MPIRecv-Type",
        "the types match; how long the program's variable is stands nowhere",
    ),
    (
        "ArgError-MPIRecv-Count-2",
        "a receive that is longer than its message; how long memory of malloc is stands nowhere",
    ),
    (
        "Type",
        "the ranks agree; the types of the program's variables are known to the compiler alone",
    ),
    (
        "correct/coll/alltoallv0",
        "true: three communicators are not freed",
    ),
    (
        "correct/coll/nonblocking",
        "true: displacements of MPI_Ialltoallw are in bytes, and its blocks overlap",
    ),
    (
        "correct/datatype/large_type_sendrec",
        "messages of several GiB take longer than the limit",
    ),
    (
        "correct/pt2pt/sendrecv3",
        "true: a buffer is received into while it is sent",
    ),
    (
        "correct/pt2pt/",
        "true: two receives have one buffer at the same time",
    ),
    (
        "correct/request_reuse",
        "true: it calls MPI_Comm_rank after MPI_Finalize",
    ),
    (
        "correct/two_collectives",
        "true on 2 threads: each makes both calls",
    ),
    (
        "openmp/data_race",
        "two threads of the program touch its memory: -fsanitize=thread finds it",
    ),
    (
        "openmp/memory",
        "memory of a thread of the program, which is still there when it is read",
    ),
    (
        "openmp/ordering",
        "what happens depends on how the threads meet",
    ),
    (
        "openmp/threading/wrong_threading_level",
        "named if the threads are in calls at the same time, or if the wrong one makes the call",
    ),
    (
        "openmp/threading/finalize_missuse",
        "named if MPI_Finalize is called by the wrong thread, which depends on how they meet",
    ),
    (
        "missing_threading_level_check",
        "right, where the level that is asked for is provided",
    ),
];

/// How a program of others ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    Named(String),
    Silent,
    Crashed,
    Endless,
    NotBuilt(String),
}

/// Runs all programs of MPI-CorrBench that need what Osier has; the outcome as text.
fn corrbench(prefix: &Path, clone: &Path) -> Result<String> {
    let base = clone.join("micro-benches/0-level");
    let mut files = Vec::new();
    find(&base, &mut files)?;
    files.sort();
    let ended = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..AT_ONCE {
            s.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(at) else { return };
                    let program = prefix.join(format!("corrbench-{at}"));
                    let how = judge(prefix, &base, file, &program);
                    let _ = std::fs::remove_file(&program);
                    let name = file.strip_prefix(&base).unwrap_or(file);
                    let mut all = ended.lock().unwrap_or_else(|e| e.into_inner());
                    all.insert(name.display().to_string(), how);
                }
            });
        }
    });
    Ok(summary(
        &ended.into_inner().unwrap_or_else(|e| e.into_inner()),
    ))
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && name != "rma" {
            find(&path, files)?;
        } else if name.ends_with(".c") {
            files.push(path);
        }
    }
    Ok(())
}

fn judge(prefix: &Path, base: &Path, file: &Path, program: &Path) -> Ended {
    let include = [base.join("correct/include"), base.join("openmp")];
    if let Err(text) = compile(prefix, &include, file, program) {
        let wanted = ["error", "undefined reference"];
        let first = text.lines().find(|l| wanted.iter().any(|w| l.contains(w)));
        let first = first.unwrap_or(&text).trim();
        let why = first.rsplit(": ").next().unwrap_or(first);
        return Ended::NotBuilt(why.to_owned());
    }
    let output = Command::new(prefix.join("bin/osier"))
        .args([
            "run",
            "-n",
            "2",
            "--check",
            "all",
            "--on-hang",
            "kill-probable",
        ])
        .args(["--timeout", GUARD, "--"])
        .arg(program)
        // They write files.
        .current_dir(prefix)
        .env("OMP_NUM_THREADS", "2")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        return Ended::NotBuilt("osier run cannot be started".into());
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = said.lines().filter(|line| line.contains("osier: "));
    if said.contains("SIGSEGV") || said.contains("SIGBUS") || said.contains("panicked") {
        return Ended::Crashed;
    }
    match lines.next() {
        Some(line) if line.contains("time limit") || line.contains("--timeout") => Ended::Endless,
        Some(line) => Ended::Named(line.replace("osier: ", "")),
        None => Ended::Silent,
    }
}

fn summary(ended: &BTreeMap<String, Ended>) -> String {
    let is_correct = |name: &str| name.split('/').any(|part| part == "correct");
    let count = |correct: bool, by: &dyn Fn(&Ended) -> bool| {
        let those = ended.iter().filter(|(name, _)| is_correct(name) == correct);
        those.filter(|(_, how)| by(how)).count()
    };
    let mut text = String::from(
        "## Programs of others\n\nThe level-0 programs of MPI-CorrBench (tudasc/mpi-corrbench), 2 ranks each, but for one-sided\nones, which Osier has not; written by\n`cargo xtask checking --corrbench DIR --update-docs`. Where two threads of a program are to meet\n(`openmp/ordering`, `threading`, `data_race`), some are named in one run and silent in another one: by up\nto five of all between runs.\n\n| | wrong | correct |\n|---|---|---|\n",
    );
    type Kind<'a> = (&'a str, &'a dyn Fn(&Ended) -> bool);
    let kinds: [Kind<'_>; 5] = [
        ("something is said", &|how| matches!(how, Ended::Named(_))),
        ("silent", &|how| *how == Ended::Silent),
        ("ends in a crash", &|how| *how == Ended::Crashed),
        ("does not end", &|how| *how == Ended::Endless),
        ("not built", &|how| matches!(how, Ended::NotBuilt(_))),
    ];
    for (name, by) in kinds {
        text += &format!("| {name} | {} | {} |\n", count(false, by), count(true, by));
    }
    text += "\nWrong programs of which nothing is said, or that crash, and correct ones of which something is:\n\n";
    for (name, how) in ended {
        let says = match (how, is_correct(name)) {
            (Ended::Named(line), true) => format!("says: {line}"),
            (Ended::Silent, false) => "silent".into(),
            (Ended::Crashed, _) => "crashes".into(),
            (Ended::Endless, _) => "does not end".into(),
            (Ended::NotBuilt(why), _) => format!("not built: {why}"),
            (Ended::Named(_), false) | (Ended::Silent, true) => continue,
        };
        let note = NOTES.iter().find(|(part, _)| name.contains(part));
        let note = note.map_or(String::new(), |(_, note)| format!(" ({note})"));
        text += &format!("- `{name}`: {says}{note}\n");
    }
    text
}
