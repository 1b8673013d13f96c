//! Value-index pairs, and Fortran's types by precision and range.
//!
//! Both are predefined in MPI, yet no leaves: a pair is a struct of two types
//! that may have padding, and a parametrised type stands for the type that the
//! compiler would choose. They remember what they were asked for, and mean
//! simpler types.
//!
//! # Sources
//! MPI 5.0, section 6.9.4 (minloc and maxloc), section 19.1.9 (parametrised
//! types). The thresholds of precision and range are those of the IEEE formats,
//! which section 14.5.2 uses too. A compiler that has the x87 format as a kind
//! of its own would choose it for 16 to 18 digits; here these are binary128, of
//! the same size.

use crate::{Basic, BasicKind, Constructor, Type, TypeError};

macro_rules! pairs {
    ($($(#[$meta:meta])* $variant:ident = $mpi:literal, $value:ident, $index:ident;)*) => {
        /// A named pair of a value and an index, for minloc and maxloc.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Pair {
            $($(#[$meta])* $variant,)*
        }

        impl Pair {
            /// Every named pair.
            pub const ALL: &'static [Pair] = &[$(Pair::$variant,)*];

            /// Type of the value.
            pub const fn value(self) -> Basic {
                match self { $(Pair::$variant => Basic::$value,)* }
            }

            /// Type of the index.
            pub const fn index(self) -> Basic {
                match self { $(Pair::$variant => Basic::$index,)* }
            }

            /// Name of the constant in MPI.
            pub const fn mpi_name(self) -> &'static str {
                match self { $(Pair::$variant => $mpi,)* }
            }
        }
    };
}

pairs! {
    /// C `float` and `int`.
    FloatInt = "MPI_FLOAT_INT", F32, Int;
    /// C `double` and `int`.
    DoubleInt = "MPI_DOUBLE_INT", F64, Int;
    /// C `long` and `int`.
    LongInt = "MPI_LONG_INT", Long, Int;
    /// Two of C's `int`.
    TwoInt = "MPI_2INT", Int, Int;
    /// C `short` and `int`.
    ShortInt = "MPI_SHORT_INT", Short, Int;
    /// C `long double` and `int`.
    LongDoubleInt = "MPI_LONG_DOUBLE_INT", LongDouble, Int;
    /// Two of Fortran's `REAL`.
    TwoReal = "MPI_2REAL", Real, Real;
    /// Two of Fortran's `DOUBLE PRECISION`.
    TwoDoublePrecision = "MPI_2DOUBLE_PRECISION", DoublePrecision, DoublePrecision;
    /// Two of Fortran's `INTEGER`.
    TwoInteger = "MPI_2INTEGER", Integer, Integer;
}

impl Type {
    /// A named pair of value and index, laid out as C would lay out a struct.
    pub fn pair(pair: Pair) -> Type {
        let meaning = structure(pair.value(), pair.index());
        sized(meaning.and_then(|ty| Type::meaning("pair", ty, Constructor::Pair(pair))))
    }

    /// The pair of a value and an index (`MPI_Type_get_value_index`): the named
    /// one if there is one, else an unnamed one.
    ///
    /// # Errors
    /// The value is no number that can be ordered, or the index no integer.
    pub fn value_index(value: Basic, index: Basic) -> Result<Type, TypeError> {
        let refuse = |argument, basic: Basic, hint: &str| {
            Err(TypeError::Argument {
                operation: "build value-index pair",
                argument,
                value: basic.to_string(),
                hint: hint.to_owned(),
            })
        };
        let integer =
            |basic: Basic| matches!(basic.kind(), BasicKind::Signed | BasicKind::Unsigned);
        if !integer(value) && value.kind() != BasicKind::Float {
            return refuse("value type", value, "an integer or a floating-point type");
        }
        let named = |pair: &&Pair| (pair.value(), pair.index()) == (value, index);
        if let Some(&pair) = Pair::ALL.iter().find(named) {
            return Ok(Type::pair(pair));
        }
        if !integer(index) {
            return refuse("index type", index, "an integer type");
        }
        let meaning = structure(value, index)?;
        Type::meaning(
            "value-index",
            meaning,
            Constructor::ValueIndex { value, index },
        )
    }

    /// The Fortran integer with at least `range` decimal digits
    /// (`MPI_Type_create_f90_integer`).
    ///
    /// # Errors
    /// More than 38 digits.
    pub fn f90_integer(range: u32) -> Result<Type, TypeError> {
        let basic = match range {
            0..=2 => Basic::Integer1,
            3..=4 => Basic::Integer2,
            5..=9 => Basic::Integer4,
            10..=18 => Basic::Integer8,
            19..=38 => Basic::Integer16,
            _ => return Err(no_kind("integer", "range", range, "at most 38 digits")),
        };
        let constructor = Constructor::F90Integer { range };
        Type::meaning("f90_integer", Type::basic(basic), constructor)
    }

    /// The Fortran real with at least `precision` decimal digits and decimal
    /// exponents up to `range`; one of both may be left open
    /// (`MPI_Type_create_f90_real`).
    ///
    /// # Errors
    /// Both are left open, or no IEEE format has so much.
    pub fn f90_real(precision: Option<u32>, range: Option<u32>) -> Result<Type, TypeError> {
        let basic = match real_bytes("real", precision, range)? {
            4 => Basic::Real4,
            8 => Basic::Real8,
            _ => Basic::Real16,
        };
        let constructor = Constructor::F90Real { precision, range };
        Type::meaning("f90_real", Type::basic(basic), constructor)
    }

    /// The Fortran complex of two [`Type::f90_real`]
    /// (`MPI_Type_create_f90_complex`).
    ///
    /// # Errors
    /// As for the real.
    pub fn f90_complex(precision: Option<u32>, range: Option<u32>) -> Result<Type, TypeError> {
        let basic = match real_bytes("complex", precision, range)? {
            4 => Basic::Complex8,
            8 => Basic::Complex16,
            _ => Basic::Complex32,
        };
        let constructor = Constructor::F90Complex { precision, range };
        Type::meaning("f90_complex", Type::basic(basic), constructor)
    }
}

/// Bytes of the smallest IEEE format with so many digits and so large a range.
fn real_bytes(
    what: &'static str,
    precision: Option<u32>,
    range: Option<u32>,
) -> Result<usize, TypeError> {
    if precision.is_none() && range.is_none() {
        return Err(TypeError::Argument {
            operation: "build f90 type",
            argument: "neither precision nor range",
            value: "given".to_owned(),
            hint: format!("a {what} needs one of them"),
        });
    }
    let (digits, exponent) = (precision.unwrap_or(0), range.unwrap_or(0));
    if digits > 33 {
        return Err(no_kind(what, "precision", digits, "at most 33 digits"));
    }
    if exponent > 4931 {
        return Err(no_kind(what, "range", exponent, "at most 4931"));
    }
    Ok(match (digits, exponent) {
        (..=6, ..=37) => 4,
        (..=15, ..=307) => 8,
        _ => 16,
    })
}

fn no_kind(what: &'static str, argument: &'static str, value: u32, hint: &str) -> TypeError {
    TypeError::Argument {
        operation: match what {
            "integer" => "build f90 integer type",
            "real" => "build f90 real type",
            _ => "build f90 complex type",
        },
        argument,
        value: value.to_string(),
        hint: hint.to_owned(),
    }
}

/// Value, then index at the next place that it may lie.
fn structure(value: Basic, index: Basic) -> Result<Type, TypeError> {
    let at = value.size().next_multiple_of(index.alignment());
    Type::structure(&[
        (1, 0, Type::basic(value)),
        (1, at as isize, Type::basic(index)),
    ])
}

/// Two predefined types have at most 64 bytes.
fn sized(result: Result<Type, TypeError>) -> Type {
    match result {
        Ok(ty) => ty,
        Err(error) => unreachable!("a pair of predefined types: {error}"),
    }
}
