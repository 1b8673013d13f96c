//! The collectives of the first version, on point-to-point: dissemination
//! barrier, binomial broadcast, linear gather, allreduce by a binomial tree in
//! rank order. Checked plans replace them.
//!
//! # Sources
//! Dissemination: D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for Barrier
//! Synchronization", Int. J. Parallel Programming 17(1), 1988. Binomial trees:
//! R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
//! Communication Operations in MPICH", IJHPCA 19(1), 2005.

use super::{Communicator, Reduction};
use crate::error::{Error, ErrorKind, Result};
use crate::matching::{INTERNAL_TAG, Pattern};
use crate::p2p::Rank;
use crate::p2p::view::{Buffer, BufferMut};
use crate::progress::lane::{Mode, Posted};
use crate::trace::event::{ANY, Kind};
use osier_datatype::Datatype;

const BARRIER: u32 = INTERNAL_TAG;
const BCAST: u32 = INTERNAL_TAG | 1;
const GATHER: u32 = INTERNAL_TAG | 2;
const REDUCE: u32 = INTERNAL_TAG | 3;
/// Between the leaders of an intercommunicator.
pub(super) const BETWEEN: u32 = INTERNAL_TAG | 4;
pub(super) const SPLIT: u32 = INTERNAL_TAG | 5;
pub(super) const TOPOLOGY: u32 = INTERNAL_TAG | 6;
/// The lower 30 bits count.
pub(super) const IDUP: u32 = INTERNAL_TAG | 0x4000_0000;

impl Communicator {
    #[track_caller]
    pub(super) fn put<T: Datatype>(&self, data: &[T], dest: usize, tag: u32) -> Result<()> {
        self.send_raw(data.view().raw(), dest as u32, tag, Mode::Standard)
    }

