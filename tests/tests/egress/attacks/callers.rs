//! Who a caller is: relays, strangers, impostors, other sandboxes.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use sandbox_common::Entrances;
use sandbox_daemon::sandbox::Enforcer as _;
use sandbox_tests::egress::Daemon;

use super::{
    NOTHING, Shot, arrived, attacker, inside, marker, outside, proxy_of, results, shoot, shooting,
    wait_for, was_served,
};
use crate::{
    Test, tests,
    world::{self, World},
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_relay_in_the_sandbox_is_as_good_as_its_sandbox,
        a_relay_outside_or_in_another_sandbox_is_not_reached,
        plain_http_is_refused_with_variables_and_without,
        a_stranger_is_told_to_go_and_nothing_else_happens,
        nobody_gets_the_proxys_port_while_it_is_away,
        whoever_has_the_proxys_port_is_not_reached,
        another_network_does_not_lead_to_an_impostor,
        sandboxes_do_not_share_connections_or_permissions,
    ]
}

const ALLOW: &str = r#"allow = ["echo.example"]"#;

fn a_relay_in_the_sandbox_is_as_good_as_its_sandbox(world: &World) {
    let (good, bad) = (format!("/{}", marker()), format!("/{}", marker()));
    let relay = |host, path| attacker("relay.py", &["198.18.0.1", "3128", host, path]);
    let attack = inside(world.daemon(), ALLOW, &relay("other.example", &bad));
    let refused = "HTTP/1.1 403 Forbidden\r\n";
    assert!(attack.printed.starts_with(refused), "{attack:?}");
    assert!(
        attack
            .printed
            .contains("x-sandbox-denied: not in the allow list\r\n")
    );
    attack.assert_told(&["connect other.example:80 (not in the allow list)"]);
    assert!(!was_served(world, &bad));
    let attack = inside(world.daemon(), ALLOW, &relay("echo.example", &good));
    attack.assert_told(NOTHING);
    assert!(was_served(world, &good), "{attack:?}");
}

