//! The table on standard output, JSON, and what the plot is made of.

use std::path::PathBuf;

use osier_gpu_report::record;
pub use osier_gpu_report::record::Record;

use super::by_copies::{By, MOST_BLOCKS};
use super::options::{Curve, Plan};
use super::plot;
use super::progress::Bar;
use super::{Bench, Failure, Result};

/// One number with its company.
pub struct Row {
    /// Threads of each rank.
    pub threads: usize,
    pub bytes: usize,
    pub unit: &'static str,
    pub value: f64,
    pub best: f64,
    pub p99: f64,
    /// Least and greatest of the repetitions.
    pub spread: Option<[f64; 2]>,
    pub floor: Option<f64>,
    /// The loop written by hand, of pack; one thread's rate, of threads.
    pub by_hand: Option<f64>,
}

/// Records that are in their file as soon as they are there.
#[derive(Default)]
pub struct Records {
    file: Option<PathBuf>,
    all: Vec<Record>,
}

impl Records {
    /// None yet; `file` is what `--json` names.
    pub fn new(file: Option<&PathBuf>) -> Records {
        Records {
            file: file.cloned(),
            all: Vec::new(),
        }
    }

    /// Takes a record, and writes the file: who is stopped has what was measured.
    pub fn push(&mut self, record: Record) -> Result<()> {
        self.extend([record])
    }

    /// Takes several.
    pub fn extend(&mut self, records: impl IntoIterator<Item = Record>) -> Result<()> {
        self.all.extend(records);
        let Some(file) = &self.file else {
            return Ok(());
        };
        record::write(file, &self.all)
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", file.display())))
    }

    /// Takes a record in the place of the one of the same name and size, if there is one.
    pub fn put(&mut self, record: Record) -> Result<()> {
        self.all.retain(|old| {
            (&old.bench, &old.layout, old.bytes) != (&record.bench, &record.layout, record.bytes)
        });
        self.push(record)
    }

    /// Has a file also where there is no record.
    pub fn finish(&mut self) -> Result<()> {
        self.extend([])
    }

    /// Those so far.
    pub fn all(&self) -> &[Record] {
        &self.all
    }
}

/// Prints rows as they come and keeps them for the files.
pub struct Report {
    bench: Bench,
    ranks: usize,
    window: usize,
    rotate: bool,
    busy: Option<f64>,
    transport: String,
    plot: Option<PathBuf>,
    bar: Bar,
    records: Records,
    curves: Vec<plot::Curve>,
    layout: String,
    memory: String,
    library: &'static str,
    /// A row of the table that waits for its second number.
    begun: Option<String>,
}

const WIDTH: usize = 14;

impl Report {
    pub fn new(plan: &Plan, ranks: usize, transport: &str) -> Report {
        let all = plan.curves.iter().map(|c| c.shapes.len()).sum();
        Report {
            bench: plan.bench,
            ranks,
            window: plan.window,
            rotate: plan.rotate,
            busy: plan.busy,
            transport: transport.into(),
            plot: plan.plot.clone(),
            bar: Bar::new(all, plan.progress),
            records: Records::new(plan.json.as_ref()),
            curves: Vec::new(),
            layout: String::new(),
            memory: String::new(),
            library: By::Osier.library(),
            begun: None,
        }
    }

    /// The heading of one curve.
    pub fn begin(&mut self, curve: &Curve) {
        self.bar.clear();
        self.layout = curve.layout();
        let rotated = if self.rotate { "-rotated" } else { "" };
        let places = curve.places() + rotated;
        let mut how: String = curve
            .way()
            .map(|way| format!(", {way}"))
            .unwrap_or_default();
        if let Some(share) = self.busy {
            how += &format!(", {:.0} % busy", 100.0 * share);
        }
        self.memory = format!("{places}{how}");
        self.library = curve.by.library();
        self.curves.push(plot::Curve {
            label: format!("{}, {}", self.layout, self.memory),
            points: Vec::new(),
        });
        let (layout, ranks) = (&self.layout, self.ranks);
        let name = self.bench.name();
        let s = if ranks == 1 { "" } else { "s" };
        let mut title = format!("# osier {name}: {ranks} rank{s}");
        match self.bench {
            Bench::Launch => {}
            Bench::Pack => title += &format!(", {layout}, {places} memory"),
            _ => title += &format!(", {layout}, {places} memory{how}, {}", self.transport),
        }
        let windowed = matches!(
            self.bench,
            Bench::Bandwidth | Bench::Bibandwidth | Bench::MessageRate | Bench::MultiPair
        );
        if windowed {
            title += &format!(", window {}", self.window);
        }
        if !self.records.all().is_empty() {
            println!();
        }
        println!("{title}");
        if curve.shapes.is_empty() {
            return println!("# left out: each size has more than {MOST_BLOCKS} blocks");
        }
        let heads: &[&str] = match self.bench {
            Bench::Latency => &["Latency (us)", "Min", "P99", "Floor", "x Floor"],
            Bench::Bandwidth | Bench::Bibandwidth => {
                &["Bandwidth (MB/s)", "Max", "P99", "Floor", "x Floor"]
            }
            Bench::MessageRate => &["Messages/s", "Max", "P99", "Floor", "x Floor", "MB/s"],
            Bench::MultiPair => &[
                "Latency (us)",
                "Min",
                "P99",
                "Floor",
                "x Floor",
                "Messages/s",
            ],
            Bench::Pack => &[
                "Pack (GB/s)",
                "Max",
                "P99",
                "memcpy",
                "x memcpy",
                "By hand",
                "x by hand",
            ],
            Bench::Threads => &["Messages/s", "Max", "Worst", "1 thread", "x 1 thread"],
            Bench::Launch => &["Launch (ms)", "Min", "P99", "Floor", "x Floor"],
            // Their tables are their own.
            _ => &[],
        };
        let first = match self.bench {
            Bench::Launch => "# Ranks",
            Bench::Threads => "# Threads",
            _ => "# Size",
        };
        let mut line = format!("{first:<12}");
        for (at, head) in heads.iter().enumerate() {
            line += &cell(head, at);
        }
        println!("{line}");
    }

