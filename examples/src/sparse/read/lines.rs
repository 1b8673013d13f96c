//! The lines of a file, counted, for error messages.

use super::BadFile;

/// Lines that are read one after another.
pub struct Lines<'a> {
    name: &'a str,
    lines: std::str::Lines<'a>,
    /// Number of the line that was read last, from 1.
    number: usize,
}

impl<'a> Lines<'a> {
    pub fn new(name: &'a str, text: &'a str) -> Self {
        Self {
            name,
            lines: text.lines(),
            number: 0,
        }
    }

    /// Number of the line that was read last, from 1.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The next line.
    ///
    /// # Errors
    /// There is none; `expected` says what it would have had.
    pub fn next(&mut self, expected: &str) -> Result<&'a str, BadFile> {
        let line = self.next_if_any();
        line.ok_or_else(|| self.bad(format!("the file ends here, expected {expected}")))
    }

    pub fn next_if_any(&mut self) -> Option<&'a str> {
        let line = self.lines.next()?;
        self.number += 1;
        Some(line)
    }

    /// An error of the line that was read last.
    pub fn bad(&self, what: impl Into<String>) -> BadFile {
        BadFile {
            file: self.name.into(),
            line: self.number,
            what: what.into(),
        }
    }

    /// A number at this place of the line.
    ///
    /// # Errors
    /// There is none.
    pub fn number_of<T: std::str::FromStr>(
        &self,
        text: Option<&str>,
        what: &str,
    ) -> Result<T, BadFile> {
        let text = text.ok_or_else(|| self.bad(format!("expected {what}, found none")))?;
        let number = text.parse();
        number.map_err(|_| self.bad(format!("expected {what}, found '{}'", shortened(text))))
    }

    /// A value.
    ///
    /// # Errors
    /// It is no finite number.
    pub fn value_of(&self, text: Option<&str>) -> Result<f64, BadFile> {
        let value: f64 = self.number_of(text, "a value")?;
        match value.is_finite() {
            true => Ok(value),
            false => Err(self.bad(format!(
                "expected a finite value, found '{}'",
                shortened(text.unwrap_or_default())
            ))),
        }
    }
}

/// A text that fits into a message.
pub fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}
