//! Whose a secret is, and for how long: sandboxes, users, values and proxies come and
//! go.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    thread,
};

use nix::sys::signal::{Signal, kill};

use super::{Held, NOTHING, came, set, shoot, token};
use crate::{
    Test,
    attacks::{Attack, Shot, attacker, marker, proxy_of, running_proxy, under, wait_for},
    tests,
    world::{self, World},
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_secret_that_is_not_set_keeps_a_command_from_starting,
        another_value_is_used_from_the_next_request_on,
        sandboxes_with_different_secrets_share_nothing,
        a_sandbox_without_the_credential_has_no_use_for_its_dummy,
        a_secret_of_another_user_is_not_used,
        the_next_proxy_has_another_authority_and_is_believed,
    ]
}

const API: &[&str] = &["api.example"];

fn a_secret_that_is_not_set_keeps_a_command_from_starting(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, API, "");
    assert!(daemon.script(&policy, "true").status.success());
    held.remove(daemon);
    let home = world.home();
    let output = daemon.script(&policy, &format!("touch {}/begun", home.display()));
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let name = &held.name;
    let remedy =
        format!("secret `{name}` of credential `{name}` is not set: `sandbox secret set {name}`");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains(&remedy), "{complaint}");
    assert!(!home.join("begun").exists());
}

/// One client on one connection, that asks when it is told to.
struct Client<'scope> {
    home: PathBuf,
    path: String,
    asked: u32,
    thread: thread::ScopedJoinHandle<'scope, Attack>,
}

impl<'scope> Client<'scope> {
    fn begin(
        scope: &'scope thread::Scope<'scope, '_>,
        world: &'scope World,
        daemon: &'scope sandbox_tests::egress::Daemon,
        policy: &Path,
        count: u32,
    ) -> Self {
        let (home, path, policy) = (world.home(), format!("/{}", marker()), policy.to_owned());
        let arguments = [
            "api.example",
            &path,
            &count.to_string(),
            &home.display().to_string(),
        ];
        let script = attacker("hold.py", &arguments);
        let thread = scope.spawn(move || under(daemon, &policy, &script));
        Self {
            home,
            path,
            asked: 0,
            thread,
        }
    }

    fn ask(&mut self) {
        let file = |what: &str| self.home.join(format!("{what}-{}", self.asked));
        fs::write(file("go"), "").unwrap();
        wait_for(|| (file("done").exists() || self.thread.is_finished()).then_some(()));
        self.asked += 1;
    }

    fn end(self) -> Attack {
        self.thread.join().unwrap()
    }
}

/// What the servers saw of a path, by the name of the field.
fn seen(world: &World, path: &str, field: &str) -> Vec<String> {
    let records = world.records();
    let of_it = records
        .iter()
        .filter(|it| it["kind"] == "http" && it["path"] == path);
    of_it
        .map(|it| it[field].as_str().unwrap_or_default().to_owned())
        .collect()
}

fn another_value_is_used_from_the_next_request_on(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, API, "");
    let later = [token(), token()];
    for token in &later {
        world.know(token);
    }
    let (attack, path) = thread::scope(|scope| {
        let mut client = Client::begin(scope, world, daemon, &policy, 4);
        client.ask();
        held.set(daemon, &later[0]);
        client.ask();
        held.remove(daemon);
        client.ask();
        held.set(daemon, &later[1]);
        client.ask();
        let path = client.path.clone();
        (client.end(), path)
    });
    let rule = format!("secret `{0}` of credential `{0}` is not set", held.name);
    assert_eq!(
        attack.printed,
        format!("200 None\n200 None\n403 {rule}\n200 None\n"),
        "{attack:?}"
    );
    attack.assert_told(&[format!("request api.example:443 ({rule})")]);
    let [second, third] = later;
    assert_eq!(seen(world, &path, "known"), [held.token, second, third]);
}

fn sandboxes_with_different_secrets_share_nothing(world: &World) {
    let daemon = world.daemon();
    let held = [Held::by(world, daemon), Held::by(world, daemon)];
    let policies = held.each_ref().map(|it| it.policy(daemon, API, ""));
    let paths = thread::scope(|scope| {
        let mut clients = policies
            .each_ref()
            .map(|policy| Client::begin(scope, world, daemon, policy, 3));
        for _ in 0..3 {
            for client in &mut clients {
                client.ask();
            }
        }
        clients.map(|client| {
            let path = client.path.clone();
            let attack = client.end();
            assert_eq!(
                attack.printed, "200 None\n200 None\n200 None\n",
                "{attack:?}"
            );
            path
        })
    });
    let mut connections = Vec::new();
    for (path, held) in paths.iter().zip(&held) {
        assert_eq!(seen(world, path, "known"), [held.token.as_str(); 3]);
        let mut own = seen(world, path, "connection");
        own.dedup();
        // It goes on with its own.
        assert_eq!(own.len(), 1);
        connections.extend(own);
    }
    assert_ne!(connections[0], connections[1]);
}

