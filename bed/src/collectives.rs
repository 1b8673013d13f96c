//! Collective calls on the simulated network: one thread plays all ranks, as the rest of
//! the bed, and begins, tests and starts requests in an order that a seed decides.
//!
//! All ranks make the same calls in the same order on each communicator: of every kind, by
//! any algorithm that is for it, in one segment or several, some of them persistent, on a
//! group, a ring of neighbors and an intercommunicator, with transfers between them. A
//! rank may die.
//!
//! # What is checked
//! 1. Every call of a living rank ends, with what follows from all ranks' input, or, if a
//!    rank has died, with an error that names it. (A message that was announced and then
//!    cancelled tells no name: such ends are counted.)
//! 2. At the end lanes keep nothing, and nothing is under way.

use super::dice::Rng;
use super::plan::sim;
use osier::internals::{Agreeing, lane, runs_on};
use osier::persistent::PersistentCollective;
use osier::requests::Waitable;
use osier::{Communicator, PROC_NULL, ROOT, Rank};
use osier_collectives::{Algorithm, Call, Operation};
use osier_datatype::Operator;
use osier_engine::check::Setting;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::INTERNAL_TAG;
use osier_engine::progress::core::{Core, JobTransport};
use osier_engine::progress::inspect::Leftovers;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::Selection;
use osier_engine::wire::CheckBody;
use osier_transports::sim::SimNet;
use std::sync::Arc;

/// What happened in a run, or in many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    /// Calls that ended as they should, on all ranks.
    pub ended: u64,
    /// Of these, those of persistent requests.
    pub persistent: u64,
    /// On intercommunicators.
    pub across: u64,
    /// Calls that ended with the name of a dead rank.
    pub lost: u64,
    /// Ranks that died.
    pub deaths: u64,
}

impl std::ops::AddAssign for Calls {
    fn add_assign(&mut self, other: Self) {
        self.ended += other.ended;
        self.persistent += other.persistent;
        self.across += other.across;
        self.lost += other.lost;
        self.deaths += other.deaths;
    }
}

type Check<T = ()> = std::result::Result<T, String>;

/// What all ranks know of a call.
#[derive(Clone, Debug)]
struct Planned {
    /// On which communicator of a rank.
    on: usize,
    kind: usize,
    n: usize,
    /// A rank of the job.
    root: usize,
    algorithm: Algorithm,
    segments: u32,
    persistent: bool,
    number: usize,
}

/// A call under way: asked again and again until it says how it has ended.
type Open = Box<dyn FnMut() -> Option<Result<Check>>>;

struct Seat {
    comms: Vec<Communicator>,
    core: Arc<Core>,
    /// The next call on each communicator, among those planned for it.
    next: Vec<usize>,
    open: Vec<(usize, Open)>,
}

/// What rank `from` of the job has for rank `to` in a call.
fn gift(call: &Planned, from: usize, to: usize, n: usize) -> Vec<u32> {
    let base = call.number * 7919 + from * 131 + to * 17;
    (0..n).map(|i| (base + i * 3) as u32).collect()
}

fn sums(parts: impl Iterator<Item = Vec<u32>>) -> Vec<u32> {
    let add =
        |a: Vec<u32>, b: Vec<u32>| a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
    parts.reduce(add).unwrap_or_default()
}

/// Watches a request: its second buffer must be `right`.
fn watched<R: Waitable<Output = (Vec<u32>, Vec<u32>)> + 'static>(
    request: R,
    right: Vec<u32>,
    what: String,
) -> Open {
    let mut request = Some(request);
    Box::new(move || {
        if !request.as_mut()?.test() {
            return None;
        }
        let output = request.take()?.finish();
        Some(output.map(|(_, got)| match got == right {
            true => Ok(()),
            false => Err(format!("{what}: {got:?} in place of {right:?}")),
        }))
    })
}

/// Watches a persistent request over two starts.
fn watched_twice(
    mut request: PersistentCollective<(Vec<u32>, Vec<u32>)>,
    right: Vec<u32>,
    what: String,
) -> Result<Open> {
    request.start()?;
    let mut again = true;
    let mut failed = None;
    let blank = request_blank(right.len());
    Ok(Box::new(move || {
        if !request.test() {
            return None;
        }
        let check = match request.wait().and_then(|()| request.buffers_mut()) {
            Ok((_, got)) if *got == right => {
                got.copy_from_slice(&blank);
                Ok(())
            }
            Ok((_, got)) => Err(format!("{what}: {got:?} in place of {right:?}")),
            Err(e) => {
                failed = failed.take().or(Some(e));
                Ok(())
            }
        };
        if again && check.is_ok() {
            // Also after an error: on other ranks the first start may have gone well.
            again = false;
            match request.start() {
                Ok(()) => return None,
                Err(e) => failed = failed.take().or(Some(e)),
            }
        }
        Some(failed.take().map_or(Ok(check), Err))
    }))
}

