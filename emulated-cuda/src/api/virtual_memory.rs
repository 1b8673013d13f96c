//! Virtual memory management: physical memory, reserved addresses, mappings.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use crate::abi::{self, AccessDesc, AllocationProp, Handle};
use crate::driver::{Object, Physical, State, index, lock, ordinal, stale};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::memory::{Allocation, File, Kind};
use crate::multicast::{self, Multicast};
use crate::settings::settings;

/// As on real devices.
const GRANULARITY: u64 = 2 << 20;

fn whole(bytes: usize, what: &str) -> Result<u64> {
    let bytes = bytes as u64;
    match bytes > 0 && bytes.is_multiple_of(GRANULARITY) {
        true => Ok(bytes),
        false => Err(invalid(format!(
            "{what} of {bytes} bytes is no multiple of the granularity, {GRANULARITY}"
        ))),
    }
}

/// Starts of the mappings that make up exactly this range.
fn mappings(state: &State, start: u64, bytes: u64) -> Result<Vec<u64>> {
    let end = start + bytes;
    let found: Vec<&Allocation> = state
        .memory
        .all()
        .filter(|a| matches!(a.kind, Kind::Mapped(_) | Kind::Multicast(_)))
        .filter(|a| a.start < end && start < a.end())
        .collect();
    let covered: u64 = found.iter().map(|a| a.bytes).sum();
    let fits = found.iter().all(|a| a.start >= start && a.end() <= end);
    if covered != bytes || !fits {
        return Err(invalid(format!(
            "{bytes} bytes at 0x{start:x} are not a row of whole mappings"
        )));
    }
    Ok(found.iter().map(|a| a.start).collect())
}

