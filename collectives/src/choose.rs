//! Plan selection: the cheapest predicted plan that keeps the required association.
//!
//! Nothing here has a threshold. Candidates are all algorithms that are for the call,
//! in one segment and in several; each is played on the machine, and the lower
//! envelope of the predicted times is the choice. All ranks that have the same
//! machine make the same choice.
//!
//! What would take too long to play is bounded from below; if that is longer than the
//! best, the candidate is out, else it is left out by name.

use crate::algorithms::blocks::of_places;
use crate::algorithms::{Across, Algorithm, Hierarchy, Plan, Tree};
use crate::call::{Call, Operation};
use crate::cost::{Aside, Machine, Model, Piecewise, Sizes, simulate_parts, tree_ns};
use crate::device_links::{Joined, clique_places, order};
use crate::group::{Group, Permutation};
use crate::plan::{Buffer, Part};
use crate::rehearsal::Rehearsal;
use crate::search::{Search, at_least, steps};
use crate::states::{distrust, prefer_flags};
use crate::synthesis::{Matrix, adapted_barrier, adapted_tree, earliest_completion};
use std::fmt;
use std::sync::Arc;

/// A plan and its predicted time.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Predicted, in ns; of a machine in several states, in the first of them.
    pub ns: f64,
    /// The largest ratio of its predicted time to the best one's, over the machine's states.
    pub regret: f64,
    /// On a machine of devices: buffers are copied to the host before and back behind, and
    /// the plan is one of the host's memory.
    pub through_host: bool,
}

