//! Processor binding of ranks.
//!
//! | policy | rank r runs on |
//! |---|---|
//! | `core` | the first hardware thread of the r-th core |
//! | `share` | all threads of cores r·c/n up to (r+1)·c/n, of c cores in all |
//! | `none` | what the launcher may use |
//!
//! Without `--bind` the policy is `share` while there are no more ranks than
//! cores, else `none`: a share keeps a rank near its memory, leaves room for
//! the threads of ranks that have them, and lets several jobs on one machine
//! spread over all of it, where `core` would put them all on the first cores.
//! With as many ranks as cores, `share` and `core` give each rank one core.

use std::fs;
use std::io;
use std::mem::{MaybeUninit, size_of};

use clap::ValueEnum;

/// How ranks are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bind {
    /// Rank r on the r-th core alone, by the launcher's affinity mask
    Core,
    /// Each rank on an equal share of the cores
    Share,
    /// Ranks run wherever the launcher may
    None,
}

/// A set of processors, as the kernel wants it.
#[derive(Clone, Copy)]
pub struct CpuSet(libc::cpu_set_t);

impl CpuSet {
    fn of(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
        // SAFETY: all zeros is the empty set.
        let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
        for cpu in cpus {
            // SAFETY: `set` is a valid set; numbers beyond it are ignored.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        CpuSet(set)
    }

    fn of_launcher() -> io::Result<CpuSet> {
        let mut set = CpuSet::of([]);
        // SAFETY: the set is writable for its size.
        let ret =
            unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set.0) };
        if ret != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(set)
    }

    /// All processors of several sets together.
    pub fn union<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> CpuSet {
        CpuSet::of(sets.into_iter().flat_map(CpuSet::cpus))
    }

    /// The numbers of its processors.
    pub fn cpus(&self) -> Vec<usize> {
        (0..libc::CPU_SETSIZE as usize)
            // SAFETY: the number lies within the set.
            .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) })
            .collect()
    }

    /// Confines the calling process to the set. Async-signal-safe.
    pub fn apply(&self) -> io::Result<()> {
        // SAFETY: the set is readable for its size.
        let ret =
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        if ret != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// The processors that this process may use.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    Ok(CpuSet::of_launcher()?.cpus())
}

/// Cores of which the launcher may use a hardware thread.
pub fn cores_here() -> usize {
    CpuSet::of_launcher().map_or(1, |set| cores(&set.cpus(), siblings).len().max(1))
}

/// Confines the calling thread to a processor.
pub fn bind_to(cpu: usize) -> io::Result<()> {
    CpuSet::of([cpu]).apply()
}

/// The processors of each rank; `None` leaves them alone. The text is a
/// warning for the user.
pub fn plan(policy: Option<Bind>, ranks: usize) -> (Vec<Option<CpuSet>>, Option<String>) {
    if policy == Some(Bind::None) || (policy.is_none() && ranks == 1) {
        return (vec![None; ranks], None);
    }
    let cores = match CpuSet::of_launcher() {
        Ok(set) => cores(&set.cpus(), siblings),
        Err(e) => {
            let warning = policy.map(|_| {
                let cause = super::cause(&e);
                format!("warning: ranks are not bound to cores: {cause}")
            });
            return (vec![None; ranks], warning);
        }
    };
    match place(policy, ranks, &cores) {
        None => (vec![None; ranks], None),
        Some(cpus) => {
            let warning = (ranks > cores.len()).then(|| {
                format!(
                    "warning: {ranks} ranks share {} core{}: some are bound to the same one \
                     (hint: --bind none lets the system spread them)",
                    cores.len(),
                    if cores.len() == 1 { "" } else { "s" },
                )
            });
            (
                cpus.into_iter().map(|c| Some(CpuSet::of(c))).collect(),
                warning,
            )
        }
    }
}

/// The processors of each rank by number, as [`plan`] has them.
pub fn placement(policy: Option<Bind>, ranks: usize) -> (Vec<Option<Vec<usize>>>, Option<String>) {
    let (sets, warning) = plan(policy, ranks);
    let sets = sets.into_iter().map(|set| set.map(|set| set.cpus()));
    (sets.collect(), warning)
}

