//! `docs/checking.md`, from the table of the wrong programs.
//!
//! Shared by `cargo xtask checking`, which writes the page, and by the test that runs the
//! programs and finds the page up to date.

use std::fmt::Write;

/// The files of wrong programs, below `capi/tests/c/wrong`, and what they are about.
pub const FILES: [(&str, &str); 9] = [
    ("arguments", "Arguments"),
    ("requests", "Requests, and the order of calls"),
    ("types", "Types"),
    ("collectives", "Collective calls"),
    ("buffers", "Buffers"),
    ("windows", "Windows"),
    ("leaks", "Leaks"),
    ("threads", "Threads"),
    ("hangs", "Hangs"),
];

/// A wrong program, as its table has it.
pub struct Case {
    pub name: String,
    pub ranks: usize,
    /// What it does that it must not.
    pub what: String,
    /// What finds it: a check, `error`, `hang`, `death`, or `silent`.
    pub by: String,
    /// Part of the message; if silent, why nobody can see it.
    pub says: String,
}

/// Reads what a program lists.
pub fn cases(listed: &str) -> Vec<Case> {
    let case = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, ranks, what, by, says] = fields[..] else {
            panic!("{line:?} is no line of the table");
        };
        Case {
            name: name.into(),
            ranks: ranks.parse().expect("a number of ranks"),
            what: what.into(),
            by: by.into(),
            says: says.into(),
        }
    };
    listed.lines().map(case).collect()
}

const HEAD: &str = "\
# Checking

What Osier says of wrong programs. `osier run --check all --on-hang kill` was given in each
case. Each program has a correct twin, of which nothing is said. Findings and hang reports
name the line of the program that called, and its function; without debug information the
function, or the object and the offset.

| found by | means |
|---|---|
| error | the call fails with an error class, with or without checks |
| signature, buffers, leaks, ready, collectives, threads, windows | `--check` of that name |
| hang | the hang report; `--on-hang kill` ends the job |
| death | the launcher says which rank ended, and how |
| silent | nobody can see it: the reason stands beside it |

This page is written by `cargo xtask checking`; the programs are in `capi/tests/c/wrong`, and
a test runs each and its twin.
";

/// The page: tables by file, and what was measured with the programs of others.
pub fn page(tables: &[(&str, Vec<Case>)], others: &str) -> String {
    let all = tables.iter().flat_map(|(_, cases)| cases);
    let silent = all.clone().filter(|case| case.by == "silent").count();
    let mut text = format!(
        "{HEAD}\n{} programs: {} are named, {silent} are silent.\n",
        all.clone().count(),
        all.count() - silent,
    );
    for (title, cases) in tables {
        let _ = write!(
            text,
            "\n## {title}\n\n| wrong | found by | message, or why silent |\n|---|---|---|\n"
        );
        for case in cases {
            let says = match case.by.as_str() {
                "silent" => case.says.clone(),
                _ => format!("`{}`", case.says),
            };
            let _ = writeln!(text, "| {} | {} | {says} |", case.what, case.by);
        }
    }
    let _ = write!(text, "\n{}", others.trim_start());
    text
}
