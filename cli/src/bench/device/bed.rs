//! A device, memory with known bytes on it, and clocks around what is queued.
//!
//! Times are those of the host around many launches and one wait, so they hold what a
//! program pays, launches included.

use std::time::Instant;

use osier::Layout;
use osier::datatype::Class;
use osier_datatype_corpus::random::Random;
use osier_datatype_corpus::shapes::{Shape, rebuild};
use osier_kernels::baseline::{self, Runs, SECTOR_BYTES, Sectors};
use osier_kernels::launch::{self, Image};
use osier_kernels::plan::Plan;
use osier_kernels::plan::arguments::Tables;
use osier_kernels::{
    Context, DeviceError, DeviceInfo, DeviceSlice, DeviceView, Packer, Pinned, Stream, copy,
};

use super::super::options::Effort;
use super::super::timing::{self, Seconds};
use super::super::{Failure, Result};

/// Bytes after which the contents of memory repeat: prime, so that no stride hides a
/// wrong place.
const PATTERN: usize = 1_000_003;
/// Bytes that go down to the host at a time.
const STAGE: usize = 8 << 20;

/// How much work a slow baseline may be before only a sample of it is measured.
#[derive(Clone, Copy)]
struct Patience {
    /// Steps of a linear scan.
    scan_steps: u64,
    /// Copies of single blocks.
    copies: usize,
    /// Longest list of runs that is scanned.
    runs: usize,
}

const ON_A_DEVICE: Patience = Patience {
    scan_steps: 1 << 35,
    copies: 1024,
    runs: 12_000_000,
};
const EMULATED: Patience = Patience {
    scan_steps: 1 << 22,
    copies: 256,
    runs: 1_000_000,
};

/// The device under test.
pub struct Bed {
    pub info: DeviceInfo,
    pub emulated: bool,
    stream: Stream,
    pattern: Vec<u8>,
    effort: Effort,
    patience: Patience,
}

/// Seconds, and facts beside them.
pub struct Row {
    pub bytes: usize,
    pub runs: usize,
    /// What the packer keeps on the device for this layout.
    pub list_bytes: usize,
    /// Commit and first pack, on the host's clock, until it was queued.
    pub first: f64,
    pub pack: Seconds,
    pub unpack: Option<Seconds>,
    /// A copy of as many bytes.
    pub copy: Seconds,
    /// What the copy's rate allows for the sectors that are touched.
    pub sectors: f64,
    /// A kernel that reads these sectors and writes as many bytes.
    pub gather: Seconds,
    pub memcpy_2d: Option<Seconds>,
    /// A warp for each piece of a run.
    pub units: Option<Seconds>,
    /// One copy per run; the second: a sample was measured.
    pub each: (Seconds, bool),
    /// A linear scan through all runs; likewise.
    pub scan: Option<(Seconds, bool)>,
}

fn failed(error: DeviceError) -> Failure {
    Failure::failed(error.to_string())
}

impl Bed {
    /// The first device.
    pub fn new(effort: Effort) -> Result<Bed> {
        let absent = |why: DeviceError| {
            Failure::failed(format!(
                "no GPU to pack on: {why} (hint: OSIER_DEBUG=cuda-library=PATH names a driver, the \
                 emulated one included)"
            ))
        };
        let devices = osier_kernels::devices().map_err(absent)?;
        let Some(info) = devices.into_iter().next() else {
            return Err(Failure::failed("the driver shows no device"));
        };
        let context = Context::new(info.ordinal).map_err(absent)?;
        let emulated = info.name.starts_with("Osier emulated GPU");
        let mut random = Random::new(1);
        Ok(Bed {
            emulated,
            stream: Stream::new(&context).map_err(failed)?,
            pattern: (0..PATTERN).map(|_| random.next() as u8).collect(),
            effort,
            patience: if emulated { EMULATED } else { ON_A_DEVICE },
            info,
        })
    }

    /// Seconds of one call of what `queue` queues.
    fn time(&self, mut queue: impl FnMut() -> osier_kernels::Result<()>) -> Result<Seconds> {
        timing::measure(None, &self.effort, |n| {
            for _ in 0..n {
                queue().map_err(failed)?;
            }
            self.stream.synchronize().map_err(failed)
        })
    }

    /// Seconds of an empty kernel's launch.
    pub fn empty_launch(&self) -> Result<Seconds> {
        self.time(|| baseline::empty(&self.stream))
    }

