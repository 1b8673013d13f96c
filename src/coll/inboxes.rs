//! Inboxes for reductions in one kernel of each rank: all ranks open all, or none.
//!
//! Where the switch of their devices has multicast, inboxes are of one group, and each rank
//! stores once for all. Ranks come there step by step:
//!
//! ```text
//! all can -> rank 0 makes, others ask -> sent -> all have joined -> all have bound -> opened
//! ```
//!
//! Each arrow is a small reduction of the host, at which all learn whether all have come so
//! far. If not, they fall back to plain inboxes together.
//!
//! # Invariants
//! 1. Either all ranks of a communicator have opened all inboxes, or none uses its own.
//! 2. A rank binds when all have joined: the driver would wait for those that have not.
//! 3. A rank stores by multicast when all have bound.

use crate::comm::Communicator;
use osier_engine::device::settings::{OneKernel, one_kernel};
use osier_engine::error::Result;
use osier_engine::exec::inbox::{Grouping, Inbox, Peer};
use osier_engine::protocol::device::Reductions;
use osier_kernels::exchange::{Exchange, MOST_RANKS};
use osier_kernels::{Context, MulticastGroup};
use std::sync::Arc;

impl Communicator {
    /// An exchange of all ranks, with inboxes of its own. None: a rank has no device, or
    /// cannot open what another offers. Collective.
    #[track_caller]
    pub(crate) fn exchange_on(&self, on: Option<&Context>) -> Result<Option<Arc<Exchange>>> {
        // Who can open none of another process offers none.
        let peers = self.peers_with_devices();
        // A wrong setting is an error where the rank joins its job.
        let may = one_kernel().unwrap_or_default() != OneKernel::Off
            && self.core().devices.reductions() != Reductions::Host;
        let on = on.filter(|_| may).zip(peers.as_deref());
        let exchange = match self.exchange_by_multicast(on)? {
            Some(exchange) => Some(exchange),
            None => self.exchange_of_plain(on)?,
        };
        Ok(exchange.map(Arc::new))
    }

    /// All ranks, if this one can open memory of each.
    fn peers_with_devices(&self) -> Option<Vec<Peer>> {
        let lane = self.lane().lock();
        let worlds = self.group().world_ranks();
        let peer = |(peer, world): (usize, _)| {
            Some(Peer {
                world: world as u32,
                here: lane.shares_devices(peer as u32)?,
                process: lane.process_id(peer as u32),
            })
        };
        worlds.enumerate().map(peer).collect()
    }

    #[track_caller]
    fn exchange_of_plain(&self, on: Option<(&Context, &[Peer])>) -> Result<Option<Exchange>> {
        let mut inbox = on.and_then(|(context, _)| Inbox::new(context).ok());
        let offer = inbox.as_ref().and_then(|inbox| inbox.offer().ok());
        let Some(offers) = self.words_of_all(offer)? else {
            return Ok(None);
        };
        let opened = inbox.as_mut().zip(on).and_then(|(inbox, (_, peers))| {
            let devices = &self.core().devices;
            let opened = inbox.exchange(devices, self.rank(), &offers, |rank| peers[rank]);
            opened.ok()
        });
        self.if_all(opened)
    }

    /// None: a rank cannot; its device or driver has no multicast, or something fails.
    #[track_caller]
    fn exchange_by_multicast(&self, on: Option<(&Context, &[Peer])>) -> Result<Option<Exchange>> {
        let (rank, size) = (self.rank(), self.size());
        let able = on.filter(|(context, _)| {
            let plain = one_kernel().unwrap_or_default() == OneKernel::Plain;
            let suits = (2..=MOST_RANKS).contains(&size) && !plain;
            suits && MulticastGroup::available(context).is_ok()
        });
        let Some((context, peers)) = self.if_all(able)? else {
            return Ok(None);
        };
        let devices = &self.core().devices;
        let grouping = Grouping::new(devices, context, (rank, size), peers[0]).ok();
        let told = self.words_of_all(grouping.as_ref().map(Grouping::words))?;
        let Some((grouping, told)) = grouping.zip(told) else {
            return Ok(None);
        };
        let sent = grouping.send(&told).ok();
        if self.if_all(sent)?.is_none() {
            return Ok(None);
        }
        let mut inbox = grouping.join(devices, &told, peers.iter().copied()).ok();
        let offer = inbox.as_ref().and_then(|inbox| inbox.offer().ok());
        let offers = self.words_of_all(offer)?;
        let Some((inbox, offers)) = inbox.as_mut().zip(offers) else {
            return Ok(None);
        };
        let bound = inbox.bind(rank, &offers).ok();
        if self.if_all(bound)?.is_none() {
            return Ok(None);
        }
        let opened = inbox.exchange(devices, rank, &offers, |rank| peers[rank]);
        self.if_all(opened.ok())
    }

    /// What this rank has, if all have theirs. Collective.
    #[track_caller]
    fn if_all<T>(&self, own: Option<T>) -> Result<Option<T>> {
        let mut lacks = [u32::from(own.is_none())];
        self.allreduce_in_place(&mut lacks, &crate::Op::Max)?;
        Ok(own.filter(|_| lacks[0] == 0))
    }

    /// The words of all ranks, whose first ones are not zero, if all have theirs. Collective.
    #[track_caller]
    fn words_of_all<const N: usize>(&self, own: Option<[u64; N]>) -> Result<Option<Vec<[u64; N]>>> {
        let mut all = vec![[0; N]; self.size()];
        all[self.rank()] = own.unwrap_or([0; N]);
        let words = all.as_flattened_mut();
        self.allreduce_in_place(words, &crate::Op::Max)?;
        Ok(Some(all).filter(|all| all.iter().all(|words| words[0] != 0)))
    }
}
