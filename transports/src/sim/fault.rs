//! Injected faults of the simulated network, for tests of the tests: a bed that finds none of
//! them shows nothing.

/// What goes wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The message vanishes; its credit returns.
    Lose,
    /// The message arrives twice.
    Repeat,
    /// The message arrives before the one posted before it on the same link;
    /// waits for a message that has another before it.
    Overtake,
    /// The message arrives, and its credit never returns.
    KeepCredit,
    /// The next get or put between the two misses its last byte.
    ShortCopy,
}

/// A fault that waits for its message or operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who posts.
    pub from: u32,
    /// To whom; the owner of the region for [`Wrong::ShortCopy`].
    pub to: u32,
    /// Kind of the message; `None`: any.
    pub kind: Option<u8>,
    /// What goes wrong.
    pub what: Wrong,
}

/// Something that the network did, for a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimEvent {
    /// Virtual time.
    pub time_ns: u64,
    /// What was done.
    pub what: Did,
    /// Who posted; of an operation, who started it.
    pub from: u32,
    /// Who receives; of an operation, the owner of the region.
    pub to: u32,
    /// The channel.
    pub channel: u64,
    /// Kind of the message; 0 of an operation.
    pub kind: u8,
    /// Bytes of the payload, or of the operation.
    pub bytes: usize,
}

/// What the network did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Took a message.
    Post,
    /// Handed a message to its receiver.
    Deliver,
    /// Dropped a message: its receiver is dead or has left, or a fault.
    Drop,
    /// Started a get, put or atomic.
    Start,
    /// Ended one.
    End,
}

/// What is on its way in a network that holds it until it is told
/// ([`SimOptions::held`]).
///
/// [`SimOptions::held`]: super::SimOptions::held
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The first message of a link.
    Message {
        /// Who posted it.
        from: u32,
        /// Who is to receive it.
        to: u32,
        /// The channel.
        channel: u64,
    },
    /// A one-sided operation.
    Operation {
        /// Who started it.
        rank: u32,
        /// The channel.
        channel: u64,
        /// Its number there.
        number: u64,
    },
}
