//! Buffers of the host or of devices, and how they are compared.

use crate::driver;
use crate::support::Watchdog;
use osier::datatype::Basic;
use osier::devices::{DeviceSlice, DeviceView, Ordered, Stream};
use osier::testing::{Network, ranks_on};
use osier::{Buffer, BufferMut, Communicator, Layout, Type, View, ViewMut};
use osier_collectives::Algorithm;
use std::cell::RefCell;

/// Drawn numbers, the same from the same seed.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = (self.0)
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }

    pub fn yes(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// A buffer of four-byte elements, of the host or on a device.
pub struct Mem {
    pub host: Vec<i32>,
    pub device: Option<OnDevice>,
    pub layout: Layout,
    pub count: usize,
}

pub struct OnDevice {
    pub slice: DeviceSlice<u8>,
    pub view: Ordered<DeviceView<u8>>,
    pub stream: Stream,
}

impl Mem {
    pub fn new(stream: Option<&Stream>, host: Vec<i32>, layout: &Layout, count: usize) -> Mem {
        let device = stream.map(|stream| {
            let bytes: Vec<u8> = host.iter().flat_map(|n| n.to_ne_bytes()).collect();
            let slice = driver::upload(stream, &bytes);
            let view = DeviceView::new(&slice, 0, layout, count).unwrap();
            OnDevice {
                view: view.after_stream(stream),
                slice,
                stream: stream.clone(),
            }
        });
        Mem {
            host,
            device,
            layout: layout.clone(),
            count,
        }
    }

    pub fn contents(&self) -> Vec<i32> {
        let Some(OnDevice { slice, stream, .. }) = &self.device else {
            return self.host.clone();
        };
        let bytes = driver::download(stream, slice);
        let four = |four: &[u8]| i32::from_ne_bytes(four.try_into().unwrap());
        bytes.chunks_exact(4).map(four).collect()
    }
}

impl Buffer for Mem {
    fn view(&self) -> View<'_> {
        match &self.device {
            None => View::new(&self.host, 0, &self.layout, self.count).unwrap(),
            Some(there) => there.view.view(),
        }
    }
}

impl BufferMut for Mem {
    fn view_mut(&mut self) -> ViewMut<'_> {
        match &mut self.device {
            None => ViewMut::new(&mut self.host, 0, &self.layout, self.count).unwrap(),
            Some(there) => there.view.view_mut(),
        }
    }
}

/// One element, three, or three with gaps: elements of an instance and around it.
pub fn layouts() -> [(Layout, usize); 3] {
    let int = Type::basic(Basic::I32);
    let list = [(1, 0), (2, 8)].map(|(n, at)| (n, at / 4));
    [
        (int.clone(), 1),
        (Type::contiguous(3, &int).unwrap(), 3),
        (Type::indexed(&list, &int).unwrap(), 4),
    ]
    .map(|(ty, room)| (ty.commit().unwrap(), room))
}

/// Where buffers of a case lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spaces {
    Host,
    Devices,
    /// By rank and buffer.
    Mixed,
}

/// Makes the buffers of one call.
pub struct Maker<'a> {
    pub stream: &'a Stream,
    pub spaces: Spaces,
    /// Of this rank alone.
    pub own: RefCell<Draw>,
}

impl Maker<'_> {
    /// So many instances of a layout, with numbers of a seed.
    pub fn mem(&self, (layout, room): &(Layout, usize), count: usize, seed: usize) -> Mem {
        let drawn = self.own.borrow_mut().yes(2);
        let on_device = match self.spaces {
            Spaces::Host => false,
            Spaces::Devices => true,
            Spaces::Mixed => drawn,
        };
        let number = |i: usize| ((i * 37 + seed * 1009) % 6007) as i32 - 3000;
        let all = (0..room * count).map(number).collect();
        Mem::new(on_device.then_some(self.stream), all, layout, count)
    }
}

/// A rank, with what it compares.
pub struct Rank<'a> {
    pub comm: &'a Communicator,
    pub twin: &'a Communicator,
    pub stream: &'a Stream,
    pub spaces: Spaces,
    pub what: String,
}

impl Rank<'_> {
    /// Makes a call on the host and where the case wants it, and compares all memory.
    pub fn alike(
        &self,
        name: &str,
        seed: usize,
        make: impl Fn(&Maker<'_>) -> Vec<Mem>,
        call: impl Fn(&Communicator, &mut [Mem]) -> osier::Result<()>,
    ) {
        let made = |spaces| {
            make(&Maker {
                stream: self.stream,
                spaces,
                own: RefCell::new(Draw((seed * 31 + self.twin.rank() * 7) as u64)),
            })
        };
        let mut right = made(Spaces::Host);
        call(self.twin, &mut right).unwrap();
        let mut found = made(self.spaces);
        call(self.comm, &mut found).unwrap();
        for (at, (found, right)) in found.iter().zip(&right).enumerate() {
            let same = found.contents() == right.contents();
            assert!(same, "{name}, buffer {at}, seed {seed}: {}", self.what);
        }
    }
}

/// Places of blocks with gaps between, in a drawn order; and elements in all.
pub fn scattered(draw: &mut Draw, counts: &[usize]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, draw.below(at + 1));
    }
    let adjacent = draw.yes(3);
    if adjacent {
        order.sort_unstable();
    }
    let (mut places, mut end) = (vec![0; counts.len()], 0);
    for block in order {
        end += if adjacent { 0 } else { draw.below(3) };
        places[block] = end;
        end += counts[block];
    }
    (places, end + draw.below(2))
}

pub fn counts(draw: &mut Draw, n: usize) -> Vec<usize> {
    let most = [1, 9, 200, 3000][draw.below(4)];
    let each = (0..n).map(|_| if draw.yes(4) { 0 } else { draw.below(most + 1) });
    each.collect()
}

/// By which plans a case runs.
pub fn plans() -> Vec<Option<(Algorithm, u32, bool)>> {
    let mut all = vec![None];
    let of = |algorithm: Algorithm, segments| Some((algorithm, segments, true));
    all.push(of(Algorithm::Spread, 1));
    all.push(of(Algorithm::Linear, 1));
    all.push(of(Algorithm::Ring, 3));
    all.push(of(Algorithm::Bruck, 1));
    all.push(of(Algorithm::Pairwise, 2));
    all
}

pub fn by_plan(comm: &Communicator, plan: &Option<(Algorithm, u32, bool)>) {
    match plan {
        None => comm.use_algorithm(None),
        Some((algorithm, segments, stays)) => {
            comm.use_algorithm_on_devices(algorithm.clone(), *segments, *stays);
        }
    }
}

/// Runs ranks with a stream each.
pub fn on_devices(networks: &[Network], n: usize, f: impl Fn(&Communicator, &Stream) + Sync) {
    let Some(context) = driver::context() else {
        return;
    };
    let _watchdog = Watchdog::start();
    for network in networks {
        ranks_on(network, n, |comm| f(&comm, &Stream::new(&context).unwrap()));
    }
}

/// The low and the high ranks of a communicator, joined.
pub fn halves(comm: &Communicator, low: usize, tag: u32) -> Communicator {
    let is_low = comm.rank() < low;
    let side = comm.split(Some(u32::from(is_low)), 0).unwrap().unwrap();
    let leader = if is_low { low } else { 0 };
    let bridge = (side.rank() == 0).then_some((comm, leader));
    side.intercomm_create(0, bridge, tag).unwrap()
}
