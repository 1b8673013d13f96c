//! Communicators: what they are, making and freeing them.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::errors::Handler;
use crate::fail::{Fail, Res, argument, bad_comm, get, number, put, put_text, text};
use crate::info::info;
use crate::objects::{
    COMMS, Comm, REQUESTS, adopt, comm, comm_shared, group, lock, new_comm, origin,
};
use crate::work::{Duplicate, Pending, Work};
use osier::Communicator;
use osier::communicators::{Comparison, PendingCommunicator, Resource, SplitType};

/// A name that is not too long.
pub fn checked_name(mut name: String) -> Res<String> {
    let mut end = name.len().min(MPI_MAX_OBJECT_NAME as usize - 1);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    Ok(name)
}

fn name(comm: &Comm) -> String {
    if let Some(name) = &*lock(&comm.name) {
        return name.clone();
    }
    match comm.handle() {
        MPI_COMM_WORLD => "MPI_COMM_WORLD".into(),
        MPI_COMM_SELF => "MPI_COMM_SELF".into(),
        _ => String::new(),
    }
}

/// A handle for what some ranks get.
fn put_some(made: Option<Communicator>, of: &Comm, to: *mut Handle) -> Res {
    put(to, made.map_or(MPI_COMM_NULL, |made| new_comm(made, of)))
}

/// A duplicate with the attributes that their copy functions give it.
fn duplicate(on: Handle, made: Communicator, to: *mut Handle) -> Res {
    let of = comm_shared(on)?;
    let copy = Comm::new(made, lock(&of.handler).clone(), of.session.clone());
    of.attributes.duplicate(on, &copy.attributes)?;
    put(to, adopt(copy))
}

/// A duplicate that is under way. Attributes are copied now.
fn begin_duplicate(
    on: Handle,
    pending: PendingCommunicator,
    to: *mut Handle,
    request: *mut Handle,
) -> Res {
    let attributes = crate::attributes::Attributes::new();
    comm_shared(on)?.attributes.duplicate(on, &attributes)?;
    begin_making(on, pending, attributes, to, request)
}

/// A communicator that is being made, with these attributes.
pub fn begin_making(
    on: Handle,
    pending: PendingCommunicator,
    attributes: crate::attributes::Attributes,
    to: *mut Handle,
    request: *mut Handle,
) -> Res {
    let of = comm_shared(on)?;
    let (handler, session) = (lock(&of.handler).clone(), of.session.clone());
    put(to, MPI_COMM_NULL)?;
    let finish = move |made: Communicator| {
        let copy = Comm::new(made, handler, session);
        copy.attributes.take_over(attributes);
        copy
    };
    let work = Work::Duplicate(Box::new(Duplicate {
        pending: Some(pending),
        completed: false,
        to: to.expose_provenance(),
        finish: Box::new(finish),
    }));
    let pending = Pending {
        work,
        on: On::Comm(on),
    };
    put(request, REQUESTS.insert(pending))
}

fn color(color: c_int) -> Res<Option<u32>> {
    match color {
        MPI_UNDEFINED => Ok(None),
        color => Ok(Some(
            u32::try_from(color).map_err(|_| argument(format!("color {color}")))?,
        )),
    }
}

fn free(on: *mut Handle) -> Res {
    let handle = get(on)?;
    let held = comm_shared(handle)?;
    if matches!(handle, MPI_COMM_WORLD | MPI_COMM_SELF) {
        return Err(bad_comm("freeing of a predefined communicator"));
    }
    held.attributes.clear(handle, MPI_ERR_COMM)?;
    for of_any in REQUESTS.handles() {
        // What is mere handles of the communicator's must hold it from now on.
        if let Some(pending) = REQUESTS.get_mut(of_any)
            && matches!(pending.on, On::Comm(on) if on == handle)
        {
            pending.widen();
        }
    }
    let removed = COMMS.remove(handle);
    if crate::threads::frees(handle) {
        // Named: the other call may end as if nothing had happened.
        std::mem::forget(removed);
    }
    put(on, MPI_COMM_NULL)
}

/// Makes a communicator of a group by the session that the group comes from, whose buffer it
/// uses then; by another one if that is none, or is over.
fn of_session(
    group: Handle,
    errhandler: Handle,
    hints: &osier::attributes::Info,
    make: impl FnOnce(&osier::Session) -> osier::Result<Communicator>,
) -> Res<Handle> {
    let handler = Handler::of(errhandler)?;
    let origin = origin(group);
    let made = match origin.upgrade() {
        Some(session) => make(&session.session),
        None => make(&crate::state::session()?),
    }?;
    made.set_info(hints);
    Ok(adopt(Comm::new(made, handler, origin)))
}

