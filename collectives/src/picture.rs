//! Pictures of a topology and of a plan's messages on it, as SVG.
//!
//! ```text
//! +--------------- node 0 ---------------+
//! | +---- package 0 ---+ +-- package 1 -+ |
//! | | (0) (1) (2) (3)  | | (4) (5) ...  | |
//! ```
//!
//! Parts are boxes in boxes, ranks are circles, and a plan's sends are curves, the
//! first of each pair of ranks. What leaves a part of the outermost level is drawn
//! darker than what stays within. Devices stand below, in a box for each switch that they
//! are behind, with a line between two of which one reaches the other's memory, in another
//! colour and with their number for links of their own. Between ranks these are straight
//! lines.

use crate::algorithms::Plan;
use crate::device_links::DeviceLinks;
use crate::plan::Step;
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Ranks that still can be told apart.
pub const MOST_RANKS: u32 = 1024;

const CELL: f64 = 34.0;
const RADIUS: f64 = 12.0;
const PAD: f64 = 10.0;
const HEAD: f64 = 16.0;
/// Boxes of one level stand in a row until it would be wider.
const WIDEST: f64 = 1400.0;
/// Colour of links between two devices.
const LINKS: &str = "#c60";

/// A device beside the ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name, short.
    pub name: String,
    /// What it is behind: a switch, or a memory node.
    pub behind: String,
    /// Devices whose memory it reaches, by their place in the list.
    pub reaches: Vec<usize>,
    /// Those that links of their own join with it, and by how many, in short.
    pub links: Vec<(usize, String)>,
}

/// A part with its place, from the picture's upper left corner.
struct Box {
    title: String,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    depth: usize,
}

/// Where everything is.
#[derive(Default)]
struct Drawing {
    boxes: Vec<Box>,
    /// By rank.
    centers: BTreeMap<u32, (f64, f64)>,
}

/// Pairs of ranks between which a plan sends, in the order of the sending rank's steps.
pub fn messages(plan: &Plan) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    for rank in 0..plan.call().size {
        let mut mine: Vec<u32> = Vec::new();
        for step in plan.part(rank).steps() {
            if let Step::Send { to, .. } = *step
                && !mine.contains(&to)
            {
                mine.push(to);
            }
            let read = match *step {
                Step::Read { from, .. } => [Some(from), None],
                Step::Fold { left, right, .. } => [left.of, right.of],
                _ => [None, None],
            };
            for from in read.into_iter().flatten() {
                if !pairs.contains(&(from, rank)) {
                    pairs.push((from, rank));
                }
            }
        }
        pairs.extend(mine.into_iter().map(|to| (rank, to)));
    }
    pairs
}