fn request_blank(n: usize) -> Vec<u32> {
    vec![u32::MAX; n]
}

/// Kinds of calls on a group, on a ring, and between groups.
const WITHIN: usize = 16;
const AROUND: usize = 2;
const BETWEEN: usize = 8;

impl Seat {
    /// Begins a call.
    fn begin(&mut self, call: &Planned, sides: &[Vec<usize>]) -> Result<Open> {
        let comm = &self.comms[call.on];
        let me = self.core.rank as usize;
        let what = format!("{call:?} at rank {me}");
        comm.use_algorithm(Some((call.algorithm.clone(), call.segments)));
        let everybody: Vec<usize> = (0..self.core.ranks as usize).collect();
        let low = sides[0].contains(&me);
        let (own, others): (&[usize], &[usize]) = match (call.on, low) {
            (2, true) => (&sides[0], &sides[1]),
            (2, false) => (&sides[1], &sides[0]),
            _ => (&everybody, &everybody),
        };
        let is_root = me == call.root;
        let root: Rank = match own.contains(&call.root) {
            _ if call.on != 2 => call.root.into(),
            true if is_root => ROOT,
            true => PROC_NULL,
            false => others.iter().position(|r| *r == call.root).into(),
        };
        let serves = call.on != 2 || !own.contains(&call.root);
        let (n, total) = (call.n, others.len());
        let gift = |from: usize, to: usize, n: usize| gift(call, from, to, n);
        let blank = request_blank;
        let sum = |n: usize| sums(others.iter().map(|r| gift(*r, 0, n)));
        let at_root = |right: Vec<u32>| {
            if is_root {
                right.clone()
            } else {
                blank(right.len())
            }
        };
        let from_root = |right: Vec<u32>| {
            if serves {
                right.clone()
            } else {
                blank(right.len())
            }
        };
        let lens = |a: usize, b: usize| (a + 2 * b + n) % 5;
        let starts = |lens: &[usize]| -> Vec<usize> {
            (0..lens.len()).map(|at| lens[..at].iter().sum()).collect()
        };
        macro_rules! begin {
            ($begin:ident, $init:ident, $send:expr, $right:expr $(, $arg:expr)*) => {{
                let (send, right): (Vec<u32>, Vec<u32>) = ($send, $right);
                let room = blank(right.len());
                if call.persistent {
                    watched_twice(comm.$init(send, room $(, $arg)*)?, right, what)
                } else {
                    Ok(watched(comm.$begin(send, room $(, $arg)*)?, right, what))
                }
            }};
        }
        if call.on == 1 {
            let size = everybody.len();
            let (below, above) = ((me + size - 1) % size, (me + 1) % size);
            return if call.kind == 0 {
                let right = [gift(below, 0, n), gift(above, 0, n)].concat();
                begin!(
                    ineighbor_allgather,
                    neighbor_allgather_init,
                    gift(me, 0, n),
                    right
                )
            } else {
                // Down, then up; what comes from below was sent up.
                let send = [gift(me, 1, n), gift(me, 2, n)].concat();
                let right = [gift(below, 2, n), gift(above, 1, n)].concat();
                begin!(ineighbor_alltoall, neighbor_alltoall_init, send, right)
            };
        }
        let place = own.iter().position(|r| *r == me).unwrap_or(0);
        match call.kind {
            0 => {
                let mut request = Some(comm.ibarrier()?);
                Ok(Box::new(move || {
                    let over = request.as_mut()?.test();
                    over.then(|| request.take().map(|r| r.wait().map(Ok)))
                        .flatten()
                }))
            }
            1 => {
                let right = match is_root || serves {
                    true => gift(call.root, 0, n),
                    false => blank(n),
                };
                let mut request =
                    Some(comm.ibcast(if is_root { right.clone() } else { blank(n) }, root)?);
                Ok(Box::new(move || {
                    if !request.as_mut()?.test() {
                        return None;
                    }
                    let got = request.take()?.wait();
                    Some(got.map(|got| match got == right {
                        true => Ok(()),
                        false => Err(format!("{what}: {got:?} in place of {right:?}")),
                    }))
                }))
            }
            2 => {
                let right = others.iter().flat_map(|r| gift(*r, 0, n)).collect();
                begin!(igather, gather_init, gift(me, 0, n), at_root(right), root)
            }
            3 => {
                let right = others.iter().flat_map(|r| gift(*r, 0, n)).collect();
                begin!(iallgather, allgather_init, gift(me, 0, n), right)
            }
            4 => {
                let send = others.iter().flat_map(|r| gift(me, *r, n)).collect();
                let right = others.iter().flat_map(|r| gift(*r, me, n)).collect();
                begin!(ialltoall, alltoall_init, send, right)
            }
            5 => begin!(
                iallreduce,
                allreduce_init,
                gift(me, 0, n),
                sum(n),
                Operator::Sum
            ),
            6 => {
                let counts: Vec<usize> = own.iter().map(|r| (1 + r % 2) * total).collect();
                // As much on both sides: the first rank has the rest.
                let all = 4 * own.len() * total + 4;
                let mut counts = counts;
                counts[0] = all - counts[1..].iter().sum::<usize>();
                let from: usize = counts[..place].iter().sum();
                let right = sum(all)[from..][..counts[place]].to_vec();
                begin!(
                    ireduce_scatter,
                    reduce_scatter_init,
                    gift(me, 0, all),
                    right,
                    &counts,
                    Operator::Sum
                )
            }
            7 => {
                let send = match is_root {
                    true => others.iter().flat_map(|r| gift(me, *r, n)).collect(),
                    false => Vec::new(),
                };
                begin!(
                    iscatter,
                    scatter_init,
                    send,
                    from_root(gift(call.root, me, n)),
                    root
                )
            }
            8 => begin!(
                ireduce,
                reduce_init,
                gift(me, 0, n),
                at_root(sum(n)),
                root,
                Operator::Sum
            ),
            9 => {
                let right = sums((0..=me).map(|r| gift(r, 0, n)));
                begin!(iscan, scan_init, gift(me, 0, n), right, Operator::Sum)
            }
            10 => {
                let right = match me {
                    0 => blank(n),
                    _ => sums((0..me).map(|r| gift(r, 0, n))),
                };
                begin!(iexscan, exscan_init, gift(me, 0, n), right, Operator::Sum)
            }
            11 => {
                let right = sum(n * total)[me * n..][..n].to_vec();
                begin!(
                    ireduce_scatter_block,
                    reduce_scatter_block_init,
                    gift(me, 0, n * total),
                    right,
                    Operator::Sum
                )
            }
            12 => {
                let counts: Vec<usize> = others.iter().map(|r| lens(*r, 0)).collect();
                let right = others
                    .iter()
                    .flat_map(|r| gift(*r, 0, lens(*r, 0)))
                    .collect();
                let (send, starts) = (gift(me, 0, lens(me, 0)), starts(&counts));
                begin!(iallgatherv, allgatherv_init, send, right, &counts, &starts)
            }
            13 => {
                let counts: Vec<usize> = others.iter().map(|r| lens(*r, 0)).collect();
                let right = others
                    .iter()
                    .flat_map(|r| gift(*r, 0, lens(*r, 0)))
                    .collect();
                let (send, starts) = (gift(me, 0, lens(me, 0)), starts(&counts));
                begin!(
                    igatherv,
                    gatherv_init,
                    send,
                    at_root(right),
                    &counts,
                    &starts,
                    root
                )
            }
            14 => {
                let out: Vec<usize> = others.iter().map(|r| lens(me, *r)).collect();
                let into: Vec<usize> = others.iter().map(|r| lens(*r, me)).collect();
                let send = others
                    .iter()
                    .flat_map(|r| gift(me, *r, lens(me, *r)))
                    .collect();
                let right = others
                    .iter()
                    .flat_map(|r| gift(*r, me, lens(*r, me)))
                    .collect();
                let (from, to) = (starts(&out), starts(&into));
                begin!(
                    ialltoallv,
                    alltoallv_init,
                    send,
                    right,
                    (&out[..], &from[..]),
                    (&into[..], &to[..])
                )
            }
            _ => {
                // A message to each, one from each: beside what the calls send.
                let size = everybody.len();
                let (below, above) = ((me + size - 1) % size, (me + 1) % size);
                let tag = call.number as u32;
                let recv = comm.irecv(blank(n), below, tag);
                // Also if nobody is there to receive from.
                let send = comm.isend(gift(me, above, n), above, tag);
                let (right, mut both) = (gift(below, me, n), Some((send?, recv?)));
                Ok(Box::new(move || {
                    let (send, recv) = both.as_mut()?;
                    if !(send.test() & recv.test()) {
                        return None;
                    }
                    let (send, recv) = both.take()?;
                    let sent = send.wait();
                    Some(recv.wait().and_then(|(got, _)| {
                        sent?;
                        Ok(match got == right {
                            true => Ok(()),
                            false => Err(format!("{what}: {got:?} in place of {right:?}")),
                        })
                    }))
                }))
            }
        }
    }
}

