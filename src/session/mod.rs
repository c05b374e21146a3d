//! Sessions of clients: a request that arrives twice is applied once.
//!
//! A client numbers its requests. The table of sessions is part of a group's replicated state: for each session it holds the
//! replies that its client may not have yet, and from where on. It changes by delivered messages alone, so all replicas
//! have the same one, a copy of the state has it too, and it does not matter through which member a request comes, or comes
//! again.
//!
//! ```text
//!   numbers   0 … 4   5    6    7    8    9   10 …
//!            └──┬──┘ └─┬┘  │   └─┬┘          └─┬─┘
//!     acknowledged:   kept │    kept          beyond the window (5 + 5): refused
//!     the client has       └ missing: applied when it comes
//!     their replies
//! ```
//!
//! A session ends only by a delivered message: its client's, or one that the lowest-ranked sender of the group sends when
//! nothing of the session was delivered for a while on its clock. That one says up to where it had seen the session act, and
//! does nothing if the session acted since. The number of a session is never given again, so what comes late for one that has
//! ended is refused, and never executed.

mod idle;
mod image;
mod table;
#[cfg(all(test, not(squall_loom)))]
mod tests;
mod trailer;

pub(crate) use self::{
    idle::Idle,
    table::{Admission, Answer, Opening, Refusal, SessionId, Sessions},
    trailer::Trailer,
};
