//! Every answer, and what the world was asked for it.

use hickory_proto::rr::rdata::A;
use tokio::io::DuplexStream;

use super::*;
use crate::{
    channel::SandboxPolicy,
    testing::{Upstream, World, name, rule},
};

const SYNTHETIC_NET: [u8; 2] = [198, 18];

/// A sandbox that may reach `a.test` and what is below `b.test`, and the server.
struct Setup {
    world: World,
    upstream: Upstream,
    server: Arc<Server>,
}

impl Setup {
    async fn new() -> Self {
        Self::with(World::allowing(&["a.test", "*.b.test", "four.test:22"])).await
    }

    async fn with(world: World) -> Self {
        let upstream = Upstream::start(&[
            ("a.test", &["192.0.2.1"]),
            ("x.b.test", &["2001:db8::1"]),
            ("empty.b.test", &[]),
            ("four.test", &["192.0.2.4"]),
            ("denied.test", &["192.0.2.9"]),
        ])
        .await;
        let resolver = Resolver::of_server(upstream.address).unwrap();
        Self {
            world,
            upstream,
            server: Arc::new(Server::new(Arc::new(resolver))),
        }
    }

    async fn send(&self, query: &Message, transport: Transport) -> Option<Message> {
        let bytes = query.to_vec().unwrap();
        let caller = &self.world.caller;
        let answer = self.server.answer(caller, &bytes, transport).await?;
        Some(Message::from_vec(&answer).unwrap())
    }

    async fn ask(&self, name: &str, kind: RecordType) -> (ResponseCode, Vec<RData>) {
        self.put(question(name, kind)).await
    }

    async fn put(&self, query: Message) -> (ResponseCode, Vec<RData>) {
        let answer = self.send(&query, Transport::Udp).await.unwrap();
        assert_eq!(answer.metadata.id, query.metadata.id);
        assert_eq!(answer.queries, query.queries);
        assert_eq!(answer.metadata.message_type, MessageType::Response);
        assert!(answer.metadata.recursion_desired && answer.metadata.recursion_available);
        for record in &answer.answers {
            assert_eq!(record.name, *query.queries[0].name());
            assert_eq!(record.ttl, TTL);
        }
        let data = answer.answers.into_iter().map(|record| record.data);
        (answer.metadata.response_code, data.collect())
    }

    async fn address(&self, name: &str) -> Ipv4Addr {
        let (ResponseCode::NoError, data) = self.ask(name, RecordType::A).await else {
            panic!("{name} is refused");
        };
        match data[..] {
            [RData::A(A(address))] => address,
            _ => panic!("{name}: {data:?}"),
        }
    }
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    let name = DnsName::from_ascii(name).unwrap();
    query.add_query(Query::query(name, kind));
    query
}

/// A question for the address of a name with any bytes in its labels.
fn raw(labels: &[&[u8]]) -> Message {
    let mut query = question("x.", RecordType::A);
    query.queries[0].set_name(DnsName::from_labels(labels.iter().copied()).unwrap());
    query
}

fn nothing() -> (ResponseCode, Vec<RData>) {
    (ResponseCode::NoError, Vec::new())
}

fn no_such_name() -> (ResponseCode, Vec<RData>) {
    (ResponseCode::NXDomain, Vec::new())
}

#[tokio::test]
async fn an_allowed_name_has_an_address_that_stands_for_it() {
    let setup = Setup::new().await;
    // One that has only an IPv6 address, and one for another port, too.
    for known in ["a.test", "x.b.test", "four.test"] {
        let address = setup.address(&format!("{known}.")).await;
        assert_eq!(address.octets()[..2], SYNTHETIC_NET);
        assert_eq!(setup.world.caller.sandbox.name(address), Some(name(known)));
    }
    assert_eq!(
        setup.address("A.Test.").await,
        setup.address("a.test.").await
    );
    assert!(setup.world.refusals().is_empty());
}

