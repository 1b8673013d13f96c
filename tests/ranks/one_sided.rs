//! Windows: what is put is there, what is updated is exact, and what is wrong is named.

use crate::support::{Random, Watchdog, fails, on_all, one_fails, pattern, simulated};
use osier::rma::{Change, Updates, Way, Window};
use osier::testing::{Network, ranks_on};
use osier::{Communicator, ErrorKind, Op, Type, View, ViewMut};
use osier_transports::sim::SimOptions;

/// A network without one-sided operations: owners serve accesses.
fn of_messages() -> Network {
    Network::Sim(SimOptions {
        auto_advance: true,
        get: false,
        put: false,
        atomics: false,
        ..SimOptions::default()
    })
}

/// Runs `f` on `n` ranks, on all networks and by messages.
fn on_each(n: usize, f: impl Fn(Communicator) + Sync) {
    on_all(n, &f);
    let _watchdog = Watchdog::start();
    ranks_on(&of_messages(), n, &f);
}

/// A window of zeroed elements: of the library's memory, updated in both ways, and of vectors.
fn all_kinds(comm: &Communicator, len: usize, f: impl Fn(Window<u64>)) {
    for updates in [Updates::Many, Updates::Single] {
        f(comm.window_for::<u64>(len, updates).expect("a window"));
    }
    f(comm.window_of(vec![0u64; len]).expect("a window"));
}

#[test]
fn what_is_put_between_fences_is_there() {
    on_each(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        all_kinds(&comm, 8 * size, |window| {
            for round in 0..3u64 {
                let put = window.fenced(|epoch| {
                    for target in 0..size {
                        let mine = [round + 100 * rank as u64 + target as u64; 8];
                        epoch.put(&mine, target, 8 * rank)?;
                    }
                    Ok(())
                });
                put.expect("put");
                let there = window.to_vec().expect("a copy");
                for (at, value) in there.iter().enumerate() {
                    assert_eq!(*value, round + 100 * (at / 8) as u64 + rank as u64);
                }
                window.fence().expect("fence");
            }
            window.free().expect("free");
        });
    });
}

#[test]
fn what_is_got_is_what_its_owner_wrote() {
    on_each(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for bytes in [1usize, 7, 100, 70_000] {
            let window = comm.window::<u8>(bytes).expect("a window");
            window.write(0, &pattern(bytes, rank)).expect("write");
            let got = window.fenced(|epoch| {
                for target in 0..size {
                    let mut got = vec![0u8; bytes];
                    epoch.get(&mut got, target, 0)?;
                    assert_eq!(got, pattern(bytes, target));
                    let (mut last, at) = ([0u8], bytes - 1);
                    epoch.get(&mut last, target, at)?;
                    assert_eq!(last[0], pattern(bytes, target)[at]);
                }
                Ok(())
            });
            got.expect("get");
            window.free().expect("free");
        }
    });
}

/// Columns of a matrix are written from a slice, and rows from columns.
#[test]
fn layouts_differ_on_both_sides() {
    on_each(2, |comm| {
        let (rank, other) = (comm.rank(), 1 - comm.rank());
        let column = Type::vector(4, 1, 5, &Type::of::<i32>());
        let column = column.and_then(|t| t.commit()).expect("a column");
        let row = Type::contiguous(4, &Type::of::<i32>());
        let row = row.and_then(|t| t.commit()).expect("a row");
        let window = comm.window::<i32>(20).expect("a window");
        let mine: Vec<i32> = (0..20).map(|i| i + 100 * rank as i32).collect();
        let put = window.fenced(|epoch| {
            // My second row becomes the other's third column, my first column its fourth.
            epoch.put_as(&mine[5..9], other, 2, &column, 1)?;
            epoch.put_as(&View::new(&mine, 0, &column, 1)?, other, 3, &column, 1)
        });
        put.expect("put");
        let there = window.to_vec().expect("a copy");
        let theirs = 100 * other as i32;
        for (i, value) in there.iter().enumerate() {
            let (y, x) = (i as i32 / 5, i as i32 % 5);
            let expected = match x {
                2 => theirs + 5 + y,
                3 => theirs + 5 * y,
                _ => 0,
            };
            assert_eq!(*value, expected, "row {y}, column {x}");
        }
        let got = window.fenced(|epoch| {
            let mut matrix = [0i32; 20];
            epoch.get_as(
                &mut ViewMut::new(&mut matrix, 1, &column, 1)?,
                other,
                3,
                &column,
                1,
            )?;
            let mut line = [0i32; 4];
            epoch.get_as(&mut line, other, 2, &column, 1)?;
            assert_eq!(line, [5, 6, 7, 8].map(|v| v + 100 * rank as i32));
            for y in 0..4 {
                assert_eq!(matrix[5 * y + 1], 100 * rank as i32 + 5 * y as i32);
            }
            let mut first = [0i32; 4];
            epoch.get_as(&mut first, other, 0, &row, 1)
        });
        got.expect("get");
        window.free().expect("free");
    });
}

