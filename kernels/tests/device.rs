//! Memory, streams, copies, handles, pack and unpack of chosen shapes, on the
//! driver that `support` finds.

#[path = "../../tests/asked.rs"]
mod asked;
mod support;

use osier_datatype::{Basic, Layout, Type};
use osier_datatype_corpus::random::{self, Random};
use osier_kernels::{
    Context, DeviceError, DeviceSlice, DeviceView, Engine, Event, Kind, Memory, Packer, Pinned,
    Space, Stream, classify, copy, devices, handle,
};
use support::{context, download, upload};

/// The host never holds pinned memory on which new work could begin.
#[test]
fn pinned_memory_is_borrowed_by_the_host_alone() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let mut staged = Pinned::from_slice(&context, &[1u8, 2, 3]).unwrap();
    let shared = staged.on_device(&stream).into_inner();
    assert_eq!(staged.host().unwrap_err(), DeviceError::Shared);
    drop(shared);
    assert_eq!(staged.host().unwrap(), [1, 2, 3]);
}

/// A run moved by a kernel, or by a copy engine at any length: from and to each alignment, with
/// ragged ends.
#[test]
fn kernels_and_copy_engines_move_runs() {
    for engine in [Engine::Kernel, Engine::CopyEngine] {
        moves_runs(engine);
    }
}

fn moves_runs(engine: Engine) {
    let Some(context) = context() else { return };
    let (stream, packer) = (Stream::new(&context).unwrap(), Packer::new(&context));
    let bytes: Vec<u8> = (0..6000).map(|i| (i * 7 + i / 256) as u8).collect();
    let source = upload(&stream, &bytes);
    for n in [1, 2, 15, 16, 31, 49, 300, 5000] {
        for (from, to) in [(0, 0), (1, 0), (0, 3), (5, 13), (8, 4), (2, 2)] {
            let run = Type::contiguous(n, &Type::basic(Basic::U8)).unwrap();
            let run = run.commit().unwrap();
            let (packed, back) = (upload(&stream, &[9; 6000]), upload(&stream, &[9; 6000]));
            let view = DeviceView::new(&source, from, &run, 1).unwrap();
            let room = packed.slice(to..to + n).unwrap();
            let ordered = room.after_stream(&stream);
            packer
                .pack_by(
                    engine,
                    &stream,
                    &view.after_stream(&stream),
                    0..n,
                    &ordered,
                    None,
                )
                .unwrap();
            let view = DeviceView::new(&back, from, &run, 1).unwrap();
            packer
                .unpack_by(
                    engine,
                    &stream,
                    &ordered,
                    0..n,
                    &view.after_stream(&stream),
                    Some(1),
                )
                .unwrap();
            let mut right = vec![9; 6000];
            right[to..to + n].copy_from_slice(&bytes[from..from + n]);
            assert!(
                download(&stream, &packed) == right,
                "{engine:?}, {n} bytes, {from} to {to}"
            );
            let mut right = vec![9; 6000];
            right[from..from + n].copy_from_slice(&bytes[from..from + n]);
            assert!(
                download(&stream, &back) == right,
                "{engine:?}, {n} bytes, {to} to {from}"
            );
        }
    }
}

#[test]
fn devices_are_told() {
    if context().is_none() {
        return;
    }
    for device in devices().unwrap() {
        assert!(
            !device.name.is_empty() && device.memory_bytes > 0,
            "{device:?}"
        );
        assert!(!device.peers.contains(&device.ordinal));
    }
}

#[test]
fn all_kinds_of_memory_hold_bytes() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    for kind in [
        Kind::Plain,
        Kind::Pool,
        Kind::SharedPool,
        Kind::Mapped,
        Kind::Managed,
    ] {
        let bytes: Vec<u8> = (0..100_000).map(|i| (i * 7) as u8).collect();
        let source = upload(&stream, &bytes);
        let place = match DeviceSlice::<u8>::with_kind(&stream, kind, bytes.len()) {
            Ok(place) => place,
            Err(why @ DeviceError::Unavailable(_)) => {
                support::needs::missing("gpu", format_args!("{kind:?}: {why}"));
                continue;
            }
            Err(why) => panic!("{kind:?}: {why}"),
        };
        copy::copy(&stream, &source.after_stream(&stream), &place).unwrap();
        assert!(download(&stream, &place.into_inner()) == bytes, "{kind:?}");
    }
    // Memory of the pool is given back on the stream, behind what was waited for.
    stream.synchronize().unwrap();
    assert!(stream.is_done().unwrap());
}

