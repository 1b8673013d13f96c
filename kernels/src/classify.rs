//! Pointer classification: the space of an address, asked of the driver once per allocation.
//!
//! # Invariants
//! 1. Intervals in the cache do not overlap.
//! 2. The driver gives each allocation a number that it uses once. A hit counts
//!    only while the number is the same, so memory that was freed and allocated
//!    anew by someone else is never taken for the old; callers that know of a
//!    free say [`Intervals::forget`].

use crate::device::Context;
use crate::driver::{Driver, abi};
use crate::error::Result;
use crate::memory::Space;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of the memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Where it lives.
    pub space: Space,
    /// The allocation's first byte.
    pub start: u64,
    /// The allocation's size in bytes.
    pub bytes: usize,
    /// The driver's number of the allocation.
    pub buffer: u64,
    /// The device that it was allocated by; negative for memory of the host.
    pub home: i32,
}

/// A map from addresses to allocations.
#[derive(Debug, Default)]
pub struct Intervals(BTreeMap<u64, Allocation>);

impl Intervals {
    /// The allocation that holds an address.
    pub fn find(&self, at: u64) -> Option<Allocation> {
        let (_, place) = self.0.range(..=at).next_back()?;
        (at - place.start < place.bytes as u64).then_some(*place)
    }

    /// Learns an allocation; what it overlaps was freed and is forgotten.
    pub fn insert(&mut self, place: Allocation) {
        self.forget(place.start..place.start.saturating_add(place.bytes as u64));
        self.0.insert(place.start, place);
    }

    /// Forgets all allocations that touch a range.
    pub fn forget(&mut self, range: Range<u64>) {
        while let Some((&start, place)) = self.0.range(..range.end).next_back() {
            if start.saturating_add(place.bytes as u64) <= range.start {
                return;
            }
            self.0.remove(&start);
        }
    }

