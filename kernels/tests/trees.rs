//! Many random trees on the device against the typemap and the host's pack, bit
//! for bit, by seed.
//!
//! A seed makes a tree or a nest of loops, cuts its packed bytes at random places,
//! and lays memory and packed bytes at random alignments. Many cases share an
//! arena: its bytes before and after are known from the typemap, and all of them
//! are compared, so that whatever is written beside a layout is seen.
//!
//! A failure prints the seed and the smallest type found that fails still;
//! `OSIER_TEST=seed=N cargo test -p osier-kernels --test trees one_seed` repeats it.
//! `cargo xtask soak gpu-datatype` runs the same without end.

#[path = "../../tests/asked.rs"]
mod asked;
mod support;

use osier_datatype::{Basic, Layout, Type};
use osier_datatype_corpus::random::{Random, grid, ragged, shrink, tree};
use osier_kernels::{Context, DeviceSlice, DeviceView, Event, Packer, Pinned, Stream, copy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::context;

/// Trees of the quick tests; `OSIER_TEST=trees=N` overrides it.
const TREES: u64 = 100_000;

/// Cases of one arena, and the bytes from which on it takes no more.
const BATCH: usize = 32;
const ARENA_BYTES: usize = 128 << 10;

/// Memory of one case at most.
const SPAN_BYTES: usize = 16 << 20;

/// Bytes beside each region that must stay as they are.
const MARGIN: usize = 16;

/// Lists on the device, so few that they are made anew and thrown away all the time.
const LISTS_BYTES: usize = 256 << 10;

/// What to pack and unpack, and how.
struct Case {
    ty: Type,
    count: usize,
    layout: Layout,
    /// Packed fragments, in the order of their launches.
    fragments: Vec<(usize, usize)>,
    /// Thread blocks.
    blocks: Option<u32>,
    /// Distances from multiples of 16: memory, packed bytes; of pack, of unpack.
    shifts: [usize; 4],
}

/// The type of a seed, and a number of instances.
fn draw(seed: u64) -> (Type, usize) {
    let mut random = Random::new(seed);
    let ty = match random.below(8) {
        0 | 1 => grid(&mut random, 6000),
        2 => ragged(&mut random, 6000),
        _ => tree(&mut random, 1500),
    };
    let count = match ty.size() {
        1..=40 if random.below(3) == 0 => random.below(120),
        _ => random.below(4),
    };
    // One of some millions of trees reaches over gigabytes, which a device need not have.
    let layout = ty.commit().unwrap();
    let fits = |count: usize| {
        let (low, high) = layout.span(count);
        high.abs_diff(low) <= SPAN_BYTES
    };
    let count = [count as usize, 1, 0]
        .into_iter()
        .find(|&count| fits(count));
    (ty, count.unwrap_or(0))
}

impl Case {
    fn new(ty: &Type, count: usize, seed: u64) -> Case {
        let mut random = Random::new(!seed);
        let layout = ty.commit().unwrap();
        let bytes = layout.pack_size(count).unwrap();
        let mut ends: Vec<usize> = (0..random.below(3))
            .map(|_| random.below(bytes as u64 + 1) as usize)
            .collect();
        ends.extend([0, bytes]);
        ends.sort_unstable();
        let mut fragments: Vec<_> = ends.windows(2).map(|ends| (ends[0], ends[1])).collect();
        for i in (1..fragments.len()).rev() {
            fragments.swap(i, random.below(i as u64 + 1) as usize);
        }
        // Half of them suit the widest words.
        let aligned = random.below(2) == 0;
        let mut shift = || {
            if aligned {
                0
            } else {
                random.below(16) as usize
            }
        };
        let shifts = std::array::from_fn(|_| shift());
        let blocks = [None, Some(1), Some(3)][random.below(3) as usize];
        Case {
            ty: ty.clone(),
            count,
            layout,
            fragments,
            blocks,
            shifts,
        }
    }

    fn of_seed(seed: u64) -> Case {
        let (ty, count) = draw(seed);
        Case::new(&ty, count, seed)
    }
}

/// Where a case lies in the arena.
struct Placed {
    /// Of both memories: first byte, bytes, and where in it the origin is.
    memory: [usize; 2],
    memory_bytes: usize,
    origin: usize,
    /// Of both packed streams.
    packed: [usize; 2],
    packed_bytes: usize,
    end: usize,
    unpacks: bool,
}

/// The arena's bytes before and after all cases, and where these lie.
struct Images {
    before: Vec<u8>,
    after: Vec<u8>,
    placed: Vec<Placed>,
}

impl Images {
    /// By the typemap; panics where the host's pack or unpack differs from it.
    fn new(cases: &[Case], seed: u64) -> Images {
        let mut end = 0;
        let placed: Vec<Placed> = cases
            .iter()
            .map(|case| Placed::new(case, &mut end))
            .collect();
        let mut random = Random::new(seed);
        let mut before = vec![0; end.next_multiple_of(8)];
        for word in before.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_ne_bytes());
        }
        let mut after = before.clone();
        for (case, place) in cases.iter().zip(&placed) {
            place.expect(case, &before, &mut after);
        }
        Images {
            before,
            after,
            placed,
        }
    }
}

