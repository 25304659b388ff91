//! `cargo xtask bench launch`, inside a guest whose clock counts instructions,
//! with sandboxd installed and not running. Prints a measurement a line.

mod daemon;
mod shell;

use std::{fs, os::unix::fs::chown};

use anyhow::Result;
use sandbox_daemon::{
    cli::Host,
    proto::{
        CreateSandboxRequest, DeleteSandboxRequest, PolicySource, SandboxSpec,
        policy_source::Source,
    },
};
use serde_json::json;

use daemon::Daemon;

/// The guest's ordinary user, who starts all of it.
const USER: u32 = 1000;
const WORKSPACE: &str = "/home/dev/project";
/// Sandboxes that are there at the same time.
const IDLE: usize = 200;

/// What is started, and what it is compared as.
const COMMANDS: [(&str, &str); 6] = [
    ("`true`", "/bin/true"),
    ("`unshare -rm true`", "unshare -rm true"),
    (
        "`bwrap --ro-bind / / --unshare-pid true`",
        "bwrap --ro-bind / / --unshare-pid true",
    ),
    (
        "the same with `--unshare-all --dev /dev --proc /proc --tmpfs /tmp`",
        "bwrap --ro-bind / / --unshare-all --dev /dev --proc /proc --tmpfs /tmp true",
    ),
    ("`sandbox run -- true`", DIRECT),
    ("`sandbox run --ephemeral -- true`", EPHEMERAL),
];
const DIRECT: &str = "sandbox run -- true";
const EPHEMERAL: &str = "sandbox run --ephemeral -- true";

/// The steps of a run, each from the one before; see `sandbox_daemon::steps`.
const STEPS: [(&str, &str); 9] = [
    ("connected", "the client starts and connects"),
    ("asked", "its call arrives"),
    ("placed", "who it is; a cgroup"),
    ("resolved", "the policy"),
    ("viewed", "a mount namespace"),
    ("ruled", "the rules"),
    ("started", "the command starts, to its exec"),
    ("ended", "`true`"),
    ("gone", "all of it is taken down"),
];
const LAST: &str = "the client ends";

fn main() -> Result<()> {
    fs::create_dir_all(WORKSPACE)?;
    chown(WORKSPACE, Some(USER), Some(USER))?;
    let daemon = Daemon::start("info")?;
    for (name, command) in COMMANDS {
        let median = shell::median(shell::runs(command)?.iter().map(shell::Run::takes));
        report("start to end", name, median, "thousands");
    }
    idle(&daemon)?;
    daemon.end()?;

    let daemon = Daemon::start(sandbox_daemon::steps::FILTER)?;
    for (name, command) in [("direct", DIRECT), ("ephemeral", EPHEMERAL)] {
        steps(name, &shell::runs(command)?)?;
    }
    daemon.end()
}

/// Where the instructions of runs go.
fn steps(name: &str, runs: &[shell::Run]) -> Result<()> {
    let log = daemon::steps()?;
    let mut parts = vec![Vec::new(); STEPS.len() + 1];
    for run in runs {
        let mut before = run.start;
        let within = |step: &str| {
            let found = log
                .iter()
                .find(|(at, found)| found == step && (run.start..=run.end).contains(at));
            found.map(|(at, _)| *at)
        };
        for (part, (step, _)) in parts.iter_mut().zip(STEPS) {
            if let Some(at) = within(step) {
                part.push(at - before);
                before = at;
            }
        }
        parts[STEPS.len()].push(run.end - before);
    }
    let names = STEPS.iter().map(|(_, name)| *name).chain([LAST]);
    for (part, step) in parts.into_iter().zip(names) {
        report(step, name, shell::median(part), "thousands");
    }
    Ok(())
}

/// What the daemon has while sandboxes are idle, and after they are gone.
fn idle(daemon: &Daemon) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // What is allocated once is in nobody's figures.
    runtime.block_on(make_and_delete(|| Ok(())))?;
    let say = |case: &str| -> Result<()> {
        daemon::wait_until_quiet();
        let (resident, descriptors) = (daemon.resident()?, daemon.descriptors()?);
        report("resident memory of sandboxd", case, resident, "MiB");
        report("its descriptors", case, descriptors, "");
        Ok(())
    };
    say("no sandbox")?;
    runtime.block_on(make_and_delete(|| say("200 idle sandboxes")))?;
    say("after them")
}

async fn make_and_delete(meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut client = Host::default().connect().await?;
    let mut made = Vec::new();
    for _ in 0..IDLE {
        let request = CreateSandboxRequest {
            spec: Some(SandboxSpec {
                policy: Some(PolicySource {
                    source: Some(Source::Name("default".into())),
                    ..PolicySource::default()
                }),
                workspace: WORKSPACE.into(),
                uid: Some(USER),
                ..SandboxSpec::default()
            }),
            ..CreateSandboxRequest::default()
        };
        made.push(client.create_sandbox(request).await?.into_inner().id);
    }
    meanwhile()?;
    for id in made {
        client.delete_sandbox(DeleteSandboxRequest { id }).await?;
    }
    Ok(())
}

fn report(row: &str, case: &str, value: f64, unit: &str) {
    println!(
        "{}",
        json!({ "row": row, "case": case, "value": value, "unit": unit })
    );
}
