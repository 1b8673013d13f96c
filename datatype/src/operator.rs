//! The predefined operators of reductions, element by element on packed bytes:
//! what they are defined for, and what they give. Plain; the oracle of faster ones.
//!
//! # Invariants
//! 1. `left = left op right`; no operator looks at anything but its two elements.
//! 2. Integers wrap. A NaN loses against a number in minimum and maximum; of equal
//!    elements, both zeros among them, the left one stays, bit for bit.
//! 3. Halves are computed in `f32` and rounded once more, which gives what one
//!    rounding would (24 bits are at least twice their 11 or 8, plus two).
//!    Products of complex numbers are rounded after each product and sum.
//! 4. The bits of a NaN that arithmetic makes are open, as in IEEE 754.
//! 5. [`Operands`] are as long as they say, and may be used as they are, by the contract of
//!    [`Operator::combine_raw`], which alone makes them; of a block both operands are read
//!    before the result is written.
//!
//! # Sources
//! MPI 5.0, sections 6.9.2 (operators and their types) and 6.9.4 (minloc and
//! maxloc). S. Figueroa, When is double rounding innocuous?, SIGNUM Newsletter
//! 30(3), 1995.

// Miri knows no assembly.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod extended;
mod few;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use self::extended::Extended;
pub use self::few::CombineFew;
use crate::{Basic, BasicKind, Pair, Signature, TypeError, wide};
use std::fmt;

/// A predefined operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// `MPI_SUM`
    Sum,
    /// `MPI_PROD`
    Product,
    /// `MPI_MIN`
    Min,
    /// `MPI_MAX`
    Max,
    /// `MPI_LAND`
    LogicalAnd,
    /// `MPI_LOR`
    LogicalOr,
    /// `MPI_LXOR`
    LogicalXor,
    /// `MPI_BAND`
    BitAnd,
    /// `MPI_BOR`
    BitOr,
    /// `MPI_BXOR`
    BitXor,
    /// `MPI_MINLOC`
    MinLoc,
    /// `MPI_MAXLOC`
    MaxLoc,
}

/// What an operator combines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// One predefined type.
    Basic(Basic),
    /// A value and an index, packed: no padding between.
    Pair {
        /// Type of the value.
        value: Basic,
        /// Type of the index.
        index: Basic,
    },
}

impl Element {
    /// Packed bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Element::Basic(basic) => basic.size(),
            Element::Pair { value, index } => value.size() + index.size(),
        }
    }

    /// Whether a signature is a sequence of this element.
    pub fn makes(self, signature: &Signature) -> bool {
        match self {
            Element::Basic(basic) => *signature == Signature::run(basic, signature.elements()),
            Element::Pair { value, index } => {
                let one = Signature::concat([Signature::run(value, 1), Signature::run(index, 1)]);
                signature.elements().is_multiple_of(2)
                    && *signature == one.repeat(signature.elements() / 2)
            }
        }
    }
}

impl From<Basic> for Element {
    fn from(basic: Basic) -> Element {
        Element::Basic(basic)
    }
}

impl From<Pair> for Element {
    fn from(pair: Pair) -> Element {
        Element::Pair {
            value: pair.value(),
            index: pair.index(),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Basic(basic) => basic.fmt(f),
            Element::Pair { value, index } => write!(f, "pair of {value} and {index}"),
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mpi_name())
    }
}

impl Operator {
    /// Every predefined operator.
    pub const ALL: [Operator; 12] = [
        Operator::Sum,
        Operator::Product,
        Operator::Min,
        Operator::Max,
        Operator::LogicalAnd,
        Operator::LogicalOr,
        Operator::LogicalXor,
        Operator::BitAnd,
        Operator::BitOr,
        Operator::BitXor,
        Operator::MinLoc,
        Operator::MaxLoc,
    ];

