//! Calls on windows that fail.

use super::Bench;
use osier::rma::Updates;
use osier::{Communicator, Op, Type};

pub(super) fn check(comm: &Communicator, b: &Bench) {
    let (me, bad) = (comm.rank(), comm.size());
    b.check("Communicator::window", || comm.window::<u64>(usize::MAX));
    let single = Updates::Single;
    b.check("Communicator::window_for", || {
        comm.window_for::<u64>(usize::MAX, single)
    });
    let window = comm.window::<u64>(2).expect("a window");
    b.check("Window::len_of", || window.len_of(bad));
    b.check("Window::reach_of", || window.reach_of(bad));
    let mut two = [0u64; 2];
    b.check("Window::read", || window.read(1, &mut two));
    b.check("Window::write", || window.write(1, &two));
    b.check("Window::lock", || window.lock(bad).map(drop));
    b.check("Window::lock_shared", || window.lock_shared(bad).map(drop));
    b.check("Window::fenced", || window.fenced(|e| e.put(&0u64, bad, 0)));
    let alone = comm
        .split(Some(me as u32), 0)
        .expect("split")
        .expect("mine");
    alone.set_error_handler(b.handler());
    let own = alone.window::<u64>(1).expect("a window");
    b.check("Window::post", || own.post(comm.group()).map(drop));
    b.check("Window::start", || own.start(comm.group()).map(drop));
    let element = Type::of::<u64>().commit().expect("a layout");
    let all = window.lock_all();
    b.check("Epoch::put", || all.put(&two, me, 1));
    b.check("Epoch::put_as", || all.put_as(&two, me, 0, &element, 1));
    b.check("Epoch::get", || all.get(&mut two, me, 1));
    b.check("Epoch::get_as", || all.get_as(&mut two, me, 0, &element, 1));
    b.check("Epoch::accumulate", || all.accumulate(&two, me, 1, Op::Sum));
    b.check("Epoch::accumulate_as", || {
        all.accumulate_as(&two, me, 0, (&element, 1), Op::Sum)
    });
    b.check("Epoch::get_accumulate", || {
        all.get_accumulate(&[1u64, 2], &mut two, me, 1, Op::Sum)
    });
    b.check("Epoch::fetch_and_op", || {
        all.fetch_and_op(1, me, 2, Op::Sum)
    });
    b.check("Epoch::compare_and_swap", || {
        all.compare_and_swap(1, 1, me, 2)
    });
    b.check("Epoch::flush", || all.flush(bad));
    drop(all);
    window.free().expect("free");
    own.free().expect("free");
}
