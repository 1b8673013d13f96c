//! Finds the program to run: beside the `osier` executable, then on PATH.

use std::env;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Failure;

/// Exit code when the program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit code when the program was not found.
pub const NOT_FOUND: u8 = 127;

/// The absolute path of `name`.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        // Made absolute here, so that `--wdir` does not change its meaning.
        let path = std::path::absolute(name).unwrap_or_else(|_| PathBuf::from(name));
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Failure::new(
                NOT_FOUND,
                format!("cannot find program '{}': no such file", name.display()),
            )),
            Err(e) => Err(refused(&path, &e)),
        };
    }

    let beside = env::current_exe()
        .ok()
        .and_then(|exe| exe.parent().map(Path::to_path_buf));
    let path_variable = env::var_os("PATH");
    let on_path = path_variable.iter().flat_map(env::split_paths);
    // An empty entry of PATH means the current folder.
    let mut first_refused = None;
    for folder in beside.clone().into_iter().chain(on_path) {
        let Ok(path) = std::path::absolute(folder.join(name)) else {
            continue;
        };
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            Err(e) => {
                first_refused.get_or_insert((path, e));
            }
        }
    }
    if let Some((path, e)) = first_refused
        && path.exists()
    {
        return Err(refused(&path, &e));
    }
    let beside = beside.map_or_else(
        || "beside the osier executable".to_owned(),
        |folder| format!("beside osier in {}", folder.display()),
    );
    let on_path = match &path_variable {
        Some(path) => format!("on PATH ({})", path.display()),
        None => "on PATH (which is not set)".to_owned(),
    };
    Err(Failure::new(
        NOT_FOUND,
        format!(
            "cannot find program '{}' (hint: sought {beside}, then {on_path}; \
             a path with a '/' in it is taken as it is)",
            name.display()
        ),
    ))
}

fn refused(path: &Path, e: &io::Error) -> Failure {
    let cause = match e.kind() {
        io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
        io::ErrorKind::PermissionDenied => format!(
            "permission denied (hint: is it executable? chmod +x {})",
            path.display()
        ),
        _ => super::cause(e),
    };
    Failure::new(
        NOT_EXECUTABLE,
        format!("cannot execute {}: {cause}", path.display()),
    )
}

fn executable(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let c_path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `c_path` is a C string.
    if unsafe { libc::access(c_path.as_ptr(), libc::X_OK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is() {
        assert_eq!(find(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find(OsStr::new("/no/such")).unwrap_err().code, NOT_FOUND);
        assert_eq!(
            find(OsStr::new("/etc/passwd")).unwrap_err().code,
            NOT_EXECUTABLE
        );
        assert_eq!(find(OsStr::new("/tmp")).unwrap_err().code, NOT_EXECUTABLE);
    }

    #[test]
    fn a_name_is_sought_in_both_places() {
        let exe = env::current_exe().unwrap();
        assert_eq!(find(exe.file_name().unwrap()).unwrap(), exe);
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        let missing = find(OsStr::new("no-such-program-anywhere")).unwrap_err();
        assert_eq!(missing.code, NOT_FOUND);
        assert!(missing.message.contains("beside osier in "));
        assert!(missing.message.contains("then on PATH ("));
    }
}
