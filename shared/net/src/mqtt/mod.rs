//! The MQTT 5 client of both programs: presence, telemetry, plans and views.
//!
//! [`start`] runs one task that owns the connection, connects again for ever, and yields [`MqttEvent`]s; [`Mqtt`] publishes.
//! Nothing is queued while there is no connection: what is worth knowing is published anew on [`MqttEvent::Connected`], since
//! loops here are level-triggered. Never here: what a topic or a payload means.

mod client;
mod run;

pub use client::{Mqtt, MqttError, MqttEvent, MqttSettings, Note, start};
