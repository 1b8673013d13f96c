//! Completion of one, any, all or some requests.
//!
//! # Sources
//! MPI 5.0, sections 3.7.3 to 3.7.5.

use crate::abi::*;
use crate::batch::{Entered, Short};
use crate::call::{On, mpi};
use crate::complete;
use crate::fail::{Fail, Res, array, array_mut, count, get, put};
use crate::held;
use crate::objects::REQUESTS;
use crate::persistent::{in_place, request};
use crate::status::{EMPTY, error_in, leave};
use crate::table::Found;
use crate::work::Pending;
use osier::requests::{Watched, first_over};

/// Waits for one; its handle is null afterwards, unless it can be started again.
#[inline]
fn finish(at: &mut Handle) -> Res<CStatus> {
    let handle = *at;
    if handle == MPI_REQUEST_NULL {
        return Ok(EMPTY);
    }
    if let Some(short) = complete::status_of(handle) {
        *at = MPI_REQUEST_NULL;
        return Ok(short.status());
    }
    let pending = in_place(handle)?;
    // What is most frequent is ended where it lies.
    if let Some(over) = pending.end_transfer() {
        let over = over.map_err(|e| Fail::from(e).on(pending.on));
        *at = MPI_REQUEST_NULL;
        REQUESTS.discard(handle);
        return over;
    }
    finish_other(at, handle, pending)
}

#[inline(never)]
fn finish_other(at: &mut Handle, handle: Handle, pending: &mut Pending) -> Res<CStatus> {
    if pending.is_persistent() {
        return match pending.is_active() {
            true => {
                let over = pending.wait_here();
                held::completed(handle);
                over
            }
            false => Ok(EMPTY),
        };
    }
    *at = MPI_REQUEST_NULL;
    match REQUESTS.remove(handle) {
        Some(pending) => pending.wait(),
        None => Ok(EMPTY),
    }
}

/// Whether there is something to wait for.
fn is_active(handle: Handle) -> Res<bool> {
    Ok(match handle {
        MPI_REQUEST_NULL => false,
        _ if complete::status_of(handle).is_some() => true,
        _ => request(handle)?.is_active(),
    })
}

/// Makes progress; true also for what is null or inactive.
#[inline]
fn is_over(handle: Handle) -> Res<bool> {
    if handle == MPI_REQUEST_NULL || complete::status_of(handle).is_some() {
        return Ok(true);
    }
    let pending = request(handle)?;
    Ok(!pending.is_active() || pending.test())
}

/// The status of what is over, which is left as it is.
pub fn peek(handle: Handle) -> Res<Option<CStatus>> {
    if !is_active(handle)? {
        return Ok(Some(EMPTY));
    }
    if let Some(short) = complete::status_of(handle) {
        return Ok(Some(short.status()));
    }
    request(handle)?.peek().transpose()
}

fn handles<'a>(n: c_int, requests: *mut Handle) -> Res<&'a mut [Handle]> {
    array_mut(requests, count(n)?)
}

/// Waits until one is over: its place; `None` if none is active.
fn wait_one(handles: &[Handle]) -> Res<Option<usize>> {
    let mut places = Vec::with_capacity(handles.len());
    let mut all: Vec<&mut dyn Watched> = Vec::with_capacity(handles.len());
    for (at, handle) in handles.iter().enumerate() {
        if !is_active(*handle)? {
            continue;
        }
        if complete::status_of(*handle).is_some() {
            return Ok(Some(at));
        }
        let pending = request(*handle)?;
        if pending.is_sent() {
            return Ok(Some(at));
        }
        if let Some(watched) = pending.watched() {
            places.push(at);
            all.push(watched);
        }
    }
    Ok(first_over(&mut all).map(|at| places[at]))
}

/// A place in an array, as C counts.
fn index(at: usize) -> c_int {
    at as c_int
}

/// The statuses of several calls; nothing if nobody wants them.
struct Statuses(*mut CStatus);

impl Statuses {
    fn leave(&self, at: usize, status: &CStatus) {
        if !self.0.is_null() {
            leave(self.0.wrapping_add(at), status);
        }
    }

    #[inline(always)]
    fn leave_short(&self, at: usize, short: Short) {
        if !self.0.is_null() {
            self.leave_whole(at, short.status());
        }
    }

    /// With all of its fields.
    #[inline(always)]
    fn leave_whole(&self, at: usize, status: CStatus) {
        if !self.0.is_null() {
            // SAFETY: C's contract: as many statuses as requests.
            unsafe { self.0.wrapping_add(at).write(status) };
        }
    }

    /// With the error, which only calls over several set.
    fn leave_error(&self, at: usize, code: c_int) {
        if !self.0.is_null() {
            let status = self.0.wrapping_add(at);
            // SAFETY: C's contract: as many statuses as requests.
            unsafe { (*status).error = code };
        }
    }
}

