//! Which plan: the cheapest by prediction, among those that keep what is required.
//!
//! Nothing here has a threshold. Candidates are all algorithms that are for the call,
//! in one segment and in several; each is played on the machine, and the lower
//! envelope of the predicted times is the choice. All ranks that have the same
//! machine make the same choice.
//!
//! What would take too long to play is bounded from below; if that is longer than the
//! best, the candidate is out, else it is left out by name.

use crate::algorithms::{Across, Algorithm, Hierarchy, Plan, Tree};
use crate::call::{Call, Operation};
use crate::cost::{Aside, Machine, Model, Piecewise, Sizes, simulate_parts, tree_ns};
use crate::group::{Group, Permutation};
use crate::joints::{Joined, Joint, island_places, order};
use crate::plan::{Buffer, Part, Step};
use crate::rehearsal::Rehearsal;
use crate::synthesis::{Matrix, adapted_barrier, adapted_tree, earliest_completion};
use std::fmt;
use std::sync::Arc;

/// A plan and its predicted time.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Predicted, in ns.
    pub ns: f64,
    /// On a machine of devices: buffers are copied to the host before and back behind, and
    /// the plan is one of the host's memory.
    pub through_host: bool,
}

impl Candidate {
    /// Its algorithm, and where it works if that is not where the buffers are.
    pub fn name(&self) -> String {
        match self.through_host {
            true => format!("{}, through the host", self.plan.algorithm()),
            false => self.plan.algorithm().to_string(),
        }
    }
}

/// What was chosen, and why.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Bytes of a contribution, or of the vector.
    pub bytes: u64,
    /// By time, the chosen one first; one per algorithm, with its best number of
    /// segments.
    pub ranking: Vec<Candidate>,
    /// What was not considered, and the reason.
    pub left_out: Vec<(String, String)>,
}

impl Choice {
    /// The chosen plan.
    pub fn plan(&self) -> &Plan {
        &self.ranking[0].plan
    }

    /// Its predicted time, in ns.
    pub fn ns(&self) -> f64 {
        self.ranking[0].ns
    }

    /// Whether buffers go through the host's memory: see [`Candidate::through_host`].
    pub fn through_host(&self) -> bool {
        self.ranking[0].through_host
    }

    /// The next best.
    pub fn runner_up(&self) -> Option<&Candidate> {
        self.ranking.get(1)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan();
        let call = plan.call();
        writeln!(
            f,
            "{} of {} bytes on {} ranks: {}",
            call.operation.name(),
            self.bytes,
            call.size,
            self.ranking[0].name()
        )?;
        for (at, candidate) in self.ranking.iter().enumerate() {
            let word = match at {
                0 => "chosen",
                1 => "runner-up",
                _ => "",
            };
            let segments = match candidate.plan.segments() {
                1 => "1 segment".into(),
                n => format!("{n} segments"),
            };
            writeln!(
                f,
                "  {word:<10} {:>12.3} us  {}, {segments}",
                candidate.ns / 1000.0,
                candidate.name()
            )?;
        }
        for (name, reason) in &self.left_out {
            writeln!(f, "  {:<10} {:>12}     {name}: {reason}", "left out", "")?;
        }
        Ok(())
    }
}

/// For one choice, at most so many step instances are played: some seconds.
const MOST_INSTANCES: u64 = 16_000_000;
/// Trees are made from costs of pairs for up to so many ranks.
const MOST_DENSE: u32 = 512;
/// Clusters are apart by more than this share of the diameter; 0.35 to 0.4 is what the
/// literature recommends.
const SPARSENESS: f64 = 0.35;
/// Of devices, so many innermost levels are tried as one.
const MOST_MERGED: usize = 2;
/// Segments are tried in powers of two up to this.
const MOST_SEGMENTS: u32 = 1024;

