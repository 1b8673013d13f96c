//! The tool interface: its beginning and end, categories, sources and events, of which there
//! are none. Variables: `control.rs` and `performance.rs`.
//!
//! # Sources
//! MPI 5.0, chapter 15.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, array_mut, count, put, put_if, text};
use crate::{control, performance};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

static DEPTH: AtomicI32 = AtomicI32::new(0);

/// Calls of this interface are allowed between its own beginning and end.
pub fn begun() -> Res {
    match DEPTH.load(Relaxed) > 0 {
        true => Ok(()),
        false => Err(Fail::new(
            MPI_T_ERR_NOT_INITIALIZED,
            "a call before MPI_T_init_thread",
        )),
    }
}

pub fn no_index() -> Fail {
    Fail::new(MPI_T_ERR_INVALID_INDEX, "there is nothing of this number")
}

pub fn no_name() -> Fail {
    Fail::new(MPI_T_ERR_INVALID_NAME, "there is nothing of this name")
}

fn not_supported() -> Fail {
    Fail::new(
        MPI_T_ERR_INVALID_HANDLE,
        "a handle of events, of which there are none",
    )
}

/// The place of a number.
pub fn index(at: c_int, len: usize) -> Res<usize> {
    usize::try_from(at)
        .ok()
        .filter(|at| *at < len)
        .ok_or_else(no_index)
}

/// Leaves a string as this interface wants it: as much as there is room for, with a zero at
/// its end, and in place of the room the length of the whole, with the zero.
pub fn put_string(to: *mut c_char, len: *mut c_int, text: &str) -> Res {
    if len.is_null() {
        return Ok(());
    }
    let room = crate::fail::get(len)?;
    if !to.is_null() && room > 0 {
        crate::fail::put_text(to, room as usize, text, std::ptr::null_mut())?;
    }
    put(len, text.len() as c_int + 1)
}

/// Variables that belong together.
struct Category {
    name: &'static str,
    description: &'static str,
    controls: fn() -> std::ops::Range<usize>,
    performances: fn() -> std::ops::Range<usize>,
}

const CATEGORIES: [Category; 3] = [
    Category {
        name: "osier_protocols",
        description: "which way messages take, by size",
        controls: control::limits,
        performances: || 0..0,
    },
    Category {
        name: "osier_environment",
        description: "variables of the environment that the library reads",
        controls: control::environment,
        performances: || 0..0,
    },
    Category {
        name: "osier_queues",
        description: "what communicators hold of messages",
        controls: || 0..0,
        performances: || 0..performance::VARIABLES.len(),
    },
];

fn category(at: c_int) -> Res<&'static Category> {
    Ok(&CATEGORIES[index(at, CATEGORIES.len())?])
}

fn put_numbers(numbers: std::ops::Range<usize>, len: c_int, to: *mut c_int) -> Res {
    let n = numbers.len().min(count(len)?);
    for (to, number) in array_mut(to, n)?.iter_mut().zip(numbers) {
        *to = number as c_int;
    }
    Ok(())
}

