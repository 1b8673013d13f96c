//! State of one rank of a run: its communicators and requests.

use super::case::Case;
use super::memory::Memory;
use super::partition::{Receiver, Sender};
use super::request::{Held, Key};
use osier::Communicator;
use osier::internals::{self, Agreeing};
use osier::persistent::Persistent;
use osier::requests::Member as Entry;
use osier::requests::WaitSet;
use osier_engine::check::Setting;
use osier_engine::progress::cell::LaneGuard;
use osier_engine::progress::core::{Core, JobTransport};
use osier_engine::protocol::select::Selection;
use osier_transports::sim::SimNet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Contexts are this far apart: an intercommunicator takes three.
const STEP: u64 = 8;

/// The network's channel of a context.
pub(super) fn channel(context: usize) -> u64 {
    context as u64 * STEP + 1
}

/// The context of a channel.
pub(super) fn context_of(channel: u64) -> usize {
    (channel / STEP) as usize
}

/// A request in the wait set of a rank.
#[derive(Clone, Copy)]
pub(super) struct Listed {
    pub key: Key,
    pub entry: Entry,
    pub context: usize,
}

pub(super) struct Seat {
    /// Requests under way, but for the operations that the bed knows by their
    /// handles.
    pub set: WaitSet<Key, Held>,
    /// What is in it.
    pub listed: Vec<Listed>,
    /// Persistent requests that are inactive, by number.
    pub sends: BTreeMap<usize, Persistent<Memory>>,
    pub receives: BTreeMap<usize, Persistent<Memory>>,
    /// Ends of partitioned transfers, by number.
    pub senders: BTreeMap<usize, Sender>,
    pub receivers: BTreeMap<usize, Receiver>,
    pub comms: Vec<Communicator>,
    pub core: Arc<Core>,
}

impl Seat {
    pub fn new(
        case: &Case,
        net: &SimNet,
        rank: u32,
        selection: &Arc<Selection>,
        checks: Setting,
    ) -> Self {
        let ranks = case.net.ranks;
        let transport = JobTransport::Sim(net.clone(), rank);
        let core = Core::new(
            transport,
            rank,
            ranks,
            selection.clone(),
            true,
            None,
            checks,
        );
        let member = Agreeing::new(&core).expect("a rank of the job");
        let comms = (0..case.members.len()).map(|at| {
            let (first, second) = case.sides(at);
            let world = |side: &[u32]| side.iter().map(|r| *r as usize).collect::<Vec<_>>();
            let (a, b) = (world(first), world(second));
            let comm = if b.is_empty() {
                member.group(&a, channel(at))
            } else if first.contains(&rank) {
                member.between([&a, &b], channel(at), true)
            } else {
                member.between([&b, &a], channel(at), false)
            };
            comm.expect("every rank is a member")
        });
        Self {
            comms: comms.collect(),
            core,
            set: WaitSet::new(),
            listed: Vec::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
        }
    }

    pub fn lane(&self, context: usize) -> LaneGuard<'_> {
        internals::lane(&self.comms[context]).lock()
    }

    /// Puts a request into the wait set.
    pub fn add(&mut self, key: Key, context: usize, held: Held) -> Result<(), String> {
        let entry = self.set.add(key, held).map_err(|e| format!("{e:?}"))?;
        self.listed.push(Listed {
            key,
            entry,
            context,
        });
        Ok(())
    }

    /// The place of a request among those listed.
    pub fn find(&self, is: impl Fn(Key) -> bool) -> Option<usize> {
        self.listed.iter().position(|l| is(l.key))
    }

    /// Takes a request out of the set before its end.
    pub fn remove(&mut self, at: usize) -> Option<Held> {
        let listed = self.listed.swap_remove(at);
        self.set.remove(listed.entry).map(|(_, held)| held)
    }

    /// Whether it has ends of partitioned transfers.
    pub fn has_parts(&self) -> bool {
        !(self.senders.is_empty() && self.receivers.is_empty())
    }

    /// One request that is over.
    pub fn next(&mut self) -> Option<(Key, super::request::Back)> {
        let (key, back) = internals::next_over(&mut self.set)?;
        let at = self.find(|k| k == key)?;
        self.listed.swap_remove(at);
        back.ok().map(|back| (key, back))
    }

    /// Operations of a context's lane that its requests hold.
    pub fn operations(&mut self, context: usize) -> usize {
        let mut sum = internals::awaited_setups(&self.comms[context]);
        for listed in &self.listed {
            if listed.context == context
                && let Some(held) = internals::member(&mut self.set, listed.entry)
            {
                sum += held.operations();
            }
        }
        let sends = self.senders.values().filter(|s| s.context == context);
        sum += sends
            .map(|s| internals::parts_under_way(&s.request))
            .sum::<usize>();
        let receives = self.receivers.values().filter(|r| r.context == context);
        sum + receives
            .map(|r| internals::parts_under_way(&r.request))
            .sum::<usize>()
    }
}
