//! Machine model of the planner: where ranks are, and what links cost.
//!
//! A rank's place is its path from the outermost part of the machine inward. Two
//! ranks are as far apart as the outermost part in which their paths differ. All
//! links of one distance cost the same, but for pairs that a link of their own joins
//! ([`Joined`]).
//!
//! A machine has the costs of one memory space: that in which a call's buffers lie. One of
//! devices' memory has the host's beside it ([`Aside`]), for what a plan keeps there.

use super::curve::{Curve, Piecewise};
use crate::call::{Call, Operation};
use crate::device_links::{DeviceLink, Joined, renamed};
use crate::plan::{Part, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a message over one class of links costs, after LogGP. Times in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// L: from one end to the other.
    pub latency_ns: f64,
    /// o: of a processor, at either end.
    pub overhead_ns: f64,
    /// g: between the starts of two messages at one end.
    pub gap_ns: f64,
    /// G: per byte, at each rank's own end.
    pub per_byte_ns: f64,
    /// Per byte, of a processor at either end: where processors copy.
    pub work_per_byte_ns: f64,
    /// Per byte, where all ranks below one end share the way out; 0 if they do not.
    pub shared_per_byte_ns: f64,
}

impl Link {
    /// Hockney's start-up time: a message of no bytes.
    pub fn alpha_ns(&self) -> f64 {
        self.latency_ns + 2.0 * self.overhead_ns
    }

    /// From the send to the end of the receive, if both ends are idle.
    pub fn one_way_ns(&self, bytes: f64) -> f64 {
        self.latency_ns + self.per_byte_ns * bytes + 2.0 * self.work_ns(bytes)
    }

    /// For how long a message occupies the processor of either end.
    #[inline]
    pub fn work_ns(&self, bytes: f64) -> f64 {
        self.overhead_ns + self.work_per_byte_ns * bytes
    }

    /// The same that takes this many times as long.
    pub(crate) fn times(self, times: f64) -> Self {
        Self {
            latency_ns: self.latency_ns * times,
            overhead_ns: self.overhead_ns * times,
            gap_ns: self.gap_ns * times,
            per_byte_ns: self.per_byte_ns * times,
            work_per_byte_ns: self.work_per_byte_ns * times,
            shared_per_byte_ns: self.shared_per_byte_ns * times,
        }
    }

    /// For so many messages a sender is busy while one is under way: 1, as after Hockney, to
    /// 64.
    pub fn reach(&self, bytes: f64) -> u32 {
        let busy = self
            .work_ns(bytes)
            .max(self.gap_ns)
            .max(self.per_byte_ns * bytes);
        match busy > 0.0 {
            true => (self.one_way_ns(bytes) / busy).round().clamp(1.0, 64.0) as u32,
            false => 1,
        }
    }

    /// A link after Hockney: `alpha + beta * bytes`, all of it latency.
    pub const fn hockney(alpha_ns: f64, per_byte_ns: f64) -> Self {
        Self {
            latency_ns: alpha_ns,
            overhead_ns: 0.0,
            gap_ns: 0.0,
            per_byte_ns,
            work_per_byte_ns: 0.0,
            shared_per_byte_ns: 0.0,
        }
    }
}

/// Ranks and links.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// By rank: its path, outermost first. All are equally long.
    pub places: Arc<[Vec<u32>]>,
    /// By distance: equal paths, last entry differs, and so on outward: one more than
    /// a path has entries.
    pub links: Vec<Curve>,
    /// The same of messages from what calls before have not written, the buffers that
    /// contributions are sent from: their receiver may have them in its caches still.
    /// Empty: as `links`.
    pub kept: Vec<Curve>,
    /// Combining, by bytes of the result.
    pub combine: Piecewise,
    /// Copying within a rank.
    pub copy: Piecewise,
    /// Messages above this many bytes begin when both ends have posted them.
    pub eager_bytes: f64,
    /// What carries plans out.
    pub executor: Executor,
    /// Ranks that share cores, on each of which one works at a time.
    pub shared_cores: Option<SharedCores>,
    /// What predictions by these numbers were off by, at the median, as a share: what is
    /// made from the numbers must gain more.
    pub error: f64,
    /// The host's memory, where the costs above are those of devices'.
    pub aside: Option<Arc<Aside>>,
    /// Links of their own between pairs of devices, wherever these are.
    pub joined: Option<Arc<Joined>>,
    /// Reductions to all ranks in one kernel each, where devices can.
    pub one_kernel: Option<Arc<OneKernel>>,
    /// Flags and slots in a segment, where all ranks are on one host.
    pub segment: Option<Arc<Segment>>,
}

