//! Code that is not the library's: wakers, `Drop` of owned buffers and of captured values,
//! reduction functions, error handlers, attribute functions. Each communicates on the same
//! communicator, panics, drops requests, or blocks until another thread has communicated:
//! it runs while the library holds no lock, so all of this works.

use crate::support::on_shm;
use osier::attributes::CommKeyval;
use osier::buffers::OwnedBuffer;
use osier::errors::ErrorHandler;
use osier::requests::Callbacks;
use osier::{Buffer, Communicator, ErrorKind, Op, View};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

/// What foreign code does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    /// Sends to itself and receives, and probes.
    Communicates,
    Panics,
    /// Begins a receive and drops it, and a communicator.
    Drops,
    /// Waits until another thread has used the communicator.
    Blocks,
}

const DEEDS: [Deed; 4] = [Deed::Communicates, Deed::Panics, Deed::Drops, Deed::Blocks];

/// A tag that no test uses for anything else.
const OWN_TAG: usize = 4711;

/// Messages to itself, short and long.
fn talk(comm: &Communicator) {
    let me = comm.rank();
    for bytes in [4, 100_000] {
        let sent = vec![7u8; bytes];
        let receive = comm.irecv(vec![0u8; bytes], me, OWN_TAG).unwrap();
        comm.send(&sent, me, OWN_TAG).unwrap();
        assert_eq!(receive.wait().unwrap().0, sent);
    }
    assert!(comm.iprobe(me, OWN_TAG).unwrap().is_none());
}

impl Deed {
    fn act(self, comm: &Communicator) {
        match self {
            Deed::Communicates => talk(comm),
            Deed::Panics => panic!("foreign code panics"),
            Deed::Drops => {
                drop(comm.irecv(vec![0u8; 8], comm.rank(), OWN_TAG).unwrap());
                drop(comm.clone());
            }
            Deed::Blocks => {
                let (told, hears) = mpsc::channel();
                let comm = comm.clone();
                let other = std::thread::spawn(move || {
                    talk(&comm);
                    told.send(()).unwrap();
                });
                hears.recv().unwrap();
                other.join().unwrap();
            }
        }
    }
}

/// Acts once, when it is asked to, and counts.
struct Act {
    comm: Communicator,
    deed: Deed,
    times: Arc<AtomicUsize>,
}

impl Act {
    fn new(comm: &Communicator, deed: Deed) -> (Self, Arc<AtomicUsize>) {
        let times = Arc::new(AtomicUsize::new(0));
        let act = Self {
            comm: comm.clone(),
            deed,
            times: times.clone(),
        };
        (act, times)
    }

    fn act(&self) {
        self.times.fetch_add(1, Ordering::SeqCst);
        self.deed.act(&self.comm);
    }
}

/// Acts when it is dropped.
struct AtDrop(Act);

impl Drop for AtDrop {
    fn drop(&mut self) {
        self.0.act();
    }
}

/// A waker whose last clone acts when it is dropped, or which acts when it is woken.
struct Bell {
    at_wake: Option<Act>,
    _at_drop: Option<AtDrop>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(act) = &self.at_wake {
            act.act();
        }
    }
}

fn waker_that_acts_when_dropped(comm: &Communicator, deed: Deed) -> (Waker, Arc<AtomicUsize>) {
    let (act, times) = Act::new(comm, deed);
    let bell = Bell {
        at_wake: None,
        _at_drop: Some(AtDrop(act)),
    };
    (Waker::from(Arc::new(bell)), times)
}

fn waker_that_acts_when_woken(comm: &Communicator, deed: Deed) -> (Waker, Arc<AtomicUsize>) {
    let (act, times) = Act::new(comm, deed);
    let bell = Bell {
        at_wake: Some(act),
        _at_drop: None,
    };
    (Waker::from(Arc::new(bell)), times)
}