#[test]
fn boxes_are_copied() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let bytes: Vec<u8> = (0..4096).map(|i| (i * 13 + i / 256) as u8).collect();
    let source = upload(&stream, &bytes);
    for depth in [1, 3] {
        let extent = copy::Extent {
            width: 10,
            height: 5,
            depth,
        };
        let from = copy::Pitch {
            row_bytes: 32,
            rows: 8,
        };
        let to = copy::Pitch {
            row_bytes: 10,
            rows: 5,
        };
        let place = DeviceSlice::<u8>::new(&stream, 50 * depth).unwrap();
        copy::copy_box(
            &stream,
            extent,
            (&source.after_stream(&stream), from),
            (&place, to),
        )
        .unwrap();
        let expected: Vec<u8> = (0..50 * depth)
            .map(|i| bytes[i / 50 * 256 + i % 50 / 10 * 32 + i % 10])
            .collect();
        assert!(download(&stream, &place.into_inner()) == expected);
    }
}

#[test]
fn pointers_have_places() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let place = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, 1000)
        .unwrap()
        .into_inner();
    let found = classify::classify(&context, place.address() + 999).unwrap();
    assert_eq!(found.space, Space::Device(0));
    assert_eq!(found.start, place.address());
    let on_host = 0u64;
    let found = classify::classify(&context, &raw const on_host as u64).unwrap();
    assert_eq!(found.space, Space::Host);
}

#[test]
fn mistakes_are_errors_and_the_context_stays() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let place = DeviceSlice::<f64>::new(&stream, 10).unwrap().into_inner();
    assert!(matches!(
        place.slice(5..11),
        Err(DeviceError::Bounds { .. })
    ));
    let column = Type::vector(3, 1, 5, &Type::basic(Basic::F64))
        .unwrap()
        .commit()
        .unwrap();
    let outside = DeviceView::new(&place, 0, &column, 1);
    assert!(matches!(outside, Err(DeviceError::Type(_))));
    let twice = Type::hvector(3, 1, 0, &Type::basic(Basic::F64))
        .unwrap()
        .commit()
        .unwrap();
    let view = DeviceView::new(&place, 0, &twice, 1)
        .unwrap()
        .after_stream(&stream);
    let packed = DeviceSlice::<u8>::new(&stream, 24).unwrap();
    let packer = Packer::new(&context);
    let overlap = packer.unpack(&stream, &packed, 0..24, &view, None);
    assert!(matches!(overlap, Err(DeviceError::Overlap { count: 1 })));
    let beyond = packer.pack(&stream, &view, 0..25, &packed, None);
    assert!(matches!(beyond, Err(DeviceError::Bounds { .. })));
    let view = |origin, count| {
        let view = DeviceView::new(&place, origin, &Layout::of::<f64>(), count);
        view.unwrap().after_stream(&stream)
    };
    let aliased = packer.copy(&stream, &view(0, 6), &view(5, 5), 0..40, None);
    assert_eq!(aliased.unwrap_err(), DeviceError::Aliased);
    let beyond = packer.copy(&stream, &view(0, 6), &view(6, 4), 0..40, None);
    assert!(matches!(beyond, Err(DeviceError::Bounds { .. })));
    let error = DeviceSlice::<u8>::new(&stream, 1 << 50).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    copy::fill(&stream, &place.after_stream(&stream), 1).unwrap();
    stream.synchronize().unwrap();
}