/// Draws ranks in their parts and messages between them.
///
/// # Errors
/// More ranks than can be told apart.
pub fn svg(
    topology: &Topology,
    devices: &[Device],
    messages: &[(u32, u32)],
    title: &str,
) -> Result<String, String> {
    if topology.size() > MOST_RANKS {
        return Err(format!(
            "{} ranks are too many for a picture (hint: at most {MOST_RANKS})",
            topology.size()
        ));
    }
    let mut drawing = Drawing::default();
    let ranks: Vec<u32> = (0..topology.size()).collect();
    let (width, height) = drawing.level(topology, 0, &ranks, (PAD, 2.0 * HEAD + PAD));
    let below = 2.0 * HEAD + 2.0 * PAD + height;
    let (strip, wide, high) = strip(devices, (PAD, below));
    let (width, height) = (width.max(wide) + 2.0 * PAD, below + high + PAD);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" \
         markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"#444\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{PAD}\" y=\"{HEAD}\" font-size=\"14\">{}</text>",
        escaped(title)
    );
    for part in &drawing.boxes {
        let shade = 255 - 10 * part.depth.min(8);
        let _ = writeln!(
            text,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"5\" \
             fill=\"rgb({shade},{shade},255)\" stroke=\"#88a\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#446\">{}</text>",
            part.left,
            part.top,
            part.width,
            part.height,
            part.left + 5.0,
            part.top + 12.0,
            escaped(&part.title)
        );
    }
    let device_links = topology
        .device_links()
        .into_iter()
        .flat_map(DeviceLinks::pairs);
    for (from, to, device_link) in device_links {
        let at = |rank| drawing.centers.get(rank);
        let (Some((ax, ay)), Some((bx, by))) = (at(&from), at(&to)) else {
            continue;
        };
        let _ = writeln!(
            text,
            "<line x1=\"{ax:.1}\" y1=\"{ay:.1}\" x2=\"{bx:.1}\" y2=\"{by:.1}\" stroke=\"{LINKS}\" \
             stroke-opacity=\"0.5\" stroke-width=\"{}\"><title>{device_link}</title></line>",
            1 + device_link.links().min(5)
        );
    }
    for &(from, to) in messages {
        let (Some(a), Some(b)) = (drawing.centers.get(&from), drawing.centers.get(&to)) else {
            continue;
        };
        let (path_a, path_b) = (
            &topology.places()[from as usize],
            &topology.places()[to as usize],
        );
        let color = match path_a.first() == path_b.first() {
            true => "#59c",
            false => "#b33",
        };
        let _ = writeln!(text, "{}", curve(*a, *b, color));
    }
    for (rank, (x, y)) in &drawing.centers {
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RADIUS}\" fill=\"#fff\" stroke=\"#333\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{rank}</text>",
            y + 4.0
        );
    }
    text.push_str(&strip);
    text.push_str("</svg>\n");
    Ok(text)
}

/// Devices in boxes of what they are behind, from a corner on; the strip's width and height.
fn strip(devices: &[Device], (left, top): (f64, f64)) -> (String, f64, f64) {
    let (mut boxes, mut lines, mut squares) = (String::new(), String::new(), String::new());
    if devices.is_empty() {
        return (boxes, 0.0, 0.0);
    }
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, device) in devices.iter().enumerate() {
        groups.entry(&device.behind).or_default().push(at);
    }
    let side = 2.0 * CELL;
    let (row, bottom) = (top + HEAD + PAD, HEAD + 2.0 * PAD + CELL);
    let mut centers = vec![(0.0, 0.0); devices.len()];
    let mut x = left;
    for (behind, members) in groups {
        // Titles are longer than one square is wide.
        let wide = (side * members.len() as f64).max(7.0 * behind.len() as f64) + PAD;
        let _ = writeln!(
            boxes,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{bottom:.1}\" rx=\"5\" \
             fill=\"#efe\" stroke=\"#8a8\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"#464\">{}</text>",
            x + 5.0,
            top + 12.0,
            escaped(behind)
        );
        for (at, device) in members.iter().enumerate() {
            let cell = x + PAD + side * at as f64;
            centers[*device] = (cell + side / 2.0 - PAD / 2.0, row + CELL / 2.0);
            let _ = writeln!(
                squares,
                "<rect x=\"{cell:.1}\" y=\"{row:.1}\" width=\"{:.1}\" height=\"{CELL}\" rx=\"3\" \
                 fill=\"#fff\" stroke=\"#252\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                side - PAD,
                centers[*device].0,
                row + CELL / 2.0 + 4.0,
                escaped(&devices[*device].name)
            );
        }
        x += wide + PAD;
    }
    let mut deepest = 0.0f64;
    for (from, device) in devices.iter().enumerate() {
        // There and back is one line.
        let once = |to: &&usize| {
            let back = devices.get(**to).map(|other| other.reaches.contains(&from));
            back.is_some_and(|back| from < **to || !back)
        };
        for to in device.reaches.iter().filter(once) {
            let ((ax, y), (bx, _)) = (centers[from], centers[*to]);
            let depth = (bx - ax).abs() * 0.2 + PAD;
            deepest = deepest.max(depth / 2.0 + CELL / 2.0);
            let y = y + CELL / 2.0;
            let links = device.links.iter().find(|(other, _)| other == to);
            let middle = f64::midpoint(ax, bx);
            let _ = writeln!(
                lines,
                "<path d=\"M{ax:.1} {y:.1} Q{middle:.1} {:.1} {bx:.1} {y:.1}\" fill=\"none\" \
                 stroke=\"{}\" stroke-width=\"2\"/>",
                y + depth,
                if links.is_some() { LINKS } else { "#393" }
            );
            if let Some((_, links)) = links {
                let _ = writeln!(
                    lines,
                    "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{LINKS}\">{}</text>",
                    y + depth / 2.0 - 2.0,
                    escaped(links)
                );
            }
        }
    }
    (boxes + &lines + &squares, x - left - PAD, bottom + deepest)
}

