//! `osier bench`: times, rates, and the machine's floor beside them.
//!
//! ```text
//! osier bench latency            (no job: start one of ourselves)
//!   └─ run ── osier bench latency   rank 0: measures, prints, writes files
//!          └─ osier bench latency   rank 1: measures
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`options`] | sizes, curves, what fits which benchmark |
//! | [`layout`] | datatypes by name |
//! | [`buffers`] | memory, reused or rotated |
//! | [`gpu`] | memory of devices and pinned memory, their floor, and other work there |
//! | [`timing`] | repetitions and their medians |
//! | [`messages`] | latency, bandwidth, rates: between ranks |
//! | [`collectives`], [`calls`] | calls of all ranks, and their buffers |
//! | [`threads`] | threads of a rank |
//! | [`pack`], [`launch`] | without messages |
//! | [`device`] | packing in device memory |
//! | [`datatype`] | commit, pack, unpack, ping-pong of many shapes |
//! | [`floor`] | what the machine could do |
//! | [`floors`] | what two processes could do for a collective |
//! | [`tasks`] | firings and edges of task graphs |
//! | [`rma`] | accesses to windows |
//! | [`faults`] | a rank that dies: until it is known, and until others go on |
//! | [`patterns`] | dependence patterns over task graphs and over messages |
//! | [`report`], [`plot`], [`progress`] | table, JSON, picture, bar |

mod buffers;
mod by_copies;
mod calls;
mod collectives;
mod datatype;
mod device;
mod device_calls;
mod emulated;
mod faults;
mod floor;
mod floors;
mod gpu;
mod launch;
pub mod layout;
mod messages;
mod options;
mod pack;
mod patterns;
mod plot;
pub(crate) mod progress;
mod report;
mod rma;
mod tasks;
mod threads;
mod timing;

pub use options::parse_size;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use osier_engine::protocol::select::Pipelining;

use crate::run;
use by_copies::By;
use layout::Pattern;
use options::Plan;

/// Exit code when a measurement fails.
const FAILED: u8 = 1;
/// Exit code for bad usage, as clap has it.
const USAGE: u8 = 2;

const EXPLANATION: &str = "\
Examples:
  osier bench latency
      half a round trip between two ranks, 1 B to 4 MiB
  osier bench latency --sizes 8,64K,1M --memory plain,heap --plot latency.svg
      two curves: ordinary memory, and Osier's allocator (one copy less)
  osier bench bandwidth --min 64K --max 16M --rotate
      windows of 64 messages, buffers walked through 128 MiB a side
  osier bench latency --layout contiguous,vector:8:16,indexed --sizes 1M
      messages straight from strided memory
  osier bench latency --memory device --layout contiguous,matrix,triangle --min 64K
      messages from and to a GPU's memory; with --emulate-gpus in front of
      osier run, or OSIER_DEBUG=cuda-library, on an emulated one
  osier bench latency --from device --to device --layout matrix --to-layout contiguous
      a matrix out of a larger one into contiguous memory
  osier bench latency --memory device --layout matrix --pipeline off,on
      one kernel from layout to layout, and packed slots on the device
  osier bench latency --memory device --layout transpose --by osier,blocks,host
      beside models of programs that copy block by block, or pack on the host
  osier bench bandwidth --memory device --layout matrix --busy 50
      while half of the GPU's threads are taken by another kernel
  osier bench multi-pair -n 4 --json pairs.json
      two pairs at a time, also with more ranks than cores
  osier bench allreduce -n 2 --each --sizes 8,1K,64K,1M
      all algorithms beside what the model says of them
  osier bench allreduce --form nonblocking --min 64K
      how much of a call other work hides
  osier bench allreduce --memory plain,heap --sizes 64K,1M,4M
      beside it buffers in Osier's shared heap, which peers read in place
  osier run -n 2 --ranks-per-process 2 --bind core -- osier bench bcast
      ranks as threads of one process
  osier bench floors --of bcast --sizes 64K,1M
      what two processes on two cores could do without a library
  osier bench bcast --each --fresh
      how good the model is: its numbers measured by the same job
  osier run -n 2 --bind none -- osier bench message-rate
      in a job that somebody else has started
  osier bench faults -n 16
      how soon a dead rank is known, and what revoke, agree and shrink cost
  osier bench rma
      one-sided accesses beside bare stores, loads and locked instructions
  osier run -n 2 --emulate-gpus 1 -- osier bench rma --shapes wrf,fft --json rma.json
      shapes of real programs between windows on devices
  osier bench patterns --pattern fft --program messages --points 1
      tasks of a butterfly, one for each core, by messages instead of a graph
  osier bench patterns --pattern all_to_all -n 1 --workers 2
      one rank of two workers
  osier bench pack --device --shapes V,T,stair,block-8 --json gpu.json
      packing in device memory; OSIER_DEBUG=cuda-library may name the emulated driver
  osier bench pack --device --shapes V,T --sizes 8M --blocks 1,2,4,8,16,32,132
      how many thread blocks a pack needs

