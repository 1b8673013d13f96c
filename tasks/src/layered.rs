//! Layered layout of directed graphs: columns by longest path, few crossings. Pure.
//!
//! # Invariants
//! 1. Equal input has equal output: ties go to the lower number.
//! 2. Edges that are not cut have no cycle, and lead from a column to a later one.
//! 3. Boxes of a column do not overlap.
//!
//! # Sources
//! K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
//! structures", IEEE Transactions on Systems, Man, and Cybernetics 11 (2), 1981: layers, bends
//! where an edge passes one, order by the mean of the neighbors. The vertical places are
//! simpler here: the mean of the lowest and the highest places that keep the order.

/// An edge between boxes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub from: usize,
    pub to: usize,
    /// It does not count for the columns.
    pub is_cut: bool,
}

/// Distances in a layout.
#[derive(Clone, Copy)]
pub(crate) struct Gaps {
    /// Between columns, and between boxes of one.
    pub columns: f64,
    pub boxes: f64,
}

/// Where boxes are.
pub(crate) struct Columns {
    /// By box: its left and upper edge.
    pub at: Vec<(f64, f64)>,
    /// By box: width of its column.
    pub widths: Vec<f64>,
    /// By edge: bends in columns between its ends, as left edge, right edge and height.
    pub bends: Vec<Vec<(f64, f64, f64)>>,
    pub height: f64,
}

/// Cuts edges until no cycle is left: those that lead to a box from which the search has come.
pub(crate) fn cut_cycles(boxes: usize, edges: &mut [Edge]) {
    const NEW: u8 = 0;
    const OPEN: u8 = 1;
    const DONE: u8 = 2;
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); boxes];
    for (number, edge) in edges.iter().enumerate().filter(|(_, e)| !e.is_cut) {
        out[edge.from].push(number);
    }
    let mut state = vec![NEW; boxes];
    for root in 0..boxes {
        if state[root] != NEW {
            continue;
        }
        let mut path = vec![(root, 0)];
        state[root] = OPEN;
        while let Some((at, next)) = path.last_mut() {
            let Some(number) = out[*at].get(*next).copied() else {
                state[*at] = DONE;
                path.pop();
                continue;
            };
            *next += 1;
            let to = edges[number].to;
            match state[to] {
                NEW => {
                    state[to] = OPEN;
                    path.push((to, 0));
                }
                OPEN => edges[number].is_cut = true,
                _ => {}
            }
        }
    }
}

/// Boxes so that edges lead from earlier to later ones. Their cycles are cut.
pub(crate) fn in_order(boxes: usize, edges: &[Edge]) -> Vec<usize> {
    let uncut = || edges.iter().filter(|edge| !edge.is_cut);
    let mut into = vec![0usize; boxes];
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); boxes];
    for edge in uncut() {
        into[edge.to] += 1;
        out[edge.from].push(edge.to);
    }
    let mut order: Vec<usize> = (0..boxes).filter(|at| into[*at] == 0).collect();
    let mut done = 0;
    while let Some(at) = order.get(done).copied() {
        done += 1;
        for to in &out[at] {
            into[*to] -= 1;
            if into[*to] == 0 {
                order.push(*to);
            }
        }
    }
    order
}

/// By box: the column, as many as edges on the longest path to it.
pub(crate) fn columns(boxes: usize, edges: &[Edge]) -> Vec<usize> {
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); boxes];
    for edge in edges.iter().filter(|edge| !edge.is_cut) {
        out[edge.from].push(edge.to);
    }
    let mut columns = vec![0; boxes];
    for at in in_order(boxes, edges) {
        for to in &out[at] {
            columns[*to] = columns[*to].max(columns[at] + 1);
        }
    }
    columns
}

