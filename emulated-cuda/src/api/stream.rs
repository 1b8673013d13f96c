//! Streams: making, waiting, host functions, memory operations.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{self, Handle};
use crate::driver::{State, lock, wait_for};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::waits::{Waits, wait_for_context};
use crate::work::{HostFunction, Op};

fn create(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Result {
    wait_for_context(Waits::Perhaps)?;
    let mut state = lock()?;
    let current = state.current()?;
    if flags & !abi::STREAM_NON_BLOCKING != 0 {
        return Err(invalid(format!("no stream flags {flags}")));
    }
    let handle = state.new_stream(current, flags, priority.clamp(-5, 0));
    stream.set(handle)
}

/// Queues a wait for the last record of an event.
pub fn wait(state: &mut State, stream: Handle, event: Handle) -> Result {
    let e = state.event(event)?;
    if let Some((graph, nodes)) = e.captured.clone() {
        // The stream joins the capture in which the event was recorded.
        let target = state.stream_mut(stream)?;
        match &mut target.capture {
            Some((own, frontier)) if *own == graph => {
                for node in nodes {
                    if !frontier.contains(&node) {
                        frontier.push(node);
                    }
                }
            }
            Some(_) => return Err(Fault::plain(abi::ERROR_STREAM_CAPTURE_MERGE)),
            None => target.capture = Some((graph, nodes)),
        }
        return Ok(());
    }
    let recorded = e.shared.as_ref().map_or(e.recorded, |s| s.recorded());
    let shared = e.shared.clone();
    // An event that was never recorded has nothing to wait for.
    if recorded > 0 {
        match shared {
            Some(shared) => state.submit(stream, Op::WaitShared(shared, recorded))?,
            None => state.submit(stream, Op::Wait(event, recorded))?,
        };
    }
    Ok(())
}

fn write(stream: Handle, address: u64, value: u64, bytes: u64) -> Result {
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    state.memory.pieces(address, bytes, false)?;
    state
        .submit(stream, Op::Write(address, value, bytes))
        .map(drop)
}

fn wait_value(stream: Handle, address: u64, value: u64, bytes: u64, flags: c_uint) -> Result {
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    state.memory.pieces(address, bytes, false)?;
    state
        .submit(stream, Op::Await(address, value, bytes, flags))
        .map(drop)
}

entries! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) { create(stream, flags, 0) }
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy_v2(handle: Handle) {
        let mut state = lock()?;
        let handle = state.stream_of(handle)?;
        let stream = state.stream_mut(handle)?;
        if stream.queue.is_empty() {
            state.streams.remove(&handle);
            state.order.forget(handle);
        } else {
            stream.destroyed = true;
        }
        Ok(())
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        priority.set(state.stream_mut(stream)?.priority)
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        flags.set(state.stream_mut(stream)?.flags)
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        let mut state = lock()?;
        if stream <= abi::STREAM_PER_THREAD {
            return context.set(state.current()?);
        }
        context.set(state.stream_mut(stream)?.context)
    }

    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        let mut state = lock()?;
        id.set(state.stream_of(stream)?)
    }

    fn cuStreamQuery(stream: Handle) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        state.refuse_capture(stream, "cuStreamQuery")?;
        match state.stream_mut(stream)?.queue.is_empty() {
            true => {
                state.order.host_waited(stream);
                Ok(())
            }
            false => Err(Fault::plain(abi::ERROR_NOT_READY)),
        }
    }

    fn cuStreamSynchronize(stream: Handle) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        state.refuse_capture(stream, "cuStreamSynchronize")?;
        let ticket = state.ticket();
        wait_for(state, stream, ticket)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        wait(&mut state, stream, event)
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: In<c_void>) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        let function = function.ok_or_else(|| invalid("no function"))?;
        state.submit(stream, Op::Host(function, data.address_void())).map(drop)
    }

    fn cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, _flags: c_uint) {
        write(stream, address, u64::from(value), 4)
    }
    fn cuStreamWriteValue64_v2(stream: Handle, address: u64, value: u64, _flags: c_uint) {
        write(stream, address, value, 8)
    }
    fn cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint) {
        wait_value(stream, address, u64::from(value), 4, flags)
    }
    fn cuStreamWaitValue64_v2(stream: Handle, address: u64, value: u64, flags: c_uint) {
        wait_value(stream, address, value, 8, flags)
    }
    fn cuStreamAttachMemAsync(stream: Handle, address: u64, _bytes: usize, _flags: c_uint) {
        let mut state = lock()?;
        state.stream_of(stream)?;
        state.memory.exact(address).map(drop)
    }
}
