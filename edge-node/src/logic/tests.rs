mod reports;
mod stories;
mod world;
