//! Partitioned transfers.

use crate::support::{Random, fails, on_all, on_threads};
use osier::partitioned::Partitions;
use osier::persistent::{Startable, start_all};
use osier::requests::{AnyRequest, WaitSet, wait_any};
use osier::{Communicator, Datatype, ErrorKind, Layout, Order, PROC_NULL, Result, Status, Type};

#[test]
fn threads_mark_partitions_and_ends_have_different_numbers() {
    on_threads(2, |comm| {
        for (n, sends, receives) in [
            (1200, 4, 6),
            (1200, 6, 4),
            (1200, 1, 12),
            (24, 24, 3),
            (400_000, 8, 5),
            (0, 3, 2),
        ] {
            if comm.rank() == 0 {
                let mut send = comm.psend_init(vec![0u64; n], sends, 1, 7).expect("init");
                for round in 0..4u64 {
                    send.start().expect("start");
                    std::thread::scope(|s| {
                        for thread in 0..3 {
                            let send = &send;
                            s.spawn(move || {
                                for at in (0..sends).filter(|at| at % 3 == thread) {
                                    send.write(at, |part| {
                                        for (i, x) in part.iter_mut().enumerate() {
                                            *x = (at * (n / sends) + i) as u64 + round;
                                        }
                                    })
                                    .expect("write");
                                    send.pready(at).expect("pready");
                                }
                            });
                        }
                        send.wait().expect("sent");
                    });
                    assert!(send.test());
                }
            } else {
                let mut recv = comm
                    .precv_init(vec![0u64; n], receives, 0, 7)
                    .expect("init");
                let each = n / receives;
                for round in 0..4u64 {
                    recv.start().expect("start");
                    for at in (0..receives).rev() {
                        while !recv.parrived(at).expect("parrived") {}
                        let part = recv.read(at).expect("arrived");
                        assert_eq!(part.len(), each);
                        let right = |(i, x): (usize, &u64)| *x == (at * each + i) as u64 + round;
                        assert!(part.iter().enumerate().all(right), "{at} of {receives}");
                    }
                    recv.wait().expect("received");
                    assert!(recv.parrived(0).expect("inactive"));
                }
            }
        }
        comm.barrier().expect("barrier");
    });
}

#[test]
fn nothing_arrives_before_it_is_ready() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let mut send = comm.psend_init(vec![5u32; 8], 4, 1, 0).expect("init");
            fails(send.pready(0), ErrorKind::Argument, &["not active"]);
            send.start().expect("start");
            fails(send.start(), ErrorKind::Argument, &["active"]);
            fails(send.buffer().map(drop), ErrorKind::Argument, &["active"]);
            fails(send.pready(4), ErrorKind::Argument, &["4 of 4"]);
            send.pready_list(&[2, 0]).expect("ready");
            fails(send.pready(2), ErrorKind::Argument, &["already"]);
            fails(send.write(0, |_| ()), ErrorKind::Argument, &["already"]);
            send.write(1, |_| {
                fails(send.pready(1), ErrorKind::Argument, &["being written"]);
            })
            .expect("write");
            assert!(!send.test());
            comm.barrier().expect("some");
            comm.barrier().expect("seen");
            send.pready(1).expect("ready");
            send.pready_range(3..=3).expect("ready");
            send.wait().expect("sent");
            assert_eq!(send.into_buffer().expect("inactive"), [5; 8]);
        } else {
            let mut recv = comm.precv_init(vec![0u32; 8], 4, 0, 0).expect("init");
            recv.start().expect("start");
            comm.barrier().expect("some");
            while !recv.parrived(0).expect("parrived") {}
            while !recv.parrived(2).expect("parrived") {}
            assert!(!recv.parrived(1).expect("parrived"));
            assert!(!recv.parrived(3).expect("parrived"));
            fails(
                recv.read(3).map(drop),
                ErrorKind::Argument,
                &["not arrived"],
            );
            fails(recv.parrived(9), ErrorKind::Argument, &["9 of 4"]);
            assert!(!recv.test());
            comm.barrier().expect("seen");
            recv.wait().expect("received");
            assert_eq!(recv.buffer().expect("inactive")[..], [5; 8]);
        }
    });
}

