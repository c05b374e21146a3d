//! Members that go through views together, on the simulated network.

mod connecting;
mod faults;
mod leaves;
mod protocol;
mod restarts;
mod world;
