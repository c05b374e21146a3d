//! Appends of clients, with the reply of one member or of all.

use squall::{
    client::{AgreementError, Client, ClientError},
    log_service::RecordLog,
};

/// A function that waits for the version of a record, which stays unknown if all members die before they have told it.
pub(crate) type Appending = Box<dyn FnOnce() -> Result<Option<u64>, String>>;

/// Appends a record. With the replies of all members, these must be alike.
pub(crate) fn append(client: &Client<RecordLog>, record: &Vec<u8>, of_all: bool) -> Appending {
    if !of_all {
        let call = client.submit(record);
        return Box::new(|| call.wait().map(|appended| Some(appended.version)).map_err(|error| error.to_string()));
    }
    let call = client.submit_all(record);
    Box::new(|| match call.wait().map_err(|error| error.to_string())?.wait_agreed() {
        Ok(appended) => Ok(Some(appended.version)),
        Err(AgreementError::NoReply { error: Some(ClientError::Gone(_)) }) => Ok(None),
        Err(error) => Err(error.to_string()),
    })
}
