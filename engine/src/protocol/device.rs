//! Cost model of device messages: predicted time and pipeline of each protocol.
//!
//! For a message of `n` bytes in pieces of `f`, `p(f)` the time in which the sender fills
//! a piece and `u(f)` that in which the receiver empties it, `L` and `o` the latency and
//! overhead of an active message, `c` the time in which the host copies a byte:
//!
//! | protocol | time |
//! |---|---|
//! | at once, through rings | `p(n) + L + 2 n c + u(n)`, each of `p` and `u` by the cheapest means |
//! | slots handed over | `s + L + o + u(f) + (n / f - 1) max(p(f), u(f), (s + u(f) + 2 (L + o)) / d)` |
//! | fragments through rings | the same, with `2 f c` between |
//! | one kernel reads | `2 L + k + n max(r, w)` |
//! | one kernel writes | `3 L + k + n max(r, w)` |
//! | slots of a device handed over | as slots, with `p` and `u` within the device |
//!
//! `s`, the time until the first piece is there, is `p(f)` at a device, which packs while
//! it is announced, or the handshake `2 L` if that is longer; at a host both follow each
//! other. `d` pieces are in flight at a time (where there are no more, none waits for
//! another to come back). A kernel takes `k` until its end is seen, and
//! each byte the longest of what the layout takes, what the link to the host takes, and
//! what its thread blocks take together. A copy of one run takes the copy engine.
//!
//! Where two processes take turns on a device ([`Turns`]), the work of one does not begin before
//! the other's has ended, and then after a turn: the driver changes contexts, some 150 us. A
//! message that one kernel carries needs none if the same process does all that either could.
//! Slots are filled in rounds, as many as there are in a turn, and emptied in another. Copy
//! engines between a device and the host work for both at once.
//!
//! A short message of one run is moved by the copy engine, by a kernel, or by the processor
//! through a BAR1 window, where there is one ([`Means`]); what has gaps by a kernel.
//!
//! Where the two devices are linked, what crosses the link takes as long as the link, and
//! longer if a kernel reads it in blocks. So a receiver with gaps copies a slot to its
//! own device first where that is quicker, and unpacks it there: `u` is the copy, and the
//! unpacking a stage of its own.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis,
//! University of Tennessee, 2017, section 4.3.3: a pipeline costs one piece of each stage
//! beyond the slowest stage; as many thread blocks as keep packing no slower than the
//! link (figures 4.15 and 4.16).

use super::Protocol;
use super::cost::{LinkCosts, MAX_FRAGMENT_BYTES};
use crate::wire;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Least bytes of a piece of a long message.
pub const LEAST_FRAGMENT_BYTES: usize = 64 << 10;
/// Most bytes of a piece.
pub const MOST_FRAGMENT_BYTES: usize = 4 << 20;
/// Most pieces in flight.
pub const MOST_DEPTH: usize = 8;
/// Least bytes of a piece in a device's memory: less does not fill it.
pub const LEAST_DEVICE_SLOT_BYTES: usize = 256 << 10;
/// Messages up to here are eager, also without a posted receive: no rendezvous.
pub const SHORT_BYTES: usize = 8 << 10;

// An engine's fragment is sent from one piece, and CTS counts pieces in its units.
const _: () = assert!(MAX_FRAGMENT_BYTES <= LEAST_FRAGMENT_BYTES);
const _: () = assert!(LEAST_FRAGMENT_BYTES.is_multiple_of(wire::WINDOW_BYTES));

/// Costs of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCosts {
    /// From a kernel's launch until its end is seen, without its work, in ns.
    pub launch_ns: f64,
    /// From a copy's start until its end is seen, without its work, in ns.
    pub copy_ns: f64,
    /// Packing one byte by one thread block, in ns.
    pub block_ns_per_byte: f64,
    /// Packing one byte within the device's memory by all blocks that it has room for,
    /// in ns, by [`Class`].
    pub pack_ns_per_byte: [f64; 3],
    /// Moving one byte to the host, in ns.
    pub to_host_ns_per_byte: f64,
    /// Moving one byte from the host, in ns.
    pub to_device_ns_per_byte: f64,
    /// Copying one byte to or from a linked device, in ns.
    #[serde(default = "peer_ns")]
    pub peer_ns_per_byte: f64,
    /// Moving one byte of a block to or from a linked device by a kernel, in ns.
    #[serde(default = "peer_block_ns")]
    pub peer_block_ns_per_byte: f64,
    /// From the end of one process's work on a device to the begin of another's where
    /// processes take turns, in ns.
    #[serde(default = "turn_ns")]
    pub turn_ns: f64,
    /// The processor's copies through a BAR1 window, where there is one.
    #[serde(default, alias = "aperture")]
    pub bar1: Bar1Costs,
}

