//! The name server of all sandboxes: allowed names have addresses that stand for
//! them, others do not exist. Nothing is asked of the world about a name that is
//! not allowed.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name as DnsName, RData, Record, RecordType, rdata::PTR},
};
use sandbox_common::SYNTHETIC;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::UdpSocket,
    time,
};

use crate::{
    caller::Caller,
    channel::Operation,
    name::Name,
    resolver::{ResolveError, Resolver},
    synthetic::MAX_NAMES,
};

/// Seconds for which an answer is good.
const TTL: u32 = 60;

/// A header without anything.
const HEADER: usize = 12;

/// UDP without EDNS (RFC 1035).
const PLAIN: u16 = 512;

/// UDP with it: as much as no network breaks into pieces.
const LARGEST: u16 = 1232;

/// Queries of one sandbox over UDP that are being answered at a time. What is
/// too much is lost, as datagrams are, and asked for again.
const IN_FLIGHT: usize = 256;

/// How long a connection may be idle, or take for a message.
const IDLE: Duration = Duration::from_secs(30);

/// Answers queries.
#[derive(Debug)]
pub struct Server {
    resolver: Arc<Resolver>,
    /// By sandbox.
    in_flight: Mutex<HashMap<u64, usize>>,
}

/// What becomes of a question.
enum Outcome {
    /// There is this; nothing: there is such a name, but nothing of that kind.
    Found(Option<RData>),
    Failed(ResponseCode),
}

impl Server {
    /// Looks allowed names up by this.
    #[must_use]
    pub fn new(resolver: Arc<Resolver>) -> Self {
        Self {
            resolver,
            in_flight: Mutex::default(),
        }
    }