/// Device pack and unpack against the host's, bit for bit, gaps included.
fn agrees(packer: &Packer, stream: &Stream, layout: &Layout, count: usize, random: &mut Random) {
    let (low, high) = layout.span(count);
    let total = layout.pack_size(count).unwrap();
    let (a, b) = (
        random.below(total as u64 + 1) as usize,
        random.below(total as u64 + 1) as usize,
    );
    let range = if random.below(2) == 0 {
        0..total
    } else {
        a.min(b)..a.max(b)
    };
    let shift = |random: &mut Random| random.below(2) as usize * random.below(16) as usize;
    let (before, after) = (shift(random), shift(random));
    let room = before + (high - low) as usize + after;
    let memory: Vec<u8> = (0..room.max(1)).map(|_| random.next() as u8).collect();
    let origin = before as isize - low;
    // Origins outside of the memory are for raw pointers.
    let Ok(origin) = usize::try_from(origin) else {
        return;
    };
    if layout.check_span(memory.len(), origin, count).is_err() {
        return;
    }
    let mut expected = vec![0u8; range.len()];
    layout
        .pack(&memory, origin, count, range.clone(), &mut expected)
        .unwrap();
    let device = upload(stream, &memory);
    let view = DeviceView::new(&device, origin, layout, count).unwrap();
    let misaligned = shift(random);
    let poison = vec![0xA5; misaligned + range.len() + 9];
    let packed = upload(stream, &poison);
    let place = packed.slice(misaligned..).unwrap();
    let blocks = [None, Some(1), Some(3)][random.below(3) as usize];
    packer
        .pack(
            stream,
            &view.after_stream(stream),
            range.clone(),
            &place.after_stream(stream),
            blocks,
        )
        .unwrap();
    let found = download(stream, &packed);
    assert!(
        found[misaligned..][..range.len()] == expected,
        "pack {range:?}"
    );
    assert!(
        found[..misaligned].iter().all(|&byte| byte == 0xA5),
        "bytes before"
    );
    assert!(
        found[misaligned + range.len()..]
            .iter()
            .all(|&byte| byte == 0xA5),
        "bytes behind"
    );
    if layout.self_overlaps(count) {
        return;
    }
    let other: Vec<u8> = (0..range.len()).map(|_| random.next() as u8).collect();
    let mut twin = memory.clone();
    layout
        .unpack(&mut twin, origin, count, range.clone(), &other)
        .unwrap();
    let source = upload(stream, &other);
    packer
        .unpack(
            stream,
            &source.after_stream(stream),
            range.clone(),
            &view.after_stream(stream),
            blocks,
        )
        .unwrap();
    assert!(download(stream, &device) == twin, "unpack {range:?}");
}

/// Random trees in allocations of their own, so that an access beyond is a fault on
/// the emulated driver; many more in `trees.rs`.
#[test]
fn trees_in_tight_allocations() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::with_limit(&context, 1 << 20);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let ty = random::tree(&mut random, 4096);
        let Ok(layout) = ty.commit() else { continue };
        let count = random.below(4) as usize;
        let run =
            std::panic::AssertUnwindSafe(|| agrees(&packer, &stream, &layout, count, &mut random));
        assert!(
            std::panic::catch_unwind(run).is_ok(),
            "seed {seed}, count {count}: {ty:?}"
        );
    }
}

/// A view of filled device memory over a layout, somewhere in it, and its bytes;
/// none if the origin lies outside.
fn filled(
    stream: &Stream,
    layout: &Layout,
    count: usize,
    random: &mut Random,
) -> Option<(DeviceSlice<u8>, Vec<u8>, usize)> {
    let (low, high) = layout.span(count);
    let shift = |random: &mut Random| random.below(2) as usize * random.below(16) as usize;
    let (before, after) = (shift(random), shift(random));
    let room = before + (high - low) as usize + after;
    let bytes: Vec<u8> = (0..room.max(1)).map(|_| random.next() as u8).collect();
    let origin = usize::try_from(before as isize - low).ok()?;
    layout.check_span(bytes.len(), origin, count).ok()?;
    Some((upload(stream, &bytes), bytes, origin))
}

/// A range of packed bytes: all of them half of the time.
fn fragment(total: usize, random: &mut Random) -> std::ops::Range<usize> {
    let (a, b) = (
        random.below(total as u64 + 1),
        random.below(total as u64 + 1),
    );
    match random.below(2) {
        0 => 0..total,
        _ => a.min(b) as usize..a.max(b) as usize,
    }
}

