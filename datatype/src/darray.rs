//! A process's part of an array that is distributed over a grid of processes.
//!
//! Every dimension is dealt out on its own: whole, in one block per process, or
//! in blocks dealt like cards. The part is what falls to this process in every
//! dimension; its elements keep the order of the array. The process grid is in
//! C order, whichever order the array has.
//!
//! # Sources
//! MPI 5.0, section 5.1.4 (distributed array datatype constructor).

use crate::{Constructor, Order, Type, TypeError};

const NAME: &str = "darray";

/// How one dimension of an array is dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Not at all: one process has the whole dimension.
    None,
    /// One block per process.
    Block,
    /// Blocks dealt to the processes in turn.
    Cyclic,
}

/// One dimension of a distributed array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DarrayDimension {
    /// Elements of the whole array.
    pub size: usize,
    /// How they are dealt out.
    pub distribution: Distribution,
    /// Elements of a block; by default equal shares, or 1 if cyclic
    /// (`MPI_DISTRIBUTE_DFLT_DARG`). Without distribution it means nothing.
    pub argument: Option<usize>,
    /// Processes along this dimension.
    pub processes: usize,
}

impl DarrayDimension {
    /// A dimension that is not distributed.
    pub const fn whole(size: usize) -> Self {
        DarrayDimension {
            size,
            distribution: Distribution::None,
            argument: None,
            processes: 1,
        }
    }

    /// Equal shares, but for the last.
    pub const fn block(size: usize, processes: usize) -> Self {
        DarrayDimension {
            size,
            distribution: Distribution::Block,
            argument: None,
            processes,
        }
    }

    /// Blocks of `block` elements dealt in turn.
    pub const fn cyclic(size: usize, block: usize, processes: usize) -> Self {
        DarrayDimension {
            size,
            distribution: Distribution::Cyclic,
            argument: Some(block),
            processes,
        }
    }

    /// What falls to the process at `coordinate`: so many blocks of elements,
    /// the first from `start` on, `step` apart, then one of `rest` elements.
    fn share(&self, coordinate: usize) -> Share {
        let size = self.size;
        let one = |start, block| Share {
            start,
            blocks: usize::from(block > 0),
            block,
            step: 0,
            rest_start: 0,
            rest: 0,
        };
        match self.distribution {
            Distribution::None => one(0, size),
            Distribution::Block => {
                let block = self.argument.unwrap_or(size.div_ceil(self.processes));
                let start = coordinate.saturating_mul(block).min(size);
                one(start, block.min(size - start))
            }
            Distribution::Cyclic => {
                let block = self.argument.unwrap_or(1);
                let whole = size / block;
                let blocks = whole.saturating_sub(coordinate).div_ceil(self.processes);
                let has_rest = whole % self.processes == coordinate;
                Share {
                    start: coordinate.saturating_mul(block).min(size),
                    blocks,
                    // A block may be longer than any array if there is none.
                    block: block.min(size),
                    step: block.saturating_mul(self.processes).min(size),
                    rest_start: whole * block,
                    rest: if has_rest { size % block } else { 0 },
                }
            }
        }
    }
}

struct Share {
    start: usize,
    blocks: usize,
    block: usize,
    step: usize,
    rest_start: usize,
    rest: usize,
}

