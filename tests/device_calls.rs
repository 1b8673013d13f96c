//! Which calls of the driver messages make, once everything was set up: none that may
//! wait for the whole device, or make it wait. On the emulated driver, which writes its
//! calls down.
//!
//! The messages are repeated. Pools grow to the most memory that was in use at one time, and
//! when a peer is slow more is in use than in the passes before; so memory may be made in
//! some passes, but within [`PASSES`] one has to make none. Calls that wait for an event are
//! never excused after the first pass.

#[path = "../kernels/tests/support/mod.rs"]
mod driver;
#[path = "ranks/support.rs"]
#[allow(dead_code)]
mod support;

use osier::devices::{
    After, DeviceSlice, DeviceView, Graph, Ordered, Pinned, Stream, StreamSemaphore,
};
use osier::testing::{Network, ranks_on};
use osier::{Communicator, IN_PLACE, Layout, Op, Type, View, ViewMut};
use osier_kernels::debug::Debug as _;
use std::sync::Mutex;
use support::{Watchdog, pattern};

/// Calls that wait for a device or its streams, or may make it wait; and those that make
/// or give up what lives longer than a message.
const FORBIDDEN: &[&str] = &[
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemAddress",
    "cuMemSetAccess",
    "cuMemPool",
    "cuMemExport",
    "cuMemImport",
    "cuIpc",
    "cuModule",
    "cuGraphInstantiate",
    "cuGraphExecDestroy",
    "legacy default stream",
];

/// Waits for one event. They are made by calls that have to end with the host's copy in
/// hand, and by transfers that are given up.
const WAITS: &str = "cuEventSynchronize";
const MAY_WAIT: &[&str] = &["buffered", "replaced", "given up"];

fn is_forbidden(call: &str) -> bool {
    // Driver calls end in a version, and families share their beginning.
    FORBIDDEN.iter().any(|name| call.starts_with(name))
}

#[test]
fn messages_make_no_call_that_waits_for_the_device() {
    let Some(library) = driver::emulated() else {
        return;
    };
    let told = traced("child_that_is_traced", &library);
    assert!(told.contains("calls in a later pass"), "{told}");
}

/// Runs a child that reads what calls it makes; what it says.
fn traced(child: &str, library: &std::path::Path) -> String {
    let prefix = std::env::temp_dir().join(format!("osier-{child}-{}", std::process::id()));
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture"])
        .debug("cuda-library", library)
        .debug("device-reductions", "device")
        .env("OSIER_EMULATED_TRACE", &prefix)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
    told
}

/// A rank that enqueues while another one of its process holds a stream makes none: a driver may
/// have it wait until nothing is held.
#[test]
fn streams_are_made_before_any_is_held() {
    if let Some(library) = driver::emulated() {
        traced("child_that_comes_late", &library);
    }
}

#[test]
#[ignore = "run by streams_are_made_before_any_is_held"]
fn child_that_comes_late() {
    let context = driver::context().unwrap();
    let prefix = std::env::var("OSIER_EMULATED_TRACE").unwrap();
    let trace = format!("{prefix}.{}", std::process::id());
    let _watchdog = Watchdog::start();
    let streams = [(); 2].map(|()| Stream::new(&context).unwrap());
    let devices = [0, 1].map(|rank| driver::upload(&streams[rank], &pattern(64 << 10, rank)));
    ranks_on(&Network::Shm, 2, |comm| {
        let (stream, rank) = (&streams[comm.rank()], comm.rank());
        let mut device = devices[rank].slice(0..64 << 10).unwrap();
        if rank == 1 {
            comm.on_stream(stream).recv(&mut device, 0, 0).unwrap();
        }
        comm.barrier().unwrap();
        let begun = std::fs::metadata(&trace).unwrap().len() as usize;
        comm.barrier().unwrap();
        if rank == 0 {
            comm.on_stream(stream).send(&device, 1, 0).unwrap();
        }
        stream.synchronize().unwrap();
        comm.barrier().unwrap();
        let calls = std::fs::read_to_string(&trace).unwrap();
        let mut made = calls[begun..].lines();
        assert_eq!(made.find(|call| call.starts_with("cuStreamCreate")), None);
        assert!(calls.contains("cuStreamCreate"));
        comm.barrier().unwrap();
    });
}

/// What a short message has done on a device is a launch, and nothing behind it.
#[test]
fn work_of_a_short_message_is_one_launch() {
    if let Some(library) = driver::emulated() {
        traced("child_with_short_messages", &library);
    }
}

