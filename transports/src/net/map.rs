//! Which rank of a job is on which host.

use std::collections::HashMap;
use std::sync::Arc;

/// The hosts of a job, as one of its ranks sees them.
///
/// ```
/// use osier_transports::net::HostMap;
///
/// // Ranks 0 and 2 are on one host, 1 and 3 on another, of which this is rank 3.
/// let map = HostMap::new(3, &[5, 9, 5, 9]).unwrap();
/// assert_eq!((map.hosts(), map.host(2), map.host(3)), (2, Some(0), Some(1)));
/// assert_eq!((map.place(1), map.place(3), map.place(0)), (Some(0), Some(1), None));
/// assert_eq!(map.here(), [1, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct HostMap {
    /// Number of the host of each rank: from 0 on, in the order of their lowest ranks.
    hosts: Arc<[u32]>,
    number: usize,
    own: u32,
    /// Ranks of this host, in order: their places in its segment.
    here: Arc<[u32]>,
    /// Ranks that share a core on some host, and cores that each has at least on all: 1 and 0
    /// where nothing is known.
    ranks_per_core: u32,
    cores_per_rank: u32,
    /// Names of hosts, if they are known.
    names: Arc<[String]>,
}

impl HostMap {
    /// The map of a rank, from anything that is the same for ranks of a host; none if there is
    /// no such rank.
    pub fn new(rank: u32, of_ranks: &[u32]) -> Option<Self> {
        let mut numbers = HashMap::new();
        let hosts: Vec<u32> = (of_ranks.iter())
            .map(|of| {
                let next = numbers.len() as u32;
                *numbers.entry(*of).or_insert(next)
            })
            .collect();
        let own = *hosts.get(rank as usize)?;
        let here = (0..hosts.len() as u32).filter(|rank| hosts[*rank as usize] == own);
        Some(Self {
            here: here.collect(),
            ranks_per_core: 1,
            cores_per_rank: 0,
            names: Arc::new([]),
            number: numbers.len(),
            own,
            hosts: hosts.into(),
        })
    }

    /// The same map with what ranks have of cores, which all ranks must give alike: plans are
    /// chosen by it.
    pub fn with_cores(self, ranks_per_core: u32, cores_per_rank: u32) -> Self {
        Self {
            ranks_per_core,
            cores_per_rank,
            ..self
        }
    }

    /// The same map with names of the hosts, in their order.
    pub fn with_names(self, names: Vec<String>) -> Self {
        let names = names.into();
        Self { names, ..self }
    }

    /// The name of a rank's host, if it is known.
    pub fn name(&self, rank: u32) -> Option<&str> {
        let name = self.names.get(self.host(rank)? as usize)?;
        Some(name.as_str())
    }

    /// Of something that each rank has, what the lowest rank of each host has.
    pub fn of_hosts<T: Clone>(&self, of_ranks: &[T]) -> Vec<T> {
        let lowest = (0..self.number as u32).map(|host| self.hosts.iter().position(|h| *h == host));
        lowest
            .filter_map(|rank| of_ranks.get(rank?).cloned())
            .collect()
    }

    /// What [`HostMap::with_cores`] wants, from the cores of each rank's host.
    pub fn crowd(&self, cores_of: &[u32]) -> (u32, u32) {
        let mut hosts = vec![(0u32, 1u32); self.number];
        for (host, cores) in self.hosts.iter().zip(cores_of) {
            let of = &mut hosts[*host as usize];
            *of = (of.0 + 1, (*cores).max(1));
        }
        let most = hosts
            .iter()
            .map(|(ranks, cores)| ranks.div_ceil(*cores))
            .max();
        let least = hosts
            .iter()
            .map(|(ranks, cores)| cores / (*ranks).max(1))
            .min();
        (most.unwrap_or(1), least.unwrap_or(0))
    }

    /// Ranks that share a core, at most, on all hosts.
    pub fn ranks_per_core(&self) -> u32 {
        self.ranks_per_core
    }

    /// Cores of each rank, at least, on all hosts; 0 if unknown.
    pub fn cores_per_rank(&self) -> u32 {
        self.cores_per_rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.number
    }

    /// The host of a rank.
    pub fn host(&self, rank: u32) -> Option<u32> {
        self.hosts.get(rank as usize).copied()
    }

    /// This host.
    pub fn own(&self) -> u32 {
        self.own
    }

    /// Ranks of this host, in order.
    pub fn here(&self) -> &[u32] {
        &self.here
    }

    /// The place of a rank in this host's segment; none if it is on another host.
    #[inline]
    pub fn place(&self, rank: u32) -> Option<usize> {
        match self.hosts.get(rank as usize) {
            Some(host) if *host == self.own => self.here.binary_search(&rank).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_most_crowded_host_counts() {
        let map = HostMap::new(0, &[0, 0, 0, 1]).expect("a rank");
        assert_eq!((map.ranks_per_core(), map.cores_per_rank()), (1, 0));
        assert_eq!(map.crowd(&[2, 2, 2, 64]), (2, 0));
        assert_eq!(map.crowd(&[8, 8, 8, 8]), (1, 2));
        let map = map.with_cores(2, 0);
        assert_eq!((map.ranks_per_core(), map.cores_per_rank()), (2, 0));
    }

    #[test]
    fn hosts_have_names() {
        let map = HostMap::new(1, &[7, 7, 3, 7]).expect("a rank");
        assert_eq!(map.name(0), None);
        let names = map.of_hosts(&["a", "b", "c", "d"].map(String::from));
        assert_eq!(names, ["a", "c"]);
        let map = map.with_names(names);
        assert_eq!(
            (map.name(3), map.name(2), map.name(4)),
            (Some("a"), Some("c"), None)
        );
    }

    proptest! {
        #[test]
        fn places_count_ranks_of_a_host(of in proptest::collection::vec(0u32..5, 1..40), own: u32) {
            let own = own % of.len() as u32;
            let map = HostMap::new(own, &of).expect("a rank");
            for (rank, host) in of.iter().enumerate() {
                let before = of[..rank].iter().filter(|h| *h == host).count();
                let here = *host == of[own as usize];
                prop_assert_eq!(map.place(rank as u32), here.then_some(before));
                let same = map.host(rank as u32) == map.host(own);
                prop_assert_eq!(same, here);
            }
            prop_assert_eq!(map.place(of.len() as u32), None);
            prop_assert_eq!(map.host(map.here()[0]), Some(map.own()));
        }
    }
}
