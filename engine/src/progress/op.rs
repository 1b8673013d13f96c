//! Operations of a lane.

use super::checked::OpCheck;
use super::owed::Foreign;
use super::protocols::Stage;
use super::protocols::device_memory::Made;
use super::runs::NO_RUN;
use crate::completion::hold::Hold;
use crate::completion::ready::Ready;
use crate::error::Error;
use crate::matching::{Pattern, PostedKey};
use crate::view::RawView;
use osier_transports::RegionKey;
use std::any::Any;
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;

/// What a finished receive says about its message; bytes is the packed size
/// of what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub source: u32,
    pub tag: u32,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Streaming,
    Announced,
    AwaitAck,
    /// Revoked in the middle of a stream; the receiver is to answer.
    Withdrawn,
    Posted,
    Pulling,
    /// All bytes have come, and a device unpacks them.
    Draining,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Receive,
}

pub(crate) struct Op {
    pub state: State,
    pub direction: Direction,
    pub view: RawView,
    /// Destination, or source once it is known.
    pub peer: u32,
    pub tag: u32,
    /// Bytes sent or received so far.
    pub moved: usize,
    /// Bytes of the whole message.
    pub total: usize,
    pub synchronous: bool,
    /// Its receive is said to be posted.
    pub ready: bool,
    /// Of a run that receives at the same time.
    pub crossing: bool,
    pub acked: bool,
    /// Nobody waits: free it when it is done.
    pub detached: bool,
    pub posted: Option<PostedKey>,
    pub pattern: Option<Pattern>,
    /// The run that it is a step of, and which; see `lane_runs`.
    pub run: u32,
    pub instance: u32,
    /// The user's line that posted it: every function on the way here from
    /// the public one is `#[track_caller]`.
    pub site: &'static Location<'static>,
    /// The message's number in a timeline, or 0.
    pub number: u32,
    /// What few operations need.
    pub rare: Option<Box<Rare>>,
}

#[derive(Default)]
pub(crate) struct Rare {
    pub key: Option<RegionKey>,
    pub error: Option<Error>,
    pub waker: Option<Waker>,
    /// Where to leave which number at the end.
    pub notify: Option<(Arc<Ready>, u64)>,
    /// Memory that must live until the end.
    pub owner: Option<Box<dyn Any + Send>>,
    /// What is checked of it, until it gives its memory back.
    pub check: Option<Box<OpCheck>>,
    /// Its bytes between the host and a device.
    pub stage: Option<Stage>,
    /// Bytes up to which the receiver lets a send go; `None`: all.
    pub window: Option<usize>,
    /// What the receiver is told of a device's memory.
    pub offer: Option<Made>,
    /// Streams that wait for its end.
    pub holds: Vec<Hold>,
    /// A failing run gave it up, for this rank of the job.
    pub blame: Option<u32>,
}

impl Op {
    #[inline(always)]
    #[track_caller]
    pub fn new(direction: Direction, state: State, view: RawView, peer: u32, tag: u32) -> Self {
        Self {
            site: Location::caller(),
            state,
            direction,
            view,
            peer,
            tag,
            moved: 0,
            total: 0,
            synchronous: false,
            ready: false,
            crossing: false,
            acked: false,
            detached: false,
            posted: None,
            pattern: None,
            run: NO_RUN,
            instance: 0,
            number: 0,
            rare: None,
        }
    }

    pub fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Key of the exported memory.
    pub fn key(&self) -> Option<RegionKey> {
        self.rare.as_ref()?.key
    }

    /// It uses its memory no longer; the memory's owner is to go to [`Owed::drop`].
    #[must_use = "it is dropped without the lane"]
    pub fn forget_memory(&mut self) -> Option<Foreign> {
        self.view = RawView::empty();
        let rare = self.rare.as_mut()?;
        match &mut rare.stage {
            Some(Stage::Out(stage)) if stage.lends() => stage.stop(),
            stage => *stage = None,
        }
        rare.offer = None;
        rare.check = None;
        rare.holds.clear();
        rare.owner.take().map(Foreign::Value)
    }

    pub fn take_key(&mut self) -> Option<RegionKey> {
        self.rare.as_mut()?.key.take()
    }
}

/// Send mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Standard,
    Synchronous,
    /// As `Standard`; where somebody checks, the receive must be posted.
    Ready,
}

/// An operation that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is over already.
    Done(Outcome),
    /// Ask for it by this handle.
    Pending(u32),
}
