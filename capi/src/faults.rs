//! Failures of ranks, and memory of devices, under the names of `mpi-ext.h`.
//!
//! # Sources
//! W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of
//! MPI communication capability", IJHPCA 27(3), 2013; the extension's functions as Open MPI 5
//! and MPICH 4 have them.

use crate::abi::*;
use crate::attributes::Attributes;
use crate::call::{On, mpi};
use crate::comms::begin_making;
use crate::fail::{Res, argument, get, put};
use crate::objects::{Comm, comm, new_comm, new_group};
use crate::p2p::pend;
use crate::work::{Once, Sort, Work};
use osier::communicators::{Agreement, PendingAgreement};
use osier::requests::{Waitable, Watched};
use osier::{Error, ErrorKind, Status};

/// A receive from any source waits, though a rank has failed: here it ends.
const MPIX_ERR_PROC_FAILED_PENDING: c_int = 15_873;
/// A member has revoked the communicator.
pub const MPIX_ERR_REVOKED: c_int = 15_874;

/// Classes that are not the standard's.
pub static ERROR_CLASSES: [(&str, c_int); 2] = [
    ("MPIX_ERR_PROC_FAILED_PENDING", MPIX_ERR_PROC_FAILED_PENDING),
    ("MPIX_ERR_REVOKED", MPIX_ERR_REVOKED),
];

/// The group of these ranks to which messages of a communicator go.
fn those(of: &Comm, ranks: &[usize]) -> Res<Handle> {
    let group = match of.inter {
        true => of.comm.remote_group()?,
        false => of.comm.group(),
    };
    let group = group.incl(ranks).map_err(Error::from)?;
    Ok(new_group(group, of.session.clone()))
}

/// The bits of `int` on which ranks agree.
fn flags(from: *const c_int) -> Res<u64> {
    Ok(u64::from(get(from)? as u32))
}

/// Tells the bits, and of failures that not all have acknowledged.
fn told(agreed: &Agreement, flag: *mut c_int) -> osier::Result<()> {
    if put(flag, agreed.flags as u32 as c_int).is_err() {
        return Err(Error::new(ErrorKind::Argument, "agree: a null pointer"));
    }
    match agreed.acknowledged {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::RankDead,
            format!(
                "agree: ranks {:?} have failed, and not all members have acknowledged all failures",
                agreed.failed
            ),
        )),
    }
}

/// An agreement under way, and where its bits go.
struct Agreeing {
    pending: PendingAgreement,
    flag: usize,
}

impl Agreeing {
    fn flag(&self) -> *mut c_int {
        std::ptr::with_exposed_provenance_mut(self.flag)
    }
}

impl Once for Agreeing {
    fn is_over(&mut self) -> bool {
        self.pending.test()
    }

    fn peek(&mut self) -> Option<osier::Result<Status>> {
        let status = self.pending.status()?;
        let told = self
            .pending
            .seen()
            .map_or(Ok(()), |agreed| told(&agreed, self.flag()));
        Some(status.and_then(|status| told.map(|()| status)))
    }

    fn watched(&mut self) -> &mut dyn Watched {
        &mut self.pending
    }

    fn end(self: Box<Self>) -> osier::Result<Status> {
        let flag = self.flag();
        let agreed = self.pending.wait()?;
        told(&agreed, flag).map(|()| Status::empty())
    }
}

mpi! {
    fn MPIX_Comm_revoke(on: Handle) on On::Comm(on); {
        comm(on)?.comm.revoke();
    }

    fn MPIX_Comm_is_revoked(on: Handle, flag: *mut c_int) on On::Comm(on); {
        put(flag, c_int::from(comm(on)?.comm.is_revoked()))?;
    }

    fn MPIX_Comm_failure_ack(on: Handle) on On::Comm(on); {
        comm(on)?.comm.acknowledge_failures();
    }

    fn MPIX_Comm_failure_get_acked(on: Handle, failed: *mut Handle) on On::Comm(on); {
        let of = comm(on)?;
        put(failed, those(of, &of.comm.acknowledged_failures())?)?;
    }

    fn MPIX_Comm_get_failed(on: Handle, failed: *mut Handle) on On::Comm(on); {
        let of = comm(on)?;
        put(failed, those(of, &of.comm.failures())?)?;
    }

    fn MPIX_Comm_ack_failed(on: Handle, to_acknowledge: c_int, acknowledged: *mut c_int) on On::Comm(on); {
        let of = comm(on)?;
        let count = usize::try_from(to_acknowledge)
            .map_err(|_| argument(format!("{to_acknowledge} failures to acknowledge")))?;
        of.comm.acknowledge_first_failures(count);
        put(acknowledged, of.comm.acknowledged_failures().len() as c_int)?;
    }

    fn MPIX_Comm_agree(on: Handle, flag: *mut c_int) on On::Comm(on); {
        let agreed = comm(on)?.comm.agree(flags(flag)?)?;
        told(&agreed, flag)?;
    }

    fn MPIX_Comm_iagree(on: Handle, flag: *mut c_int, request: *mut Handle) on On::Comm(on); {
        let pending = comm(on)?.comm.iagree(flags(flag)?);
        let agreeing = Agreeing { pending, flag: flag.expose_provenance() };
        pend(Work::Once(Box::new(agreeing), Sort::Collective), on, request)?;
    }

    fn MPIX_Comm_shrink(on: Handle, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let of = comm(on)?;
        put(to, new_comm(of.comm.shrink()?, of))?;
    }

    fn MPIX_Comm_ishrink(on: Handle, to: *mut Handle, request: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let pending = comm(on)?.comm.ishrink()?;
        begin_making(on, pending, Attributes::new(), to, request)?;
    }
}

/// Whether there are devices whose memory may be passed.
#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_cuda_support() -> c_int {
    c_int::from(osier_kernels::Driver::is_there())
}

#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_rocm_support() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_ze_support() -> c_int {
    0
}
