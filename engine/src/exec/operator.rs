//! Operators of reductions: elements, and permitted orders.
//!
//! # Invariants
//! 1. A [`Fit`] goes to the operator that made it, with operands of the call that it was
//!    made for: runs and calls keep operator and fit together. So `unit` is the packed
//!    size of the operator's elements, or 1 where these have no bytes, and then there are
//!    none.
//! 2. Any bytes are a value of a [`Datatype`], whose layout names all bytes that are no
//!    padding; a dense one has no padding, and its packed form is its memory (the
//!    contract of the trait).

use crate::error::{Error, ErrorKind, Result};
use crate::view::RawView;
use osier_collectives::Association;
use osier_datatype::{Basic, BasicKind, Datatype, Element, Layout, Operator, Type};
use osier_kernels::UserKernel;
use std::marker::PhantomData;

/// What an operator combines in the data of one call.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    element: Option<Element>,
    /// Packed bytes of one element, at least 1.
    pub unit: usize,
    pub association: Association,
    /// Whether operands may change places, bit for bit.
    pub commutes: bool,
}

impl Fit {
    /// The layout of an element without gaps, for elements of data of this layout.
    pub fn layout(&self, data: &Layout) -> Option<Layout> {
        let dense =
            |layout: &Layout| layout.size() == self.unit && layout.contiguous_at(2) == Some(0);
        match self.element {
            _ if dense(data) => Some(data.clone()),
            Some(Element::Basic(basic)) => Type::basic(basic).commit().ok().filter(dense),
            _ => None,
        }
    }

    /// What an operator combines that is defined for an element.
    #[inline]
    pub fn of_element(operator: Operator, element: Element) -> Fit {
        let association = association(operator, element);
        Fit {
            element: Some(element),
            unit: element.size(),
            association,
            // Which of two NaNs a sum of floating-point numbers keeps depends on the order.
            commutes: association == Association::Any,
        }
    }

    /// Of the library's own operators.
    pub fn of_unit(unit: usize, association: Association) -> Fit {
        Fit {
            element: None,
            unit,
            association,
            commutes: false,
        }
    }
}

/// An operator with what it combines in one call.
#[derive(Clone, Copy)]
pub struct Fitted<'a> {
    pub operator: &'a dyn Reduction,
    pub fit: &'a Fit,
    /// Which predefined one it is.
    pub known: Option<(Operator, Element)>,
}

impl<'a> Fitted<'a> {
    /// An operator, with the fit that it has made.
    #[inline]
    pub fn new(operator: &'a dyn Reduction, fit: &'a Fit) -> Self {
        Self {
            operator,
            fit,
            known: operator.predefined(fit),
        }
    }
}

/// An operator of reductions: a predefined [`Operator`], or one made of a
/// [`function`].
///
/// Operands are combined in rank order, and what is not known to be exact always by
/// the same tree: equal inputs on equally many ranks give equal bits.
pub trait Reduction: Send + Sync {
    /// What it combines in a message.
    #[doc(hidden)]
    fn fit(&self, data: &Data<'_>) -> Result<Fit>;

    /// `left[i] = left[i] op right[i]`, of packed elements.
    #[doc(hidden)]
    fn combine(&self, fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()>;

    /// Which predefined operator on what it is.
    #[doc(hidden)]
    fn predefined(&self, _fit: &Fit) -> Option<(Operator, Element)> {
        None
    }

    /// The same for data of one predefined type, of which the call may be refused.
    #[doc(hidden)]
    fn predefined_on(&self, _element: Basic) -> Option<(Operator, Element)> {
        None
    }

    /// The kernel that does the same on a device.
    #[doc(hidden)]
    fn kernel(&self) -> Option<&UserKernel> {
        None
    }

    /// Whether `combine` runs code that is not the library's, and must therefore hold none
    /// of its locks.
    #[doc(hidden)]
    fn is_foreign(&self) -> bool {
        true
    }
}

/// The data of a reduction, as an operator sees it.
#[derive(Debug)]
pub struct Data<'a>(pub &'a RawView);

impl<R: Reduction + ?Sized> Reduction for &R {
    #[inline]
    fn fit(&self, data: &Data<'_>) -> Result<Fit> {
        (**self).fit(data)
    }

