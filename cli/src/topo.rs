//! `osier topo`: the machine, ranks on it, and the messages of a collective between
//! them, as text and as a picture.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use osier::model::{Gpu, GpuLinks, Part, Places};
use osier_collectives::{Device, Operation, Plan, Topology, draw_tree, messages, svg};

use crate::collective::{self, LinkSpec, Space, Wanted};
use crate::run;

const USAGE: u8 = 2;
const FAILED: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  osier topo
      packages, memory nodes, caches, cores and GPUs of this machine
  osier topo -n 4
      which processors the ranks of osier run -n 4 would have
  osier topo --topology 4x2x4 --of bcast --bytes 1M
      the plan that is cheapest on 4 nodes of 2 packages of 4 ranks, and its tree
  osier topo --topology 2x2x8 --of allreduce --algorithm ring --svg ring.svg
      a picture of the messages of a ring
  osier topo --topology 2x2x4 --of bcast --bytes 4M --memory device
      of 16 devices, behind 2 switches or sockets of 2 nodes: which plan, and its tree;
      --algorithm 'host copies' draws the one whose leaders keep a copy on the host
  osier topo --topology 1x2x4 --nvlink 0-1:4,2-3:4,4-5:4,6-7:4 --of bcast --bytes 64M \\
      --memory device
      the same where NVLinks join pairs of devices; switch:18 joins all of a node
  osier topo -n 8 --of allreduce --bytes 64M --memory device --svg gpus.svg
      ranks that have the GPUs of this machine by turns, by memory node and PCIe switch

Built with --features hwloc, it draws what hwloc tells, of the machine that HWLOC_XMLFILE
names, too: HWLOC_XMLFILE=node.xml osier topo -n 8 --of bcast --memory device

Costs of a described machine are described, too: --links 160:0.08,280:0.1,1900:0.08
has latency in ns and ns per byte of links within the innermost parts, then across
the parts of each level; what is farther than the last costs as much.";

/// Draw the machine, ranks on it, and what a collective sends between them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ranks on this machine, as osier run would place them
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "topology",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,

    /// How ranks are placed
    #[arg(long, value_enum, value_name = "HOW", requires = "ranks")]
    bind: Option<run::Bind>,

    /// A machine that is not here: nodes, packages, ... and ranks of each, as in 4x2x4
    #[arg(long, value_name = "SHAPE", value_parser = Topology::regular)]
    topology: Option<Topology>,

    /// A collective: bcast, allreduce, ...
    #[arg(long, value_name = "OPERATION", value_parser = collective::operation)]
    of: Option<Operation>,

    /// Its algorithm [default: the cheapest by the costs of the links]
    #[arg(long, value_name = "NAME", requires = "of")]
    algorithm: Option<Wanted>,

    /// Bytes of a contribution, or of the vector
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = bytes)]
    bytes: u64,

    /// Root of the collective
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,

    /// Costs of links, innermost first: LATENCY:PER_BYTE in ns
    #[arg(long, value_name = "LINKS", value_delimiter = ',')]
    links: Vec<LinkSpec>,

    /// Where its buffers are; of devices, each rank has one
    #[arg(
        long,
        value_enum,
        value_name = "WHERE",
        default_value = "host",
        requires = "of"
    )]
    memory: Space,

    /// The same of messages from device to device
    #[arg(long, value_name = "LINKS", value_delimiter = ',')]
    device_links: Vec<LinkSpec>,

    /// NVLinks between devices of each node: pairs and how many, as in 0-1:4,2-3:4, or
    /// switch:18, so many of each into switches
    #[arg(long, value_name = "JOINTS", requires = "topology")]
    nvlink: Option<String>,

    /// Write a picture of ranks and messages
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn bytes(text: &str) -> Result<u64, String> {
    osier::config::parse_bytes(text).map_err(|e| e.to_string())
}

/// Prints and returns the exit code.
pub fn main(args: &Args) -> ExitCode {
    match print(args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err((code, why)) => {
            eprintln!("osier: topo: {why}");
            ExitCode::from(code)
        }
    }
}

