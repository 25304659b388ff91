//! The directory that a sandbox is for.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Account, LaunchError, PRIVATE_PLACES, as_user};

/// Finds the workspace as its user reaches it; without symbolic links.
pub fn open_workspace(account: &Account, path: &Path) -> Result<PathBuf, LaunchError> {
    if !path.is_absolute() {
        return Err(LaunchError::WorkspaceRelative {
            path: path.to_owned(),
        });
    }
    let real = as_user(account, || reach(path))
        .and_then(|real| real)
        .map_err(|source| LaunchError::Workspace {
            path: path.to_owned(),
            user: account.name.clone(),
            source,
        })?;
    match refusal(&real) {
        Some(why) => Err(LaunchError::WorkspaceRefused { path: real, why }),
        None => Ok(real),
    }
}

fn reach(path: &Path) -> io::Result<PathBuf> {
    let real = fs::canonicalize(path)?;
    // Through the directory itself: it must be one, and may be searched.
    fs::metadata(real.join("."))?;
    Ok(real)
}

fn refusal(path: &Path) -> Option<&'static str> {
    if path == Path::new("/") {
        return Some("it is the whole machine");
    }
    let shared = PRIVATE_PLACES
        .iter()
        .any(|place| fs::canonicalize(place).is_ok_and(|place| place == path));
    shared.then_some("every program on the machine shares it, and a sandbox has its own")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_machine_and_shared_places_are_refused() {
        for place in ["/", "/tmp", "/var/tmp", "/dev/shm"] {
            assert!(refusal(Path::new(place)).is_some(), "{place}");
        }
        assert_eq!(refusal(Path::new("/tmp/work")), None);
    }

    #[test]
    fn a_file_is_not_a_workspace() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = reach(file.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn a_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        fs::create_dir(&work).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&work, &link).unwrap();
        assert_eq!(reach(&link).unwrap(), fs::canonicalize(&work).unwrap());
    }
}
