//! What all ranks know of each other's parts.
//!
//! ```text
//! record of a rank, 80 bytes
//! byte 0     24         48        56     64              68        69    70
//!      data  sync block address   unit   holder          by lock   made  on a
//!      key   key        (u64)     (u64)  of data (u32)                   device
//! ```

use crate::comm::Communicator;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::sync_bytes;
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
        w
    }

    fn from_wire(w: &[u8]) -> Option<Record> {
        let (data, rest) = w.split_at_checked(Self::KEY)?;
        let (sync, rest) = rest.split_at_checked(Self::KEY)?;
        let (address, rest) = rest.split_first_chunk::<8>()?;
        let (unit, rest) = rest.split_first_chunk::<8>()?;
        let (holder, rest) = rest.split_first_chunk::<4>()?;
        let &[by_lock, 1, on_device, ..] = rest else {
            return None;
        };
        let (data, sync) = (RegionKey::from_wire(data)?, RegionKey::from_wire(sync)?);
        if sync.bytes != sync_bytes(&data) as u64 {
            return None;
        }
        Some(Record {
            data,
            sync,
            address: u64::from_le_bytes(*address),
            unit: u64::from_le_bytes(*unit),
            holder: u32::from_le_bytes(*holder),
            by_lock: by_lock != 0,
            on_device: on_device != 0,
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
        Record::from_wire(wire).ok_or_else(|| {
            let message = format!("rank {rank} could not make its part of a window");
            Error::new(ErrorKind::Unavailable, message)
        })
    };
    records.map(parse).collect()
}
