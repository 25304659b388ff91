//! The head of a request to the proxy, over HTTP/1 and HTTP/2, from a sandbox that
//! may reach nothing: it is refused, and nothing is let through.

#![no_main]

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use libfuzzer_sys::fuzz_target;
use sandbox_common::Asked;
use sandbox_proxy::{
    caller::{Caller, Sandboxes},
    channel::{Decision, FromProxy, SandboxPolicy},
    client::Client,
    dial::Dialer,
    http::{self, Session},
    ledger::Outbox,
    resolver::Resolver,
    tls::Tls,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    task, time,
};

struct World {
    runtime: Runtime,
    outbox: Arc<Outbox>,
    sandboxes: Sandboxes,
    caller: Caller,
    dialer: Dialer,
    listener: TcpListener,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let outbox = Arc::new(Outbox::default());
    let sandboxes = Sandboxes::new(outbox.clone());
    sandboxes.put(SandboxPolicy {
        sandbox: 1,
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
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
    let resolver = Resolver::new("nameserver 240.0.0.1", "").expect("a resolver");
    let tls = Tls::new().expect("an authority");
    World {
        runtime,
        caller: sandboxes.caller(&asked).expect("a sandbox"),
        sandboxes,
        outbox,
        dialer: Dialer::new(Arc::new(resolver), Arc::new(tls)),
        listener: listener.expect("a listener"),
    }
});

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let world = &*WORLD;
    let http2 = kind & 1 == 1;
    let exchange = |pieces| {
        let exchange =
            async { time::timeout(Duration::from_secs(2), world.exchange(http2, pieces)).await };
        let answer = world.runtime.block_on(exchange);
        answer.expect("waits although there is nothing to wait for")
    };
    let answer = exchange([bytes, &[]]);
    if !http2 {
        refused(&answer);
        let split = bytes.split_at(usize::from(kind >> 1) * bytes.len() / 128);
        same(&answer, &exchange(split.into()));
    }
    world.sandboxes.report();
    for message in world.outbox.take() {
        if let FromProxy::Traffic { traffic, .. } = message {
            assert!(traffic.iter().all(|it| it.decision == Decision::Denied));
        }
    }
});

impl World {
    async fn exchange(&self, http2: bool, pieces: [&[u8]; 2]) -> Vec<u8> {
        let address = self.listener.local_addr().expect("an address");
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let (accepted, _) = self.listener.accept().await.expect("a connection");
        let session = Session::explicit(self.caller.clone(), self.dialer.clone());
        let serving = http::serve(session, Client::new(accepted), http2);
        let mut answer = Vec::new();
        let asking = async {
            // It may close first.
            for piece in pieces {
                let _ = stream.write_all(piece).await;
                // What was written is read before there is more.
                for _ in 0..4 {
                    task::yield_now().await;
                }
            }
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut answer).await;
        };
        tokio::join!(serving, asking);
        // Not thousands of them waiting to be forgotten.
        let _ = stream.set_zero_linger();
        answer
    }
}

/// How many bytes come at a time makes no difference, but for where the answers
/// end: after a body that nobody wanted and that is not there yet.
fn same(answer: &[u8], other: &[u8]) {
    let length = answer.len().min(other.len());
    assert_eq!(
        String::from_utf8_lossy(&answer[..length]),
        String::from_utf8_lossy(&other[..length])
    );
}

/// Every answer to HTTP/1 is a refusal.
fn refused(answer: &[u8]) {
    if answer.is_empty() {
        return;
    }
    let line = answer.split(|byte| *byte == b'\r').next();
    let line = String::from_utf8_lossy(line.unwrap_or_default());
    let code = line
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| line.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse::<u16>().ok());
    assert!(code.is_some_and(|it| it >= 400 || it == 100), "{line}");
}
