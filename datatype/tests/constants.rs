//! Every datatype constant of the MPI 5.0 ABI has a counterpart.

use osier_datatype::{Basic, Pair, Type};

/// (constant, size, extent, bytes in external32) on 64-bit Linux.
const CONSTANTS: &[(&str, usize, usize, usize)] = &[
    ("MPI_AINT", 8, 8, 8),
    ("MPI_COUNT", 8, 8, 8),
    ("MPI_OFFSET", 8, 8, 8),
    ("MPI_PACKED", 1, 1, 1),
    ("MPI_SHORT", 2, 2, 2),
    ("MPI_INT", 4, 4, 4),
    ("MPI_LONG", 8, 8, 4),
    ("MPI_LONG_LONG_INT", 8, 8, 8),
    ("MPI_UNSIGNED_SHORT", 2, 2, 2),
    ("MPI_UNSIGNED", 4, 4, 4),
    ("MPI_UNSIGNED_LONG", 8, 8, 4),
    ("MPI_UNSIGNED_LONG_LONG", 8, 8, 8),
    ("MPI_FLOAT", 4, 4, 4),
    ("MPI_C_COMPLEX", 8, 8, 8),
    ("MPI_CXX_FLOAT_COMPLEX", 8, 8, 8),
    ("MPI_DOUBLE", 8, 8, 8),
    ("MPI_C_DOUBLE_COMPLEX", 16, 16, 16),
    ("MPI_CXX_DOUBLE_COMPLEX", 16, 16, 16),
    ("MPI_LOGICAL", 4, 4, 4),
    ("MPI_INTEGER", 4, 4, 4),
    ("MPI_REAL", 4, 4, 4),
    ("MPI_COMPLEX", 8, 8, 8),
    ("MPI_DOUBLE_PRECISION", 8, 8, 8),
    ("MPI_DOUBLE_COMPLEX", 16, 16, 16),
    ("MPI_CHARACTER", 1, 1, 1),
    ("MPI_LONG_DOUBLE", 16, 16, 16),
    ("MPI_C_LONG_DOUBLE_COMPLEX", 32, 32, 32),
    ("MPI_CXX_LONG_DOUBLE_COMPLEX", 32, 32, 32),
    ("MPI_FLOAT_INT", 8, 8, 8),
    ("MPI_DOUBLE_INT", 12, 16, 12),
    ("MPI_LONG_INT", 12, 16, 8),
    ("MPI_2INT", 8, 8, 8),
    ("MPI_SHORT_INT", 6, 8, 6),
    ("MPI_LONG_DOUBLE_INT", 20, 32, 20),
    ("MPI_2REAL", 8, 8, 8),
    ("MPI_2DOUBLE_PRECISION", 16, 16, 16),
    ("MPI_2INTEGER", 8, 8, 8),
    ("MPI_C_BOOL", 1, 1, 1),
    ("MPI_CXX_BOOL", 1, 1, 1),
    ("MPI_WCHAR", 4, 4, 2),
    ("MPI_INT8_T", 1, 1, 1),
    ("MPI_UINT8_T", 1, 1, 1),
    ("MPI_CHAR", 1, 1, 1),
    ("MPI_SIGNED_CHAR", 1, 1, 1),
    ("MPI_UNSIGNED_CHAR", 1, 1, 1),
    ("MPI_BYTE", 1, 1, 1),
    ("MPI_INT16_T", 2, 2, 2),
    ("MPI_UINT16_T", 2, 2, 2),
    ("MPI_INT32_T", 4, 4, 4),
    ("MPI_UINT32_T", 4, 4, 4),
    ("MPI_INT64_T", 8, 8, 8),
    ("MPI_UINT64_T", 8, 8, 8),
    ("MPI_LOGICAL1", 1, 1, 1),
    ("MPI_INTEGER1", 1, 1, 1),
    ("MPI_LOGICAL2", 2, 2, 2),
    ("MPI_INTEGER2", 2, 2, 2),
    ("MPI_REAL2", 2, 2, 2),
    ("MPI_LOGICAL4", 4, 4, 4),
    ("MPI_INTEGER4", 4, 4, 4),
    ("MPI_REAL4", 4, 4, 4),
    ("MPI_COMPLEX4", 4, 4, 4),
    ("MPI_LOGICAL8", 8, 8, 8),
    ("MPI_INTEGER8", 8, 8, 8),
    ("MPI_REAL8", 8, 8, 8),
    ("MPI_COMPLEX8", 8, 8, 8),
    ("MPI_LOGICAL16", 16, 16, 16),
    ("MPI_INTEGER16", 16, 16, 16),
    ("MPI_REAL16", 16, 16, 16),
    ("MPI_COMPLEX16", 16, 16, 16),
    ("MPI_COMPLEX32", 32, 32, 32),
];