Benchmarks (first and last message of a window are counted as in the OSU
suite; MB/s and GB/s are 10^6 and 10^9 bytes per second):
  latency       half a round trip of one message, us
  bandwidth     windows of messages one way, one short answer each, MB/s
  bibandwidth   the same both ways at once, sum of both directions, MB/s
  message-rate  windows of short messages one way, messages/s
  multi-pair    pairs rank r, rank r + n/2 at the same time: mean latency of a
                pair in us, and messages/s of all pairs
  pack          one rank packs a layout into contiguous memory, GB/s; beside
                it a loop written by hand for that layout
  pack --device a GPU packs and unpacks shapes of datatypes in its memory, GB/s of
                payload; beside it a copy of as many bytes, what the copy's rate
                allows for the sectors of 32 bytes that a shape touches, a kernel
                that gathers them, a 2-D copy, a warp for each piece of a block,
                one copy per block, and a linear scan through all blocks (ours,
                as engines without an index do)
  datatype      shapes of datatypes, those of real programs among them: commit
                (build and drop included), pack, unpack, ping-pong, us
  threads       1 to T threads of a rank at the same time, each with its own
                communicator: with itself (one rank), or thread i with thread
                i of the other rank (two); messages/s received by all threads
                of a rank, and beside it the rate of one thread
  tasks         task graphs: a firing with 0 to 3 dependences by one worker and by two,
                ns, beside a bare loop; then, between two ranks, an edge from its put
                to the start of its task, us, beside send and recv, and beside a
                message received through a WaitSet of as many requests as the rank
                has edges; then what an edge is to cost at most
  rma           a rank accesses the window of another that waits in a barrier: put, get,
                updates and locks, ns, in memory that both map and in a vector, which the
                system reaches; beside it a bare program that does the same in the mapped
                memory; a fence beside a barrier; where ranks have devices, windows there
                beside messages, us, of the corpus with --shapes all
  faults        the last rank of a job is killed: until all others know, until a revoked
                communicator is known by all, agree and shrink before and after, us; for
                2, 4, 8, .. ranks, beside a barrier
  patterns      tasks with the dependences of a pattern (trivial, no_comm, stencil_1d,
                stencil_1d_periodic, dom, tree, fft, all_to_all, nearest, spread,
                random_nearest; after Task Bench, Slaughter et al., SC20), whose
                kernel gets shorter from row to row: time of a task of a core, us,
                and Gflop/s; every input is checked
  launch        start to end of an empty program under osier run, ms
  floors        two processes without a library do what a collective of two ranks
                (--of) must, us: read what the other has just written (direct, the
                reading alone), take pieces of 8 KiB from shared slots, let the
                kernel copy the other's memory, read it in place (mapped)
  barrier, bcast, gather, allgather, allreduce, ... (all that --help lists)
                calls of all ranks one behind the other, roots in turn, us: mean,
                least and most of the ranks' medians, the model's prediction, the
                plan; --each measures every plan that is for the call and says by how
                much the chosen one is behind the best; --form nonblocking and
                persistent, with the share of a call that other work hides;
                --topology 4x2x4: on a machine that is not here;
                --memory device: of buffers in the GPUs' memory, and with
                --by osier,host beside them a model of a program that copies to the
                host before a call and back behind it

