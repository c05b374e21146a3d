//! A server's operations: what operators measure, watch, limit and stop.
//!
//! All of it concerns one server and its clients, not the group.

mod histogram;
mod latency;
mod memory_limit;
mod pause;
mod process;
mod shutdown;
mod slow_log;
mod statistics;

pub use self::shutdown::ShutdownMode;
pub(super) use self::{
    latency::LatencyMonitor,
    memory_limit::MemoryLimit,
    pause::{Pause, is_unpause},
    process::{Process, cpu_times},
    shutdown::Shutdown,
    slow_log::{Excerpt, SlowLog, SlowRequests},
    statistics::Statistics,
};
use super::ServerOptions;

/// The measurements of a server, and its operators' wishes.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) statistics: Statistics,
    pub(super) slow_log: SlowLog,
    pub(super) latency: LatencyMonitor,
    pub(super) pause: Pause,
    pub(super) memory: MemoryLimit,
    pub(super) shutdown: Shutdown,
}

impl Operations {
    /// The operations of a server that has just started. `is_durable` says whether its data is on disk.
    pub(super) fn new(options: &ServerOptions, is_durable: bool) -> Operations {
        Operations {
            statistics: Statistics::default(),
            slow_log: SlowLog::new(options.slower_than_us, options.slow_log_len),
            latency: LatencyMonitor::new(options.latency_threshold_ms),
            pause: Pause::default(),
            memory: MemoryLimit::new(options.max_memory),
            shutdown: Shutdown::new(is_durable),
        }
    }
}

/// The operations of a server that limits, logs and pauses nothing.
#[cfg(test)]
impl Default for Operations {
    fn default() -> Operations {
        let options = ServerOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            backlog: super::BACKLOG,
            max_clients: 1,
            timeout_seconds: 0,
            password: None,
            tls: None,
            max_memory: 0,
            slower_than_us: -1,
            slow_log_len: 10,
            latency_threshold_ms: 0,
        };
        Operations::new(&options, false)
    }
}
