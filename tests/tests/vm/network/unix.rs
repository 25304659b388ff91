//! Unix sockets: a sandbox's own, and what its policy names.

use std::{
    fs,
    io::IoSlice,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{PermissionsExt as _, chown, symlink},
            net::{SocketAddr, UnixDatagram, UnixListener},
        },
    },
    path::Path,
    thread,
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
};
use sandbox_daemon::proto::Right;

use super::{control, perform, policy};
use crate::{
    client::{self, Ran, Run, SOCKET},
    expect::{Case, attack, compare},
    ground::{self, WORK},
    host::{DEV, ROOT},
};

crate::trials![
    a_sandbox_reaches_its_own_unix_sockets,
    a_unix_socket_of_the_machines_is_refused,
    the_daemons_socket_is_refused,
    a_unix_socket_that_the_policy_names_is_reached_and_no_other,
    a_service_that_starts_anew_is_still_reached,
    a_link_in_the_workspace_names_no_unix_socket,
    a_unix_socket_is_not_moved_to_a_name_that_the_policy_has,
    another_sandboxs_unix_socket_is_refused,
    an_unrestricted_network_opens_no_unix_socket,
    a_socket_that_was_made_outside_is_not_received,
    a_sandbox_passes_its_own_descriptors_on,
];

const NETWORK: &str = "mode = \"none\"";
const RULE: &str = "unix socket";

/// Where the machine's sockets are: not below /tmp, which is the sandbox's own.
const DIRECTORY: &str = "/run/vm-test";

fn refused(step: &[&'static str], operation: &'static str, socket: &str) -> Case {
    attack(step).refused(Errno::EPERM, Right::Connect, operation, socket, RULE)
}

/// Somebody's server, that everybody may connect to.
fn serve(name: &str) -> UnixListener {
    let path = Path::new(DIRECTORY).join(name);
    fs::create_dir_all(DIRECTORY).unwrap();
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    listener
}

fn serve_datagrams(name: &str) -> UnixDatagram {
    let path = Path::new(DIRECTORY).join(name);
    fs::create_dir_all(DIRECTORY).unwrap();
    let _ = fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    socket
}

async fn a_sandbox_reaches_its_own_unix_sockets() {
    let cases = [
        attack(&["unix-own", "stream", "/srv/ground/work/stream"]),
        attack(&["unix-own", "seqpacket", "/srv/ground/work/seqpacket"]),
        attack(&["unix-own", "datagram", "/srv/ground/work/datagram"]),
        attack(&["unix-own", "stream", "/tmp/stream"]),
        attack(&["unix-own", "stream", "@ours-stream"]),
        attack(&["unix-own", "seqpacket", "@ours-seqpacket"]),
        attack(&["unix-own", "datagram", "@ours-datagram"]),
        attack(&["unix-pair", "stream"]),
        attack(&["unix-pair", "seqpacket"]),
        attack(&["unix-pair", "datagram"]),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, &cases).await;
    }
}

async fn a_unix_socket_of_the_machines_is_refused() {
    let _stream = serve("stream");
    let _datagram = serve_datagrams("datagram");
    let abstractly = SocketAddr::from_abstract_name("theirs").unwrap();
    let _abstract = UnixListener::bind_addr(&abstractly).unwrap();
    let datagrams = SocketAddr::from_abstract_name("their-datagrams").unwrap();
    let _datagrams = UnixDatagram::bind_addr(&datagrams).unwrap();
    let cases = [
        refused(
            &["unix", "stream", "/run/vm-test/stream"],
            "connect",
            "/run/vm-test/stream",
        ),
        // By another path.
        refused(
            &[
                "unix",
                "stream",
                "/proc/self/root/run/../run/vm-test/stream",
            ],
            "connect",
            "/run/vm-test/stream",
        ),
        refused(&["unix", "stream", "@theirs"], "connect", "@theirs"),
        // connect(2) of a datagram socket asks whether it may send.
        refused(
            &["unix", "datagram", "/run/vm-test/datagram"],
            "send",
            "/run/vm-test/datagram",
        ),
        refused(
            &["unix-send", "/run/vm-test/datagram"],
            "send",
            "/run/vm-test/datagram",
        ),
        refused(
            &["unix-send", "@their-datagrams"],
            "send",
            "@their-datagrams",
        ),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, &cases).await;
        for case in &cases {
            control(uid, &case.step);
        }
    }
}

