//! Edges of common shapes. Pure.
//!
//! Each function tells, for a task by its coordinates, the coordinates of the tasks that its
//! messages go to, in ascending order of their numbers unless a line says otherwise. Time
//! and memory are those of a task's own edges.

use crate::space::Space;

/// Tells the consumers of a task.
pub type Consumers = dyn Fn(&[usize], &mut dyn FnMut(&[usize])) + Send + Sync;

/// One step along each of the offsets, in their order. What lies outside the space is left
/// out; where the space is `periodic`, it comes in at the other side.
///
/// ```
/// use osier_tasks::{layout, space::Space};
///
/// let row = Space::new(&[3])?;
/// let edges = layout::offsets(&row, vec![vec![-1], vec![1]], false);
/// let mut to = Vec::new();
/// edges(&[0], &mut |at| to.push(at.to_vec()));
/// assert_eq!(to, [[1]]);
/// # Ok::<(), osier_tasks::space::SpaceError>(())
/// ```
pub fn offsets(space: &Space, offsets: Vec<Vec<isize>>, periodic: bool) -> Box<Consumers> {
    let extents: Vec<usize> = space.extents().into();
    Box::new(move |at, tell| {
        let mut to = vec![0; at.len()];
        'offsets: for offset in &offsets {
            for d in 0..at.len() {
                let step = offset.get(d).copied().unwrap_or(0);
                let moved = at[d] as isize + step;
                let extent = extents[d] as isize;
                to[d] = match (0..extent).contains(&moved) {
                    true => moved as usize,
                    false if periodic => moved.rem_euclid(extent) as usize,
                    false => continue 'offsets,
                };
            }
            tell(&to);
        }
    })
}

/// The neighbors along each dimension.
pub fn neighbors(space: &Space, periodic: bool) -> Box<Consumers> {
    let dimensions = space.extents().len();
    let along = |d: usize, step: isize| {
        let mut offset = vec![0; dimensions];
        offset[d] = step;
        offset
    };
    let down = (0..dimensions).map(|d| along(d, -1));
    let up = (0..dimensions).rev().map(|d| along(d, 1));
    offsets(space, down.chain(up).collect(), periodic)
}

/// All neighbors, along edges and corners too: 26 in three dimensions.
pub fn stencil(space: &Space, periodic: bool) -> Box<Consumers> {
    let mut all = vec![Vec::new()];
    for _ in space.extents() {
        let longer = |offset: &Vec<isize>| {
            let offset = offset.clone();
            (-1..=1).map(move |step| [&offset[..], &[step]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.retain(|offset| offset.iter().any(|step| *step != 0));
    offsets(space, all, periodic)
}

/// A binomial tree over the numbers, from 0 to the leaves: the children of `n` are `n` plus
/// each power of two above `n`.
pub fn binomial_tree(space: &Space) -> Box<Consumers> {
    by_number(space, |len, n, tell| {
        let first = n.checked_ilog2().map_or(0, |bit| bit + 1);
        (first..63)
            .map(|bit| n + (1 << bit))
            .take_while(|child| *child < len)
            .for_each(tell);
    })
}

/// A binary heap over the numbers, from 0 to the leaves: the children of `n` are `2n + 1`
/// and `2n + 2`.
pub fn heap(space: &Space) -> Box<Consumers> {
    by_number(space, |len, n, tell| {
        let child = n.saturating_mul(2).saturating_add(1);
        (child..child.saturating_add(2))
            .filter(|child| *child < len)
            .for_each(tell);
    })
}

/// From each to all, itself included.
pub fn all_to_all(space: &Space) -> Box<Consumers> {
    by_number(space, |len, _, tell| (0..len).for_each(tell))
}

fn by_number(
    space: &Space,
    children: impl Fn(u64, u64, &mut dyn FnMut(u64)) + Send + Sync + 'static,
) -> Box<Consumers> {
    let space = space.clone();
    Box::new(move |at, tell| {
        let Some(number) = space.number(at) else {
            return;
        };
        let mut to = vec![0; at.len()];
        children(space.len(), number, &mut |child| {
            space.write_at(child, &mut to);
            tell(&to);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(edges: &Consumers, at: &[usize]) -> Vec<Vec<usize>> {
        let mut all = Vec::new();
        edges(at, &mut |to| all.push(to.to_vec()));
        all
    }

    #[test]
    fn neighbors_end_at_the_border_or_come_round() {
        let space = Space::new(&[3, 3]).expect("a space");
        assert_eq!(told(&neighbors(&space, false), &[0, 0]), [[0, 1], [1, 0]]);
        let all = told(&neighbors(&space, true), &[0, 0]);
        assert_eq!(all, [[2, 0], [0, 2], [0, 1], [1, 0]]);
        assert_eq!(told(&stencil(&space, false), &[1, 1]).len(), 8);
        assert_eq!(told(&stencil(&space, false), &[0, 0]).len(), 3);
        let cube = Space::new(&[3, 3, 3]).expect("a space");
        let around = told(&stencil(&cube, false), &[1, 1, 1]);
        assert_eq!(around.len(), 26);
        let numbers: Vec<_> = around.iter().map(|at| cube.number(at)).collect();
        assert!(numbers.is_sorted());
    }

    #[test]
    fn trees_reach_every_task_once() {
        for len in [1, 2, 5, 16, 37] {
            let space = Space::new(&[len]).expect("a space");
            for edges in [binomial_tree(&space), heap(&space)] {
                let mut reached = vec![0; len];
                for n in 0..len {
                    for to in told(&edges, &[n]) {
                        assert!(to[0] > n);
                        reached[to[0]] += 1;
                    }
                }
                assert_eq!(reached[0], 0);
                assert!(reached[1..].iter().all(|times| *times == 1), "{reached:?}");
            }
            assert_eq!(told(&all_to_all(&space), &[0]).len(), len);
        }
    }
}
