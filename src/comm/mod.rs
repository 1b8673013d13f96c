//! Communicators: who talks with whom, in a context of their own.
//!
//! | module | duty |
//! |---|---|
//! | `group`, `info`, `psets`, `cart`, `graph` | values; nothing there communicates |
//! | `member` | what the communicators and sessions of a rank share |
//! | `context` | numbers of communicators, and who hands them out |
//! | `meeting` | ranks that share no communicator find each other |
//! | `topology`, `neighborhood`, `inter` | grids, graphs and second groups of a communicator |
//! | `attributes`, `handler`, `codes` | what users hang on communicators |
//! | `session` | a way into a job without a world |
//! | `kept` | state of layers above |

mod attributes;
mod cart;
mod codes;
mod context;
mod failures;
mod graph;
mod group;
mod handler;
mod info;
mod inter;
mod kept;
mod meeting;
mod member;
mod neighborhood;
pub(crate) mod psets;
mod sends;
mod session;
mod topology;

pub use attributes::{Attributes, CommKeyval, PredefinedAttributes};
pub use cart::{CartError, CartTopology, dims_create};
pub use codes::ErrorCodes;
pub use graph::{DistGraphTopology, Edges, GraphTopology, Neighbor};
pub use group::{Group, GroupComparison, GroupError, RankRange};
pub(crate) use handler::HandlerCell;
pub use handler::{ErrorHandler, Raised};
pub use info::Info;
pub(crate) use member::{Joined, Member};
pub use psets::ProcessSets;
pub use session::Session;
pub use topology::Topology;

pub(crate) use inter::{CONTEXTS, Inter, argument};
pub(crate) use meeting::Key;
pub(crate) use neighborhood::Neighborhood;
pub(crate) use sends::Sends;

use crate::choice::spaces::Spaces;
use crate::choice::{Chosen, Described};
use kept::Kept;
use osier_engine::check::{Check, Tracked};
use osier_engine::diagnose::waits::{hear, listens};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::in_segment::IN_ORDER;
use osier_engine::progress::attached::Attached;
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

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

/// Read by every call, so nothing that is written lies on its lines.
#[repr(align(128))]
pub(crate) struct Inner {
    pub core: Arc<Core>,
    pub lane: Arc<LaneCell>,
    pub group: Group,
    pub rank: usize,
    /// Number of ranks that messages can go to.
    pub peers: usize,
    pub context: u64,
    pub attached: Attached,
    /// The buffer of the session that it stems from.
    pub session_attached: Option<Arc<Attached>>,
    /// Of partitioned transfers.
    pub partitioned: Kept,
    /// Of operations on streams.
    pub on_streams: Kept,
    /// For an intercommunicator: the other side.
    pub inter: Option<Inter>,
    pub topology: Option<Topology>,
    pub member: Arc<Member>,
    pub attributes: Attributes,
    pub handler: HandlerCell,
    /// Errors here are those of another communicator.
    pub hidden: bool,
    pub info: Mutex<Info>,
    pub name: Mutex<String>,
    /// The algorithm that calls are to use, and its segments.
    pub forced: Mutex<Option<Chosen>>,
    /// The machine that plans are chosen for, once one was.
    pub described: Mutex<Option<Arc<Described>>>,
    /// Which calls have their buffers on devices.
    pub spaces: Spaces,
    /// Whether all ranks read plain memory of each other, once they have told.
    pub reads: OnceLock<bool>,
    /// Who lies around this rank, once a neighborhood collective has asked.
    pub around: OnceLock<Neighborhood>,
    /// Duplications begun: each has a tag of its own.
    pub idups: AtomicU32,
    /// Reported as a leak if it is left at the end.
    pub _tracked: Option<Tracked>,
}

/// What a communicator begins with.
pub(crate) struct Design {
    pub group: Group,
    pub context: u64,
    pub inter: Option<Inter>,
    pub topology: Option<Topology>,
    pub attributes: Attributes,
    pub handler: ErrorHandler,
    pub info: Info,
    pub session_attached: Option<Arc<Attached>>,
    /// The universe's own: never left behind.
    pub predefined: bool,
    /// One side of an intercommunicator, which the program does not know of.
    pub hidden: bool,
}

impl Design {
    pub fn new(group: Group, context: u64) -> Self {
        Self {
            group,
            context,
            inter: None,
            topology: None,
            attributes: Attributes::new(),
            handler: ErrorHandler::default(),
            info: Info::new(),
            session_attached: None,
            predefined: false,
            hidden: false,
        }
    }

    pub fn predefined(group: Group, context: u64) -> Self {
        Self {
            predefined: true,
            ..Self::new(group, context)
        }
    }
}

/// What a communicator holds of messages between ranks; see [`Communicator::queues`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queues {
    /// Pending transfers.
    pub operations: usize,
    /// Receives that no message has met.
    pub posted_receives: usize,
    /// Messages that no receive has asked for.
    pub unexpected_messages: usize,
    /// Grows whenever progress moves something.
    pub moves: u64,
}

