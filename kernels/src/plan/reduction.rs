//! Reductions of two layouts in one launch: `left = left op right`.
//!
//! Elements are numbered along the packed stream, as words are in copies, and found chunk
//! by chunk. Short ones go as many at once as are 16 bytes, where both sides suit that.
//!
//! # Invariants
//! 1. What [`Operator::combine`] takes, a kernel does, bit for bit but for the
//!    bits of a NaN that arithmetic makes; what it refuses is refused here.
//! 2. A range holds whole elements.

use super::arguments::{THREADS, chunks};
use super::transfer::{CopyArgument, PlacedPlan, widest};
use super::{Plan, Shape, WIDEST};
use osier_datatype::{Basic, BasicKind, Element, Operator, TypeError};
use std::ops::Range;

/// `osier_reduction`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ReductionArgument {
    /// From the right operand to the left one, which gets the result.
    pub sides: CopyArgument,
    /// Number of the operation, as the kernel counts.
    pub operation: u32,
    /// Bytes of the widest aligned access inside of an element.
    pub access: u32,
    /// Bytes of a pair's value.
    pub value_bytes: u32,
    /// Its kind of number.
    pub value_kind: u32,
    /// Bytes of a pair's index.
    pub index_bytes: u32,
    /// Its kind of number.
    pub index_kind: u32,
}

/// One launch.
#[derive(Debug, Clone, Copy)]
pub struct Reduction {
    /// The kernel's argument.
    pub argument: ReductionArgument,
    /// The kernel's name.
    pub kernel: &'static str,
    /// Thread blocks with work to do; any smaller grid does it, too.
    pub blocks: u64,
}

/// The kernels of one type: element by element, and by words of 16 bytes if elements are
/// so short that a place each would cost too much.
#[derive(Clone, Copy)]
struct Pick {
    bytes: usize,
    operation: u32,
    any: &'static str,
    words: Option<&'static str>,
}

macro_rules! pick {
    ($bytes:literal, $operation:expr, $stem:literal) => {
        Pick {
            bytes: $bytes,
            operation: $operation,
            any: concat!("osier_reduce_", $stem, "_any"),
            words: Some(concat!("osier_reduce_", $stem, "_w16")),
        }
    };
    ($bytes:literal, $operation:expr, $stem:literal, alone) => {
        Pick {
            bytes: $bytes,
            operation: $operation,
            any: concat!("osier_reduce_", $stem),
            words: None,
        }
    };
}

/// Operations on bits, by the width of a word.
const BITS: [(usize, &str); 3] = [
    (16, "osier_reduce_bits_w16"),
    (4, "osier_reduce_bits_w4"),
    (1, "osier_reduce_bits_w1"),
];

const PAIR: &str = "osier_reduce_pair";

/// The number of an operation on numbers, as kernels count; none: it is one on bits, or on pairs.
pub(super) fn number_of(operator: Operator, basic: Basic) -> Option<u32> {
    let unsigned = basic.kind() == BasicKind::Unsigned;
    match operator {
        Operator::Sum => Some(0),
        Operator::Product => Some(1),
        Operator::Min if unsigned => Some(4),
        Operator::Max if unsigned => Some(5),
        Operator::Min => Some(2),
        Operator::Max => Some(3),
        Operator::LogicalAnd => Some(6),
        Operator::LogicalOr => Some(7),
        Operator::LogicalXor => Some(8),
        _ => None,
    }
}

/// A side that is one run as the plan of packed bytes, whatever its length: words need not fill
/// it.
pub(super) fn flattened<'a>(side: PlacedPlan<'a>, flat: &'a Plan) -> PlacedPlan<'a> {
    match side.plan.shape() {
        Shape::Contiguous => PlacedPlan {
            origin: side.layout(),
            plan: flat,
            ..side
        },
        _ => side,
    }
}

