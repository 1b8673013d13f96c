//! Every public operation that fails runs the handler of its communicator, and
//! runs it once. The sources say which operations there are, so that none is
//! forgotten here.

mod nonblocking;
mod one_sided;

use crate::support::{Watchdog, on_all};
use osier::buffers::{Region, Regions};
use osier::communicators::{Resource, SplitType};
use osier::datatype::Basic;
use osier::errors::ErrorHandler;
use osier::operators::function;
use osier::persistent::start_all;
use osier::requests::{
    Begun, Callbacks, WaitSet, status_all, status_any, status_some, test_all, test_any, test_some,
    wait_all, wait_any, wait_some,
};
use osier::testing::{Network, universes_on};
use osier::topology::Edges;
use osier::{
    ANY_SOURCE, Communicator, Datatype, Elements, Error, ErrorKind, Group, PROC_NULL, Result,
    Scope, Session,
};
use osier_engine::progress::window::Handle;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Public functions that may fail and run no handler, and why.
const EXEMPT: &[(&str, &str)] = &[
    ("Session::init", "there is no session yet"),
    ("dims_create", "VALUE"),
    ("reduce_local", "VALUE"),
    ("Communicator::ibarrier", "fails where a rank has died"),
    ("Communicator::agree", "fails where a rank was cut off"),
    ("PendingAgreement::wait", "fails where a rank was cut off"),
    (
        "Communicator::ishrink",
        "fails where 2^40 contexts are used up",
    ),
    ("Agreeing::", "not public"),
    ("Communicator::shrink", "fails where a rank was cut off"),
    ("AccessRequest::", "fails where a rank has died"),
    ("Communicator::barrier_init", "never fails"),
    ("Scope::ibarrier", "fails where a rank has died"),
    ("InFlight::", "not public"),
    ("Neighborhood::", "not public"),
    ("Lab::", "not public"),
    ("measure", "of the machine"),
    ("permitted", "of the machine"),
    ("CartTopology::", "VALUE"),
    ("GraphTopology::", "VALUE"),
    ("Group::", "VALUE"),
    ("Info::", "VALUE"),
    ("ProcessSets::", "VALUE; Session::group reports"),
    ("Regions::new", "VALUE"),
    ("Status::", "VALUE"),
    ("View::", "VALUE"),
    ("ViewMut::", "VALUE"),
    (
        "ErrorCodes::",
        "a table of the job, shared by communicators",
    ),
    ("ScopedRequest::revoke", "never fails"),
    ("FlushRequest::wait", "never fails"),
    ("Contexts::", "not public"),
    ("RawWindow::", "not public"),
    ("ByAddress::", "not public"),
    ("OnDevices::", "not public"),
    ("Records::", "not public"),
    ("Watch::", "not public"),
    ("Local::", "not public"),
    ("Asking::", "not public"),
    ("Far::", "not public"),
    ("Service::", "not public"),
    ("Ring::", "not public"),
    ("Streams::", "not public"),
    ("Communicator::device_window", "needs a device"),
    ("Communicator::device_window_for", "needs a device"),
    ("Communicator::symmetric_heap_on", "needs a device"),
    ("SymmetricHeap::team", "needs a device"),
    ("DeviceTeam::", "needs a device"),
    ("Epoch::put_on", "needs a device"),
    ("Epoch::get_on", "needs a device"),
    ("Epoch::flush_all", "fails where a rank has died"),
    (
        "Communicator::dynamic_window",
        "fails where no context is left",
    ),
    ("Symmetric::to_vec", "fails where there is no memory"),
    ("SymmetricHeap::barrier", "as Communicator::barrier"),
    ("Held::", "not public"),
    ("Seen::", "not public"),
    ("List::", "not public"),
    ("target_of", "not public"),
    (
        "Communicator::window_of",
        "fails on intercommunicators; ranks/one_sided.rs",
    ),
    ("Window::fence", "fails where a rank has died"),
    ("Window::free", "fails where a rank has died"),
    ("Window::to_vec", "fails where there is no memory"),
    ("Locked::unlock", "fails where a rank has died"),
    ("LockedAll::unlock", "fails where a rank has died"),
    ("Started::complete", "fails where a rank has died"),
    ("Posted::", "fails where a rank has died"),
    ("RawView::", "not public"),
    ("Shape::", "not public"),
    ("Sending::", "not public"),
    ("Receiving::", "not public"),
    ("Meeting::", "not public"),
    ("Sends::", "not public"),
    ("Transfer::", "not public"),
    ("OnStream::", "needs a device; tests/device_streams.rs"),
    ("Enqueued::", "needs a device; tests/device_streams.rs"),
    (
        "DevicePartitioned",
        "needs a device; tests/device_partitions.rs",
    ),
    (
        "Communicator::psend_init_device",
        "needs a device; tests/device_partitions.rs",
    ),
    (
        "Communicator::precv_init_device",
        "needs a device; tests/device_partitions.rs",
    ),
    ("Spot::", "not public"),
    ("Captured::", "not public"),
    ("InGraph::", "not public"),
];

