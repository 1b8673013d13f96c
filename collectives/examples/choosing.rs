//! How long it takes to choose a plan: `cargo run --release -p osier-collectives --example
//! choosing [most ranks [fewest]]`.

use osier_collectives::{Association, Call, Link, Machine, Model, Operation, Sizes, choose};
use std::time::Instant;

/// Nodes of two packages; below 32 ranks, one node.
fn machine(ranks: u32) -> Machine {
    let level = |latency_ns, overhead_ns, per_byte_ns, shared_per_byte_ns| Link {
        latency_ns,
        overhead_ns,
        gap_ns: 40.0,
        per_byte_ns,
        shared_per_byte_ns,
        ..Link::default()
    };
    let links = vec![
        level(80.0, 40.0, 0.08, 0.0),
        level(200.0, 40.0, 0.1, 0.02),
        level(1500.0, 200.0, 0.08, 0.04),
    ];
    let package = (ranks / 2).clamp(1, 16);
    let shape = [ranks.div_ceil(2 * package), 2, package];
    let mut machine = Machine::regular(&shape, links, |r| r);
    machine.combine = 0.1.into();
    machine.copy = 0.05.into();
    machine.eager_bytes = 8192.0;
    machine
}

fn main() {
    let most = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let most: u32 = most.unwrap_or(256);
    let least = std::env::args().nth(2).and_then(|n| n.parse().ok());
    let mut ranks: u32 = least.unwrap_or(2);
    while ranks <= most {
        let machine = machine(ranks);
        print!("{ranks:>6} ranks");
        for (operation, bytes) in [
            (Operation::Barrier, 0),
            (Operation::Bcast, 8),
            (Operation::Bcast, 1 << 20),
            (Operation::Allreduce, 8),
            (Operation::Allreduce, 1 << 20),
            (Operation::Alltoall, 1024),
        ] {
            let call = Call::new(operation, ranks).requires(Association::Any);
            let sizes = Sizes::Equal(bytes);
            // The median of some, and of long ones the first.
            let mut took = Vec::new();
            while took.len() < 9 && took.iter().sum::<f64>() < 100.0 {
                let begin = Instant::now();
                let choice = choose(&call, &sizes, &machine, Model::LogGp).expect("a plan");
                took.push(1e3 * begin.elapsed().as_secs_f64());
                std::hint::black_box(choice);
            }
            took.sort_by(f64::total_cmp);
            let name = operation.name();
            print!("  {name} {bytes} B {:.2} ms", took[took.len() / 2]);
        }
        println!();
        ranks *= 2;
    }
}
