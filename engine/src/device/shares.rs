//! Deadlock-free shares of the bounce-buffer memory among transfers; pure.
//!
//! # Invariants
//! 1. What waits for something else than a device or a peer that has met it may hold a part
//!    of the memory only: messages that are announced, and those that wait for their
//!    producer.
//! 2. Each kind of transfer whose message has met its receive has memory of its own
//!    ([`Claim::kept`]). A transfer that has it ends without more memory of that kind: a
//!    copy when its kernel has, a send when its receiver takes what it gives (by a kernel,
//!    by a copy, or into slots that the receiver holds already), a receive that has asked
//!    for bytes when its sender gives some, which has none of this kind to wait for.
//!
//! So waits go from receives that ask to sends, from sends to copies, from copies to
//! kernels, and never back: an order of resources. What waits for a stream of the user's
//! stands outside of it, and holds nothing that is kept.

/// What a transfer that asks for memory waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A send for its receive, which may never come, or for its producer: a quarter of the
    /// memory.
    Announced,
    /// A send for its own device, before it is sent at all: half of it.
    Short,
    /// A send for its device and its receiver, which takes its slots.
    Send,
    /// A receive for bytes that it has asked for.
    Window,
    /// A receive for its device, to which bytes are copied that have come.
    Copy,
}

impl Claim {
    const NUMBER: usize = 5;
    /// Kinds of transfers that memory is kept for.
    pub const KEPT: usize = 3;

    /// Which memory is kept for it.
    pub fn kept(self) -> Option<usize> {
        match self {
            Claim::Announced | Claim::Short => None,
            Claim::Send => Some(0),
            Claim::Window => Some(1),
            Claim::Copy => Some(2),
        }
    }
}

/// Bytes that transfers have, by what they wait for; without what is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    all: usize,
    used: [usize; Claim::NUMBER],
}

impl Shares {
    /// Of `all` bytes.
    pub fn new(all: usize) -> Shares {
        Shares {
            all,
            ..Shares::default()
        }
    }

    /// Bytes that there are.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Whether a transfer may have `bytes` more, if they are free.
    pub fn allows(&self, claim: Claim, bytes: usize) -> bool {
        let most = match claim {
            Claim::Announced => self.all / 4,
            Claim::Short => self.all / 2,
            Claim::Send | Claim::Window | Claim::Copy => self.all,
        };
        self.used[claim as usize] + bytes <= most
    }

    /// It has them.
    pub fn take(&mut self, claim: Claim, bytes: usize) {
        self.used[claim as usize] += bytes;
    }

    /// It has given them back.
    pub fn give(&mut self, claim: Claim, bytes: usize) {
        self.used[claim as usize] -= bytes;
    }

