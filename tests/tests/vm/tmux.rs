//! A terminal with somebody at it: a pane of tmux, in which a shell of the
//! developer's runs outside of any sandbox.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::host::{self, DEV, text};

/// Its shell's prompt.
const PROMPT: &str = "host$";

/// How long to wait for what must appear.
const PATIENCE: Duration = Duration::from_mins(1);

/// A pane of 30 rows and 100 columns; gone with this.
pub(crate) struct Tmux {
    name: String,
    pub(crate) directory: PathBuf,
}

impl Tmux {
    /// Starts one, in a new directory of the developer's.
    pub(crate) async fn start(name: &str) -> Self {
        let directory = PathBuf::from(format!("/home/dev/terminal-{name}"));
        let path = directory.to_str().unwrap();
        host::output(DEV, &["mkdir", "-p", path]);
        let tmux = Self {
            name: format!("test-{name}"),
            directory: directory.clone(),
        };
        let shell = format!("cd {path} && PS1='{PROMPT} ' exec bash --norc --noprofile -i");
        tmux.call(&["new-session", "-d", "-x", "100", "-y", "30", &shell]);
        tmux.call(&["set", "-g", "status", "off"]);
        tmux.call(&["resize-window", "-x", "100", "-y", "30"]);
        tmux.wait_for(PROMPT).await;
        tmux
    }

    /// A command of tmux's; what it says.
    pub(crate) fn call(&self, words: &[&str]) -> String {
        let argv = [&["tmux", "-f", "/dev/null", "-L", &self.name], words].concat();
        host::output(DEV, &argv)
    }

    pub(crate) fn type_in(&self, keys: &str) {
        self.call(&["send-keys", "-l", keys]);
    }

    /// Keys by tmux's names: `C-c`, `Enter`, `Escape`.
    pub(crate) fn key(&self, key: &str) {
        self.call(&["send-keys", key]);
    }

    pub(crate) fn line(&self, line: &str) {
        self.type_in(line);
        self.key("Enter");
    }

    pub(crate) fn screen(&self) -> String {
        self.call(&["capture-pane", "-p"])
    }

    pub(crate) async fn wait_for(&self, what: &str) {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if screen.contains(what) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "no `{what}` on\n{screen}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs a line in whatever shell is there, to its end; what the screen shows.
    pub(crate) async fn run(&self, line: &str) -> String {
        self.clear();
        // What is typed does not have the text that is waited for.
        self.line(&format!("{line}; echo done-$((6*7))"));
        self.wait_for("done-42").await;
        self.screen()
    }

    pub(crate) fn clear(&self) {
        self.call(&["send-keys", "-R"]);
        self.call(&["clear-history"]);
    }

    /// Starts a shell in a sandbox, and waits for it.
    pub(crate) async fn enter(&self, options: &str) {
        self.clear();
        self.line(&format!(
            "sandbox run {options} -e PS1='in''side$ ' -- bash --norc --noprofile -i"
        ));
        self.wait_for("inside$").await;
    }

    /// The process id of a client whose command line has this at its end.
    pub(crate) fn client(&self, ending: &str) -> u32 {
        let mut found = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
                let words = fs::read(entry.path().join("cmdline")).ok()?;
                let words = text(&words).replace('\0', " ");
                let is_it = words.starts_with("sandbox ") && words.trim_end().ends_with(ending);
                is_it.then_some(pid)
            });
        found
            .next()
            .unwrap_or_else(|| panic!("no client of `{ending}`: {}", self.screen()))
    }

    /// How the terminal is set, as the pane's own shell sees it.
    pub(crate) async fn modes(&self) -> String {
        let seen = self.run("stty -g").await;
        let modes = seen.lines().find(|line| line.matches(':').count() > 10);
        modes.unwrap_or_else(|| panic!("{seen}")).to_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        host::run(DEV, &["tmux", "-L", &self.name, "kill-server"]);
        let _ = fs::remove_dir_all(&self.directory);
    }
}
