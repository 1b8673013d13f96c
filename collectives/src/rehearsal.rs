//! Coarse-to-fine plan search for large rank counts: first on a part of the machine.
//!
//! Plans for all ranks of a large machine have too many steps to play each of them. So all
//! are played for an eighth of the ranks, those of the machine's first parts, and for all
//! ranks what was near to the best there, with as many segments. For an eighth there may be
//! too many, too: then for an eighth of these before.

use crate::algorithms::{Algorithm, Plan};
use crate::call::Call;
use crate::choose::{Candidate, Choice, choose_within};
use crate::cost::{Machine, Model, Sizes};
use crate::search::{BEHIND, Search};

/// Plans for no more than so many ranks are played, or they are not.
const LEAST: u32 = 256;

/// What was chosen on a part of the machine.
pub(crate) struct Rehearsal {
    ranks: u32,
    choice: Choice,
}

impl Rehearsal {
    /// Chooses for the first parts of the machine, about an eighth of the ranks. None where
    /// that cannot be done.
    pub fn of(
        most: u64,
        call: &Call,
        sizes: &Sizes,
        machine: &Machine,
        model: Model,
    ) -> Result<Option<Self>, crate::Unsuitable> {
        // Their lists are of all ranks.
        let whole = call.operation.of_neighbors() || call.first_side.is_some();
        if whole || call.size <= LEAST || matches!(sizes, Sizes::Each(_)) {
            return Ok(None);
        }
        let (fewer, ranks) = machine.first_parts(call.size / 8);
        let ranks = ranks.iter().filter(|r| **r < call.size).count() as u32;
        if ranks < 2 || ranks > call.size / 2 {
            return Ok(None);
        }
        let call = Call {
            size: ranks,
            root: call.root % ranks,
            ..call.clone()
        };
        let choice = choose_within((most, false), &call, sizes, &fewer, model)?;
        Ok(Some(Self { ranks, choice }))
    }

    /// Plans worth to be played for all ranks, in as many segments as were best or can be
    /// played, short ones first: those are soon known, and bound the others.
    pub fn sort(
        &self,
        plans: Vec<(u64, Plan)>,
        search: &Search,
        left_out: &mut Vec<(String, String)>,
    ) -> Result<Vec<(u64, Plan)>, crate::Unsuitable> {
        let mut near = Vec::new();
        for (steps, plan) in plans {
            let algorithm = plan.algorithm();
            let behind = self.behind(algorithm);
            if behind > BEHIND {
                let on = format!("on {} ranks", self.ranks);
                let reason = match behind.is_finite() {
                    true => format!("takes {behind:.1} times the best {on}"),
                    false => format!("is left out {on}"),
                };
                left_out.push((algorithm.to_string(), reason));
                continue;
            }
            // If nobody thought of it there, as many as the best of its kind has.
            let like = self.find(algorithm).or_else(|| self.best_like(algorithm));
            let mut segments = like.map_or(1, |c| c.plan.segments());
            while segments > 1 && !search.affords(steps, segments) {
                segments /= 2;
            }
            let plan = Plan::new(plan.call().clone(), algorithm.clone(), segments)?;
            near.push((steps, plan));
        }
        near.sort_by_key(|(steps, plan)| steps * u64::from(plan.segments()));
        Ok(near)
    }

    fn own(&self) -> impl Iterator<Item = &Candidate> {
        self.choice.ranking.iter().filter(|c| !c.through_host)
    }

    fn find(&self, algorithm: &Algorithm) -> Option<&Candidate> {
        let name = algorithm.to_string();
        self.own().find(|c| c.plan.algorithm().to_string() == name)
    }

    /// The best by levels with the same way across; of flat ones, of all.
    fn best_like(&self, algorithm: &Algorithm) -> Option<&Candidate> {
        let across = |algorithm: &Algorithm| match algorithm {
            Algorithm::Hierarchical(levels) => Some(levels.across),
            _ => None,
        };
        let wanted = across(algorithm);
        let alike = |c: &&Candidate| wanted.is_none() || across(c.plan.algorithm()) == wanted;
        self.own().find(alike)
    }

    /// Its time over the best one's. Of what was not played, infinite; of what nobody thought
    /// of there, just enough to be played.
    fn behind(&self, algorithm: &Algorithm) -> f64 {
        if let Some(candidate) = self.find(algorithm) {
            let best = self.own().map(|c| c.ns).fold(f64::INFINITY, f64::min);
            return candidate.ns / best.max(1e-9);
        }
        let name = algorithm.to_string();
        match self.choice.left_out.iter().any(|(left, _)| *left == name) {
            true => f64::INFINITY,
            false => BEHIND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Algorithm;
    use crate::call::{Association, Operation};
    use crate::cost::{Link, simulate};

    /// Nodes of 16 ranks, which share a way out.
    fn machine(ranks: u32) -> Machine {
        let level = |latency_ns, overhead_ns, shared_per_byte_ns| Link {
            latency_ns,
            overhead_ns,
            gap_ns: 40.0,
            per_byte_ns: 0.08,
            shared_per_byte_ns,
            ..Link::default()
        };
        let links = vec![level(80.0, 40.0, 0.0), level(1500.0, 200.0, 0.04)];
        Machine::regular(&[ranks / 16, 16], links, |r| r)
    }

    /// With a tenth of the steps that all plans have, what is chosen is as good as each of
    /// the known ones.
    #[test]
    fn what_was_best_on_a_part_is_found_for_all() {
        let machine = machine(512);
        for (operation, bytes) in [
            (Operation::Bcast, 8),
            (Operation::Allreduce, 1 << 16),
            (Operation::Barrier, 0),
        ] {
            let call = Call::new(operation, 512).requires(Association::Any);
            let sizes = Sizes::Equal(bytes);
            let choice = choose_within((200_000, true), &call, &sizes, &machine, Model::LogGp);
            let choice = choice.expect("a plan");
            let rehearsed = |(_, why): &(String, String)| why.contains("on 64 ranks");
            assert!(choice.left_out.iter().any(rehearsed), "{choice}");
            for known in [
                Algorithm::Binomial,
                Algorithm::RecursiveDoubling,
                Algorithm::Rabenseifner,
                Algorithm::Dissemination,
            ] {
                if known.keeps(&call).is_none() {
                    continue;
                }
                let plan = Plan::new(call.clone(), known, 1).expect("suitable");
                let time = simulate(&plan, &sizes, &machine, Model::LogGp);
                let time = time.expect("a plan that ends").last_ns;
                // Few are left to be played in more or fewer segments.
                assert!(choice.ns() <= 1.1 * time, "{choice}");
            }
        }
    }
}
