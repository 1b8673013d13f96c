//! Ranks that have failed: which they are, and going on without them.
//!
//! # Sources
//! W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of
//! MPI communication capability", IJHPCA 27(3), 2013 (ULFM: `MPIX_Comm_failure_ack`,
//! `MPIX_Comm_get_failed`). There a nonblocking receive from any source stays pending; here
//! it ends.

use super::Communicator;

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
        self.core()
            .with(self.lane(), |lane| lane.acknowledge_failures())
    }
}
