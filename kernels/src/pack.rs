//! Pack, unpack, and copies from layout to layout on a stream: one launch for any
//! layouts and any range of packed bytes, queued; the host waits for nothing. The
//! first use of a long list takes several: each packs or unpacks what has its
//! places, while the host makes the next part of the list.
//!
//! # Invariants
//! 1. Each byte that a launch touches lies in the two allocations it was given:
//!    a view is checked when it is made, a range when it is used.
//! 2. A layout that touches a byte twice is read, never written.
//!
//! # Sources
//! As in [`plan`](crate::plan).

use crate::cache::{Cache, Prepared};
use crate::copy::note;
use crate::device::Context;
use crate::ending::Ending;
use crate::error::{DeviceError, Result};
use crate::launch::Grid;
use crate::memory::Memory;
use crate::plan::arguments::{Argument, Launch};
use crate::plan::transfer::{PlacedPlan, Transfer, TransferArgument};
use crate::plan::{Plan, Shape, WIDEST};
use crate::slice::{After, DeviceSlice, Ordered};
use crate::stream::{Event, Stream};
use osier_datatype::{Datatype, Layout};
use std::ops::Range;
use std::sync::Arc;

/// Lists on the device that a packer keeps, unless told otherwise.
const KEPT_BYTES: usize = 64 << 20;

