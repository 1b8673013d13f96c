//! Requests behind handles, of any kind.

use crate::abi::*;
use crate::buffers::{Given, Memory, MemoryMut, Piece, Wanted};
use crate::call::On;
use crate::fail::{Fail, Res, bad_request};
use crate::objects::{Comm, comm, lock};
use crate::partitioned::Bytes;
use crate::status::EMPTY;
use osier::communicators::PendingCommunicator;
use osier::devices::After;
use osier::partitioned::{
    DevicePartitionedRecv, DevicePartitionedSend, PartitionedRecv, PartitionedSend,
};
use osier::persistent::{Persistent, PersistentCollective};
use osier::requests::{GeneralizedRequest, Waitable, Watched};
use osier::{Communicator, Request, Status};
use osier_engine::progress::window::Handle as Posted;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The error of a start of what begins once.
pub fn starts_once() -> Fail {
    bad_request("start of a request that does not persist")
}

/// A request, and whose handler hears of its errors.
pub struct Pending {
    pub work: Work,
    pub on: On,
}

pub enum Work {
    /// A send that left at once.
    Sent,
    /// A receive whose message was there.
    Received {
        source: u32,
        tag: u32,
        bytes: usize,
    },
    /// A receive that its communicator knows by this handle. It becomes a `Recv` before
    /// anything but its end is asked for: see [`Pending::widen`].
    Posted(Posted),
    Send(Request<Memory>),
    Recv(Request<MemoryMut>),
    /// A pair of transfers, a collective, a flush.
    Once(Box<dyn Once>, Sort),
    /// With the code that the last of its functions to fail has returned.
    Generalized(GeneralizedRequest, Arc<AtomicI32>),
    Duplicate(Box<Duplicate>),
    PersistentSend(Persistent<Memory>),
    PersistentRecv(Persistent<MemoryMut>),
    PersistentCollective(Box<dyn Repeated>),
    PartitionedSend(Box<PartitionedSend<u8, Bytes>>),
    PartitionedRecv(Box<PartitionedRecv<u8, Bytes>>),
    /// In partitions of a device's memory.
    DeviceSend(Box<DevicePartitionedSend<u8>>),
    DeviceRecv(Box<DevicePartitionedRecv<u8>>),
}

/// What begins once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A transfer that receives a message, alone or beside a send.
    Receives,
    /// A collective call.
    Collective,
    /// A collective call that is complete, as the program was told.
    Completed,
    /// Of buffered sends.
    Flush,
}

/// A communicator that is being duplicated or shrunk, and where C wants its handle.
pub struct Duplicate {
    pub pending: Option<PendingCommunicator>,
    /// The program was told that it is complete.
    pub completed: bool,
    pub to: usize,
    pub finish: Box<dyn FnOnce(Communicator) -> Arc<Comm> + Send>,
}

/// The output of a request that is over, without its buffers.
pub struct Ended(pub Status);

macro_rules! without_status {
    ($($t:ty),*) => {$(
        impl From<$t> for Ended {
            fn from(_: $t) -> Self {
                Ended(Status::empty())
            }
        }
    )*};
}

without_status!(
    (),
    MemoryMut,
    (Given, MemoryMut),
    (Memory, MemoryMut),
    (Memory, Wanted),
    (Vec<Memory>, Vec<MemoryMut>),
    (Vec<Piece>, Vec<MemoryMut>)
);

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Ended(status)
    }
}

impl From<(MemoryMut, Status)> for Ended {
    fn from((_, status): (MemoryMut, Status)) -> Self {
        Ended(status)
    }
}

impl From<(Memory, MemoryMut, Status)> for Ended {
    fn from((_, _, status): (Memory, MemoryMut, Status)) -> Self {
        Ended(status)
    }
}

/// A request that begins once, whatever its buffers are.
pub trait Once: Send {
    fn is_over(&mut self) -> bool;
    fn peek(&mut self) -> Option<osier::Result<Status>>;
    fn watched(&mut self) -> &mut dyn Watched;
    fn end(self: Box<Self>) -> osier::Result<Status>;
}

