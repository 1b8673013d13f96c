//! Control words in shared memory, outside of the rings.
//!
//! | word | said by | heard by |
//! |---|---|---|
//! | `inbox` | whoever opens a ring to a rank | that rank, which takes the list |
//! | `sleeping` | a rank before it sleeps | whoever has posted to it, or made room for its posts |
//! | `death`, `death_epoch` | the launcher | all |
//! | `used_bytes` | whoever reserves memory | all |
//! | `waiting` (of [`Arrivals`]) | a thread that drains the inbox | the thread with the endpoint |
//!
//! # Invariants
//! 1. A block is linked into an inbox once and found once; who finds it sees
//!    all that was written to it before.
//! 2. Of a rank that goes to sleep and another that posts to it, one sees the
//!    other: the post is found by the last look, or the bell rings.
//! 3. Who sees the epoch of a death sees the death.
//! 4. The same holds for a rank whose post found no room, and a peer that makes room.
//! 5. What was granted of a limit never exceeds it, and what was refused is
//!    given back. A request beside one that is refused may be refused, too.
//!
//! # Models
//! Each is checked under loom below (`cargo xtask test --only loom`). By hand:
//! each test fails when the ordering that its comment names is relaxed.
//! Words that need no model, because a single relaxed word says it all:
//! `attending`, `fence_required`, `cores`, the counters of malformed messages.
//! `pid` is one compare-and-swap. The note and the header are written before
//! any rank exists.

use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};
use std::sync::PoisonError;

/// Links a block into a rank's inbox. `next` is the block's own link.
pub(super) fn link(inbox: &AtomicU64, next: &AtomicU64, offset: u64) {
    let mut newest = inbox.load(Ordering::Relaxed);
    loop {
        next.store(newest, Ordering::Relaxed);
        // Release: the block is written before it is found.
        match inbox.compare_exchange_weak(newest, offset, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => newest = now,
        }
    }
}

/// Takes the whole list of an inbox; its newest block, or 0.
pub(super) fn take_list(inbox: &AtomicU64) -> u64 {
    inbox.swap(0, Ordering::AcqRel)
}

/// A rank sleeps,
const ASLEEP: u32 = 1;
/// and something that it has to post found no room.
const STARVED: u32 = 2;
/// Beside one of these: its thread runs other ranks, and looks at this word instead of waiting
/// for the bell.
const PARKED: u32 = 4;

/// Why a rank may sleep, as its last look has found.
pub(super) enum Idle {
    /// It may not.
    No,
    /// Nothing has come.
    Yes,
    /// Nothing has come, and what it has to post found no room.
    Starved,
}

/// Goes to sleep: says so, passes a barrier that all senders pass as well,
/// looks once more, and only then sleeps.
pub(super) fn rest(
    sleeping: &AtomicU32,
    barrier: impl FnOnce(),
    idle: impl FnOnce() -> Idle,
    sleep: impl FnOnce(),
) {
    // Until the look has shown that it is not so: room that is made before it is seen.
    sleeping.store(STARVED, Ordering::SeqCst);
    barrier();
    let idle = idle();
    if let Idle::Yes = idle {
        // Fails if the bell was rung, which ends the sleep at once.
        let (new, order) = (ASLEEP, Ordering::Relaxed);
        let _ = sleeping.compare_exchange(STARVED, new, order, order);
    }
    if !matches!(idle, Idle::No) {
        sleep();
    }
    sleeping.store(0, Ordering::Relaxed);
}

/// Parks a rank whose thread runs other ranks meanwhile: says so, looks once more, and leaves
/// the thread by `away` until that returns false; after true it looks again.
///
/// The fence orders this thread's store and look. A sender has none: what it posted may be
/// found by neither. So `away` returns true now and then, and once after [`want_bell`] and a
/// barrier that all senders pass, before the thread itself sleeps.
pub(super) fn park(
    sleeping: &AtomicU32,
    fence: impl FnOnce(),
    mut idle: impl FnMut() -> Idle,
    mut away: impl FnMut() -> bool,
) {
    sleeping.store(PARKED | STARVED, Ordering::SeqCst);
    fence();
    loop {
        match idle() {
            Idle::No => break,
            Idle::Starved => {}
            Idle::Yes => {
                // Fails if it was roused.
                let order = Ordering::Relaxed;
                let _ = sleeping.fetch_update(order, order, |said| {
                    (said & !PARKED == STARVED).then_some(said & PARKED | ASLEEP)
                });
            }
        }
        if !away() {
            break;
        }
    }
    sleeping.store(0, Ordering::Relaxed);
}

