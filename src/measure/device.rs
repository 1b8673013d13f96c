//! Measures a device: the numbers of [`DeviceCosts`].

use osier_datatype::{Basic, Layout, Type};
use osier_engine::error::{Error, Result};
use osier_engine::protocol::device::{Bar1Costs, Class, DeviceCosts};
use osier_kernels::{Context, DeviceSlice, DeviceView, Kind, Memory, Packer, Stream};
use std::time::Instant;

/// Bytes of packs that show a rate: several times the caches of any GPU.
const PACK_BYTES: usize = 256 << 20;
/// Least bytes that show one, where the device has no room for more.
const LEAST_PACK_BYTES: usize = 8 << 20;
/// Bytes of one thread block's packs, each elsewhere, so that none is found in a cache: more
/// than four times its share of one.
const BLOCK_BYTES: usize = 4 << 20;
/// Bytes of one list of blocks; it comes as often as there are bytes.
const LISTED_BYTES: usize = 4 << 20;
/// Bytes of copies over the link.
const LINK_BYTES: usize = 4 << 20;
/// Bytes of copies through a BAR1 window.
const BAR1_BYTES: usize = 4 << 10;
/// Number of repetitions; the shortest counts.
const TIMES: usize = 12;

/// Measures a device, and its link to another if it has one, in about a second on a real
/// device. It takes 768 MiB of its memory, or less, down to 24 MiB, where it has no more;
/// then rates are those of its cache.
///
/// # Errors
/// Out of memory, or the driver refuses.
pub fn measure(context: &Context) -> Result<DeviceCosts> {
    measure_with(context, 1)
}

/// As [`measure`], with a fraction of the bytes: for emulated devices.
///
/// # Errors
/// As [`measure`].
pub fn measure_with(context: &Context, part: usize) -> Result<DeviceCosts> {
    let stream = Stream::new(context)?;
    let place = |bytes| -> Result<[DeviceSlice<u8>; 2]> {
        let spread = DeviceSlice::<u8>::with_kind(&stream, Kind::Pool, 2 * bytes)?;
        let packed = DeviceSlice::<u8>::with_kind(&stream, Kind::Pool, bytes)?;
        Ok([spread.into_inner(), packed.into_inner()])
    };
    let mut bytes = PACK_BYTES / part;
    let [spread, packed] = loop {
        match place(bytes) {
            Err(_) if bytes > LEAST_PACK_BYTES / part => bytes /= 2,
            placed => break placed?,
        }
    };
    let lab = Lab {
        packer: Packer::new(context),
        spread,
        packed,
        pinned: DeviceSlice::of(Memory::pinned(context, LINK_BYTES / part)?)?,
        stream,
    };
    let block = BLOCK_BYTES / part;
    let copy_ns = lab.pack(Class::Run, 64, true, None)?;
    let launch_ns = lab.pack(Class::Strided, 256, true, None)?;
    let rate = |ns: f64, fixed: f64, bytes: usize| (ns - fixed).max(ns / 100.0) / bytes as f64;
    let one = lab.pack(Class::Strided, block, false, Some(1))?;
    let mut pack_ns_per_byte = [0.0; 3];
    for class in [Class::Run, Class::Strided, Class::Listed] {
        let fixed = if class == Class::Run {
            copy_ns
        } else {
            launch_ns
        };
        let ns = lab.pack(class, bytes, false, None)?;
        pack_ns_per_byte[class as usize] = rate(ns, fixed, bytes);
    }
    let link = LINK_BYTES / part;
    let to_host = lab.pack(Class::Run, link, true, None)?;
    let to_device = lab.unpack(Class::Run, &lab.pinned, link)?;
    let (peer, blocks) = match lab.peer(bytes)? {
        // The launch of a kernel is no cost of the link.
        Some((run, strided)) => (rate(run, copy_ns, bytes), rate(strided, launch_ns, bytes)),
        None => {
            let costs = DeviceCosts::default();
            (costs.peer_ns_per_byte, costs.peer_block_ns_per_byte)
        }
    };
    Ok(DeviceCosts {
        launch_ns,
        copy_ns,
        block_ns_per_byte: rate(one, launch_ns, block),
        pack_ns_per_byte,
        to_host_ns_per_byte: rate(to_host, copy_ns, link),
        to_device_ns_per_byte: rate(to_device, copy_ns, link),
        peer_ns_per_byte: peer,
        peer_block_ns_per_byte: blocks,
        turn_ns: DeviceCosts::default().turn_ns,
        bar1: lab.bar1()?.unwrap_or_default(),
    })
}

struct Lab {
    stream: Stream,
    packer: Packer,
    spread: DeviceSlice<u8>,
    packed: DeviceSlice<u8>,
    pinned: DeviceSlice<u8>,
}

