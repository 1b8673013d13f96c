//! Rendezvous: a message is announced, and its receiver says how it comes.
//!
//! ```text
//! sender                      receiver
//! ANNOUNCE total [key]  ->    (match)
//!                       <-    GO          fragments
//!                       <-    FINISH      it was read (`get`), or is over
//! WITHDRAW              ->                it will not come
//! ```

use super::outbox::Step;
use super::{device_copy, device_memory, host_staged};
use crate::error::{Error, ErrorKind};
use crate::exec::executor::{NO_RUN, NOBODY};
use crate::progress::op::Protocol;
use crate::progress::peer::Target;
use crate::progress::port::Port;
use crate::progress::protocols;
use crate::progress::protocols::Stage;
use crate::trace::event::Kind;
use crate::wire;
use osier_transports::PostError;

/// A send that is announced.
pub(crate) struct Announced {
    /// The receiver was asked to let it go.
    pub withdrawing: bool,
}

/// A send whose receiver lets fragments go, or chunks.
pub(crate) struct Granted {
    /// Bytes that have left.
    pub moved: usize,
    /// Bytes up to which the receiver lets it go; `None`: all.
    pub window: Option<usize>,
}

/// Posts the announcement of a send.
pub(crate) fn announce(port: &mut Port, handle: u32) -> Step {
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
    let announcement = wire::Announcement {
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
    let head = wire::head(wire::ANNOUNCE, aux, tag, handle);
    let fill = |to: *mut u8| {
        // SAFETY: room for `n` bytes.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, n) }
    };
    match port.links.post_with(peer, head, n, fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    op.protocol = Protocol::Announced(Announced { withdrawing: false });
    let bytes = op.total;
    port.counters.announced += 1;
    port.trace_start(Kind::Announce, peer, tag, bytes, since);
    Step::Moved
}

pub(crate) fn on_go(port: &mut Port, peer: u32, handle: u32, units: u16) -> bool {
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    let more = usize::from(units) * wire::WINDOW_BYTES;
    let withdrawing = match &mut op.protocol {
        Protocol::Announced(announced) => announced.withdrawing,
        Protocol::Granted(Granted {
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
        Protocol::Withdrawn => return true,
        _ => return false,
    };
    if op.has_failed() {
        return host_staged::tell_failure(port, peer, handle);
    }
    if withdrawing {
        // We have asked to withdraw it. The receiver has an answer to
        // that under way unless it was reading when it was asked and fell
        // back to fragments; then it answers now, and once in any case.
        withdraw(port, peer, handle);
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
    op.protocol = Protocol::Granted(Granted { moved: 0, window });
    if let Some(rare) = &mut op.rare {
        rare.offer = None;
    }
    if let Some(Stage::Out(stage)) = op.stage() {
        stage.meet();
    }
    if let Some(key) = op.take_key() {
        port.links.unexport(&key);
    }
    port.peers[peer as usize].streams.push_back(handle);
    port.mark_busy(peer);
    port.trace_piece(Kind::Go, peer, 0, port.trace_stamp());
}

pub(crate) fn on_finish(port: &mut Port, peer: u32, handle: u32, outcome: u16) -> bool {
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    if outcome == wire::OUTCOME_CLOSED {
        return port.refused(handle);
    }
    if !matches!(op.protocol, Protocol::Announced(_) | Protocol::Withdrawn) {
        return false;
    }
    port.trace_piece(Kind::Finish, peer, 0, port.trace_stamp());
    let rare = port.ops.get_mut(handle).and_then(|op| op.rare.as_mut());
    let broken = rare.and_then(|rare| rare.error.take());
    if broken.is_some() {
        port.finish(handle, broken);
    } else if outcome == wire::OUTCOME_WITHDRAWN {
        let e = Error::new(
            ErrorKind::Cancelled,
            format!("{}: withdrawn", port.describe(handle)),
        );
        port.finish(handle, Some(e));
    } else {
        let gone = protocols::freed(port, handle);
        port.finish(handle, gone);
    }
    true
}

/// Tells the receiver of a send that its rest will not come; where a run owes it, in
/// the same message for whose death, so that there is one answer to each step.
pub(crate) fn withdraw(port: &mut Port, peer: u32, handle: u32) {
    let blame = port.ops.get(handle).and_then(|op| {
        let given_up = op.rare.as_ref().and_then(|rare| rare.blame);
        given_up.or((op.run != NO_RUN).then_some(NOBODY))
    });
    let aux = blame.map_or(0, |_| wire::OF_RUN);
    port.control(
        peer,
        wire::head(wire::WITHDRAW, aux, handle, blame.unwrap_or(0)),
    );
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
    port.control(peer, wire::head(wire::GO, 0, send, 0));
}