/// The kernel of a number, but for operations on bits.
fn pick(operator: Operator, basic: Basic) -> Option<Pick> {
    let operation = number_of(operator, basic)?;
    Some(match (basic, operator) {
        (Basic::F16, _) | (Basic::Complex4, Operator::Sum) => pick!(2, operation, "float_f16"),
        (Basic::BF16, _) => pick!(2, operation, "float_bf16"),
        (Basic::F32, _) | (Basic::C32, Operator::Sum) => pick!(4, operation, "float_f32", alone),
        (Basic::F64, _) | (Basic::C64, Operator::Sum) => pick!(8, operation, "float_f64", alone),
        (Basic::Complex4, _) => pick!(4, operation, "float_c16", alone),
        (Basic::C32, _) => pick!(8, operation, "float_c32", alone),
        (Basic::C64, _) => pick!(16, operation, "float_c64", alone),
        _ => match (basic.kind(), basic.size()) {
            (BasicKind::Float | BasicKind::Complex, _) => return None,
            (_, 1) => pick!(1, operation, "int1"),
            (_, 2) => pick!(2, operation, "int2"),
            (_, 4) => pick!(4, operation, "int4", alone),
            (_, 8) => pick!(8, operation, "int8", alone),
            (_, 16) => pick!(16, operation, "int16", alone),
            _ => return None,
        },
    })
}

/// The kernel that combines 8 bytes of elements at a time, and the number of the operation;
/// none where an element is longer or has no such kernel.
pub(crate) fn of_words(operator: Operator, element: Element) -> Option<(&'static str, u32)> {
    let Element::Basic(basic) = element else {
        return None;
    };
    let bits = match operator {
        Operator::BitAnd => Some(0),
        Operator::BitOr => Some(1),
        Operator::BitXor => Some(2),
        _ => None,
    };
    if let Some(operation) = bits {
        return (8 % basic.size() == 0).then_some(("bits", operation));
    }
    let pick = pick(operator, basic.representation())?;
    let stem = match pick.any.trim_start_matches("osier_reduce_") {
        "int1_any" => "int1",
        "int2_any" => "int2",
        "int4" => "int4",
        "int8" => "int8",
        "float_f16_any" => "f16",
        "float_bf16_any" => "bf16",
        "float_f32" => "f32",
        "float_f64" => "f64",
        "float_c16" => "c16",
        "float_c32" => "c32",
        _ => return None,
    };
    Some((stem, pick.operation))
}

/// How pair kernels compare a number.
fn kind(basic: Basic) -> u32 {
    match (basic, basic.kind()) {
        (Basic::BF16, _) => 3,
        (_, BasicKind::Float) => 2,
        (_, BasicKind::Unsigned) => 1,
        _ => 0,
    }
}

/// Whether a kernel combines what the host does: not floats that no device has, as
/// `long double`.
pub fn has_kernel(operator: Operator, element: Element) -> bool {
    let on_devices = |basic: Basic| match basic.kind() {
        BasicKind::Float => basic.size() <= 8,
        BasicKind::Complex => basic.size() <= 16,
        _ => true,
    };
    let bits = matches!(
        operator,
        Operator::BitAnd | Operator::BitOr | Operator::BitXor
    );
    match element {
        Element::Pair { value, index } => on_devices(value) && on_devices(index),
        Element::Basic(basic) => bits || pick(operator, basic.representation()).is_some(),
    }
}

impl Plan {
    /// The plan of packed bytes themselves.
    pub fn flat(bytes: u64) -> Plan {
        Plan {
            base: 0,
            dimensions: Vec::new(),
            list: None,
            boxes: Vec::new(),
            // Whole words, so that a ragged end is inside.
            core_bytes: bytes.next_multiple_of(super::WIDEST as u64),
            bytes,
            granularity: super::WIDEST,
        }
    }
}