fn print(args: &Args) -> Result<String, (u8, String)> {
    let usage = |why: String| (USAGE, why);
    let mut text = String::new();
    let mut devices = Vec::new();
    let topology = match &args.topology {
        Some(described) => {
            let described = collective::joined(described, args.nvlink.as_deref());
            let described = described.map_err(usage)?;
            text += &described.draw();
            if let Some(matrix) = described.draw_device_links() {
                text += "\n";
                text += &matrix;
            }
            described
        }
        None => {
            let machine = Part::machine();
            let ranks = args.ranks.unwrap_or(if args.of.is_some() {
                machine.processors.len() as u32
            } else {
                0
            });
            let bound = places(&machine, ranks, args.bind);
            text += &drawn(&machine, &bound);
            match Part::told_by() {
                "/sys" => {}
                who => {
                    let _ = writeln!(text, "as told by {who}");
                }
            }
            let gpus = machine.all_gpus();
            // One GPU is joined to none.
            let links = match gpus.len() {
                0 | 1 => None,
                _ => GpuLinks::here(),
            };
            if let Some(links) = &links {
                text += "\n";
                text += &links.draw();
            }
            devices = pictured(&gpus, links.as_ref());
            match args.memory {
                Space::Host => Places::of(&machine, &bound).topology(),
                Space::Device => {
                    text += &turns(&gpus, ranks).map_err(|why| (FAILED, why))?;
                    let topology = Places::of_gpus(&gpus, ranks).topology();
                    match &links {
                        Some(links) => {
                            topology.with_device_links(links.of_ranks(ranks).device_links)
                        }
                        None => topology,
                    }
                }
            }
        }
    };
    let mut pairs = Vec::new();
    let mut title = match args.topology {
        Some(_) => format!("{} ranks on a described machine", topology.size()),
        None if Part::told_by() == Part::OTHER => {
            format!("{} ranks on that machine", topology.size())
        }
        None => format!("{} ranks on this machine", topology.size()),
    };
    if let Some(operation) = args.of {
        if topology.size() == 0 || args.root >= topology.size() {
            return Err(usage(format!(
                "--root {}: there are {} ranks",
                args.root,
                topology.size()
            )));
        }
        let asked = (operation, args.root);
        let plan = match &args.algorithm {
            Some(wanted) => plan(asked, wanted, &topology).map_err(usage)?,
            None => {
                let machine = match args.memory {
                    Space::Host => collective::machine(&topology, &args.links),
                    Space::Device => {
                        collective::machine_of_devices(&topology, &args.links, &args.device_links)
                    }
                };
                let choice = collective::chosen(asked, args.bytes, &topology, &machine);
                let choice = choice.map_err(usage)?;
                let _ = write!(text, "\n{choice}");
                choice.plan().clone()
            }
        };
        title = format!("{}, {}: {title}", operation.name(), plan.algorithm());
        let _ = writeln!(text, "\n{title}");
        match draw_tree(&plan) {
            Some(tree) => text += &tree,
            None => text += &lists(&messages(&plan)),
        }
        pairs = messages(&plan);
    }
    if let Some(file) = &args.svg {
        let picture = svg(&topology, &devices, &pairs, &title).map_err(usage)?;
        std::fs::write(file, picture)
            .map_err(|e| (FAILED, format!("cannot write {}: {e}", file.display())))?;
        let _ = writeln!(text, "\n# picture: {}", file.display());
    }
    Ok(text)
}

fn plan(
    (operation, root): (Operation, u32),
    wanted: &Wanted,
    topology: &Topology,
) -> Result<Plan, String> {
    let mut call = osier_collectives::Call::new(operation, topology.size());
    if operation.rooted() {
        call = call.root(root);
    }
    let call = call.requires(osier_collectives::Association::Any);
    Plan::new(call, wanted.on(topology, root), 1).map_err(|e| e.to_string())
}

/// Whom each rank sends to: `0 -> 1 2 4`.
fn lists(messages: &[(u32, u32)]) -> String {
    let mut text = String::new();
    let mut last = None;
    for (from, to) in messages {
        match last == Some(*from) {
            true => {
                let _ = write!(text, " {to}");
            }
            false => {
                let end = if last.is_some() { "\n" } else { "" };
                let _ = write!(text, "{end}{from} -> {to}");
            }
        }
        last = Some(*from);
    }
    text.push('\n');
    text
}

/// The processors of each rank.
fn places(machine: &Part, ranks: u32, bind: Option<run::Bind>) -> Vec<Vec<usize>> {
    let (sets, _) = run::placement(bind, ranks as usize);
    let all = &machine.processors;
    let of = |set: Option<Vec<usize>>| set.unwrap_or_else(|| all.clone());
    sets.into_iter().map(of).collect()
}

/// The machine as an indented tree; ranks stand behind the innermost part that holds
/// them.
fn drawn(machine: &Part, bound: &[Vec<usize>]) -> String {
    let mut text = String::from("machine");
    heading(machine, machine, bound, &mut text);
    for part in &machine.parts {
        draw(part, bound, 1, &mut text);
    }
    text
}

fn draw(part: &Part, bound: &[Vec<usize>], depth: usize, text: &mut String) {
    // A core of one thread is drawn as that.
    if let ("core", [one]) = (part.level, &part.processors[..]) {
        let _ = write!(
            text,
            "{}core {} (pu {one})",
            "  ".repeat(depth),
            part.number
        );
        heading(part, part, bound, text);
        return;
    }
    let _ = write!(text, "{}{} {}", "  ".repeat(depth), part.level, part.number);
    heading(part, part, bound, text);
    for gpu in &part.gpus {
        let _ = writeln!(text, "{}{}", "  ".repeat(depth + 1), told(gpu));
    }
    for inner in &part.parts {
        draw(inner, bound, depth + 1, text);
    }
}

