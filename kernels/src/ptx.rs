//! The kernels, compiled ahead to PTX.

/// Name of the source and PTX of each module.
pub(crate) const MODULES: &[(&str, &str)] = &[];
