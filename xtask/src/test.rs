//! `check` and `test`: what CI runs, step by step.

use crate::lacks::Lacks;
use crate::scan;
use crate::setup;
use crate::steps::{
    Result, Steps, cargo, root, run as run_command, run_tests, succeeds, target_dir,
};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Miri interprets, so a new slow test must not eat the CI's time unnoticed.
const MIRI_SECONDS: &str = "240";

/// A tenth of the quick tests' trees: the sanitizer takes a few times as long.
const SANITIZED_TREES: &str = "10000";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Formatting, clippy, rustdoc; PTX against the source of the kernels
    Check,
    /// All tests of the workspace, documentation tests included
    Unit,
    /// The lock-free objects under loom's model checker
    Loom,
    /// Tests named miri_ under Miri
    Miri,
    /// Pack and unpack under the address sanitizer; the device's kernels, compiled
    /// for the host, under the sanitizers of addresses and undefined behaviour
    Sanitizer,
    /// A small run of the main job
    Demo,
}

/// Options of `test`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask test
  cargo xtask test --only check,unit")]
pub struct Args {
    /// Run these parts only
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
}

/// `cargo xtask check`.
pub fn check() -> Result {
    let mut steps = Steps::default();
    check_steps(&mut steps);
    steps.finish()
}

/// `cargo xtask test`.
pub fn run(args: &Args) -> Result {
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut steps = Steps::default();
    if wanted(Part::Check) {
        check_steps(&mut steps);
    }
    if wanted(Part::Check) {
        crate::kernels::check_steps(&mut steps);
    }
    if wanted(Part::Unit) {
        let mut lacks = None;
        steps.step("unit", || {
            setup::cplusplus()?;
            if let Err(e) = setup::valgrind() {
                println!("without valgrind: {e}");
            }
            if let Err(e) = setup::hosts() {
                println!("without hosts: {e}");
            }
            let lacks = lacks.insert(Lacks::here());
            // Tests alone leave no libraries beside the programs that load them, the
            // emulated driver's among them. Without --tests cargo would choose other
            // features, and compile everything twice.
            run_command(cargo().args(["build", "--workspace", "--lib", "--bins", "--tests"]))?;
            run_tests(cargo().env("OSIER_TEST", lacks.asked()).args([
                "test",
                "--workspace",
                "--no-fail-fast",
            ]))
        });
        for (key, why) in lacks.iter().flat_map(Lacks::iter) {
            steps.skip(&format!("unit: {key}"), why);
        }
        hwloc(&mut steps);
    }
    if wanted(Part::Loom) {
        loom(&mut steps);
    }
    if wanted(Part::Miri) {
        miri(&mut steps);
    }
    if wanted(Part::Sanitizer) {
        sanitizer(&mut steps);
        kernel_sanitizer(&mut steps);
    }
    if wanted(Part::Demo) {
        if root().join("examples/src/bin").is_dir() {
            steps.step("demo", crate::demo::smoke);
        } else {
            steps.skip("demo", "examples has no program yet");
        }
    }
    steps.finish()
}

fn check_steps(steps: &mut Steps) {
    steps.step("set-up", || {
        setup::linker()?;
        setup::cplusplus()?;
        setup::lints()
    });
    steps.step("format", || {
        run_command(cargo().args(["fmt", "--all", "--check"]))
    });
    steps.step("invariants", crate::invariants::check);
    steps.step("layers", crate::layers::check);
    steps.step("docs", crate::docs::check);
    steps.step("clippy", || {
        run_command(cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    });
    // Of the features by default one is `gpu`.
    steps.step("without gpu", || {
        let without = ["--no-default-features", "-p"];
        let kernels = ["osier-kernels", "--test", "without_gpu"];
        run_command(cargo().arg("test").args(without).args(kernels))?;
        run_command(cargo().arg("check").args(without).arg("osier-cli"))?;
        run_command(cargo().arg("check").args(without).arg("osier-capi"))
    });
    steps.step("rustdoc", || {
        run_command(cargo().env("RUSTDOCFLAGS", "-D warnings").args([
            "doc",
            "--workspace",
            "--no-deps",
        ]))
    });
}

/// What the feature of that name adds, where its libraries are.
fn hwloc(steps: &mut Steps) {
    let found = ["hwloc", "libudev"]
        .iter()
        .all(|library| succeeds(Command::new("pkg-config").args(["--exists", library])));
    if !found {
        let why = "needs libraries (hint: apt-get install libhwloc-dev libudev-dev pkg-config)";
        return steps.skip("hwloc", why);
    }
    steps.step("hwloc", || {
        let feature = [
            "-p",
            "osier",
            "--features",
            "hwloc",
            "--lib",
            "--",
            "model::",
        ];
        run_command(cargo().arg("test").args(feature))
    });
}

fn loom(steps: &mut Steps) {
    // One build for all.
    const PACKAGES: [(&str, &str); 3] = [
        ("osier-transports", "transports/src"),
        ("osier-engine", "engine/src"),
        ("osier-tasks", "tasks/src"),
    ];
    steps.step("loom", || {
        for (package, folder) in PACKAGES {
            if !mentions(&root().join(folder), "loom::model") {
                return Err(format!("{package} has no loom test (hint: did it move?)"));
            }
        }
        let packages = PACKAGES.iter().flat_map(|(package, _)| ["-p", package]);
        run_command(
            cargo()
                .env("RUSTFLAGS", "--cfg loom")
                .env("CARGO_TARGET_DIR", target_dir().join("loom"))
                // Models that say nothing of their own.
                .env("LOOM_MAX_PREEMPTIONS", "3")
                // The models are quick, building them should be, too.
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
                .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                .args(["test", "--release"])
                .args(packages)
                .args(["--lib", "loom"]),
        )
    });
}

fn miri(steps: &mut Steps) {
    let toolchain = [None, Some("+nightly")]
        .into_iter()
        .find(|toolchain| succeeds(rustup_cargo(*toolchain).args(["miri", "--version"])));
    let Some(toolchain) = toolchain else {
        steps.skip("miri", "no installed toolchain has Miri");
        return;
    };
    if !mentions(&root().join("datatype/src"), "fn miri_") {
        steps.skip("miri", "datatype has no test named miri_");
        return;
    }
    steps.step("miri", || {
        let mut command = Command::new("timeout");
        command
            .current_dir(root())
            .env("CARGO_TARGET_DIR", target_dir().join("miri"))
            .args([MIRI_SECONDS, "cargo"])
            .args(toolchain)
            .args(["miri", "test", "-p", "osier-datatype", "--lib", "miri_"]);
        run_command(&mut command)
    });
}

/// Random types under the address sanitizer, which nightly compilers have.
fn sanitizer(steps: &mut Steps) {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        steps.skip("sanitizer", "set up for x86-64 Linux only");
        return;
    }
    if !succeeds(rustup_cargo(Some("+nightly")).arg("--version")) {
        steps.skip("sanitizer", "no nightly toolchain is installed");
        return;
    }
    steps.step("sanitizer", || {
        let mut command = Command::new("cargo");
        command
            .current_dir(root())
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env("CARGO_TARGET_DIR", target_dir().join("sanitizer"))
            .env("OSIER_TEST", format!("trees={SANITIZED_TREES}"))
            .args(["+nightly", "test", "-p", "osier-datatype"])
            .args(["--target", "x86_64-unknown-linux-gnu"])
            .args(["--lib", "--test", "trees", "--test", "respellings"])
            .args(["--test", "random"]);
        run_command(&mut command)
    });
}