    /// Number of allocations known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

static KNOWN: Mutex<Intervals> = Mutex::new(Intervals(BTreeMap::new()));

/// The space of an address, and its allocation. Addresses that the driver does
/// not know are pageable host memory, without a size.
///
/// # Errors
/// No driver.
pub fn classify(context: &Context, at: u64) -> Result<Allocation> {
    let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(place) = known.find(at)
        && buffer(context, at)? == place.buffer
    {
        return Ok(place);
    }
    let entered = context.enter()?;
    let place = ask(&entered, at)?;
    if place.space != Space::Host {
        known.insert(place);
    }
    Ok(place)
}

/// Whether [`expect`] has found a driver.
static EXPECTED: AtomicBool = AtomicBool::new(false);

/// Says that addresses of any memory will come ([`find`]): loads the driver if there is
/// one, and leaves it to others to initialise it. Whether there is one.
pub fn expect() -> bool {
    let there = Driver::opened().is_ok();
    EXPECTED.store(there, Ordering::Relaxed);
    there
}

/// Whether addresses may be those of a device: [`expect`] has found a driver.
#[inline]
pub fn is_expected() -> bool {
    EXPECTED.load(Ordering::Relaxed)
}

/// The memory of a device, or managed memory, at an address; none for memory of the host,
/// pinned or not. An answer of the driver, so it costs a call.
///
/// # Errors
/// The driver refuses.
pub fn find(at: u64) -> Result<Option<Allocation>> {
    match Driver::opened() {
        Ok(driver) if driver.memory_type(at) != 0 => {}
        _ => return Ok(None),
    }
    let place = ask(Driver::get()?, at)?;
    let of_device = matches!(place.space, Space::Device(_) | Space::Managed);
    Ok(of_device.then_some(place))
}

/// Says that memory was freed.
pub fn forget(range: Range<u64>) {
    let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    known.forget(range);
}

/// The driver's number of the allocation at an address; of none 0.
pub(crate) fn buffer(context: &Context, at: u64) -> Result<u64> {
    let driver = context.enter()?;
    let mut number = 0u64;
    let mut which = [abi::POINTER_BUFFER_ID];
    let mut values = [(&raw mut number).cast::<c_void>()];
    // SAFETY: one attribute, one place for it.
    unsafe { driver.cuPointerGetAttributes(1, which.as_mut_ptr(), values.as_mut_ptr(), at) }?;
    Ok(number)
}

fn ask(driver: &Driver, at: u64) -> Result<Allocation> {
    let (mut kind, mut managed, mut ordinal) = (0 as c_uint, 0 as c_uint, -1 as c_int);
    let (mut start, mut bytes, mut buffer) = (0u64, 0usize, 0u64);
    let mut plain = 0 as c_int;
    let mut which = [
        abi::POINTER_MEMORY_TYPE,
        abi::POINTER_IS_MANAGED,
        abi::POINTER_DEVICE_ORDINAL,
        abi::POINTER_RANGE_START,
        abi::POINTER_RANGE_SIZE,
        abi::POINTER_BUFFER_ID,
        abi::POINTER_IS_LEGACY_IPC_CAPABLE,
    ];
    let mut values: [*mut c_void; 7] = [
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut start).cast(),
        (&raw mut bytes).cast(),
        (&raw mut buffer).cast(),
        (&raw mut plain).cast(),
    ];
    // SAFETY: seven attributes, a place of its type, or a wider one, for each.
    unsafe { driver.cuPointerGetAttributes(7, which.as_mut_ptr(), values.as_mut_ptr(), at) }?;
    let space = match kind {
        _ if managed != 0 => Space::Managed,
        abi::MEMORY_DEVICE => Space::Device(ordinal),
        abi::MEMORY_HOST => Space::Pinned,
        abi::MEMORY_UNIFIED => Space::Managed,
        _ => Space::Host,
    };
    // Of what is mapped, also by the driver for a pool, the attributes tell what it lies in.
    if matches!(space, Space::Device(_)) && plain == 0 {
        let context = Context::new(ordinal)?;
        (start, bytes) = context.enter()?.piece(at)?;
    }
    Ok(Allocation {
        space,
        start: if space == Space::Host { at } else { start },
        bytes,
        buffer,
        home: ordinal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(start: u64, bytes: usize, buffer: u64) -> Allocation {
        Allocation {
            space: Space::Device(0),
            start,
            bytes,
            buffer,
            home: 0,
        }
    }

    #[test]
    fn finds_by_interval() {
        let mut known = Intervals::default();
        known.insert(place(100, 50, 1));
        known.insert(place(200, 10, 2));
        assert_eq!(known.find(99), None);
        assert_eq!(known.find(100).unwrap().buffer, 1);
        assert_eq!(known.find(149).unwrap().buffer, 1);
        assert_eq!(known.find(150), None);
        assert_eq!(known.find(209).unwrap().buffer, 2);
        assert_eq!(known.find(210), None);
    }

    #[test]
    fn new_allocations_replace_old_ones() {
        let mut known = Intervals::default();
        for i in 0..10 {
            known.insert(place(i * 100, 100, i));
        }
        known.insert(place(150, 300, 77));
        assert_eq!(known.find(100), None);
        assert_eq!(known.find(449).unwrap().buffer, 77);
        assert_eq!(known.find(450), None);
        assert_eq!(known.find(50).unwrap().buffer, 0);
        assert_eq!(known.find(500).unwrap().buffer, 5);
        known.forget(0..1000);
        assert!(known.is_empty());
    }

    /// Against a table of single bytes.
    #[test]
    fn agrees_with_a_table_of_bytes() {
        let mut state = 9u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % n
        };
        let (mut known, mut table) = (Intervals::default(), [0u64; 400]);
        for round in 1..2000u64 {
            let (start, bytes) = (next(350), 1 + next(49));
            let range = start as usize..(start + bytes) as usize;
            let touched: Vec<u64> = table[range.clone()].to_vec();
            for byte in &mut table {
                if *byte != 0 && touched.contains(byte) {
                    *byte = 0;
                }
            }
            if next(3) == 0 {
                known.forget(start..start + bytes);
            } else {
                known.insert(place(start, bytes as usize, round));
                table[range].fill(round);
            }
            for at in 0..400 {
                let found = known.find(at).map_or(0, |place| place.buffer);
                assert_eq!(found, table[at as usize], "round {round}, address {at}");
            }
        }
    }
}
