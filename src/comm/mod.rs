//! Communicators: who talks with whom, in a context of their own.

mod cart;
mod collective;
mod group;
mod reduction;

pub use cart::{CartError, CartTopology, dims_create};
pub use group::{Group, GroupComparison, GroupError, RankRange};
pub use reduction::{Number, Op, Reduction, function};

use crate::error::{Error, ErrorKind, Result};
use crate::p2p::HeapBuffer;
use crate::p2p::buffered::Attached;
use crate::progress::cell::LaneCell;
use crate::progress::core::{Core, Place};
use crate::progress::lane::Lane;
use crate::progress::links::{Links, Remote};
use osier_datatype::Datatype;
use std::fmt;
use std::sync::Arc;

/// Context of the communicator of all ranks.
const WORLD: u64 = 1;

impl From<GroupError> for Error {
    fn from(e: GroupError) -> Self {
        Error::new(ErrorKind::Rank, with_hint(&e, e.hint()))
    }
}

impl From<CartError> for Error {
    fn from(e: CartError) -> Self {
        Error::new(ErrorKind::Argument, with_hint(&e, e.hint()))
    }
}

fn with_hint(e: &dyn fmt::Display, hint: Option<&str>) -> String {
    match hint {
        Some(hint) => format!("{e} (hint: {hint})"),
        None => e.to_string(),
    }
}

struct Inner {
    core: Arc<Core>,
    lane: Arc<LaneCell>,
    group: Group,
    rank: usize,
    /// Number of ranks that messages can go to.
    peers: usize,
    context: u64,
    topology: Option<CartTopology>,
    attached: Attached,
}

/// A group of ranks with a context of its own: messages of one communicator
/// never meet receives of another.
///
/// Clones are the same communicator. All operations may be called from many
/// threads at once; communicators share no lock.
#[derive(Clone)]
pub struct Communicator(Arc<Inner>);

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Communicator {{ rank {} of {}, context {:#x} }}",
            self.rank(),
            self.size(),
            self.0.context
        )
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Sends that nobody waits for go on without the communicator.
        if self.core.with(&self.lane, |lane| lane.unfinished_sends()) {
            self.core.linger(self.lane.clone());
        }
    }
}

impl Communicator {
    #[track_caller]
    fn open(
        core: &Arc<Core>,
        group: Group,
        context: u64,
        topology: Option<CartTopology>,
    ) -> Result<Self> {
        let rank = group.rank_of(core.rank as usize).ok_or_else(|| {
            Error::new(
                ErrorKind::Rank,
                "this rank is no member of the communicator",
            )
        })?;
        let members: Vec<u32> = group.world_ranks().map(|r| r as u32).collect();
        let remote = match &core.place {
            _ if members.len() == 1 => Remote::None,
            Place::Alone => Remote::None,
            Place::Shm(r) => Remote::Shm(r.endpoint(context, members.clone())),
            Place::Sim(net, own) => Remote::Sim(net.endpoint(*own, context, &members)),
        };
        let peers = members.len();
        let links = Links::new(rank as u32, remote);
        let lane = Lane::new(rank as u32, members.len(), links, core.selection.clone());
        let lane = Arc::new(LaneCell::new(lane, core.biased));
        core.add_lane(&lane, members.into());
        Ok(Self(Arc::new(Inner {
            core: core.clone(),
            lane,
            group,
            rank,
            peers,
            context,
            topology,
            attached: Attached::default(),
        })))
    }

    /// The communicator of all ranks of a job.
    pub(crate) fn world(core: &Arc<Core>) -> Result<Self> {
        Self::open(core, Group::identity(core.ranks), WORLD, None)
    }

