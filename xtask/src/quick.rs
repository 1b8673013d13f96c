//! `quick`: the first answer on a change, within a minute on a warm tree.
//!
//! | step | of |
//! |---|---|
//! | format, invariants, layers, docs | the workspace |
//! | clippy | crates that the change touches, with their tests, and crates that depend on them |
//! | unit | unit tests of the crates that the change touches, in crates and programs alone |
//! | seeds | 1,000 programs of the bed, where the change reaches the engine |
//!
//! Everything else is for `cargo xtask test`.

use crate::steps::{Result, Steps, cargo, root, run as run_command};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Programs of the bed.
const SEEDS: u64 = 1000;

/// Folders whose changes the bed plays.
const PLAYED: [&str; 4] = ["engine/", "transports/", "src/", "bed/"];

/// Tests whose files lie outside of their package, by the beginning of their paths.
const ELSEWHERE: [(&str, &str); 4] = [
    ("tests/allocations.rs", "osier"),
    ("tests/", "osier-test-programs"),
    // Its tests find stale pages.
    ("docs/", "xtask"),
    ("README.md", "xtask"),
];

/// Options of `quick`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask quick                 what differs from HEAD, and files that git does not know
  cargo xtask quick --since HEAD~3  the last three commits, too
  cargo xtask quick --crates osier-engine,osier-transports")]
pub struct Args {
    /// Compare with this commit
    #[arg(long, value_name = "COMMIT", default_value = "HEAD")]
    since: String,

    /// These crates, whatever has changed
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "CRATES",
        conflicts_with = "since"
    )]
    crates: Vec<String>,
}

/// A crate of the workspace.
#[derive(Debug)]
struct Package {
    /// Of its manifest, below the root.
    folder: PathBuf,
    /// Crates of the workspace that it names.
    needs: BTreeSet<String>,
    /// Whether it has unit tests.
    has_lib: bool,
    has_bins: bool,
}

type Packages = BTreeMap<String, Package>;

/// `cargo xtask quick`.
pub fn run(args: &Args) -> Result {
    crate::setup::linker()?;
    crate::setup::lints()?;
    let packages = packages()?;
    let mut played = true;
    let touched = if args.crates.is_empty() {
        let files = changed(&args.since)?;
        println!("{} files differ from {}", files.len(), args.since);
        played = files
            .iter()
            .any(|f| PLAYED.iter().any(|p| f.starts_with(p)));
        touched(&packages, &files)
    } else {
        args.crates.iter().cloned().collect()
    };
    for name in &touched {
        if !packages.contains_key(name) {
            let all: Vec<&str> = packages.keys().map(String::as_str).collect();
            return Err(format!("no crate {name} (hint: {})", all.join(", ")));
        }
    }
    let above = dependents(&packages, &touched);
    let list = |names: &BTreeSet<String>| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.join(", ")
    };
    println!(
        "touched: {}\ndepending on them: {}",
        list(&touched),
        list(&above)
    );

    let mut steps = Steps::default();
    steps.step("format", || {
        run_command(cargo().args(["fmt", "--all", "--check"]))
    });
    steps.step("invariants", crate::invariants::check);
    steps.step("layers", crate::layers::check);
    steps.step("docs", crate::docs::check);
    if touched.is_empty() {
        for step in ["clippy", "unit", "seeds"] {
            steps.skip(step, "the change touches no crate");
        }
        return steps.finish();
    }
    steps.step("clippy", || clippy(&touched, &["--all-targets"]));
    if !above.is_empty() {
        steps.step("clippy above", || clippy(&above, &[]));
    }
    for name in &touched {
        let package = &packages[name];
        let mut test = cargo();
        test.args(["test", "--quiet", "-p", name]);
        test.env("OSIER_TEST", crate::lacks::Lacks::here().asked());
        if package.has_lib {
            test.arg("--lib");
        }
        if package.has_bins {
            test.arg("--bins");
        }
        let step = format!("unit {name}");
        match package.has_lib || package.has_bins {
            true => steps.step(&step, || run_command(&mut test)),
            false => steps.skip(&step, "it has tests in tests/ alone"),
        }
    }
    match played {
        true => steps.step("seeds", seeds),
        false => steps.skip("seeds", "the change does not reach the engine"),
    }
    steps.finish()
}

fn clippy(packages: &BTreeSet<String>, targets: &[&str]) -> Result {
    let named = packages.iter().flat_map(|name| ["-p", name]);
    run_command(
        cargo()
            .arg("clippy")
            .args(named)
            .args(targets)
            .args(["--", "-D", "warnings"]),
    )
}

