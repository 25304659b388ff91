//! Variables that lead programs to the proxy. A courtesy: refusals come with a
//! sentence. A program that ignores them is led there by the kernel all the same.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use sandbox_common::{PROXY_ADDRESS, PROXY_PORT};

use crate::{policy::Direct, sandbox::Variable};

/// Variables that name a file of authorities whose certificates a program believes,
/// in the place of its own or beside them.
pub(super) const FILES: [&str; 16] = [
    "AWS_CA_BUNDLE",
    "BUNDLE_SSL_CA_CERT",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HEX_CACERTS_PATH",
    "JULIA_SSL_CA_ROOTS_PATH",
    "NIX_SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    // OpenSSL, and with it Python, Ruby, Go, uv.
    "SSL_CERT_FILE",
    "npm_config_cafile",
];

/// The variable that names a directory of them.
pub(super) const DIRECTORY: &str = "SSL_CERT_DIR";

/// The longest list of what is reached without the proxy: the kernel takes no
/// variable of more than 128 KiB. The proxy lets the rest through itself.
const MAX_LIST: usize = 16 << 10;

/// Names and values, where the policy names these addresses. Not among them:
/// `JAVA_TOOL_OPTIONS`, of which every JVM speaks on stderr, and
/// `GIT_SSH_COMMAND`, which is the user's own.
pub fn variables(direct: &[Direct]) -> Vec<(&'static str, String)> {
    let proxy = format!("http://{}:{PROXY_PORT}", Ipv4Addr::from(PROXY_ADDRESS));
    let mut variables = Vec::new();
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        variables.push((name, proxy.clone()));
    }
    // curl reads no HTTP_PROXY, in which a CGI script finds a header.
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        variables.push((name, proxy.clone()));
    }
    let without = without(direct);
    variables.push(("NO_PROXY", without.clone()));
    variables.push(("no_proxy", without));
    // Node reads the others from 22.21 and 24.5 on, if it is told to.
    variables.push(("NODE_USE_ENV_PROXY", "1".into()));
    variables
}

/// Variables that lead programs to a file of authorities, and the one that would
/// lead some past it.
pub(super) fn authorities(file: &Path) -> (Vec<Variable>, &'static str) {
    let value = file.as_os_str().as_bytes();
    let set = FILES
        .iter()
        .map(|name| (name.as_bytes().to_vec(), value.to_vec()));
    (set.collect(), DIRECTORY)
}

/// What stays on this machine, and what the kernel lets through. Without ports,
/// which not every program reads: at another one the proxy refuses it as well.
fn without(direct: &[Direct]) -> String {
    let local = [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv6Addr::LOCALHOST.into(),
    ];
    let named = direct.iter().map(|it| it.address);
    let mut seen = HashSet::new();
    let mut list = "localhost".to_owned();
    for address in local.into_iter().chain(named) {
        let entry = format!(",{address}");
        if seen.insert(address) && list.len() + entry.len() <= MAX_LIST {
            list.push_str(&entry);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Document, Sets, Source};

    fn direct(address: impl Into<IpAddr>, port: Option<u16>) -> Direct {
        Direct {
            address: address.into(),
            port,
            label: String::new(),
        }
    }

    fn value(direct: &[Direct], name: &str) -> String {
        let mut variables = variables(direct).into_iter();
        variables.find(|it| it.0 == name).unwrap().1
    }

    #[test]
    fn addresses_that_the_policy_names_are_reached_without_the_proxy() {
        let named = [
            direct([192, 0, 2, 10], Some(5432)),
            direct([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], None),
            direct([192, 0, 2, 10], Some(5433)),
            direct([127, 0, 0, 1], Some(8080)),
        ];
        for name in ["NO_PROXY", "no_proxy"] {
            assert_eq!(value(&[], name), "localhost,127.0.0.1,::1");
            assert_eq!(
                value(&named, name),
                "localhost,127.0.0.1,::1,192.0.2.10,2001:db8::1"
            );
        }
        assert_eq!(value(&named, "HTTPS_PROXY"), "http://198.18.0.1:3128");
    }

    #[test]
    fn no_dummy_takes_the_place_of_what_leads_programs() {
        let sets = Sets::shipped().unwrap();
        let read = |env: &str| {
            let text = format!(
                "version = 1\n[network]\nmode = \"proxy\"\nallow = [\"a.test\"]\n\
                 [[credential]]\nname = \"a\"\nhosts = [\"a.test\"]\nenv = \"{env}\"\n"
            );
            Document::parse(&Source::new("p.toml", text), &sets)
        };
        let proxy = variables(&[]).into_iter().map(|(name, _)| name);
        for name in proxy.chain(FILES).chain([DIRECTORY]) {
            assert!(read(name).is_err(), "{name}");
        }
        assert!(read("A_TOKEN").is_ok());
    }

    #[test]
    fn thousands_of_addresses_leave_a_variable_that_the_kernel_takes() {
        let many: Vec<_> = (0..4096)
            .map(|last| direct([0x2001, 0xdb8, 1, 2, 3, 4, 0xffff, 0x1000 + last], None))
            .collect();
        let list = value(&many, "NO_PROXY");
        assert!(list.len() <= MAX_LIST && list.len() > MAX_LIST / 2);
        let mut entries = list.split(',').skip(1);
        assert!(entries.all(|it| it.parse::<IpAddr>().is_ok()));
    }
}
