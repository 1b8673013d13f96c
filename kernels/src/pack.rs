//! Pack and unpack on a stream: one launch for any layout and any range of
//! packed bytes, queued; the host waits for nothing.
//!
//! # Invariants
//! 1. Each byte that a launch touches lies in the two allocations it was given:
//!    a view is checked when it is made, a range when it is used.
//! 2. A layout that touches a byte twice is packed, never unpacked.
//! 3. Lists are uploaded once per layout, count and packer, in the order of the
//!    stream that needs them first; other streams wait for that, not the host.
//!
//! # Sources
//! As in [`plan`](crate::plan).

use crate::copy::note;
use crate::device::Context;
use crate::error::{DeviceError, Result};
use crate::launch::launch;
use crate::plan::Plan;
use crate::plan::arguments::{Argument, THREADS, Tables};
use crate::slice::{After, DeviceSlice, Ordered, Pinned};
use crate::stream::{Event, Stream};
use osier_datatype::{Datatype, Layout};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Thread blocks per multiprocessor that keep it full: 2048 threads.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 8;

/// Lists on the device that a packer keeps, unless told otherwise.
const KEPT_BYTES: usize = 64 << 20;

/// Elements of a device slice and a layout over them.
#[derive(Debug, Clone)]
pub struct DeviceView<T> {
    slice: DeviceSlice<T>,
    origin: u64,
    layout: Layout,
    count: usize,
}

impl<T: Datatype> DeviceView<T> {
    /// `count` instances of a layout, the first with its origin at element
    /// `origin` of a slice.
    ///
    /// # Errors
    /// The instances reach out of the slice.
    pub fn new(
        slice: &DeviceSlice<T>,
        origin: usize,
        layout: &Layout,
        count: usize,
    ) -> Result<DeviceView<T>> {
        let bytes = origin.saturating_mul(size_of::<T>());
        layout.check_span(slice.bytes(), bytes, count)?;
        layout.pack_size(count)?;
        Ok(DeviceView {
            slice: slice.clone(),
            origin: slice.address().wrapping_add(bytes as u64),
            layout: layout.clone(),
            count,
        })
    }

    /// Packed bytes.
    pub fn packed_bytes(&self) -> usize {
        self.layout.size() * self.count
    }

    /// The view, valid behind the work that a stream has now.
    pub fn after_stream(&self, stream: &Stream) -> Ordered<DeviceView<T>> {
        Ordered {
            buffer: self.clone(),
            after: After::Stream(stream.clone()),
        }
    }

    /// The view, valid when an event has passed.
    pub fn after(&self, event: &Event) -> Ordered<DeviceView<T>> {
        Ordered {
            buffer: self.clone(),
            after: After::Event(event.clone()),
        }
    }
}

/// A plan, and its lists on the device.
struct Prepared {
    /// Keeps the layout's number its own.
    _layout: Layout,
    plan: Plan,
    tables: Tables,
    on_device: Option<(DeviceSlice<u8>, Event)>,
}

impl Prepared {
    fn new(stream: &Stream, layout: &Layout, count: usize) -> Result<Prepared> {
        let plan = Plan::new(layout, count)?;
        let mut tables = Tables::new(&plan);
        let mut on_device = None;
        if !tables.bytes.is_empty() {
            let bytes = std::mem::take(&mut tables.bytes);
            let staged = Pinned::from_slice(stream.context(), &bytes)?;
            let place = DeviceSlice::<u8>::new(stream, bytes.len())?;
            let event = crate::copy::copy(stream, &staged.on_device(stream), &place)?;
            on_device = Some((place.into_inner(), event));
        }
        Ok(Prepared {
            _layout: layout.clone(),
            plan,
            tables,
            on_device,
        })
    }

    fn bytes(&self) -> usize {
        self.on_device
            .as_ref()
            .map_or(0, |(place, _)| place.bytes())
    }
}

/// Packs and unpacks on one device; keeps plans and lists for the next time.
pub struct Packer {
    context: Context,
    kept: Mutex<Kept<(usize, usize), Arc<Prepared>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Pack,
    Unpack,
}

impl Packer {
    /// A packer that keeps at most 64 MiB of lists.
    pub fn new(context: &Context) -> Packer {
        Packer::with_limit(context, KEPT_BYTES)
    }

    /// A packer that keeps at most so many bytes of lists on the device.
    pub fn with_limit(context: &Context, bytes: usize) -> Packer {
        Packer {
            context: context.clone(),
            kept: Mutex::new(Kept::new(bytes)),
        }
    }

