//! Wrong programs, one per class of error, each beside its correct twin.
//!
//! The table is in the programs themselves (`tests/c/wrong/*.c`): what each does, what
//! finds it, and what is said. `docs/checking.md` is made from it.

use super::{build_from, source, start_with, target};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[allow(dead_code, reason = "shared with xtask")]
#[path = "../../../xtask/src/checking.rs"]
mod checking;

use checking::Case;

/// Programs that are built and run at the same time.
const AT_ONCE: usize = 2;

/// Builds a file of wrong programs; its table.
fn table(name: &str) -> Option<(PathBuf, Vec<Case>)> {
    // Built once: a program may be running.
    static BUILT: Mutex<BTreeMap<String, Option<(PathBuf, String)>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(|e| e.into_inner());
    let made = built.entry(name.into()).or_insert_with(|| list(name));
    let (program, listed) = made.clone()?;
    Some((program, checking::cases(&listed)))
}

fn list(name: &str) -> Option<(PathBuf, String)> {
    let file = source(&format!("wrong/{name}.c"));
    let program = build_from(&file, &format!("wrong-{name}"))?;
    let listed = super::run(std::process::Command::new(&program).arg("list"));
    let listed = String::from_utf8(listed.stdout).expect("text");
    Some((program, listed))
}

/// What is wrong with how a case ended; nothing if it is named, and its twin is not.
fn judge(program: &Path, name: &str, case: &Case) -> Vec<String> {
    let options = ["--check", "all", "--on-hang", "kill"];
    let mut complaints = Vec::new();
    let (code, _, stderr) = start_with(program, case.ranks, &options, &[&case.name, "wrong"]);
    let said = stderr.contains("osier");
    match case.by.as_str() {
        "silent" if said || code != Some(0) => {
            complaints.push(format!(
                "is called silent, and was not ({code:?}): {stderr}"
            ));
        }
        "silent" => {}
        _ if !stderr.contains(&case.says) => {
            complaints.push(format!("is not named ({code:?}), but for: {stderr}"));
        }
        by => {
            let site = format!("{name}.c:");
            let names_caller = !matches!(by, "error" | "death");
            if names_caller && !stderr.contains(&site) {
                complaints.push(format!("no line of {name}.c: {stderr}"));
            }
            if stderr.contains("/src/") && stderr.contains(".rs:") {
                complaints.push(format!("a line of the library: {stderr}"));
            }
        }
    }
    let (code, _, stderr) = start_with(program, case.ranks, &options, &[&case.name, "right"]);
    if code != Some(0) || !stderr.is_empty() {
        complaints.push(format!(
            "the twin is not left in peace ({code:?}): {stderr}"
        ));
    }
    complaints
}

fn named(name: &str) {
    let Some((program, cases)) = table(name) else {
        return;
    };
    assert!(!cases.is_empty(), "no cases in {name}.c");
    let complaints = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..AT_ONCE {
            s.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = judge(&program, name, case);
                    if !found.is_empty() {
                        let mut all = complaints.lock().expect("nobody panics");
                        all.insert(case.name.clone(), found.join("\n"));
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().expect("nobody panics");
    let text: Vec<String> = complaints
        .iter()
        .map(|(case, text)| format!("{name}.c, {case}: {text}"))
        .collect();
    assert!(text.is_empty(), "{}", text.join("\n\n"));
}

#[test]
fn leaks_are_named() {
    named("leaks");
}

#[test]
fn calls_of_threads_are_named() {
    named("threads");
}

#[test]
fn hangs_are_named() {
    named("hangs");
}

#[test]
fn arguments_are_named() {
    named("arguments");
}

#[test]
fn requests_are_named() {
    named("requests");
}

#[test]
fn types_are_named() {
    named("types");
}

#[test]
fn collective_calls_are_named() {
    named("collectives");
}

#[test]
fn buffers_are_named() {
    named("buffers");
}

#[test]
fn accesses_to_windows_are_named() {
    named("windows");
}

/// The page says what the table says.
#[test]
fn the_page_is_up_to_date() {
    let tables: Option<Vec<_>> = checking::FILES
        .iter()
        .map(|(file, title)| Some((*title, table(file)?.1)))
        .collect();
    let Some(tables) = tables else { return };
    let cases = tables.iter().map(|(_, cases)| cases.len()).sum::<usize>();
    assert!(cases >= 60, "{cases} cases");
    let others = source("wrong/corrbench.md");
    let others = std::fs::read_to_string(others).unwrap_or_default();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/checking.md");
    let page = std::fs::read_to_string(page).unwrap_or_default();
    let wanted = checking::page(&tables, &others);
    assert!(
        page == wanted,
        "docs/checking.md is stale (hint: cargo xtask checking)"
    );
}

/// A program without debug information is named by function, one without symbols by object.
#[test]
fn callers_without_lines_have_names() {
    let Some(place) = super::place() else { return };
    let file = source("wrong/leaks.c");
    for (suffix, options, wanted) in [
        ("symbols", &["-g0"][..], "datatype (wrong-leaks-symbols+0x"),
        ("stripped", &["-g0", "-s"][..], "at wrong-leaks-stripped+0x"),
    ] {
        let program = target()
            .join("tests-in-c")
            .join(format!("wrong-leaks-{suffix}"));
        let files = ["-o", super::text(&program), super::text(&file)];
        super::wrapper(place, "mpicc", &[options, &files].concat());
        let arguments = ["datatype", "wrong"];
        let (_, _, stderr) = start_with(&program, 1, &["--check", "leaks"], &arguments);
        assert!(stderr.contains(wanted), "{suffix}: {stderr}");
    }
}