#[test]
#[ignore = "run by work_of_a_short_message_is_one_launch"]
fn child_with_short_messages() {
    let context = driver::context().unwrap();
    let prefix = std::env::var("OSIER_EMULATED_TRACE").unwrap();
    let trace = format!("{prefix}.{}", std::process::id());
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Shm, 2, |comm| {
        let stream = Stream::new(&context).unwrap();
        let device = driver::upload(&stream, &pattern(64 << 10, comm.rank()));
        stream.synchronize().unwrap();
        let mut host = vec![0u8; 64 << 10];
        // Packs and unpacks through the ring; longer ones are one copy between devices.
        let kinds = [
            (400, 2, [2, 1, 1]),
            (400, 1, [2, 1, 1]),
            (12_000, 2, [1; 3]),
        ];
        for (bytes, stride, launches) in kinds {
            let number = Type::basic(osier::datatype::Basic::F32);
            let numbers = Type::vector(bytes / 4, 1, stride, &number).unwrap();
            let layout = numbers.commit().unwrap();
            let view = DeviceView::new(&device, 0, &layout, 1).unwrap();
            for (ends, launches) in [(true, true), (true, false), (false, true)]
                .into_iter()
                .zip(launches)
            {
                let mut exchange = |tag: usize| match (comm.rank(), ends) {
                    (0, (true, _)) => {
                        let view = Ordered::new(view.clone(), After::Now);
                        comm.send(&view, 1, tag).unwrap();
                    }
                    (0, _) => {
                        let view = View::new(&host, 0, &layout, 1).unwrap();
                        comm.send(&view, 1, tag).unwrap();
                    }
                    (_, (_, true)) => {
                        let mut view = Ordered::new(view.clone(), After::Now);
                        comm.recv(&mut view, 0, tag).unwrap();
                    }
                    _ => {
                        let mut view = ViewMut::new(&mut host, 0, &layout, 1).unwrap();
                        comm.recv(&mut view, 0, tag).unwrap();
                    }
                };
                exchange(0);
                comm.barrier().unwrap();
                let begun = std::fs::metadata(&trace).unwrap().len() as usize;
                comm.barrier().unwrap();
                exchange(1);
                comm.barrier().unwrap();
                let calls = std::fs::read_to_string(&trace).unwrap();
                let calls: Vec<&str> = calls[begun..].lines().collect();
                let count = |name| calls.iter().filter(|call| call.starts_with(name)).count();
                let what = format!("{bytes} bytes, {stride}, {ends:?}: {calls:?}");
                assert_eq!(count("cuLaunchKernel"), launches, "{what}");
                assert_eq!(count("cuMemcpy"), 0, "{what}");
                assert_eq!(count("cuEventRecord"), 0, "{what}");
                assert_eq!(count("cuStreamWriteValue"), 0, "{what}");
                comm.barrier().unwrap();
            }
        }
        // Steps of collectives are messages, copies and sums.
        let numbers = vec![0; 400];
        let numbers = driver::upload(&stream, &numbers);
        stream.synchronize().unwrap();
        let layout = Type::contiguous(100, &Type::basic(osier::datatype::Basic::F32));
        let layout = layout.unwrap().commit().unwrap();
        let view = DeviceView::new(&numbers, 0, &layout, 1).unwrap();
        let mut all = Ordered::new(view, After::Now);
        let mut sum = || comm.allreduce(&IN_PLACE, &mut all, Op::Sum).unwrap();
        (0..3).for_each(|_| sum());
        comm.barrier().unwrap();
        let begun = std::fs::metadata(&trace).unwrap().len() as usize;
        comm.barrier().unwrap();
        sum();
        comm.barrier().unwrap();
        let calls = std::fs::read_to_string(&trace).unwrap();
        let calls: Vec<&str> = calls[begun..].lines().collect();
        let count = |name| calls.iter().filter(|call| call.starts_with(name)).count();
        assert!(count("cuLaunchKernel") >= 2, "{calls:?}");
        assert_eq!(count("cuStreamWriteValue"), 0, "{calls:?}");
        assert_eq!(count("cuEventRecord"), 0, "{calls:?}");
        comm.barrier().unwrap();
    });
    let _ = std::fs::remove_file(trace);
}

/// A put or a get between parts and buffers on devices is a launch from layout to layout, or a
/// copy on the device, and nothing goes through the host.
#[test]
fn accesses_between_devices_are_one_launch() {
    if let Some(library) = driver::emulated() {
        traced("child_with_accesses", &library);
    }
}