/// What a call over several says when some of them failed.
fn in_status(failed: Option<(Fail, Vec<usize>)>, done: &[usize], statuses: &Statuses) -> Res {
    let Some((first, errors)) = failed else {
        return Ok(());
    };
    for at in done {
        if !errors.contains(at) {
            statuses.leave_error(*at, MPI_SUCCESS);
        }
    }
    Err(errors_in_status(&first))
}

/// Ends several that are over, or are waited for: which those are, and how it went.
fn finish_these(
    handles: &mut [Handle],
    these: impl Iterator<Item = usize>,
    place: impl Fn(usize, usize) -> usize,
    statuses: &Statuses,
) -> (Vec<usize>, Res) {
    let mut failed: Option<(Fail, Vec<usize>)> = None;
    let (mut done, mut taken) = (Vec::new(), Vec::new());
    for (number, at) in these.enumerate() {
        let to = place(number, at);
        match finish(&mut handles[at]) {
            Ok(status) => statuses.leave(to, &status),
            Err(e) => {
                statuses.leave(to, &error_in(&e));
                statuses.leave_error(to, e.code());
                let (_, errors) = failed.get_or_insert((e, Vec::new()));
                errors.push(to);
            }
        }
        done.push(to);
        taken.push(at);
    }
    (taken, in_status(failed, &done, statuses))
}

/// Ends all, which are over or are waited for. Each status has an error.
fn finish_all(handles: &mut [Handle], statuses: &Statuses) -> Res {
    let mut first = None;
    let mut entered = Entered::default();
    for (at, handle) in handles.iter_mut().enumerate() {
        if let Some(short) = complete::status_of(*handle) {
            *handle = MPI_REQUEST_NULL;
            statuses.leave_short(at, short);
            continue;
        }
        // What is a few words has no status of its own.
        if let Some(Found::Ends(short)) = REQUESTS.end_words(*handle, |p| entered.end_short(p)) {
            *handle = MPI_REQUEST_NULL;
            statuses.leave_short(at, short);
            continue;
        }
        let ended = match REQUESTS.end_words(*handle, |p| entered.end(p)) {
            Some(Found::Ends((Ok(status), _))) => {
                *handle = MPI_REQUEST_NULL;
                statuses.leave_whole(at, status);
                continue;
            }
            Some(Found::Stays((Ok(status), _))) => {
                statuses.leave_whole(at, status);
                continue;
            }
            Some(Found::Ends((Err(e), on))) => {
                *handle = MPI_REQUEST_NULL;
                Err(Fail::from(e).on(on))
            }
            Some(Found::Stays((Err(e), on))) => Err(Fail::from(e).on(on)),
            None => {
                entered.leave();
                finish(handle)
            }
        };
        match ended {
            Ok(status) => {
                statuses.leave(at, &status);
                statuses.leave_error(at, MPI_SUCCESS);
            }
            Err(e) => {
                statuses.leave(at, &error_in(&e));
                statuses.leave_error(at, e.code());
                first.get_or_insert(e);
            }
        }
    }
    first.map_or(Ok(()), |first| Err(errors_in_status(&first)))
}

/// Says that statuses have errors, of which this is the first.
#[cold]
fn errors_in_status(first: &Fail) -> Fail {
    let fail = Fail::new(MPI_ERR_IN_STATUS, first.message().to_owned());
    match first.object() {
        Some(on) => fail.on(on),
        None => fail,
    }
}

/// Ends all that are over: their places, and how it went.
fn some(handles: &mut [Handle], statuses: &Statuses) -> Res<(Vec<usize>, Res)> {
    let mut over = Vec::new();
    for (at, handle) in handles.iter().enumerate() {
        if is_active(*handle)? && is_over(*handle)? {
            over.push(at);
        }
    }
    Ok(finish_these(
        handles,
        over.into_iter(),
        |number, _| number,
        statuses,
    ))
}

/// Hands out which have ended, or that there were none to wait for.
fn tell(taken: &[usize], any: bool, out: *mut c_int, indices: *mut c_int) -> Res {
    if !any {
        return put(out, MPI_UNDEFINED);
    }
    put(out, index(taken.len()))?;
    for (to, at) in array_mut(indices, taken.len())?.iter_mut().zip(taken) {
        *to = index(*at);
    }
    Ok(())
}

fn any_active(handles: &[Handle]) -> Res<bool> {
    for handle in handles {
        if is_active(*handle)? {
            return Ok(true);
        }
    }
    Ok(false)
}

