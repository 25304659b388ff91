//! Takes connections: who makes one, and for what, comes from the kernel.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use sandbox_common::{Asked, DNS_PORT, PROXY_ADDRESS, PROXY_PORT};
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    net::{TcpListener, TcpStream, UdpSocket},
    time::{sleep, timeout},
};

use crate::{
    caller::{Caller, Sandboxes},
    channel::Operation,
    client::Client,
    dial::Dialer,
    dns,
    flows::{Flows, TCP, UDP},
    http,
    ledger::Outbox,
    sniff::{self, First},
    tunnel::{self, Passage},
};

/// How long after an error of accept(2) the next one is tried: there may be no
/// descriptors for a while.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the end of a connection whose flow is forgotten may be behind.
const BEHIND: Duration = Duration::from_millis(20);

/// How long a stranger may take to say something before it is told.
const STRANGER: Duration = Duration::from_secs(1);

/// Tells who is at the other end.
pub trait Identify: Send + Sync + 'static {
    /// Who sends from this address; none: nobody who is in a sandbox.
    ///
    /// # Errors
    /// It cannot be found out.
    fn find(&self, protocol: u16, from: SocketAddr) -> io::Result<Option<Asked>>;
}

impl Identify for Flows {
    fn find(&self, protocol: u16, from: SocketAddr) -> io::Result<Option<Asked>> {
        Self::find(self, protocol, from)
    }
}

/// What every connection needs.
#[derive(Debug)]
pub struct Server<I> {
    /// Who is who.
    pub identify: I,
    /// What they may.
    pub sandboxes: Arc<Sandboxes>,
    /// Where it is told.
    pub outbox: Arc<Outbox>,
    /// Connects to hosts.
    pub dialer: Dialer,
    /// Answers for names.
    pub dns: Arc<dns::Server>,
}

