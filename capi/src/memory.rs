//! `MPI_Alloc_mem` and `MPI_Free_mem`.
//!
//! Within MPI memory comes from the rank's part of the shared heap, where peers read it in
//! place; before and after, and where it does not fit, from the system's allocator. Which of
//! them, `MPI_Free_mem` knows by the address.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, number, put};
use crate::info::info;
use crate::state;
use osier_transports::shm::SharedHeap;
use std::sync::OnceLock;

/// The heap of this process's rank: it was joined once, and what it gave out may be freed
/// after `MPI_Finalize`.
static HEAP: OnceLock<Option<SharedHeap>> = OnceLock::new();

/// A cache line, as the heap aligns anyway.
const ALIGN: usize = 64;

fn heap() -> Option<&'static SharedHeap> {
    if !state::is_active() {
        return None;
    }
    let heap = HEAP.get_or_init(|| state::with(osier::Universe::heap).ok().flatten());
    heap.as_ref()
}

fn no_memory(bytes: usize) -> Fail {
    Fail::new(
        MPI_ERR_NO_MEM,
        format!("no memory for MPI_Alloc_mem of {bytes} bytes"),
    )
}

/// What `mpi_minimum_memory_alignment` says.
fn alignment(handle: Handle) -> Res<usize> {
    const KEY: &str = "mpi_minimum_memory_alignment";
    let info = info(handle)?;
    let Some(text) = info.get(KEY) else {
        return Ok(ALIGN);
    };
    let align = text.trim().parse::<usize>().ok();
    let align = align.filter(|align| align.is_power_of_two());
    let align = align.ok_or_else(|| {
        Fail::new(
            MPI_ERR_INFO_VALUE,
            format!("{KEY}={text:?} is no power of two"),
        )
    })?;
    Ok(align.max(ALIGN))
}

fn allocate(bytes: usize, align: usize) -> Res<usize> {
    if let Some(Ok(at)) = heap().map(|heap| heap.alloc(bytes, align)) {
        return Ok(at.expose_provenance());
    }
    let mut at = std::ptr::null_mut();
    // SAFETY: a place for the address; the alignment is a power of two and a multiple of a
    // pointer's.
    let failed = unsafe { libc::posix_memalign(&raw mut at, align, bytes.max(1)) } != 0;
    match failed || at.is_null() {
        true => Err(no_memory(bytes)),
        false => Ok(at.expose_provenance()),
    }
}

fn free(at: usize) -> Res {
    let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
    if let Some(heap) = HEAP.get().and_then(Option::as_ref)
        && heap.owns(at)
    {
        // SAFETY: the program says that it uses it no longer.
        return match unsafe { heap.free(at) } {
            true => Ok(()),
            false => Err(Fail::new(
                MPI_ERR_BASE,
                "memory that MPI_Alloc_mem did not return (hint: or that was freed before)",
            )),
        };
    }
    // SAFETY: null, or what `posix_memalign` has returned: all else lies in the heap.
    unsafe { libc::free(at.cast()) };
    Ok(())
}

mpi! {
    fn MPI_Alloc_mem(bytes: Aint, hints: Handle, base: *mut usize) on On::Own; {
        put(base, allocate(number(bytes)?, alignment(hints)?)?)?;
    }

    fn MPI_Free_mem(base: usize) on On::Own; {
        free(base)?;
    }
}
