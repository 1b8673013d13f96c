//! Neighborhood collectives, against what a naive program would exchange.

use crate::support::{Random, fails, on_all, on_shm};
use osier::{Communicator, ErrorKind, Type, View, ViewMut};
use osier_collectives::Operation;

/// What edge k of those from one rank to another carries: different lengths, all alike in
/// one call.
fn payload(from: usize, to: usize, k: usize, n: usize) -> Vec<u32> {
    (0..n)
        .map(|i| (from * 1_000_000 + to * 10_000 + k * 500 + i) as u32)
        .collect()
}

/// How many entries before `at` are the same.
fn occurrence(list: &[Option<usize>], at: usize) -> usize {
    list[..at]
        .iter()
        .filter(|other| **other == list[at])
        .count()
}

/// One block for each edge; the k-th from a rank is the k-th to the other, where `met`
/// says which number an incoming block has.
struct Twin {
    rank: usize,
    sources: Vec<Option<usize>>,
    destinations: Vec<Option<usize>>,
    met: Vec<usize>,
}

impl Twin {
    fn of_graph(rank: usize, sources: &[usize], destinations: &[usize]) -> Self {
        let some = |list: &[usize]| list.iter().copied().map(Some).collect::<Vec<_>>();
        let (sources, destinations) = (some(sources), some(destinations));
        let met = (0..sources.len())
            .map(|at| occurrence(&sources, at))
            .collect();
        Twin {
            rank,
            sources,
            destinations,
            met,
        }
    }

    /// Of a grid: what comes from a direction was sent in the other.
    fn of_grid(grid: &Communicator) -> Self {
        let cart = grid.cart().expect("a grid");
        let around = |rank: usize| -> Vec<Option<usize>> {
            let dims = 0..cart.dims().len();
            dims.flat_map(|dim| {
                let (below, above) = cart.shift(rank, dim, 1).expect("a dimension");
                [below, above]
            })
            .collect()
        };
        let sources = around(grid.rank());
        let met = (0..sources.len())
            .map(|at| sources[at].map_or(0, |from| occurrence(&around(from), at ^ 1)))
            .collect();
        Twin {
            rank: grid.rank(),
            destinations: sources.clone(),
            sources,
            met,
        }
    }

    fn sent(&self, at: usize, n: usize) -> Vec<u32> {
        match self.destinations[at] {
            Some(to) => payload(self.rank, to, occurrence(&self.destinations, at), n),
            None => vec![7; n],
        }
    }

    /// What must come, or what must be left as it was.
    fn wanted(&self, at: usize, n: usize) -> Vec<u32> {
        match self.sources[at] {
            Some(from) => payload(from, self.rank, self.met[at], n),
            None => vec![u32::MAX; n],
        }
    }

    fn spread(&self, from: usize, n: usize) -> Vec<u32> {
        payload(from, 0, 0, n)
    }
}

/// Lengths that both ends of an edge know.
fn length(from: usize, to: usize, k: usize) -> usize {
    [3, 0, 1, 40][(from * 7 + to * 3 + k) % 4]
}

fn starts(counts: &[usize], gap: usize) -> Vec<usize> {
    (0..counts.len())
        .map(|at| counts[..at].iter().map(|n| n + gap).sum())
        .collect()
}

