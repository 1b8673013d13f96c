//! Collective calls that are enqueued on streams, beside the same calls of the host.

use crate::driver;
use crate::support::{Watchdog, fails};
use crate::{Late, memory, on_streams};
use osier::devices::{DeviceSlice, Graph, Pinned, Stream, copy};
use osier::testing::{Network, ranks_on};
use osier::{Communicator, ErrorKind, IN_PLACE, Op};

/// Elements of each rank's share.
const EACH: usize = 700;

fn upload(stream: &Stream, data: &[i32]) -> DeviceSlice<i32> {
    let staged = Pinned::from_slice(stream.context(), data).unwrap();
    let place = DeviceSlice::<i32>::new(stream, data.len()).unwrap();
    copy::copy(stream, &staged.on_device(stream), &place).unwrap();
    place.into_inner()
}

/// What lies there behind the stream's work: the stream waits, and the host for it.
fn download(stream: &Stream, from: &DeviceSlice<i32>) -> Vec<i32> {
    let zeroes = vec![0; from.len()];
    let mut staged = Pinned::from_slice(stream.context(), &zeroes).unwrap();
    copy::copy(
        stream,
        &from.after_stream(stream),
        &staged.on_device(stream),
    )
    .unwrap();
    staged.host().unwrap().to_vec()
}

fn numbers(rank: usize, shares: usize) -> Vec<i32> {
    let each = |i: usize| ((i * 37 + rank * 1001) % 5003) as i32 - 2000;
    (0..shares * EACH).map(each).collect()
}

/// Each call of two buffers: on the host, then enqueued between other work of the stream.
macro_rules! both {
    (
        $comm:ident, $stream:ident, $call:ident, $send:expr $(=> $at:expr, $($more:expr)?;)?,
        $recv:expr $(, $arg:expr)*
    ) => {{
        let (send, recv) = (numbers($comm.rank(), $send), numbers($comm.rank() + 10, $recv));
        let mut right = recv.clone();
        $comm.$call(&send, $($at, $($more,)?)? &mut right $(, $arg)*).unwrap();
        let (from, to) = (upload($stream, &send), upload($stream, &recv));
        $comm.on_stream($stream).$call(&from, $($at, $($more,)?)? &to $(, $arg)*).unwrap();
        // Behind it, the contribution may be used again.
        copy::fill($stream, &from.after_stream($stream), 1).unwrap();
        assert!(download($stream, &to) == right, stringify!($call));
    }};
}

fn every_call(comm: &Communicator, stream: &Stream) {
    let n = comm.size();
    let on = comm.on_stream(stream);
    let mut right = numbers(comm.rank(), 1);
    let data = upload(stream, &right);
    on.bcast(&data, n - 1).unwrap();
    comm.bcast(&mut right, n - 1).unwrap();
    assert!(download(stream, &data) == right, "bcast");

    both!(comm, stream, allreduce, 1, 1, Op::Sum);
    both!(comm, stream, reduce, 1, 1, 1, Op::Max);
    both!(comm, stream, scan, 1, 1, Op::Min);
    both!(comm, stream, exscan, 1, 1, Op::Sum);
    both!(comm, stream, reduce_scatter_block, n, 1, Op::Sum);
    both!(comm, stream, gather, 1, n, 0);
    both!(comm, stream, allgather, 1, n);
    both!(comm, stream, scatter, n, 1, 1);
    both!(comm, stream, alltoall, n, n);
    // Blocks of as many elements, from behind.
    let counts = vec![EACH; n];
    let places: Vec<usize> = (0..n).rev().map(|rank| rank * EACH).collect();
    let blocks = (&counts[..], &places[..]);
    both!(comm, stream, reduce_scatter, n, 1, &counts, Op::Sum);
    both!(comm, stream, gatherv, 1, n, &counts, &places, 0);
    both!(comm, stream, allgatherv, 1, n, &counts, &places);
    both!(comm, stream, alltoallv, n => blocks,;, n, blocks);
    both!(comm, stream, scatterv, n => &counts, &places;, 1, 0);

    let ring = comm.cart_create(&[n], &[true]).unwrap().unwrap();
    let (two, at) = ([EACH; 2], [EACH, 0]);
    let pair = (&two[..], &at[..]);
    both!(ring, stream, neighbor_allgather, 1, 2);
    both!(ring, stream, neighbor_allgatherv, 1, 2, &two, &at);
    both!(ring, stream, neighbor_alltoall, 2, 2);
    both!(ring, stream, neighbor_alltoallv, 2 => pair,;, 2, pair);

    // A buffer for each block.
    let part = |rank: usize| upload(stream, &numbers(rank, 1));
    for comm in [comm, &ring] {
        let of_ring = comm.cart().is_some();
        let blocks = if of_ring { 2 } else { n };
        let send: Vec<_> = (0..blocks).map(|to| part(10 * comm.rank() + to)).collect();
        let recv: Vec<_> = (0..blocks).map(|_| part(99)).collect();
        let on = comm.on_stream(stream);
        let from = |from: usize, at: usize| numbers(10 * from + at, 1);
        let (me, right): (usize, Vec<Vec<i32>>) = (comm.rank(), Vec::new());
        let mut right = right;
        match of_ring {
            true => {
                on.neighbor_alltoallw(&send, &recv).unwrap();
                // From the left its block to the right, and the reverse.
                right.extend([from((me + n - 1) % n, 1), from((me + 1) % n, 0)]);
            }
            false => {
                on.alltoallw(&send, &recv).unwrap();
                right.extend((0..n).map(|rank| from(rank, me)));
            }
        }
        for (found, right) in recv.iter().zip(&right) {
            assert!(download(stream, found) == *right, "alltoallw");
        }
    }
}

