//! Requests that no git would send, to a server that reads them leniently.

use std::process::Command;

use super::{AGENT, HOST, NOTHING, Repository, bare, fill, git};
use crate::{
    Test,
    attacks::{Attack, Got, Shot, number, results, shooting, under},
    tests,
    world::{self, World},
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_path_that_means_another_repository_to_somebody_is_refused,
        a_push_that_is_written_otherwise_than_git_does_is_refused,
        a_push_that_asks_for_no_report_is_refused_too,
        a_compressed_push_is_refused,
        a_request_of_git_with_another_method_is_refused,
        archives_are_refused,
        a_refusal_is_read_over_http_2_whatever_the_request_has_to_say,
        each_request_of_a_connection_is_decided_on_its_own,
        what_follows_a_pack_is_no_second_request,
    ]
}

const ZEROS: &str = "0000000000000000000000000000000000000000";
const REPORT: &str = "\0report-status object-format=sha1";

/// A pack of nothing, with its checksum.
const PACK: &[u8] = b"PACK\0\0\0\x02\0\0\0\0\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82\x3c\xfd\x3e\xd3\x1e";

fn packets(lines: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines {
        bytes.extend(format!("{:04x}{line}", line.len() + 4).bytes());
    }
    bytes.extend(b"0000");
    bytes
}

impl Repository<'_> {
    fn id(&self) -> String {
        git(&self.bare(), &["rev-parse", "main"]).trim().to_owned()
    }

    /// That a reference comes to be, as `main` is.
    fn create(&self, reference: &str) -> String {
        format!("{ZEROS} {} {reference}", self.id())
    }

    /// A request that pushes.
    fn post(&self, headers: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "POST /{}.git/git-receive-pack HTTP/1.1\r\nHost: {HOST}\r\n{headers}\
             Content-Type: application/x-git-receive-pack-request\r\nContent-Length: {}\r\n\r\n",
            self.name,
            body.len()
        );
        [head.as_bytes(), body].concat()
    }

    fn push(&self, lines: &[&str]) -> Vec<u8> {
        self.post("", &[&packets(lines), PACK].concat())
    }

    fn shoot(&self, requests: &[Vec<u8>]) -> (Vec<Got>, Attack) {
        let attack = under(
            self.daemon,
            &self.policy(AGENT),
            &shooting(&requests.iter().map(shot).collect::<Vec<_>>()),
        );
        (results(&attack.printed), attack)
    }

    /// The same without a sandbox, with the token.
    fn shoot_outside(&self, requests: &[Vec<u8>]) -> Vec<Got> {
        let field = format!("\r\nAuthorization: Bearer {}\r\n", self.held.token);
        let with_token = |request: &Vec<u8>| {
            let end = request.windows(2).position(|it| it == b"\r\n").unwrap();
            shot(&[&request[..end], field.as_bytes(), &request[end + 2..]].concat())
        };
        let shots: Vec<_> = requests.iter().map(with_token).collect();
        results(&crate::attacks::outside(&shooting(&shots)))
    }

    /// Each is refused by one of these rules, and nothing happens on the server.
    fn assert_all_refused(&self, requests: &[(Vec<u8>, &str)]) {
        let before = self.references();
        let all: Vec<_> = requests.iter().map(|(bytes, _)| bytes.clone()).collect();
        let (got, attack) = self.shoot(&all);
        for (got, (bytes, rule)) in got.iter().zip(requests) {
            let shown = String::from_utf8_lossy(bytes);
            assert_eq!(got.answers(), [format!("403 {rule}")], "{shown} {attack:?}");
        }
        let told = |(_, rule): &(Vec<u8>, &str)| format!("request {HOST}:443 ({rule})");
        attack.assert_told(&requests.iter().map(told).collect::<Vec<_>>());
        assert_eq!(self.references(), before);
        assert!(self.requests().is_empty(), "{attack:?}");
        assert!(attack.uses.is_empty(), "{attack:?}");
    }
}

fn shot(request: &Vec<u8>) -> Shot {
    Shot::at(HOST, 443, request).in_tls()
}

fn body(got: &Got) -> String {
    String::from_utf8_lossy(&got.bytes).into_owned()
}

