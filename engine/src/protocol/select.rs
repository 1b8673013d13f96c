//! Selection: which protocol carries a message, of the host's memory or of a device's.
//!
//! One table ([`TABLE`]) has a row for each protocol: whether it can carry a message, and
//! what that is predicted to take. The cheapest that can carry it wins. Both ends ask the
//! same table: the sender whether to go eagerly, the receiver of an announcement (RTS), which
//! knows both ends, how to move the bytes. `osier explain send` prints the candidates with
//! their reasons.
//!
//! Messages of the host's memory are too short to evaluate rows for each: [`Selection`] cuts
//! the table by size when a link is set up, so that a message costs a comparison or two.
//! `osier info --protocols` prints the cuts.
//!
//! # Invariants
//! 1. Of an announced message at least one candidate can carry it: fragments, or slots of the
//!    host's memory where the sender's bytes are late.
//! 2. A choice of the sender holds whatever the receiver knows besides: eager messages are
//!    received by any receive, and announced ones are answered by the receiver's choice.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis,
//! University of Tennessee, 2017, section 4.3 (pipelined RDMA; sender or receiver
//! contiguous; receiver-driven handshake, one per transfer). Where both sides are mapped a
//! kernel goes from layout to layout here, which needs no fragments at all.

use super::Protocol;
use super::cost::{LinkCosts, MIN_FRAGMENT_BYTES};
use super::device::{Between, Class, End, Model, Pipeline, Predicted, Space, Turns};
use super::reach::{Placement, Reach, supported};
use super::states;
use super::uses::Use;
use osier_kernels::handle::Made;

/// What a sender of the host's memory can offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Nothing but copies: a layout with gaps, or a link without get.
    #[default]
    Private,
    /// Contiguous memory of the process, which the kernel can read.
    Plain,
    /// Contiguous memory of Osier's allocator, which the peer maps.
    Heap,
}

/// Whether messages use bounce buffers on the sender's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipelining {
    /// Where nothing is cheaper.
    #[default]
    Auto,
    /// Wherever they can.
    On,
    /// Never.
    Off,
}

/// Share of the predicted time below which a handshake no longer matters:
/// from there on a message is announced, and costs the receiver no memory
/// when its receive is not posted yet.
const HANDSHAKE_SHARE: f64 = 0.05;
/// Between processes of one machine, messages up to this size go eagerly
/// whatever the costs say: then the sender need not ask where its bytes lie, and
/// keeps no operation for them. A copy of this size costs about as much as the
/// handshake that would save it.
pub const AT_ONCE_BYTES: usize = 4 << 10;
/// Eager messages are at most this large whatever a handshake costs.
pub const EAGER_LIMIT_BYTES: usize = 256 << 10;

/// Two buffers of devices, as the rank that decides knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePair {
    /// Where they lie.
    pub placement: Placement,
    /// How the sender's memory was allocated.
    pub from: Made,
    /// How the receiver's memory was allocated, if it is known.
    pub to: Option<Made>,
    /// The receiver knows the sender's layout.
    pub layout_known: bool,
    /// The receive has room for all of the message.
    pub fits: bool,
    /// Both lie on one device, on which two processes take turns.
    pub turns: Turns,
}

impl DevicePair {
    /// Buffers that kernels of either rank reach, and whose layouts both know.
    pub fn opened(placement: Placement) -> DevicePair {
        DevicePair {
            placement,
            from: Made::Plain,
            to: Some(Made::Plain),
            layout_known: true,
            fits: true,
            turns: Turns::None,
        }
    }
}

/// A message, as the rank that decides knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub bytes: usize,
    pub from: End,
    pub to: End,
    /// The sender's memory, of the host.
    pub memory: Memory,
    /// Both ends, if both are devices'.
    pub pair: Option<DevicePair>,
    /// The receiver decides: an RTS has come.
    pub announced: bool,
    /// The sender may wait for its receive: a synchronous or ready send.
    pub waits: bool,
    /// The sender receives another message meanwhile.
    pub crosses: bool,
    /// The ranks share memory of the host.
    pub shares_host: bool,
    /// The sender's bytes are not valid yet: they wait for a stream.
    pub late: bool,
    /// The sender has offered its memory, and packs nothing before it is asked to.
    pub offered: bool,
    /// The processor reaches the sender's memory, and the receiver's, by a BAR1 window.
    pub bar1_windows: (bool, bool),
}

