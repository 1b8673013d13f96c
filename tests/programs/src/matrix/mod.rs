//! Messages between all kinds of memory, in all layouts, on all ways: `exercise matrix
//! WAY sample`, or `exercise matrix WAY SEED`.
//!
//! The receiver's memory is compared byte by byte, gaps and edges included; so is the
//! sender's. How the bytes must have gone is known for long messages.

#[allow(dead_code, reason = "jobs are drawn by who starts them")]
pub mod cells;
mod shapes;

use crate::foreign::{self, Foreign};
use cells::{Cell, Dice, Place, Way};
use osier::buffers::HeapBuffer;
use osier::devices::{Context, DeviceSlice, DeviceView, Kind, Pinned, Stream, copy, devices};
use osier::testing::{Network, ranks_on};
use osier::{Communicator, Layout, Result, Status, View, ViewMut};
use osier_bed::devices::{DeviceTraffic, device_traffic, device_use};
use shapes::Shaped;
use std::time::Duration;

/// Bytes around what a message touches.
const EDGE: usize = 300;

/// Ranks of a job, or the two of the simulated network.
pub fn run(comm: &Communicator, what: &[&str]) {
    let [way, which] = what else {
        panic!("exercise matrix {what:?}?");
    };
    let way = Way::named(way).expect("a way");
    if way == Way::Network {
        let sim = Network::all().remove(1);
        ranks_on(&sim, 2, |comm| cells(&comm, way, which));
    } else {
        cells(comm, way, which);
    }
    super::through(comm);
}

/// A line for each way that a real driver has, for scripts: its name, the devices that it
/// needs, and the words behind `env`, which are variables and `LAUNCHER run ...`.
pub fn print_jobs(launcher: &str, program: &str) {
    for way in Way::ALL {
        let variables = way.variables();
        if variables.iter().any(|(name, _)| name.contains("EMULATED")) {
            continue;
        }
        let variables = cells::environment(variables);
        let variables = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let mut words: Vec<String> = variables.collect();
        words.extend([launcher.to_owned(), "run".to_owned()]);
        words.extend(cells::line(way, program, "sample"));
        let needs = 1 + u8::from(way.needs_two());
        println!("{} {needs} {}", way.name(), words.join(" "));
    }
}

fn cells(comm: &Communicator, way: Way, which: &str) {
    let sample = which == "sample";
    let all = match sample {
        true => cells::sample(way),
        false => cells::drawn(way, which.parse().expect("a seed")),
    };
    // What takes long, or hangs, is told: nothing was printed yet where the first context does.
    if comm.rank() == 0 {
        println!("{}: {} cells", way.name(), all.len());
    }
    let device = Device::of(comm, way);
    for (at, cell) in all.iter().enumerate() {
        // Where it hangs, if it does.
        if comm.rank() == cell.sender {
            println!("{at}: {cell}");
        }
        let before = device_traffic(comm);
        play(comm, &device, cell, !sample);
        if sample {
            check_way(comm, cell, before);
        }
    }
    comm.barrier().expect("a barrier");
    let left = device_use(comm);
    assert_eq!(left, Default::default(), "{} leaves something", way.name());
}

/// A rank's device, by turns.
struct Device {
    way: Way,
    context: Context,
    stream: Stream,
}

/// A rank's memory.
enum Memory {
    Host(Vec<u8>),
    Heap(HeapBuffer<u8>),
    Device(DeviceSlice<u8>),
}

impl Device {
    fn of(comm: &Communicator, way: Way) -> Device {
        let number = devices().expect("devices").len().min(way.gpus());
        let ordinal = i32::try_from(comm.rank() % number).expect("few devices");
        let context = Context::new(ordinal).expect("a context");
        let stream = Stream::new(&context).expect("a stream");
        Device {
            way,
            context,
            stream,
        }
    }

    fn with(&self, comm: &Communicator, place: Place, bytes: &[u8]) -> Memory {
        let kind = match place {
            Place::Host => return Memory::Host(bytes.to_vec()),
            Place::Heap => {
                // Without shared memory there is none for slots, but for rings.
                if self.way == Way::Unshared {
                    return Memory::Host(bytes.to_vec());
                }
                let mut heap = comm.alloc::<u8>(bytes.len()).expect("memory");
                heap.copy_from_slice(bytes);
                return Memory::Heap(heap);
            }
            Place::Pinned => {
                let pinned = Pinned::from_slice(&self.context, bytes).expect("pinned");
                return Memory::Device(pinned.on_device(&self.stream).into_inner());
            }
            Place::Managed => Kind::Managed,
            Place::Plain => Kind::Plain,
            Place::Pool => Kind::Pool,
            Place::SharedPool => Kind::SharedPool,
            Place::Mapped => Kind::Mapped,
            Place::OthersPlain => return self.others(Foreign::Plain, bytes),
            Place::OthersShared => return self.others(Foreign::Exportable, bytes),
            Place::OthersPool => return self.others(Foreign::Pool, bytes),
            Place::Unexported => return self.others(Foreign::Mapped, bytes),
        };
        let slice = DeviceSlice::<u8>::with_kind(&self.stream, kind, bytes.len());
        self.filled(slice.expect("memory").into_inner(), bytes)
    }

