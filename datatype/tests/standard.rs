//! Constructors with values from the MPI standard, and bad arguments.

use osier_datatype::{Basic, Order, Type, TypeError};

fn map(ty: &Type) -> Vec<(Basic, isize)> {
    ty.typemap().iter().collect()
}

/// `{(double, 0), (char, 8)}`, extent 16: the old type of the standard's
/// examples (MPI 4.1, section 5.1).
fn double_char() -> Type {
    let ty = Type::structure(&[
        (1, 0, Type::basic(Basic::F64)),
        (1, 8, Type::basic(Basic::Char)),
    ])
    .unwrap();
    assert_eq!((ty.size(), ty.extent(), ty.true_extent()), (9, 16, 9));
    ty
}

fn displacements(ty: &Type) -> Vec<isize> {
    map(ty).into_iter().map(|(_, at)| at).collect()
}

#[test]
fn contiguous() {
    let ty = Type::contiguous(3, &double_char()).unwrap();
    assert_eq!(displacements(&ty), [0, 8, 16, 24, 32, 40]);
    assert_eq!(ty.extent(), 48);
}

#[test]
fn vector() {
    let ty = Type::vector(2, 3, 4, &double_char()).unwrap();
    assert_eq!(
        displacements(&ty),
        [0, 8, 16, 24, 32, 40, 64, 72, 80, 88, 96, 104]
    );
    let ty = Type::vector(3, 1, -2, &double_char()).unwrap();
    assert_eq!(displacements(&ty), [0, 8, -32, -24, -64, -56]);
    assert_eq!((ty.lb(), ty.ub()), (-64, 16));
}

#[test]
fn indexed() {
    let ty = Type::indexed(&[(3, 4), (1, 0)], &double_char()).unwrap();
    assert_eq!(displacements(&ty), [64, 72, 80, 88, 96, 104, 0, 8]);
    let ty = Type::indexed_block(2, &[5, 1], &double_char()).unwrap();
    assert_eq!(displacements(&ty), [80, 88, 96, 104, 16, 24, 32, 40]);
}

#[test]
fn structure() {
    let ty = Type::structure(&[
        (2, 0, Type::basic(Basic::F32)),
        (1, 16, double_char()),
        (3, 26, Type::basic(Basic::Char)),
    ])
    .unwrap();
    assert_eq!(displacements(&ty), [0, 4, 16, 24, 26, 27, 28]);
    assert_eq!(ty.signature().to_string(), "f32 x 2, f64 x 1, char x 4");
}

/// The example on markers: resized(int, -3, 9), then two of them.
#[test]
fn resized() {
    let ty = Type::resized(-3, 9, &Type::basic(Basic::I32)).unwrap();
    assert_eq!((ty.lb(), ty.ub(), ty.extent()), (-3, 6, 9));
    assert_eq!((ty.true_lb(), ty.true_extent()), (0, 4));
    let two = Type::contiguous(2, &ty).unwrap();
    assert_eq!(displacements(&two), [0, 9]);
    assert_eq!((two.lb(), two.ub()), (-3, 15));
    // Markers are sticky: other data does not move them.
    let mixed = Type::structure(&[(1, 0, ty), (1, 100, Type::basic(Basic::I32))]).unwrap();
    assert_eq!((mixed.lb(), mixed.ub()), (-3, 6));
}

#[test]
fn subarray() {
    let float = Type::basic(Basic::F64);
    let c = Type::subarray(&[4, 5], &[2, 3], &[1, 2], Order::C, &float).unwrap();
    assert_eq!(displacements(&c), [56, 64, 72, 96, 104, 112]);
    assert_eq!((c.lb(), c.extent(), c.size()), (0, 160, 48));
    let fortran = Type::subarray(&[5, 4], &[3, 2], &[2, 1], Order::Fortran, &float).unwrap();
    assert_eq!(map(&c), map(&fortran));
}

#[test]
fn zero_counts_are_empty() {
    let old = Type::resized(-8, 64, &Type::basic(Basic::F64)).unwrap();
    let none = [
        Type::contiguous(0, &old).unwrap(),
        Type::vector(0, 3, 9, &old).unwrap(),
        Type::vector(3, 0, 9, &old).unwrap(),
        Type::indexed(&[], &old).unwrap(),
        Type::indexed(&[(0, 7)], &old).unwrap(),
        Type::structure(&[(0, 5, old.clone())]).unwrap(),
        Type::structure(&[]).unwrap(),
    ];
    for ty in none {
        assert_eq!((ty.size(), ty.lb(), ty.extent()), (0, 0, 0), "{ty:?}");
        let layout = ty.commit().unwrap();
        assert_eq!(layout.blocks(5).count(), 0);
        assert_eq!(layout.contiguous_at(5), Some(0));
        layout.pack(&[], 0, 5, 0..0, &mut []).unwrap();
    }
    let sized = Type::resized(0, 16, &Type::structure(&[]).unwrap()).unwrap();
    assert_eq!((sized.extent(), sized.size()), (16, 0));
}

fn overflows(result: Result<Type, TypeError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, TypeError::Overflow { .. }), "{error}");
    assert!(error.to_string().contains("hint"), "{error}");
}

