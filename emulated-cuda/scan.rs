//! From kernel sources to a library of kernels for the host.
//!
//! Used by the build script for `kernels/cuda`, and by the tests for their own
//! sources. Every `.cu` and `.cuh` of a folder is copied with one rewrite
//! (`extern __shared__`), preprocessed once to find the kernels, also those that
//! macros define, and compiled with a table of their names at its end.
//!
//! # Invariants
//! 1. Each `extern "C" __global__ void NAME(...)` of a `.cu` is in the table.
//! 2. Without a `.cu` no compiler is called.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A compiled folder.
pub struct Compiled {
    /// Objects to be linked; the last one has the table.
    pub objects: Vec<PathBuf>,
    /// Names of all kernels.
    pub names: Vec<String>,
}

/// Has kernels check their accesses and their arithmetic. Whoever loads them must have
/// loaded the compiler's libasan before.
pub const SANITIZERS: &[&str] = &[
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    // Half the time of compiling; the kernels of tests are short.
    "-O1",
];

/// Has kernels report each access: the calls that a thread sanitizer would answer are
/// answered by `shim/osier_accesses.h`.
const REPORTS: &[&str] = &["-fsanitize=thread", "-Wno-tsan"];

/// Compiles all kernels below `source` into `out`, so that they report their accesses
/// or, if there are flags, with these instead. Their table is the symbol
/// `osier_kernels`.
///
/// # Errors
/// A text for the user: no compiler, or what it said.
pub fn compile(source: &Path, shim: &Path, out: &Path, flags: &[&str]) -> Result<Compiled, String> {
    let copies = out.join("kernels");
    let _ = std::fs::remove_dir_all(&copies);
    std::fs::create_dir_all(&copies).map_err(|e| format!("{}: {e}", copies.display()))?;
    let mut units = Vec::new();
    for path in sources(source) {
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let relative = path.strip_prefix(source).unwrap_or(&path);
        let copy = copies.join(relative);
        if let Some(folder) = copy.parent() {
            std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
        }
        let text = format!("#line 1 \"{}\"\n{}", path.display(), dynamic_shared(&text));
        std::fs::write(&copy, text).map_err(|e| format!("{}: {e}", copy.display()))?;
        if path.extension().is_some_and(|e| e == "cu") {
            units.push(copy);
        }
    }
    let mut compiled = Compiled {
        objects: Vec::new(),
        names: Vec::new(),
    };
    if units.is_empty() {
        return Ok(compiled);
    }
    let include = shim.join("osier_cuda_host.h");
    let mut tables = String::new();
    let mut next = "nullptr".to_owned();
    let compiled_units = in_parallel(&units, |index, unit| {
        compile_unit(index, unit, &include, &copies, flags)
    });
    for (index, unit) in compiled_units.into_iter().enumerate() {
        let (names, object) = unit?;
        let count = names.len();
        let _ = writeln!(
            tables,
            "extern \"C\" __attribute__((visibility(\"hidden\"))) const osier_kernel osier_kernels_{index}[];\n\
             static const osier_kernel_library library_{index} = \
             {{6, &osier_state, osier_kernels_{index}, {count}, {next}}};"
        );
        next = format!("&library_{index}");
        compiled.objects.push(object);
        compiled.names.extend(names);
    }
    let head = format!(
        "extern \"C\" {{\nosier_launch_state osier_state;\n\
         extern __attribute__((visibility(\"default\"))) const osier_kernel_library osier_kernels;\n\
         const osier_kernel_library osier_kernels = {{6, &osier_state, nullptr, 0, {next}}};\n}}\n"
    );
    let table = copies.join("osier_table.cpp");
    let text = format!("#include \"osier_accesses.h\"\n{tables}\n{head}");
    std::fs::write(&table, text).map_err(|e| e.to_string())?;
    let object = copies.join("osier_table.o");
    let done = compiler(&include, &copies)
        .args(["-c", "-O2", "-fPIC", "-x", "c++"])
        .arg(&table)
        .arg("-o")
        .arg(&object)
        .output()
        .map_err(no_compiler)?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    compiled.objects.push(object);
    Ok(compiled)
}

