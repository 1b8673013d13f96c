//! The verdict against a naive wait-for graph, on simulated ranks with random
//! scripts: never a false alarm, and every deadlock is found.

#[path = "../../../../tests/asked.rs"]
mod asked;
mod outside;

use super::*;
use proptest::prelude::*;

/// What a rank does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    SynchronousSend(usize),
    Receive(usize),
    ReceiveAny,
    Compute(u8),
}

/// A message on its way, or waiting at its receiver.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: usize,
    /// The sender waits to hear that it was received.
    acknowledge: bool,
    due: u64,
}

#[derive(Debug)]
struct Rank {
    script: Vec<Step>,
    at: usize,
    /// Messages that were polled and not received yet.
    queue: Vec<Message>,
    computes: u8,
    /// In a synchronous send: the message left, the answer has not come.
    posted: bool,
    answered: bool,
    moved: u64,
    /// When it last asked in vain whether its wait is over.
    checked: u64,
    quiet: Quiet,
    /// When it came to its end.
    over: u64,
    /// Stopped by a signal: makes no step and no look.
    stopped: u8,
}

struct World {
    ranks: Vec<Rank>,
    flying: Vec<Message>,
    answers: Vec<(usize, u64)>,
    now: u64,
}

impl World {
    fn new(scripts: Vec<Vec<Step>>) -> World {
        let ranks = scripts
            .into_iter()
            .map(|script| Rank {
                script,
                at: 0,
                queue: Vec::new(),
                computes: 0,
                posted: false,
                answered: false,
                moved: 0,
                checked: 0,
                quiet: Quiet::default(),
                over: 0,
                stopped: 0,
            })
            .collect();
        World {
            ranks,
            flying: Vec::new(),
            answers: Vec::new(),
            now: 1,
        }
    }

    fn finished(&self, r: usize) -> bool {
        self.ranks[r].at == self.ranks[r].script.len()
    }

