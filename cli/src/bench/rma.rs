//! `osier bench rma`: accesses to windows of another rank that waits, beside a bare program that
//! does the same in memory that both map; where ranks have devices, accesses to windows there
//! beside messages of the same layout.
//!
//! # Invariants
//! 1. The bare program uses the other rank's part of a window, as long as the window lives, by
//!    the address that this rank has of it; nobody else uses it meanwhile.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use osier::devices::DeviceView;
use osier::rma::{Epoch, Window};
use osier::{Communicator, Layout, Op, View, ViewMut};
use osier_transports::full_fence;
use serde_json::{Value, json};

use super::gpu::{self, Gpu};
use super::layout::{Blocks, Pattern};
use super::options::Plan;
use super::timing::median;
use super::{Failure, Memory, Result, plot, report};

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
/// Layouts of the target, and of the origin's buffer: of the host, and of devices.
const LAYOUTS: [&str; 4] = ["vector:8:16", "vector:64:128", "vector:512:1024", "indexed"];
const ON_DEVICES: [&str; 4] = ["contiguous", "vector:8:16", "vector:64:128", "triangle"];
const SPREAD: [usize; 2] = [64 << 10, 1 << 20];
const SIZES_ON_DEVICES: [usize; 3] = [8, 64 << 10, 4 << 20];
/// Accesses of a repetition to a device.
const ON_DEVICE: u64 = 20;

/// Runs the measurements; rank 0 reports.
pub fn run(plan: &Plan) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(plan, &comm)))
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
    layout: &'static str,
    bytes: usize,
    /// Headings and times.
    columns: Vec<(&'static str, f64)>,
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

fn measure(plan: &Plan, comm: &Communicator) -> Result<()> {
    super::options::check_ranks(plan.bench, comm.size())?;
    let first = comm.rank() == 0;
    let mapped = comm.window::<u64>(MOST_BYTES / 8)?;
    let plain = comm.window_of(vec![0u64; MOST_BYTES / 8])?;
    let mut rows = Vec::new();
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
            let row = row(plan, access, [&mapped, &plain])?;
            println!("{}", row.line());
            rows.push(row);
        }
    }
    comm.barrier()?;
    let (mut fences, mut barriers) = (Vec::new(), Vec::new());
    for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
        comm.barrier()?;
        fences.push(each(SHORT, || mapped.fence())?);
        barriers.push(each(SHORT, || comm.barrier())?);
    }
    if first {
        let (fence, barrier) = (median(&mut fences), median(&mut barriers));
        let row = Row {
            name: "fence",
            layout: "(barrier)",
            bytes: 0,
            columns: vec![("window", fence), ("bare", barrier)],
        };
        println!("{}", row.line());
        rows.push(row);
    }
    mapped.free()?;
    plain.free()?;
    on_devices(plan, comm, &mut rows)?;
    if first {
        keep(plan, &rows)?;
    }
    Ok(())
}

/// ns of one of many calls.
fn each(calls: u64, mut f: impl FnMut() -> osier::Result<()>) -> Result<f64> {
    let since = Instant::now();
    for _ in 0..calls {
        f()?;
    }
    Ok(since.elapsed().as_secs_f64() * 1e9 / calls as f64)
}

fn row(plan: &Plan, access: &Access, [mapped, plain]: [&Window<u64>; 2]) -> Result<Row> {
    let long = access.bytes > 8;
    let calls = match long {
        true => (MOVED_BYTES / access.bytes).min(SHORT as usize) as u64,
        false => SHORT,
    };
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
    let (ours, bare) = (median(&mut ours), median(&mut bare));
    let vector = median(&mut vector);
    drop((of_mapped, of_vector));
    all.unlock()?;
    of_plain.unlock()?;
    Ok(Row {
        name: access.name,
        layout: access.layout,
        bytes: access.bytes,
        columns: vec![("window", ours), ("bare", bare), ("vector", vector)],
    })
}

