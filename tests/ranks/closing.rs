//! Ranks that live on and have dropped a communicator that others wait on.

use crate::support::{Watchdog, fails, on_all, pattern};
use osier::requests::WaitSet;
use osier::testing::{Network, universes_on};
use osier::{ANY_TAG, ErrorKind};

#[test]
fn a_receive_from_a_rank_that_dropped_the_communicator_ends() {
    on_all(2, |comm| {
        for way in 0..5 {
            let other = comm.dup().expect("dup");
            let context = format!("{:#x}", other.context());
            if comm.rank() == 1 {
                if way == 1 {
                    // In flight when the communicator goes.
                    other.send(&pattern(100, 1), 0, 7).expect("send");
                    drop(other.isend(pattern(300_000, 2), 0, 7).expect("isend"));
                }
                drop(other);
            } else {
                let parts = ["rank 1", "tag 9", context.as_str()];
                match way {
                    0 => drop(fails(
                        other.recv(&mut [0u8], 1, 9),
                        ErrorKind::Closed,
                        &parts,
                    )),
                    1 => {
                        let last = other.irecv(vec![0u8; 8], 1, 9).expect("irecv");
                        let (got, _) = other.recv_vec::<u8>(1, 7).expect("the first");
                        assert!(got == pattern(100, 1));
                        let (got, _) = other.recv_vec::<u8>(1, 7).expect("the second");
                        assert!(got == pattern(300_000, 2));
                        fails(last.wait(), ErrorKind::Closed, &parts);
                    }
                    2 => drop(fails(
                        other.probe(1, ANY_TAG),
                        ErrorKind::Closed,
                        &["rank 1", context.as_str()],
                    )),
                    3 => {
                        let mut set = WaitSet::new();
                        set.add((), other.irecv(vec![0u8; 8], 1, 9).expect("irecv"))
                            .expect("add");
                        let ((), result) = set.wait().expect("one");
                        fails(result, ErrorKind::Closed, &parts);
                    }
                    _ => {
                        let request = other.irecv(vec![0u8; 8], 1, 9).expect("irecv");
                        let result = crate::futures::foreign_block_on(request);
                        fails(result, ErrorKind::Closed, &parts);
                    }
                }
            }
            comm.barrier().expect("all live");
        }
    });
}

/// As MPI programs must not: both leave with a large message for each other.
#[test]
fn ranks_that_leave_with_messages_for_each_other_do_not_wait() {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        for synchronous in [false, true] {
            universes_on(&network, 2, |universe| {
                let world = universe.world();
                let peer = 1 - world.rank();
                let dup = world.dup().expect("dup");
                for comm in [world, &dup] {
                    if synchronous {
                        drop(comm.issend(vec![1u8; 8], peer, 3).expect("issend"));
                        drop(comm.issend(pattern(20_000, 1), peer, 3).expect("issend"));
                    } else {
                        drop(comm.isend(pattern(2_000_000, 1), peer, 3).expect("isend"));
                    }
                }
            });
        }
    }
}
