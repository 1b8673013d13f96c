//! The kernels, compiled ahead to PTX: `cargo xtask kernels` makes the files, the build
//! script compresses them.

use crate::error::Result;
use std::borrow::Cow;

/// Names of the modules. A kernel is in the first whose name is in its.
pub(crate) fn modules() -> impl Iterator<Item = &'static str> {
    embedded::MODULES.iter().map(|(stem, _)| *stem)
}

/// The PTX of a module.
///
/// # Errors
/// [`DeviceError::Unavailable`](crate::DeviceError::Unavailable): there is none of this name.
pub(crate) fn text(stem: &str) -> Result<Cow<'static, str>> {
    embedded::text(stem)
}

/// Names of the kernels of a module.
pub(crate) fn entries(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.lines().filter_map(|line| line.split_once(".entry "));
    behind.map(|(_, name)| name.trim_end_matches(['(', ' ']))
}

#[cfg(feature = "gpu")]
mod embedded {
    use crate::error::{DeviceError, Result};
    use std::borrow::Cow;

    /// A module's text is no longer.
    const MOST_TEXT_BYTES: usize = 1 << 26;

    macro_rules! modules {
        ($($name:literal)*) => {
            &[$(($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".z")))),*]
        };
    }

    pub const MODULES: &[(&str, &[u8])] = modules! {
        "reduce_int" "reduce_bits" "reduce_float" "reduce_pair" "baseline" "copy" "strided"
        "general" "runs" "transpose" "update" "exchange_multicast" "exchange"
    };

    pub fn text(stem: &str) -> Result<Cow<'static, str>> {
        let broken = || DeviceError::Unavailable(format!("there is no module {stem}"));
        let found = MODULES.iter().find(|(name, _)| *name == stem);
        let (_, packed) = found.ok_or_else(broken)?;
        let unpacked =
            miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(packed, MOST_TEXT_BYTES);
        let text = String::from_utf8(unpacked.map_err(|_| broken())?);
        Ok(text.map_err(|_| broken())?.into())
    }
}

#[cfg(not(feature = "gpu"))]
mod embedded {
    use crate::error::Result;
    use std::borrow::Cow;

    pub const MODULES: &[(&str, &[u8])] = &[];

    pub fn text(_stem: &str) -> Result<Cow<'static, str>> {
        Err(crate::driver::left_out())
    }
}

#[cfg(all(test, feature = "gpu"))]
pub(crate) fn all() -> String {
    modules().map(|stem| text(stem).expect(stem)).collect()
}
