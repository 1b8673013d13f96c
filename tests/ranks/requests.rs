//! Waiting and testing: one, any, all, some.

use crate::support::{Random, fails, on_all, on_threads, pattern};
use osier::requests::{test_all, test_any, test_some, wait_all, wait_any, wait_some};
use osier::{ErrorKind, Request};

const SIZES: [usize; 8] = [0, 8, 100, 5_000, 70_000, 150_000, 400_000, 1_500_000];

/// Rank 1 sends what the tags in `order` say, when rank 0 is ready.
fn send_in(order: &[usize], comm: &osier::Communicator) {
    comm.barrier().expect("posted");
    for &i in order {
        comm.send(&pattern(SIZES[i], i), 0, i).expect("send");
    }
}

fn post(comm: &osier::Communicator) -> Vec<Request<Vec<u8>>> {
    (0..SIZES.len())
        .map(|i| comm.irecv(vec![0; SIZES[i]], 1, i).expect("irecv"))
        .collect()
}

fn check(i: usize, got: &[u8]) {
    assert!(got == pattern(SIZES[i], i), "{} bytes", SIZES[i]);
}

#[test]
fn requests_one_any_all_some() {
    on_all(2, |comm| {
        let mut random = Random::new(3);
        for way in 0..7 {
            let mut order: Vec<usize> = (0..SIZES.len()).collect();
            random.shuffle(&mut order);
            if comm.rank() == 1 {
                send_in(&order, &comm);
                continue;
            }
            let mut requests = post(&comm);
            comm.barrier().expect("posted");
            let mut over = 0;
            let mut take = |(got, status): (Vec<u8>, osier::Status)| {
                let tag = status.tag().expect("a tag") as usize;
                assert_eq!(status.bytes(), SIZES[tag]);
                check(tag, &got);
                over += 1;
            };
            match way {
                0 => requests
                    .into_iter()
                    .for_each(|r| take(r.wait().expect("wait"))),
                1 => {
                    let all = wait_all(requests).expect("wait_all");
                    for (i, (got, status)) in all.into_iter().enumerate() {
                        assert_eq!(status.tag(), Some(i as u32));
                        take((got, status));
                    }
                }
                2 => {
                    while let Some((at, result)) = wait_any(&mut requests) {
                        assert!(at <= requests.len());
                        take(result.expect("wait_any"));
                    }
                }
                3 => loop {
                    let some = wait_some(&mut requests);
                    if some.is_empty() {
                        break;
                    }
                    some.into_iter()
                        .for_each(|(_, r)| take(r.expect("wait_some")));
                },
                4 => loop {
                    if let Some(all) = test_all(&mut requests) {
                        all.expect("test_all").into_iter().for_each(&mut take);
                        break;
                    }
                },
                5 => {
                    while !requests.is_empty() {
                        if let Some((_, result)) = test_any(&mut requests) {
                            take(result.expect("test_any"));
                        }
                    }
                }
                _ => {
                    while !requests.is_empty() {
                        for (_, result) in test_some(&mut requests) {
                            take(result.expect("test_some"));
                        }
                    }
                }
            }
            assert_eq!(over, SIZES.len());
        }
    });
}

#[test]
fn scoped_requests_one_any_all_some() {
    on_all(2, |comm| {
        let mut random = Random::new(4);
        for way in 0..7 {
            let mut order: Vec<usize> = (0..SIZES.len()).collect();
            random.shuffle(&mut order);
            if comm.rank() == 1 {
                send_in(&order, &comm);
                continue;
            }
            let mut got: Vec<Vec<u8>> = SIZES.iter().map(|n| vec![0; *n]).collect();
            comm.scope(|s| {
                let mut requests = Vec::new();
                for (i, buffer) in got.iter_mut().enumerate() {
                    requests.push(s.irecv(buffer, 1, i)?);
                }
                comm.barrier()?;
                let mut over = 0;
                match way {
                    0 => {
                        for (i, mut r) in requests.into_iter().enumerate() {
                            while i % 2 == 0 && !r.test() {}
                            assert_eq!(r.wait()?.bytes(), SIZES[i]);
                            over += 1;
                        }
                    }
                    1 => over = wait_all(requests)?.len(),
                    2 => {
                        while let Some((_, status)) = wait_any(&mut requests) {
                            assert!(status?.source() == Some(1));
                            over += 1;
                        }
                    }
                    3 => {
                        while !requests.is_empty() {
                            over += wait_some(&mut requests).len();
                        }
                        assert!(wait_some(&mut requests).is_empty());
                    }
                    4 => loop {
                        if let Some(all) = test_all(&mut requests) {
                            over = all?.len();
                            break;
                        }
                    },
                    5 => {
                        while !requests.is_empty() {
                            over += usize::from(test_any(&mut requests).is_some());
                        }
                    }
                    _ => {
                        while !requests.is_empty() {
                            over += test_some(&mut requests).len();
                        }
                    }
                }
                assert_eq!(over, SIZES.len());
                Ok(())
            })
            .expect("scope");
            got.iter().enumerate().for_each(|(i, g)| check(i, g));
        }
    });
}

