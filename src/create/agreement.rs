//! Agreement of the members that live, and communicators of these.
//!
//! # Sources
//! W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of
//! MPI communication capability", IJHPCA 27(3), 2013 (ULFM: `MPIX_Comm_agree`,
//! `MPIX_Comm_shrink`).

use crate::comm::Communicator;
use osier_engine::agree::Value;
use osier_engine::error::{Error, ErrorKind, Result};

/// What the members of a communicator that live have agreed on: the same at each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The bits that all have set.
    pub flags: u64,
    /// Ranks that have failed or left, in order.
    pub failed: Vec<usize>,
    /// Whether all have [acknowledged](Communicator::acknowledge_failures) all of these.
    pub acknowledged: bool,
}

impl Communicator {
    /// Agrees with all members that live on the bits that all have set in `flags`, and on who has
    /// failed. Collective over the members that live, in the order of other agreements, and of no
    /// other call.
    ///
    /// All members that return get the same result, also if more ranks fail during the call. It
    /// works after failures, where other collectives return errors.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// // Has everybody converged?
    /// let agreed = comm.agree(if comm.rank() == 1 { 0b01 } else { 0b11 })?;
    /// assert_eq!((agreed.flags, agreed.failed), (0b01, vec![]));
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if all other ranks go on without this one, as after a cut
    /// of the network; of kind [`ErrorKind::Communicator`], on an intercommunicator.
    #[track_caller]
    pub fn agree(&self, flags: u64) -> Result<Agreement> {
        let agreed = self.agreed("agree", flags, 0);
        self.reported(agreed.map(|value| Agreement {
            flags: value.flags,
            acknowledged: value.failed == value.acknowledged,
            failed: value.failed.iter().map(|rank| *rank as usize).collect(),
        }))
    }

    /// A communicator of the members that live, in their order. Collective over these, in the
    /// order of other agreements.
    ///
    /// All that return have the same members in it. Who fails later is a failed rank there.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let living = comm.shrink()?;
    /// assert_eq!(living.size(), 3); // nobody has failed
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::agree`]; of kind [`ErrorKind::Unavailable`], if this rank has no context
    /// left.
    #[track_caller]
    pub fn shrink(&self) -> Result<Self> {
        let made = (|| {
            let number = self.member().contexts.take(1)?;
            let agreed = self.agreed("shrink", u64::MAX, number)?;
            let failed: Vec<usize> = agreed.failed.iter().map(|rank| *rank as usize).collect();
            let group = self.group().excl(&failed)?;
            Self::open(self.member(), self.heir(group, agreed.number))
        })();
        self.reported(made)
    }

    #[track_caller]
    fn agreed(&self, what: &str, flags: u64, number: u64) -> Result<Value> {
        if self.is_inter() {
            return Err(Error::new(
                ErrorKind::Communicator,
                format!("{what}: an intercommunicator (hint: merge it first)"),
            ));
        }
        self.may_wait(what)?;
        self.core().check_deaths();
        let number = (self.core()).with(self.lane(), |lane| lane.agree(flags, number));
        let agreed = (self.core()).wait_on(self.lane(), |lane| lane.agreed(number));
        agreed.map_err(|e| e.context(what))
    }
}
