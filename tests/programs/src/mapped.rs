//! What two processes with devices do with each other's memory: `exercise mapped WHAT`.

use crate::foreign::{self, Foreign};
use osier::datatype::Basic;
use osier::devices::{
    Context, DeviceSlice, DeviceView, Kind, Memory, Ordered, Pinned, Stream, Valve, copy, devices,
};
use osier::{Communicator, ErrorKind, Layout, Type};
use osier_bed::devices::{DeviceTraffic, device_traffic, device_use};

/// A rank's device, by turns.
pub struct Device {
    context: Context,
    stream: Stream,
}

impl Device {
    pub fn of(comm: &Communicator) -> Device {
        let number = devices().expect("devices").len();
        let ordinal = i32::try_from(comm.rank() % number).expect("few devices");
        let context = Context::new(ordinal).expect("a context");
        let stream = Stream::new(&context).expect("a stream");
        Device { context, stream }
    }

    /// Its stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// One that nothing else uses.
    pub fn another_stream(&self) -> Stream {
        Stream::new(&self.context).expect("a stream")
    }

    /// Memory with these bytes.
    pub fn with(&self, kind: impl Into<Made>, bytes: &[u8]) -> DeviceSlice<u8> {
        let slice = match kind.into() {
            Made::Kind(kind) => DeviceSlice::<u8>::with_kind(&self.stream, kind, bytes.len())
                .map(Ordered::into_inner),
            Made::Foreign(how) => Ok(foreign::memory(&self.context, how, bytes.len())),
            Made::Pinned => Memory::pinned(&self.context, bytes.len()).and_then(DeviceSlice::of),
        };
        let slice = slice.expect("memory");
        let staged = Pinned::from_slice(&self.context, bytes).expect("pinned");
        copy::copy(
            &self.stream,
            &staged.on_device(&self.stream),
            &slice.after_stream(&self.stream),
        )
        .expect("a copy");
        slice
    }

    /// What lies there.
    pub fn bytes(&self, slice: &DeviceSlice<u8>) -> Vec<u8> {
        let mut back = Pinned::from_slice(&self.context, &vec![0u8; slice.len()]).expect("pinned");
        copy::copy(
            &self.stream,
            &slice.after_stream(&self.stream),
            &back.on_device(&self.stream),
        )
        .expect("a copy");
        back.host().expect("nobody else").to_vec()
    }
}

/// What is handed over as a device's memory.
#[derive(Clone, Copy, Debug)]
pub enum Made {
    Kind(Kind),
    Pinned,
    /// Of another library.
    Foreign(Foreign),
}

impl From<Kind> for Made {
    fn from(kind: Kind) -> Made {
        Made::Kind(kind)
    }
}

fn kind(name: &str) -> Made {
    Made::Kind(match name {
        "plain" => Kind::Plain,
        "pool" => Kind::Pool,
        "exportable" => Kind::SharedPool,
        "mapped" => Kind::Mapped,
        "managed" => Kind::Managed,
        "pinned" => return Made::Pinned,
        "foreign" => return Made::Foreign(Foreign::Plain),
        "others" => return Made::Foreign(Foreign::Exportable),
        "private" => return Made::Foreign(Foreign::Pool),
        "unexported" => return Made::Foreign(Foreign::Mapped),
        _ => panic!("{name}?"),
    })
}

fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i * 31 + seed * 7 + (i >> 8) * 3) as u8)
        .collect()
}

/// Layouts of so many bytes, and the bytes around them.
fn layouts(bytes: usize) -> Vec<(&'static str, Layout, usize)> {
    let byte = Type::basic(Basic::U8);
    let commit = |ty: Type| ty.commit().expect("a layout");
    let run = commit(Type::contiguous(bytes, &byte).expect("a type"));
    let block = 1024;
    let rows = Type::vector(bytes / block, block, 2 * block as isize, &byte).expect("a type");
    let (mut blocks, mut left, mut at) = (Vec::new(), bytes, 2);
    for i in 0.. {
        let length = if i == 500 {
            left
        } else {
            left.min(1 + i * 37 % 5000)
        };
        if length == 0 {
            break;
        }
        blocks.push((length, at as isize));
        (left, at) = (left - length, at + length + 1 + i % 3);
    }
    let list = Type::indexed(&blocks, &byte).expect("a type");
    vec![
        ("run", run, bytes),
        ("rows", commit(rows), 2 * bytes),
        ("list", commit(list), at + 1),
    ]
}

