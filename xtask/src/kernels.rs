//! `kernels`: CUDA C++ to PTX, with a compiler from packages, and checks that
//! what is committed matches.
//!
//! NVRTC 12.0 is chosen on purpose: its PTX (ISA 8.0, compute_70) is taken by
//! every driver since CUDA 12.0 and by the assemblers for sm_70 to sm_121.

mod inspect;

use crate::setup;
use crate::steps::{Result, Steps, root, run as run_command, target_dir};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

const NVRTC: &str = "nvidia-cuda-nvrtc-cu12==12.0.140";
const PTXAS: &str = "nvidia-cuda-nvcc-cu12==12.9.86";
/// Reads the code of any assembler since 12.0; there is none of the compiler's own age.
const NVDISASM: &str = "nvidia-cuda-nvdisasm==13.2.51";
const OPTIONS: [&str; 4] = [
    "--std=c++17",
    "-default-device",
    // A product and a sum are rounded apart, as on the host.
    "--fmad=false",
    "--device-int128",
];
const ARCHITECTURES: [u32; 4] = [70, 80, 90, 100];
/// Modules with instructions of newer devices: architecture and version of the PTX that has
/// them. NVRTC passes on what it does not know, and the assembler checks it.
const NEWER: [(&str, u32, &str); 1] = [("exchange_multicast", 90, "8.1")];

/// Options of `kernels`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask kernels             compile kernels/cuda to kernels/ptx
  cargo xtask kernels --check     compare and assemble; change nothing
  cargo xtask kernels --inspect   count instructions, write kernels/inspect.txt
  cargo xtask kernels --cubins target/release/cubins
                                  binaries beside the executables of a release")]
pub struct Args {
    /// Assemble binaries for sm_80, sm_90 and sm_100 into this folder, where
    /// executables beside it find them
    #[arg(long, value_name = "FOLDER", conflicts_with = "check")]
    cubins: Option<PathBuf>,
    /// Compare with what is committed instead of writing it
    #[arg(long)]
    check: bool,
    /// Only install the compiler, so that `cargo xtask test` compares too; where that
    /// is impossible, say why and go on
    #[arg(long, conflicts_with_all = ["check", "cubins"])]
    install: bool,
    /// Count the instructions that machine code of sm_90 takes for shapes of layouts,
    /// and write the table of them
    #[arg(long, conflicts_with_all = ["check", "cubins", "install"])]
    inspect: bool,
}

/// Compiles, or checks; installs the compiler below the target folder.
pub fn run(args: &Args) -> Result {
    if let Some(folder) = &args.cubins {
        return cubins(folder);
    }
    if args.inspect {
        install()?;
        return inspect::write();
    }
    if args.install {
        if let Err(why) = install() {
            println!("no compiler of kernels: {why}");
        }
        return Ok(());
    }
    match install() {
        // Digests are compared without a compiler, and the rest is skipped aloud.
        Err(why) if args.check => println!("no compiler: {why}"),
        done => done?,
    }
    if !args.check {
        for module in modules()? {
            let path = module.ptx();
            std::fs::write(&path, compile(&module)?)
                .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
            println!("wrote {}", path.display());
        }
    }
    let mut steps = Steps::default();
    check_steps(&mut steps);
    steps.finish()
}

/// Architectures that have binaries: one per major version, which later minor ones
/// take. Others compile the PTX at first use.
const CUBINS: [u32; 3] = [80, 90, 100];

/// Assembles the library's kernels into a folder. A file's name tells module, digest
/// of the source and architecture; older ones of other sources go.
pub fn cubins(folder: &Path) -> Result {
    install()?;
    let Some(ptxas) = ptxas() else {
        return Err("ptxas is not installed".into());
    };
    let told = |e: std::io::Error| format!("cannot write to {}: {e}", folder.display());
    std::fs::create_dir_all(folder).map_err(told)?;
    for old in files(folder, "cubin")? {
        std::fs::remove_file(old).map_err(told)?;
    }
    let mut bytes = 0;
    for module in modules()?
        .iter()
        .filter(|module| module.folder == FOLDERS[0])
    {
        for architecture in module.taken_by(&CUBINS) {
            let digest = digest(module)?;
            let name = format!("{}-{digest}.sm_{architecture}.cubin", module.name);
            let path = folder.join(name);
            let arch = format!("-arch=sm_{architecture}");
            let source = module.ptx();
            run_command(
                Command::new(&ptxas)
                    .args(["-O3", &arch])
                    .arg(source)
                    .arg("-o")
                    .arg(&path),
            )?;
            bytes += std::fs::metadata(&path).map_or(0, |file| file.len());
        }
    }
    println!("{} KiB of binaries in {}", bytes >> 10, folder.display());
    Ok(())
}

