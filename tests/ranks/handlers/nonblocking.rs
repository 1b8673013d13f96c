//! Collective calls that fail, in all forms but the one that waits.

use super::Bench;
use osier::persistent::Startable;
use osier::{Communicator, Error, ErrorKind, Op};

/// Begins and sets up a call that makes no sense, of memory that is owned and borrowed.
macro_rules! fails {
    ($comm:ident, $b:ident, $begin:ident, $init:ident $(, $arg:expr)*) => {
        let v = || (vec![0u8], vec![0u8; 9]);
        let mut theirs = (vec![0u8], vec![0u8; 9]);
        let (send, recv) = v();
        $b.check(concat!("Communicator::", stringify!($begin)), || {
            $comm.$begin(send, recv $(, $arg)*)?.wait().map(drop)
        });
        let (send, recv) = v();
        $b.check(concat!("Communicator::", stringify!($init)), || {
            $comm.$init(send, recv $(, $arg)*).map(drop)
        });
        let (send, recv) = (&mut theirs.0, &mut theirs.1);
        $b.check(concat!("Scope::", stringify!($begin)), || {
            $comm.scope(|s| s.$begin(&*send, &mut *recv $(, $arg)*)?.wait())
        });
        $b.check(concat!("Scope::", stringify!($init)), || {
            $comm.scope(|s| s.$init(send, recv $(, $arg)*).map(drop))
        });
    };
}

pub(super) fn check(comm: &Communicator, b: &Bench) {
    let bad = comm.size();
    let (nine, sum) = ([0usize; 9], Op::Sum);
    let blocks = (&nine[..], &nine[..]);
    fails!(comm, b, igather, gather_init, bad);
    fails!(comm, b, igatherv, gatherv_init, &nine, &nine, bad);
    fails!(comm, b, iscatter, scatter_init, bad);
    fails!(comm, b, iscatterv, scatterv_init, &nine, &nine, bad);
    fails!(comm, b, iallgather, allgather_init);
    fails!(comm, b, iallgatherv, allgatherv_init, &nine, &nine);
    fails!(comm, b, ialltoall, alltoall_init);
    fails!(comm, b, ialltoallv, alltoallv_init, blocks, blocks);
    fails!(comm, b, ireduce, reduce_init, bad, sum);
    fails!(comm, b, iallreduce, allreduce_init, sum);
    fails!(
        comm,
        b,
        ireduce_scatter_block,
        reduce_scatter_block_init,
        sum
    );
    fails!(comm, b, ireduce_scatter, reduce_scatter_init, &nine, sum);
    fails!(comm, b, iscan, scan_init, sum);
    fails!(comm, b, iexscan, exscan_init, sum);
    fails!(comm, b, ineighbor_allgather, neighbor_allgather_init);
    fails!(
        comm,
        b,
        ineighbor_allgatherv,
        neighbor_allgatherv_init,
        &nine,
        &nine
    );
    fails!(comm, b, ineighbor_alltoall, neighbor_alltoall_init);
    fails!(
        comm,
        b,
        ineighbor_alltoallv,
        neighbor_alltoallv_init,
        blocks,
        blocks
    );
    let none = Vec::<Vec<u8>>::new;
    b.check("Communicator::ialltoallw", || {
        comm.ialltoallw(none(), none())?.wait().map(drop)
    });
    b.check("Communicator::alltoallw_init", || {
        comm.alltoallw_init(none(), none()).map(drop)
    });
    b.check("Communicator::ineighbor_alltoallw", || {
        comm.ineighbor_alltoallw(none(), none()).map(drop)
    });
    b.check("Communicator::neighbor_alltoallw_init", || {
        comm.neighbor_alltoallw_init(none(), none()).map(drop)
    });
    let (from, mut to) = (none(), none());
    b.check("Scope::ialltoallw", || {
        comm.scope(|s| s.ialltoallw(&from, &mut to)?.wait())
    });
    b.check("Scope::ineighbor_alltoallw", || {
        comm.scope(|s| s.ineighbor_alltoallw(&from, &mut to).map(drop))
    });
    let v = || vec![0u8];
    b.check("Communicator::ibcast", || comm.ibcast(v(), bad).map(drop));
    b.check("Communicator::bcast_init", || {
        comm.bcast_init(v(), bad).map(drop)
    });
    let mut data = v();
    b.check("Scope::ibcast", || {
        comm.scope(|s| s.ibcast(&mut data, bad).map(drop))
    });
    b.check("Scope::bcast_init", || {
        comm.scope(|s| s.bcast_init(&mut data, bad).map(drop))
    });
    let (one, mut two) = (v(), vec![0u8; 2]);
    b.check("Communicator::neighbor_allgather", || {
        comm.neighbor_allgather(&one, &mut two)
    });
    b.check("Communicator::neighbor_allgatherv", || {
        comm.neighbor_allgatherv(&one, &mut two, &nine, &nine)
    });
    b.check("Communicator::neighbor_alltoall", || {
        comm.neighbor_alltoall(&one, &mut two)
    });
    b.check("Communicator::neighbor_alltoallv", || {
        comm.neighbor_alltoallv(&one, blocks, &mut two, blocks)
    });
    b.check("Communicator::neighbor_alltoallw", || {
        comm.neighbor_alltoallw(&from, &mut to)
    });
    requests(comm, b);
}

