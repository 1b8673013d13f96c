//! Timeline of a run as text: one column per rank, one line per step.

use osier_engine::wire;
use osier_transports::sim::{Did, SimEvent};

/// Lines of a timeline that are printed; the last ones count.
const LINES: usize = 120;
/// Widest cell.
const WIDTH: usize = 52;

/// A timeline in the making.
pub(super) struct Timeline {
    ranks: usize,
    now: Vec<(u32, String)>,
    /// Step, and what each rank did in it.
    lines: Vec<(u64, Vec<String>)>,
}

impl Timeline {
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks: ranks as usize,
            now: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Notes what a rank does in this step.
    pub fn tell(&mut self, rank: u32, text: String) {
        self.now.push((rank, text));
    }

    /// Ends a step in which the network did this.
    pub fn step(&mut self, step: u64, log: Vec<SimEvent>) {
        for event in log {
            let (rank, text) = describe(&event);
            self.tell(rank, text);
        }
        if self.now.is_empty() {
            return;
        }
        let mut cells = vec![String::new(); self.ranks];
        for (rank, text) in self.now.drain(..) {
            let cell = &mut cells[rank as usize];
            if !cell.is_empty() {
                cell.push_str("; ");
            }
            cell.push_str(&text);
        }
        self.lines.push((step, cells));
    }

    /// The table.
    pub fn lines(&self) -> Vec<String> {
        let first = self.lines.len().saturating_sub(LINES);
        let shown = &self.lines[first..];
        let widest = |rank: usize| {
            let cells = shown.iter().map(|(_, cells)| cells[rank].len());
            cells.max().unwrap_or(0).clamp(6, WIDTH)
        };
        let widths: Vec<usize> = (0..self.ranks).map(widest).collect();
        let row = |step: &str, cells: &[String]| {
            let mut line = format!("{step:>5}");
            for (cell, width) in cells.iter().zip(&widths) {
                line.push_str(&format!(" | {cell:width$}"));
            }
            line.trim_end().to_owned()
        };
        let names: Vec<String> = (0..self.ranks).map(|r| format!("rank {r}")).collect();
        let mut table = vec![row("step", &names)];
        for (step, cells) in shown {
            let broken: Vec<Vec<String>> = cells.iter().map(|c| break_up(c)).collect();
            let height = broken.iter().map(Vec::len).max().unwrap_or(1);
            for at in 0..height {
                let part: Vec<String> = broken
                    .iter()
                    .map(|c| c.get(at).cloned().unwrap_or_default())
                    .collect();
                let step = if at == 0 { step.to_string() } else { "".into() };
                table.push(row(&step, &part));
            }
        }
        table
    }
}

/// Cuts a cell at its semicolons.
fn break_up(cell: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in cell.split("; ").filter(|p| !p.is_empty()) {
        let fits = lines
            .last()
            .is_some_and(|l| l.is_empty() || l.len() + part.len() + 2 <= WIDTH);
        if !fits {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push_str("; ");
            }
            line.push_str(part);
        }
    }
    lines
}

fn describe(event: &SimEvent) -> (u32, String) {
    let SimEvent {
        what,
        from,
        to,
        kind,
        bytes,
        ..
    } = *event;
    let name = wire::name(kind);
    let size = match bytes {
        0 => String::new(),
        bytes => format!(" {bytes} B"),
    };
    match what {
        Did::Post => (from, format!("{name}{size} -> {to}")),
        Did::Deliver => (to, format!("{from} -> {name}{size}")),
        Did::Drop => (to, format!("{name}{size} from {from} is lost")),
        Did::Start => (from, format!("starts to copy{size} with {to}")),
        Did::End => (from, format!("has copied{size} with {to}")),
    }
}