/// The steps of CI: digests always, the compilers where they are installed.
pub fn check_steps(steps: &mut Steps) {
    steps.step("kernels: digests", || {
        for module in modules()? {
            let wanted = format!("// source: {}", digest(&module)?);
            if !read(&module.ptx())?.lines().any(|line| line == wanted) {
                return Err(format!(
                    "{}.ptx is not of this source (hint: cargo xtask kernels)",
                    module.name
                ));
            }
        }
        Ok(())
    });
    if nvrtc().is_none() || ptxas().is_none() {
        let why = "the compiler is not installed (cargo xtask kernels --install)";
        return steps.skip("kernels: compile and assemble", why);
    }
    steps.step("kernels: compile", || {
        for module in modules()? {
            if compile(&module)? != read(&module.ptx())? {
                let name = module.name;
                return Err(format!("{name}.ptx differs (hint: cargo xtask kernels)"));
            }
        }
        Ok(())
    });
    steps.step("kernels: assemble", || {
        let Some(ptxas) = ptxas() else {
            return Err("ptxas has gone".into());
        };
        let cubin = target_dir().join("kernels.cubin");
        for module in modules()? {
            for architecture in module.taken_by(&ARCHITECTURES) {
                let arch = format!("-arch=sm_{architecture}");
                run_command(
                    Command::new(&ptxas)
                        .args(["-O1", &arch])
                        .arg(module.ptx())
                        .arg("-o")
                        .arg(&cubin),
                )?;
            }
        }
        Ok(())
    });
    match nvdisasm() {
        Some(_) => steps.step("kernels: instructions", inspect::check),
        None => steps.skip("kernels: instructions", "nvdisasm is not installed"),
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// Folders with kernels: those of the library, and those that tests and examples load as a user
/// would. Below each, `cuda` has the sources and `ptx` what is made of them.
const FOLDERS: [&str; 3] = ["kernels", "kernels/tests", "examples"];

/// Headers for kernels of the program.
const HEADERS: &str = "kernels/include";

/// One source, which becomes one PTX file.
struct Module {
    folder: &'static str,
    name: String,
}

impl Module {
    fn sources(&self) -> PathBuf {
        root().join(self.folder).join("cuda")
    }

    fn source(&self) -> PathBuf {
        self.sources().join(&self.name).with_extension("cu")
    }

    /// Architecture and PTX version, where they are not those of the others.
    fn newer(&self) -> Option<(u32, &'static str)> {
        let mut newer = NEWER.iter().filter(|(name, ..)| *name == self.name);
        let (_, architecture, version) = newer.next()?;
        Some((*architecture, version))
    }

    fn options(&self) -> Vec<String> {
        let least = self.newer().map_or(ARCHITECTURES[0], |newer| newer.0);
        let first = format!("--gpu-architecture=compute_{least}");
        let others = OPTIONS.iter().map(|option| (*option).to_owned());
        std::iter::once(first).chain(others).collect()
    }

    /// Those of some architectures that its PTX is for.
    fn taken_by(&self, all: &'static [u32]) -> impl Iterator<Item = u32> {
        let least = self.newer().map_or(0, |newer| newer.0);
        all.iter().copied().filter(move |one| *one >= least)
    }

    fn ptx(&self) -> PathBuf {
        let folder = root().join(self.folder).join("ptx");
        folder.join(&self.name).with_extension("ptx")
    }
}

/// Files of a folder with an ending, by name.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == ending))
        .collect();
    files.sort();
    Ok(files)
}

fn modules() -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    for folder in FOLDERS {
        for path in files(&root().join(folder).join("cuda"), "cu")? {
            let name = path.file_stem().map(|stem| stem.display().to_string());
            modules.extend(name.map(|name| Module { folder, name }));
        }
    }
    Ok(modules)
}

