//! Program of a rank: actions over pieces of named buffers, and their graph.

use super::fused::Pair;
use super::graph::Graph;
use super::inline::InlineSchedule;
use crate::exec::cells::Cell;
use crate::exec::on_device::Work;
use osier_collectives::{Buffer, Operand, Region, Scratch};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends pieces to a rank. The tag's lower bits are left for segments.
    Send { to: u32, tag: u32, data: Region },
    /// Receives pieces from a rank.
    Receive { from: u32, tag: u32, data: Region },
    /// Copies pieces within the rank.
    Copy { from: Region, to: Region },
    /// `into = left op right`, piece by piece; `into` may be one of them.
    Combine {
        left: Region,
        right: Region,
        into: Region,
    },
    /// `into` becomes what all ranks have in `from`, combined in the balanced association: by
    /// one kernel of each rank's device.
    Exchange { from: Region, into: Region },
    /// Begins a call in the ranks' segment: see [`super::in_segment`].
    Enter,
    /// Says where this rank's input and result lie.
    Publish { input: Region, output: Region },
    /// Says how far this rank is.
    Raise { phase: u16 },
    /// Waits until a peer is so far.
    Await { from: u32, phase: u16 },
    /// Copies pieces of a peer's memory.
    Read {
        from: u32,
        data: Region,
        into: Region,
    },
    /// `into = left op right`, of which operands are a peer's memory.
    Fold {
        left: Operand,
        right: Operand,
        into: Region,
    },
    /// Copies a block to a cell of the slot, whose length its reader knows.
    Put { data: Region, cell: u32 },
    /// Copies a peer's block from its cell.
    Take { from: u32, cell: Cell, into: Region },
    /// Sends a block that is longer than its cell, if it is.
    SendLong {
        to: u32,
        tag: u32,
        data: Region,
        cell: u32,
    },
    /// Receives a block that is longer than its cell, if it is.
    ReceiveLong {
        from: u32,
        tag: u32,
        cell: Cell,
        into: Region,
    },
    /// Ends a call in the ranks' segment.
    Leave,
}

/// Bits of a tag for the segment: twice those that are in flight at a time.
pub const SEGMENT_TAGS: u32 = 32;
/// Bits of a tag for a message of a program, segments included.
pub const TAG_BITS: u32 = 20;

/// Where a run works whose buffers lie on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunsOn {
    /// Where this rank expects it to take less time: the plan was chosen by costs of the
    /// host.
    #[default]
    ByCost,
    /// There, if kernels can do it: the plan was chosen for that.
    Device,
    /// On the host, which was found to be quicker.
    Host,
    /// In one kernel of each rank's device, wherever the buffers lie.
    OneKernel,
}

/// How a call uses the sets of flags and slots of its ranks, as all ranks know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sets {
    /// Segments of the call: each uses a set.
    pub segments: u32,
    /// Slots change hands.
    pub changes_hands: bool,
    /// Only neighbors read what a rank writes.
    pub of_neighbors: bool,
    /// This rank writes its flag or slot. This alone is the rank's own.
    pub writes: bool,
}

/// Steps of one rank.
#[derive(Debug, Default)]
pub struct Program {
    pub graph: Graph,
    pub actions: Vec<Action>,
    /// Buffers of its own.
    pub scratch: Vec<Scratch>,
    /// Pieces into which a vector is cut.
    pub cut: u32,
    /// Steps that send while the rank itself receives, by bits.
    pub crossing: u128,
    /// Receives whose messages may be combined as they come, in order.
    pub pairs: Vec<Pair>,
    /// Its inline schedule, if it is short.
    pub inline: Option<InlineSchedule>,
    /// Where it works.
    pub runs_on: RunsOn,
    /// Its steps are those of [`super::in_segment`], one after the other.
    pub in_segment: bool,
    /// All ranks write slots and read those of all others, in turns.
    pub changes_hands: bool,
    /// One rank reads each piece of a slot.
    pub one_reader: bool,
    /// How long what goes to the slot is at least for peers to read it where it lies: it is one
    /// run of bytes, and nothing of the call is written there.
    pub least_lent: Option<usize>,
    /// Peers read this rank's buffers.
    pub publishes: bool,
    /// Cells of a slot, where contributions differ; 0 where they do not.
    pub cells: u32,
    /// Its flags and slots are for the neighbors of its rank alone.
    pub of_neighbors: bool,
    /// It writes its rank's flag or slot.
    pub writes: bool,
}

impl Program {
    /// Whether all regions of a segment are runs of bytes, where buffers of the user have so
    /// many pieces, each at a place of its own or one behind the other.
    pub fn lies_in_runs(&self, placed: bool, pieces: impl Fn(Buffer) -> u32) -> bool {
        let one = |r: &Region| {
            let of = match r.buffer {
                Buffer::Scratch(k) => self.scratch.get(usize::from(k)).map_or(0, |s| s.pieces),
                _ if placed => 0,
                user => pieces(user),
            };
            r.count <= 1 || (self.graph.segments() == 1 && r.lies_in_one(of))
        };
        self.actions.iter().all(|action| match action {
            Action::Send { data, .. } | Action::Receive { data, .. } => one(data),
            Action::Copy { from, to } => one(from) && one(to),
            Action::Combine { left, right, into } => one(left) && one(right) && one(into),
            Action::Exchange { from, into } => one(from) && one(into),
            // Never on devices.
            _ => false,
        })
    }

    /// How it uses the sets of its rank in a segment.
    #[inline]
    pub fn sets(&self) -> Sets {
        Sets {
            segments: self.graph.segments(),
            changes_hands: self.changes_hands,
            of_neighbors: self.of_neighbors,
            writes: self.writes,
        }
    }

    /// Steps that follow one another from the first on; those behind them are messages of cells, but
    /// for the last.
    pub fn row(&self) -> usize {
        let message =
            |a: &Action| matches!(a, Action::SendLong { .. } | Action::ReceiveLong { .. });
        let messages = self.actions.iter().position(message);
        messages.unwrap_or(self.actions.len().saturating_sub(1))
    }

    /// Whether a step sends while nothing keeps the rank from receiving.
    #[inline]
    pub fn crosses(&self, step: u32) -> bool {
        self.crossing.checked_shr(step).unwrap_or(0) & 1 != 0
    }

    /// Its total work, with these bytes of a piece of each buffer. Messages count in one
    /// direction, in which there are more.
    pub fn work(&self, piece_bytes: impl Fn(Buffer) -> usize) -> Work {
        let segments = self.graph.segments() as usize;
        let mut work = Work::default();
        let mut ways = [(0, 0); 2];
        let bytes = |region: &Region| region.count as usize * piece_bytes(region.buffer);
        for action in &self.actions {
            match action {
                Action::Send { data, .. } | Action::Receive { data, .. } => {
                    let way = &mut ways[usize::from(matches!(action, Action::Send { .. }))];
                    way.0 += segments;
                    way.1 += bytes(data);
                }
                Action::Copy { to: region, .. }
                | Action::Combine { into: region, .. }
                | Action::Exchange { into: region, .. } => {
                    work.kernels += segments;
                    work.kernel_bytes += bytes(region);
                }
                _ => {}
            }
        }
        let [received, sent] = ways;
        work.messages = received.0.max(sent.0);
        work.message_bytes = received.1.max(sent.1);
        work
    }
}
