//! Clients that nobody wrote for this project: how they are run, and what they
//! have to know of the world.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, ExitStatus, Output, Stdio},
};

mod locked;
mod table;

pub(crate) use self::{locked::LOCKED, table::CLIENTS};
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

/// A client whose server wants a token, which it sends if `$TOKEN` is one.
#[derive(Debug)]
pub(crate) struct Locked {
    /// That of the [`Client`].
    pub(crate) name: &'static str,
    pub(crate) host: &'static str,
    /// How it sends the token, as in a policy.
    pub(crate) scheme: &'static str,
    /// For `sh -eu`.
    script: &'static str,
    /// What the script prints when everything came to pass.
    says: &'static [&'static str],
}

/// Where a client looks for authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// In the world's.
    World,
    /// Wherever the environment says that it has them.
    Environment,
}

/// How a client ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    name: &'static str,
    says: &'static [&'static str],
    status: ExitStatus,
    printed: String,
    complaint: String,
}

impl Client {
    /// What it does, for `sh -c`, in a sandbox or outside.
    pub(crate) fn script(&self, world: &World, variables: Variables) -> String {
        prepared(world, variables, Trust::World, self.script)
    }

    /// The names that it connects to.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &'static str> {
        self.allow
            .iter()
            .map(|rule| rule.split_once(':').map_or(*rule, |(host, _)| host))
    }

    /// Its name as part of a test's.
    pub(crate) fn identifier(&self) -> String {
        identifier(self.name)
    }

    /// Runs it to its end as it is, without a sandbox.
    pub(crate) fn run(&'static self, world: &World, variables: Variables) -> Outcome {
        self.outcome(&alone(&self.script(world, variables)))
    }

    pub(crate) fn outcome(&self, output: &Output) -> Outcome {
        Outcome::new(self.name, self.says, output)
    }
}

impl Locked {
    /// What it does, for `sh -c`, with this token; none: with what the environment
    /// has in its place.
    pub(crate) fn script(
        &self,
        world: &World,
        variables: Variables,
        trust: Trust,
        token: Option<&str>,
    ) -> String {
        let token = token.map(|it| format!("export TOKEN='{it}'; "));
        let script = prepared(world, variables, trust, self.script);
        format!("{}{script}", token.unwrap_or_default())
    }

    /// Runs it to its end without a sandbox.
    pub(crate) fn run(&self, world: &World, token: &str) -> Outcome {
        let script = self.script(world, Variables::Unset, Trust::World, Some(token));
        self.outcome(&alone(&script))
    }

    pub(crate) fn outcome(&self, output: &Output) -> Outcome {
        Outcome::new(self.name, self.says, output)
    }
}

/// A script in a home of its own, with what its client has to know of the world.
fn prepared(world: &World, variables: Variables, trust: Trust, script: &str) -> String {
    let home = world.home();
    fs::create_dir(home.join("work")).unwrap();
    settings(&home);
    let environment: String = environment(&home, variables, trust)
        .into_iter()
        .map(|(name, value)| format!("export {name}='{value}'\n"))
        .chain(
            PROXY
                .iter()
                .filter(|_| variables == Variables::Unset)
                .map(|(name, _)| format!("unset {name}\n")),
        )
        .collect();
    fs::write(home.join("environment"), environment).unwrap();
    let home = home.display();
    format!("set -eu; . {home}/environment; cd {home}/work{script}")
}

/// A script without a sandbox.
fn alone(script: &str) -> Output {
    Command::new("sh")
        .args(["-c", script])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A client's name as part of a test's.
pub(crate) fn identifier(name: &str) -> String {
    let words: Vec<_> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    words.join("_").to_lowercase()
}

impl Outcome {
    fn new(name: &'static str, says: &'static [&'static str], output: &Output) -> Self {
        Self {
            name,
            says,
            status: output.status,
            printed: String::from_utf8_lossy(&output.stdout).into_owned(),
            complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn worked(&self) -> bool {
        let says = |text: &&str| self.printed.contains(*text);
        self.status.success() && self.says.iter().all(says)
    }

    /// Whether the sandbox's denials name this host.
    pub(crate) fn was_told_of(&self, host: &str) -> bool {
        let mut lines = self.complaint.lines();
        lines.any(|line| line.contains(": denied ") && line.contains(host))
    }

    pub(crate) fn assert_failed(&self) {
        assert!(!self.worked(), "{self:?}");
    }

    pub(crate) fn assert_worked(&self) {
        assert!(
            self.worked(),
            "{}: {}\n{}{}\nnot all of {:?}",
            self.name,
            self.status,
            self.printed,
            self.complaint,
            self.says
        );
    }
}

/// What works in a sandbox, as the README has it.
pub(crate) fn table() -> String {
    let mut table = "| client | does | with the proxy's variables | without them | with a \
                     credential added |\n| --- | --- | --- | --- | --- |\n"
        .to_owned();
    for client in CLIENTS {
        let with = match client.knows {
            Knows::Proxies => "through the proxy they name",
            Knows::Nothing => "does not read them; transparently",
        };
        let locked = LOCKED.iter().find(|it| it.name == client.name);
        let added = locked.map_or("—", |_| "works");
        table.extend([
            "| ",
            client.name,
            " | ",
            client.does,
            " | ",
            with,
            " | transparently | ",
            added,
            " |\n",
        ]);
    }
    table
}

/// The variables that name a proxy, and their companions.
const PROXY: [(&str, &str); 9] = [
    ("HTTP_PROXY", "http://198.18.0.1:3128"),
    ("HTTPS_PROXY", "http://198.18.0.1:3128"),
    ("ALL_PROXY", "http://198.18.0.1:3128"),
    ("http_proxy", "http://198.18.0.1:3128"),
    ("https_proxy", "http://198.18.0.1:3128"),
    ("all_proxy", "http://198.18.0.1:3128"),
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
    ("NODE_USE_ENV_PROXY", "1"),
];

/// What each client needs to know of the world: where its registry is, and
/// whose certificates are good.
fn environment(home: &Path, variables: Variables, trust: Trust) -> Vec<(&'static str, String)> {
    let path = |path: &str| world::root().join(path).display().to_string();
    let here = |path: &str| home.join(path).display().to_string();
    let authority = path("tls/ca.pem");
    let number = home.file_name().unwrap_or_default().to_string_lossy();
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
        ("JAVA_TOOL_OPTIONS", java_options(variables)),
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
    if trust == Trust::World {
        environment.extend(trusting.map(|name| (name, authority.clone())));
    }
    if variables == Variables::Set {
        environment.extend(PROXY.map(|(name, value)| (name, value.to_owned())));
    }
    environment
}

/// Java reads no certificates in PEM, and no variable that names a proxy.
fn java_options(variables: Variables) -> String {
    let trust = format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStorePassword=changeit",
        world::root().join("tls/ca.p12").display()
    );
    match variables {
        Variables::Set => format!(
            "{trust} -Dhttp.proxyHost=198.18.0.1 -Dhttp.proxyPort=3128 \
             -Dhttps.proxyHost=198.18.0.1 -Dhttps.proxyPort=3128"
        ),
        Variables::Unset => trust,
    }
}

/// Settings of those clients that have no variable for them.
fn settings(home: &Path) {
    let authority = world::root().join("tls/ca.pem").display().to_string();
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
