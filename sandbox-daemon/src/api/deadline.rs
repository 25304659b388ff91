//! `grpc-timeout`: a caller's deadline ends what it runs also when the caller
//! itself no longer can.

use std::time::{Duration, Instant};

use tonic::metadata::MetadataMap;

/// When the call is to be over. What is malformed is no deadline, as in
/// tonic's own reading of it.
pub(super) fn of(metadata: &MetadataMap) -> Option<Instant> {
    let value = metadata.get("grpc-timeout")?.to_str().ok()?;
    Instant::now().checked_add(parse(value)?)
}

/// Up to eight digits and a unit.
fn parse(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 60 * 60),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_has_them() {
        assert_eq!(parse("2H"), Some(Duration::from_hours(2)));
        assert_eq!(parse("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(parse("99999999S"), Some(Duration::from_secs(99_999_999)));
        for malformed in ["", "S", "123456789S", "-1S", "1 S", "1x", "é"] {
            assert_eq!(parse(malformed), None, "{malformed}");
        }
    }
}
