//! Plan search: simulates candidates, and finds the best number of segments of each.
//!
//! ```text
//! all, whole -> each in 4, 16, 64... segments while that gains -> the first ones exactly
//! ```
//!
//! Of many segments only the first are played, and the rest follows from their pace; who is
//! first then is played to the end. Nothing is played for longer than it could still
//! matter.

use crate::algorithms::{Algorithm, Plan, SLOTS, Unsuitable};
use crate::call::Operation;
use crate::check::graph::Graph;
use crate::choose::Candidate;
use crate::cost::{Machine, Model, Sizes, play_ahead};
use crate::device_links::DeviceLink;
use crate::group::Group;
use crate::plan::{Part, Step};

/// Of a plan of more segments so many are played, or more: instances that take little time.
const AHEAD: u32 = 16;
const SOON: u64 = 16_384;
/// Segments are tried in powers of two up to this.
pub(crate) const MOST_SEGMENTS: u32 = 1024;
/// Plans of more steps are not played: what is known of a step takes some 150 bytes.
const MOST_STEPS: u64 = 8_000_000;
/// What takes more than so many times the best is not looked at any closer.
pub(crate) const BEHIND: f64 = 2.0;

/// A plan with the steps of all ranks, joined.
struct Prepared {
    plan: Plan,
    parts: Vec<Part>,
    graph: Graph,
}

impl Prepared {
    fn of(plan: Plan) -> Result<Self, Unsuitable> {
        let parts: Vec<Part> = (0..plan.call().size).map(|r| plan.part(r)).collect();
        let graph = Graph::of(&parts)
            .map_err(|fault| Unsuitable(format!("{}: {fault}", plan.algorithm())))?;
        Ok(Self { plan, parts, graph })
    }

    /// Of the same algorithm in other segments: steps are the same, and what they wait for
    /// is if room for intermediate results is shared by segments, or is not, as before.
    fn cut(&mut self, plan: Plan) -> Result<(), Unsuitable> {
        let segments = plan.segments();
        if (segments > SLOTS) != (self.plan.segments() > SLOTS) {
            *self = Self::of(plan)?;
            return Ok(());
        }
        for part in &mut self.parts {
            part.segments = segments;
        }
        self.graph.segments = segments;
        self.plan = plan;
        Ok(())
    }
}

/// Plays plans for one call on one machine, no more than about so many instances of steps.
pub(crate) struct Search<'a> {
    pub sizes: &'a Sizes,
    pub machine: &'a Machine,
    pub model: Model,
    pub left: u64,
    /// What is found is for more ranks: there the third may be the best.
    pub rehearses: bool,
    /// The best time so far, and the next.
    best: [f64; 2],
}

/// What was found of a candidate, and whether it was played to its end.
pub(crate) struct Found {
    pub candidate: Candidate,
    exact: bool,
    /// Of all ranks.
    steps: u64,
}

impl<'a> Search<'a> {
    pub fn new(sizes: &'a Sizes, machine: &'a Machine, model: Model, left: u64) -> Self {
        Self {
            sizes,
            machine,
            model,
            left,
            rehearses: false,
            best: [f64::INFINITY; 2],
        }
    }

    /// The best time so far.
    pub fn best(&self) -> f64 {
        self.best[0]
    }

    /// What takes longer does not matter any more: there are two that are quicker, or it is
    /// far behind.
    pub fn enough(&self) -> f64 {
        let behind = BEHIND * self.best[0];
        match self.rehearses {
            true => behind,
            false => behind.min(self.best[1]),
        }
    }

    fn note(&mut self, ns: f64) {
        if ns < self.best[0] {
            self.best = [ns, self.best[0]];
        } else if ns < self.best[1] {
            self.best[1] = ns;
        }
    }

    /// Whether it is not too long to be played.
    pub fn affords(&self, steps: u64, segments: u32) -> bool {
        steps <= MOST_STEPS && steps * u64::from(segments.min(ahead(steps))) <= self.left
    }

    /// Plays a plan; none if it takes longer than that.
    pub fn play(&mut self, plan: Plan, longest_ns: f64) -> Result<Option<Found>, Unsuitable> {
        let joined = Prepared::of(plan)?;
        let steps = joined.graph.total.into();
        let ns = self.time(&joined, ahead(steps), longest_ns)?;
        Ok(ns.map(|ns| {
            self.note(ns);
            Found {
                exact: joined.plan.segments() <= ahead(steps),
                steps,
                candidate: Candidate::of(joined.plan, ns),
            }
        }))
    }

