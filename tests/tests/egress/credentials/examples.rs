//! The examples of docs/policy.md as they stand there, with real clients: what they
//! promise works, and what they do not is refused.

use std::{fs, path::PathBuf};

use serde_json::Value;

use sandbox_daemon::secrets::Secrets;

use super::{came, pushes, token};
use crate::{
    Test,
    attacks::{Attack, number, under},
    tests,
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        git_and_the_api_of_github_work_as_far_as_the_example_says,
        npm_installs_and_publishes_nothing_with_the_example,
        a_model_is_asked_with_the_example_and_nothing_else,
    ]
}

/// An example's policy, in a file.
fn example(world: &World, name: &str) -> PathBuf {
    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/policy.md");
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let mark = format!("<!-- example {name} -->\n```toml\n");
    let (_, rest) = document.split_once(&mark).unwrap();
    let (text, _) = rest.split_once("```\n").unwrap();
    let path = world.daemon().home().join(format!("{name}.toml"));
    fs::write(&path, text).unwrap();
    path
}

/// A token of this name, which the servers know.
fn secret(world: &World, name: &str) -> String {
    let token = token();
    world.know(&token);
    let value = Secrets::value(token.as_bytes().to_vec()).unwrap();
    let secrets = world.daemon().registry.secrets();
    secrets.set(0, name, &value).unwrap();
    token
}

