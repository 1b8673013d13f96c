//! Random traffic: which act comes next.

use super::act::{Act, By, Want};
use super::case::How;
use super::memory::draw_layout;
use super::plan::{Plan, Weights, shuffle};
use super::world::{Receiving, Sending, World};
use osier_engine::matching::Envelope;

/// Acts after everything was posted.
const EXTRA: usize = 20;
/// Generalised requests under way.
const GENERAL: usize = 4;
/// Starts of each end of a partitioned transfer.
const STARTS: usize = 3;

/// Draws the acts of one seed from the dice of its world.
pub(super) struct Draw {
    weights: Weights,
    wild: usize,
    small: usize,
    late: bool,
    /// Messages that each rank has not sent, last first.
    unsent: Vec<Vec<usize>>,
    /// Messages for which a receive is still to be posted.
    wanted: Vec<usize>,
    extra: usize,
    deaths: usize,
    requests: bool,
}

impl Draw {
    /// What comes after the plan.
    pub fn new(plan: &Plan, world: &mut World) -> Self {
        let messages = &plan.case.messages;
        let mut unsent = vec![Vec::new(); plan.case.net.ranks as usize];
        for (m, planned) in messages.iter().enumerate() {
            unsent[planned.from as usize].push(m);
        }
        unsent.iter_mut().for_each(|u| u.reverse());
        let mut wanted: Vec<usize> = (0..messages.len()).collect();
        shuffle(&mut world.rng, &mut wanted);
        Self {
            weights: plan.weights.clone(),
            wild: plan.wild,
            small: plan.small,
            late: plan.late,
            unsent,
            wanted,
            extra: EXTRA,
            deaths: 0,
            requests: plan.weights.extra > 0,
        }
    }

    /// Plays until nothing is left to post.
    pub fn play(mut self, world: &mut World) -> Result<(), String> {
        loop {
            self.forget_dead(world);
            if self.wanted.is_empty() && self.unsent.iter().all(Vec::is_empty) {
                if self.extra == 0 {
                    return Ok(());
                }
                self.extra -= 1;
            }
            if let Some(act) = self.next(world) {
                world.perform(act)?;
            }
        }
    }

    fn forget_dead(&mut self, world: &World) {
        let deaths = world.alive.iter().filter(|a| !**a).count();
        if deaths == self.deaths {
            return;
        }
        self.deaths = deaths;
        let alive = &world.alive;
        for (unsent, alive) in self.unsent.iter_mut().zip(alive) {
            if !alive {
                unsent.clear();
            }
        }
        let messages = &world.messages;
        self.wanted
            .retain(|m| alive[messages[*m].to as usize] && alive[messages[*m].from as usize]);
    }

    fn next(&mut self, world: &mut World) -> Option<Act> {
        let w = &self.weights;
        let unsent = self.unsent.iter().any(|u| !u.is_empty());
        let hold = self.late && unsent;
        let weights = [
            if unsent { w.send } else { 0 },
            if self.wanted.is_empty() || hold {
                0
            } else {
                w.receive
            },
            w.progress,
            w.clock,
            w.test,
            w.probe,
            w.revoke_receive,
            w.revoke_send,
            w.detach,
            if world.notices.is_empty() {
                0
            } else {
                w.notice
            },
            w.corrupt,
            usize::from(!world.matched.is_empty()) * 3,
            w.extra,
            w.finalize,
            usize::from(!world.alive.iter().all(|a| *a)) * w.acknowledge,
        ];
        let mut at = world.rng.below(weights.iter().sum());
        let mut kind = 0;
        while at >= weights[kind] {
            at -= weights[kind];
            kind += 1;
        }
        match kind {
            0 => self.send(world),
            1 => self.receive(world),
            2 => {
                let (rank, context) = somewhere(world);
                Some(Act::Progress { rank, context })
            }
            3 => Some(if world.rng.one_in(2) {
                Act::Advance(world.rng.below(20_000) as u64)
            } else {
                Act::NextEvent
            }),
            4 => Some(Act::Harvest),
            5 => self.probe(world),
            6 => revoke_receive(world),
            7 => revoke_send(world),
            8 => detach(world),
            9 => {
                let (to, dead) = world.notices[world.rng.below(world.notices.len())];
                Some(Act::Notice { to, dead })
            }
            10 => world.rng.one_in(8).then(|| {
                let (from, to) = (somewhere(world).0, somewhere(world).0);
                Act::Corrupt { from, to }
            }),
            12 => another(world),
            13 => Some(Act::Finalize {
                rank: somewhere(world).0,
            }),
            14 => {
                let (rank, context) = somewhere(world);
                Some(Act::Acknowledge { rank, context })
            }
            _ => {
                let at = world.rng.below(world.matched.len());
                Some(world.draw_matched(at))
            }
        }
    }

    fn send(&mut self, world: &mut World) -> Option<Act> {
        let ranks = self.unsent.len();
        let start = world.rng.below(ranks);
        // A persistent send that is active waits for its end.
        let can = |unsent: &[usize]| unsent.last().is_some_and(|m| world.can_send(*m));
        let mut order = (0..ranks).map(|at| (start + at) % ranks);
        let Some(rank) = order.find(|at| can(&self.unsent[*at])) else {
            // Nobody may ever receive what they wait for: some stay unsent.
            if world.rng.one_in(20) {
                for unsent in &mut self.unsent {
                    unsent.pop();
                }
            }
            return None;
        };
        let m = self.unsent[rank].pop()?;
        if world.messages[m].how != How::Exchange {
            return Some(Act::Send(m));
        }
        // Into its memory goes a message that its rank waits for.
        let (context, rank) = (world.messages[m].context, world.messages[m].from);
        let ours =
            |w: &usize| (world.messages[*w].context, world.messages[*w].to) == (context, rank);
        let Some(at) = self.wanted.iter().position(ours) else {
            return Some(Act::Send(m));
        };
        let wanted = self.wanted.swap_remove(at);
        let want = self.want(world, wanted);
        let id = world.receives.len();
        Some(Act::Exchange { m, id, want })
    }

