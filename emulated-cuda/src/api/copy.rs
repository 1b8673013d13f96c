//! Copies and fills.
//!
//! All are checked when they are asked for, and run in their stream. A copy from
//! pageable memory takes a snapshot at once, one to pageable memory is waited for,
//! as the real driver documents it; everything else is read and written later.

use std::ffi::c_uint;
use std::sync::Arc;

use crate::abi::{self, Handle, Memcpy2D, Memcpy3D};
use crate::driver::{State, lock, wait_for};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::work::{Copy, Fill, Op, Shape};

/// What the caller says an end of a copy is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Host,
    Device,
    /// Found out by the address.
    Any,
}

fn check(state: &State, at: u64, bytes: u64, end: End) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    let found = state.memory.find(at);
    match (end, found) {
        (End::Host, Some(a)) if a.kind.is_device() => {
            return Err(invalid(format!("{} is given as host memory", a.describe())));
        }
        (End::Device, None) => return Err(state.memory.unknown(at)),
        (_, None) if !state.memory.is_pageable(at) || at == 0 => {
            return Err(state.memory.unknown(at));
        }
        _ => {}
    }
    // Stream-ordered memory may only exist later: then its bounds are checked.
    if let Some(a) = found
        && !a.ready
    {
        return match at + bytes <= a.end() {
            true => Ok(()),
            false => Err(state.memory.unknown(a.end())),
        };
    }
    state.memory.pieces(at, bytes, end != End::Device).map(drop)
}

/// Checks a copy; takes a snapshot of pageable memory. True if its target is
/// pageable memory, so that the call waits.
fn prepare(state: &State, copy: &mut Copy, target: End, source: End) -> Result<bool> {
    let shape = copy.shape;
    if shape.rows() == 0 {
        return Ok(false);
    }
    let (target_span, source_span) = shape.span();
    let whole = |at: u64, span: u64| {
        state
            .memory
            .find(at)
            .is_some_and(|a| at + span <= a.end() && a.ready)
    };
    for (at, span, end, which) in [
        (copy.target, target_span, target, 0),
        (copy.source, source_span, source, 1),
    ] {
        // The bounds of the whole say enough if they lie in one allocation.
        if whole(at, span) || shape.rows() == 1 || state.memory.find(at).is_none() {
            check(state, at, span, end)?;
            continue;
        }
        for row in 0..shape.rows() {
            let offset = shape.row(row);
            let offset = if which == 0 { offset.0 } else { offset.1 };
            check(state, at + offset, shape.width, end)?;
        }
    }
    if state.memory.is_pageable(copy.source) {
        let mut bytes = vec![0u8; source_span as usize];
        // SAFETY: the caller's memory of this size, by its promise.
        unsafe {
            std::ptr::copy_nonoverlapping(copy.source as *const u8, bytes.as_mut_ptr(), bytes.len())
        };
        copy.staged = Some(Arc::new(bytes));
    }
    Ok(state.memory.is_pageable(copy.target))
}

/// Queues a copy; waits for it if the call is synchronous.
fn submit(mut copy: Copy, ends: (End, End), stream: Handle, synchronous: bool) -> Result {
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    let capturing = state.stream_mut(stream)?.capture.is_some();
    if synchronous {
        state.refuse_capture(stream, "a synchronous copy")?;
    }
    let pageable = prepare(&state, &mut copy, ends.0, ends.1)?;
    if capturing {
        // A graph reads its memory when it runs.
        copy.staged = None;
    }
    let ticket = state.submit(stream, Op::Copy(Box::new(copy)))?;
    match (synchronous || pageable) && !capturing {
        true => wait_for(state, stream, ticket),
        false => Ok(()),
    }
}

fn line(target: u64, source: u64, bytes: usize) -> Copy {
    Copy::new(target, source, Shape::line(bytes as u64))
}

fn plane(c: &Memcpy2D) -> Result<(Copy, (End, End))> {
    let c = Memcpy3D {
        src_x: c.src_x,
        src_y: c.src_y,
        src_z: 0,
        src_lod: 0,
        src_type: c.src_type,
        src_host: c.src_host,
        src_device: c.src_device,
        src_array: c.src_array,
        src_reserved: 0,
        src_pitch: c.src_pitch,
        src_height: c.height + c.src_y,
        dst_x: c.dst_x,
        dst_y: c.dst_y,
        dst_z: 0,
        dst_lod: 0,
        dst_type: c.dst_type,
        dst_host: c.dst_host,
        dst_device: c.dst_device,
        dst_array: c.dst_array,
        dst_reserved: 0,
        dst_pitch: c.dst_pitch,
        dst_height: c.height + c.dst_y,
        width: c.width,
        height: c.height,
        depth: 1,
    };
    volume(&c)
}

