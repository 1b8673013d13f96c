//! Dependence patterns between points of successive timesteps. Pure.
//!
//! Row `t` of a graph of `T` steps has the points `row(t)`; point `i` of it needs the outputs of
//! the points `inputs(t, i)` of row `t - 1`. Patterns whose dependences change from step to step
//! go round a number of dependence sets.
//!
//! # Invariants
//! 1. `consumers(set, j)` is the exact inverse of `dependences(set, i)`, and neither names a
//!    point twice, for a graph that [`PointGraph::check`] has passed.
//! 2. Dependences are in the order of the contract: ascending, but of `spread` in the order in
//!    which it is defined, and of a periodic stencil with the point that wraps round last.
//!
//! # Sources
//! The patterns follow those of E. Slaughter et al., "Task Bench: A Parameterized Benchmark for
//! Evaluating Parallel Runtime Performance", SC20, section II, as its program defines them: the
//! tree only widens, and both neighbors at distance 2^s are dependences of `fft`.
//! J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.

use std::hash::Hasher as _;
use std::ops::Range;

use clap::ValueEnum;
use siphasher::sip::SipHasher24;

/// Key of the hash that `random_nearest` draws by.
const KEY: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0];

/// Which points of the last step a point needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Dependence {
    /// None
    Trivial,
    /// The point itself
    NoComm,
    /// The point and its neighbors
    #[value(name = "stencil_1d")]
    Stencil1d,
    /// The same on a ring
    #[value(name = "stencil_1d_periodic")]
    Stencil1dPeriodic,
    /// A sweep: the point and its left neighbor
    Dom,
    /// A binary tree that widens
    Tree,
    /// Neighbors at a distance that doubles from step to step
    Fft,
    /// All points
    AllToAll,
    /// The nearest points
    Nearest,
    /// Points far from each other, shifted from step to step
    Spread,
    /// Some of the nearest points, others in each step
    RandomNearest,
}

impl Dependence {
    /// As on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether its sets change by a period that is given.
    fn is_periodic(self) -> bool {
        matches!(self, Dependence::Spread | Dependence::RandomNearest)
    }
}

/// Points of successive steps, and what each needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PointGraph {
    pub dependence: Dependence,
    pub steps: usize,
    pub width: usize,
    /// Number of dependences of `nearest` and `spread`, and of candidates of `random_nearest`.
    pub radix: usize,
    /// Dependence sets of `spread` and `random_nearest`.
    pub period: usize,
    /// Of the candidates of `random_nearest`, the share that is taken.
    pub fraction: f64,
    /// Tells graphs apart.
    pub number: u32,
}

impl PointGraph {
    /// Whether there is such a graph.
    ///
    /// # Errors
    /// What of it does not fit the pattern.
    pub fn check(&self) -> Result<(), String> {
        let Self { width, radix, .. } = *self;
        let name = self.dependence.name();
        let least = match self.dependence {
            Dependence::Stencil1dPeriodic => 3,
            Dependence::Fft => 2,
            Dependence::Spread => radix.max(1),
            _ => 1,
        };
        if width < least {
            return Err(format!("{name} needs {least} points, not {width}"));
        }
        if self.steps == 0 {
            return Err("a graph has at least one step".into());
        }
        if u32::try_from(width.max(self.steps)).is_err() {
            return Err(format!(
                "{width} points and {} steps: at most 2^32",
                self.steps
            ));
        }
        if self.dependence.is_periodic() && self.period == 0 {
            return Err(format!("{name} needs a period of at least 1"));
        }
        if self.dependence == Dependence::Spread && radix == 0 {
            return Err(format!("{name} needs a radix of at least 1"));
        }
        if self.dependence == Dependence::Spread && self.period > width.div_ceil(radix) {
            return Err(format!(
                "{name} of radix {radix} over {width} points has a period of at most {}, not {}",
                width.div_ceil(radix),
                self.period
            ));
        }
        if self.dependence == Dependence::Dom && self.steps < 2 * width {
            return Err(format!(
                "{name} over {width} points needs {} steps, not {}",
                2 * width,
                self.steps
            ));
        }
        if !(0.0..=1.0).contains(&self.fraction) {
            return Err(format!("{} is no fraction", self.fraction));
        }
        Ok(())
    }

