//! The running kernel's types: where a member lies in its structure, how many
//! arguments a hook takes. Format: Documentation/bpf/btf.rst.

use std::{collections::HashMap, fs, io};

/// Where the kernel shows its own BTF (`CONFIG_DEBUG_INFO_BTF`).
pub(super) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// What is wrong with the kernel's types.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error(
        "cannot read the kernel's types at `{VMLINUX}`\n\nhint: a kernel with `CONFIG_DEBUG_INFO_BTF=y` is needed"
    )]
    Read(#[source] io::Error),
    /// The file is not what btf.rst describes.
    #[error("the kernel's types at `{VMLINUX}` are malformed")]
    Malformed,
    /// A member that this program depends on.
    #[error("this kernel has no `{structure}.{member}`")]
    NoMember {
        /// `dentry`
        structure: String,
        /// `d_name.name`
        member: String,
    },
    /// A member of another size than this program loads.
    #[error("`{structure}.{member}` has {found} bytes in this kernel, not {expected}")]
    Size {
        /// See [`BtfError::NoMember`].
        structure: String,
        /// See [`BtfError::NoMember`].
        member: String,
        /// Bytes in this kernel.
        found: u32,
        /// Bytes that the programs load.
        expected: u32,
    },
}

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_FLOAT: u32 = 16;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// The types of a kernel.
pub(super) struct Btf {
    data: Vec<u8>,
    strings: usize,
    /// Offset of every type's record; id 0 is `void`.
    types: Vec<usize>,
    structures: HashMap<Vec<u8>, u32>,
    functions: HashMap<Vec<u8>, u32>,
}

impl Btf {
    /// Of the running kernel.
    pub(super) fn of_kernel() -> Result<Self, BtfError> {
        Self::parse(fs::read(VMLINUX).map_err(BtfError::Read)?)
    }

    fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        let mut btf = Self {
            data,
            strings: 0,
            types: vec![0],
            structures: HashMap::new(),
            functions: HashMap::new(),
        };
        btf.index().ok_or(BtfError::Malformed)?;
        Ok(btf)
    }

    fn index(&mut self) -> Option<()> {
        if self.u32(0)? & 0xffff != 0xeb9f {
            return None;
        }
        let header = self.u32(4)? as usize;
        let types = header + self.u32(8)? as usize;
        let end = types + self.u32(12)? as usize;
        self.strings = header + self.u32(16)? as usize;
        let mut at = types;
        while at < end {
            let id = u32::try_from(self.types.len()).ok()?;
            let (kind, vlen) = self.kind(at)?;
            match kind {
                KIND_STRUCT => {
                    let name = self.name(self.u32(at)?)?.to_vec();
                    self.structures.entry(name).or_insert(id);
                }
                KIND_FUNC => {
                    let name = self.name(self.u32(at)?)?.to_vec();
                    self.functions.entry(name).or_insert(id);
                }
                _ => {}
            }
            self.types.push(at);
            at += 12
                + match kind {
                    KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
                    KIND_ARRAY => 12,
                    KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * vlen,
                    KIND_ENUM | KIND_FUNC_PROTO => 8 * vlen,
                    _ => 0,
                };
        }
        Some(())
    }

    /// Offset in bytes of a member such as `d_name.name`, through anonymous
    /// structures and unions.
    ///
    /// # Errors
    /// The member is missing, is a bit field, or has not `size` bytes.
    pub(super) fn offset(&self, structure: &str, member: &str, size: u32) -> Result<u32, BtfError> {
        let missing = || BtfError::NoMember {
            structure: structure.into(),
            member: member.into(),
        };
        let mut id = *self
            .structures
            .get(structure.as_bytes())
            .ok_or_else(missing)?;
        let mut bits = 0;
        for part in member.split('.') {
            let (offset, kind) = self.member(id, part.as_bytes()).ok_or_else(missing)?;
            bits += offset;
            id = kind;
        }
        let found = self.size(id).ok_or_else(missing)?;
        if found != size {
            return Err(BtfError::Size {
                structure: structure.into(),
                member: member.into(),
                found,
                expected: size,
            });
        }
        if bits % 8 != 0 {
            return Err(missing());
        }
        Ok(bits / 8)
    }

    /// Whether an LSM hook can be attached to.
    pub(super) fn has_hook(&self, hook: &str) -> bool {
        self.functions
            .contains_key(format!("bpf_lsm_{hook}").as_bytes())
    }

    /// How many arguments an LSM hook takes.
    pub(super) fn hook_arity(&self, hook: &str) -> Option<usize> {
        let function = *self.functions.get(format!("bpf_lsm_{hook}").as_bytes())?;
        let prototype = self.u32(self.types.get(function as usize)? + 8)?;
        let (kind, vlen) = self.kind(*self.types.get(prototype as usize)?)?;
        (kind == KIND_FUNC_PROTO).then_some(vlen)
    }

    /// Offset in bits and type of a member.
    fn member(&self, id: u32, wanted: &[u8]) -> Option<(u32, u32)> {
        let at = *self.types.get(self.resolve(id)? as usize)?;
        let (kind, vlen) = self.kind(at)?;
        if kind != KIND_STRUCT && kind != KIND_UNION {
            return None;
        }
        let bit_fields = self.u32(at + 4)? >> 31 == 1;
        for index in 0..vlen {
            let record = at + 12 + 12 * index;
            let name = self.name(self.u32(record)?)?;
            let kind = self.u32(record + 4)?;
            let raw = self.u32(record + 8)?;
            let offset = if bit_fields { raw & 0x00ff_ffff } else { raw };
            if name == wanted {
                return Some((offset, kind));
            }
            if name.is_empty()
                && let Some((inner, kind)) = self.member(kind, wanted)
            {
                return Some((offset + inner, kind));
            }
        }
        None
    }

    fn size(&self, id: u32) -> Option<u32> {
        let at = *self.types.get(self.resolve(id)? as usize)?;
        match self.kind(at)?.0 {
            KIND_PTR => Some(8),
            KIND_INT | KIND_ENUM | KIND_ENUM64 | KIND_STRUCT | KIND_UNION | KIND_FLOAT => {
                self.u32(at + 8)
            }
            // `struct btf_array`: type, type of the index, number of elements.
            KIND_ARRAY => self
                .size(self.u32(at + 12)?)?
                .checked_mul(self.u32(at + 20)?),
            _ => None,
        }
    }

    /// Past typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<u32> {
        for _ in 0..32 {
            let at = *self.types.get(id as usize)?;
            match self.kind(at)?.0 {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = self.u32(at + 8)?;
                }
                _ => return Some(id),
            }
        }
        None
    }

    fn kind(&self, at: usize) -> Option<(u32, usize)> {
        let info = self.u32(at + 4)?;
        Some((info >> 24 & 0x1f, (info & 0xffff) as usize))
    }

    fn name(&self, offset: u32) -> Option<&[u8]> {
        let rest = self.data.get(self.strings + offset as usize..)?;
        rest.split(|byte| *byte == 0).next()
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.data.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { int a; struct { void *b; }; };` and `bpf_lsm_x(int)`.
    fn sample() -> Btf {
        let strings = b"\0outer\0a\0b\0int\0bpf_lsm_x\0";
        let info = |kind: u32, vlen: u32| kind << 24 | vlen;
        let types: Vec<u32> = [
            &[11, info(KIND_INT, 0), 4, 32][..],
            &[0, info(KIND_PTR, 0), 0],
            &[0, info(KIND_STRUCT, 1), 8, 9, 2, 0],
            &[1, info(KIND_STRUCT, 2), 16, 7, 1, 0, 0, 3, 64],
            &[0, info(KIND_FUNC_PROTO, 1), 1, 0, 1],
            &[15, info(KIND_FUNC, 0), 5],
        ]
        .concat();
        let mut data = vec![0x9f, 0xeb, 1, 0];
        let length = u32::try_from(types.len() * 4).unwrap();
        for word in [24, 0, length, length, u32::try_from(strings.len()).unwrap()] {
            data.extend_from_slice(&word.to_le_bytes());
        }
        for word in types {
            data.extend_from_slice(&word.to_le_bytes());
        }
        data.extend_from_slice(strings);
        Btf::parse(data).unwrap()
    }

    #[test]
    fn members_are_found_through_anonymous_structures() {
        let btf = sample();
        assert_eq!(btf.offset("outer", "a", 4).unwrap(), 0);
        assert_eq!(btf.offset("outer", "b", 8).unwrap(), 8);
    }

    #[test]
    fn a_missing_member_and_a_wrong_size_are_errors_that_name_it() {
        let btf = sample();
        let error = btf.offset("outer", "c", 4).unwrap_err();
        assert_eq!(error.to_string(), "this kernel has no `outer.c`");
        let error = btf.offset("outer", "a", 8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`outer.a` has 4 bytes in this kernel, not 8"
        );
    }

    #[test]
    fn hooks_are_found_with_their_arity() {
        let btf = sample();
        assert!(btf.has_hook("x") && !btf.has_hook("y"));
        assert_eq!(btf.hook_arity("x"), Some(1));
    }

    #[test]
    fn rubbish_is_refused() {
        assert!(matches!(
            Btf::parse(vec![1, 2, 3]),
            Err(BtfError::Malformed)
        ));
    }
}
