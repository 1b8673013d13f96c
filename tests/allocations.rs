//! Calls that must not allocate, counted by an allocator that counts per thread.

use osier::Op;
use osier::persistent::{Startable, start_all};
use osier::testing::{Network, ranks_on};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Bytes that are allocated and not freed.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

fn count_bytes(more: isize) {
    let _ = BYTES.try_with(|n| n.set(n.get() + more));
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        count_bytes(layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count_bytes(-(layout.size() as isize));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        count_bytes(bytes as isize - layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(ptr, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Many ranks are not run beside the other tests: a rank that waits for long says so, which
/// allocates.
static MANY: RwLock<()> = RwLock::new(());

/// Allocations of this thread in `f`.
fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

#[test]
fn starting_a_persistent_request_allocates_nothing() {
    let _beside = MANY.read().unwrap_or_else(PoisonError::into_inner);
    ranks_on(&Network::Shm, 2, |comm| {
        let peer = 1 - comm.rank();
        for n in [8, 1000, 40_000, 1_000_000] {
            let mut requests = [
                comm.recv_init(vec![0u8; n], peer, 0).expect("recv_init"),
                comm.recv_init(vec![0u8; n], peer, 1).expect("recv_init"),
                comm.send_init(vec![1u8; n], peer, 0).expect("send_init"),
                comm.ssend_init(vec![2u8; n], peer, 1).expect("ssend_init"),
            ];
            let mut counted = 0;
            for round in 0..60 {
                // Receives first on both sides: a message that nobody expects
                // is kept in memory of its own.
                let (receives, sends) = requests.split_at_mut(2);
                let mut during = allocations(|| start_all(receives).expect("start"));
                comm.barrier().expect("posted");
                during += allocations(|| start_all(sends).expect("start"));
                // The first rounds grow the tables.
                if round >= 30 {
                    counted += during;
                }
                for request in &mut requests {
                    request.wait().expect("wait");
                }
                comm.barrier().expect("received");
            }
            assert_eq!(counted, 0, "{n} bytes");
        }
    });
}

/// Of every size that goes at once, and on every path that such sizes take.
#[test]
fn an_expected_message_allocates_nothing() {
    let _beside = MANY.read().unwrap_or_else(PoisonError::into_inner);
    ranks_on(&Network::Shm, 2, |comm| {
        let peer = 1 - comm.rank();
        for n in [0usize, 1, 8, 16, 17, 96, 97, 1000, 2048, 4096] {
            let out = vec![7u8; n];
            let mut back = vec![0u8; n];
            let mut exchange = || {
                for _ in 0..500 {
                    if comm.rank() == 0 {
                        comm.send(&out, peer, 3).expect("send");
                        comm.recv(&mut back, peer, 3).expect("recv");
                    } else {
                        comm.recv(&mut back, peer, 3).expect("recv");
                        comm.send(&out, peer, 3).expect("send");
                    }
                }
            };
            // Rings grow, and queues get their size.
            exchange();
            assert_eq!(allocations(exchange), 0, "{n} bytes");
            assert_eq!(back, out);
        }
    });
}

/// Small ones, of the host's memory, once the first starts have grown the tables.
#[test]
fn starting_a_persistent_collective_allocates_nothing() {
    let _beside = MANY.read().unwrap_or_else(PoisonError::into_inner);
    ranks_on(&Network::Shm, 2, |comm| {
        let v = |n: usize| vec![1u64; n];
        let counts = ([1, 2], [0, 1]);
        let mut sum = comm.allreduce_init(v(4), v(4), Op::Sum).expect("init");
        let mut data = comm.bcast_init(v(100), 0).expect("init");
        let mut all = comm.allgather_init(v(8), v(16)).expect("init");
        let own = counts.0[comm.rank()];
        let mut listed = comm
            .allgatherv_init(v(own), v(3), &counts.0, &counts.1)
            .expect("init");
        let mut swap = comm.alltoall_init(v(2), v(2)).expect("init");
        let mut barrier = comm.barrier_init().expect("init");
        let mut counted = 0;
        for round in 0..60 {
            let during = allocations(|| {
                let requests: [&mut dyn Startable; 6] = [
                    &mut sum,
                    &mut data,
                    &mut all,
                    &mut listed,
                    &mut swap,
                    &mut barrier,
                ];
                for request in requests {
                    request.start().expect("start");
                }
            });
            // The first rounds grow the tables.
            if round >= 30 {
                counted += during;
            }
            sum.wait().expect("sum");
            data.wait().expect("data");
            all.wait().expect("all");
            listed.wait().expect("listed");
            swap.wait().expect("swap");
            barrier.wait().expect("barrier");
            comm.barrier().expect("together");
        }
        // A rank that lags may grow a table once more; who allocates at each start counts
        // thirty.
        assert!(counted < 6, "{counted} allocations in 30 rounds");
    });
}

/// Two rings of tasks over two ranks, with messages that lie in slots and messages that do not:
/// from the hundredth firing on nothing that the thread does allocates. A rank whose peer does not
/// run for long says what it waits for, which does; so the best of ten runs is looked at.
#[test]
fn firings_of_tasks_allocate_nothing() {
    let _beside = MANY.read().unwrap_or_else(PoisonError::into_inner);
    use osier::task::{Context, Description, Graph, Next, Placement, Space, Task, layout};
    use osier::task::{In, Out, TaskError};

    struct Link {
        elements: usize,
        message: Vec<u64>,
        out: Out<u64>,
        into: In<u64>,
        before: usize,
        most: Arc<AtomicUsize>,
    }

    impl Task for Link {
        fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
            self.message = vec![0; self.elements];
            cx.put(self.out, &self.message);
            Ok(Next::Wait)
        }

        fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
            let messages = cx.each(self.into).map(|m| m.elements[0]);
            self.message.fill(1 + messages.max().unwrap_or(0));
            if cx.firing() == 100 {
                self.before = ALLOCATIONS.get();
            }
            if cx.firing() == 1000 {
                let during = ALLOCATIONS.get() - self.before;
                self.most.fetch_max(during, Ordering::Relaxed);
                return Ok(Next::Done);
            }
            cx.put(self.out, &self.message);
            Ok(Next::Wait)
        }
    }

    ranks_on(&Network::Shm, 2, |comm| {
        for elements in [2, 100] {
            let mut ring = Description::new();
            let links = ring.family("link", &[6], Placement::Cyclic);
            let (out, into) = (ring.output(links, "out"), ring.input(links, "in"));
            let space = Space::new(&[6]).expect("a space");
            ring.begins(out);
            ring.connect_by(out, into, layout::neighbors(&space, true));
            let most = Arc::new(AtomicUsize::new(0));
            let of_run = most.clone();
            ring.tasks(links, move |[_]: [usize; 1]| Link {
                most: of_run.clone(),
                elements,
                message: Vec::new(),
                out,
                into,
                before: 0,
            });
            let graph = Graph::build(&comm, ring).expect("a graph");
            let runs = (0..10).map(|_| {
                graph.run().expect("no failure");
                most.swap(0, Ordering::Relaxed)
            });
            let runs: Vec<usize> = runs.collect();
            assert!(runs.contains(&0), "{runs:?}, {elements} elements");
        }
    });
}

/// Bytes that a rank has for each of several allocated windows that it has used.
fn bytes_of_a_window(ranks: usize) -> isize {
    const WINDOWS: isize = 8;
    let of_ranks = ranks_on(&Network::Shm, ranks, |comm| {
        let mut windows = Vec::with_capacity(2 * WINDOWS as usize);
        let mut before = 0;
        for n in 0..2 * WINDOWS {
            if n == WINDOWS {
                comm.barrier().expect("together");
                before = BYTES.get();
            }
            let window = comm.window::<u64>(8).expect("a window");
            window
                .fenced(|epoch| epoch.put(&7u64, (comm.rank() + 1) % ranks, 0))
                .expect("put");
            windows.push(window);
        }
        let during = BYTES.get() - before;
        for window in windows {
            window.free().expect("free");
        }
        during / WINDOWS
    });
    of_ranks.into_iter().min().unwrap_or(0)
}

/// What is known of all parts lies in memory that ranks share, or is learned when it is used, and
/// programs and lists of members are those of other communicators. What a barrier knows of each
/// rank of the segment is left.
#[test]
fn a_window_takes_little_for_each_rank() {
    let _beside = MANY.write().unwrap_or_else(PoisonError::into_inner);
    let [few, many] = [32, 96].map(bytes_of_a_window);
    assert!(few < 64 << 10, "{few} bytes among 32 ranks");
    let each = (many - few) / (96 - 32);
    println!("{few} bytes of a window among 32 ranks, {each} for each further one");
    assert!(each <= 200, "{each} bytes for each rank: {few} and {many}");
}
