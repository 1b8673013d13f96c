//! Event of one thread, a cache line.
//!
//! ```text
//! byte 0      8     9      10          16       24     32    36
//!      time   kind  phase  duration48  context  bytes  peer  world
//!      40   44    48      56
//!      tag  site  number  0            (little endian; times in ns)
//! ```

use crate::error::{Error, ErrorKind, Result};

/// Bytes of an event in a file.
pub const EVENT_BYTES: usize = 64;
/// Stands for any source, any tag, or nobody.
pub const ANY: u32 = u32::MAX;
/// Longest duration that is recorded, in ns: three days.
const LONGEST_NS: u64 = (1 << 48) - 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $name:literal, $category:literal;)*) => {
        /// Kind of event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $kind = $number,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// Its name in a timeline.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }

            /// Its category: `call`, `protocol` or `task`.
            pub fn category(self) -> &'static str {
                match self { $(Kind::$kind => $category,)* }
            }

            fn from_number(number: u8) -> Option<Kind> {
                match number { $($number => Some(Kind::$kind),)* _ => None }
            }
        }
    };
}

kinds! {
    /// A blocking send.
    Send = 1, "send", "call";
    /// A blocking receive.
    Recv = 2, "recv", "call";
    /// A combined send and receive.
    SendRecv = 3, "sendrecv", "call";
    /// A send was started.
    Isend = 4, "isend", "call";
    /// A receive was started.
    Irecv = 5, "irecv", "call";
    /// Waits for one operation.
    Wait = 6, "wait", "call";
    /// Waits for the transfers of a scope, or for several requests.
    WaitAll = 7, "wait all", "call";
    /// Waits for a message without receiving it.
    Probe = 8, "probe", "call";
    /// A probe found a message; probes that find none are not recorded.
    Iprobe = 9, "iprobe", "call";
    /// A test found its request complete; tests that do not are not recorded.
    Test = 10, "test", "call";
    /// A collective.
    Barrier = 16, "barrier", "call";
    /// A collective.
    Bcast = 17, "bcast", "call";
    /// A collective.
    Gather = 18, "gather", "call";
    /// A collective.
    Allgather = 19, "allgather", "call";
    /// A collective.
    Allreduce = 20, "allreduce", "call";
    /// A communicator is made.
    Split = 21, "make communicator", "call";
    /// A collective.
    Scatter = 22, "scatter", "call";
    /// A collective.
    Alltoall = 23, "alltoall", "call";
    /// A collective: any reduction but an allreduce.
    Reduce = 24, "reduce", "call";
    /// A whole message was posted eagerly: a start.
    Eager = 32, "eager", "protocol";
    /// The first fragment of a message was posted eagerly: a start.
    EagerFirst = 33, "first fragment", "protocol";
    /// An RTS was posted: a start.
    Rts = 34, "rts", "protocol";
    /// A fragment was posted.
    Fragment = 35, "fragment", "protocol";
    /// The receiver posted a CTS.
    Cts = 36, "cts", "protocol";
    /// The receiver no longer needs the sender's memory.
    Fin = 37, "fin", "protocol";
    /// A slice was read from the sender's memory.
    Pull = 38, "pull", "protocol";
    /// A slice was written into the receiver's memory.
    Push = 39, "push", "protocol";
    /// A fragment was received.
    FragmentIn = 40, "fragment received", "protocol";
    /// A start matched no receive.
    Unexpected = 41, "unexpected", "protocol";
    /// A receive has its whole message.
    Received = 42, "received", "protocol";
    /// The receiver matched a synchronous send.
    Ack = 43, "ack", "protocol";
    /// The peer was asked for, or gave, a rendezvous; matched.
    Matched = 44, "matched", "protocol";
    /// A task begins: of its family, which is the site; number in it, and firing in `bytes`.
    TaskInit = 48, "init", "task";
    /// A task's own rule is asked.
    TaskInject = 49, "inject", "task";
    /// A task fires.
    TaskExecute = 50, "execute", "task";
    /// A task puts a message for the tasks of one rank: place of the branch and number of the
    /// message in `number`, which both ends know, and the run in `tag`.
    TaskPut = 51, "put", "task";
    /// A message belongs to the call of its task.
    TaskRead = 52, "read", "task";
}

