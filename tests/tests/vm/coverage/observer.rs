//! The observer: its programs on every hook of the running kernel, and actions
//! performed under them, each by a process of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    ptr,
};

use aya::{
    Btf, BtfError, Ebpf,
    maps::{HashMap, Map, MapData},
    programs::{
        CgroupAttachMode, CgroupSkbAttachType, FEntry, Lsm, Program, ProgramError, links::FdLink,
    },
};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, alarm, fork},
};

use super::call::{Action, Window};

/// The object of `sandbox-ebpf/src/observer.rs`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/observer"));

/// The programs on the cgroup, in the order of its `Point`s.
const POINTS: [&str; 22] = [
    "sock_create",
    "sock_release",
    "post_bind4",
    "post_bind6",
    "bind4",
    "bind6",
    "connect4",
    "connect6",
    "sendmsg4",
    "sendmsg6",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "getsockname4",
    "getsockname6",
    "getsockopt",
    "setsockopt",
    "ingress",
    "egress",
    "device",
    "sysctl",
];

/// Functions of the kernel that are named like a hook's and are none.
const NO_HOOKS: [&str; 9] = [
    "find_cgroup_shim",
    "func_proto",
    "get_retval_range",
    "init",
    "is_sleepable_hook",
    "is_trusted",
    "kfunc_set_init",
    "set_retval",
    "verify_prog",
];

/// What the watched processes are in.
pub(super) const CGROUP: &str = "/sys/fs/cgroup/observed";

/// Where they work.
const WORKPLACE: &str = "/srv/observed";

/// How often an action is performed: what else happens in the kernel at that
/// moment is not in most of them.
const ROUNDS: usize = 3;

/// Seconds after which an action hangs.
const PATIENCE: u32 = 30;

/// Programs at work.
pub(super) struct Observer {
    window: Window,
    reached: HashMap<MapData, u64, u64>,
    /// Start of a hook's function -> the hook.
    functions: BTreeMap<u64, String>,
    /// Hooks that take no program which decides.
    closed: BTreeSet<String>,
    _ebpf: Ebpf,
    _links: Vec<FdLink>,
}

/// What an action came to.
pub(super) struct Observed {
    /// `ok`, an error's name or a signal's.
    pub(super) answer: String,
    pub(super) hooks: BTreeSet<String>,
}

impl Observer {
    /// Loads and attaches them.
    pub(super) fn start() -> Self {
        fs::create_dir_all(CGROUP).unwrap();
        fs::create_dir_all(WORKPLACE).unwrap();
        let types = Btf::from_sys_fs().unwrap();
        let mut functions = functions();
        let mut ebpf = Ebpf::load(OBJECT).unwrap();
        let links = on_hooks(&mut ebpf, &types, &mut functions);
        on_cgroup(&mut ebpf).unwrap();
        let closed = closed(&mut ebpf, &types, &functions);
        let Some(Map::Array(watched)) = ebpf.take_map("WATCHED") else {
            panic!("the object has no map `WATCHED`");
        };
        Self {
            window: Window::over(page(&watched)),
            reached: ebpf.take_map("REACHED").unwrap().try_into().unwrap(),
            functions,
            closed,
            _ebpf: ebpf,
            _links: links,
        }
    }

    /// The hooks of this kernel, and whether a program that decides can go there.
    pub(super) fn hooks(&self) -> impl Iterator<Item = (&str, bool)> {
        self.functions
            .values()
            .map(|hook| (hook.as_str(), !self.closed.contains(hook)))
    }

    /// What most performances of an action come to.
    pub(super) fn observe(&mut self, action: &Action) -> Observed {
        let rounds: Vec<_> = (0..ROUNDS).map(|_| self.perform(action)).collect();
        let most = |test: &dyn Fn(&Observed) -> bool| {
            2 * rounds.iter().filter(|round| test(round)).count() > ROUNDS
        };
        let answer = rounds
            .iter()
            .map(|round| &round.answer)
            .find(|answer| most(&|round| round.answer == **answer))
            .unwrap_or_else(|| panic!("`{}` is answered differently each time", action.name));
        let all: BTreeSet<_> = rounds.iter().flat_map(|round| &round.hooks).collect();
        let hooks = all
            .into_iter()
            .filter(|hook| most(&|round| round.hooks.contains(*hook)));
        Observed {
            answer: answer.clone(),
            hooks: hooks.cloned().collect(),
        }
    }

    fn perform(&mut self, action: &Action) -> Observed {
        let old: Vec<_> = self.reached.keys().filter_map(Result::ok).collect();
        for what in old {
            self.reached.remove(&what).unwrap();
        }
        let place = Path::new(WORKPLACE).join("work");
        fs::create_dir(&place).unwrap();
        // SAFETY: this program has one thread.
        let status = match unsafe { fork() }.unwrap() {
            ForkResult::Child => act(action, self.window, &place),
            ForkResult::Parent { child } => waitpid(child, None).unwrap(),
        };
        self.window.close();
        fs::remove_dir_all(&place).unwrap();
        let answer = match status {
            WaitStatus::Exited(_, 0) => "ok".to_owned(),
            WaitStatus::Exited(_, UNREADY) => panic!("`{}` could not be tried", action.name),
            WaitStatus::Exited(_, errno) => format!("{:?}", Errno::from_raw(errno)),
            WaitStatus::Signaled(_, signal, _) => signal.as_str().to_owned(),
            other => panic!("`{}`: {other:?}", action.name),
        };
        let reached = self.reached.keys().map(Result::unwrap);
        Observed {
            answer,
            hooks: reached.map(|what| self.name(what)).collect(),
        }
    }

