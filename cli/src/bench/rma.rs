//! `osier bench rma`: accesses to windows of another rank that waits, beside a bare program that
//! does the same in memory that both map; where ranks have devices, accesses to windows there
//! beside messages of the same layout ([`devices`]).
//!
//! # Invariants
//! 1. The bare program uses the other rank's part of a window, as long as the window lives, by
//!    the address that this rank has of it; nobody else uses it meanwhile.

mod devices;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use osier::rma::{Epoch, Window};
use osier::{Communicator, Layout, Op, View, ViewMut};
use osier_transports::full_fence;

use super::layout::{Blocks, Pattern};
use super::options::Plan;
use super::report::{Record, Records};
use super::timing::median;
use super::{Args, Failure, Result, plot, report};

const REPETITIONS: u64 = 15;
/// Accesses of a repetition, of eight bytes, and bytes that longer ones move in one.
const SHORT: u64 = 20_000;
const MOVED_BYTES: usize = 64 << 20;
const LONG: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20];
const MOST_BYTES: usize = 4 << 20;
/// Of a system call for each access.
const SLOWER: u64 = 10;
/// What is accessed.
const TARGET: usize = 1;
/// Layouts of the target, and of the origin's buffer.
const LAYOUTS: [&str; 4] = ["vector:8:16", "vector:64:128", "vector:512:1024", "indexed"];
const SPREAD: [usize; 2] = [64 << 10, 1 << 20];

/// Runs the measurements; rank 0 reports.
pub fn run(plan: &Plan, args: &Args) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(plan, args, &comm)))
}

/// One access, its bytes, how it goes on a window, and bare.
#[derive(Clone, Copy)]
struct Access {
    name: &'static str,
    bytes: usize,
    layout: &'static str,
    ours: fn(&mut Bench<'_>) -> osier::Result<()>,
    bare: fn(&mut Bench<'_>),
}

/// What was measured of an access, in ns.
struct Row {
    name: &'static str,
    layout: String,
    bytes: usize,
    columns: Vec<Column>,
}

/// Times of repetitions.
struct Column {
    heading: &'static str,
    median: f64,
    /// Least and greatest.
    spread: [f64; 2],
}

impl Column {
    fn of(heading: &'static str, mut times: Vec<f64>) -> Column {
        let median = median(&mut times);
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = times.iter().copied().fold(0.0, f64::max);
        Column {
            heading,
            median,
            spread: [least, greatest],
        }
    }
}

/// Rows that were shown, and the files of them.
struct Table<'a> {
    plan: &'a Plan,
    rows: Vec<Row>,
    records: Records,
}

/// A layout, and the runs of a bare loop, in bytes.
struct Spread {
    layout: Layout,
    runs: Vec<(usize, usize)>,
}

impl Spread {
    fn of(name: &str, bytes: usize) -> Result<Spread> {
        let pattern: Pattern = name.parse().map_err(Failure::failed)?;
        let shape = pattern.shape(bytes);
        let shape = shape.map_err(|e| Failure::failed(e.to_string()))?;
        let runs = match shape.blocks {
            Blocks::List(list) => list,
            Blocks::Strided {
                count,
                block,
                stride,
            } => (0..count).map(|i| (i * stride, block)).collect(),
        };
        Ok(Spread {
            layout: shape.layout,
            runs,
        })
    }
}

/// What an access uses.
struct Bench<'a> {
    epoch: &'a Epoch<'a, u64>,
    window: &'a Window<u64>,
    /// Of the target's part, by which the bare program goes.
    at: *mut u8,
    buffer: Vec<u64>,
    words: usize,
    /// Of both sides, where they have gaps.
    spread: Option<Spread>,
}

impl Bench<'_> {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: invariant 1; parts are aligned to lines.
        unsafe { AtomicU64::from_ptr(self.at.cast()) }
    }

    fn runs(&self) -> &[(usize, usize)] {
        self.spread.as_ref().map_or(&[], |spread| &spread.runs)
    }
}