/// All algorithms that are for a call on a machine, and why others are not.
pub fn candidates(
    call: &Call,
    machine: &Machine,
    bytes: u64,
) -> (Vec<Algorithm>, Vec<(String, String)>) {
    let mut all = Algorithm::FLAT.to_vec();
    all.push(Algorithm::Between);
    let depth = machine.places[0].len();
    let reach = |level: usize| machine.links[level].of(bytes as f64).reach(bytes as f64);
    // Of one link for all; levels are taken one by one below.
    if reach(depth) > 1 && call.size > 3 {
        all.push(Algorithm::Postal(reach(depth)));
    }
    if depth > 0 && call.first_side.is_none() {
        let root = if call.operation.rooted() {
            call.root
        } else {
            0
        };
        let mut shapes: Vec<Vec<Tree>> = [Tree::Binomial, Tree::Chain, Tree::Linear]
            .map(|tree| vec![tree])
            .to_vec();
        for segments in [1, 16] {
            shapes.push(by_formula(machine, call.size, bytes, segments));
        }
        let postal = |level| match reach(level) {
            1 => Tree::Binomial,
            reach => Tree::Postal(reach),
        };
        shapes.push((0..=depth).map(postal).collect());
        shapes.dedup();
        let places = &machine.places[..call.size as usize];
        let order = Arc::new(Permutation::by_place(places, root));
        let flat = Algorithm::FLAT.map(|f| Algorithm::Permuted(order.clone(), Box::new(f)));
        all.extend(flat.into_iter().filter(|a| a.keeps(call).is_some()));
        if call.size <= MOST_DENSE {
            // Made for ranks in the order of their places: ties are broken alike, wherever
            // which rank is.
            let ranks = Group::Permuted(order.clone());
            let real = |index: u32| ranks.rank(index);
            let in_order = machine.of_ranks(order.order());
            let matrix = Matrix::of_machine(&in_order, call.size, bytes);
            let mut adapted = vec![earliest_completion(&matrix, 0, bytes)];
            adapted.push(match call.operation {
                Operation::Barrier => adapted_barrier(&matrix, SPARSENESS),
                _ => adapted_tree(&matrix, 0, bytes, SPARSENESS),
            });
            let adapted = adapted.into_iter().map(|a| a.renamed(real));
            all.extend(adapted.map(|a| Algorithm::Adapted(Arc::new(a))));
        }
        for trees in shapes {
            let levels = Hierarchy::new(places, root, &trees);
            let exchanges = levels.levels() > 1 && levels.widest(levels.levels() - 1) > 3;
            let across = exchanges.then(|| levels.clone().with_across(Across::Exchange));
            for levels in [levels].into_iter().chain(across) {
                let algorithm = Algorithm::Hierarchical(Arc::new(levels));
                if !all.contains(&algorithm) {
                    all.push(algorithm);
                }
            }
            if machine.aside.is_none() {
                continue;
            }
            for merged in 0..=depth.min(MOST_MERGED) {
                let levels = Arc::new(Hierarchy::merged(places, merged, root, &trees));
                let copies = (1..levels.levels() as u32)
                    .map(|from| Algorithm::HostLeaders(levels.clone(), from));
                let mut more: Vec<Algorithm> = copies.collect();
                more.push(Algorithm::Hierarchical(levels));
                more.retain(|one| !all.contains(one));
                all.extend(more);
            }
        }
    }
    if call.first_side.is_none() && machine.places.len() == call.size as usize {
        along_links(call, machine, bytes, &mut all);
    }
    let mut left_out = Vec::new();
    all.retain(|algorithm| match algorithm.keeps(call) {
        None => false,
        Some(kept) if call.operation.reduces() && kept < call.required => {
            let reason = format!("keeps association {kept:?}, not {:?}", call.required);
            left_out.push((algorithm.to_string(), reason));
            false
        }
        Some(_) => true,
    });
    (all, left_out)
}

