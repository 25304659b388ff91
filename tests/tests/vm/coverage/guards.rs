//! What stands at the hooks: the daemon's programs, or a reason for none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use sandbox_daemon::proto::GetInfoRequest;
use serde::Deserialize;

use super::{
    EXPECTATIONS,
    expectation::{Expectation, Reached},
};
use crate::client;

/// The file of reasons.
#[derive(Deserialize)]
struct Reasons {
    /// Hooks that are reached and have no program.
    hooks: BTreeMap<String, String>,
    /// Actions none of whose hooks has a program.
    actions: BTreeMap<String, String>,
}

/// The hooks where the running daemon has a program.
pub(super) async fn loaded() -> BTreeSet<String> {
    let info = client::root().await.get_info(GetInfoRequest {}).await;
    let hooks = info.unwrap().into_inner().hooks;
    hooks
        .into_iter()
        .filter(|hook| hook.loaded)
        .map(|hook| match &*hook.kind {
            "cgroup" => format!("cgroup/{}", hook.name),
            _ => hook.name,
        })
        .collect()
}

/// The kernels that there are expectations for.
pub(super) fn kernels() -> Vec<String> {
    let files = fs::read_dir(EXPECTATIONS).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names
        .filter_map(|name| name.strip_suffix(".txt").map(str::to_owned))
        .collect()
}

/// What has neither a program nor a reason, one a line.
pub(super) fn missing(expected: &Expectation, loaded: &BTreeSet<String>) -> String {
    let reasons = Reasons::read();
    let mut text = String::new();
    for hook in reached(expected) {
        if !loaded.contains(hook) && !reasons.hooks.contains_key(hook) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "no program and no reason at the hook `{hook}`");
        }
    }
    for (action, reached) in &expected.actions {
        if open(reached, loaded) && !reasons.actions.contains_key(action) {
            let _ = writeln!(text, "no program and no reason against `{action}`");
        }
    }
    text
}

/// The reasons that no kernel has a need for.
pub(super) fn unneeded(kernels: &[Expectation], loaded: &BTreeSet<String>) -> String {
    let reasons = Reasons::read();
    let mut text = String::new();
    for hook in reasons.hooks.keys() {
        let is_reached = kernels
            .iter()
            .any(|kernel| reached(kernel).contains(hook.as_str()));
        if loaded.contains(hook) || !is_reached {
            let _ = writeln!(text, "no need for a reason at the hook `{hook}`");
        }
    }
    for action in reasons.actions.keys() {
        let is_open = kernels.iter().any(|kernel| {
            let reached = kernel.actions.get(action);
            reached.is_some_and(|reached| open(reached, loaded))
        });
        if !is_open {
            let _ = writeln!(text, "no need for a reason against `{action}`");
        }
    }
    text
}

/// Whether nothing of the daemon's stands in an action's way, on a kernel that
/// knows the action.
fn open(reached: &Reached, loaded: &BTreeSet<String>) -> bool {
    reached.answer != "ENOSYS" && reached.hooks.is_disjoint(loaded)
}

fn reached(expected: &Expectation) -> BTreeSet<&str> {
    let hooks = expected.actions.values().flat_map(|reached| &reached.hooks);
    hooks.map(String::as_str).collect()
}

impl Reasons {
    fn read() -> Self {
        let text = fs::read_to_string(format!("{EXPECTATIONS}/reasons.toml")).unwrap();
        toml::from_str(&text).unwrap()
    }
}
