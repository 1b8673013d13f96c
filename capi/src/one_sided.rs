//! Accesses to windows, and the calls that open and close their epochs.
//!
//! Each access is complete, at its target too, when its call returns, and so are the requests of
//! these calls; but for short puts to plain memory of another process, which are made together
//! where the next flush or end of an epoch is.

use crate::abi::*;
use crate::buffers::{Address, MemoryMut, elements, is_of_the_host, view, view_mut};
use crate::call::{On, mpi};
use crate::complete;
use crate::epochs::{Allowed, Epochs, Held};
use crate::fail::{Fail, Int, Res, argument, bad_op, count, put};
use crate::objects::{Element, REQUESTS, ctype, group, lock};
use crate::ops::{known, operand};
use crate::state::has_threads;
use crate::windows::{Win, win};
use crate::work::{Pending, Work};
use osier::rma::{ByAddress, Change, target_of};
use osier::{Buffer, BufferMut};
use osier_engine::rma::word::Hold;
use osier_engine::view::{RawView, copy_contiguous};
use osier_transports::full_fence;

/// The target of an access, which may be nobody.
struct Target {
    rank: usize,
    view: RawView,
}

/// Whether an epoch allows accesses to a rank.
#[inline]
fn allow(win: &Win, rank: usize) -> Res {
    let allowed = match win.quick.look(rank) {
        Some(allowed) => allowed,
        None => with_epochs(win, |epochs| epochs.access(rank))?,
    };
    if allowed == Allowed::OfAll {
        win.raw.lock_of_all(rank)?;
    }
    Ok(())
}

/// A displacement in bytes.
#[inline]
fn offset(win: &Win, rank: usize, disp: Aint) -> Res<usize> {
    let unit = win.raw.unit_of(rank).unwrap_or(1) as isize;
    let at = disp.checked_mul(unit).ok_or_else(|| {
        Fail::new(
            MPI_ERR_DISP,
            format!("displacement {disp} in units of {unit} bytes"),
        )
    })?;
    Ok(at.cast_unsigned())
}

/// A rank's part that is used by address, in an epoch that allows it at once; none: whatever else
/// is to be done, or wrong, is found by the longer way.
#[inline(always)]
fn short(win: &Win, rank: c_int) -> Option<ByAddress<'_>> {
    let rank = usize::try_from(rank).ok()?;
    let part = win.raw.by_address(rank)?;
    let allowed = match win.quick.look(rank)? {
        Allowed::AtOnce => true,
        Allowed::OfAll => part.is_locked_by_all(),
    };
    allowed.then_some(part)
}

/// Where elements of predefined types lie on both sides, if a copy of bytes is all there is to
/// do: the origin's, those in the window, and how many bytes.
#[inline(always)]
fn plain<N: Int>(win: &Win, local: Local<N>, remote: Remote<N>) -> Option<Run> {
    let (rank, disp, n, ty) = remote;
    let own = elements(local.0, local.1, local.2)?.plain()?;
    if (n.wide(), ty) != (local.1.wide(), local.2) {
        let n = usize::try_from(n.wide()).ok()?;
        let bytes = n.checked_mul(ctype(ty).ok()?.element?.bytes)?;
        (bytes == own.bytes).then_some(())?;
    }
    let there = short(win, rank)?.place(disp, own.at, own.bytes)?;
    Some(Run {
        own: own.at,
        there,
        bytes: own.bytes,
    })
}

/// Bytes of an access on both sides, apart from each other.
struct Run {
    own: *mut u8,
    there: *mut u8,
    bytes: usize,
}

/// A target in an epoch that allows it; `None`: `MPI_PROC_NULL`.
#[inline]
fn target<N: Int>(win: &Win, rank: c_int, disp: Aint, n: N, ty: Handle) -> Res<Option<Target>> {
    if rank == MPI_PROC_NULL {
        return Ok(None);
    }
    let rank = checked(win, rank)?;
    allow(win, rank)?;
    let at = offset(win, rank, disp)?;
    let (n, ty) = (count(n)?, ctype(ty)?);
    let view = match ty.element {
        Some(element) => {
            let bytes = n.checked_mul(element.bytes);
            let bytes = bytes.ok_or_else(|| crate::fail::bad_count("a count that overflows"))?;
            let origin = std::ptr::without_provenance_mut(at);
            RawView::uniform(origin, bytes, element.basic)
        }
        None => target_of(at, ty.committed()?, n)?,
    };
    Ok(Some(Target { rank, view }))
}

