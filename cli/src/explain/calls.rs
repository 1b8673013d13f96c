//! `osier explain allreduce` and the other collectives: which plan, why, and what it is
//! expected to take beside the others.

use osier::model::{self, Agreed, CallCosts, DeviceCalls, GpuLinks, Places, RankLinks};
use osier::{Error, ErrorKind, Result};
use osier_collectives::{
    Association, Call, Candidate, Choice, Machine, Model, Neighbors, Operation, Sizes, Time,
    choose_for_all, simulate,
};
use osier_engine::protocol::select::{AT_ONCE_BYTES, Memory, Selection};
use serde_json::{Value, json};

use crate::bench::parse_size;
use crate::collective::{self, Described, LinkSpec, Space};
use crate::info::protocols::{size, time};
use crate::info::table::Table;
use crate::run;

const EXAMPLES: &str = "\
Examples:
  osier explain allreduce --bytes 1M -n 8
      the plan that eight ranks of osier run here would use, by the costs of this machine
  osier explain bcast --bytes 64K --topology 4x2x4 --root 5
      on 4 nodes of 2 packages of 4 ranks, with described costs
  osier explain allreduce --bytes 4M --topology 2x8 --any-order
      of an operator that is exact and commutative: rings and levels are open to it
  osier explain bcast --bytes 4M --topology 2x2x4 --memory device
      of buffers on devices: whether they go through the host, whose leaders keep a copy
      there, and how chains go through the switches
  osier explain allreduce --bytes 256M --topology 1x2x4 --memory device --nvlink switch:18
      of eight devices that NVLinks join through a switch
  osier explain neighbor-alltoall --bytes 64K --topology 2x2x4 --grid 4x4
      of neighbors on a grid: one plan, and what it is expected to take
  osier explain alltoall --bytes 8 -n 4 --json
      for programs; osier model show has the costs behind it";

/// Collectives whose plan is explained.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Which plan a barrier would use, and why
    Barrier(Args),
    /// The same of a broadcast
    Bcast(Args),
    /// The same of a gather
    Gather(Args),
    /// The same of a scatter
    Scatter(Args),
    /// The same of an allgather
    Allgather(Args),
    /// The same of an alltoall
    Alltoall(Args),
    /// The same of a reduction to a root
    Reduce(Args),
    /// The same of a reduction to all
    Allreduce(Args),
    /// The same of a reduction of which each rank gets a part
    ReduceScatter(Args),
    /// The same of an inclusive prefix
    Scan(Args),
    /// The same of an exclusive prefix
    Exscan(Args),
    /// The same of a contribution to all neighbors on a periodic grid
    NeighborAllgather(Args),
    /// The same of a part for each neighbor on a periodic grid
    NeighborAlltoall(Args),
}

/// What is asked of a collective.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Bytes of a contribution, or of the vector, such as 8, 64K or 4M
    #[arg(long, value_name = "N", default_value = "8", value_parser = parse_size)]
    bytes: usize,

    /// Ranks on this machine, as osier run would place them [default: one per core, at
    /// least 2]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "topology",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,

    /// How ranks are placed
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "topology")]
    bind: Option<run::Bind>,

    #[command(flatten)]
    described: Described,

    /// Where the buffers are; of devices, each rank has one
    #[arg(long, value_enum, value_name = "WHERE", default_value = "host")]
    memory: Space,

    /// Of a described machine: costs of messages from device to device, as --links
    #[arg(
        long,
        value_name = "LINKS",
        value_delimiter = ',',
        requires = "topology"
    )]
    device_links: Vec<LinkSpec>,

    /// Of a described machine: NVLinks between devices of each node, pairs and how many, as in
    /// 0-1:4,2-3:4, or switch:18, so many of each into switches
    #[arg(long, value_name = "JOINTS", requires = "topology")]
    nvlink: Option<String>,

    /// Root of the collective
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,

    /// Of a reduction: the operator is exact and commutative, so any order will do
    #[arg(long)]
    any_order: bool,

    /// Of neighbors: the grid on which ranks lie, as in 4x2, outermost first [default: a
    /// ring]
    #[arg(long, value_name = "SHAPE", value_parser = grid)]
    grid: Option<Grid>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Widths of a grid, outermost first.
#[derive(Clone, Debug)]
struct Grid(Vec<u32>);

