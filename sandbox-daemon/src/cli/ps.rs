//! `sandbox ps`: sandboxes and what runs in them.

use std::time::SystemTime;

use serde::Serialize;

use super::{
    args::{Output, PsArgs},
    block_on,
    error::{CliError, Exit},
    host::Host,
    json::{Event, time},
    print,
};
use crate::{
    escape::printable,
    proto::{Exec, ListSandboxesRequest, Sandbox, WorkspaceMode, exited},
};

/// Prints the caller's sandboxes; root's list has everybody's.
pub fn ps(args: &PsArgs, host: &Host) -> Result<Exit, CliError> {
    let sandboxes = block_on(async {
        let mut client = host.connect().await?;
        let response = client.list_sandboxes(ListSandboxesRequest {}).await?;
        Ok(response.into_inner().sandboxes)
    })?;
    print(&match args.output {
        Output::Text => table(&rows(&sandboxes, SystemTime::now())),
        Output::Json => json(&sandboxes),
    })?;
    Ok(Exit::Success)
}

const HEAD: [&str; 11] = [
    "SANDBOX",
    "NAME",
    "UID",
    "POLICY",
    "MODE",
    "WORKSPACE",
    "EXPIRES",
    "EXEC",
    "PID",
    "STATUS",
    "COMMAND",
];

/// One row an exec; a sandbox where nothing runs has one too.
fn rows(sandboxes: &[Sandbox], now: SystemTime) -> Vec<[String; 11]> {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for sandbox in sandboxes {
        let spec = sandbox.spec.clone().unwrap_or_default();
        let row = |exec: Option<&Exec>| {
            let dash = || "-".to_owned();
            let running = exec.filter(|exec| exec.exited.is_none());
            [
                printable(&sandbox.id),
                or_dash(&spec.name),
                sandbox.uid.to_string(),
                printable(&sandbox.policy_name),
                mode(sandbox).replace('_', " "),
                or_dash(&spec.workspace),
                expires(sandbox, now).unwrap_or_else(dash),
                exec.map_or_else(dash, |exec| printable(&exec.id)),
                running.map_or_else(dash, |exec| exec.pid.to_string()),
                exec.map_or_else(|| "idle".to_owned(), status),
                exec.map_or_else(dash, |exec| printable(&exec.argv.join(" "))),
            ]
        };
        if sandbox.execs.is_empty() {
            rows.push(row(None));
        }
        rows.extend(sandbox.execs.iter().map(|exec| row(Some(exec))));
    }
    rows
}

fn or_dash(text: &str) -> String {
    match text {
        "" => "-".to_owned(),
        text => printable(text),
    }
}

fn mode(sandbox: &Sandbox) -> &'static str {
    match sandbox.workspace_mode() {
        WorkspaceMode::Ephemeral => "ephemeral",
        WorkspaceMode::Direct | WorkspaceMode::Unspecified => "direct",
    }
}

/// In how long a sandbox is removed if nothing happens until then.
fn expires(sandbox: &Sandbox, now: SystemTime) -> Option<String> {
    let at = SystemTime::try_from(sandbox.expire_time?).ok()?;
    let left = at.duration_since(now).unwrap_or_default().as_secs();
    Some(match (left / 3600, left / 60 % 60, left % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, _) => format!("{minutes}m"),
        (hours, 0, _) => format!("{hours}h"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    })
}

/// What an exec does, or how it ended.
fn status(exec: &Exec) -> String {
    let Some(exited) = &exec.exited else {
        return match (exec.detached, exec.enrolled) {
            (true, _) => "detached",
            (_, true) => "enrolled",
            _ => "running",
        }
        .to_owned();
    };
    let status = match exited.status {
        Some(exited::Status::Code(code)) => format!("exited {code}"),
        Some(exited::Status::Signal(signal)) => format!("signal {signal}"),
        None => "ended".to_owned(),
    };
    match exited.reason() {
        exited::Reason::Unspecified | exited::Reason::Exited => status,
        reason => format!(
            "{status} ({})",
            super::json::reason(reason).replace('_', " ")
        ),
    }
}

/// Columns as wide as their widest entry.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[derive(Serialize)]
struct SandboxJson<'a> {
    id: &'a str,
    name: &'a str,
    uid: u32,
    workspace: &'a str,
    workspace_mode: &'static str,
    policy_name: &'a str,
    policy_digest: &'a str,
    observe: bool,
    create_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_time: Option<String>,
    denied: u64,
    lost: u64,
    execs: Vec<ExecJson<'a>>,
}

#[derive(Serialize)]
struct ExecJson<'a> {
    id: &'a str,
    argv: &'a [String],
    pid: u32,
    start_time: String,
    enrolled: bool,
    detached: bool,
    terminal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exited: Option<Event<'a>>,
}