    /// Which kernels came from binaries, and which the driver has compiled.
    pub fn images(&self) -> String {
        let images = launch::images(self.stream.context());
        let names = |binary| {
            let of = images
                .iter()
                .filter(|(_, image)| matches!(image, Image::Cubin(_)) == binary);
            let names: Vec<&str> = of.map(|(name, _)| *name).collect();
            if names.is_empty() {
                "none".into()
            } else {
                names.join(", ")
            }
        };
        format!(
            "from binaries {}; compiled by the driver {}",
            names(true),
            names(false)
        )
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceSlice<u8>> {
        let slice = DeviceSlice::<u8>::new(&self.stream, bytes).map_err(failed)?;
        Ok(slice.into_inner())
    }

    /// Memory whose byte `i` is byte `i % PATTERN` of the pattern.
    fn filled(&self, bytes: usize) -> Result<DeviceSlice<u8>> {
        let memory = self.allocate(bytes)?;
        let mut done = PATTERN.min(bytes);
        let staged =
            Pinned::from_slice(self.stream.context(), &self.pattern[..done]).map_err(failed)?;
        let copy = |from: DeviceSlice<u8>, to: DeviceSlice<u8>| {
            let (from, to) = (
                from.after_stream(&self.stream),
                to.after_stream(&self.stream),
            );
            copy::copy(&self.stream, &from, &to).map_err(failed)
        };
        let first = memory.slice(..done).map_err(failed)?;
        copy(staged.on_device(&self.stream).into_inner(), first)?;
        while done < bytes {
            // Twice as much each time, always from the first byte on.
            let next = done.min(bytes - done);
            copy(
                memory.slice(..next).map_err(failed)?,
                memory.slice(done..done + next).map_err(failed)?,
            )?;
            done += next;
        }
        self.stream.synchronize().map_err(failed)?;
        Ok(memory)
    }

    /// Compares packed bytes with the pattern, run by run.
    fn check(
        &self,
        layout: &Layout,
        shape: &Shape,
        origin: usize,
        packed: &DeviceSlice<u8>,
    ) -> Result<()> {
        let mut found = Vec::with_capacity(packed.len());
        let mut staged =
            Pinned::from_slice(self.stream.context(), &vec![0u8; STAGE.min(packed.len())])
                .map_err(failed)?;
        while found.len() < packed.len() {
            let next = STAGE.min(packed.len() - found.len());
            let from = packed
                .slice(found.len()..found.len() + next)
                .map_err(failed)?;
            // No slice of the staging buffer may outlive this round.
            let whole = staged.on_device(&self.stream).into_inner();
            let to = whole.slice(..next).map_err(failed)?;
            copy::copy(
                &self.stream,
                &from.after_stream(&self.stream),
                &to.after_stream(&self.stream),
            )
            .map_err(failed)?;
            drop((whole, to));
            found.extend_from_slice(&staged.host().map_err(failed)?[..next]);
        }
        let mut at = 0;
        for (offset, length) in layout.blocks(shape.count) {
            let mut from = origin.wrapping_add_signed(offset);
            let end = at + length;
            while at < end {
                let wanted = &self.pattern[from % PATTERN..];
                let n = wanted.len().min(end - at);
                if found[at..at + n] != wanted[..n] {
                    return Err(Failure::failed(format!(
                        "{}: wrong bytes behind packed byte {at}",
                        shape.name
                    )));
                }
                (at, from) = (at + n, from + n);
            }
        }
        Ok(())
    }

    /// Bytes on the device that a shape takes.
    pub fn room(shape: &Shape, layout: &Layout) -> usize {
        let (origin, room) = places(shape, layout);
        origin + room + 2 * layout.packed_bytes(shape.count).unwrap_or(usize::MAX / 8)
    }

    /// Measures one shape.
    pub fn row(&self, shape: &Shape, layout: &Layout) -> Result<Row> {
        let count = shape.count;
        let bytes = layout.packed_bytes(count).unwrap_or(0);
        let (origin, room) = places(shape, layout);
        let stream = &self.stream;
        let memory = self.filled(room)?;
        let from = memory.after_stream(stream);
        let list: Vec<(i64, u64)> = layout
            .blocks(count)
            .map(|(at, length)| (at as i64, length as u64))
            .collect();
        let sectors = touched(origin, &list);
        let sectors_on_device = Sectors::new(stream, &sectors).map_err(failed)?;
        let packed_room = bytes.max(sectors_on_device.room(bytes));
        let (packed, other) = (self.allocate(packed_room)?, self.allocate(packed_room)?);
        let target = packed.slice(..bytes).map_err(failed)?;
        let to = target.after_stream(stream);
        let spare = other.after_stream(stream);

        let packer = Packer::new(stream.context());
        let start = Instant::now();
        let committed = rebuild(&shape.datatype)
            .and_then(|ty| ty.commit())
            .map_err(|e| Failure::failed(e.to_string()))?;
        let view = DeviceView::new(&memory, origin, &committed, count).map_err(failed)?;
        let view = view.after_stream(stream);
        packer
            .pack(stream, &view, 0..bytes, &to, None)
            .map_err(failed)?;
        let first = start.elapsed().as_secs_f64();
        self.check(layout, shape, origin, &target)?;

        let pack = self.time(|| packer.pack(stream, &view, 0..bytes, &to, None).map(drop))?;
        let unpack = match shape.overlaps {
            true => None,
            false => {
                copy::fill(stream, &from, 0).map_err(failed)?;
                let seconds =
                    self.time(|| packer.unpack(stream, &to, 0..bytes, &view, None).map(drop))?;
                // What came back must be there again.
                copy::fill(stream, &to, 0).map_err(failed)?;
                packer
                    .pack(stream, &view, 0..bytes, &to, None)
                    .map_err(failed)?;
                self.check(layout, shape, origin, &target)?;
                Some(seconds)
            }
        };
        let copied = other.slice(..bytes).map_err(failed)?.after_stream(stream);
        let copy = self.time(|| copy::copy(stream, &to, &copied).map(drop))?;
        let gather = self.time(|| {
            sectors_on_device
                .gather(stream, &from, &spare, bytes)
                .map(drop)
        })?;
        let moved = (sectors.len() as u64 + (bytes as u64).div_ceil(SECTOR_BYTES)) * SECTOR_BYTES;
        let plan = Plan::new(layout, count).map_err(|e| Failure::failed(e.to_string()))?;
        let runs = list.len();
        // Of random types there are many, and their lists are long.
        let units = match runs <= self.patience.runs && shape.family != "random" {
            true => {
                let cut = Runs::new(stream, list.clone()).map_err(failed)?;
                let units = cut.units(stream).map_err(failed)?;
                copy::fill(stream, &copied, 0).map_err(failed)?;
                cut.warp_per_unit(&units, stream, &from, origin, &copied)
                    .map_err(failed)?;
                self.check(layout, shape, origin, copied.buffer())?;
                Some(self.time(|| {
                    cut.warp_per_unit(&units, stream, &from, origin, &copied)
                        .map(drop)
                })?)
            }
            false => None,
        };
        Ok(Row {
            bytes,
            runs,
            units,
            list_bytes: Tables::new(&plan).bytes.len(),
            first,
            pack,
            unpack,
            copy,
            sectors: copy.median * moved as f64 / (2 * bytes.max(1)) as f64,
            gather,
            memcpy_2d: self.memcpy_2d(layout, count, &memory, origin, &copied)?,
            each: self.each(&list, &from, origin, &copied)?,
            scan: self.scan(shape, list, &from, origin, &copied)?,
        })
    }

    /// Packed bytes, and seconds of packing them with so many thread blocks each; the
    /// first time is checked.
    pub fn grids(
        &self,
        shape: &Shape,
        layout: &Layout,
        blocks: &[Option<u32>],
    ) -> Result<(usize, Vec<Seconds>)> {
        let bytes = layout.packed_bytes(shape.count).unwrap_or(0);
        let (origin, room) = places(shape, layout);
        let stream = &self.stream;
        let memory = self.filled(room)?;
        let target = self.allocate(bytes)?;
        let to = target.after_stream(stream);
        let packer = Packer::new(stream.context());
        let view = DeviceView::new(&memory, origin, layout, shape.count).map_err(failed)?;
        let view = view.after_stream(stream);
        let mut seconds = Vec::new();
        for blocks in blocks {
            copy::fill(stream, &to, 0).map_err(failed)?;
            let pack = || packer.pack(stream, &view, 0..bytes, &to, *blocks).map(drop);
            pack().map_err(failed)?;
            self.check(layout, shape, origin, &target)?;
            seconds.push(self.time(pack)?);
        }
        Ok((bytes, seconds))
    }

    fn memcpy_2d(
        &self,
        layout: &Layout,
        count: usize,
        memory: &DeviceSlice<u8>,
        origin: usize,
        to: &osier_kernels::Ordered<DeviceSlice<u8>>,
    ) -> Result<Option<Seconds>> {
        let Class::Strided {
            levels: [level],
            block_bytes,
        } = layout.class()
        else {
            return Ok(None);
        };
        if count != 1 || level.stride < block_bytes as isize {
            return Ok(None);
        }
        let from = memory
            .slice(origin.wrapping_add_signed(layout.true_lb())..)
            .map_err(failed)?
            .after_stream(&self.stream);
        let extent = copy::Extent {
            width: block_bytes,
            height: level.count,
            depth: 1,
        };
        let rows = |row_bytes| copy::Pitch {
            row_bytes,
            rows: level.count,
        };
        let (apart, tight) = (rows(level.stride.unsigned_abs()), rows(block_bytes));
        self.time(|| copy::copy_box(&self.stream, extent, (&from, apart), (to, tight)).map(drop))
            .map(Some)
    }

    fn each(
        &self,
        list: &[(i64, u64)],
        from: &osier_kernels::Ordered<DeviceSlice<u8>>,
        origin: usize,
        to: &osier_kernels::Ordered<DeviceSlice<u8>>,
    ) -> Result<(Seconds, bool)> {
        let count = list.len().min(self.patience.copies);
        let runs = Runs::new(&self.stream, list[..count].to_vec()).map_err(failed)?;
        let seconds = self.time(|| {
            runs.copy_each(&self.stream, from, origin, to, count)
                .map(drop)
        })?;
        let scale = list.len() as f64 / count.max(1) as f64;
        Ok((seconds.times(scale), count < list.len()))
    }

    /// Where blocks are listed; strides need no scan, and random types are too many.
    fn scan(
        &self,
        shape: &Shape,
        list: Vec<(i64, u64)>,
        from: &osier_kernels::Ordered<DeviceSlice<u8>>,
        origin: usize,
        to: &osier_kernels::Ordered<DeviceSlice<u8>>,
    ) -> Result<Option<(Seconds, bool)>> {
        let strided = matches!(shape.family.as_str(), "width" | "structure" | "random")
            || ["contiguous", "V", "transpose"].contains(&shape.name.as_str());
        if strided || list.len() > self.patience.runs || list.is_empty() {
            return Ok(None);
        }
        let bytes: u64 = list.iter().map(|run| run.1).sum();
        let steps = list.len() as u64 / 2 * (bytes / 8).max(1);
        let sample = steps.div_ceil(self.patience.scan_steps).max(1);
        let runs = Runs::new(&self.stream, list).map_err(failed)?;
        let seconds = self.time(|| runs.scan(&self.stream, from, origin, to, sample).map(drop))?;
        Ok(Some((seconds.times(sample as f64), sample > 1)))
    }
}

/// Where the origin is, and bytes of memory, whole sectors.
fn places(shape: &Shape, layout: &Layout) -> (usize, usize) {
    let (low, high) = layout.span(shape.count);
    let origin = (-low).max(0).unsigned_abs().next_multiple_of(256);
    let end = origin + high.max(0).unsigned_abs();
    (origin, end.next_multiple_of(SECTOR_BYTES as usize).max(32))
}

/// Numbers of the sectors that runs touch, each once, in order.
fn touched(origin: usize, list: &[(i64, u64)]) -> Vec<u32> {
    let mut numbers = Vec::new();
    for &(at, length) in list {
        let start = (origin as i64 + at) as u64;
        let mut first = start / SECTOR_BYTES;
        let last = (start + length - 1) / SECTOR_BYTES;
        if numbers.last() == Some(&(first as u32)) {
            first += 1;
        }
        numbers.extend((first..=last).map(|number| number as u32));
    }
    if !numbers.is_sorted_by(|a, b| a < b) {
        numbers.sort_unstable();
        numbers.dedup();
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::touched;

    #[test]
    fn sectors_are_counted_once() {
        assert_eq!(touched(0, &[(0, 8), (16, 8), (40, 8)]), [0, 1]);
        assert_eq!(touched(64, &[(0, 33), (-64, 1), (32, 1)]), [0, 2, 3]);
        assert_eq!(touched(0, &[(31, 2)]), [0, 1]);
    }
}
