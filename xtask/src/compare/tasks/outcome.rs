//! Medians of the accepted sweeps, what they are held against, tables. Pure.

use super::super::hop::FAR;
use super::super::sample::median;
use super::super::table;
use super::Sweep;
use super::metg::{Rejected, metg, peak};
use super::rows::{COLUMNS, Column, Row, rows};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Markers around its section of the documentation.
pub const MARKERS: [&str; 2] = ["<!-- compare-tasks:begin -->", "<!-- compare-tasks:end -->"];

/// Of the best of the graphs: at most this part of the best program for MPI on each pattern
/// that communicates, and on the median of them.
const OF_BEST: f64 = 1.0;
const OF_BEST_MEDIAN: f64 = 0.7;
/// The same on these patterns.
const OF_BEST_WIDE: f64 = 0.5;
const WIDE: [&str; 2] = ["all_to_all", "spread"];
/// Ahead of the non-blocking program over Osier on these.
const AHEAD: [&str; 3] = ["stencil_1d", "nearest", "fft"];
/// Of the bare loop, where nothing communicates.
const OF_BARE: f64 = 3.0;

/// METG in us of the accepted sweeps of a column, by round, and why others were rejected.
pub fn accepted(sweeps: &[Sweep], row: Row, column: Column) -> (Vec<f64>, Vec<Rejected>) {
    accepted_of(sweeps, row, column, &|_| true)
}

/// The same of some sweeps; peaks are of any.
fn accepted_of(
    sweeps: &[Sweep],
    row: Row,
    column: Column,
    is_one: &dyn Fn(&Sweep) -> bool,
) -> (Vec<f64>, Vec<Rejected>) {
    let mut found = (Vec::new(), Vec::new());
    let all = sweeps.iter().filter(|sweep| sweep.is_of(row, column));
    for sweep in all.filter(|sweep| is_one(sweep)) {
        let of_round = |s: &&Sweep| s.is_of(row, column.peak()) && s.round == sweep.round;
        let kernels = sweeps.iter().find(of_round);
        let Some(peak) = kernels.and_then(|kernels| peak(&kernels.points())) else {
            continue;
        };
        match metg(&sweep.points(), peak) {
            Ok(us) => found.0.push(us),
            // Kernels alone have nothing to fall behind.
            Err(Rejected::NoneBelow) if column.is_peak() => found.0.push(0.0),
            Err(why) => found.1.push(why),
        }
    }
    found
}

/// A column of a row.
#[derive(Clone, Debug, PartialEq)]
struct Cell {
    median: f64,
    /// (max - min) / median.
    spread: f64,
    sweeps: usize,
    rejected: Vec<String>,
}

impl Cell {
    fn text(&self) -> String {
        let spread = match 100.0 * self.spread {
            percent if percent < 99.5 => format!("{percent:.0}%"),
            // In the width of a column.
            percent => format!("{:.0}x", (percent / 100.0).min(99.0)),
        };
        format!("{}±{spread}", number(self.median))
    }
}

/// Whether a bar is met; `None` where it is not judged.
type Verdict = (String, Option<bool>);

/// All rows.
pub struct Outcome {
    cells: Cells,
    least_sweeps: usize,
    /// Of the sweeps with near cores alone, and of those with far ones, where both are there.
    by_distance: Vec<Outcome>,
}

/// By place of the row and of the column.
type Cells = BTreeMap<(usize, usize), Cell>;

/// Of which sweeps both looks at the cores were near, or both far.
fn distances(sweeps: &[Sweep]) -> [impl Fn(&Sweep) -> bool; 2] {
    let hops = sweeps.iter().filter_map(|sweep| sweep.hops_ns).flatten();
    let mut hops: Vec<f64> = hops.collect();
    hops.sort_by(f64::total_cmp);
    // Single looks may be shorter than any line takes.
    let nearest = hops.get(hops.len() / 20).copied().unwrap_or(f64::INFINITY);
    [true, false].map(|near| {
        move |sweep: &Sweep| {
            let is_so = |hop: f64| (hop <= FAR * nearest) == near;
            sweep
                .hops_ns
                .is_some_and(|hops| hops.into_iter().all(is_so))
        }
    })
}

