//! The program itself, as the daemon starts it: confined, over its channel.

#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpListener, UdpSocket},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixStream, process::CommandExt as _},
    },
    process::{Child, Command},
    time::{Duration, Instant},
};

use sandbox_proxy::channel::{self, FromProxy, ToProxy};

const NOBODY: u32 = 65_534;

fn start() -> (Child, UnixStream, TcpListener, tempfile::TempDir) {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    // No maps: nobody is known.
    let map = File::open("/dev/null").unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let descriptors = [tcp.as_fd(), udp.as_fd(), map.as_fd(), map.as_fd()];
    channel::send_first(&ours, &ToProxy::Begin { ipv6: false }, &descriptors).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("sandbox-proxy");
    fs::copy(env!("CARGO_BIN_EXE_sandbox-proxy"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_clear().stdin(OwnedFd::from(theirs));
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    (command.spawn().unwrap(), ours, tcp, directory)
}

fn say(channel: &mut UnixStream, message: &ToProxy) {
    let bytes = serde_json::to_vec(message).unwrap();
    let length = u32::try_from(bytes.len()).unwrap();
    channel.write_all(&length.to_be_bytes()).unwrap();
    channel.write_all(&bytes).unwrap();
}

fn hear(channel: &mut UnixStream) -> FromProxy {
    let mut length = [0; 4];
    channel.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    channel.read_exact(&mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn it_is_ready_when_confined_and_ends_with_its_channel() {
    let (mut child, mut channel, tcp, _directory) = start();
    channel
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    say(
        &mut channel,
        &ToProxy::Resolver {
            resolv_conf: "nameserver 192.0.2.53\n".into(),
            hosts: "127.0.0.1 localhost\n".into(),
        },
    );
    assert!(matches!(hear(&mut channel), FromProxy::Ready { .. }));
    say(&mut channel, &ToProxy::Policy(Box::default()));
    say(&mut channel, &ToProxy::Sync { serial: 5 });
    assert!(matches!(hear(&mut channel), FromProxy::Done { serial: 5 }));

    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(u64::from_str_radix(&field("CapPrm:"), 16).unwrap(), 0);
    let resident: u64 = field("VmRSS:").parse().unwrap();
    assert!(resident < 20 << 10, "{resident} KiB");

    // Who it cannot look up it does not serve.
    let mut stranger = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    let mut heard = String::new();
    let _ = stranger.read_to_string(&mut heard);
    assert_eq!(heard, "");
    assert!(child.try_wait().unwrap().is_none());

    drop(channel);
    let deadline = Instant::now() + Duration::from_secs(10);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}
