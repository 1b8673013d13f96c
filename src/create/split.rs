//! New communicators from old ones.
//!
//! All of them are a split: every rank sends its color and key to rank 0, which
//! takes as many contexts as there are colors, and answers all. A rank with wrong
//! arguments says so in place of a color, so that all ranks get an error and none
//! waits for ever.

use super::agreement::Agreeing;
use crate::coll::IDUP;
use crate::comm::{CONTEXTS, Communicator, Design, Group, Info, Key, Sends, Topology};
use crate::names::Tag;
use crate::p2p::sealed::{Home, Notifies};
use crate::p2p::{Request, Status, Waitable};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::Pattern;
use osier_engine::progress::lane::Posted;
use osier_engine::trace::event::{ANY, Kind};
use osier_engine::view::BufferMut;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};

/// Each duplication has a tag of its own, so one that is given up leaves the
/// others' messages alone. Bits 17 to 19 mark the messages of programs, where they are
/// not 0.
fn idup_tag(number: u32) -> u32 {
    IDUP | number & 0x1_ffff | (number >> 17 & 0x3ff) << 20
}

/// What a rank wants of a split.
pub(crate) struct Wish {
    pub color: Option<u32>,
    pub key: i64,
    pub topology: Option<Topology>,
}

/// In place of a color: this rank's arguments make no sense.
pub(crate) const BAD: i64 = -1;

pub(crate) fn others_arguments() -> Error {
    Error::new(
        ErrorKind::Argument,
        "another rank passed wrong arguments to this collective call (hint: its own error says which)",
    )
}

/// Colors in use, in ascending order. 0 means none.
pub(crate) fn colors(table: &[[i64; 2]]) -> Vec<i64> {
    let mut colors: Vec<i64> = table.iter().map(|e| e[0]).filter(|c| *c > 0).collect();
    colors.sort_unstable();
    colors.dedup();
    colors
}

/// The ranks of a color, ordered by key, then by rank.
pub(crate) fn members_of(table: &[[i64; 2]], color: i64) -> Vec<usize> {
    let mut members: Vec<usize> = (0..table.len()).filter(|r| table[*r][0] == color).collect();
    members.sort_by_key(|r| (table[*r][1], *r));
    members
}

impl Wish {
    /// Color, shifted by one, and key.
    pub fn row(wish: &Result<Self>) -> [i64; 2] {
        match wish {
            Ok(wish) => [wish.color.map_or(0, |c| i64::from(c) + 1), wish.key],
            Err(_) => [BAD, 0],
        }
    }
}

impl Communicator {
    /// The same group in a context of its own. Attributes are copied as their
    /// keys say; topology and error handler are kept; info is not. Collective.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Attribute`], if a copy function of an attribute fails on this rank:
    /// the others get a communicator, in which this rank takes no part. Else as
    /// [`Communicator::split`].
    #[track_caller]
    pub fn dup(&self) -> Result<Self> {
        self.dup_with_info(&Info::new())
    }

    /// As [`Communicator::dup`], with info of its own. Collective.
    ///
    /// # Errors
    /// As [`Communicator::dup`].
    #[track_caller]
    pub fn dup_with_info(&self, info: &Info) -> Result<Self> {
        self.reported(self.may_wait("dup"))?;
        let _span = self.span(Kind::Split, ANY, ANY, 0);
        // No closure: the caller's source line passes through.
        let made = match self.idup_unreported(info) {
            Ok(pending) => pending.wait(),
            Err(e) => Err(e),
        };
        self.reported(made)
    }

