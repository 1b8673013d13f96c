//! Ranks of one process over the loopback interface: the same code as between hosts.

use super::hello::{Dialer, Next, Pair, Purpose};
use super::*;
use crate::contract::{AmHead, Endpoint, OneSided, PostError, RegionKey, TransportErrorKind};
use crate::death::Death;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const JOB: u64 = 77;
/// Hang guard.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(rank: u32, key: &JobKey) -> NetOptions {
    NetOptions {
        setting: "127.0.0.0/8".parse().expect("a setting"),
        ..NetOptions::new(rank, JOB, key.clone())
    }
}

/// Ranks that know where the others are.
fn ranks(n: u32) -> (JobKey, Vec<NetRank>) {
    ranks_with(n, "127.0.0.0/8")
}

fn ranks_with(n: u32, setting: &str) -> (JobKey, Vec<NetRank>) {
    let key = JobKey::random().expect("a key");
    let listen = |rank| {
        let options = NetOptions {
            setting: setting.parse().expect("a setting"),
            ..options(rank, &key)
        };
        NetRank::listen(options, "here").expect("a rank")
    };
    let ranks: Vec<NetRank> = (0..n).map(listen).collect();
    let card = |rank: &NetRank| {
        let mut card = rank.card().clone();
        // Several that work, and some that do not.
        let port = card.addresses[0].port();
        card.addresses
            .push(SocketAddr::from(([127, 0, 0, 2], port)));
        card.addresses.push(SocketAddr::from(([127, 0, 0, 3], 1)));
        card.addresses
            .push(SocketAddr::from(([127, 0, 0, 4], port)));
        card
    };
    let cards: Vec<Card> = ranks.iter().map(card).collect();
    let cards = Arc::new(cards);
    for rank in &ranks {
        rank.look_up_in(cards.clone());
    }
    (key, ranks)
}

fn head(arg: u64) -> AmHead {
    AmHead {
        kind: 3,
        aux: 0x1234,
        arg,
    }
}

/// Calls until it has something.
fn until<R>(what: &str, mut f: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = f() {
            return result;
        }
        assert!(Instant::now() < end, "{what}: nothing has come");
        std::thread::yield_now();
    }
}

/// A message that has come: who sent it, its argument, its bytes.
fn poll(end: &mut NetEndpoint) -> Option<(u32, u64, Vec<u8>)> {
    let message = end.poll()?;
    // SAFETY: it is not released yet.
    let bytes = unsafe { message.payload.to_vec() };
    assert_eq!((message.head.kind, message.head.aux), (3, 0x1234));
    end.release(&message);
    Some((message.peer, message.head.arg, bytes))
}

fn post(end: &mut NetEndpoint, peer: u32, arg: u64, bytes: &[u8]) {
    until("room", || match end.post(peer, head(arg), bytes) {
        Ok(()) => Some(()),
        Err(PostError::Full) => {
            assert!(end.poll().is_none(), "nothing is expected here");
            None
        }
        Err(PostError::Failed(e)) => panic!("{e}"),
    });
}

#[test]
fn messages_arrive_in_order() {
    let (_, ranks) = ranks(2);
    let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(9, [0, 1])).collect();
    let [a, b] = &mut ends[..] else {
        unreachable!()
    };
    for i in 0..2000u64 {
        let bytes = vec![i as u8; (i * 37 % 2000) as usize];
        post(a, 1, i, &bytes);
        if i % 3 == 0 {
            while let Some((peer, arg, _)) = poll(b) {
                assert_eq!(peer, 0);
                post(b, 0, arg, &[]);
            }
        }
        while let Some((peer, ..)) = poll(a) {
            assert_eq!(peer, 1);
        }
        if i == 0 {
            until("the first", || poll(b));
        }
    }
    assert_eq!(ranks[0].counts().connections, 1);
}

