//! Sessions of clients: a request that arrives twice is applied once.
//!
//! A client numbers its requests. The table of sessions is part of a group's replicated state. For each session it
//! holds the replies that its client may not have yet, and the first number of such a reply. The table changes by
//! delivered messages alone, so all replicas have the same one, and a copy of the state has it too. A request may come
//! through any member, and come again through another.
//!
//! ```text
//!   numbers   0 … 4   5    6    7    8    9   10 …
//!            └──┬──┘ └─┬┘  │   └─┬┘          └─┬─┘
//!     acknowledged:   kept │    kept          beyond the window (5 + 5): refused
//!     the client has       └ missing: applied when it comes
//!     their replies
//! ```
//!
//! A session ends only by a delivered message: its client's, or one of the group's lowest-ranked sender. That sender
//! sends one when nothing of the session was delivered for a while on its clock. Its message names the count of acts
//! that it had seen, and does nothing if the session has acted since. The number of a session is never given again. A
//! late message for a session that has ended is refused, and never executed.

mod encoding;
mod idle;
mod table;
#[cfg(all(test, not(squall_loom)))]
mod tests;
mod trailer;

pub(crate) use self::{
    idle::Idle,
    table::{Opening, Refusal, RequestOutcome, RequestVerdict, SessionId, Sessions},
    trailer::{TICK, Trailer},
};
