//! `osier model scale`: what the chosen plans take on a described machine of many ranks.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use osier_collectives::{Association, Call, Link, Machine, Model, Operation, Sizes, choose};

use crate::bench::progress::Bar;
use crate::info::protocols::{size, time};
use crate::info::table::Table;

const FAILED: u8 = 1;
/// Ranks of the described machine's nodes: two packages of so many.
const PACKAGE: u32 = 16;

/// Predict the chosen plans on up to 65,536 ranks of a described machine: nodes of 2
/// packages of 16 ranks, 25 GB/s out of each node
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Largest number of ranks; smaller ones are divided by 4
    #[arg(long, value_name = "N", default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(2..=65_536))]
    ranks: u32,

    /// Draw time over ranks, a curve per operation and size
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

struct Point {
    ranks: u32,
    ns: f64,
    plan: String,
    left_out: usize,
    seconds: f64,
}

/// Described, not measured: caches, sockets, a network.
fn machine(ranks: u32) -> Machine {
    let level = |latency_ns, overhead_ns, per_byte_ns, shared_per_byte_ns| Link {
        latency_ns,
        overhead_ns,
        gap_ns: 40.0,
        per_byte_ns,
        shared_per_byte_ns,
        ..Link::default()
    };
    let links = vec![
        level(80.0, 40.0, 0.08, 0.0),
        level(200.0, 40.0, 0.1, 0.02),
        level(1500.0, 200.0, 0.08, 0.04),
    ];
    let shape = [ranks.div_ceil(2 * PACKAGE).max(1), 2, PACKAGE];
    let mut machine = Machine::regular(&shape, links, |r| r);
    machine.combine = 0.1.into();
    machine.copy = 0.05.into();
    machine.eager_bytes = 8192.0;
    machine
}

/// Prints the table, draws, and returns the exit code.
pub fn main(args: &Args) -> ExitCode {
    match predict(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("osier: model: {e}");
            ExitCode::from(FAILED)
        }
    }
}

/// What is predicted: an operation and its bytes.
const CURVES: [(Operation, u64); 5] = [
    (Operation::Barrier, 0),
    (Operation::Bcast, 8),
    (Operation::Bcast, 1 << 20),
    (Operation::Allreduce, 8),
    (Operation::Allreduce, 1 << 20),
];

fn predict(args: &Args) -> Result<(), String> {
    let ranks: Vec<u32> = std::iter::successors(Some(args.ranks), |r| Some(r / 4))
        .take_while(|r| *r >= 2)
        .collect();
    // The longest first, so that no thread is left alone with one at the end.
    let tasks: Vec<(usize, u32)> = ranks
        .iter()
        .flat_map(|ranks| (0..CURVES.len()).map(|curve| (curve, *ranks)))
        .collect();
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    // Counted in ranks, of which plans have to be played.
    let all = ranks.iter().sum::<u32>() as usize * CURVES.len();
    let bar = Mutex::new((0, Bar::new(all, std::io::stderr().is_terminal())));
    let done = |more: u32, what: &str| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.0 += more as usize;
        let done = bar.0;
        bar.1.show(done, what);
    };
    done(0, "ranks");
    let work = || -> Result<Vec<(usize, Point)>, String> {
        let mut found = Vec::new();
        while let Some((curve, ranks)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.push((*curve, point(CURVES[*curve], *ranks)?));
            done(*ranks, "ranks");
        }
        Ok(found)
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let found: Vec<(usize, Point)> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(
                worker
                    .join()
                    .map_err(|_| "a thread panicked".to_owned())??,
            );
        }
        Ok::<_, String>(all)
    })?;
    bar.lock().unwrap_or_else(PoisonError::into_inner).1.clear();
    let mut curves: Vec<(String, Vec<Point>)> = CURVES
        .iter()
        .map(|(operation, bytes)| match bytes {
            0 => (operation.name().to_owned(), Vec::new()),
            n => (
                format!("{}, {} bytes", operation.name(), size(*n as usize)),
                Vec::new(),
            ),
        })
        .collect();
    for (curve, point) in found {
        curves[curve].1.push(point);
    }
    for (name, points) in &mut curves {
        points.sort_by_key(|p| p.ranks);
        print(name, points);
    }
    println!(
        "# took {:.0} s on {threads} threads{}",
        begin.elapsed().as_secs_f64(),
        most_memory().map_or_else(String::new, |most| format!(
            ", at most {} of memory",
            size(most)
        ))
    );
    if let Some(file) = &args.plot {
        std::fs::write(file, svg(&curves))
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        println!("# plot: {}", file.display());
    }
    Ok(())
}

