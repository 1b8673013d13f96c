//! What the user can choose.

use std::path::PathBuf;

/// Sparse LU factorization with static pivots over supernodes, and a solve
#[derive(clap::Parser, Clone, Debug)]
#[command(
    name = "sparse_lu",
    group(clap::ArgGroup::new("matrix").required(true).args(["file", "convection"])),
    after_help = "Examples:
  osier run -n 2 -- sparse_lu --convection 20              as a task graph
  osier run -n 2 -- sparse_lu --convection 20 --by sync    by blocking calls
  osier run -n 4 -- sparse_lu big.rua --by overlap         with look-ahead
  osier run -n 1 -- sparse_lu big.rua --workers 2
  osier run -n 3 -- sparse_lu big.rua --quiet --checksum
  osier run -n 2 -- sparse_lu big.rua --picture factors.png
  sparse_lu matrix.mtx                                     one rank, no launcher

The right-hand side is that of a known solution; the program fails if the
residual is larger than rounding explains."
)]
pub struct Options {
    /// Harwell-Boeing (RUA, RSA, PUA, PSA) or Matrix Market (coordinate) file
    pub file: Option<PathBuf>,

    /// Convection and diffusion on a grid of N x N x N points instead of a file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub convection: Option<u32>,

    /// Convection over one spacing of the grid, in units of diffusion
    #[arg(long, value_name = "P", default_value_t = 2.0, value_parser = not_negative)]
    pub peclet: f64,

    /// Seed of the strength of convection
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,

    /// How ranks work together
    #[arg(long, value_enum, default_value_t = By::Graph)]
    pub by: By,

    /// Workers of each rank, of a graph
    #[arg(long, value_name = "W", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,

    /// Supernodes ahead that are factored early, of overlap
    #[arg(long, value_name = "K", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub ahead: u32,

    /// Most columns of a supernode
    #[arg(long, value_name = "C", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub width: u32,

    /// Store no zeros for the sake of wider supernodes
    #[arg(long)]
    pub exact: bool,

    /// Supernodes in a row that one rank has
    #[arg(long, value_name = "B", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub block: u32,

    /// Order of elimination [default: dissection of a grid, degree of a file]
    #[arg(long, value_enum)]
    pub order: Option<Order>,

    /// Most steps of iterative refinement
    #[arg(long, value_name = "R", default_value_t = 10)]
    pub refine: u32,

    /// Draw where the factors have entries, in the colors of the ranks, as PNG
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,

    /// Print a checksum of the factors on a line of its own: equal for any
    /// number of ranks and workers, and however they work together
    #[arg(long)]
    pub checksum: bool,

    /// No progress bar and no table
    #[arg(long, short)]
    pub quiet: bool,
}

/// How ranks work together.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// One panel after the other, by blocking calls
    Sync,
    /// Look-ahead, by posted requests
    Overlap,
    /// A task graph
    Graph,
}

/// Order of elimination.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Approximate minimum degree
    Degree,
    /// Nested dissection, of a grid
    Dissection,
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=1e12).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1e12".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        for line in ["--convection 3", "a.rua --by sync", "a.rua --workers 2"] {
            let words = ["sparse_lu"].into_iter().chain(line.split_whitespace());
            Options::try_parse_from(words).expect(line);
        }
        for line in [
            "",
            "a.rua --convection 3",
            "--convection 0",
            "a.rua --peclet -1",
        ] {
            let words = ["sparse_lu"].into_iter().chain(line.split_whitespace());
            assert!(Options::try_parse_from(words).is_err(), "{line}");
        }
    }
}
