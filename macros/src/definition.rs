//! The reading of a service's `impl` block, and the errors that it may have.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::{
    Attribute, Error, Expr, FnArg, GenericArgument, Ident, ImplItem, ImplItemFn, Item, ItemImpl, Meta, Pat, PatType,
    PathArguments, Receiver, ReceiverKind, Result, ReturnType, Type, Visibility, ext::IdentExt, meta, parse::Parser,
    parse_quote, parse2,
};

/// A service, as its `impl` block says.
pub(crate) struct Definition {
    /// The name and the version of the schema, if they are given.
    pub(crate) schema: Option<(Expr, Expr)>,
    /// Whether clients in other languages are served.
    pub(crate) json: bool,
    pub(crate) service: Type,
    pub(crate) name: Ident,
    pub(crate) visibility: Visibility,
    pub(crate) commands: Vec<Method>,
    pub(crate) queries: Vec<Method>,
    pub(crate) snapshot: Option<Ident>,
    pub(crate) restore: Option<Ident>,
    pub(crate) view_changed: Option<Ident>,
    pub(crate) wake_at: Option<Ident>,
    pub(crate) woken: Option<Ident>,
    pub(crate) follow_ups: Option<Ident>,
    pub(crate) follow_up: Option<Ident>,
    /// The method that returns what has changed, and the type of a change.
    pub(crate) changes: Option<(Ident, Type)>,
}

/// A command or a query.
pub(crate) struct Method {
    pub(crate) name: Ident,
    pub(crate) variant: Ident,
    pub(crate) docs: Vec<Attribute>,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) result: Type,
}

/// An argument of a method behind `self`.
pub(crate) enum Argument {
    Sent(Ident, Box<Type>),
    /// The place at which a command is applied: `&Applied`.
    Applied,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Command,
    Query,
    Snapshot,
    Restore,
    ViewChanged,
    WakeAt,
    Woken,
    FollowUps,
    FollowUp,
    Changes,
}

const ROLES: [(&str, Role); 10] = [
    ("command", Role::Command),
    ("query", Role::Query),
    ("snapshot", Role::Snapshot),
    ("restore", Role::Restore),
    ("view_changed", Role::ViewChanged),
    ("wake_at", Role::WakeAt),
    ("woken", Role::Woken),
    ("follow_ups", Role::FollowUps),
    ("follow_up", Role::FollowUp),
    ("changes", Role::Changes),
];

/// The methods that a client has itself, or with a trait that is always in scope.
pub(crate) const OF_CLIENTS: [&str; 15] = [
    "clone",
    "everywhere",
    "into",
    "query",
    "query_as",
    "query_at",
    "query_nearest",
    "submit",
    "submit_all",
    "to_owned",
    "try_into",
    "watch",
    "watch_from",
    "watch_with_query",
    "within",
];

/// The methods that only a member's handle has itself.
pub(crate) const OF_GROUPS: [&str; 20] = [
    "anywhere",
    "ask",
    "at_time",
    "at_version",
    "follow",
    "log",
    "log_counts",
    "name",
    "peek",
    "read",
    "send",
    "send_bytes",
    "snapshot_now",
    "submit_bytes",
    "trim",
    "try_send",
    "try_send_bytes",
    "try_submit",
    "try_submit_bytes",
    "version_at",
];

/// The error of a second method of a role.
const SECOND: &str = "another method has this attribute already: a service has one such method";

/// The errors found so far, all of which the compiler is to tell.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn add(&mut self, at: impl ToTokens, message: impl std::fmt::Display) {
        self.join(Error::new_spanned(at, message));
    }

    fn join(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }
}

