//! Sparse spatial selection: clusters of ranks that are near to each other, found
//! from distances alone.
//!
//! Ranks are scanned in order. One that is farther than a share of the diameter from
//! every pivot becomes a pivot; another joins the nearest one. Recursion inside of
//! clusters gives the levels.
//!
//! # Sources
//! J. C. Meyer, "Performance Modeling of Heterogeneous Systems", PhD thesis, NTNU
//! 2012, section 7.2, after N. Brisaboa et al.; that a rank joins the nearest pivot is
//! ours.

/// A cluster and those inside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its members; the first is the pivot, who speaks for it.
    pub members: Vec<u32>,
    /// Empty if it is not divided.
    pub inner: Vec<Cluster>,
}

/// One level: members by nearest pivot, pivots first.
pub fn clusters(
    members: &[u32],
    distance: impl Fn(u32, u32) -> f64,
    sparseness: f64,
) -> Vec<Vec<u32>> {
    let mut diameter = 0.0f64;
    for (at, a) in members.iter().enumerate() {
        for b in &members[at + 1..] {
            diameter = diameter.max(distance(*a, *b));
        }
    }
    let mut found: Vec<Vec<u32>> = Vec::new();
    for rank in members {
        let nearest = (0..found.len()).min_by(|a, b| {
            let to = |c: usize| distance(*rank, found[c][0]);
            to(*a).total_cmp(&to(*b))
        });
        match nearest {
            Some(at) if distance(*rank, found[at][0]) <= sparseness * diameter => {
                found[at].push(*rank);
            }
            _ => found.push(vec![*rank]),
        }
    }
    found
}

/// All levels. A cluster whose members are all apart (or one) is not divided.
pub fn cluster(members: &[u32], distance: &impl Fn(u32, u32) -> f64, sparseness: f64) -> Cluster {
    let inner = clusters(members, distance, sparseness);
    let apart = inner.len() == members.len() || inner.len() == 1;
    Cluster {
        members: members.to_vec(),
        inner: if apart {
            Vec::new()
        } else {
            inner
                .iter()
                .map(|c| cluster(c, distance, sparseness))
                .collect()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of cores on nodes of two packages: near, off-chip, remote.
    fn distance(node: impl Fn(u32) -> (u32, u32)) -> impl Fn(u32, u32) -> f64 {
        move |a, b| {
            let (a_place, b_place) = (node(a), node(b));
            match () {
                () if a == b => 0.0,
                () if a_place == b_place => 1.0,
                () if a_place.0 == b_place.0 => 2.0,
                () => 40.0,
            }
        }
    }

    #[test]
    fn nodes_of_60_ranks_dealt_in_turn() {
        let places = distance(|r| (r % 8, r / 8 % 2));
        let all: Vec<u32> = (0..60).collect();
        let found = clusters(&all, places, 0.35);
        let expected: Vec<Vec<u32>> = (0..8).map(|n| (n..60).step_by(8).collect()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn nodes_of_115_ranks_in_blocks() {
        let places = distance(|r| (r / 12, r / 6 % 2));
        let all: Vec<u32> = (0..115).collect();
        let found = cluster(&all, &places, 0.35);
        let nodes: Vec<Vec<u32>> = found.inner.iter().map(|c| c.members.clone()).collect();
        let expected: Vec<Vec<u32>> = (0..10)
            .map(|n| (12 * n..(12 * n + 12).min(115)).collect())
            .collect();
        assert_eq!(nodes, expected);
        // With exact distances, packages as well: 1 is not above 0.35 of 2, but 2 is.
        assert!(clusters(&nodes[0], &places, 0.5).len() == 2);
    }
}
