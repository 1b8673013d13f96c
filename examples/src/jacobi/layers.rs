//! Layers of a block as plain memory: what messages are made of where no datatype walks
//! over the array.

use osier::{Error, ErrorKind, Result};

use super::decomposition::Block;
use super::kernel::{Points, interior};

/// Appends the points of a block next to the ghosts of a side, row by row. Sides are
/// numbered as in [`super::halo::Neighbors`].
pub fn copy_face(field: &[f64], block: &Block, side: usize, out: &mut Vec<f64>) {
    let d = side / 2;
    let layer = match side % 2 {
        0 => 1,
        _ => block.points[d],
    };
    for_each_row(block, d, layer, |row| match row.len() {
        1 => out.push(field[row.start]),
        _ => out.extend_from_slice(&field[row]),
    });
}

/// Fills the ghosts of a side with the neighbor's face.
///
/// # Errors
/// The face does not have as many points as the ghosts.
pub fn fill_ghosts(field: &mut [f64], block: &Block, side: usize, face: &[f64]) -> Result<()> {
    let expected = face_points(block, side);
    if face.len() != expected {
        let text = format!(
            "a face of {} points for side {side}, expected {expected}",
            face.len()
        );
        return Err(Error::new(ErrorKind::Malformed, text));
    }
    let d = side / 2;
    let layer = match side % 2 {
        0 => 0,
        _ => block.points[d] + 1,
    };
    let mut at = 0;
    for_each_row(block, d, layer, |row| {
        let len = row.len();
        match len {
            1 => field[row.start] = face[at],
            _ => field[row].copy_from_slice(&face[at..at + len]),
        }
        at += len;
    });
    Ok(())
}

/// Points of the face of a side.
pub fn face_points(block: &Block, side: usize) -> usize {
    let all: usize = block.points.iter().product();
    all / block.points[side / 2]
}

/// Elements of each row along x of a layer across dimension `d`.
#[inline]
fn for_each_row(
    block: &Block,
    d: usize,
    layer: usize,
    mut row: impl FnMut(std::ops::Range<usize>),
) {
    let mut points: Points = interior(block);
    points[d] = layer..layer + 1;
    let [zs, ys, xs] = points;
    for z in zs {
        for y in ys.clone() {
            let at = block.at(z, y, xs.start);
            row(at..at + xs.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faces_come_to_the_ghosts_of_the_other_side() {
        let block = Block {
            first: [0; 3],
            points: [2, 3, 4],
        };
        let from: Vec<f64> = (0..block.elements()).map(|i| i as f64).collect();
        for side in 0..6 {
            let mut face = Vec::new();
            copy_face(&from, &block, side, &mut face);
            assert_eq!(face.len(), face_points(&block, side));
            let mut to = vec![-1.0; from.len()];
            fill_ghosts(&mut to, &block, side ^ 1, &face).expect("its size");
            let (d, n) = (side / 2, block.points[side / 2]);
            let (sent, ghost) = match side % 2 {
                0 => (1, n + 1),
                _ => (n, 0),
            };
            for (at, arrived) in to.iter().enumerate() {
                let [_, sy, sx] = block.sizes();
                let mut place = [at / (sy * sx), at / sx % sy, at % sx];
                let inside = (0..3).all(|e| e == d || (1..=block.points[e]).contains(&place[e]));
                let expected = if place[d] == ghost && inside {
                    place[d] = sent;
                    from[block.at(place[0], place[1], place[2])]
                } else {
                    -1.0
                };
                assert_eq!(*arrived, expected, "side {side}");
            }
            assert!(fill_ghosts(&mut to, &block, side, &face[1..]).is_err());
        }
    }
}
