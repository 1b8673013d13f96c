//! The device of a rank, for the examples: a GPU, or an emulated one that says so.
//!
//! A program that has a binding of CUDA would use that; the examples need a stream,
//! memory and a kernel or two, for which [`osier::devices`] is enough.

use std::path::PathBuf;

use osier::devices::{Context, DeviceError, DeviceSlice, Kernel, Pinned, Stream, copy, devices};
use osier::{Communicator, Datatype};
use osier_kernels::{Driver, debug};

/// The kernels of the examples for GPUs, by the beginning of their names.
const PTX: [(&str, &[u8]); 4] = [
    ("example_jacobi", include_bytes!("../ptx/jacobi.ptx")),
    ("example_halo", include_bytes!("../ptx/halo.ptx")),
    ("example_buckets", include_bytes!("../ptx/buckets.ptx")),
    ("example_signals", include_bytes!("../ptx/signals.ptx")),
];
/// The same sources compiled for the host, for the emulated driver; empty where there
/// was no compiler.
const HOST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.so"));

type Result<T> = std::result::Result<T, DeviceError>;

/// A rank's device and its stream there.
#[derive(Debug)]
pub struct Gpu {
    /// The device.
    pub context: Context,
    /// What this rank queues, in order.
    pub stream: Stream,
    /// Its name.
    pub name: String,
    /// Whether it is an emulated one: then no time is that of a GPU.
    pub emulated: bool,
}

impl Gpu {
    /// The device of a rank: ranks go round those that there are. Without a GPU the
    /// emulated driver is taken, if it was built beside the program.
    ///
    /// # Errors
    /// There is neither.
    pub fn of(comm: &Communicator) -> Result<Gpu> {
        let named = debug::value(debug::CUDA_LIBRARY).is_some();
        if !named
            && !PathBuf::from("/dev/nvidiactl").exists()
            && let Some(library) = emulated_driver()
        {
            Driver::prefer(library);
        }
        let found = devices().map_err(|why| match why {
            DeviceError::Unavailable(why) => DeviceError::Unavailable(format!(
                "{why} (hint: cargo build --release -p osier-emulated-cuda makes an emulated \
                 one, beside the program)"
            )),
            other => other,
        })?;
        let info = &found[comm.rank() % found.len()];
        let context = Context::new(info.ordinal)?;
        Ok(Gpu {
            stream: Stream::new(&context)?,
            context,
            name: info.name.clone(),
            emulated: info.name.starts_with("Osier emulated GPU"),
        })
    }

    /// What to tell the user.
    pub fn shown(&self) -> String {
        match self.emulated {
            true => format!("{} (no GPU here: no time is that of one)", self.name),
            false => self.name.clone(),
        }
    }

    /// A kernel of the examples.
    ///
    /// # Errors
    /// It was not compiled for the emulated driver, or the driver refuses it.
    pub fn kernel(&self, entry: &str) -> Result<Kernel> {
        let image = match self.emulated {
            true if HOST.is_empty() => {
                return Err(DeviceError::Unavailable(
                    "the kernels of the examples were not compiled for the emulated driver \
                     (hint: it takes g++; build again)"
                        .into(),
                ));
            }
            true => HOST,
            false => {
                let module = PTX.iter().find(|(name, _)| entry.starts_with(name));
                module.map_or(&[][..], |(_, image)| image)
            }
        };
        Kernel::load(&self.context, image, entry)
    }

    /// Device memory for so many elements.
    ///
    /// # Errors
    /// Out of memory.
    pub fn allocate<T: Datatype>(&self, elements: usize) -> Result<DeviceSlice<T>> {
        Ok(DeviceSlice::new(&self.stream, elements)?.into_inner())
    }

    /// New device memory with these elements, behind the stream's work.
    ///
    /// # Errors
    /// Out of memory.
    pub fn upload<T: Datatype>(&self, elements: &[T]) -> Result<DeviceSlice<T>> {
        let to = self.allocate(elements.len())?;
        let staged = Pinned::from_slice(&self.context, elements)?;
        let from = staged.on_device(&self.stream);
        copy::copy(&self.stream, &from, &to.after_stream(&self.stream))?;
        Ok(to)
    }

    /// Copies the elements to the host, behind the stream's work.
    ///
    /// # Errors
    /// Work on the device has failed.
    pub fn download<T: Datatype + Copy>(&self, from: &DeviceSlice<T>, to: &mut [T]) -> Result<()> {
        let mut staged = Pinned::from_slice(&self.context, to)?;
        copy::copy(
            &self.stream,
            &from.after_stream(&self.stream),
            &staged.on_device(&self.stream),
        )?;
        to.copy_from_slice(staged.host()?);
        Ok(())
    }
}

/// The emulated driver where cargo puts it: beside the program, or for tests one folder
/// up.
fn emulated_driver() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let folders = exe.ancestors().skip(1).take(2);
    let mut libraries = folders.map(|folder| folder.join("libosier_emulated_cuda.so"));
    libraries.find(|library| library.is_file())
}