    /// Bytes that transfers have.
    pub fn used(&self) -> usize {
        self.used.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How the bytes of a message travel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Way {
        /// The receiver's kernel reads the sender's slots.
        Handed,
        /// Its host copies them first.
        Copied,
        /// The receiver asks for as much as it has slots for.
        Asked,
    }

    /// A message, and the earlier ones that must complete first: for its producer, for the
    /// receiver's buffer, and for the program to post the receive.
    #[derive(Clone, Debug)]
    struct Message {
        sender: usize,
        way: Way,
        pieces: usize,
        producer: Vec<usize>,
        buffer: Vec<usize>,
        posted: Vec<usize>,
    }

    /// A slot: the claim that it counts for, and whether it is a kept one.
    type Slot = (Claim, bool);

    #[derive(Clone, Debug, Default)]
    struct Transfer {
        met: bool,
        /// Slots of the sender, not packed; packed; of the receiver's.
        empty: Vec<Slot>,
        packed: Vec<Slot>,
        room: Vec<Slot>,
        begun: usize,
        done: usize,
    }

    /// A rank's memory, in slots.
    #[derive(Clone, Debug)]
    struct Rank {
        shares: Shares,
        kept: [bool; Claim::KEPT],
        keeps: bool,
    }

    impl Rank {
        fn take(&mut self, claim: Claim) -> Option<Slot> {
            let free = self.shares.used() < self.shares.all();
            if free && self.shares.allows(claim, 1) {
                self.shares.take(claim, 1);
                return Some((claim, false));
            }
            let kept = &mut self.kept[claim.kept().filter(|_| self.keeps)?];
            (!std::mem::replace(kept, true)).then_some((claim, true))
        }

        fn give(&mut self, (claim, kept): Slot) {
            match claim.kept().filter(|_| kept) {
                Some(which) => self.kept[which] = false,
                None => self.shares.give(claim, 1),
            }
        }
    }

    /// Two ranks play the transfers in an order by `dice`; the messages that are complete
    /// when nothing moves.
    fn play(
        messages: &[Message],
        ranks: &mut [Rank; 2],
        mut dice: impl FnMut(usize) -> usize,
    ) -> Vec<bool> {
        const DEPTH: usize = 2;
        let mut all = vec![Transfer::default(); messages.len()];
        let over = |all: &[Transfer], i: usize| all[i].done == messages[i].pieces;
        loop {
            let mut moves = Vec::new();
            for (i, m) in messages.iter().enumerate() {
                let t = &all[i];
                if over(&all, i) {
                    continue;
                }
                let passed = |of: &[usize]| of.iter().all(|j| over(&all, *j));
                let (late, ready) = (!passed(&m.producer), passed(&m.posted));
                let buffer = passed(&m.buffer);
                let (from, to) = (&ranks[m.sender], &ranks[1 - m.sender]);
                let claim = if t.met && !late {
                    Claim::Send
                } else {
                    Claim::Announced
                };
                let held = t.empty.len() + t.packed.len();
                if held < DEPTH && t.begun < m.pieces && from.clone().take(claim).is_some() {
                    moves.push((i, 0));
                }
                if !t.empty.is_empty() && !late {
                    moves.push((i, 1));
                }
                let meets = ready && buffer && !t.met;
                match m.way {
                    Way::Asked => {
                        // It is asked when its bytes are valid.
                        let wants = t.room.len() < DEPTH.min(m.pieces - t.done);
                        let asks = ready && buffer && !late && wants;
                        if asks && to.clone().take(Claim::Window).is_some() {
                            moves.push((i, 2));
                        }
                        if !t.packed.is_empty() && !t.room.is_empty() {
                            moves.push((i, 4));
                        }
                    }
                    _ if meets => moves.push((i, 3)),
                    Way::Handed if t.met && !t.packed.is_empty() => moves.push((i, 5)),
                    // Its kernel needs nothing else: it completes with this move.
                    Way::Copied
                        if t.met
                            && !t.packed.is_empty()
                            && to.clone().take(Claim::Copy).is_some() =>
                    {
                        moves.push((i, 5));
                    }
                    _ => {}
                }
            }
            if moves.is_empty() {
                return (0..all.len()).map(|i| over(&all, i)).collect();
            }
            let (i, what) = moves[dice(moves.len())];
            let m = &messages[i];
            let late = !m.producer.iter().all(|j| over(&all, *j));
            let t = &mut all[i];
            let (from, to) = match ranks {
                [a, b] if m.sender == 0 => (a, b),
                [a, b] => (b, a),
            };
            match what {
                0 => {
                    let claim = if t.met && !late {
                        Claim::Send
                    } else {
                        Claim::Announced
                    };
                    t.empty.extend(from.take(claim));
                    t.begun += 1;
                }
                1 => t.packed.extend(t.empty.pop()),
                2 | 3 => {
                    if what == 2 {
                        t.room.extend(to.take(Claim::Window));
                    }
                    if !std::mem::replace(&mut t.met, true) {
                        for (claim, kept) in t.empty.iter_mut().chain(&mut t.packed) {
                            assert!(!*kept, "who has not met holds nothing that is kept");
                            from.shares.give(*claim, 1);
                            from.shares.take(Claim::Send, 1);
                            *claim = Claim::Send;
                        }
                    }
                }
                _ => {
                    if let Some(slot) = t.packed.pop() {
                        from.give(slot);
                    }
                    t.done += 1;
                    if t.done == m.pieces {
                        t.room.drain(..).for_each(|slot| to.give(slot));
                    }
                }
            }
        }
    }

    fn message(at: usize) -> impl Strategy<Value = Message> {
        let earlier = || {
            let some = proptest::collection::vec(0..at.max(1), 0..2);
            some.prop_map(move |some| if at == 0 { Vec::new() } else { some })
        };
        let way = prop_oneof![Just(Way::Handed), Just(Way::Copied), Just(Way::Asked)];
        (0..2usize, way, 1..5usize, earlier(), earlier(), earlier()).prop_map(
            |(sender, way, pieces, producer, buffer, posted)| Message {
                sender,
                way,
                pieces,
                producer,
                buffer,
                posted,
            },
        )
    }

    fn messages() -> impl Strategy<Value = Vec<Message>> {
        (1..14usize).prop_flat_map(|n| (0..n).map(message).collect::<Vec<_>>())
    }

    fn ranks(all: [usize; 2], keeps: bool) -> [Rank; 2] {
        all.map(|all| Rank {
            shares: Shares::new(all),
            kept: [false; Claim::KEPT],
            keeps,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Messages that would all end with memory without bounds end with the least, in
        /// every order; and all of it is given back.
        #[test]
        fn transfers_complete_with_least_memory_in_any_order(
            messages in messages(),
            all in [0..6usize, 0..6usize],
            picks in proptest::collection::vec(any::<u16>(), 64),
        ) {
            let mut ranks = ranks(all, true);
            let mut at = 0;
            let over = play(&messages, &mut ranks, |n| {
                at += 1;
                usize::from(picks[at % picks.len()]) % n
            });
            prop_assert!(over.iter().all(|over| *over), "{over:?}");
            for rank in &ranks {
                prop_assert_eq!(rank.shares.used(), 0);
                prop_assert_eq!(rank.kept, [false; Claim::KEPT]);
            }
        }
    }

    /// The model would find it: two ranks whose receives both ask for bytes, without memory
    /// that is kept.
    #[test]
    fn model_finds_deadlock_without_kept_memory() {
        let asked = |sender| Message {
            sender,
            way: Way::Asked,
            pieces: 2,
            producer: vec![],
            buffer: vec![],
            posted: vec![],
        };
        let messages = [asked(0), asked(1)];
        let stuck = |keeps| {
            let mut ranks = ranks([1, 1], keeps);
            // Both receives come first: that of the last message, then that of the first.
            let mut moves = 0;
            let over = play(&messages, &mut ranks, |n| {
                moves += 1;
                if moves == 1 { n - 1 } else { 0 }
            });
            over.iter().any(|over| !over)
        };
        assert!(stuck(false));
        assert!(!stuck(true));
    }
}
