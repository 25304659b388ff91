//! Root inside is not root: placed there with all capabilities, it has few.

use super::{Way, check, perform, refused, words};
use crate::{
    expect::{Case, attack},
    ground,
    host::ROOT,
};

crate::trials![
    what_only_root_may_is_refused_to_root,
    attributes_that_give_privileges_are_refused,
    root_keeps_what_the_other_walls_decide_about,
    tools_of_root_are_denied_nothing_needlessly,
];

const ROOTS: [(u32, Way); 1] = [(ROOT, Way::Enroll)];

fn capability(line: &str, name: &str) -> Case {
    refused(&words(line), "use", &format!("CAP_{name}"), "capability")
}

async fn what_only_root_may_is_refused_to_root() {
    // What is refused only after the capability answers outside.
    let cases = [
        capability("capability SYS_MODULE", "SYS_MODULE").outside("ENOENT"),
        capability("capability SYS_MODULE-init", "SYS_MODULE").outside("ENOEXEC"),
        capability("capability SYS_MODULE-finit", "SYS_MODULE").uncontrolled(),
        capability("capability SYS_BOOT", "SYS_BOOT"),
        capability("capability SYS_BOOT-kexec", "SYS_BOOT"),
        capability("capability SYS_BOOT-kexec-file", "SYS_BOOT").outside("EBADF"),
        capability("capability SYS_TIME", "SYS_TIME"),
        capability("capability SYS_ADMIN", "SYS_ADMIN"),
        capability("capability SYS_ADMIN-swap", "SYS_ADMIN").outside("ENOENT"),
        capability("capability SYS_RAWIO", "SYS_RAWIO"),
        capability("capability SYS_RAWIO-ports", "SYS_RAWIO"),
        capability("capability SYS_PACCT", "SYS_PACCT"),
        capability("capability SYS_TTY_CONFIG", "SYS_TTY_CONFIG"),
        capability("capability SYS_RESOURCE", "SYS_RESOURCE"),
        capability("capability NET_ADMIN", "NET_ADMIN"),
        capability("unshare mount", "SYS_ADMIN"),
        capability("unshare net", "SYS_ADMIN"),
        capability("device-node /srv/ground/work/node", "MKNOD"),
    ];
    check(&ROOTS, ground::POLICY, &cases).await;
}

async fn attributes_that_give_privileges_are_refused() {
    let cases = [
        capability(
            "set-attribute /srv/ground/work/file security.capability",
            "SETFCAP",
        ),
        capability("set-attribute /srv/ground/work/file trusted.x", "SYS_ADMIN"),
    ];
    check(&ROOTS, ground::POLICY, &cases).await;
}

async fn root_keeps_what_the_other_walls_decide_about() {
    let cases = [
        attack(&["groups"]).passes(),
        attack(&["chown", "work/file"]).passes(),
        attack(&["apart", "become", "1000"]).passes(),
        attack(&["read", "work/file"]).finds("content of work/file"),
    ];
    check(&ROOTS, ground::POLICY, &cases).await;
}

/// Programs that root runs in a repository.
async fn tools_of_root_are_denied_nothing_needlessly() {
    const SCRIPT: &str = "set -e\n\
        git init -q repository\n\
        cd repository\n\
        git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x\n\
        echo content > file\n\
        chown 1000:1000 file\n\
        tar cf ../archive.tar file\n\
        tar xpf ../archive.tar\n\
        python3 -c 'import os, subprocess; os.setgroups([]); subprocess.run([\"true\"], check=True)'\n\
        ps -e > /dev/null\n\
        nice -n 5 true\n";
    ground::make(ROOT);
    std::fs::write("/srv/ground/work/script", SCRIPT).unwrap();
    let ran = perform(
        ROOT,
        Way::Enroll,
        ground::POLICY,
        &[&["shell", "/srv/ground/work/script"]],
    )
    .await;
    assert_eq!(ran.lines(), ["ok"], "{ran:?}");
    // ps(1) tries every process of the machine.
    for denial in &ran.denials {
        assert_eq!(denial.rule, "another process", "{ran:?}");
        assert_eq!(denial.exe_display, "/usr/bin/ps", "{ran:?}");
    }
}
