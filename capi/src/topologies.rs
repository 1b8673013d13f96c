//! Virtual topologies.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::comms::missing_topology;
use crate::fail::{Fail, Res, argument, array, array_mut, bad_dims, bad_rank, number, put};
use crate::objects::{Comm, comm, new_comm};
use osier::topology::{
    CartTopology, DistGraphTopology, Edges, GraphTopology, Topology, dims_create,
};

fn cart(comm: &Comm) -> Res<&CartTopology> {
    comm.comm
        .cart()
        .ok_or_else(|| missing_topology("Cartesian topology"))
}

fn graph(comm: &Comm) -> Res<&GraphTopology> {
    comm.comm
        .graph()
        .ok_or_else(|| missing_topology("graph topology"))
}

fn dist_graph(comm: &Comm) -> Res<&DistGraphTopology> {
    comm.comm
        .dist_graph()
        .ok_or_else(|| missing_topology("distributed graph topology"))
}

fn numbers(n: usize, from: *const c_int) -> Res<Vec<usize>> {
    array(from, n)?.iter().map(|n| number(*n)).collect()
}

fn dims(n: c_int, from: *const c_int) -> Res<Vec<usize>> {
    let all = array(from, number(n)?)?.iter();
    all.map(|n| match *n {
        n if n > 0 => Ok(n as usize),
        n => Err(bad_dims(format!("a dimension of {n}"))),
    })
    .collect()
}

fn flags(n: c_int, from: *const c_int) -> Res<Vec<bool>> {
    Ok(array(from, number(n)?)?
        .iter()
        .map(|flag| *flag != 0)
        .collect())
}

/// Errors of the library about grids are those of dimensions or arguments here.
fn of_cart<E: Into<osier::Error>>(e: E) -> Fail {
    Fail::from(e.into())
}

fn weights<'a>(n: usize, from: *const c_int) -> Res<Option<&'a [u32]>> {
    match from.addr() {
        MPI_UNWEIGHTED => Ok(None),
        MPI_WEIGHTS_EMPTY => Ok(Some(&[])),
        _ => {
            let all = array(from, n)?;
            if let Some(negative) = all.iter().find(|w| **w < 0) {
                return Err(argument(format!("a weight of {negative}")));
            }
            array(from.cast::<u32>(), n).map(Some)
        }
    }
}

/// Copies as much as there is room for.
fn fill(to: *mut c_int, room: c_int, from: impl ExactSizeIterator<Item = c_int>) -> Res {
    let n = number(room)?.min(from.len());
    for (to, from) in array_mut(to, n)?.iter_mut().zip(from) {
        *to = from;
    }
    Ok(())
}

fn member(comm: &Comm, rank: c_int) -> Res<usize> {
    match usize::try_from(rank) {
        Ok(known) if known < comm.comm.size() => Ok(known),
        _ => Err(bad_rank(format!(
            "rank {rank} in a communicator of {}",
            comm.comm.size()
        ))),
    }
}

fn or_null(rank: Option<usize>) -> c_int {
    rank.map_or(MPI_PROC_NULL, |rank| rank as c_int)
}

fn put_comm(made: Option<osier::Communicator>, of: &Comm, to: *mut Handle) -> Res {
    put(to, made.map_or(MPI_COMM_NULL, |made| new_comm(made, of)))
}

