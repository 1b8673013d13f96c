//! Windows: making and freeing them, and what they say of themselves.

use crate::abi::*;
use crate::attributes::Attributes;
use crate::buffers::Address;
use crate::call::{On, mpi};
use crate::comms::checked_name;
use crate::epochs::{Epochs, Quick};
use crate::errors::Handler;
use crate::fail::{Fail, Int, Res, get, put, put_text, text};
use crate::info::{info, new_info};
use crate::objects::{Comm, Origin, comm, lock, new_group};
use crate::table::Table;
use osier::attributes::Info;
use osier::rma::{Flavor, RawWindow, Updates};
use std::sync::{Arc, Mutex};

pub static WINDOWS: Table<Arc<Win>> = Table::new(9);

/// A window with what C hangs on it.
pub struct Win {
    pub raw: RawWindow,
    pub handler: Mutex<Handler>,
    pub attributes: Attributes,
    pub epochs: Mutex<Epochs>,
    pub quick: Quick,
    pub name: Mutex<Option<String>>,
    info: Mutex<Info>,
    session: Origin,
    /// Values of predefined attributes, at addresses that stay.
    base: usize,
    size: Aint,
    unit: c_int,
    flavor: c_int,
    model: c_int,
}

/// The window of a handle.
#[inline]
pub fn win(handle: Handle) -> Res<&'static Win> {
    match WINDOWS.get(handle) {
        Some(win) => Ok(win),
        None => Err(no_window(handle)),
    }
}

#[cold]
fn no_window(handle: Handle) -> Fail {
    let message = match handle {
        MPI_WIN_NULL => "MPI_WIN_NULL in place of a window",
        _ => "a handle that is no window (hint: it was freed, or never set)",
    };
    Fail::new(MPI_ERR_WIN, message)
}

/// As [`win`], counted: it outlives its handle.
pub fn win_shared(handle: Handle) -> Res<Arc<Win>> {
    let found = WINDOWS.get(handle).cloned();
    found.ok_or_else(|| no_window(handle))
}

/// A size in bytes.
fn size(bytes: Aint) -> Res<usize> {
    usize::try_from(bytes).map_err(|_| {
        let message = format!("a window of {bytes} bytes");
        Fail::new(MPI_ERR_SIZE, message)
    })
}

fn unit<N: Int>(unit: N) -> Res<u64> {
    let unit = u64::try_from(unit.wide()).ok().filter(|unit| *unit > 0);
    unit.ok_or_else(|| Fail::new(MPI_ERR_DISP, "a displacement unit that is not positive"))
}

/// Takes a window in.
fn adopt(
    comm: &Comm,
    flavor: Flavor,
    unit: u64,
    hints: Handle,
    to: *mut Handle,
) -> Res<&'static Win> {
    crate::fail::place(to)?;
    let hints = info(hints)?;
    let named = match &flavor {
        Flavor::Create(_) | Flavor::Device(_) => MPI_WIN_FLAVOR_CREATE,
        Flavor::Allocate(_) => MPI_WIN_FLAVOR_ALLOCATE,
        Flavor::Shared(_) => MPI_WIN_FLAVOR_SHARED,
        Flavor::Dynamic => MPI_WIN_FLAVOR_DYNAMIC,
    };
    let raw = RawWindow::make(&comm.comm, Ok(flavor), unit, updates(&hints))?;
    let own = raw.comm().rank();
    let size = raw.bytes_of(own)?;
    let base = match named {
        MPI_WIN_FLAVOR_DYNAMIC => 0,
        MPI_WIN_FLAVOR_SHARED if size == 0 => 0,
        _ => raw.address_of(own)?.map_or_else(
            || raw.own_address(own).unwrap_or(0) as usize,
            |at| at.expose_provenance(),
        ),
    };
    let win = Win {
        raw,
        handler: Mutex::new(Handler::Fatal),
        attributes: Attributes::new(),
        epochs: Mutex::default(),
        quick: Quick::default(),
        name: Mutex::new(None),
        info: Mutex::new(understood(&hints)),
        session: comm.session.clone(),
        base,
        size: size as Aint,
        unit: c_int::try_from(unit).unwrap_or(c_int::MAX),
        flavor: named,
        model: MPI_WIN_UNIFIED,
    };
    let handle = WINDOWS.insert(Arc::new(win));
    put(to, handle)?;
    self::win(handle)
}