fn a_path_that_means_another_repository_to_somebody_is_refused(world: &World) {
    let repository = Repository::make(world);
    let other = format!("o/other-{}", number());
    fill(world, &bare(&other), "sha1");
    let (name, refs) = (&repository.name, "info/refs?service=git-upload-pack");
    let short = other.strip_prefix("o/").unwrap();
    let paths = [
        format!("/{name}.git/../{short}.git/{refs}"),
        format!("/{name}.git/%2e%2e/{short}.git/{refs}"),
        format!("/{name}.git/%2E./{short}.git/{refs}"),
        format!("/{name}.git%2f..%2f{short}.git/{refs}"),
        format!("/{name}.git/..;x/{short}.git/{refs}"),
        format!("/{name}.git/info/refs/../../../{short}.git/{refs}"),
        format!("/{name}.git/..//{short}.git/{refs}"),
        format!("//{other}.git/{refs}"),
        format!("/./{other}.git/{refs}"),
        format!("/{other}.git;x/{refs}"),
        format!("/{}.git/{refs}", other.to_uppercase()),
        format!("/{other}.git/info/refs;x?service=git-upload-pack"),
        format!("/{other}.git/INFO/REFS?service=git-upload-pack"),
        format!("/{other}.git/info//refs?service=git-upload-pack"),
        format!("/{other}.git/info%2frefs?service=git-upload-pack"),
        format!("/{other}.git/x/../{refs}"),
        format!("/{other}%2egit/{refs}"),
    ];
    let curl = |path: &String| {
        format!(
            "curl -sS --path-as-is -m 20 -o \"$OUT\" -w '%{{http_code}}\\n' ${{OUTSIDE_TOKEN:+-H \"Authorization: Bearer $OUTSIDE_TOKEN\"}} 'https://{HOST}{path}'; grep -q refs/heads/main \"$OUT\" && echo told || echo untold"
        )
    };
    let script = format!(
        "OUT=\"$PWD/out\"\n{}",
        paths.iter().map(curl).collect::<Vec<_>>().join("\n")
    );
    let attack = repository.inside(AGENT, &script);
    let printed: Vec<_> = attack.printed.lines().collect();
    assert_eq!(printed.len(), 2 * paths.len() + 1, "{attack:?}");
    for (answer, path) in printed.chunks(2).zip(&paths) {
        assert_eq!(answer, ["403", "untold"], "{path}: {attack:?}");
    }
    assert!(attack.uses.is_empty());
    let count: u64 = attack.denials.values().sum();
    assert_eq!(count, u64::try_from(paths.len()).unwrap(), "{attack:?}");
    let outside = repository.outside(&script);
    let outside = String::from_utf8(outside.stdout).unwrap();
    for (answer, path) in outside.lines().collect::<Vec<_>>().chunks(2).zip(&paths) {
        assert_eq!(answer, ["200", "told"], "{path}: {outside}");
    }
}

fn a_push_that_is_written_otherwise_than_git_does_is_refused(world: &World) {
    let repository = Repository::make(world);
    let good = repository.create(&format!("refs/heads/agent/good{REPORT}"));
    let main = repository.create("refs/heads/main");
    let push = |lines: &[&str]| repository.push(lines);
    let raw = |bytes: &[u8]| repository.post("", bytes);
    let packet = "a push with a malformed packet";
    let command = "a push with a malformed command";
    let reference = "a push to a malformed reference";
    let flushed = packets(&[&good]);
    let unflushed = &flushed[..flushed.len() - 4];
    let shouted = String::from_utf8_lossy(unflushed)[..4].to_uppercase();
    let requests = [
        (
            push(&["push-cert\0report-status\n", "certificate version 0.1\n"]),
            "a signed push",
        ),
        (
            raw(&[
                shouted.replace('0', "+").as_bytes(),
                &unflushed[4..],
                b"0000",
                PACK,
            ]
            .concat()),
            packet,
        ),
        (
            raw(&[b"0x6f", &unflushed[4..], b"0000", PACK].concat()),
            packet,
        ),
        (
            raw(&[b"zzzz", &unflushed[4..], b"0000", PACK].concat()),
            packet,
        ),
        (raw(PACK), packet),
        (
            raw(&[b"0004", &flushed[..], PACK].concat()),
            "a push with an unexpected packet",
        ),
        (
            raw(&[b"0001", &flushed[..], PACK].concat()),
            "a push with an unexpected packet",
        ),
        (raw(unflushed), "a push that ends early"),
        (raw(b""), "a push that ends early"),
        (
            push(&[&good, &repository.create("refs/heads/agent/good")]),
            "a push to a reference twice",
        ),
        (push(&[&format!("{good}\0 {main}")]), command),
        (push(&[&format!("{good}\n{main}")]), command),
        (
            push(&[&repository.create("refs/heads/agent/../main")]),
            reference,
        ),
        (
            push(&[&repository.create("refs/heads/agent/a b")]),
            reference,
        ),
        (
            push(&[&repository.create("refs/heads/agent//main")]),
            reference,
        ),
        (push(&[&repository.create("HEAD")]), reference),
        (push(&[&good.replace(' ', "\t")]), command),
    ];
    repository.assert_all_refused(&requests);
    // As git writes it, it is pushed.
    let (got, attack) = repository.shoot(&[push(&[&good])]);
    assert!(
        body(&got[0]).contains("ok refs/heads/agent/good"),
        "{attack:?}"
    );
    attack.assert_told(NOTHING);
    assert!(repository.has("refs/heads/agent/good"));
}

