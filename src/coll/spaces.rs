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
//! nothing knows none. Calls on neighborhoods ask nothing: they have one plan, of messages, and
//! each rank decides for itself what stays on its device (`stays`).
//!
//! Plans whose flags lie in a segment have steps for memory of the host. A call that waits has one
//! if none of its memory lies on devices, or if it is so short that its bytes pass through the host
//! in any case. Calls on streams, and those that do not wait, whose memory may stand behind a
//! stream, have messages: their turn in the segment would hold up the calls behind them.
//!
//! Where calls are checked, the round before each call (`agree`) has the answers: calls that
//! wait wait for it first.
//!
//! # Invariants
//! 1. Nobody asks unless there is a driver, or the agreed costs know devices: jobs without them pay
//!    a load or two.
//! 2. Who asks, and when, depends on what all ranks have alike: the order of calls, their
//!    operation, the form of the call, and, where all know them, size class and association.
//! 3. A rank that takes a call step by step by itself (`inline`) asks nothing, and others would
//!    wait for it. So such calls are counted there, too, and where they ask they are not taken
//!    alone (`takes_alone`).

use super::ask::Ask;
use crate::choice::spaces::{Found, Kind};
use crate::choice::{bytes_of, class_of};
use crate::comm::Communicator;
use crate::model::calls::ROW_BYTES;
use crate::model::{GpuLinks, GpuName, Places, RankLinks};
use osier_collectives::{Association, Call, DeviceLink, DeviceLinks, Operation};
use osier_engine::check::Check;
use osier_engine::error::Result;
use osier_engine::protocol::device::Reductions;
use osier_kernels::exchange::{MOST_BYTES, MOST_RANKS};
use osier_kernels::{Context, Driver};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// In place of the size class of a kind whose bytes are exchanged.
const ANY_CLASS: u32 = u32::MAX;

/// The kind of a call of a size class, and whether all ranks know that. None: one that asks
/// nothing.
fn kind_of(call: &Call, class: u32) -> Option<(Kind, bool)> {
    if may_exchange(call, class) {
        return Some(((call.operation, call.required, class), true));
    }
    if call.operation == Operation::Barrier || call.operation.of_neighbors() {
        return None;
    }
    // A rank that does nothing knows neither bytes nor operator.
    if call.has_places() || call.first_side.is_some() {
        return Some(((call.operation, Association::Any, ANY_CLASS), false));
    }
    (!is_short(class)).then_some(((call.operation, call.required, class), true))
}

/// Whether a rank takes calls of a size class step by step where flags are messages, too.
fn is_short(class: u32) -> bool {
    bytes_of(class) / 2 < ROW_BYTES
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
        if !self.asks_where() {
            return true;
        }
        kind_of(call, class).is_none_or(|(kind, _)| self.0.spaces.counts_alone(kind))
    }

    /// Whether ranks ask each other where memory lies.
    #[inline]
    pub(crate) fn asks_where(&self) -> bool {
        let spaces = &self.0.spaces;
        let may = spaces.matter.load(Ordering::Relaxed) || Driver::is_there();
        may && !spaces.of_host.load(Ordering::Relaxed)
    }

    /// Whether ranks count calls of an operation whose pieces have this number of bytes.
    #[inline]
    pub(crate) fn counts(&self, operation: Operation, bytes: usize) -> bool {
        self.asks_where() && (operation == Operation::Allreduce || !is_short(class_of(bytes)))
    }

    /// Has a call planned for memory of devices, if all ranks know that it lies there. One
    /// that `waits` asks them now and then.
    #[inline]
    #[track_caller]
    pub(crate) fn know_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        // One that has begun was counted before.
        let known = ask.on_devices || ask.agreed.is_some() || ask.of_host || ask.begun.is_some();
        if known || !self.asks_where() {
            return Ok(());
        }
        self.ask_spaces(ask, waits)
    }

    #[cold]
    #[track_caller]
    fn ask_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        let kind = kind_of(&ask.call, ask.class).filter(|_| self.size() > 1);
        let Some((kind, sized)) = kind else {
            return Ok(());
        };
        let checked = self.core().checks.has(Check::Collectives);
        let (known, asks) = self.0.spaces.of(kind, waits);
        let mut is_known = known.is_some();
        let mut found = known.unwrap_or_default();
        let may = may_exchange(&ask.call, ask.class) && ask.combines_in_one_kernel();
        if may && ask.stream.is_some() && self.0.spaces.linked.load(Ordering::Relaxed) {
            found.on_devices = true;
        }
        if checked && waits {
            let answers = self.round_first(ask)?;
            (found, is_known) = (Found::default(), answers.is_some());
            // A rank whose own call has failed may have asked nothing.
            if let Some(answers) = answers {
                found = answers;
                self.0.spaces.learn(kind, found);
            }
        } else if asks {
            let (all, any, class) = self.spaces_of(ask);
            let mut mine = [u32::from(all), u32::from(!any), ANY_CLASS - class];
            self.allreduce_in_place(&mut mine, &crate::Op::Min)?;
            found = Found::new(mine[0] == 1, mine[1] == 0, ANY_CLASS - mine[2]);
            is_known = true;
            self.0.spaces.learn(kind, found);
        }
        if !is_known || found.any {
            ask.not_in_segment();
        }
        // Without costs of devices each rank decides for itself what stays there.
        if found.on_devices && self.0.spaces.matter.load(Ordering::Relaxed) {
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

    /// What this rank says of a call: whether all of its memory lies on devices, whether any
    /// does, and the size class. A rank that has been told where reductions combine keeps all from
    /// agreeing on a place; each then does as it was told.
    pub(crate) fn spaces_of(&self, ask: &Ask) -> (bool, bool, u32) {
        let (all, any, class) = ask.spaces();
        let told = self.core().devices.reductions() != Reductions::Auto;
        (all && !(told && ask.call.operation.reduces()), any, class)
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
