//! What the machine code of the kernels costs: executed instructions, counted by running
//! sm_90 code of nvdisasm on real plans, and the rates that follow by arithmetic.
//!
//! `cargo xtask kernels --inspect` makes the code and runs this; without it the test is
//! ignored. A few warps spread over the grid of a whole GPU run, prologues and all, on
//! memory without end; of packs, all bytes that are written are compared with the plan.
//!
//! share = min(1, multiprocessors x clock x 3 instructions per clock x payload bytes per
//! warp instruction / payload rate of a copy); of sums, which read twice, of two thirds of
//! that rate.

#[path = "../../tests/asked.rs"]
mod asked;
#[path = "inspect/memory.rs"]
mod memory;
#[path = "inspect/sass.rs"]
mod sass;
#[path = "inspect/shapes.rs"]
mod shapes;
#[path = "inspect/warp.rs"]
mod warp;

use memory::Endless;
use osier_datatype::{Basic, Element};
use osier_kernels::plan::Plan;
use osier_kernels::plan::arguments::{Argument, Launch, THREADS, Tables};
use osier_kernels::plan::reduction::Reduction;
use osier_kernels::plan::transfer::{PlacedPlan, Transfer, TransferArgument};
use sass::Module;
use shapes::{Layouts, Row, What};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use warp::{Counts, Stop, Warp};

/// Multiprocessors x clock x instructions per clock, of H100 and H200.
const ISSUED_PER_SECOND: f64 = 132.0 * 1.98e9 * 3.0;
/// Payload bytes a second of a device's own copy.
const H200: f64 = 2.15e12;
const H100: f64 = 1.5e12;
/// Thread blocks of a full grid there.
const BLOCKS: u64 = 132 * 8;

const ORIGIN: u64 = 1 << 44;
const OTHER: u64 = 2 << 44;
const PACKED: u64 = 3 << 44;
const TABLES: u64 = 4 << 44;
const OTHER_TABLES: u64 = 5 << 44;

/// Warps that run, of those of the grid, and instructions of each at most.
const SAMPLES: u64 = 6;
const MOST: u64 = 40_000;

/// All kernels, and what ptxas said about each.
struct Code {
    modules: Vec<Module>,
    /// Registers, bytes of spills.
    told: HashMap<String, (u32, u32)>,
}

