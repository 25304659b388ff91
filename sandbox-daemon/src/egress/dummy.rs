//! Dummies: what a sandbox has in the place of a secret. Of its shape, so that
//! programs take it for one, and otherwise random.

use std::sync::LazyLock;

/// A dummy of which fewer characters are drawn could be met in ordinary text, or be
/// most of its secret.
const FEWEST: usize = 16;

const SHIPPED: &str = include_str!("../../../policies/tokens.toml");

/// Beginnings of tokens that are the same in everybody's.
static PREFIXES: LazyLock<Vec<Line>> = LazyLock::new(|| {
    // A test reads it: none, and the dummies would begin otherwise.
    toml::from_str(SHIPPED).map_or_else(|_| Vec::new(), |tokens: Tokens| tokens.prefixes)
});

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    prefixes: Vec<Line>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prefix: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "for those who read the file"))]
    reason: String,
}

/// A random value of a secret's shape: its length, the beginning that all tokens of
/// its kind have, and what is neither letter nor digit stay. The others are drawn
/// from what all of them have in common, so that it does not tell where which kind
/// stands. None: the secret is too short to have one.
pub(super) fn of_shape(secret: &str) -> Option<String> {
    let prefix = known_prefix(secret);
    let body = &secret[prefix.len()..];
    if body.chars().filter(char::is_ascii_alphanumeric).count() < FEWEST {
        return None;
    }
    let alphabet = alphabet(body);
    loop {
        let mut dummy = String::with_capacity(secret.len());
        dummy.push_str(prefix);
        for character in body.chars() {
            dummy.push(if character.is_ascii_alphanumeric() {
                draw(&alphabet)?
            } else {
                character
            });
        }
        if dummy != secret {
            return Some(dummy);
        }
    }
}

fn known_prefix(secret: &str) -> &'static str {
    let known = PREFIXES.iter().map(|line| line.prefix.as_str());
    known
        .filter(|prefix| secret.starts_with(prefix))
        .max_by_key(|prefix| prefix.len())
        .unwrap_or_default()
}

/// What a body's letters and digits are drawn from.
fn alphabet(body: &str) -> Vec<char> {
    let characters = || body.chars().filter(char::is_ascii_alphanumeric);
    let any = |class: fn(&char) -> bool| characters().any(|it| class(&it));
    let (lower, upper) = (any(char::is_ascii_lowercase), any(char::is_ascii_uppercase));
    if lower != upper && characters().all(|it| it.is_ascii_hexdigit()) {
        let last = if lower { 'a'..='f' } else { 'A'..='F' };
        return ('0'..='9').chain(last).collect();
    }
    let mut alphabet = Vec::new();
    for (occurs, class) in [
        (lower, 'a'..='z'),
        (upper, 'A'..='Z'),
        (any(char::is_ascii_digit), '0'..='9'),
    ] {
        if occurs {
            alphabet.extend(class);
        }
    }
    alphabet
}

/// One of them, each as likely as the others; none: the kernel has no random bytes.
fn draw(alphabet: &[char]) -> Option<char> {
    loop {
        let mut byte = [0];
        getrandom::fill(&mut byte).ok()?;
        let at = usize::from(byte[0]);
        // The last bytes would favour the first characters.
        if at < 256 - 256 % alphabet.len() {
            return Some(alphabet[at % alphabet.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_dummy_has_the_shape_of_its_secret() {
        for (secret, prefix) in [
            ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_"),
            (
                "github_pat_11ABCDEFG0abcdefghijkl_ABCdef0123456789",
                "github_pat_",
            ),
            ("sk-ant-api03-AbC0-dEf1_gHi2-jKl3_mNo4AA", "sk-ant-api03-"),
            ("sk-ant-new-AbC0-dEf1_gHi2-jKl3_mNo4AA", "sk-ant-"),
            ("sk-0123456789abcdefGHIJ", "sk-"),
            ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
            ("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", ""),
            ("correct horse battery staple", ""),
        ] {
            let dummy = of_shape(secret).unwrap();
            assert_eq!(dummy.len(), secret.len(), "{dummy}");
            assert!(dummy.starts_with(prefix), "{dummy}");
            assert_ne!(dummy, secret);
            for (was, is) in secret.chars().zip(dummy.chars()) {
                assert_eq!(was.is_ascii_alphanumeric(), is.is_ascii_alphanumeric());
                assert!(was.is_ascii_alphanumeric() || was == is, "{dummy}");
            }
        }
    }

    #[test]
    fn what_is_drawn_is_what_all_of_the_secret_has_in_common() {
        let drawn = |secret: &str| -> String {
            let many: String = (0..200).filter_map(|_| of_shape(secret)).collect();
            let mut all: Vec<char> = many.chars().collect();
            all.sort_unstable();
            all.dedup();
            all.into_iter().collect()
        };
        let (lower, upper) = (('a'..='z'), ('A'..='Z'));
        let (lower, upper): (String, String) = (lower.collect(), upper.collect());
        let digits = "0123456789";
        assert_eq!(drawn("0123456789abcdef"), "0123456789abcdef");
        assert_eq!(drawn("0123456789ABCDEF"), "0123456789ABCDEF");
        assert_eq!(drawn("0123456789012345"), digits);
        assert_eq!(drawn("abcdefghijklmnop"), lower);
        assert_eq!(drawn("ABCDEFGHIJKLMNO1"), format!("{digits}{upper}"));
        let all = format!("{digits}{upper}{lower}");
        assert_eq!(drawn("aaaaaaaaaaaaaaaA1"), all);
        // In two cases it is no hexadecimal number.
        assert_eq!(drawn("0123456789abcdEF"), all);
    }

    #[test]
    fn a_dummy_does_not_tell_where_which_kind_of_character_stands() {
        let secret = "zzzzzzzzzzzzzzzz11111111";
        let digit_first = (0..500)
            .filter_map(|_| of_shape(secret))
            .filter(|dummy| dummy.starts_with(|first: char| first.is_ascii_digit()))
            .count();
        // Ten of 36; seven deviations are less than 75.
        assert!((64..=214).contains(&digit_first), "{digit_first}");
    }

    #[test]
    fn no_two_dummies_are_the_same() {
        let dummies: HashSet<_> = (0..1000)
            .map(|_| of_shape("0123456789abcdef").unwrap())
            .collect();
        assert_eq!(dummies.len(), 1000);
    }

    #[test]
    fn a_secret_that_is_too_short_has_none() {
        for short in [
            "",
            "hunter2",
            "abcdefghijklmno",
            "abc-def-ghi-jkl",
            "ghp_abcdefghijklmno",
            "----------------",
        ] {
            assert_eq!(of_shape(short), None, "{short}");
        }
        assert!(of_shape("ghp_abcdefghijklmnop").is_some());
    }

    #[test]
    fn each_beginning_of_tokens_stands_once_with_its_reason() {
        let lines = &*PREFIXES;
        assert!(lines.len() > 40, "{}", lines.len());
        assert!(lines.is_sorted_by(|one, next| one.prefix < next.prefix));
        for Line { prefix, reason } in lines {
            assert!(!reason.trim().is_empty(), "{prefix}");
            assert!(prefix.bytes().all(|it| it.is_ascii_graphic()), "{prefix}");
            // At most half of what is long enough to have a dummy.
            assert!((3..=FEWEST).contains(&prefix.len()), "{prefix}");
        }
    }
}