impl Placed {
    fn new(case: &Case, end: &mut usize) -> Placed {
        let (low, high) = case.layout.span(case.count);
        let (low, high) = (low.min(0), high.max(0));
        let memory_bytes = high.abs_diff(low);
        let packed_bytes = case.layout.pack_size(case.count).unwrap();
        let mut place = |bytes: usize, shift: usize| {
            let at = (*end + MARGIN).next_multiple_of(16) + shift;
            *end = at + bytes;
            at
        };
        let [from, packed, to, unpacked] = case.shifts;
        Placed {
            memory: [place(memory_bytes, from), place(memory_bytes, to)],
            memory_bytes,
            origin: low.unsigned_abs(),
            packed: [place(packed_bytes, packed), place(packed_bytes, unpacked)],
            packed_bytes,
            end: {
                *end += MARGIN;
                *end
            },
            unpacks: !case.layout.self_overlaps(case.count),
        }
    }

    /// Puts what the case is to write into `after`.
    fn expect(&self, case: &Case, before: &[u8], after: &mut [u8]) {
        let Case {
            ty, count, layout, ..
        } = case;
        let bytes = ty.typemap().bytes(*count);
        assert_eq!(bytes.len(), self.packed_bytes, "size of {ty:?}");
        let at =
            |memory: usize, byte: isize| (memory + self.origin).checked_add_signed(byte).unwrap();
        for (i, &byte) in bytes.iter().enumerate() {
            after[self.packed[0] + i] = before[at(self.memory[0], byte)];
            if self.unpacks {
                after[at(self.memory[1], byte)] = before[self.packed[1] + i];
            }
        }
        let memory = |which: usize| self.memory[which]..self.memory[which] + self.memory_bytes;
        let packed = |which: usize| self.packed[which]..self.packed[which] + self.packed_bytes;
        let mut host = vec![0xA5; self.packed_bytes];
        layout
            .pack(
                &before[memory(0)],
                self.origin,
                *count,
                0..host.len(),
                &mut host,
            )
            .unwrap();
        assert!(host == after[packed(0)], "host pack of {count} of {ty:?}");
        if self.unpacks {
            let mut host = before[memory(1)].to_vec();
            let from = &before[packed(1)];
            layout
                .unpack(&mut host, self.origin, *count, 0..from.len(), from)
                .unwrap();
            assert!(host == after[memory(1)], "host unpack of {count} of {ty:?}");
        }
    }
}

/// A stream with its arena on the device.
struct Lane {
    context: Context,
    stream: Stream,
    packer: Packer,
    arena: DeviceSlice<u8>,
    /// Both staging buffers, up and down.
    staged: [Pinned<u8>; 2],
}

impl Lane {
    fn new(context: &Context) -> Lane {
        Lane::on(Stream::new(context).unwrap())
    }

    fn on(stream: Stream) -> Lane {
        let context = stream.context();
        let room = vec![0u8; 4 * ARENA_BYTES];
        let stage = || Pinned::from_slice(context, &room).unwrap();
        Lane {
            context: context.clone(),
            packer: Packer::with_limit(context, LISTS_BYTES),
            arena: DeviceSlice::new(&stream, room.len()).unwrap().into_inner(),
            staged: [stage(), stage()],
            stream: stream.clone(),
        }
    }

