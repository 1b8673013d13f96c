//! Which ranks have ended, and who passes the news on to whom. Pure.
//!
//! ```text
//! host 0       host 1       host 2       host 3         w  its watcher, the lowest living rank
//!  w---w--------w---w--------w---w--------w             -- watchers of hosts that lie 1, 2, 4, ..
//!  |\           |\           |\           |\               apart among those that live
//!  r r          r r          r r          r r           |  a rank and its watcher
//! ```
//!
//! Each rank tells its partners what it learns first, and all that it knows to a new partner: a
//! set that only grows, in whatever order it comes. So `log2(hosts) + 2` steps tell all, a rank
//! has one partner, and a watcher one per rank of its host and two per power of two below the
//! number of hosts.
//!
//! # Sources
//! A. Demers et al., "Epidemic Algorithms for Replicated Database Maintenance", PODC 1987: news
//! that are passed on once by each who learns them, and exchanged whole where partners are new.

use super::map::HostMap;
use crate::death::Death;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 16;
/// No rank of a host lives.
const NOBODY: u32 = u32::MAX;

/// Why a rank takes part no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Cause {
    Finalized = 1,
    /// Its process has closed its connections without a word.
    Ended = 2,
    /// A connection to it has failed.
    Lost = 3,
    /// It could not be called.
    Unreachable = 4,
    /// Its host does not answer.
    Silent = 5,
}

impl Cause {
    fn of_wire(w: u8) -> Option<Self> {
        Some(match w {
            1 => Self::Finalized,
            2 => Self::Ended,
            3 => Self::Lost,
            4 => Self::Unreachable,
            5 => Self::Silent,
            _ => return None,
        })
    }

    /// Whether the rank may live all the same, on another side of a cut network.
    pub fn is_doubtful(self) -> bool {
        matches!(self, Self::Lost | Self::Unreachable | Self::Silent)
    }

    pub fn of_death(how: Death) -> Self {
        match how {
            Death::Finalized => Self::Finalized,
            Death::Unreachable => Self::Unreachable,
            Death::Silent => Self::Silent,
            Death::Disconnected => Self::Lost,
            _ => Self::Ended,
        }
    }

    pub fn death(self) -> Death {
        match self {
            Self::Finalized => Death::Finalized,
            Self::Ended => Death::Ended,
            Self::Lost => Death::Disconnected,
            Self::Unreachable => Death::Unreachable,
            Self::Silent => Death::Silent,
        }
    }
}

/// That `ranks` ranks from `first` on have ended, as rank `by` has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub first: u32,
    pub ranks: u32,
    pub cause: Cause,
    pub by: u32,
}

impl Record {
    pub fn of(rank: u32, cause: Cause, by: u32) -> Self {
        Self {
            first: rank,
            ranks: 1,
            cause,
            by,
        }
    }

    pub fn to_wire(self) -> [u8; RECORD_BYTES] {
        let mut w = [0; RECORD_BYTES];
        w[..4].copy_from_slice(&self.first.to_le_bytes());
        w[4..8].copy_from_slice(&self.ranks.to_le_bytes());
        w[8..12].copy_from_slice(&self.by.to_le_bytes());
        w[12] = self.cause as u8;
        w
    }

    /// Parses [`Record::to_wire`], in a job of `of` ranks.
    pub fn of_wire(w: &[u8; RECORD_BYTES], of: u32) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([w[at], w[at + 1], w[at + 2], w[at + 3]]);
        let record = Self {
            first: word(0),
            ranks: word(4),
            cause: Cause::of_wire(w[12])?,
            by: word(8),
        };
        let end = record.first.checked_add(record.ranks)?;
        let holds = record.ranks > 0 && end <= of && record.by < of && w[13..] == [0; 3];
        holds.then_some(record)
    }
}

/// The ranks that have ended.
#[derive(Debug, Default)]
pub(super) struct Ends {
    ranks: u32,
    /// The cause of each rank, 0 for one that lives; empty before the first has ended.
    causes: Vec<u8>,
    /// Who has found a failure.
    by: HashMap<u32, u32>,
    ended: u32,
    doubtful: u32,
}

