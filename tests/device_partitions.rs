//! Partitioned transfers of a device's memory.

use crate::support::{fails, pattern};
use crate::{driver, memory, on_streams, upload};
use osier::devices::{Stream, StreamSemaphore, copy};
use osier::errors::ErrorHandler;
use osier::partitioned::Partitions;
use osier::persistent::Startable;
use osier::requests::wait_all;
use osier::testing::Network;
use osier::{Communicator, Datatype, ErrorKind, Layout, Type};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sends `bytes`, in partitions that become ready last first, to whatever receives.
fn send(comm: &Communicator, stream: &Stream, bytes: &[u8], cut: Partitions, device: bool) {
    if !device {
        let mut send = comm.psend_init(vec![0u8; bytes.len()], cut, 1, 3).unwrap();
        for _ in 0..2 {
            send.buffer_mut().unwrap().copy_from_slice(bytes);
            send.start().unwrap();
            for at in (0..send.partitions()).rev() {
                send.pready(at).unwrap();
            }
            send.wait().unwrap();
        }
        return;
    }
    let data = memory(stream, bytes.len());
    let mut send = comm.psend_init_device(&data, cut, 1, 3).unwrap();
    for _ in 0..2 {
        send.start().unwrap();
        upload(stream, bytes, &data);
        for at in (0..send.partitions()).rev() {
            send.pready(at, stream).unwrap();
        }
        send.wait().unwrap();
        // The memory is ours again.
        upload(stream, &vec![0; bytes.len()], &data);
    }
}

/// What has come, with the bytes between the instances as they were.
fn receive(
    comm: &Communicator,
    stream: &Stream,
    len: usize,
    cut: Partitions,
    device: bool,
) -> Vec<u8> {
    let before = vec![0xA5; len];
    if !device {
        let mut recv = comm.precv_init(before.clone(), cut, 0, 3).unwrap();
        for _ in 0..2 {
            recv.buffer_mut().unwrap().copy_from_slice(&before);
            recv.start().unwrap();
            recv.wait().unwrap();
        }
        return recv.into_buffer().unwrap();
    }
    let mut place = memory(stream, len);
    let mut recv = comm.precv_init_device(&mut place, cut, 0, 3).unwrap();
    for _ in 0..2 {
        upload(stream, &before, &place);
        recv.start(stream).unwrap();
        for at in 0..recv.partitions() {
            while !recv.parrived(at).unwrap() {}
        }
        let status = recv.wait().unwrap();
        assert!(status.bytes() <= len);
    }
    driver::download(stream, &place)
}

fn every_third(bytes: usize) -> Layout {
    let blocks = Type::vector(bytes / 8, 8, 24, &u8::datatype()).unwrap();
    let extent = 3 * bytes as isize;
    Type::resized(0, extent, &blocks).unwrap().commit().unwrap()
}

