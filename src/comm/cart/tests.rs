use proptest::prelude::*;

use super::*;

fn created(nodes: usize, dims: &[usize]) -> Result<Vec<usize>, CartError> {
    let mut dims = dims.to_vec();
    dims_create(nodes, &mut dims).map(|()| dims)
}

#[test]
fn dims_create_as_in_the_standard() {
    // The examples of MPI 4.1, section 8.5.2.
    assert_eq!(created(6, &[0, 0]), Ok(vec![3, 2]));
    assert_eq!(created(7, &[0, 0]), Ok(vec![7, 1]));
    assert_eq!(created(6, &[0, 3, 0]), Ok(vec![2, 3, 1]));
    let error = created(7, &[0, 3, 0]).unwrap_err();
    assert!(matches!(error, CartError::NotDivisible { nodes: 7, .. }));
}

#[test]
fn dims_create_balances() {
    assert_eq!(created(1, &[0, 0, 0]), Ok(vec![1, 1, 1]));
    assert_eq!(created(16, &[0, 0, 0]), Ok(vec![4, 2, 2]));
    assert_eq!(created(64, &[0, 0, 0]), Ok(vec![4, 4, 4]));
    assert_eq!(created(72, &[0, 0]), Ok(vec![9, 8]));
    assert_eq!(created(1200, &[0, 0, 0]), Ok(vec![12, 10, 10]));
    assert_eq!(created(720_720, &[0, 0]), Ok(vec![858, 840]));
    assert_eq!(created(12, &[3, 4]), Ok(vec![3, 4]));
    assert_eq!(created(1, &[]), Ok(vec![]));
}

#[test]
fn dims_create_is_quick_for_any_grid() {
    let start = std::time::Instant::now();
    for (nodes, count) in [
        (u32::MAX as usize, 2),
        (1 << 31, 5),
        (4_294_967_291, 3),
        (3_491_888_400, 4),
        (3_491_888_400, 9),
        (3_491_888_400, 100),
        (2_205_403_200, 16),
        (3_491_888_400, 100_000),
    ] {
        let dims = created(nodes, &vec![0; count]).unwrap();
        assert_eq!(dims.iter().product::<usize>(), nodes);
        assert!(dims.is_sorted_by(|a, b| a >= b), "{dims:?}");
    }
    println!("{:?}", start.elapsed());
}

#[test]
fn wrong_arguments_are_told_apart() {
    let grid = CartTopology::new(&[3, 4], &[false, true]).unwrap();
    let cases = [
        (
            created(0, &[0]).err(),
            "cannot lay out 0 ranks: expected 1 to 2^32 - 1",
        ),
        (
            created(8, &[3, 0]).err(),
            "cannot lay out 8 ranks as [3, 0]: no whole number of ranks fits the free dimensions",
        ),
        (
            created(8, &[2, 2]).err(),
            "cannot lay out 8 ranks as [2, 2]: no whole number of ranks fits the free dimensions",
        ),
        (
            created(8, &[usize::MAX, 2, 0]).err(),
            "cannot lay out 8 ranks as [18446744073709551615, 2, 0]: \
             no whole number of ranks fits the free dimensions",
        ),
        (
            CartTopology::new(&[2, 0], &[true; 2]).err(),
            "dimension 1 of the grid is 0",
        ),
        (
            CartTopology::new(&[1 << 20, 1 << 20], &[true; 2]).err(),
            "a grid of [1048576, 1048576] has more than 2^32 - 1 positions",
        ),
        (
            CartTopology::new(&[2, 2], &[true]).err(),
            "1 periods for a grid of 2 dimensions",
        ),
        (
            grid.rank_of(&[1]).err(),
            "1 coordinates for a grid of 2 dimensions",
        ),
        (
            grid.rank_of(&[-1, 0]).err(),
            "coordinate -1 is outside dimension 0 of extent 3, which is not periodic",
        ),
        (
            grid.coords_of(12).err(),
            "rank 12 is out of range on a grid of 12",
        ),
        (
            grid.shift(12, 0, 1).err(),
            "rank 12 is out of range on a grid of 12",
        ),
        (
            grid.shift(0, 2, 1).err(),
            "dimension 2 of a grid of 2 dimensions",
        ),
    ];
    for (error, message) in cases {
        let error = error.unwrap();
        assert_eq!(error.to_string(), message);
        assert!(error.hint().is_some());
    }
}