    #[track_caller]
    pub(super) fn take<T: Datatype>(&self, data: &mut [T], source: usize, tag: u32) -> Result<()> {
        let bytes = data.view().bytes();
        let pattern = Pattern::exact(source as u32, tag);
        let got = self.recv_raw(data.view_mut().raw(), pattern)?.bytes;
        if got == bytes {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Argument,
            format!(
                "collective: rank {source} sent {got} bytes, rank {} expected {bytes} (hint: all ranks pass the same count)",
                self.rank()
            ),
        ))
    }

    pub(super) fn root(&self, root: impl Into<Rank>) -> Result<usize> {
        let root = root.into().check(self.size())?;
        root.map(|r| r as usize)
            .ok_or_else(|| Error::new(ErrorKind::Rank, "a collective needs a root"))
    }

    /// Returns when all ranks have called it. Collective.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let _span = self.span(Kind::Barrier, ANY, ANY, 0);
        let result = match &self.0.inter {
            None => self.barrier_within(),
            Some(inter) => self.barrier_between(inter),
        };
        self.reported(result.map_err(|e| e.context("barrier")))
    }

    #[track_caller]
    pub(super) fn barrier_within(&self) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let mut distance = 1;
        while distance < size {
            let to = (rank + distance) % size;
            let from = (rank + size - distance) % size;
            let mut token = [0u8];
            let posted =
                self.irecv_raw(token.view_mut().raw(), Pattern::exact(from as u32, BARRIER))?;
            if let Err(e) = self.put(&[1u8], to, BARRIER) {
                if let Posted::Pending(handle) = posted {
                    self.revoke_raw(handle);
                }
                return Err(e);
            }
            self.wait_raw(posted)?;
            distance *= 2;
        }
        Ok(())
    }

    /// Copies the root's elements to all ranks. Collective; all pass the same
    /// count. On an intercommunicator the root's side passes
    /// [`ROOT`](crate::ROOT) at the root and [`PROC_NULL`](crate::PROC_NULL)
    /// elsewhere, the other side the root's rank, and only that side's
    /// elements change. The same holds for [`Communicator::gather`], where the
    /// other side's elements go to the root.
    #[track_caller]
    pub fn bcast<T: Datatype>(&self, data: &mut [T], root: impl Into<Rank>) -> Result<()> {
        let _span = self.span(Kind::Bcast, ANY, ANY, std::mem::size_of_val(data));
        let root = root.into();
        let result = match &self.0.inter {
            None => self
                .root(root)
                .and_then(|root| self.bcast_from(data, root).map_err(|e| e.context("bcast"))),
            Some(inter) => self
                .bcast_between(inter, data, root)
                .map_err(|e| e.context("bcast")),
        };
        self.reported(result)
    }

    #[track_caller]
    pub(super) fn bcast_from<T: Datatype>(&self, data: &mut [T], root: usize) -> Result<()> {
        let size = self.size();
        let relative = (self.rank() + size - root) % size;
        let mut mask = 1;
        while mask < size {
            if relative & mask != 0 {
                self.take(data, (relative - mask + root) % size, BCAST)?;
                break;
            }
            mask *= 2;
        }
        mask /= 2;
        while mask > 0 {
            if relative + mask < size {
                self.put(data, (relative + mask + root) % size, BCAST)?;
            }
            mask /= 2;
        }
        Ok(())
    }

    /// Collects equal numbers of elements from all ranks at the root, in rank
    /// order. Other ranks' `recv` is not touched. Collective.
    #[track_caller]
    pub fn gather<T: Datatype>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: impl Into<Rank>,
    ) -> Result<()> {
        let _span = self.span(Kind::Gather, ANY, ANY, std::mem::size_of_val(send));
        let root = root.into();
        let result = match &self.0.inter {
            None => self
                .root(root)
                .and_then(|root| self.gather_raw(send, recv, root, GATHER)),
            Some(inter) => self
                .gather_between(inter, send, recv, root)
                .map_err(|e| e.context("gather")),
        };
        self.reported(result)
    }

    #[track_caller]
    pub(super) fn gather_raw<T: Datatype>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: usize,
        tag: u32,
    ) -> Result<()> {
        let n = send.len();
        if self.rank() != root {
            return self.put(send, root, tag).map_err(|e| e.context("gather"));
        }
        if recv.len() != n * self.size() {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "gather: the root receives {n} elements from each of {} ranks into {} elements (hint: make it {})",
                    self.size(),
                    recv.len(),
                    n * self.size()
                ),
            ));
        }
        for rank in 0..self.size() {
            let part = &mut recv[rank * n..(rank + 1) * n];
            if rank == root {
                part.copy_from_slice(send);
            } else {
                self.take(part, rank, tag)
                    .map_err(|e| e.context("gather"))?;
            }
        }
        Ok(())
    }

    /// Collects equal numbers of elements from all ranks at all ranks.
    /// Collective. On an intercommunicator each side gets the other's.
    #[track_caller]
    pub fn allgather<T: Datatype>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let _span = self.span(Kind::Allgather, ANY, ANY, std::mem::size_of_val(send));
        let result = match &self.0.inter {
            None => self.allgather_within(send, recv),
            Some(inter) => self
                .allgather_between(inter, send, recv)
                .map_err(|e| e.context("allgather")),
        };
        self.reported(result)
    }

    #[track_caller]
    fn allgather_within<T: Datatype>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        if recv.len() != send.len() * self.size() {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "allgather: {} elements from each of {} ranks into {} elements",
                    send.len(),
                    self.size(),
                    recv.len()
                ),
            ));
        }
        self.gather_raw(send, recv, 0, GATHER)?;
        self.bcast_from(recv, 0)
    }

    /// Combines the elements of all ranks, in rank order, and gives every rank
    /// the result. The association depends on the number of ranks alone, so
    /// equal inputs give equal bits. Collective. On an intercommunicator each
    /// side gets the combination of the other's.
    #[track_caller]
    pub fn allreduce<T: Datatype>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: impl Reduction<T>,
    ) -> Result<()> {
        let _span = self.span(Kind::Allreduce, ANY, ANY, std::mem::size_of_val(send));
        if send.len() != recv.len() {
            return self.reported(Err(Error::new(
                ErrorKind::Argument,
                format!("allreduce: {} elements into {}", send.len(), recv.len()),
            )));
        }
        recv.copy_from_slice(send);
        let result = match &self.0.inter {
            None => self.allreduce_in_place(recv, &op),
            Some(inter) => self.allreduce_between(inter, recv, &op),
        };
        self.reported(result.map_err(|e| e.context("allreduce")))
    }

    #[track_caller]
    pub(super) fn allreduce_in_place<T: Datatype>(
        &self,
        data: &mut [T],
        op: &impl Reduction<T>,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let mut other = data.to_vec();
        let mut mask = 1;
        while mask < size {
            if rank & mask != 0 {
                self.put(data, rank - mask, REDUCE)?;
                break;
            }
            if rank + mask < size {
                self.take(&mut other, rank + mask, REDUCE)?;
                op.combine(data, &other);
            }
            mask *= 2;
        }
        self.bcast_from(data, 0)
    }
}
