//! The client, as the developer types it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::ExitStatusExt as _,
    process::{Output, Stdio},
};

use sandbox_daemon::proto::GetInfoRequest;
use serde_json::Value;

use crate::{
    client::{self, attacker},
    ground::{self, GROUND, POLICY, WORK},
    host::{self, DEV, ROOT, alive, run, run_with, text, wait_until},
};

crate::trials![
    run_ends_with_the_status_of_its_command,
    run_passes_signals_on,
    every_verb_has_its_status,
    run_says_why_it_failed,
    run_lists_what_was_refused,
    run_lists_ten_and_counts_the_rest,
    run_tells_programs_in_json,
    run_hands_its_own_descriptors_on,
    run_writes_to_files_that_only_the_caller_reaches,
    run_asks_for_no_more_than_it_was_told,
    run_that_is_killed_takes_its_command_along,
    run_gives_a_terminal_where_there_is_one,
    events_are_listed_for_people_and_programs,
    ps_lists_what_kill_ends,
    enroll_places_a_running_process,
    policies_are_checked_listed_and_shown,
    doctor_finds_this_host_fit,
    version_names_client_and_daemon,
];

/// `sandbox` with arguments, in the workspace.
fn sandbox(arguments: &[&str]) -> Output {
    let argv = [&["sandbox"], arguments].concat();
    run_with(DEV, WORK, &argv, "")
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

async fn run_ends_with_the_status_of_its_command() {
    ground::make(DEV);
    for (script, expected) in [
        ("true", 0),
        ("exit 42", 42),
        ("exit 125", 125),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
        // The first one for programs.
        ("kill -34 $$", 128 + 34),
    ] {
        let output = sandbox(&["run", "--", "sh", "-c", script]);
        assert_eq!(code(&output), expected, "{script}: {output:?}");
        assert_eq!(text(&output.stderr), "", "{script}");
    }
    fs::write(format!("{GROUND}/ground.toml"), POLICY).unwrap();
    for (command, expected) in [
        ("no-such-command", 127),
        ("/no/such/command", 127),
        ("./file", 126),
        ("/etc", 126),
        // That it is there is no secret.
        ("/srv/ground/secret/program", 126),
    ] {
        let output = sandbox(&["run", "-p", "../ground.toml", "--", command]);
        assert_eq!(code(&output), expected, "{output:?}");
        assert!(text(&output.stderr).contains(command), "{output:?}");
    }
    let outside = run(DEV, &["/srv/ground/secret/program"]);
    assert_eq!(code(&outside), 0, "{outside:?}");
}

async fn run_passes_signals_on() {
    ground::make(DEV);
    let script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = host::command(DEV, &["sandbox", "run", "--", "sh", "-c", script])
        .current_dir(WORK)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "got");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

async fn every_verb_has_its_status() {
    ground::make(DEV);
    let wrong = "version = 1\n[files]\nreed = [\"/\"]\n";
    fs::write(format!("{GROUND}/wrong.toml"), wrong).unwrap();
    let mut roots = host::command(ROOT, &["sleep", "600"]).spawn().unwrap();
    let foreign = roots.id().to_string();
    let steps: [&[&str]; 2] = [&["keep-socket"], &["stay"]];
    let mut holder = host::attacker(DEV, &steps).spawn().unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(holder.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ok\n");
    let holding = holder.id().to_string();
    let another = client::create(&mut client::root().await, ground::spec(ROOT)).await;
    for (arguments, status, says) in [
        (["ps"].as_slice(), 0, ""),
        (&["version"], 0, ""),
        (&["policy", "list"], 0, ""),
        (&["policy", "check", "../wrong.toml"], 1, "wrong.toml:3:1"),
        (&["policy", "check", "../none.toml"], 1, "../none.toml"),
        (
            &["enroll", "-p", "../wrong.toml", &holding],
            1,
            "wrong.toml:3:1",
        ),
        (&["enroll", &holding], 1, "socket"),
        (&["ps", "--bogus"], 2, "--bogus"),
        (&["kill"], 2, "EXEC|SANDBOX"),
        (&["enroll", "none"], 2, "none"),
        (&["policy", "explain"], 2, "explain"),
        (&["policy", "show", "./x"], 2, "./x"),
        (&["--host", "tcp://x", "ps"], 2, "tcp://x"),
        (&["kill", "none"], 3, "there is no exec or sandbox `none`"),
        // Somebody else's does not exist.
        (&["kill", &another.id], 3, "there is no exec or sandbox"),
        (&["enroll", "4000000"], 3, "there is no process 4000000"),
        (&["enroll", "-p", "none", &holding], 3, "no policy `none`"),
        (
            &["policy", "show", "none"],
            3,
            "there is no policy named `none`",
        ),
        (&["enroll", &foreign], 4, "does not run as user 1000"),
    ] {
        let output = sandbox(arguments);
        assert_eq!(code(&output), status, "{arguments:?}: {output:?}");
        let error = text(&output.stderr);
        assert!(error.contains(says), "{arguments:?}: {error}");
        let silent = if status == 0 {
            &output.stderr
        } else {
            &output.stdout
        };
        assert_eq!(text(silent), "", "{arguments:?}");
    }
    assert!(!host::cgroup(holder.id()).contains("sandboxd.slice"));
    for child in [&mut roots, &mut holder] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Root's are everybody's to end.
    let devs = client::create(&mut client::root().await, ground::spec(DEV)).await;
    for id in [another.id, devs.id] {
        let output = run(ROOT, &["sandbox", "kill", &id]);
        assert_eq!(code(&output), 0, "{output:?}");
        let output = run(ROOT, &["sandbox", "kill", &id]);
        assert_eq!(code(&output), 3, "{output:?}");
    }
}

async fn run_says_why_it_failed() {
    ground::make(DEV);
    let before = host::sandboxes();
    fs::write(
        format!("{GROUND}/wrong.toml"),
        "version = 1\nname = \"x\"\n[files]\nreed = [\"/\"]\n",
    )
    .unwrap();
    for (arguments, says) in [
        (
            ["run", "--policy", "nothing", "--", "true"].as_slice(),
            "nothing",
        ),
        (
            &["run", "--policy", "../wrong.toml", "--", "true"],
            "wrong.toml:4:1",
        ),
        (
            &["run", "--policy", "../missing.toml", "--", "true"],
            "missing.toml",
        ),
        (&["run", "-w", "../nothing", "--", "true"], "../nothing"),
        (&["run", "--no-such-option"], "--no-such-option"),
        (&["run"], "COMMAND"),
        (
            &["--host", "unix:///run/nothing.sock", "run", "--", "true"],
            "hint: start it with `systemctl start sandboxd`",
        ),
    ] {
        let output = sandbox(arguments);
        assert_eq!(code(&output), 125, "{arguments:?}: {output:?}");
        assert!(
            text(&output.stderr).contains(says),
            "{arguments:?}: {output:?}"
        );
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
    let output = sandbox(&["run", "--policy", "../wrong.toml", "--", "true"]);
    let error = text(&output.stderr);
    assert!(error.contains("read") && error.contains('^'), "{error}");
    assert_eq!(host::sandboxes(), before);
}

async fn run_lists_what_was_refused() {
    ground::make(DEV);
    let script = "cat ~/.ssh/id_ed25519; echo x >>~/.bashrc; exit 3";
    let output = sandbox(&["run", "--denials", "always", "--", "sh", "-c", script]);
    assert_eq!(code(&output), 3);
    let error = text(&output.stderr);
    let read = "sandbox: denied read /home/dev/.ssh/id_ed25519 (rule credentials) by cat[";
    let write = "sandbox: denied write /home/dev/.bashrc (rule startup) by dash[";
    assert!(error.contains("No such file or directory"), "{error}");
    assert_eq!(error.matches(read).count(), 1, "{error}");
    assert_eq!(error.matches(write).count(), 1, "{error}");
    // `auto` speaks to terminals only.
    for when in ["auto", "never"] {
        let output = sandbox(&["run", "--denials", when, "--", "sh", "-c", script]);
        assert!(!text(&output.stderr).contains("sandbox: "), "{output:?}");
    }
}

async fn run_lists_ten_and_counts_the_rest() {
    ground::make(DEV);
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do : >/srv/ground/plain/$i; done";
    let arguments = ["run", "--denials", "always", "--", "bash", "-c", script];
    let output = sandbox(&arguments);
    let error = text(&output.stderr);
    assert_eq!(
        error.matches("sandbox: denied write").count(),
        10,
        "{error}"
    );
    let rest = "sandbox: 3 more; see `sandbox events --sandbox ";
    assert!(error.contains(rest), "{error}");
}

async fn run_tells_programs_in_json() {
    ground::make(DEV);
    let script = "sandbox run --json 3 -- cat ~/.netrc /etc/hostname 3>json; cat json";
    let output = run_with(DEV, WORK, &["sh", "-c", script], "");
    let out = text(&output.stdout);
    let lines: Vec<Value> = out
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str()).collect();
    let expected = [Some("started"), Some("denial"), Some("exited")];
    assert_eq!(types, expected, "{output:?}");
    assert_eq!(lines[0]["policy_name"], "default");
    assert_eq!(lines[1]["path"], "/home/dev/.netrc");
    assert_eq!(lines[1]["rule"], "credentials");
    assert_eq!(lines[1]["exe"], "/usr/bin/cat");
    assert_eq!(lines[1]["uid"], 1000);
    assert_eq!(lines[1]["count"], 1);
    assert_eq!(lines[2]["code"], 1);
    assert_eq!(lines[2]["denied"], 1);
}

async fn run_hands_its_own_descriptors_on() {
    ground::make(DEV);
    let script = "sandbox run -- sh -c 'readlink /proc/self/fd/0; cat; readlink /proc/self/fd/2' \
                  <file 2>errors; cat errors";
    let output = run_with(DEV, WORK, &["sh", "-c", script], "");
    let expected = format!("{WORK}/file\ncontent of work/file\n{WORK}/errors\n");
    assert_eq!(text(&output.stdout), expected, "{output:?}");
    // A reader that goes away is the command's business.
    let script = "sandbox run -- yes | head -n 1";
    let output = run_with(DEV, WORK, &["sh", "-c", script], "");
    assert_eq!(text(&output.stdout), "y\n", "{output:?}");
    let output = run_with(DEV, WORK, &["sandbox", "run", "--", "cat"], "through\n");
    assert_eq!(text(&output.stdout), "through\n", "{output:?}");
}

async fn run_writes_to_files_that_only_the_caller_reaches() {
    ground::make(DEV);
    for (policy, file) in [
        ("default", "/tmp/output-of-the-caller"),
        ("strict", "/tmp/output-of-the-caller"),
        ("strict", "/home/dev/output-of-the-caller"),
    ] {
        let script = format!(
            "sandbox run --json 3 --policy {policy} -- \
             sh -c 'cat file; stat -L -c %F /proc/self/fd/1; ls -l file >/dev/null' \
             >{file} 2>&1 3>json; status=$?; cat {file}; rm {file}; \
             grep denial json; exit $status"
        );
        let output = run_with(DEV, WORK, &["sh", "-c", &script], "");
        let expected = "content of work/file\nregular file\n";
        assert_eq!(
            text(&output.stdout),
            expected,
            "{policy}, {file}: {output:?}"
        );
        assert_eq!(code(&output), 0, "{output:?}");
    }
}

async fn run_asks_for_no_more_than_it_was_told() {
    ground::make(DEV);
    fs::write(format!("{GROUND}/ground.toml"), POLICY).unwrap();
    let step = ["append", "/srv/ground/plain/file"];
    let attacker = attacker(&[&step]);
    let with = |options: &[&str]| {
        let policy = ["run", "--policy", "../ground.toml"];
        let output = sandbox(&[&policy, options, &["--"], &attacker].concat());
        text(&output.stdout).trim_end().to_owned()
    };
    assert_eq!(with(&[]), "EACCES");
    assert_eq!(with(&["--rw", "/srv/ground/plain"]), "ok");
    assert_eq!(with(&["--rw", "../plain"]), "ok");
    let output = sandbox(&["run", "-e", "GIVEN=1", "--", "env"]);
    assert!(text(&output.stdout).contains("GIVEN=1\n"), "{output:?}");
    let mut command = host::command(DEV, &["sandbox", "run", "-v", "--", "env"]);
    let output = command
        .env("AWS_SECRET_ACCESS_KEY", "x")
        .current_dir(WORK)
        .output()
        .unwrap();
    assert!(!text(&output.stdout).contains("AWS_"), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains("withheld AWS_SECRET_ACCESS_KEY"), "{error}");
}

async fn run_that_is_killed_takes_its_command_along() {
    ground::make(DEV);
    let before = host::sandboxes();
    let steps: [&[&str]; 3] = [&["escape"], &["pid"], &["stay"]];
    let argv = [&["sandbox", "run", "--"], attacker(&steps).as_slice()].concat();
    let mut child = host::command(DEV, &argv)
        .current_dir(WORK)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut pids = Vec::new();
    for _ in 0..2 {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        pids.push(
            line.trim_end()
                .strip_prefix("ok ")
                .unwrap()
                .parse()
                .unwrap(),
        );
    }
    assert!(pids.iter().all(|&pid| alive(pid)), "{pids:?}");
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until("everything is dead", || !pids.iter().any(|&pid| alive(pid))).await;
    wait_until("its cgroup is gone", || host::sandboxes() == before).await;
}

async fn run_gives_a_terminal_where_there_is_one() {
    ground::make(DEV);
    let script = "sandbox run -- sh -c 'tty; stty size; cat ~/.netrc; exit 7'; echo status=$?; \
                  sleep 600";
    let tmux = |arguments: &[&str]| {
        let argv = [
            &["tmux", "-L", "sandbox-test", "-f", "/dev/null"],
            arguments,
        ]
        .concat();
        run_with(DEV, WORK, &argv, "")
    };
    let started = tmux(&["new-session", "-d", "-x", "91", "-y", "31", script]);
    assert!(started.status.success(), "{started:?}");
    let mut screen = String::new();
    wait_until("it ended", || {
        screen = text(&tmux(&["capture-pane", "-p", "-J"]).stdout);
        screen.contains("status=")
    })
    .await;
    tmux(&["kill-server"]);
    assert!(screen.contains("/dev/pts/"), "{screen}");
    assert!(screen.contains("31 91"), "{screen}");
    assert!(screen.contains("status=7"), "{screen}");
    let denied = "sandbox: denied read /home/dev/.netrc (rule credentials) by cat[";
    assert!(screen.contains(denied), "{screen}");
}

async fn events_are_listed_for_people_and_programs() {
    ground::make(DEV);
    let script = "echo $SANDBOX_ID; cat ~/.netrc";
    let output = sandbox(&["run", "--", "sh", "-c", script]);
    let id = text(&output.stdout).trim_end().to_owned();
    assert!(!id.is_empty(), "{output:?}");
    let output = sandbox(&["events", "--sandbox", &id]);
    let line = text(&output.stdout);
    let says = "denied read /home/dev/.netrc (rule credentials) by cat[";
    assert!(line.contains(says) && line.contains(&id), "{output:?}");
    assert_eq!(line.lines().count(), 1, "{line}");
    let output = sandbox(&["events", "--sandbox", &id, "-o", "json"]);
    let json = text(&output.stdout);
    let events: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|event: &Value| event["type"] == "denial")
        .collect();
    assert_eq!(events.len(), 1, "{json}");
    assert_eq!(events[0]["sandbox_id"], id.as_str());
    assert_eq!(events[0]["verdict"], "denied");
}

async fn ps_lists_what_kill_ends() {
    ground::make(DEV);
    let argv = [
        &["sandbox", "run", "--"],
        attacker(&[&["pid"], &["stay"]]).as_slice(),
    ]
    .concat();
    let mut child = host::command(DEV, &argv)
        .current_dir(WORK)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let listed = text(&sandbox(&["ps"]).stdout);
    let head: Vec<_> = listed.lines().next().unwrap().split_whitespace().collect();
    let columns = [
        "SANDBOX",
        "NAME",
        "UID",
        "POLICY",
        "MODE",
        "WORKSPACE",
        "EXPIRES",
        "EXEC",
        "PID",
        "STATUS",
        "COMMAND",
    ];
    assert_eq!(head, columns, "{listed}");
    let row = listed.lines().find(|row| row.contains(WORK)).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    let of_sandbox = ["-", "1000", "default", "direct", WORK, "-"];
    assert_eq!(cells[1..7], of_sandbox, "{listed}");
    assert_eq!(Some(cells[8]), line.trim_end().strip_prefix("ok "));
    assert_eq!(cells[9], "running", "{listed}");
    assert!(cells[10..].contains(&"--attack"), "{listed}");
    let json = text(&sandbox(&["ps", "-o", "json"]).stdout);
    let json: Value = serde_json::from_str(&json).unwrap();
    let ours = json
        .as_array()
        .unwrap_or_else(|| panic!("{json:#}"))
        .iter()
        .find(|it| it["workspace"] == WORK)
        .unwrap_or_else(|| panic!("{json:#}"))
        .clone();
    assert_eq!(ours["id"], cells[0], "{json:#}");
    assert_eq!(ours["uid"], 1000, "{json:#}");
    assert_eq!(ours["execs"][0]["pid"].to_string(), cells[8], "{json:#}");
    let exec = ours["execs"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(exec, cells[7], "{json:#}");
    let killed = sandbox(&["kill", &exec]);
    assert!(killed.status.success(), "{killed:?}");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    let again = sandbox(&["kill", &exec]);
    assert_eq!(code(&again), 3, "{again:?}");
}

async fn enroll_places_a_running_process() {
    ground::make(DEV);
    let steps: [&[&str]; 3] = [&["wait"], &["read", "/home/dev/.netrc"], &["stay"]];
    let mut child = host::attacker(DEV, &steps).spawn().unwrap();
    let pid = child.id().to_string();
    let output = sandbox(&["enroll", "--stay", &pid]);
    assert!(output.status.success(), "{output:?}");
    let cgroup = host::cgroup(child.id());
    assert!(cgroup.starts_with("sandboxd.slice/"), "{cgroup}");
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"x").unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    for _ in 0..2 {
        std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
    }
    assert_eq!(said, "ok\nENOENT\n");
    let id = cgroup.split('/').nth(1).unwrap();
    let sandboxes = text(&sandbox(&["ps"]).stdout);
    let row = sandboxes.lines().find(|row| row.contains(&pid)).unwrap();
    let id_shown = row.split_whitespace().next().unwrap();
    assert!(id.contains(id_shown), "{id}: {row}");
    assert!(sandbox(&["kill", id_shown]).status.success());
    child.wait().unwrap();
}

async fn policies_are_checked_listed_and_shown() {
    ground::make(DEV);
    let at = |name: &str| format!("{GROUND}/{name}");
    fs::write(at("good.toml"), POLICY).unwrap();
    fs::write(at("wrong.toml"), POLICY.replace("mode =", "mood =")).unwrap();
    let good = sandbox(&["policy", "check", "../good.toml"]);
    assert_eq!(code(&good), 0, "{good:?}");
    let wrong = sandbox(&["policy", "check", "../wrong.toml"]);
    assert_eq!(code(&wrong), 1, "{wrong:?}");
    let error = text(&wrong.stderr);
    for part in ["../wrong.toml:", "mood", "mode", "^"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let list = text(&sandbox(&["policy", "list"]).stdout);
    assert!(
        list.contains("default") && list.contains("strict"),
        "{list}"
    );
    for name in ["default", "strict"] {
        let shown = text(&sandbox(&["policy", "show", name]).stdout);
        let path = format!("/usr/lib/sandboxd/policies/{name}.toml");
        assert_eq!(shown, fs::read_to_string(&path).unwrap());
        let checked = sandbox(&["policy", "check", &path]);
        assert_eq!(code(&checked), 0, "{checked:?}");
    }
}

async fn doctor_finds_this_host_fit() {
    let output = run(ROOT, &["sandbox", "doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let said = text(&output.stdout);
    println!("{said}");
    let request = GetInfoRequest {};
    let info = client::root().await.get_info(request).await;
    let hooks = info.unwrap().into_inner().hooks;
    let (loaded, others): (Vec<_>, Vec<_>) = hooks.iter().partition(|hook| hook.loaded);
    // Of the last kernel there is, it would be all.
    assert!(!others.is_empty(), "{hooks:?}");
    assert!(
        others.iter().all(|hook| hook.class == "optional"),
        "{hooks:?}"
    );
    let names: Vec<_> = others.iter().map(|hook| hook.name.as_str()).collect();
    let expected = format!("{}; without optional {}", loaded.len(), names.join(", "));
    assert!(said.contains(&expected), "{expected}: {said}");
    let output = run(ROOT, &["sandbox", "doctor", "-o", "json"]);
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(checks.len() > 8, "{checks:#?}");
    for check in checks {
        assert_eq!(check["state"], "met", "{check:#}");
        assert_eq!(check["remedy"], Value::Null, "{check:#}");
    }
    // Who is not root cannot try the programs, and is told so.
    let output = sandbox(&["doctor"]);
    assert_eq!(code(&output), 1, "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("not checked: needs root"), "{said}");
    assert!(said.contains("hint: run `sudo sandbox doctor`"), "{said}");
    assert!(said.contains(" 0 missing, 1 not checked"), "{said}");
}

async fn version_names_client_and_daemon() {
    let version = env!("CARGO_PKG_VERSION");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let output = sandbox(&["version"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let expected = format!("client  {version}\ndaemon  {version}\nkernel  {kernel}");
    assert_eq!(text(&output.stdout), expected);
    let output = sandbox(&["version", "-o", "json"]);
    let versions: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(versions["daemon"], version, "{versions}");
    assert_eq!(versions["kernel"], kernel.trim_end(), "{versions}");
}