mpi! {
    fn MPI_T_init_thread(_required: c_int, provided: *mut c_int) on On::Nobody; {
        DEPTH.fetch_add(1, Relaxed);
        put(provided, MPI_THREAD_MULTIPLE)?;
    }

    fn MPI_T_finalize() on On::Nobody; {
        begun()?;
        DEPTH.fetch_sub(1, Relaxed);
    }

    fn MPI_T_category_get_num(n: *mut c_int) on On::Nobody; {
        begun()?;
        put(n, CATEGORIES.len() as c_int)?;
    }

    fn MPI_T_category_changed(stamp: *mut c_int) on On::Nobody; {
        begun()?;
        // They stay as they are.
        put(stamp, 0)?;
    }

    fn MPI_T_category_get_info(
        at: c_int, name: *mut c_char, name_len: *mut c_int, desc: *mut c_char,
        desc_len: *mut c_int, cvars: *mut c_int, pvars: *mut c_int, categories: *mut c_int
    ) on On::Nobody; {
        begun()?;
        let category = category(at)?;
        put_string(name, name_len, category.name)?;
        put_string(desc, desc_len, category.description)?;
        put_if(cvars, (category.controls)().len() as c_int);
        put_if(pvars, (category.performances)().len() as c_int);
        put_if(categories, 0);
    }

    fn MPI_T_category_get_index(name: *const c_char, to: *mut c_int) on On::Nobody; {
        begun()?;
        let name = text(name)?;
        let found = CATEGORIES.iter().position(|category| category.name == name);
        put(to, found.ok_or_else(no_name)? as c_int)?;
    }

    fn MPI_T_category_get_cvars(at: c_int, len: c_int, to: *mut c_int) on On::Nobody; {
        begun()?;
        put_numbers((category(at)?.controls)(), len, to)?;
    }

    fn MPI_T_category_get_pvars(at: c_int, len: c_int, to: *mut c_int) on On::Nobody; {
        begun()?;
        put_numbers((category(at)?.performances)(), len, to)?;
    }

    fn MPI_T_category_get_categories(at: c_int, _len: c_int, _to: *mut c_int) on On::Nobody; {
        begun()?;
        category(at)?;
    }

    fn MPI_T_category_get_events(at: c_int, _len: c_int, _to: *mut c_int) on On::Nobody; {
        begun()?;
        category(at)?;
    }

    fn MPI_T_category_get_num_events(at: c_int, n: *mut c_int) on On::Nobody; {
        begun()?;
        category(at)?;
        put(n, 0)?;
    }

    fn MPI_T_event_get_num(n: *mut c_int) on On::Nobody; {
        begun()?;
        put(n, 0)?;
    }

    fn MPI_T_source_get_num(n: *mut c_int) on On::Nobody; {
        begun()?;
        put(n, 0)?;
    }

    fn MPI_T_event_get_index(_name: *const c_char, _to: *mut c_int) on On::Nobody; {
        begun()?;
        return Err(no_name());
    }

    // Enumerations: no variable has one.
    fn MPI_T_enum_get_info(
        _enumeration: usize, _n: *mut c_int, _name: *mut c_char, _len: *mut c_int
    ) on On::Nobody; {
        begun()?;
        return Err(Fail::new(MPI_T_ERR_INVALID_HANDLE, "a handle that is no enumeration"));
    }

    fn MPI_T_enum_get_item(
        _enumeration: usize, _at: c_int, _value: *mut c_int, _name: *mut c_char, _len: *mut c_int
    ) on On::Nobody; {
        begun()?;
        return Err(Fail::new(MPI_T_ERR_INVALID_HANDLE, "a handle that is no enumeration"));
    }
}

macro_rules! nothing {
    ($fail:expr; $(fn $name:ident($($arg:ident: $t:ty),*);)*) => {
        mpi! {$(
            fn $name($($arg: $t),*) on On::Nobody; {
                begun()?;
                $(let _ = $arg;)*
                return Err($fail);
            }
        )*}
    };
}

// There are no events, so no number and no handle is one of them.
nothing! {
    no_index();
    fn MPI_T_event_get_info(at: c_int);
    fn MPI_T_source_get_info(at: c_int);
    fn MPI_T_source_get_timestamp(at: c_int, stamp: *mut Count);
    fn MPI_T_event_handle_alloc(at: c_int, object: usize, info: Handle, to: *mut usize);
}

nothing! {
    not_supported();
    fn MPI_T_event_handle_free(handle: usize);
    fn MPI_T_event_handle_get_info(handle: usize);
    fn MPI_T_event_handle_set_info(handle: usize);
    fn MPI_T_event_register_callback(handle: usize);
    fn MPI_T_event_callback_get_info(handle: usize);
    fn MPI_T_event_callback_set_info(handle: usize);
    fn MPI_T_event_set_dropped_handler(handle: usize);
    fn MPI_T_event_read(instance: usize);
    fn MPI_T_event_copy(instance: usize);
    fn MPI_T_event_get_source(instance: usize);
    fn MPI_T_event_get_timestamp(instance: usize);
}
