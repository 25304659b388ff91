//! Whole documents: what is accepted, what is refused and how it looks.

mod credentials;
mod limits;
mod shipped;

use std::path::Path;

use sandbox_proxy::name::Name;

use self::shipped::shipped;
use super::*;

fn sets() -> Sets {
    Sets::shipped().unwrap_or_else(|found| panic!("{found}"))
}

fn parse(text: &str) -> Result<Document, Diagnostics> {
    Document::parse(&Source::new("p.toml", text), &sets())
}

fn good(text: &str) -> Document {
    parse(text).unwrap_or_else(|found| panic!("{found}"))
}

fn messages(text: &str) -> Vec<String> {
    parse(text)
        .unwrap_err()
        .into_iter()
        .map(|it| it.message)
        .collect()
}

fn warned(text: &str) -> Vec<String> {
    good(text)
        .warnings()
        .iter()
        .map(|it| it.message.clone())
        .collect()
}

fn expansion() -> Expansion {
    Expansion {
        home: "/home/dev".into(),
        workspace: Some("/home/dev/app".into()),
        tmp: vec!["/tmp".into(), "/var/tmp".into(), "/dev/shm".into()],
        cache: "/var/cache/sandboxd/1000".into(),
    }
}

fn resolve(document: &Document) -> Policy {
    document
        .resolve(&expansion(), &Additions::default())
        .unwrap_or_else(|found| panic!("{found}"))
}

fn access(policy: &Policy, path: &str) -> Option<Access> {
    policy.nearest(Path::new(path)).map(|rule| rule.access)
}

fn label<'p>(policy: &'p Policy, path: &str) -> &'p str {
    policy
        .nearest(Path::new(path))
        .map_or("", |rule| &rule.label)
}

const WORKSPACE: &str = r#"
version = 1
[files]
read = ["/"]
write = ["${workspace}"]
"#;

#[test]
fn a_device_is_opened_and_may_be_written() {
    let text = r#"
version = 1
[files]
read = ["/"]
deny = ["@hardware"]
[devices]
allow = ["/dev/kvm", "/dev/input/event3"]
"#;
    let policy = resolve(&good(text));
    let devices = policy.devices.iter();
    let paths: Vec<_> = devices.map(|it| it.path.to_str().unwrap()).collect();
    assert_eq!(paths, ["/dev/kvm", "/dev/input/event3"]);
    assert_eq!(access(&policy, "/dev/kvm"), Some(Access::Write));
    assert_eq!(access(&policy, "/dev/input/event3"), Some(Access::Write));
    assert_eq!(access(&policy, "/dev/input/event4"), Some(Access::Deny));
    assert_eq!(label(&policy, "/dev/kvm"), "/dev/kvm");
    let without = resolve(&good(&text.replace("\"/dev/kvm\", ", "")));
    assert_ne!(policy.digest, without.digest);
}

#[test]
fn a_device_is_named_by_its_path_and_not_denied_as_well() {
    let wrong =
        "version = 1\n[devices]\nallow = [\"kvm\", \"~/kvm\", \"/dev/../etc\"]\nopen = []\n";
    assert_eq!(messages(wrong).len(), 4, "{:?}", messages(wrong));
    let text = "version = 1\n[files]\ndeny = [\"/dev/kvm\"]\n[devices]\nallow = [\"/dev/kvm\"]\n";
    let found = good(text)
        .resolve(&expansion(), &Additions::default())
        .unwrap_err();
    let found: Vec<_> = found.into_iter().map(|it| it.message).collect();
    assert_eq!(found, ["`/dev/kvm` is denied by rule `/dev/kvm`"]);
}

// ---- what is refused

