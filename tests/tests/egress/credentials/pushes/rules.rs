//! What a rule lets be fetched and pushed, and what git prints of the rest.

use std::fs;

use super::{AGENT, HOST, Repository, bare, fill};
use crate::{
    Test,
    attacks::{number, under},
    tests,
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        what_the_rule_has_is_cloned_fetched_and_pushed,
        a_push_to_another_branch_is_refused_with_the_reason,
        a_push_of_which_one_reference_is_forbidden_changes_nothing,
        an_atomic_push_is_held_to_the_same_rule,
        a_deletion_needs_a_rule_that_says_so,
        a_forced_update_needs_a_rule_that_says_so,
        an_update_to_what_the_server_has_already_counts_as_forced,
        a_tag_is_pushed_only_where_it_is_listed,
        nothing_is_pushed_where_nothing_is_listed,
        push_options_are_refused,
        another_repository_is_refused_to_git,
        the_dumb_protocol_is_refused,
        what_is_not_of_git_goes_without_the_credential,
        what_observe_lets_through_is_told,
    ]
}

const CLONE: &str = "git clone -q $URL work; cd work\n";

fn a_push_to_another_branch_is_refused_with_the_reason(world: &World) {
    let repository = Repository::make(world);
    let reason = "not a reference that may be pushed";
    repository.assert_refused(
        AGENT,
        &format!("{CLONE} commit more; git push origin HEAD:main"),
        &[
            &format!("remote: denied push of refs/heads/main ({reason})"),
            &format!(" ! [remote rejected] HEAD -> main ({reason})"),
            &format!(
                "error: failed to push some refs to 'https://{HOST}/{}.git'",
                repository.name
            ),
        ],
        &format!("push of refs/heads/main to {}: {reason}", repository.name),
    );
}

fn what_the_rule_has_is_cloned_fetched_and_pushed(world: &World) {
    let repository = Repository::make(world);
    let attack = repository.assert_allowed(
        AGENT,
        &format!(
            "{CLONE} cat says; commit one; git push -q origin HEAD:agent/new
            commit two; git push -q origin HEAD:agent/new
            git fetch -q origin agent/new; git log -1 --format='fetched %s' FETCH_HEAD
            git switch -q agent/old; commit three
            git push -q origin HEAD:refs/heads/agent/deeply/nested HEAD:agent/old"
        ),
    );
    assert_eq!(
        attack.printed, "the project works\nfetched two\nfinished\n",
        "{attack:?}"
    );
    for reference in ["agent/new", "agent/deeply/nested", "agent/old"] {
        assert!(repository.has(&format!("refs/heads/{reference}")));
    }
    let name = &repository.name;
    let used = |request: &str, references: &str| {
        let (method, path) = request.split_once(' ').unwrap();
        format!("{method} {HOST}:443 /{name}.git/{path} {name} {name} {references}")
    };
    let mut expected = [
        used("GET info/refs", ""),
        used("POST git-upload-pack", ""),
        used("POST git-receive-pack", "refs/heads/agent/new"),
        used(
            "POST git-receive-pack",
            "refs/heads/agent/old,refs/heads/agent/deeply/nested",
        ),
    ];
    expected.sort_unstable();
    assert_eq!(repository.uses(), expected);
    // Nobody does any of it without the token.
    let bare = "unset GIT_CONFIG_COUNT; git clone -q $URL work";
    let outside = repository.outside(bare);
    assert!(!outside.status.success(), "{outside:?}");
}

fn a_push_of_which_one_reference_is_forbidden_changes_nothing(world: &World) {
    let repository = Repository::make(world);
    let reason = "not a reference that may be pushed";
    repository.assert_refused(
        AGENT,
        &format!("{CLONE} commit more; git push origin HEAD:agent/new HEAD:main"),
        &[
            " ! [remote rejected] HEAD -> agent/new (not pushed: refs/heads/main was refused)",
            &format!(" ! [remote rejected] HEAD -> main ({reason})"),
            &format!("remote: denied push of refs/heads/main ({reason})"),
        ],
        &format!("push of refs/heads/main to {}: {reason}", repository.name),
    );
}

fn an_atomic_push_is_held_to_the_same_rule(world: &World) {
    let repository = Repository::make(world);
    let reason = "not a reference that may be pushed";
    let two = format!("{CLONE} commit more; git push -q --atomic origin HEAD:agent/a HEAD:agent/b");
    repository.assert_allowed(AGENT, &two);
    assert!(repository.has("refs/heads/agent/a") && repository.has("refs/heads/agent/b"));
    repository.assert_refused(
        AGENT,
        &format!("{CLONE} commit more; git push --atomic origin HEAD:agent/c HEAD:main"),
        &[
            " ! [remote rejected] HEAD -> agent/c (not pushed: refs/heads/main was refused)",
            &format!(" ! [remote rejected] HEAD -> main ({reason})"),
        ],
        &format!("push of refs/heads/main to {}: {reason}", repository.name),
    );
}

