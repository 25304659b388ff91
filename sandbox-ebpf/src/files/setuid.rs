//! Programs that run as somebody else: who executes one later, outside, would
//! be its owner there. None is made, and none that is there is changed.

const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;
const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o10;

/// Whether a mode is that of such a program.
#[inline(always)]
pub fn is(mode: u16) -> bool {
    others(mode) != 0
}

/// Whether a file becomes one by a mode, or one of a further kind.
#[inline(always)]
pub fn becomes(before: u16, mode: u16) -> bool {
    others(mode) & !others(before) != 0
}

/// As whom it would run: the bits for another user and another group. Without
/// the bit to execute it, setgid is about locks; of a directory, about what is
/// made in it.
#[inline(always)]
fn others(mode: u16) -> u16 {
    if mode & S_IFMT != S_IFREG {
        return 0;
    }
    if mode & S_IXGRP == 0 {
        mode & S_ISUID
    } else {
        mode & (S_ISUID | S_ISGID)
    }
}
