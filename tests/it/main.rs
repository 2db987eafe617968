//! Stories about real processes: what only certificates, sockets, disks and kill -9 can show.

mod backups;
mod bad_input;
mod boot_alone;
mod brokers;
mod campaign;
mod cancel;
mod deploy_files;
mod doctor;
mod end_to_end;
mod hub_gone;
mod keys;
mod long_prompt;
mod managed;
mod networks;
mod node_dies;
mod openai_client;
mod orphans;
mod probe;
mod releases;
mod residency;
mod split;
mod units;
