//! Topology: levels of a machine by name, places of ranks, and drawings as text.
//!
//! # Invariants
//! 1. All ranks' paths are equally long, an entry per level, outermost first.
//! 2. Entries are numbers of instances within what is around them, or any numbers
//!    that tell them apart there.

use crate::algorithms::Plan;
use crate::device_links::DeviceLinks;
use crate::plan::Step;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Levels of a machine and where ranks are in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    levels: Vec<String>,
    places: Vec<Vec<u32>>,
    device_links: Option<DeviceLinks>,
}

impl Topology {
    /// From the names of levels, outermost first, and each rank's path. What is not
    /// known of a rank is a part of its own: nothing is said about who is near to it.
    pub fn of(levels: &[&str], places: &[Vec<Option<u32>>]) -> Self {
        let place = |(rank, path): (usize, &Vec<Option<u32>>)| {
            assert_eq!(path.len(), levels.len(), "an entry for each level");
            let unknown = u32::MAX - rank as u32;
            path.iter().map(|at| at.unwrap_or(unknown)).collect()
        };
        Self {
            levels: levels.iter().map(|l| (*l).to_owned()).collect(),
            places: places.iter().enumerate().map(place).collect(),
            device_links: None,
        }
    }

    /// Of a regular machine, as in `4x2x4`: nodes, packages, ranks of each; deeper
    /// shapes have more levels between. Ranks fill it in order.
    ///
    /// # Errors
    /// If it is no list of positive numbers, or has more than 2^24 ranks.
    pub fn regular(shape: &str) -> Result<Self, String> {
        let widths: Option<Vec<u32>> = shape
            .split(['x', 'X'])
            .map(|w| w.trim().parse().ok().filter(|w| *w > 0))
            .collect();
        let Some(widths) = widths else {
            return Err(format!(
                "no shape of a machine: {shape} (hint: as in 4x2x4, outermost first)"
            ));
        };
        let size = widths.iter().try_fold(1u32, |size, w| {
            size.checked_mul(*w).filter(|s| *s <= 1 << 24)
        });
        let Some(size) = size else {
            return Err(format!("too many ranks: {shape}"));
        };
        let outer = &widths[..widths.len() - 1];
        let names = ["node", "package", "numanode", "l3cache"];
        let levels = (0..outer.len())
            .map(|l| names.get(l).map_or(format!("level{l}"), |n| (*n).into()))
            .collect();
        let place = |rank: u32| {
            let mut rest = rank / widths[widths.len() - 1];
            let mut path: Vec<u32> = outer
                .iter()
                .rev()
                .map(|width| {
                    let at = rest % width;
                    rest /= width;
                    at
                })
                .collect();
            path.reverse();
            path
        };
        Ok(Self {
            levels,
            places: (0..size).map(place).collect(),
            device_links: None,
        })
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.places.len() as u32
    }

    /// Names of levels, outermost first.
    pub fn levels(&self) -> &[String] {
        &self.levels
    }

    /// Each rank's path.
    pub fn places(&self) -> &[Vec<u32>] {
        &self.places
    }

