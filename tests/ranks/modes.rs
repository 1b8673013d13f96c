//! Buffered and ready mode, exchanges in place, cancelling, statuses.

use crate::support::{fails, on_all, pattern};
use osier::requests::wait_all;
use osier::testing::{Network, universes_on};
use osier::{ANY_SOURCE, ANY_TAG, Datatype, ErrorKind, PROC_NULL, Status, Type};

#[test]
fn buffered_send_completes_before_its_receive_is_posted() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        comm.attach_buffer(vec![0; 3_000_000]).expect("attach");
        for round in 0..3 {
            for (i, n) in [0, 8, 100_000, 1_000_000, 20].into_iter().enumerate() {
                let mut data = pattern(n, i + comm.rank());
                comm.bsend(&data, peer, i).expect("bsend");
                data.fill(0xEE); // the message has its own copy
                let request = comm.ibsend(pattern(n, i), peer, i + 10).expect("ibsend");
                assert_eq!(request.wait().expect("over").0, pattern(n, i));
            }
            for (i, n) in [0, 8, 100_000, 1_000_000, 20].into_iter().enumerate() {
                let (got, _) = comm.recv_vec::<u8>(peer, i).expect("recv");
                assert!(got == pattern(n, i + peer), "round {round}, {n} bytes");
                let (got, _) = comm.recv_vec::<u8>(peer, i + 10).expect("recv");
                assert!(got == pattern(n, i));
            }
            comm.flush_buffer();
        }
        comm.iflush_buffer().wait().expect("empty");
        assert_eq!(comm.detach_buffer().map(|b| b.len()), Some(3_000_000));
        assert_eq!(comm.detach_buffer(), None);
    });
}

#[test]
fn a_full_buffer_is_an_error_that_names_the_sizes() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let data = pattern(1_000_000, 0);
            fails(comm.bsend(&data, 1, 0), ErrorKind::Buffer, &["no buffer"]);
            comm.attach_buffer(vec![0; 1_500_000]).expect("attach");
            fails(
                comm.attach_buffer(Vec::new()),
                ErrorKind::Buffer,
                &["already"],
            );
            fails(
                comm.bsend(&pattern(2_000_000, 0), 1, 0),
                ErrorKind::Buffer,
                &["2000000", "1500000"],
            );
            comm.bsend(&data, 1, 0).expect("fits");
            fails(
                comm.bsend(&data, 1, 0),
                ErrorKind::Buffer,
                &["1000000", "1500000", "1 messages"],
            );
            comm.bsend(&data, PROC_NULL, 0).expect("nobody");
            comm.barrier().expect("barrier");
            // Waits until rank 1 has it.
            assert_eq!(comm.detach_buffer().map(|b| b.len()), Some(1_500_000));
        } else {
            comm.barrier().expect("barrier");
            let (got, _) = comm.recv_vec::<u8>(0, 0).expect("recv");
            assert!(got == pattern(1_000_000, 0));
        }
    });
}

#[test]
fn the_universe_has_a_buffer_for_all_communicators() {
    let _watchdog = crate::support::Watchdog::start();
    for network in Network::all() {
        universes_on(&network, 2, |universe| {
            let world = universe.world();
            let other = world.dup().expect("dup");
            let peer = 1 - world.rank();
            universe.attach_buffer(vec![0; 1_000_000]).expect("attach");
            other.attach_automatic().expect("attach");
            for comm in [world, &other] {
                for i in 0..4 {
                    comm.bsend(&pattern(200_000, i), peer, i).expect("bsend");
                }
            }
            // The communicator's own goes first, and it has no limit.
            other.bsend(&pattern(900_000, 9), peer, 9).expect("bsend");
            let mut flush = other.iflush_buffer();
            for comm in [world, &other] {
                for i in 0..4 {
                    let (got, _) = comm.recv_vec::<u8>(peer, i).expect("recv");
                    assert!(got == pattern(200_000, i));
                }
            }
            let (got, _) = other.recv_vec::<u8>(peer, 9).expect("recv");
            assert!(got == pattern(900_000, 9));
            while !flush.test() {}
            world.block_on(other.iflush_buffer()).expect("empty");
            assert_eq!(other.detach_buffer(), None, "automatic");
            assert_eq!(universe.detach_buffer().map(|b| b.len()), Some(1_000_000));
        });
    }
}

