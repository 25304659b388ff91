//! `sandbox enroll`: a boundary around what already runs.

use std::io;

use super::{
    args::EnrollArgs,
    block_on,
    caller::Caller,
    denials::{line, lost_line},
    error::{CliError, Exit},
    host::Host,
    limits, print, request, tell,
};
use crate::{
    proto::{Ended, EnrollRequest, Enrolled, enroll_request, enroll_response::Response},
    sys::start_time,
};

/// Moves the process in, and tells what it is refused until it ends; with
/// `--stay` only moves it.
pub fn enroll(args: &EnrollArgs, host: &Host) -> Result<Exit, CliError> {
    let caller = Caller::current()?;
    if let Some(id) = caller.sandbox {
        return Err(CliError::InsideSandbox { id });
    }
    // Read before the daemon is asked: if the number goes to another process
    // meanwhile, nothing is moved.
    let start_time = start_time(args.pid).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => CliError::NoProcess { pid: args.pid },
        _ => CliError::Io {
            operation: "read the process's start time",
            source,
        },
    })?;
    let request = EnrollRequest {
        sandbox: Some(enroll_request::Sandbox::Inline(request::spec(
            &args.sandbox,
            &caller,
        )?)),
        pid: args.pid,
        start_time,
        allow_inherited: args.allow_inherited,
        stay: args.stay,
    };
    block_on(follow(request, args.stay, host))
}

async fn follow(request: EnrollRequest, stay: bool, host: &Host) -> Result<Exit, CliError> {
    let mut client = host.connect().await?;
    let mut stream = client.enroll(request).await?.into_inner();
    while let Some(response) = stream.message().await? {
        match response.response {
            Some(Response::Enrolled(enrolled)) => {
                print(&format!("{} {}\n", enrolled.sandbox_id, enrolled.exec_id))?;
                tell(&announcement(&enrolled, stay));
                if stay {
                    return Ok(Exit::Success);
                }
            }
            Some(Response::Denial(denial)) => {
                tell(&format!("sandbox: {}\n", line(&denial, denial.count)));
            }
            Some(Response::Lost(lost)) => tell(&format!("sandbox: {}\n", lost_line(&lost))),
            Some(Response::Ended(ended)) => {
                tell(&limits::conclusion(
                    ended.reason(),
                    ended.limits,
                    ended.usage,
                ));
                tell(&conclusion(&ended));
                return Ok(Exit::Success);
            }
            // `sandbox events` shows what was not refused.
            Some(Response::Used(_)) | None => {}
        }
    }
    Err(CliError::ConnectionLost)
}

fn announcement(enrolled: &Enrolled, stay: bool) -> String {
    let processes = match enrolled.pids.len() {
        0 | 1 => "one process".to_owned(),
        count => format!("{count} processes"),
    };
    let until = if stay {
        "it stays until it ends or `sandbox kill` ends it"
    } else {
        "it is killed when this command ends"
    };
    format!("sandbox: enrolled {processes}; {until}\n")
}

fn conclusion(ended: &Ended) -> String {
    match ended.denied {
        0 => "sandbox: ended; nothing was refused\n".to_owned(),
        denied => format!("sandbox: ended; {denied} refused\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_long_the_enrolment_lasts() {
        let enrolled = Enrolled {
            pids: vec![1, 2, 3],
            ..Enrolled::default()
        };
        assert_eq!(
            announcement(&enrolled, false),
            "sandbox: enrolled 3 processes; it is killed when this command ends\n"
        );
        assert!(announcement(&enrolled, true).contains("stays"));
    }
}
