//! The kernels of one device: modules loaded at first use, functions by name.

use crate::device::Context;
use crate::driver::{Driver, abi};
use crate::error::{DeviceError, Result};
use crate::ptx;
use crate::stream::Stream;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Mutex;

/// The driver cannot compile PTX of this version.
const UNSUPPORTED_PTX_VERSION: u32 = 222;

/// Loaded modules.
pub(crate) struct Kernels {
    modules: Vec<abi::Module>,
    functions: Mutex<HashMap<&'static str, abi::Function>>,
}

impl Kernels {
    /// Loads all embedded PTX.
    pub fn load(context: &Context) -> Result<Kernels> {
        let driver = context.enter()?;
        let mut modules = Vec::new();
        for (name, text) in ptx::MODULES {
            let image = CString::new(*text).map_err(|_| {
                DeviceError::Unavailable(format!("the kernels of {name} hold a zero byte"))
            })?;
            let mut module = abi::Module::NULL;
            let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: a place for one module; the image ends with zero.
            unsafe {
                driver.cuModuleLoadDataEx(
                    &mut module,
                    image.as_ptr().cast::<c_void>(),
                    0,
                    options,
                    values,
                )
            }
            .map_err(|error| match error.code() {
                Some(UNSUPPORTED_PTX_VERSION) => DeviceError::Unavailable(format!(
                    "the driver is too old for the kernels of {name}, which need CUDA 12.0: {error}"
                )),
                _ => error,
            })?;
            modules.push(module);
        }
        Ok(Kernels {
            modules,
            functions: Mutex::new(HashMap::new()),
        })
    }

    fn function(&self, driver: &Driver, name: &'static str) -> Result<abi::Function> {
        let mut functions = self.functions.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(&function) = functions.get(name) {
            return Ok(function);
        }
        let symbol = CString::new(name)
            .map_err(|_| DeviceError::Unavailable(format!("{name} is no name of a kernel")))?;
        let mut last = DeviceError::Unavailable(format!("there is no kernel {name}"));
        for &module in &self.modules {
            let mut function = abi::Function::NULL;
            // SAFETY: a place for one function; the name ends with zero.
            match unsafe { driver.cuModuleGetFunction(&mut function, module, symbol.as_ptr()) } {
                Ok(()) => {
                    functions.insert(name, function);
                    return Ok(function);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub fn unload(self, driver: &Driver, context: abi::Context) {
        // SAFETY: the context is retained by the caller.
        if unsafe { driver.cuCtxPushCurrent_v2(context) }.is_err() {
            return;
        }
        for module in self.modules {
            // SAFETY: nobody launches any more.
            let _ = unsafe { driver.cuModuleUnload(module) };
        }
        let mut popped = abi::Context::NULL;
        // SAFETY: pushed above.
        let _ = unsafe { driver.cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// Queues one kernel with one argument: `grid` thread blocks of `threads`
/// threads.
///
/// # Safety
/// `A` is the kernel's parameter in layout, and what it points at stays valid
/// until the kernel is over.
///
/// # Errors
/// There is no such kernel, or the driver refuses.
pub unsafe fn launch<A: Copy>(
    stream: &Stream,
    name: &'static str,
    grid: u32,
    threads: u32,
    argument: &A,
) -> Result<()> {
    let context = stream.context();
    let kernels = context.kernels()?;
    let driver = context.enter()?;
    let function = kernels.function(&driver, name)?;
    let mut arguments = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
    // SAFETY: the caller's contract; the driver copies the argument here.
    unsafe {
        driver.cuLaunchKernel(
            function,
            grid,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream.raw(),
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
}
