//! The product by messages: a rank has one place.

use std::time::{Duration, Instant};

use osier::{Communicator, Result};

use super::check::add;
use super::kernel::{Extents, multiply};
use super::matrix::{Factor, fill};
use super::plan::Plan;
use crate::variant::{By, compute_beside, zeros};

/// Of messages; blocks of B have the tag after that of A.
const FIRST: u32 = 0;
const SHIFT: u32 = 2;
const PART: u32 = 4;

/// The blocks of a rank.
pub struct Blocks<'a> {
    comm: &'a Communicator,
    plan: Plan,
    place: [usize; 3],
    /// A_ij and B_ij, on layer 0.
    given: Option<[Vec<f64>; 2]>,
    /// Blocks of A and B that are multiplied, and those that come next. As long as the
    /// largest block.
    now: [Vec<f64>; 2],
    next: [Vec<f64>; 2],
    /// C_ij, or the sum of this layer.
    c: Vec<f64>,
    /// Time in communication.
    talking: Duration,
}

impl<'a> Blocks<'a> {
    /// The blocks of this rank; none if memory is full.
    pub fn new(comm: &'a Communicator, plan: &Plan, seed: u64) -> Option<Self> {
        let place = plan.place(comm.rank());
        let [i, j, layer] = place;
        let (rows, columns) = (plan.range(i), plan.range(j));
        let given = |factor| {
            let mut block = zeros(rows.len() * columns.len())?;
            let ranges = (rows.clone(), columns.clone());
            fill(plan, seed, factor, ranges, &mut block);
            Some(block)
        };
        let pair = || Some([zeros(plan.largest().pow(2))?, zeros(plan.largest().pow(2))?]);
        Some(Self {
            comm,
            plan: *plan,
            place,
            given: match layer {
                0 => Some([given(Factor::A)?, given(Factor::B)?]),
                _ => None,
            },
            now: pair()?,
            next: pair()?,
            c: zeros(rows.len() * columns.len())?,
            talking: Duration::ZERO,
        })
    }

    /// One product; `stepped` is called after each step. Returns the time in communication.
    ///
    /// # Errors
    /// Communication fails.
    pub fn run(&mut self, by: By, mut stepped: impl FnMut()) -> Result<Duration> {
        self.talking = Duration::ZERO;
        self.c.fill(0.0);
        let begin = Instant::now();
        self.distribute()?;
        self.talking += begin.elapsed();
        let steps = self.plan.steps(self.place[2]);
        for step in steps.clone() {
            match (by, step + 1 < steps.end) {
                (_, false) => self.multiply(step),
                (By::Overlap, true) => self.shift(step, true)?,
                (By::Sync | By::Graph, true) => {
                    self.multiply(step);
                    self.shift(step, false)?;
                }
            }
            stepped();
        }
        let begin = Instant::now();
        self.add_layers()?;
        self.talking += begin.elapsed();
        Ok(self.talking)
    }

    /// This rank's block of C, and where it lies; on layer 0.
    pub fn into_result(self) -> Option<((usize, usize), Vec<f64>)> {
        let [i, j, layer] = self.place;
        (layer == 0).then_some(((i, j), self.c))
    }

    fn rank(&self, place: [usize; 3]) -> usize {
        self.plan.number(place)
    }

    /// Rows, columns and inner extent of a step.
    fn extents(&self, step: usize) -> Extents {
        let [i, j, _] = self.place;
        Extents {
            rows: self.plan.range(i).len(),
            columns: self.plan.range(j).len(),
            inner: self.plan.range(self.plan.inner(i, j, step)).len(),
        }
    }

    /// Entries of the blocks of A and B of a step.
    fn lengths(&self, step: usize) -> [usize; 2] {
        let extents = self.extents(step);
        [
            extents.rows * extents.inner,
            extents.inner * extents.columns,
        ]
    }

    fn multiply(&mut self, step: usize) {
        let (extents, [a, b]) = (self.extents(step), self.lengths(step));
        let factors = (&self.now[0][..a], &self.now[1][..b]);
        multiply(extents, factors, &mut self.c, || {});
    }

    /// Layer 0 sends its blocks to where each layer needs them first.
    fn distribute(&mut self) -> Result<()> {
        let [i, j, layer] = self.place;
        let step = self.plan.steps(layer).start;
        let k = self.plan.inner(i, j, step);
        let lengths = self.lengths(step);
        let sources = [self.rank([i, k, 0]), self.rank([k, j, 0])];
        let layers = 0..self.plan.layers;
        let to_a = |l| self.rank([i, self.plan.first_place(i, j, l), l]);
        let to_b = |l| self.rank([self.plan.first_place(j, i, l), j, l]);
        let dests: Vec<[usize; 2]> = layers.map(|l| [to_a(l), to_b(l)]).collect();
        let (now, given) = (&mut self.now, &self.given);
        self.comm.scope(|s| {
            for (which, block) in now.iter_mut().enumerate() {
                let block = &mut block[..lengths[which]];
                s.irecv(block, sources[which], FIRST + which as u32)?;
            }
            for (which, block) in given.iter().flatten().enumerate() {
                for dest in &dests {
                    s.isend(&block[..], dest[which], FIRST + which as u32)?;
                }
            }
            Ok(())
        })
    }

    /// Sends the blocks of a step on and receives those of the next; multiplies beside it,
    /// or has multiplied.
    fn shift(&mut self, step: usize, overlap: bool) -> Result<()> {
        let [i, j, layer] = self.place;
        let q = self.plan.blocks;
        let (before, after) = (|at: usize| (at + q - 1) % q, |at: usize| (at + 1) % q);
        let dests = [
            self.rank([i, before(j), layer]),
            self.rank([before(i), j, layer]),
        ];
        let sources = [
            self.rank([i, after(j), layer]),
            self.rank([after(i), j, layer]),
        ];
        let (extents, lengths) = (self.extents(step), self.lengths(step));
        let next_lengths = self.lengths(step + 1);
        let begin = Instant::now();
        let mut computed = Duration::ZERO;
        let (now, next, c) = (&self.now, &mut self.next, &mut self.c);
        self.comm.scope(|s| {
            let mut requests = Vec::with_capacity(4);
            for (which, block) in next.iter_mut().enumerate() {
                let block = &mut block[..next_lengths[which]];
                requests.push(s.irecv(block, sources[which], SHIFT + which as u32)?);
            }
            for (which, block) in now.iter().enumerate() {
                let block = &block[..lengths[which]];
                requests.push(s.isend(block, dests[which], SHIFT + which as u32)?);
            }
            computed = compute_beside(requests, |poll| {
                if overlap {
                    let factors = (&now[0][..lengths[0]], &now[1][..lengths[1]]);
                    multiply(extents, factors, c, poll);
                }
            })?;
            Ok(())
        })?;
        self.talking += begin.elapsed().saturating_sub(computed);
        std::mem::swap(&mut self.now, &mut self.next);
        Ok(())
    }

    /// Layer 0 adds the sums of the others, in the order of the layers.
    fn add_layers(&mut self) -> Result<()> {
        let [i, j, layer] = self.place;
        if layer > 0 {
            return self.comm.send(&self.c[..], self.rank([i, j, 0]), PART);
        }
        for other in 1..self.plan.layers {
            let source = self.rank([i, j, other]);
            let part = &mut self.next[0][..self.c.len()];
            self.comm.recv(part, source, PART)?;
            add(&mut self.c, part);
        }
        Ok(())
    }
}
