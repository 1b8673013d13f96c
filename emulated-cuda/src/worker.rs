//! The thread that executes queued work, out of step.
//!
//! It takes a step of a stream drawn by seed among those that can go on, and now
//! and then does nothing for a while. So work of two streams interleaves in any
//! way that events and the legacy default stream allow. Where that is asked for, streams
//! are late, each by itself.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::abi::Handle;
use crate::driver::{Channel, State, driver};
use crate::fault::{Fault, Result, become_worker, say};
use crate::grid::Pass;
use crate::settings::settings;
use crate::work::{HostFunction, Moved, Op};
use crate::{fiber, isolation, kernel_order, order, record};

/// One pause in so many steps.
const PAUSES: u64 = 16;
/// Longest pause, in microseconds.
const PAUSE_US: u64 = 100;
/// How often work that only polling moves is looked at.
const POLL: Duration = Duration::from_micros(50);

/// The thread's main function.
pub fn run() {
    become_worker();
    fiber::become_kernel_thread();
    isolation::handler_stack();
    let Ok(driver) = driver() else { return };
    let mut state = driver.lock();
    // Streams that were found blocked since something last moved.
    let mut blocked: Vec<Handle> = Vec::new();
    let mut late = Late::default();
    loop {
        let waits = waits(&state);
        let mut ready: Vec<Handle> = state
            .streams
            .keys()
            .copied()
            .filter(|s| !blocked.contains(s) && may_start(&state, *s, &waits))
            .collect();
        let all = ready.len();
        late.hold_back(&mut state, &mut ready);
        if ready.is_empty() {
            state = match blocked.is_empty() && all == 0 {
                true => driver.work.wait(state).unwrap_or_else(|e| e.into_inner()),
                false => {
                    let woken = driver.work.wait_timeout(state, POLL);
                    woken.unwrap_or_else(|e| e.into_inner()).0
                }
            };
            blocked.clear();
            continue;
        }
        if state.random.below(PAUSES) == 0 {
            let pause = Duration::from_micros(state.random.below(PAUSE_US));
            drop(state);
            std::thread::sleep(pause);
            state = driver.lock();
            continue;
        }
        let stream = ready[state.random.below(ready.len() as u64) as usize];
        let Some((mut op, context)) = take(&mut state, stream) else {
            continue;
        };
        let name = op.name();
        // What a host function is about to tell.
        if matches!(&op, Op::Host(..)) || matches!(&op, Op::Graph(run) if run.meets_host()) {
            state.order.host_waited(stream);
        }
        let moved = match op.step(&mut state, context) {
            Ok(Moved::Unlocked(job)) => {
                // Its item stays at the head of the queue, so what it uses is known.
                let now = begun(&mut state, stream);
                // What kernels of a graph tell each other is not followed, nor what the library's own
                // do: they use what others write by atomics alone.
                if matches!(&op, Op::Running(running) if !running.is_own()) {
                    enter(&state, stream);
                }
                drop(state);
                let done = job();
                state = driver.lock();
                let ordered = told(&mut state, stream, &name, now);
                let done = done.and_then(|pass| ordered.map(|()| pass));
                done.map(|pass| match (pass, &op) {
                    (Pass::Waits, _) => Moved::Blocked,
                    (Pass::Over, Op::Running(_)) => Moved::Done,
                    (Pass::Over | Pass::Moved, _) => Moved::More,
                })
            }
            other => other,
        };
        match moved {
            Ok(Moved::Blocked) => {
                put_back(&mut state, stream, op);
                blocked.push(stream);
                continue;
            }
            Ok(Moved::More | Moved::Unlocked(_)) => put_back(&mut state, stream, op),
            Ok(Moved::Done) => {
                if let Err(fault) = finish(&mut state, stream, &op) {
                    failed(&mut state, &name, stream, context, fault);
                }
            }
            Err(fault) => failed(&mut state, &name, stream, context, fault),
        }
        blocked.clear();
        driver.done.notify_all();
    }
}

/// From when the work at the head of a stream may begin, by the work's ticket.
#[derive(Default)]
struct Late(HashMap<Handle, (u64, Instant)>);

impl Late {
    /// Takes out the streams that are not to go on yet.
    fn hold_back(&mut self, state: &mut State, ready: &mut Vec<Handle>) {
        let most = settings().delays_us;
        if most == 0 {
            return;
        }
        let now = Instant::now();
        self.0
            .retain(|stream, _| state.streams.contains_key(stream));
        ready.retain(|stream| {
            let queue = state.streams.get(stream).map(|s| &s.queue);
            let Some(ticket) = queue.and_then(|q| q.front()).map(|item| item.ticket) else {
                return true;
            };
            if let Some((known, from)) = self.0.get(stream)
                && *known == ticket
            {
                return *from <= now;
            }
            let delay = match state.random.below(3) {
                0 => state.random.below(most + 1),
                _ => 0,
            };
            let from = now + Duration::from_micros(delay);
            self.0.insert(*stream, (ticket, from));
            from <= now
        });
    }
}

/// A function of the host and its argument, and whom to tell that it has returned.
type Call = (HostFunction, usize, Arc<AtomicBool>);

