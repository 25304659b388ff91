//! Policies in force: replaced at once, observed, checked, and wrong ones.

use std::{
    fs,
    os::unix::fs::{chown, symlink},
    process::Command,
};

use sandbox_daemon::proto::{
    GetSandboxRequest, Start, UpdateSandboxRequest, ValidatePolicyRequest, Verdict,
    diagnostic::Severity,
};
use tonic::Code;

use crate::{
    client::{self, Run},
    ground::{self, GROUND, POLICY, WORK},
    host::{self, DEV, ROOT},
};

crate::trials![
    an_update_holds_for_every_later_check,
    what_both_policies_deny_is_never_there_while_one_replaces_the_other,
    an_update_with_another_etag_is_refused,
    sandboxes_do_not_share_their_policies,
    observing_lets_through_and_says_so,
    a_wrong_policy_is_refused_with_its_place_and_starts_nothing,
    a_missing_workspace_is_refused,
    a_policy_that_is_too_large_is_refused,
    the_file_of_a_policy_is_read_only_inside,
    places_can_be_added_to_a_policy,
    places_can_be_added_on_the_command_line,
    a_policy_in_the_workspace_is_read_only_inside,
    the_nearest_entry_decides,
    policies_and_sets_of_the_host_are_read_anew,
    what_takes_the_place_of_a_file_is_found_by_the_next_sandbox,
    what_leads_elsewhere_is_found_by_the_next_sandbox,
    a_policy_is_checked_without_being_applied,
];

async fn an_update_holds_for_every_later_check() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, ground::spec(DEV)).await;
    let mut steps: Vec<&[&str]> = Vec::new();
    for _ in 0..9 {
        steps.extend([["read", "plain/file"].as_slice(), &["wait"]]);
    }
    let start = Start {
        cwd: GROUND.into(),
        ..client::start_in(&sandbox.id, &client::attacker(&steps))
    };
    let mut run = Run::start(&mut client.clone(), start).await.unwrap();
    let denying = POLICY.replace("/srv/ground/secret", "/srv/ground/plain");
    let mut etag = sandbox.etag;
    for round in 0..9 {
        let denied = round % 2 == 1;
        let expected = if denied {
            "ENOENT"
        } else {
            "ok content of plain/file"
        };
        assert_eq!(run.line().await, expected, "round {round}");
        let next = if denied { POLICY } else { &denying };
        let request = UpdateSandboxRequest {
            id: sandbox.id.clone(),
            policy: Some(client::policy(next)),
            etag,
        };
        let updated = client.update_sandbox(request).await.unwrap().into_inner();
        etag = updated.etag;
        run.write("x").await;
        assert_eq!(run.line().await, "ok");
    }
    let ran = run.end().await;
    assert_eq!(ran.exited.denied, 4, "{ran:?}");
    client::delete(&mut client, &sandbox.id).await;
}

async fn what_both_policies_deny_is_never_there_while_one_replaces_the_other() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, ground::spec(DEV)).await;
    let start = Start {
        cwd: GROUND.into(),
        ..client::start_in(
            &sandbox.id,
            &client::attacker(&[&["say", "ready"], &["hammer", "secret/key"]]),
        )
    };
    let mut run = Run::start(&mut client.clone(), start).await.unwrap();
    assert_eq!(run.line().await, "ok ready");
    let other = POLICY.replace("${workspace}/hidden", "${workspace}/file");
    for round in 0..20 {
        let policy = if round % 2 == 0 { &other } else { POLICY };
        let request = UpdateSandboxRequest {
            id: sandbox.id.clone(),
            policy: Some(client::policy(policy)),
            etag: String::new(),
        };
        client.update_sandbox(request).await.unwrap();
    }
    run.write("x").await;
    assert_eq!(run.line().await, "ENOENT", "it got through once");
    let ran = run.end().await;
    assert!(ran.exited.denied > 0);
    let (told, lost) = ran.told();
    assert_eq!(told + lost, ran.exited.denied, "{:?}", ran.lost);
    client::delete(&mut client, &sandbox.id).await;
}