#[test]
#[ignore = "run by accesses_between_devices_are_one_launch"]
fn child_with_accesses() {
    const ROOM: usize = 400_000;
    let context = driver::context().unwrap();
    let prefix = std::env::var("OSIER_EMULATED_TRACE").unwrap();
    let trace = format!("{prefix}.{}", std::process::id());
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Shm, 2, |comm| {
        let (rank, other) = (comm.rank(), 1 - comm.rank());
        let stream = Stream::new(&context).unwrap();
        let mine = driver::upload(&stream, &pattern(ROOM, rank));
        stream.synchronize().unwrap();
        let window = comm.device_window::<u8>(&context, ROOM).unwrap();
        for bytes in [100usize, 9000, 90_000] {
            for (from, to) in layouts(bytes).iter().zip(layouts(bytes).iter().rev()) {
                let access = |puts: bool| {
                    let view = DeviceView::new(&mine, 0, from, 1).unwrap();
                    let mut view = Ordered::new(view, After::Now);
                    let all = window.lock_all();
                    match puts {
                        true => all.put_as(&view, other, 0, to, 1).unwrap(),
                        false => all.get_as(&mut view, other, 0, to, 1).unwrap(),
                    }
                    all.unlock().unwrap();
                };
                for puts in [true, false] {
                    if rank == 0 {
                        access(puts);
                    }
                    window.fence().unwrap();
                    let begun = std::fs::metadata(&trace).unwrap().len() as usize;
                    window.fence().unwrap();
                    if rank == 0 {
                        access(puts);
                    }
                    window.fence().unwrap();
                    let calls = std::fs::read_to_string(&trace).unwrap();
                    let calls: Vec<&str> = calls[begun..].lines().collect();
                    let count = |name| calls.iter().filter(|c| c.starts_with(name)).count();
                    let what = format!("{bytes} bytes, {from:?}, {to:?}, {puts}: {calls:?}");
                    let launches = count("cuLaunchKernel") + count("cuMemcpyDtoD");
                    assert_eq!(launches, 1, "{what}");
                    assert_eq!(count("cuMemcpy") - count("cuMemcpyDtoD"), 0, "{what}");
                    assert_eq!(count("cuMemHostAlloc"), 0, "{what}");
                    window.fence().unwrap();
                }
            }
        }
        window.free().unwrap();
    });
    let _ = std::fs::remove_file(trace);
}

/// The same of what programs exchange, as far as it lies in 96 MiB: what is put to a layout and
/// got back from there is what it was.
#[test]
fn accesses_of_the_corpus_are_one_launch() {
    if let Some(library) = driver::emulated() {
        let told = traced("child_with_accesses_of_the_corpus", &library);
        assert!(told.contains("entries in one launch each"), "{told}");
    }
}

#[test]
#[ignore = "run by accesses_of_the_corpus_are_one_launch"]
fn child_with_accesses_of_the_corpus() {
    const ROOM: usize = 96 << 20;
    let context = driver::context().unwrap();
    let prefix = std::env::var("OSIER_EMULATED_TRACE").unwrap();
    let trace = format!("{prefix}.{}", std::process::id());
    let entries = osier_datatype_corpus::entries().unwrap();
    let done = ranks_on(&Network::Shm, 2, |comm| {
        // A guard for each entry would hide which one hangs.
        let _watchdog = Watchdog::start();
        let stream = Stream::new(&context).unwrap();
        let window = comm.device_window::<u8>(&context, ROOM).unwrap();
        let mut done = 0;
        for entry in &entries {
            let layout = entry.datatype().unwrap().commit().unwrap();
            let (low, high) = layout.span(entry.count);
            let (origin, bytes) = ((-low).max(0) as usize, entry.facts.packed_bytes);
            let fits = origin.saturating_add(high.max(0) as usize) <= ROOM;
            if !fits || entry.facts.overlaps || bytes == 0 {
                continue;
            }
            done += 1;
            let (mine, back) = (pattern(bytes, done), vec![0u8; bytes]);
            let mine = driver::upload(&stream, &mine);
            let back = driver::upload(&stream, &back);
            stream.synchronize().unwrap();
            let access = |puts: bool| {
                let all = window.lock_all();
                let to = (1, origin, &layout, entry.count);
                match puts {
                    true => all.put_as(&mine.after_stream(&stream), to.0, to.1, to.2, to.3),
                    false => all.get_as(&mut back.after_stream(&stream), to.0, to.1, to.2, to.3),
                }
                .unwrap();
                all.unlock().unwrap();
            };
            for puts in [true, false] {
                // Lists are made at their first use.
                if comm.rank() == 0 {
                    access(puts);
                }
                window.fence().unwrap();
                let begun = std::fs::metadata(&trace).unwrap().len() as usize;
                window.fence().unwrap();
                if comm.rank() == 0 {
                    access(puts);
                }
                window.fence().unwrap();
                let calls = std::fs::read_to_string(&trace).unwrap();
                let calls: Vec<&str> = calls[begun..].lines().collect();
                let count = |name| calls.iter().filter(|c| c.starts_with(name)).count();
                let what = format!("{}, {puts}: {calls:?}", entry.name);
                let moves = count("cuLaunchKernel") + count("cuMemcpyDtoD");
                assert_eq!(moves, 1, "{what}");
                assert_eq!(count("cuMemcpy") - count("cuMemcpyDtoD"), 0, "{what}");
                window.fence().unwrap();
            }
            if comm.rank() == 0 {
                let there = driver::download(&stream, &back);
                assert!(there == pattern(bytes, done), "{}", entry.name);
            }
        }
        window.free().unwrap();
        done
    });
    assert!(done[0] >= 70, "{done:?}");
    println!("{} entries in one launch each", done[0]);
    let _ = std::fs::remove_file(trace);
}