    fn grow(&mut self, bytes: usize) {
        if bytes > self.arena.len() {
            let room = vec![0u8; bytes.next_power_of_two()];
            let stage = || Pinned::from_slice(&self.context, &room).unwrap();
            let arena = DeviceSlice::new(&self.stream, room.len()).unwrap();
            (self.arena, self.staged) = (arena.into_inner(), [stage(), stage()]);
        }
    }

    /// Copies between a staging buffer and the arena's first bytes.
    fn stage(&mut self, down: bool, bytes: usize) {
        let whole = self.staged[usize::from(down)].on_device(&self.stream);
        let staged = whole.into_inner().slice(..bytes).unwrap();
        let arena = self.arena.slice(..bytes).unwrap();
        let (from, to) = if down {
            (arena, staged)
        } else {
            (staged, arena)
        };
        copy::copy(
            &self.stream,
            &from.after_stream(&self.stream),
            &to.after_stream(&self.stream),
        )
        .unwrap();
    }

    /// Panics where device and typemap differ.
    fn agree(&mut self, cases: &[Case], seed: u64) {
        let images = Images::new(cases, seed);
        let bytes = images.before.len();
        self.grow(bytes);
        self.staged[0].host().unwrap()[..bytes].copy_from_slice(&images.before);
        self.stage(false, bytes);
        for (case, place) in cases.iter().zip(&images.placed) {
            self.launch(case, place);
        }
        self.stage(true, bytes);
        let found = &self.staged[1].host().unwrap()[..bytes];
        if found == images.after {
            return;
        }
        let at = (0..bytes).find(|&i| found[i] != images.after[i]).unwrap();
        let which = images.placed.partition_point(|place| place.end <= at);
        let place = &images.placed[which];
        let case = &cases[which];
        panic!(
            "byte {at}: 0x{:02x}, not 0x{:02x}; memories at {:?}, {} bytes, packed at {:?}, {} bytes; \
             fragments {:?}, blocks {:?}; {} of {:?}",
            found[at],
            images.after[at],
            place.memory,
            place.memory_bytes,
            place.packed,
            place.packed_bytes,
            case.fragments,
            case.blocks,
            case.count,
            case.ty
        );
    }

    fn launch(&self, case: &Case, place: &Placed) -> Option<Event> {
        let mut last = None;
        for which in 0..1 + usize::from(place.unpacks) {
            let start = place.memory[which];
            let memory = self.arena.slice(start..start + place.memory_bytes).unwrap();
            let view = DeviceView::new(&memory, place.origin, &case.layout, case.count).unwrap();
            let view = view.after_stream(&self.stream);
            for &(start, end) in &case.fragments {
                let at = place.packed[which];
                let packed = self.arena.slice(at + start..at + end).unwrap();
                let packed = packed.after_stream(&self.stream);
                let (stream, blocks) = (&self.stream, case.blocks);
                let done = match which {
                    0 => self.packer.pack(stream, &view, start..end, &packed, blocks),
                    _ => self
                        .packer
                        .unpack(stream, &packed, start..end, &view, blocks),
                };
                last = Some(done.unwrap());
            }
        }
        last
    }

    /// Whether a number of seeds pass; if not, says which and with what smallest type.
    fn hold(&mut self, seeds: std::ops::Range<u64>) -> bool {
        let mut cases: Vec<Case> = Vec::new();
        let (mut first, mut bytes) = (seeds.start, 0);
        for seed in seeds.clone() {
            let case = Case::of_seed(seed);
            Placed::new(&case, &mut bytes);
            cases.push(case);
            if cases.len() < BATCH && bytes < ARENA_BYTES && seed + 1 < seeds.end {
                continue;
            }
            if !self.passes(&cases, first) {
                return (first..=seed).all(|seed| self.holds(seed)) && {
                    eprintln!("seeds {first}..={seed} fail together, none alone");
                    false
                };
            }
            cases.clear();
            (first, bytes) = (seed + 1, 0);
        }
        true
    }

