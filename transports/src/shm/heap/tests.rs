use super::super::JobOptions;
use super::*;
use std::io::{Read, Write};

fn heap(limit_bytes: Option<u64>) -> Arc<Heap> {
    let job = Job::create(&JobOptions {
        ranks: 2,
        limit_bytes,
    });
    Heap::new(job.expect("shared memory"), 1)
}

impl Heap {
    fn used_bytes(&self) -> u64 {
        let header = self.job.segment().header();
        header.used_bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Bytes of the job's heap file that have pages.
    fn file_bytes(&self) -> u64 {
        use std::os::fd::AsRawFd;
        // SAFETY: invariant 4 of `segment`: all zeros are a `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        let fd = self.job.segment().heap_fd.as_raw_fd();
        // SAFETY: invariant 4 of `segment`: the structure is ours.
        assert_eq!(unsafe { libc::fstat(fd, &raw mut stat) }, 0);
        stat.st_blocks as u64 * 512
    }
}

fn fill(at: *mut u8, bytes: usize, with: u8) {
    // SAFETY: invariant 1 of `heap`: just allocated, of this size.
    unsafe { std::ptr::write_bytes(at, with, bytes) };
}

fn all(at: *const u8, bytes: usize, value: u8) -> bool {
    // SAFETY: invariant 1 of `heap`: as in `fill`; nobody writes meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(at, bytes) };
    bytes.iter().all(|b| *b == value)
}

#[test]
fn allocations_do_not_overlap_and_come_zeroed() {
    let heap = heap(None);
    let mut held: Vec<(*mut u8, usize)> = Vec::new();
    for i in 0..400usize {
        let bytes = match i % 9 {
            0 => i * 9973 % (5 << 20) + 1,
            _ => i * 977 % 5000 + 1,
        };
        let align = 1 << (i % 17);
        let p = heap.alloc(bytes, align).expect("room");
        assert_eq!(p as usize % align, 0);
        assert!(all(p, bytes, 0), "{i}");
        assert!(heap.usable(p).is_some_and(|usable| usable >= bytes));
        fill(p, bytes, i as u8 | 1);
        for (q, n) in &held {
            assert!(p as usize + bytes <= *q as usize || *q as usize + n <= p as usize);
        }
        held.push((p, bytes));
        if i % 3 == 0 {
            let (q, n) = held.swap_remove(i % held.len());
            // SAFETY: invariant 1 of `heap`: it is given out.
            let first = unsafe { q.read() };
            assert!(all(q, n, first), "written over");
            assert!(heap.free(q));
        }
    }
    heap.lock().check();
    for (q, _) in held {
        assert!(heap.free(q));
        assert!(!heap.free(q), "twice");
    }
    assert!(heap.is_unused());
    heap.lock().check();
}

#[test]
fn a_limit_gives_an_error_that_names_it() {
    let heap = heap(Some(4 << 20));
    let e = heap.alloc(8 << 20, 1).expect_err("over the limit");
    assert_eq!(e.kind(), TransportErrorKind::OutOfMemory);
    assert!(e.to_string().contains("OSIER_SHM_LIMIT"), "{e}");
    heap.lock().check();
    let held = heap.alloc(1 << 20, 1).expect("still usable");
    assert!(heap.malloc(6 << 20, 16, false).is_none());
    assert!(!heap.resize(held, 6 << 20));
    assert_eq!(heap.usable(held), Some(1 << 20));
}

#[test]
fn freed_memory_goes_back_to_the_system() {
    let heap = heap(None);
    let before = heap.used_bytes();
    let large = heap.alloc(100 << 20, 1).expect("room");
    fill(large, 100 << 20, 1);
    assert!(heap.used_bytes() >= before + (100 << 20));
    assert!(heap.file_bytes() >= 100 << 20);
    let small: Vec<_> = (0..400)
        .map(|_| heap.alloc(200 << 10, 1).expect("room"))
        .collect();
    small.iter().for_each(|at| fill(*at, 200 << 10, 2));
    heap.free(large);
    assert!(heap.file_bytes() <= 90 << 20, "a large one, at once");
    for at in &small {
        heap.free(*at);
    }
    assert!(
        heap.file_bytes() <= KEPT_BYTES + GRAIN,
        "small ones, merged"
    );
    assert!(heap.used_bytes() <= before + KEPT_BYTES + GRAIN);
    heap.lock().check();
    // What was given back is zero again, and so is what was kept.
    let again = heap.alloc(100 << 20, 1).expect("room");
    assert!(all(again, 100 << 20, 0));
    let used = heap.job.clone();
    drop(heap);
    let header = used.segment().header();
    let left = header.used_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(left, before, "all of it, with the heap");
}

#[test]
fn pages_of_malloc_come_with_their_use() {
    let heap = heap(None);
    let at = heap.malloc(4 << 30, 16, true).expect("address space");
    assert!(heap.file_bytes() < 1 << 20 || promises_are_kept());
    // SAFETY: invariant 1 of `heap`: inside.
    let end = unsafe { at.add((4 << 30) - 1) };
    fill(end, 1, 7);
    assert!(heap.file_bytes() <= GRAIN || promises_are_kept());
    assert!(heap.free(at));
    heap.close();
    assert!(heap.malloc(1 << 20, 16, false).is_none(), "closed");
}

#[test]
fn memory_grows_and_shrinks_where_it_lies() {
    let heap = heap(None);
    let at = heap.malloc(100_000, 16, false).expect("room");
    fill(at, 100_000, 3);
    assert!(heap.resize(at, 9 << 20), "the window grows");
    assert!(all(at, 100_000, 3));
    fill(at, 9 << 20, 4);
    let next = heap.malloc(100_000, 16, false).expect("room");
    assert!(!heap.resize(at, 12 << 20), "something lies there");
    assert!(heap.resize(at, 1 << 20));
    assert!(all(at, 1 << 20, 4));
    let between = heap.malloc(4 << 20, 16, true).expect("room");
    assert!(between < next && all(between, 4 << 20, 0));
    assert!(!heap.resize(at, 64 << 30));
    assert!(!heap.resize(std::ptr::null(), 64));
    heap.lock().check();
}

#[test]
fn threads_allocate_at_the_same_time() {
    let heap = heap(None);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let heap = &heap;
            scope.spawn(move || {
                let mut held: Vec<(*mut u8, usize)> = Vec::new();
                for i in 0..2000usize {
                    let bytes = (i * 7919 + usize::from(thread) * 101) % 300_000 + 1;
                    let at = heap.malloc(bytes, 64, i % 2 == 0).expect("room");
                    assert!(i % 2 != 0 || all(at, bytes, 0));
                    fill(at, bytes, thread + 1);
                    held.push((at, bytes));
                    if held.len() > 20 {
                        let (at, bytes) = held.swap_remove(i % 20);
                        assert!(all(at, bytes, thread + 1));
                        assert!(heap.free(at));
                    }
                }
            });
        }
    });
    heap.lock().check();
}

