//! What the user can choose.

use std::path::PathBuf;

use osier::Result;

use crate::variant::By;

/// Dense matrix product by Cannon's algorithm, in 2-D and 2.5-D
#[derive(clap::Parser, Clone, Debug)]
#[command(
    name = "cannon",
    after_help = "Examples:
  osier run -n 4 -- cannon                              2x2 blocks, one for each rank
  osier run -n 4 -- cannon --by overlap --n 2000
  osier run -n 8 -- cannon --layers 2                   2x2 blocks in 2 layers
  osier run -n 3 -- cannon --by graph --blocks 6        36 tasks over 3 ranks
  osier run -n 2 -- cannon --by graph --blocks 8 --layers 2 --workers 2
  osier run -n 4 -- cannon --by graph --blocks 3 --picture cannon.svg
  cannon --by graph --n 500 --quiet --checksum          one rank, no launcher

C has the same bits for every variant and number of ranks with the same --n,
--blocks and --layers. The program fails if a bit differs from the same sums
without messages, or an entry from a plain triple loop by more than rounding."
)]
pub struct Options {
    /// How blocks are shifted and multiplied
    #[arg(long, value_enum, default_value_t = By::Sync)]
    pub by: By,

    /// Rows and columns of the matrices
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub n: usize,

    /// Blocks along rows and along columns [default: as the ranks need it; by graph 8, less
    /// for tiny matrices]
    #[arg(long, value_name = "Q")]
    pub blocks: Option<usize>,

    /// Layers, which share the steps: copies of A and B, and partial sums of C
    #[arg(long, value_name = "C", default_value_t = 1)]
    pub layers: usize,

    /// Threads of a rank that run tasks; of --by graph [default: 1]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,

    /// Products, for the time
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// Seed of the entries, which lie between -1 and 1
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,

    /// Do not check C, which takes longer than to compute it
    #[arg(long)]
    pub no_check: bool,

    /// Draw the graph with the times of its tasks in the last product, as SVG; of
    /// --by graph
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,

    /// Print the checksum of C on a line of its own
    #[arg(long)]
    pub checksum: bool,

    /// No progress bar and no table
    #[arg(long, short)]
    pub quiet: bool,
}

impl Options {
    /// Workers of a rank.
    pub fn workers(&self) -> usize {
        self.workers.map_or(1, usize::from)
    }

    /// Whether the options go together.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> Result<()> {
        self.by.check_task_options(&[
            ("--workers", self.workers.is_some()),
            ("--picture", self.picture.is_some()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }
}
