//! `sandbox run` and `attach` with somebody at the terminal.

use std::{fmt::Write as _, fs, process::Command};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    host::{self, DEV, alive, sandboxes, wait_until},
    restart,
    tmux::Tmux,
};

crate::trials![
    a_command_has_a_controlling_terminal_of_its_own,
    the_window_is_as_large_inside_as_outside,
    keys_are_for_the_job_in_the_foreground,
    output_stops_and_goes_on_as_the_keys_say,
    an_editor_and_a_pager_draw_and_restore_the_screen,
    a_large_paste_arrives_whole,
    however_it_ends_the_terminal_is_as_it_was,
    a_client_that_is_stopped_gives_the_terminal_back,
    a_terminal_that_is_closed_takes_its_command_along,
    a_detached_shell_is_attached_left_and_attached_again,
];

/// A job that says when it is in the foreground: before, keys are the shell's.
const JOB: &str = "sh -c 'echo begun-$((1+1)); exec sleep 1000'";

/// Those that end the daemon.
pub(crate) fn last() -> Vec<libtest_mimic::Trial> {
    crate::trials![in trials: a_daemon_that_is_killed_gives_the_terminal_back];
    trials()
}

async fn a_command_has_a_controlling_terminal_of_its_own() {
    let tmux = Tmux::start("controlling").await;
    let own = tmux.run("tty").await;
    tmux.enter("").await;
    let seen = tmux.run("tty; echo to-$((20+3)) > /dev/tty").await;
    assert!(
        seen.contains("/dev/pts/") && seen.contains("to-23"),
        "{seen}"
    );
    // Its own, of its own devpts; and the caller's is not open inside.
    let seen = tmux
        .run("set -- $(ps -o sid=,tpgid=,tty= -p $$); [ $1 = $$ ] && [ $2 -gt 1 ] && echo ok-$3")
        .await;
    assert!(seen.contains("ok-pts/"), "{seen}");
    let seen = tmux
        .run("readlink /proc/$$/fd/[012] | sort -u | wc -l")
        .await;
    assert!(seen.contains("\n1\n") || seen.starts_with("1\n"), "{seen}");
    let seen = tmux.run("sandbox run -- true; echo nested-$?").await;
    assert!(seen.contains("nested-125"), "{seen}");
    assert!(seen.contains("already inside the sandbox"), "{seen}");
    tmux.line("exit");
    tmux.wait_for("host$").await;
    let after = tmux.run("tty").await;
    let line = |screen: &str| {
        screen
            .lines()
            .find(|it| it.starts_with("/dev/"))
            .map(str::to_owned)
    };
    assert_eq!(line(&own), line(&after));
}

async fn the_window_is_as_large_inside_as_outside() {
    let tmux = Tmux::start("window").await;
    tmux.enter("").await;
    let seen = tmux.run("stty size").await;
    assert!(seen.contains("30 100"), "{seen}");
    tmux.line("trap 'echo now-$(stty size | tr \" \" x)' WINCH; clear");
    for (columns, rows) in [("120", "40"), ("90", "25")] {
        tmux.call(&["resize-window", "-x", columns, "-y", rows]);
        // A trap is run when the shell gets the word.
        wait_until("the new size is told", || {
            tmux.line("");
            tmux.screen().contains(&format!("now-{rows}x{columns}"))
        })
        .await;
    }
    // While it writes.
    tmux.clear();
    tmux.line("seq 20000; echo last-$((2*3))");
    for columns in 60..70 {
        tmux.call(&["resize-window", "-x", &columns.to_string(), "-y", "25"]);
    }
    tmux.wait_for("last-6").await;
    wait_until("the last size is told", || {
        tmux.line("stty size");
        tmux.screen().contains("25 69")
    })
    .await;
}

/// Starts a job, which is in the foreground from then on.
async fn begin(tmux: &Tmux) {
    tmux.line(JOB);
    tmux.wait_for("begun-2").await;
}