    /// What accepts a message, more or less exactly.
    fn want(&self, world: &mut World, m: usize) -> Want {
        let Envelope { source, tag } = world.envelope(m);
        let mut want = Want {
            source: Some(source),
            tag: Some(tag),
        };
        if world.rng.below(8) < self.wild {
            let which = world.rng.below(3);
            if which != 0 {
                want.source = None;
            }
            if which != 1 {
                want.tag = None;
            }
        }
        want
    }

    fn receive(&mut self, world: &mut World) -> Option<Act> {
        let m = self.wanted.pop()?;
        let want = self.want(world, m);
        let (context, rank, bytes) = {
            let m = &world.messages[m];
            (m.context, m.to, m.bytes)
        };
        let layout = draw_layout(&mut world.rng, bytes);
        let room = if world.rng.below(32) < self.small {
            world.rng.below(bytes + 1)
        } else if world.rng.one_in(4) {
            bytes + world.rng.below(100)
        } else {
            bytes + 16 * usize::from(layout.is_some())
        };
        let direct = world.rng.one_in(8);
        let by = match (self.requests, world.messages[m].how) {
            (true, How::Persistent(group)) if world.rng.one_in(2) => By::Persistent(group),
            (true, _) if world.rng.one_in(3) => By::Request,
            _ => By::Lane,
        };
        Some(Act::Receive {
            id: world.receives.len(),
            rank,
            context,
            want,
            layout,
            room,
            direct: direct && by == By::Lane,
            by,
        })
    }

    fn probe(&mut self, world: &mut World) -> Option<Act> {
        let m = world.rng.below(world.messages.len());
        let want = self.want(world, m);
        let (rank, context) = (world.messages[m].to, world.messages[m].context);
        if !world.alive[rank as usize] {
            return None;
        }
        Some(Act::Probe {
            id: world.receives.len(),
            rank,
            context,
            want,
            takes: world.rng.one_in(2),
        })
    }
}

/// What only requests can do.
fn another(world: &mut World) -> Option<Act> {
    match world.rng.below(if world.parted.is_empty() { 4 } else { 9 }) {
        0 => cancel(world),
        1 => {
            let (rank, context) = somewhere(world);
            let id = world.step as usize;
            let there = world.buffers.contains_key(&(rank, context));
            there.then_some(Act::Flush { id, rank, context })
        }
        2 => {
            let (id, rank) = (world.step as usize, somewhere(world).0);
            let open = world.generals.values().filter(|g| g.is_open()).count();
            (open < GENERAL).then_some(Act::Begin { id, rank })
        }
        3 => {
            let open = world.generals.iter().filter(|(_, g)| g.is_open());
            let id = *open.map(|(id, _)| id).next()?;
            let drops = world.rng.one_in(3);
            Some(Act::Finish { id, drops })
        }
        kind => {
            let q = world.rng.below(world.parted.len());
            let (sends, receives) = (world.parted[q].sends, world.parted[q].receives);
            match kind {
                4 => (world.part_starts(q).0 < STARTS).then_some(Act::PartSend(q)),
                5 => (world.part_starts(q).1 < STARTS).then_some(Act::PartReceive(q)),
                6 | 7 => {
                    let at = world.rng.below(sends);
                    Some(Act::PartReady { q, at })
                }
                _ => {
                    let at = world.rng.below(receives);
                    Some(Act::PartLook { q, at })
                }
            }
        }
    }
}

fn cancel(world: &mut World) -> Option<Act> {
    let pending = |r: &&super::world::Receive| r.state == Receiving::Pending;
    let ids: Vec<usize> = world
        .receives
        .iter()
        .filter(pending)
        .map(|r| r.id)
        .collect();
    if ids.is_empty() {
        return None;
    }
    Some(Act::Cancel(world.rng.pick(&ids)))
}

fn somewhere(world: &mut World) -> (u32, usize) {
    let rank = world.rng.below(world.ranks as usize) as u32;
    (rank, {
        let contexts = world.contexts();
        world.rng.below(contexts)
    })
}

fn revoke_receive(world: &mut World) -> Option<Act> {
    if world.receiving.is_empty() || !world.rng.one_in(2) {
        return None;
    }
    let r = world.receiving[world.rng.below(world.receiving.len())];
    let receive = &world.receives[r];
    (receive.state == Receiving::Pending).then_some(Act::RevokeReceive(receive.id))
}

fn revoke_send(world: &mut World) -> Option<Act> {
    if world.sends.is_empty() || !world.rng.one_in(2) {
        return None;
    }
    let m = world.sends[world.rng.below(world.sends.len())];
    (world.messages[m].state == Sending::Pending).then_some(Act::RevokeSend(m))
}

fn detach(world: &mut World) -> Option<Act> {
    if world.rng.one_in(2) {
        if world.sends.is_empty() {
            return None;
        }
        let m = world.sends[world.rng.below(world.sends.len())];
        Some(Act::DetachSend(m))
    } else {
        if world.receiving.is_empty() {
            return None;
        }
        let r = world.receiving[world.rng.below(world.receiving.len())];
        Some(Act::DetachReceive(world.receives[r].id))
    }
}
