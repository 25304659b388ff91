//! `sandbox apply`.

use tonic::Status;
use tonic_types::StatusExt as _;

use super::{Progress, Remarks, meant, name_status};
use crate::{
    cli::{
        args::ApplyArgs,
        block_on,
        error::{CliError, Exit},
        host::Host,
        print, tell,
    },
    escape::printable,
    proto::{ApplyChangesRequest, apply_changes_response::Response},
};

/// Writes changes to the real workspace and says which.
pub fn apply(args: &ApplyArgs, host: &Host) -> Result<Exit, CliError> {
    block_on(async {
        let mut client = host.connect().await?;
        let (sandbox_id, paths) = meant(&mut client, &args.changes).await?;
        let request = ApplyChangesRequest {
            sandbox_id,
            paths,
            force: args.force,
            dry_run: args.dry_run,
            outside_links: args.outside_links,
        };
        let mut stream = client.apply_changes(request).await?.into_inner();
        let mut progress = Progress::new(true);
        let mut remarks = Remarks::default();
        let mut applied: u64 = 0;
        // What goes on does so also where nobody reads the list any more.
        let mut listing = true;
        let ended = loop {
            match stream.message().await {
                Ok(Some(response)) => match response.response {
                    Some(Response::Applied(change)) => {
                        applied += 1;
                        listing = listing && print(&name_status(&change))?;
                    }
                    Some(Response::LeftOut(left_out)) => remarks.0.push(left_out),
                    Some(Response::Progress(files)) => progress.show("looked at", files.files),
                    None => {}
                },
                Ok(None) => break Ok(()),
                Err(status) => break Err(status),
            }
        };
        drop(progress);
        remarks.tell("left out");
        if let Err(status) = ended {
            tell(&refused(&status));
            return Err(status.into());
        }
        if applied == 0 {
            tell("sandbox: nothing to apply\n");
        } else if args.dry_run {
            tell("sandbox: nothing was written\n");
        }
        Ok(Exit::Success)
    })
}

/// The paths that stand against it, as many as the daemon named.
fn refused(status: &Status) -> String {
    let details = status.get_error_details();
    let Some(failure) = details.precondition_failure() else {
        return String::new();
    };
    let lines = failure.violations.iter().map(|it| {
        format!(
            "sandbox: {} {}\n",
            printable(&it.subject),
            printable(&it.description)
        )
    });
    lines.collect()
}
