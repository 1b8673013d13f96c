//! `osier bench pack --device`: pack and unpack in device memory, shape by shape,
//! beside what else one could do, and beside what memory allows.
//!
//! Every row's bytes are compared with those of the layout before they are timed.
//!
//! # Sources
//! W. Wu, G. Bosilca, R. vandeVaart, S. Jeaugey, J. Dongarra, GPU-Aware Non-contiguous
//! Data Movement In Open MPI, HPDC 2016: the matrices, and the copy as measure.

mod bed;
mod shapes;

use std::io::IsTerminal;

use osier::Layout;
use osier_datatype_corpus::shapes::Shape;

use self::bed::{Bed, Row};
use super::options::{Effort, sizes_or};
use super::plot;
use super::progress::Bar;
use super::report::{Record, number, write, write_records};
use super::{Args, Failure, Result};

/// Random types, unless `--trees` says otherwise: on a device, emulated.
const TREES: (u64, u64) = (32, 8);
const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 256 << 20];
/// Under emulation, kernels run a word at a time.
const EMULATED_SIZES: [usize; 1] = [64 << 10];
/// For the same reason, larger layouts of the corpus are left out there.
const EMULATED_SPAN: usize = 16 << 20;
/// Curves of the plot: shapes that every size has.
const DRAWN: [&str; 6] = ["contiguous", "V", "T", "stair", "transpose", "kv-pages"];

/// A shape, committed.
struct Case {
    shape: Shape,
    layout: Layout,
}

/// Measures and reports.
pub fn run(args: &Args) -> Result<()> {
    let effort = Effort {
        iterations: args.iterations,
        warmup: args.warmup,
        repetitions: args.repetitions.or(Some(5)),
    };
    let bed = Bed::new(effort)?;
    let cases = cases(args, &bed)?;
    let name = match bed.emulated {
        true => format!(
            "{} (emulated: no figure here is one of a GPU)",
            bed.info.name
        ),
        false => bed.info.name.clone(),
    };
    let empty = bed.empty_launch()?;
    println!("# osier pack on a device: {name}");
    println!(
        "# GB/s are payload; a launch of an empty kernel takes {} us; x: times as fast as; ~: by a sample",
        number(empty * 1e6)
    );
    if !args.blocks.is_empty() {
        return grids(args, &bed, &cases);
    }
    println!("{}", heading());
    let mut report = Report {
        bar: Bar::new(
            cases.len(),
            args.progress || std::io::stderr().is_terminal(),
        ),
        device: bed.info.name.clone(),
        records: Vec::new(),
        curves: Vec::new(),
        trees: Vec::new(),
    };
    report.record("empty-launch", "none", 0, "us", empty * 1e6, None);
    for (done, case) in cases.iter().enumerate() {
        report.bar.show(done, &case.shape.name);
        let row = bed.row(&case.shape, &case.layout)?;
        report.bar.clear();
        println!("{}", line(&case.shape, &row));
        report.row(&case.shape, &row);
    }
    println!("# kernels: {}", bed.images());
    report.finish(args)
}

/// `--blocks`: packing by number of thread blocks. A pack in a message needs no more of
/// them than make it as quick as the link.
fn grids(args: &Args, bed: &Bed, cases: &[Case]) -> Result<()> {
    let device = bed.info.name.clone();
    let mut line = format!("{:<30}{:>11}", "# GB/s by thread blocks", "Bytes");
    for blocks in &args.blocks {
        line += &format!("{blocks:>9}");
    }
    println!("{line}{:>9}", "full");
    let mut records = Vec::new();
    let mut curves = Vec::new();
    let mut bar = Bar::new(
        cases.len(),
        args.progress || std::io::stderr().is_terminal(),
    );
    for (done, Case { shape, layout }) in cases.iter().enumerate() {
        bar.show(done, &shape.name);
        let wanted = args.blocks.iter().map(|blocks| Some(*blocks));
        let wanted: Vec<_> = wanted.chain([None]).collect();
        let (bytes, seconds) = bed.grids(shape, layout, &wanted)?;
        bar.clear();
        let mut line = format!("{:<30} {bytes:>10}", shape.name);
        let mut points = Vec::new();
        for (blocks, seconds) in wanted.iter().zip(seconds) {
            let value = rate(bytes, seconds);
            line += &format!(" {:>8}", number(value));
            let measure = match blocks {
                Some(blocks) => format!("pack-device-{blocks}-blocks"),
                None => "pack-device-full".into(),
            };
            records.push(record(
                &device,
                measure,
                &shape.name,
                bytes,
                "GB/s",
                value,
                None,
            ));
            if let Some(blocks) = blocks {
                points.push(plot::Point {
                    bytes: *blocks as usize,
                    value,
                    floor: None,
                });
            }
        }
        println!("{line}");
        curves.push(plot::Curve {
            label: format!("{}, {bytes} B", shape.name),
            points,
        });
    }
    if let Some(file) = &args.json {
        write_records(file, &records)?;
    }
    if let Some(file) = &args.plot {
        let title = format!("pack by thread blocks, {device}");
        write(file, &plot::svg(&title, "GB/s", &curves))?;
        println!("\n# plot: {}", file.display());
    }
    Ok(())
}

