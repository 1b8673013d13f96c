//! Layouts that come again after few bytes, as arrays of records: copies from one to another
//! by the words of a common period, each as wide as both sides allow.
//!
//! ```text
//! from    |iiii....dddddddd....ccc.|iiii....dddddddd....ccc.|    period of 15 packed bytes
//! to      |iiiidd......dddddd....ccc|                            the same, of 30, or of 5
//! ```
//!
//! The common period is the least common multiple of both. Its words are part of the kernel's
//! argument, so nothing is searched, and a side's lists are not read.
//!
//! # Invariants
//! 1. A word's width divides its addresses on both sides in each period.
//! 2. The words of a period are its packed bytes, each in one word.

use super::arguments::{Divisor, THREADS};
use super::transfer::{PlacedPlan, widest};
use super::{Dimension, Plan, WIDEST};
use std::ops::Range;

/// Words of a common period, at most.
pub const WORDS: usize = 128;

/// Packed bytes of a common period, at most.
const BYTES: u64 = WORDS as u64 * WIDEST as u64;

/// Runs of so many bytes on average are better found one by one.
const LONG: u64 = 512;

/// Whole periods, at least; fewer are copied chunk by chunk.
const LEAST: u64 = 32;

/// Packed bytes that a thread block takes at once: fewer of small messages, so that all
/// blocks of a device have some. Sources of two such chunks fit the L1 cache of a block.
const CHUNK: [u64; 2] = [4 << 10, 16 << 10];
const CHUNKS: u64 = 1024;

/// Widths, widest first.
const WIDTHS: [usize; 5] = [16, 8, 4, 2, 1];

/// A layout's runs until it comes again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Period {
    /// Packed bytes.
    bytes: u64,
    /// Bytes from one to the next.
    step: i64,
    /// Where each run is, and the packed bytes before it.
    runs: Vec<(i64, u64)>,
}

impl Period {
    /// The period of a plan whose lists are there: the core, in all loops but the outermost
    /// one, which is at a stride. None, if that is too long.
    pub fn of(plan: &Plan) -> Option<Period> {
        let (outermost, inner) = plan.dimensions.split_first()?;
        let &Dimension::Stride { stride: step, .. } = outermost else {
            return None;
        };
        let instances = inner.iter().map(Dimension::count);
        let instances = instances.fold(1, u64::saturating_mul);
        let bytes = plan.core_bytes.saturating_mul(instances);
        // Rows have more blocks than a period has words.
        if plan.list.as_ref().is_some_and(|list| list.blocks.is_some()) {
            return None;
        }
        let runs = plan.list.as_ref().map_or(1, |list| list.offsets.len());
        if bytes > BYTES || runs > WORDS || !plan.boxes.is_empty() {
            return None;
        }
        let mut period = Period {
            bytes,
            step,
            runs: Vec::new(),
        };
        let mut end = None;
        for number in 0..instances {
            let (mut rest, mut at) = (number, 0i64);
            for dimension in inner.iter().rev() {
                let (index, outer) = (rest % dimension.count(), rest / dimension.count());
                at = at.checked_add(match dimension {
                    Dimension::Stride { stride, .. } => stride.checked_mul(index as i64)?,
                    Dimension::Table { places, .. } => *places.get(index as usize)?,
                })?;
                rest = outer;
            }
            for run in 0..runs {
                let (offset, before, behind) = match &plan.list {
                    None => (0, 0, plan.core_bytes),
                    Some(list) => {
                        let behind = list.before.get(run + 1);
                        let behind = behind.copied().unwrap_or(plan.core_bytes);
                        (*list.offsets.get(run)?, list.before[run], behind)
                    }
                };
                let offset = at.checked_add(offset)?;
                if end != Some(offset) {
                    let before = number * plan.core_bytes + before;
                    period.runs.push((offset, before));
                }
                end = Some(offset.checked_add((behind - before) as i64)?);
            }
            if period.runs.len() > WORDS {
                return None;
            }
        }
        (bytes / (period.runs.len() as u64) < LONG).then_some(period)
    }

    /// Where a packed byte of the common period is, and the bytes from there to its run's end.
    fn find(&self, byte: u64) -> Option<(i64, u64)> {
        let (number, inside) = (byte / self.bytes, byte % self.bytes);
        let run = self.runs.partition_point(|&(_, before)| before <= inside);
        let (offset, before) = self.runs[run - 1];
        let behind = self.runs.get(run).map_or(self.bytes, |&(_, before)| before);
        let offset = offset.checked_add((inside - before) as i64)?;
        let at = self.step.checked_mul(number as i64)?.checked_add(offset)?;
        Some((at, behind - inside))
    }
}

/// `osier_period_word`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PeriodWord {
    /// Bytes behind the start of a period.
    pub from: i32,
    /// The same.
    pub to: i32,
    /// Packed bytes before it.
    pub packed: u16,
    /// Its width.
    pub bytes: u16,
}

/// `osier_period_width`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PeriodWidth {
    /// The first word of this width.
    pub first: u32,
    /// Words of this width.
    pub count: u32,
    /// Periods that a thread block's threads take at once.
    pub apart: u32,
    /// Division by the count.
    pub magic: u32,
    /// The same.
    pub shift: u32,
}

/// `osier_period_cut`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PeriodCut {
    /// The period.
    pub period: u64,
    /// First packed byte inside.
    pub from: u32,
    /// Behind the last one; the first if there is none.
    pub until: u32,
}