/// All calls, in every form.
fn check(comm: &Communicator, twin: &Twin, n: usize) {
    let (ins, outs) = (twin.sources.len(), twin.destinations.len());
    let mine = twin.spread(comm.rank(), n);
    let all: Vec<u32> = (0..ins)
        .flat_map(|at| match twin.sources[at] {
            Some(from) => twin.spread(from, n),
            None => vec![u32::MAX; n],
        })
        .collect();
    let mut got = vec![u32::MAX; ins * n];
    comm.neighbor_allgather(&mine, &mut got).expect("allgather");
    assert_eq!(got, all, "neighbor_allgather");
    let out: Vec<u32> = (0..outs).flat_map(|at| twin.sent(at, n)).collect();
    let right: Vec<u32> = (0..ins).flat_map(|at| twin.wanted(at, n)).collect();
    let mut got = vec![u32::MAX; ins * n];
    comm.neighbor_alltoall(&out, &mut got).expect("alltoall");
    assert_eq!(got, right, "neighbor_alltoall");
    // Several under way, and in scopes.
    let gathered = comm.ineighbor_allgather(mine.clone(), vec![u32::MAX; ins * n]);
    let swapped = comm.ineighbor_alltoall(out.clone(), vec![u32::MAX; ins * n]);
    let (_, swapped) = swapped.expect("begun").wait().expect("swapped");
    let (_, gathered) = gathered.expect("begun").wait().expect("gathered");
    assert!(gathered == all && swapped == right);
    let (mut a, mut b) = (vec![u32::MAX; ins * n], vec![u32::MAX; ins * n]);
    comm.scope(|s| {
        s.ineighbor_alltoall(&out, &mut b)?;
        s.ineighbor_allgather(&mine, &mut a)?.wait()
    })
    .expect("scope");
    assert!(a == all && b == right);
    // With lengths that differ, and gaps between blocks.
    let counts = |ends: &[Option<usize>], one: &dyn Fn(usize, usize) -> usize| -> Vec<usize> {
        let each = ends.iter().enumerate();
        each.map(|(at, end)| end.map_or(2, |end| one(end, at)))
            .collect()
    };
    let out_counts = counts(&twin.destinations, &|to, at| {
        length(twin.rank, to, occurrence(&twin.destinations, at))
    });
    let in_counts = counts(&twin.sources, &|from, at| {
        length(from, twin.rank, twin.met[at])
    });
    let (out_starts, in_starts) = (starts(&out_counts, 0), starts(&in_counts, 1));
    let out: Vec<u32> = (0..outs)
        .flat_map(|at| twin.sent(at, out_counts[at]))
        .collect();
    let room: usize = in_counts.iter().sum::<usize>() + ins;
    let mut right = vec![u32::MAX; room];
    for at in 0..ins {
        right[in_starts[at]..][..in_counts[at]].copy_from_slice(&twin.wanted(at, in_counts[at]));
    }
    let mut got = vec![u32::MAX; room];
    let (from, to) = (
        (&out_counts[..], &out_starts[..]),
        (&in_counts[..], &in_starts[..]),
    );
    comm.neighbor_alltoallv(&out, from, &mut got, to)
        .expect("alltoallv");
    assert_eq!(got, right, "neighbor_alltoallv");
    let own = |rank: usize| [1, 5, 0][rank % 3];
    let in_counts = counts(&twin.sources, &|from, _| own(from));
    let in_starts = starts(&in_counts, 1);
    let room: usize = in_counts.iter().sum::<usize>() + ins;
    let mut right = vec![u32::MAX; room];
    for at in 0..ins {
        if let Some(from) = twin.sources[at] {
            right[in_starts[at]..][..in_counts[at]].copy_from_slice(&twin.spread(from, own(from)));
        }
    }
    let mut got = vec![u32::MAX; room];
    comm.neighbor_allgatherv(
        &twin.spread(comm.rank(), own(comm.rank())),
        &mut got,
        &in_counts,
        &in_starts,
    )
    .expect("allgatherv");
    assert_eq!(got, right, "neighbor_allgatherv");
    // Every second element, of a buffer for each block.
    let every = Type::vector(4, 1, 2, &Type::of::<u32>()).and_then(|t| t.commit());
    let every = every.expect("every second");
    let out: Vec<Vec<u32>> = (0..outs).map(|at| twin.sent(at, 4)).collect();
    let mut got = vec![vec![u32::MAX; 7]; ins];
    {
        let from: Vec<&Vec<u32>> = out.iter().collect();
        let from: Vec<View<'_>> = from.iter().map(|v| osier::Buffer::view(*v)).collect();
        let mut to: Vec<ViewMut<'_>> = got
            .iter_mut()
            .map(|v| ViewMut::new(v, 0, &every, 1).expect("view"))
            .collect();
        comm.neighbor_alltoallw(&from, &mut to).expect("alltoallw");
    }
    for (at, got) in got.iter().enumerate() {
        let right = twin.wanted(at, 4);
        assert!((0..7).all(|i| got[i] == if i % 2 == 0 { right[i / 2] } else { u32::MAX }));
    }
}

#[test]
fn neighborhood_collectives_on_grids_give_model_result() {
    let shapes: [(&[usize], u32); 8] = [
        (&[1], 1),
        (&[2], 1),
        (&[3], 1),
        (&[4], 0),
        (&[1, 2, 2], 7),
        (&[2, 3], 2),
        (&[2, 1, 3], 5),
        (&[], 0),
    ];
    for (dims, periodic) in shapes {
        let size = dims.iter().product();
        let periods: Vec<bool> = (0..dims.len()).map(|d| periodic >> d & 1 == 1).collect();
        on_shm(size, |comm| {
            let grid = comm
                .cart_create(dims, &periods)
                .expect("grid")
                .expect("all");
            let twin = Twin::of_grid(&grid);
            for n in [1, 3000] {
                check(&grid, &twin, n);
            }
        });
    }
}

