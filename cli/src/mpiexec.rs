//! `mpiexec`: the options that launchers of MPI have in common, as those of `osier run`.
//!
//! The command is `osier` itself under another name. What one machine has no use for is
//! accepted and does nothing (host files, oversubscription); what would mean something else
//! than is done is refused.
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

use crate::run::Section;
use std::ffi::OsString;
use std::path::Path;

/// The names under which `osier` is a launcher of MPI.
pub fn is_ours(program: &OsString) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    ["mpiexec", "mpirun"].iter().any(|ours| name == *ours)
}

/// Options without a value that change nothing on one machine.
const IGNORED: &[&str] = &[
    "--oversubscribe",
    "-oversubscribe",
    "--allow-run-as-root",
    "-allow-run-as-root",
    "--use-hwthread-cpus",
    "-envall",
    "-genvall",
    "-q",
    "--quiet",
];

/// Options with a value that change nothing on one machine.
const IGNORED_VALUE: &[&str] = &[
    "-f",
    "-hostfile",
    "--hostfile",
    "-machinefile",
    "--machinefile",
    "-ppn",
    "-launcher",
    "--map-by",
    "-map-by",
];

/// What `osier` is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The arguments behind its name, with the number of all ranks and the first program.
    pub arguments: Vec<OsString>,
    /// All programs, if there are several.
    pub sections: Vec<Section>,
}

/// From the words of `mpiexec` to those of `osier`. `timeout` is `MPIEXEC_TIMEOUT`, which
/// an option overrules.
///
/// # Errors
/// An option that is not known, or has no value; a machine that is not this one.
pub fn translate(
    arguments: impl IntoIterator<Item = OsString>,
    timeout: Option<&str>,
) -> Result<Asked, String> {
    let mut options: Vec<OsString> = Vec::new();
    let mut sections: Vec<Section> = Vec::new();
    let mut given = arguments.into_iter().peekable();
    loop {
        let mut words = given.by_ref().take_while(|word| word != ":");
        match read(&mut words, &mut options)? {
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
    // Whole seconds, as MPICH reads it; without a number, or below one, there is no limit.
    let limit = timeout.and_then(|text| text.trim().parse::<u32>().ok());
    if let Some(seconds) = limit.filter(|seconds| *seconds > 0)
        && !options.iter().any(|option| option == "--timeout")
    {
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
    })
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

/// Reads a section to its end. What holds for the job is added to `options`.
fn read(
    given: &mut impl Iterator<Item = OsString>,
    options: &mut Vec<OsString>,
) -> Result<Read, String> {
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
            "-timeout" | "--timeout" => options.extend(["--timeout".into(), value()?]),
            // What follows the death of a rank: the end of the job, or nothing.
            "-disable-auto-cleanup" => options.extend(["--on-death".into(), "report".into()]),
            "-enable-auto-cleanup" => options.extend(["--on-death".into(), "kill".into()]),
            "-bind-to" | "--bind-to" => {
                let to = value()?;
                let how = match to.to_str() {
                    Some("none") => "none",
                    Some("core" | "hwthread") => "core",
                    _ => "share",
                };
                options.extend(["--bind".into(), how.into()]);
            }
            "-host" | "--host" | "-hosts" | "--hosts" | "-H" => are_here(&value()?)?,
            "-V" | "--version" | "-version" => return Ok(Read::Question(vec!["--version".into()])),
            "-h" | "-help" | "--help" => {
                return Ok(Read::Question(vec!["run".into(), "--help".into()]));
            }
            ignored if IGNORED.contains(&ignored) => {}
            "--mca" | "-mca" => drop((value()?, value()?)),
            ignored if IGNORED_VALUE.contains(&ignored) => drop(value()?),
            other => {
                return Err(format!(
                    "unknown option {other} (hint: osier run --help lists what can be done)"
                ));
            }
        }
    }
    Err("no program (hint: mpiexec -n 4 ./program)".into())
}

/// That all machines of a list are this one.
fn are_here(list: &OsString) -> Result<(), String> {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own = own.trim();
    let list = list.to_string_lossy();
    for host in list.split(',') {
        // HOST:N says how many ranks it may have.
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let short = own.split('.').next().unwrap_or(own);
        let here = ["localhost", "127.0.0.1", "::1", own, short];
        if !here.contains(&name) && !here.contains(&host) {
            return Err(format!(
                "host {name} is not this machine ({own}), and ranks run on one machine so far"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked, String> {
        translate(line.split(' ').map(OsString::from), None)
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
                "-hostfile h --bind-to core ./a",
                "run -n 1 --bind core -- ./a",
            ),
            ("-hosts localhost,localhost:2,::1 ./a", "run -n 1 -- ./a"),
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
            "-host elsewhere.example ./a",
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
            let asked = translate(line.split(' ').map(OsString::from), Some(timeout));
            let words = asked.expect("a command").arguments;
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join(" "), wanted, "{line}, {timeout}");
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
