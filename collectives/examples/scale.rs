//! Predicted times of the chosen plans on a described machine, up to 65,536 ranks:
//! nodes of two packages of 16 ranks each. Prints a table for plotting.
//!
//! `cargo run --release -p osier-collectives --example scale [LARGEST]`

use osier_collectives::*;

fn machine(size: u32) -> Machine {
    let level = |latency_ns, overhead_ns, per_byte_ns, shared_per_byte_ns| Link {
        latency_ns,
        overhead_ns,
        gap_ns: 40.0,
        per_byte_ns,
        shared_per_byte_ns,
    };
    // Described, not measured: caches, sockets, a network of 25 GB/s per node.
    let links = vec![
        level(80.0, 40.0, 0.08, 0.0),
        level(200.0, 40.0, 0.1, 0.02),
        level(1500.0, 200.0, 0.08, 0.04),
    ];
    let shape = [size.div_ceil(32).max(1), 2, 16];
    let mut machine = Machine::regular(&shape, links, |r| r);
    machine.combine_ns = 0.1;
    machine.copy_ns = 0.05;
    machine.eager_bytes = 8192.0;
    machine
}

fn main() {
    let largest: u32 = std::env::args()
        .nth(1)
        .map_or(65_536, |n| n.parse().expect("a number of ranks"));
    println!("operation,bytes,ranks,predicted_us,algorithm,segments,left_out");
    for (operation, bytes) in [
        (Operation::Barrier, 0),
        (Operation::Bcast, 8),
        (Operation::Bcast, 1 << 20),
        (Operation::Allreduce, 8),
        (Operation::Allreduce, 1 << 20),
    ] {
        let mut size = 16;
        while size <= largest {
            let call = Call::new(operation, size).requires(Association::Any);
            let sizes = Sizes::Equal(bytes);
            let choice = choose(&call, &sizes, &machine(size), Model::LogGp).expect("a plan");
            println!(
                "{},{bytes},{size},{:.2},{},{},{}",
                operation.name(),
                choice.ns() / 1000.0,
                choice.plan().algorithm().to_string().replace(',', ""),
                choice.plan().segments(),
                choice.left_out.len()
            );
            size *= 4;
        }
    }
}