    /// Name of the constant in MPI.
    pub const fn mpi_name(self) -> &'static str {
        match self {
            Operator::Sum => "MPI_SUM",
            Operator::Product => "MPI_PROD",
            Operator::Min => "MPI_MIN",
            Operator::Max => "MPI_MAX",
            Operator::LogicalAnd => "MPI_LAND",
            Operator::LogicalOr => "MPI_LOR",
            Operator::LogicalXor => "MPI_LXOR",
            Operator::BitAnd => "MPI_BAND",
            Operator::BitOr => "MPI_BOR",
            Operator::BitXor => "MPI_BXOR",
            Operator::MinLoc => "MPI_MINLOC",
            Operator::MaxLoc => "MPI_MAXLOC",
        }
    }

    /// Whether MPI defines the operator for an element (section 6.9.2), with
    /// Osier's own types (`bf16`, `i128`, `u128`) as floating-point numbers and
    /// integers.
    #[inline]
    pub fn is_defined_for(self, element: Element) -> bool {
        use BasicKind::{Boolean, Complex, Float, Logical, Opaque, Signed, Unsigned};
        let ordered = |basic: Basic| matches!(basic.kind(), Signed | Unsigned | Float);
        match (self, element) {
            (Operator::MinLoc | Operator::MaxLoc, Element::Pair { value, index }) => {
                ordered(value) && ordered(index)
            }
            (Operator::MinLoc | Operator::MaxLoc, _) | (_, Element::Pair { .. }) => false,
            (Operator::Min | Operator::Max, Element::Basic(basic)) => ordered(basic),
            (Operator::Sum | Operator::Product, Element::Basic(basic)) => {
                ordered(basic) || basic.kind() == Complex
            }
            (
                Operator::LogicalAnd | Operator::LogicalOr | Operator::LogicalXor,
                Element::Basic(basic),
            ) => matches!(basic.kind(), Signed | Unsigned | Boolean | Logical),
            (Operator::BitAnd | Operator::BitOr | Operator::BitXor, Element::Basic(basic)) => {
                matches!(basic.kind(), Signed | Unsigned)
                    || basic.kind() == Opaque && basic == Basic::Byte
            }
        }
    }

    /// What the operator would combine in data of a signature, if that is a
    /// sequence of it.
    pub fn element_of(self, signature: &Signature) -> Option<Element> {
        let pairs = matches!(self, Operator::MinLoc | Operator::MaxLoc);
        let mut runs = signature.exact_runs().map(|(basic, _)| basic);
        let value = runs.next()?;
        let index = match pairs {
            true if signature.uniform().is_some() => Some(value),
            true => Some(runs.next()?),
            false => None,
        };
        let element = match index {
            Some(index) => Element::Pair { value, index },
            None => Element::Basic(value),
        };
        element.makes(signature).then_some(element)
    }

    /// Combines packed elements: `left[i] = left[i] op right[i]`.
    ///
    /// # Errors
    /// The operator is not defined for the element, the element is wider than
    /// this processor's arithmetic (`REAL*16` and its complex numbers; outside of
    /// x86 also `long double`), or the bytes are no two equal numbers of elements.
    ///
    /// ```
    /// use osier_datatype::{Basic, Element, Operator};
    ///
    /// let (mut left, right) = ([1u8, 200, 3], [1u8, 100, 5]);
    /// Operator::Sum.combine(Element::Basic(Basic::U8), &mut left, &right)?;
    /// assert_eq!(left, [2, 44, 8]);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    pub fn combine(self, element: Element, left: &mut [u8], right: &[u8]) -> Result<(), TypeError> {
        if left.len() != right.len() {
            let lengths = format!("{} and {} bytes", left.len(), right.len());
            return Err(refused("operands", lengths, "as many bytes in each"));
        }
        let into = left.as_mut_ptr();
        // SAFETY: both slices have as many bytes, and the result is the left one.
        unsafe { self.combine_raw(element, into, right.as_ptr(), into, left.len()) }
    }

    /// `into[i] = left[i] op right[i]`, element by element, as [`Operator::combine`]: of
    /// operands by address, which others may change meanwhile, such as memory that processes
    /// share. Then what is combined of them is anything, as the result.
    ///
    /// ```
    /// use osier_datatype::{Basic, Element, Operator};
    ///
    /// let (left, right, mut sum) = ([1u8, 200, 3], [1u8, 100, 5], [0u8; 3]);
    /// let element = Element::Basic(Basic::U8);
    /// // SAFETY: three bytes each, and the result apart from the operands.
    /// unsafe {
    ///     Operator::Sum.combine_raw(element, left.as_ptr(), right.as_ptr(), sum.as_mut_ptr(), 3)?;
    /// }
    /// assert_eq!(sum, [2, 44, 8]);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Operands are readable and the result is writable for `bytes` bytes; the result is
    /// apart from each operand, or is one of them, from the same address on. Nobody else uses
    /// the result.
    pub unsafe fn combine_raw(
        self,
        element: Element,
        left: *const u8,
        right: *const u8,
        into: *mut u8,
        bytes: usize,
    ) -> Result<(), TypeError> {
        if !self.is_defined_for(element) {
            let hint = format!("{self} is not defined for it (MPI 5.0, section 6.9.2)");
            return Err(refused("element", element.to_string(), &hint));
        }
        if !bytes.is_multiple_of(element.size()) {
            let hint = format!("equal multiples of {}", element.size());
            return Err(refused("operands", format!("{bytes} bytes"), &hint));
        }
        let on = Operands {
            left,
            right,
            into,
            bytes,
        };
        let combined = match element {
            Element::Pair { value, index } => pairs(self == Operator::MaxLoc, (value, index), on),
            Element::Basic(basic) => {
                let basic = parts(self, basic.representation());
                match bytes > LEAST_WIDE {
                    true => wide::run(
                        #[inline(always)]
                        || basics(self, basic, on),
                    ),
                    false => basics(self, basic, on),
                }
            }
        };
        combined.ok_or_else(|| {
            let hint = "no arithmetic of this width here: convert to f64 first";
            refused("element", element.to_string(), hint)
        })
    }
}

