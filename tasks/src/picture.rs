//! Pictures of graphs as SVG: families and their edges, or tasks and edges of a small graph.
//! Pure.
//!
//! Boxes stand in columns by the longest path to them. Edges of ports that begin are dashed and
//! do not count for it, as their first message is there before any task runs; nor does one that
//! closes a cycle still. The heaviest path along the others is the critical path: of tasks, or
//! of the time that they took.
//!
//! # Invariants
//! 1. All ranks make the same picture from the same [`Picture`].
//! 2. Every text from outside is escaped.

use crate::layered::{Columns, Edge, Gaps, cut_cycles, heaviest_path, place};
use crate::report::Time;
use crate::svg::{Canvas, LARGE, LINE, Labels, SMALL, color, short, width_of};

/// Most tasks and edges of all ranks that are drawn one by one.
pub const MOST_TASKS: usize = 64;
pub const MOST_EDGES: usize = 256;

/// What is drawn.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub ranks: usize,
    pub families: Vec<FamilyBox>,
    pub relations: Vec<Relation>,
    /// Tasks and edges, if there are few.
    pub unrolled: Option<Unrolled>,
}

/// A family.
#[derive(Clone, Debug)]
pub struct FamilyBox {
    pub name: String,
    pub extents: Vec<usize>,
    pub placement: String,
    pub rule: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// Of its output ports: whether `init` puts messages there.
    pub begins: Vec<bool>,
    /// Time in calls of its tasks, if it was measured.
    pub took_ns: Option<u64>,
}

/// The edges from one port to another.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Family and port.
    pub from: (u32, u32),
    pub to: (u32, u32),
    pub label: u32,
    /// How many there are.
    pub edges: u64,
}

/// Tasks and their edges.
#[derive(Clone, Debug, Default)]
pub struct Unrolled {
    pub tasks: Vec<TaskBox>,
    pub edges: Vec<TaskEdge>,
}

/// A task.
#[derive(Clone, Debug)]
pub struct TaskBox {
    pub name: String,
    pub rank: usize,
    /// Time in its calls, if it was measured.
    pub took_ns: Option<u64>,
}

/// An edge, between tasks by their place in [`Unrolled::tasks`].
#[derive(Clone, Debug)]
pub struct TaskEdge {
    pub from: usize,
    pub to: usize,
    /// Its ports, and its label: `right -> left, label 2`.
    pub name: String,
    /// Its port begins.
    pub begins: bool,
}

impl Picture {
    /// The picture as a document.
    pub fn svg(&self) -> String {
        match &self.unrolled {
            Some(unrolled) => unrolled.svg(self.ranks),
            None => self.folded(),
        }
    }

    fn folded(&self) -> String {
        let boxes = &self.families;
        let begins = |relation: &Relation| {
            let family = &boxes[relation.from.0 as usize];
            family.begins.get(relation.from.1 as usize) == Some(&true)
        };
        let mut edges: Vec<Edge> = self
            .relations
            .iter()
            .map(|relation| Edge {
                from: relation.from.0 as usize,
                to: relation.to.0 as usize,
                is_cut: begins(relation),
            })
            .collect();
        cut_cycles(boxes.len(), &mut edges);
        let lines: Vec<FamilyLines> = boxes.iter().map(FamilyLines::of).collect();
        let sizes: Vec<(f64, f64)> = lines.iter().map(FamilyLines::size).collect();
        let words: Vec<String> = self.relations.iter().map(Relation::words).collect();
        let widest = words
            .iter()
            .map(|text| width_of(text, SMALL))
            .fold(0.0, f64::max);
        let gaps = Gaps {
            columns: widest + 60.0,
            boxes: 40.0,
        };
        let layout = place(&sizes, &edges, gaps);
        let mut canvas = Canvas::default();
        let mut labels = Labels::default();
        let mut below = 0;
        for (relation, (number, edge)) in self.relations.iter().zip(edges.iter().enumerate()) {
            let from = layout.right(edge.from, lines[edge.from].output_y(relation.from.1));
            let to = layout.left(edge.to, lines[edge.to].input_y(relation.to.1));
            let style = if begins(relation) {
                "edge begins"
            } else {
                "edge"
            };
            let at = match edge.is_cut {
                true => {
                    below += 1;
                    canvas.below(from, to, layout.height + 18.0 * f64::from(below), style, "")
                }
                false => canvas.through(from, &layout.bends[number], to, style, ""),
            };
            labels.put(&mut canvas, at, &words[number]);
        }
        for (at, family) in lines.iter().enumerate() {
            family.draw(&mut canvas, layout.at[at], layout.widths[at]);
        }
        let notes = match self.relations.iter().any(begins) {
            true => "dashed: ports that begin",
            false => "",
        };
        canvas.note(notes);
        canvas.document("task graph, folded into families")
    }
}