/// How two communicators relate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// The same communicator.
    Ident,
    /// Same members in the same order, other contexts.
    Congruent,
    /// Same members in another order.
    Similar,
    /// Different members.
    Unequal,
}

/// A group of ranks with a context of its own: messages of one communicator
/// never meet receives of another.
///
/// Clones are the same communicator. All operations may be called from many
/// threads at once; communicators share no lock.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let (rank, size) = (comm.rank(), comm.size());
/// let mut sum = [0];
/// comm.allreduce(&[rank as u64], &mut sum, osier::Op::Sum)?;
/// assert_eq!(sum, [(size * (size - 1) / 2) as u64]);
/// // A context of its own, for a library: its messages meet no other's.
/// let own = comm.dup()?;
/// own.barrier()?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Clone)]
pub struct Communicator(pub(crate) Arc<Inner>);

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
        // Detached sends complete without the communicator.
        let unfinished = self.core.with(&self.lane, |lane| {
            lane.report_unreceived(&self.core.checks);
            let unfinished = lane.unfinished_sends();
            if unfinished && !lane.has_runs() {
                lane.refuse();
            }
            unfinished
        });
        if unfinished {
            self.core.linger(self.lane.clone());
        }
    }
}

impl Communicator {
    #[track_caller]
    pub(crate) fn open(member: &Arc<Member>, design: Design) -> Result<Self> {
        let core = &member.core;
        let rank = design.group.rank_of(member.rank()).ok_or_else(|| {
            Error::new(
                ErrorKind::Rank,
                "this rank is no member of the communicator",
            )
        })?;
        let worlds =
            |group: &Group| -> Vec<u32> { group.world_ranks().map(|r| r as u32).collect() };
        // The peers of a lane are those that messages go to; of an
        // intercommunicator the other side, and this rank at the end.
        let (members, own, peers) = match &design.inter {
            None => {
                let members = worlds(&design.group);
                let peers = members.len();
                (members, rank, peers)
            }
            Some(inter) => {
                let mut members = worlds(&inter.remote);
                let peers = members.len();
                members.push(core.rank);
                (members, peers, peers)
            }
        };
        // No closure: the caller's source line passes through.
        let untracked = design.predefined || design.hidden;
        let tracked = if untracked || !core.checks.has(Check::Leaks) {
            None
        } else {
            let size = design.group.size();
            let plural = if size == 1 { "" } else { "s" };
            let name = format!("{:#x}, of {size} rank{plural}", design.context);
            Some(core.checks.track("communicator", name))
        };
        let session = design.session_attached.as_ref().map(|a| a.mark());
        let comm = Self(Arc::new(Inner {
            lane: member::open_lane(core, members, own as u32, design.context, session),
            core: core.clone(),
            group: design.group,
            rank,
            peers,
            attached: Attached::default(),
            session_attached: design.session_attached,
            context: design.context,
            inter: design.inter,
            topology: design.topology,
            member: member.clone(),
            attributes: design.attributes,
            handler: HandlerCell::new(design.handler),
            hidden: design.hidden,
            info: Mutex::new(design.info),
            name: Mutex::default(),
            forced: Mutex::default(),
            described: Mutex::default(),
            spaces: Spaces::new(member.agreed.knows_devices()),
            reads: OnceLock::new(),
            around: OnceLock::new(),
            idups: AtomicU32::new(0),
            partitioned: Kept::default(),
            on_streams: Kept::default(),
            _tracked: tracked,
        }));
        if comm.topology().is_some() && comm.size() > 1 && comm.shares_segment_of_neighbors() {
            // Calls of neighbors wait for nobody else, so not for the rank that makes it.
            comm.lane().lock().makes_segment(IN_ORDER);
        }
        Ok(comm)
    }

    /// The communicator of all ranks of a job.
    pub(crate) fn world(member: &Arc<Member>) -> Result<Self> {
        let world = Self::open(
            member,
            Design::predefined(member.world_group(), context::WORLD),
        )?;
        world.set_name("MPI_COMM_WORLD")?;
        Ok(world)
    }

    /// A communicator of this rank alone.
    pub(crate) fn alone(member: &Arc<Member>) -> Result<Self> {
        let group = Group::single(member.rank())?;
        let own = Self::open(member, Design::predefined(group, member.contexts.take(1)?))?;
        own.set_name("MPI_COMM_SELF")?;
        Ok(own)
    }

    /// Whether this is the last handle of the communicator: no operation of it can be
    /// posted any more without this handle.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// The lane, which stays as long as the communicator does.
    pub(crate) fn weak_lane(&self) -> Weak<LaneCell> {
        Arc::downgrade(&self.0.lane)
    }

    #[inline]
    pub(crate) fn lane(&self) -> &LaneCell {
        &self.0.lane
    }