    /// Begins a [`Communicator::dup`]: does not wait for other ranks.
    /// Attributes are copied now. Collective, in the order of other collective
    /// calls.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let pending = comm.idup()?;
    /// let other = pending.wait()?; // other work may come before
    /// assert_eq!(other.size(), comm.size());
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Attribute`], as [`Communicator::dup`]; errors of other ranks are
    /// returned by [`PendingCommunicator::wait`].
    #[track_caller]
    pub fn idup(&self) -> Result<PendingCommunicator> {
        self.idup_with_info(&Info::new())
    }

    /// As [`Communicator::idup`], with info of its own.
    ///
    /// # Errors
    /// As [`Communicator::idup`].
    #[track_caller]
    pub fn idup_with_info(&self, info: &Info) -> Result<PendingCommunicator> {
        self.reported(self.idup_unreported(info))
    }

    #[track_caller]
    fn idup_unreported(&self, info: &Info) -> Result<PendingCommunicator> {
        self.not_revoked("dup")?;
        let attributes = self.0.attributes.duplicate(self);
        // Even if that has failed: the others take part, and wait for this rank.
        let tag = idup_tag(self.0.idups.fetch_add(1, Ordering::Relaxed));
        let context = match &self.0.inter {
            None if self.rank() == 0 => {
                let context = self.member().contexts.take(1)?;
                self.tell_all(context, tag);
                Context::Known(context)
            }
            None => Self::context_from(self, tag)?,
            Some(inter) if inter.first && self.rank() == 0 => {
                let context = self.member().contexts.take(CONTEXTS)?;
                inter.local.tell_all(context, tag);
                self.tell_all(context, tag);
                Context::Known(context)
            }
            Some(inter) if inter.first => Self::context_from(&inter.local, tag)?,
            Some(_) => Self::context_from(self, tag)?,
        };
        let mut pending = PendingCommunicator {
            parent: self.clone(),
            context,
            info: info.understood(),
            attributes: None,
        };
        pending.attributes = Some(attributes?);
        Ok(pending)
    }

    /// Sends a context to all peers, without waiting for them.
    #[track_caller]
    fn tell_all(&self, context: u64, tag: u32) {
        let mut sends = Sends::new(self.core(), self.lane());
        let me = self.0.inter.is_none().then_some(self.rank());
        for peer in (0..self.peer_count()).filter(|peer| Some(*peer) != me) {
            // The others get it even if one has died.
            let _ = sends.post(vec![context], peer as u32, tag);
        }
    }

    /// Begins to receive a context from peer 0.
    #[track_caller]
    fn context_from(on: &Communicator, tag: u32) -> Result<Context> {
        let mut buffer = vec![0u64];
        let view = buffer[..].view_mut().raw();
        let posted = on.irecv_raw(view, Pattern::exact(0, tag))?;
        Ok(match posted {
            Posted::Done(_) => Context::Known(buffer[0]),
            pending => Context::Coming(Request::of_posted(on, Some(pending), buffer)),
        })
    }

    /// One communicator per color, members ordered by key, then by rank.
    /// `None` for ranks that pass no color. On an intercommunicator, one
    /// intercommunicator per color that both sides have; `None` for the
    /// others. Collective.
    ///
    /// ```
    /// # osier::testing::ranks(4, |comm| {
    /// let row = comm.split(Some(comm.rank() as u32 / 2), 0)?.expect("a color was passed");
    /// assert_eq!((row.size(), row.rank()), (2, comm.rank() % 2));
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`] or [`ErrorKind::Closed`], if a rank has failed or left;
    /// of kind [`ErrorKind::Argument`], if another rank passed wrong arguments; of kind
    /// [`ErrorKind::Unavailable`], if no context is left for a new communicator.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let _span = self.span(Kind::Split, ANY, ANY, 0);
        let made = self.make(Ok(Wish {
            color,
            key,
            topology: None,
        }));
        self.reported(made)
    }

    #[track_caller]
    pub(crate) fn make(&self, wish: Result<Wish>) -> Result<Option<Self>> {
        if self.is_inter() {
            return self.make_inter(wish);
        }
        let size = self.size();
        let mut table = vec![[0i64; 2]; size + 1];
        self.gather_raw(&[Wish::row(&wish)], &mut table[..size], 0)?;
        if self.rank() == 0 {
            let count = colors(&table[..size]).len() as u64;
            let base = self.member().contexts.take(count).unwrap_or(0);
            table[size] = [base as i64, 0];
        }
        self.bcast_from(&mut table, 0)?;
        let wish = wish?;
        let base = table[size][0] as u64;
        table.truncate(size);
        if table.iter().any(|row| row[0] == BAD) {
            return Err(others_arguments());
        }
        if base == 0 && table.iter().any(|row| row[0] != 0) {
            return Err(exhausted());
        }
        let Some(color) = wish.color.map(|c| i64::from(c) + 1) else {
            return Ok(None);
        };
        let which = colors(&table).partition_point(|c| *c < color) as u64;
        let group = self.group().incl(&members_of(&table, color))?;
        let mut design = self.heir(group, base + which);
        design.topology = wish.topology;
        Self::open(self.member(), design).map(Some)
    }

    /// One communicator per machine: the ranks that share memory. Collective.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    #[track_caller]
    pub fn split_shared(&self, key: i64) -> Result<Self> {
        // All transports of this version join ranks of one machine.
        self.split(Some(0), key)?
            .ok_or_else(|| Error::new(ErrorKind::Argument, "a split with a color has a result"))
    }

    /// A communicator of some of the members; `None` for the others.
    /// Collective over all members. Members of a group pass the same group;
    /// others may pass another group, or an empty one. On an intercommunicator
    /// the group is a part of the local side, and the result is `None`
    /// everywhere if one side's is empty.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let ends = comm.group().incl(&[2, 0])?;
    /// match comm.create(&ends)? {
    ///     Some(two) => assert_eq!(two.rank(), if comm.rank() == 2 { 0 } else { 1 }),
    ///     None => assert_eq!(comm.rank(), 1),
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Group`], if the group has ranks that the communicator has not; of
    /// kind [`ErrorKind::Argument`], if members of the group passed different groups; else as
    /// [`Communicator::split`].
    #[track_caller]
    pub fn create(&self, group: &Group) -> Result<Option<Self>> {
        let wish = self.create_wish(group);
        let made = self.make(wish).and_then(|made| match made {
            Some(comm) if comm.group() != group => Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "the members of the group were given different groups: here {:?}, all together {:?}",
                    group,
                    comm.group()
                ),
            )),
            made => Ok(made),
        });
        self.reported(made)
    }

    fn create_wish(&self, group: &Group) -> Result<Wish> {
        self.contains_all(group)?;
        let place = group.rank_of(self.member().rank());
        // Groups that are made at once have no member in common, so their
        // first members identify them. The sides of an intercommunicator
        // have one group each.
        let first = group.world_rank(0).filter(|_| !self.is_inter());
        let first = first.and_then(|world| self.group().rank_of(world));
        Ok(Wish {
            color: place.map(|_| first.unwrap_or(0) as u32),
            key: place.map_or(0, |p| p as i64),
            topology: None,
        })
    }

    fn contains_all(&self, group: &Group) -> Result<()> {
        let strange = group
            .world_ranks()
            .find(|world| self.group().rank_of(*world).is_none());
        match strange {
            None => Ok(()),
            Some(world) => Err(Error::new(
                ErrorKind::Group,
                format!(
                    "rank {world} of the world is no member of this communicator (hint: take the group from the communicator's own)"
                ),
            )),
        }
    }

    /// A communicator of some of the members. Collective over the group only:
    /// others do not call. Several threads may create at once if their tags
    /// differ.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if this rank is no member of the group; of kind
    /// [`ErrorKind::Group`], if the group has ranks that the communicator has not; of kind
    /// [`ErrorKind::Communicator`], on an intercommunicator; of kind [`ErrorKind::Tag`], if
    /// there is no such tag; of kind [`ErrorKind::Argument`], if members pass different groups;
    /// of kind [`ErrorKind::RankDead`], if a member has failed; of kind
    /// [`ErrorKind::Unavailable`], if no context is left.
    #[track_caller]
    pub fn create_group(&self, group: &Group, tag: impl Into<Tag>) -> Result<Self> {
        let made = self.create_group_unreported(group, tag.into());
        self.reported(made.map_err(|e| e.context("create_group")))
    }

    #[track_caller]
    fn create_group_unreported(&self, group: &Group, tag: Tag) -> Result<Self> {
        let tag = tag.check()?;
        if self.is_inter() {
            return Err(Error::new(
                ErrorKind::Communicator,
                "an intercommunicator (hint: create works on it, create_group on communicators of one group)",
            ));
        }
        self.not_revoked("create_group")?;
        self.contains_all(group)?;
        let member = self.member();
        let key = Key::within(self.context(), tag);
        let context = member
            .meeting()
            .agree(&member.contexts, group, &key, &listed(group), 1)?;
        Self::open(member, self.heir(group.clone(), context))
    }

    /// What a communicator takes over from its parent.
    pub(crate) fn heir(&self, group: Group, context: u64) -> Design {
        let mut design = Design::new(group, context);
        design.handler = self.error_handler();
        design.session_attached = self.0.session_attached.clone();
        design
    }
}

