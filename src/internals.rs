//! What the test bed (`bed/`) needs of this crate and programs do not. This is no API: it
//! is public because the bed is a crate of its own, and changes whenever the bed does.
//!
//! The bed plays all ranks on one thread. So ranks agree on their communicators beforehand,
//! and a look at requests makes no progress.

use crate::comm;
use crate::comm::{CartTopology, Communicator, Design, Group, ProcessSets, Topology};
use crate::model::Agreed;
use crate::p2p::partitioned::Side;
use crate::p2p::{Member, Partitioned, Persistent, Request, SendRecvReplace, WaitSet, Waitable};
use osier_datatype::Datatype;
use osier_engine::error::Result;
use osier_engine::progress::attached::Attached;
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::view::OwnedBuffer;
use std::ops::DerefMut;
use std::sync::Arc;

pub use crate::p2p::sealed::{Home, Notifies};

/// A rank whose communicators all their members open alike, without messages.
pub struct Agreeing(Arc<comm::Member>);

impl Agreeing {
    /// The rank of a core, with the built-in costs.
    ///
    /// # Errors
    /// If the rank does not fit 32 bits.
    pub fn new(core: &Arc<Core>) -> Result<Self> {
        let sets = ProcessSets::predefined(core.rank as usize, core.ranks)?;
        let agreed = Agreed::default();
        Ok(Self(comm::Member::new(core.clone(), sets, agreed)))
    }

    /// A communicator of these ranks.
    ///
    /// # Errors
    /// If this rank is none of them.
    pub fn group(&self, ranks: &[usize], context: u64) -> Result<Communicator> {
        Communicator::open(&self.0, design(ranks, context)?)
    }

    /// The same on a periodic grid of one dimension.
    ///
    /// # Errors
    /// If this rank is none of them.
    pub fn ring(&self, ranks: &[usize], context: u64) -> Result<Communicator> {
        let ring = CartTopology::new(&[ranks.len()], &[true])?;
        let design = Design {
            topology: Some(Topology::Cart(ring)),
            ..design(ranks, context)?
        };
        Communicator::open(&self.0, design)
    }

    /// An intercommunicator, on one of whose sides this rank is; `first`: on that which both
    /// name first. Takes four contexts.
    ///
    /// # Errors
    /// If this rank is not on its side.
    pub fn between(
        &self,
        [local, remote]: [&[usize]; 2],
        context: u64,
        first: bool,
    ) -> Result<Communicator> {
        let remote = Group::from_world_ranks(remote)?;
        Communicator::open_inter(&self.0, design(local, context)?, remote, first)
    }
}

fn design(ranks: &[usize], context: u64) -> Result<Design> {
    let group = Group::from_world_ranks(ranks)?;
    Ok(Design::predefined(group, context))
}

/// The lane of a communicator's messages.
pub fn lane(comm: &Communicator) -> &LaneCell {
    comm.lane()
}

/// The communicator whose lane has its collective calls: itself, or that of both sides.
pub fn runs_on(comm: &Communicator) -> &Communicator {
    comm.runs_on()
}

/// The rank's engine.
pub fn core(comm: &Communicator) -> &Arc<Core> {
    comm.core()
}

/// The buffer for its buffered sends.
pub fn attached(comm: &Communicator) -> &Attached {
    comm.attached()
}

/// Receives for setups of partitioned transfers that are posted.
pub fn awaited_setups(comm: &Communicator) -> usize {
    comm.partitioned().awaited()
}

/// Most operations that one stream waits for.
pub const MOST_HELD: usize = crate::p2p::enqueue::MOST_HELD;

/// Operations enqueued on streams that it keeps: not over, or with an error to return.
pub fn kept_of_streams(comm: &Communicator) -> usize {
    comm.on_streams().len()
}

/// Operations of the lane that a partitioned request has under way.
pub fn parts_under_way<S, T, B>(request: &Partitioned<S, T, B>) -> usize
where
    S: Side,
    T: Datatype,
    B: DerefMut<Target = [T]>,
{
    request.under_way()
}

/// Whether a partitioned request is active and over; makes no progress.
pub fn parts_settled<S, T, B>(request: &Partitioned<S, T, B>) -> bool
where
    S: Side,
    T: Datatype,
    B: DerefMut<Target = [T]>,
{
    request.is_settled()
}

/// A request that consists of operations of a lane.
pub trait Handles {
    /// Of its operations, while they are not known to be over; of an exchange, the send's
    /// and the receive's.
    fn handles(&self) -> [Option<u32>; 2];
}

impl<B: OwnedBuffer> Handles for Request<B> {
    fn handles(&self) -> [Option<u32>; 2] {
        [self.handle(), None]
    }
}

impl<B: OwnedBuffer> Handles for Persistent<B> {
    fn handles(&self) -> [Option<u32>; 2] {
        [self.handle(), None]
    }
}

impl<B: OwnedBuffer> Handles for SendRecvReplace<B> {
    fn handles(&self) -> [Option<u32>; 2] {
        SendRecvReplace::handles(self)
    }
}

/// A request of a set, which stays as it is.
pub fn member<K, R: Waitable>(set: &mut WaitSet<K, R>, member: Member) -> Option<&mut R> {
    set.member(member)
}

/// A request that is over, of those that have reported; makes no progress.
pub fn next_over<K, R: Waitable>(set: &mut WaitSet<K, R>) -> Option<(K, Result<R::Output>)> {
    set.next()
}