fn record(
    device: &str,
    bench: String,
    layout: &str,
    bytes: usize,
    unit: &'static str,
    value: f64,
    floor: Option<f64>,
) -> Record {
    Record {
        bench,
        layout: layout.into(),
        memory: "device".into(),
        transport: device.into(),
        threads: 1,
        ranks: 1,
        bytes,
        unit,
        value,
        floor,
    }
}

/// What is measured: all sizes of what has none of its own, then the others.
fn cases(args: &Args, bed: &Bed) -> Result<Vec<Case>> {
    let defaults: &[usize] = if bed.emulated {
        &EMULATED_SIZES
    } else {
        &SIZES
    };
    let limit = args.max_span.unwrap_or(match bed.emulated {
        true => EMULATED_SPAN,
        false => bed.info.memory_bytes / 2,
    });
    let trees = args
        .trees
        .unwrap_or(if bed.emulated { TREES.1 } else { TREES.0 });
    let mut all = Vec::new();
    for bytes in sizes_or(args, defaults)? {
        all.extend(
            shapes::sized(bytes.max(4096), trees).map_err(|e| Failure::failed(e.to_string()))?,
        );
    }
    let blocks = if bed.emulated { 100_000 } else { usize::MAX };
    all.extend(shapes::unsized_(blocks).map_err(Failure::failed)?);
    let wanted = |shape: &Shape| {
        args.shapes.is_empty()
            || args.shapes.iter().any(|word| {
                shape.name == *word || shape.family == *word || {
                    // Names of one letter are no parts of names.
                    word.len() > 1 && shape.name.contains(word.as_str())
                }
            })
    };
    let (mut kept, mut left_out) = (Vec::new(), 0);
    for shape in all.into_iter().filter(wanted) {
        let layout = shape
            .datatype
            .commit()
            .map_err(|e| Failure::failed(format!("{}: {e}", shape.name)))?;
        if layout
            .packed_bytes(shape.count)
            .is_none_or(|bytes| bytes == 0)
        {
            continue;
        }
        match Bed::room(&shape, &layout) <= limit {
            true => kept.push(Case { shape, layout }),
            false => left_out += 1,
        }
    }
    if left_out > 0 {
        eprintln!(
            "osier: bench: left out, as they take more than {limit} bytes of the device: {left_out} \
             shapes (hint: --max-span, --sizes)"
        );
    }
    if kept.is_empty() {
        return Err(Failure::usage(format!(
            "no shape of {} is left (hint: names such as V, parts of names such as block-8, or a \
             family: matrix, width, structure, cache, random, indexed, corpus)",
            args.shapes.join(", ")
        )));
    }
    Ok(kept)
}

const COLUMNS: [(&str, usize); 13] = [
    ("Bytes", 11),
    ("Runs", 10),
    ("List B", 10),
    ("First us", 11),
    ("Pack GB/s", 11),
    ("Unpack GB/s", 12),
    ("Copy GB/s", 11),
    ("x copy", 8),
    ("x sectors", 10),
    ("x gather", 9),
    ("x 2-D", 8),
    ("x each", 10),
    ("x scan", 11),
];

fn heading() -> String {
    let mut line = format!("{:<30}", "# Shape");
    for (head, width) in COLUMNS {
        line += &format!("{head:>width$}");
    }
    line
}

