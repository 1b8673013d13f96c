//! A full barrier of the processor.
//!
//! The processor has two that order all loads and stores of ordinary memory: `mfence`, which the
//! standard library's fence is on x86, and any locked instruction. The first also waits for
//! everything else that a core has under way, and takes several times as long.
//!
//! # Invariants
//! 1. A locked instruction on the stack changes nothing: it combines a word with zero bits.
//!
//! # Sources
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, section 10.2: reads and
//! writes are not passed by locked instructions. AMD64 Architecture Programmer's Manual,
//! volume 2, section 7.1.2: the same.

/// What this thread read and wrote before comes before what it reads and writes behind, as all
/// threads and processes see it: `fence(SeqCst)`, of ordinary memory. Stores that go around the
/// caches need a fence of their own.
///
/// ```
/// use osier_transports::full_fence;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// // Of two threads that do this, each with its own word, one sees the other's.
/// let (mine, yours) = (AtomicU32::new(0), AtomicU32::new(0));
/// mine.store(1, Ordering::Relaxed);
/// full_fence();
/// assert_eq!(yours.load(Ordering::Relaxed), 0);
/// ```
#[inline(always)]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: invariant 1: a word of the thread's stack, which keeps its value; memory is
    // taken for changed, so the compiler moves nothing across.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 64], 0", options(nostack));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri, loom))]
    crate::sync::fence(crate::sync::Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Two threads that write, then read what the other writes: without the fence both miss the
    /// other's store now and then.
    #[test]
    fn one_of_two_sees_the_other() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
        let words: Vec<[AtomicU32; 2]> = (0..ROUNDS).map(|_| Default::default()).collect();
        let seen: Vec<[AtomicU32; 2]> = (0..ROUNDS).map(|_| Default::default()).collect();
        let together = Barrier::new(2);
        let side = |own: usize| {
            for (words, seen) in words.iter().zip(&seen) {
                if own == 0 && !cfg!(miri) {
                    // So that they are not always as far apart.
                    std::hint::spin_loop();
                }
                words[own].store(1, Ordering::Relaxed);
                full_fence();
                let other = words[1 - own].load(Ordering::Relaxed);
                seen[own].store(other, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                together.wait();
                side(1);
            });
            together.wait();
            side(0);
            other.join().expect("it ends");
        });
        for [one, two] in &seen {
            let saw = one.load(Ordering::Relaxed) + two.load(Ordering::Relaxed);
            assert!(saw > 0, "both missed the other's store");
        }
    }
}
