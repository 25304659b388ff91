//! What a sandbox has in the place of secrets, and where it says it. A dummy is
//! worth nothing; where it turns up says what somebody tried.

use std::sync::Arc;

use base64::{
    Engine as _,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use memchr::memmem::Finder;
use percent_encoding::percent_decode_str;

use crate::credential::Credential;

/// Dummies, and whose place they take.
#[derive(Debug, Default)]
pub struct Dummies(Vec<Dummy>);

#[derive(Debug)]
struct Dummy {
    /// Of the first credential that it is for.
    name: String,
    finder: Finder<'static>,
}

/// Looks for dummies in what comes in pieces.
#[derive(Clone, Debug)]
pub struct Search {
    dummies: Arc<Dummies>,
    /// The end of what was looked at, in which one may begin.
    tail: Vec<u8>,
}

impl Dummies {
    /// Of these credentials.
    #[must_use]
    pub fn new(credentials: &[Arc<Credential>]) -> Self {
        let mut dummies: Vec<Dummy> = Vec::new();
        for credential in credentials {
            let Some(dummy) = credential.dummy.as_deref().filter(|it| !it.is_empty()) else {
                continue;
            };
            if !dummies
                .iter()
                .any(|it| it.finder.needle() == dummy.as_bytes())
            {
                dummies.push(Dummy {
                    name: credential.name.clone(),
                    finder: Finder::new(dummy).into_owned(),
                });
            }
        }
        Self(dummies)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How often each of them is said here, by the name of its credential: those
    /// that are.
    #[must_use]
    pub fn count(&self, text: &[u8]) -> Vec<(&str, &[u8], usize)> {
        let counted = self.0.iter().map(|dummy| {
            let count = dummy.finder.find_iter(text).count();
            (dummy.name.as_str(), dummy.finder.needle(), count)
        });
        counted.filter(|(_, _, count)| *count > 0).collect()
    }

    /// Which one is said first.
    #[must_use]
    pub fn find(&self, text: &[u8]) -> Option<&str> {
        let mut dummies = self.0.iter();
        let found = dummies.find(|dummy| dummy.finder.find(text).is_some())?;
        Some(&found.name)
    }
}

impl Search {
    /// Has seen nothing yet; none: there is nothing to look for.
    #[must_use]
    pub fn new(dummies: &Arc<Dummies>) -> Option<Self> {
        (!dummies.is_empty()).then(|| Self {
            dummies: dummies.clone(),
            tail: Vec::new(),
        })
    }

    /// What it looks for.
    #[must_use]
    pub fn dummies(&self) -> &Dummies {
        &self.dummies
    }

    /// Looks at the next piece. The one that completes a dummy names it; it was not
    /// passed on before.
    pub fn next(&mut self, piece: &[u8]) -> Option<&str> {
        let longest = self.dummies.0.iter().map(|it| it.finder.needle().len());
        let keep = longest.max().unwrap_or_default().saturating_sub(1);
        let mut seam = std::mem::take(&mut self.tail);
        seam.extend_from_slice(&piece[..piece.len().min(keep)]);
        if piece.len() <= keep {
            // The seam is all there is.
            self.tail = seam[seam.len().saturating_sub(keep)..].to_vec();
            return self.dummies.find(&seam);
        }
        self.tail = piece[piece.len() - keep..].to_vec();
        self.dummies
            .find(&seam)
            .or_else(|| self.dummies.find(piece))
    }
}

/// A text as a server may read it: its escapes undone.
#[must_use]
pub fn unescaped(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

/// What a word is as base64; none: it is not.
#[must_use]
pub fn decoded(word: &[u8]) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const ENGINES: [GeneralPurpose; 2] = [
        GeneralPurpose::new(&STANDARD, LENIENT),
        GeneralPurpose::new(&URL_SAFE, LENIENT),
    ];
    ENGINES.iter().find_map(|engine| engine.decode(word).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::credential;

    const DUMMY: &str = "ghp_0123456789abcdef";

    fn dummies() -> Arc<Dummies> {
        let credential = credential("github", "a.test", Some(DUMMY));
        Arc::new(Dummies::new(&[Arc::new(credential)]))
    }

    #[test]
    fn a_dummy_is_found_in_pieces_of_every_size() {
        let text = format!("{}{DUMMY}{}", "ghp_".repeat(5), "x".repeat(50));
        for size in 1..text.len() {
            let mut search = Search::new(&dummies()).unwrap();
            let mut pieces = text.as_bytes().chunks(size);
            assert!(pieces.any(|it| search.next(it) == Some("github")), "{size}");
            let mut search = Search::new(&dummies()).unwrap();
            let without = text.replace(DUMMY, &DUMMY[1..]);
            let mut pieces = without.as_bytes().chunks(size);
            assert!(pieces.all(|it| search.next(it).is_none()), "{size}");
        }
    }

    #[test]
    fn words_of_either_alphabet_are_base64() {
        for word in ["PDw/Pz8+Pg==", "PDw_Pz8-Pg==", "PDw_Pz8-Pg"] {
            assert_eq!(decoded(word.as_bytes()).unwrap(), b"<<???>>", "{word}");
        }
        assert!(decoded(b"a b").is_none());
    }
}
