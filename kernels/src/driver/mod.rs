//! The CUDA driver: loaded at first use, called through one table.
//!
//! The key `cuda-library` of `OSIER_DEBUG` names the library, else the loader seeks
//! `libcuda.so.1`. Nothing is opened before the first call, and a process
//! without devices never opens anything.
//!
//! # Invariants
//! 1. A library, a device or a function that is missing is
//!    [`DeviceError::Unavailable`]; nothing panics.
//! 2. Results are integers; a number of a newer driver is an error with its
//!    number.
//! 3. The library stays open for as long as the process lives.
//!
//! # Sources
//! CUDA Driver API reference 12.0. Why not cudarc's loader: decision 0030.

pub(crate) mod abi;
mod captures;
pub(crate) mod nvml;

use crate::debug;
use crate::error::{DeviceError, Result};
use crate::files;
use abi::*;
pub use captures::own_thread;
use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Memory is used up.
pub(crate) const OUT_OF_MEMORY: u32 = 2;

/// The device has no such thing, or what it needs besides does not run.
pub(crate) const NOT_SUPPORTED: u32 = 801;
pub(crate) const SYSTEM_NOT_READY: u32 = 802;

/// Memory of another process is mapped already.
pub(crate) const ALREADY_MAPPED: u32 = 208;

const LIBRARY: &str = "libcuda.so.1";

/// [`Driver::prefer`].
static PREFERRED: OnceLock<OsString> = OnceLock::new();

macro_rules! entry_points {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) $($beside:ident)?;)*) => {
        /// One field per function; `None` where the driver lacks it.
        #[allow(non_snake_case)]
        struct Table {
            $($name: Option<unsafe extern "C" fn($($ty),*) -> u32>,)*
        }

        impl Table {
            fn of(library: &libloading::Library) -> Table {
                Table {
                    // SAFETY: the signatures are those of the driver's header.
                    $($name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .ok()
                        .map(|symbol| *symbol),)*
                }
            }
        }

        /// All functions that this crate calls; the emulated driver has these.
        pub const ENTRY_POINTS: &[&str] = &[$(stringify!($name)),*];

        // Two functions are called through the table alone.
        #[allow(non_snake_case, dead_code, clippy::too_many_arguments)]
        impl Driver {
            $(
                /// As in the driver's reference.
                ///
                /// # Safety
                /// The contract of the driver's function.
                #[inline]
                pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> Result<()> {
                    let Some(function) = self.table.$name else {
                        return Err(missing(stringify!($name)));
                    };
                    $(let _relaxed = captures::$beside(self);)?
                    // SAFETY: the caller's contract.
                    let code = unsafe { function($($arg),*) };
                    match code {
                        0 => Ok(()),
                        code => Err(self.refused(stringify!($name), code)),
                    }
                }
            )*

            /// Whether the driver has a function.
            pub(crate) fn has(&self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.table.$name.is_some(),)*
                    _ => false,
                }
            }
        }
    };
}

