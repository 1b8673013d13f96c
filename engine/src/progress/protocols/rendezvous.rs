//! Rendezvous: a message is announced, and its receiver answers how it moves.
//!
//! ```text
//! sender                      receiver
//! RTS total [key]       ->    (match)
//!                       <-    CTS         fragments
//!                       <-    SLOT_CTS    bounce buffers
//!                       <-    PUT_OFFER   put: the sender's kernel writes
//!                       <-    FIN         it was read (get), or has ended
//! CANCEL                ->    it will not come
//! ```
//!
//! The receiver decides ([`answer`]), because it alone knows both ends: it takes the first
//! protocol of the one table ([`crate::protocol::select`]) that begins.
//!
//! # Invariants
//! 1. Each announcement is answered exactly once, even after the sender has asked to cancel
//!    it; a CTS may follow a FIN that says the memory could not be read.
//! 2. The sender's memory is read only between announcement and FIN.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis,
//! University of Tennessee, 2017, section 4.3.1 (receiver-driven handshake, one per transfer).

use super::device_memory::Remote;
use super::outbox::Step;
use super::{
    device_copy, device_get, device_memory, device_pipeline, device_put, host_pipeline, host_staged,
};
use crate::device::{DeviceMemory, Through};
use crate::error::{Error, ErrorKind};
use crate::exec::executor::{NO_RUN, NOBODY};
use crate::progress::arrival::Rts;
use crate::progress::op::{Exposed, Protocol};
use crate::progress::peer::Target;
use crate::progress::port::Port;
use crate::progress::protocols;
use crate::protocol::Protocol as Select;
use crate::protocol::device::{Class, End, Space, Turns};
use crate::protocol::reach::{Placement, Reach, supported};
use crate::protocol::select::{DevicePair, Memory, Message};
use crate::trace::event::Kind;
use crate::wire;
use osier_kernels::handle::Made;
use osier_transports::{PostError, RegionKey, RegionKind};

/// A send that is announced.
pub(crate) struct RtsSent {
    /// The receiver was asked to let it go.
    pub cancelling: bool,
}

/// A send whose receiver lets fragments go, or slots.
pub(crate) struct Streaming {
    /// Bytes that have left.
    pub moved: usize,
    /// Bytes up to which the receiver lets it go; `None`: all.
    pub window: Option<usize>,
}

