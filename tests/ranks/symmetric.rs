//! Symmetric heaps: equal offsets, exact updates, signals that wake, errors that name.

use crate::support::{Random, Watchdog, fails, on_all, on_threads, one_fails, pattern};
use osier::rma::{SignalOp, Symmetric, SymmetricHeap};
use osier::testing::{Network, ranks_on};
use osier::{Communicator, ErrorKind, Op, Type, View};
use osier_transports::sim::SimOptions;

/// Runs `f` on `n` ranks, on all networks and by messages that owners serve.
fn on_each(n: usize, f: impl Fn(Communicator) + Sync) {
    on_all(n, &f);
    let _watchdog = Watchdog::start();
    let of_messages = SimOptions {
        auto_advance: true,
        get: false,
        put: false,
        atomics: false,
        ..SimOptions::default()
    };
    ranks_on(&Network::Sim(of_messages), n, &f);
}

fn heap_of(comm: &Communicator, bytes: usize) -> SymmetricHeap {
    comm.symmetric_heap(bytes).expect("a heap")
}

fn cells<T: osier::Datatype>(heap: &SymmetricHeap, len: usize) -> Symmetric<T> {
    heap.alloc(len).expect("an allocation")
}

/// Allocations of one random order lie at equal offsets, are zeroed, and overlap no other.
#[test]
fn allocations_lie_at_equal_offsets() {
    on_each(3, |comm| {
        let heap = heap_of(&comm, 40 << 10);
        let (rank, size) = (comm.rank(), comm.size());
        let mut random = Random::new(7);
        let mut alive: Vec<(Symmetric<u64>, u64)> = Vec::new();
        for round in 1..60u64 {
            if random.below(3) == 0 && !alive.is_empty() {
                let which = random.below(alive.len());
                drop(alive.swap_remove(which));
                continue;
            }
            let len = random.below(400);
            let cells = match heap.alloc::<u64>(len) {
                Ok(cells) => cells,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{e}");
                    alive.clear();
                    continue;
                }
            };
            let mut offsets = vec![0u64; size];
            comm.allgather(&[cells.offset() as u64], &mut offsets)
                .expect("offsets");
            assert!(offsets.iter().all(|at| *at == cells.offset() as u64));
            assert!(cells.to_vec().expect("zeroes").iter().all(|v| *v == 0));
            heap.barrier().expect("a barrier");
            let next = (rank + 1) % size;
            let mine = vec![round * 10 + rank as u64; len];
            cells.put(&mine[..], next, 0).expect("put");
            alive.push((cells, round));
        }
        heap.barrier().expect("a barrier");
        let before = (rank + size - 1) % size;
        for (cells, round) in &alive {
            let there = cells.to_vec().expect("a copy");
            assert!(there.iter().all(|v| *v == round * 10 + before as u64));
        }
        drop(alive);
        heap.free().expect("free");
    });
}

/// A range is used again when all ranks have dropped it, and not before.
#[test]
fn memory_is_used_again_when_all_have_dropped_it() {
    on_each(2, |comm| {
        let heap = heap_of(&comm, 4096);
        let first = cells::<u8>(&heap, 3000);
        let kept = (comm.rank() == 1).then(|| first.clone());
        drop(first);
        fails(heap.alloc::<u8>(3000), ErrorKind::OutOfMemory, &["3000"]);
        drop(kept);
        let again = cells::<u8>(&heap, 3000);
        assert_eq!(again.offset(), 0);
        drop(again);
        heap.free().expect("free");
    });
}