/// Which ranks share a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCores {
    /// At least 1.
    pub ranks_per_core: u32,
    /// Ranks that follow one another share one, or else they are dealt out in turn. The operating
    /// system decides, so it is not known.
    pub in_blocks: bool,
}

impl SharedCores {
    /// The cores of `size` ranks, and the core of each.
    pub(crate) fn of(self, size: usize) -> (usize, impl Fn(usize) -> usize) {
        let each = self.ranks_per_core.max(1) as usize;
        let cores = size.div_ceil(each);
        let core = move |rank| match self.in_blocks {
            true => rank / each,
            false => rank % cores,
        };
        (cores, core)
    }
}

/// What plans cost whose ranks share a segment of a host's memory. Times in ns.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// From a flag's store until the rank that awaits it goes on, unless `apart` says otherwise.
    pub flag_ns: f64,
    /// What each step takes beside, in calls of several segments or whose vector is cut: those of
    /// others are worked out before.
    pub step_ns: f64,
    /// For how long a rank that waits leaves its core to those that share it.
    pub switch_ns: f64,
    /// Copying into a slot that peers have read, by bytes.
    pub write: Piecewise,
    /// Copying out of a peer's slot.
    pub read: Piecewise,
    /// Cost of a flag and of reading a slot, by the distance of the peer ([`Machine::links`]). If
    /// empty, `flag_ns` and `read` hold for all distances.
    pub apart: Vec<(f64, Piecewise)>,
    /// Reading plain memory of a peer through the kernel, where plans may.
    pub attach: Option<Piecewise>,
    /// Largest slot of a rank, in bytes.
    pub slot_bytes: u64,
}

impl Segment {
    /// From a flag's store until a rank at this distance goes on.
    pub(crate) fn flag_ns(&self, distance: usize) -> f64 {
        self.apart.get(distance).map_or(self.flag_ns, |(ns, _)| *ns)
    }

    /// Copying out of the slot of a peer at this distance.
    pub(crate) fn read(&self, distance: usize) -> &Piecewise {
        self.apart
            .get(distance)
            .map_or(&self.read, |(_, read)| read)
    }

    /// Whether a segment of `pieces` pieces, `bytes` bytes in all segments together, fits a
    /// slot.
    pub fn fits(&self, bytes: f64, pieces: u32, segments: u32) -> bool {
        let lines = match segments {
            1 => 0.0,
            // A share is at most two lines longer than the mean.
            _ => 128.0 * f64::from(pieces),
        };
        bytes / f64::from(segments) + lines <= self.slot_bytes as f64
    }
}

/// What a reduction to all ranks costs that is one kernel on the device of each.
#[derive(Clone, Debug, PartialEq)]
pub struct OneKernel {
    /// From its start to its end at the last rank, by bytes of the vector.
    pub ns: Piecewise,
    /// Longer vectors are not for it.
    pub most_bytes: u64,
}

/// Memory of the host beside that of devices, in which a call's buffers lie.
///
/// A device has one link to all else: messages from its memory, and copies to the host,
/// share its way out, those to it the way in. Messages from the host's memory leave by
/// ways of their own, one for each distance: towards another socket and through a network
/// card. Kernels combine and copy beside the processor, which only begins them.
#[derive(Clone, Debug, PartialEq)]
pub struct Aside {
    /// What calls cost whose buffers lie there.
    pub host: Machine,
    /// A copy from the device to it, by bytes,
    pub to_host: Piecewise,
    /// and back.
    pub to_device: Piecewise,
}

