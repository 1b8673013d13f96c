//! Persistent requests.

use crate::support::{Random, fails, on_all, pattern};
use osier::persistent::{Startable, start_all};
use osier::requests::WaitSet;
use osier::{ANY_SOURCE, ErrorKind, Op, PROC_NULL};

#[test]
fn requests_are_started_again_and_again() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        comm.attach_automatic().expect("attach");
        for n in [0, 8, 2000, 300_000] {
            let data = || vec![0u8; n];
            let mut sends = [
                comm.send_init(data(), peer, 0).expect("send_init"),
                comm.ssend_init(data(), peer, 1).expect("ssend_init"),
                comm.bsend_init(data(), peer, 2).expect("bsend_init"),
                comm.rsend_init(data(), peer, 3).expect("rsend_init"),
            ];
            let mut receives = [0, 1, 2, 3].map(|tag| {
                let source = if tag == 1 { ANY_SOURCE } else { peer.into() };
                comm.recv_init(data(), source, tag).expect("recv_init")
            });
            for round in 0..5 {
                for (i, send) in sends.iter_mut().enumerate() {
                    let bytes = pattern(n, round * 10 + i + comm.rank());
                    send.buffer_mut().expect("inactive").copy_from_slice(&bytes);
                }
                start_all(&mut receives).expect("start");
                start_all(&mut sends).expect("start");
                for (i, receive) in receives.iter_mut().enumerate() {
                    let status = receive.wait().expect("wait");
                    assert_eq!((status.tag(), status.bytes()), (Some(i as u32), n));
                    let bytes = pattern(n, round * 10 + i + peer);
                    assert!(receive.buffer().expect("inactive") == &bytes);
                }
                for send in &mut sends {
                    send.wait().expect("wait");
                    assert!(!send.is_active());
                }
            }
            comm.barrier().expect("barrier");
        }
    });
}

#[test]
fn active_request_refuses_start_and_buffer() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut recv = comm.recv_init(vec![0u8; 8], peer, 0).expect("recv_init");
        assert!(recv.wait().expect("inactive").source().is_none());
        assert!(recv.test());
        recv.start().expect("start");
        assert!(recv.is_active());
        fails(recv.start(), ErrorKind::Argument, &["active"]);
        fails(recv.buffer().map(drop), ErrorKind::Argument, &["in flight"]);
        fails(
            recv.buffer_mut().map(drop),
            ErrorKind::Argument,
            &["in flight"],
        );
        assert!(recv.cancel());
        assert!(recv.wait().expect("cancelled").cancelled());
        // The buffer may be exchanged, and is larger now.
        *recv.buffer_mut().expect("inactive") = vec![0u8; 100_000];
        recv.start().expect("start");
        comm.barrier().expect("posted");
        comm.send(&pattern(100_000, 1), peer, 0).expect("send");
        assert_eq!(comm.block_on(&mut recv).expect("over").bytes(), 100_000);
        assert!(recv.into_buffer().expect("inactive") == pattern(100_000, 1));

        let mut nobody = comm.send_init(vec![1u8], PROC_NULL, 0).expect("init");
        nobody.start().expect("start");
        nobody.wait().expect("nobody");
    });
}

#[test]
fn borrowed_memory_ends_with_the_scope() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut mine = vec![0u8; 50_000];
        let mut theirs = vec![0u8; 50_000];
        comm.scope(|s| {
            let mut send = s.send_init(&mut mine, peer, 0)?;
            let mut recv = s.recv_init(&mut theirs, peer, 0)?;
            for round in 0..5 {
                send.buffer_mut()?
                    .copy_from_slice(&pattern(50_000, round + comm.rank()));
                start_all([&mut recv as &mut dyn Startable, &mut send])?;
                fails(recv.start(), ErrorKind::Argument, &["active"]);
                send.wait()?;
                recv.wait()?;
                assert!(recv.buffer()? == &pattern(50_000, round + peer));
            }
            // Left to the scope: started and leaked.
            recv.start()?;
            send.start()?;
            std::mem::forget(recv);
            drop(send);
            Ok(())
        })
        .expect("scope");
        assert!(theirs == pattern(50_000, 4 + peer));
    });
}