#[test]
fn updates_of_all_ranks_are_exact() {
    on_each(4, |comm| {
        const ROUNDS: i64 = 50;
        let heap = heap_of(&comm, 1 << 12);
        let counters = cells::<i64>(&heap, 4);
        let owner = cells::<u32>(&heap, 1);
        let size = comm.size();
        for round in 0..ROUNDS {
            for rank in 0..size {
                counters.add(1, rank, 0).expect("add");
                let was = counters.fetch_and_add(2, rank, 1).expect("fetch and add");
                assert!(was % 2 == 0 && was < 2 * ROUNDS * size as i64);
                counters.fetch_and_op(round, rank, 2, Op::Max).expect("max");
            }
            // A lock by compare-and-swap, under which a plain number is counted up.
            let mine = comm.rank() as u32 + 1;
            while owner.compare_and_swap(0, mine, 0, 0).expect("swap") != 0 {
                std::thread::yield_now();
                comm.iprobe(osier::ANY_SOURCE, osier::ANY_TAG)
                    .expect("progress");
            }
            let mut there = [0i64];
            counters.get(&mut there, 0, 3).expect("get");
            counters.put(&[there[0] + 1], 0, 3).expect("put");
            assert_eq!(owner.swap(0, 0, 0).expect("swap"), mine);
        }
        heap.barrier().expect("a barrier");
        let total = ROUNDS * size as i64;
        let of_rank_0 = if comm.rank() == 0 { total } else { 0 };
        assert_eq!(
            counters.to_vec().expect("a copy"),
            [total, 2 * total, ROUNDS - 1, of_rank_0]
        );
    });
}

/// A token goes around by signals, with elements that are there when the signal is.
#[test]
fn signals_come_behind_their_elements() {
    on_each(3, |comm| {
        let heap = heap_of(&comm, 1 << 20);
        let (rank, size) = (comm.rank(), comm.size());
        let next = (rank + 1) % size;
        for bytes in [1usize, 1000, 100_000] {
            let there = cells::<u8>(&heap, bytes);
            let flags = cells::<u64>(&heap, 2);
            for round in 0..10u64 {
                let seed = bytes + round as usize;
                if rank > 0 || round > 0 {
                    let before = round + u64::from(rank > 0);
                    let seen = flags.wait_until(1, |flag| flag >= before);
                    assert_eq!(seen.expect("wait"), before);
                    let from = if rank > 0 { seed } else { seed - 1 };
                    assert_eq!(there.to_vec().expect("a copy"), pattern(bytes, from));
                }
                let mine = pattern(bytes, seed);
                let put = there.put_signal(&mine[..], next, 0, &flags, 1, SignalOp::Add(1));
                put.expect("put");
            }
            heap.barrier().expect("a barrier");
            assert_eq!(flags.fetch(rank, 1).expect("fetch"), 10);
        }
    });
}

#[test]
fn any_layout_is_put() {
    on_each(2, |comm| {
        let heap = heap_of(&comm, 1 << 12);
        let there = cells::<i32>(&heap, 3);
        let column = Type::vector(3, 1, 4, &Type::of::<i32>());
        let column = column.and_then(|t| t.commit()).expect("a column");
        let matrix: Vec<i32> = (0..12).collect();
        let view = View::new(&matrix, 1, &column, 1).expect("a view");
        there.put(&view, 1 - comm.rank(), 0).expect("put");
        heap.barrier().expect("a barrier");
        assert_eq!(there.to_vec().expect("a copy"), [1, 5, 9]);
    });
}

#[test]
fn teams_name_ranks_by_their_own_numbers() {
    on_each(4, |comm| {
        let heap = heap_of(&comm, 1 << 12);
        let counts = cells::<u64>(&heap, 1);
        let rank = comm.rank();
        let team = comm.split(Some(u32::from(rank == 2)), rank as i64);
        let team = team.expect("a split").expect("a member");
        let theirs = counts.on(&team).expect("a team");
        theirs.add(1, team.size() - 1, 0).expect("add");
        heap.barrier().expect("a barrier");
        let expected = [0, 0, 1, 3][rank];
        assert_eq!(counts.fetch(rank, 0).expect("fetch"), expected);
        fails(
            theirs.fetch(team.size(), 0),
            ErrorKind::Rank,
            &["a team of"],
        );
    });
}

