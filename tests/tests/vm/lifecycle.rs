//! The life of a command, from its start to nothing being left.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
};

use nix::{sys::signal, unistd::Pid};
use sandbox_daemon::proto::{
    CloseStdin, CreateSandboxRequest, DeleteSandboxRequest, EnvVar, GetSandboxRequest,
    KillExecRequest, ListSandboxesRequest, Start, Stdio, WindowSize, exited::Reason, run_request,
};
use tonic::Code;

use crate::{
    client::{self, Client, Run, run},
    ground::{self, WORK},
    host::{self, DEV, ROOT, wait_until},
};

crate::trials![
    a_command_ends_with_its_own_status,
    a_command_that_cannot_be_started_is_a_status_with_a_reason,
    nothing_survives_the_end_of_its_command,
    a_caller_that_goes_away_takes_everything_along,
    a_deadline_ends_a_command,
    killing_an_exec_leaves_the_sandbox,
    deleting_a_sandbox_ends_what_runs_in_it,
    a_run_leaves_nothing_behind,
    a_daemon_that_is_spared_stays_so_and_its_commands_are_not,
    anothers_sandbox_does_not_exist,
    a_user_acts_for_nobody_else,
    a_sandboxed_process_cannot_call,
    an_idle_sandbox_is_deleted,
    the_same_request_makes_one_sandbox,
    a_command_runs_in_the_workspace_as_the_user,
    the_environment_is_what_the_policy_lets_in,
    stdin_is_relayed_until_it_is_closed,
    a_signal_reaches_the_command,
    a_terminal_is_one_of_its_own,
    more_sandboxes_than_the_quota_are_refused,
];

async fn a_command_ends_with_its_own_status() {
    ground::make(DEV);
    let mut client = client::root().await;
    for (steps, code, signal) in [
        ([["exit", "0"].as_slice()], Some(0), None),
        ([&["exit", "37"]], Some(37), None),
        ([&["signal", "6"]], None, Some(6)),
        ([&["signal", "9"]], None, Some(9)),
    ] {
        let ran = run(&mut client, ground::attacker(DEV, &steps)).await;
        assert_eq!((ran.code(), ran.signal()), (code, signal), "{steps:?}");
        assert_eq!(ran.exited.reason(), Reason::Exited, "{steps:?}");
        assert_eq!(ran.told(), (0, 0));
    }
}

async fn a_command_that_cannot_be_started_is_a_status_with_a_reason() {
    ground::make(DEV);
    let before = host::sandboxes();
    let mut client = client::root().await;
    for (argv, reason) in [
        (["/srv/ground/nothing"], "COMMAND_NOT_FOUND"),
        (["no-such-command"], "COMMAND_NOT_FOUND"),
        (["/srv/ground/work/file"], "NOT_EXECUTABLE"),
        (["/srv/ground/secret/program"], "NOT_EXECUTABLE"),
    ] {
        let start = client::start(ground::spec(DEV), &argv);
        let Err(status) = Run::start(&mut client, start).await else {
            panic!("{argv:?} was started");
        };
        assert_eq!(client::reason(&status), reason, "{status:?}");
    }
    let start = Start {
        cwd: "/srv/nothing".into(),
        ..client::start(ground::spec(DEV), &["true"])
    };
    let Err(status) = Run::start(&mut client, start).await else {
        panic!("it was started nowhere");
    };
    assert_eq!(client::reason(&status), "WORKING_DIRECTORY_INVALID");
    assert_eq!(host::sandboxes(), before);
}

