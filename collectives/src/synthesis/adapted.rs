//! Barriers, and trees for broadcasts and reductions, that are fitted to clusters of ranks.
//!
//! ```text
//! costs of pairs -> clusters in clusters, for each sparseness -> the way that is cheapest
//! ```
//!
//! # Sources
//! J. C. Meyer, PhD thesis, NTNU 2012, section 7.3: per cluster the cheapest of linear, tree
//! and dissemination, pivots as members of the next level; clusters of a level in shared
//! stages; what goes up comes down reversed, but for a dissemination at the top.

use super::clusters::{Cluster, cluster};
use super::matrix::Matrix;
use super::stages::{Signal, Stages};
use crate::algorithms::{Family, Tree};
use crate::group::Group;
use std::collections::HashMap;
use std::fmt;

/// Pairs whose two ways differ by more than this share are named: theirs is no distance.
const UNLIKE: f64 = 0.2;

/// What ranks do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// By rank: its parent and children below the root.
    Tree(Vec<Family>),
    /// By rank: its signals, stage by stage. A barrier.
    Stages(Vec<Vec<Signal>>),
}

/// A plan made from costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapted {
    /// Who does what.
    pub shape: Shape,
    /// The root of a tree.
    pub root: u32,
    /// How it was made.
    pub name: String,
}

impl Adapted {
    /// The same over other ranks: `real` says which is which.
    pub fn renamed(&self, real: impl Fn(u32) -> u32) -> Self {
        let shape = match &self.shape {
            Shape::Tree(families) => {
                let mut renamed = vec![Family::default(); families.len()];
                for (rank, family) in families.iter().enumerate() {
                    renamed[real(rank as u32) as usize] = Family {
                        parent: family.parent.map(&real),
                        children: family.children.iter().map(|c| real(*c)).collect(),
                    };
                }
                Shape::Tree(renamed)
            }
            Shape::Stages(ranks) => {
                let mut renamed = vec![Vec::new(); ranks.len()];
                for (rank, signals) in ranks.iter().enumerate() {
                    let signals = signals.iter().map(|s| s.renamed(real(s.peer)));
                    renamed[real(rank as u32) as usize] = signals.collect();
                }
                Shape::Stages(renamed)
            }
        };
        Self {
            shape,
            root: real(self.root),
            name: self.name.clone(),
        }
    }
}

/// Clusters in clusters at each sparseness; those that are alike once.
fn all_clusters(ranks: &[u32], matrix: &Matrix, sparseness: &[f64]) -> Vec<(f64, Cluster)> {
    let distance = |i, j| matrix.distance_ns(i, j);
    let mut all: Vec<(f64, Cluster)> = Vec::new();
    for sparseness in sparseness {
        let found = cluster(ranks, &distance, *sparseness);
        if all.iter().all(|(_, known)| *known != found) {
            all.push((*sparseness, found));
        }
    }
    all
}

/// What to say of costs that are not the same both ways.
fn unlike(matrix: &Matrix) -> String {
    match matrix.asymmetric(UNLIKE).len() {
        0 => String::new(),
        pairs => format!(", {pairs} pairs unlike both ways"),
    }
}

/// A barrier for these costs: of the clusters that are found with each sparseness, those by
/// which it is cheapest. None if there is no rank.
///
/// Each cluster is given the cheapest of linear, tree and dissemination; one that
/// disseminates at the top needs nothing to come back.
pub fn adapted_barrier(matrix: &Matrix, sparseness: &[f64]) -> Option<Adapted> {
    let ranks: Vec<u32> = (0..matrix.size()).collect();
    let mut best: Option<(f64, Stages, String)> = None;
    for (sparseness, found) in all_clusters(&ranks, matrix, sparseness) {
        let (up, speakers) = gathered(&found, matrix);
        let (way, top) = Way::cheapest(&speakers, matrix, true);
        let stages = match way {
            Way::Dissemination => up.clone().then(top).then(up.back()),
            _ => up.then(top).and_back(),
        };
        let stages = stages.without_empty();
        let cost = stages.cost_ns(matrix, |rank| rank);
        // Made from measured costs: not used unless it is a barrier.
        if stages.check().is_ok() && best.as_ref().is_none_or(|(least, ..)| cost < *least) {
            let name = format!("adapted to clusters at {sparseness}, {way} at the top");
            best = Some((cost, stages, name));
        }
    }
    let (_, stages, name) = best?;
    Some(Adapted {
        shape: Shape::Stages(stages.by_rank()),
        root: 0,
        name: name + &unlike(matrix),
    })
}

