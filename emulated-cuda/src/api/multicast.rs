//! Multicast objects: made, filled with devices, memory bound to them. They are mapped and
//! exported as memory is, by [`super::virtual_memory`].

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::abi::{self, Handle, MulticastProp};
use crate::driver::{State, index, lock};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::memory::Kind;
use crate::multicast::{self, GRANULARITY, Multicast, RECOMMENDED};
use crate::settings::settings;

fn supported() -> Result {
    match settings().has_multicast() {
        true => Ok(()),
        false => Err(Fault::plain(abi::ERROR_NOT_SUPPORTED)),
    }
}

fn whole(number: usize, what: &str) -> Result<u64> {
    let number = number as u64;
    match number.is_multiple_of(GRANULARITY) {
        true => Ok(number),
        false => Err(invalid(format!(
            "{what} of {number} bytes is no multiple of the granularity of multicast, {GRANULARITY}"
        ))),
    }
}

fn object(state: &mut State, handle: Handle) -> Result<Arc<Multicast>> {
    let found = state.physical(handle)?;
    let object = found.multicast.clone().filter(|_| found.handles > 0);
    object.ok_or_else(|| invalid(format!("0x{handle:x} is no multicast object")))
}

/// Binds a piece of memory that is named by its handle.
fn bind(
    handle: Handle,
    at: usize,
    memory: Handle,
    from: usize,
    bytes: usize,
    flags: u64,
) -> Result {
    let (at, from) = (whole(at, "an offset")?, whole(from, "an offset in memory")?);
    let bytes = whole(bytes, "a binding")?;
    if flags != 0 || bytes == 0 {
        return Err(invalid("flags are not 0, or nothing is to be bound"));
    }
    let team = object(&mut *lock()?, handle)?;
    team.wait_for_devices()?;
    let mut state = lock()?;
    let shared = state.physical(handle)?.exportable;
    let physical = state.physical(memory)?;
    if physical.multicast.is_some() || physical.handles == 0 {
        return Err(invalid(format!("0x{memory:x} is no memory to be bound")));
    }
    let (device, file) = (physical.device, physical.file.clone());
    if from + bytes > file.bytes || at + bytes > team.bytes() {
        return Err(invalid(format!(
            "{bytes} bytes from {from} of {} to {at} of {}",
            file.bytes,
            team.bytes()
        )));
    }
    if shared && !physical.exportable {
        return Err(invalid(
            "memory that cannot be exported is bound to an object that can",
        ));
    }
    if team.added() >> device & 1 == 0 {
        return Err(Fault::named(
            abi::ERROR_INVALID_DEVICE,
            format!("device {device} was not added to the object"),
        ));
    }
    team.bind((memory, file, device), (at, from, bytes))?;
    state.physical(memory)?.holders += 1;
    Ok(())
}

entries! {
    fn cuMulticastGetGranularity(out: Out<usize>, prop: In<MulticastProp>, option: c_uint) {
        prop.read()?;
        supported()?;
        match option {
            0 => out.set(GRANULARITY as usize),
            1 => out.set(RECOMMENDED as usize),
            _ => Err(invalid(format!("no granularity {option}"))),
        }
    }

    fn cuMulticastCreate(out: Out<Handle>, prop: In<MulticastProp>) {
        let prop = prop.read()?;
        supported()?;
        let bytes = whole(prop.bytes, "a multicast object")?;
        let kinds = u64::from(abi::HANDLE_POSIX_FD);
        if prop.devices == 0 || bytes == 0 || prop.flags != 0 || prop.handle_types & !kinds != 0 {
            return Err(invalid(format!("{prop:?} describes no multicast object")));
        }
        let (file, object) = Multicast::create(u64::from(prop.devices), bytes)?;
        let mut state = lock()?;
        out.set(multicast::enter(&mut state, file, object, prop.handle_types != 0))
    }

    fn cuMulticastAddDevice(handle: Handle, device: c_int) {
        let device = index(device)?;
        object(&mut *lock()?, handle)?.add(device)
    }

    fn cuMulticastBindMem(
        handle: Handle, at: usize, memory: Handle, from: usize, bytes: usize, flags: u64
    ) {
        bind(handle, at, memory, from, bytes, flags)
    }

    fn cuMulticastBindAddr(handle: Handle, at: usize, address: u64, bytes: usize, flags: u64) {
        let found = {
            let state = lock()?;
            let found = state.memory.find(address);
            found.cloned().ok_or_else(|| state.memory.unknown(address))?
        };
        let (Kind::Mapped(memory), Some((_, from))) = (found.kind, &found.file) else {
            return Err(Fault::named(
                abi::ERROR_NOT_SUPPORTED,
                format!("{} is not of cuMemCreate", found.describe()),
            ));
        };
        let from = from + (address - found.start);
        bind(handle, at, memory, from as usize, bytes, flags)
    }

    fn cuMulticastUnbind(handle: Handle, device: c_int, at: usize, bytes: usize) {
        let device = index(device)?;
        let (at, bytes) = (whole(at, "an offset")?, whole(bytes, "a binding")?);
        let mut state = lock()?;
        if let Some(memory) = object(&mut state, handle)?.unbind(device, at, bytes)? {
            state.release_physical(memory);
        }
        Ok(())
    }
}
