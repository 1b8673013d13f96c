//! Predefined types: the leaves of every type tree.
//!
//! Every datatype constant of the MPI 5.0 ABI has a variant, but for the
//! value-index pairs, which are trees ([`Pair`](crate::Pair)), the null handle,
//! and names for one and the same type: `MPI_LONG_LONG` is
//! `MPI_LONG_LONG_INT`, `MPI_C_FLOAT_COMPLEX` is `MPI_C_COMPLEX`. Where Rust has
//! the type, the variant bears Rust's name: `F64` is `MPI_DOUBLE`, `I32` is
//! `MPI_INT32_T`, `F16` is `MPI_REAL2`.
//!
//! Several variants may have one representation: `Int`, `Integer` and `I32`. In
//! signatures they are equal ([`Basic::representation`]), because nothing would
//! be misread; in external32 they may differ (`Long` has 4 bytes there, `I64`
//! 8), so trees and signatures keep the variant.

use crate::TypeError;
use std::fmt;

macro_rules! basics {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $name:literal, $mpi:expr, $size:literal,
        $align:literal, $kind:ident, $representation:expr;)*) => {
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

            /// Name of the constant in MPI, if it is one of MPI's types.
            pub const fn mpi_name(self) -> Option<&'static str> {
                match self { $(Basic::$variant => $mpi,)* }
            }

            /// What the bytes mean.
            #[inline]
            pub const fn kind(self) -> BasicKind {
                match self { $(Basic::$variant => BasicKind::$kind,)* }
            }

            /// The one type that stands for all with the same bytes and meaning:
            /// what signatures compare.
            #[inline]
            pub const fn representation(self) -> Basic {
                match self { $(Basic::$variant => $representation,)* }
            }

            /// The type with this code, if there is one.
            pub const fn from_code(code: u8) -> Option<Basic> {
                match code { $($code => Some(Basic::$variant),)* _ => None }
            }
        }
    };
}

/// What the bytes of a predefined type mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BasicKind {
    /// Nothing: bytes and packed messages.
    Opaque,
    /// A character.
    Character,
    /// A truth value of C or C++.
    Boolean,
    /// A truth value of Fortran.
    Logical,
    /// An integer in two's complement.
    Signed,
    /// An integer that is never negative.
    Unsigned,
    /// A floating-point number.
    Float,
    /// Two floating-point numbers of half the size.
    Complex,
}

/// Classes of types for [`Basic::match_size`]: `MPI_TYPECLASS_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TypeClass {
    /// Fortran logicals.
    Logical,
    /// Integers.
    Integer,
    /// Floating-point numbers.
    Real,
    /// Complex numbers.
    Complex,
}

/// Whether C's `long double` is the 80-bit format of the x87.
pub(crate) const X87: bool = cfg!(any(target_arch = "x86_64", target_arch = "x86"));

const LONG_DOUBLE: Basic = if X87 {
    Basic::LongDouble
} else {
    Basic::Real16
};

const LONG_DOUBLE_COMPLEX: Basic = if X87 {
    Basic::LongDoubleComplex
} else {
    Basic::Complex32
};

