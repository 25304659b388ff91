//! The requests of one client connection.

use std::{sync::Arc, time::Duration};

use http_body_util::{Either, Full};
use hyper::{
    Method, Request, Response, StatusCode, Version,
    body::Incoming,
    header::{CONTENT_LENGTH, EXPECT, UPGRADE},
    http::request::Parts,
    upgrade::{self, OnUpgrade},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::Notify, time::timeout};
use tokio_rustls::client::TlsStream;

use super::{
    answer::Failure,
    authority::{self, Authority, Unclear},
    body::{self, Answer, Gate, Leased, Sent},
    credentials::Outgoing,
    echo::Echo,
    headers,
    metered::Metered,
    push,
    upstream::{Upstreams, Wire},
};
use crate::{
    authority::Alpn,
    caller::{Caller, Grant},
    channel::Operation,
    client::Client,
    dial::Dialer,
    ledger::Tally,
    name::Name,
    tunnel::{self, Passage},
};

/// How long a host may take to say that it wants a body. Some never do (RFC 9110,
/// 10.1.1).
const CONTINUE: Duration = Duration::from_secs(1);

/// One client connection.
#[derive(Debug)]
pub struct Session {
    caller: Caller,
    dialer: Dialer,
    /// The host to which the client believes itself connected; none: it knows
    /// that it speaks to a proxy.
    bound: Option<Authority>,
    upstreams: Upstreams,
}

/// A host that is reached over TLS, which ends here.
#[derive(Debug)]
pub struct Secure {
    /// Its name.
    pub host: Name,
    /// Its port.
    pub port: u16,
    /// What it speaks.
    pub alpn: Alpn,
}

impl Session {
    /// For a client that uses a proxy.
    #[must_use]
    pub fn explicit(caller: Caller, dialer: Dialer) -> Self {
        Self {
            caller,
            dialer,
            bound: None,
            upstreams: Upstreams::default(),
        }
    }

    /// For a client that is connected to a host, perhaps really.
    pub async fn bound(passage: Passage, host: Option<(TcpStream, Grant)>) -> Self {
        let Passage {
            caller,
            dialer,
            host: to,
            port,
        } = passage;
        let upstreams = Upstreams::default();
        if let Some((host, grant)) = host {
            let host = Metered::new(host, grant.tally.clone());
            if let Err(error) = upstreams.add(Wire::Left(host), grant).await {
                tracing::debug!(%error, "a connection that was made cannot be used");
            }
        }
        Self {
            caller,
            dialer,
            bound: Some(Authority {
                host: to,
                port,
                secure: false,
            }),
            upstreams,
        }
    }

    /// For a client whose TLS ends here, with the connection to its host.
    pub async fn secure(
        caller: Caller,
        dialer: Dialer,
        to: Secure,
        host: (Box<TlsStream<Metered>>, Grant),
    ) -> Self {
        let Secure {
            host: name,
            port,
            alpn,
        } = to;
        let upstreams = Upstreams::secure(name.clone(), alpn);
        let (host, grant) = host;
        if let Err(error) = upstreams.add(Wire::Right(host), grant).await {
            tracing::debug!(%error, "a connection that was made cannot be used");
        }
        Self {
            caller,
            dialer,
            bound: Some(Authority {
                host: name.into(),
                port,
                secure: true,
            }),
            upstreams,
        }
    }

