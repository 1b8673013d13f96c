//! Orders of elimination that keep the factors sparse.
//!
//! # Sources
//! P. Amestoy, T. Davis, I. Duff, "An Approximate Minimum Degree Ordering Algorithm", SIAM J.
//! Matrix Anal. Appl. 17(4), 1996, sections 3 and 4: quotient graph, approximate degrees,
//! aggressive absorption, indistinguishable vertices. Here vertices have lists of their own
//! instead of one array.
//! A. George, "Nested Dissection of a Regular Finite Element Mesh", SIAM J. Numer. Anal.
//! 10(2), 1973.

use super::pattern::Pattern;
use std::collections::BTreeSet;

/// Vertices of a symmetric pattern in an order of small degrees.
pub fn minimum_degree(pattern: &Pattern) -> Vec<u32> {
    Quotient::new(pattern).eliminate()
}

/// Points of a grid of `extents`, numbered with the last axis fastest: both halves first,
/// then the plane between them.
pub fn nested_dissection(extents: [usize; 3]) -> Vec<u32> {
    let mut order = Vec::with_capacity(extents.iter().product());
    dissect([0; 3], extents, extents, &mut order);
    order
}

/// Points of the box, from its first point to the one behind its last.
fn dissect(from: [usize; 3], until: [usize; 3], extents: [usize; 3], order: &mut Vec<u32>) {
    let sizes = [0, 1, 2].map(|d| until[d] - from[d]);
    if sizes.contains(&0) {
        return;
    }
    let axis = (0..3).max_by_key(|d| sizes[*d]).unwrap_or(0);
    if sizes[axis] <= 2 {
        for z in from[0]..until[0] {
            for y in from[1]..until[1] {
                for x in from[2]..until[2] {
                    order.push(((z * extents[1] + y) * extents[2] + x) as u32);
                }
            }
        }
        return;
    }
    let middle = from[axis] + sizes[axis] / 2;
    let with = |mut corner: [usize; 3], at| {
        corner[axis] = at;
        corner
    };
    dissect(from, with(until, middle), extents, order);
    dissect(with(from, middle + 1), until, extents, order);
    // Of the plane, the lines between its halves come last as well.
    dissect(with(from, middle), with(until, middle + 1), extents, order);
}

/// The graph of what is left, in which an eliminated vertex is an element: a clique of its
/// members.
struct Quotient {
    /// Vertices that a vertex stands for, itself included; 0: it is eliminated, or another
    /// stands for it.
    weight: Vec<u32>,
    /// Neighbors of a vertex that no element has in common with it.
    vertices: Vec<Vec<u32>>,
    /// Elements that a vertex is a member of.
    elements: Vec<Vec<u32>>,
    /// Members of an element, and their weight.
    members: Vec<Vec<u32>>,
    members_weight: Vec<u32>,
    is_element: Vec<bool>,
    /// Vertices that are eliminated with a vertex.
    with: Vec<Vec<u32>>,
    degree: Vec<u32>,
    /// Vertices that are left, by degree.
    left: BTreeSet<(u32, u32)>,
    mark: Vec<u32>,
    /// Of an element, in the step that `outside_mark` names: weight of its members that are
    /// not neighbors of the pivot.
    outside: Vec<u32>,
    outside_mark: Vec<u32>,
    stamp: u32,
}

impl Quotient {
    fn new(pattern: &Pattern) -> Self {
        let n = pattern.vertices();
        let vertices: Vec<Vec<u32>> = (0..n).map(|i| pattern.neighbors(i).to_vec()).collect();
        let degree: Vec<u32> = vertices.iter().map(|list| list.len() as u32).collect();
        let left = degree
            .iter()
            .zip(0..n as u32)
            .map(|(degree, i)| (*degree, i));
        Self {
            weight: vec![1; n],
            left: left.collect(),
            vertices,
            elements: vec![Vec::new(); n],
            members: vec![Vec::new(); n],
            members_weight: vec![0; n],
            is_element: vec![false; n],
            with: vec![Vec::new(); n],
            degree,
            mark: vec![0; n],
            outside: vec![0; n],
            outside_mark: vec![0; n],
            stamp: 0,
        }
    }

    fn eliminate(mut self) -> Vec<u32> {
        let n = self.weight.len();
        let mut order = Vec::with_capacity(n);
        while let Some((_, pivot)) = self.left.pop_first() {
            let mut eliminated = vec![pivot];
            self.step(pivot as usize, order.len(), &mut eliminated);
            // Those that others stand for, depth first.
            eliminated.reverse();
            while let Some(vertex) = eliminated.pop() {
                order.push(vertex);
                let with = std::mem::take(&mut self.with[vertex as usize]);
                eliminated.extend(with.into_iter().rev());
            }
        }
        order
    }

