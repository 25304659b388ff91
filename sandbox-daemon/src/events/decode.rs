//! Takes a record of the ring buffer apart. The layout is that of
//! `sandbox-common`; nothing in a record is trusted to be well-formed.

use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sandbox_common::{
    EVENT_VERSION, EventHeader, Facility, FacilityEvent, FileEvent, NetEvent, Object, Operation,
    ProcessEvent, Right, UNIX_BYTES, UnixEvent, Verdict, flags,
};

use super::mounts::Place;

/// A record, still in the kernel's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Cgroup id of the sandbox.
    pub sandbox: u64,
    /// Cgroup id of the exec; 0: none.
    pub exec: u64,
    /// `CLOCK_BOOTTIME`, ns.
    pub time_ns: u64,
    /// Thread group; 0: no process stands behind it.
    pub pid: u32,
    /// Real user id.
    pub uid: u32,
    /// What was attempted.
    pub operation: Operation,
    /// What would have been needed.
    pub right: Right,
    /// What was done about it.
    pub verdict: Verdict,
    /// Positive.
    pub errno: u32,
    /// As `sandbox_common::builtin` has it, or an index + 1.
    pub rule: u32,
    /// Generation of the policy that decided.
    pub generation: u32,
    /// `task_struct.comm`.
    pub comm: Vec<u8>,
    /// The executable, if the process has one.
    pub exe: Option<Place>,
    /// What was refused.
    pub target: Target,
}

/// What was refused, in the kernel's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file.
    File(Place),
    /// An address; port 0: none.
    Address(IpAddr, u16),
    /// Without an address: family and protocol of a socket or packet.
    Socket(u16, u32),
    /// A Unix socket with a path.
    UnixPath(Place),
    /// A Unix socket without: its abstract name, with the NUL that it begins
    /// with. Empty: it is not bound.
    UnixName(Vec<u8>),
    /// A process, and its comm.
    Process(u32, Vec<u8>),
    /// A part of the kernel; for the detail see [`Facility`].
    Facility(Facility, u32),
}

/// Why a record was not understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// It ends before its fields do.
    #[error("a record of {0} bytes is too short")]
    Short(usize),
    /// It is of another build.
    #[error("a record of version {0}, not {EVENT_VERSION}")]
    Version(u16),
    /// A field holds what this build does not know.
    #[error("a record with {0} {1}")]
    Unknown(&'static str, u32),
}

/// Takes one record apart.
pub fn decode(raw: &[u8]) -> Result<Record, DecodeError> {
    let fields = Fields(raw);
    let version = fields.u16(offset_of!(EventHeader, version))?;
    if version != EVENT_VERSION {
        return Err(DecodeError::Version(version));
    }
    let operation = fields.u16(offset_of!(EventHeader, operation))?;
    let operation = Operation::from_raw(operation)
        .ok_or(DecodeError::Unknown("operation", operation.into()))?;
    let right = fields.u8(offset_of!(EventHeader, right))?;
    let right = Right::from_raw(right).ok_or(DecodeError::Unknown("right", right.into()))?;
    let verdict = match fields.u8(offset_of!(EventHeader, verdict))? {
        raw if raw == Verdict::Denied as u8 => Verdict::Denied,
        raw if raw == Verdict::Observed as u8 => Verdict::Observed,
        raw => return Err(DecodeError::Unknown("verdict", raw.into())),
    };
    let bits = fields.u8(offset_of!(EventHeader, flags))?;
    let target = fields.target(bits)?;
    let exe_dev = fields.u32(offset_of!(EventHeader, exe_dev))?;
    let exe_len = fields.u32(offset_of!(EventHeader, exe_len))?;
    let exe = fields.names(
        offset_of!(EventHeader, exe),
        exe_len,
        sandbox_common::EXE_BYTES,
    )?;
    let comm = fields.comm(offset_of!(EventHeader, comm))?;
    let pid = fields.u32(offset_of!(EventHeader, pid))?;
    Ok(Record {
        sandbox: fields.u64(offset_of!(EventHeader, sandbox))?,
        exec: fields.u64(offset_of!(EventHeader, exec))?,
        time_ns: fields.u64(offset_of!(EventHeader, time_ns))?,
        pid: if bits & flags::NO_TASK == 0 { pid } else { 0 },
        uid: fields.u32(offset_of!(EventHeader, uid))?,
        operation,
        right,
        verdict,
        errno: fields.u32(offset_of!(EventHeader, errno))?,
        rule: fields.u32(offset_of!(EventHeader, rule))?,
        generation: fields.u32(offset_of!(EventHeader, generation))?,
        comm,
        exe: (exe_dev != 0 && exe_len != 0).then_some(Place {
            dev: exe_dev,
            path: exe,
            truncated: bits & flags::EXE_TRUNCATED != 0,
        }),
        target,
    })
}

