//! What each task of a pattern does: checks its inputs, fills its output, computes.
//!
//! # Invariants
//! 1. [`Kernel`] has the form with fused multiply-adds only if the processor has them.
//!
//! # Sources
//! E. Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime
//! Performance", SC20, section II: the compute-bound kernel and the validation of every input.
//! The graph's number is added to each cell.

use std::fmt;
use std::hint::black_box;

/// Doubles of the kernel.
const DOUBLES: usize = 64;

/// Bytes of a cell.
pub const CELL_BYTES: usize = 16;

/// Words of a cell.
pub const CELL_WORDS: usize = 2;

/// What a task writes, once for each 16 bytes of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub step: usize,
    pub point: usize,
    pub graph: u32,
}

impl Cell {
    /// As it is sent: the step; the graph's number above the point's.
    #[inline]
    pub fn words(self) -> [u64; CELL_WORDS] {
        let point = self.point as u64 & 0xffff_ffff;
        [self.step as u64, u64::from(self.graph) << 32 | point]
    }

    fn of(words: [u64; CELL_WORDS]) -> Cell {
        Cell {
            step: words[0] as usize,
            point: (words[1] & 0xffff_ffff) as usize,
            graph: (words[1] >> 32) as u32,
        }
    }

    /// Fills an output with this cell.
    #[inline]
    pub fn fill(self, output: &mut [u64]) {
        let words = self.words();
        let (cells, _) = output.as_chunks_mut::<CELL_WORDS>();
        for cell in cells {
            *cell = words;
        }
    }

    /// Checks that every cell of an input is this one, and that it has the length of an output.
    ///
    /// # Errors
    /// The first that is another, or the length.
    #[inline]
    pub fn check(self, input: &[u64], words: usize) -> Result<(), Wrong> {
        let expected = self.words();
        let (cells, _) = input.as_chunks::<CELL_WORDS>();
        let differs = cells.iter().any(|cell| *cell != expected);
        if differs || input.len() != words {
            return Err(self.wrong(input, words));
        }
        Ok(())
    }

    #[cold]
    fn wrong(self, input: &[u64], words: usize) -> Wrong {
        let (cells, _) = input.as_chunks::<CELL_WORDS>();
        let found = cells.iter().find(|cell| **cell != self.words());
        Wrong {
            expected: self,
            found: found.map(|cell| Cell::of(*cell)),
            bytes: (8 * input.len(), 8 * words),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { step, point, graph } = self;
        write!(f, "step {step}, point {point} of graph {graph}")
    }
}

/// An input that is not what was expected.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    expected: Cell,
    /// `None` if the length alone is wrong.
    found: Option<Cell>,
    /// Found and expected.
    bytes: (usize, usize),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = &self.expected;
        match &self.found {
            Some(found) => write!(f, "an input is of {found}, expected {expected}"),
            None => {
                let (found, bytes) = self.bytes;
                write!(
                    f,
                    "an input of {expected} has {found} bytes, expected {bytes}"
                )
            }
        }
    }
}

impl std::error::Error for Wrong {}

/// The compute-bound kernel: 64 doubles, a <- a * a + a, as often as it has iterations.
#[derive(Clone, Copy)]
pub struct Kernel {
    iterations: u64,
    run: fn(u64),
}

impl Kernel {
    /// By the best instructions that the processor has.
    pub fn new(iterations: u64) -> Kernel {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Kernel {
                iterations,
                run: fused::run,
            };
        }
        Kernel {
            iterations,
            run: plain,
        }
    }

    /// Runs it once.
    #[inline]
    pub fn run(&self) {
        (self.run)(self.iterations);
    }

    /// Floating-point operations of a run, as the pattern counts them.
    pub fn flops(iterations: u64) -> f64 {
        (2 * DOUBLES as u64 * iterations + DOUBLES as u64) as f64
    }
}