/// Groups processors into cores: in order of their first hardware thread,
/// each with those of its threads that are in `cpus`.
fn cores(cpus: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Vec<Vec<usize>> {
    let mut cores: Vec<Vec<usize>> = Vec::new();
    let mut seen = vec![false; cpus.last().map_or(0, |last| last + 1)];
    for &cpu in cpus {
        if seen[cpu] {
            continue;
        }
        let mut core = vec![cpu];
        core.extend(
            siblings(cpu)
                .into_iter()
                .filter(|s| *s != cpu && cpus.binary_search(s).is_ok()),
        );
        core.retain(|s| !seen[*s]);
        for &s in &core {
            seen[s] = true;
        }
        cores.push(core);
    }
    cores
}

/// The hardware threads that share a core with `cpu`.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path).map_or_else(|_| Vec::new(), |list| parse_list(&list))
}

/// Parses the kernel's lists of processors: `0-3,8,10-11`.
fn parse_list(list: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>())
            && last < libc::CPU_SETSIZE as usize
        {
            cpus.extend(first..=last);
        }
    }
    cpus
}

/// The processors of each rank, or `None` where the policy leaves them alone.
fn place(policy: Option<Bind>, ranks: usize, cores: &[Vec<usize>]) -> Option<Vec<Vec<usize>>> {
    if cores.is_empty() {
        return None;
    }
    let policy = policy.unwrap_or(if ranks <= cores.len() {
        Bind::Share
    } else {
        Bind::None
    });
    let one_core = |rank: usize| vec![cores[rank % cores.len()][0]];
    match policy {
        Bind::None => None,
        Bind::Core => Some((0..ranks).map(one_core).collect()),
        Bind::Share if ranks > cores.len() => Some((0..ranks).map(one_core).collect()),
        Bind::Share => Some(
            (0..ranks)
                .map(|rank| {
                    let share = rank * cores.len() / ranks..(rank + 1) * cores.len() / ranks;
                    cores[share].concat()
                })
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores of two threads: 0 and 4, 1 and 5, ...
    fn four_cores(cpus: &[usize]) -> Vec<Vec<usize>> {
        cores(cpus, |cpu| vec![cpu % 4, cpu % 4 + 4])
    }

    #[test]
    fn threads_of_a_core_stand_together() {
        assert_eq!(
            four_cores(&[0, 1, 2, 3, 4, 5, 6, 7]),
            [[0, 4], [1, 5], [2, 6], [3, 7]]
        );
        assert_eq!(four_cores(&[1, 4, 5]), [vec![1, 5], vec![4]]);
        assert_eq!(cores(&[2, 3], |_| Vec::new()), [[2], [3]]);
    }

    #[test]
    fn ranks_take_cores_in_order_and_wrap() {
        let cores = four_cores(&[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(
            place(Some(Bind::Core), 6, &cores).unwrap(),
            [[0], [1], [2], [3], [0], [1]]
        );
        assert_eq!(place(Some(Bind::None), 2, &cores), None);
        assert_eq!(place(None, 5, &cores), None);
        assert_eq!(place(None, 2, &[]), None);
    }

    #[test]
    fn shares_are_disjoint_and_leave_no_core_idle() {
        for cores_in_all in 1..20 {
            let cores: Vec<Vec<usize>> = (0..cores_in_all).map(|c| vec![c]).collect();
            for ranks in 1..=cores_in_all {
                let shares = place(None, ranks, &cores).unwrap();
                assert!(shares.iter().all(|s| !s.is_empty()));
                assert_eq!(shares.concat(), (0..cores_in_all).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(parse_list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse_list("\n"), [0_usize; 0]);
        assert_eq!(parse_list("0-99999999999"), [0_usize; 0]);
    }

    #[test]
    fn a_warning_comes_only_when_asked_to_bind_too_many() {
        let cpus = CpuSet::of_launcher().unwrap().cpus().len();
        assert!(plan(Some(Bind::Core), cpus + 1).1.is_some());
        assert!(plan(None, cpus + 1).1.is_none());
        assert!(plan(Some(Bind::None), cpus + 1).1.is_none());
        assert!(plan(Some(Bind::Core), 1).0[0].is_some());
    }
}
