//! Typemap oracle: a type as a flat list, from the definition.
//!
//! Recursion by the rules of MPI 4.1, section 5.1, element by element, bounds
//! markers included. It shares no code with the committed form, takes memory
//! and time per element, and serves tests only.

use crate::{Basic, Constructor, DarrayDimension, Distribution, Order, Type};

/// A type as the sequence of (predefined type, displacement) that defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typemap {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    kind: Kind,
    displacement: isize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data(Basic),
    LowerBound,
    UpperBound,
}

impl Typemap {
    pub(crate) fn of(ty: &Type) -> Typemap {
        let mut map = Typemap {
            entries: Vec::new(),
        };
        match ty.constructor() {
            Constructor::Basic(basic) => map.element(*basic, 0),
            Constructor::Pair(pair) => map.pair(pair.value(), pair.index()),
            Constructor::ValueIndex { value, index } => map.pair(*value, *index),
            // What type a precision means is no matter of displacements.
            Constructor::F90Integer { .. }
            | Constructor::F90Real { .. }
            | Constructor::F90Complex { .. } => {
                let (basic, _) = ty
                    .signature()
                    .exact_runs()
                    .next()
                    .unwrap_or((Basic::Byte, 0));
                map.element(basic, 0);
            }
            Constructor::Dup { old } => map = Typemap::of(old),
            Constructor::Contiguous { count, old } => {
                let old = Typemap::of(old);
                map.block(*count, 0, &old);
            }
            Constructor::Vector {
                count,
                blocklength,
                stride,
                old,
            } => {
                let old = Typemap::of(old);
                for i in 0..*count {
                    map.block(*blocklength, i as isize * stride * old.extent(), &old);
                }
            }
            Constructor::Hvector {
                count,
                blocklength,
                stride_bytes,
                old,
            } => {
                let old = Typemap::of(old);
                for i in 0..*count {
                    map.block(*blocklength, i as isize * stride_bytes, &old);
                }
            }
            Constructor::Indexed { blocks, old } => {
                let old = Typemap::of(old);
                for &(blocklength, displacement) in blocks {
                    map.block(blocklength, displacement * old.extent(), &old);
                }
            }
            Constructor::Hindexed { blocks, old } => {
                let old = Typemap::of(old);
                for &(blocklength, displacement) in blocks {
                    map.block(blocklength, displacement, &old);
                }
            }
            Constructor::IndexedBlock {
                blocklength,
                displacements,
                old,
            } => {
                let old = Typemap::of(old);
                for displacement in displacements {
                    map.block(*blocklength, displacement * old.extent(), &old);
                }
            }
            Constructor::HindexedBlock {
                blocklength,
                displacements,
                old,
            } => {
                let old = Typemap::of(old);
                for &displacement in displacements {
                    map.block(*blocklength, displacement, &old);
                }
            }
            Constructor::Subarray {
                sizes,
                subsizes,
                starts,
                order,
                old,
            } => map.subarray(sizes, subsizes, starts, *order, &Typemap::of(old)),
            Constructor::Darray {
                rank,
                dimensions,
                order,
                old,
                ..
            } => map.darray(*rank, dimensions, *order, &Typemap::of(old)),
            Constructor::Structure { fields } => {
                for (blocklength, displacement, old) in fields {
                    map.block(*blocklength, *displacement, &Typemap::of(old));
                }
            }
            Constructor::Resized { lb, extent, old } => {
                map = Typemap::of(old);
                map.entries
                    .retain(|entry| matches!(entry.kind, Kind::Data(_)));
                map.mark(*lb, lb + extent);
            }
        }
        map
    }

