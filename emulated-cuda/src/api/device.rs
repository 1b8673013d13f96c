//! Start, version, errors, symbols; devices and what they say of themselves.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::abi::{self, Code, Uuid};
use crate::driver::{self, index, lock};
use crate::fault::{Fault, In, Out, base_name, entries, invalid};
use crate::settings::{Link, settings};

/// Multiprocessors: few, so that grids are short.
pub const PROCESSORS: c_int = 4;
/// Threads of a multiprocessor.
pub const PROCESSOR_THREADS: c_int = 2048;
/// Bytes of shared memory: of a block, of a block that asks, of a multiprocessor.
pub const SHARED: (c_int, c_int, c_int) = (48 << 10, 163 << 10, 164 << 10);
/// Largest block.
pub const BLOCK: c_int = 1024;

fn attribute(number: c_uint, device: usize) -> Option<c_int> {
    Some(match number {
        1..=3 => BLOCK,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65535,
        8 => SHARED.0,
        9 => 64 << 10,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65536,
        13 => 1_000_000,
        14 => 512,
        15 => 1,
        16 => PROCESSORS,
        17 | 18 | 20 | 32 | 35 => 0,
        19 => 1,
        31 => 1,
        33 => bus(device) as c_int,
        34 | 50 => 0,
        36 => 1_000_000,
        37 => 1024,
        38 => 4 << 20,
        39 => PROCESSOR_THREADS,
        40 => 2,
        41 => 1,
        75 => settings().capability().0 as c_int,
        76 => settings().capability().1 as c_int,
        78 => 1,
        79 | 80 => 1,
        81 => SHARED.2,
        83 => 1,
        84 => 0,
        85 | 86 => 0,
        87 => 2,
        88 | 89 => 0,
        90 | 91 => 1,
        92..=94 => 1,
        95..=96 => 0,
        97 => SHARED.1,
        98 => 0,
        99 => 1,
        100 | 101 => 0,
        102 | 103 => 1,
        104 | 105 => 0,
        106 => 32,
        107..=114 => 0,
        115 => 1,
        116..=118 => 0,
        119 => abi::HANDLE_POSIX_FD as c_int,
        132 => c_int::from(settings().has_multicast()),
        133 => c_int::from(settings().mps),
        _ if (1..=140).contains(&number) => 0,
        _ => return None,
    })
}

fn text(
    code: Code,
    which: impl Fn(&(Code, &'static str, &'static str)) -> &'static str,
) -> Option<*const c_char> {
    let found = abi::CODES.iter().find(|c| c.0 == code)?;
    Some(which(found).as_ptr().cast())
}

fn symbols() -> &'static HashMap<&'static str, usize> {
    static ALL: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all: Vec<(&'static str, usize)> = [
            entries(),
            super::context::entries(),
            super::copy::entries(),
            super::event::entries(),
            super::graph::entries(),
            super::memory::entries(),
            super::module::entries(),
            super::multicast::entries(),
            super::pointer::entries(),
            super::pool::entries(),
            super::share::entries(),
            super::stream::entries(),
            super::virtual_memory::entries(),
        ]
        .concat();
        // A plain name means the newest that there is.
        all.sort();
        let mut map: HashMap<&'static str, usize> = HashMap::new();
        for &(name, address) in &all {
            map.insert(base_name(name), address);
        }
        map.extend(all.into_iter().filter(|(name, _)| base_name(name) != *name));
        map
    })
}

fn find_symbol(name: &str) -> crate::fault::Result<usize> {
    symbols().get(name).copied().ok_or_else(|| {
        Fault::named(
            abi::ERROR_NOT_FOUND,
            format!("the emulated driver has no {name}"),
        )
    })
}

