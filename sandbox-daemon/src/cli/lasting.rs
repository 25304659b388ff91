//! Sandboxes that outlive a call: `sandbox create`, `sandbox rm`, and detached
//! commands.

use tonic::{Code, transport::Channel};

use super::{
    args::{CommandArgs, CreateArgs, ExecArgs, LastingArgs, Output, RmArgs, RunArgs, SandboxArgs},
    block_on,
    caller::Caller,
    error::{CliError, Exit},
    host::Host,
    json::Sink,
    print, ps, request,
    run::{self, How},
    stdio::{Kind, Terminals, foreground, request as run_request},
    target, tell,
};
use crate::proto::{
    CreateSandboxRequest, DeleteSandboxRequest, Sandbox, Start, Started, run_request::Request,
    run_response::Response, sandboxes_client::SandboxesClient, start,
};

type Client = SandboxesClient<Channel>;

/// Makes a sandbox and prints its id.
pub fn create(args: &CreateArgs, host: &Host) -> Result<Exit, CliError> {
    let caller = outside()?;
    let made = make(&args.sandbox, &args.lasting, &caller);
    let made = block_on(async { make_with(&mut host.connect().await?, made?).await })?;
    print(&match args.output {
        Output::Text => format!("{}\n", made.id),
        Output::Json => ps::one(&made),
    })?;
    Ok(Exit::Success)
}

/// Removes sandboxes with all that runs in them.
pub fn rm(args: &RmArgs, host: &Host) -> Result<Exit, CliError> {
    block_on(async {
        let mut client = host.connect().await?;
        let there = target::list(&mut client).await?;
        let meant = if args.all {
            there
        } else {
            // All of them are found before the first is removed.
            let meant = args.ids.iter();
            let meant = meant.map(|id| target::choose(&there, id)?.sandbox());
            meant.collect::<Result<Vec<_>, _>>()?
        };
        let mut removed = Ok(Exit::Success);
        for sandbox in meant {
            // One that cannot be removed does not keep the others.
            let one = remove(&mut client, sandbox.id).await;
            removed = removed.and(one.map(|()| Exit::Success));
        }
        removed
    })
}

/// Runs a command in a sandbox that is there.
pub fn exec(args: &ExecArgs, host: &Host) -> Result<Exit, CliError> {
    run::with_sink(&args.how, |sink| {
        let caller = outside()?;
        let sandbox = block_on(async {
            let mut client = host.connect().await?;
            target::find(&mut client, &args.sandbox).await?.sandbox()
        })?;
        let kind = kind(&args.how);
        let mut start = request::command(&args.how, &caller, kind)?;
        start.cwd = request::within(args.workdir.as_deref(), &caller, &sandbox)?;
        start.timeout = args.timeout.and_then(|timeout| timeout.try_into().ok());
        start.sandbox = Some(start::Sandbox::SandboxId(sandbox.id));
        if args.how.left.detach {
            return block_on(async {
                let mut client = host.connect().await?;
                let started = detach(&mut client, start).await?;
                announce(&args.how, &started)
            });
        }
        run::attended(host, start, &How::of(&args.how, kind), &caller, sink)
    })
}

/// Runs a command in a new sandbox, and leaves both.
pub(super) fn run_detached(args: &RunArgs, caller: &Caller, host: &Host) -> Result<Exit, CliError> {
    let made = make(&args.sandbox, &args.lasting, caller)?;
    let start = request::start(args, caller, kind(&args.how))?;
    block_on(async {
        let mut client = host.connect().await?;
        let sandbox = make_with(&mut client, made).await?;
        let started = detach(&mut client, at(start, &sandbox)).await;
        announce(&args.how, &or_remove(&mut client, &sandbox, started).await?)
    })
}

/// Runs a command in a new sandbox that stays.
pub(super) fn run_kept(
    args: &RunArgs,
    caller: &Caller,
    start: Start,
    how: &How,
    host: &Host,
    sink: Option<&mut Sink>,
) -> Result<Exit, CliError> {
    let made = make(&args.sandbox, &args.lasting, caller)?;
    let sandbox = block_on(async { make_with(&mut host.connect().await?, made).await })?;
    let result = run::attended(host, at(start, &sandbox), how, caller, sink);
    if let Err(error @ (CliError::Refused(_) | CliError::PolicyInvalid { .. })) = result {
        // It never ran.
        return block_on(async {
            or_remove(&mut host.connect().await?, &sandbox, Err(error)).await
        });
    }
    let id = &sandbox.id;
    tell(&format!(
        "sandbox: kept `{id}`; `sandbox exec {id} -- COMMAND` goes on in it, \
         `sandbox rm {id}` removes it\n"
    ));
    result
}

/// Standard streams of a command that somebody attends, or that is detached.
fn kind(how: &CommandArgs) -> Kind {
    match how.left.detach {
        true if how.left.tty => Kind::Pty {
            stderr_apart: false,
        },
        true => Kind::Relay,
        false => Terminals::current().kind(foreground(std::io::stdin())),
    }
}

fn outside() -> Result<Caller, CliError> {
    let caller = Caller::current()?;
    match caller.sandbox {
        Some(id) => Err(CliError::InsideSandbox { id }),
        None => Ok(caller),
    }
}

fn make(
    sandbox: &SandboxArgs,
    lasting: &LastingArgs,
    caller: &Caller,
) -> Result<CreateSandboxRequest, CliError> {
    let mut spec = request::spec(sandbox, caller)?;
    spec.name = lasting.name.clone().unwrap_or_default();
    let idle_timeout = lasting.idle_timeout.map(TryInto::try_into);
    spec.idle_timeout = idle_timeout.and_then(Result::ok);
    Ok(CreateSandboxRequest {
        spec: Some(spec),
        request_id: String::new(),
    })
}

async fn make_with(
    client: &mut Client,
    request: CreateSandboxRequest,
) -> Result<Sandbox, CliError> {
    Ok(client.create_sandbox(request).await?.into_inner())
}

fn at(start: Start, sandbox: &Sandbox) -> Start {
    Start {
        sandbox: Some(start::Sandbox::SandboxId(sandbox.id.clone())),
        ..start
    }
}

/// Removes one; that it is gone already is as well.
async fn remove(client: &mut Client, id: String) -> Result<(), CliError> {
    match client.delete_sandbox(DeleteSandboxRequest { id }).await {
        Err(status) if status.code() != Code::NotFound => Err(status.into()),
        _ => Ok(()),
    }
}

/// A sandbox is not left for a command that could not be started in it.
async fn or_remove<T>(
    client: &mut Client,
    sandbox: &Sandbox,
    result: Result<T, CliError>,
) -> Result<T, CliError> {
    if result.is_err() {
        // Why there is no command is what is told.
        let _ = remove(client, sandbox.id.clone()).await;
    }
    result
}

/// Starts a command that outlives the call.
async fn detach(client: &mut Client, start: Start) -> Result<Started, CliError> {
    let first = tokio_stream::once(run_request(Request::Start(start)));
    let mut responses = client.run(first).await?.into_inner();
    let first = responses.message().await?.and_then(|it| it.response);
    match first {
        Some(Response::Started(started)) => Ok(started),
        _ => Err(CliError::ConnectionLost),
    }
}

fn announce(how: &CommandArgs, started: &Started) -> Result<Exit, CliError> {
    if how.verbose {
        tell(&run::announcement(started));
    }
    print(&format!("{}\n", started.exec_id))?;
    Ok(Exit::Success)
}