async fn sandboxes_do_not_share_their_policies() {
    ground::make(DEV);
    let client = client::root().await;
    let steps: [&[&str]; 4] = [
        &["say", "ready"],
        &["wait"],
        &["read", "plain/file"],
        &["read", "secret/key"],
    ];
    let other = POLICY.replace("/srv/ground/secret", "/srv/ground/plain");
    let mut runs = Vec::new();
    for policy in [POLICY, &other] {
        let start = Start {
            cwd: GROUND.into(),
            ..client::start(
                client::spec(DEV, client::policy(policy), WORK),
                &client::attacker(&steps),
            )
        };
        let mut run = Run::start(&mut client.clone(), start).await.unwrap();
        assert_eq!(run.line().await, "ok ready");
        runs.push(run);
    }
    // Both are there when each attacks.
    let mut answers = Vec::new();
    for run in runs {
        run.write("x").await;
        answers.push(run.end().await.lines()[2..].to_vec());
    }
    assert_eq!(answers[0], ["ok content of plain/file", "ENOENT"]);
    assert_eq!(answers[1], ["ENOENT", "ok content of secret/key"]);
}

async fn an_update_with_another_etag_is_refused() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, ground::spec(DEV)).await;
    let request = |etag: &str| UpdateSandboxRequest {
        id: sandbox.id.clone(),
        policy: Some(client::policy(POLICY)),
        etag: etag.into(),
    };
    let status = client.update_sandbox(request("other")).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    let updated = client.update_sandbox(request(&sandbox.etag)).await.unwrap();
    assert_ne!(updated.into_inner().etag, sandbox.etag);
    client::delete(&mut client, &sandbox.id).await;
}

async fn observing_lets_through_and_says_so() {
    ground::make(DEV);
    let observing = POLICY.replace("name =", "mode = \"observe\"\nname =");
    let steps: [&[&str]; 4] = [
        &["read", "secret/key"],
        &["append", "plain/file"],
        &["udp", "203.0.113.1:7100", "observed"],
        &["rename", "work/pinned", "work/moved"],
    ];
    let datagrams = crate::outside::Datagrams::at("203.0.113.1:7100");
    let spec = client::spec(DEV, client::policy(&observing), WORK);
    let start = Start {
        cwd: GROUND.into(),
        ..client::start(spec, &client::attacker(&steps))
    };
    let run = Run::start(&mut client::root().await, start).await.unwrap();
    assert!(run.started.observe);
    let ran = run.end().await;
    let expected = ["ok content of secret/key", "ok", "ok", "ok"];
    assert_eq!(ran.lines(), expected, "{ran:?}");
    assert_eq!(datagrams.next(), "observed");
    for denial in &ran.denials {
        assert_eq!(denial.verdict(), Verdict::Observed, "{denial:#?}");
    }
    let operations: Vec<_> = ran.denials.iter().map(|it| it.operation.as_str()).collect();
    for operation in ["open", "send", "rename"] {
        assert!(operations.contains(&operation), "{ran:?}");
    }
    assert_eq!(ran.told(), (ran.exited.denied, 0), "{ran:?}");
}

async fn a_wrong_policy_is_refused_with_its_place_and_starts_nothing() {
    ground::make(DEV);
    let before = host::sandboxes();
    for (toml, place) in [
        (
            "version = 1\nname = \"x\"\n[files]\nreed = [\"/\"]\n",
            "test.toml:4:1",
        ),
        (
            "version = 1\nname = \"x\"\n[files]\nread = [\"@nothing\"]\n",
            "test.toml:4:9",
        ),
        (
            "version = 1\nname = \"x\"\n[files]\nread = [\"relative\"]\n",
            "test.toml:4:9",
        ),
        (
            "version = 1\nname = \"x\"\n[network]\nmode = \"none\"\ndirect = [\"1.2.3\"]\n",
            "test.toml:5:11",
        ),
    ] {
        let spec = client::spec(DEV, client::policy(toml), WORK);
        let start = client::start(spec, &["true"]);
        let Err(status) = Run::start(&mut client::root().await, start).await else {
            panic!("{toml} was accepted");
        };
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert_eq!(client::reason(&status), "POLICY_INVALID");
        assert!(status.message().contains(place), "{}", status.message());
    }
    assert_eq!(host::sandboxes(), before);
}

