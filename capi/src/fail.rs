//! Errors on their way to a code: class or code of MPI, with a text.

use crate::abi::*;
use crate::call::On;
use crate::faults::MPIX_ERR_REVOKED;
use osier::{Error, ErrorKind};
use std::borrow::Cow;

/// What a call has to say when it fails.
#[derive(Debug)]
pub struct Fail(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: c_int,
    message: Cow<'static, str>,
    /// The object that it belongs to, where that is not the call's own.
    on: Option<On>,
    /// Source and tag of the message that it is about.
    envelope: Option<(u32, u32)>,
}

pub type Res<T = ()> = Result<T, Fail>;

impl Fail {
    #[cold]
    pub fn new(code: c_int, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            on: None,
            envelope: None,
        }))
    }

    pub fn code(&self) -> c_int {
        self.0.code
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The same error, of another object.
    #[must_use]
    pub fn on(mut self, on: On) -> Self {
        self.0.on = Some(on);
        self
    }

    /// Source and tag of the message that it is about.
    pub fn envelope(&self) -> Option<(u32, u32)> {
        self.0.envelope
    }

    pub fn object(&self) -> Option<On> {
        self.0.on
    }

    /// The same error as that of another class, if it has this one.
    #[must_use]
    pub fn class(mut self, from: c_int, to: c_int) -> Self {
        if self.0.code == from {
            self.0.code = to;
        }
        self
    }
}

/// The one table from the library's kinds of errors to MPI's classes.
fn class_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Rank => MPI_ERR_RANK,
        ErrorKind::Tag => MPI_ERR_TAG,
        ErrorKind::Communicator => MPI_ERR_COMM,
        ErrorKind::Group => MPI_ERR_GROUP,
        ErrorKind::Count => MPI_ERR_COUNT,
        ErrorKind::Argument => MPI_ERR_ARG,
        ErrorKind::Datatype => MPI_ERR_TYPE,
        ErrorKind::Truncated => MPI_ERR_TRUNCATE,
        ErrorKind::RankDead | ErrorKind::Closed => MPI_ERR_PROC_ABORTED,
        ErrorKind::Revoked => MPIX_ERR_REVOKED,
        ErrorKind::Buffer => MPI_ERR_BUFFER,
        ErrorKind::OutOfMemory => MPI_ERR_NO_MEM,
        ErrorKind::Permission => MPI_ERR_ACCESS,
        ErrorKind::Unavailable => MPI_ERR_UNSUPPORTED_OPERATION,
        ErrorKind::Malformed => MPI_ERR_INTERN,
        ErrorKind::WindowRange => MPI_ERR_RMA_RANGE,
        ErrorKind::WindowEpoch => MPI_ERR_RMA_SYNC,
        ErrorKind::WindowConflict => MPI_ERR_RMA_CONFLICT,
        // Attribute, Cancelled, Device, Config, System, and what may come.
        _ => MPI_ERR_OTHER,
    }
}

impl From<Error> for Fail {
    #[cold]
    fn from(e: Error) -> Self {
        let code = e.code().map_or_else(|| class_of(e.kind()), |c| c.number());
        let mut fail = Fail::new(code, e.to_string());
        fail.0.envelope = e.envelope();
        fail
    }
}

impl From<osier::datatype::TypeError> for Fail {
    #[cold]
    fn from(e: osier::datatype::TypeError) -> Self {
        Fail::new(MPI_ERR_ARG, e.to_string())
    }
}

macro_rules! fails {
    ($($name:ident $code:ident;)*) => {$(
        #[cold]
        pub fn $name(message: impl Into<Cow<'static, str>>) -> Fail {
            Fail::new($code, message)
        }
    )*};
}

fails! {
    argument MPI_ERR_ARG;
    bad_comm MPI_ERR_COMM;
    bad_count MPI_ERR_COUNT;
    bad_dims MPI_ERR_DIMS;
    bad_group MPI_ERR_GROUP;
    bad_op MPI_ERR_OP;
    bad_rank MPI_ERR_RANK;
    bad_request MPI_ERR_REQUEST;
    bad_topology MPI_ERR_TOPOLOGY;
    bad_type MPI_ERR_TYPE;
    other MPI_ERR_OTHER;
}