impl Candidate {
    /// Where the buffers are, of one state.
    pub(crate) fn of(plan: Plan, ns: f64) -> Candidate {
        Candidate {
            plan,
            ns,
            regret: 1.0,
            through_host: false,
        }
    }

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
    /// By regret, which in one state is by time, one per algorithm with its best number of
    /// segments; the chosen one is first, which may be one with flags in a segment that is
    /// predicted to take a little longer than the next.
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
pub(crate) const MOST_INSTANCES: u64 = 16_000_000;
/// Where whole messages by all candidates take this share of them, it is rehearsed: each is
/// tried in several numbers of segments.
const UNREHEARSED: u64 = 32;
/// Trees are made from costs of pairs for up to so many ranks.
const MOST_DENSE: u32 = 512;
/// Clusters are apart by more than this share of the diameter. 0.35 to 0.4 is what the
/// literature recommends, and finds nodes; at 0.11 to 0.12 packages were told apart.
const SPARSENESS: [f64; 4] = [0.11, 0.2, 0.35, 0.4];
/// Of devices, so many innermost levels are tried as one.
const MOST_MERGED: usize = 2;

/// All algorithms that are for a call on a machine, and why others are not.
pub fn candidates(
    call: &Call,
    machine: &Machine,
    bytes: u64,
) -> (Vec<Algorithm>, Vec<(String, String)>) {
    let mut all = Algorithm::FLAT.to_vec();
    all.push(Algorithm::Between);
    if let Some(segment) = &machine.segment {
        all.extend([Algorithm::OnePhase, Algorithm::TwoPhases]);
        all.extend(
            of_places(call.size, &machine.places)
                .into_iter()
                .map(Algorithm::Blocks),
        );
        if segment.attach.is_some() && machine.reads_in_place(call.operation) {
            all.extend([Algorithm::Direct, Algorithm::DirectSlices]);
        }
    }
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
        if !order.is_identity() {
            let flat = Algorithm::FLAT.map(|f| Algorithm::Permuted(order.clone(), Box::new(f)));
            all.extend(flat.into_iter().filter(|a| a.keeps(call).is_some()));
        }
        if call.size <= MOST_DENSE {
            // Made for ranks in the order of their places: ties are broken alike, wherever
            // which rank is.
            let ranks = Group::Permuted(order.clone());
            let real = |index: u32| ranks.rank(index);
            let in_order = machine.of_ranks(order.order());
            let matrix = Matrix::of_machine(&in_order, call.size, bytes);
            // What goes up a tree goes against its edges.
            let matrix = match call.operation {
                Operation::Reduce => matrix.transposed(),
                _ => matrix,
            };
            let mut adapted = vec![earliest_completion(&matrix, 0, bytes)];
            adapted.extend(match call.operation {
                Operation::Barrier => adapted_barrier(&matrix, &SPARSENESS),
                _ => Some(adapted_tree(&matrix, 0, bytes, &SPARSENESS)),
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

/// Where links of their own join devices: flat algorithms whose neighbors are joined, trees
/// over NVLink cliques, and these with copies on the host between NVLink cliques.
fn along_links(call: &Call, machine: &Machine, bytes: u64, all: &mut Vec<Algorithm>) {
    let alike = |joined: &Arc<Joined>| joined.device_links.are_alike();
    let Some(cliques) = clique_places(machine) else {
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
        for merged in 0..cliques[0].len().min(MOST_MERGED) {
            let levels = Arc::new(Hierarchy::by_links(&cliques, merged, &orders[0], trees));
            let copies = (1..levels.levels() as u32)
                .map(|from| Algorithm::HostLeaders(levels.clone(), from));
            // Nothing is outside of one NVLink clique.
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
    choose_within((MOST_INSTANCES, true), call, sizes, machine, model)
}

/// The same, playing no more than about so many instances of steps, or as many again so that
/// the best is known exactly.
pub(crate) fn choose_within(
    (most, exact): (u64, bool),
    call: &Call,
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
) -> Result<Choice, crate::Unsuitable> {
    let bytes = sizes.mean();
    let (algorithms, mut left_out) = candidates(call, machine, bytes);
    let through = match &machine.aside {
        Some(aside) => through_host((most, exact), call, sizes, aside, model)?,
        None => Vec::new(),
    };
    let mut search = Search::new(sizes, machine, model, most);
    search.rehearses = !exact;
    let mut unplayed = Vec::new();
    // Whole messages first, short plans before long ones.
    let mut plans = Vec::new();
    for algorithm in algorithms {
        let segments = least_segments(call, &algorithm, machine, bytes);
        let plan = Plan::new(call.clone(), algorithm, segments)?;
        plans.push((steps(&plan), plan));
    }
    plans.sort_by_key(|(steps, _)| *steps);
    let total: u64 = plans.iter().map(|(steps, _)| *steps).sum();
    let rehearsal = match total > most / UNREHEARSED {
        true => Rehearsal::of(most, call, sizes, machine, model)?,
        false => None,
    };
    if let Some(rehearsal) = &rehearsal {
        plans = rehearsal.sort(plans, &search, &mut left_out)?;
    }
    let mut found = Vec::new();
    for (steps, plan) in plans {
        let enough = match rehearsal {
            Some(_) => search.enough(),
            None => f64::INFINITY,
        };
        let longest = match search.rehearses {
            true => search.enough(),
            false => search.best().min(enough),
        };
        let affords = search.affords(steps, plan.segments());
        if !affords || at_least(&plan, sizes, machine) > longest {
            unplayed.push(plan);
            continue;
        }
        let name = plan.algorithm().to_string();
        match search.play(plan, enough)? {
            Some(played) => found.push(played),
            None => left_out.push((name, format!("takes more than {:.1} us", enough / 1000.0))),
        }
    }
    found.sort_by(|a, b| a.candidate.ns.total_cmp(&b.candidate.ns));
    // On a neighborhood nobody knows the bytes of others, so messages are whole.
    if !call.operation.of_neighbors() {
        for one in &mut found {
            search.cut(one, rehearsal.is_some())?;
        }
    }
    if exact {
        search.left = most;
        search.settle(&mut found)?;
    }
    let mut ranking: Vec<Candidate> = found.into_iter().map(|f| f.candidate).collect();
    ranking.extend(through);
    ranking.extend(in_one_kernel(call, bytes, machine));
    let best = ranking.iter().map(|c| c.ns).fold(f64::INFINITY, f64::min);
    for candidate in &mut ranking {
        candidate.regret = candidate.ns / best.max(f64::MIN_POSITIVE);
    }
    ranking.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    distrust(&mut ranking, machine.error, &mut left_out);
    prefer_flags(&mut ranking, machine);
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

/// In how many segments the pieces of a rank fit its slot.
pub(crate) fn least_segments(
    call: &Call,
    algorithm: &Algorithm,
    machine: &Machine,
    bytes: u64,
) -> u32 {
    let (Some(segment), Some((share, pieces))) = (&machine.segment, algorithm.slot(call)) else {
        return 1;
    };
    let all = bytes.saturating_mul(share.into());
    let fits = |segments: &u32| segment.fits(all as f64, pieces, *segments);
    let powers = (0..=12).map(|log| 1u32 << log);
    powers.clone().find(fits).unwrap_or(1 << 12)
}

/// The reduction that is one kernel per rank, where devices can.
pub(crate) fn in_one_kernel(call: &Call, bytes: u64, machine: &Machine) -> Option<Candidate> {
    let kernel = machine.one_kernel.as_ref()?;
    let known = kernel.most_bytes >= bytes && machine.places.len() == call.size as usize;
    let plan = Plan::new(call.clone(), Algorithm::OneKernel, 1).ok()?;
    known.then(|| Candidate::of(plan, kernel.ns.at(bytes as f64)))
}

/// What plans of the host's memory take with the copies before and behind, as candidates
/// for memory of devices.
fn through_host(
    within: (u64, bool),
    call: &Call,
    sizes: &Sizes,
    aside: &Aside,
    model: Model,
) -> Result<Vec<Candidate>, crate::Unsuitable> {
    let ns = copies_ns(call, sizes, aside);
    let mut ranking = choose_within(within, call, sizes, &aside.host, model)?.ranking;
    for candidate in &mut ranking {
        candidate.ns += ns;
        candidate.through_host = true;
    }
    Ok(ranking)
}

/// What the copies to the host and back take.
pub(crate) fn copies_ns(call: &Call, sizes: &Sizes, aside: &Aside) -> f64 {
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
    copies(&aside.to_host, before) + copies(&aside.to_device, behind)
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