pub(crate) fn exhausted() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "rank 0 has handed out all of its context ids",
    )
}

/// A group's world ranks as bytes.
pub(crate) fn listed(group: &Group) -> Vec<u8> {
    group
        .world_ranks()
        .flat_map(|rank| (rank as u32).to_le_bytes())
        .collect()
}

enum Context {
    Known(u64),
    Coming(Request<Vec<u64>>),
    /// Of the members that live, on whom they agree.
    Agreeing(Agreeing),
    /// The communicator was made, or could not be.
    Taken,
}

/// A communicator in the making, from [`Communicator::idup`] or [`Communicator::ishrink`]: a future, and a
/// request among others in a [`WaitSet`](crate::requests::WaitSet). Dropping it gives the
/// communicator up on this rank.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let pressure = comm.idup()?;
/// let velocity = comm.idup()?;
/// let both = comm.block_on(async { Ok::<_, osier::Error>((pressure.await?, velocity.await?)) });
/// let (pressure, velocity) = both?;
/// assert_ne!(pressure.context(), velocity.context());
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[must_use = "the communicator is given up"]
pub struct PendingCommunicator {
    parent: Communicator,
    context: Context,
    info: Info,
    attributes: Option<crate::comm::Attributes>,
}

impl PendingCommunicator {
    pub(crate) fn of_living(parent: &Communicator, agreeing: Agreeing) -> Self {
        Self {
            parent: parent.clone(),
            context: Context::Agreeing(agreeing),
            info: Info::new(),
            attributes: None,
        }
    }