/// What lies there after a message from one layout to another.
fn expected(sent: (&Layout, &[u8]), received: (&Layout, usize)) -> Vec<u8> {
    let bytes = sent.0.size();
    let mut packed = vec![0; bytes];
    sent.0
        .pack(sent.1, 0, 1, 0..bytes, &mut packed)
        .expect("pack");
    let mut all = vec![0xa5; received.1];
    received
        .0
        .unpack(&mut all, 0, 1, 0..bytes, &packed)
        .expect("unpack");
    all
}

fn less(now: DeviceTraffic, before: DeviceTraffic) -> DeviceTraffic {
    DeviceTraffic {
        copied: now.copied - before.copied,
        handed: now.handed - before.handed,
        device_slots: now.device_slots - before.device_slots,
        copied_first: now.copied_first - before.copied_first,
        bar1_windows: now.bar1_windows - before.bar1_windows,
        kernels: now.kernels - before.kernels,
        kernel_bytes: now.kernel_bytes - before.kernel_bytes,
        combined: now.combined - before.combined,
        crossed: now.crossed - before.crossed,
        mappings: now.mappings,
    }
}

pub fn run(comm: &Communicator, what: &[&str]) {
    match what {
        ["counted", cells @ ..] => {
            for (at, cell) in cells.iter().enumerate() {
                let [from, to, way] = cell.split('-').collect::<Vec<_>>()[..] else {
                    panic!("{cell}?");
                };
                counted(comm, (kind(from), kind(to), way), at == 0);
            }
        }
        ["short", how] => short(comm, how),
        ["runs"] => runs(comm),
        ["listed", made, way] => listed(comm, kind(made), way),
        ["edges", first] => edges(comm, *first == "copied"),
        ["refused", from, to] => refused(comm, kind(from), kind(to)),
        ["dropped", from, to] => dropped(comm, kind(from), kind(to)),
        ["again"] => again(comm),
        ["steady"] => steady(comm),
        ["first"] => first(comm),
        ["deep"] => deep(comm),
        ["pieces"] => pieces(comm),
        ["limit", most] => limit(comm, most.parse().expect("a number")),
        ["both", made] => both(comm, kind(made)),
        ["late"] => late(comm),
        ["dies", when, from, to] => return dies(comm, when, kind(from), kind(to)),
        _ => panic!("exercise mapped {what:?}?"),
    }
    super::through(comm);
}

/// Layouts to others, both ways; `way` says how they must have gone. (All pairings are in
/// `matrix`.)
fn counted(comm: &Communicator, (from, to, way): (Made, Made, &str), all: bool) {
    let device = Device::of(comm);
    let me = comm.rank();
    let mut seed = 0;
    // Several slots.
    let long = (way == "slots").then_some((1 << 20) + 1024);
    for bytes in [64 << 10].into_iter().chain(long) {
        for (i, sent) in layouts(bytes).iter().enumerate() {
            for (j, received) in layouts(bytes).iter().enumerate() {
                // Each layout at least once on either side.
                if !(all && j >= i && bytes < 1 << 20) && j != (i + 1) % 3 {
                    continue;
                }
                for sender in 0..2 {
                    seed += 1;
                    let before = device_traffic(comm);
                    let what = format!("{bytes} bytes, {} to {}, {way}", sent.0, received.0);
                    if me == sender {
                        let slice = device.with(from, &pattern(sent.2, seed));
                        // Anywhere in an allocation.
                        let view = DeviceView::new(&slice, 0, &sent.1, 1).expect("inside");
                        comm.send(&view.after_stream(&device.stream), 1 - me, seed)
                            .expect("a send");
                    } else {
                        let slice = device.with(to, &vec![0xa5; received.2]);
                        let view = DeviceView::new(&slice, 0, &received.1, 1).expect("inside");
                        comm.recv(&mut view.after_stream(&device.stream), 1 - me, seed)
                            .expect("a receive");
                        let all = pattern(sent.2, seed);
                        let right = expected((&sent.1, &all), (&received.1, received.2));
                        assert!(device.bytes(&slice) == right, "{what}");
                    }
                    let did = less(device_traffic(comm), before);
                    let sends = me == sender;
                    let kernels = match way {
                        "kernel" => !sends,
                        "put" => sends,
                        // Either of them may send.
                        "lower" => me == 0,
                        _ => false,
                    };
                    assert_eq!(did.copied, 0, "{what}");
                    assert_eq!(did.kernels, u64::from(kernels), "{what}");
                    assert_eq!(did.handed > 0, way == "host" && sends, "{what}");
                    assert_eq!(did.device_slots > 0, way == "slots" && sends, "{what}");
                    assert!(["kernel", "put", "lower", "slots", "host"].contains(&way));
                }
            }
        }
    }
}

