//! Which host a request is for: what its parts say has to agree.

use hyper::{
    Method, Request, Uri, Version,
    body::{Body as _, Incoming},
    header,
};

use crate::{host::Host, name::NameError};

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    /// The host.
    pub(super) host: Host,
    /// Its port.
    pub(super) port: u16,
    /// Whether over TLS.
    pub(super) secure: bool,
}

/// Why it is unclear which host a request is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unclear {
    /// Well formed, but an address in some odd notation, or no name at all.
    #[error("{error}")]
    NoHost {
        /// What was given.
        host: String,
        /// With it.
        port: u16,
        /// What it is.
        error: NameError,
    },
    /// Everything else is the client's mistake.
    #[error("{0}")]
    Malformed(&'static str),
}

/// A request that came to the proxy as such says it in its first line, over
/// HTTP/2 in its pseudo headers; one on a connection to a host says it in `Host`.
///
/// # Errors
/// It is unclear.
pub(super) fn of_request(
    request: &Request<Incoming>,
    bound: Option<&Authority>,
) -> Result<Authority, Unclear> {
    check_framing(request)?;
    let uri = request.uri();
    let connect = request.method() == Method::CONNECT;
    let secure = bound.is_some_and(|bound| bound.secure);
    let default = (!connect).then(|| default_port(secure));
    match (uri.scheme_str(), secure) {
        (None, _) | (Some("http"), false) | (Some("https"), true) => {}
        (Some("https"), false) => {
            return Err(Unclear::Malformed(
                "https is reached by CONNECT, not by asking for an https address",
            ));
        }
        (Some("http"), true) => {
            return Err(Unclear::Malformed(
                "an http address on a connection over TLS",
            ));
        }
        (Some(_), _) => return Err(Unclear::Malformed("not an http address")),
    }
    let line = uri
        .authority()
        .map(|it| parse(it.as_str(), default, secure))
        .transpose()?;
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next().map(|value| {
        let text = value
            .to_str()
            .map_err(|_| Unclear::Malformed("a Host that is no host name"))?;
        // For CONNECT some leave the port out.
        let default = line.as_ref().filter(|_| connect).map(|it| it.port);
        parse(text, default.or(Some(default_port(secure))), secure)
    });
    if hosts.next().is_some() {
        return Err(Unclear::Malformed("more than one Host"));
    }
    match (line, host.transpose()?) {
        (Some(line), Some(host)) if line != host => Err(Unclear::Malformed(
            "Host is not the host of the requested address",
        )),
        (Some(_), None) if request.version() == Version::HTTP_11 && !connect => {
            Err(Unclear::Malformed("no Host"))
        }
        (Some(line), _) => Ok(line),
        (None, Some(host)) if bound.is_some() => Ok(host),
        (None, None) if bound.is_some() => Err(Unclear::Malformed("no Host")),
        (None, _) => Err(Unclear::Malformed(
            "a request to a proxy has to say `http://host/path`",
        )),
    }
}

/// hyper reads one message where two headers say where it ends, in the one way
/// that RFC 9112 has for it, and passes nothing of the other on.
fn check_framing(request: &Request<Incoming>) -> Result<(), Unclear> {
    let headers = request.headers();
    if headers.get_all(header::CONTENT_LENGTH).iter().count() > 1 {
        return Err(Unclear::Malformed("more than one Content-Length"));
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(_), _) if headers.contains_key(header::CONTENT_LENGTH) => Err(Unclear::Malformed(
            "both Content-Length and Transfer-Encoding",
        )),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(Unclear::Malformed("a Transfer-Encoding other than chunked")),
    }?;
    if request.method() == Method::TRACE && !request.body().is_end_stream() {
        return Err(Unclear::Malformed("TRACE with a body"));
    }
    Ok(())
}

/// `host`, `host:port`; without a default the port has to be there.
fn parse(text: &str, default: Option<u16>, secure: bool) -> Result<Authority, Unclear> {
    if text.contains('@') {
        return Err(Unclear::Malformed("a user name before the host"));
    }
    match Host::authority(text) {
        Ok((host, port)) => Ok(Authority {
            host,
            port: port.or(default).ok_or(Unclear::Malformed("no port"))?,
            secure,
        }),
        Err(error) => {
            let (host, port) = match text.rsplit_once(':') {
                Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
                _ => (text, default),
            };
            Err(Unclear::NoHost {
                host: host.into(),
                port: port.unwrap_or(0),
                error,
            })
        }
    }
}

impl Authority {
    /// As `Host` has it.
    #[must_use]
    pub(super) fn text(&self) -> String {
        match self.port {
            port if port == default_port(self.secure) => self.host.to_string(),
            port => format!("{}:{port}", self.host),
        }
    }
}

fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

/// What a server is asked for: the address without its host.
pub(super) fn path(uri: &Uri, method: &Method) -> Uri {
    let path = match uri.path_and_query() {
        // RFC 9112, 3.2.4
        Some(path) if method == Method::OPTIONS && uri.authority().is_some() && path == "/" => "*",
        Some(path) => path.as_str(),
        None => "/",
    };
    path.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(String, u16), Unclear> {
        parse(text, Some(80), false).map(|it| (it.host.to_string(), it.port))
    }

    #[test]
    fn a_host_has_a_name_and_perhaps_a_port() {
        let name = || "a.example".to_owned();
        assert_eq!(parsed("A.Example."), Ok((name(), 80)));
        assert_eq!(parsed("a.example:8080"), Ok((name(), 8080)));
        for text in ["a.example:", "a.example:0", "a.example:80:80", "a b", ""] {
            assert!(
                matches!(parsed(text), Err(Unclear::NoHost { .. })),
                "{text}"
            );
        }
        assert!(matches!(parsed("u@a.example"), Err(Unclear::Malformed(_))));
        assert!(parse("a.example", None, false).is_err());
        assert!(parse("a.example:443", None, false).is_ok());
    }

    #[test]
    fn addresses_in_odd_notations_are_no_hosts() {
        for host in [
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "[::ffff:127.0.0.1]",
            "[fe80::1%25eth0]",
            "192.0.2.1.",
        ] {
            let error = parsed(&format!("{host}:80")).unwrap_err();
            let expected = Unclear::NoHost {
                host: host.into(),
                port: 80,
                error: NameError::Address,
            };
            assert_eq!(error, expected);
        }
    }
}
