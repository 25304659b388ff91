//! Whose certificates programs inside believe: the system's authorities, those of
//! the user, and the proxy's own, which speaks for hosts with credentials. One file
//! of all of them, in a directory of the daemon's.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};

use super::variables::{DIRECTORY, FILES};
use crate::{
    launch::{Account, as_user},
    sandbox::Variable,
};

/// The file for whoever has no authorities of their own.
const COMMON: &str = "bundle.pem";

/// What is read of a user's files, whatever it is.
const MAX_BYTES: u64 = 4 << 20;

/// Certificates of a user's that are taken: what systems come with is a quarter.
const MAX_ADDED: usize = 1 << 20;

/// Files of one directory that are read.
const MAX_FILES: usize = 1024;

/// Files of one sandbox: they are kept until it is gone.
const MAX_BUNDLES: usize = 16;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The files, and what is in them.
pub(super) struct Trust {
    directory: PathBuf,
    /// Of certificates that are believed beside the system's.
    files: Vec<PathBuf>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The system's and the configured ones.
    roots: String,
    /// When what they are read from was changed.
    changed: Vec<Option<SystemTime>>,
    /// The proxy's.
    authority: String,
    /// What users add, by the name of the file.
    added: BTreeMap<String, String>,
}

impl Trust {
    /// An empty directory for the files, and the authorities of the system and of
    /// these files.
    ///
    /// # Errors
    /// A file cannot be read, or the directory not be made.
    pub(super) fn new(directory: PathBuf, files: &[PathBuf]) -> io::Result<Self> {
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
        let inner = Inner {
            changed: changed(files),
            roots: roots(files)?,
            authority: String::new(),
            added: BTreeMap::new(),
        };
        Ok(Self {
            directory,
            files: files.to_vec(),
            inner: Mutex::new(inner),
        })
    }

    /// Looks whether the authorities that hosts are believed by have changed, and
    /// writes all files anew if they have; none: they have not.
    pub(super) fn refresh(&self) -> io::Result<Option<String>> {
        let changed = changed(&self.files);
        if self.lock().changed == changed {
            return Ok(None);
        }
        // Before they are read: what is no use is complained of once.
        self.lock().changed = changed;
        let roots = roots(&self.files)?;
        let mut inner = self.lock();
        if inner.roots == roots {
            return Ok(None);
        }
        let earlier = std::mem::replace(&mut inner.roots, roots.clone());
        if let Err(error) = self.write_all(&inner) {
            // Tried again, and hosts are believed as programs inside believe them.
            inner.roots = earlier;
            inner.changed.clear();
            return Err(error);
        }
        Ok(Some(roots))
    }

    /// Where the files are.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The authorities that hosts are believed by.
    pub(super) fn roots(&self) -> String {
        self.lock().roots.clone()
    }

    /// A proxy has made itself an authority: all files are written anew.
    pub(super) fn replace_authority(&self, pem: &str) -> io::Result<()> {
        let mut inner = self.lock();
        pem.clone_into(&mut inner.authority);
        self.write_all(&inner)
    }

    /// The file for a command of this user's, with what its environment names.
    pub(super) fn bundle(
        &self,
        sandbox: &str,
        account: &Account,
        environment: &[Variable],
    ) -> io::Result<PathBuf> {
        let added = as_user(account, || named(environment))?;
        if added.is_empty() {
            return Ok(self.directory.join(COMMON));
        }
        let digest = Sha256::digest(&added);
        let name = format!(
            "{sandbox}-{:02x}{:02x}{:02x}{:02x}.pem",
            digest[0], digest[1], digest[2], digest[3]
        );
        let mut inner = self.lock();
        if !inner.added.contains_key(&name) {
            let its = inner.added.keys().filter(|it| is_of(it, sandbox));
            if its.count() >= MAX_BUNDLES {
                return Err(io::Error::other(format!(
                    "commands of this sandbox came with {MAX_BUNDLES} sets of authorities \
                     already: use another sandbox, or one of those"
                )));
            }
            self.write(&name, &added, &inner)?;
            inner.added.insert(name.clone(), added);
        }
        Ok(self.directory.join(name))
    }

