//! Which devices the machine has, and which of them this process sees.
//!
//! Inside the driver a device has its number in the machine. Callers count those that
//! `CUDA_VISIBLE_DEVICES` leaves them, in its order. Of devices in slices (MIG) a process
//! sees one slice, as NVIDIA documents.
//!
//! # Sources
//! CUDA C++ Programming Guide, environment variables; NVIDIA Multi-Instance GPU User
//! Guide, device enumeration and limitations.

use crate::abi::Uuid;

/// Devices of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// GPUs.
    pub gpus: usize,
    /// Slices of each; 0: none is in slices.
    pub slices: usize,
    /// What this process sees, by its own numbers.
    pub visible: Vec<usize>,
}

impl Machine {
    /// With what a variable such as `1,0`, `GPU-6f73` or `MIG-6f73` leaves visible; `None`:
    /// all.
    pub fn of(gpus: usize, slices: usize, visible: Option<&str>) -> Machine {
        let mut machine = Machine {
            gpus,
            slices,
            visible: Vec::new(),
        };
        let all = 0..machine.devices();
        machine.visible = match visible {
            None => all.collect(),
            // The list ends before the first that makes no sense.
            Some(list) => (list.split(',').map(str::trim))
                .map_while(|item| machine.find(item))
                .collect(),
        };
        if slices > 0 {
            machine.visible.truncate(1);
        }
        machine
    }

    /// All devices; each slice is one.
    pub fn devices(&self) -> usize {
        self.gpus * self.slices.max(1)
    }

    /// The GPU of a device.
    pub fn gpu(&self, device: usize) -> usize {
        device / self.slices.max(1)
    }

    fn find(&self, item: &str) -> Option<usize> {
        let all = 0..self.devices();
        if let Ok(number) = item.parse() {
            return Some(number).filter(|number| all.contains(number));
        }
        let item = item.to_ascii_lowercase();
        let mut named = all.filter(|device| {
            let name = self.name(*device).to_ascii_lowercase();
            item.len() > 4 && name.starts_with(&item)
        });
        let found = named.next()?;
        named.next().is_none().then_some(found)
    }

    /// What names a device in all processes: a GPU, or a slice of one.
    pub fn uuid(&self, device: usize) -> Uuid {
        let mut bytes = *b"osier-emulated\0\0";
        (bytes[14], bytes[15]) = match self.slices {
            0 => (0, device as u8),
            n => (1 + (device % n) as u8, (device / n) as u8),
        };
        Uuid(bytes)
    }

    /// What names the GPU of a device.
    pub fn gpu_uuid(&self, device: usize) -> Uuid {
        let mut bytes = self.uuid(device).0;
        bytes[14] = 0;
        Uuid(bytes)
    }

    /// The same as text.
    fn name(&self, device: usize) -> String {
        let kind = if self.slices > 0 { "MIG" } else { "GPU" };
        let mut text = format!("{kind}-");
        for (at, byte) in self.uuid(device).0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text += &format!("{byte:02x}");
        }
        text
    }

    /// The caller's number of a device; none of one that is hidden.
    pub fn ordinal(&self, device: usize) -> Option<usize> {
        self.visible.iter().position(|seen| *seen == device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_counted_in_the_order_of_the_list() {
        let seen = |list| Machine::of(3, 0, list).visible;
        assert_eq!(seen(None), [0, 1, 2]);
        assert_eq!(seen(Some("2,0")), [2, 0]);
        assert_eq!(seen(Some("1,7,0")), [1]);
        assert_eq!(seen(Some("")), [0usize; 0]);
        let name = Machine::of(3, 0, None).name(1);
        assert_eq!(name.len(), 40, "{name}");
        assert_eq!(seen(Some(&name)), [1]);
        // The start of a name may be that of several.
        assert_eq!(seen(Some(&name[..10])), [0usize; 0]);
        assert_eq!(Machine::of(3, 0, Some("2,0")).ordinal(0), Some(1));
        assert_eq!(Machine::of(3, 0, Some("2,0")).ordinal(1), None);
    }

    #[test]
    fn one_slice_of_a_gpu_is_visible() {
        let machine = Machine::of(2, 2, None);
        assert_eq!((machine.devices(), &machine.visible[..]), (4, &[0][..]));
        let last = machine.name(3);
        assert!(last.starts_with("MIG-"), "{last}");
        let machine = Machine::of(2, 2, Some(&last));
        assert_eq!(machine.visible, [3]);
        assert_eq!((machine.gpu(3), machine.gpu(1)), (1, 0));
        assert_ne!(machine.uuid(2), machine.uuid(3));
        assert_eq!(machine.gpu_uuid(2), machine.gpu_uuid(3));
    }
}