    /// The slot of partitioned transfers.
    pub(crate) fn kept_of_partitions(&self) -> &Kept {
        &self.0.partitioned
    }

    /// The slot of operations on streams.
    pub(crate) fn kept_of_streams(&self) -> &Kept {
        &self.0.on_streams
    }

    /// The buffer for buffered sends.
    pub(crate) fn attached(&self) -> &Attached {
        &self.0.attached
    }

    /// The buffer of its session.
    pub(crate) fn session_attached(&self) -> Option<&Attached> {
        self.0.session_attached.as_deref()
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.0.member
    }

    /// This rank's number, 0 to `size() - 1`.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks; of an intercommunicator, of this side.
    #[inline]
    pub fn size(&self) -> usize {
        self.0.group.size()
    }

    /// Number of ranks that messages can go to and come from.
    #[inline]
    pub(crate) fn peer_count(&self) -> usize {
        self.0.peers
    }

    /// The members, by their ranks in the world; of an intercommunicator, this
    /// side's.
    pub fn group(&self) -> &Group {
        &self.0.group
    }

    /// Number that no other communicator of the job has or will have.
    pub fn context(&self) -> u64 {
        self.0.context
    }

    /// How this communicator and another relate. Of intercommunicators both
    /// sides count; one is never like a communicator of one group.
    pub fn compare(&self, other: &Self) -> Comparison {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Comparison::Ident;
        }
        let groups = self.group().compare(other.group());
        let remotes = match (&self.0.inter, &other.0.inter) {
            (None, None) => GroupComparison::Ident,
            (Some(a), Some(b)) => a.remote.compare(&b.remote),
            _ => GroupComparison::Unequal,
        };
        use GroupComparison::{Ident, Unequal};
        match (groups, remotes) {
            (Ident, Ident) => Comparison::Congruent,
            (Unequal, _) | (_, Unequal) => Comparison::Unequal,
            _ => Comparison::Similar,
        }
    }

    /// Longest name in bytes.
    pub const MAX_NAME: usize = 127;

    /// Names the communicator on this rank.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the name is longer than [`Communicator::MAX_NAME`].
    pub fn set_name(&self, name: &str) -> Result<()> {
        if name.len() > Self::MAX_NAME {
            return self.reported(Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "a name of {} bytes (hint: at most {})",
                    name.len(),
                    Self::MAX_NAME
                ),
            )));
        }
        *self.0.name.lock().unwrap_or_else(PoisonError::into_inner) = name.into();
        Ok(())
    }

    /// The name; empty if none was set. The world is `MPI_COMM_WORLD`, a
    /// rank's own communicator `MPI_COMM_SELF`.
    pub fn name(&self) -> String {
        let name = self.0.name.lock();
        name.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What messages call it.
    pub(crate) fn title(&self) -> String {
        match self.name() {
            name if name.is_empty() => format!("communicator {:#x}", self.0.context),
            name => name,
        }
    }

    /// Replaces the hints by those of `info` that are understood. All ranks
    /// should pass the same.
    pub fn set_info(&self, info: &Info) {
        *self.0.info.lock().unwrap_or_else(PoisonError::into_inner) = info.understood();
    }

    /// The hints in use.
    pub fn info(&self) -> Info {
        let info = self.0.info.lock();
        info.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A session in the same membership of the job.
    pub fn session(&self) -> Session {
        Session::of(self.member())
    }

    /// Name of the transport to a rank, as in `osier info`.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if there is no such rank.
    pub fn transport(&self, rank: usize) -> Result<&'static str> {
        match self.reported(crate::names::Rank::from(rank).check(self.peer_count()))? {
            Some(peer) => Ok(self.core().with(self.lane(), |lane| lane.transport(peer))),
            None => Ok("none"),
        }
    }

    /// What it holds now of messages between ranks, for tools. Another thread may change it
    /// at once.
    ///
    /// ```
    /// # osier::testing::ranks(1, |comm| {
    /// let recv = comm.irecv(vec![0u8; 1], 0, 7)?;
    /// assert_eq!(comm.queues().posted_receives, 1);
    /// comm.send(&[1u8], 0, 7)?;
    /// recv.wait()?;
    /// assert_eq!(comm.queues().posted_receives, 0);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    pub fn queues(&self) -> Queues {
        self.core().with(self.lane(), |lane| {
            let held = lane.leftovers();
            Queues {
                operations: held.operations,
                posted_receives: held.posted,
                unexpected_messages: held.unexpected,
                moves: lane.moved(),
            }
        })
    }

    /// Waits until all messages that this rank has sent here have left it, whether or not a
    /// call has waited for them. For layers above.
    #[doc(hidden)]
    #[track_caller]
    pub fn flush_sends(&self) {
        self.core().wait_on(self.lane(), |lane| {
            let unfinished = lane.unfinished_sends();
            if unfinished && listens() {
                lane.asked_sends().into_iter().for_each(hear);
            }
            (!unfinished).then_some(())
        });
    }
}
