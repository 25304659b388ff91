//! Pins: links and maps that outlive the daemon, below one directory a load.
//! The walls stand while no daemon runs; the next one attaches its own set
//! before it takes the old one away.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{Array, Map, MapData},
    programs::{
        ProgramError,
        links::{FdLink, PinnedLink},
        loaded_programs,
    },
};

use super::{Filter, FilterMap, KernelError, PIN_DIRECTORY, Policies, map};

/// Version of what is pinned: map layouts and the meaning of their values.
const SCHEMA: &str = "v1";

/// The map that is pinned last: a directory without it is not whole.
const LAST: &str = "SEED";

/// What the names of pinned links begin with.
const LINK: &str = "link_";

/// How long the kernel may take to detach programs.
const PATIENCE: Duration = Duration::from_mins(1);

/// The pins of one load.
pub(super) struct Pins {
    directory: PathBuf,
    finished: std::cell::Cell<bool>,
}

/// What earlier daemons left: usually one load, more if one was killed while
/// it started.
pub(super) struct Earlier {
    /// Of this schema and whole, the newest last.
    usable: Vec<PathBuf>,
    /// The rest.
    other: Vec<PathBuf>,
}

/// The maps of a load whose programs are still in force.
pub(super) struct Adopted {
    pub(super) policies: Policies,
    pub(super) filter: FilterMap,
}

impl Earlier {
    /// Looks for the pins of earlier daemons.
    pub(super) fn find() -> Result<Self, KernelError> {
        let root = Path::new(PIN_DIRECTORY);
        let mut all = Vec::new();
        match fs::read_dir(root) {
            Ok(entries) => {
                for entry in entries {
                    all.push(entry.map_err(pin("read", root))?.path());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(pin("read", root)(error)),
        }
        // Names end in the boot time of the load: the newest sorts last.
        all.sort();
        let (usable, other) = all.into_iter().partition(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(SCHEMA))
                && path.join(LAST).exists()
        });
        Ok(Self { usable, other })
    }

    /// The seed of the names in their policies; each took it from the one before.
    pub(super) fn seed(&self) -> Result<Option<u64>, KernelError> {
        let Some(newest) = self.usable.last() else {
            return Ok(None);
        };
        let seed: Array<MapData, u64> = open(newest, LAST, Map::Array)?;
        seed.get(&0, 0).map(Some).map_err(map("read the seed"))
    }

    /// Copies the newest policies, so that whoever is still in a sandbox keeps
    /// them under the new programs; returns the maps of all.
    pub(super) fn adopt(
        &self,
        policies: &mut Policies,
        filter: &mut Filter,
    ) -> Result<Vec<Adopted>, KernelError> {
        let mut sets = Vec::new();
        for path in &self.usable {
            sets.push(Adopted {
                policies: open(path, "POLICIES", Map::HashOfMaps)?,
                filter: open(path, "FILTER", Map::Array)?,
            });
        }
        if let Some(newest) = sets.last() {
            filter.adopt(&newest.filter)?;
            for sandbox in newest.policies.keys() {
                let sandbox = sandbox.map_err(map("read an earlier policy"))?;
                let rules = newest.policies.get(&sandbox, 0);
                let rules = rules.map_err(map("read an earlier policy"))?;
                let adopted = policies.insert(sandbox, &rules, 0);
                adopted.map_err(map("adopt a policy"))?;
            }
        }
        Ok(sets)
    }

    /// Removes the pins that cannot be told of new sandboxes. Their programs,
    /// which refuse what they do not know, are detached when it returns.
    pub(super) fn remove_other(&mut self) -> Result<(), KernelError> {
        detach(&std::mem::take(&mut self.other))
    }

    /// Removes the rest, likewise.
    pub(super) fn remove(&mut self) -> Result<(), KernelError> {
        detach(&std::mem::take(&mut self.usable))
    }
}