/// Stops what is in the foreground.
async fn stop(tmux: &Tmux) {
    tmux.key("C-z");
    tmux.wait_for("Stopped").await;
    tmux.clear();
}

async fn keys_are_for_the_job_in_the_foreground() {
    let tmux = Tmux::start("keys").await;
    tmux.enter("").await;
    for (key, status) in [("C-c", "code-130"), ("C-\\", "code-131")] {
        tmux.clear();
        begin(&tmux).await;
        tmux.key(key);
        tmux.wait_for("inside$").await;
        tmux.line("echo code-$?");
        tmux.wait_for(status).await;
    }
    tmux.clear();
    begin(&tmux).await;
    stop(&tmux).await;
    tmux.line("bg; jobs");
    tmux.wait_for("Running").await;
    tmux.clear();
    tmux.line("fg");
    tmux.wait_for("exec sleep 1000").await;
    stop(&tmux).await;
    tmux.line("fg");
    tmux.wait_for("exec sleep 1000").await;
    tmux.key("C-c");
    tmux.wait_for("inside$").await;
    let seen = tmux.run("echo code-$?; jobs | wc -l").await;
    assert!(seen.contains("code-130\n0\n"), "{seen}");
    // A shell in the shell has jobs of its own.
    tmux.clear();
    tmux.line("PS1='deep''er$ ' bash --norc --noprofile -i");
    tmux.wait_for("deeper$").await;
    begin(&tmux).await;
    stop(&tmux).await;
    // Said twice: the first may find the job still stopped.
    tmux.line("kill -9 %1; exit; exit");
    tmux.wait_for("inside$").await;
    tmux.clear();
    tmux.key("C-d");
    tmux.wait_for("host$").await;
    wait_until("nothing is left", || sandboxes().is_empty()).await;
}

async fn output_stops_and_goes_on_as_the_keys_say() {
    let tmux = Tmux::start("flow").await;
    tmux.enter("").await;
    tmux.run("stty ixon").await;
    tmux.clear();
    tmux.line(
        "echo first-$((1+1)); for i in $(seq 30); do sleep 0.1; echo tick; done; echo end-$((1+1))",
    );
    tmux.wait_for("first-2").await;
    tmux.key("C-s");
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    let seen = tmux.screen();
    assert!(!seen.contains("end-2"), "{seen}");
    tmux.key("C-q");
    tmux.wait_for("end-2").await;
}

async fn an_editor_and_a_pager_draw_and_restore_the_screen() {
    let tmux = Tmux::start("editor").await;
    fs::write(tmux.directory.join("file"), "old text\n").unwrap();
    host::output(
        0,
        &["chown", "-R", "dev:dev", tmux.directory.to_str().unwrap()],
    );
    tmux.enter("").await;
    tmux.run("echo before-$((1+1))").await;
    tmux.line("vim.tiny file");
    tmux.wait_for("old text").await;
    tmux.type_in("inew and ");
    tmux.wait_for("new and old text").await;
    tmux.key("Escape");
    tmux.line(":wq");
    tmux.wait_for("before-2").await;
    let written = fs::read_to_string(tmux.directory.join("file")).unwrap();
    assert_eq!(written, "new and old text\n");
    tmux.line("seq 1000 | less");
    tmux.wait_for("29\n:").await;
    tmux.type_in(" ");
    tmux.wait_for("58\n:").await;
    tmux.type_in("G");
    tmux.wait_for("1000\n(END)").await;
    tmux.type_in("q");
    tmux.wait_for("before-2").await;
    assert!(!tmux.screen().contains("(END)"), "{}", tmux.screen());
}

