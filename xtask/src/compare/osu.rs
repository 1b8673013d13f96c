//! Programs of the OSU micro-benchmarks, built against each column from one folder of sources.
//!
//! Each library has a copy of the sources below the target folder, which is configured and
//! built once. Ranks are bound by the line that starts them, alike for all libraries: rank r
//! to core r modulo the number of cores. Releases since 5.4 take one size a run; of older ones
//! a run has all sizes.

use super::cases::Case;
use super::contestant::cores;
use super::sample::{Unit, Value, run_limited};
use crate::install;
use crate::setup;
use crate::steps::{Result, run, target_dir};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Starts a rank on its core.
const PIN: &str = "#!/bin/sh
rank=${OSIER_RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-0}}}}
cores=$1
shift
exec taskset -c $((rank % cores)) \"$@\"
";

/// OSU's programs, built against one library.
pub struct Osu {
    programs: BTreeMap<String, PathBuf>,
    ranged: Ranged,
    launcher: PathBuf,
    pin: PathBuf,
}

/// Which programs of a release take one size a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ranged {
    messages: bool,
    collectives: bool,
}

impl Ranged {
    /// By the options that the sources tell of.
    pub fn of(source: &Path) -> Self {
        let mut ranged = Self::default();
        for file in files(source) {
            let is_source = file.extension().is_some_and(|e| e == "c" || e == "h");
            let tells = || fs::read(&file).map(|text| tells_of_ranges(&text));
            if !is_source || !tells().unwrap_or(false) {
                continue;
            }
            let within = |folder: &str| file.components().any(|c| c.as_os_str() == folder);
            ranged.messages |= !within("collective");
            ranged.collectives |= !within("pt2pt");
        }
        ranged
    }

    /// Whether the program of a case does.
    pub fn takes(self, case: &Case) -> bool {
        match is_of_messages(case) {
            true => self.messages,
            false => self.collectives,
        }
    }
}

fn tells_of_ranges(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    // In a text of help, or as a long option of newer releases.
    text.contains("MIN:]MAX") || text.contains("{\"message-size\", required_argument")
}

fn is_of_messages(case: &Case) -> bool {
    matches!(
        case.bench,
        "osu_latency" | "osu_bw" | "osu_bibw" | "osu_mbw_mr"
    )
}

impl Osu {
    /// Against Osier, which is installed for it.
    pub fn of_osier(source: &Path) -> Result<Self> {
        let prefix = folder().join("osier-prefix");
        install::run(&install::Args::release(&prefix))?;
        let bin = prefix.join("bin");
        Self::build(
            source,
            "osier",
            &bin.join("mpicc"),
            &bin.join("mpicxx"),
            bin.join("mpiexec"),
        )
    }

    /// Against a peer. Wrappers are made here: Intel's has no valid paths in it, and all of
    /// them only add these.
    pub fn of_peer(source: &Path, name: &str, home: &Path) -> Result<Self> {
        let bin = folder().join(format!("{name}-bin"));
        fs::create_dir_all(&bin).map_err(|e| format!("{}: {e}", bin.display()))?;
        let (include, lib) = (home.join("include"), home.join("lib"));
        for (wrapper, compiler) in [("mpicc", "cc"), ("mpicxx", "c++")] {
            let file = bin.join(wrapper);
            let text = format!(
                "#!/bin/sh\nexec {compiler} -I'{0}' \"$@\" -L'{1}' -Wl,-rpath,'{1}' -lmpi\n",
                include.display(),
                lib.display()
            );
            executable(&file, &text)?;
        }
        Self::build(
            source,
            name,
            &bin.join("mpicc"),
            &bin.join("mpicxx"),
            home.join("bin/mpiexec"),
        )
    }

    fn build(
        source: &Path,
        name: &str,
        mpicc: &Path,
        mpicxx: &Path,
        launcher: PathBuf,
    ) -> Result<Self> {
        setup::cplusplus()?;
        if !setup::on_path("taskset") {
            return Err("taskset of util-linux is not here: it binds OSU's ranks".into());
        }
        let pin = folder().join("pin");
        executable(&pin, PIN)?;
        let copy = folder().join(name);
        let done = copy.join("built-for-compare");
        let said = source.display().to_string();
        if fs::read_to_string(&done).is_ok_and(|of| of == said) {
            return Ok(Self {
                programs: programs(&copy),
                ranged: Ranged::of(&copy),
                launcher,
                pin,
            });
        }
        println!("building OSU's programs against {name}");
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir_all(folder()).map_err(|e| format!("{}: {e}", folder().display()))?;
        run(Command::new("cp").arg("-a").arg(source).arg(&copy))?;
        let log = copy.join("compare.log");
        // Times of a checkout's files do not say that its configure is old.
        let line = "exec > compare.log 2>&1; set -e
find . -name aclocal.m4 -exec touch {} +; sleep 0.1
find . -name configure -exec touch {} +; find . -name '*.h.in' -exec touch {} +; sleep 0.1
find . -name Makefile.in -exec touch {} +
chmod +x configure; ./configure \"CC=$1\" \"CXX=$2\"; make -k -j || true";
        run_limited(
            Command::new("sh")
                .current_dir(&copy)
                .args(["-c", line, "sh"])
                .arg(mpicc)
                .arg(mpicxx),
        )
        .map_err(|e| format!("OSU's programs: {e} (hint: {})", log.display()))?;
        let programs = programs(&copy);
        if programs.is_empty() {
            return Err(format!(
                "none of OSU's programs was built (hint: {})",
                log.display()
            ));
        }
        fs::write(&done, said).map_err(|e| format!("{}: {e}", done.display()))?;
        Ok(Self {
            programs,
            ranged: Ranged::of(&copy),
            launcher,
            pin,
        })
    }

