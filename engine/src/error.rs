//! The one error of the library: kind, context, source.
//!
//! The first detector reports what failed and the cause as observed; callers
//! add context in front. A guess stands under `hint:`.

use std::fmt;

/// Result of anything in this library that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, coarsely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A rank that does not exist.
    Rank,
    /// A tag outside 0 ..= 2^31 - 1.
    Tag,
    /// A communicator of a kind for which the operation is not defined.
    Communicator,
    /// A group with ranks that the communicator has not.
    Group,
    /// A count that is too large.
    Count,
    /// A size, dimension or other argument that makes no sense.
    Argument,
    /// A datatype that cannot be built, or memory too small for it.
    Datatype,
    /// A copy or delete function of an attribute failed.
    Attribute,
    /// The message is longer than the receive buffer.
    Truncated,
    /// A rank that the operation needs has failed: its process ended, and it had not
    /// finalized.
    RankDead,
    /// The ranks that the operation needs have dropped the communicator, or finalized.
    Closed,
    /// The operation was cancelled or its sender cancelled it.
    Cancelled,
    /// No buffer is attached for buffered sends, or it is full; or data in place where that
    /// is not allowed.
    Buffer,
    /// Memory, private or shared, is full.
    OutOfMemory,
    /// The system forbids it.
    Permission,
    /// This machine or build does not offer it.
    Unavailable,
    /// A device has failed, or cannot do what it is asked.
    Device,
    /// Bytes that no correct peer sends.
    Malformed,
    /// A configuration variable or job description that makes no sense.
    Config,
    /// Anything else that the system reports.
    System,
    /// An error of the user, with a code of the user.
    User,
    /// A task of a graph has failed, or what it needs has.
    Task,
    /// Bytes outside of a rank's part of a window.
    WindowRange,
    /// An access to a window, or a call on it, at a time at which it is not allowed.
    WindowEpoch,
    /// Accesses to the same bytes of a window that exclude each other.
    WindowConflict,
    /// A member has revoked the communicator: it carries no messages and no collectives any more.
    Revoked,
}

/// An error code: a class, or a finer number within a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(i32);

impl ErrorCode {
    /// The largest number that users' codes do not have.
    pub const LAST_PREDEFINED: i32 = 0x3fff;

    /// A code that a user has added.
    pub fn of_user(number: i32) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> i32 {
        self.0
    }
}

/// The classes of the library.
impl From<ErrorKind> for ErrorCode {
    fn from(kind: ErrorKind) -> Self {
        Self(kind as i32 + 1)
    }
}

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// The user's code.
    code: Option<ErrorCode>,
    /// Source and tag of the message that it is about.
    envelope: Option<(u32, u32)>,
    /// An error handler has seen it.
    raised: bool,
}

/// An error. Small, so that results stay cheap.
pub struct Error(Box<Inner>);

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            source: None,
            code: None,
            envelope: None,
            raised: false,
        }))
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The same error with what was being done in front.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// The user's error code, of errors of kind [`ErrorKind::User`].
    pub fn code(&self) -> Option<ErrorCode> {
        self.0.code
    }

    /// Source and tag of the message that was longer than its buffer, of errors of kind
    /// [`ErrorKind::Truncated`].
    pub fn envelope(&self) -> Option<(u32, u32)> {
        self.0.envelope
    }

    pub fn with_envelope(mut self, source: u32, tag: u32) -> Self {
        self.0.envelope = Some((source, tag));
        self
    }

    pub fn with_code(mut self, code: ErrorCode) -> Self {
        self.0.code = Some(code);
        self
    }

    /// Notes that an error handler sees it; false if one has already.
    pub fn mark_raised(&mut self) -> bool {
        !std::mem::replace(&mut self.0.raised, true)
    }

    pub fn from_source(
        kind: ErrorKind,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(Inner {
            kind,
            message: source.to_string(),
            source: Some(Box::new(source)),
            code: None,
            envelope: None,
            raised: false,
        }))
    }
}

impl Clone for Error {
    fn clone(&self) -> Self {
        Self(Box::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            source: None,
            code: self.0.code,
            envelope: self.0.envelope,
            raised: self.0.raised,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0.message, self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0
            .source
            .as_ref()
            .map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}

impl From<osier_datatype::TypeError> for Error {
    fn from(e: osier_datatype::TypeError) -> Self {
        match e {
            osier_datatype::TypeError::Attribute(e) => e.into(),
            e => Self::from_source(ErrorKind::Datatype, e),
        }
    }
}

impl From<osier_datatype::AttributeError> for Error {
    fn from(e: osier_datatype::AttributeError) -> Self {
        Self::from_source(ErrorKind::Attribute, e)
    }
}

impl From<osier_kernels::DeviceError> for Error {
    fn from(e: osier_kernels::DeviceError) -> Self {
        use osier_kernels::DeviceError as D;
        let kind = match &e {
            e if e.is_out_of_memory() => ErrorKind::OutOfMemory,
            D::Unavailable(_) => ErrorKind::Unavailable,
            D::Overlap { .. } => ErrorKind::Datatype,
            _ => ErrorKind::Device,
        };
        Self::from_source(kind, e)
    }
}

impl From<osier_transports::TransportError> for Error {
    fn from(e: osier_transports::TransportError) -> Self {
        use osier_transports::TransportErrorKind as T;
        let kind = match e.kind() {
            T::PeerDead => ErrorKind::RankDead,
            T::PeerClosed => ErrorKind::Closed,
            T::OutOfMemory => ErrorKind::OutOfMemory,
            T::Permission => ErrorKind::Permission,
            T::Unavailable => ErrorKind::Unavailable,
            T::Malformed => ErrorKind::Malformed,
            T::Invalid => ErrorKind::Argument,
            _ => ErrorKind::System,
        };
        Self::from_source(kind, e)
    }
}
