//! What processes have in memory, as /proc has it.

use std::fs;

use anyhow::{Context as _, Result};

/// KiB of a process and its descendants; pages that several have count once.
pub(crate) fn of(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let mut sum: f64 = number.context("no Pss")?.parse()?;
    for child in children(pid)? {
        // One that ends meanwhile is none.
        sum += of(child).unwrap_or(0.0);
    }
    Ok(sum)
}

/// The children of a process.
pub(crate) fn children(pid: u32) -> Result<Vec<u32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("children"))?;
        for word in text.split_whitespace() {
            children.push(word.parse()?);
        }
    }
    Ok(children)
}

/// The child of this process that has this name.
pub(crate) fn child(name: &str) -> Result<u32> {
    let children = children(std::process::id())?;
    let named = |pid: &&u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    };
    let found = children.iter().find(named);
    found.copied().with_context(|| format!("no `{name}` runs"))
}
