//! The control stream of a connection, whichever side opened it: signs of life, goodbyes, and the streams that come beside it.

use super::offered;
use crate::logic::{AgentEvent, Ended};
use shared::ids::NodeId;
use shared::wire::Frame;
use shared::wire::frame::{Goodbye, Hello, Pulse};
use shared::wire::{VERSION_MAX, VERSION_MIN};
use shared_net::host::Tasks;
use shared_net::link::{Code, Link, Stream};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Commands that wait for the control stream. More means that it does not flow, and then its silence will end it.
pub(super) const COMMANDS_MAX: usize = 16;
/// How long a hello or its answer may take.
pub(super) const HELLO_MAX: Duration = Duration::from_secs(5);
/// How long writing one small frame may take before the connection counts as broken.
const WRITE_MAX: Duration = Duration::from_secs(3);

/// How long streams of the other end that cross a move are still taken.
const RETIRE_TIME: Duration = Duration::from_secs(2);

/// What is to be said on the control stream.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Ping(Pulse),
    Pong(Pulse),
    Hello(Box<Hello>),
    HangUp(Goodbye),
    /// Say nothing more, and leave the connection to the streams that run.
    Retire,
}

/// What was heard on it.
#[derive(Clone, Debug)]
pub(super) enum News {
    Ping(Pulse),
    Pong(Pulse),
    /// So many packets got lost since the beginning.
    Losses(u64),
    /// The other end says nothing more, and leaves the connection to the streams that run.
    Retired,
    /// The hello said again, because the other end's replicas changed.
    Hello(Box<Hello>),
}

/// A connection after its hellos.
pub(super) struct Talk {
    pub(super) link: Link,
    pub(super) stream: Stream,
    pub(super) commands: mpsc::Receiver<Command>,
    /// For the streams that come.
    pub(super) host: offered::Host,
    pub(super) tasks: Tasks,
    /// Who is at the other end.
    pub(super) peer: NodeId,
    /// Whether it speaks for ingresses behind it, as a hub does.
    pub(super) speaks_for_others: bool,
}

impl Talk {
    /// Talks until the connection ends. News go to the agent as the events that `heard` makes of them.
    pub(super) async fn run(mut self, heard: impl Fn(News) -> AgentEvent + Send) -> Ended {
        let stop = self.tasks.cancelled();
        let mut told = 0;
        let ended = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break self.hang_up(Goodbye::Shutdown).await,
                command = self.commands.recv() => match command {
                    Some(Command::Ping(pulse)) => if !self.write(Frame::Ping(pulse)).await { break stuck() },
                    Some(Command::Pong(pulse)) => if !self.write(Frame::Pong(pulse)).await { break stuck() },
                    Some(Command::Hello(hello)) => if !self.write(Frame::Hello(*hello)).await { break stuck() },
                    Some(Command::HangUp(words)) => break self.hang_up(words).await,
                    Some(Command::Retire) => return self.retire().await,
                    None => break self.hang_up(Goodbye::Shutdown).await,
                },
                frame = self.stream.reader.read() => {
                    let news = match frame {
                        Ok(Some(Frame::Ping(pulse))) => News::Ping(pulse),
                        Ok(Some(Frame::Pong(pulse))) => {
                            let losses = self.link.losses();
                            if std::mem::replace(&mut told, losses) != losses && self.host.handle.tell(heard(News::Losses(losses))).await.is_err() {
                                break stuck();
                            }
                            News::Pong(pulse)
                        }
                        Ok(Some(Frame::Hello(hello))) if !self.speaks_for_others && hello.node == self.peer => News::Hello(Box::new(hello)),
                        Ok(Some(Frame::Goodbye(words))) => break Ended::Goodbye(words),
                        Ok(Some(_)) => break self.hang_up(Goodbye::Protocol("an unexpected frame on the control stream".to_owned())).await,
                        Ok(None) => {
                            // Fails only when the agent has stopped.
                            drop(self.host.handle.tell(heard(News::Retired)).await);
                            return self.retired().await;
                        }
                        Err(error) => break Ended::Broken(error.to_string()),
                    };
                    if self.host.handle.tell(heard(news)).await.is_err() {
                        break stuck();
                    }
                }
                stream = self.link.accept() => match stream {
                    Ok(stream) => self.serve(stream),
                    Err(error) => break Ended::Broken(error.to_string()),
                },
            }
        };
        self.link.close(Code::DONE, "control stream ended");
        ended
    }

    /// Nothing more is said. Streams that are on their way are still taken; the last one to end closes the connection.
    async fn retire(mut self) -> Ended {
        // Fails only with the connection.
        drop(self.stream.writer.finish().await);
        let stop = self.tasks.cancelled();
        let until = tokio::time::Instant::now() + RETIRE_TIME;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(until) => break,
                stream = self.link.accept() => match stream {
                    Ok(stream) => self.serve(stream),
                    Err(_) => break,
                },
            }
        }
        Ended::Broken("moved to another connection".to_owned())
    }

    /// The other end says nothing more: what runs goes on until it closes the connection.
    async fn retired(self) -> Ended {
        let stop = self.tasks.cancelled();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                stream = self.link.accept() => match stream {
                    Ok(stream) => self.serve(stream),
                    Err(_) => break,
                },
            }
        }
        Ended::Broken("the other end moved to another connection".to_owned())
    }

    fn serve(&self, stream: Stream) {
        let serving = offered::serve(self.host.clone(), self.peer.clone(), self.speaks_for_others, stream);
        let stop = self.tasks.cancelled();
        self.tasks.spawn("offered request", async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = serving => {}
            }
        });
    }

    async fn write(&mut self, frame: Frame) -> bool {
        matches!(timeout(WRITE_MAX, self.stream.writer.write(&frame)).await, Ok(Ok(())))
    }

    /// Says goodbye, gives it a moment to arrive, and ends.
    async fn hang_up(&mut self, words: Goodbye) -> Ended {
        if self.write(Frame::Goodbye(words.clone())).await && self.stream.writer.finish().await.is_ok() {
            drop(timeout(Duration::from_millis(300), self.stream.writer.stopped()).await);
        }
        Ended::Goodbye(words)
    }
}

fn stuck() -> Ended {
    Ended::Broken("the control stream does not flow".to_owned())
}

/// The version to speak with whoever said this, if there is one.
pub(super) fn version(hello: &Hello) -> Option<u16> {
    let highest = hello.version_max.min(VERSION_MAX);
    (highest >= hello.version_min.max(VERSION_MIN)).then_some(highest)
}