fn cells_of(sweeps: &[Sweep], is_one: &dyn Fn(&Sweep) -> bool) -> Cells {
    let mut cells = BTreeMap::new();
    for (at, row) in rows().into_iter().enumerate() {
        for (column_at, column) in COLUMNS.into_iter().enumerate() {
            let (mut values, rejected) = accepted_of(sweeps, row, column, is_one);
            if column.is_peak() || values.is_empty() {
                continue;
            }
            values.sort_by(f64::total_cmp);
            let middle = median(&values);
            let cell = Cell {
                median: middle,
                spread: (values[values.len() - 1] - values[0]) / middle,
                sweeps: values.len(),
                rejected: rejected.iter().map(ToString::to_string).collect(),
            };
            cells.insert((at, column_at), cell);
        }
    }
    cells
}

impl Outcome {
    /// Of all sweeps; a bar is judged where its columns have that number of accepted ones.
    pub fn new(sweeps: &[Sweep], least_sweeps: usize) -> Outcome {
        let of = |is_one: &dyn Fn(&Sweep) -> bool| Outcome {
            cells: cells_of(sweeps, is_one),
            least_sweeps,
            by_distance: Vec::new(),
        };
        let by_distance = distances(sweeps).map(|is_one| of(&is_one));
        let both = by_distance.iter().all(|some| !some.cells.is_empty());
        Outcome {
            by_distance: if both { by_distance.into() } else { Vec::new() },
            ..of(&|_| true)
        }
    }

    /// True when no graph has a number.
    pub fn lacks_osier(&self) -> bool {
        rows().iter().all(|row| self.graph(*row).is_none())
    }

    fn cell(&self, row: Row, column: Column) -> Option<&Cell> {
        let at = rows().iter().position(|other| *other == row)?;
        let column = COLUMNS.iter().position(|other| *other == column)?;
        self.cells.get(&(at, column))
    }

    fn best(&self, row: Row, of: impl Fn(Column) -> bool) -> Option<(Column, &Cell)> {
        let columns = COLUMNS.into_iter().filter(|column| of(*column));
        let cells = columns.filter_map(|column| Some((column, self.cell(row, column)?)));
        cells.min_by(|a, b| a.1.median.total_cmp(&b.1.median))
    }

    /// The best of the graphs.
    fn graph(&self, row: Row) -> Option<&Cell> {
        Some(self.best(row, Column::is_graph)?.1)
    }

    /// The best program for MPI over a peer.
    fn mpi(&self, row: Row) -> Option<(Column, &Cell)> {
        self.best(row, |column| matches!(column, Column::Peer { .. }))
    }

    /// Beside the best program for MPI, or beside the bare loop.
    fn other(&self, row: Row) -> Option<&Cell> {
        match row.communicates() {
            true => Some(self.mpi(row)?.1),
            false => self.cell(row, Column::Bare),
        }
    }

    fn ratio(&self, row: Row) -> Option<f64> {
        Some(self.graph(row)?.median / self.other(row)?.median)
    }

    /// Whether all columns of a row that stand in its bars have their sweeps.
    fn is_judged(&self, row: Row) -> bool {
        self.sweeps_in_bars(row) >= self.least_sweeps
    }

    /// Least accepted sweeps of a column that stands in the bars of a row.
    fn sweeps_in_bars(&self, row: Row) -> usize {
        let stands =
            |column: &Column| row.is_of(*column) && !column.is_peak() && *column != Column::OsierC;
        let columns = COLUMNS.into_iter().filter(stands);
        let sweeps = |column| self.cell(row, column).map_or(0, |cell| cell.sweeps);
        columns.map(sweeps).min().unwrap_or(0)
    }

    /// The bars of a row.
    fn bars(&self, row: Row) -> Vec<Verdict> {
        let judged = self.is_judged(row);
        let verdict = |text: String, met: Option<bool>| (text, met.filter(|_| judged));
        let ratio = self.ratio(row);
        let mut bars = Vec::new();
        if !row.communicates() {
            let text = format!("<= {OF_BARE} bare loop");
            bars.push(verdict(text, ratio.map(|ratio| ratio <= OF_BARE)));
            return bars;
        }
        let wide = WIDE.contains(&row.pattern) && row.points == 8;
        let most = if wide { OF_BEST_WIDE } else { OF_BEST };
        let text = format!("<= {most} best MPI");
        bars.push(verdict(text, ratio.map(|ratio| ratio <= most)));
        if AHEAD.contains(&row.pattern) {
            let messages = self.cell(row, Column::Messages);
            let both = self.graph(row).zip(messages);
            let met = both.map(|(graph, messages)| graph.median < messages.median);
            bars.push(verdict("< messages".into(), met));
        }
        bars
    }

