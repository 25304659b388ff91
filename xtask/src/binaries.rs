//! The programs of the checkout, built by cargo.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// The daemon, its proxy, and the client.
pub(crate) struct Binaries {
    pub(crate) sandbox: PathBuf,
    pub(crate) sandboxd: PathBuf,
    pub(crate) proxy: PathBuf,
}

impl Binaries {
    pub(crate) fn build(release: bool) -> Result<Self> {
        let mut arguments = vec!["build"];
        for name in ["sandbox", "sandboxd", "sandbox-proxy"] {
            arguments.extend(["--bin", name]);
        }
        if release {
            arguments.push("--release");
        }
        let built = executables(&arguments)?;
        Ok(Self {
            sandbox: named(&built, "sandbox")?,
            sandboxd: named(&built, "sandboxd")?,
            proxy: named(&built, "sandbox-proxy")?,
        })
    }
}

/// Builds the test target `name` of the end-to-end tests, without running it.
pub(crate) fn test_program(name: &str) -> Result<PathBuf> {
    executables(&[
        "test",
        "--package",
        "sandbox-tests",
        "--test",
        name,
        "--no-run",
    ])?
    .into_iter()
    .find(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(&format!("{name}-"))
    })
    .with_context(|| format!("cargo built no test program `{name}`"))
}

/// Builds a program of the end-to-end tests that runs inside a guest.
pub(crate) fn guest_program(name: &str, release: bool) -> Result<PathBuf> {
    let mut arguments = vec!["build", "--bin", name];
    if release {
        arguments.push("--release");
    }
    named(&executables(&arguments)?, name)
}

/// The checkout's root.
pub(crate) fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Runs cargo and returns the programs that it made. Packages are not named:
/// with the default members it resolves features as a plain `cargo build`
/// does, and compiles nothing twice.
fn executables(arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let output = cargo()
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start `cargo`")?;
    if !output.status.success() {
        bail!("`cargo {}` failed", arguments[0]);
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// The cargo that runs this program, in the checkout.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    // Set for this program by `cargo run`; those of other packages differ.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    cargo.env_remove("CARGO_MANIFEST_DIR");
    cargo.env_remove("CARGO_MANIFEST_PATH");
    cargo
}

fn named(programs: &[PathBuf], name: &str) -> Result<PathBuf> {
    let path = programs
        .iter()
        .find(|path| path.file_name() == Some(name.as_ref()));
    path.cloned()
        .with_context(|| format!("cargo built no program `{name}`"))
}

#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

fn parse(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"anyhow"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"sandbox"},"executable":"/target/debug/sandbox"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(parse(messages), [PathBuf::from("/target/debug/sandbox")]);
    }
}