fn a_push_that_asks_for_no_report_is_refused_too(world: &World) {
    let repository = Repository::make(world);
    let line = |capabilities: &str| {
        let update = repository.create("refs/heads/main2");
        repository.push(&[&format!("{update}\0{capabilities}")])
    };
    let requests = [
        line("report-status"),
        line("report-status-v2 side-band-64k"),
        line("side-band-64k"),
        line(""),
    ];
    let (got, attack) = repository.shoot(&requests);
    let reason = "not a reference that may be pushed";
    let rule = format!("push of refs/heads/main2 to {}: {reason}", repository.name);
    let statuses = ["200", "200", "200", "403"];
    for (got, status) in got.iter().zip(statuses) {
        assert_eq!(got.answers(), [format!("{status} {rule}")], "{attack:?}");
        assert!(body(got).contains(reason), "{attack:?}");
    }
    for got in &got[..2] {
        assert!(body(got).contains(&format!("ng refs/heads/main2 {reason}")));
    }
    let told = format!("request {HOST}:443 ({rule})");
    attack.assert_told(&[&told]);
    assert_eq!(attack.denials[&told], 4);
    assert!(!repository.has("refs/heads/main2"));
    let outside = repository.shoot_outside(&requests[..1]);
    assert!(
        body(&outside[0]).contains("ok refs/heads/main2"),
        "{outside:?}"
    );
}

fn a_compressed_push_is_refused(world: &World) {
    let repository = Repository::make(world);
    let good = repository.create(&format!("refs/heads/agent/packed{REPORT}"));
    let body = [&packets(&[&good])[..], PACK].concat();
    let packed = gzip(&body);
    let plain = repository.post("Content-Encoding: identity\r\n", &body);
    let requests = [
        "gzip",
        "x-gzip",
        "GZIP",
        "identity, gzip",
        "gzip\r\nContent-Encoding: identity",
    ]
    .map(|it| repository.post(&format!("Content-Encoding: {it}\r\n"), &packed));
    let rule = "a compressed push";
    repository.assert_all_refused(&requests.clone().map(|it| (it, rule)));
    let outside = repository.shoot_outside(&requests[..1]);
    assert_eq!(outside[0].answers(), ["200"]);
    assert!(repository.has("refs/heads/agent/packed"));
    git(
        &repository.bare(),
        &["update-ref", "-d", "refs/heads/agent/packed"],
    );
    let (got, attack) = repository.shoot(&[plain]);
    assert_eq!(got[0].answers(), ["200"], "{attack:?}");
    assert!(repository.has("refs/heads/agent/packed"));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let file = world::root().join(format!("home/packed-{}", number()));
    std::fs::write(&file, bytes).unwrap();
    let output = Command::new("gzip").arg("-c").arg(&file).output().unwrap();
    output.stdout
}

fn a_request_of_git_with_another_method_is_refused(world: &World) {
    let repository = Repository::make(world);
    let name = &repository.name;
    let good = repository.create(&format!("refs/heads/agent/method{REPORT}"));
    let post = repository.push(&[&good]);
    let with = |method: &str, headers: &str| {
        let line = format!("POST /{name}.git/git-receive-pack HTTP/1.1\r\n");
        let new = format!("{method} /{name}.git/git-receive-pack HTTP/1.1\r\n{headers}");
        [new.as_bytes(), &post[line.len()..]].concat()
    };
    let rule = "a request of git's with another method";
    let requests = [
        with("GET", "X-HTTP-Method-Override: POST\r\n"),
        with("PUT", "X-HTTP-Method-Override: POST\r\n"),
        with("PATCH", ""),
        with("post", ""),
    ];
    repository.assert_all_refused(&requests.clone().map(|it| (it, rule)));
    let outside = repository.shoot_outside(&requests[1..2]);
    assert!(
        body(&outside[0]).contains("ok refs/heads/agent/method"),
        "{outside:?}"
    );
    // What another method makes of one that is allowed is no push.
    let (got, _) = repository.shoot(&[with("POST", "X-HTTP-Method-Override: GET\r\n")]);
    assert!(!body(&got[0]).contains("ok refs/heads"), "{got:?}");
}

