//! Messages of more than 4 GiB.

use crate::support::{fails, on_shm};
use osier::{ErrorKind, Layout, Type, View};

/// More than 32 bits can count.
const BYTES: usize = (4 << 30) + 17;

/// `BYTES` bytes in a buffer of 64 KiB and 17 bytes: sent is the same memory
/// over and over.
fn repeated() -> Layout {
    let u8s = Type::of::<u8>();
    let block = 64 << 10;
    let many = Type::hvector(BYTES / block, block, 0, &u8s).expect("blocks");
    let tail = (BYTES % block, block as isize, u8s);
    Type::structure(&[(1, 0, many), tail])
        .and_then(|t| t.commit())
        .expect("a type")
}

#[test]
fn status_has_sizes_beyond_32_bits() {
    on_shm(2, |comm| {
        if comm.rank() == 0 {
            let memory = vec![9u8; (64 << 10) + 17];
            let view = View::new(&memory, 0, &repeated(), 1).expect("view");
            assert_eq!(view.bytes(), BYTES);
            comm.send(&view, 1, 0).expect("send");
            comm.send(&[1u8], 1, 1).expect("the next message");
        } else {
            let status = comm.probe(0, 0).expect("probe");
            assert_eq!(status.bytes(), BYTES);
            assert_eq!(status.count::<u8>(), Some(BYTES));
            let mut small = vec![0u8; 100_000];
            let sizes = [BYTES.to_string(), small.len().to_string()];
            fails(
                comm.recv(&mut small, 0, 0),
                ErrorKind::Truncated,
                &[&sizes[0], &sizes[1]],
            );
            assert!(small.iter().all(|b| *b == 9));
            let mut next = [0u8];
            comm.recv(&mut next, 0, 1).expect("the next message");
        }
    });
}

fn available_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
        .map_or(0, |kib: usize| kib << 10)
}

#[test]
#[ignore = "needs --release and 12 GiB of memory"]
fn four_gib_arrive_whole() {
    let available = available_bytes();
    assert!(
        available >= 12 << 30,
        "4 GiB twice need 12 GiB, not {available} bytes"
    );
    on_shm(2, |comm| {
        let number = |i: usize| (i / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u64;
        let words = BYTES.div_ceil(8);
        // Once from plain memory, once in fragments.
        if comm.rank() == 0 {
            let data: Vec<u64> = (0..words).map(|i| number(8 * i)).collect();
            comm.send(&data, 1, 0).expect("send");
            drop(data);
            let memory = vec![9u8; (64 << 10) + 17];
            let view = View::new(&memory, 0, &repeated(), 1).expect("view");
            comm.send(&view, 1, 0).expect("send");
        } else {
            let mut got = vec![0u64; words];
            let status = comm.recv(&mut got, 0, 0).expect("recv");
            assert_eq!(status.count::<u64>(), Some(words));
            assert!(got.iter().enumerate().all(|(i, x)| *x == number(8 * i)));
            drop(got);
            let (got, status) = comm.recv_vec::<u8>(0, 0).expect("recv");
            assert_eq!((status.bytes(), got.len()), (BYTES, BYTES));
            assert!(got.iter().all(|b| *b == 9));
        }
    });
}