fn volume(c: &Memcpy3D) -> Result<(Copy, (End, End))> {
    let end = |kind: c_uint, host: u64, device: u64| match kind {
        abi::MEMORY_HOST => Ok((host, End::Host)),
        abi::MEMORY_DEVICE => Ok((device, End::Device)),
        abi::MEMORY_UNIFIED => Ok((device, End::Any)),
        _ => Err(Fault::named(
            abi::ERROR_NOT_SUPPORTED,
            "arrays are not emulated",
        )),
    };
    let (source, source_end) = end(c.src_type, c.src_host, c.src_device)?;
    let (target, target_end) = end(c.dst_type, c.dst_host, c.dst_device)?;
    // A pitch or height of 0 stands for no gaps.
    let or = |given: usize, least: usize| if given == 0 { least } else { given } as u64;
    let (src_pitch, dst_pitch) = (or(c.src_pitch, c.width), or(c.dst_pitch, c.width));
    let (src_height, dst_height) = (or(c.src_height, c.height), or(c.dst_height, c.height));
    if c.height > 1 && (src_pitch < c.width as u64 || dst_pitch < c.width as u64) {
        return Err(invalid(format!(
            "rows of {} bytes at pitches of {src_pitch} and {dst_pitch}",
            c.width
        )));
    }
    let shape = Shape {
        width: c.width as u64,
        height: c.height as u64,
        depth: c.depth as u64,
        pitch: (dst_pitch, src_pitch),
        slice: (dst_pitch * dst_height, src_pitch * src_height),
    };
    let at = |base: u64, x: usize, y: usize, z: usize, pitch: u64, slice: u64| {
        base + x as u64 + y as u64 * pitch + z as u64 * slice
    };
    let copy = Copy::new(
        at(target, c.dst_x, c.dst_y, c.dst_z, dst_pitch, shape.slice.0),
        at(source, c.src_x, c.src_y, c.src_z, src_pitch, shape.slice.1),
        shape,
    );
    Ok((copy, (target_end, source_end)))
}

fn fill(
    target: u64,
    pitch: usize,
    value: (u32, u64),
    width: usize,
    height: usize,
    stream: Handle,
    synchronous: bool,
) -> Result {
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    if synchronous {
        state.refuse_capture(stream, "a synchronous fill")?;
    }
    let bytes = width as u64 * value.1;
    if !target.is_multiple_of(value.1) {
        return Err(invalid(format!(
            "0x{target:x} is not a multiple of {}",
            value.1
        )));
    }
    if height > 1 && (pitch as u64) < bytes {
        return Err(invalid(format!(
            "rows of {bytes} bytes at a pitch of {pitch}"
        )));
    }
    for row in 0..height as u64 {
        check(&state, target + row * pitch as u64, bytes, End::Device)?;
    }
    let op = Op::Fill(Fill {
        target,
        value,
        pitch: pitch as u64,
        width: bytes,
        height: height as u64,
    });
    let ticket = state.submit(stream, op)?;
    match synchronous {
        true => wait_for(state, stream, ticket),
        false => Ok(()),
    }
}