fn grid(shape: &str) -> std::result::Result<Grid, String> {
    let widths = shape.split(['x', 'X']);
    let widths = widths.map(|w| w.trim().parse().ok().filter(|w: &u32| *w > 0));
    let widths: Option<Vec<u32>> = widths.collect();
    widths
        .map(Grid)
        .ok_or_else(|| "write the ranks of each dimension, as in 4x2".into())
}

/// Neighbors on a periodic grid, as those of `Communicator::cart_create`: what is sent in
/// the negative direction of a dimension comes from the positive one.
fn neighbors(widths: &[u32]) -> Neighbors {
    let size: u32 = widths.iter().product();
    let mut all = Neighbors::default();
    for rank in 0..size {
        let (mut sources, mut destinations) = (Vec::new(), Vec::new());
        let mut inside = size;
        for width in widths {
            inside /= width;
            let at = rank / inside % width;
            let moved = |to: u32| rank - at * inside + to % width * inside;
            let (below, above) = (moved(at + width - 1), moved(at + 1));
            sources.extend([above, below]);
            destinations.extend([below, above]);
        }
        all.sources.push(sources);
        all.destinations.push(destinations);
    }
    all
}

impl Command {
    fn parts(&self) -> (Operation, &Args) {
        match self {
            Command::Barrier(args) => (Operation::Barrier, args),
            Command::Bcast(args) => (Operation::Bcast, args),
            Command::Gather(args) => (Operation::Gather, args),
            Command::Scatter(args) => (Operation::Scatter, args),
            Command::Allgather(args) => (Operation::Allgather, args),
            Command::Alltoall(args) => (Operation::Alltoall, args),
            Command::Reduce(args) => (Operation::Reduce, args),
            Command::Allreduce(args) => (Operation::Allreduce, args),
            Command::ReduceScatter(args) => (Operation::ReduceScatter, args),
            Command::Scan(args) => (Operation::Scan, args),
            Command::Exscan(args) => (Operation::Exscan, args),
            Command::NeighborAllgather(args) => (Operation::NeighborAllgather, args),
            Command::NeighborAlltoall(args) => (Operation::NeighborAlltoall, args),
        }
    }
}

/// What was found out.
struct Explained {
    choice: Choice,
    /// In each state that is known; the first is that of predictions.
    states: Vec<Machine>,
    where_: String,
    from: String,
    version: Option<u64>,
}

/// Prints what would be done.
pub fn explain(command: &Command) -> Result<()> {
    let (operation, args) = command.parts();
    let found = find(operation, args)?;
    match args.json {
        true => println!("{:#}", to_json(&found)?),
        false => print(&found)?,
    }
    Ok(())
}

