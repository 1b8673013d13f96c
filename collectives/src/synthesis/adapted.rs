//! Trees of any shape below some ranks that talk to each other, and barriers of this
//! kind that are fitted to clusters.
//!
//! # Sources
//! J. C. Meyer, PhD thesis, NTNU 2012, section 7.3: per cluster the cheapest of
//! linear, tree and dissemination, pivots as members of the next level; what goes up
//! comes down reversed, but for a dissemination at the top.

use super::clusters::{Cluster, cluster};
use super::matrix::Matrix;
use super::stages::Stages;
use crate::algorithms::{Family, Tree};
use crate::group::Group;
use std::sync::Arc;

/// A forest whose roots exchange among themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapted {
    /// By rank: its parent and children below the top.
    pub families: Vec<Family>,
    /// The roots. If there is one, it is a tree.
    pub top: Arc<[u32]>,
    /// How it was made.
    pub name: String,
}

/// A barrier for these costs.
///
/// Clusters are found with `sparseness`. Below the top each is given the cheaper way
/// up, linear or by tree; the top may disseminate instead.
pub fn adapted_barrier(matrix: &Matrix, sparseness: f64) -> Adapted {
    let all: Vec<u32> = (0..matrix.size()).collect();
    let distance = |i, j| matrix.distance_ns(i, j);
    let found = cluster(&all, &distance, sparseness);
    let mut families = vec![Family::default(); all.len()];
    let top = join(&found, matrix, &mut families);
    let size = top.len() as u32;
    let real = |i: u32| top[i as usize];
    let mut shape = String::from("dissemination at the top");
    let across = Stages::dissemination(size).cost_ns(matrix, real);
    let (tree, up) = cheapest(&top, matrix);
    let mut roots: Arc<[u32]> = top.clone().into();
    if up < across {
        glue(&top, tree, &mut families);
        roots = [top[0]].into();
        shape = format!("{tree:?} at the top");
    }
    Adapted {
        families,
        top: roots,
        name: format!("adapted to clusters, {shape}"),
    }
}

/// Glues everything below a cluster; returns who speaks at its level.
fn join(cluster: &Cluster, matrix: &Matrix, families: &mut [Family]) -> Vec<u32> {
    if cluster.inner.is_empty() {
        return cluster.members.clone();
    }
    cluster
        .inner
        .iter()
        .map(|inner| {
            let members = join(inner, matrix, families);
            let (tree, _) = cheapest(&members, matrix);
            glue(&members, tree, families);
            members[0]
        })
        .collect()
}

/// The cheaper tree over some ranks, and its cost up and down.
fn cheapest(members: &[u32], matrix: &Matrix) -> (Tree, f64) {
    let cost = |tree| {
        let stages = Stages::up(tree, members.len() as u32).and_back();
        (tree, stages.cost_ns(matrix, |i| members[i as usize]))
    };
    let (linear, binomial) = (cost(Tree::Linear), cost(Tree::Binomial));
    if linear.1 <= binomial.1 {
        linear
    } else {
        binomial
    }
}

/// Puts a tree over members, the first being the root; outer edges first.
fn glue(members: &[u32], tree: Tree, families: &mut [Family]) {
    let group = Group::List(members.into());
    for rank in members {
        let own = tree.of(&group, 0, *rank);
        let family = &mut families[*rank as usize];
        family.parent = family.parent.or(own.parent);
        family.children.splice(0..0, own.children);
    }
}
