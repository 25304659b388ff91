//! Commands: what they start with, how they end, why they do not start.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
};

use sandbox_daemon::{
    launch::{self, ExitStatus, LaunchError, Limits, Size, open_pty},
    sys,
};

use crate::support::{
    OTHER, Scratch, USER, account, field, host_view, output, running, wait_until, work_dir,
};

#[tokio::test]
async fn a_command_is_the_user_and_has_nothing_of_the_daemons() {
    let scratch = Scratch::new();
    let status = scratch
        .script(&account(USER), "cat /proc/self/status")
        .await
        .stdout;
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert_eq!(field(&own, "Uid"), "0\t0\t0\t0");
    assert_eq!(field(&status, "Uid"), "60001\t60001\t60001\t60001");
    assert_eq!(field(&status, "Gid"), "60001\t60001\t60001\t60001");
    assert_eq!(field(&status, "Groups"), "60001 60100");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(&status, set), "0000000000000000", "{set}");
    }
    for set in ["SigBlk", "SigIgn", "SigCgt"] {
        assert_eq!(field(&status, set), "0000000000000000", "{set}");
    }
    assert_eq!(field(&status, "NoNewPrivs"), "1");
}

#[tokio::test]
async fn root_inside_has_no_capabilities_either() {
    let scratch = Scratch::new();
    let root = launch::Account::by_uid(0).unwrap();
    let script = "cat /proc/self/status; mount -t tmpfs none /mnt && echo mounted; true";
    let text = scratch.script(&root, script).await.stdout;
    assert_eq!(field(&text, "Uid"), "0\t0\t0\t0");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(&text, set), "0000000000000000", "{set}");
    }
    assert!(!text.contains("mounted"), "{text}");
}

#[tokio::test]
async fn only_the_standard_descriptors_are_open() {
    let scratch = Scratch::new();
    let dir = work_dir(USER);
    let file = fs::File::create(dir.path().join("open")).unwrap();
    let leaked = dup_open_on_exec(&file);
    let listed = scratch
        .run(
            &host_view(&account(USER)),
            &account(USER),
            &["ls", "/proc/self/fd"],
        )
        .await
        .unwrap();
    // 3 is ls's own, of the directory.
    assert_eq!(listed.stdout, "0\n1\n2\n3\n");
    drop(leaked);
}

#[tokio::test]
async fn a_command_leads_a_session_without_a_terminal() {
    let scratch = Scratch::new();
    // pid, name, state, parent, group, session, terminal.
    let stat = scratch
        .script(&account(USER), "exec cat /proc/self/stat")
        .await
        .stdout;
    let fields: Vec<_> = stat.split(' ').collect();
    assert_eq!(fields[0], fields[4], "{stat}");
    assert_eq!(fields[0], fields[5], "{stat}");
    assert_eq!(fields[6], "0", "{stat}");
}

#[tokio::test]
async fn a_command_is_in_its_cgroup_from_the_start() {
    let scratch = Scratch::new();
    let text = scratch
        .script(&account(USER), "cat /proc/self/cgroup")
        .await
        .stdout;
    let slice = scratch.slice.cgroup().path().file_name().unwrap();
    let expected = format!("0::/{}/box/exec-0", slice.to_str().unwrap());
    assert!(text.lines().any(|line| line == expected), "{text}");
}

#[tokio::test]
async fn codes_and_signals_come_back() {
    let scratch = Scratch::new();
    let account = account(USER);
    for (script, status) in [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 7", ExitStatus::Code(7)),
        ("exit 255", ExitStatus::Code(255)),
        ("kill -TERM $$", ExitStatus::Signal(libc::SIGTERM)),
        ("kill -KILL $$", ExitStatus::Signal(libc::SIGKILL)),
        ("kill -40 $$", ExitStatus::Signal(40)),
    ] {
        assert_eq!(
            scratch.script(&account, script).await.status,
            status,
            "{script}"
        );
    }
}

#[tokio::test]
async fn a_closed_pipe_ends_a_command_as_usual() {
    let scratch = Scratch::new();
    // The daemon, a Rust program, ignores SIGPIPE; its commands must not.
    let result = scratch
        .script(&account(USER), "{ yes; echo $? >&2; } | head -1 >/dev/null")
        .await;
    assert_eq!(result.stdout, "141\n");
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let dir = work_dir(USER);
    let file = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = async |argv: &str| scratch.run(&view, &account, &[argv]).await.unwrap_err();

    let error = run("no-such-command").await;
    assert!(
        matches!(error, LaunchError::CommandNotFound { .. }),
        "{error:?}"
    );
    let error = run("/no/such/command").await;
    assert!(
        matches!(error, LaunchError::CommandNotFound { .. }),
        "{error:?}"
    );
    let error = run("").await;
    assert!(
        matches!(error, LaunchError::CommandNotFound { .. }),
        "{error:?}"
    );
    let plain = file("plain", "#!/bin/sh\n", 0o644);
    let error = run(&plain).await;
    assert_eq!(error.to_string(), format!("`{plain}` cannot be executed"));
    let error = run(dir.path().to_str().unwrap()).await;
    assert!(
        matches!(error, LaunchError::NotExecutable { .. }),
        "{error:?}"
    );
    let error = run(&file("lost", "#!/no/such/shell\n", 0o755)).await;
    assert!(
        matches!(error, LaunchError::InterpreterNotFound { .. }),
        "{error:?}"
    );

    // Nothing of them is left to hold a cgroup.
    assert!(!scratch.sandbox.populated().unwrap());
    let ok = scratch.run(&view, &account, &["true"]).await.unwrap();
    assert_eq!(ok.status, ExitStatus::Code(0));
}