    /// Answers datagrams, for ever; `who` tells who sends from an address, and
    /// tells of strangers, who get no answer.
    pub async fn serve_udp(
        self: Arc<Self>,
        socket: Arc<UdpSocket>,
        who: impl Fn(SocketAddr) -> Option<Caller>,
    ) {
        let mut buffer = vec![0; 4096];
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    tracing::warn!(%error, "cannot receive a DNS query");
                    time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Some(caller) = who(from) else { continue };
            let Some(place) = Place::take(self.clone(), caller.sandbox.id) else {
                continue;
            };
            let (query, socket) = (buffer[..length].to_vec(), socket.clone());
            tokio::spawn(async move {
                if let Some(answer) = place.server.answer(&caller, &query, Transport::Udp).await
                    && let Err(error) = socket.send_to(&answer, from).await
                {
                    tracing::debug!(%error, "cannot send a DNS answer");
                }
            });
        }
    }

    /// Answers the queries of a connection, one after the other, until it is
    /// closed or idle.
    ///
    /// # Errors
    /// The connection broke, or it is not DNS.
    pub async fn serve_tcp(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        caller: &Caller,
    ) -> io::Result<()> {
        while let Some(query) = time::timeout(IDLE, read(&mut stream)).await?? {
            let Some(answer) = self.answer(caller, &query, Transport::Tcp).await else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            let mut bytes = length.to_be_bytes().to_vec();
            bytes.extend(answer);
            time::timeout(IDLE, stream.write_all(&bytes)).await??;
        }
        Ok(())
    }

    /// The answer to a query; none: it is none, and deserves none.
    pub async fn answer(
        &self,
        caller: &Caller,
        query: &[u8],
        transport: Transport,
    ) -> Option<Vec<u8>> {
        let query = match read_query(query) {
            Ok(query) => query,
            Err(answer) => return answer,
        };
        let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
        answer.metadata.recursion_desired = query.metadata.recursion_desired;
        answer.metadata.checking_disabled = query.metadata.checking_disabled;
        answer.metadata.recursion_available = true;
        answer.add_queries(query.queries.iter().cloned());
        if let Some(asked) = &query.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(LARGEST);
            edns.set_dnssec_ok(asked.flags().dnssec_ok);
            answer.set_edns(edns);
        }
        match self.outcome(caller, &query).await {
            Outcome::Found(data) => {
                let name = || query.queries[0].name().clone();
                answer.add_answers(data.map(|data| Record::from_rdata(name(), TTL, data)));
            }
            Outcome::Failed(code) => answer.metadata.response_code = code,
        }
        encode(&answer, transport.limit(&query))
    }

    async fn outcome(&self, caller: &Caller, query: &Message) -> Outcome {
        if query.metadata.op_code != OpCode::Query {
            return Outcome::Failed(ResponseCode::NotImp);
        }
        if query.version() > 0 {
            return Outcome::Failed(ResponseCode::BADVERS);
        }
        let [question] = &query.queries[..] else {
            return Outcome::Failed(ResponseCode::FormErr);
        };
        if question.query_class() != DNSClass::IN || is_transfer(question) {
            return Outcome::Failed(ResponseCode::Refused);
        }
        match local(caller, question) {
            Some(outcome) => outcome,
            None => self.remote(caller, question).await,
        }
    }

    async fn remote(&self, caller: &Caller, question: &Query) -> Outcome {
        let written = question.name().to_ascii();
        let name = match Name::parse(&written) {
            Ok(name) => name,
            Err(error) => {
                let bare = written.strip_suffix('.').filter(|it| !it.is_empty());
                let host = bare.unwrap_or(&written);
                // Nothing can be done with it even where refusals are only told.
                let _ = caller.refuse(Operation::Resolve, host, 0, error.to_string());
                return Outcome::Failed(ResponseCode::NXDomain);
            }
        };
        if caller.resolve(&name).is_err() {
            return Outcome::Failed(ResponseCode::NXDomain);
        }
        // Whatever the type: a name exists for all or for none.
        match self.resolver.lookup(&name).await {
            Ok(_) if question.query_type() == RecordType::A => synthetic(caller, &name),
            Ok(_) | Err(ResolveError::NoAddress) => Outcome::Found(None),
            Err(ResolveError::NoSuchName) => Outcome::Failed(ResponseCode::NXDomain),
            Err(error) => {
                tracing::debug!(%name, %error, "cannot resolve");
                Outcome::Failed(ResponseCode::ServFail)
            }
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a query came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram.
    Udp,
    /// In a connection.
    Tcp,
}

impl Transport {
    fn limit(self, query: &Message) -> usize {
        let limit = match (self, &query.edns) {
            (Self::Tcp, _) => u16::MAX,
            (Self::Udp, None) => PLAIN,
            (Self::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN, LARGEST),
        };
        limit.into()
    }
}

/// A query that is being answered.
struct Place {
    server: Arc<Server>,
    sandbox: u64,
}

impl Place {
    /// None: the sandbox has too many.
    fn take(server: Arc<Server>, sandbox: u64) -> Option<Self> {
        let mut in_flight = server.in_flight();
        let taken = in_flight.entry(sandbox).or_default();
        if *taken >= IN_FLIGHT {
            return None;
        }
        *taken += 1;
        drop(in_flight);
        Some(Self { server, sandbox })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut in_flight = self.server.in_flight();
        if let Some(taken) = in_flight.get_mut(&self.sandbox) {
            *taken -= 1;
            if *taken == 0 {
                in_flight.remove(&self.sandbox);
            }
        }
    }
}

/// What needs no permission and nobody else: `localhost`, and the names of
/// addresses that were given out.
fn local(caller: &Caller, question: &Query) -> Option<Outcome> {
    let name = question.name();
    let kind = question.query_type();
    if name.is_localhost() {
        return Some(Outcome::Found(match kind {
            RecordType::A => Some(RData::A(Ipv4Addr::LOCALHOST.into())),
            RecordType::AAAA => Some(RData::AAAA(Ipv6Addr::LOCALHOST.into())),
            _ => None,
        }));
    }
    if kind != RecordType::PTR {
        return None;
    }
    let network = name.parse_arpa_name().ok()?;
    if network.prefix_len() != network.max_prefix_len() {
        return None;
    }
    let known = match network.addr() {
        address if address.is_loopback() => "localhost.".to_owned(),
        IpAddr::V4(address) if is_synthetic(address) => {
            let Some(name) = caller.sandbox.name(address) else {
                return Some(Outcome::Failed(ResponseCode::NXDomain));
            };
            format!("{name}.")
        }
        _ => return None,
    };
    let known = DnsName::from_ascii(known).ok()?;
    Some(Outcome::Found(Some(RData::PTR(PTR(known)))))
}

fn synthetic(caller: &Caller, name: &Name) -> Outcome {
    if let Some(address) = caller.sandbox.address(name) {
        return Outcome::Found(Some(RData::A(address.into())));
    }
    // There is no address to give, even where refusals are only told.
    let rule = format!("the sandbox asked for more than {MAX_NAMES} names");
    let _ = caller.refuse(Operation::Resolve, name.as_str(), 0, rule);
    Outcome::Failed(ResponseCode::ServFail)
}

/// Reads a query. What is none is an error: with the answer, if there is one.
fn read_query(bytes: &[u8]) -> Result<Message, Option<Vec<u8>>> {
    const RESPONSE: u8 = 0x80;
    let is_query = bytes.len() >= HEADER && bytes[2] & RESPONSE == 0;
    if !is_query {
        // An answer to it might be answered, for ever.
        return Err(None);
    }
    match Message::from_vec(bytes) {
        Ok(message) if message.metadata.message_type == MessageType::Query => Ok(message),
        Ok(_) => Err(None),
        Err(_) => {
            let id = u16::from_be_bytes([bytes[0], bytes[1]]);
            let op_code = OpCode::from_u8(bytes[2] >> 3 & 0xf);
            let answer = Message::error_msg(id, op_code, ResponseCode::FormErr);
            Err(answer.to_vec().ok())
        }
    }
}

fn is_synthetic(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    [first, second & !1] == SYNTHETIC
}

fn is_transfer(question: &Query) -> bool {
    matches!(question.query_type(), RecordType::AXFR | RecordType::IXFR)
}

/// The bytes of an answer; what does not fit is left out, and it says so.
fn encode(answer: &Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = answer.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    answer.truncate().to_vec().ok()
}

/// A message, after its length. None: the connection ended before it.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut query = vec![0; length.into()];
    stream.read_exact(&mut query).await?;
    Ok(Some(query))
}

#[cfg(test)]
mod tests;