Layouts; sizes count payload and are rounded up to whole blocks:
  contiguous        one block
  vector:B:S        blocks of B bytes every S bytes
  indexed[:SEED]    blocks of 1 to 4 doubles, holes of 1 to 4 doubles between
  triangle[:N]      the lower triangle of an N x N matrix of doubles
  matrix[:N]        N x N doubles out of a matrix of twice as many rows, by columns
  transpose[:N]     an N x N matrix of doubles, row after row out of columns
  face:N:AXIS       a face of an N^3 array of doubles across axis 0, 1 or 2
(With N, and face, there is one size, whatever --sizes says.)

Each value is the median over the repetitions; a repetition takes about 10 ms
unless --iterations says otherwise. Min (or Max, of rates) and P99 are taken
over twelfths of repetitions: 99 of 100 were at least as good as P99.

Floor: what the machine could do, measured in the same run, before and after
each value, by the first rank alone.
  flag      one cache line handed to and fro between threads on the ranks'
            cores with plain loads and stores: one way
  memcpy    a copy of the same size between buffers that are reused or
            rotated like those of the run
  ring      words through a ring of cache lines, one a line
  latency floor = flag + memcpy; bandwidth floor = size / memcpy;
  bibandwidth floor = twice that; message rate floor = ring;
  pack floor = payload / memcpy of the payload; of datatype the memcpy itself;
  launch floor = as many processes of the same program without a job;
  floor of a collective = log2 of the ranks flags, rounded up, + a memcpy of what
  some rank must take in; of devices the copy below of as much.
Between a device's memories: the driver's own asynchronous copy of as many
contiguous bytes between such buffers, launch included, without a message.
There is no floor between ranks that share a core.";

/// Measure latency, bandwidth, message rate, packing and launch
///
/// Starts its own ranks, each on a core of its own while there are enough.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXPLANATION, after_help = "See --help for examples, layouts and the floor.")]
pub struct Args {
    /// What to measure
    #[arg(value_enum)]
    bench: Bench,

    /// Number of ranks [default: 2, 4 for multi-pair, 8 for faults, 1 for pack]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "topology")]
    ranks: Option<usize>,