/// Whether somebody has posted to a parked rank, or made room for it.
#[inline]
pub(super) fn is_roused(sleeping: &AtomicU32) -> bool {
    sleeping.load(Ordering::Relaxed) == 0
}

/// The thread of a parked rank is about to sleep: from now on the bell is to be rung. False:
/// the rank was roused. A barrier that all senders pass and a look of the rank follow.
pub(super) fn want_bell(sleeping: &AtomicU32) -> bool {
    let wanted = |said| (said != 0).then_some(STARVED);
    let (set, fetch) = (Ordering::SeqCst, Ordering::Relaxed);
    sleeping.fetch_update(set, fetch, wanted).is_ok()
}

/// Whether a parked rank's bell is to be rung.
pub(super) fn wants_bell(sleeping: &AtomicU32) -> bool {
    matches!(sleeping.load(Ordering::Relaxed), ASLEEP | STARVED)
}

/// Its thread is awake again, and looks at the word.
pub(super) fn want_no_bell(sleeping: &AtomicU32) {
    let order = Ordering::Relaxed;
    let _ = sleeping.fetch_update(order, order, |said| (said != 0).then_some(said | PARKED));
}

/// Whether a rank may sleep for want of room. To be asked after room was made.
#[inline]
pub(super) fn may_starve(sleeping: &AtomicU32) -> bool {
    sleeping.load(Ordering::Relaxed) & !PARKED == STARVED
}

/// Whether a rank may sleep. To be asked after a post.
#[inline]
pub(super) fn may_sleep(sleeping: &AtomicU32) -> bool {
    sleeping.load(Ordering::Relaxed) != 0
}

/// Whether it is for us to ring its bell: one of several senders does, unless its thread looks
/// at the word.
pub(super) fn rouse(sleeping: &AtomicU32) -> bool {
    matches!(sleeping.swap(0, Ordering::AcqRel), ASLEEP | STARVED)
}

/// As [`rouse`], for what is not seen by a look: the bell is also rung for a thread that does
/// not sleep yet.
pub(super) fn rouse_anyway(sleeping: &AtomicU32) -> bool {
    sleeping.swap(0, Ordering::AcqRel) & PARKED == 0
}

/// Records a death; the first one counts.
pub(super) fn record_death(death: &AtomicU32, epoch: &AtomicU32, how: u32) {
    let first = death.compare_exchange(0, how, Ordering::AcqRel, Ordering::Acquire);
    if first.is_ok() {
        // Release: the death is written before its epoch.
        epoch.fetch_add(1, Ordering::AcqRel);
    }
}

/// Counts bytes against a limit (0: none); what was used before if they do not
/// fit.
pub(super) fn charge(used: &AtomicU64, limit: u64, bytes: u64) -> Result<(), u64> {
    let before = used.fetch_add(bytes, Ordering::Relaxed);
    if limit != 0 && before.saturating_add(bytes) > limit {
        used.fetch_sub(bytes, Ordering::Relaxed);
        return Err(before);
    }
    Ok(())
}

/// What a thread of the rank has found for an endpoint, which another thread
/// may be polling.
pub(crate) struct Arrivals<T> {
    /// Looked at by every poll.
    pub(crate) waiting: AtomicU32,
    items: Mutex<Vec<T>>,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Self {
            waiting: AtomicU32::new(0),
            items: Mutex::new(Vec::new()),
        }
    }
}

impl<T> Arrivals<T> {
    fn items(&self) -> MutexGuard<'_, Vec<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, item: T) {
        self.items().push(item);
        self.waiting.store(1, Ordering::Release);
    }

    pub(crate) fn take(&self) -> Vec<T> {
        let mut items = self.items();
        // Under the lock: what is added later sets it again.
        self.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut *items)
    }
}

#[cfg(all(test, not(loom)))]
mod plain {
    use super::*;

    #[test]
    fn who_only_waits_is_not_woken_by_room() {
        let sleeping = AtomicU32::new(0);
        let look = || {
            assert!(may_starve(&sleeping), "until the look has shown otherwise");
            Idle::Yes
        };
        let sleep = || assert!(may_sleep(&sleeping) && !may_starve(&sleeping));
        rest(&sleeping, || {}, look, sleep);
        let sleep = || assert!(may_starve(&sleeping));
        rest(&sleeping, || {}, || Idle::Starved, sleep);
        assert!(!may_sleep(&sleeping));
    }

