//! `osier explain`: how a message would travel, an access to a window go, or a collective be
//! done, and why.

mod calls;
mod rma;

use std::process::ExitCode;

use osier::Result;
use osier::config;
use osier::model::{self, Cached, Origin};
use osier_engine::protocol::Protocol;
use osier_engine::protocol::device::{
    Class, DeviceCosts, End, LEAST_DEVICE_SLOT_BYTES, Means, Move, Predicted, Space, Turns,
};
use osier_engine::protocol::reach::Placement;
use osier_engine::protocol::select::{
    AT_ONCE_BYTES, Able, Candidate, DevicePair, Memory, Message, Rules,
};
use osier_engine::protocol::states;
use osier_engine::protocol::uses::Use;
use osier_kernels::handle::Made;
use osier_transports::delay::Delay;
use serde_json::{Value, json};

use crate::bench::layout::Pattern;
use crate::bench::parse_size;
use crate::info::probe;
use crate::info::protocols::{origin, size, time};
use crate::info::table::Table;

const FAILED: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  osier explain send --layout vector:64:128 --bytes 4M --from device --to device
      a message with gaps between two processes on one GPU
  osier explain send --bytes 8 --from device --to host
      a short one to the host's memory
  osier explain send --layout face:512:2 --to-layout contiguous --bytes 2M --placement gpus
      a face of a grid on one GPU to a run of bytes on another
  osier explain send --layout vector:64:128 --bytes 4M --memory pool --placement linked
      from memory that no other process opens to one on a linked GPU
  osier explain send --layout triangle:4K --bytes 64M --placement process --json
      between ranks of one process, for programs";

/// What is explained.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Send(Args),
    Rma(rma::Args),
    #[command(flatten)]
    Call(calls::Command),
}

/// Print which protocol moves a message, its pieces, and what it is expected to take,
/// beside the other candidates
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Layout of the sender's buffer: contiguous, vector:BLOCK:STRIDE, indexed[:SEED],
    /// triangle:N or face:N:AXIS
    #[arg(long, value_name = "SPEC", default_value = "contiguous")]
    layout: Pattern,

    /// Layout of the receiver's, if it is another
    #[arg(long, value_name = "SPEC")]
    to_layout: Option<Pattern>,

    /// Size of the message, such as 8, 64K or 4M
    #[arg(long, value_name = "N", value_parser = parse_size)]
    bytes: usize,

    /// Where it is sent from
    #[arg(long, value_enum, default_value = "device")]
    from: Where,

    /// Where it is received
    #[arg(long, value_enum, default_value = "device")]
    to: Where,

    /// How the sender's device memory was allocated
    #[arg(long, value_enum, default_value = "plain")]
    memory: Kind,

    /// How the receiver's was, if otherwise
    #[arg(long, value_enum)]
    to_memory: Option<Kind>,

    /// Where the two ranks are
    #[arg(long, value_enum, default_value = "gpu")]
    placement: Ranks,

    /// Send mode: a standard send of a short message waits for no receive
    #[arg(long, value_enum, default_value = "standard")]
    mode: Mode,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Over when its memory is free again
    Standard,
    /// Over when a receive has met it
    Synchronous,
    /// Its receive is posted
    Ready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    /// Memory of the host
    Host,
    /// Memory of the host that is handed over as a device's
    Pinned,
    /// Memory of a device
    Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Ranks {
    /// Threads of one process, on one GPU
    Process,
    /// Threads of one process with a GPU each, which are linked
    Devices,
    /// Two processes on one GPU
    Gpu,
    /// Two processes with a GPU each, which are linked
    Linked,
    /// Two processes with a GPU each, which are not
    Gpus,
}

/// How a device's memory was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// By itself, as cudaMalloc does
    Plain,
    /// From the device's pool, as cudaMallocAsync does: nobody else opens it
    Pool,
    /// From a pool that other processes open
    Exportable,
    /// Mapped physical memory
    Mapped,
    /// Managed memory
    Managed,
}

