//! `osier info`: what this machine offers, what is absent and why.
//!
//! | module | duty |
//! |---|---|
//! | [`probe`] | asks the system |
//! | [`protocols`] | the table "size range -> protocol" |
//! | [`summary`] | one screen: what works here, what is missing and why |
//! | [`table`] | columns that line up |
//!
//! Nothing here is asked before this command is.

pub mod probe;
pub mod protocols;
mod summary;
pub mod table;

use std::process::ExitCode;

use osier::config::{self, KEYS, Variable};
use osier::model::GpuLinks;
use osier_engine::protocol::reach::{Placement, Reach, supported};
use osier_kernels::DeviceInfo;
use osier_kernels::handle::Made;
use serde_json::{Value, json};

use probe::Report;
use table::Table;

const FAILED: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  osier info
      what works here, what is missing and why, on one screen
  osier info --all
      machine, transports, memory of devices, variables and their meaning
  osier info --protocols
      which protocol carries which message, and its predicted time
  osier info --protocols --measure
      measures the machine first, and keeps the result for osier run
  osier info --protocols --json
      the same for programs";

/// Print what this machine offers, and which protocol carries which message
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print all: each transport, memory of devices, variables with default and meaning
    #[arg(long)]
    all: bool,

    /// Print the table \"size range -> protocol\" and the costs behind it
    #[arg(long)]
    protocols: bool,

    /// Measure the costs and keep them in the cache folder; with --protocols
    #[arg(long, requires = "protocols")]
    measure: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints and returns the exit code.
pub fn main(args: &Args) -> ExitCode {
    let result = if args.protocols {
        protocols::print(args.measure, args.json)
    } else {
        print(args);
        Ok(())
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("osier: info: {e}");
            ExitCode::from(FAILED)
        }
    }
}

fn print(args: &Args) {
    let report = Report::of_this_machine();
    if args.json {
        return print_json(&json(&report));
    }
    if !args.all {
        print!("{}", summary::text(&report));
        return;
    }
    let wire = osier_transports::WIRE_VERSION;
    let version = env!("CARGO_PKG_VERSION");
    println!("osier {version}, wire version {wire}\n");
    println!("Machine");
    let mut machine = Table::new(2);
    for (what, value) in &report.machine {
        machine.row([(*what).to_owned(), value.clone()]);
    }
    machine.print();
    println!("\nTransports");
    let mut transports = Table::new(2);
    for t in &report.transports {
        let there = if t.available { "yes" } else { "no" };
        transports.row([t.name.to_owned(), there.to_owned(), t.note.clone()]);
    }
    transports.print();
    println!("\nDevices");
    let mut devices = Table::new(2);
    match &report.devices {
        Ok(found) => {
            for device in found {
                let name = format!("gpu {}", device.ordinal);
                devices.row([name, "yes".to_owned(), probe::describe(device)]);
            }
        }
        Err(why) => devices.row(["gpu".to_owned(), "no".to_owned(), why.clone()]),
    }
    devices.print();
    if let Some(links) = several(&report) {
        println!("\nLinks of devices");
        for line in links.draw().lines() {
            println!("  {line}");
        }
    }
    println!("\nDevice memory of another rank");
    let mut reach = Table::new(2);
    let name = |placement: &Placement| placement.name().to_owned();
    reach.row(
        ["memory".to_owned()]
            .into_iter()
            .chain(Placement::ALL.iter().map(name)),
    );
    for made in Made::ALL {
        let cell = |placement: &Placement| match (supported(made, *placement), placement) {
            (Reach::No(_), Placement::Apart | Placement::DevicesApart) => {
                "through the host".to_owned()
            }
            (Reach::No(_), _) => "in slots".to_owned(),
            (reach, _) => reach.to_string(),
        };
        let cells = Placement::ALL.iter().map(cell);
        // What has no reason of its own is not linked.
        let why = match supported(made, Placement::Device) {
            Reach::No(why) => why.to_owned(),
            _ => String::new(),
        };
        let name = made.name().to_owned();
        reach.row([name].into_iter().chain(cells).chain([why]));
    }
    reach.print();
    println!("\nSystem");
    let mut system = Table::new(2);
    for s in &report.system {
        let there = if s.available { "yes" } else { "no" };
        system.row([s.name.to_owned(), there.to_owned(), s.note.clone()]);
    }
    system.print();
    println!("\nConfiguration");
    let mut variables = Table::new(2);
    variables.row(["variable", "value", "default", "meaning"].map(str::to_owned));
    let settings = config::variables().map(|v| (v, config::value(v.name)));
    let keys = KEYS.iter().map(|v| (v, config::debug_value(v.name)));
    for (v, value) in settings.chain(keys) {
        variables.row([
            v.name.to_owned(),
            value.unwrap_or_else(|| "-".to_owned()),
            v.default.to_owned(),
            v.meaning.to_owned(),
        ]);
    }
    variables.print();
}

