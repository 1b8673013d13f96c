//! Pointer attributes.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi;
use crate::driver::{State, is_initialised, lock, ordinal};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::memory::{Allocation, Kind};

/// What a pool maps at a time.
const POOL_PAGE: u64 = 2 << 20;

/// Start and bytes of the addresses that memory lies in: of mapped memory the whole
/// reservation, as NVIDIA's reference says of these two attributes; of a pool's, which is mapped
/// by the driver itself, the pages. The piece, or the allocation, is what `cuMemGetAddressRange`
/// answers.
fn range(state: &State, found: &Allocation) -> (u64, u64) {
    let around = state.memory.reserved.range(..=found.start).next_back();
    match (found.kind, around) {
        (Kind::Mapped(_) | Kind::Multicast(_), Some((&start, &bytes))) => (start, bytes),
        (Kind::Pooled(_), _) => {
            let start = found.start - found.start % POOL_PAGE;
            let end = (found.start + found.bytes).next_multiple_of(POOL_PAGE);
            (start, end - start)
        }
        _ => (found.start, found.bytes),
    }
}

/// Writes an attribute where it is known; true if it is.
fn attribute(state: &State, out: *mut c_void, number: c_uint, address: u64) -> Result<bool> {
    if out.is_null() {
        return Err(invalid("a pointer for the result is null"));
    }
    let Some(found) = state.memory.find(address) else {
        return Ok(false);
    };
    let host = matches!(found.kind, Kind::Pinned | Kind::Registered);
    let write_word = |value: u64| {
        // SAFETY: the caller gives room for what this attribute is.
        unsafe { out.cast::<u64>().write_unaligned(value) };
    };
    let write_int = |value: u32| {
        // SAFETY: as above.
        unsafe { out.cast::<u32>().write_unaligned(value) };
    };
    let write_bool = |value: bool| {
        // SAFETY: as above.
        unsafe { out.cast::<u8>().write(u8::from(value)) };
    };
    match number {
        1 => write_word(found.context),
        2 => write_int(if host {
            abi::MEMORY_HOST
        } else {
            abi::MEMORY_DEVICE
        }),
        3 => write_word(address),
        4 if !found.kind.is_device() => write_word(address),
        4 => return Ok(false),
        6 => write_int(0),
        7 => write_word(found.id),
        8 => write_int(u32::from(found.kind == Kind::Managed)),
        9 => write_int(ordinal(found.device) as u32),
        10 => write_int(u32::from(found.kind == Kind::Device)),
        11 => write_word(range(state, found).0),
        12 => write_word(range(state, found).1),
        13 => write_int(1),
        14 => write_int(match found.kind {
            Kind::Mapped(h) if state.physical.get(&h).is_some_and(|p| p.exportable) => 1,
            Kind::Pooled(h) if state.pools.get(&h).is_some_and(|p| p.exportable) => 1,
            _ => 0,
        }),
        15 => write_bool(false),
        16 => write_int(3),
        17 => write_word(match found.kind {
            Kind::Pooled(pool) => pool,
            _ => 0,
        }),
        _ => return Err(invalid(format!("no pointer attribute {number}"))),
    }
    Ok(true)
}

/// For a pointer that the driver does not know.
fn clear(out: *mut c_void, number: c_uint) {
    let bytes = match number {
        15 => 1,
        2 | 6 | 8 | 9 | 10 | 13 | 14 | 16 => 4,
        _ => 8,
    };
    // SAFETY: the caller gives room for what this attribute is.
    unsafe { out.cast::<u8>().write_bytes(0, bytes) };
    if number == 9 {
        // SAFETY: as above; no device is -2.
        unsafe { out.cast::<c_int>().write_unaligned(-2) };
    }
}

entries! {
    fn cuPointerGetAttribute(out: Out<c_void>, number: c_uint, address: u64) {
        let state = lock()?;
        match attribute(&state, out.address(), number, address)? {
            true => Ok(()),
            false => Err(Fault::plain(abi::ERROR_INVALID_VALUE)),
        }
    }

    fn cuPointerGetAttributes(
        count: c_uint, numbers: In<c_uint>, outs: In<*mut c_void>, address: u64
    ) {
        if !is_initialised() {
            // No misuse: so libraries ask that do not want a device themselves.
            return Err(Fault::plain(abi::ERROR_NOT_INITIALIZED));
        }
        let state = lock()?;
        for i in 0..count as usize {
            let (out, number) = (outs.at(i)?, numbers.at(i)?);
            if !attribute(&state, out, number, address)? {
                clear(out, number);
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: In<c_void>, number: c_uint, address: u64) {
        let state = lock()?;
        match (state.memory.find(address), number) {
            (Some(_), 6) => Ok(()),
            (Some(_), _) => Err(invalid(format!("pointer attribute {number} cannot be set"))),
            (None, _) => Err(state.memory.unknown(address)),
        }
    }
}
