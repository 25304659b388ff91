//! Credentials, with all walls up: real programs use what they do not have, and
//! what they could read of it is not there.

use std::fs;

use sandbox_daemon::proto::{CredentialUse, SetSecretRequest};

use super::proxy::{OUTSIDE, serve_names, serve_vault};
use crate::{
    client::{self, Ran},
    ground::{self, WORK},
    host::{self, DEV, ROOT},
};

crate::trials![
    curl_git_and_python_use_a_token_that_they_do_not_have,
    a_push_to_another_branch_is_refused_with_the_reason,
    neither_the_secret_nor_where_it_lies_is_inside,
    a_new_value_is_used_by_what_runs_already,
];

const TOKEN: &str = "tok_2f7c1b9e5d3a4f6088aa17c4e6b2d9f0";

const NETWORK: &str = r#"mode = "proxy"
allow = ["vault.example:443", "files.example"]
[[credential]]
name = "vault"
hosts = ["vault.example"]
paths = ["/echo/**"]
env = "TOKEN_OF_VAULT"
[[credential]]
name = "repository"
secret = "vault"
hosts = ["vault.example"]
scheme = "basic"
git = { repositories = ["git/project"], push = ["refs/heads/agent/*"] }
"#;

async fn set(uid: u32, value: &str) {
    let request = SetSecretRequest {
        name: "vault".into(),
        value: value.to_owned().into(),
        uid: Some(uid),
    };
    client::root().await.set_secret(request).await.unwrap();
}

async fn script(uid: u32, script: &str) -> Ran {
    serve_names().await;
    serve_vault(TOKEN).await;
    set(uid, TOKEN).await;
    ground::make(uid);
    let policy = super::policy(NETWORK).replace("\"${tmp}\"", "\"${tmp}\", \"@devices\"");
    let spec = client::spec(uid, client::policy(&policy), WORK);
    let start = client::start(spec, &["sh", "-c", script]);
    client::run(&mut client::root().await, start).await
}

fn told(uses: &[CredentialUse]) -> Vec<String> {
    uses.iter()
        .map(|it| {
            format!(
                "{} {} {} {} {}",
                it.credential, it.method, it.host, it.path, it.rule
            )
        })
        .collect()
}

const USE: &str = r#"set -e
curl -sS -H "Authorization: Bearer $TOKEN_OF_VAULT" https://vault.example/echo/curl
python3 -c '
import os, urllib.request
request = urllib.request.Request("https://vault.example/echo/python")
request.add_header("Authorization", "Bearer " + os.environ["TOKEN_OF_VAULT"])
print(urllib.request.urlopen(request).read().decode(), end="")'
git clone -q https://vault.example/git/project.git clone
git -C clone log --format=%s
"#;

async fn curl_git_and_python_use_a_token_that_they_do_not_have() {
    for uid in [DEV, ROOT] {
        let ran = script(uid, USE).await;
        let lines = ["GET /echo/curl", "GET /echo/python", "the first commit"];
        assert_eq!(ran.lines(), lines, "{ran:?}");
        assert!(ran.denials.is_empty(), "{ran:?}");
        let uses = told(&ran.uses);
        for expected in [
            "vault GET vault.example:443 /echo/curl /echo/**",
            "vault GET vault.example:443 /echo/python /echo/**",
            "repository GET vault.example:443 /git/project.git/info/refs git/project",
            "repository POST vault.example:443 /git/project.git/git-upload-pack git/project",
        ] {
            assert!(uses.iter().any(|it| it == expected), "{expected}: {ran:?}");
        }
    }
    // Nobody gets that without a token.
    let ask = |more: &str| {
        let ask = format!(
            "curl -sS -o /dev/null -w '%{{http_code}}' --cacert {OUTSIDE} {more} \
             https://vault.example/echo/control"
        );
        host::output(DEV, &["sh", "-c", &ask])
    };
    assert_eq!(ask(""), "401");
    assert_eq!(ask(&format!("-H 'Authorization: Bearer {TOKEN}'")), "200");
}

const PUSH: &str = "git clone -q https://vault.example/git/project.git clone && cd clone && \
    git -c user.name=a -c user.email=a@b commit -q --allow-empty -m more";