/// Programs of all kinds, others in each run.
fn seeds() -> Result {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = since.map_or(1, |since| since.as_nanos() as u64 & 0xffff_ffff);
    run_command(
        cargo()
            .env("OSIER_TEST", format!("runs={SEEDS},seed={seed}"))
            .args(["test", "--quiet", "-p", "osier-bed", "--test", "engine_sim"])
            .args(["--", "--ignored", "--exact", "soak", "--nocapture"]),
    )
}

/// Files that differ from a commit, and those that git neither knows nor ignores.
fn changed(commit: &str) -> Result<Vec<String>> {
    let git = |args: &[&str]| {
        let out = Command::new("git").current_dir(root()).args(args).output();
        let out = out.map_err(|e| format!("cannot start git: {e}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout)),
            false => Err(format!("git {}: {}", args.join(" "), text(&out.stderr))),
        }
    };
    let differ = git(&["diff", "--name-only", "--no-renames", commit, "--"])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok([differ, new]
        .iter()
        .flat_map(|t| t.lines().map(str::to_owned))
        .collect())
}

/// The crates of the workspace.
fn packages() -> Result<Packages> {
    let out = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    let text: serde_json::Value =
        serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let all = list(&text["packages"]).into_iter().map(|package| {
        let manifest = PathBuf::from(word(&package["manifest_path"]));
        let folder = manifest.parent().unwrap_or(&manifest);
        let folder = folder.strip_prefix(root()).unwrap_or(folder).to_owned();
        let needs = list(&package["dependencies"]).into_iter();
        // Of the workspace are those that have a path; those for tests alone do not count.
        let needs = needs.filter(|d| d["path"].is_string() && d["kind"] != "dev");
        let tested = |kinds: &[&str]| {
            list(&package["targets"]).iter().any(|target| {
                let of_kind = |k: &serde_json::Value| kinds.contains(&k.as_str().unwrap_or(""));
                target["test"] == true && list(&target["kind"]).iter().any(of_kind)
            })
        };
        Package {
            folder,
            needs: needs.map(|d| word(&d["name"])).collect(),
            has_lib: tested(&["lib", "rlib", "cdylib", "proc-macro"]),
            has_bins: tested(&["bin"]),
        }
    });
    let names = list(&text["packages"])
        .into_iter()
        .map(|p| word(&p["name"]));
    Ok(names.zip(all).collect())
}

/// The crates whose files these are: of the folders that hold a file the innermost; of the
/// root package only what cargo builds.
fn touched(packages: &Packages, files: &[String]) -> BTreeSet<String> {
    let of = |file: &String| {
        let inner = packages.iter().filter(|(_, p)| {
            p.folder != Path::new("") && Path::new(file.as_str()).starts_with(&p.folder)
        });
        if let Some((name, _)) = inner.max_by_key(|(_, p)| p.folder.as_os_str().len()) {
            return Some(name.clone());
        }
        if let Some((_, name)) = ELSEWHERE.iter().find(|(at, _)| file.starts_with(at)) {
            return Some((*name).to_owned());
        }
        let built = ["src/", "benches/", "Cargo."];
        let name = packages.iter().find(|(_, p)| p.folder == Path::new(""));
        name.filter(|_| built.iter().any(|at| file.starts_with(at)))
            .map(|(name, _)| name.clone())
    };
    files.iter().filter_map(of).collect()
}

/// The crates that need these, directly or not, without them.
fn dependents(packages: &Packages, of: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = of.clone();
    loop {
        let more = packages
            .iter()
            .filter(|(_, p)| !p.needs.is_disjoint(&found));
        let all: BTreeSet<String> = more
            .map(|(name, _)| name.clone())
            .chain(found.clone())
            .collect();
        if all.len() == found.len() {
            return &all - of;
        }
        found = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn files_belong_to_the_innermost_crate() {
        let packages = packages().expect("a workspace");
        for (file, wanted) in [
            ("src/lib.rs", &["osier"][..]),
            ("engine/src/wire.rs", &["osier-engine"]),
            ("datatype/corpus/src/lib.rs", &["osier-datatype-corpus"]),
            ("tests/programs/tests/hangs.rs", &["osier-test-programs"]),
            ("tests/ranks/matching.rs", &["osier-test-programs"]),
            ("tests/allocations.rs", &["osier"]),
            ("docs/glossary.md", &["xtask"]),
            ("Cargo.toml", &["osier"]),
            (".ci/run", &[]),
        ] {
            assert_eq!(names(&touched(&packages, &[file.into()])), wanted, "{file}");
        }
    }

    #[test]
    fn crates_above_are_found_through_others() {
        let packages = packages().expect("a workspace");
        let of = |name: &str| dependents(&packages, &BTreeSet::from([name.to_owned()]));
        assert!(of("osier-transports").contains("osier-capi"));
        assert!(of("osier-capi").is_empty() && of("xtask").is_empty());
        assert!(!of("osier").contains("osier"));
    }
}
