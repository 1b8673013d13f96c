//! Transfers of borrowed memory: complete or revoked, never left behind.

use crate::support::{fails, on_all, pattern};
use osier::{ANY_TAG, Communicator, Error, ErrorKind, Result, Scope, Type, View, ViewMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How a scope's function ends before its transfers do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Error,
    Unwind,
}

const ENDS: [End; 2] = [End::Error, End::Unwind];

struct Thrown;

/// Runs a scope whose function posts something, and then fails.
fn failing_scope<'env>(
    comm: &'env Communicator,
    end: End,
    post: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<()>,
) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        comm.scope(|s| {
            post(s)?;
            match end {
                End::Error => Err::<(), _>(Error::new(ErrorKind::Argument, "given up")),
                // No message on standard error, unlike a panic.
                End::Unwind => resume_unwind(Box::new(Thrown)),
            }
        })
    }));
    match (end, result) {
        (End::Error, Ok(result)) => drop(fails(result, ErrorKind::Argument, &["given up"])),
        (End::Unwind, Err(panic)) => assert!(panic.is::<Thrown>()),
        (_, Ok(_)) => panic!("the scope did not unwind"),
        (_, Err(panic)) => resume_unwind(panic),
    }
}

#[test]
fn a_scope_ends_after_its_transfers() {
    on_all(3, |comm| {
        let (me, n) = (comm.rank(), comm.size());
        for bytes in [8, 5_000, 100_000, 1_000_000] {
            let mine: Vec<_> = (0..n).map(|to| pattern(bytes, me * n + to)).collect();
            let mut got = vec![vec![0; bytes]; n];
            let answer = comm.scope(|s| {
                for (peer, (mine, got)) in mine.iter().zip(&mut got).enumerate() {
                    drop(s.issend(mine, peer, 0)?); // dropping is not cancelling
                    let _ = s.irecv(got, peer, 0)?;
                }
                Ok(42)
            });
            assert_eq!(answer.expect("scope"), 42);
            for (from, got) in got.iter().enumerate() {
                assert!(*got == pattern(bytes, from * n + me), "{bytes} bytes");
            }
        }
    });
}

#[test]
fn posted_receives_are_revoked_and_lose_no_message() {
    on_all(2, |comm| {
        for end in ENDS {
            for bytes in [8, 5_000, 100_000, 1_000_000] {
                if comm.rank() == 0 {
                    comm.barrier().expect("revoked");
                    comm.send(&pattern(bytes, 1), 1, 0).expect("send");
                } else {
                    let mut buffer = vec![7; bytes];
                    failing_scope(&comm, end, |s| s.irecv(&mut buffer, 0, 0).map(drop));
                    comm.barrier().expect("revoked");
                    let (got, _) = comm.recv_vec::<u8>(0, 0).expect("the message");
                    assert!(got == pattern(bytes, 1));
                    assert!(buffer.iter().all(|b| *b == 7), "{end:?}, {bytes} bytes");
                }
            }
        }
    });
}

/// Every second of `n` elements of 8 bytes, so that the sender's memory cannot
/// be read in one piece.
fn gaps(n: usize) -> osier::Layout {
    Type::vector(n, 1, 2, &Type::of::<u64>())
        .and_then(|t| t.commit())
        .expect("a vector")
}

