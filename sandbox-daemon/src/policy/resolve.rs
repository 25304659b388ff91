//! From a document to a policy: paths expanded for one user and workspace,
//! each place named once.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::MAX_RULES;
use super::diagnostic::{Diagnostics, Fault, Report, Span};
use super::document::{Document, Segment};
use super::environment::Environment;
use super::model::{Access, Device, FileRule, Network, Place, Policy};
use super::own;
use super::pattern::{Base, Expansion, Pattern, normal};

/// The label of what is read-only because it is a policy.
const POLICY_FILE: &str = "policy file";

/// What a caller adds to a policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Additions {
    /// Absolute paths to read, as with `--ro`. One that the policy lets write
    /// becomes read-only.
    pub read: Vec<PathBuf>,
    /// Absolute paths to write, as with `--rw`.
    pub write: Vec<PathBuf>,
    /// The file that the policy was read from: read-only inside.
    pub origin: Option<PathBuf>,
    /// The daemon's state, wherever it is: it does not exist inside.
    pub state: Option<PathBuf>,
}

impl Document {
    /// Expands the policy. What a caller adds goes before what the policy says
    /// about the same place, except that what it denies stays denied.
    pub fn resolve(
        &self,
        expansion: &Expansion,
        additions: &Additions,
    ) -> Result<Policy, Diagnostics> {
        let mut report = Report::new(&self.source);
        let mut resolver = Resolver::new(expansion, &mut report);
        let devices = resolver.devices(self);
        let rules = resolver.files(self, &devices, additions);
        let workspace = resolver.expansion.workspace.clone();
        let network = Network {
            mode: self.network.mode,
            direct: self
                .network
                .direct
                .iter()
                .map(|(rule, _)| rule.clone())
                .collect(),
            allow: self
                .network
                .allow
                .iter()
                .map(|(rule, _)| rule.clone())
                .collect(),
            deny: self
                .network
                .deny
                .iter()
                .map(|(rule, _)| rule.clone())
                .collect(),
            unix: resolver.unix(self),
            listen: self.network.listen,
        };
        let env = Environment {
            pass: self
                .env
                .pass
                .iter()
                .map(|(pattern, _)| pattern.clone())
                .collect(),
            refuse: self.env.refuse.clone(),
            set: resolver.variables(self),
        };
        if report.has_errors() {
            return Err(report.finish());
        }
        Ok(Policy {
            workspace,
            ..Policy::new(self.name.clone(), self.mode, rules, network, env)
                .with_scope(self.scope)
                .with_devices(devices)
                .with_credentials(
                    self.credentials.added.clone(),
                    self.credentials.untouched.clone(),
                )
                .with_bounds(self.workspace_mode, self.limits)
        })
    }
}

struct Resolver<'r, 'a> {
    expansion: Expansion,
    report: &'r mut Report<'a>,
}

/// Rules in the order in which their places came first.
#[derive(Default)]
struct Rules {
    list: Vec<FileRule>,
    index: HashMap<Place, usize>,
}

impl Rules {
    /// Adds a rule; at the same place the stronger one stays.
    fn add(&mut self, rule: FileRule) {
        if self
            .get(&rule.place)
            .is_none_or(|old| old.access < rule.access)
        {
            self.replace(rule);
        }
    }

    fn replace(&mut self, rule: FileRule) {
        if let Some(at) = self.index.get(&rule.place) {
            self.list[*at] = rule;
        } else {
            self.index.insert(rule.place.clone(), self.list.len());
            self.list.push(rule);
        }
    }

    fn get(&self, place: &Place) -> Option<&FileRule> {
        self.index.get(place).map(|at| &self.list[*at])
    }

    fn nearest(&self, path: &Path) -> Option<&FileRule> {
        path.ancestors()
            .find_map(|it| self.get(&Place::Path(it.to_path_buf())))
    }

