//! Calls on windows that fail.

use super::Bench;
use osier::rma::{SignalOp, Updates};
use osier::{Communicator, Op, Type};

pub(super) fn check(comm: &Communicator, b: &Bench) {
    let (me, bad) = (comm.rank(), comm.size());
    b.check("Communicator::window", || comm.window::<u64>(usize::MAX));
    let single = Updates::Single;
    b.check("Communicator::window_for", || {
        comm.window_for::<u64>(usize::MAX, single)
    });
    b.check("Communicator::shared_window", || {
        comm.shared_window::<u64>(usize::MAX)
    });
    b.check("Communicator::symmetric_heap", || {
        comm.symmetric_heap(usize::MAX / 2)
    });
    let window = comm.window::<u64>(2).expect("a window");
    b.check("Window::as_ptr", || window.as_ptr(bad));
    b.check("Window::attach", || window.attach(1));
    b.check("Window::attach_vec", || window.attach_vec(vec![0u64]));
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
    b.check("Epoch::rput", || all.rput(two, me, 1).map(drop));
    b.check("Epoch::rget", || all.rget(two, me, 1).map(drop));
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
    symmetric(comm, &alone, b);
    window.free().expect("free");
    own.free().expect("free");
}

fn symmetric(comm: &Communicator, alone: &Communicator, b: &Bench) {
    let me = comm.rank();
    let mut two = [0u64; 2];
    let heap = comm.symmetric_heap(4096).expect("a heap");
    b.check("SymmetricHeap::alloc", || heap.alloc::<u64>(usize::MAX));
    let cells = heap.alloc::<u64>(2).expect("elements");
    b.check("Symmetric::put", || cells.put(&two, me, 1));
    b.check("Symmetric::get", || cells.get(&mut two, me, 1));
    b.check("Symmetric::read", || cells.read(1, &mut two));
    b.check("Symmetric::write", || cells.write(1, &two));
    let set = SignalOp::Set(1);
    b.check("Symmetric::put_signal", || {
        cells.put_signal(&1u64, me, 0, &cells, 2, set)
    });
    b.check("Symmetric::fetch", || cells.fetch(me, 2));
    b.check("Symmetric::set", || cells.set(1, me, 2));
    b.check("Symmetric::swap", || cells.swap(1, me, 2));
    b.check("Symmetric::add", || cells.add(1, me, 2));
    b.check("Symmetric::fetch_and_add", || cells.fetch_and_add(1, me, 2));
    b.check("Symmetric::fetch_and_op", || {
        cells.fetch_and_op(1, me, 2, Op::Sum)
    });
    b.check("Symmetric::compare_and_swap", || {
        cells.compare_and_swap(1, 1, me, 2)
    });
    b.check("Symmetric::wait_until", || cells.wait_until(2, |_| true));
    let own = alone.symmetric_heap(4096).expect("a heap");
    let mine = own.alloc::<u64>(1).expect("an element");
    b.check("Symmetric::on", || mine.on(comm).map(drop));
    b.check("SymmetricHeap::free", || heap.free());
}
