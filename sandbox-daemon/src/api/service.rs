//! The calls of `sandbox.v1.Sandboxes`.

use std::{pin::Pin, sync::Arc};

use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{changes, deadline, jobs, peer::caller, request, response, status};
use crate::{
    events::{Filter, Since, Subscription},
    proto::{self, run_request, sandboxes_server::Sandboxes, watch_events_response},
    sandbox::{Registry, SandboxError, Share},
    secrets::Secrets,
    steps,
};

/// Messages between an exec and its call; behind them its output blocks.
pub(super) const MESSAGES: usize = 8;

pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The API of one registry.
pub(super) struct Service {
    registry: Arc<Registry>,
    epoch: Arc<str>,
}

impl Service {
    pub(super) fn new(registry: Arc<Registry>) -> Self {
        let epoch = registry.events().journal().epoch().into();
        Self { registry, epoch }
    }

    /// Responses for as long as the call holds its share of the quota.
    fn responses<T: Send + 'static, U: 'static>(
        &self,
        items: mpsc::Receiver<T>,
        share: Share,
        convert: fn(&str, T) -> U,
    ) -> Response<Responses<U>> {
        let epoch = self.epoch.clone();
        let responses = ReceiverStream::new(items).map(move |item| {
            let _held = &share;
            Ok(convert(&epoch, item))
        });
        Response::new(Box::pin(responses))
    }

    fn sandbox(&self, sandbox: &crate::sandbox::Sandbox) -> Response<proto::Sandbox> {
        Response::new(response::sandbox(sandbox, self.registry.enforcer()))
    }
}

#[tonic::async_trait]
impl Sandboxes for Service {
    async fn create_sandbox(
        &self,
        request: Request<proto::CreateSandboxRequest>,
    ) -> Result<Response<proto::Sandbox>, Status> {
        let caller = caller(&self.registry, &request)?;
        let request = request.into_inner();
        let spec = request::spec(request.spec).map_err(status::of)?;
        let made = self
            .registry
            .create(&caller, spec, &request.request_id)
            .await;
        Ok(self.sandbox(&*made.map_err(status::of)?))
    }

    async fn get_sandbox(
        &self,
        request: Request<proto::GetSandboxRequest>,
    ) -> Result<Response<proto::Sandbox>, Status> {
        let caller = caller(&self.registry, &request)?;
        let found = self.registry.get(&caller, &request.into_inner().id);
        Ok(self.sandbox(&*found.map_err(status::of)?))
    }