    /// Packs the packed bytes `range` of a view to the front of `to`, and
    /// returns the event behind which they are there. `blocks` is the number of
    /// thread blocks; none: as many as fill the device.
    ///
    /// # Errors
    /// A range outside of the packed bytes or of `to`, memory of another device,
    /// or the driver refuses; nothing was queued then.
    pub fn pack<T: Datatype>(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceView<T>>,
        range: Range<usize>,
        to: &Ordered<DeviceSlice<u8>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        self.queue(stream, Direction::Pack, from, range, to, blocks)
    }

    /// Unpacks the front of `from` as the packed bytes `range` of a view; gaps
    /// stay untouched. Else as [`Packer::pack`].
    ///
    /// # Errors
    /// As [`Packer::pack`], and [`DeviceError::Overlap`].
    pub fn unpack<T: Datatype>(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceSlice<u8>>,
        range: Range<usize>,
        to: &Ordered<DeviceView<T>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        let view = &to.buffer;
        if view.layout.self_overlaps(view.count) {
            return Err(DeviceError::Overlap { count: view.count });
        }
        self.queue(stream, Direction::Unpack, to, range, from, blocks)
    }

    fn queue<T: Datatype>(
        &self,
        stream: &Stream,
        direction: Direction,
        view: &Ordered<DeviceView<T>>,
        range: Range<usize>,
        packed: &Ordered<DeviceSlice<u8>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        let what = match direction {
            Direction::Pack => "pack",
            Direction::Unpack => "unpack",
        };
        let (memory, flat) = (view.buffer.slice.memory(), packed.buffer.memory());
        memory.check_stream(what, stream)?;
        flat.check_stream(what, stream)?;
        if stream.context() != &self.context {
            return Err(DeviceError::WrongDevice {
                what,
                memory: self.context.ordinal(),
                stream: stream.context().ordinal(),
            });
        }
        let total = view.buffer.packed_bytes();
        if range.start > range.end || range.end > total {
            return Err(DeviceError::Bounds {
                range: range.start as i128..range.end as i128,
                bytes: total,
            });
        }
        if range.len() > packed.buffer.bytes() {
            return Err(DeviceError::Size {
                what,
                from: range.len(),
                to: packed.buffer.bytes(),
            });
        }
        let prepared = self.prepared(stream, &view.buffer)?;
        view.order(stream)?;
        packed.order(stream)?;
        let tables = match &prepared.on_device {
            Some((place, ready)) => {
                stream.wait(ready)?;
                place.address()
            }
            None => 0,
        };
        let (origin, flat_at) = (view.buffer.origin, packed.buffer.address());
        let bytes = range.start as u64..range.end as u64;
        let planned = prepared
            .plan
            .launch((&prepared.tables, tables), origin, flat_at, bytes);
        if let Some(planned) = planned {
            let full = u64::from(self.context.multiprocessors()) * BLOCKS_PER_MULTIPROCESSOR;
            let limit = blocks.map_or(full, |blocks| u64::from(blocks.max(1)));
            let grid = planned.blocks.min(limit).clamp(1, 1 << 20) as u32;
            let pack = direction == Direction::Pack;
            let name = kernel(pack, &planned.argument, planned.width);
            // Arguments point into memory that lives until the event noted below
            // has passed; view and range were checked (invariant 1).
            match &planned.argument {
                Argument::Contiguous { offset, bytes } => {
                    let inside = origin.wrapping_add_signed(prepared.plan.base) + offset;
                    let (from, to) = if pack {
                        (inside, flat_at)
                    } else {
                        (flat_at, inside)
                    };
                    let driver = self.context.enter()?;
                    // SAFETY: as said above.
                    unsafe { driver.cuMemcpyAsync(to, from, *bytes as usize, stream.raw()) }?;
                }
                Argument::Strided(_, argument) => {
                    // SAFETY: as said above; the kernel of this argument.
                    unsafe { launch(stream, name, grid, THREADS, argument) }?;
                }
                Argument::Transposed(argument) => {
                    // SAFETY: as said above; the kernel of this argument.
                    unsafe { launch(stream, name, grid, THREADS, argument) }?;
                }
                Argument::General(argument) => {
                    // SAFETY: as said above; the kernel of this argument.
                    unsafe { launch(stream, name, grid, THREADS, argument) }?;
                }
            }
        }
        let event = note(stream, [memory, flat])?;
        if let Some((place, _)) = &prepared.on_device {
            place.memory().used_on(stream, &event);
        }
        Ok(event)
    }

