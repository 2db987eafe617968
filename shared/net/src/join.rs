//! How a machine gets its certificate, and a node a fresh one.
//!
//! Both are one frame each way on a stream of their own. The private key is made here and never travels. Never here: who may
//! join, which names the certificate carries, how long it lasts: the hub decides these.

use crate::link::{Endpoint, Link, LinkError, Stream, StreamError, race, resolve};
use crate::tls::{CertClock, Identity, TlsError, new_key_and_request};
use shared::fleet::{Transport, TransportOrder};
use shared::ids::NodeId;
use shared::units::Micros;
use shared::wire::frame::{Issued, Join, Renew};
use shared::wire::{Frame, JoinToken};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// How long the hub may take to answer: it signs one certificate and writes one row.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The hub could not be reached, or is not the one that the token names.
    #[error("reaching the hub at {address}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// Why not.
        #[source]
        source: LinkError,
    },
    /// The hub said no.
    #[error("the hub refuses: {0}")]
    Denied(String),
    /// The stream broke.
    #[error("waiting for the hub's answer")]
    Broken(#[from] StreamError),
    /// The hub answered with something else.
    #[error("the hub gave no certificate: want an answer within {s} seconds", s = ANSWER_TIME_MAX.as_secs())]
    NoAnswer,
    /// The certificate is of no use.
    #[error("using the certificate from the hub")]
    Unusable(#[from] TlsError),
    /// The certificate is for somebody else.
    #[error("the hub gave a certificate for `{got}`, want one for `{want}`")]
    Foreign {
        /// Whose it is.
        got: NodeId,
        /// Who asked.
        want: NodeId,
    },
}

/// A membership: what a node keeps of the hub's answer.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Who the node now is.
    pub identity: Identity,
    /// Who the hub is.
    pub hub: NodeId,
    /// Labels that the token gives.
    pub labels: BTreeMap<String, String>,
    /// How long the certificate lasts.
    pub expires_in: Micros,
}

/// Joins the fleet of a token, as `name` at the token's site, if the hub agrees.
///
/// # Errors
/// [`JoinError`] says why there is no certificate.
pub async fn join(token: &JoinToken, name: &str, clock: &CertClock) -> Result<Joined, JoinError> {
    let unreachable = |source| JoinError::Unreachable { address: token.address.clone(), source };
    let link = dial(token, clock).await.map_err(unreachable)?;
    let (key, request) = new_key_and_request(name)?;
    let ask = Frame::Join(Join { secret: token.secret.clone(), name: name.to_owned(), request });
    let stream = link.open().await.map_err(unreachable)?;
    let issued = ask_for(stream, &ask).await?;
    link.close(crate::link::Code::DONE, "joined");
    joined(issued, &key)
}

/// Gets a fresh certificate with a fresh key, over a link to the hub that the present certificate opened. The endpoint keeps
/// using the old one until [`Endpoint::set_identity`].
///
/// # Errors
/// [`JoinError`] says why there is none; the present certificate stays good until it expires.
pub async fn renew(link: &Link, node: &NodeId) -> Result<Joined, JoinError> {
    let (key, request) = new_key_and_request(&node.topic_level())?;
    let unreachable = |source| JoinError::Unreachable { address: link.address().to_string(), source };
    let stream = link.open().await.map_err(unreachable)?;
    let joined = joined(ask_for(stream, &Frame::Renew(Renew { request })).await?, &key)?;
    if joined.identity.node() == node {
        Ok(joined)
    } else {
        Err(JoinError::Foreign { got: joined.identity.node().clone(), want: node.clone() })
    }
}

/// Answers a join or renewal: the hub's side of the stream. Waits until the asker has the answer, so that the caller may close
/// the link afterwards.
///
/// # Errors
/// [`StreamError`] when the asker is gone.
pub async fn answer(mut stream: Stream, answer: Result<Issued, String>) -> Result<(), StreamError> {
    stream.writer.write(&answer.map_or_else(Frame::Denied, Frame::Issued)).await?;
    stream.writer.finish().await?;
    match tokio::time::timeout(ANSWER_TIME_MAX, stream.writer.stopped()).await {
        Ok(None) => Ok(()),
        Ok(Some(code)) => Err(StreamError::Reset(code)),
        Err(_) => Err(StreamError::Truncated),
    }
}

/// The transports are raced for the handshake only: a question that was asked twice would spend the token twice.
async fn dial(token: &JoinToken, clock: &CertClock) -> Result<Link, LinkError> {
    let mut last = None;
    for address in resolve(&token.address).await? {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let endpoint = Endpoint::nameless(any, clock)?;
        let connect = |by| endpoint.connect_to_join(address, &token.authority_sha256, by);
        match race(TransportOrder::prefer(Transport::Quic), connect, async |link| Ok(link)).await {
            Ok(link) => return Ok(link),
            Err(neither) => last = Some(neither.into_one()),
        }
    }
    Err(last.unwrap_or_else(|| LinkError::Dial { address: token.address.clone(), why: "it has no address".to_owned() }))
}

async fn ask_for(mut stream: Stream, ask: &Frame) -> Result<Issued, JoinError> {
    let exchange = async {
        stream.writer.write(ask).await?;
        stream.writer.finish().await?;
        stream.reader.read().await
    };
    match tokio::time::timeout(ANSWER_TIME_MAX, exchange).await {
        Ok(Ok(Some(Frame::Issued(issued)))) => Ok(issued),
        Ok(Ok(Some(Frame::Denied(why)))) => Err(JoinError::Denied(why)),
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(_)) | Err(_) => Err(JoinError::NoAnswer),
    }
}

fn joined(issued: Issued, key: &str) -> Result<Joined, JoinError> {
    let identity = Identity::new(&issued.certificate, key, &issued.authority)?;
    if *identity.node() != issued.node {
        return Err(JoinError::Foreign { got: identity.node().clone(), want: issued.node });
    }
    Ok(Joined { identity, hub: issued.hub, labels: issued.labels, expires_in: issued.expires_in })
}
