//! Who is compared: each proxy lets one name through and nothing else, keeps no
//! log, and stores no answers.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use sandbox_daemon::secrets::Secrets;
use sandbox_tests::egress::{Daemon, Settings};

use crate::{
    memory,
    place::{self, ADDRESS, HOST, Place},
    secure::{PORT, TOKEN},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Direct,
    Squid,
    Tinyproxy,
    Sandbox,
}

/// How a program comes to its host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It knows the proxy.
    Explicit,
    /// It knows the host's name.
    Transparent,
    /// The same, over TLS, and without the token that the host wants.
    Secure,
}

pub(crate) struct Contestant<'p> {
    pub(crate) kind: Kind,
    place: &'p Place,
    runs: Runs,
}

enum Runs {
    Nothing,
    Peer {
        child: Child,
        port: u16,
    },
    Daemon {
        daemon: Daemon,
        policy: PathBuf,
        /// With a credential.
        secure: PathBuf,
    },
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Direct, Self::Squid, Self::Tinyproxy, Self::Sandbox];
    pub(crate) const PROXIES: [Self; 3] = [Self::Squid, Self::Tinyproxy, Self::Sandbox];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Squid => "squid",
            Self::Tinyproxy => "tinyproxy",
            Self::Sandbox => "sandbox-proxy",
        }
    }

    /// Whether there is such a way here; without a proxy the first two are one.
    pub(crate) fn has(self, way: Way) -> bool {
        way == Way::Explicit || matches!(self, Self::Direct | Self::Sandbox)
    }
}

impl<'p> Contestant<'p> {
    pub(crate) fn start(kind: Kind, place: &'p Place, programs: &Path) -> Result<Self> {
        let runs = match kind {
            Kind::Direct => Runs::Nothing,
            Kind::Squid => squid(place)?,
            Kind::Tinyproxy => tinyproxy(place)?,
            Kind::Sandbox => sandbox(place, programs)?,
        };
        Ok(Self { kind, place, runs })
    }

    /// KiB that the proxy has in memory.
    pub(crate) fn memory(&self) -> Result<f64> {
        match &self.runs {
            Runs::Nothing => bail!("there is no proxy"),
            Runs::Peer { child, .. } => memory::of(child.id()),
            Runs::Daemon { .. } => memory::of(memory::child("sandbox-proxy")?),
        }
    }

    /// Runs a client to its end; the numbers that it prints.
    pub(crate) fn load(&self, way: Way, words: &[&str]) -> Result<Vec<f64>> {
        let output = self.client(way, words)?.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("the client failed: {}\n{stderr}", output.status);
        }
        let text = String::from_utf8(output.stdout)?;
        let numbers = text.split_whitespace().map(|word| Ok(word.parse()?));
        numbers.collect()
    }

    /// Runs a client until it has what it is to keep.
    pub(crate) fn held(&self, words: &[&str]) -> Result<Held> {
        let mut child = self
            .client(Way::Explicit, words)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim_end() != "held" {
            bail!("the client holds nothing: {}", child.wait()?);
        }
        Ok(Held(child))
    }

    fn client(&self, way: Way, words: &[&str]) -> Result<Command> {
        let program = env::current_exe()?;
        let (mut command, host, proxy) = match &self.runs {
            Runs::Nothing if way == Way::Secure => {
                let mut command = self.place.knowing(program);
                for name in ["SSL_CERT_FILE", "GIT_SSL_CAINFO"] {
                    command.env(name, self.place.authority());
                }
                (command, HOST.into(), None)
            }
            Runs::Nothing => (Command::new(program), ADDRESS.to_string(), None),
            Runs::Peer { port, .. } => {
                let proxy = format!("127.0.0.1:{port}");
                (Command::new(program), HOST.into(), Some(proxy))
            }
            Runs::Daemon {
                daemon,
                policy,
                secure,
            } => {
                let policy = if way == Way::Secure { secure } else { policy };
                let mut command = daemon.client(&["run", "--policy"]);
                command.arg(policy).arg("-w").arg(daemon.home());
                command.arg("--").arg(program);
                let address = Ipv4Addr::from(sandbox_common::PROXY_ADDRESS);
                let proxy = format!("{address}:{}", sandbox_common::PROXY_PORT);
                let proxy = Some(proxy).filter(|_| way == Way::Explicit);
                (command, HOST.into(), proxy)
            }
        };
        command.args(["load", "--host", &host]);
        if let Some(proxy) = proxy {
            command.args(["--proxy", &proxy]);
        }
        if way == Way::Secure {
            command.arg("--secure");
        }
        if way == Way::Secure && self.kind == Kind::Direct {
            command.args(["--token", TOKEN]);
        }
        command.args(words);
        Ok(command)
    }
}

