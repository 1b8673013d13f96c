//! Ranks on several hosts, which are threads of this process: what is not the same as on one. All
//! that `support::on_all` runs is run so, too.

use crate::support::Watchdog;
use osier::communicators::SplitType;
use osier::testing::{Network, ranks_on};
use osier::{Communicator, ErrorKind, Op};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn on_hosts(hosts: usize, n: usize, f: impl Fn(Communicator) + Sync) {
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Hosts(hosts), n, f);
}

/// Ranks of a host share memory, and reach the others by TCP.
#[test]
fn transports_are_told_by_peer() {
    on_hosts(2, 5, |comm| {
        let me = comm.rank();
        for peer in (0..5).filter(|peer| *peer != me) {
            let expected = match peer % 2 == me % 2 {
                true => "shm",
                false => "tcp",
            };
            assert_eq!(comm.transport(peer).expect("a peer"), expected);
        }
    });
}

/// Splits by what is shared: hosts are parts, of whatever kind of hardware.
#[test]
fn ranks_of_a_host_share_memory_and_others_do_not() {
    on_hosts(3, 8, |comm| {
        for kind in [
            SplitType::Shared,
            SplitType::HwGuided("mpi_shared_memory"),
            SplitType::HwGuided("machine"),
        ] {
            let part = comm.split_type(Some(kind), 0).expect("a split");
            let part = part.expect("a part");
            let mut sum = [0u64];
            part.allreduce(&[comm.rank() as u64], &mut sum, Op::Sum)
                .expect("a sum");
            let mine = (0..8).filter(|rank| rank % 3 == comm.rank() % 3);
            assert_eq!(
                (part.size(), sum[0]),
                (mine.clone().count(), mine.sum::<usize>() as u64)
            );
        }
        // The outermost kind that ranks do not share already is the machine itself.
        let part = comm
            .split_type(Some(SplitType::HwUnguided), 0)
            .expect("a split");
        let part = part.expect("a part");
        let level = part.info().get("mpi_hw_resource_type").map(str::to_owned);
        assert_eq!(
            (part.size(), level.as_deref()),
            (
                8usize.div_ceil(3) - usize::from(comm.rank() % 3 == 2),
                Some("machine")
            )
        );
    });
}

/// Every size, whichever protocol takes it, between hosts and within them at the same time.
#[test]
fn messages_of_all_sizes_cross_between_hosts() {
    on_hosts(2, 4, |comm| {
        let (me, n) = (comm.rank(), comm.size());
        for bytes in [
            0usize, 1, 8, 9, 700, 4_096, 4_097, 16_384, 16_385, 40_000, 300_000, 5_000_000,
        ] {
            let of = |rank: usize| -> Vec<u8> {
                (0..bytes).map(|i| (i * 31 + rank * 7) as u8).collect()
            };
            let mine = of(me);
            let mut rooms = vec![vec![0u8; bytes]; n];
            comm.scope(|s| {
                for (from, room) in rooms.iter_mut().enumerate() {
                    if from != me {
                        s.irecv(room, from, bytes as u32)?;
                    }
                }
                for to in (0..n).filter(|to| *to != me) {
                    s.isend(&mine, to, bytes as u32)?;
                }
                Ok::<(), osier::Error>(())
            })
            .expect("all is there");
            for (from, room) in rooms.iter().enumerate().filter(|(from, _)| *from != me) {
                assert!(*room == of(from), "{bytes} bytes from {from} to {me}");
            }
        }
    });
}

/// What needs a rank that is gone ends with an error that names it and says why.
#[test]
fn the_end_of_a_rank_is_told_on_other_hosts() {
    let _watchdog = Watchdog::start();
    struct Thrown;
    let result = catch_unwind(AssertUnwindSafe(|| {
        ranks_on(&Network::Hosts(2), 4, |comm| {
            if comm.rank() == 1 {
                std::panic::panic_any(Thrown);
            }
            // Rank 0 and 2 have no connection to it; rank 3 shares its host.
            let e = comm.recv(&mut [0u8; 8], 1, 0).expect_err("it is gone");
            assert_eq!(e.kind(), ErrorKind::RankDead);
            assert!(e.to_string().contains("rank 1"), "{e}");
            if comm.rank() != 3 {
                let text = e.to_string();
                assert!(text.contains("host1") || text.contains("connection"), "{e}");
            }
        })
    }));
    assert!(result.expect_err("it has failed").is::<Thrown>());
}
