//! Types and numbers of the CUDA driver's C interface, as far as used.
//!
//! Results and attributes are plain integers, not enums: a newer driver returns
//! numbers that no header of today has, and an enum of Rust with an unknown
//! value is undefined behaviour.
//!
//! # Sources
//! CUDA Driver API reference, version 12.0: types, functions with their suffixes
//! (`_v2`) as exported by the library.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

pub type Device = c_int;

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Uuid(pub [u8; 16]);

pub type DevicePointer = u64;

/// Opaque objects of the driver: a pointer that is only handed back.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub *mut c_void);

        // SAFETY: the driver's objects may be used from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above; the driver locks inside.
        unsafe impl Sync for $name {}

        impl $name {
            pub const NULL: $name = $name(std::ptr::null_mut());
        }
    )*};
}

opaque!(
    Context, Stream, Event, Module, Function, Graph, GraphExec, MemoryPool, UserObject
);

pub type AllocationHandle = u64;

/// `CUhostFn`.
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

pub const NOT_READY: u32 = 600;
pub const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;

pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const CAPTURE_RELAXED: c_uint = 2;
pub const USER_OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;
pub const GRAPH_USER_OBJECT_MOVE: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const EVENT_INTERPROCESS: c_uint = 4;
pub const HOST_ALLOC_PORTABLE: c_uint = 1;
pub const HOST_ALLOC_DEVICEMAP: c_uint = 2;
pub const HOST_REGISTER_PORTABLE: c_uint = 1;
pub const HOST_REGISTER_DEVICEMAP: c_uint = 2;
pub const MEM_ATTACH_GLOBAL: c_uint = 1;
pub const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

pub const MEMORY_HOST: c_uint = 1;
pub const MEMORY_DEVICE: c_uint = 2;
pub const MEMORY_UNIFIED: c_uint = 4;

pub const POINTER_MEMORY_TYPE: c_uint = 2;
pub const POINTER_BUFFER_ID: c_uint = 7;
pub const POINTER_IS_MANAGED: c_uint = 8;
pub const POINTER_DEVICE_ORDINAL: c_uint = 9;
pub const POINTER_IS_LEGACY_IPC_CAPABLE: c_uint = 10;
pub const POINTER_RANGE_START: c_uint = 11;
pub const POINTER_RANGE_SIZE: c_uint = 12;
pub const POINTER_ALLOWED_HANDLE_TYPES: c_uint = 14;
pub const POINTER_MEMPOOL_HANDLE: c_uint = 17;

pub const DEVICE_MULTIPROCESSORS: c_uint = 16;
pub const DEVICE_CAPABILITY_MAJOR: c_uint = 75;
pub const DEVICE_CAPABILITY_MINOR: c_uint = 76;
pub const DEVICE_MANAGED_MEMORY: c_uint = 83;
pub const DEVICE_VIRTUAL_MEMORY: c_uint = 102;
pub const DEVICE_POSIX_HANDLES: c_uint = 103;
/// Of two devices: how good their link is, and whether all atomic operations work over it.
pub const P2P_PERFORMANCE_RANK: c_uint = 1;
pub const P2P_NATIVE_ATOMICS: c_uint = 3;
pub const DEVICE_MEMORY_POOLS: c_uint = 115;
pub const DEVICE_POOL_HANDLES: c_uint = 119;
pub const DEVICE_MULTICAST: c_uint = 132;
pub const DEVICE_MPS: c_uint = 133;

/// Of a pool: bytes that it keeps when a stream is synchronized; `u64`.
pub const POOL_RELEASE_THRESHOLD: c_uint = 4;

pub const ALLOCATION_PINNED: c_uint = 1;
pub const LOCATION_DEVICE: c_uint = 1;
pub const HANDLE_POSIX_FD: c_uint = 1;
pub const GRANULARITY_MINIMUM: c_uint = 0;
pub const ACCESS_READ_WRITE: c_uint = 3;

/// `CUipcMemHandle`, `CUipcEventHandle` and `CUmemPoolPtrExportData`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpcHandle(pub [u8; 64]);

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Location {
    pub kind: c_uint,
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocationProp {
    pub kind: c_uint,
    pub handle_kinds: c_uint,
    pub location: Location,
    pub win32: *mut c_void,
    pub compression: c_uchar,
    pub rdma: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

/// `CUmulticastObjectProp`, since 12.1.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MulticastProp {
    pub devices: c_uint,
    pub bytes: usize,
    pub handle_kinds: u64,
    pub flags: u64,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PoolProps {
    pub kind: c_uint,
    pub handle_kinds: c_uint,
    pub location: Location,
    pub win32: *mut c_void,
    /// 0: as much as there is.
    pub most_bytes: usize,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 54],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: c_uint,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Copy2d {
    pub src_x: usize,
    pub src_y: usize,
    pub src_kind: c_uint,
    pub src_host: *const c_void,
    pub src: DevicePointer,
    pub src_array: *mut c_void,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_kind: c_uint,
    pub dst_host: *mut c_void,
    pub dst: DevicePointer,
    pub dst_array: *mut c_void,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Copy3d {
    pub src_x: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_kind: c_uint,
    pub src_host: *const c_void,
    pub src: DevicePointer,
    pub src_array: *mut c_void,
    pub reserved0: *mut c_void,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_kind: c_uint,
    pub dst_host: *mut c_void,
    pub dst: DevicePointer,
    pub dst_array: *mut c_void,
    pub reserved1: *mut c_void,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUmemcpyAttributes`, since 12.8.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BatchAttributes {
    /// 1: sources are read in stream order.
    pub order: c_uint,
    pub src_hint: Location,
    pub dst_hint: Location,
    pub flags: c_uint,
}

pub type Name = *const c_char;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes on 64-bit Linux, from the C header.
    #[test]
    fn sizes_are_those_of_c() {
        assert_eq!(size_of::<IpcHandle>(), 64);
        assert_eq!(size_of::<AllocationProp>(), 32);
        assert_eq!(size_of::<AccessDesc>(), 12);
        assert_eq!(size_of::<MulticastProp>(), 32);
        assert_eq!(size_of::<PoolProps>(), 88);
        assert_eq!(size_of::<Copy2d>(), 128);
        assert_eq!(size_of::<Copy3d>(), 200);
        assert_eq!(size_of::<BatchAttributes>(), 24);
    }
}
