//! Real programs and the services that are reached over Unix sockets: each of
//! them would do something outside for whoever asks.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    process::{Child, Stdio},
};

use super::policy;
use crate::{
    client::{self, Ran},
    ground::{self, WORK},
    host::{self, DEV, wait_until},
};

crate::trials![
    a_container_engine_is_out_of_reach,
    a_message_bus_is_out_of_reach,
    an_ssh_agent_is_out_of_reach,
    a_terminal_multiplexer_is_out_of_reach_and_an_own_one_works,
];

const DIRECTORY: &str = "/run/vm-programs";

/// Ends a service with its test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn directory() {
    fs::create_dir_all(DIRECTORY).unwrap();
    fs::set_permissions(DIRECTORY, fs::Permissions::from_mode(0o755)).unwrap();
    chown(DIRECTORY, Some(DEV), Some(DEV)).unwrap();
}

async fn service(uid: u32, argv: &[&str], socket: &str) -> Service {
    directory();
    let _ = fs::remove_file(socket);
    let mut command = host::command(uid, argv);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let service = Service(command.spawn().unwrap());
    wait_until("the service listens", || fs::metadata(socket).is_ok()).await;
    service
}

async fn inside(argv: &[&str]) -> Ran {
    ground::make(DEV);
    let text = policy("mode = \"none\"").replace("\"${tmp}\"", "\"${tmp}\", \"@devices\"");
    let spec = client::spec(DEV, client::policy(&text), WORK);
    client::run(&mut client::root().await, client::start(spec, argv)).await
}

/// Fails inside with that one event, as often as the program tries; works
/// outside.
async fn out_of_reach(argv: &[&str], socket: &str) {
    let ran = inside(argv).await;
    assert_ne!(ran.code(), Some(0), "{ran:?}");
    assert_eq!(ran.denials.len(), 1, "{ran:?}");
    let denial = &ran.denials[0];
    assert_eq!(denial.object_display, socket, "{ran:?}");
    assert_eq!(
        (denial.rule.as_str(), denial.operation.as_str()),
        ("unix socket", "connect")
    );
    assert_eq!(denial.errno, 1, "{ran:?}");
    host::output(DEV, argv);
}

async fn a_container_engine_is_out_of_reach() {
    let socket = "/run/vm-programs/docker.sock";
    let server = "import http.server, os, socketserver, sys\n\
        class Handler(http.server.BaseHTTPRequestHandler):\n\
        \x20   def address_string(self): return 'somebody'\n\
        \x20   def do_GET(self):\n\
        \x20       self.send_response(200); self.end_headers(); self.wfile.write(b'[]')\n\
        server = socketserver.UnixStreamServer(sys.argv[1] + '.new', Handler)\n\
        os.chmod(sys.argv[1] + '.new', 0o666); os.rename(sys.argv[1] + '.new', sys.argv[1])\n\
        server.serve_forever()\n";
    let _service = service(host::ROOT, &["python3", "-c", server, socket], socket).await;
    let ask = [
        "curl",
        "-sf",
        "--unix-socket",
        socket,
        "http://localhost/containers/json",
    ];
    out_of_reach(&ask, socket).await;
}

async fn a_message_bus_is_out_of_reach() {
    let socket = "/run/vm-programs/bus";
    let address = format!("unix:path={socket}");
    let bus = [
        "dbus-daemon",
        "--session",
        "--nofork",
        "--address",
        &address,
    ];
    let _service = service(DEV, &bus, socket).await;
    let bus = format!("--bus={address}");
    let ask = [
        "dbus-send",
        &bus,
        "--print-reply",
        "--dest=org.freedesktop.DBus",
        "/",
        "org.freedesktop.DBus.ListNames",
    ];
    out_of_reach(&ask, socket).await;
}

async fn an_ssh_agent_is_out_of_reach() {
    let socket = "/run/vm-programs/agent";
    let _service = service(DEV, &["ssh-agent", "-D", "-a", socket], socket).await;
    // 1: it has no keys, 2: nobody answers.
    let agent = format!("SSH_AUTH_SOCK={socket}");
    let list = "ssh-add -l; test $? -eq 1";
    let ask = ["env", &agent, "sh", "-c", list];
    out_of_reach(&ask, socket).await;
}

async fn a_terminal_multiplexer_is_out_of_reach_and_an_own_one_works() {
    let socket = "/run/vm-programs/tmux";
    let start = ["tmux", "-D", "-S", socket];
    let _service = service(DEV, &start, socket).await;
    out_of_reach(&["tmux", "-S", socket, "new-session", "-d", "true"], socket).await;
    let script =
        "tmux -S own new-session -d -s mine 'sleep 60' && tmux -S own list-sessions -F '#S'";
    let ran = inside(&["sh", "-c", script]).await;
    assert_eq!(ran.lines(), ["mine"], "{ran:?}");
}
