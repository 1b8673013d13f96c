//! Attributes of communicators, datatypes and windows, with the callbacks of C.
//!
//! # Invariants
//! 1. A freed key lives as long as an attribute has it, and until then its number names it:
//!    the program may still delete what it has set.
//! 2. Callbacks run without a lock held.
//! 3. What attributes hang on outlives the calls of their callbacks, which may free it: it
//!    is counted meanwhile.
//! 4. An object whose attributes are being deleted because it is freed is not freed again.
//!
//! # Sources
//! MPI 5.0, section 7.7. The attributes of the Rust library are typed values under typed
//! keys; those of C are addresses, and their delete functions want the handle.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::errors;
use crate::fail::{Fail, Res, get, put};
use crate::leaks;
use crate::objects::{comm, ctype, ctype_shared, lock};
use crate::state;
use crate::windows::{win, win_shared};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Comm,
    Type,
    Win,
}

struct Key {
    number: c_int,
    kind: Kind,
    copy: usize,
    delete: usize,
    extra: usize,
}

/// A key that the program has, or has freed: then only attributes hold it.
struct Known {
    held: Option<Arc<Key>>,
    key: Weak<Key>,
}

static KEYS: Mutex<(BTreeMap<c_int, Known>, c_int)> = Mutex::new((BTreeMap::new(), 0x1000));

struct Entry {
    key: Arc<Key>,
    value: usize,
}

/// What hangs on an object, in the order in which it was set.
pub struct Attributes(Mutex<Vec<Entry>>, AtomicBool);

type Copy = unsafe extern "C" fn(Handle, c_int, usize, usize, *mut usize, *mut c_int) -> c_int;
type Delete = unsafe extern "C" fn(Handle, c_int, usize, usize) -> c_int;

fn bad_key(number: c_int) -> Fail {
    Fail::new(
        MPI_ERR_KEYVAL,
        format!("{number} is no key of such attributes"),
    )
}

/// A callback's own error.
fn refused(what: &str, code: c_int) -> Fail {
    Fail::new(
        code,
        format!("the {what} function of an attribute returned {code}"),
    )
}

impl Key {
    /// What the copy has; `None`: nothing.
    fn copied(&self, of: Handle, value: usize) -> Res<Option<usize>> {
        match self.copy {
            0 => Ok(None),
            1 => Ok(Some(value)),
            function => {
                let (mut new, mut flag) = (0, 0);
                // SAFETY: the program gave this address as that of such a function.
                let function = unsafe { std::mem::transmute::<usize, Copy>(function) };
                // SAFETY: as above.
                let code =
                    unsafe { function(of, self.number, self.extra, value, &mut new, &mut flag) };
                match code {
                    MPI_SUCCESS => Ok((flag != 0).then_some(new)),
                    code => Err(refused("copy", code)),
                }
            }
        }
    }

    fn deleted(&self, of: Handle, value: usize) -> Res {
        if self.delete == 0 {
            return Ok(());
        }
        // SAFETY: the program gave this address as that of such a function.
        let function = unsafe { std::mem::transmute::<usize, Delete>(self.delete) };
        // SAFETY: as above.
        match unsafe { function(of, self.number, value, self.extra) } {
            MPI_SUCCESS => Ok(()),
            code => Err(refused("delete", code)),
        }
    }
}

fn key(number: c_int, kind: Kind) -> Res<Arc<Key>> {
    let keys = lock(&KEYS);
    let key = keys.0.get(&number).and_then(|known| known.key.upgrade());
    key.filter(|key| key.kind == kind)
        .ok_or_else(|| bad_key(number))
}

fn create(kind: Kind, copy: usize, delete: usize, keyval: *mut c_int, extra: usize) -> Res {
    if !state::is_active() {
        return Err(state::not_initialised());
    }
    let mut keys = lock(&KEYS);
    keys.1 += 1;
    let number = keys.1;
    let key = Key {
        number,
        kind,
        copy,
        delete,
        extra,
    };
    let key = Arc::new(key);
    let known = Known {
        key: Arc::downgrade(&key),
        held: Some(key),
    };
    keys.0.insert(number, known);
    drop(keys);
    leaks::made(number as Handle);
    put(keyval, number)
}

fn free(kind: Kind, keyval: *mut c_int) -> Res {
    let number = get(keyval)?;
    key(number, kind)?;
    let mut keys = lock(&KEYS);
    if let Some(known) = keys.0.get_mut(&number) {
        known.held = None;
    }
    keys.0.retain(|_, known| known.key.strong_count() > 0);
    drop(keys);
    leaks::freed(number as Handle);
    put(keyval, MPI_KEYVAL_INVALID)
}

/// Keys that the program has not freed, as numbers of `leaks`, and what they are for.
pub fn left() -> Vec<(Handle, &'static str)> {
    let keys = lock(&KEYS);
    let held = keys.0.values().filter_map(|known| known.held.as_ref());
    held.map(|key| {
        let of = match key.kind {
            Kind::Comm => "communicators",
            Kind::Type => "datatypes",
            Kind::Win => "windows",
        };
        (key.number as Handle, of)
    })
    .collect()
}

