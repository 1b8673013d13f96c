//! Groups.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Res, array, array_mut, bad_group, bad_rank, get, number, place, put};
use crate::objects::{GROUPS, Origin, SESSIONS, comm, group, new_group, origin};
use crate::state;
use osier::Group;
use osier::communicators::{GroupComparison, RankRange};
use std::sync::Arc;

/// Ranks of a group, which exist and differ.
fn ranks(n: c_int, from: *const c_int, of: &Group) -> Res<Vec<usize>> {
    let mut seen = std::collections::HashSet::new();
    array(from, number(n)?)?
        .iter()
        .map(|rank| match usize::try_from(*rank) {
            Ok(known) if known < of.size() && seen.insert(known) => Ok(known),
            _ => Err(bad_rank(format!(
                "rank {rank} of a group of {} (hint: each once)",
                of.size()
            ))),
        })
        .collect()
}

fn ranges(n: c_int, from: *const [c_int; 3], of: &Group) -> Res<Vec<RankRange>> {
    array(from, number(n)?)?
        .iter()
        .map(|[first, last, stride]| {
            let known = |rank: c_int| match usize::try_from(rank) {
                Ok(known) if known < of.size() => Ok(known),
                _ => Err(bad_rank(format!("rank {rank} of a group of {}", of.size()))),
            };
            Ok(RankRange {
                first: known(*first)?,
                last: known(*last)?,
                stride: *stride as isize,
            })
        })
        .collect()
}

/// Ranks of the library's errors are ranks here.
fn of_ranks<E: Into<osier::Error>>(e: E) -> crate::fail::Fail {
    crate::fail::Fail::from(e.into()).class(MPI_ERR_ARG, MPI_ERR_RANK)
}

/// Where a group of two others comes from: the standard wants both to come from one session.
fn origin_of(one: Handle, other: Handle) -> Origin {
    match origin(one) {
        found if found.strong_count() > 0 => found,
        _ => origin(other),
    }
}

mpi! {
    fn MPI_Group_size(on: Handle, size: *mut c_int) on On::Own; {
        put(size, group(on)?.size() as c_int)?;
    }

    fn MPI_Group_rank(on: Handle, rank: *mut c_int) on On::Own; {
        let own = state::rank().and_then(|own| group(on).ok()?.rank_of(own));
        group(on)?;
        put(rank, own.map_or(MPI_UNDEFINED, |rank| rank as c_int))?;
    }

    fn MPI_Group_translate_ranks(
        one: Handle, n: c_int, from: *const c_int, other: Handle, to: *mut c_int
    ) on On::Own; {
        let (one, other) = (group(one)?, group(other)?);
        let n = number(n)?;
        for (from, to) in array(from, n)?.iter().zip(array_mut(to, n)?) {
            *to = match (*from, usize::try_from(*from)) {
                (MPI_PROC_NULL, _) => MPI_PROC_NULL,
                (_, Ok(rank)) if rank < one.size() => one
                    .world_rank(rank)
                    .and_then(|world| other.rank_of(world))
                    .map_or(MPI_UNDEFINED, |rank| rank as c_int),
                (rank, _) => {
                    return Err(bad_rank(format!("rank {rank} of a group of {}", one.size())));
                }
            };
        }
    }

    fn MPI_Group_compare(one: Handle, other: Handle, result: *mut c_int) on On::Own; {
        put(result, match group(one)?.compare(&group(other)?) {
            GroupComparison::Ident => MPI_IDENT,
            GroupComparison::Similar => MPI_SIMILAR,
            GroupComparison::Unequal => MPI_UNEQUAL,
        })?;
    }

    fn MPI_Comm_group(on: Handle, to: *mut Handle) on On::Comm(on); {
        put(to, new_group(comm(on)?.comm.group().clone(), comm(on)?.session.clone()))?;
    }

    fn MPI_Comm_remote_group(on: Handle, to: *mut Handle) on On::Comm(on); {
        let inter = crate::intercomms::inter(on)?;
        put(to, new_group(inter.comm.remote_group()?.clone(), inter.session.clone()))?;
    }

    fn MPI_Group_union(one: Handle, other: Handle, to: *mut Handle) on On::Own; {
        put(to, new_group(group(one)?.union(&group(other)?), origin_of(one, other)))?;
    }

    fn MPI_Group_intersection(one: Handle, other: Handle, to: *mut Handle) on On::Own; {
        put(to, new_group(group(one)?.intersection(&group(other)?), origin_of(one, other)))?;
    }

    fn MPI_Group_difference(one: Handle, other: Handle, to: *mut Handle) on On::Own; {
        put(to, new_group(group(one)?.difference(&group(other)?), origin_of(one, other)))?;
    }

    fn MPI_Group_incl(on: Handle, n: c_int, list: *const c_int, to: *mut Handle) on On::Own; {
        place(to)?;
        let group = group(on)?;
        put(to, new_group(group.incl(&ranks(n, list, &group)?).map_err(of_ranks)?, origin(on)))?;
    }

    fn MPI_Group_excl(on: Handle, n: c_int, list: *const c_int, to: *mut Handle) on On::Own; {
        place(to)?;
        let group = group(on)?;
        put(to, new_group(group.excl(&ranks(n, list, &group)?).map_err(of_ranks)?, origin(on)))?;
    }

    fn MPI_Group_range_incl(on: Handle, n: c_int, list: *const [c_int; 3], to: *mut Handle) on On::Own; {
        place(to)?;
        let group = group(on)?;
        put(to, new_group(group.range_incl(&ranges(n, list, &group)?).map_err(of_ranks)?, origin(on)))?;
    }

    fn MPI_Group_range_excl(on: Handle, n: c_int, list: *const [c_int; 3], to: *mut Handle) on On::Own; {
        place(to)?;
        let group = group(on)?;
        put(to, new_group(group.range_excl(&ranges(n, list, &group)?).map_err(of_ranks)?, origin(on)))?;
    }

    fn MPI_Group_free(on: *mut Handle) on On::Own; {
        let handle = get(on)?;
        if handle != MPI_GROUP_EMPTY && GROUPS.remove(handle).is_none() {
            return Err(bad_group("freeing of a handle that is no group"));
        }
        put(on, MPI_GROUP_NULL)?;
    }

    fn MPI_Group_from_session_pset(on: Handle, name: *const c_char, to: *mut Handle) on On::Session(on); {
        let session = crate::objects::session(on)?;
        let name = crate::fail::text(name)?;
        let of = SESSIONS.get(on).map(Arc::downgrade).unwrap_or_default();
        put(to, new_group(session.session.group(&name)?, of))?;
    }
}
