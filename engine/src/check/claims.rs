//! Claims: memory that pending operations read or write.
//!
//! A send shares its memory with other sends, and a receive with no operation.
//! Operations of all communicators of the rank are compared, block by
//! block: interleaved layouts may be in flight together.
//!
//! Claims are found by address. They lie in classes by the length of the memory
//! between their first and last byte, a power of two each; in a class, a claim
//! that reaches into a view begins less than one class length before it. So a
//! new claim examines those whose span meets its own, and at most two more per
//! class.
//!
//! # Invariants
//! 1. Reads and writes are listed apart: a read is compared with writes only,
//!    so that many sends of one buffer do not examine each other.
//! 2. `used` has a bit for each class that was ever not empty.

use super::{Check, Checks, Site};
use crate::view::RawView;
use std::collections::BTreeMap;

/// Memory of the operations in flight.
#[derive(Default)]
pub struct Claims {
    next: u64,
    reads: ByAddress,
    writes: ByAddress,
    /// Claims that were compared with others so far.
    looks: u64,
}

#[derive(Default)]
struct ByAddress {
    held: BTreeMap<ClaimKey, Held>,
    used: u64,
}

/// Class, first address, number.
type ClaimKey = (u32, usize, u64);

struct Held {
    writes: bool,
    view: RawView,
    what: String,
    site: Site,
}

/// An operation's right to its memory; dropped when it completes.
pub struct Claim {
    checks: Checks,
    writes: bool,
    place: ClaimKey,
}

/// Spans of a class are shorter than `2 << class`.
fn class_of((start, end): (usize, usize)) -> u32 {
    (end.saturating_sub(start) | 1).ilog2()
}

impl ByAddress {
    /// One that shares a byte with the view.
    fn clash(&self, view: &RawView, looks: &mut u64) -> Option<&Held> {
        let (start, end) = view.span();
        let classes = (0..usize::BITS).filter(|class| self.used & 1 << class != 0);
        for class in classes {
            let longest = (1usize << class).saturating_mul(2);
            let first = start.saturating_sub(longest);
            let near = (class, first, 0)..(class, end.max(first), 0);
            for held in self.held.range(near).map(|(_, held)| held) {
                *looks += 1;
                if held.view.overlaps(view) {
                    return Some(held);
                }
            }
        }
        None
    }
}

impl Claims {
    fn side(&mut self, writes: bool) -> &mut ByAddress {
        if writes {
            &mut self.writes
        } else {
            &mut self.reads
        }
    }

    /// Who has memory of this view that an operation may not share with them.
    fn clash(&mut self, view: &RawView, writes: bool) -> Option<&Held> {
        let Self {
            reads: other_reads,
            writes: other_writes,
            looks,
            ..
        } = self;
        let written = other_writes.clash(view, looks);
        match written {
            None if writes => other_reads.clash(view, looks),
            written => written,
        }
    }

    fn hold(&mut self, held: Held) -> ClaimKey {
        let span = held.view.span();
        self.next += 1;
        let place = (class_of(span), span.0, self.next);
        let side = self.side(held.writes);
        side.used |= 1 << place.0;
        side.held.insert(place, held);
        place
    }
}