entries! {
    fn cuMemcpy(target: u64, source: u64, bytes: usize) {
        submit(line(target, source, bytes), (End::Any, End::Any), 0, true)
    }
    fn cuMemcpyAsync(target: u64, source: u64, bytes: usize, stream: Handle) {
        submit(line(target, source, bytes), (End::Any, End::Any), stream, false)
    }
    fn cuMemcpyHtoD_v2(target: u64, source: u64, bytes: usize) {
        submit(line(target, source, bytes), (End::Device, End::Host), 0, true)
    }
    fn cuMemcpyHtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle) {
        submit(line(target, source, bytes), (End::Device, End::Host), stream, false)
    }
    fn cuMemcpyDtoH_v2(target: u64, source: u64, bytes: usize) {
        submit(line(target, source, bytes), (End::Host, End::Device), 0, true)
    }
    fn cuMemcpyDtoHAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle) {
        submit(line(target, source, bytes), (End::Host, End::Device), stream, false)
    }
    fn cuMemcpyDtoD_v2(target: u64, source: u64, bytes: usize) {
        submit(line(target, source, bytes), (End::Device, End::Device), 0, true)
    }
    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle) {
        submit(line(target, source, bytes), (End::Device, End::Device), stream, false)
    }

    fn cuMemcpyPeer(target: u64, target_context: Handle, source: u64, source_context: Handle, bytes: usize) {
        check_peer(target, target_context, source, source_context)?;
        submit(line(target, source, bytes), (End::Device, End::Device), 0, true)
    }
    fn cuMemcpyPeerAsync(
        target: u64, target_context: Handle, source: u64, source_context: Handle, bytes: usize,
        stream: Handle
    ) {
        check_peer(target, target_context, source, source_context)?;
        submit(line(target, source, bytes), (End::Device, End::Device), stream, false)
    }

    fn cuMemcpy2D_v2(copy: In<Memcpy2D>) {
        let (copy, ends) = plane(&copy.read()?)?;
        submit(copy, ends, 0, true)
    }
    fn cuMemcpy2DUnaligned_v2(copy: In<Memcpy2D>) {
        let (copy, ends) = plane(&copy.read()?)?;
        submit(copy, ends, 0, true)
    }
    fn cuMemcpy2DAsync_v2(copy: In<Memcpy2D>, stream: Handle) {
        let (copy, ends) = plane(&copy.read()?)?;
        submit(copy, ends, stream, false)
    }
    fn cuMemcpy3D_v2(copy: In<Memcpy3D>) {
        let (copy, ends) = volume(&copy.read()?)?;
        submit(copy, ends, 0, true)
    }
    fn cuMemcpy3DAsync_v2(copy: In<Memcpy3D>, stream: Handle) {
        let (copy, ends) = volume(&copy.read()?)?;
        submit(copy, ends, stream, false)
    }
    fn cuMemcpy3DPeer(copy: In<Memcpy3D>) {
        let (copy, ends) = volume(&copy.read()?)?;
        submit(copy, ends, 0, true)
    }
    fn cuMemcpy3DPeerAsync(copy: In<Memcpy3D>, stream: Handle) {
        let (copy, ends) = volume(&copy.read()?)?;
        submit(copy, ends, stream, false)
    }

    /// Attributes are not looked at: every source is read in stream order, or
    /// staged at once if it is pageable.
    fn cuMemcpyBatchAsync(
        targets: In<u64>, sources: In<u64>, bytes: In<usize>, count: usize,
        _attributes: In<u8>, _indices: In<usize>, _attribute_count: usize,
        _failed: Out<usize>, stream: Handle
    ) {
        batch(targets, sources, bytes, count, stream)
    }
    /// As `cuMemcpyBatchAsync`, without the index of what failed.
    fn cuMemcpyBatchAsync_v2(
        targets: In<u64>, sources: In<u64>, bytes: In<usize>, count: usize,
        _attributes: In<u8>, _indices: In<usize>, _attribute_count: usize, stream: Handle
    ) {
        batch(targets, sources, bytes, count, stream)
    }

    fn cuMemsetD8_v2(at: u64, value: u8, count: usize) {
        fill(at, count, (value.into(), 1), count, 1, 0, true)
    }
    fn cuMemsetD16_v2(at: u64, value: u16, count: usize) {
        fill(at, count, (value.into(), 2), count, 1, 0, true)
    }
    fn cuMemsetD32_v2(at: u64, value: u32, count: usize) {
        fill(at, count, (value, 4), count, 1, 0, true)
    }
    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: Handle) {
        fill(at, count, (value.into(), 1), count, 1, stream, false)
    }
    fn cuMemsetD16Async(at: u64, value: u16, count: usize, stream: Handle) {
        fill(at, count, (value.into(), 2), count, 1, stream, false)
    }
    fn cuMemsetD32Async(at: u64, value: u32, count: usize, stream: Handle) {
        fill(at, count, (value, 4), count, 1, stream, false)
    }
    fn cuMemsetD2D8_v2(at: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(at, pitch, (value.into(), 1), width, height, 0, true)
    }
    fn cuMemsetD2D8Async(at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        fill(at, pitch, (value.into(), 1), width, height, stream, false)
    }
}

/// Memory of a peer copy must lie on the devices of the contexts given.
fn check_peer(target: u64, target_context: Handle, source: u64, source_context: Handle) -> Result {
    let state = lock()?;
    for (at, context) in [(target, target_context), (source, source_context)] {
        let device = state.context(context)?.device;
        let found = state
            .memory
            .find(at)
            .ok_or_else(|| state.memory.unknown(at))?;
        if found.kind.is_device() && found.device != device {
            return Err(Fault::named(
                abi::ERROR_INVALID_VALUE,
                format!(
                    "wrong context: {} is given with that of device {device}",
                    found.describe()
                ),
            ));
        }
    }
    Ok(())
}

fn batch(
    targets: In<u64>,
    sources: In<u64>,
    bytes: In<usize>,
    count: usize,
    stream: Handle,
) -> Result {
    if stream <= abi::STREAM_LEGACY {
        return Err(Fault::named(
            abi::ERROR_INVALID_HANDLE,
            "a batch of copies cannot use the legacy default stream",
        ));
    }
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    state.refuse_capture(stream, "a batch of copies")?;
    let mut copies = Vec::with_capacity(count);
    let mut pageable = false;
    for i in 0..count {
        let mut copy = line(targets.at(i)?, sources.at(i)?, bytes.at(i)?);
        pageable |= prepare(&state, &mut copy, End::Any, End::Any)?;
        copies.push(copy);
    }
    let ticket = state.submit(stream, Op::Batch(copies))?;
    match pageable {
        true => wait_for(state, stream, ticket),
        false => Ok(()),
    }
}