    /// The rule that decides about a file of this path: one for names goes
    /// before those of directories.
    fn decides(&self, path: &Path) -> Option<&FileRule> {
        let exact = self.get(&Place::Path(path.to_path_buf()));
        let by_name = || self.list.iter().find(|rule| rule.place.names(path));
        exact.or_else(by_name).or_else(|| self.nearest(path))
    }
}

impl<'r, 'a> Resolver<'r, 'a> {
    fn new(expansion: &Expansion, report: &'r mut Report<'a>) -> Self {
        let mut resolver = Self {
            expansion: expansion.clone(),
            report,
        };
        let Expansion {
            home,
            workspace,
            tmp,
            cache,
        } = &expansion;
        resolver.expansion.home = resolver.absolute(home, "the home directory");
        resolver.expansion.cache = resolver.absolute(cache, "the cache directory");
        resolver.expansion.tmp = tmp
            .iter()
            .map(|tmp| resolver.absolute(tmp, "the temporary directory"))
            .collect();
        resolver.expansion.workspace = workspace
            .as_ref()
            .map(|workspace| resolver.absolute(workspace, "the workspace"));
        resolver
    }

    fn absolute(&mut self, path: &Path, what: &str) -> PathBuf {
        normal(path).unwrap_or_else(|fault| {
            let message = format!("{what}: {}", fault.message);
            self.report.file_error(&message, fault.hint.as_deref());
            path.to_path_buf()
        })
    }

    fn files(
        &mut self,
        document: &Document,
        devices: &[Device],
        additions: &Additions,
    ) -> Vec<FileRule> {
        let mut rules = Rules::default();
        for entry in &document.files {
            for place in self.places(&entry.pattern, &entry.entry.span) {
                rules.add(FileRule {
                    place,
                    access: entry.access,
                    label: entry.label.clone(),
                });
            }
        }
        for (device, (_, item)) in devices.iter().zip(&document.devices) {
            let place = Place::Path(device.path.clone());
            match rules.get(&place) {
                Some(old) if old.access == Access::Deny => {
                    let message = format!("`{}` is denied by rule `{}`", item.text, old.label);
                    let hint = "what is denied is not there: remove one of the two";
                    self.report.error(item.span.clone(), &message, Some(hint));
                }
                _ => rules.add(FileRule {
                    place,
                    access: Access::Write,
                    label: device.label.clone(),
                }),
            }
        }
        self.add_from_caller(&mut rules, additions);
        self.protect_policies(&mut rules, additions);
        self.protect_own(&mut rules, additions);
        if let Some(workspace) = &self.expansion.workspace
            && let Some(rule) = rules.nearest(workspace)
            && rule.access == Access::Deny
        {
            let message = format!(
                "the workspace `{}` does not exist inside: rule `{}` denies it",
                workspace.display(),
                rule.label
            );
            let hint = "work in another directory, or allow this one in the policy";
            self.report.file_error(&message, Some(hint));
        }
        if rules.list.len() > MAX_RULES {
            let message = format!(
                "the policy comes to {} rules, which are too many",
                rules.list.len()
            );
            self.report
                .file_error(&message, Some(&format!("at most {MAX_RULES}")));
        }
        rules.list
    }

    fn add_from_caller(&mut self, rules: &mut Rules, additions: &Additions) {
        for (paths, access) in [
            (&additions.read, Access::Read),
            (&additions.write, Access::Write),
        ] {
            for path in paths {
                let place = match normal(path) {
                    Ok(path) => Place::Path(path),
                    Err(fault) => {
                        self.added(path, &fault);
                        continue;
                    }
                };
                if let Place::Path(exact) = &place
                    && let Some(old) = rules.decides(exact)
                    && old.access == Access::Deny
                {
                    let message = format!("`{}` is denied by rule `{}`", path.display(), old.label);
                    let hint = "what a policy denies is opened in the policy";
                    self.added(path, &Fault::new(message, hint));
                    continue;
                }
                let label = path.display().to_string();
                rules.replace(FileRule {
                    place,
                    access,
                    label,
                });
            }
        }
        for path in additions
            .read
            .iter()
            .filter(|path| additions.write.contains(path))
        {
            let fault = Fault::new(
                format!("`{}` is added both read-only and writable", path.display()),
                "add it once",
            );
            self.added(path, &fault);
        }
    }

