//! Ends of ranks: events with a cause, whichever transport learns of them.

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// It has left the job in order: no failed rank, whatever its process does later.
    Finalized,
    /// Its process exited with this code, and the rank had not finalized: a failed rank,
    /// also if the code is 0.
    Exited(i32),
    /// Its process was killed by this signal, and the rank had not finalized.
    Signaled(i32),
    /// Its process has ended, nobody says how, and the rank had not finalized.
    Ended,
    /// It may live, but what it sends was overwritten: nobody hears it.
    Overwritten,
    /// Its connection was lost, and it had not finalized.
    Disconnected,
    /// It cannot be called over the network.
    Unreachable,
    /// Its host does not answer any more.
    Silent,
    /// It may live, and this rank has been cut off from it: it was declared dead itself, or is on
    /// a side of a cut network that does not go on.
    Apart,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Death::Finalized => f.write_str("has finalized"),
            Death::Exited(0) => f.write_str("exited with code 0 without finalizing"),
            Death::Exited(code) => write!(f, "exited with code {code}"),
            Death::Signaled(signal) => write!(f, "was killed by signal {signal}"),
            Death::Ended => f.write_str("has ended without finalizing"),
            Death::Disconnected => f.write_str("was lost: its connection has ended"),
            Death::Unreachable => f.write_str("cannot be reached over the network"),
            Death::Silent => f.write_str("was lost: its host does not answer"),
            Death::Apart => f.write_str("goes on without this rank"),
            Death::Overwritten => {
                f.write_str("cannot be heard: what it sent was overwritten in shared memory")
            }
        }
    }
}

impl Death {
    /// Whether the rank has failed. One that finalized has not.
    pub fn is_failure(self) -> bool {
        self != Death::Finalized
    }
}