/// Counters that all ranks change at once end exact, and tickets are handed out once.
#[test]
fn updates_are_exact() {
    on_each(4, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let turns = if simulated(&comm) { 20 } else { 300 };
        all_kinds(&comm, 4 + size * turns, |window| {
            let all = window.lock_all();
            for _ in 0..turns {
                let ticket = all.fetch_and_op(1, 0, 0, Op::Sum).expect("a ticket") as usize;
                all.accumulate(&[1u64], 0, 4 + ticket, Op::Sum)
                    .expect("mark");
                all.accumulate(&[2u64, rank as u64], 0, 1, Op::Sum)
                    .expect("sum");
            }
            all.unlock().expect("unlock");
            window.fence().expect("fence");
            if rank == 0 {
                let there = window.to_vec().expect("a copy");
                let n = (turns * size) as u64;
                let ranks = (turns * size * (size - 1) / 2) as u64;
                assert_eq!(there[..3], [n, 2 * n, ranks]);
                assert!(there[4..].iter().all(|mark| *mark == 1), "each ticket once");
            }
            window.free().expect("free");
        });
    });
}

/// Elements that no atomic of the processor fits are exact, too.
#[test]
fn long_elements_are_updated_at_once() {
    on_each(3, |comm| {
        let turns = if simulated(&comm) { 5 } else { 100 };
        let window = comm.window::<i128>(2).expect("a window");
        let doubles = comm.window::<f64>(3).expect("a window");
        for _ in 0..turns {
            let locked = window.lock_shared(1).expect("lock");
            let value = [1i128 << 64 | 1, -1];
            locked.accumulate(&value, 1, 0, Op::Sum).expect("sum");
            locked.unlock().expect("unlock");
            let all = doubles.lock_all();
            all.accumulate(&[0.5, 2.0, -1.0], 2, 0, Op::Sum)
                .expect("sum");
        }
        window.fence().expect("fence");
        let n = (3 * turns) as i128;
        match comm.rank() {
            1 => assert_eq!(window.to_vec().expect("copy"), [n << 64 | n, -n]),
            2 => {
                let n = n as f64;
                assert_eq!(doubles.to_vec().expect("copy"), [0.5 * n, 2.0 * n, -n]);
            }
            _ => {}
        }
        window.free().expect("free");
        doubles.free().expect("free");
    });
}

#[test]
fn what_was_there_is_got_with_each_update() {
    on_each(2, |comm| {
        let window = comm.window::<i32>(6).expect("a window");
        window.write(0, &[1, 2, 3, 4, 5, 6]).expect("write");
        window.fence().expect("fence");
        if comm.rank() == 0 {
            let locked = window.lock(1).expect("lock");
            let mut before = [0i32; 3];
            let given = [10, 20, 30];
            let update = locked.get_accumulate(&given, &mut before, 1, 1, Op::Max);
            update.expect("maximum");
            assert_eq!(before, [2, 3, 4]);
            let update = locked.get_accumulate(&given, &mut before, 1, 1, Change::Keep);
            update.expect("read");
            assert_eq!(before, given);
            locked
                .accumulate(&[7, 7], 1, 4, Change::Replace)
                .expect("replace");
            assert_eq!(locked.fetch_and_op(9, 1, 0, Change::Replace).ok(), Some(1));
            assert_eq!(locked.compare_and_swap(9, 8, 1, 0).ok(), Some(9));
            assert_eq!(locked.compare_and_swap(9, 5, 1, 0).ok(), Some(8));
            locked.unlock().expect("unlock");
        }
        window.fence().expect("fence");
        if comm.rank() == 1 {
            assert_eq!(window.to_vec().expect("copy"), [8, 10, 20, 30, 7, 7]);
        }
        window.free().expect("free");
    });
}

