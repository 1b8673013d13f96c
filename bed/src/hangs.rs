//! The verdict on hangs, on the real engine: what it says to be stuck never
//! moves again by itself, and what never moves again it says to be stuck.
//!
//! At the end of a run nobody posts any more: each rank is one thread that
//! waits for whatever it has under way, and looks at its queues now and then.
//! The simulated network holds messages back, and says so.

use super::world::{Check, World};
use osier::internals::lane;
use osier_engine::diagnose::verdict::{Quiet, Standing, hangs};

/// What the ranks tell of themselves, and what was said of it.
#[derive(Default)]
pub(super) struct Hangs {
    /// By rank; time is counted in looks.
    quiet: Vec<Quiet>,
    /// By rank: when it was first seen dead; 0: it lives.
    dead: Vec<u64>,
    now: u64,
    /// The job was said to hang.
    said: bool,
}

impl Hangs {
    /// Something was done to a rank from outside: all begin anew.
    pub fn stir(&mut self) {
        self.quiet.clear();
        self.said = false;
    }

    /// Something has moved by itself.
    pub fn moved(&self) -> Check {
        if self.said {
            return Err("a false alarm: the job was said to hang, and something moved".into());
        }
        Ok(())
    }
}

impl World {
    /// One rank looks at its queues; whether anything moved.
    pub fn look(&mut self, rank: usize, state: &mut Hangs) -> Check<bool> {
        let contexts = self.contexts();
        state.quiet.resize(self.ranks as usize, Quiet::default());
        state.now += 1;
        let began = state.now;
        let mut found = self.net.in_flight().operations > 0;
        self.net
            .each_message(|_, to, _, _, _| found |= to as usize == rank);
        let (mut moved, mut moves) = (0u64, false);
        for context in 0..contexts {
            let mut lane = self.lane(rank as u32, context);
            moves |= lane.progress();
            found |= lane.unsettled();
            moved += lane.moved();
        }
        found |= moves;
        state.now += 1;
        // Its results are taken after every round: its check was in vain.
        state.quiet[rank].observe(!found, moved, u64::MAX, (began, state.now));
        self.note_deaths();
        if found {
            state.moved()?;
        }
        Ok(moves)
    }

    /// Whether the job is said to hang.
    pub fn hangs(&self, state: &mut Hangs) -> bool {
        state.dead.resize(self.ranks as usize, 0);
        for (alive, dead) in self.alive.iter().zip(&mut state.dead) {
            if !*alive && *dead == 0 {
                state.now += 1;
                *dead = state.now;
            }
        }
        let standing = |rank: usize| match state.dead[rank] {
            0 => state
                .quiet
                .get(rank)
                .map_or(Standing::Busy, Quiet::standing),
            since => Standing::Gone { since },
        };
        let said = hangs((0..self.ranks as usize).map(standing));
        state.said |= said;
        said
    }

    /// Everything has come to an end: that must be said of it, unless
    /// something waits for memory and may go on. True if a look finds that it
    /// has not, because what a rank did after the last round is under way.
    pub fn must_hang(&mut self, state: &mut Hangs) -> Check<bool> {
        self.hangs(state);
        for _ in 0..2 {
            for rank in 0..self.ranks as usize {
                if self.alive[rank] && self.look(rank, state)? {
                    return Ok(true);
                }
            }
        }
        let mut comms = self.seats.iter().flatten().flat_map(|seat| &seat.comms);
        let unsettled = comms.any(|c| lane(c).lock().unsettled());
        let nobody = !self.alive.contains(&true);
        if self.hangs(state) || unsettled || nobody || !self.notices.is_empty() {
            return Ok(false);
        }
        Err("a hang was missed: nothing moves, and nobody says so".into())
    }
}
