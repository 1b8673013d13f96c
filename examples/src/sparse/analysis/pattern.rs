//! Symmetric patterns without a diagonal: graphs.

use super::super::matrix::Matrix;

/// The neighbors of each vertex.
#[derive(Clone, Debug)]
pub struct Pattern {
    starts: Vec<usize>,
    neighbors: Vec<u32>,
}

impl Pattern {
    /// The pattern of `B + B^T`, where row `row_of[j]` of the matrix is row `j` of `B`.
    pub fn symmetrized(matrix: &Matrix, row_of: &[u32]) -> Self {
        let mut number = vec![0u32; row_of.len()];
        for (j, row) in row_of.iter().enumerate() {
            number[*row as usize] = j as u32;
        }
        let mut edges = Vec::with_capacity(matrix.entries());
        for j in 0..matrix.columns() {
            edges.extend(
                matrix
                    .rows_of(j)
                    .iter()
                    .map(|i| (number[*i as usize], j as u32)),
            );
        }
        Self::from_edges(matrix.columns(), &edges)
    }

    /// From edges, each in one direction or in both; those of a vertex to itself are left
    /// out.
    pub fn from_edges(vertices: usize, edges: &[(u32, u32)]) -> Self {
        let both = edges.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        let mut both: Vec<(u32, u32)> = both.filter(|(a, b)| a != b).collect();
        both.sort_unstable();
        both.dedup();
        let mut starts = vec![0; vertices + 1];
        for (a, _) in &both {
            starts[*a as usize + 1] += 1;
        }
        for i in 0..vertices {
            starts[i + 1] += starts[i];
        }
        Self {
            starts,
            neighbors: both.into_iter().map(|(_, b)| b).collect(),
        }
    }

    /// Number of vertices.
    pub fn vertices(&self) -> usize {
        self.starts.len() - 1
    }

    /// The neighbors of a vertex, ascending.
    pub fn neighbors(&self, i: usize) -> &[u32] {
        &self.neighbors[self.starts[i]..self.starts[i + 1]]
    }

    /// The same graph, whose vertex `k` is vertex `order[k]` of this one.
    pub fn permuted(&self, order: &[u32]) -> Self {
        let mut number = vec![0u32; order.len()];
        for (k, old) in order.iter().enumerate() {
            number[*old as usize] = k as u32;
        }
        let mut starts = vec![0];
        let mut neighbors: Vec<u32> = Vec::with_capacity(self.neighbors.len());
        for old in order {
            let from = neighbors.len();
            let renumbered = self.neighbors(*old as usize).iter();
            neighbors.extend(renumbered.map(|i| number[*i as usize]));
            neighbors[from..].sort_unstable();
            starts.push(neighbors.len());
        }
        Self { starts, neighbors }
    }
}
