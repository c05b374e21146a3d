//! The functions of the library, as C calls them.
//!
//! Each checks its arguments, and catches panics, so that none crosses the border.

use std::{
    ffi::{CStr, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
};

use squall::{
    Consistency,
    client::{ClientConfig, Codec},
};

use crate::{
    client::{self, CallRequest},
    result::{SquallApplied, SquallCode, SquallResult},
};

/// The number of an open client. 0 is none.
///
/// Any threads may use a client at a time. The number of a client that was closed is refused with
/// SQUALL_CODE_CLOSED, and one that none had with SQUALL_CODE_ARGUMENT. A process that forks after it has opened a
/// client must not use it in the child.
pub type SquallClient = u64;

/// Bytes in JSON, which a group has by its service's `#[squall::service(json)]`.
pub const SQUALL_JSON: u32 = 0;
/// Bytes in rkyv's form, which all groups have, and which programs in Rust write.
pub const SQUALL_RKYV: u32 = 1;

/// A query whose answer shows all that any caller was told before it was asked.
pub const SQUALL_LINEARIZABLE: u32 = 0;
/// A query whose answer may be behind.
pub const SQUALL_LOCAL: u32 = 1;

/// The text of an argument.
///
/// # Safety
///
/// It is null, or ends with a 0.
unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, SquallResult> {
    if text.is_null() {
        return Err(SquallResult::not_sent(SquallCode::Argument, format!("{name} is null")));
    }
    // SAFETY: the caller of the library gives a text that ends with a 0, and keeps it during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map_err(|_| SquallResult::not_sent(SquallCode::Argument, format!("{name} is no UTF-8")))
}

/// The bytes of an argument.
///
/// # Safety
///
/// They are null, or there are as many.
unsafe fn bytes<'a>(bytes: *const u8, length: usize) -> Result<&'a [u8], SquallResult> {
    match (bytes.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(SquallResult::not_sent(SquallCode::Argument, "the bytes are null")),
        (_, length) if isize::try_from(length).is_err() => {
            Err(SquallResult::not_sent(SquallCode::Argument, "the length of the bytes can't be right"))
        }
        // SAFETY: the caller of the library gives as many bytes, and keeps them during the call.
        _ => Ok(unsafe { slice::from_raw_parts(bytes, length) }),
    }
}

/// Carries out a call, and gives its result to C.
fn returned(call: impl FnOnce() -> Result<SquallResult, SquallResult>) -> *mut SquallResult {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()));
    Box::into_raw(Box::new(result.unwrap_or_else(|failed| failed)))
}

fn panicked() -> SquallResult {
    let why = "the client has panicked, which is a fault of it: report it with what it wrote to its standard error";
    SquallResult::failed(SquallCode::Panic, SquallApplied::Maybe, why.to_owned())
}

fn succeeded() -> SquallResult {
    SquallResult::from(Ok(Vec::new()))
}

fn consistency(of: u32) -> Result<Consistency, SquallResult> {
    match of {
        SQUALL_LINEARIZABLE => Ok(Consistency::Linearizable),
        SQUALL_LOCAL => Ok(Consistency::Local),
        _ => Err(SquallResult::not_sent(SquallCode::Argument, format!("there is no consistency {of}"))),
    }
}

/// Opens a client, once there is a configuration.
///
/// # Safety
///
/// `group` ends with a 0, `client` has room for a number, and both may be null.
unsafe fn open(
    config: impl FnOnce() -> Result<ClientConfig, SquallResult>,
    group: *const c_char,
    codec: u32,
    timeout_ms: u64,
    client: *mut SquallClient,
) -> *mut SquallResult {
    returned(|| {
        if client.is_null() {
            return Err(SquallResult::not_sent(SquallCode::Argument, "the place of the client is null"));
        }
        // SAFETY: it is not null, and the caller of the library has room for a number there.
        unsafe { client.write(0) };
        // SAFETY: as this function demands.
        let group = unsafe { text("the group's name", group) }?;
        let codec = match codec {
            SQUALL_JSON => Codec::Json,
            SQUALL_RKYV => Codec::Rkyv,
            _ => return Err(SquallResult::not_sent(SquallCode::Argument, format!("there is no codec {codec}"))),
        };
        let opened = client::open(config()?, group, codec, timeout_ms)?;
        // SAFETY: as above.
        unsafe { client.write(opened) };
        Ok(succeeded())
    })
}