/// How updates are kept apart, by the memory that the program would have one synchronization
/// cover: that of one element means an atomic for each.
fn updates(hints: &Info) -> Updates {
    let granularity = hints.get("mpi_accumulate_granularity");
    match granularity.and_then(|bytes| bytes.trim().parse::<u64>().ok()) {
        Some(1..=8) => Updates::Single,
        _ => Updates::Many,
    }
}

/// Hints that windows know, with what is in use where the program says nothing.
fn understood(hints: &Info) -> Info {
    const DEFAULTS: [(&str, &str); 7] = [
        ("mpi_accumulate_granularity", "0"),
        ("no_locks", "false"),
        ("accumulate_ordering", "rar,raw,war,waw"),
        ("accumulate_ops", "same_op_no_op"),
        ("same_size", "false"),
        ("same_disp_unit", "false"),
        ("alloc_shared_noncontig", "false"),
    ];
    let mut known = Info::new();
    for (key, default) in DEFAULTS {
        let value = hints.get(key).unwrap_or(default);
        // Both are short.
        let _ = known.set(key, value);
    }
    known
}

fn free(on: *mut Handle) -> Res {
    let handle = get(on)?;
    let held = win_shared(handle)?;
    {
        let mut epochs = lock(&held.epochs);
        epochs.settle(&held.quick);
        epochs.note(&held.quick);
        epochs.may_be_freed()?;
    }
    held.attributes.clear(handle, MPI_ERR_WIN)?;
    WINDOWS.remove(handle);
    put(on, MPI_WIN_NULL)?;
    if let Some(win) = Arc::into_inner(held) {
        win.raw.free()?;
    }
    Ok(())
}

fn query<N: Int>(
    on: Handle,
    rank: c_int,
    to_size: *mut Aint,
    to_unit: *mut N,
    to_base: *mut usize,
) -> Res {
    let win = win(on)?;
    let raw = &win.raw;
    let ranks = 0..raw.comm().size();
    let rank = match rank {
        MPI_PROC_NULL => {
            let has_any = |rank: &usize| raw.bytes_of(*rank).is_ok_and(|bytes| bytes > 0);
            ranks.into_iter().find(has_any)
        }
        rank => Some(usize::try_from(rank).unwrap_or(usize::MAX)),
    };
    // Nobody has any.
    let Some(rank) = rank else {
        put(to_size, 0)?;
        put(to_unit, N::narrow(1))?;
        return put(to_base, 0);
    };
    let size = raw.bytes_of(rank)?;
    let at = match win.flavor {
        MPI_WIN_FLAVOR_DYNAMIC => None,
        _ if size == 0 => None,
        _ => raw.address_of(rank)?,
    };
    let unit = raw.unit_of(rank).unwrap_or(1) as Count;
    put(to_size, if at.is_some() { size as Aint } else { 0 })?;
    put(to_unit, N::narrow(unit))?;
    put(to_base, at.map_or(0, |at| at.expose_provenance()))
}

/// A window that memory may be attached to.
fn dynamic(on: Handle) -> Res<&'static Win> {
    let win = win(on)?;
    match win.flavor {
        MPI_WIN_FLAVOR_DYNAMIC => Ok(win),
        _ => Err(Fail::new(
            MPI_ERR_RMA_FLAVOR,
            "memory is attached to windows of MPI_Win_create_dynamic only",
        )),
    }
}

fn of_attaching(e: osier::Error) -> Fail {
    Fail::from(e).class(MPI_ERR_RMA_RANGE, MPI_ERR_RMA_ATTACH)
}

impl Win {
    /// Addresses of the values of predefined attributes.
    pub fn predefined(&self, keyval: c_int) -> Option<usize> {
        match keyval {
            MPI_WIN_BASE => Some(self.base),
            MPI_WIN_SIZE => Some((&raw const self.size).expose_provenance()),
            MPI_WIN_DISP_UNIT => Some((&raw const self.unit).expose_provenance()),
            MPI_WIN_CREATE_FLAVOR => Some((&raw const self.flavor).expose_provenance()),
            MPI_WIN_MODEL => Some((&raw const self.model).expose_provenance()),
            _ => None,
        }
    }
}

