//! Capture of packs, unpacks, copies and reductions in graphs.

#[path = "support/of_others.rs"]
mod of_others;
mod support;

use of_others::{GLOBAL, OfOthers};
use osier_datatype::{Basic, Layout, Operator, Type};
use osier_kernels::{
    After, Callback, Context, DeviceError, DeviceSlice, DeviceView, Graph, Kind, Packer, Pinned,
    Stream, Valve, copy,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use support::{context, download};

fn upload(stream: &Stream, bytes: &[u8], to: &DeviceSlice<u8>) {
    let staged = Pinned::from_slice(stream.context(), bytes).unwrap();
    copy::copy(stream, &staged.on_device(stream), &to.after_stream(stream)).unwrap();
}

fn memory(stream: &Stream, bytes: usize) -> DeviceSlice<u8> {
    DeviceSlice::new(stream, bytes).unwrap().into_inner()
}

/// A list, places and strides of 60 elements each.
fn layouts() -> [Layout; 3] {
    let element = Type::basic(Basic::I32);
    let triangle: Vec<(usize, isize)> = (0..8).map(|i| (i + 4, 13 * i as isize)).collect();
    let triangle = Type::indexed(&triangle, &element).unwrap();
    let places: Vec<isize> = (0..60).map(|i| i * 37 % 61 * 8).collect();
    let places = Type::hindexed_block(1, &places, &element).unwrap();
    let strides = Type::vector(20, 3, 4, &element).unwrap();
    [triangle, places, strides].map(|ty| ty.commit().unwrap())
}

/// What the captured work does, on the host.
fn expected([a, b, c]: &[Layout; 3], bytes: &[u8]) -> Vec<u8> {
    let (mut packed, mut sums) = (vec![0; 240], vec![0; 240]);
    a.pack(bytes, 0, 1, 0..240, &mut packed).unwrap();
    let mut second = vec![0; 512];
    b.unpack(&mut second, 0, 1, 0..240, &packed).unwrap();
    let mut third = vec![0; 512];
    b.pack(&second, 0, 1, 0..240, &mut sums).unwrap();
    let twice = sums.clone();
    let element = Basic::I32.into();
    Operator::Sum.combine(element, &mut sums, &twice).unwrap();
    c.unpack(&mut third, 0, 1, 0..240, &sums).unwrap();
    third
}

#[test]
fn captured_work_runs_at_each_launch() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::new(&context);
    let layouts = layouts();
    let source = memory(&stream, 512);
    let third = memory(&stream, 512);
    copy::fill(&stream, &third.after_stream(&stream), 0).unwrap();
    // Buffers that nobody but the graph knows when it is launched.
    let (packed, second) = (memory(&stream, 240), memory(&stream, 512));
    let graph = Graph::capture(&stream, |stream| {
        let view = |slice: &DeviceSlice<u8>, layout| {
            DeviceView::new(slice, 0, layout, 1).map(|view| view.after_stream(stream))
        };
        // Neither lists nor kernels were used before.
        let (a, b) = (view(&source, &layouts[0])?, view(&second, &layouts[1])?);
        let c = view(&third, &layouts[2])?;
        packer.pack(stream, &a, 0..240, &packed.after_stream(stream), None)?;
        packer.unpack(stream, &packed.after_stream(stream), 0..240, &b, None)?;
        packer.copy(stream, &b, &c, 0..240, None)?;
        packer.combine(stream, Operator::Sum, &b, &c, 0..240, None)?;
        Ok(())
    })
    .unwrap();
    drop((packed, second));
    drop(packer);
    let other = Stream::new(&context).unwrap();
    // Its copies come after the allocation of what they write.
    other.wait(&stream.record().unwrap()).unwrap();
    for round in 0..3u8 {
        let bytes: Vec<u8> = (0..512)
            .map(|i| (i as u8).wrapping_mul(7 + round))
            .collect();
        upload(&other, &bytes, &source);
        graph
            .launch(&stream, &[After::Stream(other.clone())])
            .unwrap();
        let found = download(&stream, &third);
        assert!(found == expected(&layouts, &bytes), "round {round}");
        other.wait(&stream.record().unwrap()).unwrap();
    }
    // A graph in flight may go.
    graph.launch(&stream, &[]).unwrap();
    drop(graph);
    stream.synchronize().unwrap();
}