/// Values that stay finite: from -1/2 to 0, towards 0. Four doubles begin alike.
fn begin(vector: usize) -> f64 {
    -0.5 - vector as f64 / 1024.0
}

fn plain(iterations: u64) {
    black_box(&plain_values(iterations));
}

fn plain_values(iterations: u64) -> [f64; DOUBLES] {
    let mut values: [f64; DOUBLES] = std::array::from_fn(|at| begin(at / 4));
    for _ in 0..iterations {
        for a in &mut values {
            *a = *a * *a + *a;
        }
    }
    values
}

/// Four doubles at a time: sixteen vectors, which fill the registers.
#[cfg(target_arch = "x86_64")]
mod fused {
    use std::arch::x86_64::{__m256d, _mm256_fmadd_pd, _mm256_set1_pd};

    pub const VECTORS: usize = super::DOUBLES / 4;

    pub fn run(iterations: u64) {
        // SAFETY: invariant 1: the processor has both.
        let values = unsafe { compute(iterations) };
        std::hint::black_box(&values);
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn compute(iterations: u64) -> [__m256d; VECTORS] {
        let mut values: [__m256d; VECTORS] = [_mm256_set1_pd(0.0); VECTORS];
        for (at, a) in values.iter_mut().enumerate() {
            *a = _mm256_set1_pd(super::begin(at));
        }
        for _ in 0..iterations {
            for a in &mut values {
                *a = _mm256_fmadd_pd(*a, *a, *a);
            }
        }
        values
    }
}

#[cfg(test)]
#[path = "../../../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell = Cell {
        step: 7,
        point: 3,
        graph: 1,
    };

    #[test]
    fn one_wrong_cell_of_an_output_is_found() {
        let mut output = vec![0; 6 * CELL_WORDS];
        CELL.fill(&mut output);
        let words = output.len();
        assert_eq!(CELL.check(&output, words), Ok(()));
        for (other, text) in [
            (
                Cell { step: 6, ..CELL },
                "an input is of step 6, point 3 of graph 1",
            ),
            (
                Cell { point: 2, ..CELL },
                "an input is of step 7, point 2 of graph 1",
            ),
            (
                Cell { graph: 0, ..CELL },
                "an input is of step 7, point 3 of graph 0",
            ),
        ] {
            for at in 0..6 {
                let mut wrong = output.clone();
                wrong[at * CELL_WORDS..][..CELL_WORDS].copy_from_slice(&other.words());
                let told = CELL.check(&wrong, words).unwrap_err().to_string();
                assert_eq!(told, format!("{text}, expected {CELL}"));
            }
        }
        let told = CELL.check(&output[2..], words).unwrap_err().to_string();
        assert!(told.ends_with("has 80 bytes, expected 96"), "{told}");
        assert!(CELL.check(&[], words).is_err());
    }

    #[test]
    fn values_stay_finite_and_away_from_zero() {
        Kernel::new(10).run();
        let values = plain_values(100_000);
        assert!(
            values
                .iter()
                .all(|a| *a < 0.0 && *a > -1e-4 && a.is_normal())
        );
        assert_eq!(plain_values(1)[4], begin(1) * begin(1) + begin(1));
        assert_eq!(Kernel::flops(2), 320.0);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_kernels_compute_the_same() {
        #[target_feature(enable = "avx2,fma")]
        fn firsts(iterations: u64) -> Vec<f64> {
            let values = fused::compute(iterations);
            let first = |vector| std::arch::x86_64::_mm256_cvtsd_f64(vector);
            values.into_iter().map(first).collect()
        }
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
            return needs::missing("fma", "the kernel has its other form here");
        }
        // SAFETY: invariant 1: just asked.
        let fused = unsafe { firsts(1000) };
        let plain = plain_values(1000);
        for (at, value) in fused.iter().enumerate() {
            assert!((value / plain[4 * at] - 1.0).abs() < 1e-9);
        }
    }
}
