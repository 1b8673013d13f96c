//! The objects that handles name, and how they are found.

use crate::abi::*;
use crate::attributes::Attributes;
use crate::errors::Handler;
use crate::fail::{Res, bad_comm, bad_group, bad_type};
use crate::state;
use crate::table::Table;
use crate::work::Pending;
use osier::attributes::Info;
use osier::datatype::{Basic, Constructor};
use osier::{Communicator, Group, Layout, Message, Session, Type};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

pub static COMMS: Table<Arc<Comm>> = Table::new(0);
pub static GROUPS: Table<CGroup> = Table::new(1);
pub static TYPES: Table<Arc<CType>> = Table::new(2);
pub static REQUESTS: Table<Pending> = Table::of_calls(3);
pub static OPS: Table<Arc<crate::ops::Function>> = Table::new(4);
pub static ERRHANDLERS: Table<crate::errors::Counted> = Table::new(5);
pub static INFOS: Table<Mutex<Info>> = Table::new(6);
pub static MESSAGES: Table<(Message, Handle)> = Table::new(7);
pub static SESSIONS: Table<Arc<CSession>> = Table::new(8);

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator with what C hangs on it.
pub struct Comm {
    pub comm: Communicator,
    pub handle: AtomicUsize,
    pub handler: Mutex<Handler>,
    pub attributes: Attributes,
    pub name: Mutex<Option<String>>,
    /// Persistent and pending operations count nothing: the library keeps what they need.
    pub inter: bool,
    /// Ranks that messages go to.
    pub peers: usize,
    /// The session that it stems from, through its group.
    pub session: Origin,
    pub buffer: Mutex<Option<crate::p2p::AttachedMemory>>,
}

impl Comm {
    pub fn new(comm: Communicator, handler: Handler, session: Origin) -> Arc<Self> {
        let inter = comm.is_inter();
        let peers = comm.remote_size().unwrap_or_else(|_| comm.size());
        Arc::new(Self {
            comm,
            handle: AtomicUsize::new(MPI_COMM_NULL),
            handler: Mutex::new(handler),
            attributes: Attributes::new(),
            name: Mutex::new(None),
            inter,
            peers,
            session,
            buffer: Mutex::new(None),
        })
    }

    pub fn handle(&self) -> Handle {
        self.handle.load(Ordering::Relaxed)
    }
}

/// Takes a communicator in, with the handler of another.
pub fn new_comm(comm: Communicator, of: &Comm) -> Handle {
    let handler = lock(&of.handler).clone();
    adopt(Comm::new(comm, handler, of.session.clone()))
}

pub fn adopt(comm: Arc<Comm>) -> Handle {
    let handle = COMMS.insert(comm.clone());
    comm.handle.store(handle, Ordering::Relaxed);
    handle
}

/// The communicator of a handle.
#[inline]
pub fn comm(handle: Handle) -> Res<&'static Comm> {
    if handle == MPI_COMM_WORLD || handle == MPI_COMM_SELF {
        let own = handle == MPI_COMM_SELF;
        if let Some(comm) = state::predefined(own) {
            return Ok(comm);
        }
        return Err(state::not_initialised());
    }
    match COMMS.get(handle) {
        Some(comm) => Ok(comm),
        None => Err(no_comm(handle)),
    }
}

#[cold]
fn no_comm(handle: Handle) -> crate::fail::Fail {
    if !state::is_initialised() || state::is_finalised() && !state::is_active() {
        return state::not_initialised();
    }
    match handle {
        MPI_COMM_NULL => bad_comm("MPI_COMM_NULL in place of a communicator"),
        _ => bad_comm("a handle that is no communicator (hint: it was freed, or never set)"),
    }
}

/// As [`comm`], counted: it outlives its handle.
pub fn comm_shared(handle: Handle) -> Res<Arc<Comm>> {
    if handle == MPI_COMM_WORLD || handle == MPI_COMM_SELF {
        return state::predefined_shared(handle == MPI_COMM_SELF)
            .ok_or_else(state::not_initialised);
    }
    COMMS.get(handle).cloned().ok_or_else(|| no_comm(handle))
}

/// The session that something stems from, while that lives; none of the world model.
pub type Origin = Weak<CSession>;

/// A session with what C hangs on it.
pub struct CSession {
    pub session: Session,
    pub handler: Mutex<Handler>,
    pub buffer: Mutex<Option<crate::p2p::AttachedMemory>>,
}

pub fn session(handle: Handle) -> Res<&'static CSession> {
    SESSIONS.get(handle).map(|s| &**s).ok_or_else(|| {
        crate::fail::Fail::new(
            MPI_ERR_SESSION,
            "a handle that is no session (hint: it was finalized, or never set)",
        )
    })
}

/// A group, and where it comes from.
pub struct CGroup {
    group: Group,
    session: Origin,
}

