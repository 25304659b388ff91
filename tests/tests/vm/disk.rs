//! File systems of every kind, in files, made for one test.

use std::{
    fs::{self, File},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
};

/// Where they are made: what sandboxes cannot reach by another name.
const DISKS: &str = "/var/lib/test-disks";

/// A file system in a file.
pub(crate) struct Disk {
    file: PathBuf,
    kind: &'static str,
}

impl Disk {
    /// Makes one, with options for its `mkfs`.
    pub(crate) fn make(kind: &'static str, options: &[&str]) -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        run(Command::new("modprobe").args(["-a", "loop", kind]));
        fs::create_dir_all(DISKS).unwrap();
        let file = Path::new(DISKS).join(format!("{kind}-{number}"));
        let megabytes = if kind == "btrfs" { 128 } else { 16 };
        File::create(&file)
            .and_then(|file| file.set_len(megabytes << 20))
            .unwrap();
        let mut make = Command::new(format!("mkfs.{kind}"));
        run(make.args(options).arg(&file));
        Self { file, kind }
    }

    /// Mounts it.
    pub(crate) fn mounted(self, at: &str) -> MountedDisk {
        self.mounted_with(at, "loop")
    }

    /// Mounts it with options.
    pub(crate) fn mounted_with(self, at: &str, options: &str) -> MountedDisk {
        fs::create_dir_all(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", self.kind, "-o", options]);
        run(mount.arg(&self.file).arg(at));
        MountedDisk {
            at: at.into(),
            file: self.file,
        }
    }
}

/// One that is mounted, until it is dropped.
pub(crate) struct MountedDisk {
    at: PathBuf,
    file: PathBuf,
}

impl MountedDisk {
    /// Makes a file in it; its root is the user's too.
    pub(crate) fn file(&self, name: &str, uid: u32) {
        let path = self.at.join(name);
        fs::write(&path, format!("content of {name}\n")).unwrap();
        // Not every file system has owners.
        let _ = chown(&path, Some(uid), Some(uid));
        let _ = chown(&self.at, Some(uid), Some(uid));
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        // Whoever has just opened a file there is gone soon.
        let unmounted = (0..100).any(|_| {
            let unmounted = umount2(&self.at, MntFlags::empty());
            if unmounted == Err(Errno::EBUSY) {
                thread::sleep(Duration::from_millis(20));
            }
            unmounted != Err(Errno::EBUSY)
        });
        let _ = fs::remove_file(&self.file);
        if !thread::panicking() {
            assert!(unmounted, "{} stays busy", self.at.display());
        }
    }
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