impl Drop for Contestant<'_> {
    fn drop(&mut self) {
        if let Runs::Peer { child, .. } = &mut self.runs {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A client that keeps its connections.
pub(crate) struct Held(Child);

impl Held {
    pub(crate) fn end(&mut self) -> Result<()> {
        drop(self.0.stdin.take());
        self.0.wait()?;
        Ok(())
    }
}

fn sandbox(place: &Place, programs: &Path) -> Result<Runs> {
    let daemon = Daemon::start(&Settings {
        programs: programs.to_owned(),
        resolv_conf: String::new(),
        hosts: Place::names(),
        roots: vec![place.authority()],
    });
    let token = Secrets::value(TOKEN.into())?;
    daemon.registry.secrets().set(0, "bench", &token)?;
    let policy = daemon.policy(&format!("allow = [\"{HOST}:80\", \"{HOST}:443\"]"));
    let secure = daemon.policy(&format!(
        "allow = [\"{HOST}:{PORT}\"]\n\
         [[credential]]\nname = \"bench\"\nhosts = [\"{HOST}:{PORT}\"]"
    ));
    Ok(Runs::Daemon {
        daemon,
        policy,
        secure,
    })
}

fn squid(place: &Place) -> Result<Runs> {
    let port = 3128;
    let settings = format!(
        "http_port 127.0.0.1:{port}\n\
         acl allowed dstdomain {HOST}\n\
         http_access allow allowed\n\
         http_access deny all\n\
         hosts_file {}\n\
         cache deny all\n\
         cache_mem 0\n\
         access_log none\n\
         cache_log /dev/null\n\
         cache_store_log none\n\
         logfile_rotate 0\n\
         pid_filename none\n\
         pinger_enable off\n\
         max_filedescriptors 16384\n\
         shutdown_lifetime 0 seconds\n",
        place.hosts().display()
    );
    let file = place.files().join("squid.conf");
    fs::write(&file, settings)?;
    let mut command = Command::new("/usr/sbin/squid");
    command.arg("-N").arg("-f").arg(file);
    peer(command, port)
}

fn tinyproxy(place: &Place) -> Result<Runs> {
    let port = 8888;
    let filter = place.files().join("filter");
    fs::write(&filter, format!("^{}$\n", HOST.replace('.', "\\.")))?;
    let settings = format!(
        "Listen 127.0.0.1\n\
         Port {port}\n\
         User nobody\n\
         Group nogroup\n\
         Timeout 600\n\
         MaxClients 10000\n\
         Filter \"{}\"\n\
         FilterDefaultDeny Yes\n\
         ConnectPort 443\n\
         LogLevel Critical\n",
        filter.display()
    );
    let file = place.files().join("tinyproxy.conf");
    fs::write(&file, settings)?;
    let mut command = place.knowing("/usr/bin/tinyproxy");
    command.arg("-d").arg("-c").arg(file);
    peer(command, port)
}

fn peer(mut command: Command, port: u16) -> Result<Runs> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    place::answers(Ipv4Addr::LOCALHOST, port).with_context(|| format!("{command:?}"))?;
    Ok(Runs::Peer { child, port })
}
