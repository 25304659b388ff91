//! `sandbox doctor`: each requirement, its state, and what to do about it.

use std::{fs, io, path::Path};

use nix::{sys::statfs, unistd::Uid};
use serde::Serialize;

use super::{
    args::{DoctorArgs, Output},
    block_on,
    error::{CliError, Exit},
    host::Host,
    json, print,
    version::VERSION,
};
use crate::{
    cgroup::{CgroupError, Controllers, Hierarchy, missing_controller},
    chain::Chain,
    escape::printable,
    kernel,
    proto::{GetInfoRequest, GetInfoResponse},
};

/// How a requirement stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Met,
    Missing,
    /// It takes more rights to tell.
    NotChecked,
}

/// One requirement.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// What was found.
    detail: String,
    /// What to do, unless it is met.
    remedy: Option<String>,
}

impl Check {
    fn met(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Met,
            detail: detail.into(),
            remedy: None,
        }
    }

    fn missing(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Missing,
            detail: detail.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn not_checked(name: &'static str) -> Self {
        Self {
            name,
            state: State::NotChecked,
            detail: "needs root".to_owned(),
            remedy: Some("run `sudo sandbox doctor`".to_owned()),
        }
    }
}

/// Prints every check; a success only if all are met.
pub fn doctor(args: &DoctorArgs, host: &Host) -> Result<Exit, CliError> {
    let root = Uid::effective().is_root();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut checks = vec![
        release(&kernel),
        btf(Path::new("/sys/kernel/btf/vmlinux")),
        lsm(fs::read_to_string("/sys/kernel/security/lsm"), root),
        lockdown(
            fs::read_to_string("/sys/kernel/security/lockdown"),
            root,
            Path::new("/sys/kernel/security/lsm").exists(),
        ),
        cgroup(Hierarchy::find(), &kernel),
        controllers(
            Hierarchy::find()
                .ok()
                .map_or_else(Controllers::default, |hierarchy| {
                    Controllers::available(hierarchy.path())
                }),
        ),
        bpffs(root),
    ];
    checks.extend(programs(root));
    if !args.no_daemon {
        checks.extend(daemon(host));
    }
    print(&match args.output {
        Output::Text => text(&checks),
        Output::Json => json::pretty(&checks),
    })?;
    Ok(verdict(&checks))
}

fn verdict(checks: &[Check]) -> Exit {
    if checks.iter().all(|check| check.state == State::Met) {
        Exit::Success
    } else {
        Exit::Failure
    }
}

fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max();
    let width = width.unwrap_or_default();
    let mut lines = Vec::new();
    for check in checks {
        let mark = match check.state {
            State::Met => "✓",
            State::Missing => "✗",
            State::NotChecked => "?",
        };
        let detail = match check.state {
            State::Met => check.detail.clone(),
            State::Missing => format!("missing: {}", check.detail),
            State::NotChecked => format!("not checked: {}", check.detail),
        };
        lines.push(format!("{mark} {:width$}  {detail}", check.name));
        if let Some(remedy) = &check.remedy {
            lines.push(format!("  {:width$}  hint: {remedy}", ""));
        }
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    lines.push(format!(
        "\n{} met, {} missing, {} not checked\n",
        count(State::Met),
        count(State::Missing),
        count(State::NotChecked)
    ));
    lines.join("\n")
}

fn release(release: &str) -> Check {
    const NAME: &str = "kernel 6.1 or later";
    let release = release.trim();
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or_default());
    let version = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    if version >= (6, 1) {
        Check::met(NAME, release)
    } else {
        Check::missing(NAME, format!("this is {release}"), "boot a newer kernel")
    }
}

fn btf(path: &Path) -> Check {
    const NAME: &str = "kernel type information (BTF)";
    if path.exists() {
        Check::met(NAME, path.display().to_string())
    } else {
        Check::missing(
            NAME,
            format!("there is no `{}`", path.display()),
            "boot a kernel built with `CONFIG_DEBUG_INFO_BTF=y`",
        )
    }
}

