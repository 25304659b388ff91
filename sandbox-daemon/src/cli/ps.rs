//! `sandbox ps`: sandboxes and what runs in them.

use serde::Serialize;

use super::{
    args::{Output, PsArgs},
    block_on,
    error::{CliError, Exit},
    host::Host,
    json::time,
    print,
};
use crate::{
    escape::printable,
    proto::{Exec, ListSandboxesRequest, Sandbox},
};

/// Prints the caller's sandboxes; root's list has everybody's.
pub fn ps(args: &PsArgs, host: &Host) -> Result<Exit, CliError> {
    let sandboxes = block_on(async {
        let mut client = host.connect().await?;
        let response = client.list_sandboxes(ListSandboxesRequest {}).await?;
        Ok(response.into_inner().sandboxes)
    })?;
    print(&match args.output {
        Output::Text => table(&rows(&sandboxes)),
        Output::Json => json(&sandboxes),
    })?;
    Ok(Exit::Success)
}

const HEAD: [&str; 7] = [
    "SANDBOX",
    "UID",
    "POLICY",
    "WORKSPACE",
    "EXEC",
    "PID",
    "COMMAND",
];

/// One row an exec; a sandbox where nothing runs has one too.
fn rows(sandboxes: &[Sandbox]) -> Vec<[String; 7]> {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for sandbox in sandboxes {
        let spec = sandbox.spec.clone().unwrap_or_default();
        let row = |exec: Option<&Exec>| {
            let dash = || "-".to_owned();
            [
                printable(&sandbox.id),
                sandbox.uid.to_string(),
                printable(&sandbox.policy_name),
                printable(&spec.workspace),
                exec.map_or_else(dash, |exec| printable(&exec.id)),
                exec.map_or_else(dash, |exec| exec.pid.to_string()),
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
    policy_name: &'a str,
    policy_digest: &'a str,
    observe: bool,
    create_time: String,
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
}

impl<'a> From<&'a Exec> for ExecJson<'a> {
    fn from(exec: &'a Exec) -> Self {
        Self {
            id: &exec.id,
            argv: &exec.argv,
            pid: exec.pid,
            start_time: time(exec.start_time.as_ref()),
            enrolled: exec.enrolled,
        }
    }
}

impl<'a> From<&'a Sandbox> for SandboxJson<'a> {
    fn from(sandbox: &'a Sandbox) -> Self {
        let spec = sandbox.spec.as_ref();
        Self {
            id: &sandbox.id,
            name: spec.map_or("", |spec| &spec.name),
            uid: sandbox.uid,
            workspace: spec.map_or("", |spec| &spec.workspace),
            policy_name: &sandbox.policy_name,
            policy_digest: &sandbox.policy_digest,
            observe: sandbox.observe,
            create_time: time(sandbox.create_time.as_ref()),
            denied: sandbox.denied,
            lost: sandbox.lost,
            execs: sandbox.execs.iter().map(ExecJson::from).collect(),
        }
    }
}

fn json(sandboxes: &[Sandbox]) -> String {
    let list: Vec<_> = sandboxes.iter().map(SandboxJson::from).collect();
    super::json::pretty(&list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::SandboxSpec;

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

    #[test]
    fn a_row_is_an_exec_and_an_empty_sandbox_has_one_too() {
        let exec = Exec {
            id: "E1".into(),
            argv: vec!["npm".into(), "test\n".into()],
            pid: 7,
            ..Exec::default()
        };
        let list = [sandbox("S1", vec![exec]), sandbox("S2", Vec::new())];
        assert_eq!(
            table(&rows(&list)),
            "SANDBOX  UID   POLICY   WORKSPACE      EXEC  PID  COMMAND\n\
             S1       1000  default  /home/dev/app  E1    7    npm test\\n\n\
             S2       1000  default  /home/dev/app  -     -    -\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&list)).unwrap();
        assert_eq!(json[0]["execs"][0]["argv"][0], "npm");
        assert_eq!(json[1]["workspace"], "/home/dev/app");
    }
}