impl<R: Waitable + Send + 'static> Once for R
where
    R::Output: Into<Ended>,
{
    fn is_over(&mut self) -> bool {
        self.test()
    }

    fn peek(&mut self) -> Option<osier::Result<Status>> {
        self.status()
    }

    fn watched(&mut self) -> &mut dyn Watched {
        self
    }

    fn end(self: Box<Self>) -> osier::Result<Status> {
        self.finish().map(|output| output.into().0)
    }
}

/// A collective that is started again and again, whatever its buffers are.
pub trait Repeated: Send {
    fn start(&mut self) -> osier::Result<()>;
    fn is_active(&self) -> bool;
    fn test(&mut self) -> bool;
    fn wait(&mut self) -> osier::Result<()>;
    fn status(&mut self) -> Option<osier::Result<Status>>;
    fn watched(&mut self) -> &mut dyn Watched;
}

impl<B: Send + 'static> Repeated for PersistentCollective<B> {
    fn start(&mut self) -> osier::Result<()> {
        PersistentCollective::start(self)
    }

    fn is_active(&self) -> bool {
        PersistentCollective::is_active(self)
    }

    fn test(&mut self) -> bool {
        PersistentCollective::test(self)
    }

    fn wait(&mut self) -> osier::Result<()> {
        PersistentCollective::wait(self)
    }

    fn status(&mut self) -> Option<osier::Result<Status>> {
        Waitable::status(self)
    }

    fn watched(&mut self) -> &mut dyn Watched {
        self
    }
}

impl Duplicate {
    fn test(&mut self) -> bool {
        self.pending.as_mut().is_none_or(PendingCommunicator::test)
    }

    fn finish(mut self) -> Res {
        let made = match self.pending.take() {
            Some(pending) => pending.wait()?,
            None => return Err(bad_request("a duplicate that was taken")),
        };
        let handle = crate::objects::adopt((self.finish)(made));
        let to = std::ptr::with_exposed_provenance_mut::<Handle>(self.to);
        crate::fail::put(to, handle)
    }
}

impl Pending {
    pub fn is_persistent(&self) -> bool {
        matches!(
            self.work,
            Work::PersistentSend(_)
                | Work::PersistentRecv(_)
                | Work::PersistentCollective(_)
                | Work::PartitionedSend(_)
                | Work::PartitionedRecv(_)
                | Work::DeviceSend(_)
                | Work::DeviceRecv(_)
        )
    }

    /// Whether it is a collective call, of which the program does not know that it is
    /// complete.
    pub fn is_collective(&self) -> bool {
        match &self.work {
            Work::Once(_, sort) => *sort == Sort::Collective,
            Work::Duplicate(duplicate) => !duplicate.completed,
            Work::PersistentCollective(_) => true,
            _ => false,
        }
    }

    /// Whether there is something to wait for.
    pub fn is_active(&self) -> bool {
        match &self.work {
            Work::PersistentSend(r) => r.is_active(),
            Work::PersistentRecv(r) => r.is_active(),
            Work::PersistentCollective(r) => r.is_active(),
            Work::PartitionedSend(r) => r.is_active(),
            Work::PartitionedRecv(r) => r.is_active(),
            Work::DeviceSend(r) => r.is_active(),
            Work::DeviceRecv(r) => r.is_active(),
            _ => true,
        }
    }

    /// Makes a request of a receive that is a mere handle.
    #[inline]
    pub fn widen(&mut self) {
        if let Work::Posted(handle) = self.work {
            self.widen_posted(handle);
        }
    }

    #[cold]
    fn widen_posted(&mut self, handle: Posted) {
        // The communicator still exists: freeing it first makes full requests of what it has
        // posted.
        if let On::Comm(on) = self.on
            && let Ok(comm) = comm(on)
        {
            // C's memory, of which a request has nothing to give back.
            let nothing = MemoryMut::nothing();
            self.work = Work::Recv(comm.comm.adopt_receive(handle, nothing));
        }
    }

