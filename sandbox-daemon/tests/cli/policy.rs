//! `sandbox policy`, which needs no daemon.

use super::{TestContext, code, stderr, stdout, utf8};

#[test]
fn a_right_policy_is_summed_up() {
    let context = TestContext::offline();
    let file = context.write(
        "agent.toml",
        "version = 1\nname = \"agent\"\n[files]\nread = [\"/usr\"]\nwrite = [\"${workspace}\"]\n",
    );
    let output = context.output(&["policy", "check", utf8(&file)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let summary = "`agent` is valid: mode enforce, 3 file rules, network none, sha256 ";
    // The workspace's own `.sandbox.toml` is one more, read-only.
    assert!(stdout(&output).starts_with(summary), "{output:?}");
}

#[test]
fn a_wrong_policy_gets_place_caret_and_suggestion() {
    let context = TestContext::offline();
    context.write("p.toml", "version = 1\n[files]\nraed = [\"/usr\"]\n");
    let output = context.output(&["policy", "check", "p.toml"]);
    assert_eq!(code(&output), 1);
    assert_eq!(stdout(&output), "");
    for part in ["error: ", "--> p.toml:3:1", "^^^^", "hint: ", "`read`"] {
        assert!(
            stderr(&output).contains(part),
            "{part} in {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_set_of_ones_own_is_known_when_it_is_named() {
    let context = TestContext::offline();
    context.write(
        "p.toml",
        "version = 1\n[files]\nread = [\"/usr\"]\ndeny = [\"@mine\"]\n",
    );
    context.write(
        "sets.toml",
        "version = 1\n[mine]\ndescription = \"mine\"\n\
         places = [{ path = \"~/.mine\", reason = \"because\" }]\n",
    );
    let output = context.output(&["policy", "check", "p.toml"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("@mine"), "{}", stderr(&output));
    let output = context.output(&["policy", "check", "--sets", "sets.toml", "p.toml"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn the_shipped_policies_are_valid() {
    let context = TestContext::offline();
    for name in ["default", "strict"] {
        let file = format!("{}/../policies/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let output = context.output(&["policy", "check", &file]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn a_name_that_is_not_installed_is_3() {
    let context = TestContext::offline();
    let output = context.output(&["policy", "show", "not-installed"]);
    assert_eq!(code(&output), 3);
    assert_eq!(
        stderr(&output),
        "sandbox: there is no policy named `not-installed`\nhint: see `sandbox policy list`\n"
    );
    assert_eq!(code(&context.output(&["policy", "show", "./x"])), 2);
}
