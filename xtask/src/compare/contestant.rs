//! How each column is installed, built and launched.

use super::cases::{Case, Memory, RMA};
use super::datatype;
use super::hop::Hops;
use super::osu::Osu;
use super::sample::{Value, median, parse_array, parse_lines, run_limited};
use crate::install;
use crate::setup;
use crate::steps::{Result, root, run, target_dir};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of all programs in C.
const FLAGS: [&str; 3] = ["-O3", "-std=gnu11", "-o"];

/// A column of the table.
pub trait Contestant {
    /// Runs one case once, with messages of so many bytes.
    fn run(&self, case: &Case, bytes: u64, quick: bool) -> Result<Vec<Value>>;

    /// Whether it has this case.
    fn takes(&self, case: &Case) -> bool;

    /// Whether it has the datatypes.
    fn has_shapes(&self) -> bool {
        true
    }

    /// Starts ranks of a program of `benches/peers`; none of Osier's own columns.
    fn program(&self, _name: &str, _ranks: u32) -> Option<Command> {
        None
    }

    /// `osier bench`, of Osier's processes.
    fn command(&self) -> Option<Command> {
        None
    }

    /// Runs the datatypes that a file describes once; these are their names.
    fn shapes(&self, file: &Path, names: &[&str], quick: bool) -> Result<Vec<datatype::Line>>;
}

/// How Osier's own benchmark is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Processes, buffers where the case has them.
    Processes,
    /// Collectives with buffers in the shared heap.
    Heap,
    /// Ranks as threads of one process.
    Threads,
    /// What the machine could do, beside collectives.
    Floors,
}

/// Osier itself, through `osier bench`.
pub struct Osier {
    program: PathBuf,
    json: PathBuf,
    way: Way,
    osu: Option<Osu>,
    /// The program of accesses to windows, on the C library.
    rma: Option<PathBuf>,
}

impl Osier {
    /// Builds it in release, and measures the machine, as a user's first job does. A quick run
    /// goes on by costs that are there, where other work disturbs the measurement.
    pub fn build(hops: &mut Hops, quick: bool) -> Result<Self> {
        let program = crate::demo::build()?;
        let measured = hops.near(|| {
            run_limited(
                Command::new(&program)
                    .args(["model", "measure"])
                    .env("OSIER_MODEL", "cached"),
            )
        });
        match measured {
            Err(e) if quick => eprintln!("warning: no new costs: {e}"),
            measured => drop(measured?),
        }
        Self::at(program)
    }

    /// One that is built.
    pub fn at(program: PathBuf) -> Result<Self> {
        let folder = target_dir().join("xtask");
        std::fs::create_dir_all(&folder)
            .map_err(|e| format!("cannot make the folder {}: {e}", folder.display()))?;
        Ok(Self {
            program,
            json: folder.join("bench.json"),
            way: Way::Processes,
            osu: None,
            rma: None,
        })
    }

    /// The same build, run in another way.
    pub fn by(&self, way: Way) -> Self {
        Self {
            program: self.program.clone(),
            json: self.json.clone(),
            way,
            osu: None,
            rma: None,
        }
    }

    /// With the program of accesses to windows: the C library is installed for it.
    pub fn with_rma(self) -> Result<Self> {
        let folder = target_dir().join("compare/rma");
        let prefix = folder.join("prefix");
        install::run(&install::Args::release(&prefix))?;
        let program = folder.join(RMA);
        let source = root().join("benches/peers").join(format!("{RMA}.c"));
        let mut compiler = Command::new(prefix.join("bin/mpicc"));
        compiler.args(FLAGS).arg(&program).arg(source);
        run_limited(&mut compiler)?;
        Ok(Self {
            rma: Some(program),
            ..self
        })
    }

    /// With OSU's programs.
    pub fn with_osu(self, osu: Option<Osu>) -> Self {
        Self { osu, ..self }
    }

    /// Runs `osier bench` in the way of this column.
    fn bench(&self) -> Command {
        let mut command = Command::new(&self.program);
        if self.way == Way::Threads {
            command
                .args(["run", "-n", "2", "--ranks-per-process", "2"])
                .args(["--bind", "core", "--"])
                .arg(&self.program);
        }
        command.arg("bench");
        command
    }
}