const ACCESSES: &[Access] = &[
    Access {
        name: "put + flush",
        bytes: 8,
        layout: "contiguous",
        ours: |b| {
            b.epoch.put(&b.buffer[0], TARGET, 0)?;
            b.epoch.flush(TARGET)
        },
        bare: |b| {
            b.word().store(b.buffer[0], Ordering::Relaxed);
            full_fence();
        },
    },
    Access {
        name: "get + flush",
        bytes: 8,
        layout: "contiguous",
        ours: |b| {
            b.epoch.get(&mut b.buffer[0], TARGET, 0)?;
            b.epoch.flush(TARGET)
        },
        bare: |b| b.buffer[0] = b.word().load(Ordering::Relaxed),
    },
    Access {
        name: "fetch_and_op",
        bytes: 8,
        layout: "contiguous",
        ours: |b| b.epoch.fetch_and_op(1, TARGET, 0, Op::Sum).map(drop),
        bare: |b| {
            black_box(b.word().fetch_add(1, Ordering::AcqRel));
        },
    },
    Access {
        name: "compare_and_swap",
        bytes: 8,
        layout: "contiguous",
        ours: |b| b.epoch.compare_and_swap(1, 2, TARGET, 0).map(drop),
        bare: |b| {
            let order = (Ordering::AcqRel, Ordering::Acquire);
            let _ = black_box(b.word().compare_exchange(1, 2, order.0, order.1));
        },
    },
    Access {
        name: "lock + unlock",
        bytes: 0,
        layout: "contiguous",
        ours: |b| b.window.lock(TARGET)?.unlock(),
        bare: |b| {
            let order = (Ordering::AcqRel, Ordering::Acquire);
            let _ = black_box(b.word().compare_exchange(0, 1, order.0, order.1));
            b.word().fetch_sub(1, Ordering::AcqRel);
        },
    },
    Access {
        name: "accumulate x 1000",
        bytes: 8000,
        layout: "contiguous",
        ours: |b| b.epoch.accumulate(&b.buffer[..1000], TARGET, 0, Op::Sum),
        bare: |b| {
            let at = b.at.cast::<u64>();
            for (i, value) in b.buffer[..1000].iter().enumerate() {
                let at = at.wrapping_add(i);
                // SAFETY: invariant 1: inside the part.
                let there = unsafe { at.read_volatile() };
                // SAFETY: invariant 1: inside the part.
                unsafe { at.write_volatile(there.wrapping_add(*value)) };
            }
        },
    },
];

const PUT: Access = Access {
    name: "put",
    bytes: 0,
    layout: "contiguous",
    ours: |b| b.epoch.put(&b.buffer[..b.words], TARGET, 0),
    bare: |b| {
        let from = b.buffer.as_ptr().cast();
        // SAFETY: invariant 1: inside the part, and a vector of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, b.at, 8 * b.words) };
    },
};

const GET: Access = Access {
    name: "get",
    bytes: 0,
    layout: "contiguous",
    ours: |b| b.epoch.get(&mut b.buffer[..b.words], TARGET, 0),
    bare: |b| {
        let to = b.buffer.as_mut_ptr().cast();
        // SAFETY: invariant 1: inside the part, and a vector of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(b.at.cast_const(), to, 8 * b.words) };
    },
};

const PUT_AS: Access = Access {
    name: "put",
    bytes: 0,
    layout: "",
    ours: |b| match &b.spread {
        None => Ok(()),
        Some(spread) => {
            let from = View::new(&b.buffer, 0, &spread.layout, 1)?;
            b.epoch.put_as(&from, TARGET, 0, &spread.layout, 1)
        }
    },
    bare: |b| {
        let from = b.buffer.as_ptr().cast::<u8>();
        for &(at, bytes) in b.runs() {
            let (from, to) = (from.wrapping_add(at), b.at.wrapping_add(at));
            // SAFETY: invariant 1: inside the part, and a vector of as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
    },
};

const GET_AS: Access = Access {
    name: "get",
    bytes: 0,
    layout: "",
    ours: |b| match &b.spread {
        None => Ok(()),
        Some(spread) => {
            let mut to = ViewMut::new(&mut b.buffer, 0, &spread.layout, 1)?;
            b.epoch.get_as(&mut to, TARGET, 0, &spread.layout, 1)
        }
    },
    bare: |b| {
        let to = b.buffer.as_mut_ptr().cast::<u8>();
        for &(at, bytes) in b.runs() {
            let (from, to) = (b.at.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: invariant 1: inside the part, and a vector of as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to, bytes) };
        }
    },
};

fn measure(plan: &Plan, args: &Args, comm: &Communicator) -> Result<()> {
    super::options::check_ranks(plan.bench, comm.size())?;
    let first = comm.rank() == 0;
    let mut table = Table {
        plan,
        rows: Vec::new(),
        records: Records::new(plan.json.as_ref().filter(|_| first)),
    };
    if !args.shapes.is_empty() {
        devices::shapes(&mut table, comm, &super::datatype::shapes(args)?)?;
    } else {
        on_host(&mut table, comm)?;
        devices::layouts(&mut table, comm)?;
    }
    match first {
        true => table.finish(),
        false => Ok(()),
    }
}

