//! Which nodes belong to the fleet, and which certificates they hold.

use super::{Db, StoreError, doing};
use crate::ca::Certificate;
use crate::clock::UnixTime;
use crate::logic::RestoredNode;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use shared::ids::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Most nodes that one hub registers. Each costs a row here and a few kilobytes of memory; a join beyond it is denied.
pub(crate) const NODES_MAX: u64 = 100_000;

/// A node in the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Who.
    pub node: NodeId,
    /// From its join token.
    pub labels: BTreeMap<String, String>,
    /// When it joined.
    pub joined: UnixTime,
    /// An operator wants it empty.
    pub drained: bool,
    /// When it was thrown out; absent for a member.
    pub revoked: Option<UnixTime>,
}

/// A certificate in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCertificate {
    /// Its number in hex.
    pub serial: String,
    /// Whose.
    pub node: NodeId,
    /// When it ends.
    pub expires: UnixTime,
}

/// Something about a node, with when it must have renewed its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certified<T> {
    /// What is told of the node.
    #[serde(flatten)]
    pub node: T,
    /// When the last of its good certificates ends; absent when it has none.
    pub certificate_expires: Option<UnixTime>,
}

/// How a node joined: enough to give the same key the same answer twice, when the first answer was lost on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) key_sha256: [u8; 32],
    pub(crate) token: [u8; 32],
}

pub(super) fn stored_name(text: &str) -> Result<NodeId, StoreError> {
    NodeId::new(text).map_err(|error| StoreError::Damaged { what: "a node's name", why: error.to_string() })
}

fn seconds(at: UnixTime) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

fn moment(seconds: i64) -> UnixTime {
    UnixTime(u64::try_from(seconds).unwrap_or(0))
}

type RawNode = (String, String, i64, bool, Option<i64>);

fn raw(row: &Row<'_>) -> rusqlite::Result<RawNode> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
}

fn node_row((id, labels, joined, drained, revoked): RawNode) -> Result<NodeRow, StoreError> {
    let labels =
        serde_json::from_str(&labels).map_err(|error| StoreError::Damaged { what: "a node's labels", why: error.to_string() })?;
    Ok(NodeRow { node: stored_name(&id)?, labels, joined: moment(joined), drained, revoked: revoked.map(moment) })
}

const COLUMNS: &str = "SELECT id, labels, joined, drained, revoked FROM nodes";

pub(crate) fn find(connection: &Connection, node: &NodeId) -> Result<Option<NodeRow>, StoreError> {
    let found = connection.query_row(&format!("{COLUMNS} WHERE id = ?1"), [node.as_str()], raw).optional();
    found.map_err(doing("looking for a node"))?.map(node_row).transpose()
}

pub(crate) fn joined_by(connection: &Connection, node: &NodeId, proof: &Proof) -> Result<bool, StoreError> {
    connection
        .query_row(
            "SELECT COUNT(*) FROM nodes WHERE id = ?1 AND revoked IS NULL AND key_sha256 = ?2 AND token = ?3",
            params![node.as_str(), proof.key_sha256, proof.token],
            |row| row.get::<_, i64>(0),
        )
        .map(|count| count > 0)
        .map_err(doing("looking for a node"))
}

pub(crate) fn add(
    connection: &Connection,
    node: &NodeId,
    labels: &BTreeMap<String, String>,
    proof: Option<&Proof>,
    now: UnixTime,
) -> Result<(), StoreError> {
    let count: i64 =
        connection.query_row("SELECT COUNT(*) FROM nodes", [], |row| row.get(0)).map_err(doing("counting the nodes"))?;
    if count >= seconds(UnixTime(NODES_MAX)) {
        return Err(StoreError::Full { what: "nodes", max: NODES_MAX });
    }
    let labels = serde_json::to_string(labels).unwrap_or_else(|_| "{}".to_owned());
    connection
        .execute(
            "INSERT INTO nodes (id, labels, joined, key_sha256, token) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (id) DO UPDATE SET labels = excluded.labels, joined = excluded.joined, drained = 0, revoked = NULL,
             key_sha256 = excluded.key_sha256, token = excluded.token",
            params![node.as_str(), labels, seconds(now), proof.map(|p| p.key_sha256), proof.map(|p| p.token)],
        )
        .map_err(doing("registering a node"))?;
    Ok(())
}

