//! Requests as futures, and requests that nobody waits for.

use crate::support::{Random, fails, on_all, on_threads, pattern};
use osier::buffers::{OwnedBuffer, OwnedBufferMut};
use osier::{Buffer, BufferMut, Communicator, ErrorKind, View, ViewMut};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

const SIZES: [usize; 5] = [8, 5_000, 70_000, 300_000, 1_000_000];

/// Unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An executor that knows nothing of Osier: it sleeps until it is woken.
pub fn foreign_block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // It would park the thread of all virtual ranks of a worker.
        if !osier::task::give_turn() {
            std::thread::park();
        }
    }
}

/// All outputs, in order.
async fn join<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(move |context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(o) = Pin::new(future).poll(context)
            {
                *output = Some(o);
            }
        }
        if outputs.iter().all(Option::is_some) {
            return Poll::Ready(outputs.iter_mut().filter_map(Option::take).collect());
        }
        Poll::Pending
    })
    .await
}

async fn ping_pong(comm: &Communicator) -> osier::Result<()> {
    let peer = 1 - comm.rank();
    for (i, &n) in SIZES.iter().enumerate() {
        let mut buffer = vec![0; n];
        if comm.rank() == 0 {
            comm.isend(pattern(n, i), peer, i)?.await?;
            (buffer, _) = comm.irecv(buffer, peer, i)?.await?;
        } else {
            (buffer, _) = comm.irecv(buffer, peer, i)?.await?;
            comm.issend(buffer.clone(), peer, i)?.await?;
        }
        assert!(buffer == pattern(n, i), "{n} bytes");
    }
    Ok(())
}

async fn exchange(comm: &Communicator) -> osier::Result<()> {
    let peer = 1 - comm.rank();
    let mut order: Vec<usize> = (0..SIZES.len()).collect();
    Random::new(comm.rank() as u64).shuffle(&mut order);
    let mut requests = Vec::new();
    for &i in &order {
        requests.push(comm.irecv(vec![0; SIZES[i]], peer, i)?);
    }
    order.reverse();
    for &i in &order {
        requests.push(comm.issend(pattern(SIZES[i], i), peer, i)?);
    }
    for result in join(requests).await.into_iter().take(SIZES.len()) {
        let (got, status) = result?;
        let i = status.tag().expect("a tag") as usize;
        assert!(got == pattern(SIZES[i], i), "{} bytes", SIZES[i]);
    }
    Ok(())
}

#[test]
fn block_on_runs_futures() {
    on_all(2, |comm| {
        assert_eq!(comm.block_on(async { 5 }), 5);
        for _ in 0..3 {
            comm.block_on(ping_pong(&comm)).expect("ping-pong");
            comm.block_on(exchange(&comm)).expect("exchange");
        }
    });
}

#[test]
fn foreign_executors_run_futures() {
    on_all(2, |comm| {
        for _ in 0..3 {
            foreign_block_on(ping_pong(&comm)).expect("ping-pong");
            foreign_block_on(exchange(&comm)).expect("exchange");
        }
    });
}

#[test]
fn a_foreign_executor_meets_blocking_calls() {
    on_all(2, |comm| {
        for i in 0..50usize {
            let n = SIZES[i % SIZES.len()];
            if comm.rank() == 0 {
                let request = comm.irecv(vec![0u8; n], 1, 0).expect("irecv");
                let (got, _) = foreign_block_on(request).expect("receive");
                foreign_block_on(comm.isend(got, 1, 0).expect("isend")).expect("send");
            } else {
                comm.send(&pattern(n, i), 0, 0).expect("send");
                let mut got = vec![0; n];
                comm.recv(&mut got, 0, 0).expect("recv");
                assert!(got == pattern(n, i));
            }
        }
    });
}

