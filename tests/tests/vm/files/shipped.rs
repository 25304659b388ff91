//! The policies that are shipped, on the files of real users.

use std::{fs, os::unix::fs::chown, path::Path};

use sandbox_daemon::proto::Right;

use crate::{
    client,
    expect::{Refusal, events},
    host::{self, DEV, ROOT},
};

crate::trials![
    credentials_do_not_exist_under_the_default_policy,
    what_runs_later_outside_is_read_only_under_the_default_policy,
    what_git_runs_later_is_read_only,
    the_memory_of_devices_does_not_exist_under_the_default_policy,
];

const CREDENTIALS: [&str; 7] = [
    ".ssh/id_ed25519",
    ".ssh/id_ed25519.pub",
    ".aws/credentials",
    ".netrc",
    ".git-credentials",
    ".config/gh/hosts.yml",
    ".docker/config.json",
];

fn refusal(operation: &'static str, right: Right, object: String, rule: &str) -> Refusal {
    let errno = match right {
        Right::Read => nix::errno::Errno::ENOENT,
        _ => nix::errno::Errno::EACCES,
    };
    Refusal {
        operation,
        right,
        object,
        rule: rule.into(),
        errno,
    }
}

fn workspace(uid: u32) -> &'static str {
    let path = "/srv/project";
    if Path::new(path).exists() {
        fs::remove_dir_all(path).unwrap();
    }
    fs::create_dir(path).unwrap();
    chown(path, Some(uid), Some(uid)).unwrap();
    path
}

async fn perform(uid: u32, policy: &str, steps: &[&[&str]]) -> client::Ran {
    let spec = client::spec(uid, client::named(policy), workspace(uid));
    let start = client::start(spec, &client::attacker(steps));
    client::run(&mut client::root().await, start).await
}

async fn credentials_do_not_exist_under_the_default_policy() {
    for uid in [DEV, ROOT] {
        let paths: Vec<String> = CREDENTIALS
            .iter()
            .map(|name| format!("{}/{name}", host::home(uid)))
            .collect();
        let steps: Vec<Vec<&str>> = paths
            .iter()
            .map(|path| vec!["read", path.as_str()])
            .collect();
        let steps: Vec<&[&str]> = steps.iter().map(Vec::as_slice).collect();
        let ran = perform(uid, "default", &steps).await;
        assert_eq!(ran.lines(), vec!["ENOENT"; CREDENTIALS.len()], "{ran:?}");
        let refusals: Vec<_> = paths
            .iter()
            .map(|path| refusal("open", Right::Read, path.clone(), "credentials"))
            .collect();
        events(refusals.iter(), &ran);
        for step in steps {
            let answer = host::attack(uid, "/", step);
            assert!(answer.starts_with("ok "), "{step:?}: {answer}");
        }
    }
}

async fn what_runs_later_outside_is_read_only_under_the_default_policy() {
    // As what is in the home directory where that is the workspace.
    let spec = client::spec(DEV, client::named("default"), "/home/dev");
    let steps: [&[&str]; 5] = [
        &["append", ".bashrc"],
        &["open", ".bash_aliases", "creat"],
        &["open", "_netrc", "creat"],
        &["read", ".ssh/id_ed25519"],
        &["open", "made", "creat"],
    ];
    let start = client::start(spec, &client::attacker(&steps));
    let ran = client::run(&mut client::root().await, start).await;
    let expected = ["EACCES", "EACCES", "EACCES", "ENOENT", "ok"];
    assert_eq!(ran.lines(), expected, "{ran:?}");
    let home = |name: &str| format!("/home/dev/{name}");
    let refusals = [
        refusal("open", Right::Write, home(".bashrc"), "startup"),
        refusal("create", Right::Write, home(".bash_aliases"), "startup"),
        refusal("create", Right::Write, home("_netrc"), "credentials"),
        refusal("open", Right::Read, home(".ssh/id_ed25519"), "credentials"),
    ];
    events(refusals.iter(), &ran);
    fs::remove_file(home("made")).unwrap();
}

async fn what_git_runs_later_is_read_only() {
    let repository = workspace(DEV);
    host::output(DEV, &["git", "init", "-q", repository]);
    let steps: [&[&str]; 6] = [
        &["append", ".git/config"],
        &["open", ".git/hooks/post-checkout", "creat"],
        &["mkdir", ".git/info/attributes"],
        &["rename", ".git", "moved"],
        &["open", ".git/index.lock", "creat"],
        &["mkdir", "nested"],
    ];
    let spec = client::spec(DEV, client::named("default"), repository);
    let start = client::start(spec, &client::attacker(&steps));
    let ran = client::run(&mut client::root().await, start).await;
    let expected = ["EACCES", "EACCES", "EACCES", "EACCES", "ok", "ok"];
    assert_eq!(ran.lines(), expected, "{ran:?}");
    for denial in &ran.denials {
        assert_eq!(denial.rule, "repository", "{denial:#?}");
    }
    assert_eq!(ran.exited.denied, 4, "{ran:?}");
    for step in &steps[..2] {
        assert_eq!(host::attack(DEV, repository, step), "ok");
    }
}

/// Root may map it: what is on a screen, say.
async fn the_memory_of_devices_does_not_exist_under_the_default_policy() {
    let devices = fs::read_dir("/sys/bus/pci/devices").unwrap();
    let memory: Vec<String> = devices
        .flat_map(|device| fs::read_dir(device.unwrap().path()).unwrap())
        .map(|file| file.unwrap())
        .filter(|file| file.file_name().to_string_lossy().starts_with("resource"))
        .filter(|file| file.file_name() != "resource")
        .map(|file| fs::canonicalize(file.path()).unwrap().display().to_string())
        .collect();
    assert!(!memory.is_empty());
    let steps: Vec<Vec<&str>> = memory
        .iter()
        .map(|path| vec!["open", path.as_str(), "r"])
        .collect();
    let steps: Vec<&[&str]> = steps.iter().map(Vec::as_slice).collect();
    let ran = perform(ROOT, "default", &steps).await;
    assert_eq!(ran.lines(), vec!["ENOENT"; memory.len()], "{ran:?}");
    let refusals: Vec<_> = memory
        .iter()
        .map(|path| refusal("open", Right::Read, path.clone(), "hardware"))
        .collect();
    events(refusals.iter(), &ran);
    for step in steps {
        assert_eq!(host::attack(ROOT, "/", step), "ok", "{step:?}");
    }
}
