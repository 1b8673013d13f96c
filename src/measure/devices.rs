//! Costs of collective calls whose buffers lie on devices: measured between ranks of a job,
//! or estimated from the costs of messages of a device.
//!
//! A message between the memory of two ranks' devices costs as one of the host's: from its
//! send to the end of its receive, and the time for which either end is busy with it. Copies and
//! combinations are kernels, and data to and from the host crosses the device's link.
//!
//! ```text
//! A(m)   alternating broadcasts, each on the device: one way(m) = A(m) - r - 2 s
//! G(m)   broadcasts of the same rank: busy(m) = G(m) - r - s, at most one way(m)
//! ```
//!
//! `r` and `s` are the costs of a run and a step on the host ([`super::rounds`]): the executor
//! is the same. An emulated device is measured alike, so that tests can choose by its
//! costs; they are marked, are used by jobs on emulated devices alone, and are no figures of
//! a GPU.

use super::rounds::median;
use crate::coll::IN_PLACE;
use crate::comm::Communicator;
use crate::model::calls::{CallCosts, MessageCost, WorkCost, rise, round};
use crate::model::devices::{DeviceCalls, LOGS};
use osier_collectives::Algorithm;
use osier_datatype::{Basic, Operator, Type};
use osier_engine::error::Result;
use osier_kernels::{Context, DeviceInfo, DeviceSlice, DeviceView, Memory, Packer, Stream};
use std::time::Instant;

/// Largest size on an emulated device.
const MOST_EMULATED: u32 = 18;
/// Measurements of each kernel; the shortest counts.
const TIMES: usize = 8;

/// A device under measurement.
pub(super) struct Lab {
    name: String,
    emulated: bool,
    stream: Stream,
    packer: Packer,
    buffer: DeviceSlice<u8>,
    other: DeviceSlice<u8>,
    pinned: DeviceSlice<u8>,
}

/// A rank's device, which nobody has opened: a context takes the driver a good part of a
/// second, one after the other where many ranks share a device.
pub(super) struct Here(DeviceInfo);

impl Here {
    /// The devices of all ranks, or of none if a rank has no device. Collective.
    ///
    /// # Errors
    /// If a rank dies.
    pub(super) fn on_all(comm: &Communicator) -> Result<Option<Here>> {
        let mine = Here::of(comm.rank());
        let mut all = [u32::from(mine.is_some())];
        comm.allreduce(&IN_PLACE, &mut all, crate::Op::Min)?;
        Ok(mine.filter(|_| all[0] == 1))
    }

    fn of(rank: usize) -> Option<Here> {
        let mut all = osier_kernels::devices().ok()?;
        match all.len() {
            0 => None,
            n => Some(Here(all.swap_remove(rank % n))),
        }
    }

    /// The device's number.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// Opens it; none if the driver refuses.
    pub fn open(&self) -> Option<Lab> {
        let info = &self.0;
        let emulated = info.name.to_lowercase().contains("emulated");
        let context = Context::new(info.ordinal).ok()?;
        let stream = Stream::new(&context).ok()?;
        let most = 1usize << logs(emulated).last()?;
        let room = || Some(DeviceSlice::<u8>::new(&stream, most).ok()?.into_inner());
        Some(Lab {
            name: info.name.clone(),
            emulated,
            packer: Packer::new(&context),
            buffer: room()?,
            other: room()?,
            pinned: DeviceSlice::of(Memory::pinned(&context, most).ok()?).ok()?,
            stream,
        })
    }
}

impl Lab {
    /// Costs of kernels and copies of this device. No class of links yet.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn works(&self) -> Result<DeviceCalls> {
        let [mut copy, mut combine, mut to_host, mut to_device] = [const { Vec::new() }; 4];
        let double = Type::basic(Basic::F64).commit()?;
        for log in logs(self.emulated) {
            let bytes = 1usize << log;
            let doubles = |from: &DeviceSlice<u8>| -> Result<_> {
                Ok(DeviceView::new(from, 0, &double, bytes / 8)?.after_stream(&self.stream))
            };
            let (own, other) = (doubles(&self.buffer)?, doubles(&self.other)?);
            let pinned = doubles(&self.pinned)?;
            let (stream, packer, all) = (&self.stream, &self.packer, 0..bytes);
            let add = |works: &mut Vec<WorkCost>, body: &dyn Fn() -> Result<()>| -> Result<()> {
                let before = works.last().map_or(0.1, |w: &WorkCost| w.ns);
                let mut ns = f64::INFINITY;
                for _ in 0..TIMES {
                    let start = Instant::now();
                    body()?;
                    ns = ns.min(start.elapsed().as_nanos() as f64);
                }
                works.push(WorkCost {
                    bytes: bytes as u64,
                    ns: round(ns).max(before),
                });
                Ok(())
            };
            let moved = |from: &osier_kernels::Ordered<DeviceView<u8>>,
                         to: &osier_kernels::Ordered<DeviceView<u8>>| {
                seen(&packer.copy(stream, from, to, all.clone(), None)?)
            };
            add(&mut copy, &|| moved(&own, &other))?;
            add(&mut to_host, &|| moved(&own, &pinned))?;
            add(&mut to_device, &|| moved(&pinned, &own))?;
            add(&mut combine, &|| {
                let sum = Operator::Sum;
                seen(&packer.combine(stream, sum, &own, &other, all.clone(), None)?)
            })?;
        }
        Ok(DeviceCalls {
            device: self.name.clone(),
            emulated: self.emulated,
            classes: Vec::new(),
            copy,
            combine,
            to_host,
            to_device,
        })
    }

    /// Messages between a pair of ranks; `table`: costs of a run and a step.
    ///
    /// # Errors
    /// If a rank dies.
    pub fn messages(&self, pair: &Communicator, table: &CallCosts) -> Result<Vec<MessageCost>> {
        let mut messages = Vec::new();
        let (run, step) = (table.run_ns, table.step_ns);
        pair.use_algorithm_on_devices(Algorithm::Linear, 1, true);
        for log in logs(self.emulated) {
            let bytes = 1usize << log;
            let part = self.buffer.slice(..bytes)?;
            let mut data = part.after_stream(&self.stream);
            let turns = median(pair, false, |i| pair.bcast(&mut data, i % 2))?;
            let stream = median(pair, true, |_| pair.bcast(&mut data, 0))?;
            let one_way_ns = (turns - run - 2.0 * step).max(turns / 10.0);
            messages.push(MessageCost {
                bytes: bytes as u64,
                one_way_ns,
                busy_ns: (stream - run - step).clamp(one_way_ns / 20.0, one_way_ns),
            });
        }
        pair.use_algorithm(None);
        rise(&mut messages);
        Ok(messages)
    }
}

fn logs(emulated: bool) -> impl Iterator<Item = u32> + Clone {
    let most = if emulated { MOST_EMULATED } else { u32::MAX };
    LOGS.into_iter().filter(move |log| *log <= most)
}

/// Polls, as the engine does.
fn seen(event: &osier_kernels::Event) -> Result<()> {
    while !event.is_passed()? {
        std::hint::spin_loop();
    }
    Ok(())
}
