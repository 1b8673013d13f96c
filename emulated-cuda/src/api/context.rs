//! Contexts: primary ones, the thread's stack, peers, limits.

use std::ffi::{c_int, c_uint};

use crate::abi::{self, Handle};
use crate::driver::{Object, State, driver, index, lock, ordinal, stale, with_current};
use crate::fault::{Fault, Out, Result, entries, invalid};
use crate::settings::settings;

/// Waits for all work of a context.
pub fn synchronize(context: Handle) -> Result {
    let driver = driver()?;
    let mut state = driver.lock();
    state.context(context)?;
    let ticket = state.ticket();
    driver.wait_until(state, |s| s.drained(context, ticket));
    let mut state = driver.lock();
    state.context(context)?;
    state.order.host_waited_for_all();
    Ok(())
}

fn destroy(context: Handle) -> Result {
    drain(context)?;
    tear_down(&mut *lock()?, context);
    Ok(())
}

/// Waits for what is left; a context with an error can be destroyed.
fn drain(context: Handle) -> Result {
    synchronize(context).or_else(|fault| match fault.message {
        None => Ok(()),
        Some(_) => Err(fault),
    })
}

fn tear_down(state: &mut State, context: Handle) {
    let left: Vec<u64> = state
        .memory
        .all()
        .filter(|a| a.context == context && a.kind == crate::memory::Kind::Device)
        .map(|a| a.start)
        .collect();
    for start in left {
        super::memory::release(state, start);
    }
    if let Some(context) = state.contexts.get_mut(&context) {
        context.alive = false;
        context.sticky = None;
        context.peers.clear();
    }
    let legacy = state.contexts.get(&context).map_or(0, |c| c.legacy);
    state
        .streams
        .retain(|&h, s| s.context != context || h == legacy);
    state.thread_streams.retain(|k, _| k.1 != context);
    state.events.retain(|_, e| e.context != context);
    state.modules.retain(|_, m| m.0 != context);
}

fn release_primary(number: c_int) -> Result {
    let mut state = lock()?;
    let device = state.device(number)?;
    if device.retained == 0 {
        return Err(Fault::named(
            abi::ERROR_INVALID_CONTEXT,
            "the primary context is released more often than it was retained",
        ));
    }
    device.retained -= 1;
    let (last, primary) = (device.retained == 0, device.primary);
    drop(state);
    if !last {
        return Ok(());
    }
    drain(primary)?;
    let mut state = lock()?;
    // Another thread may have retained it while this one waited.
    if state.device(number)?.retained == 0 {
        tear_down(&mut state, primary);
    }
    Ok(())
}

entries! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) {
        let mut state = lock()?;
        let device = state.device(device)?;
        device.retained += 1;
        let primary = device.primary;
        if let Some(c) = state.contexts.get_mut(&primary) {
            c.alive = true;
        }
        context.set(primary)
    }

    fn cuDevicePrimaryCtxRelease(device: c_int) { release_primary(device) }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { release_primary(device) }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let mut state = lock()?;
        let primary = state.device(device)?.primary;
        let context = state.contexts.get(&primary);
        flags.set(context.map_or(0, |c| c.flags))?;
        active.set(c_int::from(context.is_some_and(|c| c.alive)))
    }

    fn cuDevicePrimaryCtxSetFlags(device: c_int, flags: c_uint) {
        set_flags(device, flags)
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        set_flags(device, flags)
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        let primary = lock()?.device(device)?.primary;
        destroy(primary)
    }

    fn cuCtxCreate_v2(context: Out<Handle>, flags: c_uint, device: c_int) {
        let mut state = lock()?;
        state.device(device)?;
        let handle = state.new_context(index(device)?, flags, true);
        with_current(|c| c.push(handle));
        context.set(handle)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        lock()?.contexts.get(&context).ok_or_else(|| stale(Object::Context, context))?;
        destroy(context)?;
        with_current(|c| if c.last() == Some(&context) { c.pop(); });
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        let state = lock()?;
        if context != 0 && !state.contexts.contains_key(&context) {
            return Err(stale(Object::Context, context));
        }
        with_current(|c| {
            c.pop();
            if context != 0 {
                c.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        let _state = lock()?;
        context.set(with_current(|c| c.last().copied()).unwrap_or(0))
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        lock()?.contexts.get(&context).ok_or_else(|| stale(Object::Context, context))?;
        with_current(|c| c.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        let _state = lock()?;
        let popped = with_current(Vec::pop);
        context.set_if(popped.unwrap_or(0));
        popped.map(drop).ok_or_else(|| {
            Fault::named(abi::ERROR_INVALID_CONTEXT, "the thread's stack of contexts is empty")
        })
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        device.set(ordinal(lock()?.current_device()?))
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        let state = lock()?;
        let current = state.current()?;
        flags.set(state.context(current)?.flags)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        let mut state = lock()?;
        let current = state.current()?;
        if let Some(c) = state.contexts.get_mut(&current) {
            c.flags = flags;
        }
        Ok(())
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<c_uint>) {
        lock()?.context(context)?;
        version.set(3020)
    }

    fn cuCtxSynchronize() {
        let state = lock()?;
        let current = state.current()?;
        let capturing = state.streams.values().any(|s| s.context == current && s.capture.is_some());
        drop(state);
        if capturing {
            return Err(Fault::named(
                abi::ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "a stream of the context is being captured into a graph",
            ));
        }
        synchronize(current)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        lock()?.current()?;
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) {
        lock()?.current()?;
        match limit {
            0 => value.set(1024),
            1 => value.set(1 << 20),
            2 => value.set(8 << 20),
            _ => Err(Fault::plain(abi::ERROR_NOT_SUPPORTED)),
        }
    }

    fn cuCtxSetLimit(_limit: c_uint, _value: usize) { lock()?.current().map(drop) }
    fn cuCtxGetCacheConfig(config: Out<c_uint>) {
        lock()?.current()?;
        config.set(0)
    }
    fn cuCtxSetCacheConfig(_config: c_uint) { lock()?.current().map(drop) }
    fn cuProfilerStart() { lock()?.current().map(drop) }
    fn cuProfilerStop() { lock()?.current().map(drop) }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) {
        let mut state = lock()?;
        let current = state.current()?;
        let (here, there) = (state.context(current)?.device, state.context(peer)?.device);
        if flags != 0 {
            return Err(invalid("flags are not 0"));
        }
        if here == there {
            return Err(Fault::named(abi::ERROR_PEER_ACCESS_UNSUPPORTED, "both contexts are of one device"));
        }
        if !settings().between(here, there).reaches() {
            return Err(Fault::named(abi::ERROR_PEER_ACCESS_UNSUPPORTED, "the devices are not linked"));
        }
        let new = state.contexts.get_mut(&current).is_some_and(|c| c.peers.insert(peer));
        match new {
            true => Ok(()),
            false => Err(Fault::plain(abi::ERROR_PEER_ACCESS_ALREADY_ENABLED)),
        }
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let mut state = lock()?;
        let current = state.current()?;
        let had = state.contexts.get_mut(&current).is_some_and(|c| c.peers.remove(&peer));
        match had {
            true => Ok(()),
            false => Err(Fault::plain(abi::ERROR_PEER_ACCESS_NOT_ENABLED)),
        }
    }
}

fn set_flags(device: c_int, flags: c_uint) -> Result {
    let mut state = lock()?;
    let primary = state.device(device)?.primary;
    if let Some(context) = state.contexts.get_mut(&primary) {
        context.flags = flags;
    }
    Ok(())
}
