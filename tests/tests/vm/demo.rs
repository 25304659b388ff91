//! The demo, which is also a test.

use std::process::Command;

crate::trials![the_demo_keeps_its_promises];

async fn the_demo_keeps_its_promises() {
    let output = Command::new("/mnt/put/demo/run.sh")
        .env("SANDBOX_PROTO", "/mnt/put/proto")
        .output()
        .unwrap();
    let text = crate::host::text(&output.stdout);
    let error = crate::host::text(&output.stderr);
    assert!(output.status.success(), "{text}\n{error}");
}
