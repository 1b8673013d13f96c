//! Layouts that programs exchange, all of the corpus by name: pack, unpack and copies of the
//! device's kernels against the host's blocks. Of long messages three ranges are moved, of
//! which one cuts blocks; what is not touched of many gigabytes costs nothing.

#[path = "support/sparse.rs"]
mod sparse;
mod support;

use osier_datatype::{Basic, Layout, Type};
use osier_datatype_corpus::{Entry, entries};
use osier_kernels::{DeviceView, Packer, Stream};
use sparse::{Sparse, run_alone};
use std::collections::BTreeSet;
use std::ops::Range;
use support::context;

/// Entries of the corpus.
const ENTRIES: usize = 90;

/// Bytes of a range, and of all ranges of a message that is moved as a whole.
const PART: usize = 10 << 10;
const WHOLE: usize = 64 << 10;

/// Where a range of packed bytes is: places and bytes of runs.
type Runs = Vec<(usize, usize)>;

/// A layout at an origin, of so many bytes in all.
struct Placed {
    name: String,
    /// Those of [`ranges`].
    runs: Vec<Runs>,
    layout: Layout,
    count: usize,
    origin: usize,
    bytes: usize,
    sends_only: bool,
}

impl Placed {
    fn new(name: &str, ty: &Type, count: usize, sends_only: bool) -> Placed {
        let layout = ty.commit().unwrap();
        let (low, high) = layout.span(count);
        let origin = (-low).max(0) as usize;
        Placed {
            name: name.to_owned(),
            runs: Vec::new(),
            bytes: origin + high.max(1) as usize,
            layout,
            count,
            origin,
            sends_only,
        }
    }

    fn of(entry: &Entry) -> Placed {
        let ty = entry.datatype().unwrap();
        let mut place = Placed::new(&entry.name, &ty, entry.count, entry.facts.overlaps);
        let ranges = ranges(place.packed());
        place.runs = runs_of(&place.layout, place.count, place.origin, &ranges);
        place
    }

    fn packed(&self) -> usize {
        self.layout.packed_bytes(self.count).unwrap()
    }

    fn memory<'a>(&self, stream: &'a Stream, seed: u64) -> Sparse<'a> {
        Sparse::new(stream, self.bytes, seed)
    }

    fn view(&self, memory: &Sparse<'_>) -> DeviceView<u8> {
        DeviceView::new(&memory.device, self.origin, &self.layout, self.count).unwrap()
    }
}

/// The runs of packed bytes of a layout, behind an origin, for several ranges in ascending
/// order of their starts.
fn runs_of(layout: &Layout, count: usize, origin: usize, ranges: &[Range<usize>]) -> Vec<Runs> {
    let mut all = vec![Vec::new(); ranges.len()];
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let mut packed = 0;
    for (offset, length) in layout.blocks(count) {
        for (runs, range) in all.iter_mut().zip(ranges) {
            let (from, until) = (range.start.max(packed), range.end.min(packed + length));
            if from < until {
                let at = (origin as isize + offset) as usize + (from - packed);
                runs.push((at, until - from));
            }
        }
        packed += length;
        if packed >= end {
            break;
        }
    }
    all
}

/// All bytes, or the first, some in the middle, and the last.
fn ranges(bytes: usize) -> Vec<Range<usize>> {
    if bytes <= WHOLE {
        return vec![0..bytes, bytes / 3..bytes - bytes / 5];
    }
    let middle = bytes / 2 - bytes / 7 + 13;
    vec![0..PART, middle..middle + PART - 5, bytes - PART..bytes]
}

/// Short blocks at equal distances, of as many bytes.
fn rows(bytes: usize) -> Placed {
    let word = 1 << bytes.trailing_zeros().min(3);
    let byte = Type::basic(Basic::Byte);
    let rows = Type::hvector(bytes / word, word, 3 * word as isize, &byte).unwrap();
    let mut place = Placed::new("rows", &rows, 1, false);
    // As they are made: blocks one by one would take too long.
    let blocks = |range: Range<usize>| {
        let (mut at, mut runs) = (range.start, Vec::new());
        while at < range.end {
            let length = (word - at % word).min(range.end - at);
            runs.push((at / word * 3 * word + at % word, length));
            at += length;
        }
        runs
    };
    place.runs = ranges(bytes).into_iter().map(blocks).collect();
    place
}

