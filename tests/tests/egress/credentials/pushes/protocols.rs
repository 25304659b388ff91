//! Every way in which git speaks to a server: versions, transports, sizes, hashes.

use std::fs;

use nix::unistd::Pid;
use serde_json::Value;

use super::{AGENT, Repository};
use crate::{
    Test,
    attacks::proxy_of,
    tests,
    world::{self, World},
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        every_version_of_the_protocol_is_held_to_the_rule,
        http_2_is_held_to_the_rule,
        a_shallow_clone_is_made_and_pushed_from,
        a_repository_of_sha256_is_held_to_the_rule,
        a_pack_of_200_mb_passes_and_stays_out_of_memory,
        what_a_refused_pack_had_is_not_on_the_server,
    ]
}

/// Clones, fetches, and pushes what is allowed; then what is not.
const ALL: &str = "
    git clone -q $URL work; cd work; git fetch -q origin agent/old
    commit one; git push -q origin HEAD:agent/new
    commit two; git push -q origin HEAD:agent/new
    git push origin HEAD:main && echo pushed
    git switch -q agent/old; git commit -q --amend -m other
    git push -f origin HEAD:agent/old && echo forced
    true";

fn all(repository: &Repository<'_>, settings: &str) {
    let main = super::git(&repository.bare(), &["rev-parse", "main", "agent/old"]);
    let attack = repository.inside(AGENT, &format!("{settings}\n{ALL}"));
    assert_eq!(attack.printed, "finished\n", "{attack:?}");
    let told: Vec<_> = attack.denials.keys().collect();
    assert_eq!(told.len(), 2, "{attack:?}");
    assert!(told[0].contains("refs/heads/agent/old"), "{attack:?}");
    assert!(told[1].contains("refs/heads/main"), "{attack:?}");
    let printed = &attack.complaint;
    assert!(
        printed.contains(" ! [remote rejected] HEAD -> main (not a"),
        "{printed}"
    );
    assert!(printed.contains(" ! [remote rejected] HEAD -> agent/old (may be a forced"));
    assert!(repository.has("refs/heads/agent/new"));
    let after = super::git(&repository.bare(), &["rev-parse", "main", "agent/old"]);
    assert_eq!(after, main);
    repository.assert_kept(&attack);
}

fn settings(values: &[(&str, &str)]) -> String {
    let mut text = format!("export GIT_CONFIG_COUNT={}", values.len());
    for (at, (key, value)) in values.iter().enumerate() {
        let more = format!(" GIT_CONFIG_KEY_{at}={key} GIT_CONFIG_VALUE_{at}={value}");
        text.push_str(&more);
    }
    text
}

fn seen(requests: &[Value], field: &str) -> Vec<String> {
    let mut values: Vec<_> = requests
        .iter()
        .map(|it| it[field].as_str().unwrap().to_owned())
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn every_version_of_the_protocol_is_held_to_the_rule(world: &World) {
    for (version, said) in [
        ("0", vec![""]),
        ("1", vec!["version=1"]),
        ("2", vec!["version=2"]),
    ] {
        let repository = Repository::make(world);
        all(&repository, &settings(&[("protocol.version", version)]));
        let requests = repository.requests();
        let fetches: Vec<_> = requests
            .into_iter()
            .filter(|it| it["path"].as_str().unwrap().contains("upload-pack"))
            .collect();
        assert_eq!(seen(&fetches, "protocol"), said);
    }
}

fn http_2_is_held_to_the_rule(world: &World) {
    for (version, said) in [("HTTP/1.1", "1.1"), ("HTTP/2", "2.0")] {
        for direct in [false, true] {
            let repository = Repository::make(world);
            let mut text = settings(&[("http.version", version)]);
            if direct {
                text.push_str("\nunset https_proxy HTTPS_PROXY all_proxy ALL_PROXY");
            }
            all(&repository, &text);
            // The proxy speaks to the host what the client chose.
            assert_eq!(seen(&repository.requests(), "version"), [said]);
        }
    }
}

fn a_shallow_clone_is_made_and_pushed_from(world: &World) {
    let repository = Repository::make(world);
    let attack = repository.assert_allowed(
        AGENT,
        "git clone -q --depth 1 --no-single-branch $URL work; cd work; git rev-list --all --count
        git switch -q agent/old
        commit one; git push -q origin HEAD:agent/old; git push -q origin HEAD:agent/new
        git clone -q --filter=blob:none $URL partial; cd partial; cat says
        commit two; git push -q origin HEAD:agent/partial",
    );
    assert_eq!(attack.printed, "2\nthe project works\nfinished\n");
    let count = ["rev-list", "--count", "agent/old"];
    assert_eq!(super::git(&repository.bare(), &count), "2\n");
}

fn a_repository_of_sha256_is_held_to_the_rule(world: &World) {
    let repository = Repository::of(world, world.daemon(), "sha256");
    all(&repository, "");
    let id = super::git(&repository.bare(), &["rev-parse", "agent/new"]);
    assert_eq!(id.trim().len(), 64);
}

const MIB: u64 = 1 << 20;

fn a_pack_of_200_mb_passes_and_stays_out_of_memory(world: &World) {
    // With a proxy that nobody else uses.
    let daemon = world::another_daemon();
    let repository = Repository::of(world, &daemon, "sha1");
    let quick = settings(&[
        ("core.compression", "0"),
        ("core.bigFileThreshold", "1m"),
        ("http.version", "HTTP/1.1"),
    ]);
    repository.assert_allowed(AGENT, "git ls-remote -q $URL");
    let proxy = proxy_of(&daemon);
    let before = memory(proxy, "VmRSS");
    fs::write(format!("/proc/{proxy}/clear_refs"), "5").unwrap();
    // An update, of which the whole pack is looked at until it is clear.
    let attack = repository.assert_allowed(
        AGENT,
        &format!(
            "{quick}\ngit clone -q $URL work; cd work; git switch -q agent/old
            head -c 200M /dev/urandom >blob; git add blob; commit large
            git push -q origin HEAD:agent/old
            git clone -q -b agent/old $URL ../again; cmp blob ../again/blob && echo same"
        ),
    );
    assert!(attack.printed.contains("same\n"), "{attack:?}");
    let grown = memory(proxy, "VmHWM").saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB", grown / MIB);
    let pushes: Vec<_> = repository
        .requests()
        .into_iter()
        .filter(|it| it["method"] == "POST" && it["path"].as_str().unwrap().contains("receive"))
        .collect();
    // The first one asks whether there is to be another.
    assert_eq!(pushes.len(), 2, "{pushes:?}");
    assert_eq!(pushes[1]["encoding"], "chunked");
}

/// A line of a process's status, in bytes.
fn memory(process: Pid, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix(what)).unwrap();
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u64>().unwrap() << 10
}

fn what_a_refused_pack_had_is_not_on_the_server(world: &World) {
    let repository = Repository::make(world);
    let script = "git clone -q $URL work; cd work; git switch -q agent/old
        head -c 8M /dev/urandom >blob; git add blob; git commit -q --amend -m other
        git rev-parse HEAD; git push -f origin HEAD:agent/old";
    let attack = repository.inside(AGENT, script);
    let id = attack.printed.lines().next().unwrap();
    assert_eq!(attack.denials.len(), 1, "{attack:?}");
    // Most of it went there.
    let exists = |id: &str| {
        std::process::Command::new("git")
            .arg("-C")
            .arg(repository.bare())
            .args(["cat-file", "-e", id])
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    assert!(exists("main") && !exists(id), "{attack:?}");
    super::git(&repository.bare(), &["fsck", "--strict"]);
}
