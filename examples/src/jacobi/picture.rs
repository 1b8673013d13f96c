//! The middle z slice as a PNG: colour map and colour bar.
//!
//! Each rank that holds a part of the slice sends it straight from its array,
//! thinned out by the datatype if the slice is large; rank 0 receives it in
//! place, a subarray of the image.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use osier::buffers::{Region, Regions};
use osier::{Communicator, Datatype, Error, ErrorKind, Order, Result, Type, View};

use super::decomposition::{Block, Decomposition};
use super::font;

/// Larger slices are thinned out, much smaller ones enlarged.
const LARGEST_PIXELS: usize = 1024;
const TAG: u32 = 100;

/// Values of a slice, row by row along y.
#[derive(Debug)]
pub struct Slice {
    width: usize,
    height: usize,
    values: Vec<f64>,
}

/// The points of a block that the picture shows, along y and x.
struct Part {
    /// Where they lie in the picture.
    first: [usize; 2],
    /// How many they are; none if the block is beside the slice.
    count: [usize; 2],
}

/// Every `step`-th point of the slice at `z`.
struct Cut {
    z: usize,
    step: usize,
    size: [usize; 2],
}

impl Cut {
    fn middle(grid: [usize; 3]) -> Self {
        let [nz, ny, nx] = grid;
        let step = nx.max(ny).div_ceil(LARGEST_PIXELS);
        Self {
            z: nz / 2,
            step,
            size: [ny.div_ceil(step), nx.div_ceil(step)],
        }
    }

    fn part(&self, block: &Block) -> Option<Part> {
        let inside = |d: usize| block.first[d]..block.first[d] + block.points[d];
        let picks = |d: usize| {
            let first = inside(d).start.div_ceil(self.step);
            (first, inside(d).end.div_ceil(self.step) - first)
        };
        let (y, ny) = picks(1);
        let (x, nx) = picks(2);
        (inside(0).contains(&self.z) && nx > 0 && ny > 0).then_some(Part {
            first: [y, x],
            count: [ny, nx],
        })
    }
}

/// Collects the middle slice at rank 0; `None` at the others. Takes the blocks of this rank
/// in the order of [`Decomposition::of_rank`]. Collective.
pub fn collect(
    comm: &Communicator,
    parts: &Decomposition,
    fields: &[(Block, Vec<f64>)],
) -> Result<Option<Slice>> {
    let cut = Cut::middle(parts.grid);
    let [height, width] = cut.size;
    let root = comm.rank() == 0;
    let mut values = vec![0.0; if root { width * height } else { 0 }];

    // What rank 0 receives, and from whom.
    let mut sources = Vec::new();
    let mut places = Vec::new();
    if let (true, Some(topology)) = (root, comm.cart()) {
        for rank in 0..comm.size() {
            let theirs = parts.of_rank(&topology.coords_of(rank)?);
            for part in theirs.iter().filter_map(|at| cut.part(&parts.block(at))) {
                let place = Type::subarray(
                    &cut.size,
                    &part.count,
                    &part.first,
                    Order::C,
                    &f64::datatype(),
                )?;
                sources.push(rank);
                places.push(Region::new(place.commit()?));
            }
        }
    }
    let places = Regions::new(Vec::new(), places)?;

    // What this rank sends.
    let mine = fields.iter().filter_map(|(block, field)| {
        let part = cut.part(block)?;
        Some(thinned(&cut, block, &part, field))
    });
    let mine: Vec<_> = mine.collect::<Result<_>>()?;

    comm.scope(|s| {
        let places = s.regions(&mut values, &places)?;
        for (index, &source) in sources.iter().enumerate() {
            places.irecv(index, source, TAG)?;
        }
        // Messages of a rank arrive in the order in which they are sent.
        for view in &mine {
            s.isend(view, 0, TAG)?;
        }
        Ok(())
    })?;
    Ok(root.then_some(Slice {
        width,
        height,
        values,
    }))
}

fn thinned<'a>(cut: &Cut, block: &Block, part: &Part, field: &'a [f64]) -> Result<View<'a>> {
    let [ny, nx] = part.count;
    let row_bytes = block.sizes()[2] * size_of::<f64>();
    let row = Type::vector(nx, 1, cut.step as isize, &f64::datatype())?;
    let rows = Type::hvector(ny, 1, (cut.step * row_bytes) as isize, &row)?;
    let local = |d: usize, global: usize| global - block.first[d] + 1;
    let origin = block.at(
        local(0, cut.z),
        local(1, part.first[0] * cut.step),
        local(2, part.first[1] * cut.step),
    );
    View::new(field, origin, &rows.commit()?, 1)
}

impl Slice {
    /// Writes the picture.
    pub fn write(&self, path: &Path, title: &str) -> Result<()> {
        let canvas = self.draw();
        encode(path, title, &canvas).map_err(|e| {
            Error::new(
                ErrorKind::System,
                format!("writing the picture {}: {e}", path.display()),
            )
        })
    }

