//! Random trees of communicators against a naive model: who is a member, with
//! which rank, on which side, how communicators compare, and that no context
//! is anybody else's. Several threads of each rank grow a tree of their own at
//! the same time.

use crate::support::{Random, Watchdog};
use osier::communicators::Comparison;
use osier::testing::{Network, universes_on};
use osier::{Communicator, Group, Universe};
use std::collections::HashMap;
use std::sync::Mutex;

/// What a communicator should be: world ranks, in order.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    id: u64,
    /// The group, or the first side.
    a: Vec<usize>,
    /// The second side.
    b: Option<Vec<usize>>,
}

impl Model {
    fn holds(&self, rank: usize) -> bool {
        self.a.contains(&rank) || self.b.as_ref().is_some_and(|b| b.contains(&rank))
    }

    /// This rank's side, then the other.
    fn sides(&self, rank: usize) -> (&[usize], Option<&[usize]>) {
        match &self.b {
            Some(b) if b.contains(&rank) => (b, Some(&self.a)),
            b => (&self.a, b.as_deref()),
        }
    }

    fn compare(&self, other: &Self, rank: usize) -> Comparison {
        let one = |a: &[usize], b: &[usize]| {
            let mut sorted = [a.to_vec(), b.to_vec()];
            sorted.iter_mut().for_each(|s| s.sort_unstable());
            match (a == b, sorted[0] == sorted[1]) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) => 2,
            }
        };
        let ((a, x), (b, y)) = (self.sides(rank), other.sides(rank));
        let remotes = match (x, y) {
            (None, None) => 0,
            (Some(x), Some(y)) => one(x, y),
            _ => 2,
        };
        match one(a, b).max(remotes) {
            _ if self.id == other.id => Comparison::Ident,
            0 => Comparison::Congruent,
            1 => Comparison::Similar,
            _ => Comparison::Unequal,
        }
    }
}

/// Contexts that were seen, and whose they are.
type Contexts = Mutex<HashMap<u64, u64>>;

struct Tree<'a> {
    universe: &'a Universe,
    me: usize,
    contexts: &'a Contexts,
    /// The same on all ranks.
    random: Random,
    next: u64,
    live: Vec<(Model, Option<Communicator>)>,
    tag: String,
}

fn picks(random: &mut Random, from: &[usize], least: usize) -> Vec<usize> {
    let mut all = from.to_vec();
    random.shuffle(&mut all);
    all.truncate(least + random.below(all.len() - least + 1));
    all
}

fn group(worlds: &[usize]) -> Group {
    Group::from_world_ranks(worlds).expect("distinct")
}