async fn the_daemons_socket_is_refused() {
    let case = refused(&["unix", "stream", SOCKET], "connect", SOCKET);
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, std::slice::from_ref(&case)).await;
        control(uid, &case.step);
    }
}

async fn a_unix_socket_that_the_policy_names_is_reached_and_no_other() {
    let _named = serve("named");
    let _datagram = serve_datagrams("named-datagram");
    let _other = serve("other");
    // Through a link of the system's, as `/var/run` is one.
    let network = "mode = \"none\"\n\
                   unix = [\"/var/run/vm-test/named\", \"/run/vm-test/named-datagram\", \
                   \"/run/missing/directory/socket\"]";
    let cases = [
        attack(&["unix", "stream", "/run/vm-test/named"]),
        attack(&["unix", "datagram", "/run/vm-test/named-datagram"]),
        attack(&["unix-send", "/run/vm-test/named-datagram"]),
        refused(
            &["unix", "stream", "/run/vm-test/other"],
            "connect",
            "/run/vm-test/other",
        ),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, network, &cases).await;
    }
}

async fn a_service_that_starts_anew_is_still_reached() {
    let first = serve("anew");
    ground::make(DEV);
    let network = "mode = \"none\"\nunix = [\"/run/vm-test/anew\"]";
    let spec = client::spec(DEV, client::policy(&policy(network)), WORK);
    let step: &[&str] = &["unix", "stream", "/run/vm-test/anew"];
    let mut client = client::root().await;
    let start = client::start(spec, &client::attacker(&[step, &["wait"], step]));
    let mut run = Run::start(&mut client, start).await.unwrap();
    assert_eq!(run.line().await, "ok");
    drop(first);
    let _second = serve("anew");
    run.write("x").await;
    let ran = run.end().await;
    assert_eq!(ran.lines(), ["ok", "ok", "ok"], "{ran:?}");
    assert_eq!(ran.denials, [], "{ran:?}");
}

async fn a_link_in_the_workspace_names_no_unix_socket() {
    let _service = serve("linked");
    ground::make(DEV);
    symlink("/run/vm-test/linked", "/srv/ground/work/service").unwrap();
    let network = "mode = \"none\"\nunix = [\"${workspace}/service\"]";
    let cases = [refused(
        &["unix", "stream", "/srv/ground/work/service"],
        "connect",
        "/run/vm-test/linked",
    )];
    compare(DEV, &cases, &run(DEV, network, &cases).await);
    control(DEV, &cases[0].step);
}

/// Where the sandbox may write, and could put any service's socket there.
async fn a_unix_socket_is_not_moved_to_a_name_that_the_policy_has() {
    let network = "mode = \"none\"\n\
                   unix = [\"${workspace}/named\", \"${workspace}/plain/socket\", \
                   \"${workspace}/missing/socket\"]";
    let [other, named] = ["/srv/ground/work/foreign", "/srv/ground/work/named"];
    let [directory, plain, missing] = [
        "/srv/ground/work/services",
        "/srv/ground/work/plain",
        "/srv/ground/work/missing",
    ];
    let refused_rename =
        |old, new, object| attack(&["rename", old, new]).kept("rename", object, RULE);
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let services = [other, "/srv/ground/work/services/socket"].map(|path| {
            let path = Path::new(path);
            for directory in [Path::new(plain), path.parent().unwrap()] {
                fs::create_dir_all(directory).unwrap();
                chown(directory, Some(uid), Some(uid)).unwrap();
            }
            let service = UnixListener::bind(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
            service
        });
        let cases = [
            refused_rename(other, named, named),
            refused_rename(plain, "/srv/ground/work/away", plain),
            refused_rename(directory, missing, missing),
            refused(&["unix", "stream", other], "connect", other),
            attack(&["unix-own", "stream", "/srv/ground/work/own"]),
        ];
        compare(uid, &cases, &run(uid, network, &cases).await);
        for (old, new) in [(other, named), (directory, missing)] {
            assert_eq!(crate::host::attack(uid, "/", &["rename", old, new]), "ok");
        }
        let steps: Vec<_> = [named, "/srv/ground/work/missing/socket"]
            .map(|socket| attack(&["unix", "stream", socket]))
            .into();
        compare(uid, &steps, &run(uid, network, &steps).await);
        drop(services);
    }
}

