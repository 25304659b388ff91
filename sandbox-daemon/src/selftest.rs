//! The self-test at start: a canary in a scratch sandbox must be refused what
//! its policy refuses, and nothing else. It catches what no error shows: a
//! wrong offset, a hook that is not called.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    net::TcpStream,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use nix::{sys::signal::kill, unistd::getppid};

use crate::{
    cgroup::{Cgroup, CgroupError, Slice},
    events::decode::{Target, decode},
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
    #[error(
        "the self-test failed: {0}\n\nhint: the walls do not stand on this kernel; please report its version"
    )]
    Failed(String),
    /// The attempts were refused, but the records do not say so.
    #[error("the self-test's refusals were recorded as {found:?}, not {expected:?}")]
    Recorded {
        /// What the records name.
        found: Vec<String>,
        /// What the canary attempted in vain.
        expected: Vec<String>,
    },
}

/// What the canary attempts, the error that it must get, and what the record of
/// that must name.
const ATTEMPTS: [(&str, Option<(i32, &str)>); 9] = [
    ("read an open file", None),
    ("write into the workspace", None),
    ("read a hidden file", Some((libc::ENOENT, HIDDEN))),
    ("stat a hidden file", Some((libc::ENOENT, HIDDEN))),
    (
        "read a file with a hidden name",
        Some((libc::ENOENT, NAMED)),
    ),
    ("write a read-only file", Some((libc::EACCES, READ_ONLY))),
    ("create a guarded name", Some((libc::EACCES, GUARDED))),
    ("connect to an address", Some((libc::EPERM, ADDRESS))),
    ("signal a process outside", Some((libc::EPERM, PROCESS))),
];

const HIDDEN: &str = "hidden";
const NAMED: &str = "secret.canary";
const READ_ONLY: &str = "read-only";
const GUARDED: &str = "guarded";

/// Whichever it is that started the canary.
const PROCESS: &str = "process";

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
            found.push(name(&record.target));
            true
        }
        _ => false,
    });
    let expected: Vec<_> = ATTEMPTS
        .iter()
        .filter_map(|(_, refused)| *refused)
        .collect();
    let expected: Vec<String> = expected.into_iter().map(|(_, name)| name.into()).collect();
    if found != expected {
        return Err(SelfTestError::Recorded { found, expected });
    }
    Ok(())
}

/// The last component of a record's path, or its address.
fn name(target: &Target) -> String {
    match target {
        Target::File(place) => {
            let name = place.path.rsplit(|byte| *byte == b'/').next();
            String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
        }
        Target::Address(address, port) => format!("{address}:{port}"),
        Target::Process(..) => PROCESS.into(),
        other => format!("{other:?}"),
    }
}

/// The canary: attempts everything, and says what did not end as it must.
pub fn canary(directory: &Path) -> ExitCode {
    let names = Names::below(directory);
    for (index, (attempt, expected)) in ATTEMPTS.iter().enumerate() {
        let outcome = match index {
            0 => File::open(&names.open).map(drop),
            1 => File::create(&names.written).map(drop),
            2 => File::open(&names.hidden).map(drop),
            3 => fs::symlink_metadata(&names.hidden).map(drop),
            4 => File::open(&names.named).map(drop),
            5 => OpenOptions::new()
                .append(true)
                .open(&names.read_only)
                .map(drop),
            6 => File::create(&names.guarded).map(drop),
            7 => TcpStream::connect(ADDRESS).map(drop),
            // Of the same user, so that the kernel has nothing against it.
            _ => kill(getppid(), None).map_err(io::Error::from),
        };
        let expected = expected.map(|(errno, _)| errno);
        let found = outcome.err().map(|error| error.raw_os_error().unwrap_or(0));
        if found != expected {
            let say = |errno: Option<i32>| {
                errno.map_or("success".into(), |errno| {
                    io::Error::from_raw_os_error(errno).to_string()
                })
            };
            println!("to {attempt} gave {}, not {}", say(found), say(expected));
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
}

impl Names {
    fn below(directory: &Path) -> Self {
        let name = |name: &str| directory.join(name);
        Self {
            open: name("open"),
            written: name("written"),
            hidden: name(HIDDEN),
            named: name(NAMED),
            read_only: name(READ_ONLY),
            guarded: name(GUARDED),
        }
    }
}

/// The canary's files; they go with it.
struct Files {
    directory: PathBuf,
}

impl Files {
    fn make(directory: PathBuf) -> Result<Self, SelfTestError> {
        let files = Self { directory };
        io_error("make its files", files.fill())?;
        Ok(files)
    }

    fn fill(&self) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let names = Names::below(&self.directory);
        for name in [names.open, names.hidden, names.named, names.read_only] {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(name)?;
        }
        Ok(())
    }

    fn policy(&self) -> Policy {
        let names = Names::below(&self.directory);
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
            rule(names.hidden, Access::Deny),
            rule(names.read_only, Access::Read),
            rule(names.guarded, Access::Deny),
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