/// From layout to layout on the device, against the host's pack and unpack.
fn copy_agrees(
    packer: &Packer,
    stream: &Stream,
    (from, to): (&Layout, &Layout),
    count: usize,
    random: &mut Random,
) {
    let Some((source, source_bytes, source_at)) = filled(stream, from, count, random) else {
        return;
    };
    let Some((target, mut expected, target_at)) = filled(stream, to, count, random) else {
        return;
    };
    let range = fragment(from.pack_size(count).unwrap(), random);
    let mut packed = vec![0u8; range.len()];
    from.pack(&source_bytes, source_at, count, range.clone(), &mut packed)
        .unwrap();
    to.unpack(&mut expected, target_at, count, range.clone(), &packed)
        .unwrap();
    let blocks = [None, Some(1), Some(3)][random.below(3) as usize];
    let source_view = DeviceView::new(&source, source_at, from, count).unwrap();
    let target_view = DeviceView::new(&target, target_at, to, count).unwrap();
    packer
        .copy(
            stream,
            &source_view.after_stream(stream),
            &target_view.after_stream(stream),
            range.clone(),
            blocks,
        )
        .unwrap();
    assert!(download(stream, &target) == expected, "copy {range:?}");
    assert!(
        download(stream, &source) == source_bytes,
        "the source stays"
    );
}

/// 200 random trees, each to another layout of its signature; `OSIER_TEST=trees=N`
/// says how many.
#[test]
fn random_copies() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::with_limit(&context, 1 << 20);
    let trees = asked::number("trees");
    for seed in 0..trees.unwrap_or(200) {
        let mut random = Random::new(seed);
        let ty = random::tree(&mut random, 4096);
        let other = random::same_signature(&mut random, &ty);
        let (Ok(from), Ok(to)) = (ty.commit(), other.commit()) else {
            continue;
        };
        let count = random.below(4) as usize;
        if to.self_overlaps(count) {
            continue;
        }
        let layouts = (&from, &to);
        let run = std::panic::AssertUnwindSafe(|| {
            copy_agrees(&packer, &stream, layouts, count, &mut random);
        });
        assert!(
            std::panic::catch_unwind(run).is_ok(),
            "seed {seed}, count {count}: {ty:?} to {other:?}"
        );
    }
}

/// Each pair of shapes of plans, at several sizes of a word.
#[test]
fn shapes_are_copied_to_each_other() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::new(&context);
    let mut random = Random::new(11);
    for bytes in [1, 2, 4, 6, 8, 16, 48] {
        let element = Type::contiguous(bytes, &Type::basic(Basic::Byte)).unwrap();
        let size = bytes as isize;
        let nested = Type::hvector(8, 1, 40 * size, &Type::vector(6, 1, 2, &element).unwrap());
        let places: Vec<isize> = (0..48).map(|i| i * 37 % 53 * 4 * size).collect();
        let lengths: Vec<(usize, isize)> = (0..9).map(|i| (i, i as isize * 11)).collect();
        let triangle = Type::indexed(&lengths, &element).unwrap();
        let twelve = Type::contiguous(12, &element).unwrap();
        let types = [
            Type::contiguous(48, &element).unwrap(),
            nested.unwrap(),
            Type::vector(48, 1, 3, &element).unwrap(),
            Type::hindexed_block(1, &places, &element).unwrap(),
            Type::structure(&[(1, 0, triangle), (1, 200 * size, twelve)]).unwrap(),
        ];
        let layouts: Vec<Layout> = types.iter().map(|ty| ty.commit().unwrap()).collect();
        for from in &layouts {
            for to in &layouts {
                assert_eq!(from.size(), to.size());
                copy_agrees(&packer, &stream, (from, to), 2, &mut random);
            }
        }
    }
}

/// Each shape of plan, at several sizes.
#[test]
fn shapes() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let packer = Packer::new(&context);
    let mut random = Random::new(7);
    let mut run = |ty: &Type, count| {
        let layout = ty.commit().unwrap();
        for _ in 0..4 {
            agrees(&packer, &stream, &layout, count, &mut random);
        }
    };
    for bytes in [1, 2, 3, 4, 8, 12, 16, 40] {
        let element = Type::contiguous(bytes, &Type::basic(Basic::Byte)).unwrap();
        run(&element, 100);
        let column = Type::vector(40, 1, 50, &element).unwrap();
        run(&column, 1);
        // A transpose, where the element is a word.
        run(&Type::resized(0, bytes as isize, &column).unwrap(), 37);
        let mut nested = Type::vector(3, 1, 2, &element).unwrap();
        for level in 0..4 {
            nested = Type::hvector(3, 1, (7 * bytes as isize) << (2 * level), &nested).unwrap();
            run(&nested, 2);
        }
        let triangle: Vec<_> = (0..30).map(|i| (30 - i, 31 * i as isize)).collect();
        run(&Type::indexed(&triangle, &element).unwrap(), 2);
        let places: Vec<isize> = (0..50).map(|i| i * 37 % 53 * 41).collect();
        run(&Type::hindexed_block(1, &places, &element).unwrap(), 2);
    }
}

