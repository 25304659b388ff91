//! A sandbox's view of the file system, acting as a user, workspace and cache.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    panic,
    path::Path,
};

use sandbox_daemon::{
    launch::{ExitStatus, LaunchError, as_user, cache_dir, open_workspace},
    sys::{Capabilities, Credentials},
};

use crate::support::{
    OTHER, Scratch, USER, account, host_view, private_view, wait_until, work_dir,
};

#[tokio::test]
async fn temporary_files_are_the_sandboxs_own() {
    let scratch = Scratch::new();
    let account = account(USER);
    let outside = work_dir(USER);
    let view = private_view(&account, &[]).unwrap();
    let script = format!(
        "set -e; test ! -e {}; for d in /tmp /var/tmp /dev/shm; do echo x > $d/{name}; stat -c %a $d; done",
        outside.path().display(),
        name = "sandbox-private-probe",
    );
    let result = scratch
        .run(&view, &account, &["sh", "-c", &script])
        .await
        .unwrap();
    assert_eq!(result.stdout, "1777\n1777\n1777\n");
    assert_eq!(result.status, ExitStatus::Code(0));
    for place in ["/tmp", "/var/tmp", "/dev/shm"] {
        assert!(!Path::new(place).join("sandbox-private-probe").exists());
    }
    // A later command of the same sandbox finds them, another sandbox does not.
    let cat = ["cat", "/tmp/sandbox-private-probe"];
    assert_eq!(
        scratch.run(&view, &account, &cat).await.unwrap().stdout,
        "x\n"
    );
    let other = private_view(&account, &[]).unwrap();
    let result = scratch.run(&other, &account, &cat).await.unwrap();
    assert_eq!(result.status, ExitStatus::Code(1));
}

#[tokio::test]
async fn system_v_objects_are_the_sandboxs_own() {
    let scratch = Scratch::new();
    let account = account(USER);
    // Nobody else's size.
    let size = (4096 * (1 + u64::from(std::process::id()))).to_string();
    let seen = |text: &str| text.lines().any(|line| line.contains(&size));
    let list = ["cat", "/proc/sysvipc/shm"];
    let outside = || fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let view = private_view(&account, &[]).unwrap();
    let made = scratch
        .run(&view, &account, &["ipcmk", "-M", &size])
        .await
        .unwrap();
    assert_eq!(made.status, ExitStatus::Code(0), "{made:?}");
    // A later command of the same sandbox finds it, nobody else does.
    let inside = scratch.run(&view, &account, &list).await.unwrap();
    assert!(seen(&inside.stdout), "{inside:?}");
    assert!(!seen(&outside()));
    let other = private_view(&account, &[]).unwrap();
    let inside = scratch.run(&other, &account, &list).await.unwrap();
    assert!(!seen(&inside.stdout), "{inside:?}");
    // The control: without private places they are the host's.
    let hosts = host_view(&account);
    let made = scratch
        .run(&hosts, &account, &["ipcmk", "-M", &size])
        .await
        .unwrap();
    assert!(seen(&outside()), "{made:?}");
    let id = made.stdout.trim().rsplit(' ').next().unwrap().to_owned();
    let gone = scratch
        .run(&hosts, &account, &["ipcrm", "-m", &id])
        .await
        .unwrap();
    assert_eq!(gone.status, ExitStatus::Code(0), "{gone:?}");
}

#[tokio::test]
async fn no_mount_is_seen_outside_or_left_behind() {
    let account = account(USER);
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let view = private_view(&account, &[]).unwrap();
    let inside = view.mounts().unwrap();
    for place in ["/tmp", "/var/tmp", "/dev/shm"] {
        let place = fs::canonicalize(place).unwrap();
        let top = inside
            .iter()
            .rev()
            .find(|mount| mount.point == place)
            .unwrap();
        assert_eq!(
            (top.fs_type.as_str(), top.source.to_str()),
            ("tmpfs", Some("sandboxd"))
        );
        let device = view.call({
            let place = place.clone();
            move || fs::metadata(place).unwrap().dev()
        });
        assert_eq!(libc::major(device) << 20 | libc::minor(device), top.dev);
    }
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
    drop(view);
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
}

