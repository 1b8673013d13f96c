//! What a message between devices can be: the axes, few cells that cover every pair of
//! their values, and cells by seed.
//!
//! Programs draw their cells here, the test and `cargo xtask soak devices` their jobs.
//!
//! # Invariants
//! 1. Everything here is a function of its arguments: all ranks of a job, the test that
//!    starts it and `cargo xtask soak devices` draw the same cells.
//! 2. At least one end of a cell is memory that kernels reach.

use std::fmt;

/// Numbers drawn by seed: splitmix64.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Memory of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Plain memory of the host.
    Host,
    /// Osier's allocator, which peers map.
    Heap,
    /// Pinned memory, by kernels.
    Pinned,
    /// Memory that moves by itself.
    Managed,
    /// A device's, by itself.
    Plain,
    /// A device's, from its pool.
    Pool,
    /// A device's, from a pool that others may open.
    SharedPool,
    /// Mapped memory of a device.
    Mapped,
    /// Plain memory that another library made.
    OthersPlain,
    /// From another library's pool that others may open.
    OthersShared,
    /// From another library's pool that nobody may.
    OthersPool,
    /// Mapped by another library, not to be exported.
    Unexported,
}

impl Place {
    pub const ALL: [Place; 12] = [
        Place::Host,
        Place::Heap,
        Place::Pinned,
        Place::Managed,
        Place::Plain,
        Place::Pool,
        Place::SharedPool,
        Place::Mapped,
        Place::OthersPlain,
        Place::OthersShared,
        Place::OthersPool,
        Place::Unexported,
    ];

    /// Memory that another process opens.
    pub fn is_opened(self) -> bool {
        use Place::*;
        matches!(
            self,
            Plain | SharedPool | Mapped | OthersPlain | OthersShared
        )
    }

    /// Memory that is handed over as a device's.
    pub fn on_device(self) -> bool {
        !matches!(self, Place::Host | Place::Heap)
    }
}

/// How an end's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Run,
    /// Equal blocks.
    Vector,
    /// Rows, each longer than the one before.
    Triangle,
    /// Blocks and vectors at places that follow no rule.
    Irregular,
}

impl Shape {
    pub const ALL: [Shape; 4] = [Shape::Run, Shape::Vector, Shape::Triangle, Shape::Irregular];
}

/// How two ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Threads of one process, one device.
    Threads,
    /// Threads of one process, a device each.
    ThreadsApart,
    /// Two processes, one device.
    Device,
    /// Two processes, a device each.
    Linked,
    /// The same, without a link between the devices.
    Apart,
    /// The same, linked; all in slots on the device, of which there are two.
    Pipelined,
    /// No memory of the other process is opened.
    Closed,
    /// No more than one allocation is open.
    Bounded,
    /// As little pinned memory as can be.
    Tight,
    /// The driver registers no shared memory.
    Unregistered,
    /// There is no shared memory for slots.
    Unshared,
    /// The simulated network, threads.
    Network,
}

impl Way {
    pub const ALL: [Way; 12] = [
        Way::Threads,
        Way::ThreadsApart,
        Way::Device,
        Way::Linked,
        Way::Apart,
        Way::Pipelined,
        Way::Closed,
        Way::Bounded,
        Way::Tight,
        Way::Unregistered,
        Way::Unshared,
        Way::Network,
    ];

    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub fn named(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.name() == name)
    }

    /// Devices of the machine.
    pub fn gpus(self) -> usize {
        match self {
            Way::ThreadsApart | Way::Linked | Way::Apart | Way::Pipelined => 2,
            _ => 1,
        }
    }

    /// Whether a machine with one device has no such way.
    pub fn needs_two(self) -> bool {
        matches!(self, Way::ThreadsApart | Way::Linked | Way::Apart)
    }

    /// Options of `osier run`, and what the ranks do before the way's name.
    fn options(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Way::Threads | Way::ThreadsApart => {
                (&["-n", "2", "--ranks-per-process", "2"], &["run", "matrix"])
            }
            // Its ranks are no ranks of the launcher's job.
            Way::Network => (&["-n", "1"], &["matrix"]),
            _ => (&["-n", "2"], &["matrix"]),
        }
    }

    /// Variables of the job, and keys of `OSIER_DEBUG` in lower case.
    pub fn variables(self) -> Vec<(&'static str, String)> {
        let set = |name, value: &str| (name, value.to_owned());
        let closed = set("device-mappings", "0");
        match self {
            Way::Apart => vec![set("OSIER_EMULATED_LINKS", "none")],
            Way::Pipelined => vec![set("pipeline", "on"), set("device-slots", "512K")],
            Way::Closed => vec![closed],
            Way::Bounded => vec![set("device-mappings", "1")],
            Way::Tight => vec![set("OSIER_PINNED_LIMIT", "256K"), closed],
            Way::Unregistered => {
                let all: Vec<_> = (1..100).map(|n| format!("cuMemHostRegister:{n}")).collect();
                let quiet = set("OSIER_EMULATED_QUIET", "1");
                vec![("OSIER_EMULATED_FAIL", all.join(",")), quiet, closed]
            }
            Way::Unshared => vec![set("OSIER_SHM_LIMIT", "3M"), closed],
            Way::Threads | Way::ThreadsApart | Way::Device | Way::Linked | Way::Network => vec![],
        }
    }
}

