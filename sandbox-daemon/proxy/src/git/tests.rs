//! With git itself on both ends: a server that lets through what the rule allows,
//! as a proxy does, and answers the rest itself.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use bytes::Bytes;
use tempfile::TempDir;

use super::{
    pack::PackCheck,
    pkt::{self, Packet},
    receive::{Head, HeadReader},
    report::{Answer, TEXT},
    request::{self, GitRequest, Service, Step},
    testing::{commit, done, git, piped},
};
use crate::credential::GitRule;

/// A server of one repository, `o/r.git`, and a clone of it.
struct World {
    directory: TempDir,
    url: String,
    state: Arc<State>,
}

struct State {
    repository: PathBuf,
    rule: Mutex<GitRule>,
    /// How many bytes come at a time.
    piece: Mutex<usize>,
    /// Capabilities that the server does not have.
    lacks: Mutex<Vec<&'static str>>,
    heads: Mutex<Vec<Head>>,
    /// How many bytes of packs were let through.
    passed: Mutex<usize>,
}

impl World {
    fn new(rule: GitRule) -> Self {
        Self::with_format(rule, "sha1")
    }

    fn with_format(rule: GitRule, format: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let format = format!("--object-format={format}");
        done(
            &directory,
            &["init", "-q", "-b", "main", "--bare", &format, "r.git"],
        );
        let repository = directory.path().join("r.git");
        done(
            &repository,
            &["config", "receive.advertisePushOptions", "true"],
        );
        done(&repository, &["config", "receive.certNonceSeed", "seed"]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/o/r.git", listener.local_addr().unwrap());
        let state = Arc::new(State {
            repository,
            rule: Mutex::new(rule),
            piece: Mutex::new(1000),
            lacks: Mutex::default(),
            heads: Mutex::default(),
            passed: Mutex::default(),
        });
        let world = Self {
            directory,
            url,
            state: state.clone(),
        };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (state, stream) = (state.clone(), stream.unwrap());
                thread::spawn(move || state.serve(stream));
            }
        });
        done(
            &world.directory,
            &["init", "-q", "-b", "main", &format, "w"],
        );
        done(world.work(), &["remote", "add", "origin", &world.url]);
        for name in ["one", "two"] {
            commit(world.work(), name, name.as_bytes());
        }
        let path = world.state.repository.to_str().unwrap();
        done(
            world.work(),
            &["push", "-q", path, "main", "main:refs/heads/agent/x"],
        );
        world
    }

    fn work(&self) -> PathBuf {
        self.directory.path().join("w")
    }

    /// Pushes; whether git says that it was done, and what it printed.
    fn push(&self, arguments: &[&str]) -> (bool, String) {
        git(self.work(), &[&["push", "origin"], arguments].concat())
    }

    fn pushed(&self, arguments: &[&str]) {
        let (success, printed) = self.push(arguments);
        assert!(success, "{printed}");
    }

    /// Pushes what is refused, and what git printed; nothing has changed.
    fn refused(&self, arguments: &[&str]) -> String {
        let before = self.references();
        let (success, printed) = self.push(arguments);
        assert!(!success, "{printed}");
        assert_eq!(self.references(), before);
        printed
    }

    fn references(&self) -> String {
        done(&self.state.repository, &["for-each-ref"])
    }

    fn has(&self, reference: &str) -> bool {
        self.references().ends_with(reference)
            || self.references().contains(&format!("{reference}\n"))
    }

    fn passed(&self) -> usize {
        *self.state.passed.lock().unwrap()
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap_or_default());
        let body = body(&mut reader);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let answer = match request::read(method, path, Some(query)) {
            Ok(Some(request)) => self.answer(&request, &body),
            other => forbidden(&format!("{other:?}")),
        };
        let head = format!(
            "HTTP/1.1 {} X\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            answer.status,
            answer.content_type,
            answer.body.len()
        );
        let _ = stream.write_all(&[head.as_bytes(), &answer.body].concat());
    }

    fn answer(&self, request: &GitRequest, body: &[u8]) -> Answer {
        if self
            .rule
            .lock()
            .unwrap()
            .repository(&request.repository)
            .is_none()
        {
            return forbidden("denied repository o/r (not one of `x`)");
        }
        assert_eq!(request.service, Service::ReceivePack);
        if request.step == Step::References {
            return self.advertise();
        }
        self.receive(body).unwrap_or_else(|refused| refused)
    }

    fn advertise(&self) -> Answer {
        let arguments = [
            "receive-pack",
            "--stateless-rpc",
            "--http-backend-info-refs",
            ".",
        ];
        let mut said = piped(&self.repository, &arguments, b"");
        for name in self.lacks.lock().unwrap().iter() {
            let at = said
                .windows(name.len())
                .position(|it| it == name.as_bytes());
            let at = at.unwrap();
            said[at..at + name.len()].fill(b'x');
        }
        let body = [&b"001f# service=git-receive-pack\n0000"[..], &said].concat();
        Answer {
            status: 200,
            content_type: "application/x-git-receive-pack-advertisement",
            body,
        }
    }

    /// The answer of the server, or another one.
    fn receive(&self, body: &[u8]) -> Result<Answer, Answer> {
        let rule = self.rule.lock().unwrap().clone();
        let mut pieces = body.chunks(*self.piece.lock().unwrap());
        let mut reader = HeadReader::default();
        let head = match pieces.find_map(|it| reader.feed(it).transpose()) {
            Some(Ok(head)) => head,
            Some(Err(error)) => return Err(forbidden(&error.to_string())),
            None => panic!("a push that ends in its head"),
        };
        self.heads.lock().unwrap().push(head.clone());
        rule.decide(&head).map_err(|it| it.answer(&head))?;
        let mut forwarded = head.raw.to_vec();
        let pack = std::iter::once(head.rest.clone()).chain(pieces.map(Bytes::copy_from_slice));
        let checked = if rule.asks_for_pack(&head) {
            let mut check = PackCheck::new(&head);
            let mut passed = |it: Vec<Bytes>| forwarded.extend(it.concat());
            let mut each = { pack }.map(|it| check.feed(it).map(&mut passed));
            let read = each.find_map(Result::err);
            drop(each);
            match read {
                Some(refusals) => Err(refusals),
                None => check.finish().map(passed),
            }
        } else {
            forwarded.extend(pack.flatten());
            Ok(())
        };
        *self.passed.lock().unwrap() += forwarded.len() - head.raw.len();
        // What was let through of a push that is refused is for nothing.
        let body = piped(
            &self.repository,
            &["receive-pack", "--stateless-rpc", "."],
            &forwarded,
        );
        checked.map_err(|it| it.answer(&head))?;
        Ok(Answer {
            status: 200,
            content_type: super::report::REPORT,
            body,
        })
    }
}

