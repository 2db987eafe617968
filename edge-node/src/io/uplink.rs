//! The connection to the hub: dial, hello, welcome, and then the control stream.

use super::control::{COMMANDS_MAX, Command, News, Talk};
use super::driver::{Handle, Stopped};
use super::links::Links;
use super::offered::Host;
use crate::logic::{AgentEvent, Ended, UplinkEvent};
use shared::ids::NodeId;
use shared::wire::Frame;
use shared::wire::frame::{Goodbye, Hello, Pulse, Welcome};
use shared_net::host::Tasks;
use shared_net::quic::{Code, Endpoint, Link, Stream, resolve};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

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

/// The news that a node which never joined gives of every dial.
pub(super) fn no_network() -> UplinkEvent {
    UplinkEvent::Ended(Ended::Broken("this node has not joined a fleet".to_owned()))
}

/// The task of the present dial, if there is one.
#[derive(Debug, Default)]
pub(super) struct Slot {
    commands: Option<mpsc::Sender<Command>>,
    cancel: CancellationToken,
}

impl Slot {
    /// Starts a dial in place of an older one.
    pub(super) fn replace(&mut self, tasks: &Tasks, uplink: Uplink) {
        self.cancel.cancel();
        self.cancel = tasks.cancelled().child_token();
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        self.commands = Some(sender);
        tasks.spawn("uplink", uplink.run(commands, self.cancel.clone()));
    }

    /// Says these words, if there is somebody to hear them, and ends.
    pub(super) fn hang_up(&mut self, words: Goodbye) {
        match self.commands.take() {
            // While it still dials nobody reads commands, and dropping the sender would be noticed only afterwards.
            Some(commands) if commands.try_send(Command::HangUp(words)).is_err() => self.cancel.cancel(),
            _ => {}
        }
    }

    pub(super) fn ping(&self, pulse: Pulse) {
        self.say(Command::Ping(pulse));
    }

    pub(super) fn pong(&self, pulse: Pulse) {
        self.say(Command::Pong(pulse));
    }

    fn say(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A full queue means that the hub does not take even a ping: the silence will end the connection.
            let _ = commands.try_send(command);
        }
    }
}

/// One dial and what becomes of it.
pub(super) struct Uplink {
    number: u64,
    hello: Hello,
    network: Network,
    handle: Handle,
    links: Arc<Links>,
}

impl Uplink {
    pub(super) fn new(number: u64, hello: Hello, network: &Network, handle: &Handle, links: &Arc<Links>) -> Self {
        Self { number, hello, network: network.clone(), handle: handle.clone(), links: Arc::clone(links) }
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
        let broken = |why: &dyn std::fmt::Display| Ended::Broken(why.to_string());
        let mut last = Ended::Broken(format!("`{}` has no address", self.network.address));
        for address in resolve(&self.network.address).await.map_err(|error| broken(&error))? {
            match self.network.endpoint.connect(address, &self.network.hub).await {
                Ok(link) => {
                    self.tell(UplinkEvent::Connected).await.map_err(|error| broken(&error))?;
                    return self.greet(link).await;
                }
                Err(error) => last = broken(&error),
            }
        }
        Err(last)
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
        tracing::info!(hub = %self.network.hub, session = welcome.session.0, "uplink up");
        self.links.set_uplink(Some(link.clone()));
        self.links.own_revocation_is_news(false);
        if self.tell(UplinkEvent::Welcomed(Box::new(welcome))).await.is_err() {
            return Ended::Goodbye(Goodbye::Shutdown);
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
                // A hub says none: `Talk` lets it through from agents only. Taken for the sign of life that it is.
                News::Hello(_) => AgentEvent::Tick,
            })
            .await;
        if self.links.uplink().is_some_and(|present| present.id() == link.id()) {
            self.links.set_uplink(None);
        }
        ended
    }
}
