//! `sandbox export`.

use std::{fs::Permissions, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path};

use tempfile::NamedTempFile;

use super::{Progress, Remarks, diff::raw, meant};
use crate::{
    cli::{
        args::ExportArgs,
        block_on,
        error::{CliError, Exit},
        host::Host,
    },
    proto::{ExportPatchRequest, export_patch_response::Response},
};

/// What errors call the file.
const PATCH: &str = "the file";

/// Writes a patch: all of it, or none.
pub fn export(args: &ExportArgs, host: &Host) -> Result<Exit, CliError> {
    let to_stdout = args.patch.as_os_str() == "-";
    if !to_stdout && !args.force && args.patch.symlink_metadata().is_ok() {
        return Err(exists(&args.patch));
    }
    block_on(async {
        let mut client = host.connect().await?;
        let (sandbox_id, paths) = meant(&mut client, &args.changes).await?;
        let mut file = if to_stdout {
            None
        } else {
            Some(beside(&args.patch)?)
        };
        let request = ExportPatchRequest {
            sandbox_id,
            paths,
            binary: true,
        };
        let mut stream = client.export_patch(request).await?.into_inner();
        let mut progress = Progress::new(to_stdout);
        let mut remarks = Remarks::default();
        while let Some(response) = stream.message().await? {
            match response.response {
                Some(Response::Patch(bytes)) => match &mut file {
                    Some(file) => file
                        .write_all(&bytes)
                        .map_err(|source| failed(&args.patch, source))?,
                    None if raw(&bytes)? => {}
                    None => return Ok(Exit::Success),
                },
                Some(Response::LeftOut(left_out)) => remarks.0.push(left_out),
                Some(Response::Progress(files)) => progress.show("looked at", files.files),
                None => {}
            }
        }
        drop(progress);
        if let Some(file) = file {
            let kept = if args.force {
                file.persist(&args.patch)
            } else {
                file.persist_noclobber(&args.patch)
            };
            kept.map_err(|error| failed(&args.patch, error.error))?;
        }
        remarks.tell("not in the patch");
        Ok(Exit::Success)
    })
}

/// A file that gets its name when it is complete.
fn beside(path: &Path) -> Result<NamedTempFile, CliError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    tempfile::Builder::new()
        .prefix(".sandbox-")
        .suffix(".patch")
        // As any file that the caller makes.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: std::io::Error) -> CliError {
    if source.kind() == std::io::ErrorKind::AlreadyExists {
        return exists(path);
    }
    CliError::Path {
        what: PATCH,
        path: path.to_owned(),
        source,
    }
}

fn exists(path: &Path) -> CliError {
    CliError::Exists {
        path: path.to_owned(),
    }
}
