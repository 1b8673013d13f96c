//! Messages from and to the memory of devices, ranks as threads, on the driver that the
//! tests of `kernels/` choose: the emulated one where it was built beside this test.

#[path = "../kernels/tests/support/mod.rs"]
mod driver;
#[path = "ranks/support.rs"]
#[allow(dead_code)]
mod support;

use osier::datatype::Basic;
use osier::devices::{Context, DeviceSlice, DeviceView, Stream, copy};
use osier::testing::{Network, ranks_on};
use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind, Layout, Type, View, ViewMut};
use osier_kernels::debug::Debug as _;
use support::{Watchdog, fails, pattern};

/// What a rank needs to use its device.
struct Device {
    stream: Stream,
}

impl Device {
    fn new(context: &Context) -> Device {
        Device {
            stream: Stream::new(context).unwrap(),
        }
    }

    /// Device memory with these bytes, behind the stream's work.
    fn with(&self, bytes: &[u8]) -> DeviceSlice<u8> {
        driver::upload(&self.stream, bytes)
    }

    fn bytes(&self, slice: &DeviceSlice<u8>) -> Vec<u8> {
        driver::download(&self.stream, slice)
    }
}

/// Runs ranks with a device each.
fn on_devices(networks: &[Network], n: usize, f: impl Fn(Communicator, Device) + Sync) {
    let Some(context) = driver::context() else {
        return;
    };
    let _watchdog = Watchdog::start();
    for network in networks {
        ranks_on(network, n, |comm| f(comm, Device::new(&context)));
    }
}

/// A layout of so many bytes in one instance, and how many bytes around it.
fn layouts(bytes: usize) -> Vec<(&'static str, Layout, usize)> {
    let byte = Type::basic(Basic::U8);
    let commit = |ty: Type| ty.commit().unwrap();
    let run = commit(Type::contiguous(bytes, &byte).unwrap());
    let mut all = vec![("run", run, bytes)];
    if bytes > 0 {
        // Long messages in longer blocks: the emulated device moves them quicker.
        let block = if bytes < 60_000 { 1 } else { 1024 };
        if bytes.is_multiple_of(block) {
            let strided = Type::vector(bytes / block, block, 3 * block as isize, &byte).unwrap();
            all.push(("equal blocks", commit(strided), 3 * bytes));
        }
        // Blocks of other lengths, one to three apart, the rest in the last.
        let (mut blocks, mut left, mut at) = (Vec::new(), bytes, 2);
        for i in 0.. {
            let len = match i {
                5000.. => left,
                _ => left.min(1 + i * 37 % (7 * block)),
            };
            if len == 0 {
                break;
            }
            blocks.push((len, at as isize));
            (left, at) = (left - len, at + len + 1 + i % 3);
        }
        let list = Type::indexed(&blocks, &byte).unwrap();
        all.push(("list", commit(list), at + 3));
    }
    all
}

/// One side of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Host,
    Device,
}

const SIDES: [Side; 2] = [Side::Host, Side::Device];

fn send(
    comm: &Communicator,
    device: &Device,
    side: Side,
    what: &(&str, Layout, usize),
    seed: usize,
) {
    let (_, layout, room) = what;
    let bytes = pattern(*room, seed);
    match side {
        Side::Host => {
            let view = View::new(&bytes, 0, layout, 1).unwrap();
            comm.send(&view, 1, seed as u32).unwrap();
        }
        Side::Device => {
            let slice = device.with(&bytes);
            let view = DeviceView::new(&slice, 0, layout, 1).unwrap();
            comm.send(&view.after_stream(&device.stream), 1, seed as u32)
                .unwrap();
        }
    }
}

/// Receives into other bytes than were sent; all of them, gaps as they were.
fn receive(
    comm: &Communicator,
    device: &Device,
    side: Side,
    what: &(&str, Layout, usize),
    seed: usize,
) -> Vec<u8> {
    let (_, layout, room) = what;
    let mut bytes = vec![0xa5; *room];
    let tag = seed as u32;
    let status = match side {
        Side::Host => {
            let mut view = ViewMut::new(&mut bytes, 0, layout, 1).unwrap();
            comm.recv(&mut view, 0, tag).unwrap()
        }
        Side::Device => {
            let slice = device.with(&bytes);
            let view = DeviceView::new(&slice, 0, layout, 1).unwrap();
            let status = comm
                .recv(&mut view.after_stream(&device.stream), 0, tag)
                .unwrap();
            bytes = device.bytes(&slice);
            status
        }
    };
    assert_eq!(status.bytes(), layout.size());
    bytes
}