    /// Takes in what is due; true if anything was.
    fn poll(&mut self, r: usize) -> bool {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flying)
            .into_iter()
            .partition(|m| m.to == r && m.due <= now);
        self.flying = later;
        let before = self.answers.len();
        self.answers.retain(|(to, due)| *to != r || *due > now);
        let answers = before - self.answers.len();
        let rank = &mut self.ranks[r];
        rank.answered |= answers > 0;
        rank.moved += (due.len() + answers) as u64;
        let any = !due.is_empty() || answers > 0;
        rank.queue.extend(due);
        any
    }

    /// A step of a rank's program; true unless it waits.
    fn advance(&mut self, r: usize, delay: u64) -> bool {
        if self.finished(r) {
            return false;
        }
        if self.ranks[r].computes > 0 {
            self.ranks[r].computes -= 1;
            return true;
        }
        self.poll(r);
        let due = self.now + delay;
        let rank = &mut self.ranks[r];
        let done = match rank.script[rank.at] {
            Step::Compute(n) => {
                rank.computes = n;
                true
            }
            Step::Send(to) => {
                self.flying.push(Message {
                    from: r,
                    to,
                    acknowledge: false,
                    due,
                });
                true
            }
            Step::SynchronousSend(to) => {
                if !std::mem::replace(&mut rank.posted, true) {
                    rank.answered = false;
                    self.flying.push(Message {
                        from: r,
                        to,
                        acknowledge: true,
                        due,
                    });
                }
                let answered = rank.answered;
                if answered {
                    rank.posted = false;
                }
                answered
            }
            Step::Receive(_) | Step::ReceiveAny => {
                let wanted = rank.script[rank.at];
                let found = rank.queue.iter().position(|m| match wanted {
                    Step::Receive(from) => m.from == from,
                    _ => true,
                });
                if let Some(i) = found {
                    let m = rank.queue.remove(i);
                    if m.acknowledge {
                        self.answers.push((m.from, due));
                    }
                }
                found.is_some()
            }
        };
        let rank = &mut self.ranks[r];
        if done {
            rank.at += 1;
            rank.over = self.now;
            rank.quiet.stir(); // it left its wait, if it was in one
        } else {
            rank.checked = self.now;
        }
        done
    }

    /// Whether the rank's only thread waits inside.
    fn waits(&self, r: usize) -> bool {
        let rank = &self.ranks[r];
        rank.computes == 0
            && match rank.script.get(rank.at) {
                Some(Step::Receive(_) | Step::ReceiveAny) => true,
                Some(Step::SynchronousSend(_)) => rank.posted,
                _ => false,
            }
    }

    /// What the leader of a rank does now and then.
    fn observe(&mut self, r: usize) {
        let began = self.now;
        self.now += 1;
        let waits = self.waits(r);
        let found = waits && self.poll(r)
            || self.flying.iter().any(|m| m.to == r)
            || self.answers.iter().any(|(to, _)| *to == r);
        let (moved, ended) = (self.ranks[r].moved, self.now);
        let rank = &mut self.ranks[r];
        let calm = waits && !found;
        rank.quiet
            .observe(calm, moved, rank.checked, (began, ended));
    }

    fn standings(&self) -> Vec<Standing> {
        (0..self.ranks.len())
            .map(|r| match self.finished(r) {
                true => Standing::Gone {
                    since: self.ranks[r].over,
                },
                false => self.ranks[r].quiet.standing(),
            })
            .collect()
    }

    /// The naive oracle, which sees everything: can any rank still go on?
    /// Reduces the wait-for graph: a rank is free if it does not wait, if what
    /// it waits for is there or under way, or if a rank that it waits for is
    /// free (of any source: any other).
    fn deadlocked(&self) -> bool {
        let n = self.ranks.len();
        let under_way = |r: usize, f: &dyn Fn(&Message) -> bool| {
            let flying = self.flying.iter().any(|m| m.to == r && f(m));
            flying || self.ranks[r].queue.iter().any(f)
        };
        let mut free: Vec<bool> = (0..n)
            .map(|r| {
                let rank = &self.ranks[r];
                if self.finished(r) {
                    return false;
                }
                if !self.waits(r) {
                    return true;
                }
                match rank.script[rank.at] {
                    Step::Receive(from) => under_way(r, &|m| m.from == from),
                    Step::ReceiveAny => under_way(r, &|_| true),
                    Step::SynchronousSend(_) => {
                        rank.answered || self.answers.iter().any(|(to, _)| *to == r)
                    }
                    _ => true,
                }
            })
            .collect();
        loop {
            let mut any = false;
            for r in 0..n {
                if free[r] || self.finished(r) {
                    continue;
                }
                let rank = &self.ranks[r];
                let now_free = match rank.script[rank.at] {
                    Step::Receive(from) => free[from],
                    Step::ReceiveAny => (0..n).any(|o| o != r && free[o]),
                    Step::SynchronousSend(to) => free[to],
                    _ => false,
                };
                if now_free {
                    free[r] = true;
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        (0..n).any(|r| !self.finished(r)) && (0..n).all(|r| self.finished(r) || !free[r])
    }
}

/// Runs a seed; whether it ended in a deadlock, and after how many looks of
/// every rank the verdict came.
fn play(seed: u64) -> (bool, bool) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let n = 2 + random(4);
    let other = |r: usize, random: &mut dyn FnMut(usize) -> usize| (r + 1 + random(n - 1)) % n;
    let mut scripts = vec![Vec::new(); n];
    if random(4) == 0 {
        // A cycle of receives or synchronous sends, with something before it.
        let synchronous = random(2) == 0;
        for (r, script) in scripts.iter_mut().enumerate() {
            let to = (r + 1) % n;
            script.push(Step::Compute(random(20) as u8));
            script.push(Step::Send(to));
            script.push(Step::Receive((r + n - 1) % n));
            script.push(if synchronous {
                Step::SynchronousSend(to)
            } else {
                Step::Receive(to)
            });
        }
    } else {
        // Pairs of send and receive in a random order per rank: some runs end,
        // some do not.
        for _ in 0..random(12) {
            let from = random(n);
            let to = other(from, &mut random);
            let send = if random(3) == 0 {
                Step::SynchronousSend(to)
            } else {
                Step::Send(to)
            };
            let receive = if random(4) == 0 {
                Step::ReceiveAny
            } else {
                Step::Receive(from)
            };
            let at = |script: &Vec<Step>, random: &mut dyn FnMut(usize) -> usize| {
                script.len() - random(1 + script.len().min(2))
            };
            let i = at(&scripts[from], &mut random);
            scripts[from].insert(i, send);
            if random(12) != 0 {
                let i = at(&scripts[to], &mut random);
                scripts[to].insert(i, receive);
            }
            let idle = random(n);
            scripts[idle].push(Step::Compute(random(30) as u8));
        }
    }
    let mut world = World::new(scripts);
    let check = |world: &World| {
        let verdict = hangs(world.standings());
        assert!(
            !verdict || world.deadlocked(),
            "seed {seed}: a false alarm at {}: {:#?}\nunder way: {:?} {:?}",
            world.now,
            world.ranks,
            world.flying,
            world.answers
        );
        verdict
    };
    let mut found = false;
    for _ in 0..400 {
        world.now += 1;
        let r = random(n);
        let rank = &mut world.ranks[r];
        if rank.stopped > 0 {
            rank.stopped -= 1;
            continue;
        }
        match random(8) {
            0 => rank.stopped = random(25) as u8,
            1..3 => world.observe(r),
            _ => {
                world.advance(r, random(30) as u64);
            }
        }
        found |= check(&world);
        if (0..n).all(|r| world.finished(r)) {
            return (false, found);
        }
    }
    // Whatever can go on does; then everyone looks twice more.
    for _ in 0..400 {
        world.now += 30;
        for r in 0..n {
            while world.advance(r, 1) {}
        }
    }
    let stuck = !(0..n).all(|r| world.finished(r));
    assert_eq!(stuck, world.deadlocked(), "seed {seed}");
    for _ in 0..3 {
        for r in 0..n {
            world.now += 1;
            world.observe(r);
            world.advance(r, 1);
        }
        found = check(&world);
    }
    (stuck, found)
}

/// A number from the environment.
fn seeds() -> u64 {
    asked::number("hang-seeds").unwrap_or(100_000)
}

/// 100 000 runs; `OSIER_TEST=hang-seeds=N` sets another number.
#[test]
fn no_false_alarm_and_no_deadlock_missed() {
    let mut deadlocks = 0;
    let count = seeds();
    for seed in 0..count {
        let (stuck, found) = play(seed);
        assert_eq!(stuck, found, "seed {seed}: stuck {stuck}, reported {found}");
        deadlocks += u64::from(stuck);
    }
    assert!(
        deadlocks > count / 10 && deadlocks < count * 9 / 10,
        "{deadlocks} deadlocks in {count} runs"
    );
}

#[test]
fn unknown_or_late_ranks_forbid_a_verdict() {
    let q = |since, polled| Standing::Quiet { since, polled };
    assert!(hangs([q(1, 5), q(4, 6), Standing::Gone { since: 4 }]));
    assert!(
        !hangs([q(1, 5), q(5, 6)]),
        "looked before the other was quiet"
    );
    assert!(!hangs([q(1, 5), Standing::Busy]));
    let gone = Standing::Gone { since: 5 };
    assert!(!hangs([q(1, 5), gone]), "its last message may be under way");
    assert!(!hangs([gone]));
    assert!(!hangs([]));
}

#[test]
fn cycles_are_found_once() {
    assert_eq!(cycles([(3, 1), (1, 3)]), [[1, 3]]);
    assert_eq!(cycles([(0, 1), (1, 2), (2, 1)]), [[1, 2]]);
    assert_eq!(cycles([(5, 5)]), [[5]]);
    assert_eq!(
        cycles([(2, 0), (0, 1), (1, 2), (4, 3), (3, 4), (9, 0)]),
        [vec![0, 1, 2], vec![3, 4]]
    );
    assert!(cycles([(0, 1), (1, 2)]).is_empty());
}

proptest! {
    /// Each cycle is one, and a rank that can reach itself lies on one or
    /// shares one with a rank that does.
    #[test]
    fn cycles_are_cycles(edges in proptest::collection::vec((0u32..8, 0u32..8), 0..20)) {
        let found = cycles(edges.iter().copied());
        for cycle in &found {
            for (i, from) in cycle.iter().enumerate() {
                let to = cycle[(i + 1) % cycle.len()];
                prop_assert!(edges.contains(&(*from, to)), "{cycle:?}");
            }
            prop_assert_eq!(cycle.iter().min(), cycle.first());
        }
        let mut reach = [[false; 8]; 8];
        for (a, b) in &edges {
            reach[*a as usize][*b as usize] = true;
        }
        for k in 0..8 {
            for a in 0..8 {
                for b in 0..8 {
                    reach[a][b] |= reach[a][k] && reach[k][b];
                }
            }
        }
        for (r, row) in reach.iter().enumerate() {
            let on_one = found.iter().any(|c| c.contains(&(r as u32)));
            prop_assert!(!row[r] || on_one, "{r} lies on a cycle");
        }
    }
}