    fn combine(&self, fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
        (**self).combine(fit, left, right)
    }

    #[inline]
    fn predefined(&self, fit: &Fit) -> Option<(Operator, Element)> {
        (**self).predefined(fit)
    }

    #[inline]
    fn predefined_on(&self, element: Basic) -> Option<(Operator, Element)> {
        (**self).predefined_on(element)
    }

    fn kernel(&self) -> Option<&UserKernel> {
        (**self).kernel()
    }

    fn is_foreign(&self) -> bool {
        (**self).is_foreign()
    }
}

/// How exact an operator is on an element.
#[inline]
fn association(operator: Operator, element: Element) -> Association {
    let exact = match element {
        Element::Basic(basic) => !matches!(basic.kind(), BasicKind::Float | BasicKind::Complex),
        Element::Pair { value, index } => [value, index]
            .iter()
            .all(|basic| basic.kind() != BasicKind::Float),
    };
    match operator {
        _ if exact => Association::Any,
        // Which of two zeros stays, and where a NaN is lost, depends on the order.
        Operator::Min | Operator::Max | Operator::MinLoc | Operator::MaxLoc => Association::Ordered,
        _ => Association::Balanced,
    }
}

/// Operators that are known only at run time, and shared by calls in flight.
impl Reduction for std::sync::Arc<dyn Reduction> {
    fn fit(&self, data: &Data<'_>) -> Result<Fit> {
        (**self).fit(data)
    }

    fn combine(&self, fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
        (**self).combine(fit, left, right)
    }

    #[inline]
    fn predefined(&self, fit: &Fit) -> Option<(Operator, Element)> {
        (**self).predefined(fit)
    }

    #[inline]
    fn predefined_on(&self, element: Basic) -> Option<(Operator, Element)> {
        (**self).predefined_on(element)
    }

    fn kernel(&self) -> Option<&UserKernel> {
        (**self).kernel()
    }

    fn is_foreign(&self) -> bool {
        (**self).is_foreign()
    }
}

/// What an operator combines in data that are not all of one predefined type.
fn fit_of_any(operator: Operator, data: &Data<'_>) -> Result<Fit> {
    let pairs = matches!(operator, Operator::MinLoc | Operator::MaxLoc);
    let element = match data.0.element() {
        Some(basic) if !pairs => Some(Element::Basic(basic)),
        _ => match data.0.instance().or_else(|| data.0.signature()) {
            Some(signature) if signature.elements() > 0 => {
                let whole = || operator.element_of(&data.0.signature()?);
                Some(operator.element_of(&signature).or_else(whole).ok_or_else(|| {
                    Error::new(
                        ErrorKind::Datatype,
                        format!("{operator} combines no {signature} (hint: all elements of one type; MPI_MINLOC and MPI_MAXLOC want pairs)"),
                    )
                })?)
            }
            _ => None,
        },
    };
    let Some(element) = element else {
        if data.0.bytes() == 0 {
            return Ok(Fit {
                element: None,
                unit: 1,
                association: Association::Any,
                commutes: true,
            });
        }
        return Err(Error::new(
            ErrorKind::Datatype,
            format!("{operator} on data of unknown type (hint: pass a buffer with a datatype)"),
        ));
    };
    if !operator.is_defined_for(element) {
        return Err(Error::new(
            ErrorKind::Datatype,
            format!("{operator} is not defined for {element} (hint: see MPI 5.0, section 6.9.2)"),
        ));
    }
    Ok(Fit::of_element(operator, element))
}

impl Reduction for Operator {
    #[inline]
    fn fit(&self, data: &Data<'_>) -> Result<Fit> {
        let pairs = matches!(self, Operator::MinLoc | Operator::MaxLoc);
        match data.0.element().map(Element::Basic) {
            Some(element) if !pairs && self.is_defined_for(element) => {
                Ok(Fit::of_element(*self, element))
            }
            _ => fit_of_any(*self, data),
        }
    }