    /// A sandbox is gone.
    pub(super) fn forget(&self, sandbox: &str) {
        let mut inner = self.lock();
        inner.added.retain(|name, _| {
            let its = is_of(name, sandbox);
            if its {
                // The next start removes what stays.
                let _ = fs::remove_file(self.directory.join(name));
            }
            !its
        });
    }

    fn write_all(&self, inner: &Inner) -> io::Result<()> {
        self.write(COMMON, "", inner)?;
        let mut added = inner.added.iter();
        added.try_for_each(|(name, added)| self.write(name, added, inner))
    }

    /// Under the lock, so that the last one written is the last one.
    fn write(&self, name: &str, added: &str, inner: &Inner) -> io::Result<()> {
        let draft = self.directory.join(format!("{name}.new"));
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o644)
            .open(&draft)?;
        for part in [&inner.roots, added, &inner.authority] {
            file.write_all(part.as_bytes())?;
        }
        file.set_permissions(Permissions::from_mode(0o644))?;
        fs::rename(draft, self.directory.join(name))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file is a sandbox's.
fn is_of(name: &str, sandbox: &str) -> bool {
    name.strip_prefix(sandbox)
        .is_some_and(|it| it.starts_with('-'))
}

/// The authorities of the system and of these files.
fn roots(files: &[PathBuf]) -> io::Result<String> {
    let mut roots = system();
    for file in files {
        let told = |problem: &str| format!("{}: {problem}", file.display());
        let text = fs::read_to_string(file)
            .map_err(|error| io::Error::new(error.kind(), told(&error.to_string())))?;
        let certificates = certificates(&text);
        if certificates.is_empty() {
            return Err(io::Error::other(told("no certificates")));
        }
        roots.push_str(&certificates);
    }
    Ok(roots)
}

/// When the files and directories were changed that authorities are read from.
fn changed(files: &[PathBuf]) -> Vec<Option<SystemTime>> {
    let system = openssl_probe::probe();
    let all = system.cert_file.iter().chain(&system.cert_dir).chain(files);
    all.map(|path| fs::metadata(path).and_then(|it| it.modified()).ok())
        .collect()
}

/// The system's authorities; without any, no host with a credential is believed.
fn system() -> String {
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::warn!(%error, "some of the system's certificates cannot be read");
    }
    let mut pem = String::new();
    for certificate in found.certs {
        pem.push_str(BEGIN);
        pem.push('\n');
        let encoded = BASE64_STANDARD.encode(&certificate);
        for line in encoded.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str(END);
        pem.push('\n');
    }
    pem
}

/// What the variables of an environment name, each certificate once. What cannot be
/// read is left out: the program would not have read it either.
fn named(environment: &[Variable]) -> String {
    let value = |name: &str| {
        let mut all = environment.iter();
        let found = all.find(|(it, value)| it == name.as_bytes() && !value.is_empty());
        found.map(|(_, value)| PathBuf::from(String::from_utf8_lossy(value).into_owned()))
    };
    let mut files: Vec<_> = FILES.iter().filter_map(|name| value(name)).collect();
    if let Some(directory) = value(DIRECTORY)
        && let Ok(entries) = fs::read_dir(directory)
    {
        files.extend(entries.flatten().take(MAX_FILES).map(|entry| entry.path()));
    }
    files.sort();
    files.dedup();
    let (mut all, mut left) = (String::new(), MAX_BYTES);
    for file in files {
        let Ok(text) = read(&file, left) else {
            continue;
        };
        left = left.saturating_sub(text.len() as u64);
        let certificates = certificates(&text);
        if all.len() + certificates.len() <= MAX_ADDED {
            all.push_str(&certificates);
        }
    }
    all
}

