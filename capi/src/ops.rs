//! Operators of reductions, those of C among them.
//!
//! A function of C works on elements as they lie in memory, `inout[i] = in[i] op inout[i]`;
//! the library combines packed elements, `left[i] = left[i] op right[i]`. Elements without
//! gaps are the same either way.

use crate::abi::*;
use crate::buffers::{view_mut_of, view_of};
use crate::call::{On, mpi};
use crate::fail::{Fail, Int, Res, argument, bad_op, count, get, put};
use crate::held;
use crate::leaks;
use crate::objects::{OPS, ctype};
use crate::on_host::{OnHost, Room};
use osier::operators::{Reduction, packed_function};
use osier::{Layout, Op};
use osier_engine::check::Check;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

/// A function of C's.
pub struct Function {
    address: usize,
    commutes: bool,
    /// It takes its length as `MPI_Count`.
    large: bool,
}

const PREDEFINED: [(Handle, Op); 12] = [
    (MPI_SUM, Op::Sum),
    (MPI_MIN, Op::Min),
    (MPI_MAX, Op::Max),
    (MPI_PROD, Op::Product),
    (MPI_BAND, Op::BitAnd),
    (MPI_BOR, Op::BitOr),
    (MPI_BXOR, Op::BitXor),
    (MPI_LAND, Op::LogicalAnd),
    (MPI_LOR, Op::LogicalOr),
    (MPI_LXOR, Op::LogicalXor),
    (MPI_MINLOC, Op::MinLoc),
    (MPI_MAXLOC, Op::MaxLoc),
];

type Table = [Option<Arc<dyn Reduction>>; 0x20];

fn predefined(handle: Handle) -> Option<&'static Arc<dyn Reduction>> {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table: Table = Default::default();
        for (handle, op) in PREDEFINED {
            table[handle & 0x1f] = Some(Arc::new(op));
        }
        table
    });
    if handle & !0x1f != 0x20 {
        return None;
    }
    table[handle & 0x1f].as_ref()
}

/// A predefined operator, of calls that wait.
#[inline]
pub fn known(handle: Handle) -> Option<Op> {
    const TABLE: [Option<Op>; 0x20] = {
        let mut table = [None; 0x20];
        let mut at = 0;
        while at < PREDEFINED.len() {
            table[PREDEFINED[at].0 & 0x1f] = Some(PREDEFINED[at].1);
            at += 1;
        }
        table
    };
    if handle & !0x1f != 0x20 {
        return None;
    }
    TABLE[handle & 0x1f]
}

fn no_op(handle: Handle) -> Fail {
    bad_op(match handle {
        MPI_OP_NULL => "MPI_OP_NULL in place of an operator",
        MPI_REPLACE | MPI_NO_OP => "an operator of one-sided calls in a reduction",
        _ => "a handle that is no operator (hint: it was freed, or never set)",
    })
}

/// The operator of a handle, for data of a type.
#[inline]
pub fn reduction(handle: Handle, ty: Handle) -> Res<Arc<dyn Reduction>> {
    if let Some(op) = predefined(handle) {
        return Ok(op.clone());
    }
    let function = OPS.get(handle).ok_or_else(|| no_op(handle))?.clone();
    let layout = ctype(ty)?.committed()?.clone();
    let commutes = function.commutes;
    let elements = Elements { layout, ty };
    Ok(Arc::new(packed_function(
        &elements.layout.clone(),
        commutes,
        move |left: &mut [u8], right: &[u8]| function.combine(&elements, left, right),
    )))
}

/// What the type of an operand means to an operator: to the predefined ones, C's plain
/// characters are small numbers, as programs of other libraries expect. The standard leaves
/// `MPI_CHAR` out (MPI 5.0, section 6.9.2).
#[inline]
pub fn operand(ty: Handle, op: Handle) -> Handle {
    match ty {
        MPI_CHAR if op & !0x1f == 0x20 && c_char::MIN < 0 => MPI_SIGNED_CHAR,
        MPI_CHAR if op & !0x1f == 0x20 => MPI_UNSIGNED_CHAR,
        MPI_BYTE => bytes(op),
        _ => ty,
    }
}

/// Sums, minima and maxima of bytes, which the standard leaves out, too, are those of
/// unsigned numbers: programs make such calls. Checks name them.
#[cold]
fn bytes(op: Handle) -> Handle {
    let name = match op {
        MPI_SUM => "MPI_SUM",
        MPI_MIN => "MPI_MIN",
        MPI_MAX => "MPI_MAX",
        _ => return MPI_BYTE,
    };
    if let Some(checks) = leaks::checks().filter(|checks| checks.has(Check::Collectives)) {
        let site = checks.site(Location::caller());
        let text = format!(
            "{name} of MPI_BYTE, which MPI does not define (MPI 5.0, section 6.9.2): it combines unsigned numbers of 8 bits here\n  called at {site}\n  (hint: MPI_UINT8_T is defined everywhere)\n"
        );
        checks.report(Check::Collectives, text);
    }
    MPI_UINT8_T
}

struct Elements {
    layout: Layout,
    ty: Handle,
}

