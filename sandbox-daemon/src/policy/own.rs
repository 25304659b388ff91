//! What belongs to sandboxd itself, and what a sandbox may do with it whatever
//! its policy says: who could write here would say what sandboxes may do.

use std::path::Path;

use super::model::{Access, FileRule, Place};

/// What events call these rules.
pub const LABEL: &str = "sandboxd";

/// Places, and the most that is allowed there.
pub(super) const PLACES: [(&str, Access); 4] = [
    // Settings, policies, sets: they may be looked at.
    ("/etc/sandboxd", Access::Read),
    ("/usr/lib/sandboxd", Access::Read),
    // State: sandboxes of others, keys.
    ("/run/sandboxd", Access::Deny),
    ("/var/lib/sandboxd", Access::Deny),
];

/// Whether a rule allows more than that.
pub(super) fn exceeds(access: Access, most: Access) -> bool {
    match access {
        Access::Deny => false,
        Access::Read => most == Access::Deny,
        Access::Write => true,
    }
}

/// What a rule must not open; nothing: it opens none of it.
pub(super) fn opened(rule: &FileRule) -> Option<&Path> {
    let Place::Path(path) = &rule.place else {
        return None;
    };
    let most = PLACES
        .iter()
        .find(|(place, _)| path.starts_with(place))
        .map(|(_, access)| *access)?;
    exceeds(rule.access, most).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(path: &str, access: Access) -> bool {
        let rule = FileRule {
            place: Place::Path(path.into()),
            access,
            label: path.into(),
        };
        opened(&rule).is_some()
    }

    #[test]
    fn what_is_sandboxds_own_is_opened_by_no_rule() {
        assert!(opens("/etc/sandboxd", Access::Write));
        assert!(opens("/etc/sandboxd/policies/own.toml", Access::Write));
        assert!(!opens("/etc/sandboxd/policies", Access::Read));
        assert!(opens("/var/lib/sandboxd/ca", Access::Read));
        assert!(!opens("/var/lib/sandboxd/ca", Access::Deny));
        assert!(!opens("/etc", Access::Write));
        assert!(!opens("/etc/sandboxd-other", Access::Write));
    }
}