    async fn list_sandboxes(
        &self,
        request: Request<proto::ListSandboxesRequest>,
    ) -> Result<Response<proto::ListSandboxesResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let sandboxes = self.registry.list(&caller);
        let enforcer = self.registry.enforcer();
        Ok(Response::new(proto::ListSandboxesResponse {
            sandboxes: sandboxes
                .iter()
                .map(|sandbox| response::sandbox(sandbox, enforcer))
                .collect(),
        }))
    }

    async fn update_sandbox(
        &self,
        request: Request<proto::UpdateSandboxRequest>,
    ) -> Result<Response<proto::Sandbox>, Status> {
        let caller = caller(&self.registry, &request)?;
        let request = request.into_inner();
        let source = request::policy_source(request.policy);
        let updated = self
            .registry
            .update(&caller, &request.id, source, &request.etag)
            .await;
        Ok(self.sandbox(&*updated.map_err(status::of)?))
    }

    async fn delete_sandbox(
        &self,
        request: Request<proto::DeleteSandboxRequest>,
    ) -> Result<Response<proto::DeleteSandboxResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let deleted = self
            .registry
            .delete(&caller, &request.into_inner().id)
            .await;
        deleted.map_err(status::of)?;
        Ok(Response::new(proto::DeleteSandboxResponse {}))
    }

    type RunStream = Responses<proto::RunResponse>;

    async fn run(
        &self,
        request: Request<Streaming<proto::RunRequest>>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        let deadline = deadline::of(request.metadata());
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|first| first.request);
        steps::done("asked");
        let Some(run_request::Request::Start(start)) = first else {
            let problem = "must be `start` in the first message";
            return Err(status::of(SandboxError::invalid("request", problem)));
        };
        let spec = request::run_spec(start, deadline).map_err(status::of)?;
        // An error is the end of it; a client that is gone is noticed by the
        // responses that it does not take.
        let input = requests.map_while(Result::ok).filter_map(request::input);
        let (output, responses) = mpsc::channel(MESSAGES);
        let run = self.registry.run(&caller, spec, Box::pin(input), output);
        run.await.map_err(status::of)?;
        Ok(self.responses(responses, share, response::run_response))
    }

    type EnrollStream = Responses<proto::EnrollResponse>;

    async fn enroll(
        &self,
        request: Request<proto::EnrollRequest>,
    ) -> Result<Response<Self::EnrollStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        let spec = request::enroll_spec(request.into_inner()).map_err(status::of)?;
        let (output, responses) = mpsc::channel(MESSAGES);
        let enrolled = self.registry.enroll(&caller, spec, output).await;
        enrolled.map_err(status::of)?;
        Ok(self.responses(responses, share, response::enroll_response))
    }

    async fn kill_exec(
        &self,
        request: Request<proto::KillExecRequest>,
    ) -> Result<Response<proto::KillExecResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let killed = self
            .registry
            .kill(&caller, &request.into_inner().exec_id)
            .await;
        killed.map_err(status::of)?;
        Ok(Response::new(proto::KillExecResponse {}))
    }

    type AttachStream = Responses<proto::RunResponse>;

    async fn attach(
        &self,
        request: Request<Streaming<proto::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        jobs::attach(&self.registry, &caller, share, request.into_inner()).await
    }

    type GetLogsStream = Responses<proto::GetLogsResponse>;

    async fn get_logs(
        &self,
        request: Request<proto::GetLogsRequest>,
    ) -> Result<Response<Self::GetLogsStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        jobs::logs(&self.registry, &caller, share, &request.into_inner())
    }

    async fn wait_exec(
        &self,
        request: Request<proto::WaitExecRequest>,
    ) -> Result<Response<proto::Exited>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        jobs::wait(&self.registry, &caller, share, &request.into_inner()).await
    }

    type GetChangesStream = Responses<proto::GetChangesResponse>;

    async fn get_changes(
        &self,
        request: Request<proto::GetChangesRequest>,
    ) -> Result<Response<Self::GetChangesStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        changes::get(&self.registry, &caller, share, request.into_inner()).await
    }

    type ExportPatchStream = Responses<proto::ExportPatchResponse>;

    async fn export_patch(
        &self,
        request: Request<proto::ExportPatchRequest>,
    ) -> Result<Response<Self::ExportPatchStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        changes::export(&self.registry, &caller, share, request.into_inner()).await
    }

    type ApplyChangesStream = Responses<proto::ApplyChangesResponse>;

    async fn apply_changes(
        &self,
        request: Request<proto::ApplyChangesRequest>,
    ) -> Result<Response<Self::ApplyChangesStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        changes::apply(&self.registry, &caller, share, request.into_inner()).await
    }

    type WatchEventsStream = Responses<proto::WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<proto::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let caller = caller(&self.registry, &request)?;
        let share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        let request = request.into_inner();
        let since = match (request.epoch, request.history) {
            (epoch, history) if epoch.is_empty() => {
                if history {
                    Since::Oldest
                } else {
                    Since::Now
                }
            }
            (epoch, _) => Since::After {
                epoch,
                sequence: request.after_sequence,
            },
        };
        let sandbox = (!request.sandbox_id.is_empty()).then_some(request.sandbox_id);
        if let (Some(id), Since::Now) = (&sandbox, &since) {
            // Of a sandbox that is gone there is history at most.
            self.registry.get(&caller, id).map_err(status::of)?;
        }
        let filter = Filter {
            uid: (caller.uid != 0).then_some(caller.uid),
            sandbox,
            exec: None,
        };
        let journal = self.registry.events().journal();
        let watching = journal.subscribe(filter, &since);
        let watching = watching.map_err(|error| status::of_resume(&error))?;
        let (responses, received) = mpsc::channel(MESSAGES);
        let follow = !request.no_follow;
        tokio::spawn(watch(self.epoch.clone(), watching, responses, follow));
        Ok(self.responses(received, share, |_, response| response))
    }

    async fn get_traffic(
        &self,
        request: Request<proto::GetTrafficRequest>,
    ) -> Result<Response<proto::GetTrafficResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let id = request.into_inner().sandbox_id;
        let report = self.registry.traffic(&caller, &id).await;
        Ok(Response::new(response::traffic(
            report.map_err(status::of)?,
        )))
    }

    async fn set_secret(
        &self,
        request: Request<proto::SetSecretRequest>,
    ) -> Result<Response<proto::SetSecretResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let proto::SetSecretRequest { name, value, uid } = request.into_inner();
        // From here on it is wiped; the transport's own buffer, of which the message
        // is a part, is as soon as it is freed.
        let value = Secrets::value(value.into());
        let value = value.map_err(|error| status::of(error.into()))?;
        let set = self.registry.set_secret(&caller, uid, name, value).await;
        set.map_err(status::of)?;
        Ok(Response::new(proto::SetSecretResponse {}))
    }

    async fn list_secrets(
        &self,
        request: Request<proto::ListSecretsRequest>,
    ) -> Result<Response<proto::ListSecretsResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let uid = request.into_inner().uid;
        let listed = self.registry.list_secrets(&caller, uid).await;
        let listed = listed.map_err(status::of)?;
        let secrets = listed.into_iter().map(|it| proto::Secret {
            name: it.name,
            set_time: Some(it.set.into()),
        });
        Ok(Response::new(proto::ListSecretsResponse {
            secrets: secrets.collect(),
        }))
    }

    async fn delete_secret(
        &self,
        request: Request<proto::DeleteSecretRequest>,
    ) -> Result<Response<proto::DeleteSecretResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let proto::DeleteSecretRequest { name, uid } = request.into_inner();
        let deleted = self.registry.delete_secret(&caller, uid, name).await;
        deleted.map_err(status::of)?;
        Ok(Response::new(proto::DeleteSecretResponse {}))
    }

    async fn validate_policy(
        &self,
        request: Request<proto::ValidatePolicyRequest>,
    ) -> Result<Response<proto::ValidatePolicyResponse>, Status> {
        let caller = caller(&self.registry, &request)?;
        let _share = self.registry.share_stream(caller.uid).map_err(status::of)?;
        let request = request.into_inner();
        let source = request::policy_source(request.policy);
        let workspace = request::path(request.workspace);
        let (policy, diagnostics) = match self.registry.check(&caller, source, workspace).await {
            Ok((policy, warnings)) => (Some(policy), warnings),
            Err(SandboxError::Policy(diagnostics)) => (None, diagnostics),
            Err(error) => return Err(status::of(error)),
        };
        Ok(Response::new(proto::ValidatePolicyResponse {
            valid: policy.is_some(),
            diagnostics: diagnostics.into_iter().map(response::diagnostic).collect(),
            policy_name: policy
                .as_ref()
                .map(|it| it.name.clone())
                .unwrap_or_default(),
            policy_digest: policy.map(|it| it.digest).unwrap_or_default(),
        }))
    }

    async fn get_info(
        &self,
        request: Request<proto::GetInfoRequest>,
    ) -> Result<Response<proto::GetInfoResponse>, Status> {
        caller(&self.registry, &request)?;
        let info = self.registry.info();
        Ok(Response::new(response::info(&self.epoch, info)))
    }
}

/// Carries a subscription to its call.
async fn watch(
    epoch: Arc<str>,
    mut watching: Subscription,
    responses: mpsc::Sender<proto::WatchEventsResponse>,
    follow: bool,
) {
    let first = proto::WatchEventsResponse {
        response: Some(watch_events_response::Response::Watching(proto::Watching {
            epoch: epoch.to_string(),
            sequence: watching.sequence(),
        })),
    };
    if responses.send(first).await.is_err() {
        return;
    }
    loop {
        let item = if follow {
            tokio::select! {
                item = watching.next() => item,
                () = responses.closed() => None,
            }
        } else {
            watching.history()
        };
        let Some(item) = item else { return };
        if responses
            .send(response::watch_response(&epoch, item))
            .await
            .is_err()
        {
            return;
        }
    }
}