    /// The bar of all rows that communicate.
    fn median_bar(&self) -> (Option<f64>, Verdict) {
        let all: Vec<Row> = rows().into_iter().filter(|r| r.communicates()).collect();
        let mut ratios: Vec<f64> = all.iter().filter_map(|row| self.ratio(*row)).collect();
        ratios.sort_by(f64::total_cmp);
        let middle = (!ratios.is_empty()).then(|| median(&ratios));
        let judged = all.iter().all(|row| self.is_judged(*row));
        let met = middle.map(|middle| middle <= OF_BEST_MEDIAN);
        let text = format!("median <= {OF_BEST_MEDIAN} best MPI");
        (middle, (text, met.filter(|_| judged)))
    }

    /// Tables of at most 80 columns, and verdicts.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for points in [8, 1] {
            let measured = |row: &Row| {
                COLUMNS
                    .into_iter()
                    .any(|column| self.cell(*row, column).is_some())
            };
            let all = rows().into_iter().filter(|row| row.points == points);
            let of_points: Vec<Row> = all.filter(measured).collect();
            if of_points.is_empty() {
                continue;
            }
            let s = if points == 1 { "" } else { "s" };
            let _ = writeln!(out, "METG(50 %) in us, {points} point{s} a core");
            let heads = ["2 ranks", "2 workers", "blocks", "messages", "best MPI"];
            let mut lines = vec![line("graph", &heads.map(String::from), Some("ratio"))];
            for row in &of_points {
                let best = |of: Option<(Column, &Cell)>| of.map_or_else(dash, |best| best.1.text());
                let cells = [
                    self.shown(*row, Column::Ranks),
                    self.shown(*row, Column::Workers),
                    best(self.best(*row, Column::is_of_blocks)),
                    self.shown(*row, Column::Messages),
                    best(self.mpi(*row)),
                ];
                let ratio = self.ratio(*row);
                let ratio = ratio.map_or_else(dash, |ratio| format!("{ratio:.2}"));
                lines.push(line(row.pattern, &cells, Some(&ratio)));
            }
            for row in of_points.iter().filter(|row| !row.communicates()) {
                let bare = self.shown(*row, Column::Bare);
                lines.push(format!("bare loop, {}: {bare}", row.pattern));
            }
            let peers = COLUMNS
                .into_iter()
                .filter(|c| matches!(c, Column::Peer { .. }));
            let peers: Vec<Column> = peers.collect();
            let heads: Vec<String> = peers.iter().map(|c| short(*c)).collect();
            lines.push(String::new());
            lines.push(line("MPI", &heads, None));
            for row in &of_points {
                let cells: Vec<String> = peers.iter().map(|c| self.shown(*row, *c)).collect();
                lines.push(line(row.pattern, &cells, None));
            }
            lines.push(String::new());
            lines.push(line("MPI", &["C library".into()], None));
            for row in &of_points {
                let cell = self.shown(*row, Column::OsierC);
                lines.push(line(row.pattern, &[cell], None));
            }
            let _ = writeln!(out, "{}\n", lines.join("\n"));
        }
        out + &self.verdicts() + &self.ratios_by_distance()
    }

    /// The ratios of the sweeps with near cores, and of those with far ones.
    fn ratios_by_distance(&self) -> String {
        let [near, far] = &self.by_distance[..] else {
            return String::new();
        };
        let mut out =
            String::from("\nratio where all looks were near, and far (least sweeps of a column)\n");
        for row in rows() {
            let cell = |of: &Outcome| {
                let ratio = of.ratio(row)?;
                Some(format!("{ratio:.2} ({})", of.sweeps_in_bars(row)))
            };
            let cells = [near, far].map(|of| cell(of).unwrap_or_else(dash));
            if cells.iter().any(|cell| *cell != dash()) {
                let [near, far] = cells;
                let _ = writeln!(out, "{:<36}{near:>12}{far:>12}", row.to_string());
            }
        }
        out
    }

    fn shown(&self, row: Row, column: Column) -> String {
        self.cell(row, column).map_or_else(dash, Cell::text)
    }

    fn verdicts(&self) -> String {
        let mut out = String::new();
        let (mut met, mut judged) = (0, 0);
        let mut without: Vec<String> = Vec::new();
        for row in rows() {
            for (text, verdict) in self.bars(row) {
                judged += usize::from(verdict.is_some());
                met += usize::from(verdict == Some(true));
                if verdict == Some(false) {
                    let ratio = self.ratio(row).unwrap_or(f64::NAN);
                    let _ = writeln!(out, "not met: {row}: {text} ({ratio:.2})");
                }
            }
            if !self.is_judged(row) {
                without.push(row.to_string());
            }
        }
        let (middle, (text, verdict)) = self.median_bar();
        if let Some(middle) = middle {
            let said = match verdict {
                Some(true) => "met",
                Some(false) => "NOT MET",
                None => "not judged",
            };
            let _ = writeln!(out, "{text}: {middle:.2}, {said}");
        }
        if !without.is_empty() {
            let least = self.least_sweeps;
            let _ = writeln!(
                out,
                "not judged, fewer than {least} accepted sweeps of a column: {}",
                match without.len() == rows().len() {
                    true => "all rows".into(),
                    false => without.join("; "),
                }
            );
        }
        let _ = writeln!(out, "bars: {met} of {judged} judged ones are met");
        out
    }

    /// A row of JSON for each pattern.
    pub fn json(&self) -> Vec<Value> {
        let row_of = |row: Row| {
            let column = |column: Column| {
                let cell = self.cell(row, column)?;
                let cell = json!({
                    "median": cell.median,
                    "spread": cell.spread,
                    "sweeps": cell.sweeps,
                    "rejected": cell.rejected,
                });
                Some((column.name(), cell))
            };
            let columns: serde_json::Map<String, Value> =
                COLUMNS.into_iter().filter_map(column).collect();
            let bars: Vec<Value> = self
                .bars(row)
                .into_iter()
                .map(|(bar, met)| json!({"bar": bar, "met": met}))
                .collect();
            json!({
                "bench": super::NAME,
                "pattern": row.pattern,
                "points": row.points,
                "unit": "us",
                "columns": columns,
                "ratio": self.ratio(row),
                "bars": bars,
            })
        };
        rows().into_iter().map(row_of).collect()
    }
}

