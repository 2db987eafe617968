//! `cloud-hub backup` and `cloud-hub restore`.

use super::CliError;
use crate::backup;
use crate::clock::UnixTime;
use crate::config::Config;
use crate::state::StateDir;
use shared_net::host::checks;
use shared_net::say;
use shared_net::tls::CertClock;
use std::path::Path;

pub(super) fn back_up(config: &Config, file: &Path) -> Result<(), CliError> {
    backup::back_up(&StateDir::at(&config.state), file, UnixTime::now(&CertClock::new(0)))?;
    say!("{} holds the whole hub, its keys included: keep it on another machine, and let nobody read it.", file.display());
    Ok(())
}

pub(super) fn restore(config: &Config, file: &Path) -> Result<(), CliError> {
    let state = StateDir::at(&config.state);
    let restored = backup::restore(&state, file)?;
    let age = checks::span(restored.made.until(UnixTime::now(&CertClock::new(0))).as_secs());
    say!("{} is in {} again, as it was {age} ago.", restored.hub, state.path().display());
    say!("Whom you revoked since then is a member again: `cloud-hub revoke` them before you let nodes in.");
    say!(
        "Join tokens are void ({} were open or kept): print fresh ones. Nodes that joined since then are known again when they",
        restored.tokens
    );
    say!(
        "next connect; services and drains changed since then must be changed again. Start it: cloud-hub serve --state {}",
        state.path().display()
    );
    Ok(())
}