    fn added(&mut self, path: &Path, fault: &Fault) {
        let message = format!("cannot add `{}`: {}", path.display(), fault.message);
        self.report.file_error(&message, fault.hint.as_deref());
    }

    /// The policy in force, and the workspace's own, are read-only whatever
    /// anybody says.
    fn protect_policies(&mut self, rules: &mut Rules, additions: &Additions) {
        let own = self
            .expansion
            .workspace
            .as_ref()
            .map(|it| it.join(".sandbox.toml"));
        for path in own.iter().chain(&additions.origin) {
            match normal(path).map(Place::Path) {
                Ok(place)
                    if rules
                        .get(&place)
                        .is_none_or(|old| old.access != Access::Deny) =>
                {
                    let label = POLICY_FILE.to_owned();
                    rules.replace(FileRule {
                        place,
                        access: Access::Read,
                        label,
                    });
                }
                Ok(_) => {}
                Err(fault) => {
                    let message = format!("the policy's file: {}", fault.message);
                    self.report.file_error(&message, fault.hint.as_deref());
                }
            }
        }
    }

    /// Sandboxd's own places: a policy that would open them is wrong.
    fn protect_own(&mut self, rules: &mut Rules, additions: &Additions) {
        let places = own::places(additions.state.as_deref());
        for rule in &rules.list {
            if let Some(path) = own::opened(rule, &places) {
                let message = format!(
                    "`{}` would open `{}`, which is sandboxd's own",
                    rule.label,
                    path.display()
                );
                let hint = "a sandbox does not change what contains it: leave the place out";
                self.report.file_error(&message, Some(hint));
            }
        }
        for (path, most) in places {
            // Where less is allowed it stays less.
            let allowed = rules.nearest(path).map(|rule| rule.access);
            if allowed.is_some_and(|access| own::exceeds(access, most)) {
                rules.replace(FileRule {
                    place: Place::Path(path.into()),
                    access: most,
                    label: own::LABEL.to_owned(),
                });
            }
        }
    }

    fn devices(&mut self, document: &Document) -> Vec<Device> {
        let mut devices = Vec::new();
        for (pattern, item) in &document.devices {
            for place in self.places(pattern, &item.span) {
                if let Place::Path(path) = place {
                    let label = item.text.clone();
                    devices.push(Device { path, label });
                }
            }
        }
        devices
    }

    fn unix(&mut self, document: &Document) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for (pattern, item) in &document.network.unix {
            paths.extend(
                self.places(pattern, &item.span)
                    .into_iter()
                    .filter_map(|it| match it {
                        Place::Path(path) => Some(path),
                        Place::Name { .. } => None,
                    }),
            );
        }
        paths
    }

    fn variables(&mut self, document: &Document) -> BTreeMap<String, OsString> {
        let mut variables = BTreeMap::new();
        for (name, (segments, span)) in &document.env.set {
            let mut value = OsString::new();
            for segment in segments {
                match segment {
                    Segment::Text(text) => value.push(text),
                    Segment::Place(base) => match base.expand(&self.expansion).first() {
                        Some(path) => value.push(path),
                        None => self.no_value(*base, span),
                    },
                }
            }
            variables.insert(name.clone(), value);
        }
        variables
    }

    fn places(&mut self, pattern: &Pattern, span: &Span) -> Vec<Place> {
        let places = pattern.expand(&self.expansion);
        if places.is_empty() {
            self.no_value(pattern.base, span);
        }
        places
    }

    fn no_value(&mut self, base: Base, span: &Span) {
        let message = format!("`{}` stands for nothing: none was given", base.as_str());
        let hint = (base == Base::Workspace).then_some("name a workspace");
        self.report.error(span.clone(), &message, hint);
    }
}
