//! Sandboxes that stay, and detached commands.

use prost_types::Timestamp;
use sandbox_daemon::proto::{
    self, AttachRequest, Exec, Exited, LogChunk, Output, Sandbox, Start, Stdio,
    attach_request::Request as Asked, exited, get_logs_response::Response as Logged,
    run_response::Response as Answer, start,
};
use tonic::{Code, Status, Streaming};

use super::{Answers, answer, reason};

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct There {
    pub(crate) sandboxes: Vec<Sandbox>,
    /// Every start of a command in a sandbox that is there.
    pub(crate) starts: Vec<Start>,
    count: u32,
}

impl There {
    pub(super) fn with(id: &str) -> Self {
        let sandbox = Sandbox {
            id: id.into(),
            policy_name: "default".into(),
            ..Sandbox::default()
        };
        Self {
            sandboxes: vec![sandbox],
            ..Self::default()
        }
    }

    pub(super) fn create(&mut self, spec: proto::SandboxSpec) -> Sandbox {
        self.count += 1;
        let sandbox = Sandbox {
            id: format!("{:012x}", self.count),
            policy_name: "default".into(),
            spec: Some(spec),
            ..Sandbox::default()
        };
        self.sandboxes.push(sandbox.clone());
        sandbox
    }

    pub(super) fn remove(&mut self, id: &str) -> Result<(), Status> {
        let before = self.sandboxes.len();
        self.sandboxes.retain(|sandbox| sandbox.id != id);
        if self.sandboxes.len() == before {
            return Err(reason(Code::NotFound, "SANDBOX_NOT_FOUND"));
        }
        Ok(())
    }

    /// An exec in a sandbox that is there; its ids.
    pub(super) fn begin(&mut self, start: &Start) -> Result<(String, String), Status> {
        let Some(start::Sandbox::SandboxId(id)) = &start.sandbox else {
            return Ok(("SBX".into(), "EXE".into()));
        };
        self.starts.push(start.clone());
        self.count += 1;
        let exec = Exec {
            id: format!("e{:011x}", self.count),
            argv: start
                .argv
                .iter()
                .map(|word| String::from_utf8(word.to_vec()).unwrap())
                .collect(),
            detached: start.detach,
            terminal: start.detach && start.stdio() == Stdio::Pty,
            ..Exec::default()
        };
        let mut found = self.sandboxes.iter_mut();
        let sandbox = found
            .find(|sandbox| sandbox.id == *id)
            .ok_or_else(|| reason(Code::NotFound, "SANDBOX_NOT_FOUND"))?;
        sandbox.execs.push(exec.clone());
        Ok((id.clone(), exec.id))
    }
}

pub(super) fn exited(code: u32) -> Exited {
    Exited {
        status: Some(exited::Status::Code(code)),
        reason: exited::Reason::Exited.into(),
        ..Exited::default()
    }
}

/// What every detached command has written.
pub(super) fn logs(follow: bool) -> Vec<Result<proto::GetLogsResponse, Status>> {
    let chunk = |output: Output, seconds, text: &'static str| {
        Logged::Chunk(LogChunk {
            output: output.into(),
            data: text.into(),
            time: Some(Timestamp { seconds, nanos: 0 }),
        })
    };
    let mut all = vec![
        Logged::Dropped(7),
        chunk(Output::Stdout, 0, "one\ntwo\nth"),
        chunk(Output::Stderr, 1, "oops\n"),
        chunk(Output::Stdout, 2, "ree\n"),
    ];
    if follow {
        all.push(chunk(Output::Stdout, 3, "four\n"));
        all.push(Logged::Exited(exited(0)));
    }
    let response = |it| proto::GetLogsResponse { response: Some(it) };
    all.into_iter().map(|it| Ok(response(it))).collect()
}

/// Plays a command that gives back what it is sent.
pub(super) async fn attached(mut asked: Streaming<AttachRequest>, to: Answers) {
    let started = proto::Started::default();
    answer(&to, Answer::Started(started)).await;
    let told = async |text: String| answer(&to, Answer::Stdout(text.into())).await;
    while let Ok(Some(AttachRequest {
        request: Some(request),
    })) = asked.message().await
    {
        match request {
            Asked::Start(start) => {
                let size = start.window_size.unwrap_or_default();
                let history = if start.history { " history" } else { "" };
                told(format!(
                    "attached {}x{}{history}\n",
                    size.rows, size.columns
                ))
                .await;
            }
            Asked::Stdin(bytes) => answer(&to, Answer::Stdout(bytes)).await,
            Asked::WindowSize(size) => told(format!("size {}x{}\n", size.rows, size.columns)).await,
            Asked::Signal(2) => told("interrupt\n".into()).await,
            Asked::Signal(signal) => panic!("signal {signal} is not for it"),
            Asked::CloseStdin(_) => break,
        }
    }
    answer(&to, Answer::Exited(exited(5))).await;
}
