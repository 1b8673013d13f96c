//! Plan selection for a machine that was seen in several states: least regret.
//!
//! The cores of a virtual machine are now near to each other and now far, as its host moves
//! them, and costs were measured in either state. A plan that is best in one may take several
//! times the best in the other, and the state changes while a job runs. So of all candidates
//! that one is chosen whose largest ratio to the best of a state is least:
//!
//! ```text
//! regret(plan) = max over states of  time(plan, state) / min over plans of time(., state)
//! ```
//!
//! Candidates are what is found for each state alone, in as many segments as are best there, in
//! numbers of segments between, and, of those that lose least, in numbers beyond. In one state it
//! is the cheapest, as in `choose.rs`.
//!
//! # Sources
//! L. J. Savage, "The Theory of Statistical Decision", Journal of the American Statistical
//! Association 46, 1951: minimax regret. Here it is a ratio, since times of all sizes count alike.

use crate::algorithms::{Algorithm, Plan, Unsuitable};
use crate::call::Call;
use crate::choose::{
    Candidate, Choice, MOST_INSTANCES, choose, copies_ns, in_one_kernel, least_segments,
};
use crate::cost::{Machine, Model, Sizes};
use crate::search::{BEHIND, MOST_SEGMENTS, Search, steps};

/// Maximum number of step instances, some milliseconds of work, that are all played in the other
/// states; of more, some plans are left out.
const MOST_UNPRUNED: u64 = 1 << 16;

/// Algorithms whose number of segments is refined, and step instances that are played for that.
const REFINED: usize = 4;
const REFINED_INSTANCES: u64 = 1 << 20;

/// A plan and its predicted times, by state; none where it was not played.
struct Row {
    plan: Plan,
    through_host: bool,
    ns: Vec<Option<f64>>,
}

impl Row {
    fn is(&self, plan: &Plan, through_host: bool) -> bool {
        let same =
            |a: &Plan, b: &Plan| a.segments() == b.segments() && a.algorithm() == b.algorithm();
        self.through_host == through_host && same(&self.plan, plan)
    }

    /// Largest and mean ratio to these times, as far as its own are known.
    fn ratios(&self, best: &[f64]) -> (f64, f64) {
        let known = self.ns.iter().zip(best);
        let ratios = known.filter_map(|(ns, best)| Some((*ns)? / best.max(f64::MIN_POSITIVE)));
        let (mut most, mut sum, mut n) = (0.0f64, 0.0, 0.0f64);
        for ratio in ratios {
            (most, sum, n) = (most.max(ratio), sum + ratio, n + 1.0);
        }
        (most, sum / n.max(1.0))
    }
}

/// Chooses a plan for a machine in any of these states: the one whose largest ratio to the
/// best of a state is least, of equal ones the one with the least mean. Predicted times of the
/// result are those in the first state.
///
/// # Errors
/// As [`choose`].
///
/// # Panics
/// If there is no state.
pub fn choose_for_all(
    call: &Call,
    sizes: &Sizes,
    states: &[&Machine],
    model: Model,
) -> Result<Choice, Unsuitable> {
    if let [machine] = states {
        return choose(call, sizes, machine, model);
    }
    let mut choices = Vec::new();
    for machine in states {
        choices.push(choose(call, sizes, machine, model)?);
    }
    let bytes = choices[0].bytes;
    let mut table = Table::of(&choices);
    let mut players = Players {
        sizes,
        states,
        model,
        left: MOST_INSTANCES,
    };
    let mut left_out = table.play(&mut players)?;
    players.left = REFINED_INSTANCES;
    table.refine(call, &mut players)?;
    for (name, reason) in choices.into_iter().flat_map(|choice| choice.left_out) {
        let is = |known: &str| known == name;
        let played = |row: &Row| is(&row.plan.algorithm().to_string());
        if !left_out.iter().any(|(known, _)| is(known)) && !table.rows.iter().any(played) {
            left_out.push((name, reason));
        }
    }
    let mut ranking = table.ranking();
    let error = states.iter().map(|m| m.error).fold(0.0, f64::max);
    distrust(&mut ranking, error, &mut left_out);
    prefer_flags(&mut ranking, states[0]);
    if ranking.is_empty() {
        let name = call.operation.name();
        return Err(Unsuitable(format!(
            "no algorithm for this {name} in all states (left out: {left_out:?})"
        )));
    }
    Ok(Choice {
        bytes,
        ranking,
        left_out,
    })
}

