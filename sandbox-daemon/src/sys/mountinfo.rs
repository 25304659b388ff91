//! `/proc/PID/mountinfo`, as proc(5) describes it.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// The source of what the daemon mounts for a sandbox alone.
pub const OWN: &str = "sandboxd";

/// One mount of a mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount.
    pub id: u32,
    /// Number of the mount it is attached to.
    pub parent: u32,
    /// `s_dev` as the kernel holds it: 12 bits of major, 20 of minor.
    pub dev: u32,
    /// What of its file system this mount shows.
    pub root: PathBuf,
    /// Where it is attached, as seen from the reader's root.
    pub point: PathBuf,
    /// Type of the file system, such as `ext4`.
    pub fs_type: String,
    /// What is mounted, often a device.
    pub source: OsString,
    /// Options of the file system, as they stand there.
    pub options: Vec<u8>,
}

/// A line that is not as proc(5) says.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} of mountinfo cannot be understood: `{text}`")]
pub struct ParseMountError {
    /// Line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
}

impl Mount {
    /// Whether `path` lies at or below the mount point, by name alone.
    pub fn covers(&self, path: &Path) -> bool {
        path.starts_with(&self.point)
    }

    /// The directories that an overlay is made of, as they were called when it
    /// was mounted.
    pub fn layers(&self) -> Vec<PathBuf> {
        // Of the daemon's own it knows them.
        if self.fs_type != "overlay" || self.source == OWN {
            return Vec::new();
        }
        let mut layers = Vec::new();
        for option in self.options.split(|byte| *byte == b',') {
            let Some(at) = option.windows(3).position(|bytes| bytes == b"dir") else {
                continue;
            };
            let (name, rest) = option.split_at(at);
            let Some(value) = rest.iter().position(|byte| *byte == b'=') else {
                continue;
            };
            let value = unescape(&rest[value + 1..]).into_vec();
            match name {
                b"upper" => layers.push(PathBuf::from(OsString::from_vec(value))),
                b"lower" | b"data" => layers.extend(separate(&value)),
                _ => {}
            }
        }
        layers
    }
}

/// Parses the whole file; later mounts may cover earlier ones.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>, ParseMountError> {
    text.split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            parse_line(line).ok_or_else(|| ParseMountError {
                line: index + 1,
                text: String::from_utf8_lossy(line).escape_debug().to_string(),
            })
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let mut dev = fields.next()?.split(|byte| *byte == b':');
    let major = number(dev.next()?)?;
    let minor = number(dev.next()?)?;
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    // Options, then any number of tagged fields up to a lone hyphen.
    fields.by_ref().find(|field| *field == b"-")?;
    let fs_type = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let source = unescape(fields.next().unwrap_or_default());
    let options = fields.next().unwrap_or_default().to_vec();
    Some(Mount {
        id,
        parent,
        dev: major << 20 | minor,
        root: root.into(),
        point: point.into(),
        fs_type,
        source,
        options,
    })
}

/// Layers stand between colons; one that is of a name has a backslash before it.
fn separate(layers: &[u8]) -> Vec<PathBuf> {
    let mut found = vec![Vec::new()];
    let mut rest = layers.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b':' => found.push(Vec::new()),
            b'\\' => found
                .last_mut()
                .map_or((), |layer| layer.extend(rest.next())),
            byte => found.last_mut().map_or((), |layer| layer.push(*byte)),
        }
    }
    let layers = found.into_iter().filter(|layer| !layer.is_empty());
    layers
        .map(|layer| OsString::from_vec(layer).into())
        .collect()
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Space, tab, newline and backslash stand as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_with_tags_and_escapes_is_understood() {
        let text = b"36 35 98:5 /mnt1 /mnt\\0402 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let mounts = parse(text).unwrap();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].point, Path::new("/mnt 2"));
        assert_eq!(mounts[0].root, Path::new("/mnt1"));
        assert_eq!(mounts[0].dev, 98 << 20 | 5);
        assert_eq!(mounts[0].fs_type, "ext3");
        assert_eq!(mounts[1].fs_type, "cgroup2");
        assert!(mounts[1].covers(Path::new("/sys/fs/cgroup/unified/a")));
        assert!(!mounts[1].covers(Path::new("/sys/fs/cgroup/unified2")));
    }

    #[test]
    fn an_empty_source_is_a_source() {
        let mounts = parse(b"1 0 0:1 / / rw - tmpfs  rw\n");
        assert_eq!(mounts.unwrap()[0].source, "");
    }

    #[test]
    fn the_layers_of_an_overlay_are_found() {
        let text =
            b"1 0 0:1 / /m rw - overlay o rw,lowerdir=/a\\134:b:/c\\040d,upperdir=/u,workdir=/w\n\
            1 0 0:1 / /m rw - overlay o rw,lowerdir+=/e,datadir+=/f,redirect_dir=on\n\
            1 0 0:1 / /m rw - tmpfs o rw,lowerdir=/a\n";
        let mounts = parse(text).unwrap();
        let paths = |mount: &Mount| mount.layers();
        let all = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(paths(&mounts[0]), all(&["/a:b", "/c d", "/u"]));
        assert_eq!(paths(&mounts[1]), all(&["/e", "/f"]));
        assert_eq!(paths(&mounts[2]), all(&[]));
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = parse(b"1 0 0:1 / / rw - tmpfs none rw\nnonsense\n").unwrap_err();
        assert_eq!(error.line, 2);
        assert_eq!(error.text, "nonsense");
    }

    #[test]
    fn the_mounts_of_this_process_are_understood() {
        let mounts = parse(&std::fs::read("/proc/self/mountinfo").unwrap()).unwrap();
        assert!(mounts.iter().any(|mount| mount.point == Path::new("/")));
    }
}
