//! Long lists on the device: their first use in parts, and what a first use costs
//! the host.

mod support;

use osier_datatype::{Basic, Element, Layout, Operator, Type};
use osier_datatype_corpus::random::Random;
use osier_kernels::plan::Plan;
use osier_kernels::{DeviceSlice, DeviceView, Packer, Stream, baseline};
use std::time::Instant;
use support::{context, download, upload};

/// First and second use of a layout by a packer, pack and unpack, any range.
fn agrees(stream: &Stream, layout: &Layout, random: &mut Random) {
    let packer = Packer::new(stream.context());
    let (_, high) = layout.span(1);
    let bytes: Vec<u8> = (0..high).map(|_| random.next() as u8).collect();
    let device = upload(stream, &bytes);
    let view = DeviceView::new(&device, 0, layout, 1).unwrap();
    let total = layout.size();
    for round in 0..3 {
        let cut = |random: &mut Random| random.below(total as u64 + 1) as usize;
        let (a, b) = (cut(random), cut(random));
        let range = match round {
            1 => 0..total,
            _ => a.min(b)..a.max(b),
        };
        let mut expected = vec![0; range.len()];
        layout
            .pack(&bytes, 0, 1, range.clone(), &mut expected)
            .unwrap();
        let packed = upload(stream, &vec![0xa5; range.len() + 3]);
        let place = packed.slice(1..).unwrap().after_stream(stream);
        // Another packer now and then, so that unpack meets a first use too.
        let fresh = Packer::new(stream.context());
        let packer = if round == 2 { &fresh } else { &packer };
        packer
            .pack(
                stream,
                &view.after_stream(stream),
                range.clone(),
                &place,
                None,
            )
            .unwrap();
        let found = download(stream, &packed);
        assert!(found[1..range.len() + 1] == expected, "pack {range:?}");
        assert!(found[0] == 0xa5 && found[range.len() + 1..] == [0xa5; 2]);
        let mut twin = bytes.clone();
        let other: Vec<u8> = (0..range.len()).map(|_| random.next() as u8).collect();
        layout
            .unpack(&mut twin, 0, 1, range.clone(), &other)
            .unwrap();
        let target = upload(stream, &bytes);
        let target_view = DeviceView::new(&target, 0, layout, 1).unwrap();
        let from = upload(stream, &other).after_stream(stream);
        let fresh = Packer::new(stream.context());
        let packer = if round == 0 { &fresh } else { packer };
        packer
            .unpack(
                stream,
                &from,
                range.clone(),
                &target_view.after_stream(stream),
                None,
            )
            .unwrap();
        assert!(download(stream, &target) == twin, "unpack {range:?}");
    }
}

#[test]
fn long_lists_are_used_in_parts() {
    let Some(context) = context() else { return };
    let stream = Stream::uncaptured(&context).unwrap();
    let mut random = Random::new(5);
    let pair = Type::basic(Basic::I16);
    let places: Vec<isize> = (0..80_000).map(|i| i * 7919 % 80_021 * 4).collect();
    let blocks: Vec<(usize, isize)> = (0..70_000).map(|i| (i % 3 + 1, i as isize * 5)).collect();
    let layouts = [
        Type::hindexed_block(1, &places, &pair).unwrap(),
        Type::indexed(&blocks, &pair).unwrap(),
    ];
    let layouts = layouts.map(|ty| ty.commit().unwrap());
    for layout in &layouts {
        agrees(&stream, layout, &mut random);
    }
    // So many rows of 9 to 11 blocks; one entry for each.
    let rows = (0..40_000).map(|row| {
        let blocks = Type::vector(9 + row % 3, 1, 2, &pair).unwrap();
        (1, row as isize * 46, blocks)
    });
    let rows = Type::structure(&rows.collect::<Vec<_>>()).unwrap();
    let rows = rows.commit().unwrap();
    assert_eq!(Plan::entries(&rows, 1).unwrap(), 40_000);
    agrees(&stream, &rows, &mut random);
    // One list, or the other, is made last.
    let [places, blocks] = &layouts;
    copies_agree(&stream, (places, blocks), 0..160_000, &mut random);
    copies_agree(&stream, (blocks, places), 2_222..150_002, &mut random);
}

