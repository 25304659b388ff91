//! The secrets of all users: `STATE/secrets/UID/NAME`.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use sandbox_proxy::credential::{SecretValue, is_name};
use zeroize::Zeroizing;

use super::{MAX_SECRETS, SecretError, files};

/// All secrets.
pub struct Secrets {
    /// The daemon's state, without symbolic links.
    state: PathBuf,
    /// One change at a time.
    writing: Mutex<()>,
}

/// What is told of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// When it was set.
    pub set: SystemTime,
}

impl Secrets {
    /// Those below a state directory, which need not exist. Nothing is used that
    /// others than root can read or replace.
    pub fn open(state_directory: &Path) -> Result<Arc<Self>, SecretError> {
        let state = files::real(state_directory)?;
        files::check_road(&state)?;
        let secrets = Self {
            state,
            writing: Mutex::new(()),
        };
        let directory = secrets.directory();
        if files::has_directory(&directory)? {
            for entry in entries(&directory)? {
                if files::has_directory(&entry)? {
                    // Of a daemon that died over it.
                    files::remove(&entry.join(files::DRAFT))?;
                }
            }
        }
        Ok(Arc::new(secrets))
    }

    /// The directory that this daemon keeps its state in, without symbolic links.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The same, made if it was not there.
    pub fn make_state(&self) -> Result<&Path, SecretError> {
        files::check_road(&self.state)?;
        make_state(&self.state)?;
        Ok(&self.state)
    }

    /// Keeps a secret, in the place of an earlier value.
    pub fn set(&self, uid: u32, name: &str, value: &SecretValue) -> Result<(), SecretError> {
        let path = self.path(uid, name)?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_state()?;
        let own = self.own(uid);
        files::make_directory(&self.directory())?;
        files::make_directory(&own)?;
        let known = self.list(uid)?;
        if known.len() >= MAX_SECRETS && !known.iter().any(|it| it.name == name) {
            return Err(SecretError::Full { uid });
        }
        files::replace(&path, value)?;
        files::sync_directory(&own)
    }

    /// A secret's value; none: there is none.
    pub fn get(&self, uid: u32, name: &str) -> Result<Option<SecretValue>, SecretError> {
        let path = self.path(uid, name)?;
        if !self.is_there(uid)? {
            return Ok(None);
        }
        files::read(&path)
    }

    /// A user's secrets, by name.
    pub fn list(&self, uid: u32) -> Result<Vec<Listed>, SecretError> {
        if !self.is_there(uid)? {
            return Ok(Vec::new());
        }
        let mut listed = Vec::new();
        for path in entries(&self.own(uid))? {
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(name) = name.filter(|name| is_name(name)) else {
                continue;
            };
            let metadata = fs::symlink_metadata(&path);
            let set = metadata.and_then(|metadata| metadata.modified());
            listed.push(Listed {
                name: name.to_owned(),
                set: set.map_err(files::failed("look at", &path))?,
            });
        }
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listed)
    }

    /// Removes a secret.
    pub fn remove(&self, uid: u32, name: &str) -> Result<(), SecretError> {
        let path = self.path(uid, name)?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_there(uid)? || !files::remove(&path)? {
            let name = name.to_owned();
            return Err(SecretError::NotFound { uid, name });
        }
        files::sync_directory(&self.own(uid))
    }

    /// A value as a request brings it, which is overwritten here.
    pub fn value(bytes: Vec<u8>) -> Result<SecretValue, SecretError> {
        files::value(Zeroizing::new(bytes))
    }

    fn is_there(&self, uid: u32) -> Result<bool, SecretError> {
        Ok(files::has_directory(&self.directory())? && files::has_directory(&self.own(uid))?)
    }

    fn directory(&self) -> PathBuf {
        self.state.join("secrets")
    }

    fn own(&self, uid: u32) -> PathBuf {
        self.directory().join(uid.to_string())
    }

    fn path(&self, uid: u32, name: &str) -> Result<PathBuf, SecretError> {
        if is_name(name) {
            Ok(self.own(uid).join(name))
        } else {
            Err(SecretError::Name)
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.state.display())
    }
}