/// The heaviest path along edges that are not cut: its boxes, and its weight.
pub(crate) fn heaviest_path(weights: &[u64], edges: &[Edge]) -> (Vec<usize>, u64) {
    let boxes = weights.len();
    let mut into: Vec<Vec<usize>> = vec![Vec::new(); boxes];
    for edge in edges.iter().filter(|edge| !edge.is_cut) {
        into[edge.to].push(edge.from);
    }
    // By box: the weight of the heaviest path that ends there, and the box before it.
    let mut best: Vec<(u64, Option<usize>)> = vec![(0, None); boxes];
    for at in in_order(boxes, edges) {
        into[at].sort_unstable();
        let mut before: Option<usize> = None;
        for from in &into[at] {
            if before.is_none_or(|b| best[*from].0 > best[b].0) {
                before = Some(*from);
            }
        }
        let weight = before.map_or(0, |b| best[b].0);
        best[at] = (weight.saturating_add(weights[at]), before);
    }
    let ends = (0..boxes).max_by_key(|at| (best[*at].0, std::cmp::Reverse(*at)));
    let Some(last) = ends else {
        return (Vec::new(), 0);
    };
    let mut path = vec![last];
    while let Some(before) = path.last().and_then(|at| best[*at].1) {
        path.push(before);
    }
    path.reverse();
    (path, best[last].0)
}

/// Something in a column: a box, or a bend of an edge.
struct Item {
    column: usize,
    /// Box, or none.
    of_box: Option<usize>,
    height: f64,
    /// Items in the columns before and behind.
    before: Vec<usize>,
    behind: Vec<usize>,
}

/// Height that a bend takes.
const BEND: f64 = 8.0;
/// Times that the order and the places are bettered.
const SWEEPS: usize = 8;

/// Places boxes of these widths and heights. Their cycles are cut.
pub(crate) fn place(sizes: &[(f64, f64)], edges: &[Edge], gaps: Gaps) -> Columns {
    let column_of = columns(sizes.len(), edges);
    let count = column_of.iter().max().map_or(0, |last| last + 1);
    let mut items: Vec<Item> = Vec::new();
    for (at, (_, height)) in sizes.iter().enumerate() {
        items.push(Item {
            column: column_of[at],
            of_box: Some(at),
            height: *height,
            before: Vec::new(),
            behind: Vec::new(),
        });
    }
    let mut bends: Vec<Vec<usize>> = Vec::new();
    for edge in edges {
        let mut passes = Vec::new();
        if !edge.is_cut {
            let mut last = edge.from;
            for column in column_of[edge.from] + 1..column_of[edge.to] {
                items.push(Item {
                    column,
                    of_box: None,
                    height: BEND,
                    before: Vec::new(),
                    behind: Vec::new(),
                });
                let bend = items.len() - 1;
                link(&mut items, last, bend);
                passes.push(bend);
                last = bend;
            }
            link(&mut items, last, edge.to);
        }
        bends.push(passes);
    }
    let mut orders: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (number, item) in items.iter().enumerate() {
        orders[item.column].push(number);
    }
    order(&items, &mut orders);
    let centers = heights(&items, &orders, gaps);

    let mut widths = vec![0.0f64; count];
    for (at, (width, _)) in sizes.iter().enumerate() {
        widths[column_of[at]] = widths[column_of[at]].max(*width);
    }
    let mut lefts = Vec::new();
    let mut left = 0.0;
    for width in &widths {
        lefts.push(left);
        left += width + gaps.columns;
    }
    let bend = |number: &usize| {
        let column = items[*number].column;
        (
            lefts[column],
            lefts[column] + widths[column],
            centers[*number],
        )
    };
    let top = |at: usize| centers[at] - sizes[at].1 / 2.0;
    let bottom = |number: usize| centers[number] + items[number].height / 2.0;
    Columns {
        at: (0..sizes.len())
            .map(|at| (lefts[column_of[at]], top(at)))
            .collect(),
        widths: column_of.iter().map(|column| widths[*column]).collect(),
        bends: bends
            .iter()
            .map(|passes| passes.iter().map(bend).collect())
            .collect(),
        height: (0..items.len()).map(bottom).fold(0.0, f64::max),
    }
}

fn link(items: &mut [Item], from: usize, to: usize) {
    items[from].behind.push(to);
    items[to].before.push(from);
}