/// Reads an `impl` block. Returns it without the attributes of methods, and the service that it has.
pub(crate) fn read(arguments: TokenStream, item: TokenStream) -> Result<(ItemImpl, Result<Definition>)> {
    let mut block = match parse2(item)? {
        Item::Impl(block) => block,
        other => return Err(Error::new_spanned(other, "`service` stands before an `impl` block: `impl Bank { .. }`")),
    };
    let mut errors = Errors::default();
    let Arguments { schema, json } = read_arguments(arguments).unwrap_or_else(|error| {
        errors.join(error);
        Arguments::default()
    });
    let name = type_name(&block, &mut errors);
    let mut service = Definition {
        schema,
        json,
        service: (*block.self_ty).clone(),
        name,
        visibility: Visibility::Inherited,
        commands: Vec::new(),
        queries: Vec::new(),
        snapshot: None,
        restore: None,
        view_changed: None,
        wake_at: None,
        woken: None,
        follow_ups: None,
        follow_up: None,
        changes: None,
    };
    for item in &mut block.items {
        if let ImplItem::Fn(method) = item {
            service.take(method, &mut errors);
        }
    }
    service.check(&mut errors);
    Ok((block, errors.0.map_or(Ok(service), Err)))
}

/// The arguments of the attribute.
#[derive(Default)]
struct Arguments {
    schema: Option<(Expr, Expr)>,
    json: bool,
}

/// Reads the arguments of the attribute.
fn read_arguments(arguments: TokenStream) -> Result<Arguments> {
    let (mut name, mut version, mut json) = (None, None, false);
    let at = arguments.clone();
    let parser = meta::parser(|argument| {
        let place = match argument.path.get_ident() {
            Some(known) if known == "schema" => &mut name,
            Some(known) if known == "version" => &mut version,
            Some(known) if known == "json" => {
                return match std::mem::replace(&mut json, true) {
                    true => Err(argument.error("this argument is given twice: leave one")),
                    false => Ok(()),
                };
            }
            _ => {
                return Err(argument
                    .error("there is no such argument: there are `schema = \"NAME\", version = NUMBER` and `json`"));
            }
        };
        if place.replace(argument.value()?.parse()?).is_some() {
            return Err(argument.error("this argument is given twice: leave one"));
        }
        Ok(())
    });
    parser.parse2(arguments)?;
    match (name, version) {
        (Some(name), Some(version)) => Ok(Arguments { schema: Some((name, version)), json }),
        (None, None) => Ok(Arguments { schema: None, json }),
        _ => Err(Error::new_spanned(at, "a schema has a name and a version: `schema = \"NAME\", version = NUMBER`")),
    }
}

/// Returns the name of the block's type, from which the names of what is made of it follow.
fn type_name(block: &ItemImpl, errors: &mut Errors) -> Ident {
    if let Some((of, _)) = &block.trait_ {
        errors.add(of, "`service` stands before the type's own methods: write `impl Bank { .. }`, without a trait");
    }
    if !block.generics.params.is_empty() {
        errors.add(&block.generics, "a service is one type: write the block for a type without parameters");
    }
    let name = match &*block.self_ty {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.unraw()),
        _ => None,
    };
    name.unwrap_or_else(|| {
        errors.add(&block.self_ty, "a service is a type with a name, a struct or an enum: write `impl Bank { .. }`");
        format_ident!("Service")
    })
}

impl Definition {
    /// Takes a method in, and its attributes away.
    fn take(&mut self, method: &mut ImplItemFn, errors: &mut Errors) {
        let Some(role) = role(method, errors) else { return };
        let name = method.sig.ident.clone();
        let of_role = match role {
            Role::Command | Role::Query => return self.take_call(role, method, errors),
            Role::Snapshot => &mut self.snapshot,
            Role::Restore => &mut self.restore,
            Role::ViewChanged => &mut self.view_changed,
            Role::WakeAt => &mut self.wake_at,
            Role::Woken => &mut self.woken,
            Role::FollowUps => &mut self.follow_ups,
            Role::FollowUp => &mut self.follow_up,
            Role::Changes => {
                let change = change_of(method, errors);
                if self.changes.replace((name.clone(), change)).is_some() {
                    errors.add(&name, SECOND);
                }
                return;
            }
        };
        if of_role.is_some() {
            errors.add(&name, SECOND);
        }
        *of_role = Some(name);
    }

