//! Credentials in requests: dummies are replaced where they may stand, and refused
//! everywhere else.

use std::{borrow::Cow, sync::Arc};

use hyper::{header::AUTHORIZATION, http::request::Parts};

use super::{
    answer::Failure,
    authority::Authority,
    echo::Echo,
    place::{parameters, put, same_place, stands},
    strange,
};
use crate::{
    caller::{Caller, Refusal, Use},
    channel::Operation,
    covers,
    credential::{Credential, GitRule, Scheme},
    dummies::{self, Dummies, Search},
    git::{
        self,
        request::{GitRequest, Service, Step},
    },
    policy::Policy,
};

/// A request, on its way to a host.
pub(super) struct Outgoing<'a> {
    pub(super) caller: &'a Caller,
    pub(super) policy: &'a Policy,
    pub(super) to: &'a Authority,
}

/// A request as the host may have it.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// What goes with it.
    pub(super) uses: Vec<Use>,
    /// It is a push of git's to a repository: by which rule.
    pub(super) push: Option<(GitRule, String)>,
    /// What the answer may repeat.
    pub(super) echoes: Vec<Echo>,
}

impl Outgoing<'_> {
    /// Replaces the dummies of a request, and adds what is added without being
    /// asked for.
    ///
    /// # Errors
    /// It says a dummy where it must not, or brings a credential of its own.
    pub(super) fn admit(&self, parts: &mut Parts) -> Result<Admitted, Failure> {
        let credentials = self.policy.credentials(&self.to.host, self.to.port);
        let said = said(parts, self.policy.dummies());
        if credentials.is_empty() && said.is_empty() {
            return Ok(Admitted::default());
        }
        let git = self.git(&credentials, parts)?;
        let names = parameters(&parts.uri, &['&', ';']).map(|(name, _)| name);
        let otherwise = strange::is_otherwise(parts, names);
        let mut covering = Vec::new();
        for credential in &credentials {
            if let Some(rule) = self.covers(credential, git.as_ref(), parts, otherwise) {
                covering.push((credential, rule));
            }
        }
        for Said { name, dummy, count } in &said {
            self.check_dummy(name, dummy, *count, &credentials, &covering, parts)?;
        }
        for credential in &credentials {
            self.check_place(credential, parts)?;
        }
        let mut admitted = Admitted::default();
        let mut taken: Vec<&Scheme> = Vec::new();
        for (credential, rule) in &covering {
            let presented = said
                .iter()
                .any(|it| credential.dummy.as_deref() == Some(&*it.dummy));
            let wanted = presented || credential.dummy.is_none();
            let free = !taken.iter().any(|it| same_place(it, &credential.scheme));
            // In observe mode a dummy may stand anywhere.
            if !wanted || !free || (presented && !stands(credential, parts)) {
                continue;
            }
            let Some(secret) = self.caller.secret(&credential.secret) else {
                let Credential { name, secret, .. } = &***credential;
                let rule = format!("secret `{secret}` of credential `{name}` is not set");
                return Err(self.deny(rule).into());
            };
            if put(credential, &secret, parts).is_none() {
                let rule = format!("no room for credential `{}`", credential.name);
                return Err(self.deny(rule).into());
            }
            if let Scheme::Query { .. } = credential.scheme {
                let dummy = credential.dummy.clone().unwrap_or_default();
                admitted.echoes.push(Echo { secret, dummy });
            }
            taken.push(&credential.scheme);
            let repository = git.as_ref().filter(|_| credential.git.is_some());
            admitted.uses.push(Use {
                repository: repository.map_or_else(String::new, |it| it.repository.clone()),
                ..self.use_of(credential, rule, parts)
            });
        }
        let pushes =
            |it: &GitRequest| (it.service, it.step) == (Service::ReceivePack, Step::Exchange);
        if let Some(request) = git.filter(pushes) {
            let rule = push_rule(&covering, &admitted.uses);
            admitted.push = rule.map(|rule| (rule, request.repository));
        }
        Ok(admitted)
    }

    /// What a request is to git, where git is looked at. What is no request of git's
    /// is a request like others.
    fn git(
        &self,
        credentials: &[Arc<Credential>],
        parts: &Parts,
    ) -> Result<Option<GitRequest>, Refusal> {
        let rules = || credentials.iter().filter_map(|it| it.git.as_ref());
        let Some(credential) = credentials.iter().find(|it| it.git.is_some()) else {
            return Ok(None);
        };
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        let request = match git::request::read(method, path, parts.uri.query()) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(None),
            Err(error) => return self.refuse(error.to_string()).map(|()| None),
        };
        let (name, repository) = (&credential.name, &request.repository);
        let listed = |rule: &&GitRule| rule.repository(repository).is_some();
        let wrong = match request.service {
            _ if !rules().any(|it| listed(&it)) => {
                format!("{repository} is no repository of `{name}`")
            }
            Service::ReceivePack if !rules().filter(listed).any(|it| !it.push.is_empty()) => {
                format!("`{name}` is not for pushing to {repository}")
            }
            _ => return Ok(Some(request)),
        };
        self.refuse(wrong)?;
        Ok(Some(request))
    }

    /// Of a credential's entries, the one that covers a request.
    fn covers(
        &self,
        credential: &Credential,
        git: Option<&GitRequest>,
        parts: &Parts,
        otherwise: bool,
    ) -> Option<String> {
        let limited = !(credential.methods.is_empty() && credential.paths.is_empty());
        if !self.to.secure || otherwise && (limited || credential.git.is_some()) {
            return None;
        }
        if let Some(rule) = &credential.git {
            let request = git?;
            let pushes = request.service == Service::ReceivePack;
            let entry = rule.repository(&request.repository)?;
            return (!pushes || !rule.push.is_empty()).then(|| entry.to_owned());
        }
        let rule = credential.covers(parts.method.as_str(), parts.uri.path())?;
        if rule != "**" {
            return Some(rule.to_owned());
        }
        let host = super::upstream::named(&self.to.host)?;
        let mut hosts = credential.hosts.iter();
        let entry = hosts.find(|it| crate::credential::meets(it, host, self.to.port))?;
        Some(entry.label.clone())
    }

    fn check_dummy(
        &self,
        name: &str,
        dummy: &str,
        count: usize,
        credentials: &[Arc<Credential>],
        covering: &[(&Arc<Credential>, String)],
        parts: &Parts,
    ) -> Result<(), Refusal> {
        let its = |it: &&Arc<Credential>| it.dummy.as_deref() == Some(dummy);
        let covering = covering.iter().map(|(credential, _)| *credential);
        let wrong = if !self.to.secure {
            "over plain HTTP"
        } else if !credentials.iter().any(|it| its(&it)) {
            "towards another host"
        } else if count > 1 {
            "more than once"
        } else if !covering.clone().any(|it| its(&it)) {
            "in a request that it does not cover"
        } else if !covering.filter(its).any(|it| stands(it, parts)) {
            "outside its place"
        } else {
            return Ok(());
        };
        self.refuse(format!("the dummy of `{name}` {wrong}"))
    }

    /// In a credential's place there is nothing but its dummy: who brings another
    /// key could send what is here to somebody else's account.
    fn check_place(&self, credential: &Credential, parts: &Parts) -> Result<(), Refusal> {
        // A dummy that stands where another's place is has been refused, unless
        // things are only observed.
        let foreign = |value: &[u8]| {
            let mut readings = readings(value);
            !readings.any(|it| self.policy.dummies().find(&it).is_some())
        };
        let header = |name: &str| strange::spelt(&parts.headers, name).any(foreign);
        let beside = |half: &str| foreign(half.as_bytes()) && strange::is_key(credential, half);
        let another = |value: &[u8]| {
            foreign(value)
                || strange::pair(value).is_some_and(|(name, key)| beside(&name) || beside(&key))
        };
        let occupied = match &credential.scheme {
            Scheme::Bearer | Scheme::Basic { .. } => {
                strange::spelt(&parts.headers, AUTHORIZATION.as_str()).any(another)
            }
            Scheme::Header { name } => header(name),
            // Some servers take `;` for `&`.
            Scheme::Query { name } => {
                let name = strange::parameter(name.as_bytes());
                parameters(&parts.uri, &['&', ';'])
                    .filter(|(it, value)| strange::parameter(it) == name && !value.is_empty())
                    .any(|(_, value)| foreign(&value))
            }
        };
        if !occupied {
            return Ok(());
        }
        self.refuse(format!("another credential than `{}`", credential.name))
    }

    fn refuse(&self, rule: String) -> Result<(), Refusal> {
        let Authority { host, port, .. } = self.to;
        let told = self
            .caller
            .refuse(Operation::Request, &host.to_string(), *port, rule);
        told.map(drop)
    }

    fn deny(&self, rule: String) -> Refusal {
        let Authority { host, port, .. } = self.to;
        self.caller
            .deny(Operation::Request, &host.to_string(), *port, rule)
    }

    fn use_of(&self, credential: &Credential, rule: &str, parts: &Parts) -> Use {
        Use {
            credential: credential.name.clone(),
            rule: rule.into(),
            host: self.to.host.to_string(),
            port: self.to.port,
            method: parts.method.to_string(),
            path: covers::told(parts.uri.path()),
            ..Use::default()
        }
    }

    /// Looks for dummies in its body; none: there are no dummies.
    pub(super) fn search(&self) -> Option<Search> {
        Search::new(self.policy.dummies())
    }
}