/// Lists of blocks to others: by one kernel, if both ranks can be told them in however many
/// parts, the second time without that.
fn listed(comm: &Communicator, made: Made, way: &str) {
    let (device, me) = (Device::of(comm), comm.rank());
    let byte = Type::basic(Basic::U8);
    let list = |blocks: usize, apart: usize| {
        let length = |i: usize| 90 + i * 37 % 51;
        let mut at = 1;
        let blocks = (0..blocks).map(|i| {
            let block = (length(i), at as isize);
            at += length(i) + apart + i % 3;
            block
        });
        let blocks: Vec<_> = blocks.collect();
        let list = Type::indexed(&blocks, &byte).and_then(|ty| ty.commit());
        (list.expect("a layout"), at)
    };
    let both = |blocks| [list(blocks, 1), list(blocks, 2)];
    // One part, two, several, and more than is told.
    let all = [1000, 1030, 5000, 16_000, 17_000].map(|blocks| (blocks, both(blocks)));
    for (tag, (blocks, [sent, received])) in all.iter().chain(&all).enumerate() {
        let told = blocks * 16 < 256 << 10;
        for sender in 0..2 {
            let before = device_traffic(comm);
            if me == sender {
                let slice = device.with(made, &pattern(sent.1, tag));
                let view = DeviceView::new(&slice, 0, &sent.0, 1).expect("inside");
                comm.send(&view.after_stream(&device.stream), 1 - me, tag)
                    .expect("a send");
            } else {
                let slice = device.with(made, &vec![0xa5; received.1]);
                let view = DeviceView::new(&slice, 0, &received.0, 1).expect("inside");
                comm.recv(&mut view.after_stream(&device.stream), 1 - me, tag)
                    .expect("a receive");
                let all = pattern(sent.1, tag);
                let right = expected((&sent.0, &all), (&received.0, received.1));
                assert!(device.bytes(&slice) == right, "{blocks} blocks");
            }
            let did = less(device_traffic(comm), before);
            let works = match way {
                "lower" => me == 0,
                _ => me != sender,
            };
            assert_eq!(did.kernels, u64::from(told && works), "{blocks} blocks");
            assert!(told || did.device_slots > 0 || me != sender, "{blocks}");
        }
    }
    // Many at once, so that parts of one wait for room while others are announced.
    let many: Vec<_> = (0..12).map(|i| list(3000 + i, 1 + i)).collect();
    let view = |slice: &DeviceSlice<u8>, layout| {
        let view = DeviceView::new(slice, 0, layout, 1).expect("inside");
        view.after_stream(&device.stream)
    };
    let mut gets = Vec::new();
    for (tag, (layout, room)) in many.iter().enumerate() {
        let slice = device.with(made, &vec![0xa5; *room]);
        let into = comm.irecv(view(&slice, layout), 1 - me, tag);
        gets.push((into.expect("begun"), slice));
    }
    let mut sends = Vec::new();
    for (tag, (layout, room)) in many.iter().enumerate() {
        let slice = device.with(made, &pattern(*room, tag + me));
        let sent = comm.isend(view(&slice, layout), 1 - me, tag);
        sends.push(sent.expect("begun"));
    }
    for (tag, ((into, slice), (layout, room))) in gets.into_iter().zip(&many).enumerate() {
        into.wait().expect("received");
        let right = expected((layout, &pattern(*room, tag + 1 - me)), (layout, *room));
        assert!(device.bytes(&slice) == right, "message {tag}");
    }
    for sent in sends {
        sent.wait().expect("sent");
    }
}

/// Runs of bytes both ways, in memory that no other process opens.
fn runs(comm: &Communicator) {
    let (device, me) = (Device::of(comm), comm.rank());
    for (tag, bytes) in [8, 8192, 64 << 10, 1 << 20].into_iter().enumerate() {
        for sender in 0..2 {
            if me == sender {
                let slice = device.with(Kind::Pool, &pattern(bytes, tag + sender));
                comm.send(&slice.after_stream(&device.stream), 1 - me, tag)
                    .expect("a send");
                continue;
            }
            let slice = device.with(Kind::Pool, &vec![0xa5; bytes]);
            comm.recv(&mut slice.after_stream(&device.stream), sender, tag)
                .expect("a receive");
            let right = pattern(bytes, tag + sender);
            assert!(device.bytes(&slice) == right, "{bytes} bytes");
        }
    }
}