/// Costs of a window in the processor's addresses through which it reads and writes a
/// device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar1Costs {
    /// Reading the first byte, in ns.
    pub read_ns: f64,
    /// Reading each byte, in ns.
    pub read_ns_per_byte: f64,
    /// Writing the first byte, in ns.
    pub write_ns: f64,
    /// Writing each byte, in ns.
    pub write_ns_per_byte: f64,
}

impl Default for Bar1Costs {
    /// After the figures that gdrcopy's own documentation gives for PCIe 3.0 to 5.0, not
    /// measured: reads are not cached and not combined, writes are combined.
    fn default() -> Self {
        Self {
            read_ns: 1000.0,
            read_ns_per_byte: 2.5,
            write_ns: 200.0,
            write_ns_per_byte: 0.15,
        }
    }
}

/// Of devices on NVLink, from data sheets; not measured anywhere yet.
fn peer_ns() -> f64 {
    0.0025
}

fn peer_block_ns() -> f64 {
    0.0028
}

/// Without the multi-process service (MPS): what messages of 8 bytes and of 4 MiB took longer
/// between two processes than between threads on one H200 (driver 580.159.04, 2026-11-26).
fn turn_ns() -> f64 {
    145_000.0
}

impl Default for DeviceCosts {
    /// Estimated from data sheets of a Hopper GPU on PCIe 5.0, not measured: a rough
    /// start until `osier info --protocols --measure` has measured the device at hand.
    fn default() -> Self {
        Self {
            launch_ns: 6000.0,
            copy_ns: 5000.0,
            block_ns_per_byte: 0.1,
            pack_ns_per_byte: [0.0007, 0.0009, 0.002],
            to_host_ns_per_byte: 0.02,
            to_device_ns_per_byte: 0.02,
            peer_ns_per_byte: peer_ns(),
            peer_block_ns_per_byte: peer_block_ns(),
            turn_ns: turn_ns(),
            bar1: Bar1Costs::default(),
        }
    }
}

/// Layouts that cost alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// One run of bytes.
    Run = 0,
    /// Blocks at equal distances.
    Strided = 1,
    /// Blocks from a list.
    Listed = 2,
}

impl Class {
    /// Of `count` instances of a layout.
    pub fn of(layout: &osier_datatype::Layout, count: usize) -> Class {
        use osier_datatype::Class as Form;
        match layout.class() {
            _ if layout.contiguous_at(count).is_some() => Class::Run,
            Form::Contiguous | Form::Strided { .. } => Class::Strided,
            _ => Class::Listed,
        }
    }
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Memory that the processor packs and unpacks.
    Host,
    /// Host memory that is handed over as a device's: kernels reach it.
    Pinned,
    /// A device's memory.
    Device,
}

/// One end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Where it lies.
    pub space: Space,
    /// How.
    pub class: Class,
}

/// Where reductions of a device's memory combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reductions {
    /// Where it is expected to take less time.
    #[default]
    Auto,
    /// On the device, wherever it can.
    Device,
    /// On the host.
    Host,
}

/// The pieces of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Bytes of a piece: a power of two.
    pub fragment: usize,
    /// Pieces in flight at a time.
    pub depth: usize,
}

/// What a message may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pinned memory, in bytes.
    pub memory: usize,
    /// Memory of the device for slots, in bytes.
    pub device_memory: usize,
    /// Thread blocks.
    pub blocks: u32,
}

/// A protocol and its predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    pub protocol: Protocol,
    /// Its pieces.
    pub pipeline: Pipeline,
    /// Thread blocks of the sender's kernels and of the receiver's; 0: there are none.
    pub grids: (u32, u32),
    /// In ns.
    pub ns: f64,
}

/// What predicts: a link's costs, a device's, and the bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Between the ranks' processors.
    pub link: LinkCosts,
    /// Of both ends' devices.
    pub device: DeviceCosts,
    /// What a message may use.
    pub limits: Limits,
}

/// What an end does with packed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The sender puts them together.
    Fill,
    /// The receiver takes them apart.
    Empty,
}

/// What moves a short message between a device's memory and packed bytes of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The processor: nothing but the host's memory.
    Host,
    /// The device's copy engine, one run.
    Copies,
    /// A kernel that reads or writes the host's memory itself.
    Kernel,
    /// The processor, one run, through a BAR1 window.
    Bar1Window,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Means::Host => "host",
            Means::Copies => "copy engine",
            Means::Kernel => "kernel",
            Means::Bar1Window => "BAR1 window",
        })
    }
}

