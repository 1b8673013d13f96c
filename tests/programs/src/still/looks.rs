//! Jobs that stand still for a while, and what moves them again.

use super::{LONG, Semaphore, done, epoll, eventfd, opened, parked, semaphore};
use osier::{Communicator, Op};
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Barrier, Condvar, Mutex, mpsc};
use std::time::Instant;

/// A thread of rank 0 waits for something that comes late, and then sends what all others
/// wait for.
pub fn looks_stuck(comm: &Communicator, how: &str) {
    let mut word = [0u64];
    comm.barrier().expect("all are here");
    if ["signalfd", "sigwait"].contains(&how) {
        blocked(libc::SIGUSR2); // by the threads that it starts, too
    }
    match (how, comm.rank()) {
        ("peer-computes", 0) => std::thread::scope(|s| {
            let helper = s.spawn(std::thread::park);
            comm.recv(&mut word, 1, 5).expect("alive");
            helper.thread().unpark();
        }),
        ("future-of-computing-peer", 0) => {
            let request = comm.irecv(vec![0u64], 1, 5).expect("posted");
            parked(request).expect("alive");
        }
        ("peer-computes" | "future-of-computing-peer", 1) => {
            compute();
            comm.send(&word, 0, 5).expect("alive");
        }
        // No thread of rank 0 is inside.
        (_, 0) if how.starts_with("silent-") => {
            asleep(comm, how.trim_start_matches("silent-"));
            comm.send(&[3u64], 1, 4).expect("alive");
            comm.recv(&mut word, 1, 5).expect("alive");
        }
        (_, 0) => std::thread::scope(|s| {
            s.spawn(|| {
                asleep(comm, how);
                comm.send(&[3u64], 1, 4).expect("alive");
            });
            comm.recv(&mut word, 1, 5).expect("alive");
        }),
        ("pipe-ranks", 1) => std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(LONG);
                std::fs::write(fifo_of_job(), b"x").expect("rank 0 reads");
            });
            answer(comm);
        }),
        (_, 1) => answer(comm),
        _ => {}
    }
    let mut sum = [0u64];
    comm.allreduce(&[1u64], &mut sum, Op::Sum).expect("alive");
    assert_eq!(sum[0] as usize, comm.size());
    super::super::through(comm);
}

fn answer(comm: &Communicator) {
    comm.recv(&mut [0u64], 0, 4).expect("alive");
    comm.send(&[3u64], 0, 5).expect("alive");
}

fn compute() {
    let start = Instant::now();
    while start.elapsed() < LONG {
        std::hint::spin_loop();
    }
}