/// A counter that is read and written apart is exact under a lock alone.
#[test]
fn one_rank_has_a_lock_at_a_time() {
    on_each(4, |comm| {
        let turns = if simulated(&comm) { 12 } else { 200 };
        all_kinds(&comm, 2, |window| {
            for turn in 0..turns {
                let target = turn % comm.size();
                let locked = window.lock(target).expect("lock");
                let mut there = [0u64; 2];
                locked.get(&mut there, target, 0).expect("get");
                assert_eq!(there[0], there[1]);
                locked.put(&(there[0] + 1), target, 0).expect("put");
                locked.put(&(there[1] + 1), target, 1).expect("put");
                drop(locked);
                // Readers at the same time see both or none.
                let shared = window.lock_shared(target).expect("lock");
                shared.get(&mut there, target, 0).expect("get");
                assert_eq!(there[0], there[1]);
            }
            window.fence().expect("fence");
            let n = turns as u64;
            assert_eq!(window.to_vec().expect("copy"), [n, n]);
            window.free().expect("free");
        });
    });
}

#[test]
fn a_rank_waits_for_those_that_it_has_let_in() {
    on_each(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let next = comm.group().incl(&[(rank + 1) % size]).expect("a group");
        let before = [(rank + size - 1) % size];
        let before = comm.group().incl(&before).expect("a group");
        let window = comm.window::<u64>(1).expect("a window");
        for turn in 0..20u64 {
            let mut posted = window.post(&before).expect("post");
            let started = window.start(&next).expect("start");
            let value = 10 * turn + rank as u64;
            started.put(&value, (rank + 1) % size, 0).expect("put");
            let e = started.put(&value, rank, 0);
            fails(e, ErrorKind::WindowEpoch, &["hint"]);
            started.complete().expect("complete");
            if turn % 2 == 0 {
                while !posted.test().expect("test") {
                    comm.queues();
                }
            }
            posted.wait().expect("wait");
            let expected = 10 * turn + ((rank + size - 1) % size) as u64;
            assert_eq!(window.to_vec().expect("copy"), [expected]);
        }
        window.free().expect("free");
    });
}

#[test]
fn what_is_wrong_is_named() {
    on_each(2, |comm| {
        let other = 1 - comm.rank();
        let window = comm.window::<u64>(4).expect("a window");
        let all = window.lock_all();
        let range = ErrorKind::WindowRange;
        let rank = format!("rank {other}");
        let parts = ["put", &rank, "bytes 24 to 40", "32 bytes"];
        fails(all.put(&[0u64; 2], other, 3), range, &parts);
        fails(all.put(&0u64, other, usize::MAX / 8), range, &["put"]);
        fails(all.get(&mut [0u64; 5], other, 0), range, &["get"]);
        let sum = all.accumulate(&[0u64; 5], other, 0, Op::Sum);
        fails(sum, range, &["accumulate"]);
        fails(all.compare_and_swap(0, 1, other, 4), range, &["compare"]);
        fails(all.put(&0u64, 2, 0), ErrorKind::Rank, &["rank 2", "of 2"]);
        let pairs = Type::contiguous(2, &Type::of::<u64>());
        let pairs = pairs.and_then(|t| t.commit()).expect("a type");
        let parts = ["8 bytes", "16 bytes", "hint"];
        let put = all.put_as(&0u64, other, 0, &pairs, 1);
        fails(put, ErrorKind::Datatype, &parts);
        let doubles = comm.window::<f64>(1).expect("a window");
        let floats = doubles.lock_all();
        let bits = floats.accumulate(&1.0, other, 0, Op::BitAnd);
        fails(bits, ErrorKind::Datatype, &["MPI_BAND"]);
        let swap = floats.compare_and_swap(0.0, 1.0, other, 0);
        fails(swap, ErrorKind::Datatype, &["integers"]);
        drop(floats);
        drop(all);
        let locked = window.lock(other).expect("lock");
        let put = locked.put(&0u64, comm.rank(), 0);
        fails(put, ErrorKind::WindowEpoch, &["hint"]);
        let again = window.lock(other).map(drop);
        fails(again, ErrorKind::WindowEpoch, &[&rank]);
        drop(locked);
        window.free().expect("free");
        doubles.free().expect("free");
    });
}

