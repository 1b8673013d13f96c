//! An exchange between parts of buffers, on the host or on devices: the same layouts,
//! the same calls.

use std::time::Instant;

use osier::buffers::{Region, Regions};
use osier::devices::{DeviceError, DeviceSlice, DeviceView};
use osier::{Communicator, Datatype, Op, Result, View};

use crate::cli::say_once;
use crate::gpu::Gpu;

/// Which parts of one buffer go to whom, and which of another come from whom.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Parts that are sent, and their destinations.
    pub sends: Vec<(Region, usize)>,
    /// Parts that are received into, and their sources.
    pub receives: Vec<(Region, usize)>,
}

/// Seconds of one exchange, of the slowest rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// The median over the repetitions.
    pub median: f64,
    /// The shortest repetition.
    pub least: f64,
    /// The longest repetition.
    pub most: f64,
}

impl Seconds {
    /// Those of two exchanges, one behind the other.
    pub fn and(self, other: Seconds) -> Seconds {
        Seconds {
            median: self.median + other.median,
            least: self.least + other.least,
            most: self.most + other.most,
        }
    }
}

/// Where both buffers lie.
#[derive(Debug)]
pub enum Space {
    /// In the process's memory.
    Host,
    /// In the memory of a device.
    Device(Gpu),
}

impl Space {
    /// On the rank's device, or on the host.
    ///
    /// # Errors
    /// There is no device.
    pub fn of(comm: &Communicator, device: bool) -> Result<Space> {
        Ok(match device {
            true => Space::Device(Gpu::of(comm)?),
            false => Space::Host,
        })
    }

    /// What to tell the user.
    pub fn shown(&self) -> String {
        match self {
            Space::Host => "host".into(),
            Space::Device(gpu) => gpu.shown(),
        }
    }
}

impl Exchange {
    /// Exchanges as often as told, each time the same, and returns the seconds of one.
    /// Collective; a rank that has nothing to send passes no parts.
    ///
    /// # Errors
    /// Communication fails, or the device refuses.
    pub fn run<T: Datatype + Copy>(
        &self,
        comm: &Communicator,
        place: &Space,
        from: &[T],
        to: &mut [T],
        repetitions: usize,
    ) -> Result<Seconds> {
        match place {
            Space::Host => self.on_host(comm, from, to, repetitions),
            Space::Device(gpu) => self.on_device(comm, gpu, from, to, repetitions),
        }
    }

    fn on_host<T: Datatype>(
        &self,
        comm: &Communicator,
        from: &[T],
        to: &mut [T],
        repetitions: usize,
    ) -> Result<Seconds> {
        let sends = self.sends.iter();
        let sends: Vec<_> = sends
            .map(|(part, dest)| Ok((View::new(from, part.origin, &part.layout, 1)?, *dest)))
            .collect::<Result<_>>()?;
        let parts = self.receives.iter().map(|(part, _)| part.clone()).collect();
        let parts = Regions::new(vec![], parts)?;
        median(comm, repetitions, || {
            comm.scope(|s| {
                let places = s.regions(to, &parts)?;
                for (i, (_, source)) in self.receives.iter().enumerate() {
                    places.irecv(i, *source, 0)?;
                }
                for (view, dest) in &sends {
                    s.isend(view, *dest, 0)?;
                }
                Ok(())
            })
        })
    }

    fn on_device<T: Datatype + Copy>(
        &self,
        comm: &Communicator,
        gpu: &Gpu,
        from: &[T],
        to: &mut [T],
        repetitions: usize,
    ) -> Result<Seconds> {
        let (source, target) = (gpu.upload(from)?, gpu.upload(to)?);
        let views = |slice: &DeviceSlice<T>, parts: &[(Region, usize)]| {
            let parts = parts.iter();
            parts
                .map(|(part, peer)| {
                    let view = DeviceView::new(slice, part.origin, &part.layout, 1)?;
                    Ok((view.after_stream(&gpu.stream), *peer))
                })
                .collect::<std::result::Result<Vec<_>, DeviceError>>()
        };
        let sends = views(&source, &self.sends)?;
        let mut receives = views(&target, &self.receives)?;
        let seconds = median(comm, repetitions, || {
            comm.scope(|s| {
                for (view, source) in &mut receives {
                    s.irecv(view, *source, 0)?;
                }
                for (view, dest) in &sends {
                    s.isend(view, *dest, 0)?;
                }
                Ok(())
            })
        })?;
        gpu.download(&target, to)?;
        Ok(seconds)
    }

    /// Bytes that this rank sends.
    pub fn bytes(&self) -> usize {
        let sizes = self.sends.iter().map(|(part, _)| part.layout.size());
        sizes.sum()
    }
}

fn median(
    comm: &Communicator,
    repetitions: usize,
    mut once: impl FnMut() -> Result<()>,
) -> Result<Seconds> {
    let mut times = Vec::with_capacity(repetitions);
    for _ in 0..repetitions.max(1) {
        comm.barrier()?;
        let begin = Instant::now();
        once()?;
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let mine = [times[times.len() / 2], times[0], times[times.len() - 1]];
    let mut slowest = [0.0; 3];
    comm.allreduce(&mine, &mut slowest, Op::Max)?;
    let [median, least, most] = slowest;
    Ok(Seconds {
        median,
        least,
        most,
    })
}

/// Adds up over all ranks what each has verified and sent, and reports at rank 0:
/// elements that are wrong anywhere make the program fail.
///
/// # Errors
/// Communication fails.
pub fn report(
    comm: &Communicator,
    what: &str,
    place: &Space,
    (bytes, seconds): (usize, Seconds),
    wrong: usize,
) -> Result<u8> {
    let mut sums = [0u64; 2];
    comm.allreduce(&[bytes as u64, wrong as u64], &mut sums, Op::Sum)?;
    let [bytes, wrong] = sums;
    say_once(comm, || {
        let rate = 1e-9 * bytes as f64 / seconds.median;
        let ms = |seconds: f64| format!("{:.3}", 1e3 * seconds);
        println!("{what}");
        println!("buffers on   {}", place.shown());
        println!("payload      {:.3} MB from all ranks", 1e-6 * bytes as f64);
        println!(
            "time         {} ms, {rate:.3} GB/s; {} to {} ms",
            ms(seconds.median),
            ms(seconds.least),
            ms(seconds.most)
        );
        match wrong {
            0 => println!("verified     every element"),
            n => println!("verified     {n} elements are WRONG"),
        }
    });
    Ok(u8::from(wrong > 0))
}
