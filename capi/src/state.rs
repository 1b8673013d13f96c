//! State of the process: before, within or after MPI.
//!
//! # Invariants
//! 1. The membership in the job is made once and by the first who initialises, of the
//!    world model or of sessions. It ends with `MPI_Finalize`, or with the process if only
//!    sessions were used: a rank's place is taken once.
//! 2. `WORLD` and `OWN` are null outside of the world model's time.

use crate::abi::*;
use crate::errors::Handler;
use crate::fail::{Fail, Res, other};
use crate::objects::{COMMS, Comm, MESSAGES, Origin, REQUESTS, lock};
use osier::{Communicator, Universe};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

static WORLD: AtomicPtr<Comm> = AtomicPtr::new(null_mut());
static OWN: AtomicPtr<Comm> = AtomicPtr::new(null_mut());
static MEMBERSHIP: Mutex<Option<Membership>> = Mutex::new(None);
static INITIALISED: AtomicBool = AtomicBool::new(false);
static FINALISED: AtomicBool = AtomicBool::new(false);
/// A thread is in `MPI_Finalize`, or was.
static FINALISING: AtomicBool = AtomicBool::new(false);
/// The job is being ended: what is left is no leak.
static ABORTS: AtomicBool = AtomicBool::new(false);
static LEVEL: AtomicI32 = AtomicI32::new(MPI_THREAD_MULTIPLE);
/// Whether several threads may call at the same time: so was asked for at some time.
static THREADS: AtomicBool = AtomicBool::new(false);
static MAIN: Mutex<Option<ThreadId>> = Mutex::new(None);
/// Rank in the job, for messages; `usize::MAX` before.
static RANK: AtomicUsize = AtomicUsize::new(usize::MAX);

struct Membership {
    /// Counted, so that a call which waits holds no lock meanwhile.
    universe: Arc<Universe>,
    world: Option<[Arc<Comm>; 2]>,
    /// Of this rank alone, and of nobody else.
    scratch: Option<Communicator>,
}

#[inline]
pub fn predefined(own: bool) -> Option<&'static Comm> {
    let at = if own { &OWN } else { &WORLD };
    let comm = at.load(Ordering::Acquire);
    if comm.is_null() {
        return None;
    }
    // SAFETY: the membership holds it until `MPI_Finalize`, which no other call overlaps.
    Some(unsafe { &*comm })
}

pub fn predefined_shared(own: bool) -> Option<Arc<Comm>> {
    let membership = lock(&MEMBERSHIP);
    let world = membership.as_ref()?.world.as_ref()?;
    Some(world[usize::from(own)].clone())
}

pub fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Acquire)
}

pub fn is_finalised() -> bool {
    FINALISED.load(Ordering::Acquire)
}

/// Whether objects of MPI may be used: in the world model, or in a session.
pub fn is_active() -> bool {
    lock(&MEMBERSHIP).is_some()
}

pub fn rank() -> Option<usize> {
    let rank = RANK.load(Ordering::Relaxed);
    (rank != usize::MAX).then_some(rank)
}

#[cold]
pub fn not_initialised() -> Fail {
    if is_finalised() {
        return other("a call after MPI_Finalize");
    }
    other("a call before MPI_Init (hint: or MPI_Session_init)")
}

/// The number of this rank's program in a job of several.
pub fn program() -> c_int {
    with(Universe::application).map_or(0, |number| number as c_int)
}

pub fn level() -> c_int {
    LEVEL.load(Ordering::Relaxed)
}

/// Whether several threads may be in calls at the same time.
#[inline]
pub fn has_threads() -> bool {
    THREADS.load(Ordering::Relaxed)
}

/// Several threads may call from now on.
pub fn expect_threads() {
    THREADS.store(true, Ordering::SeqCst);
}

pub fn is_main() -> bool {
    *lock(&MAIN) == Some(std::thread::current().id())
}

/// Joins the job, if that has not happened yet.
fn join() -> Res {
    let mut membership = lock(&MEMBERSHIP);
    if membership.is_none() {
        let universe = osier::init()?;
        universe.name_callers(crate::callers::CALLERS);
        crate::leaks::begin(universe.checks());
        RANK.store(universe.world().rank(), Ordering::Relaxed);
        *membership = Some(Membership {
            universe: Arc::new(universe),
            world: None,
            scratch: None,
        });
        // Buffers may lie on a device if there is one.
        osier_kernels::classify::expect();
    }
    Ok(())
}

