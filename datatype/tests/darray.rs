//! Distributed arrays: values from the standard, partitions, bad arguments.

mod support;

use osier_datatype::{Basic, DarrayDimension, Distribution, Order, Type};
use proptest::prelude::*;
use support::{agrees, darray, order};

fn elements(ty: &Type) -> Vec<isize> {
    ty.typemap().iter().map(|(_, at)| at).collect()
}

fn byte() -> Type {
    Type::basic(Basic::Byte)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// All ranks together have every element once, each rank in array order.
    #[test]
    fn parts_make_the_whole(dims in darray(), order in order()) {
        let ranks: usize = dims.iter().map(|dim| dim.processes).product();
        let size: usize = dims.iter().map(|dim| dim.size).product();
        let mut all = Vec::new();
        for rank in 0..ranks {
            let part = Type::darray(ranks, rank, &dims, order, &byte()).unwrap();
            agrees(&part, 2, &[7]);
            prop_assert_eq!((part.lb(), part.extent()), (0, size as isize));
            let layout = part.commit().unwrap();
            let mut mine = Vec::new();
            for (at, length) in layout.blocks(1) {
                mine.extend(at..at + length as isize);
            }
            prop_assert!(mine.is_sorted(), "rank {} in order", rank);
            all.extend(mine);
        }
        all.sort_unstable();
        prop_assert_eq!(all, (0..size as isize).collect::<Vec<_>>());
    }
}

/// The standard's picture: 2 x 3 processes, rows cyclic, columns in blocks.
#[test]
fn a_grid_in_both_orders() {
    let dims = [
        DarrayDimension::cyclic(4, 1, 2),
        DarrayDimension::block(7, 3),
    ];
    // Rank 4 is row 1, column 1 of the grid: array rows 1, 3, columns 3 to 5.
    let c = Type::darray(6, 4, &dims, Order::C, &byte()).unwrap();
    assert_eq!(elements(&c), [10, 11, 12, 24, 25, 26]);
    let fortran = Type::darray(6, 4, &dims, Order::Fortran, &byte()).unwrap();
    assert_eq!(elements(&fortran), [13, 15, 17, 19, 21, 23]);
    assert_eq!(fortran.commit().unwrap().block_count(), 6);
}

#[test]
fn processes_without_a_part_have_an_empty_type_of_full_extent() {
    let dims = [DarrayDimension::block(5, 4)];
    let last = Type::darray(4, 3, &dims, Order::C, &byte()).unwrap();
    assert_eq!((last.size(), last.extent()), (0, 5));
    let cyclic = [DarrayDimension::cyclic(5, 4, 3)];
    let last = Type::darray(3, 2, &cyclic, Order::C, &byte()).unwrap();
    assert_eq!((last.size(), last.extent()), (0, 5));
}

#[test]
fn a_whole_array_is_contiguous_and_a_share_of_rows_strided() {
    let f64 = Type::basic(Basic::F64);
    let whole = [DarrayDimension::whole(30), DarrayDimension::whole(40)];
    let all = Type::darray(1, 0, &whole, Order::C, &f64).unwrap();
    assert_eq!(all.commit().unwrap().contiguous_at(1), Some(0));
    let rows = [
        DarrayDimension::cyclic(30, 2, 5),
        DarrayDimension::whole(40),
    ];
    let part = Type::darray(5, 1, &rows, Order::C, &f64).unwrap();
    let vector = Type::vector(3, 80, 400, &f64).unwrap();
    let vector = Type::hindexed(&[(1, 640)], &vector).unwrap();
    assert!(part.commit().unwrap().same_form(&vector.commit().unwrap()));
    let f90 = Type::f90_real(Some(15), None).unwrap();
    assert!(agree_on_signature(&f90, &f64));
}

fn agree_on_signature(a: &Type, b: &Type) -> bool {
    a.signature() == b.signature() && a.signature().hash() == b.signature().hash()
}

#[test]
fn large_arrays_cost_nothing() {
    let dims = [DarrayDimension::cyclic(1 << 40, 1 << 10, 64); 1];
    let ty = Type::darray(64, 63, &dims, Order::C, &byte()).unwrap();
    assert_eq!(ty.size(), 1 << 34);
    assert_eq!(ty.commit().unwrap().block_count(), 1 << 24);
    let one_block = [DarrayDimension::cyclic(10, usize::MAX, 2)];
    let all = Type::darray(2, 0, &one_block, Order::C, &byte()).unwrap();
    let none = Type::darray(2, 1, &one_block, Order::C, &byte()).unwrap();
    assert_eq!((all.size(), none.size()), (10, 0));
}

#[test]
fn bad_arguments_are_named() {
    let dims = [DarrayDimension::block(10, 2), DarrayDimension::whole(3)];
    let text = |ranks, rank, dims: &[DarrayDimension]| {
        let error = Type::darray(ranks, rank, dims, Order::C, &byte()).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        text(2, 2, &dims),
        "cannot build darray type: rank is 2 (hint: below the number of ranks, 2)"
    );
    assert_eq!(
        text(3, 2, &dims),
        "cannot build darray type: number of ranks is 3 \
         (hint: the product of the processes of all dimensions)"
    );
    assert_eq!(
        text(1, 0, &[]),
        "cannot build darray type: number of dimensions is 0 (hint: at least one)"
    );
    let with = |change: fn(&mut DarrayDimension)| {
        let mut dims = dims;
        change(&mut dims[0]);
        text(2, 0, &dims)
    };
    assert_eq!(
        with(|dim| dim.size = 0),
        "cannot build darray type: size is 0 in dimension 0 (hint: at least 1)"
    );
    assert_eq!(
        with(|dim| dim.processes = 0),
        "cannot build darray type: processes is 0 in dimension 0 (hint: at least 1)"
    );
    assert_eq!(
        with(|dim| dim.argument = Some(4)),
        "cannot build darray type: distribution argument is 4 in dimension 0, distributed by \
         blocks (hint: 2 blocks have to hold 10 elements)"
    );
    assert_eq!(
        with(|dim| dim.argument = Some(0)),
        "cannot build darray type: distribution argument is 0 in dimension 0 (hint: at least 1)"
    );
    assert_eq!(
        with(|dim| dim.distribution = Distribution::None),
        "cannot build darray type: processes is 2 in dimension 0, which is not distributed \
         (hint: 1 there)"
    );
    let huge = [DarrayDimension::whole(usize::MAX)];
    assert!(text(1, 0, &huge).starts_with("cannot build darray type: its extent exceeds"));
    let square = [DarrayDimension::cyclic(1 << 40, usize::MAX, 1); 2];
    assert!(text(1, 0, &square).starts_with("cannot build darray type: its extent exceeds"));
}