/// What fails later than at the call.
fn requests(comm: &Communicator, b: &Bench) {
    let sum = comm.iallreduce(vec![0u8], vec![0u8; 9], Op::Sum);
    let sum = sum.expect("begun");
    b.check("Collective::wait", || sum.wait().map(drop));
    // Each rank takes part with another amount.
    let n = comm.rank() + 1;
    let (mine, mut all) = (vec![0u8; n], vec![0u8; 2 * n]);
    let mut uneven = comm
        .allgather_init(mine.clone(), all.clone())
        .expect("init");
    uneven.start().expect("start");
    b.check("PersistentCollective::start", || uneven.start());
    b.check("PersistentCollective::wait", || uneven.wait());
    // Nobody enters before the other has left what is under way alone.
    let mut barrier = comm.barrier_init().expect("init");
    if comm.rank() == 0 {
        barrier.start().expect("start");
        b.check("PersistentCollective::buffers", || {
            barrier.buffers().map(drop)
        });
        b.check("PersistentCollective::buffers_mut", || {
            barrier.buffers_mut().map(drop)
        });
        comm.send(&[0u8; 0], 1, 77).expect("go");
    } else {
        comm.recv(&mut [0u8; 0], 0, 77).expect("go");
        barrier.start().expect("start");
    }
    barrier.wait().expect("barrier");
    uneven.start().expect("start");
    b.check("PersistentCollective::into_buffers", || {
        uneven.into_buffers().map(drop)
    });
    let left = std::cell::Cell::new(None);
    let ended = comm.scope(|s| {
        let request = s.iallgather(&mine, &mut all)?;
        b.check("ScopedCollective::wait", || request.wait());
        left.set(Some(()));
        Err::<(), _>(Error::new(ErrorKind::User, "ends"))
    });
    assert!(ended.is_err() && left.take().is_some());
    let (mut from, mut to) = (mine, vec![0u8; 2 * n]);
    comm.scope(|s| {
        let mut uneven = s.allgather_init(&mut from, &mut to)?;
        uneven.start()?;
        b.check("ScopedPersistentCollective::start", || {
            Startable::start(&mut uneven)
        });
        b.check("ScopedPersistentCollective::wait", || uneven.wait());
        Ok(())
    })
    .expect("scope");
    let (mut one, mut two) = ([0u8; 1], [0u8; 2]);
    comm.scope(|s| {
        let mut all = s.allgather_init(&mut one, &mut two)?;
        if comm.rank() == 0 {
            all.start()?;
            b.check("ScopedPersistentCollective::buffers", || {
                all.buffers().map(drop)
            });
            b.check("ScopedPersistentCollective::buffers_mut", || {
                all.buffers_mut().map(drop)
            });
            comm.send(&[0u8; 0], 1, 78)?;
        } else {
            comm.recv(&mut [0u8; 0], 0, 78)?;
            all.start()?;
        }
        all.wait()
    })
    .expect("scope");
}
