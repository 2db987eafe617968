//! Connections with other agents: dialled ones and callers.

use super::control::{COMMANDS_MAX, HELLO_MAX, News, Talk, version};
use super::driver::Handle;
use super::links::{Links, Talked};
use super::uplink::Network;
use crate::logic::{Agent, AgentEvent, Ended, PeerEvent};
use shared::fleet::{Hop, ReplicaReport, Transport, TransportOrder};
use shared::ids::NodeId;
use shared::units::Micros;
use shared::wire::Frame;
use shared::wire::frame::{Goodbye, Hello, Welcome};
use shared_net::host::Tasks;
use shared_net::link::{Acceptor, Code, Link, Stream, race, resolve};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Most addresses of one peer that are tried in one dial.
const ADDRESSES_MAX: usize = 8;

/// A peer after its hello.
struct Greeted {
    /// The advertised address that answered; absent for a caller.
    address: Option<String>,
    link: Link,
    stream: Stream,
    replicas: Vec<ReplicaReport>,
}

/// Dials a peer, and tells the agent what came of it.
pub(super) fn dial(
    tasks: &Tasks,
    handle: &Handle,
    links: &Arc<Links>,
    network: &Network,
    (node, addresses, order): (NodeId, Vec<String>, TransportOrder),
    hello: Hello,
) {
    let (handle, links, network, stop) = (handle.clone(), Arc::clone(links), network.clone(), tasks.cancelled());
    tasks.spawn("peer", async move {
        let dialled = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            dialled = timeout(HELLO_MAX, call(&network, &links, (&node, &addresses, order), &hello)) => dialled,
        };
        match dialled {
            Ok(Ok(greeted)) => talk(&handle, &links, &network, node, greeted).await,
            Ok(Err(why)) => unreachable_peer(&handle, node, why).await,
            Err(_) => unreachable_peer(&handle, node, "no answer in time".to_owned()).await,
        }
    });
}

async fn unreachable_peer(handle: &Handle, node: NodeId, why: String) {
    // Fails only when the agent has stopped.
    drop(handle.tell(AgentEvent::Peer(node, PeerEvent::Unreachable(why))).await);
}

async fn call(
    network: &Network,
    links: &Links,
    (node, addresses, order): (&NodeId, &[String], TransportOrder),
    hello: &Hello,
) -> Result<Greeted, String> {
    let answered = Mutex::new(None);
    let connect = async |by| {
        let (link, address) = connect(network, links, node, addresses, by).await?;
        *answered.lock().unwrap_or_else(PoisonError::into_inner) = Some((link.id(), address));
        Ok(link)
    };
    let called = race(order, connect, |link| greet(link, hello)).await;
    let called = called.map(|greeted| {
        let answered = answered.into_inner().unwrap_or_else(PoisonError::into_inner);
        let address = answered.filter(|(link, _)| *link == greeted.link.id()).map(|(_, address)| address);
        Greeted { address: address.or_else(|| addresses.first().cloned()), ..greeted }
    });
    called.map_err(|neither| match neither.other {
        Some(other) if other != neither.first => format!("{}; and {other}", neither.first),
        _ => neither.first,
    })
}

async fn connect(
    network: &Network,
    links: &Links,
    node: &NodeId,
    addresses: &[String],
    by: Transport,
) -> Result<(Link, String), String> {
    let mut last = "no address".to_owned();
    for advertised in addresses.iter().take(ADDRESSES_MAX) {
        let found = match resolve(advertised).await {
            Ok(found) => found,
            Err(error) => {
                last = error.to_string();
                continue;
            }
        };
        for address in found {
            match network.endpoint.connect(address, node, by).await {
                Ok(link) if links.is_revoked(&link) => {
                    link.close(Code::FORBIDDEN, "certificate revoked");
                    last = "its certificate is revoked".to_owned();
                }
                Ok(link) => return Ok((link, advertised.clone())),
                Err(error) => last = error.to_string(),
            }
        }
    }
    Err(last)
}