#[test]
fn ready_sends_arrive() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let requests: Vec<_> = (0..4)
            .map(|i| comm.irecv(vec![0u8; 200_000], peer, i).expect("irecv"))
            .collect();
        comm.barrier().expect("posted");
        comm.rsend(&pattern(8, 0), peer, 0).expect("rsend");
        comm.rsend(&pattern(200_000, 1), peer, 1).expect("rsend");
        let sent = comm.irsend(pattern(150_000, 2), peer, 2).expect("irsend");
        let data = pattern(16, 3);
        comm.scope(|s| s.irsend(&data, peer, 3).map(drop))
            .expect("irsend");
        sent.wait().expect("sent");
        let got = wait_all(requests).expect("received");
        for (i, n) in [8, 200_000, 150_000, 16].into_iter().enumerate() {
            assert!(got[i].0[..n] == pattern(n, i));
            assert_eq!(got[i].1.bytes(), n);
        }
    });
}

#[test]
fn exchanges_in_place() {
    on_all(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        for n in [0, 8, 1000, 300_000] {
            let mut data = pattern(n, rank);
            let status = comm
                .sendrecv_replace(&mut data, next, 1, previous, 1)
                .expect("sendrecv_replace");
            assert_eq!((status.source(), status.bytes()), (Some(previous), n));
            assert!(data == pattern(n, previous));

            let both = comm
                .isendrecv(pattern(n, rank), next, 2, vec![0u8; n], ANY_SOURCE, 2)
                .expect("isendrecv");
            let (sent, got, status) = comm.block_on(both).expect("exchanged");
            assert!(sent == pattern(n, rank) && got == pattern(n, previous));
            assert_eq!(status.source(), Some(previous));

            let mut replace = comm
                .isendrecv_replace(pattern(n, rank), next, 3, previous, ANY_TAG)
                .expect("isendrecv_replace");
            while !replace.test() {}
            assert_eq!(
                replace.status().expect("over").expect("fine").tag(),
                Some(3)
            );
            let (got, status) = replace.wait().expect("exchanged");
            assert!(got == pattern(n, previous));
            assert_eq!(status.bytes(), n);
        }
        let mut column = [rank as u32; 4];
        let odd = Type::vector(2, 1, 2, &u32::datatype())
            .and_then(|t| t.commit())
            .expect("a layout");
        let mut view = osier::ViewMut::new(&mut column, 0, &odd, 1).expect("a view");
        comm.sendrecv_replace(&mut view, next, 4, previous, 4)
            .expect("sendrecv_replace");
        let (p, r) = (previous as u32, rank as u32);
        assert_eq!(column, [p, r, p, r]);
        let mut own = [7u8];
        let status = comm
            .sendrecv_replace(&mut own, PROC_NULL, 0, PROC_NULL, 0)
            .expect("nobody");
        assert_eq!((own, status.source(), status.tag()), ([7], None, None));
    });
}

#[test]
fn a_receive_can_be_cancelled_and_a_send_cannot() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut never = comm.irecv(vec![1u8; 4], peer, 99).expect("irecv");
        assert!(never.status().is_none());
        assert!(never.cancel());
        assert!(never.test());
        assert!(never.status().expect("over").expect("fine").cancelled());
        assert!(!never.cancel(), "it is over");
        let (buffer, status) = never.wait().expect("cancelled");
        assert_eq!((buffer, status.cancelled()), (vec![1; 4], true));

        let mut met = comm.irecv(vec![0u8; 4], peer, 1).expect("irecv");
        let mut sent = comm.issend(vec![2u8; 4], peer, 1).expect("issend");
        assert!(!sent.cancel());
        while !met.test() {}
        assert!(!met.cancel());
        let (got, status) = met.wait().expect("received");
        assert_eq!((got, status.cancelled()), (vec![2; 4], false));
        assert!(!sent.wait().expect("sent").1.cancelled());

        // What was cancelled has met nothing: the message is for the next.
        let mut data = [0u8; 4];
        comm.scope(|s| {
            let mut request = s.irecv(&mut data, peer, 2)?;
            assert!(request.status().is_none());
            assert!(request.cancel());
            assert!(request.wait()?.cancelled());
            Ok(())
        })
        .expect("scope");
        comm.barrier().expect("cancelled");
        comm.send(&[3u8; 4], peer, 2).expect("send");
        assert_eq!(comm.recv_vec::<u8>(peer, 2).expect("recv").0, [3; 4]);
    });
}

