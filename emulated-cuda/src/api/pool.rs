//! Stream-ordered memory and its pools.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use crate::abi::{self, Handle, Opaque64, PoolProps};
use crate::driver::{Object, Pool, State, index, lock};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::ipc::{Ticket, namespace};
use crate::memory::{Allocation, FILE_SPAN, File, Kind};
use crate::ranges::{PAGE, pages};
use crate::settings::settings;
use crate::work::Op;

fn allocate(bytes: usize, pool: Handle, stream: Handle) -> Result<u64> {
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    let context = state.stream_mut(stream)?.context;
    if bytes == 0 {
        return Err(invalid("an allocation of 0 bytes"));
    }
    state.refuse_capture(
        stream,
        "a stream-ordered allocation (memory nodes: not yet)",
    )?;
    let here = state.context(context)?.device;
    let pool = if pool == 0 {
        state.devices[here].pool
    } else {
        pool
    };
    let device = state.pool(pool)?.device;
    state.charge(device, bytes as u64)?;
    let State { pools, memory, .. } = &mut *state;
    let entry = pools
        .get_mut(&pool)
        .ok_or(Fault::plain(abi::ERROR_INVALID_HANDLE))?;
    let arena = entry
        .arena
        .as_mut()
        .ok_or_else(|| invalid("memory cannot be allocated from an imported pool"))?;
    let start = memory.allocate(arena, bytes as u64, Kind::Pooled(pool), device, context)?;
    if let Some(fresh) = memory.find_mut(start) {
        fresh.access = entry.access;
    }
    entry.used += bytes as u64;
    entry.high = entry.high.max(entry.used);
    state.submit(stream, Op::Allocate(start))?;
    Ok(start)
}

/// Frees memory of a pool, or what was imported into one.
pub fn free_now(state: &mut State, start: u64) {
    let Some(found) = state.memory.find(start).cloned() else {
        return;
    };
    let State { pools, memory, .. } = state;
    let pool = match found.kind {
        Kind::Pooled(pool) => pools.get_mut(&pool),
        _ => None,
    };
    match pool {
        Some(pool) if pool.arena.is_some() => {
            memory.remove(start, pool.arena.as_mut());
            pool.used -= found.bytes;
            state.uncharge(found.device, found.bytes);
        }
        _ => {
            memory.remove(start, None);
        }
    }
}

fn device_pool(device: c_int) -> Result<Handle> {
    Ok(lock()?.device(device)?.pool)
}

