//! What a combination costs: beside the operator's time, copies of what it works on.

use super::machine::Machine;
use crate::plan::{Buffer, Part, Step};

/// Times of a combination of `m` bytes that is this step of a part, in ns; `whole` bytes are
/// worked on at once.
pub(super) fn combining_ns(machine: &Machine, part: &Part, at: u32, (m, whole): (f64, f64)) -> f64 {
    let Step::Combine { left, right, into } = part.steps()[at as usize] else {
        return 0.0;
    };
    let copy = || machine.copy.of_part(m, whole);
    let mut ns = machine.combine.of_part(m, whole);
    // Operators work in place: a third vector takes a copy first.
    if into != left && into != right {
        ns += copy();
    }
    // Its message has a copy that is not made: the host combines it as it comes.
    if machine.aside.is_none() && takes_message(machine, part, at, m) {
        ns = (ns - copy()).max(0.0);
    }
    ns
}

/// Whether an operand is a message that is combined as it comes. None is where the result is still
/// being sent, which ends when a peer has read it.
fn takes_message(machine: &Machine, part: &Part, at: u32, m: f64) -> bool {
    let Step::Combine { left, right, .. } = part.steps()[at as usize] else {
        return false;
    };
    let mut messages = 0;
    for dep in part.after(at).iter().filter(|dep| dep.lag == 0) {
        match part.steps()[dep.step as usize] {
            Step::Recv { data, .. } => {
                let scratch = matches!(data.buffer, Buffer::Scratch(_));
                messages += u32::from(scratch && (data == left || data == right));
            }
            Step::Send { .. } if m > machine.eager_bytes => return false,
            _ => {}
        }
    }
    messages > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Plan};
    use crate::call::{Call, Operation};
    use crate::cost::Link;

    /// What is received to be combined spares a copy, unless the result is being sent.
    #[test]
    fn messages_are_combined_as_they_come() {
        let link = Link {
            latency_ns: 1.0,
            ..Link::default()
        };
        let mut machine = Machine::flat(4, link);
        (machine.combine, machine.copy) = (0.1.into(), 0.05.into());
        machine.eager_bytes = 1000.0;
        let call = Call::new(Operation::Allreduce, 4);
        let plan = Plan::new(call, Algorithm::RecursiveDoubling, 1).expect("for the call");
        let part = plan.part(1);
        let combine = |step: &u32| matches!(part.steps()[*step as usize], Step::Combine { .. });
        let steps: Vec<u32> = (0..part.steps().len() as u32).filter(combine).collect();
        let cost = |m: f64| {
            let ns = steps
                .iter()
                .map(|at| combining_ns(&machine, &part, *at, (m, m)));
            ns.map(|ns| ns.round() as u64).collect::<Vec<_>>()
        };
        // The first has a third vector; the second combines what it sends.
        assert_eq!(cost(1000.0), [100, 50]);
        assert_eq!(cost(10_000.0), [1000, 1000]);
    }
}
