//! Attributes of communicators, and what the library itself says of a job.
//!
//! # Sources
//! MPI 5.0, sections 7.7 (caching) and 9.1.2 (environmental inquiries).

use super::Communicator;
use crate::names::{ANY_SOURCE, Source};
use osier_datatype::Keyval;

/// The attributes of a communicator, in the order of setting.
pub type Attributes = osier_datatype::Attributes<Communicator>;
/// A key for attributes of communicators.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// use osier::attributes::CommKeyval;
/// let key = CommKeyval::<String>::inherited(); // duplicates get it, too
/// comm.attributes().set(&key, "solver".to_string())?;
/// let twin = comm.dup()?;
/// assert_eq!(twin.attributes().get(&key).map(|s| s.len()), Some(6));
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub type CommKeyval<T> = Keyval<Communicator, T>;

/// What MPI's predefined attributes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredefinedAttributes {
    /// Largest tag.
    pub tag_ub: u32,
    /// The rank of the host process: there is none.
    pub host: Option<usize>,
    /// The ranks that can do input and output: any.
    pub io: Source,
    /// Whether the clocks of all ranks agree: they do on one machine.
    pub wtime_is_global: bool,
    /// Number of the program in a job of several; unknown without a launcher.
    pub app_num: Option<u32>,
    /// Number of ranks that a job can have here.
    pub universe_size: usize,
    /// Largest error code in use.
    pub last_used_code: i32,
}

impl Communicator {
    /// The attributes that users have set. A duplicate gets those that the copy
    /// functions of their keys give it. Delete functions run when attributes go
    /// away, at the latest with the last handle of the communicator, in the
    /// reverse order of setting.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// MPI's predefined attributes.
    pub fn predefined_attributes(&self) -> PredefinedAttributes {
        PredefinedAttributes {
            tag_ub: i32::MAX as u32,
            host: None,
            io: ANY_SOURCE,
            wtime_is_global: true,
            app_num: self.core().transport.shm().map(|_| 0),
            universe_size: self.core().ranks as usize,
            last_used_code: self.member().codes.last_used(),
        }
    }
}
