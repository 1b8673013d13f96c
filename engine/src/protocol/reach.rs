//! Device memory between two ranks: who can reach whose, and how a message goes.
//!
//! [`supported`] is the table of memory kinds and placements; [`strategy`] decides for
//! one message. Both are pure.
//!
//! | way | | launches |
//! |---|---|---|
//! | kernel | the receiver's kernel reads the sender's memory | 1 |
//! | put | the sender's kernel writes the receiver's memory | 1 |
//! | chunks on the device | the sender packs, the receiver unpacks from there | 2 per chunk |
//! | chunks, fragments | the same in memory of the host | 2 per chunk |
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis,
//! University of Tennessee, 2017, section 4.3 (pipelined RDMA; sender or receiver
//! contiguous). Where both sides are mapped a kernel goes from layout to layout here,
//! which needs no fragments at all.

use super::device::{Between, End, Model, Way};
use osier_kernels::Link;
use osier_kernels::handle::Made;

/// Where two buffers of devices lie, seen from the rank that is to reach the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One device, one process.
    Process,
    /// Two devices, of which one reaches the other's memory; one process.
    Devices,
    /// Two devices that do not; one process.
    DevicesApart,
    /// One device, two processes.
    Device,
    /// Two devices, of which one reaches the other's memory; two processes.
    Linked,
    /// Two devices that do not; two processes.
    Apart,
}

impl Placement {
    /// All of them.
    pub const ALL: [Placement; 6] = [
        Placement::Process,
        Placement::Devices,
        Placement::DevicesApart,
        Placement::Device,
        Placement::Linked,
        Placement::Apart,
    ];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Process => "same process",
            Placement::Devices => "same process, linked device",
            Placement::DevicesApart => "same process, device not linked",
            Placement::Device => "same device",
            Placement::Linked => "linked device",
            Placement::Apart => "device not linked",
        }
    }

    /// Of one process.
    pub fn within(link: Link) -> Placement {
        match link {
            Link::Same => Placement::Process,
            Link::Linked => Placement::Devices,
            Link::Apart => Placement::DevicesApart,
        }
    }

    /// Of two processes.
    pub fn between(link: Link) -> Placement {
        match link {
            Link::Same => Placement::Device,
            Link::Linked => Placement::Linked,
            Link::Apart => Placement::Apart,
        }
    }
}

/// How memory is reached from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By its own address.
    Address,
    /// Opened by a handle that travels with the message.
    Handle,
    /// Opened by descriptors, which are asked for once.
    Descriptors,
    /// Opened for each message within its pool, which is asked for once.
    Pool,
    /// Not at all, and why.
    No(&'static str),
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Reach::Address => "by address",
            Reach::Handle => "by handle",
            Reach::Descriptors => "by descriptors",
            Reach::Pool => "in its pool",
            Reach::No(why) => why,
        })
    }
}

impl Reach {
    /// Whether it is reached.
    pub fn is_there(self) -> bool {
        !matches!(self, Reach::No(_))
    }
}

/// How memory of a kind is reached in a placement.
pub fn supported(made: Made, placement: Placement) -> Reach {
    match (placement, made) {
        (Placement::Process | Placement::Devices, _) => Reach::Address,
        (Placement::DevicesApart, Made::Pinned | Made::Managed) => Reach::Address,
        (Placement::DevicesApart, _) => Reach::No("the devices are not linked"),
        (_, Made::Pinned) => Reach::No("it is private to its process"),
        (_, Made::Managed) => Reach::No("managed memory moves, and has no handle"),
        (_, Made::Pool) => Reach::No("its pool was not made to be exported"),
        (_, Made::PrivateMapped) => Reach::No("it was not made to be exported"),
        (Placement::Apart, _) => Reach::No("the devices are not linked"),
        (_, Made::Plain) => Reach::Handle,
        (_, Made::Mapped) => Reach::Descriptors,
        (_, Made::SharedPool | Made::OtherPool) => Reach::Pool,
    }
}

/// Whether messages go in chunks on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipelining {
    /// Where nothing is cheaper.
    #[default]
    Auto,
    /// Wherever they can.
    On,
    /// Never.
    Off,
}

/// What the receiver of an announcement knows of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Sides {
    /// Where the two buffers lie.
    pub placement: Placement,
    /// How the sender's memory was made.
    pub from: Made,
    /// How the receiver's memory was made, if it can be told.
    pub to: Option<Made>,
    /// The receiver knows the sender's layout.
    pub told: bool,
    /// All of the message fits.
    pub fits: bool,
    /// The two ranks share memory of the host.
    pub shares: bool,
}

