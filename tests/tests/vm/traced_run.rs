//! The story that this product exists for, end to end and with real programs. It is
//! also the demo: `tests/demo`.

use std::process::Command;

crate::trials![the_agent_gets_its_work_done_and_nothing_else];

async fn the_agent_gets_its_work_done_and_nothing_else() {
    let output = Command::new("python3")
        .arg("/mnt/put/demo/run.py")
        .env("SANDBOX_PROTO", "/mnt/put/proto")
        .output()
        .unwrap();
    let text = crate::host::text(&output.stdout);
    let error = crate::host::text(&output.stderr);
    assert!(output.status.success(), "{text}\n{error}");
}
