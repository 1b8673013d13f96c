//! The kernels, compiled ahead to PTX: `cargo xtask kernels` makes the files.

/// Name and PTX of each module.
pub(crate) const MODULES: &[(&str, &str)] = &[
    ("strided", include_str!("../ptx/strided.ptx")),
    ("general", include_str!("../ptx/general.ptx")),
    ("transpose", include_str!("../ptx/transpose.ptx")),
];
