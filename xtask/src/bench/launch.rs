//! What a sandbox costs to start and to end, beside other ways to start a
//! command, and where it goes.

use anyhow::Result;

use super::{Measurement, columns, distinct, guest};
use crate::kernel::Kernel;

/// Measures on these kernels. `systemd-run --scope` is not there: the guest's
/// first process is not systemd.
pub(super) fn measurements(kernels: &[Kernel]) -> Result<Vec<Measurement>> {
    guest::measurements("bench-launch", kernels)
}

/// A column for each kernel.
pub(super) fn table(measurements: &[Measurement]) -> String {
    let kernels = distinct(measurements.iter().map(|line| line.kernel.as_str()));
    let mut lines = vec![["", "", ""].map(str::to_owned).to_vec()];
    lines[0].extend(kernels.iter().map(|kernel| format!("Linux {kernel}")));
    lines.push(vec!["---".to_owned(); 3 + kernels.len()]);
    for row in distinct(measurements.iter().map(|line| line.row.as_str())) {
        let cells: Vec<_> = measurements.iter().filter(|line| line.row == row).collect();
        for case in distinct(cells.iter().map(|cell| cell.case.as_str())) {
            let mut line = vec![row.to_owned(), case.to_owned(), String::new()];
            for kernel in &kernels {
                let found = cells
                    .iter()
                    .find(|cell| cell.kernel == *kernel && cell.case == case);
                if let Some(cell) = found {
                    cell.unit.clone_into(&mut line[2]);
                }
                line.push(found.map_or_else(String::new, |cell| shown(cell)));
            }
            lines.push(line);
        }
    }
    columns(&lines)
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
