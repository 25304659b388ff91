//! Deltas (gitformat-pack): an object as the difference to another one.

/// The object that a delta makes of another one; none: it makes none, or one of
/// more bytes than this.
pub(super) fn apply(base: &[u8], delta: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut delta = Delta(delta);
    let of = delta.size()?;
    let size = delta.size()?;
    if of != base.len() || size > most {
        return None;
    }
    let mut made = Vec::with_capacity(size);
    while let Some(instruction) = delta.byte() {
        let part = match instruction {
            0 => return None,
            1..0x80 => delta.take(instruction.into())?,
            0x80.. => {
                let (offset, length) = delta.place(instruction)?;
                base.get(offset..)?.get(..length)?
            }
        };
        if part.len() > size - made.len() {
            return None;
        }
        made.extend(part);
    }
    (made.len() == size).then_some(made)
}

struct Delta<'a>(&'a [u8]);

impl<'a> Delta<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn size(&mut self) -> Option<usize> {
        let mut size = 0;
        for shift in (0..u32::BITS).step_by(7) {
            let byte = self.byte()?;
            size |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(size);
            }
        }
        None
    }

    /// From where in the other object how much is copied.
    fn place(&mut self, instruction: u8) -> Option<(usize, usize)> {
        let mut field = |bits: std::ops::Range<u32>| {
            let first = bits.start;
            let mut number = 0;
            for bit in bits {
                if instruction & 1 << bit != 0 {
                    number |= usize::from(self.byte()?) << (8 * (bit - first));
                }
            }
            Some(number)
        };
        let offset = field(0..4)?;
        let length = field(4..7)?;
        Some((offset, if length == 0 { 0x10000 } else { length }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_and_inserted() {
        let delta = [6, 5, 0x91, 1, 3, 2, b'x', b'y'];
        assert_eq!(apply(b"abcdef", &delta, 5).unwrap(), b"bcdxy");
        assert_eq!(apply(b"abcdef", &delta, 4), None);
        let long = vec![7; 0x10000];
        let delta = [0x80, 0x80, 4, 0x80, 0x80, 4, 0x80];
        assert_eq!(apply(&long, &delta, 0x10000).unwrap(), long);
    }

    #[test]
    fn a_delta_that_does_not_fit_makes_nothing() {
        for delta in [
            &[][..],
            &[6],
            &[6, 1],
            // Another size than it is of.
            &[5, 1, 1, b'x'],
            // More and less than it says.
            &[6, 1, 2, b'x', b'y'],
            &[6, 3, 2, b'x', b'y'],
            // More than there is.
            &[6, 2, 2, b'x'],
            &[6, 7, 0x90, 7],
            &[6, 1, 0x91, 6, 1],
            &[6, 1, 0x9f, 255, 255, 255, 255, 1],
            &[6, 1, 0x91, 1],
            // A reserved instruction.
            &[6, 1, 0, 1, b'x'],
            &[0x86, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
        ] {
            assert_eq!(apply(b"abcdef", delta, 1 << 20), None, "{delta:?}");
        }
    }
}