/// Runs what may unwind because of a deed; says whether it did.
fn unwinds(deed: Deed, f: impl FnOnce()) -> bool {
    let end = catch_unwind(AssertUnwindSafe(f));
    if let Err(payload) = &end {
        assert_eq!(deed, Deed::Panics);
        assert_eq!(payload.downcast_ref(), Some(&"foreign code panics"));
    }
    end.is_err()
}

/// A receive from this rank that is polled once by the waker, and then by another; the
/// first waker is dropped by the second poll.
fn poll_by(comm: &Communicator, first: Waker, deed: Deed, collective: bool) {
    let noop = Waker::noop();
    let poll = |future: &mut dyn FnMut(&mut Context<'_>) -> bool| {
        assert!(!future(&mut Context::from_waker(&first)), "nothing is sent");
        drop(first);
        unwinds(deed, || {
            assert!(!future(&mut Context::from_waker(noop)), "nothing is sent");
        });
    };
    if collective {
        let mut call = pin!(comm.ibarrier().unwrap());
        poll(&mut |context| call.as_mut().poll(context).is_ready());
        comm.send(&[1u8], 1 - comm.rank(), 1).unwrap();
        let mut context = Context::from_waker(noop);
        while call.as_mut().poll(&mut context).is_pending() {
            std::thread::yield_now();
        }
    } else {
        let mut receive = pin!(comm.irecv(vec![0u8; 8], comm.rank(), 3).unwrap());
        poll(&mut |context| receive.as_mut().poll(context).is_ready());
        comm.send(&[1u8; 8], comm.rank(), 3).unwrap();
        match receive.as_mut().poll(&mut Context::from_waker(noop)) {
            Poll::Ready(result) => assert_eq!(result.unwrap().0, [1; 8]),
            Poll::Pending => panic!("the message is there"),
        }
    }
}

#[test]
fn replaced_wakers_are_dropped_without_a_lock() {
    for deed in DEEDS {
        on_shm(1, |comm| {
            let (waker, times) = waker_that_acts_when_dropped(&comm, deed);
            poll_by(&comm, waker, deed, false);
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
        });
    }
}

#[test]
fn replaced_wakers_of_collectives_are_dropped_without_a_lock() {
    for deed in DEEDS {
        on_shm(2, |comm| {
            if comm.rank() == 1 {
                // Not before the other has polled twice.
                comm.recv(&mut [0u8], 0, 1).unwrap();
                return comm.barrier().unwrap();
            }
            let (waker, times) = waker_that_acts_when_dropped(&comm, deed);
            poll_by(&comm, waker, deed, true);
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
        });
    }
}

#[test]
fn wakers_of_dropped_requests_are_dropped_without_a_lock() {
    for deed in DEEDS {
        on_shm(1, |comm| {
            let (waker, times) = waker_that_acts_when_dropped(&comm, deed);
            let mut receive = Box::pin(comm.irecv(vec![0u8; 8], 0, 3).unwrap());
            let polled = receive.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(waker);
            unwinds(deed, move || drop(receive));
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
            // The lane is as it was.
            talk(&comm);
            comm.send(&[1u8; 8], 0, 3).unwrap();
            comm.recv(&mut [0u8; 8], 0, 3).unwrap();
        });
    }
}

#[test]
fn wakers_of_generalized_requests_are_dropped_without_a_lock() {
    for deed in DEEDS {
        on_shm(1, |comm| {
            // The waker completes the request that holds it, besides.
            let (request, completer) = comm.generalized_request(Callbacks::new());
            struct Completes(Mutex<Option<osier::requests::Completer>>, Act);
            impl Wake for Completes {
                fn wake(self: Arc<Self>) {}
            }
            impl Drop for Completes {
                fn drop(&mut self) {
                    if let Some(completer) = self.0.lock().unwrap().take() {
                        completer.complete();
                    }
                    self.1.act();
                }
            }
            let (act, times) = Act::new(&comm, deed);
            let waker = Waker::from(Arc::new(Completes(Mutex::new(Some(completer)), act)));
            let mut request = pin!(request);
            let polled = request.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(waker);
            let noop = Waker::noop();
            unwinds(deed, || {
                let _ = request.as_mut().poll(&mut Context::from_waker(noop));
            });
            let polled = request.as_mut().poll(&mut Context::from_waker(noop));
            assert!(polled.is_ready(), "its waker has completed it");
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
        });
    }
}

