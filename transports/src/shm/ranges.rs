//! Which bytes of a heap window are free, which are given out, and which may have pages.
//!
//! ```text
//! grain    0            1            2            3
//! bytes    |AAAA..BBBBBB|BBBBBBBBBBBB|BBB.........|............|  top
//!          A, B given out; grains 0 to 2 have pages, 3 was given back
//! ```
//!
//! Free ranges are kept by address, to be merged with their neighbors, and by size, so that
//! the smallest that fits is found without a search. Pure: addresses, pages and locks belong
//! to [`super::heap`].
//!
//! # Invariants
//! 1. A byte below `top` lies in exactly one range, of `free` or of `given`; none lies in two
//!    steps of the window. `by_size` has the ranges of `free` and no others.
//! 2. Two free ranges touch only where a step begins.
//! 3. `idle` counts the grains that are `present` and lie in a free range as a whole.

use super::mapping;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Unit of ranges: a cache line.
pub(super) const LINE: u64 = 64;
/// Unit of what is counted, made present and given back: a huge page.
pub(super) const GRAIN: u64 = 2 << 20;

/// A set of grains.
#[derive(Default)]
struct Grains(Vec<u64>);

impl Grains {
    fn has(&self, grain: u64) -> bool {
        let word = self.0.get((grain / 64) as usize);
        word.is_some_and(|word| word >> (grain % 64) & 1 != 0)
    }

    fn set(&mut self, grain: u64, to: bool) {
        let at = (grain / 64) as usize;
        if at >= self.0.len() {
            if !to {
                return;
            }
            self.0.resize(at + 1, 0);
        }
        let bit = 1 << (grain % 64);
        match to {
            true => self.0[at] |= bit,
            false => self.0[at] &= !bit,
        }
    }

    /// How many of some grains are in the set.
    fn count(&self, grains: Range<u64>) -> u64 {
        let end = grains.end.min(self.0.len() as u64 * 64);
        let (mut at, mut found) = (grains.start, 0);
        while at < end {
            let next = (at / 64 + 1) * 64;
            let word = self.0[(at / 64) as usize] >> (at % 64);
            let mask = u64::MAX >> (64 - (next.min(end) - at));
            found += u64::from((word & mask).count_ones());
            at = next;
        }
        found
    }

    /// Runs of some grains that are in the set, or that are not.
    fn runs(&self, grains: Range<u64>, within: bool) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for grain in grains.filter(|grain| self.has(*grain) == within) {
            match runs.last_mut() {
                Some(run) if run.end == grain => run.end += 1,
                _ => runs.push(grain..grain + 1),
            }
        }
        runs
    }
}

/// The grains that have a byte of a range.
pub(super) fn touched(offset: u64, bytes: u64) -> Range<u64> {
    offset / GRAIN..(offset + bytes).div_ceil(GRAIN)
}

/// The grains that lie in a range as a whole.
fn whole(offset: u64, bytes: u64) -> Range<u64> {
    let first = offset.div_ceil(GRAIN);
    first..((offset + bytes) / GRAIN).max(first)
}

/// Bytes of a run of grains, as offsets.
pub(super) fn bytes_of(run: &Range<u64>) -> Range<u64> {
    run.start * GRAIN..run.end * GRAIN
}

/// State of a window.
#[derive(Default)]
pub(super) struct Ranges {
    /// Offset and size of each free range.
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// Offset and size of what is given out.
    given: BTreeMap<u64, u64>,
    /// Grains that may have pages, and are counted against the job's limit.
    present: Grains,
    /// Those of which every page was reserved.
    reserved: Grains,
    idle: u64,
    pub top: u64,
}

impl Ranges {
    fn add(&mut self, offset: u64, bytes: u64) {
        self.free.insert(offset, bytes);
        self.by_size.insert((bytes, offset));
        self.idle += self.present.count(whole(offset, bytes));
    }

    fn remove(&mut self, offset: u64) -> Option<u64> {
        let bytes = self.free.remove(&offset)?;
        self.by_size.remove(&(bytes, offset));
        self.idle -= self.present.count(whole(offset, bytes));
        Some(bytes)
    }