    /// The predefined types with their displacements, in pack order.
    pub fn iter(&self) -> impl Iterator<Item = (Basic, isize)> + '_ {
        self.entries.iter().filter_map(|entry| match entry.kind {
            Kind::Data(basic) => Some((basic, entry.displacement)),
            _ => None,
        })
    }

    /// Sum of the sizes.
    pub fn size(&self) -> usize {
        self.iter().map(|(basic, _)| basic.size()).sum()
    }

    /// Lower bound.
    pub fn lb(&self) -> isize {
        let marks = self.marks(Kind::LowerBound).min();
        marks.or(self.iter().map(|(_, at)| at).min()).unwrap_or(0)
    }

    /// Upper bound, rounded up for alignment where no marker sets it.
    pub fn ub(&self) -> isize {
        if let Some(mark) = self.marks(Kind::UpperBound).max() {
            return mark;
        }
        let Some(end) = self.data_end() else { return 0 };
        let alignment = self.iter().map(|(b, _)| b.alignment()).max().unwrap_or(1);
        let lb = self.lb();
        lb + ((end - lb) as usize).next_multiple_of(alignment) as isize
    }

    /// Upper bound minus lower bound.
    pub fn extent(&self) -> isize {
        self.ub() - self.lb()
    }

    /// Lowest byte of data.
    pub fn true_lb(&self) -> isize {
        self.iter().map(|(_, at)| at).min().unwrap_or(0)
    }

    /// Bytes between the ends of the data.
    pub fn true_extent(&self) -> isize {
        self.data_end().map_or(0, |end| end - self.true_lb())
    }

    /// Displacement of each payload byte of `count` instances, in pack order.
    pub fn bytes(&self, count: usize) -> Vec<isize> {
        let extent = self.extent();
        let mut bytes = Vec::with_capacity(count * self.size());
        for instance in 0..count as isize {
            for (basic, at) in self.iter() {
                bytes.extend((0..basic.size() as isize).map(|byte| instance * extent + at + byte));
            }
        }
        bytes
    }

    /// Maximal runs (offset, length) of `count` instances, in pack order.
    pub fn blocks(&self, count: usize) -> Vec<(isize, usize)> {
        let mut blocks: Vec<(isize, usize)> = Vec::new();
        for at in self.bytes(count) {
            match blocks.last_mut() {
                Some((start, length)) if *start + *length as isize == at => *length += 1,
                _ => blocks.push((at, 1)),
            }
        }
        blocks
    }

    fn data_end(&self) -> Option<isize> {
        self.iter().map(|(b, at)| at + b.size() as isize).max()
    }

    fn marks(&self, kind: Kind) -> impl Iterator<Item = isize> + '_ {
        self.entries
            .iter()
            .filter(move |entry| entry.kind == kind)
            .map(|entry| entry.displacement)
    }

    fn mark(&mut self, lb: isize, ub: isize) {
        self.entries.push(Entry {
            kind: Kind::LowerBound,
            displacement: lb,
        });
        self.entries.push(Entry {
            kind: Kind::UpperBound,
            displacement: ub,
        });
    }

    /// Appends `blocklength` copies of `old`, the first at `displacement`.
    fn block(&mut self, blocklength: usize, displacement: isize, old: &Typemap) {
        if old.entries.is_empty() {
            return;
        }
        let extent = old.extent();
        for element in 0..blocklength as isize {
            self.entries.extend(old.entries.iter().map(|entry| Entry {
                kind: entry.kind,
                displacement: displacement + element * extent + entry.displacement,
            }));
        }
    }

    fn subarray(
        &mut self,
        sizes: &[usize],
        subsizes: &[usize],
        starts: &[usize],
        order: Order,
        old: &Typemap,
    ) {
        // Walks the box with an odometer, the slowest dimension first.
        let n = sizes.len();
        let slow_to_fast: Vec<usize> = match order {
            Order::C => (0..n).collect(),
            Order::Fortran => (0..n).rev().collect(),
        };
        let mut index = vec![0; n];
        loop {
            let mut element = 0;
            for &d in &slow_to_fast {
                element = element * sizes[d] + starts[d] + index[d];
            }
            self.block(1, element as isize * old.extent(), old);
            let mut done = true;
            for &d in slow_to_fast.iter().rev() {
                index[d] += 1;
                if index[d] < subsizes[d] {
                    done = false;
                    break;
                }
                index[d] = 0;
            }
            if done {
                break;
            }
        }
        self.entries
            .retain(|entry| matches!(entry.kind, Kind::Data(_)));
        let elements: usize = sizes.iter().product();
        self.mark(0, elements as isize * old.extent());
    }

    /// Element by element: those of the whole array that belong to the rank.
    fn darray(&mut self, rank: usize, dims: &[DarrayDimension], order: Order, old: &Typemap) {
        let mut place = vec![0; dims.len()];
        let mut rest = rank;
        for d in (0..dims.len()).rev() {
            place[d] = rest % dims[d].processes;
            rest /= dims[d].processes;
        }
        let owner = |d: usize, index: usize| {
            let DarrayDimension {
                size,
                distribution,
                argument,
                processes,
            } = dims[d];
            match distribution {
                Distribution::None => 0,
                Distribution::Block => index / argument.unwrap_or(size.div_ceil(processes)),
                Distribution::Cyclic => index / argument.unwrap_or(1) % processes,
            }
        };
        let elements: usize = dims.iter().map(|dim| dim.size).product();
        for element in 0..elements {
            let mut rest = element;
            let mut mine = true;
            let mut peel = |d: usize| {
                mine &= owner(d, rest % dims[d].size) == place[d];
                rest /= dims[d].size;
            };
            match order {
                Order::C => (0..dims.len()).rev().for_each(&mut peel),
                Order::Fortran => (0..dims.len()).for_each(&mut peel),
            }
            if mine {
                self.block(1, element as isize * old.extent(), old);
            }
        }
        self.entries
            .retain(|entry| matches!(entry.kind, Kind::Data(_)));
        self.mark(0, elements as isize * old.extent());
    }

    fn pair(&mut self, value: Basic, index: Basic) {
        self.element(value, 0);
        let mut at = value.size();
        while !at.is_multiple_of(index.alignment()) {
            at += 1;
        }
        self.element(index, at as isize);
    }

    fn element(&mut self, basic: Basic, displacement: isize) {
        self.entries.push(Entry {
            kind: Kind::Data(basic),
            displacement,
        });
    }
}