impl Reduction {
    /// The launch that combines the elements in the packed bytes `range`; none if
    /// these are none.
    ///
    /// # Errors
    /// As [`Operator::combine`], and a range that cuts an element.
    pub fn new(
        operator: Operator,
        element: Element,
        right: PlacedPlan<'_>,
        left: PlacedPlan<'_>,
        range: Range<u64>,
    ) -> Result<Option<Reduction>, TypeError> {
        operator.combine(element, &mut [], &[])?;
        let unknown = || TypeError::Argument {
            operation: "combine elements",
            argument: "element",
            value: element.to_string(),
            hint: "no kernel has it".to_owned(),
        };
        if !has_kernel(operator, element) {
            return Err(unknown());
        }
        let whole = |at: u64| at.is_multiple_of(element.size() as u64);
        if !whole(range.start) || !whole(range.end) {
            return Err(TypeError::Argument {
                operation: "combine elements",
                argument: "range of packed bytes",
                value: format!("{} to {}", range.start, range.end),
                hint: format!("multiples of {}, the size of {element}", element.size()),
            });
        }
        if range.is_empty() {
            return Ok(None);
        }
        let flat = Plan::flat(range.end + WIDEST as u64);
        let run = |side: PlacedPlan<'_>| side.plan.shape() == Shape::Contiguous;
        let runs = run(right) && run(left);
        let (mut right, mut left) = (flattened(right, &flat), flattened(left, &flat));
        let mut range = range;
        // Words may begin at an aligned address inside of two runs.
        let odd = left.origin % WIDEST as u64;
        if runs && right.origin % WIDEST as u64 == odd && odd.is_multiple_of(element.size() as u64)
        {
            right.origin -= odd;
            left.origin -= odd;
            range = range.start + odd..range.end + odd;
        }
        let granularity = (right.plan.granularity | left.plan.granularity) as u64;
        let bits = right.layout() | left.layout() | granularity;
        let mut argument = ReductionArgument::default();
        // Its unit: bytes of what places are counted in.
        let (kernel, unit) = match element {
            Element::Pair { value, index } => {
                let (value, index) = (value.representation(), index.representation());
                argument.operation = (operator == Operator::MaxLoc).into();
                (argument.value_bytes, argument.value_kind) = (value.size() as u32, kind(value));
                (argument.index_bytes, argument.index_kind) = (index.size() as u32, kind(index));
                let parts = (value.size() | index.size()) as u64;
                argument.access = widest(bits | parts) as u32;
                (PAIR, 1)
            }
            Element::Basic(basic) => match operator {
                Operator::BitAnd | Operator::BitOr | Operator::BitXor => {
                    let widest = widest(bits | range.start | range.end);
                    let [.., bytewise] = BITS;
                    let suits = |kernel: &(usize, &'static str)| kernel.0 <= widest;
                    let (width, name) = BITS.into_iter().find(suits).unwrap_or(bytewise);
                    argument.operation = match operator {
                        Operator::BitAnd => 0,
                        Operator::BitOr => 1,
                        _ => 2,
                    };
                    argument.access = width as u32;
                    (name, width)
                }
                _ => {
                    let pick = pick(operator, basic.representation()).ok_or_else(unknown)?;
                    argument.operation = pick.operation;
                    argument.access = widest(bits | pick.bytes as u64) as u32;
                    match pick.words {
                        Some(words) if widest(bits) == 16 => (words, 16),
                        _ => (pick.any, pick.bytes),
                    }
                }
            },
        };
        let pairs = matches!(element, Element::Pair { .. });
        let bytes = range.end - range.start;
        let (chunk, chunks) = chunks(bytes, unit);
        // Of pairs the numbers, of all else bytes.
        let (start, end, blocks) = match (pairs, element.size() as u64) {
            (true, size) => {
                let blocks = (bytes / size).div_ceil(u64::from(THREADS));
                (range.start / size, range.end / size, blocks)
            }
            (false, _) => (range.start, range.end, chunks),
        };
        argument.sides = CopyArgument {
            from: right.side(unit),
            to: left.side(unit),
            start,
            end,
            wide: u32::from(range.end / unit as u64 >= 1 << 31),
            chunk,
        };
        Ok(Some(Reduction {
            argument,
            kernel,
            blocks,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel that may be asked for is written in a source, and every
    /// operator has one for whatever the host computes, but for floats that no device has.
    #[test]
    fn kernels_exist() {
        let ptx = crate::ptx::all();
        let exists = |name: &str| ptx.contains(&format!(".visible .entry {name}("));
        assert!(exists(PAIR));
        for (_, name) in BITS {
            assert!(exists(name), "{name}");
        }
        assert_eq!(size_of::<ReductionArgument>(), 2920 + 24);
        for operator in Operator::ALL {
            for basic in Basic::ALL.iter().copied() {
                let element = Element::Basic(basic);
                if operator.combine(element, &mut [], &[]).is_err() {
                    continue;
                }
                if let Operator::BitAnd | Operator::BitOr | Operator::BitXor = operator {
                    continue;
                }
                let long = matches!(basic.kind(), BasicKind::Float | BasicKind::Complex)
                    && basic.alignment() == 16;
                assert_eq!(
                    has_kernel(operator, element),
                    !long,
                    "{operator} of {basic}"
                );
                let Some(pick) = pick(operator, basic.representation()) else {
                    continue;
                };
                assert!(basic.size().is_multiple_of(pick.bytes));
                assert!(exists(pick.any), "{}", pick.any);
                assert!(pick.words.is_none_or(exists), "{:?}", pick.words);
            }
        }
    }
}