fn forbidden(sentence: &str) -> Answer {
    Answer {
        status: 403,
        content_type: TEXT,
        body: format!("{sentence}\n").into_bytes(),
    }
}

/// The rest of a request.
fn body(reader: &mut BufReader<TcpStream>) -> Vec<u8> {
    let (mut length, mut chunked) = (0, false);
    let line = |reader: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_ascii_lowercase()
    };
    loop {
        let header = line(reader);
        match header.split_once(": ") {
            None => break,
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(("transfer-encoding", _)) => chunked = true,
            Some(_) => {}
        }
    }
    let mut body = Vec::new();
    loop {
        if chunked {
            length = usize::from_str_radix(&line(reader), 16).unwrap();
        }
        let before = body.len();
        body.resize(before + length, 0);
        reader.read_exact(&mut body[before..]).unwrap();
        if chunked {
            line(reader);
        }
        if !chunked || length == 0 {
            return body;
        }
    }
}

fn rule() -> GitRule {
    GitRule {
        repositories: vec!["o/r".into()],
        push: vec!["refs/heads/agent/*".into(), "refs/tags/*".into()],
        force: false,
        delete: false,
    }
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33).to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

#[test]
fn a_push_that_only_adds_arrives_whatever_comes_at_a_time() {
    for format in ["sha1", "sha256"] {
        let world = World::with_format(rule(), format);
        for piece in [1, 7, 1000, 1 << 20] {
            *world.state.piece.lock().unwrap() = piece;
            commit(world.work(), "file", format!("{piece}").as_bytes());
            let id = commit(world.work(), "other", format!("{piece}").as_bytes());
            world.pushed(&["main:agent/x"]);
            assert!(world.references().contains(&id), "{format} {piece}");
        }
        world.pushed(&["main:refs/heads/agent/y/z", "main:refs/tags/v1"]);
        assert!(world.has("refs/heads/agent/y/z") && world.has("refs/tags/v1"));
        done(&world.state.repository, &["fsck", "--strict"]);
    }
}