#[tokio::test]
async fn other_types_of_an_allowed_name_have_no_answer() {
    let setup = Setup::new().await;
    for kind in [
        RecordType::AAAA,
        RecordType::HTTPS,
        RecordType::TXT,
        RecordType::MX,
        RecordType::ANY,
    ] {
        assert_eq!(setup.ask("a.test.", kind).await, nothing(), "{kind}");
    }
    assert_eq!(setup.ask("empty.b.test.", RecordType::A).await, nothing());
    assert!(setup.world.refusals().is_empty());
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_not_a_denial() {
    let setup = Setup::new().await;
    for kind in [RecordType::A, RecordType::AAAA] {
        assert_eq!(setup.ask("none.b.test.", kind).await, no_such_name());
    }
    assert!(setup.world.refusals().is_empty());
    assert!(!setup.upstream.asked().is_empty());
}

#[tokio::test]
async fn servers_that_fail_are_not_a_name_that_does_not_exist() {
    let setup = Setup::with(World::allowing(&["servfail.test"])).await;
    let (code, _) = setup.ask("servfail.test.", RecordType::A).await;
    assert_eq!(code, ResponseCode::ServFail);
}

#[tokio::test]
async fn nothing_is_asked_about_a_name_that_is_not_allowed() {
    let setup = Setup::new().await;
    for denied in [
        "denied.test",
        "b.test",
        "secret.a.test",
        "1.2.0.192.in-addr.arpa",
    ] {
        for kind in [
            RecordType::A,
            RecordType::AAAA,
            RecordType::PTR,
            RecordType::TXT,
        ] {
            let answer = setup.ask(&format!("{denied}."), kind).await;
            assert_eq!(answer, no_such_name(), "{denied} {kind}");
        }
        let told = format!("denied {denied} (not in the allow list)");
        assert_eq!(setup.world.refusals(), [told]);
    }
    assert!(setup.upstream.asked().is_empty());
}

#[tokio::test]
async fn deny_beats_allow_for_names_too() {
    let setup = Setup::with(World::new(SandboxPolicy {
        allow: vec![rule("*")],
        deny: vec![rule("denied.test:80"), rule("denied.test:443")],
        ..SandboxPolicy::default()
    }))
    .await;
    setup.address("a.test.").await;
    let before = setup.upstream.asked().len();
    let answer = setup.ask("denied.test.", RecordType::A).await;
    assert_eq!(answer, no_such_name());
    assert_eq!(setup.upstream.asked().len(), before);
}

#[tokio::test]
async fn observing_resolves_and_tells() {
    let setup = Setup::with(World::new(SandboxPolicy {
        observe: true,
        ..SandboxPolicy::default()
    }))
    .await;
    setup.address("denied.test.").await;
    assert_eq!(
        setup.world.refusals(),
        ["denied denied.test (not in the allow list)"]
    );
}

#[tokio::test]
async fn what_is_no_name_is_refused_and_told_by_what_was_sent() {
    let setup = Setup::with(World::allowing(&["*"])).await;
    for (labels, host, why) in [
        (
            &[&b"127"[..], b"0", b"0", b"1"][..],
            "127.0.0.1",
            "an address instead of a name",
        ),
        (&[b"0x7F", b"1"], "0x7F.1", "an address instead of a name"),
        (&[], ".", "not a host name"),
        (&[b"a.test"], r"a\.test", "not a host name"),
        (&[b"a\0", b"test"], r"a\000.test", "not a host name"),
        (&[b"a b", b"test"], r"a\040b.test", "not a host name"),
        (
            &[b"b\xc3\xbc", b"test"],
            r"b\303\274.test",
            "not a host name",
        ),
        (
            &[b"a", b"test\xe3\x80\x82"],
            r"a.test\343\200\202",
            "not a host name",
        ),
    ] {
        assert_eq!(setup.put(raw(labels)).await, no_such_name(), "{host}");
        assert_eq!(setup.world.refusals(), [format!("denied {host} ({why})")]);
    }
    assert!(setup.upstream.asked().is_empty());
}

#[tokio::test]
async fn localhost_is_answered_here() {
    let setup = Setup::new().await;
    let v4 = RData::A(Ipv4Addr::LOCALHOST.into());
    let v6 = RData::AAAA(Ipv6Addr::LOCALHOST.into());
    let name = RData::PTR(PTR(DnsName::from_ascii("localhost.").unwrap()));
    let reverse = format!("1.{}ip6.arpa.", "0.".repeat(31));
    for (asked, kind, answer) in [
        ("localhost.", RecordType::A, Some(&v4)),
        ("x.LocalHost.", RecordType::A, Some(&v4)),
        ("localhost.", RecordType::AAAA, Some(&v6)),
        ("localhost.", RecordType::MX, None),
        ("1.0.0.127.in-addr.arpa.", RecordType::PTR, Some(&name)),
        (&reverse, RecordType::PTR, Some(&name)),
    ] {
        let (code, data) = setup.ask(asked, kind).await;
        assert_eq!(code, ResponseCode::NoError);
        assert_eq!(data.first(), answer, "{asked} {kind}");
    }
    assert!(setup.world.refusals().is_empty());
    assert!(setup.upstream.asked().is_empty());
}

#[tokio::test]
async fn an_address_that_stands_for_a_name_leads_back_to_it() {
    let setup = Setup::new().await;
    let [a, b, c, d] = setup.address("a.test.").await.octets();
    let reverse = format!("{d}.{c}.{b}.{a}.in-addr.arpa.");
    let answer = setup.ask(&reverse, RecordType::PTR).await;
    let name = RData::PTR(PTR(DnsName::from_ascii("a.test.").unwrap()));
    assert_eq!(answer, (ResponseCode::NoError, vec![name]));
    // The proxy's own.
    let answer = setup.ask("1.0.18.198.in-addr.arpa.", RecordType::PTR).await;
    assert_eq!(answer, no_such_name());
    assert!(setup.world.refusals().is_empty());
}

#[tokio::test]
async fn what_is_not_a_plain_question_has_its_code() {
    let setup = Setup::new().await;
    let code = async |query: &Message| {
        let answer = setup.send(query, Transport::Udp).await.unwrap();
        answer.metadata.response_code
    };
    let plain = || question("a.test.", RecordType::A);
    assert_eq!(code(&plain()).await, ResponseCode::NoError);
    let mut none = plain();
    none.queries.clear();
    assert_eq!(code(&none).await, ResponseCode::FormErr);
    let mut two = plain();
    two.add_query(Query::query(
        DnsName::from_ascii("b.test.").unwrap(),
        RecordType::A,
    ));
    assert_eq!(code(&two).await, ResponseCode::FormErr);
    let mut update = plain();
    update.metadata.op_code = OpCode::Update;
    assert_eq!(code(&update).await, ResponseCode::NotImp);
    let mut chaos = plain();
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(code(&chaos).await, ResponseCode::Refused);
    assert_eq!(
        code(&question("a.test.", RecordType::AXFR)).await,
        ResponseCode::Refused
    );
    let mut newer = plain();
    let mut edns = Edns::new();
    edns.set_version(1);
    newer.set_edns(edns);
    // Read back, it is the code of the same number in TSIG.
    let number = |code: ResponseCode| u16::from(code);
    assert_eq!(number(code(&newer).await), number(ResponseCode::BADVERS));
}

#[tokio::test]
async fn what_cannot_be_read_is_a_format_error_and_what_is_no_query_is_dropped() {
    let setup = Setup::new().await;
    let answer = async |bytes: &[u8]| {
        let caller = &setup.world.caller;
        setup.server.answer(caller, bytes, Transport::Udp).await
    };
    let good = question("a.test.", RecordType::A).to_vec().unwrap();
    for length in HEADER..good.len() {
        let answer = Message::from_vec(&answer(&good[..length]).await.unwrap()).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::FormErr);
        assert_eq!(answer.metadata.id.to_be_bytes(), good[..2]);
    }
    assert_eq!(answer(&good[..HEADER - 1]).await, None);
    assert_eq!(answer(b"").await, None);
    let mut response = good.clone();
    response[2] |= 0x80;
    assert_eq!(answer(&response).await, None);
    // A name that is compressed into itself.
    let mut looped = good[..HEADER].to_vec();
    looped.extend([0xc0, 12, 0, 1, 0, 1]);
    let answer = Message::from_vec(&answer(&looped).await.unwrap()).unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::FormErr);
}