#[test]
fn a_later_mount_of_the_hosts_comes_in_and_none_goes_out() {
    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
    };
    // A host of its own, whose mounts are shared as systemd has them.
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none).unwrap();
        let mounts = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let before = mounts();
        let view = private_view(&account(USER), &[]).unwrap();
        assert_eq!(mounts(), before);
        mount(Some("later"), "/mnt", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        let inside = view.mounts().unwrap();
        assert!(inside.iter().any(|mount| mount.source == "later"));
    })
    .join()
    .unwrap();
}

#[tokio::test]
async fn a_workspace_below_tmp_keeps_its_place() {
    let scratch = Scratch::new();
    let account = account(USER);
    let dir = work_dir(USER);
    let work = dir.path().join("a/work");
    fs::create_dir_all(&work).unwrap();
    fs::write(work.join("in"), "in").unwrap();
    fs::write(dir.path().join("file"), "kept").unwrap();
    fs::write(dir.path().join("secret"), "").unwrap();
    chown(&work, Some(USER), Some(USER)).unwrap();
    let missing = dir.path().join("missing");
    let file = dir.path().join("file");
    let inner = work.join("in");
    let view = private_view(
        &account,
        &[
            &inner,
            &work,
            &file,
            &missing,
            Path::new("/tmp"),
            Path::new("/usr"),
        ],
    )
    .unwrap();
    let script = format!(
        "cd {work} && cat in ../../file && echo out > out && ls -A {dir} && ls -A /tmp | wc -l",
        work = work.display(),
        dir = dir.path().display(),
    );
    let result = scratch
        .run(&view, &account, &["sh", "-c", &script])
        .await
        .unwrap();
    assert_eq!(result.stdout, "inkepta\nfile\n1\n");
    assert_eq!(fs::read_to_string(work.join("out")).unwrap(), "out\n");
    assert_eq!(fs::metadata(work.join("out")).unwrap().uid(), USER);
}

#[test]
fn a_place_that_the_user_cannot_reach_is_not_bound() {
    let dir = work_dir(OTHER);
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
    let seen_by = |uid| {
        let inner = inner.clone();
        private_view(&account(uid), &[&inner])
            .unwrap()
            .call(move || inner.exists())
    };
    assert!(!seen_by(USER));
    assert!(seen_by(OTHER));
}

#[test]
fn a_kept_link_may_lead_into_a_kept_directory() {
    let dir = work_dir(USER);
    let work = dir.path().join("work");
    let inner = work.join("inner");
    fs::create_dir_all(&inner).unwrap();
    let link = dir.path().join("a-link");
    std::os::unix::fs::symlink(&inner, &link).unwrap();
    let view = private_view(&account(USER), &[&link, &work]).unwrap();
    assert!(view.call(move || inner.exists()));
}

#[test]
fn jobs_run_inside_as_root_and_their_panics_come_back() {
    let view = private_view(&account(USER), &[]).unwrap();
    let (uid, capabilities) = view.call(|| {
        fs::write("/tmp/root-was-here", "").unwrap();
        (
            fs::metadata("/tmp/root-was-here").unwrap().uid(),
            Capabilities::get().unwrap(),
        )
    });
    assert_eq!(uid, 0);
    assert_eq!(capabilities, Capabilities::get().unwrap());
    assert!(!Path::new("/tmp/root-was-here").exists());
    let result = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        view.call(|| panic!("on purpose"))
    }));
    assert!(result.is_err());
    assert_eq!(view.call(|| 1), 1);
}