/// What opens a held stream must not wait in a hardware queue behind it.
#[test]
fn streams_of_messages_have_the_highest_priority() {
    let Some(context) = context() else { return };
    let own = Stream::uncaptured(&context).unwrap().priority().unwrap();
    let highest = Stream::with_priority(&context, i32::MIN).unwrap();
    let users = Stream::new(&context).unwrap().priority().unwrap();
    assert_eq!(own, highest.priority().unwrap());
    assert!(own < users, "{own} {users}");
}

#[test]
fn mapped_memory_goes_by_descriptor() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let bytes: Vec<u8> = (0..5000).map(|i| (i * 11) as u8).collect();
    let source = upload(&stream, &bytes);
    let place = DeviceSlice::<u8>::with_kind(&stream, Kind::Mapped, bytes.len()).unwrap();
    copy::copy(&stream, &source.after_stream(&stream), &place).unwrap();
    let place = place.into_inner();
    let pieces = handle::export_pieces(&context, place.address()..place.address() + 1).unwrap();
    let again = handle::import_pieces(&context, &pieces).unwrap();
    let again = DeviceSlice::<u8>::of(again)
        .unwrap()
        .slice(..bytes.len())
        .unwrap();
    assert_ne!(again.address(), place.address());
    assert!(download(&stream, &again) == bytes);
    let plain = source.address()..source.address() + 1;
    assert!(handle::export_pieces(&context, plain).is_err());
    // Of several pieces, those that are asked for.
    let row = Memory::in_pieces(&context, &[1, 1, 1]).unwrap();
    let piece = row.bytes() as u64 / 3;
    let row = DeviceSlice::<u8>::of(row).unwrap();
    copy::fill(&stream, &row.after_stream(&stream), 7).unwrap();
    stream.synchronize().unwrap();
    let start = row.address();
    // Asked from a thread without a context, as C programs ask.
    let second = start + piece;
    let found = std::thread::spawn(move || classify::find(second + 5).unwrap().unwrap());
    let found = found.join().unwrap();
    assert_eq!((found.start, found.bytes as u64), (second, piece));
    let found = classify::classify(&context, second + 5).unwrap();
    assert_eq!((found.start, found.bytes as u64), (second, piece));
    for (range, pieces) in [
        (0..1, 1),
        (0..piece + 1, 2),
        (piece..2 * piece, 1),
        (0..3 * piece, 3),
    ] {
        let range = start + range.start..start + range.end;
        let given = handle::export_pieces(&context, range.clone()).unwrap();
        assert_eq!(given.len(), pieces);
        let key = handle::Key::of(row.memory(), range).unwrap();
        assert_eq!(
            (key.bytes, key.made),
            (pieces as u64 * piece, handle::Made::Mapped)
        );
        let again = key.open(&context, &given).unwrap();
        let again = DeviceSlice::<u8>::of(again).unwrap();
        assert!(download(&stream, &again) == vec![7; pieces * piece as usize]);
        assert!(key.open(&context, &given[1..]).is_err());
    }
    assert!(handle::export_pieces(&context, start..start + 3 * piece + 1).is_err());
}

#[test]
fn batches_are_copied() {
    let Some(context) = context() else { return };
    let (stream, other) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let bytes: Vec<u8> = (0..=255).collect();
    let source = upload(&other, &bytes);
    let place = DeviceSlice::<u8>::new(&stream, 256).unwrap().into_inner();
    let part = |slice: &DeviceSlice<u8>, i: usize| slice.slice(i * 32..i * 32 + 32).unwrap();
    let pairs: Vec<copy::Pair<u8>> = (0..8)
        .map(|i| {
            let (from, to) = (part(&source, i), part(&place, 7 - i));
            (from.after_stream(&other), to.after_stream(&stream))
        })
        .collect();
    copy::copy_batch(&stream, &pairs).unwrap();
    let expected: Vec<u8> = (0..256)
        .map(|i| bytes[(7 - i / 32) * 32 + i % 32])
        .collect();
    assert!(download(&stream, &place) == expected);
}

