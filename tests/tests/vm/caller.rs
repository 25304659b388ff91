//! What whoever starts a sandbox has and the sandbox must not get: the secrets
//! in the environment of the calling shell, and privileges on the way of
//! programs that give them to whoever starts them.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::{PermissionsExt as _, chown},
    process::{Child, Output, Stdio},
};

use nix::errno::Errno;
use sandbox_daemon::proto::{EnrollRequest, Start, enroll_request, enroll_response::Response};
use serde_json::Value;

use crate::{
    client,
    ground::{self, GROUND, WORK},
    host::{self, DEV, ROOT, text},
};

crate::trials![
    a_command_is_told_what_it_runs_in,
    what_makes_programs_run_other_code_does_not_come_in,
    a_cache_is_kept_for_the_user_and_the_workspace,
    tokens_of_the_calling_shell_stay_outside,
    the_environment_of_the_calling_processes_cannot_be_read,
    programs_that_give_privileges_give_none,
    a_setuid_program_of_an_enrolled_process_meets_the_walls,
];

const SECRETS: [&str; 16] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "CARGO_REGISTRY_TOKEN",
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "GITLAB_TOKEN",
    "HF_TOKEN",
    "NODE_AUTH_TOKEN",
    "NPM_TOKEN",
    "SLACK_BOT_TOKEN",
    "SOME_COMPANYS_TOKEN",
    "TWINE_PASSWORD",
    "VAULT_TOKEN",
    "ZZZ_TOKEN",
];

/// What every secret has.
const DECOY: &str = "DECOY-VALUE-OF-";

/// A shell of somebody with secrets runs a script in the workspace.
fn shell(uid: u32, script: &str) -> Output {
    let secrets = SECRETS.map(|name| (name, format!("{DECOY}{name}")));
    host::command(uid, &["sh", "-c", script])
        .current_dir(WORK)
        .envs(secrets)
        .env("EDITOR", "the-editor")
        .output()
        .unwrap()
}

async fn tokens_of_the_calling_shell_stay_outside() {
    let show = "sh -c 'env; cat /proc/self/environ; sh -c env'";
    for uid in [DEV, ROOT] {
        ground::make(uid);
        for policy in ["default", "strict"] {
            let output = shell(uid, &format!("sandbox run -v --policy {policy} -- {show}"));
            assert!(output.status.success(), "{policy}: {output:?}");
            let (out, error) = (text(&output.stdout), text(&output.stderr));
            assert!(!out.contains(DECOY), "{policy}: {out}");
            assert!(!error.contains(DECOY), "{policy}: {error}");
            // The rest of the environment did come in.
            assert_eq!(out.matches("EDITOR=the-editor").count(), 3, "{out}");
            for name in SECRETS {
                let inside = out.contains(&format!("{name}="));
                assert!(!inside, "{policy}: {name}: {out}");
                assert!(error.contains(name), "{policy}: {name}: {error}");
            }
        }
        let out = text(&shell(uid, show).stdout);
        for name in SECRETS {
            let secret = format!("{name}={DECOY}{name}");
            assert_eq!(out.matches(&secret).count(), 3, "{name}: {out}");
        }
    }
}

async fn the_environment_of_the_calling_processes_cannot_be_read() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        for (who, script) in [
            (
                "shell",
                "sandbox run --json 3 -- cat /proc/$$/environ; exit",
            ),
            (
                "client",
                "exec sandbox run --json 3 -- cat /proc/$$/environ",
            ),
        ] {
            let output = shell(uid, &format!("echo $$; exec 3>json; {script}"));
            let pid = text(&output.stdout);
            let pid: u32 = pid.trim().parse().unwrap_or_else(|_| panic!("{output:?}"));
            let error = text(&output.stderr);
            let environ = format!("/proc/{pid}/environ");
            let says = format!("cat: {environ}: No such file or directory\n");
            assert_eq!(error, says, "{who}, as uid {uid}: {output:?}");
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let events = fs::read_to_string(format!("{WORK}/json")).unwrap();
            let events: Vec<Value> = events
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            let types: Vec<_> = events.iter().map(|it| it["type"].as_str()).collect();
            let expected = [Some("started"), Some("denial"), Some("exited")];
            assert_eq!(types, expected, "{who}: {events:#?}");
            let denial = &events[1];
            assert_eq!(denial["operation"], "open", "{denial:#}");
            assert_eq!(denial["right"], "read", "{denial:#}");
            assert_eq!(denial["path"], environ.as_str(), "{denial:#}");
            assert_eq!(denial["rule"], "another process", "{denial:#}");
            assert_eq!(denial["errno"], Errno::ENOENT as u32, "{denial:#}");
            assert_eq!(denial["exe"], "/usr/bin/cat", "{denial:#}");
            assert_eq!(denial["uid"], uid, "{denial:#}");
            assert_eq!(denial["count"], 1, "{denial:#}");
            assert_eq!(events[2]["denied"], 1, "{events:#?}");
        }
        let output = shell(uid, "cat /proc/$$/environ; exit");
        assert!(text(&output.stdout).contains(DECOY), "{output:?}");
    }
}