    /// Makes progress and asks whether it is over.
    #[inline]
    pub fn test(&mut self) -> bool {
        self.widen();
        match &mut self.work {
            Work::Sent | Work::Received { .. } => true,
            Work::Posted(_) => false,
            Work::Send(r) => r.test(),
            Work::Recv(r) => r.test(),
            Work::Once(r, _) => r.is_over(),
            Work::Generalized(r, _) => r.test(),
            Work::Duplicate(d) => d.test(),
            Work::PersistentSend(r) => r.test(),
            Work::PersistentRecv(r) => r.test(),
            Work::PersistentCollective(r) => r.test(),
            Work::PartitionedSend(r) => r.test(),
            Work::PartitionedRecv(r) => r.test(),
            Work::DeviceSend(r) => r.test(),
            Work::DeviceRecv(r) => r.test(),
        }
    }

    /// Whether it was over when it began.
    pub fn is_sent(&self) -> bool {
        matches!(self.work, Work::Sent | Work::Received { .. })
    }

    /// What can be waited for together with others; `None` if it is over.
    pub fn watched(&mut self) -> Option<&mut dyn Watched> {
        self.widen();
        Some(match &mut self.work {
            Work::Sent | Work::Received { .. } | Work::Posted(_) => return None,
            Work::Send(r) => r,
            Work::Recv(r) => r,
            Work::Once(r, _) => return Some(r.watched()),
            Work::Generalized(r, _) => r,
            Work::PersistentSend(r) => r,
            Work::PersistentRecv(r) => r,
            Work::PersistentCollective(r) => return Some(r.watched()),
            Work::PartitionedSend(r) => &mut **r,
            Work::PartitionedRecv(r) => &mut **r,
            Work::DeviceSend(r) => &mut **r,
            Work::DeviceRecv(r) => &mut **r,
            Work::Duplicate(d) => match &mut d.pending {
                Some(pending) => pending,
                None => return None,
            },
        })
    }

    fn fail(&self, e: impl Into<Fail>) -> Fail {
        e.into().on(self.on)
    }

    /// The status if it is over, which leaves it as it is.
    pub fn peek(&mut self) -> Option<Res<CStatus>> {
        self.widen();
        let receives = self.receives();
        let status = match &mut self.work {
            Work::Sent => return Some(Ok(EMPTY)),
            Work::Received { source, tag, bytes } => {
                return Some(Ok(CStatus::of_message(*source, *tag, *bytes)));
            }
            Work::Posted(_) => return None,
            Work::Send(r) => r.status(),
            Work::Recv(r) => r.status(),
            Work::Once(r, sort) => {
                let over = r.peek();
                if over.is_some() && *sort == Sort::Collective {
                    *sort = Sort::Completed;
                }
                over
            }
            Work::Generalized(r, _) => r.status(),
            Work::PersistentSend(r) => r.status(),
            Work::PersistentRecv(r) => r.status(),
            Work::PersistentCollective(r) => r.status(),
            Work::PartitionedSend(r) => r.status(),
            Work::PartitionedRecv(r) => r.status(),
            Work::DeviceSend(r) => r.status(),
            Work::DeviceRecv(r) => r.status(),
            Work::Duplicate(d) => {
                d.completed = d.test();
                d.completed.then(|| Ok(Status::empty()))
            }
        }?;
        Some(match status {
            Ok(status) => Ok(in_c(&status, receives)),
            Err(e) => Err(self.fail(e)),
        })
    }

    fn receives(&self) -> bool {
        match &self.work {
            Work::Recv(_) | Work::PersistentRecv(_) => true,
            Work::Received { .. } | Work::Posted(_) => true,
            Work::PartitionedRecv(_) | Work::DeviceRecv(_) => true,
            Work::Generalized(..) => true,
            Work::Once(_, sort) => *sort == Sort::Receives,
            _ => false,
        }
    }