    #[test]
    fn the_bell_of_a_parked_rank_rings_while_its_thread_sleeps() {
        let sleeping = AtomicU32::new(0);
        let mut looks = 0;
        let look = || {
            looks += 1;
            Idle::Yes
        };
        let mut rounds = 0;
        let away = || {
            rounds += 1;
            assert!(may_sleep(&sleeping) && !may_starve(&sleeping), "{rounds}");
            match rounds {
                // The thread goes to sleep: another look, for which the rank starves.
                1 => {
                    assert!(want_bell(&sleeping) && may_starve(&sleeping));
                    true
                }
                // It wakes by the bell of another rank, and sleeps again.
                2 => {
                    want_no_bell(&sleeping);
                    assert!(want_bell(&sleeping));
                    true
                }
                3 => {
                    assert!(rouse(&sleeping), "the bell is wanted");
                    assert!(is_roused(&sleeping) && !want_bell(&sleeping));
                    want_no_bell(&sleeping);
                    assert!(is_roused(&sleeping));
                    false
                }
                _ => unreachable!("it was told to run"),
            }
        };
        park(&sleeping, || {}, look, away);
        assert_eq!((looks, rounds), (3, 3));
        park(
            &sleeping,
            || {},
            || Idle::Starved,
            || {
                assert!(may_starve(&sleeping));
                assert!(!rouse(&sleeping), "its thread looks at the word");
                false
            },
        );
        park(
            &sleeping,
            || {},
            || Idle::No,
            || unreachable!("it has something to do"),
        );
        assert!(!may_sleep(&sleeping));
        assert!(rouse_anyway(&sleeping), "a thread may be about to sleep");
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::sync::fence;
    use loom::sync::{Arc, Condvar};
    use loom::thread;

    fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(f);
    }

    #[derive(Default)]
    struct Block {
        next: AtomicU64,
        content: AtomicU64,
    }

    /// Fails with a relaxed compare-and-swap in `link`, or a relaxed swap in
    /// `take_list`.
    #[test]
    fn loom_every_block_is_found_once_and_whole() {
        check(4, || {
            let inbox = Arc::new(AtomicU64::new(0));
            let blocks: Arc<[Block; 2]> = Arc::default();
            let open = |at: usize| {
                let (inbox, blocks) = (inbox.clone(), blocks.clone());
                thread::spawn(move || {
                    blocks[at].content.store(at as u64 + 7, Ordering::Relaxed);
                    link(&inbox, &blocks[at].next, at as u64 + 1);
                })
            };
            let openers = [open(0), open(1)];
            let mut found = [0; 2];
            let mut drain = || {
                let mut at = take_list(&inbox);
                while at != 0 {
                    let block = &blocks[at as usize - 1];
                    found[at as usize - 1] += 1;
                    assert_eq!(block.content.load(Ordering::Relaxed), at + 6);
                    at = block.next.load(Ordering::Relaxed);
                }
            };
            drain();
            for opener in openers {
                opener.join().expect("it ends");
            }
            drain();
            assert_eq!(found, [1, 1]);
        });
    }

    /// An eventfd: counts rings, and sleeps while there are none.
    #[derive(Default)]
    struct Bell(Mutex<u32>, Condvar);

    impl Bell {
        fn ring(&self) {
            *self.0.lock().expect("sound") += 1;
            self.1.notify_one();
        }

        fn wait(&self) {
            let mut rings = self.0.lock().expect("sound");
            while *rings == 0 {
                rings = self.1.wait(rings).expect("sound");
            }
            *rings = 0;
        }
    }

    /// The barrier of the sleeper makes all senders pass a fence, at a place
    /// of their own. loom knows no such barrier, so the sender has a fence
    /// where it is weakest: between the post and the look. (Before the post,
    /// the look comes after the barrier and sees the flag; after the look, the
    /// post comes before the barrier and is seen.)
    ///
    /// Fails, by a sleep that nobody ends, without either of the two fences.
    fn sleeper_and_senders(senders: u64, preemptions: usize) {
        check(preemptions, move || {
            let sleeping = Arc::new(AtomicU32::new(0));
            let posts = Arc::new(AtomicU64::new(0));
            let bell = Arc::new(Bell::default());
            let threads: Vec<_> = (0..senders)
                .map(|_| {
                    let (sleeping, posts, bell) = (sleeping.clone(), posts.clone(), bell.clone());
                    thread::spawn(move || {
                        posts.fetch_add(1, Ordering::Release);
                        fence(Ordering::SeqCst);
                        if may_sleep(&sleeping) && rouse(&sleeping) {
                            bell.ring();
                        }
                    })
                })
                .collect();
            let mut seen = 0;
            while seen < senders {
                rest(
                    &sleeping,
                    || fence(Ordering::SeqCst),
                    || match posts.load(Ordering::Acquire) == seen {
                        true => Idle::Yes,
                        false => Idle::No,
                    },
                    || bell.wait(),
                );
                seen = posts.load(Ordering::Acquire);
            }
            for thread in threads {
                thread.join().expect("it ends");
            }
        });
    }