#[test]
fn a_detached_receive_still_takes_its_message() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        comm.irecv(vec![0u8; 8], peer, 1).expect("irecv").detach();
        comm.barrier().expect("posted");
        comm.send(&[1u8; 8], peer, 1).expect("send");
        comm.send(&[2u8; 8], peer, 1).expect("send");
        assert_eq!(comm.recv_vec::<u8>(peer, 1).expect("recv").0, [2; 8]);
        comm.isend(pattern(500_000, 1), peer, 2)
            .expect("isend")
            .detach();
        let (got, _) = comm.recv_vec::<u8>(peer, 2).expect("recv");
        assert!(got == pattern(500_000, 1));
    });
}

#[test]
fn matched_messages_are_received_by_requests() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        for n in [8, 300_000] {
            comm.scope(|s| {
                let data = pattern(n, 5);
                let sent = comm.isend(data, peer, 5)?;
                let message = comm.mprobe(ANY_SOURCE, ANY_TAG)?;
                assert_eq!(message.status().bytes(), n);
                let (got, _) = message.irecv(vec![0u8; n])?.wait()?;
                assert!(got == pattern(n, 5));
                sent.wait().map(drop)?;
                let _ = s;
                Ok(())
            })
            .expect("scope");
            let sent = comm.isend(pattern(n, 6), peer, 6).expect("isend");
            let message = loop {
                if let Some(m) = comm.improbe(peer, 6).expect("improbe") {
                    break m;
                }
            };
            let mut got = vec![0u8; n];
            comm.scope(|s| s.imrecv(message, &mut got).map(drop))
                .expect("imrecv");
            assert!(got == pattern(n, 6));
            sent.wait().expect("sent");
        }
        let nobody = comm.mprobe(PROC_NULL, 0).expect("nobody");
        let (_, status) = nobody
            .irecv(vec![0u8; 1])
            .and_then(|r| r.wait())
            .expect("nobody");
        assert_eq!(status, Status::empty());
    });
}

#[test]
fn proc_null_completes_in_every_mode() {
    on_all(1, |comm| {
        comm.attach_automatic().expect("attach");
        let data = [1u8; 8];
        comm.rsend(&data, PROC_NULL, 0).expect("rsend");
        comm.bsend(&data, PROC_NULL, 0).expect("bsend");
        comm.ssend(&data, PROC_NULL, 0).expect("ssend");
        let mut request = comm.irecv(vec![0u8; 8], PROC_NULL, ANY_TAG).expect("irecv");
        assert!(request.test());
        let (_, status) = request.wait().expect("over");
        assert_eq!(
            (status.source(), status.tag(), status.bytes()),
            (None, None, 0)
        );
        assert_eq!(comm.iprobe(PROC_NULL, 0).expect("iprobe"), Some(status));
    });
}

#[test]
fn statuses_count_items_and_elements() {
    // i32, then three f64 with a gap before: 28 bytes per item.
    let item = Type::structure(&[(1, 0, i32::datatype()), (3, 8, f64::datatype())])
        .and_then(|t| t.commit())
        .expect("a layout");
    let cases = [
        (0, Some(0), Some(0)),
        (4, None, Some(1)),
        (6, None, None),
        (12, None, Some(2)),
        (28, Some(1), Some(4)),
        (30, None, None),
        (32, None, Some(5)),
        (56, Some(2), Some(8)),
    ];
    for (bytes, items, elements) in cases {
        let mut status = Status::new(0, 0, bytes);
        assert_eq!(status.count_of(&item), items, "{bytes} bytes");
        assert_eq!(status.elements_of(&item), elements, "{bytes} bytes");
        if let Some(n) = elements {
            status.set_bytes(1);
            status.set_elements(&item, n).expect("elements");
            assert_eq!(status.bytes(), bytes);
        }
    }
    let nothing = Type::contiguous(0, &f64::datatype())
        .and_then(|t| t.commit())
        .expect("a layout");
    assert_eq!(Status::new(0, 0, 0).elements_of(&nothing), Some(0));
    assert_eq!(Status::new(0, 0, 8).elements_of(&nothing), None);
    let mut status = Status::empty();
    assert!(status.set_elements(&nothing, 1).is_err());
    assert!(status.set_elements(&item, usize::MAX).is_err());
    status.set_source(Some(3));
    status.set_tag(Some(4));
    status.set_cancelled(true);
    assert_eq!((status.source(), status.tag()), (Some(3), Some(4)));
    assert!(status.cancelled());
}