/// Short messages, one run or with gaps, in three modes: `bounced` through pinned memory,
/// moved through an `aperture`, `announced` all, or `bounced` between two processes that take
/// `turns`.
fn short(comm: &Communicator, how: &str) {
    let (device, me) = (Device::of(comm), comm.rank());
    let byte = Type::basic(Basic::U8);
    let kinds = [
        (Made::Kind(Kind::Plain), true),
        (Made::Kind(Kind::Pool), false),
        (Made::Foreign(Foreign::Plain), true),
        (Made::Foreign(Foreign::Pool), false),
    ];
    for (made, plain) in kinds {
        for n in [1, 8, 1500, 8192] {
            let run = Type::contiguous(n, &byte).and_then(|t| t.commit());
            let gaps = Type::vector(n, 1, 2, &byte).and_then(|t| t.commit());
            for (layout, is_run) in [(run, true), (gaps, n == 1)] {
                let layout = layout.expect("a layout");
                for mode in ["standard", "synchronous", "ready"] {
                    let what = format!("{n} bytes, {made:?}, run {is_run}, {mode}, {how}");
                    let bytes = pattern(2 * n, n + me);
                    let slice = device.with(made, &bytes);
                    // Its ready event has passed.
                    device.stream.synchronize().expect("a stream");
                    let before = device_traffic(comm);
                    let view = DeviceView::new(&slice, 0, &layout, 1).expect("inside");
                    let mut own = view.after_stream(&device.stream);
                    if me == 0 {
                        comm.recv(&mut [0u8], 1, 2).expect("a word");
                        let sent = match mode {
                            "standard" => comm.send(&own, 1, 1),
                            "synchronous" => comm.ssend(&own, 1, 1),
                            _ => comm.rsend(&own, 1, 1),
                        };
                        sent.expect("a send");
                    } else {
                        comm.scope(|s| {
                            let request = s.irecv(&mut own, 0, 1)?;
                            comm.send(&[0u8], 0, 2)?;
                            request.wait()
                        })
                        .expect("a receive");
                        let sent = pattern(2 * n, n);
                        let step = if is_run { 1 } else { 2 };
                        let got = device.bytes(&slice);
                        let right = (0..2 * n).all(|i| {
                            let moved = i % step == 0 && i < step * n;
                            got[i] == if moved { sent[i] } else { bytes[i] }
                        });
                        assert!(right, "{what}");
                    }
                    let did = less(device_traffic(comm), before);
                    let reached = how == "BAR1 window" && plain && is_run;
                    let waits = mode != "standard" || how == "announced";
                    // With a BAR1 window few bytes are quicker without a kernel.
                    let kernel = waits && plain && !(reached && n < 1500);
                    let through = match me {
                        0 => reached && !kernel && n <= 1500,
                        _ => reached && !kernel,
                    };
                    // Of two that take turns the lower one works, which sends.
                    let works = if how == "turns" { 0 } else { 1 };
                    assert_eq!(did.kernels, u64::from(kernel && me == works), "{what}");
                    assert_eq!(did.bar1_windows, u64::from(through), "{what}");
                    let slots = did.device_slots + did.handed;
                    assert!(slots == 0 || (how == "announced" && !plain), "{what}");
                }
            }
        }
    }
}