impl Relation {
    fn words(&self) -> String {
        let edges = match self.edges {
            1 => "1 edge".into(),
            n => format!("{n} edges"),
        };
        match self.label {
            0 => edges,
            label => format!("label {label}: {edges}"),
        }
    }
}

/// The lines of a family's box.
struct FamilyLines {
    head: String,
    full: String,
    lines: Vec<String>,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

/// Height of the line with its name.
const HEAD: f64 = 26.0;

impl FamilyLines {
    fn of(family: &FamilyBox) -> FamilyLines {
        let FamilyBox { name, extents, .. } = family;
        let mut lines = vec![
            format!("placement: {}", short(&family.placement)),
            format!("rule: {}", short(&family.rule)),
        ];
        lines.extend(family.took_ns.map(|ns| format!("in calls: {}", Time(ns))));
        let outputs = family.outputs.iter().enumerate().map(|(at, name)| {
            let begins = family.begins.get(at) == Some(&true);
            format!("{}{}", short(name), if begins { " (begins)" } else { "" })
        });
        FamilyLines {
            head: format!("{} {extents:?}", short(name)),
            full: format!("{name} {extents:?}"),
            lines,
            inputs: family.inputs.iter().map(|name| short(name)).collect(),
            outputs: outputs.collect(),
        }
    }

    fn ports_y(&self) -> f64 {
        HEAD + LINE * self.lines.len() as f64 + 8.0
    }

    fn input_y(&self, port: u32) -> f64 {
        self.ports_y() + LINE * (f64::from(port) + 0.5)
    }

    fn output_y(&self, port: u32) -> f64 {
        self.input_y(port)
    }

    fn size(&self) -> (f64, f64) {
        let widest = |texts: &[String]| {
            let widths = texts.iter().map(|text| width_of(text, SMALL));
            widths.fold(0.0, f64::max)
        };
        let ports = widest(&self.inputs) + widest(&self.outputs) + 20.0;
        let width = width_of(&self.head, LARGE)
            .max(widest(&self.lines))
            .max(ports);
        let rows = self.inputs.len().max(self.outputs.len()) as f64;
        (width + 24.0, self.ports_y() + LINE * rows + 6.0)
    }

    fn draw(&self, canvas: &mut Canvas, at: (f64, f64), width: f64) {
        let (left, top) = at;
        let height = self.size().1;
        canvas.rect((left, top), (width, height), "family", "", &self.full);
        canvas.text((left + 10.0, top + 18.0), "head", &self.head);
        for (at, line) in self.lines.iter().enumerate() {
            let y = top + HEAD + LINE * at as f64 + 12.0;
            canvas.text((left + 10.0, y), "small", line);
        }
        for (port, name) in self.inputs.iter().enumerate() {
            let y = top + self.input_y(port as u32);
            canvas.dot((left, y));
            canvas.text((left + 8.0, y + 4.0), "small", name);
        }
        for (port, name) in self.outputs.iter().enumerate() {
            let y = top + self.output_y(port as u32);
            canvas.dot((left + width, y));
            canvas.text((left + width - 8.0, y + 4.0), "small end", name);
        }
    }
}

impl Unrolled {
    /// The critical path: its tasks, and how many these are, or what they took.
    fn critical(&self, edges: &[Edge]) -> (Vec<usize>, u64) {
        let weights = self.tasks.iter().map(|task| match self.is_timed() {
            true => task.took_ns.unwrap_or(0),
            false => 1,
        });
        heaviest_path(&weights.collect::<Vec<u64>>(), edges)
    }

    fn is_timed(&self) -> bool {
        self.tasks.iter().any(|task| task.took_ns.is_some())
    }

