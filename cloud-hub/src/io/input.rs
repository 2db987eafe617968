//! What reaches the driver. Bodies and sockets travel beside the events, and stay outside the core.

use crate::logic::{AdminOperation, AdminReply, Connection, HubEvent};
use shared::ids::AttemptId;
use shared::units::Tokens;
use shared::wire::Frame;
use shared::wire::frame::Hello;
use shared::work::ExecHeader;
use shared_net::link::{Link, Stream};
use shared_net::openai::{Answer, Ask, Refusal};
use tokio::sync::{mpsc, oneshot};

/// Inputs that wait for the driver. It takes about 10 µs for each, so this is far below one heartbeat; at the limit the senders
/// wait, and through flow control so do their sockets.
pub(crate) const INBOX_MAX: usize = 4_096;

/// The way to the driver.
pub(crate) type Inbox = mpsc::Sender<Input>;

/// Something for the driver.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "such a value lives for a moment, in one place: a box would cost more than its room"
)]
pub(crate) enum Input {
    /// An event without anything beside it.
    Event(HubEvent),
    /// Tokens of one of the hub's own requests came. They go on to the client only when the answer is true.
    Content(AttemptId, Tokens, oneshot::Sender<bool>),
    /// An agent said hello. Its certificate names the node in the hello.
    Hello {
        /// Names the connection from now on.
        connection: Connection,
        /// The connection.
        link: Link,
        /// To its control stream.
        frames: mpsc::Sender<Frame>,
        /// What it said.
        hello: Box<Hello>,
    },
    /// An agent opened a request stream.
    Relay {
        /// On which connection.
        connection: Connection,
        /// What it asks.
        header: Box<ExecHeader>,
        /// The stream behind the header.
        stream: Box<Stream>,
    },
    /// A client of the OpenAI API asks.
    Ask {
        /// What.
        ask: Box<Ask>,
        /// Where the answers go.
        answers: mpsc::Sender<Answer>,
        /// Whether it was taken in.
        taken: oneshot::Sender<Result<(), Refusal>>,
    },
    /// An operator asks.
    Admin(AdminOperation, oneshot::Sender<AdminReply>),
    /// The hub is connected to its broker: what is retained there may be out of date.
    MqttConnected,
}
