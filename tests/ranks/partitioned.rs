//! Partitioned transfers.

use crate::support::{Random, fails, on_all};
use osier::{Datatype, ErrorKind, PROC_NULL, Startable, start_all};

#[test]
fn threads_say_what_is_ready_and_ends_differ() {
    on_all(2, |comm| {
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

#[test]
fn what_does_not_fit_is_an_error() {
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
        let _send = comm.psend_init(vec![0u8; 10], 2, peer, 0).expect("init");
        let mut recv = comm.precv_init(vec![0u8; 12], 2, peer, 0).expect("init");
        let result = recv.start().and_then(|()| recv.wait());
        fails(
            result,
            ErrorKind::Argument,
            &["tag 0", "2 partitions of 5 bytes", "2 of 6"],
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
fn dropped_while_active() {
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

#[test]
fn the_end_of_the_sender_is_told() {
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