    /// A communicator of this rank alone.
    pub(crate) fn alone(core: &Arc<Core>) -> Result<Self> {
        let group = Group::single(core.rank as usize)?;
        Self::open(core, group, core.new_context(), None)
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    #[inline]
    pub(crate) fn lane(&self) -> &LaneCell {
        &self.0.lane
    }

    /// The buffer for buffered sends.
    pub(crate) fn attached(&self) -> &Attached {
        &self.0.attached
    }

    /// This rank's number, 0 to `size() - 1`.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    #[inline]
    pub fn size(&self) -> usize {
        self.0.group.size()
    }

    /// Number of ranks that messages can go to and come from.
    #[inline]
    pub(crate) fn peer_count(&self) -> usize {
        self.0.peers
    }

    /// The members, by their ranks in the world.
    pub fn group(&self) -> &Group {
        &self.0.group
    }

    /// Number that no other communicator of the job has or will have.
    pub fn context(&self) -> u64 {
        self.0.context
    }

    /// The Cartesian topology, if the communicator has one.
    pub fn topology(&self) -> Option<&CartTopology> {
        self.0.topology.as_ref()
    }

    /// Name of the transport to a rank, as in `osier info`.
    pub fn transport(&self, rank: usize) -> Result<&'static str> {
        match crate::p2p::Rank::from(rank).check(self.peer_count())? {
            Some(peer) => Ok(self.core().with(self.lane(), |lane| lane.transport(peer))),
            None => Ok("none"),
        }
    }

    /// A buffer that peers on this machine read in place, zeroed.
    pub fn alloc<T: Datatype>(&self, len: usize) -> Result<HeapBuffer<T>> {
        HeapBuffer::new(self.core(), len)
    }

    /// The same group in a context of its own. Collective.
    #[track_caller]
    pub fn dup(&self) -> Result<Self> {
        let mut context = [0u64];
        if self.rank() == 0 {
            context[0] = self.core().new_context();
        }
        self.bcast(&mut context, 0)?;
        Self::open(
            self.core(),
            self.group().clone(),
            context[0],
            self.0.topology.clone(),
        )
    }

    /// One communicator per color, members ordered by key, then by rank.
    /// `None` for ranks that pass no color. Collective.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        self.split_with(color, key, None)
    }

    #[track_caller]
    fn split_with(
        &self,
        color: Option<u32>,
        key: i64,
        topology: Option<CartTopology>,
    ) -> Result<Option<Self>> {
        // 0 means no color, so colors are shifted by one.
        let mine = [color.map_or(0, |c| i64::from(c) + 1), key];
        let mut all = vec![[0i64; 2]; self.size()];
        self.allgather(&[mine], &mut all)?;
        // The lowest rank of each color hands out the context.
        let first = all.iter().position(|e| e[0] == mine[0]);
        let mut contexts = vec![0u64; self.size()];
        let proposal = if first == Some(self.rank()) && mine[0] != 0 {
            self.core().new_context()
        } else {
            0
        };
        self.allgather(&[proposal], &mut contexts)?;
        if mine[0] == 0 {
            return Ok(None);
        }
        let mut members: Vec<usize> = (0..self.size()).filter(|r| all[*r][0] == mine[0]).collect();
        members.sort_by_key(|r| (all[*r][1], *r));
        let context = contexts[first.unwrap_or(0)];
        let group = self.group().incl(&members)?;
        Self::open(self.core(), group, context, topology).map(Some)
    }

    /// One communicator per machine: the ranks that share memory. Collective.
    #[track_caller]
    pub fn split_shared(&self, key: i64) -> Result<Self> {
        // All transports of this version join ranks of one machine.
        self.split(Some(0), key)?
            .ok_or_else(|| Error::new(ErrorKind::Argument, "a split with a color has a result"))
    }

    /// A communicator of some of the members; `None` for the others.
    /// Collective over all members, which pass the same group.
    #[track_caller]
    pub fn create(&self, group: &Group) -> Result<Option<Self>> {
        for world in group.world_ranks() {
            if self.group().rank_of(world).is_none() {
                return Err(Error::new(
                    ErrorKind::Rank,
                    format!("rank {world} of the world is no member of this communicator"),
                ));
            }
        }
        let place = group.rank_of(self.core().rank as usize);
        let color = place.map(|_| 0);
        let key = place.map_or(0, |p| p as i64);
        self.split(color, key)
    }

    /// A Cartesian grid over the first ranks; `None` for ranks beyond it.
    /// Ranks keep their order (row-major). Collective.
    #[track_caller]
    pub fn cart_create(&self, dims: &[usize], periods: &[bool]) -> Result<Option<Self>> {
        let topology = CartTopology::new(dims, periods)?;
        let need = topology.size();
        if need > self.size() {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "a grid of {need} ranks over a communicator of {} (hint: dims_create finds one that fits)",
                    self.size()
                ),
            ));
        }
        let inside = self.rank() < need;
        self.split_with(inside.then_some(0), self.rank() as i64, Some(topology))
    }
}
