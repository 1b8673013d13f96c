//! Lists made part by part, so that a kernel works on one part while the host
//! makes the next.
//!
//! The longest list of a layout is walked once and written as it is used on the
//! device, in final encoding; nothing of its length is kept on the host. After each
//! part the packed bytes before a certain one have all of their places: these may
//! be packed by launches of their own. Short lists are one part.
//!
//! ```text
//! tables: | short ones | offsets ........ | before ........ | hints ...... |
//!                        part 0 | part 1    part 0 | part 1   part 0 | ...
//! ```
//!
//! # Invariants
//! 1. What is ready stays as it is: later parts are written behind it.
//! 2. A packed byte is ready when the hint behind it is known: bisection looks at
//!    two hints.
//! 3. Parts are ready in the first iteration of the loops around the list; all
//!    others when the list is complete.
//!
//! # Sources
//! Preparation overlapped with the kernel of the part before: W. Wu and others,
//! HPDC 2016, as in the parent module.

use super::arguments::{GeneralList, Tables};
use super::{Dimension, List, Plan, Source, WIDEST};
use osier_datatype::{Layout, TypeError};

/// Entries of a part, unless told otherwise: 256 KiB to 1 MiB of list.
pub const PART: usize = 32 << 10;

/// Where tables go.
pub trait Sink {
    /// What can go wrong there.
    type Error: From<TypeError>;

    /// All tables together have so many bytes; told once, before all else, and
    /// not at all without tables.
    ///
    /// # Errors
    /// No room.
    fn begin(&mut self, bytes: usize) -> Result<(), Self::Error>;

    /// Bytes of the tables.
    ///
    /// # Errors
    /// They cannot be written.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// The packed bytes before this one have their places, by a plan that is good
    /// for them.
    ///
    /// # Errors
    /// Those of whatever is done with them.
    fn ready(&mut self, plan: &Plan, tables: &Tables, bytes: u64) -> Result<(), Self::Error>;
}

/// Plans `count` instances and writes the tables, in parts of so many entries. The
/// plan has no entries itself.
///
/// # Errors
/// The layout's, or the sink's.
pub fn feed<S: Sink>(
    layout: &Layout,
    count: usize,
    part: usize,
    sink: &mut S,
) -> Result<(Plan, Tables), S::Error> {
    let outline = Plan::outline(layout, count)?;
    let (longest, entries) = outline.longest();
    if entries <= part.max(1) {
        let mut plan = outline.complete();
        let mut tables = Tables::new(&plan);
        let bytes = std::mem::take(&mut tables.bytes);
        if !bytes.is_empty() {
            sink.begin(bytes.len())?;
            sink.write(0, &bytes)?;
        }
        plan.shed();
        sink.ready(&plan, &tables, plan.bytes)?;
        return Ok((plan, tables));
    }
    let narrow = i32::try_from(layout.true_extent()).is_ok();
    match longest {
        Some(dimension) => table(outline.but(Some(dimension)), dimension, narrow, part, sink),
        None => list(outline.but(None), entries, narrow, part, sink),
    }
}

/// Numbers as narrow as they are stored.
fn encode(values: &[i64], narrow: bool, bytes: &mut Vec<u8>) {
    bytes.clear();
    debug_assert!(!narrow || values.iter().all(|&value| i32::try_from(value).is_ok()));
    match narrow {
        true => bytes.extend(
            values
                .iter()
                .flat_map(|&value| (value as i32).to_ne_bytes()),
        ),
        false => bytes.extend(values.iter().flat_map(|&value| value.to_ne_bytes())),
    }
}

/// The widest word that suits these numbers, and those before.
fn suits(granularity: usize, values: &[i64]) -> usize {
    let bits = values.iter().fold(0, |bits, &value| bits | value);
    granularity.min(1 << bits.trailing_zeros().min(WIDEST.trailing_zeros()))
}

/// Short tables first; then where the long one begins.
fn begin(mut tables: Tables) -> (Tables, Vec<u8>) {
    let mut bytes = std::mem::take(&mut tables.bytes);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    (tables, bytes)
}

/// Writes the long table of one dimension.
fn table<S: Sink>(
    (mut plan, source): (Plan, Source<'_>),
    dimension: usize,
    narrow: bool,
    part: usize,
    sink: &mut S,
) -> Result<(Plan, Tables), S::Error> {
    let Source::Entries(entries) = source else {
        unreachable!("a dimension's places are entries");
    };
    plan.granularity = plan.granularity();
    let (mut tables, short) = begin(Tables::new(&plan));
    let (start, width) = (short.len() as u64, if narrow { 4 } else { 8 });
    tables.set_place(dimension, start, !narrow);
    plan.shed();
    let inner: u64 = plan.dimensions[dimension + 1..]
        .iter()
        .map(Dimension::count)
        .product();
    let inner = inner * plan.core_bytes;
    sink.begin(short.len() + entries.len() * width)?;
    if !short.is_empty() {
        sink.write(0, &short)?;
    }
    let (mut places, mut bytes) = (Vec::with_capacity(part), Vec::new());
    let mut done = 0;
    while done < entries.len() {
        let until = entries.len().min(done + part);
        places.clear();
        places.extend((done..until).map(|i| entries.at(i)));
        plan.granularity = suits(plan.granularity, &places);
        encode(&places, narrow, &mut bytes);
        sink.write(start + (done * width) as u64, &bytes)?;
        done = until;
        if done < entries.len() {
            sink.ready(&plan, &tables, done as u64 * inner)?;
        }
    }
    sink.ready(&plan, &tables, plan.bytes)?;
    Ok((plan, tables))
}

/// A list under way.
struct Writer<'a, S> {
    sink: &'a mut S,
    plan: Plan,
    tables: Tables,
    place: GeneralList,
    narrow: bool,
    part: usize,
    /// Bytes of the core, of which `packed` were told.
    core_bytes: u64,
    packed: u64,
    /// Entries are rows, which never join.
    rows: bool,
    /// Where the run before ends.
    end: Option<i64>,
    /// Entries before this part, and those in it.
    written: u64,
    offsets: Vec<i64>,
    before: Vec<u64>,
    /// Hints written, and the run of the last.
    hints: u64,
    run: u64,
    bytes: Vec<u8>,
}

