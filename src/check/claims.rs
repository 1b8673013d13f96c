//! Memory that pending operations own.
//!
//! A send shares its memory with other sends, and a receive shares it with
//! nobody. Operations of all communicators of the rank are compared, block by
//! block: interleaved layouts may be under way together.

use super::{Check, Checks};
use crate::p2p::view::RawView;
use std::panic::Location;

/// Memory of the operations under way.
#[derive(Default)]
pub(crate) struct Claims {
    next: u64,
    held: Vec<Held>,
}

struct Held {
    number: u64,
    writes: bool,
    view: RawView,
    what: String,
    site: &'static Location<'static>,
}

/// An operation's right to its memory; dropped when it is over.
pub(crate) struct Claim {
    checks: Checks,
    number: u64,
}

impl Checks {
    /// Claims memory for an operation; reports whoever has it already.
    pub(crate) fn claim(
        &self,
        view: &RawView,
        writes: bool,
        what: String,
        site: &'static Location<'static>,
    ) -> Claim {
        let mut claims = self.claims();
        let clash = claims
            .held
            .iter()
            .find(|held| (held.writes || writes) && held.view.overlaps(view))
            .map(|held| {
                let owns = |writes: bool| if writes { "writes" } else { "reads" };
                format!(
                    "a buffer is in use by two transfers\n  {} it  {}  at {}\n  {} it  {what}  at {site}\n  (hint: wait for the first before the second begins)\n",
                    owns(held.writes), held.what, held.site, owns(writes)
                )
            });
        claims.next += 1;
        let number = claims.next;
        claims.held.push(Held {
            number,
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
            number,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.checks.claims();
        if let Some(at) = claims.held.iter().position(|h| h.number == self.number) {
            claims.held.swap_remove(at);
        }
    }
}
