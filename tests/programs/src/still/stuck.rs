//! Jobs that stand still for ever, beside threads that sleep outside Osier.

use super::{epoll, eventfd, parked, semaphore};
use osier::Communicator;
use osier::requests::Callbacks;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Barrier, Condvar, Mutex, OnceLock, RwLock, mpsc};

/// Rank 0 has a thread that sleeps; all ranks wait for each other.
pub fn stuck(comm: &Communicator, how: &str) {
    comm.barrier().expect("all are here");
    match (how, comm.rank()) {
        ("failed", 1) => super::super::kill_me(),
        // Everyone is stuck in a lock of its own.
        ("all-silent", _) => inversion(),
        // Both have threads that sleep.
        ("both", _) | (_, 0) => beside(comm, how),
        _ => hang(comm),
    }
    super::super::through(comm);
}

/// Waits for a message that nobody sends.
fn hang(comm: &Communicator) {
    let _ = comm.recv(&mut [0u64], osier::ANY_SOURCE, 99);
}

/// Runs a thread with a name beside a wait.
fn with_helper(comm: &Communicator, helper: impl FnOnce() + Send) {
    std::thread::scope(|s| {
        let named = std::thread::Builder::new().name("helper".into());
        named.spawn_scoped(s, helper).expect("a thread");
        hang(comm);
    });
}

fn beside(comm: &Communicator, how: &str) {
    match how {
        "park" | "both" | "failed" => with_helper(comm, std::thread::park),
        "mutex" => {
            let mutex = Mutex::new(());
            let held = mutex.lock().expect("sound");
            with_helper(comm, || drop(mutex.lock()));
            drop(held);
        }
        "condition" => {
            let (mutex, condition) = (Mutex::new(false), Condvar::new());
            with_helper(comm, || {
                let guard = mutex.lock().expect("sound");
                drop(condition.wait_while(guard, |come| !*come));
            });
        }
        "channel" => {
            let (sender, receiver) = mpsc::channel::<()>();
            with_helper(comm, move || receiver.recv().expect("never"));
            drop(sender);
        }
        // The first thread waits for the ends of those that wait inside.
        "scope" => std::thread::scope(|s| {
            s.spawn(|| hang(comm));
            s.spawn(|| hang(comm));
        }),
        "join" => {
            let comm = comm.clone();
            let inside = std::thread::spawn(move || hang(&comm));
            drop(inside.join());
        }
        "pool" => std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(std::thread::park);
            }
            hang(comm);
        }),
        "barrier" => {
            let barrier = Barrier::new(3);
            std::thread::scope(|s| {
                s.spawn(|| barrier.wait());
                s.spawn(|| barrier.wait());
                hang(comm);
            });
        }
        "semaphore" => {
            let semaphore = semaphore();
            with_helper(comm, || semaphore.wait());
        }
        "rwlock" => {
            let lock = RwLock::new(());
            let held = lock.read().expect("sound");
            with_helper(comm, || drop(lock.write()));
            drop(held);
        }
        "once" => {
            // Who initializes it waits for a message.
            let (once, begun) = (OnceLock::new(), Barrier::new(2));
            std::thread::scope(|s| {
                s.spawn(|| {
                    begun.wait();
                    once.get_or_init(|| ());
                });
                once.get_or_init(|| {
                    begun.wait();
                    hang(comm);
                });
            });
        }
        "priority-mutex" => {
            let mutex = priority_mutex();
            // SAFETY: a mutex that lives for ever.
            assert_eq!(unsafe { libc::pthread_mutex_lock(mutex as _) }, 0);
            with_helper(comm, move || {
                // SAFETY: as above.
                unsafe { libc::pthread_mutex_lock(mutex as _) };
            });
        }
        "epoll" => {
            let event = eventfd(libc::EFD_CLOEXEC);
            with_helper(comm, || epoll(&[event.as_raw_fd()]));
        }
        "epoll-pair" => {
            let event = eventfd(libc::EFD_CLOEXEC);
            let (one, _other) = UnixStream::pair().expect("a pair");
            with_helper(comm, || epoll(&[event.as_raw_fd(), one.as_raw_fd()]));
        }
        // Who is to complete it sleeps.
        "generalized" => {
            let (request, completer) = comm.generalized_request(Callbacks::new());
            std::thread::scope(|s| {
                s.spawn(|| {
                    std::thread::park();
                    completer.complete();
                });
                let _ = request.wait();
            });
        }
        // Who is to make a partition ready sleeps.
        "pready" => {
            let mut send = comm.psend_init(vec![0u64; 4], 2, 1, 3).expect("set up");
            send.start().expect("started");
            send.pready(0).expect("ready");
            std::thread::scope(|s| {
                s.spawn(|| {
                    std::thread::park();
                    send.pready(1).expect("ready");
                });
                let _ = send.wait();
            });
        }
        "future" => {
            let request = comm.irecv(vec![0u64], 1, 7).expect("posted");
            let _ = parked(request);
        }
        "collective-future" => {
            let _ = parked(comm.ibarrier().expect("begun"));
        }
        // No thread of it is inside.
        "silent" => inversion(),
        _ => panic!("stuck {how}?"),
    }
}

/// Two threads that wait for each other's locks.
fn inversion() {
    let (one, other) = (Mutex::new(()), Mutex::new(()));
    let both = Barrier::new(2);
    let take = |first: &Mutex<()>, second: &Mutex<()>| {
        let _first = first.lock().expect("sound");
        both.wait();
        drop(second.lock());
    };
    std::thread::scope(|s| {
        s.spawn(|| take(&one, &other));
        take(&other, &one);
    });
}

/// The address of a mutex by which threads inherit priorities.
fn priority_mutex() -> usize {
    // SAFETY: both may begin as zeros; the calls below make them what they are.
    let (mutex, mut attributes): (libc::pthread_mutex_t, libc::pthread_mutexattr_t) =
        unsafe { std::mem::zeroed() };
    let mutex = &raw mut *Box::leak(Box::new(mutex));
    // SAFETY: a local, alive for the call.
    let made = unsafe { libc::pthread_mutexattr_init(&raw mut attributes) };
    let inherit = libc::PTHREAD_PRIO_INHERIT;
    // SAFETY: as made by the call before; a local, alive for the call.
    let set = unsafe { libc::pthread_mutexattr_setprotocol(&raw mut attributes, inherit) };
    // SAFETY: the mutex lives for ever; the attributes are a local, alive for the call.
    let begun = unsafe { libc::pthread_mutex_init(mutex, &raw const attributes) };
    assert_eq!((made, set, begun), (0, 0, 0));
    mutex.addr()
}