#[test]
fn wakers_are_called_without_a_lock() {
    for deed in DEEDS {
        on_shm(1, |comm| {
            let (waker, times) = waker_that_acts_when_woken(&comm, deed);
            let mut receive = pin!(comm.irecv(vec![0u8; 8], 0, 3).unwrap());
            let polled = receive.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            // The receive ends in this call, or in the progress thread, which outlives a panic.
            unwinds(deed, || {
                comm.send(&[1u8; 8], 0, 3).unwrap();
                while times.load(Ordering::SeqCst) == 0 {
                    assert!(comm.iprobe(0, 9).unwrap().is_none());
                }
            });
            let noop = Waker::noop();
            match receive.as_mut().poll(&mut Context::from_waker(noop)) {
                Poll::Ready(result) => assert_eq!(result.unwrap().0, [1; 8]),
                Poll::Pending => panic!("the message is there"),
            }
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
            talk(&comm);
        });
    }
}

/// A buffer that acts when it is dropped.
struct Memory {
    bytes: Vec<u8>,
    _at_drop: AtDrop,
}

impl Buffer for Memory {
    fn view(&self) -> View<'_> {
        self.bytes.view()
    }
}

// SAFETY: a vector's elements stay where they are when it is moved.
unsafe impl OwnedBuffer for Memory {}

#[test]
fn owned_buffers_are_dropped_without_a_lock() {
    for deed in DEEDS {
        for bytes in [100_000, 3_000_000] {
            on_shm(2, |comm| {
                if comm.rank() == 1 {
                    comm.recv(&mut [0u8], 0, 1).unwrap();
                    let (got, _) = comm.recv_vec::<u8>(0, 3).unwrap();
                    assert_eq!(got, vec![5; bytes]);
                    return comm.barrier().unwrap();
                }
                let (act, times) = Act::new(&comm, deed);
                let memory = Memory {
                    bytes: vec![5; bytes],
                    _at_drop: AtDrop(act),
                };
                // Nobody waits for it: the lane owns the buffer until it has left.
                drop(comm.issend(memory, 1, 3).unwrap());
                comm.send(&[1u8], 1, 1).unwrap();
                unwinds(deed, || {
                    while times.load(Ordering::SeqCst) == 0 {
                        assert!(comm.iprobe(1, 9).unwrap().is_none());
                    }
                });
                assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
                comm.barrier().unwrap();
            });
        }
    }
}