/// That there is a place for a result, for calls that look at it before other arguments.
#[inline]
pub fn place<T>(to: *mut T) -> Res {
    match to.is_null() {
        true => Err(argument("a null pointer for a result")),
        false => Ok(()),
    }
}

/// Leaves a value where C wants it.
#[inline]
pub fn put<T>(to: *mut T, value: T) -> Res {
    place(to)?;
    // SAFETY: C's contract: a result has room for its type.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`put`], where null says that nobody wants it.
#[inline]
pub fn put_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as above.
        unsafe { to.write(value) };
    }
}

/// A value of C's.
#[inline]
pub fn get<T: Copy>(from: *const T) -> Res<T> {
    if from.is_null() {
        return Err(argument("a null pointer for an argument"));
    }
    // SAFETY: C's contract: an argument that is pointed to is there.
    Ok(unsafe { from.read() })
}

/// An array of C's; null only if it is empty.
#[inline]
pub fn array<'a, T>(from: *const T, len: usize) -> Res<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(argument("a null pointer for an array"));
    }
    // SAFETY: C's contract: so many elements are there for the call.
    Ok(unsafe { std::slice::from_raw_parts(from, len) })
}

/// As [`array`], to write.
#[inline]
pub fn array_mut<'a, T>(from: *mut T, len: usize) -> Res<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if from.is_null() {
        return Err(argument("a null pointer for an array"));
    }
    // SAFETY: as above, and nobody else uses them meanwhile.
    Ok(unsafe { std::slice::from_raw_parts_mut(from, len) })
}

/// A string of C's.
pub fn text<'a>(from: *const c_char) -> Res<Cow<'a, str>> {
    if from.is_null() {
        return Err(argument("a null pointer for a string"));
    }
    // SAFETY: C's contract: strings end with a zero.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }.to_string_lossy())
}

/// Copies a string to C's memory of `room` bytes, and its length if somebody wants it.
pub fn put_text(to: *mut c_char, room: usize, text: &str, length: *mut c_int) -> Res {
    if to.is_null() || room == 0 {
        return Err(argument("no room for a string"));
    }
    let mut len = text.len().min(room - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: C's contract: the room is as long as the standard's maximum, or as told.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len) };
    // SAFETY: as above; `len` is less than the room.
    unsafe { to.wrapping_add(len).write(0) };
    put_if(length, len as c_int);
    Ok(())
}

/// Counts of either width.
pub trait Int: Copy {
    fn wide(self) -> i64;
    /// The number in this width; `MPI_UNDEFINED` if it has no room.
    fn narrow(n: i64) -> Self;
}

impl Int for c_int {
    #[inline]
    fn wide(self) -> i64 {
        i64::from(self)
    }

    #[inline]
    fn narrow(n: i64) -> Self {
        c_int::try_from(n).unwrap_or(MPI_UNDEFINED)
    }
}

impl Int for i64 {
    #[inline]
    fn wide(self) -> i64 {
        self
    }

    #[inline]
    fn narrow(n: i64) -> Self {
        n
    }
}

impl Int for isize {
    #[inline]
    fn wide(self) -> i64 {
        self as i64
    }

    #[inline]
    fn narrow(n: i64) -> Self {
        n as isize
    }
}

/// A count that is not negative.
#[inline]
pub fn count<N: Int>(n: N) -> Res<usize> {
    usize::try_from(n.wide()).map_err(|_| bad_count(format!("a count of {}", n.wide())))
}

/// A length or number that is not negative, of another kind than a count.
#[inline]
pub fn number<N: Int>(n: N) -> Res<usize> {
    usize::try_from(n.wide()).map_err(|_| argument(format!("a negative number: {}", n.wide())))
}