#[test]
fn edges_and_wrapping() {
    let grid = CartTopology::new(&[3, 4], &[false, true]).unwrap();
    assert_eq!(grid.size(), 12);
    assert_eq!(grid.coords_of(7), Ok(vec![1, 3]));
    assert_eq!(grid.rank_of(&[1, -1]), Ok(7));
    assert_eq!(grid.rank_of(&[0, isize::MIN]), Ok(0));
    assert_eq!(grid.shift(7, 0, 1), Ok((Some(3), Some(11))));
    assert_eq!(grid.shift(3, 0, 1), Ok((None, Some(7))));
    assert_eq!(grid.shift(11, 0, 1), Ok((Some(7), None)));
    assert_eq!(grid.shift(7, 1, 1), Ok((Some(6), Some(4))));
    assert_eq!(grid.shift(7, 1, 4), Ok((Some(7), Some(7))));
    assert_eq!(grid.shift(7, 0, 0), Ok((Some(7), Some(7))));
    assert_eq!(grid.shift(7, 0, isize::MIN), Ok((None, None)));
    let point = CartTopology::new(&[], &[]).unwrap();
    assert_eq!((point.size(), point.rank_of(&[])), (1, Ok(0)));
    assert_eq!(point.coords_of(0), Ok(vec![]));
}

/// The least difference between largest and smallest of `count` factors.
fn least_difference(left: usize, count: usize, min: usize, max: usize) -> usize {
    if count == 0 {
        return if left == 1 { max - min } else { usize::MAX };
    }
    (1..=left)
        .filter(|factor| left.is_multiple_of(*factor))
        .map(|factor| least_difference(left / factor, count - 1, min.min(factor), max.max(factor)))
        .min()
        .unwrap_or(usize::MAX)
}

fn grid() -> impl Strategy<Value = CartTopology> {
    proptest::collection::vec((1..6_usize, any::<bool>()), 1..5).prop_map(|dims| {
        let (dims, periods): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        CartTopology::new(&dims, &periods).unwrap()
    })
}

proptest! {
    #[test]
    fn dims_create_finds_the_least_difference(nodes in 1..400_usize, count in 1..5_usize) {
        let dims = created(nodes, &vec![0; count]).unwrap();
        prop_assert_eq!(dims.iter().product::<usize>(), nodes);
        prop_assert!(dims.is_sorted_by(|a, b| a >= b));
        let least = least_difference(nodes, count, usize::MAX, 0);
        prop_assert_eq!(dims[0] - dims[count - 1], least);
    }

    #[test]
    fn dims_create_keeps_what_is_given(
        nodes in 1..200_usize,
        dims in proptest::collection::vec(0..5_usize, 0..5),
    ) {
        let fixed: usize = dims.iter().filter(|&&dim| dim != 0).product();
        let possible = nodes.is_multiple_of(fixed) && (dims.contains(&0) || fixed == nodes);
        match created(nodes, &dims) {
            Ok(filled) => {
                prop_assert!(possible);
                prop_assert_eq!(filled.iter().product::<usize>(), nodes);
                let kept = dims.iter().zip(&filled).all(|(&dim, &now)| dim == 0 || dim == now);
                prop_assert!(kept);
            }
            Err(_) => prop_assert!(!possible),
        }
    }

    #[test]
    fn ranks_and_coordinates_are_inverse(grid in grid(), turns in -3..4_isize) {
        for rank in 0..grid.size() {
            let coords = grid.coords_of(rank).unwrap();
            let turned: Vec<isize> = (0..coords.len())
                .map(|dim| {
                    let turns = if grid.periods()[dim] { turns } else { 0 };
                    coords[dim] as isize + turns * grid.dims()[dim] as isize
                })
                .collect();
            prop_assert_eq!(grid.rank_of(&turned), Ok(rank));
        }
    }

    #[test]
    fn shift_equals_coordinates(grid in grid(), by in -9..10_isize) {
        for rank in 0..grid.size() {
            for dim in 0..grid.dims().len() {
                let at = |by: isize| {
                    let mut coords: Vec<isize> = grid.coords_of(rank).unwrap()
                        .into_iter().map(|coordinate| coordinate as isize).collect();
                    coords[dim] += by;
                    grid.rank_of(&coords).ok()
                };
                let (source, dest) = grid.shift(rank, dim, by).unwrap();
                prop_assert_eq!((source, dest), (at(-by), at(by)));
                // Who I send to receives from me.
                if let Some(dest) = dest {
                    prop_assert_eq!(grid.shift(dest, dim, by).unwrap().0, Some(rank));
                }
            }
        }
    }
}
