//! `docs/checking.md`, from the table of the wrong programs.

/// A wrong program, as its table has it.
pub struct Case {
    pub name: String,
    pub ranks: usize,
    /// What it does that it must not.
    pub what: String,
    /// What finds it: a check, `error`, `hang`, `death`, or `silent`.
    pub by: String,
    /// Part of the message; if silent, why nobody can see it.
    pub says: String,
}

/// Reads what a program lists.
pub fn cases(listed: &str) -> Vec<Case> {
    let case = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, ranks, what, by, says] = fields[..] else {
            panic!("{line:?} is no line of the table");
        };
        Case {
            name: name.into(),
            ranks: ranks.parse().expect("a number of ranks"),
            what: what.into(),
            by: by.into(),
            says: says.into(),
        }
    };
    listed.lines().map(case).collect()
}
