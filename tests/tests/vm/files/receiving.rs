//! Descriptors that somebody else opened.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, IoSlice, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Stdio},
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
};
use sandbox_daemon::proto::{Denial, Right};

use crate::{
    client,
    enroll::{enroll, request, until_ended},
    expect::{attack, check},
    ground::{self, GROUND},
    host::{self, DEV, ROOT},
};

crate::trials![
    a_descriptor_of_what_may_not_be_read_is_not_received,
    a_descriptor_for_writing_what_may_be_read_is_not_received,
    what_may_be_opened_may_be_received,
    what_may_not_be_read_is_not_executed_by_descriptor,
    a_ring_is_sent_by_no_kernel,
];

/// Sends a file to an attacker that waits for it; its answer, and what was
/// refused.
async fn send(uid: u32, file: &File, enrolled: bool) -> (String, Vec<Denial>) {
    let steps: [&[&str]; 2] = [&["wait"], &["receive"]];
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = host::attacker(uid, &steps);
    let mut child: Child = command
        .current_dir(GROUND)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut client = client::root().await;
    let stream = if enrolled {
        Some(enroll(&mut client, request(uid, child.id())).await.unwrap())
    } else {
        None
    };
    (&ours).write_all(b"x").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "ok");
    let files = [file.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&files)];
    let bytes = [IoSlice::new(b"x")];
    sendmsg::<()>(ours.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None).unwrap();
    let answer = lines.next().unwrap().unwrap();
    let denials = match stream {
        Some((mut stream, _)) => until_ended(&mut stream).await,
        None => Vec::new(),
    };
    child.wait().unwrap();
    (answer, denials)
}

/// One refusal, and the content outside.
async fn refused(uid: u32, path: &str, file: &File, right: Right, errno: Errno, rule: &str) {
    let (answer, denials) = send(uid, file, true).await;
    assert_eq!(answer, "ok nothing");
    let [denial] = denials.as_slice() else {
        panic!("{denials:#?}");
    };
    assert_eq!(denial.operation, "receive", "{denial:#?}");
    assert_eq!(denial.object_display, path, "{denial:#?}");
    assert_eq!(denial.right(), right, "{denial:#?}");
    assert_eq!(denial.errno, errno as u32, "{denial:#?}");
    assert_eq!(denial.rule, rule, "{denial:#?}");
    let (answer, _) = send(uid, file, false).await;
    assert!(answer.starts_with("ok content of"), "{answer}");
}

async fn a_descriptor_of_what_may_not_be_read_is_not_received() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let path = format!("{GROUND}/secret/key");
        let file = File::open(&path).unwrap();
        let rule = format!("{GROUND}/secret");
        refused(uid, &path, &file, Right::Read, Errno::ENOENT, &rule).await;
    }
}

async fn a_descriptor_for_writing_what_may_be_read_is_not_received() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let path = format!("{GROUND}/plain/file");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        refused(uid, &path, &file, Right::Write, Errno::EACCES, "/").await;
    }
}

async fn what_may_be_opened_may_be_received() {
    for uid in [DEV, ROOT] {
        for (path, writing) in [("plain/file", false), ("work/file", true)] {
            ground::make(uid);
            let file = File::options()
                .read(true)
                .write(writing)
                .open(format!("{GROUND}/{path}"))
                .unwrap();
            let (answer, denials) = send(uid, &file, true).await;
            assert_eq!(answer, format!("ok content of {path}"));
            assert_eq!(denials, []);
        }
    }
}

async fn what_may_not_be_read_is_not_executed_by_descriptor() {
    check(&[
        attack(&["exec-open", "secret/program"]).hidden(
            "open",
            "secret/program",
            "/srv/ground/secret",
        ),
        attack(&["exec-open", "/bin/true"]).passes(),
    ])
    .await;
}

/// It would come with its sender's rights; so `file_receive` need not know it.
async fn a_ring_is_sent_by_no_kernel() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let ring = crate::coverage::uring::Ring::new();
    let files = [ring.queue.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&files)];
    let bytes = [IoSlice::new(b"x")];
    let sent = sendmsg::<()>(ours.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None);
    assert_eq!(sent, Err(Errno::EINVAL));
}
