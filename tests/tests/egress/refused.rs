//! What a sandbox does not reach: each attempt goes through outside of it.

use std::process::{Command, Output};

use crate::{Test, tests, world::World};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        no_question_leaves_for_a_name_that_no_rule_allows,
        a_name_does_not_lead_to_where_none_may,
        a_name_that_also_leads_somewhere_good_is_reached_there,
        a_name_that_changes_its_address_is_checked_anew,
        an_address_without_a_name_is_refused,
        the_worlds_name_server_is_not_spoken_to,
    ]
}

/// `Python` that asks the world's name server itself.
const ASK: &str = r#"
import socket, struct, sys
name, kind, transport = sys.argv[1:]
labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + struct.pack("!BHH", 0, int(kind), 1)
if transport == "udp":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    s.sendto(query, ("203.0.113.53", 53))
    answer = s.recv(4096)
else:
    s = socket.create_connection(("203.0.113.53", 53), 10)
    s.sendall(struct.pack("!H", len(query)) + query)
    answer = s.makefile("rb").read(2 + 4)[2:]
print("code", answer[3] & 15)
"#;

fn no_question_leaves_for_a_name_that_no_rule_allows(world: &World) {
    for (kind, transport) in [("1", "udp"), ("16", "udp"), ("28", "udp"), ("1", "tcp")] {
        let name = format!("secret-{kind}-{transport}.elsewhere.example");
        let ask = format!("/usr/bin/python3 -c '{ASK}' {name} {kind} {transport}");
        let inside = sandboxed(world, r#"["echo.example"]"#, &ask);
        assert!(printed(&inside).contains("code 3"), "{inside:?}");
        assert!(!world.was_asked_for(&name), "{name} left");
        let told = complaint(&inside);
        assert!(
            told.contains("denied") && told.contains(&name),
            "{inside:?}"
        );
        let outside = Command::new("sh").args(["-c", &ask]).output().unwrap();
        assert!(printed(&outside).contains("code 3"), "{outside:?}");
        assert!(world.was_asked_for(&name));
    }
}

fn a_name_does_not_lead_to_where_none_may(world: &World) {
    for (name, what) in [
        ("private.example", "10.0.0.5"),
        ("metadata.example", "169.254.169.254"),
        ("loopback.example", "127.0.0.1"),
        ("loopback6.example", "::1"),
        ("self.example", "203.0.113.1"),
    ] {
        let before = hits(world, name);
        let get = format!("curl -sS -o /dev/null -w '%{{http_code}}' http://{name}/");
        let inside = sandboxed(world, &format!("[{name:?}]"), &get);
        assert_eq!(printed(&inside), "403", "{inside:?}");
        assert!(complaint(&inside).contains(what), "{inside:?}");
        assert_eq!(hits(world, name), before);
        if name == "private.example" || name == "metadata.example" {
            let outside = Command::new("sh").args(["-c", &get]).output().unwrap();
            assert_eq!(printed(&outside), "200", "{outside:?}");
        }
    }
}

fn a_name_that_also_leads_somewhere_good_is_reached_there(world: &World) {
    let before = hits(world, "mixed.example");
    let get = "curl -sS -o /dev/null -w '%{http_code}' http://mixed.example/";
    let inside = sandboxed(world, r#"["mixed.example"]"#, get);
    assert_eq!(printed(&inside), "200", "{inside:?}");
    let hits = hits(world, "mixed.example");
    assert_eq!(hits[before.len()..], ["203.0.113.10"]);
}

fn a_name_that_changes_its_address_is_checked_anew(world: &World) {
    // A question may be asked more than once.
    let get = "for i in $(seq 20); do
        code=$(curl -sS -o /dev/null -w '%{http_code}' http://turncoat.example/$i)
        echo $code
        [ $code = 200 ] || break
    done";
    let inside = sandboxed(world, r#"["turncoat.example"]"#, get);
    assert!(printed(&inside).starts_with("200\n"), "{inside:?}");
    assert!(printed(&inside).ends_with("403\n"), "{inside:?}");
    let hits = hits(world, "turncoat.example");
    assert!(hits.iter().all(|at| at == "203.0.113.10"), "{hits:?}");
}

fn an_address_without_a_name_is_refused(world: &World) {
    let get = "curl -sS -o /dev/null -w '%{http_code}' http://203.0.113.10/";
    let inside = sandboxed(world, r#"["echo.example"]"#, get);
    assert!(!inside.status.success(), "{inside:?}");
    assert!(
        complaint(&inside).contains("denied connect 203.0.113.10:80"),
        "{inside:?}"
    );
    let outside = Command::new("sh").args(["-c", get]).output().unwrap();
    assert_eq!(printed(&outside), "200", "{outside:?}");
}

fn the_worlds_name_server_is_not_spoken_to(world: &World) {
    let ask = format!("/usr/bin/python3 -c '{ASK}' echo.example 16 udp");
    let before = world.questions().len();
    let inside = sandboxed(world, r#"["echo.example"]"#, &ask);
    assert!(printed(&inside).contains("code 0"), "{inside:?}");
    let asked = world.questions().split_off(before);
    let passed_on = asked
        .iter()
        .any(|(name, kind)| name == "echo.example" && kind == "TXT");
    assert!(!passed_on, "{asked:?}");
}

/// Where requests for a host arrived.
fn hits(world: &World, host: &str) -> Vec<String> {
    world
        .records()
        .iter()
        .filter(|record| record["kind"] == "http" && record["host"] == host)
        .map(|record| record["at"].as_str().unwrap().to_owned())
        .collect()
}

/// A script in a sandbox that may reach this list, without a proxy's variables.
fn sandboxed(world: &World, allow: &str, script: &str) -> Output {
    let daemon = world.daemon();
    let policy = daemon.policy(&format!("allow = {allow}"));
    let bare = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy";
    daemon.script(&policy, &format!("{bare}\n{script}"))
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