#[tokio::test]
async fn edns_is_answered_only_where_it_was_asked_with() {
    let setup = Setup::new().await;
    let mut query = question("a.test.", RecordType::A);
    let answer = setup.send(&query, Transport::Udp).await.unwrap();
    assert_eq!(answer.edns, None);
    let mut edns = Edns::new();
    edns.set_max_payload(4096).set_dnssec_ok(true);
    query.set_edns(edns);
    let answer = setup.send(&query, Transport::Udp).await.unwrap();
    let edns = answer.edns.unwrap();
    assert_eq!(edns.max_payload(), LARGEST);
    assert!(edns.flags().dnssec_ok);
    assert_eq!(answer.answers.len(), 1);
}

#[test]
fn an_answer_is_as_long_as_the_asker_can_take() {
    let mut query = question("a.test.", RecordType::A);
    assert_eq!(Transport::Udp.limit(&query), 512);
    for (payload, limit) in [(0, 512), (700, 700), (4096, 1232)] {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        query.set_edns(edns);
        assert_eq!(Transport::Udp.limit(&query), limit);
    }
    assert_eq!(Transport::Tcp.limit(&query), 65535);

    let mut long = Message::response(7, OpCode::Query);
    long.add_queries(query.queries.iter().cloned());
    let owner = query.queries[0].name();
    long.add_answers((0..40).map(|it| {
        let address = Ipv4Addr::new(192, 0, 2, it);
        Record::from_rdata(owner.clone(), TTL, RData::A(address.into()))
    }));
    let read = |limit| {
        let bytes = encode(&long, limit).unwrap();
        assert!(bytes.len() <= limit);
        Message::from_vec(&bytes).unwrap()
    };
    let (cut, whole) = (read(512), read(1232));
    assert!(cut.metadata.truncation && cut.answers.is_empty());
    assert_eq!(cut.queries, long.queries);
    assert!(!whole.metadata.truncation && whole.answers.len() == 40);
}