/// Between its start and its exec a command shares the daemon's memory, by which
/// the kernel finds whom else an OOM score is for.
async fn a_daemon_that_is_spared_stays_so_and_its_commands_are_not() {
    const OWN: &str = "/proc/self/oom_score_adj";
    const SPARED: &str = "-500";
    ground::make(DEV);
    let daemons = format!("/proc/{}/oom_score_adj", host::daemon());
    let before = fs::read_to_string(&daemons).unwrap();
    fs::write(&daemons, SPARED).unwrap();
    let mut client = client::root().await;
    let ran = run(&mut client, ground::attacker(DEV, &[&["read", OWN]])).await;
    let after = fs::read_to_string(&daemons).unwrap();
    fs::write(&daemons, before.trim_end()).unwrap();
    assert_eq!(ran.lines(), ["ok 0"], "{ran:?}");
    assert_eq!(after.trim_end(), SPARED);
    // The control: a child has what its parent has.
    let script = format!("echo {SPARED} >{OWN} && cat {OWN}");
    assert_eq!(
        host::output(ROOT, &["sh", "-c", &script]).trim_end(),
        SPARED
    );
}

async fn nothing_survives_the_end_of_its_command() {
    ground::make(DEV);
    let mut client = client::root().await;
    let steps: [&[&str]; 3] = [&["escape"], &["child"], &["pid"]];
    let ran = run(&mut client, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    for line in ran.lines() {
        let pid: u32 = line.strip_prefix("ok ").unwrap().parse().unwrap();
        assert!(!host::alive(pid), "{ran:?}");
    }
    // Outside it stays, until somebody kills it.
    let mut outside = host::attacker(DEV, &steps[..1]).spawn().unwrap();
    let mut answer = String::new();
    let mut lines = BufReader::new(outside.stdout.take().unwrap());
    lines.read_line(&mut answer).unwrap();
    assert!(outside.wait().unwrap().success());
    let pid: u32 = answer
        .trim_end()
        .strip_prefix("ok ")
        .unwrap()
        .parse()
        .unwrap();
    assert!(host::alive(pid));
    signal::kill(Pid::from_raw(pid.cast_signed()), signal::SIGKILL).unwrap();
}

/// Starts an attacker that leaves its session and stays; its sandbox, and the
/// processes.
async fn lingering(client: &mut Client, start: Start) -> (Run, Vec<u32>) {
    let mut run = Run::start(client, start).await.unwrap();
    let mut pids = vec![run.started.pid];
    for _ in 0..2 {
        let line = run.line().await;
        pids.push(line.strip_prefix("ok ").unwrap().parse().unwrap());
    }
    assert!(pids.iter().all(|&pid| host::alive(pid)), "{pids:?}");
    (run, pids)
}

const LINGER: [&[&str]; 3] = [&["escape"], &["child"], &["stay"]];

async fn a_caller_that_goes_away_takes_everything_along() {
    ground::make(DEV);
    let before = host::sandboxes();
    let mut client = client::root().await;
    let (run, pids) = lingering(&mut client, ground::attacker(DEV, &LINGER)).await;
    assert_eq!(host::sandboxes().len(), before.len() + 1);
    drop(run);
    wait_until("everything is dead", || {
        !pids.iter().any(|&pid| host::alive(pid))
    })
    .await;
    wait_until("its cgroup is gone", || host::sandboxes() == before).await;
}

async fn a_deadline_ends_a_command() {
    ground::make(DEV);
    let mut client = client::root().await;
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let start = run_request::Request::Start(ground::attacker(DEV, &[&["stay"]]));
    let start = sandbox_daemon::proto::RunRequest {
        request: Some(start),
    };
    sender.send(start).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut request = tonic::Request::new(stream);
    request.set_timeout(std::time::Duration::from_secs(2));
    let before = host::sandboxes();
    let mut responses = client.run(request).await.unwrap().into_inner();
    // Either the daemon's last word or the client's own.
    while let Ok(Some(_)) = responses.message().await {}
    wait_until("its cgroup is gone", || host::sandboxes() == before).await;
}

async fn killing_an_exec_leaves_the_sandbox() {
    ground::make(DEV);
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let start = client::start_in(&id, &client::attacker(&LINGER));
    let (run_, pids) = lingering(&mut client, start).await;
    let request = KillExecRequest {
        exec_id: run_.started.exec_id.clone(),
    };
    client.kill_exec(request).await.unwrap();
    let ran = run_.end().await;
    assert_eq!(ran.signal(), Some(9), "{ran:?}");
    assert_eq!(ran.exited.reason(), Reason::Killed, "{ran:?}");
    assert!(!pids.iter().any(|&pid| host::alive(pid)), "{pids:?}");
    let start = client::start_in(&id, &client::attacker(&[&["say", "again"]]));
    assert_eq!(run(&mut client, start).await.lines(), ["ok again"]);
    client::delete(&mut client, &id).await;
}

async fn deleting_a_sandbox_ends_what_runs_in_it() {
    ground::make(DEV);
    let before = host::sandboxes();
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let start = client::start_in(&id, &client::attacker(&LINGER));
    let (run_, pids) = lingering(&mut client, start).await;
    client::delete(&mut client, &id).await;
    // When the call returns, the cgroup is gone.
    assert_eq!(host::sandboxes(), before);
    assert!(!pids.iter().any(|&pid| host::alive(pid)), "{pids:?}");
    let ran = run_.end().await;
    assert_eq!(ran.exited.reason(), Reason::Killed, "{ran:?}");
    let request = GetSandboxRequest { id };
    let status = client.get_sandbox(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

async fn a_run_leaves_nothing_behind() {
    ground::make(DEV);
    host::output(DEV, &["git", "init", "-q", WORK]);
    host::output(DEV, &["git", "-C", WORK, "add", "-A"]);
    host::output(DEV, &["git", "-C", WORK, "commit", "-qm", "all"]);
    let status = || host::output(DEV, &["git", "-C", WORK, "status", "--porcelain"]);
    assert_eq!(status(), "");
    let (mounts, cgroups) = (host::mounts(), host::sandboxes());
    let (tree, home) = (host::snapshot("/srv"), host::snapshot("/home/dev"));
    let steps: [&[&str]; 7] = [
        &["read", "secret/key"],
        &["append", "plain/file"],
        &["open", "work/missing", "creat"],
        &["open", "/tmp/file", "creat"],
        &["open", "/dev/shm/file", "creat"],
        &["udp", "203.0.113.1:53", "x"],
        &["escape"],
    ];
    let ran = run(&mut client::root().await, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.exited.denied, 4, "{ran:?}");
    assert_eq!(host::mounts(), mounts);
    assert_eq!(host::sandboxes(), cgroups);
    assert_eq!(host::snapshot("/srv"), tree);
    assert_eq!(host::snapshot("/home/dev"), home);
    assert_eq!(status(), "");
}

async fn anothers_sandbox_does_not_exist() {
    ground::make(DEV);
    let mut root = client::root().await;
    let mut dev = client::of(DEV).await;
    let roots = client::create(&mut root, ground::spec(ROOT)).await.id;
    let devs = client::create(&mut root, ground::spec(DEV)).await.id;
    let status = dev
        .get_sandbox(GetSandboxRequest { id: roots.clone() })
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    let status = dev
        .delete_sandbox(DeleteSandboxRequest { id: roots.clone() })
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    let Err(status) = Run::start(&mut dev, client::start_in(&roots, &["true"])).await else {
        panic!("it ran in another's sandbox");
    };
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    let listed = dev.list_sandboxes(ListSandboxesRequest {}).await.unwrap();
    let listed = listed.into_inner().sandboxes;
    let ids: Vec<_> = listed.iter().map(|sandbox| sandbox.id.clone()).collect();
    assert!(ids.contains(&devs) && !ids.contains(&roots), "{ids:?}");
    let listed = root.list_sandboxes(ListSandboxesRequest {}).await.unwrap();
    let listed = listed.into_inner().sandboxes;
    assert!(listed.iter().any(|sandbox| sandbox.id == roots));
    client::delete(&mut root, &roots).await;
    client::delete(&mut dev, &devs).await;
}

async fn a_user_acts_for_nobody_else() {
    ground::make(DEV);
    let mut dev = client::of(DEV).await;
    let request = CreateSandboxRequest {
        spec: Some(ground::spec(ROOT)),
        ..CreateSandboxRequest::default()
    };
    let status = dev.create_sandbox(request).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(client::reason(&status), "FOREIGN_UID");
}

async fn a_sandboxed_process_cannot_call() {
    ground::make(DEV);
    let argv = ["sandbox", "run", "--", "true"];
    let ran = run(
        &mut client::root().await,
        client::start(ground::spec(DEV), &argv),
    )
    .await;
    assert_eq!(ran.code(), Some(125), "{ran:?}");
    let error = host::text(&ran.stderr);
    assert!(error.contains("already inside the sandbox `"), "{error}");
    assert!(error.contains("hint: sandboxes do not nest"), "{error}");
}

async fn an_idle_sandbox_is_deleted() {
    ground::make(DEV);
    let before = host::sandboxes();
    let mut client = client::root().await;
    let mut spec = ground::spec(DEV);
    spec.idle_timeout = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    client::create(&mut client, spec).await;
    wait_until("its cgroup is gone", || host::sandboxes() == before).await;
}

async fn the_same_request_makes_one_sandbox() {
    ground::make(DEV);
    let mut client = client::root().await;
    let request = CreateSandboxRequest {
        spec: Some(ground::spec(DEV)),
        request_id: "the-same".into(),
    };
    let first = client.create_sandbox(request.clone()).await.unwrap();
    let second = client.create_sandbox(request).await.unwrap();
    let (first, second) = (first.into_inner(), second.into_inner());
    assert_eq!(first.id, second.id);
    client::delete(&mut client, &first.id).await;
}

async fn a_command_runs_in_the_workspace_as_the_user() {
    let mut client = client::root().await;
    for (uid, expected) in [(DEV, "1000"), (ROOT, "0")] {
        ground::make(uid);
        let script = "pwd; id -u; id -g; grep -e CapEff -e NoNewPrivs /proc/self/status; umask";
        let start = Start {
            umask: Some(0o027),
            ..client::start(ground::spec(uid), &["sh", "-c", script])
        };
        let ran = run(&mut client, start).await;
        let text = host::text(&ran.stdout).replace('\t', " ");
        let lines: Vec<_> = text.lines().collect();
        let rest = ["CapEff: 0000000000000000", "NoNewPrivs: 1", "0027"];
        assert_eq!(lines[..3], [WORK, expected, expected], "{ran:?}");
        assert_eq!(lines[3..], rest, "{ran:?}");
    }
}

async fn the_environment_is_what_the_policy_lets_in() {
    ground::make(DEV);
    let variable = |name: &str, value: &str| EnvVar {
        name: name.to_owned().into(),
        value: value.to_owned().into(),
    };
    let start = Start {
        env: vec![
            variable("PATH", "/usr/bin:/bin:/opt/tools"),
            variable("AWS_SECRET_ACCESS_KEY", "x"),
            variable("GITHUB_TOKEN", "x"),
            variable("LD_PRELOAD", "/srv/evil.so"),
            variable("RUST_BACKTRACE", "1"),
        ],
        env_set: vec![variable("GIVEN", "y")],
        ..client::start(client::spec(DEV, client::named("default"), WORK), &["env"])
    };
    let run = Run::start(&mut client::root().await, start).await.unwrap();
    let withheld = run.started.withheld_env.clone();
    let ran = run.end().await;
    let lines = ran.lines();
    for expected in [
        "PATH=/usr/bin:/bin:/opt/tools",
        "HOME=/home/dev",
        "USER=dev",
        "GIVEN=y",
        "RUST_BACKTRACE=1",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}: {lines:?}"
        );
    }
    for name in ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "LD_PRELOAD"] {
        assert!(withheld.iter().any(|it| it == name), "{withheld:?}");
        let found = lines.iter().any(|line| line.starts_with(name));
        assert!(!found, "{lines:?}");
    }
    // Its caches are its own, and not below anybody's home directory.
    let cache = lines.iter().find(|it| it.starts_with("XDG_CACHE_HOME="));
    let cache = cache.unwrap().split_once('=').unwrap().1.to_owned();
    assert!(Path::new(&cache).is_dir(), "{cache}");
    assert!(!cache.starts_with("/home"), "{cache}");
}

