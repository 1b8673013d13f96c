//! Datatypes: commit, pack, unpack and ping-pong, shape by shape.
//!
//! Rank 0 commits, packs and unpacks alone while rank 1 waits; then both
//! exchange the shape. The shapes are those of the corpus crate; `--export`
//! writes them as text, so that the peers' program builds the same types.

use std::hint::black_box;
use std::path::Path;

use osier::{Communicator, Layout, View, ViewMut};
use osier_datatype_corpus::shapes::{self, Shape, checksum, pattern};

use super::buffers::Pool;
use super::options::Effort;
use super::progress::Bar;
use super::report::{Record, Records, number};
use super::timing::{self, Seconds};
use super::{Failure, Memory, Result, floor};

const TAG: i32 = 1;
const MEASURES: [&str; 4] = ["commit", "pack", "unpack", "pingpong"];
/// Memory of one buffer, unless `--max-span` says otherwise.
const MAX_SPAN: usize = 64 << 20;
const REPETITIONS: u64 = 5;

/// What to measure.
pub struct Plan {
    shapes: Vec<Shape>,
    effort: Effort,
    json: Option<std::path::PathBuf>,
    progress: bool,
}

/// What to measure, of these arguments.
pub fn plan(args: &super::Args) -> Result<Plan> {
    Ok(Plan {
        shapes: shapes(args)?,
        effort: Effort {
            iterations: args.iterations,
            warmup: args.warmup,
            repetitions: args.repetitions.or(Some(REPETITIONS)),
        },
        json: args.json.clone(),
        progress: args.progress,
    })
}

/// Shapes by name, by family or, where nothing is named so, by parts of names, within a limit of
/// memory; all of them where none is named, and where `all` is.
pub fn shapes(args: &super::Args) -> Result<Vec<Shape>> {
    let limit = args.max_span.unwrap_or(MAX_SPAN);
    let all = shapes::all().map_err(Failure::failed)?;
    let exact = |shape: &Shape, word: &str| shape.family == word || shape.name == word;
    let words: Vec<(&str, bool)> = args
        .shapes
        .iter()
        .map(|word| (word.as_str(), all.iter().any(|shape| exact(shape, word))))
        .collect();
    let wanted = |shape: &Shape| {
        words.is_empty()
            || words.iter().any(|&(word, _)| word == "all")
            || words.iter().any(|&(word, named)| match named {
                true => exact(shape, word),
                false => shape.name.contains(word),
            })
    };
    let mut kept = Vec::new();
    for shape in all {
        if wanted(&shape) && span(&commit(&shape)?, shape.count) <= limit {
            kept.push(shape);
        }
    }
    if kept.is_empty() {
        return Err(Failure::usage(format!(
            "no shape of {} within --max-span {limit} (hint: parts of names such as vector, or a \
             family such as fft)",
            args.shapes.join(", ")
        )));
    }
    Ok(kept)
}

/// Writes a line for each shape and measures nothing.
pub fn export(plan: &Plan, file: &Path) -> Result<()> {
    let mut text = String::new();
    for shape in &plan.shapes {
        let line = shape.line(&commit(shape)?).map_err(Failure::failed)?;
        text += &line;
        text.push('\n');
    }
    std::fs::write(file, text)
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", file.display())))
}

fn commit(shape: &Shape) -> Result<Layout> {
    shape
        .datatype
        .commit()
        .map_err(|e| Failure::failed(format!("{}: {e}", shape.name)))
}

fn span(layout: &Layout, count: usize) -> usize {
    let (low, high) = layout.span(count);
    low.abs_diff(high)
}

/// Measures all shapes as a rank of a job of two; rank 0 reports.
pub fn run(plan: &Plan) -> Result<()> {
    let universe = osier::init()?;
    let comm = universe.world();
    if comm.size() != 2 {
        return Err(Failure::usage(format!(
            "datatype takes two ranks, not {}",
            comm.size()
        )));
    }
    let first = comm.rank() == 0;
    let transport = comm.transport(1 - comm.rank())?.to_string();
    let mut bar = Bar::new(plan.shapes.len(), first && plan.progress);
    let mut records = Records::new(plan.json.as_ref().filter(|_| first));
    if first {
        println!("# osier datatype: 2 ranks, {transport}; times in us");
        print!("{:<28}{:>12}{:>10}", "# Shape", "Bytes", "Blocks");
        for head in ["Commit", "Pack", "Unpack", "Ping-pong", "memcpy", "Pack/mc"] {
            print!("{head:>12}");
        }
        println!();
    }
    for (done, shape) in plan.shapes.iter().enumerate() {
        bar.show(done, &shape.name);
        let row = one(plan, shape, comm)?;
        if !first {
            continue;
        }
        bar.clear();
        println!("{}", row.line(shape));
        records.extend(row.records(shape, &transport))?;
    }
    Ok(comm.barrier()?)
}

/// Times of one shape; none where it cannot be received.
struct Row {
    bytes: usize,
    blocks: usize,
    seconds: [Option<Seconds>; MEASURES.len()],
    memcpy: f64,
}

impl Row {
    fn line(&self, shape: &Shape) -> String {
        let mut line = format!("{:<28}{:>12}{:>10}", shape.name, self.bytes, self.blocks);
        let shown = |seconds: Option<f64>| seconds.map_or("-".into(), |s| number(s * 1e6));
        let medians = self.seconds.map(|seconds| seconds.map(|s| s.median));
        for seconds in medians.into_iter().chain([Some(self.memcpy)]) {
            line += &format!("{:>12}", shown(seconds));
        }
        let ratio = medians[1].map_or("-".into(), |pack| number(pack / self.memcpy));
        line + &format!("{ratio:>12}")
    }