impl Message {
    /// Between memory of the host, for a sender.
    pub fn of_host(bytes: usize, memory: Memory) -> Message {
        let end = End {
            space: Space::Host,
            class: Class::Run,
        };
        Message {
            memory,
            ..Message::between(end, end, bytes)
        }
    }

    /// Between two ends, for a sender.
    pub fn between(from: End, to: End, bytes: usize) -> Message {
        Message {
            bytes,
            from,
            to,
            memory: Memory::Private,
            pair: None,
            announced: false,
            waits: false,
            crosses: false,
            shares_host: true,
            late: false,
            offered: false,
            bar1_windows: (false, false),
        }
    }

    fn of_hosts(&self) -> bool {
        self.from.space == Space::Host && self.to.space == Space::Host
    }

    fn linked(&self) -> bool {
        let linked =
            |pair: DevicePair| matches!(pair.placement, Placement::Linked | Placement::Devices);
        self.pair.is_some_and(linked)
    }
}

/// Whether a protocol can carry a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Able {
    /// It does, whatever the costs: by a setting, or below all thresholds.
    Always,
    Yes,
    /// Why not.
    No(&'static str),
}

/// A protocol beside a message.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub protocol: Protocol,
    pub able: Able,
    /// What it takes, or would take; none where it makes no sense.
    pub predicted: Option<Predicted>,
}

/// A row of the table.
pub struct Row {
    pub protocol: Protocol,
    /// Whether it can carry a message.
    able: fn(&Rules, &Message) -> Able,
}

/// The table: every protocol, once. What each takes is [`Rules::predict`].
pub const TABLE: [Row; 8] = [
    Row {
        protocol: Protocol::Eager,
        able: eager,
    },
    Row {
        protocol: Protocol::Fragments,
        able: fragments,
    },
    Row {
        protocol: Protocol::GetMapped,
        able: get_mapped,
    },
    Row {
        protocol: Protocol::GetAttach,
        able: get_attach,
    },
    Row {
        protocol: Protocol::HostSlots,
        able: host_slots,
    },
    Row {
        protocol: Protocol::DeviceGet,
        able: device_get,
    },
    Row {
        protocol: Protocol::DevicePut,
        able: device_put,
    },
    Row {
        protocol: Protocol::DeviceSlots,
        able: device_slots,
    },
];

const ONE_KERNEL_ONLY: &str = "short messages are announced to be read by one kernel only";
const WAITS_FOR_NO_RECEIVE: &str =
    "standard sends of short messages wait for no receive (hint: OSIER_DEBUG=device-eager=N)";

fn eager(rules: &Rules, m: &Message) -> Able {
    match m.from.space {
        _ if m.announced => Able::No("it is announced"),
        Space::Host if m.bytes <= rules.at_once_bytes => Able::Always,
        Space::Host if m.bytes > EAGER_LIMIT_BYTES => Able::No("eager messages are shorter"),
        Space::Host => {
            let eager = rules.model.link.eager_ns(m.bytes);
            let handshake = rules.model.link.fragments_ns(m.bytes) - eager;
            match handshake > HANDSHAKE_SHARE * eager {
                // The sender does not know that a device receives it.
                true if m.to.space != Space::Host => Able::Always,
                true => Able::Yes,
                false => Able::No("a handshake does not matter beside its copies"),
            }
        }
        _ if m.bytes <= rules.device_eager_bytes => Able::Yes,
        _ => Able::No("eager messages are shorter"),
    }
}

/// Why a short message of a device that is not announced yet does not wait for its receive.
fn short(rules: &Rules, m: &Message) -> Option<Able> {
    let device = m.from.space != Space::Host;
    let short = device && !m.announced && m.bytes <= rules.device_eager_bytes;
    short.then_some(match m.waits {
        true => Able::No(ONE_KERNEL_ONLY),
        false => Able::No(WAITS_FOR_NO_RECEIVE),
    })
}

fn fragments(rules: &Rules, m: &Message) -> Able {
    match short(rules, m) {
        Some(no) => no,
        None if m.late && m.to.space != Space::Host => {
            Able::No("the sender answers when its bytes are valid")
        }
        None => Able::Yes,
    }
}