/// Where there are two devices: each on its own, copies across, and the refusal
/// of a stream of one for memory of the other.
#[test]
fn several_devices() {
    let Some(first) = context() else { return };
    let found = devices().unwrap();
    if found.len() < 2 {
        const GPUS: &str = "OSIER_EMULATED_GPUS";
        if !found[0].name.starts_with("Osier emulated") || std::env::var_os(GPUS).is_some() {
            return support::needs::missing("gpu", "there is one device only");
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "several_devices"])
            .env(GPUS, "2")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stdout);
        return assert!(
            child.status.success() && told.contains("1 passed"),
            "{told}"
        );
    }
    let second = Context::new(1).unwrap();
    let (here, there) = (Stream::new(&first).unwrap(), Stream::new(&second).unwrap());
    let bytes: Vec<u8> = (0..1000).map(|i| (i * 3) as u8).collect();
    let source = upload(&here, &bytes);
    let place = DeviceSlice::<u8>::with_kind(&there, Kind::Pool, bytes.len())
        .unwrap()
        .into_inner();
    let packer = Packer::new(&second);
    let layout = Type::vector(10, 1, 7, &Type::basic(Basic::Byte))
        .unwrap()
        .commit()
        .unwrap();
    let view = DeviceView::new(&source, 0, &layout, 1).unwrap();
    let refused = packer.pack(
        &there,
        &view.after_stream(&here),
        0..10,
        &place.after_stream(&there),
        None,
    );
    assert!(matches!(
        refused,
        Err(DeviceError::WrongDevice {
            memory: 0,
            stream: 1,
            ..
        })
    ));
    if first.enable_peer(&second).is_err() || second.enable_peer(&first).is_err() {
        return support::needs::missing("gpu", "the devices are not linked");
    }
    let plain = DeviceSlice::<u8>::with_kind(&there, Kind::Plain, bytes.len()).unwrap();
    let source_plain = DeviceSlice::<u8>::with_kind(&here, Kind::Plain, bytes.len()).unwrap();
    let done = copy::copy(&here, &source.after_stream(&here), &source_plain).unwrap();
    let source_plain = source_plain.into_inner();
    copy::copy(&there, &source_plain.after(&done), &plain).unwrap();
    let plain = plain.into_inner();
    assert!(download(&there, &plain) == bytes);

    // Into the other device's memory, and out of it.
    let packer = Packer::new(&first);
    let view = DeviceView::new(&source, 0, &layout, 1).unwrap();
    let part = |slice: &DeviceSlice<u8>| slice.slice(100..110).unwrap();
    let done = packer
        .pack(
            &here,
            &view.after_stream(&here),
            0..10,
            &part(&plain).after_stream(&there),
            None,
        )
        .unwrap();
    there.wait(&done).unwrap();
    let mut expected = bytes.clone();
    layout
        .pack(&bytes, 0, 1, 0..10, &mut expected[100..110])
        .unwrap();
    assert!(download(&there, &plain) == expected);
    let opposite = DeviceView::new(&plain, 200, &layout, 1).unwrap();
    let done = packer
        .unpack(
            &here,
            &part(&source_plain).after_stream(&here),
            0..10,
            &opposite.after_stream(&there),
            None,
        )
        .unwrap();
    there.wait(&done).unwrap();
    layout
        .unpack(&mut expected, 200, 1, 0..10, &bytes[100..110])
        .unwrap();
    assert!(download(&there, &plain) == expected);
    // A pool's memory has rights of its own.
    let refused = packer.pack(
        &here,
        &view.after_stream(&here),
        0..10,
        &place.after_stream(&there),
        None,
    );
    assert!(matches!(
        refused,
        Err(DeviceError::WrongDevice {
            memory: 1,
            stream: 0,
            ..
        })
    ));
}