impl Pins {
    /// Makes the directory of a load, and pins its maps.
    pub(super) fn begin(ebpf: &Ebpf) -> Result<Self, KernelError> {
        let root = Path::new(PIN_DIRECTORY);
        let since_boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
            .map_err(|error| pin("name a directory", root)(error.into()))?;
        let directory = root.join(format!(
            "{SCHEMA}-{:010}{:09}",
            since_boot.tv_sec(),
            since_boot.tv_nsec()
        ));
        fs::create_dir_all(&directory).map_err(pin("make a directory", &directory))?;
        let pins = Self {
            directory,
            finished: false.into(),
        };
        for name in ["POLICIES", "FILTER"] {
            pins.map(ebpf, name)?;
        }
        Ok(pins)
    }

    /// Pins the links: from here on the programs outlive this process.
    pub(super) fn links(&self, links: Vec<(&'static str, FdLink)>) -> Result<(), KernelError> {
        for (name, link) in links {
            let path = self.directory.join(format!("{LINK}{name}"));
            link.pin(&path)
                .map_err(|error| pin("pin a link", &path)(io::Error::other(error)))?;
        }
        Ok(())
    }

    /// Marks the load as whole.
    pub(super) fn finish(&self, ebpf: &mut Ebpf, seed: u64) -> Result<(), KernelError> {
        let found = ebpf.map_mut(LAST).ok_or(KernelError::Object(LAST))?;
        let mut array = Array::<_, u64>::try_from(found).map_err(map("store the seed"))?;
        array.set(0, seed, 0).map_err(map("store the seed"))?;
        self.map(ebpf, LAST)?;
        self.finished.set(true);
        Ok(())
    }

    /// Removes the pins; the programs detach with them.
    pub(super) fn remove(&self) -> Result<(), KernelError> {
        remove(&self.directory)
    }

    fn map(&self, ebpf: &Ebpf, name: &'static str) -> Result<(), KernelError> {
        let path = self.directory.join(name);
        let found = ebpf.map(name).ok_or(KernelError::Object(name))?;
        found
            .pin(&path)
            .map_err(|error| pin("pin a map", &path)(io::Error::other(error)))
    }
}

fn remove(path: &Path) -> Result<(), KernelError> {
    fs::remove_dir_all(path).map_err(pin("remove pins", path))
}

/// Removes the pins of loads and waits until their programs are gone: the kernel
/// detaches them later, from a queue of work.
fn detach(loads: &[PathBuf]) -> Result<(), KernelError> {
    let mut programs = BTreeSet::new();
    for load in loads {
        for entry in fs::read_dir(load).map_err(pin("read", load))? {
            let path = entry.map_err(pin("read", load))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(LINK) {
                programs.insert(program(&path)?);
            }
        }
        remove(load)?;
    }
    let start = Instant::now();
    while is_any_loaded(&programs)? {
        if start.elapsed() > PATIENCE {
            return Err(KernelError::Lingering);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The id of the program that a pinned link attaches.
fn program(link: &Path) -> Result<u32, KernelError> {
    PinnedLink::from_pin(link)
        .and_then(|pinned| FdLink::from(pinned).info())
        .map(|info| info.program_id())
        .map_err(|error| pin("open a link", link)(io::Error::other(error)))
}

fn is_any_loaded(programs: &BTreeSet<u32>) -> Result<bool, KernelError> {
    if programs.is_empty() {
        return Ok(false);
    }
    for program in loaded_programs() {
        match program {
            Ok(program) if programs.contains(&program.id()) => return Ok(true),
            Ok(_) => {}
            // It went while the list was read.
            Err(ProgramError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(KernelError::Programs(error)),
        }
    }
    Ok(false)
}

/// A load that failed half-way leaves nothing.
impl Drop for Pins {
    fn drop(&mut self) {
        if !self.finished.get() {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

fn open<T>(directory: &Path, name: &str, kind: fn(MapData) -> Map) -> Result<T, KernelError>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    MapData::from_pin(directory.join(name))
        .and_then(|data| T::try_from(kind(data)))
        .map_err(map("open an earlier map"))
}

fn pin(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KernelError {
    let path = path.to_owned();
    move |source| KernelError::Pin {
        action,
        path,
        source,
    }
}