    /// Waits for the communicator.
    ///
    /// # Errors
    /// Of a duplicate, as [`Communicator::split`]; of the members that live, as
    /// [`Communicator::agree`], of kind [`ErrorKind::Argument`], if members agree in its place, and
    /// of kind [`ErrorKind::RankDead`], if no rank of the other group lives. Of kind
    /// [`ErrorKind::Argument`], if it was polled to its end as a future.
    #[track_caller]
    pub fn wait(mut self) -> Result<Communicator> {
        self.take()
    }

    /// Makes progress and asks whether [`PendingCommunicator::wait`] will not block.
    pub fn test(&mut self) -> bool {
        match &mut self.context {
            Context::Coming(request) => request.test(),
            Context::Agreeing(agreeing) => agreeing.test(),
            _ => true,
        }
    }

    /// The communicator, once; waits for its context.
    #[track_caller]
    fn take(&mut self) -> Result<Communicator> {
        let context = match std::mem::replace(&mut self.context, Context::Taken) {
            Context::Known(context) => Ok(context),
            Context::Coming(request) => request.wait().map(|(buffer, _)| buffer[0]),
            Context::Agreeing(mut agreeing) => {
                // No closure: the caller's source line passes through.
                let made = match agreeing.wait() {
                    Ok(agreed) => agreeing.living(&agreed),
                    Err(e) => Err(e),
                };
                return self.parent.reported(made);
            }
            Context::Taken => Err(Error::new(
                ErrorKind::Argument,
                "the communicator was polled after its end, and is taken (hint: wait for or poll it once)",
            )),
        };
        // No closure: the caller's source line passes through.
        let made = match context {
            Ok(context) => self.open(context),
            Err(e) => Err(e),
        };
        self.parent.reported(made)
    }

    #[track_caller]
    fn open(&mut self, context: u64) -> Result<Communicator> {
        let parent = &self.parent;
        let mut design = parent.heir(parent.group().clone(), context);
        design.topology = parent.0.topology.clone();
        design.info = std::mem::take(&mut self.info);
        design.attributes = self.attributes.take().unwrap_or_default();
        match &parent.0.inter {
            None => {
                let made = Communicator::open(parent.member(), design)?;
                if let Some(around) = parent.0.around.get() {
                    made.knows_around(around.clone());
                }
                Ok(made)
            }
            Some(inter) => {
                let remote = inter.remote.clone();
                Communicator::open_inter(parent.member(), design, remote, inter.first)
            }
        }
    }
}

impl Future for PendingCommunicator {
    type Output = Result<Communicator>;

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let pending = match &mut this.context {
            Context::Coming(request) => request.poll_end(context).is_pending(),
            Context::Agreeing(agreeing) => agreeing.poll(context).is_pending(),
            Context::Known(_) | Context::Taken => false,
        };
        match pending {
            true => Poll::Pending,
            false => Poll::Ready(this.take()),
        }
    }
}

impl Waitable for PendingCommunicator {
    type Output = Communicator;

    fn test(&mut self) -> bool {
        PendingCommunicator::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<Communicator> {
        PendingCommunicator::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        match &mut self.context {
            Context::Coming(request) => request.status(),
            Context::Agreeing(agreeing) => agreeing.status(),
            _ => Some(Ok(Status::empty())),
        }
    }
}

impl Notifies for PendingCommunicator {
    fn home(&self) -> Home<'_> {
        Home(self.parent.core())
    }

    fn raise(&self, e: Error) -> Error {
        self.parent.raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        match &mut self.context {
            Context::Coming(request) => request.notify(ready, token),
            Context::Agreeing(agreeing) => agreeing.notify(ready, token),
            _ => true,
        }
    }
}

impl std::fmt::Debug for PendingCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingCommunicator(of {:?})", self.parent)
    }
}
