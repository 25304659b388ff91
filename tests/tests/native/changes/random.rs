//! Random trees, changed at random: a patch leads git to what the sandbox sees, and
//! applying leads the real workspace there.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use super::{Ground, patches::round_trip};

/// So many trees.
const TREES: u64 = 40;

/// Small, repeatable, not good.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn name(&mut self) -> String {
        const NAMES: [&str; 12] = [
            "a", "b", "c", "d", "e.txt", "f g", "h\"i", "j\nk", "ö", "-l", "m\\n", " o",
        ];
        NAMES[usize::try_from(self.roll(12)).unwrap()].to_owned()
    }

    /// A path that is there, or one beside it that may not be.
    fn path(&mut self, root: &Path) -> PathBuf {
        let mut path = root.to_owned();
        loop {
            path.push(self.name());
            let is_dir = fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir());
            if !is_dir || self.roll(3) == 0 {
                return path;
            }
        }
    }

    fn contents(&mut self) -> Vec<u8> {
        let mut contents = Vec::new();
        match self.roll(6) {
            0 => {}
            1 => {
                let length = self.roll(5000);
                contents.extend((0..length).map(|_| u8::try_from(self.roll(256)).unwrap()));
            }
            _ => {
                let lines = self.roll(30);
                for _ in 0..lines {
                    contents.extend_from_slice(format!("line {}\n", self.roll(8)).as_bytes());
                }
                if self.roll(4) == 0 {
                    contents.extend_from_slice(b"no end");
                }
            }
        }
        contents
    }

    /// Something happens; what cannot be done is not.
    fn step(&mut self, root: &Path) {
        let path = self.path(root);
        let done: io::Result<()> = match self.roll(12) {
            0..=2 => fs::write(&path, self.contents()),
            3 => fs::read(&path).and_then(|mut contents| {
                let at = self.roll(contents.len() as u64 + 1);
                let at = usize::try_from(at).unwrap();
                contents.splice(at..at, *b"inserted\n");
                fs::write(&path, contents)
            }),
            4 => fs::remove_file(&path),
            5 => fs::remove_dir_all(&path),
            6 | 7 => fs::create_dir(&path),
            8 | 9 => fs::rename(&path, self.path(root)),
            10 => symlink(self.name(), &path),
            _ => fs::symlink_metadata(&path).and_then(|meta| {
                let mode = if meta.is_dir() || self.roll(2) == 0 {
                    0o755
                } else {
                    0o644
                };
                if meta.is_symlink() {
                    return Ok(());
                }
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            }),
        };
        drop(done);
    }
}

#[test]
fn random_changes_go_through_a_patch_and_are_applied() {
    for seed in 1..=TREES {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let prepare = tempfile::tempdir().unwrap();
        for _ in 0..30 {
            dice.step(prepare.path());
        }
        fs::set_permissions(prepare.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let ground = &mut Ground::new(&format!("cp -a {}/. .", prepare.path().display()));
        ground.act(move |root| {
            for _ in 0..20 {
                dice.step(root);
            }
        });
        eprintln!("seed {seed}: {:?}", ground.letters());
        round_trip(ground);
        let wanted = ground.merged();
        let report = ground.apply();
        assert!(report.left_out.is_empty(), "seed {seed}: {report:?}");
        assert_eq!(ground.real(), wanted, "seed {seed}");
        assert_eq!(ground.letters(), [""; 0], "seed {seed}");
        assert_eq!(ground.merged(), wanted, "seed {seed}");
    }
}
