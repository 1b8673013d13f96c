//! Offsets of allocations in a symmetric heap: ranks that call in the same order get the same.
//!
//! # Sources
//! P. Wilson, M. Johnstone, M. Neely, D. Boles, "Dynamic storage allocation: a survey and
//! critical review", IWMM 1995, section 3: first fit in address order, with immediate merging.

use std::collections::BTreeMap;

/// Unit of offsets and lengths in bytes: two lines, which processors fetch together.
pub(super) const UNIT: usize = 128;

/// Which bytes are free.
#[derive(Debug)]
pub(super) struct Offsets {
    /// Starts and lengths of free ranges. No two touch.
    free: BTreeMap<usize, usize>,
}

fn rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(UNIT)
}

impl Offsets {
    /// All of `bytes` bytes, rounded down to units.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes / UNIT * UNIT;
        Self {
            free: BTreeMap::from_iter((bytes > 0).then_some((0, bytes))),
        }
    }

    /// The start of the first free range that holds `bytes` bytes, or none.
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let bytes = rounded(bytes)?;
        let (&start, &length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        self.free.remove(&start);
        if length > bytes {
            self.free.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Gives back the range at `start` that [`Offsets::take`] returned for `bytes` bytes.
    pub fn give(&mut self, mut start: usize, bytes: usize) {
        let mut length = rounded(bytes).unwrap_or(UNIT);
        if let Some((&before, &bytes)) = self.free.range(..start).next_back()
            && before + bytes == start
        {
            self.free.remove(&before);
            (start, length) = (before, length + bytes);
        }
        if let Some(bytes) = self.free.remove(&(start + length)) {
            length += bytes;
        }
        self.free.insert(start, length);
    }

    /// Bytes of the longest free range.
    pub fn longest(&self) -> usize {
        self.free.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a map of bytes: what is given out is free, aligned and the first that fits.
        #[test]
        fn ranges_are_given_once_and_merge(
            calls in prop::collection::vec((any::<bool>(), 0usize..900, any::<prop::sample::Index>()), 1..80)
        ) {
            const BYTES: usize = 32 * UNIT;
            let mut offsets = Offsets::new(BYTES + 5);
            let mut used = [false; 32];
            let mut given: Vec<(usize, usize)> = Vec::new();
            for (takes, bytes, which) in calls {
                if takes {
                    let units = bytes.max(1).div_ceil(UNIT);
                    let fits = |at: &usize| used[*at..*at + units].iter().all(|u| !u);
                    let expected = (0..=32 - units).find(fits);
                    prop_assert_eq!(offsets.take(bytes), expected.map(|at| at * UNIT));
                    if let Some(at) = expected {
                        used[at..at + units].fill(true);
                        given.push((at * UNIT, bytes));
                    }
                } else if !given.is_empty() {
                    let (start, bytes) = given.swap_remove(which.index(given.len()));
                    offsets.give(start, bytes);
                    let units = bytes.max(1).div_ceil(UNIT);
                    used[start / UNIT..][..units].fill(false);
                }
                let runs = used.split(|u| *u).map(<[bool]>::len);
                prop_assert_eq!(offsets.longest(), UNIT * runs.max().unwrap_or(0));
            }
        }
    }

    #[test]
    fn what_exceeds_the_address_space_is_refused() {
        let mut offsets = Offsets::new(1 << 20);
        assert_eq!(offsets.take(usize::MAX), None);
        assert_eq!(offsets.take((1 << 20) + 1), None);
        assert_eq!(offsets.take(1 << 20), Some(0));
        assert_eq!((offsets.take(0), offsets.longest()), (None, 0));
    }
}