impl Drawing {
    /// Draws what is in a part from a corner on; its width and height.
    fn level(
        &mut self,
        topology: &Topology,
        level: usize,
        ranks: &[u32],
        (left, top): (f64, f64),
    ) -> (f64, f64) {
        let Some(name) = topology.levels().get(level) else {
            return self.ranks(ranks, (left, top));
        };
        let mut parts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for rank in ranks {
            let at = topology.places()[*rank as usize][level];
            parts.entry(at).or_default().push(*rank);
        }
        let (mut x, mut y) = (left, top);
        let (mut widest, mut row) = (0.0f64, 0.0f64);
        for (number, members) in parts {
            let before = (self.boxes.len(), x);
            self.boxes.push(Box {
                title: format!("{name} {number}"),
                left: x,
                top: y,
                width: 0.0,
                height: 0.0,
                depth: level,
            });
            let inner = self.level(topology, level + 1, &members, (x + PAD, y + HEAD + PAD));
            let (w, h) = (inner.0 + 2.0 * PAD, inner.1 + HEAD + 2.0 * PAD);
            let part = &mut self.boxes[before.0];
            (part.width, part.height) = (w, h);
            x += w + PAD;
            row = row.max(h);
            widest = widest.max(x - left - PAD);
            if x - left > WIDEST / (level + 1) as f64 {
                (x, y, row) = (left, y + row + PAD, 0.0);
            }
        }
        let bottom = if row > 0.0 { y + row } else { y - PAD };
        (widest, bottom - top)
    }

    /// Ranks in a square, more wide than high.
    fn ranks(&mut self, ranks: &[u32], (left, top): (f64, f64)) -> (f64, f64) {
        let wide = ((ranks.len() as f64).sqrt() * 1.5).ceil().max(1.0) as usize;
        for (at, rank) in ranks.iter().enumerate() {
            let x = left + CELL * (at % wide) as f64 + CELL / 2.0;
            let y = top + CELL * (at / wide) as f64 + CELL / 2.0;
            self.centers.insert(*rank, (x, y));
        }
        let rows = ranks.len().div_ceil(wide);
        (CELL * wide.min(ranks.len()) as f64, CELL * rows as f64)
    }
}

