//! Places whose directories come, go and are replaced while a sandbox runs.

use std::{fs, os::unix::fs::chown, path::Path};

use super::asked::{Asked, becomes};
use crate::{
    client,
    expect::{attack, check},
    ground::{self, GROUND, WORK},
    host::{self, DEV},
};

crate::trials![
    what_is_below_a_missing_directory_is_hidden_and_the_rest_comes_to_be_there,
    a_directory_that_is_replaced_outside_exposes_nothing,
    a_link_that_is_replaced_outside_exposes_nothing,
    a_denied_file_is_deleted_and_made_again_outside,
    a_denied_file_is_exchanged_outside,
    a_repository_that_is_made_inside_stays_the_sandboxs_own,
    what_leads_to_a_denied_place_is_neither_moved_nor_removed,
];

/// Where these lie.
fn at(name: &str) -> String {
    format!("{WORK}/{name}")
}

fn write(name: &str, content: &str) {
    let path = at(name);
    let above = Path::new(&path).parent().unwrap();
    for directory in above.ancestors().take_while(|path| !path.exists()) {
        fs::create_dir_all(above).unwrap();
        chown(directory, Some(DEV), Some(DEV)).unwrap();
    }
    fs::create_dir_all(above).unwrap();
    fs::write(&path, format!("{content}\n")).unwrap();
    let chown = host::command(0, &["chown", "-R", "1000:1000", &at("")]).status();
    assert!(chown.unwrap().success());
}

async fn what_is_below_a_missing_directory_is_hidden_and_the_rest_comes_to_be_there() {
    ground::make(DEV);
    let mut asked = Asked::begin().await;
    // `gone/below/file` is denied, and neither directory is there.
    write("gone/sibling", "beside");
    asked
        .becomes(&["read", "work/gone/sibling"], "ok beside")
        .await;
    write("gone/below/file", "made outside");
    asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
    write("gone/below/other", "beside");
    asked
        .becomes(&["read", "work/gone/below/other"], "ok beside")
        .await;
    asked
        .becomes(&["append", "work/gone/below/other"], "ok")
        .await;
    asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
    asked
        .is(&["append", "work/gone/below/file"], "ENOENT")
        .await;
    asked
        .is(&["unlink", "work/gone/below/file"], "EACCES")
        .await;
    asked
        .is(&["rename", "work/gone", "work/moved"], "EACCES")
        .await;
    let step = ["read", "work/gone/below/file"];
    assert_eq!(host::attack(DEV, GROUND, &step), "ok made outside");
    asked.end().await;
}

async fn a_directory_that_is_replaced_outside_exposes_nothing() {
    ground::make(DEV);
    write("gone/below/file", "old");
    write("gone/below/other", "old");
    let mut asked = Asked::begin().await;
    asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
    asked.is(&["read", "work/gone/below/other"], "ok old").await;
    for round in 0..5 {
        fs::rename(at("gone"), at(&format!("before-{round}"))).unwrap();
        write("gone/below/file", "new");
        write("gone/below/other", "new");
        asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
        asked
            .becomes(&["read", "work/gone/below/other"], "ok new")
            .await;
        asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
    }
    assert_eq!(
        host::attack(DEV, GROUND, &["read", "work/gone/below/file"]),
        "ok new"
    );
    asked.end().await;
}

async fn a_link_that_is_replaced_outside_exposes_nothing() {
    ground::make(DEV);
    write("elsewhere/below/file", "old");
    std::os::unix::fs::symlink("elsewhere", at("gone")).unwrap();
    let mut asked = Asked::begin().await;
    asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
    asked
        .is(&["read", "work/elsewhere/below/file"], "ENOENT")
        .await;
    asked.is(&["unlink", "work/gone"], "EACCES").await;
    fs::remove_file(at("gone")).unwrap();
    write("gone/below/file", "new");
    write("gone/below/other", "new");
    asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
    asked
        .becomes(&["read", "work/gone/below/other"], "ok new")
        .await;
    asked.is(&["read", "work/gone/below/file"], "ENOENT").await;
    asked.end().await;
}

