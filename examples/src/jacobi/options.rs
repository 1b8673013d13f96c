//! What the user can choose.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use osier::task::ProgressThread;
use osier::{Error, ErrorKind};

/// How faces are exchanged and blocks swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Exchange, then sweep.
    Sync,
    /// Sweep what needs no ghosts while faces are on their way.
    Overlap,
    /// A graph of tasks, several for each rank.
    Graph,
    /// As sync, on virtual ranks: those of a process share its workers.
    Ranks,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::Sync => "sync",
            By::Overlap => "overlap",
            By::Graph => "graph",
            By::Ranks => "ranks",
        })
    }
}

/// 7-point Jacobi for Poisson's equation on a block-decomposed 3-D grid
#[derive(clap::Parser, Clone, Debug)]
#[command(
    name = "jacobi3d",
    after_help = "Examples:
  osier run -n 4 -- jacobi3d                               the default, with a picture
  osier run -n 2 -- jacobi3d --grid 512 --sweeps 20        512^3 points
  osier run -n 6 -- jacobi3d --grid 200x100x60 --ranks 3x2x1
  osier run -n 8 -- jacobi3d --grid 64 --sweeps 100 --quiet --checksum
  osier run -n 2 -- jacobi3d --by overlap                  sweeps beside messages
  osier run -n 2 -- jacobi3d --by graph --factor 1x1x4 --workers 2
  osier run -n 8 --ranks-per-process 4 -- jacobi3d --by ranks --ranks 1x4x2
  osier run -n 2 --delay 1ms -- jacobi3d --by graph --hidden
  osier run -n 2 -- jacobi3d --device --grid 512 --sweeps 200      on GPUs
  jacobi3d --grid 64                                       one rank, no launcher

The field starts as a discrete eigenmode, so it is known after any number of
sweeps; the program fails if a point is wrong. It has the same bits for every
number of ranks, tasks and workers, whichever way it is swept. Ranks of a process
are virtual ones with --by ranks: as many as --ranks-per-process of osier run says."
)]
pub struct Options {
    /// How faces are exchanged and blocks swept
    #[arg(long, value_enum, default_value_t = By::Sync)]
    pub by: By,

    /// Interior points: N for a cube, or NXxNYxNZ
    #[arg(long, value_name = "N|NXxNYxNZ", default_value = "256")]
    pub grid: Triple,

    /// Ranks along x, y and z; their product is the number of ranks [default: chosen to fit]
    #[arg(long, value_name = "PXxPYxPZ")]
    pub ranks: Option<Triple>,

    /// Tasks of a rank: a number, or NXxNYxNZ along the dimensions; of --by graph
    /// [default: 1x1x4, less on tiny grids]
    #[arg(long, value_name = "N|NXxNYxNZ")]
    pub factor: Option<Factor>,

    /// Threads of a rank that run tasks, of --by graph; of a process that run its virtual
    /// ranks, of --by ranks [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,

    /// Have a thread of each rank handle messages while tasks run; without WHEN: always; of
    /// --by graph [default: auto]
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "always")]
    pub progress_thread: Option<ThreadWhen>,

    /// Sweep twice more before: one rank a worker by --by sync, and so without exchanging
    /// faces; by the three times, tell the share of communication that is hidden
    #[arg(long)]
    pub hidden: bool,

    /// Keep the field in the memory of a GPU, and exchange faces from there; without a
    /// GPU on an emulated one, which is slow
    #[arg(long)]
    pub device: bool,

    /// Number of sweeps
    #[arg(long, value_name = "K", default_value_t = 500)]
    pub sweeps: usize,

    /// Half waves of the eigenmode along x, y and z [default: 3x2x1, less on tiny grids]
    #[arg(long, value_name = "KXxKYxKZ")]
    pub mode: Option<Triple>,

    /// Residual norm every M sweeps; 0: only at the end
    #[arg(long, value_name = "M", default_value_t = 50)]
    pub norm_every: usize,

    /// Folder of the picture
    #[arg(long, value_name = "DIR", default_value = "demo-output")]
    pub output: PathBuf,

    /// Draw no picture
    #[arg(long)]
    pub no_picture: bool,

    /// Print the checksum of the field on a line of its own: equal for any
    /// number of ranks
    #[arg(long)]
    pub checksum: bool,

    /// No progress bar and no table
    #[arg(long, short)]
    pub quiet: bool,
}

