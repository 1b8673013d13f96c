//! Rust types that have a datatype.

use crate::{Basic, Layout, Type, TypeError};
use std::sync::OnceLock;

/// A Rust type whose values can be sent and received in place.
///
/// Implemented for numbers, arrays of them, `half` and complex numbers (with
/// the features `half` and `complex`); `#[derive(Datatype)]` implements it for
/// `#[repr(C)]` structs.
///
/// # Safety
/// Every bit pattern of the payload bytes is a valid value, wherever they come
/// from. [`Datatype::datatype`] describes exactly the non-padding bytes, its
/// lower bound is 0 and its extent `size_of::<Self>()`. `DENSE` is true only if
/// there is no padding at all and the packed form is the memory itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no MPI datatype",
    label = "not a datatype",
    note = "numbers, arrays of datatypes and `#[repr(C)]` structs with `#[derive(Datatype)]` have one",
    note = "`bool`, `char`, enums and references have none: not every bit pattern is a valid value"
)]
pub unsafe trait Datatype: Copy + Send + Sync + 'static {
    /// Whether a value is its packed form: no padding anywhere.
    const DENSE: bool;
    /// The predefined type that a value is one element of, if that is all it is.
    const BASIC: Option<Basic> = None;

    /// The type tree.
    fn datatype() -> Type;

    /// The committed layout, made once per thread at most.
    fn layout() -> Layout {
        cached::layout::<Self>()
    }
}

macro_rules! numbers {
    ($($(#[$meta:meta])* $rust:ty => $basic:expr;)*) => {$(
        $(#[$meta])*
        // SAFETY: a number without padding; every bit pattern is a value.
        unsafe impl Datatype for $rust {
            const DENSE: bool = true;
            const BASIC: Option<Basic> = Some($basic);

            fn datatype() -> Type {
                static TYPE: OnceLock<Type> = OnceLock::new();
                TYPE.get_or_init(|| Type::basic($basic)).clone()
            }

            fn layout() -> Layout {
                static LAYOUT: OnceLock<Layout> = OnceLock::new();
                LAYOUT
                    .get_or_init(|| derive_support::commit(&Self::datatype()))
                    .clone()
            }
        }

        $(#[$meta])*
        const _: () = assert!(
            size_of::<$rust>() == $basic.size() && align_of::<$rust>() == $basic.alignment()
        );
    )*};
}

numbers! {
    i8 => Basic::I8;
    i16 => Basic::I16;
    i32 => Basic::I32;
    i64 => Basic::I64;
    i128 => Basic::I128;
    u8 => Basic::U8;
    u16 => Basic::U16;
    u32 => Basic::U32;
    u64 => Basic::U64;
    u128 => Basic::U128;
    f32 => Basic::F32;
    f64 => Basic::F64;
    #[cfg(feature = "half")] half::f16 => Basic::F16;
    #[cfg(feature = "half")] half::bf16 => Basic::BF16;
    #[cfg(feature = "complex")] num_complex::Complex<f32> => Basic::C32;
    #[cfg(feature = "complex")] num_complex::Complex<f64> => Basic::C64;
}

#[cfg(target_pointer_width = "64")]
numbers! {
    isize => Basic::I64;
    usize => Basic::U64;
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("osier needs a 64-bit target");

// SAFETY: elements of an array lie a size apart, without further padding.
unsafe impl<T: Datatype, const N: usize> Datatype for [T; N] {
    const DENSE: bool = T::DENSE;

    fn datatype() -> Type {
        derive_support::array(N, &T::datatype())
    }
}

/// Layouts by type: a generic function has no static of its own per type.
mod cached {
    use super::{Datatype, Layout, derive_support};
    use std::any::TypeId;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::hash::{BuildHasherDefault, Hasher};

    thread_local! {
        static LAYOUTS: RefCell<HashMap<TypeId, Layout, BuildHasherDefault<Mixed>>> =
            RefCell::default();
    }

    /// Type ids are hashes already.
    #[derive(Default)]
    struct Mixed(u64);

    impl Hasher for Mixed {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            for &byte in bytes {
                self.0 = self.0.rotate_left(8) ^ u64::from(byte);
            }
        }

        fn write_u64(&mut self, word: u64) {
            self.0 ^= word;
        }
    }

    /// The layout of a type, from this thread's table.
    pub fn layout<T: Datatype>() -> Layout {
        let id = TypeId::of::<T>();
        // While a thread ends its table may be gone.
        let known = LAYOUTS.try_with(|layouts| layouts.borrow().get(&id).cloned());
        if let Ok(Some(layout)) = known {
            return layout;
        }
        let layout = derive_support::commit(&T::datatype());
        let _ = LAYOUTS.try_with(|layouts| layouts.borrow_mut().insert(id, layout.clone()));
        layout
    }
}

/// What the code that `#[derive(Datatype)]` writes calls.
#[doc(hidden)]
pub mod derive_support {
    use super::{Datatype, Layout, Type, TypeError};

    /// A struct of `bytes` bytes with fields of (offset, type).
    pub fn structure(bytes: usize, fields: &[(usize, Type)]) -> Type {
        let fields: Vec<_> = fields
            .iter()
            .map(|(offset, ty)| (1, *offset as isize, ty.clone()))
            .collect();
        sized(Type::structure(&fields).and_then(|ty| Type::resized(0, bytes as isize, &ty)))
    }

    /// `count` elements.
    pub fn array(count: usize, element: &Type) -> Type {
        sized(Type::contiguous(count, element))
    }

    /// The layout of a type that Rust has accepted.
    pub fn commit(ty: &Type) -> Layout {
        sized(ty.commit())
    }

    /// Whether fields of these sizes fill a struct of `bytes` bytes.
    pub const fn dense(bytes: usize, fields: &[(usize, bool)]) -> bool {
        let mut sum = 0;
        let mut i = 0;
        while i < fields.len() {
            if !fields[i].1 {
                return false;
            }
            sum += fields[i].0;
            i += 1;
        }
        sum == bytes
    }

    /// Size and density of a field.
    pub const fn field<T: Datatype>() -> (usize, bool) {
        (size_of::<T>(), T::DENSE)
    }

    /// Rust limits every value to `isize::MAX` bytes, so nothing can overflow.
    fn sized<T>(result: Result<T, TypeError>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => unreachable!("type of a Rust value: {error}"),
        }
    }
}