impl Attributes {
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()), AtomicBool::new(false))
    }

    fn set(&self, of: Handle, key: Arc<Key>, value: usize) -> Res {
        let old = {
            let entries = lock(&self.0);
            let old = entries.iter().find(|entry| entry.key.number == key.number);
            old.map(|entry| entry.value)
        };
        if let Some(old) = old {
            key.deleted(of, old)?;
        }
        let mut entries = lock(&self.0);
        match entries
            .iter_mut()
            .find(|entry| entry.key.number == key.number)
        {
            Some(entry) => entry.value = value,
            None => entries.push(Entry { key, value }),
        }
        Ok(())
    }

    fn get(&self, number: c_int) -> Option<usize> {
        let entries = lock(&self.0);
        let entry = entries.iter().find(|entry| entry.key.number == number)?;
        Some(entry.value)
    }

    fn delete(&self, of: Handle, number: c_int) -> Res<bool> {
        let Some(value) = self.get(number) else {
            return Ok(false);
        };
        let key = {
            let entries = lock(&self.0);
            let entry = entries.iter().find(|entry| entry.key.number == number);
            entry.map(|entry| entry.key.clone())
        };
        if let Some(key) = key {
            key.deleted(of, value)?;
        }
        lock(&self.0).retain(|entry| entry.key.number != number);
        Ok(true)
    }

    /// Deletes all, the last one first, because the object is to be freed. From one of its
    /// callbacks, an error of this class.
    pub fn clear(&self, of: Handle, class: c_int) -> Res {
        if self.1.swap(true, Ordering::Relaxed) {
            return Err(Fail::new(
                class,
                "an object that is being freed (hint: a delete function of its attributes frees it again)",
            ));
        }
        let cleared = self.delete_all(of);
        // A callback that fails keeps the object.
        self.1.store(false, Ordering::Relaxed);
        cleared
    }

    fn delete_all(&self, of: Handle) -> Res {
        loop {
            let last = {
                let entries = lock(&self.0);
                entries.last().map(|entry| entry.key.number)
            };
            match last {
                Some(number) => self.delete(of, number)?,
                None => return Ok(()),
            };
        }
    }

    /// Becomes another's.
    pub fn take_over(&self, other: Attributes) {
        let entries = other.0.into_inner();
        *lock(&self.0) = entries.unwrap_or_else(std::sync::PoisonError::into_inner);
    }

    /// What a duplicate of the object begins with.
    pub fn duplicate(&self, of: Handle, to: &Attributes) -> Res {
        let entries: Vec<(Arc<Key>, usize)> = {
            let entries = lock(&self.0);
            entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.value))
                .collect()
        };
        for (key, value) in entries {
            if let Some(value) = key.copied(of, value)? {
                lock(&to.0).push(Entry { key, value });
            }
        }
        Ok(())
    }
}

/// Addresses of the values of predefined attributes, which stay.
fn predefined(number: c_int, of: Handle) -> Res<Option<usize>> {
    static TAG_UB: c_int = c_int::MAX;
    static ANY: c_int = MPI_ANY_SOURCE;
    static NOBODY: c_int = MPI_PROC_NULL;
    static TRUE: c_int = 1;
    static SIZE: std::sync::OnceLock<c_int> = std::sync::OnceLock::new();
    static NUMBER: std::sync::OnceLock<c_int> = std::sync::OnceLock::new();
    static CODES: Mutex<BTreeMap<c_int, &'static c_int>> = Mutex::new(BTreeMap::new());
    let at = |value: &'static c_int| Ok(Some(std::ptr::from_ref(value).addr()));
    let world = matches!(of, MPI_COMM_WORLD | MPI_COMM_SELF);
    match number {
        MPI_TAG_UB => at(&TAG_UB),
        MPI_IO => at(&ANY),
        MPI_HOST => at(&NOBODY),
        // One machine has one clock.
        MPI_WTIME_IS_GLOBAL => at(&TRUE),
        MPI_APPNUM if world => at(NUMBER.get_or_init(state::program)),
        MPI_LASTUSEDCODE => {
            let last = errors::last_used();
            let mut codes = lock(&CODES);
            at(codes
                .entry(last)
                .or_insert_with(|| Box::leak(Box::new(last))))
        }
        MPI_UNIVERSE_SIZE if world => {
            let size = comm(MPI_COMM_WORLD)?.comm.size() as c_int;
            at(SIZE.get_or_init(|| size))
        }
        _ => Ok(None),
    }
}

fn comm_get(on: Handle, keyval: c_int, value: *mut usize, flag: *mut c_int) -> Res {
    let comm = comm(on)?;
    if (MPI_TAG_UB..=MPI_UNIVERSE_SIZE).contains(&keyval) {
        return give(predefined(keyval, on)?, value, flag);
    }
    // A freed key finds what it has set.
    let found = comm.attributes.get(keyval);
    if found.is_none() {
        key(keyval, Kind::Comm)?;
    }
    give(found, value, flag)
}

