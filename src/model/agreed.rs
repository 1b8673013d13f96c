//! The launcher's note: what all ranks of a job choose by.
//!
//! # Invariants
//! 1. All ranks have the same note, and choose by all of it; which state the machine is in when
//!    a rank chooses makes no difference.

use super::calls::{CallCosts, Places};
use super::devices::DeviceCalls;
use super::store::{Cached, CostSet};
use osier_engine::protocol::cost::LinkCosts;
use serde::{Deserialize, Serialize};

/// The launcher's note for all ranks of a job: costs by which they choose, and their
/// positions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// Of messages.
    pub links: LinkCosts,
    /// Of collective calls, where they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallCosts>,
    /// Positions of ranks, where the launcher binds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Places>,
    /// How long a line took between two cores when these were measured, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_ns: Option<f64>,
    /// Costs of the other states of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherState>,
}

/// Costs of a state of the machine in which the job does not begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherState {
    /// How long a line took between two cores, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_ns: Option<f64>,
    /// Of messages.
    pub links: LinkCosts,
    /// Of collective calls, where they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallCosts>,
}

impl Agreed {
    /// What a launcher tells its ranks.
    pub fn of(cached: Cached, places: Option<Places>) -> Agreed {
        let other = |set: CostSet| OtherState {
            line_ns: set.line_ns,
            links: set.costs,
            calls: set.calls,
        };
        Agreed {
            links: cached.set.costs,
            calls: cached.set.calls,
            places,
            line_ns: cached.set.line_ns,
            others: cached.others.into_iter().map(other).collect(),
        }
    }

    /// Of a launcher's note; the built-in costs if it is none.
    pub fn of_note(note: &[u8]) -> Agreed {
        serde_json::from_slice(note).unwrap_or_default()
    }

    /// As a launcher's note of at most this many bytes: without the costs of other states, the
    /// last first, then without positions, then without costs of devices, and then without
    /// calls, if the room is too small.
    pub fn note(&self, most_bytes: usize) -> Vec<u8> {
        let mut short = self.clone();
        loop {
            let text = serde_json::to_vec(&short).unwrap_or_default();
            if text.len() <= most_bytes {
                return text;
            }
            let devices = |calls: &mut CallCosts| calls.devices.take();
            if short.others.pop().is_none()
                && short.places.take().is_none()
                && short.calls.as_mut().and_then(devices).is_none()
                && short.calls.take().is_none()
            {
                return Vec::new();
            }
        }
    }

    /// Costs of messages by state.
    pub fn links_by_state(&self) -> Vec<LinkCosts> {
        let others = self.others.iter().map(|other| other.links);
        std::iter::once(self.links).chain(others).collect()
    }

    /// The tables by which collectives are chosen, by state.
    pub fn tables(&self) -> Vec<CallCosts> {
        let others = (self.others.iter()).map(|other| table(&other.links, other.calls.as_ref()));
        let first = table(&self.links, self.calls.as_ref());
        std::iter::once(first).chain(others).collect()
    }

    /// How long a line took between two cores, by state, in ns.
    pub fn lines_ns(&self) -> Vec<Option<f64>> {
        let others = self.others.iter().map(|other| other.line_ns);
        std::iter::once(self.line_ns).chain(others).collect()
    }

    /// Whether the tables contain devices.
    pub(crate) fn knows_devices(&self) -> bool {
        let calls = self.calls.as_ref();
        self.links.device.is_some() || calls.is_some_and(|calls| calls.devices.is_some())
    }

    /// For ranks on emulated devices, or on real ones: drops costs of the other kind.
    pub fn for_emulated(mut self, emulated: bool) -> Agreed {
        let others = self.others.iter_mut().map(|other| &mut other.calls);
        for calls in std::iter::once(&mut self.calls).chain(others).flatten() {
            calls
                .devices
                .take_if(|devices| devices.emulated != emulated);
        }
        self
    }
}

/// The table of a state.
fn table(links: &LinkCosts, calls: Option<&CallCosts>) -> CallCosts {
    let mut table = match calls {
        Some(calls) => calls.clone(),
        None => CallCosts::estimated(links),
    };
    // Built-in costs do not say what this machine permits.
    if calls.is_some()
        && let Some(segment) = &mut table.segment
    {
        segment.know_links(links);
    }
    // A device was measured, but calls were not.
    if table.devices.is_none() && links.device.is_some() {
        table.devices = Some(DeviceCalls::estimated(links));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_leave_out_what_has_no_room() {
        let links = LinkCosts::default();
        let far = LinkCosts {
            latency_ns: 900.0,
            ..links
        };
        let agreed = Agreed {
            links,
            calls: Some(CallCosts::estimated(&links)),
            places: Some(Places {
                levels: vec!["package".into(), "core".into()],
                ranks: vec![vec![Some(1), None]; 1000],
            }),
            line_ns: Some(40.0),
            others: vec![OtherState {
                line_ns: Some(160.0),
                links: far,
                calls: Some(CallCosts::estimated(&far)),
            }],
        };
        assert_eq!(Agreed::of_note(&agreed.note(1 << 20)), agreed);
        assert_eq!(agreed.links_by_state(), [links, far]);
        assert_eq!(agreed.lines_ns(), [Some(40.0), Some(160.0)]);
        assert_eq!(agreed.tables().len(), 2);
        // Costs of the other state go before positions, which plans need more.
        let whole = agreed.note(1 << 20).len();
        let near = Agreed::of_note(&agreed.note(whole - 1));
        assert!(near.others.is_empty() && near.places == agreed.places);
        let less = Agreed::of_note(&agreed.note(8 << 10));
        assert!(less.places.is_none() && less.calls == agreed.calls);
        let least = Agreed::of_note(&agreed.note(512));
        assert!(least.calls.is_none() && least.links == agreed.links);
        assert_eq!(Agreed::of_note(b""), Agreed::default());
    }
}
