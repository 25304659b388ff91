//! `cargo xtask bench hooks`, inside a guest whose clock counts instructions,
//! with sandboxd installed and not running. Prints a measurement a line.

mod calls;
mod commands;
mod daemon;
mod runs;
mod verifier;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::chown,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

/// The guest's ordinary user, whose programs are measured.
const USER: u32 = 1000;
const WORKSPACE: &str = "/home/dev/project";

/// Something that is measured.
struct Row {
    name: &'static str,
    /// See `calls`.
    what: &'static str,
    path: &'static str,
    /// Whether Landlock has to do with it.
    landlock: bool,
    /// Processes that measure the same.
    processes: usize,
}

const fn row(name: &'static str, what: &'static str, path: &'static str) -> Row {
    Row {
        name,
        what,
        path,
        landlock: false,
        processes: 5,
    }
}

/// Files have ten directories above them, and are something else to a policy
/// each.
const ROWS: [Row; 10] = [
    Row {
        landlock: true,
        ..row(
            "open and close in the workspace",
            "open",
            "/home/dev/project/4/5/6/7/8/9/10/file",
        )
    },
    Row {
        landlock: true,
        ..row(
            "open and close in the home directory",
            "open",
            "/home/dev/3/4/5/6/7/8/9/10/file",
        )
    },
    Row {
        landlock: true,
        ..row(
            "open and close elsewhere",
            "open",
            "/usr/local/share/4/5/6/7/8/9/10/file",
        )
    },
    row(
        "stat in the workspace",
        "stat",
        "/home/dev/project/4/5/6/7/8/9/10/file",
    ),
    Row {
        landlock: true,
        ..row(
            // A disk's journal would add more than is to be measured.
            "create and unlink in `/dev/shm`",
            "make",
            "/dev/shm/4/5/6/7/8/9/10/new",
        )
    },
    row(
        "read of 4 KiB",
        "read",
        "/home/dev/project/4/5/6/7/8/9/10/file",
    ),
    row("connect and accept on loopback", "connect", "-"),
    row(
        "connect and accept on a Unix socket",
        "connect-unix",
        "/home/dev/project/socket",
    ),
    row("start and end of `true`", "start", "-"),
    Row {
        processes: 2,
        ..row("build of ten C files", "build", WORKSPACE)
    },
];

fn main() -> Result<()> {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let words: Vec<_> = words.iter().map(OsString::as_os_str).collect();
    match words[..] {
        [] => measure(),
        [what, path] => calls::print(&what.to_string_lossy(), path),
        [what, path, how] if how == RESTRICTED => {
            calls::restrict()?;
            calls::print(&what.to_string_lossy(), path)
        }
        _ => bail!("usage: bench-hooks [WHAT PATH [{RESTRICTED}]]"),
    }
}

/// The word for a process that restricts itself first.
const RESTRICTED: &str = "restricted";

fn measure() -> Result<()> {
    let pins = Path::new(sandbox_daemon::kernel::PIN_DIRECTORY);
    if pins.exists() {
        bail!("programs are loaded already: `{}` exists", pins.display());
    }
    for row in ROWS.iter().filter(|row| row.path.starts_with('/')) {
        make(Path::new(row.path))?;
    }

    // What a machine does once after its start is in nobody's figures.
    for row in &ROWS {
        once(row, &[], &[])?;
    }
    let mut before = Vec::new();
    for row in &ROWS {
        before.push(best(row, "no programs loaded", &[], &[])?);
    }
    for row in ROWS.iter().filter(|row| row.landlock) {
        best(row, "Landlock, one layer", &[], &[RESTRICTED])?;
    }

    let watch = verifier::Watch::start()?;
    let daemon = daemon::start()?;
    let verified = watch.finish()?;
    report(
        "start of sandboxd",
        "to its first answer",
        daemon.started,
        "ms",
    );
    report("the verifier's part of it", "", verified, "ms");

    for (row, before) in ROWS.iter().zip(before) {
        let outside = best(row, "outside of sandboxes", &[], &[])?;
        // The counting is not in the figures.
        let counting = runs::Counting::start()?;
        let (_, calls) = once(row, &[], &[])?;
        let hooked = counting.finish()? / calls;
        report(row.name, "programs run outside", hooked, "for each");
        // One build differs from another by more than the programs come to.
        if hooked >= 0.5 && row.what != "build" {
            let more = (outside - before) / hooked;
            report(row.name, "more for each of them", more, "instructions each");
        }
    }
    let sandbox = ["sandbox", "run", "-w", WORKSPACE, "--"];
    for row in &ROWS {
        best(row, "in a sandbox", &sandbox, &[])?;
    }
    daemon.end()
}

/// Measures with several processes, and reports the best.
fn best(row: &Row, case: &str, before: &[&str], after: &[&str]) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..row.processes {
        best = best.min(once(row, before, after)?.0);
    }
    report(row.name, case, best, "instructions");
    Ok(best)
}

/// Measures with one process: what one call takes, and how many there were.
fn once(row: &Row, before: &[&str], after: &[&str]) -> Result<(f64, f64)> {
    let own = own([row.what, row.path])?;
    let words: Vec<&str> = before
        .iter()
        .copied()
        .chain(own.iter().map(String::as_str))
        .chain(after.iter().copied())
        .collect();
    let text = commands::output(&words)?;
    let (takes, calls) = text.trim().split_once(' ').context("no two numbers")?;
    Ok((takes.parse()?, calls.parse()?))
}

/// This program, with other arguments.
fn own<const N: usize>(words: [&str; N]) -> Result<Vec<String>> {
    let program = env::current_exe()?.to_string_lossy().into_owned();
    let words = words.into_iter().map(str::to_owned);
    Ok([program].into_iter().chain(words).collect())
}

/// Makes a file, or nothing where there is a directory, and gives it to the user.
fn make(file: &Path) -> Result<()> {
    if file == Path::new(WORKSPACE) {
        return Ok(());
    }
    let directory = file.parent().context("no directory")?;
    fs::create_dir_all(directory)?;
    if file.file_name() == Some(OsStr::new("file")) {
        fs::write(file, "")?;
    }
    for path in file.ancestors().filter(|path| path.exists()) {
        let own = ["/home/dev/", "/dev/shm/"].map(Path::new);
        if own.iter().any(|own| path.starts_with(own) && path != *own) {
            chown(path, Some(USER), Some(USER))?;
        }
    }
    Ok(())
}

/// The command of these words, as the ordinary user.
fn command<S: AsRef<OsStr>>(words: &[S]) -> Command {
    use std::os::unix::process::CommandExt as _;

    let mut command = Command::new(words.first().map_or(OsStr::new(""), AsRef::as_ref));
    command
        .args(&words[1..])
        .current_dir(WORKSPACE)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("HOME", "/home/dev")])
        .uid(USER)
        .gid(USER);
    command
}

fn report(row: &str, case: &str, value: f64, unit: &str) {
    println!(
        "{}",
        json!({ "row": row, "case": case, "value": value, "unit": unit })
    );
}
