//! Flags in the ranks' segment, beside devices: calls of memory of the host have them, and find
//! together where memory lies.

use crate::driver;
use crate::memory::{Draw, Maker, Mem, Rank, Spaces, layouts};
use crate::support::Watchdog;
use osier::devices::{Callback, Stream};
use osier::model::DeviceCalls;
use osier::testing::{Network, ranks_on};
use osier::{Communicator, IN_PLACE, Op};
use osier_bed::devices::plan_by;
use osier_collectives::Operation;
use osier_engine::protocol::cost::LinkCosts;
use std::cell::RefCell;
use std::sync::{Mutex, mpsc};

/// Has plans of memory of devices chosen by costs, not by each rank for itself.
fn knows_devices(comm: &Communicator) {
    let mut table = comm.call_costs();
    table.devices = Some(DeviceCalls::estimated(&LinkCosts::default()));
    plan_by(comm, &table).unwrap();
}

/// Calls of one size, beside the same with messages.
fn calls(rank: &Rank<'_>, count: usize, seed: usize) {
    let (me, n) = (rank.twin.rank(), rank.twin.size());
    let int = &layouts()[0];
    let root = seed % n;
    let two = |maker: &Maker<'_>, send: usize, recv: usize| {
        vec![
            maker.mem(int, send, seed + me),
            maker.mem(int, recv, seed + 50),
        ]
    };
    rank.alike(
        "bcast",
        seed,
        |maker| vec![maker.mem(int, count, seed + me)],
        |comm, all| comm.bcast(&mut all[0], root),
    );
    let taken_out = |all: &mut [Mem]| -> (Mem, Mem) {
        let [send, recv] = all else { panic!() };
        let taken = |mem: &mut Mem| std::mem::replace(mem, Mem::new(None, Vec::new(), &int.0, 0));
        (taken(send), taken(recv))
    };
    let call = |name: &str, send, recv, call: &dyn Fn(&Communicator, &mut [Mem])| {
        rank.alike(
            name,
            seed,
            |maker| two(maker, send, recv),
            |comm, all| {
                call(comm, all);
                Ok(())
            },
        );
    };
    call("allreduce", count, count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.allreduce(&send, &mut recv, Op::Sum).unwrap();
        comm.allreduce(&IN_PLACE, &mut recv, Op::Max).unwrap();
        (all[0], all[1]) = (send, recv);
    });
    call("reduce", count, count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.reduce(&send, &mut recv, root, Op::Sum).unwrap();
        (all[0], all[1]) = (send, recv);
    });
    call("gather", count, n * count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.gather(&send, &mut recv, root).unwrap();
        (all[0], all[1]) = (send, recv);
    });
    call("scatter", n * count, count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.scatter(&send, &mut recv, root).unwrap();
        (all[0], all[1]) = (send, recv);
    });
    call("allgather", count, n * count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.allgather(&send, &mut recv).unwrap();
        (all[0], all[1]) = (send, recv);
    });
    call("alltoall", n * count, n * count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.alltoall(&send, &mut recv).unwrap();
        (all[0], all[1]) = (send, recv);
    });
    call("scan", count, count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.scan(&send, &mut recv, Op::Sum).unwrap();
        (all[0], all[1]) = (send, recv);
    });
    call("reduce_scatter_block", n * count, count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        comm.reduce_scatter_block(&send, &mut recv, Op::Sum)
            .unwrap();
        (all[0], all[1]) = (send, recv);
    });
    let (counts, at) = (vec![count; n], (0..n).map(|r| r * count));
    let at: Vec<usize> = at.collect();
    call("alltoallv", n * count, n * count, &|comm, all| {
        let (send, mut recv) = taken_out(all);
        let blocks = (&counts[..], &at[..]);
        comm.alltoallv(&send, blocks, &mut recv, blocks).unwrap();
        comm.alltoallv(&IN_PLACE, (&[], &[]), &mut recv, blocks)
            .unwrap();
        (all[0], all[1]) = (send, recv);
    });
    // Without waiting, and set up once.
    call("iallreduce, allreduce_init", count, count, &|comm, all| {
        let (send, recv) = taken_out(all);
        let (Some(from), Some(into)) = (&send.device, &recv.device) else {
            let host = (send.host.clone(), recv.host.clone());
            let begun = comm.iallreduce(host.0, host.1, Op::Sum).unwrap();
            let sums = begun.wait().unwrap().1;
            let mut again = comm.allreduce_init(sums.clone(), sums, Op::Max).unwrap();
            again.start().unwrap();
            let top = again.into_buffers().unwrap().1;
            all[0] = send;
            all[1] = Mem::new(None, top, &int.0, count);
            return;
        };
        let device = |there: &crate::memory::OnDevice| there.view.clone();
        let begun = comm.iallreduce(device(from), device(into), Op::Sum);
        begun.unwrap().wait().unwrap();
        let again = comm.allreduce_init(IN_PLACE, device(into), Op::Max);
        let again = again.map(|mut again| again.start().map(|()| again));
        again.unwrap().unwrap().into_buffers().unwrap();
        (all[0], all[1]) = (send, recv);
    });
}