basics! {
    // Uninterpreted.
    /// Uninterpreted byte: matches only itself, never converted.
    Byte = 1, "byte", Some("MPI_BYTE"), 1, 1, Opaque, Basic::Byte;
    /// Output of an explicit pack; in a match it stands for anything.
    Packed = 2, "packed", Some("MPI_PACKED"), 1, 1, Opaque, Basic::Packed;
    // Text.
    /// C `char`: a text character of one byte.
    Char = 3, "char", Some("MPI_CHAR"), 1, 1, Character, Basic::Char;
    /// C `wchar_t`: a Unicode code point of four bytes.
    Wchar = 5, "wchar", Some("MPI_WCHAR"), 4, 4, Character, Basic::Wchar;
    /// Fortran `CHARACTER`.
    Character = 96, "character", Some("MPI_CHARACTER"), 1, 1, Character, Basic::Char;
    // Fixed-size integers, as in Rust.
    /// Signed integer of 8 bits.
    I8 = 8, "i8", Some("MPI_INT8_T"), 1, 1, Signed, Basic::I8;
    /// Signed integer of 16 bits.
    I16 = 9, "i16", Some("MPI_INT16_T"), 2, 2, Signed, Basic::I16;
    /// Signed integer of 32 bits.
    I32 = 10, "i32", Some("MPI_INT32_T"), 4, 4, Signed, Basic::I32;
    /// Signed integer of 64 bits.
    I64 = 11, "i64", Some("MPI_INT64_T"), 8, 8, Signed, Basic::I64;
    /// Signed integer of 128 bits.
    I128 = 12, "i128", None, 16, 16, Signed, Basic::I128;
    /// Unsigned integer of 8 bits.
    U8 = 16, "u8", Some("MPI_UINT8_T"), 1, 1, Unsigned, Basic::U8;
    /// Unsigned integer of 16 bits.
    U16 = 17, "u16", Some("MPI_UINT16_T"), 2, 2, Unsigned, Basic::U16;
    /// Unsigned integer of 32 bits.
    U32 = 18, "u32", Some("MPI_UINT32_T"), 4, 4, Unsigned, Basic::U32;
    /// Unsigned integer of 64 bits.
    U64 = 19, "u64", Some("MPI_UINT64_T"), 8, 8, Unsigned, Basic::U64;
    /// Unsigned integer of 128 bits.
    U128 = 20, "u128", None, 16, 16, Unsigned, Basic::U128;
    // C integers.
    /// C `signed char`, an integer.
    SignedChar = 64, "signed char", Some("MPI_SIGNED_CHAR"), 1, 1, Signed, Basic::I8;
    /// C `unsigned char`, an integer.
    UnsignedChar = 65, "unsigned char", Some("MPI_UNSIGNED_CHAR"), 1, 1, Unsigned, Basic::U8;
    /// C `short`.
    Short = 66, "short", Some("MPI_SHORT"), 2, 2, Signed, Basic::I16;
    /// C `int`.
    Int = 67, "int", Some("MPI_INT"), 4, 4, Signed, Basic::I32;
    /// C `long`.
    Long = 68, "long", Some("MPI_LONG"), 8, 8, Signed, Basic::I64;
    /// C `long long`.
    LongLong = 69, "long long", Some("MPI_LONG_LONG_INT"), 8, 8, Signed, Basic::I64;
    /// C `unsigned short`.
    UnsignedShort = 70, "unsigned short", Some("MPI_UNSIGNED_SHORT"), 2, 2, Unsigned, Basic::U16;
    /// C `unsigned`.
    Unsigned = 71, "unsigned", Some("MPI_UNSIGNED"), 4, 4, Unsigned, Basic::U32;
    /// C `unsigned long`.
    UnsignedLong = 72, "unsigned long", Some("MPI_UNSIGNED_LONG"), 8, 8, Unsigned, Basic::U64;
    /// C `unsigned long long`.
    UnsignedLongLong = 73, "unsigned long long", Some("MPI_UNSIGNED_LONG_LONG"), 8, 8, Unsigned, Basic::U64;
    /// `MPI_Aint`: an address or a difference of addresses.
    Aint = 74, "aint", Some("MPI_AINT"), 8, 8, Signed, Basic::I64;
    /// `MPI_Offset`: a place in a file.
    Offset = 75, "offset", Some("MPI_OFFSET"), 8, 8, Signed, Basic::I64;
    /// `MPI_Count`: a number of anything.
    Count = 76, "count", Some("MPI_COUNT"), 8, 8, Signed, Basic::I64;
    // C and C++ truth values.
    /// C `bool`: a truth value of one byte.
    Bool = 4, "bool", Some("MPI_C_BOOL"), 1, 1, Boolean, Basic::Bool;
    /// C++ `bool`.
    CxxBool = 77, "c++ bool", Some("MPI_CXX_BOOL"), 1, 1, Boolean, Basic::Bool;
    // Floating point.
    /// IEEE binary16; Fortran `REAL*2`.
    F16 = 24, "f16", Some("MPI_REAL2"), 2, 2, Float, Basic::F16;
    /// The upper half of a binary32.
    BF16 = 25, "bf16", None, 2, 2, Float, Basic::BF16;
    /// IEEE binary32; C `float`.
    F32 = 26, "f32", Some("MPI_FLOAT"), 4, 4, Float, Basic::F32;
    /// IEEE binary64; C `double`.
    F64 = 27, "f64", Some("MPI_DOUBLE"), 8, 8, Float, Basic::F64;
    /// C `long double`: on x86 the 80 bits of the x87 in 16 bytes, elsewhere binary128.
    LongDouble = 29, "long double", Some("MPI_LONG_DOUBLE"), 16, 16, Float, LONG_DOUBLE;
    // Complex numbers: real, then imaginary part.
    /// Complex number of two `f32`; C `float _Complex`.
    C32 = 32, "c32", Some("MPI_C_COMPLEX"), 8, 4, Complex, Basic::C32;
    /// Complex number of two `f64`; C `double _Complex`.
    C64 = 33, "c64", Some("MPI_C_DOUBLE_COMPLEX"), 16, 8, Complex, Basic::C64;
    /// C `long double _Complex`.
    LongDoubleComplex = 35, "long double complex", Some("MPI_C_LONG_DOUBLE_COMPLEX"), 32, 16, Complex, LONG_DOUBLE_COMPLEX;
    /// C++ `std::complex<float>`.
    CxxFloatComplex = 78, "c++ float complex", Some("MPI_CXX_FLOAT_COMPLEX"), 8, 4, Complex, Basic::C32;
    /// C++ `std::complex<double>`.
    CxxDoubleComplex = 79, "c++ double complex", Some("MPI_CXX_DOUBLE_COMPLEX"), 16, 8, Complex, Basic::C64;
    /// C++ `std::complex<long double>`.
    CxxLongDoubleComplex = 80, "c++ long double complex", Some("MPI_CXX_LONG_DOUBLE_COMPLEX"), 32, 16, Complex, LONG_DOUBLE_COMPLEX;
    // Fortran, default kinds.
    /// Fortran `LOGICAL`.
    Logical = 97, "logical", Some("MPI_LOGICAL"), 4, 4, Logical, Basic::Logical4;
    /// Fortran `INTEGER`.
    Integer = 98, "integer", Some("MPI_INTEGER"), 4, 4, Signed, Basic::I32;
    /// Fortran `REAL`.
    Real = 99, "real", Some("MPI_REAL"), 4, 4, Float, Basic::F32;
    /// Fortran `DOUBLE PRECISION`.
    DoublePrecision = 100, "double precision", Some("MPI_DOUBLE_PRECISION"), 8, 8, Float, Basic::F64;
    /// Fortran `COMPLEX`.
    Complex = 101, "complex", Some("MPI_COMPLEX"), 8, 4, Complex, Basic::C32;
    /// Fortran `DOUBLE COMPLEX`.
    DoubleComplex = 102, "double complex", Some("MPI_DOUBLE_COMPLEX"), 16, 8, Complex, Basic::C64;
    // Fortran, sized kinds.
    /// Fortran `LOGICAL*1`.
    Logical1 = 40, "logical1", Some("MPI_LOGICAL1"), 1, 1, Logical, Basic::Logical1;
    /// Fortran `LOGICAL*2`.
    Logical2 = 41, "logical2", Some("MPI_LOGICAL2"), 2, 2, Logical, Basic::Logical2;
    /// Fortran `LOGICAL*4`.
    Logical4 = 42, "logical4", Some("MPI_LOGICAL4"), 4, 4, Logical, Basic::Logical4;
    /// Fortran `LOGICAL*8`.
    Logical8 = 43, "logical8", Some("MPI_LOGICAL8"), 8, 8, Logical, Basic::Logical8;
    /// Fortran `LOGICAL*16`.
    Logical16 = 44, "logical16", Some("MPI_LOGICAL16"), 16, 16, Logical, Basic::Logical16;
    /// Fortran `INTEGER*1`.
    Integer1 = 103, "integer1", Some("MPI_INTEGER1"), 1, 1, Signed, Basic::I8;
    /// Fortran `INTEGER*2`.
    Integer2 = 104, "integer2", Some("MPI_INTEGER2"), 2, 2, Signed, Basic::I16;
    /// Fortran `INTEGER*4`.
    Integer4 = 105, "integer4", Some("MPI_INTEGER4"), 4, 4, Signed, Basic::I32;
    /// Fortran `INTEGER*8`.
    Integer8 = 106, "integer8", Some("MPI_INTEGER8"), 8, 8, Signed, Basic::I64;
    /// Fortran `INTEGER*16`.
    Integer16 = 107, "integer16", Some("MPI_INTEGER16"), 16, 16, Signed, Basic::I128;
    /// Fortran `REAL*4`.
    Real4 = 109, "real4", Some("MPI_REAL4"), 4, 4, Float, Basic::F32;
    /// Fortran `REAL*8`.
    Real8 = 110, "real8", Some("MPI_REAL8"), 8, 8, Float, Basic::F64;
    /// Fortran `REAL*16`: IEEE binary128.
    Real16 = 28, "real16", Some("MPI_REAL16"), 16, 16, Float, Basic::Real16;
    /// Fortran `COMPLEX*4`.
    Complex4 = 36, "complex4", Some("MPI_COMPLEX4"), 4, 2, Complex, Basic::Complex4;
    /// Fortran `COMPLEX*8`.
    Complex8 = 111, "complex8", Some("MPI_COMPLEX8"), 8, 4, Complex, Basic::C32;
    /// Fortran `COMPLEX*16`.
    Complex16 = 112, "complex16", Some("MPI_COMPLEX16"), 16, 8, Complex, Basic::C64;
    /// Fortran `COMPLEX*32`.
    Complex32 = 34, "complex32", Some("MPI_COMPLEX32"), 32, 16, Complex, Basic::Complex32;
}

