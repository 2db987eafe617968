//! From a TCP socket to a client with rights.

use super::Inner;
use super::limits::{ACCEPT_PAUSE, CLIENTS_MAX, HANDSHAKE_TIME_MAX};
use super::rights::Rights;
use super::waiting::Waiting;
use crate::host::Tasks;
use crate::tls::{node_of, serial_of};
use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::tls_acceptor::TlsStreamWrapper;
use mqtt5::broker::transport::BrokerTransport;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Accepts sockets and starts a task for each.
pub(super) struct Acceptor {
    inner: Arc<Inner>,
    tasks: Tasks,
    places: Arc<Semaphore>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Acceptor {
    pub(super) fn new(inner: Arc<Inner>, tasks: Tasks) -> Self {
        Self { inner, tasks, places: Arc::new(Semaphore::new(CLIENTS_MAX)), waiting: Arc::default() }
    }

    pub(super) async fn run(self, listener: TcpListener) {
        let stop = self.tasks.cancelled();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, address)) => self.begin(socket, address, &stop),
                Err(error) => {
                    tracing::warn!(%error, "no MQTT connection could be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn begin(&self, socket: TcpStream, address: SocketAddr, stop: &CancellationToken) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return self.inner.refusals.note("mqtt", "no_place", &address.ip().to_string());
        };
        let (number, pushed_out) = lock(&self.waiting).begin(address.ip());
        let (inner, waiting, stop) = (Arc::clone(&self.inner), Arc::clone(&self.waiting), stop.clone());
        self.tasks.spawn(format!("mqtt client from {address}"), async move {
            let stream = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                () = pushed_out.cancelled() => None,
                stream = shake_hands(&inner, socket) => stream,
            };
            lock(&waiting).end(number);
            match stream {
                Some(stream) => serve(inner, stream, address).await,
                None => {
                    inner.refusals.note("mqtt", "handshake", &address.ip().to_string());
                    tracing::debug!(%address, "no MQTT client: the TLS handshake failed");
                }
            }
            drop(place);
        });
    }
}

fn lock(waiting: &Mutex<Waiting>) -> std::sync::MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn shake_hands(inner: &Inner, socket: TcpStream) -> Option<TlsStream<TcpStream>> {
    // Small packets go both ways; waiting to fill one would only delay them. Fails on a socket that is already closed.
    socket.set_nodelay(true).ok()?;
    let acceptor = inner.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone();
    timeout(HANDSHAKE_TIME_MAX, acceptor.accept(socket)).await.ok()?.ok()
}

async fn serve(inner: Arc<Inner>, stream: TlsStream<TcpStream>, address: SocketAddr) {
    let Some((node, serial)) = stream.get_ref().1.peer_certificates().and_then(|chain| {
        let own = chain.first()?;
        Some((node_of(own).ok()?, serial_of(own).ok()?))
    }) else {
        return tracing::warn!(%address, "an MQTT client's certificate names no node");
    };
    let (number, ended) = inner.enter(&node);
    let rights = Rights { inner: Arc::clone(&inner), node: node.clone(), serial };
    let handler = ClientHandler::new(
        BrokerTransport::tls(TlsStreamWrapper::new(stream)),
        address,
        Arc::clone(&inner.config),
        Arc::clone(&inner.router),
        Arc::new(rights),
        // Without storage no session outlives its connection; retained messages are the router's.
        None,
        Arc::clone(&inner.stats),
        Arc::clone(&inner.resources),
        ended,
    );
    if let Err(error) = handler.run().await {
        tracing::debug!(%node, %address, %error, "MQTT client gone");
    }
    inner.leave(number);
}
