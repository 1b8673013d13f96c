//! Folders as one compressed file, and back. One stream over all files: programs that
//! share most of their code take little more room than one of them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use liblzma::read::XzDecoder;
use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
use liblzma::write::XzEncoder;

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As little time as possible: for what is written again and again.
    Fast,
    /// As few bytes as possible. What lies up to 192 MiB back is found again.
    Small,
}

/// Memory in which repetitions are looked for.
const WINDOW_BYTES: u32 = 192 << 20;

/// Writes a folder, without its own name, as an `.tar.xz`: its folders, regular files and links,
/// which are not followed. What else there is, such as the sockets of a daemon, is left out, as is
/// what cannot be read: it may be gone by now. Returns what was left out, with the reason.
///
/// # Errors
/// The archive cannot be written.
pub fn pack(folder: &Path, file: &Path, effort: Effort) -> io::Result<Vec<String>> {
    let stream = match effort {
        Effort::Fast => Stream::new_easy_encoder(0, Check::Crc32),
        Effort::Small => {
            let mut options = LzmaOptions::new_preset(9)?;
            options.dict_size(WINDOW_BYTES);
            let mut filters = Filters::new();
            filters.lzma2(&options);
            Stream::new_stream_encoder(&filters, Check::Crc32)
        }
    }?;
    let mut builder = tar::Builder::new(XzEncoder::new_stream(File::create(file)?, stream));
    builder.follow_symlinks(false);
    let mut left_out = Vec::new();
    append(&mut builder, folder, Path::new("."), &mut left_out)?;
    builder.into_inner()?.finish()?.sync_all()?;
    Ok(left_out)
}

/// Appends a folder under a name, and all that is in it.
fn append<W: io::Write>(
    builder: &mut tar::Builder<W>,
    folder: &Path,
    name: &Path,
    left_out: &mut Vec<String>,
) -> io::Result<()> {
    let mut entries: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(e) => {
            left_out.push(format!("{}: {e}", folder.display()));
            return Ok(());
        }
    };
    entries.sort();
    builder.append_dir(name, folder)?;
    for path in entries {
        let inner = name.join(path.file_name().unwrap_or_default());
        let mut leave = |why: &str| left_out.push(format!("{}: {why}", path.display()));
        let (kind, length) = match path.symlink_metadata() {
            Ok(about) => (about.file_type(), about.len()),
            Err(e) => {
                leave(&e.to_string());
                continue;
            }
        };
        if kind.is_dir() {
            append(builder, &path, &inner, left_out)?;
            continue;
        }
        if kind.is_symlink() {
            match std::fs::read_link(&path) {
                Ok(target) => {
                    let mut header = tar::Header::new_gnu();
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_size(0);
                    builder.append_link(&mut header, &inner, &target)?;
                }
                Err(e) => leave(&e.to_string()),
            }
            continue;
        }
        if !kind.is_file() {
            leave("no regular file");
            continue;
        }
        // Read whole before anything is written of it: a file that shrinks meanwhile would
        // damage the archive.
        let read = File::open(&path).and_then(|mut open| {
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
            io::Read::read_to_end(&mut open, &mut bytes)?;
            Ok((open.metadata()?, bytes))
        });
        match read {
            Ok((about, bytes)) => {
                let mut header = tar::Header::new_gnu();
                header.set_metadata(&about);
                header.set_size(bytes.len() as u64);
                builder.append_data(&mut header, &inner, bytes.as_slice())?;
            }
            Err(e) => leave(&e.to_string()),
        }
    }
    Ok(())
}

/// Unpacks what [`pack`] has written into a folder.
///
/// # Errors
/// The file is damaged, or a file cannot be written.
pub fn unpack(file: &Path, folder: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(XzDecoder::new(io::BufReader::new(File::open(file)?)));
    archive.unpack(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_packed_is_unpacked() {
        let top = std::env::temp_dir().join(format!("osier-archive-{}", std::process::id()));
        let from = top.join("from");
        std::fs::create_dir_all(from.join("inner")).unwrap();
        std::fs::write(from.join("program"), b"run me").unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(from.join("program"), executable).unwrap();
        let text = b"all the same ".repeat(10_000);
        std::fs::write(from.join("inner/one"), &text).unwrap();
        std::fs::write(from.join("inner/two"), &text).unwrap();
        for effort in [Effort::Fast, Effort::Small] {
            let (file, to) = (top.join("packed.tar.xz"), top.join("to"));
            assert_eq!(pack(&from, &file, effort).unwrap(), [""; 0]);
            assert!(file.metadata().unwrap().len() < 2000);
            unpack(&file, &to).unwrap();
            assert_eq!(std::fs::read(to.join("inner/two")).unwrap(), text);
            let mode = to.join("program").metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755);
            std::fs::remove_dir_all(&to).unwrap();
        }
        // A daemon's socket is left out, a link stays one.
        let socket = std::os::unix::net::UnixListener::bind(from.join("inner/control")).unwrap();
        std::os::unix::fs::symlink("program", from.join("link")).unwrap();
        let (file, to) = (top.join("packed.tar.xz"), top.join("to"));
        let left_out = pack(&from, &file, Effort::Fast).unwrap();
        assert_eq!(left_out.len(), 1, "{left_out:?}");
        assert!(left_out[0].contains("inner/control: no regular file"));
        unpack(&file, &to).unwrap();
        assert_eq!(std::fs::read(to.join("inner/two")).unwrap(), text);
        assert!(!to.join("inner/control").exists());
        assert_eq!(to.join("link").read_link().unwrap(), Path::new("program"));
        drop(socket);
        std::fs::write(top.join("packed.tar.xz"), b"no archive").unwrap();
        assert!(unpack(&top.join("packed.tar.xz"), &top.join("to")).is_err());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