#[test]
fn git_prints_why_a_reference_may_not_be_pushed() {
    let world = World::new(rule());
    commit(world.work(), "three", b"3");
    let printed = world.refused(&["main"]);
    let reason = "denied push of refs/heads/main (not a reference that may be pushed)";
    assert!(printed.contains(&format!("remote: {reason}")), "{printed}");
    let rejected = "! [remote rejected] main -> main (not a reference that may be pushed)";
    assert!(printed.contains(rejected), "{printed}");
}

#[test]
fn of_two_references_none_is_pushed_if_one_is_refused() {
    let world = World::new(rule());
    commit(world.work(), "three", b"3");
    let printed = world.refused(&["main", "main:agent/y"]);
    let other = "main -> agent/y (not pushed: refs/heads/main was refused)";
    assert!(printed.contains(other), "{printed}");
    assert!(!world.has("refs/heads/agent/y"));
    world.pushed(&["main:agent/y"]);
    assert!(world.has("refs/heads/agent/y"));
}

#[test]
fn a_forced_push_is_truncated_so_that_the_server_drops_it() {
    for format in ["sha1", "sha256"] {
        let world = World::with_format(rule(), format);
        done(world.work(), &["checkout", "-q", "-b", "else", "HEAD~1"]);
        commit(world.work(), "else", &noise(10_000));
        let printed = world.refused(&["-f", "else:agent/x"]);
        assert!(
            printed.contains("else -> agent/x (may be a forced update"),
            "{printed}"
        );
        assert!(printed.contains("does not lead from"), "{printed}");
        // It was nearly all of it.
        assert!(world.passed() > 10_000, "{}", world.passed());
        let allowed = GitRule {
            force: true,
            ..rule()
        };
        *world.state.rule.lock().unwrap() = allowed;
        world.pushed(&["-f", "else:agent/x"]);
    }
}

#[test]
fn going_back_to_an_older_commit_is_a_forced_push() {
    let world = World::new(rule());
    let printed = world.refused(&["-f", "main~1:agent/x"]);
    assert!(printed.contains("may be a forced update"), "{printed}");
}

#[test]
fn a_reference_is_deleted_only_where_that_is_allowed() {
    let world = World::new(rule());
    let printed = world.refused(&[":agent/x"]);
    let rejected = "! [remote rejected] agent/x (deleting references is not allowed)";
    assert!(printed.contains(rejected), "{printed}");
    *world.state.rule.lock().unwrap() = GitRule {
        delete: true,
        ..rule()
    };
    world.pushed(&[":agent/x"]);
    assert!(!world.has("refs/heads/agent/x"));
}

#[test]
fn a_merge_of_what_others_pushed_forces_nothing() {
    let world = World::new(rule());
    done(world.work(), &["checkout", "-q", "-b", "side", "HEAD~1"]);
    commit(world.work(), "side", b"side");
    done(world.work(), &["checkout", "-q", "main"]);
    done(world.work(), &["merge", "-q", "--no-edit", "side"]);
    world.pushed(&["main:agent/x"]);
}

