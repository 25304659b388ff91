//! The client, the same for all, inside a sandbox and outside. Prints numbers.

use std::{
    io::Read as _,
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};
use tokio_rustls::TlsConnector;

use crate::{
    origin::{ECHO, MESSAGE, STREAM, closes, field, head},
    place::MEMORY,
    secure::{PORT, REPOSITORY},
};

/// Before it is counted.
const WARM: Duration = Duration::from_millis(200);

/// The first of each kind that do not count.
const FIRST: usize = 50;

#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    what: What,
    /// The server
    #[arg(long)]
    host: String,
    /// The proxy; none: connect to the server
    #[arg(long)]
    proxy: Option<SocketAddr>,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// How long it is counted
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Over TLS
    #[arg(long)]
    secure: bool,
    /// What the server wants to hear over TLS; none: somebody else says it
    #[arg(long)]
    token: Option<String>,
    #[arg(skip)]
    connector: Option<TlsConnector>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Bytes each second, out of tunnels
    Stream,
    /// Requests each second
    Requests,
    /// Microseconds of requests, one after the other: median, 99th percentile
    RequestLatency,
    /// The same of messages in one tunnel
    MessageLatency,
    /// The same of new tunnels, each with a message
    TunnelLatency,
    /// Keeps tunnels until stdin ends
    HoldTunnels,
    /// The same of connections on which a request was made
    HoldRequests,
    /// Seconds that a clone of the repository takes
    Clone,
}

/// A connection for requests.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