mpi! {
    fn MPI_Dims_create(nodes: c_int, n: c_int, list: *mut c_int) on On::Own; {
        let list = array_mut(list, number(n)?)?;
        let mut wanted: Vec<usize> = list
            .iter()
            .map(|n| usize::try_from(*n).map_err(|_| bad_dims(format!("a dimension of {n}"))))
            .collect::<Res<_>>()?;
        let nodes = usize::try_from(nodes).map_err(|_| argument(format!("{nodes} nodes")))?;
        dims_create(nodes, &mut wanted)
            .map_err(|e| bad_dims(e.to_string()))?;
        for (to, from) in list.iter_mut().zip(wanted) {
            *to = from as c_int;
        }
    }

    fn MPI_Cart_create(
        on: Handle, n: c_int, list: *const c_int, periods: *const c_int, _reorder: c_int,
        to: *mut Handle
    ) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        let made = comm.comm.cart_create(&dims(n, list)?, &flags(n, periods)?)?;
        put_comm(made, comm, to)?;
    }

    fn MPI_Cart_map(
        on: Handle, n: c_int, list: *const c_int, periods: *const c_int, rank: *mut c_int
    ) on On::Comm(on); {
        let mapped = comm(on)?.comm.cart_map(&dims(n, list)?, &flags(n, periods)?)?;
        put(rank, mapped.map_or(MPI_UNDEFINED, |rank| rank as c_int))?;
    }

    fn MPI_Cart_sub(on: Handle, remain: *const c_int, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        let n = cart(comm)?.dims().len();
        let made = comm.comm.cart_sub(&flags(n as c_int, remain)?)?;
        put(to, new_comm(made, comm))?;
    }

    fn MPI_Cartdim_get(on: Handle, n: *mut c_int) on On::Comm(on); {
        put(n, cart(comm(on)?)?.dims().len() as c_int)?;
    }

    fn MPI_Cart_get(
        on: Handle, room: c_int, list: *mut c_int, periods: *mut c_int, coords: *mut c_int
    ) on On::Comm(on); {
        let comm = comm(on)?;
        let cart = cart(comm)?;
        fill(list, room, cart.dims().iter().map(|n| *n as c_int))?;
        fill(periods, room, cart.periods().iter().map(|p| c_int::from(*p)))?;
        let own = cart.coords_of(comm.comm.rank()).map_err(of_cart)?;
        fill(coords, room, own.iter().map(|n| *n as c_int))?;
    }

    fn MPI_Cart_rank(on: Handle, coords: *const c_int, rank: *mut c_int) on On::Comm(on); {
        let cart = cart(comm(on)?)?;
        let coords: Vec<isize> = array(coords, cart.dims().len())?.iter().map(|n| *n as isize).collect();
        put(rank, cart.rank_of(&coords).map_err(of_cart)? as c_int)?;
    }

    fn MPI_Cart_coords(on: Handle, rank: c_int, room: c_int, coords: *mut c_int) on On::Comm(on); {
        let comm = comm(on)?;
        let cart = cart(comm)?;
        let found = cart.coords_of(member(comm, rank)?).map_err(of_cart)?;
        fill(coords, room, found.iter().map(|n| *n as c_int))?;
    }

    fn MPI_Cart_shift(on: Handle, direction: c_int, by: c_int, from: *mut c_int, to: *mut c_int) on On::Comm(on); {
        let comm = comm(on)?;
        let cart = cart(comm)?;
        let direction = usize::try_from(direction)
            .ok()
            .filter(|d| *d < cart.dims().len())
            .ok_or_else(|| argument(format!("direction {direction}")))?;
        let (source, dest) = cart
            .shift(comm.comm.rank(), direction, by as isize)
            .map_err(of_cart)?;
        put(from, or_null(source))?;
        put(to, or_null(dest))?;
    }

    fn MPI_Topo_test(on: Handle, status: *mut c_int) on On::Comm(on); {
        put(status, match comm(on)?.comm.topology() {
            Some(Topology::Cart(_)) => MPI_CART,
            Some(Topology::Graph(_)) => MPI_GRAPH,
            Some(Topology::DistGraph(_)) => MPI_DIST_GRAPH,
            _ => MPI_UNDEFINED,
        })?;
    }

    fn MPI_Graph_create(
        on: Handle, n: c_int, index: *const c_int, edges: *const c_int, reorder: c_int,
        to: *mut Handle
    ) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        let index = numbers(number(n)?, index)?;
        let edges = numbers(index.last().copied().unwrap_or(0), edges)?;
        let made = comm.comm.graph_create(&index, &edges, reorder != 0)?;
        put_comm(made, comm, to)?;
    }

    fn MPI_Graph_map(on: Handle, n: c_int, index: *const c_int, edges: *const c_int, rank: *mut c_int) on On::Comm(on); {
        let index = numbers(number(n)?, index)?;
        let edges = numbers(index.last().copied().unwrap_or(0), edges)?;
        let mapped = comm(on)?.comm.graph_map(&index, &edges)?;
        put(rank, mapped.map_or(MPI_UNDEFINED, |rank| rank as c_int))?;
    }

    fn MPI_Graphdims_get(on: Handle, nodes: *mut c_int, edges: *mut c_int) on On::Comm(on); {
        let graph = graph(comm(on)?)?;
        put(nodes, graph.nodes() as c_int)?;
        put(edges, graph.edges().len() as c_int)?;
    }

    fn MPI_Graph_get(on: Handle, room_index: c_int, room_edges: c_int, index: *mut c_int, edges: *mut c_int) on On::Comm(on); {
        let graph = graph(comm(on)?)?;
        fill(index, room_index, graph.index().iter().map(|n| *n as c_int))?;
        fill(edges, room_edges, graph.edges().iter().map(|n| *n as c_int))?;
    }

    fn MPI_Graph_neighbors_count(on: Handle, rank: c_int, n: *mut c_int) on On::Comm(on); {
        let comm = comm(on)?;
        put(n, graph(comm)?.neighbors(member(comm, rank)?)?.len() as c_int)?;
    }

    fn MPI_Graph_neighbors(on: Handle, rank: c_int, room: c_int, list: *mut c_int) on On::Comm(on); {
        let comm = comm(on)?;
        let found = graph(comm)?.neighbors(member(comm, rank)?)?;
        fill(list, room, found.iter().map(|n| *n as c_int))?;
    }

    fn MPI_Dist_graph_create_adjacent(
        on: Handle, indegree: c_int, sources: *const c_int, sourceweights: *const c_int,
        outdegree: c_int, destinations: *const c_int, destweights: *const c_int, _hints: Handle,
        reorder: c_int, to: *mut Handle
    ) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        let (from, into) = (number(indegree)?, number(outdegree)?);
        let (sources, destinations) = (numbers(from, sources)?, numbers(into, destinations)?);
        let both = match (weights(from, sourceweights)?, weights(into, destweights)?) {
            (Some(from), Some(into)) => Some((from, into)),
            (None, None) => None,
            _ => return Err(argument("MPI_UNWEIGHTED for one side only")),
        };
        let made = comm.comm.dist_graph_create_adjacent(&sources, &destinations, both, reorder != 0)?;
        put(to, new_comm(made, comm))?;
    }

    fn MPI_Dist_graph_create(
        on: Handle, n: c_int, sources: *const c_int, degrees: *const c_int,
        destinations: *const c_int, weighted: *const c_int, _hints: Handle, reorder: c_int,
        to: *mut Handle
    ) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        let n = number(n)?;
        let (sources, degrees) = (numbers(n, sources)?, numbers(n, degrees)?);
        let total = degrees.iter().sum();
        let destinations = numbers(total, destinations)?;
        let edges = Edges {
            sources: &sources,
            degrees: &degrees,
            destinations: &destinations,
            weights: weights(total, weighted)?,
        };
        let made = comm.comm.dist_graph_create(edges, reorder != 0)?;
        put(to, new_comm(made, comm))?;
    }

    fn MPI_Dist_graph_neighbors_count(on: Handle, indegree: *mut c_int, outdegree: *mut c_int, weighted: *mut c_int) on On::Comm(on); {
        let graph = dist_graph(comm(on)?)?;
        put(indegree, graph.sources().len() as c_int)?;
        put(outdegree, graph.destinations().len() as c_int)?;
        put(weighted, c_int::from(graph.is_weighted()))?;
    }

    fn MPI_Dist_graph_neighbors(
        on: Handle, room_in: c_int, sources: *mut c_int, sourceweights: *mut c_int,
        room_out: c_int, destinations: *mut c_int, destweights: *mut c_int
    ) on On::Comm(on); {
        let graph = dist_graph(comm(on)?)?;
        let sides = [
            (graph.sources(), room_in, sources, sourceweights),
            (graph.destinations(), room_out, destinations, destweights),
        ];
        for (of, room, ranks, weights) in sides {
            fill(ranks, room, of.iter().map(|n| n.rank as c_int))?;
            let wanted = !matches!(weights.addr(), 0 | MPI_UNWEIGHTED | MPI_WEIGHTS_EMPTY);
            if graph.is_weighted() && wanted {
                fill(weights, room, of.iter().map(|n| n.weight as c_int))?;
            }
        }
    }
}
