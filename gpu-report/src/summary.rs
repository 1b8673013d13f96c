//! Figures of a run beside their bars, the best peer and what the machine allows.

use std::fmt::Write;

use crate::record::{OSIER, Record};
use crate::report::{Measured, Report};

/// Packs that have a row: the layout, and the share of the device's copy that is wanted.
const PACKS: [(&str, Option<f64>); 12] = [
    ("contiguous", None),
    ("V", Some(0.97)),
    ("stair", Some(0.97)),
    ("T", Some(0.95)),
    ("transpose", None),
    ("block-8-16", None),
    ("block-64-128", None),
    ("aos-4-of-32", None),
    ("soa-8-8-4", None),
    ("kv-pages", None),
    ("indexed-100000", None),
    ("indexed-1000000", None),
];
/// How many times as fast as a linear scan listed blocks are to be.
const SCANS: [(&str, f64); 2] = [("indexed-100000", 100.0), ("indexed-1000000", 1000.0)];
/// Random types: share of what the touched sectors allow.
const RANDOM: [(&str, &str, f64); 2] = [
    ("random-median", "random, median", 0.90),
    ("random-p5", "random, 5th perc.", 0.75),
];
/// Messages between two ranks: the layout, its name, and the wanted share of contiguous
/// ones of the same size.
const MESSAGES: [(&str, &str, Option<f64>); 4] = [
    ("contiguous", "contiguous", None),
    ("matrix", "V", Some(0.95)),
    ("triangle", "T", Some(0.90)),
    ("transpose", "transpose", None),
];
/// What ranks are, as steps end, and as rows end.
const KINDS: [(&str, &str); 2] = [("processes", "procs"), ("threads", "threads")];
/// Collectives of device buffers.
const COLLECTIVES: [&str; 3] = ["bcast", "reduce", "allreduce"];

/// What is wanted of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// The least ratio.
    pub wanted: f64,
    /// The ratio found.
    pub found: f64,
    /// Of what, in words.
    pub of: &'static str,
}

impl Bar {
    /// Whether it is met.
    pub fn is_met(&self) -> bool {
        self.found >= self.wanted
    }

    fn text(&self, judged: bool) -> String {
        let state = match (judged, self.is_met()) {
            (false, _) => "",
            (true, true) => " met",
            (true, false) => " MISS",
        };
        match self.wanted {
            wanted if wanted > 2.0 => format!(">={wanted:.0}x{state}"),
            wanted => format!(">={:.0}%{state}", 100.0 * wanted),
        }
    }
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is of.
    pub figure: String,
    /// Unit of all of its values.
    pub unit: String,
    /// What is wanted, if anything.
    pub bar: Option<Bar>,
    /// Osier's median.
    pub osier: f64,
    /// Half of what lies between the extremes of Osier's repetitions, as a share.
    pub spread: Option<f64>,
    /// What the machine allows.
    pub roofline: Option<f64>,
    /// The best of the others, and its value.
    pub peer: Option<(String, f64)>,
}

