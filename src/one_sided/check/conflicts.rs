//! Which accesses to a part of a window conflict. Pure.
//!
//! Two accesses of different ranks are at the same time if both are in the same epoch between
//! fences, or in the same exposure of the part; else if the one has begun before the other was
//! complete, by the clock of the host. What is ordered by anything else, such as a message
//! behind a flush, is not at the same time, so correct programs have no conflicts; a race that
//! did not happen this time is not found either.
//!
//! Accesses of one rank are ordered where each is complete when its call returns, as in Rust.
//!
//! # Sources
//! MPI 5.0, section 12.7: which accesses of an epoch must not overlap.

use osier_engine::rma::update::Change;
use std::ops::Range;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    Get,
    /// An update of elements.
    Update(Change),
    /// A compare-and-swap.
    Swap,
    /// Of the owner, by itself.
    Load,
    Store,
}

impl Kind {
    pub fn verb(self) -> &'static str {
        match self {
            Kind::Put => "put",
            Kind::Get => "get",
            Kind::Update(_) => "update",
            Kind::Swap => "compare-and-swap",
            Kind::Load => "read",
            Kind::Store => "write",
        }
    }

    fn is_update(self) -> bool {
        matches!(self, Kind::Update(_) | Kind::Swap)
    }

    fn only_reads(self) -> bool {
        matches!(self, Kind::Get | Kind::Load | Kind::Update(Change::Keep))
    }

    /// Whether two may not overlap at the same time.
    fn excludes(self, other: Kind) -> bool {
        if self.only_reads() && other.only_reads() {
            return false;
        }
        if !(self.is_update() && other.is_update()) {
            return true;
        }
        match (self, other) {
            // Whoever reads by an update may do so beside any.
            (Kind::Update(Change::Keep), _) | (_, Kind::Update(Change::Keep)) => false,
            (Kind::Update(one), Kind::Update(other)) => one != other,
            // MPI leaves open what is done by a compare-and-swap beside updates.
            _ => false,
        }
    }
}

/// The epoch of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    /// Between two fences: how many fences of the window came before.
    Fences(u64),
    /// An exposure of the part to some ranks, by number.
    Exposure(u64),
    /// The part was locked, or the epoch is on all parts.
    Lock,
    /// The owner's access to its own part: fences and exposures that came before.
    Own { fences: u64, exposures: u64 },
}

/// An access to a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub origin: u32,
    pub kind: Kind,
    pub within: Within,
    /// When the call began, and when it was complete as MPI has it, ns of the host's clock.
    pub time: Range<u64>,
    /// Bytes of the part, in order, apart.
    pub runs: Vec<Range<u64>>,
    /// The line of the call.
    pub site: String,
}

impl Access {
    /// Whether two accesses may take place at the same time, for all that is known.
    fn is_beside(&self, other: &Access, calls_complete: bool) -> bool {
        use Within as W;
        let at_once = self.time.start < other.time.end && other.time.start < self.time.end;
        if self.origin == other.origin {
            let ordered = calls_complete || self.kind.is_update() && other.kind.is_update();
            return !ordered && at_once;
        }
        match (self.within, other.within) {
            (W::Fences(one), W::Fences(other)) => one == other,
            (W::Exposure(one), W::Exposure(other)) => one == other,
            (W::Own { fences, .. }, W::Fences(other))
            | (W::Fences(other), W::Own { fences, .. }) => fences == other,
            (W::Own { exposures, .. }, W::Exposure(other))
            | (W::Exposure(other), W::Own { exposures, .. }) => exposures == other,
            _ => at_once,
        }
    }

    /// The first bytes that both touch.
    fn overlap(&self, other: &Access) -> Option<Range<u64>> {
        let (mut ours, mut theirs) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        while let (Some(one), Some(two)) = (ours.peek(), theirs.peek()) {
            let both = one.start.max(two.start)..one.end.min(two.end);
            if !both.is_empty() {
                return Some(both);
            }
            match one.end <= two.end {
                true => ours.next(),
                false => theirs.next(),
            };
        }
        None
    }

    /// The first bytes over which two accesses conflict. `calls_complete`: an access is complete
    /// when its call returns.
    pub fn conflict(&self, other: &Access, calls_complete: bool) -> Option<Range<u64>> {
        let excluded = self.kind.excludes(other.kind) && self.is_beside(other, calls_complete);
        excluded.then(|| self.overlap(other)).flatten()
    }
}

/// Most accesses that are kept of a part.
pub(super) const KEPT: usize = 4096;

/// Accesses to a part, those that later ones may conflict with.
#[derive(Debug, Default)]
pub(super) struct Kept {
    accesses: std::collections::VecDeque<Access>,
    /// Accesses that were dropped before all others were seen.
    pub dropped: u64,
}

