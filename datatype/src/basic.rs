//! Predefined types: the leaves of every type tree.

use std::fmt;

macro_rules! basics {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $name:literal, $size:literal, $align:literal;)*) => {
        /// A predefined type. The discriminant is its code in signatures and on
        /// the wire: it never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Basic {
            $($(#[$meta])* $variant = $code,)*
        }

        impl Basic {
            /// Every predefined type.
            pub const ALL: &'static [Basic] = &[$(Basic::$variant,)*];

            /// Bytes of payload, which is also the extent.
            #[inline]
            pub const fn size(self) -> usize {
                match self { $(Basic::$variant => $size,)* }
            }

            /// Alignment that the C ABI of 64-bit targets asks for.
            #[inline]
            pub const fn alignment(self) -> usize {
                match self { $(Basic::$variant => $align,)* }
            }

            /// Short name, as in signatures: `f64`.
            pub const fn name(self) -> &'static str {
                match self { $(Basic::$variant => $name,)* }
            }

            /// The type with this code, if there is one.
            pub const fn from_code(code: u8) -> Option<Basic> {
                match code { $($code => Some(Basic::$variant),)* _ => None }
            }
        }
    };
}

basics! {
    /// Uninterpreted byte: matches only itself, never converted.
    Byte = 1, "byte", 1, 1;
    /// Output of an explicit pack.
    Packed = 2, "packed", 1, 1;
    /// Text character of one byte.
    Char = 3, "char", 1, 1;
    /// Truth value of one byte.
    Bool = 4, "bool", 1, 1;
    /// Signed integer of 8 bits.
    I8 = 8, "i8", 1, 1;
    /// Signed integer of 16 bits.
    I16 = 9, "i16", 2, 2;
    /// Signed integer of 32 bits.
    I32 = 10, "i32", 4, 4;
    /// Signed integer of 64 bits.
    I64 = 11, "i64", 8, 8;
    /// Unsigned integer of 8 bits.
    U8 = 16, "u8", 1, 1;
    /// Unsigned integer of 16 bits.
    U16 = 17, "u16", 2, 2;
    /// Unsigned integer of 32 bits.
    U32 = 18, "u32", 4, 4;
    /// Unsigned integer of 64 bits.
    U64 = 19, "u64", 8, 8;
    /// IEEE binary16.
    F16 = 24, "f16", 2, 2;
    /// The upper half of a binary32.
    BF16 = 25, "bf16", 2, 2;
    /// IEEE binary32.
    F32 = 26, "f32", 4, 4;
    /// IEEE binary64.
    F64 = 27, "f64", 8, 8;
    /// Complex number of two `f32`.
    C32 = 32, "c32", 8, 4;
    /// Complex number of two `f64`.
    C64 = 33, "c64", 16, 8;
}

impl Basic {
    /// The number behind the type in signatures and on the wire.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Basic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_sizes_divisible_by_alignment() {
        for &basic in Basic::ALL {
            assert_eq!(Basic::from_code(basic.code()), Some(basic));
            assert_eq!(basic.size() % basic.alignment(), 0, "{basic}");
        }
        assert_eq!(Basic::from_code(0), None);
    }
}
