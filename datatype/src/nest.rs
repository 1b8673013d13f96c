//! Borrowed view of the canonical form, for engines that plan copies of their own (on devices).

use crate::Layout;
use crate::form::{Body, Form, Level};
use crate::list::{Lengths, List, Offsets};

/// Nested loops over a core, borrowed from a [`Layout`].
///
/// ```
/// use osier_datatype::{Basic, Core, Type};
///
/// let layout = Type::vector(3, 1, 2, &Type::basic(Basic::F64))?.commit()?;
/// let nest = layout.nest();
/// assert_eq!((nest.base(), nest.levels()[0].stride), (0, 16));
/// assert!(matches!(nest.core(), Core::Block));
/// # Ok::<(), osier_datatype::TypeError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Nest<'a>(&'a Form);

/// What the loops of a [`Nest`] repeat.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Core<'a> {
    /// [`Nest::core_bytes`] bytes in one run.
    Block,
    /// Listed runs.
    List(Runs<'a>),
    /// One nest at each of the places.
    Each(Places<'a>, Nest<'a>),
    /// Unlike nests, one after the other; see [`Nest::for_each_core_run`].
    Sequence,
}

/// Offsets, relative to the base.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a>(&'a Offsets);

/// Runs, relative to the base.
#[derive(Debug, Clone, Copy)]
pub struct Runs<'a>(&'a List);

impl Layout {
    /// The canonical form of one instance.
    pub fn nest(&self) -> Nest<'_> {
        Nest(self.form())
    }
}

impl<'a> Nest<'a> {
    /// Added to all offsets inside.
    pub fn base(&self) -> isize {
        self.0.base
    }

    /// The loops, outermost first.
    pub fn levels(&self) -> &'a [Level] {
        &self.0.levels
    }

    /// Packed bytes of all.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Packed bytes of the core.
    pub fn core_bytes(&self) -> usize {
        self.0.body_bytes
    }

    /// Runs of the core, touching ones apart; saturating.
    pub fn core_runs(&self) -> usize {
        self.0.body_runs()
    }

    /// What the loops repeat.
    pub fn core(&self) -> Core<'a> {
        match &self.0.body {
            Body::Block => Core::Block,
            Body::List(list) => Core::List(Runs(list)),
            Body::Each(offsets, inner) => Core::Each(Places(offsets), Nest(inner)),
            Body::Sequence(_) => Core::Sequence,
        }
    }

    /// The nests of a [`Core::Sequence`], each with a base of its own behind this one's; of
    /// any other core none.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Nest<'a>> + use<'a> {
        let parts: &'a [Form] = match &self.0.body {
            Body::Sequence(sequence) => &sequence.parts,
            _ => &[],
        };
        parts.iter().map(Nest)
    }

    /// Calls `each` with offset and length of all runs of one core, in pack
    /// order, the base included; touching runs may come apart.
    pub fn for_each_core_run(&self, mut each: impl FnMut(isize, usize)) {
        self.0.for_each_body_run(&mut each);
    }

    /// Rows of the core, as [`Nest::for_each_core_row`] tells them; saturating.
    pub fn core_rows(&self) -> usize {
        self.0.body_rows()
    }

    /// Calls `each` with the rows of one core, in pack order, the base included: offset and
    /// length of a row's first block in bytes, the distance of its blocks in bytes, and their
    /// number. A single run is a row of one block, at any distance.
    ///
    /// ```
    /// use osier_datatype::{Basic, Type};
    ///
    /// // The upper triangle of a matrix of 300 x 300, in storage by columns, row by row.
    /// let rows = (0..300).map(|row| {
    ///     let blocks = Type::vector(300 - row, 1, 300, &Type::basic(Basic::F64))?;
    ///     Ok((1, (row * 301 * 8).cast_signed(), blocks))
    /// });
    /// let rows = rows.collect::<Result<Vec<_>, osier_datatype::TypeError>>()?;
    /// let layout = Type::structure(&rows)?.commit()?;
    /// let (nest, mut found) = (layout.nest(), Vec::new());
    /// nest.for_each_core_row(|offset, length, distance, blocks| {
    ///     found.push((offset, length, distance, blocks));
    /// });
    /// assert_eq!((nest.core_runs(), nest.core_rows()), (45_150, 300));
    /// assert_eq!(found[1], (301 * 8, 8, 300 * 8, 299));
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    pub fn for_each_core_row(&self, mut each: impl FnMut(isize, usize, isize, usize)) {
        self.0.for_each_body_row(&mut each);
    }
}

impl Places<'_> {
    /// Number of places, at least two.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One of them.
    pub fn at(&self, index: usize) -> isize {
        self.0.at(index)
    }
}

impl Runs<'_> {
    /// Number of runs, at least two.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Offset and length of one of them.
    pub fn at(&self, index: usize) -> (isize, usize) {
        self.0.block(index)
    }

    /// The length, if all have the same.
    pub fn equal_length(&self) -> Option<usize> {
        match self.0.lengths {
            Lengths::Equal(length) => Some(length),
            _ => None,
        }
    }
}