#[test]
fn commits_that_are_deltas_of_others_are_read() {
    for (format, offsets) in [("sha1", true), ("sha1", false), ("sha256", true)] {
        let world = World::with_format(rule(), format);
        let message = (0..200).map(|it| it.to_string()).collect::<Vec<_>>();
        let message = message.join("\n");
        for number in 0..20 {
            let message = format!("{number}\n\n{message}");
            let arguments = ["commit", "-q", "--allow-empty", "-m", &message];
            done(world.work(), &arguments);
        }
        let (head, pack) = captured(world.work(), "main~20", "main", offsets);
        fs::write(world.work().join("x.pack"), &pack).unwrap();
        done(world.work(), &["index-pack", "x.pack"]);
        let chains = done(world.work(), &["verify-pack", "-s", "x.pack"]);
        assert!(chains.contains("chain length = 1: "), "{chains}");
        for size in [1, 100, pack.len()] {
            let mut check = PackCheck::new(&head);
            for piece in pack.chunks(size) {
                check.feed(Bytes::copy_from_slice(piece)).unwrap();
            }
            assert!(check.finish().is_ok());
        }
        if !offsets {
            world.state.lacks.lock().unwrap().push("ofs-delta");
        }
        world.pushed(&["main:agent/x"]);
    }
}

#[test]
fn a_large_push_is_let_through_and_probes_first() {
    let world = World::new(rule());
    *world.state.piece.lock().unwrap() = 1 << 16;
    commit(world.work(), "large", &noise(3 << 20));
    world.pushed(&["main:agent/x"]);
    let heads = world.state.heads.lock().unwrap();
    assert!(heads[0].commands.is_empty() && heads[0].rest.is_empty());
    assert_eq!(heads[1].commands.len(), 1);
}

#[test]
fn a_shallow_clone_can_push() {
    let world = World::new(rule());
    let url = format!("file://{}", world.state.repository.display());
    done(
        &world.directory,
        &["clone", "-q", "--depth", "1", &url, "shallow"],
    );
    let shallow = world.directory.path().join("shallow");
    commit(&shallow, "three", b"3");
    done(&shallow, &["push", "-q", &world.url, "main:agent/x"]);
    assert_eq!(world.state.heads.lock().unwrap()[0].shallow.len(), 1);
}

#[test]
fn push_options_and_signed_pushes_are_refused() {
    let world = World::new(rule());
    let printed = world.refused(&["-o", "ci.skip", "main:agent/y"]);
    assert!(
        printed.contains("(push options are not allowed)"),
        "{printed}"
    );
}

#[test]
fn without_a_report_git_still_prints_the_reason_and_fails() {
    let reason = "not a reference that may be pushed";
    for lacks in [
        &["report-status-v2", "report-status"][..],
        &["side-band-64k"],
    ] {
        let world = World::new(rule());
        world.state.lacks.lock().unwrap().extend(lacks);
        commit(world.work(), "three", b"3");
        let printed = world.refused(&["main"]);
        assert!(printed.contains(reason), "{lacks:?}: {printed}");
    }
    let world = World::new(rule());
    let all = ["report-status-v2", "report-status", "side-band-64k"];
    world.state.lacks.lock().unwrap().extend(all);
    commit(world.work(), "three", b"3");
    let printed = world.refused(&["main"]);
    assert!(printed.contains("403"), "{printed}");
}

#[test]
fn git_prints_the_sentence_of_a_refused_repository() {
    let other = GitRule {
        repositories: vec!["x".into()],
        ..rule()
    };
    let world = World::new(other);
    let printed = world.refused(&["main:agent/y"]);
    let sentence = "remote: denied repository o/r (not one of `x`)";
    assert!(printed.contains(sentence), "{printed}");
}

#[test]
fn a_pack_is_checked_only_until_nothing_is_forced() {
    let world = World::new(rule());
    commit(world.work(), "large", &noise(1 << 20));
    let (head, pack) = captured(world.work(), "main~1", "main", true);
    let mut check = PackCheck::new(&head);
    let mut passed = check.feed(pack.slice(..1 << 19)).unwrap();
    // Whatever it is, the server's commit is after what was there.
    passed.extend(check.feed(pack.slice(1 << 19..)).unwrap());
    assert_eq!(passed.concat(), pack);
    assert!(check.finish().unwrap().is_empty());
}

