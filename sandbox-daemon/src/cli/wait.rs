//! `sandbox wait`.

use super::{
    args::WaitArgs,
    block_on,
    error::{CliError, Exit},
    host::Host,
    run, target,
};
use crate::proto::WaitExecRequest;

/// Returns the status of a detached command when it has ended.
pub fn wait(args: &WaitArgs, host: &Host) -> Result<Exit, CliError> {
    block_on(async {
        let mut client = host.connect().await?;
        let exec = target::find(&mut client, &args.id).await?.detached()?;
        let request = WaitExecRequest { exec_id: exec.id };
        let exited = client.wait_exec(request).await?.into_inner();
        Ok(run::ended(&exited))
    })
}
