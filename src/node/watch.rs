//! The news that a node's engine publishes to other threads: the view, the start, and the end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use event_listener::{Event, Listener, listener};
use squall_fabric::sync::Lock;
use squall_membership::{EndReason, View};

use crate::{clients::serve, node::status::ViewChangeTimes};

/// The latest news of a node, for any thread or task.
#[derive(Debug, Default)]
pub(crate) struct NodeWatch {
    state: Lock<WatchState>,
    /// Notified of each change of the state.
    news: Event,
    /// The server of clients, which needs the news too.
    clients: Option<Arc<serve::Server>>,
}

#[derive(Debug, Default)]
pub(crate) struct WatchState {
    view: Option<Arc<View>>,
    change: ViewChangeTimes,
    /// The number of views that were installed since the node's start.
    views: u64,
    has_started: bool,
    ended: Option<EndReason>,
    has_left: bool,
}

impl WatchState {
    /// The reason for which the node's part is over, if it is.
    pub(crate) fn ended(&self) -> Option<EndReason> {
        self.ended.clone()
    }

    /// The outcome of the node's start, once it has one.
    pub(crate) fn started(&self) -> Option<Result<(), EndReason>> {
        match &self.ended {
            Some(reason) if self.view.is_none() => Some(Err(reason.clone())),
            ended => (self.has_started || ended.is_some()).then_some(Ok(())),
        }
    }

    /// The reason for which the node's part is over, once the others can decide without it.
    pub(crate) fn left(&self) -> Option<EndReason> {
        self.ended().filter(|_| self.has_left)
    }

    /// The last view with its number, if it is later than number `seen`; else the end, if there is one.
    pub(crate) fn view_after(&self, seen: u64) -> Option<Result<(u64, Arc<View>), EndReason>> {
        let view = self.view.as_ref().filter(|_| self.views > seen);
        view.map(|view| Ok((self.views, Arc::clone(view)))).or_else(|| self.ended().map(Err))
    }
}

impl NodeWatch {
    pub(crate) fn new(clients: Option<Arc<serve::Server>>) -> NodeWatch {
        NodeWatch { clients, ..NodeWatch::default() }
    }

    fn change_state(&self, change: impl FnOnce(&mut WatchState)) {
        change(&mut self.state.lock());
        self.news.notify(usize::MAX);
    }

    pub(crate) fn installed(&self, view: Arc<View>, change: ViewChangeTimes) {
        if let Some(clients) = &self.clients {
            clients.install(&view);
        }
        self.change_state(|state| {
            (state.view, state.change) = (Some(view), change);
            state.views += 1;
        });
    }

    /// Tells clients that this node can't serve for the moment.
    pub(crate) fn interrupted(&self, why: &str) {
        if let Some(clients) = &self.clients {
            clients.send_away(why);
        }
    }

    /// Tells the program that the node has started.
    pub(crate) fn say_started(&self) {
        self.change_state(|state| state.has_started = true);
    }

    pub(crate) fn say_ended(&self, reason: EndReason) {
        self.interrupted(&reason.to_string());
        self.change_state(|state| _ = state.ended.get_or_insert(reason));
    }

    /// Tells the program that nothing is left to be done after the node's end.
    pub(crate) fn say_left(&self) {
        self.change_state(|state| state.has_left = true);
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
        self.state.lock().ended()
    }

    /// Waits until `find` finds something.
    pub(crate) async fn find<T>(&self, find: impl Fn(&WatchState) -> Option<T>) -> T {
        loop {
            // It listens first and looks then, so that news in between is not missed.
            let news = self.news.listen();
            if let Some(found) = find(&self.state.lock()) {
                return found;
            }
            news.await;
        }
    }

    /// Blocks this thread until `find` finds something, for `limit` at most.
    pub(crate) fn wait<T>(&self, limit: Option<Duration>, find: impl Fn(&WatchState) -> Option<T>) -> Option<T> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            listener!(self.news => news);
            if let Some(found) = find(&self.state.lock()) {
                return Some(found);
            }
            match until {
                None => news.wait(),
                Some(until) => news.wait_deadline(until)?,
            }
        }
    }

    /// Waits until `which` is true of the view, or the end, or for `limit`.
    pub(crate) fn wait_view(
        &self,
        limit: Option<Duration>,
        which: impl Fn(&View) -> bool,
    ) -> Result<Option<Arc<View>>, EndReason> {
        let found = |state: &WatchState| match state.ended() {
            Some(reason) => Some(Err(reason)),
            None => state.view.clone().filter(|view| which(view)).map(Ok),
        };
        self.wait(limit, found).transpose()
    }
}