fn a_deletion_needs_a_rule_that_says_so(world: &World) {
    let repository = Repository::make(world);
    let reason = "deleting references is not allowed";
    let delete = format!("{CLONE} git push origin :agent/old");
    repository.assert_refused(
        AGENT,
        &delete,
        &[
            &format!("remote: denied push of refs/heads/agent/old ({reason})"),
            &format!(" ! [remote rejected] agent/old ({reason})"),
        ],
        &format!(
            "push of refs/heads/agent/old to {}: {reason}",
            repository.name
        ),
    );
    let again = Repository::make(world);
    again.assert_allowed(&format!("{AGENT}, delete = true"), &delete);
    assert!(!again.has("refs/heads/agent/old"));
    // Only what is listed.
    let other = Repository::make(world);
    let delete = format!("{CLONE} git push origin :main");
    let attack = other.inside(&format!("{AGENT}, delete = true"), &delete);
    let reason = "not a reference that may be pushed";
    let told = format!("push of refs/heads/main to {}: {reason}", other.name);
    attack.assert_told(&[format!("request {HOST}:443 ({told})")]);
    assert!(other.has("refs/heads/main"));
}

fn a_forced_update_needs_a_rule_that_says_so(world: &World) {
    let repository = Repository::make(world);
    // The same commits whenever it is run.
    let dates = "export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'";
    let force = format!(
        "{dates}; {CLONE} git switch -q agent/old; git commit -q --amend -m other
        git rev-parse origin/agent/old HEAD; git push -f origin HEAD:agent/old"
    );
    let ids = repository.outside(&force.replace("git push", "true git push"));
    let ids = String::from_utf8(ids.stdout).unwrap();
    let ids: Vec<_> = ids.lines().take(2).map(|it| &it[..10]).collect();
    let reason = format!(
        "may be a forced update: what is pushed does not lead from {} back to {}",
        ids[1], ids[0]
    );
    repository.assert_refused(
        AGENT,
        &force,
        &[
            &format!("remote: denied push of refs/heads/agent/old ({reason})"),
            &format!(" ! [remote rejected] HEAD -> agent/old ({reason})"),
        ],
        &format!(
            "push of refs/heads/agent/old to {}: {reason}",
            repository.name
        ),
    );
    let again = Repository::make(world);
    let before = again.references();
    again.assert_allowed(&format!("{AGENT}, force = true"), &force);
    assert_ne!(again.references(), before);
}

fn an_update_to_what_the_server_has_already_counts_as_forced(world: &World) {
    let repository = Repository::make(world);
    // `main` comes after it, and is not sent anew.
    let push = format!(
        "{CLONE} git rev-parse origin/agent/old origin/main; git push origin main:agent/old"
    );
    let ids = repository.references();
    let id = |reference: &str| {
        let line = ids.lines().find(|it| it.starts_with(reference)).unwrap();
        line.split(' ').nth(1).unwrap()[..10].to_owned()
    };
    let (old, new) = (id("refs/heads/agent/old"), id("refs/heads/main"));
    let reason =
        format!("may be a forced update: what is pushed does not lead from {new} back to {old}");
    repository.assert_refused(
        AGENT,
        &push,
        &[&format!(
            " ! [remote rejected] main -> agent/old ({reason})"
        )],
        &format!(
            "push of refs/heads/agent/old to {}: {reason}",
            repository.name
        ),
    );
    let again = Repository::make(world);
    again.assert_allowed(&format!("{AGENT}, force = true"), &push);
}