/// A rank of the window.
#[inline]
fn checked(win: &Win, rank: c_int) -> Res<usize> {
    let size = win.raw.comm().size();
    match usize::try_from(rank) {
        Ok(rank) if rank < size => Ok(rank),
        _ => Err(Fail::new(
            MPI_ERR_RANK,
            format!("rank {rank} of a window of {size}"),
        )),
    }
}

/// What an operator does, for elements of a type.
fn change(op: Handle) -> Res<Change> {
    match op {
        MPI_REPLACE => Ok(Change::Replace),
        MPI_NO_OP => Ok(Change::Keep),
        op => known(op).map(Change::Combine).ok_or_else(|| {
            bad_op("an operator of the program in a one-sided call (hint: only predefined ones)")
        }),
    }
}

/// Whether a program is trusted that no other lock is in the way. A lock that is checked has to be
/// known.
fn trusts(win: &Win, assert: c_int) -> bool {
    assert & MPI_MODE_NOCHECK != 0 && !win.raw.is_checked()
}

/// An operator that does not fit its data is an error of the operator.
fn of_op(e: osier::Error) -> Fail {
    Fail::from(e).class(MPI_ERR_TYPE, MPI_ERR_OP)
}

/// Memory of an origin: address, count, type.
type Local<N> = (Address, N, Handle);
/// The target's side: rank, displacement, count, type.
type Remote<N> = (c_int, Aint, N, Handle);

/// Writes to a target. `now`: it is complete when this returns; else with the next flush.
#[inline(always)]
fn write<N: Int>(from: Local<N>, to: Remote<N>, on: Handle, now: bool) -> Res {
    let win = win(on)?;
    if let Some(both) = plain(win, from, to) {
        // SAFETY: C's contract: the origin's buffer is readable; both sides are apart.
        unsafe { copy_contiguous(both.own, both.there, both.bytes) };
        return Ok(());
    }
    any_write(win, from, to, now)
}

#[inline(never)]
fn any_write<N: Int>(win: &Win, from: Local<N>, to: Remote<N>, now: bool) -> Res {
    let (rank, disp, n, ty) = to;
    let Some(target) = target(win, rank, disp, n, ty)? else {
        return Ok(());
    };
    let from = view(from.0, from.1, from.2)?;
    let (rank, target) = (target.rank, &target.view);
    from.lend(|from| match now {
        // SAFETY: C's contract: the origin's buffer is readable.
        true => unsafe { win.raw.put(from.as_raw(), rank, target) },
        // SAFETY: C's contract: the origin's buffer is readable.
        false => unsafe { win.raw.put_later(from.as_raw(), rank, target) },
    })?;
    Ok(())
}

#[inline(always)]
fn read<N: Int>(to: Local<N>, from: Remote<N>, on: Handle) -> Res {
    let win = win(on)?;
    if let Some(both) = plain(win, to, from) {
        // SAFETY: C's contract: the origin's buffer is writable; both sides are apart.
        unsafe { copy_contiguous(both.there, both.own, both.bytes) };
        return Ok(());
    }
    any_read(win, to, from)
}

#[inline(never)]
fn any_read<N: Int>(win: &Win, to: Local<N>, from: Remote<N>) -> Res {
    let (rank, disp, n, ty) = from;
    let Some(target) = target(win, rank, disp, n, ty)? else {
        return Ok(());
    };
    let mut to = view_mut(to.0, to.1, to.2)?;
    // SAFETY: C's contract: the origin's buffer is writable, and nobody else uses it.
    to.lend_mut(|to| unsafe { win.raw.get(to.as_raw(), target.rank, &target.view) })?;
    Ok(())
}

