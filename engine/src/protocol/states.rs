//! The table by the costs of several states of the machine: least regret.
//!
//! The cores of a virtual machine are now near to each other and now far, and the costs of a
//! link were measured in either state. A protocol that is best in one may take several times
//! the best in the other; which state it is changes while a job runs. So the one is chosen
//! whose largest ratio to the best of a state is least, of equal ones that with the least mean.
//! In one state it is the cheapest.
//!
//! # Invariants
//! 1. Where the rows of one state say that a protocol carries a message whatever the costs, it
//!    does so in all states: only sizes and settings decide that.
//! 2. A protocol may carry a message if it may by the costs of one state: of the host's
//!    messages that concerns eager ones alone, which are no slower for it.

use super::Protocol;
use super::select::{Able, Message, Rules, TABLE};

/// Whether a protocol can carry a message in one of the states.
fn able(states: &[Rules], protocol: Protocol, m: &Message) -> Able {
    let mut all = states.iter().map(|rules| rules.able(protocol, m));
    let first = all.next().unwrap_or(Able::No("there are no costs"));
    all.fold(first, |known, next| match (known, next) {
        (Able::Always, _) | (_, Able::Always) => Able::Always,
        (Able::Yes, _) | (_, Able::Yes) => Able::Yes,
        (no, Able::No(_)) => no,
    })
}

/// The protocol for a message that loses least over the states.
pub fn choose(states: &[Rules], m: &Message) -> Option<Protocol> {
    if let [rules] = states {
        return rules.choose(m);
    }
    let mut open = Vec::with_capacity(TABLE.len());
    for row in &TABLE {
        match able(states, row.protocol, m) {
            Able::Always => return Some(row.protocol),
            Able::Yes => open.push(row.protocol),
            Able::No(_) => {}
        }
    }
    let mut ratios = vec![(0.0f64, 0.0f64); open.len()];
    for rules in states {
        let times: Vec<f64> = open.iter().map(|p| rules.predict(*p, m).ns).collect();
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        for ((most, sum), ns) in ratios.iter_mut().zip(times) {
            let ratio = ns / best.max(f64::MIN_POSITIVE);
            (*most, *sum) = (most.max(ratio), *sum + ratio);
        }
    }
    let ranked = open.into_iter().zip(ratios);
    let least = ranked.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    least.map(|(protocol, _)| protocol)
}

/// Whether a sender sends a message eagerly.
pub fn is_eager(states: &[Rules], m: &Message) -> bool {
    match able(states, Protocol::Eager, m) {
        Able::No(_) => false,
        Able::Always => true,
        Able::Yes => choose(states, m) == Some(Protocol::Eager),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::LinkCosts;
    use super::super::select::{AT_ONCE_BYTES, Memory, Selection};
    use super::*;

    fn links(latency: f64, copy: f64, call: f64, attach: f64) -> LinkCosts {
        LinkCosts {
            latency_ns: latency,
            overhead_ns: latency / 2.0,
            copy_ns_per_byte: copy,
            mapped_ns_per_byte: copy / 2.0,
            attach_call_ns: call,
            attach_ns_per_byte: attach,
            leaves_lines: false,
            uses: None,
            device: None,
        }
    }

    /// By the costs of either state, all of them.
    fn costs() -> Vec<LinkCosts> {
        let mut all = Vec::new();
        for latency in [60.0, 250.0, 900.0] {
            for copy in [0.04, 0.12, 0.5] {
                for (call, attach) in [(600.0, 0.06), (2500.0, 0.08), (700.0, 0.3), (1e15, 1.0)] {
                    all.push(links(latency, copy, call, attach));
                }
            }
        }
        all
    }

    /// The largest ratio of a protocol for a message, evaluated one by one.
    fn regret(states: &[LinkCosts], m: &Message, protocol: Protocol) -> f64 {
        let of = |costs: &LinkCosts| {
            let rules = Rules::new(costs, AT_ONCE_BYTES);
            let time = |protocol| rules.predict(protocol, m).ns;
            let able = |row: &&super::super::select::Row| {
                let able = |c: &LinkCosts| Rules::new(c, AT_ONCE_BYTES).able(row.protocol, m);
                states.iter().any(|c| !matches!(able(c), Able::No(_)))
            };
            let open = TABLE.iter().filter(able);
            let best = open.map(|row| time(row.protocol));
            time(protocol) / best.fold(f64::INFINITY, f64::min)
        };
        states.iter().map(of).fold(0.0, f64::max)
    }

    /// At every size the choice loses as little as the best of all protocols, tried one by one.
    #[test]
    fn no_other_protocol_loses_less() {
        let all = costs();
        for (at, a) in all.iter().enumerate() {
            for b in &all[at..] {
                let states = [*a, *b];
                let rules = states.map(|c| Rules::new(&c, AT_ONCE_BYTES));
                for log in [4, 13, 14, 15, 16, 17, 18, 20, 22] {
                    for memory in [Memory::Private, Memory::Plain, Memory::Heap] {
                        for announced in [false, true] {
                            let m = Message {
                                announced,
                                ..Message::of_host(1 << log, memory)
                            };
                            let Some(chosen) = choose(&rules, &m) else {
                                panic!("a protocol for {m:?}");
                            };
                            if (1 << log) <= AT_ONCE_BYTES && !announced {
                                assert_eq!(chosen, Protocol::Eager);
                                continue;
                            }
                            let own = regret(&states, &m, chosen);
                            for row in &TABLE {
                                let no =
                                    |r: &Rules| matches!(r.able(row.protocol, &m), Able::No(_));
                                if rules.iter().all(no) {
                                    continue;
                                }
                                let other = regret(&states, &m, row.protocol);
                                assert!(own <= other, "{chosen} {own}, {} {other}", row.protocol);
                            }
                        }
                    }
                }
            }
        }
    }

    /// One state is cut as before; of more, the order is that of the predictions alone.
    #[test]
    fn one_state_is_cut_as_alone() {
        let all = costs();
        for a in &all {
            let alone = Selection::new(*a, AT_ONCE_BYTES);
            assert_eq!(Selection::among(&[*a], AT_ONCE_BYTES), alone);
            assert_eq!(Selection::among(&[*a, *a], AT_ONCE_BYTES), alone);
            for b in &all {
                let ab = Selection::among(&[*a, *b], AT_ONCE_BYTES);
                let ba = Selection::among(&[*b, *a], AT_ONCE_BYTES);
                for memory in [Memory::Private, Memory::Plain, Memory::Heap] {
                    let table = |s: &Selection| s.table(memory);
                    assert_eq!(table(&ab), table(&ba));
                    assert_eq!(ab.crossing_max(memory), ba.crossing_max(memory));
                }
            }
        }
    }

    /// Near cores with a kernel's copy that is dear, far ones with one that is cheap beside
    /// two copies: 1 MiB goes by the kernel, since fragments lose far more.
    #[test]
    fn long_messages_take_what_loses_little_in_both_states() {
        let near = links(90.0, 0.035, 700.0, 0.09);
        let far = links(300.0, 0.45, 900.0, 0.14);
        let long = |s: &Selection| s.choose(1 << 20, Memory::Plain);
        assert_eq!(
            long(&Selection::new(near, AT_ONCE_BYTES)),
            Protocol::Fragments
        );
        assert_eq!(
            long(&Selection::new(far, AT_ONCE_BYTES)),
            Protocol::GetAttach
        );
        for states in [[near, far], [far, near]] {
            assert_eq!(
                long(&Selection::among(&states, AT_ONCE_BYTES)),
                Protocol::GetAttach
            );
        }
    }
}
