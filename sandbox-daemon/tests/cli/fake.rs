//! A daemon that only answers: what `run` does depends on the command's name.

mod changes;
mod jobs;

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use prost::Message as _;
use prost_types::Any;
use sandbox_daemon::proto::{
    self, CredentialUse, Denial, Exited, Lost, Right, RunRequest, RunResponse, Start, Started,
    Stdio, Verdict,
    denial::Object,
    exited,
    run_request::Request as Asked,
    run_response::Response as Answer,
    sandboxes_server::{Sandboxes, SandboxesServer},
};
use tokio::{net::UnixListener, runtime::Runtime, sync::mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _, pb};

use self::jobs::There;
use super::TestContext;

/// Listens until it is dropped.
pub(crate) struct Fake {
    pub(crate) context: TestContext,
    /// Gets a word for each stream that its client closed.
    pub(crate) closed: std::sync::mpsc::Receiver<&'static str>,
    /// What was set: name, value, whose.
    pub(crate) secrets: Secrets,
    /// Sandboxes and what runs in them.
    pub(crate) there: Arc<Mutex<There>>,
    _runtime: Runtime,
}

impl Fake {
    pub(crate) fn start() -> Self {
        let mut context = TestContext::offline();
        let socket = context.path().join("sandboxd.sock");
        context.host = format!("unix://{}", socket.display());
        let runtime = Runtime::new().unwrap();
        let (told, closed) = std::sync::mpsc::channel();
        let secrets = Secrets::default();
        let there = Arc::new(Mutex::new(There::with("SBX")));
        let service = Service {
            told,
            there: there.clone(),
            secrets: secrets.clone(),
        };
        let listener = runtime.block_on(async { UnixListener::bind(&socket).unwrap() });
        let server = tonic::transport::Server::builder()
            .add_service(SandboxesServer::new(service))
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(server);
        Self {
            context,
            closed,
            secrets,
            there,
            _runtime: runtime,
        }
    }
}

struct Service {
    there: Arc<Mutex<There>>,
    told: std::sync::mpsc::Sender<&'static str>,
    secrets: Secrets,
}

pub(crate) type Secrets = Arc<Mutex<Vec<(String, Vec<u8>, Option<u32>)>>>;

type Answers = mpsc::Sender<Result<RunResponse, Status>>;
type Scene = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn answer(to: &Answers, answer: Answer) {
    let response = RunResponse {
        response: Some(answer),
    };
    let _ = to.send(Ok(response)).await;
}

async fn exit(to: &Answers, status: exited::Status) {
    let exited = Exited {
        status: Some(status),
        reason: exited::Reason::Exited.into(),
        denied: 3,
        lost: 0,
        ..Exited::default()
    };
    answer(to, Answer::Exited(exited)).await;
}

fn denial(path: &'static [u8], display: &str) -> Denial {
    Denial {
        sandbox_id: "SBX".into(),
        exec_id: "EXE".into(),
        sequence: 1,
        pid: 4211,
        exe: "/usr/bin/python3".into(),
        exe_display: "/usr/bin/python3".into(),
        right: Right::Read.into(),
        operation: "open".into(),
        object: Some(Object::Path(path.into())),
        object_display: display.into(),
        rule: "credentials".into(),
        errno: 2,
        verdict: Verdict::Denied.into(),
        count: 1,
        ..Denial::default()
    }
}

fn credential_use() -> CredentialUse {
    CredentialUse {
        sandbox_id: "SBX".into(),
        exec_id: "EXE".into(),
        sequence: 2,
        pid: 4212,
        exe: "/usr/bin/gh".into(),
        exe_display: "/usr/bin/gh".into(),
        credential: "github".into(),
        host: "api.github.com:443".into(),
        method: "POST".into(),
        path: "/repos/o/r/pulls".into(),
        request_display: "POST api.github.com:443 /repos/o/r/pulls".into(),
        count: 1,
        ..CredentialUse::default()
    }
}