/// Edges of a random graph over some ranks, loops and double ones among them.
fn edges(size: usize, dice: &mut Random) -> Vec<(usize, usize)> {
    (0..dice.below(4 * size + 1))
        .map(|_| (dice.below(size), dice.below(size)))
        .collect()
}

#[test]
fn random_distributed_graphs() {
    for seed in 0..12 {
        let mut dice = Random::new(seed);
        let size = 1 + dice.below(6);
        let edges = edges(size, &mut dice);
        on_shm(size, |comm| {
            let me = comm.rank();
            let sources: Vec<usize> = edges.iter().filter(|e| e.1 == me).map(|e| e.0).collect();
            let destinations: Vec<usize> =
                edges.iter().filter(|e| e.0 == me).map(|e| e.1).collect();
            let graph = comm
                .dist_graph_create_adjacent(&sources, &destinations, None, false)
                .expect("graph");
            println!("seed {seed}");
            check(&graph, &Twin::of_graph(me, &sources, &destinations), 5);
        });
    }
}

#[test]
fn random_symmetric_graphs() {
    for seed in 0..6 {
        let mut dice = Random::new(100 + seed);
        let size = 1 + dice.below(5);
        let mut lists = vec![Vec::new(); size];
        for (a, b) in edges(size, &mut dice) {
            lists[a].push(b);
            if a != b {
                lists[b].push(a);
            }
        }
        let index: Vec<usize> = (0..size)
            .map(|r| lists[..=r].iter().map(Vec::len).sum())
            .collect();
        let flat = lists.concat();
        on_shm(size, |comm| {
            let graph = comm
                .graph_create(&index, &flat, false)
                .expect("graph")
                .expect("all");
            let me = graph.rank();
            println!("seed {seed}");
            check(&graph, &Twin::of_graph(me, &lists[me], &lists[me]), 5);
        });
    }
}

#[test]
fn neighborhood_call_without_topology_is_refused() {
    on_all(3, |comm| {
        let kind = ErrorKind::Argument;
        let mut none = [0u8; 0];
        fails(
            comm.neighbor_allgather(&[1u8], &mut none),
            kind,
            &["no neighborhood", "hint"],
        );
        // 0 knows 1, which does not know 0.
        let graph = comm.graph_create(&[1, 1, 1], &[1], false).expect("graph");
        let graph = graph.expect("all");
        fails(
            graph.neighbor_alltoall(&none, &mut [0u8; 0]),
            kind,
            &["from rank 0 to 1", "0 back", "hint"],
        );
        let ring = comm.cart_create(&[3], &[true]).expect("grid").expect("all");
        let mut odd = [0u8; 3];
        fails(
            ring.neighbor_allgather(&[1u8], &mut odd),
            kind,
            &["3 bytes for 2 sources", "hint"],
        );
        // One that sends too much is named by who gets it.
        let mut two = [0u8; 2];
        let sent = vec![1u8; if ring.rank() == 1 { 5 } else { 1 }];
        let result = ring.neighbor_allgather(&sent, &mut two);
        assert!(ring.rank() == 1 || result.is_err());
        ring.barrier().expect("goes on");
    });
}

/// What a call takes is predicted where all ranks know the whole neighborhood.
#[test]
fn calls_of_neighbors_are_explained() {
    on_shm(4, |comm| {
        let grid = |dims: &[usize]| {
            let periods = vec![true; dims.len()];
            comm.cart_create(dims, &periods).unwrap().unwrap()
        };
        let ns = |comm: &Communicator, bytes| {
            let choice = comm.explain(Operation::NeighborAlltoall, bytes).unwrap();
            assert_eq!(choice.plan().segments(), 1);
            choice.ns()
        };
        let (ring, square) = (grid(&[4]), grid(&[2, 2]));
        assert!(ns(&ring, 8) > 0.0 && ns(&ring, 8) < ns(&ring, 1 << 20));
        assert!(ns(&ring, 1 << 20) < ns(&square, 1 << 20));
    });
}
