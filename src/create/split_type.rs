//! Splits by what ranks share: memory, a piece of the machine, a process set.
//!
//! # Sources
//! MPI 5.0, section 7.4.2 (`MPI_COMM_SPLIT_TYPE`).

use super::split::Wish;
use crate::comm::{Communicator, Info};
use crate::model::hardware::{Hardware, LEVELS, Level};
use osier_engine::error::Result;
use std::sync::PoisonError;

/// What the ranks of a part have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitType<'a> {
    /// They share memory: that is, they are on one host.
    Shared,
    /// Each is bound to the same instance of a kind of hardware: `machine`,
    /// `package`, `numanode`, `l3cache`, `l2cache`, `l1cache`, `core` or `pu`
    /// (`hwloc://` may stand in front), or `mpi_shared_memory`.
    HwGuided(&'a str),
    /// As above, for the outermost kind that the ranks do not share already.
    /// The result's info names it under `mpi_hw_resource_type`.
    HwUnguided,
    /// What the resource says.
    ResourceGuided(Resource<'a>),
}

/// What to split by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// A kind of hardware, as for [`SplitType::HwGuided`].
    Hardware(&'a str),
    /// The members of a process set.
    ProcessSet(&'a str),
}

const SHARED_MEMORY: &str = "mpi_shared_memory";

/// Colors of process sets begin here; those of hardware are level and
/// instance.
const SETS: u32 = 1 << 31;
const INSTANCE_BITS: u32 = 24;

fn color(level: Level, instance: u32) -> u32 {
    (level as u32 + 1) << INSTANCE_BITS | instance
}

/// The kinds of hardware that are known here, as [`SplitType::HwGuided`] takes them, each
/// with whether the calling thread is bound to one instance of it: `true` or `false`
/// (`MPI_Get_hw_resource_info`).
///
/// ```
/// let info = osier::communicators::hardware_info();
/// assert_eq!(info.get("hwloc://Machine"), Some("true"));
/// ```
pub fn hardware_info() -> Info {
    // hwloc's spelling; ours does not mind.
    const NAMES: [&str; LEVELS.len()] = [
        "Machine", "Package", "NUMANode", "L3Cache", "L2Cache", "L1Cache", "Core", "PU",
    ];
    let bound = Hardware::bound_to();
    let hardware = Hardware::of(&bound);
    let mut info = Info::new();
    for (level, name) in LEVELS.into_iter().zip(NAMES) {
        let one = hardware.place(level, &bound).is_some();
        // Short enough.
        let _ = info.set(format!("hwloc://{name}"), one.to_string());
    }
    info
}

impl Communicator {
    /// One communicator per set of ranks that share what `kind` says, ordered
    /// by key. `None` for ranks that pass no kind, or a kind that is unknown
    /// here, or that are not bound to one instance of it. Collective.
    ///
    /// Of an intercommunicator: one intercommunicator per set, of the ranks of each group
    /// that are in it; `None` where one of the groups has none.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    #[track_caller]
    pub fn split_type(&self, kind: Option<SplitType<'_>>, key: i64) -> Result<Option<Self>> {
        let made = self.split_type_unreported(kind, key);
        self.reported(made.map_err(|e| e.context("split_type")))
    }

    #[track_caller]
    fn split_type_unreported(&self, kind: Option<SplitType<'_>>, key: i64) -> Result<Option<Self>> {
        // Both groups of an intercommunicator are compared together.
        let merged = match self.is_inter() {
            true => Some(self.merge_sides(false)?),
            false => None,
        };
        let everybody = merged.as_ref().unwrap_or(self);
        let bound = Hardware::bound_to();
        let hardware = Hardware::of(&bound);
        let place = |level| hardware.place(level, &bound);
        // One step shows whether any rank is unguided, and where all are: on which host, and in
        // which part of it.
        let mut mine = [i64::from(kind == Some(SplitType::HwUnguided)); LEVELS.len() + 2];
        let host = self.core().transport.host();
        mine[1] = host.into();
        for (slot, level) in mine[2..].iter_mut().zip(LEVELS) {
            *slot = place(level).map_or(-1, i64::from);
        }
        let mut all = vec![mine; everybody.size()];
        everybody.gather_raw(&[mine], &mut all, 0)?;
        everybody.bcast_from(&mut all, 0)?;
        // Parts of two hosts have the same numbers.
        let part = |row: &[i64; LEVELS.len() + 2], level: Level| (row[1], row[level as usize + 2]);
        let chosen = LEVELS.into_iter().find(|level| {
            let first = part(&all[0], *level);
            all.iter().any(|row| part(row, *level) != first)
        });
        let color_at = |level: Level| {
            let own = (host.into(), i64::from(place(level)?));
            let mut parts: Vec<_> = all.iter().map(|row| part(row, level)).collect();
            parts.sort_unstable();
            parts.dedup();
            let number = parts.binary_search(&own).ok()?;
            Some(color(level, number as u32))
        };
        let hardware_color = |kind: &str| match Level::named(kind) {
            Some(level) => color_at(level),
            None if kind == SHARED_MEMORY => Some(host),
            None => None,
        };
        let color = match kind {
            None => Ok(None),
            Some(SplitType::Shared) => Ok(Some(host)),
            Some(
                SplitType::HwGuided(kind) | SplitType::ResourceGuided(Resource::Hardware(kind)),
            ) => Ok(hardware_color(kind)),
            Some(SplitType::HwUnguided) => Ok(chosen.and_then(color_at)),
            Some(SplitType::ResourceGuided(Resource::ProcessSet(name))) => self.set_color(name),
        };
        let wish = color.map(|color| Wish {
            color,
            key,
            topology: None,
        });
        let made = self.make(wish)?;
        if let (Some(made), Some(SplitType::HwUnguided), Some(level)) = (&made, kind, chosen) {
            let mut info = Info::new();
            info.set("mpi_hw_resource_type", level.name())?;
            *made.0.info.lock().unwrap_or_else(PoisonError::into_inner) = info;
        }
        Ok(made)
    }

    fn set_color(&self, name: &str) -> Result<Option<u32>> {
        let psets = &self.member().psets;
        let inside = psets.group(name)?.rank_of(self.member().rank()).is_some();
        let number = psets.names().position(|other| other == name);
        // The set of the rank alone is another one on each rank.
        let number = match name {
            crate::comm::psets::SELF => Some(psets.names().len() + self.member().rank()),
            _ => number,
        };
        Ok(number.filter(|_| inside).map(|n| SETS | n as u32))
    }
}
