//! Memory without end: a byte is a function of its address, until it is written.

use super::warp::Memory;
use std::collections::HashMap;

/// Lists, and all else.
pub struct Endless<'a> {
    pub tables: &'a [u8],
    pub tables_at: u64,
    /// What was written, if it is kept.
    pub written: Option<HashMap<u64, u8>>,
    /// Bytes written.
    pub bytes: u64,
}

/// The byte of an address.
pub fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Memory for Endless<'_> {
    fn load(&mut self, at: u64, bytes: usize) -> u128 {
        let mut value = [0; 16];
        for (k, to) in value[..bytes].iter_mut().enumerate() {
            let at = at + k as u64;
            let table = at.wrapping_sub(self.tables_at) as usize;
            *to = self.tables.get(table).copied().unwrap_or_else(|| byte(at));
        }
        u128::from_le_bytes(value)
    }

    fn store(&mut self, at: u64, bytes: usize, value: u128) {
        self.bytes += bytes as u64;
        if let Some(written) = &mut self.written {
            for (k, byte) in value.to_le_bytes()[..bytes].iter().enumerate() {
                written.insert(at + k as u64, *byte);
            }
        }
    }

    fn is_payload(&self, at: u64) -> bool {
        at.wrapping_sub(self.tables_at) as usize >= self.tables.len()
    }
}