fn lsm(list: io::Result<String>, root: bool) -> Check {
    const NAME: &str = "BPF among the security modules";
    match list {
        Ok(list) if list.trim().split(',').any(|module| module == "bpf") => {
            Check::met(NAME, list.trim())
        }
        Ok(list) => Check::missing(
            NAME,
            format!("active are `{}`", list.trim()),
            format!(
                "boot with `lsm={},bpf` on the kernel's command line",
                list.trim()
            ),
        ),
        Err(_) if !root => Check::not_checked(NAME),
        Err(error) => Check::missing(
            NAME,
            format!("cannot read `/sys/kernel/security/lsm`: {error}"),
            "mount securityfs: `mount -t securityfs securityfs /sys/kernel/security`",
        ),
    }
}

/// A kernel without lockdown has no such file, nor has one whose securityfs is
/// not mounted.
fn lockdown(modes: io::Result<String>, root: bool, securityfs: bool) -> Check {
    const NAME: &str = "lockdown not at confidentiality";
    match modes {
        Ok(modes) if modes.contains("[confidentiality]") => Check::missing(
            NAME,
            "it is at `confidentiality`, which forbids reading kernel memory",
            "boot with `lockdown=integrity` on the kernel's command line",
        ),
        Ok(modes) => Check::met(NAME, modes.trim()),
        Err(error) if securityfs && error.kind() == io::ErrorKind::NotFound => {
            Check::met(NAME, "this kernel has no lockdown")
        }
        Err(_) if !root => Check::not_checked(NAME),
        Err(error) => Check::missing(
            NAME,
            format!("cannot read `/sys/kernel/security/lockdown`: {error}"),
            "mount securityfs: `mount -t securityfs securityfs /sys/kernel/security`",
        ),
    }
}

/// The root of the hierarchy has no cgroup.kill, so the kernel's version (5.14)
/// answers for it.
fn cgroup(found: Result<Hierarchy, CgroupError>, release: &str) -> Check {
    const NAME: &str = "cgroup2 with cgroup.kill";
    match found {
        Ok(hierarchy) if self::release(release).state == State::Met => {
            Check::met(NAME, hierarchy.path().display().to_string())
        }
        Ok(_) => Check::missing(NAME, "the kernel is too old", "boot a newer kernel"),
        Err(error) => {
            let Chain { message, hint } = Chain::of(&error);
            Check::missing(NAME, message, hint.unwrap_or_default())
        }
    }
}

/// What `[limits]` of a policy needs; without `io` only less is told at the end.
fn controllers(found: Controllers) -> Check {
    const NAME: &str = "cgroup2 controllers for limits";
    let present: Vec<&str> = found.present().collect();
    let without: Vec<&str> = found.missing().collect();
    if let Some(name) = without.iter().find(|name| **name != "io") {
        let (why, remedy) = missing_controller(name);
        let detail = format!("no {}: {why}", without.join(", "));
        return Check::missing(NAME, detail, remedy);
    }
    let without = match without[..] {
        [] => String::new(),
        _ => format!(
            "; without {}: what is read and written is not counted",
            without.join(", ")
        ),
    };
    Check::met(NAME, format!("{}{without}", present.join(", ")))
}

fn bpffs(root: bool) -> Check {
    const NAME: &str = "bpffs on /sys/fs/bpf";
    match statfs::statfs("/sys/fs/bpf").map(|found| found.filesystem_type()) {
        Ok(statfs::BPF_FS_MAGIC) => Check::met(NAME, "mounted"),
        Err(nix::errno::Errno::EACCES) if !root => Check::not_checked(NAME),
        _ => Check::missing(
            NAME,
            "it is not mounted",
            "mount it: `mount -t bpf bpf /sys/fs/bpf`",
        ),
    }
}

