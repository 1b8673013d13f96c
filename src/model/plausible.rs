//! Plausible limits of costs. A measurement beside other work can be a
//! thousand times too large, and then each choice by it is wrong: such numbers are neither
//! stored nor used.
//!
//! Limits lie a hundred times above the costs of machines known here (latencies below half
//! a microsecond, copies of 0.03 to 0.1 ns a byte), so that slow ones pass, too.

use super::calls::CallCosts;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::uses::SIZES;

/// Cost of a call that the system forbids: a finite number,
/// which JSON can carry, and longer than any transfer.
pub const NOT_PERMITTED_NS: f64 = 1e15;

/// Limit of costs that do not depend on bytes, in ns.
const MOST_NS: f64 = 50_000.0;
/// Limit of costs per byte, in ns.
const MOST_NS_PER_BYTE: f64 = 10.0;
/// Limit of the error of predictions.
const MOST_ERROR: f64 = 0.5;

/// The first implausible cost of links and calls; `None`: all are plausible.
pub(crate) fn absurd(links: &LinkCosts, calls: Option<&CallCosts>) -> Option<String> {
    let mut all = vec![
        ("latency_ns", links.latency_ns, MOST_NS),
        ("overhead_ns", links.overhead_ns, MOST_NS),
        ("copy_ns_per_byte", links.copy_ns_per_byte, MOST_NS_PER_BYTE),
        (
            "mapped_ns_per_byte",
            links.mapped_ns_per_byte,
            MOST_NS_PER_BYTE,
        ),
    ];
    if links.attach_call_ns < NOT_PERMITTED_NS {
        let each = links.attach_ns_per_byte;
        all.push(("attach_call_ns", links.attach_call_ns, MOST_NS));
        all.push(("attach_ns_per_byte", each, MOST_NS_PER_BYTE));
    }
    if let Some(uses) = &links.uses {
        for (bytes, times) in SIZES.into_iter().zip(&uses.0) {
            let most = MOST_NS.max(bytes as f64 * MOST_NS_PER_BYTE);
            let used = |ns: &f64| ("a message's time as it is used", *ns, most);
            all.extend(times.iter().flatten().map(used));
        }
    }
    if let Some(calls) = calls {
        all.push(("calls.row_ns", calls.row_ns, MOST_NS));
        all.push(("calls.run_ns", calls.run_ns, MOST_NS));
        all.push(("calls.step_ns", calls.step_ns, MOST_NS));
        all.push(("calls.error", calls.error, MOST_ERROR));
        for m in calls.classes.iter().flat_map(|c| &c.messages) {
            let most = MOST_NS.max(m.bytes as f64 * MOST_NS_PER_BYTE);
            all.push(("a message's one_way_ns", m.one_way_ns, most));
        }
        for work in calls.copy.iter().chain(&calls.combine) {
            let most = MOST_NS.max(work.bytes as f64 * MOST_NS_PER_BYTE);
            all.push(("a copy's or a sum's ns", work.ns, most));
        }
    }
    let (name, value, most) = all.into_iter().find(|(_, value, most)| value > most)?;
    Some(format!(
        "{name} is {value:.1}, more than {most}: measured beside other work"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_engine::protocol::uses::Uses;

    #[test]
    fn what_was_measured_under_load_is_found() {
        let good = LinkCosts::default();
        let calls = CallCosts {
            error: 0.1,
            ..CallCosts::estimated(&good)
        };
        assert_eq!(absurd(&good, None), None);
        assert_eq!(absurd(&good, Some(&calls)), None);
        let forbidden = LinkCosts {
            attach_call_ns: NOT_PERMITTED_NS,
            ..good
        };
        assert_eq!(absurd(&forbidden, Some(&calls)), None);
        // In an older format.
        let late = LinkCosts {
            latency_ns: 748_000.0,
            ..good
        };
        let dear = LinkCosts {
            attach_call_ns: 75_000.0,
            ..good
        };
        assert!(
            absurd(&late, None)
                .unwrap()
                .contains("latency_ns is 748000")
        );
        assert!(absurd(&dear, None).unwrap().contains("attach_call_ns"));
        let mut uses = Uses(Default::default());
        uses.0[4][1][2] = 1e5;
        let used = |uses| LinkCosts {
            uses: Some(uses),
            ..good
        };
        assert_eq!(absurd(&used(uses), None), None);
        uses.0[4][1][2] = 1e9;
        assert!(absurd(&used(uses), None).unwrap().contains("used"));
        let far = CallCosts {
            error: 0.8,
            ..calls.clone()
        };
        assert!(absurd(&good, Some(&far)).unwrap().contains("calls.error"));
        let mut slow = calls;
        slow.classes[0].messages[1].one_way_ns = 60_000.0;
        assert!(absurd(&good, Some(&slow)).unwrap().contains("a message"));
    }
}