/// Updates a target's elements; what was there goes to `before`.
fn update<N: Int>(
    given: Local<N>,
    before: Option<Local<N>>,
    at: Remote<N>,
    op: Handle,
    on: Handle,
) -> Res {
    let win = win(on)?;
    let (rank, disp, n, ty) = at;
    let ty = operand(ty, op);
    let change = change(op)?;
    let Some(target) = target(win, rank, disp, n, ty)? else {
        return Ok(());
    };
    let mut before = match before {
        Some((at, n, ty)) => Some(view_mut(at, n, ty)?),
        None => None,
    };
    let nothing = RawView::empty();
    let given = match change {
        Change::Keep => None,
        _ => Some(view(given.0, given.1, given.2)?),
    };
    let raw = |before: Option<&RawView>, given: &RawView| {
        // SAFETY: C's contract: buffers of the origin are readable and writable.
        unsafe { (win.raw).update(change, given, target.rank, &target.view, before) }
    };
    let with = |given: &RawView, before: Option<&mut MemoryMut>| match before {
        Some(before) => before.lend_mut(|before| raw(Some(before.as_raw()), given)),
        None => raw(None, given),
    };
    let updated = match &given {
        Some(given) => given.lend(|given| with(given.as_raw(), before.as_mut())),
        None => with(&nothing, before.as_mut()),
    };
    updated.map_err(of_op)
}

/// Updates one element of a predefined type where the window is used by address; `None`: not so.
#[inline(always)]
fn fetch(
    (given, before): (Address, Address),
    ty: Handle,
    (rank, disp): (c_int, Aint),
    op: Handle,
    on: Handle,
) -> Option<osier::Result<()>> {
    let element = ctype(operand(ty, op)).ok()?.element.as_ref()?;
    // Whatever is no memory of the host is looked at by the other way.
    (is_of_the_host(before) && is_of_the_host(given)).then_some(())?;
    let part = short(win(on).ok()?, rank)?;
    let element = (element.basic, element.bytes);
    // SAFETY: C's contract: an element is readable and writable at the origin.
    unsafe { part.update(change(op).ok()?, element, disp, (given, before)) }
}

/// An element in the lower bytes of a word.
#[inline]
fn word(at: *const u8, bytes: usize) -> Res<u64> {
    if at.is_null() {
        return Err(argument("a null pointer for an element"));
    }
    let mut word = 0u64;
    // SAFETY: C's contract: an element is readable there; it has at most eight bytes.
    unsafe { copy_contiguous(at, (&raw mut word).cast(), bytes.min(8)) };
    Ok(word)
}

#[inline(always)]
fn swap(
    new: *const u8,
    expected: *const u8,
    result: *mut u8,
    ty: Handle,
    (rank, disp): (c_int, Aint),
    on: Handle,
) -> Res {
    let win = win(on)?;
    if rank == MPI_PROC_NULL {
        return Ok(());
    }
    // C's characters are small numbers, as in reductions.
    let element = ctype(operand(ty, MPI_SUM))?.element;
    let fits = |e: &Element| is_swapped(e.basic) && matches!(e.bytes, 1 | 2 | 4 | 8);
    let Some(Element { bytes, .. }) = element.filter(fits) else {
        return Err(Fail::new(
            MPI_ERR_TYPE,
            "MPI_Compare_and_swap of a type that is no integer, logical or byte of at most 8 bytes",
        ));
    };
    let (new, expected) = (word(new, bytes)?, word(expected, bytes)?);
    let swapped =
        short(win, rank).and_then(|part| part.compare_and_swap((disp, bytes), expected, new));
    let before = match swapped {
        Some(before) => before?,
        None => {
            let rank = checked(win, rank)?;
            allow(win, rank)?;
            let at = (offset(win, rank, disp)?, bytes);
            win.raw.compare_and_swap(rank, at, expected, new)?
        }
    };
    crate::fail::place(result)?;
    // SAFETY: C's contract: an element is writable there.
    unsafe { copy_contiguous((&raw const before).cast(), result, bytes) };
    Ok(())
}

fn is_swapped(basic: osier::datatype::Basic) -> bool {
    use osier::datatype::BasicKind as K;
    matches!(
        basic.kind(),
        K::Signed | K::Unsigned | K::Boolean | K::Logical | K::Opaque
    )
}

/// Hands out the request of an access, which is complete.
fn complete_request(on: Handle, request: *mut Handle) -> Res {
    let handle = complete::sent().unwrap_or_else(|| {
        let (work, on) = (Work::Sent, On::Win(on));
        REQUESTS.insert(Pending { work, on })
    });
    put(request, handle)
}

