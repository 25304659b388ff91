//! Acting for a user: whatever touches a user's tree does it with their
//! rights on files and no capabilities.

use std::{io, process};

use super::Account;
use crate::sys::Credentials;

/// Puts a thread's credentials back when it goes, also past a panic. A daemon
/// that cannot is not one that may go on.
pub(super) struct Restore(pub(super) Credentials);

impl Drop for Restore {
    fn drop(&mut self) {
        if let Err(error) = self.0.restore() {
            tracing::error!(%error, "a thread's credentials cannot be restored; ending");
            process::abort();
        }
    }
}

/// Runs `f` on this thread with the account's fsuid, fsgid and groups and no
/// capabilities. `f` must not wait for other threads or start any: they would
/// not have, or would keep, these credentials.
pub fn as_user<T>(account: &Account, f: impl FnOnce() -> T) -> io::Result<T> {
    let restore = Restore(Credentials::current()?);
    Credentials::act_on_files_as(account.uid, account.gid, &account.groups)?;
    let result = f();
    drop(restore);
    Ok(result)
}