#[test]
fn every_mistake_of_a_file_is_reported_where_it_stands() {
    let text = r#"version = 1
mode = "enforced"
[files]
reed = ["/"]
read = ["etc", "@credential", "/a/../b"]
write = "${workspace}"
deny = ["${workspce}/x", 7]
[network]
direct = ["10.0.0.0/8"]
"#;
    let found = parse(text).unwrap_err();
    assert_eq!(
        found.to_string(),
        r#"error: unknown mode `enforced`
 --> p.toml:2:8
  |
2 | mode = "enforced"
  |        ^^^^^^^^^^
  |
  = hint: did you mean `enforce`?

error: unknown key `reed` in `[files]`
 --> p.toml:4:1
  |
4 | reed = ["/"]
  | ^^^^
  |
  = hint: did you mean `read`?

error: `etc` is a relative path
 --> p.toml:5:9
  |
5 | read = ["etc", "@credential", "/a/../b"]
  |         ^^^^^
  |
  = hint: did you mean `${workspace}/etc`?

error: unknown set `@credential`
 --> p.toml:5:16
  |
5 | read = ["etc", "@credential", "/a/../b"]
  |                ^^^^^^^^^^^^^
  |
  = hint: did you mean `@credentials`?

error: `..` is not followed
 --> p.toml:5:35
  |
5 | read = ["etc", "@credential", "/a/../b"]
  |                                   ^^
  |
  = hint: write the path without it

error: `write` takes a list of strings, and this is a string
 --> p.toml:6:9
  |
6 | write = "${workspace}"
  |         ^^^^^^^^^^^^^^
  |
  = hint: write `write = ["${workspace}"]`

error: unknown placeholder `${workspce}`
 --> p.toml:7:10
  |
7 | deny = ["${workspce}/x", 7]
  |          ^^^^^^^^^^^
  |
  = hint: did you mean `${workspace}`?

error: `deny` takes strings, and this is a number
 --> p.toml:7:26
  |
7 | deny = ["${workspce}/x", 7]
  |                          ^

error: `10.0.0.0/8` is a range of addresses
 --> p.toml:9:20
  |
9 | direct = ["10.0.0.0/8"]
  |                    ^^
  |
  = hint: `direct` takes single addresses: list each that is needed"#
    );
    assert_eq!((found.0[4].line, found.0[4].column), (5, 35));
    assert_eq!(
        found.0[4].hint.as_deref(),
        Some("write the path without it")
    );
}

#[test]
fn mistakes_of_syntax_have_the_same_shape() {
    let found = parse("version = 1\n[files\nread = [\"/\"\n").unwrap_err();
    assert!(
        found
            .0
            .iter()
            .all(|it| it.message.starts_with("not TOML: ") && it.line >= 2)
    );
    assert!(found.to_string().contains("2 | [files"), "{found}");
    let twice = parse("version = 1\nname = \"a\"\nname = \"b\"\n").unwrap_err();
    assert_eq!(
        twice.to_string(),
        "error: not TOML: duplicate key\n --> p.toml:3:1\n  |\n3 | name = \"b\"\n  | ^^^^"
    );
}

#[test]
fn the_version_comes_first() {
    assert_eq!(messages(""), ["`version` is missing"]);
    assert_eq!(
        messages("version = 2\nfuture = true\n"),
        ["version 2 is not known to this sandboxd"]
    );
    assert_eq!(
        messages("version = \"1\"\n"),
        ["`version` takes a number, and this is a string"]
    );
}

#[test]
fn a_key_in_a_wrong_table_is_sent_to_the_right_one() {
    let found = parse("version = 1\nread = [\"/\"]\n").unwrap_err();
    assert_eq!(found.0[0].message, "unknown key `read`");
    assert_eq!(
        found.0[0].hint.as_deref(),
        Some("`read` belongs in `[files]`")
    );
    let found = parse("version = 1\n[file]\n").unwrap_err();
    assert_eq!(found.0[0].hint.as_deref(), Some("did you mean `files`?"));
}

#[test]
fn who_may_connect_is_one_of_three_words() {
    let listen = |text: &str| {
        resolve(&good(&format!("version = 1\n[network]\n{text}\n")))
            .network
            .listen
    };
    assert_eq!(listen(""), Listen::Loopback);
    assert_eq!(listen("listen = \"none\""), Listen::None);
    assert_eq!(listen("listen = \"loopback\""), Listen::Loopback);
    assert_eq!(
        messages("version = 1\n[network]\nlisten = \"all\"\n"),
        ["unknown listen `all`"]
    );
    assert_eq!(
        messages("version = 1\n[network]\nlisten = true\n"),
        ["`listen` takes a string, and this is true or false"]
    );
}

#[test]
fn too_much_is_refused_with_the_limit() {
    let large = format!("version = 1\n#{}", "x".repeat(MAX_POLICY_BYTES));
    let found = parse(&large).unwrap_err();
    assert_eq!(found.0[0].hint.as_deref(), Some("at most 262144 bytes"));

    let entries: Vec<String> = (0..=MAX_RULES).map(|n| format!("\"/a{n}\"")).collect();
    let entries = entries.join(",");
    let found = parse(&format!("version = 1\n[files]\nread = [{entries}]\n")).unwrap_err();
    assert_eq!(found.0[0].message, "the policy has too many rules");

    let many = "x\n".repeat(1000);
    let found = parse(&many).unwrap_err();
    assert_eq!(found.0.len(), 50);
    assert!(
        found.0[49].message.starts_with("and "),
        "{}",
        found.0[49].message
    );
}