    /// The points of a step.
    pub fn row(&self, t: usize) -> Range<usize> {
        let Self { width, steps, .. } = *self;
        match self.dependence {
            Dependence::Dom => {
                let first = (t + width).saturating_sub(steps);
                first..first + width.min(t + 1).min(steps.saturating_sub(t))
            }
            Dependence::Tree => {
                0..match t {
                    0..32 => width.min(1 << t),
                    _ => width,
                }
            }
            _ => 0..width,
        }
    }

    /// The steps that have a point.
    pub fn steps_of(&self, i: usize) -> Range<usize> {
        let Self { width, steps, .. } = *self;
        match self.dependence {
            // An interval, since there are at least twice as many steps as points.
            Dependence::Dom => i..(i + 1 + steps).saturating_sub(width),
            Dependence::Tree => (usize::BITS - i.leading_zeros()) as usize..steps,
            _ => 0..steps,
        }
    }

    /// Tasks of all steps.
    pub fn tasks(&self) -> u64 {
        (0..self.steps).map(|t| self.row(t).len() as u64).sum()
    }

    /// Whether any point needs another's output, or its own.
    pub fn has_edges(&self) -> bool {
        match self.dependence {
            Dependence::Trivial => false,
            Dependence::Nearest | Dependence::RandomNearest => self.radix > 0,
            _ => true,
        }
    }

    /// Number of dependence sets.
    pub fn sets(&self) -> usize {
        match self.dependence {
            Dependence::Fft => self.width.next_power_of_two().trailing_zeros() as usize,
            _ if self.dependence.is_periodic() => self.period,
            _ => 1,
        }
    }

    /// The dependence set of a step.
    pub fn set_at(&self, t: usize) -> usize {
        match self.dependence {
            Dependence::Fft => (t + self.sets() - 1) % self.sets(),
            _ => t % self.sets(),
        }
    }

    /// The points that point `i` needs by a dependence set, in the order of the contract; some
    /// may not be in the row before.
    pub fn dependences(&self, set: usize, i: usize) -> Vec<usize> {
        let Self { width, radix, .. } = *self;
        match self.dependence {
            Dependence::Trivial => Vec::new(),
            Dependence::NoComm => vec![i],
            Dependence::Stencil1d => self.window(i, 1, 1).collect(),
            Dependence::Stencil1dPeriodic if i == 0 => vec![0, 1, width - 1],
            Dependence::Stencil1dPeriodic => vec![i - 1, i, (i + 1) % width],
            Dependence::Dom => self.window(i, 1, 0).collect(),
            Dependence::Tree => vec![i / 2],
            Dependence::Fft => self.at_distance(i, 1 << set),
            Dependence::AllToAll => (0..width).collect(),
            Dependence::Nearest => self.nearest(i).collect(),
            Dependence::Spread => (0..radix)
                .map(|k| (i + self.offset(set, k)) % width)
                .collect(),
            Dependence::RandomNearest => self
                .nearest(i)
                .filter(|j| self.is_drawn(set, *j, i))
                .collect(),
        }
    }

    /// The points that need point `j` by a dependence set, ascending; some may not be in the
    /// row after.
    pub fn consumers(&self, set: usize, j: usize) -> Vec<usize> {
        let Self { width, radix, .. } = *self;
        match self.dependence {
            Dependence::Dom => self.window(j, 0, 1).collect(),
            Dependence::Tree => (2 * j..2 * j + 2).filter(|i| *i < width).collect(),
            Dependence::Nearest => self.nearest_to(j).collect(),
            Dependence::Spread => {
                let offsets = (0..radix).map(|k| self.offset(set, k) % width);
                let mut all: Vec<usize> = offsets.map(|o| (j + width - o) % width).collect();
                all.sort_unstable();
                all
            }
            Dependence::RandomNearest => self
                .nearest_to(j)
                .filter(|i| self.is_drawn(set, j, *i))
                .collect(),
            // The others are symmetric.
            _ => {
                let mut all = self.dependences(set, j);
                all.sort_unstable();
                all
            }
        }
    }

