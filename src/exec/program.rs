//! What a run does: actions over pieces of named buffers, and their graph.

use super::graph::Graph;
use super::straight::Straight;
use osier_collectives::{Region, Scratch};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sends pieces to a rank. The tag's lower bits are left for segments.
    Send { to: u32, tag: u32, data: Region },
    /// Receives pieces from a rank.
    Receive { from: u32, tag: u32, data: Region },
    /// Copies pieces within the rank.
    Copy { from: Region, to: Region },
    /// `into = left op right`, piece by piece; `into` may be one of them.
    Combine {
        left: Region,
        right: Region,
        into: Region,
    },
}

/// Bits of a tag that tell segments apart: twice those that are under way at a time.
pub(crate) const SEGMENT_TAGS: u32 = 32;
/// Bits of a tag that tell the messages of a program apart, segments included.
pub(crate) const TAG_BITS: u32 = 20;

/// Steps of one rank.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub graph: Graph,
    pub actions: Vec<Action>,
    /// Buffers of its own.
    pub scratch: Vec<Scratch>,
    /// Pieces into which a vector is cut.
    pub cut: u32,
    /// Its steps in a row, if it is short.
    pub straight: Option<Straight>,
}
