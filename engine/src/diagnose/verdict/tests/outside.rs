//! A job whose ranks have a thread outside Osier each, which sleeps until its rank or time
//! wakes it, works, sends, and wakes its rank: never a false alarm, and every deadlock is
//! found.

use crate::diagnose::verdict::*;

/// What a rank's own thread does.
#[derive(Clone, Copy, Debug)]
enum Main {
    Send(usize),
    /// Waits inside for a message.
    Receive,
    /// Wakes the thread outside.
    Wake,
    /// Waits inside for the thread outside to complete something.
    Await,
    Compute(u8),
}

/// What the thread outside does.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// Sleeps until it is woken.
    Sleep,
    /// Sleeps for a time.
    Timer(u8),
    Compute(u8),
    Send(usize),
    Complete,
}

#[derive(Debug, Default)]
struct Rank {
    main: Vec<Main>,
    other: Vec<Other>,
    at: usize,
    other_at: usize,
    busy: u8,
    other_busy: u8,
    /// Messages, and when they can be polled.
    mail: Vec<u64>,
    queue: usize,
    woken: usize,
    completed: usize,
    /// Times that the thread outside was switched to.
    switches: u64,
    moved: u64,
    checked: u64,
    quiet: Quiet,
    drowse: Drowse,
    over: u64,
}

impl Rank {
    fn finished(&self) -> bool {
        self.at == self.main.len()
    }

    fn waits(&self) -> bool {
        let waits = matches!(self.main.get(self.at), Some(Main::Receive | Main::Await));
        self.busy == 0 && waits
    }

    /// Asleep until woken, and nobody has; `None`: the thread has ended.
    fn sleeps(&self) -> Option<bool> {
        let step = self.other.get(self.other_at)?;
        Some(self.other_busy == 0 && matches!(step, Other::Sleep) && self.woken == 0)
    }

    fn standing(&self) -> Standing {
        match self.quiet.standing() {
            _ if self.finished() && self.sleeps().is_none() => Standing::Gone { since: self.over },
            Standing::Busy => self.drowse.standing(),
            quiet => quiet,
        }
    }
}

struct World {
    ranks: Vec<Rank>,
    now: u64,
}

impl World {
    /// A step of the rank's own thread; whether it did anything.
    fn main(&mut self, r: usize, delay: u64) -> bool {
        let now = self.now;
        let rank = &mut self.ranks[r];
        if rank.finished() {
            return false;
        }
        if rank.busy > 0 {
            rank.busy -= 1;
            return true;
        }
        poll(rank, now);
        let mut to = None;
        let done = match rank.main[rank.at] {
            Main::Compute(n) => {
                rank.busy = n;
                true
            }
            Main::Send(dest) => {
                to = Some(dest);
                true
            }
            Main::Wake => {
                rank.woken += 1;
                true
            }
            Main::Receive => take(&mut rank.queue),
            Main::Await => take(&mut rank.completed),
        };
        if done {
            rank.at += 1;
            rank.over = now;
            rank.quiet.stir();
            rank.drowse.stir();
        } else {
            rank.checked = now;
        }
        if let Some(to) = to {
            self.ranks[to].mail.push(now + delay);
        }
        done
    }

    /// A step of the thread outside; whether it did anything.
    fn other(&mut self, r: usize, delay: u64) -> bool {
        let now = self.now;
        let rank = &mut self.ranks[r];
        let Some(step) = rank.other.get(rank.other_at).copied() else {
            return false;
        };
        if rank.other_busy > 0 {
            rank.other_busy -= 1;
            return true;
        }
        let mut to = None;
        match step {
            Other::Sleep if !take(&mut rank.woken) => return false,
            Other::Sleep => {}
            Other::Timer(n) | Other::Compute(n) => rank.other_busy = n,
            Other::Send(dest) => to = Some(dest),
            Other::Complete => rank.completed += 1,
        }
        rank.switches += 1;
        rank.other_at += 1;
        rank.over = now;
        if let Some(to) = to {
            self.ranks[to].mail.push(now + delay);
        }
        true
    }

    /// What the leader of a rank does now and then, while its thread waits.
    fn observe(&mut self, r: usize, tick: &mut dyn FnMut(&mut World)) {
        if !self.ranks[r].waits() {
            return;
        }
        let began = self.now;
        tick(self);
        let rank = &self.ranks[r];
        // In a timer or at work it is no sleeper.
        let asleep = rank.sleeps();
        let print = rank.switches.wrapping_mul(0x9e37_79b9).wrapping_add(1);
        tick(self);
        let now = self.now;
        let rank = &mut self.ranks[r];
        if !rank.waits() {
            return; // it has left its wait meanwhile: other changes
        }
        let found = poll(rank, now) || !rank.mail.is_empty();
        let (moved, checked) = (rank.moved, rank.checked);
        tick(self);
        let (ended, rank) = (self.now, &mut self.ranks[r]);
        match asleep {
            None => rank.quiet.observe(!found, moved, checked, (began, ended)),
            Some(asleep) => {
                rank.quiet.observe(false, moved, checked, (began, ended));
                let calm = asleep && !found;
                let print = if asleep { print } else { 0 };
                rank.drowse
                    .observe(calm, print, moved, checked, (began, ended));
            }
        }
    }

