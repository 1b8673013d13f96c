//! From which workers a worker steals, the nearest first. Pure: distances and chance come in.
//!
//! State and messages of a stolen task go from cache to cache, over a shorter way where these
//! share one. Workers at the same distance are tried in turn, from one that is drawn anew each
//! time, so that thieves do not all ask the same one first. Where no distance is known, all
//! are at the same.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis, University of
//! Tennessee, 2017, section 3.6: tasks of processors are stolen in the order of topological
//! distance. R. Blumofe, C. Leiserson, "Scheduling multithreaded computations by work stealing",
//! Journal of the ACM 46 (5), 1999, section 4: the victim is drawn.

/// The innermost part of a machine in which two processors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// A core: its hardware threads, or a processor and itself.
    Core,
    /// A second-level cache.
    L2Cache,
    /// A third-level cache.
    L3Cache,
    /// Processors with memory near to them.
    NumaNode,
    /// A processor package.
    Package,
    /// The machine.
    Machine,
}

impl Distance {
    /// All, the shortest first.
    pub const ALL: [Distance; 6] = [
        Distance::Core,
        Distance::L2Cache,
        Distance::L3Cache,
        Distance::NumaNode,
        Distance::Package,
        Distance::Machine,
    ];

    /// The name of the part, for reports.
    pub fn name(self) -> &'static str {
        [
            "core",
            "L2 cache",
            "L3 cache",
            "NUMA node",
            "package",
            "machine",
        ][self as usize]
    }
}

/// The other workers of a run, as one of them steals from them.
#[derive(Clone, Debug, Default)]
pub struct Victims {
    /// By distance; those of one distance in a ring.
    order: Vec<u32>,
    classes: Vec<Class>,
    chance: u32,
}

/// Workers at one distance, behind those of the class before.
#[derive(Clone, Debug)]
struct Class {
    end: usize,
    distance: Option<Distance>,
}

impl Victims {
    /// All of a number of workers but `own`. The order of draws follows from the seed and the
    /// worker. Those whose distance is not known come last.
    pub fn new(
        workers: u32,
        own: u32,
        seed: u32,
        distance: impl Fn(u32) -> Option<Distance>,
    ) -> Victims {
        let mut victims = Victims {
            // Never 0, of which only 0 follows.
            chance: mix(seed ^ mix(own.wrapping_add(1))) | 1,
            ..Victims::default()
        };
        victims.arrange(workers, own, distance);
        victims
    }

    /// Takes other distances.
    pub fn arrange(&mut self, workers: u32, own: u32, distance: impl Fn(u32) -> Option<Distance>) {
        let ring = (1..workers).map(|step| (own + step) % workers);
        let mut all: Vec<_> = ring.map(|worker| (distance(worker), worker)).collect();
        all.sort_by_key(|(distance, _)| (distance.is_none(), *distance));
        self.classes.clear();
        for (at, (distance, _)) in all.iter().enumerate() {
            match self.classes.last_mut() {
                Some(class) if class.distance == *distance => class.end = at + 1,
                _ => self.classes.push(Class {
                    end: at + 1,
                    distance: *distance,
                }),
            }
        }
        self.order.clear();
        self.order.extend(all.into_iter().map(|(_, worker)| worker));
    }

    /// The workers.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, u32> {
        self.order.iter()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Each worker once, with its distance if that is known, in the order in which they are
    /// asked this time.
    pub fn drawn(&mut self) -> impl Iterator<Item = (u32, Option<Distance>)> + '_ {
        let chance = self.draw();
        let (order, mut begin) = (&self.order, 0);
        self.classes.iter().flat_map(move |class| {
            let members = &order[begin..class.end];
            begin = class.end;
            let first = ((u64::from(chance) * members.len() as u64) >> 32) as usize;
            let (before, from) = members.split_at(first);
            let turn = from.iter().chain(before);
            turn.map(move |worker| (*worker, class.distance))
        })
    }

    /// The next number of a xorshift generator of period 2^32 - 1.
    #[inline]
    fn draw(&mut self) -> u32 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 17;
        self.chance ^= self.chance << 5;
        self.chance
    }
}

