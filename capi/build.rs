//! Writes what follows from the tables of the ABI, and names the library.

#[allow(dead_code, reason = "shared with xtask and the tests")]
mod generate;

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmpi_abi.so.1");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=abi");
    println!("cargo::rerun-if-changed=generate.rs");
    let sources: Vec<String> = fs::read_dir("src")?
        .map(|entry| fs::read_to_string(entry?.path()))
        .collect::<io::Result<_>>()?;
    let defined: BTreeSet<&str> = sources.iter().flat_map(|s| generate::defined(s)).collect();
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    let out = Path::new(&out);
    fs::write(out.join("constants.rs"), generate::constants())?;
    fs::write(out.join("missing.rs"), generate::missing(&defined))
}