/// Sizes around those of slots on the device, which are copied `first` to the own one
/// where they are unpacked.
fn edges(comm: &Communicator, first: bool) {
    let device = Device::of(comm);
    let slot = 256 << 10;
    let sizes = [
        slot - 1,
        slot,
        slot + 1,
        2 * slot - 1,
        2 * slot,
        2 * slot + 1,
    ];
    for (tag, bytes) in sizes.into_iter().chain([5 * slot + 7]).enumerate() {
        let all = layouts(bytes);
        let (run, list) = (&all[0], &all[2]);
        let (sent, received) = if tag % 2 == 0 {
            (run, list)
        } else {
            (list, run)
        };
        let before = device_traffic(comm);
        if comm.rank() == 0 {
            let slice = device.with(Kind::Pool, &pattern(sent.2, tag));
            let view = DeviceView::new(&slice, 0, &sent.1, 1).expect("inside");
            comm.send(&view.after_stream(&device.stream), 1, tag)
                .expect("a send");
            let did = less(device_traffic(comm), before);
            // Of 256 or 512 KiB.
            assert!(
                did.device_slots >= bytes.div_ceil(2 * slot) as u64,
                "{bytes} bytes"
            );
            assert_eq!(did.handed, 0, "{bytes} bytes");
            continue;
        }
        let slice = device.with(Kind::Pool, &vec![0xa5; received.2]);
        let view = DeviceView::new(&slice, 0, &received.1, 1).expect("inside");
        comm.recv(&mut view.after_stream(&device.stream), 0, tag)
            .expect("a receive");
        let did = less(device_traffic(comm), before);
        let runs = tag % 2 == 1;
        assert_eq!(did.copied_first > 0, first && !runs, "{bytes} bytes");
        let all = pattern(sent.2, tag);
        let right = expected((&sent.1, &all), (&received.1, received.2));
        assert!(device.bytes(&slice) == right, "{bytes} bytes");
    }
}

/// Some launches are refused: a message goes another way or ends in an error at both
/// sides, those behind it are whole, and nothing is left.
fn refused(comm: &Communicator, from: Made, to: Made) {
    let device = Device::of(comm);
    let (_, layout, room) = layouts(300 << 10).remove(1);
    let mut failed = 0;
    for tag in 0..8 {
        let sends = comm.rank() == 0;
        let slice = match sends {
            true => device.with(from, &pattern(room, tag)),
            false => device.with(to, &vec![0xa5; room]),
        };
        let view = DeviceView::new(&slice, 0, &layout, 1).expect("inside");
        let mut view = view.after_stream(&device.stream);
        let result = match sends {
            true => comm.send(&view, 1, tag),
            false => comm.recv(&mut view, 0, tag).map(drop),
        };
        match result {
            Err(e) => {
                let kinds = [ErrorKind::Device, ErrorKind::Cancelled];
                assert!(kinds.contains(&e.kind()), "{e}");
                failed += 1;
            }
            Ok(()) if !sends => {
                let right = expected((&layout, &pattern(room, tag)), (&layout, room));
                assert!(device.bytes(&slice) == right, "message {tag}");
            }
            Ok(()) => {}
        }
    }
    assert!(failed <= 4, "{failed} of 8 failed");
    comm.barrier().expect("both are there");
    assert_eq!(device_use(comm), Default::default());
}

/// A receive is dropped while its sender's producer is late, or later: nothing is written
/// to its memory any more, its sender goes on, and so do messages behind it.
fn dropped(comm: &Communicator, from: Made, to: Made) {
    let device = Device::of(comm);
    let bytes = 1 << 20;
    for round in 0..6u8 {
        if comm.rank() == 0 {
            let slice = device.with(from, &vec![1; bytes]);
            let own = slice.after_stream(&device.stream);
            for _ in 0..if round % 2 == 0 { 20 } else { 1 } {
                copy::fill(&device.stream, &own, 100).expect("a fill");
            }
            let request = comm.isend(own, 1, 1).expect("begun");
            comm.send(&[round], 1, 2).expect("a send");
            request.wait().expect("sent, or given up");
            let own = slice.after_stream(&device.stream);
            comm.send(&own, 1, 3).expect("another");
            continue;
        }
        let slice = device.with(to, &vec![0; bytes]);
        let mut request = comm
            .irecv(slice.after_stream(&device.stream), 0, 1)
            .expect("begun");
        comm.recv(&mut [0u8], 0, 2).expect("a receive");
        for _ in 0..round {
            request.test();
        }
        drop(request);
        let before = device.bytes(&slice);
        let other = device.with(to, &vec![0; bytes]);
        let mut second = other.after_stream(&device.stream);
        comm.recv(&mut second, 0, 3).expect("the next");
        assert!(device.bytes(&other) == vec![100; bytes], "round {round}");
        assert!(
            device.bytes(&slice) == before,
            "round {round}: written behind the drop"
        );
    }
}

