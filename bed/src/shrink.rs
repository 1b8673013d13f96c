//! Cuts a failing run down: fewer acts, messages and ranks, smaller sizes,
//! fewer changes from one rank to another, as long as the same rule breaks.
//!
//! # Sources
//! A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing
//! Input", IEEE TSE 28(2), 2002: the minimising delta debugging of the list of
//! acts. Cutting is sound because any part of a list of acts is a run.

use super::act::{Act, By};
use super::case::{Case, How};
use super::play::play_case;
use super::world::Watch;

/// What may be spent on one failure, in acts and in thousands of bytes.
const EFFORT: usize = 400_000;

/// What rule was broken, whatever the numbers: words without a digit, outside
/// of parentheses.
fn class(what: &str) -> String {
    let mut depth = 0;
    let mut class = String::new();
    for word in what.split_inclusive(|c: char| !c.is_alphanumeric()) {
        if depth == 0 && !word.contains(|c: char| c.is_ascii_digit()) {
            class.push_str(word);
        }
        for c in word.chars() {
            match c {
                '(' | '{' | '[' => depth += 1,
                ')' | '}' | ']' => depth -= 1,
                _ => {}
            }
        }
    }
    class
}

struct Shrink {
    case: Case,
    what: String,
    class: String,
    each_step: bool,
    effort: usize,
}

/// The smallest run found that breaks the same rule.
pub(super) fn shrink(case: Case, what: String, each_step: bool) -> (Case, String) {
    let class = class(&what);
    let mut s = Shrink {
        case: case.clone(),
        what: what.clone(),
        class,
        each_step,
        effort: 0,
    };
    if !s.accept(case) {
        // It depends on what the list does not hold; better whole than wrong.
        s.what
            .push_str(" (not seen again when its acts are played)");
        return (s.case, s.what);
    }
    loop {
        let before = s.size();
        s.fewer_acts();
        s.fewer_messages();
        s.simpler();
        s.fewer_contexts();
        s.fewer_ranks();
        s.fewer_switches();
        if s.size() >= before || s.is_tired() {
            return (s.case, s.what);
        }
    }
}

impl Shrink {
    fn size(&self) -> (usize, usize, usize, u32, usize) {
        let bytes = self.case.messages.iter().map(|m| m.bytes).sum();
        let rooms = self.case.acts.iter().map(|a| match a {
            Act::Receive { room, .. } => *room,
            _ => 0,
        });
        (
            self.case.acts.len() + self.switches(),
            self.case.messages.len(),
            bytes,
            self.case.net.ranks,
            rooms.sum(),
        )
    }

    /// Whether enough was spent.
    fn is_tired(&self) -> bool {
        self.effort >= EFFORT
    }

    /// Keeps a run if it breaks the same rule.
    fn accept(&mut self, case: Case) -> bool {
        if self.is_tired() {
            return false;
        }
        let bytes: usize = case.messages.iter().map(|m| m.bytes).sum();
        self.effort += 50 + case.acts.len() + case.messages.len() + bytes / 1000;
        let watch = Watch {
            each_step: self.each_step,
            ..Watch::default()
        };
        match play_case(&case, &watch).0 {
            Err(what) if class(&what) == self.class => {
                self.case = case;
                self.what = what;
                true
            }
            _ => false,
        }
    }