/// The fields of a record, by offset.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N], DecodeError> {
        self.0
            .get(offset..)
            .and_then(|rest| rest.first_chunk())
            .copied()
            .ok_or(DecodeError::Short(self.0.len()))
    }

    fn u8(&self, offset: usize) -> Result<u8, DecodeError> {
        self.array(offset).map(u8::from_ne_bytes)
    }

    fn u16(&self, offset: usize) -> Result<u16, DecodeError> {
        self.array(offset).map(u16::from_ne_bytes)
    }

    fn u32(&self, offset: usize) -> Result<u32, DecodeError> {
        self.array(offset).map(u32::from_ne_bytes)
    }

    fn u64(&self, offset: usize) -> Result<u64, DecodeError> {
        self.array(offset).map(u64::from_ne_bytes)
    }

    fn bytes(&self, offset: usize, len: usize) -> Result<&[u8], DecodeError> {
        self.0
            .get(offset..offset + len)
            .ok_or(DecodeError::Short(self.0.len()))
    }

    /// Names leaf first, each with a NUL, as a path from the root.
    fn names(&self, offset: usize, len: u32, area: usize) -> Result<Vec<u8>, DecodeError> {
        // Records may be cut behind what their area uses.
        let used = self.bytes(offset, (len as usize).min(area))?;
        let mut path = Vec::with_capacity(used.len() + 1);
        for name in used
            .split(|&b| b == 0)
            .rev()
            .filter(|name| !name.is_empty())
        {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    fn comm(&self, offset: usize) -> Result<Vec<u8>, DecodeError> {
        let comm = self.bytes(offset, 16)?;
        Ok(comm.split(|&b| b == 0).next().unwrap_or_default().to_vec())
    }

    fn target(&self, bits: u8) -> Result<Target, DecodeError> {
        let object = self.u8(offset_of!(EventHeader, object))?;
        let object =
            Object::from_raw(object).ok_or(DecodeError::Unknown("object", object.into()))?;
        Ok(match object {
            Object::File => Target::File(self.file(bits)?),
            Object::Address => self.address()?,
            Object::Socket => Target::Socket(
                self.u16(offset_of!(NetEvent, family))?,
                self.u32(offset_of!(NetEvent, protocol))?,
            ),
            Object::UnixPath => Target::UnixPath(self.file(bits)?),
            Object::UnixName => {
                let len = self.u32(offset_of!(UnixEvent, name_len))? as usize;
                let name = self.bytes(offset_of!(UnixEvent, name), len.min(UNIX_BYTES))?;
                Target::UnixName(name.to_vec())
            }
            Object::Process => Target::Process(
                self.u32(offset_of!(ProcessEvent, pid))?,
                self.comm(offset_of!(ProcessEvent, comm))?,
            ),
            Object::Facility => {
                let facility = self.u32(offset_of!(FacilityEvent, facility))?;
                let facility = Facility::from_raw(facility)
                    .ok_or(DecodeError::Unknown("facility", facility))?;
                Target::Facility(facility, self.u32(offset_of!(FacilityEvent, detail))?)
            }
        })
    }

    fn file(&self, bits: u8) -> Result<Place, DecodeError> {
        let len = self.u32(offset_of!(FileEvent, path_len))?;
        Ok(Place {
            dev: self.u32(offset_of!(FileEvent, dev))?,
            path: self.names(offset_of!(FileEvent, path), len, sandbox_common::PATH_BYTES)?,
            truncated: bits & flags::PATH_TRUNCATED != 0,
        })
    }

    fn address(&self) -> Result<Target, DecodeError> {
        // linux/socket.h
        const AF_INET: u16 = 2;
        const AF_INET6: u16 = 10;
        let port = self.u16(offset_of!(NetEvent, port))?;
        let address: [u8; 16] = self.array(offset_of!(NetEvent, address))?;
        let address = match self.u16(offset_of!(NetEvent, family))? {
            AF_INET => IpAddr::V4(Ipv4Addr::new(
                address[0], address[1], address[2], address[3],
            )),
            AF_INET6 => IpAddr::V6(Ipv6Addr::from(address)),
            family => return Err(DecodeError::Unknown("address family", family.into())),
        };
        Ok(Target::Address(address, port))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record as the kernel would write it.
    pub(crate) struct Raw(pub(crate) Vec<u8>);

    impl Raw {
        pub(crate) fn new(operation: Operation, right: Right) -> Self {
            let mut raw = Self(vec![0; size_of::<FileEvent>()]);
            raw.put(
                offset_of!(EventHeader, version),
                &EVENT_VERSION.to_ne_bytes(),
            );
            raw.put(
                offset_of!(EventHeader, operation),
                &(operation as u16).to_ne_bytes(),
            );
            raw.put(offset_of!(EventHeader, right), &[right as u8]);
            raw.put(offset_of!(EventHeader, object), &[Object::File as u8]);
            raw.put(offset_of!(EventHeader, verdict), &[Verdict::Denied as u8]);
            raw.put(offset_of!(EventHeader, comm), b"python3\0");
            raw.put(offset_of!(EventHeader, pid), &4211u32.to_ne_bytes());
            raw.put(offset_of!(EventHeader, errno), &2u32.to_ne_bytes());
            raw
        }

        pub(crate) fn put(&mut self, offset: usize, bytes: &[u8]) {
            self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        }

        pub(crate) fn about(mut self, object: Object) -> Self {
            self.put(offset_of!(EventHeader, object), &[object as u8]);
            self
        }

        pub(crate) fn by(mut self, sandbox: u64, exec: u64) -> Self {
            self.put(offset_of!(EventHeader, sandbox), &sandbox.to_ne_bytes());
            self.put(offset_of!(EventHeader, exec), &exec.to_ne_bytes());
            self
        }

        pub(crate) fn path(mut self, dev: u32, names: &[u8]) -> Self {
            self.put(offset_of!(FileEvent, dev), &dev.to_ne_bytes());
            self.put(
                offset_of!(FileEvent, path_len),
                &u32::try_from(names.len()).unwrap().to_ne_bytes(),
            );
            self.put(offset_of!(FileEvent, path), names);
            self
        }
    }

    #[test]
    fn names_are_joined_root_first() {
        let raw = Raw::new(Operation::Open, Right::Read).path(7, b"id_rsa\0.ssh\0dev\0home\0");
        let record = decode(&raw.0).unwrap();
        let Target::File(place) = record.target else {
            panic!("not a file");
        };
        assert_eq!(place.path, b"/home/dev/.ssh/id_rsa");
        assert_eq!((place.dev, record.pid), (7, 4211));
        assert_eq!(record.comm, b"python3");
        assert_eq!(record.exe, None);
    }

    #[test]
    fn a_file_systems_root_is_a_slash() {
        let raw = Raw::new(Operation::Rmdir, Right::Write).path(7, b"");
        let Target::File(place) = decode(&raw.0).unwrap().target else {
            panic!("not a file");
        };
        assert_eq!(place.path, b"/");
    }

    #[test]
    fn addresses_are_decoded() {
        let mut raw = Raw::new(Operation::Connect, Right::Connect).about(Object::Address);
        raw.put(offset_of!(NetEvent, family), &2u16.to_ne_bytes());
        raw.put(offset_of!(NetEvent, port), &443u16.to_ne_bytes());
        raw.put(offset_of!(NetEvent, address), &[192, 0, 2, 7]);
        let record = decode(&raw.0[..size_of::<NetEvent>()]).unwrap();
        assert_eq!(record.target, Target::Address([192, 0, 2, 7].into(), 443));
    }

    #[test]
    fn a_packet_that_is_not_ip_is_told_like_any_other() {
        let raw = Raw::new(Operation::Packet, Right::Connect).about(Object::Socket);
        let record = decode(&raw.0[..size_of::<NetEvent>()]).unwrap();
        assert_eq!(record.target, Target::Socket(0, 0));
    }

    #[test]
    fn what_has_no_path_is_decoded() {
        let mut raw = Raw::new(Operation::Signal, Right::Scope).about(Object::Process);
        raw.put(offset_of!(ProcessEvent, pid), &7_u32.to_ne_bytes());
        raw.put(offset_of!(ProcessEvent, comm), b"bash\0rubbish");
        let target = decode(&raw.0[..size_of::<ProcessEvent>()]).unwrap().target;
        assert_eq!(target, Target::Process(7, b"bash".to_vec()));

        let mut raw = Raw::new(Operation::Use, Right::Scope).about(Object::Facility);
        raw.put(offset_of!(FacilityEvent, facility), &1_u32.to_ne_bytes());
        raw.put(offset_of!(FacilityEvent, detail), &21_u32.to_ne_bytes());
        let target = decode(&raw.0[..size_of::<FacilityEvent>()]).unwrap().target;
        assert_eq!(target, Target::Facility(Facility::Capability, 21));

        let mut raw = Raw::new(Operation::Connect, Right::Connect).about(Object::UnixName);
        raw.put(offset_of!(UnixEvent, name_len), &4_u32.to_ne_bytes());
        raw.put(offset_of!(UnixEvent, name), b"\0busX");
        let target = decode(&raw.0[..size_of::<UnixEvent>()]).unwrap().target;
        assert_eq!(target, Target::UnixName(b"\0bus".to_vec()));
    }

    #[test]
    fn a_malformed_record_is_an_error_and_never_a_panic() {
        let raw = Raw::new(Operation::Open, Right::Read).path(7, b"a\0");
        for len in 0..size_of::<EventHeader>() {
            assert_eq!(decode(&raw.0[..len]), Err(DecodeError::Short(len)));
        }
        let mut long = Raw::new(Operation::Open, Right::Read);
        long.put(offset_of!(FileEvent, path_len), &u32::MAX.to_ne_bytes());
        assert!(decode(&long.0).is_ok());
        let mut other = Raw::new(Operation::Open, Right::Read);
        other.put(offset_of!(EventHeader, version), &9u16.to_ne_bytes());
        assert_eq!(decode(&other.0), Err(DecodeError::Version(9)));
        let mut other = Raw::new(Operation::Open, Right::Read);
        other.put(offset_of!(EventHeader, operation), &999u16.to_ne_bytes());
        assert_eq!(
            decode(&other.0),
            Err(DecodeError::Unknown("operation", 999))
        );
    }
}
