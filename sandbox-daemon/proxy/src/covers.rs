//! Which requests a credential is for: by method, and by path as every server
//! reads it.

use percent_encoding::percent_decode_str;

use crate::credential::Credential;

/// A path of which servers agree what it means: its segments, decoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments(Vec<Vec<u8>>);

/// The longest path that events tell.
const LONGEST: usize = 512;

impl Segments {
    /// Reads a path; none: what it means depends on who reads it.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let segments: Vec<Vec<u8>> = path
            .strip_prefix('/')?
            .split('/')
            .map(|segment| percent_decode_str(segment).collect())
            .collect();
        let last = segments.len() - 1;
        let plain = |(at, segment): (usize, &Vec<u8>)| {
            // Some read `a%2f..%2fb` as a path of its own, some `a;b` as `a`; there may be
            // nothing left of it.
            let mut parts = segment.split(|byte| b"/\\".contains(byte));
            let unclear = parts.any(|it| {
                let name = it.split(|byte| *byte == b';').next().unwrap_or_default();
                matches!(name, b"." | b"..") || name.is_empty() && !segment.is_empty()
            });
            let control = segment.iter().any(u8::is_ascii_control);
            let empty = segment.is_empty() && at != last;
            !(unclear || control || empty || segment.contains(&b'%'))
        };
        segments
            .iter()
            .enumerate()
            .all(plain)
            .then_some(Self(segments))
    }

    /// Whether a pattern of `paths` is about it.
    #[must_use]
    pub fn matches(&self, pattern: &str) -> bool {
        let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
        let mut parts: Vec<&str> = pattern.split('/').collect();
        let below = parts.last() == Some(&"**");
        if below {
            parts.pop();
        }
        let long_enough = if below {
            self.0.len() > parts.len()
        } else {
            self.0.len() == parts.len()
        };
        let mut pairs = parts.iter().zip(&self.0);
        long_enough && pairs.all(|(part, segment)| covers(part, segment))
    }
}

/// Many servers read `a%2fb` as two segments: `*` is never more than one of them.
fn covers(part: &str, segment: &[u8]) -> bool {
    let part = part.replace("%2F", "%2f");
    let names = segment.split(|byte| *byte == b'/');
    let same = |(part, name): (&str, &[u8])| match part {
        "*" => !name.is_empty() && !name.contains(&b'\\'),
        _ => percent_decode_str(part).eq(name.iter().copied()),
    };
    part.split("%2f").count() == names.clone().count() && part.split("%2f").zip(names).all(same)
}

impl Credential {
    /// Which of its entries covers a request to a host that it is for, not looking
    /// at what git may do; none: none does.
    #[must_use]
    pub fn covers(&self, method: &str, path: &str) -> Option<&str> {
        // The answer is the request, with all that was added to it.
        if method.eq_ignore_ascii_case("TRACE") {
            return None;
        }
        if !(self.methods.is_empty() || self.methods.iter().any(|it| it == method)) {
            return None;
        }
        if self.paths.is_empty() {
            return Some("**");
        }
        let segments = Segments::parse(path)?;
        let mut patterns = self.paths.iter();
        patterns
            .find(|pattern| segments.matches(pattern))
            .map(String::as_str)
    }
}

/// A path as events tell it: without its query, which may hold anything.
#[must_use]
pub fn told(path: &str) -> String {
    match path.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(pattern: &str, path: &str) -> bool {
        Segments::parse(path).is_some_and(|it| it.matches(pattern))
    }

    #[test]
    fn a_pattern_is_about_whole_segments() {
        for (pattern, path) in [
            ("/v1/messages", "/v1/messages"),
            ("/v1/messages", "/v1/m%65ssages"),
            ("/repos/org/*/pulls", "/repos/org/a/pulls"),
            ("/v1/**", "/v1/a/b"),
            ("/v1/**", "/v1/"),
            ("/**", "/"),
            ("/@scope%2fname", "/@scope%2Fname"),
            ("/*%2F*", "/@scope%2fname"),
            ("/@scope%2f*", "/@scope%2Fname"),
            ("/a%5cb", "/a%5Cb"),
            ("/**", "/@scope%2fname"),
        ] {
            assert!(covered(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("/v1/messages", "/v1/messages/"),
            ("/v1/messages", "/v1/messagesx"),
            ("/v1/messages", "/V1/messages"),
            ("/repos/org/*/pulls", "/repos/org/a/b/pulls"),
            ("/repos/org/*", "/repos/org/"),
            ("/repos/org/*", "/repos/org/a%2fkeys"),
            ("/repos/org/*", "/repos/org/a%5ckeys"),
            ("/repos/*/pulls", "/repos/org%2Fa/pulls"),
            ("/*%2f*", "/@scope%2fname%2f1.0"),
            ("/*%2f*", "/@scope"),
            ("/*%2f*", "/@scope/name"),
            ("/v1/**", "/v1"),
            ("/v1/**", "/v1x/a"),
        ] {
            assert!(!covered(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn a_path_that_servers_read_differently_is_covered_by_nothing() {
        for path in [
            "/v1/../admin",
            "/v1/%2e%2e/admin",
            "/v1/.%2E/admin",
            "/v1/./a",
            "/v1//a",
            "/v1/a%2f..%2f..%2fadmin",
            "/v1/a%5c..%5cadmin",
            "/v1/..;/admin",
            "/v1/..;x=1/admin",
            "/v1/;/admin",
            "/v1/;a=b/admin",
            "/v1/a%2f;x/admin",
            "/v1/a%2f%2fadmin",
            "/v1/%2fadmin",
            "/v1/a%5c/admin",
            "/v1/%252e%252e/admin",
            "/v1/a%00",
            "/v1/a%0d%0a",
            "//v1/a",
            "*",
            "",
        ] {
            assert!(Segments::parse(path).is_none(), "{path}");
            assert!(!covered("/v1/**", path), "{path}");
        }
    }
}
