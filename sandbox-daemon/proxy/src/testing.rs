//! What tests share: a sandbox with a policy, and a name server that keeps what
//! it was asked.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{RData, Record, RecordType},
};
use sandbox_common::Asked;
use tokio::{net::UdpSocket, task::JoinHandle};

use crate::{
    caller::{Caller, Refusal, Sandboxes},
    channel::{FromProxy, SandboxPolicy},
    credential::{Credential, Scheme},
    ledger::Outbox,
    name::Name,
    rule::{HostPattern, HostRule},
};

pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// `example.com`, `*.example.com`, `*`, with or without `:PORT`.
pub(crate) fn rule(entry: &str) -> HostRule {
    let (host, port) = match entry.split_once(':') {
        Some((host, port)) => (host, Some(port.parse().unwrap())),
        None => (entry, None),
    };
    let host = match host.strip_prefix("*.") {
        Some(apex) => HostPattern::Below(name(apex)),
        None if host == "*" => HostPattern::Any,
        None => HostPattern::Exact(name(host)),
    };
    HostRule {
        host,
        port,
        label: entry.into(),
    }
}

/// A bearer token for all requests to a host, whose secret has its name.
pub(crate) fn credential(name: &str, host: &str, dummy: Option<&str>) -> Credential {
    Credential {
        name: name.into(),
        secret: name.into(),
        hosts: vec![rule(host)],
        scheme: Scheme::Bearer,
        methods: Vec::new(),
        paths: Vec::new(),
        dummy: dummy.map(Into::into),
        git: None,
    }
}

/// One sandbox, and a process in it.
pub(crate) struct World {
    pub(crate) policy: SandboxPolicy,
    pub(crate) caller: Caller,
    outbox: Arc<Outbox>,
}

impl World {
    pub(crate) fn new(policy: SandboxPolicy) -> Self {
        let outbox = Arc::new(Outbox::default());
        let sandboxes = Sandboxes::new(outbox.clone());
        let policy = SandboxPolicy {
            sandbox: 7,
            ..policy
        };
        sandboxes.put(policy.clone());
        let asked = Asked {
            sandbox: 7,
            exec: 8,
            pid: 9,
            ..Asked::default()
        };
        Self {
            policy,
            caller: sandboxes.caller(&asked).unwrap(),
            outbox,
        }
    }

    pub(crate) fn allowing(entries: &[&str]) -> Self {
        Self::new(SandboxPolicy {
            allow: entries.iter().copied().map(rule).collect(),
            ..SandboxPolicy::default()
        })
    }

    /// What was told since the last time, in no order.
    pub(crate) fn refusals(&self) -> Vec<String> {
        let refused = self
            .outbox
            .take()
            .into_iter()
            .filter_map(|message| match message {
                FromProxy::Refused(refused) => Some(refused),
                _ => None,
            });
        refused
            .map(|refused| {
                let refusal = Refusal {
                    host: refused.host,
                    port: refused.port,
                    rule: refused.rule,
                };
                refusal.to_string()
            })
            .collect()
    }
}

/// A name server. It fails for `servfail.test`.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Upstream {
    pub(crate) async fn start(names: &[(&str, &[&str])]) -> Self {
        let names: Vec<(String, Vec<IpAddr>)> = names
            .iter()
            .map(|(name, all)| {
                let all = all.iter().map(|it| it.parse().unwrap());
                (format!("{name}."), all.collect())
            })
            .collect();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let heard = asked.clone();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let query = Message::from_vec(&buffer[..length]).unwrap();
                let question = &query.queries[0];
                let line = format!("{} {}", question.name(), question.query_type());
                heard.lock().unwrap().push(line);
                let answer = answer(&names, &query).to_vec().unwrap();
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        Self {
            address,
            asked,
            task,
        }
    }

    /// Names and types.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn answer(names: &[(String, Vec<IpAddr>)], query: &Message) -> Message {
    let question = &query.queries[0];
    let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
    answer.metadata.recursion_available = true;
    answer.add_query(question.clone());
    let asked = question.name().to_lowercase().to_ascii();
    answer.metadata.response_code = match names.iter().find(|(name, _)| *name == asked) {
        Some((_, addresses)) => {
            let wanted = question.query_type();
            let records = addresses.iter().filter_map(|&address| {
                let kind = match address {
                    IpAddr::V4(_) => RecordType::A,
                    IpAddr::V6(_) => RecordType::AAAA,
                };
                let record =
                    || Record::from_rdata(question.name().clone(), 60, RData::from(address));
                (kind == wanted).then(record)
            });
            answer.add_answers(records);
            ResponseCode::NoError
        }
        None if asked == "servfail.test." => ResponseCode::ServFail,
        None => ResponseCode::NXDomain,
    };
    answer
}
