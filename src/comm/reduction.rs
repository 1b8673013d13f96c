//! Operators of reductions.

use osier_datatype::Datatype;

/// Combines elements of two operands.
pub trait Reduction<T> {
    /// `left[i] = left[i] op right[i]`.
    fn combine(&self, left: &mut [T], right: &[T]);
}

/// A predefined operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Product,
    /// Smallest; a NaN loses.
    Min,
    /// Largest; a NaN loses.
    Max,
}

/// Numbers that the predefined operators are defined for.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no predefined reduction",
    label = "no number that `Op` combines",
    note = "integers of up to 64 bits, `f32` and `f64` have them; for others use `osier::function`"
)]
pub trait Number: Datatype {
    #[doc(hidden)]
    fn apply(op: Op, left: Self, right: Self) -> Self;
}

macro_rules! numbers {
    ($($t:ty: $sum:ident $product:ident;)*) => {$(
        impl Number for $t {
            #[inline]
            fn apply(op: Op, left: Self, right: Self) -> Self {
                match op {
                    Op::Sum => numbers!(@ $sum left right +),
                    Op::Product => numbers!(@ $product left right *),
                    Op::Min => left.min(right),
                    Op::Max => left.max(right),
                }
            }
        }
    )*};
    (@ float $l:ident $r:ident $op:tt) => { $l $op $r };
    (@ $wrap:ident $l:ident $r:ident $op:tt) => { $l.$wrap($r) };
}

numbers! {
    i8: wrapping_add wrapping_mul;
    i16: wrapping_add wrapping_mul;
    i32: wrapping_add wrapping_mul;
    i64: wrapping_add wrapping_mul;
    isize: wrapping_add wrapping_mul;
    u8: wrapping_add wrapping_mul;
    u16: wrapping_add wrapping_mul;
    u32: wrapping_add wrapping_mul;
    u64: wrapping_add wrapping_mul;
    usize: wrapping_add wrapping_mul;
    f32: float float;
    f64: float float;
}

impl<T: Number> Reduction<T> for Op {
    fn combine(&self, left: &mut [T], right: &[T]) {
        for (l, r) in left.iter_mut().zip(right) {
            *l = T::apply(*self, *l, *r);
        }
    }
}

/// A user's operator from a function of two elements. It must be associative;
/// operands are combined in rank order.
pub fn function<T: Copy, F: Fn(T, T) -> T>(f: F) -> impl Reduction<T> {
    struct Function<F>(F);
    impl<T: Copy, F: Fn(T, T) -> T> Reduction<T> for Function<F> {
        fn combine(&self, left: &mut [T], right: &[T]) {
            for (l, r) in left.iter_mut().zip(right) {
                *l = (self.0)(*l, *r);
            }
        }
    }
    Function(f)
}