/// What is in a file; of no more than so many bytes.
fn read(path: &Path, most: u64) -> io::Result<String> {
    let file = OpenOptions::new()
        .read(true)
        // A pipe would have the daemon wait, and a terminal become its own: whoever
        // has the other end could interrupt it, and hang up.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > most {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// The certificates of a text, and nothing else that stands there: a key may.
fn certificates(text: &str) -> String {
    let mut all = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(BEGIN) {
        rest = &rest[begin..];
        let Some(end) = rest.find(END) else {
            break;
        };
        let (certificate, after) = rest.split_at(end + END.len());
        // One that does not end has another one in it.
        if certificate.matches("-----BEGIN").count() == 1 {
            all.push_str(certificate);
            all.push('\n');
        }
        rest = after;
    }
    all
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn pem(body: &str) -> String {
        format!("{BEGIN}\n{body}\n{END}\n")
    }

    fn trust(home: &Path) -> Trust {
        let own = home.join("own.pem");
        fs::write(&own, pem("OWN")).unwrap();
        Trust::new(home.join("trust"), &[own]).unwrap()
    }

    #[test]
    fn a_bundle_has_the_authorities_of_all_and_no_keys() {
        let home = tempfile::tempdir().unwrap();
        let trust = trust(home.path());
        trust.replace_authority(&pem("PROXY")).unwrap();
        let users = home.path().join("users.pem");
        let key = "-----BEGIN PRIVATE KEY-----\nKEY\n-----END PRIVATE KEY-----\n";
        fs::write(&users, format!("{key}{}# a comment\n", pem("USER"))).unwrap();
        let environment = vec![(
            b"SSL_CERT_FILE".to_vec(),
            users.to_str().unwrap().as_bytes().to_vec(),
        )];
        let added = named(&environment);
        assert_eq!(added, pem("USER"));
        let common = fs::read_to_string(home.path().join("trust/bundle.pem")).unwrap();
        assert!(common.ends_with(&format!("{}{}", pem("OWN"), pem("PROXY"))));
    }

    #[test]
    fn a_pipe_a_directory_and_a_missing_file_are_no_authorities() {
        let home = tempfile::tempdir().unwrap();
        let pipe = home.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [&pipe, home.path(), Path::new("/nonexistent")] {
            let value = path.to_str().unwrap().as_bytes().to_vec();
            assert_eq!(named(&[(b"SSL_CERT_FILE".to_vec(), value)]), "");
        }
    }

    /// Run by the next one as the first process of a session, as the daemon is.
    #[test]
    #[ignore = "it gives this process a terminal if it goes wrong"]
    fn a_terminal_that_is_read_as_certificates() {
        let Some(terminal) = std::env::var_os("TERMINAL") else {
            return;
        };
        assert!(nix::unistd::getsid(None).unwrap() == nix::unistd::getpid());
        let value = terminal.as_encoded_bytes().to_vec();
        assert_eq!(named(&[(b"SSL_CERT_FILE".to_vec(), value)]), "");
        assert!(File::open("/dev/tty").is_err());
    }

    #[test]
    fn a_terminal_that_a_user_names_does_not_become_the_daemons() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let name = nix::unistd::ttyname(&pty.slave).unwrap();
        let test = "egress::trust::tests::a_terminal_that_is_read_as_certificates";
        let status = std::process::Command::new("setsid")
            .args(["--wait", "--fork"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", test])
            .env("TERMINAL", name)
            .status();
        assert!(status.unwrap().success());
    }

    #[test]
    fn a_sandbox_has_so_many_files_and_no_more() {
        let home = tempfile::tempdir().unwrap();
        let trust = trust(home.path());
        let uid = nix::unistd::geteuid();
        let account = Account::by_uid(uid.as_raw()).unwrap();
        let users = home.path().join("users.pem");
        let value = users.to_str().unwrap().as_bytes().to_vec();
        let environment = vec![(b"SSL_CERT_FILE".to_vec(), value)];
        let bundle = |sandbox: &str, number: usize| {
            fs::write(&users, pem(&number.to_string())).unwrap();
            trust.bundle(sandbox, &account, &environment)
        };
        for number in 0..MAX_BUNDLES {
            bundle("0123", number).unwrap();
        }
        bundle("0123", MAX_BUNDLES).unwrap_err();
        bundle("0123", 0).unwrap();
        bundle("4567", 0).unwrap();
        trust.forget("0123");
        bundle("0123", MAX_BUNDLES).unwrap();
    }

    #[test]
    fn no_more_is_read_than_authorities_take() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("many");
        fs::create_dir(&directory).unwrap();
        let large = vec![b' '; 3 << 20];
        fs::write(directory.join("0"), large.clone()).unwrap();
        fs::write(
            directory.join("1"),
            [&large, pem("SECOND").as_bytes()].concat(),
        )
        .unwrap();
        fs::write(directory.join("2"), pem("THIRD")).unwrap();
        let value = directory.to_str().unwrap().as_bytes().to_vec();
        assert_eq!(
            named(&[(DIRECTORY.as_bytes().to_vec(), value)]),
            pem("THIRD")
        );
    }

    #[test]
    fn a_new_authority_is_in_every_file_and_a_sandbox_takes_its_own_with_it() {
        let home = tempfile::tempdir().unwrap();
        let trust = trust(home.path());
        trust.replace_authority(&pem("FIRST")).unwrap();
        let write = |name: &str| {
            let mut inner = trust.lock();
            trust.write(name, &pem("USER"), &inner).unwrap();
            inner.added.insert(name.into(), pem("USER"));
        };
        write("0123-aa.pem");
        write("4567-aa.pem");
        trust.replace_authority(&pem("SECOND")).unwrap();
        for name in ["bundle.pem", "0123-aa.pem", "4567-aa.pem"] {
            let text = fs::read_to_string(trust.directory().join(name)).unwrap();
            assert!(text.contains("SECOND") && !text.contains("FIRST"), "{name}");
        }
        trust.forget("0123");
        assert!(!trust.directory().join("0123-aa.pem").exists());
        assert!(trust.directory().join("4567-aa.pem").exists());
    }

    #[test]
    fn a_file_that_changes_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let trust = trust(home.path());
        trust.replace_authority(&pem("PROXY")).unwrap();
        assert_eq!(trust.refresh().unwrap(), None);
        let own = File::options()
            .write(true)
            .truncate(true)
            .open(home.path().join("own.pem"));
        let mut own = own.unwrap();
        own.write_all(pem("OTHER").as_bytes()).unwrap();
        own.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let roots = trust.refresh().unwrap().unwrap();
        assert!(roots.ends_with(&pem("OTHER")));
        let common = fs::read_to_string(trust.directory().join(COMMON)).unwrap();
        assert!(common.ends_with(&format!("{}{}", pem("OTHER"), pem("PROXY"))));
    }

    #[test]
    fn a_file_that_is_no_use_is_complained_of_once_and_read_when_it_is_of_use() {
        let home = tempfile::tempdir().unwrap();
        let trust = trust(home.path());
        let own = home.path().join("own.pem");
        fs::remove_file(&own).unwrap();
        trust.refresh().unwrap_err();
        assert_eq!(trust.refresh().unwrap(), None);
        assert!(trust.roots().ends_with(&pem("OWN")));
        fs::write(&own, pem("OTHER")).unwrap();
        let roots = trust.refresh().unwrap().unwrap();
        assert!(roots.ends_with(&pem("OTHER")));
    }

    #[test]
    fn what_could_not_be_written_is_tried_again() {
        let home = tempfile::tempdir().unwrap();
        let trust = trust(home.path());
        let written = trust.directory().to_path_buf();
        fs::remove_dir(&written).unwrap();
        fs::write(home.path().join("own.pem"), pem("OTHER")).unwrap();
        File::open(home.path().join("own.pem"))
            .and_then(|own| own.set_modified(SystemTime::UNIX_EPOCH))
            .unwrap();
        trust.refresh().unwrap_err();
        assert!(trust.roots().ends_with(&pem("OWN")));
        fs::create_dir(&written).unwrap();
        let roots = trust.refresh().unwrap().unwrap();
        assert!(roots.ends_with(&pem("OTHER")));
    }

    #[test]
    fn what_an_earlier_daemon_left_is_removed() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("trust")).unwrap();
        fs::write(home.path().join("trust/0123-aa.pem"), "x").unwrap();
        let trust = trust(home.path());
        assert_eq!(fs::read_dir(trust.directory()).unwrap().count(), 0);
    }

    #[test]
    fn a_configured_file_without_certificates_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let empty = home.path().join("empty.pem");
        fs::write(&empty, "nothing").unwrap();
        assert!(Trust::new(home.path().join("trust"), &[empty]).is_err());
    }
}