#[test]
fn transfers_meet_in_the_order_in_which_they_were_set_up() {
    on_all(3, |comm| {
        // Two of one tag and one of another, from each; others in between.
        let tags = [3, 4, 3];
        let mut random = Random::new(9 + comm.rank() as u64);
        let peers: Vec<usize> = (0..3).collect();
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        for &peer in &peers {
            for (k, tag) in tags.into_iter().enumerate() {
                let data = vec![(comm.rank() * 10 + k) as u16; 60];
                sends.push(comm.psend_init(data, 2 + k, peer, tag).expect("init"));
            }
        }
        for &peer in &peers {
            for (k, tag) in tags.into_iter().enumerate() {
                let recv = comm.precv_init(vec![0u16; 60], 5, peer, tag).expect("init");
                receives.push((peer * 10 + k, recv));
            }
        }
        random.shuffle(&mut receives);
        for _ in 0..2 {
            start_all(&mut sends).expect("start");
            start_all(receives.iter_mut().map(|(_, r)| r)).expect("start");
            for send in &sends {
                comm.send(&[1u16; 60], (comm.rank() + 1) % 3, 3)
                    .expect("send");
                send.pready_range(0..=send.partitions() - 1).expect("ready");
            }
            for (what, recv) in &receives {
                recv.wait().expect("received");
                assert_eq!(recv.buffer().expect("inactive")[..], [*what as u16; 60]);
            }
            for send in &sends {
                send.wait().expect("sent");
                // Ordinary messages of the same tag are apart.
                let (got, _) = comm
                    .recv_vec::<u16>((comm.rank() + 2) % 3, 3)
                    .expect("recv");
                assert_eq!(got, [1; 60]);
            }
        }
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Datatype)]
#[repr(C)]
struct Gap {
    a: u8,
    b: u32,
}

/// A receive may have more room than is sent, as that of any message.
#[test]
fn receive_may_be_larger_than_its_send() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        // Partitions and bytes sent, partitions and bytes of the room.
        for (tag, (parts, bytes, rooms, room)) in [
            (1, 4, 1, 8),
            (2, 10, 3, 24),
            (3, 9, 2, 30),
            (4, 0, 2, 6),
            (2, 8, 4, 20),
            (1, 5, 5, 500_000),
            (3, 100_002, 2, 400_000),
        ]
        .into_iter()
        .enumerate()
        {
            let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8 + 1).collect();
            let mut send = comm
                .psend_init(data.clone(), parts, peer, tag)
                .expect("init");
            let mut recv = comm
                .precv_init(vec![0u8; room], rooms, peer, tag)
                .expect("init");
            for _ in 0..2 {
                start_all([&mut send as &mut dyn Startable, &mut recv]).expect("start");
                send.pready_range(0..=parts - 1).expect("ready");
                let status = recv.wait().expect("received");
                assert_eq!(status.bytes(), bytes);
                send.wait().expect("sent");
                let got = recv.buffer().expect("inactive");
                assert_eq!(got[..bytes], data[..]);
                assert!(got[bytes..].iter().all(|byte| *byte == 0));
            }
            start_all([&mut send as &mut dyn Startable, &mut recv]).expect("start");
            send.pready_range(0..=parts - 1).expect("ready");
            for room in (0..rooms).rev() {
                while !recv.parrived(room).expect("it comes") {}
            }
            recv.wait().expect("received");
            send.wait().expect("sent");
        }
    });
}