#[test]
fn an_answer_may_depend_on_what_wait_any_gave() {
    on_all(3, |comm| {
        // Rank 0 answers each message that comes; nobody sends the next
        // before the answer to the last.
        const ROUNDS: usize = 100;
        if comm.rank() == 0 {
            let mut waiting: Vec<_> = (1..3)
                .map(|from| comm.irecv(vec![0u64], from, 0).expect("irecv"))
                .collect();
            for _ in 0..2 * ROUNDS {
                let (_, result) = wait_any(&mut waiting).expect("one is left");
                let (got, status) = result.expect("wait_any");
                let from = status.source().expect("a sender");
                comm.send(&[got[0] + 1], from, 0).expect("answer");
                if got[0] + 1 < ROUNDS as u64 {
                    waiting.push(comm.irecv(vec![0u64], from, 0).expect("irecv"));
                }
            }
        } else {
            for i in 0..ROUNDS as u64 {
                let mut answer = 0u64;
                comm.sendrecv(&i, 0, 0, &mut answer, 0, 0).expect("ask");
                assert_eq!(answer, i + 1);
            }
        }
    });
}

#[test]
fn waits_for_an_empty_list_return_at_once() {
    let mut none: Vec<Request<Vec<u8>>> = Vec::new();
    assert!(wait_any(&mut none).is_none());
    assert!(test_any(&mut none).is_none());
    assert!(wait_some(&mut none).is_empty());
    assert!(test_some(&mut none).is_empty());
    assert!(
        test_all(&mut none)
            .expect("all of none")
            .expect("no error")
            .is_empty()
    );
    assert!(wait_all(none).expect("all of none").is_empty());
}

#[test]
fn wait_all_waits_for_all_even_after_an_error() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            comm.send(&[1u8; 100], 1, 0).expect("too long");
            comm.send(&pattern(1_000_000, 1), 1, 1).expect("long");
        } else {
            let mut long = vec![0; 1_000_000];
            let mut short = [0u8; 10];
            comm.scope(|s| {
                let requests = [s.irecv(&mut short, 0, 0)?, s.irecv(&mut long, 0, 1)?];
                fails(wait_all(requests), ErrorKind::Truncated, &["100", "10"]);
                Ok(())
            })
            .expect("the error was taken");
            assert!(long == pattern(1_000_000, 1));
        }
    });
}

#[test]
fn waiting_in_another_thread_than_posting() {
    on_threads(2, |comm| {
        let peer = 1 - comm.rank();
        for (i, &n) in SIZES.iter().enumerate() {
            let receive = comm.irecv(vec![0; n], peer, i).expect("irecv");
            let send = comm.isend(pattern(n, i), peer, i).expect("isend");
            std::thread::scope(|s| {
                let a = s.spawn(move || send.wait().expect("send"));
                let b = s.spawn(move || receive.wait().expect("receive"));
                check(i, &b.join().expect("no panic").0);
                check(i, &a.join().expect("no panic").0);
            });
        }
    });
}

/// Windows of receives that are posted before their messages: of one tag and of several, in
/// posting order and not, with one that is too long, one that is cancelled, and a wildcard
/// among them.
#[test]
fn windows_of_posted_receives() {
    const WINDOW: usize = 100;
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        for (round, several) in [(0, false), (1, true), (2, false)] {
            let tag = |i: usize| if several { (i % 3) as u32 } else { 0 };
            let lengths = |i: usize| if i % 10 == 9 { 40 + i } else { 1 + i % 8 };
            let mut receives: Vec<_> = (0..WINDOW)
                .map(|i| {
                    let room = if i == 50 { 0 } else { lengths(i) };
                    match (round, i) {
                        (2, 70) => comm.irecv(vec![0u8; room], osier::ANY_SOURCE, 0),
                        _ => comm.irecv(vec![0u8; room], peer, tag(i)),
                    }
                    .expect("irecv")
                })
                .collect();
            let mut never = comm.irecv(vec![0u8; 8], peer, 99).expect("irecv");
            comm.barrier().expect("barrier");
            for i in 0..WINDOW {
                comm.send(&vec![(round + i) as u8; lengths(i)], peer, tag(i))
                    .expect("send");
            }
            assert!(never.cancel());
            let late = receives.split_off(WINDOW / 2);
            for (i, request) in late.into_iter().enumerate().rev() {
                let i = WINDOW / 2 + i;
                match request.wait() {
                    Ok((got, status)) => {
                        assert_eq!(got, vec![(round + i) as u8; lengths(i)]);
                        assert_eq!((status.source(), status.tag()), (Some(peer), Some(tag(i))));
                    }
                    Err(e) => assert!(i == 50 && e.kind() == osier::ErrorKind::Truncated, "{e}"),
                }
            }
            let early = osier::requests::wait_all(receives).expect("wait_all");
            for (i, (got, _)) in early.into_iter().enumerate() {
                assert_eq!(got, vec![(round + i) as u8; lengths(i)]);
            }
            comm.barrier().expect("barrier");
        }
    });
}
