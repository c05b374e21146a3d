//! Tests of views: their rules, models that are searched exhaustively, and members on the simulated network.
//!
//! Of the random runs on that network, `SQUALL_SEED=n` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

mod exhaustive;
mod layout;
mod lead;
mod model;
mod pins_and_weights;
mod policy;
mod restart;
mod restart_model;
mod rules;
#[path = "../../tests/support/seeds.rs"]
mod seeds;
mod views;