#[tokio::test]
async fn the_directories_of_path_are_tried_in_turn() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let dir = work_dir(USER);
    fs::write(dir.path().join("true"), "").unwrap();
    let path = |dirs: &str| {
        let mut command = scratch.command(&account, &["true"]);
        command.env = vec![format!("PATH={}{dirs}", dir.path().display()).try_into_c()];
        command
    };
    // One that may not be executed is passed over.
    let found = output(&view, path(":/nowhere:/usr/bin")).await.unwrap();
    assert_eq!(found.status, ExitStatus::Code(0));
    let error = output(&view, path("")).await.unwrap_err();
    assert!(
        matches!(error, LaunchError::NotExecutable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_script_without_an_interpreter_line_is_the_shells() {
    let scratch = Scratch::new();
    let account = account(USER);
    let dir = work_dir(USER);
    let script = dir.path().join("script");
    fs::write(&script, "echo $0 $1 $#\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    let result = scratch
        .run(&host_view(&account), &account, &[script, "a b", "c"])
        .await
        .unwrap();
    assert_eq!(result.stdout, format!("{script} a b 2\n"));
}

#[tokio::test]
async fn the_working_directory_is_entered_as_the_user() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let in_dir = |dir: &str| {
        let mut command = scratch.command(&account, &["pwd"]);
        command.cwd = dir.to_owned().try_into_c();
        command
    };
    let mine = work_dir(USER);
    let path = mine.path().to_str().unwrap();
    let result = output(&view, in_dir(path)).await.unwrap();
    assert_eq!(result.stdout, format!("{path}\n"));

    let others = work_dir(OTHER);
    for dir in [others.path().to_str().unwrap(), "/no/such/dir"] {
        let error = output(&view, in_dir(dir)).await.unwrap_err();
        assert!(
            matches!(error, LaunchError::WorkingDirectory { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains(dir), "{error}");
    }
}

#[tokio::test]
async fn mask_and_limits_are_the_callers() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let script = ["sh", "-c", "umask; ulimit -Sn; ulimit -Sc"];
    let mut command = scratch.command(&account, &script);
    command.umask = 0o077;
    command.limits = Some(Limits::own().unwrap());
    let (soft, _) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let text = output(&view, command).await.unwrap().stdout;
    assert!(text.starts_with(&format!("0077\n{soft}\n")), "{text}");

    let usual = output(&view, scratch.command(&account, &script))
        .await
        .unwrap();
    assert!(usual.stdout.starts_with("0022\n1024\n"), "{}", usual.stdout);
}

#[tokio::test]
async fn the_environment_is_what_was_given() {
    let scratch = Scratch::new();
    let account = account(USER);
    let result = scratch
        .run(&host_view(&account), &account, &["/usr/bin/env"])
        .await
        .unwrap();
    assert_eq!(result.stdout, "PATH=/usr/bin:/bin\n");
}

#[tokio::test]
async fn a_daemon_that_forked_itself_away_dies_with_its_cgroup() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let exec = scratch.exec();
    let mut command = scratch.command(
        &account,
        &[
            "sh",
            "-c",
            "setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &'",
        ],
    );
    command.cgroup = exec.try_clone_dir().unwrap();
    let child = view.spawn(command).unwrap();
    assert_eq!(child.wait().await.unwrap(), ExitStatus::Code(0));
    assert!(exec.populated().unwrap());
    assert_eq!(exec.pids().unwrap().len(), 2);
    exec.kill().unwrap();
    exec.wait_empty().await.unwrap();
    assert!(!exec.populated().unwrap());
    let path = exec.path().to_owned();
    exec.remove_tree().await.unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn waiting_for_an_empty_cgroup_lasts_until_the_last_one_left() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let exec = scratch.exec();
    let mut command = scratch.command(&account, &["cat"]);
    let (stdin, writer) = nix::unistd::pipe().unwrap();
    // The child must not hold the writing end itself.
    command.stdin = stdin;
    command.cgroup = exec.try_clone_dir().unwrap();
    let child = view.spawn(command).unwrap();
    let empty = exec.wait_empty();
    tokio::pin!(empty);
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut empty).await;
    assert!(early.is_err());
    drop(writer);
    empty.await.unwrap();
    assert_eq!(child.wait().await.unwrap(), ExitStatus::Code(0));
}

#[tokio::test]
async fn a_tree_of_cgroups_is_removed_with_what_runs_in_it() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let child = view
        .spawn(scratch.command(&account, &["sleep", "1000"]))
        .unwrap();
    let path = scratch.sandbox.path().to_owned();
    let sandbox = scratch.slice.open("box").unwrap();
    assert_eq!(scratch.slice.leftovers().unwrap(), ["box"]);
    sandbox.remove_tree().await.unwrap();
    assert!(!path.exists());
    assert_eq!(
        child.wait().await.unwrap(),
        ExitStatus::Signal(libc::SIGKILL)
    );
    assert!(scratch.slice.leftovers().unwrap().is_empty());
}