    /// The points of the step before whose outputs a task needs, in the order of the contract.
    pub fn inputs(&self, t: usize, i: usize) -> Vec<usize> {
        if t == 0 {
            return Vec::new();
        }
        let before = self.row(t - 1);
        let mut all = self.dependences(self.set_at(t), i);
        all.retain(|j| before.contains(j));
        all
    }

    /// A number by which programs see that they have the same graph: of the dependences of the
    /// first 64 steps (FNV-1a).
    pub fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for t in 0..self.steps.min(64) {
            for i in self.row(t) {
                for j in self.inputs(t, i) {
                    for word in [t, i, j] {
                        hash = (hash ^ word as u64).wrapping_mul(0x100_0000_01b3);
                    }
                }
            }
        }
        hash
    }

    /// Points at most so far to the left and to the right.
    fn window(&self, i: usize, left: usize, right: usize) -> Range<usize> {
        i.saturating_sub(left)..self.width.min(i + right + 1)
    }

    fn nearest(&self, i: usize) -> Range<usize> {
        match self.radix {
            0 => 0..0,
            radix => self.window(i, radix / 2, (radix - 1) / 2),
        }
    }

    /// The points whose nearest ones have `j` among them.
    fn nearest_to(&self, j: usize) -> Range<usize> {
        match self.radix {
            0 => 0..0,
            radix => self.window(j, (radix - 1) / 2, radix / 2),
        }
    }

    fn at_distance(&self, i: usize, distance: usize) -> Vec<usize> {
        let left = i.checked_sub(distance);
        let all = left.into_iter().chain([i, i + distance]);
        all.filter(|j| *j < self.width).collect()
    }

    /// From a point to its dependence `k` of `spread`.
    fn offset(&self, set: usize, k: usize) -> usize {
        k * self.width / self.radix + if k > 0 { set } else { 0 }
    }

    fn is_drawn(&self, set: usize, j: usize, i: usize) -> bool {
        let words = [self.number as usize, self.radix, set, j, i];
        i == j || uniform(&words.map(|word| word as u64)) < self.fraction
    }
}

