//! What a broadcast in segments takes by Hockney's model, in closed form.
//!
//! `n` segments of `m` bytes each, P ranks: `alpha + beta * m` per message, and a
//! rank sends one message and receives one at a time. The simulation of the plans
//! gives the same numbers (`tests/cost.rs`); these are for choosing shapes of trees
//! per level, where nothing is to be simulated yet.
//!
//! # Sources
//! W. Wu, PhD thesis, University of Tennessee, 2017, table 5.1, after
//! J. Pješivac-Grbović et al., Cluster Computing 10(2), 2007. In the last line the
//! table has half a segment for what is exchanged; it is half of the message.

use super::machine::Link;
use crate::algorithms::{Tree, postal};

fn log2_up(x: u32) -> f64 {
    f64::from(x.next_power_of_two().ilog2())
}

fn hop(link: &Link, segment_bytes: f64) -> f64 {
    link.one_way_ns(segment_bytes)
}

/// Of a tree over `size` ranks, in ns.
pub fn tree_ns(tree: Tree, size: u32, segments: u32, segment_bytes: f64, link: &Link) -> f64 {
    let (p, n) = (f64::from(size), f64::from(segments));
    let hop = hop(link, segment_bytes);
    if size < 2 {
        return 0.0;
    }
    match tree {
        Tree::Linear => n * (p - 1.0) * hop,
        Tree::Chain => (p + n - 2.0) * hop,
        Tree::Binomial => n * log2_up(size) * hop,
        Tree::Postal(reach) => n * f64::from(postal::hops(reach, size)) * hop,
        Tree::KAry(1) => (p + n - 2.0) * hop,
        Tree::KAry(2) => 2.0 * (log2_up(size + 1) + n - 2.0) * hop,
        // The same argument with k messages per segment and level.
        Tree::KAry(k) => {
            let mut levels = 0.0;
            let (mut reached, mut width) = (1u64, u64::from(k));
            while reached < u64::from(size) {
                levels += 1.0;
                reached += width;
                width *= u64::from(k);
            }
            f64::from(k) * (levels + n - 1.0) * hop
        }
    }
}

/// Of the split binary tree, in ns: segments of half the message each.
pub fn split_binary_ns(size: u32, segments: u32, segment_bytes: f64, link: &Link) -> f64 {
    let halves = f64::from(segments.div_ceil(2));
    let message = f64::from(segments) * segment_bytes;
    2.0 * (log2_up(size + 1) + halves - 2.0) * hop(link, segment_bytes) + hop(link, message / 2.0)
}
