//! Barrier by stages of signals, as a synthesis found them.
//!
//! # Sources
//! J. C. Meyer, PhD thesis, NTNU 2012, section 5.6.1: one routine for all patterns.

use crate::builder::Builder;
use crate::synthesis::Signal;

/// A rank is through with a stage when its signals are raised and those of others have come;
/// one that has none does not notice the stage.
pub(super) fn barrier(b: &mut Builder, signals: &[Signal]) {
    b.phase();
    for signal in signals {
        let tag = b.tag(signal.stage);
        match signal.raised {
            true => b.raise(signal.peer, tag),
            false => b.wait(signal.peer, tag),
        };
    }
}
