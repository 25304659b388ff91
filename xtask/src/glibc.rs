//! Whether a program runs with the root image's glibc: a binary names the
//! versions of the symbols that it needs.

use std::{
    fmt,
    fs::{self, File},
    io::Read as _,
    path::Path,
    str::FromStr,
};

use anyhow::{Context as _, Result, anyhow, bail};
use object::{
    Endianness,
    elf::FileHeader64,
    read::elf::{FileHeader as _, SectionHeader as _},
};

/// A glibc version, such as 2.36.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl FromStr for Version {
    type Err = anyhow::Error;

    /// Takes a Debian version too: `2.36-9+deb12u14`.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (major, rest) = text.trim().split_once('.')?;
            let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            Some(Self {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        };
        parse().ok_or_else(|| anyhow!("`{text}` is not a glibc version"))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Refuses a program, or a directory with one below it, that needs a newer
/// glibc than `offered`. What is no ELF file, or needs no glibc, passes.
pub(crate) fn check(path: &Path, offered: Version) -> Result<()> {
    let cannot_read = || format!("cannot read `{}`", path.display());
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(cannot_read)? {
            let entry = entry.with_context(cannot_read)?;
            // Links go into the guest as links.
            if !entry.file_type().with_context(cannot_read)?.is_symlink() {
                check(&entry.path(), offered)?;
            }
        }
        return Ok(());
    }
    let mut start = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read(&mut start));
    if read.with_context(cannot_read)? < start.len() || start != *b"\x7fELF" {
        return Ok(());
    }
    let data = fs::read(path).with_context(cannot_read)?;
    let needed = needed(&data)
        .with_context(|| format!("cannot read the symbol versions of `{}`", path.display()))?;
    match needed {
        Some(needed) if needed > offered => bail!(
            "`{}` needs glibc {needed}, but the virtual machine's Debian has {offered}\n\n\
             hint: build on Debian 12, or in a container of it",
            path.display()
        ),
        _ => Ok(()),
    }
}

fn needed(data: &[u8]) -> Result<Option<Version>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let Some((mut libraries, link)) = sections.gnu_verneed(endian, data)? else {
        return Ok(None);
    };
    let strings = sections
        .section(link)?
        .strings(endian, data)?
        .context("the version section names no string table")?;
    let mut newest = None;
    while let Some((_, mut symbols)) = libraries.next()? {
        while let Some(symbol) = symbols.next()? {
            newest = newest.max(version_of(symbol.name(endian, strings)?));
        }
    }
    Ok(newest)
}

/// `GLIBC_2.34` is 2.34; `GLIBC_PRIVATE`, `GCC_3.0` are none.
fn version_of(symbol: &[u8]) -> Option<Version> {
    str::from_utf8(symbol)
        .ok()?
        .strip_prefix("GLIBC_")?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let old: Version = "2.9".parse().unwrap();
        let new: Version = "2.36-9+deb12u14".parse().unwrap();
        assert!(new > old);
        assert_eq!(new.to_string(), "2.36");
    }

    #[test]
    fn only_glibc_symbols_count() {
        assert_eq!(version_of(b"GLIBC_2.34"), "2.34".parse().ok());
        assert_eq!(version_of(b"GLIBC_PRIVATE"), None);
        assert_eq!(version_of(b"GCC_3.0"), None);
    }

    #[test]
    fn a_program_that_needs_more_is_refused() {
        let this = std::env::current_exe().unwrap();
        check(&this, "99.0".parse().unwrap()).unwrap();
        let error = check(&this, "2.1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("needs glibc 2."), "{error}");
    }

    #[test]
    fn a_directory_is_checked_through_and_scripts_pass() {
        let directory = tempfile::tempdir().unwrap();
        let old = "2.1".parse().unwrap();
        fs::write(directory.path().join("run.sh"), "#!/bin/sh\n").unwrap();
        check(directory.path(), old).unwrap();
        let below = directory.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::copy(std::env::current_exe().unwrap(), below.join("program")).unwrap();
        assert!(check(directory.path(), old).is_err());
    }
}
