//! Functions for a few elements of common types: of an operator and a type that are known, no
//! time is taken to find them again.

use super::{Element, Operands, Operator, basics};
use crate::Basic;

/// `into[i] = left[i] op right[i]`, for all elements of `bytes` bytes, a multiple of theirs.
///
/// # Safety
/// As [`Operator::combine_raw`].
pub type CombineFew = unsafe fn(left: *const u8, right: *const u8, into: *mut u8, bytes: usize);

impl Operator {
    /// What [`Operator::combine_raw`] does, as a function of this operator on this element. Made
    /// for a few elements: it does not use the widest registers. None: there is none for them.
    ///
    /// ```
    /// use osier_datatype::{Basic, Element, Operator};
    ///
    /// let add = Operator::Sum.for_few(Element::Basic(Basic::F64)).expect("a common one");
    /// let (left, right, mut sum) = ([1.0f64, 2.0], [0.5f64, 0.25], [0.0f64; 2]);
    /// let at = |of: &[f64; 2]| of.as_ptr().cast::<u8>();
    /// // SAFETY: 16 bytes each, and the result apart from the operands.
    /// unsafe { add(at(&left), at(&right), sum.as_mut_ptr().cast(), 16) };
    /// assert_eq!(sum, [1.5, 2.25]);
    /// ```
    pub fn for_few(self, element: Element) -> Option<CombineFew> {
        let Element::Basic(basic) = element else {
            return None;
        };
        if !self.is_defined_for(element) {
            return None;
        }
        match self {
            Operator::Sum => of_type::<{ Operator::Sum as usize }>(basic),
            Operator::Product => of_type::<{ Operator::Product as usize }>(basic),
            Operator::Min => of_type::<{ Operator::Min as usize }>(basic),
            Operator::Max => of_type::<{ Operator::Max as usize }>(basic),
            Operator::LogicalAnd => of_type::<{ Operator::LogicalAnd as usize }>(basic),
            Operator::LogicalOr => of_type::<{ Operator::LogicalOr as usize }>(basic),
            Operator::BitAnd => of_type::<{ Operator::BitAnd as usize }>(basic),
            Operator::BitOr => of_type::<{ Operator::BitOr as usize }>(basic),
            _ => None,
        }
    }
}

fn of_type<const OPERATOR: usize>(basic: Basic) -> Option<CombineFew> {
    Some(match basic.representation() {
        Basic::I32 => few::<OPERATOR, { Basic::I32 as u8 }>,
        Basic::I64 => few::<OPERATOR, { Basic::I64 as u8 }>,
        Basic::U32 => few::<OPERATOR, { Basic::U32 as u8 }>,
        Basic::U64 => few::<OPERATOR, { Basic::U64 as u8 }>,
        Basic::F32 => few::<OPERATOR, { Basic::F32 as u8 }>,
        Basic::F64 => few::<OPERATOR, { Basic::F64 as u8 }>,
        _ => return None,
    })
}

/// # Safety
/// As [`Operator::combine_raw`].
unsafe fn few<const OPERATOR: usize, const BASIC: u8>(
    left: *const u8,
    right: *const u8,
    into: *mut u8,
    bytes: usize,
) {
    let operator = const { Operator::ALL[OPERATOR] };
    let basic = const {
        match Basic::from_code(BASIC) {
            Some(basic) => basic,
            None => panic!("no such type"),
        }
    };
    let on = Operands {
        left,
        right,
        into,
        bytes,
    };
    // It is defined, or there is no such function.
    let _ = basics(operator, basic, on);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit for bit what the operator gives, on bytes of all kinds.
    #[test]
    fn functions_give_what_operators_give() {
        let mut found = 0;
        let bytes = |start: u32| -> Vec<u8> {
            let words = (0..20u32).map(|i| (start + i).wrapping_mul(0x9e37_79b9));
            words.flat_map(u32::to_ne_bytes).collect()
        };
        let (left, right) = (bytes(1), bytes(77));
        for operator in Operator::ALL {
            for &basic in Basic::ALL {
                let element = Element::Basic(basic);
                let Some(function) = operator.for_few(element) else {
                    continue;
                };
                found += 1;
                for length in [0, basic.size(), 64, 80] {
                    let mut naive = left[..length].to_vec();
                    let combined = operator.combine(element, &mut naive, &right[..length]);
                    combined.expect("it is defined");
                    let mut made = vec![0; length];
                    // SAFETY: as many bytes each, apart from each other.
                    unsafe { function(left.as_ptr(), right.as_ptr(), made.as_mut_ptr(), length) };
                    assert_eq!(made, naive, "{operator} of {basic}, {length} bytes");
                }
            }
        }
        assert!(found > 30, "{found}");
    }

    #[test]
    fn what_is_not_defined_has_none() {
        assert!(
            Operator::BitAnd
                .for_few(Element::Basic(Basic::F64))
                .is_none()
        );
        assert!(
            Operator::MinLoc
                .for_few(Element::Basic(Basic::F64))
                .is_none()
        );
    }
}