/// What was found for each state.
struct Table {
    rows: Vec<Row>,
    /// The best time of each state.
    best: Vec<f64>,
}

impl Table {
    fn of(choices: &[Choice]) -> Table {
        let mut table = Table {
            rows: Vec::new(),
            best: Vec::new(),
        };
        for (state, choice) in choices.iter().enumerate() {
            let times = choice.ranking.iter().map(|c| c.ns);
            table.best.push(times.fold(f64::INFINITY, f64::min));
            for candidate in &choice.ranking {
                let row = table.add(&candidate.plan, candidate.through_host, choices.len());
                row.ns[state] = Some(candidate.ns);
            }
        }
        table
    }

    /// The row of a plan, which is new if there is none.
    fn add(&mut self, plan: &Plan, through_host: bool, states: usize) -> &mut Row {
        let known = self.rows.iter().position(|r| r.is(plan, through_host));
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row {
                plan: plan.clone(),
                through_host,
                ns: vec![None; states],
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Plays all rows in the states in which they were not, the promising ones first. Returns
    /// those that are left out: long ones that lose too much in a state already.
    fn play(&mut self, players: &mut Players) -> Result<Vec<(String, String)>, Unsuitable> {
        self.add_between(players.states.len())?;
        let instances = |row: &Row| steps(&row.plan) * u64::from(row.plan.segments());
        let total: u64 = self.rows.iter().map(instances).sum();
        let long = total > MOST_UNPRUNED;
        let best = self.best.clone();
        let promise = |row: &Row| row.ratios(&best).0;
        self.rows.sort_by(|a, b| promise(a).total_cmp(&promise(b)));
        let (mut kept, mut left_out) = (Vec::new(), Vec::new());
        let mut least = f64::INFINITY;
        for mut row in std::mem::take(&mut self.rows) {
            let hopeless = BEHIND * least;
            for state in 0..players.states.len() {
                if row.ns[state].is_some() || (long && row.ratios(&best).0 > hopeless) {
                    continue;
                }
                let played = players.play(&row, state)?;
                row.ns[state] = played.filter(|ns| ns.is_finite());
                if row.ns[state].is_none() {
                    break;
                }
            }
            if row.ns.iter().all(Option::is_some) {
                least = least.min(row.ratios(&best).0);
                kept.push(row);
            } else {
                let reason = match row.ratios(&best).0 {
                    most if most > hopeless => format!("takes {most:.1} times the best in a state"),
                    _ => "was not played in all states".into(),
                };
                left_out.push((row.plan.algorithm().to_string(), reason));
            }
        }
        self.rows = kept;
        // One may be better than what a state's own search has found.
        for (state, best) in self.best.iter_mut().enumerate() {
            *best = self
                .rows
                .iter()
                .filter_map(|r| r.ns[state])
                .fold(*best, f64::min);
        }
        left_out.retain(|(name, _)| {
            let like = |row: &Row| row.plan.algorithm().to_string() == *name;
            !self.rows.iter().any(like)
        });
        Ok(left_out)
    }

    /// The algorithms that lose least, in twice and in half as many segments while that gains:
    /// a number that is best in no state may lose least over all.
    fn refine(&mut self, call: &Call, players: &mut Players) -> Result<(), Unsuitable> {
        // On a neighborhood nobody knows the bytes of others, so messages are whole.
        if call.operation.of_neighbors() {
            return Ok(());
        }
        let mut refined: Vec<(Algorithm, bool)> = Vec::new();
        for _ in 0..REFINED {
            let fresh = |row: &&Row| {
                let is = |(algorithm, through_host): &(Algorithm, bool)| {
                    row.plan.algorithm() == algorithm && row.through_host == *through_host
                };
                !refined.iter().any(is)
            };
            let regret = |row: &Row| row.ratios(&self.best).0;
            let by_regret = |a: &&Row, b: &&Row| regret(a).total_cmp(&regret(b));
            let Some(first) = self.rows.iter().filter(fresh).min_by(by_regret) else {
                break;
            };
            refined.push((first.plan.algorithm().clone(), first.through_host));
            let (start, first) = (first.plan.clone(), (regret(first), first.through_host));
            for halves in [false, true] {
                let (mut segments, (mut least, through_host)) = (start.segments(), first);
                loop {
                    segments = if halves { segments / 2 } else { segments * 2 };
                    let found = self.cut(&start, through_host, segments, players)?;
                    match found {
                        Some(regret) if regret < least => least = regret,
                        _ => break,
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds a plan in this number of segments, if it is new and can be; what it loses.
    fn cut(
        &mut self,
        plan: &Plan,
        through_host: bool,
        segments: u32,
        players: &mut Players,
    ) -> Result<Option<f64>, Unsuitable> {
        if !(1..=MOST_SEGMENTS).contains(&segments) {
            return Ok(None);
        }
        let plan = Plan::new(plan.call().clone(), plan.algorithm().clone(), segments)?;
        let known = self.rows.iter().any(|row| row.is(&plan, through_host));
        if known || plan.segments() != segments || !players.fits(&plan) {
            return Ok(None);
        }
        let mut row = Row {
            plan,
            through_host,
            ns: vec![None; players.states.len()],
        };
        for state in 0..players.states.len() {
            row.ns[state] = players.play(&row, state)?.filter(|ns| ns.is_finite());
            if row.ns[state].is_none() {
                return Ok(None);
            }
        }
        for (best, ns) in self.best.iter_mut().zip(&row.ns) {
            *best = ns.map_or(*best, |ns| best.min(ns));
        }
        let regret = row.ratios(&self.best).0;
        self.rows.push(row);
        Ok(Some(regret))
    }

    /// Where two states have an algorithm in different numbers of segments, the powers of two
    /// between them, too.
    fn add_between(&mut self, states: usize) -> Result<(), Unsuitable> {
        let mut between = Vec::new();
        for row in &self.rows {
            let (algorithm, segments) = (row.plan.algorithm(), row.plan.segments());
            let like = |other: &&Row| {
                other.through_host == row.through_host && other.plan.algorithm() == algorithm
            };
            let others = self.rows.iter().filter(like).map(|r| r.plan.segments());
            let most = others.max().unwrap_or(segments);
            let mut more = segments;
            while more < most / 2 {
                more *= 2;
                let plan = Plan::new(row.plan.call().clone(), algorithm.clone(), more)?;
                between.push((plan, row.through_host));
            }
        }
        for (plan, through_host) in between {
            self.add(&plan, through_host, states);
        }
        Ok(())
    }

    /// By regret, then by the mean of the ratios; of each algorithm the best number of segments.
    fn ranking(self) -> Vec<Candidate> {
        let best = self.best;
        let mut all: Vec<(f64, f64, Row)> = (self.rows.into_iter())
            .map(|row| {
                let (regret, mean) = row.ratios(&best);
                (regret, mean, row)
            })
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut ranking: Vec<Candidate> = Vec::new();
        for (regret, _, row) in all {
            let like = |c: &Candidate| {
                c.through_host == row.through_host && c.plan.algorithm() == row.plan.algorithm()
            };
            if !ranking.iter().any(like) {
                ranking.push(Candidate {
                    ns: row.ns[0].unwrap_or(f64::INFINITY),
                    plan: row.plan,
                    regret,
                    through_host: row.through_host,
                });
            }
        }
        ranking
    }
}

/// Plays plans in all states; `left` bounds the instances of steps.
struct Players<'a> {
    sizes: &'a Sizes,
    states: &'a [&'a Machine],
    model: Model,
    left: u64,
}

impl Players<'_> {
    /// What a plan takes in a state; none if that state has no costs for it, or it is too long.
    fn play(&mut self, row: &Row, state: usize) -> Result<Option<f64>, Unsuitable> {
        let (plan, machine) = (&row.plan, self.states[state]);
        if *plan.algorithm() == Algorithm::OneKernel {
            let Sizes::Equal(bytes) = *self.sizes else {
                return Ok(None);
            };
            return Ok(in_one_kernel(plan.call(), bytes, machine).map(|c| c.ns));
        }
        let (machine, copies) = match (&machine.aside, row.through_host) {
            (Some(aside), true) => (&aside.host, copies_ns(plan.call(), self.sizes, aside)),
            (None, true) => return Ok(None),
            (_, false) => (machine, 0.0),
        };
        if plan.algorithm().in_segment() && machine.segment.is_none() {
            return Ok(None);
        }
        let mut search = Search::new(self.sizes, machine, self.model, self.left);
        if !search.affords(steps(plan), plan.segments()) {
            return Ok(None);
        }
        let found = search.play(plan.clone(), f64::INFINITY)?;
        self.left = search.left;
        Ok(found.map(|found| found.candidate.ns + copies))
    }

    /// Whether the pieces of a segment fit a slot, where they lie in one.
    fn fits(&self, plan: &Plan) -> bool {
        let bytes = self.sizes.mean();
        let fits = |machine: &&Machine| {
            plan.segments() >= least_segments(plan.call(), plan.algorithm(), machine, bytes)
        };
        self.states.iter().all(fits)
    }
}

/// Leaves out what was made from the costs themselves and gains no more, beside the best of
/// the others, than twice what predictions are off by: it would follow their errors.
pub(crate) fn distrust(
    ranking: &mut Vec<Candidate>,
    error: f64,
    left_out: &mut Vec<(String, String)>,
) {
    // Those through the host have been looked at among themselves.
    let here =
        |c: &Candidate| !c.through_host && !matches!(c.plan.algorithm(), Algorithm::OneKernel);
    let made = |c: &Candidate| here(c) && matches!(c.plan.algorithm(), Algorithm::Adapted(_));
    let others = ranking.iter().filter(|c| here(c) && !made(c));
    let Some(best) = others.map(|c| c.regret).min_by(f64::total_cmp) else {
        return;
    };
    ranking.retain(|candidate| {
        let gain = 1.0 - candidate.regret / best;
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

/// What a plan of messages gains at least, beside one whose flags lie in a segment.
const GAIN_OF_MESSAGES: f64 = 0.2;

/// Puts the best plan whose flags lie in a segment before plans of messages that gain less.
/// Messages take longer than predicted where they come before their receive, or one after the
/// other without an answer: 1.0 to 7 times as long between two ranks, measured calls in a row,
/// where plans with flags took 0.7 to 1.3 times as long. Where ranks share cores flags always go
/// before: of all calls and sizes of which 4 and 16 ranks on two cores were measured, only gathers
/// of 64 KiB took longer by them. So they do on neighborhoods, where ranks know too little of
/// others to choose. What peers read by the system is no slot, and has to be as quick.
pub(crate) fn prefer_flags(ranking: &mut [Candidate], machine: &Machine) {
    let Some(best) = ranking.first() else {
        return;
    };
    let limit = best.regret / (1.0 - GAIN_OF_MESSAGES);
    let always = best.plan.call().operation.of_neighbors() || machine.shared_cores.is_some();
    // What is through the host beside plans of devices has to be as quick.
    let slots = |c: &Candidate| !c.through_host && !c.plan.algorithm().reads_in_place();
    let within = |c: &Candidate| c.regret <= limit || always && slots(c);
    let flags = |c: &Candidate| c.plan.algorithm().in_segment() && within(c);
    if let Some(at) = ranking.iter().position(flags) {
        ranking[..=at].rotate_right(1);
    }
}

#[cfg(test)]
mod tests;
