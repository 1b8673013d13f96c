//! Communicators made from others: collective calls.
//!
//! | module | duty |
//! |---|---|
//! | `split` | duplicates and parts |
//! | `split_type` | parts by hardware |
//! | `inter` | two groups, joined and merged |
//! | `topology` | grids and graphs |
//! | `from_groups` | without a parent |
//! | `agreement` | of the members that live, also if more fail during the call |

mod agreement;
mod from_groups;
mod inter;
mod split;
mod split_type;
mod topology;

pub use agreement::{Agreement, PendingAgreement};
pub use split::PendingCommunicator;
pub use split_type::{Resource, SplitType, hardware_info};