/// Loads and attaches programs, because a kernel's configuration does not say
/// whether it takes them.
fn programs(root: bool) -> Vec<Check> {
    if !root {
        return vec![Check::not_checked("kernel programs load and attach")];
    }
    let probes = kernel::probe();
    let check = |probe: kernel::Probe| match probe.detail() {
        None => Check::met(probe.name, "tried"),
        Some(detail) => Check::missing(probe.name, detail, probe.remedy),
    };
    probes.into_iter().map(check).collect()
}

fn daemon(host: &Host) -> Vec<Check> {
    const REACHABLE: &str = "daemon reachable";
    let info = block_on(async {
        let mut client = host.connect().await?;
        Ok(client.get_info(GetInfoRequest {}).await?.into_inner())
    });
    match info {
        Ok(info) => vec![
            Check::met(REACHABLE, host.to_string()),
            versions(&info),
            hooks(&info),
            proxy(&info),
        ],
        Err(error) => vec![Check::missing(
            REACHABLE,
            error.message(),
            error.hint().unwrap_or_default(),
        )],
    }
}

fn versions(info: &GetInfoResponse) -> Check {
    const NAME: &str = "versions agree";
    if info.version == VERSION {
        Check::met(NAME, VERSION)
    } else {
        Check::missing(
            NAME,
            format!("client {VERSION}, daemon {}", info.version),
            "restart the daemon after an upgrade: `systemctl restart sandboxd`",
        )
    }
}

/// The way out of sandboxes whose policy lets hosts through.
fn proxy(info: &GetInfoResponse) -> Check {
    const NAME: &str = "proxy running";
    let remedy = "see the daemon's log: `journalctl -u sandboxd`";
    match &info.proxy {
        Some(proxy) if proxy.running => Check::met(NAME, "yes"),
        Some(proxy) => Check::missing(NAME, printable(&proxy.detail), remedy),
        None => Check::missing(NAME, "the daemon has none", remedy),
    }
}

