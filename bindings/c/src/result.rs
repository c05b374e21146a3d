//! The results of calls, and the reasons for which they fail.

use std::ffi::CString;

use squall::client::ClientError;

/// The outcome of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SquallCode {
    /// It succeeded.
    Ok = 0,
    /// An argument can't be right: a null pointer, text that is no UTF-8, a shard that there is not.
    Argument = 1,
    /// The configuration can't be used.
    Config = 2,
    /// As many calls wait as may.
    Full = 3,
    /// The group does not take the command: it is malformed, too long, or there is no room.
    Rejected = 4,
    /// The client's certificate does not permit the call, or the group does not have the codec.
    Denied = 5,
    /// The service has panicked with the command, and an operator of the group has said that it is skipped.
    Skipped = 6,
    /// The command was applied, and its reply is too long to be kept for clients.
    NoReply = 7,
    /// The command was applied, and its reply could not be read.
    Reply = 8,
    /// The query was not answered.
    Query = 9,
    /// The deadline has passed.
    Deadline = 10,
    /// The group has ended the client's session.
    SessionEnded = 11,
    /// Nothing is known of the command.
    Unknown = 12,
    /// The client was closed.
    Closed = 13,
    /// The system gave no thread, or something else that the client needs.
    Start = 14,
    /// The library has a fault: report it.
    Panic = 15,
}

/// The knowledge of a call that failed: whether a command was applied.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SquallApplied {
    /// No member applies it, so it may be submitted again, unless it is skipped (SQUALL_CODE_SKIPPED).
    No = 0,
    /// It may have been applied, or may yet be.
    Maybe = 1,
    /// It was applied, once.
    Yes = 2,
}

/// The result of a call.
#[derive(Debug)]
pub struct SquallResult {
    pub(crate) code: SquallCode,
    pub(crate) applied: SquallApplied,
    pub(crate) bytes: Vec<u8>,
    /// Empty if it succeeded.
    pub(crate) message: CString,
    pub(crate) tag: u64,
}

impl SquallResult {
    /// The result of a call whose command was not sent.
    pub(crate) fn not_sent(code: SquallCode, message: impl Into<String>) -> SquallResult {
        SquallResult::failed(code, SquallApplied::No, message.into())
    }

    pub(crate) fn failed(code: SquallCode, applied: SquallApplied, message: String) -> SquallResult {
        // The bytes of a sentence are never 0, but a part of it may come from elsewhere.
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        SquallResult { code, applied, bytes: Vec::new(), message, tag: 0 }
    }

    pub(crate) fn with_tag(self, tag: u64) -> SquallResult {
        SquallResult { tag, ..self }
    }
}

impl From<Result<Vec<u8>, ClientError>> for SquallResult {
    fn from(result: Result<Vec<u8>, ClientError>) -> SquallResult {
        match result {
            Ok(bytes) => SquallResult {
                code: SquallCode::Ok,
                applied: SquallApplied::Yes,
                bytes,
                message: CString::default(),
                tag: 0,
            },
            Err(error) => SquallResult::failed(code_of(&error), applied(&error), error.to_string()),
        }
    }
}

fn code_of(error: &ClientError) -> SquallCode {
    match error {
        ClientError::Full { .. } => SquallCode::Full,
        ClientError::Serialize(_) | ClientError::Rejected(_) | ClientError::Invalid => SquallCode::Rejected,
        ClientError::Denied(_) => SquallCode::Denied,
        ClientError::Skipped => SquallCode::Skipped,
        ClientError::NoReply => SquallCode::NoReply,
        ClientError::Reply(_) => SquallCode::Reply,
        ClientError::Query(_) => SquallCode::Query,
        ClientError::Deadline { .. } => SquallCode::Deadline,
        ClientError::SessionEnded => SquallCode::SessionEnded,
        ClientError::Closed { .. } => SquallCode::Closed,
        ClientError::Start(_) => SquallCode::Start,
        _ => SquallCode::Unknown,
    }
}

fn applied(error: &ClientError) -> SquallApplied {
    match error {
        error if error.is_not_applied() => SquallApplied::No,
        ClientError::NoReply | ClientError::Reply(_) => SquallApplied::Yes,
        _ => SquallApplied::Maybe,
    }
}