fn get_mapped(_rules: &Rules, m: &Message) -> Able {
    match (m.of_hosts(), m.memory) {
        (false, _) => Able::No("an end is a device's"),
        (true, Memory::Heap) => Able::Yes,
        (true, _) => Able::No("the sender's memory is not of Osier's heap"),
    }
}

fn get_attach(_rules: &Rules, m: &Message) -> Able {
    match (m.of_hosts(), m.memory) {
        (false, _) => Able::No("an end is a device's"),
        (true, Memory::Plain) => Able::Yes,
        (true, Memory::Heap) => Able::No("the peer has mapped the sender's memory"),
        (true, Memory::Private) => Able::No("the sender's memory has gaps, or is out of reach"),
    }
}

fn host_slots(rules: &Rules, m: &Message) -> Able {
    match short(rules, m) {
        Some(no) => no,
        None if m.of_hosts() => Able::No("neither end is a device's"),
        None if m.shares_host || (m.late && m.to.space != Space::Host) => Able::Yes,
        None => Able::No("the ranks share no memory"),
    }
}

/// Both ends, for what reaches from device to device.
fn pair(m: &Message) -> Result<DevicePair, Able> {
    m.pair.ok_or(Able::No(match m.of_hosts() {
        true => "neither end is a device's",
        false => "an end is the host's, or not offered",
    }))
}

fn device_get(rules: &Rules, m: &Message) -> Able {
    let pair = match pair(m) {
        Ok(pair) => pair,
        Err(no) => return no,
    };
    match (short(rules, m), supported(pair.from, pair.placement)) {
        (Some(no), _) if !m.waits => no,
        (_, Reach::No(why)) => Able::No(why),
        _ if !pair.layout_known => Able::No("the receiver does not know the sender's layout"),
        _ if !pair.fits => Able::No("the receive is too short"),
        _ => Able::Yes,
    }
}

fn device_put(rules: &Rules, m: &Message) -> Able {
    let pair = match pair(m) {
        Ok(pair) => pair,
        Err(no) => return no,
    };
    let to = pair.to.map(|to| supported(to, pair.placement));
    match (short(rules, m), to) {
        (Some(no), _) => no,
        _ if pair.placement.is_one_process() => Able::No("one process reads at once"),
        (_, None) => Able::No("the receiver's memory is of unknown kind"),
        (_, Some(Reach::No(why))) => Able::No(why),
        _ if !pair.fits => Able::No("the receive is too short"),
        _ => Able::Yes,
    }
}

fn device_slots(rules: &Rules, m: &Message) -> Able {
    let pair = match pair(m) {
        Ok(pair) => pair,
        Err(no) => return no,
    };
    match (short(rules, m), pair.placement) {
        (Some(no), _) => no,
        (_, placement) if placement.is_one_process() => Able::No("one process reads at once"),
        (_, Placement::Apart) => Able::No("the devices are not linked"),
        _ => match rules.pipelining {
            Pipelining::Off => Able::No("forbidden by OSIER_DEBUG=pipeline=off"),
            Pipelining::On => Able::Always,
            Pipelining::Auto => Able::Yes,
        },
    }
}

/// What the table's rows go by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Costs, and bounds of memory and thread blocks.
    pub model: Model,
    /// How messages of plain memory are used, where their times were measured.
    pub in_use: Option<Use>,
    /// Messages of the host up to this size are eager whatever the costs say.
    pub at_once_bytes: usize,
    /// Largest eager message of a device.
    pub device_eager_bytes: usize,
    pub pipelining: Pipelining,
}

impl Rules {
    /// By the costs of a link, without bounds.
    pub fn new(costs: &LinkCosts, at_once_bytes: usize) -> Rules {
        let model = Model::unlimited(costs);
        Rules {
            device_eager_bytes: model.short_bytes(EAGER_LIMIT_BYTES),
            in_use: model.link.uses.map(|_| Use::Posted),
            model,
            at_once_bytes,
            pipelining: Pipelining::Auto,
        }
    }

    /// These rules for each use of messages, if uses were measured; else these alone.
    pub fn by_use(self) -> Vec<Rules> {
        let of = |in_use| Rules {
            in_use: Some(in_use),
            ..self
        };
        match self.in_use {
            Some(_) => Use::ALL.map(of).into(),
            None => vec![self],
        }
    }

