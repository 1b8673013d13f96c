//! `suites`: programs of others, built on the installed C interface and run.
//!
//! Nothing is fetched: each suite is a folder of sources that the user names. It is copied
//! below the target folder, built there, and its own tests run, each with a time limit. What
//! passed goes into `capi/abi/suites.tsv`, from which the table between the markers of
//! `docs/mpi-coverage.md` is made; rows of suites that were not given stay.
//!
//! | module | duty |
//! |---|---|
//! | [`recipe`] | how each program is built and tested |
//! | [`mpich`] | the lists of MPICH's tests |
//! | [`shell`] | a command with a time limit |

mod mpich;
mod recipe;
mod shell;

use crate::abi::generate::{SUITES_HEAD, suite_rows};
use crate::install;
use crate::steps::{Result, root, run as run_command, target_dir};
use recipe::Recipe;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options of `suites`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask suites --mpich ~/src/mpich
  cargo xtask suites --osu ~/src/osu-micro-benchmarks-7.4 --only osu_bcast
  cargo xtask suites --app hypre=~/src/hypre --app miniAMR=~/src/miniAMR

A folder that is a git checkout tells its version; else write FOLDER@VERSION.
ParMETIS's folder has METIS and GKlib in folders of their names, p4est's has libsc in sc.")]
pub struct Args {
    /// MPICH's sources, or their folder test/mpi; a clone takes autoconf, automake and libtool
    #[arg(long, value_name = "FOLDER")]
    mpich: Option<String>,
    /// OSU's benchmarks
    #[arg(long, value_name = "FOLDER")]
    osu: Option<String>,
    /// An application and its sources; may be repeated
    #[arg(long, value_name = "NAME=FOLDER", value_parser = parse_app)]
    app: Vec<(String, String)>,
    /// An installation of Osier; else one is made
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Where copies are built; a copy that is there is built on [default: target/suites]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Only tests or parts whose name contains this; of parts that are not run whole, the table
    /// stays as it is
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Lists of MPICH's tests with more ranks are left out
    #[arg(long, value_name = "N", default_value_t = 10)]
    most_ranks: usize,
    /// The table stays as it is
    #[arg(long)]
    no_docs: bool,
}

fn parse_app(text: &str) -> std::result::Result<(String, String), String> {
    let (name, folder) = text.split_once('=').ok_or("expected NAME=FOLDER")?;
    if recipe::find(name).is_none() {
        let names: Vec<&str> = recipe::names().collect();
        return Err(format!("{name:?} is none of {}", names.join(", ")));
    }
    Ok((name.into(), folder.into()))
}

/// A test: its name, what runs it, and how long it may.
pub struct Test {
    /// Its part of the suite: a row of the table.
    pub part: String,
    pub name: String,
    pub ranks: String,
    /// A line for the shell, in the folder of the copy.
    pub command: String,
    pub limit: Duration,
}

/// Where a suite is built and tested.
pub struct Site<'a> {
    /// The copy.
    pub folder: PathBuf,
    /// Osier.
    pub prefix: &'a Path,
}

/// What one part of a suite came to.
#[derive(Default)]
struct Count {
    passed: usize,
    of: usize,
    failed: Vec<String>,
    ranks: Vec<String>,
}

/// `cargo xtask suites`.
pub fn run(args: &Args) -> Result {
    let work = match &args.work {
        Some(work) => std::path::absolute(work).map_err(|e| e.to_string())?,
        None => target_dir().join("suites"),
    };
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let prefix = match &args.prefix {
        Some(prefix) => std::path::absolute(prefix).map_err(|e| e.to_string())?,
        None => {
            let prefix = work.join("osier");
            install::run(&install::Args::release(&prefix))?;
            prefix
        }
    };
    let mut rows = Vec::new();
    if let Some(given) = &args.mpich {
        let (folder, version) = source(given)?;
        let inner = folder.join("test/mpi");
        let (top, folder) = match inner.is_dir() {
            true => (Some(folder), inner),
            false => (None, folder),
        };
        let site = copied("mpich", &folder, &work, &prefix)?;
        mpich::build(&site, top.as_deref(), args.only.as_deref())?;
        let tests = mpich::tests(&site, args.most_ranks)?;
        rows.extend(tested("MPICH's tests", &version, tests, &site, args)?);
    }
    let osu = args.osu.iter().map(|folder| ("osu", folder.as_str()));
    let apps = args.app.iter().map(|(name, f)| (name.as_str(), f.as_str()));
    for (name, given) in osu.chain(apps) {
        let recipe = recipe::find(name).ok_or("no recipe")?;
        rows.extend(application(recipe, given, &work, &prefix, args)?);
    }
    match args.no_docs {
        true => Ok(()),
        false => write(&rows),
    }
}