/// The rule of a push: of the credential that goes with it, or of one that covers it
/// where it goes without.
fn push_rule(covering: &[(&Arc<Credential>, String)], uses: &[Use]) -> Option<GitRule> {
    let goes = |it: &Credential| uses.iter().any(|used| used.credential == it.name);
    let rules = || covering.iter().filter(|(it, _)| it.git.is_some());
    let (credential, _) = rules()
        .find(|(it, _)| goes(it))
        .or_else(|| rules().next())?;
    credential.git.clone()
}

/// A dummy that a request says.
struct Said {
    /// Of the credential.
    name: String,
    dummy: String,
    count: usize,
}

/// The dummies that the head of a request says, in whatever way.
fn said(parts: &Parts, dummies: &Dummies) -> Vec<Said> {
    let mut all: Vec<Said> = Vec::new();
    if dummies.is_empty() {
        return all;
    }
    let mut add = |text: &[u8]| {
        for (name, dummy, count) in dummies.count(text) {
            let dummy = String::from_utf8_lossy(dummy);
            match all.iter_mut().find(|it| it.dummy == dummy) {
                Some(known) => known.count += count,
                None => all.push(Said {
                    name: name.into(),
                    dummy: dummy.into(),
                    count,
                }),
            }
        }
    };
    let target = parts.uri.path_and_query().map_or("", |it| it.as_str());
    add(&dummies::unescaped(target));
    for value in parts.headers.values() {
        readings(value.as_bytes()).for_each(|it| add(&it));
    }
    all
}

/// The value of a header as a server may read it: as it is, and its words as base64.
fn readings(value: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let words = value.split(|byte| b" ,;\"".contains(byte));
    let decoded = words.filter_map(|word| dummies::decoded(word).map(Cow::Owned));
    std::iter::once(Cow::Borrowed(value)).chain(decoded)
}