fn json(report: &Report) -> Value {
    let entries = |entries: &[probe::Entry]| -> Value {
        entries
            .iter()
            .map(|e| json!({"name": e.name, "available": e.available, "note": e.note}))
            .collect()
    };
    let setting = |v: &Variable, value: Option<String>| {
        json!({
            "name": v.name,
            "value": value,
            "default": v.default,
            "meaning": v.meaning,
        })
    };
    let variables: Value = config::variables()
        .map(|v| setting(v, config::value(v.name)))
        .collect();
    let keys: Value = KEYS
        .iter()
        .map(|v| setting(v, config::debug_value(v.name)))
        .collect();
    let machine: serde_json::Map<String, Value> = report
        .machine
        .iter()
        .map(|(what, value)| ((*what).to_owned(), json!(value)))
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "wire_version": osier_transports::WIRE_VERSION,
        "machine": machine,
        "transports": entries(&report.transports),
        "devices": devices(&report.devices),
        "device_links": device_links(report),
        "device_memory": reach(),
        "system": entries(&report.system),
        "variables": variables,
        "debug_keys": keys,
    })
}

/// How memory of each kind is reached in each placement, or why not.
fn reach() -> Value {
    let cells = |made: Made| -> serde_json::Map<String, Value> {
        let cell = |placement: Placement| {
            let reach = supported(made, placement);
            let there = reach.is_there();
            (
                placement.name().to_owned(),
                json!({"available": there, "note": reach.to_string()}),
            )
        };
        Placement::ALL.into_iter().map(cell).collect()
    };
    let rows = Made::ALL.map(|made| (made.name().to_owned(), json!(cells(made))));
    rows.into_iter().collect::<serde_json::Map<_, _>>().into()
}

/// What lies between devices, where there are several.
fn several(report: &Report) -> Option<GpuLinks> {
    let several = report.devices.as_ref().is_ok_and(|all| all.len() > 1);
    several.then(GpuLinks::here)?
}

/// The words of each device for all, `X` for itself; null where there are not several.
fn device_links(report: &Report) -> Value {
    let Some(links) = several(report) else {
        return Value::Null;
    };
    let rows = links.between.iter();
    let rows = rows.map(|row| row.iter().map(|link| json!(link.to_string())).collect());
    json!({
        "between": rows.collect::<Vec<Value>>(),
        "nvlinks_unknown": links.unknown,
    })
}

/// A list of devices, or an object with the reason.
fn devices(devices: &Result<Vec<DeviceInfo>, String>) -> Value {
    let found = match devices {
        Ok(found) => found,
        Err(why) => return json!({"unavailable": why}),
    };
    let device = |d: &DeviceInfo| {
        json!({
            "ordinal": d.ordinal,
            "name": d.name,
            "pci": d.pci,
            "uuid": d.uuid(),
            "memory_bytes": d.memory_bytes,
            "capability": [d.capability.0, d.capability.1],
            "multiprocessors": d.multiprocessors,
            "pools": d.pools,
            "mapping": d.mapping,
            "descriptors": d.descriptors,
            "managed": d.managed,
            "mps": d.mps,
            "peers": d.peers,
        })
    };
    found.iter().map(device).collect()
}

fn print_json(value: &Value) {
    println!("{value:#}");
}