entries! {
    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) {
        address.set(allocate(bytes, 0, stream)?)
    }

    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        if pool == 0 {
            return Err(invalid("no pool"));
        }
        address.set(allocate(bytes, pool, stream)?)
    }

    fn cuMemFreeAsync(address: u64, stream: Handle) {
        let mut state = lock()?;
        let stream = state.stream_of(stream)?;
        let found = state.memory.exact(address)?.clone();
        if !matches!(found.kind, Kind::Pooled(_)) {
            return Err(invalid(format!("{} was not allocated in stream order", found.describe())));
        }
        if found.freeing {
            return Err(invalid(format!("{} is freed twice", found.describe())));
        }
        state.refuse_capture(stream, "a stream-ordered free (memory nodes: not yet)")?;
        // Work of other streams must be over when the free is reached; its own
        // stream is in order.
        if let Some(a) = state.memory.find_mut(address) {
            a.freeing = true;
        }
        state.submit(stream, Op::Free(address)).map(drop)
    }

    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<PoolProps>) {
        let properties = properties.read()?;
        let mut state = lock()?;
        state.device(properties.location.id)?;
        let exportable = properties.handle_types & abi::HANDLE_POSIX_FD != 0;
        pool.set(state.new_pool(index(properties.location.id)?, exportable)?)
    }

    fn cuMemPoolDestroy(pool: Handle) {
        let mut state = lock()?;
        state.pool(pool)?;
        if state.devices.iter().any(|d| d.default_pool == pool) {
            return Err(invalid("a default pool cannot be destroyed"));
        }
        let used = state.memory.all().find(|a| a.kind == Kind::Pooled(pool)).map(Allocation::describe);
        if let Some(used) = used {
            return Err(Fault::named(
                abi::ERROR_ILLEGAL_STATE,
                format!("the pool is destroyed while {used} is in use"),
            ));
        }
        state.pools.remove(&pool);
        for device in &mut state.devices {
            if device.pool == pool {
                device.pool = device.default_pool;
            }
        }
        Ok(())
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) {
        pool.set(lock()?.device(device)?.default_pool)
    }
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int) { pool.set(device_pool(device)?) }
    fn cuDeviceSetMemPool(device: c_int, pool: Handle) {
        let mut state = lock()?;
        state.pool(pool)?;
        state.device(device)?.pool = pool;
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) { lock()?.pool(pool).map(drop) }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: In<u64>) {
        let mut state = lock()?;
        let value = match attribute {
            1..=3 => value.read()? & 0xffff_ffff,
            _ => value.read()?,
        };
        state.pool(pool)?.attributes.insert(attribute, value);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>) {
        let mut state = lock()?;
        let pool = state.pool(pool)?;
        let kept = pool.attributes.get(&attribute).copied();
        match attribute {
            // These three are of type int.
            1..=3 => {
                let at = value.address().cast::<c_int>();
                if at.is_null() {
                    return Err(invalid("a pointer for the result is null"));
                }
                // SAFETY: not null, so valid for an int by the caller's promise.
                unsafe { at.write_unaligned(kept.unwrap_or(1) as c_int) };
                Ok(())
            }
            4 => value.set(kept.unwrap_or(0)),
            5 | 7 => value.set(pool.used),
            6 | 8 => value.set(pool.high),
            _ => Err(invalid(format!("no pool attribute {attribute}"))),
        }
    }

    fn cuMemPoolSetAccess(pool: Handle, accesses: In<abi::AccessDesc>, count: usize) {
        let mut state = lock()?;
        let owner = state.pool(pool)?.device;
        for i in 0..count {
            let access = accesses.at(i)?;
            state.device(access.location.id)?;
            let device = index(access.location.id)?;
            if access.flags != 0 && !settings().opens(device, owner) {
                return Err(Fault::named(
                    abi::ERROR_INVALID_DEVICE,
                    format!("device {device} does not reach the memory of device {owner}"),
                ));
            }
            let pool = state.pool(pool)?;
            match access.flags {
                0 => pool.access &= !(1 << device),
                _ => pool.access |= 1 << device,
            }
        }
        // What was allocated before as well.
        let access = state.pool(pool)?.access;
        let of_pool = |a: &&Allocation| a.kind == Kind::Pooled(pool) && a.access != access;
        let starts: Vec<u64> = state.memory.all().filter(of_pool).map(|a| a.start).collect();
        for start in starts {
            let Some(found) = state.memory.find_mut(start) else { continue };
            found.access = access;
            let found = found.clone();
            if found.ready {
                state.memory.regroup(&found);
            }
        }
        Ok(())
    }

    fn cuMemPoolExportToShareableHandle(out: Out<c_int>, pool: Handle, kind: c_uint, _flags: u64) {
        let mut state = lock()?;
        let pool = state.pool(pool)?;
        if kind != abi::HANDLE_POSIX_FD || !pool.exportable {
            return Err(invalid("the pool was not created to be exported as a descriptor"));
        }
        pool.exported = true;
        let arena = pool.arena.as_ref().ok_or_else(|| invalid("an imported pool is not exported again"))?;
        out.set(arena.file.duplicate()?.into_raw_fd())
    }

    fn cuMemPoolImportFromShareableHandle(out: Out<Handle>, fd: In<c_void>, kind: c_uint, _flags: u64) {
        let mut state = lock()?;
        if kind != abi::HANDLE_POSIX_FD {
            return Err(Fault::plain(abi::ERROR_NOT_SUPPORTED));
        }
        // SAFETY: the caller lends its descriptor; `ManuallyDrop` leaves it open.
        let lent = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd.address_void() as c_int) });
        let own = lent.try_clone().map_err(|_| invalid("no open descriptor"))?;
        let (device, bytes) = File::inspect(&own)?;
        if bytes != FILE_SPAN {
            return Err(invalid("the descriptor is of an allocation, not of a pool"));
        }
        // Not reported as misuse: a caller tries, and decides.
        if device >= state.devices.len() || !settings().opens(state.current_device()?, device) {
            return Err(Fault::plain(abi::ERROR_INVALID_DEVICE));
        }
        let handle = state.handle(Object::Pool);
        state.pools.insert(handle, Pool {
            device,
            arena: None,
            imported: Some(File::map(own, 0, FILE_SPAN)?),
            exportable: false,
            exported: false,
            access: 1 << device,
            attributes: Default::default(),
            used: 0,
            high: 0,
        });
        out.set(handle)
    }

    fn cuMemPoolExportPointer(out: Out<Opaque64>, address: u64) {
        let mut state = lock()?;
        let found = state.memory.exact(address)?.clone();
        let (Kind::Pooled(pool), Some((file, offset))) = (found.kind, &found.file) else {
            return Err(invalid(format!("{} is not of a pool", found.describe())));
        };
        // Not reported as misuse: a caller tries, and exports the pool.
        if !state.pool(pool)?.exported {
            return Err(Fault::plain(abi::ERROR_INVALID_VALUE));
        }
        out.set(Ticket {
            kind: 3,
            process: std::process::id(),
            fd: file.fd() as u32,
            device: found.device as u32,
            offset: *offset,
            bytes: found.bytes,
            address,
            namespace: namespace(),
            id: found.id,
        }.seal())
    }

    fn cuMemPoolImportPointer(out: Out<u64>, pool: Handle, data: In<Opaque64>) {
        let ticket = Ticket::open(&data.read()?, 3)?;
        let mut state = lock()?;
        let context = state.current()?;
        let (device, access, file) = {
            let pool = state.pool(pool)?;
            let file = pool.imported.clone().ok_or_else(|| invalid("the pool was not imported"))?;
            (pool.device, pool.access, file)
        };
        let twice = state.memory.all().any(|a| {
            a.kind == Kind::Pooled(pool) && a.file.as_ref().is_some_and(|(_, at)| *at == ticket.offset)
        });
        if twice {
            return Err(invalid("the pointer is imported already"));
        }
        let shift = ticket.offset % PAGE;
        let length = pages(shift + ticket.bytes);
        let region = state.memory.take_addresses(length + PAGE, PAGE)?;
        let start = state.memory.insert(Allocation {
            start: region + shift,
            bytes: ticket.bytes,
            kind: Kind::Pooled(pool),
            device,
            context,
            id: 0,
            view: file.view + ticket.offset,
            region: (region, length),
            file: Some((file, ticket.offset)),
            access,
            ready: false,
            freeing: false,
        });
        state.memory.make_ready(start)?;
        out.set(start)
    }
}
