//! The world works before anything stands in the way: the control of every
//! refusal is that the same thing goes through here.

use std::process::{Command, Stdio};

use crate::{
    Test,
    clients::{CLIENTS, Knows, Variables},
    tests,
    world::World,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        a_name_that_nobody_has_is_not_found,
        every_question_is_recorded,
        what_a_name_must_not_lead_to_is_there,
        a_name_can_change_its_address,
        a_server_speaks_http2_without_tls,
        a_server_keeps_the_bytes_that_came,
    ];
    for client in CLIENTS {
        let name = client.identifier();
        let name = |says: &str| format!("{}::{name}_{says}", module_path!());
        tests.push((
            name("works_outside_of_a_sandbox"),
            Box::new(|world| {
                client.run(world, Variables::Unset).assert_worked();
                for host in client.hosts() {
                    assert!(world.was_asked_for(host), "{host} was found without DNS");
                }
            }),
        ));
        match client.knows {
            Knows::Proxies => tests.push((
                name("goes_only_where_the_variables_say"),
                Box::new(|world| {
                    let outcome = client.run(world, Variables::Set);
                    assert!(!outcome.worked(), "there is no proxy: {outcome:?}");
                }),
            )),
            Knows::Nothing => tests.push((
                name("does_not_care_for_the_variables"),
                Box::new(|world| client.run(world, Variables::Set).assert_worked()),
            )),
        }
    }
    tests
}

fn a_name_that_nobody_has_is_not_found(_: &World) {
    assert_ne!(curl("http://nobody.example/"), Ok(200));
    assert_eq!(curl("http://echo.example/"), Ok(200));
}

fn every_question_is_recorded(world: &World) {
    assert!(!world.was_asked_for("question.example"));
    let _ = curl("http://question.example/");
    assert!(world.was_asked_for("question.example"));
}

fn what_a_name_must_not_lead_to_is_there(_: &World) {
    for name in ["private", "metadata", "mixed", "other", "six"] {
        assert_eq!(curl(&format!("http://{name}.example/")), Ok(200), "{name}");
    }
}

fn a_name_can_change_its_address(world: &World) {
    assert_eq!(curl("http://rebind.example/first"), Ok(200));
    assert_eq!(curl("http://rebind.example/second"), Ok(200));
    let addresses: Vec<_> = world
        .records()
        .iter()
        .filter(|record| record["host"] == "rebind.example")
        .map(|record| record["at"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(addresses, ["203.0.113.10", "10.0.0.5"]);
}

fn a_server_speaks_http2_without_tls(_: &World) {
    let output = Command::new("curl")
        .args(["-sS", "--http2-prior-knowledge", "http://h2.example/"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains(r#""version":"2.0""#), "{output:?}");
}

fn a_server_keeps_the_bytes_that_came(world: &World) {
    assert_eq!(curl("http://raw.example/odd?bytes"), Ok(200));
    let received = world.raw_bytes();
    let line = b"GET /odd?bytes HTTP/1.1\r\n";
    assert!(received.iter().any(|bytes| bytes.starts_with(line)));
}

/// The status of a request; how curl ended where there was none.
fn curl(url: &str) -> Result<u16, i32> {
    let output = Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", url])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).parse().unwrap()),
        code => Err(code.unwrap_or(-1)),
    }
}
