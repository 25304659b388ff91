//! The programs of the network wall that are attached to a cgroup, as the
//! registry's enforcer. Files and scope have no walls here.

use std::{
    error::Error,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, HashOfMaps, Map, MapData, RingBuf},
    programs::{CgroupAttachMode, CgroupSkbAttachType, Program},
};
use sandbox_common::{Counters, Entrances, Identity, Key, Value};
use sandbox_daemon::{
    cgroup::Slice,
    events::Events,
    kernel::{self, Circumstances, Identify, KernelError},
    sandbox::{EnforceError, Enforcer, EnforcerState, FlowMaps, Installation, Installed},
    sys::Watched,
};
use tokio::io::Interest;

const ADDRESS_PROGRAMS: [&str; 10] = [
    "connect4",
    "connect6",
    "sendmsg4",
    "sendmsg6",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "bind4",
    "bind6",
];

/// The programs, attached for as long as this is there.
pub struct NetworkWall {
    policies: Mutex<HashOfMaps<MapData, u64, HashMap<MapData, Key, Value>>>,
    counters: Mutex<HashMap<MapData, u64, Counters>>,
    entrances: Mutex<Array<MapData, Entrances>>,
    flows: OwnedFd,
    asked: OwnedFd,
    ring: Mutex<Option<RingBuf<MapData>>>,
    _programs: Ebpf,
}

impl NetworkWall {
    /// Loads them, and attaches them to a slice.
    ///
    /// # Errors
    /// The kernel's.
    pub fn raise(slice: &Slice) -> Result<Arc<Self>, Box<dyn Error>> {
        let mut loader = EbpfLoader::new();
        let level = slice.sandbox_level();
        let (id, daemon) = (slice.id(), std::process::id());
        loader
            .override_global("SANDBOX_LEVEL", &level, true)
            .override_global("SLICE_ID", &id, true)
            .override_global("DAEMON_PID", &daemon, true)
            .override_global("NAME_SEED", &1_u64, true)
            .override_global("EVENT_BURST", &4096_u64, true)
            .override_global("EVENT_INTERVAL_NS", &1_000_000_u64, true);
        let offsets = kernel::offsets()?;
        for (constant, offset) in &offsets {
            loader.override_global(constant, offset, true);
        }
        let mut ebpf = loader.load(kernel::OBJECT)?;
        attach(&mut ebpf, slice)?;
        let share = |name: &str| -> Result<OwnedFd, Box<dyn Error>> {
            match ebpf.map(name) {
                Some(Map::HashMap(data)) => Ok(data.fd().as_fd().try_clone_to_owned()?),
                _ => Err(format!("no map {name}").into()),
            }
        };
        let (flows, asked) = (share("FLOWS")?, share("ASKED")?);
        let mut take = |name: &str| ebpf.take_map(name).ok_or(format!("no map {name}"));
        Ok(Arc::new(Self {
            policies: Mutex::new(take("POLICIES")?.try_into()?),
            counters: Mutex::new(take("COUNTERS")?.try_into()?),
            entrances: Mutex::new(take("ENTRANCES")?.try_into()?),
            ring: Mutex::new(Some(take("EVENTS")?.try_into()?)),
            flows,
            asked,
            _programs: ebpf,
        }))
    }

    /// Where the programs lead to now.
    ///
    /// # Panics
    /// Where the map cannot be read.
    #[must_use]
    pub fn entrances(&self) -> Entrances {
        self.entrances.lock().unwrap().get(&0, 0).unwrap()
    }

    /// Hands the programs' records to `events` for as long as the runtime lasts.
    ///
    /// # Panics
    /// When it is called twice.
    pub fn tell(&self, events: Arc<Events>) {
        let ring = self.ring.lock().unwrap().take().expect("called once");
        tokio::spawn(async move {
            let fd = ring.as_fd().try_clone_to_owned().unwrap();
            let ready = Watched::new(fd, Interest::READABLE).unwrap();
            let mut ring = ring;
            loop {
                while let Some(record) = ring.next() {
                    events.accept(&record);
                }
                ready.ready(Interest::READABLE).await.unwrap();
            }
        });
    }
}