/// Plays the command called `name`.
async fn play(
    name: String,
    start: Start,
    mut asked: Streaming<RunRequest>,
    to: Answers,
    told: std::sync::mpsc::Sender<&'static str>,
) {
    let number = start
        .argv
        .get(1)
        .and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
        .unwrap_or(0);
    match name.as_str() {
        "exit" => {
            answer(&to, Answer::Stdout("out\n".into())).await;
            answer(&to, Answer::Stderr("err\n".into())).await;
            let key = denial(b"/home/dev/.ssh/id_ed25519", "/home/dev/.ssh/id_ed25519");
            answer(&to, Answer::Denial(key.clone())).await;
            answer(&to, Answer::Denial(Denial { count: 2, ..key })).await;
            answer(&to, Answer::Denial(denial(b"/a\xff", "/a\\xff"))).await;
            answer(&to, Answer::Used(credential_use())).await;
            exit(&to, exited::Status::Code(number)).await;
        }
        "many" => {
            for index in 0..u64::from(number) {
                let display = format!("/file{index}");
                answer(&to, Answer::Denial(denial(b"/file", &display))).await;
            }
            let lost = Lost {
                count: 7,
                ..Lost::default()
            };
            answer(&to, Answer::Lost(lost)).await;
            exit(&to, exited::Status::Code(0)).await;
        }
        "signal" => exit(&to, exited::Status::Signal(number)).await,
        // Ends for this reason, with limits and what it took.
        "reached" => {
            let exited = proto::Exited {
                status: Some(exited::Status::Code(0)),
                reason: i32::try_from(number).unwrap(),
                limits: start.sandbox.and_then(|it| match it {
                    proto::start::Sandbox::Inline(spec) => spec.limits,
                    proto::start::Sandbox::SandboxId(_) => None,
                }),
                usage: Some(proto::Usage {
                    peak_memory: Some(64 << 20),
                    refused_forks: 12,
                    ..proto::Usage::default()
                }),
                ..proto::Exited::default()
            };
            answer(&to, Answer::Exited(exited)).await;
        }
        // Says what it was asked for.
        "show" | "counted" => {
            let kind = Stdio::try_from(start.stdio).unwrap();
            let size = start.window_size.unwrap_or_default();
            let text = format!(
                "{kind:?} apart={} {}x{}\n",
                start.stderr_apart, size.rows, size.columns
            );
            answer(&to, Answer::Stdout(text.into())).await;
            exit(&to, exited::Status::Code(0)).await;
        }
        // Gives back what it is sent, until the end of stdin.
        "cat" => {
            while let Ok(Some(RunRequest {
                request: Some(request),
            })) = asked.message().await
            {
                match request {
                    Asked::Stdin(bytes) => answer(&to, Answer::Stdout(bytes)).await,
                    Asked::CloseStdin(_) => break,
                    Asked::Signal(signal) => {
                        answer(&to, Answer::Stdout(format!("signal {signal}\n").into())).await;
                    }
                    Asked::WindowSize(size) => {
                        let text = format!("size {}x{}\n", size.rows, size.columns);
                        answer(&to, Answer::Stdout(text.into())).await;
                    }
                    Asked::CloseOutput(_) | Asked::Start(_) => {}
                }
            }
            exit(&to, exited::Status::Code(0)).await;
        }
        // Writes until it is told that nobody reads.
        "yes" => loop {
            tokio::select! {
                () = answer(&to, Answer::Stdout("y\n".repeat(512).into())) => {}
                request = asked.message() => {
                    let request = request.ok().flatten().and_then(|it| it.request);
                    if matches!(request, Some(Asked::CloseOutput(_))) {
                        exit(&to, exited::Status::Signal(13)).await;
                        return;
                    }
                }
            }
        },
        // Ignores everything but the end of the stream.
        "hang" => {
            answer(&to, Answer::Stdout("ready\n".into())).await;
            while let Ok(Some(_)) = asked.message().await {}
            let _ = told.send("hang");
        }
        "die" => drop(to),
        other => panic!("no scene `{other}`"),
    }
}

#[tonic::async_trait]
impl Sandboxes for Service {
    type RunStream = ReceiverStream<Result<RunResponse, Status>>;

