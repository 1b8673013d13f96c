//! Messages of every size, in every mode.

use crate::support::{on_all, pattern};
use osier::{ANY_SOURCE, ANY_TAG, ErrorKind, PROC_NULL, Source};

const SIZES: &[usize] = &[
    0,
    1,
    8,
    47,
    48,
    49,
    100,
    511,
    512,
    513,
    2047,
    2048,
    2049,
    4096,
    10_000,
    16_384,
    32_768,
    65_535,
    65_536,
    100_000,
    131_072,
    200_000,
    300_000,
    1 << 20,
    3_000_001,
];

#[test]
fn every_size_arrives_whole() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            if comm.rank() == 0 {
                comm.send(&pattern(n, i), 1, i as u32).expect("send");
                let mut back = vec![0; n];
                let status = comm.recv(&mut back, 1, i as u32).expect("recv");
                assert_eq!(status.bytes(), n);
                assert_eq!(back, pattern(n, i + 1));
            } else {
                let mut got = vec![0; n];
                let status = comm.recv(&mut got, 0, i as u32).expect("recv");
                assert_eq!((status.source(), status.tag()), (Some(0), Some(i as u32)));
                assert_eq!(status.count::<u8>(), Some(n));
                assert!(got == pattern(n, i), "{n} bytes");
                comm.ssend(&pattern(n, i + 1), 0, i as u32).expect("ssend");
            }
        }
    });
}

#[test]
fn unexpected_messages_of_every_size_wait() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let data: Vec<_> = (0..SIZES.len()).map(|i| pattern(SIZES[i], i)).collect();
            comm.scope(|s| {
                for (i, d) in data.iter().enumerate() {
                    s.isend(d, 1, i as u32)?;
                }
                Ok(())
            })
            .expect("all received");
        } else {
            for (i, &n) in SIZES.iter().enumerate().rev() {
                let (got, status) = comm.recv_vec::<u8>(ANY_SOURCE, i as u32).expect("recv");
                assert_eq!(status.bytes(), n);
                assert!(got == pattern(n, i), "{n} bytes");
            }
        }
    });
}

#[test]
fn truncation_names_both_sizes_and_loses_nothing_else() {
    on_all(2, |comm| {
        for n in [100usize, 10_000, 40_000, 200_000, 2_000_000] {
            if comm.rank() == 0 {
                comm.send(&pattern(n, 1), 1, 0).expect("send");
                comm.send(&[7u8], 1, 1).expect("send");
            } else {
                let mut small = vec![0; 60];
                let e = comm.recv(&mut small, 0, 0).expect_err("too long");
                assert_eq!(e.kind(), ErrorKind::Truncated);
                let text = e.to_string();
                assert!(
                    text.contains(&n.to_string()) && text.contains("60"),
                    "{text}"
                );
                assert_eq!(small, pattern(n, 1)[..60]);
                let mut next = [0u8];
                comm.recv(&mut next, 0, 1).expect("the next message");
                assert_eq!(next, [7]);
            }
        }
    });
}