// Calls that a capture of this or another thread may forbid, though they have nothing to do
// with it, are marked `beside_captures`.
entry_points! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName(code: u32, name: *mut Name);
    cuGetErrorString(code: u32, text: *mut Name);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut Device, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: Device);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: Device);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: Device);
    cuDeviceGetUuid(id: *mut Uuid, device: Device);
    cuDeviceGetUuid_v2(id: *mut Uuid, device: Device);
    cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: Device);
    cuDeviceCanAccessPeer(can: *mut c_int, device: Device, peer: Device);
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, device: Device, peer: Device);
    cuDevicePrimaryCtxRetain(context: *mut Context, device: Device);
    cuCtxGetCurrent(context: *mut Context);
    cuCtxPushCurrent_v2(context: Context);
    cuCtxPopCurrent_v2(context: *mut Context);
    cuCtxEnablePeerAccess(context: Context, flags: c_uint);
    cuStreamCreateWithPriority(stream: *mut Stream, flags: c_uint, priority: c_int) beside_captures;
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    cuStreamGetPriority(stream: Stream, priority: *mut c_int);
    cuStreamDestroy_v2(stream: Stream) beside_captures;
    cuStreamQuery(stream: Stream) beside_captures;
    cuStreamSynchronize(stream: Stream) beside_captures;
    cuStreamWaitEvent(stream: Stream, event: Event, flags: c_uint);
    cuStreamWriteValue32_v2(stream: Stream, at: DevicePointer, value: u32, flags: c_uint);
    cuStreamWaitValue32_v2(stream: Stream, at: DevicePointer, value: u32, flags: c_uint);
    cuLaunchHostFunc(stream: Stream, function: HostFunction, data: *mut c_void);
    cuStreamBeginCapture_v2(stream: Stream, mode: c_uint);
    cuStreamEndCapture(stream: Stream, graph: *mut Graph);
    cuStreamGetCaptureInfo(stream: Stream, status: *mut c_uint, id: *mut u64);
    cuStreamGetCaptureInfo_v2(
        stream: Stream,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut Graph,
        after: *mut *const c_void,
        count: *mut usize,
    );
    cuUserObjectCreate(
        object: *mut UserObject,
        data: *mut c_void,
        destroy: HostFunction,
        count: c_uint,
        flags: c_uint,
    );
    cuUserObjectRelease(object: UserObject, count: c_uint);
    cuGraphRetainUserObject(graph: Graph, object: UserObject, count: c_uint, flags: c_uint);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    cuGraphInstantiateWithFlags(executable: *mut GraphExec, graph: Graph, flags: u64) beside_captures;
    cuGraphLaunch(executable: GraphExec, stream: Stream);
    cuGraphDestroy(graph: Graph);
    cuGraphExecDestroy(executable: GraphExec);
    cuEventCreate(event: *mut Event, flags: c_uint) beside_captures;
    cuEventRecord(event: Event, stream: Stream);
    cuEventQuery(event: Event) beside_captures;
    cuEventSynchronize(event: Event) beside_captures;
    cuEventDestroy_v2(event: Event) beside_captures;
    cuMemAlloc_v2(memory: *mut DevicePointer, bytes: usize) beside_captures;
    cuMemFree_v2(memory: DevicePointer) beside_captures;
    cuMemGetAddressRange_v2(start: *mut DevicePointer, bytes: *mut usize, at: DevicePointer);
    cuMemAllocAsync(memory: *mut DevicePointer, bytes: usize, stream: Stream) beside_captures;
    cuMemFreeAsync(memory: DevicePointer, stream: Stream) beside_captures;
    cuMemPoolCreate(pool: *mut MemoryPool, props: *const PoolProps) beside_captures;
    cuDeviceGetDefaultMemPool(pool: *mut MemoryPool, device: Device);
    cuMemPoolSetAttribute(pool: MemoryPool, attribute: c_uint, value: *mut c_void);
    cuMemPoolGetAttribute(pool: MemoryPool, attribute: c_uint, value: *mut c_void);
    cuMemPoolDestroy(pool: MemoryPool);
    cuMemAllocFromPoolAsync(memory: *mut DevicePointer, bytes: usize, pool: MemoryPool, stream: Stream) beside_captures;
    cuMemPoolSetAccess(pool: MemoryPool, access: *const AccessDesc, count: usize);
    cuMemPoolExportToShareableHandle(shared: *mut c_void, pool: MemoryPool, kind: c_uint, flags: u64);
    cuMemPoolImportFromShareableHandle(pool: *mut MemoryPool, shared: *mut c_void, kind: c_uint, flags: u64) beside_captures;
    cuMemPoolExportPointer(handle: *mut IpcHandle, at: DevicePointer);
    cuMemPoolImportPointer(at: *mut DevicePointer, pool: MemoryPool, handle: *const IpcHandle) beside_captures;
    cuMemAllocManaged(memory: *mut DevicePointer, bytes: usize, flags: c_uint) beside_captures;
    cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) beside_captures;
    cuMemFreeHost(memory: *mut c_void) beside_captures;
    cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: c_uint) beside_captures;
    cuMemHostUnregister(memory: *mut c_void) beside_captures;
    cuMemHostGetDevicePointer_v2(device: *mut DevicePointer, host: *mut c_void, flags: c_uint);
    cuMemGetAllocationGranularity(bytes: *mut usize, prop: *const AllocationProp, option: c_uint);
    cuMemCreate(handle: *mut AllocationHandle, bytes: usize, prop: *const AllocationProp, flags: u64) beside_captures;
    cuMemRelease(handle: AllocationHandle) beside_captures;
    cuMemRetainAllocationHandle(handle: *mut AllocationHandle, at: DevicePointer);
    cuMemAddressReserve(at: *mut DevicePointer, bytes: usize, alignment: usize, hint: DevicePointer, flags: u64) beside_captures;
    cuMemAddressFree(at: DevicePointer, bytes: usize) beside_captures;
    cuMemMap(at: DevicePointer, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64) beside_captures;
    cuMemUnmap(at: DevicePointer, bytes: usize) beside_captures;
    cuMemSetAccess(at: DevicePointer, bytes: usize, access: *const AccessDesc, count: usize) beside_captures;
    cuMemExportToShareableHandle(shared: *mut c_void, handle: AllocationHandle, kind: c_uint, flags: u64);
    cuMemImportFromShareableHandle(handle: *mut AllocationHandle, shared: *mut c_void, kind: c_uint);
    cuMulticastCreate(handle: *mut AllocationHandle, prop: *const MulticastProp);
    cuMulticastAddDevice(handle: AllocationHandle, device: Device);
    cuMulticastBindMem(
        handle: AllocationHandle,
        at: usize,
        memory: AllocationHandle,
        from: usize,
        bytes: usize,
        flags: u64,
    );
    cuMulticastGetGranularity(bytes: *mut usize, prop: *const MulticastProp, option: c_uint);
    cuMemcpyAsync(dst: DevicePointer, src: DevicePointer, bytes: usize, stream: Stream);
    cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: Stream);
    cuMemcpy3DAsync_v2(copy: *const Copy3d, stream: Stream);
    cuMemcpyBatchAsync(
        dst: *mut DevicePointer,
        src: *mut DevicePointer,
        bytes: *mut usize,
        count: usize,
        attributes: *mut BatchAttributes,
        first: *mut usize,
        attribute_count: usize,
        failed: *mut usize,
        stream: Stream,
    );
    cuMemsetD8Async(at: DevicePointer, value: u8, bytes: usize, stream: Stream);
    cuPointerGetAttributes(count: c_uint, which: *mut c_uint, values: *mut *mut c_void, at: DevicePointer);
    cuIpcGetMemHandle(handle: *mut IpcHandle, at: DevicePointer);
    cuIpcOpenMemHandle_v2(at: *mut DevicePointer, handle: IpcHandle, flags: c_uint) beside_captures;
    cuIpcCloseMemHandle(at: DevicePointer) beside_captures;
    cuIpcGetEventHandle(handle: *mut IpcHandle, event: Event);
    cuIpcOpenEventHandle(event: *mut Event, handle: IpcHandle) beside_captures;
    cuModuleLoadDataEx(
        module: *mut Module,
        image: *const c_void,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) beside_captures;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: Function,
        threads: c_int,
        shared_bytes: usize,
    );
    cuModuleGetFunction(function: *mut Function, module: Module, name: Name) beside_captures;
    cuLaunchKernel(
        function: Function,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint,
        stream: Stream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
}

