//! The connection to the hub: dial, hello, welcome, and then the control stream.

use super::control::{COMMANDS_MAX, Command, News, Talk};
use super::driver::{Handle, Stopped};
use super::links::Links;
use super::offered::Host;
use crate::logic::{AgentEvent, Ended, UplinkEvent};
use shared::fleet::{Transport, TransportOrder};
use shared::ids::NodeId;
use shared::wire::Frame;
use shared::wire::frame::{Goodbye, Hello, PULSES_MAX, Pulse, Welcome};
use shared_net::host::Tasks;
use shared_net::link::{Code, Endpoint, Link, LinkError, Stream, race, resolve};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// How long a row of questions may take: twenty round trips by satellite.
const LOOK_TIME_MAX: Duration = Duration::from_secs(20);
/// What an answer may take beyond twice the best before it counts as late: less than a retransmission takes.
const LATE_AFTER: Duration = Duration::from_millis(100);

/// What a joined node has to dial with.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) endpoint: Endpoint,
    pub(super) hub: NodeId,
    /// `host:port` of the hub, looked up anew at each dial.
    pub(super) address: String,
    pub(super) host: Host,
    pub(super) tasks: Tasks,
}

impl Network {
    /// The hub at the first of these addresses that answers.
    async fn connect(&self, addresses: &[SocketAddr], by: Transport) -> Result<Link, LinkError> {
        let mut last = LinkError::Dial { address: self.address.clone(), why: "it has no address".to_owned() };
        for address in addresses {
            match self.endpoint.connect(*address, &self.hub, by).await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether QUIC carries to the hub: a row of questions on a connection of its own, of which at most one may be answered late
    /// and none be lost. A handshake alone would say little.
    pub(super) async fn look(&self) -> Result<(), String> {
        let text = |error: LinkError| error.to_string();
        let addresses = resolve(&self.address).await.map_err(text)?;
        let link = self.connect(&addresses, Transport::Quic).await.map_err(text)?;
        let late = timeout(LOOK_TIME_MAX, questions(&link)).await.map_err(|_| "its answers stopped".to_owned())?;
        let losses = link.losses();
        link.close(Code::DONE, "looked");
        match (late?, losses) {
            (0 | 1, 0) => Ok(()),
            (late, losses) => Err(format!("of {PULSES_MAX} answers {late} came late; {losses} packets got lost")),
        }
    }
}

/// How many answers were late.
async fn questions(link: &Link) -> Result<usize, String> {
    let mut stream = link.open().await.map_err(|error| error.to_string())?;
    let mut took = Vec::new();
    for number in 0..PULSES_MAX {
        let asked = Instant::now();
        stream.writer.write(&Frame::Ping(Pulse { number, ..Pulse::default() })).await.map_err(|error| error.to_string())?;
        match stream.reader.read().await {
            Ok(Some(Frame::Pong(pulse))) if pulse.number == number => took.push(asked.elapsed()),
            Ok(_) => return Err("the hub answered with something else".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
    let best = took.iter().min().copied().unwrap_or_default();
    Ok(took.iter().filter(|took| **took > best * 2 + LATE_AFTER).count())
}

/// The news that a node which never joined gives of every dial.
pub(super) fn no_network() -> UplinkEvent {
    UplinkEvent::Ended(Ended::Broken("this node has not joined a fleet".to_owned()))
}

/// The tasks of the present connection or dial, and of one beside it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    present: Dialled,
    beside: Dialled,
}

/// The way to one task.
#[derive(Debug, Default)]
struct Dialled {
    commands: Option<mpsc::Sender<Command>>,
    cancel: CancellationToken,
}

impl Dialled {
    fn begin(tasks: &Tasks, uplink: Uplink) -> Self {
        let cancel = tasks.cancelled().child_token();
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        tasks.spawn("uplink", uplink.run(commands, cancel.clone()));
        Self { commands: Some(sender), cancel }
    }

    /// Says this, if there is somebody to hear it, and ends.
    fn end(&mut self, command: Command) {
        match self.commands.take() {
            // While it still dials nobody reads commands, and dropping the sender would be noticed only afterwards.
            Some(commands) if commands.try_send(command).is_err() => self.cancel.cancel(),
            _ => {}
        }
    }
}

impl Slot {
    /// Starts a dial in place of an older one.
    pub(super) fn replace(&mut self, tasks: &Tasks, uplink: Uplink) {
        self.present.cancel.cancel();
        self.beside.cancel.cancel();
        self.present = Dialled::begin(tasks, uplink);
        self.beside = Dialled::default();
    }

    /// Starts a dial beside the present connection.
    pub(super) fn begin_beside(&mut self, tasks: &Tasks, uplink: Uplink) {
        self.beside.cancel.cancel();
        self.beside = Dialled::begin(tasks, uplink);
    }

    /// Ends the dial beside the present connection.
    pub(super) fn stay(&mut self) {
        self.beside.cancel.cancel();
        self.beside = Dialled::default();
    }

    /// Ends the present connection as soon as its streams have ended; the one beside it is the present one now.
    pub(super) fn retire(&mut self) {
        self.present.end(Command::Retire);
        self.present = std::mem::take(&mut self.beside);
    }

    /// Says these words, if there is somebody to hear them, and ends.
    pub(super) fn hang_up(&mut self, words: Goodbye) {
        self.stay();
        self.present.end(Command::HangUp(words));
    }

    pub(super) fn ping(&self, pulse: Pulse) {
        self.say(Command::Ping(pulse));
    }

    pub(super) fn pong(&self, pulse: Pulse) {
        self.say(Command::Pong(pulse));
    }

    fn say(&self, command: Command) {
        if let Some(commands) = &self.present.commands {
            // A full queue means that the hub does not take even a ping: the silence will end the connection.
            let _ = commands.try_send(command);
        }
    }
}

/// One dial and what becomes of it.
pub(super) struct Uplink {
    number: u64,
    order: TransportOrder,
    hello: Hello,
    network: Network,
    handle: Handle,
    links: Arc<Links>,
}

impl Uplink {
    pub(super) fn new(
        (number, order): (u64, TransportOrder),
        hello: Hello,
        network: &Network,
        handle: &Handle,
        links: &Arc<Links>,
    ) -> Self {
        Self { number, order, hello, network: network.clone(), handle: handle.clone(), links: Arc::clone(links) }
    }

    async fn run(self, mut commands: mpsc::Receiver<Command>, cancel: CancellationToken) {
        let dialled = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            Some(Command::HangUp(_)) = commands.recv() => return,
            dialled = self.dial() => dialled,
        };
        let ended = match dialled {
            Ok((link, stream, welcome)) => self.talk(link, stream, welcome, commands).await,
            Err(ended) => ended,
        };
        tracing::info!(hub = %self.network.hub, why = %ended, "uplink ended");
        if ended == Ended::Goodbye(Goodbye::Revoked) && self.links.own_revocation_is_news(true) {
            tracing::warn!(hub = %self.network.hub, "revoked: {}", crate::pages::REVOKED);
        }
        // Fails only when the agent has stopped.
        drop(self.tell(UplinkEvent::Ended(ended)).await);
    }

    async fn tell(&self, event: UplinkEvent) -> Result<(), Stopped> {
        self.handle.tell(AgentEvent::Uplink(self.number, event)).await
    }

    async fn dial(&self) -> Result<(Link, Stream, Welcome), Ended> {
        let broken = |error: LinkError| Ended::Broken(error.to_string());
        let addresses = resolve(&self.network.address).await.map_err(broken)?;
        let connect = async |by| {
            let link = self.network.connect(&addresses, by).await.map_err(broken)?;
            self.tell(UplinkEvent::Connected).await.map_err(|stopped| Ended::Broken(stopped.to_string()))?;
            Ok(link)
        };
        race(self.order, connect, |link| self.greet(link)).await.map_err(|neither| match neither.other {
            // Words of the hub say more than the silence of a transport.
            Some(other @ Ended::Goodbye(_)) => other,
            Some(other) if neither.first != other && !matches!(neither.first, Ended::Goodbye(_)) => {
                Ended::Broken(format!("{}; and {other}", neither.first))
            }
            _ => neither.first,
        })
    }

    async fn greet(&self, link: Link) -> Result<(Link, Stream, Welcome), Ended> {
        let broken = |why: &dyn std::fmt::Display| Ended::Broken(why.to_string());
        let mut stream = link.open().await.map_err(|error| broken(&error))?;
        stream.writer.write(&Frame::Hello(self.hello.clone())).await.map_err(|error| broken(&error))?;
        match stream.reader.read().await {
            Ok(Some(Frame::Welcome(welcome))) => Ok((link, stream, welcome)),
            Ok(Some(Frame::Goodbye(words))) => Err(Ended::Goodbye(words)),
            Ok(Some(_) | None) => {
                link.close(Code::PROTOCOL, "want a welcome");
                Err(Ended::Broken("the hub answered the hello with something else".to_owned()))
            }
            Err(error) => Err(broken(&error)),
        }
    }

    async fn talk(&self, link: Link, stream: Stream, welcome: Welcome, commands: mpsc::Receiver<Command>) -> Ended {
        let by = link.transport();
        tracing::info!(hub = %self.network.hub, session = welcome.session.0, transport = by.name(), "uplink up");
        self.links.set_uplink(Some(link.clone()));
        self.links.own_revocation_is_news(false);
        for news in [UplinkEvent::Carried(by), UplinkEvent::Welcomed(Box::new(welcome))] {
            if self.tell(news).await.is_err() {
                return Ended::Goodbye(Goodbye::Shutdown);
            }
        }
        let talk = Talk {
            link: link.clone(),
            stream,
            commands,
            host: self.network.host.clone(),
            tasks: self.network.tasks.clone(),
            peer: self.network.hub.clone(),
            speaks_for_others: true,
        };
        let ended = talk
            .run(|news| match news {
                News::Ping(pulse) => AgentEvent::Uplink(self.number, UplinkEvent::Ping(pulse)),
                News::Pong(pulse) => AgentEvent::Uplink(self.number, UplinkEvent::Pong(pulse)),
                News::Losses(packets) => AgentEvent::Uplink(self.number, UplinkEvent::Losses(packets)),
                // A hub says neither: `Talk` lets it through from agents only. Taken for the sign of life that it is.
                News::Hello(_) | News::Retired => AgentEvent::Tick,
            })
            .await;
        if self.links.uplink().is_some_and(|present| present.id() == link.id()) {
            self.links.set_uplink(None);
        }
        ended
    }
}
