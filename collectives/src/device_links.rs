//! Links between devices of ranks, beside their places: NVLinks between two, or into a switch
//! that joins many.
//!
//! Two devices are as far apart as their places say. A link of their own may join them
//! nevertheless: across sockets, or past the switch that both are behind. So links are told
//! of pairs of ranks, and places stay what they are.
//!
//! # Invariants
//! 1. A pair is joined in both directions alike, and no rank is joined to itself.
//! 2. The other ends of a rank's links are in order.

use crate::cost::{Curve, Machine};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What joins two devices besides the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceLink {
    /// They are one device, of two ranks.
    Same,
    /// So many links from one to the other, which carry nothing else.
    Direct(u32),
    /// So many links of each into switches: all that a device sends and receives over them
    /// shares its links.
    Switched(u32),
}

impl DeviceLink {
    /// Number of links at either end.
    pub fn links(self) -> u32 {
        match self {
            Self::Same => 0,
            Self::Direct(n) | Self::Switched(n) => n,
        }
    }
}

/// As `nvidia-smi` writes it: `NV4`. Through a switch it is `NV18s`.
impl fmt::Display for DeviceLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.pad("same"),
            Self::Direct(n) => f.pad(&format!("NV{n}")),
            Self::Switched(n) => f.pad(&format!("NV{n}s")),
        }
    }
}

/// Which ranks' devices are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceLinks {
    /// By rank: the others, and what joins them.
    of: Vec<Vec<(u32, DeviceLink)>>,
}

impl DeviceLinks {
    /// Of pairs of ranks; of one that is named twice the last counts.
    ///
    /// # Panics
    /// If a rank is none of `size`, or joined to itself.
    pub fn of(size: u32, pairs: impl IntoIterator<Item = (u32, u32, DeviceLink)>) -> Self {
        let mut of = vec![BTreeMap::new(); size as usize];
        for (a, b, device_link) in pairs {
            assert_ne!(a, b, "a rank is not joined to itself");
            of[a as usize].insert(b, device_link);
            of[b as usize].insert(a, device_link);
        }
        let of = of.into_iter().map(|others| others.into_iter().collect());
        Self { of: of.collect() }
    }

    /// On a regular machine, in which `each` ranks of a node have devices 0, 1, ...: as in
    /// `0-1:4,2-3:4`, links between pairs of a node's devices, or `switch:18`, links of each
    /// into switches of the node.
    ///
    /// # Errors
    /// If it is something else, or names devices that there are not.
    pub fn regular(text: &str, size: u32, each: u32) -> Result<Self, String> {
        let wrong = |item: &str| format!("{item}: write A-B:LINKS, as in 0-1:4, or switch:LINKS");
        let mut pairs = Vec::new();
        for item in text.split(',').map(str::trim) {
            let (who, links) = item.split_once(':').ok_or_else(|| wrong(item))?;
            let links: u32 = links.parse().map_err(|_| wrong(item))?;
            if links == 0 {
                return Err(wrong(item));
            }
            if who == "switch" {
                let all = (0..each).flat_map(|a| (a + 1..each).map(move |b| (a, b)));
                pairs.extend(all.map(|(a, b)| (a, b, DeviceLink::Switched(links))));
                continue;
            }
            let (a, b) = who.split_once('-').ok_or_else(|| wrong(item))?;
            let number = |text: &str| text.parse().map_err(|_| wrong(item));
            let (a, b): (u32, u32) = (number(a)?, number(b)?);
            if a == b || a.max(b) >= each {
                return Err(format!("{item}: a node has devices 0 to {}", each - 1));
            }
            pairs.push((a, b, DeviceLink::Direct(links)));
        }
        let nodes = (0..size).step_by(each.max(1) as usize);
        Ok(Self::of(
            size,
            nodes.flat_map(|first| {
                let here = pairs
                    .iter()
                    .map(move |(a, b, j)| (first + a, first + b, *j));
                here.filter(|(a, b, _)| *a < size && *b < size)
                    .collect::<Vec<_>>()
            }),
        ))
    }

    /// What joins two ranks.
    #[inline]
    pub fn between(&self, a: u32, b: u32) -> Option<DeviceLink> {
        let others = self.of.get(a as usize)?;
        let at = others.binary_search_by_key(&b, |(other, _)| *other).ok()?;
        Some(others[at].1)
    }

