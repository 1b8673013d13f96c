//! Baselines of pack: copies block by block, a linear scan through all blocks, a warp for
//! each piece of a block, a gather of the memory sectors that a layout touches, an empty
//! kernel. For benchmarks; no message uses these.
//!
//! # Sources
//! W. Wu, G. Bosilca, R. vandeVaart, S. Jeaugey, J. Dongarra, GPU-Aware Non-contiguous
//! Data Movement In Open MPI, HPDC 2016: units of work of a fixed size, a warp for each.
//! The linear scan is what yaksa (Raffenetti and others, <https://yaksa.org>) does
//! for indexed types, written anew from that description.

use crate::copy::note;
use crate::driver::abi;
use crate::error::{DeviceError, Result};
use crate::launch::launch;
use crate::memory::Memory;
use crate::plan::arguments::THREADS;
use crate::slice::{DeviceSlice, Ordered, Pinned};
use crate::stream::{Event, Stream};
use osier_datatype::Datatype;

/// Bytes that memory moves at once.
pub const SECTOR_BYTES: u64 = 32;

/// Halves of a sector that one thread block gathers at a time.
const GROUP: u64 = 4 * THREADS as u64;

/// Queues a kernel that does nothing.
///
/// # Errors
/// The driver refuses.
pub fn empty(stream: &Stream) -> Result<()> {
    // SAFETY: the kernel takes one number and touches no memory.
    unsafe { launch(stream, "osier_baseline_empty", 1, 32, &0u64) }
}

/// Threads of a block that keeps processors busy: two fill a multiprocessor.
const BUSY_THREADS: u32 = 1024;

