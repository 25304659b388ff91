//! File systems that are mounted and unmounted while a sandbox runs.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};
use sandbox_daemon::proto::Start;

use super::asked::{answer, becomes};
use crate::{
    client::{self, Run},
    disk::Disk,
    ground::{self, GROUND, WORK},
    host::{self, DEV},
};

crate::trials![
    what_is_mounted_later_has_the_rule_of_its_place,
    a_disk_that_is_mounted_later_has_the_rule_of_its_place,
    a_denied_directory_that_is_mounted_elsewhere_stays_denied,
    what_may_be_read_is_not_written_through_a_mount_of_it,
    what_is_denied_is_never_there_while_mounts_come_and_go,
];

/// A mount that ends with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &str) -> Self {
        mount(
            Some("tmpfs"),
            at,
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )
        .unwrap();
        Self(at.into())
    }

    fn bind(from: &str, at: &str) -> Self {
        let none = None::<&str>;
        mount(Some(from), at, none, MsFlags::MS_BIND, none).unwrap();
        Self(at.into())
    }

    fn file(&self, name: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("content of {name}\n")).unwrap();
        chown(&path, Some(DEV), Some(DEV)).unwrap();
        chown(&self.0, Some(DEV), Some(DEV)).unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever has just opened a file there is gone soon.
        for _ in 0..100 {
            match umount2(&self.0, MntFlags::empty()) {
                Err(Errno::EBUSY) => thread::sleep(Duration::from_millis(20)),
                // What hides a failed test is worse.
                _ => return,
            }
        }
    }
}

async fn mounted_later(mounted: impl Fn(&str) -> Box<dyn FnOnce()>) {
    ground::make(DEV);
    let mut client = client::root().await;
    let client = &mut client;
    let sandbox = client::create(client, ground::spec(DEV)).await.id;
    let places = ["work/empty", "secret/directory", "work/readonly/directory"];
    let mounts: Vec<_> = places
        .iter()
        .map(|place| mounted(&format!("{GROUND}/{place}")))
        .collect();
    let read: &[&str] = &["read", "work/empty/file"];
    becomes(client, &sandbox, read, "ok content of file").await;
    becomes(
        client,
        &sandbox,
        &["open", "work/empty/made", "creat"],
        "ok",
    )
    .await;
    becomes(
        client,
        &sandbox,
        &["read", "work/readonly/directory/file"],
        "ok content of file",
    )
    .await;
    for (step, expected) in [
        (["append", "work/readonly/directory/file"], "EACCES"),
        (["read", "secret/directory/file"], "ENOENT"),
        (["append", "secret/directory/file"], "ENOENT"),
        (["unlink", "work/readonly/directory/file"], "EACCES"),
    ] {
        assert_eq!(answer(client, &sandbox, &step).await, expected, "{step:?}");
        assert!(host::attack(DEV, GROUND, &step).starts_with("ok"));
    }
    for unmount in mounts {
        unmount();
    }
    assert_eq!(answer(client, &sandbox, read).await, "ENOENT");
    let create: &[&str] = &["open", "work/empty/again", "creat"];
    becomes(client, &sandbox, create, "ok").await;
    assert!(Path::new(WORK).join("empty/again").exists());
    let hidden: &[&str] = &["list", "secret/directory"];
    assert_eq!(answer(client, &sandbox, hidden).await, "ENOENT");
    client::delete(client, &sandbox).await;
}

async fn what_is_mounted_later_has_the_rule_of_its_place() {
    mounted_later(|place| {
        let mounted = Mounted::tmpfs(place);
        mounted.file("file");
        Box::new(move || drop(mounted))
    })
    .await;
}

async fn a_disk_that_is_mounted_later_has_the_rule_of_its_place() {
    mounted_later(|place| {
        let disk = Disk::make("ext4", &[]).mounted(place);
        disk.file("file", DEV);
        Box::new(move || drop(disk))
    })
    .await;
}