async fn greet(link: Link, hello: &Hello) -> Result<Greeted, String> {
    let mut stream = link.open().await.map_err(|error| error.to_string())?;
    stream.writer.write(&Frame::Hello(hello.clone())).await.map_err(|error| error.to_string())?;
    match stream.reader.read().await {
        Ok(Some(Frame::Welcome(welcome))) => Ok(Greeted { address: None, link, stream, replicas: welcome.replicas }),
        Ok(Some(Frame::Goodbye(words))) => Err(Ended::Goodbye(words).to_string()),
        Ok(_) => Err("it answered the hello with something else".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Takes calls of other agents until the endpoint closes.
pub(super) async fn accept(mut acceptor: Acceptor, network: Network, handle: Handle, links: Arc<Links>) {
    let stop = network.tasks.cancelled();
    loop {
        let link = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            link = acceptor.next() => link,
        };
        let Some(link) = link else { return };
        let Some(node) = link.peer().cloned() else {
            link.close(Code::FORBIDDEN, "this is no hub: join there");
            continue;
        };
        if links.is_revoked(&link) {
            link.close(Code::FORBIDDEN, "certificate revoked");
            continue;
        }
        let (network_of, handle, links, stop) = (network.clone(), handle.clone(), Arc::clone(&links), stop.clone());
        network.tasks.spawn("peer", async move {
            let heard = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                heard = timeout(HELLO_MAX, listen(&handle, &link, &node)) => heard,
            };
            match heard {
                Ok(Ok(greeted)) => talk(&handle, &links, &network_of, node, greeted).await,
                Ok(Err(why)) => {
                    tracing::debug!(peer = %node, %why, "a call without a proper hello");
                    link.close(Code::PROTOCOL, "want a hello");
                }
                Err(_) => link.close(Code::PROTOCOL, "want a hello"),
            }
        });
    }
}

async fn listen(handle: &Handle, link: &Link, node: &NodeId) -> Result<Greeted, String> {
    let mut stream = link.accept().await.map_err(|error| error.to_string())?;
    let hello = match stream.reader.read().await {
        Ok(Some(Frame::Hello(hello))) => hello,
        Ok(_) => return Err("another frame".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    if hello.node != *node {
        return Err(format!("the hello names {}, the certificate {node}", hello.node));
    }
    let Some(version) = version(&hello) else {
        // Whether it arrives makes no difference.
        drop(stream.writer.write(&Frame::Goodbye(Goodbye::Version)).await);
        return Err("no version in common".to_owned());
    };
    let replicas = handle.look(|agent: &Agent, _| agent.core().replicas()).await.map_err(|error| error.to_string())?;
    let welcome = Welcome {
        version,
        node: handle.node().clone(),
        session: Default::default(),
        heartbeat: Micros::ZERO,
        broker: String::new(),
        replicas,
    };
    stream.writer.write(&Frame::Welcome(welcome)).await.map_err(|error| error.to_string())?;
    Ok(Greeted { address: None, link: link.clone(), stream, replicas: hello.replicas })
}

async fn talk(handle: &Handle, links: &Links, network: &Network, node: NodeId, greeted: Greeted) {
    let Greeted { address, link, stream, replicas } = greeted;
    let number = links.number();
    let (sender, commands) = mpsc::channel(COMMANDS_MAX);
    let rtt = link.report(Hop::Direct).rtt.unwrap_or_default();
    links.add_peer(&node, number, Talked { link: link.clone(), commands: sender });
    let transport = link.transport();
    tracing::info!(peer = %node, address = %link.address(), transport = transport.name(), "peer connected");
    let event = |event| AgentEvent::Peer(node.clone(), event);
    if handle.tell(event(PeerEvent::Up { link: number, rtt, replicas, transport: Some(transport), address })).await.is_ok() {
        let talk = Talk {
            link,
            stream,
            commands,
            host: network.host.clone(),
            tasks: network.tasks.clone(),
            peer: node.clone(),
            speaks_for_others: false,
        };
        let ended = talk
            .run(|news| match news {
                News::Ping(pulse) => event(PeerEvent::Ping(number, pulse)),
                News::Pong(pulse) => event(PeerEvent::Pong(number, pulse)),
                News::Losses(packets) => event(PeerEvent::Losses(number, packets)),
                News::Retired => event(PeerEvent::Retired(number)),
                News::Hello(hello) => event(PeerEvent::Replicas(number, hello.replicas)),
            })
            .await;
        tracing::info!(peer = %node, why = %ended, "peer disconnected");
        // Fails only when the agent has stopped.
        drop(handle.tell(event(PeerEvent::Lost(number, ended))).await);
    }
    links.remove_peer(&node, number);
}