#[test]
fn partitions_that_do_not_fit_are_refused() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        fails(
            comm.psend_init(vec![0u8; 10], 3, peer, 0).map(drop),
            ErrorKind::Argument,
            &["10 elements in 3"],
        );
        fails(
            comm.precv_init(vec![0u8; 10], 0, peer, 0).map(drop),
            ErrorKind::Argument,
            &["0 partitions"],
        );
        let _send = comm.psend_init(vec![0u8; 12], 2, peer, 0).expect("init");
        let mut recv = comm.precv_init(vec![0u8; 10], 2, peer, 0).expect("init");
        let result = recv.start().and_then(|()| recv.wait());
        fails(
            result,
            ErrorKind::Truncated,
            &["tag 0", "2 partitions of 6 bytes", "2 of 5"],
        );
        // Structures with gaps; the other end has bytes.
        let gaps = vec![Gap { a: 1, b: 2 }; 6];
        let mut send = comm.psend_init(gaps, 3, peer, 1).expect("init");
        let zero = vec![Gap { a: 0, b: 0 }; 6];
        let mut recv = comm.precv_init(zero, 2, peer, 1).expect("init");
        start_all([&mut send as &mut dyn Startable, &mut recv]).expect("start");
        send.pready_range(0..=2).expect("ready");
        recv.wait().expect("received");
        send.wait().expect("sent");
        assert_eq!(
            recv.buffer().expect("inactive")[..],
            [Gap { a: 1, b: 2 }; 6]
        );

        let mut nobody = comm
            .psend_init(vec![0u8; 4], 2, PROC_NULL, 0)
            .expect("init");
        nobody.start().expect("start");
        nobody.pready_range(0..=1).expect("ready");
        nobody.wait().expect("nobody");
        let mut nobody = comm
            .precv_init(vec![7u8; 4], 2, PROC_NULL, 0)
            .expect("init");
        nobody.start().expect("start");
        assert!(nobody.parrived(1).expect("nobody"));
        nobody.wait().expect("nobody");
        comm.barrier().expect("barrier");
    });
}

#[test]
fn dropped_send_completes_and_its_partitions_arrive() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut send = comm
            .psend_init(vec![3u64; 200_000], 2, peer, 0)
            .expect("init");
        let mut recv = comm
            .precv_init(vec![0u64; 200_000], 2, peer, 0)
            .expect("init");
        let mut never = comm.precv_init(vec![0u64; 4], 2, peer, 1).expect("init");
        start_all([&mut recv, &mut never]).expect("start");
        send.start().expect("start");
        send.pready_list(&[1, 0]).expect("ready");
        drop((send, never));
        recv.wait().expect("received");
        assert!(recv.buffer().expect("inactive").iter().all(|x| *x == 3));
        let mut gone = comm
            .precv_init(vec![0u64; 2_000], 2, peer, 2)
            .expect("init");
        let mut sent = comm
            .psend_init(vec![1u64; 2_000], 2, peer, 2)
            .expect("init");
        gone.start().expect("start");
        sent.start().expect("start");
        sent.pready(0).expect("ready");
        while !gone.parrived(0).expect("parrived") {}
        drop(gone);
        drop(sent);
        comm.barrier().expect("barrier");
    });
}