    /// Waits for what began and can begin again.
    pub fn wait_here(&mut self) -> Res<CStatus> {
        let receives = self.receives();
        let status = match &mut self.work {
            Work::PersistentSend(r) => r.wait(),
            Work::PersistentRecv(r) => r.wait(),
            Work::PersistentCollective(r) => r.wait().map(|()| Status::empty()),
            Work::PartitionedSend(r) => r.wait(),
            Work::PartitionedRecv(r) => r.wait(),
            Work::DeviceSend(r) => r.wait(),
            Work::DeviceRecv(r) => r.wait(),
            _ => return Err(bad_request("a request that does not persist")),
        };
        match status {
            Ok(status) => Ok(in_c(&status, receives)),
            Err(e) => Err(self.fail(e)),
        }
    }

    /// Ends what is a few words, of which nothing is to be dropped.
    #[inline(always)]
    pub fn end_words(&self) -> Option<osier::Result<CStatus>> {
        match self.work {
            Work::Sent => Some(Ok(EMPTY)),
            Work::Received { source, tag, bytes } => {
                Some(Ok(CStatus::of_message(source, tag, bytes)))
            }
            Work::Posted(handle) => {
                let On::Comm(on) = self.on else { return None };
                let ended = comm(on).ok()?.comm.end_receive(handle);
                Some(ended.map(|o| CStatus::of_message(o.source, o.tag, o.bytes)))
            }
            _ => None,
        }
    }

    /// Waits for a send or a receive, which is good for nothing afterwards; `None` if it is
    /// anything else.
    #[inline]
    pub fn end_transfer(&mut self) -> Option<osier::Result<CStatus>> {
        match &mut self.work {
            Work::Sent | Work::Received { .. } | Work::Posted(_) => self.end_words(),
            Work::Send(r) => Some(r.end().map(|status| in_c(&status, false))),
            Work::Recv(r) => Some(r.end().map(|status| CStatus::received(&status))),
            _ => None,
        }
    }

    /// Waits for what begins once.
    pub fn wait(mut self) -> Res<CStatus> {
        self.widen();
        let (on, receives) = (self.on, self.receives());
        let status = match self.work {
            Work::Sent => return Ok(EMPTY),
            Work::Received { source, tag, bytes } => {
                return Ok(CStatus::of_message(source, tag, bytes));
            }
            Work::Send(r) => r.wait().map(|(_, status)| status),
            Work::Recv(r) => r.wait().map(|(_, status)| status),
            Work::Once(r, _) => r.end(),
            Work::Generalized(r, code) => {
                let over = r.wait(); // which frees it, too
                let told = told(&code).map_err(|e| e.on(on));
                return match over {
                    Ok(status) => told.map(|()| of_program(&status)),
                    Err(e) => Err(told.err().unwrap_or_else(|| Fail::from(e).on(on))),
                };
            }
            Work::Duplicate(d) => {
                d.finish().map_err(|e| e.on(on))?;
                Ok(Status::empty())
            }
            _ => return Err(bad_request("a request that persists")),
        };
        match status {
            Ok(status) => Ok(in_c(&status, receives)),
            Err(e) => Err(Fail::from(e).on(on)),
        }
    }

    pub fn start(&mut self) -> Res {
        let started = match &mut self.work {
            Work::PersistentSend(r) => r.start(),
            Work::PersistentRecv(r) => r.start(),
            Work::PersistentCollective(r) => r.start(),
            Work::PartitionedSend(r) => r.start(),
            Work::PartitionedRecv(r) => r.start(),
            Work::DeviceSend(r) => r.start(),
            Work::DeviceRecv(r) => r.start(After::Now),
            _ => return Err(starts_once().on(self.on)),
        };
        started.map_err(|e| self.fail(e).class(MPI_ERR_ARG, MPI_ERR_REQUEST))
    }