impl Kept {
    /// Takes one more; `conflicts` is told each kept one that it conflicts with, and where.
    pub fn add(
        &mut self,
        access: Access,
        calls_complete: bool,
        mut conflicts: impl FnMut(&Access, &Access, Range<u64>),
    ) {
        for before in &self.accesses {
            if let Some(bytes) = before.conflict(&access, calls_complete) {
                conflicts(before, &access, bytes);
            }
        }
        if self.accesses.len() == KEPT {
            self.accesses.pop_front();
            self.dropped += 1;
        }
        self.accesses.push_back(access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_datatype::Operator;
    use proptest::prelude::*;

    const SUM: Kind = Kind::Update(Change::Combine(Operator::Sum));
    const MAX: Kind = Kind::Update(Change::Combine(Operator::Max));
    const KEEP: Kind = Kind::Update(Change::Keep);

    fn access(origin: u32, kind: Kind, within: Within, time: Range<u64>) -> Access {
        Access {
            origin,
            kind,
            within,
            time,
            runs: vec![0..8, 16..24],
            site: String::new(),
        }
    }

    #[test]
    fn kinds_exclude_each_other_as_the_standard_says() {
        use Kind::*;
        let all = [Put, Get, SUM, MAX, KEEP, Swap, Load, Store];
        let fine = [
            (Get, Get),
            (Get, Load),
            (Get, KEEP),
            (Load, Load),
            (Load, KEEP),
            (SUM, SUM),
            (MAX, MAX),
            (KEEP, KEEP),
            (SUM, KEEP),
            (MAX, KEEP),
            (SUM, Swap),
            (MAX, Swap),
            (KEEP, Swap),
            (Swap, Swap),
        ];
        for one in all {
            for two in all {
                let may = fine.contains(&(one, two)) || fine.contains(&(two, one));
                let at = |origin, kind| access(origin, kind, Within::Fences(3), 0..1);
                let found = at(0, one).conflict(&at(1, two), true);
                assert_eq!(found, (!may).then_some(0..8), "{one:?} beside {two:?}");
            }
        }
    }

    #[test]
    fn epochs_decide_what_is_at_the_same_time() {
        use Within as W;
        let own = W::Own {
            fences: 2,
            exposures: 5,
        };
        // Times that do not overlap.
        for (one, two, beside) in [
            (W::Fences(2), W::Fences(2), true),
            (W::Fences(2), W::Fences(3), false),
            (W::Exposure(1), W::Exposure(1), true),
            (W::Exposure(1), W::Exposure(2), false),
            (own, W::Fences(2), true),
            (own, W::Fences(1), false),
            (own, W::Exposure(5), true),
            (own, W::Exposure(4), false),
            (W::Lock, W::Lock, false),
            (W::Lock, W::Fences(2), false),
        ] {
            let (a, b) = (
                access(0, Kind::Put, one, 0..5),
                access(1, Kind::Put, two, 5..9),
            );
            assert_eq!(
                a.conflict(&b, true).is_some(),
                beside,
                "{one:?} and {two:?}"
            );
            assert_eq!(
                b.conflict(&a, false).is_some(),
                beside,
                "{two:?} and {one:?}"
            );
            let late = access(1, Kind::Put, two, 4..9);
            let by_time = matches!((one, two), (W::Lock, _) | (_, W::Lock));
            assert_eq!(a.conflict(&late, true).is_some(), beside || by_time);
        }
    }

    /// One rank's accesses are ordered where calls complete them, and its updates always.
    #[test]
    fn accesses_of_one_rank_conflict_until_they_are_complete() {
        let of = |kind, time| access(4, kind, Within::Lock, time);
        let (put, get) = (of(Kind::Put, 0..10), of(Kind::Get, 5..10));
        assert_eq!(put.conflict(&get, true), None);
        assert_eq!(put.conflict(&get, false), Some(0..8));
        assert_eq!(put.conflict(&of(Kind::Get, 10..12), false), None, "flushed");
        assert_eq!(of(SUM, 0..10).conflict(&of(MAX, 5..10), false), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = Kept::default();
        for time in 0..KEPT as u64 + 10 {
            let put = access(time as u32, Kind::Put, Within::Lock, time..time + 1);
            kept.add(put, true, |_, _, _| panic!("no conflict"));
        }
        assert_eq!((kept.accesses.len(), kept.dropped), (KEPT, 10));
    }

    proptest! {
        /// Beside a set of bytes.
        #[test]
        fn overlaps_are_those_of_bytes(
            ours in prop::collection::btree_set(0u64..40, 0..20),
            theirs in prop::collection::btree_set(0u64..40, 0..20),
        ) {
            let runs = |bytes: &std::collections::BTreeSet<u64>| {
                let mut runs: Vec<Range<u64>> = Vec::new();
                for byte in bytes {
                    match runs.last_mut() {
                        Some(last) if last.end == *byte => last.end += 1,
                        _ => runs.push(*byte..*byte + 1),
                    }
                }
                runs
            };
            let of = |origin, bytes| Access {
                runs: runs(bytes),
                ..access(origin, Kind::Put, Within::Fences(0), 0..1)
            };
            let found = of(0, &ours).conflict(&of(1, &theirs), true);
            let first = ours.intersection(&theirs).next().copied();
            prop_assert_eq!(found.map(|both| both.start), first);
        }
    }
}
