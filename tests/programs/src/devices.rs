//! What ranks with a device do.

use osier::datatype::Basic;
use osier::devices::{Context, DeviceSlice, DeviceView, Kind, Pinned, Stream, copy, devices};
use osier::{Communicator, ErrorKind, Type};
use osier_bed::devices::{device_traffic, device_use};
use osier_kernels::debug;

/// A rank's device, by turns.
pub fn device(comm: &Communicator) -> (Context, Stream) {
    let number = devices().expect("devices").len();
    let ordinal = i32::try_from(comm.rank() % number).expect("few devices");
    let context = Context::new(ordinal).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    (context, stream)
}

/// Sends faces of a box on the device around the ring, and compares what comes.
pub fn exchange(comm: &Communicator) {
    let (context, stream) = device(comm);
    let (me, n) = (comm.rank(), comm.size());
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    let byte = Type::basic(Basic::U8);
    for edge in [3usize, 20, 130] {
        let field = |rank: usize| -> Vec<u8> {
            (0..edge * edge * edge)
                .map(|i| (i * 7 + rank * 31) as u8)
                .collect()
        };
        let whole = field(me);
        let staged = Pinned::from_slice(&context, &whole).expect("pinned");
        let slice = DeviceSlice::<u8>::new(&stream, whole.len())
            .expect("memory")
            .into_inner();
        copy::copy(
            &stream,
            &staged.on_device(&stream),
            &slice.after_stream(&stream),
        )
        .expect("a copy");
        // All of it, a plane of columns, every other row.
        let layouts = [
            Type::contiguous(edge * edge * edge, &byte).expect("a type"),
            Type::vector(edge * edge, 1, edge as isize, &byte).expect("a type"),
            Type::vector(edge * edge / 2, edge, 2 * edge as isize, &byte).expect("a type"),
        ];
        for (i, ty) in layouts.iter().enumerate() {
            let layout = ty.commit().expect("a layout");
            let into = DeviceSlice::<u8>::new(&stream, whole.len())
                .expect("memory")
                .into_inner();
            copy::fill(&stream, &into.after_stream(&stream), 9).expect("a fill");
            let from = DeviceView::new(&slice, 0, &layout, 1).expect("inside");
            let to = DeviceView::new(&into, 0, &layout, 1).expect("inside");
            let mut to = to.after_stream(&stream);
            comm.sendrecv(&from.after_stream(&stream), right, i, &mut to, left, i)
                .expect("an exchange");
            let mut back = Pinned::from_slice(&context, &vec![0u8; whole.len()]).expect("pinned");
            copy::copy(
                &stream,
                &into.after_stream(&stream),
                &back.on_device(&stream),
            )
            .expect("a copy");
            let bytes = layout.size();
            let mut packed = vec![0; bytes];
            layout
                .pack(&field(left), 0, 1, 0..bytes, &mut packed)
                .expect("pack");
            let mut expected = vec![9; whole.len()];
            layout
                .unpack(&mut expected, 0, 1, 0..bytes, &packed)
                .expect("unpack");
            let found = back.host().expect("nobody else");
            assert!(found == expected, "edge {edge}, layout {i}");
        }
    }
    super::through(comm);
}

/// Rank 1 is killed while long messages of devices come or go; rank 0 is told.
pub fn stream(comm: &Communicator, how: &str) {
    let (_context, stream) = device(comm);
    let bytes = 6 << 20;
    let slice = DeviceSlice::<u8>::new(&stream, bytes)
        .expect("memory")
        .into_inner();
    copy::fill(&stream, &slice.after_stream(&stream), 1).expect("a fill");
    let layout = Type::vector(bytes / 4096, 1024, 4096, &Type::basic(Basic::U8));
    let layout = layout.expect("a type").commit().expect("a layout");
    let view = DeviceView::new(&slice, 0, &layout, 1).expect("inside");
    let sends = (how == "sender") == (comm.rank() == 1);
    for round in 0.. {
        if comm.rank() == 1 && round == 3 {
            // In the middle: the other side is under way.
            let view = view.after_stream(&stream);
            let mut request = match sends {
                true => comm.isend(view, 0, 1).expect("begun"),
                false => comm.irecv(view, 0, 1).expect("begun"),
            };
            for _ in 0..20 {
                request.test();
            }
            super::kill_me();
        }
        let result = match sends {
            true => comm.send(&view.after_stream(&stream), 1 - comm.rank(), 1),
            false => comm
                .recv(&mut view.after_stream(&stream), 1 - comm.rank(), 1)
                .map(drop),
        };
        if let Err(e) = result {
            assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
            assert!(e.to_string().contains("rank 1"), "{e}");
            return super::through(comm);
        }
    }
}

