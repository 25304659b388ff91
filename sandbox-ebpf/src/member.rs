//! Who is inside: a process whose cgroup lies below a sandbox's.

use aya_ebpf::helpers::generated::bpf_get_current_ancestor_cgroup_id;
use sandbox_common::{Key, Value, header, kind};

use crate::maps::{POLICIES, Rules, SANDBOX_LEVEL, SLICE_ID, lookup};

/// A sandbox under its policy.
#[derive(Clone, Copy)]
pub struct Member {
    pub sandbox: u64,
    /// 0: in the sandbox, but in none of its execs.
    pub exec: u64,
    pub rules: &'static Rules,
    pub header: Value,
}

/// The answer to "who is asking?".
pub enum Who {
    Outside,
    Inside(Member),
    /// In a sandbox without a policy: it is being removed. Refused.
    Orphan {
        sandbox: u64,
        exec: u64,
    },
}

impl Member {
    #[inline(always)]
    pub fn is(&self, flag: u32) -> bool {
        self.header.bits & flag != 0
    }

    #[inline(always)]
    pub fn observes(&self) -> bool {
        self.is(header::OBSERVE)
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
    of(sandbox, ancestor(level + 1))
}

/// The sandbox with that cgroup id.
#[inline(always)]
pub fn of(sandbox: u64, exec: u64) -> Who {
    // SAFETY: inner maps are never changed after insertion, and freed after an
    // RCU grace period, which this program is within.
    let rules = unsafe { POLICIES.get(&sandbox) };
    if let Some(rules) = rules {
        let key = Key {
            kind: kind::HEADER,
            ..EMPTY
        };
        if let Some(header) = lookup(rules, &key) {
            return Who::Inside(Member {
                sandbox,
                exec,
                rules,
                header,
            });
        }
    }
    Who::Orphan { sandbox, exec }
}

const EMPTY: Key = Key {
    kind: 0,
    dev: 0,
    ino: 0,
    extra: 0,
};

#[inline(always)]
fn ancestor(level: i32) -> u64 {
    // SAFETY: the helper takes any level; 0 where there is none.
    unsafe { bpf_get_current_ancestor_cgroup_id(level) }
}
