//! What is set from outside, by environment variables, read once.

use std::sync::OnceLock;

use crate::abi::{self, Code};
use crate::isolation::Wanted;
use crate::visible::Machine;

/// One failure to inject.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// Entry point, with or without `_v2`.
    pub name: String,
    /// The call that fails, from 1.
    pub call: u64,
    /// What it returns.
    pub code: Code,
}

/// All settings.
#[derive(Debug)]
pub struct Settings {
    /// `OSIER_EMULATED_GPUS`: number of GPUs, default 1; `OSIER_EMULATED_MIG`: slices of
    /// each; `CUDA_VISIBLE_DEVICES`.
    pub machine: Machine,
    /// `OSIER_EMULATED_HIDDEN=closed`: memory of devices that the process does not see
    /// cannot be opened.
    pub hidden_open: bool,
    /// `OSIER_EMULATED_MEMORY`: bytes of each device, such as `64M`; default 1G.
    pub memory_bytes: usize,
    /// `OSIER_EMULATED_SEED`: seeds the order in which work runs.
    pub seed: u64,
    /// `OSIER_EMULATED_DELAYS`: longest delay of a work at the head of its stream, in
    /// microseconds, drawn by seed; other streams go on. Default 0.
    pub delays_us: u64,
    /// `OSIER_EMULATED_FAIL`: `cuMemAlloc:3,cuLaunchKernel:1:719`.
    pub failures: Vec<Failure>,
    /// `OSIER_EMULATED_KERNELS`: libraries with kernels of the user, separated by `:`.
    pub kernels: Vec<String>,
    /// `OSIER_EMULATED_ISOLATION`: `windows`, no protection keys; `open`, no isolation.
    pub isolation: Wanted,
    /// `OSIER_EMULATED_ORDER=unchecked`: do not look for accesses that nothing orders.
    pub order: bool,
    /// `OSIER_EMULATED_ADDRESSES=reused`: freed addresses are given out again at once, as
    /// a real driver does; what lies behind them is other memory.
    pub reuse: bool,
    /// `OSIER_EMULATED_WAITS=all`: also calls that make memory and streams, or pin memory,
    /// wait for the work of their context, as a driver may; else those that are known to.
    pub waits_all: bool,
    /// `OSIER_EMULATED_MPS=0`: processes take turns on a device, by what it says of itself.
    pub mps: bool,
    /// `OSIER_EMULATED_LINKS`: what joins devices, else a bus over which all reach all.
    pub links: Links,
    /// `OSIER_EMULATED_MULTICAST=1`: devices are of capability 9.0, on a switch that stores
    /// to several at once.
    multicast: bool,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`: queues of the hardware for streams of one priority.
    pub connections: u64,
    /// `OSIER_EMULATED_NVML=0`: there is no management library.
    pub nvml: bool,
    /// `OSIER_EMULATED_GDRCOPY=1`: there is a library of gdrcopy.
    pub gdrcopy: bool,
    /// `OSIER_EMULATED_TRACE=PREFIX`: each process writes its calls to `PREFIX.PID`.
    pub trace: Option<String>,
    /// `OSIER_EMULATED_DIE=N` or `N@RANK`: the process ends at its call of this number,
    /// of those that do more than ask.
    pub dies: Option<u64>,
    /// `OSIER_EMULATED_MOST_BLOCKS`: a launch of more thread blocks is an error.
    pub most_blocks: u64,
    /// `OSIER_EMULATED_QUIET=1`: named errors are not printed.
    pub print: bool,
}

/// The settings of this process.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        let number = |name: &str, default: u64| match text(name) {
            t if t.is_empty() => default,
            t => t.parse().unwrap_or_else(|_| {
                eprintln!("emulated cuda: {name}={t} is no number; taking {default}");
                default
            }),
        };
        Settings {
            machine: {
                let slices = number("OSIER_EMULATED_MIG", 0).min(7) as usize;
                let most = 8 / slices.max(1) as u64;
                let gpus = number("OSIER_EMULATED_GPUS", 1).min(most) as usize;
                let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
                Machine::of(gpus, slices, visible.as_deref())
            },
            hidden_open: text("OSIER_EMULATED_HIDDEN") != "closed",
            memory_bytes: bytes(&text("OSIER_EMULATED_MEMORY")).unwrap_or(1 << 30),
            seed: number("OSIER_EMULATED_SEED", 1),
            delays_us: number("OSIER_EMULATED_DELAYS", 0),
            failures: failures(&text("OSIER_EMULATED_FAIL")),
            kernels: text("OSIER_EMULATED_KERNELS")
                .split(':')
                .filter(|p| !p.is_empty())
                .map(String::from)
                .collect(),
            isolation: match text("OSIER_EMULATED_ISOLATION").as_str() {
                "windows" => Wanted::Windows,
                "open" => Wanted::Open,
                _ => Wanted::Keys,
            },
            order: text("OSIER_EMULATED_ORDER") != "unchecked",
            reuse: text("OSIER_EMULATED_ADDRESSES") == "reused",
            waits_all: text("OSIER_EMULATED_WAITS") == "all",
            mps: text("OSIER_EMULATED_MPS") != "0",
            links: Links::of(&text("OSIER_EMULATED_LINKS")),
            multicast: text("OSIER_EMULATED_MULTICAST") == "1",
            connections: number("CUDA_DEVICE_MAX_CONNECTIONS", 8).clamp(1, 32),
            nvml: text("OSIER_EMULATED_NVML") != "0",
            gdrcopy: text("OSIER_EMULATED_GDRCOPY") == "1",
            trace: Some(text("OSIER_EMULATED_TRACE")).filter(|t| !t.is_empty()),
            dies: dies(&text("OSIER_EMULATED_DIE"), &text("OSIER_RANK")),
            print: text("OSIER_EMULATED_QUIET") != "1",
            most_blocks: number("OSIER_EMULATED_MOST_BLOCKS", u64::MAX),
        }
    })
}

impl Settings {
    /// What joins two devices; a slice of a GPU reaches no other.
    pub fn between(&self, a: usize, b: usize) -> Link {
        match self.machine.slices {
            0 => self.links.between(a, b),
            _ => Link::Apart,
        }
    }

    /// Whether devices take part in multicast; slices of a GPU do not.
    pub fn has_multicast(&self) -> bool {
        self.multicast && self.machine.slices == 0
    }

    /// Whether two devices are on one switch: also on the bus that stands for any link.
    pub fn on_one_switch(&self, a: usize, b: usize) -> bool {
        a == b || matches!(self.between(a, b), Link::Switched(_) | Link::Bus)
    }

    /// Compute capability: of the family whose features the host can show.
    pub fn capability(&self) -> (u32, u32) {
        match self.has_multicast() {
            true => (9, 0),
            false => (8, 0),
        }
    }

    /// Whether one device can be given the memory of another by a handle.
    pub fn opens(&self, device: usize, owner: usize) -> bool {
        let hidden = self.machine.ordinal(owner).is_none();
        device == owner || (self.hidden_open || !hidden) && self.between(device, owner).reaches()
    }
}

/// What joins two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing by which one reaches the other.
    Apart,
    /// The bus.
    Bus,
    /// So many NVLinks.
    Direct(u32),
    /// So many NVLinks of each, into a switch.
    Switched(u32),
}

impl Link {
    /// Whether one reaches the other's memory.
    pub fn reaches(self) -> bool {
        self != Link::Apart
    }

    /// Whether it does over NVLinks.
    pub fn is_nvlink(self) -> bool {
        matches!(self, Link::Direct(_) | Link::Switched(_))
    }
}

/// What joins devices: `0-1:4,2-3:4` NVLinks between pairs, `switch:18` of each device into
/// a switch, `0-2:none` a pair that does not reach each other, `none`: no pair does. What is
/// named later counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    all: Option<Link>,
    pairs: Vec<(usize, usize, Link)>,
}

impl Links {
    /// Of a setting; what makes no sense is said and left out.
    pub fn of(text: &str) -> Links {
        let mut links = Links::default();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            if links.add(item).is_none() {
                eprintln!(
                    "emulated cuda: OSIER_EMULATED_LINKS: '{item}' is not none, switch:N, A-B:N or A-B:none"
                );
            }
        }
        links
    }

    fn add(&mut self, item: &str) -> Option<()> {
        if item == "none" {
            self.all = Some(Link::Apart);
            return Some(());
        }
        let (who, what) = item.split_once(':')?;
        if who == "switch" {
            self.all = Some(Link::Switched(what.parse().ok()?));
            return Some(());
        }
        let (a, b) = who.split_once('-')?;
        let link = match what {
            "none" => Link::Apart,
            n => Link::Direct(n.parse().ok().filter(|n| *n > 0)?),
        };
        self.pairs.push((a.parse().ok()?, b.parse().ok()?, link));
        Some(())
    }

    /// What joins two devices that are not one.
    pub fn between(&self, a: usize, b: usize) -> Link {
        let named = self.pairs.iter().rev();
        let mut named = named.filter(|(c, d, _)| (*c, *d) == (a, b) || (*c, *d) == (b, a));
        match named.next() {
            Some((_, _, link)) => *link,
            None => self.all.unwrap_or(Link::Bus),
        }
    }

    /// Where each NVLink of a device leads: to another, or into a switch.
    pub fn ends(&self, device: usize, devices: usize) -> Vec<Option<usize>> {
        let mut ends = Vec::new();
        let mut into_switch = 0;
        for other in (0..devices).filter(|other| *other != device) {
            match self.between(device, other) {
                Link::Direct(n) => ends.extend((0..n).map(|_| Some(other))),
                Link::Switched(n) => into_switch = into_switch.max(n),
                Link::Apart | Link::Bus => {}
            }
        }
        ends.extend((0..into_switch).map(|_| None));
        ends
    }
}

fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_shl(shift)
}

fn dies(text: &str, rank: &str) -> Option<u64> {
    let (call, who) = text.split_once('@').unwrap_or((text, rank));
    call.parse().ok().filter(|_| who == rank)
}

fn failures(text: &str) -> Vec<Failure> {
    let mut found = Vec::new();
    for item in text.split(',').filter(|i| !i.is_empty()) {
        let mut parts = item.split(':');
        let name = parts.next().unwrap_or_default().to_owned();
        let call = parts.next().and_then(|n| n.parse().ok());
        let default = match name.contains("Alloc") || name.starts_with("cuMemCreate") {
            true => abi::ERROR_OUT_OF_MEMORY,
            false => abi::ERROR_UNKNOWN,
        };
        let code = parts.next().map_or(Some(default), |c| c.parse().ok());
        match (call, code) {
            (Some(call), Some(code)) => found.push(Failure { name, call, code }),
            _ => eprintln!(
                "emulated cuda: OSIER_EMULATED_FAIL: '{item}' is not NAME:CALL or NAME:CALL:CODE"
            ),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_pairs_and_switches() {
        let links = Links::of("0-1:4,2-3:none");
        assert_eq!(links.between(1, 0), Link::Direct(4));
        assert_eq!(links.between(3, 2), Link::Apart);
        assert_eq!(links.between(0, 2), Link::Bus);
        assert_eq!(links.ends(0, 4), [Some(1); 4]);
        let links = Links::of("switch:18,0-3:none");
        assert_eq!(links.between(0, 1), Link::Switched(18));
        assert!(!links.between(0, 3).reaches());
        assert_eq!(links.ends(0, 4), [None; 18]);
        assert!(!Links::of("none").between(0, 1).reaches());
        assert_eq!(Links::of("what,0-1:0"), Links::default());
    }

    #[test]
    fn sizes_and_failures_are_parsed() {
        assert_eq!(bytes("64M"), Some(64 << 20));
        assert_eq!(bytes("100"), Some(100));
        assert_eq!(bytes(""), None);
        let all = failures("cuMemAlloc:3,cuLaunchKernel:1:719,bad");
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].call, all[0].code), (3, abi::ERROR_OUT_OF_MEMORY));
        assert_eq!((all[1].call, all[1].code), (1, 719));
        assert_eq!(dies("7", "0"), Some(7));
        assert_eq!(
            (dies("7@1", "1"), dies("7@1", "0"), dies("", "")),
            (Some(7), None, None)
        );
    }
}