/// The daemon's own directory; what is in it has modes of its own.
fn make_state(state: &Path) -> Result<(), SecretError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(state).map_err(files::failed("make", state))
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, SecretError> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(directory)?;
        entries.map(|entry| Ok(entry?.path())).collect()
    };
    read().map_err(files::failed("list", directory))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    const UID: u32 = 1000;

    struct Place {
        home: tempfile::TempDir,
        secrets: Arc<Secrets>,
    }

    impl Place {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let secrets = Secrets::open(&home.path().join("state")).unwrap();
            Self { home, secrets }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.home.path().join("state/secrets").join(path)
        }

        fn set(&self, uid: u32, name: &str, text: &str) -> Result<(), SecretError> {
            self.secrets.set(uid, name, &value(text))
        }

        fn get(&self, uid: u32, name: &str) -> Option<String> {
            let value = self.secrets.get(uid, name).unwrap();
            value.map(|value| value.expose().to_owned())
        }

        fn names(&self, uid: u32) -> Vec<String> {
            let listed = self.secrets.list(uid).unwrap();
            listed.into_iter().map(|it| it.name).collect()
        }
    }

    fn value(text: &str) -> SecretValue {
        SecretValue::new(text.into()).unwrap()
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_is_kept_for_its_user_and_for_nobody_else() {
        let place = Place::new();
        assert_eq!(place.get(UID, "npm"), None);
        assert!(place.names(UID).is_empty());
        place.set(UID, "npm", "one").unwrap();
        place.set(UID, "github", "two").unwrap();
        place.set(UID, "npm", "three").unwrap();
        assert_eq!(place.get(UID, "npm").as_deref(), Some("three"));
        assert_eq!(place.names(UID), ["github", "npm"]);
        assert_eq!(place.get(UID + 1, "npm"), None);
        assert!(place.names(UID + 1).is_empty());
        let foreign = place.secrets.remove(UID + 1, "npm");
        assert!(matches!(foreign, Err(SecretError::NotFound { .. })));
        place.secrets.remove(UID, "npm").unwrap();
        assert_eq!(place.get(UID, "npm"), None);
        let again = place.secrets.remove(UID, "npm");
        assert!(matches!(again, Err(SecretError::NotFound { .. })));
    }

    #[test]
    fn another_daemon_finds_them_and_takes_away_what_was_half_written() {
        let place = Place::new();
        place.set(UID, "npm", "one").unwrap();
        fs::write(place.path("1000/.new"), "half").unwrap();
        let next = Secrets::open(&place.home.path().join("state")).unwrap();
        assert_eq!(next.get(UID, "npm").unwrap().unwrap().expose(), "one");
        assert!(!place.path("1000/.new").exists());
    }

    #[test]
    fn only_their_owner_can_read_the_files() {
        let place = Place::new();
        place.set(UID, "npm", "one").unwrap();
        for (path, mode) in [("", 0o700), ("1000", 0o700), ("1000/npm", 0o600)] {
            let metadata = fs::metadata(place.path(path)).unwrap();
            assert_eq!(metadata.mode() & 0o7777, mode, "{path}");
        }
    }

    #[test]
    fn a_new_value_is_another_file_and_not_a_part_of_the_old_one() {
        let place = Place::new();
        place.set(UID, "npm", "long enough to be seen").unwrap();
        let before = fs::File::open(place.path("1000/npm")).unwrap();
        // What a daemon that died over it has left is in nobody's way.
        fs::write(place.path("1000/.new"), "half").unwrap();
        place.set(UID, "npm", "x").unwrap();
        assert_eq!(fs::read(place.path("1000/npm")).unwrap(), b"x");
        let seen = std::io::read_to_string(before).unwrap();
        assert_eq!(seen, "long enough to be seen");
        assert!(!place.path("1000/.new").exists());
    }

    #[test]
    fn what_others_may_use_is_refused() {
        for (path, mode) in [
            ("", 0o750),
            ("1000", 0o701),
            ("1000/npm", 0o640),
            ("1000/npm", 0o604),
        ] {
            let place = Place::new();
            place.set(UID, "npm", "one").unwrap();
            chmod(&place.path(path), mode);
            let error = place.secrets.get(UID, "npm").unwrap_err();
            assert!(matches!(error, SecretError::Exposed { .. }), "{path}");
            let message = error.to_string();
            assert!(
                message.contains(path) && !message.contains("one"),
                "{message}"
            );
        }
        let place = Place::new();
        place.set(UID, "npm", "one").unwrap();
        chmod(&place.path(""), 0o755);
        let state = place.home.path().join("state");
        assert!(Secrets::open(&state).is_err());
        assert!(place.set(UID, "npm", "two").is_err());
        assert!(place.secrets.list(UID).is_err());
    }

    #[test]
    fn a_link_is_no_secret() {
        let place = Place::new();
        place.set(UID, "npm", "one").unwrap();
        symlink("npm", place.path("1000/link")).unwrap();
        let error = place.secrets.get(UID, "link").unwrap_err();
        assert!(matches!(error, SecretError::Exposed { .. }));
        symlink(place.path("1000"), place.path("1001")).unwrap();
        let error = place.secrets.get(UID + 1, "npm").unwrap_err();
        assert!(matches!(error, SecretError::Exposed { .. }));
    }

    #[test]
    fn a_state_directory_that_others_can_replace_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let above = home.path().join("above");
        fs::create_dir(&above).unwrap();
        chmod(&above, 0o777);
        let error = Secrets::open(&above.join("state")).unwrap_err();
        assert!(error.to_string().contains("can be written"), "{error}");
        chmod(&above, 0o1777);
        assert!(Secrets::open(&above.join("state")).is_ok());
        chmod(&above, 0o755);
        // The directory that a link leads to is what counts.
        symlink(&above, home.path().join("link")).unwrap();
        let linked = Secrets::open(&home.path().join("link/state")).unwrap();
        assert_eq!(linked.state(), above.canonicalize().unwrap().join("state"));
    }

    #[test]
    fn a_bad_name_reaches_no_file() {
        let place = Place::new();
        place.set(UID, "npm", "one").unwrap();
        for name in ["", "../1000/npm", ".new", "a/b"] {
            assert!(matches!(place.set(UID, name, "x"), Err(SecretError::Name)));
            let got = place.secrets.get(UID, name);
            assert!(matches!(got, Err(SecretError::Name)), "{name}");
            let removed = place.secrets.remove(UID, name);
            assert!(matches!(removed, Err(SecretError::Name)), "{name}");
        }
        assert_eq!(place.names(UID), ["npm"]);
    }

    #[test]
    fn there_is_a_limit_and_known_names_are_within_it() {
        let place = Place::new();
        for number in 0..MAX_SECRETS {
            place.set(UID, &number.to_string(), "x").unwrap();
        }
        assert!(matches!(
            place.set(UID, "more", "x"),
            Err(SecretError::Full { .. })
        ));
        place.set(UID, "0", "y").unwrap();
        place.set(UID + 1, "more", "x").unwrap();
    }

    #[test]
    fn a_value_that_cannot_be_sent_is_refused_in_words_without_it() {
        for bad in [&b""[..], b"hunter2\n", b"\xffhunter2", b" hunter2"] {
            let error = Secrets::value(bad.to_vec()).unwrap_err();
            assert!(matches!(error, SecretError::Value));
            assert!(!format!("{error}{error:?}").contains("hunter2"));
        }
        assert!(Secrets::value(b"hunter2".to_vec()).is_ok());
    }
}