/// What one rank sends and receives with.
struct Rank<'a> {
    comm: &'a Communicator,
    stream: &'a Stream,
    /// By place (host, pinned, device): from, to.
    host: [Mutex<Vec<u8>>; 2],
    pinned: [DeviceSlice<u8>; 2],
    device: [DeviceSlice<u8>; 2],
}

/// Passes by which the pools must have grown as far as they do.
const PASSES: usize = 6;

const ROOM: usize = 4 << 20;
const SIZES: [usize; 4] = [100, 9000, 90_000, 1_100_000];

/// Three layouts of so many bytes.
fn layouts(bytes: usize) -> Vec<Layout> {
    let byte = Type::basic(osier::datatype::Basic::U8);
    let block = bytes.div_ceil(90).max(1);
    let (blocks, rest) = (bytes / block, bytes % block);
    let places = |step: usize| -> Vec<(usize, isize)> {
        let all = (0..blocks).map(|i| (block, (i * (block + step + 2) + i % 3) as isize));
        let last = (rest, (blocks * (block + step + 3)) as isize);
        all.chain((rest > 0).then_some(last)).collect()
    };
    let run = Type::contiguous(bytes, &byte).unwrap();
    let list = Type::indexed(&places(1), &byte).unwrap();
    // Long messages in longer blocks: the emulated device moves them quicker.
    let step = if bytes.is_multiple_of(1000) { 1000 } else { 1 };
    let strided = Type::vector(bytes / step, step, 2 * step as isize, &byte).unwrap();
    [run, list, strided]
        .iter()
        .map(|ty| ty.commit().unwrap())
        .collect()
}

impl Rank<'_> {
    fn send(&self, place: usize, layout: &Layout, tag: usize) {
        let comm = self.comm;
        if place == 0 {
            let bytes = self.host[0].lock().unwrap();
            return comm
                .send(&View::new(&bytes, 0, layout, 1).unwrap(), 1, tag)
                .unwrap();
        }
        let view = self.view(place, 0, layout);
        comm.send(&view.after_stream(self.stream), 1, tag).unwrap();
    }

    fn receive(&self, place: usize, layout: &Layout, tag: usize) {
        let comm = self.comm;
        if place == 0 {
            let mut bytes = self.host[1].lock().unwrap();
            let mut view = ViewMut::new(&mut bytes, 0, layout, 1).unwrap();
            comm.recv(&mut view, 0, tag).unwrap();
            return;
        }
        let view = self.view(place, 1, layout);
        comm.recv(&mut view.after_stream(self.stream), 0, tag)
            .unwrap();
    }

    fn view(&self, place: usize, way: usize, layout: &Layout) -> DeviceView<u8> {
        let slices = if place == 1 {
            &self.pinned
        } else {
            &self.device
        };
        DeviceView::new(&slices[way], 0, layout, 1).unwrap()
    }
}

/// Runs each part between barriers, and notes how far the calls had come.
struct Sections<'a> {
    comm: &'a Communicator,
    trace: &'a str,
    begun: Vec<(String, u64)>,
}

