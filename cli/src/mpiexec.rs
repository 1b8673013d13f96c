//! `mpiexec`: the options that launchers of MPI have in common, as those of `osier run`.
//!
//! The command is `osier` itself under another name. What would mean something else than is
//! done is refused, such as a host that is another machine. What has no effect is said once;
//! what `osier run` does anyway is accepted in silence, such as oversubscription.
//!
//! ```text
//! mpiexec GLOBAL... -n 1 -env K V ./a : -n 3 ./b
//!                   `-- section 0 -----´   `section 1´
//! ```
//! Options of a section hold for its ranks (`-n`, `-env`, `-wdir`), all others for the job,
//! wherever they stand.
//!
//! # Sources
//! MPI 5.0, section 11.5 (portable start of processes); the manuals of MPICH's Hydra and of
//! Open MPI's `mpirun` for what scripts use.

mod hosts;

use crate::run::Section;
use std::ffi::OsString;
use std::path::Path;

/// The names under which `osier` is a launcher of MPI.
pub fn is_ours(program: &OsString) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    ["mpiexec", "mpirun"].iter().any(|ours| name == *ours)
}

/// Options without a value that ask for what is done anyway.
pub const DONE_ANYWAY: &[&str] = &[
    "--oversubscribe",
    "-oversubscribe",
    "--allow-run-as-root",
    "-allow-run-as-root",
    "-envall",
    "-genvall",
    "-q",
    "--quiet",
];

/// Options that have no effect, with the number of their values.
const WITHOUT_EFFECT: &[(&str, usize)] = &[
    ("--use-hwthread-cpus", 0),
    ("-use-hwthread-cpus", 0),
    ("-ppn", 1),
    ("-perhost", 1),
    ("-N", 1),
    ("-launcher", 1),
    ("--map-by", 1),
    ("-map-by", 1),
    ("--mca", 2),
    ("-mca", 2),
];

/// Options that have no effect.
pub fn without_effect() -> impl Iterator<Item = &'static str> {
    WITHOUT_EFFECT.iter().map(|(option, _)| *option)
}

/// Variables in which other launchers look for a host file.
const HOST_FILES: &[&str] = &["HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"];

/// What `osier` is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The arguments behind its name, with the number of all ranks and the first program.
    pub arguments: Vec<OsString>,
    /// All programs, if there are several.
    pub sections: Vec<Section>,
    /// What to say of options without effect.
    pub notes: Vec<String>,
}

/// What is read from the words of the command line besides sections.
#[derive(Default)]
struct Words {
    /// Options of `osier run`.
    options: Vec<OsString>,
    /// Options of `mpiexec` that have no effect, once each.
    without_effect: Vec<String>,
    /// Whether the hosts were given.
    hosts: bool,
}