/// FNV-1a of a module, all headers beside it and the options.
fn digest(module: &Module) -> Result<String> {
    let mut sources = vec![module.source()];
    sources.extend(files(&module.sources(), "cuh")?);
    if module.folder != FOLDERS[0] {
        sources.extend(files(&root().join(HEADERS), "cuh")?);
    }
    let mut text = module.options().join(" ");
    text += module.newer().map_or("", |newer| newer.1);
    for file in sources {
        text += &read(&file)?;
    }
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

fn venv() -> PathBuf {
    target_dir().join("kernels-venv")
}

/// A file of the installed packages.
fn installed(file: &str) -> Option<PathBuf> {
    let lib = std::fs::read_dir(venv().join("lib")).ok()?;
    lib.flatten()
        .map(|python| python.path().join("site-packages/nvidia").join(file))
        .find(|path| path.is_file())
}

fn nvrtc() -> Option<PathBuf> {
    installed("cuda_nvrtc/lib/libnvrtc.so.12")
}

fn ptxas() -> Option<PathBuf> {
    installed("cuda_nvcc/bin/ptxas")
}

fn nvdisasm() -> Option<PathBuf> {
    installed("cu13/bin/nvdisasm")
}

/// Installs the compiler; the disassembler, too, where that is possible.
fn install() -> Result {
    install_compiler()?;
    if nvdisasm().is_some() {
        return Ok(());
    }
    let done = pip(&["--no-deps", NVDISASM]);
    if let Err(why) = done {
        println!("no disassembler: {why}");
    }
    Ok(())
}

fn install_compiler() -> Result {
    if nvrtc().is_some() && ptxas().is_some() {
        return Ok(());
    }
    setup::python()?;
    println!("installing {NVRTC} and {PTXAS} below the target folder: the compiler of the kernels");
    run_command(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(venv()),
    )?;
    pip(&[NVRTC, PTXAS])
}

fn pip(what: &[&str]) -> Result {
    run_command(
        Command::new(venv().join("bin/pip"))
            .args(["install", "--quiet", "--timeout=20", "--retries=1"])
            .args(what),
    )
}

/// Unpacks a package for this platform into a folder, without what it depends on.
pub fn package(name: &str, folder: &Path) -> Result {
    install()?;
    let told = |e: std::io::Error| format!("{}: {e}", folder.display());
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(told)?;
    run_command(
        Command::new(venv().join("bin/pip"))
            .args(["install", "--quiet", "--timeout=20", "--retries=1"])
            .args([
                "--no-deps",
                "--only-binary=:all:",
                "--no-compile",
                "--target",
            ])
            .arg(folder)
            .arg(name),
    )
}

type Program = *mut c_void;

/// Compiles one module with NVRTC.
fn compile(module: &Module) -> Result<String> {
    let Some(path) = nvrtc() else {
        return Err("NVRTC is not installed".into());
    };
    // NVRTC opens its builtins by name, so they must be there before.
    let builtins = path.with_file_name("libnvrtc-builtins.so.12.0");
    // SAFETY: NVIDIA's libraries, whose initialisers do nothing to us.
    let _builtins = unsafe { libloading::Library::new(&builtins) }.map_err(|e| e.to_string())?;
    // SAFETY: as above.
    let library = unsafe { libloading::Library::new(&path) }.map_err(|e| e.to_string())?;
    let library = Nvrtc { library };
    let source = CString::new(read(&module.source())?).map_err(|e| e.to_string())?;
    let name = CString::new(format!("{}.cu", module.name)).map_err(|e| e.to_string())?;
    let include = |folder: PathBuf| format!("--include-path={}", folder.display());
    let options: std::result::Result<Vec<CString>, _> = module
        .options()
        .into_iter()
        .chain([include(module.sources()), include(root().join(HEADERS))])
        .map(CString::new)
        .collect();
    let options = options.map_err(|e| e.to_string())?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    type Create = unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
    let create = library.function::<Create>("nvrtcCreateProgram")?;
    let compile = library.function::<Compile>("nvrtcCompileProgram")?;
    let mut program: Program = std::ptr::null_mut();
    let none = std::ptr::null();
    // SAFETY: a place for a program; strings that end with zero; no headers.
    if unsafe { create(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none) } != 0 {
        return Err("NVRTC makes no program".into());
    }
    // SAFETY: as many options as told.
    let result = unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) };
    if result != 0 {
        return Err(library.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?);
    }
    let mut ptx = library.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")?;
    if let Some((_, version)) = module.newer() {
        ptx = ptx.replacen(".version 8.0", &format!(".version {version}"), 1);
    }
    let options = module.options().join(" ");
    Ok(format!(
        "// Made by cargo xtask kernels from {}/cuda/{}.cu with {NVRTC} {options}\n// source: {}\n{ptx}",
        module.folder,
        module.name,
        digest(module)?
    ))
}

struct Nvrtc {
    library: libloading::Library,
}

impl Nvrtc {
    fn function<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: callers name the types of NVRTC's header.
        let symbol = unsafe { self.library.get::<F>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|e| e.to_string())
    }

    /// A text of a program, by the functions for its size and for itself.
    fn text(&self, program: Program, size: &str, get: &str) -> Result<String> {
        let size = self.function::<unsafe extern "C" fn(Program, *mut usize) -> c_int>(size)?;
        let get = self.function::<unsafe extern "C" fn(Program, *mut c_char) -> c_int>(get)?;
        let mut bytes = 0;
        // SAFETY: a place for one number.
        let sized = unsafe { size(program, &mut bytes) };
        let mut text = vec![0u8; bytes + 1];
        // SAFETY: as much room as told.
        let got = unsafe { get(program, text.as_mut_ptr().cast()) };
        if sized != 0 || got != 0 {
            return Err("NVRTC gives no text".into());
        }
        let text = CStr::from_bytes_until_nul(&text).map_err(|e| e.to_string())?;
        Ok(text.to_string_lossy().into_owned())
    }
}
