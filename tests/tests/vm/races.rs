//! Races: what is decided while something else changes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use sandbox_daemon::proto::{
    EnrollRequest, KillExecRequest, Start, UpdateSandboxRequest, enroll_request,
    enroll_response::Response,
};

use crate::{
    client::{self, Client, Ran, Run},
    ground::{self, GROUND, POLICY},
    host::{self, DEV, SLICE, wait_until},
};

crate::trials![
    an_update_never_allows_or_refuses_what_neither_policy_does,
    what_is_denied_is_never_there_while_its_ancestors_are_renamed,
    nothing_survives_its_end_however_fast_it_forks,
    nothing_stays_outside_however_fast_it_forks,
];

/// How often something changes.
fn rounds(short: u32, long: u32) -> u32 {
    if host::long() { long } else { short }
}

/// Processes in a sandbox that try all steps, again and again.
async fn holding(client: &mut Client, sandbox: &str, steps: &[&[&str]]) -> Run {
    let mut hold = vec!["hold", "3"];
    hold.extend(steps.join(&";"));
    let start = Start {
        cwd: GROUND.into(),
        ..client::start_in(sandbox, &client::attacker(&[&["say", "ready"], &hold]))
    };
    let mut run = Run::start(&mut client.clone(), start).await.unwrap();
    assert_eq!(run.line().await, "ok ready");
    run
}

/// Ends them; every step always had its answer.
async fn held(mut run: Run) -> Ran {
    run.write("x").await;
    let line = run.line().await;
    let ran = run.end().await;
    let error = host::text(&ran.stderr);
    assert_eq!(line, "ok held", "{error}");
    let (told, lost) = ran.told();
    assert_eq!(told + lost, ran.exited.denied);
    assert!(ran.exited.denied > 0, "{ran:?}");
    ran
}

async fn an_update_never_allows_or_refuses_what_neither_policy_does() {
    ground::make(DEV);
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let steps: [&[&str]; 6] = [
        &["ENOENT", "read", "secret/key"],
        &["EACCES", "append", "plain/file"],
        &["EPERM", "udp", "203.0.113.1:53", "attack"],
        &["ok", "read", "plain/file"],
        &["ok", "append", "work/file"],
        &["ok", "stat", "work"],
    ];
    let run = holding(&mut client, &id, &steps).await;
    // The same comes about in another way: other places, and more of them.
    let other = POLICY
        .replace("\"/srv/ground/secret\"", "\"/srv/ground/secret/key\", \"/srv/ground/secret/directory\"")
        .replace("read = [\"/\"", "read = [\"/usr\", \"/srv/ground\", \"/etc\", \"/lib\", \"/lib64\", \"/mnt\", \"/proc\"")
        .replace("\"${workspace}/hidden\"", "\"${workspace}/other\"");
    assert_ne!(other, POLICY);
    for round in 0..rounds(100, 1000) {
        let policy = if round % 2 == 0 { &other } else { POLICY };
        let request = UpdateSandboxRequest {
            id: id.clone(),
            policy: Some(client::policy(policy)),
            etag: String::new(),
        };
        client.update_sandbox(request).await.unwrap();
    }
    held(run).await;
    client::delete(&mut client, &id).await;
}

async fn what_is_denied_is_never_there_while_its_ancestors_are_renamed() {
    ground::make(DEV);
    let ground = Path::new(GROUND);
    fs::create_dir_all(ground.join("secret/directory/deeper")).unwrap();
    fs::write(ground.join("secret/directory/deeper/key"), "key\n").unwrap();
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let steps: [&[&str]; 8] = [
        &["ENOENT", "read", "secret/directory/deeper/key"],
        &["ENOENT", "read", "secret/moved/deeper/key"],
        &["ENOENT", "read", "secret/moved/moved/key"],
        &["ENOENT", "read", "secret/key"],
        // What it tries itself is refused.
        &["EACCES", "rename", "secret", "work/stolen"],
        &["EACCES", "rename", "work/pinned", "work/stolen"],
        &["EACCES", "exchange", "work/pinned", "work/directory"],
        &["ENOENT", "read", "work/stolen/key"],
    ];
    let run = holding(&mut client, &id, &steps).await;
    for _ in 0..rounds(300, 3000) {
        for (from, to) in [
            ("secret/directory", "secret/moved"),
            ("secret/moved/deeper", "secret/moved/moved"),
            ("secret/moved/moved", "secret/moved/deeper"),
            ("secret/moved", "secret/directory"),
        ] {
            fs::rename(ground.join(from), ground.join(to)).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    held(run).await;
    client::delete(&mut client, &id).await;
    let control = ["read", "secret/directory/deeper/key"];
    assert_eq!(host::attack(DEV, GROUND, &control), "ok key");
}

/// How long each process of a bomb rests before it forks, in milliseconds. Who
/// does not rest may be quicker than whoever moves it.
const RESTS: [&str; 5] = ["0", "0", "1", "10", "100"];

/// Processes of a bomb, whatever their parents.
fn bombs() -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap();
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|&pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(6).any(|it| it == b"\0bomb\0") && host::alive(pid)
    })
    .collect()
}