/// What must lie there.
fn expected(
    sent: &(&str, Layout, usize),
    received: &(&str, Layout, usize),
    seed: usize,
) -> Vec<u8> {
    let bytes = sent.1.size();
    let mut packed = vec![0; bytes];
    sent.1
        .pack(&pattern(sent.2, seed), 0, 1, 0..bytes, &mut packed)
        .unwrap();
    let mut all = vec![0xa5; received.2];
    received
        .1
        .unpack(&mut all, 0, 1, 0..bytes, &packed)
        .unwrap();
    all
}

fn every_pairing(networks: &[Network], sizes: &[usize]) {
    on_devices(networks, 2, |comm, device| {
        let mut seed = 0;
        for &bytes in sizes {
            let layouts = layouts(bytes);
            for from in SIDES {
                for to in SIDES {
                    for sent in &layouts {
                        for received in &layouts {
                            seed += 1;
                            if comm.rank() == 0 {
                                send(&comm, &device, from, sent, seed);
                                continue;
                            }
                            let got = receive(&comm, &device, to, received, seed);
                            assert!(
                                got == expected(sent, received, seed),
                                "{bytes} bytes, {} on the {from:?} to {} on the {to:?}",
                                sent.0,
                                received.0,
                            );
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn every_pairing_of_short_messages() {
    let sizes = [0, 1, 8, 9, 500, 2048, 4097, 8192, 16_384, 20_000];
    every_pairing(&Network::all(), &sizes);
}

/// Chunks end at 64 KiB or 1 MiB.
#[test]
fn every_pairing_of_long_messages() {
    let sizes = [65_535, 65_536, 65_537, (1 << 20) + 1, (3 << 20) + 17];
    every_pairing(&[Network::Shm], &sizes);
    every_pairing(&Network::all(), &[70_000]);
}

#[test]
fn unexpected_message_of_device_waits_for_its_receive() {
    on_devices(&Network::all(), 2, |comm, device| {
        let sizes = [3usize, 4000, 100_000];
        if comm.rank() == 0 {
            let begun: Vec<_> = sizes
                .iter()
                .map(|&n| {
                    let slice = device.with(&pattern(n, n));
                    comm.isend(slice.after_stream(&device.stream), 1, n as u32)
                        .unwrap()
                })
                .collect();
            for request in begun {
                request.wait().unwrap();
            }
        } else {
            for n in sizes.into_iter().rev() {
                let probed = comm.probe(ANY_SOURCE, n as u32).unwrap();
                assert_eq!(probed.bytes(), n);
                let slice = device.with(&vec![0; n]);
                let mut to = slice.after_stream(&device.stream);
                comm.recv(&mut to, ANY_SOURCE, n as u32).unwrap();
                assert!(device.bytes(&slice) == pattern(n, n), "{n} bytes");
            }
        }
    });
}

/// What lies on the device may be written again after a send, and read after a receive.
#[test]
fn every_call_accepts_device_memory() {
    on_devices(&Network::all(), 2, |comm, device| {
        let (own, other) = (comm.rank(), 1 - comm.rank());
        let after = |slice: &DeviceSlice<u8>| slice.after_stream(&device.stream);
        for n in [5usize, 9000, 80_000] {
            let (from, to) = (device.with(&pattern(n, own)), device.with(&vec![0; n]));
            let expect = |what: &str| {
                assert!(device.bytes(&to) == pattern(n, other), "{what}, {n} bytes");
                copy::fill(&device.stream, &after(&to), 0).unwrap();
            };
            let mut receive = after(&to);
            comm.sendrecv(&after(&from), other, 1, &mut receive, other, 1)
                .unwrap();
            expect("sendrecv");
            let got = comm.irecv(after(&to), ANY_SOURCE, ANY_TAG).unwrap();
            comm.ssend(&after(&from), other, 2).unwrap();
            got.wait().unwrap();
            expect("irecv and ssend");
            let got = comm.irecv(after(&to), other, 3).unwrap();
            comm.attach_buffer(vec![0; n + 4096]).unwrap();
            comm.bsend(&after(&from), other, 3).unwrap();
            got.wait().unwrap();
            comm.detach_buffer().unwrap();
            expect("bsend");
            let (lent, mut room) = (after(&from), after(&to));
            comm.scope(|s| {
                let got = s.irecv(&mut room, other, 4)?;
                let sent = s.isend(&lent, other, 4)?;
                got.wait()?;
                sent.wait()
            })
            .unwrap();
            expect("a scope");
            let mut both = after(&from);
            comm.sendrecv_replace(&mut both, other, 5, other, 5)
                .unwrap();
            assert!(
                device.bytes(&from) == pattern(n, other),
                "replace, {n} bytes"
            );
            let mut send = comm.send_init(after(&from), other, 6).unwrap();
            let mut get = comm.recv_init(after(&to), other, 6).unwrap();
            for round in 0..3u8 {
                copy::fill(&device.stream, &after(&from), round + 1).unwrap();
                get.start().unwrap();
                send.start().unwrap();
                send.wait().unwrap();
                get.wait().unwrap();
                assert!(
                    device.bytes(&to) == vec![round + 1; n],
                    "persistent, {n} bytes"
                );
            }
            let got = comm.irecv(after(&to), own, 7).unwrap();
            copy::fill(&device.stream, &after(&from), 77).unwrap();
            comm.send(&after(&from), own, 7).unwrap();
            got.wait().unwrap();
            assert!(device.bytes(&to) == vec![77; n], "to itself, {n} bytes");
        }
    });
}

#[test]
fn wrong_device_buffers_are_refused_with_an_error() {
    on_devices(&Network::all(), 2, |comm, device| {
        let slice = device.with(&pattern(200_000, 1));
        let part = |n: usize| slice.slice(..n).unwrap().after_stream(&device.stream);
        for n in [100usize, 200_000] {
            if comm.rank() == 0 {
                comm.send(&part(n), 1, 1).unwrap();
                comm.send(&part(n), 1, 2).unwrap();
                comm.send(&[1u8], 1, 3).unwrap();
                continue;
            }
            let short = device.with(&vec![0; n / 2 + 1]);
            let mut to = short.after_stream(&device.stream);
            let told = comm.recv(&mut to, 0, 1);
            fails(
                told,
                ErrorKind::Truncated,
                &[&n.to_string(), &(n / 2 + 1).to_string()],
            );
            assert!(device.bytes(&short) == pattern(200_000, 1)[..n / 2 + 1]);
            // A layout that touches a byte twice is sent, not received.
            let twice = Type::vector(2, 2, 1, &Type::basic(Basic::U8)).unwrap();
            let twice = twice.commit().unwrap();
            let view = DeviceView::new(&slice, 0, &twice, n / 4).unwrap();
            let told = comm.recv(&mut view.after_stream(&device.stream), 0, 2);
            fails(told, ErrorKind::Datatype, &["twice"]);
            // What follows is whole.
            let mut last = [0u8];
            comm.recv(&mut last, 0, 3).unwrap();
            assert_eq!(last, [1]);
        }
        // A receive that is given up: nothing is written afterwards.
        comm.barrier().unwrap();
        let target = device.with(&[5; 1000]);
        drop(comm.irecv(target.after_stream(&device.stream), 1 - comm.rank(), 9));
        comm.barrier().unwrap();
        assert!(device.bytes(&target) == [5; 1000]);
    });
}

/// A scope that ends early takes back what it lent: the sender goes on, and the memory
/// is the user's again.
#[test]
fn sender_completes_after_its_receive_is_given_up() {
    on_devices(&[Network::Shm], 2, |comm, device| {
        let n = (4 << 20) + 5;
        for from in SIDES {
            for looks in [0, 1, 3, 30] {
                if comm.rank() == 0 {
                    let bytes = pattern(n, looks);
                    match from {
                        Side::Host => comm.send(&bytes, 1, 1).unwrap(),
                        Side::Device => {
                            let slice = device.with(&bytes);
                            comm.send(&slice.after_stream(&device.stream), 1, 1)
                                .unwrap();
                        }
                    }
                    comm.barrier().unwrap();
                    continue;
                }
                let target = device.with(&vec![3; n]);
                comm.probe(0, 1).unwrap();
                if looks == 3 {
                    // A request that is dropped is given up in the same way.
                    let lent = target.after_stream(&device.stream);
                    let mut request = comm.irecv(lent, 0, 1).unwrap();
                    for _ in 0..looks {
                        request.test();
                    }
                    drop(request);
                    let lent = target.after_stream(&device.stream);
                    copy::fill(&device.stream, &lent, 8).unwrap();
                    assert!(device.bytes(&target) == vec![8; n], "{from:?}, dropped");
                    comm.barrier().unwrap();
                    assert!(device.bytes(&target) == vec![8; n], "{from:?}, dropped");
                    continue;
                }
                let mut lent = target.after_stream(&device.stream);
                let early = comm.scope(|s| {
                    let mut request = s.irecv(&mut lent, 0, 1)?;
                    for _ in 0..looks {
                        request.test();
                    }
                    Err::<(), _>(osier::Error::new(ErrorKind::Argument, "no more"))
                });
                fails(early, ErrorKind::Argument, &["no more"]);
                copy::fill(&device.stream, &target.after_stream(&device.stream), 8).unwrap();
                assert!(device.bytes(&target) == vec![8; n], "{from:?}, {looks}");
                comm.barrier().unwrap();
                assert!(device.bytes(&target) == vec![8; n], "{from:?}, {looks}");
            }
        }
    });
}

/// What is measured is usable, even where it says nothing of a real device.
#[test]
fn a_device_can_be_measured() {
    let Some(context) = driver::context() else {
        return;
    };
    // By name: a bundle's programs know no folder in which a driver was built.
    let emulated = osier_kernels::devices().unwrap()[0].name.to_lowercase();
    let part = if emulated.contains("emulated") { 64 } else { 1 };
    let costs = osier::measure::device_with(&context, part).unwrap();
    let mut all = vec![costs.launch_ns, costs.copy_ns, costs.block_ns_per_byte];
    all.extend(costs.pack_ns_per_byte);
    all.extend([costs.to_host_ns_per_byte, costs.to_device_ns_per_byte]);
    assert!(all.iter().all(|v| v.is_finite() && *v > 0.0), "{costs:?}");
    let link = osier_engine::protocol::cost::LinkCosts {
        device: Some(costs),
        ..Default::default()
    };
    let note = serde_json::to_vec(&link).unwrap();
    assert_eq!(
        serde_json::from_slice::<osier_engine::protocol::cost::LinkCosts>(&note).unwrap(),
        link
    );
}

/// A device that fails in the middle ends the two transfers that it concerns, with an
/// error that says what failed, and nothing else.
#[test]
fn transfer_ends_with_error_when_its_device_fails() {
    let Some(library) = driver::emulated() else {
        return;
    };
    let calls = [
        "cuMemHostAlloc",
        "cuMemHostRegister_v2",
        "cuStreamCreate",
        "cuLaunchKernel",
        "cuEventRecord",
    ];
    let points = calls
        .iter()
        .flat_map(|call| (1..=5).map(move |n| format!("{call}:{n}:2")));
    let ways = ["both", "from", "to"];
    let points = points.flat_map(|fail| ways.map(|way| (fail.clone(), way)));
    let mut failed = 0;
    for (fail, way) in points {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_whose_device_fails",
                "--ignored",
                "--nocapture",
            ])
            .debug("cuda-library", &library)
            .env("OSIER_EMULATED_QUIET", "1")
            .env("OSIER_EMULATED_FAIL", &fail)
            .env("OSIER_TEST_WAY", way)
            .output()
            .unwrap();
        let told = [run.stdout, run.stderr].concat();
        let told = String::from_utf8_lossy(&told);
        assert!(
            run.status.success() && told.contains("1 passed"),
            "{fail} {way}: {told}"
        );
        failed += usize::from(told.contains("has failed"));
    }
    assert!(failed >= 8, "only {failed} points were in a transfer");
}

#[test]
#[ignore = "run by transfer_ends_with_error_when_its_device_fails"]
fn child_whose_device_fails() {
    let context = driver::context().unwrap();
    let way = std::env::var("OSIER_TEST_WAY").unwrap();
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Shm, 2, |comm| {
        // Setting up may fail, too; that is not a transfer's affair.
        let set_up = || -> Result<_, osier::devices::DeviceError> {
            let stream = Stream::new(&context)?;
            let n = (2 << 20) + 3072;
            let layout = Type::vector(n / 1024, 1024, 2048, &Type::basic(Basic::U8));
            let layout = layout.unwrap().commit().unwrap();
            let slice = DeviceSlice::<u8>::new(&stream, 2 * n)?.into_inner();
            let view = DeviceView::new(&slice, 0, &layout, 1)?;
            stream.synchronize()?;
            Ok((stream, view))
        };
        let ready = set_up();
        let mut both = [0u8];
        let own = u8::from(ready.is_ok());
        comm.allreduce(&[own], &mut both, osier::Op::Min).unwrap();
        let (Ok((stream, view)), [1]) = (ready, both) else {
            return;
        };
        let mut host = vec![0u8; view.packed_bytes()];
        let result = match (comm.rank(), &*way) {
            (0, "to") => comm.send(&host, 1, 1),
            (0, _) => comm.send(&view.after_stream(&stream), 1, 1),
            (_, "from") => comm.recv(&mut host, 0, 1).map(drop),
            _ => comm.recv(&mut view.after_stream(&stream), 0, 1).map(drop),
        };
        if let Err(e) = result {
            let kinds = [
                ErrorKind::Device,
                ErrorKind::OutOfMemory,
                ErrorKind::Cancelled,
            ];
            assert!(kinds.contains(&e.kind()), "{e:?}");
            println!("rank {} has failed: {e}", comm.rank());
        }
        let mut last = [comm.rank() as u8 + 7];
        match comm.rank() {
            0 => comm.send(&last, 1, 2).unwrap(),
            _ => {
                comm.recv(&mut last, 0, 2).unwrap();
                assert_eq!(last, [7]);
            }
        }
    });
}

/// Collectives of device memory, in any layout, give the bits that they give on the host.
#[test]
fn collective_on_device_gives_result_of_host() {
    use osier::{IN_PLACE, Op};
    on_devices(&[Network::Shm], 3, |comm, device| {
        let (rank, size) = (comm.rank(), comm.size());
        let stream = &device.stream;
        for count in [0usize, 1, 700, 40_000] {
            let host: Vec<u8> = pattern(4 * count, rank);
            let root = count % size;
            // A broadcast, from a device with a layout to devices without.
            let spread = DeviceView::new(
                &device.with(&[&pattern(8 * count, root)[..], &[0; 4]].concat()),
                0,
                &Type::vector(count, 4, 8, &Type::of::<u8>())
                    .and_then(|t| t.commit())
                    .unwrap(),
                1,
            )
            .unwrap();
            let right: Vec<u8> = pattern(8 * count, root)
                .chunks(8)
                .flat_map(|c| c[..4].to_vec())
                .collect();
            let copy = device.with(&vec![0; 4 * count]);
            match rank == root {
                true => comm.bcast(&mut spread.after_stream(stream), root),
                false => comm.bcast(&mut copy.after_stream(stream), root),
            }
            .unwrap();
            assert!(
                rank == root || device.bytes(&copy) == right,
                "bcast {count}"
            );
            // A gather to a device, from devices and the host.
            let all = device.with(&vec![0; 4 * count * size]);
            let mine = device.with(&host);
            match rank {
                1 => comm.gather(&host, &mut all.after_stream(stream), root),
                _ => comm.gather(
                    &mine.after_stream(stream),
                    &mut all.after_stream(stream),
                    root,
                ),
            }
            .unwrap();
            let right: Vec<u8> = (0..size).flat_map(|r| pattern(4 * count, r)).collect();
            assert!(
                rank != root || device.bytes(&all) == right,
                "gather {count}"
            );
            // Sums, also in place, and at one rank.
            let mut right = vec![0u8; 4 * count];
            comm.allreduce(&host, &mut right, Op::Sum).unwrap();
            let sums = device.with(&vec![0; 4 * count]);
            comm.allreduce(
                &mine.after_stream(stream),
                &mut sums.after_stream(stream),
                Op::Sum,
            )
            .unwrap();
            assert!(device.bytes(&sums) == right, "allreduce {count}");
            let sums = device.with(&host);
            comm.allreduce(&IN_PLACE, &mut sums.after_stream(stream), Op::Sum)
                .unwrap();
            assert!(device.bytes(&sums) == right, "allreduce {count} in place");
            let sums = device.with(&vec![7; 4 * count]);
            comm.reduce(
                &mine.after_stream(stream),
                &mut sums.after_stream(stream),
                root,
                Op::Sum,
            )
            .unwrap();
            let kept = vec![7; 4 * count];
            let expected = if rank == root { &right } else { &kept };
            assert!(device.bytes(&sums) == *expected, "reduce {count}");
            // Blocks with a gap between them; what lies there stays.
            let counts = [count, 2 * count, count];
            let starts = [0, count + 1, 3 * count + 2];
            let blocks = device.with(&vec![7; 4 * count + 3]);
            let mine = device.with(&pattern(counts[rank], rank));
            comm.allgatherv(
                &mine.after_stream(stream),
                &mut blocks.after_stream(stream),
                &counts,
                &starts,
            )
            .unwrap();
            let mut right = vec![7; 4 * count + 3];
            for r in 0..size {
                right[starts[r]..][..counts[r]].copy_from_slice(&pattern(counts[r], r));
            }
            assert!(device.bytes(&blocks) == right, "allgatherv {count}");
            // Set up once; each start takes what the stream has written since.
            let (mine, sums) = (device.with(&vec![0; count]), device.with(&vec![0; count]));
            let mut set = comm
                .allreduce_init(
                    mine.after_stream(stream),
                    sums.after_stream(stream),
                    Op::Sum,
                )
                .unwrap();
            for round in 0..3u8 {
                let host = vec![round * 10 + rank as u8; count];
                let mut into = mine.after_stream(stream);
                comm.sendrecv(&host, rank, 3, &mut into, rank, 3).unwrap();
                set.buffers_mut().unwrap().0 = mine.after_stream(stream);
                set.start().unwrap();
                set.wait().unwrap();
                assert!(
                    device.bytes(&sums) == vec![round * 30 + 3; count],
                    "round {round}"
                );
            }
            // Shares of a sum, at the front of the input.
            let data = device.with(&vec![rank as u8 + 1; 3 * count]);
            comm.reduce_scatter_block(&IN_PLACE, &mut data.after_stream(stream), Op::Sum)
                .unwrap();
            assert!(
                device.bytes(&data)[..count] == vec![6; count],
                "shares of {count}"
            );
            comm.barrier().unwrap();
        }
        // Between two groups: rank 0, and the others.
        let side = comm.split(Some(u32::from(rank > 0)), 0).unwrap().unwrap();
        let bridge = (side.rank() == 0).then_some((&comm, usize::from(rank == 0)));
        let inter = side.intercomm_create(0, bridge, 0).unwrap();
        let mine = device.with(&pattern(5000, rank));
        let sums = device.with(&vec![0; 5000]);
        inter
            .iallreduce(
                mine.after_stream(stream),
                sums.after_stream(stream),
                Op::Sum,
            )
            .and_then(osier::collectives::Collective::wait)
            .unwrap();
        let theirs = if rank == 0 { vec![1, 2] } else { vec![0] };
        let right: Vec<u8> = (0..5000)
            .map(|i| {
                theirs
                    .iter()
                    .map(|r| pattern(5000, *r)[i])
                    .fold(0, u8::wrapping_add)
            })
            .collect();
        assert!(device.bytes(&sums) == right, "between groups");
        let root = if rank == 0 { osier::ROOT } else { 0.into() };
        inter.bcast(&mut mine.after_stream(stream), root).unwrap();
        assert!(
            device.bytes(&mine) == pattern(5000, 0),
            "bcast between groups"
        );
    });
}
