//! What is copied on the host where devices reach each other: nothing.

use crate::memory::{Draw, Maker, Mem, Spaces, by_plan, halves, layouts, on_devices};
use osier::testing::Network;
use osier::{Communicator, IN_PLACE, Op};
use osier_bed::devices::device_traffic;
use osier_collectives::Algorithm;
use std::cell::RefCell;

/// What a call has moved on this communicator, of all ranks.
fn moved(comm: &Communicator, runs: &Communicator, call: impl FnOnce()) -> (u64, u64) {
    let before = device_traffic(runs);
    call();
    let now = device_traffic(runs);
    let mut all = [
        now.copied - before.copied + now.crossed - before.crossed + now.handed - before.handed
            + now.device_slots
            - before.device_slots,
        now.kernel_bytes - before.kernel_bytes,
    ];
    comm.allreduce(&IN_PLACE, &mut all, Op::Sum).unwrap();
    (all[0], all[1])
}

/// Of each kind of call one: its name, the bytes of its messages, and the call.
type Long<'a> = (&'a str, u64, Box<dyn Fn(&Communicator, &mut [Mem]) + 'a>);

/// Long blocks of devices that reach each other: no byte is copied on the host, and kernels
/// move those of the plan's messages, once each.
#[test]
fn linked_devices_need_no_host() {
    const N: usize = 4;
    // Elements of the block from one rank to another.
    fn block(from: usize, to: usize) -> usize {
        30_000 + 4000 * from + 100 * to
    }
    on_devices(&[Network::Shm], N, |comm, stream| {
        let me = comm.rank();
        let ring = comm.cart_create(&[N], &[true]).unwrap().unwrap();
        let inter = halves(comm, 1, 7);
        let int = &layouts()[0];
        let behind = |counts: &[usize]| -> Vec<usize> {
            let ends = counts.iter().scan(0, |end, n| {
                *end += n + 5;
                Some(*end - n)
            });
            ends.collect()
        };
        let gives: Vec<usize> = (0..N).map(|to| block(me, to)).collect();
        let gets: Vec<usize> = (0..N).map(|from| block(from, me)).collect();
        let own: Vec<usize> = (0..N).map(|from| block(from, 0)).collect();
        let (from, to, at) = (behind(&gives), behind(&gets), behind(&own));
        let pairs = (0..N).flat_map(|from| (0..N).map(move |to| (from, to)));
        let apart = pairs.filter(|(from, to)| from != to);
        let bytes = |n: usize| 4 * n as u64;
        let all: u64 = apart.map(|(from, to)| bytes(block(from, to))).sum();
        let others = bytes(own[1..].iter().sum());
        let rooms = [&gives, &gets].map(|all| all.iter().sum::<usize>() + 5 * N);
        let maker = Maker {
            stream,
            spaces: Spaces::Devices,
            own: RefCell::new(Draw(1)),
        };
        let calls: [Long<'_>; 4] = [
            (
                "alltoallv",
                all,
                Box::new(|comm, mem| {
                    let [send, recv] = mem else { panic!() };
                    comm.alltoallv(send, (&gives, &from), recv, (&gets, &to))
                        .unwrap();
                }),
            ),
            (
                "gatherv",
                others,
                Box::new(|comm, mem| {
                    let [_, recv] = mem else { panic!() };
                    let send = maker.mem(int, own[me], 4);
                    comm.gatherv(&send, recv, &own, &at, 0).unwrap();
                }),
            ),
            (
                "scatterv",
                others,
                Box::new(|comm, mem| {
                    let [send, _] = mem else { panic!() };
                    let mut recv = maker.mem(int, own[me], 4);
                    comm.scatterv(send, &own, &at, &mut recv, 0).unwrap();
                }),
            ),
            (
                "allgatherv",
                (N as u64 - 1) * bytes(own.iter().sum()),
                Box::new(|comm, mem| {
                    let [_, recv] = mem else { panic!() };
                    let send = maker.mem(int, own[me], 4);
                    comm.allgatherv(&send, recv, &own, &at).unwrap();
                }),
            ),
        ];
        let room = rooms[0]
            .max(rooms[1])
            .max(own.iter().sum::<usize>() + 5 * N);
        for (name, bytes, call) in &calls {
            for stays in [true, false] {
                comm.use_algorithm_on_devices(Algorithm::Linear, 1, stays);
                if matches!(*name, "alltoallv" | "allgatherv") {
                    comm.use_algorithm_on_devices(Algorithm::Spread, 1, stays);
                }
                let mut mem = [maker.mem(int, room, me), maker.mem(int, room, 9)];
                let (host, kernels) = moved(&ring, comm, || call(comm, &mut mem));
                match stays {
                    true => assert_eq!((host, kernels), (0, *bytes), "{name}"),
                    false => assert!(host > 0, "{name} went through the host"),
                }
            }
        }
        comm.use_algorithm(None);
        // Neighbors choose each for itself: these are long.
        let (left, right) = ((me + N - 1) % N, (me + 1) % N);
        let (gives, gets) = (
            [block(me, left), block(me, right)],
            [block(left, me), block(right, me)],
        );
        let (from, to) = (behind(&gives), behind(&gets));
        let mut mem = [maker.mem(int, room, me), maker.mem(int, room, 9)];
        let (host, kernels) = moved(comm, &ring, || {
            let [send, recv] = &mut mem;
            let (gives, gets) = ((&gives[..], &from[..]), (&gets[..], &to[..]));
            ring.neighbor_alltoallv(send, gives, recv, gets).unwrap();
        });
        let both = (0..N).map(|me| block(me, (me + N - 1) % N) + block(me, (me + 1) % N));
        assert_eq!((host, kernels), (0, bytes(both.sum())), "neighbors");
        // Between groups, too: each contribution to all ranks of the other side.
        by_plan(&inter, &Some((Algorithm::Between, 1, true)));
        let (mine, theirs) = (1 << 16, inter.remote_size().unwrap() << 16);
        let (send, mut recv) = (maker.mem(int, mine, 1), maker.mem(int, theirs, 2));
        let places: Vec<usize> = (0..inter.remote_size().unwrap()).map(|r| r << 16).collect();
        let each = vec![1 << 16; places.len()];
        let (host, kernels) = moved(comm, &inter, || {
            inter.allgatherv(&send, &mut recv, &each, &places).unwrap();
        });
        assert_eq!((host, kernels), (0, bytes(6 << 16)), "between groups");
    });
}
