//! Ranks that have failed: which they are, ending what waits for them, and going on without them.
//!
//! # Sources
//! W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of
//! MPI communication capability", IJHPCA 27(3), 2013 (ULFM: `MPIX_Comm_failure_ack`,
//! `MPIX_Comm_get_failed`, `MPIX_Comm_revoke`). There a nonblocking receive from any source stays pending; here
//! it ends.

use super::Communicator;
use osier_engine::error::Result;
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::progress::lane::Lane;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

impl Communicator {
    /// The ranks of this communicator (of the other group, if there are two) that are known
    /// to have failed: their processes ended without finalizing.
    pub fn failed_ranks(&self) -> Vec<usize> {
        self.core().check_deaths();
        self.core().with(self.lane(), |lane| lane.failed_peers())
    }

    /// Goes on without the ranks that have failed, which it returns, all that ever have.
    ///
    /// As long as there is a failure that is not acknowledged, receives and probes from any
    /// source fail with [`ErrorKind::RankDead`](crate::ErrorKind::RankDead) and the name of
    /// the rank: what they wait for may have been lost. A receive that ends so has taken no
    /// message, and its successor takes what it would have taken. Afterwards they continue
    /// with the ranks that live. Messages that a rank sent before it failed are still
    /// received, before and after.
    ///
    /// A failed rank stays failed: calls that name it fail from then on, and so do collectives.
    ///
    /// ```
    /// # use osier::{ANY_SOURCE, Communicator, ErrorKind};
    /// fn next_result(comm: &Communicator) -> osier::Result<(Vec<f64>, osier::Status)> {
    ///     loop {
    ///         match comm.recv_vec(ANY_SOURCE, 0) {
    ///             Err(e) if e.kind() == ErrorKind::RankDead
    ///                 && comm.acknowledge_failures().len() < comm.size() - 1 => {}
    ///             other => return other,
    ///         }
    ///     }
    /// }
    /// # osier::testing::ranks(2, |comm| match comm.rank() {
    /// #     0 => assert_eq!(next_result(&comm).unwrap().0, [1.0]),
    /// #     _ => comm.send(&[1.0], 0, 0).unwrap(),
    /// # });
    /// ```
    pub fn acknowledge_failures(&self) -> Vec<usize> {
        self.core().check_deaths();
        let failed = (self.core()).with(self.lane(), |lane| lane.acknowledge_failures());
        if self.is_inter() {
            // Agreements of both groups know it, too.
            let both = self.runs_on();
            (both.core()).with(both.lane(), |lane| lane.acknowledge_failures());
        }
        failed
    }

    /// Ranks that have failed, as this rank knows: a later list begins with this one.
    #[doc(hidden)]
    pub fn failures(&self) -> Vec<usize> {
        self.core().check_deaths();
        let failures = |lane: &mut Lane| lane.failures().iter().map(|r| *r as usize).collect();
        self.core().with(self.lane(), failures)
    }

    /// Those of which the failure is acknowledged, in that order.
    #[doc(hidden)]
    pub fn acknowledged_failures(&self) -> Vec<usize> {
        let of = |lane: &mut Lane| lane.acknowledged_failures();
        let ranks = self.core().with(self.lane(), of);
        ranks.into_iter().map(|rank| rank as usize).collect()
    }

    /// Acknowledges as many failures of [`Communicator::failures`], from the first on.
    #[doc(hidden)]
    pub fn acknowledge_first_failures(&self, count: usize) {
        self.core()
            .with(self.lane(), |lane| lane.acknowledge_first(count));
        if self.is_inter() {
            // Of these there is no order for both groups.
            let both = self.runs_on();
            (both.core()).with(both.lane(), |lane| lane.acknowledge_failures());
        }
    }

    /// Revokes this communicator: all members learn of it, and their calls on it fail with
    /// [`ErrorKind::Revoked`](crate::ErrorKind::Revoked), those that wait and all later ones, but
    /// for [`agree`](Communicator::agree) and [`shrink`](Communicator::shrink). So a rank that has
    /// got an error tells those that would wait for it. Not collective; may be called by any
    /// number of members, and as often as one likes. Communicators, windows and task graphs that
    /// were made from this one before are not revoked with it.
    ///
    /// A message that has met its receive is delivered, so a send of it succeeds. A send that has
    /// been announced to a rank that computes, and a collective whose memory such a rank may read,
    /// end when it makes its next call.
    ///
    /// ```
    /// # use osier::{Communicator, ErrorKind, Op};
    /// fn sum(comm: &Communicator, mine: f64, sound: bool) -> osier::Result<f64> {
    ///     if !sound {
    ///         comm.revoke(); // the others would wait
    ///     }
    ///     let mut all = [0.0];
    ///     comm.allreduce(&[mine], &mut all, Op::Sum)?;
    ///     Ok(all[0])
    /// }
    /// # osier::testing::ranks(3, |comm| {
    /// let e = sum(&comm, 1.0, comm.rank() != 1).expect_err("an error");
    /// assert_eq!(e.kind(), ErrorKind::Revoked);
    /// let comm = comm.shrink()?; // a new communicator of all that live
    /// assert_eq!(sum(&comm, 1.0, true)?, 3.0);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    pub fn revoke(&self) {
        for lane in self.lanes() {
            self.core().with(lane, |lane| lane.revoke_communicator());
        }
    }

    /// Its lanes: of an intercommunicator three.
    fn lanes(&self) -> Vec<&Arc<LaneCell>> {
        let hidden = self.0.inter.as_ref();
        let hidden = hidden.map(|inter| [&inter.both.0.lane, &inter.local.0.lane]);
        hidden.into_iter().flatten().chain([&self.0.lane]).collect()
    }

    /// Whether this rank knows that a member has [revoked](Communicator::revoke) the
    /// communicator.
    pub fn is_revoked(&self) -> bool {
        let known = || self.core().with(self.lane(), |lane| lane.is_revoked());
        if known() {
            return true;
        }
        for lane in self.lanes() {
            self.core().with(lane, |lane| lane.progress());
        }
        known()
    }

    /// An error, if this rank knows that the communicator is revoked: for calls that would only
    /// find that late.
    pub(crate) fn not_revoked(&self, what: &str) -> Result<()> {
        match self
            .core()
            .with(self.lane(), |lane| lane.revoked_error(what))
        {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Has the lanes of an intercommunicator revoked together, whichever of them is told.
    pub(crate) fn revokes_together(&self) {
        let lanes = self.lanes();
        let all = Arc::new(Together {
            core: Arc::downgrade(&self.0.core),
            lanes: lanes.iter().copied().map(Arc::downgrade).collect(),
        });
        for lane in lanes {
            let waker = Waker::from(all.clone());
            self.core().with(lane, |lane| lane.on_revocation(waker));
        }
    }
}

/// Lanes of which all are revoked when one is.
struct Together {
    core: Weak<Core>,
    lanes: Vec<Weak<LaneCell>>,
}

impl Wake for Together {
    fn wake(self: Arc<Self>) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        for lane in self.lanes.iter().filter_map(Weak::upgrade) {
            core.with(&lane, |lane| lane.revoke_communicator());
        }
    }
}