fn on_host(table: &mut Table<'_>, comm: &Communicator) -> Result<()> {
    let (plan, first) = (table.plan, comm.rank() == 0);
    let mapped = comm.window::<u64>(MOST_BYTES / 8)?;
    let plain = comm.window_of(vec![0u64; MOST_BYTES / 8])?;
    if first {
        let reach = [mapped.reach_of(TARGET)?, plain.reach_of(TARGET)?];
        println!("# osier rma: accesses to a rank that waits, ns; medians of repetitions");
        println!(
            "# window: reached by {}; vector of another process: by {}",
            reach[0], reach[1]
        );
        let headings = ["window", "bare", "ratio", "vector"];
        println!("{}", heading(headings));
        let long = LONG.map(|bytes| [PUT, GET].map(|access| Access { bytes, ..access }));
        let spread = LAYOUTS.map(|layout| {
            SPREAD.map(|bytes| {
                [PUT_AS, GET_AS].map(|access| Access {
                    layout,
                    bytes,
                    ..access
                })
            })
        });
        let spread = spread.as_flattened().as_flattened();
        for access in ACCESSES.iter().chain(long.as_flattened()).chain(spread) {
            table.show(row(plan, access, [&mapped, &plain])?, "")?;
        }
    }
    comm.barrier()?;
    let (mut fences, mut barriers) = (Vec::new(), Vec::new());
    let calls = plan.effort.iterations.unwrap_or(SHORT);
    for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
        comm.barrier()?;
        fences.push(each(calls, || mapped.fence())?);
        barriers.push(each(calls, || comm.barrier())?);
    }
    if first {
        let row = Row {
            name: "fence",
            layout: "(barrier)".into(),
            bytes: 0,
            columns: vec![Column::of("window", fences), Column::of("bare", barriers)],
        };
        table.show(row, "")?;
    }
    mapped.free()?;
    plain.free()?;
    Ok(())
}

/// ns of one of many calls, behind one that finds in the caches what others have left there.
fn each(calls: u64, mut f: impl FnMut() -> osier::Result<()>) -> Result<f64> {
    f()?;
    let since = Instant::now();
    for _ in 0..calls {
        f()?;
    }
    Ok(since.elapsed().as_secs_f64() * 1e9 / calls as f64)
}

fn row(plan: &Plan, access: &Access, [mapped, plain]: [&Window<u64>; 2]) -> Result<Row> {
    let long = access.bytes > 8;
    let calls = plan.effort.iterations.unwrap_or(match long {
        true => (MOVED_BYTES / access.bytes).min(SHORT as usize) as u64,
        false => SHORT,
    });
    let at = mapped.raw().address_of(TARGET)?;
    let at = at.ok_or_else(|| Failure::failed("rma: a window that is not mapped"))?;
    let spread = || match access.layout {
        "contiguous" => Ok(None),
        name => Spread::of(name, access.bytes).map(Some),
    };
    let bench = |window, epoch| -> Result<Bench<'_>> {
        Ok(Bench {
            epoch,
            window,
            at,
            buffer: vec![1; MOST_BYTES / 8],
            words: access.bytes / 8,
            spread: spread()?,
        })
    };
    let (all, of_plain) = (mapped.lock_all(), plain.lock_all());
    // A lock that is taken alone is not beside one on all.
    let locks = access.name.starts_with("lock");
    let (mut of_mapped, mut of_vector) = (bench(mapped, &*all)?, bench(plain, &*of_plain)?);
    if !locks {
        (access.ours)(&mut of_mapped)?;
    }
    // A system call for each run.
    let runs = of_mapped.runs().len().max(1) as u64;
    let slower = (calls / SLOWER / runs).max(1);
    let (mut ours, mut bare, mut vector) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
        of_mapped.word().store(0, Ordering::Relaxed);
        ours.push(each(calls, || (access.ours)(&mut of_mapped))?);
        of_mapped.word().store(0, Ordering::Relaxed);
        bare.push(each(calls, || {
            (access.bare)(&mut of_mapped);
            Ok(())
        })?);
        vector.push(each(slower, || (access.ours)(&mut of_vector))?);
    }
    drop((of_mapped, of_vector));
    all.unlock()?;
    of_plain.unlock()?;
    Ok(Row {
        name: access.name,
        layout: access.layout.into(),
        bytes: access.bytes,
        columns: vec![
            Column::of("window", ours),
            Column::of("bare", bare),
            Column::of("vector", vector),
        ],
    })
}