async fn a_missing_workspace_is_refused() {
    for workspace in ["/srv/nothing", "/etc/passwd", "relative"] {
        let spec = client::spec(DEV, client::named("default"), workspace);
        let start = client::start(spec, &["true"]);
        let Err(status) = Run::start(&mut client::root().await, start).await else {
            panic!("{workspace} was accepted");
        };
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains("workspace"), "{status:?}");
    }
}

async fn a_policy_that_is_too_large_is_refused() {
    ground::make(DEV);
    let mut toml = "version = 1\nname = \"x\"\n[files]\nread = [\"/\"]\n".to_owned();
    toml.push_str(&"# nothing but a comment\n".repeat(20_000));
    let spec = client::spec(DEV, client::policy(&toml), WORK);
    let start = client::start(spec, &["true"]);
    let Err(status) = Run::start(&mut client::root().await, start).await else {
        panic!("it was accepted");
    };
    assert_eq!(client::reason(&status), "POLICY_INVALID", "{status:?}");
    let details = String::from_utf8_lossy(status.details());
    assert!(details.contains("at most 262144 bytes"), "{status:?}");
}

async fn the_file_of_a_policy_is_read_only_inside() {
    ground::make(DEV);
    let steps: [&[&str]; 3] = [
        &["append", "work/file"],
        &["rename", "work/other", "work/file"],
        &["read", "work/file"],
    ];
    let mut policy = client::policy(POLICY);
    if let Some(sandbox_daemon::proto::policy_source::Source::Text(text)) = &mut policy.source {
        text.origin = format!("{WORK}/file");
    }
    let start = Start {
        cwd: GROUND.into(),
        ..client::start(client::spec(DEV, policy, WORK), &client::attacker(&steps))
    };
    let ran = client::run(&mut client::root().await, start).await;
    let expected = ["EACCES", "EACCES", "ok content of work/file"];
    assert_eq!(ran.lines(), expected, "{ran:?}");
    assert_eq!(ran.exited.denied, 2, "{ran:?}");
    assert_eq!(host::attack(DEV, GROUND, steps[0]), "ok");
}

async fn places_can_be_added_to_a_policy() {
    ground::make(DEV);
    let steps: [&[&str]; 4] = [
        &["append", "plain/file"],
        &["append", "plain/link"],
        &["append", "work/other"],
        &["append", "work/file"],
    ];
    let mut policy = client::policy(POLICY);
    policy.extra_write = vec![format!("{GROUND}/plain")];
    policy.extra_read = vec![format!("{WORK}/other")];
    let start = Start {
        cwd: GROUND.into(),
        ..client::start(client::spec(DEV, policy, WORK), &client::attacker(&steps))
    };
    let ran = client::run(&mut client::root().await, start).await;
    assert_eq!(ran.lines(), ["ok", "ok", "EACCES", "ok"], "{ran:?}");
}

/// What a policy came to is remembered; but not longer than it is so.
async fn what_takes_the_place_of_a_file_is_found_by_the_next_sandbox() {
    ground::make(DEV);
    let mut client = client::root().await;
    let steps: [&[&str]; 3] = [
        &["read", "secret/key"],
        &["read", "moved/key"],
        &["read", "work/hidden"],
    ];
    let mut lines = async || {
        let ran = client::run(&mut client, ground::attacker(DEV, &steps)).await;
        ran.lines()
    };
    for round in 0..6 {
        assert_eq!(lines().await, ["ENOENT"; 3], "round {round}");
    }
    let path = |name: &str| format!("{GROUND}/{name}");
    for round in 0..6 {
        fs::rename(path("secret"), path("moved")).unwrap();
        fs::create_dir(path("secret")).unwrap();
        fs::write(path("secret/key"), "another").unwrap();
        fs::remove_file(path("work/hidden")).unwrap();
        fs::write(path("work/hidden"), "another").unwrap();
        // The moved one is not what the policy names any more.
        let expected = ["ENOENT", "ok content of secret/key", "ENOENT"];
        for again in 0..4 {
            assert_eq!(lines().await, expected, "round {round}, {again}");
        }
        fs::remove_dir_all(path("secret")).unwrap();
        fs::rename(path("moved"), path("secret")).unwrap();
        for again in 0..4 {
            assert_eq!(lines().await, ["ENOENT"; 3], "round {round}, {again}");
        }
    }
}