/// Whether two processes take turns on a device, and whose work is done there if it can be
/// either's: always the same one's, as long as there is no need for a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// They work at once, or do not share a device.
    #[default]
    None,
    /// The sender's.
    Sender,
    /// The receiver's.
    Receiver,
}

impl Turns {
    /// Of two that take turns, whose numbers are these: the lower one works.
    pub fn of(sender: u32, receiver: u32) -> Turns {
        match sender < receiver {
            true => Turns::Sender,
            false => Turns::Receiver,
        }
    }

    /// Whether they take turns.
    pub fn are_taken(self) -> bool {
        self != Turns::None
    }
}

/// What lies between two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Between {
    /// Two devices that are linked; else one, or two that are not.
    pub linked: bool,
    /// One device, on which the two processes take turns.
    pub turns: Turns,
    /// The sender has offered its memory, and packs nothing before it is asked to.
    pub offered: bool,
    /// The processor reaches the sender's memory, and the receiver's, by a BAR1 window.
    pub bar1_windows: (bool, bool),
}

/// One message's path from one end to the other.
#[derive(Clone, Copy)]
struct Hop {
    from: End,
    to: End,
    protocol: Protocol,
    between: Between,
}

/// What pieces take.
struct Stages {
    /// Until the first has been emptied.
    first: f64,
    /// From one to the next, if none waits for memory.
    slowest: f64,
    /// Until the memory of one is there for another.
    cycle: f64,
}

impl Model {
    /// With these costs, and as much memory and as many blocks as wanted.
    pub fn unlimited(link: &LinkCosts) -> Model {
        Model {
            link: *link,
            device: link.device.unwrap_or_default(),
            limits: Limits {
                memory: MOST_DEPTH * MOST_FRAGMENT_BYTES,
                device_memory: MOST_DEPTH * MOST_FRAGMENT_BYTES,
                blocks: 1 << 20,
            },
        }
    }

    /// Time per byte of the link to the host that packing or unpacking goes over.
    fn link_ns(&self, end: End, what: Move) -> f64 {
        let own = match what {
            Move::Fill => self.device.to_host_ns_per_byte,
            Move::Empty => self.device.to_device_ns_per_byte,
        };
        match end.space {
            Space::Host => 0.0,
            Space::Device => own,
            // Both sides of the kernel are the host's memory.
            Space::Pinned => self.device.to_host_ns_per_byte + self.device.to_device_ns_per_byte,
        }
    }

    /// Fewest thread blocks that pack as fast as the link of their stage allows; of work
    /// within a device all, for its memory is as fast as what runs on it.
    fn fewest(&self, class: Class, link_ns: f64) -> u32 {
        if link_ns == 0.0 {
            return self.limits.blocks.max(1);
        }
        let rest = self.device.pack_ns_per_byte[class as usize].max(link_ns);
        let blocks = (self.device.block_ns_per_byte / rest).ceil();
        (blocks as u32).clamp(1, self.limits.blocks.max(1))
    }

    /// Thread blocks of a kernel that packs to pinned memory.
    pub fn pack_blocks(&self, class: Class) -> u32 {
        let end = End {
            space: Space::Device,
            class,
        };
        self.fewest(class, self.link_ns(end, Move::Fill))
    }

    /// Thread blocks of a kernel that unpacks from pinned memory.
    pub fn unpack_blocks(&self, class: Class) -> u32 {
        let end = End {
            space: Space::Device,
            class,
        };
        self.fewest(class, self.link_ns(end, Move::Empty))
    }

    /// Thread blocks of a kernel that copies from layout to layout, within a device or
    /// between two that are linked.
    pub fn copy_blocks(&self, from: Class, to: Class, linked: bool) -> u32 {
        let slower = match self.device.pack_ns_per_byte[from as usize]
            > self.device.pack_ns_per_byte[to as usize]
        {
            true => from,
            false => to,
        };
        let link = match linked {
            true => self.device.peer_block_ns_per_byte,
            false => 0.0,
        };
        self.fewest(slower, link)
    }

    fn grid(&self, end: End, what: Move) -> u32 {
        match (end.space, end.class) {
            (Space::Host, _) | (_, Class::Run) => 0,
            _ => self.fewest(end.class, self.link_ns(end, what)),
        }
    }

    /// Time in which an end fills or empties a piece.
    fn piece_ns(&self, end: End, what: Move, bytes: usize) -> f64 {
        let (n, device) = (bytes as f64, &self.device);
        let link = self.link_ns(end, what);
        match (end.space, end.class) {
            (Space::Host, _) => n * self.link.copy_ns_per_byte,
            (_, Class::Run) => device.copy_ns + n * link.max(device.pack_ns_per_byte[0]),
            (_, class) => {
                let blocks = f64::from(self.fewest(class, link));
                let own = device.pack_ns_per_byte[class as usize];
                device.launch_ns + n * link.max(own).max(device.block_ns_per_byte / blocks)
            }
        }
    }

