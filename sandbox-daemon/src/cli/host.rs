//! Where the daemon is, and the connection to it.

use std::{error::Error as _, fmt, io, path::PathBuf, str::FromStr};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::error::CliError;
use crate::proto::sandboxes_client::SandboxesClient;

/// The socket's path, written `unix:///PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host(PathBuf);

impl Default for Host {
    fn default() -> Self {
        Self(PathBuf::from("/run/sandboxd/sandboxd.sock"))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

impl FromStr for Host {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => Ok(Self(PathBuf::from(path))),
            _ => Err("the daemon is named as `unix:///PATH`"),
        }
    }
}

impl Host {
    /// Connects, so that a daemon that does not run is noticed here.
    pub async fn connect(&self) -> Result<SandboxesClient<Channel>, CliError> {
        let path = self.0.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        // The authority is never resolved: the connector knows the way.
        Endpoint::from_static("http://sandboxd")
            .connect_with_connector(connector)
            .await
            .map(SandboxesClient::new)
            .map_err(|error| CliError::Unreachable {
                socket: self.0.clone(),
                reason: reason(&error),
            })
    }
}

/// The innermost cause, in the words of a person.
fn reason(error: &tonic::transport::Error) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                io::ErrorKind::NotFound => "no such file".to_owned(),
                io::ErrorKind::ConnectionRefused => "nobody listens there".to_owned(),
                io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
                _ => error.to_string(),
            };
        }
        cause = error.source();
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_absolute_unix_uri() {
        assert_eq!("unix:///run/x.sock".parse(), Ok(Host("/run/x.sock".into())));
        for wrong in ["/run/x.sock", "unix://run/x.sock", "https://host", ""] {
            assert!(wrong.parse::<Host>().is_err(), "{wrong}");
        }
        let host = Host::default();
        assert_eq!(host.to_string().parse(), Ok(host));
    }
}
