//! Probes, with and without taking the message.

use crate::support::{fails, on_all, on_threads, pattern};
use osier::{ANY_SOURCE, ANY_TAG, ErrorKind};
use std::sync::Mutex;

const SIZES: [usize; 6] = [0, 10, 700, 50_000, 200_000, 2_000_000];

#[test]
fn probe_returns_status_and_leaves_the_message() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            if comm.rank() == 0 {
                comm.send(&pattern(n, i), 1, i).expect("send");
            } else {
                let status = comm.probe(ANY_SOURCE, ANY_TAG).expect("probe");
                assert_eq!((status.source(), status.tag()), (Some(0), Some(i as u32)));
                assert_eq!(status.bytes(), n);
                assert_eq!(comm.probe(0, i).expect("again"), status);
                assert_eq!(comm.iprobe(0, i).expect("iprobe"), Some(status));
                assert_eq!(comm.iprobe(1, ANY_TAG).expect("iprobe"), None);
                let mut got = vec![0; n];
                assert_eq!(comm.recv(&mut got, 0, i).expect("recv"), status);
                assert!(got == pattern(n, i));
            }
            comm.barrier().expect("barrier");
            assert_eq!(comm.iprobe(ANY_SOURCE, ANY_TAG).expect("iprobe"), None);
            comm.barrier().expect("barrier");
        }
    });
}

#[test]
fn iprobe_makes_progress() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            comm.barrier().expect("nothing yet");
            comm.send(&pattern(300_000, 1), 1, 0).expect("send");
        } else {
            assert_eq!(comm.iprobe(0, 0).expect("iprobe"), None);
            assert!(comm.improbe(0, 0).expect("improbe").is_none());
            comm.barrier().expect("nothing yet");
            while comm.iprobe(0, 0).expect("iprobe").is_none() {
                std::thread::yield_now();
            }
            let (got, _) = comm.recv_vec::<u8>(0, 0).expect("recv");
            assert!(got == pattern(300_000, 1));
        }
    });
}

#[test]
fn a_matched_probe_takes_the_message_out() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            if comm.rank() == 0 {
                let first = comm.issend(pattern(n, i), 1, 0).expect("first");
                comm.send(&[9u8], 1, 0).expect("second");
                first.wait().expect("first");
            } else {
                let first = comm.mprobe(0, 0).expect("mprobe");
                assert_eq!(first.status().bytes(), n);
                let second = loop {
                    if let Some(m) = comm.improbe(0, ANY_TAG).expect("improbe") {
                        break m;
                    }
                };
                assert_eq!(comm.iprobe(0, 0).expect("iprobe"), None);
                let mut got = [0u8];
                second.recv(&mut got).expect("second");
                assert_eq!(got, [9]);
                let (got, status) = first.recv_vec::<u8>().expect("first");
                assert_eq!((status.bytes(), status.source()), (n, Some(0)));
                assert!(got == pattern(n, i), "{n} bytes");
            }
        }
    });
}

#[test]
fn a_dropped_message_is_gone_and_its_sender_goes_on() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            if comm.rank() == 0 {
                comm.ssend(&pattern(n, i), 1, 0).expect("dropped");
                comm.send(&pattern(n, i + 1), 1, 0).expect("received");
            } else {
                drop(comm.mprobe(0, 0).expect("mprobe"));
                let mut got = vec![0; n];
                comm.recv(&mut got, 0, 0).expect("recv");
                assert!(got == pattern(n, i + 1), "{n} bytes");
            }
        }
    });
}

#[test]
fn a_message_that_fits_no_vector_is_an_error() {
    on_all(2, |comm| {
        for n in [13, 600_001] {
            if comm.rank() == 0 {
                comm.send(&pattern(n, 0), 1, 0).expect("send");
                comm.send(&pattern(n, 0), 1, 1).expect("send");
                comm.send(&[1u8], 1, 2).expect("send");
            } else {
                let bytes = n.to_string();
                fails(
                    comm.recv_vec::<f64>(0, 0),
                    ErrorKind::Datatype,
                    &[&bytes, "f64"],
                );
                let message = comm.mprobe(0, 1).expect("mprobe");
                let mut small = [0u8; 5];
                fails(
                    message.recv(&mut small),
                    ErrorKind::Truncated,
                    &[&bytes, "5"],
                );
                assert_eq!(small, pattern(n, 0)[..5]);
                let mut next = [0u8];
                comm.recv(&mut next, 0, 2).expect("the next message");
                assert_eq!(next, [1]);
            }
        }
    });
}

#[test]
fn threads_that_probe_share_the_messages() {
    const MESSAGES: usize = 200;
    on_threads(2, |comm| {
        if comm.rank() == 0 {
            for i in 0..MESSAGES {
                comm.send(&pattern(8 + 700 * (i % 60), i), 1, i)
                    .expect("send");
            }
            for _ in 0..3 {
                comm.send::<[u8]>(&[], 1, MESSAGES).expect("the end");
            }
            return;
        }
        let seen = Mutex::new(vec![false; MESSAGES]);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    loop {
                        let message = comm.mprobe(0, ANY_TAG).expect("mprobe");
                        let (got, status) = message.recv_vec::<u8>().expect("recv");
                        let i = status.tag().expect("a tag") as usize;
                        if i == MESSAGES {
                            return;
                        }
                        assert!(got == pattern(8 + 700 * (i % 60), i));
                        let before = std::mem::replace(&mut seen.lock().expect("lock")[i], true);
                        assert!(!before, "message {i} came twice");
                    }
                });
            }
        });
        assert!(seen.into_inner().expect("lock").into_iter().all(|s| s));
    });
}
