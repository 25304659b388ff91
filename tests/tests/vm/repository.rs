//! A workspace that others filled: links to what it must not reach, and a place
//! to carry files out of what a policy says.

use std::{fs, os::unix::fs::symlink, path::Path};

use sandbox_daemon::proto::{PolicySource, Start};

use crate::{
    client::{self, Ran},
    host::{self, DEV, ROOT},
};

crate::trials![
    a_link_in_the_workspace_opens_nothing,
    a_link_in_the_workspace_makes_nothing_writable,
    a_link_within_the_workspace_protects_what_it_leads_to,
    the_file_of_a_linked_working_tree_is_read_only,
    a_directory_is_not_moved_out_of_a_patterns_reach,
    root_does_not_leave_by_clone3,
];

const GROUND: &str = "/srv/filled";
const WORK: &str = "/srv/filled/work";

fn make(uid: u32, files: &[&str], links: &[(&str, &str)]) {
    let root = Path::new(GROUND);
    if root.exists() {
        fs::remove_dir_all(root).unwrap();
    }
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("content of {file}\n")).unwrap();
    }
    for (target, link) in links {
        let path = root.join(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, &path).unwrap();
    }
    let status = host::command(ROOT, &["chown", "-hR", &format!("{uid}:{uid}"), GROUND]).status();
    assert!(status.unwrap().success());
}

async fn attack(uid: u32, policy: PolicySource, steps: &[&[&str]]) -> Ran {
    let spec = client::spec(uid, policy, WORK);
    let start = Start {
        cwd: GROUND.into(),
        ..client::start(spec, &client::attacker(steps))
    };
    client::run(&mut client::root().await, start).await
}

async fn a_link_in_the_workspace_opens_nothing() {
    for uid in [DEV, ROOT] {
        let key = format!("{}/.ssh/id_ed25519", host::home(uid));
        let links = [
            (key.as_str(), "work/.sandbox.toml"),
            (key.as_str(), "work/.git/config"),
            ("../other", "work/.vscode"),
        ];
        make(uid, &["work/file", "other/file"], &links);
        let read = ["read", key.as_str()];
        let ran = attack(uid, client::named("default"), &[&read]).await;
        assert_eq!(ran.lines(), ["ENOENT"], "{ran:?}");
        let steps: [&[&str]; 2] = [&read, &["read", "other/file"]];
        // Where the attacker itself is.
        let strict = PolicySource {
            extra_read: vec!["/mnt/put".into()],
            ..client::named("strict")
        };
        let ran = attack(uid, strict, &steps).await;
        assert_eq!(ran.lines(), ["ENOENT", "ENOENT"], "{ran:?}");
        for step in steps {
            let answer = host::attack(uid, GROUND, step);
            assert!(answer.starts_with("ok "), "{answer}");
        }
    }
}

async fn a_link_in_the_workspace_makes_nothing_writable() {
    let policy = client::policy(
        "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"${workspace}\", \"${workspace}/out\"]\n",
    );
    make(
        DEV,
        &["work/file", "other/file"],
        &[("../other", "work/out")],
    );
    let step: &[&str] = &["append", "work/out/file"];
    let ran = attack(DEV, policy, &[step]).await;
    assert_eq!(ran.lines(), ["EACCES"], "{ran:?}");
    assert_eq!(host::attack(DEV, GROUND, step), "ok");
}

async fn a_link_within_the_workspace_protects_what_it_leads_to() {
    let links = [("../tools", "work/.git/hooks")];
    make(DEV, &["work/tools/pre-commit", "work/.git/HEAD"], &links);
    let steps: [&[&str]; 4] = [
        &["append", "work/tools/pre-commit"],
        &["rename", "work/tools", "work/moved"],
        &["unlink", "work/.git/hooks"],
        &["append", "work/.git/HEAD"],
    ];
    let ran = attack(DEV, client::named("default"), &steps).await;
    assert_eq!(ran.lines(), ["EACCES", "EACCES", "EACCES", "ok"], "{ran:?}");
}

async fn the_file_of_a_linked_working_tree_is_read_only() {
    make(DEV, &["work/.git"], &[]);
    let steps: [&[&str]; 3] = [
        &["append", "work/.git"],
        &["unlink", "work/.git"],
        &["rename", "work/.git", "work/moved"],
    ];
    let ran = attack(DEV, client::named("default"), &steps).await;
    assert_eq!(ran.lines(), ["EACCES"; 3], "{ran:?}");
    assert_eq!(host::attack(DEV, GROUND, steps[0]), "ok");
}

async fn a_directory_is_not_moved_out_of_a_patterns_reach() {
    let policy = || {
        client::policy(
            r#"
version = 1
[files]
read = ["/"]
write = ["${workspace}", "/srv/filled/other"]
deny = ["${workspace}/**/.env"]
"#,
        )
    };
    let files = ["work/inner/.env", "work/free", "other/inner/file"];
    make(DEV, &files, &[]);
    let steps: [&[&str]; 5] = [
        &["rename", "work/inner", "other/moved"],
        &["exchange", "work/inner", "other/inner"],
        &["exchange", "other/inner", "work/inner"],
        &["rename", "work/inner", "work/again"],
        &["rename", "work/free", "other/free"],
    ];
    let ran = attack(DEV, policy(), &steps).await;
    let expected = ["EXDEV", "EXDEV", "EXDEV", "ok", "ok"];
    assert_eq!(ran.lines(), expected, "{ran:?}");
    assert_eq!(ran.exited.denied, 3, "{ran:?}");
    for denial in &ran.denials {
        assert_eq!(denial.rule, "name pattern", "{denial:#?}");
    }
    make(DEV, &files, &[]);
    assert_eq!(host::attack(DEV, GROUND, steps[0]), "ok");
}

async fn root_does_not_leave_by_clone3() {
    make(ROOT, &["work/file"], &[]);
    let step: &[&str] = &["clone-into", "/sys/fs/cgroup"];
    let ran = attack(ROOT, client::named("default"), &[step]).await;
    assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
    assert_eq!(ran.exited.denied, 1, "{ran:?}");
    assert_eq!(ran.denials[0].operation, "clone");
    assert_eq!(ran.denials[0].rule, "leaving the sandbox");
    assert_eq!(host::attack(ROOT, GROUND, step), "ok");
}
