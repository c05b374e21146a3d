//! The early ends of a transfer at a receiver.

use super::super::control::{FrameError, ToSource};

/// A reason for which a transfer ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Abort {
    #[error("this receiver was stopped")]
    Stopped,
    #[error("the source is gone ({0}); what came is kept: push again")]
    Gone(FrameError),
    #[error("the source gave up: {0}")]
    Aborted(String),
    #[error("the source only looked what there would be to do")]
    Left,
    #[error("the source broke the protocol: {0}")]
    Breach(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

impl Abort {
    /// Returns the message that tells the source, if it does not know.
    pub(super) fn word(self) -> Option<ToSource> {
        match self {
            Abort::Refused(why) => Some(ToSource::Refused(why)),
            Abort::Failed(why) => Some(ToSource::Failed(why)),
            Abort::Breach(_) => Some(ToSource::Failed(self.to_string())),
            Abort::Stopped => Some(ToSource::Failed("it was stopped; start it again, and push again".to_owned())),
            Abort::Gone(_) | Abort::Aborted(_) | Abort::Left => None,
        }
    }
}