/// Bytes of messages: around the limit of short ones and around a piece.
pub const SIZES: [usize; 8] = [
    0,
    1,
    8 << 10,
    (8 << 10) + 1,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    MANY,
];

/// Many pieces, where memory is short; one more byte than some.
pub const MANY: usize = (600 << 10) + 1;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub from: Place,
    pub to: Place,
    pub sent: Shape,
    pub received: Shape,
    pub bytes: usize,
    pub way: Way,
    /// The receive is posted when the message comes.
    pub expected: bool,
    /// Rank of the sender.
    pub sender: usize,
    /// Of contents, gaps and delays.
    pub seed: u64,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes, {:?} on {:?} of rank {} to {:?} on {:?}, {}, {} (seed {})",
            self.bytes,
            self.sent,
            self.from,
            self.sender,
            self.received,
            self.to,
            if self.expected {
                "expected"
            } else {
                "unexpected"
            },
            self.way.name(),
            self.seed
        )
    }
}

/// Values of each axis: from, to, sent, received, bytes, way, expected, sender.
pub const AXES: [usize; 8] = [
    Place::ALL.len(),
    Place::ALL.len(),
    Shape::ALL.len(),
    Shape::ALL.len(),
    SIZES.len(),
    Way::ALL.len(),
    2,
    2,
];

/// Values by number.
pub type Row = [usize; AXES.len()];

/// Two axes and a value of each.
type Pair = (usize, usize, usize, usize);

/// Whether there can be such a cell, as far as its values are known: invariant 2.
pub fn allowed(row: &[Option<usize>; AXES.len()]) -> bool {
    let host = |at: usize| row[at].is_some_and(|at| !Place::ALL[at].on_device());
    !(host(0) && host(1))
}

/// Every pair of values of two axes that a cell can have.
pub fn pairs() -> Vec<Pair> {
    let mut all = Vec::new();
    for a in 0..AXES.len() {
        for b in a + 1..AXES.len() {
            for x in 0..AXES[a] {
                for y in 0..AXES[b] {
                    let mut row = [None; AXES.len()];
                    (row[a], row[b]) = (Some(x), Some(y));
                    if allowed(&row) {
                        all.push((a, b, x, y));
                    }
                }
            }
        }
    }
    all
}

/// Few rows in which every pair of values occurs: each begins with a pair that is
/// missing, and takes of the other axes what covers most.
pub fn covering() -> Vec<Row> {
    let mut missing: std::collections::BTreeSet<Pair> = pairs().into_iter().collect();
    let mut rows = Vec::new();
    while let Some(&(a, b, x, y)) = missing.iter().next() {
        let mut row = [None; AXES.len()];
        (row[a], row[b]) = (Some(x), Some(y));
        while let Some((axis, value)) = best(&row, &missing, rows.len()) {
            row[axis] = Some(value);
        }
        let row = row.map(|value| value.unwrap_or(0));
        missing.retain(|&(a, b, x, y)| row[a] != x || row[b] != y);
        rows.push(row);
    }
    rows
}

/// The axis without a value, and its value, that cover most pairs with those that have one.
fn best(
    row: &[Option<usize>; AXES.len()],
    missing: &std::collections::BTreeSet<Pair>,
    turn: usize,
) -> Option<(usize, usize)> {
    let mut best = None;
    for axis in (0..AXES.len()).filter(|axis| row[*axis].is_none()) {
        for at in 0..AXES[axis] {
            // Among equals another in each row.
            let value = (at + turn) % AXES[axis];
            let mut with = *row;
            with[axis] = Some(value);
            if !allowed(&with) {
                continue;
            }
            let covers = (0..AXES.len()).filter(|other| {
                let Some(of_other) = row[*other] else {
                    return false;
                };
                let pair = match axis < *other {
                    true => (axis, *other, value, of_other),
                    false => (*other, axis, of_other, value),
                };
                missing.contains(&pair)
            });
            let covers = covers.count();
            if best.is_none_or(|(most, _, _)| covers > most) {
                best = Some((covers, axis, value));
            }
        }
    }
    best.map(|(_, axis, value)| (axis, value))
}