    /// What moves a short message at one of its ends, and how long that takes, without a
    /// turn. `bar1`: the processor reaches the memory by a window. `turns`: a kernel needs a
    /// turn, and a copy engine none.
    pub fn means(
        &self,
        end: End,
        what: Move,
        bytes: usize,
        (bar1, turns): (bool, bool),
    ) -> (Means, f64) {
        if end.space == Space::Host {
            return (Means::Host, 0.0);
        }
        let (n, device) = (bytes as f64, &self.device);
        let (link, own) = (
            self.link_ns(end, what),
            device.pack_ns_per_byte[end.class as usize],
        );
        let blocks = f64::from(self.fewest(end.class, link));
        let each = link.max(own).max(device.block_ns_per_byte / blocks);
        let kernel = (Means::Kernel, device.launch_ns + n * each);
        if end.class != Class::Run {
            return kernel;
        }
        let copies = (Means::Copies, self.piece_ns(end, what, bytes));
        let costs = &device.bar1;
        let through = match what {
            Move::Fill => costs.read_ns + n * costs.read_ns_per_byte,
            Move::Empty => costs.write_ns + n * costs.write_ns_per_byte,
        };
        let through = bar1.then_some((Means::Bar1Window, through));
        let all = [Some(copies), Some(kernel), through].into_iter().flatten();
        let with_turn = |(means, ns): &(Means, f64)| match (means, turns) {
            (Means::Kernel, true) => ns + device.turn_ns,
            _ => *ns,
        };
        let cheapest = all.min_by(|a, b| with_turn(a).total_cmp(&with_turn(b)));
        cheapest.unwrap_or(kernel)
    }

    fn bounce_ns(&self, hop: Hop, bytes: usize) -> f64 {
        let (read, written) = hop.between.bar1_windows;
        let turns = hop.between.turns.are_taken();
        let (filled, fill) = self.means(hop.from, Move::Fill, bytes, (read, turns));
        let (emptied, empty) = self.means(hop.to, Move::Empty, bytes, (written, turns));
        let turn = match turns && [filled, emptied].contains(&Means::Kernel) {
            true => self.device.turn_ns,
            false => 0.0,
        };
        self.link.eager_ns(bytes) + fill + turn + empty
    }

    /// How many of the ends take turns on a device: those that do not leave their work to a
    /// copy engine.
    fn ends_in_turns(&self, hop: Hop) -> usize {
        let takes = |end: &End| match hop.protocol {
            // Within a device the driver copies by a kernel, too.
            Protocol::DeviceSlots => true,
            _ => end.space != Space::Host && end.class != Class::Run,
        };
        match hop.between.turns.are_taken() {
            true => [hop.from, hop.to].iter().filter(|end| takes(end)).count(),
            false => 0,
        }
    }

    /// The stages of `pieces` pieces of `f` bytes, where each end works as soon as it can.
    fn stages(&self, hop: Hop, f: usize, pieces: usize) -> Stages {
        let message = self.link.latency_ns + self.link.overhead_ns;
        let shake = 2.0 * self.link.latency_ns;
        if hop.protocol == Protocol::DeviceSlots {
            let fill = self.on_device_ns(hop.from, f);
            let linked = hop.between.linked;
            let direct = self.slot_ns(hop.to, linked, f);
            let (taken, unpack) = match self.copies_first(hop.to, linked, (f, pieces)) {
                true => (self.peer_copy_ns(f), self.on_device_ns(hop.to, f)),
                false => (direct, 0.0),
            };
            return Stages {
                first: shake + fill + message + taken + unpack,
                slowest: fill.max(taken).max(unpack),
                cycle: fill + taken + 2.0 * message,
            };
        }
        let between = match hop.protocol {
            Protocol::Fragments => 2.0 * f as f64 * self.link.copy_ns_per_byte,
            _ => 0.0,
        };
        let fill = self.piece_ns(hop.from, Move::Fill, f);
        let empty = self.piece_ns(hop.to, Move::Empty, f);
        let first = match hop.from.space {
            Space::Host => shake + fill,
            _ if hop.between.offered => shake + fill,
            _ => shake.max(fill),
        };
        Stages {
            first: first + message + between + empty,
            slowest: fill.max(empty).max(between),
            cycle: fill + empty + between + 2.0 * message,
        }
    }