#[test]
fn names_everywhere_are_only_for_deny() {
    assert_eq!(
        messages("version = 1\n[files]\nwrite = [\"**/.env\"]\n"),
        ["`**/` is for `deny` alone"]
    );
    assert_eq!(
        messages("version = 1\n[files]\nread = [\"@dotenv\"]\n"),
        ["`**/` is for `deny` alone"]
    );
}

#[test]
fn injection_variables_cannot_be_passed() {
    let text =
        "version = 1\n[env]\npass = [\"LD_PRELOAD\", \"LD_*\", \"BASH_ENV\", \"@injection\"]\n";
    assert!(messages(text).iter().all(|it| it.contains("never let in")));
    assert_eq!(messages(text).len(), 4);
    assert_eq!(
        messages("version = 1\n[env]\npass = [\"*_TOKEN\", \"@credentials\"]\n"),
        [
            "`*_TOKEN` is not the name of a variable",
            "`@credentials` is a set of places, not of variables",
        ]
    );
    assert_eq!(
        messages("version = 1\n[env.set]\n\"A=B\" = \"x\"\nN = 1\nH = \"${home}\"\n"),
        [
            "`A=B` is not the name of a variable",
            "`N` takes a string, and this is a number",
            "unknown placeholder `${home}`",
        ]
    );
}

#[test]
fn scope_takes_known_names() {
    assert_eq!(
        messages("version = 1\n[scope]\nallow = [\"usernss\", \"x\"]\n"),
        ["unknown allow `usernss`", "unknown allow `x`"]
    );
    assert!(
        warned(&format!("{WORKSPACE}[scope]\nallow = [\"userns\"]\n")).contains(
            &"`userns` opens parts of the kernel that only root reaches otherwise".to_owned()
        )
    );
}

#[test]
fn a_policy_can_edit_no_policy() {
    assert_eq!(
        messages("version = 1\n[files]\nwrite = [\"${workspace}/.sandbox.toml\"]\n"),
        ["`.sandbox.toml` is read-only inside, always"]
    );
}

// ---- what is warned of

#[test]
fn what_is_as_good_as_no_boundary_is_warned_of() {
    let text = r#"
version = 1
[files]
read = ["/"]
write = ["/", "~", "~/.config"]
[network]
unix = ["/var/run/docker.sock"]
allow = ["*", "*.com", "example.com"]
direct = ["169.254.169.254"]
[env]
pass = ["*"]
"#;
    assert_eq!(
        warned(text),
        [
            "`/` has no effect in `read`: another line in `write` names the same place",
            "`/` makes every file of the user's writable",
            "`~` makes the whole home directory writable",
            "`~` makes `~/.profile` writable, which runs later outside the sandbox",
            "`~` makes `~/bin` writable, which runs later outside the sandbox",
            "`~` makes `~/.gitconfig` writable, which runs later outside the sandbox",
            "`~/.config` makes `~/.config/zsh` writable, which runs later outside the sandbox",
            "`~/.config` makes `~/.config/git/config` writable, which runs later outside the \
             sandbox",
            "`/var/run/docker.sock` is a way out of the sandbox: Docker starts containers as root \
             on this machine",
            "no host is let through: the mode is `none`",
            "`*` lets through names that anybody can register",
            "`*.com` lets through names that anybody can register",
            "`169.254.169.254` hands out a cloud machine's credentials",
            "`*` lets every variable in, and tokens with them",
        ]
    );
}

#[test]
fn protected_start_up_files_are_not_warned_of() {
    let text = r#"
version = 1
[files]
read = ["/", "@startup", "@programs", "@git-config"]
write = ["~"]
"#;
    assert_eq!(
        warned(text),
        ["`~` makes the whole home directory writable"]
    );
}

#[test]
fn lines_that_do_nothing_are_warned_of() {
    let text = r#"
version = 1
[files]
read = ["/", "~/.ssh", "/opt", "/opt"]
write = ["${workspace}/a", "/srv/[x]"]
deny = ["@credentials"]
"#;
    assert_eq!(
        warned(text),
        [
            "`~/.ssh` has no effect in `read`: `@credentials` in `deny` names the same place",
            "`/opt` is listed twice in `read`",
            "`/srv/[x]` is taken literally, brackets and all",
        ]
    );
    assert_eq!(
        warned("version = 1\n"),
        ["nothing can be read, so nothing can be started"]
    );
}