    fn time(
        &mut self,
        joined: &Prepared,
        ahead: u32,
        longest_ns: f64,
    ) -> Result<Option<f64>, Unsuitable> {
        let Prepared { plan, parts, graph } = joined;
        let needed = u64::from(graph.total) * u64::from(graph.segments.min(ahead));
        self.left = self.left.saturating_sub(needed);
        let (sizes, machine, model) = (self.sizes, self.machine, self.model);
        play_ahead(
            (plan, parts, graph),
            sizes,
            machine,
            model,
            ahead,
            longest_ns,
        )
        .map_err(|fault| Unsuitable(format!("{}: {fault}", plan.algorithm())))
    }

    /// Finds in how many segments it is quickest: four times as many while that gains, then
    /// twice and half as many as the best. What was rehearsed has about the right number.
    pub fn cut(&mut self, found: &mut Found, rehearsed: bool) -> Result<(), Unsuitable> {
        let enough = match rehearsed {
            true => self.enough(),
            false => f64::INFINITY,
        };
        let mut joined = None;
        let mut try_in = |found: &mut Found, segments, most: f64| {
            self.cut_into(segments, found, &mut joined, most)
        };
        if !rehearsed {
            let mut segments = 4 * found.candidate.plan.segments();
            while segments <= MOST_SEGMENTS && try_in(found, segments, f64::INFINITY)? {
                segments *= 4;
            }
        }
        let best = found.candidate.plan.segments();
        try_in(found, 2 * best, enough)?;
        if best > 1 {
            try_in(found, best / 2, enough)?;
        }
        Ok(())
    }