impl<'a> From<&'a Exec> for ExecJson<'a> {
    fn from(exec: &'a Exec) -> Self {
        Self {
            id: &exec.id,
            argv: &exec.argv,
            pid: exec.pid,
            start_time: time(exec.start_time.as_ref()),
            enrolled: exec.enrolled,
            detached: exec.detached,
            terminal: exec.terminal,
            exited: exec.exited.as_ref().map(Event::from),
        }
    }
}

impl<'a> From<&'a Sandbox> for SandboxJson<'a> {
    fn from(sandbox: &'a Sandbox) -> Self {
        let spec = sandbox.spec.as_ref();
        let expire_time = sandbox.expire_time.as_ref();
        Self {
            id: &sandbox.id,
            name: spec.map_or("", |spec| &spec.name),
            uid: sandbox.uid,
            workspace: spec.map_or("", |spec| &spec.workspace),
            workspace_mode: mode(sandbox),
            policy_name: &sandbox.policy_name,
            policy_digest: &sandbox.policy_digest,
            observe: sandbox.observe,
            create_time: time(sandbox.create_time.as_ref()),
            expire_time: expire_time.map(|it| time(Some(it))),
            denied: sandbox.denied,
            lost: sandbox.lost,
            execs: sandbox.execs.iter().map(ExecJson::from).collect(),
        }
    }
}

/// A sandbox as it is listed for programs.
pub(super) fn one(sandbox: &Sandbox) -> String {
    super::json::pretty(&SandboxJson::from(sandbox))
}

fn json(sandboxes: &[Sandbox]) -> String {
    let list: Vec<_> = sandboxes.iter().map(SandboxJson::from).collect();
    super::json::pretty(&list)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::proto::{Exited, SandboxSpec};

    fn sandbox(id: &str, execs: Vec<Exec>) -> Sandbox {
        Sandbox {
            id: id.into(),
            uid: 1000,
            policy_name: "default".into(),
            spec: Some(SandboxSpec {
                workspace: "/home/dev/app".into(),
                ..SandboxSpec::default()
            }),
            execs,
            ..Sandbox::default()
        }
    }

    fn exec(id: &str) -> Exec {
        Exec {
            id: id.into(),
            argv: vec!["npm".into(), "test\n".into()],
            pid: 7,
            ..Exec::default()
        }
    }

    #[test]
    fn a_row_is_an_exec_and_an_empty_sandbox_has_one_too() {
        let mut timed_out = exec("E2");
        timed_out.detached = true;
        timed_out.exited = Some(Exited {
            status: Some(exited::Status::Signal(15)),
            reason: exited::Reason::SandboxTimeout.into(),
            ..Exited::default()
        });
        let mut empty = sandbox("S2", Vec::new());
        empty.spec.as_mut().unwrap().name = "web".into();
        empty.set_workspace_mode(WorkspaceMode::Ephemeral);
        let now = SystemTime::UNIX_EPOCH;
        empty.expire_time = Some((now + Duration::from_mins(182)).into());
        let list = [sandbox("S1", vec![exec("E1"), timed_out]), empty];
        assert_eq!(
            table(&rows(&list, now)),
            "SANDBOX  NAME  UID   POLICY   MODE       WORKSPACE      EXPIRES  EXEC  PID  STATUS                       COMMAND\n\
             S1       -     1000  default  direct     /home/dev/app  -        E1    7    running                      npm test\\n\n\
             S1       -     1000  default  direct     /home/dev/app  -        E2    -    signal 15 (sandbox timeout)  npm test\\n\n\
             S2       web   1000  default  ephemeral  /home/dev/app  3h02m    -     -    idle                         -\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&list)).unwrap();
        assert_eq!(json[0]["execs"][0]["argv"][0], "npm");
        assert_eq!(json[0]["execs"][0].get("exited"), None);
        assert_eq!(json[0]["execs"][1]["exited"]["reason"], "sandbox_timeout");
        assert_eq!(json[1]["workspace"], "/home/dev/app");
        assert_eq!(json[1]["expire_time"], "1970-01-01T03:02:00Z");
    }

    #[test]
    fn what_an_exec_does_is_one_word_and_how_it_ended_a_few() {
        let mut exec = exec("E");
        assert_eq!(status(&exec), "running");
        exec.enrolled = true;
        assert_eq!(status(&exec), "enrolled");
        exec.detached = true;
        assert_eq!(status(&exec), "detached");
        exec.exited = Some(Exited {
            status: Some(exited::Status::Code(3)),
            reason: exited::Reason::Exited.into(),
            ..Exited::default()
        });
        assert_eq!(status(&exec), "exited 3");
    }
}
