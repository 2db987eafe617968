//! The page of one node: what its machine is, and what its accelerators can do.

use super::CliError;
use super::reach::Reach;
use crate::config::Config;
use crate::logic::NodeRow;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use shared::fleet::{Accelerator, Dropped, Fact, Inventory, ProbeState};
use shared::ids::NodeId;
use shared_net::say;

pub(super) async fn show(config: &Config, node: &NodeId, json: bool) -> Result<(), CliError> {
    let rows = Reach::find(config)?.nodes().await?.map_err(|_| CliError::NoHub)?;
    let row = rows.into_iter().find(|row| row.node.node == *node).ok_or_else(|| CliError::NoNode(node.clone()))?;
    if json {
        say!("{}", serde_json::to_string_pretty(&row).unwrap_or_default());
    } else {
        say!("{}", page(&row.node));
    }
    Ok(())
}

fn page(row: &NodeRow) -> String {
    let heard = row.heard_ago.map_or_else(|| "never heard".to_owned(), |ago| format!("heard {ago} ago"));
    let mut lines = vec![format!("{} ({}), {heard}", row.node, format!("{:?}", row.state).to_lowercase())];
    let Some(inventory) = &row.inventory else {
        lines.push("It has not said yet what it is.".to_owned());
        return lines.join("\n");
    };
    lines.push(machine(inventory));
    let survey = &inventory.survey;
    lines.push(match &survey.state {
        ProbeState::Pending => "accelerators  not looked for yet".to_owned(),
        ProbeState::Off => "accelerators  not looked for: its operator switched that off".to_owned(),
        ProbeState::Done => format!("accelerators  {}", survey.accelerators.len()),
        ProbeState::Failed(why) => format!("accelerators  {} known; {why}", survey.accelerators.len()),
    });
    lines.extend((!survey.accelerators.is_empty()).then(|| accelerators(&survey.accelerators)));
    lines.extend(survey.dropped.iter().map(dropped));
    lines.extend(survey.hints.iter().map(|hint| format!("hint          {hint}")));
    lines.join("\n")
}

fn machine(inventory: &Inventory) -> String {
    let machine = &inventory.machine;
    let cores = machine.cores.map(|cores| format!("{cores} cores"));
    let memory = machine.memory.map(|memory| format!("{:.1} GB", memory.as_f64() / 1e9));
    let known = [machine.cpu.clone(), cores, memory, machine.os.clone()];
    format!("machine       {}", known.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn accelerators(all: &[Accelerator]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["accelerator", "kind", "memory for work", "product f32", "own memory", "age"]);
    for one in all {
        let memory = one.memory.as_ref();
        let rates = &one.rates;
        table.add_row([
            format!("{}\n{}", one.name, one.id),
            one.kind.name().to_owned(),
            known(memory, |budget| format!("{:.1} GB\n{}", budget.bytes().as_f64() / 1e9, memory.map_or("", |fact| &fact.by))),
            known(rates.matmul_f32.as_ref(), |rate| format!("{:.0} GFLOP/s", rate.get() / 1e9)),
            known(rates.bandwidth.as_ref(), |rate| format!("{:.0} GB/s", rate.get() / 1e9)),
            rates.matmul_f32.as_ref().map_or_else(String::new, |fact| fact.age.to_string()),
        ]);
    }
    table.to_string()
}

fn known<T>(fact: Option<&Fact<T>>, told: impl FnOnce(&T) -> String) -> String {
    fact.map_or_else(|| "unknown".to_owned(), |fact| told(&fact.value))
}

fn dropped(one: &Dropped) -> String {
    format!("none          {} ({}): {}", one.name, one.backend.name(), one.reason)
}
