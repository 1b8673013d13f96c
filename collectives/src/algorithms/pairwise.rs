//! Pairwise exchange: in round k each rank exchanges with one other, and goes on
//! when both are done.
//!
//! Of 2^n ranks, r meets r xor k; else it sends to r + k and receives from r - k.
//! Fewer messages are under way at a time than in `spread.rs`.
//!
//! # Sources
//! R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005.

use super::spread::{self, Exchange};
use crate::builder::Builder;

/// Whom a rank sends to and receives from in a round.
fn partners(size: u32, rank: u32, round: u32) -> (u32, u32) {
    if size.is_power_of_two() {
        (rank ^ round, rank ^ round)
    } else {
        ((rank + round) % size, (rank + size - round) % size)
    }
}

/// Alltoall or reduce_scatter.
pub(super) fn exchange(b: &mut Builder, what: Exchange) {
    b.phase();
    let (rank, size) = (b.rank, b.call.size);
    let places = spread::prepare(b, what);
    let mut before: Option<(u32, u32)> = None;
    for round in 1..size {
        let (to, from) = partners(size, rank, round);
        let tag = b.tag(round);
        let wait = |b: &mut Builder| {
            if let Some((recv, send)) = before {
                b.after(recv);
                b.after(send);
            }
        };
        wait(b);
        let recv = b.recv(from, tag, places.incoming(from));
        wait(b);
        let send = b.send(to, tag, places.outgoing(to));
        before = Some((recv, send));
    }
    spread::conclude(b, what, &places);
}