/// One that is for a call of a group.
fn algorithm(rng: &mut Rng, kind: usize, ranks: u32, root: u32) -> Algorithm {
    use Operation as O;
    let operation = [
        O::Barrier,
        O::Bcast,
        O::Gather,
        O::Allgather,
        O::Alltoall,
        O::Allreduce,
        O::ReduceScatter,
        O::Scatter,
        O::Reduce,
        O::Scan,
        O::Exscan,
        O::ReduceScatter,
        O::Allgather,
        O::Gather,
        O::Alltoall,
        O::Barrier,
    ][kind];
    let call = Call::new(operation, ranks).root(root);
    let call = match kind {
        6 | 12 | 13 | 14 => call.varying(),
        _ => call,
    };
    let suits = |a: &&Algorithm| a.keeps(&call).is_some();
    let all: Vec<&Algorithm> = Algorithm::FLAT.iter().filter(suits).collect();
    rng.pick(&all).clone()
}

/// Plays the calls of a seed.
///
/// # Errors
/// The rule that was broken.
pub fn collectives(seed: u64, deaths: bool, checks: Setting) -> std::result::Result<Calls, String> {
    play(seed, deaths, checks).map_err(|e| format!("seed {seed}: {e}"))
}

fn play(seed: u64, deaths: bool, checks: Setting) -> Check<Calls> {
    let mut rng = Rng::new(seed ^ 0x0c01_1ec7);
    let ranks = 2 + rng.below(4);
    let mut options = sim(&mut rng, seed, ranks as u32);
    if checks.is_on() {
        // What is told of a message travels in one.
        options.max_payload_bytes = options.max_payload_bytes.max(CheckBody::MAX_BYTES);
    }
    let inline = options.inline_bytes;
    let net = SimNet::new(options);
    let low = 1 + rng.below(ranks - 1);
    let sides = [(0..low).collect::<Vec<_>>(), (low..ranks).collect()];
    let calls: Vec<Planned> = (0..4 + rng.below(12))
        .map(|number| {
            let on = rng.pick(&[0, 0, 0, 1, 2]);
            let kind = rng.below([WITHIN, AROUND, BETWEEN][on]);
            let root = rng.below(ranks);
            Planned {
                on,
                kind,
                n: rng.pick(&[0, 1, 3, 20, 300, 3000]),
                root,
                algorithm: match on {
                    0 => algorithm(&mut rng, kind, ranks as u32, root as u32),
                    1 => Algorithm::Linear,
                    _ => Algorithm::Between,
                },
                segments: rng.pick(&[1, 1, 2, 5, 20]),
                persistent: kind > 1 && kind != 15 && rng.one_in(4),
                number,
            }
        })
        .collect();
    let seat = |rank: usize| -> Result<Seat> {
        let transport = JobTransport::Sim(net.clone(), rank as u32);
        let selection = Arc::new(Selection::new(LinkCosts::default(), inline));
        let core = Core::new(
            transport,
            rank as u32,
            ranks as u32,
            selection,
            true,
            None,
            checks,
        );
        let member = Agreeing::new(&core)?;
        let all: Vec<usize> = (0..ranks).collect();
        let (own, other) = match rank < low {
            true => (&sides[0], &sides[1]),
            false => (&sides[1], &sides[0]),
        };
        let comms = vec![
            member.group(&all, 1)?,
            member.ring(&all, 9)?,
            member.between([own, other], 17, rank < low)?,
        ];
        Ok(Seat {
            comms,
            core,
            next: vec![0; 3],
            open: Vec::new(),
        })
    };
    let mut seats: Vec<Seat> = (0..ranks)
        .map(seat)
        .collect::<Result<_>>()
        .map_err(|e| e.to_string())?;
    let mut victim = None;
    if deaths {
        let rank = rng.below(ranks);
        net.kill_at_step(rank as u32, 1 + rng.below(200) as u64);
        victim = Some(rank);
    }
    let mut report = Calls::default();
    let mut idle = 0;
    loop {
        let alive: Vec<usize> = (0..ranks).filter(|r| !net.is_dead(*r as u32)).collect();
        let unbegun = |seat: &Seat| -> Vec<usize> {
            let left = |on: &usize| calls.iter().filter(|c| c.on == *on).count() > seat.next[*on];
            (0..3).filter(left).collect()
        };
        let busy = |r: &&usize| !seats[**r].open.is_empty() || !unbegun(&seats[**r]).is_empty();
        let working: Vec<usize> = alive.iter().filter(busy).copied().collect();
        if working.is_empty() {
            break;
        }
        let rank = working[rng.below(working.len())];
        let next = unbegun(&seats[rank]);
        let seat = &mut seats[rank];
        match rng.below(8) {
            0 | 1 if !next.is_empty() => {
                let on = next[rng.below(next.len())];
                let mut of_comm = calls.iter().filter(|c| c.on == on);
                let Some(call) = of_comm.nth(seat.next[on]) else {
                    continue;
                };
                seat.next[on] += 1;
                idle = 0;
                match seat.begin(call, &sides) {
                    Ok(open) => seat.open.push((call.number, open)),
                    Err(e) => lost(&net, rank, call, &e, &mut report)?,
                }
            }
            0..=5 if !seat.open.is_empty() => {
                let at = rng.below(seat.open.len());
                let before = net.generation();
                let ended = (seat.open[at].1)();
                idle = if net.generation() == before {
                    idle + 1
                } else {
                    0
                };
                let Some(ended) = ended else {
                    continue;
                };
                idle = 0;
                let (number, _) = seat.open.swap_remove(at);
                let call = &calls[number];
                if net.is_dead(rank as u32) {
                    continue;
                }
                match ended {
                    Ok(check) => {
                        check?;
                        report.ended += 1;
                        report.persistent += u64::from(call.persistent);
                        report.across += u64::from(call.on == 2);
                    }
                    Err(e) => lost(&net, rank, call, &e, &mut report)?,
                }
            }
            6 => net.advance(rng.below(20_000) as u64),
            _ => {
                if net.advance_to_next_event() {
                    idle = 0;
                }
                // Also those that have nothing to wait for.
                let seat = &seats[alive[rng.below(alive.len())]];
                seat.core.check_deaths();
                for comm in &seat.comms {
                    lane(runs_on(comm)).lock().progress();
                    lane(comm).lock().progress();
                }
            }
        }
        if idle > 4000 {
            let open: Vec<String> = working
                .iter()
                .map(|r| {
                    let numbers = seats[*r].open.iter().map(|(number, _)| &calls[*number]);
                    format!("rank {r}: {:?}", numbers.collect::<Vec<_>>())
                })
                .collect();
            return Err(format!("calls never end: {open:#?}"));
        }
    }
    if let Some(rank) = victim
        && net.is_dead(rank as u32)
    {
        report.deaths = 1;
    }
    nothing_left(&net, seats)?;
    Ok(report)
}