/// What a test of several channels does next.
#[derive(Clone, Debug)]
enum Act {
    Post {
        from: usize,
        to: usize,
        channel: usize,
        bytes: usize,
    },
    Poll {
        at: usize,
        channel: usize,
    },
    Get {
        at: usize,
        bytes: usize,
    },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let sizes = prop_oneof![4 => 0usize..200, 2 => 0usize..5000, 1 => Just(32 << 10)];
    let act = prop_oneof![
        5 => (0usize..3, 1usize..3, 0usize..3, sizes).prop_map(|(from, by, channel, bytes)| {
            Act::Post { from, to: (from + by) % 3, channel, bytes }
        }),
        5 => (0usize..3, 0usize..3).prop_map(|(at, channel)| Act::Poll { at, channel }),
        1 => (0usize..3, 1usize..600_000).prop_map(|(at, bytes)| Act::Get { at, bytes }),
    ];
    proptest::collection::vec(act, 1..200)
}

struct Asked {
    at: usize,
    number: u64,
    room: Vec<u8>,
    of: Vec<u8>,
    key: RegionKey,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Random messages and requests of three ranks on three channels, against queues.
    #[test]
    fn channels_and_requests_keep_apart(acts in acts()) {
        let (_, ranks) = ranks(3);
        let members: Arc<[u32]> = [0, 1, 2].into();
        let mut ends: Vec<Vec<NetEndpoint>> = (ranks.iter())
            .map(|rank| (0..3).map(|c| rank.endpoint(c, members.clone())).collect())
            .collect();
        // By receiver, channel and sender.
        let mut model = vec![vec![vec![VecDeque::<(u64, Vec<u8>)>::new(); 3]; 3]; 3];
        let mut asked: Vec<Asked> = Vec::new();
        let mut sent = 0;
        let took = |model: &mut Vec<Vec<Vec<VecDeque<_>>>>, at: usize, channel: usize, m| {
            let (peer, arg, bytes): (u32, u64, Vec<u8>) = m;
            let due = model[at][channel][peer as usize].pop_front();
            assert_eq!(due, Some((arg, bytes)));
        };
        for act in acts {
            match act {
                Act::Post { from, to, channel, bytes } => {
                    sent += 1;
                    let payload: Vec<u8> = (0..bytes).map(|i| (i as u64 + sent) as u8).collect();
                    match ends[from][channel].post(to as u32, head(sent), &payload) {
                        Ok(()) => model[to][channel][from].push_back((sent, payload)),
                        Err(PostError::Full) => {}
                        Err(PostError::Failed(e)) => prop_assert!(false, "{}", e),
                    }
                }
                Act::Poll { at, channel } => {
                    if let Some(m) = poll(&mut ends[at][channel]) {
                        took(&mut model, at, channel, m);
                    }
                }
                Act::Get { at, bytes } => {
                    let owner = (at + 1) % 3;
                    let of: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
                    // SAFETY: the region is withdrawn before its memory goes.
                    let key = unsafe { ends[owner][0].export(of.as_ptr(), bytes) }.expect("a key");
                    let mut room = vec![0u8; bytes];
                    // SAFETY: the room is kept until the request has ended.
                    let got = unsafe {
                        ends[at][0].get(owner as u32, &key, 0, room.as_mut_ptr(), bytes)
                    };
                    let Ok(OneSided::Pending(number)) = got else {
                        panic!("{got:?}");
                    };
                    asked.push(Asked { at, number, room, of, key });
                }
            }
        }
        until("the rest", || {
            for (at, of_rank) in ends.iter_mut().enumerate() {
                for (channel, end) in of_rank.iter_mut().enumerate() {
                    while let Some(m) = poll(end) {
                        took(&mut model, at, channel, m);
                    }
                }
                while let Some((number, result)) = of_rank[0].poll_completion() {
                    let one = asked.iter().position(|a| a.at == at && a.number == number);
                    let one = asked.swap_remove(one.expect("asked for"));
                    result.expect("it is there");
                    assert!(one.room == one.of);
                    let owner = (at + 1) % 3;
                    ranks[owner].state().withdraw(one.key.base);
                }
            }
            let empty = model.iter().flatten().flatten().all(VecDeque::is_empty);
            (empty && asked.is_empty()).then_some(())
        });
        for rank in &ranks {
            prop_assert_eq!(rank.counts().malformed, 0);
            prop_assert!(rank.counts().connections <= 2);
        }
    }
}

