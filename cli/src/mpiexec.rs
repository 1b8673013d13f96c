//! `mpiexec`: the options that launchers of MPI have in common, as those of `osier run`.
//!
//! The command is `osier` itself under another name. What one machine has no use for is
//! accepted and does nothing (host files, oversubscription); what would mean something else
//! than is done is refused.
//!
//! # Sources
//! MPI 5.0, section 11.5 (portable start of processes); the manuals of MPICH's Hydra and of
//! Open MPI's `mpirun` for what scripts use.

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
    "-host",
    "--host",
    "-hosts",
    "-ppn",
    "-launcher",
    "--map-by",
    "-map-by",
    "--mca",
];

/// The arguments of `osier`, behind its name.
///
/// # Errors
/// An option that is not known, or has no value.
pub fn translate(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut given = arguments.into_iter();
    let mut options: Vec<OsString> = Vec::new();
    let mut ranks = OsString::from("1");
    while let Some(argument) = given.next() {
        let Some(option) = argument.to_str().filter(|text| text.starts_with('-')) else {
            let mut all: Vec<OsString> = vec!["run".into(), "-n".into(), ranks];
            all.append(&mut options);
            all.push("--".into());
            all.push(argument);
            all.extend(given);
            if all.iter().any(|part| part == ":") {
                return Err(
                    "several programs in one job, separated by ':', are not offered".into(),
                );
            }
            return Ok(all);
        };
        let mut value = || {
            let value = given.next();
            value.ok_or_else(|| format!("option {option} wants a value"))
        };
        let mut set = |key: OsString, value: OsString| {
            let mut pair = key;
            pair.push("=");
            pair.push(value);
            options.extend(["--env".into(), pair]);
        };
        match option {
            "-n" | "-np" | "--np" | "-c" | "--n" => ranks = value()?,
            "-env" | "-genv" | "--genv" => {
                let key = value()?;
                let to = given.next().ok_or("option -env wants a name and a value")?;
                set(key, to);
            }
            "-x" => {
                let pair = value()?;
                let text = pair.to_string_lossy().into_owned();
                match text.split_once('=') {
                    Some((key, to)) => set(key.into(), to.into()),
                    // Ranks have our environment.
                    None => drop(std::env::var_os(&text)),
                }
            }
            "-l" | "-prepend-rank" | "--tag-output" => options.push("--label".into()),
            "-wdir" | "--wdir" | "-wd" => options.extend(["--wdir".into(), value()?]),
            "-timeout" | "--timeout" => options.extend(["--timeout".into(), value()?]),
            "-bind-to" | "--bind-to" => {
                let to = value()?;
                let how = match to.to_str() {
                    Some("none") => "none",
                    Some("core" | "hwthread") => "core",
                    _ => "share",
                };
                options.extend(["--bind".into(), how.into()]);
            }
            "-V" | "--version" | "-version" => return Ok(vec!["--version".into()]),
            "-h" | "-help" | "--help" => return Ok(vec!["run".into(), "--help".into()]),
            ignored if IGNORED.contains(&ignored) => {}
            "--mca" => drop((value()?, given.next())),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<String, String> {
        let words = line.split(' ').map(OsString::from);
        let all = translate(words)?;
        Ok(all
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" "))
    }

    #[test]
    fn the_usual_options() {
        for (given, wanted) in [
            ("./a", "run -n 1 -- ./a"),
            ("-n 4 ./a -n 3", "run -n 4 -- ./a -n 3"),
            ("-np 2 -l ./a", "run -n 2 --label -- ./a"),
            ("-env K V -n 2 ./a", "run -n 2 --env K=V -- ./a"),
            ("-x K=V -np 2 ./a", "run -n 2 --env K=V -- ./a"),
            ("--oversubscribe -n 9 ./a", "run -n 9 -- ./a"),
            ("--mca btl self -n 2 ./a", "run -n 2 -- ./a"),
            (
                "-hostfile h --bind-to core ./a",
                "run -n 1 --bind core -- ./a",
            ),
            ("-wdir /tmp -n 2 a", "run -n 2 --wdir /tmp -- a"),
        ] {
            assert_eq!(of(given).as_deref(), Ok(wanted), "{given}");
        }
        for wrong in ["-n 2", "-n", "--frobnicate ./a", "-n 1 ./a : -n 2 ./b"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