#[test]
fn several_foreign_executors_of_one_rank() {
    on_threads(2, |comm| {
        std::thread::scope(|s| {
            for thread in 0..3usize {
                let comm = &comm;
                s.spawn(move || {
                    let peer = 1 - comm.rank();
                    for i in 0..60 {
                        let n = SIZES[(i + thread) % 4];
                        let send = comm.isend(pattern(n, i), peer, thread).expect("isend");
                        let receive = comm.irecv(vec![0; n], peer, thread).expect("irecv");
                        let both = join(vec![send, receive]);
                        let (got, _) = foreign_block_on(both)
                            .pop()
                            .expect("two")
                            .expect("received");
                        assert!(got == pattern(n, i), "{n} bytes");
                    }
                });
            }
        });
    });
}

#[test]
fn a_future_may_change_its_executor() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let mut request = comm.irecv(vec![0u8; 300_000], 1, 0).expect("irecv");
            // Polled once with a waker that leads nowhere.
            let mut context = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut request).poll(&mut context).is_pending());
            comm.barrier().expect("barrier");
            let (got, _) = foreign_block_on(&mut request).expect("receive");
            assert!(got == pattern(300_000, 1));
            let again = comm.block_on(&mut request);
            fails(again, ErrorKind::Argument, &["polled after its end"]);
        } else {
            comm.barrier().expect("barrier");
            comm.send(&pattern(300_000, 1), 0, 0).expect("send");
        }
    });
}

#[test]
fn dropped_sends_arrive() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            if comm.rank() == 0 {
                drop(comm.isend(pattern(n, i), 1, 0).expect("isend"));
                drop(comm.issend(pattern(n, i + 1), 1, 0).expect("issend"));
                // Memory that was given back too early would be used here.
                let other = vec![0xaau8; n];
                comm.barrier().expect("barrier");
                drop(other);
            } else {
                comm.barrier().expect("barrier");
                for seed in [i, i + 1] {
                    let (got, _) = comm.recv_vec::<u8>(0, 0).expect("recv");
                    assert!(got == pattern(n, seed), "{n} bytes");
                }
            }
        }
    });
}

#[test]
fn dropped_sends_arrive_though_their_rank_ends() {
    for (i, &n) in SIZES.iter().enumerate() {
        on_all(2, |comm| {
            if comm.rank() == 0 {
                drop(comm.isend(pattern(n, i), 1, 0).expect("isend"));
            } else {
                let (got, _) = comm.recv_vec::<u8>(0, 0).expect("recv");
                assert!(got == pattern(n, i), "{n} bytes");
            }
        });
    }
}

#[test]
fn dropped_receives_are_cancelled() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            if comm.rank() == 0 {
                drop(comm.irecv(vec![0u8; n], 1, 0).expect("irecv"));
                comm.barrier().expect("barrier");
                let (got, _) = comm.recv_vec::<u8>(1, 0).expect("recv");
                assert!(got == pattern(n, i), "{n} bytes");
            } else {
                comm.barrier().expect("barrier");
                comm.send(&pattern(n, i), 0, 0).expect("send");
            }
        }
    });
}

#[test]
fn receive_dropped_in_mid_stream_leaves_other_messages_whole() {
    on_all(2, |comm| {
        for polls in [1, 3, 10, 30, 100, 300] {
            if comm.rank() == 0 {
                let mut request = comm.irecv(vec![0u8; 2_000_000], 1, 0).expect("irecv");
                comm.barrier().expect("barrier");
                for _ in 0..polls {
                    request.test();
                }
                drop(request);
                let other = vec![0xaau8; 2_000_000];
                let mut next = [0u8];
                comm.recv(&mut next, 1, 1).expect("recv");
                assert!(other.iter().all(|b| *b == 0xaa));
                if let Some(message) = comm.improbe(1, 0).expect("improbe") {
                    let (got, _) = message.recv_vec::<u8>().expect("whole");
                    assert!(got == pattern(2_000_000, 1));
                }
            } else {
                comm.barrier().expect("barrier");
                let data = pattern(2_000_000, 1);
                let send = comm.isend(data, 0, 0).expect("isend");
                comm.send(&[1u8], 0, 1).expect("send");
                send.wait().expect("received or dropped");
            }
            comm.barrier().expect("barrier");
        }
    });
}

/// A buffer whose life is counted.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fill(0xee);
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

impl Buffer for Counted {
    fn view(&self) -> View<'_> {
        self.0.view()
    }
}

