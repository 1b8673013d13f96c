//! From the type tree to the canonical form.
//!
//! Offsets are sums that `bounds` has checked already; levels of a type without
//! payload never get here, so arithmetic cannot leave the range.

use crate::TypeError;
use crate::compress::{Runs, repeat};
use crate::constructors::fastest_first;
use crate::form::{Body, FLATTEN, Form};
use crate::tree::{Constructor, Type};

/// The canonical form of a type.
pub(crate) fn form(ty: &Type) -> Result<Form, TypeError> {
    if ty.size() == 0 {
        return Ok(Form::empty());
    }
    Ok(match ty.constructor() {
        Constructor::Basic(basic) => Form::block(0, basic.size()),
        Constructor::Contiguous { count, old } => nest(form(old)?, *count, old.extent()),
        Constructor::Vector {
            count,
            blocklength,
            stride,
            old,
        } => {
            let block = nest(form(old)?, *blocklength, old.extent());
            nest(block, *count, stride.wrapping_mul(old.extent()))
        }
        Constructor::Hvector {
            count,
            blocklength,
            stride_bytes,
            old,
        } => {
            let block = nest(form(old)?, *blocklength, old.extent());
            nest(block, *count, *stride_bytes)
        }
        Constructor::Indexed { blocks, old } => {
            let unit = old.extent();
            listed(blocks.iter().map(|&(n, d)| (n, d.wrapping_mul(unit))), old)?
        }
        Constructor::Hindexed { blocks, old } => listed(blocks.iter().copied(), old)?,
        Constructor::IndexedBlock {
            blocklength,
            displacements,
            old,
        } => {
            let unit = old.extent();
            let blocks = displacements
                .iter()
                .map(|&d| (*blocklength, d.wrapping_mul(unit)));
            listed(blocks, old)?
        }
        Constructor::HindexedBlock {
            blocklength,
            displacements,
            old,
        } => listed(displacements.iter().map(|&d| (*blocklength, d)), old)?,
        Constructor::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            old,
        } => {
            let mut stride = old.extent();
            let mut all = form(old)?;
            for (size, subsize, start) in fastest_first(sizes, subsizes, starts, *order) {
                all = nest(all, subsize, stride).shifted(stride.wrapping_mul(start as isize));
                stride = stride.wrapping_mul(size as isize);
            }
            all
        }
        Constructor::Structure { fields } => {
            let mut parts = Vec::with_capacity(fields.len());
            for (blocklength, displacement, old) in fields {
                if *blocklength == 0 || old.size() == 0 {
                    continue;
                }
                let field = nest(form(old)?, *blocklength, old.extent());
                splice(&mut parts, field.shifted(*displacement));
            }
            sequence(parts)
        }
        Constructor::Resized { old, .. } => form(old)?,
    })
}

/// `count` forms at a stride; flattens where copies of a list touch (rule 7).
fn nest(form: Form, count: usize, stride: isize) -> Form {
    let touching = count > 1
        && !matches!(form.body, Body::Block)
        && form.runs.saturating_mul(count) <= FLATTEN
        && form.touches_itself(stride);
    let nested = form.nest(count, stride);
    if touching { flatten(&[nested]) } else { nested }
}

fn flatten(parts: &[Form]) -> Form {
    let mut runs = Runs::with_capacity(parts.iter().map(|part| part.runs).sum());
    for part in parts {
        runs.extend(part);
    }
    runs.into_form()
}

/// Blocks of (elements, displacement in bytes) of an old type with payload.
fn listed(
    blocks: impl ExactSizeIterator<Item = (usize, isize)> + Clone,
    old: &Type,
) -> Result<Form, TypeError> {
    let inner = form(old)?;
    let extent = old.extent();
    if let Some((base, length)) = inner.as_block() {
        let dense = isize::try_from(length) == Ok(extent);
        if dense || blocks.clone().all(|(n, _)| n <= 1) {
            let mut runs = Runs::with_capacity(blocks.len());
            for (n, at) in blocks {
                if n > 0 {
                    runs.push(at.wrapping_add(base), n * length);
                }
            }
            return Ok(runs.into_form());
        }
    }
    let mut kept = blocks.clone().filter(|&(n, _)| n > 0);
    let Some((first, _)) = kept.next() else {
        return Ok(Form::empty());
    };
    if kept.all(|(n, _)| n == first) {
        let element = nest(inner, first, extent);
        let offsets: Vec<i64> = blocks
            .filter(|&(n, _)| n > 0)
            .map(|(_, at)| at as i64)
            .collect();
        return Ok(flatten_small(repeat(&offsets, element)));
    }
    let mut parts = Vec::with_capacity(blocks.len());
    for (n, at) in blocks {
        if n > 0 {
            splice(&mut parts, nest(inner.clone(), n, extent).shifted(at));
        }
    }
    Ok(sequence(parts))
}

/// Rule 7, unless the form is nested strides over one block already.
fn flatten_small(form: Form) -> Form {
    if matches!(form.body, Body::Block) || form.runs > FLATTEN {
        form
    } else {
        flatten(&[form])
    }
}

/// Appends a form, or the parts of a sequence without levels (rule 8).
fn splice(parts: &mut Vec<Form>, form: Form) {
    match form.body {
        Body::Sequence(sequence) if form.levels.is_empty() => {
            parts.extend(
                sequence
                    .parts
                    .into_iter()
                    .map(|part| part.shifted(form.base)),
            );
        }
        _ => parts.push(form),
    }
}

/// Forms one after the other, none of them empty: rules 7 and 8.
fn sequence(mut parts: Vec<Form>) -> Form {
    let runs = parts
        .iter()
        .fold(0usize, |runs, part| runs.saturating_add(part.runs));
    match parts.len() {
        0 => return Form::empty(),
        1 => return parts.remove(0),
        // Long sequences of tiny parts are lists as well.
        n if runs <= FLATTEN.max(n.saturating_mul(8)) => return flatten(&parts),
        _ => {}
    }
    let like = |a: &Form, b: &Form| a.levels == b.levels && a.body == b.body && a.bytes == b.bytes;
    if parts.windows(2).all(|pair| like(&pair[0], &pair[1])) {
        let offsets: Vec<i64> = parts.iter().map(|part| part.base as i64).collect();
        let inner = parts.remove(0);
        let base = inner.base;
        return repeat(&offsets, inner.shifted(base.wrapping_neg()));
    }
    Form::sequence(parts)
}