impl Basic {
    /// The number behind the type in signatures and on the wire.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Bytes in the external32 representation (MPI 5.0, section 14.5.2).
    #[inline]
    pub const fn external32_size(self) -> usize {
        match self {
            Basic::Wchar => 2,
            Basic::Long | Basic::UnsignedLong => 4,
            other => other.size(),
        }
    }

    /// The Fortran type of a class with so many bytes, real and imaginary part
    /// together (`MPI_Type_match_size`).
    ///
    /// # Errors
    /// There is no such type; the error lists the sizes that exist.
    ///
    /// ```
    /// use osier_datatype::{Basic, TypeClass};
    ///
    /// assert_eq!(Basic::match_size(TypeClass::Real, 8)?, Basic::Real8);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    pub fn match_size(class: TypeClass, bytes: usize) -> Result<Basic, TypeError> {
        let (types, hint): (&[Basic], _) = match class {
            TypeClass::Logical => (
                &[
                    Basic::Logical1,
                    Basic::Logical2,
                    Basic::Logical4,
                    Basic::Logical8,
                    Basic::Logical16,
                ],
                "logicals have 1, 2, 4, 8 or 16 bytes",
            ),
            TypeClass::Integer => (
                &[
                    Basic::Integer1,
                    Basic::Integer2,
                    Basic::Integer4,
                    Basic::Integer8,
                    Basic::Integer16,
                ],
                "integers have 1, 2, 4, 8 or 16 bytes",
            ),
            TypeClass::Real => (
                &[Basic::F16, Basic::Real4, Basic::Real8, Basic::Real16],
                "reals have 2, 4, 8 or 16 bytes",
            ),
            TypeClass::Complex => (
                &[
                    Basic::Complex4,
                    Basic::Complex8,
                    Basic::Complex16,
                    Basic::Complex32,
                ],
                "complex numbers have 4, 8, 16 or 32 bytes",
            ),
        };
        let found = types.iter().find(|basic| basic.size() == bytes);
        found.copied().ok_or_else(|| TypeError::Argument {
            operation: "match a predefined type",
            argument: "size in bytes",
            value: bytes.to_string(),
            hint: hint.to_owned(),
        })
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
    use std::collections::HashSet;