/// Zero copy: kernels write to pinned memory of the host, and read from it.
#[test]
fn pinned_memory_is_packed_to_and_from() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let bytes: Vec<u8> = (0..4000).map(pattern).collect();
    let source = upload(&stream, &bytes);
    let blocks: Vec<_> = (0..60).map(|i| (i % 7 + 1, 61 * i as isize)).collect();
    let layout = Type::hindexed(&blocks, &Type::basic(Basic::Byte)).unwrap();
    let layout = layout.commit().unwrap();
    let view = DeviceView::new(&source, 3, &layout, 1).unwrap();
    let packer = Packer::new(&context);
    let mut staged = Pinned::from_slice(&context, &vec![0u8; layout.size()]).unwrap();
    let all = 0..layout.size();
    let to = staged.on_device(&stream);
    packer
        .pack(&stream, &view.after_stream(&stream), all.clone(), &to, None)
        .unwrap();
    drop(to);
    let mut expected = vec![0; layout.size()];
    layout
        .pack(&bytes, 3, 1, all.clone(), &mut expected)
        .unwrap();
    assert!(staged.host().unwrap() == expected);
    staged.host().unwrap().reverse();
    let from = staged.on_device(&stream);
    packer
        .unpack(
            &stream,
            &from,
            all.clone(),
            &view.after_stream(&stream),
            None,
        )
        .unwrap();
    expected.reverse();
    let mut twin = bytes.clone();
    layout.unpack(&mut twin, 3, 1, all, &expected).unwrap();
    assert!(download(&stream, &source) == twin);
}

/// Tells the child what to open; without it the child's test does nothing.
const HANDLES: &str = "OSIER_TEST_HANDLES";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 64] {
    let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    std::array::from_fn(byte)
}

/// The other process: opens memory behind an event, packs from it and into it.
#[test]
#[ignore = "run by another_process_opens_memory"]
fn child_of_another_process_opens_memory() {
    let handles = std::env::var(HANDLES).unwrap();
    let context = context().unwrap();
    let parts: Vec<&str> = handles.split(',').collect();
    let memory = handle::MemoryHandle {
        bytes: unhex(parts[0]),
        allocation_bytes: parts[2].parse().unwrap(),
    };
    let event = Event::import(&context, &handle::EventHandle(unhex(parts[1]))).unwrap();
    // SAFETY: the parent waits for this process and then frees the memory.
    let opened = unsafe { memory.open(&context) }.unwrap();
    let opened = DeviceSlice::<u8>::of(opened).unwrap();
    let stream = Stream::new(&context).unwrap();
    let layout = every_third().commit().unwrap();
    let view = DeviceView::new(&opened, 0, &layout, 1).unwrap();
    let packed = DeviceSlice::<u8>::new(&stream, 100).unwrap();
    Packer::new(&context)
        .pack(&stream, &view.after(&event), 0..100, &packed, None)
        .unwrap();
    let expected: Vec<u8> = (0..100).map(|i| pattern(3 * i)).collect();
    assert!(download(&stream, &packed.into_inner()) == expected);
    // Straight into the other process's memory.
    let end = opened.slice(300..).unwrap().after(&event);
    Packer::new(&context)
        .pack(&stream, &view.after(&event), 0..100, &end, None)
        .unwrap();
    stream.synchronize().unwrap();
}

fn every_third() -> Type {
    Type::vector(100, 1, 3, &Type::basic(Basic::Byte)).unwrap()
}

fn pattern(i: usize) -> u8 {
    (i * 29 + 5) as u8
}

#[test]
fn another_process_opens_memory() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let bytes: Vec<u8> = (0..400).map(pattern).collect();
    let source = upload(&stream, &bytes);
    let place = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, bytes.len()).unwrap();
    copy::copy(&stream, &source.after_stream(&stream), &place).unwrap();
    let event = Event::shared(&stream).unwrap();
    let place = place.into_inner();
    let memory = handle::MemoryHandle::of(place.memory()).unwrap();
    let handles = format!(
        "{},{},{}",
        hex(&memory.bytes),
        hex(&event.export().unwrap().0),
        memory.allocation_bytes
    );
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_of_another_process_opens_memory",
            "--ignored",
        ])
        .env(HANDLES, handles)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{told}");
    assert!(told.contains("1 passed"), "{told}");
    let found = download(&stream, &place);
    let packed: Vec<u8> = (0..100).map(|i| pattern(3 * i)).collect();
    assert!(found[..300] == bytes[..300] && found[300..] == packed);
    // Memory of a pool has no handle of this kind.
    let pooled = DeviceSlice::<u8>::with_kind(&stream, Kind::Pool, 10);
    assert!(handle::MemoryHandle::of(pooled.unwrap().into_inner().memory()).is_err());
}