/// Opens a client of a group, as a configuration file describes its cluster: members' file will do, see "Programs in
/// other languages" in the book.
///
/// Waits until a member of the group has answered, for `timeout_ms` at most. The same time is then the limit of each
/// call that has none of its own; 0 stands for 10 s. `codec` is SQUALL_JSON or SQUALL_RKYV. On success the client's
/// number is in `*client`, else 0. The result is to be freed.
///
/// # Safety
///
/// `path` and `group` are null or end with a 0; `client` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_open(
    path: *const c_char,
    group: *const c_char,
    codec: u32,
    timeout_ms: u64,
    client: *mut SquallClient,
) -> *mut SquallResult {
    let config = || {
        // SAFETY: as this function demands.
        let path = unsafe { text("the path", path) }?;
        ClientConfig::load(path).map_err(|error| SquallResult::not_sent(SquallCode::Config, error.to_string()))
    };
    // SAFETY: as this function demands.
    unsafe { open(config, group, codec, timeout_ms, client) }
}

/// Opens a client as squall_open does, with a configuration's text instead of a file. Paths of keys in it are relative
/// to the working directory, and the environment does not override it.
///
/// # Safety
///
/// `toml` and `group` are null or end with a 0; `client` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_open_toml(
    toml: *const c_char,
    group: *const c_char,
    codec: u32,
    timeout_ms: u64,
    client: *mut SquallClient,
) -> *mut SquallResult {
    let config = || {
        // SAFETY: as this function demands.
        let toml = unsafe { text("the configuration", toml) }?;
        ClientConfig::from_toml(toml).map_err(|error| SquallResult::not_sent(SquallCode::Config, error.to_string()))
    };
    // SAFETY: as this function demands.
    unsafe { open(config, group, codec, timeout_ms, client) }
}

/// Closes a client. Calls that other threads wait for end with SQUALL_CODE_CLOSED. Results that were not taken are
/// freed, and the descriptor of squall_descriptor is closed: let the event loop forget it before.
#[unsafe(no_mangle)]
pub extern "C" fn squall_close(client: SquallClient) {
    // It could panic only if the system gave no memory.
    let _ = catch_unwind(|| client::close(client));
}

/// Returns the number of the group's shards, which is 1 without shards; or 0 if the client is not open.
#[unsafe(no_mangle)]
pub extern "C" fn squall_shards(client: SquallClient) -> u32 {
    let shards = catch_unwind(|| client::get(client).map_or(0, |client| client.shards().len()));
    shards.ok().and_then(|shards| u32::try_from(shards).ok()).unwrap_or(0)
}

/// Returns the shard that has a key, in a group that divides its keys by `squall::shard_of_bytes`. 0 if the client is
/// not open, or the key is null.
///
/// # Safety
///
/// `key` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_shard_of(client: SquallClient, key: *const u8, length: usize) -> u32 {
    let shard = catch_unwind(|| {
        // SAFETY: as this function demands.
        let key = unsafe { bytes(key, length) }.ok()?;
        u32::try_from(client::get(client).ok()?.shards().shard_of(key)).ok()
    });
    shard.ok().flatten().unwrap_or(0)
}

/// Submits a command to a shard, from 0 on, and waits for its reply. The result is to be freed.
///
/// The command is applied at most once, whatever fails meanwhile. If the call fails, squall_result_applied says what is
/// known. `timeout_ms` is its limit, or 0 for that of the client.
///
/// # Safety
///
/// `command` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_submit(
    client: SquallClient,
    shard: u32,
    command: *const u8,
    length: usize,
    timeout_ms: u64,
) -> *mut SquallResult {
    returned(|| {
        // SAFETY: as this function demands.
        let bytes = unsafe { bytes(command, length) }?;
        let call = client::get(client)?.call(&CallRequest { shard, query: None, bytes, timeout_ms })?;
        Ok(SquallResult::from(call.wait()))
    })
}

/// Asks a shard a query, and waits for its answer. `how` is SQUALL_LINEARIZABLE or SQUALL_LOCAL. All else is as
/// squall_submit says.
///
/// # Safety
///
/// `query` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_query(
    client: SquallClient,
    shard: u32,
    how: u32,
    query: *const u8,
    length: usize,
    timeout_ms: u64,
) -> *mut SquallResult {
    returned(|| {
        // SAFETY: as this function demands.
        let bytes = unsafe { bytes(query, length) }?;
        let query = Some(consistency(how)?);
        let call = client::get(client)?.call(&CallRequest { shard, query, bytes, timeout_ms })?;
        Ok(SquallResult::from(call.wait()))
    })
}