    /// Another library's memory.
    fn others(&self, how: Foreign, bytes: &[u8]) -> Memory {
        self.filled(foreign::memory(&self.context, how, bytes.len()), bytes)
    }

    fn filled(&self, slice: DeviceSlice<u8>, bytes: &[u8]) -> Memory {
        let staged = Pinned::from_slice(&self.context, bytes).expect("pinned");
        let (from, to) = (
            staged.on_device(&self.stream),
            slice.after_stream(&self.stream),
        );
        copy::copy(&self.stream, &from, &to).expect("a copy");
        Memory::Device(slice)
    }

    fn bytes(&self, memory: &Memory) -> Vec<u8> {
        let slice = match memory {
            Memory::Host(bytes) => return bytes.clone(),
            Memory::Heap(heap) => return heap.to_vec(),
            Memory::Device(slice) => slice,
        };
        let mut back = Pinned::from_slice(&self.context, &vec![0; slice.len()]).expect("pinned");
        copy::copy(
            &self.stream,
            &slice.after_stream(&self.stream),
            &back.on_device(&self.stream),
        )
        .expect("a copy");
        back.host().expect("nobody else").to_vec()
    }

    /// Sends, and tells the peer afterwards that it has begun, or before waits to be told.
    fn send(&self, comm: &Communicator, cell: &Cell, from: &Memory, what: &Shaped) -> Result<()> {
        let peer = 1 - cell.sender;
        if cell.expected {
            comm.recv(&mut [0u8], peer, 2)?;
        }
        let layout = &what.layout;
        let host = |bytes: &[u8]| {
            let view = View::new(bytes, EDGE + what.origin, layout, 1)?;
            comm.scope(|s| {
                let request = s.isend(&view, peer, 1)?;
                if !cell.expected {
                    comm.send(&[0u8], peer, 2)?;
                }
                request.wait()
            })
        };
        match from {
            Memory::Host(bytes) => host(bytes),
            Memory::Heap(heap) => host(heap),
            Memory::Device(slice) => {
                let view = DeviceView::new(slice, EDGE + what.origin, layout, 1)?;
                let view = view.after_stream(&self.stream);
                comm.scope(|s| {
                    let request = s.isend(&view, peer, 1)?;
                    if !cell.expected {
                        comm.send(&[0u8], peer, 2)?;
                    }
                    request.wait()
                })
            }
        }
        .map(drop)
    }

    fn receive(
        &self,
        comm: &Communicator,
        cell: &Cell,
        to: &mut Memory,
        what: &Shaped,
    ) -> Result<Status> {
        let peer = cell.sender;
        if !cell.expected {
            comm.recv(&mut [0u8], peer, 2)?;
        }
        let layout = &what.layout;
        let host = |bytes: &mut [u8]| {
            let mut view = ViewMut::new(bytes, EDGE + what.origin, layout, 1)?;
            comm.scope(|s| {
                let request = s.irecv(&mut view, peer, 1)?;
                if cell.expected {
                    comm.send(&[0u8], peer, 2)?;
                }
                request.wait()
            })
        };
        match to {
            Memory::Host(bytes) => host(bytes),
            Memory::Heap(heap) => host(heap),
            Memory::Device(slice) => {
                let view = DeviceView::new(slice, EDGE + what.origin, layout, 1)?;
                let mut view = view.after_stream(&self.stream);
                comm.scope(|s| {
                    let request = s.irecv(&mut view, peer, 1)?;
                    if cell.expected {
                        comm.send(&[0u8], peer, 2)?;
                    }
                    request.wait()
                })
            }
        }
    }
}

/// Bytes of a memory before a message.
fn contents(room: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let words = (0..room.div_ceil(8)).flat_map(|_| dice.draw().to_le_bytes());
    let mut all: Vec<u8> = words.collect();
    all.truncate(room);
    all
}

