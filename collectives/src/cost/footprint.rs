//! Memory that a plan touches, and what copies, sums and messages cost by it: vectors that lie in
//! the cache alone may not when a plan touches more.

use super::machine::{Machine, Sizes};
use crate::call::Call;
use crate::plan::{Buffer, Part, Region};

/// The length of vectors that touch as much memory as a plan does, where a rank on each core
/// copies one to another: as copies were measured.
pub(super) fn reach(call: &Call, parts: &[Part], sizes: &Sizes, machine: &Machine) -> f64 {
    if machine.aside.is_some() {
        return 0.0;
    }
    let of_part = |part: &Part| {
        let bytes = |buffer, pieces| sizes.bytes(call, part, Region::run(buffer, 0, pieces));
        let of_user = |buffer| bytes(buffer, call.pieces(part.rank, buffer, part.cut));
        let own = part.scratch.iter().enumerate().filter(|(_, s)| !s.slot);
        let own = own.map(|(k, scratch)| {
            let there = match scratch.slots {
                0 => 1.0,
                slots => f64::from(slots.min(part.segments)) / f64::from(part.segments),
            };
            bytes(Buffer::Scratch(k as u16), scratch.pieces) * there
        });
        let of_segment = of_user(Buffer::Send) + of_user(Buffer::Recv) + own.sum::<f64>();
        of_segment * f64::from(part.segments)
    };
    // Roots may take turns, so the memory of the rank that has most counts for all.
    let most = parts.iter().map(of_part).fold(0.0, f64::max);
    let sharers = machine.shared_cores.map_or(1, |s| s.ranks_per_core);
    most * f64::from(sharers) / 2.0
}

/// How many times as long moving bytes takes in a plan that touches the memory of vectors of
/// `reach` bytes as in one that touches that of vectors of `whole` bytes. One end of the move is
/// in the cache either way, so half of the time grows.
pub(super) fn beyond(machine: &Machine, whole: f64, reach: f64) -> f64 {
    let rate = |bytes: f64| machine.copy.at(bytes) / bytes;
    match whole > 0.0 && rate(whole) > 0.0 {
        true => (0.5 + 0.5 * rate(reach) / rate(whole)).max(1.0),
        false => 1.0,
    }
}
