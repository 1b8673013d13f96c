//! Grids and graphs.

use crate::support::{Random, fails, on_all, on_machine};
use osier::communicators::{Resource, SplitType};
use osier::topology::{Edges, GraphTopology, Neighbor, Topology};
use osier::{Communicator, ErrorKind, Op};

#[test]
fn grids_are_cut() {
    on_all(7, |comm| {
        let grid = comm
            .cart_create(&[3, 1, 2], &[true, false, true])
            .expect("grid");
        let Some(grid) = grid else {
            assert_eq!(comm.rank(), 6);
            return;
        };
        let here = grid
            .cart()
            .expect("a grid")
            .coords_of(grid.rank())
            .expect("me");
        for flags in 0..8u32 {
            let remain = [flags & 1 != 0, flags & 2 != 0, flags & 4 != 0];
            let sub = grid.cart_sub(&remain).expect("sub");
            let cart = sub.cart().expect("a grid");
            let kept: Vec<usize> = (0..3).filter(|d| remain[*d]).collect();
            let dims: Vec<usize> = kept.iter().map(|d| [3, 1, 2][*d]).collect();
            let periods: Vec<bool> = kept.iter().map(|d| *d != 1).collect();
            assert_eq!((cart.dims(), cart.periods()), (&dims[..], &periods[..]));
            assert_eq!(sub.size(), dims.iter().product::<usize>());
            let coords: Vec<usize> = kept.iter().map(|d| here[*d]).collect();
            assert_eq!(cart.coords_of(sub.rank()), Ok(coords));
            // All members have the dropped coordinates in common.
            for world in sub.group().world_ranks() {
                let there = grid
                    .cart()
                    .expect("a grid")
                    .coords_of(world)
                    .expect("member");
                assert!((0..3).all(|d| remain[d] || there[d] == here[d]));
            }
            sub.barrier().expect("barrier");
        }
        assert_eq!(
            grid.cart_map(&[2, 2], &[true; 2]).expect("map"),
            (grid.rank() < 4).then_some(grid.rank())
        );
        fails(grid.cart_map(&[7], &[true]), ErrorKind::Argument, &["hint"]);
        fails(
            grid.cart_sub(&[true]),
            ErrorKind::Argument,
            &["1 flags", "3 dim"],
        );
        fails(
            comm.clone().cart_sub(&[true]),
            ErrorKind::Argument,
            &["no grid", "hint"],
        );
    });
}

#[test]
fn graphs_are_known_whole() {
    on_all(5, |comm| {
        let (index, edges) = ([2, 3, 4, 6], [1, 3, 0, 3, 0, 2]);
        let graph = comm.graph_create(&index, &edges, true).expect("graph");
        assert_eq!(graph.is_none(), comm.rank() == 4);
        assert_eq!(
            comm.graph_map(&index, &edges).expect("map"),
            (comm.rank() < 4).then_some(comm.rank())
        );
        if let Some(graph) = graph {
            let twin = graph.dup().expect("dup");
            let topology = twin.graph().expect("kept");
            assert_eq!(
                topology,
                &GraphTopology::new(&index, &edges).expect("sound")
            );
            let lists = [&[1, 3][..], &[0], &[3], &[0, 2]];
            assert_eq!(
                topology.neighbors(twin.rank()).expect("me"),
                lists[twin.rank()]
            );
            assert!(matches!(twin.topology(), Some(Topology::Graph(_))));
            assert!(twin.cart().is_none() && twin.dist_graph().is_none());
        }
        assert!(comm.topology().is_none());
        assert!(comm.graph_create(&[], &[], false).expect("empty").is_none());
        fails(
            comm.graph_create(&[1], &[5], false),
            ErrorKind::Rank,
            &["node 5"],
        );
        fails(
            comm.graph_create(&[0; 6], &[], false),
            ErrorKind::Argument,
            &["6 ranks", "5"],
        );
        // One rank's mistake is an error for all.
        let mine: &[usize] = if comm.rank() == 2 { &[9] } else { &[0] };
        let kind = if comm.rank() == 2 {
            ErrorKind::Rank
        } else {
            ErrorKind::Argument
        };
        fails(
            comm.graph_create(&[1, 1, 1, 1, 1], mine, false),
            kind,
            &["hint"],
        );
        comm.barrier().expect("barrier");
    });
}

fn ends(of: &[(usize, u32)]) -> Vec<Neighbor> {
    let end = |&(rank, weight)| Neighbor { rank, weight };
    of.iter().map(end).collect()
}

