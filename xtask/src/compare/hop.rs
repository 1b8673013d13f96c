//! Distance of the two cores at the moment: latency of a cache line.
//!
//! On a virtual machine two cores are now next to each other and now not: the host moves
//! them every few seconds, and what one writes and the other reads takes up to four times
//! as long. A run that falls into such seconds says nothing about the library. So each run
//! stands between two looks at how long a line takes from core to core; a run beside
//! which it took long is done again. On a machine of its own all runs pass at once.

use crate::steps::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longer than this many times the nearest hop is far.
pub const FAR: f64 = 1.5;
/// One hop in this many may be an outlier, shorter than near cores are apart: some are half as
/// long as all others.
const SHORTER: usize = 20;
/// In ns, between the two states of the machine that most runs were on: near cores of a virtual
/// EPYC were 47 to 60 apart, far ones 245 to 280. A session whose looks were all longer than this
/// has seen far cores only.
const NEAREST_MOST: f64 = 100.0;
/// Runs of one sample before a far one is taken.
const TRIES: u32 = 6;
/// Runs of one sample before one is taken although the cores were moved meanwhile.
const MOVED_TRIES: u32 = 2;
/// How long to wait for near cores before a run.
const PATIENCE: Duration = Duration::from_secs(20);
/// Looks with which a session begins; they last some two seconds.
const FIRST_LOOKS: u32 = 20;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// Round trips of one reading of the clock, and readings of a look.
const TRIPS: u64 = 1000;
const READINGS: u64 = 10;

/// How far the cores are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    Near,
    Far,
}

impl Distance {
    /// As printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// By the looks before and after a run, where near cores are `nearest` apart; `None` if
    /// the cores were moved meanwhile. One core is near to itself.
    pub fn of(hops_ns: Option<[f64; 2]>, nearest: f64) -> Option<Self> {
        let Some(hops_ns) = hops_ns else {
            return Some(Self::Near);
        };
        match hops_ns.map(|hop| hop <= FAR * nearest) {
            [true, true] => Some(Self::Near),
            [false, false] => Some(Self::Far),
            _ => None,
        }
    }
}

/// The distance of near cores, by these hops in ns: the shortest but for a twentieth of them,
/// if that is no far one.
pub fn nearest(mut hops: Vec<f64>) -> Option<f64> {
    hops.sort_unstable_by(f64::total_cmp);
    let shortest = hops.get(hops.len() / SHORTER)?;
    Some(shortest.min(NEAREST_MOST))
}

/// The looks of a session.
pub struct Hops {
    ask: Box<dyn FnMut() -> Option<f64>>,
    pause: Duration,
    /// Hops so far, in ns; none on a machine with one core.
    hops: Vec<f64>,
    runs: u32,
    again: u32,
    far: u32,
}

impl Hops {
    /// Looks for a while, for the first look may be a far one.
    pub fn new() -> Self {
        Self::by(Box::new(hop_ns), PAUSE)
    }

    fn by(ask: Box<dyn FnMut() -> Option<f64>>, pause: Duration) -> Self {
        let mut hops = Self {
            ask,
            pause,
            hops: Vec::new(),
            runs: 0,
            again: 0,
            far: 0,
        };
        for _ in 0..FIRST_LOOKS {
            if hops.look().is_none() {
                break;
            }
            std::thread::sleep(hops.pause);
        }
        hops
    }

    /// Whether the cores are near; `None` if there is one core only.
    fn look(&mut self) -> Option<bool> {
        let hop = (self.ask)()?;
        self.hops.push(hop);
        Some(hop <= FAR * self.nearest())
    }

    fn nearest(&self) -> f64 {
        nearest(self.hops.clone()).unwrap_or(f64::INFINITY)
    }

