//! Who a node is and whom it trusts.
//!
//! The fleet has one authority, the hub's. A member's certificate carries the member's name as URI `tidegate:node:<node id>`;
//! that URI, not a DNS name, is what a dialler checks, since nodes move and sit behind relays. Never here: any way to talk
//! without TLS 1.3, any key that is readable by others, any certificate from outside the fleet.

mod clock;
mod configs;
mod error;
mod identity;
mod names;

pub use clock::CertClock;
pub use configs::{Admit, client_config, joining_config, server_config};
pub use error::TlsError;
pub use identity::{Identity, new_key_and_request};
pub use names::{HUB_NAME, Role, SERVER_NAME, name_certificate, node_of, role_of, serial_of};
