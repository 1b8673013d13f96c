//! Loops over long lists, compiled once more for wide vectors.

/// Runs the loop that `body` is, with AVX-512 where the machine has it: minima of
/// 64-bit numbers, masks and narrowing stores are single instructions there.
#[inline]
pub(crate) fn run<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn wide<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        if is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the machine has the features.
            return unsafe { wide(body) };
        }
    }
    body()
}
