//! Pins: links and maps that outlive the daemon, below one directory a load.
//! The walls stand while no daemon runs; the next one attaches its own set
//! before it takes the old one away.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    maps::{Array, Map, MapData},
    programs::links::FdLink,
};

use super::{Filter, FilterMap, KernelError, PIN_DIRECTORY, Policies, map};

/// Version of what is pinned: map layouts and the meaning of their values.
const SCHEMA: &str = "v1";

/// The map that is pinned last: a directory without it is not whole.
const LAST: &str = "SEED";

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

    /// Removes the pins that cannot be told of new sandboxes: their programs,
    /// which refuse what they do not know, detach.
    pub(super) fn remove_other(&mut self) -> Result<(), KernelError> {
        self.other.drain(..).try_for_each(|path| remove(&path))
    }

    /// Removes the rest.
    pub(super) fn remove(&mut self) -> Result<(), KernelError> {
        self.usable.drain(..).try_for_each(|path| remove(&path))
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
            let path = self.directory.join(format!("link_{name}"));
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
