//! The store in etcd (API version 3).
//!
//! Below a prefix: `rows/KEY`, `reports/NUMBER` and `audit/NUMBER` as in the SQLite file, `version`,
//! `counter` and `audit-counter` (the last numbers of error reports and of records of the audit log),
//! `files/NAME`, and `leader`: the leader's address, bound to a lease
//! that the leader keeps alive. The number of a term is the revision in which `leader` was written, and
//! each transaction compares it.
//!
//! A transaction has a limit of operations and of bytes (128 and 1.5 MiB unless etcd was told
//! otherwise). A change beyond that is first written in pieces to `pending/NUMBER`; with
//! `pending/whole`, which says how many there are, it counts as made. Then its rows are written, and
//! `pending` is removed. Who reads rows first finishes what is pending and whole, and removes what
//! is not.

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::location::NoLocation;
use super::postgres::is_near;
use super::shared::{Campaign, REPORTS, Rows, Server, Texts};
use super::{Error, PAGE, RECORDS, TOGETHER, VERSION};
use pb::compare::{CompareTarget, TargetUnion};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::request_op::Request;
use pb::*;

#[allow(missing_docs, reason = "generated; the fields are etcd's")]
#[allow(clippy::pedantic, reason = "generated")]
mod pb {
    tonic::include_proto!("etcdserverpb");
}

/// Where everything is, unless the URL says otherwise.
const PREFIX: &str = "/ashlar/";
/// Operations of a transaction; the rest up to 128 is for what goes with them.
const OPERATIONS: usize = 100;
/// Bytes of a transaction, of a piece and of a row, below what etcd takes.
const BYTES: usize = 1_000_000;
/// The number of the last record of the audit log.
const RECORD_COUNTER: &str = "audit-counter";
/// Keys of an answer.
const KEYS: i64 = 1_000;
/// Bytes of an answer.
const ANSWER: usize = 256 << 20;

/// A cluster of etcd, or one etcd.
pub struct Etcd {
    name: String,
    prefix: String,
    channel: Channel,
}