/// Copies, and sums of what both sides have, at the first use of both layouts.
fn copies_agree(
    stream: &Stream,
    (from, to): (&Layout, &Layout),
    range: std::ops::Range<usize>,
    random: &mut Random,
) {
    let mut memory = |layout: &Layout| -> Vec<u8> {
        let (_, high) = layout.span(1);
        (0..high).map(|_| random.next() as u8).collect()
    };
    let (source, target) = (memory(from), memory(to));
    let mut moved = vec![0; range.len()];
    from.pack(&source, 0, 1, range.clone(), &mut moved).unwrap();
    let mut copied = target.clone();
    to.unpack(&mut copied, 0, 1, range.clone(), &moved).unwrap();
    let mut sums = vec![0; range.len()];
    to.pack(&target, 0, 1, range.clone(), &mut sums).unwrap();
    let number = Element::from(Basic::I16);
    Operator::Sum.combine(number, &mut sums, &moved).unwrap();
    let mut summed = target.clone();
    to.unpack(&mut summed, 0, 1, range.clone(), &sums).unwrap();

    let view = |bytes: &[u8], layout: &Layout| {
        let device = upload(stream, bytes);
        let view = DeviceView::new(&device, 0, layout, 1).unwrap();
        (view.after_stream(stream), device)
    };
    let (reads, _kept) = view(&source, from);
    let packed = upload(stream, &moved).after_stream(stream);
    // First uses all: a packer that knows nothing each time.
    for what in 0..3 {
        let packer = Packer::new(stream.context());
        let (writes, device) = view(&target, to);
        let range = range.clone();
        match what {
            0 => packer.copy(stream, &reads, &writes, range, None),
            1 => packer.combine(stream, Operator::Sum, &reads, &writes, range, None),
            _ => packer.combine_packed(stream, Operator::Sum, &packed, range, &writes, None),
        }
        .unwrap();
        let expected = if what == 0 { &copied } else { &summed };
        assert!(download(stream, &device) == *expected, "way {what}");
    }
}

/// Prints what a commit and a first pack of 8 million cache slices cost the host:
/// everything but what the driver does, whose calls are counted with their own
/// time on the emulated one. `cargo test --release ... -- --ignored --nocapture`.
#[test]
#[ignore = "prints a table of host times"]
fn host_time_of_cache_slices() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let slice = Type::contiguous(2, &Type::basic(Basic::Byte)).unwrap();
    let device = DeviceSlice::<u8>::new(&stream, 64 << 20)
        .unwrap()
        .into_inner();
    let packed = DeviceSlice::<u8>::new(&stream, 16).unwrap();
    let places: Vec<isize> = (0..10_000).map(|i| i * 7919 % 10_007 * 6400).collect();
    // Kernels are loaded before: that is once per process.
    for round in 0..6 {
        let paged = round % 2 == 1;
        let begin = Instant::now();
        let page = Type::hvector(800, 1, 8, &slice).unwrap();
        let ty = match paged {
            true => Type::hindexed_block(1, &places, &page).unwrap(),
            false => Type::hvector(10_000, 1, 6403, &page).unwrap(),
        };
        let layout = ty.commit().unwrap();
        let committed = begin.elapsed();
        let view = DeviceView::new(&device, 0, &layout, 1).unwrap();
        let packer = Packer::new(&context);
        // The kernel of so few bytes is over at once; the plan is that of all.
        packer
            .pack(&stream, &view.after_stream(&stream), 0..16, &packed, None)
            .unwrap();
        let all = begin.elapsed();
        stream.synchronize().unwrap();
        let what = if paged {
            "10^4 pages of 800"
        } else {
            "nested strides"
        };
        println!("8 million slices as {what}: commit {committed:?}, with first pack {all:?}");
        assert_eq!(layout.size(), 16_000_000);
    }
}

/// Prints what a pack that is in the cache costs the host until it is queued, beside the
/// launch of an empty kernel, whose share is the driver's.
#[test]
#[ignore = "prints a table of host times"]
fn host_time_of_a_cached_pack() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let device = DeviceSlice::<u8>::new(&stream, 1 << 20)
        .unwrap()
        .into_inner();
    let packed = DeviceSlice::<u8>::new(&stream, 64).unwrap();
    let byte = Type::basic(Basic::Byte);
    let runs: Vec<_> = (0..8).map(|i| (i % 3 + 1, i as isize * 5)).collect();
    let strided = Type::vector(8, 4, 16, &byte).unwrap().commit().unwrap();
    let listed = Type::hindexed(&runs, &byte).unwrap().commit().unwrap();
    let packer = Packer::new(&context);
    let view = |layout: &Layout| DeviceView::new(&device, 0, layout, 1).unwrap();
    let [strides, lists] = [&strided, &listed].map(|layout| view(layout).after_stream(&stream));
    // Shortest and median of batches: who queues is not to wait for what runs.
    let time = |what: &str, queue: &dyn Fn()| {
        let mut times: Vec<f64> = (0..300)
            .map(|_| {
                stream.synchronize().unwrap();
                let begin = Instant::now();
                (0..8).for_each(|_| queue());
                begin.elapsed().as_secs_f64() / 8.0
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let ns = |at: usize| times[at] * 1e9;
        println!(
            "{what}: {:.0} ns at least, {:.0} at the median",
            ns(0),
            ns(150)
        );
    };
    time("an empty launch", &|| baseline::empty(&stream).unwrap());
    for (what, layout, view) in [("strides", &strided, &strides), ("a list", &listed, &lists)] {
        let bytes = layout.size();
        let pack = || {
            packer
                .pack(&stream, view, 0..bytes, &packed, None)
                .map(drop)
                .unwrap()
        };
        time(&format!("a cached pack of {bytes} bytes, {what}"), &pack);
    }
    time("an event", &|| drop(stream.record().unwrap()));
}