fn mix(word: u32) -> u32 {
    let word = (word ^ word >> 16).wrapping_mul(0x7feb_352d);
    let word = (word ^ word >> 15).wrapping_mul(0x846c_a68b);
    word ^ word >> 16
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A machine by the width of its parts in processors, with the worker of each number on the
    /// processor of that number.
    fn nested(one: u32, other: u32) -> Option<Distance> {
        let widths = [1, 2, 4, 8, 16, u32::MAX];
        let part = Distance::ALL.into_iter().zip(widths);
        let mut part = part.filter(|(_, width)| one / width == other / width);
        part.next().map(|(distance, _)| distance)
    }

    fn some_distance() -> impl Strategy<Value = Option<Distance>> {
        let known = (0..Distance::ALL.len()).prop_map(|at| Distance::ALL[at]);
        proptest::option::weighted(0.8, known)
    }

    proptest! {
        #[test]
        fn each_other_worker_comes_once_and_none_before_a_nearer_one(
            distances in proptest::collection::vec(some_distance(), 1..40),
            own in any::<prop::sample::Index>(),
            seed in any::<u32>(),
        ) {
            let own = own.index(distances.len()) as u32;
            let of = |worker: u32| distances[worker as usize];
            let mut victims = Victims::new(distances.len() as u32, own, seed, of);
            let others: BTreeSet<u32> = (0..distances.len() as u32).filter(|w| *w != own).collect();
            prop_assert_eq!(victims.is_empty(), others.is_empty());
            for _ in 0..8 {
                let drawn: Vec<_> = victims.drawn().collect();
                prop_assert_eq!(drawn.len(), others.len());
                let workers: BTreeSet<u32> = drawn.iter().map(|(worker, _)| *worker).collect();
                prop_assert_eq!(&workers, &others);
                for (worker, distance) in &drawn {
                    prop_assert_eq!(*distance, of(*worker));
                }
                let keys = drawn.iter().map(|(_, distance)| (distance.is_none(), *distance));
                prop_assert!(keys.is_sorted());
            }
        }

        #[test]
        fn a_seed_says_what_is_drawn(seed in any::<u32>(), own in 0u32..9) {
            let mut same = [(); 2].map(|()| Victims::new(9, own, seed, |w| nested(own, w)));
            for _ in 0..4 {
                let [one, other] = same.each_mut().map(|victims| victims.drawn().collect::<Vec<_>>());
                prop_assert_eq!(one, other);
            }
        }

        #[test]
        fn each_of_a_distance_is_asked_first_by_some_and_at_times(seed in any::<u32>()) {
            // Of 8 workers two of a core each, of a package all: 2 cores of a cache, 2 of another.
            let mut firsts = vec![BTreeSet::new(); 8];
            for own in 0..8u32 {
                let mut victims = Victims::new(8, own, seed, |w| nested(own / 2 * 2, w / 2 * 2));
                for _ in 0..200 {
                    let mut of_cache = victims.drawn().filter(|(_, d)| *d == Some(Distance::L3Cache));
                    firsts[own as usize].extend(of_cache.next());
                }
            }
            for (own, firsts) in firsts.iter().enumerate() {
                prop_assert_eq!(firsts.len(), 2, "worker {}: {:?}", own, firsts);
            }
        }
    }

    #[test]
    fn the_parts_of_a_machine_are_asked_from_the_inside() {
        let mut victims = Victims::new(32, 5, 7, |worker| nested(5, worker));
        let drawn: Vec<u32> = victims.drawn().map(|(worker, _)| worker).collect();
        assert_eq!(drawn[0], 4);
        for (from, to, part) in [(1, 3, 4..8), (3, 7, 0..4), (7, 15, 8..16), (15, 31, 16..32)] {
            assert!(
                drawn[from..to].iter().all(|w| part.contains(w)),
                "{drawn:?}"
            );
        }
    }

    #[test]
    fn other_distances_take_the_place_of_the_first() {
        let mut victims = Victims::new(4, 0, 1, |_| None);
        assert!(victims.drawn().all(|(_, distance)| distance.is_none()));
        victims.arrange(4, 0, |worker| {
            Distance::ALL.get(4 - worker as usize).copied()
        });
        let drawn: Vec<u32> = victims.drawn().map(|(worker, _)| worker).collect();
        assert_eq!(drawn, [3, 2, 1]);
    }
}