/// A number from 0 to 1 that these words are hashed to.
fn uniform(words: &[u64]) -> f64 {
    let mut hasher = SipHasher24::new_with_key(&KEY);
    for word in words {
        hasher.write(&word.to_ne_bytes());
    }
    hasher.finish() as f64 * 2f64.powi(-64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(dependence: Dependence, width: usize) -> PointGraph {
        PointGraph {
            dependence,
            steps: 40,
            width,
            radix: 3,
            period: 3,
            fraction: 0.25,
            number: 0,
        }
    }

    fn all() -> impl Iterator<Item = PointGraph> {
        let patterns = Dependence::value_variants().iter().copied();
        let shapes = (1..=19).flat_map(|width| (0..=6).map(move |radix| (width, radix)));
        let graphs = patterns.flat_map(move |dependence| {
            shapes.clone().map(move |(width, radix)| PointGraph {
                radix,
                ..graph(dependence, width)
            })
        });
        graphs.filter(|graph| graph.check().is_ok())
    }

    #[test]
    fn consumers_are_the_exact_inverse_without_duplicates() {
        let mut graphs = 0;
        for graph in all() {
            graphs += 1;
            for set in 0..graph.sets() {
                for j in 0..graph.width {
                    let needs = |i: &usize| graph.dependences(set, *i).contains(&j);
                    let inverse: Vec<usize> = (0..graph.width).filter(needs).collect();
                    assert_eq!(graph.consumers(set, j), inverse, "{graph:?} {set} {j}");
                    let mut dependences = graph.dependences(set, j);
                    dependences.sort_unstable();
                    let all = dependences.len();
                    dependences.dedup();
                    assert_eq!(dependences.len(), all, "{graph:?} {set} {j}");
                    assert!(dependences.iter().all(|i| *i < graph.width));
                }
            }
        }
        assert!(graphs > 500);
    }

    /// The points of the step after that need the output of a task.
    fn outputs(graph: &PointGraph, t: usize, j: usize) -> Vec<usize> {
        if t + 1 >= graph.steps {
            return Vec::new();
        }
        let after = graph.row(t + 1);
        let mut all = graph.consumers(graph.set_at(t + 1), j);
        all.retain(|i| after.contains(i));
        all
    }

    #[test]
    fn inputs_and_outputs_are_those_of_the_rows() {
        for graph in all() {
            for t in 0..graph.steps {
                for i in graph.row(t) {
                    for j in graph.inputs(t, i) {
                        assert!(graph.row(t - 1).contains(&j));
                        assert!(outputs(&graph, t - 1, j).contains(&i), "{graph:?} {t} {i}");
                    }
                    for consumer in outputs(&graph, t, i) {
                        assert!(graph.inputs(t + 1, consumer).contains(&i));
                    }
                }
            }
        }
    }

    #[test]
    fn rows_and_steps_agree() {
        for graph in all() {
            for t in 0..graph.steps {
                for i in 0..graph.width {
                    let of_row = graph.row(t).contains(&i);
                    assert_eq!(graph.steps_of(i).contains(&t), of_row, "{graph:?} {t} {i}");
                }
            }
        }
    }

    #[test]
    fn patterns_by_hand() {
        use Dependence::*;
        let of = |dependence, width, set, i| graph(dependence, width).dependences(set, i);
        assert_eq!(of(Trivial, 4, 0, 2), [0; 0]);
        assert_eq!(of(NoComm, 4, 0, 2), [2]);
        assert_eq!(of(Stencil1d, 4, 0, 0), [0, 1]);
        assert_eq!(of(Stencil1d, 4, 0, 2), [1, 2, 3]);
        assert_eq!(of(Stencil1dPeriodic, 4, 0, 0), [0, 1, 3]);
        assert_eq!(of(Stencil1dPeriodic, 4, 0, 3), [2, 3, 0]);
        assert_eq!(of(Dom, 4, 0, 0), [0]);
        assert_eq!(of(Dom, 4, 0, 3), [2, 3]);
        assert_eq!(of(Tree, 8, 0, 5), [2]);
        assert_eq!(graph(Tree, 8).consumers(0, 3), [6, 7]);
        assert_eq!(graph(Tree, 8).consumers(0, 4), [0; 0]);
        assert_eq!(of(Fft, 8, 0, 3), [2, 3, 4]);
        assert_eq!(of(Fft, 8, 1, 3), [1, 3, 5]);
        assert_eq!(of(Fft, 8, 2, 3), [3, 7]);
        assert_eq!(of(AllToAll, 3, 0, 1), [0, 1, 2]);
        assert_eq!(of(Nearest, 6, 0, 2), [1, 2, 3]);
        let nearest = |radix, i| {
            let all = PointGraph {
                radix,
                ..graph(Nearest, 6)
            };
            all.dependences(0, i)
        };
        assert_eq!(nearest(0, 2), [0; 0]);
        assert_eq!(nearest(1, 2), [2]);
        assert_eq!(nearest(2, 2), [1, 2]);
        assert_eq!(nearest(5, 0), [0, 1, 2]);
        // 16 points, radix 3: at 0, 5 and 10 from the point, shifted but for the first.
        assert_eq!(of(Spread, 16, 0, 1), [1, 6, 11]);
        assert_eq!(of(Spread, 16, 2, 9), [9, 0, 5]);
        let whole = PointGraph {
            fraction: 1.0,
            ..graph(RandomNearest, 6)
        };
        assert_eq!(whole.dependences(1, 2), [1, 2, 3]);
        let none = PointGraph {
            fraction: 0.0,
            ..whole
        };
        assert_eq!(none.dependences(1, 2), [2]);
    }

    #[test]
    fn rows_by_hand() {
        use Dependence::*;
        let dom = PointGraph {
            steps: 8,
            ..graph(Dom, 3)
        };
        let rows: Vec<_> = (0..8).map(|t| dom.row(t)).collect();
        assert_eq!(rows, [0..1, 0..2, 0..3, 0..3, 0..3, 0..3, 1..3, 2..3]);
        assert_eq!(dom.inputs(1, 1), [0]);
        assert_eq!(dom.inputs(7, 2), [1, 2]);
        assert_eq!(dom.tasks(), 18);
        let tree = PointGraph {
            steps: 5,
            ..graph(Tree, 6)
        };
        let rows: Vec<_> = (0..5).map(|t| tree.row(t)).collect();
        assert_eq!(rows, [0..1, 0..2, 0..4, 0..6, 0..6]);
        assert_eq!((tree.inputs(0, 0), tree.inputs(4, 5)), (vec![], vec![2]));
        let fft = graph(Fft, 5);
        assert_eq!(fft.sets(), 3);
        assert_eq!([1, 2, 3, 4].map(|t| fft.set_at(t)), [0, 1, 2, 0]);
        assert_eq!(
            [0, 1, 3, 4].map(|t| graph(Spread, 9).set_at(t)),
            [0, 1, 0, 1]
        );
    }

    #[test]
    fn what_is_no_graph_is_refused() {
        use Dependence::*;
        let refused = |graph: PointGraph| graph.check().unwrap_err();
        assert!(refused(graph(Stencil1dPeriodic, 2)).contains("needs 3 points"));
        assert!(refused(graph(Fft, 1)).contains("needs 2 points"));
        assert!(refused(graph(Spread, 2)).contains("needs 3 points"));
        assert!(refused(graph(Spread, 6)).contains("a period of at most 2"));
        assert!(
            refused(PointGraph {
                period: 0,
                ..graph(Spread, 9)
            })
            .contains("period")
        );
        assert!(
            refused(PointGraph {
                radix: 0,
                ..graph(Spread, 9)
            })
            .contains("radix")
        );
        assert!(refused(graph(Dom, 21)).contains("needs 42 steps"));
        assert!(
            refused(PointGraph {
                steps: 0,
                ..graph(Trivial, 9)
            })
            .contains("step")
        );
        assert!(
            refused(PointGraph {
                fraction: 1.5,
                ..graph(Trivial, 9)
            })
            .contains("fraction")
        );
    }

    /// The first words of the sequence that the authors of SipHash publish have another key; the
    /// construction of words and key is checked against a plain implementation.
    #[test]
    fn draws_are_those_of_siphash_2_4() {
        fn round(v: &mut [u64; 4]) {
            v[0] = v[0].wrapping_add(v[1]);
            v[1] = v[1].rotate_left(13) ^ v[0];
            v[0] = v[0].rotate_left(32);
            v[2] = v[2].wrapping_add(v[3]);
            v[3] = v[3].rotate_left(16) ^ v[2];
            v[0] = v[0].wrapping_add(v[3]);
            v[3] = v[3].rotate_left(21) ^ v[0];
            v[2] = v[2].wrapping_add(v[1]);
            v[1] = v[1].rotate_left(17) ^ v[2];
            v[2] = v[2].rotate_left(32);
        }
        fn plain(key: [u8; 16], words: &[u64], tail: u64) -> u64 {
            let key = u128::from_le_bytes(key);
            let (k0, k1) = (key as u64, (key >> 64) as u64);
            let mut v = [
                k0 ^ 0x736f_6d65_7073_6575,
                k1 ^ 0x646f_7261_6e64_6f6d,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ];
            for word in words.iter().chain([&tail]) {
                v[3] ^= word;
                round(&mut v);
                round(&mut v);
                v[0] ^= word;
            }
            v[2] ^= 0xff;
            (0..4).for_each(|_| round(&mut v));
            v[0] ^ v[1] ^ v[2] ^ v[3]
        }
        // Published: key 0 to 15, bytes 0 to 14.
        let key = std::array::from_fn(|at| at as u8);
        let published = plain(key, &[0x0706_0504_0302_0100], 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(published, 0xa129_ca61_49be_45e5);
        let words = [0u64, 3, 1, 4, 5];
        let hashed = plain(KEY, &words, (8 * words.len() as u64) << 56);
        assert_eq!(uniform(&words), hashed as f64 * 2f64.powi(-64));
        // A quarter of the candidates, but for the points themselves.
        let random = PointGraph {
            radix: 9,
            width: 4000,
            ..graph(Dependence::RandomNearest, 9)
        };
        let edges: usize = (0..4000).map(|i| random.dependences(0, i).len()).sum();
        assert!((2.9..3.1).contains(&(edges as f64 / 4000.0)));
    }
}
