//! Which files a command's name may mean, as POSIX has it for execvp.

use std::{
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// Where commands are looked for without a `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// The files to try in turn.
pub(super) fn candidates(name: &CStr, env: &[CString]) -> Vec<CString> {
    let name = name.to_bytes();
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return CString::new(name).into_iter().collect();
    }
    let path = env
        .iter()
        .find_map(|variable| variable.to_bytes().strip_prefix(b"PATH="))
        .unwrap_or(DEFAULT_PATH);
    path.split(|byte| *byte == b':')
        // An empty entry is the working directory.
        .map(|dir| if dir.is_empty() { b"." } else { dir })
        .map(|dir| {
            Path::new(std::ffi::OsStr::from_bytes(dir)).join(std::ffi::OsStr::from_bytes(name))
        })
        .filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &CStr, env: &[CString]) -> Vec<String> {
        candidates(name, env)
            .into_iter()
            .map(|path| path.into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_name_is_looked_for_in_the_commands_own_path() {
        let env = [c"HOME=/root".to_owned(), c"PATH=/a::/b".to_owned()];
        assert_eq!(names(c"ls", &env), ["/a/ls", "./ls", "/b/ls"]);
    }

    #[test]
    fn a_path_is_itself() {
        let env = [c"PATH=/a".to_owned()];
        assert_eq!(names(c"./x", &env), ["./x"]);
        assert_eq!(names(c"/x", &env), ["/x"]);
    }

    #[test]
    fn without_path_there_is_a_default() {
        assert_eq!(names(c"ls", &[])[1], "/usr/bin/ls");
        assert!(names(c"", &[]).is_empty());
    }
}
