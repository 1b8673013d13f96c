//! Runs of a region in pieces that one access takes.

use super::each_run;
use crate::progress::access::Limits;
use crate::view::RawView;
use std::ops::Range;

/// Runs that are accessed piece by piece.
#[derive(Debug)]
pub struct Pieces {
    runs: Vec<Range<u64>>,
    limits: Limits,
    /// Runs that were handed out, and their bytes.
    at: usize,
    packed: usize,
    /// Those of the last access.
    last: (usize, usize),
}

impl Pieces {
    /// The runs of a view whose addresses count from a region's first byte. None is longer than an
    /// access takes; those that touch are one.
    pub fn of(view: &RawView, limits: Limits) -> Self {
        let most = limits.bytes.saturating_sub(limits.name_bytes).max(1);
        let mut runs: Vec<Range<u64>> = Vec::new();
        each_run(view, |run, _| {
            let mut at = run.start;
            while at < run.end {
                let room = match runs.last_mut() {
                    Some(last) if last.end == at as u64 => {
                        most.saturating_sub((last.end - last.start) as usize)
                    }
                    _ => 0,
                };
                let end = |room: usize| run.end.min(at.saturating_add(room));
                at = match runs.last_mut() {
                    Some(last) if room > 0 => {
                        last.end = end(room) as u64;
                        end(room)
                    }
                    _ => {
                        runs.push(at as u64..end(most) as u64);
                        end(most)
                    }
                };
            }
        });
        Self::of_runs(runs, limits)
    }

    /// Runs of which none is longer than an access takes.
    pub fn of_runs(runs: Vec<Range<u64>>, limits: Limits) -> Self {
        Self {
            runs,
            limits,
            at: 0,
            packed: 0,
            last: (0, 0),
        }
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Bytes of all runs.
    pub fn bytes(&self) -> usize {
        let bytes = self.runs.iter().map(|run| run.end - run.start);
        bytes.sum::<u64>() as usize
    }

    /// Has the runs of the last access, and all behind, accessed another way, which takes as long
    /// ones.
    pub fn otherwise(&mut self, limits: Limits) {
        let (runs, bytes) = std::mem::take(&mut self.last);
        self.at -= runs;
        self.packed -= bytes;
        self.limits = limits;
    }

    /// The runs of the next access, and the number of packed bytes before them.
    pub fn next_access(&mut self) -> Option<(&[Range<u64>], usize)> {
        self.last = (0, 0);
        let rest = self.runs.get(self.at..)?;
        let (mut n, mut named, mut bytes) = (0, 0usize, 0);
        for run in rest.iter().take(self.limits.runs.max(1)) {
            let run_bytes = (run.end - run.start) as usize;
            named = named.saturating_add(run_bytes + self.limits.name_bytes);
            if n > 0 && named > self.limits.bytes {
                break;
            }
            n += 1;
            bytes += run_bytes;
        }
        if n == 0 {
            return None;
        }
        let packed = self.packed;
        self.at += n;
        self.packed += bytes;
        self.last = (n, bytes);
        Some((&rest[..n], packed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_datatype::Type;
    use proptest::prelude::*;

    fn all(mut pieces: Pieces, limits: Limits) -> Vec<u64> {
        let mut bytes = Vec::new();
        while let Some((runs, packed)) = pieces.next_access() {
            assert_eq!(packed, bytes.len());
            assert!((1..=limits.runs).contains(&runs.len()));
            let sum: usize = runs.iter().map(|r| (r.end - r.start) as usize).sum();
            let named = sum + runs.len() * limits.name_bytes;
            assert!(named <= limits.bytes, "{named} of {}", limits.bytes);
            bytes.extend(runs.iter().cloned().flatten());
        }
        bytes
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_of_a_view_in_their_order(
            offsets in proptest::collection::vec((0i64..200, 1usize..20), 0..30),
            runs in 1usize..8,
            name_bytes in 0usize..17,
            room in 1usize..60,
        ) {
            let limits = Limits { runs, bytes: name_bytes + room, name_bytes };
            let blocks: Vec<_> = offsets.iter().map(|(at, n)| (*n, *at as isize)).collect();
            let ty = Type::hindexed(&blocks, &Type::of::<u8>()).unwrap();
            let wanted: Vec<u64> = blocks
                .iter()
                .flat_map(|(n, at)| *at as u64..*at as u64 + *n as u64)
                .collect();
            let view = RawView::at(std::ptr::null_mut(), &ty.commit().unwrap(), 1).unwrap();
            prop_assert_eq!(all(Pieces::of(&view, limits), limits), &wanted[..]);
            // Another way from the second access on.
            let mut pieces = Pieces::of(&view, limits);
            let first = pieces.next_access().map_or(0, |(runs, _)| {
                runs.iter().map(|r| (r.end - r.start) as usize).sum()
            });
            pieces.next_access();
            let other = Limits { runs: 3, bytes: usize::MAX, name_bytes: 0 };
            pieces.otherwise(other);
            let mut bytes = wanted[..first].to_vec();
            while let Some((runs, packed)) = pieces.next_access() {
                prop_assert_eq!(packed, bytes.len());
                bytes.extend(runs.iter().cloned().flatten());
            }
            prop_assert_eq!(bytes, wanted);
        }
    }
}
