//! Dependency graph of all ranks' steps.
//!
//! A step has a number among all, rank by rank; an instance is
//! `segment * total + step`.

use super::Fault;
use super::values::Map;
use crate::plan::{Part, Step};

pub(crate) const NONE: u32 = u32::MAX;

/// Steps of all ranks, with their ends joined.
pub(crate) struct Graph {
    /// First step of each rank; of the rank behind the last, the number of steps.
    pub(crate) first: Vec<u32>,
    /// By step: the step at the other end of its message or flag.
    pub(crate) other_end: Vec<u32>,
    pub(crate) total: u32,
    pub(crate) segments: u32,
    rank_of: Vec<u32>,
    /// Where the list of each step's followers ends.
    ends: Vec<u32>,
    /// Followers within the rank: (step, lag).
    waiting: Vec<(u32, u32)>,
}

impl Graph {
    /// Joins the parts of all ranks.
    pub(crate) fn of(parts: &[Part]) -> Result<Self, Fault> {
        let mut first = Vec::with_capacity(parts.len() + 1);
        let mut total = 0u32;
        for part in parts {
            first.push(total);
            total += part.steps.len() as u32;
        }
        first.push(total);
        let mut rank_of = vec![0u32; total as usize];
        let mut ends = vec![0u32; total as usize + 1];
        for (rank, part) in parts.iter().enumerate() {
            rank_of[first[rank] as usize..first[rank + 1] as usize].fill(rank as u32);
            for dep in &part.deps {
                ends[(first[rank] + dep.step) as usize + 1] += 1;
            }
        }
        for at in 1..ends.len() {
            ends[at] += ends[at - 1];
        }
        let mut fill = ends.clone();
        let mut waiting = vec![(0u32, 0u32); ends[total as usize] as usize];
        for (rank, part) in parts.iter().enumerate() {
            for at in 0..part.steps.len() as u32 {
                for dep in part.after(at) {
                    let slot = &mut fill[(first[rank] + dep.step) as usize];
                    waiting[*slot as usize] = (first[rank] + at, dep.lag);
                    *slot += 1;
                }
            }
        }
        Ok(Self {
            other_end: join(parts, &first)?,
            first,
            total,
            segments: parts[0].segments,
            rank_of,
            ends,
            waiting,
        })
    }

    pub(crate) fn instances(&self) -> usize {
        self.total as usize * self.segments as usize
    }

    /// Rank and step within it.
    #[inline]
    pub(crate) fn place(&self, global: u32) -> (u32, u32) {
        let rank = self.rank_of[global as usize];
        (rank, global - self.first[rank as usize])
    }

    #[inline]
    pub(crate) fn step(&self, parts: &[Part], global: u32) -> Step {
        let (rank, step) = self.place(global);
        parts[rank as usize].steps[step as usize]
    }

    /// Who waits for a step in its own rank.
    #[inline]
    pub(crate) fn later(&self, global: u32) -> &[(u32, u32)] {
        let at = global as usize;
        &self.waiting[self.ends[at] as usize..self.ends[at + 1] as usize]
    }

    /// For how much each instance of the first segments waits, a flag included.
    pub(crate) fn open(&self, parts: &[Part], segments: u32, mut of: impl FnMut(u32, u32)) {
        for (rank, part) in parts.iter().enumerate() {
            for (at, step) in part.steps.iter().enumerate() {
                let flag = u32::from(matches!(step, Step::Await { .. }));
                let deps = part.after(at as u32);
                for segment in 0..segments {
                    let waits = deps.iter().filter(|d| d.lag <= segment).count() as u32;
                    of(
                        segment * self.total + self.first[rank] + at as u32,
                        waits + flag,
                    );
                }
            }
        }
    }
}

/// Finds for every message and flag its other end.
fn join(parts: &[Part], first: &[u32]) -> Result<Vec<u32>, Fault> {
    let total = first[parts.len()] as usize;
    let mut other_end = vec![NONE; total];
    let mut sent: Map<(u64, u32), u32> = Map::default();
    let pair = |from: u32, to: u32| (u64::from(from) << 32) | u64::from(to);
    let fault = |rank: usize, at: usize, what: &str| Fault {
        rank: rank as u32,
        step: Some(at as u32),
        segment: 0,
        what: format!("{:?} {what}", parts[rank].steps[at]),
    };
    for (rank, part) in parts.iter().enumerate() {
        for (at, step) in part.steps.iter().enumerate() {
            if let Step::Send { to, tag, .. } | Step::Raise { to, tag } = *step {
                let key = (pair(rank as u32, to), tag);
                if sent.insert(key, first[rank] + at as u32).is_some() {
                    return Err(fault(rank, at, "has the tag of another message"));
                }
            }
        }
    }
    for (rank, part) in parts.iter().enumerate() {
        for (at, step) in part.steps.iter().enumerate() {
            let (Step::Recv { from, tag, .. } | Step::Await { from, tag }) = *step else {
                continue;
            };
            let Some(sender) = sent.remove(&(pair(from, rank as u32), tag)) else {
                return Err(fault(rank, at, "has no sender"));
            };
            let sender_at = sender - first[from as usize];
            let pieces = match (parts[from as usize].steps[sender_at as usize], *step) {
                (Step::Send { data, .. }, Step::Recv { data: mine, .. }) => {
                    data.count == mine.count
                }
                (Step::Raise { .. }, Step::Await { .. }) => true,
                _ => false,
            };
            if !pieces {
                return Err(fault(rank, at, "does not fit what is sent"));
            }
            other_end[sender as usize] = first[rank] + at as u32;
            other_end[first[rank] as usize + at] = sender;
        }
    }
    if let Some(sender) = sent.values().min() {
        let rank = first.partition_point(|f| f <= sender) - 1;
        let at = (sender - first[rank]) as usize;
        return Err(fault(rank, at, "has no receiver"));
    }
    Ok(other_end)
}
