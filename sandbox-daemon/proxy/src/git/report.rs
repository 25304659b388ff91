//! What git is told of a push that is refused: the report that it asked for, with
//! a reason for each reference, instead of a connection that ends.

use std::collections::HashMap;

use super::{
    pkt::{self, Packet},
    receive::Head,
};

/// The type of a report.
pub const REPORT: &str = "application/x-git-receive-pack-result";

/// The type of a sentence that git prints, as `remote: ...`, of a request for
/// `info/refs` that is answered with an error.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// Why a reference may not be pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its name.
    pub reference: String,
    /// One line.
    pub reason: String,
}

/// Why a push is refused. It has at least one reference; nothing is pushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct Refusals(pub Vec<Refusal>);

/// An answer to a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200, or 403 where the client takes no report.
    pub status: u16,
    /// [`REPORT`] or [`TEXT`].
    pub content_type: &'static str,
    /// The report.
    pub body: Vec<u8>,
}

const REPORTED: u8 = 1;
const PRINTED: u8 = 2;
const FATAL: u8 = 3;

impl Refusals {
    /// What is wrong with the first one.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Some(Refusal { reference, reason }) = self.0.first() else {
            return String::new();
        };
        match self.0.len() - 1 {
            0 => format!("denied push of {reference} ({reason})"),
            1 => format!("denied push of {reference} ({reason}) and of another reference"),
            more => format!("denied push of {reference} ({reason}) and of {more} others"),
        }
    }

    /// The answer to this push.
    #[must_use]
    pub fn answer(&self, head: &Head) -> Answer {
        let wants = &head.capabilities;
        let mut body = Vec::new();
        let sentence = format!("{}\n", self.sentence());
        match (wants.side_band, wants.report_status) {
            (true, true) => {
                pkt::write_band(PRINTED, sentence.as_bytes(), &mut body);
                pkt::write_band(REPORTED, &self.report(head), &mut body);
                pkt::write(Packet::Flush, &mut body);
            }
            // Without a report git would take the push for done.
            (true, false) => pkt::write_band(FATAL, sentence.as_bytes(), &mut body),
            (false, true) => body = self.report(head),
            (false, false) => {
                return Answer {
                    status: 403,
                    content_type: TEXT,
                    body: sentence.into_bytes(),
                };
            }
        }
        Answer {
            status: 200,
            content_type: REPORT,
            body,
        }
    }

    /// A report (gitprotocol-pack, "Report Status"), which is one of version 2 too.
    fn report(&self, head: &Head) -> Vec<u8> {
        let reasons: HashMap<_, _> = self
            .0
            .iter()
            .map(|it| (it.reference.as_str(), it.reason.as_str()))
            .collect();
        let first = self.0.first().map_or("", |it| &it.reference);
        let other = format!("not pushed: {first} was refused");
        let mut report = Vec::new();
        // There was nothing to unpack; anything else would be all that git prints.
        pkt::write(Packet::Data(b"unpack ok\n"), &mut report);
        for command in &head.commands {
            let reference = command.reference.as_str();
            let reason = reasons.get(reference).copied().unwrap_or(&other);
            let line = format!("ng {reference} {reason}\n");
            pkt::write(Packet::Data(line.as_bytes()), &mut report);
        }
        pkt::write(Packet::Flush, &mut report);
        report
    }
}