impl Type {
    /// The part of rank `rank` of `ranks` in an array that is distributed over
    /// a grid of processes. Its extent is that of the whole array.
    ///
    /// # Errors
    /// Sizes that make no sense, or too large ones.
    ///
    /// ```
    /// use osier_datatype::{Basic, DarrayDimension, Order, Type};
    ///
    /// // 10 elements dealt in pairs to 3 processes: the second has 2, 3, 8, 9.
    /// let pairs = DarrayDimension::cyclic(10, 2, 3);
    /// let ty = Type::darray(3, 1, &[pairs], Order::C, &Type::basic(Basic::U8))?;
    /// let blocks: Vec<_> = ty.commit()?.blocks(1).collect();
    /// assert_eq!(blocks, [(2, 2), (8, 2)]);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    pub fn darray(
        ranks: usize,
        rank: usize,
        dimensions: &[DarrayDimension],
        order: Order,
        old: &Type,
    ) -> Result<Type, TypeError> {
        check(ranks, rank, dimensions)?;
        let overflow = |quantity| TypeError::Overflow {
            constructor: NAME,
            quantity,
        };
        let coordinates = coordinates(rank, dimensions);
        let mut stride = old.extent();
        let mut first = 0isize;
        let mut part = old.clone();
        for (d, &coordinate) in fastest_first(order, &coordinates) {
            let dimension = &dimensions[d];
            let next = isize::try_from(dimension.size)
                .ok()
                .and_then(|size| size.checked_mul(stride))
                .ok_or(overflow("extent"))?;
            // No index exceeds the size, so no displacement exceeds `next`.
            let at = |elements: usize| elements as isize * stride;
            let Share {
                start,
                blocks,
                block,
                step,
                rest_start,
                rest,
            } = dimension.share(coordinate);
            let line = |elements, old: &Type| Type::hvector(elements, 1, stride, old);
            part = if rest == 0 {
                first = first.checked_add(at(start)).ok_or(overflow("extent"))?;
                Type::hvector(blocks, 1, at(step), &line(block, &part)?)
            } else {
                let whole = Type::hvector(blocks, 1, at(step), &line(block, &part)?)?;
                let rest = line(rest, &part)?;
                Type::structure(&[(1, at(start), whole), (1, at(rest_start), rest)])
            }
            .map_err(renamed)?;
            stride = next;
        }
        let part = Type::hindexed(&[(1, first)], &part).map_err(renamed)?;
        let part = Type::resized(0, stride, &part).map_err(renamed)?;
        let constructor = Constructor::Darray {
            ranks,
            rank,
            dimensions: dimensions.into(),
            order,
            old: old.clone(),
        };
        Type::meaning(NAME, part, constructor)
    }
}

/// Dimensions with their index, the fastest varying one first.
fn fastest_first<T>(order: Order, values: &[T]) -> Vec<(usize, &T)> {
    let mut dimensions: Vec<_> = values.iter().enumerate().collect();
    if order == Order::C {
        dimensions.reverse();
    }
    dimensions
}

/// Place of a rank in the process grid, which is in C order.
fn coordinates(mut rank: usize, dimensions: &[DarrayDimension]) -> Vec<usize> {
    let mut coordinates = vec![0; dimensions.len()];
    for (coordinate, dimension) in coordinates.iter_mut().zip(dimensions).rev() {
        *coordinate = rank % dimension.processes;
        rank /= dimension.processes;
    }
    coordinates
}

fn check(ranks: usize, rank: usize, dimensions: &[DarrayDimension]) -> Result<(), TypeError> {
    let refuse = |argument, value: String, hint: String| {
        Err(TypeError::Argument {
            operation: "build darray type",
            argument,
            value,
            hint,
        })
    };
    if dimensions.is_empty() {
        return refuse(
            "number of dimensions",
            "0".to_owned(),
            "at least one".to_owned(),
        );
    }
    if rank >= ranks {
        return refuse(
            "rank",
            rank.to_string(),
            format!("below the number of ranks, {ranks}"),
        );
    }
    let mut grid = Some(1usize);
    for (d, dimension) in dimensions.iter().enumerate() {
        let DarrayDimension {
            size,
            distribution,
            argument,
            processes,
        } = *dimension;
        let of = |what: &str, value: usize| format!("{value} in dimension {d}, {what}");
        if size == 0 {
            return refuse(
                "size",
                format!("0 in dimension {d}"),
                "at least 1".to_owned(),
            );
        }
        if processes == 0 {
            let value = format!("0 in dimension {d}");
            return refuse("processes", value, "at least 1".to_owned());
        }
        grid = grid.and_then(|grid| grid.checked_mul(processes));
        match (distribution, argument) {
            (Distribution::None, _) if processes > 1 => {
                let value = of("which is not distributed", processes);
                return refuse("processes", value, "1 there".to_owned());
            }
            (Distribution::Block | Distribution::Cyclic, Some(0)) => {
                let value = format!("0 in dimension {d}");
                return refuse("distribution argument", value, "at least 1".to_owned());
            }
            (Distribution::Block, Some(block))
                if block.checked_mul(processes).is_some_and(|all| all < size) =>
            {
                let value = of("distributed by blocks", block);
                let hint = format!("{processes} blocks have to hold {size} elements");
                return refuse("distribution argument", value, hint);
            }
            _ => {}
        }
    }
    if grid != Some(ranks) {
        return refuse(
            "number of ranks",
            ranks.to_string(),
            "the product of the processes of all dimensions".to_owned(),
        );
    }
    Ok(())
}

/// The user asked for a darray, not for what it is made of.
fn renamed(error: TypeError) -> TypeError {
    match error {
        TypeError::Overflow { quantity, .. } => TypeError::Overflow {
            constructor: NAME,
            quantity,
        },
        TypeError::Depth { limit, .. } => TypeError::Depth {
            constructor: NAME,
            limit,
        },
        other => other,
    }
}