    /// Message sizes, such as 8,64K,1M [default: powers of two]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = options::parse_size,
          conflicts_with_all = ["min", "max"])]
    sizes: Vec<usize>,

    /// Smallest size
    #[arg(long, value_name = "SIZE", value_parser = options::parse_size)]
    min: Option<usize>,

    /// Largest size
    #[arg(short = 'm', long, value_name = "SIZE", value_parser = options::parse_size)]
    max: Option<usize>,

    /// Iterations of one repetition [default: as many as take 10 ms]
    #[arg(short = 'i', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,

    /// Iterations before the clock starts [default: found beside the number
    /// of iterations]
    #[arg(short = 'x', long, value_name = "N")]
    warmup: Option<u64>,

    /// Repetitions over which the median is taken [default: 9, 20 launches]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    repetitions: Option<u64>,

    /// Messages of one window
    #[arg(short = 'W', long, value_name = "N", default_value_t = 64,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    window: usize,

    /// Datatypes of the messages, a curve each; see --help
    #[arg(
        long,
        value_name = "LAYOUTS",
        value_delimiter = ',',
        default_value = "contiguous"
    )]
    layout: Vec<Pattern>,

    /// Where buffers lie, a curve each
    #[arg(
        long,
        value_enum,
        value_name = "WHERE",
        value_delimiter = ',',
        default_value = "plain",
        conflicts_with = "topology"
    )]
    memory: Vec<Memory>,

    /// Where the sender's buffers lie, if not where the receiver's do
    #[arg(long, value_enum, value_name = "WHERE", conflicts_with = "memory")]
    from: Option<Memory>,

    /// Where the receiver's buffers lie
    #[arg(long, value_enum, value_name = "WHERE", conflicts_with = "memory")]
    to: Option<Memory>,

    /// Datatype at the receiver, of the same payload [default: the sender's]
    #[arg(long, value_name = "LAYOUT")]
    to_layout: Option<Pattern>,

    /// Messages between GPUs' memory in slots on the device, a curve each: on, wherever
    /// they can, off, never, auto, where nothing is cheaper
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pipeline: Vec<Pipeline>,

    /// Who moves bytes with gaps between GPUs' memory, a curve each: Osier, or models of
    /// programs whose library has no kernels for that; of latency. More than 65536 blocks
    /// are left out of --by blocks. Of collectives: Osier, or copies to the host and back
    /// around a call there
    #[arg(
        long,
        value_enum,
        value_name = "WHO",
        value_delimiter = ',',
        default_value = "osier"
    )]
    by: Vec<By>,

    /// Measure every plan of a collective, not the chosen one alone
    #[arg(long)]
    each: bool,

    /// Measure a collective by this algorithm
    #[arg(long, value_name = "NAME", conflicts_with_all = ["each", "topology"])]
    algorithm: Option<crate::collective::Wanted>,

    /// How a collective is called
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value = "blocking",
        conflicts_with = "topology"
    )]
    form: calls::Form,

    /// Which collective the floors are of, of `floors`
    #[arg(
        long,
        value_enum,
        value_name = "COLLECTIVE",
        default_value = "allreduce"
    )]
    of: Bench,

    /// Measure the costs by which plans are chosen in this job, instead of those kept
    #[arg(long, conflicts_with = "topology")]
    fresh: bool,

    // With it a collective is played over the simulated network; times are virtual.
    #[command(flatten)]
    described: crate::collective::Described,

    /// Keep so many percent of a GPU's threads busy meanwhile with a kernel of rank 0
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    busy: Option<u8>,

    /// Walk through more buffers than the caches hold
    #[arg(long)]
    rotate: bool,

    /// Most threads of a rank, for `threads` [default: number of cores]
    #[arg(short = 't', long, value_name = "T",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=256))]
    threads: Option<usize>,

    /// Place ranks on cores [default: core, or none for more ranks than cores]
    #[arg(long, value_enum, value_name = "HOW")]
    bind: Option<run::Bind>,

    /// Draw the curves
    #[arg(long, value_name = "FILE.svg", conflicts_with = "topology")]
    plot: Option<PathBuf>,

    /// Write an array of {bench, layout, memory, transport, threads, ranks, bytes, unit,
    /// value, floor, spread, library}; of `patterns` {bench, pattern, program, ranks, workers,
    /// block, width, steps, iterations, output_bytes, tasks, graph, seconds, flops_per_s}
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Pack in the memory of the first GPU, for `pack`
    #[arg(long)]
    device: bool,

    /// Thread blocks of pack --device: a table of rates by number of blocks
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', requires = "device",
          value_parser = clap::value_parser!(u32).range(1..))]
    blocks: Vec<u32>,

    /// Random types of pack --device: seeds 0 to N-1 [default: 32, emulated 8]
    #[arg(long, value_name = "N", requires = "device")]
    trees: Option<u64>,

    /// Shapes of datatype and of pack --device: names, parts of names, or families
    /// [default: all]; of rma between devices, in place of its other rows (`all` for all)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    shapes: Vec<String>,

    /// Leave out shapes that touch more memory [default: 64M, half of a GPU's, emulated 16M]
    #[arg(long, value_name = "SIZE", value_parser = options::parse_size)]
    max_span: Option<usize>,

    #[command(flatten)]
    of_patterns: patterns::Options,

    /// Write the shapes as text for the programs of the peers, measure nothing
    #[arg(long, value_name = "FILE", hide = true)]
    export: Option<PathBuf>,

    /// Draw a progress bar: rank 0's standard error is a pipe to a terminal
    #[arg(long, hide = true)]
    progress: bool,

    /// Be the program that `launch` starts
    #[arg(long, hide = true)]
    empty: bool,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Half a round trip
    Latency,
    /// Windows of messages one way
    Bandwidth,
    /// Windows of messages both ways
    Bibandwidth,
    /// Short messages in windows
    MessageRate,
    /// Several pairs at the same time
    MultiPair,
    /// Packing of a layout, without messages
    Pack,
    /// Commit, pack, unpack and ping-pong of many shapes
    Datatype,
    /// Threads with a communicator each
    Threads,
    /// Firings and edges of task graphs
    Tasks,
    /// Accesses to windows of another rank
    Rma,
    /// A rank that dies: until it is known, and until the others go on
    Faults,
    /// Tasks with the dependences of a pattern, and what they cost beside their work
    Patterns,
    /// Start to end of an empty program
    Launch,
    /// What two processes could do for a collective
    Floors,
    /// A call that ends when all ranks have made it
    Barrier,
    /// A vector of a root to all
    Bcast,
    /// A contribution of each rank to a root
    Gather,
    /// The same with counts
    Gatherv,
    /// A part for each rank from a root
    Scatter,
    /// The same with counts
    Scatterv,
    /// A contribution of each rank to all
    Allgather,
    /// The same with counts
    Allgatherv,
    /// A part of each rank for each
    Alltoall,
    /// The same with counts
    Alltoallv,
    /// The same with a buffer for each
    Alltoallw,
    /// The sum of doubles of all ranks at a root
    Reduce,
    /// The sum of doubles of all ranks at all
    Allreduce,
    /// The same, of which each rank gets as much
    ReduceScatterBlock,
    /// The same with counts
    ReduceScatter,
    /// Sums over the ranks up to each
    Scan,
    /// Sums over the ranks before each
    Exscan,
    /// A contribution to both neighbors on a ring
    NeighborAllgather,
    /// The same with counts
    NeighborAllgatherv,
    /// A part for each neighbor on a ring
    NeighborAlltoall,
    /// The same with counts
    NeighborAlltoallv,
    /// The same with a buffer for each
    NeighborAlltoallw,
}

