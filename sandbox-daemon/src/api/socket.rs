//! The daemon's socket: one daemon owns it, everybody may connect.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
};

use super::peer::Connection;
use crate::{config::Config, launch::Peer, sandbox::Registry, steps};

/// How long to wait when the host has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket and the lock that goes with it.
pub struct Socket {
    listener: Arc<UnixListener>,
    path: PathBuf,
    _lock: Flock<File>,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The directory of socket and lock.
    #[error("cannot create `{path}`")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The lock.
    #[error("cannot lock `{path}`")]
    Lock {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The lock is held.
    #[error(
        "another sandboxd is running: `{path}` is locked\n\nhint: stop it first, for example with `systemctl stop sandboxd`"
    )]
    Running {
        /// The lock.
        path: PathBuf,
    },
    /// The socket.
    #[error("cannot listen on `{path}`")]
    Bind {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The right to be this host's daemon.
pub struct Lock(Flock<File>);

impl Lock {
    /// Takes it, unless another daemon has it.
    pub fn take(config: &Config) -> Result<Self, SocketError> {
        let directory = config.runtime_directory();
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(|source| SocketError::Directory {
                path: directory.into(),
                source,
            })?;
        let path = directory.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|source| SocketError::Lock {
                path: path.clone(),
                source,
            })?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self(lock)),
            Err((_, nix::Error::EWOULDBLOCK)) => Err(SocketError::Running { path }),
            Err((_, error)) => Err(SocketError::Lock {
                path,
                source: error.into(),
            }),
        }
    }
}

impl Socket {
    /// Listens; a socket that an earlier daemon left is replaced.
    pub fn bind(config: &Config, lock: Lock) -> Result<Self, SocketError> {
        let path = config.socket.clone();
        let bind = || -> io::Result<UnixListener> {
            remove_stale(&path)?;
            let listener = UnixListener::bind(&path)?;
            // Who may do what is decided by who connects.
            fs::set_permissions(&path, Permissions::from_mode(0o666))?;
            Ok(listener)
        };
        match bind() {
            Ok(listener) => Ok(Self {
                listener: Arc::new(listener),
                path,
                _lock: lock.0,
            }),
            Err(source) => Err(SocketError::Bind { path, source }),
        }
    }

    /// Accepts connections for as long as somebody takes them.
    pub(super) fn accept(
        &self,
        registry: &Arc<Registry>,
    ) -> mpsc::Receiver<io::Result<Connection>> {
        let (accepted, connections) = mpsc::channel(16);
        let (listener, registry) = (self.listener.clone(), registry.clone());
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    stream = listener.accept() => stream,
                    () = accepted.closed() => return,
                };
                match stream {
                    Ok((stream, _)) => {
                        steps::done("connected");
                        if let Some(connection) = identify(&registry, stream)
                            && accepted.send(Ok(connection)).await.is_err()
                        {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        connections
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The lock is still held: it is this daemon's.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, "cannot remove the socket");
        }
    }
}

/// Only a socket is removed, and nobody serves it: the lock is held.
fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt as _;
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(io::Error::other(
            "there is a file of that name that is not a socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Without a peer that can be identified there is no connection.
fn identify(registry: &Registry, stream: UnixStream) -> Option<Connection> {
    let connection = Peer::of_socket(&stream)
        .map_err(|error| error.to_string())
        .and_then(|peer| {
            let share = registry.share_connection(peer.uid());
            let share = share.map_err(|error| error.to_string())?;
            Ok(Connection::new(stream, peer, share))
        });
    match connection {
        Ok(connection) => Some(connection),
        Err(error) => {
            tracing::warn!(error, "refused a connection");
            None
        }
    }
}
