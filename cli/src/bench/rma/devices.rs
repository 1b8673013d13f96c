//! Accesses to windows on devices, beside messages of the same layout between them.

use osier::devices::DeviceView;
use osier::{Communicator, Layout, Op};
use osier_datatype_corpus::shapes::Shape;

use super::super::gpu::{self, Gpu};
use super::super::{Failure, Memory, Result};
use super::{Column, REPETITIONS, Row, Spread, TARGET, Table, each, heading};

const LAYOUTS: [&str; 4] = ["contiguous", "vector:8:16", "vector:64:128", "triangle"];
const SIZES: [usize; 3] = [8, 64 << 10, 4 << 20];
/// Accesses of a repetition, if `--iterations` does not say otherwise.
const EACH: u64 = 20;

/// What is moved, and its name.
struct Moved {
    name: String,
    layout: Layout,
    count: usize,
}

/// Layouts of several sizes, where all ranks have a device. Collective.
pub fn layouts(table: &mut Table<'_>, comm: &Communicator) -> Result<()> {
    let Some(gpu) = gpu_of_all(comm)? else {
        return Ok(());
    };
    begin(comm, &gpu);
    for name in LAYOUTS {
        for bytes in SIZES {
            let moved = Moved {
                name: name.into(),
                layout: Spread::of(name, bytes)?.layout,
                count: 1,
            };
            measure(table, comm, &gpu, &moved)?;
        }
    }
    Ok(())
}

/// Shapes of the corpus that can be received. Collective.
///
/// # Errors
/// A rank has no device.
pub fn shapes(table: &mut Table<'_>, comm: &Communicator, shapes: &[Shape]) -> Result<()> {
    let Some(gpu) = gpu_of_all(comm)? else {
        return Err(Failure::failed(
            "--shapes of rma are moved between devices, and a rank has none (hint: osier run \
             --emulate-gpus 1 has an emulated one)",
        ));
    };
    begin(comm, &gpu);
    for shape in shapes.iter().filter(|shape| !shape.overlaps) {
        let layout = shape.datatype.commit();
        let layout = layout.map_err(|e| Failure::failed(format!("{}: {e}", shape.name)))?;
        let moved = Moved {
            name: shape.name.clone(),
            layout,
            count: shape.count,
        };
        measure(table, comm, &gpu, &moved)?;
    }
    Ok(())
}

fn gpu_of_all(comm: &Communicator) -> Result<Option<Gpu>> {
    let own = Gpu::of(comm);
    let mut lacks = [u32::from(own.is_err())];
    comm.allreduce(&osier::IN_PLACE, &mut lacks, Op::Max)?;
    match lacks[0] {
        0 => own.map(Some),
        _ => Ok(None),
    }
}

fn begin(comm: &Communicator, gpu: &Gpu) {
    if comm.rank() == 0 {
        println!(
            "\n# windows on devices, us; ratio: put to message; {}",
            gpu.name
        );
        println!("{}", heading(["put", "get", "message", "ratio"]));
    }
}

fn measure(table: &mut Table<'_>, comm: &Communicator, gpu: &Gpu, moved: &Moved) -> Result<()> {
    let first = comm.rank() == 0;
    let (context, stream) = (gpu.stream().context().clone(), gpu.stream());
    let (layout, count) = (&moved.layout, moved.count);
    let (low, high) = layout.span(count);
    let origin = (-low).max(0).cast_unsigned();
    let span = (origin + high.max(0).cast_unsigned()).max(1);
    let window = comm.device_window::<u8>(&context, span)?;
    let buffer = gpu.allocate(Memory::Device, span)?;
    let view = || DeviceView::new(&buffer, origin, layout, count).map_err(gpu::failed);
    let accesses = table.plan.effort.iterations.unwrap_or(EACH);
    let repetitions = table.plan.effort.repetitions.unwrap_or(REPETITIONS);
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    let all = window.lock_all();
    for _ in 0..repetitions * u64::from(first) {
        let from = view()?.after_stream(stream);
        puts.push(each(accesses, || {
            all.put_as(&from, TARGET, origin, layout, count)?;
            all.flush(TARGET)
        })?);
        let mut to = view()?.after_stream(stream);
        gets.push(each(accesses, || {
            all.get_as(&mut to, TARGET, origin, layout, count)
        })?);
    }
    all.unlock()?;
    comm.barrier()?;
    let mut messages = Vec::new();
    for _ in 0..repetitions {
        let from = view()?.after_stream(stream);
        let mut to = view()?.after_stream(stream);
        let there_and_back = each(accesses, || match first {
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
    if !first {
        return Ok(());
    }
    let row = Row {
        name: "device",
        layout: moved.name.clone(),
        bytes: layout.packed_bytes(count).unwrap_or(0),
        columns: vec![
            Column::of("put", puts),
            Column::of("get", gets),
            Column::of("message", messages),
        ],
    };
    table.show(row, &gpu.name)
}