/// Host bytes in device memory, behind the stream's work.
pub fn upload(stream: &Stream, bytes: &[u8]) -> DeviceSlice<u8> {
    let staged = Pinned::from_slice(stream.context(), bytes).expect("pinned");
    let slice = DeviceSlice::<u8>::new(stream, bytes.len()).expect("memory");
    copy::copy(stream, &staged.on_device(stream), &slice).expect("a copy");
    slice.into_inner()
}

pub fn download(stream: &Stream, slice: &DeviceSlice<u8>) -> Vec<u8> {
    let mut back = Pinned::from_slice(stream.context(), &vec![0; slice.len()]).expect("pinned");
    copy::copy(stream, &slice.after_stream(stream), &back.on_device(stream)).expect("a copy");
    back.host().expect("nobody else").to_vec()
}

fn bytes_of(seed: usize, n: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i * 31 + i / 251 + seed * 17) as u8)
        .collect()
}

/// Both ranks send to each other more than there is pinned memory for, of all sizes, in
/// another order than it is received, and some that wait on a stream for a message that
/// comes last.
pub fn exhaust(comm: &Communicator) {
    let (context, stream) = device(comm);
    let other = 1 - comm.rank();
    let sizes = [
        200_000usize,
        12_000,
        700,
        140_000,
        8_000,
        15_000,
        300_000,
        65_536,
    ];
    for round in 0..3 {
        let held = Stream::new(&context).expect("a stream");
        let n = [3_000, 150_000, 20_000][round];
        let (mut late, echo) = (upload(&held, &[0; 90_000]), upload(&held, &vec![0; n]));
        let on = comm.on_stream(&held);
        let semaphore = on.recv(&mut late, other, 90).expect("enqueued");
        let mut gated = Vec::new();
        for tag in 91..97 {
            // Behind the semaphore: a receive, and sends short and long.
            gated.push(match (tag - 91 + round) % 3 {
                0 => on.send(&late.slice(..3_000).expect("inside"), other, tag),
                1 => on.send(&late, other, tag),
                _ => on.send(&late.slice(..20_000).expect("inside"), other, tag),
            });
        }
        // Its memory is free when the semaphore opens.
        let into = comm
            .irecv(echo.after_stream(&held), other, 98)
            .expect("begun");
        let payload = upload(&stream, &bytes_of(round + 7, n));
        let first = comm
            .isend(payload.after_stream(&stream), other, 98)
            .expect("begun");
        // Of what is gated: their receivers may hold nothing for them meanwhile.
        let gated_bytes = |tag: usize| [3_000, 90_000, 20_000][(tag - 91 + round) % 3];
        let get = |tag: usize| {
            let to = upload(&stream, &vec![0; gated_bytes(tag)]);
            let request = comm.irecv(to.after_stream(&stream), other, tag);
            (request.expect("begun"), to, tag)
        };
        let early = if round == 1 { 91..91 } else { 91..97 };
        let mut later: Vec<_> = early.clone().map(get).collect();
        let mut gets: Vec<_> = (sizes.iter().enumerate())
            .map(|(tag, n)| {
                let to = upload(&stream, &vec![0; *n]);
                let request = comm.irecv(to.after_stream(&stream), other, tag);
                (request.expect("begun"), to, tag)
            })
            .collect();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        match round {
            0 => order.reverse(),
            1 => order.rotate_left(3),
            _ => gets.reverse(),
        }
        let sends: Vec<_> = order
            .into_iter()
            .map(|tag| {
                let from = upload(&stream, &bytes_of(tag + round, sizes[tag]));
                comm.isend(from.after_stream(&stream), other, tag)
                    .expect("begun")
            })
            .collect();
        for (request, to, tag) in gets {
            request.wait().expect("received");
            let right = bytes_of(tag + round, sizes[tag]);
            assert!(download(&stream, &to) == right, "round {round}, {tag}");
        }
        for request in sends {
            request.wait().expect("sent");
        }
        let last = upload(&stream, &bytes_of(round, 90_000));
        let last = comm
            .isend(last.after_stream(&stream), other, 90)
            .expect("begun");
        later.extend((early.end..97).map(get));
        for (request, to, tag) in later {
            request.wait().expect("received");
            let right = bytes_of(round, gated_bytes(tag));
            assert!(download(&stream, &to) == right, "round {round}, {tag}");
        }
        semaphore.wait().expect("received");
        for sent in gated {
            sent.expect("enqueued").wait().expect("sent");
        }
        last.wait().expect("sent");
        first.wait().expect("sent");
        into.wait().expect("received");
        assert!(download(&stream, &echo) == bytes_of(round + 7, n));
    }
    comm.barrier().expect("a barrier");
    assert_eq!(device_use(comm), Default::default());
    super::through(comm);
}

