//! Missing functions: they can be bound, return an error, and say so once.

use crate::abi::{MPI_ERR_UNSUPPORTED_OPERATION, c_int};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[cold]
fn unsupported(name: &str, said: &AtomicBool) -> c_int {
    if !said.swap(true, Relaxed) {
        osier_engine::diagnose::tell(format_args!(
            "{name} is not supported yet: it returns MPI_ERR_UNSUPPORTED_OPERATION (hint: docs/mpi-coverage.md lists what is)"
        ));
    }
    MPI_ERR_UNSUPPORTED_OPERATION
}

/// Whatever the arguments are, the caller has them: this calling convention lets a
/// function ignore them.
macro_rules! missing {
    ($($name:ident)*) => {$(
        const _: () = {
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            extern "C" fn absent() -> c_int {
                static SAID: AtomicBool = AtomicBool::new(false);
                unsupported(stringify!($name), &SAID)
            }

            #[unsafe(export_name = stringify!($name))]
            extern "C" fn twin() -> c_int {
                absent()
            }
        };
    )*};
}

include!(concat!(env!("OUT_DIR"), "/missing.rs"));
