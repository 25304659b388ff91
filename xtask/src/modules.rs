//! The order in which a kernel's modules must be loaded, from the files that
//! `depmod` writes.

use std::collections::HashMap;

use anyhow::{Context as _, Result};

/// A kernel's `modules.dep` and `modules.builtin`.
pub(crate) struct Modules {
    by_name: HashMap<String, Module>,
    built_in: Vec<String>,
}

struct Module {
    path: String,
    needs: Vec<String>,
}

impl Modules {
    pub(crate) fn parse(dep: &str, builtin: &str) -> Self {
        let by_name = dep
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(path, needs)| {
                let module = Module {
                    path: path.to_owned(),
                    needs: needs.split_whitespace().map(name).collect(),
                };
                (name(path), module)
            })
            .collect();
        Self {
            by_name,
            built_in: builtin.lines().map(name).collect(),
        }
    }

    /// The paths of `wanted` and of what they need, each after what it needs.
    /// What is built into the kernel is left out; what it does not have is an
    /// error.
    pub(crate) fn in_order(&self, wanted: &[&str]) -> Result<Vec<&str>> {
        let mut paths = Vec::new();
        for module in wanted {
            self.add(module, &mut paths)?;
        }
        Ok(paths)
    }

    fn add<'a>(&'a self, wanted: &str, paths: &mut Vec<&'a str>) -> Result<()> {
        if self.built_in.iter().any(|module| module == wanted) {
            return Ok(());
        }
        let module = self
            .by_name
            .get(wanted)
            .with_context(|| format!("the kernel has no module `{wanted}`"))?;
        if paths.contains(&module.path.as_str()) {
            return Ok(());
        }
        for needed in &module.needs {
            self.add(needed, paths)?;
        }
        paths.push(&module.path);
        Ok(())
    }
}

/// `kernel/drivers/virtio/virtio-rng.ko.xz` is the module `virtio_rng`.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.split(".ko").next().unwrap_or(file);
    stem.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/virtio/virtio_pci.ko: kernel/virtio/virtio.ko kernel/virtio/virtio_ring.ko
kernel/virtio/virtio.ko: kernel/virtio/virtio_ring.ko
kernel/virtio/virtio_ring.ko:
kernel/block/virtio-blk.ko.xz: kernel/virtio/virtio.ko kernel/virtio/virtio_ring.ko
";

    #[test]
    fn a_module_comes_after_what_it_needs_and_once() {
        let modules = Modules::parse(DEP, "");
        assert_eq!(
            modules.in_order(&["virtio_pci", "virtio_blk"]).unwrap(),
            [
                "kernel/virtio/virtio_ring.ko",
                "kernel/virtio/virtio.ko",
                "kernel/virtio/virtio_pci.ko",
                "kernel/block/virtio-blk.ko.xz",
            ]
        );
    }

    #[test]
    fn what_is_built_in_is_left_out() {
        let modules = Modules::parse("", "kernel/fs/ext4/ext4.ko\n");
        assert!(modules.in_order(&["ext4"]).unwrap().is_empty());
    }

    #[test]
    fn a_module_that_is_not_there_is_named() {
        let error = Modules::parse(DEP, "").in_order(&["overlay"]).unwrap_err();
        assert!(error.to_string().contains("`overlay`"), "{error}");
    }
}
