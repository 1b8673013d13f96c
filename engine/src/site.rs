//! Call site: the place in a program that a finding or a wait names.
//!
//! A program in Rust is named by the line of the call, which `#[track_caller]` hands
//! down. A layer for another language has only lines of its own to hand down: it says
//! instead how the return address into its program is found and what it is called
//! ([`Callers`]). An address is taken where somebody will want it: at a post if checks
//! are on, and at a wait that has become long. It gets its name when it is printed.

use std::fmt;
use std::panic::Location;
use std::sync::OnceLock;

/// How a layer for another language finds and names its callers.
#[derive(Clone, Copy)]
pub struct Callers {
    /// The return address into the program of the call that this thread is in; `None` if
    /// it is in none.
    pub find: fn() -> Option<usize>,
    /// Names an address: file, line and function, or object and offset.
    pub name: fn(usize) -> String,
}

/// The layer's, once it has told.
pub type Layer = OnceLock<Callers>;

/// Names an address.
type Name = fn(usize) -> String;

/// A line of a Rust program, or an address in another.
#[derive(Clone, Copy)]
pub struct Site {
    line: &'static Location<'static>,
    foreign: Option<(usize, Name)>,
}

impl Site {
    /// That of the call which this thread is in.
    pub fn here(layer: &Layer, line: &'static Location<'static>) -> Site {
        let foreign = layer.get().and_then(|callers| {
            let address = (callers.find)()?;
            Some((address, callers.name))
        });
        Site { line, foreign }
    }

    /// The line that was handed down: of the library if this is an address.
    #[inline]
    pub fn line(&self) -> &'static Location<'static> {
        self.line
    }

    /// Whether it is an address, which has no line of the library.
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// The file and the line; the latter is 0 if the former is the whole name.
    pub fn parts(&self) -> (String, u32) {
        match self.foreign {
            Some((address, name)) => (name(address), 0),
            None => (self.line.file().into(), self.line.line()),
        }
    }
}

impl From<&'static Location<'static>> for Site {
    #[inline]
    fn from(line: &'static Location<'static>) -> Site {
        Site {
            line,
            foreign: None,
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.foreign {
            Some((address, name)) => f.write_str(&name(address)),
            None => write!(f, "{}", self.line),
        }
    }
}

/// The result of [`Site::parts`] as text.
pub fn file_line(file: &str, line: u32) -> String {
    match line {
        0 => file.into(),
        line => format!("{file}:{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_of_another_language_have_no_line_of_ours() {
        let layer = Layer::new();
        let rust = Site::here(&layer, Location::caller());
        assert!(rust.to_string().contains(file!()), "{rust}");
        let callers = Callers {
            find: || Some(0x40),
            name: |address| format!("halo.c:{address} (exchange)"),
        };
        assert!(layer.set(callers).is_ok());
        let c = Site::here(&layer, Location::caller());
        assert_eq!(c.to_string(), "halo.c:64 (exchange)");
        let (file, line) = c.parts();
        assert_eq!(file_line(&file, line), c.to_string());
        let (file, line) = rust.parts();
        assert!(rust.to_string().starts_with(&file_line(&file, line)));
    }
}