/// The device's side of the tests.
struct Device<'a> {
    packer: Packer,
    stream: &'a Stream,
}

impl Device<'_> {
    fn packs(&self, place: &Placed) {
        for (k, (range, runs)) in ranges(place.packed()).iter().zip(&place.runs).enumerate() {
            let what = format!("{}, packed bytes {range:?}", place.name);
            let mut memory = place.memory(self.stream, 1);
            memory.touch(runs);
            // Packed bytes at an aligned address, or at an odd one.
            let odd = k % 2;
            let mut packed = Sparse::new(self.stream, range.len() + 2, 2);
            packed.touch(&[(0, range.len() + 2)]);
            let inside = [(odd, range.len())];
            let part = |packed: &Sparse<'_>| {
                let part = packed.device.slice(odd..odd + range.len()).unwrap();
                part.after_stream(self.stream)
            };
            let view = place.view(&memory);
            let view = view.after_stream(self.stream);
            let to = part(&packed);
            (self.packer)
                .pack(self.stream, &view, range.clone(), &to, None)
                .unwrap();
            packed.scatter(&inside, &memory.gather(runs));
            packed.check(&format!("pack {what}"));
            memory.check(&format!("pack {what}"));
            let mut fresh = Sparse::new(self.stream, range.len() + 2, 3);
            fresh.touch(&[(0, range.len() + 2)]);
            let from = part(&fresh);
            let unpacked = (self.packer).unpack(self.stream, &from, range.clone(), &view, None);
            if place.sends_only {
                assert!(unpacked.is_err(), "{what}: bytes are written twice");
                continue;
            }
            unpacked.unwrap();
            memory.scatter(runs, &fresh.gather(&inside));
            memory.check(&format!("unpack {what}"));
        }
    }

    fn copies(&self, from: &Placed, to: &Placed) {
        let ranges = ranges(from.packed()).into_iter();
        for ((range, reads), writes) in ranges.zip(&from.runs).zip(&to.runs) {
            let what = format!("{} to {}, packed bytes {range:?}", from.name, to.name);
            let (mut source, mut target) = (from.memory(self.stream, 4), to.memory(self.stream, 5));
            source.touch(reads);
            target.touch(writes);
            let views = [from.view(&source), to.view(&target)];
            let views = views.map(|view| view.after_stream(self.stream));
            (self.packer)
                .copy(self.stream, &views[0], &views[1], range, None)
                .unwrap();
            target.scatter(writes, &source.gather(reads));
            target.check(&what);
        }
    }
}

#[test]
fn corpus_on_the_device() {
    run_alone("child_corpus_on_the_device");
}

#[test]
#[ignore = "run by corpus_on_the_device"]
fn child_corpus_on_the_device() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let all = entries().unwrap();
    let mut done = BTreeSet::new();
    for entry in &all {
        // A packer each: lists of other entries are not kept.
        let device = Device {
            packer: Packer::new(&context),
            stream: &stream,
        };
        let place = Placed::of(entry);
        let bytes = place.packed();
        assert_eq!(bytes, entry.facts.packed_bytes, "{}", entry.name);
        device.packs(&place);
        let rows = rows(bytes);
        device.copies(&place, &rows);
        if !place.sends_only {
            device.copies(&rows, &place);
        }
        done.insert(entry.name.clone());
    }
    let names: BTreeSet<_> = all.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!((done.len(), names.len()), (ENTRIES, ENTRIES));
    assert_eq!(done, names);
}

#[test]
fn pairs_of_the_corpus_on_the_device() {
    run_alone("child_pairs_of_the_corpus_on_the_device");
}

/// Entries of one signature, from each to each.
#[test]
#[ignore = "run by pairs_of_the_corpus_on_the_device"]
fn child_pairs_of_the_corpus_on_the_device() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let device = Device {
        packer: Packer::new(&context),
        stream: &stream,
    };
    let all = entries().unwrap();
    let mut pairs = 0;
    for from in &all {
        let other = |to: &&Entry| to.name != from.name && to.facts.pair == from.facts.pair;
        if from.facts.pair.is_none() {
            continue;
        }
        for to in all.iter().filter(other).filter(|to| !to.facts.overlaps) {
            device.copies(&Placed::of(from), &Placed::of(to));
            pairs += 1;
        }
    }
    assert!(pairs > 10, "{pairs} pairs");
}