async fn a_push_to_another_branch_is_refused_with_the_reason() {
    for uid in [DEV, ROOT] {
        let branch = format!("agent/{uid}");
        let pushes = format!("{PUSH} && git push origin HEAD:{branch} HEAD:main");
        let ran = script(uid, &pushes).await;
        assert_ne!(ran.code(), Some(0), "{ran:?}");
        let printed = String::from_utf8_lossy(&ran.stderr);
        let reason = "not a reference that may be pushed";
        assert!(printed.contains(reason), "{printed}");
        assert!(
            printed.contains("[remote rejected] HEAD -> main"),
            "{printed}"
        );
        let denials: Vec<_> = ran.denials.iter().map(|it| it.rule.as_str()).collect();
        let rule = format!("push of refs/heads/main to git/project: {reason}");
        assert_eq!(denials, [rule], "{ran:?}");
        let branches =
            || host::output(ROOT, &["git", "-C", "/srv/proxy/www/project.git", "branch"]);
        assert!(!branches().contains(&branch), "{ran:?}");

        let ran = script(uid, &format!("{PUSH} && git push -q origin HEAD:{branch}")).await;
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        assert!(branches().contains(&branch), "{ran:?}");
        let refs = vec![format!("refs/heads/{branch}")];
        assert!(ran.uses.iter().any(|it| it.refs == refs), "{ran:?}");
    }
}

async fn neither_the_secret_nor_where_it_lies_is_inside() {
    for uid in [DEV, ROOT] {
        let file = format!("/var/lib/sandboxd/secrets/{uid}/vault");
        let look = format!(
            "cat {file}; ls /var/lib/sandboxd; env; cat \"$SSL_CERT_FILE\" >/dev/null && echo bundle; \
             echo x >> \"$SSL_CERT_FILE\"; sandbox secret list; echo y | sandbox secret set vault"
        );
        let ran = script(uid, &look).await;
        assert_eq!(fs::read_to_string(&file).unwrap(), TOKEN);
        let all = format!("{ran:?}");
        assert!(!all.contains(TOKEN), "{all}");
        let lines = ran.lines();
        assert!(lines.iter().any(|it| it == "bundle"), "{all}");
        let dummy = lines
            .iter()
            .find_map(|it| it.strip_prefix("TOKEN_OF_VAULT="));
        assert_eq!(dummy.unwrap().len(), TOKEN.len());
        let printed = String::from_utf8_lossy(&ran.stderr);
        // For another user than root the directory is closed anyway.
        let why = match uid {
            ROOT => "No such file or directory",
            _ => "Permission denied",
        };
        assert!(printed.contains(&format!("cat: {file}: {why}")), "{all}");
        let calls: Vec<_> = ran
            .denials
            .iter()
            .filter(|it| it.rule == "unix socket")
            .collect();
        assert_eq!(calls.len(), 2, "{all}");
        assert_eq!(fs::read_to_string(&file).unwrap(), TOKEN);
    }
}

async fn a_new_value_is_used_by_what_runs_already() {
    let asks = "while read line; do curl -sS -o /dev/null -w '%{http_code}\\n' \
        -H \"Authorization: Bearer $TOKEN_OF_VAULT\" https://vault.example/echo/again; done";
    serve_names().await;
    serve_vault(TOKEN).await;
    set(DEV, TOKEN).await;
    ground::make(DEV);
    let policy = super::policy(NETWORK).replace("\"${tmp}\"", "\"${tmp}\", \"@devices\"");
    let spec = client::spec(DEV, client::policy(&policy), WORK);
    let start = client::start(spec, &["sh", "-c", asks]);
    let mut run = client::Run::start(&mut client::root().await, start)
        .await
        .unwrap();
    for (value, answer) in [
        (TOKEN, "200"),
        ("another-that-is-wrong", "401"),
        (TOKEN, "200"),
    ] {
        set(DEV, value).await;
        run.write("1\n").await;
        assert_eq!(run.line().await, answer, "{value}");
    }
    drop(run.requests.clone());
    client::delete(&mut client::root().await, &run.started.sandbox_id).await;
}
