//! Collectives on intercommunicators: what a side does within itself, and what its
//! rank 0 exchanges with the other side.

use super::ask::Ask;
use super::{BETWEEN, Communicator};
use crate::comm::inter::{Inter, argument};
use crate::error::Result;
use crate::exec::operator::Reduction;
use crate::p2p::view::{Buffer, BufferMut, RawView};
use crate::p2p::{PROC_NULL, ROOT, Rank};
use crate::progress::lane::Mode;

impl Communicator {
    #[track_caller]
    pub(super) fn barrier_between(&self, inter: &Inter) -> Result<()> {
        inter.local.barrier_within()?;
        self.swap_across(inter, &[1u8], &mut [0u8])
    }

    #[track_caller]
    pub(super) fn bcast_between(&self, inter: &Inter, data: RawView, root: Rank) -> Result<()> {
        if root == PROC_NULL {
            return Ok(());
        }
        if root == ROOT {
            return self.send_raw(data, 0, BETWEEN, Mode::Standard);
        }
        let root = self.root_across(inter, root)?;
        if self.rank() == 0 {
            self.take_view(data.clone(), root, BETWEEN)?;
        }
        inter.local.bcast_view(data, 0)
    }

    fn root_across(&self, inter: &Inter, root: Rank) -> Result<usize> {
        let root = root.check(inter.remote.size())?;
        root.map(|r| r as usize)
            .ok_or_else(|| argument("a collective needs a root"))
    }

    #[track_caller]
    pub(super) fn gather_between(
        &self,
        inter: &Inter,
        send: Option<RawView>,
        recv: RawView,
        root: Rank,
    ) -> Result<()> {
        if root == PROC_NULL {
            return Ok(());
        }
        if root == ROOT {
            if !recv.bytes().is_multiple_of(inter.remote.size()) {
                return Err(argument(format!(
                    "{} ranks send into {} bytes (hint: equally many from each)",
                    inter.remote.size(),
                    recv.bytes()
                )));
            }
            return self.take_view(recv, 0, BETWEEN);
        }
        let root = self.root_across(inter, root)?;
        let all = self.gather_side(inter, send)?;
        if self.rank() == 0 {
            self.put(&all, root, BETWEEN)?;
        }
        Ok(())
    }

    /// All contributions of this side, at its rank 0; nothing elsewhere.
    #[track_caller]
    fn gather_side(&self, inter: &Inter, send: Option<RawView>) -> Result<Vec<u8>> {
        let send = send.ok_or_else(|| argument("in place on an intercommunicator"))?;
        let mut all = Vec::new();
        if self.rank() == 0 {
            all = vec![0u8; send.bytes() * self.size()];
        }
        inter
            .local
            .gather_views(Some(send), all.view_mut().raw(), 0)?;
        Ok(all)
    }

    #[track_caller]
    pub(super) fn allgather_between(
        &self,
        inter: &Inter,
        send: Option<RawView>,
        recv: RawView,
    ) -> Result<()> {
        let all = self.gather_side(inter, send)?;
        self.swap_views(inter, all.view().raw(), recv)
    }

    #[track_caller]
    pub(super) fn allreduce_between(
        &self,
        inter: &Inter,
        send: Option<RawView>,
        recv: RawView,
        op: &dyn Reduction,
    ) -> Result<()> {
        let send = send.ok_or_else(|| argument("in place on an intercommunicator"))?;
        let mut mine = vec![0u8; send.bytes()];
        let sum = mine.view_mut().raw();
        inter.local.allreduce_views(Some(send), sum, op)?;
        self.swap_views(inter, mine.view().raw(), recv)
    }

    /// Ranks 0 swap messages; then all of each side have the other's.
    #[track_caller]
    fn swap_views(&self, inter: &Inter, mine: RawView, theirs: RawView) -> Result<()> {
        let swapped = match self.rank() {
            0 => self.swap_leader_views(mine, theirs.clone()),
            _ => Ok(()),
        };
        self.all_swapped(inter, swapped)?;
        inter.local.call(Ask::bcast(self.size(), 0, theirs))
    }
}