/// Posts the announcement of a send.
pub(crate) fn send_rts(port: &mut Port, handle: u32) -> Step {
    let checked = port.check.as_ref().map_or(0, |_| wire::CHECKED);
    let described = device_copy::device_key(port, handle);
    let offered = device_memory::offered(port, handle);
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let (peer, tag) = (op.peer, op.tag);
    let reach = match (op.key().or(described), offered) {
        (Some(key), _) => wire::Reach::Key(key),
        (None, Some(offer)) => wire::Reach::Offer(offer),
        (None, None) => wire::Reach::Nothing,
    };
    let since = match &port.trace {
        None => 0,
        Some(_) => crate::trace::now_ns(),
    };
    let announcement = wire::RtsBody {
        total: op.total as u64,
        reach,
    };
    let (body, n, mut aux) = announcement.to_wire();
    aux |= checked;
    if let Some(memory) = op.view.as_device() {
        aux |= wire::ON_DEVICE;
        if memory.is_late() {
            aux |= wire::LATE;
        }
    }
    let head = wire::head(wire::RTS, aux, tag, handle);
    let fill = |to: *mut u8| {
        // SAFETY: invariant 2 of `protocols`: room for `n` bytes, which the body has.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, n) }
    };
    match port.links.post_with(peer, head, n, fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    op.protocol = Protocol::RtsSent(RtsSent { cancelling: false });
    let bytes = op.total;
    port.counters.announced += 1;
    port.trace_start(Kind::Rts, peer, tag, bytes, since);
    Step::Moved
}

pub(crate) fn on_cts(port: &mut Port, peer: u32, handle: u32, units: u16) -> bool {
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    let more = usize::from(units) * wire::WINDOW_BYTES;
    let cancelling = match &mut op.protocol {
        Protocol::RtsSent(sent) => sent.cancelling,
        Protocol::Streaming(Streaming {
            moved,
            window: open @ Some(_),
        }) => {
            let window = open.unwrap_or_default();
            let stopped = *moved >= window;
            *open = (units != 0).then(|| window.saturating_add(more));
            if stopped {
                port.peers[peer as usize].streams.push_back(handle);
                port.mark_busy(peer);
            }
            return true;
        }
        // It was revoked; the receiver has not heard of it yet.
        Protocol::Cancelling => return true,
        _ => return false,
    };
    if op.has_failed() {
        return host_staged::report_failure(port, peer, handle);
    }
    if cancelling {
        // We have asked to cancel it. The receiver has an answer to
        // that under way unless it was reading when it was asked and fell
        // back to fragments; then it answers now, and once in any case.
        cancel(port, peer, handle);
        return true;
    }
    grant(port, peer, handle, (units != 0).then_some(more));
    true
}

/// The receiver wants the bytes of an announced message.
pub(crate) fn grant(port: &mut Port, peer: u32, handle: u32, window: Option<usize>) {
    let Some(op) = port.ops.get_mut(handle) else {
        return;
    };
    op.protocol = Protocol::Streaming(Streaming { moved: 0, window });
    if let Some(outbound) = op.outbound() {
        outbound.meet();
    }
    if let Some(Exposed::Host(key)) = op.rare.as_mut().and_then(|rare| rare.exposed.take()) {
        port.links.unexport(&key);
    }
    port.peers[peer as usize].streams.push_back(handle);
    port.mark_busy(peer);
    port.trace_piece(Kind::Cts, peer, 0, port.trace_stamp());
}

pub(crate) fn on_fin(port: &mut Port, peer: u32, handle: u32, outcome: u16) -> bool {
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    if matches!(outcome, wire::OUTCOME_CLOSED | wire::OUTCOME_REVOKED) {
        return port.refused(handle, outcome);
    }
    if !matches!(op.protocol, Protocol::RtsSent(_) | Protocol::Cancelling) {
        return false;
    }
    port.trace_piece(Kind::Fin, peer, 0, port.trace_stamp());
    let rare = port.ops.get_mut(handle).and_then(|op| op.rare.as_mut());
    let broken = rare.and_then(|rare| rare.error.take());
    if broken.is_some() {
        host_staged::end_send(port, handle, broken);
    } else if outcome == wire::OUTCOME_CANCELLED {
        let e = Error::new(
            ErrorKind::Cancelled,
            format!("{}: cancelled", port.describe(handle)),
        );
        host_staged::end_send(port, handle, Some(e));
    } else {
        let gone = protocols::freed(port, handle);
        host_staged::end_send(port, handle, gone);
    }
    true
}

/// Tells the receiver of a send that its rest will not come; where a run owes it, in
/// the same message for whose death, so that there is one answer to each step.
pub(crate) fn cancel(port: &mut Port, peer: u32, handle: u32) {
    let blame = port.ops.get(handle).and_then(|op| {
        let given_up = op.rare.as_ref().and_then(|rare| rare.blame);
        given_up.or((op.run != NO_RUN).then_some(NOBODY))
    });
    let aux = blame.map_or(0, |_| wire::OF_RUN);
    port.control(
        peer,
        wire::head(wire::CANCEL, aux, handle, blame.unwrap_or(0)),
    );
}

/// Answers an announced message by the first protocol of the table that begins: the key by
/// which the message is to be read (`get`), if it is read from memory of the host.
pub(crate) fn answer(
    port: &mut Port,
    handle: u32,
    peer: u32,
    send: u32,
    rts: &Rts,
) -> Option<RegionKey> {
    let op = port.ops.get(handle)?;
    if op.view.as_device().is_none() && !rts.on_device {
        return answer_of_host(port, handle, peer, send, rts.key);
    }
    if rts.memory.is_none() && host_staged::keep_short(port, handle, peer, send) {
        return None;
    }
    let message = message_of(port, handle, peer, rts)?;
    let described = rts.key.filter(|key| key.kind == RegionKind::Described);
    let ranking = port.rules(peer).ranking(&message);
    // Why the message takes a longer way than between memory that can be opened.
    let mut why =
        opened_pair(rts, &message).and_then(|(made, placement)| match supported(made, placement) {
            Reach::No(why) => Some(why.to_owned()),
            _ => None,
        });
    for protocol in ranking.iter() {
        let begun = match (protocol, &rts.memory) {
            (Select::DeviceGet, Some(remote)) => {
                match device_get::begin_mapped(port, handle, peer, send, remote) {
                    Ok(begun) => begun,
                    Err(refused) => {
                        why = Some(refused);
                        false
                    }
                }
            }
            (Select::DeviceGet, None) => described
                .is_some_and(|key| device_copy::begin_direct(port, handle, peer, send, key)),
            (Select::DevicePut, Some(remote)) => {
                let slots = [Select::DeviceSlots, Select::HostSlots, Select::Fragments];
                let rest = ranking.iter().skip_while(|p| *p != Select::DevicePut);
                let next = rest.into_iter().find(|p| slots.contains(p));
                let slots_next = next == Some(Select::DeviceSlots);
                device_put::begin_place(port, handle, peer, send, remote, slots_next)
            }
            (Select::DeviceSlots, Some(remote)) => {
                let device = &remote.offer.key.device;
                let begun = device_pipeline::begin_on_device(port, handle, peer, send, device);
                if begun {
                    say(port, rts, &message, Through::Device, why.take());
                }
                begun
            }
            (Select::HostSlots | Select::Fragments, _) => {
                say(port, rts, &message, Through::Host, why.take());
                if rts.memory.is_some() && host_staged::keep_short(port, handle, peer, send) {
                    return None;
                }
                match protocol {
                    Select::HostSlots => host_pipeline::ask_slots(port, handle, peer, send),
                    _ => ask_fragments(port, handle, peer, send),
                }
                true
            }
            _ => false,
        };
        if begun {
            return None;
        }
    }
    debug_assert!(false, "invariant 1 of the table");
    ask_fragments(port, handle, peer, send);
    None
}

/// The same between memory of the host: the table, cut by size.
fn answer_of_host(
    port: &mut Port,
    handle: u32,
    peer: u32,
    send: u32,
    key: Option<RegionKey>,
) -> Option<RegionKey> {
    let total = port.ops.get(handle)?.total;
    let memory = match key.map(|key| key.kind) {
        None => Memory::Private,
        Some(RegionKind::Process | RegionKind::Network) => Memory::Plain,
        Some(_) => Memory::Heap,
    };
    let state = &mut port.peers[peer as usize];
    let mut answer = state.selection.answer(total, memory);
    if memory == Memory::Plain && state.selection.is_tried(total) {
        let trials = state.trials.get_or_insert_default();
        let ops = &port.ops;
        let lives = |handle| ops.get(handle).is_some_and(|op| !op.is_done());
        if trials.next(handle, total, lives) {
            answer = match answer {
                Select::GetAttach => Select::Fragments,
                _ => Select::GetAttach,
            };
        }
    }
    match answer {
        Select::GetMapped | Select::GetAttach => key,
        _ => {
            ask_fragments(port, handle, peer, send);
            None
        }
    }
}

/// What the receiver of an announcement knows of a message of which an end is a device's.
fn message_of(port: &mut Port, handle: u32, peer: u32, rts: &Rts) -> Option<Message> {
    let op = port.ops.get(handle)?;
    let (total, room) = (op.total, op.view.bytes());
    let own = op.view.as_device().cloned();
    let staged = |on_device: bool| End {
        space: if on_device {
            Space::Device
        } else {
            Space::Host
        },
        class: Class::Strided,
    };
    let from = match &rts.memory {
        Some(remote) => End {
            space: match remote.offer.key.made {
                Made::Pinned => Space::Pinned,
                _ => Space::Device,
            },
            class: remote.class(),
        },
        None => staged(rts.on_device),
    };
    let to = own.as_ref().map_or(staged(false), |memory| memory.end());
    let described = rts.key.is_some_and(|key| key.kind == RegionKind::Described);
    let fits = total <= room;
    let pair = match (&rts.memory, &own) {
        (Some(remote), Some(own)) => pair_of(port, handle, remote, own, fits),
        (None, Some(_)) if described => Some(DevicePair {
            fits,
            ..DevicePair::opened(Placement::Process)
        }),
        _ => None,
    };
    Some(Message {
        pair,
        announced: true,
        waits: true,
        shares_host: port.links.sharing(peer).host_memory,
        late: rts.late,
        offered: pair.is_some() && rts.memory.is_some(),
        ..Message::between(from, to, total)
    })
}

/// Memory of two devices, of which the other process has offered its own; none where nothing
/// can be opened.
fn pair_of(
    port: &mut Port,
    handle: u32,
    remote: &Remote,
    own: &DeviceMemory,
    fits: bool,
) -> Option<DevicePair> {
    // Memory that cannot be used is an error of the transfer.
    let context = device_pipeline::context_of(port, handle).filter(|_| port.devices.opens())?;
    let peer = port.ops.get(handle)?.peer;
    let key = &remote.offer.key;
    let placement = Placement::between(context.link(&key.device));
    let layout_known = remote.has_layout();
    let turns = match placement == Placement::Device && !context.has_mps() {
        true => Turns::of(*port.members.get(peer as usize)?, port.devices.rank()?),
        false => Turns::None,
    };
    // Asked for where it matters: it takes a call of the driver.
    let reads = supported(key.made, placement).is_there() && layout_known;
    let to = match reads && turns != Turns::Sender {
        true => None,
        false => own.key().ok().map(|(key, _)| key.made),
    };
    Some(DevicePair {
        placement,
        from: key.made,
        to,
        layout_known,
        fits,
        turns,
    })
}

/// Kind and placement of memory that was offered and might be opened.
fn opened_pair(rts: &Rts, message: &Message) -> Option<(Made, Placement)> {
    let pair = message.pair.filter(|_| rts.memory.is_some())?;
    Some((pair.from, pair.placement))
}

/// Says once why a message takes a longer way.
fn say(port: &Port, rts: &Rts, message: &Message, through: Through, why: Option<String>) {
    if let (Some((made, placement)), Some(why)) = (opened_pair(rts, message), why) {
        port.devices.say_once(made, placement, through, &why);
    }
}

pub(crate) fn ask_fragments(port: &mut Port, handle: u32, peer: u32, send: u32) {
    if let Some(how) = port.peers[peer as usize].dead {
        let e = port.death_error(handle, peer, how);
        return port.finish(handle, Some(e));
    }
    port.peers[peer as usize]
        .incoming
        .push((send, Target::Op(handle)));
    if port
        .ops
        .get(handle)
        .is_some_and(|op| op.view.as_device().is_some())
    {
        return host_staged::open_stepwise(port, handle, send);
    }
    port.control(peer, wire::head(wire::CTS, 0, send, 0));
}
