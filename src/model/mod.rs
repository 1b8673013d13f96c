//! What the machine costs, measured.