/// 10^-9 bytes per second.
fn rate(bytes: usize, seconds: f64) -> f64 {
    1e-9 * bytes as f64 / seconds
}

fn line(shape: &Shape, row: &Row) -> String {
    let times = |seconds: f64| number(seconds / row.pack);
    let sampled = |(seconds, sampled): (f64, bool)| {
        format!("{}{}", if sampled { "~" } else { "" }, times(seconds))
    };
    let shown = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells = [
        row.bytes.to_string(),
        row.runs.to_string(),
        row.list_bytes.to_string(),
        number(row.first * 1e6),
        number(rate(row.bytes, row.pack)),
        shown(row.unpack.map(|seconds| number(rate(row.bytes, seconds)))),
        number(rate(row.bytes, row.copy)),
        times(row.copy),
        times(row.sectors),
        times(row.gather),
        shown(row.memcpy_2d.map(times)),
        sampled(row.each),
        shown(row.scan.map(sampled)),
    ];
    let mut line = format!("{:<30}", shape.name);
    for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
        // A blank stays even beside what is too wide.
        line += &format!(" {cell:>width$}", width = width - 1);
    }
    line
}

struct Report {
    bar: Bar,
    device: String,
    records: Vec<Record>,
    curves: Vec<plot::Curve>,
    /// Of each random type: the sectors' time over ours.
    trees: Vec<f64>,
}

impl Report {
    fn record(
        &mut self,
        measure: &str,
        layout: &str,
        bytes: usize,
        unit: &'static str,
        value: f64,
        floor: Option<f64>,
    ) {
        let bench = format!("pack-device-{measure}");
        let record = record(&self.device, bench, layout, bytes, unit, value, floor);
        self.records.push(record);
    }

    fn row(&mut self, shape: &Shape, row: &Row) {
        let name = &shape.name;
        let roof = rate(row.bytes, row.sectors);
        let rates = [
            ("pack", Some(row.pack)),
            ("unpack", row.unpack),
            ("copy", Some(row.copy)),
            ("gather", Some(row.gather)),
            ("memcpy2d", row.memcpy_2d),
            ("copy-each", Some(row.each.0)),
            ("linear-scan", row.scan.map(|scan| scan.0)),
        ];
        for (measure, seconds) in rates {
            if let Some(seconds) = seconds {
                self.record(
                    measure,
                    name,
                    row.bytes,
                    "GB/s",
                    rate(row.bytes, seconds),
                    Some(roof),
                );
            }
        }
        self.record("first", name, row.bytes, "us", row.first * 1e6, None);
        if row.list_bytes > 0 {
            self.record("list", name, row.bytes, "B", row.list_bytes as f64, None);
        }
        self.record("runs", name, row.bytes, "", row.runs as f64, None);
        if shape.family == "random" {
            self.trees.push(row.sectors / row.pack);
        }
        if DRAWN.contains(&name.as_str()) {
            let at = self.curves.iter().position(|curve| curve.label == *name);
            let at = at.unwrap_or_else(|| {
                self.curves.push(plot::Curve {
                    label: name.clone(),
                    points: Vec::new(),
                });
                self.curves.len() - 1
            });
            self.curves[at].points.push(plot::Point {
                bytes: row.bytes,
                value: rate(row.bytes, row.pack),
                floor: (name == "contiguous").then(|| rate(row.bytes, row.copy)),
            });
        }
    }

    fn finish(mut self, args: &Args) -> Result<()> {
        if !self.trees.is_empty() {
            self.trees.sort_by(f64::total_cmp);
            let at = |share: f64| self.trees[((self.trees.len() - 1) as f64 * share) as usize];
            println!(
                "# {} random types: x sectors {} at the median, {} at the 5th percentile",
                self.trees.len(),
                number(at(0.5)),
                number(at(0.05))
            );
        }
        if let Some(file) = &args.json {
            write_records(file, &self.records)?;
        }
        if let Some(file) = &args.plot {
            let title = format!("osier bench pack --device, {}", self.device);
            write(file, &plot::svg(&title, "GB/s", &self.curves))?;
            println!("\n# plot: {}", file.display());
        }
        Ok(())
    }
}