    /// Gives out the smallest free range that is large enough, or its beginning.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let (size, offset) = *self.by_size.range((bytes, 0)..).next()?;
        self.remove(offset);
        if size > bytes {
            self.add(offset + bytes, size - bytes);
        }
        self.given.insert(offset, bytes);
        Some(offset)
    }

    /// Gives out what lies behind `top`; what is skipped between is free. Afterwards `top` is
    /// `end`, a whole number of grains.
    pub fn grow(&mut self, offset: u64, bytes: u64, end: u64) {
        let mut at = self.top;
        while at < offset {
            // A range ends with its step.
            let end = mapping::step_end(at).min(offset);
            self.release(at, end - at);
            at = end;
        }
        self.given.insert(offset, bytes);
        self.top = end;
        if end > offset + bytes {
            self.release(offset + bytes, end - offset - bytes);
        }
    }

    /// Size of what begins there and is given out.
    pub fn given(&self, offset: u64) -> Option<u64> {
        self.given.get(&offset).copied()
    }

    /// All that is given out: offsets and sizes.
    pub fn all_given(&self) -> impl Iterator<Item = (u64, u64)> {
        self.given.iter().map(|(offset, bytes)| (*offset, *bytes))
    }

    /// Nothing is given out.
    pub fn is_unused(&self) -> bool {
        self.given.is_empty()
    }

    /// Takes back what was given out. It is in neither set until `release` makes it free.
    pub fn take_back(&mut self, offset: u64) -> Option<u64> {
        self.given.remove(&offset)
    }

    /// Makes a range free that is in neither set.
    pub fn release(&mut self, mut offset: u64, mut bytes: u64) {
        let before = self.free.range(..offset).next_back();
        if let Some((&before, &size)) = before
            && before + size == offset
            && !mapping::begins_step(offset)
        {
            self.remove(before);
            offset = before;
            bytes += size;
        }
        if !mapping::begins_step(offset + bytes)
            && let Some(size) = self.remove(offset + bytes)
        {
            bytes += size;
        }
        self.add(offset, bytes);
    }

    /// Cuts what was given out at `offset` into a free beginning, so many bytes, which keep
    /// being given out, and a free end.
    pub fn cut(&mut self, offset: u64, front: u64, bytes: u64) {
        let Some(size) = self.given.remove(&offset) else {
            return;
        };
        self.given.insert(offset + front, bytes);
        if front > 0 {
            self.release(offset, front);
        }
        let end = offset + front + bytes;
        if offset + size > end {
            self.release(end, offset + size - end);
        }
    }

    /// Enlarges what was given out at `offset` where it lies, into the free range behind it,
    /// up to `top` at most.
    pub fn extend(&mut self, offset: u64, bytes: u64) -> bool {
        let Some(size) = self.given(offset) else {
            return false;
        };
        let behind = offset + size;
        let more = bytes - size;
        if mapping::begins_step(behind) || self.free.get(&behind).is_none_or(|n| *n < more) {
            return false;
        }
        if let Some(room) = self.remove(behind)
            && room > more
        {
            self.add(behind + more, room - more);
        }
        self.given.insert(offset, bytes);
        true
    }

    /// Whether nothing but free memory lies between what is given out there and `top`.
    pub fn reaches_top(&self, offset: u64) -> bool {
        let end = self.given(offset).map(|bytes| offset + bytes);
        end.is_some_and(|end| {
            let free = self.free.get(&end).copied().unwrap_or(0);
            end + free == self.top && !mapping::begins_step(end)
        })
    }

    /// Makes `top` larger, to a whole number of grains within its step.
    pub fn raise(&mut self, top: u64) {
        let from = std::mem::replace(&mut self.top, top);
        self.release(from, top - from);
    }

    /// Grains of a range that have no pages yet.
    pub fn absent(&self, offset: u64, bytes: u64) -> Vec<Range<u64>> {
        self.present.runs(touched(offset, bytes), false)
    }

    /// Grains of a range of which some page was not reserved.
    pub fn unreserved(&self, offset: u64, bytes: u64) -> Vec<Range<u64>> {
        self.reserved.runs(touched(offset, bytes), false)
    }

    /// Grains that lie in a range as a whole and have pages.
    pub fn idle_of(&self, offset: u64, bytes: u64) -> Vec<Range<u64>> {
        self.present.runs(whole(offset, bytes), true)
    }

    /// Bytes of grains that are free as a whole and have pages.
    pub fn idle_bytes(&self) -> u64 {
        self.idle * GRAIN
    }

    /// Free ranges of a grain and more, offset and size, the largest first.
    pub fn free_by_size(&self) -> Vec<(u64, u64)> {
        let largest = self.by_size.iter().rev();
        largest
            .take_while(|(bytes, _)| *bytes >= GRAIN)
            .map(|(bytes, offset)| (*offset, *bytes))
            .collect()
    }

    /// Notes that grains have pages now: none of them lies in a free range as a whole.
    pub fn set_present(&mut self, grains: Range<u64>) {
        grains.for_each(|grain| self.present.set(grain, true));
    }

    /// Notes that all pages of these are reserved.
    pub fn set_reserved(&mut self, grains: Range<u64>) {
        grains.for_each(|grain| self.reserved.set(grain, true));
    }

    /// Notes that grains have no pages any more. `free`: they lie in free ranges, not in
    /// neither set.
    pub fn set_absent(&mut self, grains: Range<u64>, free: bool) {
        for grain in grains {
            if free && self.present.has(grain) {
                self.idle -= 1;
            }
            self.present.set(grain, false);
            self.reserved.set(grain, false);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl Ranges {
        /// Checks the invariants.
        pub fn check(&self) {
            let mut all: Vec<(u64, u64, bool)> = Vec::new();
            all.extend(self.free.iter().map(|(o, n)| (*o, *n, true)));
            all.extend(self.given.iter().map(|(o, n)| (*o, *n, false)));
            all.sort_unstable();
            let mut end = 0;
            let mut free = false;
            for (offset, bytes, is_free) in all {
                assert_eq!(offset, end, "invariant 1");
                assert!(offset + bytes <= mapping::step_end(offset), "invariant 1");
                let touches = free && is_free && !mapping::begins_step(offset);
                assert!(!touches, "invariant 2 at {offset:#x}");
                (end, free) = (offset + bytes, is_free);
            }
            assert_eq!(end, self.top, "invariant 1");
            let by_size = self.by_size.iter().map(|(n, o)| (*o, *n));
            assert_eq!(by_size.collect::<BTreeMap<_, _>>(), self.free);
            let idle = self.free.iter();
            let idle = idle.map(|(o, n)| self.present.count(whole(*o, *n)));
            assert_eq!(idle.sum::<u64>(), self.idle, "invariant 3");
        }
    }

    fn grown(bytes: u64) -> Ranges {
        let mut r = Ranges::default();
        r.grow(0, bytes, bytes.next_multiple_of(GRAIN));
        r.set_present(touched(0, bytes));
        r
    }

    #[test]
    fn ranges_merge_with_both_neighbors() {
        let mut r = grown(4 * GRAIN);
        r.cut(0, 0, 64);
        for at in [64, 128, 192] {
            assert_eq!(r.take(64), Some(at));
        }
        for at in [64, 192, 128] {
            let bytes = r.take_back(at).expect("given out");
            r.release(at, bytes);
            r.check();
        }
        assert_eq!(r.free.len(), 1);
        assert_eq!(r.idle_bytes(), 3 * GRAIN);
    }

    #[test]
    fn grains_are_counted_by_words() {
        let mut grains = Grains::default();
        (0..300)
            .filter(|g| g % 7 == 0)
            .for_each(|g| grains.set(g, true));
        for (start, end) in [
            (0, 0),
            (0, 64),
            (3, 9),
            (60, 200),
            (63, 65),
            (5, 999),
            (400, 500),
        ] {
            let one_by_one = (start..end).filter(|g| grains.has(*g)).count();
            assert_eq!(
                grains.count(start..end),
                one_by_one as u64,
                "{start}..{end}"
            );
        }
    }

    #[test]
    fn the_smallest_that_fits_is_taken() {
        let mut r = grown(GRAIN);
        r.cut(0, 0, 64);
        let at: Vec<u64> = (0..5).map(|_| r.take(4096).expect("room")).collect();
        let big = r.take(1 << 20).expect("room");
        r.take(64).expect("room");
        for (at, bytes) in [(big, 1 << 20), (at[1], 4096), (at[3], 4096)] {
            r.take_back(at);
            r.release(at, bytes);
        }
        assert_eq!(r.take(4096), Some(at[1]));
        // What is left at the end is smaller than that.
        assert_eq!(r.take(8192), Some(big + (1 << 20) + 64));
        r.check();
    }

    #[test]
    fn random_use_keeps_the_invariants() {
        let mut r = Ranges::default();
        let mut seed = 7u64;
        let mut held: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = seed >> 33;
            let bytes = ((n >> 3) % (3 << 20)).next_multiple_of(LINE).max(LINE);
            match n % 5 {
                0 | 1 => {
                    let at = r.take(bytes).unwrap_or_else(|| {
                        let at = match r.top + bytes <= mapping::step_end(r.top) {
                            true => r.top,
                            false => mapping::step_end(r.top),
                        };
                        r.grow(at, bytes, (at + bytes).next_multiple_of(GRAIN));
                        at
                    });
                    r.set_present(touched(at, bytes));
                    held.push(at);
                }
                2 if !held.is_empty() => {
                    let at = held[n as usize % held.len()];
                    let size = r.given(at).expect("held");
                    if r.extend(at, size + bytes) {
                        r.set_present(touched(at, size + bytes));
                    }
                }
                3 if !held.is_empty() => {
                    let i = n as usize % held.len();
                    let size = r.given(held[i]).expect("held");
                    let front = (size / 3).next_multiple_of(LINE).min(size - LINE);
                    r.cut(held[i], front, LINE);
                    held[i] += front;
                }
                _ if !held.is_empty() => {
                    let at = held.swap_remove(n as usize % held.len());
                    let size = r.take_back(at).expect("held");
                    for run in r.idle_of(at, size) {
                        r.set_absent(run, false);
                    }
                    r.release(at, size);
                    if n.is_multiple_of(7) {
                        for (at, size) in r.free_by_size() {
                            for run in r.idle_of(at, size) {
                                r.set_absent(run, true);
                            }
                        }
                        assert_eq!(r.idle, 0);
                    }
                }
                _ => {}
            }
            if n.is_multiple_of(64) {
                r.check();
            }
        }
        r.check();
    }
}