mpi! {
    hot fn MPI_Wait(request: *mut Handle, status: *mut CStatus) on On::Own; {
        get(request)?;
        // SAFETY: C's contract; it is not null.
        let over = finish(unsafe { &mut *request })?;
        leave(status, &over);
    }

    fn MPI_Test(request: *mut Handle, flag: *mut c_int, status: *mut CStatus) on On::Own; {
        let over = is_over(get(request)?)?;
        put(flag, c_int::from(over))?;
        if over {
            // SAFETY: as above.
            let status_of = finish(unsafe { &mut *request })?;
            leave(status, &status_of);
        }
    }

    fn MPI_Waitall(n: c_int, requests: *mut Handle, statuses: *mut CStatus) on On::Own; {
        finish_all(handles(n, requests)?, &Statuses(statuses))?;
    }

    fn MPI_Testall(n: c_int, requests: *mut Handle, flag: *mut c_int, statuses: *mut CStatus) on On::Own; {
        let handles = handles(n, requests)?;
        let mut over = true;
        for handle in handles.iter() {
            if !is_over(*handle)? {
                over = false;
                break;
            }
        }
        put(flag, c_int::from(over))?;
        if over {
            finish_all(handles, &Statuses(statuses))?;
        }
    }

    fn MPI_Waitany(n: c_int, requests: *mut Handle, at: *mut c_int, status: *mut CStatus) on On::Own; {
        let handles = handles(n, requests)?;
        match wait_one(handles)? {
            Some(found) => {
                put(at, index(found))?;
                let over = finish(&mut handles[found])?;
                leave(status, &over);
            }
            None => {
                put(at, MPI_UNDEFINED)?;
                leave(status, &EMPTY);
            }
        }
    }

    fn MPI_Testany(
        n: c_int, requests: *mut Handle, at: *mut c_int, flag: *mut c_int, status: *mut CStatus
    ) on On::Own; {
        let handles = handles(n, requests)?;
        let mut active = false;
        for (found, handle) in handles.iter_mut().enumerate() {
            if !is_active(*handle)? {
                continue;
            }
            active = true;
            if is_over(*handle)? {
                put(at, index(found))?;
                put(flag, 1)?;
                let over = finish(handle)?;
                leave(status, &over);
                return Ok(());
            }
        }
        put(at, MPI_UNDEFINED)?;
        put(flag, c_int::from(!active))?;
        if !active {
            leave(status, &EMPTY);
        }
    }

    fn MPI_Waitsome(
        n: c_int, requests: *mut Handle, out: *mut c_int, indices: *mut c_int,
        statuses: *mut CStatus
    ) on On::Own; {
        let handles = handles(n, requests)?;
        let any = wait_one(handles)?.is_some();
        let (taken, ended) = match any {
            true => some(handles, &Statuses(statuses))?,
            false => (Vec::new(), Ok(())),
        };
        tell(&taken, any, out, indices)?;
        ended?;
    }

    fn MPI_Testsome(
        n: c_int, requests: *mut Handle, out: *mut c_int, indices: *mut c_int,
        statuses: *mut CStatus
    ) on On::Own; {
        let handles = handles(n, requests)?;
        let any = any_active(handles)?;
        let (taken, ended) = match any {
            true => some(handles, &Statuses(statuses))?,
            false => (Vec::new(), Ok(())),
        };
        tell(&taken, any, out, indices)?;
        ended?;
    }

    fn MPI_Request_get_status_all(
        n: c_int, requests: *const Handle, flag: *mut c_int, statuses: *mut CStatus
    ) on On::Own; {
        let handles = array(requests, count(n)?)?;
        let mut over = true;
        for handle in handles {
            over &= is_over(*handle)?;
        }
        put(flag, c_int::from(over))?;
        if over {
            for (at, handle) in handles.iter().enumerate() {
                if let Some(status) = peek(*handle)? {
                    Statuses(statuses).leave(at, &status);
                }
            }
        }
    }

    fn MPI_Request_get_status_any(
        n: c_int, requests: *const Handle, at: *mut c_int, flag: *mut c_int, status: *mut CStatus
    ) on On::Own; {
        let handles = array(requests, count(n)?)?;
        let any = any_active(handles)?;
        put(flag, c_int::from(!any))?;
        put(at, MPI_UNDEFINED)?;
        if !any {
            leave(status, &EMPTY);
        }
        for (found, handle) in handles.iter().enumerate() {
            if is_active(*handle)? && let Some(over) = peek(*handle)? {
                put(flag, 1)?;
                put(at, index(found))?;
                leave(status, &over);
                break;
            }
        }
    }

    fn MPI_Request_get_status_some(
        n: c_int, requests: *const Handle, out: *mut c_int, indices: *mut c_int,
        statuses: *mut CStatus
    ) on On::Own; {
        let handles = array(requests, count(n)?)?;
        let mut found = Vec::new();
        for (at, handle) in handles.iter().enumerate() {
            if is_active(*handle)? && let Some(over) = peek(*handle)? {
                Statuses(statuses).leave(found.len(), &over);
                found.push(at);
            }
        }
        tell(&found, any_active(handles)?, out, indices)?;
    }
}