/// Where links of their own join devices: flat algorithms whose neighbours are joined, trees
/// over islands of links, and these with copies on the host between islands.
fn along_links(call: &Call, machine: &Machine, bytes: u64, all: &mut Vec<Algorithm>) {
    let alike = |joined: &Arc<Joined>| joined.joints.are_alike();
    let Some(islands) = island_places(machine) else {
        return;
    };
    if machine.joined.as_ref().is_none_or(alike) {
        return;
    }
    let root = if call.operation.rooted() {
        call.root
    } else {
        0
    };
    let mut orders: Vec<Permutation> = Vec::new();
    for (closed, name) in [(false, "the order of links"), (true, "a ring of links")] {
        let order = Permutation::of(order(machine, root, bytes, closed)).named(name);
        if orders.iter().all(|known| known.order() != order.order()) {
            orders.push(order);
        }
    }
    for order in orders.iter().cloned().map(Arc::new) {
        let flat = Algorithm::FLAT.map(|f| Algorithm::Permuted(order.clone(), Box::new(f)));
        all.extend(flat.into_iter().filter(|a| a.keeps(call).is_some()));
    }
    let shapes: [&[Tree]; 5] = [
        &[Tree::Chain],
        &[Tree::Binomial],
        &[Tree::Linear],
        &[Tree::Chain, Tree::Binomial],
        &[Tree::Linear, Tree::Chain],
    ];
    for trees in shapes {
        for merged in 0..islands[0].len().min(MOST_MERGED) {
            let levels = Arc::new(Hierarchy::by_links(&islands, merged, &orders[0], trees));
            let copies = (1..levels.levels() as u32)
                .map(|from| Algorithm::HostLeaders(levels.clone(), from));
            // Nothing is outside of one island.
            let outside = levels.widest(levels.levels() - 1) > 1;
            let mut more: Vec<Algorithm> = match machine.aside {
                Some(_) if outside => copies.collect(),
                _ => Vec::new(),
            };
            more.push(Algorithm::Hierarchical(levels));
            more.retain(|one| !all.contains(one));
            all.extend(more);
        }
    }
}

/// Per level the shape that is cheapest by the closed formulas.
fn by_formula(machine: &Machine, size: u32, bytes: u64, segments: u32) -> Vec<Tree> {
    let depth = machine.places[0].len();
    let levels = Hierarchy::new(&machine.places[..size as usize], 0, &[Tree::Linear]);
    let shapes = [Tree::Linear, Tree::Chain, Tree::KAry(2), Tree::Binomial];
    (0..=depth)
        .map(|level| {
            let widest = levels.widest(level.min(levels.levels() - 1));
            let time = |tree: &Tree| {
                let segment = bytes as f64 / f64::from(segments);
                let link = machine.links[level].of(segment);
                tree_ns(*tree, widest, segments, segment, link)
            };
            let by_time = |a: &&Tree, b: &&Tree| time(a).total_cmp(&time(b));
            *shapes.iter().min_by(by_time).expect("there are shapes")
        })
        .collect()
}

/// Chooses a plan.
///
/// # Errors
/// If no algorithm is for the call; the message says which were left out.
pub fn choose(
    call: &Call,
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
) -> Result<Choice, crate::Unsuitable> {
    choose_within(MOST_INSTANCES, call, sizes, machine, model)
}

/// The same, playing no more than about so many instances of steps.
pub(crate) fn choose_within(
    most: u64,
    call: &Call,
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
) -> Result<Choice, crate::Unsuitable> {
    let bytes = match sizes {
        Sizes::Equal(bytes) => *bytes,
        Sizes::Each(each) => each.iter().sum::<u64>() / each.len().max(1) as u64,
    };
    let (algorithms, mut left_out) = candidates(call, machine, bytes);
    let through = match &machine.aside {
        Some(aside) => through_host(most, call, sizes, aside, model)?,
        None => Vec::new(),
    };
    let mut left = most;
    let mut ranking: Vec<Candidate> = Vec::new();
    let mut unplayed = Vec::new();
    // Whole messages first, short plans before long ones.
    let mut plans = Vec::new();
    for algorithm in algorithms {
        let plan = Plan::new(call.clone(), algorithm, 1)?;
        plans.push((instances(&plan), plan));
    }
    plans.sort_by_key(|(instances, _)| *instances);
    let total: u64 = plans.iter().map(|(instances, _)| *instances).sum();
    let rehearsal = match total > most {
        true => Rehearsal::of(most, call, sizes, machine, model)?,
        false => None,
    };
    if let Some(rehearsal) = &rehearsal {
        // Few are left to be played.
        left *= 2;
        plans = rehearsal.sort(plans, &mut left_out)?;
    }
    for (instances, plan) in plans {
        let best = ranking.iter().map(|c| c.ns).fold(f64::INFINITY, f64::min);
        if instances > left || at_least(&plan, sizes, machine) > best {
            unplayed.push(plan);
            continue;
        }
        left -= instances;
        let ns = play(&plan, sizes, machine, model)?;
        ranking.push(Candidate {
            plan,
            ns,
            through_host: false,
        });
    }
    // Then in segments, the best first: four times as many while that gains, then
    // twice and half as many as the best.
    ranking.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    // On a neighbourhood nobody knows the bytes of others, so messages are whole.
    let cuts = match call.operation.of_neighbors() {
        true => &mut [],
        false => &mut ranking[..],
    };
    for candidate in cuts {
        let algorithm = candidate.plan.algorithm().clone();
        let mut better = |segments: u32, best: &mut Candidate| {
            let plan = Plan::new(call.clone(), algorithm.clone(), segments)?;
            let needed = instances(&plan);
            if plan.segments() != segments || needed > left {
                return Ok(false);
            }
            left -= needed;
            let ns = play(&plan, sizes, machine, model)?;
            let gains = ns < best.ns;
            if gains {
                (best.plan, best.ns) = (plan, ns);
            }
            Ok(gains)
        };
        // What was rehearsed has about as many as are best.
        let mut segments = match rehearsal {
            Some(_) => MOST_SEGMENTS + 1,
            None => 4,
        };
        while segments <= MOST_SEGMENTS && better(segments, candidate)? {
            segments *= 4;
        }
        let found = candidate.plan.segments();
        better(2 * found, candidate)?;
        if found > 1 {
            better(found / 2, candidate)?;
        }
    }
    ranking.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    distrust(&mut ranking, machine.error, &mut left_out);
    ranking.extend(through);
    ranking.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    for plan in unplayed {
        let bound = at_least(&plan, sizes, machine);
        let reason = match ranking.first() {
            Some(best) if bound > best.ns => {
                format!("takes at least {:.1} us", bound / 1000.0)
            }
            _ => "too many steps to play".into(),
        };
        left_out.push((plan.algorithm().to_string(), reason));
    }
    if ranking.is_empty() {
        let name = call.operation.name();
        return Err(crate::Unsuitable(format!(
            "no algorithm for this {name} (left out: {left_out:?})"
        )));
    }
    Ok(Choice {
        bytes,
        ranking,
        left_out,
    })
}