    fn take_call(&mut self, role: Role, method: &ImplItemFn, errors: &mut Errors) {
        check_signature(role, method, errors);
        let arguments = method.sig.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(input) => argument(role, input, errors),
            FnArg::Receiver(_) => None,
        });
        let arguments = arguments.collect();
        let result = match &method.sig.output {
            ReturnType::Default => parse_quote!(()),
            ReturnType::Type(_, result) => (**result).clone(),
        };
        check_owned(
            &result,
            "a result travels to the caller, so it is an owned value: return a `String` for a `&str`",
            errors,
        );
        self.see(&method.vis);
        let docs = method.attrs.iter().filter(|attribute| attribute.path().is_ident("doc")).cloned().collect();
        let name = method.sig.ident.clone();
        let method = Method { variant: variant(&name), name, docs, arguments, result };
        if role == Role::Command { &mut self.commands } else { &mut self.queries }.push(method);
    }

    /// Makes what is generated as visible as a method is.
    fn see(&mut self, visibility: &Visibility) {
        match (&self.visibility, visibility) {
            // A lint about the keyword of the method would speak of a type that its author did not write.
            (_, Visibility::Public(_)) => self.visibility = parse_quote!(pub),
            (Visibility::Inherited, visibility) => self.visibility = visibility.clone(),
            (Visibility::Restricted(_), Visibility::Restricted(wider)) if wider.path.is_ident("crate") => {
                self.visibility = visibility.clone();
            }
            _ => {}
        }
    }

    fn check(&self, errors: &mut Errors) {
        if self.commands.is_empty() && errors.0.is_none() {
            errors.add(
                &self.service,
                "a service has commands: write `#[command]` before a method that changes its state",
            );
        }
        match (&self.snapshot, &self.restore) {
            (Some(method), None) => {
                errors
                    .add(method, "what a snapshot writes is read by another member: write a method with `#[restore]`");
            }
            (None, Some(method)) => {
                errors.add(method, "there is nothing to restore: write a method with `#[snapshot]`");
            }
            _ => {}
        }
        match (&self.wake_at, &self.woken) {
            (Some(method), None) => {
                errors.add(method, "a replica that is woken does something then: write a method with `#[woken]`");
            }
            (None, Some(method)) => {
                errors.add(method, "a replica is woken when it says so: write a method with `#[wake_at]`");
            }
            _ => {}
        }
        match (&self.follow_ups, &self.follow_up) {
            (Some(method), None) => {
                errors.add(method, "a follow-up that is due has a command: write a method with `#[follow_up]`");
            }
            (None, Some(method)) => {
                errors.add(method, "a follow-up is made when it is due: write a method with `#[follow_ups]`");
            }
            _ => {}
        }
    }
}

/// Takes the attributes of this macro away from a method, and returns its role.
fn role(method: &mut ImplItemFn, errors: &mut Errors) -> Option<Role> {
    let mut found = None;
    method.attrs.retain(|attribute| {
        let Some((_, role)) = ROLES.iter().find(|(name, _)| attribute.path().is_ident(name)) else { return true };
        if !matches!(attribute.meta, Meta::Path(_)) {
            errors.add(attribute, "this attribute takes no arguments");
        }
        if found.is_some() {
            errors.add(attribute, "a method is one thing, a command or a query, say: leave one of these attributes");
        }
        found.get_or_insert(*role);
        false
    });
    found
}

/// Returns the type of a change, from the result of the method that returns them with their keys.
fn change_of(method: &ImplItemFn, errors: &mut Errors) -> Type {
    let change = match &method.sig.output {
        ReturnType::Type(_, result) => change_in(result),
        ReturnType::Default => None,
    };
    let takes_self_alone = has_receiver(method.sig.receiver(), true) && method.sig.inputs.len() == 1;
    if change.is_none() || !takes_self_alone {
        errors.add(
            &method.sig.ident,
            "it returns the changes since the last call: write `(&mut self) -> Vec<(KEY, CHANGE)>`, with these two types",
        );
    }
    change.unwrap_or_else(|| parse_quote!(()))
}

/// Returns the second type of the pairs of a `Vec`.
fn change_in(result: &Type) -> Option<Type> {
    let Type::Path(path) = result else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Vec")?;
    let PathArguments::AngleBracketed(of) = &last.arguments else { return None };
    match of.args.first()? {
        GenericArgument::Type(Type::Tuple(pair)) if pair.elems.len() == 2 => pair.elems.last().cloned(),
        _ => None,
    }
}

