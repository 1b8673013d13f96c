//! Regular files of limited size, read whole.
//!
//! A path of the user's may name a pipe, which would be waited for, or a device without an
//! end. Only regular files are read.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading; never waits for a pipe's writer.
///
/// # Errors
/// The system refuses, or it is no regular file.
pub fn open(path: &Path) -> Result<File> {
    // Not to wait is without meaning for regular files.
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Reads a regular file of at most `most_bytes`.
///
/// # Errors
/// As [`open`], or it is longer, or cannot be read.
pub fn read(path: &Path, most_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more tells a longer file. Its length may change, so it is not asked for.
    open(path)?.take(most_bytes + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= most_bytes {
        true => Ok(bytes),
        false => Err(Error::new(
            ErrorKind::InvalidData,
            format!("it is longer than {} KiB", most_bytes >> 10),
        )),
    }
}

/// Reads a regular file of at most `most_bytes` of text.
///
/// # Errors
/// As [`read`], or it is no text of UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> Result<String> {
    let bytes = read(path, most_bytes)?;
    String::from_utf8(bytes).map_err(|e| Error::new(ErrorKind::InvalidData, e.to_string()))
}

/// That the loader would not wait for ever for a library: a name with a slash is a path.
///
/// # Errors
/// There is something else than a file of this name. That nothing is there, the loader says.
pub(crate) fn may_be_loaded(name: &OsStr) -> std::result::Result<(), String> {
    let is_path = name.as_encoded_bytes().contains(&b'/');
    match std::fs::metadata(name) {
        Ok(data) if is_path && !data.is_file() => Err("it is no regular file".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn only_regular_files_of_sane_size_are_read() {
        let folder = std::env::temp_dir().join(format!("osier-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("file");
        std::fs::write(&file, "text").expect("a file");
        assert_eq!(read_text(&file, 4).expect("text"), "text");
        let e = read(&file, 3).expect_err("longer");
        assert!(e.to_string().contains("longer"), "{e}");
        std::fs::write(&file, b"\xff").expect("a file");
        assert!(read_text(&file, 4).is_err());

        let pipe = folder.join("pipe");
        let name = CString::new(pipe.to_str().expect("text")).expect("no zero");
        // SAFETY: a C string that lives for the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [pipe.as_path(), Path::new("/dev/zero"), &folder] {
            let e = read(path, 4).expect_err("no file");
            assert!(e.to_string().contains("no regular file"), "{e}");
            assert!(
                may_be_loaded(path.as_os_str()).is_err(),
                "{}",
                path.display()
            );
        }
        assert_eq!(may_be_loaded(file.as_os_str()), Ok(()));
        assert_eq!(may_be_loaded(OsStr::new("libc.so.6")), Ok(()));
        assert!(read(&folder.join("none"), 4).is_err());
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