    /// Answers a request.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Answer> {
        let answered = if request.method() == Method::CONNECT {
            self.connect(request).await
        } else {
            self.forward(request).await
        };
        answered.unwrap_or_else(|failure| failure.answer())
    }

    fn authority(
        &self,
        operation: Operation,
        request: &Request<Incoming>,
    ) -> Result<Authority, Failure> {
        match authority::of_request(request, self.bound.as_ref()) {
            Ok(authority) => Ok(authority),
            Err(Unclear::Malformed(sentence)) => Err(Failure::Malformed(sentence)),
            // In observe mode too: it is unclear where to go.
            Err(Unclear::NoHost { host, port, error }) => {
                let rule = error.to_string();
                Err(self.caller.deny(operation, &host, port, rule).into())
            }
        }
    }

    /// Makes a tunnel. The connection comes first: whoever asks reads why there
    /// is none.
    async fn connect(&self, request: Request<Incoming>) -> Result<Response<Answer>, Failure> {
        let Authority { host: to, port, .. } = self.authority(Operation::Connect, &request)?;
        if self.bound.is_some() {
            let rule = "CONNECT on a connection to a host";
            // In observe mode too: a host is no proxy.
            let host = to.to_string();
            let refusal = self.caller.deny(Operation::Connect, &host, port, rule);
            return Err(refusal.into());
        }
        let grant = self.caller.reach(Operation::Connect, &to, port)?;
        let host = self
            .dialer
            .dial(&self.caller, Operation::Connect, &grant)
            .await?;
        let passage = Passage {
            caller: self.caller.clone(),
            dialer: self.dialer.clone(),
            host: to,
            port,
        };
        tokio::spawn(async move {
            if let Ok(upgraded) = upgrade::on(request).await {
                let client = Client::of_upgraded(upgraded);
                let caller = passage.caller.clone();
                caller.alive(passage.asked_for(client, host, grant)).await;
            }
        });
        Ok(Response::new(Either::Left(Full::default())))
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Answer>, Failure> {
        let asked = self.authority(Operation::Request, &request)?;
        let authority = match &self.bound {
            Some(bound) if *bound != asked => {
                let rule = format!("a request on a connection to {}:{}", bound.host, bound.port);
                let host = asked.host.to_string();
                let operation = Operation::Request;
                if bound.secure {
                    // In observe mode too: credentials go to their own host alone.
                    return Err(self.caller.deny(operation, &host, asked.port, rule).into());
                }
                self.caller.refuse(operation, &host, asked.port, rule)?;
                bound
            }
            _ => &asked,
        };
        let grant = self
            .caller
            .reach(Operation::Request, &authority.host, authority.port)?;
        if authority.secure && !headers::is_websocket(request.headers()) {
            // What is spoken then could be more requests, with what this one has.
            request.headers_mut().remove(UPGRADE);
        }
        let upgrades =
            request.version() == Version::HTTP_11 && headers::upgrade(request.headers()).is_some();
        let client = upgrades.then(|| upgrade::on(&mut request));
        let (request, echoes) = self.admit(request, authority, &asked).await?;
        let stopped = request.body().stopped();
        let sent = self
            .upstreams
            .send(&self.caller, &self.dialer, &grant, request)
            .await;
        let (response, lease) =
            sent.map_err(|error| stopped.take().unwrap_or_else(|| Failure::from(error)))?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let client = client.ok_or(Failure::Unsupported("the host changed the protocol"))?;
            return Ok(switch(self.caller.clone(), client, response, grant.tally));
        }
        let (mut parts, body) = response.into_parts();
        parts.headers = headers::for_client(&parts.headers, parts.status);
        for echo in &echoes {
            echo.hide(&mut parts.headers);
        }
        Ok(Response::from_parts(
            parts,
            Either::Right(Leased::new(body, lease)),
        ))
    }

    /// A request as the host may have it, and what its answer may repeat.
    async fn admit(
        &self,
        request: Request<Incoming>,
        to: &Authority,
        asked: &Authority,
    ) -> Result<(Request<Sent>, Vec<Echo>), Failure> {
        let policy = self.caller.sandbox.policy();
        let outgoing = Outgoing {
            caller: &self.caller,
            policy: &policy,
            to,
        };
        let (mut parts, body) = request.into_parts();
        parts.uri = authority::path(&parts.uri, &parts.method);
        let mut admitted = match outgoing.admit(&mut parts) {
            Ok(admitted) => admitted,
            Err(failure) => {
                body::leave(body);
                return Err(failure);
            }
        };
        let request = if let Some((rule, repository)) = admitted.push {
            let target = push::Target {
                caller: self.caller.clone(),
                host: to.host.to_string(),
                port: to.port,
                repository,
            };
            let push = target.read(&rule, &parts.headers, body).await?;
            for used in &mut admitted.uses {
                (used.refs, used.further_refs) = push.references();
            }
            // Its end may be held back.
            for name in [EXPECT, CONTENT_LENGTH] {
                parts.headers.remove(name);
            }
            translate(parts, Sent::push(push), asked)
        } else {
            let (body, wanted) = awaited(&parts, body);
            let mut request = translate(parts, body, asked);
            if let Some(wanted) = wanted {
                notify(&mut request, wanted);
            }
            request
        };
        for used in admitted.uses {
            self.caller.used(used);
        }
        let (caller, to) = (self.caller.clone(), to.clone());
        let object = move |credential: &str| {
            let rule = format!("the dummy of `{credential}` in a body");
            let told = caller.refuse(Operation::Request, &to.host.to_string(), to.port, rule);
            told.err()
        };
        let search = outgoing.search();
        let request = request.map(|body| body.watched(search, Box::new(object)));
        Ok((request, admitted.echoes))
    }
}

/// As the host gets it.
fn translate(mut parts: Parts, body: Sent, asked: &Authority) -> Request<Sent> {
    parts.headers = headers::for_host(&parts.headers, parts.version, asked);
    parts.version = Version::HTTP_11;
    Request::from_parts(parts, body)
}

/// A body that goes out when the host wants it, if the client waits for that.
fn awaited(parts: &Parts, body: Incoming) -> (Sent, Option<Arc<Notify>>) {
    let waits = parts.version != Version::HTTP_10
        && parts
            .headers
            .get(EXPECT)
            .is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let wanted = waits.then(|| Arc::new(Notify::new()));
    let gate = wanted.clone().map(|wanted| {
        // Reading the body is what makes hyper say 100 to the client.
        let gate = async move { drop(timeout(CONTINUE, wanted.notified()).await) };
        Box::pin(gate) as Gate
    });
    (Sent::new(body, gate), wanted)
}

fn notify(request: &mut Request<Sent>, wanted: Arc<Notify>) {
    hyper::ext::on_informational(request, move |interim| {
        if interim.status() == StatusCode::CONTINUE {
            wanted.notify_one();
        }
    });
}

/// From here on there is no HTTP, but bytes in both directions.
fn switch(
    caller: Caller,
    client: OnUpgrade,
    mut response: Response<Incoming>,
    tally: Arc<Tally>,
) -> Response<Answer> {
    let host = upgrade::on(&mut response);
    tokio::spawn(async move {
        let (Ok(client), Ok(host)) = tokio::join!(client, host) else {
            return;
        };
        if let Ok(host) = host.downcast::<TokioIo<Wire>>() {
            let client = Client::of_upgraded(client);
            let joined = async {
                match host.io.into_inner() {
                    Wire::Left(stream) => {
                        tunnel::joined(client, stream.host, &host.read_buf, &tally).await;
                    }
                    Wire::Right(stream) => {
                        tunnel::joined_secure(client, stream, &host.read_buf).await;
                    }
                }
            };
            caller.alive(joined).await;
        }
    });
    let (mut parts, _) = response.into_parts();
    parts.headers = headers::for_client(&parts.headers, parts.status);
    Response::from_parts(parts, Either::Left(Full::default()))
}
