//! What the user can choose.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;

/// Best global alignment of two nucleotide sequences (Needleman-Wunsch)
#[derive(clap::Parser, Clone, Debug)]
#[command(
    name = "needleman_wunsch",
    after_help = "Examples:
  osier run -n 2 -- needleman_wunsch                 random letters, mutated
  osier run -n 2 -- needleman_wunsch lambda_virus.fa --mutate 0.1 --seed 7
  osier run -n 2 -- needleman_wunsch one.fa two.fa --output alignment.txt
  osier run -n 4 -- needleman_wunsch --random 100000 --by overlap --score-only
  osier run -n 2 -- needleman_wunsch --random 4000 --picture blocks.svg
  needleman_wunsch both.fa both.fa --record a --record b --workers 2

Files are FASTA: nucleotides by the codes of IUPAC, upper or lower case. Equal
codes match. Score and alignment are the same for any --by, --block, --workers
and number of ranks; the program fails if the alignment has another score than
the matrix."
)]
pub struct Options {
    /// FASTA files: two, or one that is aligned with a mutation of itself
    #[arg(value_name = "FILE", num_args = 0..=2)]
    pub files: Vec<PathBuf>,

    /// Record of a file, by its name; once for each file [default: the first]
    #[arg(long, value_name = "NAME")]
    pub record: Vec<String>,

    /// Random letters instead of a file [default without files: 20000]
    #[arg(long, value_name = "LENGTH", conflicts_with = "files")]
    pub random: Option<usize>,

    /// Share of letters that mutate, where there are not two files: they are
    /// substituted, deleted, or get one in front [default: 0.1]
    #[arg(verbatim_doc_comment, long, value_name = "RATE")]
    pub mutate: Option<f64>,

    /// Seed of random letters and mutation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Score of two equal letters
    #[arg(
        long = "match",
        value_name = "SCORE",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub alike: i32,

    /// Score of two different letters
    #[arg(
        long = "mismatch",
        value_name = "SCORE",
        default_value_t = -1,
        allow_negative_numbers = true
    )]
    pub unlike: i32,

    /// Score of a letter against a gap
    #[arg(
        long,
        value_name = "SCORE",
        default_value_t = -2,
        allow_negative_numbers = true
    )]
    pub gap: i32,

    /// How the matrix is filled
    #[arg(long, value_enum, default_value_t = Variant::Blocks)]
    pub by: Variant,

    /// Rows and columns of a block
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub block: usize,

    /// Threads of a rank that run tasks (--by blocks, panels)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub workers: usize,

    /// Tasks nearer to the top, and of blocks to the left, run first
    /// (--by blocks, panels)
    #[arg(verbatim_doc_comment, long)]
    pub priority: bool,

    /// Posted receives, and sends under way (--by overlap), or how far a
    /// panel runs ahead of the one below (--by panels)
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 8)]
    pub window: u32,

    /// Keep no borders, and find the score alone
    #[arg(long)]
    pub score_only: bool,

    /// Compute the score by a sequential program, too, and compare
    #[arg(long)]
    pub check: bool,

    /// File for the alignment in readable form
    #[arg(long, value_name = "FILE", conflicts_with = "score_only")]
    pub output: Option<PathBuf>,

    /// Draw the graph with the times of its tasks, as SVG
    /// (--by blocks, panels)
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub picture: Option<PathBuf>,

    /// No progress bar; only the score is printed
    #[arg(long, short)]
    pub quiet: bool,
}

/// How the matrix is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// Columns of blocks around a ring of ranks, by blocking calls
    Sync,
    /// The same ring, with a window of posted requests
    Overlap,
    /// A task for each block
    Blocks,
    /// A task for each row of blocks, which fires for each block
    Panels,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 4] = [
        Variant::Sync,
        Variant::Overlap,
        Variant::Blocks,
        Variant::Panels,
    ];

    /// Whether it is a graph of tasks.
    pub fn is_graph(self) -> bool {
        matches!(self, Variant::Blocks | Variant::Panels)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Sync => "sync",
            Variant::Overlap => "overlap",
            Variant::Blocks => "blocks",
            Variant::Panels => "panels",
        })
    }
}

const MOST_WORKERS: usize = 1024;

impl Options {
    /// What does not fit together, whatever the files are.
    pub(super) fn check(&self) -> Result<(), String> {
        let by = self.by;
        if self.block == 0 || self.window == 0 {
            return Err("--block or --window 0, expected at least 1".into());
        }
        if !(1..=MOST_WORKERS).contains(&self.workers) {
            let workers = self.workers;
            return Err(format!("--workers {workers}, expected 1 to {MOST_WORKERS}"));
        }
        if !by.is_graph() && self.workers > 1 {
            let workers = self.workers;
            return Err(format!(
                "--workers {workers} with --by {by}, expected blocks or panels \
                 (hint: more ranks instead)"
            ));
        }
        if !by.is_graph() && self.priority {
            return Err(format!(
                "--priority with --by {by}, expected blocks or panels"
            ));
        }
        if !by.is_graph() && self.picture.is_some() {
            return Err(format!(
                "--picture with --by {by}, expected blocks or panels"
            ));
        }
        if self.files.len() == 2 && self.mutate.is_some() {
            return Err("--mutate with two files, expected one".into());
        }
        if self.record.len() > self.files.len() {
            let (records, files) = (self.record.len(), self.files.len());
            return Err(format!(
                "--record given {records} times for {files} files, expected once for each"
            ));
        }
        match self.mutate {
            Some(rate) if !(0.0..=1.0).contains(&rate) => {
                Err(format!("--mutate {rate}, expected a share from 0 to 1"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        let mut command = Options::command();
        let help = command.render_long_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for variant in Variant::ALL {
            let name = variant.to_string();
            assert_eq!(Variant::from_str(&name, false), Ok(variant));
        }
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        let refused = |line: &str| {
            let words = ["needleman_wunsch"].into_iter().chain(line.split(' '));
            let options = Options::try_parse_from(words).expect(line);
            options.check().expect_err(line)
        };
        for (line, part) in [
            ("--block 0", "at least 1"),
            ("--workers 0", "--workers 0"),
            ("--workers 9999", "1 to 1024"),
            ("--by sync --workers 2", "--workers 2 with --by sync"),
            ("--by overlap --priority", "--priority with --by overlap"),
            ("--by sync --picture x.svg", "--picture with --by sync"),
            ("a.fa b.fa --mutate 0.1", "two files"),
            ("a.fa --record x --record y", "2 times for 1 files"),
            ("--mutate 1.5", "--mutate 1.5"),
            ("--mutate nan", "from 0 to 1"),
        ] {
            let error = refused(line);
            assert!(
                error.contains(part) && error.contains("expected"),
                "{error}"
            );
        }
    }
}
