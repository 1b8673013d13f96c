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
use super::report::{Record, Records, number, write};
use super::timing::{self, Seconds};
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
    /// The payload that was asked for; the shape's may be a few bytes less. 0 of shapes
    /// with a payload of their own.
    asked: usize,
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
        number(empty.median * 1e6)
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
        records: Records::new(args.json.as_ref()),
        curves: Vec::new(),
        trees: Vec::new(),
    };
    report.time("empty-launch", "none", 0, empty)?;
    for (done, case) in cases.iter().enumerate() {
        report.bar.show(done, &case.shape.name);
        let row = bed.row(&case.shape, &case.layout)?;
        report.bar.clear();
        println!("{}", line(&case.shape, &row));
        report.row(case, &row)?;
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
    let mut records = Records::new(args.json.as_ref());
    let mut curves = Vec::new();
    let mut bar = Bar::new(
        cases.len(),
        args.progress || std::io::stderr().is_terminal(),
    );
    for (done, Case { shape, layout, .. }) in cases.iter().enumerate() {
        bar.show(done, &shape.name);
        let wanted = args.blocks.iter().map(|blocks| Some(*blocks));
        let wanted: Vec<_> = wanted.chain([None]).collect();
        let (bytes, seconds) = bed.grids(shape, layout, &wanted)?;
        bar.clear();
        let mut line = format!("{:<30} {bytes:>10}", shape.name);
        let mut points = Vec::new();
        for (blocks, seconds) in wanted.iter().zip(seconds) {
            let value = rate(bytes, seconds.median);
            line += &format!(" {:>8}", number(value));
            let measure = match blocks {
                Some(blocks) => format!("pack-device-{blocks}-blocks"),
                None => "pack-device-full".into(),
            };
            records.push(Record {
                unit: "GB/s".into(),
                value,
                spread: Some(seconds.spread_of(|s| rate(bytes, s))),
                ..record(&device, measure, &shape.name, bytes)
            })?;
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
    if let Some(file) = &args.plot {
        let title = format!("pack by thread blocks, {device}");
        write(file, &plot::svg(&title, "GB/s", &curves))?;
        println!("\n# plot: {}", file.display());
    }
    Ok(())
}

fn record(device: &str, bench: String, layout: &str, bytes: usize) -> Record {
    Record {
        memory: "device".into(),
        transport: device.into(),
        ..Record::new(bench, layout, bytes)
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
        let bytes = bytes.max(4096);
        let shapes = shapes::sized(bytes, trees).map_err(|e| Failure::failed(e.to_string()))?;
        all.extend(shapes.into_iter().map(|shape| (bytes, shape)));
    }
    let blocks = if bed.emulated { 100_000 } else { usize::MAX };
    let others = shapes::unsized_(blocks).map_err(Failure::failed)?;
    all.extend(others.into_iter().map(|shape| (0, shape)));
    let wanted = |(_, shape): &(usize, Shape)| {
        args.shapes.is_empty()
            || args.shapes.iter().any(|word| {
                shape.name == *word || shape.family == *word || {
                    // Names of one letter are no parts of names.
                    word.len() > 1 && shape.name.contains(word.as_str())
                }
            })
    };
    let (mut kept, mut left_out) = (Vec::new(), 0);
    for (asked, shape) in all.into_iter().filter(wanted) {
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
            true => kept.push(Case {
                shape,
                layout,
                asked,
            }),
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

const COLUMNS: [(&str, usize); 14] = [
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
    ("x warp", 9),
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
    let times = |seconds: f64| number(seconds / row.pack.median);
    let sampled = |(seconds, sampled): (Seconds, bool)| {
        format!(
            "{}{}",
            if sampled { "~" } else { "" },
            times(seconds.median)
        )
    };
    let shown = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells = [
        row.bytes.to_string(),
        row.runs.to_string(),
        row.list_bytes.to_string(),
        number(row.first * 1e6),
        number(rate(row.bytes, row.pack.median)),
        shown(row.unpack.map(|s| number(rate(row.bytes, s.median)))),
        number(rate(row.bytes, row.copy.median)),
        times(row.copy.median),
        times(row.sectors),
        times(row.gather.median),
        shown(row.memcpy_2d.map(|s| times(s.median))),
        shown(row.units.map(|s| times(s.median))),
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
    records: Records,
    curves: Vec<plot::Curve>,
    /// Of each random type: bytes that were asked for, and the sectors' time over ours.
    trees: Vec<(usize, f64)>,
}

impl Report {
    /// A time in microseconds.
    fn time(&mut self, measure: &str, layout: &str, bytes: usize, took: Seconds) -> Result<()> {
        self.records.push(Record {
            unit: "us".into(),
            value: took.median * 1e6,
            spread: Some(took.spread_of(|s| s * 1e6)),
            ..self.record(measure, layout, bytes)
        })
    }

    fn record(&self, measure: &str, layout: &str, bytes: usize) -> Record {
        record(
            &self.device,
            format!("pack-device-{measure}"),
            layout,
            bytes,
        )
    }

    fn row(&mut self, case: &Case, row: &Row) -> Result<()> {
        let shape = &case.shape;
        let (name, bytes) = (&shape.name, row.bytes);
        let rates = [
            ("pack", Some(row.pack)),
            ("unpack", row.unpack),
            ("copy", Some(row.copy)),
            ("gather", Some(row.gather)),
            ("memcpy2d", row.memcpy_2d),
            ("warp-per-unit", row.units),
            ("copy-each", Some(row.each.0)),
            ("linear-scan", row.scan.map(|scan| scan.0)),
        ];
        let measured = rates.into_iter().filter_map(|(measure, took)| {
            let took = took?;
            Some(Record {
                unit: "GB/s".into(),
                value: rate(bytes, took.median),
                spread: Some(took.spread_of(|s| rate(bytes, s))),
                floor: Some(rate(bytes, row.sectors)),
                ..self.record(measure, name, bytes)
            })
        });
        let facts = [
            ("first", "us", row.first * 1e6),
            ("list", "B", row.list_bytes as f64),
            ("runs", "", row.runs as f64),
        ];
        // Strides have no list.
        let facts = facts.into_iter().filter(|(_, _, value)| *value > 0.0);
        let facts = facts.map(|(measure, unit, value)| Record {
            unit: unit.into(),
            value,
            ..self.record(measure, name, bytes)
        });
        let all: Vec<Record> = measured.chain(facts).collect();
        self.records.extend(all)?;
        if shape.family == "random" {
            self.trees.push((case.asked, row.sectors / row.pack.median));
            self.shares(case.asked)?;
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
                value: rate(row.bytes, row.pack.median),
                floor: (name == "contiguous").then(|| rate(row.bytes, row.copy.median)),
            });
        }
        Ok(())
    }

    /// What random types of a size have reached so far: who is stopped has that.
    fn shares(&mut self, bytes: usize) -> Result<()> {
        let sizes = by_size(&self.trees);
        let Some((_, shares)) = sizes.into_iter().find(|(size, _)| *size == bytes) else {
            return Ok(());
        };
        let spread = [shares[0], shares[shares.len() - 1]];
        for (measure, value) in [
            ("random-median", timing::median(&mut shares.clone())),
            ("random-p5", fifth(&shares)),
        ] {
            let record = Record {
                unit: "x".into(),
                value,
                spread: Some(spread),
                floor: Some(1.0),
                ..self.record(measure, "random", bytes)
            };
            self.records.put(record)?;
        }
        Ok(())
    }

    fn finish(self, args: &Args) -> Result<()> {
        for (bytes, shares) in by_size(&self.trees) {
            println!(
                "# {} random types of {bytes} B: x sectors {} at the median, {} at the 5th percentile",
                shares.len(),
                number(timing::median(&mut shares.clone())),
                number(fifth(&shares))
            );
        }
        if let Some(file) = &args.plot {
            let title = format!("osier bench pack --device, {}", self.device);
            write(file, &plot::svg(&title, "GB/s", &self.curves))?;
            println!("\n# plot: {}", file.display());
        }
        Ok(())
    }
}

/// The 5th percentile of ascending values.
fn fifth(shares: &[f64]) -> f64 {
    shares[((shares.len() - 1) as f64 * 0.05) as usize]
}

/// Shares of random types, ascending, those of one size together: large ones fill the
/// device, and small ones show what a launch takes.
fn by_size(trees: &[(usize, f64)]) -> Vec<(usize, Vec<f64>)> {
    let mut sizes: Vec<(usize, Vec<f64>)> = Vec::new();
    for (bytes, share) in trees {
        match sizes.iter_mut().find(|(size, _)| size == bytes) {
            Some((_, shares)) => shares.push(*share),
            None => sizes.push((*bytes, vec![*share])),
        }
    }
    for (_, shares) in &mut sizes {
        shares.sort_by(f64::total_cmp);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::{by_size, fifth};

    #[test]
    fn percentiles_are_of_one_size() {
        let trees = [(64, 0.1), (1024, 0.9), (64, 0.2), (1024, 0.8)];
        let sizes = by_size(&trees);
        assert_eq!(sizes, [(64, vec![0.1, 0.2]), (1024, vec![0.8, 0.9])]);
        assert_eq!(fifth(&sizes[1].1), 0.8);
    }
}