#[test]
fn opening_one_place_of_a_set_is_not_warned_of() {
    let text = r#"
version = 1
[files]
read = ["/", "@repository", "~/.ssh/known_hosts"]
write = ["${workspace}", "${workspace}/.git/config"]
deny = ["@credentials"]
"#;
    assert_eq!(warned(text), [""; 0]);
    let policy = resolve(&good(text));
    assert_eq!(
        access(&policy, "/home/dev/app/.git/config"),
        Some(Access::Write)
    );
    assert_eq!(
        access(&policy, "/home/dev/app/.git/hooks/pre-commit"),
        Some(Access::Read)
    );
    assert_eq!(
        access(&policy, "/home/dev/.ssh/id_ed25519"),
        Some(Access::Deny)
    );
    assert_eq!(
        access(&policy, "/home/dev/.ssh/known_hosts"),
        Some(Access::Read)
    );
}

#[test]
fn network_modes_say_what_they_do() {
    let of = |network: &str| warned(&format!("{WORKSPACE}[network]\n{network}"));
    assert_eq!(
        of("mode = \"none\"\ndirect = [\"192.0.2.1:443\"]\n"),
        [""; 0]
    );
    assert_eq!(of("mode = \"proxy\"\nallow = [\"example.com\"]\n"), [""; 0]);
    assert_eq!(
        of("mode = \"proxy\"\n"),
        ["`proxy` lets no host through: nothing is in `allow`"]
    );
    assert_eq!(
        of("allow = [\"example.com\"]\n"),
        ["no host is let through: the mode is `none`"]
    );
    assert_eq!(
        of("mode = \"unrestricted\"\nallow = [\"example.com\"]\n"),
        [
            "`unrestricted` takes the network wall away",
            "this entry has no effect"
        ]
    );
    let document = good(&format!("{WORKSPACE}[network]\nmode = \"unrestricted\"\n"));
    assert_eq!(resolve(&document).network.mode, NetworkMode::Unrestricted);
}

// ---- what a document comes to

#[test]
fn everything_of_a_document_arrives_in_the_policy() {
    let text = r#"
version = 1
name = "all"
description = "of it"
mode = "observe"
[files]
read = ["/usr"]
write = ["${workspace}", "${tmp}"]
deny = ["**/.env", "${workspace}/**/*.pem"]
[network]
mode = "proxy"
allow = ["Example.com", "*.example.org:8443"]
deny = ["bad.example.org"]
direct = ["192.0.2.1:443", "[2001:db8::1]:53", "192.0.2.7"]
unix = ["/run/postgresql/.s.PGSQL.5432", "~/s.sock"]
listen = "any"
[env]
pass = ["CI", "LC_*"]
set = { A = "x", P = "${workspace}/bin:${cache}/bin", T = "${tmp}", D = "$5" }
"#;
    let policy = resolve(&good(text));
    assert_eq!((policy.name.as_str(), policy.mode), ("all", Mode::Observe));
    let places: Vec<_> = policy
        .files
        .iter()
        .map(|rule| (&rule.place, rule.access))
        .collect();
    let path = |path: &str| Place::Path(path.into());
    assert_eq!(
        places,
        [
            (&path("/usr"), Access::Read),
            (&path("/home/dev/app"), Access::Write),
            (&path("/tmp"), Access::Write),
            (&path("/var/tmp"), Access::Write),
            (&path("/dev/shm"), Access::Write),
            (
                &Place::Name {
                    scope: None,
                    pattern: NamePattern::Exact(b".env".to_vec())
                },
                Access::Deny
            ),
            (
                &Place::Name {
                    scope: Some("/home/dev/app".into()),
                    pattern: NamePattern::Suffix(b".pem".to_vec())
                },
                Access::Deny
            ),
            (&path("/home/dev/app/.sandbox.toml"), Access::Read),
        ]
    );
    assert_eq!(label(&policy, "/tmp"), "${tmp}");
    let network = &policy.network;
    assert_eq!(network.mode, NetworkMode::Proxy);
    let name = Name::parse("example.com").unwrap();
    assert_eq!(network.allow[0].host, HostPattern::Exact(name));
    assert_eq!(network.allow[1].port, Some(8443));
    assert_eq!(network.deny.len(), 1);
    assert_eq!(network.direct[1].port, Some(53));
    assert_eq!(
        network.unix,
        [
            Path::new("/run/postgresql/.s.PGSQL.5432"),
            Path::new("/home/dev/s.sock")
        ]
    );
    assert_eq!(network.listen, Listen::Any);
    let env = &policy.env;
    assert_eq!(
        env.set["P"],
        "/home/dev/app/bin:/var/cache/sandboxd/1000/bin"
    );
    assert_eq!(env.set["T"], "/tmp");
    assert_eq!(env.set["D"], "$5");
    assert!(env.passes(b"LC_ALL") && env.passes(b"CI") && !env.passes(b"GITHUB_TOKEN"));
}