/// Comes back after [`LONG`].
fn asleep(comm: &Communicator, how: &str) {
    let start = Instant::now();
    match how {
        "sleep" => std::thread::sleep(LONG),
        "compute" => compute(),
        "time-out" => {
            while start.elapsed() < LONG {
                std::thread::park_timeout(LONG);
            }
        }
        "ticks" => {
            let (mutex, condition) = (Mutex::new(()), Condvar::new());
            while start.elapsed() < LONG {
                let guard = mutex.lock().expect("sound");
                let tick = std::time::Duration::from_millis(100);
                drop(condition.wait_timeout(guard, tick));
            }
        }
        "timer-thread" => {
            let (sender, receiver) = mpsc::channel();
            std::thread::spawn(move || {
                std::thread::sleep(LONG);
                sender.send(()).expect("it waits");
            });
            receiver.recv().expect("it comes");
        }
        "mutex-of-computing" => {
            let (mutex, held) = (Mutex::new(()), Barrier::new(2));
            std::thread::scope(|s| {
                s.spawn(|| {
                    let _guard = mutex.lock().expect("sound");
                    held.wait();
                    compute();
                });
                held.wait();
                drop(mutex.lock());
            });
        }
        "join-computing" => std::thread::spawn(compute).join().expect("it ends"),
        // Each thread sleeps for a while in a futex, which the next wakes.
        "threads" => {
            while start.elapsed() < LONG {
                let parked = std::thread::current();
                let next = std::thread::spawn(move || {
                    std::thread::sleep(LONG / 20);
                    parked.unpark();
                });
                std::thread::park();
                next.join().expect("it ends");
            }
        }
        "timerfd" => {
            let timer = timerfd();
            read_eight(&timer);
        }
        "epoll-timerfd" => epoll(&[timerfd().as_raw_fd()]),
        "signalfd" => {
            let set = blocked(libc::SIGUSR2);
            // SAFETY: the set is a local, alive for the call.
            let fd = opened(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) });
            let mut child = outsiders(&["signal", &own(), &libc::SIGUSR2.to_string()]);
            epoll(&[fd.as_raw_fd()]);
            ends(&mut child);
        }
        "pipe-ranks" => drop(std::fs::read(fifo_of_job()).expect("rank 1 writes")),
        "pipe-child" => {
            let mut child = shell("sleep 1.8; echo x");
            let mut text = String::new();
            let out = child.stdout.as_mut().expect("piped");
            out.read_to_string(&mut text).expect("it writes");
            ends(&mut child);
        }
        "wait-child" => ends(&mut shell("sleep 1.8")),
        "poll" => {
            let mut child = shell("sleep 1.8; echo x");
            let mut poll = libc::pollfd {
                fd: child.stdout.as_ref().expect("piped").as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: the entry is a local, alive for the call.
            done(unsafe { libc::poll(&raw mut poll, 1, -1) });
            ends(&mut child);
        }
        "epoll-pipe" => {
            let mut child = shell("sleep 1.8; echo x");
            epoll(&[child.stdout.as_ref().expect("piped").as_raw_fd()]);
            ends(&mut child);
        }
        "epoll-pair-of-child" => {
            let (one, other) = UnixStream::pair().expect("a pair");
            let mut child = command("sh");
            child.args(["-c", "sleep 1.8; echo x"]);
            child.stdout(OwnedFd::from(other.try_clone().expect("a copy")));
            let mut child = child.spawn().expect("it starts");
            epoll(&[one.as_raw_fd()]);
            ends(&mut child);
            drop(other); // so far the other end was here, too
        }
        "socket" => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("bound").port().to_string();
            let mut child = outsiders(&["dial", &port]);
            listener.accept().expect("it dials");
            ends(&mut child);
        }
        "flock" | "fcntl-lock" => {
            let path = path(how);
            std::fs::write(&path, b"x").expect("a file");
            let mut child = outsiders(&[how, &path.display().to_string()]);
            let out = child.stdout.as_mut().expect("piped");
            out.read_exact(&mut [0]).expect("it holds the lock");
            lock_file(how, &path);
            ends(&mut child);
        }
        "eventfd-of-child" | "epoll-eventfd-of-child" => {
            let event = eventfd(0);
            let mut child = outsiders(&["eventfd", &event.as_raw_fd().to_string()]);
            if how.starts_with("epoll") {
                epoll(&[event.as_raw_fd()]);
            } else {
                read_eight(&event);
            }
            ends(&mut child);
        }
        "shared-futex" => {
            let path = path(how);
            std::fs::write(&path, [0; 4096]).expect("a file");
            let word = shared_word(&path);
            let mut child = outsiders(&["wake", &path.display().to_string()]);
            while word.load(Ordering::SeqCst) == 0 {
                futex(word, libc::FUTEX_WAIT, 0);
            }
            ends(&mut child);
        }
        "semaphores-of-system-v" => {
            // SAFETY: a system call without pointers.
            let set = done(unsafe { libc::semget(libc::IPC_PRIVATE, 1, 0o600) });
            let mut child = outsiders(&["semop", &set.to_string()]);
            semop(set, -1);
            // SAFETY: a system call without pointers.
            done(unsafe { libc::semctl(set, 0, libc::IPC_RMID) });
            ends(&mut child);
        }
        "sigwait" => {
            let set = blocked(libc::SIGUSR2);
            let mut child = outsiders(&["signal", &own(), &libc::SIGUSR2.to_string()]);
            let mut signal = 0;
            // SAFETY: both are locals, alive for the call.
            let waited = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
            assert_eq!((waited, signal), (0, libc::SIGUSR2));
            ends(&mut child);
        }
        // A handler posts a semaphore that a thread sleeps on.
        "signal-handler" => {
            let semaphore = posted_by(libc::SIGUSR1);
            let mut child = outsiders(&["signal", &own(), &libc::SIGUSR1.to_string()]);
            semaphore.wait();
            ends(&mut child);
        }
        "alarm" => {
            let semaphore = posted_by(libc::SIGALRM);
            // SAFETY: a system call without pointers.
            unsafe { libc::alarm(2) };
            semaphore.wait();
        }
        "posix-timer" => {
            // SIGINT: a handler of it alone is no reason to hold back.
            let semaphore = posted_by(libc::SIGINT);
            let timer = posix_timer(libc::SIGINT);
            semaphore.wait();
            // SAFETY: the timer was made above.
            done(unsafe { libc::timer_delete(timer) });
        }
        // Another process holds a thread that was about to go on.
        "traced" => {
            let (tell, told) = mpsc::channel();
            std::thread::scope(|s| {
                s.spawn(move || {
                    let link = std::fs::read_link("/proc/thread-self").expect("a link");
                    let number = link.file_name().expect("a number").to_owned();
                    tell.send(number).expect("asked");
                    compute();
                });
                let thread = told.recv().expect("it tells");
                // SAFETY: a system call without pointers; on some systems it needs leave.
                unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
                ends(&mut outsiders(&["trace", thread.to_str().expect("text")]));
            });
        }
        // Ranks of another job wait inside this process, for one that sleeps.
        "other-job" => drop(osier::testing::ranks(2, |comm| match comm.rank() {
            0 => {
                std::thread::sleep(LONG);
                comm.send(&[1u64], 1, 0).expect("alive");
            }
            _ => drop(comm.recv(&mut [0u64], 0, 0).expect("alive")),
        })),
        "stop" => {
            let wake = format!("sleep 1.8; kill -CONT {}", std::process::id());
            let mut child = shell(&wake);
            // SAFETY: a system call without pointers.
            done(unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGSTOP) });
            ends(&mut child);
        }
        // An executor with a timer of its own.
        "future-beside-timer" => {
            let (sender, receiver) = mpsc::channel();
            std::thread::scope(|s| {
                let mut sender = Some(sender);
                let mut request = comm.irecv(vec![0u64], 1, 98).expect("posted");
                parked(std::future::poll_fn(|context| {
                    let _ = std::pin::Pin::new(&mut request).poll(context);
                    if let Some(sender) = sender.take() {
                        let waker = context.waker().clone();
                        s.spawn(move || {
                            std::thread::sleep(LONG);
                            sender.send(()).expect("asked for");
                            waker.wake();
                        });
                    }
                    match receiver.try_recv() {
                        Ok(()) => std::task::Poll::Ready(()),
                        Err(_) => std::task::Poll::Pending,
                    }
                }));
            });
        }
        // It is asked again and again, and one day it is over.
        "future-of-time" => comm.block_on(std::future::poll_fn(|_| match start.elapsed() < LONG {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        })),
        _ => panic!("looks-stuck {how}?"),
    }
}