    /// Makes an element of the pivot; vertices that come right behind it are added to
    /// `eliminated`.
    fn step(&mut self, pivot: usize, before: usize, eliminated: &mut Vec<u32>) {
        let mut members = self.neighbors_of(pivot);
        let mut gone = before as u32 + self.weight[pivot];
        self.weight[pivot] = 0;
        let mut weight: u32 = members.iter().map(|i| self.weight[*i as usize]).sum();
        self.count_outside(&members);
        let mut hashes = Vec::new();
        for i in &members {
            let i = *i as usize;
            self.left.remove(&(self.degree[i], i as u32));
            self.prune(i);
            if self.elements[i].is_empty() && self.vertices[i].is_empty() {
                // Its neighbors are those of the pivot.
                eliminated.push(i as u32);
                gone += self.weight[i];
                weight -= self.weight[i];
                self.weight[i] = 0;
                continue;
            }
            let others = weight - self.weight[i];
            let near: u32 = self.vertices[i]
                .iter()
                .map(|k| self.weight[*k as usize])
                .sum();
            let far: u32 = self.elements[i]
                .iter()
                .map(|e| self.outside[*e as usize])
                .sum();
            let left = (self.weight.len() as u32).saturating_sub(gone + self.weight[i]);
            let degree = others.saturating_add(near).saturating_add(far);
            self.degree[i] = degree.min(self.degree[i].saturating_add(others)).min(left);
            self.elements[i].push(pivot as u32);
            let lists = self.vertices[i].iter().chain(&self.elements[i]);
            let hash: u64 = lists.map(|k| u64::from(*k) + 1).sum();
            hashes.push((hash, i as u32));
        }
        self.join_equal(hashes);
        members.retain(|i| self.weight[*i as usize] > 0);
        for i in &members {
            self.left.insert((self.degree[*i as usize], *i));
        }
        self.is_element[pivot] = !members.is_empty();
        self.members_weight[pivot] = weight;
        self.members[pivot] = members;
    }

    /// The neighbors of a vertex, marked; the elements that it is a member of end.
    fn neighbors_of(&mut self, pivot: usize) -> Vec<u32> {
        self.stamp += 1;
        self.mark[pivot] = self.stamp;
        let mut found = Vec::new();
        let mut lists = vec![std::mem::take(&mut self.vertices[pivot])];
        for e in std::mem::take(&mut self.elements[pivot]) {
            if std::mem::take(&mut self.is_element[e as usize]) {
                lists.push(std::mem::take(&mut self.members[e as usize]));
            }
        }
        for i in lists.into_iter().flatten() {
            let at = i as usize;
            if self.weight[at] > 0 && self.mark[at] != self.stamp {
                self.mark[at] = self.stamp;
                found.push(i);
            }
        }
        found
    }

    /// What each element near the pivot has outside of the pivot's neighbors. One that has
    /// nothing is absorbed.
    fn count_outside(&mut self, members: &[u32]) {
        for i in members {
            let i = *i as usize;
            for e in &self.elements[i] {
                let e = *e as usize;
                if !self.is_element[e] {
                    continue;
                }
                if self.outside_mark[e] != self.stamp {
                    self.outside_mark[e] = self.stamp;
                    self.outside[e] = self.members_weight[e];
                }
                self.outside[e] = self.outside[e].saturating_sub(self.weight[i]);
            }
        }
        for i in members {
            for e in &self.elements[*i as usize] {
                let e = *e as usize;
                if self.is_element[e] && self.outside[e] == 0 {
                    self.is_element[e] = false;
                    self.members[e] = Vec::new();
                }
            }
        }
    }

    /// Leaves of the lists of a neighbor of the pivot what the new element does not say.
    fn prune(&mut self, i: usize) {
        let mut elements = std::mem::take(&mut self.elements[i]);
        elements.retain(|e| self.is_element[*e as usize]);
        self.elements[i] = elements;
        let mut vertices = std::mem::take(&mut self.vertices[i]);
        vertices.retain(|k| self.weight[*k as usize] > 0 && self.mark[*k as usize] != self.stamp);
        self.vertices[i] = vertices;
    }

    /// Of vertices with the same neighbors, one stands for all.
    fn join_equal(&mut self, mut hashes: Vec<(u64, u32)>) {
        hashes.sort_unstable();
        for same in hashes.chunk_by(|a, b| a.0 == b.0) {
            if same.len() > 1 {
                for (_, i) in same {
                    self.vertices[*i as usize].sort_unstable();
                    self.elements[*i as usize].sort_unstable();
                }
            }
            for (first, (_, i)) in same.iter().enumerate() {
                let i = *i as usize;
                if self.weight[i] == 0 {
                    continue;
                }
                for (_, k) in &same[first + 1..] {
                    let k = *k as usize;
                    let equal = self.weight[k] > 0
                        && self.elements[i] == self.elements[k]
                        && self.vertices[i] == self.vertices[k];
                    if equal {
                        let weight = std::mem::take(&mut self.weight[k]);
                        self.weight[i] += weight;
                        self.degree[i] = self.degree[i].saturating_sub(weight);
                        self.with[i].push(k as u32);
                        (self.vertices[k], self.elements[k]) = (Vec::new(), Vec::new());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::grid::convection_diffusion;
    use super::*;

    fn is_permutation(order: &[u32], n: usize) {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..n as u32).collect::<Vec<_>>());
    }

    #[test]
    fn a_tree_is_eliminated_from_its_leaves() {
        // A star: the middle is vertex 0.
        let edges: Vec<(u32, u32)> = (1..8).map(|i| (0, i)).collect();
        let order = minimum_degree(&Pattern::from_edges(8, &edges));
        is_permutation(&order, 8);
        assert!(order.iter().position(|i| *i == 0) >= Some(6));
    }

    #[test]
    fn orders_of_a_grid_are_permutations() {
        for points in 1..7 {
            let matrix = convection_diffusion(points, 1.0, 0);
            let own: Vec<u32> = (0..matrix.columns() as u32).collect();
            is_permutation(
                &minimum_degree(&Pattern::symmetrized(&matrix, &own)),
                matrix.columns(),
            );
            is_permutation(&nested_dissection([points; 3]), matrix.columns());
        }
        is_permutation(&nested_dissection([3, 1, 9]), 27);
    }
}