    async fn run(
        &self,
        request: Request<Streaming<RunRequest>>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let mut asked = request.into_inner();
        let first = asked.message().await?.and_then(|it| it.request);
        let Some(Asked::Start(start)) = first else {
            panic!("the first request is {first:?}");
        };
        let name = String::from_utf8(start.argv[0].to_vec()).unwrap();
        match name.as_str() {
            "missing" => return Err(reason(Code::NotFound, "COMMAND_NOT_FOUND")),
            "text-file" => return Err(reason(Code::FailedPrecondition, "NOT_EXECUTABLE")),
            "wrong-policy" => return Err(policy_invalid()),
            // As under a policy that limits the output.
            "counted" if start.stdio == i32::from(Stdio::Inherit) => {
                return Err(reason(Code::FailedPrecondition, "OUTPUT_NOT_COUNTED"));
            }
            _ => {}
        }
        let (to, answers) = mpsc::channel(4);
        let told = self.told.clone();
        let (sandbox_id, exec_id) = self.there.lock().unwrap().begin(&start)?;
        let scene: Scene = Box::pin(async move {
            let started = Started {
                sandbox_id,
                exec_id,
                pid: 4200,
                policy_name: "default".into(),
                policy_digest: "0123456789abcdef".into(),
                withheld_env: vec!["GITHUB_TOKEN".into()],
                observe: false,
            };
            answer(&to, Answer::Started(started)).await;
            if start.detach {
                return;
            }
            play(name, start, asked, to, told).await;
        });
        tokio::spawn(scene);
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    type EnrollStream = ReceiverStream<Result<proto::EnrollResponse, Status>>;

    async fn enroll(
        &self,
        request: Request<proto::EnrollRequest>,
    ) -> Result<Response<Self::EnrollStream>, Status> {
        use proto::enroll_response::Response as Told;
        let request = request.into_inner();
        assert!(request.start_time > 0, "the start time is sent");
        let (to, answers) = mpsc::channel(4);
        let tell = |told| {
            let response = proto::EnrollResponse {
                response: Some(told),
            };
            to.try_send(Ok(response)).unwrap();
        };
        tell(Told::Enrolled(proto::Enrolled {
            sandbox_id: "SBX".into(),
            exec_id: "EXE".into(),
            pids: vec![request.pid],
        }));
        if !request.stay {
            tell(Told::Denial(denial(b"/x", "/x")));
            tell(Told::Ended(proto::Ended {
                denied: 1,
                ..proto::Ended::default()
            }));
        }
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    type WatchEventsStream = ReceiverStream<Result<proto::WatchEventsResponse, Status>>;

    async fn watch_events(
        &self,
        request: Request<proto::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        use proto::watch_events_response::Response as Told;
        let request = request.into_inner();
        assert!(request.history && request.no_follow);
        let (to, answers) = mpsc::channel(4);
        let watching = Told::Watching(proto::Watching {
            epoch: "1".into(),
            sequence: 1,
        });
        for told in [
            watching,
            Told::Denial(denial(b"/x", "/x")),
            Told::Used(credential_use()),
        ] {
            let response = proto::WatchEventsResponse {
                response: Some(told),
            };
            to.try_send(Ok(response)).unwrap();
        }
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn list_sandboxes(
        &self,
        _: Request<proto::ListSandboxesRequest>,
    ) -> Result<Response<proto::ListSandboxesResponse>, Status> {
        let sandboxes = self.there.lock().unwrap().sandboxes.clone();
        Ok(Response::new(proto::ListSandboxesResponse { sandboxes }))
    }

    async fn kill_exec(
        &self,
        request: Request<proto::KillExecRequest>,
    ) -> Result<Response<proto::KillExecResponse>, Status> {
        match request.into_inner().exec_id.as_str() {
            "EXE" => Ok(Response::new(proto::KillExecResponse {})),
            "theirs" => Err(Status::permission_denied("it is not yours")),
            _ => Err(Status::not_found("no such exec")),
        }
    }

    async fn delete_sandbox(
        &self,
        request: Request<proto::DeleteSandboxRequest>,
    ) -> Result<Response<proto::DeleteSandboxResponse>, Status> {
        let id = request.into_inner().id;
        self.there.lock().unwrap().remove(&id)?;
        Ok(Response::new(proto::DeleteSandboxResponse {}))
    }

    async fn get_info(
        &self,
        _: Request<proto::GetInfoRequest>,
    ) -> Result<Response<proto::GetInfoResponse>, Status> {
        Ok(Response::new(proto::GetInfoResponse {
            version: "9.9.9".into(),
            kernel: "6.1.0".into(),
            ..proto::GetInfoResponse::default()
        }))
    }

    async fn create_sandbox(
        &self,
        request: Request<proto::CreateSandboxRequest>,
    ) -> Result<Response<proto::Sandbox>, Status> {
        let spec = request.into_inner().spec.unwrap();
        Ok(Response::new(self.there.lock().unwrap().create(spec)))
    }

    async fn get_sandbox(
        &self,
        _: Request<proto::GetSandboxRequest>,
    ) -> Result<Response<proto::Sandbox>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn update_sandbox(
        &self,
        _: Request<proto::UpdateSandboxRequest>,
    ) -> Result<Response<proto::Sandbox>, Status> {
        Err(Status::unimplemented(""))
    }

    type AttachStream = ReceiverStream<Result<proto::RunResponse, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<proto::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (to, answers) = mpsc::channel(4);
        tokio::spawn(jobs::attached(request.into_inner(), to));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    type GetLogsStream = ReceiverStream<Result<proto::GetLogsResponse, Status>>;

    async fn get_logs(
        &self,
        request: Request<proto::GetLogsRequest>,
    ) -> Result<Response<Self::GetLogsStream>, Status> {
        let (to, answers) = mpsc::channel(8);
        for response in jobs::logs(request.into_inner().follow) {
            to.try_send(response).unwrap();
        }
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn wait_exec(
        &self,
        _: Request<proto::WaitExecRequest>,
    ) -> Result<Response<proto::Exited>, Status> {
        Ok(Response::new(jobs::exited(3)))
    }

    type GetChangesStream = ReceiverStream<Result<proto::GetChangesResponse, Status>>;

    async fn get_changes(
        &self,
        request: Request<proto::GetChangesRequest>,
    ) -> Result<Response<Self::GetChangesStream>, Status> {
        Ok(stream(changes::changes(request.get_ref())))
    }

    type ExportPatchStream = ReceiverStream<Result<proto::ExportPatchResponse, Status>>;

    async fn export_patch(
        &self,
        request: Request<proto::ExportPatchRequest>,
    ) -> Result<Response<Self::ExportPatchStream>, Status> {
        Ok(stream(changes::patch(request.get_ref())))
    }

    type ApplyChangesStream = ReceiverStream<Result<proto::ApplyChangesResponse, Status>>;

    async fn apply_changes(
        &self,
        request: Request<proto::ApplyChangesRequest>,
    ) -> Result<Response<Self::ApplyChangesStream>, Status> {
        Ok(stream(changes::applied(request.get_ref())))
    }

    async fn get_traffic(
        &self,
        request: Request<proto::GetTrafficRequest>,
    ) -> Result<Response<proto::GetTrafficResponse>, Status> {
        let id = request.into_inner().sandbox_id;
        if id != "SBX" {
            return Err(reason(Code::NotFound, "SANDBOX_NOT_FOUND"));
        }
        let mut row = proto::Traffic {
            host: "registry.example".into(),
            port: 443,
            rule: "registry.example".into(),
            requests: 3,
            ..proto::Traffic::default()
        };
        row.set_decision(proto::traffic::Decision::Allowed);
        Ok(Response::new(proto::GetTrafficResponse {
            traffic: vec![row],
            unused_rules: vec!["pypi.org".into()],
            never_refused: true,
        }))
    }

    async fn set_secret(
        &self,
        request: Request<proto::SetSecretRequest>,
    ) -> Result<Response<proto::SetSecretResponse>, Status> {
        let request = request.into_inner();
        let kept = (request.name, request.value.to_vec(), request.uid);
        self.secrets.lock().unwrap().push(kept);
        Ok(Response::new(proto::SetSecretResponse {}))
    }

    async fn list_secrets(
        &self,
        _: Request<proto::ListSecretsRequest>,
    ) -> Result<Response<proto::ListSecretsResponse>, Status> {
        let secret = proto::Secret {
            name: "github".into(),
            set_time: Some(prost_types::Timestamp {
                seconds: 1_700_000_000,
                nanos: 5,
            }),
        };
        Ok(Response::new(proto::ListSecretsResponse {
            secrets: vec![secret],
        }))
    }

    async fn delete_secret(
        &self,
        request: Request<proto::DeleteSecretRequest>,
    ) -> Result<Response<proto::DeleteSecretResponse>, Status> {
        match request.into_inner().name.as_str() {
            "github" | "npm" => Ok(Response::new(proto::DeleteSecretResponse {})),
            _ => Err(reason(Code::NotFound, "SECRET_NOT_FOUND")),
        }
    }

    async fn validate_policy(
        &self,
        _: Request<proto::ValidatePolicyRequest>,
    ) -> Result<Response<proto::ValidatePolicyResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A stream of what there is already.
fn stream<T: Send + 'static>(
    responses: Vec<Result<T, Status>>,
) -> Response<ReceiverStream<Result<T, Status>>> {
    let (to, answers) = mpsc::channel(responses.len());
    for response in responses {
        to.try_send(response).ok().unwrap();
    }
    Response::new(ReceiverStream::new(answers))
}

fn reason(code: Code, reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "sandboxd", HashMap::new());
    Status::with_error_details(code, "cannot start `it`: because", details)
}

fn policy_invalid() -> Status {
    let response = proto::ValidatePolicyResponse {
        diagnostics: vec![proto::Diagnostic {
            rendered: "error: unknown key `raed`\n --> p.toml:3:1".into(),
            ..proto::Diagnostic::default()
        }],
        ..proto::ValidatePolicyResponse::default()
    };
    let details = pb::Status {
        code: Code::InvalidArgument.into(),
        message: "the policy is wrong".into(),
        details: vec![Any {
            type_url: "type.googleapis.com/sandbox.v1.ValidatePolicyResponse".into(),
            value: response.encode_to_vec(),
        }],
    };
    let bytes = details.encode_to_vec();
    Status::with_details(Code::InvalidArgument, "the policy is wrong", bytes.into())
}