impl Code {
    fn read(folder: &Path) -> Code {
        let mut code = Code {
            modules: Vec::new(),
            told: HashMap::new(),
        };
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        for file in files {
            let ending = file.extension().and_then(|e| e.to_str());
            if !matches!(ending, Some("sass" | "ptxas")) {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            match ending {
                Some("sass") => code.modules.push(Module::parse(&text)),
                Some("ptxas") => code.note(&text),
                _ => {}
            }
        }
        code
    }

    fn note(&mut self, text: &str) {
        let (mut name, mut spills) = (String::new(), 0);
        for line in text.lines() {
            let number = |before: &str| -> u32 {
                let words: Vec<_> = line.split_whitespace().collect();
                let at = line
                    .split(before)
                    .next()
                    .map(|l| l.split_whitespace().count());
                at.and_then(|at| words.get(at.wrapping_sub(1)))
                    .and_then(|word| word.parse().ok())
                    .unwrap_or(0)
            };
            if let Some((_, rest)) = line.split_once("entry function '") {
                name = rest.split('\'').next().unwrap_or("").to_owned();
            } else if line.contains("spill stores") {
                spills = number("bytes spill stores") + number("bytes spill loads");
            } else if line.contains("Used ") {
                self.told
                    .insert(name.clone(), (number("registers"), spills));
            }
        }
    }

    fn find(&self, kernel: &str) -> (&Module, usize) {
        let found = |module: &'_ &Module| module.functions.contains_key(kernel);
        let module = self.modules.iter().find(found);
        let module = module.unwrap_or_else(|| panic!("no code of {kernel}"));
        (module, module.functions[kernel])
    }
}

/// The bytes of an argument.
fn bytes_of<T>(argument: &T) -> &[u8] {
    // SAFETY: arguments are plain numbers without holes.
    unsafe { std::slice::from_raw_parts((&raw const *argument).cast(), size_of::<T>()) }
}

/// One launch, ready to be run.
struct Ready {
    kernel: String,
    width: usize,
    blocks: u64,
    argument: Vec<u8>,
    tables: Vec<u8>,
    tables_at: u64,
    /// Bytes that memory moves for a byte of payload, as multiples of a copy's.
    traffic: f64,
}

fn kernel(pack: bool, launch: &Launch) -> Option<(String, Vec<u8>)> {
    let way = if pack { "pack" } else { "unpack" };
    let width = launch.width;
    Some(match &launch.argument {
        Argument::Contiguous { .. } => return None,
        Argument::Strided(levels, a) => (
            format!("osier_{way}_strided{levels}_w{width}"),
            bytes_of(a).to_vec(),
        ),
        Argument::Transposed(a) => {
            let a = if pack { *a } else { a.reversed() };
            (format!("osier_transpose_w{width}"), bytes_of(&a).to_vec())
        }
        Argument::Runs(a) => (format!("osier_{way}_runs_w{width}"), bytes_of(a).to_vec()),
        Argument::General(a) => (
            format!("osier_{way}_general_w{width}"),
            bytes_of(a).to_vec(),
        ),
    })
}

/// What a layout's launch is.
fn prepare(row: &Row) -> Option<(Ready, Plan)> {
    let Layouts { layout, count, .. } = &row.layouts;
    let plan = Plan::new(layout, *count).unwrap();
    let tables = Tables::new(&plan);
    let all = 0..plan.bytes;
    let odd = row.odd;
    let ready = match row.what {
        What::Pack | What::Unpack => {
            let place = (&tables, TABLES);
            let launch = plan.launch(place, ORIGIN, PACKED + odd, all)?;
            let (kernel, argument) = kernel(row.what == What::Pack, &launch)?;
            Ready {
                kernel,
                width: launch.width,
                blocks: launch.blocks,
                argument,
                tables: tables.bytes,
                tables_at: TABLES,
                traffic: 1.0,
            }
        }
        What::Copy | What::Reduce => {
            let other = row.layouts.other.as_ref().unwrap_or(layout);
            let other_plan = Plan::new(other, *count).unwrap();
            let other_tables = Tables::new(&other_plan);
            let side = |plan, tables, tables_at, origin| PlacedPlan {
                plan,
                tables,
                tables_at,
                origin,
            };
            let from = side(&plan, &tables, TABLES, ORIGIN);
            let to = side(&other_plan, &other_tables, OTHER_TABLES, OTHER + odd);
            let mut bytes = tables.bytes.clone();
            assert!(bytes.is_empty() || bytes.len() as u64 <= OTHER_TABLES - TABLES);
            // Both tables lie in one run.
            let apart = bytes.len().next_multiple_of(16) as u64;
            bytes.resize(apart as usize, 0);
            bytes.extend(&other_tables.bytes);
            let to = PlacedPlan {
                tables_at: TABLES + apart,
                ..to
            };
            match row.what {
                What::Copy => {
                    let transfer = Transfer::new(from, to, all)?;
                    let width = transfer.width;
                    let (kernel, argument) = match &transfer.argument {
                        TransferArgument::Layouts(a) => {
                            (format!("osier_copy_w{width}"), bytes_of(a).to_vec())
                        }
                        TransferArgument::Transposed(a) => {
                            (format!("osier_transpose_w{width}"), bytes_of(a).to_vec())
                        }
                        TransferArgument::Periods(a) => {
                            ("osier_copy_periods".to_owned(), bytes_of(a).to_vec())
                        }
                    };
                    Ready {
                        kernel,
                        width,
                        blocks: transfer.blocks,
                        argument,
                        tables: bytes,
                        tables_at: TABLES,
                        traffic: 1.0,
                    }
                }
                _ => {
                    let (operator, element) = (osier_datatype::Operator::Sum, row.element());
                    let reduction = Reduction::new(operator, element, from, to, all).unwrap()?;
                    Ready {
                        kernel: reduction.kernel.to_owned(),
                        width: element.size(),
                        blocks: reduction.blocks,
                        argument: bytes_of(&reduction.argument).to_vec(),
                        tables: bytes,
                        tables_at: TABLES,
                        // Two reads and a write.
                        traffic: 1.5,
                    }
                }
            }
        }
    };
    Some((ready, plan))
}

/// What the sampled warps of a launch did.
struct Found {
    counts: Counts,
    /// Payload.
    bytes: u64,
    traffic: f64,
}

/// What is looked at when warps have run.
#[derive(Clone, Copy)]
enum Check<'a> {
    Nothing,
    /// All packed bytes that were written.
    Packed(&'a Plan),
    /// Sums of doubles in two layouts that are the same.
    Sums,
}

fn run(code: &Code, ready: &Ready, check: Check<'_>, odd: u64) -> Result<Found, String> {
    let (module, entry) = code.find(&ready.kernel);
    let grid = ready.blocks.min(BLOCKS);
    let mut launch = warp::Launch::new(THREADS, grid as u32, &ready.argument);
    launch.jumps = module.jumps.get(&ready.kernel).cloned().unwrap_or_default();
    let mut memory = Endless {
        tables: &ready.tables,
        tables_at: ready.tables_at,
        written: (!matches!(check, Check::Nothing)).then(HashMap::new),
        bytes: 0,
    };
    let mut all = Counts::default();
    for sample in 0..SAMPLES {
        launch.block = (sample * grid / SAMPLES) as u32;
        let number = (sample * 3 % 8) as u32;
        let mut warps = vec![Warp::new(entry, number)];
        let mut stop = warps[0].run(module, &mut launch, &mut memory, MOST)?;
        if stop == Stop::Barrier {
            // All warps of the block, from barrier to barrier.
            let others = (0..THREADS / 32).filter(|&other| other != number);
            for other in others {
                let mut warp = Warp::new(entry, other);
                warp.run(module, &mut launch, &mut memory, MOST)?;
                warps.push(warp);
            }
            while stop == Stop::Barrier {
                for warp in &mut warps {
                    stop = warp.run(module, &mut launch, &mut memory, MOST)?;
                }
            }
        }
        for warp in warps {
            all.issued += warp.counts.issued;
            all.loads = all.loads.max(warp.counts.loads);
            for (place, n) in warp.counts.by_place {
                *all.by_place.entry(place).or_default() += n;
            }
        }
    }
    let written = memory.written.take().unwrap_or_default();
    if written.is_empty() && !matches!(check, Check::Nothing) {
        return Err("nothing was written".into());
    }
    match check {
        Check::Nothing => {}
        Check::Packed(plan) => check_packed(plan, &written, odd)?,
        Check::Sums => check_sums(&written)?,
    }
    Ok(Found {
        counts: all,
        bytes: memory.bytes,
        traffic: ready.traffic,
    })
}

fn check_packed(plan: &Plan, written: &HashMap<u64, u8>, odd: u64) -> Result<(), String> {
    let tables = Tables::new(plan);
    for (at, value) in written.iter().take(20_000) {
        let number = at.wrapping_sub(PACKED + odd);
        if number >= plan.bytes {
            return Err(format!("writes beside the packed bytes, at {number}"));
        }
        let from = ORIGIN.wrapping_add_signed(plan.offset(&tables, number));
        if memory::byte(from) != *value {
            return Err(format!("packed byte {number} is not that of the layout"));
        }
    }
    Ok(())
}

fn check_sums(written: &HashMap<u64, u8>) -> Result<(), String> {
    let double = |at: u64| f64::from_ne_bytes(std::array::from_fn(|k| memory::byte(at + k as u64)));
    for (at, value) in written.iter().take(20_000) {
        let element = at & !7;
        let (left, right) = (double(element), double(element - OTHER + ORIGIN));
        if (left + right).to_ne_bytes()[(at - element) as usize] != *value {
            return Err(format!("no sum at {at:#x}"));
        }
    }
    Ok(())
}

impl Found {
    fn bytes_per_instruction(&self) -> f64 {
        self.bytes as f64 / self.counts.issued as f64
    }