/// A bent arrow from circle to circle; there and back are bent to different sides.
fn curve((ax, ay): (f64, f64), (bx, by): (f64, f64), color: &str) -> String {
    let (dx, dy) = (bx - ax, by - ay);
    let length = dx.hypot(dy).max(1.0);
    let bend = 0.12 * length + 6.0;
    let (mx, my) = (
        (ax + bx) / 2.0 - dy / length * bend,
        (ay + by) / 2.0 + dx / length * bend,
    );
    // Ends lie on the circles, towards the bend.
    let edge = |(x, y): (f64, f64)| {
        let (ex, ey) = (mx - x, my - y);
        let far = ex.hypot(ey).max(1.0);
        (x + ex / far * RADIUS, y + ey / far * RADIUS)
    };
    let ((ax, ay), (bx, by)) = (edge((ax, ay)), edge((bx, by)));
    format!(
        "<path d=\"M{ax:.1} {ay:.1} Q{mx:.1} {my:.1} {bx:.1} {by:.1}\" fill=\"none\" \
         stroke=\"{color}\" stroke-width=\"1.3\" marker-end=\"url(#tip)\"/>"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Call, Operation};

    #[test]
    fn a_picture_has_all_ranks_parts_and_messages() {
        let machine = Topology::regular("2x2x3").expect("a shape");
        let plan = Plan::new(Call::new(Operation::Bcast, 12), Algorithm::Binomial, 1);
        let pairs = messages(&plan.expect("suitable"));
        assert_eq!(pairs.len(), 11, "each rank but the root is sent to once");
        let drawn = svg(&machine, &[], &pairs, "a < b").expect("few ranks");
        assert_eq!(drawn.matches("<circle").count(), 12);
        // Nodes and packages, and the paper.
        assert_eq!(drawn.matches("<rect").count(), 2 + 4 + 1);
        assert_eq!(drawn.matches("marker-end").count(), 11);
        assert!(drawn.contains("package 1") && drawn.contains("a &lt; b"));
    }

    #[test]
    fn devices_stand_behind_their_switches() {
        let machine = Topology::regular("2x2").expect("a shape");
        let device = |at: usize, reaches: &[usize]| Device {
            name: format!("gpu {at}"),
            behind: format!("switch {}", at / 2),
            reaches: reaches.into(),
            links: vec![(1 - at % 2, "NV4".into())],
        };
        let devices = [
            device(0, &[1]),
            device(1, &[0, 2]),
            device(2, &[]),
            device(3, &[]),
        ];
        let drawn = svg(&machine, &devices, &[], "").expect("few ranks");
        // Two nodes, two switches, four devices, and the paper.
        assert_eq!(drawn.matches("<rect").count(), 2 + 2 + 4 + 1);
        assert_eq!(drawn.matches("stroke=\"#393\"").count(), 1, "{drawn}");
        assert_eq!(drawn.matches("stroke=\"#c60\"").count(), 1, "{drawn}");
        assert!(drawn.contains(">NV4<"), "{drawn}");
        let device_links = DeviceLinks::regular("0-1:4", 4, 2).expect("pairs");
        let joined =
            svg(&machine.with_device_links(device_links), &[], &[], "").expect("few ranks");
        assert_eq!(joined.matches("<title>NV4</title>").count(), 2, "{joined}");
        assert!(drawn.contains("switch 1") && drawn.contains("gpu 3"));
    }

    #[test]
    fn boxes_hold_their_ranks_and_stand_apart() {
        let machine = Topology::regular("3x2x5").expect("a shape");
        let mut drawing = Drawing::default();
        let ranks: Vec<u32> = (0..30).collect();
        let (width, height) = drawing.level(&machine, 0, &ranks, (0.0, 0.0));
        let inside = |b: &Box, (x, y): (f64, f64)| {
            x > b.left && x < b.left + b.width && y > b.top && y < b.top + b.height
        };
        for center in drawing.centers.values() {
            let around = drawing.boxes.iter().filter(|b| inside(b, *center));
            assert_eq!(around.count(), 2, "one node, one package");
        }
        for b in &drawing.boxes {
            assert!(b.left + b.width <= width + 0.1 && b.top + b.height <= height + 0.1);
        }
        let apart = |a: &Box, b: &Box| {
            a.left + a.width < b.left
                || b.left + b.width < a.left
                || a.top + a.height < b.top
                || b.top + b.height < a.top
        };
        for (i, a) in drawing.boxes.iter().enumerate() {
            for b in &drawing.boxes[i + 1..] {
                assert!(a.depth != b.depth || apart(a, b));
            }
        }
    }

    #[test]
    fn too_many_ranks_are_refused() {
        let machine = Topology::regular("2x1024").expect("a shape");
        assert!(svg(&machine, &[], &[], "").is_err());
    }
}