/// A second stream joins by an event of the capture, and its work is captured too.
#[test]
fn streams_join_a_capture() {
    let Some(context) = context() else { return };
    let (stream, other) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let packer = Packer::new(&context);
    let [_, _, strides] = layouts();
    let (source, packed) = (memory(&stream, 512), memory(&stream, 240));
    let bytes: Vec<u8> = (0..512).map(|i| i as u8).collect();
    upload(&stream, &bytes, &source);
    stream.synchronize().unwrap();
    let graph = Graph::capture(&stream, |stream| {
        let begun = stream.record()?;
        let view = DeviceView::new(&source, 0, &strides, 1)?.after(&begun);
        let done = packer.pack(&other, &view, 0..240, &packed.after(&begun), None)?;
        stream.wait(&done)
    })
    .unwrap();
    graph.launch(&stream, &[]).unwrap();
    let mut expected = vec![0; 240];
    strides.pack(&bytes, 0, 1, 0..240, &mut expected).unwrap();
    assert!(download(&stream, &packed) == expected);
}

#[test]
fn what_cannot_be_captured_is_told_and_the_stream_stays() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let outside = Stream::new(&context).unwrap();
    let (place, other) = (memory(&stream, 100), memory(&outside, 100));
    let usable = |context: &Context| {
        let again = Graph::capture(&stream, |stream| {
            copy::fill(stream, &place.after_stream(stream), 7).map(drop)
        });
        again.unwrap().launch(&stream, &[]).unwrap();
        assert_eq!(download(&stream, &place), [7; 100], "{context:?}");
    };
    let refused = Graph::capture(&stream, |stream| {
        DeviceSlice::<u8>::new(stream, 100).map(drop)
    });
    assert!(
        matches!(refused, Err(DeviceError::Capture(_))),
        "{refused:?}"
    );
    usable(&context);
    let refused = Graph::capture(&stream, |stream| {
        copy::copy(
            stream,
            &other.after_stream(&outside),
            &place.after_stream(stream),
        )
        .map(drop)
    });
    assert!(
        matches!(refused, Err(DeviceError::Capture(_))),
        "{refused:?}"
    );
    usable(&context);
    // The work's own error, and memory dropped meanwhile.
    let refused = Graph::capture(&stream, |_| {
        drop(memory(&outside, 10));
        Err(DeviceError::Shared)
    });
    assert_eq!(refused.unwrap_err(), DeviceError::Shared);
    usable(&context);
    let dropped = memory(&stream, 1000);
    let graph = Graph::capture(&stream, |stream| {
        drop(dropped);
        copy::fill(stream, &place.after_stream(stream), 9).map(drop)
    });
    graph.unwrap().launch(&stream, &[]).unwrap();
    assert_eq!(download(&stream, &place), [9; 100]);
    // Plain memory, freed by itself, too.
    let plain = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, 64).unwrap();
    drop(plain);
    osier_kernels::reap();
    stream.synchronize().unwrap();
}

