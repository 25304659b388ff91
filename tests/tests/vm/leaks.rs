//! No litter in the daemon either: what sandboxes took is given back.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use aya::maps::loaded_maps;

use crate::{
    client::{self, Client},
    ground::{self, WORK},
    host::{self, DEV},
};

crate::trials![two_hundred_sandboxes_leave_nothing_in_the_daemon];

const SANDBOXES: usize = 200;

/// Maps that it keeps of sandboxes that are gone.
const SPARE: usize = 4;

/// What the daemon may allocate for them, in kibibytes.
const ALLOCATED: u64 = 12 * 1024;

/// What an allocator may keep of it afterwards.
const ALLOWANCE: u64 = 2048;

/// Huge pages hold what nobody allocated: khugepaged fills the gaps between pages
/// that are used every ten seconds.
struct SmallPages(String);

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

impl SmallPages {
    fn only() -> Self {
        let modes = fs::read_to_string(HUGE_PAGES).unwrap();
        let (_, mode) = modes.split_once('[').unwrap();
        let (mode, _) = mode.split_once(']').unwrap();
        fs::write(HUGE_PAGES, "never").unwrap();
        Self(mode.to_owned())
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        fs::write(HUGE_PAGES, &self.0).unwrap();
    }
}

async fn two_hundred_sandboxes_leave_nothing_in_the_daemon() {
    ground::make(DEV);
    let _small = SmallPages::only();
    let mut client = client::root().await;
    // What is made once, and kept.
    for _ in 0..2 {
        make_and_delete(&mut client, || ()).await;
    }
    let before = settled().await;
    let earlier = allocated();
    make_and_delete(&mut client, || {
        let now = Taken::now();
        assert!(
            now.maps >= before.maps + SANDBOXES - SPARE,
            "{now:?} {before:?}"
        );
        assert!(
            now.cgroups >= before.cgroups + SANDBOXES,
            "{now:?} {before:?}"
        );
        let allocated = allocated();
        assert!(
            allocated < earlier + ALLOCATED,
            "{allocated} KiB, {earlier} before"
        );
    })
    .await;
    // What nobody waits for is done later.
    let mut last = settled().await;
    for _ in 0..10 {
        if last == before {
            break;
        }
        last = settled().await;
    }
    assert_eq!(last, before);
    let after = allocated();
    assert!(
        after <= earlier + ALLOWANCE,
        "{after} KiB, {earlier} before"
    );
}

async fn make_and_delete(client: &mut Client, meanwhile: impl FnOnce()) {
    let mut made = Vec::new();
    for _ in 0..SANDBOXES {
        let spec = client::spec(DEV, client::named("default"), WORK);
        made.push(client::create(client, spec).await.id);
    }
    meanwhile();
    for id in made {
        client::delete(client, &id).await;
    }
}

/// What sandboxes take of the daemon and of the host.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    /// By what they lead to.
    descriptors: BTreeMap<String, usize>,
    threads: usize,
    maps: usize,
    cgroups: usize,
    mounts: usize,
}

impl Taken {
    fn now() -> Self {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
        Self {
            descriptors: descriptors(),
            // Those that a sandbox has; a runtime's come and go.
            threads: launch_threads(),
            maps: loaded_maps().count(),
            cgroups: host::sandboxes().len(),
            mounts: mountinfo.lines().count(),
        }
    }
}

/// Once nothing is under way any more.
async fn settled() -> Taken {
    let mut last = Taken::now();
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = Taken::now();
        if now == last {
            return now;
        }
        last = now;
    }
}

fn descriptors() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for descriptor in fs::read_dir(process().join("fd")).unwrap() {
        // One may be closed meanwhile.
        let Ok(target) = fs::read_link(descriptor.unwrap().path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        // Sockets and pipes are numbered.
        let kind = target.split(":[").next().unwrap_or_default();
        *found.entry(kind.to_owned()).or_default() += 1;
    }
    found
}

fn launch_threads() -> usize {
    let tasks = fs::read_dir(process().join("task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "launch").count()
}

fn allocated() -> u64 {
    let status = fs::read_to_string(process().join("status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let text = line.unwrap().trim().trim_end_matches(" kB");
    text.parse().unwrap()
}

/// The daemon's directory in /proc.
fn process() -> PathBuf {
    PathBuf::from(format!("/proc/{}", host::daemon()))
}