impl Tree<'_> {
    fn model(&mut self, a: Vec<usize>, b: Option<Vec<usize>>) -> Model {
        self.next += 1;
        Model {
            id: self.next,
            a,
            b,
        }
    }

    /// Draws colors and keys, and what comes out of them.
    fn wishes(&mut self, ranks: &[usize]) -> Vec<(Option<u32>, i64)> {
        let mut wish = |_| {
            let color = self.random.below(4) as u32;
            (
                (color < 3).then_some(color),
                self.random.below(3) as i64 - 1,
            )
        };
        ranks.iter().map(&mut wish).collect()
    }

    fn part(ranks: &[usize], wishes: &[(Option<u32>, i64)], color: u32) -> Vec<usize> {
        let mut places: Vec<usize> = (0..ranks.len())
            .filter(|i| wishes[*i].0 == Some(color))
            .collect();
        places.sort_by_key(|i| (wishes[*i].1, *i));
        places.into_iter().map(|i| ranks[i]).collect()
    }

    /// One operation; the models that should come of it, and what did.
    fn step(&mut self) -> (Vec<Model>, Option<Communicator>) {
        let at = self.random.below(self.live.len());
        let (model, comm) = self.live[at].clone();
        let comm = comm.as_ref();
        let me = self.me;
        match (&model.b, self.random.below(8)) {
            (_, 0) => {
                let made = comm.map(|c| c.dup().expect("dup"));
                (vec![self.model(model.a, model.b)], made)
            }
            (_, 1) => {
                let made = comm.map(|c| c.idup().and_then(|p| p.wait()).expect("idup"));
                (vec![self.model(model.a, model.b)], made)
            }
            (None, 2 | 3) => {
                let wishes = self.wishes(&model.a);
                let made = comm.and_then(|c| {
                    let (color, key) = wishes[c.rank()];
                    c.split(color, key).expect("split")
                });
                let parts = (0..3).map(|color| Self::part(&model.a, &wishes, color));
                let parts: Vec<_> = parts.filter(|p| !p.is_empty()).collect();
                (
                    parts.into_iter().map(|p| self.model(p, None)).collect(),
                    made,
                )
            }
            (None, 4) => {
                // Two groups at once, disjoint.
                let one = picks(&mut self.random, &model.a, 0);
                let rest: Vec<_> = model
                    .a
                    .iter()
                    .copied()
                    .filter(|r| !one.contains(r))
                    .collect();
                let two = picks(&mut self.random, &rest, 0);
                let mine = if one.contains(&me) { &one } else { &two };
                let made = comm.and_then(|c| c.create(&group(mine)).expect("create"));
                let parts = [one, two].into_iter().filter(|p| !p.is_empty());
                (parts.map(|p| self.model(p, None)).collect(), made)
            }
            (None, 5) => {
                let part = picks(&mut self.random, &model.a, 1);
                let made = part.contains(&me).then(|| {
                    let parent = comm.expect("a member");
                    parent.create_group(&group(&part), 5).expect("create_group")
                });
                (vec![self.model(part, None)], made)
            }
            (None, 6) if model.a.len() > 1 => self.join(&model, comm),
            (None, _) => {
                let ranks: Vec<usize> = (0..self.universe.world().size()).collect();
                let part = picks(&mut self.random, &ranks, 1);
                let made = part.contains(&me).then(|| {
                    let session = self.universe.session();
                    session
                        .create_from_group(&group(&part), &self.tag)
                        .expect("from group")
                });
                (vec![self.model(part, None)], made)
            }
            (Some(b), 2 | 3) => {
                let wishes = [self.wishes(&model.a), self.wishes(b)];
                let side = usize::from(b.contains(&me));
                let made = comm.and_then(|c| {
                    let (color, key) = wishes[side][c.rank()];
                    c.split(color, key).expect("split")
                });
                let parts = (0..3).map(|color| {
                    let one = Self::part(&model.a, &wishes[0], color);
                    (one, Self::part(b, &wishes[1], color))
                });
                let parts: Vec<_> = parts
                    .filter(|(one, two)| !one.is_empty() && !two.is_empty())
                    .collect();
                let models = parts
                    .into_iter()
                    .map(|(one, two)| self.model(one, Some(two)));
                (models.collect(), made)
            }
            (Some(b), 4) => {
                let parts = [&model.a, b].map(|side| picks(&mut self.random, side, 0));
                let mine = &parts[usize::from(b.contains(&me))];
                let made = comm.and_then(|c| c.create(&group(mine)).expect("create"));
                let [one, two] = parts;
                match one.is_empty() || two.is_empty() {
                    true => (vec![], made),
                    false => (vec![self.model(one, Some(two))], made),
                }
            }
            (Some(b), _) => {
                let high = [self.random.below(2) == 0, self.random.below(2) == 0];
                let made = comm.map(|c| {
                    let mine = high[usize::from(b.contains(&me))];
                    c.merge(mine).expect("merge")
                });
                let all = match high {
                    [true, false] => [b.as_slice(), &model.a].concat(),
                    _ => [model.a.as_slice(), b].concat(),
                };
                (vec![self.model(all, None)], made)
            }
        }
    }

    /// Two sides of a communicator, joined again.
    fn join(
        &mut self,
        model: &Model,
        comm: Option<&Communicator>,
    ) -> (Vec<Model>, Option<Communicator>) {
        let one = picks(&mut self.random, &model.a[1..], 1);
        let rest: Vec<_> = model
            .a
            .iter()
            .copied()
            .filter(|r| !one.contains(r))
            .collect();
        let two = picks(&mut self.random, &rest, 1);
        let leaders = [&one, &two].map(|side| side[self.random.below(side.len())]);
        let side = match (one.contains(&self.me), two.contains(&self.me)) {
            (true, _) => Some(0),
            (_, true) => Some(1),
            _ => None,
        };
        let made = side.and_then(|side| {
            let comm = comm?;
            let mine = group([&one, &two][side]);
            let local = comm.create_group(&mine, 1).expect("side");
            let rank_in = |g: &Group, world: usize| g.rank_of(world).expect("member");
            let leader = rank_in(&mine, leaders[side]);
            let bridge =
                (local.rank() == leader).then(|| (comm, rank_in(comm.group(), leaders[1 - side])));
            Some(local.intercomm_create(leader, bridge, 3).expect("join"))
        });
        let (a, b) = match leaders[0] < leaders[1] {
            true => (one, two),
            false => (two, one),
        };
        (vec![self.model(a, Some(b))], made)
    }

    fn check(&self, model: &Model, comm: &Communicator) {
        let (mine, other) = model.sides(self.me);
        let worlds = |g: &Group| g.world_ranks().collect::<Vec<_>>();
        assert_eq!(worlds(comm.group()), mine);
        assert_eq!(mine[comm.rank()], self.me);
        assert_eq!(comm.is_inter(), other.is_some());
        if let Some(other) = other {
            assert_eq!(worlds(comm.remote_group().expect("inter")), other);
        }
        // All members are there, and have the same context.
        let peers = other.unwrap_or(mine);
        let mut all = vec![[0u64; 3]; peers.len()];
        let row = |world: usize| [comm.context(), model.id, world as u64];
        comm.allgather(&[row(self.me)], &mut all)
            .expect("allgather");
        for (row_of, world) in all.iter().zip(peers) {
            assert_eq!(*row_of, row(*world));
        }
        let mut contexts = self.contexts.lock().expect("lock");
        let owner = *contexts.entry(comm.context()).or_insert(model.id);
        assert_eq!(
            owner,
            model.id,
            "context {:#x} is used twice",
            comm.context()
        );
    }

    fn grow(mut self, steps: usize) {
        for _ in 0..steps {
            let (models, made) = self.step();
            let mine = models.iter().position(|m| m.holds(self.me));
            assert_eq!(mine.is_some(), made.is_some(), "of {models:?}");
            if let (Some(mine), Some(made)) = (mine, &made) {
                self.check(&models[mine], made);
            }
            for (i, model) in models.into_iter().enumerate() {
                let held = (Some(i) == mine).then(|| made.clone()).flatten();
                self.live.push((model, held));
            }
            while self.live.len() > 8 {
                let gone = 1 + self.random.below(self.live.len() - 1);
                self.live.remove(gone);
            }
            let at = [
                self.random.below(self.live.len()),
                self.random.below(self.live.len()),
            ];
            let [x, y] = at.map(|i| &self.live[i]);
            if let ((a, Some(one)), (b, Some(two))) = (x, y) {
                assert_eq!(one.compare(two), a.compare(b, self.me), "{a:?} and {b:?}");
            }
        }
    }
}