/// What another process does after [`LONG`], for a thread that waits for it.
pub fn outsider(what: &[&str]) {
    match *what {
        ["flock" | "fcntl-lock", path] => {
            let file = lock_file(what[0], Path::new(path));
            print!("x");
            std::io::Write::flush(&mut std::io::stdout()).expect("the parent reads");
            std::thread::sleep(LONG);
            drop(file);
        }
        ["dial", port] => {
            std::thread::sleep(LONG);
            let port: u16 = port.parse().expect("a port");
            std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        }
        ["eventfd", fd] => {
            std::thread::sleep(LONG);
            let fd: i32 = fd.parse().expect("a descriptor");
            let one = 1u64;
            // SAFETY: eight bytes of a local, alive for the call.
            let n = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
            assert_eq!(n, 8);
        }
        ["wake", path] => {
            let word = shared_word(Path::new(path));
            std::thread::sleep(LONG);
            word.store(1, Ordering::SeqCst);
            futex(word, libc::FUTEX_WAKE, 1);
        }
        ["semop", set] => {
            std::thread::sleep(LONG);
            semop(set.parse().expect("a set"), 1);
        }
        ["signal", pid, signal] => {
            std::thread::sleep(LONG);
            let [pid, signal] = [pid, signal].map(|n| n.parse().expect("a number"));
            // SAFETY: a system call without pointers.
            done(unsafe { libc::kill(pid, signal) });
        }
        ["trace", thread] => {
            let thread: i32 = thread.parse().expect("a thread");
            trace(libc::PTRACE_ATTACH, thread);
            // SAFETY: the status is not asked for.
            done(unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) });
            std::thread::sleep(LONG);
            trace(libc::PTRACE_DETACH, thread);
        }
        _ => panic!("outsider {what:?}?"),
    }
}

