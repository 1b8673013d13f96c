//! Collective calls that are enqueued on streams, beside the same calls of the host.

use crate::driver;
use crate::support::fails;
use crate::{Late, alone, memory, of_others, on_streams};
use osier::devices::{DeviceSlice, Graph, Pinned, Stream, UserKernel, copy};
use osier::model::DeviceCalls;
use osier::testing::{Network, ranks_on};
use osier::{Communicator, Datatype, ErrorKind, IN_PLACE, Op};
use osier_bed::devices::{device_traffic, reduce_devices};
use osier_collectives::{Algorithm, Hierarchy, Operation, Tree};
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::device::Reductions;
use std::sync::Arc;

/// Elements of each rank's share.
const EACH: usize = 700;

fn upload<T: Datatype>(stream: &Stream, data: &[T]) -> DeviceSlice<T> {
    let staged = Pinned::from_slice(stream.context(), data).unwrap();
    let place = DeviceSlice::<T>::new(stream, data.len()).unwrap();
    copy::copy(stream, &staged.on_device(stream), &place).unwrap();
    place.into_inner()
}

/// What lies there behind the stream's work: the stream waits, and the host for it.
fn download<T: Datatype + Default>(stream: &Stream, from: &DeviceSlice<T>) -> Vec<T> {
    let zeroes = vec![T::default(); from.len()];
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
        let (from, mut to) = (upload($stream, &send), upload($stream, &recv));
        $comm.on_stream($stream).$call(&from, $($at, $($more,)?)? &mut to $(, $arg)*).unwrap();
        // Behind it, the contribution may be used again.
        copy::fill($stream, &from.after_stream($stream), 1).unwrap();
        assert!(download($stream, &to) == right, stringify!($call));
    }};
}

/// Each call of two buffers: on the host, then at each launch of a graph, with new data.
macro_rules! at_each_launch {
    (
        $comm:ident, $stream:ident, $call:ident, $send:expr $(=> $at:expr, $($more:expr)?;)?,
        $recv:expr $(, $arg:expr)*
    ) => {{
        let blank = numbers($comm.rank() + 10, $recv);
        let (from, mut to) = (upload($stream, &numbers(0, $send)), upload($stream, &blank));
        let found = upload($stream, &blank);
        let graph = Graph::capture($stream, |stream| {
            $comm.on_stream(stream).$call(&from, $($at, $($more,)?)? &mut to $(, $arg)*).unwrap();
            copy::copy(stream, &to.after_stream(stream), &found.after_stream(stream))?;
            // Behind it, the contribution may be used again.
            copy::fill(stream, &from.after_stream(stream), 1).map(drop)
        })
        .unwrap();
        for round in 0..3 {
            let (send, mut right) = (numbers($comm.rank() + 3 * round, $send), blank.clone());
            $comm.$call(&send, $($at, $($more,)?)? &mut right $(, $arg)*).unwrap();
            replace($stream, &send, &from);
            replace($stream, &blank, &to);
            graph.launch($stream, &[]).unwrap();
            assert!(download($stream, &found) == right, "{}, {round}", stringify!($call));
        }
    }};
}

/// All calls of two buffers, in one of the ways above; the last ones on a ring, which it returns.
macro_rules! each_call {
    ($how:ident, $comm:ident, $stream:ident) => {{
        let n = $comm.size();
        $how!($comm, $stream, allreduce, 1, 1, Op::Sum);
        $how!($comm, $stream, reduce, 1, 1, 1, Op::Max);
        $how!($comm, $stream, scan, 1, 1, Op::Min);
        $how!($comm, $stream, exscan, 1, 1, Op::Sum);
        $how!($comm, $stream, reduce_scatter_block, n, 1, Op::Sum);
        $how!($comm, $stream, gather, 1, n, 0);
        $how!($comm, $stream, allgather, 1, n);
        $how!($comm, $stream, scatter, n, 1, 1);
        $how!($comm, $stream, alltoall, n, n);
        // Blocks of as many elements, from behind.
        let counts = vec![EACH; n];
        let places: Vec<usize> = (0..n).rev().map(|rank| rank * EACH).collect();
        let blocks = (&counts[..], &places[..]);
        $how!($comm, $stream, reduce_scatter, n, 1, &counts, Op::Sum);
        $how!($comm, $stream, gatherv, 1, n, &counts, &places, 0);
        $how!($comm, $stream, allgatherv, 1, n, &counts, &places);
        $how!($comm, $stream, alltoallv, n => blocks,;, n, blocks);
        $how!($comm, $stream, scatterv, n => &counts, &places;, 1, 0);

        let ring = $comm.cart_create(&[n], &[true]).unwrap().unwrap();
        let (two, at) = ([EACH; 2], [EACH, 0]);
        let pair = (&two[..], &at[..]);
        $how!(ring, $stream, neighbor_allgather, 1, 2);
        $how!(ring, $stream, neighbor_allgatherv, 1, 2, &two, &at);
        $how!(ring, $stream, neighbor_alltoall, 2, 2);
        $how!(ring, $stream, neighbor_alltoallv, 2 => pair,;, 2, pair);
        ring
    }};
}

