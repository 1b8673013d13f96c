//! One entry of the corpus: tree, count, and the facts promised for it.

use crate::generator::List;
use osier_datatype::{Basic, Order, Type, TypeError};
use serde::Deserialize;

/// A layout that programs exchange.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    /// Unique.
    pub name: String,
    /// Kind of program: `lattice`, `fft` and so on.
    pub family: String,
    /// `strided`, `indexed`, `struct` or `contiguous`, by the constructors.
    pub kind: String,
    /// Instances in the message.
    pub count: usize,
    #[serde(rename = "type")]
    tree: Tree,
    /// What the layout has to be.
    #[serde(flatten)]
    pub facts: Facts,
}

/// What is known about a layout, for all instances unless it says otherwise.
#[derive(Debug, Clone, Deserialize)]
pub struct Facts {
    /// Payload.
    pub packed_bytes: usize,
    /// Extent of one instance.
    pub extent_bytes: isize,
    /// Lower bound of one instance.
    pub lb_bytes: isize,
    /// Lowest byte touched.
    pub true_lb_bytes: isize,
    /// From the first to the last byte touched.
    pub span_bytes: usize,
    /// Maximal runs in pack order.
    pub blocks: usize,
    /// Shortest and longest of them.
    pub block_bytes: (usize, usize),
    /// As `f64*3 i32*1`, groups as `(f64*3 i32*1)^10`.
    pub signature: String,
    /// Entries with one name here have one signature.
    pub pair: Option<String>,
    /// The entry whose blocks these are, through other constructors.
    pub same_layout_as: Option<String>,
    /// Touches a byte twice: for sending only.
    #[serde(default)]
    pub overlaps: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Tree {
    Basic {
        name: String,
    },
    Contiguous {
        count: usize,
        of: Box<Tree>,
    },
    Vector {
        count: usize,
        blocklength: usize,
        stride: isize,
        of: Box<Tree>,
    },
    Hvector {
        count: usize,
        blocklength: usize,
        stride_bytes: isize,
        of: Box<Tree>,
    },
    Indexed {
        blocklengths: List,
        displacements: List,
        of: Box<Tree>,
    },
    Hindexed {
        blocklengths: List,
        displacements_bytes: List,
        of: Box<Tree>,
    },
    IndexedBlock {
        blocklength: usize,
        displacements: List,
        of: Box<Tree>,
    },
    Struct {
        blocklengths: List,
        displacements_bytes: List,
        types: Vec<Tree>,
    },
    Subarray {
        sizes: Vec<usize>,
        subsizes: Vec<usize>,
        starts: Vec<usize>,
        order: String,
        of: Box<Tree>,
    },
    Resized {
        lb: isize,
        extent: isize,
        of: Box<Tree>,
    },
}

/// All entries.
///
/// # Errors
/// Says what is wrong with the data.
pub fn entries() -> Result<Vec<Entry>, String> {
    serde_json::from_str(include_str!("../data/corpus.json")).map_err(|e| format!("corpus: {e}"))
}

impl Entry {
    /// The type tree; long lists are made now.
    ///
    /// # Errors
    /// Names the entry and what is wrong with it.
    pub fn datatype(&self) -> Result<Type, String> {
        self.tree
            .datatype()
            .map_err(|e| format!("corpus entry {}: {e}", self.name))
    }
}

impl Facts {
    /// A dense type with the promised signature.
    ///
    /// # Errors
    /// Says what cannot be read.
    pub fn dense(&self) -> Result<Type, String> {
        let (runs, groups) = match self.signature.strip_prefix('(') {
            Some(rest) => {
                let (runs, groups) = rest.split_once(")^").ok_or("a group without its number")?;
                (runs, number(groups)?)
            }
            None => (self.signature.as_str(), 1),
        };
        let mut fields = Vec::new();
        let mut at = 0;
        for run in runs.split_whitespace() {
            let (name, n) = run.split_once('*').ok_or("a run without its number")?;
            let (basic, n) = (basic(name)?, number(n)?);
            fields.push((n, at, Type::basic(basic)));
            at += (n * basic.size()).cast_signed();
        }
        Type::structure(&fields)
            .and_then(|one| Type::resized(0, at, &one))
            .and_then(|one| Type::contiguous(groups, &one))
            .map_err(|e| e.to_string())
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|e| format!("{text:?}: {e}"))
}

/// The corpus counts the bits of a complex number, signatures those of a part.
fn basic(name: &str) -> Result<Basic, String> {
    let name = match name {
        "c128" => "c64",
        "c64" => "c32",
        other => other,
    };
    Basic::ALL
        .iter()
        .copied()
        .find(|basic| basic.name() == name)
        .ok_or_else(|| format!("unknown predefined type {name:?}"))
}

fn signed(list: &List) -> Result<Vec<isize>, String> {
    Ok(list.numbers()?.into_iter().map(|n| n as isize).collect())
}

fn blocks(lengths: &List, displacements: &List) -> Result<Vec<(usize, isize)>, String> {
    let (lengths, at) = (lengths.numbers()?, signed(displacements)?);
    if lengths.len() != at.len() {
        return Err(format!("{} lengths, {} places", lengths.len(), at.len()));
    }
    let count = |n: i64| usize::try_from(n).map_err(|_| format!("a block of {n} elements"));
    lengths
        .into_iter()
        .zip(at)
        .map(|(n, at)| Ok((count(n)?, at)))
        .collect()
}

impl Tree {
    fn datatype(&self) -> Result<Type, String> {
        let ty: Result<Type, TypeError> = match self {
            Tree::Basic { name } => Ok(Type::basic(basic(name)?)),
            Tree::Contiguous { count, of } => Type::contiguous(*count, &of.datatype()?),
            Tree::Vector {
                count,
                blocklength,
                stride,
                of,
            } => Type::vector(*count, *blocklength, *stride, &of.datatype()?),
            Tree::Hvector {
                count,
                blocklength,
                stride_bytes,
                of,
            } => Type::hvector(*count, *blocklength, *stride_bytes, &of.datatype()?),
            Tree::Indexed {
                blocklengths,
                displacements,
                of,
            } => Type::indexed(&blocks(blocklengths, displacements)?, &of.datatype()?),
            Tree::Hindexed {
                blocklengths,
                displacements_bytes,
                of,
            } => Type::hindexed(&blocks(blocklengths, displacements_bytes)?, &of.datatype()?),
            Tree::IndexedBlock {
                blocklength,
                displacements,
                of,
            } => Type::indexed_block(*blocklength, &signed(displacements)?, &of.datatype()?),
            Tree::Struct {
                blocklengths,
                displacements_bytes,
                types,
            } => {
                let fields: Vec<_> = blocks(blocklengths, displacements_bytes)?
                    .into_iter()
                    .zip(types)
                    .map(|((n, at), ty)| Ok((n, at, ty.datatype()?)))
                    .collect::<Result<_, String>>()?;
                Type::structure(&fields)
            }
            Tree::Subarray {
                sizes,
                subsizes,
                starts,
                order,
                of,
            } => {
                let order = match order.as_str() {
                    "C" => Order::C,
                    "Fortran" | "F" => Order::Fortran,
                    other => return Err(format!("unknown order {other:?}")),
                };
                Type::subarray(sizes, subsizes, starts, order, &of.datatype()?)
            }
            Tree::Resized { lb, extent, of } => Type::resized(*lb, *extent, &of.datatype()?),
        };
        ty.map_err(|e| e.to_string())
    }
}
