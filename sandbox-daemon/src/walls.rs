//! Raising the walls: programs are loaded beside those of an earlier daemon,
//! tested, and only then take their place.

use std::{path::Path, sync::Arc};

use crate::{
    cgroup::Slice,
    kernel::{EventSource, Kernel, KernelError, Options},
    selftest::{self, SelfTestError},
};

/// Why there are no walls.
#[derive(Debug, thiserror::Error)]
pub enum WallsError {
    /// The programs cannot be loaded.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// They do not do what they must.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
}

/// Programs in force that passed their test, in the place of an earlier
/// daemon's, and the stream of their records. `directory` and `program` are
/// [`selftest::run`]'s.
///
/// # Errors
/// There are none then but an earlier daemon's.
pub async fn raise(
    options: &Options<'_>,
    slice: &Slice,
    directory: &Path,
    program: &Path,
) -> Result<(Arc<Kernel>, EventSource), WallsError> {
    let kernel = Arc::new(Kernel::load(options)?);
    let mut source = kernel.take_events()?;
    let passed = selftest::run(&kernel, &mut source, slice, directory, program).await;
    if let Err(error) = passed {
        kernel.retreat()?;
        return Err(error.into());
    }
    kernel.settle()?;
    Ok((kernel, source))
}
