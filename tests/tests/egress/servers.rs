//! The servers of the world: what there is, under which names, and what they
//! need. They themselves are Python, in `tests/servers`.

use std::{
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::json;

use crate::world;

/// The world's only name server.
pub(crate) const DNS: &str = "203.0.113.53";
/// Which tokens the servers know, a line each.
pub(crate) const TOKENS: &str = "tokens";
/// The servers' end of the cable, as `serve.py` knows it.
pub(crate) const WIRE: &str = "world";
/// Addresses that a name must not lead to, and where there is a web server all
/// the same: what is refused would have worked.
pub(crate) const BEYOND: [&str; 2] = ["10.0.0.5", "169.254.169.254"];

/// Every name and its addresses, by turns: each question for an IPv4 address takes
/// the next turn, and the last one stays.
const NAMES: &[(&str, &[&[&str]])] = &[
    ("echo.example", &[&["203.0.113.10"]]),
    ("ws.example", &[&["203.0.113.11"]]),
    ("git.example", &[&["203.0.113.12"]]),
    ("npm.example", &[&["203.0.113.13"]]),
    ("pypi.example", &[&["203.0.113.14"]]),
    ("crates.example", &[&["203.0.113.15"]]),
    ("go.example", &[&["203.0.113.16"]]),
    ("apt.example", &[&["203.0.113.17"]]),
    ("db.example", &[&["203.0.113.18"]]),
    ("raw.example", &[&["203.0.113.19"]]),
    ("old.example", &[&["203.0.113.20"]]),
    ("h2.example", &[&["203.0.113.21"]]),
    // A web server that no policy names.
    ("other.example", &[&["203.0.113.22"]]),
    // They want a token.
    ("api.example", &[&["203.0.113.30"]]),
    ("crates.locked.example", &[&["203.0.113.30"]]),
    ("git.locked.example", &[&["203.0.113.30"]]),
    ("go.locked.example", &[&["203.0.113.30"]]),
    ("npm.locked.example", &[&["203.0.113.30"]]),
    ("pypi.locked.example", &[&["203.0.113.30"]]),
    // Over HTTP/2.
    ("api2.example", &[&["203.0.113.21"]]),
    // Repositories.
    ("code.example", &[&["203.0.113.33"]]),
    // Of the examples of docs/policy.md.
    ("api.anthropic.com", &[&["203.0.113.30"]]),
    ("api.github.com", &[&["203.0.113.30"]]),
    ("github.com", &[&["203.0.113.33"]]),
    ("registry.npmjs.org", &[&["203.0.113.30"]]),
    // Keeps the bytes that come inside TLS.
    ("tap.example", &[&["203.0.113.31"]]),
    // The same, and answers a request once all of it is there.
    ("waiting.example", &[&["203.0.113.34"]]),
    ("expired.example", &[&["203.0.113.32"]]),
    ("selfsigned.example", &[&["203.0.113.32"]]),
    ("wronghost.example", &[&["203.0.113.32"]]),
    ("six.example", &[&["2001:db8::10"]]),
    ("both.example", &[&["2001:db8::10", "203.0.113.10"]]),
    // A first address where nobody answers.
    ("patient.example", &[&["203.0.113.99", "203.0.113.10"]]),
    ("private.example", &[&["10.0.0.5"]]),
    ("loopback.example", &[&["127.0.0.1"]]),
    ("loopback6.example", &[&["::1"]]),
    ("metadata.example", &[&["169.254.169.254"]]),
    ("self.example", &[&[world::HERE]]),
    ("mixed.example", &[&["10.0.0.5", "203.0.113.10"]]),
    ("rebind.example", &[&["203.0.113.10"], &["10.0.0.5"]]),
    (
        "turncoat.example",
        &[
            &["203.0.113.10"],
            &["203.0.113.10"],
            &["203.0.113.10"],
            &["203.0.113.10"],
            &["203.0.113.10"],
            &["203.0.113.10"],
            &["10.0.0.5"],
        ],
    ),
    ("none.example", &[&[]]),
];

/// Addresses with a web server, beside [`BEYOND`].
const WEB: [&str; 12] = [
    "203.0.113.10",
    "203.0.113.11",
    "203.0.113.12",
    "203.0.113.13",
    "203.0.113.14",
    "203.0.113.15",
    "203.0.113.16",
    "203.0.113.17",
    "203.0.113.22",
    "203.0.113.30",
    "203.0.113.32",
    "2001:db8::10",
];

/// Writes what the servers read: the zone, certificates, keys.
pub(crate) fn prepare(root: &Path) {
    let web: Vec<_> = WEB.into_iter().chain(BEYOND).collect();
    let one = |name: &str| {
        let (_, turns) = NAMES.iter().find(|(known, _)| *known == name).unwrap();
        turns[0][0]
    };
    let mut addresses = vec![DNS];
    addresses.extend(&web);
    addresses.extend(
        ["db", "raw", "old", "h2", "tap", "waiting", "code"]
            .map(|name| one(&format!("{name}.example"))),
    );
    let zone = json!({
        "addresses": addresses,
        "names": NAMES.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
        "web": web,
        "servers": {
            "dns": DNS,
            "db": one("db.example"),
            "http2": one("h2.example"),
            "old": one("old.example"),
            "raw": one("raw.example"),
            "repositories": one("code.example"),
            "ssh": one("git.example"),
            "tap": one("tap.example"),
            "waiting": one("waiting.example"),
        },
    });
    fs::write(root.join("zone.json"), zone.to_string()).unwrap();
    for directory in ["tls", "ssh", "git", "repositories"] {
        fs::create_dir(root.join(directory)).unwrap();
    }
    fs::write(root.join(TOKENS), "").unwrap();
    certificates(&root.join("tls"));
    keys(&root.join("ssh"));
}

/// Starts the servers in namespaces of their own.
pub(crate) fn start(root: &Path, program: &Path) -> Child {
    Command::new("unshare")
        .args(["--net", "--mount", "/usr/bin/python3", "-B"])
        .arg(program)
        .arg(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// An authority of the world's own, one certificate for every name, and some that
/// are for nobody.
fn certificates(tls: &Path) {
    let names: Vec<_> = NAMES
        .iter()
        .map(|(name, _)| format!("DNS:{name}"))
        .chain(
            [DNS, "203.0.113.10", "10.0.0.5"]
                .into_iter()
                .filter(|address| address.parse::<IpAddr>().is_ok())
                .map(|address| format!("IP:{address}")),
        )
        .collect();
    let settings = format!(
        "[req]\ndistinguished_name = dn\n[dn]\n\
         [authority]\nbasicConstraints = critical, CA:TRUE\n\
         keyUsage = critical, keyCertSign\nsubjectKeyIdentifier = hash\n\
         [server]\nbasicConstraints = critical, CA:FALSE\n\
         keyUsage = critical, digitalSignature\nextendedKeyUsage = serverAuth\n\
         subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n\
         subjectAltName = {}\n\
         [wronghost]\nsubjectAltName = DNS:elsewhere.example\n\
         [selfsigned]\nsubjectAltName = DNS:selfsigned.example\n\
         [expired]\nsubjectAltName = DNS:expired.example\n\
         [ca]\ndefault_ca = own\n[own]\nnew_certs_dir = .\ndatabase = index\n\
         rand_serial = yes\ndefault_md = sha256\npolicy = any\n\
         [any]\ncommonName = supplied\n",
        names.join(", ")
    );
    fs::write(tls.join("openssl.cnf"), settings).unwrap();
    let request = |words: &str| {
        run(
            tls,
            "openssl",
            &format!(
                "req -x509 -config openssl.cnf -newkey ec -pkeyopt \
                 ec_paramgen_curve:P-256 -nodes -days 30 {words}"
            ),
        );
    };
    request("-extensions authority -subj /CN=authority -keyout ca.key -out ca.pem");
    request(
        "-extensions server -subj /CN=server -CA ca.pem -CAkey ca.key \
         -keyout server.key -out server.pem",
    );
    request(
        "-extensions wronghost -subj /CN=wronghost -CA ca.pem -CAkey ca.key -keyout wronghost.key -out wronghost.pem",
    );
    request(
        "-extensions selfsigned -subj /CN=selfsigned -keyout selfsigned.key -out selfsigned.pem",
    );
    // `req -x509` makes none that is over.
    fs::write(tls.join("index"), "").unwrap();
    run(
        tls,
        "openssl",
        "req -new -config openssl.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
         -subj /CN=expired -keyout expired.key -out expired.csr",
    );
    run(
        tls,
        "openssl",
        "ca -batch -notext -config openssl.cnf -extensions expired -cert ca.pem -keyfile ca.key \
         -startdate 20200101000000Z -enddate 20200201000000Z -in expired.csr -out expired.pem",
    );
    // Java reads no PEM.
    run(
        tls,
        "keytool",
        "-importcert -noprompt -alias authority -file ca.pem -keystore ca.p12 \
         -storetype PKCS12 -storepass changeit",
    );
}

/// The server's key and the user's, and what the client must know of them.
fn keys(ssh: &Path) {
    for key in ["host", "user"] {
        run(
            ssh,
            "ssh-keygen",
            &format!("-q -t ed25519 -N  -C {key} -f {key}"),
        );
    }
    let host = fs::read_to_string(ssh.join("host.pub")).unwrap();
    fs::write(ssh.join("known_hosts"), format!("git.example {host}")).unwrap();
    let settings = format!(
        "User root\nBatchMode yes\nIdentitiesOnly yes\n\
         UserKnownHostsFile {}\nGlobalKnownHostsFile /dev/null\n",
        ssh.join("known_hosts").display()
    );
    fs::write(ssh.join("config"), settings).unwrap();
    // Each client makes its own copy, as ssh wants to own its key.
    fs::set_permissions(ssh.join("user"), fs::Permissions::from_mode(0o644)).unwrap();
}

/// Runs a program to its end; two spaces in a row hold an empty word.
fn run(directory: &Path, program: &str, words: &str) {
    let output = Command::new(program)
        .args(words.split(' '))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "`{program} {words}` failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
