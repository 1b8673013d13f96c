//! `--shared-heap`: where the library is that takes the place of `malloc`, and what tells
//! the ranks.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::{Failure, USAGE};

/// What cargo calls the library.
const FILE: &str = "libosier_heap.so";
const VARIABLE: &str = "OSIER_HEAP";
const PRELOAD: &str = "LD_PRELOAD";

/// Large allocations of unmodified programs come from the shared heap.
pub struct Preloaded {
    library: PathBuf,
}

impl Preloaded {
    /// If it is asked for: by the option, by `--env` or by the environment.
    pub fn find(asked: bool, given: &[(OsString, OsString)]) -> Result<Option<Self>, Failure> {
        let of_ranks = given.iter().rfind(|(key, _)| key == VARIABLE);
        let text = match of_ranks {
            Some((_, text)) => Some(text.to_string_lossy().into_owned()),
            None => osier::config::value(VARIABLE),
        };
        let set = osier::config::parse_heap(text.as_deref().unwrap_or_default());
        let set = set.map_err(|e| Failure::new(USAGE, e.context(VARIABLE).to_string()))?;
        if !asked && !set {
            return Ok(None);
        }
        let exe = std::env::current_exe().ok();
        let library = library_beside(exe.as_deref().and_then(Path::parent))?;
        Ok(Some(Self { library }))
    }

    /// Variables of a process; `given` are those that the user wants set for it.
    pub fn variables(&self, given: &[(OsString, OsString)]) -> [(String, OsString); 2] {
        let others = given.iter().rfind(|(key, _)| key == PRELOAD);
        let others = others.map(|(_, text)| text.clone());
        let others = others.or_else(|| std::env::var_os(PRELOAD));
        let mut all = self.library.clone().into_os_string();
        if let Some(others) = others.filter(|others| !others.is_empty()) {
            all.push(OsStr::new(":"));
            all.push(others);
        }
        [(VARIABLE.into(), "all".into()), (PRELOAD.into(), all)]
    }
}

fn library_beside(folder: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = folder.unwrap_or(Path::new("."));
    // An installation has it in lib; `cargo build` puts it beside us, a build for tests into
    // deps.
    let folders = [folder.join("../lib"), folder.into(), folder.join("deps")];
    let mut files = folders.into_iter().map(|folder| folder.join(FILE));
    let found = files.find(|path| path.is_file());
    // What the loader reads as a list has no such characters.
    let is_plain = |path: &PathBuf| {
        let text = path.as_os_str().as_encoded_bytes();
        !text.iter().any(|byte| matches!(byte, b':' | b' '))
    };
    let library = found.ok_or_else(|| {
        let release = if cfg!(debug_assertions) { "" } else { "--release " };
        let at = folder.join(FILE);
        Failure::new(
            USAGE,
            format!(
                "--shared-heap: {} is not there (hint: cargo build {release}-p osier-preload, or cargo xtask install)",
                at.display()
            ),
        )
    })?;
    let library = std::fs::canonicalize(&library).unwrap_or(library);
    match is_plain(&library) {
        true => Ok(library),
        false => Err(Failure::new(
            USAGE,
            format!(
                "--shared-heap: {}: {PRELOAD} takes no path with a space or a colon",
                library.display()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloaded_libraries_stay() {
        let heap = Preloaded {
            library: "/lib/a.so".into(),
        };
        let given = [(PRELOAD.into(), "b.so".into())];
        assert_eq!(
            heap.variables(&given)[1],
            (PRELOAD.to_owned(), OsString::from("/lib/a.so:b.so"))
        );
    }

    #[test]
    fn absent_library_says_how_to_build_it() {
        let failure = library_beside(Some(Path::new("/nowhere"))).expect_err("absent");
        assert!(
            failure.message.contains("-p osier-preload"),
            "{}",
            failure.message
        );
    }
}