impl Etcd {
    /// The etcd of `etcd://HOST:PORT[,HOST:PORT...][/PREFIX][?cacert=FILE&cert=FILE&key=FILE]`.
    ///
    /// # Errors
    /// If it is not one, or would send secrets over a network in the clear.
    pub fn new(url: &str) -> Result<Etcd, NoLocation> {
        let bad = |cause: &str| NoLocation::Url(cause.to_owned());
        let rest =
            url.strip_prefix("etcd://").ok_or_else(|| bad("it has to begin with etcd://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, prefix) = place.split_once('/').unwrap_or((place, ""));
        if hosts.contains('@') {
            return Err(bad(
                "etcd knows this program by a certificate (cert and key), not by a password",
            ));
        }
        let (mut ca, mut cert, mut key) = (None, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let file = |file: &str| {
                let path = PathBuf::from(file);
                let text = fs::read(&path);
                text.map_err(|error| NoLocation::Certificate(path, error.to_string()))
            };
            match parameter.split_once('=') {
                Some(("cacert", path)) => ca = Some(file(path)?),
                Some(("cert", path)) => cert = Some(file(path)?),
                Some(("key", path)) => key = Some(file(path)?),
                _ => return Err(bad(&format!("{parameter} is not cacert, cert or key"))),
            }
        }
        let near = |host: &str| host.rsplit_once(':').is_some_and(|(host, _)| is_near(host));
        let tls = match (ca, cert, key) {
            (None, None, None) if hosts.split(',').all(near) => None,
            (None, _, _) => return Err(NoLocation::Clear),
            (Some(ca), None, None) => {
                Some(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)))
            }
            (Some(ca), Some(cert), Some(key)) => Some(
                ClientTlsConfig::new()
                    .ca_certificate(Certificate::from_pem(ca))
                    .identity(Identity::from_pem(cert, key)),
            ),
            _ => return Err(bad("cert and key go together")),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut endpoints = Vec::new();
        for host in hosts.split(',') {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"));
            let mut endpoint = endpoint
                .map_err(|error| bad(&format!("{host} is not HOST:PORT: {error}")))?
                .connect_timeout(Duration::from_secs(2))
                .timeout(Duration::from_secs(10))
                .http2_keep_alive_interval(Duration::from_secs(5))
                .keep_alive_timeout(Duration::from_secs(5))
                .tcp_nodelay(true);
            if let Some(tls) = &tls {
                let with = endpoint.tls_config(tls.clone());
                endpoint = with.map_err(|error| bad(&format!("TLS: {error}")))?;
            }
            endpoints.push(endpoint);
        }
        // Connections are made when they are needed, on the runtime that asks.
        let _inside = super::shared::runtime().enter();
        let channel = match <[Endpoint; 1]>::try_from(endpoints) {
            Ok([one]) => one.connect_lazy(),
            Err(several) => Channel::balance_list(several.into_iter()),
        };
        let prefix = match prefix.trim_matches('/') {
            "" => PREFIX.to_owned(),
            prefix => format!("/{prefix}/"),
        };
        let name = format!("etcd://{hosts}{}", prefix.trim_end_matches('/'));
        Ok(Etcd { name, prefix, channel })
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(ANSWER)
    }

    fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    fn key(&self, below: impl Display) -> Vec<u8> {
        format!("{}{below}", self.prefix).into_bytes()
    }

    fn failed(&self, doing: &'static str) -> impl Fn(tonic::Status) -> Error + use<'_> {
        move |status| self.error(doing, status.message().to_owned())
    }

    fn error(&self, doing: &'static str, cause: String) -> Error {
        let (store, next) = (self.name.clone(), "look whether it runs and has a quorum");
        Error::Server { store, doing, cause, next }
    }

    /// One key.
    async fn get(&self, below: &str) -> Result<Option<KeyValue>, Error> {
        let request = RangeRequest { key: self.key(below), ..RangeRequest::default() };
        let answer = self.kv().range(request).await.map_err(self.failed("reading"))?;
        Ok(answer.into_inner().kvs.into_iter().next())
    }

    /// The leader's key, if it is of that term.
    async fn leader(&self, fence: u64) -> Result<Option<KeyValue>, Error> {
        let leader = self.get("leader").await?;
        Ok(leader.filter(|leader| leader.mod_revision == signed(fence)))
    }

    /// Everything below, in the order of keys, each without what is in front.
    async fn all(&self, below: &str) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let front = self.key(below);
        let (mut found, mut key, end, mut revision) = (Vec::new(), front.clone(), end(&front), 0);
        loop {
            let request = RangeRequest { key, range_end: end.clone(), limit: KEYS, revision };
            let answer =
                self.kv().range(request).await.map_err(self.failed("reading"))?.into_inner();
            // All of it as it was when the first part was read.
            revision = answer.header.map_or(0, |header| header.revision);
            let Some(last) = answer.kvs.last() else { return Ok(found) };
            key = [&last.key[..], b"\0"].concat();
            for pair in answer.kvs {
                let name = String::from_utf8_lossy(&pair.key[front.len()..]).into_owned();
                found.push((name, pair.value));
            }
            if !answer.more {
                return Ok(found);
            }
        }
    }

    /// Writes under a term. False if another has begun.
    async fn write(&self, fence: u64, operations: Vec<RequestOp>) -> Result<bool, Error> {
        let leads = Compare {
            target: CompareTarget::Mod.into(),
            key: self.key("leader"),
            target_union: Some(TargetUnion::ModRevision(signed(fence))),
            ..Compare::default()
        };
        let request =
            TxnRequest { compare: vec![leads], success: operations, ..TxnRequest::default() };
        let answer = self.kv().txn(request).await.map_err(self.failed("writing to"))?;
        Ok(answer.into_inner().succeeded)
    }

    fn put(&self, below: impl Display, value: impl Into<Vec<u8>>) -> RequestOp {
        let put = PutRequest { key: self.key(below), value: value.into(), lease: 0 };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    fn delete(&self, below: impl Display) -> RequestOp {
        let delete = DeleteRangeRequest { key: self.key(below), ..DeleteRangeRequest::default() };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn delete_all(&self, below: &str) -> RequestOp {
        let key = self.key(below);
        let delete = DeleteRangeRequest { range_end: end(&key), key };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn row(&self, key: &str, text: Option<String>) -> RequestOp {
        match text {
            Some(text) => self.put(format_args!("rows/{key}"), text),
            None => self.delete(format_args!("rows/{key}")),
        }
    }

    /// What a log comes to.
    fn log(&self, log: Texts) -> Vec<RequestOp> {
        let last = log.added.last().map(|(last, _)| *last);
        let records = log.added.into_iter().chain(log.replaced);
        let mut operations: Vec<RequestOp> =
            records.map(|(number, record)| self.put(record_name(number), record)).collect();
        if let Some(last) = last {
            operations.push(self.put(RECORD_COUNTER, last.to_string()));
            if let Some(oldest) = last.checked_sub(RECORDS) {
                let (key, range_end) = (self.key("audit/"), self.key(record_name(oldest + 1)));
                let delete = DeleteRangeRequest { key, range_end };
                operations.push(RequestOp { request: Some(Request::RequestDeleteRange(delete)) });
            }
        }
        operations
    }

    /// Writes to the audit log alone, in as many transactions as that takes.
    async fn write_log(&self, fence: u64, log: Texts) -> Result<bool, Error> {
        let replaced = log.replaced.into_iter().map(|record| (false, record));
        let all = log.added.into_iter().map(|record| (true, record)).chain(replaced);
        let mut all = all.peekable();
        while all.peek().is_some() {
            let (mut some, mut count, mut bytes) = (Texts::default(), 0, 0);
            while let Some((is_new, record)) =
                all.next_if(|(_, (_, text))| count == 0 || bytes + text.len() <= BYTES)
            {
                (count, bytes) = (count + 1, bytes + record.1.len());
                if is_new { &mut some.added } else { &mut some.replaced }.push(record);
                if count == OPERATIONS {
                    break;
                }
            }
            if !self.write(fence, self.log(some)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes a change that is too large for one transaction. Its records are made with the key that
    /// makes it count.
    async fn write_in_pieces(&self, fence: u64, rows: Rows, log: Texts) -> Result<bool, Error> {
        let text = serde_json::to_vec(&rows);
        let text = text.map_err(|error| self.error("writing to", error.to_string()))?;
        let mut count: usize = 0;
        for piece in text.chunks(BYTES) {
            if !self.write(fence, vec![self.put(piece_name(count), piece)]).await? {
                return Ok(false);
            }
            count += 1;
        }
        // From here on it is made.
        let mut whole = vec![self.put("pending/whole", count.to_string())];
        whole.extend(self.log(log));
        if !self.write(fence, whole).await? {
            return Ok(false);
        }
        self.finish(fence, rows).await
    }

    /// Writes the rows of what is pending, and removes that.
    async fn finish(&self, fence: u64, rows: Rows) -> Result<bool, Error> {
        let (mut some, mut bytes) = (Vec::new(), 0);
        for (key, text) in rows {
            let size = key.len() + text.as_ref().map_or(0, String::len);
            if !some.is_empty() && (some.len() == OPERATIONS || bytes + size > BYTES) {
                if !self.write(fence, std::mem::take(&mut some)).await? {
                    return Ok(false);
                }
                bytes = 0;
            }
            bytes += size;
            some.push(self.row(&key, text));
        }
        some.push(self.delete_all("pending/"));
        self.write(fence, some).await
    }

    /// As if a program of that version had written everything.
    #[cfg(test)]
    pub(super) async fn set_version(&self, version: i64) -> Result<(), Error> {
        let success = vec![self.put("version", version.to_string())];
        let request = TxnRequest { success, ..TxnRequest::default() };
        self.kv().txn(request).await.map(drop).map_err(self.failed("writing to"))
    }

    /// A number that counts up.
    async fn counter(&self, below: &str) -> Result<u64, Error> {
        let counter = self.get(below).await?;
        let text = counter.map(|pair| String::from_utf8_lossy(&pair.value).into_owned());
        let number = text.map_or(Ok(0), |text| text.parse());
        number.map_err(|_| self.error("reading", format!("`{below}` is not a number")))
    }

    /// Finishes what is pending and whole, and removes what is not.
    async fn recover(&self, fence: u64) -> Result<bool, Error> {
        let pending = self.all("pending/").await?;
        if pending.is_empty() {
            return Ok(true);
        }
        let count = pending.iter().find(|(name, _)| name == "whole").map(|(_, count)| count);
        let Some(count) = count else {
            return self.write(fence, vec![self.delete_all("pending/")]).await;
        };
        let damaged = |cause: String| Error::Row {
            file: PathBuf::from(&self.name),
            key: "pending".to_owned(),
            cause,
        };
        let count = String::from_utf8_lossy(count).parse::<usize>();
        let count = count.map_err(|error| damaged(error.to_string()))?;
        let mut text = Vec::new();
        for number in 0..count {
            let name = format!("{number:06}");
            let piece = pending.iter().find(|(other, _)| *other == name);
            let (_, piece) = piece.ok_or_else(|| damaged(format!("piece {number} is missing")))?;
            text.extend_from_slice(piece);
        }
        let rows = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        self.finish(fence, rows).await
    }

    /// Looks whether the keys are ours, and returns their version; marks them if there are none.
    pub(super) async fn open(&self) -> Result<i64, Error> {
        if self.get("version").await?.is_none() {
            let absent = Compare {
                target: CompareTarget::Create.into(),
                key: self.key("version"),
                target_union: Some(TargetUnion::CreateRevision(0)),
                ..Compare::default()
            };
            let success = vec![self.put("version", VERSION.to_string())];
            let request = TxnRequest { compare: vec![absent], success, ..TxnRequest::default() };
            self.kv().txn(request).await.map_err(self.failed("writing to"))?;
        }
        let version = self.get("version").await?;
        let version = version.map(|pair| String::from_utf8_lossy(&pair.value).into_owned());
        let file = PathBuf::from(&self.name);
        match version.as_deref().map(str::parse::<i64>) {
            Some(Ok(found)) if found > VERSION => Err(Error::Newer { file, found, known: VERSION }),
            Some(Ok(found)) if found > 0 => Ok(found),
            _ => Err(Error::Foreign { file }),
        }
    }
}

impl Server for Etcd {
    fn name(&self) -> &str {
        &self.name
    }

    async fn campaign(&self, address: &str, term: Duration) -> Result<Campaign, Error> {
        self.open().await?;
        if let Some(leader) = self.get("leader").await? {
            let address = String::from_utf8_lossy(&leader.value).into_owned();
            return Ok(Campaign::Follows(Some(address)));
        }
        let standing = self.failed("standing for leader at");
        // Never longer than the term: the leader counts from before it asked.
        let ttl = i64::try_from(term.as_secs()).unwrap_or(i64::MAX).max(1);
        let grant = LeaseGrantRequest { ttl, id: 0 };
        let granted = self.leases().lease_grant(grant).await.map_err(&standing)?.into_inner();
        if !granted.error.is_empty() {
            return Err(self.error("standing for leader at", granted.error));
        }
        let nobody = Compare {
            target: CompareTarget::Create.into(),
            key: self.key("leader"),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Compare::default()
        };
        let put = PutRequest { key: self.key("leader"), value: address.into(), lease: granted.id };
        let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
        let request = TxnRequest { compare: vec![nobody], success, ..TxnRequest::default() };
        let won = self.kv().txn(request).await.map_err(&standing)?.into_inner();
        if won.succeeded {
            return Ok(Campaign::Leads(revision(won.header)));
        }
        // It would end by itself.
        let _ = self.leases().lease_revoke(LeaseRevokeRequest { id: granted.id }).await;
        Ok(Campaign::Follows(None))
    }

    async fn bring_up(&self, fence: u64) -> Result<bool, Error> {
        let found = self.open().await?;
        if found == VERSION {
            return Ok(true);
        }
        // What is new are keys that were not there.
        let up = self.write(fence, vec![self.put("version", VERSION.to_string())]).await?;
        if up {
            super::was_brought_up(&self.name, found);
        }
        Ok(up)
    }

    async fn renew(&self, fence: u64, _term: Duration) -> Result<bool, Error> {
        let Some(leader) = self.leader(fence).await? else { return Ok(false) };
        let renewing = self.failed("renewing the term at");
        let request = tokio_stream::once(LeaseKeepAliveRequest { id: leader.lease });
        let answers = self.leases().lease_keep_alive(request).await.map_err(&renewing)?;
        let answer = answers.into_inner().message().await.map_err(&renewing)?;
        Ok(answer.is_some_and(|answer| answer.ttl > 0))
    }

    async fn resign(&self, fence: u64) -> Result<(), Error> {
        let Some(leader) = self.leader(fence).await? else { return Ok(()) };
        // What is bound to the lease goes with it.
        let revoked = self.leases().lease_revoke(LeaseRevokeRequest { id: leader.lease }).await;
        revoked.map(drop).map_err(self.failed("resigning at"))
    }

    async fn count_up(&self, fence: u64) -> Result<Option<u64>, Error> {
        let Some(leader) = self.leader(fence).await? else { return Ok(None) };
        let leads = Compare {
            target: CompareTarget::Mod.into(),
            key: self.key("leader"),
            target_union: Some(TargetUnion::ModRevision(signed(fence))),
            ..Compare::default()
        };
        let put = PutRequest { key: self.key("leader"), value: leader.value, lease: leader.lease };
        let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
        let request = TxnRequest { compare: vec![leads], success, ..TxnRequest::default() };
        let answer =
            self.kv().txn(request).await.map_err(self.failed("counting the term up at"))?;
        let answer = answer.into_inner();
        Ok(answer.succeeded.then(|| revision(answer.header)))
    }

    async fn load(&self, fence: u64) -> Result<Option<Vec<(String, String)>>, Error> {
        // It also shows that this is still the leader.
        if !self.recover(fence).await? || !self.write(fence, Vec::new()).await? {
            return Ok(None);
        }
        let rows = self.all("rows/").await?.into_iter();
        Ok(Some(
            rows.map(|(key, text)| (key, String::from_utf8_lossy(&text).into_owned())).collect(),
        ))
    }

    async fn commit(&self, fence: u64, rows: Rows, log: Texts) -> Result<bool, Error> {
        if rows.is_empty() {
            return match log.added.is_empty() && log.replaced.is_empty() {
                // That this is still the leader is looked at all the same.
                true => self.write(fence, Vec::new()).await,
                false => self.write_log(fence, log).await,
            };
        }
        let records = log.added.len() + log.replaced.len();
        assert!(records <= TOGETHER, "{records} records are too many for one transaction");
        let size =
            |key: &String, text: &Option<String>| key.len() + text.as_ref().map_or(0, String::len);
        if let Some((key, text)) = rows.iter().find(|(key, text)| size(key, text) > BYTES) {
            let cause = format!(
                "row {key} has {} bytes, and etcd takes {BYTES} at most",
                text.as_ref().map_or(0, String::len)
            );
            return Err(self.error("writing to", cause));
        }
        let bytes: usize = rows.iter().map(|(key, text)| size(key, text)).sum();
        let texts = log.added.iter().chain(&log.replaced).map(|(_, text)| text.len());
        if rows.len() + records > OPERATIONS || bytes + texts.sum::<usize>() > BYTES {
            return self.write_in_pieces(fence, rows, log).await;
        }
        let rows = rows.into_iter().map(|(key, text)| self.row(&key, text));
        self.write(fence, rows.chain(self.log(log)).collect()).await
    }

    async fn add_report(&self, fence: u64, report: String) -> Result<bool, Error> {
        // Only the leader counts, one at a time.
        let number = self.reports_so_far().await? + 1;
        let mut operations =
            vec![self.put(report_name(number), report), self.put("counter", number.to_string())];
        if let Some(oldest) = number.checked_sub(REPORTS) {
            let key = self.key("reports/");
            let range_end = self.key(report_name(oldest + 1));
            let delete = DeleteRangeRequest { key, range_end };
            operations.push(RequestOp { request: Some(Request::RequestDeleteRange(delete)) });
        }
        self.write(fence, operations).await
    }

    async fn reports_so_far(&self) -> Result<u64, Error> {
        self.counter("counter").await
    }

    async fn reports(&self) -> Result<Vec<(u64, String)>, Error> {
        let all = self.all("reports/").await?.into_iter().rev();
        // Names are numbers, unless somebody else wrote there.
        let report = |(name, text): (String, Vec<u8>)| {
            Some((name.parse().ok()?, String::from_utf8_lossy(&text).into_owned()))
        };
        Ok(all.filter_map(report).collect())
    }

    async fn delete_reports(&self, fence: u64, numbers: Vec<u64>) -> Result<bool, Error> {
        for some in numbers.chunks(OPERATIONS) {
            let delete = some.iter().map(|number| self.delete(report_name(*number)));
            if !self.write(fence, delete.collect()).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn records(&self, before: Option<u64>) -> Result<Vec<(u64, String)>, Error> {
        let before = match before {
            Some(before) => before,
            None => self.counter(RECORD_COUNTER).await? + 1,
        };
        // There are no gaps between numbers, or short ones.
        let key = self.key(record_name(before.saturating_sub(PAGE)));
        let range_end = self.key(record_name(before));
        let request = RangeRequest { key, range_end, ..RangeRequest::default() };
        let answer = self.kv().range(request).await.map_err(self.failed("reading"))?.into_inner();
        let front = self.key("audit/").len();
        let record = |pair: KeyValue| {
            let number = String::from_utf8_lossy(&pair.key[front..]).parse().ok()?;
            Some((number, String::from_utf8_lossy(&pair.value).into_owned()))
        };
        Ok(answer.kvs.into_iter().rev().filter_map(record).collect())
    }

    async fn file(
        &self,
        fence: u64,
        name: &'static str,
        content: String,
    ) -> Result<Option<String>, Error> {
        let below = format!("files/{name}");
        if self.get(&below).await?.is_none()
            && !self.write(fence, vec![self.put(&below, content)]).await?
        {
            return Ok(None);
        }
        let kept = self.get(&below).await?;
        Ok(kept.map(|pair| String::from_utf8_lossy(&pair.value).into_owned()))
    }

    async fn replace_file(
        &self,
        fence: u64,
        name: &'static str,
        content: String,
    ) -> Result<bool, Error> {
        self.write(fence, vec![self.put(format!("files/{name}"), content)]).await
    }
}

/// The end of everything that begins with a key.
fn end(key: &[u8]) -> Vec<u8> {
    let mut end = key.to_vec();
    // Keys are text, which has no byte 255.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn piece_name(number: usize) -> String {
    format!("pending/{number:06}")
}

/// In the order of numbers.
fn report_name(number: u64) -> String {
    format!("reports/{number:020}")
}

/// In the order of numbers.
fn record_name(number: u64) -> String {
    format!("audit/{number:020}")
}

fn revision(header: Option<ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.revision.unsigned_abs())
}

/// Revisions have a sign in etcd's messages and are never negative.
fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_hosts_a_prefix_and_certificates() {
        let open = |url: &str| Etcd::new(url).map(|etcd| (etcd.name, etcd.prefix));
        let pair = |name: &str, prefix: &str| Ok((name.to_owned(), prefix.to_owned()));
        assert_eq!(open("etcd://127.0.0.1:2379"), pair("etcd://127.0.0.1:2379/ashlar", "/ashlar/"));
        let several = "etcd://[::1]:1,localhost:2/a/b/";
        assert_eq!(open(several), pair("etcd://[::1]:1,localhost:2/a/b", "/a/b/"));
        assert_eq!(open("etcd://db.example:2379"), Err(NoLocation::Clear));
        assert_eq!(open("etcd://127.0.0.1:1,db.example:2379"), Err(NoLocation::Clear));
        for (url, word) in [
            ("etcd://root:secret@127.0.0.1:2379", "not by a password"),
            ("etcd://127.0.0.1:2379?user=x", "user=x is not cacert"),
            ("etcd://127.0.0.1:2379?cacert=/nonexistent", "/nonexistent"),
            ("http://127.0.0.1:2379", "etcd://"),
        ] {
            let error = open(url).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn the_end_is_behind_everything_that_begins_so() {
        assert_eq!(end(b"/ashlar/rows/"), b"/ashlar/rows0");
    }
}