    fn combine(&self, fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
        match fit.element {
            Some(element) => Ok(Operator::combine(*self, element, left, right)?),
            None => Ok(()),
        }
    }

    #[inline]
    fn predefined(&self, fit: &Fit) -> Option<(Operator, Element)> {
        Some((*self, fit.element?))
    }

    #[inline]
    fn predefined_on(&self, element: Basic) -> Option<(Operator, Element)> {
        let pairs = matches!(self, Operator::MinLoc | Operator::MaxLoc);
        (!pairs).then_some((*self, Element::Basic(element)))
    }

    fn is_foreign(&self) -> bool {
        false
    }
}

/// An operator from a function of two elements. Operands are combined in rank order, by one
/// tree for each number of ranks: so it must be associative, but may round. What more is
/// known of it opens other plans: see [`Function::commutative`] and [`Function::exact`].
///
/// ```
/// // The longest of all vectors of three numbers.
/// let longest = osier::operators::function(|a: [f64; 3], b: [f64; 3]| {
///     let square = |v: [f64; 3]| v.iter().map(|x| x * x).sum::<f64>();
///     if square(b) > square(a) { b } else { a }
/// });
/// let universe = osier::init()?;
/// let mut found = [[0.0; 3]];
/// universe.world().allreduce(&[[1.0, 2.0, 2.0]], &mut found, &longest)?;
/// # Ok::<(), osier::Error>(())
/// ```
pub fn function<T: Datatype, F: Fn(T, T) -> T + Send + Sync>(f: F) -> Function<T, F> {
    Function {
        f,
        exact: false,
        commutes: false,
        kernel: None,
        elements: PhantomData,
    }
}

/// An operator made of a function: see [`function`].
pub struct Function<T, F> {
    f: F,
    exact: bool,
    commutes: bool,
    kernel: Option<UserKernel>,
    elements: PhantomData<fn(T, T) -> T>,
}

impl<T: Datatype, F: Fn(T, T) -> T + Send + Sync> Function<T, F> {
    /// Says that `f(a, b)` and `f(b, a)` are the same, bit for bit: operands may change
    /// places. Brackets stay as they are, for the function may round.
    #[must_use]
    pub fn commutative(mut self) -> Self {
        self.commutes = true;
        self
    }

    /// Where operands lie in the memory of the kernel's device, it may combine them there:
    /// it computes the same as the function, and which of the two is used is chosen by what
    /// takes less time.
    #[must_use]
    pub fn with_kernel(mut self, kernel: UserKernel) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Says that `f(f(a, b), c)` and `f(a, f(b, c))` are the same, bit for bit, as they are
    /// for whole numbers: any brackets will do. With [`Function::commutative`], any order,
    /// too: then all plans are open, as for sums of integers.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let gcd = |mut a: u64, mut b: u64| {
    ///     while b != 0 {
    ///         (a, b) = (b, a % b);
    ///     }
    ///     a
    /// };
    /// let mut found = [0u64];
    /// let op = osier::operators::function(gcd).exact().commutative();
    /// comm.allreduce(&[12 * (comm.rank() as u64 + 1)], &mut found, op)?;
    /// assert_eq!(found, [12]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.exact = true;
        self
    }
}

impl<T: Datatype, F: Fn(T, T) -> T + Send + Sync> Reduction for Function<T, F> {
    fn fit(&self, data: &Data<'_>) -> Result<Fit> {
        let layout = T::layout();
        let unit = layout.size();
        let bytes = data.0.bytes();
        let fits = bytes.is_multiple_of(unit.max(1))
            && match (data.0.element(), layout.signature().uniform()) {
                (Some(has), Some(wants)) => has == wants,
                _ => match data.0.signature() {
                    Some(has) => has == layout.signature().repeat((bytes / unit.max(1)) as u64),
                    None => true,
                },
            };
        if !fits {
            let has = data.0.signature();
            let has = has.map_or("data of unknown type".into(), |s| s.to_string());
            return Err(Error::new(
                ErrorKind::Datatype,
                format!(
                    "a function of {} on {has} (hint: pass buffers of its type)",
                    std::any::type_name::<T>()
                ),
            ));
        }
        Ok(Fit {
            element: None,
            unit: unit.max(1),
            association: match (self.exact, self.commutes) {
                (true, true) => Association::Any,
                (true, false) => Association::Ordered,
                (false, _) => Association::Balanced,
            },
            commutes: self.commutes,
        })
    }