#[test]
fn at_the_same_place_deny_beats_write_beats_read() {
    let text = r#"
version = 1
[files]
read = ["/a", "/b", "/c"]
write = ["/b", "/c/"]
deny = ["/c"]
"#;
    let policy = resolve(&good(text));
    assert_eq!(access(&policy, "/a"), Some(Access::Read));
    assert_eq!(access(&policy, "/b"), Some(Access::Write));
    assert_eq!(access(&policy, "/c"), Some(Access::Deny));
    assert_eq!(policy.files.len(), 4);
}

#[test]
fn a_policy_without_name_is_called_after_its_file() {
    assert_eq!(good(WORKSPACE).name(), "p");
    let source = Source::new("/x/build host.toml", WORKSPACE);
    assert_eq!(Document::parse(&source, &sets()).unwrap().name(), "unnamed");
    assert_eq!(
        messages("version = 1\nname = \"a b\"\n"),
        ["not a name for a policy"]
    );
}

#[test]
fn a_workspace_is_asked_for_where_it_is_named() {
    let none = Expansion {
        workspace: None,
        ..expansion()
    };
    let found = good(WORKSPACE)
        .resolve(&none, &Additions::default())
        .unwrap_err();
    assert_eq!(
        found.to_string(),
        "error: `${workspace}` stands for nothing: none was given\n --> p.toml:5:10\n  |\n5 | write \
         = [\"${workspace}\"]\n  |          ^^^^^^^^^^^^^^\n  |\n  = hint: name a workspace"
    );
    let text = "version = 1\n[files]\nread = [\"/\"]\n";
    assert!(good(text).resolve(&none, &Additions::default()).is_ok());
}

#[test]
fn a_denied_workspace_is_refused() {
    let at = |workspace: &str| {
        let expansion = Expansion {
            workspace: Some(workspace.into()),
            ..expansion()
        };
        shipped("default").resolve(&expansion, &Additions::default())
    };
    let found = at("/home/dev/.ssh").unwrap_err();
    assert_eq!(
        found.0[0].message,
        "the workspace `/home/dev/.ssh` does not exist inside: rule `credentials` denies it"
    );
    assert!(at("/home/dev/.ssh/keys").is_ok(), "a nearer rule opens it");
    assert!(at("relative").is_err());
}

#[test]
fn the_daemons_state_does_not_exist_inside_wherever_it_is() {
    let additions = Additions {
        state: Some("/home/dev/app/state".into()),
        ..Additions::default()
    };
    let document = parse(WORKSPACE).unwrap();
    let policy = document.resolve(&expansion(), &additions).unwrap();
    assert_eq!(access(&policy, "/home/dev/app/state"), Some(Access::Deny));
    let secret = "/home/dev/app/state/secrets/1000/npm";
    assert_eq!(access(&policy, secret), Some(Access::Deny));
    assert_eq!(access(&policy, "/home/dev/app"), Some(Access::Write));
    // Control: anywhere else that is the workspace's.
    let policy = resolve(&document);
    assert_eq!(access(&policy, secret), Some(Access::Write));

    let opening = "version = 1\n[files]\nread = [\"/home/dev/app/state/secrets\"]\n";
    let document = parse(opening).unwrap();
    let wrong = document.resolve(&expansion(), &additions).unwrap_err();
    assert!(wrong.0[0].message.contains("sandboxd's own"), "{wrong}");
    document
        .resolve(&expansion(), &Additions::default())
        .unwrap();
}