impl Kind {
    fn made(self) -> Made {
        match self {
            Kind::Plain => Made::Plain,
            Kind::Pool => Made::Pool,
            Kind::Exportable => Made::SharedPool,
            Kind::Mapped => Made::Mapped,
            Kind::Managed => Made::Managed,
        }
    }
}

impl Where {
    fn space(self) -> Space {
        match self {
            Where::Host => Space::Host,
            Where::Pinned => Space::Pinned,
            Where::Device => Space::Device,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Where::Host => "host",
            Where::Pinned => "pinned",
            Where::Device => "device",
        }
    }
}

impl Ranks {
    fn placement(self) -> Placement {
        match self {
            Ranks::Process => Placement::Process,
            Ranks::Devices => Placement::Devices,
            Ranks::Gpu => Placement::Device,
            Ranks::Linked => Placement::Linked,
            Ranks::Gpus => Placement::Apart,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Ranks::Process => "ranks of one process on one GPU",
            Ranks::Devices => "ranks of one process with linked GPUs",
            Ranks::Gpu => "two processes on one GPU",
            Ranks::Linked => "two processes with linked GPUs",
            Ranks::Gpus => "two processes with a GPU each",
        }
    }
}

/// Prints and returns the exit code.
pub fn main(command: &Command) -> ExitCode {
    let explained = match command {
        Command::Send(args) => explain(args),
        Command::Rma(args) => rma::explain(args),
        Command::Call(command) => calls::explain(command),
    };
    match explained {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("osier: explain: {e}");
            ExitCode::from(FAILED)
        }
    }
}

/// What was found out.
struct Explained {
    bytes: usize,
    /// The cheapest first.
    ranking: Vec<Predicted>,
    /// What does not carry this message, what it would take, and why.
    others: Vec<(String, Option<f64>, String)>,
    /// What moves a message that goes at once, at either end.
    means: (Means, Means),
    cached: Cached,
    blocks: u32,
    /// Of messages between processes, which no prediction has.
    delay: Option<Delay>,
}

fn explain(args: &Args) -> Result<()> {
    let to_layout = args.to_layout.as_ref().unwrap_or(&args.layout);
    let end = |space: Where, pattern: &Pattern| -> Result<(End, usize)> {
        let shape = pattern.shape(args.bytes)?;
        let end = End {
            space: space.space(),
            class: Class::of(&shape.layout, 1),
        };
        Ok((end, shape.bytes()))
    };
    let ((from, bytes), (to, _)) = (end(args.from, &args.layout)?, end(args.to, to_layout)?);
    let to_memory = args.to_memory.unwrap_or(args.memory);
    let made = |space: Where, kind: Kind| match space {
        Where::Device => kind.made(),
        _ => Made::Pinned,
    };
    let memory = (made(args.from, args.memory), made(args.to, to_memory));
    let explained = predict(
        (from, to),
        memory,
        (bytes, args.mode),
        args.placement.placement(),
    )?;
    match args.json {
        true => println!("{:#}", to_json(args, &explained)),
        false => print(args, to_layout, &explained),
    }
    Ok(())
}

