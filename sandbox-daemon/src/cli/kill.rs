//! `sandbox kill`.

use tonic::Code;

use super::{
    args::KillArgs,
    block_on,
    error::{CliError, Exit},
    host::Host,
};
use crate::proto::{DeleteSandboxRequest, KillExecRequest};

/// Kills an exec of that id, otherwise a sandbox of that id.
pub fn kill(args: &KillArgs, host: &Host) -> Result<Exit, CliError> {
    block_on(async {
        let mut client = host.connect().await?;
        let exec_id = args.id.clone();
        match client.kill_exec(KillExecRequest { exec_id }).await {
            Ok(_) => return Ok(Exit::Success),
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(status.into()),
        }
        let id = args.id.clone();
        match client.delete_sandbox(DeleteSandboxRequest { id }).await {
            Ok(_) => Ok(Exit::Success),
            Err(status) if status.code() == Code::NotFound => Err(CliError::UnknownId {
                id: args.id.clone(),
            }),
            Err(status) => Err(status.into()),
        }
    })
}
