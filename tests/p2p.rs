//! Point-to-point over every transport, ranks as threads.

use osier::testing::{Network, ranks_on};
use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind};

fn on_all(n: usize, f: impl Fn(Communicator) + Sync) {
    for network in Network::all() {
        ranks_on(&network, n, &f);
    }
}

fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i * 31 + seed * 7 + (i >> 8)) as u8)
        .collect()
}

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
            comm.scope(|s| {
                let data: &Vec<Vec<u8>> = Box::leak(Box::new(
                    SIZES
                        .iter()
                        .enumerate()
                        .map(|(i, n)| pattern(*n, i))
                        .collect(),
                ));
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
        for n in [100usize, 10_000, 200_000, 2_000_000] {
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