/// The head and the pack of an update from one commit to another.
fn captured(work: impl AsRef<Path>, old: &str, new: &str, offsets: bool) -> (Head, Bytes) {
    let work = work.as_ref();
    let [old_id, new_id] = [old, new].map(|it| done(work, &["rev-parse", it]));
    let format = done(work, &["rev-parse", "--show-object-format"]);
    let line = format!("{old_id} {new_id} refs/heads/agent/x\0object-format={format}");
    let mut bytes = Vec::new();
    pkt::write(Packet::Data(line.as_bytes()), &mut bytes);
    bytes.extend(b"0000");
    let head = HeadReader::default().feed(&bytes).unwrap().unwrap();
    let mut arguments = vec!["pack-objects", "--revs", "--stdout", "-q"];
    if offsets {
        arguments.push("--delta-base-offset");
    }
    let listed = format!("{new}\n^{old}\n");
    let pack = piped(work, &arguments, listed.as_bytes());
    (head, pack.into())
}

#[test]
fn every_change_of_a_forced_pack_is_refused_without_its_end() {
    let world = World::new(rule());
    done(world.work(), &["checkout", "-q", "-b", "else", "HEAD~1"]);
    commit(world.work(), "else", b"else");
    let (head, pack) = captured(world.work(), "main", "else", true);
    let passes = |pack: Vec<u8>| {
        let mut check = PackCheck::new(&head);
        let length = pack.len();
        let passed = match check.feed(pack.into()) {
            Ok(passed) => passed.concat(),
            Err(_) => return false,
        };
        assert!(passed.len() <= length.saturating_sub(20));
        check.finish().is_ok()
    };
    assert!(!passes(pack.to_vec()));
    for at in 0..pack.len() {
        let mut changed = pack.to_vec();
        changed[at] ^= 1 << (at % 8);
        assert!(!passes(changed), "{at}");
        assert!(!passes(pack[..at].to_vec()), "{at}");
    }
    // The server would read no further than the end of the first one.
    assert!(
        PackCheck::new(&head)
            .feed([&pack[..], b"\0"].concat().into())
            .is_err()
    );
    let mut check = PackCheck::new(&head);
    assert!(check.feed(pack.clone()).is_ok());
    assert!(check.feed(Bytes::from_static(b"x")).is_err());
    assert!(check.feed(Bytes::new()).is_err());
}

#[test]
fn a_commit_that_mentions_another_one_elsewhere_is_not_after_it() {
    let world = World::new(rule());
    let old = done(world.work(), &["rev-parse", "main"]);
    done(world.work(), &["checkout", "-q", "-b", "else", "HEAD~1"]);
    let message = format!("x\n\nparent {old}\n");
    done(
        world.work(),
        &["commit", "-q", "--allow-empty", "-m", &message],
    );
    let printed = world.refused(&["-f", "else:agent/x"]);
    assert!(printed.contains("may be a forced update"), "{printed}");
}

#[test]
fn options_before_the_pack_are_let_through_with_it() {
    let world = World::new(rule());
    done(world.work(), &["checkout", "-q", "-b", "else", "HEAD~1"]);
    commit(world.work(), "else", b"else");
    for (old, forced) in [("main", true), ("main~1", false)] {
        let (mut head, pack) = captured(world.work(), old, "else", true);
        head.capabilities.push_options = true;
        let sent = [&b"000bci.skip0000"[..], &pack].concat();
        for size in [1, 9, 1000] {
            let mut check = PackCheck::new(&head);
            let pieces = sent.chunks(size).map(Bytes::copy_from_slice);
            let passed: Vec<_> = pieces.map(|it| check.feed(it).unwrap().concat()).collect();
            match check.finish() {
                Ok(end) => assert_eq!([passed.concat(), end.concat()].concat(), sent),
                Err(_) => assert!(forced),
            }
        }
    }
}
