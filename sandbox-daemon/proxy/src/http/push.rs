//! Pushes of git: what they do is read before the host gets any of it, and what
//! they could force before it gets all.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap,
    body::{Body, Frame, Incoming},
    header::{CONTENT_ENCODING, HeaderValue},
};
use tokio::{sync::OwnedSemaphorePermit, task::yield_now};

use super::{
    answer::Failure,
    body::{self, BodyError},
};
use crate::{
    caller::{Caller, Refusal},
    channel::Operation,
    credential::GitRule,
    git::{
        pack::PackCheck,
        receive::{Head, HeadReader},
        report::{Answer, Refusals},
    },
};

/// How much of a pack is looked into at a time; others come to their turn between. It
/// may be a thousand times as much when it is inflated.
const PIECE: usize = 4 << 10;

/// References that are told of a push. Each has at most 1 KiB.
const MAX_TOLD: usize = 64;

/// Where a push goes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) caller: Caller,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) repository: String,
}

/// A push that the host gets.
pub(super) struct Push {
    target: Target,
    head: Head,
    /// What it gets next.
    ready: VecDeque<Bytes>,
    /// What of it has come, and was not looked into.
    unread: Bytes,
    /// None: it has ended.
    rest: Option<Incoming>,
    /// None: it forces nothing.
    check: Option<Looking>,
    /// Its end is not held back: it is only told what it forces.
    observed: bool,
}

/// A pack that is looked into, and the room for that.
struct Looking {
    pack: Box<PackCheck>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Target {
    /// Reads what a push does.
    ///
    /// # Errors
    /// It does something that it may not, or it is not clear what; git is told in
    /// its own words.
    pub(super) async fn read(
        self,
        rule: &GitRule,
        headers: &HeaderMap,
        mut body: Incoming,
    ) -> Result<Push, Failure> {
        let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
        if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
            body::leave(body);
            return Err(self.deny("a compressed push").into());
        }
        let room = self.caller.looks_into_push().await;
        let head = match self.head(&mut body).await {
            Ok(head) => head,
            Err(failure) => {
                body::leave(body);
                return Err(failure);
            }
        };
        if let Err(refusals) = rule.decide(&head)
            && let Some((refusal, answer)) = self.refuse(&refusals, &head)
        {
            drop(room);
            // Git reads no answer before it has said everything.
            drain(body).await;
            return Err(Failure::Push(refusal, answer));
        }
        let check = rule.asks_for_pack(&head).then(|| Looking {
            pack: Box::new(PackCheck::new(&head)),
            _room: room,
        });
        let mut push = Push {
            observed: self.caller.sandbox.policy().observes(),
            target: self,
            ready: VecDeque::from([head.raw.clone()]),
            unread: head.rest.clone(),
            rest: Some(body),
            check,
            head,
        };
        while !push.unread.is_empty() {
            if let Err(failure) = push.take() {
                if let Some(body) = push.rest.take() {
                    drain(body).await;
                }
                return Err(failure);
            }
            yield_now().await;
        }
        Ok(push)
    }

    async fn head(&self, body: &mut Incoming) -> Result<Head, Failure> {
        let mut reader = HeadReader::default();
        while let Some(frame) = body.frame().await {
            let broken = |_| Failure::Malformed("the request broke off");
            let Ok(data) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            match reader.feed(&data) {
                Ok(Some(head)) => return Ok(head),
                Ok(None) => {}
                Err(error) => return Err(self.deny(&error.to_string()).into()),
            }
        }
        Err(self.deny("a push that ends early").into())
    }

    /// Tells of a refusal; none: it is let through all the same.
    fn refuse(&self, refusals: &Refusals, head: &Head) -> Option<(Refusal, Answer)> {
        let first = refusals.0.first()?;
        let mut rule = format!(
            "push of {} to {}: {}",
            first.reference, self.repository, first.reason
        );
        if refusals.0.len() > 1 {
            rule = format!("{rule}, and of {} more", refusals.0.len() - 1);
        }
        let told = self
            .caller
            .refuse(Operation::Request, &self.host, self.port, rule);
        told.err().map(|refusal| (refusal, refusals.answer(head)))
    }

    /// What nobody understands goes nowhere, in observe mode neither.
    fn deny(&self, rule: &str) -> Refusal {
        self.caller
            .deny(Operation::Request, &self.host, self.port, rule)
    }
}

impl Push {
    /// The references that it is about, as far as they are told: the first ones, and
    /// how many more there are.
    pub(super) fn references(&self) -> (Vec<String>, u32) {
        let commands = &self.head.commands;
        let told = commands.iter().take(MAX_TOLD);
        let told: Vec<_> = told.map(|it| it.reference.clone()).collect();
        let further = u32::try_from(commands.len() - told.len()).unwrap_or(u32::MAX);
        (told, further)
    }

    /// Takes what comes next, or some of it.
    fn take(&mut self) -> Result<(), Failure> {
        let Some(check) = &mut self.check else {
            self.ready.push_back(mem::take(&mut self.unread));
            return Ok(());
        };
        let bytes = self.unread.split_to(self.unread.len().min(PIECE));
        if self.observed {
            self.ready.push_back(bytes.clone());
        }
        let checked = check.pack.feed(bytes);
        let shown = check.pack.is_shown();
        self.checked(checked)?;
        if shown {
            self.check = None;
        }
        Ok(())
    }

    /// Nothing more comes.
    fn end(&mut self) -> Result<(), Failure> {
        self.rest = None;
        match self.check.take() {
            Some(check) => self.checked(check.pack.finish()),
            None => Ok(()),
        }
    }

    fn checked(&mut self, checked: Result<Vec<Bytes>, Refusals>) -> Result<(), Failure> {
        match checked {
            Ok(released) if !self.observed => self.ready.extend(released),
            Ok(_) => {}
            Err(refusals) => {
                self.check = None;
                if let Some((refusal, answer)) = self.target.refuse(&refusals, &self.head) {
                    return Err(Failure::Push(refusal, answer));
                }
            }
        }
        Ok(())
    }

    /// What the host gets next; none: that was all. Where it fails the host may not
    /// take what it has for all.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                if bytes.is_empty() {
                    continue;
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(rest) = &mut self.rest else {
                return Poll::Ready(None);
            };
            let looks = self.check.is_some();
            let taken = if self.unread.is_empty() {
                match ready!(Pin::new(rest).poll_frame(context)) {
                    Some(Ok(frame)) => {
                        self.unread = frame.into_data().unwrap_or_default();
                        continue;
                    }
                    Some(Err(error)) => {
                        return Poll::Ready(Some(Err(Broken::Client(error.into()))));
                    }
                    None => self.end(),
                }
            } else {
                self.take()
            };
            if let Err(failure) = taken {
                if let Some(body) = self.rest.take() {
                    tokio::spawn(drain(body));
                }
                return Poll::Ready(Some(Err(Broken::Refused(failure))));
            }
            if looks && self.rest.is_some() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

/// Why the host does not get all.
pub(super) enum Broken {
    /// The client's connection.
    Client(BodyError),
    /// It may not.
    Refused(Failure),
}

/// Takes the rest of a request that goes nowhere.
async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}
