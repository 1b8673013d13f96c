//! Ranks on other hosts: one network core per rank below all of its channels.
//!
//! | module | duty |
//! |---|---|
//! | `address` | addresses of this host, the setting that chooses, the card of a rank |
//! | `hello` | the handshake, by which both ends prove that they have the job's key; pure |
//! | `service` | the thread that listens, calls, and shakes hands |
//! | `frame` | heads of frames; pure |
//! | `out` | what leaves by a connection, in order |
//! | `state` | connections, channels, credit, regions, requests, ends of peers |
//! | `map` | which rank is on which host; pure |
//! | `ends` | which ranks have ended, and who passes that on to whom; pure |
//! | `news` | how the threads of all hosts exchange that |
//! | `rank`, `endpoint` | what the layers above use |
//!
//! ```text
//! channel 7 --\                                        /-- channel 7
//! channel 8 ---+-- out --> one connection per pair -->+--- channel 8
//! get, piece --/                                      \--- where it was wanted
//! ```
//!
//! A connection is made when the first message needs it; two that cross become one. Messages of
//! all channels share it, told apart by their heads; each channel has [credit](crate::Endpoint::post_with)
//! of its own with each peer, so that one that is not polled holds up no other and takes bounded
//! memory. A region is read by request, in pieces that go from the memory of its owner to the
//! memory of the reader without a copy in either process, and short messages pass between them.
//!
//! # What holds of a peer that has ended
//! Of its messages a prefix has come, in order, and all of that is delivered. Whoever was declared
//! dead stays so: its calls are refused, and nothing that it sends counts. All ranks learn of it,
//! whether they are connected with it or not, and so does the one who was declared dead, if it
//! lives.

mod address;
mod endpoint;
mod ends;
mod frame;
mod hello;
mod map;
mod news;
mod out;
mod rank;
mod service;
mod state;
#[cfg(test)]
mod tests;

pub use address::{Card, LocalAddress, NetworkSetting};
pub use endpoint::NetEndpoint;
pub use hello::JobKey;
pub use map::HostMap;
pub use news::Near;
pub use rank::{Directory, NetOptions, NetRank};
pub use state::NetCounts;