/// `MPI_Init`.
pub fn initialise(required: c_int) -> Res {
    if is_finalised() {
        return Err(other("MPI_Init after MPI_Finalize"));
    }
    if INITIALISED.swap(true, Ordering::AcqRel) {
        return Err(other("MPI_Init for the second time"));
    }
    if required == MPI_THREAD_MULTIPLE {
        expect_threads();
    }
    if let Err(e) = join() {
        INITIALISED.store(false, Ordering::Release);
        return Err(e);
    }
    LEVEL.store(required, Ordering::Relaxed);
    *lock(&MAIN) = Some(std::thread::current().id());
    let mut membership = lock(&MEMBERSHIP);
    if let Some(membership) = membership.as_mut() {
        let world = membership.universe.world().clone();
        let own = membership.universe.own().clone();
        let comms = [(world, MPI_COMM_WORLD), (own, MPI_COMM_SELF)].map(|(comm, handle)| {
            let comm = Comm::new(comm, Handler::Fatal, Origin::new());
            comm.handle.store(handle, Ordering::Relaxed);
            comm
        });
        WORLD.store(Arc::as_ptr(&comms[0]).cast_mut(), Ordering::Release);
        OWN.store(Arc::as_ptr(&comms[1]).cast_mut(), Ordering::Release);
        membership.world = Some(comms);
    }
    Ok(())
}

/// `MPI_Finalize`.
pub fn finalise() -> Res {
    let Some(own) = predefined_shared(true) else {
        return Err(not_initialised());
    };
    if FINALISING.swap(true, Ordering::AcqRel) {
        return Err(other("MPI_Finalize while another thread is in it"));
    }
    // The first thing that happens, as the standard has it: what hangs on it may use MPI.
    let cleared = own.attributes.clear(MPI_COMM_SELF, MPI_ERR_OTHER);
    drop(own);
    if let Err(e) = cleared {
        // The program may call it again.
        FINALISING.store(false, Ordering::Release);
        return Err(e);
    }
    crate::leaks::at_finalize();
    crate::work::finish_freed();
    if crate::objects::SESSIONS.handles().is_empty() {
        for handle in REQUESTS.handles() {
            if let Some(pending) = REQUESTS.get_mut(handle) {
                pending.widen();
            }
            drop(REQUESTS.remove(handle));
        }
        for handle in MESSAGES.handles() {
            drop(MESSAGES.remove(handle));
        }
        for handle in COMMS.handles() {
            drop(COMMS.remove(handle));
        }
    }
    let (membership, world, scratch) = {
        let mut held = lock(&MEMBERSHIP);
        WORLD.store(null_mut(), Ordering::Release);
        OWN.store(null_mut(), Ordering::Release);
        FINALISED.store(true, Ordering::Release);
        let of = held.as_mut();
        let (world, scratch) = of.map_or((None, None), |m| (m.world.take(), m.scratch.take()));
        let membership = match crate::objects::SESSIONS.handles().is_empty() {
            true => held.take(),
            // Sessions still use it.
            false => None,
        };
        (membership, world, scratch)
    };
    // Without the lock: attributes of the world have delete functions of the program's.
    drop((world, scratch));
    drop(membership);
    Ok(())
}

/// A session of this rank.
pub fn session() -> Res<osier::Session> {
    join()?;
    with(Universe::session)
}

/// After a session has ended: the last one out leaves the job, if the world model is over.
pub fn session_ended() {
    if is_finalised() && crate::objects::SESSIONS.handles().is_empty() {
        let left = lock(&MEMBERSHIP).take();
        drop(left);
    } else if !is_initialised() && crate::objects::SESSIONS.handles().is_empty() {
        // Others may follow: the place is kept until the process ends.
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: a function of C's convention that stays.
        ONCE.call_once(|| unsafe {
            libc::atexit(leave);
        });
    }
}

extern "C" fn leave() {
    let left = lock(&MEMBERSHIP).take();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(left);
    }));
}

/// Something of the membership.
pub fn with<R>(f: impl FnOnce(&Universe) -> R) -> Res<R> {
    let universe = lock(&MEMBERSHIP).as_ref().map(|m| m.universe.clone());
    match universe {
        Some(universe) => Ok(f(&universe)),
        None => Err(not_initialised()),
    }
}

/// A communicator of this rank alone that no program has.
pub fn scratch() -> Res<Communicator> {
    let kept = |membership: &Membership| membership.scratch.clone();
    if let Some(scratch) = lock(&MEMBERSHIP).as_ref().and_then(kept) {
        return Ok(scratch);
    }
    // Without the lock: a wait may run functions of the program's.
    let made = with(|universe| universe.own().dup())??;
    let mut membership = lock(&MEMBERSHIP);
    let membership = membership.as_mut().ok_or_else(not_initialised)?;
    Ok(membership.scratch.get_or_insert(made).clone())
}

/// Whether the job is being ended.
pub fn aborts() -> bool {
    ABORTS.load(Ordering::Relaxed)
}

/// Ends the job.
pub fn abort(code: c_int) -> ! {
    ABORTS.store(true, Ordering::Relaxed);
    let own = lock(&MEMBERSHIP)
        .as_ref()
        .map(|membership| membership.universe.world().clone());
    match own {
        Some(comm) => comm.abort(code),
        None => std::process::exit(code),
    }
}
