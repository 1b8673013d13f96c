//! Trees of any shape below some ranks that talk to each other; barriers of this kind, and
//! trees for broadcasts and reductions, that are fitted to clusters.
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

impl Adapted {
    /// The same over other ranks: `real` says which is which.
    pub fn renamed(&self, real: impl Fn(u32) -> u32) -> Self {
        let mut families = vec![Family::default(); self.families.len()];
        for (rank, family) in self.families.iter().enumerate() {
            families[real(rank as u32) as usize] = Family {
                parent: family.parent.map(&real),
                children: family.children.iter().map(|c| real(*c)).collect(),
            };
        }
        Self {
            families,
            top: self.top.iter().map(|rank| real(*rank)).collect(),
            name: self.name.clone(),
        }
    }
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
    let shape = |members: &[u32]| cheapest(members, matrix).0;
    let top = join(&found, &shape, &mut families);
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

/// A tree from `root` for messages of `bytes`: in each cluster, and among those who speak for
/// clusters, of the shape that is through first.
pub fn adapted_tree(matrix: &Matrix, root: u32, bytes: u64, sparseness: f64) -> Adapted {
    // The first is a pivot at every level.
    let mut all: Vec<u32> = (0..matrix.size()).filter(|rank| *rank != root).collect();
    all.insert(0, root);
    let distance = |i, j| matrix.distance_ns(i, j);
    let found = cluster(&all, &distance, sparseness);
    let mut families = vec![Family::default(); all.len()];
    let shape = |members: &[u32]| quickest(members, matrix, bytes);
    let top = join(&found, &shape, &mut families);
    glue(&top, shape(&top), &mut families);
    Adapted {
        families,
        top: [root].into(),
        name: "trees adapted to clusters".into(),
    }
}

/// The shape over some ranks, the first being the root, by which the last of them has a
/// message first.
fn quickest(members: &[u32], matrix: &Matrix, bytes: u64) -> Tree {
    let size = members.len() as u32;
    let through = |tree: &Tree| {
        let mut at = vec![0.0f64; members.len()];
        let mut open = vec![0u32];
        let mut last = 0.0f64;
        while let Some(index) = open.pop() {
            let mut free = at[index as usize];
            last = last.max(free);
            for child in tree.family(size, index).children {
                let (from, to) = (members[index as usize], members[child as usize]);
                let (busy, way) = matrix.takes_ns(from, to, bytes);
                at[child as usize] = free + way;
                free += busy;
                open.push(child);
            }
        }
        last
    };
    let mut shapes = vec![Tree::Linear, Tree::Chain, Tree::Binomial];
    if let [root, other, ..] = members {
        let (busy, way) = matrix.takes_ns(*root, *other, bytes);
        shapes.push(Tree::Postal(
            (way / busy.max(1e-9)).round().clamp(1.0, 64.0) as u32,
        ));
    }
    let found = shapes
        .into_iter()
        .min_by(|a, b| through(a).total_cmp(&through(b)));
    found.unwrap_or(Tree::Linear)
}

/// Glues everything below a cluster; returns who speaks at its level.
fn join(cluster: &Cluster, shape: &dyn Fn(&[u32]) -> Tree, families: &mut [Family]) -> Vec<u32> {
    if cluster.inner.is_empty() {
        return cluster.members.clone();
    }
    cluster
        .inner
        .iter()
        .map(|inner| {
            let members = join(inner, shape, families);
            glue(&members, shape(&members), families);
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