/// The ranks of a group, as ranks of a window.
fn ranks(win: &Win, of: Handle) -> Res<Vec<usize>> {
    Ok(win.raw.ranks_of(&group(of)?)?)
}

/// Changes the epochs of a window, or asks them.
fn with_epochs<R>(win: &Win, f: impl FnOnce(&mut Epochs) -> Res<R>) -> Res<R> {
    let mut epochs = lock(&win.epochs);
    epochs.settle(&win.quick);
    let done = f(&mut epochs);
    epochs.note(&win.quick);
    done
}

fn known_assert(assert: c_int, allowed: c_int) -> Res {
    match assert & !allowed {
        0 => Ok(()),
        _ => Err(Fail::new(MPI_ERR_ASSERT, format!("assertion {assert}"))),
    }
}

const ASSERTS: c_int =
    MPI_MODE_NOCHECK | MPI_MODE_NOSTORE | MPI_MODE_NOPUT | MPI_MODE_NOPRECEDE | MPI_MODE_NOSUCCEED;

#[inline(always)]
fn flush(rank: c_int, on: Handle) -> Res {
    let win = win(on)?;
    if let Some(part) = short(win, rank)
        && part.flush()
    {
        return Ok(());
    }
    any_flush(win, rank)
}

#[inline(never)]
fn any_flush(win: &Win, rank: c_int) -> Res {
    if rank == MPI_PROC_NULL {
        return Ok(());
    }
    let rank = checked(win, rank)?;
    if win.quick.look(rank).is_none() {
        with_epochs(win, |epochs| epochs.flush(Some(rank)))?;
    }
    Ok(win.raw.flush(rank)?)
}

/// A rank and its part, if that is used by address.
#[inline(always)]
fn addressed(win: &Win, rank: c_int) -> Option<(usize, ByAddress<'_>)> {
    let rank = usize::try_from(rank).ok()?;
    Some((rank, win.raw.by_address(rank)?))
}

#[inline(never)]
fn any_lock(win: &Win, kind: c_int, rank: c_int, assert: c_int) -> Res {
    let hold = match kind {
        MPI_LOCK_SHARED => Hold::Shared,
        MPI_LOCK_EXCLUSIVE => Hold::Exclusive,
        _ => return Err(Fail::new(MPI_ERR_LOCKTYPE, format!("lock type {kind}"))),
    };
    known_assert(assert, ASSERTS)?;
    if rank == MPI_PROC_NULL {
        return Ok(());
    }
    let rank = checked(win, rank)?;
    let held = match hold {
        _ if trusts(win, assert) => Held::Unchecked,
        Hold::Shared => Held::Shared,
        Hold::Exclusive => Held::Exclusive,
    };
    // Before it is waited for: another thread may not lock it, too.
    if !win.quick.lock(rank, held, !has_threads()) {
        with_epochs(win, |epochs| {
            epochs.may_lock(rank)?;
            epochs.locked(rank, held);
            Ok(())
        })?;
    }
    match held {
        Held::Unchecked => Ok(()),
        _ => take_lock(win, rank, hold),
    }
}

/// Takes a lock that the window notes already.
#[inline(never)]
fn take_lock(win: &Win, rank: usize, hold: Hold) -> Res {
    let Err(e) = win.raw.lock(rank, hold) else {
        return Ok(());
    };
    with_epochs(win, |epochs| epochs.unlock(rank))?;
    Err(e.into())
}

#[inline(never)]
fn any_unlock(win: &Win, rank: c_int) -> Res {
    if rank == MPI_PROC_NULL {
        return Ok(());
    }
    let rank = checked(win, rank)?;
    let held = match win.quick.unlock(rank, !has_threads()) {
        Some(held) => held,
        None => with_epochs(win, |epochs| epochs.unlock(rank))?,
    };
    give_back(win, rank, held)
}

/// Gives a lock back that the window does not note any more.
#[inline(never)]
fn give_back(win: &Win, rank: usize, held: Held) -> Res {
    match held {
        Held::Unchecked => win.raw.flush(rank)?,
        Held::Shared => win.raw.unlock(rank, Hold::Shared)?,
        Held::Exclusive => win.raw.unlock(rank, Hold::Exclusive)?,
    }
    Ok(())
}