    /// What starts ranks.
    pub fn launcher(&self) -> &Path {
        &self.launcher
    }

    /// Whether this release has the program.
    pub fn has(&self, case: &Case) -> bool {
        self.programs.contains_key(case.bench)
    }

    /// Runs one program, with one size or with all.
    pub fn run(
        &self,
        mut command: Command,
        case: &Case,
        bytes: u64,
        quick: bool,
    ) -> Result<Vec<Value>> {
        let program = self
            .programs
            .get(case.bench)
            .ok_or_else(|| format!("no program {}", case.bench))?;
        command.arg(&self.pin).arg(cores().to_string()).arg(program);
        let ranged = self.ranged.takes(case);
        if ranged && bytes > 0 {
            command.args(["-m", &format!("{bytes}:{bytes}")]);
        }
        // An older osu_mbw_mr knows no numbers of iterations.
        if quick && (ranged || case.bench != "osu_mbw_mr") {
            command.args(["-i", "20", "-x", "2"]);
        }
        let (text, _) = run_limited(&mut command)?;
        let values = parse(case, &text);
        let wanted: Vec<Value> = values
            .into_iter()
            .filter(|value| case.runs().contains(&value.key.bytes))
            .filter(|value| bytes == 0 || value.key.bytes == bytes)
            .collect();
        match wanted.is_empty() {
            true => Err("printed no number".into()),
            false => Ok(wanted),
        }
    }
}

fn executable(file: &Path, text: &str) -> Result {
    let folder = folder();
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(file, text))
        .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(0o755)))
        .map_err(|e| format!("{}: {e}", file.display()))
}

fn folder() -> PathBuf {
    target_dir().join("compare/osu")
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(path),
                Ok(kind) if kind.is_file() => found.push(path),
                _ => {}
            }
        }
    }
    found
}

/// The programs below a folder, by name.
fn programs(folder: &Path) -> BTreeMap<String, PathBuf> {
    let is_program = |path: &Path| {
        path.extension().is_none()
            && fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o111 != 0)
    };
    files(folder)
        .into_iter()
        .filter(|path| is_program(path) && !path.components().any(|c| c.as_os_str() == ".libs"))
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            name.starts_with("osu_").then_some((name, path))
        })
        .collect()
}

/// The numbers of a table of OSU's: a size and one number or more, or, of barriers, a number.
fn parse(case: &Case, text: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let lines = text.lines().map(str::trim);
    for line in lines.filter(|line| !line.starts_with('#')) {
        let words: Option<Vec<f64>> = line.split_whitespace().map(|w| w.parse().ok()).collect();
        let Some(numbers) = words.filter(|numbers| !numbers.is_empty()) else {
            continue;
        };
        let bytes = numbers[0] as u64;
        match (case.bench, &numbers[..]) {
            ("osu_barrier", [micros, ..]) => values.push(Value::told(0, Unit::Micros, *micros)),
            ("osu_mbw_mr", [_, _, rate, ..]) => {
                values.push(Value::told(bytes, Unit::MessagesPerSecond, *rate));
            }
            ("osu_bw" | "osu_bibw", [_, rate, ..]) => {
                values.push(Value::told(bytes, Unit::MegabytesPerSecond, *rate));
            }
            (_, [_, micros, ..]) => values.push(Value::told(bytes, Unit::Micros, *micros)),
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::super::cases::cases;
    use super::*;

    fn parsed(bench: &str, text: &str) -> Vec<(u64, Unit, f64)> {
        let all = cases(&[2], true);
        let case = all.iter().find(|case| case.bench == bench).unwrap();
        let told = |v: Value| (v.key.bytes, v.key.unit, v.number());
        parse(case, text).into_iter().map(told).collect()
    }

    #[test]
    fn releases_are_told_apart() {
        let folder = std::env::temp_dir().join(format!("osier-osu-{}", std::process::id()));
        let file = folder.join("mpi/collective/osu_coll.c");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        assert_eq!(Ranged::of(&folder), Ranged::default());
        fs::write(&file, "  -m [MIN:]MAX").unwrap();
        let ranged = Ranged::of(&folder);
        assert!(ranged.collectives && !ranged.messages);
        let option = "{\"message-size\", required_argument, 0, 'm'},";
        fs::write(folder.join("osu_util_options.h"), option).unwrap();
        let all = cases(&[2], true);
        let mut osu = all.iter().filter(|case| case.is_osu());
        assert!(osu.all(|case| Ranged::of(&folder).takes(case)));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn tables_are_read() {
        let latency = "# OSU MPI Latency Test v7.4\n# Datatype: MPI_CHAR.\n\
                       # Size       Avg Latency(us)\n8                       0.21\n";
        let us = Unit::Micros;
        assert_eq!(parsed("osu_latency", latency), [(8, us, 0.21)]);
        let barrier = "# OSU MPI Barrier Latency Test v5.3\n# Avg Latency(us)\n            0.31\n";
        assert_eq!(parsed("osu_barrier", barrier), [(0, us, 0.31)]);
        let rate = "# Size                  MB/s        Messages/s\n8     80.00   10000000.00\n";
        let messages = Unit::MessagesPerSecond;
        assert_eq!(parsed("osu_mbw_mr", rate), [(8, messages, 1e7)]);
        let bandwidth = "# Size      Bandwidth (MB/s)\n1048576    9000.5\na warning\n";
        let megabytes = Unit::MegabytesPerSecond;
        assert_eq!(parsed("osu_bw", bandwidth), [(1 << 20, megabytes, 9000.5)]);
        assert_eq!(parsed("osu_bcast", "no table"), []);
    }
}
