//! Processes that run already are placed into a sandbox.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout},
};

use sandbox_daemon::proto::{
    Denial, EnrollRequest, EnrollResponse, Enrolled, GetSandboxRequest, enroll_request,
    enroll_response::Response,
};
use tonic::{Code, Status, Streaming};

use crate::{
    client::{self, Client},
    ground::{self, GROUND},
    host::{self, DEV, ROOT, wait_until},
    outside::Wire,
};

crate::trials![
    an_enrolled_process_is_inside_with_its_descendants,
    an_enrolled_process_does_not_write_to_the_hosts_tmp,
    an_enrolled_process_is_killed_when_its_call_ends,
    an_enrolled_process_that_stays_outlives_the_call,
    open_sockets_directories_and_files_are_refused_with_a_list,
    what_threads_and_mappings_have_open_is_refused_too,
    a_process_whose_first_thread_has_ended_is_not_enrolled,
    what_is_open_can_be_accepted_by_name,
    anothers_process_is_not_enrolled,
    a_process_that_is_not_the_one_meant_is_not_enrolled,
    a_raw_socket_of_an_enrolled_root_sends_nothing,
    sockets_that_were_made_before_are_not_used,
    a_ring_that_was_made_before_is_refused_and_accepted_is_no_way_out,
];

/// An attacker outside.
pub(crate) struct Attacker {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Attacker {
    pub(crate) fn start(uid: u32, steps: &[&[&str]]) -> Self {
        let mut command = host::attacker(uid, steps);
        let mut child = command.current_dir(GROUND).spawn().unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn go_on(&mut self) {
        self.stdin.write_all(b"x").unwrap();
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn request(uid: u32, pid: u32) -> EnrollRequest {
    EnrollRequest {
        sandbox: Some(enroll_request::Sandbox::Inline(ground::spec(uid))),
        pid,
        ..EnrollRequest::default()
    }
}

pub(crate) async fn enroll(
    client: &mut Client,
    request: EnrollRequest,
) -> Result<(Streaming<EnrollResponse>, Enrolled), Status> {
    let mut stream = client.enroll(request).await?.into_inner();
    let first = stream.message().await?.and_then(|first| first.response);
    let Some(Response::Enrolled(enrolled)) = first else {
        panic!("first came {first:?}");
    };
    Ok((stream, enrolled))
}

/// What an enrolled process was refused until its end.
pub(crate) async fn until_ended(stream: &mut Streaming<EnrollResponse>) -> Vec<Denial> {
    let mut denials = Vec::new();
    loop {
        match stream.message().await.unwrap().unwrap().response {
            Some(Response::Denial(denial)) => denials.push(denial),
            Some(Response::Ended(ended)) => {
                let told: u64 = denials.iter().map(|denial: &Denial| denial.count).sum();
                assert_eq!((told, 0), (ended.denied, ended.lost), "{denials:#?}");
                return denials;
            }
            other => panic!("{other:?} came"),
        }
    }
}

async fn an_enrolled_process_is_inside_with_its_descendants() {
    ground::make(DEV);
    let steps: [&[&str]; 6] = [
        &["child"],
        &["wait"],
        &["read", "secret/key"],
        &["append", "plain/file"],
        &["udp", "203.0.113.1:53", "attack"],
        &["wait"],
    ];
    let mut attacker = Attacker::start(DEV, &steps);
    let child: u32 = attacker
        .line()
        .strip_prefix("ok ")
        .unwrap()
        .parse()
        .unwrap();
    let mut client = client::root().await;
    let (mut stream, enrolled) = enroll(&mut client, request(DEV, attacker.pid()))
        .await
        .unwrap();
    let mut pids = enrolled.pids.clone();
    pids.sort_unstable();
    let mut expected = vec![attacker.pid(), child];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    for pid in pids {
        let cgroup = host::cgroup(pid);
        assert!(cgroup.starts_with("sandboxd.slice/"), "{pid}: {cgroup}");
    }
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    for expected in ["ENOENT", "EACCES", "EPERM"] {
        assert_eq!(attacker.line(), expected);
    }
    let mut rules = Vec::new();
    while rules.len() < 3 {
        match stream.message().await.unwrap().unwrap().response {
            Some(Response::Denial(denial)) => rules.push(denial.rule),
            other => panic!("{other:?} came"),
        }
    }
    assert_eq!(rules, ["/srv/ground/secret", "/", "network none"]);
    attacker.go_on();
    // The child is still there; the end of the exec is that of all of them.
    let _ = attacker.child.wait();
    assert!(host::alive(child));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.cast_signed()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
    let last = stream.message().await.unwrap().unwrap().response;
    let Some(Response::Ended(ended)) = last else {
        panic!("last came {last:?}");
    };
    assert_eq!((ended.denied, ended.lost), (3, 0));
}

async fn an_enrolled_process_does_not_write_to_the_hosts_tmp() {
    ground::make(DEV);
    let step = ["open", "/tmp/attacked", "creat"];
    let mut attacker = Attacker::start(DEV, &[&["wait"], &step, &["wait"]]);
    let mut client = client::root().await;
    let (stream, _) = enroll(&mut client, request(DEV, attacker.pid()))
        .await
        .unwrap();
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    assert_eq!(attacker.line(), "EACCES");
    assert_eq!(host::attack(DEV, "/", &step), "ok");
    std::fs::remove_file("/tmp/attacked").unwrap();
    drop(stream);
}

async fn an_enrolled_process_is_killed_when_its_call_ends() {
    ground::make(DEV);
    let before = host::sandboxes();
    let attacker = Attacker::start(DEV, &[&["stay"]]);
    let mut client = client::root().await;
    let (stream, _) = enroll(&mut client, request(DEV, attacker.pid()))
        .await
        .unwrap();
    drop(stream);
    wait_until("it is dead", || !host::alive(attacker.pid())).await;
    wait_until("its cgroup is gone", || host::sandboxes() == before).await;
}

async fn an_enrolled_process_that_stays_outlives_the_call() {
    ground::make(DEV);
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let steps: [&[&str]; 4] = [
        &["wait"],
        &["read", "secret/key"],
        &["wait"],
        &["read", "secret/key"],
    ];
    let mut attacker = Attacker::start(DEV, &steps);
    let stays = EnrollRequest {
        sandbox: Some(enroll_request::Sandbox::SandboxId(id.clone())),
        stay: true,
        ..request(DEV, attacker.pid())
    };
    let (stream, enrolled) = enroll(&mut client, stays).await.unwrap();
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    assert_eq!(attacker.line(), "ENOENT");
    drop(stream);
    drop(client);
    let mut client = client::root().await;
    let sandbox = client.get_sandbox(GetSandboxRequest { id: id.clone() });
    let sandbox = sandbox.await.unwrap().into_inner();
    assert_eq!(sandbox.execs.len(), 1, "{sandbox:#?}");
    assert_eq!(sandbox.execs[0].id, enrolled.exec_id);
    assert!(sandbox.execs[0].enrolled);
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    assert_eq!(attacker.line(), "ENOENT");
    client::delete(&mut client, &id).await;
    wait_until("it is dead", || !host::alive(attacker.pid())).await;
}

const OPEN: [&[&str]; 5] = [
    &["keep", "file", "work/file", "rw"],
    &["keep", "directory", "plain/directory", "r+directory"],
    &["keep-socket"],
    &["wait"],
    &["read", "secret/key"],
];

async fn open_sockets_directories_and_files_are_refused_with_a_list() {
    ground::make(DEV);
    let before = host::sandboxes();
    let mut attacker = Attacker::start(DEV, &OPEN);
    for _ in 0..3 {
        assert_eq!(attacker.line(), "ok");
    }
    let mut client = client::root().await;
    let Err(status) = enroll(&mut client, request(DEV, attacker.pid())).await else {
        panic!("it was enrolled");
    };
    assert_eq!(
        client::reason(&status),
        "INHERITED_DESCRIPTORS",
        "{status:?}"
    );
    for what in [
        "socket",
        "/srv/ground/work/file",
        "/srv/ground/plain/directory",
    ] {
        assert!(
            status.message().contains(what),
            "{what}: {}",
            status.message()
        );
    }
    assert!(!host::cgroup(attacker.pid()).contains("sandboxd.slice"));
    assert_eq!(host::sandboxes(), before);
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    assert_eq!(attacker.line(), "ok content of secret/key");
}

async fn what_threads_and_mappings_have_open_is_refused_too() {
    ground::make(DEV);
    let path = "/srv/ground/work/file";
    for (step, how) in [("open-in-thread", "descriptor"), ("map", "mapped by")] {
        let mut attacker = Attacker::start(DEV, &[&[step, path], &["stay"]]);
        assert_eq!(attacker.line(), "ok", "{step}");
        let mut client = client::root().await;
        let Err(status) = enroll(&mut client, request(DEV, attacker.pid())).await else {
            panic!("{step}: it was enrolled");
        };
        assert_eq!(client::reason(&status), "INHERITED_DESCRIPTORS");
        let expected = format!("writable file `{path}` ({how}");
        assert!(status.message().contains(&expected), "{status:?}");
        assert!(!host::cgroup(attacker.pid()).contains("sandboxd.slice"));
    }
}

/// It would stay outside while its other threads are moved.
async fn a_process_whose_first_thread_has_ended_is_not_enrolled() {
    ground::make(DEV);
    let before = host::sandboxes();
    let mut attacker = Attacker::start(DEV, &[&["headless-child"], &["stay"]]);
    let child = attacker.line();
    let child: u32 = child.strip_prefix("ok ").unwrap().parse().unwrap();
    let mut client = client::root().await;
    for pid in [attacker.pid(), child] {
        let Err(status) = enroll(&mut client, request(DEV, pid)).await else {
            panic!("it was enrolled");
        };
        // Of its own it says nothing, as if it were gone.
        let gone = status.code() == Code::NotFound && pid == child;
        let expected = format!("process {child} is a process whose first thread has ended");
        assert!(
            gone || status.message().contains(&expected),
            "{pid}, {child}: {status:?}"
        );
        assert!(!host::cgroup(pid).contains("sandboxd.slice"));
    }
    assert_eq!(host::sandboxes(), before);
    let child = nix::unistd::Pid::from_raw(child.cast_signed());
    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
}

async fn what_is_open_can_be_accepted_by_name() {
    ground::make(DEV);
    let mut attacker = Attacker::start(DEV, &OPEN);
    for _ in 0..3 {
        assert_eq!(attacker.line(), "ok");
    }
    let accepting = EnrollRequest {
        allow_inherited: true,
        ..request(DEV, attacker.pid())
    };
    let mut client = client::root().await;
    let (stream, _) = enroll(&mut client, accepting).await.unwrap();
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    assert_eq!(attacker.line(), "ENOENT");
    drop(stream);
}

async fn anothers_process_is_not_enrolled() {
    ground::make(DEV);
    let attacker = Attacker::start(ROOT, &[&["stay"]]);
    let mut dev = client::of(DEV).await;
    let Err(status) = enroll(&mut dev, request(DEV, attacker.pid())).await else {
        panic!("it was enrolled");
    };
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(client::reason(&status), "PROCESS_NOT_OWNED");
}

async fn a_process_that_is_not_the_one_meant_is_not_enrolled() {
    ground::make(DEV);
    let attacker = Attacker::start(DEV, &[&["stay"]]);
    let mut client = client::root().await;
    let other = EnrollRequest {
        start_time: 1,
        ..request(DEV, attacker.pid())
    };
    let Err(status) = enroll(&mut client, other).await else {
        panic!("it was enrolled");
    };
    assert_eq!(client::reason(&status), "PROCESS_CHANGED", "{status:?}");
    let Err(status) = enroll(&mut client, request(DEV, 4_000_000)).await else {
        panic!("nobody was enrolled");
    };
    assert_eq!(client::reason(&status), "PROCESS_NOT_FOUND", "{status:?}");
}

async fn a_raw_socket_of_an_enrolled_root_sends_nothing() {
    const ATTACK: &str = "raw-marker-of-the-attack";
    const CONTROL: &str = "raw-marker-of-the-control";
    ground::make(ROOT);
    let wire = Wire::tap();
    let steps: [&[&str]; 3] = [&["wait"], &["raw", "203.0.113.1:0", ATTACK], &["wait"]];
    let mut attacker = Attacker::start(ROOT, &steps);
    let mut client = client::root().await;
    let (mut stream, _) = enroll(&mut client, request(ROOT, attacker.pid()))
        .await
        .unwrap();
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    assert_eq!(attacker.line(), "EACCES");
    let message = stream.message().await.unwrap().unwrap().response;
    let Some(Response::Denial(denial)) = message else {
        panic!("{message:?} came");
    };
    assert_eq!(denial.operation, "socket", "{denial:#?}");
    assert_eq!(denial.rule, "socket kind", "{denial:#?}");
    drop(stream);
    let control = ["raw", "203.0.113.1:0", CONTROL];
    assert_eq!(host::attack(ROOT, "/", &control), "ok");
    assert!(!wire.carried_before(CONTROL, ATTACK));
}

/// The programs on addresses do not see them: they are of the cgroup outside.
async fn sockets_that_were_made_before_are_not_used() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let steps: [&[&str]; 10] = [
            &["make-socket", "stream", "tcp"],
            &["make-socket", "datagram", "udp"],
            &["wait"],
            &["connect-socket", "stream", "203.0.113.1:7301"],
            &["connect-socket", "datagram", "203.0.113.1:53"],
            &["bind-socket", "stream", "127.0.0.1:7302"],
            &["bind-socket", "datagram", "127.0.0.1:7303"],
            &["listen-socket", "stream"],
            &["disconnect-socket", "datagram"],
            &["wait"],
        ];
        let mut attacker = Attacker::start(uid, &steps);
        assert_eq!(
            (attacker.line(), attacker.line()),
            ("ok".into(), "ok".into())
        );
        let mut client = client::root().await;
        let accepting = EnrollRequest {
            allow_inherited: true,
            ..request(uid, attacker.pid())
        };
        let (mut stream, _) = enroll(&mut client, accepting).await.unwrap();
        attacker.go_on();
        assert_eq!(attacker.line(), "ok");
        for _ in 0..5 {
            assert_eq!(attacker.line(), "EPERM");
        }
        assert_eq!(attacker.line(), "ok");
        let mut found = Vec::new();
        while found.len() < 5 {
            let response = stream.message().await.unwrap().unwrap().response;
            if let Some(Response::Denial(denial)) = response {
                assert_eq!(denial.rule, "network none", "{denial:?}");
                found.push((denial.operation, denial.object_display));
            }
        }
        let expected = [
            ("connect", "203.0.113.1:7301"),
            ("connect", "203.0.113.1:53"),
            ("bind", "127.0.0.1:7302"),
            ("bind", "127.0.0.1:7303"),
            ("listen", "0.0.0.0"),
        ];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}

async fn a_ring_that_was_made_before_is_refused_and_accepted_is_no_way_out() {
    const MADE: [&[&str]; 2] = [&["ring-make"], &["ring-open", "plain/file"]];
    const ATTACKS: [&[&str]; 4] = [
        &["ring-open", "secret/key"],
        &["ring-as"],
        &["ring-command"],
        &["ring-open", "plain/file"],
    ];
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let steps = [MADE.as_slice(), &[&["wait"]], &ATTACKS].concat();
        let mut attacker = Attacker::start(uid, &steps);
        // The thread of the kernel's that opened it may still be there.
        for _ in MADE {
            assert_eq!(attacker.line(), "ok");
        }
        let mut client = client::root().await;
        let asking = request(uid, attacker.pid());
        let Err(status) = enroll(&mut client, asking.clone()).await else {
            panic!("it was enrolled");
        };
        let reason = client::reason(&status);
        assert_eq!(reason, "INHERITED_DESCRIPTORS", "{status:?}");
        let ring = "kernel object `anon_inode:[io_uring]`";
        assert!(status.message().contains(ring), "{status:?}");
        assert!(!host::cgroup(attacker.pid()).contains("sandboxd.slice"));
        let accepting = EnrollRequest {
            allow_inherited: true,
            ..asking
        };
        let (mut stream, _) = enroll(&mut client, accepting).await.unwrap();
        attacker.go_on();
        for expected in ["ok", "ENOENT", "EPERM", "EPERM", "ok"] {
            assert_eq!(attacker.line(), expected);
        }
        let mut found: Vec<_> = until_ended(&mut stream)
            .await
            .into_iter()
            .flat_map(|denial| {
                let kind = (denial.operation, denial.object_display, denial.rule);
                vec![kind; denial.count.try_into().unwrap()]
            })
            .collect();
        found.sort();
        let secret = ("open", "/srv/ground/secret/key", "/srv/ground/secret");
        let facility = ("use", "io_uring", "kernel interface");
        let expected = [secret, facility, facility];
        assert_eq!(
            found,
            expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()))
        );
        // Outside it does all of it.
        let mut outside = Attacker::start(uid, &[MADE.as_slice(), &ATTACKS].concat());
        for _ in 0..MADE.len() + ATTACKS.len() {
            assert_eq!(outside.line(), "ok");
        }
    }
}