/// How the figures were taken.
pub fn note(command: &str, hops: &str) -> String {
    format!(
        "Patterns after Task Bench (Slaughter et al., SC20); no results of Task Bench. Medians of \
         the accepted sweeps, ± (max - min) / median; ratio: the best graph to the best MPI \
         program, or to the bare loop where nothing communicates. Radix 5; random_nearest of one \
         point a core has 3. Blocks: one task of a graph computes \
         all points of a core. Every input is checked. {hops} {}",
        table::origin(command)
    )
}

fn dash() -> String {
    "-".into()
}

/// A line of a table: cells of 10 columns, the last of 7.
fn line(first: &str, cells: &[String], last: Option<&str>) -> String {
    let mut out = format!("{first:<19}");
    for cell in cells {
        let _ = write!(out, "{cell:>10}");
    }
    if let Some(last) = last {
        let _ = write!(out, "{last:>7}");
    }
    out
}

fn short(column: Column) -> String {
    let name = column.name();
    match name.strip_suffix("-bulk") {
        Some(name) => format!("{} bulk", &name[..name.len().min(4)]),
        None => name,
    }
}

/// Three figures.
fn number(us: f64) -> String {
    match us {
        us if us >= 100.0 => format!("{us:.0}"),
        us if us >= 10.0 => format!("{us:.1}"),
        us if us >= 1.0 => format!("{us:.2}"),
        us => format!("{us:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sweep of tasks that cost this much besides their work.
    fn sweep(row: Row, column: Column, round: u32, cost_us: f64) -> Sweep {
        let peak = match column.peak() {
            Column::Kernel => 1e11,
            _ => 0.7e11,
        };
        let sizes = (0..16).map(|half| {
            let work = 1000.0 / f64::from(1u32 << half);
            let granularity = work + cost_us;
            [granularity, peak * work / granularity]
        });
        Sweep {
            pattern: row.pattern.into(),
            points: row.points,
            round,
            column: column.name(),
            sizes: sizes.collect(),
            hops_ns: None,
        }
    }

    fn cost(row: Row, column: Column) -> f64 {
        match column {
            Column::Ranks if row.communicates() => 0.4,
            Column::Ranks => 0.1,
            Column::Workers => 0.5,
            Column::RanksOfBlocks | Column::WorkersOfBlocks => 0.55,
            Column::Messages | Column::OsierC => 0.6,
            Column::Peer { bulk: false, .. } => 1.0,
            Column::Peer { bulk: true, .. } => 3.0,
            Column::Bare => 0.05,
            Column::KernelOfOne | Column::Kernel => 0.0,
        }
    }

    fn sweeps(rounds: u32) -> Vec<Sweep> {
        let mut all = Vec::new();
        for round in 0..rounds {
            for row in rows() {
                let columns = COLUMNS.into_iter().filter(|c| row.is_of(*c));
                all.extend(columns.map(|c| sweep(row, c, round, cost(row, c))));
            }
        }
        all
    }

    #[test]
    fn sweeps_with_near_and_with_far_cores_are_told_apart() {
        let mut all = sweeps(4);
        for sweep in &mut all {
            sweep.hops_ns = Some(match sweep.round {
                1 => [250.0, 260.0],
                // One look near, one far: of neither.
                3 => [50.0, 250.0],
                _ => [50.0, 55.0],
            });
        }
        let text = Outcome::new(&all, 5).text();
        let lines = || {
            text.lines()
                .filter(|line| line.starts_with("stencil_1d, 8"))
        };
        let line = lines().next_back().expect("a line of ratios");
        assert!(line.contains("(2)") && line.contains("(1)"), "{line}");
        all.iter_mut().for_each(|sweep| sweep.hops_ns = None);
        assert!(!Outcome::new(&all, 5).text().contains("looks were near"));
    }

    #[test]
    fn bars_are_judged_once_all_sweeps_are_there() {
        let outcome = Outcome::new(&sweeps(5), 5);
        let text = outcome.text();
        assert!(
            text.contains("bars: 26 of 26 judged ones are met"),
            "{text}"
        );
        assert!(text.contains("median <= 0.7 best MPI: 0.41, met"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let few = Outcome::new(&sweeps(4), 5).text();
        assert!(few.contains("bars: 0 of 0"), "{few}");
        assert!(few.contains("fewer than 5 accepted sweeps of a column: all rows"));
    }

    #[test]
    fn what_is_slower_is_named() {
        let mut all = sweeps(5);
        let row = rows()[6];
        assert_eq!(row.pattern, "fft");
        let column = |name: &str| match name {
            "graph-2-ranks" => Column::Ranks,
            "graph-2-workers" => Column::Workers,
            "blocks-2-ranks" => Column::RanksOfBlocks,
            _ => Column::WorkersOfBlocks,
        };
        for sweep in &mut all {
            let graph = sweep.column.starts_with("graph") || sweep.column.starts_with("blocks");
            if graph && sweep.pattern == "fft" && sweep.points == 8 {
                *sweep = self::sweep(row, column(&sweep.column), sweep.round, 5.0);
            }
        }
        let outcome = Outcome::new(&all, 5);
        let text = outcome.text();
        assert!(
            text.contains("not met: fft, 8 points a core: <= 1 best MPI"),
            "{text}"
        );
        assert!(
            text.contains("not met: fft, 8 points a core: < messages"),
            "{text}"
        );
    }

    #[test]
    fn rejected_sweeps_do_not_count() {
        let mut all = sweeps(6);
        let is_first = |s: &&mut Sweep| s.round == 0 && s.column == "graph-2-ranks";
        for sweep in all.iter_mut().filter(is_first) {
            sweep.sizes.truncate(2);
        }
        let row = rows()[2];
        let (values, rejected) = accepted(&all, row, Column::Ranks);
        assert_eq!((values.len(), rejected), (5, vec![Rejected::NoneBelow]));
        // Without the peak of its round a sweep says nothing.
        let is_kernel = |s: &Sweep| s.is_of(row, Column::Kernel) && s.round == 1;
        all.retain(|s| !is_kernel(s));
        assert_eq!(accepted(&all, row, Column::Ranks).0.len(), 4);
        let json = Outcome::new(&all, 5).json();
        assert_eq!(json.len(), 20);
        assert_eq!(json[2]["columns"]["graph-2-ranks"]["sweeps"], 4);
        assert!(json[2]["bars"][0]["met"].is_null());
    }
}