/// What plans of the host's memory take with the copies before and behind, as candidates
/// for memory of devices.
fn through_host(
    most_instances: u64,
    call: &Call,
    sizes: &Sizes,
    aside: &Aside,
    model: Model,
) -> Result<Vec<Candidate>, crate::Unsuitable> {
    // The rank that copies most: the root, or another.
    let others = (call.root + 1) % call.size;
    let most = |pieces: &dyn Fn(u32) -> u32| {
        let pieces = pieces(call.root).max(pieces(others));
        sizes.uncut() * f64::from(pieces)
    };
    let (before, behind) = match call.operation {
        Operation::Bcast => (sizes.uncut(), sizes.uncut()),
        _ => (
            most(&|rank| call.pieces(rank, call.input(rank), 1)),
            most(&|rank| call.pieces(rank, Buffer::Recv, 1)),
        ),
    };
    let copies = |curve: &Piecewise, bytes: f64| match bytes > 0.0 {
        true => curve.at(bytes),
        false => 0.0,
    };
    let ns = copies(&aside.to_host, before) + copies(&aside.to_device, behind);
    let mut ranking = choose_within(most_instances, call, sizes, &aside.host, model)?.ranking;
    for candidate in &mut ranking {
        candidate.ns += ns;
        candidate.through_host = true;
    }
    Ok(ranking)
}

/// Leaves out what was made from the costs themselves and gains no more, beside the best of
/// the others, than twice what predictions are off by: it would follow their errors.
fn distrust(ranking: &mut Vec<Candidate>, error: f64, left_out: &mut Vec<(String, String)>) {
    let made = |c: &Candidate| matches!(c.plan.algorithm(), Algorithm::Adapted(_));
    let Some(best) = ranking.iter().find(|c| !made(c)).map(|c| c.ns) else {
        return;
    };
    ranking.retain(|candidate| {
        let gain = 1.0 - candidate.ns / best;
        let trusted = !made(candidate) || gain > 2.0 * error;
        if !trusted {
            let reason = format!(
                "gains {:.1} %, not twice the {:.1} % that predictions are off by",
                100.0 * gain,
                100.0 * error
            );
            left_out.push((candidate.plan.algorithm().to_string(), reason));
        }
        trusted
    });
}

/// Step instances of a plan, about: ranks differ, the root is among the busiest.
pub(crate) fn instances(plan: &Plan) -> u64 {
    let call = plan.call();
    let steps = |rank| plan.part(rank).steps().len();
    let most = steps(call.root).min(2 * steps(call.size / 2) + 8);
    most as u64 * u64::from(call.size) * u64::from(plan.segments())
}

