//! The shipped policies and sets mean what they say.

use super::*;

pub(super) fn shipped(name: &str) -> Document {
    let path = format!("{}/../policies/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    Document::parse(&Source::new(format!("{name}.toml"), text), &sets())
        .unwrap_or_else(|found| panic!("{found}"))
}

#[test]
fn the_shipped_policies_have_nothing_to_warn_of() {
    for name in ["default", "strict"] {
        let document = shipped(name);
        assert_eq!(document.name(), name);
        assert!(document.warnings().is_empty(), "{}", document.warnings());
        assert_eq!(document.mode(), Mode::Enforce);
    }
}

#[test]
fn the_default_policy_reads_the_machine_and_writes_the_workspace() {
    let policy = resolve(&shipped("default"));
    for (path, expected, rule) in [
        ("/usr/bin/git", Access::Read, "/"),
        ("/home/dev/other/file", Access::Read, "/"),
        ("/home/dev/app/src/main.py", Access::Write, "${workspace}"),
        ("/tmp/x", Access::Write, "${tmp}"),
        ("/dev/shm/x", Access::Write, "${tmp}"),
        ("/dev/null", Access::Write, "devices"),
        ("/dev/pts/0", Access::Write, "devices"),
        ("/dev/video0", Access::Deny, "hardware"),
        ("/var/cache/sandboxd/1000/npm", Access::Write, "${cache}"),
        ("/home/dev/.ssh/id_ed25519", Access::Deny, "credentials"),
        ("/home/dev/.aws/credentials", Access::Deny, "credentials"),
        ("/home/dev/.netrc", Access::Deny, "credentials"),
        ("/home/dev/.git-credentials", Access::Deny, "credentials"),
        (
            "/home/dev/.config/gh/hosts.yml",
            Access::Deny,
            "credentials",
        ),
        ("/home/dev/.docker/config.json", Access::Deny, "credentials"),
        ("/etc/shadow", Access::Deny, "credentials"),
        ("/home/dev/.gitconfig", Access::Read, "git-config"),
        ("/home/dev/.bashrc", Access::Read, "startup"),
        ("/home/dev/.local/bin/x", Access::Read, "programs"),
        (
            "/home/dev/app/.git/hooks/pre-commit",
            Access::Read,
            "repository",
        ),
        ("/home/dev/app/.git/config", Access::Read, "repository"),
        ("/home/dev/app/.git/HEAD", Access::Write, "${workspace}"),
        (
            "/home/dev/app/.vscode/tasks.json",
            Access::Read,
            "workspace-config",
        ),
        ("/home/dev/app/.sandbox.toml", Access::Read, "policy file"),
    ] {
        assert_eq!(access(&policy, path), Some(expected), "{path}");
        assert_eq!(label(&policy, path), rule, "{path}");
    }
    assert_eq!(policy.network.mode, NetworkMode::None);
}

#[test]
fn the_strict_policy_reads_system_directories_and_the_workspace() {
    let policy = resolve(&shipped("strict"));
    for path in [
        "/usr/bin/git",
        "/etc/passwd",
        "/etc/ld.so.cache",
        "/proc/self/maps",
        "/lib64",
    ] {
        assert_eq!(access(&policy, path), Some(Access::Read), "{path}");
    }
    for path in [
        "/home/dev/file",
        "/home/other",
        "/srv/x",
        "/root/x",
        "/var/log/syslog",
        "/",
    ] {
        assert_eq!(access(&policy, path), None, "{path}");
    }
    assert_eq!(access(&policy, "/home/dev/.gitconfig"), Some(Access::Read));
    assert_eq!(access(&policy, "/home/dev/.bashrc"), Some(Access::Deny));
    assert_eq!(access(&policy, "/etc/shadow"), Some(Access::Deny));
    let env = Place::Name {
        scope: None,
        pattern: NamePattern::Exact(b".env".to_vec()),
    };
    let hides = |rule: &FileRule| rule.place == env && rule.access == Access::Deny;
    assert!(policy.files.iter().any(hides));
}

#[test]
fn the_home_directory_as_workspace_keeps_what_runs_later_read_only() {
    let expansion = Expansion {
        workspace: Some("/home/dev".into()),
        ..expansion()
    };
    for name in ["default", "strict"] {
        let policy = shipped(name)
            .resolve(&expansion, &Additions::default())
            .unwrap();
        for path in [
            "/home/dev/.bashrc",
            "/home/dev/.local/bin/ls",
            "/home/dev/.gitconfig",
        ] {
            assert_ne!(access(&policy, path), Some(Access::Write), "{name} {path}");
        }
        assert_eq!(access(&policy, "/home/dev/notes"), Some(Access::Write));
        assert_eq!(access(&policy, "/home/dev/.ssh/x"), Some(Access::Deny));
    }
}

#[test]
fn the_shipped_policies_keep_tokens_out_and_toolchains_in() {
    for name in ["default", "strict"] {
        let env = resolve(&shipped(name)).env;
        for out in "\
            AWS_ACCESS_KEY_ID AWS_PROFILE GITHUB_TOKEN GH_TOKEN NPM_TOKEN ANTHROPIC_API_KEY \
            OPENAI_API_KEY SSH_AUTH_SOCK CARGO_REGISTRY_TOKEN UV_PUBLISH_TOKEN \
            POETRY_PYPI_TOKEN_PYPI MISE_GITHUB_TOKEN DBUS_SESSION_BUS_ADDRESS DISPLAY \
            XAUTHORITY LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV BASH_FUNC_ls%% PYTHONSTARTUP \
            PYTHONPATH NODE_OPTIONS NODE_PATH PERL5OPT RUBYOPT JAVA_TOOL_OPTIONS \
            _JAVA_OPTIONS DOTNET_STARTUP_HOOKS GOFLAGS PROMPT_COMMAND IFS GIT_SSH_COMMAND \
            OP_SERVICE_ACCOUNT_TOKEN npm_config__auth"
            .split(' ')
        {
            assert!(!env.passes(out.as_bytes()), "{name} {out}");
        }
        for within in "\
            HOME USER SHELL PATH TERM LANG LC_ALL TZ COLORTERM CI CC CFLAGS RUSTFLAGS \
            RUST_BACKTRACE GOPATH JAVA_HOME VIRTUAL_ENV NVM_DIR NODE_ENV EDITOR"
            .split(' ')
        {
            assert!(env.passes(within.as_bytes()), "{name} {within}");
        }
    }
}

#[test]
fn no_set_of_variables_lists_what_is_never_let_in() {
    let sets = sets();
    let refuse = sets.variables(crate::policy::sets::INJECTION).unwrap();
    for set in ["basics", "toolchain"] {
        for pattern in sets.variables(set).unwrap() {
            assert!(!refuse.iter().any(|it| it.covers(pattern)), "{pattern}");
        }
    }
}

#[test]
fn no_set_for_reading_opens_a_place_of_the_credentials() {
    let text = r#"
version = 1
[files]
read = ["/", "@startup", "@programs", "@git-config", "@repository", "@workspace-config", "@system"]
deny = ["@credentials"]
"#;
    let policy = resolve(&good(text));
    for rule in policy
        .files
        .iter()
        .filter(|rule| rule.access == Access::Read)
    {
        let Place::Path(path) = &rule.place else {
            continue;
        };
        for above in path.ancestors().skip(1) {
            assert_ne!(
                policy.nearest(above).map(|rule| rule.access),
                Some(Access::Deny),
                "{} is below {}",
                path.display(),
                above.display()
            );
        }
    }
}

#[test]
fn every_entry_of_a_shipped_set_expands_to_a_place_of_its_own() {
    let text = r#"
version = 1
[files]
deny = [
  "@credentials", "@devices", "@dotenv", "@git-config", "@hardware", "@programs", "@repository",
  "@startup", "@system", "@workspace-config",
]
"#;
    let document = good(text);
    let policy = resolve(&document);
    // And one for `.sandbox.toml`, which is in a set here.
    assert_eq!(document.files.len(), policy.files.len());
}
