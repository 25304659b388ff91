//! Attacks on the file wall.

mod kernel;
mod links;
mod names;
mod places;
mod reading;
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
        kernel::trials(),
        shipped::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