fn archives_are_refused(world: &World) {
    let repository = Repository::make(world);
    let name = &repository.name;
    let requests = [
        format!(
            "POST /{name}.git/git-upload-archive HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n"
        ),
        format!(
            "GET /{name}.git/info/refs?service=git-upload-archive HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
        ),
    ];
    let rule = "a request of git's for neither fetching nor pushing";
    let requests = requests.map(|it| (it.into_bytes(), rule));
    repository.assert_all_refused(&requests);
    let archive = "git archive --remote=$URL main | tar -xO says";
    let attack = repository.inside(AGENT, archive);
    assert!(attack.complaint.contains("HTTP 403"), "{attack:?}");
    attack.assert_told(&[format!("request {HOST}:443 ({rule})")]);
    let outside = repository.outside(archive);
    assert_eq!(
        outside.stdout, b"the project works\nfinished\n",
        "{outside:?}"
    );
}

fn each_request_of_a_connection_is_decided_on_its_own(world: &World) {
    let repository = Repository::make(world);
    let good = repository.create(&format!("refs/heads/agent/piped{REPORT}"));
    let bad = repository.create(&format!("refs/heads/piped{REPORT}"));
    let last = repository.create(&format!("refs/heads/agent/last{REPORT}"));
    let all = [&good, &bad, &last]
        .map(|it| repository.push(&[it]))
        .concat();
    let (got, attack) = repository.shoot(std::slice::from_ref(&all));
    let reason = "not a reference that may be pushed";
    let rule = format!("push of refs/heads/piped to {}: {reason}", repository.name);
    assert_eq!(
        got[0].answers(),
        ["200".into(), format!("200 {rule}"), "200".into()],
        "{attack:?}"
    );
    attack.assert_told(&[format!("request {HOST}:443 ({rule})")]);
    assert!(repository.has("refs/heads/agent/piped") && repository.has("refs/heads/agent/last"));
    assert!(!repository.has("refs/heads/piped"));
    let pushes = repository.requests();
    assert_eq!(pushes.len(), 2, "{pushes:?}");
    // Each has the token, and none of them what the client said.
    assert!(
        pushes
            .iter()
            .all(|it| it["known"] == *repository.held.token)
    );
}

fn what_follows_a_pack_is_no_second_request(world: &World) {
    let repository = Repository::make(world);
    let hidden = repository.push(&[&repository.create(&format!("refs/heads/hidden{REPORT}"))]);
    let good = repository.create(&format!("refs/heads/agent/front{REPORT}"));
    let body = [&packets(&[&good])[..], PACK, &hidden].concat();
    let chunked = |size: usize| {
        let head = format!(
            "POST /{}.git/git-receive-pack HTTP/1.1\r\nHost: {HOST}\r\n\
             Content-Type: application/x-git-receive-pack-request\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            repository.name
        );
        let mut bytes = head.into_bytes();
        for chunk in body.chunks(size) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n\r\n");
        bytes
    };
    let requests = [repository.post("", &body), chunked(7), chunked(usize::MAX)];
    let (_, attack) = repository.shoot(&requests);
    attack.assert_told(NOTHING);
    assert!(!repository.has("refs/heads/hidden"), "{attack:?}");
    assert_eq!(repository.requests().len(), requests.len());
    // It is one where it stands alone.
    repository.shoot_outside(&[hidden]);
    assert!(repository.has("refs/heads/hidden"));
}

fn a_refusal_is_read_over_http_2_whatever_the_request_has_to_say(world: &World) {
    let repository = Repository::make(world);
    let ask = "echo small >small; head -c 3000000 /dev/zero >large
        for body in small large; do for i in 1 2 3 4 5; do
            curl -sS --http2 -m 20 -o answer -w '%{http_version} %{http_code} ' \\
                --data-binary @$body $URL/git-upload-archive
            cat answer
        done; done";
    let attack = repository.inside(AGENT, ask);
    let rule = "a request of git's for neither fetching nor pushing";
    let line = format!("2 403 denied {HOST}:443 ({rule})\n");
    assert_eq!(
        attack.printed,
        format!("{}finished\n", line.repeat(10)),
        "{attack:?}"
    );
}