impl BufferMut for Counted {
    fn view_mut(&mut self) -> ViewMut<'_> {
        self.0.view_mut()
    }
}

// SAFETY: a vector's elements stay in place when it is moved.
unsafe impl OwnedBuffer for Counted {}
// SAFETY: as above, owned by nobody else.
unsafe impl OwnedBufferMut for Counted {}

#[test]
fn buffers_are_dropped_once_after_their_last_use() {
    on_all(2, |comm| {
        for (i, &n) in SIZES.iter().enumerate() {
            let dropped = Arc::new(AtomicUsize::new(0));
            let count = || dropped.load(Ordering::SeqCst);
            let new = |data| Counted(data, dropped.clone());
            if comm.rank() == 0 {
                let (waited, _) = comm
                    .isend(new(pattern(n, i)), 1, 0)
                    .expect("isend")
                    .wait()
                    .expect("wait");
                assert_eq!(count(), 0);
                drop(waited);
                assert_eq!(count(), 1);
                drop(comm.issend(new(pattern(n, i)), 1, 0).expect("issend"));
                comm.barrier().expect("before it is received");
                // Announced and unmatched: still in use.
                assert!(
                    count() == 1 || n < 100_000,
                    "{n} bytes given back too early"
                );
                comm.barrier().expect("it may be received");
                comm.barrier().expect("after it was received");
                while count() < 2 {
                    comm.iprobe(1, 9).expect("progress");
                }
                let mut posted = comm.irecv(new(vec![0; n]), 1, 5).expect("irecv");
                assert!(!posted.test());
                drop(posted);
                assert_eq!(count(), 3);
                let taken = comm.irecv(new(vec![0; n]), 1, 5).expect("irecv").revoke();
                assert_eq!(count(), 3);
                drop(taken);
                std::mem::forget(comm.irecv(new(vec![0; n]), 1, 6).expect("irecv"));
                comm.barrier().expect("barrier");
                assert_eq!(count(), 4);
            } else {
                let (got, _) = comm.recv_vec::<u8>(0, 0).expect("recv");
                assert!(got == pattern(n, i), "{n} bytes");
                comm.barrier().expect("before it is received");
                comm.barrier().expect("it may be received");
                let (got, _) = comm.recv_vec::<u8>(0, 0).expect("recv");
                assert!(got == pattern(n, i), "{n} bytes");
                comm.barrier().expect("after it was received");
                comm.barrier().expect("barrier");
            }
        }
    });
}

#[test]
fn forgotten_requests_leak_and_no_more() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        for (i, &n) in SIZES.iter().enumerate() {
            std::mem::forget(comm.irecv(vec![0u8; n], peer, i).expect("irecv"));
            std::mem::forget(comm.isend(pattern(n, i), peer, i).expect("isend"));
            std::mem::forget(comm.isend(pattern(n, i), peer, 100).expect("isend"));
        }
        for (i, &n) in SIZES.iter().enumerate() {
            let (got, _) = comm.recv_vec::<u8>(peer, 100).expect("recv");
            assert!(got == pattern(n, i));
        }
        comm.barrier().expect("barrier");
    });
}

#[test]
fn forgotten_send_without_receive_delays_no_exit() {
    on_all(2, |comm| {
        if comm.rank() == 0 {
            std::mem::forget(comm.isend(pattern(2_000_000, 0), 1, 0).expect("isend"));
        }
        comm.barrier().expect("barrier");
    });
}

#[test]
fn shared_buffers_are_sent_to_several_ranks() {
    on_all(4, |comm| {
        let n = 300_000;
        if comm.rank() == 0 {
            let data: Arc<[u8]> = pattern(n, 3).into();
            let sends: Vec<_> = (1..4)
                .map(|to| comm.isend(data.clone(), to, 0).expect("isend"))
                .collect();
            for result in comm.block_on(join(sends)) {
                result.expect("sent");
            }
        } else {
            let (got, _) = comm.recv_vec::<u8>(0, 0).expect("recv");
            assert!(got == pattern(n, 3));
        }
    });
}
