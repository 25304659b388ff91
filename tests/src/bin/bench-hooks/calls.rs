//! One thing done again and again, by this process alone.

use std::{
    ffi::{CString, OsStr},
    fs,
    hint::black_box,
    net::{TcpListener, TcpStream},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt as _,
            fs::FileExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};
use nix::{
    fcntl::{OFlag, open},
    sys::{
        resource::{UsageWho, getrusage},
        socket::{setsockopt, sockopt::Linger},
        stat::{Mode, stat},
    },
    unistd::unlink,
};

use crate::WORKSPACE;

const BATCHES: u32 = 5;
/// Calls in a batch, which is long enough to hold its share of interrupts.
const BATCH: u32 = 1000;
/// The same of whole programs.
const PROGRAMS: u32 = 25;

/// Prints the nanoseconds, which are instructions, that one thing takes, and
/// how often it was done.
pub(crate) fn print(what: &str, path: &OsStr) -> Result<()> {
    match what {
        "open" => {
            let file = CString::new(path.as_bytes())?;
            repeat(BATCH, || {
                let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
                open(file.as_c_str(), flags, Mode::empty())?;
                Ok(())
            })
        }
        "stat" => {
            let file = CString::new(path.as_bytes())?;
            repeat(BATCH, || {
                black_box(stat(file.as_c_str())?);
                Ok(())
            })
        }
        "read" => {
            fs::write(path, [b'x'; 4096])?;
            let file = fs::File::open(path)?;
            let mut bytes = [0; 4096];
            repeat(BATCH, || Ok(file.read_exact_at(&mut bytes, 0)?))
        }
        "make" => {
            // Inside, `/dev/shm` is another one.
            fs::create_dir_all(Path::new(path).parent().unwrap_or(Path::new("/")))?;
            let file = CString::new(path.as_bytes())?;
            repeat(BATCH, || {
                let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC | OFlag::O_CREAT | OFlag::O_EXCL;
                drop(open(file.as_c_str(), flags, Mode::S_IRUSR)?);
                Ok(unlink(file.as_c_str())?)
            })
        }
        "connect" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            repeat(BATCH, || {
                let client = TcpStream::connect(address)?;
                let (server, _) = listener.accept()?;
                // With a reset, or the ports would be used up.
                reset(&client)?;
                drop(client);
                drop(server);
                Ok(())
            })
        }
        "connect-unix" => {
            let _ = fs::remove_file(path);
            let listener = UnixListener::bind(path)?;
            repeat(BATCH, || {
                let client = UnixStream::connect(path)?;
                drop(listener.accept()?);
                drop(client);
                Ok(())
            })
        }
        "start" => repeat_by(spent, PROGRAMS, || program("true", &[])),
        "build" => build(Path::new(path)),
        _ => bail!("nothing is called `{what}`"),
    }
}

/// What `policies/default.toml` comes to in Landlock, which can only allow.
pub(crate) fn restrict() -> Result<()> {
    let abi = ABI::V3;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(["/"], AccessFs::from_read(abi)))?
        .add_rules(path_beneath_rules(
            [
                WORKSPACE,
                "/tmp",
                "/var/tmp",
                "/dev/shm",
                "/dev/null",
                "/dev/tty",
            ],
            AccessFs::from_all(abi),
        ))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        bail!("this kernel enforces no Landlock rules");
    }
    Ok(())
}

/// The median of batches, without what the loop itself takes.
fn repeat(size: u32, call: impl FnMut() -> Result<()>) -> Result<()> {
    repeat_by(passed, size, call)
}

fn repeat_by(clock: Clock, size: u32, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    // Everything is cached after the first one.
    batch(clock, size, &mut call)?;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let called = batch(clock, size, &mut call)?;
        let looped = batch(clock, size, || {
            black_box(size);
            Ok(())
        })?;
        batches.push(called.saturating_sub(looped));
    }
    batches.sort();
    let median = batches[BATCHES as usize / 2];
    println!(
        "{} {}",
        median.as_secs_f64() * 1e9 / f64::from(size),
        (BATCHES + 1) * size
    );
    Ok(())
}

fn batch(clock: Clock, size: u32, mut call: impl FnMut() -> Result<()>) -> Result<Duration> {
    let start = clock();
    for _ in 0..size {
        call()?;
    }
    Ok(clock().saturating_sub(start))
}

/// What two readings lie apart.
type Clock = fn() -> Duration;

/// Time.
fn passed() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// The processor's time of this process and of those that it waited for: where
/// processes wait for one another, idle time passes too.
fn spent() -> Duration {
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .filter_map(|who| getrusage(who).ok())
        .flat_map(|usage| [usage.user_time(), usage.system_time()])
        .map(|time| {
            Duration::new(time.tv_sec().unsigned_abs(), 0)
                + Duration::from_micros(time.tv_usec().unsigned_abs())
        })
        .sum()
}

/// Compiles ten small files, links them and runs what comes of it, once.
fn build(directory: &Path) -> Result<()> {
    const FILES: usize = 10;

    let sources: Vec<PathBuf> = (0..FILES)
        .map(|number| directory.join(format!("part{number}.c")))
        .collect();
    for (number, source) in sources.iter().enumerate() {
        fs::write(source, part(number, FILES))?;
    }
    let start = spent();
    let mut objects = Vec::new();
    for source in &sources {
        let object = source.with_extension("o");
        let words = [OsStr::new("-O1"), OsStr::new("-c"), source.as_os_str()];
        let output = [OsStr::new("-o"), object.as_os_str()];
        program("gcc", &[&words[..], &output].concat())?;
        objects.push(object);
    }
    let whole = directory.join("whole");
    let mut words = vec![OsStr::new("-o"), whole.as_os_str()];
    words.extend(objects.iter().map(|object| object.as_os_str()));
    program("gcc", &words)?;
    program(&whole, &[])?;
    let took = spent().saturating_sub(start);
    println!("{} 1", took.as_secs_f64() * 1e9);
    Ok(())
}

/// The source of one of the files, each of which calls the next.
fn part(number: usize, of: usize) -> String {
    let next = number + 1;
    let name = if number == 0 {
        "main(void)".to_owned()
    } else {
        format!("part{number}(void)")
    };
    let rest = if next == of {
        "0".to_owned()
    } else {
        format!("part{next}()")
    };
    format!(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
         int part{next}(void);\n\
         int {name} {{\n\
         \tchar line[64];\n\
         \tsnprintf(line, sizeof line, \"part %d\", {number});\n\
         \treturn strlen(line) == 6 ? {rest} : 1;\n\
         }}\n"
    )
}

fn program<S: AsRef<OsStr>>(program: S, words: &[&OsStr]) -> Result<()> {
    let program = program.as_ref();
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}` failed: {status}", program.display());
    }
    Ok(())
}

fn reset(socket: impl AsFd) -> Result<()> {
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    Ok(setsockopt(&socket, Linger, &linger)?)
}