#[test]
fn every_collective_is_enqueued() {
    let Some(context) = driver::context() else {
        return;
    };
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        ranks_on(&network, 3, |comm| {
            every_call(&comm, &Stream::new(&context).unwrap());
        });
    }
}

/// Calls in a row between kernels; the host waits once.
#[test]
fn calls_in_a_row_wait_for_each_other_on_the_stream() {
    on_streams(&Network::all(), |comm, stream| {
        let on = comm.on_stream(stream);
        let sum = upload(stream, &vec![1; 100]);
        let all = upload(stream, &vec![0; 200]);
        for _ in 0..5 {
            on.allreduce(&IN_PLACE, &sum, Op::Sum).unwrap();
            on.allgather(&sum, &all).unwrap();
            let half = all.slice(100 * (1 - comm.rank())..).unwrap();
            let half = half.slice(..100).unwrap();
            copy::copy(
                stream,
                &half.after_stream(stream),
                &sum.after_stream(stream),
            )
            .unwrap();
        }
        on.synchronize().unwrap();
        assert!(download(stream, &sum) == vec![32; 100]);
    });
}

/// A barrier stands behind the work of all streams.
#[test]
fn a_barrier_waits_for_streams() {
    on_streams(&[Network::Shm], |comm, stream| {
        let (on, late) = (comm.on_stream(stream), Late::default());
        if comm.rank() == 0 {
            late.hold(stream);
        }
        let passed = on.barrier().unwrap();
        let told = Stream::new(stream.context()).unwrap();
        let host = comm.on_stream(&told);
        host.wait(&passed).unwrap();
        assert!(!passed.is_over());
        // Calls of the host are not held up, and know that nobody has passed.
        comm.barrier().unwrap();
        assert!(!passed.is_over());
        comm.barrier().unwrap();
        late.go();
        passed.wait().unwrap();
        told.synchronize().unwrap();
        on.synchronize().unwrap();
    });
}

/// An error is told by the handle, else by the next call, in which this rank takes part as
/// one that has failed.
#[test]
fn errors_of_collectives_are_told_and_streams_go_on() {
    on_streams(&[Network::Shm], |comm, stream| {
        let on = comm.on_stream(stream);
        let (data, short) = (upload(stream, &[1; 50]), upload(stream, &[1; 40]));
        let mine = if comm.rank() == 0 { &data } else { &short };
        let told = on.bcast(mine, 0).unwrap();
        stream.synchronize().unwrap();
        if comm.rank() == 1 {
            fails(told.wait(), ErrorKind::Truncated, &["bcast", "200", "160"]);
        } else {
            told.wait().unwrap();
        }
        // Nobody asks for this one's.
        let byte = memory(stream, 1);
        if comm.rank() == 1 {
            comm.send(&[0u8; 9], 1, 7).unwrap();
            drop(on.recv(&byte, 1, 7).unwrap());
            stream.synchronize().unwrap();
            let told = on.allreduce(&IN_PLACE, &data, Op::Sum);
            fails(told, ErrorKind::Truncated, &["earlier", "9", "1"]);
        } else {
            let told = on.allreduce(&IN_PLACE, &data, Op::Sum).unwrap();
            fails(told.wait(), ErrorKind::Cancelled, &["rank 1", "allreduce"]);
        }
        stream.synchronize().unwrap();
        on.allreduce(&IN_PLACE, &data, Op::Sum).unwrap();
        on.synchronize().unwrap();
    });
}

#[test]
fn collectives_are_not_captured() {
    on_streams(&[Network::Shm], |comm, stream| {
        let graph = Graph::capture(stream, |stream| {
            let told = comm.on_stream(stream).barrier();
            fails(told, ErrorKind::Unavailable, &["captured graph", "hint"]);
            Ok(())
        });
        drop(graph.unwrap());
        comm.on_stream(stream).barrier().unwrap();
        comm.on_stream(stream).synchronize().unwrap();
    });
}

/// A rank leaves in the middle: its streams go on, and those of the others with its name.
#[test]
fn a_stream_that_waits_for_a_collective_is_released() {
    on_streams(&Network::all(), |comm, stream| {
        let on = comm.on_stream(stream);
        let data = upload(stream, &[1; 50]);
        if comm.rank() == 1 {
            return;
        }
        let told = on.allreduce(&IN_PLACE, &data, Op::Sum).unwrap();
        stream.synchronize().unwrap();
        let e = told.wait().unwrap_err();
        let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
        assert!(kinds.contains(&e.kind()), "{e}");
        assert!(e.to_string().contains("rank 1"), "{e}");
    });
}