/// Messages that are read by parts, by every kind of receive, many in a row.
#[test]
fn messages_in_parts_meet_every_receive() {
    use osier::{Datatype, Order, Type, View, ViewMut};
    const ROUNDS: usize = 60;
    let length = |round: usize| 16_385 + (round * 7919) % 49_152;
    on_all(2, |comm| {
        for round in 0..ROUNDS {
            let (n, tag) = (length(round), round as u32);
            if comm.rank() == 0 {
                comm.send(&pattern(n, round), 1, tag).expect("send");
                continue;
            }
            let mut got = vec![0u8; n + round % 2];
            let status = match round % 4 {
                0 => comm.recv(&mut got, 0, tag).expect("recv"),
                1 => comm.recv(&mut got, ANY_SOURCE, ANY_TAG).expect("recv"),
                2 => {
                    let request = comm.irecv(got, 0, tag).expect("irecv");
                    let (whole, status) = request.wait().expect("wait");
                    got = whole;
                    status
                }
                _ => {
                    let found = comm.probe(0, tag).expect("probe");
                    assert_eq!(found.bytes(), n);
                    comm.recv(&mut got, 0, tag).expect("recv")
                }
            };
            assert_eq!(status.bytes(), n);
            assert!(got[..n] == pattern(n, round), "round {round}, {n} bytes");
        }
        // Every second byte of one is every third of the other.
        let n = 30_001;
        let every = |step: usize| {
            let t = Type::subarray(&[n, step], &[n, 1], &[0, 0], Order::C, &u8::datatype())?;
            t.commit()
        };
        let whole = pattern(3 * n, 5);
        if comm.rank() == 0 {
            let thirds = every(3).expect("type");
            let view = View::new(&whole, 0, &thirds, 1).expect("view");
            comm.send(&view, 1, 0).expect("send");
        } else {
            let (halves, mut got) = (every(2).expect("type"), vec![0u8; 2 * n]);
            let mut view = ViewMut::new(&mut got, 0, &halves, 1).expect("view");
            comm.recv(&mut view, 0, 0).expect("recv");
            let expected = |i: usize| {
                if i.is_multiple_of(2) {
                    whole[i / 2 * 3]
                } else {
                    0
                }
            };
            assert!(got.iter().enumerate().all(|(i, byte)| *byte == expected(i)));
        }
    });
}

#[test]
fn self_messages_work_in_every_mode() {
    on_all(1, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            let data = pattern(n, i);
            let mut got = vec![0; n];
            comm.sendrecv(&data, 0, 3, &mut got, 0, ANY_TAG)
                .expect("sendrecv");
            assert!(got == data);
        }
    });
}

#[test]
fn many_ranks_exchange() {
    on_all(5, |comm| {
        let (me, n) = (comm.rank(), comm.size());
        for round in 0..20usize {
            let mut got = vec![vec![0u64; 100]; n];
            let mine: Vec<Vec<u64>> = (0..n)
                .map(|to| vec![(me * 100 + to + round) as u64; 100])
                .collect();
            comm.scope(|s| {
                for (from, g) in got.iter_mut().enumerate() {
                    s.irecv(g, from, round)?;
                }
                for (to, m) in mine.iter().enumerate() {
                    s.isend(m, to, round)?;
                }
                Ok(())
            })
            .expect("exchange");
            for (from, g) in got.iter().enumerate() {
                assert_eq!(*g, vec![(from * 100 + me + round) as u64; 100]);
            }
        }
        comm.barrier().expect("barrier");
    });
}

#[test]
fn heap_memory_arrives_whole() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            let mut buffer = comm.alloc::<u8>(n).expect("memory");
            if comm.rank() == 0 {
                buffer.copy_from_slice(&pattern(n, i));
                comm.send(&buffer, 1, 0).expect("from the heap");
                comm.recv(&mut buffer, 1, 0).expect("into the heap");
                assert!(*buffer == *pattern(n, i + 1), "{n} bytes");
            } else {
                let mut plain = vec![0; n];
                comm.recv(&mut plain, 0, 0).expect("from the heap");
                assert!(plain == pattern(n, i), "{n} bytes");
                buffer.copy_from_slice(&pattern(n, i + 1));
                comm.ssend(&buffer, 0, 0).expect("heap to heap");
            }
        }
    });
}