/// The most that this process ever had, in bytes.
fn most_memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<usize>();
    kib.ok().map(|kib| kib << 10)
}

fn point((operation, bytes): (Operation, u64), ranks: u32) -> Result<Point, String> {
    let call = Call::new(operation, ranks).requires(Association::Any);
    let begin = Instant::now();
    let choice = choose(&call, &Sizes::Equal(bytes), &machine(ranks), Model::LogGp);
    let choice = choice.map_err(|e| e.to_string())?;
    let segments = match choice.plan().segments() {
        1 => String::new(),
        n => format!(", {n} segments"),
    };
    Ok(Point {
        ranks,
        ns: choice.ns(),
        plan: format!("{}{segments}", choice.plan().algorithm()),
        left_out: choice.left_out.len(),
        seconds: begin.elapsed().as_secs_f64(),
    })
}

fn print(name: &str, points: &[Point]) {
    println!("{name}");
    let mut table = Table::new(2).right(&[0, 1, 3, 4]);
    table.row(["ranks", "predicted", "plan", "not played", "found in"].map(str::to_owned));
    for p in points {
        table.row([
            p.ranks.to_string(),
            time(p.ns),
            p.plan.clone(),
            p.left_out.to_string(),
            format!("{:.2} s", p.seconds),
        ]);
    }
    table.print();
    println!();
}

const COLORS: [&str; 5] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"];

/// Time over ranks, both by powers.
fn svg(curves: &[(String, Vec<Point>)]) -> String {
    let (width, height, left, top, right, bottom) = (760.0, 440.0, 70.0, 46.0, 190.0, 46.0);
    let points = || curves.iter().flat_map(|(_, points)| points);
    let log_ranks = |ranks: u32| f64::from(ranks).log2();
    let log_ns = |ns: f64| ns.max(1.0).log10();
    let (mut low, mut high, mut most) = (f64::INFINITY, 0.0f64, 1.0f64);
    for p in points() {
        low = low.min(log_ns(p.ns).floor());
        high = high.max(log_ns(p.ns).ceil());
        most = most.max(log_ranks(p.ranks));
    }
    let low = if low.is_finite() { low } else { 0.0 };
    let high = high.max(low + 1.0);
    let x = |ranks: u32| left + (width - left - right) * log_ranks(ranks) / most;
    let y = |log: f64| height - bottom - (height - top - bottom) * (log - low) / (high - low);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"14\">Predicted time of the chosen plans; \
         a described machine: nodes of 2 x 16 ranks, 25 GB/s each</text>\n"
    );
    let end = width - right;
    let mut decade = low;
    while decade <= high {
        let at = y(decade);
        let name = time(10f64.powf(decade));
        let _ = writeln!(
            text,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            left - 6.0,
            at + 4.0
        );
        decade += 1.0;
    }
    let mut ticks: Vec<u32> = points().map(|p| p.ranks).collect();
    ticks.sort_unstable();
    ticks.dedup();
    for ranks in ticks {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{ranks}</text>",
            x(ranks),
            height - bottom + 18.0
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">ranks</text>",
        f64::midpoint(left, end),
        height - 8.0
    );
    for ((name, points), color) in curves.iter().zip(COLORS) {
        let line: Vec<String> = points
            .iter()
            .map(|p| format!("{:.1},{:.1}", x(p.ranks), y(log_ns(p.ns))))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for p in points {
            let _ = writeln!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"><title>{}: {} \
                 ranks, {}, {}</title></circle>",
                x(p.ranks),
                y(log_ns(p.ns)),
                name,
                p.ranks,
                time(p.ns),
                p.plan
            );
        }
        if let Some(last) = points.last() {
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{name}</text>",
                end + 8.0,
                y(log_ns(last.ns)) + 4.0
            );
        }
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_line_for_each_curve() {
        let point = |ranks, ns| Point {
            ranks,
            ns,
            plan: "ring".into(),
            left_out: 0,
            seconds: 0.1,
        };
        let curves = vec![
            ("barrier".to_owned(), vec![point(4, 900.0), point(16, 2e3)]),
            (
                "bcast, 8 bytes".to_owned(),
                vec![point(4, 500.0), point(16, 3e6)],
            ),
        ];
        let picture = svg(&curves);
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert_eq!(picture.matches("<circle").count(), 4);
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
