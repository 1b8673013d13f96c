//! What must not allocate, counted by an allocator that counts per thread.

use osier::testing::{Network, ranks_on};
use osier::{Startable, start_all};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(ptr, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread in `f`.
fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

#[test]
fn starting_a_persistent_request_allocates_nothing() {
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

#[test]
fn short_messages_allocate_nothing() {
    ranks_on(&Network::Shm, 2, |comm| {
        let peer = 1 - comm.rank();
        let mut got = [0u64];
        let mut exchange = || {
            for i in 0..100u64 {
                if comm.rank() == 0 {
                    comm.send(&i, peer, 0).expect("send");
                    comm.recv(&mut got, peer, 0).expect("recv");
                } else {
                    comm.recv(&mut got, peer, 0).expect("recv");
                    comm.send(&i, peer, 0).expect("send");
                }
                assert_eq!(got, [i]);
            }
        };
        for _ in 0..10 {
            exchange();
        }
        assert_eq!(allocations(exchange), 0);
        let _: &dyn Startable = &comm.send_init(vec![0u8], peer, 9).expect("send_init");
    });
}
