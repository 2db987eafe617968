//! Frames on QUIC streams: four bytes of length, most significant first, then one CBOR item.
//!
//! A connection has one control stream, opened by the agent (or by the dialling agent, between agents): `Hello`, answered by
//! `Welcome`, then `Ping` and `Pong`; between agents, either says `Hello` again when its replicas changed. Each request has its own bidirectional stream: `Header` → `Accepted` or `Refused`;
//! after acceptance `Body`… with `last`; then `Progress`, `Tokens`…, and `End` or `Failed`. Resetting the stream cancels.
//! A split request has one more stream between each stage and the next, opened by the earlier: `Header` with its stage, acceptance
//! and `Body` (a [`StageBody`](super::StageBody)) as ever; then `Hidden` one way and `Drawn` the other, and the end or failure as
//! ever. Each stage answers for its own slot and memory, and a reset of any stream resets the others.
//! `Join` and `Renew` streams carry one frame each way. A stream to the hub that begins with `Ping` is answered with `Pong`, up to
//! [`PULSES_MAX`] times. A control stream that is finished without a `Goodbye` leaves the connection to the streams that still run.

use crate::fleet::{Load, ReplicaReport};
use crate::ids::{Instance, NodeId, PlanEpoch, SessionEpoch};
use crate::plan::{Failure, Finish, Reason, Usage};
use crate::units::Micros;
use crate::work::ExecHeader;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest frame. A body chunk is at most [`CHUNK_BYTES_MAX`], so a larger frame is a fault or an attack, and ends the connection.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;
/// Largest piece of a body in one frame; larger bodies travel in several.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Pings on a stream that begins with one; the hub answers each, and the stream says nothing else. So a node finds out whether
/// a transport carries before it moves there.
pub const PULSES_MAX: u64 = 20;

/// One frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    /// Opens the control stream.
    Hello(Hello),
    /// Answers `Hello`.
    Welcome(Welcome),
    /// Says why the connection is about to be closed.
    Goodbye(Goodbye),
    /// Are you there? With the sender's loads.
    Ping(Pulse),
    /// Yes. With the sender's loads.
    Pong(Pulse),
    /// Opens a request stream.
    Header(Box<ExecHeader>),
    /// The executor takes the request and wants its body.
    Accepted(Load),
    /// The executor, or the relay before it, does not take the request.
    Refused(Reason, Option<Load>),
    /// A piece of the body.
    Body(Chunk),
    /// Alive, no tokens yet.
    Progress,
    /// A batch of tokens.
    Tokens(TokenBatch),
    /// Hidden states of a split request, towards the last stage.
    Hidden(Hidden),
    /// A token that the last stage drew, towards the first.
    Drawn(Drawn),
    /// The whole answer is there.
    End(End),
    /// There will be no whole answer.
    Failed(Failure),
    /// A node without a certificate asks for one.
    Join(Join),
    /// A node asks for a fresh certificate on a connection that its present one opened.
    Renew(Renew),
    /// A certificate.
    Issued(Issued),
    /// No certificate.
    Denied(String),
}

/// Who opens the connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Lowest version that the sender speaks.
    pub version_min: u16,
    /// Highest version that the sender speaks.
    pub version_max: u16,
    /// Who; must equal the certificate's name.
    pub node: NodeId,
    /// This life of the process.
    pub instance: Instance,
    /// Highest plan epoch seen in any layer: the hub goes on above it.
    #[serde(default)]
    pub plan_epoch_seen: PlanEpoch,
    /// Highest session epoch held.
    #[serde(default)]
    pub session_epoch_seen: SessionEpoch,
    /// Its replicas now.
    #[serde(default)]
    pub replicas: Vec<ReplicaReport>,
}

/// The answer to `Hello`, by a hub or by a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Version to speak.
    pub version: u16,
    /// Who answers.
    pub node: NodeId,
    /// Epoch of this session; a peer, which issues none, sends zero.
    #[serde(default)]
    pub session: SessionEpoch,
    /// How often the node reports.
    #[serde(default)]
    pub heartbeat: Micros,
    /// `host:port` of the MQTT broker; a host of `hub` means the host that was dialled for QUIC.
    #[serde(default)]
    pub broker: String,
    /// Replicas of the answering node, when it executes.
    #[serde(default)]
    pub replicas: Vec<ReplicaReport>,
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goodbye {
    /// A newer instance of the same node took over.
    Replaced,
    /// Another live instance claims the same identity.
    Cloned,
    /// The certificate was revoked.
    Revoked,
    /// No version in common.
    Version,
    /// The sender shuts down.
    Shutdown,
    /// A frame could not be understood, or came out of order.
    Protocol(String),
}

/// A sign of life with loads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    /// Echoed by the pong.
    pub number: u64,
    /// Loads of the sender's replicas by variant.
    #[serde(default)]
    pub loads: BTreeMap<String, Load>,
}

/// A piece of a request's body.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The bytes.
    #[serde(with = "byte_string")]
    pub bytes: Vec<u8>,
    /// Whether it is the last.
    pub last: bool,
}

