//! An error with what caused it, as people read it: in one line, the remedy
//! behind it.

use std::{error::Error, fmt, iter};

/// What separates an error's message from the hint that it carries.
const HINT: &str = "\n\nhint: ";

/// An error and its causes. An error's own text says its step alone; what came
/// before it is its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The steps, the outermost first.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Chain {
    /// The whole chain; of several hints the outermost.
    pub fn of(error: &dyn Error) -> Self {
        let mut messages = Vec::new();
        let mut hint = None;
        for error in iter::successors(Some(error), |error| (*error).source()) {
            let text = error.to_string();
            match text.split_once(HINT) {
                Some((message, remedy)) => {
                    messages.push(message.to_owned());
                    hint.get_or_insert_with(|| remedy.to_owned());
                }
                None => messages.push(text),
            }
        }
        Self {
            message: messages.join(": "),
            hint,
        }
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "{HINT}{hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open `x`\n\nhint: make it")]
    struct Outer(#[source] io::Error);

    #[test]
    fn causes_follow_in_one_line_and_the_hint_comes_last() {
        let chain = Chain::of(&Outer(io::Error::other("it is not there")));
        assert_eq!(
            chain.to_string(),
            "cannot open `x`: it is not there\n\nhint: make it"
        );
        let alone = Chain::of(&io::Error::other("no"));
        assert_eq!((alone.message.as_str(), alone.hint), ("no", None));
    }
}
