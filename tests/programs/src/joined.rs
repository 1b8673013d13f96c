//! Collectives of device memory on devices that links of their own join: what is exchanged
//! of them, and what is chosen by it.

use super::devices::{device, download, upload};
use osier::model::DeviceCalls;
use osier::{Communicator, IN_PLACE, Op};
use osier_collectives::Operation;
use osier_engine::protocol::cost::LinkCosts;

const BYTES: usize = 200_000;

fn bytes(seed: usize) -> Vec<u8> {
    let each = |i: usize| (i * 7 + i / 253 + seed * 29) as u8;
    (0..BYTES).map(each).collect()
}

/// Calls ask twice where their buffers are; then all ranks know what joins their devices, and
/// choose alike. The first rank prints the choice for a long broadcast.
pub fn run(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let stream = &stream;
    // Crossings that cost so much that nothing goes through the host.
    let mut table = comm.call_costs();
    let mut devices = DeviceCalls::estimated(&LinkCosts::default());
    for crossing in devices.to_host.iter_mut().chain(&mut devices.to_device) {
        crossing.ns += 1e9;
    }
    table.devices = Some(devices);
    comm.adopt_costs(Some(&table)).expect("a table");
    let (rank, last) = (comm.rank(), comm.size() - 1);
    for round in 0..3 {
        for root in [0, last] {
            let data = upload(stream, &bytes(100 * round + rank));
            comm.bcast(&mut data.after_stream(stream), root)
                .expect("a broadcast");
            assert!(
                download(stream, &data) == bytes(100 * round + root),
                "from {root}"
            );
        }
        let data = upload(stream, &bytes(rank));
        comm.allreduce(&IN_PLACE, &mut data.after_stream(stream), Op::Max)
            .expect("a maximum");
        let mut right = bytes(rank);
        comm.allreduce(&IN_PLACE, &mut right, Op::Max)
            .expect("a maximum");
        assert!(download(stream, &data) == right, "round {round}");
    }
    let choice = comm.explain_on_devices(Operation::Bcast, 64 << 20);
    let choice = choice.expect("a choice").to_string();
    let mut first = choice.clone().into_bytes();
    first.resize(1 << 14, 0);
    let mine = first.clone();
    comm.bcast(&mut first, 0).expect("a broadcast");
    assert!(first == mine, "ranks choose differently: {choice}");
    if rank == 0 {
        println!("{choice}");
    }
}