/// Checks all of a command or query but its arguments and its result.
fn check_signature(role: Role, method: &ImplItemFn, errors: &mut Errors) {
    let signature = &method.sig;
    if role == Role::Command && !has_receiver(signature.receiver(), true) {
        errors.add(
            signature.receiver().map_or(signature.ident.to_token_stream(), ToTokens::to_token_stream),
            "a command changes the state: write `&mut self`, or `#[query]` before a method that only looks at it",
        );
    }
    if role == Role::Query && !has_receiver(signature.receiver(), false) {
        errors.add(
            signature.receiver().map_or(signature.ident.to_token_stream(), ToTokens::to_token_stream),
            "a query changes nothing: write `&self`, or `#[command]` before a method that changes the state",
        );
    }
    if let Some(keyword) = &signature.asyncness {
        errors.add(keyword, "a replica's method runs between two commands and waits for nothing: remove `async`");
    }
    if !signature.generics.params.is_empty() {
        errors.add(&signature.generics, "what is sent has one type: write the method without parameters of types");
    }
    if let Some(bounds) = &signature.generics.where_clause {
        errors.add(bounds, "what is sent has one type: write the method without `where`");
    }
    let name = signature.ident.unraw().to_string();
    let is_taken = OF_CLIENTS.contains(&&*name) || role == Role::Command && OF_GROUPS.contains(&&*name);
    if is_taken {
        let message =
            format!("handles have a method `{name}` already, which would be called instead: take another name");
        errors.add(&signature.ident, message);
    }
    for attribute in method.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")) {
        errors.add(attribute, "all members and clients have the same commands and queries: remove the condition");
    }
}

fn has_receiver(receiver: Option<&Receiver>, is_mutable: bool) -> bool {
    matches!(
        receiver.map(|receiver| &receiver.kind),
        Some(ReceiverKind::Reference(_, _, mutable)) if mutable.is_some() == is_mutable
    )
}

fn argument(role: Role, input: &PatType, errors: &mut Errors) -> Option<Argument> {
    if let Type::Reference(reference) = &*input.ty
        && let Type::Path(path) = &*reference.elem
        && path.path.segments.last().is_some_and(|last| last.ident == "Applied")
    {
        if role == Role::Query {
            errors.add(&input.ty, "a query has no place in the order of commands: remove this argument");
        }
        if reference.mutability.is_some() {
            errors.add(&input.ty, "the place of a command does not change: write `&Applied`");
        }
        return Some(Argument::Applied);
    }
    let owned = "an argument is sent, so it is an owned value: take a `String` for a `&str`, a `Vec<T>` for a `&[T]`";
    check_owned(&input.ty, owned, errors);
    match &*input.pat {
        Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => {
            Some(Argument::Sent(name.ident.clone(), input.ty.clone()))
        }
        pattern => {
            errors.add(pattern, "an argument is sent by its name: write a name here, and take it apart in the method");
            None
        }
    }
}

/// Checks that a type can stand in an enum: it borrows nothing, and has a name.
fn check_owned(of: &Type, message: &str, errors: &mut Errors) {
    let mut trees: Vec<TokenTree> = of.to_token_stream().into_iter().collect();
    while let Some(tree) = trees.pop() {
        match tree {
            TokenTree::Punct(punct) if punct.as_char() == '&' => return errors.add(of, message),
            TokenTree::Ident(ident) if ident == "Self" => {
                errors.add(ident, "a message has a variant with this type: write the type's name for `Self`");
            }
            TokenTree::Ident(ident) if ident == "impl" => {
                errors.add(ident, "what is sent has one type: name it");
            }
            TokenTree::Group(group) => trees.extend(group.stream()),
            _ => {}
        }
    }
}

/// Returns the name of a method's variant.
fn variant(method: &Ident) -> Ident {
    let name = method.unraw().to_string();
    let capitalized = |word: &str| {
        let mut letters = word.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
    };
    let name: String = name.split('_').map(capitalized).collect();
    let is_name = syn::parse_str::<Ident>(&name).is_ok();
    Ident::new(&if is_name { name } else { format!("Method{name}") }, method.span())
}