impl Contestant for Osier {
    fn run(&self, case: &Case, bytes: u64, quick: bool) -> Result<Vec<Value>> {
        // An old file must not pass for the answer of a run that wrote none.
        let _ = std::fs::remove_file(&self.json);
        if let (true, Some(osu)) = (case.is_osu(), &self.osu) {
            let mut command = Command::new(osu.launcher());
            command
                .args(["-n", &case.ranks.to_string()])
                .env("OSIER_MODEL", "cached");
            return osu.run(command, case, bytes, quick);
        }
        if let (true, Some(rma)) = (case.is_rma(), &self.rma) {
            let mut command = Command::new(&self.program);
            command
                .args(["run", "-n", "2", "--bind", "none", "--"])
                .arg(rma)
                .args(access(case, bytes, quick))
                .env("OSIER_MODEL", "cached");
            return parse_lines(case.bench, &run_limited(&mut command)?.0);
        }
        let mut command = self.bench();
        match self.way {
            Way::Floors => command.args(["floors", "--of", case.bench]),
            _ => command.arg(case.bench),
        };
        command
            .arg("--json")
            .arg(&self.json)
            // By what was measured: cargo sets built-in costs for what it starts.
            .env("OSIER_MODEL", "cached")
            .args(match self.way {
                Way::Heap => Memory::Heap.options(),
                _ => case.memory.options(),
            });
        if bytes > 0 {
            command.args(["--sizes", &bytes.to_string()]);
        }
        let asks = case.is_collective() || matches!(case.bench, "multi-pair" | "threads");
        if asks && matches!(self.way, Way::Processes | Way::Heap) {
            command.args(["--ranks", &case.ranks.to_string()]);
        }
        if case.layout != "contiguous" {
            command.args(["--layout", case.layout]);
        }
        run_limited(&mut command)?;
        let text = std::fs::read_to_string(&self.json)
            .map_err(|e| format!("wrote no JSON to {}: {e}", self.json.display()))?;
        parse_array(case.bench, &text)
    }

    fn takes(&self, case: &Case) -> bool {
        let two = case.is_collective() && case.ranks == 2;
        match self.way {
            Way::Processes if case.is_rma() => self.rma.is_some(),
            Way::Processes => !case.is_osu() || self.osu.as_ref().is_some_and(|osu| osu.has(case)),
            Way::Heap => two && case.bench != "barrier",
            Way::Threads | Way::Floors => two,
        }
    }

    fn has_shapes(&self) -> bool {
        self.way == Way::Processes
    }

    fn command(&self) -> Option<Command> {
        (self.way == Way::Processes).then(|| self.bench())
    }

    fn shapes(&self, _: &Path, names: &[&str], quick: bool) -> Result<Vec<datatype::Line>> {
        let _ = std::fs::remove_file(&self.json);
        let mut command = Command::new(&self.program);
        command
            .args(["bench", datatype::NAME, "--shapes", &names.join(",")])
            .arg("--json")
            .arg(&self.json);
        if quick {
            command.args(["--repetitions", "1", "--iterations", "3"]);
        }
        run_limited(&mut command)?;
        let text = std::fs::read_to_string(&self.json)
            .map_err(|e| format!("wrote no JSON to {}: {e}", self.json.display()))?;
        datatype::parse(&text)
    }
}

/// A peer from Python packages, in an environment of its own: the packages
/// overwrite each other's `mpiexec` and `libmpi.so` in a shared one.
pub struct Peer {
    name: &'static str,
    home: PathBuf,
    osu: Option<Osu>,
}

impl Peer {
    /// Installs it unless it is there, and builds the programs against it.
    pub fn install(name: &'static str) -> Result<Self> {
        setup::linker()?;
        setup::python()?;
        let home = target_dir().join("peers").join(name);
        let done = home.join("installed");
        if !done.is_file() {
            println!("installing {name} with pip into {}", home.display());
            run(Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&home))?;
            run(Command::new(home.join("bin/pip"))
                .args(["install", "--quiet", "--disable-pip-version-check"])
                .args(packages(name)))?;
            std::fs::write(&done, "").map_err(|e| format!("{}: {e}", done.display()))?;
        }
        build_programs(name, &home)?;
        Ok(Self {
            name,
            home,
            osu: None,
        })
    }

    /// Builds OSU's programs against it, too.
    pub fn with_osu(self, source: &Path) -> (Self, Result) {
        match Osu::of_peer(source, self.name, &self.home) {
            Ok(osu) => (
                Self {
                    osu: Some(osu),
                    ..self
                },
                Ok(()),
            ),
            Err(e) => (self, Err(e)),
        }
    }

    /// Its name and version, as pip has them.
    pub fn version(&self) -> String {
        let package = packages(self.name)[0].replace('-', "_");
        let folders = std::fs::read_dir(self.home.join("lib"))
            .into_iter()
            .flatten();
        let packages = folders
            .flatten()
            .filter_map(|python| std::fs::read_dir(python.path().join("site-packages")).ok());
        let names = packages
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let version = names
            .filter_map(|name| {
                let version = name.strip_suffix(".dist-info")?.strip_prefix(&package)?;
                Some(version.strip_prefix('-')?.to_owned())
            })
            .next();
        format!("{} {}", self.name, version.as_deref().unwrap_or("?"))
    }

    /// The launcher with its options. All peers leave binding of benchmark
    /// programs to the programs themselves, which do it alike.
    fn launcher(&self, ranks: u32) -> Command {
        let mut command = Command::new(self.home.join("bin/mpiexec"));
        command.args(["-n", &ranks.to_string()]);
        match self.name {
            "openmpi" => {
                command
                    .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                    .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                    .args(["--oversubscribe", "--bind-to", "none"]);
            }
            "intelmpi" => {
                // shm: otherwise it looks for network cards first.
                command
                    .env("I_MPI_ROOT", &self.home)
                    .env("I_MPI_FABRICS", "shm");
            }
            _ => {}
        }
        command
    }
}

