//! Modules, functions, launches, occupancy.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};

use super::device::{BLOCK, PROCESSOR_THREADS, PROCESSORS, SHARED};
use crate::abi::{self, Handle, LaunchConfig};
use crate::driver::{Object, State, lock, stale};
use crate::fault::{Fault, In, Out, Result, entries, invalid};
use crate::kernels::{self, Launch};
use crate::settings::settings;
use crate::waits::{Waits, wait_for_context};
use crate::work::Op;

/// What `e_machine` of a binary for this host says.
const HOST: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

/// Bytes of an ELF file of 64 bits whose section headers end it, as linkers write it.
fn elf_bytes(image: In<c_char>) -> Result<usize> {
    let word = |at: usize| image.at(at).map(|byte| byte as u8);
    let number = |at: usize, bytes: usize| {
        (0..bytes).try_fold(0usize, |n, i| Ok(n | usize::from(word(at + i)?) << (8 * i)))
    };
    Ok(number(40, 8)? + number(58, 2)? * number(60, 2)?)
}

/// Names of the kernels of PTX text, or of a library for this host; none for another
/// binary, whose names are not read.
fn read_image(image: In<c_char>) -> Result<Option<BTreeSet<String>>> {
    let text = image.text()?;
    if text.starts_with("\x7fELF") {
        let machine = [image.at(18)? as u8, image.at(19)? as u8];
        if u16::from_le_bytes(machine) != HOST {
            return Ok(None);
        }
        let bytes = elf_bytes(image)?;
        // SAFETY: not null; the file's own header says how long the image is.
        let bytes = unsafe { std::slice::from_raw_parts(image.address().cast::<u8>(), bytes) };
        return kernels::load(bytes).map(Some);
    }
    let line = text
        .lines()
        .find(|l| l.trim_start().starts_with(".version"));
    let Some(version) = line.and_then(|l| l.split_whitespace().nth(1)) else {
        return Err(Fault::named(
            abi::ERROR_INVALID_PTX,
            "the image is neither PTX text nor a binary",
        ));
    };
    let number = |t: Option<&str>| t.and_then(|t| t.parse().ok()).unwrap_or(0);
    let mut parts = version.split('.');
    let version: (u32, u32) = (number(parts.next()), number(parts.next()));
    if version > abi::PTX_VERSION {
        return Err(Fault::named(
            abi::ERROR_UNSUPPORTED_PTX_VERSION,
            format!("PTX {}.{} is newer than the driver", version.0, version.1),
        ));
    }
    let target = text
        .lines()
        .find_map(|l| l.trim().strip_prefix(".target sm_"));
    let digits = target.map(|t| t.trim_end_matches(|c: char| !c.is_ascii_digit()));
    let (major, minor) = settings().capability();
    if digits.and_then(|t| t.parse().ok()).unwrap_or(0) > 10 * major + minor {
        return Err(Fault::named(
            abi::ERROR_INVALID_PTX,
            format!(
                "PTX for sm_{} on a device of capability {major}.{minor}",
                digits.unwrap_or_default()
            ),
        ));
    }
    let mut names = BTreeSet::new();
    for part in text.split(".entry").skip(1) {
        let name: String = part
            .trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_' || *c == '$')
            .collect();
        names.insert(name);
    }
    Ok(Some(names))
}

fn load(out: Out<Handle>, image: In<c_char>) -> Result {
    wait_for_context(Waits::Always)?;
    let mut state = lock()?;
    let context = state.current()?;
    let names = read_image(image)?;
    let handle = state.handle(Object::Module);
    state.modules.insert(handle, (context, names));
    out.set(handle)
}

fn function(state: &State, handle: Handle) -> Result<(Handle, String)> {
    let (module, name) = state
        .functions
        .get(&handle)
        .ok_or_else(|| stale(Object::Function, handle))?;
    let (context, _) = state
        .modules
        .get(module)
        .ok_or_else(|| stale(Object::Module, *module))?;
    Ok((*context, name.clone()))
}

