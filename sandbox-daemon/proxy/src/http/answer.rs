//! What the proxy itself says to a client: one sentence.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};

use super::{body::Answer, upstream::UpstreamError};
use crate::{caller::Refusal, dial::DialError, git::report};

/// Says which rule refused a request.
pub(super) const DENIED: HeaderName = HeaderName::from_static("x-sandbox-denied");

/// Why a request has no answer of its host's.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// It was refused, and that was told.
    #[error("{0}")]
    Refused(Refusal),
    /// It is a push of git's, which reads why.
    #[error("{0}")]
    Push(Refusal, report::Answer),
    /// It is the client's mistake.
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// This proxy does not do that.
    #[error("{0}")]
    Unsupported(&'static str),
    /// It is the host's.
    #[error("{0}")]
    Upstream(UpstreamError),
    /// There is no connection to it.
    #[error("{0}")]
    Unreachable(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<UpstreamError> for Failure {
    fn from(error: UpstreamError) -> Self {
        match error {
            UpstreamError::Dial(DialError::Refused(refusal)) => Self::Refused(refusal),
            other => Self::Upstream(other),
        }
    }
}

impl From<DialError> for Failure {
    fn from(error: DialError) -> Self {
        UpstreamError::from(error).into()
    }
}

impl Failure {
    fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_) => StatusCode::FORBIDDEN,
            Self::Push(_, answer) => StatusCode::from_u16(answer.status).unwrap_or_default(),
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Upstream(UpstreamError::Dial(DialError::TimedOut)) => StatusCode::GATEWAY_TIMEOUT,
            Self::Upstream(_) | Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// As a client reads it.
    #[must_use]
    pub(super) fn answer(&self) -> Response<Answer> {
        let (content_type, body) = match self {
            Self::Push(_, answer) => (answer.content_type, Bytes::from(answer.body.clone())),
            _ => (TEXT, Bytes::from(format!("{self}\n"))),
        };
        let mut response = Response::new(Either::Left(Full::new(body)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Self::Refused(refusal) | Self::Push(refusal, _) = self {
            headers.insert(DENIED, header(&refusal.rule));
        }
        response
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// A refusal where there is no request that could be answered.
#[must_use]
pub fn refused_as_bytes(refusal: &Refusal) -> Vec<u8> {
    let sentence = format!("{refusal}\n");
    let mut bytes = b"HTTP/1.1 403 Forbidden\r\nx-sandbox-denied: ".to_vec();
    bytes.extend(header(&refusal.rule).as_bytes());
    let rest = format!(
        "\r\ncontent-type: {TEXT}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{sentence}",
        sentence.len()
    );
    bytes.extend(rest.into_bytes());
    bytes
}

fn header(rule: &str) -> HeaderValue {
    let safe = rule.replace(|it: char| it.is_control(), "?");
    HeaderValue::try_from(safe).unwrap_or(HeaderValue::from_static("refused"))
}
