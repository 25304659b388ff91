//! An ephemeral workspace: what a command writes is in an overlay, the real tree
//! stays as it was, and nothing is left when the sandbox has gone.

use std::{
    fs,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    },
    path::{Path, PathBuf},
};

use nix::mount::{MsFlags, mount, umount};
use sandbox_daemon::launch::{Ephemeral, ExitStatus, LaunchError, View, ViewSpec};

use crate::support::{Scratch, USER, account, work_dir};

fn view(workspace: &Path, disk: Option<u64>) -> Result<View, LaunchError> {
    View::new(ViewSpec {
        account: account(USER),
        keep: vec![workspace.to_owned()],
        private_places: true,
        ephemeral: Some(Ephemeral {
            workspace: workspace.to_owned(),
            disk,
        }),
    })
}

/// A workspace of the user's with a file, a directory and a link in it.
fn workspace() -> tempfile::TempDir {
    let dir = work_dir(USER);
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("file"), "real\n").unwrap();
    fs::write(at("dir/deep"), "deep\n").unwrap();
    symlink("file", at("link")).unwrap();
    for name in ["dir", "file", "dir/deep"] {
        chown(at(name), Some(USER), Some(USER)).unwrap();
    }
    dir
}

/// Everything that can be seen of a tree.
fn tree(root: &Path) -> Vec<(PathBuf, u32, u64, i64, i64, Vec<u8>)> {
    let mut seen = Vec::new();
    let mut rest = vec![root.to_owned()];
    while let Some(path) = rest.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut content = Vec::new();
        if meta.is_dir() {
            rest.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        } else if meta.is_file() {
            content = fs::read(&path).unwrap();
        }
        let times = (meta.mtime_nsec(), meta.ctime_nsec());
        seen.push((path, meta.mode(), meta.ino(), times.0, times.1, content));
    }
    seen.sort();
    seen
}

/// A POSIX ACL as the kernel has it: of the owner, a user, the group, the mask, others.
fn acl(user: u32, rights: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries = [
        (0x01_u16, 7_u16, NOBODY),
        (0x02, rights, user),
        (0x04, 0, NOBODY),
        (0x10, 7, NOBODY),
        (0x20, 5, NOBODY),
    ];
    let version = 2_u32.to_le_bytes();
    let entries = entries.into_iter().flat_map(|(tag, rights, id)| {
        let (tag, rights) = (tag.to_le_bytes(), rights.to_le_bytes());
        [&tag[..], &rights, &id.to_le_bytes()].concat()
    });
    version.into_iter().chain(entries).collect()
}

#[tokio::test]
async fn acls_of_the_workspace_itself_hold_inside() {
    let (scratch, account, dir) = (Scratch::new(), account(USER), workspace());
    chown(dir.path(), Some(0), Some(0)).unwrap();
    let script = format!(
        "cd {} && (>new) 2>/dev/null && echo made",
        dir.path().display()
    );
    for (rights, said) in [(7, "made\n"), (5, "")] {
        for name in ["system.posix_acl_access", "system.posix_acl_default"] {
            xattr::set(dir.path(), name, &acl(USER, rights)).unwrap();
        }
        let view = view(dir.path(), None).unwrap();
        let ran = scratch.run(&view, &account, &["sh", "-c", &script]).await;
        assert_eq!(ran.unwrap().stdout, said);
        let merged = format!(
            "/proc/self/fd/{}",
            view.layers().unwrap().merged.as_raw_fd()
        );
        for name in ["system.posix_acl_access", "system.posix_acl_default"] {
            let inside = xattr::get_deref(&merged, name).unwrap();
            assert_eq!(inside, Some(acl(USER, rights)), "{name}");
        }
    }
}

#[tokio::test]
async fn what_is_written_is_seen_inside_and_nowhere_else() {
    let (scratch, account, dir) = (Scratch::new(), account(USER), workspace());
    let before = tree(dir.path());
    let view = view(dir.path(), None).unwrap();
    let script = format!(
        "cd {} && echo more >> file && echo new > new && rm dir/deep && mv dir moved \
         && ln -sfn elsewhere link && chmod 600 file && cat file new && ls moved && readlink link",
        dir.path().display()
    );
    let ran = scratch.run(&view, &account, &["sh", "-c", &script]).await;
    let ran = ran.unwrap();
    assert_eq!(ran.stdout, "real\nmore\nnew\nelsewhere\n");
    assert_eq!(ran.status, ExitStatus::Code(0));
    assert_eq!(tree(dir.path()), before);
    // A later command of the same sandbox finds it, and so does the daemon.
    let cat = ["cat".to_owned(), format!("{}/new", dir.path().display())];
    let cat: Vec<&str> = cat.iter().map(String::as_str).collect();
    let ran = scratch.run(&view, &account, &cat).await.unwrap();
    assert_eq!(ran.stdout, "new\n");
    let merged = view.layers().unwrap().merged.as_raw_fd();
    let seen = fs::read(format!("/proc/self/fd/{merged}/new")).unwrap();
    assert_eq!(seen, b"new\n");
    // The control: without the overlay it is written.
    let direct = crate::support::private_view(&account, &[dir.path()]).unwrap();
    let ran = scratch.run(&direct, &account, &["sh", "-c", &script]).await;
    assert_eq!(ran.unwrap().status, ExitStatus::Code(0));
    assert_ne!(tree(dir.path()), before);
}