/// Two ranks that call each other at the same time have one connection.
#[test]
fn calls_that_cross_become_one() {
    for _ in 0..20 {
        let (_, ranks) = ranks(2);
        let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, [0, 1])).collect();
        std::thread::scope(|s| {
            for (me, end) in ends.iter_mut().enumerate() {
                s.spawn(move || {
                    post(end, 1 - me as u32, me as u64, b"hello");
                    let got = until("the other's", || poll(end));
                    assert_eq!(got, (1 - me as u32, 1 - me as u64, b"hello".to_vec()));
                });
            }
        });
        let counts: Vec<u64> = ranks.iter().map(|r| r.counts().connections).collect();
        assert_eq!(counts, [1, 1]);
    }
}

#[test]
fn messages_wait_for_their_channel_and_learn_of_its_end() {
    let (_, ranks) = ranks(2);
    let mut a = ranks[0].endpoint(5, [0, 1]);
    let mut other = ranks[1].endpoint(6, [1, 0]);
    post(&mut a, 1, 1, b"early");
    until("progress", || {
        assert!(other.poll().is_none());
        (ranks[1].counts().received_bytes > 0).then_some(())
    });
    let mut b = ranks[1].endpoint(5, [0, 1]);
    assert_eq!(poll(&mut b), Some((0, 1, b"early".to_vec())));
    drop(b);
    until("the end", || {
        assert!(a.poll().is_none());
        a.closed(1).then_some(())
    });
    let refused = a.post(1, head(2), b"late");
    assert!(
        matches!(refused, Err(PostError::Failed(e)) if e.kind() == TransportErrorKind::PeerClosed)
    );
}

/// A channel that nobody polls stops its sender, and no other.
#[test]
fn a_channel_without_credit_holds_up_no_other() {
    let (_, ranks) = ranks(2);
    let mut a: Vec<NetEndpoint> = (0..2).map(|c| ranks[0].endpoint(c, [0, 1])).collect();
    let mut b: Vec<NetEndpoint> = (0..2).map(|c| ranks[1].endpoint(c, [0, 1])).collect();
    let bytes = vec![1u8; 10_000];
    let mut n = 0;
    while a[0].post(1, head(n), &bytes).is_ok() {
        n += 1;
    }
    assert!((10..30).contains(&n), "{n}");
    for i in 0..1000 {
        post(&mut a[1], 1, i, &bytes);
        until("the other channel's", || {
            a[1].poll();
            poll(&mut b[1])
        });
    }
    for i in 0..n {
        assert_eq!(until("the first's", || poll(&mut b[0])).1, i);
    }
    until("credit", || {
        assert!(a[0].poll().is_none() && b[0].poll().is_none());
        a[0].post(1, head(n), &bytes).ok()
    });
}

/// Memory of a region is not read behind its withdrawal, whatever is under way.
#[test]
fn a_region_is_taken_back_while_it_is_read() {
    let (_, ranks) = ranks(2);
    let mut a = ranks[0].endpoint(1, [0, 1]);
    let mut b = ranks[1].endpoint(1, [0, 1]);
    let mut of = vec![5u8; 64 << 20];
    // SAFETY: it is withdrawn before its memory changes.
    let key = unsafe { a.export(of.as_ptr(), of.len()) }.expect("a key");
    let mut room = vec![0u8; of.len()];
    // SAFETY: the room is kept until the end.
    let got = unsafe { b.get(0, &key, 0, room.as_mut_ptr(), room.len()) };
    assert!(matches!(got, Ok(OneSided::Pending(_))));
    until("some of it", || {
        a.poll();
        b.poll();
        (ranks[1].counts().received_bytes > 1 << 20).then_some(())
    });
    a.unexport(&key);
    of.fill(6);
    let (_, result) = until("the answer", || {
        a.poll();
        b.poll();
        b.poll_completion()
    });
    let e = result.expect_err("it is gone");
    assert!(e.to_string().contains("rank 0"), "{e}");
    assert!(room.iter().all(|byte| *byte != 6));
    // The connection is sound.
    post(&mut a, 1, 1, b"go on");
    until("a message", || poll(&mut b));
}