/// Random edges that random ranks name; everybody draws the same.
#[test]
fn graphs_of_which_each_rank_knows_a_part() {
    on_all(4, |comm| {
        for seed in 0..12 {
            let mut random = Random::new(seed);
            let n = comm.size();
            let weighted = random.below(2) == 0;
            // (who names it, from, to, weight)
            let all: Vec<(usize, usize, usize, u32)> = (0..random.below(30))
                .map(|i| {
                    let mut rank = || random.below(n);
                    (rank(), rank(), rank(), if weighted { i as u32 } else { 1 })
                })
                .collect();
            let named: Vec<_> = all.iter().filter(|e| e.0 == comm.rank()).collect();
            let sources: Vec<usize> = named.iter().map(|e| e.1).collect();
            let destinations: Vec<usize> = named.iter().map(|e| e.2).collect();
            let weights: Vec<u32> = named.iter().map(|e| e.3).collect();
            let edges = Edges {
                sources: &sources,
                degrees: &vec![1; named.len()],
                destinations: &destinations,
                weights: weighted.then_some(&weights),
            };
            let graph = comm.dist_graph_create(edges, seed % 2 == 0).expect("graph");
            let topology = graph.dist_graph().expect("a graph");
            // In the order of the ranks that named them.
            let mut sorted = all.clone();
            sorted.sort_by_key(|e| e.0);
            let me = comm.rank();
            let into: Vec<_> = sorted
                .iter()
                .filter(|e| e.2 == me)
                .map(|e| (e.1, e.3))
                .collect();
            let out: Vec<_> = sorted
                .iter()
                .filter(|e| e.1 == me)
                .map(|e| (e.2, e.3))
                .collect();
            assert_eq!(topology.sources(), ends(&into), "seed {seed}");
            assert_eq!(topology.destinations(), ends(&out), "seed {seed}");
            assert_eq!(topology.is_weighted(), weighted && !all.is_empty());
            // The same, each rank naming its own.
            let ranks = |of: &[(usize, u32)]| of.iter().map(|e| e.0).collect::<Vec<_>>();
            let weights = |of: &[(usize, u32)]| of.iter().map(|e| e.1).collect::<Vec<_>>();
            let (of_into, of_out) = (weights(&into), weights(&out));
            let adjacent = comm
                .dist_graph_create_adjacent(
                    &ranks(&into),
                    &ranks(&out),
                    weighted.then_some((&of_into[..], &of_out[..])),
                    true,
                )
                .expect("graph");
            let twin = adjacent.dup().expect("dup");
            assert_eq!(
                twin.dist_graph().expect("kept").sources(),
                topology.sources()
            );
            assert_eq!(
                twin.dist_graph().expect("kept").destinations(),
                topology.destinations()
            );
        }
        let bad = |rank: usize| {
            let to: &[usize] = if comm.rank() == rank { &[4] } else { &[] };
            comm.dist_graph_create_adjacent(&[], to, None, false)
        };
        fails(bad(comm.rank()), ErrorKind::Rank, &["destination 4 of 4"]);
        let kind = if comm.rank() == 1 {
            ErrorKind::Rank
        } else {
            ErrorKind::Argument
        };
        fails(bad(1), kind, &["hint"]);
        let edges = Edges {
            sources: &[0],
            degrees: &[1],
            destinations: &[1],
            weights: (comm.rank() == 0).then_some(&[5]),
        };
        fails(
            comm.dist_graph_create(edges, false),
            ErrorKind::Argument,
            &["1 of 4 ranks"],
        );
        comm.barrier().expect("barrier");
    });
}

fn sum_of(comm: &Communicator) -> u64 {
    let mut sum = [0];
    comm.allreduce(&[comm.rank() as u64 + 1], &mut sum, Op::Sum)
        .expect("sum");
    sum[0]
}

#[test]
fn parts_share_hardware() {
    on_machine(3, |comm| {
        for kind in [
            SplitType::Shared,
            SplitType::HwGuided("mpi_shared_memory"),
            SplitType::HwGuided("hwloc://Machine"),
        ] {
            let all = comm
                .split_type(Some(kind), -(comm.rank() as i64))
                .expect("split_type");
            let all = all.expect("the machine is shared");
            assert_eq!((all.size(), all.rank()), (3, 2 - comm.rank()));
            assert_eq!(sum_of(&all), 6);
        }
        let parts = [
            None,
            Some(SplitType::HwGuided("bookshelf")),
            Some(SplitType::ResourceGuided(Resource::Hardware("bookshelf"))),
        ];
        for kind in parts {
            assert!(comm.split_type(kind, 0).expect("split_type").is_none());
        }
        let set = SplitType::ResourceGuided(Resource::ProcessSet("mpi://WORLD"));
        let all = comm
            .split_type(Some(set), 0)
            .expect("split_type")
            .expect("a member");
        assert_eq!(sum_of(&all), 6);
        let own = SplitType::ResourceGuided(Resource::ProcessSet("mpi://SELF"));
        let own = comm
            .split_type(Some(own), 0)
            .expect("split_type")
            .expect("a member");
        assert_eq!(own.size(), 1);
        let unknown = SplitType::ResourceGuided(Resource::ProcessSet("nobody"));
        let mine = if comm.rank() == 1 {
            unknown
        } else {
            SplitType::Shared
        };
        fails(
            comm.split_type(Some(mine), 0),
            ErrorKind::Argument,
            &["hint"],
        );
        // Whatever the machine shows: who is in one part agrees on its name.
        if let Some(part) = comm
            .split_type(Some(SplitType::HwUnguided), 0)
            .expect("split_type")
        {
            assert!(part.size() < 3, "a true part");
            let info = part.info();
            assert!(
                info.get("mpi_hw_resource_type")
                    .is_some_and(|name| name != "machine")
            );
            part.barrier().expect("barrier");
        }
        comm.barrier().expect("barrier");
    });
}
