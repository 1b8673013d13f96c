//! Control variables of the tool interface: sizes up to which messages go at once, and what
//! the environment says. They are read; what could be written has effect when a rank joins
//! its job, and is the environment's.
//!
//! # Sources
//! MPI 5.0, section 15.3.6.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, put, put_if, text};
use crate::state;
use crate::table::Table;
use crate::tool::{begun, index, no_name, put_string};
use osier::config;
use osier_engine::protocol::select::{Memory, Selection};
use std::ops::Range;
use std::sync::LazyLock;

/// A size, in bytes.
struct Limit {
    name: &'static str,
    description: &'static str,
    of: fn(&Selection) -> usize,
}

const LIMITS: [Limit; 4] = [
    Limit {
        name: "osier_eager_max_plain",
        description: "messages from plain memory up to so many bytes go without a rendezvous",
        of: |selection| selection.eager_max(Memory::Plain),
    },
    Limit {
        name: "osier_eager_max_heap",
        description: "messages from memory that peers read in place, up to so many bytes, go without a rendezvous",
        of: |selection| selection.eager_max(Memory::Heap),
    },
    Limit {
        name: "osier_eager_max_device",
        description: "messages of a device up to so many bytes go without a rendezvous",
        of: Selection::device_eager_max,
    },
    Limit {
        name: "osier_always_eager",
        description: "messages up to so many bytes go without a rendezvous from any memory",
        of: Selection::always_eager,
    },
];

/// Room for a variable of the environment.
const TEXT: usize = 1024;

/// Variables that are sizes.
pub fn limits() -> Range<usize> {
    0..LIMITS.len()
}

/// A variable of the environment, or a key of `OSIER_DEBUG`.
struct Setting {
    name: String,
    meaning: &'static str,
    value: fn(&str) -> Option<String>,
}

/// All of them; a key is `OSIER_DEBUG.KEY`.
static ENVIRONMENT: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let variables = config::variables().map(|variable| Setting {
        name: variable.name.to_owned(),
        meaning: variable.meaning,
        value: config::value,
    });
    let keys = config::KEYS.iter().map(|key| Setting {
        name: format!("{KEYS_OF}{}", key.name),
        meaning: key.meaning,
        value: |name| config::debug_value(name.strip_prefix(KEYS_OF)?),
    });
    variables.chain(keys).collect()
});

const KEYS_OF: &str = "OSIER_DEBUG.";

/// Variables of the environment.
pub fn environment() -> Range<usize> {
    LIMITS.len()..LIMITS.len() + ENVIRONMENT.len()
}

/// The number of the variable that a handle is for.
static HANDLES: Table<usize> = Table::new(9);

fn of(handle: Handle) -> Res<usize> {
    HANDLES.get(handle).copied().ok_or_else(|| {
        Fail::new(
            MPI_T_ERR_INVALID_HANDLE,
            "a handle that is no control variable's",
        )
    })
}

/// Its name, what it means, its type, and who may change it.
fn describe(at: usize) -> (&'static str, &'static str, Handle, c_int) {
    match LIMITS.get(at) {
        Some(limit) => (
            limit.name,
            limit.description,
            MPI_UNSIGNED_LONG,
            MPI_T_SCOPE_READONLY,
        ),
        None => {
            let setting = &ENVIRONMENT[at - LIMITS.len()];
            (
                setting.name.as_str(),
                setting.meaning,
                MPI_CHAR,
                MPI_T_SCOPE_READONLY,
            )
        }
    }
}

fn all() -> usize {
    environment().end
}

fn read(at: usize, to: *mut u8) -> Res {
    let Some(limit) = LIMITS.get(at) else {
        let setting = &ENVIRONMENT[at - LIMITS.len()];
        let value = (setting.value)(&setting.name).unwrap_or_default();
        return crate::fail::put_text(to.cast(), TEXT, &value, std::ptr::null_mut());
    };
    let bytes = state::with(|universe| (limit.of)(universe.selection()));
    let bytes = bytes.map_err(|_| {
        Fail::new(
            MPI_T_ERR_NOT_ACCESSIBLE,
            "a variable that has its value from MPI_Init on",
        )
    })?;
    put(to.cast(), bytes as u64)
}

mpi! {
    fn MPI_T_cvar_get_num(n: *mut c_int) on On::Nobody; {
        begun()?;
        put(n, all() as c_int)?;
    }

    fn MPI_T_cvar_get_info(
        at: c_int, name: *mut c_char, name_len: *mut c_int, verbosity: *mut c_int,
        ty: *mut Handle, enumeration: *mut usize, desc: *mut c_char, desc_len: *mut c_int,
        bind: *mut c_int, scope: *mut c_int
    ) on On::Nobody; {
        begun()?;
        let of = describe(index(at, all())?);
        put_string(name, name_len, of.0)?;
        put_string(desc, desc_len, of.1)?;
        put_if(verbosity, MPI_T_VERBOSITY_USER_BASIC);
        put_if(ty, of.2);
        put_if(enumeration, MPI_T_ENUM_NULL);
        put_if(bind, MPI_T_BIND_NO_OBJECT);
        put_if(scope, of.3);
    }

    fn MPI_T_cvar_get_index(name: *const c_char, to: *mut c_int) on On::Nobody; {
        begun()?;
        let name = text(name)?;
        let found = (0..all()).find(|at| describe(*at).0 == name);
        put(to, found.ok_or_else(no_name)? as c_int)?;
    }

    fn MPI_T_cvar_handle_alloc(at: c_int, _object: usize, handle: *mut Handle, n: *mut c_int) on On::Nobody; {
        begun()?;
        let at = index(at, all())?;
        put(n, if at < LIMITS.len() { 1 } else { TEXT as c_int })?;
        put(handle, HANDLES.insert(at))?;
    }

    fn MPI_T_cvar_handle_free(handle: *mut Handle) on On::Nobody; {
        begun()?;
        let had = crate::fail::get(handle)?;
        of(had)?;
        HANDLES.remove(had);
        put(handle, MPI_T_CVAR_HANDLE_NULL)?;
    }

    fn MPI_T_cvar_read(handle: Handle, to: *mut u8) on On::Nobody; {
        begun()?;
        read(of(handle)?, to)?;
    }

    fn MPI_T_cvar_write(handle: Handle, _from: *const u8) on On::Nobody; {
        begun()?;
        of(handle)?;
        return Err(Fail::new(
            MPI_T_ERR_CVAR_SET_NEVER,
            "a variable that is read only (hint: set the environment before MPI_Init)",
        ));
    }
}