/// A process of root's.
struct Victim(Child);

impl Victim {
    fn new() -> Self {
        Self(host::command(ROOT, &["sleep", "600"]).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies of programs that give their user another's rights, in a place that
/// sandboxes may read.
fn privileged() {
    ground::make(DEV);
    for program in ["id", "cat", "tee", "kill"] {
        let path = format!("{GROUND}/plain/root-{program}");
        fs::copy(format!("/usr/bin/{program}"), &path).unwrap();
        chown(&path, Some(ROOT), Some(ROOT)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    }
    let capable = format!("{GROUND}/plain/capable-cat");
    fs::copy("/usr/bin/cat", &capable).unwrap();
    host::output(ROOT, &["setcap", "cap_dac_override=ep", &capable]);
    let roots = format!("{GROUND}/plain/roots");
    fs::write(&roots, "only for root\n").unwrap();
    fs::set_permissions(&roots, fs::Permissions::from_mode(0o600)).unwrap();
}

async fn programs_that_give_privileges_give_none() {
    privileged();
    let script = "plain/root-id -u; plain/root-id -g; plain/root-cat plain/roots 2>&1; \
                  plain/capable-cat plain/roots 2>&1; true";
    let outside = host::run_with(DEV, GROUND, &["sh", "-c", script], "");
    let privileged = "0\n0\nonly for root\nonly for root\n";
    assert_eq!(text(&outside.stdout), privileged, "{outside:?}");
    let start = Start {
        cwd: GROUND.into(),
        ..client::start(ground::spec(DEV), &["sh", "-c", script])
    };
    let ran = client::run(&mut client::root().await, start).await;
    let refused = [
        "1000",
        "1000",
        "plain/root-cat: plain/roots: Permission denied",
        // The kernel rather starts nothing than a program that needs a
        // capability and goes without.
        "sh: 1: plain/capable-cat: Operation not permitted",
    ];
    assert_eq!(ran.lines(), refused, "{ran:?}");
    // No wall was needed.
    assert_eq!(ran.told(), (0, 0), "{ran:?}");
}

async fn a_setuid_program_of_an_enrolled_process_meets_the_walls() {
    privileged();
    let script = "read go; plain/root-id -u; plain/root-cat secret/key 2>&1; \
                  echo attacked | plain/root-tee -a plain/file 2>&1 >/dev/null; \
                  plain/root-kill -KILL $0 2>/dev/null; echo $?";
    let victim = Victim::new();
    let argv = ["sh", "-c", script, &victim.pid().to_string()];
    let outside = host::run_with(DEV, GROUND, &argv, "go\n");
    let through = "0\ncontent of secret/key\n0\n";
    assert_eq!(text(&outside.stdout), through, "{outside:?}");
    let written = fs::read_to_string(format!("{GROUND}/plain/file")).unwrap();
    assert!(written.contains("attacked"), "{written}");

    privileged();
    let victim = Victim::new();
    let pid = victim.pid();
    let mut child = host::command(DEV, &["sh", "-c", script, &pid.to_string()])
        .current_dir(GROUND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let request = EnrollRequest {
        sandbox: Some(enroll_request::Sandbox::Inline(ground::spec(DEV))),
        pid: child.id(),
        ..EnrollRequest::default()
    };
    let mut client = client::root().await;
    let mut stream = client.enroll(request).await.unwrap().into_inner();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let mut denials = Vec::new();
    let mut denied = 0;
    while let Some(message) = stream.message().await.unwrap() {
        match message.response {
            Some(Response::Denial(denial)) => denials.push(denial),
            Some(Response::Ended(ended)) => denied = ended.denied,
            Some(Response::Enrolled(_)) => {}
            other => panic!("{other:?} came"),
        }
    }
    let mut said = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    let refused = "0\n\
                   plain/root-cat: secret/key: No such file or directory\n\
                   plain/root-tee: plain/file: Permission denied\n\
                   1\n";
    assert_eq!(said, refused);
    child.wait().unwrap();
    let refusals: Vec<_> = denials
        .iter()
        .map(|it| {
            let object = it.object_display.as_str();
            (it.operation.as_str(), object, it.rule.as_str(), it.uid)
        })
        .collect();
    // Events have the user who started it, not the one it acts as.
    let process = format!("process {pid} (sleep)");
    let expected = [
        ("open", "/srv/ground/secret/key", "/srv/ground/secret", DEV),
        ("open", "/srv/ground/plain/file", "/", DEV),
        ("signal", &process, "another process", DEV),
    ];
    assert_eq!(refusals, expected, "{denials:?}");
    assert_eq!(denied, 3);
    assert!(host::alive(pid));
    let written = fs::read_to_string(format!("{GROUND}/plain/file")).unwrap();
    assert!(!written.contains("attacked"), "{written}");
}

/// `sandbox run` with a policy that ends so, in an environment of lies; what
/// `env` says inside.
fn environment(uid: u32, policy: &str, options: &str) -> Vec<String> {
    ground::make(uid);
    let policy = format!("{}{policy}", ground::POLICY);
    fs::write(format!("{GROUND}/policy.toml"), policy).unwrap();
    let script = format!("sandbox run -p ../policy.toml {options} -- env");
    let mut command = host::command(uid, &["sh", "-c", &script]);
    for name in [
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
        "SANDBOX",
        "SANDBOX_ID",
        "SANDBOX_POLICY",
        "XDG_CACHE_HOME",
        "PASSED",
        "GIVEN",
        "TWICE",
        "OTHER",
        "PYTHONPATH",
        "NODE_OPTIONS",
        "BASH_ENV",
    ] {
        command.env(name, "/callers");
    }
    let output = command.current_dir(WORK).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[track_caller]
fn assert_set(environment: &[String], expected: &[&str]) {
    for expected in expected {
        let found = environment.iter().any(|it| it == expected);
        assert!(found, "{expected}: {environment:#?}");
    }
}

#[track_caller]
fn assert_unset(environment: &[String], names: &[&str]) {
    for name in names {
        let beginning = format!("{name}=");
        let found = environment.iter().any(|it| it.starts_with(&beginning));
        assert!(!found, "{name}: {environment:#?}");
    }
}

async fn a_command_is_told_what_it_runs_in() {
    let policy = "[env]\npass = [\"HOME\", \"USER\", \"LOGNAME\", \"SHELL\", \"TMPDIR\", \
                  \"SANDBOX*\", \"PASSED\", \"TWICE\"]\n\
                  [env.set]\nTWICE = \"policys\"\nUSER = \"policys\"\nGIVEN = \"policys\"\n\
                  PLACES = \"${workspace}/src:${tmp}\"\n";
    for (uid, home, name) in [(DEV, "/home/dev", "dev"), (ROOT, "/root", "root")] {
        let options = "-e GIVEN -e LOGNAME=insisted -e OTHER=x=y";
        let found = environment(uid, policy, options);
        let home = format!("HOME={home}");
        let expected = [
            home.as_str(),
            "SHELL=/bin/bash",
            "TMPDIR=/tmp",
            "SANDBOX=1",
            "SANDBOX_POLICY=ground",
            "PASSED=/callers",
            // The policy's goes before what it is, the caller's before all.
            "TWICE=policys",
            "USER=policys",
            "GIVEN=/callers",
            "LOGNAME=insisted",
            "OTHER=x=y",
            "PLACES=/srv/ground/work/src:/tmp",
        ];
        assert_set(&found, &expected);
        let id = found.iter().find_map(|it| it.strip_prefix("SANDBOX_ID="));
        assert!(id.is_some_and(|id| id.len() == 12), "{found:#?}");
        // Its policy gives it no cache.
        assert_unset(
            &found,
            &["XDG_CACHE_HOME", "npm_config_cache", "CARGO_HOME"],
        );
        let found = environment(uid, "", "-e NAME=value");
        let name = format!("LOGNAME={name}");
        let user = name.replace("LOGNAME", "USER");
        assert_set(&found, &[&name, &user, &home, "NAME=value"]);
        assert_unset(&found, &["PASSED", "TWICE", "OTHER"]);
    }
}

async fn what_makes_programs_run_other_code_does_not_come_in() {
    let policy = "[env]\npass = [\"*\"]\n[env.set]\nPYTHONPATH = \"${workspace}/src\"\n";
    let found = environment(DEV, policy, "");
    assert_set(
        &found,
        &["PASSED=/callers", "PYTHONPATH=/srv/ground/work/src"],
    );
    assert_unset(&found, &["NODE_OPTIONS", "BASH_ENV"]);
    // Whoever insists on it has it.
    let found = environment(DEV, policy, "-e BASH_ENV");
    assert_set(&found, &["BASH_ENV=/callers"]);
}

async fn a_cache_is_kept_for_the_user_and_the_workspace() {
    ground::make(DEV);
    let here = |directory: &str, script: &str| {
        let argv = ["sandbox", "run", "--", "sh", "-c", script];
        let output = host::run_with(DEV, directory, &argv, "");
        text(&output.stdout)
    };
    let variables = "echo $XDG_CACHE_HOME; echo $npm_config_cache; echo $PIP_CACHE_DIR; \
                     echo $CARGO_HOME; echo $GOMODCACHE";
    let said = here(WORK, variables);
    let caches: Vec<_> = said.lines().collect();
    assert!(caches[0].starts_with("/var/cache/sandboxd/1000/"), "{said}");
    assert_eq!(caches.len(), 5, "{said}");
    assert!(caches.iter().all(|it| it.starts_with(caches[0])), "{said}");
    here(WORK, "echo kept >$XDG_CACHE_HOME/of-the-test");
    assert_eq!(here(WORK, "cat $XDG_CACHE_HOME/of-the-test"), "kept\n");
    let elsewhere = format!("{WORK}/directory");
    assert_eq!(here(&elsewhere, "cat $XDG_CACHE_HOME/of-the-test"), "");
    // The user's own is read-only, as all that is not named.
    let touch = "mkdir -p ~/.cache/of-the-test && echo made";
    assert_eq!(here(WORK, touch), "");
    here(WORK, "rm $XDG_CACHE_HOME/of-the-test");
}
