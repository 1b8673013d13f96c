//! An expected message of at most 4 KiB costs no allocation: counted by the
//! allocator of this test, per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count() {
        // Allocations while a thread ends are not of interest.
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(ptr, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(f: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

/// Rings have grown and queues have their size after so many exchanges.
const WARM_UP: usize = 500;
const ROUNDS: usize = 500;

#[test]
fn an_expected_message_allocates_nothing() {
    osier::testing::ranks(2, |comm| {
        let other = 1 - comm.rank();
        for bytes in [0usize, 1, 8, 16, 17, 96, 97, 1000, 2048, 4096] {
            let out = vec![7u8; bytes];
            let mut back = vec![0u8; bytes];
            let mut exchange = |rounds| {
                for _ in 0..rounds {
                    if comm.rank() == 0 {
                        comm.send(&out, other, 3).unwrap();
                        comm.recv(&mut back, other, 3).unwrap();
                    } else {
                        comm.recv(&mut back, other, 3).unwrap();
                        comm.send(&out, other, 3).unwrap();
                    }
                }
            };
            exchange(WARM_UP);
            let n = allocations(|| exchange(ROUNDS));
            assert_eq!(n, 0, "{bytes} bytes, {ROUNDS} round trips");
            assert_eq!(back, out);
        }
    });
}
