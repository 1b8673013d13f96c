//! One step of a plan: the rules that all ways to run a plan share.
//!
//! [`execute`] finds the memory of a step's regions, names its message by tag, checks how
//! many bytes were received, copies and combines. Where memory lies ([`Regions`]) and how
//! messages move ([`Messages`]) are given by a driver:
//!
//! ```text
//! executor   posts operations of a lane, which may end later: Later = handle
//! inline     sends and receives within the call, or not at all: Later = Refused
//! ```

use super::program::{Action, SEGMENT_TAGS};
use super::run::copy;
use crate::error::{Error, ErrorKind, Result};
use crate::view::RawView;
use osier_collectives::Region;

/// How far a message has come when its call returns.
pub enum Started<L> {
    /// It is sent, or received with this many bytes.
    Done(usize),
    /// It ends later.
    Later(L),
}

/// How far a step has come.
pub enum Taken<L> {
    Done,
    Later(L),
    /// Its error, and the rank that its message was to meet.
    Failed(Error, Option<u32>),
}

/// Memory of a plan's regions, and what combines it.
pub trait Regions {
    /// The memory of a region, in one segment.
    fn view(&mut self, region: Region, segment: u32) -> RawView;

    /// `into = left op right`.
    ///
    /// # Errors
    /// The operator's, or that there is none.
    fn combine(&mut self, regions: [Region; 3], segment: u32) -> Result<()>;
}

/// Messages of one rank. The memory of views stays valid until the message has ended.
///
/// Views are passed by reference: to move one copies it by wide loads behind narrow stores,
/// which wait until the store buffer is empty, so until the peer's line has come.
pub trait Messages {
    /// Names a message that ends later.
    type Later;

    /// This rank.
    fn own(&self) -> u32;

    /// Sends a message.
    ///
    /// # Errors
    /// Those of a send.
    fn send(&mut self, view: &RawView, to: u32, tag: u32) -> Result<Started<Self::Later>>;

    /// Receives a message.
    ///
    /// # Errors
    /// Those of a receive.
    fn receive(&mut self, view: &RawView, from: u32, tag: u32) -> Result<Started<Self::Later>>;
}

/// Tag of a plan's message: that of the run, the step and the segment.
#[inline]
pub fn tag_of(run: u32, step: u32, segment: u32) -> u32 {
    run | step | (segment % SEGMENT_TAGS)
}

/// Takes one step, in one segment.
#[inline]
pub fn execute<M: Messages>(
    (action, segment): (Action, u32),
    tags: u32,
    regions: &mut impl Regions,
    messages: &mut M,
) -> Taken<M::Later> {
    let computed = match action {
        Action::Send { to, tag, data } => {
            let view = regions.view(data, segment);
            return send(&view, to, tag_of(tags, tag, segment), messages);
        }
        Action::Receive { from, tag, data } => {
            let view = regions.view(data, segment);
            return receive(&view, from, tag_of(tags, tag, segment), messages);
        }
        Action::Copy { from, to } => copy(&regions.view(from, segment), &regions.view(to, segment)),
        Action::Combine { left, right, into } => regions.combine([left, right, into], segment),
        Action::Exchange { .. }
        | Action::Enter
        | Action::Publish { .. }
        | Action::Raise { .. }
        | Action::Await { .. }
        | Action::Read { .. }
        | Action::Fold { .. }
        | Action::Put { .. }
        | Action::Take { .. }
        | Action::SendLong { .. }
        | Action::ReceiveLong { .. }
        | Action::Leave => Err(Error::new(
            ErrorKind::Unavailable,
            "a step of devices, or of a segment, in a plan of messages",
        )),
    };
    match computed {
        Ok(()) => Taken::Done,
        Err(e) => Taken::Failed(e, None),
    }
}

/// Sends a message of a step.
#[inline]
pub fn send<M: Messages>(view: &RawView, to: u32, tag: u32, messages: &mut M) -> Taken<M::Later> {
    match messages.send(view, to, tag) {
        Ok(Started::Done(_)) => Taken::Done,
        Ok(Started::Later(later)) => Taken::Later(later),
        Err(e) => Taken::Failed(e, Some(to)),
    }
}

/// Receives a message of a step, which fills its memory.
#[inline]
pub fn receive<M: Messages>(
    view: &RawView,
    from: u32,
    tag: u32,
    messages: &mut M,
) -> Taken<M::Later> {
    let room = view.bytes();
    match messages.receive(view, from, tag) {
        Ok(Started::Done(bytes)) => match received(from, bytes, messages.own(), room) {
            Ok(()) => Taken::Done,
            Err(e) => Taken::Failed(e, None),
        },
        Ok(Started::Later(later)) => Taken::Later(later),
        Err(e) => Taken::Failed(e, Some(from)),
    }
}

/// Checks that a step has received what it expected.
///
/// # Errors
/// Of kind [`ErrorKind::Argument`], with both ranks and both lengths in bytes.
#[inline]
pub fn received(from: u32, bytes: usize, own: u32, room: usize) -> Result<()> {
    match bytes == room {
        true => Ok(()),
        false => Err(other_length(ErrorKind::Argument, from, bytes, own, room)),
    }
}

#[cold]
pub(super) fn other_length(
    kind: ErrorKind,
    from: u32,
    bytes: usize,
    own: u32,
    room: usize,
) -> Error {
    Error::new(
        kind,
        format!(
            "collective: rank {from} sent {bytes} bytes, rank {own} expected {room} (hint: all ranks pass the same count)"
        ),
    )
}
