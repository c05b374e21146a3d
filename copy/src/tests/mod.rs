//! The path from a source's directory to a receiver's: without a network, over one, and with sources that lie.

mod copying;
mod files;
mod hostile;
mod late;
mod metadata;
mod names;
mod network;
mod pair;