entries! {
    fn cuMemGetAllocationGranularity(out: Out<usize>, _prop: In<AllocationProp>, _option: c_uint) {
        out.set(GRANULARITY as usize)
    }

    fn cuMemCreate(out: Out<Handle>, bytes: usize, prop: In<AllocationProp>, flags: u64) {
        let prop = prop.read()?;
        let bytes = whole(bytes, "physical memory")?;
        let mut state = lock()?;
        if flags != 0 || prop.kind != 1 || prop.location.kind != abi::LOCATION_DEVICE {
            return Err(invalid("only pinned memory of a device can be created"));
        }
        state.device(prop.location.id)?;
        let device = index(prop.location.id)?;
        state.charge(device, bytes)?;
        let file = File::create_on(device, bytes)?;
        let handle = state.handle(Object::Physical);
        state.physical.insert(handle, Physical {
            device,
            file,
            holders: 1,
            exportable: prop.handle_types & abi::HANDLE_POSIX_FD != 0,
            counted: true,
            handles: 1,
            multicast: None,
        });
        out.set(handle)
    }

    fn cuMemRelease(handle: Handle) {
        let mut state = lock()?;
        let physical = state.physical(handle)?;
        if physical.handles == 0 {
            return Err(stale(Object::Physical, handle));
        }
        physical.handles -= 1;
        state.release_physical(handle);
        Ok(())
    }

    fn cuMemRetainAllocationHandle(out: Out<Handle>, address: u64) {
        let mut state = lock()?;
        let found = state.memory.find(address).ok_or_else(|| state.memory.unknown(address))?;
        let (Kind::Mapped(handle) | Kind::Multicast(handle)) = found.kind else {
            return Err(invalid(format!("{} has no allocation handle", found.describe())));
        };
        let physical = state.physical(handle)?;
        physical.handles += 1;
        physical.holders += 1;
        out.set(handle)
    }

    fn cuMemAddressReserve(out: Out<u64>, bytes: usize, alignment: usize, _hint: u64, flags: u64) {
        let bytes = whole(bytes, "a reservation")?;
        let mut state = lock()?;
        if flags != 0 {
            return Err(invalid("flags are not 0"));
        }
        let alignment = (alignment as u64).max(GRANULARITY);
        if !alignment.is_power_of_two() {
            return Err(invalid(format!("an alignment of {alignment} bytes")));
        }
        let start = state.memory.take_addresses(bytes, alignment)?;
        state.memory.reserved.insert(start, bytes);
        out.set(start)
    }

    fn cuMemAddressFree(start: u64, bytes: usize) {
        let mut state = lock()?;
        if state.memory.reserved.get(&start) != Some(&(bytes as u64)) {
            return Err(invalid(format!("{bytes} bytes at 0x{start:x} are not a reservation")));
        }
        let end = start + bytes as u64;
        let left = state.memory.all().find(|a| a.start < end && start < a.end()).map(Allocation::describe);
        if let Some(left) = left {
            return Err(Fault::named(
                abi::ERROR_ILLEGAL_STATE,
                format!("a reservation is freed with {left} in it"),
            ));
        }
        state.memory.reserved.remove(&start);
        state.memory.give_addresses(start);
        Ok(())
    }

    fn cuMemMap(start: u64, bytes: usize, offset: usize, handle: Handle, flags: u64) {
        let bytes = whole(bytes, "a mapping")?;
        let object = lock()?.physical(handle)?.multicast.clone();
        object.iter().try_for_each(|object| object.wait_for_devices())?;
        let mut state = lock()?;
        let context = state.current().unwrap_or(0);
        let end = start + bytes;
        let fits = state.memory.reserved.range(..=start).next_back()
            .is_some_and(|(&s, &b)| start >= s && end <= s + b);
        if !fits || flags != 0 || !start.is_multiple_of(GRANULARITY) {
            return Err(invalid(format!("{bytes} bytes at 0x{start:x} were not reserved")));
        }
        if state.memory.all().any(|a| a.start < end && start < a.end()) {
            return Err(Fault::plain(abi::ERROR_ALREADY_MAPPED));
        }
        let offset = offset as u64;
        let physical = state.physical(handle)?;
        let (room, granularity) = match &object {
            Some(object) => (object.bytes(), multicast::GRANULARITY),
            None => (physical.file.bytes, GRANULARITY),
        };
        let fits = offset + bytes <= room && offset.is_multiple_of(granularity);
        if physical.handles == 0 || !fits || !bytes.is_multiple_of(granularity) {
            return Err(invalid(format!(
                "{bytes} bytes at {offset} of {room} cannot be mapped, or they were released"
            )));
        }
        physical.holders += 1;
        let (device, file) = (physical.device, physical.file.clone());
        let kind = match &object {
            Some(_) => Kind::Multicast(handle),
            None => Kind::Mapped(handle),
        };
        let of_memory = object.is_none();
        state.memory.insert(Allocation {
            start,
            bytes,
            kind,
            device,
            context,
            id: 0,
            // Of a multicast object nothing is seen at its address: pages stay closed.
            view: if of_memory { file.view + offset } else { offset },
            region: (start, bytes),
            file: of_memory.then_some((file, offset)),
            access: 0,
            ready: true,
            freeing: false,
        });
        Ok(())
    }

    fn cuMemUnmap(start: u64, bytes: usize) {
        let mut state = lock()?;
        let all = mappings(&state, start, bytes as u64)?;
        state.check_unused(start, start + bytes as u64, "a mapping")?;
        for start in all {
            if let Some(gone) = state.memory.remove_mapping(start)
                && let Kind::Mapped(handle) | Kind::Multicast(handle) = gone.kind
            {
                state.release_physical(handle);
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(start: u64, bytes: usize, accesses: In<AccessDesc>, count: usize) {
        let mut state = lock()?;
        let (mut given, mut taken) = (0, 0);
        for i in 0..count {
            let access = accesses.at(i)?;
            state.device(access.location.id)?;
            let bit = 1u64 << index(access.location.id)?;
            if access.flags == 3 {
                given |= bit;
            } else if access.flags == 0 {
                taken |= bit;
            } else {
                return Err(Fault::named(abi::ERROR_NOT_SUPPORTED, "read-only access: not yet"));
            }
        }
        for start in mappings(&state, start, bytes as u64)? {
            let Some(kind) = state.memory.find(start).map(|found| found.kind) else { continue };
            let team = match kind {
                Kind::Multicast(handle) => {
                    state.physical(handle)?.multicast.as_ref().map(|object| object.added())
                }
                _ => None,
            };
            let Some(found) = state.memory.find_mut(start) else { continue };
            let stranger = |device: &usize| {
                given & (1 << device) != 0
                    && match team {
                        Some(team) => team & (1 << device) == 0,
                        None => !settings().opens(*device, found.device),
                    }
            };
            if (0..u64::BITS as usize).any(|device| stranger(&device)) {
                return Err(Fault::named(
                    abi::ERROR_INVALID_DEVICE,
                    format!("{} is not reached from other devices: they are not linked", found.describe()),
                ));
            }
            // Devices that are not named keep what they have.
            let before = found.access;
            found.access = (found.access | given) & !taken;
            let found = found.clone();
            match (before, found.access) {
                (_, 0) => state.memory.unmap_region(found.region),
                (0, _) => state.memory.map_region(&found)?,
                // A kernel of another device may be at it.
                _ => state.memory.regroup(&found),
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<abi::Location>, address: u64) {
        let state = lock()?;
        let found = state.memory.find(address).ok_or_else(|| state.memory.unknown(address))?;
        let device = index(location.read()?.id)?;
        flags.set(if found.access >> device & 1 == 1 { 3 } else { 0 })
    }

    fn cuMemExportToShareableHandle(out: Out<c_int>, handle: Handle, kind: c_uint, _flags: u64) {
        let mut state = lock()?;
        let physical = state.physical(handle)?;
        if kind != abi::HANDLE_POSIX_FD || !physical.exportable || physical.handles == 0 {
            return Err(invalid("the memory was not created to be exported as a descriptor"));
        }
        out.set(physical.file.duplicate()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(out: Out<Handle>, fd: In<c_void>, kind: c_uint) {
        let mut state = lock()?;
        if kind != abi::HANDLE_POSIX_FD {
            return Err(Fault::plain(abi::ERROR_NOT_SUPPORTED));
        }
        // SAFETY: the caller lends its descriptor; `ManuallyDrop` leaves it open.
        let lent = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd.address_void() as c_int) });
        let own = lent.try_clone().map_err(|_| invalid("no open descriptor"))?;
        if Multicast::is_one(&own)? {
            let (file, object) = Multicast::open(own)?;
            return out.set(multicast::enter(&mut state, file, object, true));
        }
        let (device, bytes) = File::inspect(&own)?;
        let current = state.current_device()?;
        // Not reported as misuse: a caller tries, and decides.
        if device >= state.devices.len() || !settings().opens(current, device) {
            return Err(Fault::plain(abi::ERROR_INVALID_DEVICE));
        }
        let file = File::map(own, 0, bytes)?;
        let handle = state.handle(Object::Physical);
        state.physical.insert(handle, Physical {
            device,
            file,
            holders: 1,
            exportable: true,
            counted: false,
            handles: 1,
            multicast: None,
        });
        out.set(handle)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: Out<AllocationProp>, handle: Handle) {
        let mut state = lock()?;
        let physical = state.physical(handle)?;
        if physical.multicast.is_some() {
            return Err(invalid("a multicast object has no properties of memory"));
        }
        out.set(AllocationProp {
            kind: 1,
            handle_types: if physical.exportable { abi::HANDLE_POSIX_FD } else { 0 },
            location: abi::Location { kind: abi::LOCATION_DEVICE, id: ordinal(physical.device) },
            win32: std::ptr::null_mut(),
            flags: [0; 8],
        })
    }
}
