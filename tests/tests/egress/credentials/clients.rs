//! Every client whose server wants a token, in a sandbox that has none: it works
//! with a credential that its policy has, and not without.

use crate::{
    Test,
    clients::{LOCKED, Locked, Trust, Variables, identifier},
    credentials::{Held, came},
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for client in LOCKED {
        let name = identifier(client.name);
        let name = |says: &str| format!("{}::{name}_{says}", module_path!());
        for (variables, with) in [(Variables::Set, "with"), (Variables::Unset, "without")] {
            tests.push((
                name(&format!("works_with_a_dummy_{with}_variables")),
                Box::new(move |world: &World| works(world, client, variables))
                    as Box<dyn FnOnce(&World) + Send>,
            ));
        }
        tests.push((
            name("needs_a_token"),
            Box::new(move |world: &World| needs(world, client)),
        ));
    }
    tests
}

fn works(world: &World, client: &'static Locked, variables: Variables) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, &[client.host], client.scheme);
    let script = client.script(world, variables, Trust::Environment, None);
    client
        .outcome(&daemon.script(&policy, &script))
        .assert_worked();
    // It was not let in by another.
    assert!(was_let_in(world, client, &held.token));
}

fn needs(world: &World, client: &'static Locked) {
    let daemon = world.daemon();
    let policy = daemon.policy(&format!("allow = [{:?}]", client.host));
    let token = super::token();
    let script = client.script(world, Variables::Set, Trust::World, Some(&token));
    let outcome = client.outcome(&daemon.script(&policy, &script));
    assert!(!outcome.worked(), "{outcome:?}");
    // It got there, and was sent away.
    assert!(came(world, &token), "{outcome:?}");
    assert!(!was_let_in(world, client, &token));
    client.run(world, &token).assert_failed();
    world.know(&token);
    client.run(world, &token).assert_worked();
    assert!(was_let_in(world, client, &token));
}

fn was_let_in(world: &World, client: &Locked, token: &str) -> bool {
    world
        .records()
        .iter()
        .any(|it| it["host"] == client.host && it["known"] == token)
}