/// The loaded driver.
pub struct Driver {
    table: Table,
    library: String,
    /// Invariant 3.
    _library: libloading::Library,
}

fn missing(name: &str) -> DeviceError {
    DeviceError::Unavailable(format!(
        "the driver has no {name} (hint: it may be too old)"
    ))
}

/// This build has no kernels.
pub(crate) fn left_out() -> DeviceError {
    DeviceError::Unavailable(
        "this build is without the feature `gpu` (hint: it is on by default)".into(),
    )
}

impl Driver {
    /// The process's driver, loaded and initialised by the first call.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] with the reason, the same at every call.
    pub fn get() -> Result<&'static Driver> {
        static READY: OnceLock<Result<&'static Driver>> = OnceLock::new();
        READY
            .get_or_init(|| {
                let driver = Driver::opened()?;
                driver.initialise()?;
                Ok(driver)
            })
            .clone()
    }

    /// The process's driver, loaded; perhaps nobody has initialised it.
    pub(crate) fn opened() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER
            .get_or_init(|| {
                if cfg!(not(feature = "gpu")) {
                    return Err(left_out());
                }
                let named = debug::value(debug::CUDA_LIBRARY);
                let name = named.or_else(|| PREFERRED.get().cloned());
                Driver::open(&name.unwrap_or_else(|| LIBRARY.into()))
            })
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Whether there is a driver on this machine, as it is when this is first asked: all ranks of
    /// a process have one answer. Without a name the system's is looked for, and another may
    /// still be named.
    pub fn is_there() -> bool {
        static THERE: OnceLock<bool> = OnceLock::new();
        if cfg!(not(feature = "gpu")) {
            return false;
        }
        *THERE.get_or_init(|| {
            if debug::value(debug::CUDA_LIBRARY).is_some() || PREFERRED.get().is_some() {
                return Driver::opened().is_ok();
            }
            // SAFETY: the initialisers of the system's driver run.
            let library = unsafe { libloading::Library::new(LIBRARY) };
            let found = library.is_ok();
            // The library stays loaded: a later call opens it again.
            std::mem::forget(library);
            found
        })
    }

    /// Names the library to load where `OSIER_DEBUG` names none; says whether it
    /// came before any other name. Has no effect behind the first [`Driver::get`].
    pub fn prefer(library: impl Into<OsString>) -> bool {
        PREFERRED.set(library.into()).is_ok()
    }

    /// Loads and initialises a library.
    #[cfg(test)]
    fn load(name: &OsString) -> Result<Driver> {
        let driver = Driver::open(name)?;
        driver.initialise()?;
        Ok(driver)
    }

    fn initialise(&self) -> Result<()> {
        // SAFETY: any thread may initialise, any number of times.
        unsafe { self.cuInit(0) }
            .map_err(|error| DeviceError::Unavailable(format!("no device: {error}")))
    }

    /// Loads a library.
    fn open(name: &OsString) -> Result<Driver> {
        let shown = name.to_string_lossy().into_owned();
        files::may_be_loaded(name).map_err(|why| {
            DeviceError::Unavailable(format!("cannot load the CUDA driver {shown}: {why}"))
        })?;
        // SAFETY: the library's initialisers run; it is the system's driver, or
        // one that the user names.
        let library = unsafe { libloading::Library::new(name) }.map_err(|error| {
            // The loader's own words are the cause behind the error.
            let cause = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), |e| e.to_string());
            DeviceError::Unavailable(format!("cannot load the CUDA driver {shown}: {cause}"))
        })?;
        Ok(Driver {
            table: Table::of(&library),
            library: shown,
            _library: library,
        })
    }

    /// First address and bytes of the piece of mapped memory, or of the allocation of a pool,
    /// that holds an address, of which the attributes tell the reservation alone. A context is
    /// current.
    pub(crate) fn piece(&self, at: DevicePointer) -> Result<(u64, usize)> {
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: places for an address and a number.
        unsafe { self.cuMemGetAddressRange_v2(&mut start, &mut bytes, at) }?;
        Ok((start, bytes))
    }

    /// What the memory at an address is; 0 of what the driver does not know, and of
    /// everything while nobody has initialised it. Tells of no error.
    pub(crate) fn memory_type(&self, at: DevicePointer) -> c_uint {
        let Some(function) = self.table.cuPointerGetAttributes else {
            return 0;
        };
        let mut kind: c_uint = 0;
        let mut which = [POINTER_MEMORY_TYPE];
        let mut values = [(&raw mut kind).cast::<c_void>()];
        // SAFETY: one attribute, one place for it.
        match unsafe { function(1, which.as_mut_ptr(), values.as_mut_ptr(), at) } {
            0 => kind,
            _ => 0,
        }
    }

    /// The library, for what it brings besides.
    pub(crate) fn loaded(&self) -> &libloading::Library {
        &self._library
    }

    /// The library's name, as it was asked for.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// The version of CUDA that the driver supports: major, minor.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn version(&self) -> Result<(i32, i32)> {
        let mut version = 0;
        // SAFETY: a place for one number.
        unsafe { self.cuDriverGetVersion(&mut version) }?;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Number of devices.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: a place for one number.
        unsafe { self.cuDeviceGetCount(&mut count) }?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Functions of [`ENTRY_POINTS`] that this driver lacks.
    pub fn lacks(&self) -> Vec<&'static str> {
        let lacks = ENTRY_POINTS.iter().filter(|name| !self.has(name));
        lacks.copied().collect()
    }

    #[cold]
    fn refused(&self, call: &'static str, code: u32) -> DeviceError {
        if code == abi::NOT_READY {
            return DeviceError::NotReady; // asked again and again
        }
        let name = self.told(self.table.cuGetErrorName, code);
        let text = self.told(self.table.cuGetErrorString, code);
        DeviceError::Driver {
            call,
            code,
            name: name.unwrap_or_else(|| "unknown error".into()),
            text: text.unwrap_or_else(|| "the driver does not say more".into()),
        }
    }

    fn told(
        &self,
        function: Option<unsafe extern "C" fn(u32, *mut Name) -> u32>,
        code: u32,
    ) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: a place for one pointer.
        let answer = unsafe { function?(code, &mut text) };
        if answer != 0 || text.is_null() {
            return None;
        }
        // SAFETY: the driver's strings are constants that end with zero.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_library_is_an_answer() {
        let error = Driver::load(&"/nowhere/libcuda.so.1".into()).err().unwrap();
        let DeviceError::Unavailable(reason) = &error else {
            panic!("{error}");
        };
        assert!(reason.contains("/nowhere/libcuda.so.1"), "{reason}");
    }

    /// A library without the driver's functions: the first one is missed.
    #[test]
    fn no_function_is_an_answer() {
        let error = Driver::load(&"libm.so.6".into()).err().unwrap();
        assert!(error.to_string().contains("cuInit"), "{error}");
    }
}
