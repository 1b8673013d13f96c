//! Invariants by number: each `SAFETY:` comment of the folders below names one that stands
//! in the head of its file, or of the module that it names.
//!
//! ```text
//! // SAFETY: invariants 1 and 4: the kernel is for this width.
//! // SAFETY: invariant 2 of `mapping`: `at` has returned the address.
//! ```
//!
//! A file without invariants of its own has those of its folder's `mod.rs`.

use crate::steps::{Result, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where all unsafe code is argued so.
const FOLDERS: [&str; 2] = ["transports/src/shm", "datatype/src/copy"];
/// Files beside them that are, too.
const FILES: [&str; 1] = ["transports/src/cuda_ipc.rs"];

/// The step of `cargo xtask check`.
pub fn check() -> Result {
    let mut wrong = Vec::new();
    let mut comments = 0;
    let mut file = |path: &Path| -> Result {
        let read =
            |path: &Path| fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
        let beside = |module: &str| {
            let path = path.with_file_name(format!("{module}.rs"));
            fs::read_to_string(path).unwrap_or_default()
        };
        let (found, bad) = faults(&read(path)?, beside);
        comments += found;
        wrong.extend(bad.into_iter().map(|(line, what)| {
            let path = path.strip_prefix(root()).unwrap_or(path);
            format!("{}:{line}: {what}", path.display())
        }));
        Ok(())
    };
    for folder in FOLDERS {
        let entries = fs::read_dir(root().join(folder)).map_err(|e| format!("{folder}: {e}"))?;
        for entry in entries.flatten() {
            if entry.path().extension().is_some_and(|e| e == "rs") {
                file(&entry.path())?;
            }
        }
    }
    for path in FILES {
        file(&root().join(path))?;
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

/// How many comments there are, and line and fault of those that name no invariant.
fn faults(text: &str, beside: impl Fn(&str) -> String) -> (usize, Vec<(usize, String)>) {
    let own = listed(text);
    let inherited = if own.is_empty() {
        listed(&beside("mod"))
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
            .map_while(|line| line.trim_start().strip_prefix("//"));
        let comment = std::iter::once(first)
            .chain(rest)
            .collect::<Vec<_>>()
            .join(" ");
        match named(&comment) {
            None => bad.push((at + 1, "names no invariant".to_owned())),
            Some((numbers, module)) => {
                let listed = match &module {
                    Some(module) => listed(&beside(module)),
                    None => inherited.clone(),
                };
                let unknown = numbers.difference(&listed).next();
                bad.extend(unknown.map(|n| (at + 1, format!("there is no invariant {n}"))));
            }
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

/// The numbers behind the first `invariant`, and the module whose they are.
fn named(comment: &str) -> Option<(BTreeSet<u32>, Option<String>)> {
    let (_, rest) = comment.split_once("nvariant")?;
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
        let other = |module: &str| match module {
            "other" => "//! # Invariants\n//! 7. Seven.\n".to_owned(),
            _ => String::new(),
        };
        let (found, bad) = faults(text, other);
        let lines: Vec<usize> = bad.iter().map(|(line, _)| *line).collect();
        assert_eq!((found, lines), (7, vec![8, 9, 13, 14]), "{bad:?}");
    }
}
