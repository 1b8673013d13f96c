//! The programs of a job: one for all ranks, or several, each for a block of them.

use super::{Failure, USAGE, program};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A program, and how many ranks run it: what stands between two `:` of `mpiexec`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// How many ranks.
    pub ranks: usize,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables of these ranks, after those of all.
    pub env: Vec<(OsString, OsString)>,
    /// Their folder, in place of that of all.
    pub wdir: Option<PathBuf>,
}

/// Sections whose programs have been found.
pub struct Sections {
    sections: Vec<(Section, PathBuf)>,
}

impl Sections {
    /// Finds all programs before the first rank starts.
    pub fn find(sections: Vec<Section>) -> Result<Sections, Failure> {
        let find = |section: Section| {
            let folder = section.wdir.as_deref();
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                return Err(Failure::new(
                    USAGE,
                    format!("--wdir {}: no such folder", folder.display()),
                ));
            }
            let path = program::find(&section.command[0])?;
            Ok((section, path))
        };
        let sections = sections.into_iter().map(find).collect::<Result<_, _>>()?;
        Ok(Sections { sections })
    }

    /// The number of the section that a rank belongs to, the section, and its program.
    pub fn of(&self, rank: usize) -> (usize, &Section, &Path) {
        let mut first = 0;
        let found = self.sections.iter().position(|(section, _)| {
            first += section.ranks;
            rank < first
        });
        let number = found.unwrap_or(self.sections.len() - 1);
        let (section, path) = &self.sections[number];
        (number, section, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_ranks_run_programs() {
        let section = |ranks, name: &str| Section {
            ranks,
            command: vec![name.into()],
            ..Section::default()
        };
        let sections =
            Sections::find(vec![section(1, "/bin/sh"), section(2, "/bin/true")]).unwrap();
        let numbers: Vec<usize> = (0..3).map(|rank| sections.of(rank).0).collect();
        assert_eq!(numbers, [0, 1, 1]);
        assert_eq!(sections.of(2).2, Path::new("/bin/true"));
        assert!(Sections::find(vec![section(1, "/bin/sh"), section(1, "/no/such")]).is_err());
    }
}
