//! Operations of a lane.

use super::checked::OpCheck;
pub(crate) use super::protocols::Protocol;
use super::protocols::device_memory::MadeOffer;
use super::protocols::eager::Receiving;
use super::protocols::outbox::Queued;
use crate::completion::hold::Hold;
use crate::completion::ready::Ready;
use crate::device::bounce::{Inbound, Outbound};
use crate::error::Error;
use crate::exec::executor::NO_RUN;
use crate::exec::foreign::Foreign;
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

pub(crate) struct Op {
    pub protocol: Protocol,
    pub view: RawView,
    /// Destination, or source once it is known.
    pub peer: u32,
    pub tag: u32,
    /// What a receive accepts; none of a send.
    pub pattern: Option<Pattern>,
    /// Of a send.
    pub mode: Mode,
    /// Bytes of the whole message.
    pub total: usize,
    /// Nobody waits: free it when it is done.
    pub detached: bool,
    /// The run that it is a step of, and which; see `runs`.
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
    /// Of a send, what its receiver is told of its memory.
    pub exposed: Option<Exposed>,
    pub error: Option<Error>,
    pub waker: Option<Waker>,
    /// Where to leave which number at the end.
    pub notify: Option<(Arc<Ready>, u64)>,
    /// Memory that must live until the end.
    pub owner: Option<Box<dyn Any + Send>>,
    /// What is checked of it, until it gives its memory back.
    pub check: Option<Box<OpCheck>>,
    /// Bounce buffers between its device and the host, or another process.
    pub bounce: Option<Bounce>,
    /// Streams that wait for its end.
    pub holds: Vec<Hold>,
    /// A failing run gave it up, for this rank of the job.
    pub blame: Option<u32>,
}

/// Memory of a send that its receiver may use.
pub(crate) enum Exposed {
    Host(RegionKey),
    Device(MadeOffer),
}

/// Bounce buffers of an operation.
#[derive(Debug)]
pub(crate) enum Bounce {
    Out(Outbound),
    In(Inbound),
}

impl Op {
    #[inline(always)]
    #[track_caller]
    fn new(protocol: Protocol, view: RawView, peer: u32, tag: u32) -> Self {
        Self {
            site: Location::caller(),
            protocol,
            view,
            peer,
            tag,
            pattern: None,
            mode: Mode::Standard,
            total: 0,
            detached: false,
            run: NO_RUN,
            instance: 0,
            number: 0,
            rare: None,
        }
    }

    /// A send of all of a view; one that crosses belongs to a run that receives at the same
    /// time.
    #[inline(always)]
    #[track_caller]
    pub fn send(view: RawView, peer: u32, tag: u32, mode: Mode, crossing: bool) -> Self {
        let total = view.bytes();
        Self {
            mode,
            total,
            ..Self::new(Protocol::Queued(Queued { crossing }), view, peer, tag)
        }
    }

    /// A receive that is not posted yet.
    #[inline(always)]
    #[track_caller]
    pub fn receive(view: RawView, pattern: Pattern, peer: u32, tag: u32) -> Self {
        Self {
            pattern: Some(pattern),
            ..Self::new(Protocol::Posted(None), view, peer, tag)
        }
    }

    #[inline]
    pub fn is_send(&self) -> bool {
        self.pattern.is_none()
    }

    #[inline]
    pub fn is_receive(&self) -> bool {
        self.pattern.is_some()
    }

    #[inline]
    pub fn is_done(&self) -> bool {
        matches!(self.protocol, Protocol::Done { .. })
    }

    /// Whether it is a send that is announced, and that nobody has answered.
    pub fn is_announced(&self) -> bool {
        matches!(self.protocol, Protocol::RtsSent(_))
    }

    /// Has an announced send be cancelled. True if that is to be asked for now.
    pub fn ask_once(&mut self) -> bool {
        match &mut self.protocol {
            Protocol::RtsSent(sent) => !std::mem::replace(&mut sent.cancelling, true),
            _ => false,
        }
    }

    /// Whether it is a send that has ended, and whose kernels still run.
    pub fn drains(&self) -> bool {
        self.is_send() && matches!(self.protocol, Protocol::Draining)
    }

