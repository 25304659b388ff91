//! Names that do not exist yet, that are replaced, and patterns.

use std::{fs, os::unix::fs::chown};

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use crate::{
    client::{self, Run},
    expect::{attack, check},
    ground::{self, GROUND},
    host::{self, DEV},
};

crate::trials![
    a_denied_name_cannot_be_created,
    a_denied_name_that_is_created_outside_is_denied,
    a_denied_file_that_is_replaced_outside_is_denied,
    a_file_of_a_denied_name_is_not_there_wherever_it_lies,
    a_denied_name_is_neither_made_nor_shed,
    a_directory_of_a_denied_name_is_a_directory_like_others,
    a_full_path_overrides_a_pattern,
    a_pattern_of_a_directory_holds_below_it_alone,
];

async fn a_denied_name_cannot_be_created() {
    let rule = "${workspace}/missing";
    check(&[
        attack(&["open", "work/missing", "creat"]).kept("create", "work/missing", rule),
        attack(&["mkdir", "work/missing"]).kept("mkdir", "work/missing", rule),
        attack(&["symlink", "file", "work/missing"]).kept("symlink", "work/missing", rule),
        attack(&["link", "work/file", "work/missing"]).kept("link", "work/missing", rule),
        attack(&["rename", "work/file", "work/missing"]).kept("rename", "work/missing", rule),
        attack(&["mkdir", "work/gone"]).kept("mkdir", "work/gone", "${workspace}/gone/below/file"),
        attack(&["rename", "work/empty", "work/gone"]).kept(
            "rename",
            "work/gone",
            "${workspace}/gone/below/file",
        ),
        attack(&["read", "work/missing"]).fails(Errno::ENOENT),
    ])
    .await;
}

async fn a_denied_name_that_is_created_outside_is_denied() {
    ground::make(DEV);
    let steps: [&[&str]; 6] = [
        &["say", "ready"],
        &["wait"],
        &["read", "work/missing"],
        &["append", "work/missing"],
        &["read", "work/gone/below/file"],
        &["list", "work/gone"],
    ];
    let mut client = client::root().await;
    let start = ground::attacker(DEV, &steps);
    let mut run = Run::start(&mut client, start).await.unwrap();
    assert_eq!(run.line().await, "ok ready");
    let missing = format!("{GROUND}/work/missing");
    fs::write(&missing, "made outside\n").unwrap();
    chown(&missing, Some(DEV), Some(DEV)).unwrap();
    fs::create_dir_all(format!("{GROUND}/work/gone/below")).unwrap();
    fs::write(format!("{GROUND}/work/gone/below/file"), "made outside\n").unwrap();
    run.write("x").await;
    let ran = run.end().await;
    assert_eq!(ran.lines()[2..], ["ENOENT"; 4], "{ran:?}");
    assert_eq!(ran.exited.denied, 4, "{ran:?}");
    for denial in &ran.denials {
        let rule = if denial.object_display.ends_with("missing") {
            "${workspace}/missing"
        } else {
            "${workspace}/gone/below/file"
        };
        assert_eq!(denial.rule, rule, "{denial:#?}");
    }
    assert_eq!(host::attack(DEV, GROUND, steps[2]), "ok made outside");
    assert_eq!(host::attack(DEV, GROUND, steps[4]), "ok made outside");
}