async fn nothing_survives_its_end_however_fast_it_forks() {
    ground::make(DEV);
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    for round in 0..rounds(20, 200) {
        let start = client::start_in(&id, &client::attacker(&[&["bomb", "0"]]));
        let mut run = Run::start(&mut client.clone(), start).await.unwrap();
        assert_eq!(run.line().await, "ok");
        tokio::time::sleep(Duration::from_millis(u64::from(round % 7) * 3)).await;
        let exec = run.started.exec_id.clone();
        let cgroup: PathBuf = [SLICE, &id, &exec].iter().collect();
        assert!(cgroup.exists());
        let request = KillExecRequest { exec_id: exec };
        client.kill_exec(request).await.unwrap();
        let ran = run.end().await;
        assert_eq!(ran.signal(), Some(9), "{ran:?}");
        assert!(!cgroup.exists(), "{}", cgroup.display());
        assert_eq!(bombs(), Vec::<u32>::new(), "round {round}");
    }
    client::delete(&mut client, &id).await;
}

/// A cgroup of a test's own, outside of any sandbox: who is in it can be said
/// without being quicker than what forks there.
struct Pen(PathBuf);

impl Pen {
    fn make() -> Self {
        let path = PathBuf::from("/sys/fs/cgroup/user.slice/pen");
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Starts something in it.
    fn spawn(&self, command: &mut Command) -> Child {
        let own = std::process::id();
        let home = format!("/sys/fs/cgroup/{}/cgroup.procs", host::cgroup(own));
        fs::write(self.0.join("cgroup.procs"), own.to_string()).unwrap();
        let child = command.spawn();
        fs::write(home, own.to_string()).unwrap();
        child.unwrap()
    }

    fn is_empty(&self) -> bool {
        let events = fs::read_to_string(self.0.join("cgroup.events")).unwrap();
        events.lines().any(|line| line == "populated 0")
    }

    async fn end(&self) {
        fs::write(self.0.join("cgroup.kill"), "1").unwrap();
        wait_until("all in the pen has ended", || self.is_empty()).await;
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        // A test that fails leaves nothing that forks behind.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

async fn nothing_stays_outside_however_fast_it_forks() {
    ground::make(DEV);
    let mut client = client::root().await;
    let (mut moved, mut refused) = (0, 0);
    for _ in 0..rounds(2, 20) {
        for rest in RESTS {
            let pen = Pen::make();
            let mut bomb = pen.spawn(&mut host::attacker(DEV, &[&["bomb", rest]]));
            wait_until("it forks", || bombs().len() > 3).await;
            let request = EnrollRequest {
                sandbox: Some(enroll_request::Sandbox::Inline(ground::spec(DEV))),
                pid: bomb.id(),
                ..EnrollRequest::default()
            };
            match client.enroll(request).await {
                Ok(stream) => {
                    let mut stream = stream.into_inner();
                    let first = stream.message().await.unwrap().unwrap().response;
                    assert!(matches!(first, Some(Response::Enrolled(_))), "{first:?}");
                    // What was ending when it was to be moved ends here.
                    wait_until("nothing is left outside", || pen.is_empty()).await;
                    // With its call, all of it ends.
                    drop(stream);
                    moved += 1;
                }
                Err(status) => {
                    assert_eq!(client::reason(&status), "PROCESS_UNSETTLED", "{status:?}");
                    // All of it is back, and goes on.
                    assert_eq!(host::cgroup(bomb.id()), "user.slice/pen");
                    wait_until("the sandbox is gone", || host::sandboxes().is_empty()).await;
                    pen.end().await;
                    refused += 1;
                }
            }
            wait_until("all of it has ended", || bombs().is_empty()).await;
            bomb.wait().unwrap();
        }
    }
    println!("{moved} were moved, {refused} refused");
    assert!(moved > 0, "none was moved, {refused} refused");
}
