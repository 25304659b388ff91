//! Attacks on the scope wall: other processes, privileges, the kernel.

mod keeper;
mod kernel;
mod mounts;
mod objects;
mod privileges;
mod processes;
mod signals;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdout},
};

use libtest_mimic::Trial;
use nix::errno::Errno;
use sandbox_daemon::proto::{
    EnrollRequest, Exited, Right, enroll_request, enroll_response::Response, exited,
};

use crate::{
    client::{self, Ran},
    expect::{Case, attack, compare},
    ground::{self, GROUND},
    host::{self, DEV, ROOT},
};

pub(crate) fn trials() -> Vec<Trial> {
    [
        processes::trials(),
        signals::trials(),
        objects::trials(),
        privileges::trials(),
        kernel::trials(),
        keeper::trials(),
        mounts::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// How an attacker came to be inside.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Started there: without privileges, whoever it is.
    Run,
    /// Placed there, with all that it had.
    Enroll,
}

/// Everybody that attacks. Root that was started inside has no capability that
/// the walls would have to refuse.
const ATTACKERS: [(u32, Way); 3] = [(DEV, Way::Run), (DEV, Way::Enroll), (ROOT, Way::Enroll)];

/// Performs steps in a sandbox on the ground.
async fn perform(uid: u32, way: Way, policy: &str, steps: &[&[&str]]) -> Ran {
    let spec = client::spec(uid, client::policy(policy), ground::WORK);
    match way {
        Way::Run => {
            let start = sandbox_daemon::proto::Start {
                cwd: GROUND.into(),
                ..client::start(spec, &client::attacker(steps))
            };
            client::run(&mut client::root().await, start).await
        }
        Way::Enroll => {
            let sandbox = enroll_request::Sandbox::Inline(spec);
            enrolled(uid, sandbox, steps).await
        }
    }
}

/// Performs steps in a process that is placed into a sandbox before.
pub(crate) async fn enrolled(uid: u32, sandbox: enroll_request::Sandbox, steps: &[&[&str]]) -> Ran {
    prepared(uid, sandbox, &[], steps).await
}

/// The same, after other steps outside, which must succeed.
async fn prepared(
    uid: u32,
    sandbox: enroll_request::Sandbox,
    before: &[&[&str]],
    steps: &[&[&str]],
) -> Ran {
    let wait: &[&str] = &["wait"];
    let mut command = host::attacker(uid, &[before, &[wait], steps].concat());
    let mut attacker = command.current_dir(GROUND).spawn().unwrap();
    let mut output = BufReader::new(attacker.stdout.take().unwrap());
    for step in before {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ok\n", "{step:?}");
    }
    let request = EnrollRequest {
        sandbox: Some(sandbox),
        pid: attacker.id(),
        ..EnrollRequest::default()
    };
    let mut client = client::root().await;
    let mut stream = client.enroll(request).await.unwrap().into_inner();
    let mut stdin = attacker.stdin.take().unwrap();
    stdin.write_all(b"x").unwrap();
    let mut ran = Ran::default();
    let reader = std::thread::spawn(move || {
        let mut stdout = Vec::new();
        output.read_to_end(&mut stdout).map(|_| stdout)
    });
    while let Some(message) = stream.message().await.unwrap() {
        match message.response {
            Some(Response::Denial(denial)) => ran.denials.push(denial),
            Some(Response::Lost(lost)) => ran.lost.push(lost),
            Some(Response::Ended(ended)) => {
                ran.exited = Exited {
                    denied: ended.denied,
                    lost: ended.lost,
                    ..Exited::default()
                };
            }
            _ => {}
        }
    }
    let code = attacker.wait().unwrap().code().unwrap_or(255);
    ran.exited.status = Some(exited::Status::Code(code.cast_unsigned()));
    let stdout = reader.join().unwrap().unwrap();
    // The line of `wait`.
    let line = stdout.iter().position(|&byte| byte == b'\n').unwrap();
    ran.stdout = stdout[line + 1..].to_vec();
    ran
}

/// What attacks are aimed at: a process outside.
struct Victim {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Victim {
    fn of(uid: u32) -> Self {
        let mut command = host::attacker(uid, &[&["victim"]]);
        let mut child = command.process_group(0).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut address = String::new();
        stdout.read_line(&mut address).unwrap();
        Self {
            child,
            stdout,
            address: address.trim().to_owned(),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn alive(&self) -> bool {
        host::alive(self.pid())
    }

    /// As events name it.
    fn object(&self) -> String {
        object(self.pid())
    }

    /// A step, with this one's number and address filled in.
    fn aimed(&self, step: &str) -> Vec<&'static str> {
        aimed(step, self.pid(), &self.address)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.stdout.read_to_end(&mut Vec::new());
    }
}

/// As events name a process.
fn object(pid: u32) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    format!("process {pid} ({})", comm.trim_end())
}

/// A step, written as one line with places for a process and an address.
fn aimed(step: &str, pid: u32, address: &str) -> Vec<&'static str> {
    let step = step
        .replace("PID", &pid.to_string())
        .replace("ADDRESS", address);
    words(&step)
}

/// The words of a line. Cases live as long as the program.
fn words(line: &str) -> Vec<&'static str> {
    let line: &'static str = line.to_owned().leak();
    line.split(' ').collect()
}

/// A refusal by the scope wall.
fn refused(step: &[&'static str], operation: &'static str, object: &str, rule: &str) -> Case {
    attack(step).refused(Errno::EPERM, Right::Scope, operation, object, rule)
}

/// A refused part of the kernel.
fn unused(line: &str, facility: &str) -> Case {
    refused(&words(line), "use", facility, "kernel interface")
}

/// Attacks by everybody on the ground, and each outside.
async fn check(attackers: &[(u32, Way)], policy: &str, cases: &[Case]) {
    for &(uid, way) in attackers {
        ground::make(uid);
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, policy, &steps).await;
        compare(uid, cases, &ran);
        for case in cases {
            crate::expect::control(uid, case);
        }
    }
}