/// Runs a script under an example.
fn run(world: &World, policy: &str, secret: &str, script: &str) -> Attack {
    let prelude = "set -e; export HOME=\"$PWD\" GIT_TERMINAL_PROMPT=0
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@a
        ask() { curl -sS -o answer -w '%{http_code}\\n' \"$@\"; }\n";
    let policy = example(world, policy);
    let attack = under(world.daemon(), &policy, &format!("{prelude}{script}"));
    assert!(!format!("{attack:?}").contains(secret), "{attack:?}");
    attack
}

/// Refusals without their hosts.
fn rules(attack: &Attack) -> Vec<&str> {
    let rules = attack.denials.keys().map(|it| {
        let rule = it.split_once(" (").map_or("", |(_, rule)| rule);
        rule.strip_suffix(')').unwrap_or(rule)
    });
    rules.collect()
}

fn requests(world: &World, host: &str, token: &str) -> Vec<String> {
    let text = |it: &Value, field: &str| it[field].as_str().unwrap().to_owned();
    let records = world.records();
    let known = records
        .iter()
        .filter(|it| it["host"] == host && it["known"] == token);
    known
        .map(|it| format!("{} {}", text(it, "method"), text(it, "path")))
        .collect()
}

fn git_and_the_api_of_github_work_as_far_as_the_example_says(world: &World) {
    let (repository, other) = (pushes::bare("org/repo"), pushes::bare("org/other"));
    pushes::fill(world, &repository, "sha1");
    pushes::fill(world, &other, "sha1");
    let token = secret(world, "github");
    let attack = run(
        world,
        "github",
        &token,
        r#"git clone -q https://github.com/org/repo.git work; cd work; cat says
        git commit -q --allow-empty -m more; git push -q origin HEAD:agent/new; echo pushed
        git push origin HEAD:main && echo main
        git clone -q https://github.com/org/other other && echo other
        api=https://api.github.com; token="Authorization: Bearer $GITHUB_TOKEN"
        ask -H "$token" $api/repos/org/repo
        ask -H "Authorization: token $GITHUB_TOKEN" $api/repos/org/repo/pulls?state=open
        ask -H "$token" -d '{"head": "agent/new"}' $api/repos/org/repo/pulls
        ask -H "$token" -d '{"body": "done"}' $api/repos/org/repo/issues/7/comments
        ask $api/rate_limit
        echo refused
        ask -H "$token" $api/repos/org/other
        ask -H "$token" $api/repos/org/repo/../other --path-as-is
        ask -H "$token" $api/user
        ask -H "$token" -d '{"query": "{}"}' $api/graphql
        ask -H "$token" -X PUT $api/repos/org/repo/pulls/7/merge
        ask -H "$token" -X DELETE $api/repos/org/repo
        ask -H "$token" -d '{}' $api/repos/org/repo/git/refs
        ask -H "$token" https://github.com/org/repo"#,
    );
    let works = "the project works\npushed\n200\n200\n200\n200\n401\nrefused\n";
    assert_eq!(
        attack.printed,
        format!("{works}{}", "403\n".repeat(8)),
        "{attack:?}"
    );
    let reason = "not a reference that may be pushed";
    assert!(
        attack
            .complaint
            .contains(&format!(" ! [remote rejected] HEAD -> main ({reason})"))
    );
    assert_eq!(
        rules(&attack),
        [
            "the dummy of `github-read` in a request that it does not cover",
            "org/other is no repository of `github-git`",
            &format!("push of refs/heads/main to org/repo: {reason}"),
            "the dummy of `github-read` towards another host",
        ],
        "{attack:?}"
    );
    let branches = pushes::git(
        &repository,
        &["branch", "--format=%(refname:short) %(subject)"],
    );
    assert_eq!(branches, "agent/new more\nagent/old first\nmain second\n");
    assert_eq!(
        requests(world, "api.github.com", &token),
        [
            "GET /repos/org/repo",
            "GET /repos/org/repo/pulls?state=open",
            "POST /repos/org/repo/pulls",
            "POST /repos/org/repo/issues/7/comments",
        ]
    );
}

fn npm_installs_and_publishes_nothing_with_the_example(world: &World) {
    let token = secret(world, "npm");
    let script = r#"
        echo '//registry.npmjs.org/:_authToken=${NPM_TOKEN}' >.npmrc
        npm install --loglevel=error leaf
        node -e 'console.log(require("./node_modules/leaf"))'
        ask -H "Authorization: Bearer $NPM_TOKEN" -d '{}' \
            https://registry.npmjs.org/-/npm/v1/security/advisories/bulk
        npm version --no-git-tag-version 1.2.3 >version
        npm publish && echo published
        true"#;
    let init = "echo '{\"name\": \"own\", \"version\": \"1.0.0\"}' >package.json\n";
    let attack = run(world, "npm", &token, &format!("{init}{script}"));
    assert!(attack.printed.contains("leaf works\n404\n"), "{attack:?}");
    assert!(!attack.printed.contains("published"), "{attack:?}");
    assert_eq!(
        rules(&attack),
        ["the dummy of `npm-read` in a request that it does not cover"],
        "{attack:?}"
    );
    let requests = requests(world, "registry.npmjs.org", &token);
    for expected in [
        "GET /leaf",
        "GET /leaf/-/leaf-1.0.0.tgz",
        "POST /-/npm/v1/security/advisories/bulk",
    ] {
        assert!(requests.iter().any(|it| it == expected), "{requests:?}");
    }
    assert!(
        !requests.iter().any(|it| it.starts_with("PUT")),
        "{requests:?}"
    );
}

fn a_model_is_asked_with_the_example_and_nothing_else(world: &World) {
    let token = secret(world, "anthropic");
    let mark = format!("question-{}", number());
    let attack = run(
        world,
        "llm",
        &token,
        &format!(
            r#"/usr/bin/python3 - <<'END'
import json, os, urllib.request
request = urllib.request.Request("https://api.anthropic.com/v1/messages", method="POST")
request.add_header("x-api-key", os.environ["ANTHROPIC_API_KEY"])
request.add_header("content-type", "application/json")
answer = urllib.request.urlopen(request, json.dumps({{"prompt": "{mark}"}}).encode())
print(answer.status, json.load(answer)["body"])
END
            key="x-api-key: $ANTHROPIC_API_KEY"
            ask -H "$key" -d '{{}}' https://api.anthropic.com/v1/messages
            ask -H "$key" https://api.anthropic.com/v1/files
            ask -H "$key" -X DELETE https://api.anthropic.com/v1/files/1
            ask -H "$key" -d '{{}}' https://api.anthropic.com/v2/messages
            ask -H "$key" --path-as-is -d '{{}}' https://api.anthropic.com/v1/../v2/messages
            ask -H "Authorization: Bearer $ANTHROPIC_API_KEY" -d '{{}}' https://api.anthropic.com/v1/messages
            ask -H "x-api-key: another" -d '{{}}' https://api.anthropic.com/v1/messages
            echo "$ANTHROPIC_API_KEY""#
        ),
    );
    let (printed, dummy) = attack.printed.trim_end().rsplit_once('\n').unwrap();
    let works = format!("200 {{\"prompt\": \"{mark}\"}}\n200\n");
    assert_eq!(
        printed,
        format!("{works}{}", "403\n".repeat(6)).trim_end(),
        "{attack:?}"
    );
    assert_eq!(
        rules(&attack),
        [
            "another credential than `anthropic`",
            "the dummy of `anthropic` in a request that it does not cover",
            "the dummy of `anthropic` outside its place",
        ],
        "{attack:?}"
    );
    assert_eq!(
        requests(world, "api.anthropic.com", &token),
        ["POST /v1/messages"; 2]
    );
    assert!(!came(world, dummy));
}
