//! `sandbox version`: of the client, and of the daemon if there is one.

use serde::Serialize;

use super::{
    args::{Output, VersionArgs},
    block_on,
    error::{CliError, Exit},
    host::Host,
    json, print, tell,
};
use crate::proto::GetInfoRequest;

/// This build's.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    daemon: Option<String>,
    kernel: Option<String>,
}

/// Prints them. A daemon that does not answer is told, and is a failure, but
/// the client's version is printed all the same.
pub fn version(args: &VersionArgs, host: &Host) -> Result<Exit, CliError> {
    let info = block_on(async {
        let mut client = host.connect().await?;
        Ok(client.get_info(GetInfoRequest {}).await?.into_inner())
    });
    let (daemon, kernel) = match &info {
        Ok(info) => (Some(info.version.clone()), Some(info.kernel.clone())),
        Err(_) => (None, None),
    };
    let versions = Versions {
        client: VERSION,
        daemon,
        kernel,
    };
    print(&match args.output {
        Output::Text => text(&versions),
        Output::Json => json::pretty(&versions),
    })?;
    match info {
        Ok(_) => Ok(Exit::Success),
        Err(error) => {
            tell(&error.render());
            Ok(error.exit())
        }
    }
}

fn text(versions: &Versions) -> String {
    let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "not reachable".to_owned());
    format!(
        "client  {}\ndaemon  {}\nkernel  {}\n",
        versions.client,
        or(&versions.daemon),
        or(&versions.kernel)
    )
}
