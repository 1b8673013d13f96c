//! Handles as integers, for other languages.
//!
//! # Sources
//! MPI 5.0, chapter 20: a predefined handle is its own number.

use crate::abi::*;
use crate::complete;
use crate::environment::plain;
use crate::objects::*;
use crate::table::to_number;
use crate::windows::WINDOWS;

fn of(handle: Handle) -> c_int {
    match handle {
        handle if handle < 0x1000 => handle as c_int,
        handle => to_number(complete::numbered(handle)),
    }
}

macro_rules! pairs {
    ($(fn $to:ident, $from:ident: $null:ident $lookup:expr;)*) => {
        plain! {$(
            fn $to(handle: Handle) -> c_int {
                of(handle)
            }

            fn $from(number: c_int) -> Handle {
                match number {
                    0..0x1000 => number as Handle,
                    _ => {
                        let find: fn(u32) -> Option<Handle> = $lookup;
                        find(number as u32).unwrap_or($null)
                    }
                }
            }
        )*}
    };
}

pairs! {
    fn MPI_Comm_toint, MPI_Comm_fromint: MPI_COMM_NULL |n| COMMS.handle_of(n);
    fn MPI_Errhandler_toint, MPI_Errhandler_fromint: MPI_ERRHANDLER_NULL |n| ERRHANDLERS.handle_of(n);
    fn MPI_File_toint, MPI_File_fromint: MPI_FILE_NULL |_| None;
    fn MPI_Group_toint, MPI_Group_fromint: MPI_GROUP_NULL |n| GROUPS.handle_of(n);
    fn MPI_Info_toint, MPI_Info_fromint: MPI_INFO_NULL |n| INFOS.handle_of(n);
    fn MPI_Message_toint, MPI_Message_fromint: MPI_MESSAGE_NULL |n| MESSAGES.handle_of(n);
    fn MPI_Op_toint, MPI_Op_fromint: MPI_OP_NULL |n| OPS.handle_of(n);
    fn MPI_Request_toint, MPI_Request_fromint: MPI_REQUEST_NULL |n| complete::of_number(n).or_else(|| REQUESTS.handle_of(n));
    fn MPI_Session_toint, MPI_Session_fromint: MPI_SESSION_NULL |n| SESSIONS.handle_of(n);
    fn MPI_Type_toint, MPI_Type_fromint: MPI_DATATYPE_NULL |n| TYPES.handle_of(n);
    fn MPI_Win_toint, MPI_Win_fromint: MPI_WIN_NULL |n| WINDOWS.handle_of(n);
}
