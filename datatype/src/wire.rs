//! A layout as bytes, for another process: where its payload lies, and in which order.
//!
//! ```text
//! wire    version u8, extent i64, form
//! form    base i64, levels u8, (count u64, stride i64) each, body
//! body    0  bytes u64                                 one block
//!         1  n u32, (offset i64, bytes u64) each       a list
//!         2  n u32, offset i64 each, form              one form at listed places
//!         3  n u32, form each                          one after the other
//! ```
//!
//! What comes back touches the same bytes in the same order; of what types they are
//! does not travel.
//!
//! # Invariants
//! 1. Bytes of a stranger are an answer or `None`: a layout is built by the
//!    constructors of [`Type`], which check all sums, nesting is bounded, and no memory
//!    is taken beyond a small multiple of what was given.

use crate::form::{Body, Form};
use crate::{Basic, Layout, Type};

const VERSION: u8 = 1;
/// Forms within forms.
const DEEPEST: usize = 32;

impl Layout {
    /// The layout for another process; `None` if that takes more than `limit` bytes.
    pub fn to_wire(&self, limit: usize) -> Option<Vec<u8>> {
        let mut to = Writer {
            bytes: vec![VERSION],
            limit,
        };
        to.number(self.extent() as u64)?;
        to.form(self.form())?;
        Some(to.bytes)
    }

    /// The layout that another process has written; `None` for what
    /// [`Layout::to_wire`] never writes.
    pub fn from_wire(bytes: &[u8]) -> Option<Layout> {
        let mut from = Reader(bytes);
        if from.byte()? != VERSION {
            return None;
        }
        let extent = from.signed()?;
        let ty = from.form(0)?;
        if !from.0.is_empty() {
            return None;
        }
        Type::resized(0, extent, &ty).ok()?.commit().ok()
    }
}

struct Writer {
    bytes: Vec<u8>,
    limit: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes.extend_from_slice(bytes);
        (self.bytes.len() <= self.limit).then_some(())
    }

    fn number(&mut self, number: u64) -> Option<()> {
        self.put(&number.to_le_bytes())
    }

    fn count(&mut self, count: usize) -> Option<()> {
        self.put(&u32::try_from(count).ok()?.to_le_bytes())
    }

    fn form(&mut self, form: &Form) -> Option<()> {
        self.number(form.base as u64)?;
        self.put(&[u8::try_from(form.levels.len()).ok()?])?;
        for level in &form.levels {
            self.number(level.count as u64)?;
            self.number(level.stride as u64)?;
        }
        match &form.body {
            Body::Block => {
                self.put(&[0])?;
                self.number(form.body_bytes as u64)
            }
            Body::List(list) => {
                self.put(&[1])?;
                self.count(list.len())?;
                (0..list.len()).try_for_each(|i| {
                    let (offset, bytes) = list.block(i);
                    self.number(offset as u64)?;
                    self.number(bytes as u64)
                })
            }
            Body::Each(offsets, inner) => {
                self.put(&[2])?;
                self.count(offsets.len())?;
                (0..offsets.len()).try_for_each(|i| self.number(offsets.at(i) as u64))?;
                self.form(inner)
            }
            Body::Sequence(sequence) => {
                self.put(&[3])?;
                self.count(sequence.parts.len())?;
                sequence.parts.iter().try_for_each(|part| self.form(part))
            }
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn signed(&mut self) -> Option<isize> {
        self.number().map(|n| n as isize)
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    /// A number of things of at least so many bytes each, which must be there.
    fn count(&mut self, each_bytes: usize) -> Option<usize> {
        let (count, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        let count = u32::from_le_bytes(*count) as usize;
        (count.checked_mul(each_bytes)? <= self.0.len()).then_some(count)
    }

    fn form(&mut self, depth: usize) -> Option<Type> {
        if depth == DEEPEST {
            return None;
        }
        let base = self.signed()?;
        let mut levels = Vec::new();
        for _ in 0..self.byte()? {
            levels.push((self.size()?, self.signed()?));
        }
        let byte = Type::basic(Basic::U8);
        let mut ty = match self.byte()? {
            0 => Type::contiguous(self.size()?, &byte).ok()?,
            1 => {
                let mut blocks = Vec::new();
                for _ in 0..self.count(16)? {
                    let offset = self.signed()?;
                    blocks.push((self.size()?, offset));
                }
                Type::hindexed(&blocks, &byte).ok()?
            }
            2 => {
                let mut places = Vec::new();
                for _ in 0..self.count(8)? {
                    places.push(self.signed()?);
                }
                let inner = self.form(depth + 1)?;
                Type::hindexed_block(1, &places, &inner).ok()?
            }
            3 => {
                let mut parts = Vec::new();
                // The shortest form has 18 bytes.
                for _ in 0..self.count(18)? {
                    parts.push((1, 0, self.form(depth + 1)?));
                }
                Type::structure(&parts).ok()?
            }
            _ => return None,
        };
        for (count, stride) in levels.into_iter().rev() {
            ty = Type::hvector(count, 1, stride, &ty).ok()?;
        }
        Type::hindexed_block(1, &[base], &ty).ok()
    }
}
