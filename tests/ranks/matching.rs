//! Matching rules.

use crate::support::{Random, on_all, on_shm, simulated};
use osier::requests::wait_all;
use osier::{
    ANY_SOURCE, ANY_TAG, Communicator, Datatype, Order, Request, Source, TagSelector, Type, View,
};
use std::collections::VecDeque;

/// Eager in a line, eager in a ring, in fragments, announced.
const BYTES: [usize; 4] = [8, 600, 40_000, LARGEST];
const LARGEST: usize = 270_000;

/// A message that bears its number.
fn numbered(number: u64, bytes: usize) -> Vec<u8> {
    let mut message = vec![number as u8; bytes.max(8)];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

fn number(message: &[u8], bytes: usize) -> u64 {
    let mut head = [0; 8];
    head.copy_from_slice(&message[..8]);
    let number = u64::from_le_bytes(head);
    assert!(message[8..bytes].iter().all(|b| *b == number as u8));
    number
}

#[test]
fn messages_of_one_sender_do_not_overtake() {
    const MESSAGES: u64 = 120;
    on_all(3, |comm| {
        for unexpected in [false, true] {
            if comm.rank() < 2 {
                let sends = (0..MESSAGES).map(|i| {
                    let bytes = BYTES[Random::new(i).below(4)];
                    comm.isend(numbered(i, bytes), 2, 0).expect("isend")
                });
                let sends: Vec<_> = sends.collect();
                if unexpected {
                    comm.barrier().expect("barrier");
                }
                wait_all(sends).expect("sends");
            } else {
                if unexpected {
                    comm.barrier().expect("barrier");
                }
                let mut next = [0, 0];
                let mut buffer = vec![0; LARGEST];
                for _ in 0..2 * MESSAGES {
                    let status = comm.recv(&mut buffer, ANY_SOURCE, ANY_TAG).expect("recv");
                    let source = status.source().expect("a sender");
                    assert_eq!(number(&buffer, status.bytes()), next[source]);
                    next[source] += 1;
                }
                assert_eq!(next, [MESSAGES; 2]);
            }
            comm.barrier().expect("barrier");
        }
    });
}

/// A short message, and one behind it that is read while it is written, of one tag: the receiver
/// waits in memory that takes both, and its sender waits for the answer.
#[test]
fn a_short_message_is_not_passed_by_a_long_one() {
    const ROUNDS: usize = 20_000;
    // Of eight cells in the ring, so that each begins where one began a lap before; with gaps,
    // so that nobody copies it from where it lies.
    const ROWS: usize = 28 * 1024 / 64;
    on_shm(2, |comm| {
        let rows = Type::subarray(
            &[ROWS, 128],
            &[ROWS, 64],
            &[0, 0],
            Order::C,
            &u8::datatype(),
        );
        let rows = rows.and_then(|t| t.commit()).expect("type");
        let long = rows.size();
        let mut buffer = vec![7u8; 2 * long];
        for round in 0..ROUNDS {
            if comm.rank() == 0 {
                comm.send(&[round as u8], 1, 0).expect("short");
                let view = View::new(&buffer, 0, &rows, 1).expect("view");
                comm.send(&view, 1, 0).expect("long");
                let mut answer = [0u8];
                comm.recv(&mut answer, 1, 1).expect("answer");
                assert_eq!(answer, [round as u8]);
                continue;
            }
            let status = comm.recv(&mut buffer, 0, 0).expect("short");
            assert_eq!(status.bytes(), 1, "round {round}");
            let answer = [buffer[0]];
            let status = comm.recv(&mut buffer, 0, 0).expect("long");
            assert_eq!(status.bytes(), long, "round {round}");
            comm.send(&answer, 0, 1).expect("answer");
        }
    });
}

#[test]
fn the_earliest_posted_receive_that_matches_wins() {
    let selectors: [(Source, TagSelector); 4] = [
        (0.into(), 5.into()),
        (ANY_SOURCE, 5.into()),
        (0.into(), ANY_TAG),
        (ANY_SOURCE, ANY_TAG),
    ];
    on_all(2, |comm| {
        for (round, bytes) in (0..16u64).zip(BYTES.into_iter().cycle()) {
            let mut order = [0, 1, 2, 3];
            Random::new(round).shuffle(&mut order);
            if comm.rank() == 0 {
                comm.barrier().expect("posted");
                for i in 0..4 {
                    comm.send(&numbered(i, bytes), 1, 5).expect("send");
                }
            } else {
                let posted: Vec<_> = order
                    .iter()
                    .map(|i| {
                        let (source, tag) = selectors[*i];
                        comm.irecv(vec![0; bytes], source, tag).expect("irecv")
                    })
                    .collect();
                comm.barrier().expect("posted");
                for (i, request) in posted.into_iter().enumerate() {
                    let (got, status) = request.wait().expect("wait");
                    assert_eq!(number(&got, bytes), i as u64, "order {order:?}");
                    assert_eq!((status.source(), status.tag()), (Some(0), Some(5)));
                }
            }
        }
    });
}

#[test]
fn tags_choose_among_waiting_messages() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let sends = (0..40u32).map(|tag| {
                let bytes = BYTES[tag as usize % 4];
                comm.isend(numbered(tag.into(), bytes), 1, tag)
                    .expect("isend")
            });
            wait_all(sends.collect::<Vec<_>>()).expect("sends");
        } else {
            for tag in (0..40u32).rev() {
                let (got, _) = comm.recv_vec::<u8>(ANY_SOURCE, tag).expect("recv");
                assert_eq!(number(&got, got.len()), u64::from(tag));
            }
        }
    });
}

