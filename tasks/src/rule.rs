//! Firing rules: which messages a task waits for. Pure.
//!
//! A conjunction counts the edges that it still lacks a message of, so that an arrival costs
//! a subtraction. The other rules are asked about what is there whenever something comes.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution"
//! (Tarragon), 2011; T. Nguyen, "Bamboo: Automatic Translation of MPI Source into a
//! Latency-Tolerant Form", dissertation, 2014, equations 4.1 and 4.2.

/// When a task that waits is fired. A port may have many edges, or none.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Rule {
    /// A message on every edge of the task. One without edges fires again and again.
    #[default]
    All,
    /// A message on every edge of these input ports.
    Ports(Vec<u32>),
    /// A message on any edge.
    Any,
    /// This many messages on the edges of an input port, together.
    Count { port: u32, messages: u32 },
    /// The task's own function decides, at each arrival.
    Own,
}

/// What a rule is asked about: messages on the edges of a task, by port.
pub trait Arrived {
    /// Messages on the edges of a port, together.
    fn on_port(&self, port: u32) -> u64;
    /// Messages on all edges.
    fn on_all(&self) -> u64;
}

impl Rule {
    /// Whether it is a conjunction, which is counted.
    pub fn is_conjunction(&self) -> bool {
        matches!(self, Rule::All | Rule::Ports(_))
    }

    /// Whether an edge of this port takes part.
    pub fn names(&self, of: u32) -> bool {
        match self {
            Rule::All | Rule::Any | Rule::Own => true,
            Rule::Ports(ports) => ports.contains(&of),
            Rule::Count { port, .. } => *port == of,
        }
    }

    /// Whether a rule that is asked is met. Conjunctions are counted, own rules are code of
    /// the user: not met here.
    pub fn is_met(&self, arrived: &impl Arrived) -> bool {
        match self {
            Rule::Any => arrived.on_all() > 0,
            Rule::Count { port, messages } => arrived.on_port(*port) >= u64::from(*messages),
            Rule::All | Rule::Ports(_) | Rule::Own => false,
        }
    }
}