/// Hidden states of consecutive tokens of one sequence, between two stages. Written as a list, since each token pays for each byte.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "HiddenParts", into = "HiddenParts")]
pub struct Hidden {
    /// Position of the first token in the sequence.
    pub start: u32,
    /// How many tokens.
    pub count: u16,
    /// Whether a token shall be drawn after the last of them.
    pub draw: bool,
    /// `count` rows of numbers, least significant byte first, in the header's precision.
    pub bytes: Vec<u8>,
}

/// [`Hidden`] as it is written.
#[derive(Clone, Serialize, Deserialize)]
struct HiddenParts(u32, u16, bool, #[serde(with = "byte_string")] Vec<u8>);

impl From<HiddenParts> for Hidden {
    fn from(HiddenParts(start, count, draw, bytes): HiddenParts) -> Self {
        Self { start, count, draw, bytes }
    }
}

impl From<Hidden> for HiddenParts {
    fn from(Hidden { start, count, draw, bytes }: Hidden) -> Self {
        Self(start, count, draw, bytes)
    }
}

/// Shows sizes only: hidden states can be turned back into text.
impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hidden").field("start", &self.start).field("count", &self.count).finish_non_exhaustive()
    }
}

/// A token that was drawn.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn(pub u32);

/// Hides the token: it is text.
impl std::fmt::Debug for Drawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Drawn(…)")
    }
}

/// Generated tokens.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBatch {
    /// How many tokens this batch stands for.
    pub count: u32,
    /// Their ids, where the engine has ids; needed to continue a broken stream elsewhere.
    #[serde(default)]
    pub ids: Vec<u32>,
    /// Their text. May be empty while a character is incomplete.
    pub text: String,
    /// For engines that stream structured deltas (tool calls), the delta object as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<String>,
}

/// Shows sizes only: text must not reach a log.
impl std::fmt::Debug for TokenBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenBatch").field("count", &self.count).field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

/// Shows sizes only: text must not reach a log.
impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunk").field("bytes", &self.bytes.len()).field("last", &self.last).finish()
    }
}

/// The end of a whole answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Why generation stopped.
    pub finish: Finish,
    /// What was used.
    pub usage: Usage,
    /// Load of the replica afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// Asks for a first certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The token's secret, in hex.
    pub secret: String,
    /// Wished last part of the node's name; the site comes from the token.
    pub name: String,
    /// Certificate signing request, DER.
    #[serde(with = "byte_string")]
    pub request: Vec<u8>,
}

/// Asks for a fresh certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// Certificate signing request, DER.
    #[serde(with = "byte_string")]
    pub request: Vec<u8>,
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Who the node now is.
    pub node: NodeId,
    /// Who the hub is.
    pub hub: NodeId,
    /// The node's certificate, PEM.
    pub certificate: String,
    /// The fleet's CA certificate, PEM.
    pub authority: String,
    /// Labels that the token gives.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Until the certificate expires.
    pub expires_in: Micros,
}

/// Why bytes are no frame.
#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    /// Longer than accepted.
    #[error("a frame of {0} bytes: at most {FRAME_BYTES_MAX}")]
    TooLong(usize),
    /// Not a CBOR item of this shape.
    #[error("not a frame: {0}")]
    Unreadable(String),
}

impl Frame {
    /// Length and CBOR item, ready to send.
    ///
    /// # Errors
    /// [`BadFrame::TooLong`] when the frame exceeds [`FRAME_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, BadFrame> {
        let mut bytes = vec![0; 4];
        ciborium::into_writer(self, &mut bytes).map_err(|error| BadFrame::Unreadable(error.to_string()))?;
        let length = bytes.len() - 4;
        let prefix = u32::try_from(length).ok().filter(|_| length <= FRAME_BYTES_MAX).ok_or(BadFrame::TooLong(length))?;
        bytes[..4].copy_from_slice(&prefix.to_be_bytes());
        Ok(bytes)
    }

    /// How many bytes [`Self::encode`] makes of it.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let mut count = Count(4);
        // Counting does not fail.
        let _ = ciborium::into_writer(self, &mut count);
        count.0
    }

    /// The frame in `item`, the bytes after the length.
    ///
    /// # Errors
    /// [`BadFrame`] for anything that is no frame of this version.
    pub fn decode(item: &[u8]) -> Result<Self, BadFrame> {
        if item.len() > FRAME_BYTES_MAX {
            return Err(BadFrame::TooLong(item.len()));
        }
        ciborium::de::from_reader_with_recursion_limit(item, 32).map_err(|error| BadFrame::Unreadable(error.to_string()))
    }
}

/// Counts what is written.
struct Count(usize);

impl std::io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// CBOR byte strings for vectors of bytes, which serde would otherwise write as arrays.
mod byte_string {
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<u8>, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = items.next_element()? {
                    bytes.push(byte);
                }
                Ok(bytes)
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}
