//! Who may set, see and remove whose secrets.

use std::sync::Arc;

use sandbox_proxy::credential::SecretValue;

use super::{Caller, Registry, SandboxError, registry::flatten};
use crate::secrets::{Listed, SecretError, Secrets};

impl Registry {
    /// All secrets.
    pub fn secrets(&self) -> &Arc<Secrets> {
        self.egress().secrets()
    }

    /// Keeps a secret for the caller, or for the user that root names.
    pub async fn set_secret(
        self: &Arc<Self>,
        caller: &Caller,
        uid: Option<u32>,
        name: String,
        value: SecretValue,
    ) -> Result<(), SandboxError> {
        let known = name.clone();
        let change = move |secrets: &Secrets, uid| secrets.set(uid, &name, &value);
        self.change_secrets(caller, uid, known, change).await
    }

    /// Removes a secret of the caller's, or of the user that root names.
    pub async fn delete_secret(
        self: &Arc<Self>,
        caller: &Caller,
        uid: Option<u32>,
        name: String,
    ) -> Result<(), SandboxError> {
        let known = name.clone();
        let change = move |secrets: &Secrets, uid| secrets.remove(uid, &name);
        self.change_secrets(caller, uid, known, change).await
    }

    /// Names of the caller's secrets, or of those of the user that root names.
    pub async fn list_secrets(
        &self,
        caller: &Caller,
        uid: Option<u32>,
    ) -> Result<Vec<Listed>, SandboxError> {
        let uid = whose(caller, uid)?;
        let secrets = self.secrets().clone();
        let listed = tokio::task::spawn_blocking(move || Ok(secrets.list(uid)?));
        flatten(listed.await)
    }

    async fn change_secrets(
        self: &Arc<Self>,
        caller: &Caller,
        uid: Option<u32>,
        name: String,
        change: impl FnOnce(&Secrets, u32) -> Result<(), SecretError> + Send + 'static,
    ) -> Result<(), SandboxError> {
        let uid = whose(caller, uid)?;
        let (registry, caller) = (self.clone(), caller.clone());
        let changed = tokio::task::spawn_blocking(move || {
            registry.may_change_secrets(&caller)?;
            let changed = change(registry.secrets(), uid);
            // When this returns, the next request gets it; also where a failing disk
            // may not keep what was changed.
            let rotated = registry.egress().rotate(uid, &name);
            changed?;
            rotated.map_err(SandboxError::Rotation)
        });
        flatten(changed.await)
    }

    /// What a user keeps is added to requests of all its sandboxes. Whoever is
    /// confined does not act outside of that.
    fn may_change_secrets(&self, caller: &Caller) -> Result<(), SandboxError> {
        let Some(peer) = &caller.peer else {
            return Ok(());
        };
        peer.verify()?;
        let confined = peer.confinement(self.slice())?;
        if confined.is_empty() {
            return Ok(());
        }
        let reasons: Vec<_> = confined.iter().map(ToString::to_string).collect();
        Err(SandboxError::ConfinedKeeper(reasons.join(", ")))
    }
}

fn whose(caller: &Caller, uid: Option<u32>) -> Result<u32, SandboxError> {
    let uid = uid.unwrap_or(caller.uid);
    if caller.sees(uid) {
        Ok(uid)
    } else {
        Err(SandboxError::ForeignUid(uid))
    }
}