/// Torch's way: the mode forbids every thread what may be unsafe, and the graph outlives
/// whatever its nodes use. Everything here is a first use.
#[test]
fn captures_of_others_keep_what_their_nodes_use() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::new(&context);
    let layouts = layouts();
    let (source, third) = (memory(&stream, 512), memory(&stream, 512));
    copy::fill(&stream, &third.after_stream(&stream), 0).unwrap();
    let (packed, second) = (memory(&stream, 240), memory(&stream, 512));
    let before = stream.record().unwrap();
    let called = Arc::new(AtomicUsize::new(0));
    let counts = called.clone();
    let work = || {
        let view = |slice: &DeviceSlice<u8>, layout| {
            DeviceView::new(slice, 0, layout, 1)
                .unwrap()
                .after_stream(&stream)
        };
        let (a, b) = (view(&source, &layouts[0]), view(&second, &layouts[1]));
        let c = view(&third, &layouts[2]);
        let place = packed.after_stream(&stream);
        packer.pack(&stream, &a, 0..240, &place, None).unwrap();
        packer.unpack(&stream, &place, 0..240, &b, None).unwrap();
        // Another thread asks, allocates and frees meanwhile.
        std::thread::scope(|s| {
            s.spawn(|| {
                before.synchronize().unwrap();
                assert!(before.is_passed().unwrap());
                let other = Stream::new(&context).unwrap();
                drop(memory(&other, 4096));
                other.synchronize().unwrap();
            });
        });
        packer.copy(&stream, &b, &c, 0..240, None).unwrap();
        packer
            .combine(&stream, Operator::Sum, &b, &c, 0..240, None)
            .unwrap();
        let call = Callback::new(move || {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        stream.call(&call).unwrap();
    };
    let graph = OfOthers::capture(&stream, GLOBAL, work, || ()).unwrap();
    drop((packed, second, packer));
    let other = Stream::new(&context).unwrap();
    other.wait(&stream.record().unwrap()).unwrap();
    for round in 0..3u8 {
        let bytes: Vec<u8> = (0..512)
            .map(|i| (i as u8).wrapping_mul(5 + round))
            .collect();
        upload(&other, &bytes, &source);
        graph.launch(&other);
        assert!(
            download(&other, &third) == expected(&layouts, &bytes),
            "round {round}"
        );
    }
    assert_eq!(called.load(Ordering::Relaxed), 3);
    other.synchronize().unwrap();
    drop(graph);
    // The driver gives back what the graph has kept, some time later.
    let since = std::time::Instant::now();
    while Arc::strong_count(&called) > 1 {
        assert!(
            since.elapsed().as_secs() < 60,
            "the graph is gone, and its function kept"
        );
        osier_kernels::reap_graphs();
        std::thread::yield_now();
    }
}

/// A graph that was launched may shut its valve at any time, so memory that the driver gives back
/// only when the device is idle waits for its end: the thread that opens the valve may need the driver.
#[test]
fn nothing_is_given_back_while_a_graph_may_hold_streams() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let valve = Arc::new(Valve::new(&context).unwrap());
    let graph = Graph::capture(&stream, |stream| {
        let shuts = valve.clone();
        stream.call(&Callback::new(move || shuts.set(false)))?;
        valve.hold(stream)
    });
    let graph = graph.unwrap();
    let managed = DeviceSlice::<u8>::with_kind(&stream, Kind::Managed, 4096).unwrap();
    stream.synchronize().unwrap();
    // Launched, and not begun.
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let held = Callback::new(move || {
        let _ = waits.lock().unwrap().recv();
    });
    stream.call(&held).unwrap();
    let over = graph.launch(&stream, &[]).unwrap();
    let (dropped, is_dropped) = mpsc::channel();
    std::thread::spawn(move || {
        drop(managed);
        let _ = dropped.send(());
    });
    let returned = is_dropped.recv_timeout(Duration::from_secs(60));
    go.send(()).unwrap();
    while !over.is_passed().unwrap() {
        valve.set(true);
        std::thread::yield_now();
    }
    returned.expect("memory is dropped while the graph runs");
}

/// A thread of the user has its own mode again behind calls of this crate.
#[test]
fn threads_of_users_stay_strict_in_captures() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let work = || {
        drop(memory(&Stream::new(&context).unwrap(), 512));
        // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
        assert_eq!(of_others::allocate(), 900);
    };
    let spoiled = OfOthers::capture(&stream, GLOBAL, work, || ());
    // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.
    assert_eq!(spoiled.err(), Some(901));
    stream.synchronize().unwrap();
}
