//! A sandbox's view of the file system: a mount namespace with private places
//! for temporary files, held by a thread outside the sandbox's cgroup, because
//! inside it nothing may be mounted.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt as _, chown},
    },
    panic,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, mpsc},
    thread::{self, JoinHandle},
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::{Gid, Group},
};

use super::{Account, Child, Command, Ephemeral, LaunchError, Layers, as_user, command, overlay};
use crate::sys::{self, Mount};

/// What a sandbox sees.
#[derive(Debug, Clone)]
pub struct ViewSpec {
    /// Whose sandbox it is.
    pub account: Account,
    /// Workspace and granted paths: those that lie below a private place are
    /// bound at the same place in it, the others are there anyway. One that
    /// does not exist, or that the user cannot reach, is passed over.
    pub keep: Vec<PathBuf>,
    /// Whether [`PRIVATE_PLACES`] are the sandbox's own. Without, the view is
    /// the host's, as for processes that were enrolled.
    pub private_places: bool,
    /// The workspace, if what is written there is to die with the view.
    pub ephemeral: Option<Ephemeral>,
}

/// A mount namespace with a thread in it. Dropping it ends both, once no
/// process is left in the namespace.
#[derive(Debug)]
pub struct View {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    private: Vec<PathBuf>,
    layers: Option<Arc<Layers>>,
}

/// Where programs write temporary files whatever `TMPDIR` says.
pub const PRIVATE_PLACES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Where pseudo-terminals are.
const TERMINALS: &str = "/dev/pts";

type Job = Box<dyn FnOnce() + Send>;

impl View {
    /// Makes the namespace.
    pub fn new(spec: ViewSpec) -> Result<Self, LaunchError> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, made) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("launch".to_owned())
            .spawn(move || {
                let result = set_up(&spec);
                drop(spec);
                let up = result.is_ok();
                if ready.send(result).is_ok() && up {
                    for job in inbox {
                        job();
                    }
                }
            })
            .map_err(LaunchError::Thread)?;
        let (private, layers) = made.recv().map_err(|_| {
            LaunchError::Thread(io::Error::other("the thread ended before it was set up"))
        })??;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            private,
            layers: layers.map(Arc::new),
        })
    }

    /// Runs `f` on the launch thread, inside the namespace and as root, and
    /// waits for it: this blocks, as do all that follow.
    ///
    /// # Panics
    /// Where `f` does.
    pub fn call<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        self.begin(f).wait()
    }

    fn begin<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Call<T> {
        let (answer, result) = mpsc::channel();
        let job = Box::new(move || {
            let result = panic::catch_unwind(panic::AssertUnwindSafe(f));
            // The caller waits below, so somebody receives.
            drop(answer.send(result));
        });
        let jobs = self.jobs.as_ref().expect("set until drop");
        jobs.send(job).expect("the thread ends at drop only");
        Call(result)
    }

    /// Starts a command in the namespace and returns once it runs.
    pub fn spawn(&self, command: Command) -> Result<Child, LaunchError> {
        let (gate, keeper) = command::gate()?;
        let spawning = self.begin(move || command::spawn(&command, gate));
        let opened = keeper.open();
        let child = spawning.wait();
        opened.map_err(|source| LaunchError::Prepare {
            step: "reset its OOM score",
            source,
        })?;
        child
    }

    /// The mounts of the namespace.
    pub fn mounts(&self) -> Result<Vec<Mount>, LaunchError> {
        let text = self
            .call(|| fs::read("/proc/thread-self/mountinfo"))
            .map_err(LaunchError::Mounts)?;
        sys::parse_mountinfo(&text).map_err(|error| LaunchError::Mounts(io::Error::other(error)))
    }

    /// The layers of an ephemeral workspace; none: it is worked in directly.
    pub fn layers(&self) -> Option<&Arc<Layers>> {
        self.layers.as_ref()
    }

    /// The private places there are: [`PRIVATE_PLACES`] without symbolic links
    /// and those that the host has not.
    pub fn private_places(&self) -> &[PathBuf] {
        &self.private
    }
}

/// What the launch thread is asked to do.
struct Call<T>(mpsc::Receiver<thread::Result<T>>);

impl<T> Call<T> {
    fn wait(self) -> T {
        match self.0.recv().expect("the job answers or aborts") {
            Ok(value) => value,
            Err(panic) => panic::resume_unwind(panic),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // Jobs catch their panics.
            drop(thread.join());
        }
    }
}

/// A path to keep visible, opened before a private place hid it.
struct Kept {
    path: PathBuf,
    tree: OwnedFd,
    is_dir: bool,
}

/// Makes the calling thread the launch thread of a view.
fn set_up(spec: &ViewSpec) -> Result<(Vec<PathBuf>, Option<Layers>), LaunchError> {
    let failed = |step| {
        move |errno: nix::Error| LaunchError::Namespace {
            step,
            source: errno.into(),
        }
    };
    let mut own = CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS;
    if spec.private_places {
        // Memory and queues that lie in no file system, and outlive who made them.
        own |= CloneFlags::CLONE_NEWIPC;
    }
    unshare(own).map_err(failed("unshare its namespaces"))?;
    // What the host mounts later appears here too, nothing goes back.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SLAVE,
        None::<&str>,
    )
    .map_err(failed("make `/` a slave of the host's"))?;
    nix::unistd::chdir("/").map_err(failed("enter `/`"))?;
    let private = if spec.private_places {
        mount_terminals()?;
        mount_private_places(spec)?
    } else {
        Vec::new()
    };
    give_up_privileges().map_err(|source| LaunchError::Namespace {
        step: "give up what no command may have",
        source,
    })?;
    // After that: the overlay borrows these credentials, by which the walls know
    // it (see `sandbox-ebpf/src/files/overlay.rs`).
    let layers = spec.ephemeral.as_ref();
    let layers = layers
        .map(|ephemeral| overlay::lay(&spec.account, ephemeral))
        .transpose()?;
    Ok((private, layers))
}