impl Row {
    /// How many times as good as the best peer.
    pub fn ahead(&self) -> Option<f64> {
        let (_, peer) = self.peer.as_ref()?;
        Some(match is_time(&self.unit) {
            true => peer / self.osier,
            false => self.osier / peer,
        })
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// In the order of the parts.
    pub rows: Vec<Row>,
    /// Whether these are figures of a GPU, which alone bars are for.
    pub judged: bool,
}

fn is_time(unit: &str) -> bool {
    unit == "us"
}

/// The table of a run, of what it has so far.
pub fn of(report: &Report) -> Table {
    let records: Vec<(&str, &Record)> = report
        .records
        .iter()
        .map(|found| (found.step.as_str(), &found.record))
        .collect();
    let mut rows = packs(&records);
    rows.extend(random(&records));
    rows.extend(messages(&records));
    rows.extend(collectives(&records));
    Table {
        rows,
        judged: report.measured == Measured::Gpu,
    }
}

/// The greatest number of bytes of what a rule selects.
fn largest(records: &[(&str, &Record)], wanted: impl Fn(&str, &Record) -> bool) -> Option<usize> {
    let of = records.iter().filter(|(step, r)| wanted(step, r));
    of.map(|(_, r)| r.bytes).max()
}

/// The better of two values.
fn better<'a>(
    unit: &str,
    one: (String, &'a Record),
    other: (String, &'a Record),
) -> (String, &'a Record) {
    let first = match is_time(unit) {
        true => one.1.value <= other.1.value,
        false => one.1.value >= other.1.value,
    };
    if first { one } else { other }
}

fn packs(records: &[(&str, &Record)]) -> Vec<Row> {
    const PACK: &str = "pack-device-pack";
    let mut rows = Vec::new();
    for (layout, share) in PACKS {
        let is_ours = |r: &Record| r.bench == PACK && r.library == OSIER && r.layout == layout;
        let Some(bytes) = largest(records, |_, r| is_ours(r)) else {
            continue;
        };
        let same = || {
            let of = records.iter().map(|(_, r)| *r);
            // Lists are drawn: a peer's have a few bytes more or less.
            of.filter(|r| r.layout == layout && r.bytes.abs_diff(bytes) <= bytes / 50)
        };
        let Some(ours) = same().find(|r| is_ours(r)) else {
            continue;
        };
        let of = |bench: &str| {
            let name = format!("pack-device-{bench}");
            same().find(|r| r.bench == name).map(|r| r.value)
        };
        // Baselines beside the pack, and other libraries.
        let peers = same().filter_map(|r| match r.bench.as_str() {
            PACK if r.library != OSIER => Some((r.library.clone(), r)),
            "pack-device-memcpy2d" => Some(("2-D copy".into(), r)),
            "pack-device-warp-per-unit" => Some(("warp/unit".into(), r)),
            _ => None,
        });
        let peer = peers.reduce(|a, b| better("GB/s", a, b));
        let copy = of("copy");
        let bar = match (share, copy) {
            (Some(wanted), Some(copy)) => Some(Bar {
                wanted,
                found: ours.value / copy,
                of: "the device's copy",
            }),
            _ => None,
        };
        rows.push(Row {
            figure: format!("pack {layout} {}", size(bytes)),
            unit: "GB/s".into(),
            bar,
            osier: ours.value,
            spread: ours.relative_spread(),
            roofline: ours.floor,
            peer: peer.map(|(name, r)| (name, r.value)),
        });
        let scan = SCANS.iter().find(|(name, _)| *name == layout);
        if let (Some((_, wanted)), Some(scan)) = (scan, of("linear-scan")) {
            rows.push(Row {
                figure: format!("{layout} to a scan"),
                unit: "x".into(),
                bar: Some(Bar {
                    wanted: *wanted,
                    found: ours.value / scan,
                    of: "a linear scan",
                }),
                osier: ours.value / scan,
                spread: None,
                roofline: ours.floor.map(|roof| roof / scan),
                peer: None,
            });
        }
    }
    rows
}

fn random(records: &[(&str, &Record)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (measure, name, wanted) in RANDOM {
        let bench = format!("pack-device-{measure}");
        let found = records.iter().map(|(_, r)| *r).filter(|r| r.bench == bench);
        if let Some(r) = found.max_by_key(|r| r.bytes) {
            rows.push(Row {
                figure: format!("{name} {}", size(r.bytes)),
                unit: "x".into(),
                bar: Some(Bar {
                    wanted,
                    found: r.value,
                    of: "what the sectors allow",
                }),
                osier: r.value,
                spread: None,
                roofline: r.floor,
                peer: None,
            });
        }
    }
    rows
}

/// Whether a step is one of ranks of this kind, or of a peer, whose ranks are what they are.
fn is_beside(step: &str, kind: &str) -> bool {
    step.ends_with(kind) || KINDS.iter().all(|(other, _)| !step.ends_with(other))
}

/// GB/s of a message whose value is in microseconds.
fn rate(record: &Record) -> f64 {
    record.bytes as f64 / record.value / 1e3
}

fn messages(records: &[(&str, &Record)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, ranks) in KINDS {
        let step = format!("latency: {kind}");
        let ours = |layout: &str, r: &Record| {
            r.bench == "latency" && r.library == OSIER && r.layout == layout && r.memory == "device"
        };
        let theirs = |layout: &str, bytes: usize| {
            let of = records.iter().filter(|(step, _)| is_beside(step, kind));
            let of = of.map(|(_, r)| *r).filter(move |r| {
                let same = r.layout == layout && r.bytes.abs_diff(bytes) <= bytes / 50;
                r.bench == "latency" && r.library != OSIER && r.memory == "device" && same
            });
            of.map(|r| (r.library.clone(), r))
                .reduce(|a, b| better("us", a, b))
        };
        let find = |layout: &str, bytes: usize| {
            let of = records.iter().filter(|(name, _)| *name == step);
            of.map(|(_, r)| *r)
                .find(|r| ours(layout, r) && r.bytes.abs_diff(bytes) <= bytes / 50)
        };
        if let Some(small) = find("contiguous", 8) {
            let peer = theirs("contiguous", 8);
            rows.push(Row {
                figure: format!("8 B {ranks}"),
                unit: "us".into(),
                bar: None,
                osier: small.value,
                spread: small.relative_spread(),
                roofline: small.floor,
                peer: peer.map(|(name, r)| (name, r.value)),
            });
        }
        let Some(bytes) = largest(records, |name, r| name == step && ours("contiguous", r)) else {
            continue;
        };
        let Some(contiguous) = find("contiguous", bytes) else {
            continue;
        };
        for (layout, name, share) in MESSAGES {
            let Some(found) = find(layout, bytes).filter(|r| r.bytes > 8) else {
                continue;
            };
            rows.push(Row {
                figure: format!("{name} {} {ranks}", size(bytes)),
                unit: "GB/s".into(),
                bar: share.map(|wanted| Bar {
                    wanted,
                    found: rate(found) / rate(contiguous),
                    of: "contiguous messages",
                }),
                osier: rate(found),
                spread: found.relative_spread(),
                roofline: found.floor.map(|us| found.bytes as f64 / us / 1e3),
                peer: theirs(layout, bytes).map(|(name, r)| (name, rate(r))),
            });
        }
    }
    rows
}

fn collectives(records: &[(&str, &Record)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for bench in COLLECTIVES {
        for (kind, ranks) in KINDS {
            let step = format!("{bench}: {kind}");
            let of = || records.iter().filter(|(_, r)| r.bench == bench);
            let ours = of().filter(|(name, r)| *name == step && r.library == OSIER);
            for (_, r) in ours {
                let peers = of().filter(|(step, p)| {
                    p.library != OSIER && p.bytes == r.bytes && is_beside(step, kind)
                });
                let peer = peers
                    .map(|(_, p)| (p.library.clone(), *p))
                    .reduce(|a, b| better("us", a, b));
                rows.push(Row {
                    figure: format!("{bench} {} {ranks}", size(r.bytes)),
                    unit: "us".into(),
                    bar: None,
                    osier: r.value,
                    spread: r.relative_spread(),
                    roofline: r.floor,
                    peer: peer.map(|(name, p)| (name, p.value)),
                });
            }
        }
    }
    rows
}

/// `8 B`, `64 KiB`, `256 MiB`.
fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{:.0} MiB", b as f64 / f64::from(1 << 20)),
        b if b >= 1 << 10 => format!("{:.0} KiB", b as f64 / 1024.0),
        b => format!("{b} B"),
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".into(),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

impl Table {
    /// Whether there is a row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn cells(&self, row: &Row) -> [String; 7] {
        let spread = row.spread.map(|share| format!("{:.0}%", 100.0 * share));
        let dash = || "-".to_owned();
        [
            row.figure.clone(),
            row.unit.clone(),
            row.bar.map_or_else(dash, |bar| bar.text(self.judged)),
            number(row.osier),
            spread.unwrap_or_else(dash),
            row.roofline.map_or_else(dash, number),
            match &row.peer {
                Some((name, value)) => format!("{} {name}", number(*value)),
                None => dash(),
            },
        ]
    }

    /// The table within 80 columns; nothing where there is no figure.
    pub fn text(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let heads = [
            "figure",
            "unit",
            "bar",
            "Osier",
            "+-",
            "roofline",
            "best peer",
        ];
        let mut text = String::new();
        let mut line = |cells: [&str; 7]| {
            let [figure, unit, bar, osier, spread, roof, peer] = cells;
            let line =
                format!("{figure:<26}{unit:<5}{bar:<12}{osier:>7}{spread:>5}{roof:>9}  {peer}");
            let _ = writeln!(
                text,
                "{}",
                line.chars().take(80).collect::<String>().trim_end()
            );
        };
        line(heads);
        for row in &self.rows {
            let cells = self.cells(row);
            line(cells.each_ref().map(String::as_str));
        }
        text
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| figure | unit | bar | Osier | +- | roofline | best peer |\n|---|---|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", self.cells(row).join(" | "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Measurement, Mode};

    fn report(records: Vec<(&str, Record)>) -> Report {
        let mut report = Report::new("c", "d", Mode::Quick);
        report.measured = Measured::Gpu;
        report.records = records
            .into_iter()
            .map(|(step, record)| Measurement {
                step: step.into(),
                record,
            })
            .collect();
        report
    }

    fn pack(bench: &str, layout: &str, library: &str, value: f64) -> (&'static str, Record) {
        let record = Record {
            unit: "GB/s".into(),
            value,
            spread: Some([value - 10.0, value + 10.0]),
            floor: Some(2100.0),
            library: library.into(),
            ..Record::new(format!("pack-device-{bench}"), layout, 256 << 20)
        };
        ("pack", record)
    }

    fn message(layout: &str, bytes: usize, library: &str, us: f64) -> (&'static str, Record) {
        let record = Record {
            memory: "device".into(),
            unit: "us".into(),
            value: us,
            library: library.into(),
            ..Record::new("latency", layout, bytes)
        };
        ("latency: processes", record)
    }

    #[test]
    fn a_pack_stands_beside_its_bar_and_the_best_peer() {
        let table = of(&report(vec![
            pack("pack", "V", OSIER, 2000.0),
            pack("copy", "V", OSIER, 2050.0),
            pack("pack", "V", "torch", 1700.0),
            pack("pack", "V", "cupy", 1500.0),
            pack("memcpy2d", "V", OSIER, 1600.0),
            pack("pack", "T", OSIER, 1000.0),
            pack("copy", "T", OSIER, 2000.0),
        ]));
        let [v, t] = &table.rows[..] else {
            panic!("{table:?}");
        };
        assert_eq!(v.figure, "pack V 256 MiB");
        assert!(v.bar.unwrap().is_met() && !t.bar.unwrap().is_met());
        assert_eq!(v.peer, Some(("torch".into(), 1700.0)));
        assert_eq!(v.ahead(), Some(2000.0 / 1700.0));
        assert_eq!((v.spread, t.peer.is_none()), (Some(0.005), true));
        let text = table.text();
        assert!(
            text.contains(">=97% met") && text.contains(">=95% MISS"),
            "{text}"
        );
    }

    #[test]
    fn listed_blocks_stand_beside_the_scan() {
        let table = of(&report(vec![
            pack("pack", "indexed-1000000", OSIER, 1000.0),
            pack("linear-scan", "indexed-1000000", OSIER, 0.5),
        ]));
        assert_eq!(table.rows[1].osier, 2000.0);
        assert!(table.rows[1].bar.unwrap().is_met());
    }

    #[test]
    fn messages_stand_beside_contiguous_ones_and_models_are_peers() {
        let mib = 64 << 20;
        let table = of(&report(vec![
            message("contiguous", 8, OSIER, 6.0),
            message("contiguous", mib, OSIER, 40.0),
            // A matrix has a few bytes less.
            message("matrix", mib - 4096, OSIER, 50.0),
            message("contiguous", 8, "ucx", 9.0),
            message("contiguous", mib, "ucx", 45.0),
        ]));
        let figures: Vec<&str> = table.rows.iter().map(|row| row.figure.as_str()).collect();
        assert_eq!(
            figures,
            ["8 B procs", "contiguous 64 MiB procs", "V 64 MiB procs"]
        );
        assert_eq!(table.rows[0].ahead(), Some(1.5));
        assert!(!table.rows[2].bar.unwrap().is_met());
        assert!((table.rows[1].ahead().unwrap() - 45.0 / 40.0).abs() < 1e-12);
    }

    #[test]
    fn lines_fit_a_terminal_and_judge_gpus_alone() {
        let mut emulated = report(vec![
            pack("pack", "V", OSIER, 1.0),
            pack("copy", "V", OSIER, 2.0),
        ]);
        emulated.measured = Measured::Emulated;
        let text = of(&emulated).text();
        assert!(text.contains(">=97%") && !text.contains("MISS"), "{text}");
        let long = message("contiguous", 64 << 20, OSIER, 123_456.0);
        let peer = message("contiguous", 64 << 20, "a very long name of a library", 1.0);
        let text = of(&report(vec![long, peer])).text();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(of(&report(Vec::new())).text().is_empty());
    }
}
