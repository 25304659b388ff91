//! Where places lie: deep down, below `/tmp`, and in a policy that changes.

use std::{fs, os::unix::fs::chown, path::Path};

use sandbox_daemon::proto::{Start, UpdateSandboxRequest};

use crate::{
    client::{self, Run},
    ground::{self, GROUND, POLICY, WORK},
    host::{self, DEV, ROOT},
};

crate::trials![
    what_lies_too_deep_is_refused,
    a_private_tmp_is_not_the_hosts,
    a_workspace_below_tmp_is_the_hosts,
    a_descriptor_cannot_truncate_what_became_read_only,
    another_root_directory_is_not_to_be_had,
];

async fn what_lies_too_deep_is_refused() {
    ground::make(DEV);
    let steps: [&[&str]; 1] = [&["deep", "work/empty", "80"]];
    let ran = client::run(&mut client::root().await, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.lines(), ["EACCES"], "{ran:?}");
    let [denial] = ran.denials.as_slice() else {
        panic!("{ran:?}");
    };
    assert_eq!(denial.rule, "too deep", "{denial:#?}");
    assert_eq!(denial.operation, "mkdir", "{denial:#?}");
    ground::make(DEV);
    assert_eq!(host::attack(DEV, GROUND, steps[0]), "ok");
    // As deep as the walk goes: the file, 62 directories, and the workspace.
    ground::make(DEV);
    let steps: [&[&str]; 1] = [&["deep", "work", "62"]];
    let ran = client::run(&mut client::root().await, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.lines(), ["ok"], "{ran:?}");
}

async fn a_private_tmp_is_not_the_hosts() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        fs::write("/tmp/of-the-host", "x").unwrap();
        let steps: [&[&str]; 6] = [
            &["read", "/tmp/of-the-host"],
            &["open", "/tmp/private", "creat"],
            &["open", "/var/tmp/private", "creat"],
            &["open", "/dev/shm/private", "creat"],
            &["list", "/tmp"],
            &["list", "/dev/shm"],
        ];
        let ran = client::run(&mut client::root().await, ground::attacker(uid, &steps)).await;
        let expected = ["ENOENT", "ok", "ok", "ok", "ok 1", "ok 1"];
        assert_eq!(ran.lines(), expected, "{ran:?}");
        assert_eq!(ran.denials, [], "{ran:?}");
        for place in ["/tmp", "/var/tmp", "/dev/shm"] {
            assert!(!Path::new(place).join("private").exists(), "{place}");
        }
        assert_eq!(host::attack(uid, "/", steps[0]), "ok x");
        fs::remove_file("/tmp/of-the-host").unwrap();
    }
}

async fn a_workspace_below_tmp_is_the_hosts() {
    let work = "/tmp/project/work";
    fs::create_dir_all(work).unwrap();
    chown("/tmp/project", Some(DEV), Some(DEV)).unwrap();
    chown(work, Some(DEV), Some(DEV)).unwrap();
    fs::write("/tmp/project/outside", "x").unwrap();
    let steps: [&[&str]; 3] = [
        &["cwd"],
        &["open", "made", "creat"],
        &["read", "/tmp/project/outside"],
    ];
    let spec = client::spec(DEV, client::policy(POLICY), work);
    let start = client::start(spec, &client::attacker(&steps));
    let ran = client::run(&mut client::root().await, start).await;
    let expected = ["ok /tmp/project/work", "ok", "ENOENT"];
    assert_eq!(ran.lines(), expected, "{ran:?}");
    assert!(Path::new(work).join("made").exists());
    fs::remove_dir_all("/tmp/project").unwrap();
}

async fn a_descriptor_cannot_truncate_what_became_read_only() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, ground::spec(DEV)).await;
    let steps: [&[&str]; 5] = [
        &["keep", "file", "work/file", "rw"],
        &["wait"],
        &["kept-truncate", "file"],
        &["kept-reopen", "file", "w"],
        &["kept-stat", "file"],
    ];
    let start = Start {
        cwd: GROUND.into(),
        ..client::start_in(&sandbox.id, &client::attacker(&steps))
    };
    let mut run = Run::start(&mut client.clone(), start).await.unwrap();
    assert_eq!(run.line().await, "ok");
    let narrower = POLICY.replace("${workspace}/readonly", "${workspace}/file");
    let update = UpdateSandboxRequest {
        id: sandbox.id.clone(),
        policy: Some(client::policy(&narrower)),
        etag: sandbox.etag,
    };
    client.update_sandbox(update).await.unwrap();
    run.write("x").await;
    let ran = run.end().await;
    assert_eq!(ran.lines()[2..], ["EACCES", "EACCES", "ok"], "{ran:?}");
    let operations: Vec<_> = ran
        .denials
        .iter()
        .map(|denial| denial.operation.as_str())
        .collect();
    assert_eq!(ran.exited.denied, 2, "{ran:?}");
    assert_eq!(operations[0], "truncate", "{ran:?}");
    assert!(fs::metadata(Path::new(WORK).join("file")).unwrap().len() > 0);
    client::delete(&mut client, &sandbox.id).await;
}

async fn another_root_directory_is_not_to_be_had() {
    ground::make(ROOT);
    let steps: [&[&str]; 1] = [&["chroot", "/srv/ground/secret"]];
    let ran = client::run(&mut client::root().await, ground::attacker(ROOT, &steps)).await;
    assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
    assert_eq!(host::attack(ROOT, GROUND, steps[0]), "ok");
}
