//! Times of messages as programs use them: [`Uses`].
//!
//! Two ranks send messages of plain memory that they have just written, or received:
//!
//! ```text
//! posted      in turn: who receives waits for the message
//! unposted    the same; the receive is posted behind a short message that was sent later
//! window      several of the same direction, all receives posted, then an answer
//! ```
//!
//! Each way is forced by costs by which it is the cheapest.

use super::NOT_PERMITTED_NS;
use super::rounds::median;
use crate::comm::Communicator;
use crate::model::calls::round;
use osier_engine::error::Result;
use osier_engine::protocol::Protocol;
use osier_engine::protocol::cost::{IN_PARTS_BYTES, LinkCosts};
use osier_engine::protocol::select::EAGER_LIMIT_BYTES;
use osier_engine::protocol::uses::{SIZES, Times, Use, Uses, WAYS};

/// Bytes of a window at most, and its messages.
const WINDOW_BYTES: usize = 2 << 20;
const MOST_MESSAGES: usize = 16;
const LEAST_MESSAGES: usize = 2;
const DATA: u32 = 0;
const SHORT: u32 = 1;

/// Costs by which a way is the cheapest of all.
fn forcing(way: Protocol, links: &LinkCosts) -> LinkCosts {
    let mut costs = LinkCosts {
        uses: None,
        attach_call_ns: NOT_PERMITTED_NS,
        ..*links
    };
    match way {
        // A handshake is dearer than any message,
        Protocol::Eager => costs.latency_ns = 1e6,
        // or costs nothing.
        Protocol::Fragments => costs.latency_ns = 1e-3,
        _ => (costs.attach_call_ns, costs.attach_ns_per_byte) = (1.0, 1e-6),
    }
    costs
}

/// Whether messages of this size go this way at all.
fn is_for(way: Protocol, bytes: usize, kernel: bool) -> bool {
    match way {
        Protocol::Eager => bytes <= EAGER_LIMIT_BYTES,
        Protocol::Fragments => bytes > IN_PARTS_BYTES,
        _ => kernel,
    }
}

/// Measures messages between the two ranks of `pair`. Collective; the result is the first rank's.
///
/// # Errors
/// If a rank dies.
pub(super) fn of(pair: &Communicator, links: &LinkCosts) -> Result<Uses> {
    let most = SIZES[SIZES.len() - 1] as usize;
    let kernel = links.attach_call_ns < NOT_PERMITTED_NS;
    let mut data = vec![1u8; LEAST_MESSAGES * most];
    let mut uses = Uses([Times::default(); SIZES.len()]);
    for (row, bytes) in SIZES.into_iter().enumerate() {
        let bytes = bytes as usize;
        for (column, way) in WAYS.into_iter().enumerate() {
            if !is_for(way, bytes, kernel) {
                continue;
            }
            pair.choose_by(&forcing(way, links));
            for in_use in Use::ALL {
                let ns = time(pair, in_use, &mut data, bytes)?;
                uses.0[row][in_use as usize][column] = round(ns);
            }
        }
        // Announced or not, messages of this size leave in parts.
        if bytes <= IN_PARTS_BYTES {
            for times in &mut uses.0[row] {
                times[1] = times[0];
            }
        }
    }
    let text = serde_json::to_vec(&uses).unwrap_or_default();
    Ok(serde_json::from_slice(&pair.first_says(text)?).unwrap_or(uses))
}

/// The time of a message, in ns.
fn time(pair: &Communicator, in_use: Use, data: &mut [u8], bytes: usize) -> Result<f64> {
    let peer = 1 - pair.rank();
    let sends = |turn: usize| turn % 2 == pair.rank();
    match in_use {
        Use::Posted => median(pair, false, |turn| match sends(turn) {
            true => pair.send(&data[..bytes], peer, DATA),
            false => pair.recv(&mut data[..bytes], peer, DATA).map(drop),
        }),
        Use::Unposted => median(pair, false, |turn| {
            let mut short = [0u8];
            if !sends(turn) {
                pair.recv(&mut short, peer, SHORT)?;
                return pair.recv(&mut data[..bytes], peer, DATA).map(drop);
            }
            pair.scope(|s| {
                s.isend(&data[..bytes], peer, DATA)?;
                s.isend(&short, peer, SHORT)?;
                Ok(())
            })
        }),
        Use::Window => {
            let messages = (WINDOW_BYTES / bytes).clamp(LEAST_MESSAGES, MOST_MESSAGES);
            let mut short = [0u8];
            let ns = median(pair, false, |turn| {
                let each = data.len() / messages;
                let sent = sends(turn);
                pair.scope(|s| {
                    for slice in data.chunks_mut(each.max(bytes)).take(messages) {
                        match sent {
                            true => s.isend(&slice[..bytes], peer, DATA)?,
                            false => s.irecv(&mut slice[..bytes], peer, DATA)?,
                        };
                    }
                    Ok(())
                })?;
                match sent {
                    true => pair.recv(&mut short, peer, SHORT).map(drop),
                    false => pair.send(&short, peer, SHORT),
                }
            })?;
            Ok(ns / messages as f64)
        }
    }
}
