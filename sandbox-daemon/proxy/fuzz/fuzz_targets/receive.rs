//! The head of a push, and the pack after it: how many bytes come at a time makes no
//! difference, the head is forwarded as it came and says what was read of it, and
//! what is refused is never forwarded whole.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_proxy::{
    credential::GitRule,
    git::{
        pack::PackCheck,
        pkt::{self, Packet},
        receive::{Head, HeadReader},
        report::Refusals,
    },
};

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else {
        return;
    };
    let size = usize::from(*size).max(1);
    let mut reader = HeadReader::default();
    let whole = reader.feed(bytes);
    let mut reader = HeadReader::default();
    let mut fed = 0;
    let found = bytes.chunks(size).find_map(|it| {
        fed += it.len();
        reader.feed(it).transpose()
    });
    match (whole, found) {
        (Ok(Some(head)), Some(Ok(other))) => {
            assert_eq!([&head.raw[..], &head.rest].concat(), bytes);
            assert_eq!(other.raw, head.raw);
            assert_eq!(other.commands, head.commands);
            assert_eq!([&other.raw[..], &other.rest].concat(), bytes[..fed]);
            says_what_was_read(&head);
            decided(&head, size);
        }
        (whole, found) => assert_eq!(whole.transpose(), found),
    }
});

fn says_what_was_read(head: &Head) {
    let shallow = head.shallow.iter().map(|id| format!("shallow {id}"));
    let commands = head
        .commands
        .iter()
        .map(|it| format!("{} {} {}", it.old, it.new, it.reference));
    let mut rest = &head.raw[..];
    for text in shallow.chain(commands) {
        let Ok(Some((Packet::Data(line), used))) = pkt::read(rest) else {
            panic!("not a packet");
        };
        let after = line.strip_prefix(text.as_bytes()).expect("another line");
        // Capabilities, or a line's end.
        assert!(matches!(after, [] | [b'\n'] | [0, ..]), "{after:?}");
        rest = &rest[used..];
    }
    assert_eq!(rest, b"0000");
}

fn decided(head: &Head, size: usize) {
    let rule = GitRule {
        push: vec!["refs/heads/*".into()],
        ..GitRule::default()
    };
    if let Err(refusals) = rule.decide(head) {
        drop(refusals.answer(head));
        let allowed = |it: &str| rule.reference(it).is_some();
        assert!(
            head.capabilities.push_options
                || head
                    .commands
                    .iter()
                    .any(|it| it.is_deletion() || !allowed(&it.reference))
        );
    }
    let whole = checked(head, head.rest.len().max(1));
    assert_eq!(whole, checked(head, size));
    if let Ok(passed) = &whole {
        assert_eq!(*passed, head.rest);
    }
}

fn checked(head: &Head, size: usize) -> Result<Vec<u8>, Refusals> {
    let mut check = PackCheck::new(head);
    let (mut passed, mut taken) = (Vec::new(), 0);
    for at in (0..head.rest.len()).step_by(size) {
        let piece = head.rest.slice(at..head.rest.len().min(at + size));
        taken += piece.len();
        passed.extend(check.feed(piece)?.concat());
        assert!(passed.len() <= taken);
    }
    let forced = head.commands.iter().any(|it| it.is_update());
    let held = taken - passed.len();
    let end = check.finish()?.concat();
    assert_eq!(held, end.len());
    assert!(forced || held == 0);
    passed.extend(end);
    Ok(passed)
}
