//! From the type tree to the canonical form.
//!
//! Offsets are sums that `bounds` has checked already; levels of a type without
//! payload never get here, so arithmetic cannot leave the range.

use crate::compress::{self, Runs, repeat};
use crate::constructors::fastest_first;
use crate::form::{Body, FLATTEN, Form};
use crate::tree::{Constructor, Type};

/// The canonical form of a type. Recursion is as deep as the tree, whose depth is
/// limited.
pub(crate) fn form(ty: &Type) -> Form {
    if ty.size() == 0 {
        return Form::empty();
    }
    if let Some(simpler) = &ty.0.meaning {
        return form(simpler);
    }
    match ty.constructor() {
        Constructor::Basic(basic) => Form::block(0, basic.size()),
        Constructor::Structure { fields } => structure(fields),
        constructor => {
            let Some(old) = constructor.types().next() else {
                unreachable!("stands for a simpler type: {constructor:?}")
            };
            wrap(constructor, old.extent(), form(old))
        }
    }
}

/// The form of a constructor around the form of its old type.
fn wrap(constructor: &Constructor, extent: isize, inner: Form) -> Form {
    match constructor {
        Constructor::Contiguous { count, .. } => nest(inner, *count, extent),
        Constructor::Vector {
            count,
            blocklength,
            stride,
            ..
        } => {
            let block = nest(inner, *blocklength, extent);
            nest(block, *count, stride.wrapping_mul(extent))
        }
        Constructor::Hvector {
            count,
            blocklength,
            stride_bytes,
            ..
        } => nest(nest(inner, *blocklength, extent), *count, *stride_bytes),
        Constructor::Indexed { blocks, .. } => {
            let block = move |&(n, d): &(usize, isize)| (n, d.wrapping_mul(extent));
            listed(blocks, block, inner, extent)
        }
        Constructor::Hindexed { blocks, .. } => listed(blocks, |&block| block, inner, extent),
        Constructor::IndexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            let n = *blocklength;
            let block = move |d: &isize| (n, d.wrapping_mul(extent));
            listed(displacements, block, inner, extent)
        }
        Constructor::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            let n = *blocklength;
            let block = move |&at: &isize| (n, at);
            listed(displacements, block, inner, extent)
        }
        Constructor::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            ..
        } => {
            let mut stride = extent;
            let mut all = inner;
            for (size, subsize, start) in fastest_first(sizes, subsizes, starts, *order) {
                all = nest(all, subsize, stride).shifted(stride.wrapping_mul(start as isize));
                stride = stride.wrapping_mul(size as isize);
            }
            all
        }
        _ => inner,
    }
}

fn structure(fields: &[(usize, isize, Type)]) -> Form {
    let mut parts = Vec::with_capacity(fields.len());
    for (blocklength, displacement, old) in fields {
        if *blocklength > 0 && old.size() > 0 {
            let field = nest(form(old), *blocklength, old.extent());
            splice(&mut parts, field.shifted(*displacement));
        }
    }
    sequence(parts)
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

/// Blocks of a form with payload, of which `block` tells elements and displacement in
/// bytes.
fn listed<T>(
    blocks: &[T],
    block: impl Fn(&T) -> (usize, isize) + Copy,
    inner: Form,
    extent: isize,
) -> Form {
    if let Some((base, length)) = inner.as_block() {
        let dense = isize::try_from(length) == Ok(extent);
        if dense || blocks.iter().all(|entry| block(entry).0 <= 1) {
            return compress::listed(blocks, move |entry| {
                let (n, at) = block(entry);
                (n * length, at.wrapping_add(base))
            });
        }
    }
    let kept = || blocks.iter().map(block).filter(|&(n, _)| n > 0);
    let Some((first, _)) = kept().next() else {
        return Form::empty();
    };
    if kept().all(|(n, _)| n == first) {
        let element = nest(inner, first, extent);
        let offsets: Vec<i64> = kept().map(|(_, at)| at as i64).collect();
        return flatten_small(repeat(&offsets, element));
    }
    let mut parts = Vec::with_capacity(blocks.len());
    for (n, at) in kept() {
        splice(&mut parts, nest(inner.clone(), n, extent).shifted(at));
    }
    sequence(parts)
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
    if parts.len() <= 1 {
        return parts.pop().unwrap_or_else(Form::empty);
    }
    let runs = parts
        .iter()
        .fold(0usize, |runs, part| runs.saturating_add(part.runs));
    // Long sequences of tiny parts are lists as well.
    let small = runs <= FLATTEN.max(parts.len().saturating_mul(8));
    // Like nests that do not touch may be a nest, which the list of their
    // blocks would come back to.
    if parts[0].runs > 1 && likes(&parts) && !(small && touching(&parts)) {
        let offsets: Vec<i64> = parts.iter().map(|part| part.base as i64).collect();
        let inner = parts.swap_remove(0);
        let base = inner.base;
        let form = repeat(&offsets, inner.shifted(base.wrapping_neg()));
        return match form.body {
            Body::Block => form,
            _ if small => flatten(&[form]),
            _ => form,
        };
    }
    if small {
        flatten(&parts)
    } else {
        Form::sequence(parts)
    }
}

/// Whether forms differ in their place alone.
fn likes(parts: &[Form]) -> bool {
    let like = |a: &Form, b: &Form| a.levels == b.levels && a.body == b.body && a.bytes == b.bytes;
    parts.windows(2).all(|pair| like(&pair[0], &pair[1]))
}

/// Whether one form ends where the next begins.
fn touching(parts: &[Form]) -> bool {
    parts
        .windows(2)
        .any(|pair| pair[0].last_end() == pair[1].first())
}
