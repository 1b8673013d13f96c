//! What is done with numbers: a column is filled, updated by panels, and factored.
//!
//! A column is one vector, laid out as [`Symbolic`] says. Each function does the same
//! operations in the same order wherever it is called, so that a column ends with the same
//! bits on any rank and worker.
//!
//! # Invariants
//! 1. The slices of a product hold the blocks that are passed with them: `panel` has
//!    `height * width` values and `rows <= height`, `factor` `width * columns`, `product`
//!    `rows * columns`.
//!
//! # Sources
//! X. Li, J. Demmel, "SuperLU_DIST: A Scalable Distributed-Memory Sparse Direct Solver for
//! Unsymmetric Linear Systems", ACM TOMS 29(2), 2003, section 2 (tiny pivots).

use super::super::analysis::Analysis;
use super::super::analysis::symbolic::{Block, Symbolic};
use super::super::matrix::{larger, largest};
use std::cell::RefCell;

/// Operations from which on a product is that of a library, which packs its operands.
const LARGE: usize = 16 * 1024;

thread_local! {
    /// Product, and places of its rows in the target; kept for the memory.
    static SCRATCH: RefCell<(Vec<f64>, Vec<u32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// The column of a supernode before it is updated: entries of the matrix.
pub fn fill(analysis: &Analysis, k: usize) -> Vec<f64> {
    let symbolic = &analysis.symbolic;
    let mut column = vec![0.0; symbolic.length(k)];
    let (own, height) = (symbolic.columns_of(k), symbolic.height(k));
    for j in own.clone() {
        for (i, value) in analysis.matrix.column(j) {
            let at = if i < own.start {
                let source = symbolic.supernode_of(i);
                let block = symbolic.block(source, k).expect("a block for each entry");
                let columns = meets(symbolic, block);
                let place = columns.partition_point(|column| (*column as usize) < j);
                let row = i - symbolic.columns_of(source).start;
                block.offset + place * symbolic.width(source) + row
            } else {
                let row = match i < own.end {
                    true => i - own.start,
                    false => own.len() + symbolic.rows(k).partition_point(|r| (*r as usize) < i),
                };
                (j - own.start) * height + row
            };
            column[at] = value;
        }
    }
    column
}

/// Factors the panel of a column that has all updates. Pivots smaller than `tiny`, or that
/// are no numbers, become as large as that; returns how many.
pub fn factor(symbolic: &Symbolic, k: usize, column: &mut [f64], tiny: f64) -> u64 {
    let (width, height) = (symbolic.width(k), symbolic.height(k));
    let mut replaced = 0;
    for step in 0..width {
        let (left, right) = column[step * height..width * height].split_at_mut(height);
        let pivot = &mut left[step];
        if pivot.abs() < tiny || pivot.is_nan() {
            *pivot = tiny.copysign(*pivot);
            replaced += 1;
        }
        let inverse = 1.0 / *pivot;
        let below = &mut left[step + 1..];
        below.iter_mut().for_each(|value| *value *= inverse);
        for other in right.chunks_exact_mut(height) {
            let factor = other[step];
            for (value, left) in other[step + 1..].iter_mut().zip(&*below) {
                *value -= left * factor;
            }
        }
    }
    replaced
}

/// Updates a column by the factored panel of the block's source.
///
/// # Panics
/// The panel or the column is of another length.
pub fn update(symbolic: &Symbolic, block: &Block, panel: &[f64], column: &mut [f64]) {
    let (source, target) = (block.source as usize, block.target as usize);
    assert!(
        panel.len() >= symbolic.panel_length(source),
        "panel of supernode {source}"
    );
    assert_eq!(
        column.len(),
        symbolic.length(target),
        "column of supernode {target}"
    );
    let (width, height) = (symbolic.width(source), symbolic.height(source));
    let (rows, columns) = (symbolic.rows(source).len(), block.meets.len());

    let upper = block.offset..block.offset + width * columns;
    solve(panel, width, height, &mut column[upper.clone()]);
    SCRATCH.with_borrow_mut(|(product, places)| {
        product.clear();
        product.resize(rows * columns, 0.0);
        multiply(
            &panel[width..],
            height,
            rows,
            width,
            &column[upper],
            product,
        );
        subtract(symbolic, block, product, places, column);
    });
}

/// Largest absolute value of the upper factor in a column.
pub fn largest_of_upper(symbolic: &Symbolic, k: usize, column: &[f64]) -> f64 {
    let (width, height) = (symbolic.width(k), symbolic.height(k));
    let (panel, above) = column.split_at(width * height);
    let diagonal = panel
        .chunks(height)
        .enumerate()
        .map(|(j, values)| &values[..=j]);
    diagonal.map(largest).fold(largest(above), larger)
}

/// Rows of the source's panel that lie in the target: columns of the block.
fn meets<'a>(symbolic: &'a Symbolic, block: &Block) -> &'a [u32] {
    let meets = block.meets.start as usize..block.meets.end as usize;
    &symbolic.rows(block.source as usize)[meets]
}

