//! TLS that ends here: a client believes that it speaks with its host, so that
//! credentials can be added to its requests, and the host is made sure of.

use std::io;

use rustls::server::Acceptor;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, server::TlsStream};

use crate::{
    authority::Alpn,
    caller::{Caller, Grant, Refusal},
    channel::Operation,
    client::Client,
    dial::DialError,
    host::Host,
    http::{self, Metered, Secure, Session},
    name::Name,
    sniff::{self, First, PATIENCE},
    tls::Offer,
    tunnel::Passage,
};

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Refused(Refusal),
    #[error("{0}")]
    Unreachable(DialError),
    #[error("the client does not go on: {0}")]
    Client(#[from] io::Error),
}

impl From<DialError> for Broken {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Refused(refusal) => Self::Refused(refusal),
            other => Self::Unreachable(other),
        }
    }
}

/// Serves a client that begins TLS with a host; `dialled` is a connection to it that
/// was made already.
pub(crate) async fn serve(
    passage: Passage,
    client: Client,
    grant: Grant,
    dialled: Option<TcpStream>,
) {
    let Host::Name(name) = &passage.host else {
        // Credentials are for names.
        return client.reset();
    };
    let to = Target {
        caller: &passage.caller,
        name,
        port: passage.port,
    };
    if let Err(error) = to.serve(&passage, client, grant, dialled).await {
        tracing::debug!(%error, host = %name, "a connection over TLS ended early");
    }
}

struct Target<'a> {
    caller: &'a Caller,
    name: &'a Name,
    port: u16,
}

impl Target<'_> {
    async fn serve(
        &self,
        passage: &Passage,
        client: Client,
        grant: Grant,
        dialled: Option<TcpStream>,
    ) -> Result<(), Broken> {
        let acceptor = LazyConfigAcceptor::new(Acceptor::default(), client);
        let hello = in_time(acceptor).await?;
        let offer = offered(&hello);
        let host = self.host(passage, &grant, dialled, offer).await;
        let (host, alpn) = match host {
            Ok(connected) => connected,
            Err(error) => return self.apologise(passage, hello, offer, error).await,
        };
        let mut client = self.accept(passage, hello, alpn).await?;
        // Over HTTP/2 the library sees by itself that it is not.
        if alpn != Alpn::Http2 {
            let first = sniff::first(&mut client.stream, &mut client.ahead).await?;
            if matches!(first, First::Closed) && client.ahead.is_empty() {
                return Ok(());
            }
            if first != First::Http {
                let credentials = passage
                    .caller
                    .sandbox
                    .policy()
                    .credentials(&passage.host, self.port);
                let name = credentials.first().map_or("", |it| it.name.as_str());
                let rule = format!("no HTTP on a connection to a host of credential `{name}`");
                return Err(Broken::Refused(self.deny(rule)));
            }
        }
        let to = Secure {
            host: self.name.clone(),
            port: self.port,
            alpn,
        };
        let caller = self.caller.clone();
        let session = Session::secure(caller, passage.dialer.clone(), to, (host, grant)).await;
        http::serve(session, client, alpn == Alpn::Http2).await;
        Ok(())
    }

    /// The host, if it is the host.
    async fn host(
        &self,
        passage: &Passage,
        grant: &Grant,
        dialled: Option<TcpStream>,
        offer: Offer,
    ) -> Result<(Box<tokio_rustls::client::TlsStream<Metered>>, Alpn), Broken> {
        let dialer = &passage.dialer;
        let stream = if let Some(stream) = dialled {
            stream
        } else {
            let dialled = dialer.dial(self.caller, Operation::Connect, grant);
            dialled.await?
        };
        let metered = Metered::new(stream, grant.tally.clone());
        let to = (self.name, self.port);
        let connected = dialer.secure(self.caller, Operation::Connect, to, offer, metered);
        let (stream, alpn) = connected.await?;
        Ok((Box::new(stream), alpn))
    }

    /// Goes on with the client, as its host.
    async fn accept(
        &self,
        passage: &Passage,
        hello: StartHandshake<Client>,
        alpn: Alpn,
    ) -> Result<Client, Broken> {
        let config = passage.dialer.tls().authority.speak_for(self.name, alpn);
        let config = config.map_err(io::Error::other)?;
        let accepted: io::Result<TlsStream<Client>> = in_time(hello.into_stream(config)).await;
        match accepted {
            Ok(stream) => Ok(Client::of_tls(stream)),
            Err(error) => {
                if distrusts(&error) {
                    let rule = "the client does not trust this boundary's certificates: \
                                `intercept = false` leaves its host alone";
                    self.deny(rule.into());
                }
                Err(error.into())
            }
        }
    }

    /// Tells the client in an answer to its first request why there is no other.
    async fn apologise(
        &self,
        passage: &Passage,
        hello: StartHandshake<Client>,
        offer: Offer,
        error: Broken,
    ) -> Result<(), Broken> {
        let alpn = match offer {
            Offer { http1: true, .. } => Alpn::Http1,
            Offer { http2: true, .. } => Alpn::Http2,
            _ => Alpn::None,
        };
        let client = self.accept(passage, hello, alpn).await?;
        match &error {
            Broken::Refused(refusal) => {
                http::refuse(client, alpn == Alpn::Http2, refusal.clone()).await;
            }
            other => http::fail(client, alpn == Alpn::Http2, other.to_string()).await,
        }
        Err(error)
    }

    /// In observe mode too: nothing would be left of what is observed.
    fn deny(&self, rule: String) -> Refusal {
        self.caller
            .deny(Operation::Connect, self.name.as_str(), self.port, rule)
    }
}

async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, step)
        .await
        .unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}

/// What the client would speak inside.
fn offered(hello: &StartHandshake<Client>) -> Offer {
    let hello = hello.client_hello();
    let all: Vec<_> = hello
        .alpn()
        .into_iter()
        .flatten()
        .map(|it| Alpn::of(Some(it)))
        .collect();
    Offer {
        http1: all.contains(&Alpn::Http1),
        http2: all.contains(&Alpn::Http2),
    }
}

/// Whether a client has said that it does not believe the certificate.
fn distrusts(error: &io::Error) -> bool {
    use rustls::{AlertDescription as Alert, Error};
    let library = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    matches!(
        library,
        Some(Error::AlertReceived(
            Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown
        ))
    )
}
