//! Two transports raced: the first over which data goes both ways is kept.

use super::connection::Link;
use shared::fleet::{Transport, TransportOrder};
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Why neither transport carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neither<E> {
    /// What the one that was tried first said.
    pub first: E,
    /// What the other said, if it was tried.
    pub other: Option<E>,
}

impl<E> Neither<E> {
    /// The one error that stands for both: an answer says more than silence, and the newer one is likelier an answer.
    pub fn into_one(self) -> E {
        self.other.unwrap_or(self.first)
    }
}

/// Connects by `connect` and exchanges a first word by `exchange`, in this order of transports.
///
/// At most one exchange is under way: a hub would take the second for a node that came anew. So the first transport has its head start for
/// handshake and exchange together; when the other has shaken hands before the first has its answer, the first is given up.
///
/// # Errors
/// [`Neither`] when both failed.
pub async fn race<T, E, C, X>(
    order: TransportOrder,
    connect: impl Fn(Transport) -> C,
    exchange: impl Fn(Link) -> X,
) -> Result<T, Neither<E>>
where
    C: Future<Output = Result<Link, E>>,
    X: Future<Output = Result<T, E>>,
{
    let whole = async |by| exchange(connect(by).await?).await;
    let mut first = Box::pin(whole(order.first));
    let Some(after) = order.other_after else {
        return first.await.map_err(|first| Neither { first, other: None });
    };
    let start = Instant::now() + Duration::from_micros(after.0);
    let failed = tokio::select! {
        biased;
        done = &mut first => match done {
            Ok(done) => return Ok(done),
            Err(why) => Some(why),
        },
        () = sleep_until(start) => None,
    };
    let other = order.first.other();
    match failed {
        Some(first) => whole(other).await.map_err(|other| Neither { first, other: Some(other) }),
        None => beside(first, connect(other), &exchange).await,
    }
}

/// The first is under way and late.
async fn beside<T, E, X>(
    mut first: Pin<Box<impl Future<Output = Result<T, E>>>>,
    connecting: impl Future<Output = Result<Link, E>>,
    exchange: &impl Fn(Link) -> X,
) -> Result<T, Neither<E>>
where
    X: Future<Output = Result<T, E>>,
{
    let mut connecting = pin!(connecting);
    let (link, first_failed) = tokio::select! {
        biased;
        done = &mut first => match done {
            Ok(done) => return Ok(done),
            Err(why) => (connecting.await, Some(why)),
        },
        link = &mut connecting => (link, None),
    };
    match (link, first_failed) {
        (Ok(link), first_failed) => {
            // With its connection: a word of it that came late would count as a newer one.
            drop(first);
            exchange(link).await.map_err(|other| match first_failed {
                Some(first) => Neither { first, other: Some(other) },
                None => Neither { first: other, other: None },
            })
        }
        (Err(other), Some(first)) => Err(Neither { first, other: Some(other) }),
        (Err(other), None) => first.await.map_err(|first| Neither { first, other: Some(other) }),
    }
}
