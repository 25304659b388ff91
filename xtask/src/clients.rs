//! The programs that the tests of the way out use: clients, servers, and the
//! proxies that ours is measured against.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{
    cache::{Cache, Recipe},
    host,
};

/// What each package brings that is looked for, and what it is for. Where the
/// program comes from somewhere else, the package is not needed.
const PROGRAMS: [(&str, &str, &str); 15] = [
    ("/usr/bin/apt-get", "apt", "a client"),
    ("curl", "curl", "a client"),
    ("dpkg-deb", "dpkg", "a package to serve"),
    ("git", "git", "a client and a server"),
    ("go", "golang-go", "a client"),
    ("ip", "iproute2", "network namespaces"),
    ("javac", "default-jdk-headless", "a client"),
    ("node", "nodejs", "a client"),
    ("npm", "npm", "a client"),
    ("openssl", "openssl", "certificates"),
    ("/usr/sbin/sshd", "openssh-server", "a server"),
    ("/usr/sbin/squid", "squid", "a proxy to compare with"),
    ("tinyproxy", "tinyproxy", "a proxy to compare with"),
    ("wget", "wget", "a client"),
    (
        "/usr/lib/python3/dist-packages/pip",
        "python3-pip",
        "a client",
    ),
];
/// Of `PyPI`.
const PYTHON: [&str; 3] = ["aiohttp==3.11.18", "httpx==0.28.1", "requests==2.32.3"];
/// Of the npm registry.
const NODE: [&str; 1] = ["ws@8.18.0"];

/// The packages to install.
pub(crate) fn missing_programs() -> Vec<(&'static str, &'static str)> {
    PROGRAMS
        .into_iter()
        .filter(|(program, ..)| !has(program))
        .map(|(_, package, purpose)| (package, purpose))
        .collect()
}

/// All of the packages.
pub(crate) fn packages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROGRAMS
        .into_iter()
        .map(|(_, package, purpose)| (package, purpose))
}

/// Where the clients' libraries are: `python` and `node_modules`.
pub(crate) fn libraries() -> Result<PathBuf> {
    match Cache::open()?.find(&recipe()) {
        Some(libraries) => Ok(libraries),
        None => bail!("the clients' libraries are missing\n\nhint: run `cargo xtask setup`"),
    }
}

/// Fetches the clients' libraries. They are the same for every Python of the
/// distribution: the machine's own, which the tests use, and not one of a
/// user's.
pub(crate) fn make_libraries(cache: &Cache) -> Result<()> {
    if cache.find(&recipe()).is_some() {
        return Ok(());
    }
    eprintln!("setup: fetching the clients' libraries");
    cache.make(&recipe(), |entry, _| {
        host::run_with_progress(
            Command::new("/usr/bin/python3")
                .args(["-m", "pip", "install", "-q", "--no-warn-script-location"])
                .args(["--only-binary", ":all:", "--root-user-action", "ignore"])
                .arg("--target")
                .arg(entry.join("python"))
                .args(PYTHON),
        )?;
        host::run_with_progress(
            Command::new("npm")
                .args(["install", "--no-audit", "--no-fund", "--prefix"])
                .arg(entry)
                .args(NODE),
        )
    })
}

fn recipe() -> Recipe {
    let ingredients: Vec<_> = PYTHON.into_iter().chain(NODE).collect();
    Recipe::new("clients", &ingredients)
}

fn has(program: &str) -> bool {
    if program.starts_with('/') {
        Path::new(program).exists()
    } else {
        host::has(program)
    }
}