/// Long messages come in pieces of whatever size the system has.
#[test]
fn long_messages_come_whole() {
    let (_, ranks) = ranks(2);
    let mut ends = ranks.iter().map(|r| r.endpoint(1, [0, 1]));
    let (mut a, mut b) = (ends.next().expect("an end"), ends.next().expect("an end"));
    std::thread::scope(|s| {
        s.spawn(move || {
            for i in 0..3000u64 {
                post(&mut a, 1, i, &vec![i as u8; 32 << 10]);
            }
            a.rank().finalize();
        });
        for i in 0..3000u64 {
            let (_, arg, bytes) = until("a message", || poll(&mut b));
            assert!(arg == i && bytes.len() == 32 << 10 && bytes.iter().all(|b| *b == i as u8));
        }
    });
    assert_eq!(ranks[1].counts().malformed, 0);
}

/// Both ends read each other's memory and send messages meanwhile.
#[test]
fn both_directions_at_once() {
    let (_, ranks) = ranks(2);
    let ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, [0, 1])).collect();
    std::thread::scope(|s| {
        for (me, mut end) in ends.into_iter().enumerate() {
            s.spawn(move || {
                let other = 1 - me as u32;
                let mut heard = 0u64;
                for round in 0..200u64 {
                    let of: Vec<u8> = (0..256 << 10)
                        .map(|i| (i as u64 * 3 + round) as u8)
                        .collect();
                    // SAFETY: the other says when it has read it.
                    let key =
                        unsafe { end.export_to(other, of.as_ptr().cast_mut(), of.len(), false) };
                    let key = key.expect("a key");
                    post(&mut end, other, round, &key.to_wire());
                    let mut room = vec![0u8; of.len()];
                    let mut asked = None;
                    let mut read = false;
                    let mut told = false;
                    until("a round", || {
                        if let Some((_, arg, bytes)) = poll(&mut end) {
                            heard += 1;
                            if bytes.is_empty() {
                                assert_eq!(arg, round);
                                told = true;
                            } else {
                                let key = RegionKey::from_wire(&bytes).expect("a key");
                                // SAFETY: the room is kept until the request has ended.
                                let got = unsafe {
                                    end.get(other, &key, 0, room.as_mut_ptr(), room.len())
                                };
                                let Ok(OneSided::Pending(number)) = got else {
                                    panic!("{got:?}");
                                };
                                asked = Some(number);
                            }
                        }
                        if let Some((number, result)) = end.poll_completion() {
                            assert_eq!(asked, Some(number));
                            result.expect("it is there");
                            assert!(room == of);
                            end.post(other, head(round), &[]).expect("room");
                            read = true;
                        }
                        (read && told).then_some(())
                    });
                    end.unexport(&key);
                }
                assert_eq!(heard, 400);
                // The other's last answer may be under way.
                end.rank().finalize();
            });
        }
    });
}

#[test]
fn requests_for_what_is_not_there_are_refused() {
    let (_, ranks) = ranks(3);
    let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, [0, 1, 2])).collect();
    let of = [1u8; 100];
    let mut room = [0u8; 200];
    // SAFETY: both live as long as the test.
    let key = unsafe { ends[0].export_to(1, of.as_ptr().cast_mut(), 100, false) }.expect("a key");
    let mut ask = |at: usize, key: &RegionKey, bytes: usize| {
        // SAFETY: the room is kept until the request has ended.
        let got = unsafe { ends[at].get(0, key, 0, room.as_mut_ptr(), bytes) };
        match got {
            Ok(OneSided::Pending(_)) => {
                until("an answer", || {
                    ends[0].poll();
                    ends[at].poll();
                    ends[at].poll_completion()
                })
                .1
            }
            Ok(OneSided::Done(_)) => Ok(0),
            Err(e) => Err(e),
        }
    };
    assert!(ask(1, &key, 100).is_ok());
    assert!(ask(2, &key, 100).is_err(), "it is for rank 1");
    let kinds = [
        ask(1, &key, 101),
        ask(1, &RegionKey { bytes: 200, ..key }, 150),
        ask(1, &RegionKey { base: 99, ..key }, 100),
        ask(1, &RegionKey { owner: 2, ..key }, 100),
    ]
    .map(|result| result.expect_err("refused").kind());
    use TransportErrorKind as T;
    assert_eq!(kinds, [T::Invalid, T::Invalid, T::Malformed, T::Malformed]);
}

