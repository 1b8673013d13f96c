//! Invariants by number: each `SAFETY:` comment of the folders below names one that stands
//! in the head of its file, or of the module that it names.
//!
//! ```text
//! // SAFETY: invariants 1 and 4: the kernel is for this width.
//! // SAFETY: invariant 2 of `mapping`: `at` has returned the address.
//! // SAFETY: invariant 3 of `progress::cell`, and invariant 1 here: it is under the lock.
//! ```
//!
//! A file without invariants of its own has those of its parent module. A module that is
//! named lies beside the file or in its own folder, is its parent or beside that, and so on
//! up to the root of the crate.

use crate::steps::{Result, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where all unsafe code is argued so, folders within included.
const FOLDERS: [&str; 4] = [
    "transports/src/shm",
    "datatype/src/copy",
    "engine/src",
    "tasks/src",
];
/// Files beside them that are, too.
const FILES: [&str; 1] = ["transports/src/cuda_ipc.rs"];

/// The step of `cargo xtask check`.
pub fn check() -> Result {
    let mut files: Vec<PathBuf> = FILES.iter().map(|path| root().join(path)).collect();
    for folder in FOLDERS {
        sources(&root().join(folder), &mut files)?;
    }
    files.sort();
    let (mut wrong, mut comments) = (Vec::new(), 0);
    for path in files {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (found, bad) = faults(&text, |module| head_of(&path, module));
        comments += found;
        let path = path.strip_prefix(root()).unwrap_or(&path);
        wrong.extend(
            bad.into_iter()
                .map(|(line, what)| format!("{}:{line}: {what}", path.display())),
        );
    }
    println!("{comments} comments on unsafe code");
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "unsafe code without an invariant:\n{}\n(hint: name one by number, as in `SAFETY: invariant 2: ...`)",
            wrong.join("\n")
        )),
    }
}

/// All source files in a folder, and in folders within.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// The text of the module that a file names, or of its parent; empty where there is none.
fn head_of(file: &Path, module: Option<&str>) -> String {
    let mut read = places(file, module).into_iter().map(fs::read_to_string);
    read.find_map(|text| text.ok()).unwrap_or_default()
}

/// Where a module that a file names may lie, nearest first; without a name, its parent.
fn places(file: &Path, module: Option<&str>) -> Vec<PathBuf> {
    let is_mod = |stem: &str| matches!(stem, "mod" | "lib" | "main");
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let folder = file.parent().unwrap_or(file);
    // Where the modules within this one lie.
    let own = match stem {
        Some(stem) if !is_mod(stem) => folder.join(stem),
        _ => folder.to_owned(),
    };
    let both = |folder: &Path, module: &Path| {
        let plain = folder.join(module);
        [plain.with_extension("rs"), plain.join("mod.rs")]
    };
    let Some(module) = module else {
        let parent = own.parent().unwrap_or(&own);
        return match parent.file_name().filter(|name| *name != "src") {
            Some(name) => both(parent.parent().unwrap_or(parent), name.as_ref()).into(),
            None => vec![parent.join("lib.rs"), parent.join("main.rs")],
        };
    };
    let module: PathBuf = module.split("::").collect();
    let mut found = Vec::new();
    for folder in own.ancestors() {
        found.extend(both(folder, &module));
        if folder.file_name().is_none_or(|name| name == "src") {
            break;
        }
    }
    found
}

/// How many comments there are, and line and fault of those that name no invariant, or one
/// that there is not. `head` gives the text of a module by name, or of the parent.
fn faults(text: &str, head: impl Fn(Option<&str>) -> String) -> (usize, Vec<(usize, String)>) {
    let own = listed(text);
    let inherited = if own.is_empty() {
        listed(&head(None))
    } else {
        own
    };
    let lines: Vec<&str> = text.lines().collect();
    let (mut found, mut bad) = (0, Vec::new());
    for (at, line) in lines.iter().enumerate() {
        let Some(first) = line.trim_start().strip_prefix("// SAFETY:") else {
            continue;
        };
        found += 1;
        let rest = lines[at + 1..]
            .iter()
            .map_while(|line| line.trim_start().strip_prefix("//"))
            .take_while(|line| !line.starts_with(" SAFETY:"));
        let comment = std::iter::once(first)
            .chain(rest)
            .collect::<Vec<_>>()
            .join(" ");
        // Each mention counts; behind `invariant` may stand no number, as in prose.
        let mentions: Vec<_> = comment
            .split("nvariant")
            .skip(1)
            .filter_map(named)
            .collect();
        if mentions.is_empty() {
            bad.push((at + 1, "names no invariant".to_owned()));
        }
        for (numbers, module) in mentions {
            let (listed, of) = match &module {
                Some(module) => (listed(&head(Some(module))), format!(" of `{module}`")),
                None => (inherited.clone(), String::new()),
            };
            let unknown = numbers.difference(&listed).next();
            bad.extend(unknown.map(|n| (at + 1, format!("there is no invariant {n}{of}"))));
        }
    }
    (found, bad)
}