    #[test]
    fn codes_are_unique_and_sizes_divisible_by_alignment() {
        let mut names = HashSet::new();
        for &basic in Basic::ALL {
            assert_eq!(Basic::from_code(basic.code()), Some(basic));
            assert_eq!(basic.size() % basic.alignment(), 0, "{basic}");
            assert!(names.insert(basic.name()), "{basic}");
            assert!(basic.mpi_name().is_none_or(|name| names.insert(name)));
        }
        assert_eq!(Basic::from_code(0), None);
    }

    #[test]
    fn representations_have_the_same_bytes() {
        for &basic in Basic::ALL {
            let other = basic.representation();
            assert_eq!(other.representation(), other, "{basic}");
            assert_eq!(other.size(), basic.size(), "{basic}");
            assert_eq!(other.kind(), basic.kind(), "{basic}");
            assert!(other.alignment() == basic.alignment(), "{basic}");
        }
    }

    #[test]
    fn sizes_are_matched_or_refused_by_name() {
        use TypeClass::{Complex, Integer, Logical, Real};
        for (class, kind) in [
            (Logical, BasicKind::Logical),
            (Integer, BasicKind::Signed),
            (Real, BasicKind::Float),
            (Complex, BasicKind::Complex),
        ] {
            for bytes in 0..40 {
                if let Ok(basic) = Basic::match_size(class, bytes) {
                    assert_eq!((basic.size(), basic.kind()), (bytes, kind));
                }
            }
        }
        assert_eq!(Basic::match_size(Integer, 16), Ok(Basic::Integer16));
        assert_eq!(
            Basic::match_size(Real, 10).unwrap_err().to_string(),
            "cannot match a predefined type: size in bytes is 10 \
             (hint: reals have 2, 4, 8 or 16 bytes)"
        );
    }
}
