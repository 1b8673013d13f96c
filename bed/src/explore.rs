//! All schedules of small jobs, up to a bound.
//!
//! The network holds everything, so a run is the choice of what moves next:
//! the program of a rank, its progress, the arrival of one message, the end of
//! one copy, the news of a death. A fixed order makes the first choice: go on
//! with the rank that moved last, then with the next one. A deviation is a
//! place where another choice is made. Every run with up to so many deviations
//! is played, each from the start, none twice.
//!
//! A list of deviations is a schedule: `17:2` takes the third choice at the
//! eighteenth move. It repeats exactly.
//!
//! # Sources
//! M. Musuvathi, S. Qadeer, "Iterative Context Bounding for Systematic Testing
//! of Multithreaded Programs", PLDI 2007: few preemptions find most faults.
//! M. Emmi, S. Qadeer, Z. Rakamarić, "Delay-Bounded Scheduling", POPL 2011: a
//! deterministic scheduler and a bounded number of deviations from it, so the
//! number of schedules does not depend on the number of ranks. There a choice
//! costs as many delays as choices are passed over; here it costs one, so
//! every schedule with so many delays is among ours.

use super::act::Act;
use super::dice::Rng;
use super::play::{failure, guarded, quietly};
use super::scenario::{Scenario, When, all};
use super::seat::{channel, context_of};
use super::world::{Check, Receiving, Sending, Watch, World};
use super::{Failure, Fault, Report};
use osier_engine::wire;
use osier_transports::sim::Held;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Moves after which a run is taken for a livelock.
const MOVES: usize = 5_000;

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Deviations per schedule.
    pub deviations: usize,
    /// Schedules per job, without the deaths: what is beyond is left out and
    /// counted.
    pub schedules: usize,
    /// Deviations of the schedules in which each rank dies at each step.
    pub deviations_with_death: usize,
    /// Schedules per job in which ranks die.
    pub schedules_with_death: usize,
}

/// What was explored of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// Its name.
    pub name: &'static str,
    /// Schedules played, each different.
    pub schedules: usize,
    /// Whether these are all within the bound of deviations.
    pub exhausted: bool,
    /// Deaths played: a schedule, a rank, and one of its steps.
    pub deaths: usize,
    /// Moves of the longest run.
    pub longest: usize,
    /// Moves of all runs.
    pub moves: usize,
    /// Kinds of messages that the first schedule sends.
    pub kinds: Vec<&'static str>,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.exhausted { "all" } else { "the first" };
        write!(
            f,
            "{:<36} {all:>9} {:>8} schedules of up to {:>3} moves, {:>7} deaths; {}",
            self.name,
            self.schedules,
            self.longest,
            self.deaths,
            self.kinds.join(" ")
        )
    }
}

/// Where another than the first choice is made: (move, choice).
type Schedule = Vec<(u16, u8)>;

/// A rank and the call of an endpoint that it dies of.
type Death = (u32, u64);

/// Something that can happen next.
#[derive(Clone, Copy)]
struct Move {
    rank: u32,
    act: Act,
    /// The next act of the rank's program.
    scripted: bool,
}

/// One run of a job.
struct Run<'a> {
    scenario: &'a Scenario,
    /// Next act of each program.
    next: Vec<usize>,
    /// Rank that moved last.
    turn: u32,
    /// Generation of the network when a lane's progress last found nothing.
    idle: Vec<u64>,
    /// Choices at each move.
    widths: Vec<u8>,
}

