//! Credentials in requests: dummies are replaced where they may stand, and refused
//! everywhere else.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::{
    HeaderMap, Uri,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
    http::request::Parts,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use super::{answer::Failure, authority::Authority, echo::Echo, strange};
use crate::{
    caller::{Caller, Refusal, Use},
    channel::Operation,
    covers,
    credential::{Credential, GitRule, Scheme, SecretValue},
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

/// What is not a letter, digit or one of these is escaped in a query (RFC 3986,
/// 2.3).
pub(super) const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

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
            // Also one that goes without a credential.
            let used =
                |it: &Credential| admitted.uses.iter().any(|used| used.credential == it.name);
            let mut rules = covering.iter().filter(|(it, _)| it.git.is_some());
            let rule = rules
                .clone()
                .find(|(it, _)| used(it))
                .or_else(|| rules.next());
            let rule = rule.and_then(|(it, _)| it.git.clone());
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

fn same_place(one: &Scheme, other: &Scheme) -> bool {
    let header = |scheme: &Scheme| match scheme {
        Scheme::Bearer | Scheme::Basic { .. } => Some(AUTHORIZATION.as_str().to_owned()),
        Scheme::Header { name } => Some(name.clone()),
        Scheme::Query { .. } => None,
    };
    match (one, other) {
        (Scheme::Query { name }, Scheme::Query { name: other }) => name == other,
        _ => header(one).is_some() && header(one) == header(other),
    }
}

/// Whether the dummy of a credential stands in its place.
fn stands(credential: &Credential, parts: &Parts) -> bool {
    let Some(dummy) = &credential.dummy else {
        return false;
    };
    match &credential.scheme {
        Scheme::Bearer | Scheme::Basic { .. } => {
            let value = only(&parts.headers, &AUTHORIZATION);
            value.is_some_and(|value| replaced(value, dummy, dummy).is_some())
        }
        Scheme::Header { name } => {
            let name = HeaderName::try_from(name.as_str());
            let value = name.ok().and_then(|name| only(&parts.headers, &name));
            value.is_some_and(|value| value == dummy.as_bytes())
        }
        Scheme::Query { name } => {
            let mut values = parameters(&parts.uri, &['&']).filter(|(it, _)| it == name.as_bytes());
            let first = values.next();
            values.next().is_none() && first.is_some_and(|(_, it)| it == dummy.as_bytes())
        }
    }
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.as_bytes())
}

/// The value of `Authorization` with a secret where it has the dummy: as a token, or
/// as the name or password of a user; none: it is not there.
fn replaced(value: &[u8], dummy: &str, secret: &str) -> Option<Zeroizing<String>> {
    let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let rest = rest.trim();
    if !scheme.eq_ignore_ascii_case("basic") {
        let token = ["bearer", "token"]
            .iter()
            .any(|it| scheme.eq_ignore_ascii_case(it));
        return (token && rest == dummy).then(|| Zeroizing::new(format!("{scheme} {secret}")));
    }
    let (user, password) = strange::pair(value)?;
    let pair = match (*user == dummy, *password == dummy) {
        (false, true) => Zeroizing::new(format!("{}:{secret}", *user)),
        (true, false) => Zeroizing::new(format!("{secret}:{}", *password)),
        _ => return None,
    };
    let encoded = Zeroizing::new(BASE64_STANDARD.encode(pair.as_bytes()));
    Some(Zeroizing::new(format!("{scheme} {}", *encoded)))
}

/// Puts a secret in its place; none: it cannot stand there, or the address is too
/// long with it.
fn put(credential: &Credential, secret: &SecretValue, parts: &mut Parts) -> Option<()> {
    let dummy = credential.dummy.as_deref();
    let (name, value) = match &credential.scheme {
        Scheme::Query { name } => {
            parts.uri = with_parameter(&parts.uri, name, secret)?;
            return Some(());
        }
        Scheme::Header { name } => {
            let value = Zeroizing::new(secret.expose().to_owned());
            (HeaderName::try_from(name.as_str()).ok()?, value)
        }
        Scheme::Bearer | Scheme::Basic { .. } => {
            let there = parts.headers.get(AUTHORIZATION);
            let there = there.zip(dummy);
            let replaced =
                there.and_then(|(it, dummy)| replaced(it.as_bytes(), dummy, secret.expose()));
            let value = replaced.unwrap_or_else(|| added(&credential.scheme, secret));
            (AUTHORIZATION, value)
        }
    };
    let mut value = HeaderValue::from_str(&value).ok()?;
    // Never into a table of headers that others are compressed by.
    value.set_sensitive(true);
    parts.headers.insert(name, value);
    Some(())
}

/// The value of `Authorization` where there is none.
fn added(scheme: &Scheme, secret: &SecretValue) -> Zeroizing<String> {
    let Scheme::Basic { username } = scheme else {
        return Zeroizing::new(format!("Bearer {}", secret.expose()));
    };
    let pair = Zeroizing::new(format!("{username}:{}", secret.expose()));
    let encoded = Zeroizing::new(BASE64_STANDARD.encode(pair.as_bytes()));
    Zeroizing::new(format!("Basic {}", *encoded))
}

/// The parameters of a query, names and values unescaped.
fn parameters(uri: &Uri, between: &[char]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let pairs = uri.query().unwrap_or_default().split(between);
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let unescaped = |text: &str| dummies::unescaped(&text.replace('+', " "));
        (unescaped(name), unescaped(value))
    })
}

/// An address in which a parameter is this secret, in its place or at the end.
fn with_parameter(uri: &Uri, name: &str, secret: &SecretValue) -> Option<Uri> {
    let pair = Zeroizing::new(format!(
        "{}={}",
        utf8_percent_encode(name, QUERY),
        utf8_percent_encode(secret.expose(), QUERY)
    ));
    let query = uri.query().unwrap_or_default();
    let mut pairs: Vec<&str> = query.split('&').filter(|it| !it.is_empty()).collect();
    let is_it = |it: &&str| {
        let there = it.split_once('=').map_or(*it, |(name, _)| name);
        dummies::unescaped(there) == name.as_bytes()
    };
    match pairs.iter().position(is_it) {
        Some(place) => pairs[place] = &pair,
        None => pairs.push(&pair),
    }
    let query = Zeroizing::new(pairs.join("&"));
    let target = Zeroizing::new(format!("{}?{}", uri.path(), *query));
    target.parse().ok()
}
