//! A tree of files to attack, and the policy that guards it. It is made anew
//! for every attack, and owned by whoever attacks.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    path::Path,
};

use sandbox_daemon::proto::{SandboxSpec, Start};

use crate::client;

/// Where it lies.
pub(crate) const GROUND: &str = "/srv/ground";

/// What may be written.
pub(crate) const WORK: &str = "/srv/ground/work";

/// `secret` and what is in it do not exist, `plain` may be read, `work` may be
/// written but for `work/readonly` and for some names.
pub(crate) const POLICY: &str = r#"
version = 1
name = "ground"

[files]
read = ["/", "${workspace}/readonly", "${workspace}/pinned/deep/file", "${workspace}/open.env"]
write = ["${workspace}", "${tmp}", "@devices", "${workspace}/allowed/.env"]
deny = [
  "/srv/ground/secret",
  "${workspace}/hidden",
  "${workspace}/missing",
  "${workspace}/gone/below/file",
  "**/.env",
  "**/*.pem",
  "${workspace}/**/local.cfg",
]

[network]
mode = "none"
"#;

const DIRECTORIES: [&str; 14] = [
    "",
    "secret",
    "secret/directory",
    "plain",
    "plain/directory",
    "work",
    "work/directory",
    "work/empty",
    "work/readonly",
    "work/readonly/directory",
    "work/pinned",
    "work/pinned/deep",
    "work/allowed",
    "work/.venv",
];

const FILES: [&str; 16] = [
    "secret/key",
    "plain/file",
    "plain/.env",
    "plain/other.pem",
    "plain/local.cfg",
    "work/file",
    "work/other",
    "work/directory/file",
    "work/readonly/file",
    "work/hidden",
    "work/pinned/deep/file",
    "work/.env",
    "work/allowed/.env",
    "work/key.pem",
    "work/directory/local.cfg",
    "work/.venv/file",
];

const PROGRAM: &str = "secret/program";

const LINKS: [(&str, &str); 4] = [
    ("/srv/ground/secret/key", "work/to-secret"),
    ("../secret", "work/to-directory"),
    ("key", "secret/link"),
    ("file", "plain/link"),
];

/// Makes it for a user, in the place of an earlier one.
pub(crate) fn make(uid: u32) {
    let root = Path::new(GROUND);
    if root.exists() {
        fs::remove_dir_all(root).unwrap();
    }
    for directory in DIRECTORIES {
        let path = root.join(directory);
        fs::create_dir_all(&path).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
    }
    for file in FILES {
        let path = root.join(file);
        fs::write(&path, format!("content of {file}\n")).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
    }
    fs::write(root.join(PROGRAM), "#!/bin/true\n").unwrap();
    fs::set_permissions(root.join(PROGRAM), fs::Permissions::from_mode(0o755)).unwrap();
    for (target, link) in LINKS {
        let path = root.join(link);
        symlink(target, &path).unwrap();
        lchown(&path, Some(uid), Some(uid)).unwrap();
    }
}

/// A sandbox for it.
pub(crate) fn spec(uid: u32) -> SandboxSpec {
    client::spec(uid, client::policy(POLICY), WORK)
}

/// An attacker in a sandbox, standing in front of it.
pub(crate) fn attacker(uid: u32, steps: &[&[&str]]) -> Start {
    Start {
        cwd: GROUND.into(),
        ..client::start(spec(uid), &client::attacker(steps))
    }
}