fn a_tag_is_pushed_only_where_it_is_listed(world: &World) {
    let repository = Repository::make(world);
    let reason = "not a reference that may be pushed";
    let tag = format!("{CLONE} git tag -a -m one v1; git push origin v1");
    repository.assert_refused(
        AGENT,
        &tag,
        &[
            &format!("remote: denied push of refs/tags/v1 ({reason})"),
            &format!(" ! [remote rejected] v1 -> v1 ({reason})"),
        ],
        &format!("push of refs/tags/v1 to {}: {reason}", repository.name),
    );
    let again = Repository::make(world);
    again.assert_allowed(r#"push = ["refs/tags/v*"]"#, &tag);
    assert!(again.has("refs/tags/v1"));
}

fn nothing_is_pushed_where_nothing_is_listed(world: &World) {
    let repository = Repository::make(world);
    let rule = format!(
        "`{}` is not for pushing to {}",
        repository.held.name, repository.name
    );
    repository.assert_refused(
        "",
        &format!("{CLONE} commit more; git push origin HEAD:agent/new"),
        &[&format!("remote: denied {HOST}:443 ({rule})")],
        &rule,
    );
}

fn push_options_are_refused(world: &World) {
    let repository = Repository::make(world);
    let reason = "push options are not allowed";
    repository.assert_refused(
        AGENT,
        &format!("{CLONE} commit more; git push -o merge_request.create origin HEAD:agent/new"),
        &[&format!(
            " ! [remote rejected] HEAD -> agent/new ({reason})"
        )],
        &format!(
            "push of refs/heads/agent/new to {}: {reason}",
            repository.name
        ),
    );
}

fn another_repository_is_refused_to_git(world: &World) {
    let repository = Repository::make(world);
    let other = format!("o/other-{}", number());
    fill(world, &bare(&other), "sha1");
    let script = format!("git clone -q https://{HOST}/{other}.git other");
    let attack = repository.inside(AGENT, &script);
    let rule = format!("{other} is no repository of `{}`", repository.held.name);
    let line = format!("remote: denied {HOST}:443 ({rule})");
    let mut lines = attack.complaint.lines();
    assert!(lines.any(|it| it.trim_end() == line), "{attack:?}");
    let told = format!("request {HOST}:443 ({rule})");
    attack.assert_told(&[&told]);
    assert_eq!(attack.denials[&told], 1);
    assert!(attack.uses.is_empty());
    let records = world.records();
    let path = format!("/{other}.git");
    let asked =
        |it: &serde_json::Value| it["path"].as_str().is_some_and(|it| it.starts_with(&path));
    assert!(!records.iter().any(asked));
    let outside = repository.outside(&script);
    assert!(outside.status.success(), "{outside:?}");
}

fn the_dumb_protocol_is_refused(world: &World) {
    let repository = Repository::make(world);
    let script = "GIT_SMART_HTTP=0 git clone -q $URL work";
    let attack = repository.inside(AGENT, script);
    let rule = "a request of git's for neither fetching nor pushing";
    let line = format!("remote: denied {HOST}:443 ({rule})");
    let mut lines = attack.complaint.lines();
    assert!(lines.any(|it| it.trim_end() == line), "{attack:?}");
    attack.assert_told(&[format!("request {HOST}:443 ({rule})")]);
    // Its files are no requests of git's: they have no credential.
    let script = "curl -sS -o /dev/null -w '%{http_code}\\n' $URL/HEAD";
    let attack = repository.assert_allowed(AGENT, script);
    assert_eq!(attack.printed, "401\nfinished\n");
    assert!(repository.uses().is_empty());
    git_dumb_works(&repository);
}

fn git_dumb_works(repository: &Repository<'_>) {
    super::git(&repository.bare(), &["update-server-info"]);
    let outside = repository.outside("GIT_SMART_HTTP=0 git clone -q $URL work");
    assert!(outside.status.success(), "{outside:?}");
}

fn what_is_not_of_git_goes_without_the_credential(world: &World) {
    let repository = Repository::make(world);
    let name = &repository.name;
    let ask = format!(
        "for path in /api/v1/{name} /{name}.git/info/lfs/objects/batch /{name}; do
            curl -sS -m 20 ${{OUTSIDE_TOKEN:+-H \"Authorization: Bearer $OUTSIDE_TOKEN\"}} \
                -d '{{}}' https://{HOST}$path; echo
        done"
    );
    let attack = repository.assert_allowed(AGENT, &ask);
    assert_eq!(
        attack
            .printed
            .matches(r#""known":false,"authorization":"""#)
            .count(),
        3,
        "{attack:?}"
    );
    assert!(repository.uses().is_empty());
    let outside = String::from_utf8(repository.outside(&ask).stdout).unwrap();
    assert_eq!(outside.matches(r#""known":true"#).count(), 3, "{outside}");
}

fn what_observe_lets_through_is_told(world: &World) {
    let repository = Repository::make(world);
    let policy = repository.policy(AGENT);
    let text = fs::read_to_string(&policy).unwrap();
    let text = text.replace("version = 1\n", "version = 1\nmode = \"observe\"\n");
    fs::write(&policy, text).unwrap();
    let script = repository.script(&format!(
        "{CLONE} commit more; git push -q origin HEAD:main
        git switch -q agent/old; git commit -q --amend -m other; git push -qf origin HEAD:agent/old
        git rev-parse origin/main"
    ));
    let before = repository.references();
    let attack = under(repository.daemon, &policy, &script);
    assert!(attack.printed.ends_with("finished\n"), "{attack:?}");
    let told: Vec<_> = attack.denials.keys().collect();
    let name = &repository.name;
    let front = format!("observed request {HOST}:443 (push of refs/heads/");
    let why = "may be a forced update: what is pushed does not lead";
    assert_eq!(told.len(), 2, "{attack:?}");
    assert!(told[0].starts_with(&format!("{front}agent/old to {name}: {why}")));
    let main = format!("{front}main to {name}: not a reference that may be pushed)");
    assert_eq!(*told[1], main);
    let after = repository.references();
    let head = attack.printed.lines().next().unwrap();
    assert!(after.contains(&format!("refs/heads/main {head}")));
    assert_eq!(before.lines().filter(|it| after.contains(it)).count(), 0);
    repository.assert_kept(&attack);
}
