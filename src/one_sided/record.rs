//! What all ranks know of each other's parts.
//!
//! Where all ranks map each other's memory, as on one machine, records are in a table in memory of
//! rank 0, which the others read when they first use a part. Elsewhere each rank has all of them.
//!
//! ```text
//! record of a rank, 80 bytes
//! byte 0     24         48        56     64              68        69    70      71
//!      data  sync block address   unit   holder          by lock   made  on a    mapped
//!      key   key        (u64)     (u64)  of data (u32)                   device
//! ```
//!
//! # Invariants
//! 1. A table is written before others learn where it is, and by nobody then. It is there until
//!    all ranks have given the window back.

use super::memory::Held;
use crate::comm::Communicator;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::{Path, Place, sync_bytes};
use osier_transports::RegionKey;

/// What the others know of a rank's part.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub data: RegionKey,
    pub sync: RegionKey,
    pub address: u64,
    pub unit: u64,
    /// The rank whose memory the part lies in.
    pub holder: u32,
    pub by_lock: bool,
    pub on_device: bool,
    /// All ranks reach its sync block by address.
    pub mapped: bool,
}

impl Record {
    const BYTES: usize = 80;
    const KEY: usize = RegionKey::WIRE_BYTES;

    /// `None`: the rank has not made its part.
    fn to_wire(record: Option<&Record>) -> [u8; Self::BYTES] {
        let mut w = [0; Self::BYTES];
        let Some(record) = record else {
            return w;
        };
        w[..Self::KEY].copy_from_slice(&record.data.to_wire());
        w[Self::KEY..2 * Self::KEY].copy_from_slice(&record.sync.to_wire());
        w[48..56].copy_from_slice(&record.address.to_le_bytes());
        w[56..64].copy_from_slice(&record.unit.to_le_bytes());
        w[64..68].copy_from_slice(&record.holder.to_le_bytes());
        w[68] = record.by_lock.into();
        w[69] = 1;
        w[70] = record.on_device.into();
        w[71] = record.mapped.into();
        w
    }

    /// `None`: the rank has not made its part, or these are no bytes of a record.
    fn from_wire(w: &[u8], ranks: usize) -> Option<Record> {
        let (data, rest) = w.split_at_checked(Self::KEY)?;
        let (sync, rest) = rest.split_at_checked(Self::KEY)?;
        let (address, rest) = rest.split_first_chunk::<8>()?;
        let (unit, rest) = rest.split_first_chunk::<8>()?;
        let (holder, rest) = rest.split_first_chunk::<4>()?;
        let &[by_lock, 1, on_device, mapped, ..] = rest else {
            return None;
        };
        let (data, sync) = (RegionKey::from_wire(data)?, RegionKey::from_wire(sync)?);
        let holder = u32::from_le_bytes(*holder);
        if sync.bytes != sync_bytes(&data) as u64 || holder as usize >= ranks {
            return None;
        }
        Some(Record {
            data,
            sync,
            address: u64::from_le_bytes(*address),
            unit: u64::from_le_bytes(*unit),
            holder,
            by_lock: by_lock != 0,
            on_device: on_device != 0,
            mapped: mapped != 0,
        })
    }
}

/// Whether all ranks use memory by address that this one has exported.
pub(super) fn is_reached_by_all(comm: &Communicator, key: &RegionKey) -> bool {
    let lane = comm.lane().lock();
    let mut ranks = 0..comm.size() as u32;
    ranks.all(|rank| lane.is_reached_by_address(rank, key))
}

/// What all ranks know of their parts; an error, if one could not make its part.
pub(super) fn exchange(comm: &Communicator, record: Option<&Record>) -> Result<Vec<Record>> {
    let mut all = vec![0u8; Record::BYTES * comm.size()];
    comm.allgather(&Record::to_wire(record), &mut all)?;
    let records = all.chunks_exact(Record::BYTES).enumerate();
    let parse = |(rank, wire): (usize, &[u8])| {
        Record::from_wire(wire, comm.size()).ok_or_else(|| {
            let message = format!("rank {rank} could not make its part of a window");
            Error::new(ErrorKind::Unavailable, message)
        })
    };
    records.map(parse).collect()
}

/// What is known of the parts of all ranks.
pub(super) enum Records {
    /// This rank has all.
    Own(Box<[Record]>),
    /// A table in memory that is reached by address.
    Table { at: *const u8, ranks: usize },
}

// SAFETY: invariant 1: an address that is tied to no thread.
unsafe impl Send for Records {}
// SAFETY: invariant 1: nobody writes it any more.
unsafe impl Sync for Records {}

