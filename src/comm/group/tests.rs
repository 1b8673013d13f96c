use proptest::prelude::*;

use super::*;

fn group(ranks: &[usize]) -> Group {
    Group::from_world_ranks(ranks).unwrap()
}

fn list(group: &Group) -> Vec<usize> {
    group.world_ranks().collect()
}

fn range(first: usize, last: usize, stride: isize) -> RankRange {
    RankRange {
        first,
        last,
        stride,
    }
}

#[test]
fn consecutive_ranks_need_no_table() {
    for group in [
        Group::empty(),
        Group::identity(1 << 31),
        group(&[5]),
        group(&[3, 4, 5]),
        Group::identity(9).excl(&[0, 8]).unwrap(),
    ] {
        assert!(matches!(group.0, Members::Range(_)), "{group:?}");
    }
    assert_eq!(Group::identity(1 << 31).rank_of(12345), Some(12345));
    assert_eq!(
        Group::identity(4).difference(&Group::identity(4)),
        Group::empty()
    );
    assert!(group(&[]).is_empty());
}

#[test]
fn far_apart_members_are_found() {
    let group = group(&[4_000_000_000, 7, 1_000_000]);
    assert_eq!(group.rank_of(1_000_000), Some(2));
    assert_eq!(group.rank_of(4_000_000_000), Some(0));
    assert_eq!(group.rank_of(8), None);
    assert_eq!(group.rank_of(usize::MAX), None);
    assert_eq!(group.world_rank(1), Some(7));
    assert_eq!(group.world_rank(3), None);
}

#[test]
fn ranges_as_in_the_standard() {
    // The example of MPI 4.1, section 7.3.2.
    let ranks: Vec<usize> = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|rank| rank + 10).into();
    let chosen = group(&ranks)
        .range_incl(&[range(6, 7, 1), range(1, 6, 2), range(9, 8, -1)])
        .map(|group| list(&group));
    assert_eq!(chosen, Ok(vec![16, 17, 11, 13, 15, 19, 18]));
    let left = group(&ranks).range_excl(&[range(9, 0, -3)]).unwrap();
    assert_eq!(list(&left), [11, 12, 14, 15, 17, 18]);
}

#[test]
fn wrong_arguments_are_told_apart() {
    let four = Group::identity(4);
    let huge = usize::MAX;
    let cases = [
        (four.incl(&[0, 4]), "rank 4 is out of range in a group of 4"),
        (four.excl(&[2, 1, 2]), "rank 2 is named more than once"),
        (
            Group::from_world_ranks(&[9, 7, 9]),
            "rank 9 is named more than once",
        ),
        (
            Group::single(huge),
            "rank 18446744073709551615 does not fit 32 bits",
        ),
        (
            four.range_incl(&[range(0, 3, 0)]),
            "range from rank 0 to 3 has stride 0",
        ),
        (
            four.range_incl(&[range(3, 0, 1)]),
            "range from rank 3 never reaches 0 with stride 1",
        ),
        (
            four.range_incl(&[range(0, huge, 1)]),
            "rank 18446744073709551615 is out of range in a group of 4",
        ),
        (
            four.range_excl(&[range(0, 2, 1), range(3, 1, -1)]),
            "rank 2 is named more than once",
        ),
        (
            four.range_incl(&[range(huge, 0, isize::MIN)]),
            "rank 18446744073709551615 is out of range in a group of 4",
        ),
    ];
    for (result, message) in cases {
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(error.hint().is_some());
    }
    // A stride may be longer than the range.
    let one = four.range_incl(&[range(1, 3, isize::MAX)]).unwrap();
    assert_eq!(list(&one), [1]);
    let out = four.translate_ranks(&[4], &four);
    assert_eq!(out, Err(GroupError::RankOutOfRange { rank: 4, size: 4 }));
}

#[test]
fn comparison() {
    let a = group(&[3, 1, 2]);
    assert_eq!(a.compare(&a.clone()), GroupComparison::Ident);
    assert_eq!(a.compare(&group(&[3, 1, 2])), GroupComparison::Ident);
    assert_eq!(a.compare(&group(&[1, 2, 3])), GroupComparison::Similar);
    assert_eq!(a.compare(&group(&[1, 2, 4])), GroupComparison::Unequal);
    assert_eq!(a.compare(&group(&[1, 2])), GroupComparison::Unequal);
    let none = Group::identity(7).intersection(&group(&[9]));
    assert_eq!(none.compare(&Group::empty()), GroupComparison::Ident);
}

/// Distinct world ranks in any order, near together or far apart.
fn members() -> impl Strategy<Value = Vec<usize>> {
    (
        proptest::collection::hash_set(0..24_usize, 0..12),
        prop_oneof![Just(1), Just(3), Just(1_000_003)],
        any::<bool>(),
    )
        .prop_map(|(set, scale, sorted)| {
            let mut ranks: Vec<usize> = set.into_iter().map(|rank| rank * scale).collect();
            if sorted {
                ranks.sort_unstable();
            }
            ranks
        })
}

proptest! {
    #[test]
    fn sets_equal_lists(a in members(), b in members()) {
        let (ga, gb) = (group(&a), group(&b));
        prop_assert_eq!(list(&ga), a.clone());
        prop_assert_eq!(ga.size(), a.len());
        let both: Vec<usize> = a.iter().copied().filter(|r| b.contains(r)).collect();
        let only_a: Vec<usize> = a.iter().copied().filter(|r| !b.contains(r)).collect();
        let only_b = b.iter().copied().filter(|r| !a.contains(r));
        let either: Vec<usize> = a.iter().copied().chain(only_b).collect();
        prop_assert_eq!(list(&ga.intersection(&gb)), both);
        prop_assert_eq!(list(&ga.difference(&gb)), only_a);
        prop_assert_eq!(list(&ga.union(&gb)), either);
        prop_assert_eq!(ga == gb, a == b);
        let position = |list: &[usize], rank| list.iter().position(|&r| r == rank);
        for rank in (0..30).map(|r| r * 3).chain(a.iter().copied()) {
            prop_assert_eq!(gb.rank_of(rank), position(&b, rank));
        }
        let all: Vec<usize> = (0..a.len()).collect();
        let expected: Vec<_> = a.iter().map(|&rank| position(&b, rank)).collect();
        prop_assert_eq!(ga.translate_ranks(&all, &gb), Ok(expected));
        let (mut sorted_a, mut sorted_b) = (a.clone(), b.clone());
        sorted_a.sort_unstable();
        sorted_b.sort_unstable();
        let comparison = if a == b {
            GroupComparison::Ident
        } else if sorted_a == sorted_b {
            GroupComparison::Similar
        } else {
            GroupComparison::Unequal
        };
        prop_assert_eq!(ga.compare(&gb), comparison);
    }

    #[test]
    fn incl_and_excl_equal_lists(a in members(), picks in prop::collection::vec(0..14_usize, 0..6)) {
        let ga = group(&a);
        let mut distinct = picks.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let valid = distinct.len() == picks.len() && picks.iter().all(|&rank| rank < a.len());
        let incl = ga.incl(&picks).ok().map(|group| list(&group));
        let excl = ga.excl(&picks).ok().map(|group| list(&group));
        prop_assert_eq!(incl, valid.then(|| picks.iter().map(|&rank| a[rank]).collect()));
        let left = (0..a.len()).filter(|rank| !picks.contains(rank)).map(|rank| a[rank]);
        prop_assert_eq!(excl, valid.then(|| left.collect()));
    }
}