#[tokio::test]
async fn datagrams_of_strangers_have_no_answer() {
    let setup = Setup::new().await;
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let address = socket.local_addr().unwrap();
    let [known, stranger] = [(); 2].map(async |()| {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(address).await.unwrap();
        socket
    });
    let (known, stranger) = (known.await, stranger.await);
    let (caller, from) = (setup.world.caller.clone(), known.local_addr().unwrap());
    let who = move |it| (it == from).then(|| caller.clone());
    let serving = tokio::spawn(setup.server.clone().serve_udp(socket, who));
    let query = question("a.test.", RecordType::A).to_vec().unwrap();
    // The stranger first: had it an answer, it would be there before the other.
    stranger.send(&query).await.unwrap();
    known.send(&query).await.unwrap();
    let mut buffer = [0; 512];
    let length = known.recv(&mut buffer).await.unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!(answer.answers.len(), 1);
    assert!(stranger.try_recv(&mut buffer).is_err());
    serving.abort();
}

#[tokio::test]
async fn a_sandbox_has_so_many_queries_at_a_time_and_others_have_theirs() {
    let setup = Setup::new().await;
    let take = |sandbox| Place::take(setup.server.clone(), sandbox);
    let mut places: Vec<_> = (0..IN_FLIGHT).map(|_| take(7).unwrap()).collect();
    assert!(take(7).is_none());
    assert!(take(8).is_some());
    places.pop();
    assert!(take(7).is_some());
    drop(places);
    assert!(setup.server.in_flight().is_empty());
}

async fn exchange(stream: &mut DuplexStream, query: &Message) -> Message {
    let bytes = query.to_vec().unwrap();
    stream
        .write_u16(bytes.len().try_into().unwrap())
        .await
        .unwrap();
    stream.write_all(&bytes).await.unwrap();
    let answer = read(stream).await.unwrap().unwrap();
    Message::from_vec(&answer).unwrap()
}

#[tokio::test]
async fn one_connection_carries_many_queries() {
    let setup = Setup::new().await;
    let (mut client, stream) = tokio::io::duplex(1024);
    let asking = async {
        for _ in 0..3 {
            let allowed = exchange(&mut client, &question("a.test.", RecordType::A)).await;
            assert_eq!(allowed.answers.len(), 1);
            let denied = exchange(&mut client, &question("denied.test.", RecordType::A)).await;
            assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
        }
        drop(client);
    };
    let serving = setup.server.serve_tcp(stream, &setup.world.caller);
    let ((), end) = tokio::join!(asking, serving);
    end.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_idle_or_slow_is_closed() {
    let setup = Setup::new().await;
    for sent in [&b""[..], b"\x00", b"\x00\x40half"] {
        let (mut client, stream) = tokio::io::duplex(1024);
        client.write_all(sent).await.unwrap();
        let end = setup.server.serve_tcp(stream, &setup.world.caller).await;
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
    let (mut client, stream) = tokio::io::duplex(1024);
    client.write_all(b"\x00\x00").await.unwrap();
    let end = setup.server.serve_tcp(stream, &setup.world.caller).await;
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::InvalidData);
}