async fn a_large_paste_arrives_whole() {
    let tmux = Tmux::start("paste").await;
    let mut pasted = String::new();
    for number in 0..1300 {
        writeln!(pasted, "{number:05} {}", "x".repeat(71)).unwrap();
    }
    assert!(pasted.len() > 100_000);
    let source = tmux.directory.join("source");
    fs::write(&source, &pasted).unwrap();
    tmux.enter("").await;
    tmux.clear();
    // What a terminal echoes it may drop, and it shows the last of it late.
    tmux.line("stty -echo; echo ready-$((1+1)); cat > target; stty echo");
    tmux.wait_for("ready-2").await;
    tmux.call(&["load-buffer", source.to_str().unwrap()]);
    tmux.call(&["paste-buffer"]);
    let target = tmux.directory.join("target");
    let length = || fs::metadata(&target).map_or(0, |it| it.len());
    wait_until("it has arrived", || length() >= pasted.len() as u64).await;
    tmux.key("C-d");
    tmux.wait_for("inside$").await;
    assert!(fs::read_to_string(&target).unwrap() == pasted);
}

async fn however_it_ends_the_terminal_is_as_it_was() {
    let tmux = Tmux::start("ends").await;
    let before = tmux.modes().await;
    for (line, status) in [
        ("sandbox run -- sh -c 'exit 3'", 3),
        ("sandbox run -- sh -c 'kill -9 $$'", 137),
        ("sandbox run --timeout 1s -- sleep 1000", 124),
        ("sandbox run -- no-such-command", 127),
        ("sandbox run -- stty raw -echo", 0),
    ] {
        let seen = tmux.run(&format!("{line}; echo status-$?")).await;
        assert!(seen.contains(&format!("status-{status}")), "{line}: {seen}");
        assert_eq!(tmux.modes().await, before, "{line}");
    }
    for (number, status) in [("1001", 137), ("1002", 143), ("1003", 137)] {
        tmux.clear();
        let command = format!("echo begun-$((1+1)); sleep {number}");
        tmux.line(&format!("sandbox run -- sh -c '{command}'; echo status-$?"));
        tmux.wait_for("begun-2").await;
        let client = Pid::from_raw(tmux.client(&command).cast_signed());
        match number {
            // By its daemon, which another client asks.
            "1001" => {
                let id = sandboxes()[0].file_name().unwrap().to_owned();
                host::output(DEV, &["sandbox", "kill", id.to_str().unwrap()]);
            }
            "1002" => kill(client, Signal::SIGTERM).unwrap(),
            // Nobody restores anything; the shell does.
            _ => kill(client, Signal::SIGKILL).unwrap(),
        }
        tmux.wait_for(&format!("status-{status}")).await;
        assert_eq!(tmux.modes().await, before, "{number}");
        wait_until("nothing is left", || sandboxes().is_empty()).await;
    }
}

async fn a_client_that_is_stopped_gives_the_terminal_back() {
    let tmux = Tmux::start("stopped").await;
    let before = tmux.modes().await;
    tmux.enter("").await;
    let client = Pid::from_raw(tmux.client("bash --norc --noprofile -i").cast_signed());
    for signal in [Signal::SIGTSTP, Signal::SIGSTOP] {
        tmux.clear();
        kill(client, signal).unwrap();
        tmux.wait_for("Stopped").await;
        assert_eq!(tmux.modes().await, before, "{signal}");
        tmux.call(&["resize-window", "-x", "110", "-y", "28"]);
        tmux.clear();
        tmux.line("fg");
        tmux.wait_for("sandbox run").await;
        // It is the shell's inside that answers, in the new window.
        let seen = tmux.run("echo $SANDBOX_ID-is; stty size").await;
        assert!(!seen.contains("\n-is") && seen.contains("28 110"), "{seen}");
        tmux.call(&["resize-window", "-x", "100", "-y", "30"]);
        // Its keys are not the client's shell's.
        tmux.clear();
        begin(&tmux).await;
        tmux.key("C-c");
        tmux.wait_for("inside$").await;
    }
    tmux.line("exit");
    tmux.wait_for("host$").await;
    assert_eq!(tmux.modes().await, before);
}

