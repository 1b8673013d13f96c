//! Types and numbers of the driver's C interface, as far as they are used.
//!
//! # Sources
//! NVIDIA, CUDA Driver API reference, version 12.2: data types, enumerations.

use std::ffi::{c_int, c_uint, c_void};

/// `CUresult`.
pub type Code = u32;
/// An opaque handle: context, stream, event and so on.
pub type Handle = u64;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(
            #[doc = $text]
            pub const $name: Code = $value;
        )*
        /// Every code with its name after `CUDA_` and a sentence; with a final 0
        /// because `cuGetErrorName` hands these out to C.
        pub const CODES: &[(Code, &str, &str)] = &[
            $(($value, concat!("CUDA_", stringify!($name), "\0"), concat!($text, "\0")),)*
        ];
    };
}

codes! {
    SUCCESS = 0, "no error";
    ERROR_INVALID_VALUE = 1, "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "initialization error";
    ERROR_NO_DEVICE = 100, "no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    ERROR_INVALID_IMAGE = 200, "device kernel image is invalid";
    ERROR_INVALID_CONTEXT = 201, "invalid device context";
    ERROR_ALREADY_MAPPED = 208, "resource already mapped";
    ERROR_NOT_MAPPED = 211, "resource not mapped";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    ERROR_INVALID_PTX = 218, "a PTX JIT compilation failed";
    ERROR_UNSUPPORTED_PTX_VERSION = 222, "the provided PTX was compiled with an unsupported toolchain.";
    ERROR_FILE_NOT_FOUND = 301, "file not found";
    ERROR_OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    ERROR_NOT_FOUND = 500, "named symbol not found";
    ERROR_NOT_READY = 600, "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    ERROR_CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    ERROR_MISALIGNED_ADDRESS = 716, "misaligned address";
    ERROR_LAUNCH_FAILED = 719, "unspecified launch failure";
    ERROR_NOT_PERMITTED = 800, "operation not permitted";
    ERROR_NOT_SUPPORTED = 801, "operation not supported";
    ERROR_SYSTEM_NOT_READY = 802, "system not yet initialized";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    ERROR_STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    ERROR_CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    ERROR_UNKNOWN = 999, "unknown error";
}

/// The driver's version: 12.2.
pub const DRIVER_VERSION: c_int = 12020;
/// The newest PTX that the driver takes: 8.2.
pub const PTX_VERSION: (u32, u32) = (8, 2);

/// The legacy default stream, as a handle.
pub const STREAM_LEGACY: Handle = 1;
/// The default stream of the calling thread, as a handle.
pub const STREAM_PER_THREAD: Handle = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
pub const EVENT_INTERPROCESS: c_uint = 4;
/// `CU_MEMORYTYPE_HOST`.
pub const MEMORY_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub const MEMORY_DEVICE: c_uint = 2;
/// `CU_MEMORYTYPE_UNIFIED`.
pub const MEMORY_UNIFIED: c_uint = 4;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const HANDLE_POSIX_FD: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: c_uint = 1;

/// `CUipcMemHandle`, `CUipcEventHandle`, `CUmemPoolPtrExportData`: opaque bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Opaque64(pub [u8; 64]);

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Location {
    pub kind: c_uint,
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct AllocationProp {
    pub kind: c_uint,
    pub handle_types: c_uint,
    pub location: Location,
    pub win32: *mut c_void,
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: c_uint,
}

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct MulticastProp {
    pub devices: c_uint,
    pub bytes: usize,
    pub handle_types: u64,
    pub flags: u64,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PoolProps {
    pub kind: c_uint,
    pub handle_types: c_uint,
    pub location: Location,
    pub win32: *mut c_void,
    pub max_bytes: usize,
    pub reserved: [u8; 56],
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Memcpy2D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_type: c_uint,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_type: c_uint,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D`; `CUDA_MEMCPY3D_PEER` has contexts in the places of `reserved`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Memcpy3D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_type: c_uint,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    pub src_reserved: u64,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_type: c_uint,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    pub dst_reserved: u64,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *const c_void,
    pub attribute_count: c_uint,
}