/// What carrying a part out costs, besides what its steps do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Executor {
    /// A part is carried out step by step in the call if it is a row
    /// ([`Part::row_pieces`]) of steps of up to so many bytes. Below 0: none.
    pub row_bytes: f64,
    /// What that takes besides, in ns.
    pub row_ns: f64,
    /// Another part: to begin and to end it, in ns,
    pub run_ns: f64,
    /// and for each instance of a step.
    pub step_ns: f64,
}

impl Machine {
    /// All ranks equally far from each other.
    pub fn flat(size: u32, link: impl Into<Curve>) -> Self {
        Self {
            places: vec![Vec::new(); size as usize].into(),
            links: vec![link.into()],
            kept: Vec::new(),
            combine: 0.0.into(),
            copy: 0.0.into(),
            eager_bytes: 0.0,
            executor: Executor::default(),
            shared_cores: None,
            error: 0.0,
            aside: None,
            joined: None,
            one_kernel: None,
            segment: None,
        }
    }

    /// Ranks on a regular machine: `shape` as in 4 x 2 x 4, outermost first, the last
    /// being the ranks of the innermost part. `links` by distance, innermost first.
    /// Rank r sits at place `order(r)` of the machine, filled from its first part.
    pub fn regular(shape: &[u32], links: Vec<Link>, order: impl Fn(u32) -> u32) -> Self {
        assert_eq!(links.len(), shape.len(), "a link for each level");
        let size: u32 = shape.iter().product();
        let place = |rank: u32| {
            let mut rest = order(rank) % size;
            let mut path = Vec::new();
            for width in shape.iter().rev() {
                path.push(rest % width);
                rest /= width;
            }
            path.reverse();
            path.pop();
            path
        };
        Self {
            places: (0..size).map(place).collect(),
            links: links.into_iter().map(Curve::from).collect(),
            kept: Vec::new(),
            combine: 0.0.into(),
            copy: 0.0.into(),
            eager_bytes: 0.0,
            executor: Executor::default(),
            shared_cores: None,
            error: 0.0,
            aside: None,
            joined: None,
            one_kernel: None,
            segment: None,
        }
    }

    /// Whether calls of this operation may go through slots in several segments. With a piece for
    /// each rank, for all of which each segment waits, that took twice as long as messages from a
    /// root, and 1.3 times as long as an exchange of messages where ranks share cores: `osier bench
    /// scatter` and `alltoall --each`, AMD EPYC of family 26, 2 and 4 ranks on 2 cores, 2026-11-26.
    pub(crate) fn cuts_slots_of(&self, operation: Operation) -> bool {
        match operation {
            Operation::Scatter => false,
            Operation::Alltoall => self.shared_cores.is_none(),
            _ => true,
        }
    }

    /// Whether calls of this operation may read plain memory of peers by the system. Where ranks
    /// share cores an exchange does, since messages take several turns of all and slots do not hold
    /// it: of 64 KiB by 16 ranks on 2 cores 3.8 ms in place of 5.7, by 64 53 in place of 140 to
    /// 250 (`osier bench alltoall --each`, Xeon of 2.5 GHz, 2026-11-28). Elsewhere slots and
    /// messages are quicker: a gather of 64 KiB by 4 ranks takes 27 us, read in place 58.
    pub(crate) fn reads_in_place(&self, operation: Operation) -> bool {
        self.shared_cores.is_none() || operation == Operation::Alltoall
    }

    /// The same where other ranks share a core; none where each has its own.
    pub fn dealt_otherwise(&self) -> Option<Self> {
        let shared = self.shared_cores?;
        let in_blocks = !shared.in_blocks;
        Some(Self {
            shared_cores: Some(SharedCores {
                in_blocks,
                ..shared
            }),
            ..self.clone()
        })
    }

    /// What messages over some distance cost, from kept buffers or others.
    #[inline]
    pub(crate) fn curve(&self, distance: usize, kept: bool) -> &Curve {
        let all = if kept && !self.kept.is_empty() {
            &self.kept
        } else {
            &self.links
        };
        &all[distance]
    }