/// Ways that a message between devices of two processes may take, besides fragments of
/// the host.
pub fn ways(sides: &Sides, pipelining: Pipelining) -> Vec<Way> {
    let mut ways = Vec::new();
    let reached = |made| supported(made, sides.placement).is_there();
    if reached(sides.from) && sides.told && sides.fits {
        ways.push(Way::Kernel);
    }
    if sides.to.is_some_and(reached) && sides.fits {
        ways.push(Way::Put);
    }
    let near = matches!(sides.placement, Placement::Device | Placement::Linked);
    if near && pipelining != Pipelining::Off {
        ways.push(Way::DeviceChunks);
    }
    if sides.shares {
        ways.push(Way::Chunks);
    }
    ways
}

/// The receiver's decision on an announcement that offers device memory: ways, the best
/// first.
pub fn strategy(
    sides: &Sides,
    pipelining: Pipelining,
    model: &Model,
    (from, to, bytes): (End, End, usize),
) -> Vec<Way> {
    let between = Between {
        linked: sides.placement == Placement::Linked,
        offered: true,
        ..Between::default()
    };
    let cost = |way: &Way| match (pipelining, way) {
        (Pipelining::On, Way::DeviceChunks) => 0.0,
        _ => model.predict_between(from, to, bytes, *way, between).ns,
    };
    let mut ways: Vec<_> = ways(sides, pipelining)
        .into_iter()
        .map(|way| (cost(&way), way))
        .collect();
    ways.sort_by(|a, b| a.0.total_cmp(&b.0));
    ways.into_iter().map(|(_, way)| way).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::cost::LinkCosts;
    use crate::protocol::device::{Class, Place};

    const SIDES: Sides = Sides {
        placement: Placement::Device,
        from: Made::Plain,
        to: Some(Made::Plain),
        told: true,
        fits: true,
        shares: true,
    };

    fn chosen(sides: Sides, pipelining: Pipelining, bytes: usize) -> Option<Way> {
        let model = Model::unlimited(&LinkCosts::default());
        let end = End {
            place: Place::Device,
            class: Class::Strided,
        };
        let ways = strategy(&sides, pipelining, &model, (end, end, bytes));
        ways.first().copied()
    }

    /// What can be opened is read or written by one kernel; between devices that reach
    /// each other nothing crosses the host.
    #[test]
    fn what_is_reached_needs_no_host() {
        for placement in Placement::ALL {
            for (from, to) in Made::ALL
                .into_iter()
                .flat_map(|a| Made::ALL.map(|b| (a, b)))
            {
                let sides = Sides {
                    placement,
                    from,
                    to: Some(to),
                    ..SIDES
                };
                let reached = |made| supported(made, placement).is_there();
                let way = match (reached(from), reached(to), placement) {
                    (true, _, _) => Way::Kernel,
                    (false, true, _) => Way::Put,
                    (false, false, Placement::Device | Placement::Linked) => Way::DeviceChunks,
                    (false, false, _) => Way::Chunks,
                };
                for bytes in [9 << 10, 1 << 20, 64 << 20] {
                    assert_eq!(
                        chosen(sides, Pipelining::Auto, bytes),
                        Some(way),
                        "{sides:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_table_of_strategies() {
        let pool = Sides {
            from: Made::Pool,
            ..SIDES
        };
        let table = [
            // The receiver does not know the layout: the sender writes.
            chosen(
                Sides {
                    told: false,
                    ..SIDES
                },
                Pipelining::Auto,
                1 << 20,
            ),
            // A receive that is too short.
            chosen(
                Sides {
                    fits: false,
                    ..SIDES
                },
                Pipelining::Auto,
                1 << 20,
            ),
            chosen(pool, Pipelining::Auto, 1 << 20),
            chosen(Sides { to: None, ..pool }, Pipelining::Auto, 1 << 20),
            chosen(Sides { to: None, ..pool }, Pipelining::Off, 1 << 20),
            chosen(SIDES, Pipelining::On, 1 << 20),
            chosen(SIDES, Pipelining::Off, 1 << 20),
            chosen(
                Sides {
                    placement: Placement::Apart,
                    shares: false,
                    ..SIDES
                },
                Pipelining::On,
                1 << 20,
            ),
        ];
        let expected = [
            Some(Way::Put),
            Some(Way::DeviceChunks),
            Some(Way::Put),
            Some(Way::DeviceChunks),
            Some(Way::Chunks),
            Some(Way::DeviceChunks),
            Some(Way::Kernel),
            None,
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn the_table_of_memory_and_placement() {
        let table = Made::ALL
            .map(|made| Placement::ALL.map(|placement| supported(made, placement).is_there()));
        let (yes, no) = (true, false);
        let expected = [
            // Of one process: a device, linked, not linked; of two: the same.
            [yes, yes, no, yes, yes, no], // plain
            [yes, yes, no, no, no, no],   // pool
            [yes, yes, no, yes, yes, no], // exportable pool
            [yes, yes, no, yes, yes, no], // of others
            [yes, yes, no, yes, yes, no], // mapped
            [yes, yes, no, no, no, no],   // mapped, not exportable
            [yes, yes, yes, no, no, no],  // managed
            [yes, yes, yes, no, no, no],  // pinned host
        ];
        assert_eq!(table, expected);
    }
}