/// The sender has sent all and gone, or has dropped the communicator, before the
/// receiver asks; or goes while it waits.
#[test]
fn partitions_sent_before_the_sender_left_are_received() {
    for (leaves, early) in [(true, true), (true, false), (false, true), (false, false)] {
        on_all(2, |world| {
            let comm = world.dup().expect("dup");
            if comm.rank() == 1 {
                let mut sends: Vec<_> = (0..3u64)
                    .map(|n| {
                        let send = comm.psend_init(vec![n + 1; 24], 4, 0, 0);
                        send.expect("init")
                    })
                    .collect();
                // The last one was set up, and never starts.
                for send in &mut sends[..2] {
                    send.start().expect("start");
                    send.pready_range(0..=3).expect("ready");
                    send.wait().expect("sent");
                }
            } else {
                let gone = |e: ErrorKind| match leaves {
                    // It drops its communicators, and is known to be dead later.
                    true => matches!(e, ErrorKind::RankDead | ErrorKind::Closed),
                    false => e == ErrorKind::Closed,
                };
                if early {
                    let e = comm.recv(&mut [0u8], 1, 9).expect_err("gone");
                    assert!(gone(e.kind()), "{e:?}");
                }
                let mut recvs: Vec<_> = (0..4)
                    .map(|_| comm.precv_init(vec![0u64; 24], 3, 1, 0).expect("init"))
                    .collect();
                for (n, recv) in recvs.iter_mut().enumerate().rev() {
                    let ended = recv.start().and_then(|()| recv.wait().map(drop));
                    match ended {
                        Ok(()) => assert_eq!(recv.buffer().expect("idle"), &[n as u64 + 1; 24]),
                        Err(e) => assert!(n >= 2 && gone(e.kind()), "{n}: {e:?}"),
                    }
                }
            }
            drop(comm);
            if !leaves {
                world.barrier().expect("all live");
            }
        });
    }
}

/// One partition was sent before the sender went; the others never come.
#[test]
fn a_partition_that_never_comes_does_not_arrive() {
    on_all(2, |comm| {
        if comm.rank() == 1 {
            let mut send = comm.psend_init(vec![7u64; 24], 4, 0, 0).expect("init");
            send.start().expect("start");
            send.pready(1).expect("ready");
        } else {
            comm.recv(&mut [0u8], 1, 9).expect_err("gone");
            let mut recv = comm.precv_init(vec![0u64; 24], 4, 1, 0).expect("init");
            recv.start().expect("start");
            assert!(recv.parrived(1).expect("it was sent"));
            assert_eq!(recv.read(1).expect("arrived"), [7; 6]);
            for at in [0, 2, 3] {
                let e = recv.parrived(at).expect_err("it was not sent");
                assert!(e.to_string().contains("rank 1"), "{e}");
                recv.read(at).expect_err("nothing to read");
            }
            assert!(recv.parrived(1).expect("it is still there"));
            recv.wait().expect_err("not all was sent");
        }
    });
}

#[test]
fn receive_fails_when_its_sender_has_left() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let mut recv = comm.precv_init(vec![0u8; 4], 2, 1, 0).expect("init");
            // A rank that ends has dropped its communicators, too.
            let e = recv.start().and_then(|()| recv.wait()).expect_err("gone");
            let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
            assert!(kinds.contains(&e.kind()), "{e:?}");
            assert!(e.to_string().contains("rank 1"), "{e}");
        }
    });
}

/// Columns of an `n` x `n` matrix of `f64`, each an instance.
fn column(n: usize) -> Layout {
    let column = Type::vector(n, 1, n as isize, &f64::datatype()).expect("vector");
    let column = Type::resized(0, 8, &column).expect("resized");
    column.commit().expect("commit")
}

/// What each end cuts its 12 x 12 matrix into. The message is the matrix,
/// column by column or row by row.
fn cuts() -> Vec<(&'static str, Partitions, bool)> {
    let n = 12;
    let column = column(n);
    let row = Type::contiguous(n, &f64::datatype()).expect("row");
    let row = row.commit().expect("commit");
    let upper = Type::subarray(&[n, n], &[n, n], &[0, 0], Order::Fortran, &f64::datatype());
    let all = upper.expect("subarray").commit().expect("commit");
    vec![
        ("columns", Partitions::of(12, &column, 1), true),
        ("columns by three", Partitions::of(4, &column, 3), true),
        ("all columns", Partitions::of(1, &column, 12), true),
        ("rows", Partitions::of(12, &row, 1), false),
        ("rows by six", Partitions::of(2, &row, 6), false),
        ("the matrix", Partitions::of(1, &all, 1), false),
        ("runs", Partitions::equal(8), false),
        ("short runs", Partitions::equal(48), false),
    ]
}

/// The element that comes as number `i` in a message.
fn place(i: usize, by_columns: bool) -> usize {
    match by_columns {
        true => (i % 12) * 12 + i / 12,
        false => i,
    }
}

