//! The lists of MPICH's tests: `testlist` of each folder, and `testlist.dtp`, of derived
//! datatypes.
//!
//! # Sources
//! pmodels/mpich, `test/mpi/runtests` and `test/mpi/README`: what a line of a list means.

use super::{Site, Test, shell};
use crate::steps::Result;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Folders of what Osier has. Files, spawning and Fortran are not there;
/// `ft`, `impls` and `mpi_t` are of MPICH alone.
const FOLDERS: [&str; 28] = [
    "attr",
    "coll",
    "comm",
    "datatype",
    "errhan",
    "errors/attr",
    "errors/coll",
    "errors/comm",
    "errors/datatype",
    "errors/group",
    "errors/pt2pt",
    "errors/rma",
    "errors/session",
    "errors/topo",
    "group",
    "info",
    "init",
    "part",
    "pt2pt",
    "rma",
    "session",
    "threads/coll",
    "threads/comm",
    "threads/init",
    "threads/part",
    "threads/pt2pt",
    "threads/rma",
    "topo",
];

/// Lists of a folder, and how the table names them.
const LISTS: [(&str, &str); 2] = [("testlist", ""), ("testlist.dtp", ", derived datatypes")];

/// Seconds of a line that names none.
const LIMIT: u64 = 60;

/// Lines that are not run, and why.
const LEFT_OUT: [&str; 4] = [
    // They make communicators until that fails, which it does not here.
    "too_many_",
    // Sends that are cancelled wait for ever.
    "scancel",
    // Messages of several GB.
    "large",
    "huge",
];

/// Configures and builds the programs of the folders. `top` has all sources; a clone of them takes
/// autoconf, automake and libtool, and what MPICH's own autogen.sh would put into the folder.
pub fn build(site: &Site<'_>, top: Option<&Path>, only: Option<&str>) -> Result {
    println!("==> mpich: build");
    for (from, to) in [
        ("confdb", "confdb"),
        ("confdb", "dtpools/confdb"),
        ("maint/version.m4", "version.m4"),
    ] {
        let from = top.map(|top| top.join(from)).filter(|from| from.exists());
        if let Some(from) = from {
            let from = from.display();
            shell::must(site, &format!("test -e {to} || cp -r '{from}' {to}"))?;
        }
    }
    let set_up = "test -f configure || ./autogen.sh
test -f Makefile || ./configure CC=mpicc --disable-fortran --disable-cxx --with-mpi=$PREFIX
make -k -C dtpools && make -k -C util";
    shell::must(site, set_up)?;
    for folder in FOLDERS {
        if only
            .is_none_or(|only| folder.contains(only) || !FOLDERS.iter().any(|f| f.contains(only)))
        {
            // A program that cannot be built fails when it is run.
            shell::must(site, &format!("make -k -C {folder} || true"))?;
        }
    }
    Ok(())
}

/// The tests of all lists with at most so many ranks.
pub fn tests(site: &Site<'_>, most_ranks: usize) -> Result<Vec<Test>> {
    let mut all = Vec::new();
    for folder in FOLDERS {
        for (list, of) in LISTS {
            let path = site.folder.join(folder).join(list);
            if path.is_file() {
                all.extend(listed(&path, folder, of, most_ranks)?);
            }
        }
    }
    Ok(all)
}

fn listed(path: &Path, folder: &str, of: &str, most_ranks: usize) -> Result<Vec<Test>> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""));
    Ok(lines
        .filter_map(|line| test(line, folder, of, most_ranks))
        .collect())
}

/// What a line asks for; `None` where nothing is to be run here.
fn test(line: &str, folder: &str, of: &str, most_ranks: usize) -> Option<Test> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let ranks: usize = words.next()?.parse().ok()?;
    let (mut seconds, mut result) = (LIMIT, "");
    let (mut options, mut variables, mut arguments) = (String::new(), String::new(), String::new());
    for word in words {
        let (key, value) = word.split_once('=')?;
        match key {
            "arg" => arguments += &format!(" '{value}'"),
            "mpiexecarg" => options += &format!(" {value}"),
            "env" => variables += &format!(" '{value}'"),
            "timeLimit" => seconds = value.parse().ok()?,
            "resultTest" => result = value,
            // Expected to fail, or for devices and one-sided calls.
            "xfail" | "hasgpu" => return None,
            "mem" if value.parse().is_ok_and(|gigabytes: f64| gigabytes > 2.0) => return None,
            _ => {}
        }
    }
    if ranks > most_ranks || LEFT_OUT.iter().any(|left_out| name.contains(left_out)) {
        return None;
    }
    let launch =
        format!("cd {folder} && env{variables} mpiexec -n {ranks}{options} ./{name}{arguments}");
    let said = "out=$(cat); echo \"$out\" | tail -n 20; echo \"$out\" | grep -qiE '^ *(no errors|test passed|skip)'";
    let command = match result {
        "TestStatus" | "TestErrFatal" => format!("test -x {folder}/{name} && ! ( {launch} )"),
        "TestStatusNoErrors" => format!("( ( {launch} ) || true ) | {{ {said}; }}"),
        "TestBench" => launch,
        _ => format!("( {launch} ) | {{ {said}; }}"),
    };
    Some(Test {
        part: format!("{folder}{of}"),
        name: match arguments.is_empty() {
            true => name.into(),
            false => format!("{name}{}", arguments.replace('\'', "")),
        },
        ranks: ranks.to_string(),
        command,
        limit: Duration::from_secs(seconds.max(LIMIT)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_list() {
        let found = test(
            "pingping 2 arg=-type=MPI_INT arg=-x=1 timeLimit=90",
            "part",
            "",
            4,
        );
        let found = found.expect("a test");
        assert_eq!(found.name, "pingping -type=MPI_INT -x=1");
        assert!(
            found
                .command
                .contains("mpiexec -n 2 ./pingping '-type=MPI_INT' '-x=1'")
        );
        assert_eq!(found.limit, Duration::from_secs(90));
        let fatal = test(
            "errfatal 1 resultTest=TestErrFatal env=A=b",
            "errhan",
            "",
            4,
        );
        let fatal = fatal.expect("a test").command;
        assert!(
            fatal.contains("! ( cd errhan && env 'A=b' mpiexec"),
            "{fatal}"
        );
        for none in [
            "",
            "a 12",
            "a 2 xfail=ticket1",
            "a 2 mem=4.5",
            "bcast_large 2",
            "a x",
        ] {
            assert!(test(none, "coll", "", 10).is_none(), "{none}");
        }
    }
}
