//! The disk that carries one run into its virtual machine: the guest's first
//! process, the project as a package would install it, the files that were put
//! there, and the command.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{glibc, host, image::make_disk};

const INIT: &str = include_str!("../guest/init.sh");
/// Mebibytes that a test may write beside what was put.
const SPARE: u64 = 256;

/// What goes onto the disk. Every method adds one thing.
pub(crate) struct Payload {
    tree: PathBuf,
    glibc: glibc::Version,
}

impl Payload {
    /// An empty one, gathered in the directory `tree`, for a guest with this
    /// glibc.
    pub(crate) fn new(tree: PathBuf, glibc: glibc::Version) -> Result<Self> {
        for directory in ["files", "put"] {
            fs::create_dir_all(tree.join(directory))?;
        }
        let payload = Self { tree, glibc };
        payload.note("init", INIT)?;
        host::run(
            Command::new("chmod")
                .arg("755")
                .arg(payload.tree.join("init")),
        )?;
        Ok(payload)
    }

    /// A small file for the guest's first process.
    pub(crate) fn note(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        fs::write(self.tree.join(name), content)
            .with_context(|| format!("cannot write the payload's `{name}`"))
    }

    /// Words that are passed on byte for byte.
    pub(crate) fn words(&self, name: &str, words: &[OsString]) -> Result<()> {
        let mut content = Vec::new();
        for word in words {
            content.extend_from_slice(word.as_bytes());
            content.push(0);
        }
        self.note(name, content)
    }

    /// A program at `path` in the guest, without its debug information, which
    /// would be copied for nothing.
    pub(crate) fn program(&self, from: &Path, path: &str) -> Result<()> {
        glibc::check(from, self.glibc)?;
        let to = self.file(path)?;
        host::run(
            Command::new("strip")
                .arg("--strip-debug")
                .arg("-o")
                .args([&to, from]),
        )
    }

    /// A file or directory at `path` in the guest.
    pub(crate) fn copy(&self, from: &Path, path: &str) -> Result<()> {
        let to = self.file(path)?;
        copy(from, &to)
    }

    /// A file or directory at `/mnt/put/`, under its own name.
    pub(crate) fn put(&self, from: &Path) -> Result<()> {
        let from = from
            .canonicalize()
            .with_context(|| format!("cannot find `{}`", from.display()))?;
        let Some(name) = from.file_name() else {
            bail!("`{}` has no name to be put under", from.display());
        };
        let to = self.tree.join("put").join(name);
        if to.exists() {
            bail!("two paths to put are named `{}`", name.display());
        }
        glibc::check(&from, self.glibc)?;
        copy(&from, &to)
    }

    /// Makes the disk.
    pub(crate) fn write(&self, disk: &Path) -> Result<()> {
        make_disk(Command::new, &self.tree, disk, SPARE)
    }

    fn file(&self, path: &str) -> Result<PathBuf> {
        let file = self.tree.join("files").join(path.trim_start_matches('/'));
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        Ok(file)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    host::run(
        Command::new("cp")
            .args(["-a", "--no-preserve=ownership", "--"])
            .args([from, to]),
    )
}