#[test]
fn any_layout_meets_any_other() {
    on_all(2, |comm| {
        let cuts = cuts();
        for (from, sent, sent_columns) in &cuts {
            for (to, received, received_columns) in &cuts {
                let what = format!("{from} -> {to}");
                if comm.rank() == 0 {
                    let mut send = comm
                        .psend_init(vec![0.0f64; 144], sent.clone(), 1, 7)
                        .expect("init");
                    let each = 144 / send.partitions();
                    for round in 0..2 {
                        send.start().expect("start");
                        for at in (0..send.partitions()).rev() {
                            let values: Vec<f64> = (at * each..(at + 1) * each)
                                .map(|i| (i + 1000 * round) as f64)
                                .collect();
                            send.write_from(at, &values).expect("write");
                            send.pready(at).expect("ready");
                        }
                        send.wait().expect("sent");
                        let buffer = send.buffer().expect("inactive");
                        let right =
                            |i| buffer[place(i, *sent_columns)] == (i + 1000 * round) as f64;
                        assert!((0..144).all(right), "{what}");
                    }
                } else {
                    let mut recv = comm
                        .precv_init(vec![0.0f64; 144], received.clone(), 0, 7)
                        .expect("init");
                    let each = 144 / recv.partitions();
                    for round in 0..2 {
                        recv.start().expect("start");
                        for at in 0..recv.partitions() {
                            while !recv.parrived(at).expect("parrived") {}
                            let mut values = vec![0.0; each];
                            recv.read_into(at, &mut values).expect("arrived");
                            let right =
                                |(i, x): (usize, &f64)| *x == (at * each + i + 1000 * round) as f64;
                            assert!(values.iter().enumerate().all(right), "{what}, {at}");
                        }
                        let status = recv.wait().expect("received");
                        assert_eq!((status.source(), status.tag()), (Some(0), Some(7)));
                        assert_eq!(status.count::<f64>(), Some(144));
                        let buffer = recv.buffer().expect("inactive");
                        let right =
                            |i| buffer[place(i, *received_columns)] == (i + 1000 * round) as f64;
                        assert!((0..144).all(right), "{what}");
                        let mut last = vec![0.0; each];
                        recv.read_into(recv.partitions() - 1, &mut last)
                            .expect("inactive");
                        assert_eq!(last[each - 1], (143 + 1000 * round) as f64);
                    }
                }
            }
        }
        comm.barrier().expect("barrier");
    });
}

#[test]
fn layouts_that_do_not_fit_are_errors() {
    on_all(2, |comm| {
        let column = column(4);
        let init = |buffer: Vec<f64>, cut| comm.psend_init(buffer, cut, 0, 0).map(drop);
        fails(
            init(vec![0.0; 15], Partitions::of(4, &column, 1)),
            ErrorKind::Datatype,
            &[],
        );
        fails(
            init(vec![0.0; 16], Partitions::of(0, &column, 1)),
            ErrorKind::Argument,
            &["0 partitions"],
        );
        fails(
            init(vec![0.0; 16], Partitions::of(4, &column, 1).at(1)),
            ErrorKind::Datatype,
            &[],
        );
        let gaps = vec![Gap { a: 0, b: 0 }; 16];
        fails(
            comm.psend_init(gaps, Partitions::of(1, &column, 1), 0, 0)
                .map(drop),
            ErrorKind::Datatype,
            &["padding"],
        );
        // One value for all may be sent, but neither written nor received.
        let same = Type::resized(0, 0, &f64::datatype()).expect("resized");
        let same = Partitions::of(3, &same.commit().expect("commit"), 1);
        fails(
            comm.precv_init(vec![0.0f64; 1], same.clone(), 0, 0)
                .map(drop),
            ErrorKind::Datatype,
            &[],
        );
        let me = comm.rank();
        let mut send = comm.psend_init(vec![2.5f64; 1], same, me, 0).expect("init");
        let mut recv = comm.precv_init(vec![0.0f64; 3], 3, me, 0).expect("init");
        start_all([&mut send as &mut dyn Startable, &mut recv]).expect("start");
        fails(send.write_from(0, &[1.0]), ErrorKind::Argument, &["share"]);
        send.pready_range(0..=2).expect("ready");
        recv.wait().expect("received");
        send.wait().expect("sent");
        assert_eq!(recv.buffer().expect("inactive")[..], [2.5; 3]);
    });
}