#[test]
fn ends_of_peers_are_told_apart() {
    let (_, mut ranks) = ranks(3);
    let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, [0, 1, 2])).collect();
    for from in [1, 2] {
        post(&mut ends[from], 0, from as u64, b"last words");
    }
    // Rank 2 leaves, and rank 1 is gone without a word.
    let mut gone: Vec<NetEndpoint> = ends.drain(1..).collect();
    until("what they have sent", || {
        gone.iter_mut()
            .for_each(|end| assert!(end.poll().is_none()));
        let sent = |rank: &NetRank| rank.counts().sent_bytes > 0;
        ranks[1..].iter().all(sent).then_some(())
    });
    ranks[2].finalize();
    drop(gone);
    ranks.truncate(1);
    let mut heard = Vec::new();
    until("both ends", || {
        heard.extend(poll(&mut ends[0]));
        let both = ranks[0].death(1).is_some() && ranks[0].death(2).is_some();
        both.then_some(())
    });
    while let Some(message) = poll(&mut ends[0]) {
        heard.push(message);
    }
    heard.sort();
    assert_eq!(heard.len(), 2, "what they sent before has come");
    assert_eq!(ranks[0].death(2), Some(Death::Finalized));
    assert_eq!(ranks[0].death(1), Some(Death::Disconnected));
    assert_eq!(ranks[0].death_epoch(), 2);
    let Err(PostError::Failed(e)) = ends[0].post(1, head(0), b"") else {
        panic!("it is gone");
    };
    assert_eq!(e.kind(), TransportErrorKind::PeerDead);
    assert!(e.to_string().starts_with("rank 1 was lost"), "{e}");
}

/// Ranks on hosts, which exchange news.
fn attending(hosts: &[u32]) -> Vec<NetRank> {
    attending_with(hosts, "127.0.0.0/8")
}

fn attending_with(hosts: &[u32], setting: &str) -> Vec<NetRank> {
    let (_, ranks) = ranks_with(hosts.len() as u32, setting);
    for rank in &ranks {
        let map = HostMap::new(rank.rank(), hosts).expect("a rank");
        rank.attend(map, Box::new(|_| None));
    }
    ranks
}

fn is_apart(rank: &NetRank) -> bool {
    rank.why_apart().is_some()
}

/// Waits until all that live know how the given ones have ended.
fn all_know(ranks: &[NetRank], ended: &[(u32, bool)]) {
    for rank in ranks {
        let gone = |own: u32| ended.iter().any(|(one, _)| *one == own);
        for (one, fails) in ended.iter().filter(|_| !gone(rank.rank())) {
            let how = until("news", || rank.death(*one));
            assert_eq!(
                how.is_failure(),
                *fails,
                "rank {one} of rank {}: {how}",
                rank.rank()
            );
        }
    }
}

#[test]
fn all_hosts_learn_of_ends() {
    let ranks = attending(&[0, 0, 1, 1, 2, 2, 3, 3]);
    // A rank that has a watcher, and one that is it, without a word.
    ranks[3].kill();
    all_know(&ranks, &[(3, true)]);
    ranks[4].kill();
    all_know(&ranks, &[(3, true), (4, true)]);
    assert!(!ranks.iter().any(is_apart));
    // In order, whoever watches next.
    ranks[0].finalize();
    ranks[5].finalize();
    all_know(&ranks, &[(3, true), (4, true), (0, false), (5, false)]);
    assert_eq!(ranks[7].why(3), ranks[7].why(3));
    let last = [1, 2, 6, 7];
    std::thread::scope(|s| {
        for rank in last {
            let rank = &ranks[rank];
            s.spawn(|| rank.finalize());
        }
    });
    for rank in &ranks {
        assert_eq!(rank.counts().malformed, 0);
    }
}

