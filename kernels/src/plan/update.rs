//! Updates of elements by atomics: `there = there op given`, one launch.
//!
//! Elements are numbered along the packed stream, as in reductions; a thread has one at a time.
//!
//! # Invariants
//! 1. What [`Operator::combine`] gives, a kernel gives, bit for bit but for the bits of a NaN
//!    that arithmetic makes.
//! 2. A range holds whole elements, and those that are updated lie at multiples of their size.

use super::Plan;
use super::arguments::THREADS;
use super::reduction::{flattened, number_of};
use super::transfer::{CopyArgument, PlacedPlan, widest};
use osier_datatype::{Basic, BasicKind, Element, Operator, TypeError};
use std::ops::Range;

/// What becomes of an element there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicChange {
    /// It stays: what is there is told, each element whole.
    Keep,
    /// The given one takes its place.
    Replace,
    /// The given one takes its place, if its bytes are these, in the lower bytes of a word.
    CompareSwap(u64),
    /// Both are combined.
    Combine(Operator),
}

/// `osier_update`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct UpdateArgument {
    /// From the given elements to those that are updated.
    pub sides: CopyArgument,
    /// Where what was there goes, packed; 0: nowhere.
    pub before: u64,
    /// Of a compare-and-swap.
    pub expected: u64,
    /// Number of the operation, as the kernel counts.
    pub operation: u32,
    /// Bytes of the widest aligned access inside of a given element.
    pub access: u32,
}

/// One launch.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// The kernel's argument.
    pub argument: UpdateArgument,
    /// The kernel's name.
    pub kernel: &'static str,
    /// Thread blocks with work to do; any smaller grid does it, too.
    pub blocks: u64,
}

/// The kernel that makes a change of elements by atomics, and its number of the operation; none:
/// there is no atomic for them.
pub fn kernel_of(change: AtomicChange, element: Element) -> Option<(&'static str, u32)> {
    let Element::Basic(basic) = element else {
        return None;
    };
    // Sums of complex numbers are those of their parts, which an atomic of both is not: so
    // nothing else of them is one.
    if basic.kind() == BasicKind::Complex {
        return None;
    }
    let of_bits = |operation| {
        let kernel = match basic.size() {
            1 => "osier_update_int1",
            2 => "osier_update_int2",
            4 => "osier_update_int4",
            8 => "osier_update_int8",
            _ => return None,
        };
        Some((kernel, operation))
    };
    let operator = match change {
        AtomicChange::Keep => return of_bits(14),
        AtomicChange::Replace => return of_bits(12),
        AtomicChange::CompareSwap(_) => return of_bits(13),
        AtomicChange::Combine(operator) => operator,
    };
    if !operator.is_defined_for(element) {
        return None;
    }
    match operator {
        Operator::BitAnd => return of_bits(9),
        Operator::BitOr => return of_bits(10),
        Operator::BitXor => return of_bits(11),
        _ => {}
    }
    let basic = basic.representation();
    let operation = number_of(operator, basic)?;
    match (basic, basic.kind()) {
        (Basic::F16, _) => Some(("osier_update_f16", operation)),
        (Basic::BF16, _) => Some(("osier_update_bf16", operation)),
        (Basic::F32, _) => Some(("osier_update_f32", operation)),
        (Basic::F64, _) => Some(("osier_update_f64", operation)),
        (_, BasicKind::Float) => None,
        _ => of_bits(operation),
    }
}

impl Update {
    /// The launch that updates the elements in the packed bytes `range`; none if these are none.
    /// What was there goes to the address `before`, if that is one, from the range's first byte
    /// on.
    ///
    /// # Errors
    /// There is no atomic for the elements, or they lie at no multiples of their size; a range
    /// that cuts one.
    pub fn new(
        change: AtomicChange,
        element: Element,
        (given, there): (PlacedPlan<'_>, PlacedPlan<'_>),
        before: Option<u64>,
        range: Range<u64>,
    ) -> Result<Option<Update>, TypeError> {
        let refused = |argument, value: String, hint: String| TypeError::Argument {
            operation: "update elements by atomics",
            argument,
            value,
            hint,
        };
        let (kernel, operation) = kernel_of(change, element).ok_or_else(|| {
            let hint = "at most 8 bytes, and one number".to_owned();
            refused("element", element.to_string(), hint)
        })?;
        let size = element.size() as u64;
        if !range.start.is_multiple_of(size) || !range.end.is_multiple_of(size) {
            let hint = format!("multiples of {size}, the size of {element}");
            let value = format!("{} to {}", range.start, range.end);
            return Err(refused("range of packed bytes", value, hint));
        }
        if range.is_empty() {
            return Ok(None);
        }
        if widest(there.layout() | there.plan.granularity as u64) < element.size() {
            let hint = format!("elements at multiples of {size} bytes");
            return Err(refused("layout", format!("{:#x}", there.layout()), hint));
        }
        let flat = Plan::flat(range.end + super::WIDEST as u64);
        let (given, there) = (flattened(given, &flat), flattened(there, &flat));
        let unit = element.size();
        let aligned = given.layout() | given.plan.granularity as u64 | size;
        let argument = UpdateArgument {
            sides: CopyArgument {
                from: given.side(unit),
                to: there.side(unit),
                start: range.start,
                end: range.end,
                wide: u32::from(range.end / size >= 1 << 31),
                chunk: 1,
            },
            before: before.unwrap_or(0),
            expected: match change {
                AtomicChange::CompareSwap(expected) => expected,
                _ => 0,
            },
            operation,
            access: widest(aligned) as u32,
        };
        Ok(Some(Update {
            argument,
            kernel,
            blocks: ((range.end - range.start) / size).div_ceil(u64::from(THREADS)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel that may be asked for is written in a source, and every number of at most
    /// eight bytes that devices know has one for each of its operators.
    #[test]
    fn kernels_exist() {
        let ptx = crate::ptx::all();
        assert_eq!(size_of::<UpdateArgument>(), size_of::<CopyArgument>() + 24);
        let mut found = 0;
        for basic in Basic::ALL.iter().copied() {
            let element = Element::Basic(basic);
            let mut changes = vec![
                AtomicChange::Keep,
                AtomicChange::Replace,
                AtomicChange::CompareSwap(0),
            ];
            let defined = |operator: &Operator| operator.is_defined_for(element);
            let operators = Operator::ALL.into_iter().filter(defined);
            changes.extend(operators.map(AtomicChange::Combine));
            for change in changes {
                let whole = matches!(basic.size(), 1 | 2 | 4 | 8);
                let expected = whole && basic.kind() != BasicKind::Complex;
                let kernel = kernel_of(change, element);
                assert_eq!(kernel.is_some(), expected, "{change:?} of {basic}");
                if let Some((name, _)) = kernel {
                    assert!(ptx.contains(&format!(".visible .entry {name}(")), "{name}");
                    found += 1;
                }
            }
        }
        assert!(found > 200, "{found}");
    }
}