/// Memory that is freed and allocated anew at the same address is other memory.
fn again(comm: &Communicator) {
    let device = Device::of(comm);
    let bytes = 300_000;
    let mut places = Vec::new();
    for round in 0..20 {
        if comm.rank() == 0 {
            let slice = device.with(Kind::Plain, &pattern(bytes, round));
            places.push(slice.address());
            comm.send(&slice.after_stream(&device.stream), 1, round)
                .expect("a send");
            continue;
        }
        let slice = device.with(Kind::Plain, &vec![0; bytes]);
        let before = device_traffic(comm).kernels;
        comm.recv(&mut slice.after_stream(&device.stream), 0, round)
            .expect("a receive");
        assert!(
            device.bytes(&slice) == pattern(bytes, round),
            "round {round}"
        );
        let now = device_traffic(comm);
        assert_eq!(now.kernels, before + 1);
        assert!(now.mappings <= 2, "{now:?}");
    }
    let all = places.len();
    places.sort_unstable();
    places.dedup();
    assert!(
        comm.rank() == 1 || places.len() < all,
        "no address was used twice"
    );
}

/// The same while another message is never over: what was open of the old memory is closed
/// all the same.
fn steady(comm: &Communicator) {
    let device = Device::of(comm);
    let held = device.another_stream();
    let bytes = 100_000;
    let slice = device.with(Kind::Plain, &vec![0; bytes]);
    let color = u32::from(comm.rank() == 2);
    let pair = comm.split(Some(color), 0).expect("split").expect("a part");
    let valve = Valve::new(&device.context).expect("a valve");
    match comm.rank() {
        // Its producer comes last of all.
        2 => {
            valve.set(false);
            valve.hold(&held).expect("held");
            let sent = comm.isend(slice.after_stream(&held), 1, 77).expect("begun");
            comm.barrier().expect("a barrier");
            valve.set(true);
            sent.wait().expect("sent");
        }
        1 => {
            let into = comm.irecv(slice.after_stream(&device.stream), 2, 77);
            while device_use(comm).under_way == 0 {
                let _ = comm.iprobe(2, 78).expect("progress");
            }
            again(&pair);
            assert!(device_use(comm).under_way > 0);
            comm.barrier().expect("a barrier");
            into.expect("begun").wait().expect("received");
        }
        _ => {
            again(&pair);
            comm.barrier().expect("a barrier");
        }
    }
}

/// Messages that need kernels, tables and memory for the first time while streams are held:
/// nothing that a driver may make only when they are not is made by then.
fn first(comm: &Communicator) {
    const STREAMS: usize = 64;
    const WORKS: usize = 400;
    let (device, other) = (Device::of(comm), 1 - comm.rank());
    let bytes = 300_000;
    let mut ends = Vec::new();
    for (_, layout, around) in layouts(bytes) {
        let from = device.with(Kind::Plain, &pattern(around, comm.rank()));
        let to = device.with(Kind::Plain, &vec![0xa5; around]);
        ends.push((layout, from, to));
    }
    let gone = device.with(Kind::Plain, &[1; 5000]);
    let held: Vec<Stream> = (0..STREAMS).map(|_| device.another_stream()).collect();
    let mut late: Vec<_> = held
        .iter()
        .map(|_| device.with(Kind::Plain, &[0; 1000]))
        .collect();
    device.stream.synchronize().expect("idle");
    for (tag, (stream, slice)) in held.iter().zip(&mut late).enumerate() {
        let on = comm.on_stream(stream);
        on.recv(slice, other, 1000 + tag).expect("enqueued");
    }
    comm.barrier().expect("a barrier");
    for (tag, (layout, from, to)) in ends.iter().enumerate() {
        let view = |slice| DeviceView::new(slice, 0, layout, 1).expect("inside");
        let into = comm.irecv(view(to).after_stream(&device.stream), other, tag);
        comm.send(&view(from).after_stream(&device.stream), other, tag)
            .expect("a send");
        into.expect("begun").wait().expect("received");
    }
    // The driver would wait for the streams.
    drop(gone);
    let word = vec![comm.rank()];
    let go = comm.isend(word, other, 999).expect("begun");
    std::thread::scope(|threads| {
        // Many, each two works, but not more than a stream takes: such a call would hold a lock
        // of the driver that each other call needs, also those by which the message comes.
        let (stream, slice) = (&held[0], &late[0]);
        let full = threads.spawn(move || {
            for i in 0..WORKS {
                copy::fill(stream, &slice.after_stream(stream), i as u8).expect("a fill");
            }
        });
        let mut asked = [0usize];
        comm.recv(&mut asked, other, 999).expect("asked");
        let bytes = vec![7u8; 1000];
        for tag in 0..STREAMS {
            comm.send(&bytes, other, 1000 + tag).expect("a send");
        }
        full.join().expect("filled");
    });
    go.wait().expect("sent");
    for stream in &held {
        comm.on_stream(stream).synchronize().expect("received");
    }
    assert!(device.bytes(&late[0]) == vec![(WORKS - 1) as u8; 1000]);
    assert!(
        late[1..]
            .iter()
            .all(|slice| device.bytes(slice) == vec![7; 1000])
    );
    for (layout, _, to) in &ends {
        let all = pattern(to.len(), other);
        let right = expected((layout, &all), (layout, to.len()));
        assert!(device.bytes(to) == right);
    }
}