impl Ends {
    /// Of a job of this number of ranks.
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks,
            ..Self::default()
        }
    }

    /// Whether this rank takes part in the exchange of news.
    pub fn are_exchanged(&self) -> bool {
        self.ranks > 0
    }

    /// How a rank has ended, if that is known.
    pub fn cause(&self, rank: u32) -> Option<Cause> {
        Cause::of_wire(*self.causes.get(rank as usize)?)
    }

    /// Who has found that a rank has failed.
    pub fn by(&self, rank: u32) -> Option<u32> {
        self.by.get(&rank).copied()
    }

    /// Takes note of ranks that have ended; those of which that was not known. What was known
    /// first stays.
    pub fn learn(&mut self, record: Record) -> Vec<u32> {
        if self.causes.is_empty() {
            self.causes = vec![0; self.ranks as usize];
        }
        let mut fresh = Vec::new();
        for rank in record.first..record.first.saturating_add(record.ranks).min(self.ranks) {
            let cause = &mut self.causes[rank as usize];
            if *cause == 0 {
                *cause = record.cause as u8;
                self.ended += 1;
                self.doubtful += u32::from(record.cause.is_doubtful());
                if record.cause != Cause::Finalized {
                    self.by.insert(rank, record.by);
                }
                fresh.push(rank);
            }
        }
        fresh
    }

    /// All that is known, in few records.
    pub fn records(&self) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        for rank in 0..self.causes.len() as u32 {
            let Some(cause) = self.cause(rank) else {
                continue;
            };
            let by = self.by(rank).unwrap_or(0);
            match records.last_mut() {
                Some(last)
                    if last.first + last.ranks == rank && (last.cause, last.by) == (cause, by) =>
                {
                    last.ranks += 1;
                }
                _ => records.push(Record::of(rank, cause, by)),
            }
        }
        records
    }

    /// Ranks of which it is not certain that they have ended; and those of them that have been
    /// declared dead.
    pub fn sides(&self) -> (u32, u32) {
        (self.ranks - self.ended + self.doubtful, self.doubtful)
    }
}

/// Whether a side of a cut network goes on: the one that has more than half of the ranks that
/// live or may do so, or where both have half, the one with the lowest of them, if `tie` says
/// so. Why not, in words.
///
/// # Errors
/// The side does not go on.
pub(super) fn goes_on(ends: &Ends, tie: bool) -> Result<(), String> {
    let (all, doubtful) = ends.sides();
    let here = all - doubtful;
    let is_counted = |rank: &u32| ends.cause(*rank).is_none_or(Cause::is_doubtful);
    let has_lowest = || {
        let lowest = (0..ends.ranks).find(is_counted);
        lowest.is_some_and(|rank| ends.cause(rank).is_none())
    };
    let halves = u64::from(here) * 2;
    match halves.cmp(&u64::from(all)) {
        _ if doubtful == 0 => Ok(()),
        Ordering::Greater => Ok(()),
        Ordering::Equal if tie && has_lowest() => Ok(()),
        Ordering::Equal => Err(format!(
            "the network is cut: {here} of {all} ranks are on this side, and one with more than half goes on (hint: with OSIER_NETWORK=tie=lowest the half of the lowest rank does)"
        )),
        Ordering::Less => Err(format!(
            "the network is cut: {here} of {all} ranks are on this side, and one with more than half goes on"
        )),
    }
}

/// Who tells whom.
pub(super) struct Overlay {
    map: HostMap,
    own: u32,
    /// The lowest living rank of each host.
    watchers: Vec<u32>,
}

impl Overlay {
    /// Of a rank, before any has ended.
    pub fn new(own: u32, map: HostMap) -> Self {
        let mut watchers = vec![NOBODY; map.hosts()];
        for rank in (0..map.ranks() as u32).rev() {
            if let Some(host) = map.host(rank) {
                watchers[host as usize] = rank;
            }
        }
        Self { map, own, watchers }
    }

    pub fn map(&self) -> &HostMap {
        &self.map
    }

