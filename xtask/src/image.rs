//! The root image of the virtual machines: Debian bookworm with what the
//! sandboxed programs of the tests need, and decoy credentials.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    cache::{Cache, Recipe},
    glibc, host,
};

const SUITE: &str = "bookworm";
const PACKAGES: [&str; 45] = [
    "acl",
    "attr",
    "bindfs",
    "btrfs-progs",
    "bubblewrap",
    "busybox",
    "ca-certificates",
    "curl",
    "dbus",
    "dosfstools",
    "e2fsprogs",
    "file",
    "gcc",
    "git",
    "iproute2",
    "iputils-ping",
    "keyutils",
    "kmod",
    "less",
    "libc6-dev",
    "libcap2-bin",
    "make",
    "netcat-openbsd",
    "nodejs",
    "npm",
    "openssh-client",
    "procps",
    "psmisc",
    "python3",
    "python3-grpc-tools",
    "python3-grpcio",
    "python3-pip",
    "python3-pytest",
    "python3-setuptools",
    "python3-venv",
    "python3-wheel",
    "rsync",
    "socat",
    "sqlite3",
    "strace",
    "tmux",
    "uidmap",
    "util-linux",
    "vim-tiny",
    "xz-utils",
];
/// Nobody reads these there, and they are a third of the image.
const LEFT_OUT: [&str; 4] = [
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
];
const CUSTOMIZE: &str = include_str!("../guest/image.sh");
/// Debian's own archive, for hosts whose apt knows no bookworm.
const ARCHIVE: &str = "\
deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian bookworm-updates main
deb http://deb.debian.org/debian-security bookworm-security main
";

/// The root image in the cache.
pub(crate) struct Image {
    directory: PathBuf,
}

impl Image {
    pub(crate) fn find(cache: &Cache) -> Option<Self> {
        let directory = cache.find(&recipe())?;
        Some(Self { directory })
    }

    /// Installs Debian into a directory and makes a disk of it.
    pub(crate) fn make(cache: &Cache) -> Result<()> {
        cache.make(&recipe(), |entry, scratch| {
            let tree = make_tree(scratch)?;
            fs::write(entry.join("glibc"), glibc_of(&tree)?)?;
            // Room for what tests write; the file stays sparse.
            make_disk(host::as_root, &tree, &entry.join("root.img"), 3 << 10)
        })
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.directory.join("root.img")
    }

    /// The version of the image's glibc.
    pub(crate) fn glibc(&self) -> Result<glibc::Version> {
        let path = self.directory.join("glibc");
        fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?
            .parse()
    }
}

/// Makes an ext4 file system of `tree` in the file `disk`, with `spare`
/// mebibytes left free. `start` says with whose rights the tree is read.
pub(crate) fn make_disk(
    start: fn(&'static str) -> Command,
    tree: &Path,
    disk: &Path,
    spare: u64,
) -> Result<()> {
    let used = host::capture(start("du").args(["-s", "-m", "--apparent-size"]).arg(tree))?;
    let used: u64 = used
        .split_whitespace()
        .next()
        .and_then(|used| used.parse().ok())
        .context("`du` printed no size")?;
    File::create(disk)
        .and_then(|file| file.set_len((used * 3 / 2 + 32 + spare) << 20))
        .with_context(|| format!("cannot create `{}`", disk.display()))?;
    host::capture(
        start("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-m", "0"])
            // The guest would otherwise write the inode tables and a journal.
            .args(["-O", "^has_journal", "-E", "lazy_itable_init=0", "-d"])
            .args([tree, disk]),
    )
    .map(|_| ())
}

fn recipe() -> Recipe {
    let mut ingredients = vec!["1", SUITE, CUSTOMIZE];
    ingredients.extend(PACKAGES);
    ingredients.extend(LEFT_OUT);
    Recipe::new("image", &ingredients)
}

fn make_tree(scratch: &Path) -> Result<PathBuf> {
    let tree = scratch.join("tree");
    let customize = scratch.join("customize");
    fs::write(&customize, CUSTOMIZE)?;
    let sources = scratch.join("sources.list");
    fs::write(&sources, sources_list()?)?;

    let mut mmdebstrap = host::as_root("mmdebstrap");
    mmdebstrap
        .args(["--mode=root", "--variant=minbase", "--format=directory"])
        .arg(format!("--include={}", PACKAGES.join(",")))
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .arg(format!(
            "--customize-hook=sh '{}' \"$1\"",
            customize.display()
        ));
    for pattern in LEFT_OUT {
        mmdebstrap.arg(format!("--dpkgopt=path-exclude={pattern}"));
    }
    for option in acquire_options()? {
        mmdebstrap.arg(format!("--aptopt={option}"));
    }
    host::run_with_progress(mmdebstrap.arg(SUITE).arg(&tree).arg(sources))?;
    Ok(tree)
}

/// Where this host's apt gets bookworm from, so that a nearby mirror is used
/// here too.
fn sources_list() -> Result<String> {
    let format = "$(ORIGIN) $(CODENAME) deb $(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = host::capture(Command::new("apt-get").args([
        "indextargets",
        "--format",
        format,
        "Created-By: Packages",
    ]))?;
    let lines = bookworm_sources(&targets);
    Ok(if lines.is_empty() {
        ARCHIVE.to_owned()
    } else {
        lines
    })
}

fn bookworm_sources(targets: &str) -> String {
    let mut sources = String::new();
    for line in targets.lines() {
        let mut words = line.splitn(3, ' ');
        let debian = words.next() == Some("Debian");
        let bookworm = words.next().is_some_and(|name| name.starts_with(SUITE));
        if let (true, true, Some(source)) = (debian, bookworm, words.next()) {
            sources += source;
            sources.push('\n');
        }
    }
    sources
}

/// How this host's apt reaches its sources: proxies, and what it is told to
/// overlook about their age.
fn acquire_options() -> Result<Vec<String>> {
    let dump = host::capture(Command::new("apt-config").arg("dump"))?;
    let options = dump.lines().filter(|line| {
        line.starts_with("Acquire::Check-")
            || (line.starts_with("Acquire::http") && line.contains("::Proxy"))
    });
    Ok(options
        .map(|option| option.trim_end_matches(';').to_owned())
        .collect())
}

fn glibc_of(tree: &Path) -> Result<String> {
    let mut query = Command::new("dpkg-query");
    query
        .arg(format!(
            "--admindir={}",
            tree.join("var/lib/dpkg").display()
        ))
        .args(["-W", "-f", "${Version}", "libc6"]);
    host::capture(&mut query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_bookworm_is_taken_from_the_hosts_apt() {
        let targets = "\
Debian bookworm deb http://deb.debian.org/debian/ bookworm main
Debian bookworm-security deb http://deb.debian.org/debian-security/ bookworm-security main
Debian trixie deb http://deb.debian.org/debian/ trixie main
Node nodistro deb https://deb.example.com/ nodistro main
";
        assert_eq!(
            bookworm_sources(targets),
            "deb http://deb.debian.org/debian/ bookworm main\n\
             deb http://deb.debian.org/debian-security/ bookworm-security main\n"
        );
    }
}
