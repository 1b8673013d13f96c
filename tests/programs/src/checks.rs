//! Wrong programs for `--check`: `exercise check WHAT`.

use osier::{Communicator, Datatype, Result, Type, View, ViewMut};

/// Runs one of them on two ranks.
pub fn check(comm: &Communicator, what: &str) {
    match what {
        "fine" => types(comm, |to| comm.recv(to, 0, 7).map(drop)),
        "types" => {
            for _ in 0..2 {
                types(comm, |_| comm.recv(&mut [0i64; 6], 0, 7).map(drop));
            }
        }
        "overlap" => two_receives(comm, 2, false),
        "interleaved" => two_receives(comm, 1, true),
        "changed" => changed(comm),
        "request" => {
            if comm.rank() == 0 {
                // From itself: the other may have left, which ends what needs it.
                let request = comm.irecv(vec![0u8; 4], 0, 3).expect("a receive");
                std::mem::forget(request);
            }
        }
        "alone" => alone(comm),
        _ => panic!("exercise check {what:?}?"),
    }
    println!("rank {} is through", comm.rank());
}

fn types(comm: &Communicator, receive: impl FnOnce(&mut [f64]) -> Result<()>) {
    if comm.rank() == 0 {
        comm.send(&[1.5f64; 6], 1, 7).expect("a send");
    } else {
        receive(&mut [0.0; 6]).expect("a message");
    }
    comm.barrier().expect("all are here");
}

/// Two receives, of which the second begins `apart` elements behind the first;
/// of every element, or of every second one.
fn two_receives(comm: &Communicator, apart: usize, gaps: bool) {
    const N: usize = 6;
    if comm.rank() == 1 {
        comm.barrier().expect("both are posted");
        for tag in 0..2 {
            comm.send(&[3u64; N], 0, tag).expect("a send");
        }
        return;
    }
    let every = Type::vector(N, 1, if gaps { 2 } else { 1 }, &u64::datatype());
    let every = every.and_then(|t| t.commit()).expect("a layout");
    let mut memory = [0u64; 2 * N];
    let base = memory.as_mut_ptr();
    let at = |element: usize| {
        let origin = base.wrapping_add(element).cast();
        // SAFETY: not so where they overlap, on purpose; both write the same
        // numbers, and one thread does it.
        unsafe { ViewMut::from_raw(origin, &every, 1) }.expect("a view")
    };
    let (mut first, mut second) = (at(0), at(apart));
    comm.scope(|s| {
        s.irecv(&mut first, 1, 0)?;
        s.irecv(&mut second, 1, 1)?;
        comm.barrier()
    })
    .expect("two messages");
}

/// A buffer is written while it is sent.
fn changed(comm: &Communicator) {
    if comm.rank() == 1 {
        comm.barrier().expect("it is written");
        comm.recv(&mut [0u64; 4], 0, 5).expect("a receive");
        return;
    }
    let mut memory = [1u64; 4];
    let base = memory.as_mut_ptr();
    // SAFETY: not so, on purpose; one thread reads and writes, but for what
    // the peer reads after the barrier.
    let view = unsafe { View::from_raw(base.cast(), &u64::layout(), 4) }.expect("a view");
    comm.scope(|s| {
        s.issend(&view, 1, 5)?;
        // SAFETY: it is ours.
        unsafe { base.write(9) };
        comm.barrier()
    })
    .expect("a send");
}

/// Communicators of every make, of one rank or of two sides of one, dropped as
/// they should be: no leak.
fn alone(comm: &Communicator) {
    let own = comm.split(Some(comm.rank() as u32), 0).expect("a split");
    let own = own.expect("a color");
    let bridge = Some((comm, 1 - comm.rank()));
    let inter = own.intercomm_create(0, bridge, 1).expect("two sides");
    let again = inter.dup().expect("a duplicate");
    let (mine, theirs) = ([comm.rank() as u64], &mut [9u64]);
    again
        .sendrecv(&mine, 0, 2, theirs, 0, 2)
        .expect("across the sides");
    assert_eq!(*theirs, [1 - mine[0]]);
    let all = again.merge(comm.rank() == 1).expect("both");
    all.barrier().expect("both");
}
