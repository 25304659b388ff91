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
    let shown = plain(&text);
    for line in promised() {
        assert!(shown.contains(line), "README promises `{line}`: {text}");
    }
}

/// Without colours.
fn plain(text: &str) -> String {
    let mut pieces = text.split('\x1b');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain += piece.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain
}

/// The lines of the README that show this run.
fn promised() -> impl Iterator<Item = &'static str> {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("<!-- traced run -->").unwrap();
    let (shown, _) = rest.split_once("<!-- /traced run -->").unwrap();
    let lines = shown.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("```") && *line != "...")
}
