//! A type built again from its contents is the same type.

mod support;

use osier_datatype::{Basic, Combiner, Constructor, Order, Pair, Type};
use proptest::prelude::*;
use support::tree;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn contents_build_the_type_again(ty in tree()) {
        let again = rebuild(&ty);
        prop_assert_eq!(&again, &ty);
        prop_assert_eq!(again.combiner(), ty.combiner());
        prop_assert_eq!(
            (again.lb(), again.extent(), again.true_lb(), again.true_extent()),
            (ty.lb(), ty.extent(), ty.true_lb(), ty.true_extent())
        );
        prop_assert_eq!(again.typemap(), ty.typemap());
        prop_assert_eq!(again.commit().unwrap(), ty.commit().unwrap());
    }
}

/// From the leaves up, each level from the contents of the original.
fn rebuild(ty: &Type) -> Type {
    let mut constructor = ty.constructor().clone();
    match &mut constructor {
        Constructor::Structure { fields } => {
            for field in fields.iter_mut() {
                field.2 = rebuild(&field.2);
            }
        }
        Constructor::Dup { old }
        | Constructor::Contiguous { old, .. }
        | Constructor::Vector { old, .. }
        | Constructor::Hvector { old, .. }
        | Constructor::Indexed { old, .. }
        | Constructor::Hindexed { old, .. }
        | Constructor::IndexedBlock { old, .. }
        | Constructor::HindexedBlock { old, .. }
        | Constructor::Subarray { old, .. }
        | Constructor::Darray { old, .. }
        | Constructor::Resized { old, .. } => *old = rebuild(old),
        _ => {}
    }
    constructor.build().unwrap()
}

#[test]
fn arguments_come_back_as_they_were() {
    let double = Type::basic(Basic::DoublePrecision);
    assert_eq!(double.combiner(), Combiner::Named);
    assert_eq!(
        *double.constructor(),
        Constructor::Basic(Basic::DoublePrecision)
    );
    // Equal in representation, and still another type.
    assert_ne!(double, Type::basic(Basic::F64));

    // Zero blocks and idle arguments are kept.
    let blocks = [(0, 7), (2, -3), (0, 0)];
    let indexed = Type::indexed(&blocks, &double).unwrap();
    let Constructor::Indexed { blocks: kept, old } = indexed.constructor() else {
        panic!("{indexed:?}");
    };
    assert_eq!((&kept[..], old), (&blocks[..], &double));

    let real = Type::f90_real(Some(7), None).unwrap();
    assert_eq!(real.combiner(), Combiner::F90Real);
    assert_eq!(
        *real.constructor(),
        Constructor::F90Real {
            precision: Some(7),
            range: None
        }
    );
    assert_ne!(real, Type::f90_real(Some(8), None).unwrap());

    let pair = Type::value_index(Basic::F32, Basic::I16).unwrap();
    assert_eq!(pair.combiner(), Combiner::ValueIndex);
    assert_eq!(pair.constructor().types().count(), 0);
    assert_eq!(Type::pair(Pair::TwoReal).combiner(), Combiner::Named);

    let twin = indexed.dup().unwrap();
    assert_eq!(twin.combiner(), Combiner::Dup);
    assert!(twin.constructor().types().eq([&indexed]));
    assert_ne!(twin, indexed);
    assert_eq!(twin.commit().unwrap(), indexed.commit().unwrap());

    let fields = [(1, 0, double.clone()), (0, 8, twin.clone())];
    let structure = Type::structure(&fields).unwrap();
    assert!(structure.constructor().types().eq([&double, &twin]));

    let order = Order::Fortran;
    let face = Type::subarray(&[4, 5], &[4, 1], &[0, 2], order, &double).unwrap();
    assert_eq!(face.combiner(), Combiner::Subarray);
    assert_eq!(face.constructor().build().unwrap(), face);
}
