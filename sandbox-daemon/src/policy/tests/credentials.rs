//! `[[credential]]`: what is accepted, what is refused and how it looks.

use std::collections::HashSet;

use sandbox_proxy::credential::{GitRule, Scheme};

use super::*;

/// A policy whose proxy lets hosts of `example.com` through, before its credentials.
const BEFORE: &str = r#"version = 1
[files]
read = ["/"]
[network]
mode = "proxy"
allow = ["example.com", "*.example.com", "example.com:8443"]
deny = ["denied.example.com"]
"#;

fn with(credentials: &str) -> String {
    format!("{BEFORE}{credentials}")
}

/// An entry that has all it needs, and these lines.
fn entry(lines: &str) -> String {
    with(&format!(
        "[[credential]]\nname = \"one\"\nhosts = [\"example.com\"]\n{lines}\n"
    ))
}

fn read(lines: &str) -> Credential {
    let policy = resolve(&good(&entry(lines)));
    policy.credentials.into_iter().next().unwrap()
}

/// The only thing that is wrong with an entry.
fn wrong(lines: &str) -> String {
    let found = messages(&entry(lines));
    assert_eq!(found.len(), 1, "{lines}: {found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn everything_of_a_credential_arrives_in_the_policy() {
    let text = with(
        r#"[[credential]]
name = "forge"
secret = "token"
hosts = ["example.com", "api.example.com:8443"]
env = "FORGE_TOKEN"
git = { repositories = ["org/repo", "org/*"], push = ["refs/heads/agent/*"], delete = true }
[[credential]]
name = "api"
secret = "token"
hosts = ["api.example.com"]
scheme = "header"
header = "X-Api-Key"
methods = ["post", "GET"]
paths = ["/v1/**", "/users/*/keys"]
env = "FORGE_TOKEN"
[[credential]]
name = "pinned"
hosts = ["*.example.com"]
intercept = false
"#,
    );
    let policy = resolve(&good(&text));
    let [forge, api] = policy.credentials.as_slice() else {
        panic!("{:?}", policy.credentials);
    };
    assert_eq!(forge.rule.name, "forge");
    assert_eq!(forge.rule.secret, "token");
    assert_eq!(forge.env.as_deref(), Some("FORGE_TOKEN"));
    let ports: Vec<_> = forge.rule.hosts.iter().map(|it| it.port).collect();
    assert_eq!(ports, [None, Some(8443)]);
    let username = "x-access-token".to_owned();
    assert_eq!(forge.rule.scheme, Scheme::Basic { username });
    let git = GitRule {
        repositories: vec!["org/repo".into(), "org/*".into()],
        push: vec!["refs/heads/agent/*".into()],
        force: false,
        delete: true,
    };
    assert_eq!(forge.rule.git, Some(git));
    let name = "x-api-key".to_owned();
    assert_eq!(api.rule.scheme, Scheme::Header { name });
    assert_eq!(api.rule.methods, ["POST", "GET"]);
    assert_eq!(api.rule.paths, ["/v1/**", "/users/*/keys"]);
    assert_eq!(api.rule.dummy, None);
    assert_eq!(policy.untouched.len(), 1);
    assert_eq!(policy.untouched[0].label, "*.example.com");
    let without = resolve(&good(&text.replace("delete = true", "delete = false")));
    assert_ne!(policy.digest, without.digest);
}

#[test]
fn what_is_left_out_has_its_default() {
    let plain = read("");
    assert_eq!((plain.rule.secret.as_str(), plain.env), ("one", None));
    assert_eq!(plain.rule.scheme, Scheme::Bearer);
    assert!(plain.rule.methods.is_empty() && plain.rule.paths.is_empty());
    assert_eq!(plain.rule.git, None);
    let git = "git = { repositories = [\"a/b\"] }";
    let fetched = read(git).rule;
    assert!(matches!(fetched.scheme, Scheme::Basic { .. }));
    assert!(fetched.git.as_ref().is_some_and(|it| it.push.is_empty()));
    let bearer = read(&format!("scheme = \"bearer\"\n{git}")).rule;
    assert_eq!(bearer.scheme, Scheme::Bearer);
    let query = read("scheme = \"query\"\nquery = \"key\"").rule;
    let name = "key".to_owned();
    assert_eq!(query.scheme, Scheme::Query { name });
    let empty = read("scheme = \"basic\"\nusername = \"\"").rule;
    let username = String::new();
    assert_eq!(empty.scheme, Scheme::Basic { username });
    let table = read("[credential.git]\nrepositories = [\"a/b\"]").rule;
    assert_eq!(table, fetched);
    assert_eq!(warned(&entry("intercept = true")), [""; 0]);
}

#[test]
fn every_mistake_of_a_credential_is_reported_where_it_stands() {
    let text = with(
        r#"[[credential]]
nme = "x"
hosts = ["https://example.com/x", "*.com"]
scheme = "baerer"
env = "HOME"
token = "hunter2"
[[credential]]
name = "two"
hosts = ["example.com"]
git = { repositories = ["a/b.git"], pull = true, push = ["main"], force = 1 }
"#,
    );
    let found = parse(&text).unwrap_err();
    assert_eq!(
        found.to_string(),
        r#"error: a credential has no `name`
 --> p.toml:8:1
  |
8 | [[credential]]
  | ^^^^^^^^^^^^^^
  |
  = hint: events call it so; without `secret` it is the secret's name too

error: unknown key `nme` in `[[credential]]`
 --> p.toml:9:1
  |
9 | nme = "x"
  | ^^^
  |
  = hint: did you mean `name`?

error: `https://example.com/x` is a URL
  --> p.toml:10:11
   |
10 | hosts = ["https://example.com/x", "*.com"]
   |           ^^^^^^^^
   |
   = hint: write `example.com`

error: `*.com` would give the secret to whoever registers a name
  --> p.toml:10:35
   |
10 | hosts = ["https://example.com/x", "*.com"]
   |                                   ^^^^^^^
   |
   = hint: name the hosts, or a domain of one owner

error: unknown scheme `baerer`
  --> p.toml:11:10
   |
11 | scheme = "baerer"
   |          ^^^^^^^^
   |
   = hint: did you mean `bearer`?

error: `HOME` is sandboxd's own
  --> p.toml:12:7
   |
12 | env = "HOME"
   |       ^^^^^^
   |
   = hint: name the one that the program reads the secret from

error: unknown key `token` in `[[credential]]`
  --> p.toml:13:1
   |
13 | token = "hunter2"
   | ^^^^^
   |
   = hint: `token` belongs in no policy: `sandbox secret set NAME` stores it, `secret` names it

error: `a/b.git` ends with `.git`
  --> p.toml:17:29
   |
17 | git = { repositories = ["a/b.git"], pull = true, push = ["main"], force = 1 }
   |                             ^^^^
   |
   = hint: leave it out: `a/b` is for both

error: unknown key `pull` in `[credential.git]`
  --> p.toml:17:37
   |
17 | git = { repositories = ["a/b.git"], pull = true, push = ["main"], force = 1 }
   |                                     ^^^^
   |
   = hint: known are `repositories`, `push`, `force` and `delete`

error: `main` does not begin with `refs/`
  --> p.toml:17:58
   |
17 | git = { repositories = ["a/b.git"], pull = true, push = ["main"], force = 1 }
   |                                                          ^^^^^^
   |
   = hint: write `refs/heads/main` for a branch

error: `force` takes `true` or `false`, and this is a number
  --> p.toml:17:75
   |
17 | git = { repositories = ["a/b.git"], pull = true, push = ["main"], force = 1 }
   |                                                                           ^"#
    );
}

#[test]
fn names_are_simple_and_their_own() {
    for name in ["", ".a", "a/b", "a b", "\u{e4}", &"a".repeat(65)] {
        let text = entry("").replace("\"one\"", &format!("\"{name}\""));
        assert_eq!(messages(&text), [format!("`{name}` is not a name")]);
        let message = wrong(&format!("secret = \"{name}\""));
        assert_eq!(message, format!("`{name}` is not a name"));
    }
    for name in ["a", "a.b-c_D9", &"a".repeat(64)] {
        assert_eq!(read(&format!("secret = \"{name}\"")).rule.secret, name);
    }
    let twice = format!(
        "{}[[credential]]\nname = \"one\"\nhosts = [\"a.example.com\"]\n",
        entry("")
    );
    assert_eq!(messages(&twice), ["another credential is called `one`"]);
}

#[test]
fn a_secret_goes_to_hosts_of_one_owner_that_the_proxy_lets_through() {
    let hosts = |list: &str| entry("").replace("\"example.com\"]\n\n", &format!("{list}]\n"));
    assert_eq!(messages(&hosts("")), ["`hosts` is empty"]);
    assert_eq!(
        messages(&hosts("\"*\", \"*.co.uk\"")),
        [
            "`*` would give the secret to whoever registers a name",
            "`*.co.uk` would give the secret to whoever registers a name",
        ]
    );
    assert_eq!(
        warned(&hosts("\"*.example.com\"")),
        ["every host below `example.com` is given the secret"]
    );
    for away in [
        "a.test",
        "denied.example.com",
        "api.example.com:8443",
        "example.com:9",
    ] {
        let found = warned(&hosts(&format!("\"{away}\"")));
        assert_eq!(found, [format!("no request gets to `{away}`")]);
    }
    for reached in ["example.com", "example.com:8443", "a.b.example.com"] {
        assert_eq!(warned(&hosts(&format!("\"{reached}\""))), [""; 0]);
    }
    assert_eq!(
        warned(&hosts("\"example.com:80\"")),
        ["`example.com:80` is a port without TLS, where no secret goes"]
    );
}

#[test]
fn credentials_need_the_proxy() {
    let expected = ["credentials need `mode = \"proxy\"` in `[network]`"];
    let network = "[network]\nmode = \"proxy\"\n";
    for mode in ["", "[network]\n", "[network]\nmode = \"unrestricted\"\n"] {
        let text = entry("").replace(network, mode);
        let text = text.replace("allow = [\"example.com\", \"*.example.com\", \"example.com:8443\"]\ndeny = [\"denied.example.com\"]\n", "");
        assert_eq!(messages(&text), expected, "{text}");
    }
    let single = with("[credential]\nname = \"x\"\n");
    let found = parse(&single).unwrap_err();
    assert_eq!(
        found.0[0].hint.as_deref(),
        Some("begin each with `[[credential]]`")
    );
}

#[test]
fn a_scheme_has_its_own_keys_and_no_other() {
    assert_eq!(wrong("scheme = \"digest\""), "unknown scheme `digest`");
    for (lines, message) in [
        (
            "username = \"me\"",
            "`username` is for `scheme = \"basic\"`",
        ),
        (
            "header = \"x-key\"",
            "`header` is for `scheme = \"header\"`",
        ),
        (
            "scheme = \"basic\"\nquery = \"key\"",
            "`query` is for `scheme = \"query\"`",
        ),
        (
            "scheme = \"header\"",
            "`scheme = \"header\"` needs `header`",
        ),
        ("scheme = \"query\"", "`scheme = \"query\"` needs `query`"),
        (
            "scheme = \"basic\"\nusername = \"a:b\"",
            "a user name holds no colon",
        ),
        (
            "scheme = \"basic\"\nusername = \"a\\u0000\"",
            "not a user name",
        ),
    ] {
        assert_eq!(wrong(lines), message);
    }
    let header = |name: &str| format!("scheme = \"header\"\nheader = \"{name}\"");
    for name in ["", "a b", "x-key:", ":path", "\u{e4}"] {
        let message = wrong(&header(name));
        assert_eq!(message, format!("`{name}` is not the name of a header"));
    }
    for name in ["Host", "content-length", "Transfer-Encoding", "Connection"] {
        let message = wrong(&header(name));
        assert!(message.contains("says how a request travels"), "{message}");
    }
    for name in ["Authorization", "Cookie", "PRIVATE-TOKEN"] {
        let scheme = read(&header(name)).rule.scheme;
        let name = name.to_lowercase();
        assert_eq!(scheme, Scheme::Header { name });
    }
    for name in ["", "a=b", "a&b", "a b", "a%20"] {
        let message = wrong(&format!("scheme = \"query\"\nquery = \"{name}\""));
        assert!(
            message.ends_with("is not the name of a query parameter"),
            "{message}"
        );
    }
}

#[test]
fn methods_and_paths_are_those_of_requests() {
    assert_eq!(wrong("methods = []"), "`methods` is empty");
    assert_eq!(wrong("paths = []"), "`paths` is empty");
    assert_eq!(wrong("methods = [\"GET /\"]"), "`GET /` is not a method");
    for method in ["connect", "TRACE"] {
        let message = wrong(&format!("methods = [\"{method}\"]"));
        assert!(message.ends_with("is never let through with a credential"));
    }
    for good in [
        "/",
        "/**",
        "/*",
        "/v1/",
        "/v1/**",
        "/a/*/b/*",
        "/@scope%2fname",
        "/*%2f*",
        "/@scope%2F*/-/*",
        "/a.b~c:d",
        "/...",
    ] {
        assert_eq!(read(&format!("paths = [\"{good}\"]")).rule.paths, [good]);
    }
    for bad in [
        "",
        "v1",
        "**",
        "//",
        "/a//b",
        "/a?b",
        "/a#b",
        "/a/../b",
        "/.",
        "/a*",
        "/***",
        "/**/b",
        "/a b",
        "/%2e%2e/b",
        "/%252e",
        "/%0a",
        "/%4a",
        "/%",
        "/%4",
        "/%zz",
        "/\u{e4}",
        "/a\\\\b",
    ] {
        wrong(&format!("paths = [\"{bad}\"]"));
    }
}

#[test]
fn a_variable_stands_for_one_secret_and_leads_nowhere() {
    for name in ["", "1A", "A-B", "A*", "A=B"] {
        let message = wrong(&format!("env = \"{name}\""));
        assert_eq!(message, format!("`{name}` is not the name of a variable"));
    }
    for name in [
        "HOME",
        "PATH",
        "SANDBOX",
        "SANDBOX_ID",
        "https_proxy",
        "NO_PROXY",
        "SSL_CERT_FILE",
    ] {
        let message = wrong(&format!("env = \"{name}\""));
        assert_eq!(message, format!("`{name}` is sandboxd's own"));
    }
    for name in ["LD_PRELOAD", "NODE_OPTIONS"] {
        assert!(wrong(&format!("env = \"{name}\"")).ends_with("never let in"));
    }
    let set = format!("{}[env.set]\nA_TOKEN = \"x\"\n", entry("env = \"A_TOKEN\""));
    assert_eq!(messages(&set), ["`A_TOKEN` has a value in `[env] set`"]);
    let second = |secret: &str| {
        let first = entry("secret = \"s\"\nenv = \"A_TOKEN\"");
        format!(
            "{first}[[credential]]\nname = \"two\"\nsecret = \"{secret}\"\n\
             hosts = [\"a.example.com\"]\nenv = \"A_TOKEN\"\n"
        )
    };
    assert_eq!(resolve(&good(&second("s"))).credentials.len(), 2);
    assert_eq!(
        messages(&second("t")),
        ["`A_TOKEN` stands for the secret `s` already"]
    );
}

#[test]
fn what_leads_programs_to_the_proxy_is_no_variable_for_a_secret() {
    for (name, _) in crate::egress::variables(&[]) {
        assert!(own::is_variable(name), "{name}");
    }
    assert!(!own::is_variable("HOMEBREW_GITHUB_API_TOKEN"));
}

#[test]
fn git_says_which_requests_and_what_may_be_pushed() {
    let git = |inside: &str| format!("git = {{ {inside} }}");
    assert_eq!(wrong(&git("")), "`git` has no `repositories`");
    assert_eq!(wrong(&git("repositories = []")), "`repositories` is empty");
    for key in ["force", "delete"] {
        for push in ["", ", push = []"] {
            let message = wrong(&git(&format!(
                "repositories = [\"a/b\"], {key} = true{push}"
            )));
            assert_eq!(message, format!("`{key}` has no use without `push`"));
        }
        read(&git(&format!("repositories = [\"a/b\"], {key} = false")));
    }
    for key in ["methods = [\"GET\"]", "paths = [\"/a\"]"] {
        let message = wrong(&format!("{key}\n{}", git("repositories = [\"a/b\"]")));
        assert!(message.starts_with("`git` says which requests"));
    }
    for scheme in ["header", "query"] {
        let lines = format!("scheme = \"{scheme}\"\n{scheme} = \"x\"\n");
        let message = wrong(&format!("{lines}{}", git("repositories = [\"a/b\"]")));
        assert_eq!(message, format!("git sends no credential as `{scheme}`"));
    }
    let forced = |push: &str| {
        entry(&git(&format!(
            "repositories = [\"a/b\"], push = [\"{push}\"], force = true"
        )))
    };
    assert_eq!(
        warned(&forced("refs/heads/*")),
        ["with `refs/heads/*` in `push`, every branch may be overwritten"]
    );
    assert_eq!(warned(&forced("refs/heads/agent/*")), [""; 0]);
}

#[test]
fn what_is_not_intercepted_has_no_rules() {
    let text = entry(
        "intercept = false\nsecret = \"s\"\nscheme = \"basic\"\nusername = \"u\"\n\
         methods = [\"GET\"]\npaths = [\"/\"]\nenv = \"A\"\n\
         git = { repositories = [\"a/b\"] }",
    );
    let found: HashSet<_> = messages(&text).into_iter().collect();
    let expected = [
        "secret", "scheme", "username", "methods", "paths", "env", "git",
    ];
    let expected = expected.map(|key| format!("`{key}` needs to see the request"));
    assert_eq!(found, expected.into());
    assert_eq!(
        wrong("intercept = \"no\""),
        "`intercept` takes `true` or `false`, and this is a string"
    );
    let untouched = "[[credential]]\nname = \"two\"\nintercept = false\nhosts = ";
    let both = |host: &str| warned(&format!("{}{untouched}[\"{host}\"]\n", entry("")));
    assert_eq!(
        both("example.com"),
        ["the credential never goes to `example.com`"]
    );
    assert_eq!(both("*"), ["the credential never goes to `example.com`"]);
    assert_eq!(both("a.test"), ["no credential goes to `a.test`"]);
    assert_eq!(
        both("example.com:8443"),
        ["no credential goes to `example.com:8443`"]
    );
}

#[test]
fn the_examples_of_the_documentation_have_nothing_to_warn_of() {
    let path = format!("{}/../docs/policy.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    for (name, variable) in [
        ("github", "GITHUB_TOKEN"),
        ("npm", "NPM_TOKEN"),
        ("llm", "ANTHROPIC_API_KEY"),
    ] {
        let marker = format!("<!-- example {name} -->\n```toml\n");
        let (_, example) = text.split_once(&marker).unwrap();
        let document = good(example.split("```").next().unwrap());
        assert!(document.warnings().is_empty(), "{}", document.warnings());
        let mut credentials = resolve(&document).credentials.into_iter();
        assert!(credentials.any(|it| it.env.as_deref() == Some(variable)));
    }
}

#[test]
fn keys_of_credentials_are_sent_to_them() {
    for key in ["hosts", "scheme", "secret", "git", "intercept"] {
        let found = parse(&format!("version = 1\n{key} = 1\n")).unwrap_err();
        let hint = format!("`{key}` belongs in `[[credential]]`");
        assert_eq!(found.0[0].hint.as_ref(), Some(&hint));
    }
}

#[test]
fn too_many_credentials_are_refused_with_the_limit() {
    let many = |count: usize| {
        let entry = |n| format!("[[credential]]\nname = \"n{n}\"\nhosts = [\"example.com\"]\n");
        with(&(0..count).map(entry).collect::<String>())
    };
    assert_eq!(
        resolve(&good(&many(MAX_CREDENTIALS))).credentials.len(),
        256
    );
    let found = parse(&many(MAX_CREDENTIALS + 1)).unwrap_err();
    assert_eq!(found.0[0].message, "the policy has too many credentials");
    assert_eq!(found.0[0].hint.as_deref(), Some("at most 256"));
}