/// Without making the ground anew.
async fn run(uid: u32, network: &str, cases: &[Case]) -> Ran {
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let spec = client::spec(uid, client::policy(&policy(network)), WORK);
    let start = client::start(spec, &client::attacker(&steps));
    client::run(&mut client::root().await, start).await
}

async fn another_sandboxs_unix_socket_is_refused() {
    ground::make(DEV);
    let steps: &[&[&str]] = &[
        &["unix-listen", "path", "/srv/ground/work/theirs"],
        &["unix-listen", "name", "@of-a-sandbox"],
        &["wait"],
    ];
    let spec = client::spec(DEV, client::policy(&policy(NETWORK)), WORK);
    let mut client = client::root().await;
    let start = client::start(spec, &client::attacker(steps));
    let mut servers = Run::start(&mut client, start).await.unwrap();
    for _ in 0..2 {
        assert_eq!(servers.line().await, "ok");
    }
    let cases = [
        refused(
            &["unix", "stream", "/srv/ground/work/theirs"],
            "connect",
            "/srv/ground/work/theirs",
        ),
        refused(
            &["unix", "stream", "@of-a-sandbox"],
            "connect",
            "@of-a-sandbox",
        ),
    ];
    for uid in [DEV, ROOT] {
        compare(uid, &cases, &run(uid, NETWORK, &cases).await);
        for case in &cases {
            control(uid, &case.step);
        }
    }
    servers.write("x").await;
    servers.end().await;
}

/// They are a way out, not a network.
async fn an_unrestricted_network_opens_no_unix_socket() {
    let _service = serve("stream");
    let case = refused(
        &["unix", "stream", "/run/vm-test/stream"],
        "connect",
        "/run/vm-test/stream",
    );
    perform(DEV, "mode = \"unrestricted\"", &[case]).await;
}

async fn a_socket_that_was_made_outside_is_not_received() {
    let listener = serve("giver");
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = host.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let gift: OwnedFd = if number % 2 == 0 {
                TcpStream::connect(address).unwrap().into()
            } else {
                std::io::pipe().unwrap().0.into()
            };
            let descriptors = [gift.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&descriptors)];
            let data = [IoSlice::new(b"gift")];
            let stream = stream.unwrap();
            sendmsg::<()>(stream.as_raw_fd(), &data, &rights, MsgFlags::empty(), None).unwrap();
        }
    });
    let network = "mode = \"none\"\nunix = [\"/run/vm-test/giver\"]";
    let step = &["unix-receive", "/run/vm-test/giver"];
    let cases = [
        attack(step)
            .refused(
                Errno::EACCES,
                Right::Connect,
                "receive",
                "descriptor",
                "received descriptor",
            )
            .answers("ok nothing"),
        attack(step).finds("a file"),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, network, &cases).await;
        let outside = crate::host::attack(uid, "/", step);
        assert_eq!(outside, "ok a connection");
        assert_eq!(crate::host::attack(uid, "/", step), "ok a file");
    }
}

async fn a_sandbox_passes_its_own_descriptors_on() {
    let cases = [
        attack(&["unix-pass", "tcp"]),
        attack(&["unix-pass", "unix"]),
        attack(&["unix-pass", "pipe"]),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, &cases).await;
    }
}