/// From the words of `mpiexec` to those of `osier`. Of the environment, which options
/// overrule, it reads `MPIEXEC_TIMEOUT`, host files and the size of a Slurm allocation.
///
/// # Errors
/// An option that is not known, or has no value; a machine that is not this one; a host file
/// that cannot be read.
pub fn translate(
    arguments: impl IntoIterator<Item = OsString>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Asked, String> {
    let mut all = Words::default();
    let mut sections: Vec<Section> = Vec::new();
    let mut given = arguments.into_iter().peekable();
    loop {
        let mut words = given.by_ref().take_while(|word| word != ":");
        match read(&mut words, &mut all)? {
            Read::Section(section) => sections.push(section),
            Read::Question(arguments) => {
                return Ok(Asked {
                    arguments,
                    ..Asked::default()
                });
            }
        }
        words.for_each(drop);
        if given.peek().is_none() {
            break;
        }
    }
    if !all.hosts {
        for name in HOST_FILES {
            if let Some(file) = variable(name).filter(|file| !file.is_empty()) {
                hosts::file_is_here(Path::new(&file)).map_err(|e| format!("{name}: {e}"))?;
            }
        }
    }
    let notes = notes(&all, variable);
    let mut options = all.options;
    // Whole seconds, as MPICH reads it; without a number, or below one, there is no limit.
    let timeout = variable("MPIEXEC_TIMEOUT");
    let limit = timeout.and_then(|text| text.trim().parse::<u32>().ok());
    if let Some(seconds) = limit.filter(|seconds| *seconds > 0)
        && !options.iter().any(|option| option == "--timeout")
    {
        let seconds = seconds.min(crate::run::MOST_SECONDS as u32);
        options.extend(["--timeout".into(), seconds.to_string().into()]);
    }
    let ranks: usize = sections.iter().map(|section| section.ranks).sum();
    let mut arguments: Vec<OsString> = vec!["run".into(), "-n".into(), ranks.to_string().into()];
    arguments.append(&mut options);
    let first = &sections[0];
    if sections.len() == 1 {
        for (key, value) in &first.env {
            arguments.extend(["--env".into(), pair(key, value)]);
        }
        if let Some(folder) = &first.wdir {
            arguments.extend(["--wdir".into(), folder.into()]);
        }
    }
    arguments.push("--".into());
    arguments.extend(first.command.iter().cloned());
    if sections.len() == 1 {
        sections.clear();
    }
    Ok(Asked {
        arguments,
        sections,
        notes,
    })
}

fn notes(all: &Words, variable: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut notes = Vec::new();
    if !all.without_effect.is_empty() {
        let options = all.without_effect.join(", ");
        notes.push(format!("without effect: {options}"));
    }
    let nodes = variable("SLURM_JOB_NUM_NODES").and_then(|text| text.parse::<u32>().ok());
    if let Some(nodes) = nodes.filter(|nodes| *nodes > 1)
        && !all.hosts
    {
        notes.push(format!(
            "all ranks run on this machine, and the allocation has {nodes} nodes"
        ));
    }
    notes
}

fn pair(key: &OsString, value: &OsString) -> OsString {
    let mut pair = key.clone();
    pair.push("=");
    pair.push(value);
    pair
}

enum Read {
    Section(Section),
    /// A question to the launcher, as the arguments that answer it.
    Question(Vec<OsString>),
}

/// Reads a section to its end. What holds for the job is added to `all`.
fn read(given: &mut impl Iterator<Item = OsString>, all: &mut Words) -> Result<Read, String> {
    let options = &mut all.options;
    let mut section = Section {
        ranks: 1,
        ..Section::default()
    };
    while let Some(argument) = given.next() {
        let Some(option) = argument.to_str().filter(|text| text.starts_with('-')) else {
            section.command.push(argument);
            section.command.extend(given);
            return Ok(Read::Section(section));
        };
        let mut value = || {
            let value = given.next();
            value.ok_or_else(|| format!("option {option} wants a value"))
        };
        match option {
            "-n" | "-np" | "--np" | "-c" | "--n" => {
                let text = value()?;
                let ranks = text.to_str().and_then(|text| text.parse().ok());
                section.ranks = ranks
                    .filter(|ranks| *ranks > 0)
                    .ok_or_else(|| format!("option {option} wants a number of ranks"))?;
            }
            "-env" | "--env" => section.env.push((value()?, value()?)),
            "-genv" | "--genv" => {
                let (key, to) = (value()?, value()?);
                options.extend(["--env".into(), pair(&key, &to)]);
            }
            "-x" => {
                // Without a value it is about our own variables, which ranks have anyway.
                let text = value()?;
                if text.to_string_lossy().contains('=') {
                    options.extend(["--env".into(), text]);
                }
            }
            "-l" | "-prepend-rank" | "--tag-output" => options.push("--label".into()),
            "-wdir" | "--wdir" | "-wd" => section.wdir = Some(value()?.into()),
            "-shared-heap" | "--shared-heap" => options.push("--shared-heap".into()),
            "-timeout" | "--timeout" => options.extend(["--timeout".into(), value()?]),
            // What follows the death of a rank: the end of the job, or nothing.
            "-disable-auto-cleanup" => options.extend(["--on-death".into(), "report".into()]),
            "-enable-auto-cleanup" => options.extend(["--on-death".into(), "kill".into()]),
            "-bind-to" | "--bind-to" => {
                let to = value()?;
                let how = match to.to_str() {
                    Some("none") => "none",
                    Some("core" | "hwthread") => "core",
                    _ => {
                        let asked = format!("{option} {}", to.display());
                        all.without_effect
                            .push(format!("{asked} (bound to a share)"));
                        "share"
                    }
                };
                options.extend(["--bind".into(), how.into()]);
            }
            "-host" | "--host" | "-hosts" | "--hosts" | "-H" => {
                hosts::list_is_here(&value()?.to_string_lossy())
                    .map_err(|e| format!("option {option}: {e}"))?;
                all.hosts = true;
            }
            "-f" | "-hostfile" | "--hostfile" | "-machinefile" | "--machinefile"
            | "--default-hostfile" => {
                hosts::file_is_here(Path::new(&value()?))
                    .map_err(|e| format!("option {option}: {e}"))?;
                all.hosts = true;
            }
            "-V" | "--version" | "-version" => return Ok(Read::Question(vec!["--version".into()])),
            "-h" | "-help" | "--help" => {
                return Ok(Read::Question(vec!["run".into(), "--help".into()]));
            }
            done if DONE_ANYWAY.contains(&done) => {}
            other if let Some((_, values)) = known(other) => {
                for _ in 0..*values {
                    value()?;
                }
                if !all.without_effect.iter().any(|said| said == other) {
                    all.without_effect.push(other.to_owned());
                }
            }
            other => {
                return Err(format!(
                    "unknown option {other} (hint: osier run --help lists what can be done)"
                ));
            }
        }
    }
    Err("no program (hint: mpiexec -n 4 ./program)".into())
}

fn known(option: &str) -> Option<&'static (&'static str, usize)> {
    WITHOUT_EFFECT.iter().find(|(name, _)| *name == option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked, String> {
        translate(line.split(' ').map(OsString::from), &|_| None)
    }

    fn of(line: &str) -> Result<String, String> {
        let words = asked(line)?.arguments;
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn the_usual_options() {
        for (given, wanted) in [
            ("./a", "run -n 1 -- ./a"),
            ("-n 4 ./a -n 3", "run -n 4 -- ./a -n 3"),
            ("-np 2 -l ./a", "run -n 2 --label -- ./a"),
            ("-env K V -n 2 ./a", "run -n 2 --env K=V -- ./a"),
            ("-genv K V -n 2 ./a", "run -n 2 --env K=V -- ./a"),
            ("-x K=V -x L -np 2 ./a", "run -n 2 --env K=V -- ./a"),
            ("--oversubscribe -n 9 -envall ./a", "run -n 9 -- ./a"),
            ("--mca btl self -n 2 ./a", "run -n 2 -- ./a"),
            (
                "-hosts localhost --bind-to core ./a",
                "run -n 1 --bind core -- ./a",
            ),
            ("-hosts localhost,localhost:2,::1 ./a", "run -n 1 -- ./a"),
            ("--shared-heap -n 2 a", "run -n 2 --shared-heap -- a"),
            ("-wdir /tmp -n 2 a", "run -n 2 --wdir /tmp -- a"),
            (
                "-disable-auto-cleanup -n 2 ./a",
                "run -n 2 --on-death report -- ./a",
            ),
            ("--version", "--version"),
        ] {
            assert_eq!(of(given).as_deref(), Ok(wanted), "{given}");
            assert!(asked(given).unwrap().sections.is_empty(), "{given}");
        }
        for wrong in [
            "-n 2",
            "-n",
            "-n 0 ./a",
            "-n many ./a",
            "--frobnicate ./a",
            "-n 1 ./a : -n 2",
            "-host elsewhere.invalid ./a",
            "-hostfile /nonexistent/hosts ./a",
            "-f /dev/zero ./a",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_limit_of_the_environment() {
        for (line, timeout, wanted) in [
            ("./a", "7", "run -n 1 --timeout 7 -- ./a"),
            ("-timeout 3 ./a", "7", "run -n 1 --timeout 3 -- ./a"),
            ("./a : ./b", "7", "run -n 2 --timeout 7 -- ./a"),
            ("./a", "0", "run -n 1 -- ./a"),
            ("./a", "-1", "run -n 1 -- ./a"),
            ("./a", "soon", "run -n 1 -- ./a"),
        ] {
            let variable = |name: &str| (name == "MPIEXEC_TIMEOUT").then(|| timeout.into());
            let asked = translate(line.split(' ').map(OsString::from), &variable);
            let words = asked.expect("a command").arguments;
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join(" "), wanted, "{line}, {timeout}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said_once() {
        let notes = |line| asked(line).expect("a command").notes;
        for quiet in ["--oversubscribe -q -n 2 ./a", "-host localhost ./a --mca"] {
            assert!(notes(quiet).is_empty(), "{quiet}");
        }
        assert_eq!(
            notes("--mca a b -ppn 2 ./a : --mca c d -n 2 --bind-to numa ./b"),
            ["without effect: --mca, -ppn, --bind-to numa (bound to a share)"]
        );
        let two = |name: &str| (name == "SLURM_JOB_NUM_NODES").then(|| "2".into());
        let asked = translate(["./a".into()], &two).expect("a command");
        assert_eq!(asked.notes.len(), 1);
        assert!(asked.notes[0].contains("2 nodes"), "{:?}", asked.notes);
        for name in HOST_FILES {
            let file = |asked: &str| (asked == *name).then(|| "/nonexistent/hosts".into());
            let e = translate(["./a".into()], &file).expect_err("no such file");
            assert!(e.contains(name), "{e}");
        }
    }

    #[test]
    fn several_programs() {
        let line = "-genv G 1 -n 1 -env K V ./a x : -l -n 3 -wdir /tmp ./b";
        assert_eq!(
            of(line).as_deref(),
            Ok("run -n 4 --env G=1 --label -- ./a x")
        );
        let section = |ranks, command: &[&str]| Section {
            ranks,
            command: command.iter().map(OsString::from).collect(),
            ..Section::default()
        };
        let first = Section {
            env: vec![("K".into(), "V".into())],
            ..section(1, &["./a", "x"])
        };
        let second = Section {
            wdir: Some("/tmp".into()),
            ..section(3, &["./b"])
        };
        assert_eq!(asked(line).unwrap().sections, [first, second]);
    }
}