impl<I: Identify> Server<I> {
    /// Serves what connects here, for ever.
    pub async fn tcp(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (stream, from) = next(|| listener.accept()).await;
            tokio::spawn(self.clone().connection(stream, from));
        }
    }

    /// Answers queries that come here, for ever.
    pub async fn udp(self: Arc<Self>, socket: UdpSocket) {
        let who = |from| match self.identify.find(UDP, from) {
            Ok(Some(asked)) => self.sandboxes.caller(&asked),
            Ok(None) => {
                self.outbox.stranger(from);
                None
            }
            Err(error) => {
                tracing::error!(%error, "the flows cannot be read");
                None
            }
        };
        self.dns.clone().serve_udp(Arc::new(socket), who).await;
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let asked = match self.identify.find(TCP, from) {
            Ok(asked) => asked,
            Err(error) => {
                tracing::error!(%error, "the flows cannot be read");
                return;
            }
        };
        let Some(asked) = asked else {
            return Box::pin(self.stranger(stream, from)).await;
        };
        let Some(caller) = self.sandboxes.caller(&asked) else {
            // Its sandbox is being made, or has gone: no policy, no way out.
            return Client::new(stream).reset();
        };
        match caller.admitted() {
            Ok(caller) => drop(caller.alive(self.serve(&caller, stream)).await),
            Err(_) => Client::new(stream).reset(),
        }
    }

    async fn serve(&self, caller: &Caller, stream: TcpStream) {
        // Answers are small, and nobody gains by waiting for more.
        let _ = stream.set_nodelay(true);
        let proxy = SocketAddr::new(PROXY_ADDRESS.into(), PROXY_PORT);
        if matches!(caller.asked.port(), 53 | 80 | 443 | PROXY_PORT) {
            // The client speaks first, and until it does there is nothing but
            // its socket. Boxed: so is what comes then.
            let _ = stream.readable().await;
        }
        if caller.asked == proxy {
            Box::pin(self.explicit(caller.clone(), stream)).await;
        } else if caller.asked.port() == DNS_PORT {
            if let Err(error) = Box::pin(self.dns.serve_tcp(stream, caller)).await {
                tracing::debug!(%error, "a connection for names broke off");
            }
        } else {
            Box::pin(self.transparent(caller.clone(), stream)).await;
        }
    }

    async fn explicit(&self, caller: Caller, stream: TcpStream) {
        let mut client = Client::new(stream);
        let Ok(first) = sniff::first(&mut client.stream, &mut client.ahead).await else {
            return;
        };
        let http2 = match first {
            First::Http2 => true,
            // What is no HTTP/1 is told so by the HTTP code.
            First::Http | First::Other | First::Closed | First::Slow => false,
            First::Tls(_) | First::BadTls(_) => {
                let host = caller.asked.ip().to_string();
                let rule = "TLS to the proxy itself";
                let refusal = caller.deny(Operation::Connect, &host, PROXY_PORT, rule);
                return tunnel::refuse(client, &first, &refusal).await;
            }
        };
        let session = http::Session::explicit(caller, self.dialer.clone());
        http::serve(session, client, http2).await;
    }

    async fn transparent(&self, caller: Caller, stream: TcpStream) {
        let address = caller.asked.ip().to_canonical();
        let port = caller.asked.port();
        let client = Client::new(stream);
        let name = match address {
            IpAddr::V4(address) => caller.sandbox.name(address),
            IpAddr::V6(_) => None,
        };
        let Some(name) = name else {
            let rule = "an address that stands for no name";
            // In observe mode too: there is nowhere to go.
            caller.deny(Operation::Connect, &address.to_string(), port, rule);
            return client.reset();
        };
        let passage = Passage {
            caller,
            dialer: self.dialer.clone(),
            host: name.into(),
            port,
        };
        passage.transparent(client).await;
    }

    /// Somebody from outside; or from inside, but gone already, and then its flow
    /// is forgotten.
    async fn stranger(&self, mut stream: TcpStream, from: SocketAddr) {
        sleep(BEHIND).await;
        if let Ok(Ok(ready)) = timeout(Duration::ZERO, stream.ready(Interest::READABLE)).await
            && ready.is_read_closed()
        {
            return;
        }
        self.outbox.stranger(from);
        // A reset would take the words away.
        let words = async {
            stream.readable().await?;
            let mut said = [0; 4096];
            let _ = stream.try_read(&mut said);
            stream.write_all(OUTSIDE).await
        };
        if !matches!(timeout(STRANGER, words).await, Ok(Ok(()))) {
            Client::new(stream).reset();
        }
    }
}

/// The next connection, however long there are no descriptors for one.
async fn next<A>(accept: impl Fn() -> A) -> (TcpStream, SocketAddr)
where
    A: Future<Output = io::Result<(TcpStream, SocketAddr)>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be taken");
                sleep(PAUSE).await;
            }
        }
    }
}

const OUTSIDE: &[u8] = b"HTTP/1.1 403 Forbidden\r\n\
    x-sandbox-denied: not in a sandbox\r\n\
    content-type: text/plain; charset=utf-8\r\n\
    content-length: 49\r\n\
    connection: close\r\n\r\n\
    denied: only processes in a sandbox may use this\n";

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    async fn accept_after(errors: &[i32]) -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (begin, tried) = (Instant::now(), Cell::new(0));
        let accept = async || {
            let attempt = tried.replace(tried.get() + 1);
            if let Some(error) = errors.get(attempt) {
                return Err(io::Error::from_raw_os_error(*error));
            }
            let stream = TcpStream::connect(address).await?;
            Ok((stream, address))
        };
        next(accept).await;
        assert_eq!(tried.get(), errors.len() + 1);
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn without_descriptors_the_next_connection_is_waited_for_and_not_spun_on() {
        let waited = accept_after(&[libc::EMFILE, libc::ENFILE, libc::ENOMEM]).await;
        assert!(waited >= PAUSE * 3, "{waited:?}");
        let waited = accept_after(&[libc::ECONNABORTED; 3]).await;
        assert!(waited < PAUSE, "{waited:?}");
    }
}