fn application(
    recipe: &Recipe,
    given: &str,
    work: &Path,
    prefix: &Path,
    args: &Args,
) -> Result<Vec<[String; 8]>> {
    let (folder, version) = source(given)?;
    let site = copied(recipe.name, &folder, work, prefix)?;
    println!("==> {}: build", recipe.name);
    shell::must(&site, recipe.build)?;
    let listed = shell::must(&site, recipe.list)?;
    let tests = listed.lines().filter(|line| !line.is_empty()).map(|line| {
        let (name, command) = line.split_once('\t').unwrap_or((line, ""));
        Test {
            part: recipe
                .part
                .replace("{folder}", name.split('/').next().unwrap_or("")),
            name: name.into(),
            ranks: recipe.ranks.into(),
            command: recipe.run.replace("{}", name).replace("{command}", command),
            limit: Duration::from_secs(recipe.seconds),
        }
    });
    tested(recipe.title, &version, tests.collect(), &site, args)
}

/// A folder and its version, as the user names them.
fn source(given: &str) -> Result<(PathBuf, String)> {
    let (folder, version) = match given.rsplit_once('@') {
        Some((folder, version)) => (folder, version.to_owned()),
        None => (given, String::new()),
    };
    let folder = std::path::absolute(folder).map_err(|e| e.to_string())?;
    if !folder.is_dir() {
        return Err(format!("{}: no folder", folder.display()));
    }
    if !version.is_empty() {
        return Ok((folder, version));
    }
    let version = commit(&folder, "%h")
        .ok_or_else(|| format!("{given}: no git checkout (hint: write FOLDER@VERSION)"))?;
    Ok((folder, version))
}

/// What git tells of the commit of a checkout.
fn commit(folder: &Path, format: &str) -> Option<String> {
    let told = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["log", "-1", &format!("--format={format}")])
        .output()
        .ok()?;
    let text = String::from_utf8(told.stdout).ok()?;
    let commit = text.trim();
    (told.status.success() && !commit.is_empty()).then(|| commit.to_owned())
}

/// The copy of a suite; one that is there is taken as it is.
fn copied<'a>(name: &str, from: &Path, work: &Path, prefix: &'a Path) -> Result<Site<'a>> {
    let folder = work.join(name);
    if !folder.exists() {
        run_command(Command::new("cp").arg("-a").arg(from).arg(&folder))?;
    }
    Ok(Site { folder, prefix })
}

/// Runs tests one after the other; the rows of the parts that were run whole.
fn tested(
    suite: &str,
    version: &str,
    tests: Vec<Test>,
    site: &Site<'_>,
    args: &Args,
) -> Result<Vec<[String; 8]>> {
    let only = args.only.as_deref().unwrap_or("");
    let mut whole: BTreeMap<String, usize> = BTreeMap::new();
    for test in &tests {
        *whole.entry(test.part.clone()).or_default() += 1;
    }
    let chosen = tests
        .into_iter()
        .filter(|t| t.name.contains(only) || t.part.contains(only));
    let mut parts: BTreeMap<String, Count> = BTreeMap::new();
    for test in chosen {
        let failed = shell::timed(site, &test.command, test.limit)?;
        let count = parts.entry(test.part.clone()).or_default();
        count.of += 1;
        if !count.ranks.contains(&test.ranks) {
            count.ranks.push(test.ranks.clone());
        }
        match failed {
            None => count.passed += 1,
            Some(how) => {
                println!("{suite} {}: {} FAILED: {how}", test.part, test.name);
                if !count.failed.contains(&test.name) {
                    count.failed.push(test.name.clone());
                }
            }
        }
    }
    if parts.is_empty() {
        return Err(format!("{suite}: no test was run"));
    }
    let osier = commit(&root(), "%cs").unwrap_or_else(|| "unknown".into());
    for (part, count) in &parts {
        println!("{suite} {part}: {} of {} pass", count.passed, count.of);
    }
    Ok(parts
        .into_iter()
        .filter(|(part, count)| whole.get(part) == Some(&count.of))
        .map(|(part, mut count)| {
            count
                .ranks
                .sort_by_key(|ranks| ranks.parse().unwrap_or(0usize));
            [
                suite.to_owned(),
                part,
                version.to_owned(),
                osier.clone(),
                count.ranks.join(", "),
                count.passed.to_string(),
                count.of.to_string(),
                count.failed.join(", "),
            ]
        })
        .collect())
}

/// Puts rows in place of those of the same parts, and writes the page.
fn write(rows: &[[String; 8]]) -> Result {
    let file = root().join("capi/abi/suites.tsv");
    let old = fs::read_to_string(&file).unwrap_or_default();
    let mut all: Vec<String> = suite_rows(&old)
        .filter(|old| rows.iter().all(|new| new[0] != old[0] || new[1] != old[1]))
        .map(|old| old.join("\t"))
        .collect();
    all.extend(rows.iter().map(|row| row.join("\t")));
    all.sort_by_key(|row| row.to_lowercase());
    let text = format!("{SUITES_HEAD}\n{}\n", all.join("\n"));
    fs::write(&file, &text).map_err(|e| format!("{}: {e}", file.display()))?;
    crate::abi::write(&text)
}