/// What moves one run of bytes between a view and packed bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Engine {
    /// A copy engine of the device.
    #[default]
    Copies,
    /// A copy engine, also of short runs to the device: the driver sends those by the channel
    /// of kernels, which waits for the process's turn where processes take turns.
    CopyEngine,
    /// A kernel, as it moves what has gaps.
    Kernel,
}

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

    /// All elements of a slice, each a value of its type.
    ///
    /// # Errors
    /// More bytes than there can be.
    pub fn of(slice: &DeviceSlice<T>) -> Result<DeviceView<T>> {
        DeviceView::new(slice, 0, &T::layout(), slice.len())
    }

    /// `count` instances of a layout around an address of a slice's memory.
    ///
    /// # Errors
    /// The instances reach out of the slice, or the address lies in front of it.
    pub fn around(
        slice: &DeviceSlice<T>,
        at: u64,
        layout: &Layout,
        count: usize,
    ) -> Result<DeviceView<T>> {
        let Some(bytes) = at.checked_sub(slice.address()) else {
            return Err(DeviceError::Unavailable(format!(
                "a datatype's origin at {at:#x}, in front of the device's memory at {:#x}",
                slice.address()
            )));
        };
        layout.check_span(slice.bytes(), bytes as usize, count)?;
        layout.pack_size(count)?;
        Ok(DeviceView {
            slice: slice.clone(),
            origin: at,
            layout: layout.clone(),
            count,
        })
    }

    /// The same bytes, whatever type the slice is of.
    pub fn erased(self) -> DeviceView<u8> {
        DeviceView {
            slice: self.slice.erased(),
            origin: self.origin,
            layout: self.layout,
            count: self.count,
        }
    }

    /// Some of its packed bytes as instances of another layout, if they are one run, and
    /// whole instances without gaps.
    pub fn run(&self, packed: Range<usize>, layout: &Layout) -> Option<DeviceView<T>> {
        let at = self.layout.contiguous_at(self.count)?;
        let whole = packed.len().is_multiple_of(layout.size().max(1));
        let within = packed.start <= packed.end && packed.end <= self.packed_bytes();
        if !(whole && within && layout.contiguous_at(2) == Some(0)) {
            return None;
        }
        let first = self.origin.wrapping_add_signed(at as i64);
        Some(DeviceView {
            slice: self.slice.clone(),
            origin: first.wrapping_add(packed.start as u64),
            layout: layout.clone(),
            count: packed.len() / layout.size().max(1),
        })
    }

    /// Where its bytes are, if they are one run.
    pub(crate) fn run_at(&self) -> Option<u64> {
        let at = self.layout.contiguous_at(self.count)?;
        Some(self.origin.wrapping_add_signed(at as i64))
    }

    /// Some of its packed bytes, if they are whole instances, gaps and all.
    pub fn instances(&self, packed: Range<usize>) -> Option<DeviceView<T>> {
        let size = self.layout.size().max(1);
        let whole = packed.start.is_multiple_of(size) && packed.end.is_multiple_of(size);
        let within = packed.start <= packed.end && packed.end <= self.packed_bytes();
        if !(whole && within) {
            return None;
        }
        let ahead = (packed.start / size) as i64 * self.layout.extent() as i64;
        Some(DeviceView {
            slice: self.slice.clone(),
            origin: self.origin.wrapping_add_signed(ahead),
            layout: self.layout.clone(),
            count: packed.len() / size,
        })
    }

    /// Instances.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The layout of each.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The allocation behind it.
    pub fn memory(&self) -> &Arc<Memory> {
        self.slice.memory()
    }

    /// Address of the first instance's origin.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// Packed bytes.
    pub fn packed_bytes(&self) -> usize {
        self.layout.size() * self.count
    }

    /// Whether instances may be written: none touches a byte twice.
    pub(crate) fn check_written(&self) -> Result<()> {
        match self.layout.self_overlaps(self.count) {
            false => Ok(()),
            true => Err(DeviceError::Overlap { count: self.count }),
        }
    }

    /// Whether packed bytes exist.
    pub(crate) fn check_range(&self, range: &Range<usize>) -> Result<()> {
        let bytes = self.packed_bytes();
        if range.start <= range.end && range.end <= bytes {
            return Ok(());
        }
        Err(DeviceError::Bounds {
            range: range.start as i128..range.end as i128,
            bytes,
        })
    }

    /// Whether two views share no byte. Exact, and at once where they lie apart.
    pub(crate) fn check_apart<U: Datatype>(&self, other: &DeviceView<U>) -> Result<()> {
        let (low, high) = self.layout.span(self.count);
        let (other_low, other_high) = other.layout.span(other.count);
        let distance = other.origin.wrapping_sub(self.origin).cast_signed();
        let (from, to) = (low as i128..high as i128, distance as i128);
        let meet = from.start < to + other_high as i128 && to + (other_low as i128) < from.end;
        let aliased = || {
            let distance = distance as isize;
            (self.layout).overlaps(self.count, &other.layout, other.count, distance)
        };
        if meet && aliased() {
            return Err(DeviceError::Aliased);
        }
        Ok(())
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

/// Keeps memory until what was queued on it before a failure is over.
pub(crate) fn noted(stream: &Stream, touched: [&Arc<Memory>; 2]) {
    // The failure before is the one to be told.
    let _ = note(stream, touched);
}

/// Queues packed bytes that have their places on both sides.
type Both<'a> = dyn FnMut(PlacedPlan<'_>, PlacedPlan<'_>, Range<u64>) -> Result<()> + 'a;

/// Packed bytes, piece by piece.
pub(crate) struct Pieces {
    done: u64,
    end: u64,
    /// Of what a piece holds whole ones, but for the last.
    unit: u64,
}

impl Pieces {
    /// Pieces of a range that hold whole words of any width, and whole elements of so
    /// many bytes.
    pub fn new(range: &Range<usize>, element_bytes: usize) -> Pieces {
        Pieces {
            done: range.start as u64,
            end: range.end as u64,
            unit: (WIDEST * element_bytes) as u64,
        }
    }

    /// The next piece, where packed bytes before this one can be had; none if it is empty.
    fn next(&mut self, until: u64) -> Option<Range<u64>> {
        let until = match until < self.end {
            true => until - until % self.unit,
            false => self.end,
        };
        let piece = self.done..until.max(self.done);
        self.done = piece.end;
        (!piece.is_empty()).then_some(piece)
    }
}

/// Packs, unpacks and copies on one device; keeps plans and lists for the next
/// time.
pub struct Packer {
    context: Context,
    cache: Cache,
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
            cache: Cache::new(bytes),
        }
    }

    /// Packs the packed bytes `range` of a view to the front of `to`, and
    /// returns the event behind which they are there. `blocks` is the number of
    /// thread blocks; none: as many as fill the device.
    ///
    /// # Errors
    /// A range outside of the packed bytes or of `to`, memory of another device,
    /// or the driver refuses; nothing was queued then, but for parts of a long
    /// list's first use.
    pub fn pack<T: Datatype>(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceView<T>>,
        range: Range<usize>,
        to: &Ordered<DeviceSlice<u8>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        self.pack_by(Engine::Copies, stream, from, range, to, blocks)
    }

    /// As [`Packer::pack`], with a choice for views of one run.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub fn pack_by<T: Datatype>(
        &self,
        engine: Engine,
        stream: &Stream,
        from: &Ordered<DeviceView<T>>,
        range: Range<usize>,
        to: &Ordered<DeviceSlice<u8>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        self.move_packed(stream, ("pack", true, engine), from, range, to, blocks)
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
        self.unpack_by(Engine::Copies, stream, from, range, to, blocks)
    }

    /// As [`Packer::unpack`], with a choice for views of one run.
    ///
    /// # Errors
    /// As [`Packer::unpack`].
    pub fn unpack_by<T: Datatype>(
        &self,
        engine: Engine,
        stream: &Stream,
        from: &Ordered<DeviceSlice<u8>>,
        range: Range<usize>,
        to: &Ordered<DeviceView<T>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        to.buffer.check_written()?;
        self.move_packed(stream, ("unpack", false, engine), to, range, from, blocks)
    }

    /// Copies the packed bytes `range` of one view to where another has them,
    /// with no packed bytes between; gaps stay untouched. Both views may hold
    /// more than the range. Else as [`Packer::pack`].
    ///
    /// # Errors
    /// As [`Packer::pack`], [`DeviceError::Overlap`], and
    /// [`DeviceError::Aliased`].
    pub fn copy<T: Datatype, U: Datatype>(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceView<T>>,
        to: &Ordered<DeviceView<U>>,
        range: Range<usize>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        let what = "copy";
        let (source, target) = (&from.buffer, &to.buffer);
        target.check_written()?;
        source.check_apart(target)?;
        self.check(what, stream, source.slice.memory())?;
        self.check(what, stream, target.slice.memory())?;
        source.check_range(&range)?;
        target.check_range(&range)?;
        from.order(stream)?;
        to.order(stream)?;
        let mut ending = Ending::new(stream);
        let mut queue = |reads: PlacedPlan<'_>, writes: PlacedPlan<'_>, bytes: Range<u64>| {
            // A side of one run is a packed buffer.
            if writes.plan.shape() == Shape::Contiguous {
                let flat = writes.layout().wrapping_add(bytes.start);
                return self.queue_packed(&mut ending, (true, None), reads, flat, bytes, blocks);
            }
            if reads.plan.shape() == Shape::Contiguous {
                let flat = reads.layout().wrapping_add(bytes.start);
                return self.queue_packed(&mut ending, (false, None), writes, flat, bytes, blocks);
            }
            let Some(planned) = Transfer::new(reads, writes, bytes) else {
                return Ok(());
            };
            let mut blocks = self.grid(planned.blocks, blocks);
            blocks.resident = matches!(planned.argument, TransferArgument::Layouts(_));
            let width = index(planned.width);
            match &planned.argument {
                TransferArgument::Layouts(argument) => {
                    // SAFETY: the kernel of this argument, which points into memory that
                    // lives until the event noted below has passed: invariant 1.
                    unsafe { ending.launch(COPY[width], blocks, argument) }
                }
                TransferArgument::Transposed(argument) => {
                    // SAFETY: the kernel of this argument, whose memory was checked.
                    unsafe { ending.launch(TRANSPOSE[width], blocks, argument) }
                }
                TransferArgument::Periods(argument) => {
                    // SAFETY: the kernel of this argument, whose memory was checked.
                    unsafe { ending.launch(PERIODS, blocks, argument) }
                }
            }
        };
        let pieces = Pieces::new(&range, 1);
        let touched = [source.slice.memory(), target.slice.memory()];
        let both = self.prepared_both(stream, source, target, pieces, &mut queue);
        let (read, written) = both.inspect_err(|_| noted(stream, touched))?;
        let touched = touched.into_iter();
        ending.note(touched.chain(read.memory()).chain(written.memory()))
    }

    /// The plans of two views of which all packed bytes of a range are queued. While the
    /// longer list is made for the first time, what both sides have places for is queued.
    pub(crate) fn prepared_both<T, U>(
        &self,
        stream: &Stream,
        from: &DeviceView<T>,
        to: &DeviceView<U>,
        mut pieces: Pieces,
        queue: &mut Both<'_>,
    ) -> Result<(Arc<Prepared>, Arc<Prepared>)> {
        let kept = |layout, count| self.cache.known(layout, count);
        let (read, written) = match (kept(&from.layout, from.count), kept(&to.layout, to.count)) {
            (Some(read), Some(written)) => (read, written),
            _ => {
                let entries = Plan::entries;
                if entries(&from.layout, from.count)? > entries(&to.layout, to.count)? {
                    let written = self.prepared(stream, to)?;
                    written.order(stream)?;
                    let writes = written.at(to.origin);
                    let mut ready = |place: PlacedPlan<'_>, until: u64| match pieces.next(until) {
                        Some(bytes) => queue(place.moved_to(from.origin), writes, bytes),
                        None => Ok(()),
                    };
                    let cache = &self.cache;
                    let read = cache.prepared(stream, &from.layout, from.count, &mut ready)?;
                    (read, written)
                } else {
                    let read = self.prepared(stream, from)?;
                    read.order(stream)?;
                    let reads = read.at(from.origin);
                    let mut ready = |place: PlacedPlan<'_>, until: u64| match pieces.next(until) {
                        Some(bytes) => queue(reads, place.moved_to(to.origin), bytes),
                        None => Ok(()),
                    };
                    let cache = &self.cache;
                    let written = cache.prepared(stream, &to.layout, to.count, &mut ready)?;
                    (read, written)
                }
            }
        };
        read.order(stream)?;
        written.order(stream)?;
        if let Some(bytes) = pieces.next(u64::MAX) {
            queue(read.at(from.origin), written.at(to.origin), bytes)?;
        }
        Ok((read, written))
    }

    /// The plan of a view of which all packed bytes of a range are queued, while a long
    /// list is made for the first time as far as it is ready.
    pub(crate) fn prepared_in_parts<T>(
        &self,
        stream: &Stream,
        view: &DeviceView<T>,
        mut pieces: Pieces,
        queue: &mut dyn FnMut(PlacedPlan<'_>, Range<u64>) -> Result<()>,
    ) -> Result<Arc<Prepared>> {
        let mut ready = |place: PlacedPlan<'_>, until: u64| match pieces.next(until) {
            Some(bytes) => queue(place.moved_to(view.origin), bytes),
            None => Ok(()),
        };
        let prepared = (self.cache).prepared(stream, &view.layout, view.count, &mut ready)?;
        prepared.order(stream)?;
        if let Some(bytes) = pieces.next(u64::MAX) {
            queue(prepared.at(view.origin), bytes)?;
        }
        Ok(prepared)
    }

    fn move_packed<T: Datatype>(
        &self,
        stream: &Stream,
        (what, pack, engine): (&'static str, bool, Engine),
        view: &Ordered<DeviceView<T>>,
        range: Range<usize>,
        packed: &Ordered<DeviceSlice<u8>>,
        blocks: Option<u32>,
    ) -> Result<Event> {
        let (memory, flat) = (view.buffer.slice.memory(), packed.buffer.memory());
        self.check(what, stream, memory)?;
        self.check(what, stream, flat)?;
        view.buffer.check_range(&range)?;
        if range.len() > packed.buffer.bytes() {
            return Err(DeviceError::Size {
                what,
                from: range.len(),
                to: packed.buffer.bytes(),
            });
        }
        view.order(stream)?;
        packed.order(stream)?;
        let flat_at = packed.buffer.address();
        let start = range.start as u64;
        let (mut ending, how) = (Ending::new(stream), (pack, Some(engine)));
        let mut queue = |place: PlacedPlan<'_>, bytes: Range<u64>| {
            let flat = flat_at + (bytes.start - start);
            self.queue_packed(&mut ending, how, place, flat, bytes, blocks)
        };
        let pieces = Pieces::new(&range, 1);
        let prepared = self.prepared_in_parts(stream, &view.buffer, pieces, &mut queue);
        let prepared = prepared.inspect_err(|_| noted(stream, [memory, flat]))?;
        ending.note([memory, flat].into_iter().chain(prepared.memory()))
    }

    /// Queues one kernel, or copy, between a layout and packed bytes at `flat`;
    /// the caller has checked both and notes the event behind it. No engine: a copy, but
    /// where a kernel tells its end.
    fn queue_packed(
        &self,
        ending: &mut Ending<'_>,
        (pack, engine): (bool, Option<Engine>),
        place: PlacedPlan<'_>,
        flat: u64,
        range: Range<u64>,
        blocks: Option<u32>,
    ) -> Result<()> {
        let tables = (place.tables, place.tables_at);
        let Some(mut planned) = place.plan.launch(tables, place.origin, flat, range) else {
            return Ok(());
        };
        if let Argument::Contiguous { offset, bytes } = planned.argument {
            let run = Launch::of_run(place.layout() + offset, flat, bytes);
            let kernel = match engine {
                Some(engine) => engine == Engine::Kernel,
                None => ending.tells(run.blocks),
            };
            if kernel {
                planned = run;
            }
        }
        let mut blocks = self.grid(planned.blocks, blocks);
        blocks.resident = matches!(planned.argument, Argument::General(_));
        let name = kernel(pack, &planned.argument, planned.width);
        match &planned.argument {
            Argument::Contiguous { offset, bytes } => {
                let inside = place.layout() + offset;
                let (from, to) = if pack { (inside, flat) } else { (flat, inside) };
                let driver = self.context.enter()?;
                let inlined = !pack && *bytes < crate::copy::INLINED_BYTES;
                if inlined && engine == Some(Engine::CopyEngine) {
                    let rows = crate::copy::in_rows(from, to, *bytes as usize);
                    return ending.queue(|stream| {
                        // SAFETY: as said below; the rows are the run.
                        unsafe { driver.cuMemcpy2DAsync_v2(&rows, stream.raw()) }
                    });
                }
                ending.queue(|stream| {
                    // SAFETY: view and range were checked; the memory lives until
                    // the event that the caller notes has passed.
                    unsafe { driver.cuMemcpyAsync(to, from, *bytes as usize, stream.raw()) }
                })
            }
            Argument::Strided(_, argument) => {
                // SAFETY: as said above; the kernel of this argument.
                unsafe { ending.launch(name, blocks, argument) }
            }
            Argument::Transposed(argument) => {
                let argument = if pack { *argument } else { argument.reversed() };
                // SAFETY: as said above; the kernel of this argument.
                unsafe { ending.launch(name, blocks, &argument) }
            }
            Argument::Runs(argument) => {
                // SAFETY: invariant 1; the kernel of this argument.
                unsafe { ending.launch(name, blocks, argument) }
            }
            Argument::General(argument) => {
                // SAFETY: as said above; the kernel of this argument.
                unsafe { ending.launch(name, blocks, argument) }
            }
        }
    }

    /// The plan of a view, its lists on the way.
    pub(crate) fn prepared<T>(
        &self,
        stream: &Stream,
        view: &DeviceView<T>,
    ) -> Result<Arc<Prepared>> {
        self.cache
            .prepared(stream, &view.layout, view.count, &mut |_, _| Ok(()))
    }

    /// Whether memory and stream are of this device.
    pub(crate) fn check(&self, what: &'static str, stream: &Stream, memory: &Memory) -> Result<()> {
        memory.check_stream(what, stream)?;
        if stream.context() == &self.context {
            return Ok(());
        }
        Err(DeviceError::WrongDevice {
            what,
            memory: self.context.ordinal(),
            stream: stream.context().ordinal(),
        })
    }

    /// Thread blocks of a launch: as many as have work, or were asked for; no more than the
    /// device has for packing.
    pub(crate) fn grid(&self, useful: u64, asked: Option<u32>) -> Grid {
        let most = self.context.packing_blocks();
        let limit = match self.context.packing_limit() {
            Some(limit) => asked.unwrap_or(limit).min(limit),
            // A caller that asks for the whole device: a block for each piece of work.
            None => asked.filter(|&blocks| blocks < most).unwrap_or(MOST_BLOCKS),
        };
        Grid {
            useful,
            blocks: useful.clamp(1, limit.max(1).into()) as u32,
            resident: false,
        }
    }

    /// Bytes of lists that are kept on the device.
    pub fn kept_bytes(&self) -> usize {
        self.cache.bytes()
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

/// Of one launch; blocks go on where there is more work.
const MOST_BLOCKS: u32 = 1 << 24;

/// From layout to layout, by width.
const COPY: [&str; 5] = widths!("osier_copy");

/// From layout to layout by a common period.
const PERIODS: &str = "osier_copy_periods";

/// Tiles, whichever side is packed, or none.
const TRANSPOSE: [&str; 5] = widths!("osier_transpose");

/// Place of a width in the tables of names.
fn index(width: usize) -> usize {
    width.trailing_zeros() as usize
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
    const GENERAL: [[&str; 5]; 2] = [
        widths!("osier_unpack_general"),
        widths!("osier_pack_general"),
    ];
    const RUNS: [[&str; 3]; 2] = [
        [
            "osier_unpack_runs_w4",
            "osier_unpack_runs_w8",
            "osier_unpack_runs_w16",
        ],
        [
            "osier_pack_runs_w4",
            "osier_pack_runs_w8",
            "osier_pack_runs_w16",
        ],
    ];
    let (way, width) = (usize::from(pack), index(width));
    match argument {
        Argument::Contiguous { .. } => "",
        Argument::Strided(levels, _) => STRIDED[way][levels - 1][width],
        Argument::Transposed(_) => TRANSPOSE[width],
        // Of words that need no shifts.
        Argument::Runs(_) => RUNS[way][width.saturating_sub(2)],
        Argument::General(_) => GENERAL[way][width],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name that may be asked for is written in a source.
    #[test]
    fn kernels_exist() {
        use crate::plan::arguments::{General, Runs, Strided};
        use crate::plan::transpose::Transpose;
        let ptx = crate::ptx::all();
        let mut arguments = vec![
            Argument::Transposed(Transpose::default()),
            Argument::Runs(Runs::default()),
            Argument::General(General::default()),
        ];
        arguments.extend((1..=4).map(|levels| Argument::Strided(levels, Strided::default())));
        let exists = |name: &str| ptx.contains(&format!(".visible .entry {name}("));
        for name in COPY.into_iter().chain([PERIODS]) {
            assert!(exists(name), "{name}");
        }
        for argument in &arguments {
            for width in [1, 2, 4, 8, 16] {
                for pack in [false, true] {
                    let name = kernel(pack, argument, width);
                    assert!(exists(name), "{name}");
                }
            }
        }
    }
}
