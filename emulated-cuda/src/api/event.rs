//! Events.

use std::collections::BTreeSet;
use std::ffi::c_uint;

use crate::abi::{self, Handle};
use crate::driver::{Event, Object, State, driver, lock};
use crate::fault::{Fault, Out, Result, entries, invalid};
use crate::ipc::SharedEvent;
use crate::work::Op;

/// Queues a record of an event.
pub fn record(state: &mut State, event: Handle, stream: Handle) -> Result {
    let owner = state.event(event)?.context;
    let target = state.stream_mut(stream)?;
    if owner != target.context {
        return Err(Fault::named(
            abi::ERROR_INVALID_HANDLE,
            "wrong context: the event was made in another one than the stream",
        ));
    }
    let capture = target.capture.clone();
    let into = capture.as_ref().map(|(graph, _)| *graph);
    let before = state
        .event(event)?
        .captured
        .as_ref()
        .map(|(graph, _)| *graph);
    let under_way = |graph: &Handle| state.captures.contains_key(graph);
    if before != into && before.as_ref().is_some_and(under_way) {
        return Err(Fault::named(
            abi::ERROR_CAPTURED_EVENT,
            "the event belongs to a capture under way, and is recorded elsewhere: a driver may crash",
        ));
    }
    if let Some(capture) = capture {
        state.event(event)?.captured = Some(capture);
        return Ok(());
    }
    let e = state.event(event)?;
    e.captured = None;
    e.recorded = match &e.shared {
        Some(shared) => shared.record(),
        None => e.recorded + 1,
    };
    let generation = e.recorded;
    state.submit(stream, Op::Record(event, generation))?;
    state.event(event)?.pending.insert(generation);
    Ok(())
}

/// True when the last record has happened.
fn happened(event: &Event) -> bool {
    match &event.shared {
        Some(shared) => shared.happened() >= shared.recorded(),
        None => !event.pending.contains(&event.recorded),
    }
}

fn check(state: &mut State, event: Handle) -> Result {
    let e = state.event(event)?;
    let context = e.context;
    if e.captured.is_some() {
        return Err(Fault::named(
            abi::ERROR_CAPTURED_EVENT,
            "the event was last recorded in a stream that is being captured",
        ));
    }
    state.context(context).map(drop)
}

/// The host knows that the event has happened.
fn seen(state: &mut State, event: Handle) {
    if let Some(e) = state.events.get(&event) {
        let (last, shared) = (e.recorded, e.shared.is_some());
        state.order.host_saw(event, last, shared);
    }
}

fn elapsed(ms: Out<f32>, start: Handle, end: Handle) -> Result {
    let mut state = lock()?;
    for event in [start, end] {
        check(&mut state, event)?;
        let e = state.event(event)?;
        if e.recorded == 0 || e.flags & abi::EVENT_DISABLE_TIMING != 0 {
            return Err(Fault::named(
                abi::ERROR_INVALID_HANDLE,
                "the event was not recorded, or takes no time",
            ));
        }
        if !happened(e) {
            return Err(Fault::plain(abi::ERROR_NOT_READY));
        }
    }
    let (from, to) = (state.event(start)?.at, state.event(end)?.at);
    let (Some(from), Some(to)) = (from, to) else {
        return Err(Fault::plain(abi::ERROR_NOT_READY));
    };
    let signed = match to.checked_duration_since(from) {
        Some(d) => d.as_secs_f64(),
        None => -from.duration_since(to).as_secs_f64(),
    };
    ms.set((signed * 1e3) as f32)
}

entries! {
    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        let mut state = lock()?;
        let context = state.current()?;
        let interprocess = flags & abi::EVENT_INTERPROCESS != 0;
        if interprocess && flags & abi::EVENT_DISABLE_TIMING == 0 {
            return Err(invalid("an event for other processes must have timing disabled"));
        }
        let shared = interprocess.then(SharedEvent::create).transpose()?;
        let handle = state.handle(Object::Event);
        state.events.insert(handle, Event {
            context,
            flags,
            recorded: 0,
            pending: BTreeSet::new(),
            at: None,
            captured: None,
            shared,
            destroyed: false,
        });
        event.set(handle)
    }

    fn cuEventDestroy_v2(event: Handle) {
        let mut state = lock()?;
        state.event(event)?;
        // Streams that wait for it, or are to record it, go on as if it lived.
        let queued = state.streams.values().any(|s| {
            s.queue.iter().any(|i| matches!(i.op, Op::Wait(e, _) | Op::Record(e, _) if e == event))
        });
        if queued {
            state.event(event)?.destroyed = true;
            return Ok(());
        }
        state.events.remove(&event);
        state.order.forget(event);
        Ok(())
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        record(&mut state, event, stream)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        record(&mut state, event, stream)
    }

    fn cuEventQuery(event: Handle) {
        let mut state = lock()?;
        check(&mut state, event)?;
        match happened(state.event(event)?) {
            true => {
                seen(&mut state, event);
                Ok(())
            }
            false => Err(Fault::plain(abi::ERROR_NOT_READY)),
        }
    }

    fn cuEventSynchronize(event: Handle) {
        let driver = driver()?;
        let mut state = driver.lock();
        check(&mut state, event)?;
        if let Some(shared) = state.event(event)?.shared.clone() {
            // Another process may have recorded it: nothing here will wake us.
            let wanted = shared.recorded();
            drop(state);
            while shared.happened() < wanted {
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
            state = driver.lock();
            seen(&mut state, event);
            return check(&mut state, event);
        }
        driver.wait_until(state, |s| s.events.get(&event).is_none_or(happened));
        state = driver.lock();
        seen(&mut state, event);
        check(&mut state, event)
    }

    fn cuEventElapsedTime(ms: Out<f32>, start: Handle, end: Handle) { elapsed(ms, start, end) }
    fn cuEventElapsedTime_v2(ms: Out<f32>, start: Handle, end: Handle) { elapsed(ms, start, end) }
}