#[test]
fn ends_on_device_and_host_match_with_different_partitions() {
    on_streams(&Network::all(), |comm, stream| {
        for (from, to) in [(true, true), (true, false), (false, true)] {
            for (total, sends, receives) in [(0, 3, 2), (48, 6, 2), (24_000, 5, 3), (3 << 20, 4, 6)]
            {
                // Equal runs to equal runs, then to blocks with gaps, and back.
                for shape in 0..if total > 100_000 { 1 } else { 3 } {
                    let (gaps_here, gaps_there) = (shape == 1, shape == 2);
                    if total % (receives * 8) != 0 || total % (sends * 8) != 0 {
                        continue;
                    }
                    let bytes = pattern(total, 7 * shape);
                    let spread = |packed: &[u8], fill: u8| {
                        let mut wide = vec![fill; 3 * packed.len()];
                        for (i, block) in packed.chunks(8).enumerate() {
                            wide[24 * i..][..block.len()].copy_from_slice(block);
                        }
                        wide
                    };
                    let cut = |parts: usize, gaps: bool| match gaps {
                        true => Partitions::of(parts, &every_third(total / parts), 1),
                        false => Partitions::equal(parts),
                    };
                    if comm.rank() == 0 {
                        let data = match gaps_here {
                            true => spread(&bytes, 0),
                            false => bytes,
                        };
                        send(comm, stream, &data, cut(sends, gaps_here), from);
                    } else {
                        let (want, len) = match gaps_there {
                            true => (spread(&bytes, 0xA5), 3 * total),
                            false => (bytes, total),
                        };
                        let got = receive(comm, stream, len, cut(receives, gaps_there), to);
                        assert!(
                            got == want,
                            "{from} {to} {total} {sends} {receives} {shape}"
                        );
                    }
                }
            }
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn a_partition_is_sent_when_its_ready_event_has_passed() {
    on_streams(&Network::all(), |comm, stream| {
        let bytes = pattern(90_000, 1);
        if comm.rank() == 0 {
            let (semaphore, slow) = (
                StreamSemaphore::new(stream.context()).unwrap(),
                Stream::new(stream.context()).unwrap(),
            );
            let data = memory(stream, bytes.len());
            upload(stream, &vec![0; bytes.len()], &data);
            let first = driver::upload(stream, &bytes);
            let mut send = comm.psend_init_device(&data, 3, 1, 0).unwrap();
            Startable::start(&mut send).unwrap();
            // The last third is computed on a stream that is late.
            slow.wait(&stream.record().unwrap()).unwrap();
            semaphore.hold(&slow).unwrap();
            let (a, b) = (
                first.slice(..60_000).unwrap(),
                first.slice(60_000..).unwrap(),
            );
            let (to_a, to_b) = (data.slice(..60_000).unwrap(), data.slice(60_000..).unwrap());
            copy::copy(stream, &a.after_stream(stream), &to_a.after_stream(stream)).unwrap();
            copy::copy(&slow, &b.after_stream(&slow), &to_b.after_stream(&slow)).unwrap();
            send.pready(2, &slow).unwrap();
            send.pready_range(0..=1, stream).unwrap();
            fails(send.pready(2, stream), ErrorKind::Argument, &["already"]);
            fails(send.pready(3, stream), ErrorKind::Argument, &["3 of 3"]);
            // Two thirds are there while the last is not computed.
            comm.recv(&mut [0u8], 1, 1).unwrap();
            assert!(!send.test());
            semaphore.open();
            send.wait().unwrap();
        } else {
            let mut place = memory(stream, bytes.len());
            let mut recv = comm.precv_init_device(&mut place, 3, 0, 0).unwrap();
            recv.start(stream).unwrap();
            fails(recv.start(stream), ErrorKind::Argument, &["active"]);
            while !(recv.parrived(0).unwrap() && recv.parrived(1).unwrap()) {}
            assert!(!recv.parrived(2).unwrap());
            let there = driver::download(stream, &place.slice(..60_000).unwrap());
            assert!(there == bytes[..60_000]);
            comm.send(&[0u8], 0, 1).unwrap();
            let done = wait_all([recv]).unwrap();
            assert_eq!(done.len(), 1);
            assert!(driver::download(stream, &place) == bytes);
        }
    });
}

#[test]
fn dropped_send_completes_and_dropped_receive_is_given_up() {
    on_streams(&Network::all(), |comm, stream| {
        let data = driver::upload(stream, &[7; 4096]);
        if comm.rank() == 0 {
            let mut send = comm.psend_init_device(&data, 2, 1, 0).unwrap();
            fails(send.pready(0, stream), ErrorKind::Argument, &["not active"]);
            send.start().unwrap();
            send.pready_list(&[0, 1], stream).unwrap();
            drop((send, data));
            // One that nobody will ever send to.
            let mut place = driver::upload(stream, &[1; 64]);
            let mut recv = comm.precv_init_device(&mut place, 2, 1, 0).unwrap();
            recv.start(stream).unwrap();
            drop(recv);
            assert_eq!(driver::download(stream, &place), [1; 64]);
        } else {
            let mut place = memory(stream, 4096);
            let mut recv = comm.precv_init_device(&mut place, 8, 0, 0).unwrap();
            recv.start(stream).unwrap();
            recv.wait().unwrap();
            assert_eq!(driver::download(stream, &place), [7; 4096]);
            let wrong = comm.precv_init_device(&mut place, 3, 0, 0);
            fails(
                wrong.map(drop),
                ErrorKind::Argument,
                &["4096 elements in 3"],
            );
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn failed_partitioned_call_runs_handler_once() {
    on_streams(&[Network::Shm], |comm, stream| {
        let comm = comm.dup().unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        comm.set_error_handler(ErrorHandler::custom(move |_, _| {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let check = |name: &str, failed: osier::Result<()>| {
            assert!(failed.is_err(), "{name}");
            assert_eq!(runs.swap(0, Ordering::Relaxed), 1, "{name}");
        };
        let (mut data, me) = (driver::upload(stream, &[1; 12]), comm.rank());
        check("rank", comm.psend_init_device(&data, 2, 9, 0).map(drop));
        check("cut", comm.precv_init_device(&mut data, 5, me, 0).map(drop));
        let mut send = comm.psend_init_device(&data, 2, me, 0).unwrap();
        check("pready", send.pready(0, stream));
        send.start().unwrap();
        check("start", send.start());
        check("pready_range", send.pready_range(7..=7, stream));
        check("pready_list", send.pready_list(&[7], stream));
        let mut place = memory(stream, 12);
        let mut recv = comm.precv_init_device(&mut place, 3, me, 0).unwrap();
        recv.start(stream).unwrap();
        check("start", recv.start(stream));
        check("parrived", recv.parrived(7).map(drop));
        send.pready_range(0..=1, stream).unwrap();
        recv.wait().unwrap();
        send.wait().unwrap();
        // What the sender has does not fit.
        let _long = comm.psend_init_device(&data, 2, me, 1).unwrap();
        let mut short = comm
            .precv_init_device(&mut place.slice(..6).unwrap(), 2, me, 1)
            .unwrap();
        check("start", short.start(stream));
        // Its sender leaves.
        let mut begun = || {
            let mut recv = comm.precv_init_device(&mut place, 2, 0, 2).unwrap();
            recv.start(stream).unwrap();
            recv
        };
        let both = (me == 1).then(|| (begun(), begun()));
        comm.barrier().unwrap();
        let Some((first, second)) = both else {
            return;
        };
        check("wait", first.wait().map(drop));
        let status = loop {
            if let Some(status) = second.status() {
                break status;
            }
        };
        check("status", status.map(drop));
    });
}
