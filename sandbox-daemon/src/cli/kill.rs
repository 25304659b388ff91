//! `sandbox kill`.

use tonic::{Code, transport::Channel};

use super::{
    args::KillArgs,
    block_on,
    error::{CliError, Exit},
    host::Host,
    target::{self, Target},
};
use crate::proto::{DeleteSandboxRequest, KillExecRequest, sandboxes_client::SandboxesClient};

/// Kills an exec or a sandbox; what is no whole id is looked for.
pub fn kill(args: &KillArgs, host: &Host) -> Result<Exit, CliError> {
    block_on(async {
        let mut client = host.connect().await?;
        if end(&mut client, &args.id).await? {
            return Ok(Exit::Success);
        }
        match target::find(&mut client, &args.id).await? {
            Target::Exec(_, exec) => end(&mut client, &exec.id).await?,
            Target::Sandbox(sandbox) => end(&mut client, &sandbox.id).await?,
        };
        Ok(Exit::Success)
    })
}

/// An exec of that id, otherwise a sandbox of that id. False: there is neither.
async fn end(client: &mut SandboxesClient<Channel>, id: &str) -> Result<bool, CliError> {
    let exec_id = id.to_owned();
    match client.kill_exec(KillExecRequest { exec_id }).await {
        Ok(_) => return Ok(true),
        Err(status) if status.code() == Code::NotFound => {}
        Err(status) => return Err(status.into()),
    }
    let id = id.to_owned();
    match client.delete_sandbox(DeleteSandboxRequest { id }).await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(status.into()),
    }
}
