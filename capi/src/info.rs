//! Info objects.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, get, number, put, put_text, text};
use crate::objects::{INFOS, comm, lock};
use osier::attributes::Info;
use std::sync::Mutex;

fn bad_info(message: &'static str) -> Fail {
    Fail::new(MPI_ERR_INFO, message)
}

/// The pairs of a handle.
pub fn info(handle: Handle) -> Res<Info> {
    match handle {
        MPI_INFO_NULL => Ok(Info::new()),
        MPI_INFO_ENV => Ok(Info::env()),
        handle => Ok(lock(object(handle)?).clone()),
    }
}

fn object(handle: Handle) -> Res<&'static Mutex<Info>> {
    INFOS.get(handle).ok_or_else(|| match handle {
        MPI_INFO_NULL => bad_info("MPI_INFO_NULL in place of an info object"),
        MPI_INFO_ENV => bad_info("MPI_INFO_ENV cannot be changed"),
        _ => bad_info("a handle that is no info object (hint: it was freed, or never set)"),
    })
}

fn readable(handle: Handle) -> Res<Info> {
    match handle {
        MPI_INFO_NULL => Err(bad_info("MPI_INFO_NULL in place of an info object")),
        handle => info(handle),
    }
}

pub fn new_info(info: Info) -> Handle {
    INFOS.insert(Mutex::new(info))
}

fn key(from: *const c_char) -> Res<String> {
    let key = text(from)?.into_owned();
    if key.is_empty() || key.len() >= MPI_MAX_INFO_KEY as usize {
        return Err(Fail::new(
            MPI_ERR_INFO_KEY,
            format!(
                "a key of {} bytes (hint: 1 to {})",
                key.len(),
                MPI_MAX_INFO_KEY - 1
            ),
        ));
    }
    Ok(key)
}

mpi! {
    fn MPI_Info_create(to: *mut Handle) on On::Own; {
        put(to, new_info(Info::new()))?;
    }

    fn MPI_Info_create_env(_argc: c_int, _argv: *mut *mut c_char, to: *mut Handle) on On::Own; {
        put(to, new_info(Info::env()))?;
    }

    fn MPI_Info_dup(from: Handle, to: *mut Handle) on On::Own; {
        put(to, new_info(readable(from)?))?;
    }

    fn MPI_Info_free(on: *mut Handle) on On::Own; {
        let handle = get(on)?;
        object(handle)?;
        INFOS.remove(handle);
        put(on, MPI_INFO_NULL)?;
    }

    fn MPI_Info_set(on: Handle, name: *const c_char, value: *const c_char) on On::Own; {
        let name = key(name)?;
        let value = text(value)?.into_owned();
        if value.len() >= MPI_MAX_INFO_VAL as usize {
            return Err(Fail::new(MPI_ERR_INFO_VALUE, "a value that is too long"));
        }
        lock(object(on)?).set(name, value)?;
    }

    fn MPI_Info_delete(on: Handle, name: *const c_char) on On::Own; {
        let name = key(name)?;
        let mut info = lock(object(on)?);
        if info.get(&name).is_none() {
            return Err(Fail::new(MPI_ERR_INFO_NOKEY, format!("no key {name:?}")));
        }
        info.delete(&name)?;
    }

    fn MPI_Info_get(on: Handle, name: *const c_char, room: c_int, value: *mut c_char, flag: *mut c_int) on On::Own; {
        let info = readable(on)?;
        let found = info.get(&key(name)?).map(str::to_owned);
        put(flag, c_int::from(found.is_some()))?;
        if let Some(found) = found {
            put_text(value, number(room)? + 1, &found, std::ptr::null_mut())?;
        }
    }

    fn MPI_Info_get_valuelen(on: Handle, name: *const c_char, length: *mut c_int, flag: *mut c_int) on On::Own; {
        let info = readable(on)?;
        let name = key(name)?;
        let found = info.get(&name);
        put(flag, c_int::from(found.is_some()))?;
        if let Some(found) = found {
            put(length, found.len() as c_int)?;
        }
    }

    fn MPI_Info_get_string(on: Handle, name: *const c_char, room: *mut c_int, value: *mut c_char, flag: *mut c_int) on On::Own; {
        let info = readable(on)?;
        let name = key(name)?;
        let found = info.get(&name);
        put(flag, c_int::from(found.is_some()))?;
        if let Some(found) = found {
            let given = number(get(room)?)?;
            if given > 0 {
                put_text(value, given, found, std::ptr::null_mut())?;
            }
            put(room, found.len() as c_int + 1)?;
        }
    }

    fn MPI_Info_get_nkeys(on: Handle, n: *mut c_int) on On::Own; {
        put(n, readable(on)?.len() as c_int)?;
    }

    fn MPI_Info_get_nthkey(on: Handle, n: c_int, to: *mut c_char) on On::Own; {
        let info = readable(on)?;
        let found = usize::try_from(n).ok().and_then(|n| info.nth_key(n));
        match found {
            Some(found) => put_text(to, MPI_MAX_INFO_KEY as usize, found, std::ptr::null_mut())?,
            None => return Err(Fail::new(MPI_ERR_ARG, format!("no key number {n}"))),
        }
    }

    fn MPI_Comm_set_info(on: Handle, from: Handle) on On::Comm(on); {
        let pairs = info(from)?;
        comm(on)?.comm.set_info(&pairs);
    }

    fn MPI_Comm_get_info(on: Handle, to: *mut Handle) on On::Comm(on); {
        put(to, new_info(comm(on)?.comm.info()))?;
    }

    fn MPI_Get_hw_resource_info(to: *mut Handle) on On::Own; {
        put(to, new_info(osier::communicators::hardware_info()))?;
    }

    fn MPI_Abi_get_info(to: *mut Handle) on On::Own; {
        let mut info = Info::new();
        for key in ["mpi_aint_size", "mpi_count_size", "mpi_offset_size"] {
            info.set(key, "8")?;
        }
        put(to, new_info(info))?;
    }

    fn MPI_Abi_get_fortran_info(to: *mut Handle) on On::Own; {
        let mut info = Info::new();
        let sizes = [("logical", "4"), ("integer", "4"), ("real", "4"), ("double_precision", "8")];
        for (name, size) in sizes {
            info.set(format!("mpi_{name}_size"), size)?;
        }
        let sized: [(&str, &[u32]); 4] = [
            ("logical", &[1, 2, 4, 8, 16]),
            ("integer", &[1, 2, 4, 8, 16]),
            ("real", &[2, 4, 8, 16]),
            ("complex", &[4, 8, 16, 32]),
        ];
        for (name, sizes) in sized {
            for size in sizes {
                info.set(format!("mpi_{name}{size}_supported"), "true")?;
            }
        }
        info.set("mpi_double_complex_supported", "true")?;
        put(to, new_info(info))?;
    }

    fn MPI_Abi_set_fortran_info(given: Handle) on On::Own; {
        info(given)?;
        return Err(Fail::new(MPI_ERR_ABI, "what is known of Fortran's types was set before"));
    }
}