/// Queues a kernel that takes a share of the device's threads, and of its memory
/// nothing, for `rounds` dependent steps of about four cycles.
///
/// # Errors
/// The driver refuses.
pub fn busy(stream: &Stream, share: f64, rounds: u32) -> Result<Event> {
    let blocks = 2.0 * f64::from(stream.context().multiprocessors()) * share;
    let argument = Busy {
        sink: 0,
        seed: 1,
        rounds,
    };
    let grid = (blocks.round() as u32).max(1);
    // SAFETY: the argument of this kernel, which touches no memory.
    unsafe { launch(stream, "osier_baseline_busy", grid, BUSY_THREADS, &argument) }?;
    stream.record()
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Busy {
    sink: u64,
    seed: u32,
    rounds: u32,
}

/// Runs of bytes in packed order, on the host and on a device.
pub struct Runs {
    list: Vec<(i64, u64)>,
    offsets: DeviceSlice<i64>,
    lengths: DeviceSlice<u64>,
    uploaded: Event,
    bytes: u64,
    low: i64,
    high: i64,
    /// All offsets and lengths as one word: what divides it divides each.
    bits: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Scan {
    layout: u64,
    packed: u64,
    offsets: u64,
    lengths: u64,
    runs: u64,
    words: u64,
    sample: u64,
}

impl Runs {
    /// Uploads the runs of a layout: offsets from its origin, and lengths above 0.
    ///
    /// # Errors
    /// Out of memory, or the driver refuses.
    pub fn new(stream: &Stream, list: Vec<(i64, u64)>) -> Result<Runs> {
        let lengths: Vec<u64> = list.iter().map(|run| run.1).collect();
        let offsets: Vec<i64> = list.iter().map(|run| run.0).collect();
        let end = |&(at, bytes): &(i64, u64)| at.saturating_add_unsigned(bytes);
        let (offsets, _) = upload(stream, &offsets)?;
        let (lengths, uploaded) = upload(stream, &lengths)?;
        Ok(Runs {
            offsets,
            lengths,
            uploaded,
            bytes: list.iter().map(|run| run.1).sum(),
            low: list.iter().map(|run| run.0).min().unwrap_or(0),
            high: list.iter().map(end).max().unwrap_or(0),
            bits: list.iter().fold(0, |bits, run| bits | run.0 as u64 | run.1),
            list,
        })
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn check(&self, from: &DeviceSlice<u8>, origin: usize, to: &DeviceSlice<u8>) -> Result<()> {
        let range = origin as i128 + i128::from(self.low)..origin as i128 + i128::from(self.high);
        if range.start < 0 || range.end > from.bytes() as i128 {
            return Err(DeviceError::Bounds {
                range,
                bytes: from.bytes(),
            });
        }
        check_room(self.bytes, to)
    }

    /// Packs by a linear scan, one thread a word; of every `sample` groups of 32
    /// words one.
    ///
    /// # Errors
    /// Runs outside of a buffer, or the driver refuses.
    pub fn scan(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceSlice<u8>>,
        origin: usize,
        to: &Ordered<DeviceSlice<u8>>,
        sample: u64,
    ) -> Result<Event> {
        self.check(&from.buffer, origin, &to.buffer)?;
        begin(stream, "scan", [from, to])?;
        stream.wait(&self.uploaded)?;
        let layout = from.buffer.address() + origin as u64;
        let packed = to.buffer.address();
        let bits = self.bits | layout | packed;
        let width = bits.trailing_zeros().min(4);
        let argument = Scan {
            layout,
            packed,
            offsets: self.offsets.address(),
            lengths: self.lengths.address(),
            runs: self.list.len() as u64,
            words: self.bytes >> width,
            sample: sample.max(1),
        };
        const NAMES: [&str; 5] = [
            "osier_baseline_scan_w1",
            "osier_baseline_scan_w2",
            "osier_baseline_scan_w4",
            "osier_baseline_scan_w8",
            "osier_baseline_scan_w16",
        ];
        let threads = argument.words.div_ceil(argument.sample);
        if self.bytes > 0 {
            let grid = grid(threads.div_ceil(u64::from(THREADS)));
            // SAFETY: the argument of this kernel; runs were checked against both
            // buffers, which live until the event noted below has passed.
            unsafe { launch(stream, NAMES[width as usize], grid, THREADS, &argument) }?;
        }
        end(
            stream,
            from,
            to,
            [self.offsets.memory(), self.lengths.memory()],
        )
    }

    /// Cuts the runs into units of at most [`UNIT_BYTES`], and uploads their list.
    ///
    /// # Errors
    /// Out of memory, or the driver refuses.
    pub fn units(&self, stream: &Stream) -> Result<Units> {
        let mut list: Vec<u64> = Vec::new();
        let mut to = 0;
        for &(at, bytes) in &self.list {
            let mut done = 0;
            while done < bytes {
                let next = UNIT_BYTES.min(bytes - done);
                list.extend([at.wrapping_add_unsigned(done) as u64, to, next]);
                (done, to) = (done + next, to + next);
            }
        }
        let (on_device, uploaded) = upload(stream, &list)?;
        Ok(Units {
            list: on_device,
            count: list.len() as u64 / 3,
            uploaded,
        })
    }

    /// Packs by a warp for each unit.
    ///
    /// # Errors
    /// As [`Runs::scan`].
    pub fn warp_per_unit(
        &self,
        units: &Units,
        stream: &Stream,
        from: &Ordered<DeviceSlice<u8>>,
        origin: usize,
        to: &Ordered<DeviceSlice<u8>>,
    ) -> Result<Event> {
        self.check(&from.buffer, origin, &to.buffer)?;
        begin(stream, "warp per unit", [from, to])?;
        stream.wait(&units.uploaded)?;
        let layout = from.buffer.address() + origin as u64;
        let packed = to.buffer.address();
        // Pieces are cut at multiples of more than 16 bytes.
        let width = (self.bits | layout | packed).trailing_zeros().min(4);
        let argument = UnitsArgument {
            layout,
            packed,
            units: units.list.address(),
            count: units.count,
        };
        const NAMES: [&str; 5] = [
            "osier_baseline_units_w1",
            "osier_baseline_units_w2",
            "osier_baseline_units_w4",
            "osier_baseline_units_w8",
            "osier_baseline_units_w16",
        ];
        if units.count > 0 {
            let warps = units.count.div_ceil(u64::from(THREADS / 32));
            let name = NAMES[width as usize];
            // SAFETY: the argument of this kernel; units are pieces of the runs, which
            // were checked against both buffers, and these live until the event noted
            // below has passed.
            unsafe { launch(stream, name, grid(warps), THREADS, &argument) }?;
        }
        end(stream, from, to, [units.list.memory()])
    }

    /// Packs by one copy per run, for the first `count` runs.
    ///
    /// # Errors
    /// As [`Runs::scan`].
    pub fn copy_each(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceSlice<u8>>,
        origin: usize,
        to: &Ordered<DeviceSlice<u8>>,
        count: usize,
    ) -> Result<Event> {
        self.check(&from.buffer, origin, &to.buffer)?;
        begin(stream, "copy", [from, to])?;
        let driver = stream.context().enter()?;
        let mut packed = to.buffer.address();
        for &(at, bytes) in self.list.iter().take(count) {
            let source = (from.buffer.address() + origin as u64).wrapping_add_signed(at);
            // SAFETY: runs were checked against both buffers, which live until the
            // event noted below has passed.
            unsafe { driver.cuMemcpyAsync(packed, source, bytes as usize, stream.raw()) }?;
            packed += bytes;
        }
        drop(driver);
        end(stream, from, to, [])
    }

    /// Unpacks by one copy per run, for the first `count` runs.
    ///
    /// # Errors
    /// As [`Runs::scan`].
    pub fn copy_back_each(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceSlice<u8>>,
        to: &Ordered<DeviceSlice<u8>>,
        origin: usize,
        count: usize,
    ) -> Result<Event> {
        self.check(&to.buffer, origin, &from.buffer)?;
        begin(stream, "copy", [from, to])?;
        let driver = stream.context().enter()?;
        let mut packed = from.buffer.address();
        for &(at, bytes) in self.list.iter().take(count) {
            let target = (to.buffer.address() + origin as u64).wrapping_add_signed(at);
            // SAFETY: as in `copy_each`.
            unsafe { driver.cuMemcpyAsync(target, packed, bytes as usize, stream.raw()) }?;
            packed += bytes;
        }
        drop(driver);
        end(stream, from, to, [])
    }
}

/// Largest unit of work of a warp.
pub const UNIT_BYTES: u64 = 1024;

/// The list of units of [`Runs::units`], on a device.
pub struct Units {
    list: DeviceSlice<u64>,
    count: u64,
    uploaded: Event,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct UnitsArgument {
    layout: u64,
    packed: u64,
    units: u64,
    count: u64,
}

/// Numbers of sectors on a device, counted from where memory begins.
pub struct Sectors {
    numbers: DeviceSlice<u32>,
    uploaded: Event,
    end: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Gather {
    memory: u64,
    packed: u64,
    sectors: u64,
    count: u64,
    share: u64,
}

impl Sectors {
    /// Uploads the numbers.
    ///
    /// # Errors
    /// Out of memory, or the driver refuses.
    pub fn new(stream: &Stream, numbers: &[u32]) -> Result<Sectors> {
        let (on_device, uploaded) = upload(stream, numbers)?;
        Ok(Sectors {
            end: numbers.iter().map(|&n| u64::from(n) + 1).max().unwrap_or(0),
            numbers: on_device,
            uploaded,
        })
    }

    /// Bytes that a gather of `bytes` packed bytes writes: a few more.
    pub fn room(&self, bytes: usize) -> usize {
        let groups = (2 * self.numbers.len() as u64).div_ceil(GROUP);
        (groups * self.share(bytes) * 16) as usize
    }

    fn share(&self, bytes: usize) -> u64 {
        let halves = 2 * self.numbers.len() as u64;
        (bytes as u64 / 16 * GROUP)
            .div_ceil(halves.max(1))
            .min(GROUP)
    }

    /// Reads each sector once, and writes about `bytes` bytes in one run.
    ///
    /// # Errors
    /// Sectors outside of `from`, too little room in `to`, or the driver refuses.
    pub fn gather(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceSlice<u8>>,
        to: &Ordered<DeviceSlice<u8>>,
        bytes: usize,
    ) -> Result<Event> {
        let until = self.end * SECTOR_BYTES;
        let aligned = from.buffer.address().is_multiple_of(SECTOR_BYTES)
            && to.buffer.address().is_multiple_of(16);
        if until > from.buffer.bytes() as u64 || !aligned {
            return Err(DeviceError::Bounds {
                range: 0..until.into(),
                bytes: from.buffer.bytes(),
            });
        }
        check_room(self.room(bytes) as u64, &to.buffer)?;
        begin(stream, "gather", [from, to])?;
        stream.wait(&self.uploaded)?;
        let count = self.numbers.len() as u64;
        let argument = Gather {
            memory: from.buffer.address(),
            packed: to.buffer.address(),
            sectors: self.numbers.address(),
            count,
            share: self.share(bytes),
        };
        if count > 0 {
            let grid = grid((2 * count).div_ceil(GROUP));
            // SAFETY: the argument of this kernel; sectors and room were checked, and
            // both buffers live until the event noted below has passed.
            unsafe { launch(stream, "osier_baseline_gather", grid, THREADS, &argument) }?;
        }
        end(stream, from, to, [self.numbers.memory()])
    }
}

fn upload<T: Datatype>(stream: &Stream, values: &[T]) -> Result<(DeviceSlice<T>, Event)> {
    let staged = Pinned::from_slice(stream.context(), values)?;
    let place = DeviceSlice::<T>::new(stream, values.len())?;
    let event = crate::copy::copy(stream, &staged.on_device(stream), &place)?;
    Ok((place.into_inner(), event))
}

fn check_room(bytes: u64, to: &DeviceSlice<u8>) -> Result<()> {
    if bytes > to.bytes() as u64 {
        return Err(DeviceError::Bounds {
            range: 0..bytes.into(),
            bytes: to.bytes(),
        });
    }
    Ok(())
}

/// Thread blocks for this number of pieces of work, as launches of packs have them.
fn grid(wanted: u64) -> u32 {
    wanted.clamp(1, 1 << 24) as u32
}

fn begin(
    stream: &Stream,
    what: &'static str,
    buffers: [&Ordered<DeviceSlice<u8>>; 2],
) -> Result<()> {
    for buffer in buffers {
        buffer.buffer.memory().check_stream(what, stream)?;
        buffer.order(stream)?;
    }
    Ok(())
}

fn end<const N: usize>(
    stream: &Stream,
    from: &Ordered<DeviceSlice<u8>>,
    to: &Ordered<DeviceSlice<u8>>,
    lists: [&std::sync::Arc<Memory>; N],
) -> Result<Event> {
    let buffers = [from.buffer.memory(), to.buffer.memory()];
    note(stream, buffers.into_iter().chain(lists))
}

const _: () = {
    assert!(size_of::<Scan>() == 56 && size_of::<Gather>() == 40);
    assert!(size_of::<UnitsArgument>() == 32);
    assert!(size_of::<abi::DevicePointer>() == 8);
};