fn give(found: Option<usize>, value: *mut usize, flag: *mut c_int) -> Res {
    if let Some(found) = found {
        put(value, found)?;
    }
    put(flag, c_int::from(found.is_some()))
}

fn comm_set(on: Handle, keyval: c_int, value: usize) -> Res {
    let comm = crate::objects::comm_shared(on)?;
    comm.attributes.set(on, key(keyval, Kind::Comm)?, value)
}

fn comm_delete(on: Handle, keyval: c_int) -> Res {
    let comm = crate::objects::comm_shared(on)?;
    key(keyval, Kind::Comm)?;
    match comm.attributes.delete(on, keyval)? {
        true => Ok(()),
        false => Err(bad_key(keyval)),
    }
}

mpi! {
    fn MPI_Comm_create_keyval(copy: usize, delete: usize, keyval: *mut c_int, extra: usize) on On::Own; {
        create(Kind::Comm, copy, delete, keyval, extra)?;
    }

    fn MPI_Keyval_create(copy: usize, delete: usize, keyval: *mut c_int, extra: usize) on On::Own; {
        create(Kind::Comm, copy, delete, keyval, extra)?;
    }

    fn MPI_Comm_free_keyval(keyval: *mut c_int) on On::Own; {
        free(Kind::Comm, keyval)?;
    }

    fn MPI_Keyval_free(keyval: *mut c_int) on On::Own; {
        free(Kind::Comm, keyval)?;
    }

    fn MPI_Comm_set_attr(on: Handle, keyval: c_int, value: usize) on On::Comm(on); {
        comm_set(on, keyval, value)?;
    }

    fn MPI_Attr_put(on: Handle, keyval: c_int, value: usize) on On::Comm(on); {
        comm_set(on, keyval, value)?;
    }

    fn MPI_Comm_get_attr(on: Handle, keyval: c_int, value: *mut usize, flag: *mut c_int) on On::Comm(on); {
        comm_get(on, keyval, value, flag)?;
    }

    fn MPI_Attr_get(on: Handle, keyval: c_int, value: *mut usize, flag: *mut c_int) on On::Comm(on); {
        comm_get(on, keyval, value, flag)?;
    }

    fn MPI_Comm_delete_attr(on: Handle, keyval: c_int) on On::Comm(on); {
        comm_delete(on, keyval)?;
    }

    fn MPI_Attr_delete(on: Handle, keyval: c_int) on On::Comm(on); {
        comm_delete(on, keyval)?;
    }

    fn MPI_Type_create_keyval(copy: usize, delete: usize, keyval: *mut c_int, extra: usize) on On::Own; {
        create(Kind::Type, copy, delete, keyval, extra)?;
    }

    fn MPI_Type_free_keyval(keyval: *mut c_int) on On::Own; {
        free(Kind::Type, keyval)?;
    }

    fn MPI_Type_set_attr(ty: Handle, keyval: c_int, value: usize) on On::Own; {
        ctype_shared(ty)?.attributes.set(ty, key(keyval, Kind::Type)?, value)?;
    }

    fn MPI_Type_get_attr(ty: Handle, keyval: c_int, value: *mut usize, flag: *mut c_int) on On::Own; {
        let found = ctype(ty)?.attributes.get(keyval);
        if found.is_none() {
            key(keyval, Kind::Type)?;
        }
        give(found, value, flag)?;
    }

    fn MPI_Type_delete_attr(ty: Handle, keyval: c_int) on On::Own; {
        let on = ctype_shared(ty)?;
        key(keyval, Kind::Type)?;
        if !on.attributes.delete(ty, keyval)? {
            return Err(bad_key(keyval));
        }
    }

    fn MPI_Win_create_keyval(copy: usize, delete: usize, keyval: *mut c_int, extra: usize) on On::Own; {
        create(Kind::Win, copy, delete, keyval, extra)?;
    }

    fn MPI_Win_set_attr(on: Handle, keyval: c_int, value: usize) on On::Win(on); {
        win_shared(on)?.attributes.set(on, key(keyval, Kind::Win)?, value)?;
    }

    fn MPI_Win_get_attr(on: Handle, keyval: c_int, value: *mut usize, flag: *mut c_int) on On::Win(on); {
        let win = win(on)?;
        if (MPI_WIN_BASE..=MPI_WIN_MODEL).contains(&keyval) {
            return give(win.predefined(keyval), value, flag);
        }
        let found = win.attributes.get(keyval);
        if found.is_none() {
            key(keyval, Kind::Win)?;
        }
        give(found, value, flag)?;
    }

    fn MPI_Win_delete_attr(on: Handle, keyval: c_int) on On::Win(on); {
        let held = win_shared(on)?;
        key(keyval, Kind::Win)?;
        if !held.attributes.delete(on, keyval)? {
            return Err(bad_key(keyval));
        }
    }

    fn MPI_Win_free_keyval(keyval: *mut c_int) on On::Own; {
        free(Kind::Win, keyval)?;
    }
}