    /// Without levels that tell nothing: all ranks in one part, the same parts as the
    /// level around it, or every rank in a part of its own.
    pub fn simplified(&self) -> Self {
        let parts = |upto: usize| {
            let mut all: Vec<&[u32]> = self.places.iter().map(|p| &p[..upto]).collect();
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        let mut before = 1;
        let mut kept = Vec::new();
        for level in 0..self.levels.len() {
            let now = parts(level + 1);
            if now > before && now < self.places.len() {
                kept.push(level);
            }
            before = now;
        }
        // A level that was left out because it separates all still tells apart what
        // the kept ones do not; nobody shares it, so nothing is lost.
        Self {
            levels: kept.iter().map(|l| self.levels[*l].clone()).collect(),
            places: self
                .places
                .iter()
                .map(|p| kept.iter().map(|l| p[*l]).collect())
                .collect(),
            device_links: self.device_links.clone(),
        }
    }

    /// The same, with links of their own between devices of ranks.
    pub fn with_device_links(mut self, device_links: DeviceLinks) -> Self {
        self.device_links = Some(device_links).filter(|device_links| !device_links.is_empty());
        self
    }

    /// Links of their own between devices of ranks, if there are any.
    pub fn device_links(&self) -> Option<&DeviceLinks> {
        self.device_links.as_ref()
    }

    /// What joins devices of ranks, as a matrix: links of their own, else the innermost part
    /// that holds both. None where there are no such links, or too many ranks for a matrix.
    pub fn draw_device_links(&self) -> Option<String> {
        let device_links = self.device_links.as_ref()?;
        if self.size() > MOST_IN_MATRIX {
            return None;
        }
        let names: Vec<String> = (0..self.size()).map(|rank| rank.to_string()).collect();
        Some(matrix(&names, &|a, b| {
            let (a, b) = (a as u32, b as u32);
            match device_links.between(a, b) {
                Some(device_link) => device_link.to_string(),
                None => self.part_of_both(a, b).to_owned(),
            }
        }))
    }

    /// The level of the innermost part that holds two ranks.
    fn part_of_both(&self, a: u32, b: u32) -> &str {
        let (a, b) = (&self.places[a as usize], &self.places[b as usize]);
        match a.iter().zip(b).take_while(|(a, b)| a == b).count() {
            0 => "-",
            n => &self.levels[n - 1],
        }
    }

    /// As text, indented by level, ranks behind the innermost one.
    pub fn draw(&self) -> String {
        let ranks: Vec<u32> = (0..self.size()).collect();
        let mut text = String::new();
        self.draw_level(0, &ranks, &mut text);
        text
    }

    fn draw_level(&self, level: usize, ranks: &[u32], text: &mut String) {
        let indent = "  ".repeat(level);
        if level == self.levels.len() {
            if level == 0 {
                let _ = writeln!(text, "ranks {}", list(ranks));
            }
            return;
        }
        let mut parts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for rank in ranks {
            let at = self.places[*rank as usize][level];
            parts.entry(at).or_default().push(*rank);
        }
        for (at, members) in parts {
            let name = &self.levels[level];
            let number = if at > u32::MAX - self.size() {
                "?".to_owned()
            } else {
                at.to_string()
            };
            let inner = level + 1 == self.levels.len();
            let word = if inner {
                format!("  ranks {}", list(&members))
            } else {
                String::new()
            };
            let _ = writeln!(text, "{indent}{name} {number}{word}");
            self.draw_level(level + 1, &members, text);
        }
    }
}

/// Ranks of which a matrix is still read.
const MOST_IN_MATRIX: u32 = 32;

/// What lies between each two of some things, in rows and columns; `X` on the diagonal.
pub fn matrix(names: &[String], between: &dyn Fn(usize, usize) -> String) -> String {
    let all = 0..names.len();
    let cell = |row: usize, column: usize| match row == column {
        true => "X".to_owned(),
        false => between(row, column),
    };
    let rows: Vec<Vec<String>> = all
        .clone()
        .map(|row| all.clone().map(|column| cell(row, column)).collect())
        .collect();
    let head = names.iter().map(String::len).max().unwrap_or(0);
    let mut text = " ".repeat(head);
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(names[column].len())
    };
    let widths: Vec<usize> = all.map(widest).collect();
    for (name, width) in names.iter().zip(&widths) {
        let _ = write!(text, "  {name:<width$}");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    for (name, row) in names.iter().zip(&rows) {
        let mut line = format!("{name:<head$}");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "  {cell:<width$}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Ranks as the kernel lists processors: `0-3,8`.
fn list(ranks: &[u32]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < ranks.len() {
        let first = ranks[at];
        let mut last = first;
        while ranks.get(at + 1) == Some(&(last + 1)) {
            at += 1;
            last += 1;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match last - first {
            0 => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{last}"),
        };
        at += 1;
    }
    text
}

/// The tree by which a broadcast's first data reaches each rank, as text; children in
/// the order in which they are sent to. None for plans that begin at several ranks.
pub fn draw_tree(plan: &Plan) -> Option<String> {
    let size = plan.call().size;
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); size as usize];
    let mut roots = Vec::new();
    let mut parents = vec![None; size as usize];
    for rank in 0..size {
        parents[rank as usize] = plan.part(rank).steps().iter().find_map(|step| match step {
            Step::Recv { from, .. } | Step::Read { from, .. } => Some(*from),
            _ => None,
        });
        if parents[rank as usize].is_none() {
            roots.push(rank);
        }
    }
    let [root] = roots[..] else {
        return None;
    };
    for rank in 0..size {
        for step in plan.part(rank).steps() {
            if let Step::Send { to, .. } | Step::Raise { to, .. } = *step
                && parents[to as usize] == Some(rank)
                && !children[rank as usize].contains(&to)
            {
                children[rank as usize].push(to);
            }
        }
    }
    let mut text = format!("{root}\n");
    let mut open: Vec<(u32, String)> = Vec::new();
    let push = |rank: u32, before: &str, open: &mut Vec<(u32, String)>| {
        let below = children[rank as usize].iter().rev();
        open.extend(below.map(|child| (*child, before.to_owned())));
    };
    push(root, "", &mut open);
    while let Some((rank, before)) = open.pop() {
        // The last child of its parent lies on the stack above others' children.
        let last = children[parents[rank as usize]? as usize].last() == Some(&rank);
        let _ = writeln!(text, "{before}{} {rank}", if last { "`-" } else { "|-" });
        let further = format!("{before}{}", if last { "   " } else { "|  " });
        push(rank, &further, &mut open);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Call, Operation};

    #[test]
    fn a_regular_machine() {
        let machine = Topology::regular("2x2x3").expect("a shape");
        assert_eq!(machine.size(), 12);
        assert_eq!(
            machine.draw(),
            "node 0\n  package 0  ranks 0-2\n  package 1  ranks 3-5\n\
             node 1\n  package 0  ranks 6-8\n  package 1  ranks 9-11\n"
        );
        for wrong in ["", "4x0", "two", "65536x65536"] {
            assert!(Topology::regular(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Topology::regular("5").expect("flat").draw(), "ranks 0-4\n");
    }

    #[test]
    fn levels_that_tell_nothing_are_left_out() {
        // One package; two caches; each rank a core. Rank 3's cache is not known.
        let path = |cache: Option<u32>, core| vec![Some(0), cache, Some(core)];
        let places = [
            path(Some(0), 0),
            path(Some(0), 1),
            path(Some(4), 4),
            path(None, 5),
        ];
        let all = Topology::of(&["package", "l3cache", "core"], &places);
        let few = all.simplified();
        assert_eq!(few.levels(), ["l3cache"]);
        assert_eq!(
            few.draw(),
            "l3cache 0  ranks 0-1\nl3cache 4  ranks 2\nl3cache ?  ranks 3\n"
        );
    }

    #[test]
    fn device_links_are_drawn_as_a_matrix() {
        let machine = Topology::regular("2x2").expect("a shape");
        assert_eq!(machine.draw_device_links(), None);
        let device_links = DeviceLinks::regular("0-1:4,1-2:12", 4, 4).expect("pairs");
        assert_eq!(
            machine
                .with_device_links(device_links)
                .draw_device_links()
                .expect("few"),
            "   0    1     2     3\n0  X    NV4   -     -\n1  NV4  X     NV12  -\n\
             2  -    NV12  X     node\n3  -    -     node  X\n"
        );
    }

    #[test]
    fn a_tree() {
        let plan = Plan::new(Call::new(Operation::Bcast, 6), Algorithm::Binomial, 1);
        let drawn = draw_tree(&plan.expect("suitable")).expect("one root");
        assert_eq!(drawn, "0\n|- 4\n|  `- 5\n|- 2\n|  `- 3\n`- 1\n");
        let plan = Plan::new(Call::new(Operation::Allgather, 3), Algorithm::Ring, 1);
        assert_eq!(draw_tree(&plan.expect("suitable")), None);
    }
}