    /// Takes note of a rank that has ended; `ends` knows of it. This rank has partners as long as
    /// it is there, also to tell them of its own end.
    pub fn ended(&mut self, rank: u32, ends: &Ends) {
        let Some(host) = self.map.host(rank).filter(|_| rank != self.own) else {
            return;
        };
        if self.watchers[host as usize] != rank {
            return;
        }
        let others = rank + 1..self.map.ranks() as u32;
        let next = others
            .filter(|r| self.map.host(*r) == Some(host))
            .find(|r| *r == self.own || ends.cause(*r).is_none());
        self.watchers[host as usize] = next.unwrap_or(NOBODY);
    }

    /// Whether this rank is the watcher of its host.
    pub fn watches(&self) -> bool {
        self.watchers[self.map.own() as usize] == self.own
    }

    /// Living ranks of this host besides this one.
    pub fn near(&self, ends: &Ends) -> Vec<u32> {
        let here = self.map.here().iter().copied();
        here.filter(|rank| *rank != self.own && ends.cause(*rank).is_none())
            .collect()
    }

    /// Living ranks of a rank's host.
    pub fn of_host(&self, rank: u32, ends: &Ends) -> Vec<u32> {
        let host = self.map.host(rank);
        (0..self.map.ranks() as u32)
            .filter(|r| self.map.host(*r) == host && ends.cause(*r).is_none())
            .collect()
    }