impl Records {
    /// Number of ranks.
    pub fn len(&self) -> usize {
        match self {
            Records::Own(records) => records.len(),
            Records::Table { ranks, .. } => *ranks,
        }
    }

    /// The record of a rank.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`]: there is no such rank; of kind [`ErrorKind::Malformed`]: rank 0
    /// has overwritten its table.
    pub fn get(&self, rank: usize) -> Result<Record> {
        if rank >= self.len() {
            let message = format!("rank {rank} of a window of {}", self.len());
            return Err(Error::new(ErrorKind::Rank, message));
        }
        match self {
            Records::Own(records) => Ok(records[rank]),
            Records::Table { at, .. } => {
                let at = at.wrapping_add(rank * Record::BYTES);
                // SAFETY: invariant 1: one of the table's records, of bytes.
                let wire = unsafe { at.cast::<[u8; Record::BYTES]>().read() };
                Record::from_wire(&wire, self.len()).ok_or_else(|| {
                    let message =
                        format!("the record of rank {rank}'s part of a window, in rank 0");
                    Error::new(ErrorKind::Malformed, message)
                })
            }
        }
    }

    /// Keeps the records of all ranks in one table, if all map each other's memory; the
    /// memory of the table, which rank 0 keeps, with its key. Collective.
    ///
    /// # Errors
    /// A peer has failed.
    pub fn keep(
        comm: &Communicator,
        records: Vec<Record>,
    ) -> Result<(Self, Option<(Held, RegionKey)>)> {
        // All ranks have the same records.
        if !(records.iter()).all(|record| record.mapped && !record.on_device) {
            return Ok((Records::Own(records.into()), None));
        }
        let table = match comm.rank() {
            0 => Self::table(comm, &records),
            _ => None,
        };
        let mut wire = [0u8; Record::KEY];
        if let Some((_, key)) = &table {
            wire = key.to_wire();
        }
        comm.bcast(&mut wire, 0)?;
        let ranks = records.len();
        let at = match &table {
            Some((held, _)) => Some(held.at().cast_const()),
            None => RegionKey::from_wire(&wire).and_then(|key| {
                let whole = key.bytes == (ranks * Record::BYTES) as u64;
                match path_to_first(comm).place(&key) {
                    Place::At(at) if whole => Some(at.cast_const()),
                    _ => None,
                }
            }),
        };
        let kept = match at {
            Some(at) => Records::Table { at, ranks },
            // Rank 0 has no memory for it, or this rank does not reach it.
            None => Records::Own(records.into()),
        };
        Ok((kept, table))
    }

    /// A table of records in this rank's memory.
    fn table(comm: &Communicator, records: &[Record]) -> Option<(Held, RegionKey)> {
        let held = Held::zeroed(comm.core(), records.len() * Record::BYTES).ok()?;
        for (rank, record) in records.iter().enumerate() {
            let wire = Record::to_wire(Some(record));
            let to = held.at().wrapping_add(rank * Record::BYTES);
            // SAFETY: invariant 1: memory of as many records, of which nobody else knows yet.
            unsafe { to.cast::<[u8; Record::BYTES]>().write(wire) };
        }
        // SAFETY: invariant 1: it is there until all have given the window back.
        let key = unsafe { (comm.lane().lock()).export_window(held.at(), held.bytes()) }.ok()?;
        Some((held, key))
    }
}

/// The way to rank 0.
fn path_to_first(comm: &Communicator) -> Path<'_> {
    Path {
        core: comm.core(),
        lane: comm.lane(),
        own: comm.rank() as u32,
        peer: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_transports::RegionKind;

    #[test]
    fn what_is_no_record_is_refused() {
        let data = RegionKey {
            kind: RegionKind::Process,
            owner: 1,
            base: 4096,
            bytes: 64,
        };
        let sync = RegionKey {
            bytes: sync_bytes(&data) as u64,
            ..data
        };
        let record = Record {
            data,
            sync,
            address: 7,
            unit: 8,
            holder: 2,
            by_lock: true,
            on_device: false,
            mapped: true,
        };
        let wire = Record::to_wire(Some(&record));
        let read = Record::from_wire(&wire, 3).expect("a record");
        assert_eq!((read.address, read.holder, read.mapped), (7, 2, true));
        assert!(Record::from_wire(&wire, 2).is_none(), "no such holder");
        assert!(Record::from_wire(&wire[..60], 3).is_none());
        assert!(Record::from_wire(&Record::to_wire(None), 3).is_none());
        let longer = Record {
            sync: RegionKey {
                bytes: sync.bytes + 8,
                ..sync
            },
            ..record
        };
        assert!(Record::from_wire(&Record::to_wire(Some(&longer)), 3).is_none());
    }
}
