//! What ranks with a device do.

use osier::devices::{Context, DeviceSlice, DeviceView, Pinned, Stream, copy, devices};
use osier::{Basic, Communicator, ErrorKind, Type};

/// A rank's device, by turns.
fn device(comm: &Communicator) -> (Context, Stream) {
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
