//! What the kernel of example 13 takes.

use osier::rma::Team;

/// `example_halo_plan` of `cuda/halo.cu`, field by field; addresses are those of the own rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// The team of all ranks.
    pub team: Team,
    /// Two fields of the heap: step s reads `fields[s % 2]`.
    pub fields: [u64; 2],
    /// Two words of the heap: steps whose row has come from above, and from below.
    pub arrived: u64,
    /// A word of the device: blocks at a barrier.
    pub met: u64,
    /// Rows of the field, without ghosts.
    pub rows: u64,
    /// Points of a row, without ghosts.
    pub columns: u64,
    /// Steps.
    pub steps: u64,
    /// The ranks above and below; the own one where the field ends.
    pub neighbors: [u32; 2],
}
