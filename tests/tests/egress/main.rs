//! End-to-end tests of the way out, in a world of network namespaces: this
//! process lives in one of them, and what it can reach is in another.

#![expect(
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking"
)]

mod attacks;
mod clients;
mod credentials;
mod ground;
mod ports;
mod refused;
mod sandboxed;
mod servers;
mod world;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Trial};

use crate::world::World;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut names = ground::tests();
    names.extend(ports::tests());
    names.extend(refused::tests());
    names.extend(attacks::tests());
    names.extend(sandboxed::tests());
    names.extend(credentials::tests());
    let wanted = |name: &str| {
        let filter = arguments.filter.as_deref().unwrap_or_default();
        name.contains(filter)
    };
    if arguments.list || !names.iter().any(|(name, _)| wanted(name)) {
        let trials = names
            .into_iter()
            .map(|(name, _)| Trial::test(name, || Ok(())))
            .collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    // Before there is a second thread: those that follow are born in it.
    let world = Arc::new(World::make());
    let trials = names
        .into_iter()
        .map(|(name, test)| {
            let world = Arc::clone(&world);
            Trial::test(name, move || {
                test(&world);
                Ok(())
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A test by its name.
pub(crate) type Test = (String, Box<dyn FnOnce(&World) + Send>);

/// Tests that are functions of this module, by their names.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        vec![$((
            concat!(module_path!(), "::", stringify!($name)).to_owned(),
            Box::new($name) as Box<dyn FnOnce(&crate::world::World) + Send>,
        )),*]
    };
}
pub(crate) use tests;
