//! `sandbox policy`: check, list and show policies without a daemon.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{
    args::{Output, PolicyCommand, PolicyListArgs, PolicyShowArgs},
    error::{CliError, Exit},
    json, print,
    ps::table,
    request::{PolicyArgument, read_policy},
};

/// Where installed policies are; the first one of a name is in force.
const DIRECTORIES: [&str; 2] = ["/etc/sandboxd/policies", "/usr/lib/sandboxd/policies"];

/// The file that defines the sets lies beside the policies and is none.
const SETS: &str = "sets.toml";

/// Dispatches.
pub fn policy(command: &PolicyCommand) -> Result<Exit, CliError> {
    match command {
        PolicyCommand::List(args) => list(args),
        PolicyCommand::Show(args) => show(args),
    }
}

#[derive(Debug, PartialEq, Eq, serde::Serialize)]
struct Installed {
    name: String,
    path: PathBuf,
}

fn list(args: &PolicyListArgs) -> Result<Exit, CliError> {
    let found = installed(&DIRECTORIES.map(PathBuf::from))?;
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
    let found = installed(&DIRECTORIES.map(PathBuf::from))?;
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
        if is_policy && path.file_name().is_some_and(|name| name != SETS) {
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
            usr.path().join(SETS),
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