    /// Time in which an end packs or unpacks a piece within its device.
    fn on_device_ns(&self, end: End, bytes: usize) -> f64 {
        let (n, device) = (bytes as f64, &self.device);
        let link = match end.space {
            Space::Pinned => device.to_device_ns_per_byte,
            _ => 0.0,
        };
        match end.class {
            Class::Run => device.copy_ns + n * link.max(device.pack_ns_per_byte[0]),
            class => {
                let blocks = f64::from(self.fewest(class, link));
                let own = device.pack_ns_per_byte[class as usize];
                device.launch_ns + n * link.max(own).max(device.block_ns_per_byte / blocks)
            }
        }
    }

    /// Time of a copy from a linked device.
    fn peer_copy_ns(&self, bytes: usize) -> f64 {
        self.device.copy_ns + bytes as f64 * self.device.peer_ns_per_byte
    }

    /// Time in which a receiver empties a slot where it lies.
    fn slot_ns(&self, to: End, linked: bool, bytes: usize) -> f64 {
        let own = self.on_device_ns(to, bytes);
        match (linked, to.class) {
            (false, _) => own,
            (true, Class::Run) => own.max(self.peer_copy_ns(bytes)),
            (true, _) => {
                let link = bytes as f64 * self.device.peer_block_ns_per_byte;
                own.max(self.device.launch_ns + link)
            }
        }
    }

    /// Whether a receiver copies these slots of a linked device before it unpacks them.
    pub fn copies_first(&self, to: End, linked: bool, (slot, slots): (usize, usize)) -> bool {
        if !linked || to.class == Class::Run {
            return false;
        }
        let more = slots.saturating_sub(1) as f64;
        let (copy, unpack) = (self.peer_copy_ns(slot), self.on_device_ns(to, slot));
        let direct = self.slot_ns(to, true, slot);
        copy + unpack + more * copy.max(unpack) < direct + more * direct
    }

    fn pieces_ns(&self, hop: Hop, bytes: usize, cut: Pipeline) -> f64 {
        let f = cut.fragment.min(bytes.max(1));
        let Stages {
            first,
            slowest,
            cycle,
        } = self.stages(hop, f, bytes.div_ceil(f));
        let pieces = bytes.div_ceil(f).max(1);
        if self.ends_in_turns(hop) == 2 {
            // One end after the other: it fills what there is, and then it is emptied.
            let rounds = pieces.div_ceil(cut.depth.max(1)) as f64;
            return first
                + (pieces - 1) as f64 * cycle
                + (2.0 * rounds - 1.0) * self.device.turn_ns;
        }
        let first = first + self.ends_in_turns(hop) as f64 * self.device.turn_ns;
        // A piece waits for one that comes back only if there are more than may be out.
        let returns = match cut.depth < pieces {
            true => cycle / cut.depth as f64,
            false => 0.0,
        };
        first + (pieces - 1) as f64 * slowest.max(returns)
    }

    /// Pieces that are allowed: those of the least size always are.
    fn most_depth(&self, protocol: Protocol, fragment: usize) -> usize {
        let memory = match protocol {
            Protocol::DeviceSlots => self.limits.device_memory,
            _ => self.limits.memory,
        };
        (memory / fragment).min(MOST_DEPTH)
    }

    /// The cheapest pieces of a message; of those that take as long the ones that need
    /// the least memory.
    fn cut(&self, hop: Hop, bytes: usize) -> (Pipeline, f64) {
        let mut best: Option<(Pipeline, f64)> = None;
        let least = least_bytes(hop.protocol);
        let mut fragment = least;
        while fragment <= MOST_FRAGMENT_BYTES {
            let most = match self.most_depth(hop.protocol, fragment) {
                most if fragment == least => most.max(1),
                most => most,
            };
            if most == 0 {
                break;
            }
            let f = fragment.min(bytes.max(1));
            // As many as keep the slowest stage busy, or as fit into a turn.
            let Stages { slowest, cycle, .. } = self.stages(hop, f, bytes.div_ceil(f));
            let busy = match self.ends_in_turns(hop) {
                2 => most,
                _ => (cycle / slowest).ceil() as usize,
            };
            let depth = busy.min(bytes.div_ceil(f)).clamp(1, most);
            let cut = Pipeline { fragment, depth };
            let ns = self.pieces_ns(hop, bytes, cut);
            let memory = |cut: &Pipeline| cut.fragment * cut.depth;
            let better = best
                .is_none_or(|(old, than)| ns < than || (ns == than && memory(&cut) < memory(&old)));
            if better {
                best = Some((cut, ns));
            }
            if fragment >= bytes {
                break;
            }
            fragment *= 2;
        }
        let least = Pipeline {
            fragment: least,
            depth: 1,
        };
        best.unwrap_or((least, f64::INFINITY))
    }

