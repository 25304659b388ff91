//! The cache of what is too big for a checkout: kernels, the root image, the
//! BPF linker. An entry is a directory named by its recipe, appears whole or
//! not at all, and is never changed afterwards.

use std::{
    env,
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};

use crate::host;

/// An entry of another recipe, which another checkout may still use, goes when
/// nobody has used it for this long.
const KEEP_UNUSED: Duration = Duration::from_hours(14 * 24);

/// `$XDG_CACHE_HOME/sandboxd`.
pub(crate) struct Cache {
    root: PathBuf,
}

/// What an entry is made from. Two recipes that differ have different entries.
pub(crate) struct Recipe {
    noun: String,
    hash: u64,
}

impl Recipe {
    /// `ingredients` is all that decides the content: scripts, package names.
    pub(crate) fn new(noun: impl Into<String>, ingredients: &[&str]) -> Self {
        let mut hasher = DefaultHasher::new();
        ingredients.hash(&mut hasher);
        Self {
            noun: noun.into(),
            hash: hasher.finish(),
        }
    }

    fn directory(&self) -> String {
        format!("{}-{:016x}", self.noun, self.hash)
    }
}

impl Cache {
    pub(crate) fn open() -> Result<Self> {
        let base = match env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
            Some(base) => PathBuf::from(base),
            None => env::home_dir()
                .context("neither `XDG_CACHE_HOME` nor `HOME` is set")?
                .join(".cache"),
        };
        let root = base.join("sandboxd");
        fs::create_dir_all(&root).with_context(|| format!("cannot create `{}`", root.display()))?;
        Ok(Self { root })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    /// The entry's directory, when it has been made.
    pub(crate) fn find(&self, recipe: &Recipe) -> Option<PathBuf> {
        let entry = self.root.join(recipe.directory());
        if !entry.is_dir() {
            return None;
        }
        // Remembers the use; an entry that cannot be touched is as good.
        let _ = File::open(&entry).and_then(|entry| entry.set_modified(SystemTime::now()));
        Some(entry)
    }

    /// Makes an entry: `make` fills its first directory, which is then renamed
    /// to its name, so that an interruption leaves none. The second is for what
    /// is needed only meanwhile.
    pub(crate) fn make(
        &self,
        recipe: &Recipe,
        make: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<()> {
        let _lock = self.lock()?;
        if self.find(recipe).is_some() {
            return Ok(());
        }
        let entry = self.root.join(recipe.directory());
        let partial = self.root.join(format!("{}.partial", recipe.directory()));
        remove(&partial)?;
        let scratch = partial.join("scratch");
        fs::create_dir_all(&scratch)
            .with_context(|| format!("cannot create `{}`", scratch.display()))?;
        if let Err(error) = make(&partial, &scratch) {
            remove(&partial)?;
            return Err(error);
        }
        remove(&scratch)?;
        fs::rename(&partial, &entry)
            .with_context(|| format!("cannot name `{}`", entry.display()))?;
        self.forget_unused(recipe)
    }

    /// One setup at a time; the second waits and then finds everything there.
    fn lock(&self) -> Result<File> {
        let path = self.root.join("lock");
        let lock =
            File::create(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
        if lock.try_lock().is_err() {
            eprintln!("xtask: waiting for another setup to finish");
            lock.lock()
                .with_context(|| format!("cannot lock `{}`", path.display()))?;
        }
        Ok(lock)
    }

    fn forget_unused(&self, recipe: &Recipe) -> Result<()> {
        let prefix = format!("{}-", recipe.noun);
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let modified = entry.metadata()?.modified()?;
            let unused = modified
                .elapsed()
                .is_ok_and(|elapsed| elapsed > KEEP_UNUSED);
            if unused && entry.file_name().to_string_lossy().starts_with(&prefix) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // The tree of a root image belongs to root.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            host::run(host::as_root("rm").arg("-rf").arg(directory))
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot remove `{}`", directory.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        (directory, Cache { root })
    }

    #[test]
    fn a_changed_recipe_is_another_entry() {
        let (_directory, cache) = cache();
        let old = Recipe::new("image", &["git"]);
        let new = Recipe::new("image", &["git", "curl"]);
        cache.make(&old, |_, _| Ok(())).unwrap();
        assert!(cache.find(&old).is_some());
        assert!(cache.find(&new).is_none());
    }

    #[test]
    fn an_entry_has_no_scratch() {
        let (_directory, cache) = cache();
        let recipe = Recipe::new("image", &[]);
        cache
            .make(&recipe, |entry, scratch| {
                fs::write(entry.join("disk"), "")?;
                Ok(fs::write(scratch.join("tree"), "")?)
            })
            .unwrap();
        let entry = cache.find(&recipe).unwrap();
        assert!(entry.join("disk").exists());
        assert!(!entry.join("scratch").exists());
    }

    #[test]
    fn a_failure_leaves_no_entry() {
        let (directory, cache) = cache();
        let recipe = Recipe::new("image", &[]);
        let made = cache.make(&recipe, |entry, _| {
            fs::write(entry.join("half"), "")?;
            anyhow::bail!("interrupted")
        });
        assert!(made.is_err());
        assert!(cache.find(&recipe).is_none());
        let left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["lock"]);
    }
}