fn a_relay_outside_or_in_another_sandbox_is_not_reached(world: &World) {
    let daemon = world.daemon();
    let path = format!("/{}", marker());
    let relay = attacker("relay.py", &["203.0.113.22", "80", "-", "-"]);
    let of_sandbox = attacker("relay.py", &["198.18.0.1", "3128", "-", "-"]);
    let mut sandboxed = daemon.client(&["run", "--policy"]);
    sandboxed
        .arg(daemon.policy(r#"allow = ["other.example"]"#))
        .arg("-w")
        .arg(world.home());
    sandboxed.args(["--", "sh", "-c", &of_sandbox]);
    let mut plain = Command::new("sh");
    plain.args(["-c", &format!("exec {relay}")]);
    for mut command in [plain, sandboxed] {
        let mut relay = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let port = first_line(&mut relay);
        let ask = attacker("relay.py", &["via", &port, "other.example", &path]);
        let attack = inside(daemon, ALLOW, &ask);
        assert_eq!(attack.printed, "Operation not permitted\n");
        attack.assert_told(&[format!("connect 127.0.0.1:{port} (loopback)")]);
        assert!(!was_served(world, &path));
        relay.kill().unwrap();
        relay.wait().unwrap();
    }
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    line.trim().to_owned()
}

fn plain_http_is_refused_with_variables_and_without(world: &World) {
    let path = format!("/{}", marker());
    let get = |url: &str| {
        format!("curl -s -m 10 -o /dev/null -w '%{{http_code}} ' {url}{path} || echo $?")
    };
    let plain = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy";
    let script = format!(
        "{}; {plain}; {}; {}",
        get("http://other.example"),
        get("http://other.example"),
        get("http://203.0.113.22"),
    );
    let attack = inside(world.daemon(), ALLOW, &script);
    // A sentence of the proxy's, no such name, no connection.
    assert_eq!(attack.printed, "403 000 6\n000 7\n");
    attack.assert_told(&[
        "connect 203.0.113.22:80 (network proxy)",
        "request other.example:80 (not in the allow list)",
        "resolve other.example (not in the allow list)",
    ]);
    assert!(!was_served(world, &path));
    assert_eq!(outside(&get("http://other.example")), "200 ");
    assert!(was_served(world, &path));
}

fn a_stranger_is_told_to_go_and_nothing_else_happens(world: &World) {
    let daemon = world::another_daemon();
    // The proxy is there when a sandbox can use it.
    inside(&daemon, ALLOW, "true");
    let path = format!("/{}", marker());
    let port = u16::try_from(daemon.wall.entrances().tcp4.port).unwrap();
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!("GET http://echo.example{path} HTTP/1.1\r\nHost: echo.example\r\n\r\n");
    stranger.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stranger.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 403 Forbidden\r\nx-sandbox-denied: not in a sandbox\r\n"),
        "{answer}"
    );
    assert!(
        answer.ends_with("denied: only processes in a sandbox may use this\n"),
        "{answer}"
    );
    let from = stranger.local_addr().unwrap();
    let told = wait_for(|| {
        let told = strangers(&daemon);
        (!told.is_empty()).then_some(told)
    });
    assert_eq!(told, [from.to_string()]);
    assert!(!was_served(world, &path));
}

/// Whom the daemon's events tell of that is in no sandbox.
fn strangers(daemon: &Daemon) -> Vec<String> {
    let output = daemon.client(&["events", "-o", "json"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|event| event["rule"] == "the proxy serves sandboxes only")
        .map(|event| event["object_display"].as_str().unwrap().to_owned())
        .collect()
}

fn nobody_gets_the_proxys_port_while_it_is_away(_: &World) {
    let daemon = world::another_daemon();
    inside(&daemon, ALLOW, "true");
    let port = u16::try_from(daemon.wall.entrances().tcp4.port).unwrap();
    let proxy = proxy_of(&daemon);
    nix::sys::signal::kill(proxy, nix::sys::signal::Signal::SIGKILL).unwrap();
    let error = TcpListener::bind(("127.0.0.1", port)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    // And the next one serves there.
    let request = Shot::proxy("GET http://echo.example/ HTTP/1.1\r\nHost: echo.example\r\n\r\n");
    let answer = wait_for(|| {
        let attack = inside(&daemon, ALLOW, &shooting(std::slice::from_ref(&request)));
        let answers = results(&attack.printed).remove(0).answers();
        (!answers.is_empty()).then_some(answers)
    });
    assert_eq!(answer, ["200"]);
    assert_ne!(proxy_of(&daemon), proxy);
    assert_eq!(u32::from(port), daemon.wall.entrances().tcp4.port);
}

fn whoever_has_the_proxys_port_is_not_reached(_: &World) {
    let daemon = world::another_daemon();
    inside(&daemon, ALLOW, "true");
    let genuine = daemon.wall.entrances();
    // As if the proxy's sockets were gone, and somebody had taken their ports.
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    impostor.set_nonblocking(true).unwrap();
    let mut entrances = genuine;
    entrances.tcp4.port = impostor.local_addr().unwrap().port().into();
    let shots = [Shot::proxy("GET http://echo.example/ HTTP/1.1\r\n\r\n")];
    let attempt = |entrances: &Entrances| {
        daemon.wall.admit(entrances).unwrap();
        let attack = inside(&daemon, ALLOW, &shooting(&shots));
        (results(&attack.printed).remove(0).end, attack)
    };
    let (end, attack) = attempt(&entrances);
    assert_eq!(end, "ECONNREFUSED");
    attack.assert_told(&["connect 198.18.0.1:3128 (the proxy is away)"]);
    let nobody = impostor.accept().map(drop).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    // With the impostor's own cookie it would be: that is what holds it off.
    entrances.tcp4.cookie =
        sandbox_daemon::sys::socket_cookie(std::os::fd::AsFd::as_fd(&impostor)).unwrap();
    let (end, _) = attempt(&entrances);
    assert_eq!(end, "silence");
    assert!(impostor.accept().is_ok());
    daemon.wall.admit(&genuine).unwrap();
}

fn another_network_does_not_lead_to_an_impostor(world: &World) {
    let daemon = world.daemon();
    inside(daemon, ALLOW, "true");
    let port = daemon.wall.entrances().tcp4.port.to_string();
    let home = world.home();
    let impostor = attacker("impostor.py", &[&port, &home.display().to_string()]);
    let mut elsewhere = Command::new("unshare")
        .args(["--net", "sh", "-c", &format!("exec {impostor}")])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(|| home.join("ready").exists().then_some(()));
    let enrolled = daemon
        .client(&["enroll", "--stay", "--allow-inherited", "--policy"])
        .arg(daemon.policy(ALLOW))
        .arg(elsewhere.id().to_string())
        .output()
        .unwrap();
    assert!(enrolled.status.success(), "{enrolled:?}");
    std::fs::write(home.join("go"), "").unwrap();
    let told = wait_for(|| std::fs::read_to_string(home.join("told")).ok());
    assert_eq!(told, "connected 1, ECONNREFUSED 0\n");
    elsewhere.wait().unwrap();
}

fn sandboxes_do_not_share_connections_or_permissions(world: &World) {
    let mark = marker();
    let request = format!("GET /{mark} HTTP/1.1\r\nHost: raw.example\r\n\r\n");
    let explicit = request.replacen(" /", " http://raw.example/", 1);
    let shots = [
        Shot::at("raw.example", 80, &request).then(&request),
        Shot::proxy(&explicit).then(&explicit),
    ];
    let ((one, first), (other, second), (third, denied)) = std::thread::scope(|scope| {
        let one = scope.spawn(|| shoot(world, &["raw.example"], &shots));
        let other = scope.spawn(|| shoot(world, &["raw.example"], &shots));
        let denied = scope.spawn(|| shoot(world, &["echo.example"], &shots));
        (
            one.join().unwrap(),
            other.join().unwrap(),
            denied.join().unwrap(),
        )
    });
    for got in one.iter().chain(&other) {
        assert_eq!(got.answers(), ["200", "200"]);
    }
    first.assert_told(NOTHING);
    second.assert_told(NOTHING);
    assert_eq!(third[0].end, "no name");
    let rule = "403 not in the allow list";
    assert_eq!(third[1].answers(), [rule, rule]);
    denied.assert_told(&[
        "request raw.example:80 (not in the allow list)",
        "resolve raw.example (not in the allow list)",
    ]);
    // Each client's connection has one of its own, and its requests share it.
    let came = arrived(world, &mark);
    assert_eq!(came.len(), 4);
    for bytes in came {
        assert_eq!(String::from_utf8(bytes).unwrap().matches(&mark).count(), 2);
    }
}