fn predict(
    (from, to): (End, End),
    (sent, received): (Made, Made),
    (bytes, mode): (usize, Mode),
    placement: Placement,
) -> Result<Explained> {
    let cached = model::cached()?;
    let mut rules = Rules::new(&cached.set.costs, AT_ONCE_BYTES);
    rules.pipelining = config::pipeline()?;
    rules.device_eager_bytes = config::device_eager()?.unwrap_or(rules.device_eager_bytes);
    let limits = &mut rules.model.limits;
    limits.memory = limits.memory.min(config::pinned_limit()? / 4);
    // Of the device that is there; else of one as the built-in costs have it.
    let devices = osier_kernels::devices().unwrap_or_default();
    let device = devices.first().cloned();
    let processors = device
        .as_ref()
        .map_or(132, |d| d.multiprocessors.max(1) as u32);
    limits.blocks = match config::pack_multiprocessors()? {
        Some(share) => share.of(processors),
        None => processors * 8,
    };
    let slots = config::device_slots()?;
    let (least, most) = (2 * LEAST_DEVICE_SLOT_BYTES, limits.device_memory);
    limits.device_memory = (slots / 4).max(least).min(most);
    let blocks = limits.blocks;
    // Between processes nothing is shared then.
    let delay = config::delay()?.filter(|_| !placement.is_one_process());
    let shares = delay.is_none();
    let devices = shares && from.space != Space::Host && to.space != Space::Host;
    let message = Message {
        memory: match from.class {
            Class::Run if shares => Memory::Plain,
            _ => Memory::Private,
        },
        shares_host: shares,
        pair: devices.then_some(DevicePair {
            from: sent,
            to: Some(received),
            // From rank 0 to rank 1.
            turns: match device.as_ref().is_some_and(|device| !device.mps) {
                true if placement == Placement::Device => Turns::of(0, 1),
                _ => Turns::None,
            },
            ..DevicePair::opened(placement)
        }),
        // A host's send does not know that a device receives it.
        waits: mode != Mode::Standard && from.space != Space::Host,
        offered: devices && !placement.is_one_process(),
        bar1_windows: match probe::gdrcopy().available {
            true => (sent == Made::Plain, received == Made::Plain),
            false => (false, false),
        },
        ..Message::between(from, to, bytes)
    };
    let candidates = rules.candidates(&message);
    let of = |protocol: Protocol| -> Option<&Candidate> {
        candidates.iter().find(|one| one.protocol == protocol)
    };
    let ranking = rules.ranking(&message);
    let ranking = ranking
        .iter()
        .filter_map(|protocol| of(protocol)?.predicted);
    let mut ranking: Vec<Predicted> = ranking.collect();
    // Messages of the host's memory go by what loses least over all states and uses.
    if from.space == Space::Host && to.space == Space::Host {
        let sets = std::iter::once(&cached.set).chain(&cached.others);
        let by_state = sets.map(|set| {
            let mut rules = rules;
            rules.model.link = set.costs;
            rules.in_use = set.costs.uses.map(|_| Use::Posted);
            rules
        });
        let by_state: Vec<Rules> = by_state.flat_map(Rules::by_use).collect();
        let chosen = states::choose(&by_state, &message);
        let at = ranking.iter().position(|one| Some(one.protocol) == chosen);
        if let Some(at) = at {
            ranking[..=at].rotate_right(1);
        }
    }
    let others = candidates.iter().filter_map(|one| match one.able {
        Able::No(why) => {
            let ns = one.predicted.map(|predicted| predicted.ns);
            Some((one.protocol.to_string(), ns, why.to_owned()))
        }
        Able::Yes | Able::Always => None,
    });
    let mut others: Vec<_> = others.collect();
    let short = rules.able(Protocol::Eager, &message);
    if !matches!(short, Able::No(_)) && !probe::gdrcopy().available {
        others.push(("BAR1 window (gdrcopy)".into(), None, probe::gdrcopy().note));
    }
    let turns = message.pair.is_some_and(|pair| pair.turns.are_taken());
    let means = (
        rules
            .model
            .means(from, Move::Fill, bytes, (message.bar1_windows.0, turns))
            .0,
        rules
            .model
            .means(to, Move::Empty, bytes, (message.bar1_windows.1, turns))
            .0,
    );
    Ok(Explained {
        bytes,
        means,
        ranking,
        others,
        cached,
        blocks,
        delay,
    })
}

fn grid(blocks: u32) -> String {
    match blocks {
        0 => "-".into(),
        n => n.to_string(),
    }
}

fn measured(cached: &Cached) -> (String, String) {
    let link = origin(cached);
    let device = match (cached.set.costs.device, &cached.origin) {
        (Some(_), _) => format!("measured, {link}"),
        (None, Origin::Default) => "built in, estimated from data sheets".into(),
        (None, _) => "built in, estimated from data sheets: no device was measured".into(),
    };
    (link, device)
}

