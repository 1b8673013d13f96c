//! Memory: plain device memory, managed, pinned and registered host memory.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{self, Handle};
use crate::driver::{State, lock};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::memory::{Allocation, Kind, os};
use crate::ranges::pages;
use crate::settings::settings;
use crate::waits::{Waits, wait_for_context};

fn allocate(bytes: usize) -> Result<u64> {
    wait_for_context(Waits::Perhaps)?;
    let mut state = lock()?;
    let context = state.current()?;
    let device = state.context(context)?.device;
    if bytes == 0 {
        return Err(invalid("an allocation of 0 bytes"));
    }
    state.charge(device, bytes as u64)?;
    let State {
        devices, memory, ..
    } = &mut *state;
    let arena = &mut devices[device].arena;
    let start = memory.allocate(arena, bytes as u64, Kind::Device, device, context)?;
    memory.make_ready(start)?;
    Ok(start)
}

/// Frees plain device memory without a check.
pub fn release(state: &mut State, start: u64) {
    let State {
        devices, memory, ..
    } = state;
    let Some(device) = memory.find(start).map(|a| a.device) else {
        return;
    };
    if let Some(gone) = memory.remove(start, Some(&mut devices[device].arena)) {
        devices[device].used -= gone.bytes;
    }
}

/// Host memory that is known from now on.
fn enter_host(state: &mut State, start: u64, bytes: u64, kind: Kind, context: Handle) -> Result {
    let device = state.context(context)?.device;
    state.memory.insert(Allocation {
        start,
        bytes,
        kind,
        device,
        context,
        id: 0,
        view: start,
        region: (start, pages(bytes)),
        file: None,
        access: !0,
        ready: true,
        freeing: false,
    });
    Ok(())
}

fn host_pages(bytes: usize) -> Result<u64> {
    // SAFETY: a new private mapping, checked below.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            pages(bytes as u64) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(os("no host memory"));
    }
    Ok(at as u64)
}

fn host_alloc(bytes: usize, kind: Kind) -> Result<u64> {
    wait_for_context(Waits::Perhaps)?;
    let mut state = lock()?;
    let context = state.current()?;
    if bytes == 0 {
        return Err(invalid("an allocation of 0 bytes"));
    }
    let start = host_pages(bytes)?;
    enter_host(&mut state, start, bytes as u64, kind, context)?;
    Ok(start)
}

fn free_host_pages(state: &mut State, start: u64) {
    if let Some(gone) = state.memory.remove(start, None) {
        // SAFETY: the mapping of `host_pages`; queued work does not use it.
        unsafe { libc::munmap(start as *mut c_void, pages(gone.bytes) as usize) };
    }
}

fn host_register(address: u64, bytes: usize) -> Result {
    wait_for_context(Waits::Perhaps)?;
    let mut state = lock()?;
    let context = state.current()?;
    if address == 0 || bytes == 0 {
        return Err(invalid("nothing to register"));
    }
    let end = address + bytes as u64;
    if state
        .memory
        .all()
        .any(|a| a.start < end && address < a.end())
    {
        return Err(Fault::plain(abi::ERROR_HOST_MEMORY_ALREADY_REGISTERED));
    }
    enter_host(&mut state, address, bytes as u64, Kind::Registered, context)
}

fn host_pointer(out: Out<u64>, address: u64) -> Result {
    let state = lock()?;
    state.current()?;
    match state.memory.find(address) {
        Some(a) if !a.kind.is_device() => out.set(address),
        Some(a) => Err(invalid(format!("{} is no host memory", a.describe()))),
        None => Err(invalid(format!(
            "0x{address:x} is neither pinned nor registered host memory"
        ))),
    }
}