async fn a_denied_file_that_is_replaced_outside_is_denied() {
    ground::make(DEV);
    let steps: [&[&str]; 4] = [
        &["say", "ready"],
        &["wait"],
        &["read", "work/hidden"],
        &["read", "work/moved"],
    ];
    let mut client = client::root().await;
    let start = ground::attacker(DEV, &steps);
    let mut run = Run::start(&mut client, start).await.unwrap();
    assert_eq!(run.line().await, "ok ready");
    let at = |name: &str| format!("{GROUND}/work/{name}");
    fs::write(at("new"), "replaced outside\n").unwrap();
    fs::rename(at("hidden"), at("moved")).unwrap();
    fs::rename(at("new"), at("hidden")).unwrap();
    run.write("x").await;
    let ran = run.end().await;
    assert_eq!(ran.lines()[2..], ["ENOENT"; 2], "{ran:?}");
    let mut denied: Vec<_> = ran
        .denials
        .iter()
        .map(|denial| (denial.object_display.as_str(), denial.rule.as_str()))
        .collect();
    denied.sort_unstable();
    assert_eq!(
        denied,
        [
            ("/srv/ground/work/hidden", "${workspace}/hidden"),
            ("/srv/ground/work/moved", "${workspace}/hidden"),
        ]
    );
    assert_eq!(host::attack(DEV, GROUND, steps[2]), "ok replaced outside");
}

async fn a_file_of_a_denied_name_is_not_there_wherever_it_lies() {
    check(&[
        attack(&["read", "work/.env"]).hidden("open", "work/.env", "**/.env"),
        attack(&["append", "work/.env"]).hidden("open", "work/.env", "**/.env"),
        attack(&["stat", "plain/.env"]).hidden("stat", "plain/.env", "**/.env"),
        attack(&["read", "work/key.pem"]).hidden("open", "work/key.pem", "**/*.pem"),
        attack(&["read", "plain/other.pem"]).hidden("open", "plain/other.pem", "**/*.pem"),
    ])
    .await;
}

async fn a_denied_name_is_neither_made_nor_shed() {
    check(&[
        attack(&["open", "work/directory/.env", "creat"]).kept(
            "create",
            "work/directory/.env",
            "**/.env",
        ),
        attack(&["symlink", "file", "work/b.pem"]).kept("symlink", "work/b.pem", "**/*.pem"),
        attack(&["mkfifo", "work/c.pem"]).kept("mknod", "work/c.pem", "**/*.pem"),
        attack(&["link", "work/file", "work/a.pem"]).kept("link", "work/a.pem", "**/*.pem"),
        attack(&["rename", "work/file", "work/d.pem"]).kept("rename", "work/d.pem", "**/*.pem"),
        attack(&["rename", "work/to-secret", "work/e.pem"]).kept(
            "rename",
            "work/e.pem",
            "**/*.pem",
        ),
        attack(&["rename", "work/.env", "work/plain"]).kept("rename", "work/.env", "**/.env"),
        attack(&["exchange", "work/.env", "work/file"]).kept("rename", "work/.env", "**/.env"),
        attack(&["unlink", "work/.env"]).kept("unlink", "work/.env", "**/.env"),
        attack(&["chmod", "work/key.pem"]).kept("setattr", "work/key.pem", "**/*.pem"),
    ])
    .await;
}

async fn a_directory_of_a_denied_name_is_a_directory_like_others() {
    check(&[
        attack(&["mkdir", "work/directory/.env"]).passes(),
        attack(&["open", "work/directory/.env/file", "creat"]).uncontrolled(),
        attack(&["exchange", "work/file", "work/directory/.env"])
            .kept("rename", "work/directory/.env", "**/.env")
            .uncontrolled(),
        attack(&["rename", "work/empty", "work/keys.pem"]).passes(),
        attack(&["list", "work/keys.pem"]).finds("0").uncontrolled(),
        attack(&["read", "work/.venv/file"]).finds("content of work/.venv/file"),
    ])
    .await;
}

async fn a_full_path_overrides_a_pattern() {
    check(&[
        attack(&["read", "work/allowed/.env"]).finds("content of work/allowed/.env"),
        attack(&["append", "work/allowed/.env"]).passes(),
    ])
    .await;
}

async fn a_pattern_of_a_directory_holds_below_it_alone() {
    check(&[
        attack(&["read", "work/directory/local.cfg"]).refused(
            Errno::ENOENT,
            Right::Read,
            "open",
            "work/directory/local.cfg",
            "${workspace}/**/local.cfg",
        ),
        attack(&["read", "plain/local.cfg"]).finds("content of plain/local.cfg"),
    ])
    .await;
}