    #[test]
    fn loom_no_sleeper_is_forgotten_by_one_sender() {
        sleeper_and_senders(1, 5);
    }

    #[test]
    fn loom_no_sleeper_is_forgotten_by_two_senders() {
        sleeper_and_senders(2, 2);
    }

    /// A thread with one rank, which is parked until the thread sleeps: the look behind the
    /// barrier finds the post, or the bell rings.
    #[test]
    fn loom_no_parked_rank_is_forgotten_by_a_thread_that_sleeps() {
        check(4, || {
            let sleeping = Arc::new(AtomicU32::new(0));
            let posts = Arc::new(AtomicU64::new(0));
            let bell = Arc::new(Bell::default());
            let sender = {
                let (sleeping, posts, bell) = (sleeping.clone(), posts.clone(), bell.clone());
                thread::spawn(move || {
                    posts.fetch_add(1, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if may_sleep(&sleeping) && rouse(&sleeping) {
                        bell.ring();
                    }
                })
            };
            while posts.load(Ordering::Acquire) == 0 {
                let mut sleeps = false;
                let away = || {
                    if is_roused(&sleeping) {
                        return false;
                    }
                    if sleeps {
                        bell.wait();
                        return false;
                    }
                    // Looks only once more, after the barrier.
                    sleeps = want_bell(&sleeping);
                    fence(Ordering::SeqCst);
                    sleeps
                };
                let idle = || match posts.load(Ordering::Acquire) == 0 {
                    true => Idle::Yes,
                    false => Idle::No,
                };
                park(&sleeping, || {}, idle, away);
            }
            sender.join().expect("it ends");
        });
    }

    /// Fails, by a sleep that nobody ends, without either of the two fences, or if the
    /// sleeper says that it starves after its look.
    #[test]
    fn loom_no_producer_without_room_is_forgotten() {
        check(5, || {
            let sleeping = Arc::new(AtomicU32::new(0));
            let room = Arc::new(AtomicU64::new(0));
            let bell = Arc::new(Bell::default());
            let consumer = {
                let (sleeping, room, bell) = (sleeping.clone(), room.clone(), bell.clone());
                thread::spawn(move || {
                    room.store(1, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if may_starve(&sleeping) && rouse(&sleeping) {
                        bell.ring();
                    }
                })
            };
            while room.load(Ordering::Acquire) == 0 {
                rest(
                    &sleeping,
                    || fence(Ordering::SeqCst),
                    || match room.load(Ordering::Acquire) == 0 {
                        true => Idle::Starved,
                        false => Idle::No,
                    },
                    || bell.wait(),
                );
            }
            consumer.join().expect("it ends");
        });
    }

    /// Fails if the epoch is added relaxed.
    #[test]
    fn loom_whoever_sees_the_epoch_sees_the_death() {
        check(5, || {
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            let launcher = {
                let words = words.clone();
                thread::spawn(move || {
                    record_death(&words.0, &words.1, 9);
                    record_death(&words.0, &words.1, 9);
                })
            };
            if words.1.load(Ordering::Acquire) != 0 {
                assert_eq!(words.0.load(Ordering::Relaxed), 9);
            }
            launcher.join().expect("it ends");
            assert_eq!(words.1.load(Ordering::Relaxed), 1);
        });
    }

    /// Fails if `charge` loads and stores instead of adding.
    #[test]
    fn loom_a_limit_holds() {
        check(5, || {
            let used = Arc::new(AtomicU64::new(0));
            let take = |bytes: u64| {
                let used = used.clone();
                move || charge(&used, 10, bytes).map_or(0, |()| bytes)
            };
            let other = thread::spawn(take(6));
            let granted = take(4)() + take(3)() + other.join().expect("it ends");
            assert!(granted <= 10);
            assert_eq!(used.load(Ordering::Relaxed), granted);
        });
    }

    /// Fails if `waiting` is cleared outside of the lock.
    #[test]
    fn loom_no_arrival_stays_behind() {
        check(5, || {
            let arrivals = Arc::new(Arrivals::default());
            let finder = {
                let arrivals = arrivals.clone();
                thread::spawn(move || {
                    arrivals.add(1);
                    arrivals.add(2);
                })
            };
            let mut got = Vec::new();
            let mut poll = || {
                if arrivals.waiting.load(Ordering::Acquire) != 0 {
                    got.extend(arrivals.take());
                }
            };
            poll();
            finder.join().expect("it ends");
            poll();
            assert_eq!(got, [1, 2]);
        });
    }
}