/// What was sent before a rank left comes before the news of it.
#[test]
fn news_do_not_overtake_messages() {
    for round in 0..20 {
        let ranks = attending(&[0, 0, 1, 1]);
        let all = [0, 1, 2, 3];
        let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, all)).collect();
        for i in 0..10 {
            post(&mut ends[3], 0, i, &[7; 1000]);
        }
        drop(ends.pop());
        ranks[3].finalize();
        if round % 2 == 0 {
            all_know(&ranks[1..3], &[(3, false)]);
        }
        for i in 0..10 {
            assert_eq!(until("a message", || poll(&mut ends[0])).1, i);
        }
        until("the end", || {
            assert!(ends[0].poll().is_none());
            ranks[0].death(3)
        });
    }
}

/// A rank that was declared dead and lives learns of it, and so do the others.
#[test]
fn who_was_declared_dead_is_told() {
    let ranks = attending(&[0, 0, 1, 1]);
    let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, [0, 1, 2, 3])).collect();
    post(&mut ends[3], 0, 1, b"so far so good");
    until("a message", || poll(&mut ends[0]));
    // Of this test: what comes next counts as malformed.
    ranks[0].with(|state| state.garble(3));
    post(&mut ends[3], 0, 2, b"and then");
    until("its end", || {
        assert!(ends[0].poll().is_none());
        ranks[0].death(3)
    });
    all_know(&ranks[..3], &[(3, true)]);
    until("word", || is_apart(&ranks[3]).then_some(()));
    let why = ranks[3].why(1).expect("a reason");
    assert!(why.starts_with("rank "), "{why}");
    assert_eq!(ranks[3].death(2), Some(Death::Apart));
    assert_eq!(ranks[0].counts().malformed, 1);
}

/// Has a rank find that the host of another one does not answer.
fn silence(ranks: &[NetRank], by: usize, of: u32) {
    ranks[by].with(|state| state.reports.push((of, super::ends::Cause::Silent, false)));
}

#[test]
fn a_silent_host_is_lost_where_most_ranks_go_on() {
    let ranks = attending(&[0, 0, 1, 1, 2, 2]);
    silence(&ranks, 0, 3);
    all_know(&ranks, &[(2, true), (3, true)]);
    for rank in [0, 1, 4, 5] {
        assert_eq!(ranks[rank].death(2), Some(Death::Silent));
        assert!(!is_apart(&ranks[rank]));
    }
    for rank in [2, 3] {
        until("word", || is_apart(&ranks[rank]).then_some(()));
        let why = ranks[rank].why(0).expect("a reason");
        // In the news, or as the answer to its call.
        let told = [
            "rank 0 says that this rank was lost",
            "has declared this rank dead",
        ];
        assert!(told.iter().any(|text| why.contains(text)), "{why}");
    }
}

#[test]
fn no_half_goes_on_but_the_lowest_if_that_is_said() {
    for (setting, goes_on) in [("127.0.0.0/8", false), ("127.0.0.0/8,tie=lowest", true)] {
        let ranks = attending_with(&[0, 0, 1, 1], setting);
        silence(&ranks, 1, 3);
        if !goes_on {
            // A side that does not go on accuses nobody: the other one finds the cut itself.
            silence(&ranks, 2, 0);
        }
        all_know(&ranks[..2], &[(2, true), (3, true)]);
        for rank in &ranks[2..] {
            until("word", || is_apart(rank).then_some(()));
        }
        for rank in &ranks[..2] {
            if !goes_on {
                until("word", || is_apart(rank).then_some(()));
                let why = rank.why(2).expect("a reason");
                assert!(why.contains("2 of 4 ranks are on this side"), "{why}");
            }
            assert_eq!(is_apart(rank), !goes_on);
        }
    }
}