fn every_call(comm: &Communicator, stream: &Stream) {
    let n = comm.size();
    let on = comm.on_stream(stream);
    let mut right = numbers(comm.rank(), 1);
    let mut data = upload(stream, &right);
    on.bcast(&mut data, n - 1).unwrap();
    comm.bcast(&mut right, n - 1).unwrap();
    assert!(download(stream, &data) == right, "bcast");

    let ring = each_call!(both, comm, stream);

    // A buffer for each block.
    let part = |rank: usize| upload(stream, &numbers(rank, 1));
    for comm in [comm, &ring] {
        let of_ring = comm.cart().is_some();
        let blocks = if of_ring { 2 } else { n };
        let send: Vec<_> = (0..blocks).map(|to| part(10 * comm.rank() + to)).collect();
        let mut recv: Vec<_> = (0..blocks).map(|_| part(99)).collect();
        let on = comm.on_stream(stream);
        let from = |from: usize, at: usize| numbers(10 * from + at, 1);
        let (me, right): (usize, Vec<Vec<i32>>) = (comm.rank(), Vec::new());
        let mut right = right;
        match of_ring {
            true => {
                on.neighbor_alltoallw(&send, &mut recv).unwrap();
                // From the left its block to the right, and the reverse.
                right.extend([from((me + n - 1) % n, 1), from((me + 1) % n, 0)]);
            }
            false => {
                on.alltoallw(&send, &mut recv).unwrap();
                right.extend((0..n).map(|rank| from(rank, me)));
            }
        }
        for (found, right) in recv.iter().zip(&right) {
            assert!(download(stream, found) == *right, "alltoallw");
        }
    }
}

#[test]
fn enqueued_collective_gives_result_of_blocking_one() {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    for network in Network::all() {
        let streams = super::streams(&context, 3);
        ranks_on(&network, 3, |comm| {
            every_call(&comm, &streams[comm.rank()]);
        });
    }
}