    fn name(&self, what: u64) -> String {
        if let Some(point) = usize::try_from(what).ok().and_then(|at| POINTS.get(at)) {
            return format!("cgroup/{point}");
        }
        // The address is that of the first instruction, or of the one after
        // the mark of a place to jump to.
        let (start, hook) = self.functions.range(..=what).next_back().unwrap();
        assert!(what - start < 16, "{what:#x} is no hook");
        hook.clone()
    }
}

/// The exit status of a process that could not make its action ready.
const UNREADY: i32 = 255;

/// The child's part: never returns.
fn act(action: &Action, window: Window, place: &Path) -> ! {
    let answer = catch_unwind(AssertUnwindSafe(|| {
        alarm::set(PATIENCE);
        fs::write(Path::new(CGROUP).join("cgroup.procs"), "0").unwrap();
        // Mounts of its own, of which nothing is left.
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        std::env::set_current_dir(place).unwrap();
        (action.act)(window)
    }));
    window.close();
    let status = match answer {
        Ok(Ok(())) => 0,
        Ok(Err(errno)) => errno as i32,
        Err(_) => UNREADY,
    };
    // SAFETY: ends the process; what would run at its end is the parent's.
    unsafe { libc::_exit(status) }
}

/// The functions of the kernel that stand for a hook, by their addresses.
fn functions() -> BTreeMap<u64, String> {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let functions = symbols.lines().filter_map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        // One of a module's has more words.
        let [address, _, name] = words[..] else {
            return None;
        };
        let hook = name.strip_prefix("bpf_lsm_")?;
        let address = u64::from_str_radix(address, 16).unwrap();
        (!NO_HOOKS.contains(&hook)).then(|| (address, hook.to_owned()))
    });
    functions.collect()
}

/// The program `hook` at the entry of each; those that the kernel has no type
/// of are none.
fn on_hooks(ebpf: &mut Ebpf, types: &Btf, functions: &mut BTreeMap<u64, String>) -> Vec<FdLink> {
    let program: &mut FEntry = ebpf.program_mut("hook").unwrap().try_into().unwrap();
    let mut attach = |hook: &str| {
        program.load(&format!("bpf_lsm_{hook}"), types)?;
        let id = program.attach()?;
        let link = program.take_link(id)?;
        program.unload()?;
        Ok::<FdLink, ProgramError>(link.into())
    };
    let mut links = Vec::new();
    functions.retain(|_, hook| match attach(hook) {
        Ok(link) => {
            links.push(link);
            true
        }
        Err(ProgramError::Btf(BtfError::UnknownBtfTypeName { .. })) => false,
        Err(error) => panic!("{hook}: {error:?}"),
    });
    links
}

/// The hooks that the verifier lets no program decide for.
fn closed(ebpf: &mut Ebpf, types: &Btf, functions: &BTreeMap<u64, String>) -> BTreeSet<String> {
    let program: &mut Lsm = ebpf.program_mut("decide").unwrap().try_into().unwrap();
    let mut closed = BTreeSet::new();
    for hook in functions.values() {
        match program.load(hook, types) {
            Ok(()) => program.unload().unwrap(),
            Err(ProgramError::LoadError { .. }) => drop(closed.insert(hook.clone())),
            Err(error) => panic!("{hook}: {error:?}"),
        }
    }
    closed
}

/// The programs of the cgroup.
fn on_cgroup(ebpf: &mut Ebpf) -> Result<(), ProgramError> {
    let cgroup = fs::File::open(CGROUP).unwrap();
    let mode = CgroupAttachMode::Single;
    for point in POINTS {
        macro_rules! attach {
            ($program:ident $(, $direction:expr)?) => {{
                $program.load()?;
                $program.attach(&cgroup, $($direction,)? mode).map(drop)?;
            }};
        }
        match ebpf.program_mut(point).unwrap() {
            Program::CgroupSock(program) => attach!(program),
            Program::CgroupSockAddr(program) => attach!(program),
            Program::CgroupSockopt(program) => attach!(program),
            Program::CgroupDevice(program) => attach!(program),
            Program::CgroupSysctl(program) => attach!(program),
            Program::CgroupSkb(program) if point == "ingress" => {
                attach!(program, CgroupSkbAttachType::Ingress);
            }
            Program::CgroupSkb(program) => attach!(program, CgroupSkbAttachType::Egress),
            _ => panic!("`{point}` is for no cgroup"),
        }
    }
    Ok(())
}

/// The one page of the map, shared with the processes to come.
fn page(watched: &MapData) -> *mut u32 {
    // SAFETY: a new mapping, where the kernel has room for one.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            watched.fd().as_fd().as_raw_fd(),
            0,
        )
    };
    assert!(page != libc::MAP_FAILED, "{}", Errno::last());
    page.cast()
}