fn refused(argument: &'static str, value: String, hint: &str) -> TypeError {
    TypeError::Argument {
        operation: "combine elements",
        argument,
        value,
        hint: hint.to_owned(),
    }
}

/// Memory of two operands and their result.
#[derive(Clone, Copy)]
struct Operands {
    left: *const u8,
    right: *const u8,
    /// Apart from both, or one of them.
    into: *mut u8,
    bytes: usize,
}

/// Elements that are read of both operands before any of the result are written. Of fewer, the
/// compiler unrolls the loop first and then often makes no vectors of it: 4-byte numbers took ten
/// times as long, 16 at a time, and 8-byte ones five times as long, 16 or 32 at a time.
const IN_BLOCK: usize = 64;
/// Fewer bytes are combined without the widest registers.
const LEAST_WIDE: usize = 64;

/// Calls `f` with each pair of elements, a block of them at a time. `T` is a number, or an array
/// of numbers: any bytes are one.
#[inline(always)]
fn each<T: Copy>(on: Operands, f: impl Fn(T, T) -> T) -> Option<()> {
    let size = size_of::<T>();
    let mut at = 0;
    while at + IN_BLOCK * size <= on.bytes {
        let [left, right] =
            [on.left, on.right].map(|of| of.wrapping_add(at).cast::<[T; IN_BLOCK]>());
        // SAFETY: invariant 5: inside the operand.
        let left = unsafe { left.read_unaligned() };
        // SAFETY: invariant 5: inside the operand.
        let right = unsafe { right.read_unaligned() };
        let mut made = left;
        for i in 0..IN_BLOCK {
            made[i] = f(left[i], right[i]);
        }
        let into = on.into.wrapping_add(at).cast::<[T; IN_BLOCK]>();
        // SAFETY: invariant 5: inside the result.
        unsafe { into.write_unaligned(made) };
        at += IN_BLOCK * size;
    }
    while at + size <= on.bytes {
        let [left, right] = [on.left, on.right].map(|of| of.wrapping_add(at).cast::<T>());
        // SAFETY: invariant 5: inside the operand.
        let left = unsafe { left.read_unaligned() };
        // SAFETY: invariant 5: inside the operand.
        let right = unsafe { right.read_unaligned() };
        let into = on.into.wrapping_add(at).cast::<T>();
        // SAFETY: invariant 5: inside the result.
        unsafe { into.write_unaligned(f(left, right)) };
        at += size;
    }
    Some(())
}

/// Each operator has a loop of its own, which the compiler makes wide: a function that is chosen
/// before the loop would be called for each element (64 KiB of characters took 2 ns each).
macro_rules! integers {
    ($t:ty, $operator:expr, $on:expr) => {
        match $operator {
            Operator::Sum => each::<$t>($on, |a: $t, b: $t| a.wrapping_add(b)),
            Operator::Product => each::<$t>($on, |a: $t, b: $t| a.wrapping_mul(b)),
            Operator::Min => each::<$t>($on, |a: $t, b: $t| a.min(b)),
            Operator::Max => each::<$t>($on, |a: $t, b: $t| a.max(b)),
            Operator::LogicalAnd => each::<$t>($on, |a: $t, b: $t| (a != 0 && b != 0).into()),
            Operator::LogicalOr => each::<$t>($on, |a: $t, b: $t| (a != 0 || b != 0).into()),
            Operator::LogicalXor => each::<$t>($on, |a: $t, b: $t| ((a != 0) != (b != 0)).into()),
            Operator::BitAnd => each::<$t>($on, |a: $t, b: $t| a & b),
            Operator::BitOr => each::<$t>($on, |a: $t, b: $t| a | b),
            Operator::BitXor => each::<$t>($on, |a: $t, b: $t| a ^ b),
            Operator::MinLoc | Operator::MaxLoc => None,
        }
    };
}

