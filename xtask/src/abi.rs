//! `abi`: writes what follows from the tables of the C interface.

use crate::steps::{Result, root};
use std::fs;

#[allow(dead_code)]
#[path = "../../capi/generate.rs"]
pub mod generate;

/// `cargo xtask abi`.
pub fn run() -> Result {
    let suites = fs::read_to_string(root().join("capi/abi/suites.tsv"));
    write(&suites.map_err(|e| format!("capi/abi/suites.tsv: {e}"))?)
}

/// With these results of programs of others.
pub fn write(suites: &str) -> Result {
    let text = |e: std::io::Error| e.to_string();
    let sources: Vec<String> = fs::read_dir(root().join("capi/src"))
        .map_err(text)?
        .map(|entry| fs::read_to_string(entry?.path()))
        .collect::<std::io::Result<_>>()
        .map_err(text)?;
    let defined = sources.iter().flat_map(|s| generate::defined(s)).collect();
    for (file, content) in [
        ("capi/include/mpi.h", generate::header()),
        ("docs/mpi-coverage.md", generate::coverage(&defined, suites)),
    ] {
        fs::write(root().join(file), content).map_err(|e| format!("{file}: {e}"))?;
        println!("wrote {file}");
    }
    Ok(())
}
