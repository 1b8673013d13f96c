//! The kernels, compiled ahead to PTX: `cargo xtask kernels` makes the files.

/// Name and PTX of each module. A kernel is in the first whose name is in its.
pub(crate) const MODULES: &[(&str, &str)] = &[
    ("reduce_int", include_str!("../ptx/reduce_int.ptx")),
    ("reduce_float", include_str!("../ptx/reduce_float.ptx")),
    ("reduce_pair", include_str!("../ptx/reduce_pair.ptx")),
    ("baseline", include_str!("../ptx/baseline.ptx")),
    ("copy", include_str!("../ptx/copy.ptx")),
    ("strided", include_str!("../ptx/strided.ptx")),
    ("general", include_str!("../ptx/general.ptx")),
    ("funnel", include_str!("../ptx/funnel.ptx")),
    ("transpose", include_str!("../ptx/transpose.ptx")),
];