    /// One kernel and `messages` messages.
    fn kernel_ns(&self, hop: Hop, bytes: usize, messages: f64) -> f64 {
        let Hop { from, to, .. } = hop;
        let device = &self.device;
        // The rank that works each time needs no turn.
        let turn = match (hop.between.turns, hop.protocol) {
            (Turns::None, _)
            | (Turns::Sender, Protocol::DevicePut)
            | (Turns::Receiver, Protocol::DeviceGet) => 0.0,
            _ => device.turn_ns,
        };
        let latency = messages * self.link.latency_ns + turn;
        let runs = from.class == Class::Run && to.class == Class::Run;
        let link = match (hop.between.linked, runs) {
            (false, _) => 0.0,
            (true, true) => device.peer_ns_per_byte,
            (true, false) => device.peer_block_ns_per_byte,
        };
        if runs {
            let each = device.pack_ns_per_byte[0].max(link);
            return latency + device.copy_ns + bytes as f64 * each;
        }
        let (read, write) = (from.class as usize, to.class as usize);
        let each = device.pack_ns_per_byte[read].max(device.pack_ns_per_byte[write]);
        let blocks = f64::from(self.copy_blocks(from.class, to.class, hop.between.linked));
        let each = each.max(device.block_ns_per_byte / blocks).max(link);
        latency + device.launch_ns + bytes as f64 * each
    }

    /// The predicted time of a protocol, on one device or between unlinked ones.
    pub fn predict(&self, from: End, to: End, bytes: usize, protocol: Protocol) -> Predicted {
        self.predict_between(from, to, bytes, protocol, Between::default())
    }

    /// The predicted time of a protocol.
    pub fn predict_between(
        &self,
        from: End,
        to: End,
        bytes: usize,
        protocol: Protocol,
        between: Between,
    ) -> Predicted {
        let hop = Hop {
            from,
            to,
            protocol,
            between,
        };
        let whole = Pipeline {
            fragment: bytes,
            depth: 1,
        };
        let (pipeline, ns) = match protocol {
            Protocol::Eager => (whole, self.bounce_ns(hop, bytes)),
            Protocol::DeviceGet => (whole, self.kernel_ns(hop, bytes, 2.0)),
            Protocol::DevicePut => (whole, self.kernel_ns(hop, bytes, 3.0)),
            Protocol::HostSlots | Protocol::Fragments | Protocol::DeviceSlots => {
                self.cut(hop, bytes)
            }
            Protocol::GetMapped => (whole, self.link.mapped_ns(bytes)),
            Protocol::GetAttach => (whole, self.link.attach_ns(bytes)),
        };
        let runs = from.class == Class::Run && to.class == Class::Run;
        let copies = match runs {
            true => 0,
            false => self.copy_blocks(from.class, to.class, between.linked),
        };
        let grids = match protocol {
            Protocol::DeviceGet => (0, copies),
            Protocol::DevicePut => (copies, 0),
            Protocol::DeviceSlots => {
                let grid = |class| match class {
                    Class::Run => 0,
                    class => self.copy_blocks(class, Class::Run, false),
                };
                (grid(from.class), grid(to.class))
            }
            _ => (self.grid(from, Move::Fill), self.grid(to, Move::Empty)),
        };
        Predicted {
            protocol,
            pipeline,
            grids,
            ns,
        }
    }

    /// The pieces that a sender cuts a long message into before it knows where it goes:
    /// as for another device, or for another process on its own, if that may be.
    pub fn pieces(&self, from: End, bytes: usize, turns: Turns) -> Pipeline {
        let to = End {
            space: Space::Device,
            class: from.class,
        };
        let hop = Hop {
            from,
            to,
            protocol: Protocol::HostSlots,
            between: Between {
                turns,
                ..Between::default()
            },
        };
        self.cut(hop, bytes).0
    }

    /// The pieces of a message that goes in slots of a device's memory.
    pub fn device_pieces(&self, from: End, to: End, bytes: usize, between: Between) -> Pipeline {
        let hop = Hop {
            from,
            to,
            protocol: Protocol::DeviceSlots,
            between: Between {
                offered: true,
                ..between
            },
        };
        self.cut(hop, bytes).0
    }

    /// Largest message of a device that goes at once.
    pub fn short_bytes(&self, most: usize) -> usize {
        let end = End {
            space: Space::Device,
            class: Class::Strided,
        };
        let ns = |n: usize, way| self.predict(end, end, n, way).ns;
        let pays = |n: usize| ns(n, Protocol::Eager) <= ns(n, Protocol::HostSlots);
        let mut last = SHORT_BYTES;
        while last * 2 <= most && pays(last * 2) {
            last *= 2;
        }
        last
    }
}