/// Guards that are forgotten leave locks, and no memory that others use.
#[test]
fn vectors_come_back_and_windows_may_be_dropped() {
    on_each(2, |comm| {
        let other = 1 - comm.rank();
        let window = comm
            .window_of(vec![comm.rank() as u64; 3])
            .expect("a window");
        let put = window.fenced(|epoch| epoch.put(&7u64, other, 1));
        put.expect("put");
        let back = window.free().expect("free").expect("the vector");
        assert_eq!(back, [comm.rank() as u64, 7, comm.rank() as u64]);
        for len in [0, 5] {
            let window = comm.window::<u32>(len).expect("a window");
            assert_eq!((window.len(), window.is_empty()), (len, len == 0));
            window.fence().expect("fence");
        }
        let vectors = comm.window_of(vec![0u16; 100]).expect("a window");
        std::mem::forget(vectors.lock_shared(other).expect("lock"));
        let locked = vectors.lock_all();
        locked.put(&1u16, other, 5).expect("put");
        std::mem::forget(locked);
    });
}

/// What one rank does with windows at a time, beside what a sequential memory has.
#[test]
fn random_accesses_are_those_of_a_sequential_memory() {
    let _watchdog = Watchdog::start();
    for network in Network::all().into_iter().chain([of_messages()]) {
        for seed in 0..20 {
            ranks_on(&network, 3, |comm| sequence(&comm, seed));
        }
    }
}

fn sequence(comm: &Communicator, seed: u64) {
    const LEN: usize = 40;
    let mut random = Random::new(seed);
    let size = comm.size();
    let window = match seed % 3 {
        0 => comm.window::<i16>(LEN),
        1 => comm.window_for::<i16>(LEN, Updates::Single),
        _ => comm.window_of(vec![0i16; LEN]),
    };
    let window = window.expect("a window");
    let mut model = vec![[0i16; LEN]; size];
    for _ in 0..40 {
        let (actor, target) = (random.below(size), random.below(size));
        let count = 1 + random.below(6);
        let stride = 1 + random.below(4);
        let at = random.below(LEN - (count - 1) * stride);
        let layout = Type::vector(count, 1, stride as isize, &Type::of::<i16>());
        let layout = layout.and_then(|t| t.commit()).expect("a layout");
        let given: Vec<i16> = (0..count)
            .map(|_| random.below(2000) as i16 - 1000)
            .collect();
        let what = random.below(6);
        let places = (0..count).map(|i| at + i * stride);
        let there: Vec<i16> = places.clone().map(|i| model[target][i]).collect();
        let change = [Op::Sum, Op::Min, Op::BitXor, Op::Max][random.below(4)];
        let epoch = (comm.rank() == actor).then(|| window.lock(target).expect("lock"));
        if let Some(epoch) = &epoch {
            match what {
                0 | 1 => epoch.put_as(&given, target, at, &layout, 1).expect("put"),
                2 => {
                    let mut got = vec![0i16; count];
                    epoch.get_as(&mut got, target, at, &layout, 1).expect("get");
                    assert_eq!(got, there, "seed {seed}");
                }
                3 | 4 => {
                    let layout = (&layout, 1);
                    let done = epoch.accumulate_as(&given, target, at, layout, change);
                    done.expect("accumulate");
                }
                _ => {
                    let before = epoch.fetch_and_op(given[0], target, at, Change::Replace);
                    assert_eq!(before.expect("fetch"), there[0], "seed {seed}");
                }
            }
        }
        drop(epoch);
        for (i, (place, given)) in places.zip(&given).enumerate() {
            let old = &mut model[target][place];
            *old = match what {
                0 | 1 => *given,
                2 => *old,
                3 | 4 => match change {
                    Op::Sum => old.wrapping_add(*given),
                    Op::Min => *old.min(&mut given.clone()),
                    Op::BitXor => *old ^ given,
                    _ => (*old).max(*given),
                },
                _ if i == 0 => *given,
                _ => *old,
            };
        }
        comm.barrier().expect("barrier");
    }
    let there = window.to_vec().expect("copy");
    assert_eq!(there, model[comm.rank()], "seed {seed}");
    window.free().expect("free");
}