fn attach(ebpf: &mut Ebpf, slice: &Slice) -> Result<(), Box<dyn Error>> {
    let cgroup = slice.cgroup().as_fd();
    let mode = CgroupAttachMode::Single;
    for (name, program) in ebpf.programs_mut() {
        match (name, program) {
            (name, Program::CgroupSockAddr(program)) if ADDRESS_PROGRAMS.contains(&name) => {
                program.load()?;
                program.attach(cgroup, mode)?;
            }
            ("sock_release", Program::CgroupSock(program)) => {
                program.load()?;
                program.attach(cgroup, mode)?;
            }
            ("sock_state", Program::SockOps(program)) => {
                program.load()?;
                program.attach(cgroup, mode)?;
            }
            ("egress", Program::CgroupSkb(program)) => {
                program.load()?;
                program.attach(cgroup, CgroupSkbAttachType::Egress, mode)?;
            }
            ("ingress", Program::CgroupSkb(program)) => {
                program.load()?;
                program.attach(cgroup, CgroupSkbAttachType::Ingress, mode)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Files as stat(2) has them: no program looks at them here.
struct Stat;

impl Identify for Stat {
    fn identify(&self, file: &OwnedFd) -> Result<Identity, KernelError> {
        let stat = nix::sys::stat::fstat(file).unwrap();
        Ok(Identity {
            dev: u32::try_from(stat.st_dev).unwrap_or_default(),
            ino: stat.st_ino,
            ..Identity::default()
        })
    }
}

fn boxed(error: impl Error + Send + Sync + 'static) -> EnforceError {
    EnforceError(Box::new(error))
}

impl Enforcer for NetworkWall {
    fn install(&self, installation: &Installation<'_>) -> Result<Installed, EnforceError> {
        let policy = installation.policy.clone();
        let generation = installation.generation;
        let mounts = installation.mounts.to_vec();
        let own = installation.own.cloned();
        let compiled = installation.view.call(move || {
            let circumstances = Circumstances {
                generation,
                seed: 1,
                mounts: &mounts,
                own: own.as_ref(),
                lower: None,
            };
            kernel::compile(&policy, circumstances, &Stat)
        });
        let compiled = compiled.map_err(boxed)?;
        let size = u32::try_from(compiled.entries.len()).unwrap_or(u32::MAX);
        let mut rules = HashMap::<MapData, Key, Value>::create(size, 0).map_err(boxed)?;
        for (key, value) in &compiled.entries {
            rules.insert(key, value, 0).map_err(boxed)?;
        }
        let mut policies = self.policies.lock().unwrap();
        policies
            .insert(installation.sandbox, &rules, 0)
            .map_err(boxed)?;
        Ok(Installed::default())
    }

    fn lend(&self, _: u64, _: BorrowedFd<'_>) -> Result<(), EnforceError> {
        Ok(())
    }

    fn remove(&self, sandbox: u64) {
        // One whose policy never came to be has none.
        let _ = self.policies.lock().unwrap().remove(&sandbox);
    }

    fn watch_exec(&self, exec: u64) -> Result<(), EnforceError> {
        let mut counters = self.counters.lock().unwrap();
        counters.insert(exec, Counters::default(), 0).map_err(boxed)
    }

    fn counters(&self, exec: u64) -> Counters {
        let counters = self.counters.lock().unwrap();
        counters.get(&exec, 0).unwrap_or_default()
    }

    fn unwatch_exec(&self, exec: u64) {
        self.counters.lock().unwrap().remove(&exec).unwrap();
    }

    fn flows(&self) -> Result<FlowMaps, EnforceError> {
        Ok(FlowMaps {
            flows: self.flows.try_clone().map_err(boxed)?,
            asked: self.asked.try_clone().map_err(boxed)?,
        })
    }

    fn admit(&self, entrances: &Entrances) -> Result<(), EnforceError> {
        let mut map = self.entrances.lock().unwrap();
        map.set(0, entrances, 0).map_err(boxed)
    }

    fn state(&self) -> EnforcerState {
        EnforcerState::default()
    }
}