impl Run<'_> {
    /// What can move, in the order of the fixed scheduler.
    fn moves(&mut self, world: &mut World, moves: &mut Vec<Move>) {
        moves.clear();
        let ranks = world.ranks;
        let held = world.net.held();
        for at in 0..ranks {
            let rank = (self.turn + at) % ranks;
            if !world.alive[rank as usize] {
                continue;
            }
            if let Some(&(when, act)) =
                self.scenario.programs[rank as usize].get(self.next[rank as usize])
                && holds(world, rank, when)
            {
                moves.push(Move {
                    rank,
                    act,
                    scripted: true,
                });
            }
            for context in 0..world.contexts() {
                let lane = rank as usize * world.contexts() + context;
                if has_work(world, rank, context, self.idle[lane]) {
                    push(moves, rank, Act::Progress { rank, context });
                }
            }
            for held in &held {
                match *held {
                    Held::Message { from, to, channel } if to == rank => push(
                        moves,
                        rank,
                        Act::Arrive {
                            from,
                            to,
                            context: context_of(channel),
                        },
                    ),
                    Held::Operation {
                        rank: of,
                        channel,
                        number,
                    } if of == rank => push(
                        moves,
                        rank,
                        Act::Complete {
                            rank,
                            context: context_of(channel),
                            number,
                        },
                    ),
                    _ => {}
                }
            }
            for &(to, dead) in world.notices.iter().filter(|n| n.0 == rank) {
                push(moves, rank, Act::Notice { to, dead });
            }
        }
    }

    fn play(
        &mut self,
        world: &mut World,
        schedule: &[(u16, u8)],
        death: Option<Death>,
    ) -> Check<Report> {
        if let Some((rank, calls)) = death {
            world.perform(Act::DieAt { rank, calls })?;
        }
        let mut deviations = schedule.iter().peekable();
        let mut moves = Vec::new();
        for at in 0..MOVES {
            self.moves(world, &mut moves);
            if moves.is_empty() {
                return world.conclude();
            }
            self.widths.push(moves.len().min(u8::MAX.into()) as u8);
            let choice = deviations.next_if(|d| usize::from(d.0) == at);
            let choice = choice.map_or(0, |d| usize::from(d.1)).min(moves.len() - 1);
            let Move {
                rank,
                act,
                scripted,
            } = moves[choice];
            let moved = world.perform(act)?;
            if scripted {
                self.next[rank as usize] += 1;
            }
            if let Act::Progress { rank, context } = act {
                let lane = rank as usize * world.contexts() + context;
                self.idle[lane] = if moved { 0 } else { world.net.generation() };
            } else {
                let lane = rank as usize * world.contexts();
                self.idle[lane..lane + world.contexts()].fill(0);
            }
            self.turn = rank;
        }
        Err(format!("the ranks still move after {MOVES} moves"))
    }
}

fn push(moves: &mut Vec<Move>, rank: u32, act: Act) {
    moves.push(Move {
        rank,
        act,
        scripted: false,
    });
}

/// Whether a lane's progress can do anything; it found nothing when the
/// network was at `idle`.
fn has_work(world: &mut World, rank: u32, context: usize, idle: u64) -> bool {
    if world.net.due(channel(context), rank) > 0 {
        return true;
    }
    let generation = world.net.generation();
    let lane = world.lane(rank, context);
    if lane.talks_to_itself() {
        return true;
    }
    let left = lane.leftovers();
    (left.queued > 0 || left.pulls > 0) && generation != idle
}

fn holds(world: &mut World, rank: u32, when: When) -> bool {
    match when {
        When::Always => true,
        When::Sent(m) => !matches!(
            world.messages[m].state,
            Sending::Planned | Sending::Pending | Sending::Revoking
        ),
        When::Received(id) => {
            let of = |r: &&super::world::Receive| r.id == id;
            world.receives.iter().find(of).is_none_or(|r| {
                !matches!(
                    r.state,
                    Receiving::Pending | Receiving::Revoking | Receiving::Matched
                )
            })
        }
        When::Sees(context, want) => {
            let mut lane = world.lane(rank, context);
            lane.probe(want.pattern()).is_some() || lane.dead_source(want.pattern()).is_some()
        }
        When::Idle(q) => world.part_is_idle(q, rank),
    }
}

/// Plays one schedule; the choices at each move, the calls of each rank.
fn play(
    scenario: &Scenario,
    schedule: &[(u16, u8)],
    death: Option<Death>,
) -> (Check<Report>, Vec<u8>, Vec<u64>) {
    let watch = Watch {
        each_step: true,
        ..Watch::default()
    };
    let mut world = World::new(&scenario.case, Rng::Last, &watch);
    let (result, run) = drive(&mut world, scenario, schedule, death);
    let steps = (0..world.ranks).map(|r| world.net.steps(r)).collect();
    if result.is_err() {
        // Half done after a panic: not to be dropped in the open.
        let _ = guarded(&mut world, |world| {
            world.seats.clear();
            Ok(())
        });
    }
    (result, run.widths, steps)
}

fn drive<'a>(
    world: &mut World,
    scenario: &'a Scenario,
    schedule: &[(u16, u8)],
    death: Option<Death>,
) -> (Check<Report>, Run<'a>) {
    let mut run = Run {
        scenario,
        next: vec![0; scenario.programs.len()],
        turn: 0,
        idle: vec![0; world.lanes()],
        widths: Vec::new(),
    };
    let result = guarded(world, |world| run.play(world, schedule, death));
    (result, run)
}

