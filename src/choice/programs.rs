//! Programs of a rank's communicators: those that would have the same share it.
//!
//! A program follows from the call, the algorithm and the rank, so a duplicate or the communicator of
//! a window has those of others with as many ranks.

use super::Chosen;
use osier_collectives::Call;
use osier_engine::error::Result;
use osier_engine::exec::program::Program;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a program follows from.
#[derive(PartialEq)]
struct Key {
    call: Call,
    chosen: Chosen,
    rank: u32,
}

/// Programs that a communicator of the rank has.
#[derive(Default)]
pub(crate) struct Programs(Mutex<Vec<(Key, Weak<Program>)>>);

impl Programs {
    /// The program of a call at a rank of its communicator, made if no communicator has it.
    pub fn of(
        &self,
        call: &Call,
        chosen: Chosen,
        rank: u32,
        make: impl FnOnce(&Call, &Chosen) -> Result<Program>,
    ) -> Result<Arc<Program>> {
        let call = call.clone();
        let key = Key { call, chosen, rank };
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |(known, program): &(Key, Weak<Program>)| match *known == key {
            true => program.upgrade(),
            false => None,
        };
        if let Some(program) = lock().iter().find_map(known) {
            return Ok(program);
        }
        let program = Arc::new(make(&key.call, &key.chosen)?);
        let mut all = lock();
        all.retain(|(_, program)| program.strong_count() > 0);
        all.push((key, Arc::downgrade(&program)));
        Ok(program)
    }
}