/// As many operations on one stream as it may wait for, and some that wait themselves.
fn deep(comm: &Communicator) {
    const DEEP: usize = osier::internals::MOST_HELD;
    const ALL: usize = DEEP + 88;
    let (device, other) = (Device::of(comm), 1 - comm.rank());
    let mut slice = device.with(Kind::Plain, &[0; 100]);
    device.stream.synchronize().expect("idle");
    let on = comm.on_stream(&device.stream);
    let mut receive = |tags: std::ops::Range<usize>| {
        for tag in tags {
            on.recv(&mut slice, other, tag).expect("enqueued");
        }
    };
    match comm.rank() {
        0 => {
            receive(0..DEEP);
            comm.barrier().expect("a barrier");
            receive(DEEP..ALL);
        }
        _ => {
            comm.barrier().expect("a barrier");
            for tag in 0..ALL {
                comm.send(&[tag as u8; 100], other, tag).expect("a send");
            }
        }
    }
    on.synchronize().expect("received");
    let last = (ALL - 1) as u8;
    assert!(comm.rank() == 1 || device.bytes(&slice) == vec![last; 100]);
}

/// Memory of several pieces, of which messages touch some.
fn pieces(comm: &Communicator) {
    let device = Device::of(comm);
    let memory = Memory::in_pieces(&device.context, &[1, 3 << 20, 1]).expect("memory");
    let whole = DeviceSlice::<u8>::of(memory).expect("bytes");
    let n = whole.len();
    let own = whole.after_stream(&device.stream);
    copy::fill(&device.stream, &own, 7 + comm.rank() as u8).expect("a fill");
    let piece = 2 << 20;
    let parts = [0..100_000, piece - 50_000..piece + 50_000, piece..n, 0..n];
    for (tag, part) in parts.into_iter().enumerate() {
        let slice = whole.slice(part).expect("inside");
        if comm.rank() == 0 {
            comm.send(&slice.after_stream(&device.stream), 1, tag)
                .expect("a send");
            continue;
        }
        comm.recv(&mut slice.after_stream(&device.stream), 0, tag)
            .expect("a receive");
        assert!(device.bytes(&slice) == vec![7; slice.len()], "part {tag}");
        assert_eq!(device_traffic(comm).kernels, tag as u64 + 1);
    }
}

/// More allocations than may be open.
fn limit(comm: &Communicator, most: usize) {
    let device = Device::of(comm);
    let bytes = 100_000;
    let all: Vec<_> = (0..5)
        .map(|i| device.with(Kind::Plain, &pattern(bytes, i)))
        .collect();
    for round in 0..40 {
        // Each twice, so that what had to make room is there the second time.
        let at = round / 2 % all.len();
        if comm.rank() == 0 {
            comm.send(&all[at].after_stream(&device.stream), 1, round)
                .expect("a send");
            continue;
        }
        let slice = device.with(Kind::Plain, &vec![0; bytes]);
        comm.recv(&mut slice.after_stream(&device.stream), 0, round)
            .expect("a receive");
        assert!(device.bytes(&slice) == pattern(bytes, at), "round {round}");
        assert!(device_traffic(comm).mappings <= most);
    }
    let did = device_traffic(comm);
    if comm.rank() == 1 {
        assert_eq!(did.kernels > 0, most > 0, "{did:?}");
        assert!(did.kernels < 40, "{did:?}");
    }
}