/// Accesses to windows on devices, beside messages of the same layout between them, where all
/// ranks have one. Collective.
fn on_devices(plan: &Plan, comm: &Communicator, rows: &mut Vec<Row>) -> Result<()> {
    let own = Gpu::of(comm);
    let mut lacks = [u32::from(own.is_err())];
    comm.allreduce(&osier::IN_PLACE, &mut lacks, Op::Max)?;
    if lacks[0] != 0 {
        return Ok(());
    }
    let (gpu, first) = (own?, comm.rank() == 0);
    let (context, stream) = (gpu.stream().context().clone(), gpu.stream());
    if first {
        println!(
            "\n# windows on devices, us; ratio: put to message; {}",
            gpu.name
        );
        let headings = ["put", "get", "message", "ratio"];
        println!("{}", heading(headings));
    }
    for name in ON_DEVICES {
        for bytes in SIZES_ON_DEVICES {
            let layout = Spread::of(name, bytes)?.layout;
            let span = layout.span(1).1.max(1).cast_unsigned();
            let window = comm.device_window::<u8>(&context, span)?;
            let buffer = gpu.allocate(Memory::Device, span)?;
            let view = || DeviceView::new(&buffer, 0, &layout, 1).map_err(gpu::failed);
            let repetitions = plan.effort.repetitions.unwrap_or(REPETITIONS);
            let (mut puts, mut gets) = (Vec::new(), Vec::new());
            let all = window.lock_all();
            for _ in 0..repetitions * u64::from(first) {
                let from = view()?.after_stream(stream);
                puts.push(each(ON_DEVICE, || {
                    all.put_as(&from, TARGET, 0, &layout, 1)?;
                    all.flush(TARGET)
                })?);
                let mut to = view()?.after_stream(stream);
                gets.push(each(ON_DEVICE, || {
                    all.get_as(&mut to, TARGET, 0, &layout, 1)
                })?);
            }
            all.unlock()?;
            comm.barrier()?;
            let mut messages = Vec::new();
            for _ in 0..repetitions {
                let from = view()?.after_stream(stream);
                let mut to = view()?.after_stream(stream);
                let there_and_back = each(ON_DEVICE, || match first {
                    true => {
                        comm.send(&from, TARGET, 0)?;
                        comm.recv(&mut to, TARGET, 0).map(drop)
                    }
                    false => {
                        comm.recv(&mut to, 0, 0)?;
                        comm.send(&from, 0, 0)
                    }
                })?;
                messages.push(there_and_back / 2.0);
            }
            window.free()?;
            if first {
                let row = Row {
                    name: "device",
                    layout: name,
                    bytes: layout.size(),
                    columns: vec![
                        ("put", median(&mut puts)),
                        ("get", median(&mut gets)),
                        ("message", median(&mut messages)),
                    ],
                };
                println!("{}", row.line());
                rows.push(row);
            }
        }
    }
    Ok(())
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
        let mut line = format!("{:<18}{:<15}{:>8}", self.name, self.layout, self.bytes);
        let time = |at: usize| self.columns.get(at).map(|(_, ns)| *ns);
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

/// Writes the picture and the file, where they are asked for.
fn keep(plan: &Plan, rows: &[Row]) -> Result<()> {
    if let Some(file) = &plan.plot {
        let mut curves: Vec<plot::Curve> = Vec::new();
        let drawn = |row: &&Row| {
            let curve = matches!(row.name, "put" | "get" | "device");
            curve && row.layout == "contiguous" && row.bytes > 0
        };
        for row in rows.iter().filter(drawn) {
            for (column, ns) in &row.columns {
                let label = match (row.name, *column) {
                    // As that of a put.
                    ("get", "bare") | ("device", "get") => continue,
                    (name, column) => format!("{name}, {column}"),
                };
                let at = curves.iter().position(|curve| curve.label == label);
                let at = at.unwrap_or_else(|| {
                    let points = Vec::new();
                    curves.push(plot::Curve { label, points });
                    curves.len() - 1
                });
                curves[at].points.push(plot::Point {
                    bytes: row.bytes,
                    value: ns / 1e3,
                    floor: None,
                });
            }
        }
        let title = "accesses to a window of another rank";
        report::write(file, &plot::svg(title, "us", &curves))?;
        println!("\n# plot: {}", file.display());
    }
    if let Some(file) = &plan.json {
        let of_row = |row: &Row| -> Vec<Value> {
            let value = |(column, ns): &(&str, f64)| {
                json!({
                    "bench": format!("rma-{}", row.name),
                    "layout": row.layout,
                    "memory": column,
                    "bytes": row.bytes,
                    "unit": "ns",
                    "value": ns,
                    "library": "osier",
                })
            };
            row.columns.iter().map(value).collect()
        };
        let values: Vec<Value> = rows.iter().flat_map(of_row).collect();
        report::write(file, &format!("{:#}\n", Value::Array(values)))?;
        println!("# json: {}", file.display());
    }
    Ok(())
}