#[test]
fn overflow_is_an_error() {
    let f64 = Type::basic(Basic::F64);
    let huge = isize::MAX as usize;
    overflows(Type::contiguous(huge, &f64));
    overflows(Type::contiguous(usize::MAX, &f64));
    overflows(Type::contiguous(usize::MAX, &Type::basic(Basic::Byte)));
    overflows(Type::vector(2, 1, isize::MAX, &f64));
    overflows(Type::vector(2, 1, isize::MIN, &f64));
    overflows(Type::vector(3, usize::MAX, 1, &f64));
    overflows(Type::hvector(2, 1, isize::MAX, &f64));
    overflows(Type::hvector(3, 1, isize::MAX / 2 + 1, &f64));
    overflows(Type::hvector(usize::MAX, usize::MAX, 0, &f64));
    overflows(Type::indexed(&[(1, isize::MAX)], &f64));
    overflows(Type::indexed(&[(1, isize::MIN)], &f64));
    overflows(Type::hindexed(&[(1, isize::MAX)], &f64));
    overflows(Type::hindexed(
        &[(1, isize::MAX - 8), (1, isize::MIN)],
        &f64,
    ));
    overflows(Type::indexed(&[(usize::MAX, 0)], &f64));
    overflows(Type::hindexed_block(huge, &[0, 8], &f64));
    overflows(Type::structure(&[(1, isize::MAX, f64.clone())]));
    overflows(Type::structure(&[
        (huge / 8, 0, f64.clone()),
        (huge / 8, 0, f64.clone()),
    ]));
    overflows(Type::resized(isize::MAX, 1, &f64));
    overflows(Type::resized(isize::MIN, -1, &f64));
    let dims = [usize::MAX, usize::MAX];
    overflows(Type::subarray(&dims, &[1, 1], &[0, 0], Order::C, &f64));
    // The largest possible ones are fine.
    let most = Type::contiguous(huge, &Type::basic(Basic::Byte)).unwrap();
    let layout = most.commit().unwrap();
    assert_eq!(layout.packed_bytes(1), Some(huge));
    assert_eq!(layout.packed_bytes(2), None);
    assert_eq!(layout.span(2), (0, isize::MAX));
    assert!(layout.pack(&[], 0, 2, 0..0, &mut []).is_err());
    assert!(!layout.self_overlaps(1));
}

#[test]
fn bad_subarrays() {
    let f64 = Type::basic(Basic::F64);
    let error = Type::subarray(&[4, 5], &[2], &[0, 0], Order::C, &f64).unwrap_err();
    assert!(matches!(error, TypeError::Dimensions { subsizes: 1, .. }));
    assert!(Type::subarray(&[], &[], &[], Order::C, &f64).is_err());
    let error = Type::subarray(&[4, 5], &[2, 3], &[0, 3], Order::C, &f64).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot build subarray type: dimension 1 starts at 3 with 3 of 5 elements \
         (hint: 1 <= subsize, start + subsize <= size)"
    );
    assert!(Type::subarray(&[4], &[0], &[0], Order::C, &f64).is_err());
    assert!(Type::subarray(&[4], &[2], &[usize::MAX], Order::C, &f64).is_err());
}

#[test]
fn deep_trees_are_refused() {
    let mut ty = Type::basic(Basic::F64);
    for _ in 0..256 {
        ty = Type::vector(2, 1, 0, &ty)
            .and_then(|ty| Type::resized(0, 8, &ty))
            .unwrap_or(ty);
    }
    let mut ty = Type::basic(Basic::F64);
    let error = loop {
        match Type::resized(0, 8, &ty) {
            Ok(deeper) => ty = deeper,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TypeError::Depth { limit: 256, .. }));
    assert_eq!(ty.commit().unwrap().size(), 8);
}

#[test]
fn buffers_are_checked() {
    let every_second = Type::vector(4, 1, 2, &Type::basic(Basic::F64)).unwrap();
    let layout = every_second.commit().unwrap();
    let memory = [7u8; 56];
    let mut packed = [0; 32];
    layout.pack(&memory, 0, 1, 0..32, &mut packed).unwrap();
    assert_eq!(packed, [7; 32]);
    let error = layout
        .pack(&memory[..55], 0, 1, 0..32, &mut packed)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "1 instances touch bytes 0..56 around their origin, but the buffer holds 55 bytes \
         with the origin at 0 (hint: check count, origin and extent)"
    );
    assert!(layout.pack(&memory, 1, 1, 0..32, &mut packed).is_err());
    assert!(
        layout
            .pack(&memory, usize::MAX, 1, 0..32, &mut packed)
            .is_err()
    );
    let error = layout.pack(&memory, 0, 1, 0..33, &mut [0; 33]).unwrap_err();
    assert!(matches!(error, TypeError::Fragment { packed: 32, .. }));
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = layout.pack(&memory, 0, 1, 5..4, &mut packed);
    assert!(matches!(backwards, Err(TypeError::Fragment { .. })));
    let error = layout.pack(&memory, 0, 1, 0..8, &mut packed).unwrap_err();
    assert!(matches!(
        error,
        TypeError::Packed {
            bytes: 32,
            fragment: 8
        }
    ));
    assert!(
        layout
            .pack(&memory, 0, usize::MAX, 0..8, &mut packed[..8])
            .is_err()
    );
    let backward = Type::hvector(2, 1, -16, &Type::basic(Basic::F64))
        .unwrap()
        .commit()
        .unwrap();
    assert!(
        backward
            .pack(&memory, 0, 1, 0..16, &mut packed[..16])
            .is_err()
    );
    backward
        .pack(&memory, 16, 1, 0..16, &mut packed[..16])
        .unwrap();
}
