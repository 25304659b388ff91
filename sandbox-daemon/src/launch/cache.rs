//! `${cache}`: a directory per user and workspace, so that package managers
//! work inside and the host's own caches cannot be poisoned from there.

use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::{Account, LaunchError};

/// What leads each tool there; its directory below the cache, empty for the
/// cache itself.
const VARIABLES: [(&str, &str); 24] = [
    // Most programs that follow the XDG specification.
    ("XDG_CACHE_HOME", ""),
    ("BUN_INSTALL_CACHE_DIR", "bun"),
    ("BUNDLE_USER_CACHE", "bundle"),
    // Registry, git checkouts and installed binaries; `~/.cargo/bin` stays in
    // PATH, and `~/.cargo/credentials.toml` out of reach.
    ("CARGO_HOME", "cargo"),
    ("CCACHE_DIR", "ccache"),
    ("COMPOSER_CACHE_DIR", "composer"),
    ("CONDA_PKGS_DIRS", "conda"),
    ("DENO_DIR", "deno"),
    ("GOCACHE", "go-build"),
    ("GOMODCACHE", "go-mod"),
    ("GRADLE_USER_HOME", "gradle"),
    ("npm_config_cache", "npm"),
    ("npm_config_store_dir", "pnpm"),
    ("NUGET_PACKAGES", "nuget"),
    ("PIP_CACHE_DIR", "pip"),
    ("PIPENV_CACHE_DIR", "pipenv"),
    ("POETRY_CACHE_DIR", "poetry"),
    ("PRE_COMMIT_HOME", "pre-commit"),
    ("SCCACHE_DIR", "sccache"),
    ("TURBO_CACHE_DIR", "turbo"),
    ("UV_CACHE_DIR", "uv"),
    ("YARN_CACHE_FOLDER", "yarn"),
    // Berry's, which names it otherwise.
    ("YARN_GLOBAL_FOLDER", "yarn-berry"),
    ("ZIG_GLOBAL_CACHE_DIR", "zig"),
];

/// Where the cache of this user and workspace is, whether it is there or not.
pub fn cache_path(root: &Path, uid: u32, workspace: Option<&Path>) -> PathBuf {
    let leaf = workspace.map_or_else(|| "none".to_owned(), name);
    root.join(uid.to_string()).join(leaf)
}

/// Makes the directory for this user and workspace if it is missing.
pub fn cache_dir(
    root: &Path,
    account: &Account,
    workspace: Option<&Path>,
) -> Result<PathBuf, LaunchError> {
    let leaf = cache_path(root, account.uid, workspace);
    let user = leaf.parent().unwrap_or(root);
    let failed = |path: &Path, source| LaunchError::Cache {
        path: path.to_owned(),
        source,
    };
    own_dir(root, 0o755, (0, 0)).map_err(|source| failed(root, source))?;
    // Others cannot see for which workspaces there are caches.
    own_dir(user, 0o711, (0, 0)).map_err(|source| failed(user, source))?;
    own_dir(&leaf, 0o700, (account.uid, account.gid)).map_err(|source| failed(&leaf, source))?;
    Ok(leaf)
}

/// The variables that lead package managers to it.
pub fn cache_environment(cache: &Path) -> Vec<(String, String)> {
    VARIABLES
        .iter()
        .map(|(variable, dir)| {
            let path = if dir.is_empty() {
                cache.to_owned()
            } else {
                cache.join(dir)
            };
            ((*variable).to_owned(), path.to_string_lossy().into_owned())
        })
        .collect()
}

fn name(workspace: &Path) -> String {
    let digest = Sha256::digest(workspace.as_os_str().as_bytes());
    // Half of it is enough against chance, and nobody gains by a collision of
    // two workspaces of their own.
    let half = digest[..16].iter();
    half.fold(String::new(), |name, byte| format!("{name}{byte:02x}"))
}

/// Makes a directory, or makes sure that what is there is it. All above it is
/// root's, so nobody else can put something in its place.
fn own_dir(path: &Path, mode: u32, (uid, gid): (u32, u32)) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            chown(path, Some(uid), Some(gid))?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = fs::symlink_metadata(path)?;
            if there.is_dir() && there.uid() == uid {
                Ok(())
            } else {
                Err(io::Error::other(format!(
                    "it is there and is not a directory of uid {uid}; remove it"
                )))
            }
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workspace_has_a_cache_of_its_own() {
        let one = name(Path::new("/home/dev/one"));
        assert_eq!(one.len(), 32);
        assert_eq!(one, name(Path::new("/home/dev/one")));
        assert_ne!(one, name(Path::new("/home/dev/two")));
    }

    #[test]
    fn every_variable_leads_into_the_cache_and_is_there_once() {
        let cache = Path::new("/var/cache/sandboxd/1000/00");
        let environment = cache_environment(cache);
        assert!(
            environment
                .iter()
                .all(|(_, path)| Path::new(path).starts_with(cache))
        );
        let mut names: Vec<_> = environment.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), environment.len());
    }
}
