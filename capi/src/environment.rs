//! Beginning and end, clocks, names, versions, memory.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, argument, array_mut, put, put_text};
use crate::objects::comm;
use crate::state;
use std::time::Instant;

/// Whether a level of threads makes sense, and the one that is given: what is asked for.
fn provide(required: c_int, provided: *mut c_int) -> Res {
    let known = [
        MPI_THREAD_SINGLE,
        MPI_THREAD_FUNNELED,
        MPI_THREAD_SERIALIZED,
        MPI_THREAD_MULTIPLE,
    ];
    if !known.contains(&required) {
        return Err(argument(format!("{required} is no level of threads")));
    }
    state::initialise(required)?;
    put(provided, required)
}

/// Seconds since some moment of the machine's, alike in all processes.
#[inline]
fn now() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a clock that every Linux has, and room for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn tick() -> f64 {
    let (start, mut now) = (Instant::now(), Instant::now());
    while now == start {
        now = Instant::now();
    }
    (now - start).as_secs_f64()
}

fn processor() -> String {
    let mut name = [0u8; MPI_MAX_PROCESSOR_NAME as usize];
    // SAFETY: so many bytes are there.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } != 0;
    if failed {
        return "unknown".into();
    }
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

const VERSION: &str = concat!(
    "Osier ",
    env!("CARGO_PKG_VERSION"),
    ", MPI 5.0, standard ABI 1.0"
);

mpi! {
    fn MPI_Init(_argc: *mut c_int, _argv: *mut *mut *mut c_char) on On::Own; {
        state::initialise(MPI_THREAD_SINGLE)?;
    }

    fn MPI_Init_thread(
        _argc: *mut c_int, _argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int
    ) on On::Own; {
        provide(required, provided)?;
    }

    fn MPI_Finalize() on On::Own; {
        state::finalise()?;
    }

    fn MPI_Initialized(flag: *mut c_int) on On::Own; {
        put(flag, c_int::from(state::is_initialised()))?;
    }

    fn MPI_Finalized(flag: *mut c_int) on On::Own; {
        put(flag, c_int::from(state::is_finalised()))?;
    }

    fn MPI_Query_thread(provided: *mut c_int) on On::Own; {
        if !state::is_initialised() {
            return Err(state::not_initialised());
        }
        put(provided, state::level())?;
    }

    fn MPI_Is_thread_main(flag: *mut c_int) on On::Own; {
        if !state::is_initialised() {
            return Err(state::not_initialised());
        }
        put(flag, c_int::from(state::is_main()))?;
    }

    fn MPI_Abort(on: Handle, code: c_int) on On::Own; {
        let _ = comm(on);
        let rank = state::rank().map_or(String::new(), |rank| format!("rank {rank}: "));
        osier_engine::diagnose::tell(format_args!("{rank}MPI_Abort with code {code}"));
        state::abort(code);
    }

    fn MPI_Get_version(version: *mut c_int, subversion: *mut c_int) on On::Own; {
        put(version, MPI_VERSION)?;
        put(subversion, MPI_SUBVERSION)?;
    }

    fn MPI_Abi_get_version(major: *mut c_int, minor: *mut c_int) on On::Own; {
        put(major, MPI_ABI_VERSION)?;
        put(minor, MPI_ABI_SUBVERSION)?;
    }

    fn MPI_Get_library_version(version: *mut c_char, length: *mut c_int) on On::Own; {
        put_text(version, MPI_MAX_LIBRARY_VERSION_STRING as usize, VERSION, length)?;
    }

    fn MPI_Get_processor_name(name: *mut c_char, length: *mut c_int) on On::Own; {
        put_text(name, MPI_MAX_PROCESSOR_NAME as usize, &processor(), length)?;
    }

    fn MPI_Pcontrol(_level: c_int) on On::Nobody; {}

    fn MPI_Abi_get_fortran_booleans(
        size: c_int, yes: *mut u8, no: *mut u8, is_set: *mut c_int
    ) on On::Own; {
        let size = match size {
            1 | 2 | 4 | 8 | 16 => size as usize,
            _ => return Err(argument(format!("no logical has {size} bytes"))),
        };
        for (to, value) in [(yes, 1u8), (no, 0)] {
            let bytes = array_mut(to, size)?;
            bytes.fill(0);
            let at = if cfg!(target_endian = "little") { 0 } else { size - 1 };
            bytes[at] = value;
        }
        put(is_set, 1)?;
    }

    fn MPI_Abi_set_fortran_booleans(_size: c_int, _yes: *mut u8, _no: *mut u8) on On::Own; {
        // The library has them since it was built, and they are set once.
        return Err(Fail::new(MPI_ERR_ABI, "Fortran's booleans were set before"));
    }
}

/// Functions that return no code.
macro_rules! plain {
    ($(fn $name:ident($($arg:ident: $t:ty),*) -> $r:ty $body:block)*) => {$(
        const _: () = {
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            extern "C" fn profiled($($arg: $t),*) -> $r $body

            #[unsafe(export_name = stringify!($name))]
            extern "C" fn twin($($arg: $t),*) -> $r {
                profiled($($arg),*)
            }
        };
    )*};
}
pub(crate) use plain;

plain! {
    fn MPI_Wtime() -> f64 {
        now()
    }

    fn MPI_Wtick() -> f64 {
        tick()
    }

    fn MPI_Aint_add(base: Aint, displacement: Aint) -> Aint {
        base.wrapping_add(displacement)
    }

    fn MPI_Aint_diff(one: Aint, other: Aint) -> Aint {
        one.wrapping_sub(other)
    }
}
