//! Misuses of MPI, each a job of its own: under `MPI_ERRORS_RETURN` the call returns the right
//! class and the job goes on to its end, under the default handler the job ends with that
//! class and says so. No crash, no hang.

use super::{build, run, start_with};
use std::path::Path;
use std::process::Command;

/// Ranks of each job.
const RANKS: usize = 2;
/// How many there are at least.
const LEAST: usize = 58;

struct Misuse {
    name: String,
    class: i32,
    spelled: String,
    /// Within `MPI_Init` and `MPI_Finalize`: elsewhere all handlers are fatal.
    inside: bool,
}

/// The table that the program prints.
fn cases(program: &Path) -> Vec<Misuse> {
    let listed = run(Command::new(program).arg("list"));
    let text = String::from_utf8(listed.stdout).expect("text");
    let case = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, class, spelled, when] = words[..] else {
            panic!("{line}");
        };
        Misuse {
            name: name.into(),
            class: class.parse().expect("a number"),
            spelled: spelled.into(),
            inside: when == "0",
        }
    };
    text.lines().map(case).collect()
}

#[test]
fn each_misuse_ends_in_its_error() {
    let Some(program) = build("misuses") else {
        return;
    };
    let cases = cases(&program);
    assert!(cases.len() >= LEAST, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let Misuse { name, class, .. } = case;
        for how in ["return", "fatal"] {
            let (code, stdout, stderr) = start_with(&program, RANKS, &[], &[name, how]);
            let fine = if how == "return" && case.inside {
                code == Some(0) && stdout == "through\n"
            } else {
                let named = format!("({})", case.spelled);
                code == Some(*class) && stdout.is_empty() && stderr.contains(&named)
            };
            if !fine || stderr.contains("panicked") {
                wrong.push(format!("{name} {how}: {code:?} {stdout}{stderr}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
