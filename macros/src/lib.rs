//! The attribute `squall::service`, which makes a replicated service of the methods of a type.
//!
//! `definition` reads the `impl` block and says what is wrong with it, `expansion` writes what one would write by hand.

mod definition;
mod expansion;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;

/// Makes a replicated service of an `impl` block: its methods become the commands and queries of the service, and the
/// calls of its clients.
///
/// # Attributes of methods
///
/// - `#[command]`, with `&mut self`: a change of the state, which all replicas apply in one order. An argument of type
///   `&Applied` is not sent: it is the place at which the command is applied.
/// - `#[query]`, with `&self`: a question of a client.
/// - `#[snapshot]` and `#[restore]`: `Replicated::snapshot` and `Replicated::restore`.
/// - `#[view_changed]`: `Replicated::view_changed`.
/// - `#[wake_at]` and `#[woken]`: `Replicated::wake_at` and `Replicated::woken`.
/// - `#[follow_ups]` and `#[follow_up]`: `QueryService::follow_ups` and `QueryService::follow_up`, in groups
///   that serve clients.
/// - `#[changes]`, with `&mut self` and the result `Vec<(KEY, CHANGE)>`: the changes since the last call, for clients
///   that watch. It becomes `QueryService::take_changes` and `Watched`. A key is a string or bytes.
///
/// Methods without one stay as they are. Arguments and results are values that derive rkyv's `Archive`, `Serialize` and
/// `Deserialize`, as most types of the standard library do.
///
/// # Arguments
///
/// `schema = "NAME", version = NUMBER` is `Replicated::SCHEMA`. The version goes up with each change of the commands or
/// of their order, and with each other change that `Schema` names.
///
/// `json` also serves programs in other languages: arguments and results are then values that serde reads and writes
/// too. A call is `{"METHOD": {"ARGUMENT": VALUE, ..}}` in JSON, its result `{"METHOD": VALUE}`.
///
/// # Result
///
/// For a type `Bank` there are:
///
/// - the enums `BankCommand` and `BankReply`, with a variant for each command, and, if there are queries, `BankQuery`
///   and `BankAnswer`;
/// - the implementations of `Replicated` and `QueryService`;
/// - the trait `BankCalls`, with a method for each command and query. A client has it, and so has a member's handle,
///   for commands. Each method takes its arguments by value and returns a `TypedCall`.
///
/// They are as visible as the most visible of the commands and queries: give one of these the type's visibility.
#[proc_macro_attribute]
pub fn service(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(arguments.into(), item.into()).into()
}

/// Expands the attribute. After an error, the block stays without the attributes, so that its methods are there.
fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let (block, definition) = match definition::read(arguments, item) {
        Ok(read) => read,
        Err(error) => return error.into_compile_error(),
    };
    let rest = definition.map_or_else(|error| error.into_compile_error(), |definition| expansion::of(&definition));
    quote::quote! { #block #rest }
}