impl Bench {
    fn name(self) -> &'static str {
        match self {
            Bench::Latency => "latency",
            Bench::Bandwidth => "bandwidth",
            Bench::Bibandwidth => "bibandwidth",
            Bench::MessageRate => "message-rate",
            Bench::MultiPair => "multi-pair",
            Bench::Pack => "pack",
            Bench::Datatype => "datatype",
            Bench::Threads => "threads",
            Bench::Tasks => "tasks",
            Bench::Rma => "rma",
            Bench::Faults => "faults",
            Bench::Patterns => "patterns",
            Bench::Launch => "launch",
            Bench::Floors => "floors",
            Bench::Barrier => "barrier",
            Bench::Bcast => "bcast",
            Bench::Gather => "gather",
            Bench::Gatherv => "gatherv",
            Bench::Scatter => "scatter",
            Bench::Scatterv => "scatterv",
            Bench::Allgather => "allgather",
            Bench::Allgatherv => "allgatherv",
            Bench::Alltoall => "alltoall",
            Bench::Alltoallv => "alltoallv",
            Bench::Alltoallw => "alltoallw",
            Bench::Reduce => "reduce",
            Bench::Allreduce => "allreduce",
            Bench::ReduceScatterBlock => "reduce-scatter-block",
            Bench::ReduceScatter => "reduce-scatter",
            Bench::Scan => "scan",
            Bench::Exscan => "exscan",
            Bench::NeighborAllgather => "neighbor-allgather",
            Bench::NeighborAllgatherv => "neighbor-allgatherv",
            Bench::NeighborAlltoall => "neighbor-alltoall",
            Bench::NeighborAlltoallv => "neighbor-alltoallv",
            Bench::NeighborAlltoallw => "neighbor-alltoallw",
        }
    }
}

/// When messages go in slots on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pipeline {
    Auto,
    On,
    Off,
}

impl Pipeline {
    fn pipelining(self) -> Pipelining {
        match self {
            Pipeline::Auto => Pipelining::Auto,
            Pipeline::On => Pipelining::On,
            Pipeline::Off => Pipelining::Off,
        }
    }
}

/// Where buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Memory {
    /// The process's own memory
    #[value(alias = "host")]
    Plain,
    /// Osier's allocator, whose memory peers read in place
    Heap,
    /// Host memory that a GPU reaches
    Pinned,
    /// A GPU's memory; ranks go round the GPUs
    Device,
    /// The same from the GPU's pool, which other processes do not open
    Pool,
}

impl Memory {
    fn name(self) -> &'static str {
        match self {
            Memory::Plain => "plain",
            Memory::Heap => "heap",
            Memory::Pinned => "pinned",
            Memory::Device => "device",
            Memory::Pool => "pool",
        }
    }

    /// Whether a message from or to it is one of a device.
    fn is_of_a_device(self) -> bool {
        matches!(self, Memory::Pinned | Memory::Device | Memory::Pool)
    }
}

