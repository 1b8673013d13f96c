//! Intercommunicators.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Res, bad_comm, bad_rank, number, put};
use crate::objects::{Comm, comm, new_comm};

/// The communicator of a handle, which has to be one of two groups.
pub fn inter(on: Handle) -> Res<&'static Comm> {
    let comm = comm(on)?;
    match comm.inter {
        true => Ok(comm),
        false => Err(bad_comm(
            "an intracommunicator in place of an intercommunicator",
        )),
    }
}

fn leader(rank: c_int, of: usize) -> Res<usize> {
    match usize::try_from(rank) {
        Ok(rank) if rank < of => Ok(rank),
        _ => Err(bad_rank(format!("leader {rank} in a communicator of {of}"))),
    }
}

mpi! {
    fn MPI_Comm_test_inter(on: Handle, flag: *mut c_int) on On::Comm(on); {
        put(flag, c_int::from(comm(on)?.inter))?;
    }

    fn MPI_Comm_remote_size(on: Handle, size: *mut c_int) on On::Comm(on); {
        put(size, inter(on)?.comm.remote_size()? as c_int)?;
    }

    fn MPI_Intercomm_create(
        local: Handle, local_leader: c_int, bridge: Handle, remote_leader: c_int, tag: c_int,
        to: *mut Handle
    ) on On::Comm(local); {
        put(to, MPI_COMM_NULL)?;
        let of = comm(local)?;
        let local_leader = leader(local_leader, of.comm.size())?;
        // Other ranks' bridge means nothing.
        let made = match of.comm.rank() == local_leader {
            true => {
                let bridge = comm(bridge)?;
                let there = number(remote_leader)?;
                of.comm.intercomm_create(local_leader, Some((&bridge.comm, there)), tag)?
            }
            false => of.comm.intercomm_create(local_leader, None, tag)?,
        };
        put(to, new_comm(made, of))?;
    }

    fn MPI_Intercomm_merge(on: Handle, high: c_int, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let of = inter(on)?;
        put(to, new_comm(of.comm.merge(high != 0)?, of))?;
    }
}