/// Calls a function for each path, on as many threads as there are processors; results
/// in the order of the paths.
fn in_parallel<T: Send>(paths: &[PathBuf], each: impl Fn(usize, &Path) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let next = AtomicUsize::new(0);
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(path) = paths.get(index) else { break };
                done.push((index, each(index, path)));
            }
            done
        };
        let workers: Vec<_> = (0..threads.min(paths.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let results = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.flatten().collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Compiles one source with the table of its kernels: their names, and the object.
fn compile_unit(
    index: usize,
    unit: &Path,
    include: &Path,
    copies: &Path,
    flags: &[&str],
) -> Result<(Vec<String>, PathBuf), String> {
    let scanned = compiler(include, copies)
        .args(["-E", "-P", "-DOSIER_SCAN", "-x", "c++"])
        .arg(unit)
        .output()
        .map_err(no_compiler)?;
    if !scanned.status.success() {
        return Err(String::from_utf8_lossy(&scanned.stderr).into_owned());
    }
    let names = kernels(&String::from_utf8_lossy(&scanned.stdout));
    let unit_with_table = unit.with_extension("cpp");
    let mut text = format!("#include \"{}\"\n", unit.display());
    let _ = writeln!(text, "extern \"C\" {{");
    let _ = writeln!(
        text,
        "extern __attribute__((visibility(\"hidden\"))) const osier_kernel osier_kernels_{index}[];"
    );
    let _ = writeln!(text, "const osier_kernel osier_kernels_{index}[] = {{");
    for name in &names {
        let _ = writeln!(text, "    OSIER_KERNEL({name}),");
    }
    let _ = writeln!(text, "    {{nullptr, nullptr, nullptr, 0}}}};\n}}");
    std::fs::write(&unit_with_table, text).map_err(|e| e.to_string())?;
    let object = unit.with_extension("o");
    let done = compiler(include, copies)
        .args(["-c", "-O2", "-g1", "-fPIC", "-x", "c++"])
        .args(if flags.is_empty() { REPORTS } else { flags })
        .arg(&unit_with_table)
        .arg("-o")
        .arg(&object)
        .output()
        .map_err(no_compiler)?;
    match done.status.success() {
        true => Ok((names, object)),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// Links what was compiled to a library for `OSIER_EMULATED_KERNELS`.
///
/// # Errors
/// A text for the user: no compiler, or what it said.
pub fn link(compiled: &Compiled, flags: &[&str], library: &Path) -> Result<(), String> {
    let done = Command::new(program())
        .arg("-shared")
        .args(flags)
        .arg("-o")
        .arg(library)
        .args(&compiled.objects)
        .output()
        .map_err(no_compiler)?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// All `.cu` and `.cuh` below a folder, sorted; none if there is no folder.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return found;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The C++ compiler: `$CXX`, else `g++`.
pub fn program() -> std::ffi::OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "g++".into())
}

fn compiler(include: &Path, copies: &Path) -> Command {
    let mut command = Command::new(program());
    command
        .args(["-std=c++17", "-Wall", "-Wno-unknown-pragmas"])
        .args(["-Wno-unused-function", "-Wno-unused-variable"])
        // No library of C++ is linked; a product and a sum stay two roundings.
        .args(["-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"])
        .args(["-fno-strict-aliasing", "-ffp-contract=off"])
        .args(["-fvisibility=hidden", "-fno-stack-protector"])
        .arg("-include")
        .arg(include)
        .arg("-I")
        .arg(copies)
        .arg("-I")
        .arg(include.parent().unwrap_or(copies))
        // Headers for kernels of the program.
        .arg("-I")
        .arg(include.with_file_name("../../kernels/include"));
    command
}

fn no_compiler(e: std::io::Error) -> String {
    format!(
        "cannot run {}: {e} (hint: the emulated driver compiles the kernels for the \
         host; apt-get install g++, or set CXX)",
        program().display()
    )
}

/// Names behind the marker that the shim makes of `__global__`.
fn kernels(preprocessed: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in preprocessed.split("osier_global_marker").skip(1) {
        let Some(open) = part.find('(') else { continue };
        let name = part[..open].split_whitespace().next_back().unwrap_or("");
        let name = name.trim_start_matches('*');
        if !name.is_empty() && !names.iter().any(|n| n == name) {
            names.push(name.into());
        }
    }
    names
}

/// Rewrites `extern __shared__ [alignment] TYPE NAME[];` to a pointer to the
/// block's dynamic shared memory. Lines stay where they are.
fn dynamic_shared(text: &str) -> String {
    const KEY: &str = "extern __shared__";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(KEY) {
        out.push_str(&rest[..at]);
        rest = &rest[at + KEY.len()..];
        let Some(end) = rest.find(';') else { break };
        let declaration = rest[..end].replace(['[', ']'], " ");
        let mut words: Vec<&str> = declaration
            .split_whitespace()
            .filter(|w| !w.starts_with("__align__") && !w.starts_with("alignas"))
            .collect();
        let name = words.pop().unwrap_or("osier_unnamed");
        let kind = words.join(" ");
        let _ = write!(
            out,
            "{kind} *const {name} = static_cast<{kind} *>(osier_state.shared)"
        );
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}
