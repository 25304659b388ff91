//! The way to the proxy, with all walls up: real programs reach the names that
//! the policy has and no others, whatever becomes of the proxy.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox_daemon::proto::{Denial, Right};

use super::{perform, policy, refused};
use crate::{
    client::{self, Ran, Run},
    expect::attack,
    ground::{self, WORK},
    host::{self, DEV, ROOT, wait_until},
    outside::Connections,
};

crate::trials![
    curl_git_and_python_reach_the_names_of_the_policy_and_no_others,
    they_do_without_variables_as_well,
    an_address_is_refused_where_names_are_allowed,
    the_environment_names_the_proxy,
    a_proxy_that_is_killed_is_refused_until_another_one_runs,
    whoever_takes_the_proxys_port_is_not_reached,
];

/// A name server of the other host's: every name of `.example` is the host
/// itself. Not in `/etc/hosts`, which is read inside as well.
const NAMES: &str = r#"
import socket, struct
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("203.0.113.53", 53))
print("ready", flush=True)
while True:
    query, client = sock.recvfrom(4096)
    end = query.index(b"\0", 12) + 5
    name, kind = query[12:end - 4], query[end - 4:end - 2]
    known = name.endswith(b"\x07example\0")
    answers = known and kind == b"\0\x01"
    answer = query[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, int(answers), 0, 0)
    answer += query[12:end]
    if answers:
        answer += b"\xc0\x0c\0\x01\0\x01" + struct.pack(">IH", 60, 4) + bytes([203, 0, 113, 1])
    sock.sendto(answer, client)
"#;

const NETWORK: &str = "mode = \"proxy\"\nallow = [\"files.example\", \"git.example:443\"]";

const MAKE: &str = r#"
set -e
mkdir -p /srv/proxy/www && cd /srv/proxy
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 30 -subj /CN=ca -out ca.pem
openssl ecparam -name prime256v1 -genkey -noout -out key.pem
openssl req -new -key key.pem -subj /CN=files.example -out request.pem
printf 'subjectAltName=DNS:files.example,DNS:git.example,DNS:other.example,DNS:vault.example\n' > names
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 \
  -extfile names -out certificate.pem
echo "hello from files" > www/hello
git init -q --bare -b main www/project.git
git init -q -b main source && cd source
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m "the first commit"
git push -q ../www/project.git main
git -C ../www/project.git update-server-info
chmod -R a+rX /srv/proxy
"#;

/// Files over HTTP and HTTPS.
const SERVE: &str = r#"
import base64, functools, http.server, os, ssl, subprocess, threading
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.headers["Host"] != "vault.example": return super().do_GET()
        token = open("/srv/proxy/token").read()
        basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        if self.headers["Authorization"] not in (f"Bearer {token}", f"Basic {basic}"):
            return self.answer("401 Unauthorized", b"WWW-Authenticate: Basic\r\n", b"no\n")
        if not self.path.startswith("/git/"):
            return self.answer("200 OK", b"", f"{self.command} {self.path}\n".encode())
        path, _, query = self.path.removeprefix("/git").partition("?")
        length = self.headers["Content-Length"]
        if length: body = self.rfile.read(int(length))
        else: body = b"".join(iter(self.chunk, b"")) if self.command == "POST" else b""
        git = subprocess.run(["git", "-c", "safe.directory=*", "http-backend"], input=body, capture_output=True, env={
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": "/srv/proxy/www", "REMOTE_USER": "agent",
            "GIT_HTTP_EXPORT_ALL": "1", "REQUEST_METHOD": self.command, "PATH_INFO": path,
            "QUERY_STRING": query, "CONTENT_TYPE": self.headers["Content-Type"] or "",
            "CONTENT_LENGTH": str(len(body)), "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
            "GIT_PROTOCOL": self.headers["Git-Protocol"] or ""})
        head, _, rest = git.stdout.partition(b"\r\n\r\n")
        status = "200 OK"
        lines = []
        for line in head.split(b"\r\n"):
            if line.startswith(b"Status: "): status = line[8:].decode()
            else: lines.append(line + b"\r\n")
        self.answer(status, b"".join(lines), rest)
    do_POST = do_GET
    def chunk(self):
        piece = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return piece
    def answer(self, status, head, body):
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        self.wfile.write(f"HTTP/1.1 {status}\r\n".encode() + head + body)
        self.close_connection = True