impl Elements {
    fn room(&self, n: usize, packed: &[u8]) -> Room {
        let mut room = Room::new(&self.layout, n);
        let origin = room.origin();
        // SAFETY: the room spans all instances; `packed` has them all.
        unsafe {
            self.layout
                .unpack_raw(origin, n, 0..packed.len(), packed.as_ptr())
        };
        room
    }
}

impl Function {
    fn combine(&self, elements: &Elements, left: &mut [u8], right: &[u8]) {
        let unit = elements.layout.size().max(1);
        // The small form counts in ints.
        let most = (if self.large {
            usize::MAX
        } else {
            c_int::MAX as usize
        })
        .min(1 << 30);
        let step = unit.saturating_mul(most / unit.max(1)).max(unit);
        for (left, right) in left.chunks_mut(step).zip(right.chunks(step)) {
            let n = left.len() / unit;
            let (mut given, mut inout) = (elements.room(n, left), elements.room(n, right));
            self.run(given.origin(), inout.origin(), n, elements.ty);
            // SAFETY: the room spans all instances, and `left` has room for them packed.
            unsafe {
                elements
                    .layout
                    .pack_raw(inout.origin(), n, 0..left.len(), left.as_mut_ptr())
            };
        }
    }

    /// As [`Function::run`], for any number of elements.
    fn run_all(&self, given: *mut u8, inout: *mut u8, n: usize, layout: &Layout, ty: Handle) {
        let most = if self.large { usize::MAX } else { 1 << 30 };
        let mut done = 0;
        while done < n {
            let now = (n - done).min(most);
            let at = layout.extent().wrapping_mul(done as isize);
            self.run(
                given.wrapping_offset(at),
                inout.wrapping_offset(at),
                now,
                ty,
            );
            done += now;
        }
    }

    /// `inout[i] = given[i] op inout[i]`.
    fn run(&self, given: *mut u8, inout: *mut u8, n: usize, mut ty: Handle) {
        type Small = unsafe extern "C" fn(*mut u8, *mut u8, *mut c_int, *mut Handle);
        type Large = unsafe extern "C" fn(*mut u8, *mut u8, *mut Count, *mut Handle);
        if self.large {
            // SAFETY: the program gave this address as that of such a function.
            let function = unsafe { std::mem::transmute::<usize, Large>(self.address) };
            // SAFETY: as above; both have so many elements.
            unsafe { function(given, inout, &mut (n as Count), &mut ty) };
        } else {
            // SAFETY: as above.
            let function = unsafe { std::mem::transmute::<usize, Small>(self.address) };
            // SAFETY: as above.
            unsafe { function(given, inout, &mut (n as c_int), &mut ty) };
        }
    }
}

fn create(address: usize, commute: c_int, large: bool, op: *mut Handle) -> Res {
    if address == 0 {
        return Err(argument("a null pointer for a function"));
    }
    let function = Function {
        address,
        commutes: commute != 0,
        large,
    };
    put(op, OPS.insert(Arc::new(function)))
}

mpi! {
    fn MPI_Op_create(function: usize, commute: c_int, op: *mut Handle) on On::Own; {
        create(function, commute, false, op)?;
    }

    fn MPI_Op_create_c(function: usize, commute: c_int, op: *mut Handle) on On::Own; {
        create(function, commute, true, op)?;
    }

    fn MPI_Op_free(op: *mut Handle) on On::Own; {
        let handle = get(op)?;
        if OPS.remove(handle).is_none() {
            return Err(no_op(handle));
        }
        put(op, MPI_OP_NULL)?;
    }

    fn MPI_Op_commutative(op: Handle, commute: *mut c_int) on On::Own; {
        let commutes = match OPS.get(op) {
            Some(function) => function.commutes,
            None if matches!(op, MPI_NO_OP | MPI_REPLACE) => false,
            None if predefined(op).is_some() => true,
            None => return Err(no_op(op)),
        };
        put(commute, c_int::from(commutes))?;
    }

    fn MPI_Reduce_local, MPI_Reduce_local_c<N>(given: *mut u8, inout: *mut u8, n: N, ty: Handle, op: Handle) on On::Own; {
        if given.addr() == MPI_IN_PLACE || inout.addr() == MPI_IN_PLACE {
            return Err(Fail::new(MPI_ERR_BUFFER, "MPI_IN_PLACE, where both operands have a place"));
        }
        if given == inout && n.wide() > 0 {
            return Err(Fail::new(MPI_ERR_BUFFER, "one buffer for both operands"));
        }
        let ty = operand(ty, op);
        let n = count(n)?;
        let layout = ctype(ty)?.committed()?;
        held::reads(&view_of(given, n, layout)?)?;
        held::writes(&view_mut_of(inout, n, layout)?)?;
        let (left, right) = (OnHost::read(given, n, layout)?, OnHost::read(inout, n, layout)?);
        if let Some(function) = OPS.get(op) {
            // It knows its elements as they lie, gaps and all.
            function.run_all(left.at(), right.at(), n, layout, ty);
            return right.give_back(inout, n, layout);
        }
        let op = reduction(op, ty)?;
        let mut both = view_mut_of(right.at(), n, layout)?;
        osier::operators::reduce_local(&view_of(left.at(), n, layout)?, &mut both, &op)
            .map_err(|e| Fail::from(e).class(MPI_ERR_TYPE, MPI_ERR_OP))?;
        right.give_back(inout, n, layout)?;
    }
}
