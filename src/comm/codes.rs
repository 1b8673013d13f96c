//! Error classes, codes and texts that users add, one set per membership in a
//! job.
//!
//! # Invariants
//! 1. Numbers above [`ErrorCode::LAST_PREDEFINED`] only, ascending, never used
//!    again: not even after removal.
//! 2. Every code has a class; a class is a code of its own class.
//!
//! # Sources
//! MPI 5.0, sections 9.4 and 9.5 (error classes, codes and handlers), with the
//! calls that remove what was added.

use osier_engine::error::{Error, ErrorCode, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Code {
    class: ErrorCode,
    text: Option<String>,
}

#[derive(Default)]
struct Table {
    codes: BTreeMap<ErrorCode, Code>,
    /// How many were ever added.
    added: i32,
}

/// The error codes that users have added.
#[derive(Default)]
pub struct ErrorCodes(Mutex<Table>);

impl ErrorCodes {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, class: Option<ErrorCode>) -> Result<ErrorCode> {
        let mut table = self.table();
        if let Some(class) = class.filter(|c| c.number() > ErrorCode::LAST_PREDEFINED)
            && table.codes.get(&class).is_none_or(|c| c.class != class)
        {
            return Err(unknown(class, "class"));
        }
        let number = ErrorCode::LAST_PREDEFINED
            .checked_add(table.added)
            .and_then(|n| n.checked_add(1))
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "all error codes are used up"))?;
        table.added += 1;
        let code = ErrorCode::of_user(number);
        let class = class.unwrap_or(code);
        table.codes.insert(code, Code { class, text: None });
        Ok(code)
    }

    /// Adds a class.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Unavailable`], if all numbers are used up.
    pub fn add_class(&self) -> Result<ErrorCode> {
        self.add(None)
    }

    /// Adds a code to a class of the library or of the user.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there is no such class, or `class` is a code; of kind
    /// [`ErrorKind::Unavailable`], if all numbers are used up.
    pub fn add_code(&self, class: impl Into<ErrorCode>) -> Result<ErrorCode> {
        self.add(Some(class.into()))
    }

    /// Sets the text of a code or class that a user has added.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if no user has added the code.
    pub fn set_text(&self, code: ErrorCode, text: impl Into<String>) -> Result<()> {
        let mut table = self.table();
        let entry = table
            .codes
            .get_mut(&code)
            .ok_or_else(|| unknown(code, "code"))?;
        entry.text = Some(text.into());
        Ok(())
    }

    /// Its text; `None` if it has none.
    pub fn text(&self, code: ErrorCode) -> Option<String> {
        self.table().codes.get(&code)?.text.clone()
    }

    /// Its class; `None` if there is no such code.
    pub fn class_of(&self, code: ErrorCode) -> Option<ErrorCode> {
        if (1..=ErrorCode::LAST_PREDEFINED).contains(&code.number()) {
            return Some(code);
        }
        Some(self.table().codes.get(&code)?.class)
    }

    /// Removes a code, or a class that has no other codes left, and its text.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if no user has added the code, or it is a class that
    /// still has codes.
    pub fn remove(&self, code: ErrorCode) -> Result<()> {
        let mut table = self.table();
        let others = table
            .codes
            .iter()
            .any(|(other, entry)| *other != code && entry.class == code);
        if others {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "error class {} still has codes (hint: remove them first)",
                    code.number()
                ),
            ));
        }
        match table.codes.remove(&code) {
            Some(_) => Ok(()),
            None => Err(unknown(code, "code")),
        }
    }

    /// The largest number that was ever in use (MPI's `LASTUSEDCODE`).
    pub fn last_used(&self) -> i32 {
        ErrorCode::LAST_PREDEFINED + self.table().added
    }

    /// An error with a user's code; its message is the code's text.
    ///
    /// # Errors
    /// The error that there is no such code.
    pub fn error(&self, code: ErrorCode) -> Error {
        let table = self.table();
        let Some(entry) = table.codes.get(&code) else {
            return unknown(code, "code");
        };
        let text = entry.text.clone();
        let text = text.unwrap_or_else(|| format!("error code {}", code.number()));
        Error::new(ErrorKind::User, text).with_code(code)
    }
}

fn unknown(code: ErrorCode, what: &str) -> Error {
    Error::new(
        ErrorKind::Argument,
        format!(
            "no user has added error {what} {} (hint: add_class and add_code give numbers, of this universe only)",
            code.number()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_classes_and_texts() {
        let codes = ErrorCodes::default();
        assert_eq!(codes.last_used(), ErrorCode::LAST_PREDEFINED);
        let class = codes.add_class().expect("class");
        let code = codes.add_code(class).expect("code");
        let rank = codes.add_code(ErrorKind::Rank).expect("code");
        assert_eq!(codes.class_of(class), Some(class));
        assert_eq!(codes.class_of(code), Some(class));
        assert_eq!(codes.class_of(rank), Some(ErrorKind::Rank.into()));
        assert_eq!(codes.last_used(), rank.number());
        assert!(codes.add_code(code).is_err(), "a code is no class");
        codes.set_text(code, "the flux is negative").expect("text");
        assert_eq!(codes.text(code).as_deref(), Some("the flux is negative"));
        assert_eq!(codes.text(class), None);
        let e = codes.error(code);
        assert_eq!(e.to_string(), "the flux is negative");
        assert_eq!((e.kind(), e.code()), (ErrorKind::User, Some(code)));
        assert!(codes.remove(class).is_err(), "it has a code");
        codes.remove(code).expect("code");
        codes.remove(class).expect("class");
        assert!(codes.remove(class).is_err());
        assert_eq!(codes.error(class).kind(), ErrorKind::Argument);
        assert!(codes.set_text(ErrorKind::Tag.into(), "").is_err());
        let next = codes.add_class().expect("class");
        assert!(next > rank, "numbers are not used again");
    }
}