/// A tree from `root` for messages of `bytes`: in each cluster, and among those who speak for
/// clusters, of the shape that is through first; of the clusters at each sparseness, those by
/// which all are. A reduction is one of the transposed costs, backward.
pub fn adapted_tree(matrix: &Matrix, root: u32, bytes: u64, sparseness: &[f64]) -> Adapted {
    // The first is a pivot at every level.
    let mut all: Vec<u32> = (0..matrix.size()).filter(|rank| *rank != root).collect();
    all.insert(0, root);
    let shape = |members: &[u32]| quickest(members, matrix, bytes);
    let made = all_clusters(&all, matrix, sparseness)
        .into_iter()
        .map(|(sparseness, found)| {
            let mut families = vec![Family::default(); all.len()];
            let top = join(&found, &shape, &mut families);
            glue(&top, shape(&top), &mut families);
            let last = last_ns(root, matrix, bytes, |rank| {
                families[rank as usize].children.clone()
            });
            (last, sparseness, families)
        });
    let best = made.min_by(|a, b| a.0.total_cmp(&b.0));
    let (families, at) = best.map_or_else(
        || (vec![Family::default(); all.len()], String::new()),
        |(_, sparseness, families)| (families, format!(" at {sparseness}")),
    );
    Adapted {
        shape: Shape::Tree(families),
        root,
        name: format!("trees adapted to clusters{at}{}", unlike(matrix)),
    }
}

/// How a cluster hears of all its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Linear,
    Tree,
    Dissemination,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::Tree => "tree",
            Self::Dissemination => "dissemination",
        })
    }
}

impl Way {
    /// The cheapest over some ranks, up and down, and its way up. At the top dissemination
    /// needs no way down.
    fn cheapest(members: &[u32], matrix: &Matrix, top: bool) -> (Self, Stages) {
        let size = members.len() as u32;
        let real = |i: u32| members[i as usize];
        let up = |way| match way {
            Self::Linear => Stages::up(Tree::Linear, size),
            Self::Tree => Stages::up(Tree::Binomial, size),
            Self::Dissemination => Stages::dissemination(size),
        };
        let cost = |way: &Self| {
            let all = match way {
                Self::Dissemination if top => up(*way),
                _ => up(*way).and_back(),
            };
            all.cost_ns(matrix, real)
        };
        let ways = [Self::Linear, Self::Tree, Self::Dissemination];
        let best = ways.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        let best = best.unwrap_or(Self::Linear);
        (best, up(best).renamed(matrix.size(), real))
    }
}

/// How all who speak for a cluster hear of those inside: clusters of a level in shared stages,
/// one level after the other. And who speaks.
fn gathered(cluster: &Cluster, matrix: &Matrix) -> (Stages, Vec<u32>) {
    let mut together = Stages::of(matrix.size(), Vec::new());
    if cluster.inner.is_empty() {
        return (together, cluster.members.clone());
    }
    let mut speakers = Vec::new();
    for inner in &cluster.inner {
        let (before, members) = gathered(inner, matrix);
        let (_, up) = Way::cheapest(&members, matrix, false);
        together = together.beside(before.then(up));
        speakers.push(members[0]);
    }
    (together, speakers)
}

/// When the last of a tree has a message.
fn last_ns(root: u32, matrix: &Matrix, bytes: u64, children: impl Fn(u32) -> Vec<u32>) -> f64 {
    let mut open = vec![(root, 0.0f64)];
    let mut last = 0.0f64;
    while let Some((rank, mut free)) = open.pop() {
        last = last.max(free);
        for child in children(rank) {
            let (busy, way) = matrix.takes_ns(rank, child, bytes);
            open.push((child, free + way));
            free += busy;
        }
    }
    last
}

/// The shape over some ranks, the first being the root, by which the last of them has a
/// message first.
fn quickest(members: &[u32], matrix: &Matrix, bytes: u64) -> Tree {
    let size = members.len() as u32;
    let number: HashMap<u32, u32> = members.iter().copied().zip(0..).collect();
    let through = |tree: &Tree| {
        last_ns(members[0], matrix, bytes, |rank| {
            let children = tree.family(size, number[&rank]).children;
            children.into_iter().map(|c| members[c as usize]).collect()
        })
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