    /// Shows what is being measured.
    pub fn announce(&mut self, bytes: usize) {
        let done = self.curves.iter().map(|c| c.points.len()).sum();
        let what = format!("{} {} {bytes} B", self.layout, self.memory);
        self.bar.show(done, &what);
    }

    /// Takes a row.
    pub fn row(&mut self, row: &Row) -> Result<()> {
        let floor = row.floor.filter(|f| f.is_finite());
        self.records.push(Record {
            memory: self.memory.clone(),
            transport: self.transport.clone(),
            threads: row.threads as u32,
            ranks: self.ranks,
            unit: row.unit.into(),
            value: row.value,
            spread: row.spread,
            floor,
            library: self.library.into(),
            ..Record::new(self.bench.name(), &self.layout, row.bytes)
        })?;
        if let Some(begun) = self.begun.take() {
            println!("{begun}{}", cell(&number(row.value), 5));
            return Ok(());
        }
        if let Some(curve) = self.curves.last_mut() {
            curve.points.push(plot::Point {
                bytes: row.bytes,
                value: row.value,
                floor,
            });
        }
        let first = match self.bench {
            Bench::Launch => self.ranks,
            Bench::Threads => row.threads,
            _ => row.bytes,
        };
        let ratio = |other: Option<f64>| {
            other.map_or_else(|| "-".into(), |other| format!("{:.2}", row.value / other))
        };
        let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
        let mut cells = vec![
            number(row.value),
            number(row.best),
            number(row.p99),
            shown(floor),
            ratio(floor),
        ];
        if self.bench == Bench::Threads {
            cells.truncate(3);
            cells.extend([shown(row.by_hand), ratio(row.by_hand)]);
        }
        match self.bench {
            Bench::Pack => cells.extend([shown(row.by_hand), ratio(row.by_hand)]),
            Bench::MessageRate => cells.push(number(row.value * row.bytes as f64 * 1e-6)),
            _ => {}
        }
        let mut line = format!("{first:<12}");
        for (at, text) in cells.iter().enumerate() {
            line += &cell(text, at);
        }
        self.bar.clear();
        if self.bench == Bench::MultiPair {
            self.begun = Some(line);
        } else {
            println!("{line}");
        }
        Ok(())
    }

    /// Writes the files.
    pub fn finish(mut self) -> Result<()> {
        self.bar.clear();
        self.records.finish()?;
        if let Some(file) = &self.plot {
            let unit = self.records.all().first().map_or("", |r| &r.unit);
            let title = format!("osier bench {}, {} ranks", self.bench.name(), self.ranks);
            write(file, &plot::svg(&title, unit, &self.curves))?;
            println!("\n# plot: {}", file.display());
        }
        Ok(())
    }
}

/// Writes a file.
pub fn write(file: &std::path::Path, text: &str) -> Result<()> {
    std::fs::write(file, text)
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", file.display())))
}

/// The first column is wide, so that its heading fits.
fn cell(text: &str, column: usize) -> String {
    let width = if column == 0 { 18 } else { WIDTH };
    format!("{text:>width$}")
}

/// Three decimals below 100, fewer above.
pub fn number(value: f64) -> String {
    match value {
        v if !v.is_finite() => "-".into(),
        v if v.abs() < 100.0 => format!("{v:.3}"),
        v if v.abs() < 100_000.0 => format!("{v:.2}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_have_as_many_digits_as_they_deserve() {
        assert_eq!(number(0.0534), "0.053");
        assert_eq!(number(123.456), "123.46");
        assert_eq!(number(12_345_678.9), "12345679");
        assert_eq!(number(f64::NAN), "-");
    }
}
