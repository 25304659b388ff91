//! How git brings a dummy, and that it needs none where there is no variable.

use serde_json::Value;

use super::{AGENT, HOST, NOTHING, Repository};
use crate::{Test, attacks::under, credentials::token, tests, world::World};

pub(super) fn tests() -> Vec<Test> {
    tests![
        git_brings_a_dummy_wherever_it_keeps_tokens,
        git_without_a_dummy_is_asked_for_one_and_goes_on_with_it,
        git_needs_none_where_there_is_no_variable,
        another_token_than_the_dummy_is_refused,
        a_dummy_is_refused_for_another_repository,
    ]
}

const ENV: &str = "env = \"TOKEN\"";
const HELPER: &str = r#"git config --global credential.helper '!f() { echo username=me; echo "password=$TOKEN"; }; f'"#;
const WORK: &str =
    "git clone -q $URL work; cd work; commit more; git push -q origin HEAD:agent/new";

fn git_brings_a_dummy_wherever_it_keeps_tokens(world: &World) {
    for scheme in ["", "scheme = \"bearer\"\n"] {
        for settings in [
            HELPER,
            r#"git config --global http.extraHeader "Authorization: Bearer $TOKEN""#,
            r#"git config --global http.extraHeader "Authorization: token $TOKEN""#,
            r#"git config --global http.extraHeader "Authorization: Basic $(printf 'me:%s' "$TOKEN" | base64 -w0)""#,
            r#"URL="https://me:$TOKEN@${URL#https://}""#,
            r#"URL="https://$TOKEN@${URL#https://}"; git config --global credential.helper '!echo password='"#,
        ] {
            let repository = Repository::make(world);
            let policy = repository.policy_with(AGENT, &format!("{scheme}{ENV}"));
            let script = repository.script(&format!("echo $TOKEN\n{settings}\n{WORK}"));
            let attack = under(repository.daemon, &policy, &script);
            assert!(
                attack.printed.ends_with("finished\n"),
                "{settings}: {attack:?}"
            );
            attack.assert_told(NOTHING);
            assert!(repository.has("refs/heads/agent/new"));
            assert!(!repository.uses().is_empty());
            repository.assert_kept(&attack);
            let dummy = attack.printed.lines().next().unwrap();
            assert_eq!(dummy.len(), repository.held.token.len());
            assert!(!super::super::came(world, dummy), "{settings}");
        }
    }
}

fn git_without_a_dummy_is_asked_for_one_and_goes_on_with_it(world: &World) {
    let repository = Repository::make(world);
    let policy = repository.policy_with(AGENT, ENV);
    let script = |more: &str| repository.script(&format!("{more}\n{WORK}"));
    let attack = under(repository.daemon, &policy, &script(""));
    assert!(!attack.printed.ends_with("finished\n"), "{attack:?}");
    attack.assert_told(NOTHING);
    assert!(attack.uses.is_empty());
    let known = |it: &Value| it["known"] == *repository.held.token;
    assert!(!repository.requests().iter().any(known));
    let before = repository.requests().len();
    let attack = under(repository.daemon, &policy, &script(HELPER));
    assert!(attack.printed.ends_with("finished\n"), "{attack:?}");
    let requests = repository.requests().split_off(before);
    assert!(!known(&requests[0]), "{requests:?}");
    assert_eq!(requests[0]["authorization"], "");
    assert!(known(&requests[1]), "{requests:?}");
}

fn git_needs_none_where_there_is_no_variable(world: &World) {
    for scheme in [
        "",
        "scheme = \"basic\"\nusername = \"oauth2\"",
        "scheme = \"bearer\"",
    ] {
        let repository = Repository::make(world);
        let policy = repository.policy_with(AGENT, scheme);
        let script = repository.script(WORK);
        let attack = under(repository.daemon, &policy, &script);
        assert!(
            attack.printed.ends_with("finished\n"),
            "{scheme}: {attack:?}"
        );
        attack.assert_told(NOTHING);
        let requests = repository.requests();
        assert!(
            requests
                .iter()
                .all(|it| it["known"] == *repository.held.token)
        );
    }
}

fn another_token_than_the_dummy_is_refused(world: &World) {
    let foreign = token();
    world.know(&foreign);
    let script =
        format!("git -c http.extraHeader='Authorization: Bearer {foreign}' clone -q $URL work");
    for more in ["", ENV] {
        let repository = Repository::make(world);
        let policy = repository.policy_with(AGENT, more);
        let attack = under(repository.daemon, &policy, &repository.script(&script));
        assert!(!attack.printed.ends_with("finished\n"), "{attack:?}");
        let rule = format!("another credential than `{}`", repository.held.name);
        attack.assert_told(&[format!("request {HOST}:443 ({rule})")]);
        let line = format!("remote: denied {HOST}:443 ({rule})");
        assert!(attack.complaint.contains(&line), "{attack:?}");
        assert!(repository.requests().is_empty());
        let outside = repository.outside(&format!("unset GIT_CONFIG_COUNT\n{script}"));
        assert!(outside.status.success(), "{outside:?}");
    }
}

fn a_dummy_is_refused_for_another_repository(world: &World) {
    let (repository, other) = (Repository::make(world), Repository::make(world));
    let policy = repository.policy_with(AGENT, ENV);
    let script = other.script(&format!("{HELPER}\n{WORK}"));
    let attack = under(repository.daemon, &policy, &script);
    let rule = format!(
        "{} is no repository of `{}`",
        other.name, repository.held.name
    );
    attack.assert_told(&[format!("request {HOST}:443 ({rule})")]);
    assert!(other.requests().is_empty(), "{attack:?}");
}