fn print(args: &Args, to_layout: &Pattern, found: &Explained) {
    println!(
        "{} bytes, {} in {} memory -> {} in {} memory, {}\n",
        found.bytes,
        args.layout,
        args.from.name(),
        to_layout,
        args.to.name(),
        args.placement.name(),
    );
    let mut table = Table::new(2).right(&[1, 2, 3, 4, 5, 6]);
    let head = [
        "protocol",
        "piece",
        "depth",
        "pack blocks",
        "unpack blocks",
        "predicted",
        "beside",
    ];
    table.row(head.map(str::to_owned));
    let best = found.ranking.first().map_or(f64::NAN, |best| best.ns);
    for (at, p) in found.ranking.iter().enumerate() {
        let name = match p.protocol {
            Protocol::Eager => format!("{} ({}, {})", p.protocol, found.means.0, found.means.1),
            protocol => protocol.to_string(),
        };
        table.row([
            name,
            size(p.pipeline.fragment.min(found.bytes)),
            p.pipeline.depth.to_string(),
            grid(p.grids.0),
            grid(p.grids.1),
            time(p.ns),
            match at {
                0 => "chosen".into(),
                1 => format!("runner-up, x {:.2}", p.ns / best),
                _ => format!("x {:.2}", p.ns / best),
            },
        ]);
    }
    table.print();
    if found.ranking.len() == 1 {
        println!("  no runner-up: nothing else may carry it");
    }
    println!("\nNot for this message");
    let mut table = Table::new(2).right(&[1]);
    for (name, ns, why) in &found.others {
        let ns = ns.map_or_else(|| "-".into(), time);
        table.row([name.clone(), ns, why.clone()]);
    }
    table.print();
    let (link, device) = measured(&found.cached);
    println!("\nFrom");
    let mut table = Table::new(2);
    table.row(["costs of the link".into(), link]);
    let states = crate::model::states(&crate::model::lines_ns(&found.cached));
    for line in states.iter().flat_map(|text| text.lines()) {
        table.row([String::new(), line.to_owned()]);
    }
    table.row(["costs of the device".into(), device]);
    if let Some(delay) = found.delay {
        let text = format!("no prediction has the {delay} that each message takes longer");
        table.row(["OSIER_DELAY".into(), text]);
        table.row([String::new(), "jobs choose with its latency".into()]);
    }
    let share = match config::debug_value("pack-multiprocessors") {
        Some(text) => format!(" (OSIER_DEBUG=pack-multiprocessors={text})"),
        None => String::new(),
    };
    table.row([
        "thread blocks".into(),
        format!("at most {}{share}", found.blocks),
    ]);
    table.print();
}

fn to_json(args: &Args, found: &Explained) -> Value {
    let ranking: Value = found
        .ranking
        .iter()
        .map(|p| {
            json!({
                "protocol": p.protocol.to_string(),
                "fragment_bytes": p.pipeline.fragment,
                "depth": p.pipeline.depth,
                "pack_blocks": p.grids.0,
                "unpack_blocks": p.grids.1,
                "predicted_ns": p.ns,
            })
        })
        .collect();
    let (link, device) = measured(&found.cached);
    let costs: DeviceCosts = found.cached.set.costs.device.unwrap_or_default();
    json!({
        "bytes": found.bytes,
        "layout": args.layout.to_string(),
        "to_layout": args.to_layout.as_ref().unwrap_or(&args.layout).to_string(),
        "from": args.from.name(),
        "to": args.to.name(),
        "placement": args.placement.name(),
        "mode": format!("{:?}", args.mode).to_lowercase(),
        "at_once_by": [found.means.0.to_string(), found.means.1.to_string()],
        "ranking": ranking,
        "others": found.others.iter().map(|(name, ns, why)| json!({"protocol": name, "predicted_ns": ns, "why": why})).collect::<Value>(),
        "link": {"costs": found.cached.set.costs, "from": link},
        "device": {"costs": costs, "from": device},
        "most_blocks": found.blocks,
    })
}