#[test]
fn a_scope_lends_memory() {
    on_threads(2, |comm| {
        let peer = 1 - comm.rank();
        let mut mine = vec![0u64; 600];
        let mut theirs = vec![0u64; 600];
        for round in 0..3u64 {
            let ended = comm.scope(|s| {
                let mut send = s.psend_init(&mut mine, 6, peer, 3)?;
                let mut recv = s.precv_init(&mut theirs, 4, peer, 3)?;
                recv.start()?;
                send.start()?;
                std::thread::scope(|threads| {
                    for thread in 0..2 {
                        let send = &send;
                        threads.spawn(move || {
                            for at in (0..6).filter(|at| at % 2 == thread) {
                                send.write(at, |part| part.fill(at as u64 + round))
                                    .expect("write");
                                send.pready(at).expect("ready");
                            }
                        });
                    }
                });
                if round == 1 {
                    // The scope waits for what is leaked, or dropped.
                    std::mem::forget(send);
                    drop(recv);
                    return Ok(());
                }
                recv.wait()?;
                assert_eq!(recv.buffer()?[599], 5 + round);
                if round == 2 {
                    recv.start()?; // the second time never ends, and is revoked
                    return Err(osier::Error::new(ErrorKind::System, "enough"));
                }
                send.wait().map(drop)
            });
            match ended {
                Ok(()) => assert_ne!(round, 2),
                Err(e) => assert_eq!((round, e.to_string().as_str()), (2, "enough")),
            }
            assert!(
                theirs
                    .iter()
                    .enumerate()
                    .all(|(i, x)| *x == (i / 100) as u64 + round)
            );
        }
        comm.barrier().expect("barrier");
        // What was never marked ready is an error; nobody waits for it.
        let left = comm.scope(|s| {
            let mut send = s.psend_init(&mut mine, 6, peer, 4)?;
            send.start()?;
            send.pready(1)
        });
        fails(left, ErrorKind::Argument, &["5 of 6"]);
        comm.barrier().expect("barrier");
    });
}

/// Sends of both tags, and some ordinary messages, in an order of its own.
fn sender(comm: &Communicator) -> Result<()> {
    let mut one = comm.psend_init(vec![1u32; 40], 4, 0, 1)?;
    let mut two = comm.psend_init(vec![2u32; 40], 5, 0, 2)?;
    for _ in 0..3 {
        two.start()?;
        two.pready_range(0..=3)?;
        comm.send(&[9u8], 0, 9)?;
        one.start()?;
        one.pready_list(&[3, 1, 0, 2])?;
        comm.recv(&mut [0u8], 0, 9)?; // one has come
        two.pready(4)?;
        let mut set = WaitSet::new();
        set.add(1, one)?;
        set.add(2, two)?;
        let mut back: Vec<_> = set
            .wait_all()
            .into_iter()
            .map(|(k, r)| (k, r.expect("sent").0))
            .collect();
        back.sort_by_key(|(k, _)| *k);
        two = back.pop().expect("two").1;
        one = back.pop().expect("one").1;
    }
    Ok(())
}

