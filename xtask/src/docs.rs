//! `docs`: pages that follow from the code, and checks of those that people write.
//!
//! | page | from | found stale by |
//! |---|---|---|
//! | `docs/cli.md`, `docs/environment.md` | `osier docs` | a test of the command |
//! | `docs/xtask.md` | the options of these commands | a test here |
//! | `docs/comparison.svg` | the table of `docs/performance.md` | a test here |
//!
//! Links of all pages and the index of decisions are checked by `cargo xtask check`.

mod links;
#[path = "../../cli/src/docs/page.rs"]
mod page;
mod picture;

pub use links::check;

use crate::steps::{Result, cargo, root};
use clap::CommandFactory as _;
use std::fs;
use std::process::Stdio;

const HEAD: &str = "\
# Developer commands

`cargo xtask COMMAND`, with all options. `cargo xtask docs` writes this page from their
definitions, and a test finds it up to date. What `test` and `check` install, and when to run what,
is in [CONTRIBUTING.md](../CONTRIBUTING.md).
";

/// `cargo xtask docs`.
pub fn run() -> Result {
    for (page, file) in [
        ("cli", "docs/cli.md"),
        ("environment", "docs/environment.md"),
    ] {
        let mut osier = cargo();
        osier.args(["run", "--quiet", "-p", "osier-cli", "--", "docs", page]);
        let output = osier.stderr(Stdio::inherit()).output();
        let output = output.map_err(|e| format!("cannot start cargo: {e}"))?;
        if !output.status.success() {
            return Err(format!("osier docs {page} ended with {}", output.status));
        }
        write(file, &output.stdout)?;
    }
    write("docs/xtask.md", commands().as_bytes())?;
    write(PICTURE, picture()?.as_bytes())
}

/// The picture of Osier beside its peers.
const PICTURE: &str = "docs/comparison.svg";

/// Draws the picture anew, when the table has changed.
pub fn draw() -> Result {
    write(PICTURE, picture()?.as_bytes())
}

fn write(file: &str, text: &[u8]) -> Result {
    fs::write(root().join(file), text).map_err(|e| format!("{file}: {e}"))?;
    println!("wrote {file}");
    Ok(())
}

fn commands() -> String {
    page::page(crate::Args::command(), HEAD)
}

fn picture() -> Result<String> {
    let file = root().join("docs/performance.md");
    let text = fs::read_to_string(&file).map_err(|e| format!("docs/performance.md: {e}"))?;
    picture::of(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_up_to_date() {
        for (file, text) in [
            ("docs/xtask.md", commands()),
            (PICTURE, picture().expect("a table")),
        ] {
            let kept = fs::read_to_string(root().join(file)).unwrap_or_default();
            assert!(kept == text, "{file} is stale (hint: cargo xtask docs)");
        }
    }
}