async fn a_denied_directory_that_is_mounted_elsewhere_stays_denied() {
    ground::make(DEV);
    let mut client = client::root().await;
    let client = &mut client;
    let sandbox = client::create(client, ground::spec(DEV)).await.id;
    let bound = Mounted::bind(&format!("{GROUND}/secret"), &format!("{WORK}/empty"));
    let nested = Mounted::bind(
        &format!("{GROUND}/secret/directory"),
        &format!("{WORK}/directory"),
    );
    fs::write(format!("{GROUND}/secret/directory/file"), "x\n").unwrap();
    let marker = Mounted::tmpfs(&format!("{WORK}/allowed"));
    marker.file("file");
    let steps: [&[&str]; 4] = [
        &["read", "work/empty/key"],
        &["append", "work/empty/key"],
        &["open", "work/empty/made", "creat"],
        &["read", "work/directory/file"],
    ];
    let expected = ["ENOENT", "ENOENT", "EACCES", "ENOENT"];
    for (step, expected) in steps.iter().zip(expected) {
        assert_eq!(answer(client, &sandbox, step).await, expected, "{step:?}");
    }
    // And once the daemon has looked.
    let ready: &[&str] = &["read", "work/allowed/file"];
    becomes(client, &sandbox, ready, "ok content of file").await;
    for (step, expected) in steps.iter().zip(expected) {
        assert_eq!(answer(client, &sandbox, step).await, expected, "{step:?}");
        assert!(
            host::attack(DEV, GROUND, step).starts_with("ok"),
            "{step:?}"
        );
    }
    client::delete(client, &sandbox).await;
    fs::remove_file(format!("{GROUND}/secret/made")).unwrap();
    // A sandbox that begins with it.
    let ran = client::run(client, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.lines(), expected, "{ran:?}");
    assert_eq!(ran.exited.denied, 4, "{ran:?}");
    drop((marker, nested, bound));
}

async fn what_may_be_read_is_not_written_through_a_mount_of_it() {
    ground::make(DEV);
    let mut client = client::root().await;
    let bound = Mounted::bind(&format!("{GROUND}/plain"), &format!("{WORK}/empty"));
    let steps: [&[&str]; 3] = [
        &["read", "work/empty/file"],
        &["append", "work/empty/file"],
        &["open", "work/empty/directory/made", "creat"],
    ];
    let ran = client::run(&mut client, ground::attacker(DEV, &steps)).await;
    let expected = ["ok content of plain/file", "EACCES", "EACCES"];
    assert_eq!(ran.lines(), expected, "{ran:?}");
    assert_eq!(ran.exited.denied, 2, "{ran:?}");
    assert_eq!(host::attack(DEV, GROUND, steps[1]), "ok");
    drop(bound);
}

async fn what_is_denied_is_never_there_while_mounts_come_and_go() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, ground::spec(DEV)).await;
    let places = ["secret/directory", "work/empty", "work/directory"];
    fs::write(format!("{GROUND}/secret/directory/file"), "leaked\n").unwrap();
    let mut runs = Vec::new();
    for path in ["secret/directory/file", "work/empty/file"] {
        let start = Start {
            cwd: GROUND.into(),
            ..client::start_in(
                &sandbox.id,
                &client::attacker(&[&["say", "ready"], &["hammer", path]]),
            )
        };
        let mut run = Run::start(&mut client.clone(), start).await.unwrap();
        assert_eq!(run.line().await, "ok ready");
        runs.push(run);
    }
    for _ in 0..20 {
        let mounts = places.map(|place| {
            let place = format!("{GROUND}/{place}");
            if place.contains("work") {
                // The same files, which are denied.
                Mounted::bind(&format!("{GROUND}/secret/directory"), &place)
            } else {
                let mounted = Mounted::tmpfs(&place);
                mounted.file("file");
                mounted
            }
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        // It is mounted at the denied place for as long as anywhere else.
        mounts.into_iter().rev().for_each(drop);
    }
    for mut run in runs {
        run.write("x").await;
        assert_eq!(run.line().await, "ENOENT", "it got through once");
        let ran = run.end().await;
        let (told, lost) = ran.told();
        assert_eq!(told + lost, ran.exited.denied, "{:?}", ran.lost);
    }
    client::delete(&mut client, &sandbox.id).await;
}