fn free(address: u64) -> Result {
    if address == 0 {
        return Ok(());
    }
    let state = lock()?;
    state.current()?;
    let found = state.memory.exact(address)?.clone();
    let what = found.describe();
    if found.freeing {
        return Err(invalid(format!("{what} is freed twice")));
    }
    state.check_unused(found.start, found.end(), &what)?;
    drop(state);
    wait_for_context(Waits::Always)?;
    let mut state = lock()?;
    match found.kind {
        Kind::Device => release(&mut state, address),
        Kind::Managed => free_host_pages(&mut state, address),
        Kind::Pooled(_) => super::pool::free_now(&mut state, address),
        Kind::Imported => return Err(invalid(format!("{what} is to be closed, not freed"))),
        Kind::Mapped(_) | Kind::Multicast(_) => {
            return Err(invalid(format!("{what} is to be unmapped, not freed")));
        }
        Kind::Pinned | Kind::Registered => {
            return Err(invalid(format!("{what} is not freed by cuMemFree")));
        }
    }
    Ok(())
}

entries! {
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) { address.set(allocate(bytes)?) }

    fn cuMemAllocPitch_v2(
        address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: c_uint
    ) {
        let row = width.next_multiple_of(512);
        address.set(allocate(row * height)?)?;
        pitch.set(row)
    }

    fn cuMemFree_v2(address: u64) { free(address) }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let state = lock()?;
        let device = state.current_device()?;
        let used = state.devices[device].used as usize;
        free.set_if(settings().memory_bytes - used);
        total.set_if(settings().memory_bytes);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        let state = lock()?;
        state.current()?;
        let found = state.memory.find(address).filter(|a| a.kind.is_device());
        let found = found.ok_or_else(|| state.memory.unknown(address))?;
        base.set_if(found.start);
        bytes.set_if(found.bytes as usize);
        Ok(())
    }

    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        if !matches!(flags, 1 | 2) {
            return Err(invalid(format!("no flags {flags} for managed memory")));
        }
        address.set(host_alloc(bytes, Kind::Managed)?)
    }

    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) {
        address.set(host_alloc(bytes, Kind::Pinned)?)
    }

    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, _flags: c_uint) {
        address.set(host_alloc(bytes, Kind::Pinned)?)
    }

    fn cuMemFreeHost(address: u64) {
        let state = lock()?;
        state.current()?;
        let found = state.memory.exact(address)?.clone();
        if found.kind != Kind::Pinned {
            return Err(invalid(format!("{} is not pinned host memory", found.describe())));
        }
        state.check_unused(found.start, found.end(), &found.describe())?;
        drop(state);
        wait_for_context(Waits::Always)?;
        free_host_pages(&mut *lock()?, address);
        Ok(())
    }

    fn cuMemHostRegister_v2(address: u64, bytes: usize, _flags: c_uint) {
        host_register(address, bytes)
    }

    fn cuMemHostUnregister(address: u64) {
        let state = lock()?;
        state.current()?;
        let found = match state.memory.find(address) {
            Some(a) if a.kind == Kind::Registered && a.start == address => a.clone(),
            _ => return Err(Fault::plain(abi::ERROR_HOST_MEMORY_NOT_REGISTERED)),
        };
        state.check_unused(found.start, found.end(), &found.describe())?;
        drop(state);
        wait_for_context(Waits::Always)?;
        lock()?.memory.remove(address, None);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: u64, _flags: c_uint) {
        host_pointer(out, address)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, address: u64) {
        let state = lock()?;
        state.memory.exact(address)?;
        flags.set(2)
    }

    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: c_int, stream: Handle) {
        let mut state = lock()?;
        if device >= 0 {
            state.device(device)?;
        }
        state.stream_of(stream)?;
        state.memory.pieces(address, bytes as u64, false).map(drop)
    }

    fn cuMemAdvise(address: u64, bytes: usize, _advice: c_uint, _device: c_int) {
        lock()?.memory.pieces(address, bytes as u64, false).map(drop)
    }

    fn cuMemGetHandleForAddressRange(
        _handle: In<c_void>, _address: u64, _bytes: usize, _kind: c_uint, _flags: u64
    ) {
        Err(Fault::named(abi::ERROR_NOT_SUPPORTED, "the emulated GPU has no dma-buf"))
    }
}