fn cgroup(handle: Handle) -> Res<&'static CGroup> {
    GROUPS.get(handle).ok_or_else(|| match handle {
        MPI_GROUP_NULL => bad_group("MPI_GROUP_NULL in place of a group"),
        _ => bad_group("a handle that is no group (hint: it was freed, or never set)"),
    })
}

/// The group of a handle.
pub fn group(handle: Handle) -> Res<Group> {
    match handle {
        MPI_GROUP_EMPTY => Ok(Group::empty()),
        handle => Ok(cgroup(handle)?.group.clone()),
    }
}

/// Where the group of a handle comes from.
pub fn origin(handle: Handle) -> Origin {
    cgroup(handle).map_or_else(|_| Origin::new(), |found| found.session.clone())
}

pub fn new_group(group: Group, session: Origin) -> Handle {
    match group.is_empty() {
        true => MPI_GROUP_EMPTY,
        false => GROUPS.insert(CGroup { group, session }),
    }
}

/// A datatype with what C hangs on it.
pub struct CType {
    pub ty: Type,
    layout: OnceLock<Option<Layout>>,
    pub committed: AtomicBool,
    pub attributes: Attributes,
    pub name: Mutex<Option<String>>,
    pub handle: AtomicUsize,
    /// Cannot be freed.
    pub predefined: bool,
    /// One element of a predefined type: views of these need not ask the layout.
    pub element: Option<Element>,
}

/// A predefined type, and the bytes of each.
#[derive(Clone, Copy)]
pub struct Element {
    pub basic: Basic,
    pub bytes: usize,
}

impl Element {
    fn of(ty: &Type) -> Option<Self> {
        let Constructor::Basic(_) = ty.constructor() else {
            return None;
        };
        // Types of another name, but of the same representation, match it.
        let basic = ty.signature().uniform()?;
        let bytes = basic.size();
        let plain = ty.size() == bytes && ty.extent() == bytes as isize && ty.true_lb() == 0;
        plain.then_some(Self { basic, bytes })
    }
}

impl CType {
    pub fn new(ty: Type, predefined: bool) -> Self {
        Self {
            element: if predefined { Element::of(&ty) } else { None },
            ty,
            layout: OnceLock::new(),
            committed: AtomicBool::new(predefined),
            attributes: Attributes::new(),
            name: Mutex::new(None),
            handle: AtomicUsize::new(MPI_DATATYPE_NULL),
            predefined,
        }
    }

    /// How its bytes lie, whether or not it was committed.
    pub fn layout(&self) -> Res<&Layout> {
        let made = self.layout.get_or_init(|| self.ty.commit().ok());
        made.as_ref()
            .ok_or_else(|| bad_type("a datatype that is too large to be committed"))
    }

    /// The layout of a type that may be communicated.
    #[inline]
    pub fn committed(&self) -> Res<&Layout> {
        if !self.committed.load(Ordering::Relaxed) {
            return Err(bad_type("a datatype that was not committed"));
        }
        match self.layout.get() {
            Some(Some(layout)) => Ok(layout),
            _ => self.layout(),
        }
    }
}

/// The datatype of a handle.
#[inline]
pub fn ctype(handle: Handle) -> Res<&'static CType> {
    if handle & !0x1ff == 0x200 {
        if let Some(ty) = crate::types::predefined(handle) {
            return Ok(ty);
        }
    } else if let Some(ty) = TYPES.get(handle) {
        return Ok(ty);
    }
    Err(no_type(handle))
}

/// A reference to a datatype that keeps it alive when its handle is freed.
pub enum HeldType {
    Predefined(&'static CType),
    Made(Arc<CType>),
}

impl std::ops::Deref for HeldType {
    type Target = CType;

    fn deref(&self) -> &CType {
        match self {
            HeldType::Predefined(ty) => ty,
            HeldType::Made(ty) => ty,
        }
    }
}

/// As [`ctype`], counted: it outlives its handle.
pub fn ctype_shared(handle: Handle) -> Res<HeldType> {
    match TYPES.get(handle) {
        Some(ty) => Ok(HeldType::Made(ty.clone())),
        None => ctype(handle).map(HeldType::Predefined),
    }
}

#[cold]
fn no_type(handle: Handle) -> crate::fail::Fail {
    match handle {
        MPI_DATATYPE_NULL => bad_type("MPI_DATATYPE_NULL in place of a datatype"),
        _ => bad_type("a handle that is no datatype (hint: it was freed, or never set)"),
    }
}

pub fn new_type(ty: Type) -> Handle {
    adopt_type(CType::new(ty, false))
}

pub fn adopt_type(ty: CType) -> Handle {
    let ty = Arc::new(ty);
    let handle = TYPES.insert(ty.clone());
    ty.handle.store(handle, Ordering::Relaxed);
    handle
}

/// A handle for a type that is part of another.
pub fn type_handle(ty: &Type) -> Handle {
    crate::types::predefined_handle(ty).unwrap_or_else(|| new_type(ty.clone()))
}