/// A rank dies with a lock: who waits for it learns its name, and the next one has it.
#[test]
fn locks_of_a_rank_that_dies_are_released() {
    let _watchdog = Watchdog::start();
    for network in Network::all().into_iter().chain([of_messages()]) {
        one_fails(&network, 3, |comm| {
            let window = comm.window::<u64>(1).expect("a window");
            if comm.rank() == 1 {
                std::mem::forget(window.lock(0).expect("lock"));
            }
            window.fence().expect("fence");
            if comm.rank() == 1 {
                std::mem::forget(window);
                return true;
            }
            if comm.rank() == 2 {
                let locked = window.lock(0).map(drop);
                fails(locked, ErrorKind::RankDead, &["rank 1", "rank 0"]);
                let locked = window.lock(0).expect("it is free now");
                locked.put(&5u64, 0, 0).expect("put");
                drop(locked);
                comm.send(&[0u8; 0], 0, 0).expect("send");
            } else {
                comm.recv(&mut [0u8; 0], 2, 0).expect("receive");
                assert_eq!(window.to_vec().expect("copy"), [5]);
            }
            // Not all give it back any more.
            std::mem::forget(window);
            false
        });
    }
}

/// The same of a lock that several share: those that have ended are named, each once, and then
/// the lock is free.
#[test]
fn shares_of_ranks_that_die_are_released() {
    let _watchdog = Watchdog::start();
    one_fails(&Network::Shm, 4, |comm| {
        let rank = comm.rank();
        let window = comm.window::<u64>(1).expect("a window");
        match rank {
            1 => std::mem::forget(window.lock_shared(0).expect("lock")),
            2 => {
                let all = window.lock_all();
                all.put(&7u64, 0, 0).expect("put");
                std::mem::forget(all);
            }
            _ => {}
        }
        window.fence().expect("fence");
        if rank == 1 || rank == 2 {
            std::mem::forget(window);
            return true;
        }
        if rank == 3 {
            let mut named = [1, 2].map(|dead| format!("rank {dead} had it")).to_vec();
            while !named.is_empty() {
                let locked = window.lock(0).map(drop);
                let e = fails(locked, ErrorKind::RankDead, &["rank 0's part"]).to_string();
                let at = named.iter().position(|name| e.contains(name));
                named.remove(at.expect("each is named once"));
            }
            let locked = window.lock(0).expect("it is free now");
            locked.put(&5u64, 0, 0).expect("put");
            drop(locked);
            comm.send(&[0u8; 0], 0, 0).expect("send");
        } else {
            comm.recv(&mut [0u8; 0], 3, 0).expect("receive");
            assert_eq!(window.to_vec().expect("copy"), [5]);
        }
        std::mem::forget(window);
        false
    });
}

/// Where nobody reads what a rank has noted that has ended, it is named, too.
#[test]
fn who_waits_for_shares_of_the_dead_is_told() {
    let _watchdog = Watchdog::start();
    one_fails(&of_messages(), 3, |comm| {
        let window = comm.window::<u64>(1).expect("a window");
        if comm.rank() == 1 {
            std::mem::forget(window.lock_shared(0).expect("lock"));
        }
        window.fence().expect("fence");
        if comm.rank() == 2 {
            let locked = window.lock(0).map(drop);
            fails(
                locked,
                ErrorKind::RankDead,
                &["rank 0's part", "rank 1 has ended"],
            );
            comm.send(&[0u8; 0], 0, 0).expect("send");
        }
        if comm.rank() == 0 {
            comm.recv(&mut [0u8; 0], 2, 0).expect("receive");
        }
        std::mem::forget(window);
        comm.rank() == 1
    });
}

