//! `--emulate-gpus`: where the emulated CUDA driver is, and what tells the ranks.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use osier_kernels::{debug, files};

use super::{Failure, USAGE, debug_text};

/// What names the driver's library, for messages.
const LIBRARY: &str = "OSIER_DEBUG=cuda-library";
/// What cargo calls the library.
const FILE: &str = "libosier_emulated_cuda.so";
/// A symbol that no real driver has.
const MARK: &[u8] = b"osier_emulated_last_fault";

/// Most devices of an emulated machine.
const MAX_GPUS: usize = 8;

/// Parses the number of devices.
pub fn parse(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n @ 1..=MAX_GPUS) => Ok(n),
        _ => Err(format!("a machine has 1 to {MAX_GPUS} emulated GPUs")),
    }
}

/// Whether ranks have the emulated driver: asked for, or named as the driver's library.
pub fn are_emulated(asked: bool) -> bool {
    let named = debug::value(debug::CUDA_LIBRARY);
    asked || named.is_some_and(|path| named_library(&path).is_ok())
}

/// The emulated devices of a job.
pub struct Devices {
    gpus: usize,
    library: PathBuf,
}

impl Devices {
    /// `given` are the variables of `--env`.
    pub fn find(gpus: usize, given: &[(OsString, OsString)]) -> Result<Devices, Failure> {
        let library = match debug::value_in(&debug_text(given), debug::CUDA_LIBRARY) {
            Some(path) => named_library(&path)?,
            None => {
                let exe = std::env::current_exe().ok();
                library_beside(exe.as_deref().and_then(Path::parent))?
            }
        };
        Ok(Devices { gpus, library })
    }

    /// Variables of a process; `given` are those that the user wants set for it.
    pub fn variables(&self, given: &[(OsString, OsString)]) -> [(String, OsString); 2] {
        let library = self.library.as_os_str();
        let text = debug::with(&debug_text(given), debug::CUDA_LIBRARY, library);
        [
            (debug::VARIABLE.into(), text),
            ("OSIER_EMULATED_GPUS".into(), self.gpus.to_string().into()),
        ]
    }
}

/// A driver is no longer.
const MOST_LIBRARY_BYTES: u64 = 1 << 30;

fn named_library(path: &OsStr) -> Result<PathBuf, Failure> {
    let shown = Path::new(path).display();
    let bytes = files::read(Path::new(path), MOST_LIBRARY_BYTES).map_err(|e| {
        Failure::new(
            USAGE,
            format!("--emulate-gpus: {LIBRARY} is {shown}: {}", super::cause(&e)),
        )
    })?;
    if !bytes.windows(MARK.len()).any(|part| part == MARK) {
        return Err(Failure::new(
            USAGE,
            format!(
                "--emulate-gpus: {LIBRARY} is {shown}, which is not the emulated driver \
                 (hint: unset it)"
            ),
        ));
    }
    // Ranks may run in another folder.
    Ok(std::fs::canonicalize(path).unwrap_or_else(|_| path.into()))
}

fn library_beside(folder: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = folder.unwrap_or(Path::new("."));
    // `cargo build` puts it beside us, a build for tests into deps.
    [folder.join(FILE), folder.join("deps").join(FILE)]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| {
            let release = if cfg!(debug_assertions) { "" } else { "--release " };
            Failure::new(
                USAGE,
                format!(
                    "--emulate-gpus: no emulated CUDA driver beside osier: {} is not there \
                     (hint: cargo build {release}-p osier-emulated-cuda, which needs g++; or set {LIBRARY})",
                    folder.join(FILE).display()
                ),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_checked() {
        assert_eq!(parse("2"), Ok(2));
        assert!(parse("0").is_err() && parse("9").is_err() && parse("x").is_err());
    }

    #[test]
    fn an_absent_library_says_how_to_build_it() {
        let failure = library_beside(Some(Path::new("/nowhere"))).unwrap_err();
        assert_eq!(failure.code, USAGE);
        let message = failure.message;
        assert!(
            message.contains("/nowhere/libosier_emulated_cuda.so"),
            "{message}"
        );
        assert!(message.contains("-p osier-emulated-cuda"), "{message}");
    }

    #[test]
    fn a_named_library_must_be_the_emulated_driver() {
        let real = std::env::current_dir().unwrap().join("Cargo.toml");
        let failure = named_library(real.as_os_str()).unwrap_err();
        assert!(
            failure.message.contains("not the emulated driver"),
            "{}",
            failure.message
        );
        let failure = named_library(OsStr::new("/nowhere/x.so")).unwrap_err();
        assert!(
            failure.message.contains("no such file"),
            "{}",
            failure.message
        );
    }
}