    fn kernel(&self) -> Option<&UserKernel> {
        self.kernel.as_ref()
    }

    fn combine(&self, fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
        let operands = left
            .chunks_exact_mut(fit.unit)
            .zip(right.chunks_exact(fit.unit));
        if T::DENSE {
            for (left, right) in operands {
                // SAFETY: invariants 1 and 2: one element's bytes, which make a value.
                let a = unsafe { left.as_ptr().cast::<T>().read_unaligned() };
                // SAFETY: invariants 1 and 2: one element's bytes, which make a value.
                let b = unsafe { right.as_ptr().cast::<T>().read_unaligned() };
                let result = (self.f)(a, b);
                // SAFETY: invariants 1 and 2: one element's bytes; the value has no padding.
                unsafe { left.as_mut_ptr().cast::<T>().write_unaligned(result) };
            }
            return Ok(());
        }
        let layout = T::layout();
        for (left, right) in operands {
            let result = (self.f)(unpacked::<T>(&layout, left), unpacked::<T>(&layout, right));
            let from = std::ptr::from_ref(&result).cast::<u8>();
            // SAFETY: invariants 1 and 2: one value, and room for its packed bytes.
            unsafe { layout.pack_raw(from, 1, 0..fit.unit, left.as_mut_ptr()) };
        }
        Ok(())
    }
}

/// An operator from a function of packed elements, for layers above that know the datatype
/// at run time only: `f(left, right)` leaves `left[i] op right[i]` in `left`, for all of
/// the elements that it is handed, each of as many bytes as the layout has packed. Operands
/// are combined as those of a [`function`].
///
/// ```
/// let layout = osier::Type::of::<u32>().commit()?;
/// let xor = osier::operators::packed_function(&layout, true, |left, right| {
///     left.iter_mut().zip(right).for_each(|(a, b)| *a ^= b);
/// });
/// let mut found = [6u32];
/// osier::operators::reduce_local(&[3u32], &mut found, &xor)?;
/// assert_eq!(found, [5]);
/// # Ok::<(), osier::Error>(())
/// ```
pub fn packed_function<F: Fn(&mut [u8], &[u8]) + Send + Sync>(
    layout: &Layout,
    commutes: bool,
    f: F,
) -> PackedFunction<F> {
    PackedFunction {
        f,
        commutes,
        layout: layout.clone(),
    }
}

/// An operator made of a function of packed elements: see [`packed_function`].
pub struct PackedFunction<F> {
    f: F,
    commutes: bool,
    layout: Layout,
}

impl<F: Fn(&mut [u8], &[u8]) + Send + Sync> Reduction for PackedFunction<F> {
    fn fit(&self, data: &Data<'_>) -> Result<Fit> {
        let (bytes, unit) = (data.0.bytes(), self.layout.size().max(1));
        if !bytes.is_multiple_of(unit) {
            return Err(Error::new(
                ErrorKind::Datatype,
                format!(
                    "a function of elements of {unit} bytes on {bytes} bytes (hint: pass whole elements)"
                ),
            ));
        }
        Ok(Fit {
            element: None,
            unit,
            association: Association::Balanced,
            commutes: self.commutes,
        })
    }

    fn combine(&self, _fit: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
        (self.f)(left, right);
        Ok(())
    }
}

/// A value with padding from its packed bytes.
fn unpacked<T: Datatype>(layout: &osier_datatype::Layout, packed: &[u8]) -> T {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let to = value.as_mut_ptr().cast::<u8>();
    // SAFETY: invariants 1 and 2: one value's memory, and its packed bytes.
    unsafe { layout.unpack_raw(to, 1, 0..packed.len(), packed.as_ptr()) };
    // SAFETY: invariant 2: all bytes that are no padding were written, and any make a value.
    unsafe { value.assume_init() }
}
