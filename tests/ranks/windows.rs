//! Windows of receives that are posted before their sender may go, beside a naive twin.

use crate::support::{Random, on_all};
use osier::requests::wait_all;
use osier::{ANY_TAG, Communicator, ErrorKind, Request, TagSelector};

/// In a line, in cells, in a ring, in parts, announced.
const BYTES: [usize; 6] = [8, 8, 64, 600, 20_000, 70_000];
const LARGEST: usize = 70_000;
const GO: u32 = 9;
const ROUNDS: u64 = 60;

#[derive(Clone, Copy, Debug)]
struct Receive {
    /// `None`: any.
    tag: Option<u32>,
    room: usize,
    cancelled: bool,
    /// The message that it gets.
    message: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    tag: u32,
    bytes: usize,
    /// A receive gets it.
    expected: bool,
}

/// What both ranks do in a round, and by the naive twin what comes of it.
fn round(seed: u64) -> (Vec<Receive>, Vec<Message>) {
    let mut random = Random::new(seed);
    let n = 1 + random.below(150);
    let mixed = seed % 3 == 1;
    let mut receives: Vec<Receive> = (0..n)
        .map(|at| Receive {
            tag: match random.below(12) {
                0 if mixed => None,
                1 if mixed => Some(2),
                _ if seed % 3 == 2 && at > n / 2 => Some(2),
                _ => Some(1),
            },
            room: [8, LARGEST, LARGEST, LARGEST][random.below(4)],
            cancelled: seed % 4 == 3 && random.below(6) == 0,
            message: None,
        })
        .collect();
    let lengths = if seed.is_multiple_of(2) {
        2
    } else {
        BYTES.len()
    };
    let mut messages: Vec<Message> = receives
        .iter()
        .filter(|receive| !receive.cancelled)
        .map(|receive| Message {
            tag: receive.tag.unwrap_or(1),
            bytes: BYTES[random.below(lengths)],
            expected: false,
        })
        .collect();
    for (at, message) in messages.iter_mut().enumerate() {
        let takes = |receive: &&mut Receive| {
            let free = receive.message.is_none() && !receive.cancelled;
            free && receive.tag.is_none_or(|tag| tag == message.tag)
        };
        if let Some(receive) = receives.iter_mut().find(takes) {
            receive.message = Some(at);
            message.expected = true;
        }
    }
    (receives, messages)
}

fn mark(at: usize) -> u8 {
    (at % 251) as u8
}

fn send(comm: &Communicator, messages: &[Message]) {
    comm.recv(&mut [0u8], 1, GO).expect("go");
    let sends = messages.iter().enumerate().map(|(at, message)| {
        let body = vec![mark(at); message.bytes];
        comm.isend(body, 1, message.tag).expect("isend")
    });
    let sends: Vec<_> = sends.collect();
    wait_all(sends).expect("sends");
}

fn receive(comm: &Communicator, seed: u64, receives: &[Receive], messages: &[Message]) {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut requests: Vec<(usize, Request<Vec<u8>>)> = Vec::new();
    for (at, receive) in receives.iter().enumerate() {
        let tag = receive.tag.map_or(ANY_TAG, TagSelector::from);
        let request = comm.irecv(vec![0; receive.room], 0, tag).expect("irecv");
        requests.push((at, request));
    }
    requests.retain_mut(|(at, request)| {
        let cancels = receives[*at].cancelled;
        assert!(!cancels || request.cancel(), "no message has come");
        !cancels
    });
    comm.send(&[0u8], 0, GO).expect("go");
    if !seed.is_multiple_of(5) {
        random.shuffle(&mut requests);
    }
    for (at, mut request) in requests {
        let Receive { room, message, .. } = receives[at];
        let Some(number) = message else {
            assert!(request.cancel(), "no message is for it");
            continue;
        };
        match random.below(8) {
            0 => while !request.test() {},
            1 => while request.status().is_none() {},
            _ => {}
        }
        let bytes = messages[number].bytes;
        match request.wait() {
            Ok((body, status)) => {
                assert!(bytes <= room);
                assert_eq!(
                    (status.bytes(), status.tag()),
                    (bytes, Some(messages[number].tag))
                );
                assert_eq!(status.source(), Some(0));
                assert!(body[..bytes].iter().all(|b| *b == mark(number)));
            }
            Err(e) => assert!(bytes > room && e.kind() == ErrorKind::Truncated, "{e}"),
        }
    }
    let mut buffer = vec![0; LARGEST];
    for (number, message) in messages.iter().enumerate().filter(|(_, m)| !m.expected) {
        let status = comm.recv(&mut buffer, 0, message.tag).expect("recv");
        assert_eq!(status.bytes(), message.bytes);
        assert!(buffer[..message.bytes].iter().all(|b| *b == mark(number)));
    }
}