/// Why a benchmark gives up.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn usage(message: impl Into<String>) -> Failure {
        Failure {
            code: USAGE,
            message: message.into(),
        }
    }

    fn failed(message: impl Into<String>) -> Failure {
        Failure {
            code: FAILED,
            message: message.into(),
        }
    }
}

impl From<osier::Error> for Failure {
    fn from(e: osier::Error) -> Failure {
        Failure::failed(e.to_string())
    }
}

type Result<T> = std::result::Result<T, Failure>;

/// Measures and returns the exit code.
pub fn main(args: &Args) -> ExitCode {
    match start(args) {
        Ok(code) => code,
        Err(failure) => ExitCode::from(exit_code(Err(failure))),
    }
}

/// Says what went wrong, if anything did.
fn exit_code(result: Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("osier: bench: {}", failure.message);
            failure.code
        }
    }
}

fn start(args: &Args) -> Result<ExitCode> {
    if args.empty {
        drop(osier::init()?);
        return Ok(ExitCode::SUCCESS);
    }
    let in_job = osier::config::value("OSIER_JOB").is_some();
    let plan = Plan::new(args)?;
    if let (Bench::Datatype, Some(file)) = (args.bench, &args.export) {
        datatype::export(&datatype::plan(args)?, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(topology) = &args.described.topology {
        emulated::run(&plan, topology, &args.described.links)?;
        return Ok(ExitCode::SUCCESS);
    }
    match args.bench {
        Bench::Datatype if in_job => datatype::run(&datatype::plan(args)?),
        Bench::Launch if in_job => Err(Failure::usage(
            "launch starts jobs itself (hint: without osier run)",
        )),
        Bench::Launch => launch::run(&plan),
        Bench::Floors if in_job => Err(Failure::usage(
            "floors starts two processes itself (hint: without osier run)",
        )),
        Bench::Floors => floors::run(args),
        Bench::Pack if args.device => device::run(args),
        Bench::Pack => pack::run(&plan),
        Bench::Tasks if in_job => return Ok(tasks::edges(&plan)),
        Bench::Rma if in_job => return Ok(rma::run(&plan, args)),
        Bench::Faults if in_job => return Ok(faults::in_job(&plan)),
        Bench::Faults => faults::run(&plan),
        Bench::Patterns if in_job => return Ok(patterns::run(args)),
        Bench::Threads if in_job => return Ok(threads::run(&plan)),
        _ if in_job && plan.bench.operation().is_some() => return Ok(collectives::run(&plan)),
        _ if in_job => return Ok(messages::run(&plan)),
        _ => {
            if matches!(args.bench, Bench::Tasks | Bench::Rma) {
                options::check_ranks(args.bench, plan.ranks)?;
                let writes = args.json.is_some() || args.plot.is_some();
                if writes && args.bench == Bench::Tasks || !args.sizes.is_empty() {
                    return Err(Failure::usage(format!(
                        "{} prints a table of its own sizes: no --sizes{}",
                        args.bench.name(),
                        if writes { ", --json or --plot" } else { "" }
                    )));
                }
            }
            if args.bench == Bench::Tasks {
                tasks::firings(&plan)?;
            }
            if args.bench == Bench::Rma && !args.shapes.is_empty() {
                // What is wrong with the names is told before ranks start.
                datatype::shapes(args)?;
            }
            if args.bench == Bench::Patterns {
                patterns::check(args, plan.ranks)?;
            }
            run::check_ranks(plan.ranks).map_err(Failure::usage)?;
            let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
            if std::io::stderr().is_terminal() {
                arguments.push("--progress".into());
            }
            let bind = args.bind.or_else(|| {
                let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
                match args.bench {
                    // Its threads go to their places themselves.
                    Bench::Threads => Some(run::Bind::None),
                    Bench::Patterns if args.of_patterns.has_workers() => Some(run::Bind::None),
                    _ => (plan.ranks <= cores).then_some(run::Bind::Core),
                }
            });
            return Ok(run::again(plan.ranks, bind, arguments));
        }
    }?;
    Ok(ExitCode::SUCCESS)
}
