//! Message costs of each pair of ranks.

use crate::cost::Machine;

/// P x P costs in ns, row = sender. The diagonal of `overhead` is what a stage costs
/// who does nothing in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    size: u32,
    overhead: Vec<f64>,
    latency: Vec<f64>,
    per_byte: Vec<f64>,
}

impl Matrix {
    /// From functions of (from, to): overhead, latency and time per byte.
    pub fn of(size: u32, cost: impl Fn(u32, u32) -> (f64, f64, f64)) -> Self {
        let pairs = (0..size).flat_map(|i| (0..size).map(move |j| (i, j)));
        let mut matrix = Self {
            size,
            overhead: Vec::new(),
            latency: Vec::new(),
            per_byte: Vec::new(),
        };
        for (i, j) in pairs {
            let (overhead, latency, per_byte) = cost(i, j);
            matrix.overhead.push(overhead);
            matrix.latency.push(latency);
            matrix.per_byte.push(per_byte);
        }
        matrix
    }

    /// Of a described machine, for messages of so many bytes. Dense: for hundreds of
    /// ranks.
    pub fn of_machine(machine: &Machine, size: u32, bytes: u64) -> Self {
        let bytes = bytes as f64;
        Self::of(size, |i, j| {
            let link = machine.way(i, j, false).1.of(bytes);
            let apart = f64::from(i != j);
            let wire = link.per_byte_ns * bytes;
            // Trees know no ends that work at the same time.
            let latency = (link.latency_ns + wire).max(0.0) - wire;
            (
                link.work_ns(bytes),
                apart * latency,
                apart * link.per_byte_ns,
            )
        })
    }

    /// The costs of the ways back: a reduction over a tree goes against a broadcast's edges.
    #[must_use]
    pub fn transposed(&self) -> Self {
        Self::of(self.size, |i, j| {
            let at = self.at(j, i);
            (self.overhead[at], self.latency[at], self.per_byte[at])
        })
    }

    /// Ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    fn at(&self, i: u32, j: u32) -> usize {
        i as usize * self.size as usize + j as usize
    }

    /// Start-up overhead.
    pub fn overhead_ns(&self, i: u32, j: u32) -> f64 {
        self.overhead[self.at(i, j)]
    }

    /// Latency of an empty message.
    pub fn latency_ns(&self, i: u32, j: u32) -> f64 {
        self.latency[self.at(i, j)]
    }

    /// Per byte.
    pub fn per_byte_ns(&self, i: u32, j: u32) -> f64 {
        self.per_byte[self.at(i, j)]
    }

    /// For how long a message keeps its sender busy, and until when it is there.
    pub fn takes_ns(&self, i: u32, j: u32, bytes: u64) -> (f64, f64) {
        let wire = self.per_byte_ns(i, j) * bytes as f64;
        let overhead = self.overhead_ns(i, j);
        let way = 2.0 * overhead + self.latency_ns(i, j) + wire;
        (overhead.max(wire), way)
    }

    /// The longer way of the two, as a distance; 0 to oneself.
    pub fn distance_ns(&self, i: u32, j: u32) -> f64 {
        if i == j {
            return 0.0;
        }
        let way = |i, j| self.overhead_ns(i, j) + self.latency_ns(i, j);
        way(i, j).max(way(j, i))
    }

    /// Pairs whose two ways differ by more than `share` of the longer one: there the
    /// distance is none.
    pub fn asymmetric(&self, share: f64) -> Vec<(u32, u32)> {
        let way = |i, j| self.overhead_ns(i, j) + self.latency_ns(i, j);
        let pairs = (0..self.size).flat_map(|i| (i + 1..self.size).map(move |j| (i, j)));
        pairs
            .filter(|(i, j)| {
                let (there, back) = (way(*i, *j), way(*j, *i));
                (there - back).abs() > share * there.max(back)
            })
            .collect()
    }
}
