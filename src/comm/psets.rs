//! Process sets: named groups of a job's ranks.
//!
//! `mpi://WORLD` and `mpi://SELF` are always there. Others come from the
//! launcher, `osier run --pset NAME=0-3,7`, in the variable `OSIER_JOB`. All ranks see all sets.
//!
//! # Sources
//! MPI 5.0, section 11.3.2 (process sets).

use super::{Group, Info};
use osier_engine::env::shown;
use osier_engine::error::{Error, ErrorKind, Result};

/// All ranks of the job.
pub const WORLD: &str = "mpi://WORLD";
/// The calling rank.
pub const SELF: &str = "mpi://SELF";

/// The named sets of ranks of a job.
#[derive(Clone, Debug)]
pub struct ProcessSets(Vec<(String, Group)>);

impl ProcessSets {
    /// The two predefined sets, for a rank of a job.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if `rank` is 2^32 - 1 or above.
    pub fn predefined(rank: usize, ranks: u32) -> Result<Self> {
        Ok(Self(vec![
            (WORLD.into(), Group::identity(ranks)),
            (SELF.into(), Group::single(rank)?),
        ]))
    }

    /// Adds the sets of a text such as `ocean=0-3,7;ice=4-6`, for a job of
    /// `ranks`. No text adds none.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Config`], if a set has no `=`, its name is empty, longer than 255
    /// bytes, taken or begins with `mpi://`, or its list is empty, counts down, names a rank
    /// twice, or one that is not below `ranks`.
    pub fn add(&mut self, text: &str, ranks: usize) -> Result<()> {
        for set in text.split(';').filter(|set| !set.is_empty()) {
            let (name, group) = parse(set, ranks)?;
            if self.0.iter().any(|(other, _)| *other == name) {
                return Err(bad(
                    set,
                    "its name is taken",
                    "each set has a name of its own",
                ));
            }
            self.0.push((name, group));
        }
        Ok(())
    }

    /// The names, predefined ones first.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The ranks of a set.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there is no such set; the error lists the names.
    pub fn group(&self, name: &str) -> Result<&Group> {
        let is_it = |other: &str| match other.starts_with("mpi://") {
            // Scheme and authority of a URI, which letters of either size may write.
            true => other.eq_ignore_ascii_case(name),
            false => other == name,
        };
        let set = self.0.iter().find(|(other, _)| is_it(other));
        set.map(|(_, group)| group).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            Error::new(
                ErrorKind::Argument,
                format!(
                    "there is no process set {name:?} (hint: there are {}; osier run --pset NAME=RANKS makes more)",
                    names.join(", ")
                ),
            )
        })
    }

    /// What is known of a set: `mpi_size`.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there is no such set; the error lists the names.
    pub fn info(&self, name: &str) -> Result<Info> {
        let mut info = Info::new();
        info.set("mpi_size", self.group(name)?.size().to_string())?;
        Ok(info)
    }
}

fn bad(set: &str, why: &str, hint: &str) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("process set {}: {why} (hint: {hint})", shown(set)),
    )
}

/// Parses `NAME=0-3,7`. Ranks keep the order in which they are written.
fn parse(set: &str, ranks: usize) -> Result<(String, Group)> {
    let form = "write NAME=0-3,7";
    let (name, list) = set
        .split_once('=')
        .ok_or_else(|| bad(set, "there is no '='", form))?;
    if name.is_empty() || name.len() > Info::MAX_KEY {
        return Err(bad(set, "a name has 1 to 255 bytes", form));
    }
    if name.to_ascii_lowercase().starts_with("mpi://") {
        return Err(bad(
            set,
            "names with mpi:// are reserved",
            "take another name",
        ));
    }
    let number = |text: &str| -> Result<usize> {
        match text.trim().parse::<usize>() {
            Ok(rank) if rank < ranks => Ok(rank),
            Ok(rank) => Err(bad(
                set,
                &format!("rank {rank} in a job of {ranks}"),
                &format!("ranks are 0 to {}", ranks - 1),
            )),
            Err(_) => Err(bad(set, &format!("{text:?} is no rank"), form)),
        }
    };
    let mut members = Vec::new();
    for part in list.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(bad(set, &format!("{part} counts down"), form));
                }
                members.extend(first..=last);
            }
            None => members.push(number(part)?),
        }
    }
    let group = Group::from_world_ranks(&members)
        .map_err(|e| bad(set, &e.to_string(), "each rank once"))?;
    Ok((name.into(), group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_parsed_and_found() {
        let mut sets = ProcessSets::predefined(2, 8).expect("small");
        sets.add("ocean=0-3,7;ice= 5 ,4;;", 8).expect("sound");
        let names: Vec<_> = sets.names().collect();
        assert_eq!(names, [WORLD, SELF, "ocean", "ice"]);
        let list = |name| -> Vec<usize> {
            let group = sets.group(name).expect("there");
            group.world_ranks().collect()
        };
        assert_eq!(list("ocean"), [0, 1, 2, 3, 7]);
        assert_eq!(list("ice"), [5, 4]);
        assert_eq!(list(SELF), [2]);
        assert_eq!(list(WORLD).len(), 8);
        assert_eq!(sets.info("ocean").expect("info").get("mpi_size"), Some("5"));
        let e = sets.group("Ocean").expect_err("case matters");
        assert!(e.to_string().contains("ocean"), "{e}");
    }

    #[test]
    fn bad_sets_are_told_apart() {
        for (text, part) in [
            ("ocean", "no '='"),
            ("=1", "1 to 255"),
            ("mpi://x=1", "reserved"),
            ("MPI://x=1", "reserved"),
            ("a=", "is no rank"),
            ("a=1,", "is no rank"),
            ("a=x", "is no rank"),
            ("a=-1", "is no rank"),
            ("a=8", "job of 8"),
            ("a=3-1", "counts down"),
            ("a=1-3,2", "more than once"),
            ("a=1;a=2", "taken"),
        ] {
            let mut sets = ProcessSets::predefined(0, 8).expect("small");
            let e = sets.add(text, 8).expect_err(text);
            assert!(e.to_string().contains(part), "{text}: {e}");
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }
}