/// Orders each column so that few edges cross.
fn order(items: &[Item], orders: &mut Vec<Vec<usize>>) {
    let mut best = (crossings(items, orders), orders.clone());
    for sweep in 0..SWEEPS {
        let forward = sweep % 2 == 0;
        let mut rank = vec![0.0; items.len()];
        let columns: Vec<usize> = match forward {
            true => (0..orders.len()).collect(),
            false => (0..orders.len()).rev().collect(),
        };
        for column in columns {
            let mean = |number: usize, at: usize| {
                let near = match forward {
                    true => &items[number].before,
                    false => &items[number].behind,
                };
                match near.len() {
                    // It stays where it is.
                    0 => at as f64,
                    n => near.iter().map(|item| rank[*item]).sum::<f64>() / n as f64,
                }
            };
            let mut keyed: Vec<(f64, usize)> = orders[column]
                .iter()
                .enumerate()
                .map(|(at, number)| (mean(*number, at), *number))
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (at, (_, number)) in keyed.iter().enumerate() {
                rank[*number] = at as f64;
            }
            orders[column] = keyed.into_iter().map(|(_, number)| number).collect();
        }
        let crossings = crossings(items, orders);
        if crossings < best.0 {
            best = (crossings, orders.clone());
        }
    }
    *orders = best.1;
}

fn crossings(items: &[Item], orders: &[Vec<usize>]) -> usize {
    let mut place = vec![0; items.len()];
    for order in orders {
        for (at, number) in order.iter().enumerate() {
            place[*number] = at;
        }
    }
    let mut crossings = 0;
    for order in orders {
        let lines = order.iter().flat_map(|number| {
            let to = items[*number].behind.iter();
            to.map(|to| (place[*number], place[*to]))
        });
        let lines: Vec<(usize, usize)> = lines.collect();
        for (at, a) in lines.iter().enumerate() {
            let crosses =
                |b: &&(usize, usize)| (a.0 < b.0 && a.1 > b.1) || (a.0 > b.0 && a.1 < b.1);
            crossings += lines[..at].iter().filter(crosses).count();
        }
    }
    crossings
}

