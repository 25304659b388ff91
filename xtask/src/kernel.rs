//! The kernels that tests run on: Debian's own, unpacked into the cache and
//! never installed, each with a disk of its modules and an initramfs.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::{
    cache::{Cache, Recipe},
    host,
    image::make_disk,
    modules::Modules,
};

/// What the guest needs before it has its root file system, and its ports.
const EARLY_MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "virtio_console"];
/// The programs that the initramfs runs, all of them busybox.
const EARLY_PROGRAMS: [&str; 7] = [
    "insmod",
    "mkdir",
    "mount",
    "sh",
    "switch_root",
    "uname",
    "usleep",
];
const INITRAMFS: &str = include_str!("../guest/initramfs.sh");

/// A kernel that everything must pass on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Kernel {
    #[value(name = "6.1")]
    V6_1,
    #[value(name = "6.12")]
    V6_12,
}

/// A kernel's files in the cache.
pub(crate) struct KernelFiles {
    directory: PathBuf,
}

impl KernelFiles {
    pub(crate) fn image(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    pub(crate) fn modules(&self) -> PathBuf {
        self.directory.join("modules.img")
    }
}

impl Kernel {
    pub(crate) const ALL: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// Those that were asked for; all of them where none was.
    pub(crate) fn or_all(asked: &[Self]) -> Vec<Self> {
        if asked.is_empty() {
            Self::ALL.to_vec()
        } else {
            asked.to_vec()
        }
    }

    /// `6.1`, as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }

    /// The Debian package that depends on the newest kernel of this series.
    fn package(self) -> &'static str {
        match self {
            Self::V6_1 => "linux-image-cloud-amd64",
            Self::V6_12 => "linux-image-6.12-cloud-amd64",
        }
    }

    fn recipe(self) -> Recipe {
        let mut ingredients = vec!["1", self.package(), INITRAMFS];
        ingredients.extend(EARLY_MODULES);
        ingredients.extend(EARLY_PROGRAMS);
        Recipe::new(format!("kernel-{}", self.name()), &ingredients)
    }

    pub(crate) fn find(self, cache: &Cache) -> Option<KernelFiles> {
        let directory = cache.find(&self.recipe())?;
        Some(KernelFiles { directory })
    }

    /// Downloads and unpacks this kernel, and makes its disk and initramfs.
    pub(crate) fn make(self, cache: &Cache) -> Result<()> {
        cache.make(&self.recipe(), |entry, scratch| {
            let tree = scratch.join("kernel");
            unpack(&self.newest()?, scratch, &tree)?;
            let release = release(&tree, self)?;
            let modules = tree.join("lib/modules").join(&release);
            let image = tree.join(format!("boot/vmlinuz-{release}"));
            fs::copy(image, entry.join("vmlinuz")).context("cannot copy the kernel")?;
            host::capture(Command::new("depmod").arg("-b").arg(&tree).arg(&release))?;
            make_disk(Command::new, &modules, &entry.join("modules.img"), 0)?;

            let busybox = scratch.join("busybox");
            unpack("busybox-static", scratch, &busybox)?;
            make_initramfs(
                &modules,
                &busybox.join("bin/busybox"),
                &scratch.join("initramfs"),
                &entry.join("initramfs"),
            )
        })
    }

    fn newest(self) -> Result<String> {
        let depends = host::capture(Command::new("apt-cache").args(["depends", self.package()]))?;
        let package = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|package| package.starts_with(&format!("linux-image-{}.", self.name())));
        match package {
            Some(package) => Ok(package.to_owned()),
            None => bail!(
                "apt offers no kernel {} as `{}`\n\n\
                 hint: the kernels are those of Debian 12 (bookworm and bookworm-security); \
                 add its sources to apt and run `apt-get update`",
                self.name(),
                self.package()
            ),
        }
    }
}

/// Downloads a package and unpacks it to `tree`.
fn unpack(package: &str, scratch: &Path, tree: &Path) -> Result<()> {
    let downloads = scratch.join(format!("{package}.download"));
    fs::create_dir(&downloads)?;
    host::run_with_progress(
        Command::new("apt-get")
            // As root, apt downloads as another user who has no access here.
            .args(["download", "-q", "-o", "APT::Sandbox::User=root", package])
            .current_dir(&downloads),
    )?;
    let archive = fs::read_dir(&downloads)?
        .next()
        .with_context(|| format!("apt downloaded nothing for `{package}`"))??
        .path();
    host::run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(tree))
}

/// The release string, `6.1.0-57-cloud-amd64`, of an unpacked kernel.
fn release(tree: &Path, kernel: Kernel) -> Result<String> {
    let directory = tree.join("lib/modules");
    let entry = fs::read_dir(&directory)
        .with_context(|| format!("the package of kernel {} has no modules", kernel.name()))?
        .next()
        .with_context(|| format!("`{}` is empty", directory.display()))??;
    entry
        .file_name()
        .into_string()
        .ok()
        .context("the kernel's release is not UTF-8")
}

fn make_initramfs(modules: &Path, busybox: &Path, tree: &Path, archive: &Path) -> Result<()> {
    for directory in ["bin", "dev", "modules", "proc", "root"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    fs::copy(busybox, tree.join("bin/busybox")).context("cannot copy busybox")?;
    for program in EARLY_PROGRAMS {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(program))?;
    }
    let init = tree.join("init");
    fs::write(&init, INITRAMFS)?;
    host::run(Command::new("chmod").arg("755").arg(&init))?;

    let read = |name: &str| {
        fs::read_to_string(modules.join(name)).with_context(|| format!("cannot read `{name}`"))
    };
    let known = Modules::parse(&read("modules.dep")?, &read("modules.builtin")?);
    let mut order = String::new();
    for path in known.in_order(&EARLY_MODULES)? {
        let file = path.rsplit('/').next().unwrap_or(path);
        let name = file.trim_end_matches(".xz");
        let target = tree.join("modules").join(name);
        if name == file {
            fs::copy(modules.join(path), target)?;
        } else {
            let mut xz = Command::new("xz");
            xz.args(["-dc"]).arg(modules.join(path));
            let status = xz.stdout(File::create(target)?).status();
            if !status.context("cannot start `xz`")?.success() {
                bail!("`xz` cannot unpack the module `{path}`");
            }
        }
        order += name;
        order.push('\n');
    }
    fs::write(tree.join("modules/order"), order)?;
    archive_tree(tree, archive)
}

/// An initramfs is a cpio archive; the kernel takes it uncompressed.
fn archive_tree(tree: &Path, archive: &Path) -> Result<()> {
    let list = host::capture(Command::new("find").arg(".").current_dir(tree))?;
    let mut cpio = Command::new("cpio")
        .args(["--create", "--format=newc", "--quiet", "--owner=+0:+0"])
        .current_dir(tree)
        .stdin(Stdio::piped())
        .stdout(File::create(archive)?)
        .spawn()
        .context("cannot start `cpio`")?;
    if let Some(mut stdin) = cpio.stdin.take() {
        std::io::Write::write_all(&mut stdin, list.as_bytes())?;
    }
    if !cpio.wait()?.success() {
        bail!("`cpio` cannot pack the initramfs");
    }
    Ok(())
}
