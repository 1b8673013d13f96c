//! Every variable of the library, and every key of `OSIER_DEBUG`, with values that make no
//! sense: an error that names it, before anything else happens, or nothing at all where the
//! value is one. The lists are the library's own, so that a new one is here when it is
//! declared. How many names there may be is counted here, too.

mod support;

use osier::config::{KEYS, RENAMED, Syntax, USER, Variable, variables};
use osier_kernels::debug;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use support::{Done, EXERCISE, finish, job};

/// Exit codes of the program and of the launcher for what they refuse.
const REFUSED: [i32; 2] = [9, 2];

/// Where the programs run: some values are paths of folders that are made.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

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

/// A variable, or a key of `OSIER_DEBUG`.
#[derive(Clone, Copy)]
struct Tried {
    of: &'static Variable,
    is_key: bool,
}

impl Tried {
    /// Name and value of the variable to set.
    fn set(&self, value: &OsStr) -> (&'static str, OsString) {
        match self.is_key {
            true => (
                debug::VARIABLE,
                debug::with(OsStr::new(""), self.of.name, value),
            ),
            false => (self.of.name, value.to_owned()),
        }
    }

    fn takes(&self, value: &OsStr) -> bool {
        let text = value.to_string_lossy();
        match self.of.syntax {
            Syntax::Path => true,
            // A key without a value is not set.
            Syntax::Text(_) if self.is_key && text.trim().is_empty() => true,
            Syntax::Text(check) => check(&text).is_ok(),
        }
    }

    /// Whether a message says what it is about.
    fn named(&self, said: &str) -> bool {
        said.contains(self.of.name) && (!self.is_key || said.contains(debug::VARIABLE))
    }
}

/// All variables and keys.
fn all() -> impl Iterator<Item = Tried> {
    let tried = |is_key| move |of| Tried { of, is_key };
    variables()
        .map(tried(false))
        .chain(KEYS.iter().map(tried(true)))
}

/// The program alone, with this variable set and no other.
fn alone(tried: &Tried, value: &OsStr) -> Done {
    let mut command = Command::new(EXERCISE);
    for v in variables() {
        command.env_remove(v.name);
    }
    finish(
        command
            .current_dir(FOLDER)
            .arg("join")
            .envs([tried.set(value)]),
    )
}

/// What is wrong with how a process ended, if anything.
fn wrong(tried: &Tried, value: &OsStr, done: &Done) -> Option<String> {
    let refused = done.code.is_some_and(|code| REFUSED.contains(&code));
    let named = tried.named(&done.stderr);
    let brief = done.stderr.len() < 2_000;
    let fine = match tried.takes(value) {
        // It may still be wrong for this job.
        true => done.code == Some(0) || refused && named,
        false => refused && named && brief,
    };
    let shown: String = value.to_string_lossy().chars().take(30).collect();
    let said: String = done.stderr.chars().take(300).collect();
    let panicked = done.stderr.contains("panicked");
    let name = tried.of.name;
    (!fine || panicked).then(|| format!("{name}={shown}: {:?} {said}", done.code))
}

#[test]
fn every_variable_but_paths_refuses_garbage() {
    for tried in all() {
        let paths = matches!(tried.of.syntax, Syntax::Path);
        for garbage in GARBAGE {
            let name = tried.of.name;
            assert_eq!(tried.takes(garbage.as_ref()), paths, "{name}={garbage}");
        }
        for value in other() {
            assert_eq!(tried.takes(&value), paths, "{}", tried.of.name);
        }
    }
}