/// The device's tests on the emulated driver, with kernels that check every access, to
/// the byte, and their arithmetic.
fn kernel_sanitizer(steps: &mut Steps) {
    const STEP: &str = "sanitizer kernels";
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return steps.skip(STEP, "set up for x86-64 Linux only");
    }
    let Some(libasan) = compilers_library("libasan.so") else {
        return steps.skip(STEP, "the C++ compiler has no libasan");
    };
    steps.step(STEP, || {
        setup::cplusplus()?;
        let folder = target_dir().join("kernel-sanitizer");
        let kernels = folder.join("libkernels.so");
        let compiled = scan::compile(
            &root().join("kernels/cuda"),
            &root().join("emulated-cuda/shim"),
            &folder,
            scan::SANITIZERS,
        )?;
        scan::link(&compiled, scan::SANITIZERS, &kernels)?;
        println!("{} kernels with sanitizers", compiled.names.len());
        for test in built_tests("kernels", &["device", "parts", "reduce", "trees"])? {
            run_command(
                Command::new(test)
                    .current_dir(root().join("kernels"))
                    .env("OSIER_EMULATED_KERNELS", &kernels)
                    // The sanitizer's library comes first.
                    .env("LD_PRELOAD", &libasan)
                    // Signals are the driver's, and what a process keeps is no leak.
                    .env(
                        "ASAN_OPTIONS",
                        "detect_leaks=0:handle_segv=0:handle_sigbus=0:use_sigaltstack=0",
                    )
                    .env("UBSAN_OPTIONS", "print_stacktrace=1")
                    .env("OSIER_TEST", format!("trees={SANITIZED_TREES}")),
            )?;
        }
        Ok(())
    });
}

/// What cargo says of a target that it has built.
#[derive(serde::Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(serde::Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Executables of the tests of a folder's package. All of the workspace is built, as in
/// the step "unit": with fewer targets cargo would choose other features, and compile
/// everything again.
fn built_tests(folder: &str, names: &[&str]) -> std::result::Result<Vec<PathBuf>, String> {
    let mut build = cargo();
    build.args([
        "test",
        "--workspace",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let output = build
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("building the tests ended with {}", output.status));
    }
    let manifest = root().join(folder).join("Cargo.toml");
    let text = String::from_utf8_lossy(&output.stdout);
    let tests: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|built| built.manifest_path.as_ref() == Some(&manifest))
        .filter(|built| {
            let wanted =
                |t: &Target| t.kind.iter().any(|k| k == "test") && names.contains(&t.name.as_str());
            built.target.as_ref().is_some_and(wanted)
        })
        .filter_map(|built| built.executable)
        .collect();
    match tests.len() == names.len() {
        true => Ok(tests),
        false => Err(format!(
            "{} of {folder}: cargo has built {tests:?}",
            names.join(", ")
        )),
    }
}

/// A library that the C++ compiler brings along.
pub fn compilers_library(name: &str) -> Option<PathBuf> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let answer = Command::new(compiler)
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim());
    // The bare name comes back where there is none.
    path.is_absolute().then_some(path)
}

/// The cargo of PATH: only rustup's understands `+toolchain`.
fn rustup_cargo(toolchain: Option<&str>) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root()).args(toolchain);
    command
}

/// True when a Rust file below `folder` contains `text`.
fn mentions(folder: &Path, text: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            mentions(&path, text)
        } else {
            path.extension().is_some_and(|e| e == "rs")
                && std::fs::read_to_string(&path).is_ok_and(|source| source.contains(text))
        }
    })
}
