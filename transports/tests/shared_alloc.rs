//! A program whose global allocator is Osier's.

use osier_transports::shm::{Job, JobOptions, SHARED_FROM_BYTES, SharedAlloc, ShmRank, serve};
use osier_transports::{Endpoint, RegionKind};
use std::alloc::{GlobalAlloc, Layout};

#[global_allocator]
static ALLOCATOR: SharedAlloc = SharedAlloc;

/// One test: a process joins once.
#[test]
fn large_allocations_lie_in_the_heap() {
    let before = vec![1u8; 1 << 20];
    let job = Job::create(&JobOptions {
        ranks: 2,
        limit_bytes: Some(256 << 20),
    });
    let job = job.expect("shared memory");
    let rank = ShmRank::join(&job, 0).expect("rank 0");
    serve(&rank);
    let second = ShmRank::join(&job, 1).expect("rank 1");
    serve(&second);
    let heap = rank.heap();
    let shared = |bytes: &[u8]| heap.owns(bytes.as_ptr());

    assert!(!shared(&before), "from before the join");
    let small = vec![2u8; SHARED_FROM_BYTES - 1];
    let mut large = vec![3u8; SHARED_FROM_BYTES];
    assert!(!shared(&small) && shared(&large));
    assert!(vec![0u8; 1 << 20].iter().all(|b| *b == 0));

    // Peers read it where it lies.
    let end = rank.endpoint(1, vec![0, 1]);
    // SAFETY: it stays until the key is dropped, and nobody uses that.
    let key = unsafe { end.export(large.as_ptr(), large.len()) }.expect("a key");
    assert_eq!(key.kind, RegionKind::Heap);
    drop(end);

    // Grows in place, moves, shrinks; and out of the heap and into it again.
    let next = vec![4u8; 100_000];
    for bytes in [20_000, 200_000, 5_000_000, 50_000, 100, 70_000] {
        large.resize(bytes, 3);
        large.shrink_to_fit();
        assert_eq!(shared(&large), bytes >= SHARED_FROM_BYTES, "{bytes}");
        assert!(large.iter().all(|b| *b == 3));
    }
    assert!(next.iter().all(|b| *b == 4));

    // Without room it is the system's.
    let over = vec![5u8; 300 << 20];
    assert!(!shared(&over) && over.iter().all(|b| *b == 5));
    let wide = Layout::from_size_align(100_000, 1 << 20).expect("a layout");
    // SAFETY: the layout is not empty.
    let at = unsafe { ALLOCATOR.alloc(wide) };
    assert!((at as usize).is_multiple_of(1 << 20) && heap.owns(at));
    // SAFETY: allocated so.
    unsafe { ALLOCATOR.dealloc(at, wide) };

    // Threads, each of which frees what another has allocated.
    let (send, receive) = std::sync::mpsc::channel::<Vec<u8>>();
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let send = send.clone();
            scope.spawn(move || {
                for i in 0..500usize {
                    send.send(vec![thread; 10_000 + i * 100])
                        .expect("a receiver");
                }
            });
        }
        drop(send);
        for block in receive {
            assert!(block.iter().all(|b| *b == block[0]));
        }
    });

    // What is alive outlives the rank, and comes from the system from then on.
    drop((rank, second));
    assert!(next.iter().all(|b| *b == 4));
    let after = vec![6u8; 1 << 20];
    assert!(!shared(&after));
    drop((next, large));

    let mut child = std::process::Command::new("true");
    assert!(child.status().expect("true").success());
}
