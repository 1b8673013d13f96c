//! The six-face halo exchange, straight from and into the array.
//!
//! ```text
//!     ghost | first layer  ...  last layer | ghost        along each dimension
//!     recv <-   send               send   -> recv
//! ```
//!
//! Each face is a subarray type: nothing is packed by hand. That no ghost that
//! is received into shares a point with anything sent is checked once, by
//! [`Regions::new`]; a sweep then lends the whole array to a scope.
//!
//! Nothing is computed meanwhile: the array is lent as a whole, and where
//! ranks share memory, and here also cores, it is their processors that copy.

use osier::buffers::{Region, Regions};
use osier::{Communicator, Datatype, Layout, Order, Result, Type};

use super::decomposition::Block;

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
    neighbors: Neighbors,
}

impl Halo {
    /// The exchange of a block in a communicator with a Cartesian topology.
    pub fn new(comm: &Communicator, block: &Block) -> Result<Self> {
        let faces = Faces::new(block)?;
        let regions = |layouts: Vec<Layout>| layouts.into_iter().map(Region::new).collect();
        Ok(Self {
            faces: Regions::new(regions(faces.sends), regions(faces.receives))?,
            neighbors: Neighbors::new(comm)?,
        })
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
