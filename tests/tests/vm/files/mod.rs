//! Attacks on the file wall.

mod appearing;
mod asked;
mod control;
mod devices;
mod filesystems;
mod kernel;
mod links;
mod mounts;
mod names;
mod places;
mod reading;
mod receiving;
mod shipped;
mod writing;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [
        reading::trials(),
        writing::trials(),
        links::trials(),
        names::trials(),
        places::trials(),
        appearing::trials(),
        mounts::trials(),
        control::trials(),
        devices::trials(),
        filesystems::trials(),
        kernel::trials(),
        receiving::trials(),
        shipped::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
