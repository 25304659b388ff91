//! `sandbox diff`.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use super::{
    Progress, Remarks, in_repository, is_directory, letter, meant, name_status, paint::Paint,
    shown, stat::Stat,
};
use crate::{
    cli::{
        args::{DiffArgs, Output},
        block_on,
        error::{CliError, Exit},
        host::Host,
        json::bytes,
        print, tell,
    },
    proto::{
        Change, ExportPatchRequest, GetChangesRequest, change::Kind, export_patch_response,
        get_changes_response,
    },
};

/// Shows what a sandbox changed.
pub fn diff(args: &DiffArgs, host: &Host) -> Result<Exit, CliError> {
    let listed = args.stat || args.name_only || args.name_status;
    if listed || args.output == Output::Json {
        block_on(list(args, host))
    } else {
        block_on(patch(args, host))
    }
}

async fn patch(args: &DiffArgs, host: &Host) -> Result<Exit, CliError> {
    use export_patch_response::Response as Is;
    let mut client = host.connect().await?;
    let (sandbox_id, paths) = meant(&mut client, &args.changes).await?;
    let request = ExportPatchRequest {
        sandbox_id,
        paths,
        binary: false,
    };
    let mut stream = client.export_patch(request).await?.into_inner();
    let mut progress = Progress::new(false);
    let mut remarks = Remarks::default();
    let mut paint = io::stdout().is_terminal().then(Paint::new);
    while let Some(response) = stream.message().await? {
        let more = match response.response {
            Some(Is::Patch(bytes)) => {
                progress.clear();
                progress.on = false;
                match &mut paint {
                    Some(paint) => print(&paint.lines(&bytes))?,
                    None => raw(&bytes)?,
                }
            }
            Some(Is::LeftOut(left_out)) => {
                remarks.0.push(left_out);
                true
            }
            Some(Is::Progress(files)) => {
                progress.show("looked at", files.files);
                true
            }
            None => true,
        };
        if !more {
            return Ok(Exit::Success);
        }
    }
    progress.clear();
    if let Some(paint) = paint {
        print(&paint.end())?;
    }
    remarks.tell("not shown");
    Ok(Exit::Success)
}

/// Writes bytes as they are. False: the reader has seen enough.
pub(super) fn raw(bytes: &[u8]) -> Result<bool, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(CliError::Io {
            operation: "write to stdout",
            source,
        }),
    }
}

async fn list(args: &DiffArgs, host: &Host) -> Result<Exit, CliError> {
    use get_changes_response::Response as Is;
    let mut client = host.connect().await?;
    let (sandbox_id, paths) = meant(&mut client, &args.changes).await?;
    let json = args.output == Output::Json;
    let request = GetChangesRequest {
        sandbox_id,
        paths,
        count_lines: args.stat || json,
    };
    let mut stream = client.get_changes(request).await?.into_inner();
    let mut progress = Progress::new(!args.stat);
    let mut stat = Stat::default();
    // A directory is shown if nothing in it is.
    let mut directory: Option<Change> = None;
    let mut hidden: u64 = 0;
    let mut show = |change: &Change| -> Result<bool, CliError> {
        if args.stat {
            stat.add(change);
            return Ok(true);
        }
        print(&if args.name_only {
            format!("{}\n", shown(change))
        } else {
            name_status(change)
        })
    };
    while let Some(response) = stream.message().await? {
        let change = match response.response {
            Some(Is::Change(change)) => change,
            Some(Is::Progress(files)) => {
                progress.show("looked at", files.files);
                continue;
            }
            None => continue,
        };
        progress.clear();
        let more = if json {
            print(&line(&change))?
        } else if in_repository(&change) {
            hidden += 1;
            true
        } else {
            let filled = directory.take().filter(|it| !is_above(it, &change));
            let more = filled.as_ref().map_or(Ok(true), &mut show)?;
            if is_directory(&change) && change.kind() != Kind::Modified {
                directory = Some(change);
                more
            } else {
                more && show(&change)?
            }
        };
        if !more {
            return Ok(Exit::Success);
        }
    }
    progress.clear();
    if let Some(change) = &directory {
        show(change)?;
    }
    if args.stat {
        print(&stat.render())?;
    }
    if hidden > 0 {
        tell(&format!(
            "sandbox: not shown: {hidden} in `.git`; see `-o json`\n"
        ));
    }
    Ok(Exit::Success)
}

fn is_above(directory: &Change, change: &Change) -> bool {
    let rest = change.path.strip_prefix(&directory.path[..]);
    rest.is_some_and(|rest| rest.starts_with(b"/"))
}

#[derive(Serialize)]
struct Line<'a> {
    kind: &'static str,
    letter: char,
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    path_display: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path_base64: Option<String>,
    /// In octal, as git has them.
    old_mode: String,
    mode: String,
    old_size: u64,
    size: u64,
    binary: bool,
    added_lines: u64,
    deleted_lines: u64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    xattrs: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    left_out: &'a str,
}

/// One change as a line of JSON.
fn line(change: &Change) -> String {
    let (path, path_base64) = bytes(&change.path);
    let (old_path, old_path_base64) = if change.old_path.is_empty() {
        (None, None)
    } else {
        bytes(&change.old_path)
    };
    let line = Line {
        kind: match change.kind() {
            Kind::Added => "added",
            Kind::Modified => "modified",
            Kind::Deleted => "deleted",
            Kind::Renamed => "renamed",
            Kind::TypeChanged => "type_changed",
            Kind::Unspecified => "unknown",
        },
        letter: letter(change),
        path,
        path_base64,
        path_display: &change.path_display,
        old_path,
        old_path_base64,
        old_mode: format!("{:06o}", change.old_mode),
        mode: format!("{:06o}", change.mode),
        old_size: change.old_size,
        size: change.size,
        binary: change.binary,
        added_lines: change.added_lines,
        deleted_lines: change.deleted_lines,
        xattrs: &change.xattrs,
        left_out: &change.left_out,
    };
    let mut text = serde_json::to_string(&line).expect("strings and numbers always serialise");
    text.push('\n');
    text
}