fn flush_all(on: Handle) -> Res {
    let win = win(on)?;
    with_epochs(win, |epochs| epochs.flush(None))?;
    Ok(win.raw.flush_all()?)
}

mpi! {
    hot fn MPI_Put, MPI_Put_c<N>(
        buf: Address, n: N, ty: Handle, rank: c_int, disp: Aint, at_n: N, at_ty: Handle, on: Handle
    ) on On::Win(on); {
        write((buf, n, ty), (rank, disp, at_n, at_ty), on, false)?;
    }

    hot fn MPI_Get, MPI_Get_c<N>(
        buf: Address, n: N, ty: Handle, rank: c_int, disp: Aint, at_n: N, at_ty: Handle, on: Handle
    ) on On::Win(on); {
        read((buf, n, ty), (rank, disp, at_n, at_ty), on)?;
    }

    fn MPI_Rput, MPI_Rput_c<N>(
        buf: Address, n: N, ty: Handle, rank: c_int, disp: Aint, at_n: N, at_ty: Handle, on: Handle,
        request: *mut Handle
    ) on On::Win(on); {
        write((buf, n, ty), (rank, disp, at_n, at_ty), on, true)?;
        complete_request(on, request)?;
    }

    fn MPI_Rget, MPI_Rget_c<N>(
        buf: Address, n: N, ty: Handle, rank: c_int, disp: Aint, at_n: N, at_ty: Handle, on: Handle,
        request: *mut Handle
    ) on On::Win(on); {
        read((buf, n, ty), (rank, disp, at_n, at_ty), on)?;
        complete_request(on, request)?;
    }

    fn MPI_Accumulate, MPI_Accumulate_c<N>(
        buf: Address, n: N, ty: Handle, rank: c_int, disp: Aint, at_n: N, at_ty: Handle,
        op: Handle, on: Handle
    ) on On::Win(on); {
        update((buf, n, ty), None, (rank, disp, at_n, at_ty), op, on)?;
    }

    fn MPI_Raccumulate, MPI_Raccumulate_c<N>(
        buf: Address, n: N, ty: Handle, rank: c_int, disp: Aint, at_n: N, at_ty: Handle,
        op: Handle, on: Handle, request: *mut Handle
    ) on On::Win(on); {
        update((buf, n, ty), None, (rank, disp, at_n, at_ty), op, on)?;
        complete_request(on, request)?;
    }

    fn MPI_Get_accumulate, MPI_Get_accumulate_c<N>(
        buf: Address, n: N, ty: Handle, result: Address, result_n: N, result_ty: Handle,
        rank: c_int, disp: Aint, at_n: N, at_ty: Handle, op: Handle, on: Handle
    ) on On::Win(on); {
        let before = Some((result, result_n, result_ty));
        update((buf, n, ty), before, (rank, disp, at_n, at_ty), op, on)?;
    }

    fn MPI_Rget_accumulate, MPI_Rget_accumulate_c<N>(
        buf: Address, n: N, ty: Handle, result: Address, result_n: N, result_ty: Handle,
        rank: c_int, disp: Aint, at_n: N, at_ty: Handle, op: Handle, on: Handle,
        request: *mut Handle
    ) on On::Win(on); {
        let before = Some((result, result_n, result_ty));
        update((buf, n, ty), before, (rank, disp, at_n, at_ty), op, on)?;
        complete_request(on, request)?;
    }

    hot fn MPI_Fetch_and_op(
        buf: Address, result: Address, ty: Handle, rank: c_int, disp: Aint, op: Handle, on: Handle
    ) on On::Win(on); {
        let one: Count = 1;
        if let Some(done) = fetch((buf, result), ty, (rank, disp), op, on) {
            return done.map_err(of_op);
        }
        update((buf, one, ty), Some((result, one, ty)), (rank, disp, one, ty), op, on)?;
    }

    hot fn MPI_Compare_and_swap(
        new: *const u8, expected: *const u8, result: *mut u8, ty: Handle, rank: c_int, disp: Aint,
        on: Handle
    ) on On::Win(on); {
        swap(new, expected, result, ty, (rank, disp), on)?;
    }

    fn MPI_Win_fence(assert: c_int, on: Handle) on On::Win(on); {
        known_assert(assert, ASSERTS)?;
        let win = win(on)?;
        with_epochs(win, |epochs| epochs.fence(assert))?;
        win.raw.fence()?;
    }

    fn MPI_Win_start(of: Handle, assert: c_int, on: Handle) on On::Win(on); {
        known_assert(assert, ASSERTS)?;
        let win = win(on)?;
        let targets = ranks(win, of)?;
        with_epochs(win, |epochs| epochs.start(targets.clone()))?;
        win.raw.start(&targets)?;
    }

    fn MPI_Win_complete(on: Handle) on On::Win(on); {
        let win = win(on)?;
        let targets = with_epochs(win, |epochs| epochs.complete())?;
        win.raw.complete(&targets)?;
    }

    fn MPI_Win_post(of: Handle, assert: c_int, on: Handle) on On::Win(on); {
        known_assert(assert, ASSERTS)?;
        let win = win(on)?;
        let origins = ranks(win, of)?;
        with_epochs(win, |epochs| epochs.post(origins.clone()))?;
        win.raw.post(&origins)?;
    }

    fn MPI_Win_wait(on: Handle) on On::Win(on); {
        let win = win(on)?;
        let origins = with_epochs(win, |epochs| epochs.posted().cloned())?;
        win.raw.wait(&origins)?;
        with_epochs(win, |epochs| {
            epochs.exposed_no_more();
            Ok(())
        })?;
    }

    fn MPI_Win_test(on: Handle, flag: *mut c_int) on On::Win(on); {
        let win = win(on)?;
        let ended = with_epochs(win, |epochs| {
            let ended = win.raw.test(epochs.posted()?)?;
            if ended {
                epochs.exposed_no_more();
            }
            Ok(ended)
        })?;
        put(flag, ended.into())?;
    }

    hot fn MPI_Win_lock(kind: c_int, rank: c_int, assert: c_int, on: Handle) on On::Win(on); {
        let win = win(on)?;
        if kind == MPI_LOCK_EXCLUSIVE && assert == 0
            && let Some((rank, part)) = addressed(win, rank)
            // Before it is waited for: another thread may not lock it, too.
            && win.quick.lock(rank, Held::Exclusive, !has_threads())
        {
            return match part.lock() {
                true => Ok(()),
                false => take_lock(win, rank, Hold::Exclusive),
            };
        }
        any_lock(win, kind, rank, assert)?;
    }

    hot fn MPI_Win_unlock(rank: c_int, on: Handle) on On::Win(on); {
        let win = win(on)?;
        if let Some((rank, part)) = addressed(win, rank)
            && let Some(held) = win.quick.unlock(rank, !has_threads())
        {
            return match held == Held::Exclusive && part.unlock() {
                true => Ok(()),
                false => give_back(win, rank, held),
            };
        }
        any_unlock(win, rank)?;
    }

    fn MPI_Win_lock_all(assert: c_int, on: Handle) on On::Win(on); {
        known_assert(assert, ASSERTS)?;
        let win = win(on)?;
        let checked = !trusts(win, assert);
        with_epochs(win, |epochs| epochs.lock_all(checked))?;
        if checked {
            win.raw.lock_all();
        }
    }

    fn MPI_Win_unlock_all(on: Handle) on On::Win(on); {
        let win = win(on)?;
        match with_epochs(win, |epochs| epochs.unlock_all())? {
            true => win.raw.unlock_all()?,
            false => win.raw.flush_all()?,
        }
    }

    hot fn MPI_Win_flush(rank: c_int, on: Handle) on On::Win(on); {
        flush(rank, on)?;
    }

    fn MPI_Win_flush_all(on: Handle) on On::Win(on); {
        flush_all(on)?;
    }

    hot fn MPI_Win_flush_local(rank: c_int, on: Handle) on On::Win(on); {
        flush(rank, on)?;
    }

    fn MPI_Win_flush_local_all(on: Handle) on On::Win(on); {
        flush_all(on)?;
    }

    fn MPI_Win_sync(on: Handle) on On::Win(on); {
        win(on)?;
        full_fence();
    }
}