    /// What a message of plain memory was measured to take by a protocol.
    fn measured_ns(&self, protocol: Protocol, m: &Message) -> Option<f64> {
        let plain = m.of_hosts() && m.memory == Memory::Plain && !m.crosses;
        let (uses, in_use) = (self.model.link.uses.as_ref()?, self.in_use?);
        uses.ns(protocol, in_use, m.bytes).filter(|_| plain)
    }

    /// Whether a protocol can carry a message.
    pub fn able(&self, protocol: Protocol, m: &Message) -> Able {
        (TABLE[protocol as usize].able)(self, m)
    }

    /// What a protocol takes for a message.
    pub fn predict(&self, protocol: Protocol, m: &Message) -> Predicted {
        let link = &self.model.link;
        let host = match (m.of_hosts(), protocol) {
            (true, Protocol::Eager) if m.crosses => Some(link.crossing_eager_ns(m.bytes)),
            (true, Protocol::Eager) => Some(link.eager_ns(m.bytes)),
            (true, Protocol::Fragments) if m.crosses => Some(link.crossing_fragments_ns(m.bytes)),
            (true, Protocol::Fragments) => Some(link.fragments_ns(m.bytes)),
            (true, Protocol::GetAttach) if m.crosses => Some(link.crossing_attach_ns(m.bytes)),
            (_, Protocol::GetAttach) => Some(link.attach_ns(m.bytes)),
            (_, Protocol::GetMapped) => Some(link.mapped_ns(m.bytes)),
            _ => None,
        };
        let host = self.measured_ns(protocol, m).or(host);
        let Some(ns) = host else {
            let between = Between {
                linked: m.linked(),
                turns: m.pair.map_or(Turns::None, |pair| pair.turns),
                offered: m.offered,
                bar1_windows: m.bar1_windows,
            };
            return self
                .model
                .predict_between(m.from, m.to, m.bytes, protocol, between);
        };
        let fragment = match protocol {
            Protocol::Eager | Protocol::Fragments => link.fragment_bytes(m.bytes).min(m.bytes),
            _ => m.bytes,
        };
        Predicted {
            protocol,
            pipeline: Pipeline { fragment, depth: 1 },
            grids: (0, 0),
            ns,
        }
    }

    /// All protocols beside a message, in the order of the table.
    pub fn candidates(&self, m: &Message) -> [Candidate; TABLE.len()] {
        TABLE.map(|row| {
            let able = (row.able)(self, m);
            let apart = m.pair.is_none_or(|pair| pair.placement == Placement::Apart);
            let senseless = match row.protocol {
                Protocol::GetMapped | Protocol::GetAttach => !m.of_hosts(),
                Protocol::DeviceGet | Protocol::DevicePut | Protocol::DeviceSlots => apart,
                Protocol::Eager | Protocol::Fragments | Protocol::HostSlots => false,
            };
            let predicted = (!senseless).then(|| self.predict(row.protocol, m));
            Candidate {
                protocol: row.protocol,
                able,
                predicted,
            }
        })
    }

    /// The candidates that can carry a message, the first choice in front.
    pub fn ranking(&self, m: &Message) -> Ranking {
        let mut ranking = Ranking {
            order: [(f64::NAN, Protocol::Eager); TABLE.len()],
            len: 0,
        };
        for row in &TABLE {
            let ns = match (row.able)(self, m) {
                Able::No(_) => continue,
                Able::Always => 0.0,
                Able::Yes => self.predict(row.protocol, m).ns,
            };
            ranking.order[ranking.len] = (ns, row.protocol);
            ranking.len += 1;
        }
        ranking.order[..ranking.len].sort_by(|a, b| a.0.total_cmp(&b.0));
        ranking
    }

    /// The protocol for a message: the first of [`Rules::ranking`].
    pub fn choose(&self, m: &Message) -> Option<Protocol> {
        self.ranking(m).iter().next()
    }

    /// Whether a sender sends a message eagerly.
    pub fn is_eager(&self, m: &Message) -> bool {
        match eager(self, m) {
            Able::No(_) => false,
            Able::Always => true,
            Able::Yes => self.choose(m) == Some(Protocol::Eager),
        }
    }
}

/// Protocols for one message, the first choice in front.
#[derive(Clone, Copy, Debug)]
pub struct Ranking {
    order: [(f64, Protocol); TABLE.len()],
    len: usize,
}