fn trace(request: libc::c_uint, thread: i32) {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take no memory.
    let result = unsafe { libc::ptrace(request, thread, none, none) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn own() -> String {
    std::process::id().to_string()
}

/// A program that is no rank.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("OSIER_JOB").stdin(Stdio::null());
    command
}

fn shell(text: &str) -> Child {
    let mut shell = command("sh");
    shell.args(["-c", text]).stdout(Stdio::piped());
    shell.spawn().expect("a shell")
}

fn outsiders(what: &[&str]) -> Child {
    let own = std::env::current_exe().expect("a path");
    let mut outsider = command(own);
    outsider.arg("outsider").args(what).stdout(Stdio::piped());
    outsider.spawn().expect("it starts")
}

fn ends(child: &mut Child) {
    let status = child.wait().expect("its end");
    assert!(status.success(), "{status}");
}

/// A path of this job; all its ranks have it.
fn path(what: &str) -> PathBuf {
    // The launcher is every rank's parent.
    // SAFETY: a system call without pointers.
    let job = unsafe { libc::getppid() };
    std::env::temp_dir().join(format!("osier-still-{job}-{what}"))
}

/// A FIFO between the ranks of this job.
fn fifo_of_job() -> PathBuf {
    let path = path("fifo");
    let name = std::ffi::CString::new(path.display().to_string()).expect("no zero");
    // SAFETY: the name ends with a zero and lives for the call.
    let made = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
    let there = std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST);
    assert!(made == 0 || there);
    path
}

fn lock_file(how: &str, path: &Path) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).open(path).expect("a file");
    if how == "flock" {
        // SAFETY: a system call without pointers.
        done(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) });
    } else {
        let lock = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the lock is a local, alive for the call.
        done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const lock) });
    }
    file
}

/// A word of a file that processes share.
fn shared_word(path: &Path) -> &'static AtomicU32 {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).open(path).expect("a file");
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let (fd, at) = (file.as_raw_fd(), std::ptr::null_mut());
    // SAFETY: a new mapping, which is never given back.
    let at = unsafe { libc::mmap(at, 4096, rights, libc::MAP_SHARED, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the start of a page that stays mapped.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word lives for the call, which has no time-out.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, none) };
}

fn semop(set: i32, by: i16) {
    let mut operation = libc::sembuf {
        sem_num: 0,
        sem_op: by,
        sem_flg: 0,
    };
    // SAFETY: one operation, a local, alive for the call.
    done(unsafe { libc::semop(set, &raw mut operation, 1) });
}

fn timerfd() -> OwnedFd {
    // SAFETY: a system call without pointers.
    let timer = opened(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) });
    let spec = once();
    let none = std::ptr::null_mut();
    // SAFETY: the time is a local, alive for the call.
    done(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const spec, none) });
    timer
}

/// After [`LONG`], once.
fn once() -> libc::itimerspec {
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    libc::itimerspec {
        it_interval: zero,
        it_value: libc::timespec {
            tv_sec: LONG.as_secs() as libc::time_t,
            tv_nsec: LONG.subsec_nanos().into(),
        },
    }
}

fn posix_timer(signal: i32) -> libc::timer_t {
    // SAFETY: plain data, of which zeros are values.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = signal;
    let mut timer = std::ptr::null_mut();
    let clock = libc::CLOCK_MONOTONIC;
    // SAFETY: locals, alive for the call.
    done(unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) });
    let spec = once();
    // SAFETY: the timer was just made; the time is a local, alive for the call.
    done(unsafe { libc::timer_settime(timer, 0, &raw const spec, std::ptr::null_mut()) });
    timer
}

fn read_eight(fd: &OwnedFd) {
    let mut word = 0u64;
    // SAFETY: eight bytes of a local, alive for the call.
    let n = unsafe { libc::read(fd.as_raw_fd(), (&raw mut word).cast(), 8) };
    assert_eq!(n, 8);
}

/// A set of one signal, which this thread does not take from now on.
fn blocked(signal: i32) -> libc::sigset_t {
    // SAFETY: plain data, of which zeros are values.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a local, alive for the call.
    done(unsafe { libc::sigaddset(&raw mut set, signal) });
    let none = std::ptr::null_mut();
    // SAFETY: as above.
    let masked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, none) };
    assert_eq!(masked, 0);
    set
}

static POSTED: AtomicPtr<libc::sem_t> = AtomicPtr::new(std::ptr::null_mut());
static CAUGHT: AtomicI32 = AtomicI32::new(0);

extern "C" fn post(signal: i32) {
    CAUGHT.store(signal, Ordering::SeqCst);
    // SAFETY: set before the handler was, to a semaphore that lives for ever; a handler may
    // post one.
    unsafe { libc::sem_post(POSTED.load(Ordering::SeqCst)) };
}

/// A semaphore that the handler of a signal posts.
fn posted_by(signal: i32) -> &'static Semaphore {
    let semaphore = semaphore();
    POSTED.store(semaphore.at(), Ordering::SeqCst);
    // SAFETY: plain data, of which zeros are values.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = post as extern "C" fn(i32) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is a local, alive for the call; its function has a handler's type.
    done(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) });
    semaphore
}
