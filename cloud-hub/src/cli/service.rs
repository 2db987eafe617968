//! `cloud-hub service`.

use super::CliError;
use super::reach::Reach;
use crate::config::Config;
use clap::{Args, Subcommand};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use shared::ids::{ServiceId, VariantId};
use shared::units::{Bytes, Quality, Tokens};
use shared::work::{Catalogue, Service, Variant};
use shared_net::say;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum ServiceAction {
    /// Adds a service from a TOML file, or one variant of a service from flags.
    Add(Box<AddArguments>),
    /// Lists the services with their variants.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Removes a service.
    Remove {
        /// Which.
        id: ServiceId,
    },
}

/// Either a file, or a service and one variant of it.
#[derive(Debug, Args)]
pub(super) struct AddArguments {
    /// What clients ask for.
    #[arg(required_unless_present = "file")]
    id: Option<ServiceId>,
    /// A whole service as TOML: `id`, `aliases`, and `[[variants]]` with `id`, `context`, `quality`, `quality_source` and,
    /// where known, `weights_sha256`, `quantisation`, `memory`. Replaces the service of that id.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "variant", "aliases"])]
    file: Option<PathBuf>,
    /// Another name for the service. May be given more than once.
    #[arg(long = "alias", value_name = "NAME")]
    aliases: Vec<ServiceId>,
    /// Name of the variant; added to the service, or replacing its variant of that name.
    #[arg(long, required_unless_present = "file")]
    variant: Option<VariantId>,
    /// How good its answers are, from 0 to 1, comparable within the service.
    #[arg(long, required_unless_present = "file", value_parser = parse_quality)]
    quality: Option<Quality>,
    /// Where that figure comes from, such as `IFEval 2025, model card`.
    #[arg(long, required_unless_present = "file", value_name = "TEXT")]
    quality_source: Option<String>,
    /// Longest prompt and output together, in tokens.
    #[arg(long, required_unless_present = "file", value_name = "TOKENS")]
    context: Option<u32>,
    /// Form of the weights in memory, such as `q8_0`.
    #[arg(long, default_value = "")]
    quantisation: String,
    /// Memory for weights and the cache of one full context, in bytes.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    memory: u64,
    /// SHA-256 of the weights file.
    #[arg(long, value_name = "HEX")]
    weights_sha256: Option<String>,
}

fn parse_quality(text: &str) -> Result<Quality, String> {
    let number: f64 = text.parse().map_err(|_| "want a number from 0 to 1".to_owned())?;
    Quality::new(number).map_err(|error| error.to_string())
}

impl ServiceAction {
    pub(super) async fn run(self, config: &Config) -> Result<(), CliError> {
        let mut reach = Reach::find(config)?;
        match self {
            Self::Add(arguments) => {
                let service = match &arguments.file {
                    Some(path) => read_file(path)?,
                    None => arguments.merged(&reach.services().await?)?,
                };
                reach.put_service(&service).await?;
                let count = service.variants.len();
                say!("The fleet serves `{}` with {count} variant{}.", service.id, if count == 1 { "" } else { "s" });
            }
            Self::List { json: true } => say!("{}", pretty(&reach.services().await?)),
            Self::List { json: false } => say!("{}", table(&reach.services().await?)),
            Self::Remove { id } => {
                reach.remove_service(&id).await?;
                say!("The fleet no longer serves `{id}`.");
            }
        }
        Ok(())
    }
}

fn pretty(catalogue: &Catalogue) -> String {
    serde_json::to_string_pretty(catalogue).unwrap_or_default()
}

fn table(catalogue: &Catalogue) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(["service", "aliases", "variant", "quality", "source", "context"]);
    for service in catalogue.iter() {
        let aliases: Vec<&str> = service.aliases.iter().map(ServiceId::as_str).collect();
        for variant in &service.variants {
            table.add_row([
                service.id.to_string(),
                aliases.join(", "),
                variant.id.to_string(),
                format!("{:.3}", variant.quality.get()),
                variant.quality_source.clone(),
                variant.context.0.to_string(),
            ]);
        }
    }
    table
}

/// Reads a service from TOML.
fn read_file(path: &Path) -> Result<Service, CliError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| CliError::Io { doing: format!("reading {}", path.display()), source })?;
    let parsed = ::config::Config::builder().add_source(::config::File::from_str(&text, ::config::FileFormat::Toml)).build();
    parsed
        .and_then(::config::Config::try_deserialize)
        .map_err(|error| CliError::Flag { flag: "--file", want: format!("a service as TOML ({error})") })
}

impl AddArguments {
    /// The service as it is, with this variant and these aliases added.
    fn merged(&self, catalogue: &Catalogue) -> Result<Service, CliError> {
        let missing = || CliError::Flag { flag: "service add", want: "ID, or --file".to_owned() };
        let id = self.id.clone().ok_or_else(missing)?;
        let variant = Variant {
            id: self.variant.clone().ok_or_else(missing)?,
            weights_sha256: self.weights_sha256.clone(),
            quantisation: self.quantisation.clone(),
            context: Tokens(self.context.ok_or_else(missing)?),
            memory: Bytes(self.memory),
            quality: self.quality.ok_or_else(missing)?,
            quality_source: self.quality_source.clone().ok_or_else(missing)?,
        };
        let mut service =
            catalogue.service(&id).cloned().unwrap_or_else(|| Service { id, aliases: Vec::new(), variants: Vec::new() });
        service.aliases.extend(self.aliases.iter().cloned());
        service.aliases.sort();
        service.aliases.dedup();
        match service.variants.iter_mut().find(|held| held.id == variant.id) {
            Some(held) => *held = variant,
            None => service.variants.push(variant),
        }
        Ok(service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_read_from_a_file_and_slips_are_named() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("service.toml");
        let good = "id = 'assistant'\naliases = ['gpt-4o']\n[[variants]]\nid = 'smollm2'\ncontext = 2048\nquality = 0.4\n\
                    quality_source = 'a guess'\n[[variants]]\nid = 'large'\ncontext = 8192\nquality = 1\nquality_source = 'x'\n";
        std::fs::write(&path, good).expect("written");
        let service = read_file(&path).expect("good");
        assert_eq!(service.variants.len(), 2);
        std::fs::write(&path, good.replace("aliases", "alias")).expect("written");
        assert!(read_file(&path).expect_err("unknown key").to_string().contains("alias"));
        std::fs::write(&path, good.replace("0.4", "4")).expect("written");
        read_file(&path).expect_err("no quality");
    }
}