impl Kind {
    /// Whether a message begins with it.
    pub fn is_start(self) -> bool {
        matches!(self, Kind::Eager | Kind::EagerFirst | Kind::Rts)
    }

    /// Whether it is a call of a task.
    pub fn is_task(self) -> bool {
        matches!(self, Kind::TaskInit | Kind::TaskInject | Kind::TaskExecute)
    }

    /// Whether it is an end of a message along an edge.
    pub fn is_edge(self) -> bool {
        matches!(self, Kind::TaskPut | Kind::TaskRead)
    }
}

/// Phase of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// It begins.
    Begin = 0,
    /// The innermost open span of its thread ends.
    End = 1,
    /// A whole span, with its duration.
    Whole = 2,
}

/// An event of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub kind: Kind,
    /// Its phase.
    pub phase: Phase,
    /// Begin of the span; of an end, the time of the end.
    pub time_ns: u64,
    /// Duration of a whole span.
    pub duration_ns: u64,
    /// The communicator.
    pub context: u64,
    /// Bytes of the message, or of the piece.
    pub bytes: u64,
    /// The peer's number in the communicator.
    pub peer: u32,
    /// The peer's number in the job.
    pub world: u32,
    /// The tag.
    pub tag: u32,
    /// The user's line, or the family of a task: a number in the table of the file, 0 for
    /// none.
    pub site: u32,
    /// The message's number from sender to receiver on the communicator, from
    /// 1; 0 if the event belongs to no message.
    pub number: u64,
}

impl Event {
    /// An event with a kind and no other field.
    #[inline]
    pub fn of(kind: Kind) -> Event {
        Event {
            kind,
            phase: Phase::Whole,
            time_ns: 0,
            duration_ns: 0,
            context: 0,
            bytes: 0,
            peer: ANY,
            world: ANY,
            tag: ANY,
            site: 0,
            number: 0,
        }
    }

    /// The time of recording.
    pub fn recorded_ns(&self) -> u64 {
        self.time_ns.saturating_add(self.duration_ns)
    }

    /// The form in a file.
    #[inline]
    pub fn to_words(&self) -> [u64; 8] {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            self.time_ns,
            self.kind as u64 | (self.phase as u64) << 8 | self.duration_ns.min(LONGEST_NS) << 16,
            self.context,
            self.bytes,
            two(self.peer, self.world),
            two(self.tag, self.site),
            self.number,
            0,
        ]
    }

    /// Reads that form.
    ///
    /// # Errors
    /// Anything that [`Event::to_words`] never writes.
    pub fn from_words(w: &[u64; 8]) -> Result<Event> {
        let bad = |what: &str| Error::new(ErrorKind::Malformed, format!("an event with {what}"));
        let kind = Kind::from_number(w[1] as u8).ok_or_else(|| bad("an unknown kind"))?;
        let phase = match (w[1] >> 8) as u8 {
            0 => Phase::Begin,
            1 => Phase::End,
            2 => Phase::Whole,
            _ => return Err(bad("an unknown phase")),
        };
        let duration_ns = w[1] >> 16;
        if phase != Phase::Whole && duration_ns != 0 {
            return Err(bad("a duration that its phase does not have"));
        }
        if w[0].checked_add(duration_ns).is_none() {
            return Err(bad("an end beyond 2^64 ns"));
        }
        if w[7] != 0 {
            return Err(bad("a reserved word that is not 0"));
        }
        Ok(Event {
            kind,
            phase,
            time_ns: w[0],
            duration_ns,
            context: w[2],
            bytes: w[3],
            peer: w[4] as u32,
            world: (w[4] >> 32) as u32,
            tag: w[5] as u32,
            site: (w[5] >> 32) as u32,
            number: w[6],
        })
    }
}
