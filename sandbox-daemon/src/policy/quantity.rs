//! Amounts as people write them: times, sizes, shares of a processor.

use std::time::Duration;

use humantime::DurationError;

use super::diagnostic::{Fault, Span, nearest};
use super::table::listed;

/// What a size may be given in. A letter alone counts in steps of 1024, as
/// Docker and the kernel have it.
const UNITS: [(&str, u64); 16] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
];
const SIZES: &str = "as in `512MiB`, `2GB` or `512m`";
const TIMES: &str = "as in `90s`, `10m` or `1h 30m`";
const TIME_UNITS: [&str; 5] = ["ms", "s", "m", "h", "d"];

/// A time: numbers with units.
pub(super) fn time(text: &str) -> Result<Duration, Fault> {
    let trimmed = text.trim();
    if trimmed.starts_with('-') {
        return Err(Fault::new("a time is not negative", TIMES));
    }
    humantime::parse_duration(trimmed).map_err(|error| {
        let skipped = text.len() - text.trim_start().len();
        time_fault(&error, trimmed, skipped)
    })
}

fn time_fault(error: &DurationError, text: &str, skipped: usize) -> Fault {
    let from = |start: usize, length: usize| skipped + start..skipped + start + length;
    match error {
        DurationError::UnknownUnit { value, unit, .. } if unit.is_empty() => {
            Fault::new("a time has a unit", format!("write `{value}s` for seconds"))
        }
        DurationError::UnknownUnit {
            start, end, unit, ..
        } => {
            let message = format!("unknown unit `{unit}` of a time");
            let lower = unit.to_ascii_lowercase();
            let hint = match nearest(&lower, TIME_UNITS) {
                Some(unit) => format!("did you mean `{unit}`?"),
                None => format!("known are {}", listed(&TIME_UNITS)),
            };
            Fault::new(message, hint).at(from(*start, end - start))
        }
        DurationError::InvalidCharacter(at) | DurationError::NumberExpected(at) => {
            let length = text.get(*at..).and_then(|rest| rest.chars().next());
            let part = from(*at, length.map_or(0, char::len_utf8));
            Fault::new(format!("`{text}` is not a time"), TIMES).at(part)
        }
        DurationError::NumberOverflow => Fault::new("the time is too long", TIMES),
        DurationError::Empty => Fault::new("a time is missing", TIMES),
    }
}

