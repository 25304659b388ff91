//! `sandbox secret`: values go to the daemon, and only names come back.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    path::Path,
};

use bytes::Bytes;
use nix::unistd::User;
use sandbox_proxy::credential::{MAX_SECRET, SecretValue, is_name};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{
    args::{Output, SecretCommand, SecretListArgs, SecretRmArgs, SecretSetArgs},
    block_on,
    error::{CliError, Exit},
    host::Host,
    json::{pretty, time},
    print,
    prompt::{self, Answer},
    ps::table,
    tell,
};
use crate::{
    escape::printable,
    proto::{DeleteSecretRequest, ListSecretsRequest, Secret, SetSecretRequest},
    secrets::{SecretError, Secrets},
};

/// Sets, lists or removes.
pub fn secret(command: &SecretCommand, host: &Host) -> Result<Exit, CliError> {
    match command {
        SecretCommand::Set(args) => set(args, host),
        SecretCommand::List(args) => list(args, host),
        SecretCommand::Rm(args) => rm(args, host),
    }
}

fn set(args: &SecretSetArgs, host: &Host) -> Result<Exit, CliError> {
    if !args.value.is_empty() {
        return Err(CliError::SecretArgument);
    }
    if !is_name(&args.name) {
        return Err(SecretError::Name.into());
    }
    let uid = uid(args.user.as_deref())?;
    let value = match &args.file {
        Some(path) => of_file(path)?,
        None if io::stdin().is_terminal() => match prompt::ask("secret: ")? {
            Answer::Given(line) => value(line)?,
            Answer::Signal(signal) => return Ok(Exit::signal(signal)),
        },
        None => value(read(io::stdin().lock()).map_err(|source| CliError::Io {
            operation: "read stdin",
            source,
        })?)?,
    };
    block_on(async {
        let mut client = host.connect().await?;
        let request = SetSecretRequest {
            name: args.name.clone(),
            value: Bytes::copy_from_slice(value.expose().as_bytes()),
            uid,
        };
        client.set_secret(request).await?;
        Ok(Exit::Success)
    })
}

fn list(args: &SecretListArgs, host: &Host) -> Result<Exit, CliError> {
    let uid = uid(args.user.as_deref())?;
    let secrets = block_on(async {
        let mut client = host.connect().await?;
        let response = client.list_secrets(ListSecretsRequest { uid }).await?;
        Ok(response.into_inner().secrets)
    })?;
    print(&match args.output {
        Output::Text => table(&rows(&secrets)),
        Output::Json => json(&secrets),
    })?;
    Ok(Exit::Success)
}

/// All that can be removed is; the exit status is that of the last which cannot.
fn rm(args: &SecretRmArgs, host: &Host) -> Result<Exit, CliError> {
    let uid = uid(args.user.as_deref())?;
    block_on(async {
        let mut client = host.connect().await?;
        let mut exit = Exit::Success;
        for name in &args.names {
            let name = name.clone();
            if let Err(status) = client
                .delete_secret(DeleteSecretRequest { name, uid })
                .await
            {
                let error = CliError::from(status);
                tell(&error.render());
                exit = error.exit();
            }
        }
        Ok(exit)
    })
}

fn of_file(path: &Path) -> Result<SecretValue, CliError> {
    let bytes = File::open(path)
        .and_then(read)
        .map_err(|source| CliError::Path {
            what: "the file",
            path: path.into(),
            source,
        })?;
    value(bytes)
}

/// All of it, or more than a secret may have.
fn read(from: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    let most = MAX_SECRET + "\r\n".len() + 1;
    // With room for all of it: a buffer that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(most));
    from.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Without the line break that an editor or `echo` adds.
fn value(mut bytes: Zeroizing<Vec<u8>>) -> Result<SecretValue, CliError> {
    if bytes.ends_with(b"\n") {
        bytes.pop();
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
    }
    Ok(Secrets::value(std::mem::take(&mut *bytes))?)
}

/// Of `--user`: a name, or a number.
fn uid(user: Option<&str>) -> Result<Option<u32>, CliError> {
    let Some(user) = user else { return Ok(None) };
    if let Ok(uid) = user.parse() {
        return Ok(Some(uid));
    }
    match User::from_name(user) {
        Ok(Some(found)) => Ok(Some(found.uid.as_raw())),
        _ => Err(CliError::UnknownUser { name: user.into() }),
    }
}

fn rows(secrets: &[Secret]) -> Vec<[String; 2]> {
    let mut rows = vec![["NAME", "SET"].map(str::to_owned)];
    rows.extend(secrets.iter().map(|secret| {
        let set = time(secret.set_time.as_ref());
        // Seconds do.
        let seconds = set.get(..19).map(|seconds| format!("{seconds}Z"));
        [printable(&secret.name), seconds.unwrap_or_default()]
    }));
    rows
}

#[derive(Serialize)]
struct SecretJson<'a> {
    name: &'a str,
    set_time: String,
}

fn json(secrets: &[Secret]) -> String {
    let list: Vec<_> = secrets
        .iter()
        .map(|secret| SecretJson {
            name: &secret.name,
            set_time: time(secret.set_time.as_ref()),
        })
        .collect();
    pretty(&list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &[u8]) -> Result<String, CliError> {
        value(read(text).unwrap()).map(|value| value.expose().to_owned())
    }

    #[test]
    fn one_final_line_break_is_removed() {
        for text in [&b"hunter2"[..], b"hunter2\n", b"hunter2\r\n"] {
            assert_eq!(given(text).unwrap(), "hunter2");
        }
        for bad in [&b"hunter2\n\n"[..], b"\n", b"", b"hunter2 \n", b"a\nb\n"] {
            let error = given(bad).unwrap_err();
            assert!(!error.render().contains("hunter2"));
        }
    }

    #[test]
    fn as_much_as_there_may_be_is_taken_and_not_a_part_of_more() {
        let most = vec![b'a'; MAX_SECRET];
        assert_eq!(given(&most).unwrap().len(), MAX_SECRET);
        assert!(given(&[&most[..], b"\r\n"].concat()).is_ok());
        assert!(given(&[&most[..], b"a"].concat()).is_err());
        assert!(given(&[&most[..], b"a\r\n"].concat()).is_err());
        assert!(given(&[&most[..], b"\n\nmore"].concat()).is_err());
    }

    #[test]
    fn a_user_is_a_name_or_a_number() {
        assert_eq!(uid(None).unwrap(), None);
        assert_eq!(uid(Some("4211")).unwrap(), Some(4211));
        assert_eq!(uid(Some("root")).unwrap(), Some(0));
        let error = uid(Some("nobody-of-that-name")).unwrap_err();
        assert!(matches!(error, CliError::UnknownUser { .. }));
    }
}