/// `osier_periods`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PeriodArgument {
    /// Address of period 0.
    pub from: u64,
    /// The same.
    pub to: u64,
    /// Bytes between periods.
    pub from_step: i64,
    /// The same.
    pub to_step: i64,
    /// First whole period.
    pub first: u64,
    /// Behind the last whole one.
    pub last: u64,
    /// What the range cuts at both ends.
    pub cut: [PeriodCut; 2],
    /// Of 16 to 1 bytes.
    pub width: [PeriodWidth; 5],
    /// Periods that a thread block takes at once.
    pub chunk: u32,
    /// Words of a period.
    pub words: u32,
    /// Nothing.
    pub unused: u32,
    /// The words, widest first.
    pub word: [PeriodWord; WORDS],
}

impl PeriodArgument {
    /// Copies the packed bytes `range` between two layouts with a common period, and the thread
    /// blocks with work to do. None, where other kernels are to do it.
    pub(crate) fn between(
        from: &PlacedPlan<'_>,
        to: &PlacedPlan<'_>,
        range: &Range<u64>,
    ) -> Option<(PeriodArgument, u64)> {
        let (read, written) = (from.tables.period()?, to.tables.period()?);
        let bytes = least_common_multiple(read.bytes, written.bytes);
        if bytes > BYTES || (range.end - range.start) / bytes < LEAST {
            return None;
        }
        let step = |side: &Period| side.step.checked_mul((bytes / side.bytes) as i64);
        let mut argument = PeriodArgument {
            from: from.layout(),
            to: to.layout(),
            from_step: step(read)?,
            to_step: step(written)?,
            first: range.start.div_ceil(bytes),
            last: range.end / bytes,
            cut: Default::default(),
            width: Default::default(),
            chunk: 0,
            words: 0,
            unused: 0,
            word: [PeriodWord::default(); WORDS],
        };
        argument.add_words((read, written), bytes)?;
        argument.cut = [
            PeriodCut {
                period: range.start / bytes,
                from: (range.start % bytes) as u32,
                until: (argument.first * bytes - range.start / bytes * bytes) as u32,
            },
            PeriodCut {
                period: argument.last,
                from: 0,
                until: (range.end % bytes) as u32,
            },
        ];
        let most = (range.end - range.start) / CHUNKS;
        let most = most.next_power_of_two().clamp(CHUNK[0], CHUNK[1]);
        argument.chunk = (most / bytes) as u32;
        let whole = argument.last - argument.first;
        Some((argument, whole.div_ceil(argument.chunk.into())))
    }

    /// Cuts a common period into words.
    fn add_words(&mut self, (read, written): (&Period, &Period), bytes: u64) -> Option<()> {
        let steps = self.from_step as u64 | self.to_step as u64;
        let mut words = [PeriodWord::default(); WORDS];
        let mut byte = 0;
        while byte < bytes {
            let ((from, rest), (to, other)) = (read.find(byte)?, written.find(byte)?);
            let addresses =
                self.from.wrapping_add_signed(from) | self.to.wrapping_add_signed(to) | steps;
            let width = widest(addresses).min(1 << rest.min(other).ilog2());
            let word = words.get_mut(self.words as usize)?;
            *word = PeriodWord {
                from: i32::try_from(from).ok()?,
                to: i32::try_from(to).ok()?,
                packed: byte as u16,
                bytes: width as u16,
            };
            self.words += 1;
            byte += width as u64;
        }
        let words = &words[..self.words as usize];
        let mut place = 0;
        for (all, bytes) in self.width.iter_mut().zip(WIDTHS) {
            let first = place;
            for word in words.iter().filter(|word| word.bytes as usize == bytes) {
                self.word[place] = *word;
                place += 1;
            }
            let count = (place - first) as u32;
            if count > 0 {
                let divisor = Divisor::new(count.into());
                *all = PeriodWidth {
                    first: first as u32,
                    count,
                    apart: THREADS / count,
                    magic: divisor.magic,
                    shift: divisor.shift,
                };
            }
        }
        Some(())
    }
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut one, mut other) = (a, b);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    a / one * b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::arguments::Tables;
    use osier_datatype::{Basic, Type};

    /// Records of 15 bytes: the middle field, in another place, goes by words of 8 bytes.
    #[test]
    fn records_have_words_of_their_own_width() {
        let record = |places: [isize; 3], extent: isize| {
            let fields = [(1, Basic::I32), (1, Basic::F64), (3, Basic::U8)];
            let fields = fields.into_iter().zip(places);
            let fields: Vec<_> = fields
                .map(|((count, basic), at)| (count, at, Type::basic(basic)))
                .collect();
            let record = Type::structure(&fields).unwrap();
            Type::resized(0, extent, &record).unwrap().commit().unwrap()
        };
        let layouts = [record([0, 8, 20], 24), record([4, 8, 0], 16)];
        let plans = layouts.map(|layout| Plan::new(&layout, 1000).unwrap());
        let tables = plans.each_ref().map(Tables::new);
        let side = |k: usize, origin: u64| PlacedPlan {
            plan: &plans[k],
            tables: &tables[k],
            tables_at: 0,
            origin,
        };
        let words = |origin: u64, range: Range<u64>| {
            let found = PeriodArgument::between(&side(0, origin), &side(1, 1 << 30), &range);
            found.map(|(argument, _)| (argument.width.map(|width| width.count), argument.cut))
        };
        let (counts, cut) = words(1 << 20, 0..15_000).unwrap();
        assert_eq!(counts, [0, 1, 1, 1, 1]);
        assert!(cut.iter().all(|cut| cut.from == cut.until), "{cut:?}");
        // Odd addresses leave bytes.
        let (counts, cut) = words((1 << 20) + 1, 7..14_999).unwrap();
        assert_eq!(counts, [0, 0, 0, 0, 15]);
        assert_eq!((cut[0].from, cut[0].until), (7, 15));
        assert_eq!((cut[1].period, cut[1].from, cut[1].until), (999, 0, 14));
        assert!(words(1 << 20, 0..450).is_none(), "too few periods");
    }
}
