//! Every variable of the library with values that make no sense: an error that names it, before
//! anything else happens, or nothing at all where the value is one. The list is the
//! library's own, so that a new variable is here when it is declared.

mod support;

use osier::config::{Syntax, VARIABLES, Variable};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::Command;
use support::{Done, EXERCISE, finish, job};

/// Exit codes of the program and of the launcher for what they refuse.
const REFUSED: [i32; 2] = [9, 2];

/// What no variable but a path takes.
const GARBAGE: [&str; 3] = ["%garbage%", "-1", "99999999999999999999999999"];

/// What some take.
const ODD: [&str; 11] = [
    "0",
    " ",
    "1",
    "18446744073709551615",
    "16777216T",
    "1e9",
    "nan",
    ";;",
    "::",
    "off",
    "\u{1f980}",
];

/// Long, and no UTF-8.
fn other() -> [OsString; 2] {
    [
        "x".repeat(100_000).into(),
        OsString::from_vec(vec![0xff, b'1', 0xfe]),
    ]
}

fn values() -> impl Iterator<Item = OsString> {
    GARBAGE
        .iter()
        .chain(&ODD)
        .map(OsString::from)
        .chain(other())
}

/// The program alone, with this variable set and no other.
fn alone(variable: &Variable, value: &OsStr) -> Done {
    let mut command = Command::new(EXERCISE);
    for v in VARIABLES {
        command.env_remove(v.name);
    }
    finish(command.arg("join").env(variable.name, value))
}

fn takes(variable: &Variable, value: &OsStr) -> bool {
    match variable.syntax {
        Syntax::Path => true,
        Syntax::Text(check) => check(&value.to_string_lossy()).is_ok(),
    }
}

/// What is wrong with how a process ended, if anything.
fn wrong(variable: &Variable, value: &OsStr, done: &Done) -> Option<String> {
    let refused = done.code.is_some_and(|code| REFUSED.contains(&code));
    let named = done.stderr.contains(variable.name);
    let brief = done.stderr.len() < 2_000;
    let fine = match takes(variable, value) {
        // It may still be wrong for this job.
        true => done.code == Some(0) || refused && named,
        false => refused && named && brief,
    };
    let shown: String = value.to_string_lossy().chars().take(30).collect();
    let said: String = done.stderr.chars().take(300).collect();
    let panicked = done.stderr.contains("panicked");
    (!fine || panicked).then(|| format!("{}={shown}: {:?} {said}", variable.name, done.code))
}

#[test]
fn no_variable_takes_garbage() {
    for variable in VARIABLES {
        let paths = matches!(variable.syntax, Syntax::Path);
        for garbage in GARBAGE {
            assert_eq!(
                takes(variable, garbage.as_ref()),
                paths,
                "{}={garbage}",
                variable.name
            );
        }
        for value in other() {
            assert_eq!(takes(variable, &value), paths, "{}", variable.name);
        }
    }
}

#[test]
fn programs_name_the_variable_that_makes_no_sense() {
    let mut all = Vec::new();
    for variable in VARIABLES {
        for value in values() {
            all.extend(wrong(variable, &value, &alone(variable, &value)));
        }
        // Set to nothing is not set.
        let done = alone(variable, OsStr::new(""));
        if done.code != Some(0) || !done.stderr.is_empty() {
            all.push(format!(
                "{}= : {:?} {}",
                variable.name, done.code, done.stderr
            ));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_launcher_names_the_variable_that_makes_no_sense() {
    let mut all = Vec::new();
    for variable in VARIABLES {
        for value in GARBAGE.iter().map(OsString::from).chain(other()) {
            let done = finish(job(2, &[], &["join"]).env(variable.name, &value));
            all.extend(wrong(variable, &value, &done));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// The emulated driver's, which `osier bench` starts.
const NOT_OURS: [&str; 1] = ["OSIER_EMULATED_GPUS"];

/// Sources of what users run, without their tests.
fn sources(folder: &std::path::Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            found.push(code.to_owned());
        }
    }
}

#[test]
fn each_variable_that_is_read_is_in_the_table() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in [
        "src",
        "engine/src",
        "cli/src",
        "capi/src",
        "kernels/src",
        "transports/src",
    ] {
        sources(&root.join(folder), &mut found);
    }
    let lines = found.iter().flat_map(|text| text.lines());
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    let named = code.flat_map(|line| line.split('"').skip(1).step_by(2));
    let is_name = |text: &&str| {
        let rest = text.strip_prefix("OSIER_");
        rest.is_some_and(|rest| {
            let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            !rest.is_empty() && rest.chars().all(fits)
        })
    };
    let names: std::collections::BTreeSet<&str> = named.filter(is_name).collect();
    assert!(names.len() >= VARIABLES.len(), "{names:?}");
    let declared = |name: &&str| VARIABLES.iter().any(|v| v.name == *name);
    let unknown = names
        .iter()
        .filter(|name| !declared(name) && !NOT_OURS.contains(name));
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// Its ranks do where it does not look: it passes on what is for them alone.
#[test]
fn ranks_name_the_variable_that_makes_no_sense() {
    let mut all = Vec::new();
    // What it sets or clears itself, it does so whatever it is told.
    let its_own = |v: &&Variable| v.meaning.contains("set by") || v.meaning.contains("clears it");
    let for_ranks = VARIABLES.iter().filter(|v| !its_own(v));
    for variable in for_ranks {
        let set = format!("{}=%garbage%", variable.name);
        let mut done = finish(&mut job(2, &["--env", &set], &["join"]));
        // The code of the program, or of the launcher.
        if done.code == Some(1) && done.stderr.contains(variable.name) {
            done.code = Some(REFUSED[1]);
        }
        all.extend(wrong(variable, OsStr::new("%garbage%"), &done));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
