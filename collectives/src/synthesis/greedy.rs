//! Earliest-completion trees: the rank that can be reached first is reached next.
//!
//! Again and again the edge from a rank that has the message to one that has not is
//! added that would end first. A reduction over the tree runs backward.

use super::adapted::{Adapted, Shape};
use super::matrix::Matrix;
use crate::algorithms::Family;

/// The tree from `root` for messages of `bytes`.
pub fn earliest_completion(matrix: &Matrix, root: u32, bytes: u64) -> Adapted {
    let size = matrix.size();
    let mut families = vec![Family::default(); size as usize];
    // When a rank that has it can send next.
    let mut free: Vec<Option<f64>> = vec![None; size as usize];
    free[root as usize] = Some(0.0);
    let takes = |i, j| matrix.takes_ns(i, j, bytes);
    // By rank that has not: the best edge to it. Only the edges from two ranks
    // change per step: from the one that sent, and from the one that got it.
    let best_for = |j: u32, free: &[Option<f64>]| {
        (0..size)
            .filter_map(|i| free[i as usize].map(|at| (at + takes(i, j).1, i)))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
    };
    let mut best: Vec<Option<(f64, u32)>> = (0..size)
        .map(|j| (j != root).then(|| best_for(j, &free)).flatten())
        .collect();
    for _ in 1..size {
        let open = (0..size).filter_map(|j| best[j as usize].map(|(at, i)| (at, i, j)));
        let Some((at, from, to)) = open.min_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)))
        else {
            break;
        };
        families[from as usize].children.push(to);
        families[to as usize].parent = Some(from);
        free[from as usize] = free[from as usize].map(|free| free + takes(from, to).0);
        free[to as usize] = Some(at);
        best[to as usize] = None;
        for j in 0..size {
            let Some((known, by)) = best[j as usize] else {
                continue;
            };
            if by == from {
                best[j as usize] = best_for(j, &free);
            } else if let Some(sends) = free[to as usize] {
                let through = sends + takes(to, j).1;
                if through < known {
                    best[j as usize] = Some((through, to));
                }
            }
        }
    }
    Adapted {
        shape: Shape::Tree(families),
        root,
        name: "earliest completion".into(),
    }
}