fn find(operation: Operation, args: &Args) -> Result<Explained> {
    let links = &args.described.links;
    let (states, where_, from, version) = match &args.described.topology {
        Some(described) => {
            let described = collective::joined(described, args.nvlink.as_deref())
                .map_err(|why| Error::new(ErrorKind::Argument, why))?;
            (
                vec![match args.memory {
                    Space::Host => collective::machine(&described, links),
                    Space::Device => {
                        collective::machine_of_devices(&described, links, &args.device_links)
                    }
                }],
                format!("{} ranks on a described machine", described.size()),
                match links.is_empty() && args.device_links.is_empty() {
                    true => "built-in costs of a described machine (hint: --links)".to_owned(),
                    false => "--links".to_owned(),
                },
                None,
            )
        }
        None => {
            let cached = model::cached()?;
            let ranks = args.ranks.unwrap_or((run::cores() as u32).max(2));
            let places = run::places(args.bind, ranks as usize);
            let mut from = crate::model::told(&cached);
            for line in crate::model::states(&crate::model::lines_ns(&cached))
                .iter()
                .flat_map(|text| text.lines())
            {
                from += &format!("\n  {line}");
            }
            let delay = osier::config::delay()?;
            if let Some(delay) = delay {
                from += &format!(
                    "\n  OSIER_DELAY: collectives run by messages; no prediction has the {delay} that each takes longer"
                );
            }
            let link = cached.set.costs.device;
            let agreed = Agreed::of(cached, places);
            let mut tables = agreed.tables();
            if args.memory == Space::Device {
                for (table, links) in tables.iter_mut().zip(agreed.links_by_state()) {
                    let estimated = || DeviceCalls::estimated(&links);
                    table.devices.get_or_insert_with(estimated);
                }
                let devices = tables[0].devices.iter();
                let told = devices.map(|devices| match (devices.emulated, link) {
                    (true, _) => format!(
                        "\n  devices: measured on {}, which is emulated: no figures of a GPU",
                        devices.device
                    ),
                    (false, None) if devices.device == "estimated" => {
                        "\n  devices: estimated from data sheets; none was measured".to_owned()
                    }
                    (false, _) if devices.device == "estimated" => {
                        "\n  devices: estimated from copies and packs of the device".to_owned()
                    }
                    (false, _) => format!("\n  devices: measured on {}", devices.device),
                });
                from.extend(told);
            }
            let selection = Selection::among(&agreed.links_by_state(), AT_ONCE_BYTES);
            let eager = selection.eager_max(Memory::Plain);
            let where_ = match agreed.places.as_ref().map(Places::topology) {
                Some(t) if !t.levels().is_empty() => {
                    format!(
                        "{ranks} ranks on this machine, by {}",
                        t.levels().join(", ")
                    )
                }
                _ => format!("{ranks} ranks on this machine, all as near to each other"),
            };
            let all: Vec<u32> = (0..ranks).collect();
            let version = Some(tables[0].version());
            // No driver is asked about memory of the host.
            let device_links = match args.memory {
                Space::Host => RankLinks::default(),
                Space::Device => GpuLinks::here()
                    .map(|links| links.of_ranks(ranks))
                    .unwrap_or_default(),
            };
            let state = |table: CallCosts| {
                let table = table.shared_by(ranks.div_ceil((run::cores() as u32).max(1)));
                let places = agreed.places.as_ref();
                match args.memory {
                    // As communicators have it: see `Communicator::shares_segment`.
                    Space::Host => {
                        let shared = ranks > 1 && delay.is_none();
                        table.machine_of_host(&all, places, eager, shared)
                    }
                    Space::Device => {
                        let host = table.machine(&all, places, eager);
                        let devices = table.machine_of_devices(&all, places, &device_links, &host);
                        devices.unwrap_or(host)
                    }
                }
            };
            let states = tables.into_iter().map(state).collect();
            (states, where_, from, version)
        }
    };
    let ranks = states[0].places.len() as u32;
    if args.root >= ranks {
        return Err(Error::new(
            ErrorKind::Argument,
            format!("--root {}: there are {ranks} ranks", args.root),
        ));
    }
    let mut call = Call::new(operation, ranks).requires(match args.any_order {
        true => Association::Any,
        false => Association::Balanced,
    });
    if operation.rooted() {
        call = call.root(args.root);
    }
    if operation.of_neighbors() {
        let ring = Grid(vec![ranks]);
        let Grid(widths) = args.grid.as_ref().unwrap_or(&ring);
        let lie = widths
            .iter()
            .try_fold(1u32, |n, width| n.checked_mul(*width));
        if lie != Some(ranks) {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("--grid: there are {ranks} ranks"),
            ));
        }
        call = call.on(neighbors(widths).into());
    }
    let bytes = match operation {
        Operation::Barrier => 0,
        _ => args.bytes as u64,
    };
    let by_state: Vec<&Machine> = states.iter().collect();
    let choice = choose_for_all(&call, &Sizes::Equal(bytes), &by_state, Model::LogGp)
        .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
    Ok(Explained {
        choice,
        states,
        where_,
        from,
        version,
    })
}

/// What a candidate does, played once more.
fn played(found: &Explained, candidate: &Candidate) -> Result<Time> {
    let sizes = Sizes::Equal(found.choice.bytes);
    let machine = match &found.states[0].aside {
        Some(aside) if candidate.through_host => &aside.host,
        _ => &found.states[0],
    };
    simulate(&candidate.plan, &sizes, machine, Model::LogGp)
        .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))
}

/// How many candidates are shown.
const SHOWN: usize = 12;

