//! The window beside a naive twin: one list of receives.

use super::*;
use crate::progress::op::Op;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Act {
    Post(u32),
    /// Posts what is no matter of the window.
    PostOther(u32),
    /// A message that the queue takes, of this tag.
    Message(u32),
    /// A short message for the window.
    Short(usize),
    /// One of those that are not taken ends, is looked at, or becomes an operation.
    End(usize),
    Look(usize),
    Settle(usize),
    SettleAll,
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0u32..10).prop_map(|t| Act::Post(t / 9)),
        1 => (0u32..2).prop_map(Act::PostOther),
        2 => (0u32..2).prop_map(Act::Message),
        6 => (1usize..100).prop_map(Act::Short),
        8 => any::<usize>().prop_map(Act::End),
        1 => any::<usize>().prop_map(Act::Look),
        1 => any::<usize>().prop_map(Act::Settle),
        1 => Just(Act::SettleAll),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    Waiting,
    /// A message of this number of bytes has met it.
    Met(usize),
}

#[derive(Clone, Copy, Debug)]
struct Naive {
    handle: Handle,
    /// Its address, which nothing reads.
    id: usize,
    tag: u32,
    is: Is,
}

const SOURCE: u32 = 3;

fn envelope(tag: u32) -> Envelope {
    Envelope {
        source: SOURCE,
        tag,
    }
}

#[derive(Default)]
struct Pair {
    posted: PostedReceives,
    ops: Slab<Op>,
    naive: Vec<Naive>,
    next: usize,
}

impl Pair {
    fn post(&mut self, tag: u32, in_window: bool) {
        self.next += 1;
        let (id, origin) = (self.next, std::ptr::without_provenance_mut(self.next));
        let ops = &mut self.ops;
        let there = in_window.then(|| self.posted.post(origin, 100, envelope(tag), ops));
        let handle = there.flatten().unwrap_or_else(|| {
            let view = RawView::untyped(origin, 100);
            let op = Op::receive(view, Pattern::exact(SOURCE, tag), SOURCE, tag);
            let handle = ops.insert(op).expect("room");
            let key = self.posted.queue(ops).post_exact(envelope(tag), handle);
            ops.get_mut(handle).expect("live").protocol = Protocol::Posted(Some(key));
            Handle::of_op(handle)
        });
        self.naive.push(Naive {
            handle,
            id,
            tag,
            is: Is::Waiting,
        });
    }

    fn first(&mut self, tag: u32) -> Option<&mut Naive> {
        let mut waiting = self.naive.iter_mut().filter(|n| n.is == Is::Waiting);
        waiting.find(|n| n.tag == tag)
    }

    fn message(&mut self, tag: u32) {
        let taken = self.posted.take(envelope(tag), &mut self.ops);
        let op = taken.and_then(|handle| self.ops.get_mut(handle));
        let id = op.as_ref().map(|op| op.view.origin.addr());
        if let Some(op) = op {
            op.total = 7;
            op.protocol = Protocol::Done { met: true };
        }
        let naive = self.first(tag);
        assert_eq!(id, naive.as_ref().map(|n| n.id));
        if let Some(naive) = naive {
            naive.is = Is::Met(7);
        }
    }

    fn short(&mut self, bytes: usize) {
        if self.posted.in_window() == 0 {
            return;
        }
        let number = self.posted.waiting;
        let entry = self.posted.entry(number).expect("it waits");
        let (id, tag) = (entry.origin.addr(), self.posted.envelope.tag);
        self.posted.served(bytes);
        let naive = self.first(tag).expect("it waits");
        assert_eq!(naive.id, id);
        naive.is = Is::Met(bytes);
    }

    fn end(&mut self, at: usize) {
        let Some(naive) = self.pick(at) else { return };
        let Naive { handle, id, is, .. } = self.naive[naive];
        let met = match handle.named() {
            Named::Op(op) => self.op(op, id),
            Named::InWindow(number) => {
                let entry = *self.posted.get(number).expect("not taken");
                let met = match entry.state {
                    State::Waiting => Is::Waiting,
                    State::Done => Is::Met(entry.value as usize),
                    State::Op => self.op(entry.value, id),
                    other => panic!("{other:?}"),
                };
                if met != Is::Waiting {
                    self.posted.forget(number);
                    assert!(self.posted.get(number).is_none(), "taken once");
                }
                met
            }
        };
        assert_eq!(met, is);
        if met != Is::Waiting {
            self.naive.remove(naive);
        }
    }

    fn op(&mut self, handle: u32, id: usize) -> Is {
        let op = self.ops.get(handle).expect("live");
        assert_eq!(op.view.origin.addr(), id);
        if !op.is_done() {
            return Is::Waiting;
        }
        let bytes = op.total;
        self.ops.discard(handle);
        Is::Met(bytes)
    }

    fn settle(&mut self, at: usize, names: bool) {
        let Some(naive) = self.pick(at) else { return };
        let Named::InWindow(number) = self.naive[naive].handle.named() else {
            return;
        };
        let op = self.posted.op_of(number, &mut self.ops).expect("not taken");
        if names {
            self.posted.forget(number);
            self.naive[naive].handle = Handle::of_op(op);
        }
    }

    fn pick(&self, at: usize) -> Option<usize> {
        at.checked_rem(self.naive.len())
    }
}

fn play(acts: &[Act], begin: u32) {
    let mut pair = Pair::default();
    (pair.posted.first, pair.posted.waiting, pair.posted.next) = (begin, begin, begin);
    for act in acts {
        match *act {
            Act::Post(tag) => pair.post(tag, true),
            Act::PostOther(tag) => pair.post(tag, false),
            Act::Message(tag) => pair.message(tag),
            Act::Short(bytes) => pair.short(bytes),
            Act::End(at) => pair.end(at),
            Act::Look(at) => pair.settle(at, false),
            Act::Settle(at) => pair.settle(at, true),
            Act::SettleAll => drop(pair.posted.queue(&mut pair.ops).len()),
        }
        let waiting = pair.naive.iter().filter(|n| n.is == Is::Waiting).count();
        assert_eq!(pair.posted.len(), waiting);
        assert_eq!(pair.posted.is_empty(), waiting == 0);
        assert!(pair.posted.in_window() == 0 || pair.posted.outside().is_empty());
    }
    // All messages come, and nothing is left.
    for tag in [0, 1] {
        while pair.first(tag).is_some() {
            pair.message(tag);
        }
    }
    while !pair.naive.is_empty() {
        pair.end(0);
    }
    assert_eq!(pair.ops.len(), 0);
    assert_eq!(
        pair.posted.first, pair.posted.next,
        "numbers are free again"
    );
}

proptest! {
    #[test]
    fn window_and_naive_list_agree(
        acts in proptest::collection::vec(acts(), 0..400),
        // Numbers wrap.
        begin in prop_oneof![Just(0), Just(u32::MAX - 20)],
    ) {
        play(&acts, begin);
    }
}

#[test]
fn a_full_window_leaves_receives_to_the_queue() {
    let mut pair = Pair::default();
    for _ in 0..MOST + 3 {
        pair.post(0, true);
    }
    assert_eq!(pair.posted.in_window(), 0, "all are operations");
    for _ in 0..MOST + 3 {
        pair.message(0);
    }
    while !pair.naive.is_empty() {
        pair.end(0);
    }
    pair.post(1, true);
    assert_eq!(pair.posted.in_window(), 1);
}
