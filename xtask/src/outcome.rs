//! What tests reported, read from the lines that Rust's test harness prints.

use std::{
    fmt,
    io::{self, Write},
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) skipped: u32,
}

impl Tally {
    /// Of a check that is not made of tests.
    pub(crate) fn of(passed: bool) -> Self {
        Self {
            passed: u32::from(passed),
            failed: u32::from(!passed),
            skipped: 0,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// Adds up the lines of one or more test programs.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    finished: Tally,
    /// Of the program that still runs: its own sum replaces it.
    running: Tally,
    failures: Vec<String>,
}

impl Outcome {
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(sum) = summary(line) {
            self.finished += sum;
            self.running = Tally::default();
        } else if let Some((name, verdict)) = verdict(line) {
            match verdict {
                "ok" => self.running.passed += 1,
                "ignored" => self.running.skipped += 1,
                _ => {
                    self.running.failed += 1;
                    self.failures.push(name.to_owned());
                }
            }
        }
    }

    /// The sum, once the programs have ended. Where they did not end well and
    /// no test says why, that is one more failure: a crash or a failed build.
    pub(crate) fn tally(&self, ended_well: bool) -> Tally {
        let mut tally = self.finished;
        let cut_short = self.running != Tally::default();
        tally += self.running;
        if cut_short || (!ended_well && tally.failed == 0) {
            tally.failed += 1;
        }
        tally
    }

    /// The names of the tests that failed.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }
}

/// A sink for a test program's standard output: prints each line after a
/// label, and adds it up.
#[derive(Clone)]
pub(crate) struct Listener {
    label: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    rest: Vec<u8>,
    outcome: Outcome,
}

impl Listener {
    pub(crate) fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            state: Arc::default(),
        }
    }

    /// What was heard; an unfinished last line included.
    pub(crate) fn finish(&self) -> Outcome {
        let mut state = self.state();
        if !state.rest.is_empty() {
            self.end_line(&mut state);
        }
        std::mem::take(&mut state.outcome)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_line(&self, state: &mut State) {
        let line = std::mem::take(&mut state.rest);
        let line = String::from_utf8_lossy(&line);
        println!("{}{line}", self.label);
        state.outcome.line(&line);
    }
}

impl Write for Listener {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (line, ended) = match part.strip_suffix(b"\n") {
                Some(line) => (line, true),
                None => (part, false),
            };
            state.rest.extend_from_slice(line);
            if ended {
                self.end_line(&mut state);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out`
fn summary(line: &str) -> Option<Tally> {
    let counts = line.trim().strip_prefix("test result: ")?;
    let count = |noun: &str| {
        counts
            .split([';', '.'])
            .find_map(|part| part.trim().strip_suffix(noun)?.trim().parse().ok())
    };
    Some(Tally {
        passed: count(" passed")?,
        failed: count(" failed")?,
        skipped: count(" ignored")?,
    })
}

/// `test a_name ... ok`, with the padding that some harnesses add.
fn verdict(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.trim().strip_prefix("test ")?.rsplit_once(" ... ")?;
    let word = verdict.split([',', ' ']).next()?;
    ["ok", "ignored", "FAILED"]
        .contains(&word)
        .then(|| (name.trim(), word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| outcome.line(line));
        outcome
    }

    #[test]
    fn the_sums_of_all_programs_are_added() {
        let outcome = outcome(
            "running 2 tests\n\
             test walk::a ... ok\n\
             test walk::b ... ignored, needs root\n\
             test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             test c     ... FAILED\n\
             test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 1.5s\n",
        );
        let tally = outcome.tally(false);
        assert_eq!(tally.to_string(), "5 passed, 1 failed, 1 skipped");
        assert_eq!(outcome.failures(), ["c"]);
    }

    #[test]
    fn a_program_that_is_cut_short_is_a_failure() {
        let outcome = outcome("test a ... ok\ntest b ... ok\n");
        assert_eq!(outcome.tally(false).to_string(), "2 passed, 1 failed");
        assert_eq!(outcome.tally(true).to_string(), "2 passed, 1 failed");
    }

    #[test]
    fn a_failed_build_is_a_failure() {
        assert_eq!(outcome("").tally(false), Tally::of(false));
        assert_eq!(outcome("").tally(true), Tally::default());
    }

    #[test]
    fn lines_arrive_in_pieces() {
        let mut listener = Listener::new("");
        listener.write_all(b"test result: ok. 2 pas").unwrap();
        listener
            .write_all(b"sed; 0 failed; 0 ignored; 0 measured\ntest x")
            .unwrap();
        assert_eq!(listener.finish().tally(true).passed, 2);
    }
}