handler = functools.partial(Handler, directory="/srv/proxy/www")
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/srv/proxy/certificate.pem", "/srv/proxy/key.pem")
plain = http.server.ThreadingHTTPServer(("203.0.113.1", 80), handler)
secure = http.server.ThreadingHTTPServer(("203.0.113.1", 443), handler)
secure.socket = context.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=plain.serve_forever, daemon=True).start()
print("ready", flush=True)
secure.serve_forever()
"#;

/// They end with the machine.
static SERVERS: LazyLock<[Child; 2]> = LazyLock::new(|| {
    host::output(ROOT, &["sh", "-c", MAKE]);
    let address = "ip -n outside addr add 203.0.113.53/32 dev lo";
    host::output(ROOT, &["sh", "-c", address]);
    fs::write("/srv/proxy/token", "nobody has it").unwrap();
    let servers = [serve(NAMES), serve(SERVE)];
    fs::write("/etc/resolv.conf", "nameserver 203.0.113.53\n").unwrap();
    servers
});

fn serve(program: &str) -> Child {
    let mut child = Command::new("ip")
        .args(["netns", "exec", "outside", "python3", "-c", program])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// With what the servers are trusted by.
const TRUST: [(&str, &str); 3] = [
    ("CURL_CA_BUNDLE", "/srv/proxy/ca.pem"),
    ("GIT_SSL_CAINFO", "/srv/proxy/ca.pem"),
    ("SSL_CERT_FILE", "/srv/proxy/ca.pem"),
];

const UNSET: &str = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy \
                     all_proxy no_proxy NODE_USE_ENV_PROXY; ";

fn with_devices(network: &str) -> String {
    policy(network).replace("\"${tmp}\"", "\"${tmp}\", \"@devices\"")
}

async fn script(uid: u32, network: &str, script: &str) -> Ran {
    LazyLock::force(&SERVERS);
    ground::make(uid);
    let spec = client::spec(uid, client::policy(&with_devices(network)), WORK);
    let mut start = client::start(spec, &["sh", "-c", script]);
    start.env_set = TRUST
        .map(|(name, value)| sandbox_daemon::proto::EnvVar {
            name: name.into(),
            value: value.into(),
        })
        .into();
    client::run(&mut client::root().await, start).await
}

fn told(denials: &[Denial]) -> Vec<(&str, &str, &str)> {
    denials
        .iter()
        .map(|it| {
            (
                it.operation.as_str(),
                it.object_display.as_str(),
                it.rule.as_str(),
            )
        })
        .collect()
}

/// Names of the other host's are known, and its files served.
pub(crate) async fn serve_names() {
    known().await;
}

/// What the servers are trusted by.
pub(crate) const OUTSIDE: &str = "/srv/proxy/ca.pem";

/// `vault.example` wants this token from now on, and the machine trusts the servers.
pub(crate) async fn serve_vault(token: &str) {
    LazyLock::force(&SERVERS);
    fs::write("/srv/proxy/token", token).unwrap();
    let installed = "/usr/local/share/ca-certificates/outside.crt";
    if fs::exists(installed).unwrap() {
        return;
    }
    fs::copy(OUTSIDE, installed).unwrap();
    host::output(ROOT, &["update-ca-certificates"]);
    let bundle = "/run/sandboxd/trust/bundle.pem";
    let certificate = fs::read_to_string(OUTSIDE).unwrap();
    wait_until("the daemon trusts the servers", || {
        fs::read_to_string(bundle).is_ok_and(|it| it.contains(certificate.trim_end()))
    })
    .await;
}

/// Waits for the daemon to have read `/etc/resolv.conf` again.
async fn known() {
    LazyLock::force(&SERVERS);
    for _ in 0..100 {
        let ran = script(DEV, NETWORK, "curl -sS http://files.example/hello").await;
        if ran.stdout == b"hello from files\n" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    panic!("the names are not known");
}

const REACH: &str = "curl -sS https://files.example/hello && \
    git clone -q https://git.example/project.git clone && git -C clone log --format=%s && \
    python3 -c 'import urllib.request as u; \
    print(u.urlopen(\"https://files.example/hello\").read().decode(), end=\"\")'";

/// Is refused, and is there for a while after.
const STAY: &str = "python3 -c '
import time, urllib.error, urllib.request
try: urllib.request.urlopen(\"http://other.example/hello\")
except urllib.error.HTTPError as error: assert error.code == 403
time.sleep(5)'";

async fn curl_git_and_python_reach_the_names_of_the_policy_and_no_others() {
    known().await;
    for uid in [DEV, ROOT] {
        let ran = script(uid, NETWORK, REACH).await;
        assert_eq!(
            ran.lines(),
            ["hello from files", "the first commit", "hello from files"],
            "{ran:?}"
        );
        assert_eq!(told(&ran.denials), [], "{ran:?}");

        let ran = script(uid, NETWORK, "curl -sS https://other.example/hello").await;
        assert_ne!(ran.code(), Some(0));
        let expected = ("connect", "other.example:443", "not in the allow list");
        assert_eq!(told(&ran.denials), [expected], "{ran:?}");
        // It may have ended before the proxy's word of it arrived.
        let exe = &ran.denials[0].exe_display;
        assert!(["curl", "/usr/bin/curl"].contains(&exe.as_str()), "{exe}");
        assert_eq!(ran.denials[0].right(), Right::Connect);

        let ran = script(uid, NETWORK, STAY).await;
        let expected = ("request", "other.example:80", "not in the allow list");
        assert_eq!(told(&ran.denials), [expected], "{ran:?}");
        let exe = &ran.denials[0].exe_display;
        assert!(exe.starts_with("/usr/bin/python3"), "{exe}");

        let ran = script(uid, NETWORK, "git ls-remote http://git.example/project.git").await;
        assert_ne!(ran.code(), Some(0));
        let expected = ("request", "git.example:80", "not in the allow list");
        assert_eq!(told(&ran.denials), [expected], "{ran:?}");
    }
    let control = "curl -sS --cacert /srv/proxy/ca.pem https://other.example/hello";
    assert_eq!(
        host::output(DEV, &["sh", "-c", control]),
        "hello from files\n"
    );
}

async fn they_do_without_variables_as_well() {
    known().await;
    for uid in [DEV, ROOT] {
        let ran = script(uid, NETWORK, &format!("{UNSET}{REACH}")).await;
        assert_eq!(
            ran.lines(),
            ["hello from files", "the first commit", "hello from files"],
            "{ran:?}"
        );
        assert_eq!(told(&ran.denials), [], "{ran:?}");

        let curl = format!("{UNSET}curl -sS https://other.example/hello");
        let ran = script(uid, NETWORK, &curl).await;
        assert_eq!(ran.code(), Some(6), "curl: could not resolve host: {ran:?}");
        let expected = ("resolve", "other.example", "not in the allow list");
        assert!(told(&ran.denials).contains(&expected), "{ran:?}");
    }
}

async fn an_address_is_refused_where_names_are_allowed() {
    let listener = Connections::at("203.0.113.1:7020");
    let refused = |step: &[&'static str], operation, address: &str| {
        let mut case = refused(step, operation, address);
        case.refusal.as_mut().unwrap().rule = "network proxy".into();
        case
    };
    let cases = [
        refused(
            &["tcp", "203.0.113.1:7020", "attack"],
            "connect",
            "203.0.113.1:7020",
        ),
        refused(
            &["tcp", "[2001:db8::1]:7020", "attack"],
            "connect",
            "[2001:db8::1]:7020",
        ),
        refused(
            &["udp", "203.0.113.1:7020", "attack"],
            "send",
            "203.0.113.1:7020",
        ),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, &cases).await;
        assert_eq!(
            host::attack(uid, "/", &["tcp", "203.0.113.1:7020", "control"]),
            "ok"
        );
        assert_eq!(listener.next(), "control");
    }
}

async fn the_environment_names_the_proxy() {
    let ran = script(DEV, NETWORK, "echo $https_proxy $HTTPS_PROXY $NO_PROXY").await;
    assert_eq!(
        ran.lines(),
        ["http://198.18.0.1:3128 http://198.18.0.1:3128 localhost,127.0.0.1,::1"]
    );
    let ran = script(DEV, "mode = \"none\"", "echo -$https_proxy-").await;
    assert_eq!(ran.lines(), ["--"]);
}

/// The proxy's process, a child of the daemon's.
fn proxy() -> Option<Pid> {
    let daemon = host::daemon();
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    let own = fs::read_to_string(children).unwrap_or_default();
    let mut threads = vec![own];
    for task in fs::read_dir(format!("/proc/{daemon}/task"))
        .unwrap()
        .flatten()
    {
        threads.extend(fs::read_to_string(task.path().join("children")));
    }
    let pids = threads.join(" ");
    let is_proxy = |pid: &&str| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sandbox-proxy\n")
    };
    let pid = pids.split_whitespace().find(is_proxy)?.parse().unwrap();
    Some(Pid::from_raw(pid))
}

async fn a_proxy_that_is_killed_is_refused_until_another_one_runs() {
    known().await;
    ground::make(DEV);
    let spec = client::spec(DEV, client::policy(&with_devices(NETWORK)), WORK);
    // One request a line; what came of it.
    let loop_ = "while read line; do curl -sS -o /dev/null -w '%{http_code}\\n' \
                 --connect-timeout 5 http://files.example/hello 2>/dev/null; done";
    let start = client::start(spec, &["sh", "-c", loop_]);
    let mut run = Run::start(&mut client::root().await, start).await.unwrap();
    run.write("1\n").await;
    assert_eq!(run.line().await, "200");
    let old = proxy().unwrap();
    // It does not run, and is not gone either: nobody starts another one.
    kill(old, Signal::SIGKILL).unwrap();
    wait_until("another proxy runs", || {
        proxy().is_some_and(|new| new != old)
    })
    .await;
    let mut answers = Vec::new();
    while answers.last().is_none_or(|it| it != "200") {
        run.write("2\n").await;
        answers.push(run.line().await);
        assert!(answers.len() < 100, "{answers:?}");
    }
    // In between: nothing, and never anybody else's answer.
    assert!(
        answers.iter().all(|it| it == "000" || it == "200"),
        "{answers:?}"
    );
    run.send(sandbox_daemon::proto::run_request::Request::CloseStdin(
        sandbox_daemon::proto::CloseStdin {},
    ))
    .await;
    let ran = run.end().await;
    assert!(
        ran.denials
            .iter()
            .all(|it| it.rule == "the proxy is away" && it.errno == Errno::ECONNREFUSED as u32),
        "{ran:?}"
    );
}

async fn whoever_takes_the_proxys_port_is_not_reached() {
    known().await;
    // The proxy's own port: only what the kernel led there gets an answer.
    let ports = host::output(ROOT, &["ss", "-Hltnp"]);
    let line = ports.lines().find(|line| line.contains("sandbox-proxy"));
    let port = line.unwrap().split_whitespace().nth(3).unwrap();
    let port: &'static str = Box::leak(port.to_owned().into_boxed_str());
    let case = attack(&["tcp", port, "attack"]).refused(
        Errno::EPERM,
        Right::Connect,
        "connect",
        port,
        "loopback",
    );
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, std::slice::from_ref(&case)).await;
    }
    // Outside it is no proxy at all.
    let answer = host::run(
        DEV,
        &["curl", "-sS", "-x", port, "http://files.example/hello"],
    );
    assert_ne!(host::text(&answer.stdout), "hello from files\n");
}
