mod stories;
mod world;