impl Ranking {
    pub fn iter(&self) -> impl Iterator<Item = Protocol> {
        self.order[..self.len].iter().map(|(_, protocol)| *protocol)
    }
}

/// The table for messages of the host's memory, cut by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    rules: Rules,
    /// Largest eager message of private memory.
    eager_max: usize,
    /// Largest eager message of plain memory.
    eager_plain_max: usize,
    /// Largest eager message of heap memory.
    eager_heap_max: usize,
    /// Largest eager message of plain memory between two that send to each other.
    crossing_plain_max: usize,
    /// Smallest announced message of plain memory that is read through the kernel.
    attach_min: usize,
    /// Smallest one for which a receiver tries both, or none.
    tried_min: Option<usize>,
}

/// Receivers try a way that is predicted to take up to as many times as long as the best.
const TRIED_RATIO: f64 = 8.0;
/// Shorter announced messages go as the table says.
pub const TRIED_BYTES: usize = 128 << 10;

impl Selection {
    /// Cuts the table. `at_once_bytes`: messages up to this size are eager whatever the
    /// costs say.
    pub fn new(costs: LinkCosts, at_once_bytes: usize) -> Self {
        Self::among(&[costs], at_once_bytes)
    }

    /// Cuts the table so that least is lost over several states of the machine, each with
    /// costs of its own, and over the uses of messages that were measured there. Predictions,
    /// fragments and shares are by the first.
    ///
    /// # Panics
    /// If there is no state.
    pub fn among(costs: &[LinkCosts], at_once_bytes: usize) -> Self {
        let all = costs.iter().map(|costs| Rules::new(costs, at_once_bytes));
        let all: Vec<Rules> = all.flat_map(Rules::by_use).collect();
        let eager = |memory, crosses| {
            let is_eager = |bytes| {
                let message = Message {
                    crosses,
                    ..Message::of_host(bytes, memory)
                };
                states::is_eager(&all, &message)
            };
            last_size(EAGER_LIMIT_BYTES, is_eager).max(at_once_bytes)
        };
        let announced = |bytes| Message {
            announced: true,
            ..Message::of_host(bytes, Memory::Plain)
        };
        let chosen = |bytes| states::choose(&all, &announced(bytes));
        let fragments = |bytes| chosen(bytes) == Some(Protocol::Fragments);
        Self {
            eager_max: eager(Memory::Private, false),
            eager_plain_max: eager(Memory::Plain, false),
            eager_heap_max: eager(Memory::Heap, false),
            crossing_plain_max: eager(Memory::Plain, true),
            attach_min: last_size(usize::MAX >> 1, fragments).saturating_add(1),
            tried_min: tried_min(&all),
            rules: all[0],
        }
    }

    /// The same by other costs.
    pub fn by(&self, costs: LinkCosts) -> Self {
        Self::new(costs, self.rules.at_once_bytes)
    }

    /// The same where all that is posted is visible later by as many ns: a handshake takes two of
    /// these more than an eager message. Times of messages as they were measured do not hold then.
    pub fn later(&self, ns: u64) -> Self {
        let mut costs = *self.costs();
        costs.latency_ns += ns as f64;
        costs.uses = None;
        self.by(costs)
    }

    /// The same between hosts. Times of messages on this machine do not hold there.
    pub fn over_network(&self) -> Self {
        self.by(LinkCosts::of_network())
    }

    /// What was cut.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The costs behind the table.
    pub fn costs(&self) -> &LinkCosts {
        &self.rules.model.link
    }

    /// Largest eager message.
    #[inline]
    pub fn eager_max(&self, memory: Memory) -> usize {
        match memory {
            Memory::Heap => self.eager_heap_max,
            Memory::Plain => self.eager_plain_max,
            Memory::Private => self.eager_max,
        }
    }

    /// The same of a message whose sender receives another one meanwhile.
    #[inline]
    pub fn crossing_max(&self, memory: Memory) -> usize {
        match memory {
            Memory::Plain => self.crossing_plain_max,
            Memory::Heap | Memory::Private => self.eager_max(memory),
        }
    }

    /// Largest eager message of a device.
    #[inline]
    pub fn device_eager_max(&self) -> usize {
        self.rules.device_eager_bytes
    }

