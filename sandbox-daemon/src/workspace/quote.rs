//! Names as git writes them in patches.

use std::path::Path;

use super::tree::bytes;

/// A path with its prefix (`a/`, `b/` or none), in quotes where it holds what git
/// would not print as it is.
pub(super) fn quoted(prefix: &str, path: &Path) -> Vec<u8> {
    let path = bytes(path);
    if !path.iter().copied().any(is_odd) {
        return [prefix.as_bytes(), path].concat();
    }
    let mut quoted = vec![b'"'];
    quoted.extend_from_slice(prefix.as_bytes());
    for &byte in path {
        match byte {
            b'"' | b'\\' => quoted.extend_from_slice(&[b'\\', byte]),
            7 => quoted.extend_from_slice(b"\\a"),
            8 => quoted.extend_from_slice(b"\\b"),
            b'\t' => quoted.extend_from_slice(b"\\t"),
            b'\n' => quoted.extend_from_slice(b"\\n"),
            11 => quoted.extend_from_slice(b"\\v"),
            12 => quoted.extend_from_slice(b"\\f"),
            b'\r' => quoted.extend_from_slice(b"\\r"),
            byte if is_odd(byte) => quoted.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'"');
    quoted
}

fn is_odd(byte: u8) -> bool {
    !(b' '..0x7f).contains(&byte) || byte == b'"' || byte == b'\\'
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use super::*;

    #[test]
    fn names_look_as_git_writes_them() {
        let quoted = |name: &[u8]| quoted("a/", Path::new(OsStr::from_bytes(name)));
        assert_eq!(quoted(b"src/main.rs"), b"a/src/main.rs");
        assert_eq!(quoted(b"with space"), b"a/with space");
        assert_eq!(quoted(b"a\n\"\\\x01"), b"\"a/a\\n\\\"\\\\\\001\"");
        assert_eq!(quoted("ä".as_bytes()), b"\"a/\\303\\244\"");
    }
}