#[test]
fn programs_name_the_variable_that_makes_no_sense() {
    let mut found = Vec::new();
    for tried in all() {
        for value in values() {
            found.extend(wrong(&tried, &value, &alone(&tried, &value)));
        }
        // Set to nothing is not set.
        let done = alone(&tried, OsStr::new(""));
        if done.code != Some(0) || !done.stderr.is_empty() {
            let name = tried.of.name;
            found.push(format!("{name}= : {:?} {}", done.code, done.stderr));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_launcher_names_the_variable_that_makes_no_sense() {
    let mut found = Vec::new();
    for tried in all() {
        for value in GARBAGE.iter().map(OsString::from).chain(other()) {
            let done = finish(
                job(2, &[], &["join"])
                    .current_dir(FOLDER)
                    .envs([tried.set(&value)]),
            );
            found.extend(wrong(&tried, &value, &done));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A program and the launcher say what took the place of a variable that is read no longer.
#[test]
fn variables_that_once_were_are_refused_with_their_successors() {
    for renamed in RENAMED {
        let mut program = Command::new(EXERCISE);
        let done = finish(program.arg("join").env(renamed.old, "7"));
        done.code(9).says(renamed.old).says("hint");
        let done = finish(job(2, &[], &["join"]).env(renamed.old, "7"));
        done.code(2).says(renamed.old).says("hint");
    }
    let done = finish(job(2, &[], &["join"]).env("OSIER_PIPELINE", "on"));
    done.says("set OSIER_DEBUG=pipeline=on");
}

#[test]
fn unknown_key_is_refused_with_close_names() {
    let done = finish(job(2, &[], &["join"]).env(debug::VARIABLE, "device-slot=512K"));
    done.code(2).says("device-slot").says("device-slots?");
    let set = "OSIER_DEBUG=pipelin=on";
    finish(&mut job(2, &["--env", set], &["join"])).says("pipeline?");
}

/// Names between `xtask` and the tests that it runs, beside those of the library.
const OF_TESTS: &str = "OSIER_TEST";
/// Most names, and most of them for users: decision 0180, one more by 0293, and one by 0357.
const MOST_NAMES: usize = 17;
const MOST_OF_USERS: usize = 12;

/// Whether a folder or a file is of the tests, of the emulated driver, or no source.
fn is_left_out(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.starts_with("target")
        || name == ".git"
        || ["tests", "tests.rs", "docs", "emulated-cuda"].contains(&name)
        // The table of names that are read no longer.
        || path.ends_with("config/renamed.rs")
}

/// Names of variables in the text of a source.
fn names(text: &str, found: &mut BTreeSet<String>) {
    for (at, _) in text.match_indices("OSIER_") {
        let fits = |c: &char| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_';
        let name: String = text[at..].chars().take_while(fits).collect();
        if name.len() > "OSIER_".len() && !name.starts_with("OSIER_EMULATED") {
            found.insert(name.trim_end_matches('_').to_owned());
        }
    }
}

/// Names of variables in all that is built or run from this folder.
fn names_below(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if is_left_out(&path) {
            continue;
        }
        if path.is_dir() {
            names_below(&path, found);
            continue;
        }
        let ext = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        match ext {
            "rs" => {
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                let lines = code.lines();
                let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
                // Macros of the C header.
                let lines = lines.filter(|line| !line.starts_with('#'));
                lines.for_each(|line| names(line, found));
            }
            // What is no variable there is a macro or a constant.
            "c" | "h" | "cu" | "cuh" | "cpp" => {
                let quoted = text.split('"').skip(1).step_by(2);
                quoted.for_each(|text| names(text, found));
            }
            "py" | "sh" | "toml" | "yml" => text.lines().for_each(|line| names(line, found)),
            "" if name == "run" => {
                let lines = text.lines().filter(|line| !line.starts_with('#'));
                lines.for_each(|line| names(line, found));
            }
            _ => {}
        }
    }
}

#[test]
fn every_variable_that_is_read_is_declared() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = BTreeSet::new();
    names_below(&root, &mut found);
    let mut declared: BTreeSet<String> = variables().map(|v| v.name.to_owned()).collect();
    declared.insert(OF_TESTS.to_owned());
    assert_eq!(found, declared);
    assert!(
        found.len() <= MOST_NAMES,
        "{} names: {found:?}",
        found.len()
    );
    assert!(USER.len() <= MOST_OF_USERS, "{} for users", USER.len());
}

/// Pages name no variable that is not read, but for constants of the header of kernels; one lists
/// those that once were.
#[test]
fn pages_name_variables_that_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).expect("pages");
    let pages = docs.flatten().map(|entry| entry.path());
    let own = ["README.md", "CONTRIBUTING.md", "examples/README.md"];
    let header = root.join("kernels/include/osier_device.cuh");
    let mut constants = BTreeSet::new();
    names(
        &std::fs::read_to_string(header).expect("text"),
        &mut constants,
    );
    for page in pages.chain(own.map(|page| root.join(page))) {
        if page.extension().is_none_or(|e| e != "md") || page.ends_with("environment.md") {
            continue;
        }
        let mut found = BTreeSet::new();
        names(&std::fs::read_to_string(&page).expect("text"), &mut found);
        let known = |name: &&String| {
            name.as_str() == OF_TESTS
                || constants.contains(*name)
                || variables().any(|v| v.name == name.as_str())
        };
        let unknown: Vec<&String> = found.iter().filter(|name| !known(name)).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", page.display());
    }
}

/// Its ranks do where it does not look: it passes on what is for them alone.
#[test]
fn ranks_name_the_variable_that_makes_no_sense() {
    let mut found = Vec::new();
    // What it sets or clears itself, it does so whatever it is told.
    let its_own = |tried: &Tried| {
        let meaning = tried.of.meaning;
        meaning.contains("set by") || meaning.contains("clears it")
    };
    for tried in all().filter(|tried| !its_own(tried)) {
        let (name, value) = tried.set("%garbage%".as_ref());
        let set = format!("{name}={}", value.display());
        let mut done = finish(job(2, &["--env", &set], &["join"]).current_dir(FOLDER));
        // The code of the program, or of the launcher.
        if done.code == Some(1) && tried.named(&done.stderr) {
            done.code = Some(REFUSED[1]);
        }
        found.extend(wrong(&tried, OsStr::new("%garbage%"), &done));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