/// A rank that leaves at once has sent what it posted, though it had to call first.
#[test]
fn who_leaves_at_once_has_sent_all() {
    let (_, ranks) = ranks(2);
    let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, [0, 1])).collect();
    for i in 0..20 {
        post(&mut ends[1], 0, i, &[7; 1000]);
    }
    let last = (ends.remove(1), ranks[1].clone());
    drop(last.0);
    last.1.finalize();
    for i in 0..20 {
        assert_eq!(until("a message", || poll(&mut ends[0])).1, i);
    }
    until("the end", || {
        assert!(ends[0].poll().is_none());
        ranks[0].death(1)
    });
    assert_eq!(ranks[0].death(1), Some(Death::Finalized));
}

#[test]
fn a_peer_that_cannot_be_called_is_named_with_the_reasons() {
    let (_, mut ranks) = ranks(2);
    let port = ranks[1].card().addresses[0];
    ranks.truncate(1);
    until("the port to be free", || {
        TcpStream::connect(port).is_err().then_some(())
    });
    let mut a = ranks[0].endpoint(1, [0, 1]);
    post(&mut a, 1, 1, b"is somebody there?");
    until("the end", || {
        assert!(a.poll().is_none());
        ranks[0].death(1)
    });
    let why = ranks[0].why(1).expect("a reason");
    assert!(
        why.contains(&port.to_string()) && why.contains("refused"),
        "{why}"
    );
}

fn scream(at: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(at).expect("somebody listens");
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    let _ = socket.read_to_end(&mut said);
    said
}

/// Strangers are counted and disturb nobody.
#[test]
fn strangers_are_counted() {
    let (_, ranks) = ranks(2);
    let mut ends: Vec<NetEndpoint> = ranks.iter().map(|r| r.endpoint(1, [0, 1])).collect();
    let at = ranks[1].card().addresses[0];
    post(&mut ends[0], 1, 0, b"before");
    until("a message", || poll(&mut ends[1]));
    let before = ranks[1].heap_bytes();
    for i in 0..300u32 {
        match i % 3 {
            0 => drop(TcpStream::connect(at)),
            1 => assert!(scream(at, b"GET / HTTP/1.1\r\n\r\n").is_empty()),
            _ => assert!(scream(at, &[i as u8; 500]).is_empty()),
        }
    }
    until("all to be refused", || {
        (ranks[1].counts().refused >= 300).then_some(())
    });
    assert_eq!(ranks[1].heap_bytes(), before);
    post(&mut ends[0], 1, 1, b"after");
    until("a message", || poll(&mut ends[1]));
}

/// Calls a rank as another one of the job; its socket, once it was let in.
fn impostor(key: &JobKey, as_rank: u32, to: &NetRank) -> Option<TcpStream> {
    let pair = Pair {
        purpose: Purpose::Data,
        job: JOB,
        dialer: as_rank,
        acceptor: to.rank(),
    };
    let (mut shake, hello) = Dialer::new(key, pair).expect("numbers");
    let mut socket = TcpStream::connect(to.card().addresses[0]).expect("somebody listens");
    socket.write_all(&hello).expect("it takes it");
    loop {
        let n = socket.read(shake.room()).expect("an answer");
        match shake.take(n).ok()? {
            Next::Wait if n > 0 => {}
            Next::Say(bytes) => socket.write_all(&bytes).expect("it takes it"),
            Next::Decided(hello::Verdict::Accepted) => return Some(socket),
            _ => return None,
        }
    }
}