/// Calls of the host's memory are repeated until they are kept; between them are calls whose
/// memory lies on devices, at all ranks or at some.
#[test]
fn calls_of_the_host_go_on_beside_those_of_devices() {
    let Some(context) = driver::context() else {
        return;
    };
    let _watchdog = Watchdog::start();
    for (n, knows) in [(2, true), (3, true), (2, false)] {
        ranks_on(&Network::Shm, n, |comm| {
            let twin = comm.dup().unwrap();
            let stream = &Stream::new(&context).unwrap();
            if knows {
                knows_devices(&comm);
            }
            let choice = comm.explain(Operation::Allreduce, 8).unwrap();
            assert!(choice.plan().algorithm().in_segment(), "{choice}");
            let mut draw = Draw(n as u64);
            for count in [1, 60, 1000, 9000, 40_000] {
                let host = Spaces::Host;
                let mut order = vec![host, host, host, Spaces::Mixed, host, Spaces::Devices];
                order.extend((0..6).map(|_| [host, Spaces::Mixed, Spaces::Devices][draw.below(3)]));
                for (round, spaces) in order.into_iter().enumerate() {
                    let rank = Rank {
                        comm: &comm,
                        twin: &twin,
                        stream,
                        spaces,
                        what: format!("{count} elements, round {round}, {spaces:?}"),
                    };
                    calls(&rank, count, 100 * n + round);
                }
            }
        });
    }
}

/// A call behind a stream that waits for what its rank does later holds up no call of the host
/// behind it.
#[test]
fn calls_of_the_host_pass_one_behind_a_stream() {
    let Some(context) = driver::context() else {
        return;
    };
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Shm, 3, |comm| {
        let stream = &Stream::new(&context).unwrap();
        knows_devices(&comm);
        let int = &layouts()[0];
        let own = RefCell::new(Draw(0));
        let spaces = Spaces::Devices;
        let maker = Maker {
            stream,
            spaces,
            own,
        };
        for count in [2, 3000, 50_000] {
            let (one, two) = (maker.mem(int, count, 1), maker.mem(int, 3 * count, 2));
            let (one, two) = (one.device.unwrap(), two.device.unwrap());
            let on = comm.on_stream(stream);
            let (goes, may_go) = mpsc::channel::<()>();
            let may_go = Mutex::new(may_go);
            if comm.rank() == 1 {
                let wait = move || {
                    may_go.lock().unwrap().recv().ok();
                };
                stream.call(&Callback::new(wait)).unwrap();
            }
            let mut three = driver::upload(stream, &[comm.rank() as u8; 8]);
            let held = on.bcast(&mut three, 1).unwrap();
            let (from, into) = (
                one.view.into_inner().after_stream(stream),
                two.view.into_inner().after_stream(stream),
            );
            let begun = comm.iallgather(from, into).unwrap();
            for round in 0..5 {
                let mut sum = [round];
                comm.allreduce(&IN_PLACE, &mut sum, Op::Sum).unwrap();
                assert_eq!(sum, [3 * round]);
                comm.bcast(&mut [0u8; 5000], round % 3).unwrap();
            }
            if comm.rank() == 1 {
                assert!(!held.is_over());
            }
            goes.send(()).ok();
            held.wait().unwrap();
            begun.wait().unwrap();
            stream.synchronize().unwrap();
            assert_eq!(driver::download(stream, &three), [1; 8]);
        }
    });
}
