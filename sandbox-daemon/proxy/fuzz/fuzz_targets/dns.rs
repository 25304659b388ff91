//! What a sandbox sends to port 53: whatever it is, the answer is one to it, fits,
//! and nothing is asked of the world.

#![no_main]

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use hickory_proto::op::{Message, MessageType};
use libfuzzer_sys::fuzz_target;
use sandbox_common::Asked;
use sandbox_proxy::{
    caller::{Caller, Sandboxes},
    channel::SandboxPolicy,
    dns::{Server, Transport},
    ledger::Outbox,
    name::Name,
    resolver::Resolver,
    rule::{HostPattern, HostRule},
};
use tokio::{
    runtime::{Builder, Runtime},
    time,
};

struct World {
    runtime: Runtime,
    outbox: Arc<Outbox>,
    caller: Caller,
    server: Server,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let outbox = Arc::new(Outbox::default());
    let sandboxes = Sandboxes::new(outbox.clone());
    sandboxes.put(SandboxPolicy {
        sandbox: 1,
        allow: vec![HostRule {
            host: HostPattern::Exact(Name::parse("a.test").expect("a name")),
            port: None,
            label: "a.test".into(),
        }],
        ..SandboxPolicy::default()
    });
    let asked = Asked {
        sandbox: 1,
        ..Asked::default()
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // There is no such server: asking it would take longer than is allowed below.
    let resolver = Resolver::new("nameserver 240.0.0.1", "192.0.2.1 a.test");
    World {
        runtime,
        caller: sandboxes.caller(&asked).expect("a sandbox"),
        outbox,
        server: Server::new(Arc::new(resolver.expect("a resolver"))),
    }
});

fuzz_target!(|bytes: &[u8]| {
    let world = &*WORLD;
    let answering = world.server.answer(&world.caller, bytes, Transport::Udp);
    let limited = async { time::timeout(Duration::from_millis(500), answering).await };
    let answer = world.runtime.block_on(limited).expect("asked the world");
    world.outbox.take();
    let Some(answer) = answer else {
        assert!(bytes.len() < 12 || bytes[2] & 0x80 != 0);
        return;
    };
    assert!(answer.len() <= 1232);
    assert_eq!(answer[..2], bytes[..2]);
    let answer = Message::from_vec(&answer).expect("an answer that cannot be read");
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert!(answer.answers.len() <= 1);
});
