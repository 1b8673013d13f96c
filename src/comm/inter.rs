//! Intercommunicators: two groups that talk across.
//!
//! An intercommunicator's lane has as its peers the remote group, in its
//! order, and this rank itself last. So point-to-point addresses the remote
//! group without knowing of it. Within a side, ranks talk on a hidden
//! communicator of the local group; collectives run on another, of both groups, the
//! first side's ranks first.
//!
//! # Invariants
//! 1. The groups are disjoint and neither is empty.
//! 2. Exactly one side is the first, and all ranks know which: the one whose
//!    leader had the lower world rank when it was made. It hands out contexts,
//!    and comes first where a merge leaves the order open.
//! 3. What the library itself sends across goes from or to a rank 0, in the
//!    order of the collective calls; what a side does within itself stays on
//!    its hidden communicator.
//!
//! # Sources
//! MPI 5.0, sections 7.6 (intercommunicators) and 6.2 (their collectives).

use super::member::Member;
use super::{Communicator, Design, Group};
use osier_engine::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// What an intercommunicator has besides a communicator.
pub(crate) struct Inter {
    pub remote: Group,
    /// This side among itself.
    pub local: Communicator,
    /// Both sides, the first one first.
    pub both: Communicator,
    /// This side is the first.
    pub first: bool,
}

/// Contexts of an intercommunicator.
pub(crate) const CONTEXTS: u64 = 4;

pub(crate) fn argument(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Argument, message)
}

impl Communicator {
    /// Whether it joins two groups (`MPI_Comm_test_inter`).
    pub fn is_inter(&self) -> bool {
        self.0.inter.is_some()
    }

    /// Number of ranks of the remote group.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if it is no intercommunicator.
    pub fn remote_size(&self) -> Result<usize> {
        self.remote_group().map(Group::size)
    }

    /// The remote group, to whose ranks messages go.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if it is no intercommunicator.
    pub fn remote_group(&self) -> Result<&Group> {
        self.reported(self.inter().map(|inter| &inter.remote))
    }

    pub(crate) fn inter(&self) -> Result<&Inter> {
        self.0.inter.as_ref().ok_or_else(|| {
            argument("a communicator of one group has no remote group (hint: is_inter tells)")
        })
    }

    /// An intercommunicator. `context` is the first of four: its own, that of
    /// the first side, that of the second, that of both.
    #[track_caller]
    pub(crate) fn open_inter(
        member: &Arc<Member>,
        mut design: Design,
        remote: Group,
        first: bool,
    ) -> Result<Self> {
        let side = design.context + if first { 1 } else { 2 };
        let local = Design {
            hidden: true,
            ..Design::new(design.group.clone(), side)
        };
        let local = Self::open(member, local)?;
        let group = match first {
            true => design.group.union(&remote),
            false => remote.union(&design.group),
        };
        let both = Design {
            hidden: true,
            ..Design::new(group, design.context + 3)
        };
        let both = Self::open(member, both)?;
        design.inter = Some(Inter {
            remote,
            local,
            both,
            first,
        });
        let made = Self::open(member, design)?;
        made.revokes_together();
        Ok(made)
    }
}