fn play(
    plan: &Plan,
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
) -> Result<f64, crate::Unsuitable> {
    let parts: Vec<Part> = (0..plan.call().size).map(|r| plan.part(r)).collect();
    simulate_parts(plan, &parts, sizes, machine, model)
        .map(|time| time.last_ns)
        .map_err(|fault| crate::Unsuitable(format!("{}: {fault}", plan.algorithm())))
}

/// What no plan of this kind can fall below: one rank's messages at its own end;
/// around a ring, the way of a piece through all ranks.
fn at_least(plan: &Plan, sizes: &Sizes, machine: &Machine) -> f64 {
    let call = plan.call();
    let part = plan.part(call.root);
    // By the bus, by links into switches, by links to one device: these carry at a time.
    let mut own = [0.0f64; 3];
    for step in part.steps() {
        if let Step::Send { to, data, .. } = *step {
            let m = sizes.bytes(call, &part, data);
            let (joint, curve) = machine.way(part.rank, to, false);
            let link = curve.of(m);
            let wire = link.per_byte_ns * m;
            let (port, wire) = match joint {
                None => (0, wire),
                Some(Joint::Switched(_)) => (1, wire),
                Some(Joint::Direct(_) | Joint::Same) => (2, 0.0),
            };
            own[port] += wire.max(link.gap_ns).max(link.work_ns(m));
        }
    }
    let own = own.into_iter().fold(0.0, f64::max);
    let order = match plan.algorithm() {
        Algorithm::Ring => Group::all(call.size),
        Algorithm::Permuted(order, flat) if **flat == Algorithm::Ring => {
            Group::Permuted(order.clone())
        }
        _ => return own * f64::from(part.segments),
    };
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

/// A range of sizes with one plan.
#[derive(Clone, Debug)]
pub struct Range {
    /// From this many bytes on.
    pub from_bytes: u64,
    /// By which algorithm, in how many segments.
    pub plan: Plan,
}

/// The lower envelope over sizes: who is cheapest from where on.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// In order of size; the first is from 0 on.
    pub ranges: Vec<Range>,
}

impl Envelope {
    /// Chooses at the given sizes, and between two that choose differently finds by
    /// bisection where one overtakes the other.
    ///
    /// # Errors
    /// As [`choose`].
    pub fn of(
        call: &Call,
        sizes: &[u64],
        machine: &Machine,
        model: Model,
    ) -> Result<Self, crate::Unsuitable> {
        let mut ranges: Vec<Range> = Vec::new();
        let mut below = 0;
        for &bytes in sizes {
            let choice = choose(call, &Sizes::Equal(bytes), machine, model)?;
            let plan = choice.plan().clone();
            let known = ranges.last().map(|range| range.plan.clone());
            match known {
                Some(known) if same(&known, &plan) => {}
                None => ranges.push(Range {
                    from_bytes: 0,
                    plan,
                }),
                Some(known) => {
                    let from_bytes = overtakes(&known, &plan, below, bytes, machine, model);
                    ranges.push(Range { from_bytes, plan });
                }
            }
            below = bytes;
        }
        Ok(Self { ranges })
    }

    /// The plan for a size.
    pub fn plan(&self, bytes: u64) -> &Plan {
        let at = self.ranges.partition_point(|r| r.from_bytes <= bytes);
        &self.ranges[at.max(1) - 1].plan
    }
}

fn same(a: &Plan, b: &Plan) -> bool {
    (a.algorithm(), a.segments()) == (b.algorithm(), b.segments())
}

fn overtakes(a: &Plan, b: &Plan, low: u64, high: u64, machine: &Machine, model: Model) -> u64 {
    let parts =
        |plan: &Plan| -> Vec<Part> { (0..plan.call().size).map(|rank| plan.part(rank)).collect() };
    let (of_a, of_b) = (parts(a), parts(b));
    let time = |plan: &Plan, parts: &[Part], bytes| {
        let played = simulate_parts(plan, parts, &Sizes::Equal(bytes), machine, model);
        played.map_or(f64::INFINITY, |t| t.last_ns)
    };
    let (mut low, mut high) = (low, high);
    // To within 2 %: sizes that close cost the same.
    while high - low > 1 + low / 64 {
        let middle = low + (high - low) / 2;
        if time(b, &of_b, middle) < time(a, &of_a, middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}
