//! One fact that all members of a communicator learn, though some fail before. Pure: what is
//! learnt and who has ended goes in, whom to tell comes out.
//!
//! ```text
//! living members, around a ring         each tells the living members that lie
//!   0 - 1 - 2 - 3 - 4 - 5 - (0)         1, 2, 4, .. behind it, once
//! ```
//!
//! Each member that learns the fact passes it on, so it takes `log2(members)` steps, and each
//! member sends about as many messages. Where some end on the way, their neighbours are told by
//! who finds that they have.
//!
//! # Invariants
//! 1. A member that knows the fact has told the next living member around the ring. So when no message is
//!    under way, and all know who has ended, either all that live know it or none of them does.
//!
//! # Sources
//! T. Angskun, G. Bosilca, J. Dongarra, "Binomial Graph: A Scalable and Fault-Tolerant Logical
//! Network Topology", ISPA 2007.

use std::collections::BTreeSet;

/// What a member that knows the fact has to do with it.
#[derive(Debug)]
pub struct Flood {
    own: u32,
    size: u32,
    told: BTreeSet<u32>,
}

impl Flood {
    /// Of member `own` of `size`, which has just learnt the fact.
    pub fn new(own: u32, size: u32) -> Self {
        Self {
            own,
            size,
            told: BTreeSet::new(),
        }
    }

    /// Whom to tell now: at first, and whenever a member has ended.
    pub fn to_tell(&mut self, ended: impl Fn(u32) -> bool) -> Vec<u32> {
        let behind = (1..self.size).map(|by| (self.own + by) % self.size);
        let living = behind.filter(|member| !ended(*member));
        let partners = living
            .enumerate()
            .filter(|(at, _)| (at + 1).is_power_of_two());
        let fresh = partners.map(|(_, member)| member);
        fresh.filter(|member| self.told.insert(*member)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    #[test]
    fn members_at_powers_of_two_are_told_once() {
        let mut flood = Flood::new(6, 9);
        assert_eq!(flood.to_tell(|_| false), [7, 8, 1, 5]);
        assert_eq!(flood.to_tell(|_| false), [0; 0]);
        assert_eq!(flood.to_tell(|member| member == 7), [0, 2]);
        assert_eq!(Flood::new(0, 1).to_tell(|_| false), [0; 0]);
        assert_eq!(Flood::new(0, 100_000).to_tell(|_| false).len(), 17);
    }

    /// What can happen next.
    enum Event {
        Message { to: u32 },
        Finds { by: u32, ended: u32 },
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Members end at any time, also between two messages of theirs, and others find that at
        /// different times.
        #[test]
        fn all_or_none_of_the_living_know(
            size in 1u32..40,
            begins in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
            ends in prop::collection::vec((any::<prop::sample::Index>(), 0usize..60), 0..20),
            order in prop::collection::vec(any::<prop::sample::Index>(), 64),
        ) {
            let mut floods: HashMap<u32, Flood> = HashMap::new();
            let mut gone = BTreeSet::new();
            let mut known: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); size as usize];
            let begins = begins.iter().map(|at| Event::Message { to: at.index(size as usize) as u32 });
            let mut events: VecDeque<Event> = begins.collect();
            let mut ends: Vec<(u32, usize)> = { ends.iter() }
                .map(|(at, when)| (at.index(size as usize) as u32, *when))
                .collect();
            let mut step = 0;
            loop {
                let due: Vec<u32> = { ends.iter() }
                    .filter(|(_, when)| *when <= step || events.is_empty())
                    .map(|(who, _)| *who)
                    .collect();
                ends.retain(|(who, _)| !due.contains(who));
                for who in due {
                    if gone.insert(who) {
                        let finds = (0..size).map(|by| Event::Finds { by, ended: who });
                        events.extend(finds);
                    }
                }
                if events.is_empty() {
                    break;
                }
                let at = order[step % order.len()].index(events.len());
                step += 1;
                let Some(event) = events.remove(at) else { break };
                let who = match event {
                    Event::Message { to } => {
                        if !gone.contains(&to) {
                            floods.entry(to).or_insert_with(|| Flood::new(to, size));
                        }
                        to
                    }
                    Event::Finds { by, ended } => {
                        known[by as usize].insert(ended);
                        by
                    }
                };
                let knows = &known[who as usize];
                if let Some(flood) = floods.get_mut(&who).filter(|_| !gone.contains(&who)) {
                    let told = flood.to_tell(|member| knows.contains(&member));
                    // Some end between two messages.
                    let ends_here = step % 7 == 3 && told.len() > 1 && !ends.is_empty();
                    let sent = if ends_here { told.len() / 2 } else { told.len() };
                    events.extend(told[..sent].iter().map(|to| Event::Message { to: *to }));
                    if ends_here && gone.insert(who) {
                        events.extend((0..size).map(|by| Event::Finds { by, ended: who }));
                    }
                }
            }
            let living = (0..size).filter(|member| !gone.contains(member));
            let know = living.clone().filter(|member| floods.contains_key(member)).count();
            prop_assert!(know == 0 || know == living.count(), "{} of the living know", know);
        }
    }
}
