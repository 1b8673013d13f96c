//! Calls over several requests, which enter each communicator once.

use crate::abi::*;
use crate::call::On;
use crate::held;
use crate::objects::comm;
use crate::status::EMPTY;
use crate::table::Found;
use crate::work::{Pending, Work};
use osier::requests::Batch;
use osier_engine::progress::op::Outcome;

/// The communicator of the request before, which the next one most often has, too.
#[derive(Default)]
pub struct Entered {
    on: Handle,
    batch: Option<Batch<'static>>,
}

/// How a request ended, and whose handler hears of it.
pub type End = (osier::Result<CStatus>, On);

/// What a status is made of, in registers.
#[derive(Clone, Copy)]
pub enum Short {
    Empty,
    Message { source: u32, tag: u32, bytes: usize },
}

impl Short {
    #[inline(always)]
    fn of(source: u32, tag: u32, bytes: usize) -> Self {
        Short::Message { source, tag, bytes }
    }

    #[inline(always)]
    pub fn status(self) -> CStatus {
        match self {
            Short::Empty => EMPTY,
            Short::Message { source, tag, bytes } => CStatus::of_message(source, tag, bytes),
        }
    }
}

impl Entered {
    #[inline(always)]
    fn of(&mut self, on: On) -> Option<&mut Batch<'static>> {
        let On::Comm(on) = on else { return None };
        if self.batch.is_none() || self.on != on {
            self.enter(on);
        }
        self.batch.as_mut()
    }

    #[inline(never)]
    fn enter(&mut self, on: Handle) {
        // First, as one communicator may have two handles.
        self.batch = None;
        self.on = on;
        self.batch = comm(on).ok().and_then(|comm| comm.comm.batch());
    }

    /// Before any other call is made.
    #[inline]
    pub fn leave(&mut self) {
        self.batch = None;
    }

    /// Ends what is a few words and has succeeded, or whose message is there and short, of
    /// which nothing is to be dropped. `None` says nothing.
    #[inline(always)]
    pub fn end_short(&mut self, pending: &mut Pending) -> Option<Found<Short>> {
        let short = match &pending.work {
            Work::Sent => Short::Empty,
            Work::Received { source, tag, bytes } => Short::of(*source, *tag, *bytes),
            Work::Posted(handle) => {
                let Outcome { source, tag, bytes } = self.of(pending.on)?.end_short(*handle)?;
                Short::of(source, tag, bytes)
            }
            _ => return None,
        };
        Some(Found::Ends(short))
    }

    /// Waits for what is a few words, of which nothing is to be dropped, or may begin again;
    /// `None`: it is something else.
    #[inline(always)]
    pub fn end(&mut self, pending: &mut Pending) -> Option<Found<End>> {
        let on = pending.on;
        match &mut pending.work {
            Work::Sent => Some(Found::Ends((Ok(EMPTY), on))),
            Work::Received { source, tag, bytes } => {
                let status = CStatus::of_message(*source, *tag, *bytes);
                Some(Found::Ends((Ok(status), on)))
            }
            Work::Posted(handle) => {
                let ended = self.of(on)?.end(*handle);
                let status = ended.map(|o| CStatus::of_message(o.source, o.tag, o.bytes));
                Some(Found::Ends((status, on)))
            }
            Work::PersistentRecv(r) if r.is_active() && !held::follows() => {
                let ended = self.of(on)?.wait(r);
                Some(Found::Stays((ended.map(|s| CStatus::received(&s)), on)))
            }
            Work::PersistentSend(r) if r.is_active() && !held::follows() => {
                let ended = self.of(on)?.wait(r);
                let status = |s: osier::Status| match s.cancelled() {
                    true => CStatus::done(&s),
                    false => EMPTY,
                };
                Some(Found::Stays((ended.map(status), on)))
            }
            _ => None,
        }
    }

    /// Starts a request, if it is of messages and no more is needed than to post it.
    #[inline(always)]
    pub fn start(&mut self, pending: &mut Pending) -> bool {
        if held::follows() {
            return false;
        }
        let on = pending.on;
        match &mut pending.work {
            Work::PersistentRecv(r) => self.of(on).is_some_and(|batch| batch.start(r)),
            Work::PersistentSend(r) => self.of(on).is_some_and(|batch| batch.start(r)),
            _ => false,
        }
    }
}
