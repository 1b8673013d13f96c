//! Malformed messages of a lane, for tests.

use osier::Communicator;
use osier::internals::lane;
use osier_engine::wire;

/// A message of a lane as somebody might write it who knows no rules.
#[derive(Clone, Debug)]
pub struct Word {
    /// Its kind, by number.
    pub kind: u8,
    /// What this means depends on the kind, as all that follows.
    pub aux: u16,
    /// Half of the argument.
    pub low: u32,
    /// The other half.
    pub high: u32,
    /// What comes behind.
    pub body: Vec<u8>,
}

impl Word {
    /// The kind of this name.
    pub fn kind_of(name: &str) -> Option<u8> {
        (0..u8::MAX).find(|kind| wire::name(*kind) == name)
    }
}

/// Posts a message to a peer as it is, past all rules.
pub fn post(comm: &Communicator, peer: usize, word: &Word) {
    let head = wire::head(word.kind, word.aux, word.low, word.high);
    let peer = u32::try_from(peer).expect("few ranks");
    while !lane(comm).lock().post_as_is(peer, head, &word.body) {
        // Makes progress.
        let _ = comm.iprobe(peer as usize, 0);
    }
}

/// Messages that this rank has refused, because no correct peer writes them.
pub fn malformed(comm: &Communicator) -> u64 {
    lane(comm).lock().counters().malformed
}
