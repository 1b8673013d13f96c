//! `osier explain rma`: how an access to another rank's part of a window goes, and what it is
//! expected to take.

use std::fmt;

use osier::model;
use osier::{Error, ErrorKind, Result};
use osier_engine::rma::ways::{Access, Candidate, Memory, candidates};
use osier_engine::view::RawView;
use serde_json::{Value, json};

use crate::bench::layout::Pattern;
use crate::bench::parse_size;
use crate::info::protocols::{origin, time};
use crate::info::table::Table;

const EXAMPLES: &str = "\
Examples:
  osier explain rma --access put --bytes 8
      to a window of the shared heap: a store
  osier explain rma --access get --bytes 8 --window vector
      from a vector of another process, whose owner waits in a call
  osier explain rma --access get --bytes 8 --window vector --owner computes
      and of one that does not
  osier explain rma --access put --bytes 64K --layout vector:64:128 --window vector
      with gaps at the target: a system call for each run
  osier explain rma --access accumulate --bytes 8K --ranks apart --json
      between ranks that share no memory, for programs";

/// Print how an access to another rank's part of a window goes, and what it is expected to take,
/// beside the other ways
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What is done
    #[arg(long, value_enum, default_value = "put")]
    access: Does,

    /// Bytes of the access, such as 8, 64K or 4M
    #[arg(long, value_name = "N", default_value = "8", value_parser = parse_size)]
    bytes: usize,

    /// Layout of the target: contiguous, vector:BLOCK:STRIDE, indexed[:SEED], triangle:N or
    /// face:N:AXIS
    #[arg(long, value_name = "SPEC", default_value = "contiguous")]
    layout: Pattern,

    /// Memory of the part
    #[arg(long, value_enum, default_value = "heap")]
    window: Of,

    /// Where the two ranks are
    #[arg(long, value_enum, default_value = "processes")]
    ranks: Ranks,

    /// What the part's owner does meanwhile
    #[arg(long, value_enum, default_value = "waits")]
    owner: Owner,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Does {
    Put,
    Get,
    Accumulate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Of {
    /// Allocated by Osier: Communicator::window, MPI_Win_allocate
    Heap,
    /// Of the program: Communicator::window_of, MPI_Win_create
    Vector,
    /// Of a device: Communicator::device_window
    Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Ranks {
    /// Threads of one process
    Process,
    /// Two processes of a machine
    Processes,
    /// Without memory in common, as with osier run --delay
    Apart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Owner {
    /// In a call of Osier's
    Waits,
    /// It computes
    Computes,
}

impl fmt::Display for Does {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Does::Put => "put",
            Does::Get => "get",
            Does::Accumulate => "accumulate",
        })
    }
}

impl Args {
    fn memory(&self) -> Result<Memory> {
        match (self.window, self.ranks) {
            (Of::Device, Ranks::Apart) => Err(Error::new(
                ErrorKind::Unavailable,
                "windows of devices are of ranks that share memory (hint: send messages)",
            )),
            (Of::Device, _) => Ok(Memory::Device),
            (_, Ranks::Apart) => Ok(Memory::Apart),
            (Of::Vector, Ranks::Processes) => Ok(Memory::Private),
            _ => Ok(Memory::Mapped),
        }
    }

    fn whereabouts(&self) -> String {
        let window = match self.window {
            Of::Heap => "in the shared heap",
            Of::Vector => "in a vector",
            Of::Device => "on a device",
        };
        let ranks = match self.ranks {
            Ranks::Process => "of the same process",
            Ranks::Processes => "of another process",
            Ranks::Apart => "that shares no memory",
        };
        let owner = match self.owner {
            Owner::Waits => "waits",
            Owner::Computes => "computes",
        };
        format!("{window}, of a rank {ranks}, which {owner}")
    }
}

/// Explains an access.
pub fn explain(args: &Args) -> Result<()> {
    let memory = args.memory()?;
    let shape = args.layout.shape(args.bytes)?;
    let mut runs = 0;
    let target = RawView::at(std::ptr::null_mut(), &shape.layout, 1)?;
    target.runs(|run| runs += usize::from(!run.is_empty()));
    let access = Access {
        bytes: shape.bytes(),
        runs,
        reads: args.access == Does::Get,
        updates: args.access == Does::Accumulate,
        owner_waits: args.owner == Owner::Waits,
    };
    let cached = model::cached()?;
    let all = candidates(memory, &access, &cached.set.costs);
    if args.json {
        println!("{:#}", to_json(args, &access, &all));
        return Ok(());
    }
    println!(
        "{} of {} bytes, {} (runs: {runs})\n{}\n",
        args.access,
        access.bytes,
        args.layout,
        args.whereabouts()
    );
    let (open, closed): (Vec<&Candidate>, Vec<_>) = all.iter().partition(|one| one.able.is_ok());
    let predicted = |one: &Candidate| one.ns.map_or_else(|| "-".into(), time);
    let mut table = Table::new(2).right(&[1]);
    table.row(["by", "predicted", "beside"].map(str::to_owned));
    let best = open.first().and_then(|one| one.ns).unwrap_or(f64::NAN);
    for (at, one) in open.iter().enumerate() {
        let beside = match (at, one.ns) {
            (0, _) => "chosen".into(),
            (_, Some(ns)) => format!("x {:.2}", ns / best),
            _ => String::new(),
        };
        table.row([one.way.to_string(), predicted(one), beside]);
    }
    table.print();
    println!("\nNot for this access");
    let mut table = Table::new(2);
    for one in closed {
        let why = one.able.err().unwrap_or_default();
        table.row([one.way.to_string(), why.to_owned()]);
    }
    table.print();
    println!("\nFrom");
    let mut table = Table::new(2);
    table.row(["costs of the link".into(), origin(&cached)]);
    table.row([
        "locks".into(),
        match args.access {
            Does::Accumulate => "and that of the part's updates, two atomics".to_owned(),
            _ => "none".to_owned(),
        },
    ]);
    table.print();
    Ok(())
}

fn to_json(args: &Args, access: &Access, all: &[Candidate]) -> Value {
    let ways: Value = all
        .iter()
        .map(|one| {
            json!({
                "by": one.way.to_string(),
                "open": one.able.is_ok(),
                "why": one.able.err(),
                "predicted_ns": one.ns,
            })
        })
        .collect();
    json!({
        "access": args.access.to_string(),
        "bytes": access.bytes,
        "layout": args.layout.to_string(),
        "runs": access.runs,
        "where": args.whereabouts(),
        "ways": ways,
    })
}