    /// Runs something while the cores are near, again if they were not; what was last is
    /// taken.
    pub fn near<T>(&mut self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        self.runs += 1;
        let began = Instant::now();
        for _ in 1..TRIES {
            while self.look() == Some(false) && began.elapsed() < PATIENCE {
                std::thread::sleep(self.pause);
            }
            let value = run()?;
            if self.look() != Some(false) {
                return Ok(value);
            }
            self.again += 1;
        }
        self.far += 1;
        run()
    }

    /// Runs something between two looks, again if the cores were moved meanwhile; with the
    /// looks of the last run.
    pub fn between<T>(
        &mut self,
        mut run: impl FnMut() -> Result<T>,
    ) -> Result<(T, Option<[f64; 2]>)> {
        self.runs += 1;
        let mut tries = 0;
        loop {
            let before = (self.ask)();
            let value = run()?;
            let after = (self.ask)();
            let hops = before.zip(after).map(|(before, after)| [before, after]);
            self.hops.extend(hops.iter().flatten());
            let distance = Distance::of(hops, self.nearest());
            self.far += u32::from(distance == Some(Distance::Far));
            tries += 1;
            if distance.is_some() || tries == MOVED_TRIES {
                return Ok((value, hops));
            }
            self.again += 1;
        }
    }

    /// Runs something once between two looks, with the looks: of runs that last as long as the
    /// cores stay where they are.
    pub fn once<T>(&mut self, run: impl FnOnce() -> Result<T>) -> Result<(T, Option<[f64; 2]>)> {
        self.runs += 1;
        let before = (self.ask)();
        let value = run()?;
        let after = (self.ask)();
        let hops = before.zip(after).map(|(before, after)| [before, after]);
        self.hops.extend(hops.iter().flatten());
        let distance = Distance::of(hops, self.nearest());
        self.far += u32::from(distance == Some(Distance::Far));
        Ok((value, hops))
    }

    /// For the note below a table of runs of [`Hops::between`].
    pub fn distances(&self, nearest: f64) -> String {
        match self.hops.is_empty() {
            true => "One core.".into(),
            false => format!(
                "Each run stands between two looks at the cores, {nearest:.0} ns apart where near; \
                 beyond {FAR} times that they are far. Of {} runs of this session {} were far, \
                 and {} were done again because the cores were moved.",
                self.runs, self.far, self.again
            ),
        }
    }

    /// For the note below a table.
    pub fn text(&self) -> String {
        match self.hops.is_empty() {
            true => "One core.".into(),
            false => format!(
                "Each run stands between two looks at the cores, {:.0} ns apart where near; {} of \
                 {} were done again because they were more than {FAR} times as far apart, and {} \
                 taken although they were.",
                self.nearest(),
                self.again,
                self.runs,
                self.far
            ),
        }
    }
}

/// A line from one core to another and back, halved: the shortest of some readings, in ns.
fn hop_ns() -> Option<f64> {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let cores = super::contestant::cores();
    if cores < 2 {
        return None;
    }
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let last = TRIPS * READINGS;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for trip in 1..=last {
                wait_for(&there.0, trip);
                back.0.store(trip, Ordering::Release);
            }
        });
        // A thread of its own: the caller stays where it is.
        let asks = scope.spawn(|| {
            pin(0);
            let mut shortest = f64::INFINITY;
            for reading in 0..READINGS {
                let start = Instant::now();
                for trip in reading * TRIPS + 1..=(reading + 1) * TRIPS {
                    there.0.store(trip, Ordering::Release);
                    wait_for(&back.0, trip);
                }
                shortest = shortest.min(start.elapsed().as_nanos() as f64);
            }
            shortest / (2 * TRIPS) as f64
        });
        asks.join().ok()
    })
}

fn wait_for(line: &AtomicU64, trip: u64) {
    let mut asked = 0u32;
    while line.load(Ordering::Acquire) < trip {
        asked += 1;
        // Both may be on one core where pinning is not allowed.
        if asked.is_multiple_of(1 << 16) {
            std::thread::yield_now();
        }
    }
}

