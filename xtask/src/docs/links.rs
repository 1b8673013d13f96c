//! Relative links of all pages lead somewhere, headings included; each decision is in the
//! index; README has at most 160 lines.

use crate::steps::{Result, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Most lines of README.
const MOST_LINES: usize = 160;

/// The step of `cargo xtask check`.
pub fn check() -> Result {
    let mut pages = Vec::new();
    for folder in [
        "",
        "docs",
        "docs/decisions",
        "examples",
        "datatype/corpus/data",
    ] {
        let entries = fs::read_dir(root().join(folder)).map_err(|e| format!("{folder}: {e}"))?;
        let paths = entries.flatten().map(|entry| entry.path());
        pages.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    pages.sort();
    let mut faults = Vec::new();
    let mut links = 0;
    for page in &pages {
        let text = read(page)?;
        for (line, target) in targets(&text) {
            links += 1;
            if let Some(why) = fault(page, &target) {
                let page = page.strip_prefix(root()).unwrap_or(page);
                faults.push(format!("{}:{line}: {target}: {why}", page.display()));
            }
        }
    }
    faults.extend(not_in_index()?);
    let lines = read(&root().join("README.md"))?.lines().count();
    if lines > MOST_LINES {
        faults.push(format!("README.md has {lines} lines, at most {MOST_LINES}"));
    }
    println!("{} pages, {links} links", pages.len());
    match faults.is_empty() {
        true => Ok(()),
        false => Err(format!("pages:\n{}", faults.join("\n"))),
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Targets of links that are not elsewhere, with their lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut code = false;
    for (line, number) in text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        for part in line.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            // Items of rustdoc are checked by rustdoc.
            let elsewhere = ["://", "mailto:", "::", "@"];
            if !target.is_empty() && !elsewhere.iter().any(|part| target.contains(part)) {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// Why a link leads nowhere.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path: PathBuf = match file.is_empty() {
        true => page.to_owned(),
        false => page.parent()?.join(file),
    };
    if !path.exists() {
        return Some("there is no such file".into());
    }
    if heading.is_empty() || path.extension().is_none_or(|e| e != "md") {
        return None;
    }
    let text = fs::read_to_string(&path).unwrap_or_default();
    let there = text
        .lines()
        .any(|line| anchor(line).as_deref() == Some(heading));
    (!there).then(|| "there is no such heading".into())
}

/// The anchor of a heading, as forges make it.
fn anchor(line: &str) -> Option<String> {
    let text = line.trim_start_matches('#');
    let is_heading = text.len() < line.len() && text.starts_with(' ');
    let kept = text.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    is_heading.then(|| kept.collect())
}

/// Decisions that the index does not name.
fn not_in_index() -> Result<Vec<String>> {
    let folder = root().join("docs/decisions");
    let index = read(&folder.join("README.md"))?;
    let named: BTreeSet<String> = targets(&index).into_iter().map(|(_, name)| name).collect();
    let entries = fs::read_dir(&folder).map_err(|e| format!("docs/decisions: {e}"))?;
    let names = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    let records = names.filter(|name| name.starts_with(|c: char| c.is_ascii_digit()));
    let missing = records.filter(|name| !named.contains(name));
    Ok(missing
        .map(|name| format!("docs/decisions/README.md does not list {name}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere_and_decisions_are_listed() {
        check().expect("they do");
    }

    #[test]
    fn broken_links_are_found() {
        let page = root().join("docs/glossary.md");
        assert!(fault(&page, "../README.md").is_none());
        assert!(fault(&page, "nothing.md").is_some());
        assert!(fault(&page, "../README.md#no-such-heading").is_some());
        let text = "[a](b.md) `x`\n```\n[c](d.md)\n```\n[e](https://f) [g](#h)\n";
        let found = targets(text);
        assert_eq!(found, [(1, "b.md".to_owned()), (5, "#h".to_owned())]);
        assert_eq!(
            anchor("## When it `hangs`, on 2"),
            Some("when-it-hangs-on-2".into())
        );
    }
}