/// A call has failed: a rank must have died, and be named.
fn lost(net: &SimNet, rank: usize, call: &Planned, e: &Error, report: &mut Calls) -> Check {
    if net.is_dead(rank as u32) {
        return Ok(());
    }
    let text = e.to_string();
    let dead = net.dead_ranks();
    let named = dead
        .iter()
        .any(|dead| text.contains(&format!("rank {dead} ")));
    if e.kind() == ErrorKind::RankDead && named {
        report.lost += 1;
        return Ok(());
    }
    Err(format!(
        "{call:?} at rank {rank}, with {dead:?} dead: {text}"
    ))
}

fn nothing_left(net: &SimNet, mut seats: Vec<Seat>) -> Check {
    // Sends that nobody waits for, and words that ask for no answer.
    // A post may be refused some times in a row: nothing moves then, either.
    let (mut rounds, mut idle) = (0, 0);
    while idle < 100 && rounds < 100_000 {
        let mut any = net.advance_to_next_event();
        for seat in seats.iter().filter(|s| !net.is_dead(s.core.rank)) {
            seat.core.check_deaths();
            for comm in &seat.comms {
                any |= lane(runs_on(comm)).lock().progress();
            }
        }
        rounds += 1;
        idle = if any { 0 } else { idle + 1 };
    }
    seats.retain(|s| !net.is_dead(s.core.rank));
    let (dead, none) = (net.dead_ranks(), Leftovers::default());
    for seat in &seats {
        for (at, comm) in seat.comms.iter().enumerate() {
            let lane = lane(runs_on(comm)).lock();
            let (left, messages) = (lane.leftovers(), lane.messages());
            // A plain message waits for ever if its receiver has stopped for a death.
            let owed = messages.iter().any(|(_, tag, _)| tag & INTERNAL_TAG != 0);
            let stays = left.operations > 0 || owed || (dead.is_empty() && left != none);
            if stays {
                let rank = seat.core.rank;
                return Err(format!(
                    "rank {rank}, communicator {at} keeps {left:?}, {messages:?}, with {dead:?} dead"
                ));
            }
        }
    }
    Ok(())
}