/// Options of the program of accesses to windows.
fn access(case: &Case, bytes: u64, quick: bool) -> Vec<String> {
    let name = case.bench.trim_start_matches("rma-");
    let repetitions = if quick { "3" } else { "9" };
    [
        ["--collective", name],
        ["--memory", case.memory.name()],
        ["--sizes", &bytes.to_string()],
        ["--repetitions", repetitions],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}

fn packages(name: &str) -> &'static [&'static str] {
    match name {
        "openmpi" => &["openmpi"],
        "mpich" => &["mpich"],
        _ => &["impi-rt", "impi-devel"],
    }
}

impl Contestant for Peer {
    fn run(&self, case: &Case, bytes: u64, quick: bool) -> Result<Vec<Value>> {
        if let (true, Some(osu)) = (case.is_osu(), &self.osu) {
            return osu.run(self.launcher(case.ranks), case, bytes, quick);
        }
        let program = self.home.join("programs").join(case.program);
        let launch = || {
            let mut command = self.launcher(case.ranks);
            command.arg(&program);
            command
        };
        if case.bench == "launch" {
            let mut millis = Vec::new();
            for _ in 0..if quick { 1 } else { 5 } {
                let (_, took) = run_limited(&mut launch())?;
                millis.push(took.as_secs_f64() * 1e3);
            }
            millis.sort_by(f64::total_cmp);
            return Ok(vec![Value::launch(median(&millis))]);
        }
        let mut command = launch();
        if case.is_rma() {
            command.args(access(case, bytes, quick));
            return parse_lines(case.bench, &run_limited(&mut command)?.0);
        }
        command
            .args(["--sizes", &bytes.to_string(), "--layout", case.layout])
            .args(case.memory.options());
        if case.is_collective() {
            command.args(["--collective", case.bench]);
        }
        if case.bench == "threads" {
            command.args(["--threads", &cores().to_string()]);
        }
        if quick {
            command.args(["--repetitions", "3"]);
        }
        let (text, _) = run_limited(&mut command)?;
        parse_lines(case.bench, &text)
    }

    fn takes(&self, case: &Case) -> bool {
        !case.is_osu() || self.osu.as_ref().is_some_and(|osu| osu.has(case))
    }

    fn program(&self, name: &str, ranks: u32) -> Option<Command> {
        let mut command = self.launcher(ranks);
        command.arg(self.home.join("programs").join(name));
        Some(command)
    }

    fn shapes(&self, file: &Path, _: &[&str], quick: bool) -> Result<Vec<datatype::Line>> {
        let mut command = self.launcher(2);
        command.arg(self.home.join("programs").join(datatype::NAME));
        datatype::options(&mut command, file, quick);
        let (text, _) = run_limited(&mut command)?;
        datatype::parse(&text)
    }
}

/// As many threads as `osier bench threads` takes by itself.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Builds every C file of `benches/peers` with the same compiler and flags,
/// unless nothing there has changed since. The compiler wrappers of the
/// packages are passed over: Intel's has no valid paths in it, and all of them
/// only add these.
fn build_programs(name: &str, home: &Path) -> Result {
    let source = root().join("benches/peers");
    let programs = home.join("programs");
    std::fs::create_dir_all(&programs)
        .map_err(|e| format!("cannot make the folder {}: {e}", programs.display()))?;
    let entries = std::fs::read_dir(&source).map_err(|e| format!("{}: {e}", source.display()))?;
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let changed = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let newest = files.iter().filter_map(|path| changed(path)).max();
    let lib = home.join("lib");
    for path in &files {
        let program = programs.join(path.file_stem().unwrap_or_default());
        if path.extension().is_none_or(|e| e != "c") || changed(&program) > newest {
            continue;
        }
        println!(
            "building {} against {name}",
            path.file_name().unwrap_or_default().display()
        );
        run_limited(
            Command::new("cc")
                .args(FLAGS)
                .arg(program)
                .arg(path)
                .arg(format!("-I{}", home.join("include").display()))
                .arg(format!("-L{}", lib.display()))
                .arg(format!("-Wl,-rpath,{}", lib.display()))
                .args(["-lmpi", "-pthread"]),
        )?;
    }
    Ok(())
}