/// All ranks push to one list, whose nodes each attaches as it needs them: the head is changed
/// by compare-and-swap, and each node is there once.
#[test]
fn a_list_is_built_by_compare_and_swap() {
    const NODES: usize = 20;
    on_each(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let head = comm.window::<u64>(1).expect("a window");
        let window = comm.dynamic_window::<u64>().expect("a window");
        let all = window.lock_all();
        let heads = head.lock_all();
        // A node is its value, and the rank and the index of the next one in one word.
        let name = |rank: usize, at: usize| (rank as u64 + 1) << 48 | at as u64;
        for i in 0..NODES {
            let value = (rank * NODES + i) as u64;
            let node = match i % 2 {
                0 => window.attach(2).expect("a node"),
                _ => window.attach_vec(vec![0u64; 2]).expect("a node"),
            };
            let mut next = heads.fetch_and_op(0, 0, 0, Change::Keep).expect("the head");
            loop {
                all.put(&[value, next], rank, node).expect("put");
                let seen = heads
                    .compare_and_swap(next, name(rank, node), 0, 0)
                    .expect("swap");
                if seen == next {
                    break;
                }
                next = seen;
            }
        }
        comm.barrier().expect("all have pushed");
        let mut found = vec![0; NODES * size];
        let mut next = heads.fetch_and_op(0, 0, 0, Change::Keep).expect("the head");
        while next != 0 {
            let (owner, at) = ((next >> 48) as usize - 1, next & ((1 << 48) - 1));
            let mut node = [0u64; 2];
            all.get(&mut node, owner, at as usize).expect("get");
            found[node[0] as usize] += 1;
            next = node[1];
        }
        assert!(found.iter().all(|n| *n == 1), "{found:?}");
        let outside = all.get(&mut [0u64; 2], rank, 5);
        fails(outside, ErrorKind::WindowRange, &[]);
        all.unlock().expect("unlock");
        heads.unlock().expect("unlock");
        fails(head.attach(1), ErrorKind::Argument, &["dynamic"]);
        comm.barrier().expect("all have read");
        window.free().expect("free");
        head.free().expect("free");
    });
}

/// Ranks store to each other's parts of a shared window by address, and reach them by calls.
#[test]
fn parts_of_shared_windows_lie_one_behind_the_other() {
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Shm, 3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        // Of different lengths, one of none.
        let lens = [3usize, 0, 5];
        let window = comm.shared_window::<u64>(lens[rank]).expect("a window");
        assert_eq!(window.as_ptr(1).expect("a rank"), None);
        let first = window.as_ptr(0).expect("a rank").expect("elements");
        let last = window.as_ptr(2).expect("a rank").expect("elements");
        assert_eq!(first.wrapping_add(3), last);
        window.fence().expect("fence");
        if rank == 1 {
            for i in 0..8u64 {
                let at = first.wrapping_add(i as usize);
                // SAFETY: eight elements of both parts, which nobody else uses between fences.
                unsafe { at.write_volatile(100 + i) };
            }
        }
        window.fence().expect("fence");
        let mut there = vec![0u64; 3];
        let all = window.lock_all();
        all.get(&mut there[..], 0, 0).expect("get");
        assert_eq!(there, [100, 101, 102]);
        all.unlock().expect("unlock");
        let before = if rank == 2 { 103 } else { 100 };
        let mine: Vec<u64> = (0..lens[rank] as u64).map(|i| before + i).collect();
        assert_eq!(window.to_vec().expect("a copy"), mine);
        fails(window.as_ptr(size), ErrorKind::Rank, &["rank 3"]);
        window.free().expect("free");
    });
}

/// How parts are reached, as it is told.
#[test]
fn the_way_to_a_part_is_told() {
    let _watchdog = Watchdog::start();
    let simulated = Network::Sim(SimOptions {
        auto_advance: true,
        ..SimOptions::default()
    });
    for (network, way) in [
        (Network::Shm, Way::Address),
        (simulated, Way::Transport),
        (of_messages(), Way::Messages),
    ] {
        ranks_on(&network, 2, |comm| {
            let window = comm.window::<u8>(1).expect("a window");
            let other = 1 - comm.rank();
            assert_eq!(window.reach_of(other).expect("reached"), way);
            assert_eq!(window.reach_of(comm.rank()).expect("reached"), Way::Address);
            window.free().expect("free");
        });
    }
}

#[test]
fn windows_are_of_one_group() {
    on_all(2, |comm| {
        let own = comm.split(Some(comm.rank() as u32), 0);
        let own = own.expect("split").expect("mine");
        let other = 1 - comm.rank();
        let pair = own
            .intercomm_create(0, Some((&comm, other)), 5)
            .expect("a pair");
        let kind = ErrorKind::Communicator;
        fails(pair.window::<u8>(1).map(drop), kind, &["hint"]);
        fails(pair.window_of(vec![1u8]).map(drop), kind, &["hint"]);
    });
}