pub(crate) fn add_certificate(connection: &Connection, node: &NodeId, serial: &str, expires: UnixTime) -> Result<(), StoreError> {
    connection
        .execute(
            "INSERT INTO certificates (serial, node, expires) VALUES (?1, ?2, ?3) ON CONFLICT (serial) DO NOTHING",
            params![serial, node.as_str(), seconds(expires)],
        )
        .map_err(doing("registering a certificate"))?;
    Ok(())
}

impl Db {
    /// All nodes, revoked ones too, in the order of their names.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let mut query = self.durable.prepare(&format!("{COLUMNS} ORDER BY id")).map_err(doing("reading the nodes"))?;
        let rows = query.query_map([], raw).map_err(doing("reading the nodes"))?;
        rows.map(|row| node_row(row.map_err(doing("reading the nodes"))?)).collect()
    }

    /// One node.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    pub fn node(&self, node: &NodeId) -> Result<Option<NodeRow>, StoreError> {
        find(&self.durable, node)
    }

    /// Writes what logic knows of a node: the node itself, its certificates, and which of those are no longer good. A node whose
    /// certificates are all revoked is revoked itself. `expires` is when certificates that were not known yet end.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn put_node(&mut self, known: &RestoredNode, expires: UnixTime, now: UnixTime) -> Result<(), StoreError> {
        let transaction = self.durable.transaction().map_err(doing("writing a node"))?;
        if find(&transaction, &known.node)?.is_none() {
            add(&transaction, &known.node, &known.labels, None, now)?;
        }
        for serial in &known.serials {
            add_certificate(&transaction, &known.node, serial, expires)?;
        }
        let id = known.node.as_str();
        for serial in &known.revoked {
            transaction
                .execute(
                    "UPDATE certificates SET revoked = COALESCE(revoked, ?2) WHERE serial = ?1",
                    params![serial, seconds(now)],
                )
                .map_err(doing("revoking a certificate"))?;
        }
        transaction
            .execute("UPDATE nodes SET drained = ?2 WHERE id = ?1", params![id, known.drained])
            .map_err(doing("writing a node"))?;
        // Without any certificate nothing is known about membership, and a revocation stays.
        if !known.serials.is_empty() {
            let revoked = known.serials.is_subset(&known.revoked);
            transaction
                .execute(
                    "UPDATE nodes SET revoked = CASE WHEN ?2 THEN COALESCE(revoked, ?3) ELSE NULL END WHERE id = ?1",
                    params![id, revoked, seconds(now)],
                )
                .map_err(doing("writing a node"))?;
        }
        transaction.commit().map_err(doing("writing a node"))
    }

    /// All nodes with their certificates, as logic wants them at its start.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn restored_nodes(&self) -> Result<Vec<RestoredNode>, StoreError> {
        let mut restored: BTreeMap<NodeId, RestoredNode> = BTreeMap::new();
        for row in self.nodes()? {
            let node = row.node.clone();
            let (serials, revoked) = (BTreeSet::new(), BTreeSet::new());
            restored.insert(node.clone(), RestoredNode { node, labels: row.labels, serials, revoked, drained: row.drained });
        }
        let mut query = self
            .durable
            .prepare("SELECT node, serial, revoked IS NOT NULL FROM certificates")
            .map_err(doing("reading certificates"))?;
        let rows = query
            .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, bool>(2)?)))
            .map_err(doing("reading certificates"))?;
        for row in rows {
            let (node, serial, revoked) = row.map_err(doing("reading certificates"))?;
            if let Some(entry) = restored.get_mut(&stored_name(&node)?) {
                if revoked {
                    entry.revoked.insert(serial.clone());
                }
                entry.serials.insert(serial);
            }
        }
        Ok(restored.into_values().collect())
    }

    /// Registers a renewed certificate.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn add_certificate(&mut self, node: &NodeId, certificate: &Certificate) -> Result<(), StoreError> {
        add_certificate(&self.durable, node, &certificate.serial.to_string(), certificate.expires)
    }

    /// Throws a node out: itself and all its certificates. False when there is no such node.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn revoke(&mut self, node: &NodeId, now: UnixTime) -> Result<bool, StoreError> {
        let transaction = self.durable.transaction().map_err(doing("revoking a node"))?;
        let at = seconds(now);
        let known = transaction
            .execute("UPDATE nodes SET revoked = COALESCE(revoked, ?2) WHERE id = ?1", params![node.as_str(), at])
            .map_err(doing("revoking a node"))?;
        transaction
            .execute("UPDATE certificates SET revoked = COALESCE(revoked, ?2) WHERE node = ?1", params![node.as_str(), at])
            .map_err(doing("revoking certificates"))?;
        transaction.commit().map_err(doing("revoking a node"))?;
        Ok(known > 0)
    }

    /// Notes that a node shall be empty, or not any more. False when there is no such node.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn drain(&mut self, node: &NodeId, drained: bool) -> Result<bool, StoreError> {
        let changed = self
            .durable
            .execute("UPDATE nodes SET drained = ?2 WHERE id = ?1 AND revoked IS NULL", params![node.as_str(), drained])
            .map_err(doing("draining a node"))?;
        Ok(changed > 0)
    }

    /// Whether this certificate, given by its number in hex, was revoked.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    pub fn is_revoked(&self, serial: &str) -> Result<bool, StoreError> {
        self.durable
            .query_row("SELECT COUNT(*) FROM certificates WHERE serial = ?1 AND revoked IS NOT NULL", [serial], |row| {
                row.get::<_, i64>(0)
            })
            .map(|count| count > 0)
            .map_err(doing("looking for a certificate"))
    }

    /// Numbers of revoked certificates that have not expired, in hex; expired rows are deleted on the way, since TLS refuses
    /// those by itself.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn revoked_serials(&mut self, now: UnixTime) -> Result<Vec<String>, StoreError> {
        self.durable
            .execute("DELETE FROM certificates WHERE expires < ?1", [seconds(now)])
            .map_err(doing("deleting expired certificates"))?;
        let mut query = self
            .durable
            .prepare("SELECT serial FROM certificates WHERE revoked IS NOT NULL ORDER BY serial")
            .map_err(doing("reading revoked certificates"))?;
        let rows = query.query_map([], |row| row.get(0)).map_err(doing("reading revoked certificates"))?;
        rows.collect::<rusqlite::Result<_>>().map_err(doing("reading revoked certificates"))
    }

    /// When the last good certificate of each node ends. Nodes without one are not in it.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn expiries(&self) -> Result<BTreeMap<NodeId, UnixTime>, StoreError> {
        let mut query = self
            .durable
            .prepare("SELECT node, MAX(expires) FROM certificates WHERE revoked IS NULL GROUP BY node")
            .map_err(doing("reading certificates"))?;
        let rows = query
            .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))
            .map_err(doing("reading certificates"))?;
        rows.map(|row| {
            let (node, expires) = row.map_err(doing("reading certificates"))?;
            Ok((stored_name(&node)?, moment(expires)))
        })
        .collect()
    }

    /// Certificates of a node that are good.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn certificates(&self, node: &NodeId) -> Result<Vec<StoredCertificate>, StoreError> {
        let mut query = self
            .durable
            .prepare("SELECT serial, expires FROM certificates WHERE node = ?1 AND revoked IS NULL ORDER BY expires")
            .map_err(doing("reading certificates"))?;
        let rows =
            query.query_map([node.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).map_err(doing("reading certificates"))?;
        rows.map(|row| {
            let (serial, expires) = row.map_err(doing("reading certificates"))?;
            Ok(StoredCertificate { serial, node: node.clone(), expires: moment(expires) })
        })
        .collect()
    }
}
