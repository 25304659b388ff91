//! Who is inside: a process whose cgroup lies below a sandbox's.

use aya_ebpf::helpers::generated::bpf_get_current_ancestor_cgroup_id;
use sandbox_common::{Key, Value, kind};

use crate::{
    layout::probe,
    maps::{POLICIES, Rules, SANDBOX_LEVEL, SLICE_ID, lookup},
};

/// A sandbox under its policy.
#[derive(Clone, Copy)]
pub struct Member {
    pub sandbox: u64,
    /// None: the current process's, which only a refusal asks for.
    exec: Option<u64>,
    pub rules: &'static Rules,
}

/// The answer to "who is asking?".
pub enum Who {
    Outside,
    Inside(Member),
    /// In a sandbox without a policy: it is being removed. Refused.
    Orphan {
        sandbox: u64,
    },
}

impl Member {
    /// 0: in the sandbox, but in none of its execs.
    #[inline(always)]
    pub fn exec(&self) -> u64 {
        match self.exec {
            Some(exec) => exec,
            None => current_exec(),
        }
    }

    /// The policy itself. Looked up where it is asked for: a file that may be
    /// opened needs nothing of it.
    #[inline(always)]
    pub fn header(&self) -> Value {
        let key = Key {
            kind: kind::HEADER,
            dev: 0,
            ino: 0,
            extra: 0,
        };
        // Every policy has one.
        lookup(self.rules, &key).unwrap_or(Value {
            bits: 0,
            rule: 0,
            aux: 0,
        })
    }
}

/// The current process. Whoever is outside pays for one helper call.
#[inline(always)]
pub fn current() -> Who {
    let level = SANDBOX_LEVEL.load() as i32;
    if ancestor(level - 1) != SLICE_ID.load() {
        return Who::Outside;
    }
    let sandbox = ancestor(level);
    if sandbox == 0 {
        return Who::Outside;
    }
    of(sandbox, None)
}

/// The exec of the current process, which is in a sandbox.
#[inline(always)]
pub fn current_exec() -> u64 {
    ancestor(SANDBOX_LEVEL.load() as i32 + 1)
}

/// The sandbox with that cgroup id.
#[inline(always)]
pub fn of(sandbox: u64, exec: Option<u64>) -> Who {
    // SAFETY: inner maps are never changed after insertion, and freed after an
    // RCU grace period, which this program is within.
    let rules = unsafe { POLICIES.get(&sandbox) };
    if let Some(rules) = rules {
        return Who::Inside(Member {
            sandbox,
            exec,
            rules,
        });
    }
    Who::Orphan { sandbox }
}

/// The sandbox of another task, by its address; 0: it is in none.
#[inline(always)]
pub fn of_task(task: u64) -> u64 {
    of_cgroup(probe::task_cgroup(task))
}

/// The sandbox that a socket (`struct sock`) was made in; 0: in none.
#[inline(always)]
pub fn of_sock(sock: u64) -> u64 {
    of_cgroup(probe::sock_cgroup(sock))
}

/// The same with its policy.
#[inline(always)]
pub fn of_socket(sock: u64) -> Who {
    let cgroup = probe::sock_cgroup(sock);
    let sandbox = of_cgroup(cgroup);
    if sandbox == 0 {
        return Who::Outside;
    }
    let exec = probe::ancestor_id(cgroup, SANDBOX_LEVEL.load() + 1);
    of(sandbox, Some(exec))
}

#[inline(always)]
fn of_cgroup(cgroup: u64) -> u64 {
    let level = SANDBOX_LEVEL.load();
    if probe::ancestor_id(cgroup, level - 1) != SLICE_ID.load() {
        return 0;
    }
    probe::ancestor_id(cgroup, level)
}

#[inline(always)]
fn ancestor(level: i32) -> u64 {
    // SAFETY: the helper takes any level; 0 where there is none.
    unsafe { bpf_get_current_ancestor_cgroup_id(level) }
}