    pub fn cancel(&mut self) -> Res {
        self.widen();
        match &mut self.work {
            Work::Sent | Work::Received { .. } => {}
            Work::Send(r) => drop(r.cancel()),
            Work::Recv(r) => drop(r.cancel()),
            Work::PersistentSend(r) => drop(r.cancel()),
            Work::PersistentRecv(r) => drop(r.cancel()),
            Work::Generalized(r, code) => {
                r.cancel();
                told(code).map_err(|e| e.on(self.on))?;
            }
            _ => {
                let e = bad_request("cancelling of a request that cannot be cancelled");
                return Err(e.on(self.on));
            }
        }
        Ok(())
    }

    /// Lets it go on by itself, to its end or to that of MPI.
    pub fn free(mut self) {
        self.widen();
        if let Work::Duplicate(_) = self.work {
            // It is complete, and its handle is still to be handed out. What it fails with
            // was an error of `MPI_Request_get_status`.
            let _ = self.wait();
            return;
        }
        if let Work::Send(r) = self.work {
            // The library waits for what is sent by itself.
            return r.detach();
        }
        // Tested without the lock: a test may run functions of the program's.
        let mut freed = std::mem::take(&mut *lock(&FREED));
        freed.retain_mut(|pending| !pending.test());
        lock(&FREED).append(&mut freed);
        let goes_on = matches!(
            self.work,
            Work::Recv(_) | Work::Once(..) | Work::PersistentSend(_) | Work::PersistentRecv(_)
        );
        let driven = matches!(self.work, Work::PartitionedRecv(_) | Work::DeviceRecv(_));
        if !(goes_on || driven) || !self.is_active() || self.test() {
            return;
        }
        match driven {
            true => self.drive(),
            false => lock(&FREED).push(self),
        }
    }

    /// Leaves it to a thread of its own. A receive in partitions posts the receives of its
    /// partitions when it has met its sender, which nobody would do that waits for something
    /// else.
    fn drive(self) {
        // Handle tables must not go on as if the program had one thread.
        crate::state::expect_threads();
        let held = Arc::new(Mutex::new(Some(self)));
        let own = held.clone();
        let spawned = std::thread::Builder::new()
            .name("osier freed".into())
            .spawn(move || {
                let pending = lock(&own).take();
                // Nobody hears of errors: nobody has the request.
                let _ = pending.map(|mut pending| pending.wait_here());
            });
        match spawned {
            Ok(thread) => lock(&DRIVEN).push(thread),
            // It goes on when others are freed, and in `MPI_Finalize`.
            Err(_) => lock(&FREED).extend(lock(&held).take()),
        }
    }
}

/// Requests that were freed before they were over: their buffers are the program's, and
/// `MPI_Finalize` completes them (MPI 5.0, section 11.2.2).
static FREED: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

/// Threads of freed requests.
static DRIVEN: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Waits for all requests that were freed.
pub fn finish_freed() {
    let driven = std::mem::take(&mut *lock(&DRIVEN));
    for thread in driven {
        // It does not panic: what it calls returns errors.
        let _ = thread.join();
    }
    let freed = std::mem::take(&mut *lock(&FREED));
    for mut pending in freed {
        // Nobody hears of errors: nobody has the request.
        let _ = match pending.is_persistent() {
            true => pending.wait_here(),
            false => pending.wait(),
        };
    }
}

/// What a function of a generalised request has returned, once.
fn told(code: &AtomicI32) -> Res {
    match code.swap(MPI_SUCCESS, Ordering::Relaxed) {
        MPI_SUCCESS => Ok(()),
        code => {
            let message = format!("a function of a generalised request returned {code}");
            Err(Fail::new(code, message))
        }
    }
}

/// A status that the program has filled in itself.
fn of_program(status: &Status) -> CStatus {
    let mut c = CStatus::received(status);
    if status.source().is_none() {
        c.source = MPI_ANY_SOURCE;
    }
    c
}

#[inline]
fn in_c(status: &Status, receives: bool) -> CStatus {
    match receives {
        true => CStatus::received(status),
        false if status.cancelled() => CStatus::done(status),
        false => EMPTY,
    }
}
