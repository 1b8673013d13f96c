//! Accesses as ranks tell each other: batches of bytes.
//!
//! ```text
//! batch    closes u8 (it ends an epoch of start and complete), accesses
//! access   kind u8, change u8, within u8, epoch u64, begun u64, complete u64 (ns),
//!          runs u32, site u16 (bytes), runs: start u64, end u64; site
//! ```
//! All numbers are little-endian.

use super::conflicts::{Access, Kind, Within};
use osier_engine::rma::update::Change;
use std::ops::Range;

const LOCK: u8 = 0;
const FENCES: u8 = 1;
const EXPOSURE: u8 = 2;

fn kind_to_wire(kind: Kind) -> [u8; 2] {
    match kind {
        Kind::Put => [0, 0],
        Kind::Get => [1, 0],
        Kind::Swap => [2, 0],
        Kind::Update(change) => [3, change.to_wire()],
        Kind::Load => [4, 0],
        Kind::Store => [5, 0],
    }
}

fn kind_from_wire([kind, change]: [u8; 2]) -> Option<Kind> {
    Some(match kind {
        0 => Kind::Put,
        1 => Kind::Get,
        2 => Kind::Swap,
        3 => Kind::Update(Change::from_wire(change)?),
        4 => Kind::Load,
        5 => Kind::Store,
        _ => return None,
    })
}

/// A batch for a rank whose part was used.
pub(super) fn to_wire(closes: bool, accesses: &[Access]) -> Vec<u8> {
    let mut w = vec![u8::from(closes)];
    for access in accesses {
        let (within, epoch) = match access.within {
            Within::Lock | Within::Own { .. } => (LOCK, 0),
            Within::Fences(number) => (FENCES, number),
            Within::Exposure(number) => (EXPOSURE, number),
        };
        let site = &access.site.as_bytes()[..access.site.len().min(u16::MAX.into())];
        w.extend(kind_to_wire(access.kind));
        w.push(within);
        w.extend(epoch.to_le_bytes());
        w.extend(access.time.start.to_le_bytes());
        w.extend(access.time.end.to_le_bytes());
        w.extend((access.runs.len() as u32).to_le_bytes());
        w.extend((site.len() as u16).to_le_bytes());
        for run in &access.runs {
            w.extend(run.start.to_le_bytes());
            w.extend(run.end.to_le_bytes());
        }
        w.extend(site);
    }
    w
}

/// Takes numbers and bytes off a batch.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(first)
    }

    fn access(&mut self, origin: u32) -> Option<Access> {
        let kind = kind_from_wire(self.array()?)?;
        let [within] = self.array()?;
        let epoch = self.word()?;
        let time = self.word()?..self.word()?;
        let count = u32::from_le_bytes(self.array()?) as usize;
        let length = u16::from_le_bytes(self.array()?) as usize;
        let pairs = self.bytes(count.checked_mul(16)?)?;
        let runs: Vec<Range<u64>> = pairs
            .chunks_exact(16)
            .filter_map(|pair| {
                let mut pair = Reader(pair);
                Some(pair.word()?..pair.word()?)
            })
            .collect();
        let site = String::from_utf8_lossy(self.bytes(length)?).into_owned();
        Some(Access {
            origin,
            kind,
            within: match within {
                LOCK => Within::Lock,
                FENCES => Within::Fences(epoch),
                EXPOSURE => Within::Exposure(epoch),
                _ => return None,
            },
            time,
            runs,
            site,
        })
    }
}

/// Whether a batch closes an epoch, and its accesses; `None`: it is malformed.
pub(super) fn from_wire(origin: u32, wire: &[u8]) -> Option<(bool, Vec<Access>)> {
    let mut reader = Reader(wire);
    let [closes] = reader.array()?;
    let mut accesses = Vec::new();
    while !reader.0.is_empty() {
        accesses.push(reader.access(origin)?);
    }
    (closes <= 1).then_some((closes == 1, accesses))
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_datatype::Operator;
    use proptest::prelude::*;

    fn kinds() -> Vec<Kind> {
        let operators = Operator::ALL.map(|operator| Kind::Update(Change::Combine(operator)));
        let mut kinds = operators.to_vec();
        kinds.extend([Kind::Put, Kind::Get, Kind::Swap, Kind::Load, Kind::Store]);
        kinds.extend([Change::Replace, Change::Keep].map(Kind::Update));
        kinds
    }

    fn an_access() -> impl Strategy<Value = Access> {
        let within = prop_oneof![
            Just(Within::Lock),
            any::<u64>().prop_map(Within::Fences),
            any::<u64>().prop_map(Within::Exposure),
        ];
        let runs = prop::collection::vec((any::<u64>(), any::<u64>()), 0..4);
        let kind = prop::sample::select(kinds());
        (kind, within, any::<(u64, u64)>(), runs, ".{0,30}").prop_map(
            |(kind, within, time, runs, site)| Access {
                origin: 5,
                kind,
                within,
                time: time.0..time.1,
                runs: runs.into_iter().map(|(start, end)| start..end).collect(),
                site,
            },
        )
    }

    proptest! {
        #[test]
        fn batches_come_as_they_were_sent(
            closes in any::<bool>(),
            accesses in prop::collection::vec(an_access(), 0..5),
        ) {
            let wire = to_wire(closes, &accesses);
            prop_assert_eq!(from_wire(5, &wire), Some((closes, accesses)));
        }

        /// Cut and random bytes are refused or read, and harm nothing.
        #[test]
        fn malformed_batches_are_refused(wire in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some((closes, accesses)) = from_wire(5, &wire) {
                prop_assert!(u8::from(closes) == wire[0] && accesses.len() <= wire.len() / 32);
            }
        }
    }
}
