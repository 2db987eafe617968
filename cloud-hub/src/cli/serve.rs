//! `cloud-hub serve`.

use super::CliError;
use crate::config::Config;
use clap::Args;
use shared_net::host::{ServiceManager, init_tracing, shutdown_signal, try_say};
use std::net::SocketAddr;
use tokio_util::sync::CancellationToken;

/// Flags for the values that are changed most; every other key by `--set`.
#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    /// UDP address for agents (key `quic.listen`).
    #[arg(long, value_name = "ADDRESS:PORT")]
    quic: Option<SocketAddr>,
    /// TCP address of the OpenAI API (key `http.listen`).
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,
    /// TCP address of admin API and metrics (key `admin.listen`).
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
    /// TCP address of the embedded broker (key `mqtt.listen`).
    #[arg(long, value_name = "ADDRESS:PORT")]
    mqtt: Option<SocketAddr>,
}

impl ServeArguments {
    pub(super) fn flags(&self) -> Vec<(String, String)> {
        [("quic.listen", self.quic), ("http.listen", self.http), ("admin.listen", self.admin), ("mqtt.listen", self.mqtt)]
            .into_iter()
            .filter_map(|(key, address)| Some((key.to_owned(), address?.to_string())))
            .collect()
    }

    pub(super) async fn run(&self, config: Config) -> Result<(), CliError> {
        init_tracing(&config.log)?;
        let hub = crate::start(config).await?;
        let addresses = hub.addresses();
        let text = format!(
            "agents         udp and tcp {}\nOpenAI API     http://{}/v1\nadmin, metrics http://{}\nMQTT broker    {}",
            addresses.quic, addresses.http, addresses.admin, addresses.broker
        );
        // Whether or not somebody reads where it listens, it serves.
        if let Err(error) = try_say(format_args!("{text}")) {
            tracing::warn!(%error, "standard output cannot be written to");
        }
        let (manager, lives) = (ServiceManager::from_environment(), || hub.lives());
        manager.ready();
        let ended = tokio::select! {
            biased;
            // Never ends before the rest: it only tells that the hub still works.
            () = manager.report(lives, CancellationToken::new()) => "the end of time",
            signal = shutdown_signal() => signal.map_err(|source| CliError::Io { doing: "waiting for signals".to_owned(), source })?,
            () = hub.failed() => "a failed task",
        };
        tracing::info!(because = ended, "stopping");
        manager.stopping();
        hub.shutdown().await?;
        Ok(())
    }
}