/// The same of what leads to places: links, directories above, mounts.
async fn what_leads_elsewhere_is_found_by_the_next_sandbox() {
    const POLICY: &str = r#"
version = 1
name = "leads"
[files]
read = ["/"]
write = ["${workspace}"]
deny = ["/srv/ground/link", "/srv/ground/up/deep/denied", "/srv/ground/later/denied"]
[network]
mode = "none"
"#;
    let path = |name: &str| format!("{GROUND}/{name}");
    ground::make(DEV);
    for file in [
        "one",
        "other",
        "up/deep/denied",
        "next/deep/denied",
        "place",
    ] {
        fs::create_dir_all(path(file)).unwrap();
        fs::write(path(&format!("{file}/file")), format!("content of {file}")).unwrap();
    }
    host::output(ROOT, &["chown", "-R", "1000:1000", GROUND]);
    symlink("one", path("link")).unwrap();
    let steps: [&[&str]; 6] = [
        &["read", "one/file"],
        &["read", "other/file"],
        &["read", "up/deep/denied/file"],
        &["read", "next/deep/denied/file"],
        &["read", "later/denied/file"],
        &["read", "place/file"],
    ];
    let mut client = client::root().await;
    let mut denied = async |what: &str, expected: [usize; 6]| {
        // Twice of what was remembered before, and then of what is anew.
        for again in 0..4 {
            let start = Start {
                cwd: GROUND.into(),
                ..client::start(
                    client::spec(DEV, client::policy(POLICY), WORK),
                    &client::attacker(&steps),
                )
            };
            let ran = client::run(&mut client, start).await;
            let hidden = ran.lines();
            let hidden = hidden.iter().map(|line| usize::from(line == "ENOENT"));
            assert_eq!(
                hidden.collect::<Vec<_>>(),
                expected,
                "{what}, {again}: {ran:?}"
            );
        }
    };
    denied("at first", [1, 0, 1, 0, 1, 0]).await;
    fs::remove_file(path("link")).unwrap();
    symlink("other", path("link")).unwrap();
    denied("a link leads elsewhere", [0, 1, 1, 0, 1, 0]).await;
    fs::rename(path("up"), path("away")).unwrap();
    fs::rename(path("next"), path("up")).unwrap();
    denied("a directory above is another", [0, 1, 1, 1, 1, 0]).await;
    fs::rename(path("away"), path("next")).unwrap();
    fs::rename(path("one"), path("place/denied")).unwrap();
    fs::rename(path("place"), path("later")).unwrap();
    denied("what was missing came full", [1, 1, 1, 0, 1, 1]).await;
    let bind = |what: &str, at: &str| {
        let (what, at) = (path(what), path(at));
        fs::create_dir_all(&at).unwrap();
        crate::disk::run(Command::new("mount").args(["--bind", &what, &at]));
    };
    // What is denied is seen elsewhere, and something else in its place.
    bind("later/denied", "place");
    denied("a mount shows what is denied", [1, 1, 1, 0, 1, 1]).await;
    bind("next", "up");
    denied("something is mounted above", [1, 1, 1, 1, 1, 1]).await;
    for at in ["up", "place"] {
        nix::mount::umount(path(at).as_str()).unwrap();
    }
    denied("they are gone", [1, 1, 1, 0, 1, 1]).await;
    // The control.
    for step in &steps[1..5] {
        assert!(
            host::attack(DEV, GROUND, step).starts_with("ok"),
            "{step:?}"
        );
    }
}