    /// Whether no rank is joined to any.
    pub fn is_empty(&self) -> bool {
        self.of.iter().all(Vec::is_empty)
    }

    /// Whether each rank is joined to each other alike: then no order is better than another.
    pub fn are_alike(&self) -> bool {
        let others = self.of.len().saturating_sub(1);
        self.of.iter().all(|of| of.len() == others) && self.kinds().len() <= 1
    }

    /// All pairs, each once.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u32, DeviceLink)> + '_ {
        self.of.iter().enumerate().flat_map(|(a, others)| {
            let others = others
                .iter()
                .map(move |(b, device_link)| (a as u32, *b, *device_link));
            others.filter(|(a, b, _)| a < b)
        })
    }

    /// Kinds of links that there are, in order.
    pub fn kinds(&self) -> Vec<DeviceLink> {
        let mut all: Vec<DeviceLink> = self
            .of
            .iter()
            .flatten()
            .map(|(_, device_link)| *device_link)
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Of some ranks, which are numbered anew in this order.
    pub fn of_ranks(&self, ranks: &[u32]) -> Self {
        let new: BTreeMap<u32, u32> = ranks.iter().copied().zip(0..).collect();
        let kept = self.pairs().filter_map(|(a, b, device_link)| {
            let (a, b) = (new.get(&a)?, new.get(&b)?);
            Some((*a, *b, device_link))
        });
        Self::of(ranks.len() as u32, kept)
    }

    /// By rank, the lowest rank that can be reached from it over links alone.
    pub fn cliques(&self) -> Vec<u32> {
        let mut clique: Vec<Option<u32>> = vec![None; self.of.len()];
        for first in 0..self.of.len() {
            if clique[first].is_some() {
                continue;
            }
            let mut open = vec![first];
            while let Some(rank) = open.pop() {
                if clique[rank].replace(first as u32).is_none() {
                    open.extend(self.of[rank].iter().map(|(other, _)| *other as usize));
                }
            }
        }
        clique.into_iter().flatten().collect()
    }
}

/// Links between devices, and what messages over them cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// Who is joined.
    pub device_links: DeviceLinks,
    /// What messages over a kind of links cost; of each kind that there is.
    pub links: Vec<(DeviceLink, Curve)>,
}

impl Joined {
    /// What messages between two ranks cost, if they are joined.
    #[inline]
    pub fn between(&self, a: u32, b: u32) -> Option<(DeviceLink, &Curve)> {
        let device_link = self.device_links.between(a, b)?;
        let (_, curve) = self.links.iter().find(|(kind, _)| *kind == device_link)?;
        Some((device_link, curve))
    }
}

/// Sets of ranks up to this many are ordered exactly.
const EXACT: usize = 10;

/// All ranks in an order in which neighbors are near to each other: by a link of their own
/// where there is one, else by place. Ranks that links join, whatever is between them, come
/// without others in between; `root` is the first of all. If `closed`, the way from the last
/// to the first counts, too, where links join all.
///
/// So a chain passes each NVLink clique once, and a ring stays on links where they make
/// one.
pub(crate) fn order(machine: &Machine, root: u32, bytes: u64, closed: bool) -> Vec<u32> {
    let size = machine.places.len();
    let Some(joined) = &machine.joined else {
        return (0..size as u32).collect();
    };
    let prefix = common(machine, &joined.device_links);
    let home = &machine.places[root as usize];
    // Parts that no link leaves, the root's first at every level.
    let mut parts: BTreeMap<(usize, &[u32]), Vec<u32>> = BTreeMap::new();
    for rank in 0..size as u32 {
        let place = &machine.places[rank as usize][..prefix];
        let near = place.iter().zip(home).take_while(|(a, b)| a == b).count();
        parts.entry((prefix - near, place)).or_default().push(rank);
    }
    let closed = closed && parts.len() == 1;
    let ns = |a: u32, b: u32| {
        let (_, curve) = machine.way(a, b, false);
        curve.of(bytes as f64).one_way_ns(bytes as f64)
    };
    let mut order = Vec::with_capacity(size);
    for members in parts.into_values() {
        let first = members.iter().position(|rank| *rank == root);
        order.extend(path(&members, first, closed, &ns));
    }
    order
}