/// Calls in a row between kernels; the host waits once.
#[test]
fn calls_in_a_row_wait_for_each_other_on_the_stream() {
    on_streams(&Network::all(), |comm, stream| {
        let on = comm.on_stream(stream);
        let mut sum = upload(stream, &vec![1; 100]);
        let mut all = upload(stream, &vec![0; 200]);
        for _ in 0..5 {
            on.allreduce(&IN_PLACE, &mut sum, Op::Sum).unwrap();
            on.allgather(&sum, &mut all).unwrap();
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
fn enqueued_barrier_waits_for_work_of_all_streams() {
    on_streams(&[Network::Shm], |comm, stream| {
        let (on, late) = (comm.on_stream(stream), Late::default());
        // A driver may make no stream while another is held.
        let told = Stream::new(stream.context()).unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            late.hold(stream);
        }
        let passed = on.barrier().unwrap();
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
fn stream_continues_after_enqueued_collective_failed() {
    on_streams(&[Network::Shm], |comm, stream| {
        let on = comm.on_stream(stream);
        let (mut data, mut short) = (upload(stream, &[1; 50]), upload(stream, &[1; 40]));
        let mine = if comm.rank() == 0 {
            &mut data
        } else {
            &mut short
        };
        let told = on.bcast(mine, 0).unwrap();
        stream.synchronize().unwrap();
        if comm.rank() == 1 {
            fails(told.wait(), ErrorKind::Truncated, &["bcast", "200", "160"]);
        } else {
            told.wait().unwrap();
        }
        // Nobody asks for this one's.
        let mut byte = memory(stream, 1);
        if comm.rank() == 1 {
            comm.send(&[0u8; 9], 1, 7).unwrap();
            drop(on.recv(&mut byte, 1, 7).unwrap());
            stream.synchronize().unwrap();
            let told = on.allreduce(&IN_PLACE, &mut data, Op::Sum);
            fails(told, ErrorKind::Truncated, &["earlier", "9", "1"]);
        } else {
            let told = on.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap();
            fails(told.wait(), ErrorKind::Cancelled, &["rank 1", "allreduce"]);
        }
        stream.synchronize().unwrap();
        on.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap();
        on.synchronize().unwrap();
    });
}

fn replace<T: Datatype>(stream: &Stream, data: &[T], to: &DeviceSlice<T>) {
    let from = upload(stream, data);
    copy::copy(stream, &from.after_stream(stream), &to.after_stream(stream)).unwrap();
}

fn every_captured_call(comm: &Communicator, stream: &Stream) {
    let (me, n) = (comm.rank(), comm.size());
    let mut data = upload(stream, &numbers(me, 1));
    let graph = Graph::capture(stream, |stream| {
        let on = comm.on_stream(stream);
        on.bcast(&mut data, n - 1).unwrap();
        on.barrier().unwrap();
        Ok(())
    });
    let graph = graph.unwrap();
    for round in 0..3 {
        replace(stream, &numbers(10 * round + me, 1), &data);
        graph.launch(stream, &[]).unwrap();
        let right = numbers(10 * round + n - 1, 1);
        assert!(download(stream, &data) == right, "bcast");
    }

    each_call!(at_each_launch, comm, stream);
    comm.on_stream(stream).synchronize().unwrap();
}

#[test]
fn captured_collective_gives_result_of_blocking_one_at_each_launch() {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    for network in Network::all() {
        for reductions in [Reductions::Auto, Reductions::Device] {
            let streams = super::streams(&context, 3);
            ranks_on(&network, 3, |comm| {
                reduce_devices(&comm, reductions);
                every_captured_call(&comm, &streams[comm.rank()]);
            });
        }
    }
}

/// Graphs of two streams, launched in other orders by the ranks: each call meets its own.
#[test]
fn graphs_with_collectives_are_launched_in_any_order() {
    on_streams(&Network::all(), |comm, stream| {
        let streams = [stream.clone(), Stream::new(stream.context()).unwrap()];
        let graphs = [0, 1].map(|at: usize| {
            let stream = &streams[at];
            let (data, ones) = (upload(stream, &[0i64; 300]), upload(stream, &[1i64; 300]));
            let graph = Graph::capture(stream, |stream| {
                let on = comm.on_stream(stream);
                on.allreduce(&IN_PLACE, &mut data.clone(), Op::Sum).unwrap();
                on.reduce_local(&ones, &mut data.clone(), Op::Sum).unwrap();
                Ok(())
            });
            (data, graph.unwrap())
        });
        for round in 0..20i64 {
            let first = (comm.rank() + round as usize) % 2;
            for at in [first, 1 - first] {
                let value = 10 * round + at as i64;
                replace(&streams[at], &[value; 300], &graphs[at].0);
                graphs[at].1.launch(&streams[at], &[]).unwrap();
            }
            for (at, (data, _)) in graphs.iter().enumerate() {
                let right = 2 * (10 * round + at as i64) + 1;
                assert!(download(&streams[at], data) == vec![right; 300], "{round}");
            }
        }
    });
}

/// As torch captures, and with nothing of Osier called between launches.
#[test]
fn graphs_of_others_reduce_at_each_launch() {
    on_streams(&[Network::Shm], |comm, stream| {
        let (data, mut sum) = (upload(stream, &[1i32; 100]), upload(stream, &[0i32; 100]));
        let (byte, mut got) = (memory(stream, 1), memory(stream, 1));
        let other = 1 - comm.rank();
        let work = || {
            let on = comm.on_stream(stream);
            on.allreduce(&data, &mut sum, Op::Sum).unwrap();
            on.sendrecv(&byte, other, 0, &mut got, other, 0).unwrap();
            on.barrier().unwrap();
        };
        let meet = || comm.barrier().unwrap();
        let graph = of_others::OfOthers::capture(stream, of_others::GLOBAL, work, meet);
        let graph = graph.unwrap_or_else(|code| panic!("the capture was spoiled: {code}"));
        for _ in 0..300 {
            graph.launch(stream);
            stream.synchronize().unwrap();
        }
        // The last ones of the four.
        assert!(osier::internals::kept_of_streams(comm) <= 4);
        assert!(download(stream, &sum) == vec![2; 100]);
    });
}

/// A call that fails at launches: its handle tells it, else the next call does, once.
#[test]
fn captured_collective_that_fails_is_told_of() {
    on_streams(&[Network::Shm], |comm, stream| {
        let on = comm.on_stream(stream);
        let mut long = upload(stream, &[1; 50]);
        let mut data = long.slice(..50 - 10 * comm.rank()).unwrap();
        let mut handle = None;
        let graph = Graph::capture(stream, |stream| {
            handle = Some(comm.on_stream(stream).bcast(&mut data, 0).unwrap());
            Ok(())
        });
        let (graph, handle) = (graph.unwrap(), handle.unwrap());
        for _ in 0..5 {
            graph.launch(stream, &[]).unwrap();
            stream.synchronize().unwrap();
        }
        if comm.rank() == 1 {
            // Of five, the first and the last.
            assert_eq!(osier::internals::kept_of_streams(comm), 2);
            fails(
                handle.wait(),
                ErrorKind::Truncated,
                &["bcast", "200", "160"],
            );
            let told = on.bcast(&mut long, 0);
            fails(told, ErrorKind::Truncated, &["earlier", "200", "160"]);
        } else {
            handle.wait().unwrap();
            drop(on.bcast(&mut long, 0).unwrap());
        }
        on.synchronize().unwrap();
        comm.barrier().unwrap();
    });
}

/// A rank leaves while a graph waits: the graph goes on, and the error names it.
#[test]
fn a_graph_that_waits_for_a_collective_is_released() {
    on_streams(&Network::all(), |comm, stream| {
        let mut data = upload(stream, &[1; 50]);
        let mut handle = None;
        let graph = Graph::capture(stream, |stream| {
            let on = comm.on_stream(stream);
            handle = Some(on.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap());
            Ok(())
        });
        let graph = graph.unwrap();
        if comm.rank() == 1 {
            return;
        }
        for _ in 0..3 {
            graph.launch(stream, &[]).unwrap();
            stream.synchronize().unwrap();
            let e = handle.as_ref().unwrap().wait().unwrap_err();
            let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
            assert!(kinds.contains(&e.kind()), "{e}");
            assert!(e.to_string().contains("rank 1"), "{e}");
        }
    });
}

/// A rank leaves in the middle: its streams go on, and those of the others with its name.
#[test]
fn a_stream_that_waits_for_a_collective_is_released() {
    on_streams(&Network::all(), |comm, stream| {
        let on = comm.on_stream(stream);
        let mut data = upload(stream, &[1; 50]);
        if comm.rank() == 1 {
            return;
        }
        let told = on.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap();
        stream.synchronize().unwrap();
        let e = told.wait().unwrap_err();
        let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
        assert!(kinds.contains(&e.kind()), "{e}");
        assert!(e.to_string().contains("rank 1"), "{e}");
    });
}

/// Bits of a rank's numbers, which round when they are added.
fn roundings(rank: usize, len: usize) -> Vec<f64> {
    let each = |i: usize| (1.0 + i as f64).sqrt() * [1e-9, 1.0, 1e9][(i + rank) % 3] - rank as f64;
    (0..len).map(each).collect()
}

/// A call on the host, then on the device, and combinations of the latter.
macro_rules! alike {
    ($comm:ident, $stream:ident, $op:expr, $call:ident, $send:expr, $recv:expr $(, $root:expr)?) => {{
        let before = device_traffic($comm).combined;
        let (send, recv): (Vec<_>, Vec<_>) = ($send, $recv);
        let (mut right, to) = (recv.clone(), upload($stream, &recv));
        $comm.$call(&send, &mut right $(, $root)?, $op).unwrap();
        let from = upload($stream, &send).after_stream($stream);
        $comm.$call(&from, &mut to.after_stream($stream) $(, $root)?, $op).unwrap();
        let bits = |all: &[_]| format!("{all:?}");
        assert!(bits(&download($stream, &to)) == bits(&right), stringify!($call));
        (right, device_traffic($comm).combined - before)
    }};
}

fn reductions_of(comm: &Communicator, stream: &Stream) {
    let (me, n) = (comm.rank(), comm.size());
    let sums = || roundings(me, EACH);
    let longest =
        osier::operators::function(|a: f64, b: f64| if b.abs() > a.abs() { b } else { a });
    for (algorithm, segments) in [
        (None, 1),
        (Some(Algorithm::RecursiveDoubling), 3),
        (Some(Algorithm::Binomial), 2),
        (Some(Algorithm::Rabenseifner), 1),
    ] {
        let what = format!("{algorithm:?}, {segments} segments");
        comm.use_algorithm(algorithm.map(|algorithm| (algorithm, segments)));
        let (_, all) = alike!(comm, stream, Op::Sum, allreduce, sums(), vec![0.0; EACH]);
        let (_, max) = alike!(comm, stream, Op::Max, allreduce, sums(), vec![0.0; EACH]);
        let (_, one) = alike!(
            comm,
            stream,
            Op::Sum,
            reduce,
            sums(),
            vec![7.0; EACH],
            n - 1
        );
        let (_, scan) = alike!(comm, stream, Op::Product, scan, sums(), vec![0.0; EACH]);
        let (_, ex) = alike!(comm, stream, Op::Sum, exscan, sums(), vec![0.5; EACH]);
        let shares = roundings(me, n * EACH);
        let (_, own) = alike!(
            comm,
            stream,
            Op::Sum,
            reduce_scatter_block,
            shares,
            vec![0.0; EACH]
        );
        let (_, whole) = alike!(
            comm,
            stream,
            Op::BitAnd,
            allreduce,
            numbers(me, 1),
            vec![0; EACH]
        );
        // What only the host knows is done there.
        let (_, host) = alike!(comm, stream, &longest, allreduce, sums(), vec![0.0; EACH]);
        assert_eq!(host, 0, "{what}");
        // Of two ranks the first prefix without oneself is nothing, the second a copy.
        assert!(n > 2 || ex == 0, "{what}");
        let mut made = [all, max, one, scan, ex + u64::from(n == 2), own, whole];
        comm.allreduce(&IN_PLACE, &mut made, Op::Sum).unwrap();
        // One rank at least combines on its device, in each call.
        assert!(made.iter().all(|made| *made > 0), "{what}: {made:?}");
    }
    comm.use_algorithm(None);
    // In place, again and again, and with gaps, which the host has.
    let (mut right, data) = (sums(), upload(stream, &sums()));
    for _ in 0..3 {
        comm.allreduce(&IN_PLACE, &mut right, Op::Sum).unwrap();
        let mut data = data.after_stream(stream);
        comm.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap();
    }
    assert!(download(stream, &data) == right);
    // One rank's memory is the host's.
    let from = upload(stream, &sums()).after_stream(stream);
    let (mut right, mut found) = (vec![0.0; EACH], vec![0.0; EACH]);
    comm.allreduce(&sums(), &mut right, Op::Sum).unwrap();
    match me {
        0 => comm.allreduce(&sums(), &mut found, Op::Sum).unwrap(),
        _ => {
            let to = upload(stream, &found);
            let into = &mut to.after_stream(stream);
            comm.allreduce(&from, into, Op::Sum).unwrap();
            found = download(stream, &to);
        }
    }
    assert!(found == right);
}

/// Kernels combine what lies on devices, with the bits of the host.
#[test]
fn reductions_combine_on_the_device() {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    for (network, ranks) in Network::all().into_iter().zip([2, 3]) {
        let streams = super::streams(&context, ranks);
        ranks_on(&network, ranks, |comm| {
            let stream = &streams[comm.rank()];
            reduce_devices(&comm, Reductions::Device);
            reductions_of(&comm, stream);
            // Short ones are not worth a kernel.
            reduce_devices(&comm, Reductions::Auto);
            let comm = &comm;
            let (_, kernels) = alike!(comm, stream, Op::Sum, allreduce, vec![1.5], vec![0.0]);
            assert_eq!(kernels, 0);
        });
    }
}

/// A function of the user has a kernel, too.
#[test]
fn reduction_on_device_runs_kernel_of_the_user() {
    let Some(context) = driver::context() else {
        return;
    };
    let Some(library) = driver::library_of_kernels("../../kernels/tests/cuda") else {
        return;
    };
    let image = std::fs::read(library).unwrap();
    // SAFETY: the kernel adds twice the right operand to the left one.
    let kernel = unsafe { UserKernel::load(&context, &image, "osier_test_axpy") };
    let Ok(kernel) = kernel else {
        return driver::needs::missing("gpu", "it takes no library of the host");
    };
    let _alone = alone();
    let streams = super::streams(&context, 2);
    ranks_on(&Network::Shm, 2, |comm| {
        reduce_devices(&comm, Reductions::Device);
        let (comm, stream) = (&comm, &streams[comm.rank()]);
        let op =
            osier::operators::function(|a: f64, b: f64| a + 2.0 * b).with_kernel(kernel.clone());
        let data = roundings(comm.rank(), EACH);
        let (sum, kernels) = alike!(comm, stream, &op, allreduce, data, vec![0.0; EACH]);
        assert!(kernels > 0);
        let (a, b) = (roundings(0, EACH), roundings(1, EACH));
        assert!(
            sum.iter()
                .zip(a.iter().zip(&b))
                .all(|(s, (a, b))| *s == a + 2.0 * b)
        );
    });
}

/// Calls whose buffers stay on devices, by plans that keep copies on the host, too.
fn stays(comm: &Communicator, stream: &Stream, plans: &[(Algorithm, u32)]) {
    let (me, n) = (comm.rank(), comm.size());
    for (algorithm, segments) in plans {
        let what = format!("{algorithm}, {segments} segments");
        comm.use_algorithm_on_devices(algorithm.clone(), *segments, true);
        let data = upload(stream, &numbers(me, 1));
        comm.bcast(&mut data.after_stream(stream), 0).unwrap();
        assert!(download(stream, &data) == numbers(0, 1), "bcast by {what}");
        let all = upload(stream, &vec![0; n * EACH]);
        let own = upload(stream, &numbers(me, 1)).after_stream(stream);
        comm.allgather(&own, &mut all.after_stream(stream)).unwrap();
        let right: Vec<i32> = (0..n).flat_map(|rank| numbers(rank, 1)).collect();
        assert!(download(stream, &all) == right, "allgather by {what}");
        let whole = upload(stream, &numbers(me, n)).after_stream(stream);
        let to = upload(stream, &vec![0; n * EACH]);
        comm.alltoall(&whole, &mut to.after_stream(stream)).unwrap();
        let part = |rank| numbers(rank, n)[me * EACH..(me + 1) * EACH].to_vec();
        let right: Vec<i32> = (0..n).flat_map(part).collect();
        assert!(download(stream, &to) == right, "alltoall by {what}");
        let (_, sum) = alike!(
            comm,
            stream,
            Op::Sum,
            allreduce,
            numbers(me, 1),
            vec![0; EACH]
        );
        let (_, top) = alike!(
            comm,
            stream,
            Op::Max,
            reduce,
            numbers(me, 1),
            vec![0; EACH],
            0
        );
        let mut made = [sum + top];
        comm.allreduce(&IN_PLACE, &mut made, Op::Sum).unwrap();
        assert!(made[0] > 0, "nothing was combined on a device: {what}");
    }
    comm.use_algorithm(None);
}

#[test]
fn buffers_stay_on_devices() {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    for network in Network::all() {
        ranks_on(&network, 4, |comm| {
            let places: Vec<Vec<u32>> = (0..4).map(|rank| vec![rank / 2]).collect();
            let levels = Arc::new(Hierarchy::new(&places, 0, &[Tree::Chain]));
            let plans = [
                (Algorithm::HostLeaders(levels.clone(), 1), 3),
                (Algorithm::HostLeaders(levels, 0), 1),
                (Algorithm::Binomial, 2),
                (Algorithm::Spread, 1),
                (Algorithm::Bruck, 1),
            ];
            reduce_devices(&comm, Reductions::Device);
            stays(&comm, &Stream::new(&context).unwrap(), &plans);
        });
    }
}

/// Buffers of one rank are combined by a kernel behind a stream's work, or through the host.
#[test]
fn buffers_of_a_device_are_combined_here() {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    ranks_on(&Network::Shm, 1, |comm| {
        let stream = &Stream::new(&context).unwrap();
        let (mut right, input) = (numbers(1, 1), numbers(2, 1));
        osier::operators::reduce_local(&input, &mut right, Op::Sum).unwrap();
        let (from, mut into) = (upload(stream, &input), upload(stream, &numbers(1, 1)));
        osier::operators::reduce_local(
            &from.after_stream(stream),
            &mut into.after_stream(stream),
            Op::Sum,
        )
        .unwrap();
        assert!(download(stream, &into) == right, "on the device");
        // One of them on the host, and a function without a kernel.
        let minus = osier::operators::function(|a: i32, b: i32| a - b);
        osier::operators::reduce_local(&input, &mut right, &minus).unwrap();
        osier::operators::reduce_local(&input, &mut into.after_stream(stream), &minus).unwrap();
        assert!(download(stream, &into) == right, "through the host");
        let on = comm.on_stream(stream);
        on.reduce_local(&from, &mut into, Op::Max).unwrap();
        osier::operators::reduce_local(&input, &mut right, Op::Max).unwrap();
        assert!(download(stream, &into) == right, "behind the stream's work");
        let refused = on.reduce_local(&from, &mut into, &minus).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
    });
}

/// Ranks find out together where their buffers are, and choose by costs of devices: calls
/// that wait ask at the first, second, fourth... of a kind; others use what is known.
#[test]
fn plans_for_devices_are_agreed() {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    ranks_on(&Network::Shm, 3, |comm| {
        let stream = &Stream::new(&context).unwrap();
        let unknown = comm.explain_on_devices(Operation::Bcast, 1 << 20);
        assert_eq!(unknown.unwrap_err().kind(), ErrorKind::Unavailable);
        // Crossings that cost so much that nothing goes through the host.
        let mut table = comm.call_costs();
        let mut devices = DeviceCalls::estimated(&LinkCosts::default());
        for crossing in devices.to_host.iter_mut().chain(&mut devices.to_device) {
            crossing.ns += 1e9;
        }
        table.devices = Some(devices);
        comm.adopt_costs(Some(&table)).unwrap();
        let choice = comm
            .explain_on_devices(Operation::Allreduce, 1 << 20)
            .unwrap();
        assert!(!choice.through_host(), "{choice}");
        let combined = |sums: &[f64]| {
            let before = device_traffic(&comm).combined;
            let data = upload(stream, sums);
            comm.allreduce(&IN_PLACE, &mut data.after_stream(stream), Op::Sum)
                .unwrap();
            let mut made = [device_traffic(&comm).combined - before];
            comm.allreduce(&IN_PLACE, &mut made, Op::Sum).unwrap();
            (download(stream, &data), made[0])
        };
        reduce_devices(&comm, Reductions::Auto);
        let sums = roundings(comm.rank(), 4 * EACH);
        let mut right = sums.clone();
        // On the host: the first asks, and finds that.
        comm.allreduce(&IN_PLACE, &mut right, Op::Sum).unwrap();
        for call in 2..6 {
            // The second asks.
            let (found, kernels) = combined(&sums);
            assert!(found == right, "call {call}");
            assert!(kernels > 0, "call {call}");
        }
        // One rank's memory is the host's; what is known of these calls is out of date.
        let mut data = sums.clone();
        match comm.rank() {
            0 => comm.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap(),
            _ => {
                let there = upload(stream, &sums);
                comm.allreduce(&IN_PLACE, &mut there.after_stream(stream), Op::Sum)
                    .unwrap();
                data = download(stream, &there);
            }
        }
        assert!(data == right);
        // One that does not wait uses what is known; roots and in place do not matter.
        let mut there = upload(stream, &sums);
        let on = comm.on_stream(stream);
        on.allreduce(&IN_PLACE, &mut there, Op::Sum).unwrap();
        assert!(download(stream, &there) == right);
    });
}

/// A rank leaves while kernels combine: the others are told, and nothing is left.
#[test]
fn device_reduction_names_rank_that_left() {
    on_streams(&[Network::Shm], |comm, stream| {
        reduce_devices(comm, Reductions::Device);
        let data = upload(stream, &roundings(comm.rank(), EACH));
        let mut data = data.after_stream(stream);
        comm.use_algorithm(Some((Algorithm::RecursiveDoubling, 4)));
        comm.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap();
        if comm.rank() == 1 {
            return;
        }
        let e = comm.allreduce(&IN_PLACE, &mut data, Op::Sum).unwrap_err();
        let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
        assert!(kinds.contains(&e.kind()), "{e}");
        assert!(e.to_string().contains("rank 1"), "{e}");
    });
}