/// Requests give their buffers back when the access is complete, waited for, awaited or dropped;
/// those that are under way when their epoch ends, or is flushed, are complete behind that.
#[test]
fn accesses_by_request() {
    const LEN: usize = 40_000;
    let element = Type::of::<u64>().commit().expect("a layout");
    on_each(2, |comm| {
        let window = comm.window::<u64>(LEN).expect("a window");
        let (rank, other) = (comm.rank(), 1 - comm.rank());
        let mine: Vec<u64> = (0..LEN as u64).map(|i| i * 3 + rank as u64).collect();
        let theirs: Vec<u64> = mine
            .iter()
            .map(|n| n - rank as u64 + other as u64)
            .collect();
        window
            .fenced(|epoch| {
                let first = epoch.rput(mine[..10].to_vec(), other, 0)?;
                // Borrowed, as it is free at the return.
                let rest = View::new(&mine, 10, &element, LEN - 10)?;
                drop(epoch.rput(rest, other, 10)?);
                assert_eq!(first.wait()?, mine[..10]);
                Ok(())
            })
            .expect("puts");
        assert!(window.to_vec().expect("a copy") == theirs);
        comm.barrier().expect("all have looked");
        let all = window.lock_all();
        let mut request = all.rget(vec![0u64; LEN], other, 0).expect("get");
        while !request.test() {}
        assert!(request.wait().expect("get") == mine);
        let awaited = comm.block_on(async {
            let (one, two) = (
                all.rget([0u64; 3], other, 7)?,
                all.rget([0u64; 2], other, 0)?,
            );
            let two = two.await?;
            one.await.map(|one| (one, two))
        });
        let (one, two) = awaited.expect("gets");
        assert_eq!((&one[..], &two[..]), (&mine[7..10], &mine[..2]));
        // Nobody waits for it.
        let mut buffer = vec![0u64; LEN];
        let view = ViewMut::new(&mut buffer, 0, &element, LEN).expect("inside");
        std::mem::forget(all.rget(view, other, 0).expect("get"));
        std::mem::forget(all.rput(5u64, other, 9).expect("put"));
        all.flush(other).expect("flush");
        let mut there = [0u64];
        all.get(&mut there, other, 9).expect("get");
        assert_eq!(there, [5]);
        let late = all.rget(vec![0u64; LEN], other, 0).expect("get");
        all.unlock().expect("unlock");
        assert!(late.wait().expect("get")[10..] == mine[10..]);
        let e = window.fenced(|epoch| epoch.rget(vec![0u64; 2], other, LEN - 1).map(drop));
        fails(e, ErrorKind::WindowRange, &["bytes"]);
        window.free().expect("free");
    });
}

#[test]
fn rank_0_keeps_records_where_all_map_each_other() {
    let _watchdog = Watchdog::start();
    let networks = [Network::Shm, Network::Virtual(1)];
    let apart = Network::within_host().pop().expect("the simulated network");
    assert!(matches!(apart, Network::Sim(_)));
    for (network, table) in networks.iter().map(|n| (n, true)).chain([(&apart, false)]) {
        ranks_on(network, 3, |comm| {
            let allocated = comm.window::<u64>(8).expect("a window");
            let dynamic = comm.dynamic_window::<u64>().expect("a window");
            let created = comm.window_of(vec![0u64; 8]).expect("a window");
            for window in [allocated, dynamic, created] {
                assert_eq!(window.raw().has_all_records(), !table);
                let known = |rank| window.len_of(rank).expect("a rank");
                assert_eq!([known(0), known(1), known(2)], [known(0); 3]);
                assert_eq!(window.raw().unit_of(2), Some(8));
                let error = window.raw().bytes_of(3).expect_err("no such rank");
                assert_eq!(error.kind(), ErrorKind::Rank);
                window.free().expect("free");
            }
        });
    }
}

/// Threads of a rank take the part's lock of updates after each other, as ranks do.
#[test]
fn threads_of_a_rank_update_the_same_elements() {
    const THREADS: usize = 3;
    const ROUNDS: u64 = 300;
    on_each(2, |comm| {
        let window = comm.window::<u64>(100).expect("a window");
        let all = window.lock_all();
        std::thread::scope(|s| {
            for _ in 0..THREADS {
                s.spawn(|| {
                    for _ in 0..ROUNDS {
                        all.accumulate(&[1u64; 100], 0, 0, Op::Sum).expect("sum");
                    }
                });
            }
        });
        all.unlock().expect("unlock");
        window.fence().expect("fence");
        if comm.rank() == 0 {
            let total = ROUNDS * (THREADS * comm.size()) as u64;
            assert_eq!(window.to_vec().expect("a copy"), vec![total; 100]);
        }
        window.free().expect("free");
    });
}
