//! The file tree as a policy's paths meet it: directories opened one by one,
//! symbolic links followed by hand, each file's identity asked of the kernel.

use std::{
    collections::{HashMap, VecDeque},
    ffi::{OsStr, OsString},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use nix::{
    fcntl::{OFlag, openat, readlinkat},
    sys::stat::{Mode, SFlag},
};
use sandbox_common::Identity;

use super::KernelError;
use crate::sys;

/// As many as the kernel follows (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// Who knows a file's identity: the kernel, or a test.
pub trait Identify {
    /// The identity of the file that an `O_PATH` descriptor names.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn identify(&self, file: &OwnedFd) -> Result<Identity, KernelError>;
}

/// A file that exists.
pub(super) struct Node {
    pub identity: Identity,
    pub kind: SFlag,
    /// Without symbolic links.
    pub path: PathBuf,
    /// `O_PATH`.
    pub file: Arc<OwnedFd>,
}

impl Node {
    pub(super) fn is_directory(&self) -> bool {
        self.kind == SFlag::S_IFDIR
    }

    fn is_link(&self) -> bool {
        self.kind == SFlag::S_IFLNK
    }
}

/// A file and the directories above it, the root first, itself last.
pub(super) type Chain = Vec<Rc<Node>>;

/// What became of a path.
pub(super) struct Found {
    /// The links that were followed.
    pub links: Vec<Link>,
    pub end: End,
}

/// A symbolic link on a path.
pub(super) struct Link {
    /// Itself last.
    pub chain: Chain,
    /// Whether it was the last component.
    pub last: bool,
}

impl Link {
    /// Without symbolic links.
    pub(super) fn path(&self) -> Option<&Path> {
        self.chain.last().map(|link| link.path.as_path())
    }
}

/// Where a path ends.
pub(super) enum End {
    Existing(Chain),
    /// It does not exist. The directories that do, or a file in the place of
    /// one; the first name that does not, and whether that is the last one.
    Missing {
        parents: Chain,
        name: OsString,
        last: bool,
    },
}

/// A name that was looked for.
pub(super) struct Lookup<'t> {
    /// Without symbolic links.
    pub path: &'t Path,
    pub parent: &'t Node,
    /// None: there is no such file.
    pub node: Option<&'t Node>,
}

/// Opened directories, by path.
pub(super) struct Tree<'a> {
    identify: &'a dyn Identify,
    root: Rc<Node>,
    nodes: HashMap<PathBuf, Option<Rc<Node>>>,
    /// A directory in the place of the one at a path.
    instead: Option<(PathBuf, Arc<OwnedFd>)>,
}

impl<'a> Tree<'a> {
    /// From the calling thread's root.
    pub(super) fn new(identify: &'a dyn Identify) -> Result<Self, KernelError> {
        let root = open(identify, None, Path::new("/"))?
            .ok_or_else(|| KernelError::Unidentified("/".into()))?;
        Ok(Self {
            identify,
            root: Rc::new(root),
            nodes: HashMap::new(),
            instead: None,
        })
    }

    /// The same tree with another directory at `path`, below what is mounted
    /// there, say.
    pub(super) fn instead(&self, path: &Path, directory: Arc<OwnedFd>) -> Self {
        Self {
            identify: self.identify,
            root: Rc::clone(&self.root),
            nodes: HashMap::new(),
            instead: Some((path.to_owned(), directory)),
        }
    }

    /// Follows an absolute path.
    pub(super) fn find(&mut self, path: &Path) -> Result<Found, KernelError> {
        let mut rest: VecDeque<OsString> = names(path).collect();
        let mut chain = vec![Rc::clone(&self.root)];
        let mut links = Vec::new();
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                if chain.len() > 1 {
                    chain.pop();
                }
                continue;
            }
            let last = rest.is_empty();
            let child = match chain.last() {
                Some(parent) if parent.is_directory() => self.child(&Rc::clone(parent), &name)?,
                _ => None,
            };
            let Some(child) = child.filter(|_| links.len() < MAX_LINKS) else {
                return Ok(Found {
                    links,
                    end: End::Missing {
                        parents: chain,
                        name,
                        last,
                    },
                });
            };
            if !child.is_link() {
                chain.push(child);
                continue;
            }
            let target = readlinkat(&*child.file, "").unwrap_or_default();
            let mut link = chain.clone();
            link.push(child);
            links.push(Link { chain: link, last });
            let target = PathBuf::from(target);
            if target.is_absolute() {
                chain.truncate(1);
            }
            for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                rest.push_front(name);
            }
        }
        Ok(Found {
            links,
            end: End::Existing(chain),
        })
    }

    /// Everything that was met and exists.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Rc<Node>> {
        std::iter::once(&self.root).chain(self.nodes.values().flatten())
    }

    /// All that was looked for, whether it exists or not.
    pub(super) fn lookups(&self) -> impl Iterator<Item = Lookup<'_>> {
        self.nodes.iter().filter_map(|(path, node)| {
            let above = path.parent()?;
            let parent = match self.nodes.get(above) {
                Some(parent) => parent.as_deref()?,
                None => &self.root,
            };
            Some(Lookup {
                path,
                parent,
                node: node.as_deref(),
            })
        })
    }

    fn child(&mut self, parent: &Rc<Node>, name: &OsStr) -> Result<Option<Rc<Node>>, KernelError> {
        let path = parent.path.join(name);
        if let Some(known) = self.nodes.get(&path) {
            return Ok(known.clone());
        }
        let node = match &self.instead {
            Some((place, directory)) if *place == path => {
                node(self.identify, directory.clone(), &path)?
            }
            _ => open(self.identify, Some(&*parent.file), &path)?,
        };
        let node = node.map(Rc::new);
        self.nodes.insert(path, node.clone());
        Ok(node)
    }
}

/// Looks for a file once more, in its directory if that is open; none: it does
/// not exist.
pub(super) fn look(
    identify: &dyn Identify,
    parent: Option<&OwnedFd>,
    path: &Path,
) -> Result<Option<(Arc<OwnedFd>, Identity)>, KernelError> {
    let node = open(identify, parent, path)?;
    Ok(node.map(|node| (node.file, node.identity)))
}

/// Opens a file; none: it does not exist, or not for root (FUSE, for one).
fn open(
    identify: &dyn Identify,
    parent: Option<&OwnedFd>,
    path: &Path,
) -> Result<Option<Node>, KernelError> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = match (parent, path.file_name()) {
        (Some(parent), Some(name)) => openat(parent, name, flags, Mode::empty()),
        _ => nix::fcntl::open(path, flags, Mode::empty()),
    };
    let Ok(file) = opened else {
        return Ok(None);
    };
    node(identify, Arc::new(file), path)
}

fn node(
    identify: &dyn Identify,
    file: Arc<OwnedFd>,
    path: &Path,
) -> Result<Option<Node>, KernelError> {
    let Ok(kind) = sys::stat(&*file) else {
        return Ok(None);
    };
    Ok(Some(Node {
        identity: identify.identify(&file)?,
        kind,
        path: path.to_owned(),
        file,
    }))
}

fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}
