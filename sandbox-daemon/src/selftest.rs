//! The self-test at start: a canary in a scratch sandbox must be refused what
//! its policy refuses, and nothing else. It catches what no error shows: a
//! wrong offset, a hook that is not called.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    net::TcpStream,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::{
            fs::OpenOptionsExt as _,
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use nix::{
    fcntl::{OFlag, open},
    sched::{CloneFlags, unshare},
    sys::{
        signal::kill,
        stat::{Mode as FileMode, fstat, major, minor},
    },
    unistd::{getpid, getppid},
};
use sandbox_common::Facility;

use crate::{
    cgroup::{Cgroup, CgroupError, Slice},
    events::decode::{Record, Target, decode},
    kernel::{self, EventSource, Kernel, KernelError},
    launch::{Account, Command, LaunchError, View, ViewSpec},
    policy::{
        Access, Environment, FileRule, Mode, NamePattern, Network, NetworkMode, Place, Policy,
    },
    sys::ExitStatus,
};

/// Why the walls are not trusted.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// What the test needs could not be made.
    #[error("the self-test cannot {action}")]
    Io {
        /// For example "make its files".
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The scratch cgroup.
    #[error("the self-test has no cgroup")]
    Cgroup(#[from] CgroupError),
    /// The scratch policy.
    #[error("the self-test has no policy")]
    Kernel(#[from] KernelError),
    /// The canary did not start.
    #[error("the self-test does not start")]
    Launch(#[from] LaunchError),
    /// An attempt did not end as the policy has it.
    #[error("the self-test failed: {0}\n\nhint: {REPORT}")]
    Failed(String),
    /// The attempts were refused, but the records do not say so.
    #[error(
        "the self-test's refusals were recorded as {found:?}, not {expected:?}\n\nhint: {REPORT}"
    )]
    Recorded {
        /// What the records name.
        found: Vec<String>,
        /// What the canary attempted in vain.
        expected: Vec<String>,
    },
    /// The programs do not see which file a file is.
    #[error("the self-test failed: `{path}` is taken for another file\n\nhint: {REPORT}")]
    Identity {
        /// Whose numbers are known.
        path: &'static str,
    },
}

/// What to do about walls that do not stand.
const REPORT: &str = "the walls do not stand on this kernel; please report its version";

/// One thing that the canary attempts.
struct Attempt {
    /// "to {what} gave ..."
    what: &'static str,
    perform: fn(&Names) -> io::Result<()>,
    /// The error that it must get, and what the record of that must name.
    refused: Option<(i32, &'static str)>,
}

const ATTEMPTS: [Attempt; 16] = [
    Attempt {
        what: "read an open file",
        perform: |names| File::open(&names.open).map(drop),
        refused: None,
    },
    Attempt {
        what: "write into the workspace",
        perform: |names| File::create(&names.written).map(drop),
        refused: None,
    },
    Attempt {
        what: "reopen a pipe",
        perform: |_| {
            let (_reader, writer) = io::pipe()?;
            let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
            OpenOptions::new().write(true).open(path).map(drop)
        },
        refused: None,
    },
    Attempt {
        what: "signal itself",
        perform: |_| Ok(kill(getpid(), None)?),
        refused: None,
    },
    Attempt {
        what: "connect to a Unix socket of its own",
        perform: |names| {
            let _listener = UnixListener::bind_addr(&names.own_socket)?;
            UnixStream::connect_addr(&names.own_socket).map(drop)
        },
        refused: None,
    },
    Attempt {
        what: "read a hidden file",
        perform: |names| File::open(&names.hidden).map(drop),
        refused: Some((libc::ENOENT, HIDDEN)),
    },
    Attempt {
        what: "stat a hidden file",
        perform: |names| fs::symlink_metadata(&names.hidden).map(drop),
        refused: Some((libc::ENOENT, HIDDEN)),
    },
    Attempt {
        what: "read a file with a hidden name",
        perform: |names| File::open(&names.named).map(drop),
        refused: Some((libc::ENOENT, NAMED)),
    },
    Attempt {
        what: "write a read-only file",
        perform: |names| {
            let file = OpenOptions::new().append(true).open(&names.read_only);
            file.map(drop)
        },
        refused: Some((libc::EACCES, READ_ONLY)),
    },
    Attempt {
        what: "write a setting of the kernel",
        perform: |_| {
            let file = OpenOptions::new().append(true).open(SETTING);
            file.map(drop)
        },
        refused: Some((libc::EACCES, "core_pattern")),
    },
    Attempt {
        what: "create a guarded name",
        perform: |names| File::create(&names.guarded).map(drop),
        refused: Some((libc::EACCES, GUARDED)),
    },
    Attempt {
        what: "connect to an address",
        perform: |_| TcpStream::connect(ADDRESS).map(drop),
        refused: Some((libc::EPERM, ADDRESS)),
    },
    Attempt {
        what: "connect to a Unix socket outside",
        perform: |names| UnixStream::connect(&names.path_socket).map(drop),
        refused: Some((libc::EPERM, SOCKET)),
    },
    Attempt {
        what: "connect to an abstract Unix socket outside",
        perform: |names| UnixStream::connect_addr(&names.abstract_socket).map(drop),
        refused: Some((libc::EPERM, ABSTRACT)),
    },
    Attempt {
        what: "signal a process outside",
        perform: |_| Ok(kill(getppid(), None)?),
        refused: Some((libc::EPERM, PARENT)),
    },
    Attempt {
        what: "make a user namespace",
        perform: |_| Ok(unshare(CloneFlags::CLONE_NEWUSER)?),
        refused: Some((libc::EPERM, USER_NAMESPACE)),
    },
];

const HIDDEN: &str = "hidden";
const NAMED: &str = "secret.canary";
const READ_ONLY: &str = "read-only";
const SETTING: &str = "/proc/sys/kernel/core_pattern";
const GUARDED: &str = "guarded";
const SOCKET: &str = "socket";
const ABSTRACT: &str = "abstract socket";
const PARENT: &str = "parent";
const USER_NAMESPACE: &str = "user namespace";

/// An address for documentation, port discard: nobody is there.
const ADDRESS: &str = "192.0.2.1:9";

/// Runs the canary, `program --canary DIRECTORY`, in a sandbox of its own below
/// `slice`, with its files below `directory`.
///
/// # Errors
/// The first attempt that did not end as it must.
pub async fn run(
    kernel: &Arc<Kernel>,
    events: &mut EventSource,
    slice: &Slice,
    directory: &Path,
    program: &Path,
) -> Result<(), SelfTestError> {
    for path in ["/proc", "/sys"] {
        identified(kernel, path)?;
    }
    let name = format!("self-test-{}", std::process::id());
    let files = Files::make(directory.join(&name))?;
    let sandbox = slice.create(&name)?;
    let id = sandbox.id();
    let result = attempt(kernel, events, &sandbox, &files, program).await;
    // Whatever came of it, nothing stays.
    sandbox.kill()?;
    sandbox.wait_empty().await?;
    sandbox.remove_tree().await?;
    kernel.remove(id)?;
    result
}

/// Where `stat` gives the kernel's own numbers, the programs must see the same.
fn identified(kernel: &Kernel, path: &'static str) -> Result<(), SelfTestError> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let file = open(path, flags, FileMode::empty()).map_err(io::Error::from);
    let file = io_error("open a file system", file)?;
    let stat = io_error("look at a file", fstat(&file).map_err(io::Error::from))?;
    let found = kernel.identify(&file)?;
    // As `MKDEV` puts it together.
    let device = major(stat.st_dev) << 20 | minor(stat.st_dev);
    if (u64::from(found.dev), found.ino) != (device, stat.st_ino) {
        return Err(SelfTestError::Identity { path });
    }
    Ok(())
}

async fn attempt(
    kernel: &Arc<Kernel>,
    events: &mut EventSource,
    sandbox: &Cgroup,
    files: &Files,
    program: &Path,
) -> Result<(), SelfTestError> {
    let account = Account::by_uid(0)?;
    let view = View::new(ViewSpec {
        account: account.clone(),
        keep: Vec::new(),
        private_places: false,
        ephemeral: None,
    })?;
    let mounts = view.mounts()?;
    let policy = files.policy();
    let compiled = {
        let kernel = Arc::clone(kernel);
        view.call(move || {
            let circumstances = kernel::Circumstances {
                generation: 1,
                seed: kernel.seed(),
                mounts: &mounts,
                own: None,
                lower: None,
            };
            kernel::compile(&policy, circumstances, &*kernel)
        })?
    };
    kernel.install(sandbox.id(), &compiled)?;
    let exec = sandbox.child("canary")?;
    kernel.watch_exec(exec.id())?;

    let (output, stdout) = pipe()?;
    let null = || {
        io_error(
            "open /dev/null",
            File::options().read(true).write(true).open("/dev/null"),
        )
    };
    let child = view.spawn(Command {
        argv: vec![
            c_string(program)?,
            c"--canary".into(),
            c_string(&files.directory)?,
        ],
        env: Vec::new(),
        cwd: c"/".into(),
        account,
        cgroup: io_error("open its cgroup", exec.try_clone_dir())?,
        stdin: null()?.into(),
        stdout,
        stderr: null()?.into(),
        controlling_terminal: false,
        umask: 0o077,
        limits: None,
    })?;
    let status = io_error("wait for the canary", child.wait().await)?;
    let mut said = String::new();
    io_error(
        "read what the canary says",
        File::from(output).read_to_string(&mut said),
    )?;
    if status != ExitStatus::Code(0) {
        let said = if said.is_empty() {
            format!("the canary ended with {status:?}")
        } else {
            said
        };
        return Err(SelfTestError::Failed(said.trim_end().to_owned()));
    }
    kernel.unwatch_exec(exec.id())?;
    let mut found = Vec::new();
    events.sift(|raw| match decode(raw) {
        Ok(record) if record.sandbox == sandbox.id() => {
            found.push(files.describe(&record));
            true
        }
        _ => false,
    });
    let by = program.file_name().unwrap_or_default().to_string_lossy();
    let expected: Vec<_> = ATTEMPTS
        .iter()
        .filter_map(|attempt| attempt.refused)
        .map(|(_, object)| format!("{object} by {by}"))
        .collect();
    if found != expected {
        return Err(SelfTestError::Recorded { found, expected });
    }
    Ok(())
}

/// The last component of a path.
fn last(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next();
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

/// The canary: attempts everything, and says what did not end as it must.
pub fn canary(directory: &Path) -> ExitCode {
    let names = match Names::below(directory) {
        Ok(names) => names,
        Err(error) => {
            println!("`{}` is no place for files: {error}", directory.display());
            return ExitCode::FAILURE;
        }
    };
    for attempt in &ATTEMPTS {
        let outcome = (attempt.perform)(&names);
        let expected = attempt.refused.map(|(errno, _)| errno);
        let found = outcome.err().map(|error| error.raw_os_error().unwrap_or(0));
        if found != expected {
            let say = |errno: Option<i32>| {
                errno.map_or("success".into(), |errno| {
                    io::Error::from_raw_os_error(errno).to_string()
                })
            };
            println!(
                "to {} gave {}, not {}",
                attempt.what,
                say(found),
                say(expected)
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

struct Names {
    open: PathBuf,
    written: PathBuf,
    hidden: PathBuf,
    named: PathBuf,
    read_only: PathBuf,
    guarded: PathBuf,
    path_socket: PathBuf,
    abstract_socket: SocketAddr,
    own_socket: SocketAddr,
}

impl Names {
    fn below(directory: &Path) -> io::Result<Self> {
        let name = |name: &str| directory.join(name);
        let socket = |name: &str| {
            SocketAddr::from_abstract_name(directory.join(name).as_os_str().as_encoded_bytes())
        };
        Ok(Self {
            open: name("open"),
            written: name("written"),
            hidden: name(HIDDEN),
            named: name(NAMED),
            read_only: name(READ_ONLY),
            guarded: name(GUARDED),
            path_socket: name(SOCKET),
            abstract_socket: socket(ABSTRACT)?,
            own_socket: socket("own socket")?,
        })
    }
}

/// The canary's files, and what it finds outside; they go with it.
struct Files {
    directory: PathBuf,
    names: Names,
    _listeners: [UnixListener; 2],
}

impl Files {
    fn make(directory: PathBuf) -> Result<Self, SelfTestError> {
        let names = io_error("name its files", Names::below(&directory))?;
        let listeners = io_error("make its files", fill(&directory, &names));
        let listeners = listeners.inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        Ok(Self {
            directory,
            names,
            _listeners: listeners,
        })
    }

    /// What a record says was refused, and to whom.
    fn describe(&self, record: &Record) -> String {
        let object = match &record.target {
            Target::File(place) | Target::UnixPath(place) => last(&place.path),
            Target::Address(address, port) => format!("{address}:{port}"),
            Target::UnixName(name)
                if name.strip_prefix(b"\0") == self.names.abstract_socket.as_abstract_name() =>
            {
                ABSTRACT.into()
            }
            Target::Process(pid, comm) if *pid == std::process::id() && *comm == own_comm() => {
                PARENT.into()
            }
            Target::Facility(Facility::UserNamespace, _) => USER_NAMESPACE.into(),
            other => format!("{other:?}"),
        };
        let by = match &record.exe {
            Some(place) => last(&place.path),
            None => "nobody".into(),
        };
        format!("{object} by {by}")
    }

    fn policy(&self) -> Policy {
        let names = &self.names;
        let rule = |path: PathBuf, access| FileRule {
            label: path.display().to_string(),
            place: Place::Path(path),
            access,
        };
        let pattern = FileRule {
            label: "*.canary".into(),
            place: Place::Name {
                scope: Some(self.directory.clone()),
                pattern: NamePattern::Suffix(b".canary".into()),
            },
            access: Access::Deny,
        };
        let files = vec![
            rule("/".into(), Access::Read),
            rule(self.directory.clone(), Access::Write),
            // Which no policy can allow.
            rule("/proc".into(), Access::Write),
            rule(names.hidden.clone(), Access::Deny),
            rule(names.read_only.clone(), Access::Read),
            rule(names.guarded.clone(), Access::Deny),
            pattern,
        ];
        let network = Network {
            mode: NetworkMode::None,
            ..Network::default()
        };
        Policy::new(
            "self-test".into(),
            Mode::Enforce,
            files,
            network,
            Environment::default(),
        )
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// Makes the files, and sockets that belong to no sandbox.
fn fill(directory: &Path, names: &Names) -> io::Result<[UnixListener; 2]> {
    fs::create_dir_all(directory)?;
    for name in [&names.open, &names.hidden, &names.named, &names.read_only] {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(name)?;
    }
    Ok([
        UnixListener::bind(&names.path_socket)?,
        UnixListener::bind_addr(&names.abstract_socket)?,
    ])
}

/// What the kernel calls this process: its first thread.
fn own_comm() -> Vec<u8> {
    let comm = fs::read("/proc/self/comm").unwrap_or_default();
    comm.strip_suffix(b"\n").unwrap_or(&comm).to_vec()
}

fn pipe() -> Result<(OwnedFd, OwnedFd), SelfTestError> {
    let made = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(io::Error::from);
    io_error("make a pipe", made)
}

fn c_string(path: &Path) -> Result<CString, SelfTestError> {
    let made = CString::new(path.as_os_str().as_encoded_bytes()).map_err(io::Error::from);
    io_error("name a file", made)
}

fn io_error<T>(action: &'static str, result: io::Result<T>) -> Result<T, SelfTestError> {
    result.map_err(|source| SelfTestError::Io { action, source })
}
