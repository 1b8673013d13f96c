//! Entry from C: argument checks, panics, and errors.

use crate::abi::*;
use crate::errors;
use crate::fail::{Fail, Res};
use crate::held;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whose error handler hears of an error.
#[derive(Clone, Copy, Debug)]
pub enum On {
    /// A communicator's.
    Comm(Handle),
    /// A session's.
    Session(Handle),
    /// A window's.
    Win(Handle),
    /// That of `MPI_COMM_SELF`, or of `MPI_COMM_WORLD` if the program has set only that: of
    /// calls that have no object.
    Own,
    /// The one that was given for what is made: its handle, and the null handle of that.
    Given(Handle, Handle),
    /// Nobody's: the code is returned.
    Nobody,
}

/// Runs a body; what it fails with goes to the handler. A panic is an error, too.
#[inline(always)]
pub fn call(name: &'static str, on: On, body: impl FnOnce() -> Res) -> c_int {
    held::enters(name, on);
    let done = catch_unwind(AssertUnwindSafe(body));
    held::returns();
    match done {
        Ok(Ok(())) => MPI_SUCCESS,
        Ok(Err(e)) => errors::failed(name, on, e),
        Err(_) => panicked(name, on),
    }
}

/// Takes an error to its handler; the code to return.
#[cold]
pub fn failed(name: &'static str, on: On, e: Fail) -> c_int {
    errors::failed(name, on, e)
}

#[cold]
fn panicked(name: &'static str, on: On) -> c_int {
    let e = Fail::new(
        MPI_ERR_INTERN,
        "a defect of the library (hint: what it said stands above)",
    );
    errors::failed(name, on, e)
}

/// Functions of the interface: each is exported as `MPI_X` and as `PMPI_X`. A pair of names
/// is written once; `N` stands for `c_int` in the first and for [`Count`] in the second.
///
/// What follows `on` says whose error handler hears of errors.
///
/// `hot` in front of `fn` has the body in both, where a jump between them counts: it is
/// inlined, so that no argument moves. Nothing catches panics there, because all that the
/// body needs would go through memory: a panic ends the process, as it does in any function
/// of C's convention.
macro_rules! mpi {
    () => {};
    (
        hot fn $name:ident($($arg:ident: $t:ty),* $(,)?) on $on:expr; $body:block
        $($rest:tt)*
    ) => {
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "as many as the standard's")]
            #[inline(always)]
            fn body($($arg: $t),*) -> $crate::fail::Res {
                $body
                #[allow(unreachable_code)]
                Ok(())
            }

            #[allow(clippy::too_many_arguments, reason = "as many as the standard's")]
            #[inline(always)]
            fn both($($arg: $t),*) -> $crate::abi::c_int {
                $crate::held::enters(stringify!($name), $on);
                let done = body($($arg),*);
                $crate::held::returns();
                match done {
                    Ok(()) => $crate::abi::MPI_SUCCESS,
                    Err(e) => $crate::call::failed(stringify!($name), $on, e),
                }
            }

            #[unsafe(export_name = concat!("P", stringify!($name)))]
            extern "C" fn profiled($($arg: $t),*) -> $crate::abi::c_int {
                both($($arg),*)
            }

            #[unsafe(export_name = stringify!($name))]
            extern "C" fn twin($($arg: $t),*) -> $crate::abi::c_int {
                both($($arg),*)
            }
        };
        mpi! { $($rest)* }
    };
    (
        hot fn $name:ident, $large:ident<$N:ident>($($arg:ident: $t:ty),* $(,)?) on $on:expr; $body:block
        $($rest:tt)*
    ) => {
        const _: () = {
            type $N = $crate::abi::c_int;
            mpi! { hot fn $name($($arg: $t),*) on $on; $body }
        };
        const _: () = {
            type $N = $crate::abi::Count;
            mpi! { fn $large($($arg: $t),*) on $on; $body }
        };
        mpi! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $t:ty),* $(,)?) on $on:expr; $body:block
        $($rest:tt)*
    ) => {
        const _: () = {
            $(#[$meta])*
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            extern "C" fn profiled($($arg: $t),*) -> $crate::abi::c_int {
                $crate::call::call(stringify!($name), $on, move || -> $crate::fail::Res {
                    $body
                    #[allow(unreachable_code)]
                    Ok(())
                })
            }

            #[unsafe(export_name = stringify!($name))]
            extern "C" fn twin($($arg: $t),*) -> $crate::abi::c_int {
                profiled($($arg),*)
            }
        };
        mpi! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        fn $name:ident, $large:ident<$N:ident>($($arg:ident: $t:ty),* $(,)?) on $on:expr; $body:block
        $($rest:tt)*
    ) => {
        const _: () = {
            type $N = $crate::abi::c_int;
            mpi! {
                $(#[$meta])*
                fn $name($($arg: $t),*) on $on; $body
            }
        };
        const _: () = {
            type $N = $crate::abi::Count;
            mpi! {
                $(#[$meta])*
                fn $large($($arg: $t),*) on $on; $body
            }
        };
        mpi! { $($rest)* }
    };
}
pub(crate) use mpi;