/// How many outermost levels no link crosses.
fn common(machine: &Machine, device_links: &DeviceLinks) -> usize {
    let depth = machine.places.first().map_or(0, Vec::len);
    let crossed = device_links
        .pairs()
        .map(|(a, b, _)| machine.distance(a, b))
        .max();
    depth - crossed.unwrap_or(0)
}

/// Places by NVLink cliques: outer levels that no link crosses, and the NVLink clique in place of
/// the others.
pub(crate) fn clique_places(machine: &Machine) -> Option<Vec<Vec<u32>>> {
    let joined = machine.joined.as_ref()?;
    let prefix = common(machine, &joined.device_links);
    let cliques = joined.device_links.cliques();
    let place = |(place, clique): (&Vec<u32>, u32)| {
        let mut path = place[..prefix].to_vec();
        path.push(clique);
        path
    };
    Some(machine.places.iter().zip(cliques).map(place).collect())
}

/// The shortest way through all members, from the first one if it is said.
fn path(
    members: &[u32],
    first: Option<usize>,
    closed: bool,
    ns: &impl Fn(u32, u32) -> f64,
) -> Vec<u32> {
    match members.len() {
        0..=2 => {
            let mut all = members.to_vec();
            all.rotate_left(first.unwrap_or(0));
            all
        }
        n if n <= EXACT => exact(members, first, closed, ns),
        _ => greedy(members, first.unwrap_or(0), ns),
    }
}

/// By dynamic programming over sets (Held and Karp, 1962).
fn exact(
    members: &[u32],
    first: Option<usize>,
    closed: bool,
    ns: &impl Fn(u32, u32) -> f64,
) -> Vec<u32> {
    let n = members.len();
    let cost: Vec<f64> = (0..n * n)
        .map(|at| match (at / n, at % n) {
            (a, b) if a == b => 0.0,
            (a, b) => ns(members[a], members[b]),
        })
        .collect();
    // By set and its last member: the least time, and the member before.
    let mut best = vec![(f64::INFINITY, n); n << n];
    for start in 0..n {
        if first.is_none_or(|first| first == start) {
            best[(1 << start) * n + start].0 = 0.0;
        }
    }
    for set in 1usize..1 << n {
        for last in (0..n).filter(|last| set >> last & 1 == 1) {
            let (so_far, _) = best[set * n + last];
            if so_far.is_infinite() {
                continue;
            }
            for next in (0..n).filter(|next| set >> next & 1 == 0) {
                let there = &mut best[(set | 1 << next) * n + next];
                let time = so_far + cost[last * n + next];
                if time < there.0 {
                    *there = (time, last);
                }
            }
        }
    }
    let all = (1 << n) - 1;
    let end = |last: &usize| {
        let back = match (closed, first) {
            (true, Some(first)) => cost[last * n + first],
            _ => 0.0,
        };
        best[all * n + last].0 + back
    };
    let last = (0..n).min_by(|a, b| end(a).total_cmp(&end(b)));
    let (mut set, mut at) = (all, last.unwrap_or(0));
    let mut order = Vec::with_capacity(n);
    while at < n {
        order.push(members[at]);
        let before = best[set * n + at].1;
        set &= !(1 << at);
        at = before;
    }
    order.reverse();
    order
}

/// Each time to the nearest that is left.
fn greedy(members: &[u32], first: usize, ns: &impl Fn(u32, u32) -> f64) -> Vec<u32> {
    let mut left = members.to_vec();
    let mut at = left.remove(first);
    let mut order = vec![at];
    while !left.is_empty() {
        let near = |i: &usize| ns(at, left[*i]);
        let next = (0..left.len()).min_by(|a, b| near(a).total_cmp(&near(b)));
        at = left.remove(next.unwrap_or(0));
        order.push(at);
    }
    order
}

