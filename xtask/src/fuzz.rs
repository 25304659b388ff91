//! `cargo xtask fuzz`: what an attacker's bytes meet first, fed with ever other
//! ones for a while, from the seeds in the checkout. cargo-fuzz builds it, with
//! flags that are unstable, and keeps what it builds in the cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::{binaries::cargo, cache::Cache, host, outcome::Tally};

const CARGO_FUZZ: &str = "0.13.2";

/// The crate with the targets, and with a directory of seeds for each.
const CRATE: &str = "sandbox-daemon/proxy/fuzz";

/// How long each target runs where nothing else is said.
pub(crate) const SECONDS: u32 = 10;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each target runs
    #[arg(long, default_value_t = SECONDS, value_name = "N")]
    seconds: u32,
    /// Run only these targets
    target: Vec<String>,
}

pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode> {
    let (tally, _) = run(arguments.seconds, &arguments.target)?;
    println!("{tally}");
    Ok(if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs targets, all without any; how many held, and which did not.
pub(crate) fn run(seconds: u32, only: &[String]) -> Result<(Tally, Vec<String>)> {
    let root = crate::binaries::workspace().join(CRATE);
    let targets = targets(&root)?;
    if let Some(unknown) = only.iter().find(|it| !targets.contains(it)) {
        bail!(
            "no fuzz target is named `{unknown}`: {}",
            targets.join(", ")
        );
    }
    let built = build(&root)?;
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for target in targets {
        if !only.is_empty() && !only.contains(&target) {
            continue;
        }
        let clean = fuzz(&root, &built, &target, seconds)?;
        tally += Tally::of(clean);
        if !clean {
            failures.push(target);
        }
    }
    Ok((tally, failures))
}

fn targets(root: &Path) -> Result<Vec<String>> {
    let directory = root.join("fuzz_targets");
    let entries = fs::read_dir(&directory)
        .with_context(|| format!("cannot read `{}`", directory.display()))?;
    let mut targets = Vec::new();
    for entry in entries {
        let path = entry?.path();
        targets.extend(path.file_stem().map(|it| it.to_string_lossy().into_owned()));
    }
    targets.sort();
    Ok(targets)
}

/// Builds all targets; the directory that they are in.
fn build(root: &Path) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let tool = cargo_fuzz(&cache)?;
    let built = cache.path().join("fuzz-target");
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    // Of the same settings as the project's other builds.
    let mut command = Command::new(tool);
    command.args(["fuzz", "build", "--target", &triple, "--fuzz-dir"]);
    command.arg(root).arg("--target-dir").arg(&built);
    host::run(
        command
            .current_dir(root)
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("CARGO_TARGET_DIR")
            // Sanitizers are unstable; for this child only.
            .env("RUSTC_BOOTSTRAP", "1"),
    )?;
    Ok(built.join(triple).join("release"))
}

fn cargo_fuzz(cache: &Cache) -> Result<PathBuf> {
    let root = cache.path().join(format!("cargo-fuzz-{CARGO_FUZZ}"));
    let program = root.join("bin/cargo-fuzz");
    if !program.is_file() {
        eprintln!("fuzz: building cargo-fuzz {CARGO_FUZZ} (a minute)");
        host::run(
            cargo()
                .args(["install", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ])
                .arg("--root")
                .arg(&root)
                // Not in the checkout, whose settings are for the project.
                .current_dir(cache.path()),
        )?;
    }
    Ok(program)
}

/// Runs one target, and prints a line; whether there was no finding. What it
/// finds worth keeping on the way is not kept.
fn fuzz(root: &Path, built: &Path, target: &str, seconds: u32) -> Result<bool> {
    let corpus = tempfile::tempdir().context("no temporary directory")?;
    let artifacts = root.join("artifacts").join(target);
    fs::create_dir_all(&artifacts)
        .with_context(|| format!("cannot create `{}`", artifacts.display()))?;
    let start = Instant::now();
    let output = Command::new(built.join(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-timeout=10", "-max_len=4096", "-rss_limit_mb=2048"])
        .arg(corpus.path())
        .arg(root.join("seeds").join(target))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start the fuzz target `{target}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let clean = output.status.success();
    println!(
        "test fuzz::{target} ... {} ({} inputs in {:.0} s)",
        if clean { "ok" } else { "FAILED" },
        runs(&said).unwrap_or("no"),
        start.elapsed().as_secs_f64()
    );
    if !clean {
        println!("{}", host::tail(&said, 60));
    }
    Ok(clean)
}

/// `Done 423243 runs in 21 second(s)`
fn runs(said: &str) -> Option<&str> {
    let line = said.lines().rev().find_map(|it| it.strip_prefix("Done "))?;
    line.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_runs_is_read_from_the_last_line() {
        assert_eq!(runs("INFO: x\nDone 42 runs in 1 second(s)\n"), Some("42"));
        assert_eq!(runs("==1== ERROR: libFuzzer: deadly signal"), None);
    }

    #[test]
    fn every_target_has_seeds() {
        let root = crate::binaries::workspace().join(CRATE);
        let targets = targets(&root).unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            let seeds = fs::read_dir(root.join("seeds").join(&target));
            assert!(seeds.is_ok_and(|it| it.count() > 0), "{target}");
        }
    }
}