#[test]
fn what_a_caller_adds_goes_before_what_is_allowed_and_not_before_what_is_denied() {
    let document = shipped("default");
    let add = |read: &[&str], write: &[&str], origin: Option<&str>| {
        let paths = |list: &[&str]| list.iter().map(Into::into).collect();
        document.resolve(
            &expansion(),
            &Additions {
                read: paths(read),
                write: paths(write),
                origin: origin.map(Into::into),
                ..Additions::default()
            },
        )
    };
    let policy = add(
        &["/home/dev/app/vendor", "/home/dev/app"],
        &["/srv/out/", "/home/dev/app/.git/config"],
        Some("/home/dev/app/ci/policy.toml"),
    )
    .unwrap();
    assert_eq!(access(&policy, "/home/dev/app/src"), Some(Access::Read));
    assert_eq!(access(&policy, "/srv/out/x"), Some(Access::Write));
    assert_eq!(label(&policy, "/srv/out"), "/srv/out/");
    assert_eq!(
        access(&policy, "/home/dev/app/.git/config"),
        Some(Access::Write)
    );
    assert_eq!(
        access(&policy, "/home/dev/app/ci/policy.toml"),
        Some(Access::Read)
    );
    assert_eq!(
        label(&policy, "/home/dev/app/ci/policy.toml"),
        "policy file"
    );

    let refused =
        |read: &[&str], write: &[&str]| add(read, write, None).unwrap_err().0.remove(0).message;
    assert_eq!(
        refused(&[], &["/home/dev/.ssh"]),
        "cannot add `/home/dev/.ssh`: `/home/dev/.ssh` is denied by rule `credentials`"
    );
    // Nor what is below it, or is denied by its name.
    assert_eq!(
        refused(&["/home/dev/.ssh/id_ed25519"], &[]),
        "cannot add `/home/dev/.ssh/id_ed25519`: \
         `/home/dev/.ssh/id_ed25519` is denied by rule `credentials`"
    );
    let strict = shipped("strict").resolve(
        &expansion(),
        &Additions {
            write: vec!["/home/dev/app/src/.env".into()],
            ..Additions::default()
        },
    );
    let message = strict.unwrap_err().0.remove(0).message;
    assert!(message.ends_with("is denied by rule `dotenv`"), "{message}");
    assert!(refused(&["a"], &[]).contains("relative path"));
    assert!(refused(&["/a"], &["/a"]).contains("both"));
    let own = add(&[], &["/home/dev/app/.sandbox.toml"], None).unwrap();
    assert_eq!(
        access(&own, "/home/dev/app/.sandbox.toml"),
        Some(Access::Read)
    );
}

// ---- the reference

#[test]
fn every_policy_in_the_documentation_is_one() {
    let mut blocks = 0;
    for name in ["docs/policy.md", "README.md"] {
        let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        for block in text.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            blocks += 1;
            // Parts of a policy are shown without its beginning.
            let whole = if block.contains("version = ") {
                block.to_owned()
            } else {
                format!("version = 1\n{block}")
            };
            let source = Source::new(name, whole);
            if block.contains("reason = ") {
                Sets::parse(&source).map(drop)
            } else {
                Document::parse(&source, &sets()).map(drop)
            }
            .unwrap_or_else(|found| panic!("{found}"));
        }
    }
    assert!(blocks >= 6, "{blocks}");
}

#[test]
fn no_document_makes_the_parser_panic() {
    let text = "version = 1\nname = \"ä\"\n[files]\nread = [\"/\", '~/x', \"\\u00e4/${tmp}\"]\n\
                deny = [\"**/*.pem\"]\n[network]\ndirect = [\"[::1]:53\"]\nallow = [\"*.a.b:1\"]\n\
                [env]\npass = [\"A*\"]\nset = { P = \"a${tmp}b\" }\n\
                [[credential]]\nname = \"c\"\nhosts = [\"x.a.b\"]\npaths = [\"/%C3/**\"]\n\
                git = { repositories = [\"o/*\"], push = [\"refs/heads/*\"] }\n";
    let sets = sets();
    let mut broken = 0;
    let mut attempt = |text: String| {
        let source = Source::new("p.toml", text);
        if let Err(found) = Document::parse(&source, &sets) {
            assert!(!found.to_string().is_empty());
            broken += 1;
        }
    };
    for (at, _) in text.char_indices() {
        attempt(text[..at].to_owned());
        attempt(text[at..].to_owned());
        for insert in ["\"", "\0", "[", "é", "\n", "*", "${", ".."] {
            attempt(format!("{}{insert}{}", &text[..at], &text[at..]));
        }
    }
    assert!(broken > 500, "{broken}");
}