    /// Sees everything: can any thread still go on?
    fn deadlocked(&self) -> bool {
        let free = |rank: &Rank| {
            let main = !rank.finished()
                && (!rank.waits()
                    || match rank.main[rank.at] {
                        Main::Receive => rank.queue > 0 || !rank.mail.is_empty(),
                        _ => rank.completed > 0,
                    });
            main || rank.sleeps() == Some(false)
        };
        // Sends name their receivers, so nobody is freed by a thread that is not free.
        !self.ranks.iter().any(free) && self.ranks.iter().any(|rank| !rank.finished())
    }
}

fn poll(rank: &mut Rank, now: u64) -> bool {
    let before = rank.mail.len();
    rank.mail.retain(|due| *due > now);
    let came = before - rank.mail.len();
    rank.queue += came;
    rank.moved += came as u64;
    came > 0
}

fn take(count: &mut usize) -> bool {
    let any = *count > 0;
    *count -= usize::from(any);
    any
}

/// Runs a seed; whether it ended in a deadlock, whether that was said, and whether it was
/// said for certain.
fn play(seed: u64) -> (bool, bool) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let n = 2 + random(3);
    let mut ranks: Vec<Rank> = (0..n).map(|_| Rank::default()).collect();
    for (r, rank) in ranks.iter_mut().enumerate() {
        for _ in 0..random(6) {
            let to = (r + 1 + random(n - 1)) % n;
            let step = match random(6) {
                0 | 1 => Main::Send(to),
                2 => Main::Receive,
                3 => Main::Wake,
                4 => Main::Await,
                _ => Main::Compute(random(20) as u8),
            };
            rank.main.push(step);
        }
        rank.main.push(Main::Receive);
        for _ in 0..random(6) {
            let to = (r + 1 + random(n - 1)) % n;
            let step = match random(6) {
                0 | 1 => Other::Sleep,
                2 => Other::Timer(random(30) as u8),
                3 => Other::Compute(random(20) as u8),
                4 => Other::Send(to),
                _ => Other::Complete,
            };
            rank.other.push(step);
        }
    }
    let mut world = World { ranks, now: 1 };
    let said = |world: &World| {
        let said = probably_hangs(world.ranks.iter().map(Rank::standing), 1);
        assert!(
            !said || world.deadlocked(),
            "seed {seed}: a false alarm at {}: {:#?}",
            world.now,
            world.ranks
        );
        let certain = hangs(world.ranks.iter().map(Rank::standing));
        assert!(!certain || said, "seed {seed}: certain, and not probable");
        said
    };
    let mut found = false;
    for _ in 0..300 {
        world.now += 1;
        let r = random(n);
        match random(8) {
            // Others run in the middle of a look.
            0..3 => {
                let mut steps = [random(3 * n), random(3 * n), random(3 * n)].into_iter();
                let mut tick = |world: &mut World| {
                    world.now += 1;
                    match steps.next() {
                        Some(s) if s < n => drop(world.main(s, 3)),
                        Some(s) if s < 2 * n => drop(world.other(s - n, 3)),
                        _ => {}
                    }
                };
                world.observe(r, &mut tick);
            }
            3 | 4 => drop(world.other(r, random(20) as u64)),
            _ => drop(world.main(r, random(20) as u64)),
        }
        found |= said(&world);
    }
    // Whatever can go on does; then everyone looks.
    for _ in 0..200 {
        world.now += 30;
        for r in 0..n {
            while world.main(r, 1) || world.other(r, 1) {}
        }
    }
    let stuck = !world.ranks.iter().all(Rank::finished);
    // A thread outside that sleeps beside a finished rank may hold its universe: nothing
    // is said of that.
    let left = |rank: &Rank| rank.finished() && rank.sleeps().is_some();
    let silent = world.ranks.iter().any(left);
    assert_eq!(stuck, world.deadlocked(), "seed {seed}");
    for _ in 0..3 {
        for r in 0..n {
            world.now += 1;
            world.observe(r, &mut |world| world.now += 1);
            world.main(r, 1);
        }
        found = said(&world);
    }
    (stuck && !silent, found)
}

#[test]
fn no_false_alarm_and_no_deadlock_missed_beside_sleepers() {
    let (mut deadlocks, count) = (0, super::seeds());
    for seed in 0..count {
        let (stuck, found) = play(seed);
        assert_eq!(stuck, found, "seed {seed}: stuck {stuck}, said {found}");
        deadlocks += u64::from(stuck);
    }
    assert!(
        deadlocks > count / 10,
        "{deadlocks} deadlocks in {count} runs"
    );
}

#[test]
fn patience_counts_time_in_which_all_ranks_were_still() {
    let asleep = |since, polled| Standing::Asleep { since, polled };
    let quiet = |since, polled| Standing::Quiet { since, polled };
    let both = [asleep(10, 25), quiet(15, 40)];
    assert!(probably_hangs(both, 10));
    assert!(!probably_hangs(both, 11));
    assert!(!hangs(both));
    assert!(!probably_hangs([asleep(10, 25), quiet(25, 40)], 0));
    assert!(!probably_hangs([asleep(10, 90), Standing::Busy], 1));
    assert!(!probably_hangs([Standing::Gone { since: 1 }], 0));
    let dead = Standing::Gone { since: 20 };
    assert!(probably_hangs([asleep(10, 30), dead], 10));
    assert!(!probably_hangs([asleep(10, 30), dead], 11));
}