/// Has the driver's second thread call a function of the host: one after the other, while
/// other work goes on.
pub fn call(function: HostFunction, argument: usize) -> Arc<AtomicBool> {
    static CALLS: OnceLock<Mutex<Sender<Call>>> = OnceLock::new();
    let calls = CALLS.get_or_init(|| {
        let (sender, calls) = channel::<Call>();
        let thread = std::thread::Builder::new().name("emulated-calls".into());
        let spawned = thread.spawn(move || {
            become_worker();
            for (function, argument, over) in calls {
                // SAFETY: the caller of cuLaunchHostFunc vouches for it.
                unsafe { function(argument as *mut c_void) };
                over.store(true, Ordering::Release);
                if let Ok(driver) = driver() {
                    driver.work.notify_all();
                }
            }
        });
        if let Err(e) = spawned {
            say(&format!("no thread for host functions: {e}"));
        }
        Mutex::new(sender)
    });
    let over = Arc::new(AtomicBool::new(false));
    let calls = calls.lock().unwrap_or_else(|e| e.into_inner());
    // Without a thread the stream stays where it is.
    let _ = calls.send((function, argument, over.clone()));
    over
}

/// The operation at the head of a queue; its item stays, as a placeholder.
fn take(state: &mut State, stream: Handle) -> Option<(Op, Handle)> {
    let stream = state.streams.get_mut(&stream)?;
    let item = stream.queue.front_mut()?;
    Some((std::mem::replace(&mut item.op, Op::Nothing), stream.context))
}

fn put_back(state: &mut State, stream: Handle, op: Op) {
    if let Some(item) = state
        .streams
        .get_mut(&stream)
        .and_then(|s| s.queue.front_mut())
    {
        item.op = op;
    }
}

/// Notes when a kernel began: what it writes may be seen from now on. What is queued later has a
/// higher ticket than the answer.
fn begun(state: &mut State, stream: Handle) -> u64 {
    let now = state.ticket();
    let head = state.streams.get_mut(&stream);
    if let Some(item) = head.and_then(|s| s.queue.front_mut())
        && item.begun == 0
    {
        item.begun = now;
    }
    now
}

/// A pass of the kernel at the head of a stream begins.
fn enter(state: &State, stream: Handle) {
    let head = state.streams.get(&stream).and_then(|s| s.queue.front());
    if let Some(item) = head.filter(|_| settings().order) {
        let begin = || order::begins(state, stream, &item.host);
        kernel_order::enter((stream, item.ticket), begin);
    }
}

/// Keeps what a kernel has told of its accesses, in a pass that began at a ticket, with its item; an
/// error if nothing orders one of a block with another work's.
fn told(state: &mut State, stream: Handle, name: &str, since: u64) -> Result {
    let told = kernel_order::leave();
    let (rest, parts) = match told {
        Some(told) => (told.rest, Some((told.segments, told.unknown))),
        None => (record::take(), None),
    };
    let head = state.streams.get_mut(&stream);
    let Some(item) = head.and_then(|s| s.queue.front_mut()) else {
        return Ok(());
    };
    item.told.extend(rest);
    let work = (stream, item.ticket);
    match parts {
        Some((segments, unknown)) => {
            order::passed(state, (work, since), name, (segments, &unknown))
        }
        None => Ok(()),
    }
}

/// Takes a work that is over from its queue; an error if nothing orders it with another.
fn finish(state: &mut State, handle: Handle, op: &Op) -> Result {
    let head = state.streams.get_mut(&handle);
    let Some(item) = head.and_then(|s| {
        let item = s.queue.pop_front()?;
        s.waits.pop_front_if(|ticket| *ticket == item.ticket);
        Some(item)
    }) else {
        return Ok(());
    };
    let checked = order::finished(state, handle, op, item);
    let over = |s: &crate::driver::Stream| s.destroyed && s.queue.is_empty();
    if state.streams.get(&handle).is_some_and(over) {
        state.streams.remove(&handle);
        state.order.forget(handle);
    }
    checked
}

fn failed(state: &mut State, name: &str, stream: Handle, context: Handle, fault: Fault) {
    let what = fault.message.unwrap_or_default();
    say(&format!("{name}, stream 0x{stream:x}: {what}"));
    state.poison(context, fault.code);
}

/// The first wait of each stream that shares a queue of the hardware: queue, stream, ticket.
fn waits(state: &State) -> Vec<(Channel, Handle, u64)> {
    let waits = state
        .streams
        .iter()
        .filter_map(|(handle, stream)| Some((stream.channel?, *handle, *stream.waits.front()?)));
    waits.collect()
}

/// The rules of the hardware's queues, `waits` being those in them, and of the legacy default
/// stream: it waits for all earlier work of the context's blocking streams, and they wait for its.
fn may_start(state: &State, handle: Handle, waits: &[(Channel, Handle, u64)]) -> bool {
    let Some(stream) = state.streams.get(&handle) else {
        return false;
    };
    let Some(item) = stream.queue.front() else {
        return false;
    };
    let held_up = |(channel, other, ticket): &(Channel, Handle, u64)| {
        Some(*channel) == stream.channel && *other != handle && *ticket < item.ticket
    };
    if waits.iter().any(held_up) {
        return false;
    }
    if stream.flags & crate::abi::STREAM_NON_BLOCKING != 0 {
        return true;
    }
    let Some(context) = state.contexts.get(&stream.context) else {
        return false;
    };
    let earlier =
        |other: &crate::driver::Stream| other.queue.front().is_some_and(|i| i.ticket < item.ticket);
    if context.legacy == handle {
        !state.streams.values().any(|s| {
            s.context == stream.context
                && s.flags & crate::abi::STREAM_NON_BLOCKING == 0
                && earlier(s)
        })
    } else {
        !state.streams.get(&context.legacy).is_some_and(earlier)
    }
}
