//! Numbers handed out in ranges, next-fit, so that a freed range stays unused
//! for as long as possible and its use is noticed.

use std::collections::BTreeMap;

/// Page size of the host.
pub const PAGE: u64 = 4096;

/// Rounds up to whole pages.
pub fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

/// Ranges of `start..start + length` that are taken.
#[derive(Debug)]
pub struct Ranges {
    start: u64,
    end: u64,
    cursor: u64,
    /// Take the first range that fits, so that freed ones are used again at once.
    reuse: bool,
    taken: BTreeMap<u64, u64>,
}

impl Ranges {
    /// All of `start..end` is free.
    pub fn new(start: u64, end: u64) -> Ranges {
        Ranges {
            start,
            end,
            cursor: start,
            reuse: false,
            taken: BTreeMap::new(),
        }
    }

    /// The same, but freed ranges are used again at once.
    pub fn reusing(self, reuse: bool) -> Ranges {
        Ranges { reuse, ..self }
    }

    /// Takes `bytes` at a multiple of `alignment`.
    pub fn take(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        for from in [self.cursor, self.start] {
            let mut at = from.next_multiple_of(alignment);
            // Behind the last range that is in the way.
            while let Some((_, &end)) = self.taken.range(..at + bytes).next_back()
                && end > at
            {
                at = end.next_multiple_of(alignment);
            }
            if at + bytes <= self.end {
                self.taken.insert(at, at + bytes);
                if !self.reuse {
                    self.cursor = at + bytes;
                }
                return Some(at);
            }
        }
        None
    }

    /// Start and end of all.
    pub fn bounds(&self) -> (u64, u64) {
        (self.start, self.end)
    }

    /// Gives back a range by its start.
    pub fn give(&mut self, start: u64) {
        self.taken.remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_are_used_last() {
        let mut r = Ranges::new(0, 100);
        assert_eq!(r.take(40, 1), Some(0));
        r.give(0);
        assert_eq!(r.take(40, 1), Some(40));
        assert_eq!(r.take(40, 1), Some(0));
        assert_eq!(r.take(30, 1), None);
        assert_eq!(r.take(16, 16), Some(80));
        let mut r = Ranges::new(0, 100).reusing(true);
        assert_eq!((r.take(40, 1), r.take(40, 1)), (Some(0), Some(40)));
        r.give(0);
        assert_eq!(r.take(30, 1), Some(0));
    }

    #[test]
    fn what_begins_below_an_aligned_place_is_in_the_way() {
        let mut r = Ranges::new(0, 1000).reusing(true);
        let at = [10, 80, 30].map(|bytes| r.take(bytes, 1));
        assert_eq!(at, [Some(0), Some(10), Some(90)]);
        r.give(10);
        assert_eq!(r.take(50, 100), Some(200));
        assert_eq!(r.take(80, 1), Some(10));
    }
}
