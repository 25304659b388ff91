//! `sandbox logs`: what a detached command has written.

use std::{
    collections::VecDeque,
    io::{self, Write},
};

use prost_types::Timestamp;
use tonic::transport::Channel;

use super::{
    args::LogsArgs,
    block_on,
    error::{CliError, Exit},
    host::Host,
    json::time,
    target, tell,
};
use crate::proto::{
    GetLogsRequest, LogChunk, Output, get_logs_response::Response,
    sandboxes_client::SandboxesClient,
};

/// Prints it.
pub fn logs(args: &LogsArgs, host: &Host) -> Result<Exit, CliError> {
    let printed = block_on(async {
        let mut client = host.connect().await?;
        let exec = target::find(&mut client, &args.id).await?.detached()?;
        let from = match args.tail {
            Some(lines) => Some(beginning(&mut client, &exec.id, lines).await?),
            None => None,
        };
        follow(&mut client, exec.id, args, from).await
    });
    match printed {
        // Whoever reads has seen enough.
        Err(CliError::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            Ok(Exit::Success)
        }
        printed => printed.map(|()| Exit::Success),
    }
}

/// Where the last lines of what there is begin, in bytes from the first ever.
async fn beginning(
    client: &mut SandboxesClient<Channel>,
    exec: &str,
    lines: usize,
) -> Result<u64, CliError> {
    let request = GetLogsRequest {
        exec_id: exec.to_owned(),
        follow: false,
    };
    let mut responses = client.get_logs(request).await?.into_inner();
    let mut ends = Ends::new(lines);
    while let Some(response) = responses.message().await? {
        match response.response {
            Some(Response::Dropped(bytes)) => ends.skip(bytes),
            Some(Response::Chunk(chunk)) => ends.read(chunk.output(), &chunk.data),
            Some(Response::Exited(_)) | None => {}
        }
    }
    Ok(ends.beginning())
}

/// Where lines begin, of the last ones.
struct Ends {
    lines: usize,
    begins: VecDeque<u64>,
    position: u64,
    /// Whether stdout, and stderr, are within a line.
    in_line: [bool; 2],
}

impl Ends {
    fn new(lines: usize) -> Self {
        Self {
            lines,
            begins: VecDeque::new(),
            position: 0,
            in_line: [false; 2],
        }
    }

    fn skip(&mut self, bytes: u64) {
        self.position += bytes;
        self.in_line = [false; 2];
    }

    fn read(&mut self, output: Output, bytes: &[u8]) {
        let index = usize::from(output == Output::Stderr);
        for byte in bytes {
            if !self.in_line[index] {
                self.begins.push_back(self.position);
                if self.begins.len() > self.lines {
                    self.begins.pop_front();
                }
            }
            self.in_line[index] = *byte != b'\n';
            self.position += 1;
        }
    }

    fn beginning(&self) -> u64 {
        self.begins.front().copied().unwrap_or(self.position)
    }
}

async fn follow(
    client: &mut SandboxesClient<Channel>,
    exec_id: String,
    args: &LogsArgs,
    from: Option<u64>,
) -> Result<(), CliError> {
    let request = GetLogsRequest {
        exec_id,
        follow: args.follow,
    };
    let mut responses = client.get_logs(request).await?.into_inner();
    let mut stdout = Lines::new(io::stdout(), args.timestamps);
    let mut stderr = Lines::new(io::stderr(), args.timestamps);
    let from = from.unwrap_or_default();
    let mut position = 0;
    while let Some(response) = responses.message().await? {
        match response.response {
            Some(Response::Chunk(LogChunk { output, data, time })) => {
                let skipped = usize::try_from(from.saturating_sub(position)).unwrap_or(usize::MAX);
                position += data.len() as u64;
                let data = data.get(skipped..).unwrap_or_default();
                let time = time.as_ref();
                let written = if output == i32::from(Output::Stderr) {
                    stderr.write(time, data)
                } else {
                    stdout.write(time, data)
                };
                written.map_err(|source| CliError::Io {
                    operation: "write the command's output",
                    source,
                })?;
            }
            Some(Response::Dropped(bytes)) => {
                position += bytes;
                if position > from {
                    tell(&format!(
                        "sandbox: {bytes} bytes of older output are not kept any more\n"
                    ));
                }
            }
            Some(Response::Exited(_)) | None => {}
        }
    }
    Ok(())
}

/// One of the outputs.
struct Lines<W> {
    to: W,
    timestamps: bool,
    in_line: bool,
}

impl<W: Write> Lines<W> {
    fn new(to: W, timestamps: bool) -> Self {
        Self {
            to,
            timestamps,
            in_line: false,
        }
    }

    fn write(&mut self, at: Option<&Timestamp>, bytes: &[u8]) -> io::Result<()> {
        if !self.timestamps {
            self.to.write_all(bytes)?;
            return self.to.flush();
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.in_line {
                write!(self.to, "{} ", time(at))?;
            }
            self.to.write_all(line)?;
            self.in_line = !line.ends_with(b"\n");
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_found_across_pieces_and_gaps() {
        // ab\n, cd\n, efg\n and last, from 5 on.
        for (lines, beginning) in [(0, 19), (1, 15), (2, 11), (3, 8), (9, 5)] {
            let mut ends = Ends::new(lines);
            ends.skip(5);
            for piece in ["ab", "\nc", "", "d\n", "ef", "g\nlast"] {
                ends.read(Output::Stdout, piece.as_bytes());
            }
            assert_eq!(ends.beginning(), beginning, "{lines}");
        }
    }

    #[test]
    fn a_line_in_pieces_has_one_time() {
        let mut text = Vec::new();
        let mut lines = Lines::new(&mut text, true);
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        lines.write(Some(&at(0)), b"one\ntw").unwrap();
        lines.write(Some(&at(1)), b"o\n\n").unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "1970-01-01T00:00:00Z one\n1970-01-01T00:00:00Z two\n1970-01-01T00:00:01Z \n"
        );
    }
}
