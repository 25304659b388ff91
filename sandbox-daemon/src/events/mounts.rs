//! Where the file systems of a sandbox are mounted, so that a path from a
//! file system's root becomes one that the user knows.

use std::{
    cmp::Reverse,
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{Arc, Mutex},
};

use crate::sys::{Mount, parse_mountinfo};

/// A path as the kernel's walk met it: from its file system's root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// `s_dev`, major << 20 | minor.
    pub dev: u32,
    /// Starts with `/`, unless it was truncated at the root's end.
    pub path: Vec<u8>,
    /// What is missing is at its root's end.
    pub truncated: bool,
}

/// The mounts of one mount namespace.
pub struct Mounts {
    /// An open `/proc/PID/mountinfo`: reading it again gives the present state
    /// of the namespace it was opened in, whatever became of the process.
    source: Option<File>,
    mounts: Vec<Mount>,
}

/// Mounts that several execs see.
pub type SharedMounts = Arc<Mutex<Mounts>>;

impl Mounts {
    /// Reads an open `mountinfo`.
    pub fn new(source: File) -> io::Result<Self> {
        let mut mounts = Self {
            source: Some(source),
            mounts: Vec::new(),
        };
        mounts.refresh()?;
        Ok(mounts)
    }

    /// Mounts that never change.
    pub fn parse(mountinfo: &[u8]) -> io::Result<Self> {
        Ok(Self {
            source: None,
            mounts: parse_mountinfo(mountinfo).map_err(io::Error::other)?,
        })
    }

    /// As they were when they were read last.
    pub fn list(&self) -> &[Mount] {
        &self.mounts
    }

    /// The place as a path of the namespace. Reads the mounts anew if it is on
    /// a file system that was not there before.
    pub fn locate(&mut self, place: &Place) -> Vec<u8> {
        if !self.mounts.iter().any(|mount| mount.dev == place.dev) {
            // A process that ended takes nothing with it: the file stays open.
            // An error leaves the fallback below.
            let _ = self.refresh();
        }
        if place.truncated {
            let mut shown = b".../".to_vec();
            shown.extend_from_slice(place.path.strip_prefix(b"/").unwrap_or(&place.path));
            return shown;
        }
        self.mounted(place).unwrap_or_else(|| {
            let mut shown =
                format!("dev {}:{}: ", place.dev >> 20, place.dev & 0xf_ffff).into_bytes();
            shown.extend_from_slice(&place.path);
            shown
        })
    }

    /// Through the mount that shows the least beside it; of several the one
    /// with the shortest name.
    fn mounted(&self, place: &Place) -> Option<Vec<u8>> {
        self.mounts
            .iter()
            .filter(|mount| mount.dev == place.dev)
            .map(|mount| (bytes(&mount.root), bytes(&mount.point)))
            .filter_map(|(root, point)| Some((root, point, below(root, &place.path)?)))
            .max_by_key(|(root, point, _)| (root.len(), Reverse(point.len())))
            .map(|(_, point, rest)| {
                let point = point.strip_suffix(b"/").unwrap_or(point);
                let path = [point, rest].concat();
                if path.is_empty() { b"/".to_vec() } else { path }
            })
    }

    /// Reads the mounts anew.
    pub fn refresh(&mut self) -> io::Result<()> {
        let Some(source) = &mut self.source else {
            return Ok(());
        };
        let mut text = Vec::new();
        source.rewind()?;
        source.read_to_end(&mut text)?;
        self.mounts = Self::parse(&text)?.mounts;
        Ok(())
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// What of `path` lies below `root`: empty, or starting with a slash.
fn below<'a>(root: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(root.strip_suffix(b"/").unwrap_or(root))?;
    match rest {
        [] | [b'/'] => Some(&[]),
        [b'/', ..] => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &[u8] = b"\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /dev rw - devtmpfs udev rw
23 21 0:40 /@home /home rw - btrfs /dev/sdb rw
24 21 0:41 / /tmp rw - tmpfs tmpfs rw
25 24 8:1 /tmp/my\\040repo /tmp/my\\040repo rw - ext4 /dev/sda1 rw
26 21 8:1 /srv /mnt rw - ext4 /dev/sda1 rw
";

    fn locate(dev: u32, path: &[u8]) -> String {
        let place = Place {
            dev,
            path: path.to_vec(),
            truncated: false,
        };
        String::from_utf8(Mounts::parse(MOUNTINFO).unwrap().locate(&place)).unwrap()
    }

    const ROOT: u32 = 8 << 20 | 1;

    #[test]
    fn a_path_gets_its_mount_point() {
        assert_eq!(locate(ROOT, b"/etc/passwd"), "/etc/passwd");
        assert_eq!(locate(5, b"/kmsg"), "/dev/kmsg");
        assert_eq!(locate(5, b"/"), "/dev");
        assert_eq!(locate(ROOT, b"/"), "/");
    }

    #[test]
    fn the_root_of_a_bind_mount_or_subvolume_is_taken_off() {
        assert_eq!(locate(40, b"/@home/dev/.netrc"), "/home/dev/.netrc");
        assert_eq!(locate(40, b"/@home"), "/home");
        assert_eq!(locate(ROOT, b"/tmp/my repo/a"), "/tmp/my repo/a");
        assert_eq!(locate(ROOT, b"/srv/www"), "/mnt/www");
        assert_eq!(locate(ROOT, b"/srvx/www"), "/srvx/www");
    }

    #[test]
    fn an_unknown_file_system_is_named_by_its_device() {
        assert_eq!(locate(9 << 20 | 3, b"/x"), "dev 9:3: /x");
        assert_eq!(locate(40, b"/@snapshots/x"), "dev 0:40: /@snapshots/x");
    }

    #[test]
    fn a_truncated_path_says_so() {
        let place = Place {
            dev: ROOT,
            path: b"/deep/down".to_vec(),
            truncated: true,
        };
        assert_eq!(
            Mounts::parse(MOUNTINFO).unwrap().locate(&place),
            b".../deep/down"
        );
    }

    #[test]
    fn the_mounts_of_this_process_are_read() {
        let source = File::open("/proc/self/mountinfo").unwrap();
        let mounts = Mounts::new(source).unwrap();
        assert!(
            mounts
                .mounts
                .iter()
                .any(|mount| mount.point == Path::new("/"))
        );
    }
}