fn launch(
    function_handle: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    arguments: In<*const c_void>,
) -> Result {
    let mut state = lock()?;
    let stream = state.stream_of(stream)?;
    let (context, name) = function(&state, function_handle)?;
    if context != state.stream_mut(stream)?.context {
        return Err(Fault::named(
            abi::ERROR_INVALID_HANDLE,
            format!("wrong context: kernel {name} was loaded in another one than the stream's"),
        ));
    }
    let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
    if threads == 0 || threads > BLOCK as u64 || block[2] > 64 {
        return Err(invalid(format!(
            "kernel {name}: a block of {block:?} threads"
        )));
    }
    if grid.contains(&0) || grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
        return Err(invalid(format!("kernel {name}: a grid of {grid:?} blocks")));
    }
    let blocks: u64 = grid.iter().map(|&n| u64::from(n)).product();
    if blocks > settings().most_blocks {
        return Err(invalid(format!(
            "kernel {name}: {blocks} blocks, and OSIER_EMULATED_MOST_BLOCKS allows {}",
            settings().most_blocks
        )));
    }
    if shared_bytes > SHARED.1 as u32 {
        return Err(invalid(format!(
            "kernel {name}: {shared_bytes} bytes of shared memory"
        )));
    }
    let kernel = kernels::find(&name).ok_or(Fault::plain(abi::ERROR_NOT_FOUND))?;
    let mut words = Vec::new();
    let mut places = Vec::new();
    for (index, &bytes) in kernel.argument_bytes.iter().enumerate() {
        let from = arguments.at(index)?;
        if from.is_null() {
            return Err(invalid(format!("kernel {name}: argument {index} is null")));
        }
        places.push(words.len());
        let at = words.len();
        words.resize(at + bytes.div_ceil(16), 0u128);
        let to = words[at..].as_mut_ptr().cast::<u8>();
        // SAFETY: the caller gives an address per argument of the kernel; the
        // words were just made long enough.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, bytes) };
    }
    let launch = Launch {
        kernel,
        name,
        grid,
        block,
        shared_bytes: shared_bytes as usize,
        arguments: words,
        places,
        resident: (occupancy(threads as c_int, shared_bytes as usize) * PROCESSORS).max(1) as usize,
    };
    state.submit(stream, Op::Kernel(Box::new(launch))).map(drop)
}

fn blocks_per_processor(function_handle: Handle, block: c_int, shared: usize) -> Result<c_int> {
    function(&*lock()?, function_handle)?;
    Ok(occupancy(block, shared))
}

/// Blocks of a kernel that a multiprocessor runs at a time.
fn occupancy(block: c_int, shared: usize) -> c_int {
    if !(1..=BLOCK).contains(&block) || shared > SHARED.2 as usize {
        return 0;
    }
    let by_threads = PROCESSOR_THREADS / block;
    let by_shared = (SHARED.2 as usize)
        .checked_div(shared)
        .map_or(32, |n| n as c_int);
    by_threads.min(by_shared).min(32)
}