    fn share(&self, copy: f64) -> f64 {
        (ISSUED_PER_SECOND * self.bytes_per_instruction() * self.traffic / copy).min(1.0)
    }
}

/// Instructions by place, for those who work on a kernel.
fn print_profile(code: &Code, ready: &Ready, found: &Found) {
    let (module, _) = code.find(&ready.kernel);
    let mut places: Vec<_> = found.counts.by_place.iter().collect();
    places.sort();
    for (place, n) in places {
        println!("{n:>8}  {place:>5}  {}", module.code[*place].text);
    }
}

/// One line of the table.
fn line(code: &Code, row: &Row) -> Option<String> {
    let (ready, plan) = prepare(row)?;
    let doubles = row.element() == Element::Basic(Basic::F64);
    let check = match row.what {
        What::Pack => Check::Packed(&plan),
        What::Reduce if doubles && row.odd == 0 => Check::Sums,
        _ => Check::Nothing,
    };
    let found = run(code, &ready, check, row.odd);
    let found = match found {
        Ok(found) => found,
        Err(why) => {
            println!("{} by {}: {why}", row.name, ready.kernel);
            return None;
        }
    };
    if asked::text("case").is_some_and(|case| case == row.name) {
        print_profile(code, &ready, &found);
    }
    let (registers, spills) = code.told.get(&ready.kernel).copied().unwrap_or_default();
    let name = ready.kernel.strip_prefix("osier_").unwrap_or(&ready.kernel);
    let words = 32.0 * ready.width as f64;
    Some(format!(
        "{:<20} {name:<21} {registers:>3} {spills:>2} {:>6.1} {:>2} {:>6.2} {:>4.2} {:>4.2} {:>8}",
        row.name,
        words / found.bytes_per_instruction(),
        found.counts.loads,
        found.bytes_per_instruction(),
        found.share(H200),
        found.share(H100),
        ready.tables.len(),
    ))
}

const HEAD: &str = "\
shape                kernel                reg sp  instr ld B/inst H200 H100    lists
-------------------- --------------------- --- -- ------ -- ------ ---- ---- --------
";

/// Random types of `osier bench pack`, of which each is a share.
fn random_lines(code: &Code, trees: u64) -> String {
    let mut shares: Vec<(f64, f64, String)> = Vec::new();
    for seed in 0..trees {
        let row = shapes::random(seed);
        let Some((ready, plan)) = prepare(&row) else {
            shares.push((1.0, 1.0, "copy".into()));
            continue;
        };
        let check = match seed.is_multiple_of(16) {
            true => Check::Packed(&plan),
            false => Check::Nothing,
        };
        let found = run(code, &ready, check, 0)
            .unwrap_or_else(|why| panic!("random type {seed} by {}: {why}", ready.kernel));
        shares.push((found.share(H200), found.share(H100), ready.kernel));
        if asked::text("case").is_some_and(|case| case == "random") {
            let (h200, _, kernel) = &shares[shares.len() - 1];
            println!(
                "{seed:>4} {h200:.2} {kernel} tables {} dims {} core {} bytes",
                ready.tables.len(),
                plan.dimensions.len(),
                plan.core_bytes
            );
        }
    }
    let mut out = String::new();
    for (name, which) in [("H200", 0), ("H100", 1)] {
        let mut all: Vec<f64> = shares
            .iter()
            .map(|s| if which == 0 { s.0 } else { s.1 })
            .collect();
        all.sort_by(f64::total_cmp);
        let at = |percent: usize| all[(all.len() - 1) * percent / 100];
        let _ = writeln!(
            out,
            "random types, {name}: {:.2} at the median, {:.2} at the 5th percentile, {:.2} least",
            at(50),
            at(5),
            all[0]
        );
    }
    let mut kernels: HashMap<String, (usize, f64)> = HashMap::new();
    for (share, _, kernel) in &shares {
        let stem = kernel.trim_start_matches("osier_pack_").to_owned();
        let entry = kernels.entry(stem).or_insert((0, 1.0));
        *entry = (entry.0 + 1, entry.1.min(*share));
    }
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by(|a, b| a.0.cmp(&b.0));
    for (kernel, (n, least)) in kernels {
        let _ = writeln!(out, "  {n:>3} by {kernel}, the least {least:.2}");
    }
    out
}

/// Random types that are run.
const TREES: u64 = 400;

/// The table, from the code in the folder `sass` of `OSIER_TEST`; written beside it as
/// `table`.
#[test]
#[ignore = "cargo xtask kernels --inspect"]
fn table() {
    let folder = PathBuf::from(asked::text("sass").expect("OSIER_TEST=sass=FOLDER"));
    let code = Code::read(&folder);
    let mut out = HEAD.to_owned();
    let only = asked::text("case");
    for row in shapes::rows() {
        if only.as_ref().is_some_and(|only| *only != row.name) {
            continue;
        }
        if let Some(line) = line(&code, &row) {
            println!("{line}");
            out += &line;
            out.push('\n');
        }
    }
    let trees = asked::number("trees").unwrap_or(TREES);
    if trees > 0 {
        let lines = random_lines(&code, trees);
        print!("{lines}");
        out.push('\n');
        out += &lines;
    }
    std::fs::write(folder.join("table"), out).unwrap();
}
