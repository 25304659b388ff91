//! The proxy's process: started, told everything, started again when it dies.

use std::{
    convert::Infallible,
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use nix::unistd::{Gid, Uid, User};
use sandbox_common::Entrances;
use sandbox_proxy::channel::{self, FromProxy, ToProxy};
use tokio::{
    net::{UnixStream, unix::OwnedWriteHalf},
    process::{Child, Command},
    sync::mpsc,
    time::MissedTickBehavior,
};

use super::{Egress, EgressError, PATIENCE, entrances::Sockets, program, trust::Trust};
use crate::{
    chain::Chain,
    config::ProxySettings,
    sandbox::{Enforcer, FlowMaps},
};

/// How often the host's settings for names are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// How long to wait before the next start: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// One that ran this long died by accident.
const ACCIDENT: Duration = Duration::from_secs(10);

/// Who the proxy is where there is no account for it: in the range that systemd
/// gives to services for as long as they run.
const ANONYMOUS: u32 = 64_127;

/// Keeps a proxy running.
pub(super) struct Keeper {
    program: PathBuf,
    user: (Uid, Gid),
    resolv_conf: PathBuf,
    hosts: PathBuf,
    sockets: Sockets,
    entrances: Entrances,
    maps: FlowMaps,
    enforcer: Arc<dyn Enforcer>,
}

impl Keeper {
    pub(super) fn new(
        settings: &ProxySettings,
        sockets: Sockets,
        enforcer: Arc<dyn Enforcer>,
    ) -> Result<Self, EgressError> {
        Ok(Self {
            program: program(&settings.program),
            user: user(&settings.user).map_err(EgressError::Sockets)?,
            resolv_conf: settings.resolv_conf.clone(),
            hosts: settings.hosts.clone(),
            entrances: sockets.entrances().map_err(EgressError::Sockets)?,
            sockets,
            maps: enforcer.flows()?,
            enforcer,
        })
    }

    /// For ever.
    pub(super) async fn keep(&self, egress: &Egress) {
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = tokio::time::Instant::now();
            let Err(why) = self.live(egress).await;
            self.close(egress, why);
            if begun.elapsed() > ACCIDENT {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// From the start of one process to its end, and why it ended.
    async fn live(&self, egress: &Egress) -> Result<Infallible, String> {
        let told = |what: &str, error: io::Error| format!("cannot {what}: {}", Chain::of(&error));
        let (mut child, stream) = self.spawn()?;
        let (mut reader, mut writer) = stream.into_split();
        let names = self.names();
        let (messages, queue) = mpsc::unbounded_channel();
        let first = ToProxy::Resolver {
            resolv_conf: names.0.clone(),
            hosts: names.1.clone(),
        };
        channel::write(&mut writer, &first)
            .await
            .map_err(|error| told("tell it of name servers", error))?;
        let ready = channel::read::<FromProxy>(&mut reader);
        let authority = match tokio::time::timeout(PATIENCE, ready).await {
            Ok(Ok(Some(FromProxy::Ready { authority }))) => authority,
            Ok(_) => return Err(died(&mut child).await),
            Err(_) => return Err("it was never ready".into()),
        };
        if let Some(trust) = &egress.trust {
            trust
                .replace_authority(&authority)
                .map_err(|error| told("write whose certificates programs believe", error))?;
            let _ = messages.send(ToProxy::Roots { pem: trust.roots() });
        }
        egress.begin(messages.clone());
        self.enforcer
            .admit(&self.entrances)
            .map_err(|error| format!("the kernel cannot be told of it: {}", Chain::of(&error)))?;
        egress.up();
        tracing::info!(pid = child.id(), "the proxy runs");
        let writing = tokio::spawn(write(writer, queue));
        let looking = self.look(egress, names, messages);
        let reading = async {
            while let Ok(Some(message)) = channel::read(&mut reader).await {
                egress.take(message);
            }
        };
        tokio::select! {
            () = reading => {}
            () = looking => {}
        }
        writing.abort();
        Err(died(&mut child).await)
    }

    /// From now on nothing is led to it.
    fn close(&self, egress: &Egress, why: String) {
        if let Err(error) = self.enforcer.admit(&Entrances::default()) {
            tracing::error!(error = %Chain::of(&error), "cannot close the way to the proxy");
        }
        tracing::error!("the proxy does not run: {why}");
        egress.away(why);
    }

    fn spawn(&self) -> Result<(Child, UnixStream), String> {
        let told = |error: &dyn std::error::Error| {
            format!(
                "cannot start `{}`: {}",
                self.program.display(),
                Chain::of(error)
            )
        };
        let (ours, theirs) = StdStream::pair().map_err(|error| told(&error))?;
        let ipv6 = self.sockets.ipv6();
        let begin = ToProxy::Begin {
            ipv6: ipv6.is_some(),
        };
        let [tcp, dns] = self.sockets.ipv4();
        let mut descriptors = vec![tcp, dns, self.maps.flows.as_fd(), self.maps.asked.as_fd()];
        descriptors.extend(ipv6.into_iter().flatten());
        channel::send_first(&ours, &begin, &descriptors).map_err(|error| told(&error))?;
        ours.set_nonblocking(true).map_err(|error| told(&error))?;
        let ours = UnixStream::from_std(ours).map_err(|error| told(&error))?;
        let (uid, gid) = self.user;
        let child = Command::new(&self.program)
            .env_clear()
            .envs(std::env::var_os("RUST_LOG").map(|level| ("RUST_LOG", level)))
            .current_dir("/")
            .uid(uid.as_raw())
            .gid(gid.as_raw())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| told(&error))?;
        Ok((child, ours))
    }

    /// Sends the host's settings for names when they change.
    async fn look(
        &self,
        egress: &Egress,
        mut sent: (String, String),
        messages: mpsc::UnboundedSender<ToProxy>,
    ) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match egress.trust.as_ref().map(Trust::refresh) {
                Some(Ok(Some(pem))) => drop(messages.send(ToProxy::Roots { pem })),
                Some(Err(error)) => {
                    let error = Chain::of(&error);
                    tracing::warn!(%error, "certificates are believed as before");
                }
                _ => {}
            }
            let found = self.names();
            if found == sent {
                continue;
            }
            let message = ToProxy::Resolver {
                resolv_conf: found.0.clone(),
                hosts: found.1.clone(),
            };
            if messages.send(message).is_err() {
                return;
            }
            sent = found;
        }
    }

    /// A host without these files has nothing to say.
    fn names(&self) -> (String, String) {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        (read(&self.resolv_conf), read(&self.hosts))
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<ToProxy>) {
    while let Some(message) = queue.recv().await {
        if channel::write(&mut writer, &message).await.is_err() {
            // Its end is noticed by whoever reads.
            return;
        }
    }
}

/// Makes sure that it is dead, and says what it died of.
async fn died(child: &mut Child) -> String {
    let _ = child.start_kill();
    match child.wait().await {
        Ok(status) => format!("it ended with {status}"),
        Err(error) => format!("it cannot be waited for: {error}"),
    }
}

/// The proxy's user and group.
fn user(name: &str) -> io::Result<(Uid, Gid)> {
    if let Some(user) = User::from_name(name)? {
        if user.uid.is_root() {
            return Err(io::Error::other(format!("`{name}` is root")));
        }
        return Ok((user.uid, user.gid));
    }
    let uid = Uid::from_raw(ANONYMOUS);
    if let Some(user) = User::from_uid(uid)? {
        let problem = format!(
            "there is no user `{name}`, and {ANONYMOUS} is `{}`",
            user.name
        );
        return Err(io::Error::other(problem));
    }
    Ok((uid, Gid::from_raw(ANONYMOUS)))
}