    fn prepared<T>(&self, stream: &Stream, view: &DeviceView<T>) -> Result<Arc<Prepared>> {
        let key = (view.layout.id(), view.count);
        let mut kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(prepared) = kept.find(&key) {
            return Ok(prepared.clone());
        }
        let prepared = Arc::new(Prepared::new(stream, &view.layout, view.count)?);
        kept.insert(key, prepared.clone(), prepared.bytes());
        Ok(prepared)
    }

    /// Bytes of lists that are kept on the device.
    pub fn kept_bytes(&self) -> usize {
        self.kept.lock().unwrap_or_else(|e| e.into_inner()).bytes
    }
}

macro_rules! widths {
    ($stem:literal) => {
        [
            concat!($stem, "_w1"),
            concat!($stem, "_w2"),
            concat!($stem, "_w4"),
            concat!($stem, "_w8"),
            concat!($stem, "_w16"),
        ]
    };
}

/// The kernel of an argument; a copy has none.
fn kernel(pack: bool, argument: &Argument, width: usize) -> &'static str {
    const STRIDED: [[[&str; 5]; 4]; 2] = [
        [
            widths!("osier_unpack_strided1"),
            widths!("osier_unpack_strided2"),
            widths!("osier_unpack_strided3"),
            widths!("osier_unpack_strided4"),
        ],
        [
            widths!("osier_pack_strided1"),
            widths!("osier_pack_strided2"),
            widths!("osier_pack_strided3"),
            widths!("osier_pack_strided4"),
        ],
    ];
    const TRANSPOSE: [[&str; 5]; 2] = [
        widths!("osier_unpack_transpose"),
        widths!("osier_pack_transpose"),
    ];
    const GENERAL: [[&str; 5]; 2] = [
        widths!("osier_unpack_general"),
        widths!("osier_pack_general"),
    ];
    let (way, width) = (usize::from(pack), width.trailing_zeros() as usize);
    match argument {
        Argument::Contiguous { .. } => "",
        Argument::Strided(levels, _) => STRIDED[way][levels - 1][width],
        Argument::Transposed(_) => TRANSPOSE[way][width],
        Argument::General(_) => GENERAL[way][width],
    }
}

/// Values that were used last, up to a number of bytes; at least the newest.
struct Kept<K, V> {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: std::collections::HashMap<K, (V, usize, u64)>,
}

/// Plans without lists cost a little, too.
const ENTRY_BYTES: usize = 1024;

impl<K: std::hash::Hash + Eq + Clone, V> Kept<K, V> {
    fn new(limit: usize) -> Kept<K, V> {
        Kept {
            limit,
            bytes: 0,
            clock: 0,
            entries: std::collections::HashMap::new(),
        }
    }

    fn find(&mut self, key: &K) -> Option<&V> {
        self.clock += 1;
        let (value, _, used) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(value)
    }

    fn insert(&mut self, key: K, value: V, bytes: usize) {
        self.clock += 1;
        self.bytes += bytes + ENTRY_BYTES;
        self.entries
            .insert(key, (value, bytes + ENTRY_BYTES, self.clock));
        while self.bytes > self.limit && self.entries.len() > 1 {
            let oldest = self.entries.iter().min_by_key(|(_, (_, _, used))| *used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            if let Some((_, bytes, _)) = self.entries.remove(&key) {
                self.bytes -= bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_was_used_last() {
        let mut kept = Kept::new(3 * (ENTRY_BYTES + 100));
        for key in 0..3 {
            kept.insert(key, key, 100);
        }
        assert!(kept.find(&0).is_some());
        kept.insert(3, 3, 100);
        assert!(kept.find(&1).is_none());
        assert!(kept.find(&0).is_some());
        kept.insert(4, 4, 1 << 30);
        assert_eq!(kept.entries.len(), 1);
        assert!(kept.find(&4).is_some());
        kept.insert(5, 5, 0);
        assert_eq!(kept.bytes, ENTRY_BYTES);
    }

    /// Every name that may be asked for is written in a source.
    #[test]
    fn kernels_exist() {
        use crate::plan::arguments::{General, Strided, Transpose};
        let ptx: String = crate::ptx::MODULES.iter().map(|(_, text)| *text).collect();
        let mut arguments = vec![
            Argument::Transposed(Transpose::default()),
            Argument::General(General::default()),
        ];
        arguments.extend((1..=4).map(|levels| Argument::Strided(levels, Strided::default())));
        for argument in &arguments {
            for width in [1, 2, 4, 8, 16] {
                for pack in [false, true] {
                    let name = kernel(pack, argument, width);
                    assert!(ptx.contains(&format!(".visible .entry {name}(")), "{name}");
                }
            }
        }
    }
}