    /// The outermost parts of the machine that are needed for `size` ranks, with all ranks
    /// that lie in them; which ranks of this machine those are.
    pub(crate) fn first_parts(&self, size: u32) -> (Self, Vec<u32>) {
        let part = |rank: &u32| self.places[*rank as usize].first().copied();
        let all: Vec<u32> = (0..self.places.len() as u32).collect();
        let mut sizes = BTreeMap::new();
        for rank in &all {
            *sizes.entry(part(rank)).or_insert(0) += 1;
        }
        let mut room = 0;
        let wanted: BTreeSet<Option<u32>> = sizes
            .into_iter()
            .take_while(|(_, ranks)| {
                let more = room < size;
                room += ranks;
                more
            })
            .map(|(part, _)| part)
            .collect();
        let mut ranks: Vec<u32> = all
            .into_iter()
            .filter(|r| wanted.contains(&part(r)))
            .collect();
        // One part, or none: as many as are wanted.
        if wanted.len() == 1 {
            ranks.truncate(size as usize);
        }
        let mut fewer = self.of_ranks(&ranks);
        fewer.aside = self.aside.as_ref().map(|aside| {
            Arc::new(Aside {
                host: aside.host.of_ranks(&ranks),
                ..(**aside).clone()
            })
        });
        (fewer, ranks)
    }

    /// Of some ranks, which are numbered anew in this order.
    pub(crate) fn of_ranks(&self, ranks: &[u32]) -> Self {
        Self {
            places: ranks
                .iter()
                .map(|r| self.places[*r as usize].clone())
                .collect(),
            joined: renamed(self.joined.as_ref(), ranks),
            // The kernels are those of all ranks.
            one_kernel: (self.one_kernel.clone()).filter(|_| ranks.len() == self.places.len()),
            ..self.clone()
        }
    }

    /// What messages between two ranks go over, and cost.
    #[inline]
    pub(crate) fn way(&self, a: u32, b: u32, kept: bool) -> (Option<DeviceLink>, &Curve) {
        let own = self.joined.as_ref().and_then(|j| j.between(a, b));
        match own {
            Some((device_link, curve)) => (Some(device_link), curve),
            None => (None, self.curve(self.distance(a, b), kept)),
        }
    }

    /// How far apart two ranks are: an index of `links`.
    #[inline]
    pub fn distance(&self, a: u32, b: u32) -> usize {
        let (a, b) = (&self.places[a as usize], &self.places[b as usize]);
        let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        a.len() - common
    }
}

/// How long pieces are.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// Every contribution, or every vector, has so many bytes.
    Equal(u64),
    /// Contribution r has so many.
    Each(Arc<[u64]>),
}

impl Sizes {
    /// Bytes of the vector or contribution that pieces and segments are cut from.
    pub(crate) fn uncut(&self) -> f64 {
        match self {
            Self::Equal(bytes) => *bytes as f64,
            Self::Each(bytes) => bytes.iter().max().map_or(0.0, |b| *b as f64),
        }
    }

    /// Bytes of a vector or contribution, on average over the ranks.
    pub(crate) fn mean(&self) -> u64 {
        match self {
            Self::Equal(bytes) => *bytes,
            Self::Each(each) => each.iter().sum::<u64>() / each.len().max(1) as u64,
        }
    }

    /// Bytes of a region in one of its segments, on average over the segments.
    pub(crate) fn bytes(&self, call: &Call, part: &Part, region: Region) -> f64 {
        let pieces = match self {
            Self::Equal(bytes) if call.operation.cuts_freely() => {
                *bytes as f64 / f64::from(part.cut) * f64::from(region.count)
            }
            Self::Equal(bytes) => *bytes as f64 * f64::from(region.count),
            Self::Each(bytes) => {
                let known = matches!(
                    call.operation,
                    Operation::Allgather | Operation::ReduceScatter
                );
                if known && bytes.len() == call.size as usize {
                    let pieces = region.indices(call.size);
                    pieces.map(|p| bytes[p as usize] as f64).sum()
                } else {
                    let mean = bytes.iter().sum::<u64>() as f64 / bytes.len().max(1) as f64;
                    mean * f64::from(region.count)
                }
            }
        };
        pieces / f64::from(part.segments)
    }
}
