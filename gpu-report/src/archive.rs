//! Folders as one compressed file, and back. One stream over all files: programs that
//! share most of their code take little more room than one of them.

use std::fs::File;
use std::io;
use std::path::Path;

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

/// Writes a folder, without its own name, as an `.tar.xz`.
///
/// # Errors
/// A file cannot be read or written.
pub fn pack(folder: &Path, file: &Path, effort: Effort) -> io::Result<()> {
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
    builder.append_dir_all(".", folder)?;
    builder.into_inner()?.finish()?.sync_all()
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
            pack(&from, &file, effort).unwrap();
            assert!(file.metadata().unwrap().len() < 2000);
            unpack(&file, &to).unwrap();
            assert_eq!(std::fs::read(to.join("inner/two")).unwrap(), text);
            let mode = to.join("program").metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755);
            std::fs::remove_dir_all(&to).unwrap();
        }
        std::fs::write(top.join("packed.tar.xz"), b"no archive").unwrap();
        assert!(unpack(&top.join("packed.tar.xz"), &top.join("to")).is_err());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