    /// The ranks that this one exchanges news with, each once, in order.
    pub fn partners(&self, ends: &Ends) -> Vec<u32> {
        if !self.watches() {
            let watcher = self.watchers[self.map.own() as usize];
            return match watcher {
                NOBODY => Vec::new(),
                watcher => vec![watcher],
            };
        }
        let mut partners = self.near(ends);
        let living: Vec<u32> = (self.watchers.iter().copied())
            .filter(|watcher| *watcher != NOBODY)
            .collect();
        let at = living.iter().position(|watcher| *watcher == self.own);
        let mut skip = 1;
        while let Some(at) = at
            && skip < living.len()
        {
            partners.push(living[(at + skip) % living.len()]);
            partners.push(living[(at + living.len() - skip) % living.len()]);
            skip *= 2;
        }
        partners.sort_unstable();
        partners.dedup();
        partners.retain(|partner| *partner != self.own);
        partners
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn watchers_follow_each_other() {
        let mut ends = Ends::new(6);
        let hosts = [0, 1, 0, 1, 0, 1];
        let of = |rank| Overlay::new(rank, HostMap::new(rank, &hosts).expect("a rank"));
        let mut all: Vec<Overlay> = (0..6).map(of).collect();
        assert_eq!(all[0].partners(&ends), [1, 2, 4]);
        assert_eq!(all[2].partners(&ends), [0]);
        ends.learn(Record::of(0, Cause::Finalized, 0));
        all.iter_mut().for_each(|one| one.ended(0, &ends));
        assert_eq!(all[2].partners(&ends), [1, 4]);
        assert_eq!(all[4].partners(&ends), [2]);
        for rank in [2, 4] {
            ends.learn(Record::of(rank, Cause::Ended, 1));
            all.iter_mut().for_each(|one| one.ended(rank, &ends));
        }
        assert_eq!(all[1].partners(&ends), [3, 5]);
        assert_eq!(all[3].partners(&ends), [1]);
        assert_eq!(ends.sides(), (3, 0));
    }

    #[test]
    fn few_records_tell_all() {
        let mut ends = Ends::new(100);
        for rank in (0..100).filter(|rank| rank % 50 != 7) {
            ends.learn(Record::of(rank, Cause::Finalized, 0));
        }
        assert_eq!(ends.records().len(), 3);
        assert_eq!(ends.learn(Record::of(3, Cause::Ended, 9)), [0; 0]);
        assert_eq!(ends.cause(3), Some(Cause::Finalized));
    }

    #[test]
    fn more_than_half_go_on() {
        let side = |silent: &[u32], gone: &[u32], tie| {
            let mut ends = Ends::new(6);
            for rank in gone {
                ends.learn(Record::of(*rank, Cause::Ended, 0));
            }
            for rank in silent {
                ends.learn(Record::of(*rank, Cause::Silent, 0));
            }
            goes_on(&ends, tie).is_ok()
        };
        assert!(side(&[], &[0, 1, 2, 3, 4], false));
        assert!(side(&[4, 5], &[], false));
        assert!(!side(&[3, 4, 5], &[], false));
        assert!(side(&[3, 4, 5], &[], true));
        assert!(!side(&[0, 4, 5], &[], true));
        assert!(!side(&[2, 3, 4, 5], &[], true));
        // Who has ended counts on no side.
        assert!(side(&[4, 5], &[0], false));
        assert!(!side(&[4, 5], &[0, 1], false));
        assert!(side(&[4, 5], &[0, 1], true));
    }

    fn records() -> impl Strategy<Value = Record> {
        (0u32..60, 1u32..9, 1u8..=5, 0u32..60).prop_map(|(first, ranks, cause, by)| Record {
            first,
            ranks: ranks.min(60 - first),
            cause: Cause::of_wire(cause).expect("a cause"),
            by,
        })
    }

    proptest! {
        #[test]
        fn records_survive_the_way(record in records(), noise in proptest::array::uniform16(any::<u8>())) {
            prop_assert_eq!(Record::of_wire(&record.to_wire(), 60), Some(record));
            prop_assert_eq!(Record::of_wire(&record.to_wire(), record.first), None);
            if let Some(parsed) = Record::of_wire(&noise, 1000) {
                prop_assert_eq!(parsed.to_wire(), noise);
            }
        }

        /// Whoever gets all records of another knows the same ranks.
        #[test]
        fn sets_grow_alike(of in proptest::collection::vec(records(), 0..20)) {
            let (mut a, mut b) = (Ends::new(60), Ends::new(60));
            for record in of {
                a.learn(record);
            }
            for record in a.records() {
                b.learn(record);
            }
            for rank in 0..60 {
                prop_assert_eq!(a.cause(rank), b.cause(rank));
                prop_assert_eq!(a.by(rank), b.by(rank));
            }
            prop_assert_eq!(a.sides(), b.sides());
        }

        /// After any ranks have ended: the partners of those that live are mutual, and news reach
        /// all of these in few steps.
        #[test]
        fn news_reach_all(
            hosts in 1u32..40,
            ranks in 1u32..90,
            gone in proptest::collection::vec(any::<prop::sample::Index>(), 0..60),
            from: prop::sample::Index,
        ) {
            let of_ranks: Vec<u32> = (0..ranks).map(|rank| rank * 7 % hosts).collect();
            let mut ends = Ends::new(ranks);
            let of = |rank| Overlay::new(rank, HostMap::new(rank, &of_ranks).expect("a rank"));
            let mut all: Vec<Overlay> = (0..ranks).map(of).collect();
            for index in gone {
                let rank = index.index(ranks as usize) as u32;
                ends.learn(Record::of(rank, Cause::Ended, 0));
                all.iter_mut().for_each(|one| one.ended(rank, &ends));
            }
            let living: Vec<u32> = (0..ranks).filter(|rank| ends.cause(*rank).is_none()).collect();
            if living.is_empty() {
                return Ok(());
            }
            let partners: HashMap<u32, Vec<u32>> = living
                .iter()
                .map(|rank| (*rank, all[*rank as usize].partners(&ends)))
                .collect();
            for (rank, of) in &partners {
                for partner in of {
                    prop_assert!(partners[partner].contains(rank), "{} and {}", rank, partner);
                }
            }
            let from = living[from.index(living.len())];
            let mut steps = HashMap::from([(from, 0u32)]);
            let mut queue = VecDeque::from([from]);
            while let Some(rank) = queue.pop_front() {
                for partner in &partners[&rank] {
                    if !steps.contains_key(partner) {
                        steps.insert(*partner, steps[&rank] + 1);
                        queue.push_back(*partner);
                    }
                }
            }
            prop_assert_eq!(steps.len(), living.len());
            let most = hosts.ilog2() + 1 + 2;
            prop_assert!(steps.values().all(|n| *n <= most), "{:?} of {}", steps, most);
        }
    }
}
