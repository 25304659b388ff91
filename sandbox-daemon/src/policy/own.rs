//! What belongs to sandboxd itself, and what a sandbox may do with it whatever
//! its policy says: who could write here would say what sandboxes may do.

use std::path::Path;

use super::model::{Access, FileRule, Place};

/// What events call these rules.
pub const LABEL: &str = "sandboxd";

/// Places, and the most that is allowed there.
const PLACES: [(&str, Access); 4] = [
    // Settings, policies, sets: they may be looked at.
    ("/etc/sandboxd", Access::Read),
    ("/usr/lib/sandboxd", Access::Read),
    // State: sandboxes of others, keys.
    ("/run/sandboxd", Access::Deny),
    ("/var/lib/sandboxd", Access::Deny),
];

/// Variables that say who and where a command is, and lead it to the proxy and to
/// the certificates of its hosts.
const VARIABLES: [&str; 36] = [
    "HOME",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TMPDIR",
    "USER",
    // The proxy, in either case.
    "ALL_PROXY",
    "FTP_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NODE_USE_ENV_PROXY",
    "NO_PROXY",
    "npm_config_https_proxy",
    "npm_config_noproxy",
    "npm_config_proxy",
    // Certificates.
    "AWS_CA_BUNDLE",
    "BUNDLE_SSL_CA_CERT",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "DENO_TLS_CA_STORE",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HEX_CACERTS_PATH",
    "JULIA_SSL_CA_ROOTS_PATH",
    "NIX_SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "UV_SYSTEM_CERTS",
    "npm_config_cafile",
];

/// Whether a variable is one that sandboxd gives its value.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with("SANDBOX") || VARIABLES.iter().any(|it| it.eq_ignore_ascii_case(name))
}

/// Those, and the daemon's state where it is elsewhere.
pub(super) fn places(state: Option<&Path>) -> Vec<(&Path, Access)> {
    let usual = PLACES.iter().map(|(path, most)| (Path::new(*path), *most));
    usual
        .chain(state.map(|path| (path, Access::Deny)))
        .collect()
}

/// Whether a rule allows more than that.
pub(super) fn exceeds(access: Access, most: Access) -> bool {
    match access {
        Access::Deny => false,
        Access::Read => most == Access::Deny,
        Access::Write => true,
    }
}

/// What a rule must not open; nothing: it opens none of it.
pub(super) fn opened<'r>(rule: &'r FileRule, places: &[(&Path, Access)]) -> Option<&'r Path> {
    let Place::Path(path) = &rule.place else {
        return None;
    };
    places
        .iter()
        .filter(|(place, _)| path.starts_with(place))
        .any(|(_, most)| exceeds(rule.access, *most))
        .then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(path: &str, access: Access) -> bool {
        let rule = FileRule {
            place: Place::Path(path.into()),
            access,
            label: path.into(),
        };
        opened(&rule, &places(Some(Path::new("/srv/state")))).is_some()
    }

    #[test]
    fn what_is_sandboxds_own_is_opened_by_no_rule() {
        assert!(opens("/etc/sandboxd", Access::Write));
        assert!(opens("/etc/sandboxd/policies/own.toml", Access::Write));
        assert!(!opens("/etc/sandboxd/policies", Access::Read));
        assert!(opens("/var/lib/sandboxd/ca", Access::Read));
        assert!(!opens("/var/lib/sandboxd/ca", Access::Deny));
        assert!(opens("/srv/state/secrets/1000", Access::Read));
        assert!(!opens("/srv", Access::Write));
        assert!(!opens("/etc", Access::Write));
        assert!(!opens("/etc/sandboxd-other", Access::Write));
    }
}
