//! Other names, made inside and outside.

use std::{fs, process::Command};

use nix::errno::Errno;

use crate::{
    client::{self, Ran, Run},
    expect::{Case, attack, check, compare},
    ground::{self, GROUND},
    host::{self, DEV, ROOT},
};

crate::trials![
    a_hard_link_to_a_denied_file_is_refused,
    a_hard_link_to_a_readable_file_is_a_cross_device_link,
    a_symbolic_link_made_inside_leads_nowhere_new,
    a_hard_link_that_was_made_outside_is_the_same_file,
    a_bind_mount_of_a_denied_directory_is_the_same_directory,
    a_denied_directory_that_is_renamed_outside_stays_denied,
];

async fn a_hard_link_to_a_denied_file_is_refused() {
    check(&[
        attack(&["link", "secret/key", "work/new"]).hidden(
            "link",
            "secret/key",
            "/srv/ground/secret",
        ),
        attack(&["link-open", "secret/key", "work/new"]).hidden(
            "link",
            "secret/key",
            "/srv/ground/secret",
        ),
        attack(&["link", "work/hidden", "work/new"]).hidden(
            "link",
            "work/hidden",
            "${workspace}/hidden",
        ),
        attack(&["link", "work/.env", "work/new"]).hidden("link", "work/.env", "**/.env"),
    ])
    .await;
}

async fn a_hard_link_to_a_readable_file_is_a_cross_device_link() {
    check(&[
        attack(&["link", "plain/file", "work/new"]).risen("link", "plain/file", "/"),
        attack(&["link-open", "plain/file", "work/new"]).risen("link", "plain/file", "/"),
        attack(&["link", "work/readonly/file", "work/new"]).risen(
            "link",
            "work/readonly/file",
            "${workspace}/readonly",
        ),
    ])
    .await;
}

async fn a_symbolic_link_made_inside_leads_nowhere_new() {
    check(&[
        attack(&["symlink", "../secret/key", "work/new"]).passes(),
        attack(&["read", "work/new"])
            .hidden("open", "secret/key", "/srv/ground/secret")
            .uncontrolled(),
        attack(&["symlink", "../plain", "work/new2"]).passes(),
        attack(&["append", "work/new2/file"])
            .kept("open", "plain/file", "/")
            .uncontrolled(),
    ])
    .await;
}

async fn a_hard_link_that_was_made_outside_is_the_same_file() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let hidden = format!("{GROUND}/work/hidden");
        fs::hard_link(&hidden, format!("{GROUND}/work/directory/alias")).unwrap();
        let object = "work/directory/alias";
        let cases = [
            attack(&["read", "work/directory/alias"]).hidden("open", object, "${workspace}/hidden"),
            attack(&["stat", "work/directory/alias"]).hidden("stat", object, "${workspace}/hidden"),
        ];
        run(uid, &cases).await;
        let answer = host::attack(uid, GROUND, &cases[0].step);
        assert_eq!(answer, "ok content of work/hidden");
    }
}

async fn a_bind_mount_of_a_denied_directory_is_the_same_directory() {
    ground::make(DEV);
    let mount = Mount::bind("/srv/ground/secret", "/srv/ground/plain/directory");
    let cases = [
        attack(&["read", "plain/directory/key"]).hidden("open", "secret/key", "/srv/ground/secret"),
        attack(&["list", "plain/directory"]).hidden("open", "secret", "/srv/ground/secret"),
    ];
    let ran = perform(DEV, &cases).await;
    assert_eq!(ran.lines(), ["ENOENT", "ENOENT"], "{ran:?}");
    for denial in &ran.denials {
        assert_eq!(denial.rule, "/srv/ground/secret", "{denial:#?}");
    }
    assert_eq!(ran.exited.denied, 2, "{ran:?}");
    let answer = host::attack(DEV, GROUND, &cases[0].step);
    assert_eq!(answer, "ok content of secret/key");
    drop(mount);
}

async fn a_denied_directory_that_is_renamed_outside_stays_denied() {
    ground::make(DEV);
    let steps: [&[&str]; 6] = [
        &["say", "ready"],
        &["wait"],
        &["read", "plain/moved/key"],
        &["list", "plain/moved"],
        // Another one under the old name.
        &["read", "secret/key"],
        &["list", "secret"],
    ];
    let mut client = client::root().await;
    let start = ground::attacker(DEV, &steps);
    let mut run = Run::start(&mut client, start).await.unwrap();
    assert_eq!(run.line().await, "ok ready");
    fs::rename("/srv/ground/secret", "/srv/ground/plain/moved").unwrap();
    fs::create_dir("/srv/ground/secret").unwrap();
    fs::write("/srv/ground/secret/key", "new\n").unwrap();
    run.write("x").await;
    let ran = run.end().await;
    assert_eq!(ran.lines()[2..], ["ENOENT"; 4], "{ran:?}");
    assert_eq!(ran.exited.denied, 4, "{ran:?}");
    for denial in &ran.denials {
        assert_eq!(denial.rule, "/srv/ground/secret", "{denial:#?}");
        assert_eq!(denial.errno, Errno::ENOENT as u32, "{denial:#?}");
    }
    let answer = host::attack(DEV, GROUND, steps[2]);
    assert_eq!(answer, "ok content of secret/key");
}

async fn run(uid: u32, cases: &[Case]) {
    let ran = perform(uid, cases).await;
    compare(uid, cases, &ran);
}

async fn perform(uid: u32, cases: &[Case]) -> Ran {
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    client::run(&mut client::root().await, ground::attacker(uid, &steps)).await
}

struct Mount(&'static str);

impl Mount {
    fn bind(from: &str, to: &'static str) -> Self {
        let status = Command::new("mount").args(["--bind", from, to]).status();
        assert!(status.unwrap().success());
        Self(to)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let status = Command::new("umount").arg(self.0).status();
        assert!(status.unwrap().success());
    }
}