/// Floats that lie in memory as `$t` and are computed as what `$widen` makes of them.
macro_rules! floats {
    ($t:ty, $operator:expr, $on:expr, $widen:expr, $narrow:expr) => {{
        let (widen, narrow) = ($widen, $narrow);
        match $operator {
            Operator::Sum => each::<$t>($on, |a, b| narrow(widen(a) + widen(b))),
            Operator::Product => each::<$t>($on, |a, b| narrow(widen(a) * widen(b))),
            Operator::Min => each::<$t>($on, |a, b| {
                if widen(b) < widen(a) || widen(a).is_nan() {
                    b
                } else {
                    a
                }
            }),
            Operator::Max => each::<$t>($on, |a, b| {
                if widen(b) > widen(a) || widen(a).is_nan() {
                    b
                } else {
                    a
                }
            }),
            _ => None,
        }
    }};
}

/// Products of complex numbers, of which `$t` is a part.
macro_rules! products {
    ($t:ty, $on:expr, $widen:expr, $narrow:expr) => {{
        let (widen, narrow) = ($widen, $narrow);
        each::<[$t; 2]>($on, |[a, b]: [$t; 2], [c, d]: [$t; 2]| {
            let [a, b, c, d] = [a, b, c, d].map(widen);
            [narrow(a * c - b * d), narrow(a * d + b * c)]
        })
    }};
}

/// Sums of complex numbers are those of their parts.
fn parts(operator: Operator, basic: Basic) -> Basic {
    match (operator, basic) {
        (Operator::Sum, Basic::Complex4) => Basic::F16,
        (Operator::Sum, Basic::C32) => Basic::F32,
        (Operator::Sum, Basic::C64) => Basic::F64,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        (Operator::Sum, Basic::LongDoubleComplex) => Basic::LongDouble,
        _ => basic,
    }
}

#[inline(always)]
fn basics(operator: Operator, basic: Basic, on: Operands) -> Option<()> {
    match basic {
        Basic::I8 => integers!(i8, operator, on),
        Basic::I16 => integers!(i16, operator, on),
        Basic::I32 => integers!(i32, operator, on),
        Basic::I64 => integers!(i64, operator, on),
        Basic::I128 => integers!(i128, operator, on),
        Basic::U8 | Basic::Byte | Basic::Bool | Basic::Logical1 => {
            integers!(u8, operator, on)
        }
        Basic::U16 | Basic::Logical2 => integers!(u16, operator, on),
        Basic::U32 | Basic::Logical4 => integers!(u32, operator, on),
        Basic::U64 | Basic::Logical8 => integers!(u64, operator, on),
        Basic::U128 | Basic::Logical16 => integers!(u128, operator, on),
        Basic::F16 => floats!([u8; 2], operator, on, half_wide, half_narrow),
        Basic::BF16 => floats!([u8; 2], operator, on, brain_wide, brain_narrow),
        Basic::F32 => floats!(f32, operator, on, |x: f32| x, |x: f32| x),
        Basic::F64 => floats!(f64, operator, on, |x: f64| x, |x: f64| x),
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Basic::LongDouble => {
            floats!(
                [u8; 16],
                operator,
                on,
                Extended::from_ne_bytes,
                Extended::to_ne_bytes
            )
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Basic::LongDoubleComplex => {
            products!([u8; 16], on, Extended::from_ne_bytes, Extended::to_ne_bytes)
        }
        Basic::Complex4 => products!([u8; 2], on, half_wide, half_narrow),
        Basic::C32 => products!(f32, on, |x: f32| x, |x: f32| x),
        Basic::C64 => products!(f64, on, |x: f64| x, |x: f64| x),
        _ => None,
    }
}

/// Without a branch, so that loops become vectors: the exponent is moved by a multiplication,
/// which is exact, subnormal numbers too.
#[inline(always)]
fn half_wide(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_ne_bytes(bytes));
    let (sign, magnitude) = ((bits & 0x8000) << 16, bits & 0x7fff);
    let finite = (f32::from_bits(magnitude << 13) * TO_SINGLE).to_bits();
    let special = 0x7f80_0000 | magnitude << 13;
    let value = if magnitude < 0x7c00 { finite } else { special };
    f32::from_bits(sign | value)
}