    /// Tries so many segments; whether more may be better still.
    fn cut_into(
        &mut self,
        segments: u32,
        found: &mut Found,
        joined: &mut Option<Prepared>,
        longest_ns: f64,
    ) -> Result<bool, Unsuitable> {
        let before = &found.candidate.plan;
        let plan = Plan::new(before.call().clone(), before.algorithm().clone(), segments)?;
        if plan.segments() != segments || !self.affords(found.steps, segments) {
            return Ok(false);
        }
        match joined {
            Some(joined) => joined.cut(plan)?,
            None => *joined = Some(Prepared::of(plan)?),
        }
        let Some(joined) = joined else {
            return Ok(false);
        };
        let longest = found.candidate.ns.min(longest_ns);
        match self.time(joined, ahead(found.steps), longest)? {
            Some(ns) if ns < found.candidate.ns => {
                self.note(ns);
                found.candidate.ns = ns;
                found.candidate.plan = joined.plan.clone();
                found.exact = segments <= ahead(found.steps);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Plays to its end whatever seems best, until that is so.
    pub fn settle(&mut self, found: &mut [Found]) -> Result<(), Unsuitable> {
        loop {
            found.sort_by(|a, b| a.candidate.ns.total_cmp(&b.candidate.ns));
            let Some(first) = found.first_mut().filter(|f| !f.exact) else {
                return Ok(());
            };
            first.exact = true;
            let (plan, steps) = (&first.candidate.plan, first.steps);
            if steps * u64::from(plan.segments()) <= self.left {
                let joined = Prepared::of(plan.clone())?;
                if let Some(ns) = self.time(&joined, u32::MAX, f64::INFINITY)? {
                    first.candidate.ns = ns;
                }
            }
        }
    }
}

fn ahead(steps: u64) -> u32 {
    let soon = SOON / steps.max(1);
    AHEAD.max(soon.min(u64::from(u32::MAX)) as u32)
}

/// Steps of a plan, about: ranks differ, the root is among the busiest.
pub(crate) fn steps(plan: &Plan) -> u64 {
    let call = plan.call();
    let steps = |rank| plan.part(rank).steps().len();
    let most = steps(call.root).min(2 * steps(call.size / 2) + 8);
    most as u64 * u64::from(call.size)
}

/// What no plan of this kind can fall below: one rank's messages at its own end; around a
/// ring or along a chain, the way of a piece through all ranks.
pub(crate) fn at_least(plan: &Plan, sizes: &Sizes, machine: &Machine) -> f64 {
    let call = plan.call();
    let part = plan.part(call.root);
    // By the bus, by links into switches, by links to one device: these carry at a time.
    let mut own = [0.0f64; 3];
    for step in part.steps() {
        if let Step::Send { to, data, .. } = *step {
            let m = sizes.bytes(call, &part, data);
            let (device_link, curve) = machine.way(part.rank, to, false);
            let link = curve.of(m);
            let wire = link.per_byte_ns * m;
            let (port, wire) = match device_link {
                None => (0, wire),
                Some(DeviceLink::Switched(_)) => (1, wire),
                Some(DeviceLink::Direct(_) | DeviceLink::Same) => (2, 0.0),
            };
            own[port] += wire.max(link.gap_ns).max(link.work_ns(m));
        }
    }
    let own = own.into_iter().fold(0.0, f64::max);
    let (order, flat) = match plan.algorithm() {
        Algorithm::Permuted(order, flat) => (Group::Permuted(order.clone()), &**flat),
        flat => (Group::all(call.size), flat),
    };
    let own = own * f64::from(part.segments);
    let along = [
        Algorithm::Chain,
        Algorithm::Ring,
        Algorithm::ScatterAllgather,
    ];
    if !along.contains(flat) {
        return own;
    }
    let hops = (1..call.size).map(|i| {
        let (_, curve) = machine.way(order.rank(i - 1), order.rank(i), false);
        curve.of(0.0).alpha_ns()
    });
    let around = hops.sum::<f64>();
    own.max(match call.operation {
        Operation::Allreduce => 2.0 * around,
        _ => around,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Hierarchy, Tree};
    use crate::call::{Association, Call};
    use crate::choose::{candidates, choose_within};
    use crate::cost::{Link, simulate};
    use std::sync::Arc;

    /// Nodes of `width` ranks, which share a way out.
    fn machine(nodes: u32, width: u32) -> Machine {
        let level = |latency_ns, overhead_ns, shared_per_byte_ns| Link {
            latency_ns,
            overhead_ns,
            gap_ns: 40.0,
            per_byte_ns: 0.08,
            shared_per_byte_ns,
            ..Link::default()
        };
        let links = vec![level(80.0, 40.0, 0.0), level(1500.0, 200.0, 0.04)];
        let mut machine = Machine::regular(&[nodes, width], links, |r| r * 5 % (nodes * width));
        machine.combine = 0.1.into();
        machine.copy = 0.05.into();
        machine.eager_bytes = 8192.0;
        machine
    }

    fn exactly(plan: &Plan, sizes: &Sizes, machine: &Machine) -> f64 {
        let time = simulate(plan, sizes, machine, Model::LogGp);
        time.expect("a plan that ends").last_ns
    }

    /// Every candidate in every number of segments, played to its end: none is better than
    /// what is chosen, and that is predicted as it is played.
    #[test]
    fn nothing_that_is_not_played_would_be_chosen() {
        for (nodes, width) in [(3, 4), (2, 8), (1, 6)] {
            let (machine, ranks) = (machine(nodes, width), nodes * width);
            for (operation, bytes) in [
                (Operation::Barrier, 0),
                (Operation::Bcast, 8),
                (Operation::Bcast, 1 << 18),
                (Operation::Reduce, 1 << 16),
                (Operation::Allreduce, 64),
                (Operation::Allreduce, 1 << 20),
            ] {
                let call = Call::new(operation, ranks).requires(Association::Any);
                let sizes = Sizes::Equal(bytes);
                let choice = choose_within((1 << 40, true), &call, &sizes, &machine, Model::LogGp);
                let choice = choice.expect("a plan");
                assert_eq!(choice.ns(), exactly(choice.plan(), &sizes, &machine));
                for algorithm in candidates(&call, &machine, bytes).0 {
                    let cuts = (0..=3).map(|k| 1u32 << (2 * k));
                    for segments in cuts.filter(|s| u64::from(*s) <= bytes.max(1)) {
                        let plan = Plan::new(call.clone(), algorithm.clone(), segments);
                        let plan = plan.expect("suitable");
                        if plan.segments() == segments {
                            let ns = exactly(&plan, &sizes, &machine);
                            assert!(
                                choice.ns() <= 1.01 * ns,
                                "{} in {segments} takes {ns} ns:\n{choice}",
                                plan.algorithm()
                            );
                        }
                    }
                }
            }
        }
    }

    /// What the first segments say of all, where links are not crossed again and again.
    #[test]
    fn the_pace_of_some_segments_is_that_of_all() {
        let machine = machine(5, 4);
        for operation in [Operation::Bcast, Operation::Allreduce] {
            let call = Call::new(operation, 20).requires(Association::Any);
            let sizes = Sizes::Equal(1 << 20);
            let trees = [Tree::Chain, Tree::Binomial, Tree::Linear];
            for tree in trees {
                let levels = Hierarchy::new(&machine.places, 0, &[tree]);
                let algorithm = Algorithm::Hierarchical(Arc::new(levels));
                let plan = Plan::new(call.clone(), algorithm, 256).expect("suitable");
                let joined = Prepared::of(plan.clone()).expect("a plan that joins");
                let mut search = Search::new(&sizes, &machine, Model::LogGp, u64::MAX);
                let ns = search.time(&joined, AHEAD, f64::INFINITY);
                let ns = ns.expect("a plan that ends").expect("no limit");
                let all = exactly(&plan, &sizes, &machine);
                assert!(
                    (ns / all - 1.0).abs() < 0.2,
                    "{}: {ns} ns, not {all}",
                    plan.algorithm()
                );
                assert_eq!(search.left, u64::MAX - 16 * u64::from(joined.graph.total));
            }
        }
    }
}
