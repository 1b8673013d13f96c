//! `kernels --inspect`: what the kernels' machine code costs, as a table that is committed.
//!
//! ptxas makes code for sm_90, nvdisasm writes it as text, and the test `inspect` of
//! osier-kernels executes that text on real plans and counts instructions. No GPU is
//! involved. A row may not take more instructions than the table says, but for
//! [`SLACK`]: whoever makes a kernel longer writes the table anew and says why.

use super::{FOLDERS, NVDISASM, PTXAS, modules, nvdisasm, ptxas, read};
use crate::steps::{Result, cargo, root, run, target_dir};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

/// Growth that is let pass.
const SLACK: f64 = 1.02;

fn committed() -> PathBuf {
    root().join("kernels/inspect.txt")
}

/// Disassembles, runs, and gives the table.
fn table(trees: Option<u64>) -> Result<String> {
    let (Some(ptxas), Some(nvdisasm)) = (ptxas(), nvdisasm()) else {
        return Err("ptxas or nvdisasm is not installed".into());
    };
    let folder = target_dir().join("kernels-inspect");
    let _ = std::fs::remove_dir_all(&folder);
    let told = |e: std::io::Error| format!("cannot write to {}: {e}", folder.display());
    std::fs::create_dir_all(&folder).map_err(told)?;
    for module in modules()?.iter().filter(|m| m.folder == FOLDERS[0]) {
        let at = |ending: &str| folder.join(&module.name).with_extension(ending);
        let assembled = Command::new(&ptxas)
            .args(["-O3", "-v", "-arch=sm_90"])
            .arg(module.ptx())
            .arg("-o")
            .arg(at("cubin"))
            .output()
            .map_err(|e| format!("ptxas: {e}"))?;
        let text = Command::new(&nvdisasm)
            .arg(at("cubin"))
            .output()
            .map_err(|e| format!("nvdisasm: {e}"))?;
        if !assembled.status.success() || !text.status.success() {
            return Err(format!("{}: no machine code", module.name));
        }
        std::fs::write(at("ptxas"), assembled.stderr).map_err(told)?;
        std::fs::write(at("sass"), text.stdout).map_err(told)?;
    }
    let mut settings = format!("sass={}", folder.display());
    if let Some(trees) = trees {
        settings += &format!(",trees={trees}");
    }
    run(cargo()
        .env("OSIER_TEST", settings)
        .args([
            "test",
            "--release",
            "-p",
            "osier-kernels",
            "--test",
            "inspect",
        ])
        .args(["--", "--ignored", "--nocapture"]))?;
    read(&folder.join("table"))
}

/// Writes the table.
pub fn write() -> Result {
    let rows = table(None)?;
    let text = format!(
        "Made by cargo xtask kernels --inspect for sm_90, by\n\
         {PTXAS} and {NVDISASM}.\n\
         Counted by executing the machine code of a few warps on plans of 256 MiB. No\n\
         GPU has run any of it: shares are arithmetic, without a word about latency.\n\
         reg, sp: registers, bytes of spills. instr: warp instructions per 32 words of\n\
         the kernel's width. ld: most loads of a warp under way. B/inst: payload bytes\n\
         per warp instruction. H200, H100: share of a copy, min(1, 132 x 1.98 GHz x 3 x\n\
         B/inst / payload rate of the copy), 2.15 and 1.5 TB/s; of sums two thirds of it.\n\
         lists: bytes on the device that the launch needs besides.\n\n{rows}"
    );
    let path = committed();
    std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// Instructions by row; a row is a shape and a kernel.
fn counts(table: &str) -> HashMap<String, f64> {
    let mut counts = HashMap::new();
    for line in table.lines() {
        let (Some(name), Some(rest)) = (line.get(..42), line.get(42..)) else {
            continue;
        };
        if let Some(Ok(count)) = rest.split_whitespace().nth(2).map(str::parse) {
            counts.insert(name.trim().to_owned(), count);
        }
    }
    counts
}

/// Compares with the committed table.
pub fn check() -> Result {
    let (before, now) = (counts(&read(&committed())?), counts(&table(Some(0))?));
    let mut worse = Vec::new();
    for (name, count) in &now {
        match before.get(name) {
            None => worse.push(format!("{name}: not in the table")),
            Some(before) if *count > before * SLACK => {
                worse.push(format!("{name}: {before} instructions, now {count}"));
            }
            _ => {}
        }
    }
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        worse.push(format!("{name}: in the table, not counted now"));
    }
    worse.sort();
    match worse.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{}\n(hint: cargo xtask kernels --inspect writes the table)",
            worse.join("\n")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read() {
        let row = "T                    pack_general_w8        46  0  114.2  3   2.24 0.82 1.00";
        let counts = counts(row);
        assert_eq!(counts["T                    pack_general_w8"], 114.2);
    }
}
