//! What the walls cost, per kernel, in guest instructions.

use anyhow::Result;

use super::{Measurement, guest};
use crate::kernel::Kernel;

/// Measures on these kernels; the program starts sandboxd itself when it has
/// measured without.
pub(super) fn measurements(kernels: &[Kernel]) -> Result<Vec<Measurement>> {
    guest::measurements("bench-hooks", kernels)
}

/// A column for each kernel, and what a case adds to the first one of its row.
pub(super) fn table(measurements: &[Measurement]) -> String {
    guest::table(measurements, shown)
}

/// A value, with what it adds to the first of its row where both are of a kind.
fn shown(first: &Measurement, cell: &Measurement) -> String {
    let value = if cell.value < 1000.0 {
        format!("{:.1}", cell.value)
    } else {
        format!("{:.0}", cell.value)
    };
    if first.case == cell.case || first.unit != cell.unit {
        return value;
    }
    let more = (cell.value / first.value - 1.0) * 100.0;
    format!("{value} ({more:+.1} %)")
}

#[cfg(test)]
mod tests {
    use super::{super::parse, *};

    #[test]
    fn a_case_is_compared_with_the_first_of_its_row() {
        let lines = r#"{"row":"open","case":"without","value":2000.0,"unit":"instructions"}
{"row":"open","case":"inside","value":2503.04,"unit":"instructions"}"#;
        let measurements = parse("6.1", lines.as_bytes()).unwrap();
        assert_eq!(
            table(&measurements).lines().last().unwrap(),
            "| open | inside  | instructions | 2503 (+25.2 %) |"
        );
    }
}
