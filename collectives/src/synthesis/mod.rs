//! Plans made from measured costs between pairs of ranks: clusters, adapted
//! barriers, trees of earliest completion.

mod adapted;
mod clusters;
mod greedy;
mod matrix;
mod stages;

pub use adapted::{Adapted, Shape, adapted_barrier, adapted_tree};
pub use clusters::{Cluster, cluster, clusters};
pub use greedy::earliest_completion;
pub use matrix::Matrix;
pub use stages::{Signal, Stages};
