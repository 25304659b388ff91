//! The server again, over TLS and for those who have the token alone: small
//! answers, and a repository of git's.

use std::{
    fs,
    io::{self, Read as _},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
        BufReader,
    },
    net::{TcpListener, TcpStream},
    process::Command,
};
use tokio_rustls::TlsAcceptor;

use crate::origin::{ANSWER, field, head};

/// Where it listens.
pub(crate) const PORT: u16 = 8443;

/// What it wants to hear from everybody.
pub(crate) const TOKEN: &str = "tok_MeasuredAndWorthNothing0123456789";

/// Under its root.
pub(crate) const REPOSITORY: &str = "bench.git";

/// What is in it: 200 MB.
const FILES: u64 = 800;
const BYTES: u64 = 250_000;

/// Bytes of an answer of git's that are sent at a time, after their number.
const CHUNK: usize = 64 << 10;
const SIZE: usize = 10;

/// Its authority and its repository.
pub(crate) struct Files<'a>(pub(crate) &'a Path);

impl Files<'_> {
    /// The certificate of its authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.0.join("authority.pem")
    }

    fn certificate(&self) -> PathBuf {
        self.0.join("server.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.join("server.key")
    }

    /// Makes an authority, and a certificate for this name.
    pub(crate) fn certify(&self, name: &str) -> Result<()> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let server = CertificateParams::new([name.to_owned()])?.signed_by(&key, &authority)?;
        fs::write(self.authority(), authority.pem())?;
        fs::write(self.certificate(), server.pem())?;
        fs::write(self.key(), key.serialize_pem())?;
        Ok(())
    }

    fn acceptor(&self) -> Result<TlsAcceptor> {
        let chain = vec![CertificateDer::from_pem_file(self.certificate())?];
        let key = PrivateKeyDer::from_pem_file(self.key())?;
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".into()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// The server.
pub(crate) struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    root: Arc<Path>,
}

impl Server {
    pub(crate) async fn bind(files: &Path) -> Result<Self> {
        Ok(Self {
            listener: TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?,
            acceptor: Files(files).acceptor()?,
            root: files.into(),
        })
    }

    pub(crate) async fn accept(&self) -> io::Result<()> {
        let (stream, _) = self.listener.accept().await?;
        let (acceptor, root) = (self.acceptor.clone(), self.root.clone());
        tokio::spawn(async move {
            if let Err(error) = answer(&acceptor, &root, stream).await {
                eprintln!("server: {error:#}");
            }
        });
        Ok(())
    }
}

async fn answer(acceptor: &TlsAcceptor, root: &Path, stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let Ok(mut stream) = acceptor.accept(stream).await else {
        // Somebody looks whether there is a server.
        return Ok(());
    };
    let mut bytes = Vec::new();
    loop {
        let Some(end) = head(&bytes) else {
            match stream.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => continue,
            }
        };
        let rest = bytes.split_off(end);
        let request = std::mem::replace(&mut bytes, rest);
        let value = field(&request, "authorization").unwrap_or_default();
        if value.strip_prefix("Bearer ") != Some(TOKEN) {
            let refused = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(refused.as_bytes()).await?;
        } else if request.starts_with(b"GET / ") {
            stream.write_all(ANSWER).await?;
        } else {
            git(root, &request, &mut bytes, &mut stream).await?;
        }
        stream.flush().await?;
    }
}

/// Lets git answer. `bytes` begins with what was read of the request's body.
async fn git(
    root: &Path,
    request: &[u8],
    bytes: &mut Vec<u8>,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<()> {
    let line = request.split(|byte| *byte == b'\r').next();
    let line = std::str::from_utf8(line.unwrap_or_default())?;
    let mut words = line.split(' ');
    let (method, target) = words.next().zip(words.next()).context("no request")?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let header = |name| field(request, name).unwrap_or_default();
    let length = match header("content-length") {
        "" if header("transfer-encoding").is_empty() => 0,
        text => text.parse::<usize>().context("a body of no length")?,
    };
    while bytes.len() < length {
        if stream.read_buf(bytes).await? == 0 {
            bail!("half a request");
        }
    }
    let rest = bytes.split_off(length);
    let body = std::mem::replace(bytes, rest);
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", length.to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("HTTP_GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // It is short: of what git has it wants everything.
    child
        .stdin
        .take()
        .context("no stdin")?
        .write_all(&body)
        .await?;
    let mut stdout = BufReader::with_capacity(CHUNK, child.stdout.take().context("no stdout")?);
    let mut headers = String::from("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n");
    loop {
        let before = headers.len();
        stdout.read_line(&mut headers).await?;
        if headers[before..].starts_with("Status:") {
            bail!("git: {}", headers[before..].trim_end());
        }
        if headers[before..].trim_end().is_empty() {
            break;
        }
    }
    stream.write_all(headers.as_bytes()).await?;
    let mut chunk = vec![0; SIZE + CHUNK + 2];
    loop {
        let read = stdout.read(&mut chunk[SIZE..SIZE + CHUNK]).await?;
        chunk[..SIZE].copy_from_slice(format!("{read:08x}\r\n").as_bytes());
        let end = SIZE + read + 2;
        chunk[SIZE + read..end].copy_from_slice(b"\r\n");
        stream.write_all(&chunk[..end]).await?;
        if read == 0 {
            break;
        }
    }
    child.wait().await?;
    Ok(())
}

/// Makes the repository: what cannot be made smaller, so that its bytes count and
/// not what git makes of them.
pub(crate) fn repository(files: &Path) -> Result<()> {
    let work = files.join("work");
    fs::create_dir(&work)?;
    let mut random = fs::File::open("/dev/urandom")?;
    for number in 0..FILES {
        let mut file = fs::File::create(work.join(number.to_string()))?;
        io::copy(&mut random.by_ref().take(BYTES), &mut file)?;
    }
    let script = "git init -q -b main && git add . && \
        git -c user.name=bench -c user.email=bench@example commit -q -m bench && \
        git repack -q -a -d -b --window=0 && git clone -q --bare . \"$0\"";
    let made = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(files.join(REPOSITORY))
        .current_dir(&work)
        .status()?;
    if !made.success() {
        bail!("git made no repository");
    }
    fs::remove_dir_all(work)?;
    Ok(())
}
