//! Rendezvous: announce, agree, move.
//!
//! ```text
//! sender                      receiver
//! ANNOUNCE total [key]  ->    (match)
//!                       <-    GO                 fragments it is
//! FRAGMENT ...          ->
//!    or
//!                             reads the sender's memory through the key
//!                       <-    FINISH
//! ```
//!
//! The receiver decides, because it alone knows both ends: it pulls when the
//! sender's memory can be read and that is cheaper, and asks for fragments
//! otherwise.
//!
//! # Invariants
//! 1. Each announcement is answered exactly once, by GO or by FINISH, even
//!    after the sender has asked to withdraw it; a GO may follow a FINISH that
//!    says the memory could not be read.
//! 2. The sender's memory is read only between announcement and FINISH.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD
//! thesis, University of Tennessee, 2017, section 4.3.1 (receiver-driven
//! handshake, one per transfer).

use super::select::Selection;
use osier_transports::{RegionKey, RegionKind};

/// How the receiver gets the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Ask the sender for fragments.
    Fragments,
    /// Read the sender's memory.
    Pull(RegionKey),
}

/// The receiver's decision on an announcement.
pub fn decide(selection: &Selection, total: usize, key: Option<RegionKey>) -> Way {
    match key {
        Some(key) => match key.kind {
            RegionKind::Process => {
                if selection.attach_pays(total) {
                    Way::Pull(key)
                } else {
                    Way::Fragments
                }
            }
            _ => Way::Pull(key),
        },
        None => Way::Fragments,
    }
}
