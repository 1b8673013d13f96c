//! Do the buffers of a call lie on devices, at all ranks?
//!
//! All ranks must have one plan, and none knows where the others' buffers are. Any plan is
//! right for any memory, so what ranks agree on may be out of date; it must only be the same
//! for all. Calls of one kind and size class are counted; at the first, second, fourth,
//! eighth... of them ranks ask each other. So n calls cost log n rounds, calls that change
//! where their buffers are get another plan before they have been made twice as often, and
//! calls that do not wait use what was found before them.
//!
//! Ranks agree whether all memory lies on devices, and any; and on the size class, for calls
//! whose bytes ranks do not all know: with counts, and between groups, where a rank that does
//! nothing knows none. Calls on neighborhoods ask nothing: they have one plan, and each rank
//! decides for itself what stays on its device (`stays`).
//!
//! Where calls are checked, the round before each call (`agree`) has the answers: calls that
//! wait wait for it first.
//!
//! # Invariants
//! 1. Nobody asks unless the agreed costs know devices: jobs without them pay one load.
//! 2. Who asks, and when, depends on what all ranks have alike: the order of calls, their
//!    operation, the form of the call, and, where all know them, size class and association.
//! 3. Calls that a rank may take step by step by itself (`inline`) ask nothing: others
//!    would wait for it. But for allreduces that may be one kernel of each rank: these are
//!    counted there, and where they ask they are not taken alone (`takes_alone`).

use super::ask::Ask;
use crate::choice::bytes_of;
use crate::choice::spaces::{Found, Kind};
use crate::comm::Communicator;
use crate::model::calls::ROW_BYTES;
use crate::model::{GpuLinks, GpuName, Places, RankLinks};
use osier_collectives::{Association, Call, DeviceLink, DeviceLinks, Operation};
use osier_engine::check::Check;
use osier_engine::error::Result;
use osier_kernels::Context;
use osier_kernels::exchange::{MOST_BYTES, MOST_RANKS};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// In place of the size class of a kind whose bytes are exchanged.
const ANY_CLASS: u32 = u32::MAX;

/// The kind of a call, and whether all ranks know its size class. None: one that asks nothing.
fn kind_of(ask: &Ask) -> Option<(Kind, bool)> {
    let call = &ask.call;
    if may_exchange(call, ask.class) {
        return Some(((call.operation, call.required, ask.class), true));
    }
    if call.operation == Operation::Barrier || call.operation.of_neighbors() {
        return None;
    }
    // A rank that does nothing knows neither bytes nor operator.
    if call.has_places() || call.first_side.is_some() {
        return Some(((call.operation, Association::Any, ANY_CLASS), false));
    }
    // What a rank may take step by step.
    let small = bytes_of(ask.class) / 2 < ROW_BYTES;
    (!small).then_some(((call.operation, call.required, ask.class), true))
}

/// Whether a call may be one kernel of each rank, by what all ranks know of it.
fn may_exchange(call: &Call, class: u32) -> bool {
    call.operation == Operation::Allreduce
        && call.first_side.is_none()
        && (2..=MOST_RANKS as u32).contains(&call.size)
        && bytes_of(class) <= MOST_BYTES as u64
}

impl Communicator {
    /// Whether this rank takes a short call of the host's memory step by step by itself. If
    /// not, ranks ask each other, or all know that the memory of such calls lies on devices.
    #[inline]
    pub(crate) fn takes_alone(&self, call: &Call, class: u32) -> bool {
        let spaces = &self.0.spaces;
        if !spaces.matter.load(Ordering::Relaxed) || !may_exchange(call, class) {
            return true;
        }
        spaces.counts_alone((call.operation, call.required, class))
    }

