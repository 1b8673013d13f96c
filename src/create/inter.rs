//! Intercommunicators: made, merged, split.
//!
//! # Sources
//! MPI 5.0, section 7.6.

use super::split::{BAD, Wish, colors, exhausted, listed, members_of, others_arguments};
use crate::coll::BETWEEN;
use crate::comm::{CONTEXTS, Communicator, Group, Inter, Key, argument};
use crate::names::{Rank, Tag};
use osier_datatype::Datatype;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::{Mode, Posted};
use osier_engine::view::{Buffer, BufferMut, RawView};
use std::sync::Arc;

/// That two groups may be the sides of an intercommunicator.
pub(crate) fn check_sides(local: &Group, remote: &Group) -> Result<()> {
    if local.is_empty() || remote.is_empty() {
        return Err(argument(format!(
            "sides of {} and {} ranks for an intercommunicator (hint: each has one or more)",
            local.size(),
            remote.size()
        )));
    }
    match local.intersection(remote).world_rank(0) {
        None => Ok(()),
        Some(both) => Err(argument(format!(
            "rank {both} of the job is on both sides of an intercommunicator (hint: the groups must be disjoint)"
        ))),
    }
}

fn group_of(bytes: &[u8]) -> Result<Group> {
    let ranks: Vec<usize> = bytes
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]) as usize)
        .collect();
    Ok(Group::from_world_ranks(&ranks)?)
}

impl Communicator {
    /// Joins this communicator's group with another's. `local_leader` speaks
    /// for this group; it alone passes `bridge`, a communicator that both
    /// leaders are in, and the other leader's rank there (on an
    /// intercommunicator, its remote rank). Leaders that join several pairs of
    /// groups at once tell them apart by `tag`. Collective over both groups.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if this communicator has two groups, the groups have a
    /// rank in common, or the leader passes no bridge or one of another universe; of kind
    /// [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such leader or tag; of kind
    /// [`ErrorKind::RankDead`] or [`ErrorKind::Closed`], if a rank has failed or left; of kind
    /// [`ErrorKind::Unavailable`], if no context is left. Where the leader alone fails, the
    /// other ranks of its group get an error of kind [`ErrorKind::Argument`].
    #[track_caller]
    pub fn intercomm_create(
        &self,
        local_leader: usize,
        bridge: Option<(&Communicator, usize)>,
        tag: impl Into<Tag>,
    ) -> Result<Self> {
        let made = self.join_with(local_leader, bridge, tag.into());
        self.reported(made.map_err(|e| e.context("intercomm_create")))
    }

    #[track_caller]
    fn join_with(
        &self,
        local_leader: usize,
        bridge: Option<(&Communicator, usize)>,
        tag: Tag,
    ) -> Result<Self> {
        // What all ranks of the side see alike.
        if self.is_inter() {
            return Err(argument(
                "the local communicator has two groups already (hint: merge it first)",
            ));
        }
        self.not_revoked("intercomm_create")?;
        let tag = tag.check()?;
        let size = self.size();
        if local_leader >= size {
            return Err(Error::new(
                ErrorKind::Rank,
                format!(
                    "leader {local_leader} of {size} ranks (hint: ranks are 0 to {})",
                    size - 1
                ),
            ));
        }
        // Only the leader checks this, and sends the others the result.
        let mut head = [0u64; 3];
        let mut met = None;
        if self.rank() == local_leader {
            let result = self.meet(bridge, tag);
            if let Ok((context, first, remote)) = &result {
                head = [*context, u64::from(*first), remote.size() as u64];
            }
            met = Some(result);
        }
        self.bcast_from(&mut head, local_leader)?;
        let met = met.transpose()?;
        let [context, first, count] = head;
        if context == 0 {
            return Err(argument(format!(
                "leader {local_leader} could not reach the other group (hint: its own error says why)"
            )));
        }
        let mut ranks = match met {
            Some((_, _, remote)) => remote.world_ranks().map(|r| r as u32).collect(),
            None => vec![0u32; count as usize],
        };
        self.bcast_from(&mut ranks, local_leader)?;
        let ranks: Vec<usize> = ranks.into_iter().map(|r| r as usize).collect();
        let remote = Group::from_world_ranks(&ranks)?;
        let design = self.heir(self.group().clone(), context);
        Self::open_inter(self.member(), design, remote, first != 0)
    }

