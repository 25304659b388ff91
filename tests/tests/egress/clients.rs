//! Clients that nobody wrote for this project: how they are run, and what they
//! have to know of the world.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, ExitStatus, Output, Stdio},
};

mod table;

pub(crate) use self::table::CLIENTS;
use crate::world::{self, World};

/// What a client does, and how one sees that it worked.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: &'static str,
    /// For the README.
    pub(crate) does: &'static str,
    /// What a policy has to allow.
    pub(crate) allow: &'static [&'static str],
    /// For `sh -eu`.
    script: &'static str,
    /// What the script prints when everything came to pass.
    says: &'static [&'static str],
    pub(crate) knows: Knows,
}

/// Which of its clients' connections the proxy's variables lead to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knows {
    /// All of them.
    Proxies,
    /// None: it goes through transparently whatever is set.
    Nothing,
}

/// Whether the environment names a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variables {
    Set,
    Unset,
}

/// How a client ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    client: &'static Client,
    status: ExitStatus,
    printed: String,
    complaint: String,
}

impl Client {
    /// The command, for a sandbox or without one.
    pub(crate) fn command(&self, world: &World, variables: Variables) -> Command {
        let home = world.home();
        let work = home.join("work");
        fs::create_dir(&work).unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-euc", self.script])
            .current_dir(work)
            .env_clear()
            .envs(environment(&home));
        if variables == Variables::Set {
            command.envs(PROXY);
            // Java knows no other way to say both.
            let trust = java_options();
            let proxy = "-Dhttp.proxyHost=198.18.0.1 -Dhttp.proxyPort=3128 \
                         -Dhttps.proxyHost=198.18.0.1 -Dhttps.proxyPort=3128";
            command.env("JAVA_TOOL_OPTIONS", format!("{trust} {proxy}"));
        }
        command
    }

    /// The names that it connects to.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &'static str> {
        self.allow
            .iter()
            .map(|rule| rule.split_once(':').map_or(*rule, |(host, _)| host))
    }

    /// Its name as part of a test's.
    pub(crate) fn identifier(&self) -> String {
        let words: Vec<_> = self
            .name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        words.join("_").to_lowercase()
    }

    /// Runs it to its end as it is, without a sandbox.
    pub(crate) fn run(&'static self, world: &World, variables: Variables) -> Outcome {
        let mut command = self.command(world, variables);
        let output = command.stdin(Stdio::null()).output().unwrap();
        Outcome::new(self, &output)
    }
}

impl Outcome {
    pub(crate) fn new(client: &'static Client, output: &Output) -> Self {
        Self {
            client,
            status: output.status,
            printed: String::from_utf8_lossy(&output.stdout).into_owned(),
            complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn worked(&self) -> bool {
        let says = |text: &&str| self.printed.contains(*text);
        self.status.success() && self.client.says.iter().all(says)
    }

    pub(crate) fn assert_worked(&self) {
        assert!(
            self.worked(),
            "{} ({}): {}\n{}{}\nnot all of {:?}",
            self.client.name,
            self.client.does,
            self.status,
            self.printed,
            self.complaint,
            self.client.says
        );
    }
}

/// The variables that name a proxy, and their companions.
const PROXY: [(&str, &str); 7] = [
    ("HTTP_PROXY", "http://198.18.0.1:3128"),
    ("HTTPS_PROXY", "http://198.18.0.1:3128"),
    ("http_proxy", "http://198.18.0.1:3128"),
    ("https_proxy", "http://198.18.0.1:3128"),
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
    ("NODE_USE_ENV_PROXY", "1"),
];

/// What each client needs to know of the world: where its registry is, and
/// whose certificates are good.
fn environment(home: &Path) -> Vec<(&'static str, String)> {
    let path = |path: &str| world::root().join(path).display().to_string();
    let here = |path: &str| home.join(path).display().to_string();
    let authority = path("tls/ca.pem");
    let number = home.file_name().unwrap_or_default().to_string_lossy();
    settings(home, &authority);
    let mut environment = vec![
        (
            "PATH",
            format!(
                "{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                path("tools/rust/bin")
            ),
        ),
        ("HOME", here("")),
        ("LANG", "C.UTF-8".to_owned()),
        ("NUMBER", number.into_owned()),
        ("CLIENTS", path("tools/clients")),
        ("NODE_PATH", path("tools/libraries/node_modules")),
        ("PYTHONPATH", path("tools/libraries/python")),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("APT_CONFIG", here("apt.conf")),
        ("CARGO_HOME", here("cargo")),
        (
            "CARGO_REGISTRIES_WORLD_INDEX",
            "sparse+https://crates.example/index/".to_owned(),
        ),
        ("GIT_CONFIG_GLOBAL", here("gitconfig")),
        (
            "GIT_SSH_COMMAND",
            format!("ssh -F {} -i {}", path("ssh/config"), here("key")),
        ),
        ("GOFLAGS", "-mod=mod".to_owned()),
        ("GOPROXY", "https://go.example".to_owned()),
        ("GOSUMDB", "off".to_owned()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".to_owned()),
        ("PIP_INDEX_URL", "https://pypi.example/simple/".to_owned()),
        ("PIP_RETRIES", "0".to_owned()),
        ("WGETRC", here("wgetrc")),
        ("npm_config_audit", "false".to_owned()),
        ("npm_config_fetch_retries", "0".to_owned()),
        ("npm_config_registry", "https://npm.example/".to_owned()),
        ("npm_config_update_notifier", "false".to_owned()),
        ("JAVA_TOOL_OPTIONS", java_options()),
    ];
    let trusting = [
        "CARGO_HTTP_CAINFO",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "NODE_EXTRA_CA_CERTS",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_FILE",
        "npm_config_cafile",
    ];
    environment.extend(trusting.map(|name| (name, authority.clone())));
    environment
}

fn java_options() -> String {
    format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStorePassword=changeit",
        world::root().join("tls/ca.p12").display()
    )
}

/// Settings of those clients that have no variable for them.
fn settings(home: &Path, authority: &str) {
    let root = home.join("work/root");
    let apt = format!(
        "Dir \"{root}\";\nDir::State::status \"{root}/var/lib/dpkg/status\";\n\
         Dir::Bin::methods \"/usr/lib/apt/methods\";\n\
         Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n\
         DPkg::Options {{ \"--root={root}\"; \"--force-not-root\"; \"--force-bad-path\"; }};\n\
         APT::Sandbox::User \"\";\nAcquire::https::CaInfo \"{authority}\";\n\
         Acquire::Retries \"0\";\nAcquire::Languages \"none\";\n",
        root = root.display()
    );
    let git = "[user]\nname = Nobody\nemail = nobody@git.example\n";
    fs::write(home.join("apt.conf"), apt).unwrap();
    fs::write(home.join("gitconfig"), git).unwrap();
    fs::write(
        home.join("wgetrc"),
        format!("ca_certificate = {authority}\ntries = 1\n"),
    )
    .unwrap();
    let key = home.join("key");
    fs::copy(world::root().join("ssh/user"), &key).unwrap();
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
}
