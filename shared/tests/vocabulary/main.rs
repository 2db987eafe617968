//! The nouns: what a view remembers, what a catalogue refuses, where a text may go, what an estimate depends on, what a checker
//! finds.

mod catalogue;
mod check;
mod paced;
mod predict;
mod residency;
mod split;
mod view;
