//! `sandbox run` on a terminal.

use std::{
    os::fd::{AsFd, OwnedFd},
    process::{Child, Stdio},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    pty::{Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, tcgetattr},
    },
    unistd::{Pid, read, write},
};

use super::fake::Fake;

/// A client with a terminal of its own, of 30 rows and 100 columns.
struct Screen {
    master: OwnedFd,
    slave: OwnedFd,
    child: Child,
    seen: String,
}

impl Screen {
    fn start(fake: &Fake, arguments: &[&str], stderr: Option<Stdio>) -> Self {
        let size = Winsize {
            ws_row: 30,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).unwrap();
        let slave = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = fake
            .context
            .client(arguments)
            .stdin(slave())
            .stdout(slave())
            .stderr(stderr.unwrap_or_else(slave))
            .spawn()
            .unwrap();
        Self {
            master: pty.master,
            slave: pty.slave,
            child,
            seen: String::new(),
        }
    }

    /// Reads until the screen shows this.
    fn wait_for(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.seen.contains(text) {
            let mut ready = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
            let count = poll(&mut ready, PollTimeout::from(30_000_u16)).unwrap();
            assert!(count > 0, "no `{text}` in `{}`", self.seen);
            let length = read(&self.master, &mut buffer).unwrap();
            self.seen += std::str::from_utf8(&buffer[..length]).unwrap();
        }
    }