async fn a_policy_is_checked_without_being_applied() {
    let mut client = client::root().await;
    let request = |toml: &str| ValidatePolicyRequest {
        policy: Some(client::policy(toml)),
        workspace: String::new(),
    };
    let wrong = "version = 1\nname = \"x\"\n[files]\nreed = [\"/\"]\n";
    let answer = client.validate_policy(request(wrong)).await.unwrap();
    let answer = answer.into_inner();
    assert!(!answer.valid, "{answer:#?}");
    let first = &answer.diagnostics[0];
    assert_eq!((first.line, first.column), (4, 1), "{first:#?}");
    assert_eq!(first.severity(), Severity::Error, "{first:#?}");
    let right = "version = 1\nname = \"x\"\n[files]\nread = [\"/\"]\n";
    let answer = client.validate_policy(request(right)).await.unwrap();
    assert!(answer.into_inner().valid);
    let request = GetSandboxRequest { id: "none".into() };
    let status = client.get_sandbox(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

async fn places_can_be_added_on_the_command_line() {
    ground::make(DEV);
    fs::write(format!("{GROUND}/ground.toml"), POLICY).unwrap();
    let steps: [&[&str]; 4] = [
        &["append", "file"],
        &["append", "readonly/file"],
        &["append", "../plain/file"],
        &["append", "../plain/link"],
    ];
    let with = |options: &[&str]| {
        let policy = ["sandbox", "run", "-p", "../ground.toml"];
        let argv = [&policy, options, &["--"], &client::attacker(&steps)].concat();
        host::run_with(DEV, WORK, &argv, "")
    };
    for (options, expected) in [
        (["-w", "."].as_slice(), ["ok", "EACCES", "EACCES", "EACCES"]),
        (&["--ro", "."], ["EACCES", "EACCES", "EACCES", "EACCES"]),
        (&["--rw", "../plain"], ["ok", "EACCES", "ok", "ok"]),
        // Its full path goes before the pattern that would deny it.
        (
            &["--ro", "./allowed/.env"],
            ["ok", "EACCES", "EACCES", "EACCES"],
        ),
        // The nearest decides, whichever option it came by.
        (
            &["--rw", "../plain", "--ro", "/srv/ground/plain/file"],
            ["ok", "EACCES", "EACCES", "EACCES"],
        ),
        (
            &["--rw", "./readonly", "--ro", "./file", "--rw", "./none"],
            ["EACCES", "ok", "EACCES", "EACCES"],
        ),
    ] {
        let output = with(options);
        let said = host::text(&output.stdout);
        let answers: Vec<_> = said.lines().collect();
        assert_eq!(answers, expected, "{options:?}: {output:?}");
    }
    for option in ["--ro", "--rw"] {
        for path in ["../secret", "../secret/key", "./hidden", "./.env"] {
            let output = with(&[option, path]);
            assert_eq!(output.status.code(), Some(125), "{output:?}");
            let error = host::text(&output.stderr);
            assert!(error.contains("is denied by rule"), "{error}");
            assert!(error.contains("hint: "), "{error}");
            assert_eq!(host::text(&output.stdout), "");
        }
    }
}

async fn a_policy_in_the_workspace_is_read_only_inside() {
    for uid in [DEV, ROOT] {
        let steps: [&[&str]; 4] = [
            &["open", ".sandbox.toml", "creat"],
            &["append", ".sandbox.toml"],
            &["rename", "file", ".sandbox.toml"],
            &["unlink", ".sandbox.toml"],
        ];
        for there in [true, false] {
            ground::make(uid);
            let path = format!("{WORK}/.sandbox.toml");
            if there {
                fs::write(&path, "mine\n").unwrap();
                chown(&path, Some(uid), Some(uid)).unwrap();
            }
            let argv = client::attacker(&steps);
            let start = client::start(ground::spec(uid), &argv);
            let ran = client::run(&mut client::root().await, start).await;
            let expected = if there {
                ["EACCES"; 4]
            } else {
                ["EACCES", "ENOENT", "EACCES", "ENOENT"]
            };
            assert_eq!(ran.lines(), expected, "{ran:?}");
            for denial in &ran.denials {
                assert_eq!(denial.rule, "policy file", "{ran:?}");
                assert_eq!(denial.object_display, path, "{ran:?}");
            }
            assert_eq!(fs::exists(&path).unwrap(), there);
        }
        for step in steps {
            assert_eq!(host::attack(uid, WORK, step), "ok", "{step:?}");
        }
    }
}

async fn the_nearest_entry_decides() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let policy = POLICY.replace("read = [", "read = [\"/srv/ground/secret/key\", ");
        let steps: [&[&str]; 5] = [
            &["read", "secret/key"],
            &["read", "secret/program"],
            &["list", "secret"],
            &["list", "secret/directory"],
            &["append", "secret/key"],
        ];
        let start = Start {
            cwd: GROUND.into(),
            ..client::start(
                client::spec(uid, client::policy(&policy), WORK),
                &client::attacker(&steps),
            )
        };
        let ran = client::run(&mut client::root().await, start).await;
        let expected = [
            "ok content of secret/key",
            "ENOENT",
            "ENOENT",
            "ENOENT",
            "EACCES",
        ];
        assert_eq!(ran.lines(), expected, "{ran:?}");
        assert_eq!(ran.exited.denied, 4, "{ran:?}");
    }
}