    fn fewer_acts(&mut self) {
        let mut part = self.case.acts.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < self.case.acts.len() && !self.is_tired() {
                let mut case = self.case.clone();
                let end = (at + part).min(case.acts.len());
                case.acts.drain(at..end);
                if !self.accept(case) {
                    at += part;
                }
            }
            if part == 1 || self.is_tired() {
                return;
            }
            part = part.div_ceil(2);
        }
    }

    /// Leaves out the messages that no act names.
    fn fewer_messages(&mut self) {
        let mut case = self.case.clone();
        let sent = |m: usize| {
            let names = |a: &Act| match *a {
                Act::Send(n) | Act::Exchange { m: n, .. } => n == m,
                _ => false,
            };
            case.acts.iter().any(names)
        };
        let kept: Vec<usize> = (0..case.messages.len()).filter(|m| sent(*m)).collect();
        if kept.len() == case.messages.len() {
            return;
        }
        case.messages = kept.iter().map(|m| case.messages[*m].clone()).collect();
        case.acts.retain_mut(|act| match act {
            Act::Send(m) | Act::RevokeSend(m) | Act::DetachSend(m) | Act::Exchange { m, .. } => {
                match kept.iter().position(|k| k == m) {
                    Some(at) => {
                        *m = at;
                        true
                    }
                    None => false,
                }
            }
            _ => true,
        });
        self.accept(case);
    }

    /// Smaller and plainer messages and receives, a plainer network.
    fn simpler(&mut self) {
        if self.is_tired() {
            return;
        }
        for m in 0..self.case.messages.len() {
            let bytes = self.case.messages[m].bytes;
            for smaller in [
                0,
                8,
                16,
                64,
                100,
                bytes / 4,
                bytes / 2,
                bytes.saturating_sub(8),
            ] {
                if smaller >= self.case.messages[m].bytes {
                    continue;
                }
                let mut with_rooms = self.case.clone();
                with_rooms.messages[m].bytes = smaller;
                let alone = with_rooms.clone();
                for act in &mut with_rooms.acts {
                    if let Act::Receive { room, .. } = act
                        && *room >= bytes
                    {
                        *room = smaller;
                    }
                }
                if self.accept(with_rooms) || self.accept(alone) {
                    break;
                }
            }
            let mut case = self.case.clone();
            case.messages[m].layout = None;
            self.accept_if(case.messages[m].bytes == bytes, case);
            let mut case = self.case.clone();
            case.messages[m].synchronous = false;
            self.accept_if(self.case.messages[m].synchronous, case);
            let mut case = self.case.clone();
            case.messages[m].how = How::Lane;
            self.accept_if(self.case.messages[m].how != How::Lane, case);
        }
        for at in 0..self.case.acts.len() {
            let mut case = self.case.clone();
            let Act::Receive {
                layout, direct, by, ..
            } = &mut case.acts[at]
            else {
                continue;
            };
            if layout.is_some() || *direct || *by != By::Lane {
                *layout = None;
                *direct = false;
                *by = By::Lane;
                self.accept(case);
            }
        }
        let mut case = self.case.clone();
        case.parted.clear();
        self.accept_if(!self.case.parted.is_empty(), case);
        let mut case = self.case.clone();
        case.net.least_ns = 0;
        case.net.most_ns = 0;
        case.net.ns_per_byte = 0.0;
        self.accept_if(self.case.net.most_ns != 0, case);
    }

    fn accept_if(&mut self, worth_it: bool, case: Case) {
        if worth_it {
            self.accept(case);
        }
    }

    fn fewer_contexts(&mut self) {
        let plain: Vec<u32> = (0..self.case.net.ranks).collect();
        let sides = self.case.first_sides.iter().any(|first| *first > 0);
        if self.case.members.len() == 1 && self.case.members[0] == plain && !sides {
            return;
        }
        let mut case = self.case.clone();
        case.members = vec![plain];
        case.first_sides.clear();
        for parted in &mut case.parted {
            parted.context = 0;
        }
        for message in &mut case.messages {
            message.context = 0;
        }
        for act in &mut case.acts {
            match act {
                Act::Receive { context, .. }
                | Act::Progress { context, .. }
                | Act::Probe { context, .. }
                | Act::Arrive { context, .. }
                | Act::Attach { context, .. }
                | Act::Flush { context, .. }
                | Act::Complete { context, .. } => *context = 0,
                _ => {}
            }
        }
        self.accept(case);
    }

    fn fewer_ranks(&mut self) {
        let plain: Vec<u32> = (0..self.case.net.ranks).collect();
        let sides = self.case.first_sides.iter().any(|first| *first > 0);
        if self.case.members.iter().any(|m| *m != plain) || sides {
            return;
        }
        for gone in (0..self.case.net.ranks).rev() {
            let case = &self.case;
            let idle = case.messages.iter().all(|m| m.from != gone && m.to != gone)
                && case.parted.iter().all(|p| p.from != gone && p.to != gone)
                && case.acts.iter().all(|a| match *a {
                    Act::Notice { to, dead } => to != gone && dead != gone,
                    Act::Arrive { from, to, .. } | Act::Corrupt { from, to } => {
                        from != gone && to != gone
                    }
                    Act::Receive { rank, want, .. } | Act::Probe { rank, want, .. } => {
                        rank != gone && want.source != Some(gone)
                    }
                    Act::Exchange { want, .. } => want.source != Some(gone),
                    a => a.rank(&case.messages) != Some(gone),
                });
            if idle && case.net.ranks > 1 {
                let case = without(case, gone);
                self.accept(case);
            }
        }
    }

    /// Changes of rank from one act to the next.
    fn switches(&self) -> usize {
        let ranks = self.case.acts.iter().map(|a| a.rank(&self.case.messages));
        let ranks: Vec<u32> = ranks.flatten().collect();
        ranks.windows(2).filter(|w| w[0] != w[1]).count()
    }

    /// Moves acts next to others of their rank.
    fn fewer_switches(&mut self) {
        for at in 1..self.case.acts.len() {
            if self.is_tired() {
                return;
            }
            let rank = self.case.acts[at].rank(&self.case.messages);
            let before = (0..at)
                .rev()
                .find(|b| self.case.acts[*b].rank(&self.case.messages) == rank);
            let Some(before) = before.filter(|b| b + 1 < at) else {
                continue;
            };
            let mut case = self.case.clone();
            let act = case.acts.remove(at);
            case.acts.insert(before + 1, act);
            let switches = self.switches();
            let kept = self.case.clone();
            if self.accept(case) && self.switches() >= switches {
                self.case = kept;
            }
        }
    }
}

/// A run without a rank that does nothing.
fn without(case: &Case, gone: u32) -> Case {
    let mut case = case.clone();
    let down = |rank: &mut u32| *rank -= u32::from(*rank > gone);
    case.net.ranks -= 1;
    for members in &mut case.members {
        *members = (0..case.net.ranks).collect();
    }
    for message in &mut case.messages {
        down(&mut message.from);
        down(&mut message.to);
    }
    for parted in &mut case.parted {
        down(&mut parted.from);
        down(&mut parted.to);
    }
    case.faults.retain(|f| f.from != gone && f.to != gone);
    for fault in &mut case.faults {
        down(&mut fault.from);
        down(&mut fault.to);
    }
    for act in &mut case.acts {
        match act {
            Act::Receive { rank, want, .. } | Act::Probe { rank, want, .. } => {
                down(rank);
                want.source.as_mut().map(down);
            }
            Act::Progress { rank, .. }
            | Act::DieAt { rank, .. }
            | Act::Finalize { rank }
            | Act::Acknowledge { rank, .. }
            | Act::Attach { rank, .. }
            | Act::Flush { rank, .. }
            | Act::Begin { rank, .. }
            | Act::Complete { rank, .. } => {
                down(rank);
            }
            Act::Exchange { want, .. } => {
                want.source.as_mut().map(down);
            }
            Act::Notice { to, dead } => {
                down(to);
                down(dead);
            }
            Act::Corrupt { from, to } | Act::Arrive { from, to, .. } => {
                down(from);
                down(to);
            }
            _ => {}
        }
    }
    case
}