#[test]
fn receives_in_mid_stream_are_revoked() {
    const N: usize = 1 << 20;
    let gaps = gaps(N);
    on_all(2, |comm| {
        for (end, strided, polls) in [
            (End::Error, false, 1),
            (End::Unwind, false, 20),
            (End::Error, true, 3),
            (End::Unwind, true, 30),
            (End::Unwind, true, 300),
        ] {
            if comm.rank() == 0 {
                comm.barrier().expect("posted");
                let memory = vec![5u64; 2 * N];
                let view = View::new(&memory, 0, &gaps, 1).expect("view");
                comm.scope(|s| {
                    match strided {
                        true => s.isend(&view, 1, 0)?,
                        false => s.isend(&memory[..N], 1, 0)?,
                    };
                    comm.send(&[3u8], 1, 1)
                })
                .expect("the receiver drops the rest");
            } else {
                let mut buffer = vec![7u64; N];
                failing_scope(&comm, end, |s| {
                    let mut request = s.irecv(&mut buffer, 0, 0)?;
                    comm.barrier()?;
                    // Some of the bytes come; whether all do, depends.
                    for _ in 0..polls {
                        request.test();
                        std::thread::yield_now();
                    }
                    Ok(())
                });
                let seen = buffer.clone();
                let mut next = [0u8];
                comm.recv(&mut next, 0, 1).expect("the next message");
                assert_eq!(next, [3]);
                assert!(buffer == seen, "{end:?}: written after the scope");
                // Unmatched if the receive was gone before it came.
                drop(comm.improbe(0, 0).expect("improbe"));
            }
            comm.barrier().expect("barrier");
        }
    });
}

#[test]
fn announced_sends_are_withdrawn() {
    const N: usize = 200_000;
    let gaps = gaps(N);
    on_all(2, |comm| {
        for (end, strided) in [
            (End::Error, false),
            (End::Error, true),
            (End::Unwind, false),
            (End::Unwind, true),
        ] {
            if comm.rank() == 0 {
                let memory = vec![5u64; 2 * N];
                let view = View::new(&memory, 0, &gaps, 1).expect("view");
                failing_scope(&comm, end, |s| match strided {
                    true => s.issend(&view, 1, 0).map(drop),
                    false => s.issend(&memory, 1, 0).map(drop),
                });
                drop(memory);
                comm.send(&[3u8], 1, 1).expect("the next message");
            } else {
                let mut next = [0u8];
                comm.recv(&mut next, 0, 1).expect("the next message");
                assert_eq!(comm.iprobe(0, ANY_TAG).expect("iprobe"), None);
            }
            comm.barrier().expect("barrier");
        }
    });
}

#[test]
fn sends_in_mid_stream_are_cancelled() {
    const N: usize = 1 << 20;
    let gaps = gaps(N);
    on_all(2, |comm| {
        for (end, polls) in [
            (End::Error, 1),
            (End::Unwind, 3),
            (End::Error, 30),
            (End::Unwind, 300),
        ] {
            if comm.rank() == 0 {
                let memory = vec![5u64; 2 * N];
                let view = View::new(&memory, 0, &gaps, 1).expect("view");
                failing_scope(&comm, end, |s| {
                    let mut request = s.issend(&view, 1, 0)?;
                    comm.barrier()?;
                    for _ in 0..polls {
                        request.test();
                        std::thread::yield_now();
                    }
                    Ok(())
                });
                drop(memory);
                comm.send(&[3u8], 1, 1).expect("the next message");
            } else {
                let receive = comm.irecv(vec![7u64; N], 0, 0).expect("irecv");
                comm.barrier().expect("posted");
                let mut next = [0u8];
                comm.recv(&mut next, 0, 1).expect("the next message");
                assert_eq!(next, [3]);
                // A cancellation answers the announcement: either it met the
                // receive and took it along, or all of the data came.
                match receive.wait() {
                    Ok((data, status)) => {
                        assert_eq!(status.bytes(), 8 * N);
                        assert!(data.iter().all(|x| *x == 5));
                    }
                    Err(e) => {
                        fails::<()>(
                            Err(e),
                            ErrorKind::Cancelled,
                            &["rank 0", "tag 0", "cancelled"],
                        );
                    }
                }
            }
            comm.barrier().expect("barrier");
        }
    });
}

#[test]
fn eager_sends_are_out_of_the_senders_hands() {
    on_all(2, |comm| {
        for end in ENDS {
            for bytes in [8, 600, 30_000] {
                if comm.rank() == 0 {
                    let memory = pattern(bytes, 2);
                    failing_scope(&comm, end, |s| {
                        s.isend(&memory, 1, 0)?;
                        s.issend(&memory, 1, 1).map(drop)
                    });
                    drop(memory);
                    comm.send(&[3u8], 1, 2).expect("the next message");
                } else {
                    let mut next = [0u8];
                    comm.recv(&mut next, 0, 2).expect("the next message");
                    if bytes < 1_000 {
                        let (got, _) = comm.recv_vec::<u8>(0, 0).expect("it has left");
                        assert!(got == pattern(bytes, 2));
                    }
                    // Whether the others have left, depends on the protocol.
                    while let Some(message) = comm.improbe(0, ANY_TAG).expect("improbe") {
                        let (got, _) = message.recv_vec::<u8>().expect("whole");
                        assert!(got == pattern(bytes, 2));
                    }
                }
                comm.barrier().expect("barrier");
            }
        }
    });
}