    pub fn is_posted(&self) -> bool {
        matches!(self.protocol, Protocol::Posted(_))
    }

    /// Takes its place among posted receives, if it has one.
    pub fn take_posted(&mut self) -> Option<PostedKey> {
        match &mut self.protocol {
            Protocol::Posted(key) => key.take(),
            _ => None,
        }
    }

    /// Bytes of a send that have left in fragments, and up to which they may; `None`: it
    /// does not send fragments.
    pub fn fragments(&self) -> Option<(usize, usize)> {
        match &self.protocol {
            Protocol::Eager(sending) => Some((sending.moved, self.total)),
            Protocol::Streaming(stream) => {
                let window = stream.window.unwrap_or(self.total);
                Some((stream.moved, self.total.min(window)))
            }
            _ => None,
        }
    }

    /// Bytes of a send have left in a fragment, or a slot. True if they were the last.
    pub fn sent(&mut self, bytes: usize) -> bool {
        let moved = match &mut self.protocol {
            Protocol::Eager(sending) => &mut sending.moved,
            Protocol::Streaming(stream) => &mut stream.moved,
            _ => return false,
        };
        *moved += bytes;
        *moved == self.total
    }

    /// Bytes of a receive that have come.
    #[inline]
    pub fn received(&self) -> usize {
        self.protocol.received(self.total)
    }

    /// The next bytes of a receive have come.
    #[inline]
    pub fn receive_more(&mut self, bytes: usize) {
        if let Protocol::Stream(stream) = &mut self.protocol {
            stream.moved += bytes;
        }
    }

    /// The bytes of a receive come in order from now on.
    #[inline]
    pub fn stream(&mut self) {
        self.protocol = Protocol::Stream(Receiving::default());
    }

    pub fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Key of the exported memory of the host.
    pub fn key(&self) -> Option<RegionKey> {
        match self.rare.as_ref()?.exposed {
            Some(Exposed::Host(key)) => Some(key),
            _ => None,
        }
    }

    pub fn take_key(&mut self) -> Option<RegionKey> {
        let rare = self.rare.as_mut()?;
        match rare.exposed {
            Some(Exposed::Host(key)) => {
                rare.exposed = None;
                Some(key)
            }
            _ => None,
        }
    }

    /// Whether its receiver is offered its device's memory.
    pub fn has_offered(&self) -> bool {
        let exposed = self.rare.as_ref().and_then(|rare| rare.exposed.as_ref());
        matches!(exposed, Some(Exposed::Device(_)))
    }

    /// What its receiver is told of its device's memory.
    pub fn offer(&mut self) -> Option<&mut MadeOffer> {
        match self.rare.as_mut()?.exposed.as_mut()? {
            Exposed::Device(made) => Some(made),
            Exposed::Host(_) => None,
        }
    }

    /// Bounce buffers of a send.
    pub fn outbound(&mut self) -> Option<&mut Outbound> {
        match self.rare.as_mut()?.bounce.as_mut()? {
            Bounce::Out(outbound) => Some(outbound),
            Bounce::In(_) => None,
        }
    }

    /// Bounce buffers of a receive.
    pub fn inbound(&mut self) -> Option<&mut Inbound> {
        match self.rare.as_mut()?.bounce.as_mut()? {
            Bounce::In(inbound) => Some(inbound),
            Bounce::Out(_) => None,
        }
    }

    /// It uses its memory no longer; the memory's owner is to go to [`Owed::drop`].
    #[must_use = "it is dropped without the lane"]
    pub fn forget_memory(&mut self) -> Option<Foreign> {
        self.view = RawView::empty();
        let rare = self.rare.as_mut()?;
        match &mut rare.bounce {
            Some(Bounce::Out(outbound)) if outbound.lends() => outbound.stop(),
            bounce => *bounce = None,
        }
        if let Some(Exposed::Device(_)) = rare.exposed {
            rare.exposed = None;
        }
        rare.check = None;
        rare.holds.clear();
        rare.owner.take().map(Foreign::Value)
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
