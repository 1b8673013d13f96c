//! A type as text, for programs that build the same type with MPI's calls.
//!
//! ```text
//! type := b NAME                                    predefined
//!       | c COUNT type                              contiguous
//!       | v COUNT BLOCK STRIDE type                 vector
//!       | hv COUNT BLOCK STRIDE type                hvector
//!       | i N (BLOCK AT)*N type                     indexed
//!       | hi N (BLOCK AT)*N type                    hindexed
//!       | ib N BLOCK AT*N type                      indexed_block
//!       | hib N BLOCK AT*N type                     hindexed_block
//!       | s N (BLOCK AT type)*N                     struct
//!       | a C|F N SIZE*N SUBSIZE*N START*N type     subarray
//!       | r LB EXTENT type                          resized
//! ```
//!
//! Words are separated by one blank. Predefined types are those in `LEAVES`:
//! sizes are what matters, and every peer has these.

use osier_datatype::{Constructor, Order, Type};
use std::fmt::Write as _;

/// Predefined types that the programs know.
const LEAVES: [&str; 15] = [
    "byte", "u8", "i8", "u16", "i16", "f16", "bf16", "u32", "i32", "f32", "u64", "i64", "f64",
    "c32", "c64",
];

/// The text of a type.
///
/// # Errors
/// Names a constructor that has no spelling.
pub fn spell(ty: &Type) -> Result<String, String> {
    let mut out = String::new();
    write(ty, &mut out)?;
    Ok(out)
}

fn write(ty: &Type, out: &mut String) -> Result<(), String> {
    if !out.is_empty() {
        out.push(' ');
    }
    // Writing to a string cannot fail.
    let _ = match ty.constructor() {
        Constructor::Basic(basic) if LEAVES.contains(&basic.name()) => {
            write!(out, "b {}", basic.name())
        }
        Constructor::Contiguous { count, .. } => write!(out, "c {count}"),
        Constructor::Vector {
            count,
            blocklength,
            stride,
            ..
        } => write!(out, "v {count} {blocklength} {stride}"),
        Constructor::Hvector {
            count,
            blocklength,
            stride_bytes,
            ..
        } => write!(out, "hv {count} {blocklength} {stride_bytes}"),
        Constructor::Indexed { blocks, .. } => listed(out, "i", blocks),
        Constructor::Hindexed { blocks, .. } => listed(out, "hi", blocks),
        Constructor::IndexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            let _ = write!(out, "ib {} {blocklength}", displacements.len());
            numbers(out, displacements)
        }
        Constructor::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            let _ = write!(out, "hib {} {blocklength}", displacements.len());
            numbers(out, displacements)
        }
        Constructor::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            ..
        } => {
            let order = match order {
                Order::C => "C",
                Order::Fortran => "F",
            };
            let _ = write!(out, "a {order} {}", sizes.len());
            numbers(out, sizes)
                .and_then(|()| numbers(out, subsizes))
                .and_then(|()| numbers(out, starts))
        }
        Constructor::Structure { fields } => {
            let _ = write!(out, "s {}", fields.len());
            for (n, at, old) in fields {
                let _ = write!(out, " {n} {at}");
                write(old, out)?;
            }
            return Ok(());
        }
        Constructor::Resized { lb, extent, .. } => write!(out, "r {lb} {extent}"),
        other => return Err(format!("no spelling for {other:?}")),
    };
    match ty.constructor() {
        Constructor::Contiguous { old, .. }
        | Constructor::Vector { old, .. }
        | Constructor::Hvector { old, .. }
        | Constructor::Indexed { old, .. }
        | Constructor::Hindexed { old, .. }
        | Constructor::IndexedBlock { old, .. }
        | Constructor::HindexedBlock { old, .. }
        | Constructor::Subarray { old, .. }
        | Constructor::Resized { old, .. } => write(old, out),
        _ => Ok(()),
    }
}

fn listed(out: &mut String, name: &str, blocks: &[(usize, isize)]) -> std::fmt::Result {
    write!(out, "{name} {}", blocks.len())?;
    blocks
        .iter()
        .try_for_each(|(n, at)| write!(out, " {n} {at}"))
}

fn numbers(out: &mut String, list: &[impl std::fmt::Display]) -> std::fmt::Result {
    list.iter().try_for_each(|number| write!(out, " {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_datatype::Basic;

    #[test]
    fn spellings() {
        let f64 = Type::basic(Basic::F64);
        let vector = Type::vector(3, 1, -2, &f64).unwrap();
        assert_eq!(spell(&vector).unwrap(), "v 3 1 -2 b f64");
        let fields = Type::structure(&[(2, 0, vector), (1, 80, f64.clone())]).unwrap();
        let fields = Type::resized(0, 96, &fields).unwrap();
        assert_eq!(
            spell(&fields).unwrap(),
            "r 0 96 s 2 2 0 v 3 1 -2 b f64 1 80 b f64"
        );
        let face = Type::subarray(&[4, 6], &[4, 1], &[0, 5], Order::Fortran, &f64).unwrap();
        assert_eq!(spell(&face).unwrap(), "a F 2 4 6 4 1 0 5 b f64");
        let listed = Type::hindexed(&[(1, 8), (2, 99)], &f64).unwrap();
        assert_eq!(spell(&listed).unwrap(), "hi 2 1 8 2 99 b f64");
        let unknown = spell(&Type::basic(Basic::Packed)).unwrap_err();
        assert!(unknown.contains("no spelling for Basic"), "{unknown}");
    }
}