#[test]
fn one_error_spoils_no_other_transfer() {
    on_all(2, |comm| {
        let sizes = [10, 10_000, 1_000_000];
        if comm.rank() == 0 {
            for (i, n) in sizes.into_iter().enumerate() {
                comm.send(&pattern(n, i), 1, i).expect("send");
            }
        } else {
            let mut short = [0u8; 9_999];
            let mut first = vec![0; sizes[0]];
            let mut last = vec![0; sizes[2]];
            let result = comm.scope(|s| {
                s.irecv(&mut last, 0, 2)?;
                s.irecv(&mut short, 0, 1)?;
                s.irecv(&mut first, 0, 0)?;
                Ok(())
            });
            fails(
                result,
                ErrorKind::Truncated,
                &["10000", "9999", "rank 0", "tag 1"],
            );
            assert!(first == pattern(sizes[0], 0) && last == pattern(sizes[2], 2));
            assert_eq!(short, pattern(10_000, 1)[..9_999]);
        }
    });
}

#[test]
fn single_requests_are_revoked() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let memory = pattern(500_000, 0);
            comm.scope(|s| s.issend(&memory, 1, 0)?.revoke())
                .expect("send");
            let mut buffer = vec![1u8; 500_000];
            comm.scope(|s| s.irecv(&mut buffer, 1, 0)?.revoke())
                .expect("receive");
            let request = comm.issend(memory, 1, 0).expect("issend");
            let memory = request.revoke().expect("the buffer");
            assert!(memory == pattern(500_000, 0));
            let request = comm.irecv(buffer, 1, 0).expect("irecv");
            let buffer = request.revoke().expect("the buffer");
            assert!(buffer.iter().all(|b| *b == 1));
            comm.barrier().expect("barrier");
            comm.send(&memory, 1, 0).expect("send");
        } else {
            comm.barrier().expect("barrier");
            let (got, _) = comm.recv_vec::<u8>(0, 0).expect("the one not revoked");
            assert!(got == pattern(500_000, 0));
        }
    });
}

#[test]
fn scopes_nest() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let outer_data = pattern(400_000, 1);
        let mut outer = vec![0; 400_000];
        comm.scope(|s| {
            s.irecv(&mut outer, peer, 0)?;
            let inner_data = pattern(300_000, 2);
            let mut inner = vec![0; 300_000];
            comm.scope(|s| {
                s.irecv(&mut inner, peer, 1)?;
                s.isend(&inner_data, peer, 1)?;
                Ok(())
            })?;
            assert!(inner == inner_data);
            s.isend(&outer_data, peer, 0)?;
            Ok(())
        })
        .expect("outer");
        assert!(outer == outer_data);
    });
}

#[test]
fn a_scope_that_fails_beside_a_dead_rank_ends() {
    on_all(2, |comm| {
        if comm.rank() == 1 {
            comm.barrier().expect("posted");
            return; // dies with nothing received
        }
        let memory = vec![5u64; 200_000];
        let mut buffer = vec![7u64; 200_000];
        let gaps = gaps(100_000);
        let mut sparse = vec![7u64; 200_000];
        let mut sparse = ViewMut::new(&mut sparse, 0, &gaps, 1).expect("view");
        failing_scope(&comm, End::Unwind, |s| {
            s.isend(&memory, 1, 0)?;
            s.irecv(&mut buffer, 1, 0)?;
            s.irecv(&mut sparse, 1, 1)?;
            comm.barrier()
        });
        assert!(buffer.iter().all(|b| *b == 7));
    });
}