impl Checks {
    /// Claims memory for an operation; reports operations that have it already.
    pub fn claim(&self, view: &RawView, writes: bool, what: String, site: Site) -> Claim {
        let mut claims = self.claims();
        let clash = claims.clash(view, writes).map(|held| {
            let owns = |writes: bool| if writes { "writes" } else { "reads" };
            format!(
                "a buffer is in use by two transfers\n  {} it  {}  at {}\n  {} it  {what}  at {site}\n  (hint: wait for the first before the second begins)\n",
                owns(held.writes), held.what, held.site, owns(writes)
            )
        });
        let place = claims.hold(Held {
            writes,
            view: view.clone(),
            what,
            site,
        });
        drop(claims);
        if let Some(text) = clash {
            self.report(Check::Buffers, text);
        }
        Claim {
            checks: self.clone(),
            writes,
            place,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.checks.claims();
        claims.side(self.writes).held.remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Buffer, View};
    use osier_datatype::{Datatype, Type};
    use proptest::prelude::*;
    use std::panic::Location;

    fn checks() -> Checks {
        Checks::new("buffers".parse().expect("a setting"), 0, |_| {})
    }

    /// Memory that is only compared by address.
    fn at(address: usize, bytes: usize) -> RawView {
        RawView::untyped(std::ptr::without_provenance_mut(address), bytes)
    }

    fn claim(checks: &Checks, view: &RawView, writes: bool) -> Claim {
        checks.claim(view, writes, "a transfer".into(), Location::caller().into())
    }

    const MANY: usize = 100_000;

    #[test]
    fn claim_among_many_examines_a_few() {
        for order in 0..3 {
            let checks = checks();
            let mut held = Vec::new();
            // A long one beside them must not make them all examine many.
            held.push(claim(&checks, &at(1 << 40, 1 << 34), true));
            for i in 0..MANY {
                let place = match order {
                    0 => i,
                    1 => MANY - i,
                    _ => i.wrapping_mul(7919) % MANY,
                };
                let bytes = 8 + place % 57;
                held.push(claim(&checks, &at((1 << 20) + 64 * place, bytes), true));
            }
            let looks = checks.claims().looks;
            assert!(looks <= 8 * MANY as u64, "{looks} looks");
            assert_eq!(checks.count(Check::Buffers), 0);
            drop(held);
            let claims = checks.claims();
            assert!(claims.writes.held.is_empty() && claims.reads.held.is_empty());
        }
    }

    #[test]
    fn sends_of_one_buffer_do_not_examine_each_other() {
        let checks = checks();
        let shared = at(1 << 20, 4096);
        let held: Vec<_> = (0..MANY).map(|_| claim(&checks, &shared, false)).collect();
        assert_eq!(checks.claims().looks, 0);
        drop(claim(&checks, &at((1 << 20) + 4095, 8), true));
        assert_eq!(
            (checks.claims().looks, checks.count(Check::Buffers)),
            (1, 1)
        );
        drop(held);
    }

    /// Views of several shapes around few addresses of some memory.
    fn views(memory: &[u8]) -> Vec<RawView> {
        let mut views = Vec::new();
        for start in [0usize, 1, 7, 8, 16, 40, 64, 200] {
            for bytes in [0usize, 1, 8, 9, 64, 300] {
                views.push(memory[start..start + bytes].view().raw());
            }
            for (count, stride) in [(4, 2), (3, 5), (2, 40)] {
                let every = Type::vector(count, 1, stride, &u8::datatype()).expect("a vector");
                let every = every.commit().expect("a layout");
                let view = View::new(memory, start, &every, 1).expect("inside");
                views.push(view.raw());
            }
        }
        views
    }

    proptest! {
        /// The clashes equal those of a search of all claims.
        #[test]
        fn clashes_equal_those_of_an_exhaustive_search(
            steps in proptest::collection::vec((any::<u16>(), any::<bool>(), any::<u8>()), 1..60)
        ) {
            let memory = vec![0; 512];
            let views = views(&memory);
            let checks = checks();
            let mut held: Vec<(RawView, bool, Claim)> = Vec::new();
            let mut clashes = 0;
            for (which, writes, what) in steps {
                if what % 3 == 0 && !held.is_empty() {
                    held.swap_remove(usize::from(which) % held.len());
                    continue;
                }
                let view = &views[usize::from(which) % views.len()];
                let naive = held
                    .iter()
                    .any(|(v, w, _)| (*w || writes) && v.overlaps(view));
                clashes += u64::from(naive);
                let claim = claim(&checks, view, writes);
                prop_assert_eq!(checks.count(Check::Buffers), clashes);
                held.push((view.clone(), writes, claim));
            }
        }
    }
}