/// Both export and import at once, many messages under way.
fn both(comm: &Communicator, made: Made) {
    let device = Device::of(comm);
    let (me, other) = (comm.rank(), 1 - comm.rank());
    for round in 0..8 {
        let sizes = [70_000usize, 200_000, 1 << 20, 9, 500_000];
        let mut gets = Vec::new();
        let mut sends = Vec::new();
        for (tag, &n) in sizes.iter().enumerate() {
            let to = device.with(made, &vec![0; n]);
            gets.push((
                comm.irecv(to.after_stream(&device.stream), other, tag)
                    .expect("begun"),
                to,
            ));
        }
        for (tag, &n) in sizes.iter().enumerate().rev() {
            let from = device.with(made, &pattern(n, tag + 10 * me + round));
            sends.push(
                comm.isend(from.after_stream(&device.stream), other, tag)
                    .expect("begun"),
            );
        }
        for (tag, (get, to)) in gets.into_iter().enumerate() {
            get.wait().expect("received");
            let right = pattern(sizes[tag], tag + 10 * other + round);
            assert!(device.bytes(&to) == right, "round {round}, tag {tag}");
        }
        for send in sends {
            send.wait().expect("sent");
        }
    }
}

/// The producer is late: what it writes is what arrives, and a message behind it on
/// another stream does not wait for it.
fn late(comm: &Communicator) {
    let device = Device::of(comm);
    let bytes = 1 << 20;
    for round in 0..10u8 {
        let slice = device.with(Kind::Plain, &vec![0; bytes]);
        if comm.rank() == 0 {
            for i in 0..30 {
                copy::fill(&device.stream, &slice.after_stream(&device.stream), i).expect("a fill");
            }
            let own = slice.after_stream(&device.stream);
            copy::fill(&device.stream, &own, round + 100).expect("a fill");
            let request = comm.isend(own, 1, 1).expect("begun");
            comm.send(&[round], 1, 2).expect("a send");
            request.wait().expect("sent");
        } else {
            let mut own = slice.after_stream(&device.stream);
            let mut word = [0];
            let request = comm.irecv(own.clone(), 0, 1).expect("begun");
            comm.recv(&mut word, 0, 2).expect("a receive");
            assert_eq!(word, [round]);
            request.wait().expect("received");
            assert!(device.bytes(&slice) == vec![round + 100; bytes]);
            let _ = &mut own;
        }
    }
}

/// Rank 1 is killed at some step; rank 0 is told, and nothing is left.
fn dies(comm: &Communicator, when: &str, from: Made, to: Made) {
    let device = Device::of(comm);
    let bytes = 4 << 20;
    let sends = (comm.rank() == 1) != (when == "receiving");
    let made = if sends { from } else { to };
    let slice = device.with(made, &pattern(bytes, 5));
    // One message goes through, so that all is set up.
    let mut own = slice.after_stream(&device.stream);
    match sends {
        true => comm.send(&own, 1 - comm.rank(), 0).expect("a send"),
        false => drop(comm.recv(&mut own, 1 - comm.rank(), 0).expect("a receive")),
    }
    if comm.rank() == 1 {
        let view = slice.after_stream(&device.stream);
        let _request = match when {
            // Its ready event never comes.
            "late" => {
                for i in 0..200 {
                    copy::fill(&device.stream, &view, i).expect("a fill");
                }
                comm.isend(view, 0, 1).expect("begun")
            }
            "announced" => comm.isend(view, 0, 1).expect("begun"),
            "receiving" => comm.irecv(view, 0, 1).expect("begun"),
            _ => panic!("{when}?"),
        };
        // The other side is somewhere in the middle.
        if when != "late" {
            comm.recv(&mut [0u8], 0, 2).expect("a word");
        }
        super::kill_me();
    }
    let own = slice.after_stream(&device.stream);
    let result = if when == "receiving" {
        let request = comm.isend(own, 1, 1).expect("begun");
        let _ = comm.send(&[1u8], 1, 2);
        request.wait().map(drop)
    } else {
        let mut request = comm.irecv(own, 1, 1).expect("begun");
        for _ in 0..3 {
            request.test();
        }
        if when != "late" {
            let _ = comm.send(&[1u8], 1, 2);
        }
        request.wait().map(drop)
    };
    // It may have been whole before the end.
    if let Err(e) = result {
        assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
        assert!(e.to_string().contains("rank 1"), "{e}");
    } else {
        assert_ne!(when, "late");
    }
    comm.recv(&mut [0u8], 1, 3).expect_err("nobody sends");
    // Mappings of the dead are closed, but none while a kernel is under way.
    super::devices::nothing_left(comm, 1);
    // The device is sound.
    let again = device.with(Kind::Plain, &pattern(1000, 1));
    assert!(device.bytes(&again) == pattern(1000, 1));
    super::through(comm);
}