#[tokio::test]
async fn a_launch_leaves_the_thread_as_it_was() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let before = view.call(|| Credentials::current().unwrap());
    scratch.run(&view, &account, &["true"]).await.unwrap();
    assert!(
        scratch
            .run(&view, &account, &["no-such-command"])
            .await
            .is_err()
    );
    assert_eq!(view.call(|| Credentials::current().unwrap()), before);
}

#[test]
fn the_launch_thread_ends_with_its_view() {
    let threads = || {
        fs::read_dir("/proc/self/task")
            .unwrap()
            .flatten()
            .filter(|task| {
                fs::read_link(task.path().join("ns/mnt"))
                    .is_ok_and(|namespace| namespace != fs::read_link("/proc/self/ns/mnt").unwrap())
            })
            .map(|task| fs::read_link(task.path().join("ns/mnt")).unwrap())
            .collect::<Vec<_>>()
    };
    let view = private_view(&account(USER), &[]).unwrap();
    let own = view.call(|| fs::read_link("/proc/thread-self/ns/mnt").unwrap());
    assert!(threads().contains(&own));
    drop(view);
    assert!(wait_until(|| !threads().contains(&own)));
}

#[test]
fn files_are_touched_with_the_users_rights_alone() {
    let before = Credentials::current().unwrap();
    let dir = work_dir(USER);
    let file = dir.path().join("file");
    let secret = dir.path().join("secret");
    fs::write(&secret, "").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(fs::read(&secret).is_ok());
    let (created, read) = as_user(&account(USER), || {
        (fs::write(&file, "x"), fs::read(&secret))
    })
    .unwrap();
    created.unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(fs::metadata(&file).unwrap().uid(), USER);
    assert_eq!(Credentials::current().unwrap(), before);

    let root = sandbox_daemon::launch::Account::by_uid(0).unwrap();
    chown(&secret, Some(USER), Some(USER)).unwrap();
    let read = as_user(&root, || fs::read(&secret)).unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn a_panic_as_a_user_leaves_the_thread_as_it_was() {
    let before = Credentials::current().unwrap();
    let result = panic::catch_unwind(|| as_user(&account(USER), || panic!("on purpose")));
    assert!(result.is_err());
    assert_eq!(Credentials::current().unwrap(), before);
}

#[test]
fn a_workspace_is_found_with_the_users_rights() {
    let mine = work_dir(USER);
    let others = work_dir(OTHER);
    let user = account(USER);
    assert_eq!(
        open_workspace(&user, mine.path()).unwrap(),
        fs::canonicalize(mine.path()).unwrap()
    );
    for (path, expected) in [
        (others.path(), "cannot be opened as user `user60001`"),
        (Path::new("/no/such/dir"), "cannot be opened as user"),
        (Path::new("relative"), "is not an absolute path"),
        (Path::new("/"), "cannot be a workspace"),
        (Path::new("/tmp"), "cannot be a workspace"),
        (Path::new("/etc/passwd"), "cannot be opened as user"),
    ] {
        let error = open_workspace(&user, path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_cache_is_the_users_alone() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("cache");
    let workspace = Path::new("/home/dev/project");
    let cache = cache_dir(&root, &account(USER), Some(workspace)).unwrap();
    let seen = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.uid(), metadata.mode() & 0o7777)
    };
    assert_eq!(seen(&root), (0, 0o755));
    assert_eq!(seen(cache.parent().unwrap()), (0, 0o711));
    assert_eq!(seen(&cache), (USER, 0o700));
    assert_eq!(
        cache_dir(&root, &account(USER), Some(workspace)).unwrap(),
        cache
    );
    assert_ne!(
        cache_dir(&root, &account(OTHER), Some(workspace)).unwrap(),
        cache
    );

    fs::remove_dir(&cache).unwrap();
    std::os::unix::fs::symlink("/etc", &cache).unwrap();
    assert!(matches!(
        cache_dir(&root, &account(USER), Some(workspace)),
        Err(LaunchError::Cache { .. })
    ));
}