fn heading(columns: [&str; 4]) -> String {
    let [one, two, ratio, last] = columns;
    format!(
        "{:<18}{:<15}{:>8}{one:>10}{two:>10}{ratio:>8}{last:>11}",
        "access", "layout", "bytes"
    )
}

impl Row {
    /// Two times, their ratio, the third time; of devices three, and the ratio of the first to the
    /// third.
    fn line(&self) -> String {
        // The longest names of shapes have the place of the access, too.
        let mut line = match self.name {
            "device" => format!("{:<32}{:>9}", self.layout, self.bytes),
            name => format!("{name:<18}{:<15}{:>8}", self.layout, self.bytes),
        };
        let time = |at: usize| self.columns.get(at).map(|column| column.median);
        let told = |ns: Option<f64>| match ns {
            None => "-".into(),
            Some(ns) if ns >= 1e6 => format!("{ns:.0}"),
            Some(ns) => format!("{ns:.1}"),
        };
        let (one, two, three) = (time(0), time(1), time(2));
        if let ("device", Some(put), Some(get), Some(message)) = (self.name, one, two, three) {
            let us = [put, get, message].map(|ns| match ns / 1e3 {
                us if us >= 1e4 => format!("{us:.0}"),
                us => format!("{us:.1}"),
            });
            let ratio = put / message;
            line += &format!("{:>10}{:>10}{:>8}{ratio:>11.2}", us[0], us[1], us[2]);
            return line;
        }
        line += &format!("{:>10}{:>10}", told(one), told(two));
        if let Some((ours, bare)) = one.zip(two) {
            line += &format!("{:>8.2}{:>11}", ours / bare, told(three));
        }
        line
    }
}

impl Table<'_> {
    /// Shows a row and keeps it; `device` is the name of the one that it was measured on.
    fn show(&mut self, row: Row, device: &str) -> Result<()> {
        println!("{}", row.line());
        self.records.extend(row.records(device))?;
        self.rows.push(row);
        Ok(())
    }

    /// Draws the picture, where it is asked for, and tells of the files.
    fn finish(&mut self) -> Result<()> {
        self.records.finish()?;
        if let Some(file) = &self.plan.plot {
            let title = "accesses to a window of another rank";
            report::write(file, &plot::svg(title, "us", &self.curves()))?;
            println!("\n# plot: {}", file.display());
        }
        if let Some(file) = &self.plan.json {
            println!("# json: {}", file.display());
        }
        Ok(())
    }

    fn curves(&self) -> Vec<plot::Curve> {
        let mut curves: Vec<plot::Curve> = Vec::new();
        let drawn = |row: &&Row| {
            let curve = matches!(row.name, "put" | "get" | "device");
            curve && row.layout == "contiguous" && row.bytes > 0
        };
        for row in self.rows.iter().filter(drawn) {
            for column in &row.columns {
                let label = match (row.name, column.heading) {
                    // As that of a put.
                    ("get", "bare") | ("device", "get") => continue,
                    (name, heading) => format!("{name}, {heading}"),
                };
                let at = curves.iter().position(|curve| curve.label == label);
                let at = at.unwrap_or_else(|| {
                    let points = Vec::new();
                    curves.push(plot::Curve { label, points });
                    curves.len() - 1
                });
                curves[at].points.push(plot::Point {
                    bytes: row.bytes,
                    value: column.median / 1e3,
                    floor: None,
                });
            }
        }
        curves
    }
}

impl Row {
    /// A record for each column. The floor is the bare program, which has none itself.
    fn records(&self, device: &str) -> Vec<Record> {
        let bare = self.columns.iter().find(|column| column.heading == "bare");
        let record = |column: &Column| Record {
            memory: match self.name {
                "device" => "device".into(),
                _ => column.heading.into(),
            },
            transport: match device {
                "" => "rma".into(),
                name => name.into(),
            },
            ranks: 2,
            unit: "us".into(),
            value: column.median / 1e3,
            spread: Some(column.spread.map(|ns| ns / 1e3)),
            floor: bare
                .filter(|_| column.heading != "bare")
                .map(|bare| bare.median / 1e3),
            ..Record::new(
                match self.name {
                    "device" => format!("rma-device-{}", column.heading),
                    name => format!("rma-{name}"),
                },
                &self.layout,
                self.bytes,
            )
        };
        self.columns.iter().map(record).collect()
    }
}
