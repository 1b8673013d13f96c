//! Windows in the memory of devices, between processes and threads: `exercise device-windows`.

use super::devices::device;
use osier::devices::{Context, DeviceSlice, DeviceView, Graph, Kind, Pinned, Stream, copy};
use osier::rma::{Change, SignalOp, Symmetric, SymmetricHeap, Updates, Window};
use osier::{Communicator, ErrorKind, Op, Type};

/// Rounds of what is repeated, and elements of windows that are updated.
const ROUNDS: u64 = 4;
const LEN: usize = 500;

struct Rank<'a> {
    comm: &'a Communicator,
    context: Context,
    stream: Stream,
}

pub fn run(comm: &Communicator) {
    let rank = Rank::new(comm);
    rank.moves();
    rank.layouts();
    rank.updates();
    for window in rank.windows(1000) {
        rank.streams(window);
    }
    for window in rank.windows(100) {
        rank.graphs(window);
    }
    rank.heaps();
    rank.wrong_calls();
    super::through(comm);
}

/// Rank 1 is killed while a stream of rank 0 puts to its part: the stream goes on, and the rank
/// learns why.
pub fn killed(comm: &Communicator) {
    let rank = Rank::new(comm);
    let window = rank.window(1000);
    let mine = rank.upload(&[7; 1000]);
    if comm.rank() == 1 {
        comm.recv(&mut [0u8; 0], 0, 3).expect("a put was made");
        super::kill_me();
    }
    let (stream, mut puts) = (&rank.stream, 0);
    let e = loop {
        let all = window.lock_all();
        let put = all.put_on(stream, &mine.after_stream(stream), 1, 0);
        let put = put.and_then(|_| all.unlock());
        stream.synchronize().expect("it goes on");
        match put {
            Ok(()) if puts == 0 => comm.send(&[0u8; 0], 1, 3).expect("alive"),
            Ok(()) => {}
            Err(e) => break e,
        }
        puts += 1;
    };
    assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
    assert!(e.to_string().contains("rank 1"), "{e}");
    // Not all can give it back.
    std::mem::forget(window);
    super::through(comm);
}

/// The first access of all is a stream's, where a driver may wait for streams that are held.
pub fn first(comm: &Communicator) {
    let rank = Rank::new(comm);
    for window in rank.windows(100_000) {
        rank.streams(window);
    }
    super::through(comm);
}

impl<'a> Rank<'a> {
    fn new(comm: &'a Communicator) -> Self {
        let (context, stream) = device(comm);
        Self {
            comm,
            context,
            stream,
        }
    }
}