/// Runs a function in a forked child, which says by its exit code how it went. It must not
/// use anything that another thread of the test may have locked.
fn in_child(f: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: invariant 4 of `fork`: the child runs `f` and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!f());
        // SAFETY: invariant 4 of `fork`: ends the child without what the parent has registered.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0);
    pid
}

fn ended_well(pid: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: invariant 4 of `fork`: a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}

#[test]
fn a_forked_child_has_a_copy_of_its_own() {
    let heap = heap(None);
    let unused = self::heap(None);
    let small = heap.alloc(5000, 1).expect("room");
    let freed = heap.alloc(1 << 20, 1).expect("room");
    let sparse = heap.malloc(1 << 30, 4096, true).expect("room");
    let large = heap.alloc(20 << 20, 1).expect("room");
    heap.free(freed);
    fill(small, 5000, 1);
    fill(large, 20 << 20, 2);
    fill(sparse, 4096, 3);
    let pages = heap.file_bytes();
    let (mut written, mut writes) = std::io::pipe().expect("a pipe");
    let child = in_child(|| {
        // Until the parent has written.
        let told = written.read_exact(&mut [0u8]).is_ok();
        let kept = all(small, 5000, 1) && all(large, 20 << 20, 2) && all(sparse, 4096, 3);
        fill(small, 5000, 8);
        fill(large, 20 << 20, 9);
        // SAFETY: invariant 1 of `heap`: inside.
        let rest = unsafe { sparse.add(4096) };
        let zero = all(rest, 10 << 20, 0);
        let none = heap.alloc(4096, 1).is_err()
            && heap.malloc(1 << 20, 16, false).is_none()
            && unused.alloc(4096, 1).is_err();
        let shrinks = heap.resize(large, 1 << 20) && !heap.resize(large, 40 << 20);
        let grandchild = in_child(|| all(small, 5000, 8) && heap.free(small));
        let copies = ended_well(grandchild);
        let freed = heap.free(large) && heap.free(sparse) && heap.free(small);
        told && kept && zero && none && shrinks && copies && freed
    });
    for (at, bytes) in [(small, 5000), (large, 20 << 20), (sparse, 4096)] {
        fill(at, bytes, 5);
    }
    writes.write_all(&[1]).expect("a child that reads");
    assert!(ended_well(child));
    for (at, bytes) in [(small, 5000), (large, 20 << 20), (sparse, 4096)] {
        assert!(all(at, bytes, 5), "the child wrote its own");
    }
    assert!(heap.file_bytes() <= pages + GRAIN, "no page for the copy");
    assert!(heap.free(large));
    heap.lock().check();
}

#[test]
#[ignore = "a measurement"]
fn time_of_malloc() {
    let heap = heap(None);
    let _held: Vec<_> = (0..1000)
        .map(|i| heap.malloc(20_000 + i * 64, 16, false))
        .collect();
    for bytes in [20_000, 140_000, 980_000, 8 << 20] {
        let mut best = f64::INFINITY;
        for _ in 0..50 {
            let start = std::time::Instant::now();
            for _ in 0..2000 {
                let at = heap.malloc(bytes, 16, false).expect("room");
                heap.free(at);
            }
            best = best.min(start.elapsed().as_nanos() as f64 / 2000.0);
        }
        println!("{bytes} bytes: {best:.0} ns");
    }
    let start = std::time::Instant::now();
    for _ in 0..100_000 {
        std::hint::black_box(mapping::limit(libc::RLIMIT_DATA));
    }
    println!("limit: {} ns", start.elapsed().as_nanos() / 100_000);
}
