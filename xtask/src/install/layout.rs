//! What an installation of the C interface consists of, and where it lies.
//!
//! ```text
//! PREFIX/bin        osier, mpiexec and mpirun (the same), mpicc, mpicxx, mpic++;
//!                   mpifort and its other names, which only refuse
//! PREFIX/include    mpi.h, mpi-ext.h
//! PREFIX/lib        libmpi_abi.so.1, libmpi_abi.so; libosier_heap.so;
//!                   pkgconfig/mpi.pc
//! ```
//!
//! The wrappers find the prefix by where they lie, so that the folder can be moved.
//! Used by `cargo xtask install` and by the tests of the C interface.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// The files that were built.
pub struct Parts<'a> {
    /// The executable `osier`.
    pub launcher: &'a Path,
    /// The C library.
    pub library: &'a Path,
    /// The library for `--shared-heap`.
    pub heap: &'a Path,
    /// `mpi.h` and `mpi-ext.h` lie here.
    pub headers: &'a Path,
}

/// Makes or renews the installation below `prefix`, an absolute path.
///
/// # Errors
/// The file that could not be read or written, and why.
pub fn put(parts: &Parts<'_>, prefix: &Path) -> Result<(), String> {
    let named = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    for folder in ["bin", "include", "lib/pkgconfig"] {
        let folder = prefix.join(folder);
        fs::create_dir_all(&folder).map_err(|e| named(&folder, e))?;
    }
    let copy = |from: &Path, to: &str| {
        let to = prefix.join(to);
        // A program may be running from it.
        let _ = fs::remove_file(&to);
        fs::copy(from, &to).map(drop).map_err(|e| named(from, e))
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
    copy(parts.launcher, "bin/osier")?;
    link("osier", "bin/mpiexec")?;
    link("osier", "bin/mpirun")?;
    copy(parts.library, "lib/libmpi_abi.so.1")?;
    link("libmpi_abi.so.1", "lib/libmpi_abi.so")?;
    copy(parts.heap, "lib/libosier_heap.so")?;
    for header in ["mpi.h", "mpi-ext.h"] {
        copy(&parts.headers.join(header), &format!("include/{header}"))?;
    }
    write("bin/mpicc", &wrapper("mpicc", "C", "cc", "cc"), 0o755)?;
    let cxx = wrapper("mpicxx", "C++", "cxx", "c++");
    write("bin/mpicxx", &cxx, 0o755)?;
    link("mpicxx", "bin/mpic++")?;
    write("bin/mpifort", NO_FORTRAN, 0o755)?;
    for name in FORTRAN_NAMES {
        link("mpifort", &format!("bin/{name}"))?;
    }
    write("lib/pkgconfig/mpi.pc", PKG_CONFIG, 0o644)
}

fn wrapper(name: &str, language: &str, option: &str, compiler: &str) -> String {
    let old = format!("OSIER_{}", option.to_ascii_uppercase());
    WRAPPER
        .replace("@NAME@", name)
        .replace("@LANGUAGE@", language)
        .replace("@OPTION@", option)
        .replace("@OLD@", &old)
        .replace("@COMPILER@", compiler)
}

/// Under these names CMake and others look for a Fortran wrapper, each of them before any
/// folder of another library.
const FORTRAN_NAMES: [&str; 4] = ["mpif90", "mpif77", "mpif95", "mpifc"];

const NO_FORTRAN: &str = r#"#!/bin/sh
# mpifort of Osier: it refuses, so that nobody takes C from Osier and Fortran from the MPI library
# that lies next on PATH.
here=$(readlink -f -- "$0")
prefix=$(dirname -- "$(dirname -- "$here")")
# The two questions of CMake's FindMPI. Without an answer it asks pkg-config for mpi-fort, which is
# another library's. With these it finds no module mpi_f08 and no mpif.h, and so no Fortran.
case $1 in
    -showme:compile)
        echo "-I$prefix/include"
        exit ;;
    -showme:link)
        echo "-L$prefix/lib -lmpi_abi"
        exit ;;
esac
echo "$(basename -- "$0"): Osier has no Fortran interface (hint: docs/fortran.md of Osier shows a module mpi_f08 of others, built on its C interface)" >&2
exit 1
"#;

const WRAPPER: &str = r#"#!/bin/sh
# @NAME@ of Osier: the @LANGUAGE@ compiler with the header and the library of this folder.
# The compiler is @COMPILER@.
#   -@OPTION@=COMPILER                      another compiler; the first argument
#   -show, -compile-info, -link-info   print the command, or a part of it, and do nothing
here=$(readlink -f -- "$0")
prefix=$(dirname -- "$(dirname -- "$here")")
if [ -n "${@OLD@:-}" ]; then
    echo "@NAME@: @OLD@ is read no longer (hint: @NAME@ -@OPTION@=$@OLD@)" >&2
    exit 1
fi
compiler=@COMPILER@
case $1 in
    -@OPTION@=?*)
        compiler=${1#*=}
        shift ;;
esac
compile="-I$prefix/include"
link="-L$prefix/lib -Wl,-rpath,$prefix/lib -Wl,--enable-new-dtags -lmpi_abi"
links=yes
for argument in "$@"; do
    case $argument in
        -c | -S | -E | -M | -MM | -fsyntax-only) links=no ;;
    esac
done
case $1 in
    -show | --show | -showme | --showme)
        shift
        [ $links = yes ] && compile="$compile $link"
        echo "$compiler${*:+ }$* $compile"
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
esac
# Questions to the compiler, such as -v or --version.
[ $# -gt 1 ] || case $1 in
    -v | -V | -print-* | -dump* | --help* | --version | --print-* | "") exec $compiler "$@" ;;
esac
# With new tags, LD_LIBRARY_PATH comes before the path in the program: another library of the
# same interface can take the place of this one.
# Behind what the caller says, so that the caller's folders come first.
if [ $links = yes ]; then
    exec $compiler "$@" "$compile" "-L$prefix/lib" "-Wl,-rpath,$prefix/lib" -Wl,--enable-new-dtags -lmpi_abi
fi
exec $compiler "$@" "$compile"
"#;

const PKG_CONFIG: &str = "\
prefix=${pcfiledir}/../..
includedir=${prefix}/include
libdir=${prefix}/lib

Name: mpi
Description: Osier, the standard ABI of MPI 5.0
Version: 5.0
Cflags: -I${includedir}
Libs: -L${libdir} -Wl,-rpath,${libdir} -Wl,--enable-new-dtags -lmpi_abi
";