impl Sections<'_> {
    fn run(&mut self, name: &str, part: impl FnOnce()) {
        self.comm.barrier().unwrap();
        let calls = std::fs::metadata(self.trace).map_or(0, |file| file.len());
        self.begun.push((name.into(), calls));
        self.comm.barrier().unwrap();
        part();
    }
}

#[test]
#[ignore = "run by messages_make_no_call_that_waits_for_the_device"]
fn child_that_is_traced() {
    let context = driver::context().unwrap();
    let prefix = std::env::var("OSIER_EMULATED_TRACE").unwrap();
    let trace = format!("{prefix}.{}", std::process::id());
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Shm, 2, |comm| {
        let stream = Stream::new(&context).unwrap();
        let zeros = vec![0u8; ROOM];
        let pinned = [0, 1].map(|_| Pinned::from_slice(&context, &zeros).unwrap());
        let slice = |pinned: &Pinned<u8>| pinned.on_device(&stream).into_inner();
        let device = [0, 1].map(|_| driver::upload(&stream, &pattern(ROOM, comm.rank())));
        let rank = Rank {
            comm: &comm,
            stream: &stream,
            host: [Mutex::new(zeros.clone()), Mutex::new(zeros)],
            pinned: [slice(&pinned[0]), slice(&pinned[1])],
            device,
        };
        stream.synchronize().unwrap();
        let kinds: Vec<_> = SIZES.map(layouts).into_iter().collect();
        let mut lasting = Lasting::new(&rank, &kinds[1]);
        let mut sections = Sections {
            comm: &comm,
            trace: &trace,
            begun: Vec::new(),
        };
        play(&rank, &kinds, &mut lasting, &mut sections);
        let mut found = Vec::new();
        for _ in 1..PASSES {
            sections.begun.clear();
            play(&rank, &kinds, &mut lasting, &mut sections);
            sections.run("the end", || {});
            // One rank decides, for both write to the same file.
            if comm.rank() == 0 {
                found = judge(&sections);
            }
            let mut again = [u8::from(!found.is_empty())];
            comm.bcast(&mut again, 0).unwrap();
            if again == [0] {
                break;
            }
        }
        assert!(found.is_empty(), "{found:#?}");
    });
    let _ = std::fs::remove_file(trace);
}

/// What is set up once.
struct Lasting {
    graph: Graph,
    send: osier::persistent::Persistent<osier::devices::Ordered<DeviceView<u8>>>,
    receive: osier::persistent::Persistent<osier::devices::Ordered<DeviceView<u8>>>,
}

impl Lasting {
    fn new(rank: &Rank<'_>, layouts: &[Layout]) -> Lasting {
        let (comm, other) = (rank.comm, 1 - rank.comm.rank());
        let ordered = |way, at: usize| rank.view(2, way, &layouts[at]).after_stream(rank.stream);
        Lasting {
            graph: Graph::capture(rank.stream, |stream| {
                let on = comm.on_stream(stream);
                let (from, mut to) = (rank.view(2, 0, &layouts[1]), rank.view(2, 1, &layouts[2]));
                on.sendrecv(&from, other, 70, &mut to, other, 70).unwrap();
                Ok(())
            })
            .unwrap(),
            send: comm.send_init(ordered(0, 1), other, 71).unwrap(),
            receive: comm.recv_init(ordered(1, 2), other, 71).unwrap(),
        }
    }
}

