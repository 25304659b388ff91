//! `sandbox events`: what was refused, and where credentials went, from the daemon's
//! buffer and then live.

use prost_types::Timestamp;

use super::{
    args::{EventsArgs, Output},
    block_on,
    denials::{line, lost_line, use_line},
    error::{CliError, Exit},
    host::Host,
    json::{Event, time},
    print,
};
use crate::proto::{WatchEventsRequest, WatchEventsResponse, watch_events_response::Response};

/// Prints them until the buffer or the caller ends.
pub fn events(args: &EventsArgs, host: &Host) -> Result<Exit, CliError> {
    block_on(async {
        let mut client = host.connect().await?;
        let request = WatchEventsRequest {
            sandbox_id: args.sandbox.clone().unwrap_or_default(),
            history: true,
            no_follow: !args.follow,
            ..WatchEventsRequest::default()
        };
        let mut stream = client.watch_events(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            let line = match args.output {
                Output::Text => text(&response),
                Output::Json => json(&response),
            };
            if !print(&line)? {
                break;
            }
        }
        Ok(Exit::Success)
    })
}

fn text(response: &WatchEventsResponse) -> String {
    match &response.response {
        Some(Response::Denial(denial)) => format!(
            "{} {} {}\n",
            moment(denial.last_time.as_ref()),
            denial.sandbox_id,
            line(denial, denial.count)
        ),
        Some(Response::Used(used)) => format!(
            "{} {} {}\n",
            moment(used.last_time.as_ref()),
            used.sandbox_id,
            use_line(used)
        ),
        Some(Response::Lost(lost)) => format!("{} {}\n", lost.sandbox_id, lost_line(lost)),
        Some(Response::Watching(_)) | None => String::new(),
    }
}

/// To the millisecond, so that lines stand below each other.
fn moment(at: Option<&Timestamp>) -> String {
    let text = time(at);
    match (text.get(..19), at) {
        (Some(seconds), Some(at)) => format!("{seconds}.{:03}Z", at.nanos / 1_000_000),
        _ => text,
    }
}

fn json(response: &WatchEventsResponse) -> String {
    let event = match &response.response {
        Some(Response::Denial(denial)) => Event::from(denial),
        Some(Response::Used(used)) => Event::from(used),
        Some(Response::Lost(lost)) => Event::from(lost),
        Some(Response::Watching(watching)) => Event::from(watching),
        None => return String::new(),
    };
    event.line()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_equally_long() {
        let at = |nanos| {
            moment(Some(&Timestamp {
                seconds: 1_700_000_000,
                nanos,
            }))
        };
        assert_eq!(at(0), "2023-11-14T22:13:20.000Z");
        assert_eq!(at(5_999_999), "2023-11-14T22:13:20.005Z");
        assert_eq!(moment(None), "");
    }
}
