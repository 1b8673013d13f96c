//! Device memory between two ranks: who can reach whose, and how a message goes.
//!
//! [`supported`] is the table of memory kinds and placements; [`strategy`] decides for
//! one message. Both are pure.
//!
//! ```text
//! Get        the receiver's kernel reads the sender's memory      one launch
//! Put        the sender's kernel writes the receiver's memory     one launch
//! Fragments  the sender packs into fragments of device memory that the receiver maps
//! Host       host memory between, in chunks or fragments
//! ```
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis,
//! University of Tennessee, 2017, section 4.3 (pipelined RDMA; sender or receiver
//! contiguous). Where both sides are mapped a kernel goes from layout to layout here,
//! which needs no fragments at all.

use osier_kernels::Link;
use osier_kernels::handle::Made;

/// Where two buffers of devices lie, seen from the rank that is to reach the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One device, one process.
    Process,
    /// One device, two processes.
    Device,
    /// Two devices, of which one reaches the other's memory; two processes.
    Linked,
    /// Two devices that do not; two processes.
    Apart,
}

impl Placement {
    /// All of them.
    pub const ALL: [Placement; 4] = [
        Placement::Process,
        Placement::Device,
        Placement::Linked,
        Placement::Apart,
    ];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Process => "same process",
            Placement::Device => "same device",
            Placement::Linked => "linked device",
            Placement::Apart => "device not linked",
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
        (Placement::Process, _) => Reach::Address,
        (_, Made::Pinned) => Reach::No("it is private to its process"),
        (_, Made::Managed) => Reach::No("managed memory moves, and has no handle"),
        (_, Made::Pool) => Reach::No("its pool was not made to be exported"),
        (_, Made::PrivateMapped) => Reach::No("it was not made to be exported"),
        (Placement::Apart, _) => Reach::No("the devices are not linked"),
        (_, Made::Plain) => Reach::Handle,
        (_, Made::Mapped) => Reach::Descriptors,
        (_, Made::SharedPool) => Reach::Pool,
    }
}

/// How a message between devices goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The receiver's kernel reads the sender's memory.
    Get,
    /// Through host memory.
    Host,
}

/// What the receiver knows of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Sides {
    /// Where the two buffers lie.
    pub placement: Placement,
    /// How the sender's memory was made.
    pub from: Made,
    /// The receiver knows the sender's layout.
    pub told: bool,
    /// All of the message fits.
    pub fits: bool,
}

/// The receiver's decision on an announcement that offers device memory.
pub fn strategy(sides: &Sides) -> Strategy {
    match supported(sides.from, sides.placement).is_there() && sides.told && sides.fits {
        true => Strategy::Get,
        false => Strategy::Host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reached_needs_no_host() {
        let sides = |placement, from| Sides {
            placement,
            from,
            told: true,
            fits: true,
        };
        for placement in Placement::ALL {
            for made in Made::ALL {
                let sides = sides(placement, made);
                let reached = supported(made, placement).is_there();
                assert_eq!(strategy(&sides) == Strategy::Get, reached, "{sides:?}");
                assert_eq!(
                    strategy(&Sides {
                        told: false,
                        ..sides
                    }),
                    Strategy::Host
                );
                assert_eq!(
                    strategy(&Sides {
                        fits: false,
                        ..sides
                    }),
                    Strategy::Host
                );
            }
        }
    }

    #[test]
    fn the_table_of_memory_and_placement() {
        let table = Made::ALL
            .map(|made| Placement::ALL.map(|placement| supported(made, placement).is_there()));
        let (yes, no) = (true, false);
        let expected = [
            [yes, yes, yes, no], // plain
            [yes, no, no, no],   // pool
            [yes, yes, yes, no], // exportable pool
            [yes, yes, yes, no], // mapped
            [yes, no, no, no],   // mapped, not exportable
            [yes, no, no, no],   // managed
            [yes, no, no, no],   // pinned host
        ];
        assert_eq!(table, expected);
    }
}