/// Least bytes of a protocol's pieces.
fn least_bytes(protocol: Protocol) -> usize {
    match protocol {
        Protocol::DeviceSlots => LEAST_DEVICE_SLOT_BYTES,
        _ => LEAST_FRAGMENT_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positive() -> impl Strategy<Value = f64> {
        (-4.0..5.0f64).prop_map(|exponent| 10f64.powf(exponent))
    }

    fn models() -> impl Strategy<Value = Model> {
        let costs = proptest::array::uniform12(positive());
        (costs, 16usize..27, 1u32..2000).prop_map(|(c, memory, blocks)| Model {
            link: LinkCosts {
                latency_ns: c[0],
                overhead_ns: c[1],
                copy_ns_per_byte: c[2],
                ..LinkCosts::default()
            },
            device: DeviceCosts {
                launch_ns: c[3],
                copy_ns: c[4],
                block_ns_per_byte: c[5],
                pack_ns_per_byte: [c[6], c[6] + c[7], c[6] + c[7] + c[8]],
                to_host_ns_per_byte: c[9],
                to_device_ns_per_byte: c[8],
                peer_ns_per_byte: c[10],
                peer_block_ns_per_byte: c[11],
                turn_ns: turn_ns(),
                bar1: Bar1Costs::default(),
            },
            limits: Limits {
                memory: 1 << memory,
                device_memory: 1 << (43 - memory),
                blocks,
            },
        })
    }

    fn ends() -> impl Strategy<Value = End> {
        let places = prop_oneof![Just(Space::Host), Just(Space::Pinned), Just(Space::Device)];
        let classes = prop_oneof![Just(Class::Run), Just(Class::Strided), Just(Class::Listed)];
        (places, classes).prop_map(|(space, class)| End { space, class })
    }

    /// All pieces that there are, one by one.
    fn naive(model: &Model, hop: Hop, bytes: usize) -> f64 {
        let mut best = f64::INFINITY;
        let (least_bytes, memory) = match hop.protocol {
            Protocol::DeviceSlots => (LEAST_DEVICE_SLOT_BYTES, model.limits.device_memory),
            _ => (LEAST_FRAGMENT_BYTES, model.limits.memory),
        };
        for exponent in least_bytes.ilog2()..=22 {
            for depth in 1..=MOST_DEPTH {
                let cut = Pipeline {
                    fragment: 1 << exponent,
                    depth,
                };
                let least = cut.fragment == least_bytes && depth == 1;
                if least || cut.fragment * depth <= memory {
                    best = best.min(model.pieces_ns(hop, bytes, cut));
                }
            }
        }
        best
    }

    proptest! {
        #[test]
        fn pieces_are_the_cheapest_that_there_are(model in models(), from in ends(), to in ends(), exponent in 0.0..31.0f64, (linked, offered) in any::<(bool, bool)>()) {
            let between = Between { linked, offered, ..Between::default() };
            let bytes = 2f64.powf(exponent) as usize;
            for protocol in [Protocol::HostSlots, Protocol::Fragments, Protocol::DeviceSlots] {
                let predicted = model.predict_between(from, to, bytes, protocol, between);
                let best = naive(&model, Hop { from, to, protocol, between }, bytes);
                prop_assert!(predicted.ns <= best * (1.0 + 1e-9), "{predicted:?}, but {best}");
                let cut = predicted.pipeline;
                prop_assert!(cut.fragment.is_power_of_two() && (1..=MOST_DEPTH).contains(&cut.depth));
                let memory = match protocol {
                    Protocol::DeviceSlots => model.limits.device_memory,
                    _ => model.limits.memory,
                };
                prop_assert!(cut.fragment * cut.depth <= memory.max(least_bytes(protocol)));
            }
        }

        /// Fewer blocks would pack slower than the rest of their stage, more would not
        /// help.
        #[test]
        fn no_block_is_wasted(model in models(), listed in any::<bool>()) {
            let class = if listed { Class::Listed } else { Class::Strided };
            let end = End { space: Space::Device, class };
            let blocks = model.pack_blocks(end.class);
            let each = |blocks: u32| model.device.block_ns_per_byte / f64::from(blocks);
            let rest = model.device.pack_ns_per_byte[end.class as usize].max(model.device.to_host_ns_per_byte);
            prop_assert!(blocks <= model.limits.blocks);
            prop_assert!(blocks == model.limits.blocks || each(blocks) <= rest * (1.0 + 1e-9));
            prop_assert!(blocks == 1 || each(blocks - 1) > rest);
        }

        #[test]
        fn longer_messages_take_longer(model in models(), from in ends(), to in ends(), exponent in 0.0..30.0f64) {
            let bytes = 2f64.powf(exponent) as usize;
            for protocol in [Protocol::Eager, Protocol::DeviceGet, Protocol::DevicePut] {
                let ns = |n| model.predict(from, to, n, protocol).ns;
                prop_assert!(ns(bytes) <= ns(2 * bytes) * (1.0 + 1e-9));
            }
        }
    }

    /// A short message of one run is moved by what is quickest to begin; one with gaps by a
    /// kernel.
    #[test]
    fn means_of_short_message_follow_costs() {
        let with = |launch_ns: f64, copy_ns: f64| {
            let costs = DeviceCosts {
                launch_ns,
                copy_ns,
                ..DeviceCosts::default()
            };
            Model::unlimited(&LinkCosts {
                device: Some(costs),
                ..LinkCosts::default()
            })
        };
        let end = |class| End {
            space: Space::Device,
            class,
        };
        let (run, strided) = (end(Class::Run), end(Class::Strided));
        let (copies, kernels) = (with(6000.0, 5000.0), with(4000.0, 7000.0));
        let means =
            |model: &Model, end, what, bytes, bar1| model.means(end, what, bytes, (bar1, false)).0;
        let table = [
            means(&copies, run, Move::Fill, 8, false),
            means(&kernels, run, Move::Fill, 8, false),
            means(&copies, strided, Move::Empty, 8, false),
            // Reading through a BAR1 window is quick for few bytes, writing for many.
            means(&copies, run, Move::Fill, 8, true),
            means(&copies, run, Move::Fill, 8 << 10, true),
            means(&copies, run, Move::Empty, 8 << 10, true),
            means(&copies, strided, Move::Fill, 8, true),
        ];
        let expected = [
            Means::Copies,
            Means::Kernel,
            Means::Kernel,
            Means::Bar1Window,
            Means::Copies,
            Means::Bar1Window,
            Means::Kernel,
        ];
        assert_eq!(table, expected);
    }

    /// Over a link many slots are copied first, one is not; within a device none is.
    #[test]
    fn slots_are_copied_first_where_blocks_cross_a_link() {
        let model = Model::unlimited(&LinkCosts::default());
        let to = |class| End {
            space: Space::Device,
            class,
        };
        let strided = to(Class::Strided);
        assert!(model.copies_first(strided, true, (1 << 20, 8)));
        assert!(!model.copies_first(strided, true, (256 << 10, 1)));
        assert!(!model.copies_first(strided, false, (1 << 20, 8)));
        assert!(!model.copies_first(to(Class::Run), true, (1 << 20, 8)));
    }

    /// With costs that are fixed here, so that it is seen when the table moves.
    #[test]
    fn the_table_of_pieces() {
        let model = Model {
            link: LinkCosts {
                latency_ns: 250.0,
                overhead_ns: 150.0,
                copy_ns_per_byte: 0.124,
                ..LinkCosts::default()
            },
            device: DeviceCosts {
                launch_ns: 6000.0,
                copy_ns: 5000.0,
                block_ns_per_byte: 0.1,
                pack_ns_per_byte: [0.0007, 0.0009, 0.002],
                to_host_ns_per_byte: 0.02,
                to_device_ns_per_byte: 0.02,
                peer_ns_per_byte: 0.0025,
                peer_block_ns_per_byte: 0.0028,
                turn_ns: turn_ns(),
                bar1: Bar1Costs::default(),
            },
            limits: Limits {
                memory: 16 << 20,
                device_memory: 32 << 20,
                blocks: 132,
            },
        };
        assert_eq!(model.short_bytes(256 << 10), SHORT_BYTES);
        assert_eq!(model.pack_blocks(Class::Strided), 5);
        assert_eq!(model.copy_blocks(Class::Strided, Class::Run, false), 132);
        assert_eq!(model.copy_blocks(Class::Strided, Class::Run, true), 36);
        let end = |space| End {
            space,
            class: Class::Strided,
        };
        let (host, device) = (end(Space::Host), end(Space::Device));
        let pieces = |from, to, bytes| {
            let cut = model.predict(from, to, bytes, Protocol::HostSlots).pipeline;
            (cut.fragment, cut.depth)
        };
        let table = [
            pieces(device, device, 64 << 10),
            pieces(device, device, 4 << 20),
            pieces(device, device, 256 << 20),
            pieces(host, device, 64 << 20),
        ];
        let expected = [(64 << 10, 1), (1 << 20, 3), (4 << 20, 3), (64 << 10, 2)];
        assert_eq!(table, expected);
    }
}