/// Shared by machines that are alike.
pub(crate) fn renamed(joined: Option<&Arc<Joined>>, ranks: &[u32]) -> Option<Arc<Joined>> {
    let joined = joined?;
    Some(Arc::new(Joined {
        device_links: joined.device_links.of_ranks(ranks),
        links: joined.links.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Link;

    /// Eight devices in a hybrid cube, six links each.
    const MESH: &str = "0-1:1,0-2:1,0-3:2,0-4:2,1-2:2,1-3:1,1-5:2,2-3:2,2-6:1,3-7:1,\
                        4-5:1,4-6:1,4-7:2,5-6:2,5-7:1,6-7:2";

    fn machine(shape: &[u32], device_links: DeviceLinks) -> Machine {
        let level = |level: usize| Link::hockney(5000.0 + 500.0 * level as f64, 0.04);
        let links = (0..shape.len()).map(level).collect();
        let curve = |device_link: DeviceLink| {
            Link::hockney(5000.0, 0.04 / f64::from(device_link.links())).into()
        };
        let links_of = device_links
            .kinds()
            .into_iter()
            .map(|j| (j, curve(j)))
            .collect();
        Machine {
            joined: Some(Arc::new(Joined {
                device_links,
                links: links_of,
            })),
            ..Machine::regular(shape, links, |rank| rank)
        }
    }

    #[test]
    fn device_links_of_nodes() {
        let device_links = DeviceLinks::regular("0-1:4,2-3:2", 8, 4).expect("pairs");
        assert_eq!(device_links.between(1, 0), Some(DeviceLink::Direct(4)));
        assert_eq!(device_links.between(6, 7), Some(DeviceLink::Direct(2)));
        assert_eq!(
            (device_links.between(1, 2), device_links.between(3, 4)),
            (None, None)
        );
        assert_eq!(device_links.cliques(), [0, 0, 2, 2, 4, 4, 6, 6]);
        assert_eq!(
            device_links.kinds(),
            [DeviceLink::Direct(2), DeviceLink::Direct(4)]
        );
        assert_eq!(device_links.pairs().count(), 4);
        let some = device_links.of_ranks(&[7, 6, 0]);
        assert_eq!(
            some.pairs().collect::<Vec<_>>(),
            [(0, 1, DeviceLink::Direct(2))]
        );
        assert!(!device_links.are_alike());
        assert!(
            DeviceLinks::regular("switch:18", 3, 3)
                .expect("a switch")
                .are_alike()
        );
        let switch = DeviceLinks::regular("switch:18", 6, 3).expect("a switch");
        assert_eq!(switch.cliques(), [0, 0, 0, 3, 3, 3]);
        assert_eq!(
            switch.between(0, 2).map(|j| j.to_string()),
            Some("NV18s".into())
        );
        for wrong in ["", "0-1", "0-4:1", "1-1:2", "0-1:0", "switch", "switch:x"] {
            assert!(DeviceLinks::regular(wrong, 8, 4).is_err(), "{wrong}");
        }
    }

    #[test]
    fn neighbors_are_joined_where_they_can_be() {
        let two = DeviceLinks::regular("0-2:4,1-3:4", 4, 4).expect("pairs");
        let machine_ = machine(&[2, 2], two);
        assert_eq!(order(&machine_, 1, 1 << 20, false)[..2], [1, 3]);
        let mesh = machine(&[2, 4], DeviceLinks::regular(MESH, 8, 8).expect("a mesh"));
        for closed in [false, true] {
            let order = order(&mesh, 5, 1 << 24, closed);
            assert_eq!(order[0], 5);
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, (0..8).collect::<Vec<u32>>());
            let joined = mesh.joined.as_ref().expect("joined");
            let pairs = order.windows(2).map(|w| (w[0], w[1]));
            let back = closed.then(|| (order[7], order[0]));
            for (a, b) in pairs.chain(back) {
                // There is a ring of two links each.
                assert_eq!(
                    joined.device_links.between(a, b),
                    Some(DeviceLink::Direct(2)),
                    "{order:?}"
                );
            }
        }
    }

    #[test]
    fn cliques_come_one_after_the_other() {
        // NVLink cliques across the sockets of each of two nodes.
        let device_links = DeviceLinks::regular("0-2:4,1-3:4", 8, 4).expect("pairs");
        let machine = machine(&[2, 2, 2], device_links);
        assert_eq!(order(&machine, 5, 1 << 20, false), [5, 7, 6, 4, 1, 3, 2, 0]);
        let places = clique_places(&machine).expect("joined");
        assert_eq!(places[2], [0, 0]);
        assert_eq!(places[7], [1, 5]);
        let many = DeviceLinks::regular("switch:2", 16, 16).expect("a switch");
        let many = self::machine(&[16], many);
        assert_eq!(order(&many, 3, 8, false).len(), 16);
    }
}