#[test]
fn wait_sets_have_partitioned_requests() {
    on_all(2, |comm| {
        if comm.rank() == 1 {
            return sender(&comm).expect("sender");
        }
        // Set up in another order than the sender, and before it: a barrier
        // would let it go first.
        let mut one = Some(comm.precv_init(vec![0u32; 40], 2, 1, 1).expect("init"));
        let mut two = Some(comm.precv_init(vec![0u32; 40], 8, 1, 2).expect("init"));
        for _ in 0..3 {
            let (mut a, mut b) = (one.take().expect("one"), two.take().expect("two"));
            a.start().expect("start");
            b.start().expect("start");
            let mut set = WaitSet::new();
            set.add(2, b).expect("add");
            set.add(1, a).expect("add");
            let (key, result) = set.wait().expect("two are in it");
            assert_eq!(key, 1, "the other is not ready");
            let (a, status) = result.expect("received");
            assert_eq!(status.count::<u32>(), Some(40));
            assert_eq!(a.buffer().expect("inactive")[..], [1; 40]);
            assert!(set.test().is_none());
            comm.send(&[0u8], 1, 9).expect("send");
            let (b, _) = set.wait().expect("one").1.expect("received");
            assert_eq!(b.buffer().expect("inactive")[..], [2; 40]);
            comm.recv(&mut [0u8], 1, 9).expect("recv");
            (one, two) = (Some(a), Some(b));
        }
    });
}

#[test]
fn wait_any_takes_partitioned_requests_among_other_kinds() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut recv = comm.precv_init(vec![0u8; 6], 3, peer, 0).expect("init");
        recv.start().expect("start");
        let never = comm.irecv(vec![0u8], peer, 77).expect("irecv");
        let mut all: Vec<AnyRequest<'_, Status>> =
            vec![AnyRequest::new(never), AnyRequest::new(recv)];
        let mut send = comm.psend_init(vec![4u8; 6], 2, peer, 0).expect("init");
        send.start().expect("start");
        send.pready_range(0..=1).expect("ready");
        let (at, status) = wait_any(&mut all).expect("two");
        assert_eq!((at, status.expect("received").bytes()), (1, 6));
        send.wait().expect("sent");
        comm.barrier().expect("barrier");
    });
}

/// Datatypes that begin behind or before their origin, in partitions of other sizes at both
/// ends.
#[test]
fn partitions_begin_where_their_types_do() {
    let types = [
        Type::indexed(&[(1, 2)], &i32::datatype()),
        Type::indexed(&[(1, -3)], &i32::datatype()),
        Type::subarray(&[4, 6], &[2, 3], &[1, 2], Order::C, &i32::datatype()),
        Type::indexed(&[(1, 2)], &i32::datatype()).and_then(|one| Type::resized(0, -16, &one)),
    ];
    let layouts: Vec<Layout> = types
        .into_iter()
        .map(|ty| ty.expect("a type").commit().expect("a layout"))
        .collect();
    on_all(2, |comm| {
        const ORIGIN: usize = 100;
        for (layout, (sends, receives)) in layouts.iter().zip([(4, 2), (2, 4), (1, 4), (4, 4)]) {
            let from: Vec<i32> = (0..256).collect();
            if comm.rank() == 0 {
                let cut = Partitions::of(sends, layout, 4 / sends).at(ORIGIN);
                let mut send = comm.psend_init(from, cut, 1, 5).expect("a send");
                send.start().expect("start");
                for at in (0..sends).rev() {
                    send.pready(at).expect("ready");
                }
                send.wait().expect("sent");
            } else {
                let cut = Partitions::of(receives, layout, 4 / receives).at(ORIGIN);
                let mut recv = comm
                    .precv_init(vec![-1i32; 256], cut, 0, 5)
                    .expect("a receive");
                recv.start().expect("start");
                recv.wait().expect("received");
                let mut wanted = vec![-1i32; 256];
                for (offset, bytes) in layout.blocks(4) {
                    for at in (offset / 4)..(offset + bytes as isize) / 4 {
                        let at = ORIGIN.wrapping_add_signed(at);
                        wanted[at] = from[at];
                    }
                }
                assert_eq!(recv.buffer().expect("inactive"), &wanted);
            }
        }
    });
}