/// By item: its height in the picture, near those of its neighbors.
fn heights(items: &[Item], orders: &[Vec<usize>], gaps: Gaps) -> Vec<f64> {
    let mut centers = vec![0.0; items.len()];
    // The least distance of an item from the one above it.
    let step = |above: usize, below: usize| {
        let is_bend = items[above].of_box.is_none() && items[below].of_box.is_none();
        let gap = if is_bend { 0.0 } else { gaps.boxes };
        (items[above].height + items[below].height) / 2.0 + gap
    };
    for order in orders {
        let mut at = 0.0;
        for (place, number) in order.iter().enumerate() {
            at += match place {
                0 => 0.0,
                _ => step(order[place - 1], *number),
            };
            centers[*number] = at;
        }
        let half = at / 2.0;
        order.iter().for_each(|number| centers[*number] -= half);
    }
    for sweep in 0..SWEEPS {
        let forward = sweep % 2 == 0;
        let columns: Vec<&Vec<usize>> = match forward {
            true => orders.iter().collect(),
            false => orders.iter().rev().collect(),
        };
        for order in columns {
            let wanted = |number: usize| {
                let near = match forward {
                    true => &items[number].before,
                    false => &items[number].behind,
                };
                match near.len() {
                    0 => centers[number],
                    n => near.iter().map(|item| centers[*item]).sum::<f64>() / n as f64,
                }
            };
            let wanted: Vec<f64> = order.iter().map(|number| wanted(*number)).collect();
            // Each keeps its distance in both, so also in their mean.
            let (mut low, mut high) = (wanted.clone(), wanted);
            for at in 1..order.len() {
                low[at] = low[at].max(low[at - 1] + step(order[at - 1], order[at]));
            }
            for at in (1..order.len()).rev() {
                high[at - 1] = high[at - 1].min(high[at] - step(order[at - 1], order[at]));
            }
            for (at, number) in order.iter().enumerate() {
                centers[*number] = (low[at] + high[at]) / 2.0;
            }
        }
    }
    let top = |number: usize| centers[number] - items[number].height / 2.0;
    let least = (0..items.len()).map(top).fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        centers.iter_mut().for_each(|center| *center -= least);
    }
    centers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(of: &[(usize, usize)]) -> Vec<Edge> {
        let edge = |(from, to): &(usize, usize)| Edge {
            from: *from,
            to: *to,
            is_cut: false,
        };
        of.iter().map(edge).collect()
    }

    #[test]
    fn columns_are_longest_paths() {
        // 0 -> 1 -> 3, 0 -> 2 -> 4 -> 3, 0 -> 3.
        let edges = edges(&[(0, 1), (1, 3), (0, 2), (2, 4), (4, 3), (0, 3)]);
        assert_eq!(columns(5, &edges), [0, 1, 1, 3, 2]);
    }

    #[test]
    fn cycles_are_cut_where_the_search_comes_back() {
        let mut edges = edges(&[(0, 1), (1, 2), (2, 0), (2, 2), (0, 2)]);
        cut_cycles(3, &mut edges);
        let cut: Vec<bool> = edges.iter().map(|edge| edge.is_cut).collect();
        assert_eq!(cut, [false, false, true, true, false]);
        assert_eq!(columns(3, &edges), [0, 1, 2]);
        assert_eq!(in_order(3, &edges), [0, 1, 2]);
    }

    #[test]
    fn heaviest_path_of_a_small_graph() {
        let edges = edges(&[(0, 2), (1, 2), (2, 3), (0, 4), (4, 3)]);
        assert_eq!(heaviest_path(&[1; 5], &edges), (vec![0, 2, 3], 3));
        assert_eq!(heaviest_path(&[1, 5, 1, 1, 1], &edges), (vec![1, 2, 3], 7));
        assert_eq!(heaviest_path(&[1, 1, 1, 1, 9], &edges), (vec![0, 4, 3], 11));
        assert_eq!(heaviest_path(&[1, 90, 0, 0, 9], &edges), (vec![1], 90));
        assert_eq!(heaviest_path(&[], &[]), (vec![], 0));
    }

    #[test]
    fn boxes_of_a_column_are_apart_and_edges_lead_to_the_right() {
        let mut of = Vec::new();
        // A wavefront of 5 x 5, and edges that pass columns.
        for i in 0..5 {
            for j in 0..5 {
                let at = 5 * i + j;
                if i < 4 {
                    of.push((at, at + 5));
                }
                if j < 4 {
                    of.push((at, at + 1));
                }
            }
        }
        of.extend([(0, 24), (1, 23)]);
        let edges = edges(&of);
        let sizes = vec![(50.0, 20.0); 25];
        let gaps = Gaps {
            columns: 40.0,
            boxes: 10.0,
        };
        let layout = place(&sizes, &edges, gaps);
        for (a, (x, y)) in layout.at.iter().enumerate() {
            assert!(*x >= 0.0 && *y >= -1e-6 && y + 20.0 <= layout.height + 1e-6);
            for (other_x, other_y) in &layout.at[..a] {
                assert!(x != other_x || (y - other_y).abs() >= 30.0 - 1e-6);
            }
        }
        for edge in &edges {
            assert!(layout.at[edge.from].0 < layout.at[edge.to].0);
        }
        let passes = layout.bends.iter().map(Vec::len).max();
        assert_eq!((passes, layout.bends[40].len()), (Some(7), 7));
        // A graph without crossings is drawn without.
        let column_order = |column: usize| {
            let mut of: Vec<usize> = (0..25).filter(|at| at / 5 + at % 5 == column).collect();
            of.sort_by(|a, b| layout.at[*a].1.total_cmp(&layout.at[*b].1));
            of
        };
        let ascending = [4, 8, 12, 16, 20];
        let found = column_order(4);
        assert!(
            found == ascending || found.iter().rev().eq(&ascending),
            "{found:?}"
        );
    }

    #[test]
    fn empty_graph_has_no_size() {
        let gaps = Gaps {
            columns: 40.0,
            boxes: 10.0,
        };
        let layout = place(&[], &[], gaps);
        assert_eq!((layout.at.len(), layout.height), (0, 0.0));
    }
}
