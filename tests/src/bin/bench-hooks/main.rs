//! `cargo xtask bench hooks`, inside a guest whose clock counts instructions,
//! with sandboxd installed and not running. Prints a measurement a line.

mod commands;
mod daemon;
mod opening;
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

/// Processes that measure the same.
const PROCESSES: usize = 5;

/// Files with ten directories above them, and what they are to a policy.
const FILES: [(&str, &str); 3] = [
    (
        "open and close in the workspace",
        "/home/dev/project/4/5/6/7/8/9/10/file",
    ),
    (
        "open and close in the home directory",
        "/home/dev/3/4/5/6/7/8/9/10/file",
    ),
    (
        "open and close elsewhere",
        "/usr/local/share/4/5/6/7/8/9/10/file",
    ),
];

fn main() -> Result<()> {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let words: Vec<_> = words.iter().map(OsString::as_os_str).collect();
    match words[..] {
        [] => measure(),
        [verb, file] if verb == "open" => opening::print(file),
        [verb, file] if verb == "open-restricted" => {
            opening::restrict()?;
            opening::print(file)
        }
        _ => bail!("usage: bench-hooks [open FILE | open-restricted FILE]"),
    }
}

fn measure() -> Result<()> {
    let pins = Path::new(sandbox_daemon::kernel::PIN_DIRECTORY);
    if pins.exists() {
        bail!("programs are loaded already: `{}` exists", pins.display());
    }
    for (_, file) in FILES {
        make(Path::new(file))?;
    }

    // What a machine does once after its start is in nobody's figures.
    for (_, file) in FILES {
        commands::output(&[&own(["open"])?[..], &[file.to_owned()]].concat())?;
    }
    opens("no programs loaded", &own(["open"])?)?;
    opens("Landlock, one layer", &own(["open-restricted"])?)?;
    let run = "`true`, start to end";
    report(run, "directly", commands::time(&["true"])?, "ms");
    let bwrap = ["bwrap", "--ro-bind", "/", "/", "--unshare-pid", "true"];
    report(run, "bwrap", commands::time(&bwrap)?, "ms");

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

    opens("outside of sandboxes", &own(["open"])?)?;
    let sandbox = ["sandbox", "run", "-w", WORKSPACE, "--"];
    let inside: Vec<_> = sandbox.iter().map(|word| (*word).to_owned()).collect();
    opens("in a sandbox", &[inside, own(["open"])?].concat())?;
    let run_true = [&sandbox[..], &["true"]].concat();
    report(run, "sandbox run", commands::time(&run_true)?, "ms");
    daemon.end()
}

/// Measures all files with a program that is started by these words, several
/// times, and reports the best.
fn opens(case: &str, words: &[String]) -> Result<()> {
    for (row, file) in FILES {
        let mut best = f64::INFINITY;
        for _ in 0..PROCESSES {
            let text = commands::output(&[words, &[file.to_owned()]].concat())?;
            best = best.min(text.trim().parse().context("no number")?);
        }
        report(row, case, best, "instructions");
    }
    Ok(())
}

/// This program, with other arguments.
fn own<const N: usize>(words: [&str; N]) -> Result<Vec<String>> {
    let program = env::current_exe()?.to_string_lossy().into_owned();
    let words = words.into_iter().map(str::to_owned);
    Ok([program].into_iter().chain(words).collect())
}

fn make(file: &Path) -> Result<()> {
    let directory = file.parent().context("no directory")?;
    fs::create_dir_all(directory)?;
    fs::write(file, "")?;
    for path in file.ancestors() {
        if path.starts_with("/home/dev/") && path != Path::new("/home/dev") {
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