    fn type_in(&self, keys: &str) {
        write(&self.master, keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap();
        !modes
            .local_flags
            .intersects(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }

    fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap();
        modes.local_flags.contains(LocalFlags::ECHO)
    }

    /// The command has started.
    fn wait_until_raw(&self) {
        for _ in 0..3_000 {
            if self.is_raw() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the terminal does not become raw");
    }

    fn wait_until_stopped(&self) {
        let stat = format!("/proc/{}/stat", self.child.id());
        for _ in 0..3_000 {
            if std::fs::read_to_string(&stat).unwrap().contains(") T ") {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it is not stopped");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

#[test]
fn on_a_terminal_the_command_gets_one_of_the_same_size() {
    let fake = Fake::start();
    let mut screen = Screen::start(&fake, &["run", "show"], None);
    screen.wait_for("Pty apart=false 30x100");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn a_redirected_stderr_stays_apart() {
    let fake = Fake::start();
    let mut screen = Screen::start(&fake, &["run", "show"], Some(Stdio::null()));
    screen.wait_for("Pty apart=true 30x100");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn keys_go_to_the_command_and_the_modes_come_back() {
    let fake = Fake::start();
    let mut screen = Screen::start(&fake, &["run", "cat"], None);
    screen.wait_until_raw();
    screen.signal(Signal::SIGUSR1);
    screen.wait_for("signal 10");
    // An interrupt is a key like any other.
    screen.type_in("\u{3}b");
    screen.wait_for("\u{3}b");
    screen.signal(Signal::SIGWINCH);
    screen.wait_for("size 30x100");
    screen.signal(Signal::SIGTERM);
    screen.wait_for("signal 15");
    std::thread::sleep(Duration::from_millis(100));
    screen.signal(Signal::SIGTERM);
    assert_eq!(screen.code(), Some(143));
    assert!(!screen.is_raw());
}

#[test]
fn denials_are_told_on_the_restored_terminal() {
    let fake = Fake::start();
    let mut screen = Screen::start(&fake, &["run", "exit", "3"], None);
    // A restored terminal ends its lines with a carriage return.
    screen.wait_for("id_ed25519 (rule credentials) by python3[4211] (3 times)\r\n");
    assert_eq!(screen.code(), Some(3));
    assert!(!screen.is_raw());
}

#[test]
fn a_client_that_is_stopped_gives_the_terminal_back_and_takes_it_again() {
    let fake = Fake::start();
    fake.context.output(&["run", "-dt", "x"]);
    for verb in [&["run", "cat"][..], &["attach", "e"]] {
        let mut screen = Screen::start(&fake, verb, None);
        screen.wait_until_raw();
        screen.signal(Signal::SIGTSTP);
        screen.wait_until_stopped();
        assert!(!screen.is_raw() && screen.echoes());
        screen.signal(Signal::SIGCONT);
        screen.wait_until_raw();
        // It may have been resized meanwhile.
        screen.wait_for("size 30x100");
        screen.type_in("still here");
        screen.wait_for("still here");
        if verb[0] == "run" {
            screen.signal(Signal::SIGTERM);
            screen.wait_for("signal 15");
        }
        screen.signal(Signal::SIGTERM);
        assert_eq!(screen.code(), Some(143));
        assert!(!screen.is_raw());
    }
}

#[test]
fn attached_to_a_terminal_keys_go_to_the_command_until_it_is_left() {
    let fake = Fake::start();
    fake.context.output(&["run", "-dt", "x"]);
    let mut screen = Screen::start(&fake, &["attach", "--history", "e"], None);
    // A size that is not its own, so that it draws anew.
    screen.wait_for("attached 31x100 history");
    screen.wait_for("size 30x100");
    screen.wait_until_raw();
    screen.signal(Signal::SIGWINCH);
    screen.type_in("\u{3}b");
    screen.wait_for("\u{3}b");
    screen.type_in("\u{10}c");
    screen.wait_for("\u{10}c");
    screen.type_in("\u{10}");
    screen.type_in("\u{11}");
    screen.wait_for("sandbox: left `e00000000002`; it goes on\r\n");
    assert_eq!(screen.code(), Some(0));
    assert!(!screen.is_raw());
}

#[test]
fn a_client_that_is_ended_leaves_what_it_is_attached_to() {
    let fake = Fake::start();
    fake.context.output(&["run", "-dt", "x"]);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut screen = Screen::start(&fake, &["attach", "e"], None);
        screen.wait_until_raw();
        // The fake one panics where it is told of these.
        screen.signal(signal);
        assert_eq!(screen.code(), Some(code));
        assert!(!screen.is_raw());
    }
    let mut screen = Screen::start(&fake, &["attach", "--no-stdin", "e"], None);
    screen.wait_for("attached 0x0");
    assert!(!screen.is_raw());
    screen.signal(Signal::SIGINT);
    assert_eq!(screen.code(), Some(130));
}

#[test]
fn a_secret_is_asked_for_and_not_shown() {
    let fake = Fake::start();
    let mut screen = Screen::start(&fake, &["secret", "set", "github"], None);
    screen.wait_for("secret: ");
    assert!(!screen.echoes());
    screen.type_in("hunter2\n");
    assert_eq!(screen.code(), Some(0));
    screen.wait_for("\n");
    assert!(!screen.seen.contains("hunter2"), "{}", screen.seen);
    assert!(screen.echoes());
    let kept = fake.secrets.lock().unwrap().clone();
    assert_eq!(kept, [("github".to_owned(), b"hunter2".to_vec(), None)]);
}

#[test]
fn a_question_that_is_ended_by_a_signal_leaves_the_terminal_as_it_was() {
    let fake = Fake::start();
    for (signal, code) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
        (Signal::SIGQUIT, 131),
    ] {
        let mut screen = Screen::start(&fake, &["secret", "set", "github"], None);
        screen.wait_for("secret: ");
        assert!(!screen.echoes());
        screen.type_in("hun");
        screen.signal(signal);
        assert_eq!(screen.code(), Some(code), "{signal}");
        assert!(screen.echoes(), "{signal}");
    }
    assert!(fake.secrets.lock().unwrap().is_empty());
}

#[test]
fn a_line_that_the_terminal_may_have_cut_is_refused() {
    let fake = Fake::start();
    let mut screen = Screen::start(&fake, &["secret", "set", "github"], None);
    screen.wait_for("secret: ");
    for _ in 0..10 {
        screen.type_in(&"a".repeat(500));
    }
    screen.type_in("\n");
    screen.wait_for("longer than a line of a terminal");
    assert_eq!(screen.code(), Some(1));
    assert!(fake.secrets.lock().unwrap().is_empty());
}

#[test]
fn a_question_that_is_stopped_is_asked_again() {
    let fake = Fake::start();
    let mut screen = Screen::start(&fake, &["secret", "set", "github"], None);
    screen.wait_for("secret: ");
    screen.signal(Signal::SIGTSTP);
    screen.wait_until_stopped();
    assert!(screen.echoes());
    screen.seen.clear();
    screen.signal(Signal::SIGCONT);
    screen.wait_for("secret: ");
    screen.type_in("hunter2\n");
    assert_eq!(screen.code(), Some(0));
    assert_eq!(fake.secrets.lock().unwrap().len(), 1);
}