async fn stdin_is_relayed_until_it_is_closed() {
    ground::make(DEV);
    let start = client::start(ground::spec(DEV), &["sh", "-c", "cat; echo end >&2"]);
    let mut run = Run::start(&mut client::root().await, start).await.unwrap();
    run.write("one\ntwo\n").await;
    assert_eq!(run.line().await, "one");
    assert_eq!(run.line().await, "two");
    run.send(run_request::Request::CloseStdin(CloseStdin {}))
        .await;
    let ran = run.end().await;
    assert_eq!(ran.stderr, b"end\n", "{ran:?}");
    assert_eq!(ran.code(), Some(0), "{ran:?}");
}

async fn a_signal_reaches_the_command() {
    ground::make(DEV);
    let script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let start = client::start(ground::spec(DEV), &["sh", "-c", script]);
    let mut run = Run::start(&mut client::root().await, start).await.unwrap();
    assert_eq!(run.line().await, "ready");
    run.send(run_request::Request::Signal(15)).await;
    assert_eq!(run.line().await, "got");
    let ran = run.end().await;
    assert_eq!(ran.code(), Some(5), "{ran:?}");
    assert_eq!(ran.exited.reason(), Reason::Exited, "{ran:?}");
}

async fn a_terminal_is_one_of_its_own() {
    ground::make(DEV);
    let start = Start {
        stdio: Stdio::Pty.into(),
        window_size: Some(WindowSize {
            rows: 33,
            columns: 101,
        }),
        ..client::start(
            ground::spec(DEV),
            &[
                "sh",
                "-c",
                "tty; stty size; read line; stty size; echo $line",
            ],
        )
    };
    let mut run = Run::start(&mut client::root().await, start).await.unwrap();
    assert!(run.line().await.starts_with("/dev/pts/"));
    assert_eq!(run.line().await.trim_end(), "33 101");
    let size = WindowSize {
        rows: 20,
        columns: 60,
    };
    run.send(run_request::Request::WindowSize(size)).await;
    run.write("typed\n").await;
    assert_eq!(run.line().await.trim_end(), "typed");
    assert_eq!(run.line().await.trim_end(), "20 60");
    assert_eq!(run.line().await.trim_end(), "typed");
    let ran = run.end().await;
    assert_eq!(ran.code(), Some(0), "{ran:?}");
}

async fn more_sandboxes_than_the_quota_are_refused() {
    ground::make(DEV);
    let before = host::sandboxes();
    let mut dev = client::of(DEV).await;
    let mut made = Vec::new();
    let status = loop {
        let spec = client::spec(DEV, client::policy(TINY), WORK);
        let request = CreateSandboxRequest {
            spec: Some(spec),
            ..CreateSandboxRequest::default()
        };
        match dev.create_sandbox(request).await {
            Ok(sandbox) => made.push(sandbox.into_inner().id),
            Err(status) => break status,
        }
        assert!(made.len() <= 1000, "there is no quota");
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(
        status.message().contains(&made.len().to_string()),
        "{status:?}"
    );
    // Another user's are not counted.
    let mut root = client::root().await;
    let roots = client::create(&mut root, ground::spec(ROOT)).await.id;
    client::delete(&mut root, &roots).await;
    for id in made {
        client::delete(&mut dev, &id).await;
    }
    assert_eq!(host::sandboxes(), before);
}

const TINY: &str = "version = 1\nname = \"tiny\"\n[files]\nread = [\"/\"]\n";