/// Starts a command, as squall_submit, and does not wait: its result comes with squall_next, and has this tag.
///
/// Returns null if it was started, else the result that says why not, which is to be freed. Nothing was sent then.
///
/// # Safety
///
/// `command` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_start_submit(
    client: SquallClient,
    shard: u32,
    command: *const u8,
    length: usize,
    timeout_ms: u64,
    tag: u64,
) -> *mut SquallResult {
    started(|| {
        // SAFETY: as this function demands.
        let bytes = unsafe { bytes(command, length) }?;
        client::get(client)?.start(&CallRequest { shard, query: None, bytes, timeout_ms }, tag)
    })
}

/// Starts a query, as squall_query, and does not wait: see squall_start_submit.
///
/// # Safety
///
/// `query` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_start_query(
    client: SquallClient,
    shard: u32,
    how: u32,
    query: *const u8,
    length: usize,
    timeout_ms: u64,
    tag: u64,
) -> *mut SquallResult {
    started(|| {
        // SAFETY: as this function demands.
        let bytes = unsafe { bytes(query, length) }?;
        let query = Some(consistency(how)?);
        client::get(client)?.start(&CallRequest { shard, query, bytes, timeout_ms }, tag)
    })
}

fn started(start: impl FnOnce() -> Result<(), SquallResult>) -> *mut SquallResult {
    match catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(|_| Err(panicked())) {
        Ok(()) => ptr::null_mut(),
        Err(failed) => Box::into_raw(Box::new(failed)),
    }
}

/// Returns a descriptor that is ready for reading while calls that were started have results, for an event loop; or -1
/// if the client is not open. It is only to be polled: squall_next resets it, and squall_close closes it.
#[unsafe(no_mangle)]
pub extern "C" fn squall_descriptor(client: SquallClient) -> c_int {
    catch_unwind(|| client::get(client).map_or(-1, |client| client.descriptor())).unwrap_or(-1)
}

/// Takes the result of a call that was started and has ended. It is to be freed. Null if there is none now: call it
/// until then, and poll the descriptor next.
#[unsafe(no_mangle)]
pub extern "C" fn squall_next(client: SquallClient) -> *mut SquallResult {
    let next = catch_unwind(|| client::get(client).ok().and_then(|client| client.next()));
    next.ok().flatten().map_or(ptr::null_mut(), |result| Box::into_raw(Box::new(result)))
}

/// A result, unless it is null.
///
/// # Safety
///
/// It is null, or comes from this library and was not freed.
unsafe fn result<'a>(result: *const SquallResult) -> Option<&'a SquallResult> {
    // SAFETY: as this function demands.
    unsafe { result.as_ref() }
}

/// Returns the outcome of a call. SQUALL_CODE_ARGUMENT if the result is null.
///
/// # Safety
///
/// It is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_result_code(of: *const SquallResult) -> SquallCode {
    // SAFETY: as this function demands.
    unsafe { result(of) }.map_or(SquallCode::Argument, |result| result.code)
}

/// Returns what is known of a command: whether it was applied.
///
/// # Safety
///
/// It is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_result_applied(of: *const SquallResult) -> SquallApplied {
    // SAFETY: as this function demands.
    unsafe { result(of) }.map_or(SquallApplied::No, |result| result.applied)
}

/// Returns the reply's or answer's bytes, which live until the result is freed. No 0 follows them.
///
/// # Safety
///
/// It is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_result_bytes(of: *const SquallResult) -> *const u8 {
    // SAFETY: as this function demands.
    unsafe { result(of) }.map_or(ptr::null(), |result| result.bytes.as_ptr())
}

/// Returns the number of the reply's or answer's bytes.
///
/// # Safety
///
/// It is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_result_length(of: *const SquallResult) -> usize {
    // SAFETY: as this function demands.
    unsafe { result(of) }.map_or(0, |result| result.bytes.len())
}

/// Returns a sentence that says why the call failed, in UTF-8, with a 0 at its end. It is empty if the call succeeded,
/// and lives until the result is freed.
///
/// # Safety
///
/// It is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_result_message(of: *const SquallResult) -> *const c_char {
    // SAFETY: as this function demands.
    unsafe { result(of) }.map_or(c"there is no result".as_ptr(), |result| result.message.as_ptr())
}

/// Returns the tag with which the call was started, or 0 if it was not.
///
/// # Safety
///
/// It is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_result_tag(of: *const SquallResult) -> u64 {
    // SAFETY: as this function demands.
    unsafe { result(of) }.map_or(0, |result| result.tag)
}

/// Frees a result. Null is none.
///
/// # Safety
///
/// It is null, or comes from this library and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_result_free(of: *mut SquallResult) {
    if !of.is_null() {
        // SAFETY: it comes from `Box::into_raw`, and the caller of the library frees it once.
        drop(unsafe { Box::from_raw(of) });
    }
}
