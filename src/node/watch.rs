//! The news that a node's engine publishes to other threads: the view, and the end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use squall_fabric::sync::{Condition, Lock};
use squall_membership::{EndReason, View};

use crate::{clients::serve, node::status::ViewChangeTimes};

/// The latest news of a node, for any thread.
#[derive(Debug, Default)]
pub(crate) struct NodeWatch {
    state: Lock<WatchState>,
    changed: Condition,
    /// The server of clients, which needs the news too.
    clients: Option<Arc<serve::Server>>,
}

#[derive(Debug, Default)]
struct WatchState {
    view: Option<Arc<View>>,
    change: ViewChangeTimes,
    /// The number of views that were installed since the node's start.
    views: u64,
    ended: Option<EndReason>,
}

impl NodeWatch {
    pub(crate) fn new(clients: Option<Arc<serve::Server>>) -> NodeWatch {
        NodeWatch { clients, ..NodeWatch::default() }
    }

    pub(crate) fn installed(&self, view: Arc<View>, change: ViewChangeTimes) {
        if let Some(clients) = &self.clients {
            clients.install(&view);
        }
        let mut state = self.state.lock();
        (state.view, state.change) = (Some(view), change);
        state.views += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Tells clients that this node can't serve for the moment.
    pub(crate) fn interrupted(&self, why: &str) {
        if let Some(clients) = &self.clients {
            clients.send_away(why);
        }
    }

    pub(crate) fn ended(&self, reason: EndReason) {
        self.interrupted(&reason.to_string());
        self.state.lock().ended.get_or_insert(reason);
        self.changed.notify_all();
    }

    /// Returns the last view that was installed.
    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.state.lock().view.clone()
    }

    /// The steps by which the last view came about.
    pub(crate) fn change(&self) -> ViewChangeTimes {
        self.state.lock().change
    }

    /// The number of views that were installed since the node's start.
    pub(crate) fn views(&self) -> u64 {
        self.state.lock().views
    }

    /// The server of clients; None if the node serves none.
    pub(crate) fn clients(&self) -> Option<&serve::Server> {
        self.clients.as_deref()
    }

    pub(crate) fn end_reason(&self) -> Option<EndReason> {
        self.state.lock().ended.clone()
    }

    /// Waits until `which` is true of the view, or the end, or for `limit`.
    pub(crate) fn wait_view(
        &self,
        limit: Option<Duration>,
        which: impl Fn(&View) -> bool,
    ) -> Result<Option<Arc<View>>, EndReason> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state.lock();
        loop {
            if let Some(reason) = &state.ended {
                return Err(reason.clone());
            }
            if let Some(view) = state.view.as_ref().filter(|view| which(view)) {
                return Ok(Some(Arc::clone(view)));
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(state),
                Some(Duration::ZERO) => return Ok(None),
                Some(rest) => self.changed.wait_timeout(state, rest).0,
            };
        }
    }

    pub(crate) fn wait_ended(&self, limit: Option<Duration>) -> Option<EndReason> {
        self.wait_view(limit, |_| false).err()
    }
}