entries! {
    fn cuModuleLoadData(module: Out<Handle>, image: In<c_char>) { load(module, image) }
    fn cuModuleLoadDataEx(
        module: Out<Handle>, image: In<c_char>, _count: c_uint,
        _options: In<c_uint>, _values: In<c_void>
    ) {
        load(module, image)
    }
    fn cuModuleLoadFatBinary(module: Out<Handle>, image: In<c_char>) { load(module, image) }

    fn cuModuleUnload(module: Handle) {
        let mut state = lock()?;
        if !state.modules.contains_key(&module) {
            return Err(stale(Object::Module, module));
        }
        let names: Vec<String> = state.functions.values()
            .filter(|f| f.0 == module).map(|f| f.1.clone()).collect();
        let used = state.streams.values().flat_map(|s| &s.queue).find_map(|i| match &i.op {
            Op::Kernel(l) if names.contains(&l.name) => Some(l.name.clone()),
            _ => None,
        });
        if let Some(name) = used {
            return Err(Fault::named(
                abi::ERROR_ILLEGAL_STATE,
                format!("the module is unloaded while its kernel {name} is queued"),
            ));
        }
        state.modules.remove(&module);
        Ok(())
    }

    fn cuModuleGetFunction(out: Out<Handle>, module: Handle, name: In<c_char>) {
        // Kernels are loaded one by one, when they are asked for: lazy loading.
        wait_for_context(Waits::Always)?;
        let name = name.text()?;
        let mut state = lock()?;
        let (_, names) = state.modules.get(&module).ok_or_else(|| stale(Object::Module, module))?;
        if names.as_ref().is_some_and(|n| !n.contains(&name)) {
            return Err(Fault::named(abi::ERROR_NOT_FOUND, format!("the PTX has no kernel {name}")));
        }
        if kernels::find(&name).is_none() {
            return Err(Fault::named(
                abi::ERROR_NOT_FOUND,
                format!("kernel {name} was not compiled for the host (hint: OSIER_EMULATED_KERNELS)"),
            ));
        }
        let handle = state.handle(Object::Function);
        state.functions.insert(handle, (module, name));
        out.set(handle)
    }

    fn cuModuleGetGlobal_v2(_address: Out<u64>, _bytes: Out<usize>, module: Handle, name: In<c_char>) {
        let state = lock()?;
        state.modules.get(&module).ok_or_else(|| stale(Object::Module, module))?;
        Err(Fault::named(
            abi::ERROR_NOT_FOUND,
            format!("variables of modules are not emulated: {}", name.text()?),
        ))
    }

    fn cuFuncGetModule(out: Out<Handle>, handle: Handle) {
        let state = lock()?;
        let found = state.functions.get(&handle).ok_or_else(|| stale(Object::Function, handle))?;
        out.set(found.0)
    }

    fn cuFuncGetAttribute(value: Out<c_int>, number: c_uint, handle: Handle) {
        function(&*lock()?, handle)?;
        value.set(match number {
            0 => BLOCK,
            4 => 32,
            5 => 80,
            6 => 80,
            8 => SHARED.0,
            1..=9 => 0,
            _ => return Err(invalid(format!("no function attribute {number}"))),
        })
    }

    fn cuFuncSetAttribute(handle: Handle, _number: c_uint, value: c_int) {
        function(&*lock()?, handle)?;
        match value {
            0..=166_912 => Ok(()),
            _ => Err(invalid(format!("an attribute of {value}"))),
        }
    }
    fn cuFuncSetCacheConfig(handle: Handle, _config: c_uint) {
        function(&*lock()?, handle).map(drop)
    }

    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: Handle, arguments: In<*const c_void>, extra: In<c_void>
    ) {
        if extra.address_void() != 0 {
            return Err(Fault::named(abi::ERROR_NOT_SUPPORTED, "arguments in one buffer: not yet"));
        }
        launch(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared_bytes, stream, arguments)
    }

    fn cuLaunchKernelEx(
        config: In<LaunchConfig>, function: Handle, arguments: In<*const c_void>, extra: In<c_void>
    ) {
        let config = config.read()?;
        if extra.address_void() != 0 {
            return Err(Fault::named(abi::ERROR_NOT_SUPPORTED, "arguments in one buffer: not yet"));
        }
        launch(function, config.grid, config.block, config.shared_bytes, config.stream, arguments)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: Handle, block: c_int, shared: usize
    ) {
        blocks.set(blocks_per_processor(function, block, shared)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: Handle, block: c_int, shared: usize, _flags: c_uint
    ) {
        blocks.set(blocks_per_processor(function, block, shared)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>, block: Out<c_int>, function: Handle,
        _dynamic: In<c_void>, shared: usize, limit: c_int
    ) {
        let size = if limit > 0 { limit.min(BLOCK) } else { BLOCK };
        let blocks = blocks_per_processor(function, size, shared)?;
        grid.set(blocks * PROCESSORS)?;
        block.set(size)
    }
}