/// Bytes that no correct peer sends end their connection, are counted, and disturb nothing else;
/// who sent them is out.
#[test]
fn malformed_frames_end_their_connection() {
    let good = frame::Head::control(frame::FrameKind::Credit, 1, 0).to_wire();
    let with = |at: usize, to: u8| {
        let mut w = good;
        w[at] = to;
        w.to_vec()
    };
    let piece = {
        let mut w = frame::Head::control(frame::FrameKind::Piece, 1, 4)
            .to_wire()
            .to_vec();
        w[24] = 8;
        w.extend([0; 8]);
        w
    };
    let credit = frame::Head::control(frame::FrameKind::Credit, 1, 1 << 40).to_wire();
    let bad = [
        with(0, 99),
        with(4, 1),
        with(26, 1),
        with(30, 1),
        piece,
        credit.to_vec(),
    ];
    let (key, ranks) = ranks(3);
    let mut ends: Vec<NetEndpoint> = ranks[..2].iter().map(|r| r.endpoint(1, [0, 1])).collect();
    let members: Vec<u32> = (0..20).collect();
    let mut far = ranks[0].endpoint(2, members);
    for (i, bytes) in bad.iter().enumerate() {
        let as_rank = 10 + i as u32;
        let mut socket = impostor(&key, as_rank, &ranks[0]).expect("it has the key");
        // A wrong credit needs a member that something was sent to.
        until("room", || far.post(as_rank, head(0), b"x").ok());
        socket.write_all(bytes).expect("it takes it");
        until("the end", || {
            assert!(far.poll().is_none() && ends[0].poll().is_none());
            ranks[0].death(as_rank)
        });
        assert_eq!(ranks[0].counts().malformed, i as u64 + 1);
        assert_eq!(ranks[0].death(as_rank), Some(Death::Disconnected));
        assert!(impostor(&key, as_rank, &ranks[0]).is_none(), "it is out");
        post(&mut ends[0], 1, i as u64, b"go on");
        until("a message", || poll(&mut ends[1]));
    }
    assert_eq!(ranks[0].counts().fenced, bad.len() as u64);
    assert!(impostor(&JobKey::random().expect("a key"), 19, &ranks[0]).is_none());
}

/// A peer that sends more than it has credit for is cut off: what it sends takes bounded memory.
#[test]
fn messages_without_credit_end_their_connection() {
    let (key, ranks) = ranks(1);
    let _flooded = ranks[0].endpoint(1, [0, 5]);
    let mut other = ranks[0].endpoint(2, [0, 5]);
    let mut socket = impostor(&key, 5, &ranks[0]).expect("it has the key");
    for sequence in 0..30 {
        let head = frame::Head {
            sequence,
            bytes: 10_000,
            ..frame::Head::control(frame::FrameKind::Message, 1, 0)
        };
        // It may be cut off before it has sent all.
        let _ = socket.write_all(&head.to_wire());
        let _ = socket.write_all(&[0; 10_000]);
    }
    // Nobody polls the channel, so nothing is given back.
    until("the end", || {
        assert!(other.poll().is_none());
        ranks[0].death(5)
    });
    assert_eq!(ranks[0].counts().malformed, 1);
}

/// Random bytes behind a handshake: no panic, and the others go on.
#[test]
fn noise_behind_a_handshake_ends_there() {
    let (key, ranks) = ranks(1);
    let mut a = ranks[0].endpoint(1, (0..1000).collect::<Vec<u32>>());
    let mut number = 12345u64;
    for as_rank in 1..200 {
        let mut socket = impostor(&key, as_rank, &ranks[0]).expect("it has the key");
        let mut bytes = vec![0u8; 64 + as_rank as usize];
        for byte in &mut bytes {
            number = number
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            *byte = (number >> 56) as u8 & 7;
        }
        bytes[4..8].fill(0);
        let _ = socket.write_all(&bytes);
        drop(socket);
        until("the end", || {
            while a.poll().is_some_and(|m| {
                a.release(&m);
                true
            }) {}
            ranks[0].death(as_rank)
        });
    }
}

/// Memory grows with the peers that a rank talks to, not with the job.
#[test]
fn memory_follows_partners() {
    let (_, ranks) = ranks(65);
    let members: Arc<[u32]> = (0..65_536).collect::<Vec<u32>>().into();
    let mut own = ranks[0].endpoint(1, members.clone());
    let mut others: Vec<NetEndpoint> = (ranks[1..].iter())
        .map(|rank| rank.endpoint(1, members.clone()))
        .collect();
    for (i, other) in others.iter_mut().enumerate() {
        post(&mut own, i as u32 + 1, 0, &[1; 1000]);
        post(other, 0, 1, &[2; 1000]);
    }
    let mut heard = 0;
    until("all", || {
        heard += usize::from(poll(&mut own).is_some());
        others.iter_mut().for_each(|other| drop(poll(other)));
        (heard == 64).then_some(())
    });
    let bytes = ranks[0].heap_bytes();
    assert!(bytes < 1 << 20, "{bytes} bytes for 64 partners");
}