/// The failure of a schedule, cut down.
fn broken(
    scenario: &Scenario,
    schedule: &[(u16, u8)],
    death: Option<Death>,
    what: String,
) -> Failure {
    let watch = Watch {
        each_step: true,
        record: true,
        ..Watch::default()
    };
    let mut world = World::new(&scenario.case, Rng::Last, &watch);
    let _ = quietly(|| drive(&mut world, scenario, schedule, death));
    let mut case = scenario.case.clone();
    case.acts = world.acts.take().unwrap_or_default();
    let _ = guarded(&mut world, |world| {
        world.seats.clear();
        Ok(())
    });
    let deviations: Vec<String> = schedule.iter().map(|(at, c)| format!("{at}:{c}")).collect();
    let mut origin = format!("\"{}\", schedule [{}]", scenario.name, deviations.join(" "));
    if let Some((rank, call)) = death {
        origin.push_str(&format!(", rank {rank} dies of its call {call}"));
    }
    failure(case, what, true, origin)
}

/// Kinds of messages that the first schedule of a job sends.
fn kinds(scenario: &Scenario) -> Vec<&'static str> {
    let mut world = World::new(&scenario.case, Rng::Last, &Watch::default());
    world.net.log();
    let _ = quietly(|| drive(&mut world, scenario, &[], None));
    let mut kinds: Vec<u8> = world.net.take_log().iter().map(|e| e.kind).collect();
    kinds.retain(|k| *k != 0);
    kinds.sort_unstable();
    kinds.dedup();
    kinds.into_iter().map(wire::name).collect()
}

/// Explores one job.
fn explore(scenario: &Scenario, bounds: &Bounds) -> Result<Explored, Failure> {
    let mut explored = Explored {
        name: scenario.name,
        exhausted: true,
        kinds: kinds(scenario),
        ..Explored::default()
    };
    let mut deadly = 0;
    // Fewest deviations first, so that a bound on schedules cuts the rest.
    let mut level: Vec<Schedule> = vec![Vec::new()];
    for deviations in 0..=bounds.deviations {
        let mut next = Vec::new();
        for schedule in &level {
            if explored.schedules == bounds.schedules {
                explored.exhausted = false;
                return Ok(explored);
            }
            explored.schedules += 1;
            let (result, widths, steps) = quietly(|| play(scenario, schedule, None));
            if let Err(what) = result {
                return Err(broken(scenario, schedule, None, what));
            }
            explored.longest = explored.longest.max(widths.len());
            explored.moves += widths.len();
            if deviations <= bounds.deviations_with_death && deadly < bounds.schedules_with_death {
                deadly += 1;
                explored.deaths += deaths(scenario, schedule, &steps)?;
            }
            if deviations < bounds.deviations {
                let first = schedule.last().map_or(0, |d| d.0 + 1);
                for at in first..widths.len() as u16 {
                    for choice in 1..widths[usize::from(at)] {
                        let mut more = schedule.clone();
                        more.push((at, choice));
                        next.push(more);
                    }
                }
            }
        }
        level = next;
    }
    Ok(explored)
}

/// Each rank dies of each of its calls, in this schedule.
fn deaths(scenario: &Scenario, schedule: &[(u16, u8)], steps: &[u64]) -> Result<usize, Failure> {
    let mut played = 0;
    for (rank, steps) in steps.iter().enumerate() {
        for call in 1..=*steps {
            played += 1;
            let death = Some((rank as u32, call));
            let (result, ..) = quietly(|| play(scenario, schedule, death));
            if let Err(what) = result {
                return Err(broken(scenario, schedule, death, what));
            }
        }
    }
    Ok(played)
}

/// Explores all small jobs, on all cores, with what goes wrong on purpose.
///
/// # Errors
/// The first rule that was broken, cut down.
pub fn explore_all(bounds: &Bounds, faults: &[Fault]) -> Result<Vec<Explored>, Failure> {
    let mut scenarios = all();
    for scenario in &mut scenarios {
        scenario.case.faults = faults.to_vec();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|s| {
        for _ in 0..cores {
            s.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = scenarios.get(at) else {
                        return;
                    };
                    let explored = explore(scenario, bounds);
                    if explored.is_err() {
                        next.store(scenarios.len(), Ordering::Relaxed);
                    }
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((at, explored));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, explored)| explored).collect()
}