/// One message; ranks may be late.
fn play(comm: &Communicator, device: &Device, cell: &Cell, delays: bool) {
    let me = comm.rank();
    let sent = shapes::shaped(cell.sent, cell.bytes, cell.seed);
    let received = shapes::shaped(cell.received, cell.bytes, cell.seed + 1);
    let source = contents(sent.room + 2 * EDGE, 2 * cell.seed);
    let before = contents(received.room + 2 * EDGE, 2 * cell.seed + 1);
    let mut dice = Dice::new(cell.seed ^ (me as u64 + 1) << 40);
    if delays && dice.below(3) == 0 {
        std::thread::sleep(Duration::from_micros(dice.draw() % 400));
    }
    if me == cell.sender {
        let memory = device.with(comm, cell.from, &source);
        let done = device.send(comm, cell, &memory, &sent);
        done.unwrap_or_else(|e| panic!("{cell}: {e}"));
        assert!(device.bytes(&memory) == source, "{cell}: what was sent");
        return;
    }
    let mut memory = device.with(comm, cell.to, &before);
    let done = device.receive(comm, cell, &mut memory, &received);
    let status = done.unwrap_or_else(|e| panic!("{cell}: {e}"));
    assert_eq!(status.bytes(), cell.bytes, "{cell}");
    let right = expected((&sent, &source), (&received, before));
    let found = device.bytes(&memory);
    if let Some(at) = (0..right.len()).find(|at| found[*at] != right[*at]) {
        let wrong = (0..right.len()).filter(|at| found[*at] != right[*at]);
        panic!(
            "{cell}: {} of {} bytes differ, the first at {at}",
            wrong.count(),
            right.len()
        );
    }
}

/// What lies there after a message.
fn expected((sent, source): (&Shaped, &[u8]), (received, mut all): (&Shaped, Vec<u8>)) -> Vec<u8> {
    let bytes = sent.layout.size();
    let mut packed = vec![0; bytes];
    let at = |what: &Shaped| EDGE + what.origin;
    let layout: &Layout = &sent.layout;
    let done = layout.pack(source, at(sent), 1, 0..bytes, &mut packed);
    done.expect("pack");
    let unpacked = received
        .layout
        .unpack(&mut all, at(received), 1, 0..bytes, &packed);
    unpacked.expect("unpack");
    all
}

/// Whether the two devices of a job are one, or reach each other.
fn linked() -> bool {
    let all = devices().expect("devices");
    all.len() < 2 || all[0].peers.contains(&1)
}

/// How a long message must have gone, by the counters of both ranks.
fn check_way(comm: &Communicator, cell: &Cell, before: DeviceTraffic) {
    let now = device_traffic(comm);
    let did = [
        now.kernels - before.kernels,
        now.handed - before.handed,
        now.copied - before.copied,
        now.device_slots - before.device_slots,
    ];
    if cell.bytes < cells::MANY {
        return;
    }
    let (sends, bytes) = (comm.rank() == cell.sender, cell.bytes as u64);
    let devices = cell.from.on_device() && cell.to.on_device();
    let (reads, writes) = (cell.from.is_opened(), cell.to.is_opened());
    // By every device, linked or not.
    let by_all = |place| matches!(place, Place::Pinned | Place::Managed);
    // One kernel, or slots on the device.
    let right = match cell.way {
        _ if !devices => None,
        Way::Threads => Some([u64::from(!sends), 0, 0, 0]),
        // The counters are of the receiver, whose rank queues the kernel whichever
        // device's it is.
        Way::ThreadsApart if linked() || by_all(cell.from) || by_all(cell.to) => {
            Some([u64::from(!sends), 0, 0, 0])
        }
        // There may be no room for another.
        Way::Bounded if reads || writes => return,
        Way::Device | Way::Linked if reads => Some([u64::from(!sends), 0, 0, 0]),
        Way::Device | Way::Linked if writes => Some([u64::from(sends), 0, 0, 0]),
        Way::Device | Way::Linked | Way::Bounded | Way::Pipelined => {
            assert_eq!(did[3] > 0, sends, "{cell}: {did:?}");
            Some([0, 0, 0, did[3]])
        }
        _ => None,
    };
    if let Some(right) = right {
        assert_eq!(did, right, "{cell}");
        return;
    }
    assert_eq!((did[0], did[3]), (0, 0), "{cell}: {did:?}");
    // Slots are handed over; the host end copies, once.
    let hands_over = !matches!(cell.way, Way::Unregistered | Way::Unshared | Way::Network);
    if hands_over {
        let end = if sends { cell.from } else { cell.to };
        assert_eq!(did[1] > 0, sends, "{cell}: {did:?}");
        assert_eq!(did[2], if end.on_device() { 0 } else { bytes }, "{cell}");
    }
}
