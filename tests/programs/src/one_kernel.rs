//! Allreduces that are one kernel of each rank, between processes with a device of their own.

use super::devices::{device, download, upload};
use osier::datatype::Basic;
use osier::devices::{DeviceSlice, DeviceView, Graph, Stream, copy};
use osier::model::DeviceCalls;
use osier::{Communicator, ErrorKind, IN_PLACE, Op, Type};
use osier_bed::devices::{device_traffic, device_use, exchanges_by_multicast};
use osier_collectives::{Algorithm, Operation};
use osier_engine::protocol::cost::LinkCosts;

/// Costs by which neither the host nor messages are worth it.
fn adopt(comm: &Communicator) {
    let mut table = comm.call_costs();
    let mut devices = DeviceCalls::estimated(&LinkCosts::default());
    for crossing in devices.to_host.iter_mut().chain(&mut devices.to_device) {
        crossing.ns += 1e9;
    }
    for class in &mut devices.classes {
        for message in &mut class.messages {
            message.one_way_ns += 1e9;
        }
    }
    table.devices = Some(devices);
    comm.adopt_costs(Some(&table)).expect("a table");
}

/// Numbers that round when they are added.
fn numbers(rank: usize, len: usize) -> Vec<f32> {
    let each = |i: usize| (1.0 + i as f32).sqrt() * [1e-4, 1.0, 1e4][(i + rank) % 3];
    (0..len).map(each).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn floats(slice: &DeviceSlice<u8>) -> DeviceView<u8> {
    let float = Type::basic(Basic::F32);
    let layout = Type::contiguous(slice.len() / 4, &float).expect("a type");
    DeviceView::new(slice, 0, &layout.commit().expect("a layout"), 1).expect("inside")
}

/// The sum of all ranks, by the host.
fn expected(comm: &Communicator, own: &[f32]) -> Vec<u8> {
    let mut sums = own.to_vec();
    comm.allreduce(&IN_PLACE, &mut sums, Op::Sum)
        .expect("a sum");
    bytes(&sums)
}

/// Kernels that have combined here.
fn combined(comm: &Communicator) -> u64 {
    device_traffic(comm).combined
}

/// Whether its exchanges, of which there are so many, store by multicast, as `multicast` says;
/// and that nothing that was asked for to make them is awaited.
fn check_exchanges(comm: &Communicator, multicast: bool, count: usize) {
    let found = exchanges_by_multicast(comm);
    assert_eq!(found, vec![multicast; count], "rank {}", comm.rank());
    assert_eq!(device_use(comm).awaited, 0);
}

/// A last word `multicast` says that all ranks have it.
pub fn run(comm: &Communicator, what: &[&str]) {
    if what != ["unmeasured"] {
        adopt(comm);
    }
    let (what, multicast) = match what {
        [what @ .., "multicast"] => (what, true),
        what => (what, false),
    };
    match what {
        ["sizes"] => sizes(comm),
        ["memory"] => memory(comm),
        ["enqueued"] => enqueued(comm),
        ["failures"] => failures(comm),
        ["shared"] => shared(comm),
        ["death"] => death(comm),
        ["late"] => late(comm),
        ["unmeasured"] => unmeasured(comm),
        ["captured"] => captured(comm, multicast),
        ["captured-death"] => captured_death(comm),
        ["set-up"] => {
            set_up(comm);
            return super::through(comm);
        }
        _ => panic!("one kernel {what:?}?"),
    }
    check_exchanges(comm, multicast, usize::from(what != ["shared"]));
    super::through(comm);
}

/// The first calls ask, then each is one kernel; longer ones are not. The choice says so.
fn sizes(comm: &Communicator) {
    let (_context, stream) = device(comm);
    // Calls of the host are counted elsewhere.
    let host = comm.dup().expect("a duplicate");
    for len in [1, 2, 255, 512, 1000, 2048, 2049, 9999, 16_384, 16_385] {
        let own = numbers(comm.rank(), len);
        let right = expected(&host, &own);
        for call in 0..6 {
            let before = combined(comm);
            let (from, to) = (upload(&stream, &bytes(&own)), upload(&stream, &bytes(&own)));
            let mut into = floats(&to).after_stream(&stream);
            match call % 2 {
                0 => comm.allreduce(&floats(&from).after_stream(&stream), &mut into, Op::Sum),
                _ => comm.allreduce(&IN_PLACE, &mut into, Op::Sum),
            }
            .expect("a sum");
            assert!(download(&stream, &to) == right, "{len} floats, call {call}");
            let made = combined(comm) - before;
            if call > 0 && len <= 16_384 {
                assert_eq!(made, 1, "{len} floats, call {call}");
            }
        }
    }
    let choice = |bytes| {
        let choice = comm.explain_on_devices(Operation::Allreduce, bytes);
        choice.expect("a choice").to_string()
    };
    let (short, long) = (choice(65_536), choice(65_537));
    let chosen = short.lines().next().expect("a line");
    assert!(chosen.ends_with("one kernel per rank"), "{short}");
    assert!(!long.contains("one kernel"), "{long}");
    // The host's own calls stay right beside them, and ranks may be many in flight.
    let sums: Vec<_> = (0..40).map(|k| numbers(comm.rank() + k, 300)).collect();
    let right: Vec<_> = sums.iter().map(|own| expected(comm, own)).collect();
    let there: Vec<_> = sums
        .iter()
        .map(|own| upload(&stream, &bytes(own)))
        .collect();
    let begun: Vec<_> = there
        .iter()
        .map(|own| comm.iallreduce(IN_PLACE, floats(own).after_stream(&stream), Op::Sum))
        .collect();
    for (at, request) in begun.into_iter().enumerate() {
        request.expect("a request").wait().expect("a sum");
        assert!(download(&stream, &there[at]) == right[at], "number {at}");
    }
}

/// What all know to lie on devices may lie elsewhere after all: on the host, or with gaps.
fn memory(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let own = numbers(comm.rank(), 3000);
    let right = expected(&comm.dup().expect("a duplicate"), &own);
    let there = upload(&stream, &bytes(&own));
    comm.use_algorithm_on_devices(Algorithm::OneKernel, 1, true);
    // At the sixteenth they ask.
    for _ in 0..17 {
        copy::copy(
            &stream,
            &upload(&stream, &bytes(&own)).after_stream(&stream),
            &there.after_stream(&stream),
        )
        .expect("a copy");
        let mut into = floats(&there).after_stream(&stream);
        comm.allreduce(&IN_PLACE, &mut into, Op::Sum)
            .expect("a sum");
        assert!(download(&stream, &there) == right);
    }
    for round in 0..6 {
        let before = combined(comm);
        let found = match (comm.rank() + round) % 3 {
            0 => {
                let mut sums = own.clone();
                comm.allreduce(&IN_PLACE, &mut sums, Op::Sum)
                    .expect("a sum");
                bytes(&sums)
            }
            1 => {
                // Every other float.
                let float = Type::basic(Basic::F32);
                let layout = Type::vector(3000, 1, 2, &float).expect("a type");
                let layout = layout.commit().expect("a layout");
                let wide: Vec<f32> = own.iter().flat_map(|n| [*n, -1.0]).collect();
                let wide = upload(&stream, &bytes(&wide));
                let view = DeviceView::new(&wide, 0, &layout, 1).expect("inside");
                let mut view = view.after_stream(&stream);
                comm.allreduce(&IN_PLACE, &mut view, Op::Sum)
                    .expect("a sum");
                let wide = download(&stream, &wide);
                let gap = |pair: &[u8]| pair[4..] == (-1.0f32).to_le_bytes();
                assert!(wide.chunks_exact(8).all(gap), "round {round}");
                wide.chunks_exact(8)
                    .flat_map(|pair| pair[..4].to_vec())
                    .collect()
            }
            _ => {
                let there = upload(&stream, &bytes(&own));
                let mut into = floats(&there).after_stream(&stream);
                comm.allreduce(&IN_PLACE, &mut into, Op::Sum)
                    .expect("a sum");
                download(&stream, &there)
            }
        };
        assert!(found == right, "round {round}");
        assert!(combined(comm) > before, "round {round}");
    }
}

/// Streams wait in the kernel, in the order of the calls.
fn enqueued(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let on = comm.on_stream(&stream);
    assert!(on.link().expect("an answer"));
    let own = numbers(comm.rank(), 700);
    let mut right = own.clone();
    for _ in 0..20 {
        comm.allreduce(&IN_PLACE, &mut right, Op::Sum)
            .expect("a sum");
    }
    let there = upload(&stream, &bytes(&own));
    let mut into = floats(&there);
    let before = combined(comm);
    for _ in 0..20 {
        on.allreduce(&IN_PLACE, &mut into, Op::Sum).expect("a sum");
    }
    on.synchronize().expect("the stream");
    assert!(download(&stream, &there) == bytes(&right));
    assert_eq!(combined(comm) - before, 20);
    // Two streams, one behind the other.
    let other = Stream::new(stream.context()).expect("a stream");
    let (a, b) = (upload(&stream, &bytes(&own)), upload(&other, &bytes(&own)));
    let (mut first, mut second) = (floats(&a), floats(&b));
    on.allreduce(&IN_PLACE, &mut first, Op::Sum).expect("a sum");
    comm.on_stream(&other)
        .allreduce(&IN_PLACE, &mut second, Op::Sum)
        .expect("a sum");
    let sum = expected(comm, &own);
    assert!(download(&stream, &a) == sum && download(&other, &b) == sum);
}

/// A call that fails at one rank fails at all, one that differs is named; the next is right.
fn failures(comm: &Communicator) {
    let (_context, stream) = device(comm);
    assert!(comm.on_stream(&stream).link().expect("an answer"));
    let own = numbers(comm.rank(), 500);
    let right = expected(comm, &own);
    let sum = || {
        let there = upload(&stream, &bytes(&own));
        let mut into = floats(&there).after_stream(&stream);
        comm.allreduce(&IN_PLACE, &mut into, Op::Sum)
            .map(|()| there)
    };
    for round in 0..8 {
        assert!(
            download(&stream, &sum().expect("a sum")) == right,
            "round {round}"
        );
    }
    let before = combined(comm);
    // A shorter result than what goes in.
    let short = upload(&stream, &bytes(&own[..499]));
    let failed = match comm.rank() {
        1 => {
            let from = upload(&stream, &bytes(&own));
            let mut into = floats(&short).after_stream(&stream);
            let e = comm.allreduce(&floats(&from).after_stream(&stream), &mut into, Op::Sum);
            let e = e.expect_err("other lengths");
            assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
            e
        }
        _ => {
            let e = sum().expect_err("a rank that fails");
            assert!(e.to_string().contains("rank 1 has failed"), "{e}");
            e
        }
    };
    drop(failed);
    assert!(download(&stream, &sum().expect("a sum")) == right);
    // Fewer elements, in the same class of sizes; and another operator.
    for (len, op) in [(400, Op::Sum), (500, Op::Product)] {
        let e = match comm.rank() {
            1 => {
                let there = upload(&stream, &bytes(&own[..len]));
                let mut into = floats(&there).after_stream(&stream);
                let e = comm.allreduce(&IN_PLACE, &mut into, op);
                e.expect_err("others combine otherwise")
            }
            _ => sum().map(drop).expect_err("a rank combines otherwise"),
        };
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        let named = if comm.rank() == 1 { "rank " } else { "rank 1 " };
        assert!(e.to_string().contains(named), "{e}");
        assert!(download(&stream, &sum().expect("a sum")) == right);
    }
    assert!(combined(comm) > before);
}

/// Ranks that share a device do not.
fn shared(comm: &Communicator) {
    let (_context, stream) = device(comm);
    assert!(!comm.on_stream(&stream).link().expect("an answer"));
    let own = numbers(comm.rank(), 500);
    let right = expected(comm, &own);
    for _ in 0..5 {
        let there = upload(&stream, &bytes(&own));
        let mut into = floats(&there).after_stream(&stream);
        comm.allreduce(&IN_PLACE, &mut into, Op::Sum)
            .expect("a sum");
        assert!(download(&stream, &there) == right);
    }
    let choice = comm.explain_on_devices(Operation::Allreduce, 4096);
    let choice = choice.expect("a choice").to_string();
    assert!(!choice.contains("one kernel"), "{choice}");
}

/// The last rank dies; the kernels of the others end, and their calls name it.
fn death(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let on = comm.on_stream(&stream);
    assert!(on.link().expect("an answer"));
    let last = comm.size() - 1;
    let own = numbers(comm.rank(), 5000);
    let there = upload(&stream, &bytes(&own));
    let mut into = floats(&there);
    on.allreduce(&IN_PLACE, &mut into, Op::Sum).expect("a sum");
    on.synchronize().expect("the stream");
    if comm.rank() == last {
        std::process::abort();
    }
    // One that is enqueued, and one that waits.
    let enqueued = on.allreduce(&IN_PLACE, &mut into, Op::Sum);
    let e = match enqueued.and_then(|enqueued| enqueued.wait()) {
        Ok(_) => panic!("a sum without rank {last}"),
        Err(e) => e,
    };
    assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
    assert!(e.to_string().contains(&format!("rank {last}")), "{e}");
    stream.synchronize().expect("the stream goes on");
    let mut into = floats(&there).after_stream(&stream);
    let e = comm.allreduce(&IN_PLACE, &mut into, Op::Sum);
    let e = e.expect_err("a rank is dead");
    // Others may have left by now, for the same reason.
    let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
    assert!(kinds.contains(&e.kind()), "{e}");
}

/// Rank 1 of 3 may die at any step to an exchange: the others are told so, and not kept.
fn set_up(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let there = upload(&stream, &bytes(&numbers(comm.rank(), 500)));
    let on = comm.on_stream(&stream);
    let done = on.link().and_then(|_| {
        let enqueued = on.allreduce(&IN_PLACE, &mut floats(&there), Op::Sum)?;
        enqueued.wait()
    });
    if let Err(e) = done {
        assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
    }
    assert_eq!(device_use(comm).awaited, 0);
    // Who finalizes first would be another reason for the other's call to fail.
    if comm.rank() != 1 {
        let other = 2 - comm.rank();
        let sent = comm.isend(vec![0u8], other, 0).expect("a request");
        comm.recv(&mut [0u8], other, 0).expect("it lives");
        sent.wait().expect("it lives");
    }
}

/// Costs of devices are the built-in ones: the plan is a candidate all the same.
fn unmeasured(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let on = comm.on_stream(&stream);
    assert!(on.link().expect("an answer"));
    let choice = comm.explain_on_devices(Operation::Allreduce, 1024);
    let choice = choice.expect("a choice").to_string();
    assert!(choice.contains("one kernel per rank"), "{choice}");
    let own = numbers(comm.rank(), 256);
    let right = expected(comm, &own);
    for _ in 0..3 {
        let there = upload(&stream, &bytes(&own));
        on.allreduce(&IN_PLACE, &mut floats(&there), Op::Sum)
            .expect("a sum");
        on.synchronize().expect("the stream");
        assert!(download(&stream, &there) == right);
    }
}

/// Rank 1 comes late.
fn late(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let on = comm.on_stream(&stream);
    assert!(on.link().expect("an answer"));
    if comm.rank() == 1 {
        std::thread::sleep(std::time::Duration::from_secs(4));
    }
    let there = upload(&stream, &bytes(&numbers(comm.rank(), 500)));
    let mut into = floats(&there);
    let enqueued = on.allreduce(&IN_PLACE, &mut into, Op::Sum).expect("a sum");
    enqueued.wait().expect("a sum");
}

fn replace(stream: &Stream, data: &[f32], to: &DeviceSlice<u8>) {
    let from = upload(stream, &bytes(data));
    copy::copy(stream, &from.after_stream(stream), &to.after_stream(stream)).expect("a copy");
}

/// Kernels of a graph reduce at each launch, without the host; graphs may be launched in other
/// orders by the ranks.
fn captured(comm: &Communicator, multicast: bool) {
    let (_context, stream) = device(comm);
    assert!(comm.on_stream(&stream).link().expect("an answer"));
    let other = Stream::new(stream.context()).expect("a stream");
    let own = |round: usize, len| numbers(comm.rank() + 7 * round, len);
    let place = |stream: &Stream, len| upload(stream, &bytes(&own(0, len)));
    let (a, b, c) = (
        place(&stream, 300),
        place(&stream, 5000),
        place(&other, 300),
    );
    let mut handles = Vec::new();
    let first = Graph::capture(&stream, |stream| {
        let on = comm.on_stream(stream);
        for data in [&a, &b, &a] {
            let enqueued = on.allreduce(&IN_PLACE, &mut floats(data), Op::Sum);
            handles.push(enqueued.expect("captured"));
        }
        Ok(())
    });
    let first = first.expect("a graph");
    for handle in &handles {
        assert!(
            format!("{handle:?}").contains("captured kernel"),
            "{handle:?}"
        );
        assert!(handle.is_over());
    }
    check_exchanges(comm, multicast, 2);
    // The emulated device has no room for another exchange: this one asks the host.
    let second = Graph::capture(&other, |stream| {
        let on = comm.on_stream(stream);
        on.allreduce(&IN_PLACE, &mut floats(&c), Op::Sum)
            .expect("captured");
        Ok(())
    });
    let second = second.expect("a graph");
    for round in 0..10 {
        replace(&stream, &own(round, 300), &a);
        replace(&stream, &own(round, 5000), &b);
        replace(&other, &own(round, 300), &c);
        match (comm.rank() + round) % 2 {
            0 => {
                first.launch(&stream, &[]).expect("a launch");
                second.launch(&other, &[]).expect("a launch");
            }
            _ => {
                second.launch(&other, &[]).expect("a launch");
                first.launch(&stream, &[]).expect("a launch");
            }
        }
        let once = expected(comm, &own(round, 300));
        assert!(download(&other, &c) == once, "round {round}");
        let number = |four: &[u8]| f32::from_le_bytes(four.try_into().expect("four"));
        let sums: Vec<f32> = once.chunks_exact(4).map(number).collect();
        assert!(
            download(&stream, &a) == expected(comm, &sums),
            "round {round}"
        );
        assert!(
            download(&stream, &b) == expected(comm, &own(round, 5000)),
            "round {round}"
        );
    }
    comm.on_stream(&stream).synchronize().expect("the stream");
    for handle in &handles {
        handle.wait().expect("a sum");
    }
}

/// The last rank dies; launches of the others end, and say so.
fn captured_death(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let on = comm.on_stream(&stream);
    assert!(on.link().expect("an answer"));
    let data = upload(&stream, &bytes(&numbers(comm.rank(), 3000)));
    let mut handle = None;
    let graph = Graph::capture(&stream, |stream| {
        let on = comm.on_stream(stream);
        let enqueued = on.allreduce(&IN_PLACE, &mut floats(&data), Op::Sum);
        handle = Some(enqueued.expect("captured"));
        Ok(())
    });
    let (graph, handle) = (graph.expect("a graph"), handle.expect("captured"));
    graph.launch(&stream, &[]).expect("a launch");
    on.synchronize().expect("the stream");
    let last = comm.size() - 1;
    if comm.rank() == last {
        std::process::abort();
    }
    for _ in 0..2 {
        graph.launch(&stream, &[]).expect("a launch");
        stream.synchronize().expect("the stream goes on");
        let e = handle.wait().expect_err("a rank is dead");
        assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
        assert!(e.to_string().contains(&format!("rank {last}")), "{e}");
    }
}