impl Lab {
    /// A message of this many bytes, in blocks of 64 with equal gaps: a layout, and how often
    /// it comes.
    fn message(class: Class, bytes: usize) -> Result<(Layout, usize)> {
        let byte = Type::basic(Basic::U8);
        let times = match class {
            Class::Run | Class::Strided => 1,
            Class::Listed => (bytes / LISTED_BYTES).max(1),
        };
        let count = bytes / times / 64;
        let ty = match class {
            Class::Run => Type::contiguous(bytes, &byte)?,
            Class::Strided => Type::vector(count, 64, 128, &byte)?,
            Class::Listed => {
                // Three blocks of four lie at the distance, the fourth does not.
                let blocks: Vec<_> = (0..count)
                    .map(|i| (64, (i * 128 + usize::from(i % 4 == 3) * 32).cast_signed()))
                    .collect();
                Type::resized(
                    0,
                    (128 * count).cast_signed(),
                    &Type::indexed(&blocks, &byte)?,
                )?
            }
        };
        Ok((ty.commit()?, times))
    }

    /// A message where there is room for it, elsewhere at each turn.
    fn view(
        &self,
        (layout, times): &(Layout, usize),
        bytes: usize,
        turn: usize,
    ) -> Result<DeviceView<u8>> {
        let at = 2 * bytes * (turn % (self.spread.len() / (2 * bytes)).max(1));
        let spread = self.spread.slice(at..)?;
        Ok(DeviceView::new(&spread, 0, layout, *times)?)
    }

    /// Shortest time of a pack, in ns, until its end is seen.
    fn pack(&self, class: Class, bytes: usize, to_host: bool, blocks: Option<u32>) -> Result<f64> {
        let room = if to_host { &self.pinned } else { &self.packed };
        let message = Lab::message(class, bytes)?;
        self.shortest(
            |turn| {
                let at = bytes * (turn % (room.len() / bytes).max(1));
                let room = room.slice(at..at + bytes)?;
                Ok((self.view(&message, bytes, turn)?, room))
            },
            |(view, room)| {
                let (view, room) = (
                    view.clone().after_stream(&self.stream),
                    room.after_stream(&self.stream),
                );
                let event = self
                    .packer
                    .pack(&self.stream, &view, 0..bytes, &room, blocks)?;
                seen(&event)
            },
        )
    }

    fn unpack(&self, class: Class, from: &DeviceSlice<u8>, bytes: usize) -> Result<f64> {
        let packed = from.slice(..bytes)?.after_stream(&self.stream);
        let message = Lab::message(class, bytes)?;
        self.shortest(
            |turn| self.view(&message, bytes, turn),
            |view| {
                let view = view.clone().after_stream(&self.stream);
                let event = self
                    .packer
                    .unpack(&self.stream, &packed, 0..bytes, &view, None)?;
                seen(&event)
            },
        )
    }

    /// Times of a copy, and of an unpack to blocks, from another device; none
    /// without a linked one.
    fn peer(&self, bytes: usize) -> Result<Option<(f64, f64)>> {
        let own = self.stream.context();
        let all = osier_kernels::devices()?;
        let peers = all.iter().find(|info| info.ordinal == own.ordinal());
        let Some(peer) = peers.and_then(|info| info.peers.first()) else {
            return Ok(None);
        };
        let other = Context::new(*peer)?;
        own.enable_peer(&other)?;
        let stream = Stream::new(&other)?;
        let from = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, bytes)?.into_inner();
        let run = self.unpack(Class::Run, &from, bytes)?;
        Ok(Some((run, self.unpack(Class::Strided, &from, bytes)?)))
    }

    /// Times of the processor's copies through a BAR1 window; none without one.
    fn bar1(&self) -> Result<Option<Bar1Costs>> {
        let plain = DeviceSlice::<u8>::with_kind(&self.stream, Kind::Plain, BAR1_BYTES)?;
        let plain = plain.into_inner();
        let (memory, at) = (plain.memory(), plain.address());
        if !memory.has_bar1(at, BAR1_BYTES) {
            return Ok(None);
        }
        let mut bytes = vec![0; BAR1_BYTES];
        let mut time = |n: usize, writes: bool| {
            self.shortest(
                |_| Ok(()),
                |()| match writes {
                    true => Ok(memory.write_through_bar1(at, &bytes[..n])?),
                    false => Ok(memory.read_through_bar1(at, &mut bytes[..n])?),
                },
            )
        };
        let (read_ns, write_ns) = (time(8, false)?, time(8, true)?);
        let each = |ns: f64, first: f64| (ns - first).max(1.0) / BAR1_BYTES as f64;
        Ok(Some(Bar1Costs {
            read_ns,
            read_ns_per_byte: each(time(BAR1_BYTES, false)?, read_ns),
            write_ns,
            write_ns_per_byte: each(time(BAR1_BYTES, true)?, write_ns),
        }))
    }

    /// Shortest time of some work, each time on what is prepared for this turn.
    fn shortest<P>(
        &self,
        mut prepare: impl FnMut(usize) -> Result<P>,
        mut work: impl FnMut(&P) -> Result<()>,
    ) -> Result<f64> {
        // Loads kernels and builds lists.
        work(&prepare(0)?)?;
        let mut shortest = f64::INFINITY;
        for turn in 1..=TIMES {
            let prepared = prepare(turn)?;
            let since = Instant::now();
            work(&prepared)?;
            shortest = shortest.min(since.elapsed().as_nanos() as f64);
        }
        Ok(shortest.max(1.0))
    }
}

/// Polls, as the engine does.
fn seen(event: &osier_kernels::Event) -> Result<()> {
    while !event.is_passed().map_err(Error::from)? {
        std::hint::spin_loop();
    }
    Ok(())
}
