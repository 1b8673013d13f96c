//! `install`: the C interface where programs find it.
//!
//! ```text
//! PREFIX/bin        osier, mpiexec and mpirun (the same), mpicc, mpicxx, mpic++
//! PREFIX/include    mpi.h
//! PREFIX/lib        libmpi_abi.so.1, libmpi_abi.so; pkgconfig/mpi.pc
//! ```
//!
//! The wrappers find the prefix by where they lie, so that the folder can be moved.

use crate::setup;
use crate::steps::{Result, cargo, root, run as run_command, target_dir};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Options of `install`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask install --prefix ~/osier
  PATH=~/osier/bin:$PATH mpicc -o ring ring.c && mpiexec -n 4 ./ring")]
pub struct Args {
    /// Where to; bin, include and lib are made below it
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// What was built without optimisation, for tests
    #[arg(long)]
    debug: bool,
}

/// `cargo xtask install`.
pub fn run(args: &Args) -> Result {
    setup::linker()?;
    let mut build = cargo();
    build.args(["build", "-p", "osier-capi", "-p", "osier-cli"]);
    if !args.debug {
        build.arg("--release");
    }
    run_command(&mut build)?;
    let built = target_dir().join(if args.debug { "debug" } else { "release" });
    let prefix = std::path::absolute(&args.prefix).map_err(|e| e.to_string())?;
    put(&built, &prefix)?;
    println!("installed in {}", prefix.display());
    Ok(())
}

fn put(built: &Path, prefix: &Path) -> Result {
    let named = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    for folder in ["bin", "include", "lib/pkgconfig"] {
        let folder = prefix.join(folder);
        fs::create_dir_all(&folder).map_err(|e| named(&folder, e))?;
    }
    let copy = |from: PathBuf, to: &str| {
        let to = prefix.join(to);
        // A program may be running from it.
        let _ = fs::remove_file(&to);
        fs::copy(&from, &to).map(drop).map_err(|e| named(&from, e))
    };
    let write = |to: &str, text: &str, mode| {
        let to = prefix.join(to);
        fs::write(&to, text).map_err(|e| named(&to, e))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).map_err(|e| named(&to, e))
    };
    let link = |to: &str, at: &str| {
        let at = prefix.join(at);
        let _ = fs::remove_file(&at);
        symlink(to, &at).map_err(|e| named(&at, e))
    };
    copy(built.join("osier"), "bin/osier")?;
    link("osier", "bin/mpiexec")?;
    link("osier", "bin/mpirun")?;
    copy(built.join("libmpi_abi.so"), "lib/libmpi_abi.so.1")?;
    link("libmpi_abi.so.1", "lib/libmpi_abi.so")?;
    copy(root().join("capi/include/mpi.h"), "include/mpi.h")?;
    write("bin/mpicc", &wrapper("mpicc", "C", "OSIER_CC", "cc"), 0o755)?;
    write(
        "bin/mpicxx",
        &wrapper("mpicxx", "C++", "OSIER_CXX", "c++"),
        0o755,
    )?;
    link("mpicxx", "bin/mpic++")?;
    write("lib/pkgconfig/mpi.pc", PKG_CONFIG, 0o644)
}

fn wrapper(name: &str, language: &str, variable: &str, compiler: &str) -> String {
    WRAPPER
        .replace("@NAME@", name)
        .replace("@LANGUAGE@", language)
        .replace("@VARIABLE@", variable)
        .replace("@COMPILER@", compiler)
}

const WRAPPER: &str = r#"#!/bin/sh
# @NAME@ of Osier: the @LANGUAGE@ compiler with the header and the library of this folder.
# The compiler is @COMPILER@, or the one that @VARIABLE@ names.
#   -show, -compile-info, -link-info   print the command, or a part of it, and do nothing
here=$(readlink -f -- "$0")
prefix=$(dirname -- "$(dirname -- "$here")")
compiler=${@VARIABLE@:-@COMPILER@}
compile="-I$prefix/include"
link="-L$prefix/lib -Wl,-rpath,$prefix/lib -lmpi_abi"
links=yes
for argument in "$@"; do
    case $argument in
        -c | -S | -E | -M | -MM | -fsyntax-only) links=no ;;
    esac
done
case $1 in
    -show | --show | -showme | --showme)
        shift
        [ $links = yes ] || link=
        echo "$compiler $compile $*${*:+ }$link"
        exit ;;
    -compile-info | -compile_info)
        echo "$compiler $compile"
        exit ;;
    -link-info | -link_info)
        echo "$compiler $link"
        exit ;;
    -showme:compile)
        echo "$compile"
        exit ;;
    -showme:link)
        echo "$link"
        exit ;;
    -v | --version | -dumpversion | -dumpmachine)
        [ $# -gt 1 ] || exec $compiler "$@" ;;
esac
[ $# -gt 0 ] || links=no
if [ $links = yes ]; then
    exec $compiler "$compile" "$@" "-L$prefix/lib" "-Wl,-rpath,$prefix/lib" -lmpi_abi
fi
exec $compiler "$compile" "$@"
"#;

const PKG_CONFIG: &str = "\
prefix=${pcfiledir}/../..
includedir=${prefix}/include
libdir=${prefix}/lib

Name: mpi
Description: Osier, the standard ABI of MPI 5.0
Version: 5.0
Cflags: -I${includedir}
Libs: -L${libdir} -Wl,-rpath,${libdir} -lmpi_abi
";