#[test]
fn every_constant_has_a_type() {
    let types: Vec<Type> = (Basic::ALL.iter().map(|&basic| Type::basic(basic)))
        .chain(Pair::ALL.iter().map(|&pair| Type::pair(pair)))
        .collect();
    for &(name, size, extent, external) in CONSTANTS {
        let ty = types.iter().find(|ty| &*ty.name() == name);
        let ty = ty.unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(ty.size(), size, "{name}");
        assert_eq!((ty.lb(), ty.extent()), (0, extent as isize), "{name}");
        let layout = ty.commit().unwrap();
        assert_eq!(layout.external32_size(1), Ok(external), "{name}");
    }
    // Everything else is ours, and says so by its name.
    let ours: Vec<_> = types
        .iter()
        .map(Type::name)
        .filter(|name| !CONSTANTS.iter().any(|constant| constant.0 == &**name))
        .collect();
    assert_eq!(
        ours,
        ["i128".into(), "u128".into(), "bf16".into()] as [std::sync::Arc<str>; 3]
    );
}

#[test]
fn value_index_pairs() {
    let named = Type::value_index(Basic::F64, Basic::Int).unwrap();
    assert_eq!(named, Type::pair(Pair::DoubleInt));
    let wide = Type::value_index(Basic::F32, Basic::I64).unwrap();
    assert_eq!((wide.size(), wide.extent(), &*wide.name()), (12, 16, ""));
    assert_eq!(wide.signature().to_string(), "f32 x 1, i64 x 1");
    assert_eq!(
        wide.commit().unwrap().blocks(1).collect::<Vec<_>>(),
        [(0, 4), (8, 8)]
    );
    let error = Type::value_index(Basic::C64, Basic::Int).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot build value-index pair: value type is c64 \
         (hint: an integer or a floating-point type)"
    );
    let error = Type::value_index(Basic::F64, Basic::Logical).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot build value-index pair: index type is logical (hint: an integer type)"
    );
}

#[test]
fn parametrised_types() {
    for (range, bytes) in [
        (0, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 4),
        (9, 4),
        (10, 8),
        (18, 8),
        (19, 16),
        (38, 16),
    ] {
        assert_eq!(Type::f90_integer(range).unwrap().size(), bytes, "{range}");
    }
    for (precision, range, bytes) in [
        (Some(6), None, 4),
        (Some(6), Some(37), 4),
        (Some(7), None, 8),
        (None, Some(38), 8),
        (Some(15), Some(307), 8),
        (Some(16), None, 16),
        (Some(1), Some(308), 16),
        (Some(33), Some(4931), 16),
    ] {
        assert_eq!(Type::f90_real(precision, range).unwrap().size(), bytes);
        assert_eq!(
            Type::f90_complex(precision, range).unwrap().size(),
            2 * bytes
        );
    }
    for (error, text) in [
        (
            Type::f90_integer(39),
            "cannot build f90 integer type: range is 39 (hint: at most 38 digits)",
        ),
        (
            Type::f90_real(Some(34), None),
            "cannot build f90 real type: precision is 34 (hint: at most 33 digits)",
        ),
        (
            Type::f90_complex(None, Some(4932)),
            "cannot build f90 complex type: range is 4932 (hint: at most 4931)",
        ),
        (
            Type::f90_real(None, None),
            "cannot build f90 type: neither precision nor range is given \
             (hint: a real needs one of them)",
        ),
    ] {
        assert_eq!(error.unwrap_err().to_string(), text);
    }
}