    fn passes(&mut self, cases: &[Case], seed: u64) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.agree(cases, seed))).is_ok()
    }

    fn holds(&mut self, seed: u64) -> bool {
        let (ty, count) = draw(seed);
        if self.passes(&[Case::new(&ty, count, seed)], seed) {
            return true;
        }
        let lane = std::cell::RefCell::new(self);
        let small = shrink(&ty, |ty| {
            !lane
                .borrow_mut()
                .passes(&[Case::new(ty, count, seed)], seed)
        });
        eprintln!("OSIER_TEST=seed={seed} fails: {count} of {small:?}");
        false
    }
}

/// Runs seeds from `first` on all processors until `enough(seeds done)`; says how
/// many it ran.
fn run(context: &Context, first: u64, enough: impl Fn(u64) -> bool + Sync) -> u64 {
    const SEEDS: u64 = 256;
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut lane = Lane::new(context);
                loop {
                    let at = next.load(Ordering::Relaxed);
                    if enough(at) || failed.load(Ordering::Relaxed) {
                        break;
                    }
                    let at = next.fetch_add(SEEDS, Ordering::Relaxed);
                    if !lane.hold(first + at..first + at + SEEDS) {
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(!failed.into_inner(), "see the seed above");
    next.into_inner()
}

#[test]
fn random_trees() {
    let Some(context) = context() else { return };
    let trees = asked::number("trees").unwrap_or(TREES);
    run(&context, 0, |done| done >= trees);
}

#[test]
fn one_seed() {
    let Some(context) = context() else { return };
    let seed = asked::number("seed").unwrap_or(1);
    assert!(Lane::new(&context).holds(seed));
}

/// Two blocks of each length up to a few words, of lengths around the widths of words and
/// vectors, and of some more: from each alignment to each alignment.
#[test]
fn every_alignment() {
    let Some(context) = context() else { return };
    // Kernels tell their end there.
    let mut lane = Lane::on(Stream::uncaptured(&context).unwrap());
    let around = [128, 192, 256, 300usize];
    let lengths = (0..=72).chain(around.into_iter().flat_map(|n| n - 1..=n + 1));
    for length in lengths {
        // One stride suits all words, one suits bytes alone.
        let stride = length.next_multiple_of(16) as isize + if length % 2 == 0 { 16 } else { 1 };
        let block = Type::contiguous(length, &Type::basic(Basic::Byte)).unwrap();
        let ty = Type::hvector(2, 1, stride, &block).unwrap();
        let cases: Vec<Case> = (0..256)
            .map(|number| Case {
                shifts: [number / 16, number % 16, number % 16, number / 16],
                blocks: Some(1),
                fragments: vec![(0, 2 * length)],
                ..Case::new(&ty, 1, 0)
            })
            .collect();
        lane.agree(&cases, length as u64);
    }
}

#[test]
#[ignore = "as long as one likes: cargo xtask soak gpu-datatype"]
fn soak() {
    let context = context().expect("a driver");
    let seconds = Duration::from_secs(asked::number("seconds").unwrap_or(10));
    let trees = asked::number("trees").unwrap_or(u64::MAX);
    let first = asked::number("seed").unwrap_or(1) << 32;
    let (start, last) = (Instant::now(), AtomicU64::new(0));
    let done = run(&context, first, |done| {
        let elapsed = start.elapsed();
        let second = elapsed.as_secs();
        if last.fetch_max(second, Ordering::Relaxed) < second {
            bar(done, trees, elapsed, seconds);
        }
        elapsed >= seconds || done >= trees
    });
    println!(
        "\n{done} trees, seeds from {first}, {:.0} s",
        start.elapsed().as_secs_f64()
    );
}

/// A bar of what is nearer its end, time or trees.
fn bar(done: u64, trees: u64, elapsed: Duration, seconds: Duration) {
    const WIDTH: usize = 30;
    let part = (elapsed.as_secs_f64() / seconds.as_secs_f64().max(1.0))
        .max(done as f64 / trees as f64)
        .min(1.0);
    let full = (part * WIDTH as f64) as usize;
    let (full, empty) = ("█".repeat(full), "░".repeat(WIDTH - full));
    let rate = done as f64 / elapsed.as_secs_f64();
    let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(1e-3);
    eprint!("\r{full}{empty} {done} trees, {rate:.0}/s, {left:.0} s left ");
}