mpi! {
    fn MPI_Win_create, MPI_Win_create_c<N>(
        base: Address, bytes: Aint, disp_unit: N, hints: Handle, on: Handle, to: *mut Handle
    ) on On::Comm(on); {
        let (comm, bytes) = (comm(on)?, size(bytes)?);
        if base.is_null() && bytes > 0 {
            return Err(Fail::new(MPI_ERR_BASE, "a null pointer for the memory of a window"));
        }
        // SAFETY: C's contract: the memory stays until the window is freed.
        let flavor = unsafe { RawWindow::found(base, bytes) }?;
        adopt(comm, flavor, unit(disp_unit)?, hints, to)?;
    }

    fn MPI_Win_allocate, MPI_Win_allocate_c<N>(
        bytes: Aint, disp_unit: N, hints: Handle, on: Handle, base: *mut usize,
        to: *mut Handle
    ) on On::Comm(on); {
        let (comm, flavor) = (comm(on)?, Flavor::Allocate(size(bytes)?));
        let win = adopt(comm, flavor, unit(disp_unit)?, hints, to)?;
        put(base, win.base)?;
    }

    fn MPI_Win_allocate_shared, MPI_Win_allocate_shared_c<N>(
        bytes: Aint, disp_unit: N, hints: Handle, on: Handle, base: *mut usize,
        to: *mut Handle
    ) on On::Comm(on); {
        let (comm, flavor) = (comm(on)?, Flavor::Shared(size(bytes)?));
        let win = adopt(comm, flavor, unit(disp_unit)?, hints, to)
            .map_err(|e| e.class(MPI_ERR_UNSUPPORTED_OPERATION, MPI_ERR_RMA_SHARED))?;
        put(base, win.base)?;
    }

    fn MPI_Win_create_dynamic(hints: Handle, on: Handle, to: *mut Handle) on On::Comm(on); {
        adopt(comm(on)?, Flavor::Dynamic, 1, hints, to)?;
    }

    fn MPI_Win_attach(on: Handle, base: Address, bytes: Aint) on On::Win(on); {
        let (win, bytes) = (dynamic(on)?, size(bytes)?);
        // SAFETY: C's contract: the memory stays until it is detached or the window is freed.
        let attached = unsafe { win.raw.attach(base, bytes) };
        attached.map_err(of_attaching)?;
    }

    fn MPI_Win_detach(on: Handle, base: usize) on On::Win(on); {
        dynamic(on)?.raw.detach(base).map_err(of_attaching)?;
    }

    fn MPI_Win_shared_query, MPI_Win_shared_query_c<N>(
        on: Handle, rank: c_int, size: *mut Aint, disp_unit: *mut N, base: *mut usize
    ) on On::Win(on); {
        query(on, rank, size, disp_unit, base)?;
    }

    fn MPI_Win_free(on: *mut Handle) on On::Win(get(on).unwrap_or(MPI_WIN_NULL)); {
        free(on)?;
    }

    fn MPI_Win_get_group(on: Handle, group: *mut Handle) on On::Win(on); {
        let win = win(on)?;
        put(group, new_group(win.raw.comm().group().clone(), win.session.clone()))?;
    }

    fn MPI_Win_set_name(on: Handle, name: *const c_char) on On::Win(on); {
        let name = checked_name(text(name)?.into_owned())?;
        *lock(&win(on)?.name) = Some(name);
    }

    fn MPI_Win_get_name(on: Handle, name: *mut c_char, length: *mut c_int) on On::Win(on); {
        let known = match on {
            MPI_WIN_NULL => Some("MPI_WIN_NULL".to_owned()),
            on => lock(&win(on)?.name).clone(),
        };
        put_text(name, MPI_MAX_OBJECT_NAME as usize, &known.unwrap_or_default(), length)?;
    }

    fn MPI_Win_set_info(on: Handle, hints: Handle) on On::Win(on); {
        let win = win(on)?;
        let hints = info(hints)?;
        let mut known = lock(&win.info);
        for (key, value) in hints.iter() {
            if known.get(key).is_some() {
                let _ = known.set(key, value);
            }
        }
    }

    fn MPI_Win_get_info(on: Handle, to: *mut Handle) on On::Win(on); {
        let known = lock(&win(on)?.info).clone();
        put(to, new_info(known))?;
    }
}
