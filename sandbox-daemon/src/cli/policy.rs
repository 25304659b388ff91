//! `sandbox policy`: check, list and show policies without a daemon.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use nix::unistd::{Uid, User};

use super::{
    args::{Output, PolicyCheckArgs, PolicyCommand, PolicyListArgs, PolicyShowArgs},
    caller::Caller,
    error::{CliError, Exit, WORKSPACE},
    json, print,
    ps::table,
    request::{PolicyArgument, read_policy},
    tell,
};
use crate::{
    config::Config,
    policy::{Additions, Document, Expansion, Mode, Policy, Sets, Source},
};

/// Files beside the policies that are none: the named sets, and what tokens begin with.
const DATA: [&str; 2] = ["sets.toml", "tokens.toml"];

/// Dispatches.
pub fn policy(command: &PolicyCommand) -> Result<Exit, CliError> {
    match command {
        PolicyCommand::Check(args) => check(args),
        PolicyCommand::List(args) => list(args),
        PolicyCommand::Show(args) => show(args),
    }
}

fn check(args: &PolicyCheckArgs) -> Result<Exit, CliError> {
    let caller = Caller::current()?;
    let mut sets = Sets::shipped()?;
    if args.sets.is_empty() {
        for path in Config::load(None)?.set_files {
            if path.exists() {
                sets.merge(&source(&path, &path)?)?;
            }
        }
    }
    for path in &args.sets {
        sets.merge(&source(&caller.cwd.join(path), path)?)?;
    }
    let workspace = args.workspace.as_deref().unwrap_or(Path::new("."));
    let document = Document::parse(&source(&caller.cwd.join(&args.file), &args.file)?, &sets)?;
    let expansion = Expansion {
        home: home()?,
        workspace: Some(caller.directory(WORKSPACE, workspace)?.into()),
        tmp: ["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from).into(),
        cache: Config::default().cache_directory.join("CACHE"),
    };
    let policy = document.resolve(&expansion, &Additions::default())?;
    if !document.warnings().is_empty() {
        tell(&format!("{}\n", document.warnings()));
    }
    print(&summary(&policy))?;
    Ok(Exit::Success)
}

fn source(path: &Path, shown: &Path) -> Result<Source, CliError> {
    let text = read_policy(path, shown)?;
    Ok(Source::new(shown.to_string_lossy(), text))
}

/// From the password database, as the daemon has it.
fn home() -> Result<PathBuf, CliError> {
    let error = |source| CliError::Io {
        operation: "find the home directory",
        source,
    };
    let user = User::from_uid(Uid::current()).map_err(|errno| error(errno.into()))?;
    let user = user.ok_or_else(|| error(ErrorKind::NotFound.into()))?;
    Ok(user.dir)
}

fn summary(policy: &Policy) -> String {
    let mode = match policy.mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
    };
    format!(
        "`{}` is valid: mode {mode}, {} file rules, network {}, sha256 {}\n",
        policy.name,
        policy.files.len(),
        policy.network.mode.as_str(),
        policy.digest
    )
}

#[derive(Debug, PartialEq, Eq, serde::Serialize)]
struct Installed {
    name: String,
    path: PathBuf,
}

fn list(args: &PolicyListArgs) -> Result<Exit, CliError> {
    let found = installed(&Config::load(None)?.policy_directories)?;
    print(&match args.output {
        Output::Json => json::pretty(&found),
        Output::Text => {
            let row = |policy: &Installed| [policy.name.clone(), policy.path.display().to_string()];
            table(&found.iter().map(row).collect::<Vec<_>>())
        }
    })?;
    Ok(Exit::Success)
}

fn show(args: &PolicyShowArgs) -> Result<Exit, CliError> {
    let PolicyArgument::Name(name) = PolicyArgument::parse(args.name.as_ref())? else {
        return Err(CliError::PolicyName {
            name: args.name.clone(),
        });
    };
    let found = installed(&Config::load(None)?.policy_directories)?;
    let policy = found
        .iter()
        .find(|policy| policy.name == name)
        .ok_or(CliError::UnknownPolicy { name })?;
    print(&read_policy(&policy.path, &policy.path)?)?;
    Ok(Exit::Success)
}

/// By name; a directory that does not exist has none.
fn installed(directories: &[PathBuf]) -> Result<Vec<Installed>, CliError> {
    let mut found: Vec<Installed> = Vec::new();
    for directory in directories {
        for path in entries(directory)? {
            let name = path.file_stem().and_then(|name| name.to_str());
            let Some(name) = name else { continue };
            if found.iter().all(|policy| policy.name != name) {
                found.push(Installed {
                    name: name.to_owned(),
                    path: path.clone(),
                });
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, CliError> {
    let error = |source| CliError::ReadPolicy {
        path: directory.to_owned(),
        source,
    };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(error(source)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(error)?.path();
        let is_policy = path.extension().is_some_and(|ending| ending == "toml");
        if is_policy
            && path
                .file_name()
                .is_some_and(|name| !DATA.iter().any(|it| name == *it))
        {
            paths.push(path);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_administrators_policy_hides_the_shipped_one() {
        let etc = tempfile::tempdir().unwrap();
        let usr = tempfile::tempdir().unwrap();
        for path in [
            etc.path().join("default.toml"),
            usr.path().join("default.toml"),
            usr.path().join("strict.toml"),
            usr.path().join(DATA[0]),
            usr.path().join("README"),
        ] {
            fs::write(path, "").unwrap();
        }
        let directories = [
            etc.path().to_owned(),
            usr.path().to_owned(),
            "/does/not/exist".into(),
        ];
        let found = installed(&directories).unwrap();
        let names: Vec<_> = found.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(names, ["default", "strict"]);
        assert!(found[0].path.starts_with(etc.path()));
    }
}