impl Rank<'_> {
    fn upload(&self, elements: &[i64]) -> DeviceSlice<i64> {
        self.upload_to(Kind::Plain, elements)
    }

    fn upload_to(&self, kind: Kind, elements: &[i64]) -> DeviceSlice<i64> {
        let staged = Pinned::from_slice(&self.context, elements).expect("pinned");
        let slice = DeviceSlice::with_kind(&self.stream, kind, elements.len()).expect("memory");
        copy::copy(&self.stream, &staged.on_device(&self.stream), &slice).expect("a copy");
        self.stream.synchronize().expect("a copy");
        slice.into_inner()
    }

    fn download(&self, slice: &DeviceSlice<i64>) -> Vec<i64> {
        let mut staged = Pinned::from_slice(&self.context, &vec![0; slice.len()]).expect("pinned");
        let from = slice.after_stream(&self.stream);
        copy::copy(&self.stream, &from, &staged.on_device(&self.stream)).expect("a copy");
        self.stream.synchronize().expect("a copy");
        staged.host().expect("elements").to_vec()
    }

    /// This rank's part.
    fn own(&self, window: &Window<i64>) -> Vec<i64> {
        window.to_vec().expect("a copy")
    }

    fn window(&self, len: usize) -> Window<i64> {
        let window = self.comm.device_window(&self.context, len);
        window.expect("a window")
    }

    /// Windows whose parts lie on devices, in memory of all kinds that other processes open, and in
    /// one of which that of rank 0 is the host's.
    fn windows(&self, len: usize) -> Vec<Window<i64>> {
        let mixed = match self.comm.rank() {
            0 => self.comm.window(len),
            _ => self.comm.device_window(&self.context, len),
        };
        let mut all = vec![self.window(len), mixed.expect("a window")];
        // A rank that is a thread beside others opens no pool: owners serve theirs.
        for kind in [Kind::Plain, Kind::Mapped, Kind::SharedPool] {
            // A part of an allocation of the program's.
            let whole = self.upload_to(kind, &vec![0; len + 7]);
            let part = whole.slice(3..3 + len).expect("a part");
            all.push(self.comm.device_window_of(&part).expect("a window"));
        }
        all
    }

    /// Everybody writes to everybody, in all kinds of epochs, and reads it back.
    fn moves(&self) {
        let size = self.comm.size();
        for len in [1usize, 100, 50_000] {
            for window in self.windows(len * size) {
                self.moves_in(&window, len);
                window.free().expect("free");
            }
        }
    }

    fn moves_in(&self, window: &Window<i64>, len: usize) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        assert_eq!(window.len_of(size - 1).expect("a length"), len * size);
        assert_eq!(self.own(window), vec![0; len * size]);
        for round in 0..ROUNDS {
            let value = |from: usize, to: usize| (1000 * round) as i64 + (10 * from + to) as i64;
            window.fence().expect("fence");
            for to in 0..size {
                let elements = vec![value(rank, to); len];
                let mine = self.upload(&elements);
                let mine = mine.after_stream(&self.stream);
                let at = rank * len;
                match round {
                    0 => {
                        let all = window.lock_all();
                        all.put(&mine, to, at).expect("put");
                        all.unlock().expect("unlock");
                    }
                    1 => {
                        let locked = window.lock(to).expect("a lock");
                        locked.put(&mine, to, at).expect("put");
                        locked.unlock().expect("unlock");
                    }
                    2 => {
                        let all = window.lock_all();
                        all.accumulate(&mine, to, at, Change::Replace)
                            .expect("replace");
                    }
                    _ => {
                        let locked = window.lock_shared(to).expect("a lock");
                        locked.put(&elements, to, at).expect("put");
                    }
                }
            }
            window.fence().expect("fence");
            for (i, there) in self.own(window).iter().enumerate() {
                assert_eq!(*there, value(i / len, rank));
            }
            let all = window.lock_all();
            for from in 0..size {
                let into = self.upload(&vec![0; len]);
                let mut to = into.after_stream(&self.stream);
                all.get(&mut to, from, rank * len).expect("get");
                assert_eq!(self.download(&into), vec![value(rank, from); len]);
                let mut last = [0];
                all.get(&mut last, from, rank * len + len - 1).expect("get");
                assert_eq!(last[0], value(rank, from));
            }
            all.unlock().expect("unlock");
        }
    }

    /// Rows of a matrix become columns of the next rank's, in one launch each.
    fn layouts(&self) {
        const N: usize = 16;
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let next = (rank + 1) % size;
        let column = Type::vector(N, 1, N as isize, &Type::of::<i64>());
        let column = column.and_then(|t| t.commit()).expect("a column");
        let mine: Vec<i64> = (0..N * N).map(|i| (rank * N * N + i) as i64).collect();
        let matrix = self.upload(&mine);
        let window = self.window(N * N);
        window
            .fenced(|epoch| {
                for i in 0..N {
                    let row = matrix.slice(i * N..(i + 1) * N)?;
                    epoch.put_as(&row.after_stream(&self.stream), next, i, &column, 1)?;
                }
                Ok(())
            })
            .expect("put");
        let before = (rank + size - 1) % size;
        let there = self.own(&window);
        for (i, there) in there.iter().enumerate() {
            let (y, x) = (i / N, i % N);
            assert_eq!(*there, (before * N * N + x * N + y) as i64);
        }
        window.fence().expect("fence");
        // Its columns back, to columns in another order.
        let back = self.upload(&vec![0; N * N]);
        let all = window.lock_all();
        for i in 0..N {
            let view = DeviceView::new(&back, N - 1 - i, &column, 1).expect("inside");
            all.get_as(&mut view.after_stream(&self.stream), next, i, &column, 1)
                .expect("get");
        }
        all.unlock().expect("unlock");
        for (i, there) in self.download(&back).iter().enumerate() {
            let (y, x) = (i / N, N - 1 - i % N);
            assert_eq!(*there, mine[x * N + y]);
        }
        window.free().expect("free");
    }

    fn updates(&self) {
        for window in self.windows(LEN) {
            self.updates_in(&window);
            window.free().expect("free");
        }
        // By atomics of kernels, and in one window by those of the host at rank 0.
        for first_on_host in [false, true] {
            let window = match self.comm.rank() == 0 && first_on_host {
                true => self.comm.window_for(LEN, Updates::Single),
                false => (self.comm).device_window_for(&self.context, LEN, Updates::Single),
            };
            let window = window.expect("a window");
            self.updates_in(&window);
            window.free().expect("free");
        }
        self.short_updates();
    }

    /// Elements of one byte beside each other, and numbers of all lengths, by all ranks.
    fn short_updates(&self) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let single = Updates::Single;
        let bytes = self.comm.device_window_for::<u8>(&self.context, 6, single);
        let bytes = bytes.expect("a window");
        let halves = self.comm.device_window_for::<f32>(&self.context, 3, single);
        let halves = halves.expect("a window");
        let (all, of_halves) = (bytes.lock_all(), halves.lock_all());
        for round in 0..ROUNDS as u8 {
            for at in 0..6 {
                all.accumulate(&[at as u8 + 1], 0, at, Op::Sum)
                    .expect("sum");
            }
            let odd = all.compare_and_swap(255, round, rank, 5).expect("swap");
            assert_ne!(odd, 255);
            of_halves
                .accumulate(&[0.5f32, 1.0, -1.0], size - 1, 0, Op::Sum)
                .expect("sum");
            of_halves
                .accumulate(&[7.0f32], 0, 0, Op::Max)
                .expect("most");
        }
        all.unlock().expect("unlock");
        of_halves.unlock().expect("unlock");
        bytes.fence().expect("fence");
        halves.fence().expect("fence");
        let calls = (ROUNDS * size as u64) as u8;
        if rank == 0 {
            let expected: Vec<u8> = (1..=6).map(|n| n * calls).collect();
            assert_eq!(bytes.to_vec().expect("a copy"), expected);
        }
        if rank == size - 1 && rank > 0 {
            let calls = f32::from(calls);
            let there = halves.to_vec().expect("a copy");
            assert_eq!(there, [0.5 * calls, calls, -calls]);
        }
        bytes.free().expect("free");
        halves.free().expect("free");
    }

    fn updates_in(&self, window: &Window<i64>) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let ones = self.upload(&vec![1; LEN]);
        let ones = ones.after_stream(&self.stream);
        let all = window.lock_all();
        for round in 0..ROUNDS {
            for target in 0..size {
                let summed = match round % 3 {
                    0 => all.accumulate(&ones, target, 0, Op::Sum),
                    1 => all.accumulate(&vec![1i64; LEN], target, 0, Op::Sum),
                    _ => {
                        let was = self.upload(&vec![-1; LEN]);
                        let mut to = was.after_stream(&self.stream);
                        all.get_accumulate(&ones, &mut to, target, 0, Op::Sum)
                            .map(|()| assert!(self.download(&was).iter().all(|v| *v >= 0)))
                    }
                };
                summed.expect("sum");
            }
        }
        let was = all.fetch_and_op(5, rank, 3, Op::Sum).expect("fetch");
        assert!((ROUNDS as i64..=(ROUNDS as i64) * size as i64).contains(&was));
        all.unlock().expect("unlock");
        window.fence().expect("fence");
        let total = ROUNDS as i64 * size as i64;
        let mut expected = vec![total; LEN];
        expected[3] += 5;
        assert_eq!(self.own(window), expected);
        window.fence().expect("fence");
        // Each rank takes one of rank 0's elements, once.
        let all = window.lock_all();
        let mut at = 4;
        while all
            .compare_and_swap(total, -1 - rank as i64, 0, at)
            .expect("swap")
            != total
        {
            at += 1;
        }
        let now = all.fetch_and_op(0, 0, at, Change::Keep).expect("fetch");
        assert_eq!(now, -1 - rank as i64);
        all.unlock().expect("unlock");
        window.fence().expect("fence");
        if rank == 0 {
            let there = self.own(window);
            let mut taken = there[4..4 + size].to_vec();
            taken.sort_unstable();
            let all: Vec<i64> = (1..=size as i64).rev().map(|n| -n).collect();
            assert_eq!(taken, all);
        }
    }

    /// A kernel of the stream, a put behind it, and a get of what the next rank was given.
    fn streams(&self, window: Window<i64>) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let next = (rank + 1) % size;
        let len = window.len_of(rank).expect("a length");
        let mine = self.upload(&vec![0; len]);
        for round in 0..ROUNDS as u8 {
            window
                .fenced(|epoch| {
                    let written = mine.after_stream(&self.stream);
                    copy::fill(&self.stream, &written, round + rank as u8)?;
                    let event = epoch.put_on(&self.stream, &written, next, 0)?;
                    assert!(event.is_some(), "no capture");
                    Ok(())
                })
                .expect("put");
            let before = (rank + size - 1) % size;
            let byte = i64::from(round + before as u8);
            let expected = byte * 0x0101_0101_0101_0101;
            assert_eq!(self.own(&window), vec![expected; len]);
            let all = window.lock_all();
            let into = mine.after_stream(&self.stream);
            let event = all.get_on(&self.stream, &into, rank, 0).expect("get");
            event.expect("no capture").synchronize().expect("a copy");
            all.unlock().expect("unlock");
            assert_eq!(self.download(&mine), vec![expected; len]);
            window.fence().expect("fence");
        }
        // A window that is dropped is given back behind what its streams do.
        let all = window.lock_all();
        let event = all.put_on(&self.stream, &mine.after_stream(&self.stream), next, 0);
        std::mem::forget(all);
        drop(window);
        event
            .expect("put")
            .expect("no capture")
            .synchronize()
            .expect("a copy");
    }

    /// A put is captured once and launched several times.
    fn graphs(&self, window: Window<i64>) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let next = (rank + 1) % size;
        let mine = self.upload(&vec![0; 100]);
        let all = window.lock_all();
        // What is first used is opened now.
        all.put(&mine.after_stream(&self.stream), next, 0)
            .expect("put");
        let graph = Graph::capture(&self.stream, |stream| {
            let event = all.put_on(stream, &mine.after_stream(stream), next, 0);
            assert!(event.expect("put").is_none(), "in a capture");
            Ok(())
        });
        let graph = graph.expect("a graph");
        all.unlock().expect("unlock");
        for round in 0..ROUNDS as u8 {
            let written = mine.after_stream(&self.stream);
            copy::fill(&self.stream, &written, 3 * round + rank as u8).expect("a fill");
            window.fence().expect("fence");
            graph.launch(&self.stream, &[]).expect("a launch");
            self.stream.synchronize().expect("a graph");
            window.fence().expect("fence");
            let before = (rank + size - 1) % size;
            let byte = i64::from(3 * round + before as u8);
            let there = self.own(&window);
            assert_eq!(there, vec![byte * 0x0101_0101_0101_0101; 100]);
        }
        drop(graph);
        window.free().expect("free");
    }

    /// Elements in a heap on the device, and signals in one on the host.
    fn heaps(&self) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let heap = self.comm.symmetric_heap_on(&self.context, 1 << 16);
        let heap = heap.expect("a heap");
        let of_signals = self.comm.symmetric_heap(4096).expect("a heap");
        let field = heap.alloc::<i64>(1000).expect("elements");
        let counts = heap.alloc::<i64>(2).expect("elements");
        let arrived = of_signals.alloc::<u64>(1).expect("a word");
        assert_eq!(field.to_vec().expect("zeroes"), vec![0; 1000]);
        heap.barrier().expect("a barrier");
        for round in 0..ROUNDS {
            let value = |rank: usize| 10 * round as i64 + rank as i64;
            let mine = self.upload(&vec![value(rank); 1000]);
            let mine = mine.after_stream(&self.stream);
            field
                .put_signal(&mine, next, 0, &arrived, 0, SignalOp::Add(1))
                .expect("put");
            arrived.wait_until(0, |n| n == round + 1).expect("a signal");
            assert_eq!(field.to_vec().expect("a copy"), vec![value(before); 1000]);
            counts.add(1, next, 0).expect("add");
            heap.barrier().expect("a barrier");
        }
        counts
            .wait_until(0, |n| n == ROUNDS as i64)
            .expect("counts");
        self.teams(&heap, &of_signals, &field);
        drop((field, counts, arrived));
        heap.free().expect("free");
        of_signals.free().expect("free");
    }

    /// Teams of kernels: where they are refused, and addresses. Example 13 has kernels.
    fn teams(&self, heap: &SymmetricHeap, on_host: &SymmetricHeap, field: &Symmetric<i64>) {
        let refused = on_host.team().expect_err("the heap lies on the host");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        let team = match heap.team() {
            Ok(team) => team,
            Err(e) => {
                // Of devices that reach each other without atomics, or not at all; on all ranks.
                assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
                return;
            }
        };
        let at = |i| team.address_of(field, i);
        let first = at(0).expect("an element");
        assert_eq!(at(999).expect("an element"), first + 8 * 999);
        let e = at(1000).expect_err("there is none");
        assert_eq!(e.kind(), ErrorKind::WindowRange, "{e}");
        let other = on_host.alloc::<i64>(1).expect("an element");
        let e = team.address_of(&other, 0).expect_err("of another heap");
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        team.check().expect("nobody has died");
    }

    fn wrong_calls(&self) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let window = self.window(10 + rank);
        let five = self.upload(&[7; 5]);
        let five = five.after_stream(&self.stream);
        let fails = |result: osier::Result<()>, kind: ErrorKind, part: &str| {
            let e = result.expect_err(part);
            assert_eq!(e.kind(), kind, "{e}");
            assert!(e.to_string().contains(part), "{e}");
        };
        let (all, last) = (window.lock_all(), size - 1);
        let end = 10 + last - 4;
        fails(
            all.put(&five, last, end),
            ErrorKind::WindowRange,
            "of a part of",
        );
        let far = all.put(&five, last, usize::MAX);
        assert!(far.is_err(), "there is no such element");
        fails(all.put(&five, size, 0), ErrorKind::Rank, "rank");
        let pair = Type::contiguous(2, &Type::of::<i64>());
        let pair = pair.and_then(|t| t.commit());
        let pair = pair.expect("a pair");
        fails(
            all.put_as(&five, last, 0, &pair, 2),
            ErrorKind::Datatype,
            "40 bytes",
        );
        drop(all);
        let locked = window.lock(rank).expect("a lock");
        let other = (rank + 1) % size;
        fails(
            locked.put(&five, other, 0),
            ErrorKind::WindowEpoch,
            "lock its part",
        );
        drop(locked);
        window.fence().expect("fence");
        assert_eq!(self.own(&window), vec![0; 10 + rank]);
        window.free().expect("free");
    }
}