#[tokio::test]
async fn the_workspace_itself_looks_as_it_did() {
    let (scratch, account, dir) = (Scratch::new(), account(USER), workspace());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2750)).unwrap();
    let view = view(dir.path(), None).unwrap();
    let path = dir.path().to_str().unwrap();
    let stat = ["stat", "-c", "%a %u %g", path];
    let ran = scratch.run(&view, &account, &stat).await.unwrap();
    assert_eq!(ran.stdout, format!("2750 {USER} {USER}\n"));
}

#[tokio::test]
async fn changes_take_no_more_than_they_may() {
    let (scratch, account, dir) = (Scratch::new(), account(USER), workspace());
    let view = view(dir.path(), Some(4 << 20)).unwrap();
    let fill = |mib: u32| format!("head -c {mib}M /dev/zero > {}/big", dir.path().display());
    let (fits, too_much) = (fill(2), fill(8));
    let ran = scratch.run(&view, &account, &["sh", "-c", &fits]).await;
    assert_eq!(ran.unwrap().status, ExitStatus::Code(0));
    let ran = scratch.run(&view, &account, &["sh", "-c", &too_much]).await;
    let ran = ran.unwrap();
    assert_ne!(ran.status, ExitStatus::Code(0));
    assert!(ran.stdout.contains("No space left"), "{}", ran.stdout);
    // Empty files are not for nothing either.
    let files = format!("cd {} && seq 6000 | xargs touch", dir.path().display());
    let ran = scratch.run(&view, &account, &["sh", "-c", &files]).await;
    let ran = ran.unwrap();
    assert!(ran.stdout.contains("No space left"), "{}", ran.stdout);
}

#[tokio::test]
async fn nothing_is_mounted_outside_and_nothing_is_left() {
    let dir = workspace();
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let view = view(dir.path(), None).unwrap();
    let inside = view.mounts().unwrap();
    let overlays = inside.iter().filter(|mount| mount.fs_type == "overlay");
    let ours: Vec<_> = overlays.filter(|it| it.point == dir.path()).collect();
    assert_eq!(ours.len(), 1, "{inside:?}");
    // Its upper layer is attached nowhere.
    let at_workspace = inside.iter().filter(|it| it.point.starts_with(dir.path()));
    assert!(
        at_workspace.clone().all(|it| it.fs_type != "tmpfs"),
        "{inside:?}"
    );
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
    drop(view);
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
}

#[tokio::test]
async fn a_workspace_behind_a_closed_directory_is_refused() {
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let open = closed.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = view(&open, None).unwrap_err();
    assert!(
        matches!(&refused, LaunchError::Workspace { .. }),
        "{refused}"
    );
    // The control: with the way to it open it is one.
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(view(&open, None).unwrap());
}

#[tokio::test]
async fn a_workspace_with_a_mount_in_it_is_refused() {
    let dir = workspace();
    let below = dir.path().join("dir");
    let none = None::<&str>;
    mount(Some("x"), &below, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    let refused = view(dir.path(), None);
    umount(&below).unwrap();
    let refused = refused.unwrap_err();
    assert!(
        matches!(&refused, LaunchError::MountedBelow { point, .. } if *point == below),
        "{refused}"
    );
    drop(view(dir.path(), None).unwrap());
}

#[tokio::test]
async fn names_that_mount_options_could_mistake_are_only_names() {
    let (scratch, account, outer) = (Scratch::new(), account(USER), work_dir(USER));
    let odd = outer.path().join("a,b:c\\d upperdir=x");
    fs::create_dir(&odd).unwrap();
    chown(&odd, Some(USER), Some(USER)).unwrap();
    let view = view(&odd, None).unwrap();
    let path = odd.join("made");
    let touch = ["touch", path.to_str().unwrap()];
    let ran = scratch.run(&view, &account, &touch).await.unwrap();
    assert_eq!(ran.status, ExitStatus::Code(0), "{}", ran.stdout);
    assert!(!path.exists());
}
