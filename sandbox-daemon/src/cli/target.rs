//! What people call sandboxes and execs: an id, the beginning of one, a name.

use tonic::transport::Channel;

use super::error::CliError;
use crate::{
    escape::printable,
    proto::{Exec, ListSandboxesRequest, Sandbox, sandboxes_client::SandboxesClient},
};

/// What was meant.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// A sandbox.
    Sandbox(Box<Sandbox>),
    /// An exec, and where it is.
    Exec(Box<Sandbox>, Box<Exec>),
}

/// Asks the daemon what there is, and finds what was meant.
pub(super) async fn find(
    client: &mut SandboxesClient<Channel>,
    meant: &str,
) -> Result<Target, CliError> {
    choose(&list(client).await?, meant)
}

/// All that the caller may see.
pub(super) async fn list(client: &mut SandboxesClient<Channel>) -> Result<Vec<Sandbox>, CliError> {
    let response = client.list_sandboxes(ListSandboxesRequest {}).await?;
    Ok(response.into_inner().sandboxes)
}

/// Whether something with this id and this name is meant.
type Guess<'a> = &'a dyn Fn(&str, &str) -> bool;

/// What is meant among these.
pub(super) fn choose(sandboxes: &[Sandbox], meant: &str) -> Result<Target, CliError> {
    // A whole id means nothing else; a name is somebody's choice; the beginning of
    // an id is the last guess.
    let is_id = |id: &str, _: &str| id == meant;
    let is_name = |_: &str, name: &str| !name.is_empty() && name == meant;
    let begins = |id: &str, _: &str| !meant.is_empty() && id.starts_with(meant);
    let guesses: [Guess<'_>; 3] = [&is_id, &is_name, &begins];
    for matches in guesses {
        let mut found = Vec::new();
        for sandbox in sandboxes {
            let name = sandbox.spec.as_ref().map_or("", |spec| &spec.name);
            if matches(&sandbox.id, name) {
                found.push(Target::Sandbox(Box::new(sandbox.clone())));
            }
            for exec in &sandbox.execs {
                if matches(&exec.id, "") {
                    let (sandbox, exec) = (sandbox.clone(), exec.clone());
                    found.push(Target::Exec(Box::new(sandbox), Box::new(exec)));
                }
            }
        }
        if found.len() > 1 {
            return Err(ambiguous(meant, found.iter().map(Target::describe)));
        }
        if let Some(found) = found.pop() {
            return Ok(found);
        }
    }
    Err(CliError::UnknownId {
        id: meant.to_owned(),
    })
}

fn ambiguous(meant: &str, found: impl Iterator<Item = String>) -> CliError {
    CliError::Ambiguous {
        id: meant.to_owned(),
        found: found.collect::<Vec<_>>().join("\n  "),
    }
}

impl Target {
    /// The sandbox that was meant: for an exec the one that it has to itself.
    pub(super) fn sandbox(self) -> Result<Sandbox, CliError> {
        match self {
            Self::Sandbox(sandbox) => Ok(*sandbox),
            Self::Exec(sandbox, _) if sandbox.execs.len() == 1 => Ok(*sandbox),
            Self::Exec(sandbox, exec) => Err(CliError::NotAlone {
                exec: exec.id,
                sandbox: sandbox.id,
            }),
        }
    }

    /// The detached exec that was meant: for a sandbox the only one.
    pub(super) fn detached(self) -> Result<Exec, CliError> {
        match self {
            Self::Exec(_, exec) => Ok(*exec),
            Self::Sandbox(sandbox) => {
                let mut found: Vec<_> = sandbox.execs.iter().filter(|it| it.detached).collect();
                if found.len() > 1 {
                    let found = found.iter().map(|exec| describe(exec));
                    return Err(ambiguous(&sandbox.id, found));
                }
                found.pop().cloned().ok_or(CliError::NothingDetached {
                    sandbox: sandbox.id,
                })
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Exec(_, exec) => describe(exec),
            Self::Sandbox(sandbox) => {
                let name = sandbox.spec.as_ref().map_or("", |spec| &spec.name);
                format!("sandbox {}  {}", printable(&sandbox.id), printable(name))
                    .trim_end()
                    .to_owned()
            }
        }
    }
}

fn describe(exec: &Exec) -> String {
    let command = printable(&exec.argv.join(" "));
    let end = command.floor_char_boundary(60);
    format!("exec {}  {}", printable(&exec.id), &command[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::SandboxSpec;

    fn exec(id: &str, detached: bool) -> Exec {
        Exec {
            id: id.into(),
            argv: vec!["sleep".into(), "9".into()],
            detached,
            ..Exec::default()
        }
    }

    fn sandbox(id: &str, name: &str, execs: Vec<Exec>) -> Sandbox {
        Sandbox {
            id: id.into(),
            spec: Some(SandboxSpec {
                name: name.into(),
                ..SandboxSpec::default()
            }),
            execs,
            ..Sandbox::default()
        }
    }

    fn there() -> [Sandbox; 3] {
        [
            sandbox("aa11", "web", vec![exec("ee11", true)]),
            sandbox("aa22", "ee", vec![exec("ee22", true), exec("ff22", true)]),
            sandbox("bb33", "twin", vec![]),
        ]
    }

    fn id(meant: &str) -> Result<String, String> {
        match choose(&there(), meant) {
            Ok(Target::Sandbox(sandbox)) => Ok(sandbox.id),
            Ok(Target::Exec(_, exec)) => Ok(exec.id),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn an_id_its_beginning_and_a_name_are_understood() {
        for (meant, found) in [
            ("aa11", "aa11"),
            ("ee11", "ee11"),
            ("b", "bb33"),
            ("f", "ff22"),
            ("web", "aa11"),
            // A name, although ids begin like it.
            ("ee", "aa22"),
        ] {
            assert_eq!(id(meant).as_deref(), Ok(found), "{meant}");
        }
        assert_eq!(id(""), Err("there is no exec or sandbox ``".into()));
        assert!(id("zz").is_err());
    }

    #[test]
    fn what_may_be_several_is_listed() {
        assert_eq!(
            id("aa").unwrap_err(),
            "`aa` may be any of these:\n  sandbox aa11  web\n  sandbox aa22  ee"
        );
        let mut there = there();
        there[2].spec.as_mut().unwrap().name = "web".into();
        let error = choose(&there, "web").unwrap_err().to_string();
        assert!(error.contains("sandbox aa11") && error.contains("sandbox bb33"));
    }

    #[test]
    fn a_sandbox_stands_for_its_only_detached_exec_and_the_other_way_round() {
        let there = there();
        let target = |meant| choose(&there, meant).unwrap();
        assert_eq!(target("web").detached().unwrap().id, "ee11");
        assert_eq!(target("ee11").sandbox().unwrap().id, "aa11");
        let several = target("aa22").detached().unwrap_err().to_string();
        assert!(several.contains("exec ee22  sleep 9\n  exec ff22"));
        assert!(matches!(
            target("bb33").detached(),
            Err(CliError::NothingDetached { .. })
        ));
        assert!(matches!(
            target("ff22").sandbox(),
            Err(CliError::NotAlone { .. })
        ));
    }
}
