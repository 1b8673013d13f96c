//! Where calls work is agreed by all ranks, also where they are checked.

use crate::driver;
use crate::memory::{Draw, Maker, Spaces, halves, layouts};
use crate::support::Watchdog;
use osier::devices::Stream;
use osier::model::{CallCosts, DeviceCalls};
use osier::testing::{Network, universes_checked};
use osier::{Communicator, ErrorKind, IN_PLACE, Op, PROC_NULL, ROOT};
use osier_bed::devices::{device_traffic, plan_by};
use osier_engine::check::Setting;
use osier_engine::protocol::cost::LinkCosts;
use std::cell::RefCell;

/// Costs by which all goes through the host, or nothing does.
fn costs(comm: &Communicator, through_host: bool) -> CallCosts {
    let mut devices = DeviceCalls::estimated(&LinkCosts::default());
    if through_host {
        for message in devices
            .classes
            .iter_mut()
            .flat_map(|class| &mut class.messages)
        {
            message.one_way_ns += 1e9;
        }
    } else {
        for crossing in devices.to_host.iter_mut().chain(&mut devices.to_device) {
            crossing.ns += 1e9;
        }
    }
    let mut table = comm.call_costs();
    table.devices = Some(devices);
    table
}

/// An alltoallv of long blocks: bytes that the host has copied, or slots it has handed over.
fn exchange(comm: &Communicator, stream: &Stream, spaces: Spaces) -> u64 {
    let (me, n) = (comm.rank(), comm.size());
    let int = &layouts()[0];
    let own = RefCell::new(Draw(me as u64));
    let maker = Maker {
        stream,
        spaces,
        own,
    };
    let gives: Vec<usize> = (0..n).map(|to| 40_000 + 100 * me + to).collect();
    let gets: Vec<usize> = (0..n).map(|from| 40_000 + 100 * from + me).collect();
    let behind = |counts: &[usize]| (0..n).map(|at| counts[..at].iter().sum()).collect();
    let (from, to): (Vec<usize>, Vec<usize>) = (behind(&gives), behind(&gets));
    let send = maker.mem(int, gives.iter().sum(), me);
    let mut recv = maker.mem(int, gets.iter().sum(), 99);
    let before = device_traffic(comm);
    comm.alltoallv(&send, (&gives, &from), &mut recv, (&gets, &to))
        .unwrap();
    let now = device_traffic(comm);
    let found = recv.contents();
    for peer in 0..n {
        let first: usize = (0..me).map(|to| 40_000 + 100 * peer + to).sum();
        let right =
            (first..first + gets[peer]).map(|i| ((i * 37 + peer * 1009) % 6007) as i32 - 3000);
        assert!(
            found[to[peer]..][..gets[peer]].iter().copied().eq(right),
            "from {peer}"
        );
    }
    now.copied - before.copied + now.handed - before.handed + now.crossed - before.crossed
}

/// Ranks agree on the place of calls whose bytes none of them knows whole, and where some
/// have their buffers on the host they find that out; also where calls are checked.
#[test]
fn places_of_calls_with_counts_are_agreed() {
    let Some(context) = driver::context() else {
        return;
    };
    let _watchdog = Watchdog::start();
    for checks in ["off", "collectives"] {
        let checks: Setting = checks.parse().unwrap();
        universes_checked(&Network::Shm, checks, 3, |universe| {
            let comm = universe.world();
            let stream = &Stream::new(&context).unwrap();
            let all = |mine: u64| {
                let mut all = [mine];
                comm.allreduce(&IN_PLACE, &mut all, Op::Sum).unwrap();
                all[0]
            };
            plan_by(comm, &costs(comm, true)).unwrap();
            for _ in 0..3 {
                assert!(all(exchange(comm, stream, Spaces::Devices)) > 0);
            }
            plan_by(comm, &costs(comm, false)).unwrap();
            for _ in 0..3 {
                assert_eq!(all(exchange(comm, stream, Spaces::Devices)), 0);
            }
            // Some of the host; then none: what is known may be out of date, and is right.
            for spaces in [Spaces::Mixed, Spaces::Host, Spaces::Devices, Spaces::Mixed] {
                for _ in 0..3 {
                    exchange(comm, stream, spaces);
                }
            }
            // Between groups, where who looks on knows nothing of the call.
            let inter = halves(comm, 1, 3);
            plan_by(&inter, &costs(comm, false)).unwrap();
            let int = &layouts()[0];
            for (spaces, root) in [
                (Spaces::Devices, 0),
                (Spaces::Devices, 1),
                (Spaces::Mixed, 1),
                (Spaces::Devices, 1),
            ] {
                let own = RefCell::new(Draw(comm.rank() as u64));
                let maker = Maker {
                    stream,
                    spaces,
                    own,
                };
                let mut data = maker.mem(int, 50_000, comm.rank());
                let to: osier::Rank = match comm.rank() {
                    0 => root.into(),
                    rank if rank - 1 == root => ROOT,
                    _ => PROC_NULL,
                };
                inter.bcast(&mut data, to).unwrap();
                let from = if comm.rank() == 0 {
                    root + 1
                } else {
                    comm.rank()
                };
                let same = Spaces::Host;
                let own = RefCell::new(Draw(0));
                let right = Maker {
                    stream,
                    spaces: same,
                    own,
                }
                .mem(int, 50_000, from);
                assert!(
                    data.contents() == right.contents(),
                    "{spaces:?} from {root}"
                );
            }
        });
    }
}

/// Where calls are checked, others are still named as such, whatever their memory is, and
/// what ranks know of calls stays alike.
#[test]
fn calls_that_differ_are_named() {
    let Some(context) = driver::context() else {
        return;
    };
    let _watchdog = Watchdog::start();
    let checks: Setting = "collectives".parse().unwrap();
    universes_checked(&Network::Shm, checks, 2, |universe| {
        let comm = universe.world();
        let stream = &Stream::new(&context).unwrap();
        plan_by(comm, &costs(comm, false)).unwrap();
        let int = &layouts()[0];
        let spaces = Spaces::Devices;
        let own = RefCell::new(Draw(0));
        let maker = Maker {
            stream,
            spaces,
            own,
        };
        let mut data = maker.mem(int, 40_000, comm.rank());
        for _ in 0..3 {
            exchange(comm, stream, Spaces::Devices);
            let told = match comm.rank() {
                0 => comm.barrier(),
                _ => comm.allreduce(&IN_PLACE, &mut data, Op::Sum),
            };
            let e = told.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument);
            assert!(e.to_string().contains("do not match"), "{e}");
            // One rank's own call makes no sense: the other is told.
            let counts = if comm.rank() == 0 {
                vec![1; 2]
            } else {
                vec![1; 3]
            };
            let send = maker.mem(int, 1, 1);
            let told = comm.allgatherv(&send, &mut data, &counts, &counts);
            assert!(told.is_err());
        }
        exchange(comm, stream, Spaces::Devices);
    });
}
