//! Every client inside a sandbox, with the proxy's variables and without them:
//! it works where the policy names what it connects to, and nothing of it goes
//! anywhere where the policy does not.

use std::fs;

use crate::{
    Test,
    clients::{self, CLIENTS, Client, Outcome, Variables},
    tests,
    world::World,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![the_readme_says_which_clients_work];
    for client in CLIENTS {
        for (variables, with) in [(Variables::Set, "with"), (Variables::Unset, "without")] {
            let name = client.identifier();
            let name = |says: &str| format!("{}::{name}_{says}_{with}_variables", module_path!());
            tests.push((
                name("works"),
                Box::new(move |world: &World| {
                    sandboxed(world, client, variables, client.allow).assert_worked();
                }) as Box<dyn FnOnce(&World) + Send>,
            ));
            tests.push((
                name("is_refused_what_no_rule_allows"),
                Box::new(move |world: &World| {
                    let outcome = sandboxed(world, client, variables, &["unrelated.example"]);
                    assert!(!outcome.worked(), "{outcome:?}");
                    for rule in client.allow {
                        let host = rule.split(':').next().unwrap_or_default();
                        assert!(outcome.was_told_of(host), "{host}: {outcome:?}");
                    }
                }),
            ));
        }
    }
    tests
}

fn the_readme_says_which_clients_work(_: &World) {
    const MARKS: [&str; 2] = ["<!-- clients -->\n", "<!-- /clients -->\n"];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = fs::read_to_string(path).unwrap();
    let (before, rest) = readme.split_once(MARKS[0]).unwrap();
    let (table, after) = rest.split_once(MARKS[1]).unwrap();
    if std::env::var_os("SANDBOX_UPDATE_README").is_some() {
        let [begin, end] = MARKS;
        let table = clients::table();
        fs::write(path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        let remedy = "hint: SANDBOX_UPDATE_README=1 cargo xtask test --quick --filter readme";
        assert_eq!(table, clients::table(), "{remedy}");
    }
}

/// Runs a client in a sandbox that may reach these hosts.
fn sandboxed(
    world: &World,
    client: &'static Client,
    variables: Variables,
    allow: &[&str],
) -> Outcome {
    let daemon = world.daemon();
    let policy = daemon.policy(&format!("allow = {allow:?}"));
    let output = daemon.script(&policy, &client.script(world, variables));
    client.outcome(&output)
}