#[tokio::test]
async fn a_dropped_child_is_killed() {
    let scratch = Scratch::new();
    let account = account(USER);
    let child = host_view(&account)
        .spawn(scratch.command(&account, &["sleep", "1000"]))
        .unwrap();
    let pid = child.pid;
    assert!(running(&child));
    drop(child);
    assert!(wait_until(|| sys::process_stat(pid).is_err()));
}

#[tokio::test]
async fn a_signal_reaches_the_group_and_no_other() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let exec = scratch.exec();
    let start = || {
        let mut command = scratch.command(&account, &["sleep", "1000"]);
        command.cgroup = exec.try_clone_dir().unwrap();
        view.spawn(command).unwrap()
    };
    let (one, two, three) = (start(), start(), start());
    one.signal_group(libc::SIGUSR1).unwrap();
    launch::signal_group(&exec, two.pid.cast_signed(), libc::SIGUSR2).unwrap();
    assert_eq!(one.wait().await.unwrap(), ExitStatus::Signal(libc::SIGUSR1));
    assert_eq!(two.wait().await.unwrap(), ExitStatus::Signal(libc::SIGUSR2));
    assert!(running(&three));
    let late = one.signal_group(libc::SIGTERM).unwrap_err();
    assert_eq!(late.raw_os_error(), Some(libc::ESRCH));
}

#[tokio::test]
async fn a_pseudo_terminal_is_the_controlling_one() {
    let scratch = Scratch::new();
    let account = account(USER);
    let view = host_view(&account);
    let size = Size {
        rows: 33,
        columns: 99,
    };
    let pty = open_pty(&account, size).unwrap();
    let script =
        "stty size; stat -c %u.%a $(tty); : </dev/tty && echo controlling; exec sleep 1000";
    let mut command = scratch.command(&account, &["sh", "-c", script]);
    command.stdin = pty.slave.try_clone().unwrap();
    command.stdout = pty.slave.try_clone().unwrap();
    command.stderr = pty.slave;
    command.controlling_terminal = true;
    let child = view.spawn(command).unwrap();
    let mut master = fs::File::from(pty.master);
    let mut text = String::new();
    while !text.contains("controlling") {
        let mut bytes = [0; 512];
        let length = master.read(&mut bytes).unwrap();
        text += &String::from_utf8_lossy(&bytes[..length]);
    }
    assert!(text.starts_with("33 99\r\n60001.600\r\n"), "{text}");
    assert_eq!(
        launch::foreground_group(&master).unwrap(),
        Some(child.pid.cast_signed())
    );
    master.write_all(&[3]).unwrap();
    assert_eq!(
        child.wait().await.unwrap(),
        ExitStatus::Signal(libc::SIGINT)
    );
}

#[tokio::test]
async fn many_commands_start_at_once() {
    let scratch = std::sync::Arc::new(Scratch::new());
    let account = account(USER);
    let view = std::sync::Arc::new(host_view(&account));
    let mut tasks = Vec::new();
    for number in 0..40_u8 {
        let (scratch, view, account) = (scratch.clone(), view.clone(), account.clone());
        tasks.push(tokio::task::spawn_blocking(move || {
            let script = format!("exit {number}");
            view.spawn(scratch.command(&account, &["sh", "-c", &script]))
                .unwrap()
        }));
    }
    for (number, task) in (0..).zip(tasks) {
        let child = task.await.unwrap();
        assert_eq!(child.wait().await.unwrap(), ExitStatus::Code(number));
    }
}

trait IntoCString {
    fn try_into_c(self) -> std::ffi::CString;
}

impl IntoCString for String {
    fn try_into_c(self) -> std::ffi::CString {
        std::ffi::CString::new(self).unwrap()
    }
}

/// A descriptor that an exec would not close.
fn dup_open_on_exec(file: &fs::File) -> std::os::fd::OwnedFd {
    nix::unistd::dup(file).unwrap()
}