fn a_sandbox_without_the_credential_has_no_use_for_its_dummy(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, API, "");
    let text = |path: &str, dummy: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: api.example\r\nAuthorization: Bearer {dummy}\r\n\r\n")
    };
    let shot = |path: &str, dummy: &str| Shot::at("api.example", 443, text(path, dummy)).in_tls();
    let first = shoot(daemon, &policy, &[shot("/", "@TOKEN@")]);
    assert_eq!(first.got[0].answers(), ["200"], "{first:?}");
    // Without any it goes to the host as it is.
    let path = format!("/{}", marker());
    let without = daemon.policy(&format!("allow = {API:?}"));
    let tried = shoot(daemon, &without, &[shot(&path, &first.dummy)]);
    assert_eq!(tried.dummy, "");
    assert_eq!(tried.got[0].answers(), ["401"], "{tried:?}");
    assert_eq!(tried.got[0].issuer, "issuer=CN = authority");
    assert!(came(world, &first.dummy));
    tried.attack.assert_told(NOTHING);
    // With one of its own it is somebody else's key, also of the same secret.
    let another = held.policy(daemon, API, "");
    let tried = shoot(daemon, &another, &[shot(&path, &first.dummy)]);
    assert_ne!(tried.dummy, first.dummy);
    let rule = format!("another credential than `{}`", held.name);
    assert_eq!(tried.got[0].answers(), [format!("403 {rule}")], "{tried:?}");
    assert_eq!(seen(world, &path, "known"), [""]);
}

fn a_secret_of_another_user_is_not_used(world: &World) {
    const OTHER: u32 = 65_534;
    let daemon = world::another_daemon();
    // The other user has to get to the socket and to its workspace.
    fs::set_permissions(daemon.home(), fs::Permissions::from_mode(0o711)).unwrap();
    let held = Held::by(world, &daemon);
    let policy = held.policy(&daemon, API, "");
    fs::set_permissions(&policy, fs::Permissions::from_mode(0o644)).unwrap();
    let path = format!("/{}", marker());
    let get = format!(
        "curl -sS -o /dev/null -w '%{{http_code}}' -H \"Authorization: Bearer $TOKEN\" \
         https://api.example{path}"
    );
    let workspace = daemon.home().join("others");
    fs::create_dir(&workspace).unwrap();
    std::os::unix::fs::chown(&workspace, Some(OTHER), Some(OTHER)).unwrap();
    let run = || {
        let client = daemon.client(&["run", "--policy"]);
        std::process::Command::new("setpriv")
            .args([format!("--reuid={OTHER}"), format!("--regid={OTHER}")])
            .args(["--clear-groups", "--"])
            .arg(client.get_program())
            .args(client.get_args())
            .arg(&policy)
            .arg("-w")
            .arg(&workspace)
            .args(["--", "sh", "-c", &get])
            .envs(
                client
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .output()
            .unwrap()
    };
    let output = run();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("is not set"), "{output:?}");
    let others = token();
    world.know(&others);
    set(
        &daemon,
        &held.name,
        &others,
        &["--user", &OTHER.to_string()],
    );
    let output = run();
    assert_eq!(output.stdout, b"200", "{output:?}");
    let attack = under(&daemon, &policy, &get);
    assert_eq!(attack.printed, "200", "{attack:?}");
    assert_eq!(seen(world, &path, "known"), [others, held.token]);
}

fn the_next_proxy_has_another_authority_and_is_believed(world: &World) {
    let daemon = world::another_daemon();
    let held = Held::by(world, &daemon);
    let policy = held.policy(&daemon, API, "");
    let (home, path) = (world.home(), format!("/{}", marker()));
    let get = format!(
        "curl -sS --retry 20 --retry-all-errors --retry-delay 1 -o /dev/null -w '%{{http_code}}\\n' \
         -H \"Authorization: Bearer $TOKEN\" https://api.example{path}; cksum <$SSL_CERT_FILE"
    );
    let home = home.display();
    let script =
        format!("{get}; touch {home}/asked; while ! [ -e {home}/go ]; do sleep 0.05; done; {get}");
    let attack = thread::scope(|scope| {
        let attack = scope.spawn(|| under(&daemon, &policy, &script));
        let asked = PathBuf::from(format!("{home}/asked"));
        wait_for(|| (asked.exists() || attack.is_finished()).then_some(()));
        let proxy = proxy_of(&daemon);
        kill(proxy, Signal::SIGKILL).unwrap();
        wait_for(|| running_proxy(&daemon).filter(|next| *next != proxy));
        fs::write(format!("{home}/go"), "").unwrap();
        attack.join().unwrap()
    });
    let lines: Vec<_> = attack.printed.lines().collect();
    let [first, before, second, after] = lines[..] else {
        panic!("{attack:?}")
    };
    assert_eq!([first, second], ["200", "200"], "{attack:?}");
    assert_ne!(before, after, "{attack:?}");
    assert_eq!(seen(world, &path, "known"), [held.token.as_str(); 2]);
    assert!(!attack.printed.contains(&held.token));
}
