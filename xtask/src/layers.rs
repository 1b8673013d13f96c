//! Order of modules: each crate's head lists them from the lowest to the highest, and an
//! import goes to a module above in that table, which is to say to a lower layer.
//!
//! Between crates Cargo keeps the order. Within a crate the compiler permits any import, so
//! it is checked here.

use crate::steps::{Result, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates of several layers.
const CRATES: [&str; 2] = ["src", "engine/src"];

/// The step of `cargo xtask check`.
pub fn check() -> Result {
    let mut faults = Vec::new();
    for folder in CRATES {
        let sources = sources(&root().join(folder))?;
        let order = order(sources.get(Path::new("lib.rs")).map_or("", |text| text));
        println!("{folder}: {} modules in order", order.len());
        faults.extend(
            against(&order, &sources)
                .into_iter()
                .map(|fault| format!("{folder}/{fault}")),
        );
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "imports against the order of modules:\n{}\n(hint: move what both need to the lower module; the order stands at the head of lib.rs)",
            faults.join("\n")
        )),
    }
}

/// The files of a crate, by their paths within it.
fn sources(folder: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries = fs::read_dir(&next).map_err(|e| format!("{}: {e}", next.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path);
                let text = text.map_err(|e| format!("{}: {e}", path.display()))?;
                let name = path.strip_prefix(folder).unwrap_or(&path);
                found.insert(name.to_owned(), text);
            }
        }
    }
    Ok(found)
}

/// The modules of the table at the head of a crate, lowest first: names in backquotes in
/// the first column of rows below `| module |`.
fn order(text: &str) -> Vec<String> {
    let head = text.lines().map_while(|line| line.strip_prefix("//!"));
    let rows = head
        .map(str::trim)
        .skip_while(|line| !line.starts_with("| module |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let names = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|column| {
            let quoted = column.split('`').skip(1).step_by(2);
            quoted.map(|name| name.trim_start_matches("mod@").to_owned())
        });
    names.collect()
}

/// Imports that go up or sideways in the order, and modules that it lacks.
fn against(order: &[String], sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let layer = |module: &str| order.iter().position(|name| name == module);
    let mut faults = Vec::new();
    for (path, text) in sources {
        let first = path.iter().next().unwrap_or_default().to_string_lossy();
        let own = first.trim_end_matches(".rs");
        if own == "lib" {
            continue;
        }
        let Some(here) = layer(own) else {
            faults.push(format!("{}: `{own}` is not in the table", path.display()));
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for module in imported(code) {
                if layer(module).is_some_and(|there| there > here) {
                    faults.push(format!(
                        "{}:{}: {own} uses {module}",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    faults
}

/// First segments of paths that begin at the crate's root.
fn imported(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("crate::").filter_map(|(at, found)| {
        // `$crate::` of a macro names what is public.
        let rest = &code[at + found.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = &rest[..end.unwrap_or(rest.len())];
        (!code[..at].ends_with('$')).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_keep_their_order() {
        check().expect("they do");
    }

    #[test]
    fn upward_import_and_unlisted_module_are_found() {
        let lib = "//! Text.\n//!\n//! | module | duty |\n//! |---|---|\n//! | [`low`], [`mod@env`] | a |\n//! | `high` | b |\n//!\n//! | `other` | c |\n";
        let order = order(lib);
        assert_eq!(order, ["low", "env", "high"]);
        let files = [
            ("lib.rs", lib),
            (
                "low.rs",
                "use crate::high::X; // crate::high\nuse crate::low::Y;\n",
            ),
            (
                "high/mod.rs",
                "use crate::low::Z;\nfn f() { $crate::high::g() }\n",
            ),
            (
                "high/part.rs",
                "use super::super::low;\nuse crate::env::value;\n",
            ),
            ("stray.rs", ""),
        ];
        let sources = files.map(|(path, text)| (PathBuf::from(path), text.to_owned()));
        let faults = against(&order, &sources.into());
        assert_eq!(
            faults,
            [
                "low.rs:1: low uses high",
                "stray.rs: `stray` is not in the table"
            ]
        );
    }
}