/// Ends a part's line with its ranks; GPUs of the machine follow.
fn heading(part: &Part, whole: &Part, bound: &[Vec<usize>], text: &mut String) {
    let inside = |part: &Part, cpus: &[usize]| cpus.iter().all(|c| part.processors.contains(c));
    let one_thread = part.level == "core" && part.processors.len() == 1;
    let here: Vec<String> = bound
        .iter()
        .enumerate()
        .filter(|(_, cpus)| inside(part, cpus))
        .filter(|(_, cpus)| one_thread || !part.parts.iter().any(|p| inside(p, cpus)))
        .map(|(rank, _)| rank.to_string())
        .collect();
    if !here.is_empty() {
        let s = if here.len() == 1 { "" } else { "s" };
        let _ = write!(text, "   rank{s} {}", here.join(","));
    }
    text.push('\n');
    if whole.level == "machine" {
        for gpu in &whole.gpus {
            let _ = writeln!(text, "  {}", told(gpu));
        }
    }
}

/// Which GPU each rank has.
fn turns(gpus: &[&Gpu], ranks: u32) -> Result<String, String> {
    if gpus.is_empty() {
        return Err("no GPU is here (hint: --topology describes a machine that has some)".into());
    }
    let mut text = String::new();
    for (at, gpu) in gpus.iter().enumerate() {
        let own = (at as u32..ranks).step_by(gpus.len());
        let own: Vec<String> = own.map(|rank| rank.to_string()).collect();
        if !own.is_empty() {
            let s = if own.len() == 1 { "" } else { "s" };
            let _ = writeln!(text, "gpu {}: rank{s} {}", gpu.ordinal, own.join(","));
        }
    }
    Ok(text)
}

/// GPUs as a picture has them.
fn pictured(gpus: &[&Gpu], links: Option<&GpuLinks>) -> Vec<Device> {
    let place = |ordinal: &i32| gpus.iter().position(|gpu| gpu.ordinal == *ordinal);
    // Both lists are by number.
    let device_link = |at: usize, other: usize| {
        let device_link = links.filter(|l| l.gpus.len() == gpus.len())?;
        Some((other, device_link.device_link(at, other)?.to_string()))
    };
    let device = |(at, gpu): (usize, &&Gpu)| Device {
        links: (0..gpus.len())
            .filter_map(|other| device_link(at, other))
            .collect(),
        name: format!("gpu {}", gpu.ordinal),
        behind: match (&gpu.bridges[..], gpu.node) {
            ([.., upstream, _], _) if gpu.bridges.len() > 2 => format!("switch {upstream}"),
            (_, Some(node)) => format!("numanode {node}"),
            (_, None) => "machine".into(),
        },
        reaches: gpu.peers.iter().filter_map(place).collect(),
    };
    gpus.iter().enumerate().map(device).collect()
}

fn told(gpu: &Gpu) -> String {
    let mut text = format!("gpu {} {}", gpu.ordinal, gpu.name);
    if let Some(pci) = &gpu.pci {
        let _ = write!(text, " at {pci}");
    }
    if !gpu.bridges.is_empty() {
        let _ = write!(text, " behind {}", gpu.bridges.join(", "));
    }
    if !gpu.peers.is_empty() {
        let peers: Vec<String> = gpu.peers.iter().map(ToString::to_string).collect();
        let _ = write!(text, ", reaches gpu {}", peers.join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(number: usize) -> Part {
        Part {
            level: "core",
            number: number as u32,
            processors: vec![number],
            parts: vec![Part {
                level: "pu",
                number: number as u32,
                processors: vec![number],
                ..Part::default()
            }],
            ..Part::default()
        }
    }

    fn machine() -> Part {
        let package = |first: usize| Part {
            level: "package",
            number: first as u32,
            processors: vec![first, first + 1],
            parts: vec![core(first), core(first + 1)],
            ..Part::default()
        };
        Part {
            level: "machine",
            processors: (0..4).collect(),
            parts: vec![package(0), package(2)],
            ..Part::default()
        }
    }

    #[test]
    fn ranks_stand_where_all_their_processors_are() {
        let bound = vec![vec![0, 1], vec![2], vec![0, 1, 2, 3]];
        let text = drawn(&machine(), &bound);
        assert_eq!(
            text,
            "machine   rank 2\n  package 0   rank 0\n    core 0 (pu 0)\n    core 1 (pu 1)\n  \
             package 2\n    core 2 (pu 2)   rank 1\n    core 3 (pu 3)\n"
        );
    }

    #[test]
    fn ranks_have_places() {
        let bound = vec![vec![0], vec![1], vec![2], vec![3]];
        let topology = Places::of(&machine(), &bound).topology();
        assert_eq!(topology.levels(), ["package"]);
        assert_eq!(
            topology.draw(),
            "package 0  ranks 0-1\npackage 2  ranks 2-3\n"
        );
    }

    #[test]
    fn messages_are_listed_by_sender() {
        assert_eq!(lists(&[(0, 1), (0, 2), (1, 2)]), "0 -> 1 2\n1 -> 2\n");
    }
}