/// Where the system refuses, the thread stays where it is.
fn pin(core: usize) {
    // SAFETY: an all-zero set is a set without cores.
    #[expect(unsafe_code, reason = "sets of cores are the C library's")]
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes into the set; cores beyond it are left out.
    #[expect(unsafe_code, reason = "sets of cores are the C library's")]
    unsafe {
        libc::CPU_SET(core, &mut set);
    }
    // SAFETY: reads the set; of this thread alone.
    #[expect(unsafe_code, reason = "the standard library cannot pin threads")]
    unsafe {
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(hops: &[f64]) -> Hops {
        let mut hops = [100.0; FIRST_LOOKS as usize]
            .into_iter()
            .chain(hops.to_vec());
        Hops::by(Box::new(move || hops.next()), Duration::ZERO)
    }

    /// One hop that is shorter than all others makes those not far.
    #[test]
    fn a_few_short_hops_are_left_out() {
        let mut hops = vec![29.0];
        hops.extend((0..40).map(|at| 47.0 + f64::from(at % 9)));
        hops.extend([250.0; 12]);
        let near = nearest(hops).expect("some");
        assert_eq!(Distance::of(Some([55.0, 58.0]), near), Some(Distance::Near));
        assert_eq!(
            Distance::of(Some([245.0, 250.0]), near),
            Some(Distance::Far)
        );
        assert_eq!(nearest(Vec::new()), None);
        assert_eq!(nearest(vec![60.0, 50.0]), Some(50.0));
    }

    #[test]
    fn a_session_of_far_cores_has_seen_no_near_ones() {
        let near = nearest(vec![248.0; 40]).expect("some");
        let hops = Some([247.0, 250.0]);
        assert_eq!(Distance::of(hops, near), Some(Distance::Far));
    }

    #[test]
    fn a_line_takes_some_time() {
        assert!(hop_ns().is_none_or(|hop| hop > 0.0));
    }

    #[test]
    fn a_run_beside_far_cores_is_done_again() {
        // Far, near: a run; far: again; near: a run; near.
        let mut hops = said(&[400.0, 110.0, 400.0, 120.0, 100.0]);
        let mut runs = 0;
        let value = hops.near(|| {
            runs += 1;
            Ok(runs)
        });
        assert_eq!((value, hops.again, hops.far), (Ok(2), 1, 0));
        assert!(hops.text().contains("100 ns"), "{}", hops.text());
    }

    #[test]
    fn cores_that_stay_far_are_taken_in_the_end() {
        let far: Vec<f64> = (0..100)
            .map(|at| if at % 2 == 0 { 100.0 } else { 400.0 })
            .collect();
        let mut hops = said(&far);
        assert_eq!(hops.near(|| Ok(1)), Ok(1));
        assert_eq!((hops.runs, hops.far), (1, 1));
    }

    #[test]
    fn a_run_has_the_looks_beside_it() {
        // Moved: again; near.
        let mut hops = said(&[100.0, 400.0, 110.0, 100.0]);
        assert_eq!(hops.between(|| Ok(1)), Ok((1, Some([110.0, 100.0]))));
        assert_eq!((hops.again, hops.far), (1, 0));
        // Far is no reason to run again.
        let mut hops = said(&[400.0, 300.0]);
        assert_eq!(hops.between(|| Ok(1)), Ok((1, Some([400.0, 300.0]))));
        assert_eq!((hops.again, hops.far), (0, 1));
        assert_eq!(Distance::of(Some([100.0, 400.0]), 100.0), None);
        assert_eq!(Distance::of(None, f64::INFINITY), Some(Distance::Near));
    }

    #[test]
    fn one_core_is_never_far() {
        let mut hops = Hops::by(Box::new(|| None), Duration::ZERO);
        assert_eq!(hops.near(|| Ok(1)), Ok(1));
        assert!(hops.near::<()>(|| Err("no".into())).is_err());
        assert_eq!((hops.runs, hops.again), (2, 0));
    }
}
