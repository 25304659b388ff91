//! What a sandbox costs to start and to end, beside other ways to start a
//! command, and where it goes.

use anyhow::Result;

use super::{Measurement, guest};
use crate::kernel::Kernel;

/// Measures on these kernels. `systemd-run --scope` is not there: the guest's
/// first process is not systemd.
pub(super) fn measurements(kernels: &[Kernel]) -> Result<Vec<Measurement>> {
    guest::measurements("bench-launch", kernels)
}

/// A column for each kernel.
pub(super) fn table(measurements: &[Measurement]) -> String {
    guest::table(measurements, |_, cell| shown(cell))
}

fn shown(cell: &Measurement) -> String {
    if cell.unit == "MiB" {
        format!("{:.1}", cell.value)
    } else {
        format!("{:.0}", cell.value)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::parse, *};

    #[test]
    fn kernels_stand_beside_each_other() {
        let line = r#"{"row":"start to end","case":"`true`","value":2012.0,"unit":"thousands"}"#;
        let mut measurements = parse("6.1", line.as_bytes()).unwrap();
        measurements.extend(parse("6.12", line.as_bytes()).unwrap());
        assert_eq!(
            table(&measurements).lines().last().unwrap(),
            "| start to end | `true` | thousands | 2012      | 2012       |"
        );
    }
}
