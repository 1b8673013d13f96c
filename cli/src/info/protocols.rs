//! Protocols by size and memory, with predicted time.

use osier::model::{self, Agreed, Cached, CostSet, NOT_PERMITTED_NS, Origin};
use osier::{Error, Result, Universe};
use osier_engine::protocol::Protocol;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::device::DeviceCosts;
use osier_engine::protocol::select::{Memory, Selection};
use osier_transports::shm::{Job, JobOptions, NOTE_BYTES};
use serde_json::{Value, json};

use super::table::Table;

const MEMORIES: [(Memory, &str, &str); 3] = [
    (
        Memory::Private,
        "private",
        "a layout with gaps, or memory that no peer can read",
    ),
    (Memory::Plain, "plain", "contiguous memory of the process"),
    (
        Memory::Heap,
        "heap",
        "contiguous memory of Osier's allocator",
    ),
];
/// The last range has no end; its time is shown here instead.
const LAST_BYTES: usize = 16 << 20;

/// One row of a table.
struct Range {
    memory: &'static str,
    first: usize,
    last: Option<usize>,
    protocol: Protocol,
    first_ns: f64,
    last_ns: f64,
}

/// Prints the tables, after a measurement if wanted.
pub fn print(measure: bool, as_json: bool) -> Result<()> {
    let (cached, kept) = if measure {
        measured()?
    } else {
        (model::cached()?, None)
    };
    let selection = selection(&cached)?;
    let ranges = ranges(&selection);
    if as_json {
        super::print_json(&to_json(&cached, &ranges));
        return Ok(());
    }
    print_costs(&cached.set.costs);
    println!("  {}", origin(&cached));
    for line in crate::model::states(&crate::model::lines_ns(&cached))
        .iter()
        .flat_map(|t| t.lines())
    {
        println!("  {line}");
    }
    if let Some(note) = kept {
        println!("  {note}");
    }
    for (memory, name, meaning) in MEMORIES {
        println!("\n{name}: {meaning}");
        let mut table = Table::new(2).right(&[0, 1, 3, 4]);
        table.row(["from", "to", "protocol", "predicted at from", "at to"].map(str::to_owned));
        for r in ranges.iter().filter(|r| r.memory == name) {
            let last = match r.last {
                Some(last) => size(last),
                None => "...".to_owned(),
            };
            let at_last = match r.last {
                Some(_) => time(r.last_ns),
                None => format!("{} at {}", time(r.last_ns), size(last_bytes(r.first))),
            };
            table.row([
                size(r.first),
                last,
                r.protocol.to_string(),
                time(r.first_ns),
                at_last,
            ]);
        }
        table.print();
        if let (Memory::Plain, Some(least)) = (memory, selection.tried_min()) {
            println!(
                "  from {} on, receivers of announced messages time both",
                size(least)
            );
            println!("  fragments and the kernel's copy now and then, and take the quicker one");
        }
    }
    Ok(())
}

/// Measures; keeps the result, or says why not.
fn measured() -> Result<(Cached, Option<String>)> {
    let before = model::line_ns();
    let mut costs = osier::measure::measure()?;
    costs.device = device_costs();
    let line_ns = match (before, model::line_ns()) {
        (Some(before), Some(after)) if model::alike(before, after) => Some(after),
        _ => None,
    };
    // What calls cost at this distance, if it was measured.
    let known = model::cached()?;
    let mut known = std::iter::once(known.set).chain(known.others);
    let same = known.find(|set| line_ns.is_none_or(|line_ns| set.is_at(line_ns)));
    costs.uses = same.as_ref().and_then(|set| set.costs.uses);
    let set = CostSet::now(line_ns, costs, same.and_then(|set| set.calls));
    let (origin, note) = match model::cache_file() {
        None => (
            Origin::Default,
            Some("not kept: neither XDG_CACHE_HOME nor HOME is set".to_owned()),
        ),
        Some(file) => match model::store(&file, set.clone()) {
            Ok(()) => (Origin::Cache(file), overruled()),
            Err(e) => (Origin::Default, Some(format!("not kept: {e}"))),
        },
    };
    let cached = Cached {
        set: CostSet {
            date: Some("now".to_owned()),
            ..set
        },
        others: Vec::new(),
        refused: None,
        origin,
    };
    Ok((cached, note))
}

/// Costs of the first device, if it is a real one.
pub fn device_costs() -> Option<DeviceCosts> {
    let devices = osier_kernels::devices().ok()?;
    let first = devices.first()?;
    if super::probe::is_emulated(first) {
        println!("gpu 0 is emulated, and its times say nothing: not measured\n");
        return None;
    }
    let context = osier_kernels::Context::new(first.ordinal).ok()?;
    match osier::measure::device(&context) {
        Ok(costs) => Some(costs),
        Err(e) => {
            eprintln!("osier: info: gpu 0 was not measured: {e}");
            None
        }
    }
}

fn overruled() -> Option<String> {
    let file = osier::config::path("OSIER_COSTS")?;
    Some(format!(
        "OSIER_COSTS={} is set: osier run goes on using that file",
        file.display()
    ))
}

/// As a rank of a job with these costs has it.
fn selection(cached: &Cached) -> Result<Selection> {
    let job = Job::create(&JobOptions {
        ranks: 1,
        limit_bytes: None,
    })
    .map_err(Error::from)?;
    let agreed = Agreed::of(cached.clone(), None);
    job.set_note(&agreed.note(NOTE_BYTES));
    let universe = Universe::join(&job, 0)?;
    Ok(universe.selection().clone())
}