/// A cell of a row.
pub fn cell(row: &Row, seed: u64) -> Cell {
    Cell {
        from: Place::ALL[row[0]],
        to: Place::ALL[row[1]],
        sent: Shape::ALL[row[2]],
        received: Shape::ALL[row[3]],
        bytes: SIZES[row[4]],
        way: Way::ALL[row[5]],
        expected: row[6] == 0,
        sender: row[7],
        seed,
    }
}

/// The cells of the covering sample that go one way.
pub fn sample(way: Way) -> Vec<Cell> {
    let rows = covering();
    let all = rows.iter().enumerate();
    let all = all.map(|(at, row)| cell(row, at as u64));
    all.filter(|cell| cell.way == way).collect()
}

/// Cells of a job by seed, which all go one way.
pub fn drawn(way: Way, seed: u64) -> Vec<Cell> {
    let mut dice = Dice::new(seed);
    let mut all = Vec::new();
    while all.len() < 24 {
        let mut row = AXES.map(|values| dice.below(values));
        row[5] = Way::ALL.iter().position(|w| *w == way).unwrap_or(0);
        if !allowed(&row.map(Some)) {
            continue;
        }
        let mut cell = cell(&row, dice.draw() >> 32);
        // Half of them are of any size.
        if dice.below(2) == 0 {
            let bits = dice.below(22);
            cell.bytes = dice.below(1 << bits) + dice.below(3);
        }
        all.push(cell);
    }
    all
}

/// The command line behind `osier run`: a job of cells that go one way, on emulated
/// devices.
pub fn arguments(way: Way, program: &str, which: &str) -> Vec<String> {
    let mut all = vec!["--emulate-gpus".to_owned(), way.gpus().to_string()];
    all.extend(line(way, program, which));
    all
}

/// The same on the devices that are there.
pub fn line(way: Way, program: &str, which: &str) -> Vec<String> {
    let (options, what) = way.options();
    let words = options.iter().chain(&["--"]).chain([&program]);
    let mut all: Vec<String> = words.chain(what).map(|word| word.to_string()).collect();
    all.extend([way.name(), which.to_owned()]);
    all
}

/// Settings as variables: those in lower case are keys of `OSIER_DEBUG`, and stand behind
/// what this process has there.
pub fn environment(settings: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    let is_key = |(name, _): &(&'static str, String)| !name.starts_with("OSIER_");
    let (keys, mut variables): (Vec<_>, Vec<_>) = settings.into_iter().partition(is_key);
    if !keys.is_empty() {
        let own = std::env::var("OSIER_DEBUG").ok();
        let pairs = keys.iter().map(|(key, value)| format!("{key}={value}"));
        let all: Vec<String> = own.into_iter().chain(pairs).collect();
        variables.push(("OSIER_DEBUG", all.join(",")));
    }
    variables
}

/// A job by seed: its way and variables beside those of the way.
pub fn job(seed: u64) -> (Way, Vec<(&'static str, String)>) {
    let mut dice = Dice::new(!seed);
    let way = dice.of(&Way::ALL);
    let mut all = way.variables();
    let mut set = |name: &'static str, value: String| {
        if all.iter().all(|(known, _)| *known != name) {
            all.push((name, value));
        }
    };
    set("OSIER_EMULATED_SEED", dice.below(1 << 20).to_string());
    set("OSIER_EMULATED_DELAYS", dice.of(&[0, 50, 300]).to_string());
    if dice.below(3) == 0 {
        set(
            "OSIER_PINNED_LIMIT",
            dice.of(&["256K", "400K", "1M"]).into(),
        );
    }
    if dice.below(3) == 0 {
        set("pipeline", dice.of(&["on", "off"]).into());
    }
    if dice.below(3) == 0 {
        set("device-mappings", dice.below(4).to_string());
    }
    if dice.below(3) == 0 {
        set("OSIER_EMULATED_ADDRESSES", "reused".into());
    }
    if dice.below(3) == 0 {
        let most = dice.of(&["0", "100", "100K", "256K"]);
        set("device-eager", most.into());
    }
    if dice.below(3) == 0 {
        set("OSIER_EMULATED_GDRCOPY", "1".into());
    }
    (way, all)
}