/// The numbers under `# Invariants` in the head of a file.
fn listed(text: &str) -> BTreeSet<u32> {
    let head = text.lines().map_while(|line| line.strip_prefix("//!"));
    head.skip_while(|line| line.trim() != "# Invariants")
        .skip(1)
        .take_while(|line| !line.trim_start().starts_with("# "))
        .filter_map(|line| line.trim().split_once(". ")?.0.parse().ok())
        .collect()
}

/// The numbers behind `invariant`, and the module whose they are.
fn named(rest: &str) -> Option<(BTreeSet<u32>, Option<String>)> {
    let rest = rest.strip_prefix('s').unwrap_or(rest);
    let mut numbers = BTreeSet::new();
    let mut words = rest.split_whitespace().peekable();
    while let Some(word) = words.peek() {
        match word.trim_end_matches([',', ':', '.', ';', ')']).parse() {
            Ok(number) => drop(numbers.insert(number)),
            Err(_) if *word == "and" => {}
            Err(_) => break,
        }
        let last = word.ends_with([':', '.', ';', ')']);
        words.next();
        if last {
            return (!numbers.is_empty()).then_some((numbers, None));
        }
    }
    let module = match words.next() {
        Some("of") => words.next().and_then(|word| word.strip_prefix('`')),
        _ => None,
    };
    let module = module.and_then(|word| Some(word.split_once('`')?.0.to_owned()));
    (!numbers.is_empty()).then_some((numbers, module))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_unsafe_code_names_its_invariants() {
        check().expect("they are named");
    }

    #[test]
    fn what_names_none_or_another_is_found() {
        let text = "//! # Invariants\n//! 1. One.\n//! 2. Two.\n//!\n//! # Sources\n//! 3. No.\n\
            // SAFETY: invariant 1: sure.\n// SAFETY: as above.\n// SAFETY: invariants 1, 2 and 3.\n\
            // SAFETY: by\n// invariant 2.\n// SAFETY: invariant 7 of `other`: there.\n\
            // SAFETY: invariant 8 of `other`.\n// SAFETY: the invariant holds.\n";
        let other = |module: Option<&str>| match module {
            Some("other") => "//! # Invariants\n//! 7. Seven.\n".to_owned(),
            _ => String::new(),
        };
        let (found, bad) = faults(text, other);
        let lines: Vec<usize> = bad.iter().map(|(line, _)| *line).collect();
        assert_eq!((found, lines), (7, vec![8, 9, 13, 14]), "{bad:?}");
    }

    #[test]
    fn every_mention_counts() {
        let text = "//! # Invariants\n//! 1. One.\n\
            // SAFETY: invariant 1, and invariant 7 of `a::other`: the invariants hold.\n\
            // SAFETY: invariant 1; it is a copy (invariant 2).\n\
            // SAFETY: invariant 7 of `a::other`, invariant 8 of `a::other`.\n";
        let other = |module: Option<&str>| match module {
            Some("a::other") => "//! # Invariants\n//! 7. Seven.\n".to_owned(),
            _ => String::new(),
        };
        let (found, bad) = faults(text, other);
        let wrong = [
            (4, "there is no invariant 2".to_owned()),
            (5, "there is no invariant 8 of `a::other`".to_owned()),
        ];
        assert_eq!((found, bad), (3, wrong.into()));
    }

    #[test]
    fn a_file_without_invariants_has_its_parents() {
        let parent = |module: Option<&str>| match module {
            None => "//! # Invariants\n//! 1. One.\n".to_owned(),
            Some(_) => String::new(),
        };
        let (_, bad) = faults("//! Text.\n// SAFETY: invariant 1.\n", parent);
        assert_eq!(bad, []);
        let (_, bad) = faults(
            "//! # Invariants\n//! 2. Two.\n// SAFETY: invariant 1.\n",
            parent,
        );
        assert_eq!(bad.len(), 1);
        let of = |file: &str| places(Path::new(file), None);
        let both = ["c/src/a.rs", "c/src/a/mod.rs"].map(PathBuf::from);
        assert_eq!(of("c/src/a/b.rs"), both);
        assert_eq!(of("c/src/a/b/mod.rs"), both);
        let roots = ["c/src/lib.rs", "c/src/main.rs"].map(PathBuf::from);
        assert_eq!(of("c/src/a.rs"), roots);
        assert_eq!(of("c/src/a/mod.rs"), roots);
    }

    #[test]
    fn modules_are_found_within_beside_and_above() {
        let of = |file: &str, module: &str| -> Vec<String> {
            let places = places(Path::new(file), Some(module));
            let shown = places.iter().map(|place| place.display().to_string());
            shown
                .filter(|place| place.ends_with(".rs") && !place.ends_with("mod.rs"))
                .collect()
        };
        let paths = ["c/src/a/b/x.rs", "c/src/a/x.rs", "c/src/x.rs"];
        assert_eq!(of("c/src/a/b.rs", "x"), paths);
        assert_eq!(of("c/src/a/b/mod.rs", "x"), paths);
        let nested = ["c/src/a/x/y.rs", "c/src/x/y.rs"];
        assert_eq!(of("c/src/a/mod.rs", "x::y"), nested);
        let text = head_of(
            &root().join("engine/src/progress/send.rs"),
            Some("progress::cell"),
        );
        assert!(!listed(&text).is_empty());
    }
}