/// A size in bytes: a number, and a unit unless it is bytes.
pub(super) fn size(text: &str) -> Result<u64, Fault> {
    let number_end = text
        .find(|character: char| !character.is_ascii_digit() && !"._-+ ".contains(character))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    if number.trim().is_empty() {
        let message = match text.trim() {
            "" => "a size is missing".to_owned(),
            text => format!("`{text}` is not a size"),
        };
        return Err(Fault::new(message, SIZES));
    }
    let factor = unit_factor(unit, number_end)?;
    let digits = number.trim().replace('_', "");
    if digits.starts_with('-') {
        return Err(Fault::new("a size is not negative", SIZES));
    }
    let whole = |digits: &str| {
        let valid = digits.bytes().all(|byte| byte.is_ascii_digit());
        valid.then(|| digits.parse::<u128>().unwrap_or(u128::MAX))
    };
    let (before, after) = digits.split_once('.').unwrap_or((&digits, "0"));
    let (Some(before), Some(_), 1..=9) = (whole(before), whole(after), after.len()) else {
        let message = format!("`{}` is not a number", number.trim());
        return Err(Fault::new(message, SIZES).at(trimmed(number)));
    };
    // At most nine digits: no rounding, and no overflow.
    let scale = 10_u128.pow(u32::try_from(after.len()).unwrap_or_default());
    let fraction = whole(after).unwrap_or_default() * u128::from(factor) / scale;
    let bytes = before
        .saturating_mul(factor.into())
        .saturating_add(fraction);
    Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn unit_factor(unit: &str, start: usize) -> Result<u64, Fault> {
    let name = unit.trim_end();
    if name.is_empty() {
        return Ok(1);
    }
    if let Some((_, factor)) = UNITS
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
    {
        return Ok(*factor);
    }
    let shown = ["B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB"];
    // The letter says which was meant.
    let meant = shown[1..5].iter().find(|unit| {
        let letter = name.get(..1).unwrap_or_default();
        unit.get(..1)
            .is_some_and(|it| it.eq_ignore_ascii_case(letter))
    });
    let hint = match meant {
        Some(unit) => format!("did you mean `{unit}`?"),
        None => format!("known are {}", listed(&shown)),
    };
    let part = start..start + name.len();
    Err(Fault::new(format!("unknown unit `{name}` of a size"), hint).at(part))
}

fn trimmed(text: &str) -> Span {
    let start = text.len() - text.trim_start().len();
    start..start + text.trim().len()
}

/// A time for people: `10 s`, `1 h 30 min`.
pub(super) fn show_time(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [
        (seconds / 86400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
        (time.subsec_millis().into(), "ms"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count} {unit}"))
        .collect();
    if parts.is_empty() {
        return "0 s".to_owned();
    }
    parts.join(" ")
}

/// A size for people: `512 MiB`, `1.5 GiB`, to a tenth.
pub(super) fn show_size(bytes: u64) -> String {
    let units = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    // 1023.99 MiB are a GiB, to a tenth.
    let reaches =
        |unit: u64| u128::from(bytes) * 20 >= u128::from(unit) * 20 - u128::from(unit) / 1024;
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| reaches(*unit)) else {
        return format!("{bytes} B");
    };
    let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, tenth) => format!("{whole}.{tenth} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_people_mean_by_them() {
        for (text, bytes) in [
            ("1", 1),
            ("536870912", 512 << 20),
            ("512MiB", 512 << 20),
            ("512 MiB", 512 << 20),
            ("512m", 512 << 20),
            ("512M", 512 << 20),
            ("2GB", 2_000_000_000),
            ("2gb", 2_000_000_000),
            ("1.5G", 3 << 29),
            ("0.5KiB", 512),
            ("1_000kB", 1_000_000),
            ("0", 0),
            ("99999999999999999999999999999999999999999999T", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_part_that_is_wrong() {
        for (text, message, part) in [
            ("", "a size is missing", None),
            ("many", "`many` is not a size", None),
            ("-1GiB", "a size is not negative", None),
            ("512MeB", "unknown unit `MeB` of a size", Some(3..6)),
            ("5 foos", "unknown unit `foos` of a size", Some(2..6)),
            ("1.2.3G", "`1.2.3` is not a number", Some(0..5)),
            ("1.G", "`1.` is not a number", Some(0..2)),
            ("1 2G", "`1 2` is not a number", Some(0..3)),
        ] {
            let fault = size(text).unwrap_err();
            assert_eq!((fault.message.as_str(), fault.part), (message, part));
            assert!(fault.hint.is_some());
        }
        let hint = size("512MeB").unwrap_err().hint.unwrap();
        assert_eq!(hint, "did you mean `MiB`?");
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(time(" 1h 30m "), Ok(Duration::from_mins(90)));
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        for (text, message, part, hint) in [
            ("", "a time is missing", None, TIMES),
            ("60", "a time has a unit", None, "write `60s` for seconds"),
            ("-5s", "a time is not negative", None, TIMES),
            ("soon", "`soon` is not a time", Some(0..1), TIMES),
            (
                "5 S",
                "unknown unit `S` of a time",
                Some(2..3),
                "did you mean `s`?",
            ),
        ] {
            let fault = time(text).unwrap_err();
            assert_eq!(
                (fault.message.as_str(), fault.part),
                (message, part),
                "{text}"
            );
            assert_eq!(fault.hint.unwrap(), hint);
        }
    }

    #[test]
    fn amounts_are_shown_as_people_write_them() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (512 << 20, "512 MiB"),
            ((512 << 20) + 4096, "512 MiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 30) - 1, "1 GiB"),
            (10_000_000, "9.5 MiB"),
        ] {
            assert_eq!(show_size(bytes), shown);
        }
        for (time, shown) in [
            (Duration::ZERO, "0 s"),
            (Duration::from_secs(10), "10 s"),
            (Duration::from_mins(90), "1 h 30 min"),
            (Duration::from_millis(1500), "1 s 500 ms"),
        ] {
            assert_eq!(show_time(time), shown);
        }
    }
}
