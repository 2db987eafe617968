//! Stories about real processes: what only certificates, sockets, disks and kill -9 can show.

mod boot_alone;
mod cancel;
mod deploy_files;
mod end_to_end;
mod hub_gone;
mod node_dies;
mod openai_client;
mod orphans;
mod residency;