/// Solves with the unit lower triangle at the top of a panel, for each column of `upper`.
fn solve(panel: &[f64], width: usize, height: usize, upper: &mut [f64]) {
    for values in upper.chunks_exact_mut(width) {
        for step in 0..width {
            let (done, left) = values.split_at_mut(step + 1);
            let below = &panel[step * height..][step + 1..width];
            for (value, lower) in left.iter_mut().zip(below) {
                *value -= lower * done[step];
            }
        }
    }
}

/// Adds the product of the first `rows` rows of a panel with `factor` to `product`.
fn multiply(
    panel: &[f64],
    height: usize,
    rows: usize,
    width: usize,
    factor: &[f64],
    product: &mut [f64],
) {
    if rows == 0 {
        return;
    }
    if 2 * product.len() * width < LARGE {
        for (values, factors) in product
            .chunks_exact_mut(rows)
            .zip(factor.chunks_exact(width))
        {
            for (step, factor) in factors.iter().enumerate() {
                let lower = &panel[step * height..][..rows];
                for (value, lower) in values.iter_mut().zip(lower) {
                    *value += lower * factor;
                }
            }
        }
        return;
    }
    let columns = product.len() / rows;
    assert!(factor.len() >= width * columns && panel.len() >= (width - 1) * height + rows);
    let (a, b, c) = (panel.as_ptr(), factor.as_ptr(), product.as_mut_ptr());
    let [high, wide, tall] = [height as isize, width as isize, rows as isize];
    // SAFETY: invariant 1: what is read and written by these strides lies in the slices, as
    // just asserted, and nobody else has `product`.
    unsafe {
        matrixmultiply::dgemm(
            rows, width, columns, 1.0, a, 1, high, b, 1, wide, 1.0, c, 1, tall,
        );
    }
}

/// Subtracts the product of an update from the column of its target.
fn subtract(
    symbolic: &Symbolic,
    block: &Block,
    product: &[f64],
    places: &mut Vec<u32>,
    column: &mut [f64],
) {
    let (source, target) = (block.source as usize, block.target as usize);
    let rows = symbolic.rows(source);
    let columns = meets(symbolic, block);
    let products = || product.chunks_exact(rows.len());

    // Rows above the target belong to blocks of its other sources.
    let mut begin = 0;
    for same in rows[..block.meets.start as usize]
        .chunk_by(|a, b| symbolic.supernode_of(*a as usize) == symbolic.supernode_of(*b as usize))
    {
        let between = symbolic.supernode_of(same[0] as usize);
        let first = symbolic.columns_of(between).start as u32;
        let width = symbolic.width(between);
        let other = symbolic
            .block(between, target)
            .expect("a block for each row");
        positions(columns, meets(symbolic, other), places);
        for (place, values) in places.iter().zip(products()) {
            let into = &mut column[other.offset + *place as usize * width..][..width];
            for (row, value) in same.iter().zip(&values[begin..]) {
                into[(row - first) as usize] -= value;
            }
        }
        begin += same.len();
    }

    // The others to the target's panel.
    let own = symbolic.columns_of(target);
    let (first, height) = (own.start as u32, symbolic.height(target));
    positions(
        &rows[block.meets.end as usize..],
        symbolic.rows(target),
        places,
    );
    places
        .iter_mut()
        .for_each(|place| *place += own.len() as u32);
    for (column_of, values) in columns.iter().zip(products()) {
        let into = &mut column[(column_of - first) as usize * height..][..height];
        let (inside, below) = values[begin..].split_at(columns.len());
        for (row, value) in columns.iter().zip(inside) {
            into[(row - first) as usize] -= value;
        }
        for (place, value) in places.iter().zip(below) {
            into[*place as usize] -= value;
        }
    }
}

/// Where each of these numbers is among others; both ascend, and the others hold them all.
fn positions(numbers: &[u32], among: &[u32], places: &mut Vec<u32>) {
    places.clear();
    let mut at = 0;
    for number in numbers {
        // Mostly the next one.
        if among[at] != *number {
            at += among[at..].partition_point(|other| other < number);
        }
        places.push(at as u32);
        at += 1;
    }
}
