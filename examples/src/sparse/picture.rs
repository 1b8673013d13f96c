//! A picture of the factors: where they have entries, in the colors of the ranks.
//!
//! A pixel is the darker, the more of the entries in its square are stored. Rank 0 draws what
//! it knows from the symbolic factorization alone.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::analysis::symbolic::Symbolic;
use super::factor::Deal;

/// Most pixels along a side.
const SIDE: usize = 1024;
/// Ink of a pixel with a single entry, of 1.
const FAINTEST: f64 = 0.25;
/// Colors of ranks, in turn.
const COLORS: [[u8; 3]; 8] = [
    [31, 78, 160],
    [200, 80, 30],
    [40, 130, 60],
    [140, 60, 150],
    [150, 110, 20],
    [20, 130, 140],
    [190, 40, 90],
    [90, 90, 90],
];

/// Draws the factors.
///
/// # Errors
/// Writing fails.
pub fn draw(file: File, symbolic: &Symbolic, deal: Deal) -> io::Result<()> {
    write(BufWriter::new(file), &Canvas::of(symbolic, deal))
}

fn write(to: impl Write, canvas: &Canvas) -> io::Result<()> {
    let side = canvas.side as u32;
    let mut encoder = png::Encoder::new(to, side, side);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&canvas.pixels())?;
    writer.finish()?;
    Ok(())
}

/// Entries of each pixel, and their colors added up.
struct Canvas {
    side: usize,
    /// Rows and columns of a pixel.
    square: usize,
    pixels: Vec<(f64, [f64; 3])>,
}

impl Canvas {
    fn of(symbolic: &Symbolic, deal: Deal) -> Self {
        let square = symbolic.columns().div_ceil(SIDE);
        let side = symbolic.columns().div_ceil(square);
        let mut canvas = Canvas {
            side,
            square,
            pixels: vec![Default::default(); side * side],
        };
        for k in 0..symbolic.supernodes() {
            let color = COLORS[deal.owner(k) % COLORS.len()];
            let below = symbolic.rows(k).iter().map(|row| *row as usize);
            for j in symbolic.columns_of(k) {
                for i in symbolic.columns_of(k).chain(below.clone()) {
                    canvas.add(i, j, color);
                }
            }
            for block in &symbolic.blocks()[symbolic.updates_of(k)] {
                let source = block.source as usize;
                let meets = block.meets.start as usize..block.meets.end as usize;
                for j in &symbolic.rows(source)[meets] {
                    for i in symbolic.columns_of(source) {
                        canvas.add(i, *j as usize, color);
                    }
                }
            }
        }
        canvas
    }

    fn add(&mut self, i: usize, j: usize, color: [u8; 3]) {
        let pixel = i / self.square * self.side + j / self.square;
        let pixel = &mut self.pixels[pixel];
        pixel.0 += 1.0;
        for (sum, part) in pixel.1.iter_mut().zip(color) {
            *sum += f64::from(part);
        }
    }

    /// Rows of red, green and blue.
    fn pixels(&self) -> Vec<u8> {
        // Entries that a pixel has room for.
        let room = self.square.pow(2) as f64;
        let color = |(entries, sums): &(f64, [f64; 3])| {
            let share = (entries / room).min(1.0);
            let ink = match *entries > 0.0 {
                true => FAINTEST + (1.0 - FAINTEST) * share,
                false => 0.0,
            };
            sums.map(|sum| {
                let own = sum / entries.max(1.0);
                (255.0 + ink * (own - 255.0)).round() as u8
            })
        };
        self.pixels.iter().flat_map(color).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::analysis::symbolic::Widths;
    use super::super::analysis::{Analysis, Ordering};
    use super::super::matrix::Matrix;
    use super::super::read::Source;
    use super::*;

    #[test]
    fn a_pixel_for_each_entry_in_the_color_of_its_rank() {
        // Two columns that are apart, and a third that both meet.
        let entries = [(0, 0), (1, 1), (2, 2), (0, 2), (2, 0), (1, 2), (2, 1)];
        let source = Source {
            name: "three".into(),
            line: 0,
            title: String::new(),
            matrix: Matrix::from_triplets(3, 3, &entries.map(|(i, j)| (i, j, 4.0 + f64::from(i)))),
        };
        let widths = Widths {
            most: 1,
            relaxed: false,
        };
        let analysis = Analysis::new(&source, Ordering::Degree, widths).expect("regular");
        let deal = Deal {
            ranks: 2,
            rank: 0,
            block: 1,
        };
        let mut bytes = Vec::new();
        write(&mut bytes, &Canvas::of(&analysis.symbolic, deal)).expect("it is written");
        let mut reader = png::Decoder::new(io::Cursor::new(bytes))
            .read_info()
            .expect("a picture");
        let mut pixels = vec![0; 27];
        let info = reader.next_frame(&mut pixels).expect("pixels");
        assert_eq!((info.width, info.height), (3, 3));
        let (a, b, white) = (COLORS[0], COLORS[1], [255; 3]);
        let expected = [a, white, a, white, b, a, a, b, a];
        assert_eq!(pixels, expected.concat());
    }
}