impl Options {
    /// Workers of a rank, or of a process with virtual ranks.
    pub fn workers(&self) -> usize {
        self.workers.map_or(1, usize::from)
    }

    /// Workers of a process, if its ranks are virtual ones.
    pub fn virtual_workers(&self) -> Option<usize> {
        (self.by == By::Ranks).then(|| self.workers())
    }

    /// Whether the options go together.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> osier::Result<()> {
        let argument = |text| Err(Error::new(ErrorKind::Argument, text));
        let of_graphs = [
            ("--factor", self.factor.is_some()),
            ("--progress-thread", self.progress_thread.is_some()),
        ];
        for (name, given) in of_graphs {
            if given && self.by != By::Graph {
                return argument(format!(
                    "{name} with --by {}: there are no tasks (hint: --by graph)",
                    self.by
                ));
            }
        }
        if self.workers.is_some() && !matches!(self.by, By::Graph | By::Ranks) {
            return argument(format!(
                "--workers with --by {}: there are no tasks or virtual ranks (hint: --by graph, --by ranks)",
                self.by
            ));
        }
        if self.hidden && self.by == By::Sync {
            return argument(
                "--hidden with --by sync: that hides nothing (hint: --by overlap, graph or ranks)"
                    .into(),
            );
        }
        if self.device && self.by != By::Sync {
            return argument(format!(
                "--device with --by {}: fields on devices are swept by --by sync only",
                self.by
            ));
        }
        Ok(())
    }
}

/// When a thread of its own handles messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ThreadWhen {
    /// Where tasks are long and wait for long messages, as measured
    Auto,
    /// From begin to end
    Always,
    /// Workers do so between tasks
    Never,
}

impl From<ThreadWhen> for ProgressThread {
    fn from(when: ThreadWhen) -> ProgressThread {
        match when {
            ThreadWhen::Auto => ProgressThread::Auto,
            ThreadWhen::Always => ProgressThread::Always,
            ThreadWhen::Never => ProgressThread::Never,
        }
    }
}

/// Tasks of a rank: how many, or how many along each dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// Their number; the shape is chosen.
    Number(usize),
    /// Their shape.
    Shape(Triple),
}

impl FromStr for Factor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let triple: Triple = text.parse()?;
        Ok(match text.contains(['x', 'X']) {
            true => Factor::Shape(triple),
            false => Factor::Number(triple.0[0]),
        })
    }
}

/// Three numbers above zero: along x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triple(pub [usize; 3]);

impl Triple {
    /// The numbers along z, y and x: in the order of the array's dimensions.
    pub fn zyx(self) -> [usize; 3] {
        let [x, y, z] = self.0;
        [z, y, x]
    }

    /// From numbers along z, y and x.
    pub fn from_zyx([z, y, x]: [usize; 3]) -> Self {
        Self([x, y, z])
    }
}

impl fmt::Display for Triple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "{x}x{y}x{z}")
    }
}

impl FromStr for Triple {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HINT: &str = "(hint: one number above 0, or three as in 200x100x60)";
        let numbers: Vec<usize> = text
            .split(['x', 'X'])
            .map(|n| n.trim().parse().map_err(|_| format!("{n:?} {HINT}")))
            .collect::<Result<_, _>>()?;
        let triple = match numbers[..] {
            [n] => [n; 3],
            [x, y, z] => [x, y, z],
            _ => return Err(format!("{} numbers {HINT}", numbers.len())),
        };
        if triple.contains(&0) {
            return Err(format!("0 is too few {HINT}"));
        }
        Ok(Self(triple))
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

    #[test]
    fn a_factor_is_a_number_or_a_shape() {
        assert_eq!("4".parse(), Ok(Factor::Number(4)));
        assert_eq!("4x1x2".parse(), Ok(Factor::Shape(Triple([4, 1, 2]))));
        assert!("0".parse::<Factor>().is_err());
    }

    #[test]
    fn triples_have_one_number_or_three() {
        assert_eq!("7".parse(), Ok(Triple([7, 7, 7])));
        assert_eq!("1x2X3".parse(), Ok(Triple([1, 2, 3])));
        assert_eq!(Triple([1, 2, 3]).to_string(), "1x2x3");
        for bad in ["", "x", "1x2", "1x2x3x4", "0", "4x0x4", "-1", "1.5"] {
            let error = bad.parse::<Triple>().expect_err(bad);
            assert!(error.contains("hint"), "{error}");
        }
    }
}
