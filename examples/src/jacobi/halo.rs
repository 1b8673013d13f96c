//! The six-face halo exchange, straight from and into the array.
//!
//! ```text
//!     ghost | first layer  ...  last layer | ghost        along each dimension
//!     recv <-   send               send   -> recv
//! ```
//!
//! Each face is a subarray type: nothing is packed by hand. That no ghost that
//! is received into shares a point with anything sent is checked once, by
//! [`Regions::new`]; a synchronous exchange then lends the whole array to a scope.
//!
//! Where the array is swept meanwhile, faces arrive in memory of their own: ghosts would lie
//! between the points that are read.

use std::time::{Duration, Instant};

use osier::buffers::{Region, Regions};
use osier::{Communicator, Datatype, Layout, Order, Result, Type, View};

use super::decomposition::Block;
use crate::variant::compute_beside;

/// Neighbors of a block: for dimension `d`, entry `2 d` is the low side and `2 d + 1`
/// the high side; `None` at the boundary of the grid, as MPI's `PROC_NULL`.
#[derive(Clone, Copy, Debug)]
pub struct Neighbors(pub [Option<usize>; 6]);

impl Neighbors {
    /// Those in a communicator with a Cartesian topology.
    pub fn new(comm: &Communicator) -> Result<Self> {
        let mut neighbors = [None; 6];
        if let Some(topology) = comm.cart() {
            for d in 0..3 {
                let (low, high) = topology.shift(comm.rank(), d, 1)?;
                neighbors[2 * d] = low;
                neighbors[2 * d + 1] = high;
            }
        }
        Ok(Self(neighbors))
    }
}

/// Faces of a block by side, in the order of [`Neighbors`]: layouts over the array.
#[derive(Debug)]
pub struct Faces {
    /// The layers next to the ghosts.
    pub sends: Vec<Layout>,
    /// The ghosts.
    pub receives: Vec<Layout>,
}

impl Faces {
    /// The faces of a block.
    pub fn new(block: &Block) -> Result<Self> {
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        for d in 0..3 {
            let last = block.points[d];
            for (layer, ghost) in [(1, 0), (last, last + 1)] {
                sends.push(face(block, d, layer)?);
                receives.push(face(block, d, ghost)?);
            }
        }
        Ok(Self { sends, receives })
    }
}

/// The exchange on the host.
#[derive(Debug)]
pub struct Halo {
    faces: Regions<f64>,
    sends: Vec<Layout>,
    neighbors: Neighbors,
}

impl Halo {
    /// The exchange of a block in a communicator with a Cartesian topology.
    pub fn new(comm: &Communicator, block: &Block) -> Result<Self> {
        let faces = Faces::new(block)?;
        let regions = |layouts: Vec<Layout>| layouts.into_iter().map(Region::new).collect();
        Ok(Self {
            sends: faces.sends.clone(),
            faces: Regions::new(regions(faces.sends), regions(faces.receives))?,
            neighbors: Neighbors::new(comm)?,
        })
    }

    /// Neighbors by side.
    pub fn neighbors(&self) -> Neighbors {
        self.neighbors
    }

    /// Receives the faces of the neighbors into `arriving`, by side, and computes meanwhile, as
    /// [`compute_beside`]. The memory of a side with a neighbor is as long as its face. Returns
    /// the time in communication: all but `compute`.
    pub fn exchange_beside(
        &self,
        comm: &Communicator,
        field: &[f64],
        arriving: &mut [Vec<f64>; 6],
        compute: impl FnOnce(&mut dyn FnMut()),
    ) -> Result<Duration> {
        let sends = self.sends.iter().map(|face| View::new(field, 0, face, 1));
        let sends: Vec<_> = sends.collect::<Result<_>>()?;
        let begin = Instant::now();
        let mut computed = Duration::ZERO;
        comm.scope(|s| {
            let mut pending = Vec::with_capacity(12);
            for (side, face) in arriving.iter_mut().enumerate() {
                if let Some(neighbor) = self.neighbors.0[side] {
                    pending.push(s.irecv(&mut face[..], neighbor, side ^ 1)?);
                }
            }
            for (side, face) in sends.iter().enumerate() {
                if let Some(neighbor) = self.neighbors.0[side] {
                    pending.push(s.isend(face, neighbor, side)?);
                }
            }
            computed = compute_beside(pending, compute)?;
            Ok(())
        })?;
        Ok(begin.elapsed().saturating_sub(computed))
    }

    /// Fills the ghosts from the neighbors.
    pub fn exchange(&self, comm: &Communicator, field: &mut [f64]) -> Result<()> {
        comm.scope(|s| {
            let faces = s.regions(field, &self.faces)?;
            for (side, neighbor) in self.neighbors.0.into_iter().enumerate() {
                // What goes to my low side arrives at the neighbor's high side.
                let from_other_side = side ^ 1;
                faces.irecv(side, neighbor, from_other_side)?;
            }
            for (side, neighbor) in self.neighbors.0.into_iter().enumerate() {
                faces.isend(side, neighbor, side)?;
            }
            Ok(())
        })
    }
}

/// One layer of the array across dimension `d`, without edges.
fn face(block: &Block, d: usize, layer: usize) -> Result<Layout> {
    let mut subsizes = block.points;
    subsizes[d] = 1;
    let mut starts = [1; 3];
    starts[d] = layer;
    let layer = Type::subarray(
        &block.sizes(),
        &subsizes,
        &starts,
        Order::C,
        &f64::datatype(),
    )?;
    Ok(layer.commit()?)
}