#[test]
fn proc_null_takes_and_gives_nothing() {
    on_all(2, |comm| {
        let mut buffer = [1u32, 2];
        comm.send(&buffer, PROC_NULL, 0).expect("send");
        comm.ssend(&buffer, None, 0).expect("ssend");
        let status = comm.recv(&mut buffer, PROC_NULL, 3).expect("recv");
        assert_eq!((status.source(), status.tag()), (None, None));
        assert_eq!(status.count::<u32>(), Some(0));
        let nobody = Source::from(PROC_NULL);
        assert_eq!(comm.probe(nobody, ANY_TAG).expect("probe"), status);
        assert_eq!(comm.iprobe(nobody, 0).expect("iprobe"), Some(status));
        let message = comm.mprobe(nobody, 0).expect("mprobe");
        assert_eq!(message.recv(&mut buffer).expect("message"), status);
        let (empty, _) = comm.recv_vec::<u64>(nobody, 0).expect("recv_vec");
        assert!(empty.is_empty());
        comm.sendrecv(&[5u8], None, 0, &mut buffer, None, 0)
            .expect("sendrecv");
        let request = comm.isend(vec![1u8], PROC_NULL, 0).expect("isend");
        assert_eq!(request.wait().expect("wait").0, [1]);
        let mut request = comm.irecv(vec![1u8], PROC_NULL, 0).expect("irecv");
        assert!(request.test());
        assert_eq!(request.wait().expect("wait"), (vec![1], status));
        comm.scope(|s| {
            s.isend(&[1u8], PROC_NULL, 0)?.wait()?;
            assert_eq!(s.irecv(&mut buffer, None, 0)?.wait()?, status);
            Ok(())
        })
        .expect("scope");
        assert_eq!(buffer, [1, 2]);
        // Half of a shift at the edge: only one side is nobody.
        let me = comm.rank();
        let (dest, source) = [(Some(1), None), (None, Some(0))][me];
        let status = comm
            .sendrecv(&[7u32], dest, 0, &mut buffer[..1], source, 0)
            .expect("sendrecv at the edge");
        assert_eq!(status.source(), source);
        assert_eq!(buffer[0], [1, 7][me]);
    });
}

#[test]
fn empty_message_is_received() {
    on_all(2, |comm| {
        let mut nothing: [f64; 0] = [];
        for i in 0..50u32 {
            if comm.rank() == 0 {
                comm.send(&nothing, 1, i).expect("send");
                comm.ssend(&nothing, 1, i).expect("ssend");
            } else {
                let status = comm.recv(&mut nothing, ANY_SOURCE, ANY_TAG).expect("recv");
                assert_eq!((status.bytes(), status.tag()), (0, Some(i)));
                let (v, _) = comm.recv_vec::<f64>(0, i).expect("recv_vec");
                assert!(v.is_empty());
            }
        }
    });
}

#[test]
fn neighbors_shift_in_a_ring() {
    on_all(4, |comm| {
        let (me, n) = (comm.rank(), comm.size());
        for (i, &bytes) in SIZES.iter().enumerate() {
            let mut got = vec![0; bytes];
            let (right, left) = ((me + 1) % n, (me + n - 1) % n);
            let status = comm
                .sendrecv(&pattern(bytes, me + i), right, me, &mut got, left, ANY_TAG)
                .expect("sendrecv");
            assert_eq!(status.tag(), Some(left as u32));
            assert!(got == pattern(bytes, left + i), "{bytes} bytes");
        }
    });
}

/// The first part of a message is there when its receive comes: the receive is posted for it, and
/// the rest goes to the same memory. Of any kind of receive, and beside messages of other tags.
#[test]
fn messages_of_which_a_part_is_there_are_received() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for network in osier::testing::Network::all() {
        let sent = AtomicUsize::new(0);
        osier::testing::ranks_on(&network, 2, |comm| {
            let sizes = [16 << 10, (16 << 10) + 1, 20_000, 32 << 10, 100_000];
            for (round, bytes) in sizes.into_iter().cycle().take(60).enumerate() {
                let data = crate::support::pattern(bytes, round);
                if comm.rank() == 0 {
                    let request = comm.isend(data, 1, 7).expect("it leaves");
                    sent.store(round + 1, Ordering::SeqCst);
                    request.wait().expect("sent");
                    continue;
                }
                while sent.load(Ordering::SeqCst) <= round {
                    std::thread::yield_now();
                }
                let mut got = vec![0u8; bytes + round % 3];
                let status = match round / sizes.len() % 4 {
                    0 => comm.recv(&mut got, 0, 7),
                    1 => comm.recv(&mut got, osier::ANY_SOURCE, 7),
                    2 => comm.recv(&mut got, 0, osier::ANY_TAG),
                    _ => comm.scope(|s| s.irecv(&mut got, 0, 7)?.wait()),
                };
                let status = status.expect("received");
                assert_eq!((status.source(), status.bytes()), (Some(0), bytes));
                assert!(got[..bytes] == data, "{bytes} bytes, round {round}");
            }
        });
    }
}
