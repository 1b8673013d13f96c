//! Statuses in C's memory.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Int, Res, argument, count, get, put};
use crate::objects::ctype;
use osier::Status;

/// Of a request that is null or inactive.
pub const EMPTY: CStatus = CStatus {
    source: MPI_ANY_SOURCE,
    tag: MPI_ANY_TAG,
    error: MPI_SUCCESS,
    own: [0; 5],
};

impl CStatus {
    pub fn bytes(&self) -> u64 {
        u64::from(self.own[0] as u32) | u64::from(self.own[1] as u32) << 32
    }

    pub fn set_bytes(&mut self, bytes: u64) {
        self.own[0] = bytes as u32 as c_int;
        self.own[1] = (bytes >> 32) as u32 as c_int;
    }

    /// Of a receive.
    #[inline]
    pub fn received(status: &Status) -> Self {
        let mut c = CStatus {
            source: status.source().map_or(MPI_PROC_NULL, |rank| rank as c_int),
            tag: status.tag().map_or(MPI_ANY_TAG, |tag| tag as c_int),
            error: MPI_SUCCESS,
            own: [0; 5],
        };
        c.set_bytes(status.bytes() as u64);
        c.own[2] = c_int::from(status.cancelled());
        c
    }

    /// Of a message that was received.
    #[inline]
    pub fn of_message(source: u32, tag: u32, bytes: usize) -> Self {
        let mut c = CStatus {
            source: source as c_int,
            tag: tag as c_int,
            error: MPI_SUCCESS,
            own: [0; 5],
        };
        c.set_bytes(bytes as u64);
        c
    }

    /// Of what receives nothing.
    pub fn done(status: &Status) -> Self {
        let mut c = EMPTY;
        c.own[2] = c_int::from(status.cancelled());
        c
    }

    /// As the library has it.
    pub fn to_status(self) -> Status {
        let mut status = Status::empty();
        status.set_source(usize::try_from(self.source).ok());
        status.set_tag(u32::try_from(self.tag).ok());
        status.set_bytes(self.bytes() as usize);
        status.set_cancelled(self.own[2] != 0);
        status
    }
}

/// Leaves a status, unless nobody wants it. `MPI_ERROR` stays as it is: only calls that
/// complete several requests set it.
#[inline]
pub fn leave(to: *mut CStatus, status: &CStatus) {
    if !to.is_null() {
        // SAFETY: C's contract: there is room for a status.
        let to = unsafe { &mut *to };
        to.source = status.source;
        to.tag = status.tag;
        to.own = status.own;
        if status.source == MPI_ANY_SOURCE {
            // An empty status has all fields set.
            to.error = MPI_SUCCESS;
        }
    }
}

/// Leaves the status of a message that was received, unless nobody wants it.
#[inline]
pub fn leave_received(to: *mut CStatus, status: &Status) {
    if to.is_null() {
        return;
    }
    match (status.source(), status.tag()) {
        (Some(source), Some(tag)) => {
            let bytes = status.bytes() as u64;
            // SAFETY: C's contract: there is room for a status.
            let to = unsafe { &mut *to };
            to.source = source as c_int;
            to.tag = tag as c_int;
            to.own[0] = bytes as u32 as c_int;
            to.own[1] = (bytes >> 32) as u32 as c_int;
            to.own[2] = c_int::from(status.cancelled());
        }
        _ => leave(to, &CStatus::received(status)),
    }
}

fn there<'a>(status: *mut CStatus) -> Res<&'a mut CStatus> {
    if status.is_null() {
        return Err(argument("MPI_STATUS_IGNORE in place of a status"));
    }
    // SAFETY: C's contract.
    Ok(unsafe { &mut *status })
}

fn elements(status: *const CStatus, ty: Handle) -> Res<i64> {
    let status = get(status)?.to_status();
    let found = status.elements_of(ctype(ty)?.layout()?);
    Ok(found.map_or(i64::from(MPI_UNDEFINED), |n| n as i64))
}

fn set_elements<N: Int>(to: *mut CStatus, ty: Handle, n: N) -> Res {
    let n = count(n)?;
    let layout = ctype(ty)?.layout()?;
    let mut status = Status::empty();
    status.set_elements(layout, n)?;
    there(to)?.set_bytes(status.bytes() as u64);
    Ok(())
}

mpi! {
    fn MPI_Get_count, MPI_Get_count_c<N>(status: *const CStatus, ty: Handle, count: *mut N) on On::Own; {
        let status = get(status)?.to_status();
        let found = status.count_of(ctype(ty)?.layout()?);
        put(count, N::narrow(found.map_or(i64::from(MPI_UNDEFINED), |n| n as i64)))?;
    }

    fn MPI_Get_elements, MPI_Get_elements_c<N>(status: *const CStatus, ty: Handle, count: *mut N) on On::Own; {
        put(count, N::narrow(elements(status, ty)?))?;
    }

    fn MPI_Get_elements_x(status: *const CStatus, ty: Handle, count: *mut Count) on On::Own; {
        put(count, elements(status, ty)?)?;
    }

    fn MPI_Status_set_elements, MPI_Status_set_elements_c<N>(status: *mut CStatus, ty: Handle, n: N) on On::Own; {
        set_elements(status, ty, n)?;
    }

    fn MPI_Status_set_elements_x(status: *mut CStatus, ty: Handle, n: Count) on On::Own; {
        set_elements(status, ty, n)?;
    }

    fn MPI_Status_set_cancelled(status: *mut CStatus, flag: c_int) on On::Own; {
        there(status)?.own[2] = c_int::from(flag != 0);
    }

    fn MPI_Test_cancelled(status: *const CStatus, flag: *mut c_int) on On::Own; {
        put(flag, get(status)?.own[2])?;
    }

    fn MPI_Status_get_source(status: *const CStatus, source: *mut c_int) on On::Own; {
        put(source, get(status)?.source)?;
    }

    fn MPI_Status_get_tag(status: *const CStatus, tag: *mut c_int) on On::Own; {
        put(tag, get(status)?.tag)?;
    }

    fn MPI_Status_get_error(status: *const CStatus, error: *mut c_int) on On::Own; {
        put(error, get(status)?.error)?;
    }

    fn MPI_Status_set_source(status: *mut CStatus, source: c_int) on On::Own; {
        there(status)?.source = source;
    }

    fn MPI_Status_set_tag(status: *mut CStatus, tag: c_int) on On::Own; {
        there(status)?.tag = tag;
    }

    fn MPI_Status_set_error(status: *mut CStatus, error: c_int) on On::Own; {
        there(status)?.error = error;
    }
}

/// An error of a call that is told in a status.
pub fn error_in(fail: &Fail) -> CStatus {
    let mut status = CStatus {
        error: fail.code(),
        ..EMPTY
    };
    if let Some((source, tag)) = fail.envelope() {
        (status.source, status.tag) = (source as c_int, tag as c_int);
    }
    status
}