async fn a_terminal_that_is_closed_takes_its_command_along() {
    for script in ["sleep 1000", "trap \"\" HUP TERM; sleep 1000 & wait"] {
        let tmux = Tmux::start("closed").await;
        let command = format!("echo begun-$((1+1)); {script}");
        tmux.line(&format!("sandbox run -- sh -c '{command}'"));
        tmux.wait_for("begun-2").await;
        let client = tmux.client(&command);
        assert_eq!(sandboxes().len(), 1);
        tmux.call(&["kill-pane"]);
        wait_until("the client is gone", || !alive(client)).await;
        wait_until("the command is gone", || sandboxes().is_empty()).await;
    }
}

async fn a_detached_shell_is_attached_left_and_attached_again() {
    let tmux = Tmux::start("attach").await;
    let before = tmux.modes().await;
    tmux.run(
        "id=$(sandbox run -dt --name shell -e PS1='in''side$ ' -- bash --norc --noprofile -i)",
    )
    .await;
    for name in ["$id", "shell"] {
        tmux.clear();
        tmux.line(&format!("sandbox attach {name}"));
        tmux.wait_for("inside$").await;
        let seen = tmux.run("stty size; tty").await;
        assert!(
            seen.contains("30 100") && seen.contains("/dev/pts/"),
            "{seen}"
        );
        tmux.call(&["resize-window", "-x", "120", "-y", "40"]);
        wait_until("the new size is there", || {
            tmux.line("stty size");
            tmux.screen().contains("40 120")
        })
        .await;
        tmux.call(&["resize-window", "-x", "100", "-y", "30"]);
        tmux.clear();
        begin(&tmux).await;
        tmux.key("C-c");
        tmux.wait_for("inside$").await;
        tmux.key("C-p");
        tmux.key("C-q");
        tmux.wait_for("it goes on").await;
        assert_eq!(tmux.modes().await, before);
    }
    // An editor draws anew for who comes later.
    tmux.clear();
    tmux.line("sandbox attach shell");
    tmux.wait_for("inside$").await;
    tmux.line("vim.tiny -c 'set noswapfile' page");
    tmux.type_in("isome-text");
    tmux.wait_for("some-text").await;
    tmux.key("C-p");
    tmux.key("C-q");
    tmux.wait_for("it goes on").await;
    tmux.clear();
    tmux.line("sandbox attach shell");
    tmux.wait_for("some-text").await;
    tmux.key("Escape");
    tmux.line(":q!");
    tmux.wait_for("inside$").await;
    tmux.line("exit 9");
    tmux.wait_for("host$").await;
    let seen = tmux.run("sandbox wait $id; echo status-$?").await;
    assert!(seen.contains("status-9"), "{seen}");
    let seen = tmux.run("sandbox logs $id | grep -c some-text").await;
    assert!(!seen.contains("\n0\n"), "{seen}");
    assert_eq!(tmux.modes().await, before);
    tmux.run("sandbox rm shell").await;
    assert!(sandboxes().is_empty());
}

async fn a_daemon_that_is_killed_gives_the_terminal_back() {
    let tmux = Tmux::start("killed").await;
    let before = tmux.modes().await;
    tmux.clear();
    tmux.line("sandbox run -- sh -c 'echo begun-$((1+1)); sleep 1000'; echo status-$?");
    tmux.wait_for("begun-2").await;
    restart::end_the_daemon(Signal::SIGKILL).await;
    tmux.wait_for("lost the connection to the daemon").await;
    tmux.wait_for("status-125").await;
    assert_eq!(tmux.modes().await, before);
    restart::start_another("/run/after-the-terminal.log").await;
    wait_until("what it left is gone", || sandboxes().is_empty()).await;
    let left = Command::new("ps").args(["-eo", "args="]).output().unwrap();
    assert!(!host::text(&left.stdout).contains("sleep 1000"));
}