fn print(found: &Explained) -> Result<()> {
    let choice = &found.choice;
    let call = choice.plan().call();
    println!(
        "{} of {}{} on {}\n",
        call.operation.name(),
        match choice.bytes {
            0 => "no bytes".to_owned(),
            n => format!("{} bytes", size(n as usize)),
        },
        match found.states[0].aside {
            Some(_) => " in memory of devices",
            None => "",
        },
        found.where_
    );
    let mut table = Table::new(2).right(&[1, 2, 3, 4]);
    let head = [
        "plan",
        "segments",
        "predicted",
        "messages",
        "most steps",
        "beside",
    ];
    table.row(head.map(str::to_owned));
    let beside = |candidate: &Candidate| match found.states.len() {
        1 => candidate.ns / choice.ns(),
        _ => candidate.regret,
    };
    for (at, candidate) in choice.ranking.iter().take(SHOWN).enumerate() {
        let busiest = (0..call.size).map(|r| candidate.plan.part(r).steps().len());
        table.row([
            candidate.name(),
            candidate.plan.segments().to_string(),
            time(candidate.ns),
            played(found, candidate)?.messages.to_string(),
            busiest.max().unwrap_or(0).to_string(),
            match at {
                0 => "chosen".into(),
                1 => format!("runner-up, x {:.2}", beside(candidate)),
                _ => format!("x {:.2}", beside(candidate)),
            },
        ]);
    }
    table.print();
    if choice.ranking.len() > SHOWN {
        println!("  ... and {} slower ones", choice.ranking.len() - SHOWN);
    }
    if found.states.len() > 1 {
        println!(
            "  x: the largest ratio to the best of a state; of the chosen one {:.2}",
            choice.ranking[0].regret
        );
    }
    if choice.runner_up().is_none() {
        println!("  no runner-up: nothing else is for this call");
    }
    println!("\nWhy");
    println!("  {}", why(found)?);
    if !choice.left_out.is_empty() {
        println!("\nNot for this call");
        let mut table = Table::new(2);
        for (name, reason) in &choice.left_out {
            table.row([name.clone(), reason.clone()]);
        }
        table.print();
    }
    println!("\nFrom");
    println!("  {}", found.from);
    if let Some(version) = found.version {
        println!("  version {version:016x}");
    }
    Ok(())
}

/// What sets the chosen plan apart from the next, as far as numbers say.
fn why(found: &Explained) -> Result<String> {
    let choice = &found.choice;
    let chosen = played(found, &choice.ranking[0])?;
    let far = |time: &Time| time.bytes.last().copied().unwrap_or(0.0);
    let all = |time: &Time| time.bytes.iter().sum::<f64>();
    let mut text = format!(
        "{}: {} in {} messages of {} in all",
        match found.states.len() {
            1 => "least predicted time",
            _ => "loses least over the states",
        },
        time(choice.ns()),
        chosen.messages,
        amount(all(&chosen)),
    );
    if let Some(next) = choice.runner_up() {
        let other = played(found, next)?;
        text += &format!(
            ";\n  {} takes {} in {} messages of {}",
            next.name(),
            time(next.ns),
            other.messages,
            amount(all(&other)),
        );
        if found.states[0].links.len() > 1 {
            text += &format!(
                ",\n  of which {} go the longest way, of the chosen plan {}",
                amount(far(&other)),
                amount(far(&chosen))
            );
        }
    }
    Ok(text)
}

fn amount(bytes: f64) -> String {
    match bytes {
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e4 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} bytes"),
    }
}

fn to_json(found: &Explained) -> Result<Value> {
    let choice = &found.choice;
    let call = choice.plan().call();
    let mut ranking = Vec::new();
    for candidate in &choice.ranking {
        let time = played(found, candidate)?;
        ranking.push(json!({
            "algorithm": candidate.plan.algorithm().to_string(),
            "through_host": candidate.through_host,
            "segments": candidate.plan.segments(),
            "predicted_ns": candidate.ns,
            "regret": candidate.regret,
            "messages": time.messages,
            "bytes_by_distance": time.bytes,
        }));
    }
    let left_out = choice.left_out.iter();
    Ok(json!({
        "operation": call.operation.name(),
        "bytes": choice.bytes,
        "ranks": call.size,
        "root": call.root,
        "ranking": ranking,
        "left_out": left_out
            .map(|(name, reason)| json!({"algorithm": name, "why": reason}))
            .collect::<Value>(),
        "costs": found.from,
        "version": found.version.map(|v| format!("{v:016x}")),
    }))
}