/// Functions that macros define.
const BY_MACROS: &[&str] = &[
    "Communicator::send_init",
    "Communicator::ssend_init",
    "Communicator::rsend_init",
    "Communicator::bsend_init",
    "Scope::send_init",
    "Scope::ssend_init",
    "Scope::rsend_init",
    "Scope::bsend_init",
    "Communicator::attach_buffer",
    "Communicator::attach_automatic",
    "Universe::attach_buffer",
    "Universe::attach_automatic",
    "Session::attach_buffer",
    "Session::attach_automatic",
];

/// Counts how often its handler runs, and what was checked.
struct Bench {
    runs: Arc<AtomicUsize>,
    checked: RefCell<BTreeSet<&'static str>>,
}

impl Bench {
    fn new() -> Self {
        Self {
            runs: Arc::default(),
            checked: RefCell::default(),
        }
    }

    fn handler(&self) -> ErrorHandler {
        let runs = self.runs.clone();
        ErrorHandler::custom(move |_, _| {
            runs.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Runs what must fail, and run the handler once.
    #[track_caller]
    fn check<T>(&self, name: &'static str, f: impl FnOnce() -> Result<T>) -> Error {
        self.checked.borrow_mut().insert(name);
        self.runs.store(0, Ordering::Relaxed);
        let Err(e) = f() else {
            panic!("{name} did not fail");
        };
        let runs = self.runs.load(Ordering::Relaxed);
        assert_eq!(runs, 1, "{name} ran the handler {runs} times: {e}");
        e
    }
}

/// A message to this rank itself that is longer than its receive.
fn too_long(comm: &Communicator) {
    comm.send(&[1u64; 3], comm.rank(), 9).expect("send");
}

/// Receives a message that is too long by a handle, which `end` ends.
fn by_handle<T>(alone: &Communicator, end: impl FnOnce(Handle) -> Result<T>) -> Result<T> {
    let mut number = [0u64];
    let (at, basic) = (number.as_mut_ptr().cast(), Basic::U64);
    // SAFETY: eight bytes, which outlive the receive: `end` ends it below.
    let memory = unsafe { Elements::new(at, basic, 8, 1) };
    let mut memory = memory.expect("a length that fits");
    // SAFETY: the memory is `number`, which outlives the receive that `end` ends below.
    let begun = unsafe { alone.begin_receive(&mut memory, 0, 9) };
    let Some(Begun::Posted(handle)) = begun else {
        panic!("{begun:?}");
    };
    too_long(alone);
    end(handle)
}

fn point_to_point(comm: &Communicator, b: &Bench) {
    let (me, bad) = (comm.rank(), comm.size());
    let mut one = [0u64];
    // Where nothing waits for a receive.
    let alone = comm
        .split(Some(me as u32), 0)
        .expect("split")
        .expect("mine");
    alone.set_error_handler(b.handler());
    b.check("Communicator::end_receive", || {
        by_handle(&alone, |handle| alone.end_receive(handle))
    });
    b.check("Batch::end", || {
        by_handle(&alone, |handle| {
            alone.batch().expect("nobody records").end(handle)
        })
    });
    b.check("Batch::wait", || {
        let mut request = alone.recv_init(vec![0u64], 0, 9).expect("recv_init");
        request.start().expect("start");
        too_long(&alone);
        alone.batch().expect("nobody records").wait(&mut request)
    });
    b.check("Communicator::send", || comm.send(&one, bad, 0));
    b.check("Communicator::send", || comm.send(&one, me, -1));
    b.check("Communicator::ssend", || comm.ssend(&one, bad, 0));
    b.check("Communicator::rsend", || comm.rsend(&one, bad, 0));
    b.check("Communicator::bsend", || comm.bsend(&one, bad, 0));
    b.check("Communicator::bsend", || comm.bsend(&one, me, 0));
    b.check("Communicator::ibsend", || comm.ibsend(vec![0u64], me, 0));
    b.check("Communicator::isend", || comm.isend(vec![0u64], bad, 0));
    b.check("Communicator::issend", || comm.issend(vec![0u64], bad, 0));
    b.check("Communicator::irsend", || comm.irsend(vec![0u64], bad, 0));
    b.check("Communicator::irecv", || comm.irecv(vec![0u64], bad, 0));
    b.check("Communicator::recv", || comm.recv(&mut one, bad, 0));
    too_long(comm);
    b.check("Communicator::recv", || comm.recv(&mut one, me, 9));
    comm.send(&[0u8; 3], me, 9).expect("send");
    b.check("Communicator::recv_vec", || comm.recv_vec::<u64>(me, 9));
    b.check("Communicator::recv_vec", || comm.recv_vec::<u64>(bad, 9));
    b.check("Communicator::probe", || comm.probe(bad, 0));
    b.check("Communicator::iprobe", || comm.iprobe(bad, 0));
    b.check("Communicator::mprobe", || comm.mprobe(bad, 0));
    b.check("Communicator::improbe", || comm.improbe(bad, 0));
    let matched = || {
        too_long(comm);
        comm.mprobe(me, 9).expect("mprobe")
    };
    b.check("Message::recv", || matched().recv(&mut one));
    b.check("Message::irecv", || {
        matched().irecv(vec![0u64]).and_then(|r| r.wait())
    });
    comm.send(&[0u8; 3], me, 9).expect("send");
    let odd = comm.mprobe(me, 9).expect("mprobe");
    b.check("Message::recv_vec", || odd.recv_vec::<u64>());
    let mut other = [0u64];
    b.check("Communicator::sendrecv", || {
        comm.sendrecv(&one, bad, 0, &mut other, me, 0)
    });
    b.check("Communicator::sendrecv", || {
        comm.sendrecv(&[1u64; 3], me, 9, &mut other, me, 9)
    });
    b.check("Communicator::sendrecv_replace", || {
        comm.sendrecv_replace(&mut one, me, 0, bad, 0)
    });
    too_long(comm);
    b.check("Communicator::sendrecv_replace", || {
        comm.sendrecv_replace(&mut one, PROC_NULL, 0, me, 9)
    });
    b.check("Communicator::isendrecv", || {
        comm.isendrecv(vec![0u64], me, 0, vec![0u64], bad, 0)
    });
    b.check("Communicator::isendrecv_replace", || {
        comm.isendrecv_replace(vec![0u64], me, 0, bad, 0)
    });
    let both = || {
        let request = comm.isendrecv(vec![0u64; 3], me, 9, vec![0u64], me, 9);
        request.expect("isendrecv")
    };
    b.check("SendRecv::wait", || both().wait());
    b.check("SendRecv::status", || both().status().expect("over"));
    let replace = || {
        too_long(comm);
        let request = comm.isendrecv_replace(vec![0u64], PROC_NULL, 0, me, 9);
        request.expect("isendrecv_replace")
    };
    b.check("SendRecvReplace::wait", || replace().wait());
    b.check("SendRecvReplace::status", || {
        replace().status().expect("over")
    });
    b.check("Communicator::attach_buffer", || {
        comm.attach_buffer(vec![0; 8])?;
        comm.attach_buffer(vec![0; 8])
    });
    b.check("Communicator::attach_automatic", || comm.attach_automatic());
    let small = b.check("Communicator::bsend", || comm.bsend(&[0u64; 9], me, 0));
    assert_eq!(small.kind(), ErrorKind::Buffer);
    comm.detach_buffer();
}

fn requests(comm: &Communicator, b: &Bench) {
    let me = comm.rank();
    let failing = || {
        too_long(comm);
        comm.irecv(vec![0u64], me, 9).expect("irecv")
    };
    b.check("Request::wait", || failing().wait());
    b.check("Request::end", || failing().end());
    let mut request = failing();
    b.check("Request::status", || request.status().expect("over"));
    // It has passed the handler, and does not again.
    let runs = b.runs.load(Ordering::Relaxed);
    assert!(request.status().expect("over").is_err() && request.wait().is_err());
    assert_eq!(b.runs.load(Ordering::Relaxed), runs);
    b.check("Request::wait", || comm.block_on(failing()));

    b.check("wait_all", || wait_all([failing()]));
    b.check("wait_any", || {
        wait_any(&mut vec![failing()]).expect("one").1
    });
    b.check("wait_some", || wait_some(&mut vec![failing()]).remove(0).1);
    b.check("test_all", || test_all(&mut vec![failing()]).expect("over"));
    b.check("test_any", || {
        test_any(&mut vec![failing()]).expect("one").1
    });
    b.check("test_some", || test_some(&mut vec![failing()]).remove(0).1);
    b.check("status_all", || status_all(&mut [failing()]).expect("over"));
    b.check("status_any", || {
        status_any(&mut [failing()]).expect("one").1
    });
    b.check("status_some", || status_some(&mut [failing()]).remove(0).1);
    let set = || {
        let mut set = WaitSet::new();
        set.add((), failing()).expect("add");
        set
    };
    b.check("WaitSet::wait", || set().wait().expect("one").1);
    b.check("WaitSet::test", || set().test().expect("one").1);
    b.check("WaitSet::wait_some", || set().wait_some().remove(0).1);
    b.check("WaitSet::wait_all", || set().wait_all().remove(0).1);

    let broken = || {
        let callbacks = Callbacks::new().query(|| Err(Error::new(ErrorKind::System, "flux")));
        let (request, completer) = comm.generalized_request(callbacks);
        completer.complete();
        request
    };
    b.check("GeneralizedRequest::wait", || broken().wait());
    let mut request = broken();
    b.check("GeneralizedRequest::status", || {
        request.status().expect("complete")
    });
    b.check("GeneralizedRequest::wait", || {
        let (request, completer) = comm.generalized_request(Callbacks::new());
        drop(completer);
        request.wait()
    });
}

fn persistent(comm: &Communicator, b: &Bench) {
    let (me, bad) = (comm.rank(), comm.size());
    let v = || vec![0u64];
    b.check("Communicator::send_init", || comm.send_init(v(), bad, 0));
    b.check("Communicator::ssend_init", || comm.ssend_init(v(), bad, 0));
    b.check("Communicator::rsend_init", || comm.rsend_init(v(), bad, 0));
    b.check("Communicator::bsend_init", || comm.bsend_init(v(), bad, 0));
    b.check("Communicator::recv_init", || comm.recv_init(v(), bad, 0));
    let mut recv = comm.recv_init(v(), me, 9).expect("init");
    recv.start().expect("start");
    b.check("Persistent::start", || recv.start());
    b.check("start_all", || start_all([&mut recv]));
    b.check("Persistent::buffer", || recv.buffer().map(drop));
    b.check("Persistent::buffer_mut", || recv.buffer_mut().map(drop));
    too_long(comm);
    b.check("Persistent::status", || recv.status().expect("over"));
    recv.wait().expect_err("too long");
    let mut again = || {
        recv.start().expect("start");
        too_long(comm);
    };
    again();
    b.check("Persistent::wait", || recv.wait());
    recv.start().expect("start");
    too_long(comm);
    b.check("Persistent::into_buffer", || recv.into_buffer());
    let mut copy = comm.bsend_init(v(), me, 0).expect("init");
    b.check("Persistent::start", || copy.start());

    let (mut x, mut y, mut z) = ([0u64], [0u64], [0u64]);
    let (mut p, mut q, mut r) = ([0u64], [0u64], [0u64]);
    let inner: Result<()> = comm.scope(|s| {
        b.check("Scope::send_init", || s.send_init(&mut x, bad, 0).map(drop));
        b.check("Scope::ssend_init", || {
            s.ssend_init(&mut y, bad, 0).map(drop)
        });
        b.check("Scope::rsend_init", || {
            s.rsend_init(&mut z, bad, 0).map(drop)
        });
        b.check("Scope::bsend_init", || {
            s.bsend_init(&mut p, bad, 0).map(drop)
        });
        b.check("Scope::recv_init", || s.recv_init(&mut q, bad, 0).map(drop));
        let mut recv = s.recv_init(&mut r, me, 9)?;
        recv.start()?;
        b.check("ScopedPersistent::start", || recv.start());
        b.check("ScopedPersistent::buffer", || recv.buffer().map(drop));
        b.check("ScopedPersistent::buffer_mut", || {
            recv.buffer_mut().map(drop)
        });
        too_long(comm);
        b.check("ScopedPersistent::status", || recv.status().expect("over"));
        recv.wait().expect_err("too long");
        recv.start()?;
        too_long(comm);
        b.check("ScopedPersistent::wait", || recv.wait());
        Ok(())
    });
    inner.expect("scope");
}

fn scopes(comm: &Communicator, b: &Bench) {
    let (me, bad) = (comm.rank(), comm.size());
    let other = comm.dup().expect("dup");
    let data = [0u64];
    let (mut x, mut y, mut z, mut u) = ([0u64], [0u64], [0u64], [0u64]);
    let (mut v, mut w, mut field) = ([0u64], [0u64], [0u64; 4]);
    let element = u64::datatype().commit().expect("commit");
    let at = |origin| Region {
        layout: element.clone(),
        origin,
    };
    let sound: Regions<u64> = Regions::new(vec![at(1)], vec![at(0)]).expect("apart");
    let outside: Regions<u64> = Regions::new(vec![at(9)], vec![at(0)]).expect("apart");
    let mut short = [0u64; 4];
    let inner: Result<()> = comm.scope(|s: &Scope<'_, '_>| {
        b.check("Scope::isend", || s.isend(&data, bad, 0).map(drop));
        b.check("Scope::issend", || s.issend(&data, bad, 0).map(drop));
        b.check("Scope::irsend", || s.irsend(&data, bad, 0).map(drop));
        b.check("Scope::ibsend", || s.ibsend(&data, me, 0).map(drop));
        b.check("Scope::irecv", || s.irecv(&mut x, bad, 0).map(drop));
        other.send(&data, me, 9)?;
        let strange = other.mprobe(me, 9)?;
        b.check("Scope::imrecv", || s.imrecv(strange, &mut y).map(drop));
        too_long(comm);
        let matched = comm.mprobe(me, 9)?;
        b.check("Scope::imrecv", || {
            s.imrecv(matched, &mut z).and_then(|r| r.wait())
        });
        too_long(comm);
        let received = s.irecv(&mut u, me, 9)?;
        b.check("ScopedRequest::wait", || received.wait());
        too_long(comm);
        let mut received = s.irecv(&mut v, me, 9)?;
        b.check("ScopedRequest::status", || received.status().expect("over"));
        b.check("Scope::regions", || {
            s.regions(&mut short, &outside).map(drop)
        });
        let set = s.regions(&mut field, &sound)?;
        b.check("RegionSet::isend", || set.isend(3, me, 0).map(drop));
        b.check("RegionSet::irecv", || set.irecv(3, me, 0).map(drop));
        b.check("RegionSet::read", || set.read(0..4).map(drop));
        Ok(())
    });
    inner.expect("scope");
    too_long(comm);
    b.check("Communicator::scope", || {
        comm.scope(|s| s.irecv(&mut w, me, 9).map(drop))
    });
}

fn partitioned(comm: &Communicator, b: &Bench) {
    let (me, bad) = (comm.rank(), comm.size());
    let v = || vec![0u64; 4];
    b.check("Communicator::psend_init", || {
        comm.psend_init(v(), 3, me, 0).map(drop)
    });
    b.check("Communicator::psend_init", || {
        comm.psend_init(v(), 2, bad, 0).map(drop)
    });
    b.check("Communicator::precv_init", || {
        comm.precv_init(v(), 3, me, 0).map(drop)
    });
    let (mut x, mut y) = ([0u64; 4], [0u64; 4]);
    let inner: Result<()> = comm.scope(|s| {
        b.check("Scope::psend_init", || {
            s.psend_init(&mut x, 3, me, 0).map(drop)
        });
        b.check("Scope::precv_init", || {
            s.precv_init(&mut y, 2, bad, 0).map(drop)
        });
        Ok(())
    });
    inner.expect("scope");
    let element = u64::datatype().commit().expect("commit");
    let half = osier::partitioned::Partitions::of(2, &u8::datatype().commit().expect("commit"), 12);
    let mut send = comm.psend_init(v(), 2, me, 0).expect("init");
    let mut recv = comm.precv_init(v(), 2, me, 0).expect("init");
    b.check("PartitionedSend::write", || send.write(0, |_| ()));
    b.check("PartitionedSend::pready", || send.pready(0));
    start_all([
        &mut send as &mut dyn osier::persistent::Startable,
        &mut recv,
    ])
    .expect("start");
    b.check("Partitioned::start", || send.start());
    b.check("Partitioned::buffer", || send.buffer().map(drop));
    b.check("Partitioned::buffer_mut", || send.buffer_mut().map(drop));
    b.check("PartitionedSend::write_from", || send.write_from(0, &[0]));
    b.check("PartitionedSend::pready_range", || send.pready_range(7..=7));
    b.check("PartitionedSend::pready_list", || send.pready_list(&[7]));
    b.check("PartitionedRecv::parrived", || recv.parrived(7));
    b.check("PartitionedRecv::read", || recv.read(0).map(drop));
    b.check("PartitionedRecv::read_into", || {
        recv.read_into(0, &mut [0; 2])
    });
    send.pready_range(0..=1).expect("ready");
    recv.wait().expect("received");
    send.wait().expect("sent");
    let mut odd = comm.psend_init(v(), half, me, 1).expect("init");
    odd.start().expect("start");
    b.check("PartitionedSend::write", || odd.write(0, |_| ()));
    drop(odd);
    // What the sender has does not fit.
    let _long = comm.psend_init(vec![0u64; 6], 2, me, 2).expect("init");
    let mut short = comm.precv_init(v(), 2, me, 2).expect("init");
    b.check("Partitioned::start", || short.start());
    let _same = comm.psend_init(
        v(),
        osier::partitioned::Partitions::of(2, &element, 2),
        me,
        2,
    );
}

/// Calls whose arguments make no sense, on all ranks.
fn making(comm: &Communicator, b: &Bench) {
    let bad = comm.size();
    b.check("Communicator::bcast", || comm.bcast(&mut [0u8], bad));
    b.check("Communicator::gather", || {
        comm.gather(&[0u8], &mut [0u8; 2], bad)
    });
    b.check("Communicator::allgather", || {
        comm.allgather(&[0u8], &mut [0u8; 9])
    });
    let (one, nine) = ([0u8], [0usize; 9]);
    b.check("Communicator::reduce", || {
        comm.reduce(&one, &mut [0u8], bad, osier::Op::Sum)
    });
    b.check("Communicator::scatter", || {
        comm.scatter(&one, &mut [0u8], bad)
    });
    b.check("Communicator::alltoall", || {
        comm.alltoall(&one, &mut [0u8; 9])
    });
    b.check("Communicator::reduce_scatter_block", || {
        comm.reduce_scatter_block(&one, &mut [0u8; 9], osier::Op::Sum)
    });
    b.check("Communicator::scan", || {
        comm.scan(&one, &mut [0u8; 9], osier::Op::Sum)
    });
    b.check("Communicator::exscan", || {
        comm.exscan(&one, &mut [0u8; 9], osier::Op::Sum)
    });
    b.check("Communicator::gatherv", || {
        comm.gatherv(&one, &mut [0u8], &nine, &nine, bad)
    });
    b.check("Communicator::scatterv", || {
        comm.scatterv(&one, &nine, &nine, &mut [0u8], bad)
    });
    b.check("Communicator::allgatherv", || {
        comm.allgatherv(&one, &mut [0u8], &nine, &nine)
    });
    b.check("Communicator::alltoallv", || {
        comm.alltoallv(&one, (&nine, &nine), &mut [0u8], (&nine, &nine))
    });
    b.check("Communicator::alltoallw", || {
        comm.alltoallw(&[[0u8]], &mut [[0u8]])
    });
    b.check("Communicator::reduce_scatter", || {
        comm.reduce_scatter(&one, &mut [0u8], &nine, osier::Op::Sum)
    });
    nonblocking::check(comm, b);
    let neighbors = osier_collectives::Operation::NeighborAlltoall;
    b.check("Communicator::explain", || {
        comm.explain(neighbors, 8).map(drop)
    });
    b.check("Communicator::explain_on_devices", || {
        comm.explain_on_devices(osier_collectives::Operation::Bcast, 8)
            .map(drop)
    });
    b.check("Communicator::allreduce", || {
        comm.allreduce(&[0u8], &mut [0u8; 9], function(|a: u8, _| a))
    });
    let strange = Group::identity(comm.size() as u32 + 3);
    b.check("Communicator::create", || comm.create(&strange));
    b.check("Communicator::create_group", || {
        comm.create_group(&strange, 0)
    });
    let unknown = SplitType::ResourceGuided(Resource::ProcessSet("none"));
    b.check("Communicator::split_type", || {
        comm.split_type(Some(unknown), 0)
    });
    b.check("Communicator::remote_size", || comm.remote_size());
    b.check("Communicator::remote_group", || {
        comm.remote_group().map(drop)
    });
    b.check("Communicator::intercomm_create", || {
        comm.intercomm_create(bad, None, 0)
    });
    b.check("Communicator::merge", || comm.merge(false));
    b.check("Communicator::set_name", || comm.set_name(&"x".repeat(999)));
    b.check("Communicator::transport", || comm.transport(bad));
    b.check("Communicator::alloc", || comm.alloc::<u64>(usize::MAX / 16));
    b.check("Communicator::cart_create", || {
        comm.cart_create(&[99], &[true])
    });
    b.check("Communicator::cart_map", || comm.cart_map(&[99], &[true]));
    b.check("Communicator::cart_sub", || comm.cart_sub(&[true]));
    b.check("Communicator::graph_create", || {
        comm.graph_create(&[9], &[0], false)
    });
    b.check("Communicator::graph_map", || comm.graph_map(&[9], &[0]));
    b.check("Communicator::dist_graph_create_adjacent", || {
        comm.dist_graph_create_adjacent(&[99], &[], None, false)
    });
    b.check("Communicator::dist_graph_create", || {
        let edges = Edges {
            sources: &[99],
            degrees: &[0],
            destinations: &[],
            weights: None,
        };
        comm.dist_graph_create(edges, false)
    });
}

/// Calls that need a rank that has dropped the communicator. Called by rank 1
/// of two; rank 0 has gone.
fn deserted(comm: &Communicator, b: &Bench) {
    let mut one = [0u8];
    let closed = |e: Error| assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    closed(b.check("Communicator::recv", || comm.recv(&mut one, 0, 0)));
    closed(b.check("Communicator::probe", || comm.probe(0, 0)));
    closed(b.check("Communicator::mprobe", || comm.mprobe(0, 0)));
    closed(b.check("Communicator::barrier", || comm.barrier()));
    closed(b.check("Communicator::bcast", || comm.bcast(&mut one, 0)));
    closed(b.check("Communicator::split", || comm.split(Some(0), 0)));
    closed(b.check("Communicator::split_shared", || comm.split_shared(0)));
    closed(b.check("Communicator::adopt_costs", || comm.adopt_costs(None)));
    closed(b.check("Communicator::measure_call_costs", || {
        comm.measure_call_costs()
    }));
    closed(b.check("Communicator::measure_costs", || {
        comm.measure_costs(&osier_engine::protocol::cost::LinkCosts::default())
    }));
    closed(b.check("Communicator::dup", || comm.dup()));
    let info = comm.info();
    closed(b.check("Communicator::dup_with_info", || comm.dup_with_info(&info)));
    let begun = || comm.idup().expect("idup");
    closed(b.check("PendingCommunicator::wait", || begun().wait()));
    closed(b.check("PendingCommunicator::wait", || comm.block_on(begun())));
    let mut set = WaitSet::new();
    set.add((), begun()).expect("add");
    closed(b.check("WaitSet::wait", || set.wait().expect("one").1));
    let begun = || {
        let mut recv = comm.precv_init(vec![0u8; 4], 2, 0, 0).expect("init");
        recv.start().expect("start");
        recv
    };
    closed(b.check("Partitioned::wait", || begun().wait()));
    closed(b.check("Partitioned::into_buffer", || begun().into_buffer()));
    let recv = begun();
    closed(b.check("Partitioned::status", || {
        loop {
            if let Some(status) = recv.status() {
                break status;
            }
        }
    }));
    let mut set = WaitSet::new();
    set.add((), begun()).expect("add");
    closed(b.check("WaitSet::wait", || set.wait().expect("one").1.map(drop)));
}

fn sessions(session: &Session, b: &Bench) {
    session.set_error_handler(b.handler());
    b.check("Session::group", || session.group("none"));
    b.check("Session::attach_buffer", || {
        session.attach_automatic()?;
        session.attach_buffer(Vec::new())
    });
    b.check("Session::attach_automatic", || session.attach_automatic());
    session.detach_buffer();
    let (all, none) = (Group::identity(2), Group::empty());
    b.check("Session::create_from_group", || {
        session.create_from_group(&none, "x")
    });
    b.check("Session::intercomm_create_from_groups", || {
        session.intercomm_create_from_groups(&all, 0, &all, 0, "x")
    });
}

#[test]
fn every_operation_that_fails_runs_its_handler_once() {
    let checked = std::sync::Mutex::new(BTreeSet::new());
    on_all(2, |comm| {
        let b = Bench::new();
        let twin = comm.dup().expect("dup");
        twin.set_error_handler(b.handler());
        point_to_point(&twin, &b);
        requests(&twin, &b);
        persistent(&twin, &b);
        partitioned(&twin, &b);
        scopes(&twin, &b);
        making(&twin, &b);
        one_sided::check(&twin, &b);
        let other = comm.dup().expect("dup");
        if comm.rank() == 1 {
            other.set_error_handler(b.handler());
            deserted(&other, &b);
        }
        drop(other);
        // The attribute that cannot be copied fails before anybody is asked.
        let broken = osier::attributes::CommKeyval::<u8>::with(
            |_: &Communicator, _| Err("cannot be copied".into()),
            |_| Ok(()),
        );
        twin.attributes().set(&broken, 0).expect("set");
        b.check("Communicator::idup", || twin.idup());
        let info = twin.info();
        b.check("Communicator::idup_with_info", || {
            twin.idup_with_info(&info)
        });
        twin.attributes().delete(&broken).expect("delete");
        sessions(&comm.session(), &b);
        comm.barrier().expect("barrier");
        checked.lock().expect("lock").extend(b.checked.take());
    });
    let _watchdog = Watchdog::start();
    universes_on(&Network::Shm, 2, |universe| {
        let b = Bench::new();
        universe.own().set_error_handler(b.handler());
        b.check("Universe::attach_buffer", || {
            universe.attach_automatic()?;
            universe.attach_buffer(Vec::new())
        });
        b.check("Universe::attach_automatic", || universe.attach_automatic());
        universe.detach_buffer();
        checked.lock().expect("lock").extend(b.checked.take());
    });
    // A set has the requests of one rank; two universes are two ranks.
    let options = osier_transports::sim::SimOptions {
        ranks: 2,
        ..Default::default()
    };
    let net = osier_transports::sim::SimNet::new(options);
    let one = osier::Universe::simulated(&net, 0).expect("universe");
    let two = osier::Universe::simulated(&net, 1).expect("universe");
    let b = Bench::new();
    two.world().set_error_handler(b.handler());
    let mut set = WaitSet::new();
    let mine = one.world().irecv(vec![0u8], ANY_SOURCE, 0).expect("irecv");
    set.add((), mine).expect("add");
    let theirs = two.world().irecv(vec![0u8], ANY_SOURCE, 0).expect("irecv");
    b.check("WaitSet::add", || set.add((), theirs));
    checked.lock().expect("lock").extend(b.checked.take());

    let checked = checked.into_inner().expect("lock");
    let known: BTreeSet<String> = fallible_functions();
    let exempt = |name: &str| EXEMPT.iter().any(|(what, _)| name.starts_with(what));
    let missing: Vec<_> = known
        .iter()
        .filter(|name| !exempt(name) && !checked.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "nobody looks at {missing:?}");
    let unknown: Vec<_> = checked.iter().filter(|c| !known.contains(**c)).collect();
    assert!(unknown.is_empty(), "there is no {unknown:?}");
}

/// `Type::name` of each public function that returns a `Result`, as the sources
/// of communicators and point-to-point have it.
fn fallible_functions() -> BTreeSet<String> {
    let mut names: BTreeSet<String> = BY_MACROS.iter().map(|n| (*n).to_owned()).collect();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut files = Vec::new();
    let mut folders = ["p2p", "comm", "coll", "create", "measure", "one_sided"]
        .map(|folder| src.join(folder))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        names.extend(forms_of_collectives(code));
        let mut of = String::new();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            if line.starts_with("macro_rules!") {
                // Functions of macros are in BY_MACROS.
                lines.by_ref().find(|line| *line == "}");
                continue;
            }
            if line.starts_with("impl") {
                of = implemented(line);
            }
            let Some(rest) = line.trim_start().strip_prefix("pub fn ") else {
                continue;
            };
            let name: String = rest
                .chars()
                .take_while(|c| *c == '_' || c.is_alphanumeric())
                .collect();
            let mut signature = rest.to_owned();
            while !signature.contains(" {") && !signature.contains(';') {
                signature.push_str(lines.next().expect("the rest of a signature"));
            }
            let result = signature.rsplit("->").next().unwrap_or_default();
            if name.is_empty() || !signature.contains("->") || !result.contains("Result<") {
                continue;
            }
            match line.starts_with(' ') {
                true => names.insert(format!("{of}::{name}")),
                false => names.insert(name),
            };
        }
    }
    assert!(names.len() > 100, "the sources are elsewhere");
    names
}

/// What the macros of `coll/nonblocking.rs` define.
fn forms_of_collectives(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (call, of_scopes) in [("\ntwo_buffers!(", 2), ("\nmany_buffers!(", 1)] {
        for row in code.split(call).skip(1) {
            let forms = row.split(':').nth(1).unwrap_or_default();
            let forms = forms.split(',').map(str::trim).take(2);
            for (at, form) in forms.enumerate() {
                names.insert(format!("Communicator::{form}"));
                if at < of_scopes {
                    names.insert(format!("Scope::{form}"));
                }
            }
        }
    }
    names
}

/// The type of an `impl` line.
fn implemented(line: &str) -> String {
    let mut depth = 0;
    let mut rest = line.trim_start_matches("impl");
    // Parameters.
    for (at, c) in rest.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            rest = &rest[at + usize::from(c == '>')..];
            break;
        }
    }
    let of = rest.split(" for ").last().unwrap_or(rest).trim();
    of.chars()
        .take_while(|c| *c == '_' || c.is_alphanumeric())
        .collect()
}