fn hooks(info: &GetInfoResponse) -> Check {
    const NAME: &str = "hooks loaded";
    let loaded = info.hooks.iter().filter(|hook| hook.loaded).count();
    let without = |class: &str| {
        let hooks = info.hooks.iter();
        let missing = hooks.filter(|hook| !hook.loaded && hook.class == class);
        let names: Vec<&str> = missing.map(|hook| hook.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("without {class} {}", names.join(", ")))
    };
    let remedy = "see its log: `journalctl -u sandboxd`";
    if info.hooks.is_empty() {
        return Check::missing(NAME, "the daemon reports none", remedy);
    }
    if let Some(missing) = without("required") {
        return Check::missing(NAME, missing, remedy);
    }
    // What only some kernels have, others do not need.
    let others = ["recommended", "optional"].into_iter().filter_map(without);
    let detail: Vec<String> = [loaded.to_string()].into_iter().chain(others).collect();
    Check::met(NAME, detail.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Hook;

    #[test]
    fn a_proxy_that_does_not_run_is_missing_with_its_reason() {
        let mut info = GetInfoResponse::default();
        assert_eq!(proxy(&info).state, State::Missing);
        info.proxy = Some(crate::proto::Proxy {
            running: false,
            detail: "it ended with exit status: 1".into(),
        });
        assert_eq!(proxy(&info).detail, "it ended with exit status: 1");
        info.proxy = Some(crate::proto::Proxy {
            running: true,
            detail: String::new(),
        });
        assert_eq!(proxy(&info).state, State::Met);
    }

    #[test]
    fn old_kernels_are_missing_with_a_remedy() {
        assert_eq!(release("6.1.0-49-amd64\n").state, State::Met);
        assert_eq!(release("6.12.3").state, State::Met);
        assert_eq!(release("10.0").state, State::Met);
        assert_eq!(release("5.15.0-generic").state, State::Missing);
        assert_eq!(release("").state, State::Missing);
    }

    #[test]
    fn without_bpf_the_boot_parameter_is_spelled_out() {
        assert_eq!(lsm(Ok("lockdown,bpf\n".into()), true).state, State::Met);
        let check = lsm(Ok("lockdown,yama,apparmor\n".into()), true);
        assert_eq!(check.state, State::Missing);
        assert!(
            check
                .remedy
                .unwrap()
                .contains("`lsm=lockdown,yama,apparmor,bpf`")
        );
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        assert_eq!(lsm(denied(), false).state, State::NotChecked);
        assert_eq!(lsm(denied(), true).state, State::Missing);
    }

    #[test]
    fn only_confidentiality_is_too_much_lockdown() {
        let state = |modes: &str| lockdown(Ok(modes.to_owned()), true, true).state;
        assert_eq!(state("none [integrity] confidentiality\n"), State::Met);
        assert_eq!(state("none integrity [confidentiality]\n"), State::Missing);
        let absent = |mounted| lockdown(Err(io::ErrorKind::NotFound.into()), true, mounted).state;
        assert_eq!(absent(true), State::Met);
        assert_eq!(absent(false), State::Missing);
    }

    #[test]
    fn controllers_that_are_missing_are_named_with_what_is_there() {
        let found = |list: &str| {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("cgroup.controllers"), list).unwrap();
            controllers(Controllers::available(directory.path()))
        };
        let all = found("cpuset cpu io memory pids\n");
        assert_eq!(
            (all.state, all.detail.as_str()),
            (State::Met, "memory, cpu, pids, io")
        );
        let countless = found("cpu memory pids\n");
        assert_eq!(countless.state, State::Met);
        assert!(countless.detail.contains("without io"), "{countless:?}");
        let none = found("hugetlb\n");
        assert_eq!(none.state, State::Missing);
        assert!(
            none.detail.starts_with("no memory, cpu, pids, io: "),
            "{none:?}"
        );
        assert!(none.remedy.is_some());
    }

    #[test]
    fn a_hierarchy_that_is_not_there_has_a_remedy() {
        let check = cgroup(Err(CgroupError::NotMounted), "6.1.0");
        assert_eq!(check.state, State::Missing);
        assert!(check.remedy.unwrap().contains("mount -t cgroup2"));
    }

    #[test]
    fn a_hook_that_is_not_loaded_is_named_with_its_class() {
        let hook = |name: &str, class: &str, loaded| Hook {
            name: name.into(),
            loaded,
            class: class.into(),
            ..Hook::default()
        };
        let mut info = GetInfoResponse {
            hooks: vec![
                hook("file_open", "required", true),
                hook("inode_link", "required", true),
                hook("file_truncate", "optional", true),
                hook("key_alloc", "recommended", true),
            ],
            ..GetInfoResponse::default()
        };
        assert_eq!(hooks(&info), Check::met("hooks loaded", "4"));
        info.hooks[2].loaded = false;
        let found = hooks(&info);
        assert_eq!(found.detail, "3; without optional file_truncate");
        info.hooks[3].loaded = false;
        let found = hooks(&info);
        assert_eq!(found.state, State::Met);
        assert_eq!(
            found.detail,
            "2; without recommended key_alloc; without optional file_truncate"
        );
        info.hooks[1].loaded = false;
        let found = hooks(&info);
        assert_eq!(found.state, State::Missing);
        assert_eq!(found.detail, "without required inode_link");
        info.hooks.clear();
        assert_eq!(hooks(&info).state, State::Missing);
    }

    #[test]
    fn what_was_not_checked_is_not_a_success() {
        let checks = [Check::met("one", "yes"), Check::not_checked("other")];
        assert_eq!(verdict(&checks), Exit::Failure);
        assert_eq!(verdict(&checks[..1]), Exit::Success);
        assert_eq!(
            text(&checks),
            "✓ one    yes\n\
             ? other  not checked: needs root\n\
             \u{20}        hint: run `sudo sandbox doctor`\n\
             \n\
             1 met, 0 missing, 1 not checked\n"
        );
    }
}