/// Messages of all protocols between two ranks; rank 1 may be killed in any of them.
/// Rank 0 is told who died, its streams go on, and no byte beside its buffers changes.
pub fn steps(comm: &Communicator) {
    let (_context, stream) = device(comm);
    let (me, other) = (comm.rank(), 1 - comm.rank());
    let byte = Type::basic(Basic::U8);
    const EDGE: usize = 4096;
    // In slots, read, written by either.
    for (kinds, bytes) in [
        ([Kind::Pool; 2], 700usize),
        ([Kind::Pool; 2], 1_300_000),
        ([Kind::Plain; 2], 90_000),
        ([Kind::Mapped; 2], 30_000),
        ([Kind::SharedPool; 2], 40_000),
        ([Kind::Plain, Kind::Pool], 90_000),
        ([Kind::Pool, Kind::SharedPool], 90_000),
    ] {
        let room = 2 * bytes;
        let all = DeviceSlice::<u8>::with_kind(&stream, kinds[me], room + 2 * EDGE);
        let all = all.expect("memory").into_inner();
        copy::fill(&stream, &all.after_stream(&stream), 5).expect("a fill");
        let block = bytes / 50;
        let layout = Type::vector(50, block, 2 * block as isize, &byte).expect("a type");
        let layout = layout.commit().expect("a layout");
        let inner = all.slice(EDGE..EDGE + room).expect("inside");
        let mut view = DeviceView::new(&inner, 0, &layout, 1).expect("inside");
        let ordered = view.after_stream(&stream);
        let exchanged = || -> osier::Result<()> {
            match me {
                0 if bytes < 1000 => comm.ssend(&ordered, other, 1)?,
                0 => comm.send(&ordered, other, 1)?,
                _ => drop(comm.recv(&mut ordered.clone(), other, 1)?),
            }
            match me {
                0 => drop(comm.recv(&mut ordered.clone(), other, 2)?),
                _ => comm.send(&ordered, other, 2)?,
            }
            // One is cancelled before anybody receives it.
            if me == 1 && bytes > 1000 {
                drop(comm.isend(ordered.clone(), other, 4)?.revoke());
                comm.send(&[1u8], other, 5)?;
            } else if bytes > 1000 {
                comm.recv(&mut [0u8], other, 5)?;
            }
            let on = comm.on_stream(&stream);
            match me {
                0 => on.recv(&mut view, other, 3)?.wait().map(drop),
                _ => on.send(&view, other, 3)?.wait().map(drop),
            }
        }();
        stream.synchronize().expect("a stream that goes on");
        let bytes = download(&stream, &all);
        let (before, rest) = bytes.split_at(EDGE);
        let (touched, behind) = rest.split_at(room);
        assert!(before.iter().chain(behind).all(|b| *b == 5), "the edges");
        let gaps = touched.chunks(2 * block).flat_map(|row| &row[block..]);
        assert!(gaps.into_iter().all(|b| *b == 5), "the gaps");
        if let Err(e) = exchanged {
            super::killed(&e, other);
            drop((view, ordered, inner, all));
            nothing_left(comm, other);
            return super::through(comm);
        }
    }
    super::through(comm);
}

/// What messages of a dead rank held is given back, by and by.
pub fn nothing_left(comm: &Communicator, dead: usize) {
    let holds = || (device_use(comm), device_traffic(comm).mappings, opened());
    let begun = std::time::Instant::now();
    while begun.elapsed().as_secs() < 60 {
        if holds() == (Default::default(), 0, 0) {
            return;
        }
        // Makes progress.
        let _ = comm.iprobe(dead, 77);
        osier_kernels::reap();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("the dead rank left {:?}", holds());
}

/// Allocations of other processes that the emulated driver has open.
fn opened() -> u64 {
    // SAFETY: the emulated driver's function of this name has this type.
    let count: extern "C" fn() -> u64 =
        unsafe { std::mem::transmute(driver_function(c"osier_emulated_opened")) };
    count()
}

/// A function of the emulated driver.
pub fn driver_function(name: &std::ffi::CStr) -> *mut libc::c_void {
    let library = debug::value(debug::CUDA_LIBRARY).unwrap_or_default();
    let library = std::ffi::CString::new(library.into_encoded_bytes()).expect("a path");
    // SAFETY: a path; the library is loaded already, and stays so.
    let loaded = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    // SAFETY: a library, or none at all; a name.
    let symbol = unsafe { libc::dlsym(loaded, name.as_ptr()) };
    assert!(
        !loaded.is_null() && !symbol.is_null(),
        "the emulated driver"
    );
    symbol
}