#[test]
fn windows_meet_their_messages_in_order() {
    on_all(2, |comm| {
        for seed in 0..ROUNDS {
            let (receives, messages) = round(seed);
            match comm.rank() {
                0 => send(&comm, &messages),
                _ => receive(&comm, seed, &receives, &messages),
            }
        }
    });
}

#[test]
fn persistent_windows_begin_again() {
    const WINDOW: usize = 70;
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        for bytes in BYTES {
            let mut requests: Vec<_> = (0..WINDOW)
                .map(|_| match comm.rank() {
                    0 => comm.send_init(vec![0u8; bytes], peer, 1).expect("send"),
                    _ => comm.recv_init(vec![0u8; bytes], peer, 1).expect("recv"),
                })
                .collect();
            for round in 0..5 {
                if comm.rank() == 0 {
                    for (at, request) in requests.iter_mut().enumerate() {
                        let buffer = request.buffer_mut().expect("inactive");
                        buffer.fill(mark(at + round));
                    }
                    comm.recv(&mut [0u8], peer, GO).expect("go");
                }
                osier::persistent::start_all(&mut requests).expect("started");
                if comm.rank() == 1 {
                    comm.send(&[0u8], peer, GO).expect("go");
                }
                for (at, request) in requests.iter_mut().enumerate() {
                    let status = request.wait().expect("over");
                    if comm.rank() == 1 {
                        assert_eq!(status.bytes(), bytes);
                        let buffer = request.buffer().expect("inactive");
                        assert!(buffer.iter().all(|b| *b == mark(at + round)));
                    }
                }
            }
            // Another buffer takes the place of one that was received into.
            if let (1, Some(request)) = (comm.rank(), requests.first_mut()) {
                *request.buffer_mut().expect("inactive") = vec![9; bytes];
                request.start().expect("started");
                assert!(request.cancel());
                assert!(request.wait().expect("cancelled").cancelled());
                let buffer = request.buffer().expect("inactive");
                assert_eq!(*buffer, vec![9; bytes]);
            }
        }
    });
}

/// A receive of a window that nobody ends leaves room for others.
#[test]
fn a_window_is_dropped_scoped_and_revoked() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        if comm.rank() == 0 {
            for _ in 0..3 {
                comm.recv(&mut [0u8], peer, GO).expect("go");
                for n in 0..40u8 {
                    comm.send(&[n], peer, 1).expect("send");
                }
            }
            return;
        }
        // Dropped before their messages: these go to later receives.
        drop(
            (0..40)
                .map(|_| comm.irecv(vec![0u8], peer, 1))
                .collect::<Vec<_>>(),
        );
        let mut bytes = [0u8; 40];
        comm.scope(|s| {
            for byte in &mut bytes {
                s.irecv(byte, peer, 1)?;
            }
            comm.send(&[0u8], peer, GO)
        })
        .expect("received");
        assert!((0..40).eq(bytes));
        // A scope that fails takes back what it has posted.
        let failed = comm.scope(|s| {
            for byte in &mut bytes {
                s.irecv(byte, peer, 1)?;
            }
            comm.recv(&mut [0u8], osier::PROC_NULL, -5).map(drop)
        });
        assert_eq!(failed.expect_err("no such tag").kind(), ErrorKind::Tag);
        comm.send(&[0u8], peer, GO).expect("go");
        for n in 0..40u8 {
            let mut got = [0u8];
            comm.recv(&mut got, peer, 1).expect("recv");
            assert_eq!(got, [n]);
        }
        // Those that are over are dropped, with the message in them.
        let requests: Vec<_> = (0..20).map(|_| comm.irecv(vec![0u8], peer, 1)).collect();
        comm.send(&[0u8], peer, GO).expect("go");
        let mut requests: Vec<_> = requests.into_iter().map(|r| r.expect("irecv")).collect();
        let last = requests.pop().expect("twenty");
        assert_eq!(last.wait().expect("received").0, [19]);
        drop(requests);
        for n in 20..40u8 {
            let (got, _) = comm
                .irecv(vec![0u8], peer, 1)
                .expect("irecv")
                .wait()
                .expect("over");
            assert_eq!(got, [n]);
        }
    });
}