#[test]
fn any_source_receives_from_every_rank() {
    const EACH: usize = 50;
    on_all(5, |comm| {
        if comm.rank() != 0 {
            for i in 0..EACH {
                comm.send(&[comm.rank() as u64, i as u64], 0, i)
                    .expect("send");
            }
            return;
        }
        let mut seen = [0; 5];
        for _ in 0..4 * EACH {
            let mut got = [0u64; 2];
            let status = comm.recv(&mut got, ANY_SOURCE, ANY_TAG).expect("recv");
            let source = status.source().expect("a sender");
            assert_eq!(got, [source as u64, seen[source] as u64]);
            assert_eq!(status.tag(), Some(seen[source] as u32));
            seen[source] += 1;
        }
        assert_eq!(seen, [0, EACH, EACH, EACH, EACH]);
    });
}

#[test]
fn a_hundred_thousand_posted_receives() {
    on_all(2, |comm| {
        let n = if simulated(&comm) { 3_000 } else { 100_000 };
        let mut order: Vec<u32> = (0..n).collect();
        Random::new(1).shuffle(&mut order);
        if comm.rank() == 0 {
            comm.barrier().expect("posted");
            for tag in &order {
                comm.send(tag, 1, *tag).expect("send");
            }
        } else {
            let mut got = vec![u32::MAX; n as usize];
            comm.scope(|s| {
                for (tag, place) in got.iter_mut().enumerate() {
                    s.irecv(place, if tag % 3 == 0 { ANY_SOURCE } else { 0.into() }, tag)?;
                }
                comm.barrier()
            })
            .expect("all received");
            assert!(got.iter().enumerate().all(|(i, tag)| *tag == i as u32));
        }
    });
}

#[test]
fn tens_of_thousands_of_waiting_messages() {
    on_all(2, |comm| {
        let n = if simulated(&comm) { 3_000 } else { 30_000 };
        let mut order: Vec<u32> = (0..n).collect();
        Random::new(2).shuffle(&mut order);
        if comm.rank() == 0 {
            let sends: Vec<_> = (0..n)
                .map(|tag| comm.isend(vec![tag], 1, tag).expect("isend"))
                .collect();
            comm.barrier().expect("all announced");
            wait_all(sends).expect("sends");
        } else {
            comm.barrier().expect("all announced");
            for tag in order {
                let mut got = u32::MAX;
                comm.recv(&mut got, 0, tag).expect("recv");
                assert_eq!(got, tag);
            }
        }
    });
}

/// The rules, written as a search through lists.
#[derive(Default)]
struct Model {
    /// Receive number and tag (`None`: any).
    posted: VecDeque<(usize, Option<u32>)>,
    /// Message number and tag.
    waiting: VecDeque<(u64, u32)>,
    /// Message that each receive gets.
    got: Vec<Option<u64>>,
}

impl Model {
    fn post(&mut self, tag: Option<u32>) {
        let me = self.got.len();
        let at = self
            .waiting
            .iter()
            .position(|(_, t)| tag.is_none_or(|tag| tag == *t));
        self.got
            .push(at.and_then(|at| self.waiting.remove(at)).map(|(n, _)| n));
        if at.is_none() {
            self.posted.push_back((me, tag));
        }
    }

    fn send(&mut self, number: u64, tag: u32) {
        let at = self
            .posted
            .iter()
            .position(|(_, t)| t.is_none_or(|t| t == tag));
        match at.and_then(|at| self.posted.remove(at)) {
            Some((receive, _)) => self.got[receive] = Some(number),
            None => self.waiting.push_back((number, tag)),
        }
    }
}

#[test]
fn random_phases_match_as_in_the_model() {
    on_all(2, |comm| {
        for seed in 0..20 {
            phases(&comm, seed);
        }
    });
}

/// Phases of receives and of messages take turns; both ranks know the plan.
fn phases(comm: &Communicator, seed: u64) {
    let mut random = Random::new(seed);
    let mut model = Model::default();
    let mut sends = Vec::new();
    let mut receives: Vec<Request<Vec<u8>>> = Vec::new();
    let mut messages = 0;
    for _ in 0..8 {
        for _ in 0..random.below(12) {
            let tag = Some(random.below(4) as u32).filter(|t| *t < 3);
            let any_source = random.below(2) == 0;
            model.post(tag);
            if comm.rank() == 1 {
                let source = if any_source { ANY_SOURCE } else { 0.into() };
                let tag = tag.map_or(ANY_TAG, Into::into);
                let request = comm.irecv(vec![0; LARGEST], source, tag);
                receives.push(request.expect("irecv"));
            }
        }
        comm.barrier().expect("barrier");
        for _ in 0..random.below(12) {
            let (tag, bytes) = (random.below(3) as u32, BYTES[random.below(4)]);
            model.send(messages, tag);
            if comm.rank() == 0 {
                let request = comm.isend(numbered(messages, bytes), 1, tag);
                sends.push(request.expect("isend"));
            }
            messages += 1;
        }
        comm.barrier().expect("barrier");
    }
    for (i, (request, expected)) in receives.into_iter().zip(&model.got).enumerate() {
        match expected {
            Some(expected) => {
                let (got, status) = request.wait().expect("wait");
                let number = number(&got, status.bytes());
                assert_eq!(number, *expected, "receive {i}, seed {seed}");
            }
            None => drop(request.revoke()),
        }
    }
    if comm.rank() == 1 {
        for (expected, tag) in &model.waiting {
            let (got, _) = comm.recv_vec::<u8>(0, *tag).expect("what is left");
            assert_eq!(number(&got, got.len()), *expected, "seed {seed}");
        }
        assert_eq!(comm.iprobe(0, ANY_TAG).expect("iprobe"), None);
    }
    wait_all(sends).expect("sends");
    comm.barrier().expect("barrier");
}
