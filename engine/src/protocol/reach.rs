//! Reachability of device memory between two ranks.
//!
//! [`supported`] is the table of memory kinds and placements. Pure; what is made of it is
//! [`super::select`]'s.

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

    /// Whether both are of one process.
    pub fn is_one_process(self) -> bool {
        matches!(
            self,
            Placement::Process | Placement::Devices | Placement::DevicesApart
        )
    }

    /// Of one process.
    pub fn within(link: Link) -> Placement {
        match link {
            Link::Same => Placement::Process,
            Link::Linked => Placement::Devices,
            Link::Hidden | Link::Apart => Placement::DevicesApart,
        }
    }

    /// Of two processes. A device that is hidden from this one counts as linked until its
    /// memory could not be opened.
    pub fn between(link: Link) -> Placement {
        match link {
            Link::Same => Placement::Device,
            Link::Linked | Link::Hidden => Placement::Linked,
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

#[cfg(test)]
mod tests {
    use super::*;

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
