//! Variables that lead programs to the proxy. A courtesy: refusals come with a
//! sentence. A program that ignores them is led there by the kernel all the same.

use std::net::Ipv4Addr;

use sandbox_common::{PROXY_ADDRESS, PROXY_PORT};

/// What stays on this machine.
const LOCAL: &str = "localhost,127.0.0.1,::1";

/// Names and values. Not among them: `JAVA_TOOL_OPTIONS`, of which every JVM
/// speaks on stderr, and `GIT_SSH_COMMAND`, which is the user's own.
pub fn variables() -> Vec<(&'static str, String)> {
    let proxy = format!("http://{}:{PROXY_PORT}", Ipv4Addr::from(PROXY_ADDRESS));
    let mut variables = Vec::new();
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        variables.push((name, proxy.clone()));
    }
    // curl reads no HTTP_PROXY, in which a CGI script finds a header.
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        variables.push((name, proxy.clone()));
    }
    variables.push(("NO_PROXY", LOCAL.into()));
    variables.push(("no_proxy", LOCAL.into()));
    // Node reads the others from 22.21 and 24.5 on, if it is told to.
    variables.push(("NODE_USE_ENV_PROXY", "1".into()));
    variables
}
