//! What hub and agents count, and what the hub says of a node.

use crate::World;
use serde_json::Value;
use shared::ids::NodeId;

/// The sum of an agent's samples whose name and labels begin with `name`.
pub async fn agent_metric(world: &World, at: &NodeId, name: &str) -> f64 {
    sum(&page(world, &format!("{}/tidegate/v1/metrics", world.base(at))).await, name)
}

/// The sum of the hub's samples whose name and labels begin with `name`.
pub async fn hub_metric(world: &World, name: &str) -> f64 {
    sum(&page(world, &format!("{}/metrics", world.fleet.hub().admin())).await, name)
}

async fn page(world: &World, url: &str) -> String {
    let response = world.client.http().get(url).send().await.unwrap_or_else(|error| panic!("{url}: {error}"));
    response.text().await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn sum(page: &str, name: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// What the hub's command says of a node.
///
/// # Panics
/// When the command fails or does not name it.
#[must_use]
pub fn node_row(world: &World, node: &NodeId) -> Value {
    let printed = world.fleet.hub().command(&["nodes", "--json"]).unwrap_or_else(|error| panic!("its nodes: {error}"));
    let rows: Vec<Value> = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error} in {printed}"));
    let row = rows.into_iter().find(|row| row["node"] == node.as_str());
    row.unwrap_or_else(|| panic!("no {node} in {printed}"))
}
