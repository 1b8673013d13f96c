//! `osier bench bcast --topology 4x2x4`: collectives on a machine that is not here, played by
//! the engine and the executor on the simulated network. Times are virtual: what links take,
//! and nothing for what processors do.

mod play;

use std::sync::Arc;

use osier_collectives::{Association, Call, Model, Operation, Sizes, Topology, choose};

use self::play::emulated_ns;
use super::options::Plan;
use super::report::{Record, Records, number};
use super::{Failure, Result};
use crate::collective::{self, LinkSpec};

/// Threads of one process stand for no more ranks than these: each has its own engine.
const MOST_RANKS: u32 = 512;

/// Measures all sizes and prints them.
pub fn run(plan: &Plan, topology: &Topology, links: &[LinkSpec]) -> Result<()> {
    let bench = plan.bench;
    let Some(operation) = bench.operation() else {
        return Err(Failure::usage(
            "--topology is about collectives (hint: osier bench allreduce --topology 4x2x4)",
        ));
    };
    if topology.size() < 2 || topology.size() > MOST_RANKS {
        return Err(Failure::usage(format!(
            "--topology: 2 to {MOST_RANKS} ranks are played, not {}",
            topology.size()
        )));
    }
    let (known, machine) = collective::emulated(topology, links);
    let machine = Arc::new(machine);
    println!(
        "# osier {} on an emulated machine: {} ranks, simulated network, virtual time; \
         processors take none",
        bench.name(),
        topology.size()
    );
    println!(
        "{:<12}{:>12}{:>12}{:>12}  Plan",
        "# Size", "Time (us)", "Predicted", "x Predicted"
    );
    let sizes: Vec<usize> = match operation {
        Operation::Barrier => vec![0],
        _ => plan.curves[0].shapes.iter().map(|s| s.bytes()).collect(),
    };
    let mut records = Records::new(plan.json.as_ref());
    for asked in sizes {
        let bytes = match operation.reduces() {
            true => asked.next_multiple_of(8).max(8),
            false => asked,
        };
        let call = Call::new(operation, topology.size()).requires(Association::Any);
        let choice = choose(&call, &Sizes::Equal(bytes as u64), &known, Model::LogGp)
            .map_err(|e| Failure::failed(e.to_string()))?;
        // The best alone, or all that are near to it.
        let shown = match plan.each {
            true => choice.ranking.len(),
            false => 1,
        };
        for candidate in &choice.ranking[..shown] {
            let (algorithm, segments) = (candidate.plan.algorithm(), candidate.plan.segments());
            let ns = emulated_ns(&machine, operation, bytes, (algorithm, segments))? as f64;
            let name = match segments {
                1 => algorithm.to_string(),
                n => format!("{algorithm}, {n} segments"),
            };
            println!(
                "{bytes:<12}{:>12}{:>12}{:>12}  {name}",
                number(ns / 1e3),
                number(candidate.ns / 1e3),
                number(ns / candidate.ns),
            );
            records.push(Record {
                transport: "sim".into(),
                ranks: topology.size() as usize,
                unit: "us".into(),
                value: ns / 1e3,
                ..Record::new(format!("{}-emulated", bench.name()), name, bytes)
            })?;
        }
    }
    Ok(())
}