#[test]
fn dropped_active_send_completes_and_receive_is_cancelled() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut send = comm
            .send_init(pattern(500_000, 7), peer, 0)
            .expect("send_init");
        let mut never = comm.recv_init(vec![0u8; 8], peer, 1).expect("recv_init");
        start_all([&mut send, &mut never]).expect("start");
        drop((send, never));
        assert!(comm.recv_vec::<u8>(peer, 0).expect("recv").0 == pattern(500_000, 7));
        comm.barrier().expect("dropped");
        comm.send(&[1u8; 8], peer, 1).expect("send");
        assert_eq!(comm.recv_vec::<u8>(peer, 1).expect("recv").0, [1; 8]);
    });
}

#[test]
fn wait_set_returns_persistent_requests_to_be_started_again() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut set = WaitSet::new();
        for tag in 0..20u32 {
            let mut recv = comm.recv_init(vec![0u32; 1], peer, tag).expect("recv_init");
            recv.start().expect("start");
            set.add(tag, recv).expect("add");
        }
        for round in 0..10 {
            for tag in 0..20u32 {
                comm.send(&[tag + round], peer, tag).expect("send");
            }
        }
        let mut rounds = [0; 20];
        while let Some((tag, result)) = set.wait() {
            let (mut recv, _) = result.expect("received");
            let round = &mut rounds[tag as usize];
            assert_eq!(recv.buffer().expect("inactive")[..], [tag + *round]);
            *round += 1;
            if *round < 10 {
                recv.start().expect("start");
                set.add(tag, recv).expect("add");
            }
        }
        assert_eq!(rounds, [10; 20]);
    });
}

/// Each request has flags and slots of its own, as long as there are few; what one leaves, later
/// ones use.
#[test]
fn many_collectives_are_set_up_started_and_dropped() {
    on_all(3, |comm| {
        let me = comm.rank() as u64;
        let mut dice = Random::new(7);
        let mut kept = Vec::new();
        for number in 0..1500usize {
            // Slots beside the flag, in a page, and elsewhere.
            let n = [1, 40, 900][number % 3];
            let mut sum = comm
                .allreduce_init(vec![0u64; n], vec![0u64; n], Op::Sum)
                .expect("init");
            for round in 0..number % 4 {
                let value = (number + round) as u64;
                sum.buffers_mut().expect("inactive").0.fill(value + me);
                sum.start().expect("start");
                if round == 2 {
                    continue; // dropped while it is active
                }
                sum.wait().expect("wait");
                let sums = &sum.buffers().expect("inactive").1;
                assert!(sums.iter().all(|s| *s == 3 * value + 3), "{number}");
            }
            // All ranks draw alike.
            if dice.below(5) == 0 && !sum.is_active() {
                kept.push(sum);
            }
            if kept.len() > 40 {
                kept.swap_remove(dice.below(40));
            }
        }
        Random::new(me + 1).shuffle(&mut kept);
        start_all(&mut kept).expect("start");
        comm.barrier().expect("barrier");
        for sum in &mut kept {
            sum.wait().expect("wait");
        }
    });
}

/// A rank that is late in starting holds nobody up but those who wait for that request.
#[test]
fn starts_wait_for_nobody() {
    on_all(2, |comm| {
        let init = |n: usize| comm.allreduce_init(vec![1u64; n], vec![0u64; n], Op::Sum);
        let (mut early, mut late) = (init(4).expect("init"), init(2000).expect("init"));
        for _ in 0..20 {
            if comm.rank() == 0 {
                early.start().expect("start");
                late.start().expect("start");
                late.wait().expect("wait");
                comm.send(&[1u8], 1, 0).expect("send");
            } else {
                late.start().expect("start");
                late.wait().expect("wait");
                comm.recv(&mut [0u8], 0, 0).expect("recv");
                assert!(!early.is_active());
                early.start().expect("start");
            }
            early.wait().expect("wait");
            assert_eq!(early.buffers().expect("inactive").1, [2; 4]);
        }
    });
}
