//! Files that only root reads: directories of 0700, files of 0600, in directories
//! that nobody else can replace.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use sandbox_proxy::credential::{MAX_SECRET, SecretValue};
use zeroize::Zeroizing;

use super::SecretError;

/// A file on its way to its name. No secret begins with a dot.
pub(super) const DRAFT: &str = ".new";

/// What of a path is there, without symbolic links, and the rest as it is.
pub(super) fn real(path: &Path) -> Result<PathBuf, SecretError> {
    for above in path.ancestors() {
        match above.canonicalize() {
            Ok(real) => {
                let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
                // A path that ends in a slash is another one.
                return Ok(if rest == Path::new("") {
                    real
                } else {
                    real.join(rest)
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("find", above)(error)),
        }
    }
    Ok(path.to_path_buf())
}

/// Refuses a directory of which another user could replace what is in it: it, or
/// one above it.
pub(super) fn check_road(path: &Path) -> Result<(), SecretError> {
    for above in path.ancestors() {
        let Some(metadata) = look(above)? else {
            continue;
        };
        if ![0, geteuid().as_raw()].contains(&metadata.uid()) {
            return Err(exposed(above, "belongs to another user than root"));
        }
        // In a sticky one nobody replaces what is another's.
        if metadata.mode() & 0o022 != 0 && metadata.mode() & 0o1000 == 0 {
            return Err(exposed(above, "can be written by others than root"));
        }
    }
    Ok(())
}

/// Whether a directory of secrets is there.
pub(super) fn has_directory(path: &Path) -> Result<bool, SecretError> {
    let Some(metadata) = look(path)? else {
        return Ok(false);
    };
    if !metadata.is_dir() {
        return Err(exposed(path, "is not a directory"));
    }
    check(path, &metadata)?;
    Ok(true)
}

/// Makes a directory of secrets, unless it is there.
pub(super) fn make_directory(path: &Path) -> Result<(), SecretError> {
    if has_directory(path)? {
        return Ok(());
    }
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder.create(path).map_err(failed("make", path))?;
    sync_directory(path.parent().unwrap_or(path))
}

/// Reads a secret; none: it is not there.
pub(super) fn read(path: &Path) -> Result<Option<SecretValue>, SecretError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(exposed(path, "is not a file"));
        }
        Err(error) => return Err(failed("open", path)(error)),
    };
    let metadata = file.metadata().map_err(failed("look at", path))?;
    if !metadata.is_file() {
        return Err(exposed(path, "is not a file"));
    }
    check(path, &metadata)?;
    // With room for all of it: a buffer that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_SECRET + 1));
    let mut limited = file.take(MAX_SECRET as u64 + 1);
    limited
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    let unfit = |_| failed("use", path)(io::ErrorKind::InvalidData.into());
    value(bytes).map(Some).map_err(unfit)
}

/// A value from its bytes.
pub(super) fn value(mut bytes: Zeroizing<Vec<u8>>) -> Result<SecretValue, SecretError> {
    let text = String::from_utf8(std::mem::take(&mut *bytes)).map_err(|error| {
        drop(Zeroizing::new(error.into_bytes()));
        SecretError::Value
    })?;
    SecretValue::new(text).ok_or(SecretError::Value)
}

/// Writes a secret beside its place and moves it there; what was there is there
/// until then.
pub(super) fn replace(path: &Path, value: &SecretValue) -> Result<(), SecretError> {
    let draft = path.with_file_name(DRAFT);
    // Of a daemon that died over it.
    remove(&draft)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .map_err(failed("make", &draft))?;
    let written = file
        .write_all(value.expose().as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&draft);
        failed("write", path)(error)
    })
}

/// Removes a file; whether it was there.
pub(super) fn remove(path: &Path) -> Result<bool, SecretError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("remove", path)(error)),
    }
}

/// Makes what was moved or removed last.
pub(super) fn sync_directory(path: &Path) -> Result<(), SecretError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("write", path))
}

pub(super) fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SecretError {
    let path = path.to_path_buf();
    move |source| SecretError::Io { what, path, source }
}

/// Without following a link; none: nothing is there.
fn look(path: &Path) -> Result<Option<Metadata>, SecretError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("look at", path)(error)),
    }
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), SecretError> {
    if metadata.uid() != geteuid().as_raw() {
        return Err(exposed(path, "does not belong to root"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(exposed(path, "may be used by others than root"));
    }
    Ok(())
}

fn exposed(path: &Path, problem: &'static str) -> SecretError {
    let path = path.to_path_buf();
    SecretError::Exposed { path, problem }
}