    fn records(&self, shape: &Shape, transport: &str) -> Vec<Record> {
        let value = |(at, name): (usize, &&str)| {
            let seconds = self.seconds[at]?;
            Some(Record {
                transport: transport.into(),
                ranks: 2,
                unit: "us".into(),
                value: seconds.median * 1e6,
                spread: Some(seconds.spread_of(|s| s * 1e6)),
                floor: (at > 0).then_some(self.memcpy * 1e6),
                ..Record::new(format!("datatype-{name}"), &shape.name, self.bytes)
            })
        };
        MEASURES.iter().enumerate().filter_map(value).collect()
    }
}

fn one(plan: &Plan, shape: &Shape, comm: &Communicator) -> Result<Row> {
    let layout = commit(shape)?;
    let (count, bytes) = (shape.count, layout.packed_bytes(shape.count).unwrap_or(0));
    let (low, _) = layout.span(count);
    let origin = (-low).max(0).cast_unsigned();
    let room = span(&layout, count).max(origin + layout.span(count).1.max(0).cast_unsigned());
    let mut from = Pool::new(None, Memory::Plain, room, false, 1, 1)?;
    let start = origin.checked_add_signed(low).unwrap_or(0);
    for (at, byte) in from.all_mut()[start..].iter_mut().enumerate() {
        *byte = pattern(at);
    }
    let mut to = Pool::new(None, Memory::Plain, room, false, 1, 0)?;
    let mut row = Row {
        bytes,
        blocks: layout.block_count().saturating_mul(count),
        seconds: [None; MEASURES.len()],
        memcpy: f64::NAN,
    };
    let mut wanted = 0;
    if comm.rank() == 0 {
        let mut packed = Pool::new(None, Memory::Plain, bytes, false, 1, 0)?;
        let alone = alone(plan, shape, &layout, origin, &from, &mut to, &mut packed)?;
        row.seconds[..3].copy_from_slice(&alone);
        wanted = checksum(&packed.slot(0)[..bytes]);
        let mut other = Pool::new(None, Memory::Plain, bytes, false, 1, 0)?;
        row.memcpy = floor::copy(&packed, &mut other, bytes)?;
    }
    comm.barrier()?;
    if !shape.overlaps {
        let seconds = ping_pong(plan, &layout, count, origin, comm, &from, &mut to)?;
        row.seconds[3] = Some(seconds.times(0.5));
        let mut packed = vec![0; bytes];
        pack(&layout, count, origin, to.slot(0), &mut packed)?;
        if comm.rank() == 0 && checksum(&packed) != wanted {
            return Err(Failure::failed(format!(
                "{}: wrong bytes came back",
                shape.name
            )));
        }
    }
    Ok(row)
}

fn pack(layout: &Layout, count: usize, origin: usize, from: &[u8], to: &mut [u8]) -> Result<()> {
    layout
        .pack(from, origin, count, 0..to.len(), to)
        .map_err(|e| Failure::failed(e.to_string()))
}

/// Commit, pack, unpack.
fn alone(
    plan: &Plan,
    shape: &Shape,
    layout: &Layout,
    origin: usize,
    from: &Pool,
    to: &mut Pool,
    packed: &mut Pool,
) -> Result<[Option<Seconds>; 3]> {
    let count = shape.count;
    let bytes = layout.packed_bytes(count).unwrap_or(0);
    let failed = |e: osier::datatype::TypeError| Failure::failed(e.to_string());
    let commit = timing::measure(None, &plan.effort, |n| {
        for _ in 0..n {
            let ty = shapes::rebuild(black_box(&shape.datatype)).map_err(failed)?;
            black_box(ty.commit().map_err(failed)?);
        }
        Ok(())
    })?;
    let target = &mut packed.all_mut()[..bytes];
    let packing = timing::measure(None, &plan.effort, |n| {
        for _ in 0..n {
            pack(
                layout,
                count,
                origin,
                black_box(from.slot(0)),
                black_box(target),
            )?;
        }
        Ok(())
    })?;
    if shape.overlaps {
        return Ok([Some(commit), Some(packing), None]);
    }
    let unpacking = timing::measure(None, &plan.effort, |n| {
        for _ in 0..n {
            let place = black_box(to.all_mut());
            layout
                .unpack(place, origin, count, 0..bytes, black_box(target))
                .map_err(failed)?;
        }
        Ok(())
    })?;
    let mut again = vec![0; bytes];
    pack(layout, count, origin, to.slot(0), &mut again)?;
    if again != *target {
        return Err(Failure::failed(format!(
            "{}: unpack lost bytes",
            shape.name
        )));
    }
    Ok([Some(commit), Some(packing), Some(unpacking)])
}

/// Seconds of a round trip.
fn ping_pong(
    plan: &Plan,
    layout: &Layout,
    count: usize,
    origin: usize,
    comm: &Communicator,
    from: &Pool,
    to: &mut Pool,
) -> Result<Seconds> {
    let send = View::new(from.all(), origin, layout, count)?;
    let mut receive = ViewMut::new(to.all_mut(), origin, layout, count)?;
    let (peer, first) = (1 - comm.rank(), comm.rank() == 0);
    timing::measure(Some(comm), &plan.effort, |n| {
        for _ in 0..n {
            if first {
                comm.send(&send, peer, TAG)?;
                comm.recv(&mut receive, peer, TAG)?;
            } else {
                comm.recv(&mut receive, peer, TAG)?;
                comm.send(&send, peer, TAG)?;
            }
        }
        Ok(())
    })
}