#[test]
fn wrong_calls_are_named() {
    on_each(2, |comm| {
        let rank = comm.rank();
        let differs = comm.symmetric_heap(4096 << rank);
        fails(differs.map(drop), ErrorKind::Argument, &["4096", "8192"]);
        let (heap, other) = (heap_of(&comm, 4096), heap_of(&comm, 4096));
        let there = cells::<u32>(&heap, 10);
        let flag = cells::<u64>(&other, 1);
        let range = ErrorKind::WindowRange;
        fails(
            there.put(&[1u32; 4], 0, 7),
            range,
            &["element 7", "10 elements"],
        );
        let apart = there.put(&[1u16; 3], 0, 0);
        fails(apart, ErrorKind::Datatype, &["6 bytes", "u32"]);
        fails(there.fetch(0, 10), range, &["element 10"]);
        fails(there.fetch(0, usize::MAX), range, &["10 elements"]);
        fails(there.wait_until(10, |_| true), range, &["element 10"]);
        fails(there.fetch(2, 0), ErrorKind::Rank, &["rank 2"]);
        let set = SignalOp::Set(1);
        let put = there.put_signal(&1u32, 0, 0, &flag, 0, set);
        put.expect("a heap of the same ranks");
        let alone = comm
            .split(Some(rank as u32), 0)
            .expect("a split")
            .expect("a member");
        let lonely = heap_of(&alone, 4096);
        let theirs = cells::<u64>(&lonely, 1);
        let put = there.put_signal(&1u32, 0, 0, &theirs, 0, set);
        fails(put, ErrorKind::Argument, &["other ranks"]);
        heap.barrier().expect("a barrier");
        there.set(0, rank, 0).expect("set");
        heap.barrier().expect("a barrier");
        let flag = cells::<u64>(&heap, 1);
        let put = there.put_signal(&[7u32], rank, 0, &flag, 1, set);
        fails(put, range, &["element 1", "1 elements"]);
        assert_eq!(
            there.to_vec().expect("a copy"),
            [0; 10],
            "nothing was written"
        );
        let asked = heap.alloc::<u64>(10 + rank);
        fails(asked.map(drop), ErrorKind::Argument, &["other"]);
        let asked = heap.alloc::<u64>(usize::MAX);
        fails(asked.map(drop), ErrorKind::OutOfMemory, &["symmetric heap"]);
        fails(heap.free(), ErrorKind::Argument, &["drop them first"]);
    });
}

/// Two threads of a rank wait for elements that a third one and another rank change.
#[test]
fn threads_of_a_rank_are_all_woken() {
    on_threads(2, |comm| {
        let heap = heap_of(&comm, 4096);
        let flags = cells::<u32>(&heap, 3);
        if comm.rank() == 0 {
            std::thread::scope(|s| {
                for at in [0, 1] {
                    let flags = &flags;
                    s.spawn(move || {
                        flags.wait_until(at, |v| v == 7).expect("wait");
                        flags.add(1, 0, 2).expect("add");
                    });
                }
                flags.wait_until(2, |v| v == 2).expect("wait");
            });
            comm.send(&[1u8], 1, 0).expect("send");
        } else {
            flags.set(7, 0, 1).expect("set");
            flags.set(7, 0, 0).expect("set");
            comm.recv(&mut [0u8], 0, 0).expect("receive");
        }
    });
}

/// Who waits for a rank that has died is told.
#[test]
fn a_wait_ends_when_a_rank_dies() {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        one_fails(&network, 3, |comm| {
            let heap = heap_of(&comm, 4096);
            let flag = cells::<u64>(&heap, 1);
            if comm.rank() == 1 {
                return true;
            }
            let waited = flag.wait_until(0, |flag| flag == 1);
            fails(waited, ErrorKind::RankDead, &["element 0", "rank 1"]);
            // Neither may end before the other has been told of rank 1.
            let other = 2 - comm.rank();
            let told = comm.sendrecv(&[1u8], other, 0, &mut [0u8], other, 0);
            told.expect("both live");
            false
        });
    }
}