    /// Has a call planned for memory of devices, if all ranks know that it lies there. One
    /// that `waits` asks them now and then.
    #[inline]
    #[track_caller]
    pub(crate) fn know_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        // One that has begun was counted before.
        let known = ask.on_devices || ask.agreed.is_some() || ask.of_host || ask.begun.is_some();
        if known || !self.0.spaces.matter.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.ask_spaces(ask, waits)
    }

    #[cold]
    #[track_caller]
    fn ask_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        let Some((kind, sized)) = kind_of(ask).filter(|_| self.size() > 1) else {
            return Ok(());
        };
        let checked = self.core().checks.has(Check::Collectives);
        let (mut found, asks) = self.0.spaces.of(kind, waits);
        let may = may_exchange(&ask.call, ask.class) && ask.combines_in_one_kernel();
        if may && ask.stream.is_some() && self.0.spaces.linked.load(Ordering::Relaxed) {
            found.on_devices = true;
        }
        if checked && waits {
            let answers = self.round_first(ask)?;
            found = Found::default();
            // A rank whose own call has failed may have asked nothing.
            if let Some(answers) = answers {
                found = answers;
                self.0.spaces.learn(kind, found);
            }
        } else if asks {
            let (all, any, class) = ask.spaces();
            let mut mine = [u32::from(all), u32::from(!any), ANY_CLASS - class];
            self.allreduce_in_place(&mut mine, &crate::Op::Min)?;
            found = Found::new(mine[0] == 1, mine[1] == 0, ANY_CLASS - mine[2]);
            self.0.spaces.learn(kind, found);
        }
        if found.on_devices {
            if asks || (checked && waits) {
                self.place_devices(ask.device().as_ref())?;
            }
            if !sized {
                ask.class = found.class;
            }
            ask.for_devices();
            // Where calls are checked they begin in an order of each rank's own.
            let exchanges = self.0.spaces.exchanges.load(Ordering::Relaxed);
            ask.may_be_in_one_kernel(may && exchanges && !checked);
        }
        Ok(())
    }

    /// Ranks exchange the places of their devices: once, when all are known to use one.
    /// Plans for devices are made for these places, so chains go through one PCIe switch
    /// after the other, and along NVLinks.
    #[track_caller]
    pub(crate) fn place_devices(&self, on: Option<&Context>) -> Result<()> {
        if self.0.spaces.placed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (places, device_links) = self.exchange_devices(on.map(Context::ordinal))?;
        let one_kernel = match device_links.apart {
            true => self.open_inboxes(on)?,
            false => None,
        };
        let exchanges = one_kernel.is_some();
        let described = self.described();
        let described = Arc::new(described.with_devices(&places, &device_links, one_kernel));
        let kept = &self.0.described;
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(described);
        self.0.spaces.exchanges.store(exchanges, Ordering::Relaxed);
        self.0.spaces.placed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Each rank sends the place of its device, if it has one, and then the links from this
    /// to those of the others. Collective.
    #[track_caller]
    pub(crate) fn exchange_devices(&self, ordinal: Option<i32>) -> Result<(Places, RankLinks)> {
        let links = ordinal.and_then(|_| GpuLinks::here());
        let own = links.as_ref().zip(ordinal);
        let own = own.and_then(|(links, ordinal)| Some((links, links.find(ordinal)?)));
        // What is not known is 0: memory node, switch, name.
        let mut all = vec![[0u64; 5]; self.size()];
        if let Some((links, (at, name))) = own {
            let place = links.gpus[at].place();
            let [node, switch] = place.map(|n| n.map_or(0, |n| u64::from(n) + 1));
            let [high, low, bus] = name.to_words();
            all[self.rank()] = [node, switch, high, low, bus];
        }
        let mut all = all.concat();
        self.allreduce_in_place(&mut all, &crate::Op::Max)?;
        let ranks = || all.chunks_exact(5);
        let known = |at: &u64| at.checked_sub(1).map(|at| at as u32);
        let places = Places {
            levels: ["numanode", "pcieswitch"].map(str::to_owned).into(),
            ranks: ranks()
                .map(|rank| rank[..2].iter().map(known).collect())
                .collect(),
        };
        let names = ranks().map(|rank| GpuName::of_words(&rank[2..]));
        let mut devices: Vec<GpuName> = names.clone().flatten().collect();
        devices.sort_unstable_by_key(|name| name.id);
        devices.dedup_by_key(|name| name.id);
        let index = |name: &GpuName| devices.binary_search_by_key(&name.id, |name| name.id).ok();
        let n = devices.len();
        // The links of each two of them, then the time of a MB over one link, in ns.
        let mut table = vec![0u64; n * n + 1];
        if let Some((links, (at, name))) = own {
            let row = index(&name).unwrap_or(0);
            for (column, other) in devices.iter().enumerate() {
                table[row * n + column] = match links.device_link_to(at, other) {
                    Some(DeviceLink::Direct(links)) => 2 * u64::from(links),
                    Some(DeviceLink::Switched(links)) => 2 * u64::from(links) + 1,
                    Some(DeviceLink::Same) | None => 0,
                };
            }
            table[n * n] = (1e6 * links.link_ns_per_byte) as u64;
        }
        if n > 1 {
            self.allreduce_in_place(&mut table, &crate::Op::Max)?;
        }
        let apart = n == self.size();
        let of: Vec<Option<usize>> = names.map(|name| index(&name?)).collect();
        let mut pairs = Vec::new();
        for (a, one) in of.iter().enumerate() {
            for (b, other) in of.iter().enumerate().skip(a + 1) {
                let (Some(one), Some(other)) = (*one, *other) else {
                    continue;
                };
                // Either may see the other alone.
                let told = table[one * n + other].max(table[other * n + one]);
                let device_link = match (told, told % 2) {
                    _ if one == other => DeviceLink::Same,
                    (0, _) => continue,
                    (_, 0) => DeviceLink::Direct((told / 2) as u32),
                    _ => DeviceLink::Switched((told / 2) as u32),
                };
                pairs.push((a as u32, b as u32, device_link));
            }
        }
        let device_links = RankLinks {
            device_links: DeviceLinks::of(self.size() as u32, pairs),
            link_ns_per_byte: table[n * n] as f64 / 1e6,
            apart,
        };
        Ok((places, device_links))
    }
}
