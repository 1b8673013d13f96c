//! `osier docs`: pages of the documentation that follow from the code: commands and options
//! from clap's definitions, variables from the tables of the library.
//!
//! `cargo xtask docs` writes them; tests find them up to date. Users need neither, so the
//! command is hidden.

mod page;

use std::fmt::Write as _;

use clap::CommandFactory as _;
use osier::config::{DEBUG, KEYS, LAUNCHER, RENAMED, Successor, USER, Variable};

use crate::{Cli, mpiexec};

/// A page of the documentation
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Page {
    /// docs/cli.md
    Cli,
    /// docs/environment.md
    Environment,
}

/// Print a page of the documentation
#[derive(Debug, clap::Args)]
pub struct Args {
    page: Page,
}

/// Prints the page.
pub fn main(args: &Args) -> std::process::ExitCode {
    print!("{}", text(args.page));
    std::process::ExitCode::SUCCESS
}

fn text(page: Page) -> String {
    match page {
        Page::Cli => page::page(Cli::command(), CLI) + &launcher_of_mpi(),
        Page::Environment => environment(),
    }
}

const CLI: &str = "\
# Commands

All commands of `osier`, with their options; `osier COMMAND --help` prints the same.
`cargo xtask docs` writes this page from the definitions of the options, and a test finds it up
to date. Commands of developers are in [xtask.md](xtask.md), variables in
[environment.md](environment.md).

A program without `/` in its name is sought beside `osier`, then on PATH. No process and no shared
segment stays behind a job.
";

fn launcher_of_mpi() -> String {
    let effect: Vec<&str> = mpiexec::without_effect().collect();
    format!(
        "
## `mpiexec`, `mpirun`

`osier` under one of these names is `osier run` with the options that launchers of MPI have in
common: `-n`, `-np`, `-env K V`, `-genv K V`, `-x K=V`, `-l`, `-wdir`, `--bind-to`, `-timeout S` or
`MPIEXEC_TIMEOUT=S`, `-disable-auto-cleanup`, several programs separated by `:`. Hosts and host files
are read, and another machine is refused. Options without effect are named once: {}. What is done
anyway is accepted in silence: {}.
",
        code(&effect),
        code(mpiexec::DONE_ANYWAY),
    )
}

fn code(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

fn table(text: &mut String, what: &str, rows: &[Variable]) {
    let _ = write!(text, "\n| {what} | default | meaning |\n|---|---|---|\n");
    for row in rows {
        let meaning = row.meaning.replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | {} | {meaning} |", row.name, row.default);
    }
}

const ENVIRONMENT: &str = "\
# Environment variables

`osier info --all` prints them with their values. `cargo xtask docs` writes this page from the tables in
`src/config.rs`, and a test finds it up to date. A variable that is set to nothing is not set. A value
that makes no sense is an error before a job is made or joined, which names the variable.

## For users
";

const COSTS: &str = "
The first `osier run` of several ranks measures the machine, in about a second, and says so; until
then, and with `OSIER_MODEL=built-in`, built-in costs are used. Later ones look, in a millisecond or
two, how far two cores are from each other, which the host of a virtual machine changes: at a
distance that has no costs yet they measure again, and keep both. And they look, in less than a
millisecond, whether copies and sums still take what they took then, and measure again if not. All
ranks of a job use the launcher's.
";

const OF_LAUNCHER: &str = "
## Set by the launcher

Scripts may read the first two.
";

const OF_DEVELOPERS: &str = "
## For developers

`OSIER_DEBUG` holds settings that no program needs: they force what costs choose otherwise, name
libraries for tests, or bound what is bounded already.

```sh
OSIER_DEBUG=pipeline=on,device-slots=512K osier run -n 2 ./program
```

Pairs end at a comma; a comma of a value is written twice. A key without a value is not set, spaces
around a pair do not count, and of two pairs with one key the later counts. A key that is not known is
an error that lists those that are close.
";

const OTHERS: &str = "
## Variables of others

| variable | read by | meaning |
|---|---|---|
| `XDG_CACHE_HOME`, `HOME` | all | where measured costs are kept |
| `PMI_FD`, `PMI_RANK`, `PMI_SIZE` | programs | the job of a launcher that speaks PMI-1; see [launchers](launchers.md) |
| `MPIEXEC_TIMEOUT` | `mpiexec` | as `--timeout` |
| `HYDRA_HOST_FILE`, `I_MPI_HYDRA_HOST_FILE` | `mpiexec` | a host file, which must name this machine alone |
| `HWLOC_XMLFILE`, `HWLOC_SYNTHETIC`, `HWLOC_FSROOT` | `osier topo`, built with `--features hwloc` | another machine |

Tests have `OSIER_TEST=key=value,...`, whose keys are in `tests/asked.rs`.
";

const OLD: &str = "
## Variables that are read no longer

One that is set is an error that names what took its place
([why](decisions/0180-one-variable-for-developers-over-one-per-setting.md)).

| old | now |
|---|---|
";

fn environment() -> String {
    let mut text = ENVIRONMENT.to_owned();
    table(&mut text, "variable", USER);
    text += COSTS;
    text += OF_LAUNCHER;
    table(&mut text, "variable", LAUNCHER);
    text += OF_DEVELOPERS;
    table(&mut text, "variable", DEBUG);
    table(&mut text, "key", KEYS);
    text += "\n## Of the emulated CUDA driver\n\n";
    text += include_str!("../../../emulated-cuda/variables.md");
    text += OTHERS;
    text += OLD;
    for renamed in RENAMED {
        let now = match renamed.by {
            Successor::Debug(key) => format!("`OSIER_DEBUG={key}=..`"),
            Successor::Job(part) => format!("`{part}=..` in `OSIER_JOB`"),
        };
        let _ = writeln!(text, "| `{}` | {now} |", renamed.old);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_up_to_date() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
        for (page, file) in [(Page::Cli, "cli.md"), (Page::Environment, "environment.md")] {
            let kept = std::fs::read_to_string(format!("{docs}/{file}")).unwrap_or_default();
            assert!(
                kept == text(page),
                "docs/{file} is stale (hint: cargo xtask docs)"
            );
        }
    }

    #[test]
    fn every_command_and_option_has_a_meaning() {
        let page = text(Page::Cli);
        for line in page.lines().filter(|line| line.starts_with('|')) {
            assert!(!line.ends_with("|  |"), "{line}");
        }
        for command in [
            "run",
            "bench",
            "explain send",
            "info",
            "model",
            "ps",
            "topo",
            "trace",
        ] {
            let head = format!("## `osier {command}");
            assert!(page.contains(&head), "{command}");
        }
    }
}