/// Writes the core's list.
fn list<S: Sink>(
    (mut plan, source): (Plan, Source<'_>),
    runs: usize,
    narrow: bool,
    part: usize,
    sink: &mut S,
) -> Result<(Plan, Tables), S::Error> {
    let Source::Walk(walk) = source else {
        unreachable!("a core's list is walked");
    };
    let core_bytes = plan.core_bytes;
    // There is one, though not here.
    plan.list = Some(List::without_entries(walk.blocks()));
    plan.granularity = plan.granularity();
    let (tables, short) = begin(Tables::of_dimensions(&plan));
    plan.shed();
    let wide_before = u32::try_from(core_bytes).is_err();
    let next = |at: u64, entries: u64, width: u64| (at + entries * width).next_multiple_of(8);
    let offsets = short.len() as u64;
    let before = next(offsets, runs as u64, if narrow { 4 } else { 8 });
    let hints = next(before, runs as u64, if wide_before { 8 } else { 4 });
    let shift = Tables::shift(core_bytes, runs as u64);
    let last = core_bytes.div_ceil(1 << shift);
    let place = GeneralList {
        offsets,
        before,
        hints,
        wide_offsets: (!narrow).into(),
        wide_before: wide_before.into(),
        shift,
        runs: 0,
    };
    sink.begin((hints + 4 * (last + 1)) as usize)?;
    if !short.is_empty() {
        sink.write(0, &short)?;
    }
    let mut writer = Writer {
        sink,
        plan,
        tables,
        place,
        narrow,
        part,
        core_bytes,
        packed: 0,
        rows: walk.blocks().is_some(),
        end: None,
        written: 0,
        offsets: Vec::with_capacity(part),
        before: Vec::with_capacity(part),
        hints: 0,
        run: 0,
        bytes: Vec::new(),
    };
    writer.tables.list = Some(place);
    // In parts, all words are in the first iteration: no multiple of the core,
    // whose length may not suit their width.
    writer.plan.core_bytes = core_bytes.next_multiple_of(WIDEST as u64) + WIDEST as u64;
    let base = walk.base();
    writer.plan.base += base;
    let mut failed = None;
    walk.each(&mut |offset, length| {
        if failed.is_none() {
            failed = writer.push(offset as i64 - base, length as u64).err();
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    writer.flush(true)?;
    let Writer {
        sink,
        mut plan,
        tables,
        ..
    } = writer;
    plan.core_bytes = core_bytes;
    sink.ready(&plan, &tables, plan.bytes)?;
    Ok((plan, tables))
}

impl<S: Sink> Writer<'_, S> {
    fn push(&mut self, offset: i64, length: u64) -> Result<(), S::Error> {
        if self.end != Some(offset) {
            if self.offsets.len() == self.part {
                self.flush(false)?;
            }
            self.offsets.push(offset);
            self.before.push(self.packed);
        }
        self.packed += length;
        if !self.rows {
            self.end = Some(offset + length as i64);
        }
        Ok(())
    }

    /// Writes the part, and the hints that it makes known.
    fn flush(&mut self, last: bool) -> Result<(), S::Error> {
        let place = self.place;
        let first = self.written;
        let runs = first + self.offsets.len() as u64;
        let before: Vec<i64> = self.before.iter().map(|&at| at as i64).collect();
        let granularity = suits(self.plan.granularity, &self.offsets);
        self.plan.granularity = suits(granularity, &before);
        encode(&self.offsets, self.narrow, &mut self.bytes);
        let width = if self.narrow { 4 } else { 8 };
        self.sink
            .write(place.offsets + first * width, &self.bytes)?;
        let narrow = place.wide_before == 0;
        self.bytes.clear();
        match narrow {
            true => {
                (self.bytes).extend(self.before.iter().flat_map(|&at| (at as u32).to_ne_bytes()))
            }
            false => (self.bytes).extend(self.before.iter().flat_map(|&at| at.to_ne_bytes())),
        }
        let width = if narrow { 4 } else { 8 };
        self.sink.write(place.before + first * width, &self.bytes)?;
        self.bytes.clear();
        let from = self.hints;
        let behind = self.core_bytes.div_ceil(1 << place.shift);
        while self.hints <= behind && (last || self.hints << place.shift < self.packed) {
            let byte = self.hints << place.shift;
            while self.run + 1 < runs {
                let next = self.run + 1;
                // Runs before this part begin before its first.
                if next >= first && self.before[(next - first) as usize] > byte {
                    break;
                }
                self.run = next;
            }
            self.bytes.extend((self.run as u32).to_ne_bytes());
            self.hints += 1;
        }
        if !self.bytes.is_empty() {
            self.sink.write(place.hints + 4 * from, &self.bytes)?;
        }
        self.written = runs;
        if let Some(list) = &mut self.tables.list {
            list.runs = runs as u32;
        }
        self.offsets.clear();
        self.before.clear();
        let ready = (self.hints.saturating_sub(1) << place.shift).min(self.packed);
        if !last && ready > 0 {
            self.sink.ready(&self.plan, &self.tables, ready)?;
        }
        Ok(())
    }
}