    /// Smallest eager message that another memory might have announced: below, the sender
    /// need not ask where its bytes lie.
    #[inline]
    pub fn always_eager(&self) -> usize {
        self.eager_heap_max
            .min(self.eager_plain_max)
            .min(self.crossing_plain_max)
            .min(self.eager_max)
    }

    /// Largest message that is always eager and one piece, where a payload may have
    /// `max_payload_bytes`.
    pub fn whole_bytes(&self, max_payload_bytes: usize) -> usize {
        let most = max_payload_bytes.min(self.always_eager());
        let whole = |n: usize| n <= self.costs().fragment_bytes(n);
        if whole(most) {
            return most;
        }
        let mut n = MIN_FRAGMENT_BYTES.min(most);
        while n * 2 <= most && whole(n * 2) {
            n *= 2;
        }
        n
    }

    /// Bytes of a message that the receiver reads while the sender, which
    /// waits, writes the rest.
    #[inline]
    pub fn share(&self, bytes: usize, mapped: bool) -> usize {
        self.costs().share(bytes, mapped)
    }

    /// How the receiver of an announcement moves a message between memory of the host.
    #[inline]
    pub fn answer(&self, bytes: usize, memory: Memory) -> Protocol {
        match memory {
            Memory::Heap => Protocol::GetMapped,
            Memory::Plain if bytes >= self.attach_min => Protocol::GetAttach,
            Memory::Plain | Memory::Private => Protocol::Fragments,
        }
    }

    /// Whether a receiver tries both fragments and the kernel's copy for an announced message of
    /// plain memory, since either may turn out to be the quicker one.
    #[inline]
    pub fn is_tried(&self, bytes: usize) -> bool {
        self.tried_min.is_some_and(|least| bytes >= least)
    }

    /// The smallest such message; none if costs say which way is the quicker one.
    pub fn tried_min(&self) -> Option<usize> {
        self.tried_min
    }

    /// The protocol for a message of the host.
    pub fn choose(&self, bytes: usize, memory: Memory) -> Protocol {
        match bytes <= self.eager_max(memory) {
            true => Protocol::Eager,
            false => self.answer(bytes, memory),
        }
    }

    /// Predicted time of a protocol between memory of the host, in ns.
    pub fn predicted_ns(&self, bytes: usize, protocol: Protocol) -> f64 {
        let message = Message::of_host(bytes, Memory::Plain);
        self.rules.predict(protocol, &message).ns
    }

    /// The table "size range -> protocol": first size, last size (`None`: no
    /// end), protocol.
    pub fn table(&self, memory: Memory) -> Vec<(usize, Option<usize>, Protocol)> {
        let mut cuts = vec![0, self.eager_max(memory).saturating_add(1)];
        if memory == Memory::Plain && self.attach_min < usize::MAX >> 1 {
            cuts.push(self.attach_min);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut rows: Vec<(usize, Option<usize>, Protocol)> = Vec::new();
        for first in cuts {
            let protocol = self.choose(first, memory);
            if let Some(last) = rows.last_mut() {
                if last.2 == protocol {
                    continue;
                }
                last.1 = Some(first - 1);
            }
            rows.push((first, None, protocol));
        }
        rows
    }
}

/// Smallest announced message of plain memory that either fragments or the kernel's copy may
/// carry in less time, by the costs of a state.
fn tried_min(states: &[Rules]) -> Option<usize> {
    let alike = |bytes: &usize| {
        let message = Message {
            announced: true,
            ..Message::of_host(*bytes, Memory::Plain)
        };
        states.iter().any(|rules| {
            let ns = |protocol| rules.predict(protocol, &message).ns;
            let (copied, read) = (ns(Protocol::Fragments), ns(Protocol::GetAttach));
            copied < TRIED_RATIO * read && read < TRIED_RATIO * copied
        })
    };
    (0..6).map(|class| TRIED_BYTES << class).find(alike)
}

/// Last size up to `limit` for which `holds` is true, given that it turns
/// false at most once; sizes are cut at powers of two and their halves.
fn last_size(limit: usize, holds: impl Fn(usize) -> bool) -> usize {
    let mut last = 0;
    let mut size = 64usize;
    while size <= limit.min(1 << 40) {
        for n in [size, size + size / 2] {
            if n > limit || !holds(n) {
                return last;
            }
            last = n;
        }
        size *= 2;
    }
    if limit > 1 << 40 { limit } else { last }
}

#[cfg(test)]
mod tests;