fn play(
    rank: &Rank<'_>,
    kinds: &[Vec<Layout>],
    lasting: &mut Lasting,
    sections: &mut Sections<'_>,
) {
    let (comm, stream) = (rank.comm, rank.stream);
    let (own, other) = (comm.rank(), 1 - comm.rank());
    let on = comm.on_stream(stream);
    for (size, layouts) in SIZES.iter().zip(kinds) {
        for from in 0..3 {
            for to in 0..3 {
                sections.run(&format!("{size} bytes from {from} to {to}"), || {
                    for (tag, (a, b)) in [(0, 1), (1, 2), (2, 0)].into_iter().enumerate() {
                        match own {
                            0 => rank.send(from, &layouts[a], tag),
                            _ => rank.receive(to, &layouts[b], tag),
                        }
                    }
                });
            }
        }
        let from = rank.view(2, 0, &layouts[1]);
        let to = rank.view(2, 1, &layouts[2]);
        let (from, to) = (from.after_stream(stream), to.after_stream(stream));
        sections.run("both ways", || {
            let mut to = to.clone();
            comm.sendrecv(&from, other, 1, &mut to, other, 1).unwrap();
            let got = comm.irecv(to.clone(), other, 2).unwrap();
            comm.ssend(&from, other, 2).unwrap();
            got.wait().unwrap();
            comm.scope(|s| {
                let got = s.irecv(&mut to, other, 3)?;
                s.isend(&from, other, 3)?.wait()?;
                got.wait()
            })
            .unwrap();
            let sent = comm.isend(from.clone(), other, 4).unwrap();
            comm.mprobe(other, 4).unwrap().recv(&mut to).unwrap();
            sent.wait().unwrap();
        });
        sections.run("on streams", || {
            let (from, mut to) = (from.buffer(), to.buffer().clone());
            on.sendrecv(from, other, 5, &mut to, other, 5).unwrap();
            // The next two are not to be on their way beside these: two more streams.
            comm.barrier().unwrap();
            let last = stream.record().unwrap();
            while !last.is_passed().unwrap() {
                std::thread::yield_now();
            }
            let got = on.irecv(&mut to, other, 6).unwrap();
            let sent = on.issend(from, other, 6).unwrap();
            on.wait_all([&got, &sent]).unwrap();
            got.wait().unwrap();
            sent.wait().unwrap();
        });
        sections.run("replaced", || {
            let mut both = from.clone();
            comm.sendrecv_replace(&mut both, other, 7, other, 7)
                .unwrap();
        });
        sections.run("buffered", || {
            comm.attach_buffer(vec![0; size + 4096]).unwrap();
            let got = comm.irecv(to.clone(), other, 8).unwrap();
            comm.bsend(&from, other, 8).unwrap();
            got.wait().unwrap();
            comm.detach_buffer().unwrap();
        });
        sections.run("given up", || {
            drop(comm.irecv(to.clone(), other, 99).unwrap());
            let never = comm.irecv(to.clone(), other, 98).unwrap();
            never.revoke().unwrap();
        });
    }
    sections.run("persistent", || {
        for _ in 0..3 {
            lasting.receive.start().unwrap();
            lasting.send.start().unwrap();
            lasting.send.wait().unwrap();
            lasting.receive.wait().unwrap();
        }
    });
    sections.run("graph", || {
        for _ in 0..3 {
            let event = lasting.graph.launch(stream, &[]).unwrap();
            while !event.is_passed().unwrap() {
                std::thread::yield_now();
            }
        }
    });
    // As many as there can be: senders wait for their producer, receivers for theirs.
    sections.run("many at once", || {
        let semaphore = StreamSemaphore::new(stream.context()).unwrap();
        semaphore.hold(stream).unwrap();
        let list = |way| rank.view(2, way, &kinds[0][0]).after_stream(stream);
        let beside = |i: usize| rank.device[1].slice(i * 100..(i + 1) * 100).unwrap();
        let all: Vec<_> = (0..4)
            .map(|i| match own {
                0 => comm.isend(list(0), 1, i + 20).unwrap(),
                _ => {
                    let to = beside(i).after_stream(stream);
                    let view = to.clone().map(|to| DeviceView::of(&to).unwrap());
                    comm.irecv(view, 0, i + 20).unwrap()
                }
            })
            .collect();
        // The receivers' bytes have all come when the senders' are away.
        if own == 1 {
            comm.recv(&mut [0u8], 0, 30).unwrap();
        }
        semaphore.open();
        for request in all {
            request.wait().unwrap();
        }
        if own == 0 {
            comm.send(&[1u8], 1, 30).unwrap();
        }
    });
}

/// The forbidden calls of a pass that made or gave up something; panics where one waited.
fn judge(sections: &Sections<'_>) -> Vec<String> {
    let calls = std::fs::read_to_string(sections.trace).unwrap();
    let (mut found, mut waits) = (Vec::new(), Vec::new());
    let mut number = 0;
    for pair in sections.begun.windows(2) {
        let [(name, from), (_, to)] = pair else {
            continue;
        };
        for call in calls[*from as usize..*to as usize].lines() {
            number += 1;
            if is_forbidden(call) {
                found.push(format!("{name}: {call}"));
            }
            if call == WAITS && !MAY_WAIT.contains(&name.as_str()) {
                waits.push(format!("{name}: {call}"));
            }
        }
    }
    println!("{number} calls in a later pass");
    assert!(
        number > 1000,
        "only {number} calls: is anything written down?"
    );
    assert!(waits.is_empty(), "{waits:#?}");
    found
}