    fn layout_edges(&self) -> Vec<Edge> {
        let edge = |edge: &TaskEdge| Edge {
            from: edge.from,
            to: edge.to,
            is_cut: edge.begins,
        };
        let mut edges: Vec<Edge> = self.edges.iter().map(edge).collect();
        cut_cycles(self.tasks.len(), &mut edges);
        edges
    }

    fn svg(&self, ranks: usize) -> String {
        let edges = self.layout_edges();
        let (path, weight) = self.critical(&edges);
        let names: Vec<String> = self.tasks.iter().map(|task| short(&task.name)).collect();
        let times = self
            .tasks
            .iter()
            .map(|task| task.took_ns.map(|ns| Time(ns).to_string()));
        let times: Vec<Option<String>> = times.collect();
        let sizes = names.iter().zip(&times).map(|(name, time)| {
            let width = width_of(name, LARGE).max(width_of(time.as_deref().unwrap_or(""), SMALL));
            (width + 20.0, if time.is_some() { 42.0 } else { 28.0 })
        });
        let sizes: Vec<(f64, f64)> = sizes.collect();
        let gaps = Gaps {
            columns: 70.0,
            boxes: 14.0,
        };
        let layout = place(&sizes, &edges, gaps);
        let mut canvas = Canvas::default();
        let is_on_path = |edge: &Edge| {
            let steps = path.windows(2).any(|step| step == [edge.from, edge.to]);
            steps && !edge.is_cut
        };
        for (number, edge) in edges.iter().enumerate() {
            let (from_y, to_y) = (sizes[edge.from].1 / 2.0, sizes[edge.to].1 / 2.0);
            let TaskEdge { name, begins, .. } = &self.edges[number];
            let style = match (begins, is_on_path(edge)) {
                (true, _) => "edge begins",
                (false, true) => "edge critical",
                (false, false) => "edge",
            };
            let (from, to) = (layout.right(edge.from, from_y), layout.left(edge.to, to_y));
            let title = format!(
                "{}.{name} of {}",
                self.tasks[edge.from].name, self.tasks[edge.to].name
            );
            if edge.from == edge.to {
                let bottom = layout.at[edge.from].1 + sizes[edge.from].1;
                canvas.below(from, to, bottom + 10.0, style, &title);
            } else if !edge.is_cut {
                canvas.through(from, &layout.bends[number], to, style, &title);
            } else if layout.at[edge.from].0 == layout.at[edge.to].0 {
                // Downwards on the right side, upwards on the left one.
                match from.1 < to.1 {
                    true => canvas.beside(from, layout.right(edge.to, to_y), 1.0, style, &title),
                    false => canvas.beside(layout.left(edge.from, from_y), to, -1.0, style, &title),
                };
            } else {
                canvas.through(from, &[], to, style, &title);
            }
        }
        for (at, task) in self.tasks.iter().enumerate() {
            let (left, top) = layout.at[at];
            let style = match path.contains(&at) {
                true => "task critical",
                false => "task",
            };
            let fill = color(task.rank);
            let full = format!("{}, rank {}", task.name, task.rank);
            let width = layout.widths[at];
            canvas.rect((left, top), (width, sizes[at].1), style, &fill, &full);
            canvas.text((left + width / 2.0, top + 18.0), "middle", &names[at]);
            if let Some(time) = &times[at] {
                canvas.text((left + width / 2.0, top + 34.0), "small middle", time);
            }
        }
        canvas.legend(ranks);
        let all: u64 = self.tasks.iter().filter_map(|task| task.took_ns).sum();
        canvas.note(&match self.is_timed() {
            true => format!(
                "critical path: {} of {} in calls, {} tasks",
                Time(weight),
                Time(all),
                path.len()
            ),
            false => format!(
                "critical path: {} of {} tasks",
                path.len(),
                self.tasks.len()
            ),
        });
        if self.edges.iter().any(|edge| edge.begins) {
            canvas.note("dashed: ports that begin");
        }
        canvas.document("task graph")
    }
}

impl Columns {
    /// A point on the right side of a box.
    fn right(&self, of: usize, y: f64) -> (f64, f64) {
        (self.at[of].0 + self.widths[of], self.at[of].1 + y)
    }

    fn left(&self, of: usize, y: f64) -> (f64, f64) {
        (self.at[of].0, self.at[of].1 + y)
    }
}

#[cfg(test)]
mod tests;
