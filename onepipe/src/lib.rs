//! Scatterings in one total order by timestamps.
//!
//! A *scattering* is a group of messages to different receivers that takes effect at one logical time: every receiver
//! delivers messages in the order of their timestamps, ties by sender (1Pipe, SIGCOMM 2021, "the paper" on these pages).
//! There is no sequencer: each rank stamps with its own clock, and receivers wait until nothing earlier can come.

mod barrier;
pub mod baseline;
mod clock;
mod config;
mod controller;
mod engine;
mod error;
mod event;
mod inbound;
mod layout;
mod links;
mod message;
mod mirror;
mod order;
mod pipe;
mod recall;
mod record;
mod ring;
mod stamps;
mod status;
mod timestamp;
mod tournament;
mod waiting;

pub use clock::{Clock, HostClock, SkewedClock};
pub use config::{OnePipeConfig, Topology};
pub use controller::{Controller, Directive, Settlement};
pub use error::{CreateError, ScatterError};
pub use event::Event;
pub use message::{Delivery, Message, Mode, ScatteringId};
pub use pipe::{OneMode, OnePipe};
pub use timestamp::Timestamp;