/// Between the exponents of halves and of single numbers.
const TO_SINGLE: f32 = f32::from_bits((127 + 112) << 23);

/// Rounded to even.
#[inline(always)]
fn half_narrow(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    // A carry moves on to the next exponent by itself.
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    // The sum with a half has its last place where a subnormal half has it.
    let half = 126u32 << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(half)).to_bits();
    let made = match magnitude {
        ..0x3880_0000 => subnormal.wrapping_sub(half),
        0x3880_0000..0x477f_f000 => normal,
        0x477f_f000..=0x7f80_0000 => 0x7c00,
        _ => 0x7e00,
    };
    ((sign | made) as u16).to_ne_bytes()
}

fn brain_wide(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
}

fn brain_narrow(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let (high, rest) = ((bits >> 16) as u16, bits & 0xffff);
    let rounded = match rest {
        _ if value.is_nan() => high | 0x40,
        0x8000 => high + (high & 1),
        _ => high + u16::from(rest > 0x8000),
    };
    rounded.to_ne_bytes()
}

/// A number in an order of its own type; none is worse than all others.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Number {
    Integer(i128),
    Float(f64),
}

fn number(basic: Basic, bytes: &[u8]) -> Option<Option<Number>> {
    macro_rules! read {
        ($t:ty) => {
            Number::Integer(<$t>::from_ne_bytes(bytes.try_into().ok()?).into())
        };
    }
    let two = || bytes.try_into().ok();
    let found = match basic {
        Basic::I8 => read!(i8),
        Basic::I16 => read!(i16),
        Basic::I32 => read!(i32),
        Basic::I64 => read!(i64),
        Basic::U8 => read!(u8),
        Basic::U16 => read!(u16),
        Basic::U32 => read!(u32),
        Basic::U64 => read!(u64),
        Basic::F16 => Number::Float(half_wide(two()?).into()),
        Basic::BF16 => Number::Float(brain_wide(two()?).into()),
        Basic::F32 => Number::Float(f32::from_ne_bytes(bytes.try_into().ok()?).into()),
        Basic::F64 => Number::Float(f64::from_ne_bytes(bytes.try_into().ok()?)),
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Basic::LongDouble => {
            let order = Extended::from_ne_bytes(bytes.try_into().ok()?).order();
            return Some(order.map(Number::Integer));
        }
        _ => return None,
    };
    let is_nan = matches!(found, Number::Float(value) if value.is_nan());
    Some((!is_nan).then_some(found))
}

fn pairs(largest: bool, (value, index): (Basic, Basic), on: Operands) -> Option<()> {
    let (value, index) = (value.representation(), index.representation());
    let (split, size) = (value.size(), value.size() + index.size());
    // Types that have no order here are refused, whatever the bytes are.
    number(value, &[0; 16][..value.size()])?;
    number(index, &[0; 16][..index.size()])?;
    // A value and an index of at most 16 bytes each.
    let mut both = [[0u8; 32]; 2];
    for at in (0..on.bytes).step_by(size) {
        for (copy, from) in both.iter_mut().zip([on.left, on.right]) {
            // SAFETY: invariant 5: one element of an operand, which is copied.
            unsafe {
                std::ptr::copy_nonoverlapping(from.wrapping_add(at), copy.as_mut_ptr(), size)
            };
        }
        let [left, right] = &mut both;
        let (left, right) = (&mut left[..size], &right[..size]);
        let (a, b) = (
            number(value, &left[..split])?,
            number(value, &right[..split])?,
        );
        let (i, j) = (
            number(index, &left[split..])?,
            number(index, &right[split..])?,
        );
        let better = match (a, b) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(a), Some(b)) => {
                if largest {
                    b > a
                } else {
                    b < a
                }
            }
        };
        let sooner = match (i, j) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(i), Some(j)) => j < i,
        };
        if better {
            left.copy_from_slice(right);
        } else if a == b && sooner {
            left[split..].copy_from_slice(&right[split..]);
        }
        // SAFETY: invariant 5: one element of the result.
        unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), on.into.wrapping_add(at), size) };
    }
    Some(())
}

#[cfg(test)]
mod tests;
