//! Scatterings in one total order by timestamps.
//!
//! A *scattering* is a group of messages to different receivers that takes effect at one logical time: every receiver
//! delivers messages in the order of their timestamps, ties by sender (1Pipe, SIGCOMM 2021, "the paper" on these pages).
//! There is no sequencer: each rank stamps with its own clock, and receivers wait until nothing earlier can come.

pub mod baseline;
mod clock;
mod config;
mod controller;
mod error;
mod event;
mod layout;
mod message;
pub mod model;
mod pipe;
mod timestamp;
mod tournament;

pub use clock::{Clock, HostClock, SkewedClock};
pub use config::{OnePipeConfig, Topology};
pub use controller::{Controller, Directive, Settlement};
pub use error::{CreateError, ScatterError};
pub use event::Event;
pub use message::{Delivery, Message, Mode, ScatteringId};
pub use pipe::{OneMode, OnePipe};
pub use timestamp::Timestamp;