    fn draw(&self) -> Canvas {
        const BAR: usize = 20;
        const GAP: usize = 14;
        const DOT: usize = 2;
        const LABEL: usize = 8 * font::ADVANCE * DOT;
        let scale = (512 / self.width.max(self.height)).max(1);
        let (width, height) = (self.width * scale, self.height * scale);
        let bar_height = height.max(64);
        let mut canvas = Canvas::new(
            GAP + width + GAP + BAR + GAP + LABEL,
            GAP + bar_height + GAP,
        );
        let largest = self.values.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let unit = if largest > 0.0 { largest } else { 1.0 };
        for y in 0..height {
            // y points upward, rows of an image downward.
            let row = &self.values[(self.height - 1 - y / scale) * self.width..];
            for x in 0..width {
                canvas.set(GAP + x, GAP + y, colour(row[x / scale] / unit));
            }
        }
        let left = GAP + width + GAP;
        for y in 0..bar_height {
            let value = 1.0 - 2.0 * y as f64 / (bar_height - 1) as f64;
            for x in 0..BAR {
                canvas.set(left + x, GAP + y, colour(value));
            }
        }
        for tick in [1.0, 0.5, 0.0, -0.5, -1.0] {
            let y = GAP as f64 + (1.0 - tick) / 2.0 * (bar_height - 1) as f64;
            let y = y as usize;
            for x in 0..5 {
                canvas.set(left + BAR + x, y, [0; 3]);
            }
            let text = format!("{:+.2e}", tick * largest);
            font::dots(&text, |x, dot_y| {
                for (dx, dy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    canvas.set(
                        left + BAR + 8 + x * DOT + dx,
                        y + dot_y * DOT + dy - font::HEIGHT * DOT / 2,
                        [0; 3],
                    );
                }
            });
        }
        canvas
    }
}

struct Canvas {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            rgb: vec![255; width * height * 3],
        }
    }

    fn set(&mut self, x: usize, y: usize, rgb: [u8; 3]) {
        let at = (y * self.width + x) * 3;
        self.rgb[at..at + 3].copy_from_slice(&rgb);
    }
}

fn encode(path: &Path, title: &str, canvas: &Canvas) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    let mut encoder = png::Encoder::new(file, canvas.width as u32, canvas.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.add_text_chunk("Title".to_owned(), title.to_owned())?;
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&canvas.rgb)?;
    writer.finish()?;
    Ok(())
}

/// Blue below zero, red above: ColorBrewer's RdBu (Cynthia Brewer, Apache-2.0),
/// interpolated.
fn colour(value: f64) -> [u8; 3] {
    const MAP: [[u8; 3]; 7] = [
        [33, 102, 172],
        [103, 169, 207],
        [209, 229, 240],
        [247, 247, 247],
        [253, 219, 199],
        [239, 138, 98],
        [178, 24, 43],
    ];
    let at = (value.clamp(-1.0, 1.0) + 1.0) / 2.0 * (MAP.len() - 1) as f64;
    // A NaN becomes the first entry.
    let low = (at as usize).min(MAP.len() - 2);
    let part = at - low as f64;
    [0, 1, 2].map(|c| {
        let (a, b) = (f64::from(MAP[low][c]), f64::from(MAP[low + 1][c]));
        (a + (b - a) * part).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_colour_map_spans_its_ends() {
        assert_eq!(colour(-1.0), [33, 102, 172]);
        assert_eq!(colour(0.0), [247, 247, 247]);
        assert_eq!(colour(1.0), [178, 24, 43]);
        assert_eq!(colour(9.0), [178, 24, 43]);
    }

    #[test]
    fn slices_of_any_shape_are_drawn() {
        for (width, height) in [(1, 1), (3, 200), (1024, 1), (700, 900)] {
            let values = (0..width * height).map(|i| i as f64 - 5.0).collect();
            let slice = Slice {
                width,
                height,
                values,
            };
            let canvas = slice.draw();
            assert_eq!(canvas.rgb.len(), canvas.width * canvas.height * 3);
        }
    }

    #[test]
    fn parts_cover_a_thinned_slice() {
        let parts = Decomposition {
            grid: [5, 1500, 2050],
            ranks: [2, 2, 3],
            factor: [1; 3],
        };
        let cut = Cut::middle(parts.grid);
        assert_eq!((cut.step, cut.size), (3, [500, 684]));
        let mut points = 0;
        for z in 0..2 {
            for y in 0..2 {
                for x in 0..3 {
                    let part = cut.part(&parts.block(&[z, y, x]));
                    assert_eq!(part.is_some(), z == 1);
                    points += part.map_or(0, |p| p.count[0] * p.count[1]);
                }
            }
        }
        assert_eq!(points, 500 * 684);
    }
}