/// What children inherit and could shed only with a capability that they do
/// not have inside. The thread keeps the capabilities that it has.
fn give_up_privileges() -> io::Result<()> {
    sys::bounding_set_drop_all()?;
    sys::clear_ambient_capabilities()?;
    sys::no_new_privileges()?;
    sys::join_new_session_keyring()
}

/// A file system of pseudo-terminals of its own: on the host's, the user's other
/// terminals lie beside. `/dev/ptmx` finds the one that is mounted beside it.
fn mount_terminals() -> Result<(), LaunchError> {
    let failed = |source| LaunchError::PrivatePlace {
        place: TERMINALS.into(),
        source,
    };
    if !Path::new(TERMINALS).is_dir() {
        return Ok(());
    }
    // As distributions mount it.
    let group = terminal_group().map_err(|errno| failed(errno.into()))?;
    let group = group.map_or_else(String::new, |group| format!(",gid={group}"));
    let options = format!("newinstance,ptmxmode=0666,mode=0620{group}");
    mount(
        Some(sys::OWN_MOUNT),
        TERMINALS,
        Some("devpts"),
        MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
        Some(options.as_str()),
    )
    .map_err(|errno| failed(errno.into()))
}

/// Whose the terminals are; it has the same number for good.
fn terminal_group() -> nix::Result<Option<Gid>> {
    static FOUND: OnceLock<Gid> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(Some(*found));
    }
    let group = Group::from_name("tty")?;
    Ok(group.map(|group| *FOUND.get_or_init(|| group.gid)))
}

fn mount_private_places(spec: &ViewSpec) -> Result<Vec<PathBuf>, LaunchError> {
    let mut places = Vec::new();
    for place in PRIVATE_PLACES {
        match fs::canonicalize(place) {
            // `/var/tmp` may be a link to `/tmp`.
            Ok(place) if !places.contains(&place) => places.push(place),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(LaunchError::PrivatePlace {
                    place: place.into(),
                    source,
                });
            }
        }
    }
    // Opened before the mounts hide them.
    let kept = open_kept(spec, &places)?;
    for place in &places {
        mount(
            Some(sys::OWN_MOUNT),
            place,
            Some("tmpfs"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Some("mode=1777"),
        )
        .map_err(|errno| LaunchError::PrivatePlace {
            place: place.clone(),
            source: errno.into(),
        })?;
    }
    for kept in kept {
        bind(&spec.account, &places, &kept).map_err(|source| LaunchError::Keep {
            path: kept.path,
            user: spec.account.name.clone(),
            source,
        })?;
    }
    Ok(places)
}

/// Detached copies of the kept paths below private places, opened as the user:
/// a bind mount must not lead past a directory that the user may not search.
fn open_kept(spec: &ViewSpec, places: &[PathBuf]) -> Result<Vec<Kept>, LaunchError> {
    let failed = |path: &Path, source| LaunchError::Keep {
        path: path.to_owned(),
        user: spec.account.name.clone(),
        source,
    };
    let mut found = Vec::new();
    for path in &spec.keep {
        let place = as_user(&spec.account, || open_place(path, places))
            .and_then(|place| place)
            .map_err(|source| failed(path, source))?;
        found.extend(place);
    }
    // A directory comes before what is in it.
    found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let mut opened: Vec<Kept> = Vec::new();
    for (path, place, is_dir) in found {
        // The copy of a directory holds all that is mounted below it.
        if opened.iter().any(|kept| path.starts_with(&kept.path)) {
            continue;
        }
        let tree = sys::clone_tree(place).map_err(|source| failed(&path, source))?;
        opened.push(Kept { path, tree, is_dir });
    }
    Ok(opened)
}

/// Opens a path that lies below a private place; the place itself is always
/// private.
fn open_place(path: &Path, places: &[PathBuf]) -> io::Result<Option<(PathBuf, OwnedFd, bool)>> {
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(error) if unreachable(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !places
        .iter()
        .any(|place| path.starts_with(place) && path != *place)
    {
        return Ok(None);
    }
    // What became a link since is refused.
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let place = openat2(nix::fcntl::AT_FDCWD, &path, how)?;
    // Asked as the user: a FUSE mount may tell root nothing.
    let is_dir = fs::metadata(&path)?.is_dir();
    Ok(Some((path, place, is_dir)))
}

/// Not there for this user: inside it is not there either.
fn unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

/// Attaches a kept tree, with the directories above it, which are the user's
/// as all is in a private place.
fn bind(account: &Account, places: &[PathBuf], kept: &Kept) -> io::Result<()> {
    let path = &kept.path;
    let above = path.parent().unwrap_or(path);
    let missing: Vec<&Path> = above
        .ancestors()
        .take_while(|dir| !places.iter().any(|place| place == dir))
        .filter(|dir| !dir.exists())
        .collect();
    for dir in missing.into_iter().rev() {
        make_dir(account, dir)?;
    }
    if kept.is_dir {
        make_dir(account, path)?;
    } else {
        fs::File::create_new(path)?;
    }
    sys::attach_tree(&kept.tree, path)
}

fn make_dir(account: &Account, dir: &Path) -> io::Result<()> {
    fs::create_dir(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    chown(dir, Some(account.uid), Some(account.gid))
}
