//! `sandbox network`: what went out of a sandbox through the proxy.

use serde::Serialize;

use super::{
    args::{NetworkArgs, Output},
    block_on,
    error::{CliError, Exit},
    host::Host,
    json::pretty,
    print,
    ps::table,
    tell,
};
use crate::{
    escape::printable,
    proto::{GetTrafficRequest, GetTrafficResponse, Traffic, traffic::Decision},
};

/// Prints the traffic of a sandbox: the rows to stdout, what is to be said about
/// them to stderr.
pub fn network(args: &NetworkArgs, host: &Host) -> Result<Exit, CliError> {
    let traffic = block_on(async {
        let mut client = host.connect().await?;
        let request = GetTrafficRequest {
            sandbox_id: args.sandbox.clone(),
        };
        Ok(client.get_traffic(request).await?.into_inner())
    })?;
    match args.output {
        Output::Text => {
            print(&table(&rows(&traffic)))?;
            tell(&remarks(&traffic));
        }
        Output::Json => {
            print(&json(&traffic))?;
        }
    }
    Ok(Exit::Success)
}

const HEAD: [&str; 6] = ["HOST", "DECISION", "RULE", "REQUESTS", "SENT", "RECEIVED"];

fn rows(response: &GetTrafficResponse) -> Vec<[String; 6]> {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(response.traffic.iter().map(|row| {
        let host = match row.port {
            0 => row.host.clone(),
            port => format!("{}:{port}", row.host),
        };
        [
            printable(&host),
            decision(row).into(),
            printable(&row.rule),
            row.requests.to_string(),
            bytes(row.sent_bytes),
            bytes(row.received_bytes),
        ]
    }));
    rows
}

/// What the rows mean for the policy.
fn remarks(response: &GetTrafficResponse) -> String {
    let mut text = String::new();
    if !response.unused_rules.is_empty() {
        let rules: Vec<_> = response
            .unused_rules
            .iter()
            .map(|rule| format!("`{}`", printable(rule)))
            .collect();
        text = format!("\nnever used: {}\n", rules.join(", "));
    }
    if response.never_refused {
        text += "\nhint: nothing was refused so far; a list that never refuses anything is \
                 probably too wide\n";
    }
    text
}

fn decision(row: &Traffic) -> &'static str {
    match row.decision() {
        Decision::Allowed => "allowed",
        Decision::Denied => "denied",
        Decision::Observed => "observed",
        Decision::Unspecified => "unknown",
    }
}

/// In powers of 1024, with one digit behind the point where that says more.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[derive(Serialize)]
struct Json<'a> {
    traffic: Vec<RowJson<'a>>,
    unused_rules: &'a [String],
    never_refused: bool,
}

#[derive(Serialize)]
struct RowJson<'a> {
    host: &'a str,
    port: u32,
    decision: &'a str,
    rule: &'a str,
    requests: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

fn json(response: &GetTrafficResponse) -> String {
    let traffic = response.traffic.iter().map(|row| RowJson {
        host: &row.host,
        port: row.port,
        decision: decision(row),
        rule: &row.rule,
        requests: row.requests,
        sent_bytes: row.sent_bytes,
        received_bytes: row.received_bytes,
    });
    let json = Json {
        traffic: traffic.collect(),
        unused_rules: &response.unused_rules,
        never_refused: response.never_refused,
    };
    pretty(&json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }

    #[test]
    fn rows_say_who_was_reached_and_why() {
        let mut row = Traffic {
            host: "registry.example".into(),
            port: 443,
            rule: "*.example".into(),
            requests: 3,
            sent_bytes: 10,
            received_bytes: 2048,
            ..Traffic::default()
        };
        row.set_decision(Decision::Allowed);
        let response = GetTrafficResponse {
            traffic: vec![row],
            unused_rules: vec!["pypi.org".into()],
            never_refused: true,
        };
        assert_eq!(
            rows(&response)[1],
            [
                "registry.example:443",
                "allowed",
                "*.example",
                "3",
                "10 B",
                "2.0 KiB"
            ]
        );
        let remarks = remarks(&response);
        assert!(remarks.contains("never used: `pypi.org`") && remarks.contains("too wide"));
        let value: serde_json::Value = serde_json::from_str(&json(&response)).unwrap();
        assert_eq!(value["traffic"][0]["decision"], "allowed");
    }
}