    /// The leaders swap groups; the lower of them hands out the contexts.
    #[track_caller]
    fn meet(&self, bridge: Option<(&Communicator, usize)>, tag: u32) -> Result<(u64, bool, Group)> {
        let Some((bridge, remote_leader)) = bridge else {
            return Err(argument(
                "the leader passes no bridge (hint: a communicator with both leaders, and the other leader's rank there)",
            ));
        };
        let member = self.member();
        if !Arc::ptr_eq(member, bridge.member()) {
            return Err(argument(
                "the bridge belongs to another universe (hint: pass a communicator of the same one)",
            ));
        }
        let across = match &bridge.0.inter {
            Some(inter) => &inter.remote,
            None => bridge.group(),
        };
        let peer = Rank::from(remote_leader).check(across.size())?;
        let world = peer.and_then(|peer| across.world_rank(peer as usize));
        let world = world.unwrap_or_default();
        if self.group().rank_of(world).is_some() {
            return Err(argument(format!(
                "the other leader, rank {world} of the job, is in this group (hint: the groups must be disjoint)"
            )));
        }
        let first = member.rank() < world;
        let context = if first {
            member.contexts.take(CONTEXTS).unwrap_or(0)
        } else {
            0
        };
        let mut mine = context.to_le_bytes().to_vec();
        mine.extend(listed(self.group()));
        let key = Key::leaders(bridge.context(), tag);
        let theirs = member.meeting().swap(world as u32, &key, &mine)?;
        let Some((offered, ranks)) = theirs.split_first_chunk::<8>() else {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "rank {world} of the job sent a group of {} bytes",
                    theirs.len()
                ),
            ));
        };
        let remote = group_of(ranks)?;
        check_sides(self.group(), &remote)?;
        let context = context.max(u64::from_le_bytes(*offered));
        if context == 0 {
            return Err(exhausted());
        }
        Ok((context, first, remote))
    }

    /// One communicator of both groups. The side that passes `high` comes
    /// second; if both or neither do, the side whose leader had the lower
    /// world rank comes first. Collective; all ranks of a side pass the same.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if this is no intercommunicator, or ranks of a side
    /// differ in `high`; else as [`Communicator::split`].
    #[track_caller]
    pub fn merge(&self, high: bool) -> Result<Self> {
        let made = self.merge_sides(high);
        self.reported(made.map_err(|e| e.context("merge")))
    }

    #[track_caller]
    pub(crate) fn merge_sides(&self, high: bool) -> Result<Self> {
        let inter = self.inter()?;
        let mut counts = [u64::from(high)];
        inter
            .local
            .allreduce_in_place(&mut counts, &osier_datatype::Operator::Sum)?;
        let same = counts[0] == 0 || counts[0] == self.size() as u64;
        // high, context, whether the side agrees
        let mut context = 0;
        if inter.first && self.rank() == 0 {
            context = self.member().contexts.take(1).unwrap_or(0);
        }
        let mine = [u64::from(high), context, u64::from(same)];
        let mut theirs = [0u64; 3];
        self.swap_across(inter, &mine, &mut theirs)?;
        // The second side has the context from the first, the first from its
        // own rank 0.
        let mut shared = [mine[1].max(theirs[1])];
        inter.local.bcast_from(&mut shared, 0)?;
        if !same || theirs[2] == 0 {
            return Err(argument(format!(
                "the ranks of {} side do not agree on high (hint: all ranks of a side pass the same)",
                if same { "the other" } else { "this" }
            )));
        }
        if shared[0] == 0 {
            return Err(exhausted());
        }
        let before = match (high, theirs[0] != 0) {
            (false, true) => true,
            (true, false) => false,
            _ => inter.first,
        };
        let group = if before {
            self.group().union(&inter.remote)
        } else {
            inter.remote.union(self.group())
        };
        Self::open(self.member(), self.heir(group, shared[0]))
    }

    /// Ranks 0 swap equally many elements; then all of each side have them, or
    /// know that it failed.
    #[track_caller]
    pub(crate) fn swap_across<T: Datatype>(
        &self,
        inter: &Inter,
        mine: &[T],
        theirs: &mut [T],
    ) -> Result<()> {
        let swapped = match self.rank() {
            0 => {
                let (mine, theirs) = (mine.view().raw(), theirs.view_mut().raw());
                self.swap_leader_views(mine, theirs)
            }
            _ => Ok(()),
        };
        self.all_swapped(inter, swapped)?;
        inter.local.bcast_from(theirs, 0)
    }

    /// Tells all of this side whether its rank 0 has swapped.
    #[track_caller]
    pub(crate) fn all_swapped(&self, inter: &Inter, swapped: Result<()>) -> Result<()> {
        let mut sound = [u8::from(swapped.is_ok())];
        inter.local.bcast_from(&mut sound, 0)?;
        swapped?;
        if sound != [1] {
            return Err(Error::new(
                ErrorKind::RankDead,
                "rank 0 of this side could not reach the other side (hint: its own error says why)",
            ));
        }
        Ok(())
    }

    #[track_caller]
    pub(crate) fn swap_leader_views(&self, mine: RawView, theirs: RawView) -> Result<()> {
        let sent = self.isend_unseen(mine, 0, BETWEEN, Mode::Standard)?;
        let taken = self.take_view(theirs, 0, BETWEEN);
        if let (Err(_), Posted::Pending(handle)) = (&taken, sent) {
            self.revoke_raw(handle);
        } else {
            self.wait_raw(sent)?;
        }
        taken
    }

    /// A split of both sides.
    #[track_caller]
    pub(crate) fn make_inter(&self, wish: Result<Wish>) -> Result<Option<Self>> {
        let inter = self.inter()?;
        let (own, other) = (self.size(), inter.remote.size());
        let mut mine = vec![[0i64; 2]; own];
        let row = [Wish::row(&wish)];
        inter.local.gather_raw(&row, &mut mine, 0)?;
        inter.local.bcast_from(&mut mine, 0)?;
        let mut theirs = vec![[0i64; 2]; other];
        self.swap_across(inter, &mine, &mut theirs)?;
        let there = colors(&theirs);
        let mut both = colors(&mine);
        both.retain(|color| there.contains(color));
        let mut base = [0u64];
        if inter.first && self.rank() == 0 {
            base[0] = self
                .member()
                .contexts
                .take(CONTEXTS * both.len() as u64)
                .unwrap_or(0);
        }
        let mut given = [0u64];
        self.swap_across(inter, &base, &mut given)?;
        if inter.first {
            inter.local.bcast_from(&mut base, 0)?;
        } else {
            base = given;
        }
        let wish = wish?;
        if mine.iter().chain(&theirs).any(|row| row[0] == BAD) {
            return Err(others_arguments());
        }
        if base[0] == 0 && !both.is_empty() {
            return Err(exhausted());
        }
        let Some(color) = wish.color.map(|c| i64::from(c) + 1) else {
            return Ok(None);
        };
        let Some(which) = both.iter().position(|c| *c == color) else {
            return Ok(None);
        };
        let group = self.group().incl(&members_of(&mine, color))?;
        let remote = inter.remote.incl(&members_of(&theirs, color))?;
        let design = self.heir(group, base[0] + CONTEXTS * which as u64);
        Self::open_inter(self.member(), design, remote, inter.first).map(Some)
    }
}