mpi! {
    fn MPI_Comm_size(on: Handle, size: *mut c_int) on On::Comm(on); {
        put(size, comm(on)?.comm.size() as c_int)?;
    }

    fn MPI_Comm_rank(on: Handle, rank: *mut c_int) on On::Comm(on); {
        put(rank, comm(on)?.comm.rank() as c_int)?;
    }

    fn MPI_Comm_compare(one: Handle, other: Handle, result: *mut c_int) on On::Comm(one); {
        let compared = comm(one)?.comm.compare(&comm(other)?.comm);
        put(result, match compared {
            Comparison::Ident => MPI_IDENT,
            Comparison::Congruent => MPI_CONGRUENT,
            Comparison::Similar => MPI_SIMILAR,
            Comparison::Unequal => MPI_UNEQUAL,
        })?;
    }

    fn MPI_Comm_dup(on: Handle, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let made = comm(on)?.comm.dup()?;
        duplicate(on, made, to)?;
    }

    fn MPI_Comm_dup_with_info(on: Handle, hints: Handle, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let hints = info(hints)?;
        let made = comm(on)?.comm.dup_with_info(&hints)?;
        duplicate(on, made, to)?;
    }

    fn MPI_Comm_idup(on: Handle, to: *mut Handle, request: *mut Handle) on On::Comm(on); {
        let pending = comm(on)?.comm.idup()?;
        begin_duplicate(on, pending, to, request)?;
    }

    fn MPI_Comm_idup_with_info(on: Handle, hints: Handle, to: *mut Handle, request: *mut Handle) on On::Comm(on); {
        let hints = info(hints)?;
        let pending = comm(on)?.comm.idup_with_info(&hints)?;
        begin_duplicate(on, pending, to, request)?;
    }

    fn MPI_Comm_split(on: Handle, of: c_int, key: c_int, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        put_some(comm.comm.split(color(of)?, key.into())?, comm, to)?;
    }

    fn MPI_Comm_split_type(on: Handle, kind: c_int, key: c_int, hints: Handle, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        let info = info(hints)?;
        let wanted = info.get("mpi_hw_resource_type").unwrap_or("").to_owned();
        let set = info.get("mpi_pset_name").map(str::to_owned);
        let kind = match kind {
            MPI_UNDEFINED => None,
            MPI_COMM_TYPE_SHARED => Some(SplitType::Shared),
            MPI_COMM_TYPE_HW_UNGUIDED => Some(SplitType::HwUnguided),
            MPI_COMM_TYPE_HW_GUIDED if wanted.is_empty() => None,
            MPI_COMM_TYPE_HW_GUIDED => Some(SplitType::HwGuided(&wanted)),
            MPI_COMM_TYPE_RESOURCE_GUIDED => match &set {
                Some(set) => Some(SplitType::ResourceGuided(Resource::ProcessSet(set))),
                None if wanted.is_empty() => None,
                None => Some(SplitType::ResourceGuided(Resource::Hardware(&wanted))),
            },
            other => return Err(argument(format!("{other} is no type to split by"))),
        };
        let made = comm.comm.split_type(kind, key.into())?;
        if let Some(made) = &made
            && hints != MPI_INFO_NULL
            && let Some(kind) = made.info().get("mpi_hw_resource_type")
            && let Some(object) = crate::objects::INFOS.get(hints)
        {
            lock(object).set("mpi_hw_resource_type", kind)?;
        }
        put_some(made, comm, to)?;
    }

    fn MPI_Comm_create(on: Handle, of: Handle, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        put_some(comm.comm.create(&group(of)?)?, comm, to)?;
    }

    fn MPI_Comm_create_group(on: Handle, of: Handle, tag: c_int, to: *mut Handle) on On::Comm(on); {
        put(to, MPI_COMM_NULL)?;
        let comm = comm(on)?;
        let group = group(of)?;
        let own = crate::state::rank().and_then(|own| group.rank_of(own));
        match own {
            Some(_) => put(to, new_comm(comm.comm.create_group(&group, tag)?, comm))?,
            None => put(to, MPI_COMM_NULL)?,
        }
    }

    fn MPI_Comm_free(on: *mut Handle) on On::Own; {
        free(on)?;
    }

    fn MPI_Comm_disconnect(on: *mut Handle) on On::Own; {
        let handle = get(on)?;
        // All have to have come so far, and what was sent has to have left.
        comm(handle)?.comm.flush_sends();
        free(on)?;
    }

    fn MPI_Comm_get_parent(to: *mut Handle) on On::Own; {
        if !crate::state::is_initialised() {
            return Err(crate::state::not_initialised());
        }
        // Nobody is spawned.
        put(to, MPI_COMM_NULL)?;
    }

    fn MPI_Comm_set_name(on: Handle, to: *const c_char) on On::Comm(on); {
        let comm = comm(on)?;
        let name = checked_name(text(to)?.into_owned())?;
        comm.comm.set_name(&name)?;
        *lock(&comm.name) = Some(name);
    }

    fn MPI_Comm_get_name(on: Handle, to: *mut c_char, length: *mut c_int) on On::Comm(on); {
        let name = match on {
            MPI_COMM_NULL => "MPI_COMM_NULL".to_owned(),
            on => name(comm(on)?),
        };
        put_text(to, MPI_MAX_OBJECT_NAME as usize, &name, length)?;
    }

    fn MPI_Comm_create_from_group(
        of: Handle, tag: *const c_char, hints: Handle, errhandler: Handle, to: *mut Handle
    ) on On::Given(errhandler, MPI_COMM_NULL); {
        put(to, MPI_COMM_NULL)?;
        let group = group(of)?;
        let (tag, hints) = (text(tag)?, info(hints)?);
        if group.is_empty() {
            return put(to, MPI_COMM_NULL);
        }
        put(to, of_session(of, errhandler, &hints, |s| s.create_from_group(&group, &tag))?)?;
    }

    fn MPI_Intercomm_create_from_groups(
        local: Handle, local_leader: c_int, remote: Handle, remote_leader: c_int,
        tag: *const c_char, hints: Handle, errhandler: Handle, to: *mut Handle
    ) on On::Given(errhandler, MPI_COMM_NULL); {
        put(to, MPI_COMM_NULL)?;
        let (of, local, remote) = (local, group(local)?, group(remote)?);
        let (tag, hints) = (text(tag)?, info(hints)?);
        let leaders: (usize, usize) = (number(local_leader)?, number(remote_leader)?);
        put(to, of_session(of, errhandler, &hints, |s| {
            s.intercomm_create_from_groups(&local, leaders.0, &remote, leaders.1, &tag)
        })?)?;
    }
}

/// The communicator, if it has no topology of the wanted kind.
pub fn missing_topology(what: &str) -> Fail {
    Fail::new(MPI_ERR_TOPOLOGY, format!("a communicator without a {what}"))
}
