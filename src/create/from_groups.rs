//! Communicators from groups, without a parent.
//!
//! # Sources
//! MPI 5.0, sections 7.4.2 and 7.6.2 (`MPI_COMM_CREATE_FROM_GROUP`,
//! `MPI_INTERCOMM_CREATE_FROM_GROUPS`). Here the calls belong to a session,
//! because a group is a value without one.

use super::inter::check_sides;
use super::split::listed;
use crate::comm::{CONTEXTS, Communicator, Design, Group, Key, Session, argument};
use osier_engine::error::{Error, ErrorKind, Result};

impl Session {
    /// A communicator of a group that has no parent. Collective over the group
    /// only. Calls at the same time, from several threads, have different
    /// tags.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if this rank is no member of the group; of kind
    /// [`ErrorKind::Argument`], if members pass different groups; of kind [`ErrorKind::Tag`], if
    /// the tag has more than 255 bytes; of kind [`ErrorKind::RankDead`], if a member has failed;
    /// of kind [`ErrorKind::Unavailable`], if no context is left.
    #[track_caller]
    pub fn create_from_group(&self, group: &Group, tag: &str) -> Result<Communicator> {
        let member = self.member();
        let made = check_string_tag(tag).and_then(|()| {
            let key = Key::from_group(tag);
            let context =
                member
                    .meeting()
                    .agree(&member.contexts, group, &key, &listed(group), 1)?;
            let mut design = Design::new(group.clone(), context);
            design.handler = self.error_handler();
            design.session_attached = Some(self.attached().clone());
            Communicator::open(member, design)
        });
        self.reported(made.map_err(|e| e.context("create_from_group")))
    }

    /// An intercommunicator of two groups that have no parent. Collective over
    /// both. Each side passes its own group first; the leaders are ranks in
    /// their groups.
    ///
    /// # Errors
    /// As [`Session::create_from_group`]; of kind [`ErrorKind::Argument`], if the groups have a
    /// rank in common; of kind [`ErrorKind::Rank`], if there is no such leader.
    #[track_caller]
    pub fn intercomm_create_from_groups(
        &self,
        local: &Group,
        local_leader: usize,
        remote: &Group,
        remote_leader: usize,
        tag: &str,
    ) -> Result<Communicator> {
        let made = self.join_groups((local, local_leader), (remote, remote_leader), tag);
        self.reported(made.map_err(|e| e.context("intercomm_create_from_groups")))
    }

    #[track_caller]
    fn join_groups(
        &self,
        (local, local_leader): (&Group, usize),
        (remote, remote_leader): (&Group, usize),
        tag: &str,
    ) -> Result<Communicator> {
        check_string_tag(tag)?;
        check_sides(local, remote)?;
        let member = self.member();
        if local.rank_of(member.rank()).is_none() {
            return Err(argument(
                "this rank is not in the local group (hint: each side passes its own group first)",
            ));
        }
        let leader = |group: &Group, rank: usize| {
            group.world_rank(rank).ok_or_else(|| {
                Error::new(
                    ErrorKind::Rank,
                    format!(
                        "leader {rank} of a group of {} (hint: leaders are ranks in their groups)",
                        group.size()
                    ),
                )
            })
        };
        let first = leader(local, local_leader)? < leader(remote, remote_leader)?;
        let (one, two) = if first {
            (local, remote)
        } else {
            (remote, local)
        };
        let mut given = listed(one);
        given.extend(u32::MAX.to_le_bytes());
        given.extend(listed(two));
        let context = member.meeting().agree(
            &member.contexts,
            &one.union(two),
            &Key::from_groups(tag),
            &given,
            CONTEXTS,
        )?;
        let mut design = Design::new(local.clone(), context);
        design.handler = self.error_handler();
        design.session_attached = Some(self.attached().clone());
        Communicator::open_inter(member, design, remote.clone(), first)
    }
}

/// Longest string tag in bytes.
const STRING_TAG_BYTES: usize = 255;

fn check_string_tag(tag: &str) -> Result<()> {
    if tag.len() <= STRING_TAG_BYTES {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Tag,
        format!(
            "a string tag of {} bytes (hint: at most {STRING_TAG_BYTES})",
            tag.len()
        ),
    ))
}