/// Settings of the host's, until it is dropped.
struct Settings;

impl Settings {
    const PLACE: &str = "/etc/sandboxd";

    fn write(name: &str, text: &str) {
        let path = format!("{}/{name}", Self::PLACE);
        fs::create_dir_all(format!("{}/policies", Self::PLACE)).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for name in ["sets.toml", "policies/ours.toml", "policies/strict.toml"] {
            let _ = fs::remove_file(format!("{}/{name}", Self::PLACE));
        }
    }
}

async fn policies_and_sets_of_the_host_are_read_anew() {
    ground::make(DEV);
    let _settings = Settings;
    let sets = |place: &str| {
        let line = format!("places = [{{ path = \"{place}\", reason = \"ours\" }}]");
        let text = format!(
            "version = 1\n[acme]\ndescription = \"ours\"\n{line}\n\
             [credentials]\ndescription = \"ours\"\n{line}\n"
        );
        Settings::write("sets.toml", &text);
    };
    let policy = "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"${workspace}\"]\n\
                  deny = [\"@acme\"]\n";
    sets("/srv/ground/plain");
    Settings::write("policies/ours.toml", policy);
    // The host's own come before those that were shipped.
    Settings::write("policies/strict.toml", policy);
    let steps: [&[&str]; 2] = [
        &["read", "/srv/ground/plain/file"],
        &["read", "/srv/ground/secret/key"],
    ];
    let with = |policy: &str| {
        let argv = ["sandbox", "run", "-p", policy, "--"];
        let argv = [argv.as_slice(), &client::attacker(&steps)].concat();
        let output = host::run_with(DEV, WORK, &argv, "");
        let said = host::text(&output.stdout);
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (plain, secret) = ("ok content of plain/file", "ok content of secret/key");
    for policy in ["ours", "strict", "default"] {
        assert_eq!(with(policy), ["ENOENT", secret], "{policy}");
    }
    let listed = host::output(DEV, &["sandbox", "policy", "list"]);
    for path in [
        "/etc/sandboxd/policies/ours.toml",
        "/etc/sandboxd/policies/strict.toml",
        "/usr/lib/sandboxd/policies/default.toml",
    ] {
        assert!(listed.contains(path), "{listed}");
    }
    assert!(!listed.contains("/usr/lib/sandboxd/policies/strict.toml"));
    let shown = host::output(DEV, &["sandbox", "policy", "show", "strict"]);
    assert_eq!(shown, policy);
    let path = "/etc/sandboxd/policies/ours.toml";
    host::output(DEV, &["sandbox", "policy", "check", path]);

    // What runs keeps what it has.
    let rounds: [&[&str]; 3] = [&["wait"], steps[0], steps[1]];
    let spec = client::spec(DEV, client::named("ours"), WORK);
    let start = client::start(spec, &client::attacker(&rounds));
    let run = Run::start(&mut client::root().await, start).await.unwrap();
    sets("/srv/ground/secret");
    for policy in ["ours", "strict", "default"] {
        assert_eq!(with(policy), [plain, "ENOENT"], "{policy}");
    }
    run.write("x").await;
    let ran = run.end().await;
    assert_eq!(ran.lines(), ["ok", "ENOENT", secret], "{ran:?}");
    assert_eq!(ran.denials[0].rule, "acme", "{ran:?}");
}