fn forest(
    network: &Network,
    ranks: usize,
    threads: u64,
    seeds: std::ops::Range<u64>,
    steps: usize,
) {
    for seed in seeds {
        let _watchdog = Watchdog::start();
        let contexts = Contexts::default();
        universes_on(network, ranks, |universe| {
            let world = universe.world();
            let roots: Vec<Communicator> =
                (0..threads).map(|_| world.dup().expect("dup")).collect();
            std::thread::scope(|s| {
                for (thread, root) in (0..threads).zip(roots) {
                    let contexts = &contexts;
                    let grow = move || {
                        let mut tree = Tree {
                            universe,
                            me: universe.world().rank(),
                            contexts,
                            random: Random::new(seed * 64 + thread),
                            next: (thread + 1) << 32,
                            live: Vec::new(),
                            tag: format!("tree {thread}"),
                        };
                        let first = tree.model((0..root.size()).collect(), None);
                        tree.check(&first, &root);
                        tree.live.push((first, Some(root)));
                        tree.grow(steps);
                    };
                    s.spawn(move || {
                        let grown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(grow));
                        if let Err(panic) = grown {
                            eprintln!("seed {seed}, thread {thread}");
                            std::panic::resume_unwind(panic);
                        }
                    });
                }
            });
            world.barrier().expect("barrier");
        });
    }
}

#[test]
fn trees_are_as_the_model_has_them() {
    for network in Network::all() {
        for ranks in [1, 2, 3, 5] {
            forest(&network, ranks, 1, 0..8, 20);
        }
    }
}

#[test]
fn threads_grow_trees_at_once() {
    for network in Network::all() {
        forest(&network, 3, 3, 100..103, 12);
    }
}