/// A blocking call has lent its buffer: it must not unwind while its receive is posted, whatever
/// code of others it happens to run.
#[test]
fn a_blocking_receive_outlives_panics_of_dropped_buffers() {
    on_shm(1, |comm| {
        let (act, times) = Act::new(&comm, Deed::Panics);
        let memory = Memory {
            bytes: vec![3; 8],
            _at_drop: AtDrop(act),
        };
        // Nobody waits for it: its buffer is dropped where its receive comes.
        drop(comm.issend(memory, 0, 1).unwrap());
        let mut buffer = [0u64; 1];
        std::thread::scope(|s| {
            let other = comm.clone();
            let times = times.clone();
            s.spawn(move || {
                let first = other.irecv(vec![0u8; 8], 0, 1).unwrap();
                while times.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                assert_eq!(first.wait().unwrap().0, [3; 8]);
                other.send(&[7u64], 0, 2).unwrap();
            });
            comm.recv(&mut buffer, 0, 2).unwrap();
        });
        assert_eq!(buffer, [7]);
        assert_eq!(times.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn reduction_functions_run_without_a_lock() {
    for deed in DEEDS {
        for length in [1, 50_000] {
            on_shm(3, |comm| {
                let acted = AtomicUsize::new(0);
                let inside = comm.clone();
                let sum = osier::operators::function(|a: u64, b: u64| {
                    if acted.fetch_add(1, Ordering::SeqCst) == 0 {
                        deed.act(&inside);
                    }
                    a + b
                });
                let mine = vec![1 + comm.rank() as u64; length];
                let mut total = vec![0u64; length];
                let mut panicked = false;
                for _ in 0..3 {
                    // Each rank combines in some of these.
                    let mut result = Ok(());
                    panicked |= unwinds(deed, || {
                        result = comm.allreduce(&mine, &mut total, &sum);
                    });
                    if deed == Deed::Panics {
                        // Its peers are told.
                        if let Err(e) = result {
                            assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}");
                        }
                        break;
                    }
                    result.unwrap();
                    assert_eq!(total, vec![6; length], "{deed:?}");
                }
                let all = comm.size();
                let mut acts = [0u64];
                comm.allreduce(&[acted.load(Ordering::SeqCst) as u64], &mut acts, Op::Sum)
                    .unwrap();
                assert!(acts[0] > 0 && all == 3, "somebody has combined");
                assert!(!panicked || deed == Deed::Panics);
            });
        }
    }
}

#[test]
fn reduction_functions_of_requests_run_without_a_lock() {
    for deed in [Deed::Communicates, Deed::Drops, Deed::Blocks] {
        on_shm(2, |comm| {
            let (act, times) = Act::new(&comm, deed);
            let sum = osier::operators::function(move |a: u64, b: u64| {
                act.act();
                a + b
            });
            let call = comm.iallreduce(vec![comm.rank() as u64 + 1], vec![0u64], sum);
            let (_, total) = call.unwrap().wait().unwrap();
            assert_eq!(total, [3]);
            let mut acts = [0u64];
            comm.allreduce(&[times.load(Ordering::SeqCst) as u64], &mut acts, Op::Sum)
                .unwrap();
            assert!(acts[0] > 0, "somebody has combined");
        });
    }
}

#[test]
fn error_handlers_run_without_a_lock() {
    for deed in DEEDS {
        on_shm(1, |comm| {
            let (act, times) = Act::new(&comm, deed);
            comm.set_error_handler(ErrorHandler::custom(move |_, _| act.act()));
            unwinds(deed, || {
                let long = comm.irecv(vec![0u8; 1], 0, 3).unwrap();
                comm.send(&[1u8; 8], 0, 3).unwrap();
                assert_eq!(long.wait().unwrap_err().kind(), ErrorKind::Truncated);
            });
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
            // What the function has captured is dropped by this call.
            comm.set_error_handler(ErrorHandler::Return);
            let (act, times) = Act::new(&comm, deed);
            let captured = AtDrop(act);
            comm.set_error_handler(ErrorHandler::custom(move |_, _| {
                let _ = &captured;
            }));
            unwinds(deed, || comm.set_error_handler(ErrorHandler::Return));
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
        });
    }
}

#[test]
fn attribute_functions_run_without_a_lock() {
    for deed in [Deed::Communicates, Deed::Drops, Deed::Blocks] {
        on_shm(1, |comm| {
            let times = Arc::new(AtomicUsize::new(0));
            let act = |comm: &Communicator| {
                let (comm, times) = (comm.clone(), times.clone());
                move || {
                    times.fetch_add(1, Ordering::SeqCst);
                    deed.act(&comm);
                }
            };
            let (copies, deletes) = (act(&comm), act(&comm));
            let key = CommKeyval::<u32>::with(
                move |_, value| {
                    copies();
                    Ok(Some(value.clone()))
                },
                move |_| {
                    deletes();
                    Ok(())
                },
            );
            let first = comm.dup().unwrap();
            first.attributes().set(&key, 7).unwrap();
            let second = first.dup().unwrap();
            assert_eq!(times.load(Ordering::SeqCst), 1, "{deed:?}");
            drop((first, second));
            assert_eq!(times.load(Ordering::SeqCst), 3, "{deed:?}");
        });
    }
}