pub(crate) fn main(mut arguments: Arguments) -> Result<()> {
    if arguments.secure {
        arguments.connector = Some(connector()?);
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(arguments.run())
}

impl Arguments {
    async fn run(self) -> Result<()> {
        match self.what {
            What::Stream => println!("{}", self.clone().rate(Self::stream).await?),
            What::Requests => println!("{}", self.clone().rate(Self::requests).await?),
            What::RequestLatency => {
                let mut connection = Connection::default();
                let mut times = Times::new(self.seconds);
                while times.more() {
                    connection.request(&self).await?;
                }
                times.print();
            }
            What::Clone => println!("{}", self.clones()?),
            What::MessageLatency => {
                let mut stream = self.tunnel().await?;
                let mut times = Times::new(self.seconds);
                while times.more() {
                    message(&mut stream).await?;
                }
                times.print();
            }
            What::TunnelLatency => {
                let mut times = Times::new(self.seconds);
                while times.more() {
                    let mut stream = self.tunnel().await?;
                    message(&mut stream).await?;
                    // Leaves no port waiting.
                    stream.set_zero_linger()?;
                }
                times.print();
            }
            What::HoldTunnels => {
                let mut streams = Vec::new();
                for _ in 0..self.connections {
                    let mut stream = self.tunnel().await?;
                    message(&mut stream).await?;
                    streams.push(stream);
                }
                hold()?;
            }
            What::HoldRequests => {
                let mut connections = Vec::new();
                for _ in 0..self.connections {
                    let mut connection = Connection::default();
                    connection.request(&self).await?;
                    connections.push(connection);
                }
                hold()?;
            }
        }
        Ok(())
    }

    /// Seconds that git takes.
    fn clones(&self) -> Result<f64> {
        let room = tempfile::tempdir_in(MEMORY)?;
        let mut command = Command::new("git");
        if let Some(token) = &self.token {
            let header = format!("http.extraHeader=Authorization: Bearer {token}");
            command.args(["-c", &header]);
        }
        let start = Instant::now();
        let cloned = command
            .args(["clone", "--quiet", "--bare"])
            .arg(format!("https://{}:{PORT}/{REPOSITORY}", self.host))
            .arg(room.path().join("clone"))
            .env("GIT_TERMINAL_PROMPT", "0")
            .status()?;
        let seconds = start.elapsed().as_secs_f64();
        if !cloned.success() {
            bail!("git failed");
        }
        Ok(seconds)
    }

    /// A connection for requests to the server.
    async fn wire(&self) -> Result<Box<dyn Wire>> {
        let stream = match (self.proxy, &self.connector) {
            (Some(proxy), _) => TcpStream::connect(proxy).await?,
            (None, Some(_)) => TcpStream::connect((self.host.as_str(), PORT)).await?,
            (None, None) => TcpStream::connect((self.host.as_str(), 80)).await?,
        };
        stream.set_nodelay(true)?;
        let Some(connector) = &self.connector else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone())?;
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    /// A connection to the server.
    async fn tunnel(&self) -> Result<TcpStream> {
        let Some(proxy) = self.proxy else {
            let stream = TcpStream::connect((self.host.as_str(), 443)).await?;
            stream.set_nodelay(true)?;
            return Ok(stream);
        };
        let mut stream = TcpStream::connect(proxy).await?;
        stream.set_nodelay(true)?;
        let host = &self.host;
        let ask = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
        stream.write_all(ask.as_bytes()).await?;
        let mut answer = Vec::new();
        while head(&answer).is_none() {
            if stream.read_buf(&mut answer).await? == 0 {
                bail!("the proxy ended a connection");
            }
        }
        if answer.get(8..13) != Some(b" 200 ") {
            bail!("no tunnel: {}", String::from_utf8_lossy(&answer));
        }
        Ok(stream)
    }

    /// Runs on all connections for a while; what was counted each second.
    async fn rate<F, R>(self, run: F) -> Result<f64>
    where
        F: Fn(Self, Arc<AtomicU64>) -> R,
        R: Future<Output = Result<()>> + Send + 'static,
    {
        let count = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.connections {
            tasks.spawn(run(self.clone(), count.clone()));
        }
        let measured = async {
            sleep(WARM).await;
            let (start, before) = (Instant::now(), count.load(Ordering::Relaxed));
            sleep(Duration::from_secs_f64(self.seconds)).await;
            let counted = count.load(Ordering::Relaxed) - before;
            #[expect(clippy::cast_precision_loss, reason = "it is measured, not exact")]
            let counted = counted as f64;
            counted / start.elapsed().as_secs_f64()
        };
        tokio::select! {
            rate = measured => Ok(rate),
            Some(ended) = tasks.join_next() => {
                ended??;
                bail!("a connection ended")
            }
        }
    }

    async fn stream(self, count: Arc<AtomicU64>) -> Result<()> {
        let mut stream = self.tunnel().await?;
        let mut ask = [0; MESSAGE];
        ask[0] = STREAM;
        stream.write_all(&ask).await?;
        let mut bytes = vec![0; 256 << 10];
        loop {
            match stream.read(&mut bytes).await? {
                0 => return Ok(()),
                read => count.fetch_add(read as u64, Ordering::Relaxed),
            };
        }
    }

    async fn requests(self, count: Arc<AtomicU64>) -> Result<()> {
        let mut connection = Connection::default();
        loop {
            connection.request(&self).await?;
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Believes whom everybody believes.
fn connector() -> Result<TlsConnector> {
    let file = std::env::var_os("SSL_CERT_FILE").context("no SSL_CERT_FILE")?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(PathBuf::from(file))? {
        roots.add_parsable_certificates(certificate);
    }
    let mut config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".into()];
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn message(stream: &mut TcpStream) -> Result<()> {
    let mut bytes = [ECHO; MESSAGE];
    stream.write_all(&bytes).await?;
    stream.read_exact(&mut bytes).await?;
    Ok(())
}

fn hold() -> Result<()> {
    println!("held");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Requests one after the other, on one connection if it is kept.
#[derive(Default)]
struct Connection {
    stream: Option<Box<dyn Wire>>,
    answer: Vec<u8>,
}

impl Connection {
    async fn request(&mut self, load: &Arguments) -> Result<()> {
        let (host, proxy) = (&load.host, load.proxy);
        let place = match proxy {
            Some(_) => format!("http://{host}/"),
            None => "/".into(),
        };
        let host = match load.connector {
            Some(_) => format!("{host}:{PORT}"),
            None => host.clone(),
        };
        let token = load.token.as_ref();
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let ask = format!(
            "GET {place} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\nAccept: */*\r\n{}\r\n",
            token.unwrap_or_default()
        );
        if let Some(stream) = &mut self.stream {
            match ask_for(stream, &ask, &mut self.answer).await {
                // Some proxies end connections without saying so.
                Ok(None) | Err(_) => self.stream = None,
                Ok(Some(head)) => return self.rest(head).await,
            }
        }
        let stream = self.stream.insert(load.wire().await?);
        let head = ask_for(stream, &ask, &mut self.answer).await?;
        self.rest(head.context("no answer")?).await
    }

    /// Reads the rest of an answer whose head is this long.
    async fn rest(&mut self, length: usize) -> Result<()> {
        let stream = self.stream.as_mut().context("no connection")?;
        let head = &self.answer[..length];
        if head.get(8..13) != Some(b" 200 ") {
            bail!("no answer: {}", String::from_utf8_lossy(head));
        }
        let last = closes(head);
        let body: usize = field(head, "content-length")
            .context("an answer of no length")?
            .parse()?;
        while self.answer.len() < length + body {
            if stream.read_buf(&mut self.answer).await? == 0 {
                bail!("half an answer");
            }
        }
        if last {
            self.stream = None;
        }
        Ok(())
    }
}

/// The length of an answer's head; none: there is no answer.
async fn ask_for(
    stream: &mut Box<dyn Wire>,
    ask: &str,
    answer: &mut Vec<u8>,
) -> std::io::Result<Option<usize>> {
    stream.write_all(ask.as_bytes()).await?;
    stream.flush().await?;
    answer.clear();
    loop {
        if let Some(end) = head(answer) {
            return Ok(Some(end));
        }
        if stream.read_buf(answer).await? == 0 {
            return Ok(None);
        }
    }
}

/// How long things took, one after the other.
struct Times {
    until: Instant,
    last: Option<Instant>,
    all: Vec<Duration>,
}

impl Times {
    fn new(seconds: f64) -> Self {
        Self {
            until: Instant::now() + Duration::from_secs_f64(seconds),
            last: None,
            all: Vec::new(),
        }
    }

    /// One has ended, and whether there is to be another.
    fn more(&mut self) -> bool {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.all.push(now - last);
        }
        now < self.until || self.all.len() <= FIRST
    }

    fn print(mut self) {
        self.all.drain(..FIRST);
        self.all.sort();
        let micros = |part: usize| self.all[self.all.len() * part / 100].as_secs_f64() * 1e6;
        println!("{} {}", micros(50), micros(99));
    }
}
