//! A rank's membership in its job: what its communicators and sessions share.

use super::codes::ErrorCodes;
use super::context::Contexts;
use super::group::Group;
use super::meeting::Meeting;
use super::psets::ProcessSets;
use crate::choice::{Choices, Programs};
use crate::model::Agreed;
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::{Core, JobTransport};
use osier_engine::progress::hosts::Hosts;
use osier_engine::progress::lane::Lane;
use osier_engine::progress::links::{Links, Remote};
use osier_engine::progress::suspend;
use osier_engine::progress::traced::LaneTrace;
use osier_transports::delay::Delayed;
use osier_transports::shm::monotonic_ns;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) struct Member {
    pub core: Arc<Core>,
    pub contexts: Contexts,
    meeting: OnceLock<Meeting>,
    pub choices: Choices,
    /// Programs of its communicators.
    pub programs: Programs,
    /// What the job's ranks agree on: costs and places.
    pub agreed: Agreed,
    pub codes: ErrorCodes,
    pub psets: ProcessSets,
    /// Universes and sessions.
    handles: AtomicUsize,
    /// What is kept until it says that it is over.
    kept: Mutex<Vec<Kept>>,
}

/// Makes progress; true: it may be dropped.
type Kept = Box<dyn FnMut() -> bool + Send>;

impl Member {
    pub fn new(core: Arc<Core>, psets: ProcessSets, agreed: Agreed) -> Arc<Self> {
        Arc::new(Self {
            contexts: Contexts::new(core.rank),
            core,
            meeting: OnceLock::new(),
            choices: Choices::default(),
            programs: Programs::default(),
            agreed,
            codes: ErrorCodes::default(),
            psets,
            handles: AtomicUsize::new(0),
            kept: Mutex::default(),
        })
    }

    /// This rank's world rank.
    pub fn rank(&self) -> usize {
        self.core.rank as usize
    }

    pub fn meeting(&self) -> &Meeting {
        self.meeting.get_or_init(|| Meeting::open(&self.core))
    }

    /// Keeps something until it says that it is over.
    pub fn keep(&self, kept: Kept) {
        self.kept().push(kept);
        self.sweep();
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what is over of that which is kept. True if nothing is left.
    pub fn sweep(&self) -> bool {
        // Without the lock: it makes progress.
        let kept = std::mem::take(&mut *self.kept());
        let left = kept
            .into_iter()
            .filter_map(|mut kept| (!kept()).then_some(kept));
        let mut left: Vec<_> = left.collect();
        let mut kept = self.kept();
        kept.append(&mut left);
        kept.is_empty()
    }

    /// The ranks of the job.
    pub fn world_group(&self) -> Group {
        Group::identity(self.core.ranks)
    }
}

/// A universe's or session's part in the membership. The last one that is
/// dropped leaves the job.
pub(crate) struct Joined {
    pub member: Arc<Member>,
    /// Whether it waits for all that is sent, when it is not the last: a universe's end is
    /// that of the world. A session has nothing to do with what others send.
    whole: bool,
}

impl Joined {
    pub fn new(member: &Arc<Member>, whole: bool) -> Self {
        member.handles.fetch_add(1, Ordering::Relaxed);
        let member = member.clone();
        Self { member, whole }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let Self { member, whole } = self;
        let orderly = !suspend::unwinds();
        if orderly && *whole {
            member.core.flush(None);
        }
        if member.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            if orderly {
                member.core.wait_until(|| member.sweep().then_some(()));
                member.core.flush(None);
                member.core.report_leaks();
            }
            member.core.close();
            if orderly {
                member.core.finalize();
                // A launcher without this notice takes the end of the process for a failure.
                if let Some(launcher) = member.core.launcher.get() {
                    launcher.finish();
                }
            }
        }
    }
}

/// A lane on the job's transport. `own` is this rank's place in `members`,
/// which are world ranks. `session` is the mark of the one that it stems from.
pub(crate) fn open_lane(
    core: &Arc<Core>,
    members: Vec<u32>,
    own: u32,
    context: u64,
    session: Option<usize>,
) -> Arc<LaneCell> {
    // Most communicators have the members of one that is there.
    let members = core.shared_members(members);
    let remote = match &core.transport {
        _ if members.len() == 1 => Remote::None,
        JobTransport::Alone => Remote::None,
        JobTransport::Shm(r) => {
            let endpoint = r.endpoint(context, members.clone());
            match r.job().delay() {
                None => Remote::Shm(endpoint),
                Some(delay) => {
                    let now: fn() -> u64 = monotonic_ns;
                    Remote::Delayed(Box::new(Delayed::new(endpoint, delay, now, "delayed shm")))
                }
            }
        }
        JobTransport::Hosts(on) => {
            let near: Vec<u32> = (0..members.len() as u32)
                .filter(|peer| on.map.place(members[*peer as usize]).is_some())
                .collect();
            let places = near.iter().map(|peer| members[*peer as usize]);
            let places: Vec<u32> = (places.filter_map(|rank| on.map.place(rank)))
                .map(|place| place as u32)
                .collect();
            if near.len() == members.len() {
                Remote::Shm(on.shm.endpoint(context, places))
            } else {
                let shm = (near.len() > 1).then(|| on.shm.endpoint(context, places));
                let far = on.net.endpoint(context, members.clone());
                Remote::Hosts(Box::new(Hosts::new(shm, near.into(), far)))
            }
        }
        JobTransport::Sim(net, rank) => Remote::Sim(net.endpoint(*rank, context, &members)),
    };
    let links = Links::new(own, remote);
    let mut lane = Lane::new(own, members.len(), links, core.selection.clone());
    lane.name(context, members.clone());
    lane.use_devices(core.devices.clone());
    if let Some(tracer) = &core.trace {
        lane.record_to(LaneTrace::new(tracer.clone(), context, members.clone()));
    }
    if core.checks.follows_messages() {
        lane.check_with(core.checks.clone());
    }
    let lane = Arc::new(LaneCell::new(lane, core.biased, Arc::downgrade(core)));
    core.add_lane(&lane, members, session);
    lane
}