entries! {
    fn cuInit(flags: c_uint) {
        match flags {
            0 => driver::start(),
            _ => Err(invalid("flags are not 0")),
        }
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(abi::DRIVER_VERSION)
    }

    fn cuGetErrorName(code: Code, name: Out<*const c_char>) {
        let found = text(code, |c| c.1);
        name.set(found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(Fault::plain(abi::ERROR_INVALID_VALUE))
    }

    fn cuGetErrorString(code: Code, string: Out<*const c_char>) {
        let found = text(code, |c| c.2);
        string.set(found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(Fault::plain(abi::ERROR_INVALID_VALUE))
    }

    fn cuGetProcAddress(name: In<c_char>, address: Out<*mut c_void>, _version: c_int, _flags: u64) {
        let found = find_symbol(&name.text()?);
        address.set(found.as_ref().map_or(std::ptr::null_mut(), |a| *a as *mut c_void))?;
        found.map(drop)
    }

    fn cuGetProcAddress_v2(
        name: In<c_char>, address: Out<*mut c_void>, _version: c_int, _flags: u64,
        status: Out<c_uint>
    ) {
        let found = find_symbol(&name.text()?);
        address.set(found.as_ref().map_or(std::ptr::null_mut(), |a| *a as *mut c_void))?;
        status.set_if(u32::from(found.is_err()));
        found.map(drop)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        lock().map(drop)?;
        count.set(settings().machine.visible.len() as c_int)
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        lock()?.device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, bytes: c_int, device: c_int) {
        lock()?.device(device)?;
        copy_text(name, bytes, &format!("Osier emulated GPU {device}"))
    }

    fn cuDeviceGetUuid(out: Out<Uuid>, device: c_int) {
        lock().map(drop)?;
        out.set(settings().machine.gpu_uuid(index(device)?))
    }

    fn cuDeviceGetUuid_v2(out: Out<Uuid>, device: c_int) {
        lock().map(drop)?;
        out.set(settings().machine.uuid(index(device)?))
    }

    fn cuDeviceGetPCIBusId(name: Out<c_char>, bytes: c_int, device: c_int) {
        lock().map(drop)?;
        copy_text(name, bytes, &format!("0000:{:02x}:00.0", bus(index(device)?)))
    }

    fn cuDeviceGetByPCIBusId(device: Out<c_int>, name: In<c_char>) {
        let name = name.text()?;
        lock().map(drop)?;
        let visible = settings().machine.visible.iter().enumerate();
        let mut named = visible.filter(|(_, d)| name.ends_with(&format!("{:02x}:00.0", bus(**d))));
        let found = named.next().map(|(ordinal, _)| ordinal as c_int);
        device.set(found.ok_or_else(|| invalid(format!("no device {name}")))?)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, number: c_uint, device: c_int) {
        lock().map(drop)?;
        let found = attribute(number, index(device)?);
        value.set(found.ok_or_else(|| invalid(format!("no device attribute {number}")))?)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        lock()?.device(device)?;
        let capability = settings().capability();
        major.set(capability.0 as c_int)?;
        minor.set(capability.1 as c_int)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        lock()?.device(device)?;
        bytes.set(settings().memory_bytes)
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let mut state = lock()?;
        state.device(device)?;
        state.device(peer)?;
        can.set(c_int::from(device != peer && link(device, peer)?.reaches()))
    }

    fn cuDeviceGetP2PAttribute(value: Out<c_int>, number: c_uint, device: c_int, peer: c_int) {
        let mut state = lock()?;
        state.device(device)?;
        state.device(peer)?;
        if device == peer {
            return Err(Fault::named(abi::ERROR_INVALID_DEVICE, "both are one device"));
        }
        let link = link(device, peer)?;
        value.set(match number {
            // The best is 0.
            1 => c_int::from(!link.is_nvlink()),
            2 | 4 => c_int::from(link.reaches()),
            3 => c_int::from(link.is_nvlink()),
            5 => 0,
            _ => return Err(invalid(format!("no attribute {number} of two devices"))),
        })
    }
}

fn link(device: c_int, peer: c_int) -> crate::fault::Result<Link> {
    Ok(settings().between(index(device)?, index(peer)?))
}

/// The bus of a device's GPU.
fn bus(device: usize) -> usize {
    settings().machine.gpu(device) + 1
}

fn copy_text(target: Out<c_char>, bytes: c_int, text: &str) -> crate::fault::Result {
    if target.address().is_null() || bytes <= 0 {
        return Err(invalid("no place for a text"));
    }
    let length = text.len().min(bytes as usize - 1);
    // SAFETY: the caller has given `bytes` bytes, and `length` is below that.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), target.address().cast(), length) };
    let end = target.address().wrapping_add(length);
    // SAFETY: as above.
    unsafe { end.write(0) };
    Ok(())
}