fn last_bytes(first: usize) -> usize {
    LAST_BYTES.max(first.saturating_mul(2))
}

fn ranges(selection: &Selection) -> Vec<Range> {
    let mut all = Vec::new();
    for (memory, name, _) in MEMORIES {
        for (first, last, protocol) in selection.table(memory) {
            let end = last.unwrap_or_else(|| last_bytes(first));
            all.push(Range {
                memory: name,
                first,
                last,
                protocol,
                first_ns: selection.predicted_ns(first, protocol),
                last_ns: selection.predicted_ns(end, protocol),
            });
        }
    }
    all
}

fn print_costs(costs: &LinkCosts) {
    println!("Costs of a link");
    let mut table = Table::new(2).right(&[1]);
    let mut row = |what: &str, value: String, unit: &str| {
        table.row([what.to_owned(), value, unit.to_owned()]);
    };
    row("latency", format!("{:.1}", costs.latency_ns), "ns one way");
    row(
        "overhead",
        format!("{:.1}", costs.overhead_ns),
        "ns a fragment",
    );
    let rate = |ns_per_byte: f64| format!("ns a byte ({:.1} GB/s)", 1.0 / ns_per_byte);
    let copy = costs.copy_ns_per_byte;
    row("copy", format!("{copy:.4}"), &rate(copy));
    let lines = if costs.leaves_lines { "left" } else { "taken" };
    row("lines", lines.to_owned(), "by who has read them");
    let mapped = costs.mapped_ns_per_byte;
    row("mapped", format!("{mapped:.4}"), &rate(mapped));
    if costs.attach_call_ns >= NOT_PERMITTED_NS {
        row("attach", "-".to_owned(), "not permitted (see osier info)");
    } else {
        let each = costs.attach_ns_per_byte;
        row(
            "attach",
            format!("{:.0}", costs.attach_call_ns),
            "ns a call",
        );
        row("", format!("{each:.4}"), &rate(each));
    }
    table.print();
    print_device(costs);
}

fn print_device(costs: &LinkCosts) {
    let d = costs.device.unwrap_or_default();
    println!("Costs of a device");
    let mut table = Table::new(2).right(&[1]);
    let mut row = |what: &str, value: f64, unit: &str| {
        let value = match unit {
            "ns" => format!("{value:.0}"),
            _ => format!("{value:.5}"),
        };
        let rate = match unit {
            "ns" => "ns until its end is seen".to_owned(),
            _ => format!("ns a byte ({:.1} GB/s)", 1.0 / value.parse().unwrap_or(1.0)),
        };
        table.row([what.to_owned(), value, rate]);
    };
    row("kernel", d.launch_ns, "ns");
    row("copy", d.copy_ns, "ns");
    row("pack, one thread block", d.block_ns_per_byte, "rate");
    row("pack, one run", d.pack_ns_per_byte[0], "rate");
    row("pack, equal blocks", d.pack_ns_per_byte[1], "rate");
    row("pack, listed blocks", d.pack_ns_per_byte[2], "rate");
    row("to the host", d.to_host_ns_per_byte, "rate");
    row("from the host", d.to_device_ns_per_byte, "rate");
    row("BAR1 window, read", d.bar1.read_ns, "ns");
    row("", d.bar1.read_ns_per_byte, "rate");
    row("BAR1 window, write", d.bar1.write_ns, "ns");
    row("", d.bar1.write_ns_per_byte, "rate");
    table.print();
    if costs.device.is_none() {
        println!("  built in, estimated from data sheets: no device was measured");
    }
}

pub fn origin(cached: &Cached) -> String {
    let date = match &cached.set.date {
        Some(date) if date == "now" => ", measured now".to_owned(),
        Some(date) => format!(", measured {date}"),
        None => String::new(),
    };
    match &cached.origin {
        Origin::Variable(file) => format!("from OSIER_COSTS={}{date}", file.display()),
        Origin::Cache(file) => format!("from {}{date}", file.display()),
        Origin::Default if cached.set.date.is_some() => format!("from this run{date}"),
        Origin::Default => "built in, not of this machine (hint: osier model measure)".to_owned(),
    }
}

fn to_json(cached: &Cached, ranges: &[Range]) -> Value {
    let (from, file) = match &cached.origin {
        Origin::Variable(file) => ("OSIER_COSTS", Some(file)),
        Origin::Cache(file) => ("cache", Some(file)),
        Origin::Default if cached.set.date.is_some() => ("measured", None),
        Origin::Default => ("default", None),
    };
    let ranges: Value = ranges
        .iter()
        .map(|r| {
            json!({
                "memory": r.memory,
                "first_bytes": r.first,
                "last_bytes": r.last,
                "protocol": r.protocol.to_string(),
                "predicted_first_ns": r.first_ns,
                "predicted_last_ns": r.last.map(|_| r.last_ns),
            })
        })
        .collect();
    json!({
        "costs": cached.set.costs,
        "line_ns": cached.set.line_ns,
        "origin": {"from": from, "file": file, "date": cached.set.date},
        "protocols": ranges,
    })
}

pub fn size(bytes: usize) -> String {
    match bytes {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}
