//! Numbers of 80 bits, the x87's, as C's `long double` has them on x86: the processor
//! computes, we compare.
//!
//! ```text
//! bytes  0 .. 8 mantissa | 8 .. 10 sign and exponent | 10 .. 16 of no meaning
//! ```
//!
//! # Invariants
//! 1. Each operation leaves the registers of the x87 as empty as it found them.
//!
//! # Sources
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 8.

#![allow(
    unsafe_code,
    reason = "Rust has no type of 80 bits: the instructions are written out"
)]

use crate::x87::to_binary128;
use std::arch::asm;
use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

/// A number, as it lies in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extended([u8; 16]);

impl Extended {
    pub(super) fn from_ne_bytes(bytes: [u8; 16]) -> Extended {
        Extended(bytes)
    }

    pub(super) fn to_ne_bytes(self) -> [u8; 16] {
        self.0
    }

    pub(super) fn is_nan(self) -> bool {
        self.order().is_none()
    }

    /// Where it stands among all numbers; `None` for a NaN.
    pub(super) fn order(self) -> Option<i128> {
        let bits = u128::from_ne_bytes(self.0) & ((1 << 80) - 1);
        order_of_binary128(to_binary128(bits))
    }
}

/// Where a binary128 stands among all; `None` for a NaN.
fn order_of_binary128(bits: u128) -> Option<i128> {
    const INFINITE: u128 = 0x7fff << 112;
    let magnitude = bits & (u128::MAX >> 1);
    if magnitude > INFINITE {
        return None;
    }
    let magnitude = magnitude as i128;
    Some(if bits >> 127 == 1 {
        -magnitude
    } else {
        magnitude
    })
}

macro_rules! computed {
    ($($of:ident $function:ident $instruction:literal;)*) => {$(
        impl $of for Extended {
            type Output = Extended;

            fn $function(mut self, other: Extended) -> Extended {
                // SAFETY: both are 16 bytes of ours, of which ten are read and, of the
                // first, written; what is pushed is popped, and all of these registers
                // are told to be used.
                unsafe {
                    asm!(
                        "fld tbyte ptr [{a}]",
                        "fld tbyte ptr [{b}]",
                        $instruction,
                        "fstp tbyte ptr [{a}]",
                        a = in(reg) self.0.as_mut_ptr(),
                        b = in(reg) other.0.as_ptr(),
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                self
            }
        }
    )*};
}

computed! {
    Add add "faddp st(1), st";
    Sub sub "fsubp st(1), st";
    Mul mul "fmulp st(1), st";
}

impl PartialEq for Extended {
    fn eq(&self, other: &Extended) -> bool {
        self.order().is_some() && self.order() == other.order()
    }
}

impl PartialOrd for Extended {
    fn partial_cmp(&self, other: &Extended) -> Option<Ordering> {
        Some(self.order()?.cmp(&other.order()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, exactly.
    fn whole(n: i64) -> Extended {
        let mut bytes = [0; 16];
        if n != 0 {
            let magnitude = n.unsigned_abs();
            let up = magnitude.leading_zeros();
            let head = u16::from(n < 0) << 15 | (0x3fff + 63 - up as u16);
            bytes[..8].copy_from_slice(&(magnitude << up).to_ne_bytes());
            bytes[8..10].copy_from_slice(&head.to_ne_bytes());
        }
        Extended(bytes)
    }

    #[test]
    fn whole_numbers_are_those_of_integers() {
        let some = [
            0,
            1,
            -1,
            2,
            3,
            -7,
            24,
            1 << 31,
            -(1 << 40) + 1,
            (1 << 30) + 3,
        ];
        for a in some {
            for b in some {
                let (x, y) = (whole(a), whole(b));
                assert_eq!((x + y).0[..10], whole(a + b).0[..10], "{a} + {b}");
                assert_eq!(x - y, whole(a - b), "{a} - {b}");
                if a.checked_mul(b).is_some() {
                    assert_eq!(x * y, whole(a * b), "{a} * {b}");
                }
                assert_eq!(x.partial_cmp(&y), a.partial_cmp(&b), "{a} and {b}");
            }
        }
        // More than a double has: 2^63 + 1.
        let wide = whole(i64::MAX) + whole(2);
        assert!(wide > whole(i64::MAX) && wide - whole(2) == whole(i64::MAX));
        let infinite = (0..20_000).fold(whole(2), |x, _| x * whole(2));
        assert!((infinite - infinite).is_nan() && infinite > wide);
        assert_eq!((infinite - infinite).partial_cmp(&wide), None);
    }
}