async fn a_denied_file_is_deleted_and_made_again_outside() {
    ground::make(DEV);
    let mut asked = Asked::begin().await;
    for _ in 0..3 {
        fs::remove_file(at("hidden")).unwrap();
        asked.is(&["open", "work/hidden", "creat"], "EACCES").await;
        write("hidden", "again");
        asked.is(&["read", "work/hidden"], "ENOENT").await;
    }
    asked
        .is(&["rename-new", "work/file", "work/hidden"], "EEXIST")
        .await;
    fs::remove_file(at("hidden")).unwrap();
    asked
        .is(&["rename-new", "work/file", "work/hidden"], "EACCES")
        .await;
    asked.end().await;
}

async fn a_denied_file_is_exchanged_outside() {
    ground::make(DEV);
    let mut asked = Asked::begin().await;
    let step = ["exchange", "work/hidden", "work/other"];
    asked.is(&step, "EACCES").await;
    assert_eq!(host::attack(DEV, GROUND, &step), "ok");
    // What was denied, and what has its name.
    asked.is(&["read", "work/hidden"], "ENOENT").await;
    asked
        .becomes(&["read", "work/other"], "ok content of work/hidden")
        .await;
    asked.is(&["read", "work/hidden"], "ENOENT").await;
    asked.end().await;
}

async fn a_repository_that_is_made_inside_stays_the_sandboxs_own() {
    ground::make(DEV);
    let mut client = client::root().await;
    let spec = client::spec(DEV, client::named("default"), WORK);
    let sandbox = client::create(&mut client, spec).await.id;
    let start = client::start_in(&sandbox, &["git", "init", "--quiet"]);
    let ran = client::run(&mut client, start).await;
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    // Something that has the places looked up again: a mount.
    let policy = |step: &'static [&'static str]| client::attacker(&[step]);
    let mounted = host::command(0, &["mount", "-t", "tmpfs", "none", &at("empty")]).status();
    assert!(mounted.unwrap().success());
    becomes(
        &mut client,
        &sandbox,
        &["open", "work/empty/made", "creat"],
        "ok",
    )
    .await;
    for step in [
        ["config", "user.name", "somebody"],
        ["config", "core.editor", "true"],
    ] {
        let argv = ["git", step[0], step[1], step[2]];
        let ran = client::run(&mut client, client::start_in(&sandbox, &argv)).await;
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        assert_eq!(ran.exited.denied, 0, "{ran:?}");
    }
    let create = policy(&["open", ".git/hooks/pre-commit", "creat"]);
    let ran = client::run(&mut client, client::start_in(&sandbox, &create)).await;
    assert_eq!(ran.lines(), ["ok"], "{ran:?}");
    client::delete(&mut client, &sandbox).await;
    let unmounted = host::command(0, &["umount", &at("empty")]).status();
    assert!(unmounted.unwrap().success());
}

async fn what_leads_to_a_denied_place_is_neither_moved_nor_removed() {
    let rule = "${workspace}/pinned/deep/file";
    check(&[
        attack(&["rename", "work/pinned", "work/moved"]).kept("rename", "work/pinned", rule),
        attack(&["rename-new", "work/pinned/deep", "work/moved"]).kept(
            "rename",
            "work/pinned/deep",
            rule,
        ),
        attack(&["exchange", "work/pinned", "work/empty"]).kept("rename", "work/pinned", rule),
        attack(&["exchange", "work/empty", "work/pinned/deep"]).kept(
            "rename",
            "work/pinned/deep",
            rule,
        ),
        attack(&["rmdir", "work/pinned/deep"])
            .kept("rmdir", "work/pinned/deep", rule)
            .outside("ENOTEMPTY"),
    ])
    .await;
}
